"""Content blocks in requests: as text where a place accepts only that, and as encoded media."""

from __future__ import annotations

from binascii import Error, a2b_base64, b2a_base64
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
from holdfast.llm.files import left_out

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
    """Return a picture, sound, video or document of a block, or None if it has none. A resource of
    text has none: `as_text` returns its text."""
    if isinstance(block, TextContent | ResourceLink):
        return None
    if isinstance(block, FileContent):
        data = b2a_base64(block.data, newline=False).decode() if block.data else ""
        kind = _mime_type(block.mime_type)
        return Media(block.kind, kind, data, block.url, block.file_id, block.name)
    if isinstance(block, EmbeddedResource):
        kind, payload, name = _blob(block)
        if _decoded_text(kind, payload) is not None:
            return None
    else:
        kind, payload, name = _mime_type(block.mime_type), block.data, ""
    if not payload:
        return None
    family = kind.partition("/")[0]
    family = family if family in ("image", "audio", "video") else "document"
    return Media(family, kind, b2a_base64(payload, newline=False).decode(), name=name)


def written_type(block: Content, media: Media) -> str:
    """Return the MIME type of a block as the caller wrote it: requests of old journals have it."""
    if isinstance(block, ImageContent):
        return block.mime_type
    if isinstance(block, EmbeddedResource):
        return str(block.resource.get("mimeType") or "")
    return media.mime_type


def _blob(block: EmbeddedResource) -> tuple[str, bytes, str]:
    """Return the MIME type, the bytes and the file name of a resource; no bytes if it has none or
    if they cannot be read."""
    resource = block.resource
    blob, uri = resource.get("blob"), str(resource.get("uri") or "")
    try:
        data = a2b_base64(blob) if isinstance(blob, str) else b""
    except (Error, ValueError):
        data = b""
    name = uri.partition("?")[0].partition("#")[0].rstrip("/").rpartition("/")[2]
    return _mime_type(str(resource.get("mimeType") or "")), data, name


# MIME types of text besides text/* and the endings +json, +xml and +yaml.
_TEXT_TYPES = {
    *("application/json", "application/xml", "application/yaml", "application/x-yaml"),
    *("application/toml", "application/javascript", "application/x-javascript", "application/sql"),
    *("application/ecmascript", "application/graphql", "application/jsonl", "application/x-ndjson"),
    *("application/x-sh", "application/x-csh", "application/typescript", "application/x-tex"),
}


def is_text_type(mime_type: str) -> bool:
    """Return True for the MIME type of a text, such as text/csv or application/json."""
    kind = _mime_type(mime_type)
    if kind.startswith(("image/", "audio/", "video/")):  # image/svg+xml is a picture
        return False
    return kind.startswith("text/") or kind in _TEXT_TYPES or kind.endswith(_TEXT_ENDINGS)


_TEXT_ENDINGS = ("+json", "+xml", "+yaml")


def _decoded_text(mime_type: str, data: bytes) -> str | None:
    if not data or not is_text_type(mime_type):
        return None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None


def _mime_type(kind: str) -> str:
    kind = kind.partition(";")[0].strip().lower()
    return "image/jpeg" if kind == "image/jpg" else kind


def as_text(block: Content, images: bool = False) -> str:
    """Return a block as text: its own text, or a note on the omitted content.

    A picture gives "", because pictures are sent separately; with `images` it gives a note.
    """
    match block:
        case TextContent():
            return block.text
        case ImageContent() if not images:
            return ""
        case ImageContent() | AudioContent():
            return left_out(block)
        case FileContent():
            text = _decoded_text(block.mime_type, block.data)
            heading = f"[file {block.name}]\n" if block.name else ""
            return left_out(block) if text is None else heading + text
        case ResourceLink():
            return f"[{block.name or 'resource'}: {block.uri}]"
        case EmbeddedResource():
            text = block.resource.get("text")
            if not isinstance(text, str):
                kind, data, _ = _blob(block)
                text = _decoded_text(kind, data)
                if text is None:
                    text = left_out(block) if data else left_out(block, "it has no readable data")
            return text


def caption(name: str, call_id: str) -> str:
    return f"Returned by {name} (call {call_id}):" if call_id else f"Returned by {name}:"


def with_mentions(result: ToolResult, kinds: list[str]) -> ToolResult:
    """Return a result that mentions the blocks that are sent after it. `kinds` has the MIME type of
    each such block, and "" for any other. `result_text` counts the pictures itself."""
    if not any(kinds):
        return result
    content = list(result.content)
    for place, kind in enumerate(kinds):
        if kind and not isinstance(content[place], ImageContent):
            content[place] = TextContent(f"({kind}, shown below)")
    return msgspec.structs.replace(result, content=tuple(content))


def only_text(result: ToolResult) -> str:
    """Return the text of a result that is one text and nothing else, as most are; else ""."""
    content = result.content
    return content[0].text if len(content) == 1 and type(content[0]) is TextContent else ""


def result_text(result: ToolResult) -> str:
    """Return a tool's result as text that is never empty."""
    content = result.content
    if text := only_text(result):
        return text
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
