"""Content blocks in LangChain's messages (both versions, OpenAI's, Anthropic's) and back."""

from __future__ import annotations

import base64
import binascii
from typing import Any, cast

import msgspec

from holdfast.content import (
    AudioContent,
    Content,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    ToolResult,
)
from holdfast.tools.results import clean


def to_langchain_content(result: ToolResult) -> Any:
    """Return a result's content for a LangChain message: a string, or a list of blocks."""
    if all(isinstance(block, TextContent) for block in result.content):
        return result.text
    return [_block_of(block) for block in result.content]


def _block_of(block: Content) -> dict[str, Any]:
    match block:
        case TextContent(text):
            pass
        case ImageContent(data, mime_type):
            return _media("image", base64.b64encode(data).decode(), mime_type)
        case AudioContent(data, mime_type):  # tool messages have no audio blocks
            return _media("file", base64.b64encode(data).decode(), mime_type)
        case ResourceLink():
            text = f"{block.name}: {block.uri}" if block.name else block.uri
        case EmbeddedResource(resource):
            if "blob" in resource:
                mime_type = resource.get("mimeType") or "application/octet-stream"
                return _media("file", resource["blob"], mime_type)
            text = str(resource.get("text", resource.get("uri", "")))
    return {"type": "text", "text": text}


def _media(kind: str, data: str, mime_type: str) -> dict[str, Any]:
    return {"type": kind, "base64": data, "mime_type": mime_type}


def from_langchain_content(content: Any) -> tuple[Content, ...]:
    """Return a message's content as blocks. A block of an unknown kind becomes its JSON as text."""
    if isinstance(content, str):
        return (TextContent(clean(content)),) if content else ()
    if not isinstance(content, list | tuple):
        return (TextContent(clean(str(content))),)
    return tuple([_content_block(item) for item in cast("list[Any]", content)])


def _content_block(block: Any) -> Content:
    """Convert one block of any of the forms; any other block becomes its JSON."""
    if isinstance(block, str):
        return TextContent(clean(block))
    if isinstance(block, dict):
        found = cast("dict[str, Any]", block)
        if found.get("type") == "text" and isinstance(found.get("text"), str):
            return TextContent(clean(found["text"]))
        media = _media_block(found)
        if media is not None:
            return media
    try:
        return TextContent(clean(msgspec.json.encode(block, enc_hook=str).decode()))
    except Exception:
        return TextContent(clean(str(cast("Any", block))))


def _media_block(block: dict[str, Any]) -> Content | None:
    kind = str(block.get("type", ""))
    source: Any = block.get("source")
    if kind == "image_url":
        outer = block.get("image_url")
        url: Any = (
            cast("dict[str, Any]", outer).get("url", "") if isinstance(outer, dict) else outer
        )
        return _from_url(str(url), "image/png")
    fields: dict[str, Any] = {**block, **source} if isinstance(source, dict) else block
    mime = (
        fields.get("mime_type")
        or fields.get("media_type")
        or {"image": "image/png", "audio": "audio/wav"}.get(kind)
    )
    data = fields.get("base64") or fields.get("data")
    if isinstance(data, str) and kind in ("image", "audio", "file", "document", "video"):
        return _decoded(data, str(mime or "application/octet-stream"))
    if isinstance(fields.get("url"), str):
        return _from_url(fields["url"], None if mime is None else str(mime))
    return None


def _from_url(url: str, mime: str | None) -> Content | None:
    if url.startswith("data:") and ";base64," in url:
        head, data = url[5:].split(";base64,", 1)
        return _decoded(data, head.split(";", 1)[0] or mime or "application/octet-stream")
    return ResourceLink(url, mime_type=mime) if url else None


def _decoded(data: str, mime: str) -> Content | None:
    try:
        raw = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return None
    if mime.startswith("image/"):
        return ImageContent(raw, mime)
    if mime.startswith("audio/"):
        return AudioContent(raw, mime)
    return EmbeddedResource({"uri": f"data:{mime}", "mimeType": mime, "blob": data})
