"""Requests of Anthropic's Messages wire.

`native` is an answer's `content` array. It is sent back verbatim, except for parts that the API
itself refuses; see `_echo`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast
from zlib import crc32

import msgspec

from holdfast.content import AudioContent, Content, ImageContent, TextContent, ToolCall, ToolResult
from holdfast.errors import ConfigurationError
from holdfast.events import ToolDefinition
from holdfast.llm.wires import anthropic_messages_answers as answers
from holdfast.llm.wires.answers import as_dict
from holdfast.llm.wires.calls import wire_id, wire_name
from holdfast.llm.wires.content_parts import (
    Part,
    as_text,
    caption,
    media,
    not_shown,
    result_text,
)
from holdfast.llm.wires.failures import http_error
from holdfast.llm.wires.protocol import Names, RequestHead
from holdfast.llm.wires.requests import join_body, merge_extra, no_family, set_parameters
from holdfast.tools import styles

name = answers.NAME
bound = False  # signatures are valid on all platforms
family = no_family
parse = answers.parse
stream = answers.MessagesStream
error = http_error

_json = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder()

_USER = b'{"role":"user","content":['
_ASSISTANT = b'{"role":"assistant","content":['
_OPENING_MESSAGE = _USER + b'{"type":"text","text":"(what came before is not shown)"}]}'
_EPHEMERAL = {"type": "ephemeral"}
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
    """Return the path after the base URL's path, which ends in /v1."""
    return "/messages"


def headers(api_key: str) -> dict[str, str]:
    """Return the headers of every request. Without a key, no key header is sent."""
    key = {"x-api-key": api_key} if api_key else {}
    common = {"Content-Type": "application/json", "Accept": "*/*"}
    return {**common, "anthropic-version": "2023-06-01", **key}


_LEGAL_ID = re.compile(r"[a-zA-Z0-9_-]+")  # the API's rule for call ids
_ILLEGAL_ID_CHARS = re.compile(r"[^a-zA-Z0-9_-]")


def call_id(call: ToolCall, family: str = "") -> str:
    """Return the id of a call in the characters that the API allows. Others are replaced, and a
    checksum keeps distinct ids distinct."""
    id = wire_id(call)
    if _LEGAL_ID.fullmatch(id):
        return id
    return f"{_ILLEGAL_ID_CHARS.sub('_', id)}_{crc32(id.encode()):08x}"


# --- fragments ---
# Each fragment is one message. A user message ends in `}]}`, which `body` replaces to mark it.


def system(text: str) -> bytes:
    """Encode a system message between others as a user message marked as such. Only the newest
    models know a role for it, and they accept it in few places."""
    return user((TextContent(f"<system>\n{text}\n</system>"),))


def user(content: Sequence[Content]) -> bytes:
    """Encode a user message: text, pictures and PDF documents as blocks, the rest as text. The
    API refuses blank text."""
    parts = _parts(content) or [{"type": "text", "text": "(empty message)"}]
    return _json({"role": "user", "content": parts})


def _parts(content: Iterable[Content]) -> list[Part]:
    parts: list[Part] = []
    for block in content:
        part = _media_part(block)
        if part is None:
            text = not_shown(block) if isinstance(block, ImageContent) else as_text(block)
            if not text.strip():
                continue
            part = {"type": "text", "text": text}
        parts.append(part)
    return parts


def _media_part(block: Content) -> Part | None:
    """Return a picture or document in the API's form; None for any other block."""
    if isinstance(block, TextContent | AudioContent):
        return None
    kind, data = media(block)
    kind = kind.partition(";")[0].strip().lower()
    if kind == "image/jpg":
        kind = "image/jpeg"
    is_document = kind == "application/pdf" and not isinstance(block, ImageContent)
    if kind not in _PICTURE_TYPES and not is_document:
        return None
    source = {"type": "base64", "media_type": kind, "data": data}
    return {"type": "document" if is_document else "image", "source": source}


