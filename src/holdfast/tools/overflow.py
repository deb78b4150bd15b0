"""Results that are too long for a model: the whole text goes to a file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec

from holdfast.content import Content, EmbeddedResource, TextContent, ToolResult
from holdfast.errors import ConfigurationError
from holdfast.tools.arguments import is_whole, wrong
from holdfast.tools.patterns import name_fits
from holdfast.tools.results import OUTPUT

_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")


class Overflow:
    """Limits in characters by patterns of tool names, and the folder for results over the limit.

    The smallest matching limit applies. It holds for all texts of a result together (including
    those of embedded resources), and for the structured content as JSON. A conversation has
    `Agent(output_limit=)`, which keeps whole outputs in its store; this class serves a
    `ToolManager` without a conversation.
    """

    def __init__(self, limits: Mapping[str, int], folder: str | Path | None) -> None:
        for pattern, limit in limits.items():
            if not is_whole(limit, 200):
                form = f"a number of characters from 200 for {pattern!r}"
                raise wrong("result_limit", form, limit)
        if limits and folder is None:
            raise ConfigurationError(
                "result_limit needs result_dir, a folder for the texts over the limit."
            )
        self._limits = dict(limits)
        self._folder = Path() if folder is None else Path(folder)

    def shown(self, name: str, call_id: str, result: ToolResult) -> ToolResult:
        """Return the result with long parts moved to files.

        Long texts become one text without its middle. Long structured content becomes `{"note":
        <place of the file>}`. If a file cannot be written, its content is lost, but the result
        is not.
        """
        limits = [limit for pattern, limit in self._limits.items() if name_fits(name, pattern)]
        if not limits or result.meta.get(OUTPUT) is True:
            return result
        limit = min(limits)
        stem = _UNSAFE.sub("_", f"{name}-{call_id}" if call_id else name)[:100]
        stem = f"{stem}-{uuid4().hex[:8]}"
        changes: dict[str, Any] = {}
        texts = [text for block in result.content if (text := _text(block)) is not None]
        if sum(map(len, texts)) > limit:
            text = "\n".join(texts)
            place = self._write_file(f"{stem}.txt", text, "text")
            whole = TextContent(_cut(text, limit, place))
            # The blocks without text, with one text at the position of the first.
            first = next(
                index for index, one in enumerate(result.content) if _text(one) is not None
            )
            rest = [block for block in result.content[first:] if _text(block) is None]
            changes["content"] = (*result.content[:first], whole, *rest)
        data = _json(result.structured_content)
        if len(data) > limit:
            place = self._write_file(f"{stem}.json", data, "JSON")
            note = f"{len(data):,} characters of JSON are left out: {place}."
            changes["structured_content"] = {"note": note}
        if result.error is not None and len(result.error.message) > limit:
            message = _cut(result.error.message, limit, "see the text of the result")
            changes["error"] = msgspec.structs.replace(result.error, message=message)
        return msgspec.structs.replace(result, **changes) if changes else result

    def _write_file(self, name: str, text: str, what: str) -> str:
        path = self._folder / name
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", errors="surrogatepass")
        except OSError as error:
            return f"the rest is lost: {path} cannot be written ({error.strerror})"
        return f"the whole {what} is in {path}"


def _text(block: Content) -> str | None:
    if isinstance(block, TextContent):
        return block.text
    text = block.resource.get("text") if isinstance(block, EmbeddedResource) else None
    return text if isinstance(text, str) else None


def _json(data: Any) -> str:
    """Return the JSON of `data`; "" for None and for values that JSON cannot represent."""
    try:
        return "" if data is None else msgspec.json.encode(data).decode()
    except (TypeError, ValueError):
        return ""


def _cut(text: str, limit: int, where: str) -> str:
    end = limit // 4
    return (
        f"{text[: limit - end]}\n\n[... {len(text) - limit:,} of {len(text):,} characters left out;"
        f" {where} ...]\n\n{text[-end:]}"
    )
