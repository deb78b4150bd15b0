"""Fragments of Anthropic's Messages wire: one message each.

A user message ends in `}]}`, which `anthropic_messages.body` replaces to mark it. A document begins
with `DOCUMENT`, and a tool reference is one match of `REFERENCE`, by which `body` finds them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast
from zlib import crc32

import msgspec
from msgspec import Raw

from holdfast.content import (
    AudioContent,
    Content,
    FileContent,
    ImageContent,
    TextContent,
    ToolCall,
    ToolResult,
)
from holdfast.llm.wires import content_parts
from holdfast.llm.wires.answers import as_dict, as_list
from holdfast.llm.wires.anthropic_answers import is_default_caller
from holdfast.llm.wires.anthropic_settings import TOOL_REFERENCES
from holdfast.llm.wires.calls import wire_id, wire_input, wire_name
from holdfast.llm.wires.content_parts import Media, Part
from holdfast.llm.wires.protocol import Calls, Names, Results
from holdfast.tools.names import FOUND_TOOLS

_json = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder()

USER = b'{"role":"user","content":['
ASSISTANT = b'{"role":"assistant","content":['
DOCUMENT = b'{"type":"document","source":'
REFERENCE = re.compile(rb'\{"type":"tool_reference","tool_name":"([^"]*)"\}')
_PICTURE_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")
_TEXT_TYPES = {f"application/{kind}" for kind in ("json", "xml", "yaml", "x-yaml", "toml", "sql")}
_THINKING = ("thinking", "redacted_thinking")
_ILLEGAL_ID_CHARS = re.compile(r"[^a-zA-Z0-9_-]")


def call_id(call: ToolCall, family: str = "") -> str:
    """Return the id of a call in the characters that the API allows. Others are replaced, and a
    checksum keeps distinct ids distinct."""
    id = wire_id(call)
    if not _ILLEGAL_ID_CHARS.search(id):
        return id
    return f"{_ILLEGAL_ID_CHARS.sub('_', id)}_{crc32(id.encode()):08x}"


def system(text: str) -> bytes:
    """Encode a system message between others as a user message marked as such. Only the newest
    models know a role for it, and they accept it in few places."""
    return user((TextContent(f"<system>\n{text}\n</system>"),))


def user(content: Sequence[Content], family: str = "") -> bytes:
    """Encode text, pictures, documents and uploaded files as blocks, the rest as text, but no blank
    text."""
    parts = [part for part in map(_part, content, map(_media_part, content)) if part is not None]
    return _json(
        {"role": "user", "content": parts or [{"type": "text", "text": "(empty message)"}]}
    )


def _part(block: Content, media: Part | None) -> Part | None:
    """Return the media of a block, or else its text, or None for blank text."""
    text = content_parts.as_text(block, images=True)
    return media or ({"type": "text", "text": text} if text.strip() else None)


def _media_part(block: Content) -> Part | None:
    """Return a block that is not text, or None if the API knows no form of it.

    A text file is a document only if it was given as a file, not as a tool's resource. The API
    fetches pictures and PDF documents. Of uploaded files it shows pictures, PDF documents and plain
    text to the model; any other one is put into the container that runs code.
    """
    media = None if isinstance(block, AudioContent) else content_parts.media_of(block)
    if media is None or media.kind in ("audio", "video"):
        return None
    kind = media.mime_type
    if media.kind == "image":
        if kind not in _PICTURE_TYPES:
            return None
        return {"type": "image", "source": _source(media)}
    if media.file_id and kind not in ("", "application/pdf", "text/plain"):
        return {"type": "container_upload", "file_id": media.file_id}
    if media.data and isinstance(block, FileContent) and _is_text(kind):
        try:
            text = block.data.decode()
        except UnicodeDecodeError:
            return None
        if not text.strip():
            return None
        return _document({"type": "text", "media_type": "text/plain", "data": text}, media.name)
    if kind != "application/pdf" and (kind or media.data):
        return None
    if isinstance(block, ImageContent):
        return None
    # a resource's title is left out: stored requests have none
    return _document(_source(media), media.name if isinstance(block, FileContent) else "")


def _source(media: Media) -> Part:
    if media.file_id:
        return {"type": "file", "file_id": media.file_id}
    if media.url:
        return {"type": "url", "url": media.url}
    return {"type": "base64", "media_type": media.mime_type, "data": media.data}


def _document(source: Part, name: str) -> Part:
    # `type` and `source` come first: `DOCUMENT` finds the block by its first bytes.
    return {"type": "document", "source": source, **({"title": name} if name else {})}


def _is_text(kind: str) -> bool:
    return (
        kind.startswith("text/") or kind in _TEXT_TYPES or kind.endswith(("+json", "+xml", "+yaml"))
    )


def assistant(text: str, calls: Calls, native: Raw, names: Names, family: str = "") -> bytes:
    if native:
        blocks = _echo(native, calls, names)
        return ASSISTANT + b",".join(blocks) + b"]}" if blocks else b""
    # The API refuses trailing white space in a request's last message, if that is an answer.
    text = text if calls else text.rstrip()
    parts: list[Part] = []
    if text and not text.isspace():
        parts.append({"type": "text", "text": text})
    for call in calls:
        parts.append(_call_part(call, names))
    return _json({"role": "assistant", "content": parts}) if parts else b""


def results(batch: Results, names: Names, family: str = "") -> bytes:
    """Encode the results of all calls of one answer as one user message, as the API requires.

    The pictures and documents of an error follow all results, because an error may hold only text.
    Files for the container follow too, because no result may hold them. For a model of the family
    `TOOL_REFERENCES`, a result that found tools names them. The API then shows their definitions
    here, and everything before stays cached.
    """
    blocks: list[Part] = []
    trailing_parts: list[Part] = []
    for call, result in batch:
        id = call_id(call)
        block: Part = {"type": "tool_result", "tool_use_id": id}
        blocks.append(block)
        references = _references(result, names) if family == TOOL_REFERENCES else []
        text = "" if references else content_parts.only_text(result)
        if text and not text.isspace():  # nearly always
            block["content"] = text
            if result.is_error:
                block["is_error"] = True
            continue
        parts = [_media_part(block) for block in result.content]
        outside = [part for part in parts if part and _is_outside(part, result)]
        if references:
            block["content"] = references
            outside = [part for part in map(_part, result.content[1:], parts[1:]) if part]
        elif len(outside) < len(parts) - parts.count(None):
            block["content"] = [
                content_part
                for part, content_part in zip(parts, map(_part, result.content, parts), strict=True)
                if content_part and (part is None or not _is_outside(part, result))
            ]
        else:
            kinds = [
                (block.mime_type or "file") if part and isinstance(block, FileContent) else ""
                for block, part in zip(result.content, parts, strict=True)
            ]
            text = content_parts.result_text(content_parts.with_mentions(result, kinds))
            block["content"] = text if text.strip() else "(no output)"
        if outside:
            caption = content_parts.caption(call.name, id)
            trailing_parts += [{"type": "text", "text": caption}, *outside]
        if result.is_error:
            block["is_error"] = True
    return _json({"role": "user", "content": blocks + trailing_parts})


def _is_outside(part: Part, result: ToolResult) -> bool:
    """Return True if no result, or no error, may hold this block."""
    return result.is_error or part["type"] == "container_upload"


def _references(result: ToolResult, names: Names) -> list[Part]:
    """Return references to the tools that a search found. Its first block describes them."""
    return [
        {"type": "tool_reference", "tool_name": wire_name(name, names)}
        for name in as_list(result.meta.get(FOUND_TOOLS))
        if name in names
    ]


def _call_part(call: ToolCall, names: Names) -> Part:
    name = wire_name(call.name, names)
    return {"type": "tool_use", "id": call_id(call), "name": name, "input": wire_input(call)}


class _BlockShape(msgspec.Struct):
    """The fields of a block that decide whether the API accepts it unchanged."""

    type: Any = None
    text: Any = None
    id: Any = None
    name: Any = None
    input: Any = None
    caller: Any = msgspec.UNSET
    citations: Any = None
    tool_use_id: Any = None


_raw_blocks = msgspec.json.Decoder(list[Raw])
_block_shapes = msgspec.json.Decoder(list[_BlockShape])


def _echo(native: Raw, calls: Calls, names: Names) -> list[bytes]:
    """Return the blocks of an answer verbatim, except for parts that the API sends but does not
    accept:

    - blank text, white space at the very end, and thinking as the last block
    - `caller` if it is null or the model itself ("Extra inputs are not permitted", without a
      beta header)
    - `file_id` in citations
    - a call whose input is not an object or was edited
    - a call that is missing from `calls`, because no result would follow
    - a call of the provider's own tools whose input was cut off
    """
    parts: list[tuple[_BlockShape, bytes]] = []
    waiting = list(calls)
    blocks = _block_shapes.decode(native)
    # If the call names are the same, calls are matched by order, even if their ids have changed.
    has_same_names = [block.name for block in blocks if block.type == "tool_use"] == [
        wire_name(call.name, names) for call in calls
    ]
    for block, raw in zip(blocks, cast("list[bytes]", _raw_blocks.decode(native)), strict=True):
        changes: dict[str, Any] = {}
        if block.type == "text":
            if not str(block.text or "").strip():
                continue
            citations = as_list(block.citations)
            if any("file_id" in as_dict(one) for one in citations):
                for one in citations:
                    as_dict(one).pop("file_id", None)
                changes["citations"] = citations
        elif block.type == "tool_use":
            call = waiting.pop(0) if has_same_names else _take_call(waiting, block.id)
            if call is None:
                continue
            if block.id != call_id(call):
                changes["id"] = call_id(call)
            if call.invalid or block.input != call.arguments:
                changes["input"] = wire_input(call)
        elif _is_server_call(block.type) and as_dict(block.input).keys() == {"invalid_json"}:
            continue
        if block.caller is not msgspec.UNSET and is_default_caller(block.caller):
            changes["caller"] = None
        parts.append((block, _patch(raw, changes) if changes else raw))
    if not waiting:
        _trim_end(parts)
    return [raw for _, raw in parts] + [_json(_call_part(call, names)) for call in waiting]


def _trim_end(parts: list[tuple[_BlockShape, bytes]]) -> None:
    """Remove thinking and white space from the end of an answer, where the API refuses them."""
    while parts and parts[-1][0].type in _THINKING:
        parts.pop()
    if parts and parts[-1][0].type == "text" and parts[-1][0].text[-1].isspace():
        last, raw = parts[-1]
        parts[-1] = last, _patch(raw, {"text": last.text.rstrip()})


def _is_server_call(kind: Any) -> bool:
    """Return True for `server_tool_use`, `mcp_tool_use` and their like."""
    return isinstance(kind, str) and kind.endswith("_tool_use")


def unpaired(fragment: bytes) -> tuple[set[str], set[str]]:
    """Return the ids of calls of the provider's own tools without a result in this answer, and of
    results without a call in it."""
    calls: set[str] = set()
    results: set[str] = set()
    if b'_tool_use"' in fragment or b'_tool_result"' in fragment:
        for block in _block_shapes.decode(fragment[len(ASSISTANT) - 1 : -1]):
            (calls if _is_server_call(block.type) else results).update(_ids_of(block))
    return calls - results, results - calls


def _ids_of(block: _BlockShape) -> set[str]:
    """Return the id of a call of the provider's own tools, or of the call of a result."""
    if _is_server_call(block.type):
        return {str(block.id)}
    is_result = isinstance(block.type, str) and block.type.endswith("_tool_result")
    return {str(block.tool_use_id)} if is_result else set()


