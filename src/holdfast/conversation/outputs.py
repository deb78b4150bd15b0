"""Large outputs: the store keeps them whole, once. The journal and the model get their beginning
and end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from holdfast.content import Content, TextContent, ToolResult
from holdfast.errors import NotFound
from holdfast.events import AnyEvent, ToolCallFinished
from holdfast.store import BLOBS, blob_id

_HEAD = 0.7  # the beginning's part of the shown text, which says more than the end


def no_output(call_id: str) -> NotFound:
    """Return the error for a call without a result."""
    return NotFound(f"get_output: call {call_id!r} has no result.", "call", call_id)


def trim_result(result: ToolResult, limit: int) -> tuple[ToolResult, list[bytes]]:
    """Return a result with at most `limit` characters in each text, and the bytes to keep.

    `meta[BLOBS]` lists the name and origin of each blob.
    """
    if BLOBS in result.meta:
        # only Holdfast may set it: a tool could name another conversation's blobs
        result = replace(
            result, meta={key: value for key, value in result.meta.items() if key != BLOBS}
        )
    structured = result.structured_content
    data = b"" if structured is None else msgspec.json.encode(structured)
    if len(data) <= limit and not any(
        type(block) is TextContent and len(block.text) > limit for block in result.content
    ):
        return result, []
    originals: list[bytes] = []
    blobs: list[dict[str, Any]] = []

    def keep(whole: bytes, of: str) -> str:
        originals.append(whole)
        blobs.append({"id": blob_id(whole), "of": of, "bytes": len(whole)})
        return blobs[-1]["id"]

    content: list[Content] = []
    for index, block in enumerate(result.content):
        if type(block) is TextContent and len(text := block.text) > limit:
            id = keep(text.encode(), f"content.{index}")
            head = int(limit * _HEAD)
            excess = len(text) - limit
            note = (
                f"\n... {excess:,} of {len(text):,} characters left out here; the whole is kept as"
                f" {id} ...\n"
            )
            block = TextContent(text[:head] + note + text[len(text) - (limit - head) :])
        content.append(block)
    if len(data) > limit:
        keep(data, "structuredContent")
        structured = None
    meta = {**result.meta, BLOBS: blobs}
    return (
        replace(result, content=tuple(content), structured_content=structured, meta=meta),
        originals,
    )


def blobs_of(event: AnyEvent) -> list[str]:
    """Return the names of the blobs that an event refers to."""
    entries: Any = event.result.meta.get(BLOBS) if isinstance(event, ToolCallFinished) else None
    return (
        [entry["id"] for entry in cast("list[dict[str, Any]]", entries)]
        if isinstance(entries, list)
        else []
    )


def whole(result: ToolResult, blob: Callable[[str], bytes]) -> ToolResult:
    """Return the result before `trim_result`; `blob(id)` returns the bytes of that name."""
    entries: Any = result.meta.get(BLOBS)
    if not isinstance(entries, list):
        return result
    content, structured = list(result.content), result.structured_content
    for entry in cast("list[dict[str, Any]]", entries):
        data = blob(entry["id"])
        if entry["of"] == "structuredContent":
            structured = msgspec.json.decode(data)
        else:
            content[int(entry["of"].split(".")[1])] = TextContent(data.decode())
    meta = {key: value for key, value in result.meta.items() if key != BLOBS}
    return replace(result, content=tuple(content), structured_content=structured, meta=meta)
