"""Agents behind OpenAI's Chat Completions: requests as turns of conversations, and what came of a turn as a completion.

A client of that API sends the whole conversation each time and keeps nothing else. Here a conversation has more than that: the calls of the
agent's own tools and their results. So the messages up to the model's last answer are known again by their hash, and the
conversation that gave this answer goes on, with all it has. It is forked if it went on otherwise meanwhile (an answer that is asked for
again), and made anew of the messages if nobody here knows them.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any, cast

import msgspec

from holdfast import events as ev
from holdfast.agent.form import Form, ToolForm
from holdfast.agent.output import is_output
from holdfast.content import Content, ImageContent, TextContent, ToolCall, ToolResult, Usage
from holdfast.conversation.state import ConversationState, Fold, fold
from holdfast.errors import ConfigurationError
from holdfast.nesting import too_deep

if TYPE_CHECKING:
    from holdfast.agent.agent import Agent

_LARGEST_PICTURE = 20_000_000  # bytes
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")  # of a function; never what could be read as a variable


class Published(msgspec.Struct, frozen=True):
    """An agent that is offered as a model. Its tools run on the server."""

    name: str
    form: Form
    tools: tuple[ToolForm, ...]
    created: int

    def __repr__(self) -> str:
        return f"Published({self.name!r})"


def publish(name: str, agent: Agent, created: datetime | None = None) -> Published:
    """Offer an agent under a name. Raises `ConfigurationError` for a part that has no serial form."""
    from holdfast.agent.form import form_of, tools_of

    if not name or len(name) > 100 or any(c.isspace() or not c.isprintable() for c in name):
        raise ConfigurationError(f"The name of an agent takes 1 to 100 printable characters without spaces, not {name!r}.")
    return Published(name, form_of(agent), tuple(tools_of(agent)), int((created or datetime.now(UTC)).timestamp()))


# --- requests ------------------------------------------------------------------------------------


class Function(msgspec.Struct, omit_defaults=True):
    """A function that the client has: `parameters` are a JSON Schema."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolOffer(msgspec.Struct):
    """A tool that the client has."""

    type: str
    function: Function


class CalledFunction(msgspec.Struct):
    """What was called, with its arguments as JSON text."""

    name: str
    arguments: str | None = None


class Called(msgspec.Struct):
    """A call of one of the client's tools, as it was told of it."""

    id: str
    function: CalledFunction
    type: str | None = "function"


