"""The Chat Completions wire, spoken by OpenAI and by most other servers.

Beyond text and calls, a provider receives back only these parts of its own answers, from `native`:

- extra fields of `tool_calls` entries (thought signatures in `extra_content`)
- `reasoning_details`
- the reasoning text of answers that called tools; DeepSeek and gpt-oss servers require it until
  the turn is over, and refuse it afterwards
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec import Raw

from holdfast.content import AudioContent, Content, EmbeddedResource, ToolCall
from holdfast.errors import BadResponse, ConfigurationError, ServerError
from holdfast.llm.completion import NO_NATIVE, Completion, Delta
from holdfast.llm.providers import maker
from holdfast.llm.wires import answers, content_parts, protocol
from holdfast.llm.wires import openai_common as common
from holdfast.llm.wires.calls import digest, wire_arguments, wire_id, wire_name
from holdfast.llm.wires.content_parts import Part
from holdfast.llm.wires.failures import excerpt, http_error, reported_error
from holdfast.llm.wires.lenient_json import clean_texts, encode, join_surrogates
from holdfast.llm.wires.protocol import Calls, Names, Parameters, RequestHead, Results, Tools
from holdfast.llm.wires.streams import StreamParser
from holdfast.tools import styles

name = "openai_chat"
bound = False
headers = common.headers
system = common.system
error = http_error

_json = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder()

_PARAMETERS = {key: key for key in ("temperature", "top_p", "stop", "seed", "reasoning_effort")}
# Azure is not listed: it accepts a cache key only for OpenAI's models, and a deployment's name need
# not reveal its model.
_CACHING_HOSTS = ("api.openai.com",)
_ASSISTANT = b'{"role":"assistant"'
# Follows an answer from another provider that ended in a pause.
_CONTINUE_MESSAGE = b'{"role":"user","content":"Go on."}'
# OpenAI deprecated max_tokens, and its reasoning models refuse it. Few other servers know the new
# name.
_MAX_COMPLETION_TOKENS = re.compile(r"(.*/)?(o\d|gpt-5|codex|chatgpt)", re.IGNORECASE)


def path(model: str, stream: bool) -> str:
    return "/chat/completions"


def family(model: str, host: str) -> str:
    """Return the rules for call ids: `openai`, `mistral`, or ""."""
    if host.endswith(".mistral.ai"):
        return "mistral"
    if host.endswith(("api.openai.com", ".openai.azure.com")):
        return "openai"
    model_maker = maker(model)
    return model_maker if model_maker in ("openai", "mistral") else ""


def call_id(call: ToolCall, family: str = "") -> str:
    """Return an id as Mistral (9 letters and digits) or OpenAI (at most 40 characters) takes it."""
    id = wire_id(call)
    if family == "mistral":
        return id if len(id) == 9 and id.isascii() and id.isalnum() else digest(id)[:9]
    return "call_" + digest(id)[:32] if family == "openai" and len(id) > 40 else id


# --- fragments ---


def user(content: Sequence[Content]) -> bytes:
    return common.user(content, _part)


def _part(block: Content) -> Part:
    url = common.picture(block)
    if url:
        return _picture_part(url)
    file = common.document(block)
    if file:
        return {"type": "file", "file": file}
    if isinstance(block, AudioContent):
        kind = block.mime_type.rpartition("/")[2].removeprefix("x-")
        sound = {"data": content_parts.media(block)[1], "format": "mp3" if kind == "mpeg" else kind}
        return {"type": "input_audio", "input_audio": sound}
    return {"type": "text", "text": content_parts.as_text(block)}


def _picture_part(url: str) -> Part:
    return {"type": "image_url", "image_url": {"url": url}}


def assistant(text: str, calls: Calls, native: Raw, names: Names, family: str = "") -> bytes:
    message: dict[str, Any] = {"role": "assistant", "content": text or (None if calls else "")}
    fields: dict[str, Any] = {}
    if native:
        fields = _decoder.decode(native)
        if isinstance(fields.get("content"), list):
            message["content"] = fields["content"]
        if fields.get("reasoning_details"):
            message["reasoning_details"] = fields["reasoning_details"]
        if audio_id := answers.as_dict(fields.get("audio")).get("id"):
            message["audio"] = {"id": audio_id}
    if calls:
        for key in _REASONING_KEYS:
            if fields.get(key):
                message[key] = fields[key]
        entries = fields.get("tool_calls") or ()
        if len(entries) == len(calls):
            pairs = zip(calls, entries, strict=True)
            message["tool_calls"] = [_call(call, names, entry) for call, entry in pairs]
        else:
            message["tool_calls"] = [_call(call, names) for call in calls]
    return _json(message)


def _call(call: ToolCall, names: Names, entry: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a call with the id of its result, and with the extra fields of its `entry`, such as
    signatures. Its arguments are the entry's own text if that is JSON."""
    id, arguments = wire_id(call), wire_arguments(call)
    if entry:
        function = {**entry["function"], "arguments": arguments}
        return {**entry, "id": id, "type": entry.get("type", "function"), "function": function}
    function = {"name": wire_name(call.name, names), "arguments": arguments}
    return {"id": id, "type": "function", "function": function}


