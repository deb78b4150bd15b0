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
    one that is not. Without the package rich, the text comes as it is, line by line."""

    def __init__(self, width: Callable[[], int], colour: bool) -> None:
        self._width = width
        self._colour = colour
        self.rest = ""

    def feed(self, text: str) -> str:
        """Add a piece of text; return the blocks that it completes, rendered, "" for none."""
        self.rest += text
        end = _complete(self.rest)
        whole, self.rest = self.rest[:end], self.rest[end:]
        return self._rendered(whole)

    def finish(self) -> str:
        """Return the last block, rendered, "" for none. The next piece begins another answer."""
        whole, self.rest = self.rest, ""
        return self._rendered(whole)

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
        shown = _TRAILING.sub(r"\1", out.getvalue()).strip("\n")
        return f"{shown}\n\n"


def _complete(text: str) -> int:
    """Return the length of the blocks at the start of `text` that can change no more: a blank line
    ends a block unless an indented line follows it, or it is in a fenced code block."""
    end, at, fence, blank = 0, 0, "", False
    for line in text.splitlines(keepends=True):
        if not line.endswith("\n"):
            break
        found = _FENCE.match(line)
        if fence:
            if found and found[1].startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
        else:
            if blank and line.strip() and not line[0].isspace():
                end = at
            if found:
                fence = found[1]
        blank = not fence and not line.strip()
        at += len(line)
    return end