def assistant(
    text: str, calls: Sequence[ToolCall], native: msgspec.Raw, names: Names, family: str = ""
) -> bytes:
    """Encode an answer of the model. Returns b"" if nothing of it can be sent, because the API
    refuses empty messages."""
    blocks: list[bytes] = []
    if native:
        blocks = _echo(native, calls, names)
    else:
        # The API refuses trailing white space in a request's last message, if that is an answer.
        text = text if calls else text.rstrip()
        if text and not text.isspace():
            blocks.append(_json({"type": "text", "text": text}))
        blocks += [_call_block(call, names) for call in calls]
    return _ASSISTANT + b",".join(blocks) + b"]}" if blocks else b""


def results(batch: Sequence[tuple[ToolCall, ToolResult]], names: Names) -> bytes:
    """Encode the results of all calls of one answer as one user message, as the API requires.

    Pictures stand in the result itself. Those of an error follow after all results, because an
    error may hold only text.
    """
    blocks: list[Part] = []
    error_media: list[Part] = []
    for call, result in batch:
        id = call_id(call)
        block: Part = {"type": "tool_result", "tool_use_id": id}
        parts = [part for part in map(_media_part, result.content) if part is not None]
        if parts and not result.is_error:
            block["content"] = _parts(result.content)
        else:
            text = result_text(result)
            block["content"] = text if text.strip() else "(no output)"
            if parts:
                error_media += [{"type": "text", "text": caption(call.name, id)}, *parts]
        if result.is_error:
            block["is_error"] = True
        blocks.append(block)
    return _json({"role": "user", "content": blocks + error_media})


def _call_block(call: ToolCall, names: Names) -> bytes:
    wire_call = {"type": "tool_use", "id": call_id(call), "name": wire_name(call.name, names)}
    return _json({**wire_call, "input": _input(call)})


def _input(call: ToolCall) -> dict[str, Any]:
    """Return a call's arguments. The API requires an object, even if the model wrote none."""
    return {"invalid_json": call.raw} if call.invalid else call.arguments


_THINKING_TYPES = ("thinking", "redacted_thinking")


class _BlockShape(msgspec.Struct):
    """The fields of a block that decide whether the API accepts it unchanged."""

    type: Any = None
    text: Any = None
    id: Any = None
    name: Any = None
    input: Any = None
    caller: Any = msgspec.UNSET
    citations: Any = None


_raw_blocks = msgspec.json.Decoder(list[msgspec.Raw])
_block_shapes = msgspec.json.Decoder(list[_BlockShape])


def _echo(native: msgspec.Raw, calls: Sequence[ToolCall], names: Names) -> list[bytes]:
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
            given: Any = block.citations
            cited = cast("list[Any]", given) if isinstance(given, list) else []
            if any(isinstance(one, dict) and "file_id" in one for one in cited):
                changes["citations"] = [_without_file(one) for one in cited]
        elif block.type == "tool_use":
            call = waiting.pop(0) if paired else _take_call(waiting, block.id)
            if call is None:
                continue
            if block.id != call_id(call):
                changes["id"] = call_id(call)
            if call.invalid or block.input != call.arguments:
                changes["input"] = _input(call)
        if block.caller is not msgspec.UNSET and answers.is_default_caller(block.caller):
            changes["caller"] = None
        kept.append((block, _patched(raw, changes) if changes else raw))
    if not waiting:
        while kept and kept[-1][0].type in _THINKING_TYPES:
            kept.pop()
        if kept and kept[-1][0].type == "text" and kept[-1][0].text[-1].isspace():
            kept[-1] = (kept[-1][0], _patched(kept[-1][1], {"text": kept[-1][0].text.rstrip()}))
    return [raw for _, raw in kept] + [_call_block(call, names) for call in waiting]


def _without_file(citation: Any) -> Any:
    if not isinstance(citation, dict):
        return citation
    return {
        key: value for key, value in cast("dict[str, Any]", citation).items() if key != "file_id"
    }


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


class MessagesHead(RequestHead, frozen=True):
    """A request head. `marked` is True if `body` marks the positions at which the prompt cache
    is written."""

    marked: bool = True


