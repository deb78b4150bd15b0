"""Conversion of content blocks for places in a request that accept fewer kinds of content."""

from __future__ import annotations

from binascii import b2a_base64

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

_json = msgspec.json.Encoder().encode


def base64(data: bytes) -> str:
    """Return bytes in standard base64, without line breaks."""
    return b2a_base64(data, newline=False).decode()


def as_text(block: Content) -> str:
    """Return a block as text. A picture gives "", because pictures are sent separately."""
    match block:
        case TextContent():
            return block.text
        case ImageContent():
            return ""
        case AudioContent():
            return f"[{block.mime_type}, {len(block.data)} bytes, not shown]"
        case ResourceLink():
            return f"[{block.name or 'resource'}: {block.uri}]"
        case EmbeddedResource():
            text = block.resource.get("text")
            return (
                text
                if isinstance(text, str)
                else f"[resource {block.resource.get('uri', '')}, not shown]"
            )


def mention(block: Content, kind: str) -> Content:
    """Return the text that a result contains for a block that is sent after it, given the block's
    MIME type.

    Returns the block itself if `kind` is empty, and for a picture, which `result_text` counts.
    """
    return (
        TextContent(f"({kind}, shown below)")
        if kind and not isinstance(block, ImageContent)
        else block
    )


def result_text(result: ToolResult, pictures: str = "shown below") -> str:
    """Return a tool's result as text that is never empty. `pictures` says where the result's
    pictures are."""
    texts = [as_text(block) for block in result.content if not isinstance(block, ImageContent)]
    count = len(result.content) - len(texts)
    text = "\n".join(texts)
    if not text and not result.content and result.structured_content is not None:
        text = _json(result.structured_content).decode()
    if not text and result.is_error:
        message = result.error.message if result.error else ""
        text = f"Error: {message or 'the tool failed without a message.'}"
    if not text:
        text = f"({count} image{'s' if count > 1 else ''}, {pictures})" if count else "(no output)"
    return text
