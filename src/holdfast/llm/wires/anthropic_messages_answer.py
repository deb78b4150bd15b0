"""Answers of the Messages wire: parsed (plain, or as blocks assembled from a stream), and
encoded again as part of a request."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast
from zlib import crc32

import msgspec

from holdfast.content import ToolCall, Usage
from holdfast.errors import ContentFiltered
from holdfast.llm.completion import NO_NATIVE, Completion
from holdfast.llm.wires.calls import read_call, wire_id, wire_name
from holdfast.llm.wires.failures import reported_error, shorten
from holdfast.llm.wires.lenient import clean, count, decode, read_answer
from holdfast.llm.wires.protocol import Names

NAME = "anthropic_messages"
GAP = "\n\n"  # separates texts around another block, and thoughts

_json = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder()
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
_THINKING_TYPES = ("thinking", "redacted_thinking")
_TEXT_KEYS = {"type", "text"}
_CALL_KEYS = {"type", "id", "name", "input", "caller"}
_LEGAL_ID = re.compile(r"[a-zA-Z0-9_-]+")  # the API's rule for call ids
_ILLEGAL_ID_CHARS = re.compile(r"[^a-zA-Z0-9_-]")


class _Answer(msgspec.Struct):
    type: Any = ""
    id: Any = ""
    model: Any = ""
    content: msgspec.Raw = NO_NATIVE
    stop_reason: Any = None
    stop_details: Any = None
    usage: Any = None
    error: Any = None


_answers = msgspec.json.Decoder(_Answer)


def parse(data: bytes) -> Completion:
    """Parse a plain answer. Raises the error that the answer reports, `ContentFiltered` for a
    refusal without content, or `BadResponse`."""
    return read_answer(data, _answers, _read, "a message")


def _read(answer: _Answer, data: bytes) -> Completion:
    if answer.error or answer.type == "error":
        raise reported_error(decode(data))
    blocks = _blocks.decode(answer.content)  # a missing content is empty and so fails to decode
    return completion_of(
        blocks,
        answer.stop_reason,
        answer.stop_details,
        answer.usage,
        answer.id,
        answer.model,
        answer.content,
    )


def completion_of(
    blocks: list[dict[str, Any]],
    stop: Any,
    details: Any,
    usage: Any,
    id: Any,
    model: Any,
    raw: msgspec.Raw | None = None,
) -> Completion:
    """Return a completion from a message's parts, plain or assembled from a stream. `raw` is the
    JSON of `blocks`, if available.

    Raises `ContentFiltered` for a refusal without content, and an exception of
    `lenient.MISSHAPEN` for blocks of an unexpected shape.
    """
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    seen: set[str] = set()
    needs_native = False  # True if the blocks hold more than text and calls
    gap = False
    for block in blocks:
        kind: Any = block["type"]
        if kind == "text":
            text: str = block["text"]
            if text:
                texts += (GAP, text) if gap and texts else (text,)
                gap = False
                needs_native = (
                    needs_native
                    or bool(calls)
                    or (
                        len(block) > 2
                        and any(value and key not in _TEXT_KEYS for key, value in block.items())
                    )
                )
            continue
        gap = True
        if kind == "tool_use":
            raw_id: Any = block.get("id")
            # A repeated id is dropped, because each result must find its call.
            provider_id = raw_id if isinstance(raw_id, str) and raw_id not in seen else ""
            seen.add(provider_id)
            calls.append(read_call(str(block.get("name") or ""), block.get("input"), provider_id))
            needs_native = (
                needs_native
                or not _is_default_caller(block.get("caller"))
                or any(value and key not in _CALL_KEYS for key, value in block.items())
            )
            continue
        needs_native = True
        if kind == "thinking" and block["thinking"]:
            thoughts += (GAP, block["thinking"]) if thoughts else (block["thinking"],)
    reason = _STOP_REASONS.get(stop) or str(stop or "stop")
    if reason == "content_filter" and not texts and not calls:
        raise _refusal_error(details)
    return Completion(
        "".join(texts),
        "".join(thoughts),
        tuple(calls),
        read_usage(usage),
        "tool_calls" if reason == "stop" and calls else reason,
        model if isinstance(model, str) else "",
        NAME,
        _native(blocks, raw) if needs_native else NO_NATIVE,
        id if isinstance(id, str) else "",
    )


def _is_default_caller(caller: Any) -> bool:
    """Return True if a block's `caller` has the default meaning: the model itself."""
    return not caller or caller == {"type": "direct"}


def _native(blocks: list[dict[str, Any]], raw: msgspec.Raw | None) -> msgspec.Raw:
    if raw is not None:
        return raw.copy()
    try:
        return msgspec.Raw(_json(blocks))
    except UnicodeEncodeError:  # half a surrogate pair, in text outside of deltas
        return msgspec.Raw(_json(clean(blocks)))


def _refusal_error(details: Any) -> ContentFiltered:
    known = cast("dict[str, Any]", details) if isinstance(details, dict) else {}
    why = ": ".join(str(known[key]) for key in ("category", "explanation") if known.get(key))
    return ContentFiltered(
        f"The model refused to answer{f' ({shorten(why)})' if why else ''}.", code="refusal"
    )


def read_usage(counts: Any) -> Usage:
    """Return token counts, zero where they are missing. The API's `input_tokens` leave out
    tokens read from or written to the cache."""
    if not isinstance(counts, dict):
        return Usage()
    usage = cast("dict[str, Any]", counts)
    read, written = (
        count(usage, "cache_read_input_tokens"),
        count(usage, "cache_creation_input_tokens"),
    )
    reasoning_tokens = count(usage.get("output_tokens_details"), "thinking_tokens")
    return Usage(
        count(usage, "input_tokens") + read + written,
        count(usage, "output_tokens"),
        read,
        written,
        reasoning_tokens,
    )


# --- back to the API ---


def call_id(call: ToolCall, family: str = "") -> str:
    """Return the id of a call in the characters that the API allows. Others are replaced, and a
    checksum keeps distinct ids distinct."""
    id = wire_id(call)
    return (
        id
        if _LEGAL_ID.fullmatch(id)
        else f"{_ILLEGAL_ID_CHARS.sub('_', id)}_{crc32(id.encode()):08x}"
    )


def call_block(call: ToolCall, names: Names) -> bytes:
    """Return a call in the API's form. The input must be an object, even if the model wrote
    none."""
    return _json(
        {
            "type": "tool_use",
            "id": call_id(call),
            "name": wire_name(call.name, names),
            "input": _input(call),
        }
    )


def _input(call: ToolCall) -> dict[str, Any]:
    return {"invalid_json": call.raw} if call.invalid else call.arguments


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


def echo(native: msgspec.Raw, calls: Sequence[ToolCall], names: Names) -> list[bytes]:
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
        if block.caller is not msgspec.UNSET and _is_default_caller(block.caller):
            changes["caller"] = None
        kept.append((block, _patched(raw, changes) if changes else raw))
    if not waiting:
        while kept and kept[-1][0].type in _THINKING_TYPES:
            kept.pop()
        if kept and kept[-1][0].type == "text" and kept[-1][0].text[-1].isspace():
            kept[-1] = (kept[-1][0], _patched(kept[-1][1], {"text": kept[-1][0].text.rstrip()}))
    return [raw for _, raw in kept] + [call_block(call, names) for call in waiting]


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