def results(batch: Results, names: Names, family: str = "") -> bytes:
    """Encode a tool message with text for each call, because the role accepts only text. Pictures
    follow in a user message. PDF files are not sent: a server without file support would refuse the
    conversation from then on."""
    picture_parts: list[Part] = []
    messages: list[bytes] = []
    for call, result in batch:
        id = wire_id(call)
        pictures = [common.picture(block) for block in result.content]
        if any(pictures):
            caption = content_parts.caption(call.name, id)
            picture_parts.append({"type": "text", "text": caption})
            picture_parts += [_picture_part(url) for url in pictures if url]
            kinds = [
                block.resource["mimeType"] if url and isinstance(block, EmbeddedResource) else ""
                for block, url in zip(result.content, pictures, strict=True)
            ]
            result = content_parts.with_mentions(result, kinds)
        text = content_parts.result_text(result)
        messages.append(_json({"role": "tool", "tool_call_id": id, "content": text}))
    if picture_parts:
        messages.append(_json({"role": "user", "content": picture_parts}))
    return b",".join(messages)


# --- requests ---


def head(
    model: str, system_prompt: str, tools: Tools, parameters: Parameters, names: Names
) -> RequestHead:
    """Return all of a request except its messages.

    `max_output_tokens` is sent as `max_completion_tokens` to OpenAI's and Azure's hosts and for
    models named o1, o3, gpt-5, ...; otherwise as `max_tokens`. `cache_key` is sent only to
    OpenAI. `extra_body` is merged last and replaces entries of the same name, except that its
    `tools` are appended to the agent's. `stream_options` None in `extra_body` omits the stream
    options.
    """
    if parameters.get("reasoning_budget") is not None:
        raise ConfigurationError(
            "LLM: reasoning_budget is not supported on the wire openai_chat. Give reasoning_effort,"
            " or extra_body with the server's own parameter."
        )
    body: dict[str, Any] = {"model": model, **protocol.set_parameters(parameters, _PARAMETERS)}
    form: Parameters | None = parameters.get("response_format")
    if form is not None:
        schema = form.get("json_schema")
        body["response_format"] = (
            {**form, "json_schema": common.with_name(schema)} if schema else form
        )
    host = str(parameters.get("host", ""))
    limit = parameters.get("max_output_tokens")
    if limit is not None:
        new_name = (
            host == "api.openai.com"
            or host.endswith(".openai.azure.com")
            or _MAX_COMPLETION_TOKENS.match(model)
        )
        body["max_completion_tokens" if new_name else "max_tokens"] = limit
    body.update(common.tool_fields(tools, parameters, names, styles.openai_chat))
    body.update(common.cache_key(parameters, _CACHING_HOSTS))
    extra = dict(parameters.get("extra_body") or {})
    options: Any = extra.pop("stream_options", {})
    if isinstance(options, Mapping):
        options = {"include_usage": True, **cast("Mapping[str, Any]", options)}
    extra_tools = extra.pop("tools", None)
    if isinstance(extra_tools, list | tuple):
        extra = {"tools": cast("Sequence[Any]", extra_tools), **extra}
    protocol.merge_extra(body, extra)
    prefix = _json(body)[:-1] + b',"messages":['
    if system_prompt:
        prefix += system(system_prompt)
    streamed = b'],"stream":true}'
    if options is not None:
        streamed = b'],"stream":true,"stream_options":' + _json(options) + b"}"
    closed = family(model, host) == "mistral"
    return RequestHead(prefix, stream_suffix=streamed, first=not system_prompt, closed=closed)


