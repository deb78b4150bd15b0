"""Markdown of a streamed answer on a terminal, block by block."""

from __future__ import annotations

import io
import re
from collections.abc import Callable

# A fence of a code block opens and closes with at least three of one sign (CommonMark 4.5).
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_TRAILING = re.compile(r"[ \t]+((?:\x1b\[[0-9;]*m)*)$", re.MULTILINE)


class MarkdownStream:
    """Renders the blocks of an answer as soon as each is complete; `rest` is the raw text of the
    incomplete one. Without the package rich, the text comes unchanged, line by line."""

    def __init__(self, width: Callable[[], int], colour: bool) -> None:
        self._width = width
        self._colour = colour
        self.rest = ""
        self._scanned = 0  # characters of `rest` in lines that were looked at
        self._fence = ""  # the fence of the code block that is open
        self._blank = False  # the line before is blank

    def feed(self, text: str) -> str:
        """Add a piece of text; return the blocks that it completes, rendered, "" for none."""
        self.rest += text
        end = self._scan() if "\n" in text else 0
        whole, self.rest = self.rest[:end], self.rest[end:]
        self._scanned -= end
        return self._rendered(whole)

    def finish(self) -> str:
        """Return the last block, rendered, "" for none. The next piece begins another answer."""
        whole, self.rest = self.rest, ""
        self._scanned, self._fence, self._blank = 0, "", False
        return self._rendered(whole)

    def _scan(self) -> int:
        """Return the length of the final blocks, from the new lines. A blank line ends a block
        unless an indented line follows it, or it is in fenced code."""
        end = 0
        last = self.rest.rfind("\n") + 1
        for line in self.rest[self._scanned : last].splitlines(keepends=True):
            fence = _FENCE.match(line)
            if self._fence:
                closes = fence and fence[1].startswith(self._fence)
                if closes and not line.strip().strip(self._fence[0]):
                    self._fence = ""
            else:
                if self._blank and line.strip() and not line[0].isspace():
                    end = self._scanned
                if fence:
                    self._fence = fence[1]
            self._blank = not self._fence and not line.strip()
            self._scanned += len(line)
        return end

    def _rendered(self, text: str) -> str:
        if not text.strip():
            return ""
        try:
            from rich.console import Console
            from rich.markdown import Markdown
        except ImportError:
            return f"{text.rstrip()}\n\n"
        out = io.StringIO()
        colours = "standard" if self._colour else None
        console = Console(
            file=out,
            force_terminal=True,
            color_system=colours,
            width=self._width(),
            legacy_windows=False,
        )
        # Addresses stand in the text: a link whose target is hidden can lead anywhere.
        console.print(Markdown(text, code_theme="ansi_dark", hyperlinks=False))
        ansi_text = _TRAILING.sub(r"\1", out.getvalue()).strip("\n")
        return f"{ansi_text}\n\n"
