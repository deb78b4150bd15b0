"""Message content in the form of the GenAI conventions: JSON of roles and parts, with a length
limit on each text. Recorded only if the user opts in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast import events as ev
from holdfast.content import ImageContent, TextContent, ToolCall, ToolResult
from holdfast.llm.completion import Completion

MAX_TEXT_CHARS = 10_000  # characters of one text

_encoder = msgspec.json.Encoder(enc_hook=str)


def cut(text: str, longest: int = MAX_TEXT_CHARS) -> str:
    """Return at most `longest` characters of a text, followed by its length if it was cut."""
    return text if len(text) <= longest else f"{text[:longest]}... ({len(text):,} characters)"


def _json(value: Any) -> str:
    return _encoder.encode(value).decode()


def prompt_json(head: ev.AgentConfigured) -> str:
    """Return the system prompt as JSON."""
    return _json([{"type": "text", "content": cut(head.system_prompt)}])


def arguments_json(call: ToolCall) -> str:
    """Return a call's arguments, cut to the length limit."""
    return cut(call.raw_arguments)


def result_json(result: ToolResult) -> str:
    """Return a call's result, cut to the length limit."""
    return cut(result.text)


def messages_json(events: Sequence[ev.AnyEvent]) -> str:
    """Return the model's input since its last answer as JSON: messages and results."""
    messages: list[dict[str, Any]] = []
    for event in events:
        if isinstance(event, ev.MessageAdded):
            messages.append({"role": "user", "parts": [_part(block) for block in event.content]})
        elif isinstance(event, ev.ToolCallFinished):
            part = {
                "type": "tool_call_response",
                "id": event.call_id,
                "response": result_json(event.result),
            }
            messages.append({"role": "tool", "parts": [part]})
    return _json(messages)


def _part(block: Any) -> dict[str, Any]:
    if isinstance(block, TextContent):
        return {"type": "text", "content": cut(block.text)}
    kind = "image" if isinstance(block, ImageContent) else type(block).__name__
    return {"type": "blob", "modality": kind}  # without the data


def answer_json(answer: Completion | ev.AssistantReplied) -> str:
    """Return an answer as JSON: its texts and its tool calls."""
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