def body(head: RequestHead, fragments: Sequence[bytes], stream: bool) -> bytes:
    if head.closed and fragments and fragments[-1].startswith(_ASSISTANT):
        fragments = [*fragments, _CONTINUE_MESSAGE]
    return protocol.join_body(head, fragments, stream)


# --- answers ---
# Plain and streamed answers both end in `_completion`, so their results cannot differ.

_STOP_REASONS = {
    "eos": "stop",
    "eos_token": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "function_call": "tool_calls",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_length": "length",
    "sensitive": "content_filter",
}
# OpenRouter, DeepSeek, Zhipu and vLLM: the server broke off its answer.
_BROKEN_OFF = {"error", "insufficient_system_resource", "network_error", "abort"}
_REASONING_KEYS = ("reasoning_content", "reasoning")
_MESSAGE_KEYS = {"role", "content", "tool_calls", "refusal"}
# Keys of an answer without calls that a completion's fields cover.
_TEXT_MESSAGE_KEYS = _MESSAGE_KEYS | set(_REASONING_KEYS)
_CALL_KEYS = {"index", "id", "type", "function"}
_FUNCTION_KEYS = {"name", "arguments"}


class _Choice(msgspec.Struct):
    message: Raw = NO_NATIVE
    finish_reason: Any = None


class _Answer(msgspec.Struct):
    id: Any = ""
    model: Any = ""
    choices: list[_Choice] | None = None
    usage: Any = None
    error: Any = None


_answers = msgspec.json.Decoder(_Answer)


def parse(data: bytes) -> Completion:
    return answers.read_answer(data, _answers, _read, "a chat completion")


def _read(answer: _Answer, data: bytes) -> Completion:
    if answer.error:
        raise reported_error(answer.error)
    if not answer.choices:
        raise answers.bad_answer("a chat completion: it has no choices", data)
    choice = answer.choices[0]
    message: Any = _decoder.decode(choice.message)
    if not isinstance(message, dict):
        raise answers.bad_answer("a chat completion: it has no message", data)
    fields = cast("dict[str, Any]", message)
    return _completion(answer, fields, choice.finish_reason, choice.message)


