"""Message content in the form of the GenAI conventions: JSON of roles and parts, with a length
limit on each text. Recorded only if the user opts in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast import events as ev
from holdfast.content import FileContent, ImageContent, TextContent
from holdfast.llm.completion import Completion

_MAX_TEXT_CHARS = 10_000  # characters of one text

_encoder = msgspec.json.Encoder(enc_hook=str)


def cut(text: str) -> str:
    """Return a text, cut to the length limit and followed by its length if it is too long."""
    if len(text) <= _MAX_TEXT_CHARS:
        return text
    return f"{text[:_MAX_TEXT_CHARS]}... ({len(text):,} characters)"


def prompt_json(head: ev.AgentConfigured) -> str:
    """Return the system prompt as JSON."""
    return _encoder.encode([_text(head.system_prompt)]).decode()


def messages_json(events: Sequence[ev.AnyEvent]) -> str:
    """Return the model's input since its last answer as JSON: messages and results."""
    messages: list[dict[str, Any]] = []
    for event in events:
        if isinstance(event, ev.MessageAdded):
            messages.append({"role": "user", "parts": [_part(block) for block in event.content]})
        elif isinstance(event, ev.ToolCallFinished):
            part = {"type": "tool_call_response", "id": event.call_id}
            part["response"] = cut(event.result.text)
            messages.append({"role": "tool", "parts": [part]})
    return _encoder.encode(messages).decode()


def _part(block: Any) -> dict[str, Any]:
    if isinstance(block, TextContent):
        return _text(block.text)
    if isinstance(block, FileContent):
        return {"type": "blob" if block.data else "uri", "modality": block.kind}
    kind = "image" if isinstance(block, ImageContent) else type(block).__name__
    return {"type": "blob", "modality": kind}  # without the data


def _text(text: str, kind: str = "text") -> dict[str, Any]:
    return {"type": kind, "content": cut(text)}


def answer_json(answer: Completion | ev.AssistantReplied) -> str:
    """Return an answer as JSON: its texts and its tool calls."""
    parts: list[dict[str, Any]] = []
    if answer.reasoning:
        parts.append(_text(answer.reasoning, "reasoning"))
    if answer.text:
        parts.append(_text(answer.text))
    for call in answer.calls:
        named = {"type": "tool_call", "id": call.id or call.provider_id, "name": call.name}
        parts.append({**named, "arguments": cut(call.raw_arguments)})
    message = {"role": "assistant", "parts": parts, "finish_reason": answer.stop_reason}
    return _encoder.encode([message]).decode()
