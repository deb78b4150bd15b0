"""The files that the calls of a run changed, as one diff: the unified diffs of its results, put
together."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

import msgspec

from holdfast.content import Data

_HUNK = re.compile(r"@@+ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_NO_NEWLINE = "\\ No newline at end of file"
_CONTEXT = 3  # unchanged lines around a change
_ENDLESS = 1 << 40  # lines: the length of a file that no diff has shown
_MAX_LINES = 20_000  # of a file's changes, above which they are shown one after the other


class ChangedFile(Data, frozen=True):
    """The change of a file by one or more calls, named by their events `seqs`.

    `diff` is a unified diff of the file before the first and after the last of them. The diffs may
    not follow from each other, because something else changed the file meanwhile or one is cut.
    Then `composed` is False and `diff` has them one after the other.
    """

    path: str
    diff: str
    added: int = 0
    removed: int = 0
    composed: bool = True
    seqs: tuple[int, ...] = ()


class _Line(msgspec.Struct):
    """A known line of a file; `old` is False for an added one, `new` for a removed one."""

    text: str
    old: bool = True
    new: bool = True


class _Gap(msgspec.Struct):
    """Lines that no diff has shown, and which stay unchanged."""

    lines: int


_Piece = _Line | _Gap
# The lines of one hunk, each with its sign, and the index of the first one in the file before.
_Hunk = tuple[int, list[str]]


class _Mismatch(Exception):
    """A diff that does not fit the file that the earlier ones left."""


class DiffCollector:
    """Collects the diffs of results, in their order. `max_characters` bounds the kept text; files
    whose diffs are beyond it are named without a diff."""

    def __init__(self, max_characters: int = 4_000_000) -> None:
        self._characters_left = max_characters
        self._diffs: dict[str, list[tuple[int, str]]] = {}

    def add(self, seq: int, diff: str) -> None:
        """Add the diff of the result with this seq, of one or more files."""
        for path, text in _by_file(diff):
            self._characters_left -= len(text)
            self._diffs.setdefault(path, []).append(
                (seq, text if self._characters_left >= 0 else "")
            )

    def changes(self) -> tuple[ChangedFile, ...]:
        """Return the change of each file, without files that ended unchanged."""
        changes = (_change(path, diffs) for path, diffs in sorted(self._diffs.items()))
        return tuple([change for change in changes if change is not None])


def _by_file(diff: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the lines below the header of each file of a unified diff."""
    path, lines = "", list[str]()
    left_old = left_new = 0  # lines of the hunk: a removed line may look like a header
    before = ""
    for line in diff.split("\n"):
        inside = left_old > 0 or left_new > 0
        if inside:
            left_old -= line[:1] in (" ", "-", "")
            left_new -= line[:1] in (" ", "+", "")
        elif header := _HUNK.match(line):
            left_old, left_new = int(header[2] or 1), int(header[4] or 1)
        elif line.startswith("--- "):
            before = line[4:]
            continue
        elif line.startswith("+++ "):
            if path:
                yield path, "\n".join(lines)
            path, lines = _name(before, line[4:]), []
            continue
        lines.append(line)
    if path:
        yield path, "\n".join(lines)


def _name(before: str, after: str) -> str:
    """Return the path of a file by the two lines of its header; git's have prefixes."""
    before, after = before.partition("\t")[0], after.partition("\t")[0]
    if after == "/dev/null":
        return before.removeprefix("a/")
    if before == "/dev/null" or (before.startswith("a/") and after.startswith("b/")):
        return after.removeprefix("b/")
    return after


def _change(path: str, diffs: Sequence[tuple[int, str]]) -> ChangedFile | None:
    seqs = tuple([seq for seq, _ in diffs])
    try:
        pieces: list[_Piece] | None = None
        for _, text in diffs:
            pieces = _applied(pieces, _hunks(text))
        hunks = list(_hunk_lines(pieces or []))
        if not hunks:
            return None
        composed = True
    except _Mismatch:
        hunks = [f"# event {seq}\n{text.rstrip()}" for seq, text in diffs if text]
        hunks = hunks or ["(the diffs are left out, for their size)"]
        composed = False
    text = "\n".join(hunks)
    added = len(re.findall(r"^\+", text, re.MULTILINE))
    removed = len(re.findall(r"^-", text, re.MULTILINE))
    return ChangedFile(path, text, added, removed, composed, seqs)


def _hunks(text: str) -> list[_Hunk]:
    """Return the hunks of a file's diff. Raises `_Mismatch` for one that is cut or empty."""
    hunks: list[_Hunk] = []
    left_old = left_new = 0
    for line in text.rstrip("\n").split("\n"):
        if line == _NO_NEWLINE and hunks and hunks[-1][1]:
            hunks[-1][1][-1] += f"\n{line}"
        elif left_old > 0 or left_new > 0:
            sign = line[:1] or " "
            if sign not in (" ", "-", "+"):
                raise _Mismatch
            left_old -= sign != "+"
            left_new -= sign != "-"
            hunks[-1][1].append(line or " ")
        elif header := _HUNK.match(line):
            left_old, left_new = int(header[2] or 1), int(header[4] or 1)
            hunks.append((max(0, int(header[1]) - (left_old > 0)), []))
        else:
            raise _Mismatch
    if left_old or left_new or not hunks:
        raise _Mismatch
    return hunks