class ChatMessage(msgspec.Struct, omit_defaults=True):
    """One message, of a role system, developer, user, assistant or tool."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[Called] | None = None
    tool_call_id: str | None = None
    name: str | None = None


class StreamOptions(msgspec.Struct):
    """`include_usage`: the last chunk tells the tokens."""

    include_usage: bool | None = None


class ChatRequest(msgspec.Struct):
    """What is read of a request. What else it has, such as a temperature, is the agent's own and not the client's to say."""

    model: str
    messages: list[ChatMessage]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tools: list[ToolOffer] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    n: int | None = None


class Turn(msgspec.Struct):
    """A request, understood: the messages up to the last answer (`history`), and what is `new`."""

    instructions: str
    history: list[ChatMessage]
    said: list[tuple[Content, ...]]  # the user's new messages
    results: dict[str, ToolResult]  # of the client's tools, by the ids of their calls
    offers: list[ToolForm]
    base: bytes  # the agent, as a hash: of another one no conversation goes on
    setting: bytes  # what may change from turn to turn, as a hash: instructions and tools
    new: list[ChatMessage]
    asked: bytes = b""  # the whole request, as a hash

    def __post_init__(self) -> None:
        found = sha256(self.digest() + self.setting)
        for message in self.new:
            found.update(_canonical(message))
        self.asked = found.digest()

    def digest(self, answer: ChatMessage | None = None) -> bytes:
        """The hash of the history, or with an answer of all of it."""
        found = sha256(self.base)
        for message in self.history if answer is None else [*self.history, *self.new, answer]:
            found.update(_canonical(message))
        return found.digest()


def understood(request: ChatRequest, agent: Published) -> Turn:
    """The turn that a request asks for. Raises `ConfigurationError` naming the field that does not fit."""
    if request.n not in (None, 1):
        raise ConfigurationError(f"n takes 1: an agent gives one answer, not {request.n}.")
    if not request.messages:
        raise ConfigurationError("messages is empty.")
    spoken: list[ChatMessage] = []
    system: list[str] = []
    for index, message in enumerate(request.messages):
        if message.role in ("system", "developer"):
            system.append(
                "\n".join(block.text for block in content_of(message.content, f"messages[{index}]") if isinstance(block, TextContent))
            )
        elif message.role in ("user", "assistant", "tool"):
            spoken.append(message)
        else:
            raise ConfigurationError(
                f"messages[{index}]: role takes system, developer, user, assistant or tool, not {message.role[:50]!r}."
            )
    last = max((index for index, message in enumerate(spoken) if message.role == "assistant"), default=-1)
    history, new = spoken[: last + 1], spoken[last + 1 :]
    if not new:
        raise ConfigurationError("The last message is the assistant's: there is nothing to answer.")
    said: list[tuple[Content, ...]] = []
    results: dict[str, ToolResult] = {}
    for message in new:
        content = content_of(message.content, "messages")
        if message.role == "tool":
            if not message.tool_call_id:
                raise ConfigurationError("A message of the role tool has the tool_call_id of the call that it answers.")
            if message.tool_call_id in results:
                raise ConfigurationError(f"messages: two results are of the call {message.tool_call_id[:100]!r}; a call has one.")
            results[message.tool_call_id] = ToolResult(content)
        elif content:
            said.append(content)
        else:
            raise ConfigurationError("A message of the user has no content.")
    offers = _offers(request, agent)
    _check_calls(history)
    instructions = "\n\n".join(text for text in system if text.strip())
    base = _hash([agent.name, agent.form.mapping, [tool.name for tool in agent.tools]])
    return Turn(instructions, history, said, results, offers, base, _hash([instructions, offers]), new)


def _hash(value: object) -> bytes:
    return sha256(msgspec.json.encode(value, order="deterministic")).digest()


def _check_calls(history: Sequence[ChatMessage]) -> None:
    for message in history:
        ids = [call.id for call in message.tool_calls or []] if message.role == "assistant" else []
        if len(set(ids)) < len(ids):
            twice = next(id for id in ids if ids.count(id) > 1)
            raise ConfigurationError(f"messages: two tool_calls of one message have the id {twice[:100]!r}; give each its own.")


def _offers(request: ChatRequest, agent: Published) -> list[ToolForm]:
    if request.tool_choice == "none":
        return []
    taken = {tool.name for tool in agent.tools}
    found: list[ToolForm] = []
    for index, offer in enumerate(request.tools or []):
        function = offer.function
        if offer.type != "function":
            raise ConfigurationError(f"tools[{index}]: type takes function, not {offer.type[:50]!r}.")
        if not _NAME.fullmatch(function.name):
            raise ConfigurationError(f"tools[{index}]: name takes 1 to 128 letters, digits, '_', '.' and '-', not {function.name[:100]!r}.")
        if function.name in taken:
            raise ConfigurationError(f"tools[{index}]: there is a tool {function.name!r} already; the agent's own, or the one before.")
        taken.add(function.name)
        found.append(
            ToolForm(
                name=function.name,
                description=function.description or "",
                input_schema=function.parameters or {"type": "object", "properties": {}},
                parallel=request.parallel_tool_calls is not False,  # the protocol hands a client all calls of an answer at once
            )
        )
    return found


def content_of(content: str | Sequence[Mapping[str, Any]] | None, where: str) -> tuple[Content, ...]:
    """A message's content as blocks. Pictures come inline, as `data:` addresses: the server fetches nothing. Raises `ConfigurationError`."""
    if content is None:
        return ()
    if isinstance(content, str):
        return (TextContent(content),) if content else ()
    found: list[Content] = []
    for part in content:
        kind, text = part.get("type"), part.get("text")
        if kind in ("text", "input_text") and isinstance(text, str):
            found.append(TextContent(text))
        elif kind == "refusal" and isinstance(part.get("refusal"), str):
            found.append(TextContent(str(part["refusal"])))
        elif kind == "image_url":
            found.append(_picture(part.get("image_url"), where))
        else:
            raise ConfigurationError(f"{where}: content takes parts of the types text and image_url, not {str(kind)[:50]!r}.")
    return tuple(found)