def without_thinking(fragment: bytes) -> bytes:
    """Return an answer without its thinking, or any other message unchanged."""
    if not fragment.startswith(ASSISTANT) or b'thinking"' not in fragment:
        return fragment
    blocks = fragment[len(ASSISTANT) - 1 : -1]
    raws = cast("list[bytes]", _raw_blocks.decode(blocks))
    remaining = [
        raw
        for block, raw in zip(_block_shapes.decode(blocks), raws, strict=True)
        if block.type not in _THINKING
    ]
    return ASSISTANT + b",".join(remaining) + b"]}" if remaining else fragment


def without_parts(fragment: bytes, ids: set[str]) -> bytes:
    """Return an answer without the calls of the provider's own tools of these ids and without their
    results; b"" if nothing is left."""
    blocks = fragment[len(ASSISTANT) - 1 : -1]
    raws = cast("list[bytes]", _raw_blocks.decode(blocks))
    parts: list[tuple[_BlockShape, bytes]] = []
    for block, raw in zip(_block_shapes.decode(blocks), raws, strict=True):
        if block.type == "tool_use":
            # A call by code that is left out becomes one of the model itself.
            is_orphan = str(as_dict(block.caller).get("tool_id")) in ids
            parts.append((block, _patch(raw, {"caller": None}) if is_orphan else raw))
        elif not ids & _ids_of(block):
            parts.append((block, raw))
    _trim_end(parts)
    return ASSISTANT + b",".join([raw for _, raw in parts]) + b"]}" if parts else b""


def _take_call(waiting: list[ToolCall], id: Any) -> ToolCall | None:
    for place, call in enumerate(waiting):
        if call.provider_id == id or not call.provider_id:
            return waiting.pop(place)
    return None


def _patch(raw: bytes, changes: Mapping[str, Any]) -> bytes:
    block: dict[str, Any] = {**_decoder.decode(raw), **changes}
    if "caller" in changes:
        del block["caller"]
    return _json(block)
