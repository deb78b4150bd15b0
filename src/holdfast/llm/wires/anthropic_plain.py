"""Plain answers of Anthropic's Messages wire. `plain` describes them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from holdfast.content import Usage
from holdfast.llm.completion import Completion
from holdfast.llm.wires.answers import CompletionBuilder
from holdfast.llm.wires.plain import Nothing, Plain, Tokens, decode

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


def read(data: bytes, name: str) -> Completion | None:
    """Return the completion of a plain answer, or None if the answer is not plain."""
    answer = decode(data, _decoder)
    if answer is None:
        return None
    builder = CompletionBuilder()
    for place, block in enumerate(answer.content):
        if isinstance(block, _Call):
            builder.add_call(block.name, block.input, block.id)
        elif place:  # text after a call, or two texts
            return None
        else:
            builder.texts.append(block.text)
    counts = answer.usage
    builder.detail("service_tier", counts.service_tier)
    builder.detail("stop_sequence", answer.stop_sequence)
    if counts.inference_geo:
        builder.detail("provider_details", {"inference_geo": counts.inference_geo})
    reason = _STOP_REASONS[answer.stop_reason]
    return builder.build(name, _usage(counts), reason, answer, None, None)


def _usage(counts: _Counts) -> Usage:
    read = counts.cache_read_input_tokens or 0
    written = counts.cache_creation_input_tokens or 0
    hours, thinking = counts.cache_creation, counts.output_tokens_details
    return Usage(
        counts.input_tokens + read + written,
        counts.output_tokens,
        read,
        written,
        thinking.thinking_tokens if thinking else 0,
        min(written, hours.ephemeral_1h_input_tokens) if hours else 0,
    )
