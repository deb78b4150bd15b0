"""Reasoning that models write as text: `<think>...</think>` before the answer."""

from __future__ import annotations

from typing import Literal

OPEN, CLOSE = "<think>", "</think>"

Piece = tuple[Literal["text", "reasoning"], str]


class ThinkSplitter:
    """A splitter of text that arrives in pieces, which may be cut anywhere.

    Only blocks at the beginning count, because later ones may be quotations. White space around
    these blocks belongs to neither side. A block that is never closed is reasoning to its end.
    """

    __slots__ = ("_held", "_split", "_state")

    def __init__(self) -> None:
        self._state: Literal["begin", "thinking", "text"] = "begin"
        self._held = ""  # text that may belong to a tag, or white space before one
        self._split = False  # True after the first block

    def feed(self, text: str) -> list[Piece]:
        """Return the pieces that are certain now."""
        if self._state == "text":
            return [("text", text)] if text else []
        pieces: list[Piece] = []
        held = self._held + text
        while held:
            if self._state == "begin":
                start = held.lstrip()
                if start.startswith(OPEN):
                    held, self._state, self._split = start[len(OPEN) :], "thinking", True
                    continue
                if OPEN.startswith(start):  # a tag may be arriving, or white space before one
                    break
                self._state = "text"
                pieces.append(("text", start if self._split else held))
                held = ""
            else:
                before, close, after = held.partition(CLOSE)
                if not close:
                    kept = _partial_close(held)
                    before, after = held[: len(held) - kept], held[len(held) - kept :]
                if before:
                    pieces.append(("reasoning", before))
                held = after
                if not close:
                    break
                self._state = "begin"
        self._held = held
        return pieces

    def rest(self) -> list[Piece]:
        """Return the last piece, after the text has ended."""
        held, self._held = self._held, ""
        if self._state == "begin" and self._split:
            held = held.lstrip()
        kind: Literal["text", "reasoning"] = "reasoning" if self._state == "thinking" else "text"
        if self._state == "begin":
            self._state = "text"
        return [(kind, held)] if held else []


def _partial_close(text: str) -> int:
    """Return the length of the longest end of `text` that begins a closing tag."""
    return next((n for n in range(len(CLOSE) - 1, 0, -1) if text.endswith(CLOSE[:n])), 0)


def split(text: str) -> tuple[str, str]:
    """Return the reasoning and the answer in a text."""
    splitter = ThinkSplitter()
    pieces = splitter.feed(text) + splitter.rest()
    reasoning = "".join([piece for kind, piece in pieces if kind == "reasoning"])
    return reasoning, "".join([piece for kind, piece in pieces if kind == "text"])