def head(
    model: str,
    system_prompt: str,
    tools: Sequence[ToolDefinition],
    parameters: Mapping[str, Any],
    names: Names,
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
    marked = parameters.get("prompt_caching") is not False
    body: dict[str, Any] = {"model": model, "max_tokens": _max_tokens(model, parameters)}
    body.update(set_parameters(parameters, _PARAMETERS))
    body.update(_thinking(model, parameters, body["max_tokens"]))
    if parameters.get("response_format"):
        form = _format(parameters["response_format"])
        if form:
            body["output_config"] = {**body.get("output_config", {}), "format": form}
    if tools:
        body["tools"] = [styles.anthropic(tool, wire_name(tool.name, names)) for tool in tools]
        if parameters.get("parallel_tool_calls") is False:
            body["tool_choice"] = {"type": "auto", "disable_parallel_tool_use": True}
    if system_prompt.strip():
        cache_control = {"cache_control": _EPHEMERAL} if marked else {}
        body["system"] = [{"type": "text", "text": system_prompt, **cache_control}]
    elif tools and marked:
        body["tools"][-1]["cache_control"] = _EPHEMERAL
    extra: Mapping[str, Any] = parameters.get("extra_body") or {}
    merged = ["thinking", "output_config", "tool_choice"]
    ours, theirs = body.get("thinking", {}), as_dict(extra.get("thinking"))
    if theirs.get("type", ours.get("type")) != ours.get("type"):
        merged.remove("thinking")  # a thinking setting of another type has other keys
    merge_extra(body, extra, merged)
    return MessagesHead(
        _json(body)[:-1] + b',"messages":[', True, b"]}", b'],"stream":true}', marked
    )


def _version(model: str) -> tuple[int, int] | None:
    """Return the version of a Claude model by its name, or the newest if the name has none.
    Returns None for models of other makers."""
    name = model.lower()
    found = _VERSION.search(name)
    if found:
        return int(found[1]), int(found[2] or 0)
    return _NEWEST_VERSION if "claude" in name else None


def _max_tokens(model: str, parameters: Mapping[str, Any]) -> int:
    extra: Mapping[str, Any] = parameters.get("extra_body") or {}
    limit = extra.get("max_tokens")
    limit = limit if isinstance(limit, int) else parameters.get("max_output_tokens")
    if limit is not None:
        return limit
    version = _version(model)
    if version is None or version == (3, 5):
        limit = 8192
    else:
        limit = 4096 if version < (3, 5) else 32000
    room = limit + max(0, parameters.get("reasoning_budget") or 0)
    return room if version is None else max(limit, min(room, _output_limit(model, version)))


def _output_limit(model: str, version: tuple[int, int]) -> int:
    """Return the output limit of a Claude model, in tokens."""
    if version >= (4, 6):
        return 128000
    return 32000 if version <= (4, 1) and "opus" in model.lower() else 64000


def _thinking(model: str, parameters: Mapping[str, Any], limit: int) -> dict[str, Any]:
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
        settings["thinking"] = {
            "type": "enabled",
            "budget_tokens": max(_MIN_BUDGET_TOKENS, min(_BUDGET_TOKENS[effort], limit * 3 // 4)),
        }
    return settings


def _check_room(model: str, version: tuple[int, int], budget: int | None, limit: int) -> None:
    """Raise for thinking settings that the API refuses. `thinking` in `extra_body` is left to
    the API."""
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


def _format(wanted: Mapping[str, Any]) -> dict[str, Any] | None:
    kind = wanted.get("type")
    schema = cast("Mapping[str, Any]", wanted.get("json_schema") or {}).get("schema")
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
    if not fragments:
        return join_body(head, fragments, stream)
    parts = list(fragments)
    if isinstance(head, MessagesHead) and head.marked:
        marks_left = 2
        for place in range(len(parts) - 1, max(-1, len(parts) - 1 - _SEARCHED_MESSAGES), -1):
            if parts[place].startswith(_USER):
                parts[place] = parts[place][:-3] + _CACHE_MARK
                marks_left -= 1
                if not marks_left:
                    break
    if parts[0].startswith(_ASSISTANT):  # the first message must be a user's
        parts.insert(0, _OPENING_MESSAGE)
    return join_body(head, parts, stream)
