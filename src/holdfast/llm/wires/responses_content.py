"""Content blocks in requests of the Responses API: the parts of a message, and the output of a
call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.content import Content, FileContent, ImageContent, TextContent, ToolResult
from holdfast.llm.wires import content_parts
from holdfast.llm.wires import openai_common as common
from holdfast.llm.wires.content_parts import Media, Part

_WEB = ("https://", "http://", "data:")  # the addresses that the API fetches


def part(block: Content) -> Part:
    """Return a block as a part of a message or of an output.

    Pictures and files are sent by their bytes, their address or their id. The API takes no sound
    and no video; a note replaces them.
    """
    picture = image(block)
    if picture is not None:
        return {"type": "input_image", **picture, "detail": "auto"}
    file = _file(block)
    return {"type": "input_file", **file} if file else text_part(content_parts.as_text(block))


def text_part(text: str) -> Part:
    return {"type": "input_text", "text": text}


def image(block: Content) -> Part | None:
    """Return the address or the id of a picture under the API's keys; None for another block."""
    media = content_parts.media_of(block)
    if media is None or not (media.kind == "image" or isinstance(block, ImageContent)):
        return None
    if media.data:
        kind = content_parts.written_type(block, media)
        return {"image_url": f"data:{kind};base64,{media.data}"}
    return _reference(media, "image_url")


def _reference(media: Media, address: str) -> Part | None:
    if media.file_id:
        return {"file_id": media.file_id}
    return {address: media.url} if media.url.startswith(_WEB) else None


def _file(block: Content) -> Part | None:
    if not isinstance(block, FileContent):
        return common.document(block)
    media = content_parts.media_of(block)
    if media is None or media.kind in ("audio", "video"):
        return None
    if media.data:
        suffix = media.mime_type.rpartition("/")[2]
        return {"filename": media.name or f"file.{suffix}", "file_data": media.data_url}
    return _reference(media, "file_url")


def output(result: ToolResult) -> str | list[Part]:
    """Return a call's output: its text, or its parts if it has pictures or files."""
    if text := content_parts.only_text(result):
        return text
    text = content_parts.result_text(result)
    if all(type(block) is TextContent for block in result.content):
        return text
    parts = [part(block) for block in result.content]
    if all(item["type"] == "input_text" for item in parts):
        return text
    if result.is_error and not result.text:
        failure = ToolResult((), is_error=True, error=result.error)
        parts.insert(0, text_part(content_parts.result_text(failure)))
    return parts


def pictures(content: Sequence[Content]) -> list[dict[str, Any]]:
    """Return the address or the id of each picture."""
    return [picture for block in content if (picture := image(block)) is not None]