def _picture(given: Any, where: str) -> ImageContent:
    url: Any = given.get("url") if isinstance(given, dict) else given  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if not isinstance(url, str) or not url.startswith("data:image/"):
        raise ConfigurationError(f"{where}: image_url takes a data: address with the picture in it; this server fetches none.")
    kind, _, data = url.removeprefix("data:").partition(";base64,")
    try:
        found = b64decode(data, validate=True)
    except ValueError:
        raise ConfigurationError(f"{where}: image_url has a picture that is no base64.") from None
    if len(found) > _LARGEST_PICTURE:
        raise ConfigurationError(f"{where}: a picture has at most {_LARGEST_PICTURE:,} bytes.")
    return ImageContent(found, kind)


def _canonical(message: ChatMessage) -> bytes:
    """What tells one message from another. Clients write what they got with fields of their own, texts as one part or several, and answers without the white
    space around them."""
    blocks = content_of(message.content, "messages")
    parts: list[Any] = []
    for block in blocks:
        if isinstance(block, TextContent) and parts and isinstance(parts[-1], str):
            parts[-1] += block.text
        else:
            parts.append(block.text if isinstance(block, TextContent) else msgspec.to_builtins(block))
    if message.role == "assistant" and len(parts) == 1 and isinstance(parts[0], str):
        parts = [text] if (text := parts[0].strip()) else []
    calls = [(call.id, call.function.name) for call in message.tool_calls or []]
    return msgspec.json.encode([message.role, parts, calls, message.tool_call_id or ""])


class _Past:
    """An answer of the history: its calls by the client's ids, each with ours, and their results as far as they are found."""

    def __init__(self, calls: Sequence[Called]) -> None:
        self.calls = {call.id: call for call in calls}
        self.results: dict[str, ToolResult] = {}


def history_events(turn: Turn, model: str) -> list[ev.AnyEvent]:
    """A journal that says what the history says, for a conversation that nobody here knows. No call is left open in it: this server would run it. Raises
    `ConfigurationError` for a new result that no call has."""
    answers = _answers(turn)
    now = datetime.now(UTC)
    found: list[ev.AnyEvent] = []
    for index, message in enumerate(turn.history):
        seq, id = len(found) + 1, f"h{index + 1}"
        content = content_of(message.content, "messages")
        if message.role == "user" and content:
            found.append(ev.Message(seq=seq, id=id, timestamp=now, content=content))
        elif (past := answers.get(index)) is not None:
            calls = tuple([_call(call, f"{seq}.{number}") for number, call in enumerate(past.calls.values())])
            text = "".join(block.text for block in content if isinstance(block, TextContent))
            found.append(
                ev.Assistant(seq=seq, id=id, timestamp=now, text=text, calls=calls, based_on=seq - 1, model=model, stop_reason="stop")
            )
            for call in calls:
                result = past.results.get(call.provider_id) or ToolResult.failure("Not run: the client gave no result.", "cancelled")
                found.append(ev.ToolResult(seq=len(found) + 1, id=f"r{call.id}", timestamp=now, call_id=call.id, result=result))
    if found:  # the steps that it took before are none of the run that begins
        found.append(ev.Status(seq=len(found) + 1, id="idle", timestamp=now, status="idle", reason="taken over"))
    if found and not turn.said:  # what the model owes an answer to is no message, so that it would not begin by itself
        found.append(ev.Status(seq=len(found) + 1, id="paused", timestamp=now, status="paused", reason="taken over"))
    return found


