"""Anthropic's Messages wire.

`native` is an answer's `content` array. It is sent back verbatim, except for parts that the API
itself refuses; see `_echo`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast
from zlib import crc32

import msgspec
from msgspec import Raw

from holdfast.content import AudioContent, Content, ImageContent, TextContent, ToolCall, Usage
from holdfast.errors import BadResponse, ConfigurationError, ContentFiltered
from holdfast.llm.completion import NO_NATIVE, Completion
from holdfast.llm.wires import content_parts, protocol
from holdfast.llm.wires.answers import GAP, CompletionBuilder, as_dict, as_list, count, read_answer
from holdfast.llm.wires.calls import wire_id, wire_input, wire_name
from holdfast.llm.wires.content_parts import Part
from holdfast.llm.wires.failures import http_error, reported_error, shorten
from holdfast.llm.wires.lenient_json import clean_texts, decode, join_surrogates
from holdfast.llm.wires.protocol import Calls, Names, Parameters, RequestHead, Results, Tools
from holdfast.llm.wires.streams import StreamParser
from holdfast.tools import styles

name = "anthropic_messages"
bound = False  # signatures are valid on all platforms
family = protocol.no_family
error = http_error

_json = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder()

_USER = b'{"role":"user","content":['
_ASSISTANT = b'{"role":"assistant","content":['
_OPENING_MESSAGE = _USER + b'{"type":"text","text":"(what came before is not shown)"}]}'
_CACHED = {"cache_control": {"type": "ephemeral"}}
_CACHE_MARK = b',"cache_control":{"type":"ephemeral"}}]}'  # replaces the end of a user message
_PICTURE_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")
_PARAMETERS = {"temperature": "temperature", "top_p": "top_p", "stop": "stop_sequences"}
# `claude-opus-4-1-20250805`, `claude-3-7-sonnet-latest`, `anthropic/claude-sonnet-4.6`,
# `us.anthropic.claude-opus-4-20250514-v1:0`
_VERSION = re.compile(r"claude-(?:[a-z]+-)?(\d+)(?:[.-](\d{1,2})(?!\d))?")
_NEWEST_VERSION = (99, 0)
_BUDGET_TOKENS = {
    "minimal": 1024,
    "low": 2048,
    "medium": 8192,
    "high": 16384,
    "xhigh": 32000,
    "max": 32000,
}
_MIN_BUDGET_TOKENS = 1024  # the API's lower limit


def path(model: str, stream: bool) -> str:
    return "/messages"


def headers(api_key: str) -> dict[str, str]:
    key = {"x-api-key": api_key} if api_key else {}
    return {**protocol.JSON_HEADERS, "anthropic-version": "2023-06-01", **key}


_ILLEGAL_ID_CHARS = re.compile(r"[^a-zA-Z0-9_-]")


def call_id(call: ToolCall, family: str = "") -> str:
    """Return the id of a call in the characters that the API allows. Others are replaced, and a
    checksum keeps distinct ids distinct."""
    id = wire_id(call)
    legal = _ILLEGAL_ID_CHARS.sub("_", id)
    return id if legal == id else f"{legal}_{crc32(id.encode()):08x}"


# --- fragments ---
# Each fragment is one message. A user message ends in `}]}`, which `body` replaces to mark it.


def system(text: str) -> bytes:
    """Encode a system message between others as a user message marked as such. Only the newest
    models know a role for it, and they accept it in few places."""
    return user((TextContent(f"<system>\n{text}\n</system>"),))


def user(content: Sequence[Content]) -> bytes:
    """Encode text, pictures and PDF documents as blocks, the rest as text, but no blank text."""
    parts = _parts(content) or [{"type": "text", "text": "(empty message)"}]
    return _json({"role": "user", "content": parts})


def _parts(content: Iterable[Content]) -> list[Part]:
    parts: list[Part] = []
    for block in content:
        text = content_parts.as_text(block, images=True)
        part = _media_part(block) or ({"type": "text", "text": text} if text.strip() else None)
        if part is not None:
            parts.append(part)
    return parts


def _media_part(block: Content) -> Part | None:
    if isinstance(block, TextContent | AudioContent):
        return None
    kind, data = content_parts.media(block)
    kind = kind.partition(";")[0].strip().lower()
    if kind == "image/jpg":
        kind = "image/jpeg"
    is_document = kind == "application/pdf" and not isinstance(block, ImageContent)
    if kind not in _PICTURE_TYPES and not is_document:
        return None
    source = {"type": "base64", "media_type": kind, "data": data}
    return {"type": "document" if is_document else "image", "source": source}


def assistant(text: str, calls: Calls, native: Raw, names: Names, family: str = "") -> bytes:
    if native:
        blocks = _echo(native, calls, names)
    else:
        # The API refuses trailing white space in a request's last message, if that is an answer.
        text = text if calls else text.rstrip()
        blocks = [_json({"type": "text", "text": text})] if text and not text.isspace() else []
        blocks += [_call_block(call, names) for call in calls]
    return _ASSISTANT + b",".join(blocks) + b"]}" if blocks else b""


def results(batch: Results, names: Names, family: str = "") -> bytes:
    """Encode the results of all calls of one answer as one user message, as the API requires.
    Pictures of an error follow after all results, because an error may hold only text."""
    blocks: list[Part] = []
    error_media: list[Part] = []
    for call, result in batch:
        id = call_id(call)
        block: Part = {"type": "tool_result", "tool_use_id": id}
        parts = [part for part in map(_media_part, result.content) if part is not None]
        if parts and not result.is_error:
            block["content"] = _parts(result.content)
        else:
            text = content_parts.result_text(result)
            block["content"] = text if text.strip() else "(no output)"
            if parts:
                caption = content_parts.caption(call.name, id)
                error_media += [{"type": "text", "text": caption}, *parts]
        if result.is_error:
            block["is_error"] = True
        blocks.append(block)
    return _json({"role": "user", "content": blocks + error_media})


def _call_block(call: ToolCall, names: Names) -> bytes:
    block = {"type": "tool_use", "id": call_id(call), "name": wire_name(call.name, names)}
    return _json({**block, "input": wire_input(call)})


class _BlockShape(msgspec.Struct):
    """The fields of a block that decide whether the API accepts it unchanged."""

    type: Any = None
    text: Any = None
    id: Any = None
    name: Any = None
    input: Any = None
    caller: Any = msgspec.UNSET
    citations: Any = None


_raw_blocks = msgspec.json.Decoder(list[Raw])
_block_shapes = msgspec.json.Decoder(list[_BlockShape])


def _echo(native: Raw, calls: Calls, names: Names) -> list[bytes]:
    """Return the blocks of an answer verbatim, except for parts that the API sends but does not
    accept:

    - blank text, white space at the very end, and thinking as the last block
    - `caller` if it is null or the model itself ("Extra inputs are not permitted", without a
      beta header)
    - `file_id` in citations
    - a call whose input is not an object or was edited
    - a call that is missing from `calls`, because no result would follow
    """
    kept: list[tuple[_BlockShape, bytes]] = []
    waiting = list(calls)
    blocks = _block_shapes.decode(native)
    # If the call names are the same, calls are matched by order, even if their ids have changed.
    paired = [block.name for block in blocks if block.type == "tool_use"] == [
        wire_name(call.name, names) for call in calls
    ]
    for block, raw in zip(blocks, cast("list[bytes]", _raw_blocks.decode(native)), strict=True):
        changes: dict[str, Any] = {}
        if block.type == "text":
            if not str(block.text or "").strip():
                continue
            cited = as_list(block.citations)
            if any("file_id" in as_dict(one) for one in cited):
                for one in cited:
                    as_dict(one).pop("file_id", None)
                changes["citations"] = cited
        elif block.type == "tool_use":
            call = waiting.pop(0) if paired else _take_call(waiting, block.id)
            if call is None:
                continue
            if block.id != call_id(call):
                changes["id"] = call_id(call)
            if call.invalid or block.input != call.arguments:
                changes["input"] = wire_input(call)
        if block.caller is not msgspec.UNSET and _is_default_caller(block.caller):
            changes["caller"] = None
        kept.append((block, _patched(raw, changes) if changes else raw))
    if not waiting:
        while kept and kept[-1][0].type in ("thinking", "redacted_thinking"):
            kept.pop()
        if kept and kept[-1][0].type == "text" and kept[-1][0].text[-1].isspace():
            last, raw = kept[-1]
            kept[-1] = last, _patched(raw, {"text": last.text.rstrip()})
    return [raw for _, raw in kept] + [_call_block(call, names) for call in waiting]


def _take_call(waiting: list[ToolCall], id: Any) -> ToolCall | None:
    for place, call in enumerate(waiting):
        if call.provider_id == id or not call.provider_id:
            return waiting.pop(place)
    return None


def _patched(raw: bytes, changes: Mapping[str, Any]) -> bytes:
    block: dict[str, Any] = {**_decoder.decode(raw), **changes}
    if "caller" in changes:
        del block["caller"]
    return _json(block)


# --- requests ---


def head(
    model: str, system_prompt: str, tools: Tools, parameters: Parameters, names: Names
) -> RequestHead:
    """Return all of a request except its messages.

    The API requires `max_tokens`. Without `max_output_tokens`, the value is 4096 for Claude 3, 8192
    for Claude 3.5 and for models of other makers, and else 32000. A `reasoning_budget` is added to
    it, up to the model's limit.

    `reasoning_budget` (tokens) becomes `thinking` with that budget, which Claude 4.7 and later
    refuse. A budget of 0 and the effort "none" turn thinking off. Any other `reasoning_effort`
    depends on the model:

    - Claude 4.6 and later: `output_config.effort` with adaptive thinking. "minimal" is sent as
      "low", the lowest level.
    - Older models: a budget of 1024 (minimal), 2048, 8192, 16384, or 32000 (xhigh, max), at most
      three quarters of `max_tokens`.

    From 4.7 on, the thoughts themselves are sent only with `extra_body={"thinking": {"display":
    "summarized"}}`. With thinking on, the API refuses a temperature other than 1 and forced tool
    choice; these are not checked here.

    Unless `prompt_caching` is False, the system prompt is marked for caching, or the last tool if
    there is no system prompt. `body` marks two messages in addition. `extra_body` is merged last
    and replaces entries of the same name. Its `thinking`, `output_config` and `tool_choice` are
    merged by key, and its `tools` (the provider's built-in ones) are appended.

    Raises `ConfigurationError` for `seed`, for `response_format` without a schema, and for an
    unknown effort. Also raises for settings that Claude does not support: a budget below 1024, a
    budget that leaves no room in the output limit, and thinking before Claude 3.7.
    """
    if parameters.get("seed") is not None:
        raise ConfigurationError(
            "LLM: seed is not supported on the wire anthropic_messages. Leave it out."
        )
    caches = parameters.get("prompt_caching") is not False
    body: dict[str, Any] = {"model": model, "max_tokens": _max_tokens(model, parameters)}
    body.update(protocol.set_parameters(parameters, _PARAMETERS))
    body.update(_thinking(model, parameters, body["max_tokens"]))
    if parameters.get("response_format"):
        form = _format(parameters["response_format"])
        if form:
            body.setdefault("output_config", {})["format"] = form
    if tools:
        body["tools"] = [styles.anthropic(tool, wire_name(tool.name, names)) for tool in tools]
        if parameters.get("parallel_tool_calls") is False:
            body["tool_choice"] = {"type": "auto", "disable_parallel_tool_use": True}
    if system_prompt.strip():
        body["system"] = [{"type": "text", "text": system_prompt, **(_CACHED if caches else {})}]
    elif tools and caches:
        body["tools"][-1].update(_CACHED)
    extra: Parameters = parameters.get("extra_body") or {}
    merged = ["thinking", "output_config", "tool_choice"]
    ours, theirs = body.get("thinking", {}), as_dict(extra.get("thinking"))
    if theirs.get("type", ours.get("type")) != ours.get("type"):
        merged.remove("thinking")  # a thinking setting of another type has other keys
    protocol.merge_extra(body, extra, merged)
    return RequestHead(_json(body)[:-1] + b',"messages":[', cached=caches)


def _version(model: str) -> tuple[int, int] | None:
    """Return the version in a Claude model's name, or the newest; None for other makers."""
    name = model.lower()
    found = _VERSION.search(name)
    if found:
        return int(found[1]), int(found[2] or 0)
    return _NEWEST_VERSION if "claude" in name else None


def _max_tokens(model: str, parameters: Parameters) -> int:
    extra: Parameters = parameters.get("extra_body") or {}
    limit = extra.get("max_tokens")
    limit = limit if isinstance(limit, int) else parameters.get("max_output_tokens")
    if limit is not None:
        return limit
    version = _version(model)
    limit = 8192
    if version is not None and version != (3, 5):
        limit = 4096 if version < (3, 5) else 32000
    room = limit + max(0, parameters.get("reasoning_budget") or 0)
    if version is None:
        return room
    largest = 128000 if version >= (4, 6) else 64000
    if version <= (4, 1) and "opus" in model.lower():
        largest = 32000
    return max(limit, min(room, largest))


def _thinking(model: str, parameters: Parameters, limit: int) -> dict[str, Any]:
    budget, effort = parameters.get("reasoning_budget"), parameters.get("reasoning_effort")
    if budget == 0 or effort == "none":
        return {"thinking": {"type": "disabled"}}
    settings: dict[str, Any] = {}
    version = _version(model)
    if version is not None and (budget is not None or effort is not None):
        _check_room(model, version, budget, limit)
    if budget is not None:
        settings["thinking"] = {"type": "enabled", "budget_tokens": budget}
    if effort is None:
        return settings
    if version is not None and version >= (4, 6):
        settings.setdefault("thinking", {"type": "adaptive"})
        settings["output_config"] = {"effort": "low" if effort == "minimal" else effort}
    elif effort not in _BUDGET_TOKENS:
        if model:  # a head without a model is only hashed
            raise ConfigurationError(
                f"LLM: reasoning_effort takes none, {', '.join(_BUDGET_TOKENS)} for {model}, not"
                f" {effort!r}."
            )
    elif budget is None:  # leaves room for the answer
        tokens = max(_MIN_BUDGET_TOKENS, min(_BUDGET_TOKENS[effort], limit * 3 // 4))
        settings["thinking"] = {"type": "enabled", "budget_tokens": tokens}
    return settings


def _check_room(model: str, version: tuple[int, int], budget: int | None, limit: int) -> None:
    """Raise for thinking settings that the API refuses, except those in `extra_body`."""
    if version < (3, 7):
        raise ConfigurationError(
            f"LLM: {model} cannot think; leave out reasoning_effort and reasoning_budget."
        )
    if budget is not None and budget < _MIN_BUDGET_TOKENS:
        raise ConfigurationError(
            f"LLM: reasoning_budget takes 0 (off) or at least {_MIN_BUDGET_TOKENS} tokens for"
            f" {model}, not {budget}."
        )
    if budget is not None and budget >= limit:
        raise ConfigurationError(
            f"LLM: reasoning_budget must be below the output limit of {model}, for thinking and"
            f" answer together: {limit} tokens, not {budget}."
        )
    if version < (4, 6) and limit <= _MIN_BUDGET_TOKENS:
        raise ConfigurationError(
            f"LLM: max_output_tokens must be above {_MIN_BUDGET_TOKENS} for {model} to think,"
            f" because thinking needs at least that many tokens; it is {limit}."
        )


def _format(wanted: Parameters) -> dict[str, Any] | None:
    kind = wanted.get("type")
    schema = cast("Parameters", wanted.get("json_schema") or {}).get("schema")
    if kind == "json_schema" and isinstance(schema, Mapping):
        return {"type": "json_schema", "schema": schema}
    if kind == "text":
        return None
    raise ConfigurationError(
        "LLM: response_format needs a schema on the wire anthropic_messages, which supports no"
        " JSON without one: "
        '{"type": "json_schema", "json_schema": {"name": ..., "schema": ...}}, not'
        f" {dict(wanted)!r}."
    )


# The number of messages in which `body` looks for user messages. Mostly they alternate with
# answers.
_SEARCHED_MESSAGES = 20


def body(head: RequestHead, fragments: Sequence[bytes], stream: bool) -> bytes:
    """Return a request, built with a single copy of its bytes.

    The cache is marked at the end of the last two user messages. This request writes the cache
    at the last one. From a mark the API searches only 20 blocks back for an earlier cache entry,
    and one answer with many calls and results can exceed that. So the last message of the
    previous request keeps a mark of its own, and its entry is found however much followed.
    """
    parts = list(fragments)
    if head.cached:
        searched = range(len(parts) - 1, max(-1, len(parts) - 1 - _SEARCHED_MESSAGES), -1)
        for place in [at for at in searched if parts[at].startswith(_USER)][:2]:
            parts[place] = parts[place][:-3] + _CACHE_MARK
    if parts and parts[0].startswith(_ASSISTANT):  # the first message must be a user's
        parts.insert(0, _OPENING_MESSAGE)
    return protocol.join_body(head, parts, stream)


# --- answers ---
# Plain and streamed answers both end in `_completion`, so their results cannot differ.

_blocks = msgspec.json.Decoder(list[dict[str, Any]])

_STOP_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
    "pause_turn": "pause",
}
_TEXT_KEYS = {"type", "text"}
_CALL_KEYS = {"type", "id", "name", "input", "caller"}


class _Answer(msgspec.Struct):
    type: Any = ""
    id: Any = ""
    model: Any = ""
    content: Raw = NO_NATIVE
    stop_reason: Any = None
    stop_details: Any = None
    usage: Any = None
    error: Any = None


_answers = msgspec.json.Decoder(_Answer)


def parse(data: bytes) -> Completion:
    return read_answer(data, _answers, _read, "a message")


def _read(answer: _Answer, data: bytes) -> Completion:
    if answer.error or answer.type == "error":
        raise reported_error(decode(data))
    blocks = _blocks.decode(answer.content)  # a missing content is empty and so fails to decode
    return _completion(answer, blocks, answer.content)


def _completion(
    answer: _Answer, blocks: list[dict[str, Any]], raw: Raw | None = None
) -> Completion:
    """Return a completion from a message's blocks, plain or assembled from a stream. `raw` is the
    JSON of `blocks`, if available."""
    builder = CompletionBuilder()
    texts, thoughts = builder.texts, builder.thoughts
    gap = False
    for block in blocks:
        kind: Any = block["type"]
        if kind == "text":
            text: str = block["text"]
            if text:
                texts += (GAP, text) if gap and texts else (text,)
                gap = False
                builder.needs_native |= bool(builder.calls)
                builder.covers(block, _TEXT_KEYS)
            continue
        gap = True
        if kind == "tool_use":
            builder.add_call(str(block.get("name") or ""), block.get("input"), block.get("id"))
            builder.needs_native |= not _is_default_caller(block.get("caller"))
            builder.covers(block, _CALL_KEYS)
            continue
        builder.needs_native = True
        if kind == "thinking" and block["thinking"]:
            thoughts += (GAP, block["thinking"]) if thoughts else (block["thinking"],)
    reason = _STOP_REASONS.get(answer.stop_reason) or str(answer.stop_reason or "stop")
    if reason == "content_filter" and not texts and not builder.calls:
        details = as_dict(answer.stop_details)
        parts = [str(details[key]) for key in ("category", "explanation") if details.get(key)]
        why = f" ({shorten(': '.join(parts))})" if parts else ""
        raise ContentFiltered(f"The model refused to answer{why}.", code="refusal")
    return builder.build(name, _usage(answer.usage), reason, answer, blocks, raw)


def _is_default_caller(caller: Any) -> bool:
    return not caller or caller == {"type": "direct"}


def _usage(counts: Any) -> Usage:
    """Return token counts. The API's `input_tokens` leave out those of the cache."""
    usage = as_dict(counts)
    read = count(usage, "cache_read_input_tokens")
    written = count(usage, "cache_creation_input_tokens")
    reasoning = count(as_dict(usage.get("output_tokens_details")), "thinking_tokens")
    sent, received = count(usage, "input_tokens"), count(usage, "output_tokens")
    return Usage(sent + read + written, received, read, written, reasoning)


class MessagesStream(StreamParser):
    """A parser of one streamed answer.

    An answer is complete when its `stop_reason` has arrived in `message_delta`. `message_stop`
    says that nothing more follows, but does not by itself complete the answer.
    """

    def __init__(self) -> None:
        super().__init__()
        self._about = _Answer()
        self._blocks: list[_StreamedBlock] = []
        self._open: dict[int, _StreamedBlock] = {}  # server's index -> last block begun at it
        self._calls = 0
        self._usage: dict[str, Any] = {}
        self._has_text = False
        self._gap_pending = False  # True if another block followed some text
        self._thinking_block: _StreamedBlock | None = None  # the last block with thoughts

    def _answer(self) -> Completion:
        self._about.usage = self._usage
        return _completion(self._about, [block.finish() for block in self._blocks])

    def _process(self, name: bytes, event: dict[str, Any]) -> None:
        kind = event.get("type")
        about = self._about
        if kind == "content_block_delta":
            self._delta(self._open[event["index"]], event["delta"])
        elif kind == "content_block_start":
            self._begin_block(event["index"], clean_texts(event["content_block"]))
        elif kind == "message_delta":
            delta: dict[str, Any] = clean_texts(event.get("delta") or {})
            about.stop_reason = delta.get("stop_reason") or about.stop_reason
            about.stop_details = delta.get("stop_details") or about.stop_details
            self.finished = about.stop_reason is not None
            _merge_counts(self._usage, event.get("usage"))
        elif kind == "message_start":
            if self._blocks:
                raise BadResponse("The stream has a second answer within the first.")
            message: dict[str, Any] = clean_texts(event["message"])
            about.id, about.model = message.get("id"), message.get("model")
            _merge_counts(self._usage, message.get("usage"))
        elif kind == "message_stop":
            self.done = True

    def _begin_block(self, index: int, start: dict[str, Any]) -> None:
        block = _StreamedBlock(start)
        self._blocks.append(block)
        self._open[index] = block
        kind: Any = start["type"]
        if kind == "text":
            if start.get("text"):
                self._text(start["text"])
            return
        self._gap_pending = True
        if kind == "thinking" and start.get("thinking"):
            self._think(block, start["thinking"])
        elif kind == "tool_use":
            block.number = self._calls
            self._calls += 1
            arguments = _json(start["input"]).decode() if start.get("input") else ""
            self._emit("tool", arguments, block.number, str(start.get("name") or ""))

    def _delta(self, block: _StreamedBlock, delta: dict[str, Any]) -> None:
        match delta["type"]:
            case "text_delta":
                text = block.add("text", delta["text"])
                if text and block.kind == "text":
                    self._text(text)
            case "input_json_delta":
                piece = block.add("input", delta["partial_json"])
                if piece and block.number is not None:
                    self._emit("tool", piece, block.number)
            case "thinking_delta":
                text = block.add("thinking", delta["thinking"])
                if text and block.kind == "thinking":
                    self._think(block, text)
            case "signature_delta":
                block.start["signature"] = delta["signature"]
            case "citations_delta":
                citations = block.start.get("citations") or ()
                block.start["citations"] = [*citations, delta["citation"]]
            case _:  # compaction_delta, and any future kind
                for key, value in delta.items():
                    if key != "type":
                        block.start[key] = _join(block.start.get(key), value)

    def _text(self, text: str) -> None:
        self._emit("text", GAP + text if self._gap_pending and self._has_text else text)
        self._has_text = True
        self._gap_pending = False

    def _think(self, block: _StreamedBlock, text: str) -> None:
        new = self._thinking_block is not None and self._thinking_block is not block
        self._emit("reasoning", GAP + text if new else text)
        self._thinking_block = block


class _StreamedBlock:
    """A content block that is still arriving: its first form, and the pieces of its long texts."""

    def __init__(self, start: dict[str, Any]) -> None:
        self.start = dict(start)
        self.kind = start["type"]
        self.pieces: dict[str, list[str]] = {}
        self.number: int | None = None  # position among the calls, if the block is a call

    def add(self, key: str, piece: str) -> str:
        if not isinstance(piece, str):  # pyright: ignore[reportUnnecessaryIsInstance]: a server's JSON
            raise TypeError(f"a piece of {key} that is not text")
        self.pieces.setdefault(key, []).append(piece)
        return piece

    def finish(self) -> dict[str, Any]:
        """Return the block in the form of a plain answer."""
        block = dict(self.start)
        for key, pieces in self.pieces.items():
            text = "".join(pieces)
            if key != "input":
                block[key] = join_surrogates((block.get(key) or "") + text)
            elif text.strip():
                text = join_surrogates(text)
                try:
                    value: Any = _decoder.decode(text)
                except ValueError:
                    value = None
                if not isinstance(value, dict):  # a call's text gives `read_call` the reason
                    value = {"invalid_json": text} if self.number is None else text
                block["input"] = value
        return block


def _join(old: Any, new: Any) -> Any:
    """Join strings and lists of a streamed piece of an unknown kind; replace other values."""
    if new is None:
        return old
    if isinstance(old, str) and isinstance(new, str):
        return old + new
    if isinstance(old, list) and isinstance(new, list):
        return [*cast("list[Any]", old), *cast("list[Any]", new)]
    return new


def _merge_counts(usage: dict[str, Any], new: dict[str, Any] | None) -> None:
    """Merge later counts that are not zero, because not every event repeats the cached ones."""
    for key, value in (new or {}).items():
        if isinstance(value, dict):
            usage[key] = inner = dict(as_dict(usage.get(key)))
            _merge_counts(inner, cast("dict[str, Any]", value))
        elif value:
            usage[key] = value


stream = MessagesStream
