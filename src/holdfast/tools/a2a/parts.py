"""The conversion between tools and A2A: schemas, parts of messages, and results."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote, urlsplit

import msgspec

from holdfast import content as blocks
from holdfast.content import Content, ErrorInfo, TextContent, ToolResult
from holdfast.errors import ToolError, ToolValidationError
from holdfast.tools.results import clean

if TYPE_CHECKING:
    from a2a.types import Part

_NOT_IN_TOOL_NAMES = re.compile(r"[^A-Za-z0-9_.-]")
# Modes of A2A 0.2, which were not MIME types.
_OLD_MODES = {"text": "text/plain", "data": "application/json", "file": "*/*"}
# The image types that models accept. Their APIs refuse an SVG.
_IMAGE_TYPES = {"image/png", "image/jpeg", "image/gif", "image/webp"}
_MAX_EXAMPLES = 3


class AgentSkill(msgspec.Struct, frozen=True):
    """One skill of a card. `modes` are the MIME types that it accepts."""

    id: str
    description: str
    modes: tuple[str, ...] = ()

    @property
    def tool(self) -> str:
        """The id with the characters replaced that a tool's name cannot have."""
        return _NOT_IN_TOOL_NAMES.sub("_", self.id)


class AgentAnswer(msgspec.Struct):
    """The agent's answer to one message."""

    state: str = ""
    """The task's state, such as "completed" or "input-required"; "" for a message without task."""
    task_id: str = ""
    context_id: str = ""
    question: str = ""
    """An identifier of the question that the task waits on."""
    parts: list[Any] = []
    """The parts that are the answer."""
    status_parts: list[Any] = []
    """The parts of the message that came with the state."""


# --- requests ---


def describe(agent: str, description: str, examples: Iterable[str]) -> str:
    """Return a skill's description for a model."""
    bullets = [f"- {example.strip()}" for example in examples if example.strip()][:_MAX_EXAMPLES]
    messages = "\n".join(["Examples of messages:", *bullets]) if bullets else ""
    texts = (description.strip(), messages, f"Done by another agent, {agent}.")
    return "\n\n".join(filter(None, texts))


def schema_of(skill: AgentSkill) -> dict[str, Any]:
    """Return the schema of a skill's arguments: a message, and data and files if accepted."""
    lower_modes = [mode.strip().lower() for mode in skill.modes]
    modes = [_OLD_MODES.get(mode, mode) for mode in lower_modes]
    anything = "*/*" in modes
    properties: dict[str, Any] = {}
    if not modes or anything or any(mode.startswith("text/") for mode in modes):
        properties["message"] = _string(
            "The complete task for the agent. The agent does not see this conversation, only what"
            " you send."
        )
    if anything or any(mode == "application/json" or mode.endswith("+json") for mode in modes):
        properties["data"] = {"type": "object", "description": "Structured input."}
    kinds = [mode for mode in modes if mode not in ("text/plain", "application/json")]
    if kinds:
        kind = _string("Its MIME type.")
        if not any("*" in mode for mode in kinds):
            kind["enum"] = list(dict.fromkeys(kinds))
        file = {
            "name": _string("Its file name."),
            "mime_type": kind,
            "text": _string("Its content, if that is text."),
            "bytes": _string("Its content in base64."),
            "uri": _string("A URL from which the agent can fetch it."),
        }
        properties["files"] = {
            "type": "array",
            "items": _object(file, ["mime_type"]),
            "description": "Files, each with one of text, bytes or uri.",
        }
    return _object(properties, list(properties)[:1])


