"""Requests of OpenAI's Chat Completions API, read as turns of conversations. `openai_answers.py`
writes the outcome of a turn.

A client of that API sends the whole conversation each time and stores nothing else. A
conversation here holds more: the calls of the agent's own tools and their results. The messages
up to the model's last answer are therefore recognised by their hash, and the conversation that
gave this answer continues. If it has continued differently meanwhile (an answer is requested
again), it is forked. If no conversation matches, a new one is created from the messages.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any, cast

import msgspec

from holdfast import events as ev
from holdfast.agent.serial_form import Form, ToolForm, form_of, tools_of
from holdfast.content import (
    AudioContent,
    Content,
    FileContent,
    ImageContent,
    TextContent,
    ToolCall,
    ToolResult,
)
from holdfast.errors import ConfigurationError
from holdfast.nesting import too_deep

if TYPE_CHECKING:
    from holdfast.agent.agent import Agent

_MAX_FILE_BYTES = 20_000_000
_WEB_ADDRESS = re.compile(r"https?://\S{1,8000}", re.IGNORECASE)
_SOUND_FORMAT = re.compile(r"[a-z0-9.+-]{1,40}")
_FUNCTION_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")  # excludes `${...}`


class Published(msgspec.Struct, frozen=True):
    """An agent that is published as a model. Its tools run on the server."""

    name: str
    form: Form
    tools: tuple[ToolForm, ...]
    created: int

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of a request that brings the agent: its form, its secrets and its tools."""
        return {
            "agent": dict(self.form.mapping),
            "secrets": dict(self.form.secrets),
            "tools": list(self.tools),
            "tool_module_qualnames": {tool.name: tool.module for tool in self.tools if tool.module},
        }

    def __repr__(self) -> str:
        return f"Published({self.name!r})"


def publish(name: str, agent: Agent, created: datetime | None = None) -> Published:
    """Return an agent under a name, ready to be published. Raises `ConfigurationError` for a
    part that has no serial form."""
    if not name or len(name) > 100 or any(c.isspace() or not c.isprintable() for c in name):
        raise ConfigurationError(
            "The name of an agent takes 1 to 100 printable characters without spaces, not"
            f" {name!r}."
        )
    moment = created or datetime.now(UTC)
    return Published(name, form_of(agent), tuple(tools_of(agent)), int(moment.timestamp()))


# --- requests ---


class Function(msgspec.Struct, omit_defaults=True):
    """A function of the client. `parameters` is a JSON Schema."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolOffer(msgspec.Struct):
    """A tool of the client."""

    type: str
    function: Function


class CalledFunction(msgspec.Struct):
    """The function of a call, with its arguments as JSON text."""

    name: str
    arguments: str | None = None


class ClientToolCall(msgspec.Struct):
    """A call of one of the client's tools, in the form in which the client received it."""

    id: str
    function: CalledFunction
    type: str | None = "function"