def _completion(
    answer: _Answer, message: dict[str, Any], finish_reason: Any, raw: Raw | None = None
) -> Completion:
    """Return a completion from a message, plain or assembled from a stream. `raw` is the JSON of
    `message`, if available."""
    builder = answers.CompletionBuilder()
    content, refusal = message.get("content"), message.get("refusal")
    reasonings = [message[key] for key in _REASONING_KEYS if isinstance(message.get(key), str)]
    reasoning = "".join([one for one in reasonings if one][:1])
    if isinstance(content, list):  # Mistral sends text and thinking as parts
        parts = cast("list[Any]", content)
        thinking = [_texts(answers.as_dict(part).get("thinking")) for part in parts]
        reasoning = reasoning or "".join(thinking)
        content = _texts(parts)
        builder.needs_native = True
    text = content if isinstance(content, str) else ""
    builder.texts.append(text or (refusal if isinstance(refusal, str) else ""))
    builder.thoughts.append(reasoning)
    entries: list[Any] = message.get("tool_calls") or []
    if not isinstance(entries, list):  # pyright: ignore[reportUnnecessaryIsInstance]: a server's JSON
        raise BadResponse(f"The answer's tool calls are not a list: {excerpt(encode(entries))}")
    builder.covers(message, _MESSAGE_KEYS if entries else _TEXT_MESSAGE_KEYS)
    for entry in entries:
        item = answers.as_dict(entry)
        if not isinstance(item.get("function"), dict):
            raise answers.bad_part("an invalid tool call", entry)
        called = cast("dict[str, Any]", item["function"])
        called_name = str(called.get("name") or "")
        builder.add_call(called_name, called.get("arguments"), item.get("id") or "")
        builder.covers(item, _CALL_KEYS)
        builder.covers(called, _FUNCTION_KEYS)
    word = str(finish_reason or "stop")
    if word in _BROKEN_OFF:
        raise ServerError(f"The provider broke off its answer (finish_reason {word!r}).")
    usage = common.read_usage(answer.usage, "prompt", "completion")
    return builder.build(name, usage, _STOP_REASONS.get(word, word), answer, message, raw)


def _texts(parts: Any) -> str:
    found = map(answers.as_dict, answers.as_list(parts))
    return "".join([str(part["text"]) for part in found if part.get("text")])


