"""Results that are too long to be shown whole: the text goes to a file, a preview of it stays."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from uuid import uuid4

import msgspec

from holdfast.content import TextContent, ToolResult
from holdfast.errors import ConfigurationError

_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")


class Overflow:
    """Limits in characters by patterns of tool names (the tightest that fits counts), and the folder for what goes over them.

    A conversation has `Agent(output_limit=)`, which keeps whole outputs in its store; this is for a `ToolManager` by itself.
    """

    def __init__(self, limits: Mapping[str, int], folder: str | Path | None) -> None:
        for pattern, limit in limits.items():
            if not isinstance(limit, int) or isinstance(limit, bool) or limit < 200:  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
                raise ConfigurationError(f"result_limit takes a number of characters from 200 for {pattern!r}, not {limit!r}.")
        if limits and folder is None:
            raise ConfigurationError("result_limit needs result_dir, a folder for what goes over it.")
        self._limits = dict(limits)
        self._folder = Path() if folder is None else Path(folder)

    def shown(self, name: str, call_id: str, result: ToolResult) -> ToolResult:
        """The result, its long texts in files. A file that cannot be written costs the rest of the text, not the result."""
        fitting = [limit for pattern, limit in self._limits.items() if fnmatchcase(name, pattern)]
        if not fitting or all(not isinstance(block, TextContent) or len(block.text) <= min(fitting) for block in result.content):
            return result
        limit = min(fitting)
        content = tuple(
            TextContent(self._cut(name, call_id, block.text, limit))
            if isinstance(block, TextContent) and len(block.text) > limit
            else block
            for block in result.content
        )
        return msgspec.structs.replace(result, content=content)

    def _cut(self, name: str, call_id: str, text: str, limit: int) -> str:
        path = self._folder / f"{_UNSAFE.sub('_', f'{name}-{call_id}' if call_id else name)[:100]}-{uuid4().hex[:8]}.txt"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", errors="surrogatepass")
            where = f"the whole text is in {path}"
        except OSError as error:
            where = f"the rest is lost: {path} cannot be written ({error.strerror})"
        end = limit // 4
        return f"{text[: limit - end]}\n\n[... {len(text) - limit:,} of {len(text):,} characters left out; {where} ...]\n\n{text[-end:]}"