class ChatMessage(msgspec.Struct, omit_defaults=True):
    """One message of the role system, developer, user, assistant or tool."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[ClientToolCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None


class StreamOptions(msgspec.Struct):
    """Options of a stream. With `include_usage` the last chunk reports the token usage."""

    include_usage: bool | None = None


class ChatRequest(msgspec.Struct):
    """The fields of a chat request that the server reads. Other fields, such as a temperature,
    are ignored: the agent decides about them."""

    model: str
    messages: list[ChatMessage]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tools: list[ToolOffer] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    n: int | None = None


class ChatTurn(msgspec.Struct):
    """A parsed chat request: the messages up to the last answer (`history`) and the `new` ones."""

    instructions: str
    history: list[ChatMessage]
    user_messages: list[tuple[Content, ...]]  # the user's new messages
    results: dict[str, ToolResult]  # of the client's tools, by the ids of their calls
    offers: list[ToolForm]
    base: bytes  # the hash of the agent; conversations continue only with the same agent
    setting: bytes  # the hash of instructions and tools, which may change from turn to turn
    new: list[ChatMessage]
    past: bytes = b""  # the hash of the history
    request_digest: bytes = b""  # the hash of the whole request
    _messages: Any = None  # the hash object that has taken all messages

    def __post_init__(self) -> None:
        """Encode each message once: clients send the whole thread with every request."""
        messages_hash = sha256(self.base)
        for message in self.history:
            messages_hash.update(_canonical(message))
        self.past = messages_hash.digest()
        request_hash = sha256(self.past + self.setting)
        for encoded in map(_canonical, self.new):
            messages_hash.update(encoded)
            request_hash.update(encoded)
        self.request_digest, self._messages = request_hash.digest(), messages_hash

    def answered(self, answer: ChatMessage) -> bytes:
        """Return the hash of all messages with the `answer`: the history of a next request."""
        messages_hash = self._messages.copy()
        messages_hash.update(_canonical(answer))
        return messages_hash.digest()


def parse_request(request: ChatRequest, agent: Published) -> ChatTurn:
    """Return the turn that a request asks for. Raises `ConfigurationError` that names the
    invalid field."""
    if request.n not in (None, 1):
        raise ConfigurationError(f"n must be 1, not {request.n}: an agent gives one answer.")
    if not request.messages:
        raise ConfigurationError("messages is empty. Send at least one message.")
    spoken: list[ChatMessage] = []
    system: list[str] = []
    for index, message in enumerate(request.messages):
        if message.role in ("system", "developer"):
            parts = content_of(message.content, f"messages[{index}]")
            system.append("\n".join(one.text for one in parts if isinstance(one, TextContent)))
        elif message.role in ("user", "assistant", "tool"):
            spoken.append(message)
        else:
            raise ConfigurationError(
                f"messages[{index}]: role takes system, developer, user, assistant or tool, not"
                f" {message.role[:50]!r}."
            )
    answers = [index for index, message in enumerate(spoken) if message.role == "assistant"]
    begin = answers[-1] + 1 if answers else 0
    history, new = spoken[:begin], spoken[begin:]
    if not new:
        raise ConfigurationError(
            "The last message is the assistant's, so there is nothing to answer."
        )
    messages: list[tuple[Content, ...]] = []
    results: dict[str, ToolResult] = {}
    for message in new:
        content = content_of(message.content, "messages")
        if message.role == "tool":
            if not message.tool_call_id:
                raise ConfigurationError(
                    "A message of the role tool needs the tool_call_id of the call it answers."
                )
            if message.tool_call_id in results:
                raise ConfigurationError(
                    f"messages: the call {message.tool_call_id[:100]!r} has two results; send one."
                )
            results[message.tool_call_id] = ToolResult(content)
        elif content:
            messages.append(content)
        else:
            raise ConfigurationError("A user's message has no content.")
    offers = _offers(request, agent)
    _check_calls(history)
    instructions = "\n\n".join(text for text in system if text.strip())
    base = _hash([agent.name, agent.form.mapping, [tool.name for tool in agent.tools]])
    setting = setting_of(instructions, offers)
    return ChatTurn(instructions, history, messages, results, offers, base, setting, new)


def setting_of(instructions: str, tools: Sequence[ToolForm]) -> bytes:
    """Return the hash of a client's instructions and tools."""
    return _hash([instructions, tools])


def _hash(value: object) -> bytes:
    return sha256(msgspec.json.encode(value, order="deterministic")).digest()


def _check_calls(history: Sequence[ChatMessage]) -> None:
    for message in history:
        ids = [call.id for call in message.tool_calls or []] if message.role == "assistant" else []
        if len(set(ids)) < len(ids):
            twice = next(id for id in ids if ids.count(id) > 1)
            raise ConfigurationError(
                f"messages: two tool_calls of one message have the id {twice[:100]!r}; give each"
                " its own."
            )


def _offers(request: ChatRequest, agent: Published) -> list[ToolForm]:
    if request.tool_choice == "none":
        return []
    own_names = {tool.name for tool in agent.tools}
    offers: list[ToolForm] = []
    for index, offer in enumerate(request.tools or []):
        function = offer.function
        if offer.type != "function":
            raise ConfigurationError(
                f"tools[{index}]: type takes function, not {offer.type[:50]!r}."
            )
        if not _FUNCTION_NAME.fullmatch(function.name):
            raise ConfigurationError(
                f"tools[{index}]: name takes 1 to 128 letters, digits, '_', '.' and '-', not"
                f" {function.name[:100]!r}."
            )
        if function.name in own_names:
            raise ConfigurationError(
                f"tools[{index}]: the name {function.name!r} is taken by a tool of the agent or by"
                " an earlier tool of this request."
            )
        own_names.add(function.name)
        offers.append(
            ToolForm(
                name=function.name,
                description=function.description or "",
                input_schema=function.parameters or {"type": "object", "properties": {}},
                # The protocol gives a client all calls of an answer at once.
                parallel=request.parallel_tool_calls is not False,
            )
        )
    return offers