def _string(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


def _object(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def parts_of(tool: str, arguments: dict[str, Any]) -> list[dict[str, Any]]:
    """Return arguments as parts, in the JSON of A2A 1.0. Raises `ToolValidationError`."""
    parts: list[dict[str, Any]] = []
    if "message" in arguments:
        parts.append({"text": arguments["message"]})
    if "data" in arguments:
        parts.append({"data": arguments["data"], "mediaType": "application/json"})
    for number, file in enumerate(cast("list[dict[str, Any]]", arguments.get("files", []))):
        contents = [key for key in ("text", "bytes", "uri") if key in file]
        if len(contents) != 1:
            raise ToolValidationError(
                f"{tool!r}: files[{number}] takes one of text, bytes or uri; it has"
                f" {' and '.join(contents) or 'none'}."
            )
        part: dict[str, Any] = {"mediaType": file["mime_type"], "filename": file.get("name", "")}
        match contents[0]:
            case "text":
                part["raw"] = base64.b64encode(clean(file["text"]).encode()).decode()
            case "bytes":
                try:
                    base64.b64decode(file["bytes"], validate=True)
                except binascii.Error as error:
                    raise ToolValidationError(
                        f"{tool!r}: files[{number}].bytes is not base64: {error}."
                    ) from None
                part["raw"] = file["bytes"]
            case _:
                part["url"] = file["uri"]
        parts.append(part)
    return parts


# --- answers ---

_STATES: dict[str, tuple[str, str]] = {
    "failed": (
        "unknown",
        "The agent reports that this task failed. Change the request before you try again.",
    ),
    "rejected": (
        "validation",
        "The agent refused this task and will refuse the same request again. Ask for something"
        " else, or ask differently.",
    ),
    "canceled": (
        "cancelled",
        "The agent cancelled the task before it was done. Call again if you still need the result.",
    ),
    "auth-required": (
        "authentication",
        "The agent needs an authorization that only the user can give; its message is above.",
    ),
    "input-required": ("", "The agent needs an answer before it can go on."),
}
"""By state: the error type ("" for no error) and a note for the model."""
# How the model continues a task that waits.
_CONTINUE_NOTES = {
    "auth-required": "Ask the user for it; then call {name} again to continue this task.",
    "input-required": "Call {name} again with the answer as the message to continue this task.",
}
_REPEAT_NOTE = "Call {name} again with the whole request and the missing information."


def result_of(agent: str, name: str, answer: AgentAnswer, remembered: bool) -> ToolResult:
    """Return an answer as the result of the tool `name`. Raises `ToolError` for parts that cannot
    be read. `remembered` is True if the next call would continue the task."""
    try:
        parts = [*answer.parts, *answer.status_parts]
        content = [block for part in parts for block in _blocks(agent, part)]
        data = [_json(part) for part in parts if part.WhichOneof("content") == "data"]
    except ValueError as error:  # such as NaN, which JSON does not have
        raise ToolError(
            f"{name!r} got an answer that cannot be read ({error}). Its effect may have happened.",
            retryable=False,
        ) from None
    meta = {"taskId": answer.task_id, "contextId": answer.context_id, "state": answer.state}
    meta = {key: value for key, value in meta.items() if value}
    structured = data[0] if len(data) == 1 else data or None
    if answer.state not in _STATES:
        return ToolResult(tuple(content), structured, meta)
    kind, note = _STATES[answer.state]
    if answer.state in _CONTINUE_NOTES:
        again = _CONTINUE_NOTES[answer.state] if remembered else _REPEAT_NOTE
        note = f"{note} {again.format(name=name)}"
    text = "\n".join(block.text for block in content if isinstance(block, TextContent))
    content.append(TextContent(note))
    error = ErrorInfo(kind, f"{text}\n{note}" if text else note) if kind else None
    return ToolResult(tuple(content), structured, meta, bool(kind), error)


def text_of(parts: Iterable[Part]) -> str:
    """Return the text parts, one per line."""
    return "\n".join(part.text for part in parts if part.WhichOneof("content") == "text")


def _json(part: Any) -> Any:
    from google.protobuf.json_format import MessageToDict

    return _whole(MessageToDict(part.data))


def _whole(value: Any) -> Any:
    """Return whole floats as integers, because protobuf has floats only: 3 arrives as 3.0."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) <= 2**53 else value
    if isinstance(value, dict):
        return {key: _whole(item) for key, item in cast("dict[str, Any]", value).items()}
    return [_whole(item) for item in cast("list[Any]", value)] if isinstance(value, list) else value


def _blocks(agent: str, part: Any) -> list[Content]:
    kind = part.media_type.partition(";")[0].strip().lower()
    match part.WhichOneof("content"):
        case "text":
            return [TextContent(part.text)]
        case "data":
            return [TextContent(json.dumps(_json(part), ensure_ascii=False, allow_nan=False))]
        case "url":
            name: str = part.filename or urlsplit(str(part.url)).path.rpartition("/")[2]
            return [blocks.ResourceLink(part.url, name, part.media_type or None)]
        case "raw":
            return [_file(agent, part, kind)]
        case _:  # an empty part, or one of a kind that this version does not know
            return []


def _file(agent: str, part: Any, kind: str) -> Content:
    if kind in _IMAGE_TYPES:
        return blocks.ImageContent(part.raw, kind)
    if kind.startswith("audio/"):
        return blocks.AudioContent(part.raw, kind)
    resource: dict[str, Any] = {
        "uri": f"a2a://{agent}/{quote(part.filename)}",
        "mimeType": part.media_type or "application/octet-stream",
    }
    if kind.startswith("text/") or kind == "application/json" or kind.endswith(("+json", "+xml")):
        try:
            return blocks.EmbeddedResource({**resource, "text": part.raw.decode()})
        except UnicodeDecodeError:  # not text in spite of its MIME type; passed on as bytes
            pass
    return blocks.EmbeddedResource({**resource, "blob": base64.b64encode(part.raw).decode()})
