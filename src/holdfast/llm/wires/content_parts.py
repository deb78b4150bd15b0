"""Content blocks in requests: as text where a place accepts only that, and as encoded media."""

from __future__ import annotations

from binascii import b2a_base64
from typing import Any

import msgspec

from holdfast.content import (
    AudioContent,
    Content,
    EmbeddedResource,
    FileContent,
    ImageContent,
    ResourceLink,
    TextContent,
    ToolResult,
)

Part = dict[str, Any]


class Media(msgspec.Struct, frozen=True):
    """A block that is not text: exactly one of `data` (base64), `url` and `file_id` is set.

    `kind` is image, audio, video or document. `mime_type` is in lower case, without parameters;
    "" if it is unknown.
    """

    kind: str
    mime_type: str
    data: str = ""
    url: str = ""
    file_id: str = ""
    name: str = ""

    @property
    def data_url(self) -> str:
        """The data as a `data:` address."""
        return f"data:{self.mime_type};base64,{self.data}"


def media_of(block: Content) -> Media | None:
    """Return a picture, sound, video or document of a block, or None if it has none."""
    if isinstance(block, TextContent | ResourceLink):
        return None
    if isinstance(block, FileContent):
        data = b2a_base64(block.data, newline=False).decode() if block.data else ""
        kind = _mime_type(block.mime_type)
        return Media(block.kind, kind, data, block.url, block.file_id, block.name)
    kind, data = media(block)
    if not data:
        return None
    kind = _mime_type(kind)
    family = kind.partition("/")[0]
    return Media(family if family in ("image", "audio", "video") else "document", kind, data)


def _mime_type(kind: str) -> str:
    kind = kind.partition(";")[0].strip().lower()
    return "image/jpeg" if kind == "image/jpg" else kind


def media(block: Content) -> tuple[str, str]:
    """Return the MIME type and the base64 data of a block, or ("", "") without any."""
    if isinstance(block, ImageContent | AudioContent):
        return block.mime_type, b2a_base64(block.data, newline=False).decode()
    if isinstance(block, EmbeddedResource) and isinstance(block.resource.get("blob"), str):
        return str(block.resource.get("mimeType") or ""), block.resource["blob"]
    return "", ""


def as_text(block: Content, images: bool = False) -> str:
    """Return a block as text. A picture gives "", because pictures are sent separately; with
    `images` it gives a text in its place."""
    match block:
        case TextContent():
            return block.text
        case ImageContent() if not images:
            return ""
        case ImageContent() | AudioContent():
            return f"[{block.mime_type}, {len(block.data)} bytes, not shown]"
        case FileContent():
            named = block.name or block.url or block.file_id
            return f"[{block.mime_type or 'file'} {named}, not shown]"
        case ResourceLink():
            return f"[{block.name or 'resource'}: {block.uri}]"
        case EmbeddedResource():
            text = block.resource.get("text")
            uri = block.resource.get("uri", "")
            return text if isinstance(text, str) else f"[resource {uri}, not shown]"


def caption(name: str, call_id: str) -> str:
    return f"Returned by {name} (call {call_id}):" if call_id else f"Returned by {name}:"


def with_mentions(result: ToolResult, kinds: list[str]) -> ToolResult:
    """Return a result that mentions the blocks that are sent after it. `kinds` has the MIME type of
    each such block, and "" for any other. `result_text` counts the pictures itself."""
    content = list(result.content)
    for place, kind in enumerate(kinds):
        if kind and not isinstance(content[place], ImageContent):
            content[place] = TextContent(f"({kind}, shown below)")
    return msgspec.structs.replace(result, content=tuple(content))


def result_text(result: ToolResult) -> str:
    """Return a tool's result as text that is never empty."""
    content = result.content
    if len(content) == 1 and type(content[0]) is TextContent and content[0].text:
        return content[0].text
    texts = [as_text(block) for block in content if not isinstance(block, ImageContent)]
    count = len(content) - len(texts)
    text = "\n".join(texts)
    if not text and not content and result.structured_content is not None:
        text = msgspec.json.encode(result.structured_content).decode()
    if not text and result.is_error:
        message = result.error.message if result.error else ""
        text = f"Error: {message or 'the tool failed without a message.'}"
    if not text:
        text = f"({count} image{'s' if count > 1 else ''}, shown below)" if count else "(no output)"
    return text