def content_of(
    content: str | Sequence[Mapping[str, Any]] | None, where: str
) -> tuple[Content, ...]:
    """Return a message's content as blocks. Pictures and files by `data:` URL are decoded; another
    URL is passed on to the model's provider, because the server fetches nothing. Raises
    `ConfigurationError`."""
    if content is None:
        return ()
    if isinstance(content, str):
        return (TextContent(content),) if content else ()
    blocks: list[Content] = []
    for part in content:
        kind, text = part.get("type"), part.get("text")
        if kind in ("text", "input_text") and isinstance(text, str):
            blocks.append(TextContent(text))
        elif kind == "refusal" and isinstance(part.get("refusal"), str):
            blocks.append(TextContent(str(part["refusal"])))
        elif kind == "image_url":
            image_url: Any = part.get("image_url")
            url = _field(image_url, "url") if isinstance(image_url, dict) else image_url
            blocks.append(_picture(url, where))
        elif kind == "file":
            blocks.append(_file(part.get("file"), where))
        elif kind == "input_audio":
            blocks.append(_sound(part.get("input_audio"), where))
        else:
            raise ConfigurationError(
                f"{where}: content takes parts of the types text, image_url, file and input_audio,"
                f" not {str(kind)[:50]!r}."
            )
    return tuple(blocks)


def _field(fields: Any, name: str) -> str:
    value: Any = cast("dict[str, Any]", fields).get(name) if isinstance(fields, dict) else None
    return value if isinstance(value, str) else ""


def _picture(url: Any, where: str) -> Content:
    if isinstance(url, str) and _WEB_ADDRESS.fullmatch(url):
        # A URL such as /photo?id=7 shows no kind, and would be taken as a document.
        block = FileContent(url=url)
        return block if block.kind == "image" else FileContent(url=url, mime_type="image/jpeg")
    if not isinstance(url, str) or not url.startswith("data:image/"):
        raise ConfigurationError(
            f"{where}: image_url takes an https: URL or a data: URL that contains the image."
        )
    kind, data = _inline(url, "image_url", "image", where)
    return ImageContent(data, kind)


def _inline(url: str, field: str, what: str, where: str) -> tuple[str, bytes]:
    """Return the MIME type and the bytes of a `data:` URL."""
    head, _, data = url.removeprefix("data:").partition(";base64,")
    return head.partition(";")[0], _decode(data, field, what, where)


def _decode(data: str, field: str, what: str, where: str) -> bytes:
    try:
        decoded = b64decode(data, validate=True)
    except ValueError:
        decoded = b""
    if not decoded:
        raise ConfigurationError(f"{where}: {field} has an {what} that is not Base64.") from None
    if len(decoded) > _MAX_FILE_BYTES:
        raise ConfigurationError(f"{where}: an {what} may have at most {_MAX_FILE_BYTES:,} bytes.")
    return decoded


def _file(value: Any, where: str) -> Content:
    data, file_id, name = (_field(value, key) for key in ("file_data", "file_id", "filename"))
    if bool(data) == bool(file_id):
        raise ConfigurationError(f"{where}: file takes one of file_data and file_id.")
    if file_id:
        return FileContent(file_id=file_id, name=name, provider="openai")
    if not data.startswith("data:"):
        raise ConfigurationError(
            f"{where}: file_data takes a data: URL, such as data:application/pdf;base64,..."
        )
    kind, inline_data = _inline(data, "file_data", "attachment", where)
    return FileContent(inline_data, kind or "application/octet-stream", name=name)


def _sound(value: Any, where: str) -> Content:
    kind = _field(value, "format").lower()
    data = _decode(_field(value, "data"), "input_audio", "attachment", where)
    if not _SOUND_FORMAT.fullmatch(kind):
        raise ConfigurationError(f"{where}: input_audio takes a format such as wav or mp3.")
    return AudioContent(data, f"audio/{'mpeg' if kind == 'mp3' else kind}")