def _applied(pieces: list[_Piece] | None, hunks: Sequence[_Hunk]) -> list[_Piece]:
    """Return the file after these hunks. `pieces` is the file before, None if it is not known.
    Raises `_Mismatch`."""
    if pieces is None:
        created = not any(line[0] != "+" for _, lines in hunks for line in lines)
        pieces = [] if created and hunks[0][0] == 0 else [_Gap(_ENDLESS)]
    result: list[_Piece] = []
    rest = _Reader(pieces)
    for start, lines in hunks:
        result += rest.up_to(start)
        for line in lines:
            if line[0] == "+":
                result.append(_Line(line[1:], old=False))
                continue
            result += rest.removed()
            line_before = rest.next(line[1:])
            if line[0] == " ":
                result.append(line_before)
            elif line_before.old:
                result.append(_Line(line_before.text, new=False))
    result += rest.rest()
    if len(result) > _MAX_LINES:
        raise _Mismatch
    return result


class _Reader:
    """Reads a file's pieces from its beginning."""

    def __init__(self, pieces: list[_Piece]) -> None:
        self._pieces = pieces
        self._at = 0  # the index of the next piece
        self._used = 0  # lines of that piece, a gap, that were read
        self._line = 0  # lines of the file that were read

    def up_to(self, line: int) -> list[_Piece]:
        """Return the pieces before the line with this index. Raises `_Mismatch`."""
        pieces: list[_Piece] = []
        while self._line < line:
            if self._at >= len(self._pieces):
                raise _Mismatch
            piece = self._pieces[self._at]
            if isinstance(piece, _Gap):
                count = min(piece.lines - self._used, line - self._line)
                pieces.append(_Gap(count))
                self._take(count, piece)
            else:
                self._at += 1
                self._line += piece.new
                pieces.append(piece)
        if self._line > line:
            raise _Mismatch
        return pieces

    def removed(self) -> list[_Piece]:
        """Return the removed lines that come next."""
        pieces: list[_Piece] = []
        while self._at < len(self._pieces):
            piece = self._pieces[self._at]
            if isinstance(piece, _Gap) or piece.new:
                break
            pieces.append(piece)
            self._at += 1
        return pieces

    def next(self, text: str) -> _Line:
        """Return the next line. Raises `_Mismatch` unless it has that text, or was not known."""
        if self._at >= len(self._pieces):
            raise _Mismatch
        piece = self._pieces[self._at]
        if isinstance(piece, _Gap):
            self._take(1, piece)
            return _Line(text)
        if piece.text != text:
            raise _Mismatch
        self._at += 1
        self._line += 1
        return piece

    def rest(self) -> list[_Piece]:
        pieces = self._pieces[self._at :]
        if self._used and pieces and isinstance(pieces[0], _Gap):
            pieces[0] = _Gap(pieces[0].lines - self._used)
        return pieces

    def _take(self, count: int, gap: _Gap) -> None:
        self._used += count
        self._line += count
        if self._used == gap.lines:
            self._at, self._used = self._at + 1, 0


def _hunk_lines(pieces: Sequence[_Piece]) -> Iterator[str]:
    """Yield the hunks of a file's change."""
    lines: list[tuple[str, str]] = []  # sign and text of neighbouring known lines
    old = new = 0  # the numbers of the lines before them
    for piece in [*pieces, _Gap(0)]:
        if not isinstance(piece, _Gap):
            lines.append(
                (" " if piece.old and piece.new else "-" if piece.old else "+", piece.text)
            )
            continue
        yield from _hunks_of(_fewest(lines), old, new)
        old += sum(sign != "+" for sign, _ in lines) + piece.lines
        new += sum(sign != "-" for sign, _ in lines) + piece.lines
        lines = []


def _fewest(lines: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the same change with no line that is removed and added again."""
    before = [text for sign, text in lines if sign != "+"]
    if before == [text for sign, text in lines if sign != "-"]:
        return [(" ", text) for text in before]
    minimal: list[tuple[str, str]] = []
    at = 0
    while at < len(lines):
        if lines[at][0] == " ":
            minimal.append(lines[at])
            at += 1
            continue
        end = at
        while end < len(lines) and lines[end][0] != " ":
            end += 1
        removed = [text for sign, text in lines[at:end] if sign == "-"]
        added = [text for sign, text in lines[at:end] if sign == "+"]
        matcher = SequenceMatcher(None, removed, added, autojunk=False)
        for kind, first, last, other, until in matcher.get_opcodes():
            if kind == "equal":
                minimal += [(" ", text) for text in removed[first:last]]
                continue
            minimal += [("-", text) for text in removed[first:last]]
            minimal += [("+", text) for text in added[other:until]]
        at = end
    return minimal


def _hunks_of(lines: Sequence[tuple[str, str]], old: int, new: int) -> Iterator[str]:
    """Yield the hunks of neighbouring lines that follow `old` and `new` lines."""
    change_places = [at for at, (sign, _) in enumerate(lines) if sign != " "]
    at = 0
    while at < len(change_places):
        last = at
        while (
            last + 1 < len(change_places)
            and change_places[last + 1] - change_places[last] <= 2 * _CONTEXT + 1
        ):
            last += 1
        first, end = max(0, change_places[at] - _CONTEXT), change_places[last] + _CONTEXT + 1
        before, part = lines[:first], lines[first:end]
        from_old = old + sum(sign != "+" for sign, _ in before)
        from_new = new + sum(sign != "-" for sign, _ in before)
        olds = sum(sign != "+" for sign, _ in part)
        news = sum(sign != "-" for sign, _ in part)
        yield (
            f"@@ -{from_old + (olds > 0)},{olds} +{from_new + (news > 0)},{news} @@\n"
            + "\n".join([f"{sign}{text}" for sign, text in part])
        )
        at = last + 1
