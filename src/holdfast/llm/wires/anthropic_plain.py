"""Plain answers of Anthropic's Messages wire, and the pieces of its streams. `plain` describes
them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from holdfast.answer import AnswerDetails
from holdfast.content import ToolCall, Usage
from holdfast.llm.completion import NO_NATIVE, Completion
from holdfast.llm.wires.calls import read_call
from holdfast.llm.wires.plain import Nothing, Plain, Tokens, decode, has_repeated_id

_STOP_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
}


class _Caller(Plain, tag_field="type", tag="direct"):
    pass


class _Text(Plain, tag_field="type", tag="text"):
    text: str
    citations: Nothing | None = None


class _Call(Plain, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]
    caller: _Caller | None = None


class _Hours(Plain):
    ephemeral_1h_input_tokens: Tokens = 0
    ephemeral_5m_input_tokens: Tokens = 0


class _Thinking(Plain):
    thinking_tokens: Tokens = 0


class _Counts(Plain):
    input_tokens: Tokens = 0
    output_tokens: Tokens = 0
    cache_read_input_tokens: Tokens | None = None
    cache_creation_input_tokens: Tokens | None = None
    cache_creation: _Hours | None = None
    output_tokens_details: _Thinking | None = None
    server_tool_use: None = None
    service_tier: str | None = None
    inference_geo: str | None = None


class _Answer(Plain, tag_field="type", tag="message"):
    content: list[_Text | _Call]
    stop_reason: Literal["end_turn", "stop_sequence", "tool_use", "max_tokens"]
    usage: _Counts
    id: str = ""
    model: str = ""
    role: str = "assistant"
    stop_sequence: str | None = None
    stop_details: None = None
    container: None = None


_decoder = msgspec.json.Decoder(_Answer)


class _Piece(msgspec.Struct, gc=False):
    type: str = ""
    text: str = ""
    partial_json: str = ""


class MessagesEvent(msgspec.Struct, gc=False):
    """The fields of an event that matter for a piece of a text or of a call's input."""

    type: str = ""
    index: int = -1
    delta: _Piece | None = None
    error: Any = None
    object: Any = None


events = msgspec.json.Decoder(MessagesEvent)


def read(data: bytes, name: str) -> Completion | None:
    """Return the completion of a plain answer, or None if the answer is not plain."""
    answer = decode(data, _decoder)
    if answer is None:
        return None
    text, calls = "", list[ToolCall]()
    for place, block in enumerate(answer.content):
        if type(block) is _Call:
            calls.append(read_call(block.name, block.input, block.id))
        elif type(block) is _Text and not place:
            text = block.text
        else:  # text after a call, or two texts
            return None
    if len(calls) > 1 and has_repeated_id(calls):
        return None
    counts, reason = answer.usage, _STOP_REASONS[answer.stop_reason]
    has_details = counts.service_tier or counts.inference_geo or answer.stop_sequence
    return Completion(
        text,
        "",
        tuple(calls),
        _usage(counts),
        "tool_calls" if reason == "stop" and calls else reason,
        answer.model,
        name,
        NO_NATIVE,
        answer.id,
        details=_details(answer) if has_details else None,
    )


def _details(answer: _Answer) -> AnswerDetails:
    counts = answer.usage
    place = counts.inference_geo
    return AnswerDetails(
        service_tier=counts.service_tier or "",
        stop_sequence=answer.stop_sequence or "",
        provider_details={"inference_geo": place} if place else {},
    )


def _usage(counts: _Counts) -> Usage:
    cache_reads = counts.cache_read_input_tokens or 0
    cache_writes = counts.cache_creation_input_tokens or 0
    hours, thinking = counts.cache_creation, counts.output_tokens_details
    return Usage(
        counts.input_tokens + cache_reads + cache_writes,
        counts.output_tokens,
        cache_reads,
        cache_writes,
        thinking.thinking_tokens if thinking else 0,
        min(cache_writes, hours.ephemeral_1h_input_tokens) if hours else 0,
    )