def _canonical(message: ChatMessage) -> bytes:
    """Encode a message. Clients add fields, send texts in one part or several, and strip
    answers."""
    parts: list[Any] = []
    for block in content_of(message.content, "messages"):
        if not isinstance(block, TextContent):
            parts.append(msgspec.to_builtins(block))
        elif parts and isinstance(parts[-1], str):
            parts[-1] += block.text
        else:
            parts.append(block.text)
    if message.role == "assistant" and len(parts) == 1 and isinstance(parts[0], str):
        parts = [text] if (text := parts[0].strip()) else []
    calls = [(call.id, call.function.name) for call in message.tool_calls or []]
    return msgspec.json.encode([message.role, parts, calls, message.tool_call_id or ""])


class _PastAnswer(msgspec.Struct):
    """An answer of the history: its calls by the client's ids, and the results found so far."""

    calls: dict[str, ClientToolCall]
    results: dict[str, ToolResult] = {}


def history_events(turn: ChatTurn, model: str) -> list[ev.AnyEvent]:
    """Return a journal with the content of the history, for a conversation that is not known here.
    Every call gets a result, because the server would run an open one. Raises `ConfigurationError`
    for a new result without a matching call."""
    answers = _answers(turn)
    now = datetime.now(UTC)
    events: list[ev.AnyEvent] = []

    def add(kind: Callable[..., ev.AnyEvent], id: str, **fields: Any) -> None:
        events.append(kind(seq=len(events) + 1, id=id, timestamp=now, **fields))

    for index, message in enumerate(turn.history):
        seq, id = len(events) + 1, f"h{index + 1}"
        content = content_of(message.content, "messages")
        if message.role == "user" and content:
            add(ev.MessageAdded, id, content=content)
        elif (past := answers.get(index)) is not None:
            numbered = enumerate(past.calls.values())
            calls = tuple(_call(call, f"{seq}.{number}") for number, call in numbered)
            text = "".join(block.text for block in content if isinstance(block, TextContent))
            about = {"based_on": seq - 1, "model": model, "stop_reason": "stop"}
            add(ev.AssistantReplied, id, text=text, calls=calls, **about)
            for call in calls:
                result = past.results.get(call.provider_id) or ToolResult.failure(
                    "Not run: the client gave no result.", "cancelled"
                )
                add(ev.ToolCallFinished, f"r{call.id}", call_id=call.id, result=result)
    if events:  # separates the steps of the history from the new run
        add(ev.StatusChanged, "idle", status="idle", reason="taken over")
    # Without a new message the conversation would not start by itself; a paused one is resumed.
    if events and not turn.user_messages:
        add(ev.StatusChanged, "paused", status="paused", reason="taken over")
    return events


def _answers(turn: ChatTurn) -> dict[int, _PastAnswer]:
    """Return the history's answers by their index. A result belongs to the last call with its id
    that precedes it and has no result yet."""
    answers: dict[int, _PastAnswer] = {}

    def place(call_id: str, result: ToolResult) -> bool:
        for past in reversed(answers.values()):
            if call_id in past.calls and call_id not in past.results:
                past.results[call_id] = result
                return True
        return False

    for index, message in enumerate(turn.history):
        if message.role == "assistant":
            answers[index] = _PastAnswer({call.id: call for call in message.tool_calls or []})
        elif message.role == "tool":
            place(message.tool_call_id or "", ToolResult(content_of(message.content, "messages")))
    for call_id, result in turn.results.items():
        if not place(call_id, result):
            raise ConfigurationError(
                f"messages: the result for the call {call_id[:100]!r} matches no earlier call"
                " without a result."
            )
    return answers


def _call(called: ClientToolCall, id: str) -> ToolCall:
    text = called.function.arguments or ""
    try:
        arguments: Any = None if too_deep(text) else msgspec.json.decode(text or "{}")
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        return ToolCall(id, called.function.name, {}, called.id, text, "it is no JSON object")
    return ToolCall(id, called.function.name, cast("dict[str, Any]", arguments), called.id)


def wire_id(call_id: str) -> str:
    """Return a call's id in the form sent to clients: `call_3_0`."""
    return f"call_{call_id.replace('.', '_')}"


def own_id(id: str) -> str:
    return id.removeprefix("call_").replace("_", ".")