def _answers(turn: Turn) -> dict[int, _Past]:
    """The history's answers by their places. A result belongs to the last call of its id before it that has none yet, wherever it stands."""
    found: dict[int, _Past] = {}

    def place(call_id: str, result: ToolResult) -> bool:
        for past in reversed(found.values()):
            if call_id in past.calls and call_id not in past.results:
                past.results[call_id] = result
                return True
        return False

    for index, message in enumerate(turn.history):
        if message.role == "assistant":
            found[index] = _Past(message.tool_calls or [])
        elif message.role == "tool":
            place(message.tool_call_id or "", ToolResult(content_of(message.content, "messages")))
    for call_id, result in turn.results.items():
        if not place(call_id, result):
            raise ConfigurationError(
                f"messages: a result is of the call {call_id[:100]!r}, and no call of that id before it is without one."
            )
    return found


def _call(called: Called, id: str) -> ToolCall:
    given = called.function.arguments or ""
    try:
        arguments: Any = None if too_deep(given) else msgspec.json.decode(given or "{}")
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        return ToolCall(id, called.function.name, {}, called.id, given, "it is no JSON object")
    return ToolCall(id, called.function.name, cast("dict[str, Any]", arguments), called.id)


def wire_id(call_id: str) -> str:
    """A call's id as the client is told: `call_3_0`."""
    return f"call_{call_id.replace('.', '_')}"


def own_id(id: str) -> str:
    """The inverse of `wire_id`."""
    return id.removeprefix("call_").replace("_", ".")


# --- answers -------------------------------------------------------------------------------------