class ChatStream(StreamParser):
    """A parser of one streamed answer.

    An answer is complete when its `finish_reason` has arrived; a chunk with the token counts may
    follow. `[DONE]` alone does not complete it, because proxies also write it after an interrupted
    stream. Nor is `[DONE]` required, because some servers never send it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._about = _Answer()
        self._content: list[str] = []
        self._refusal: list[str] = []
        self._reasoning: dict[str, list[str]] = {}  # server's key -> pieces
        self._calls: list[_StreamedCall] = []
        self._extra: dict[str, Any] = {}
        self._finish: Any = None

    def _answer(self) -> Completion:
        content = join_surrogates("".join(self._content)) or None
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if self._refusal:
            message["refusal"] = join_surrogates("".join(self._refusal))
        for key, pieces in self._reasoning.items():
            message[key] = join_surrogates("".join(pieces))
        if self._calls:
            message["tool_calls"] = clean_texts([call.entry() for call in self._calls])
        message.update(clean_texts(self._extra))
        return _completion(self._about, message, self._finish)

    def _process(self, name: bytes, event: dict[str, Any]) -> None:
        about = self._about
        about.id = event.get("id") or about.id
        about.model = event.get("model") or about.model
        about.usage = event.get("usage") or about.usage
        for choice in event.get("choices") or ():
            if choice.get("index"):  # another alternative (n > 1); the first is the answer
                continue
            delta = choice.get("delta") or choice.get("message")
            if delta:
                self._delta(delta)
            if choice.get("finish_reason"):
                self._finish = choice["finish_reason"]
                self.finished = True

    def _delta(self, delta: dict[str, Any]) -> None:
        has_reasoning = False
        for key, value in delta.items():
            if not value or key == "role":
                continue
            if key == "content":
                if isinstance(value, str):
                    self._content.append(value)
                    self._emit("text", value)
                else:
                    self._parts(value)
            elif key in _REASONING_KEYS and isinstance(value, str):
                self._reasoning.setdefault(key, []).append(value)
                if not has_reasoning:  # some servers send it under both keys
                    has_reasoning = True
                    self._emit("reasoning", value)
            elif key == "tool_calls":
                for piece in value:
                    self._call_piece(piece)
            elif key == "refusal":
                self._refusal.append(value)
                self._emit("text", value)
            else:
                merge(self._extra, key, value)

    def _parts(self, parts: Any) -> None:
        """Read content in parts, the form in which Mistral streams its thinking."""
        for part in answers.as_list(parts):
            item = answers.as_dict(part)
            thinking = "".join(str(piece.get("text", "")) for piece in item.get("thinking") or ())
            if thinking:
                self._delta({"reasoning": thinking})
            if item.get("text"):
                self._delta({"content": item["text"]})

    def _call_piece(self, piece: dict[str, Any]) -> None:
        """Add a piece of a tool call. The `index` identifies the call; without an index, a new
        id begins a new call."""
        index = piece.get("index")
        function: dict[str, Any] = piece.get("function") or {}
        id, name = piece.get("id") or "", function.get("name") or ""
        same = [one for one in self._calls if index is None or one.index == index]
        call = same[-1] if same else None
        # A new id with a name begins a new call even at an old index, because Gemini's servers
        # number all calls of a batch 0. A new id alone does not: vLLM once invented one for every
        # piece.
        if call is None or (id and name and call.id and id != call.id):
            call = _StreamedCall(len(self._calls), index, id)
            self._calls.append(call)
        arguments = function.get("arguments")
        if arguments is None:
            arguments = ""
        elif not isinstance(arguments, str):
            arguments = _json(arguments).decode()
        first = call.add(id, name, arguments)
        if len(piece) > 2:  # more than index and function
            _merge_others(call.extra, piece, _CALL_KEYS)
        if len(function) > 1:
            _merge_others(call.function, function, _FUNCTION_KEYS)
        if arguments or first:
            self._deltas.append(Delta("tool", arguments, call.number, call.name if first else ""))


class _StreamedCall:
    """A tool call that is still arriving."""

    def __init__(self, number: int, index: Any, id: str) -> None:
        self.number = number
        self.index = index
        self.id = id
        self.name = ""
        self.arguments: list[str] = []
        self.extra: dict[str, Any] = {}
        self.function: dict[str, Any] = {}

    def add(self, id: str, name: str, arguments: str) -> bool:
        """Add a piece. Return True if it was the first with a name."""
        first = bool(name) and not self.name
        self.id = self.id or id
        if first:
            self.name = name
        elif name and name != self.name and not self.arguments:
            # A name in pieces. Servers that repeat a name repeat it in full.
            self.name += name
        if arguments:
            self.arguments.append(arguments)
        return first

    def entry(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": "".join(self.arguments), **self.function}
        return {"id": self.id, "type": "function", "function": function, **self.extra}


# Strings that each delta repeats in full. All others arrive in pieces.
_REPEATED_KEYS = {
    *("role", "id", "type", "format", "name"),
    *("signature", "encrypted_content", "thought_signature"),
}


def _merge_others(into: dict[str, Any], piece: dict[str, Any], known: set[str]) -> None:
    for key, value in piece.items():
        if value and key not in known:
            merge(into, key, value)


def merge(into: dict[str, Any], key: str, new: Any) -> None:
    """Add a piece to a key of a streamed object, in place: strings are joined, objects are
    merged, and lists are merged by `index`."""
    old = into.get(key)
    if type(old) is not type(new):
        if new is not None:
            into[key] = new
    elif isinstance(old, str) and key not in _REPEATED_KEYS:
        # Drop the second reference to the text; otherwise each piece copies all of it.
        into[key] = None
        old += new
        into[key] = old
    elif isinstance(old, dict):
        for name, value in cast("dict[str, Any]", new).items():
            merge(cast("dict[str, Any]", old), name, value)
    elif isinstance(old, list):
        items = cast("list[Any]", old)
        for value in cast("list[Any]", new):
            item = _continued_item(items, value)
            if item is None:
                items.append(value)
            else:
                for name, inner in value.items():
                    merge(item, name, inner)
    else:
        into[key] = new


def _continued_item(items: list[Any], value: Any) -> dict[str, Any] | None:
    """Return the last item with the same index and type as a piece, if any."""
    piece = answers.as_dict(value)
    if "index" not in piece:
        return None
    for item in map(answers.as_dict, reversed(items)):
        if item and item.get("index") == piece["index"] and item.get("type") == piece.get("type"):
            return item
    return None


stream = ChatStream
