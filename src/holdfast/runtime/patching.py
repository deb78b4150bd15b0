"""The changes of a patch, applied to the text of a file. For a chunk that does not fit, the error
shows the closest place."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from holdfast.errors import RuntimeFault
from holdfast.patches import Chunk
from holdfast.runtime import edit

_LINES = re.compile(r"[^\n]*\n|[^\n]+")
_MAX_REPORT_LINES = 20
# Punctuation that models write in ASCII: dashes, quotes and spaces.
_PLAIN = str.maketrans(
    {
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-"),
        **dict.fromkeys("\u2018\u2019\u201a\u201b", "'"),
        **dict.fromkeys("\u201c\u201d\u201e\u201f", '"'),
        **dict.fromkeys("\u00a0\u2002\u2003\u2007\u2009\u202f\u3000", " "),
    }
)
# The ways in which lines may differ, from the strictest, and their notes for the model. Differing
# indentation is an error: the added lines would be indented like the patch, not like the file.
_LOOSER: tuple[tuple[Callable[[str], str], str], ...] = (
    (str, ""),
    (str.rstrip, "white space at line ends"),
    (lambda line: line.translate(_PLAIN).rstrip(), "the kind of dashes, quotes and spaces"),
)


class Patched(NamedTuple):
    """A text after a patch, and notes about places that were not found exactly."""

    text: str
    notes: list[str]


def content(chunk: Chunk) -> str:
    """Return the text of an added file."""
    return "".join(line.text + "\n" * line.newline for line in chunk.lines)


def apply(text: str, chunks: tuple[Chunk, ...], label: str) -> Patched:
    """Return a text after the chunks of a patch.

    Context lines keep their bytes, and added lines get the line ends of their place. An end of the
    file that no chunk touches stays unchanged. Raises `RuntimeFault` for a chunk that has no place.
    """
    return _Patching(text, label).apply(chunks)


class _Patching:
    def __init__(self, text: str, label: str) -> None:
        raw: list[str] = _LINES.findall(text)
        ends = [re.search(r"\r?\n?\Z", line) for line in raw]
        self._ends = [end[0] if end else "" for end in ends]
        self._lines = [
            line[: len(line) - len(end)] for line, end in zip(raw, self._ends, strict=True)
        ]
        self._newline = "\r\n" if self._ends.count("\r\n") * 2 > len(raw) else "\n"
        self._label = label
        self._notes: list[str] = []
        self._keys: dict[int, list[str]] = {}
        self._start = 0  # the first line behind the last chunk
        self._shift = 0  # the last chunk's distance from the line that the patch names

    def apply(self, chunks: tuple[Chunk, ...]) -> Patched:
        pairs: list[tuple[str, str]] = []
        next_line = 0
        # Chunks with line numbers may come in any order; those of V4A are in the file's order.
        for chunk in chunks:
            at, old = self._place(chunk)
            pairs += zip(self._lines[next_line:at], self._ends[next_line:at], strict=True)
            next_line = at
            for kind, line, newline in chunk.lines:
                if kind == "+":
                    end = self._ends[next_line - 1] if next_line else "".join(self._ends[:1])
                    pairs.append((line.removesuffix("\r"), (end or self._newline) * newline))
                elif next_line < at + old:
                    if kind == " ":
                        pairs.append((self._lines[next_line], self._ends[next_line]))
                    next_line += 1
            self._start = next_line
        pairs += zip(self._lines[next_line:], self._ends[next_line:], strict=True)
        last = len(pairs) - 1
        whole = [line + (end or self._newline * (n < last)) for n, (line, end) in enumerate(pairs)]
        return Patched("".join(whole), self._notes)

    def _place(self, chunk: Chunk) -> tuple[int, int]:
        """Return the index of a chunk's first line, and the number of its old lines there."""
        start = self._start
        for anchor in chunk.anchors if chunk.guess is None else ():
            matches = self._find([anchor], start) or self._find_stripped(anchor, start)
            if not matches:
                raise RuntimeFault(self._report(chunk, [anchor], "the line after @@"))
            start = matches[0] + 1
        old = chunk.side("-")
        if not old:
            if chunk.guess is not None:
                return min(max(start, chunk.guess + self._shift), len(self._lines)), 0
            return (start if chunk.anchors else len(self._lines)), 0
        places = self._find(old, start)
        if not places and chunk.anchors:  # models repeat the anchor as the first context line
            places = self._find(old, start - 1)
        while not places and old and not old[-1].strip():  # a blank line behind the end of the file
            old = old[:-1]
            places = self._find(old, start) if old else []
        end = len(self._lines) - len(old)
        if chunk.at_end:
            places = [at for at in places if at == end]
        if not places:
            raise RuntimeFault(self._report(chunk, chunk.side("-"), "its old lines"))
        at = self._choose(chunk, places, end)
        if chunk.guess is None and len(places) > 1:
            self._notes.append(
                f"{self._label}: the lines of a chunk are at lines {at + 1} and"
                f" {places[1] + 1}, and perhaps at more; the first place was changed."
            )
        return at, len(old)

    def _choose(self, chunk: Chunk, places: list[int], end: int) -> int:
        if chunk.guess is None:
            return places[0]
        kinds = [line.kind for line in chunk.lines]
        guess = chunk.guess + self._shift
        # A diff with context has none before the first and after the last line of a file only.
        if kinds[0] != " " and kinds[-1] == " " and places[0] == 0:
            at = 0
        elif kinds[-1] != " " and kinds[0] == " " and places[-1] == end:
            at = end
        else:
            at = min(places, key=lambda one: (abs(one - guess), one < guess))
        self._shift += at - guess
        return at

    def _find(self, needle: list[str], start: int) -> list[int]:
        """Return the places from `start` where these lines are, by the strictest rule that finds
        any."""
        for level, (key, note) in enumerate(_LOOSER):
            if level not in self._keys:
                self._keys[level] = [key(line) for line in self._lines]
            lines, keys = self._keys[level], [key(line) for line in needle]
            size, last = len(keys), len(lines) - len(keys)
            places: list[int] = []
            at = start - 1
            while at < last:
                try:
                    at = lines.index(keys[0], at + 1, last + 1)
                except ValueError:
                    break
                if lines[at : at + size] == keys:
                    places.append(at)
            if places:
                if note:
                    self._notes.append(
                        f"{self._label}: from line {places[0] + 1} on, differences to the patch in"
                        f" {note} were ignored."
                    )
                return places
        return []

    def _find_stripped(self, anchor: str, start: int) -> list[int]:
        needle = anchor.translate(_PLAIN).strip()
        lines = enumerate(self._lines[start:], start)
        return [at for at, line in lines if line.translate(_PLAIN).strip() == needle][:1]

    # --- the report ---

    def _report(self, chunk: Chunk, needle: list[str], what: str) -> str:
        head = f"The chunk at line {chunk.number} of the patch does not fit {self._label}: {what}"
        notes = list(self._notes)
        before = self._find(needle, 0)
        new = chunk.side("+")
        new_places = (
            self._find(new, 0)
            if new != needle and any(line.kind == "+" for line in chunk.lines)
            else []
        )
        self._notes = notes
        if before and before[0] < self._start:
            return (
                f"{head} are at line {before[0] + 1}, before the end of the chunk above (line"
                f" {self._start}). Give the chunks in the order of the file's lines. Nothing was"
                " changed."
            )
        if before:
            where = f"line {before[0] + 1}, not at the end of the file"
            return f"{head} are at {where}. Nothing was changed."
        if new_places:
            lines = (
                f"{new_places[0] + 1}-{new_places[0] + len(new)}"
                if len(new) > 1
                else str(new_places[0] + 1)
            )
            return (
                f"{head} were not found. Its new lines are at {lines} already. Nothing was changed."
            )
        return f"{head} were not found. {self._closest(needle)} Nothing was changed."

    def _closest(self, needle: list[str]) -> str:
        stripped = [line.strip() for line in needle]
        while stripped and not stripped[0]:
            stripped, needle = stripped[1:], needle[1:]
        if not any(stripped):
            return "They are only white space."
        at = edit.same_but_white_space(self._lines, stripped)
        if at is None:
            at = edit.nearest(self._lines, stripped)
        if at is None:
            return "Nothing in the file is similar. Read the file first."
        region = self._lines[at : at + len(needle)]
        rows: list[str] = []
        for n, line in enumerate(needle[:_MAX_REPORT_LINES]):
            there = region[n] if n < len(region) else None
            if there == line:
                rows.append(f"{at + n + 1:>6}  {line[:500]}")
            else:
                rows.append(f"{'patch':>6}- {line[:500]!r}")
                rows.append(
                    f"{at + n + 1:>6}+ {there[:500]!r}"
                    if there is not None
                    else "   end of the file"
                )
        if len(needle) > _MAX_REPORT_LINES:
            rows.append(f"       ... {len(needle) - _MAX_REPORT_LINES} more lines")
        body = "\n".join(rows)
        return (
            "The closest place (- the patch's line, + the file's line instead, by"
            f" its number):\n{body}\nCopy the lines exactly as they are in the file."
        )
