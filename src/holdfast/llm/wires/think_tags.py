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

    __slots__ = ("_pending", "_split", "_state")

    def __init__(self) -> None:
        self._state: Literal["begin", "thinking", "text"] = "begin"
        self._pending = ""  # text that may belong to a tag, or white space before one
        self._split = False  # True after the first block

    def feed(self, text: str) -> list[Piece]:
        """Return the pieces that are certain now."""
        if self._state == "text":
            return [("text", text)] if text else []
        pieces: list[Piece] = []
        pending = self._pending + text
        while pending:
            if self._state == "begin":
                start = pending.lstrip()
                if start.startswith(OPEN):
                    pending, self._state, self._split = start[len(OPEN) :], "thinking", True
                    continue
                if OPEN.startswith(start):  # a tag may be arriving, or white space before one
                    break
                self._state = "text"
                pieces.append(("text", start if self._split else pending))
                pending = ""
            else:
                before, close, after = pending.partition(CLOSE)
                if not close:
                    tag_length = _partial_close(pending)
                    before, after = (
                        pending[: len(pending) - tag_length],
                        pending[len(pending) - tag_length :],
                    )
                if before:
                    pieces.append(("reasoning", before))
                pending = after
                if not close:
                    break
                self._state = "begin"
        self._pending = pending
        return pieces

    def rest(self) -> list[Piece]:
        """Return the last piece, after the text has ended."""
        pending, self._pending = self._pending, ""
        if self._state == "begin" and self._split:
            pending = pending.lstrip()
        kind: Literal["text", "reasoning"] = "reasoning" if self._state == "thinking" else "text"
        if self._state == "begin":
            self._state = "text"
        return [(kind, pending)] if pending else []


def _partial_close(text: str) -> int:
    """Return the length of the longest end of `text` that begins a closing tag."""
    return next((n for n in range(len(CLOSE) - 1, 0, -1) if text.endswith(CLOSE[:n])), 0)


def split(text: str) -> tuple[str, str]:
    """Return the reasoning and the answer in a text."""
    splitter = ThinkSplitter()
    pieces = splitter.feed(text) + splitter.rest()
    reasoning = "".join([piece for kind, piece in pieces if kind == "reasoning"])
    return reasoning, "".join([piece for kind, piece in pieces if kind == "text"])
