"""What is said to A2A agents and what they say, without a connection: skills as schemas, arguments
as parts, answers as results."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote, urlsplit

import msgspec

from holdfast.content import (
    AudioContent,
    Content,
    EmbeddedResource,
    ErrorInfo,
    ImageContent,
    ResourceLink,
    TextContent,
    ToolResult,
)
from holdfast.errors import ToolError, ToolValidationError
from holdfast.tools.results import clean

if TYPE_CHECKING:
    from a2a.types import Part

_FORBIDDEN = re.compile(r"[^A-Za-z0-9_.-]")
_OLD_MODES = {
    "text": "text/plain",
    "data": "application/json",
    "file": "*/*",
}  # what agents of 0.2 wrote
_PICTURES = {
    "image/png",
    "image/jpeg",
    "image/gif",
    "image/webp",
}  # what models can see; an SVG would be refused by their APIs
_SHOWN_EXAMPLES = 3


class Skill(msgspec.Struct, frozen=True):
    """One skill of a card. `tool` is its part of the tool's name, `modes` the MIME types that it
    takes."""

    id: str
    description: str
    modes: tuple[str, ...] = ()

    @property
    def tool(self) -> str:
        """The id as a tool's name can hold it."""
        return _FORBIDDEN.sub("_", self.id)


class Answer(msgspec.Struct):
    """How far an agent came with one message: the task's ids and state ("completed",
    "input-required", ...; "" for a lone message), which question it waits on, the parts that are
    the answer, and the parts by which it comments on its state."""

    state: str = ""
    task_id: str = ""
    context_id: str = ""
    question: str = ""
    parts: list[Any] = []
    words: list[Any] = []


# --- what is said ---


def describe(agent: str, description: str, examples: Iterable[str]) -> str:
    """A skill's description for a model."""
    shown = [f"- {example.strip()}" for example in examples if example.strip()][:_SHOWN_EXAMPLES]
    texts = [
        description.strip(),
        "\n".join(["Examples of messages:", *shown]) if shown else "",
        f"Done by another agent, {agent}.",
    ]
    return "\n\n".join(text for text in texts if text)


def schema_of(skill: Skill) -> dict[str, Any]:
    """The arguments of a skill: a message, and data and files if it takes them."""
    modes = [_OLD_MODES.get(mode.strip().lower(), mode.strip().lower()) for mode in skill.modes]
    text = not modes or any(mode.startswith("text/") or mode == "*/*" for mode in modes)
    data = any(
        mode == "application/json" or mode.endswith("+json") or mode == "*/*" for mode in modes
    )
    kinds = [mode for mode in modes if mode not in ("text/plain", "application/json")]
    properties: dict[str, Any] = {}
    if text:
        about = (
            "What the agent is to do, in full: it does not see this conversation, only what it is"
            " sent."
        )
        properties["message"] = {"type": "string", "description": about}
    if data:
        properties["data"] = {"type": "object", "description": "Structured input."}
    if kinds:
        kind: dict[str, Any] = {"type": "string", "description": "Its MIME type."}
        if not any("*" in mode for mode in kinds):
            kind["enum"] = list(dict.fromkeys(kinds))
        file = {
            "name": {"type": "string", "description": "Its file name."},
            "mime_type": kind,
            "text": {"type": "string", "description": "Its content, if that is text."},
            "bytes": {"type": "string", "description": "Its content in base64."},
            "uri": {"type": "string", "description": "Where the agent can fetch it."},
        }
        items = {
            "type": "object",
            "properties": file,
            "required": ["mime_type"],
            "additionalProperties": False,
        }
        properties["files"] = {
            "type": "array",
            "items": items,
            "description": "Files, each with one of text, bytes or uri.",
        }
    required = ["message"] if text else list(properties)[:1]
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def parts_of(tool: str, arguments: dict[str, Any]) -> list[dict[str, Any]]:
    """Arguments as the parts of a message, in A2A 1.0's JSON. Raises `ToolValidationError`."""
    parts: list[dict[str, Any]] = []
    if "message" in arguments:
        parts.append({"text": arguments["message"]})
    if "data" in arguments:
        parts.append({"data": arguments["data"], "mediaType": "application/json"})
    for number, file in enumerate(cast("list[dict[str, Any]]", arguments.get("files", []))):
        given = [key for key in ("text", "bytes", "uri") if key in file]
        if len(given) != 1:
            raise ToolValidationError(
                f"{tool!r}: files[{number}] takes one of text, bytes or uri; it has"
                f" {' and '.join(given) or 'none'}."
            )
        part: dict[str, Any] = {"mediaType": file["mime_type"], "filename": file.get("name", "")}
        match given[0]:
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