class Progress:
    """What came of a turn so far: fed the conversation's events, each once, and what is told of an answer before it is whole. `since`: up to there it may have
    been paused, and went on.

    The text is what the client was told, to the letter: it is what the client sends back."""

    def __init__(self, agent: Published, turn: Turn, since: int = 0) -> None:
        self.text = ""
        self.usage = Usage()
        self.calls: list[ToolCall] = []  # of the client's tools, to be run by it
        self.status = ""
        self.error: ev.Error | None = None
        self.stop_reason = ""
        self.seq = 0  # the last event
        self.since = since
        self.structured = agent.form.mapping.get("output_type") is not None  # the answer is its output alone, as JSON
        self._step = ""  # what was told of the answer that is on its way
        self._offers = {tool.name for tool in turn.offers}
        self._fold = Fold()
        self._known: set[str] = set()  # calls that the client was handed in an earlier turn

    def begin(self, state: ConversationState, since: int) -> None:
        """Start from the state before the first event to be fed; statuses up to `since` are not this turn's."""
        self._fold = fold(state.events)
        self._known = {item.call.id for item in self._fold.turn}
        self.since = since

    def piece(self, text: str) -> str:
        """A piece of the answer that is on its way; what to tell."""
        if self.structured or not text:
            return ""
        return self._told(text if self._step else self._apart(text), text)

    def broke(self) -> None:
        """It broke off, and another one comes in its place. What was told stands; the other is told whole, as a paragraph of its own."""
        self._step = ""

    def feed(self, event: ev.AnyEvent) -> str:
        """Take in an event; what to tell."""
        self.seq = event.seq
        closed = self._fold.open.get(event.call_id) if isinstance(event, ev.ToolResult) else None
        self._fold.apply(event)
        match event:
            case ev.Assistant():
                self.usage += event.usage
                self.stop_reason = event.stop_reason
                return "" if self.structured else self._whole(event.text)
            case ev.ToolResult():
                if self.structured and closed is not None and is_output(closed.call.name, event.result):
                    self.text = ""
                    return self._told(msgspec.json.encode(event.result.structured_content).decode(), "")
            case ev.Status():
                if event.seq > self.since or event.status not in ("paused", "idle", "waiting_for_confirmation"):
                    self.status = event.status
            case ev.Error():
                self.error = event
            case _:
                pass
        return ""

    def _whole(self, text: str) -> str:
        told, self._step = self._step, ""
        if told and text.startswith(told):
            return self._told(text[len(told) :], "")
        if told and text.strip().startswith(told.strip()):  # it was tidied up
            return self._told(text.strip()[len(told.strip()) :], "")
        return self._told(self._apart(text), "")

    def _apart(self, text: str) -> str:
        return f"\n\n{text}" if text and self.text else text

    def _told(self, text: str, step: str) -> str:
        self._step += step
        self.text += text
        return text

    @property
    def told(self) -> str:
        """What was told of the answer that is on its way."""
        return self._step

    @property
    def done(self) -> bool:
        """True if the turn is over: the conversation rests, or the client is to run the calls whose turn it is."""
        if self.status not in ("", "running"):
            return True
        now = self._fold.turn
        new = any(item.call.id not in self._known for item in now)
        if new and all(item.held_by_client and item.call.name in self._offers for item in now):
            self.calls = [item.call for item in now]
            return True
        self.calls = []
        return False

    @property
    def finish_reason(self) -> str:
        """Why it ended, in that API's words."""
        return "tool_calls" if self.calls else "length" if self.stop_reason == "length" else "stop"

    def message(self) -> dict[str, Any]:
        """The answer as a message."""
        found: dict[str, Any] = {
            "role": "assistant",
            "content": self.text or (None if self.calls else ""),
            "refusal": None,
            "annotations": [],
        }
        if self.calls:
            found["tool_calls"] = [called(call) for call in self.calls]
        return found

    def as_sent_back(self) -> ChatMessage:
        """The answer as the client will send it with its next request."""
        calls = [Called(wire_id(call.id), CalledFunction(call.name, call.raw_arguments)) for call in self.calls]
        return ChatMessage("assistant", self.text, calls or None)

    def tokens(self) -> dict[str, Any]:
        """The usage of all its model calls."""
        usage = self.usage
        return {
            "prompt_tokens": usage.input_tokens, "completion_tokens": usage.output_tokens, "total_tokens": usage.input_tokens + usage.output_tokens,
            "prompt_tokens_details": {"cached_tokens": usage.cached_input_tokens, "audio_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": usage.reasoning_tokens, "audio_tokens": 0, "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0,
            },
        }  # fmt: skip


def called(call: ToolCall) -> dict[str, Any]:
    """A call as the client is told of it."""
    return {"id": wire_id(call.id), "type": "function", "function": {"name": call.name, "arguments": call.raw_arguments}}


def completion(id: str, created: int, model: str, progress: Progress) -> dict[str, Any]:
    """A whole `chat.completion`."""
    choice = {"index": 0, "message": progress.message(), "logprobs": None, "finish_reason": progress.finish_reason}
    return {"id": id, "object": "chat.completion", "created": created, "model": model, "choices": [choice], "usage": progress.tokens()}


def chunk(id: str, created: int, model: str, delta: dict[str, Any] | None, finish_reason: str | None = None, usage: Any = ...) -> bytes:
    """One `chat.completion.chunk` as a server-sent event; without a delta it has the usage alone."""
    choices = [] if delta is None else [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}]
    found: dict[str, Any] = {"id": id, "object": "chat.completion.chunk", "created": created, "model": model, "choices": choices}
    if usage is not ...:
        found["usage"] = usage
    return b"data: %b\n\n" % msgspec.json.encode(found)


def failure(message: str, kind: str, code: str | None = None, param: str | None = None) -> bytes:
    """An error in that API's form."""
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": param, "code": code}})
