"""What was said, as the GenAI conventions write it: JSON of roles and parts, each text bounded.
Only where somebody opted in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast import events as ev
from holdfast.content import ImageContent, TextContent, ToolCall, ToolResult
from holdfast.llm.completion import Completion

LONGEST = 10_000  # characters of one text

_encoder = msgspec.json.Encoder(enc_hook=str)


def cut(text: str, longest: int = LONGEST) -> str:
    """At most `longest` characters, and how many there were."""
    return text if len(text) <= longest else f"{text[:longest]}... ({len(text):,} characters)"


def _json(value: Any) -> str:
    return _encoder.encode(value).decode()


def prompt_json(head: ev.Agent) -> str:
    """The system prompt."""
    return _json([{"type": "text", "content": cut(head.system_prompt)}])


def arguments_json(call: ToolCall) -> str:
    """A call's arguments."""
    return cut(call.raw_arguments)


def result_json(result: ToolResult) -> str:
    """A call's result."""
    return cut(result.text)


def messages_json(events: Sequence[ev.AnyEvent]) -> str:
    """What the model is told since its last answer: messages and results."""
    found: list[dict[str, Any]] = []
    for event in events:
        if isinstance(event, ev.Message):
            found.append({"role": "user", "parts": [_part(block) for block in event.content]})
        elif isinstance(event, ev.ToolResult):
            part = {
                "type": "tool_call_response",
                "id": event.call_id,
                "response": result_json(event.result),
            }
            found.append({"role": "tool", "parts": [part]})
    return _json(found)


def _part(block: Any) -> dict[str, Any]:
    if isinstance(block, TextContent):
        return {"type": "text", "content": cut(block.text)}
    kind = "image" if isinstance(block, ImageContent) else type(block).__name__
    return {"type": "blob", "modality": kind}  # not its bytes


def answer_json(answer: Completion | ev.Assistant) -> str:
    """An answer: what the model wrote, and what it asks for."""
    parts: list[dict[str, Any]] = []
    if answer.reasoning:
        parts.append({"type": "reasoning", "content": cut(answer.reasoning)})
    if answer.text:
        parts.append({"type": "text", "content": cut(answer.text)})
    for call in answer.calls:
        parts.append(
            {
                "type": "tool_call",
                "id": call.id or call.provider_id,
                "name": call.name,
                "arguments": arguments_json(call),
            }
        )
    return _json([{"role": "assistant", "parts": parts, "finish_reason": answer.stop_reason}])
