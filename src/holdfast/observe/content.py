"""Message content in the form of the GenAI conventions: JSON of roles and parts, with a length
limit on each text. Recorded only if the user opts in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast import events as ev
from holdfast.content import AudioContent, FileContent, ImageContent, ResourceLink, TextContent
from holdfast.llm.completion import Completion

_MAX_TEXT_CHARS = 10_000  # characters of one text

_encoder = msgspec.json.Encoder(enc_hook=str)


def cut(text: str) -> str:
    """Return a text, cut to the length limit and followed by its length if it is too long."""
    if len(text) <= _MAX_TEXT_CHARS:
        return text
    return f"{text[:_MAX_TEXT_CHARS]}... ({len(text):,} characters)"


def _cut_json(value: Any) -> Any:
    """Return a JSON value unchanged, or as cut text if it is too long."""
    text = _encoder.encode(value).decode()
    return value if len(text) <= _MAX_TEXT_CHARS else cut(text)


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
        places = {"uri": block.url, "file_id": block.file_id, "name": block.name}
        places["mime_type"] = block.mime_type
        kind = "blob" if block.data else "uri" if block.url else "file"
        fields = {name: cut(value) for name, value in places.items() if value}
        return {"type": kind, "modality": block.kind, **fields}
    if isinstance(block, ResourceLink):
        fields = {"mime_type": block.mime_type} if block.mime_type else {}
        return {"type": "uri", "uri": cut(block.uri), **fields}
    if isinstance(block, ImageContent | AudioContent):
        kind = "image" if isinstance(block, ImageContent) else "audio"
        return {"type": "blob", "modality": kind, "mime_type": block.mime_type}  # without the data
    return {"type": "blob", "modality": type(block).__name__}


def _text(text: str, kind: str = "text") -> dict[str, Any]:
    return {"type": kind, "content": cut(text)}


def answer_json(answer: Completion | ev.AssistantReplied) -> str:
    """Return an answer as JSON: its texts, its tool calls, the provider's own calls, its media, its
    refusal and its sources."""
    parts: list[dict[str, Any]] = []
    if answer.reasoning:
        parts.append(_text(answer.reasoning, "reasoning"))
    for call in answer.server_calls:
        id = {"id": call.id} if call.id else {}
        arguments = {"type": call.name, "arguments": _cut_json(call.arguments)}
        parts.append({"type": "server_tool_call", **id, "name": call.name})
        parts[-1]["server_tool_call"] = arguments
        if call.output is not None:
            output = {"type": call.name, "response": _cut_json(call.output)}
            output |= {"is_error": True} if call.is_error else {}
            parts.append({"type": "server_tool_call_response", **id})
            parts[-1]["server_tool_call_response"] = output
    if answer.text:
        parts.append(_text(answer.text))
    if answer.refusal:
        parts.append(_text(answer.refusal, "refusal"))
    parts += [_part(block) for block in answer.media]
    for call in answer.calls:
        part = {"type": "tool_call", "id": call.id or call.provider_id, "name": call.name}
        parts.append({**part, "arguments": cut(call.raw_arguments)})
    for source in answer.citations:
        fields: dict[str, Any] = msgspec.to_builtins(source)
        fields |= {name: cut(text) for name, text in fields.items() if isinstance(text, str)}
        parts.append({"type": "citation", **fields})
    # The conventions write "tool_call".
    reason = answer.stop_reason.replace("tool_calls", "tool_call")
    message = {"role": "assistant", "parts": parts, "finish_reason": reason}
    return _encoder.encode([message]).decode()