# --- what they say ---

# state -> error type (none: no error) and what the model should know
_STATES: dict[str, tuple[str, str]] = {
    "failed": (
        "unknown",
        "The agent reports that this task failed. Another try may need another request.",
    ),
    "rejected": (
        "validation",
        (
            "The agent refused this task. Ask for something else, or in another way; the same"
            " request will be refused."
        ),
    ),
    "canceled": (
        "cancelled",
        (
            "The task was cancelled on the agent's side before it was done. Call again if it is"
            " still wanted."
        ),
    ),
    "auth-required": (
        "authentication",
        "The agent needs an authorisation that only the user can give, as it says above.",
    ),
    "input-required": ("", "The agent needs an answer before it can go on."),
}
_GOES_ON = {
    "auth-required": "Ask the user for it; then call {name} again, which goes on with this task.",
    "input-required": (
        "Call {name} again with the answer as the message; that goes on with this task."
    ),
}


def result_of(agent: str, name: str, answer: Answer, remembered: bool) -> ToolResult:
    """An answer as the result of the tool `name`. `remembered`: whether the next call would go on
    with the task. Raises `ToolError` for parts that cannot be read."""
    try:
        parts = [*answer.parts, *answer.words]
        content = [block for part in parts for block in _blocks(agent, part)]
        data = [_json(part) for part in parts if part.WhichOneof("content") == "data"]
    except ValueError as error:  # such as NaN, which JSON cannot say
        raise ToolError(
            f"{name!r} was answered with what cannot be read ({error}). Its effect may have"
            " happened.",
            retryable=False,
        ) from None
    meta = {"taskId": answer.task_id, "contextId": answer.context_id, "state": answer.state}
    meta = {key: value for key, value in meta.items() if value}
    structured = data[0] if len(data) == 1 else data or None
    if answer.state not in _STATES:
        return ToolResult(tuple(content), structured, meta)
    kind, note = _STATES[answer.state]
    if answer.state in _GOES_ON:
        again = (
            _GOES_ON[answer.state]
            if remembered
            else "Call {name} again with the whole request and what was missing."
        )
        note = f"{note} {again.format(name=name)}"
    said = "\n".join(block.text for block in content if isinstance(block, TextContent))
    content.append(TextContent(note))
    error = ErrorInfo(kind, f"{said}\n{note}" if said else note) if kind else None
    return ToolResult(tuple(content), structured, meta, bool(kind), error)


def text_of(parts: Iterable[Part]) -> str:
    """The text parts, joined."""
    return "\n".join(part.text for part in parts if part.WhichOneof("content") == "text")


def _json(part: Any) -> Any:
    from google.protobuf.json_format import MessageToDict

    return _whole(MessageToDict(part.data))


def _whole(value: Any) -> Any:
    """Protobuf has floats only: 3 arrives as 3.0."""
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
            return [ResourceLink(part.url, name, part.media_type or None)]
        case "raw":
            return [_file(agent, part, kind)]
        case _:  # an empty part, or one of a kind that this version does not know
            return []


def _file(agent: str, part: Any, kind: str) -> Content:
    if kind in _PICTURES:
        return ImageContent(part.raw, kind)
    if kind.startswith("audio/"):
        return AudioContent(part.raw, kind)
    resource: dict[str, Any] = {
        "uri": f"a2a://{agent}/{quote(part.filename)}",
        "mimeType": part.media_type or "application/octet-stream",
    }
    if kind.startswith("text/") or kind == "application/json" or kind.endswith(("+json", "+xml")):
        try:
            return EmbeddedResource({**resource, "text": part.raw.decode()})
        except UnicodeDecodeError:  # not the text that it says it is: bytes, then
            pass
    return EmbeddedResource({**resource, "blob": base64.b64encode(part.raw).decode()})
