"""Patches as text: the V4A format (`*** Begin Patch`) and unified diffs, parsed into the changes
of files."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from holdfast.errors import RuntimeFault

_FORMS = """\
A patch is either in this form:
*** Begin Patch
*** Update File: path
@@ a line above the change, such as a function's first
 context line
-removed line
+added line
*** End Patch
(also `*** Add File: path` with lines that begin with +, and `*** Delete File: path`), or a unified
diff with the lines `--- a/path`, `+++ b/path` and `@@ -1,3 +1,4 @@`."""

_MARKER = re.compile(r"\*\*\* (Add|Update|Delete) File:\s*(\S.*)")
_MOVE = re.compile(r"\*\*\* Move(?: File)? to:\s*(\S.*)", re.IGNORECASE)
_BEGIN, _END, _END_OF_FILE = "*** Begin Patch", "*** End Patch", "*** End of File"
_HUNK = re.compile(r"@@+ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_WRAPPER = re.compile(r"(apply_patch\s*)?<<-?\s*['\"]?(\w+)['\"]?|```\w*")
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\"}


class PatchLine(NamedTuple):
    """One line of a chunk: " " for context, "-" for a removed and "+" for an added line. Its text
    may end with a carriage return. `newline` is false for a last line without a line end."""

    kind: str
    text: str
    newline: bool = True


class Chunk(NamedTuple):
    """Neighbouring lines of a file, and their change.

    Args:
        number: The chunk's first line in the patch, from 1.
        lines: Its lines, in order.
        anchors: Lines of the file above the change, from the outermost to the innermost.
        at_end: True if the chunk's last line is the file's last line.
        guess: The index of the chunk's first line in the old file, None if the patch has none.
    """

    number: int
    lines: tuple[PatchLine, ...]
    anchors: tuple[str, ...] = ()
    at_end: bool = False
    guess: int | None = None

    def side(self, kind: str) -> list[str]:
        """Return the lines of the old ("-") or the new ("+") file, without line ends."""
        return [line.text.removesuffix("\r") for line in self.lines if line.kind in (" ", kind)]


class FilePatch(NamedTuple):
    """The change of one file. The lines of an added file are those of its single chunk."""

    kind: Literal["add", "update", "delete"]
    path: str
    chunks: tuple[Chunk, ...] = ()
    move_to: str = ""


def parse(text: str) -> list[FilePatch]:
    """Return the changes of a patch in either format. Raises `RuntimeFault`, whose message names
    the line."""
    lines = text.split("\n")
    first = _next_line(lines, 0)
    wrapper = _WRAPPER.fullmatch(lines[first].strip()) if first < len(lines) else None
    if wrapper is not None:  # a here-document or a Markdown block around the patch
        end = wrapper[2] or "```"
        last = max((n for n, line in enumerate(lines) if line.strip() == end), default=-1)
        lines = lines[: last if last > first else None]
        lines[first] = ""
        first = _next_line(lines, first)
    if first < len(lines) and lines[first].strip() == _BEGIN:
        files = _v4a(lines, first)
    elif any(line.startswith(("--- ", "diff --git ")) for line in lines):
        files = _Unified(lines).files()
    else:
        raise RuntimeFault(f"The patch is in no known format. {_FORMS}")
    if not files:
        raise RuntimeFault(f"The patch changes no file. {_FORMS}")
    return files


def _next_line(lines: list[str], at: int) -> int:
    return next((n for n in range(at, len(lines)) if lines[n].strip()), len(lines))


def _fault(number: int, problem: str) -> RuntimeFault:
    return RuntimeFault(f"Line {number} of the patch {problem} Nothing was changed.")


def _added_chunks(number: int, lines: list[str]) -> tuple[Chunk, ...]:
    return (Chunk(number, tuple([PatchLine("+", line) for line in lines])),)


# --- V4A ---


def _v4a(lines: list[str], begin: int) -> list[FilePatch]:
    end = len(lines) - 1
    while end > begin and not lines[end].strip():
        end -= 1
    if lines[end].strip() != _END:
        raise RuntimeFault(
            f"The last line of the patch is not `{_END}`, so it may have been cut off. Nothing was"
            " changed. Send the whole patch, or several smaller ones."
        )
    if lines[begin].endswith("\r"):  # the line ends of its transport
        lines = [line.removesuffix("\r") for line in lines]
    files: list[FilePatch] = []
    at = begin + 1
    while (at := _next_line(lines, at)) < end:
        marker = _MARKER.fullmatch(lines[at].strip())
        if marker is None:
            raise _fault(
                at + 1,
                f"is {lines[at][:200]!r}, where `*** Update File: path`, `*** Add File: path` or"
                " `*** Delete File: path` is expected.",
            )
        kind, path, number = marker[1], marker[2].strip(), at + 1
        after = at = at + 1
        while after < end and not _MARKER.fullmatch(lines[after].strip()):
            after += 1
        body = lines[at:after]
        if kind == "Update":
            move = _MOVE.fullmatch(body[0].strip()) if body else None
            chunks = _v4a_chunks(body[1:] if move else body, number + (2 if move else 1))
            if not chunks and move is None:
                raise _fault(number, f"updates {path!r}, but no change of it follows.")
            files.append(FilePatch("update", path, chunks, move[1].strip() if move else ""))
        else:
            body = body[: len(body) - _blank_end(body)]
            for n, line in enumerate(body):
                if kind == "Delete" or not line.startswith("+"):
                    rule = "nothing follows a deletion" if kind == "Delete" else "+ is expected"
                    raise _fault(number + 1 + n, f"is {line[:200]!r}, where {rule}.")
            if kind == "Add":
                content = _added_chunks(number + 1, [line[1:] for line in body])
                files.append(FilePatch("add", path, content))
            else:
                files.append(FilePatch("delete", path))
        at = after
    return files


def _blank_end(lines: list[str]) -> int:
    """Return the number of blank lines at the end."""
    return next((n for n, line in enumerate(reversed(lines)) if line.strip()), len(lines))


def _v4a_chunks(lines: list[str], first: int) -> tuple[Chunk, ...]:
    chunks: list[Chunk] = []
    anchors: list[str] = []
    body: list[PatchLine] = []
    guess: int | None = None
    blank = 0  # lines at the end of `body` without even a space: separators, not context

    def finish(number: int, at_end: bool = False) -> None:
        nonlocal guess, blank
        chunk_lines = body[: len(body) - blank]
        if chunk_lines:
            start = number - len(body)
            chunks.append(Chunk(start, tuple(chunk_lines), tuple(anchors), at_end, guess))
            anchors.clear()
        elif anchors or at_end:
            raise _fault(number - 1, "ends a place where no changed line follows.")
        body.clear()
        guess, blank = None, 0

    for number, line in enumerate(lines, first):
        if line.startswith("@@"):
            if body:
                finish(number)
            header = _HUNK.match(line)  # line numbers, as in a unified diff, are a hint
            if header is not None:
                guess = max(0, int(header[1]) - 1)
            if anchor := line[header.end() if header else 2 :].strip():
                anchors.append(anchor)
        elif line.strip() == _END_OF_FILE:
            finish(number, at_end=True)
        elif line[:1] in ("", " ", "+", "-"):
            body.append(PatchLine(line[:1] or " ", line[1:]))
            blank = 0 if line else blank + 1
        else:
            raise _fault(
                number,
                f"is {line[:200]!r}. A line of a chunk begins with a space (context), - (removed)"
                " or + (added); @@ begins the next chunk.",
            )
    finish(first + len(lines))
    return tuple(chunks)


# --- unified diffs ---


class _Unified:
    """The parser of one unified diff, by `diff` or `git diff`."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self._at = 0
        self._files: list[FilePatch] = []

    def files(self) -> list[FilePatch]:
        """Return the changes, in order."""
        while self._at < len(self._lines):
            line = self._lines[self._at]
            if line.startswith("diff --git "):
                self._git_file()
            elif self._is_file_header(self._at):
                self._file({})
            elif line.startswith("@@"):
                raise _fault(self._at + 1, "begins a hunk, but no `--- path` names its file.")
            else:
                self._at += 1
        return self._files

    def _is_file_header(self, at: int) -> bool:
        pair = [line[:4] for line in self._lines[at : at + 2]]
        return pair == ["--- ", "+++ "]

    def _is_header(self, at: int) -> bool:
        line = self._lines[at]
        # `-- ` begins the signature of a patch in a mail.
        starts = ("@@ ", "diff --git ", "Index: ")
        return line.startswith(starts) or line == "-- " or self._is_file_header(at)

    def _git_file(self) -> None:
        start = self._at
        prefixes = ("rename from ", "rename to ", "new file mode ", "deleted file mode ")
        header: dict[str, str] = {}
        self._at += 1
        while self._at < len(self._lines) and not self._is_header(self._at):
            line = self._lines[self._at]
            if line.startswith(("GIT binary patch", "Binary files ", "copy from ")):
                raise _fault(self._at + 1, "is of a binary file or a copy, which no patch can do.")
            for name in prefixes:
                if line.startswith(name):
                    header[name] = _name(line[len(name) :])
            self._at += 1
        mode = header.get("new file mode ") or header.get("deleted file mode ") or "100"
        if not mode.startswith("100"):
            raise _fault(start + 1, "is of a link or a submodule, which no patch can do.")
        if self._at < len(self._lines) and self._is_file_header(self._at):
            self._file(header)
            return
        if "rename from " in header and "rename to " in header:
            old, new = header["rename from "], header["rename to "]
            self._files.append(FilePatch("update", old, (), new))
            return
        # an empty file: only this line has its name, twice
        names = self._lines[start].removeprefix("diff --git ")
        half = _name(names[len(names) // 2 + 1 :]).removeprefix("b/")
        if "new file mode " in header:
            self._files.append(FilePatch("add", half, _added_chunks(start + 1, [])))
        elif "deleted file mode " in header:
            self._files.append(FilePatch("delete", half))
        # otherwise only the mode changes

    def _file(self, header: dict[str, str]) -> None:
        number = self._at + 1
        old, new = (_name(line[4:]) for line in self._lines[self._at : self._at + 2])
        if (old.startswith("a/") or old == "/dev/null") and (
            new.startswith("b/") or new == "/dev/null"
        ):
            old, new = old.removeprefix("a/"), new.removeprefix("b/")
        self._at += 2
        chunks = self._hunks()
        if old == "/dev/null":
            self._files.append(FilePatch("add", new, chunks or _added_chunks(number, [])))
        elif new == "/dev/null":
            self._files.append(FilePatch("delete", old, chunks))
        elif old == new or "rename from " in header:
            new_path = "" if old == new else new
            self._files.append(FilePatch("update", old, chunks, new_path))
        else:
            raise _fault(
                number,
                f"names {old!r} and the next one {new!r}. To move a file, write `diff --git`,"
                " `rename from` and `rename to` above them.",
            )

    def _hunks(self) -> tuple[Chunk, ...]:
        chunks: list[Chunk] = []
        while self._at < len(self._lines) and self._lines[self._at].startswith("@@"):
            header = _HUNK.match(self._lines[self._at])
            if header is None:
                raise _fault(self._at + 1, "is no hunk header such as `@@ -1,3 +1,4 @@`.")
            number, old = self._at + 2, int(header[1])
            counts = [int(header[group] or 1) for group in (2, 4)]
            # Models miscount: then the hunk ends at the next header.
            body = self._body(number - 1, counts) or self._body(number - 1, None)
            if not body:
                raise _fault(number - 1, "begins a hunk without lines.")
            guess = old if counts[0] == 0 else max(0, old - 1)
            at_end = any(not line.newline for line in body)
            chunks.append(Chunk(number, tuple(body), (), at_end, guess))
            if self._at < len(self._lines) and not self._lines[self._at].strip():
                self._at = _next_line(self._lines, self._at)
        return tuple(chunks)

    def _body(self, at: int, counts: list[int] | None) -> list[PatchLine] | None:
        """Return the lines of a hunk and move past it; None if the `counts` of old and new lines
        are wrong. Without counts the hunk ends at the next header."""
        body: list[PatchLine] = []
        remaining = dict(zip("-+", counts or (), strict=False))
        while at < len(self._lines):
            line = self._lines[at]
            kind = line[:1] or " "
            if kind == "\\":  # "No newline at end of file"
                body[-1:] = [one._replace(newline=False) for one in body[-1:]]
            elif kind not in " +-" or (
                not any(remaining.values()) if remaining else self._is_header(at)
            ):
                break
            else:
                body.append(PatchLine(kind, line[1:]))
                for side in remaining:
                    remaining[side] -= kind in (" ", side)
            at += 1
        if any(remaining.values()):
            return None
        rest = self._lines[at] if at < len(self._lines) else ""
        if remaining and rest[:1] in (" ", "+", "-") and not self._is_header(at):
            return None
        while not remaining and body and body[-1] == PatchLine(" ", ""):  # separators
            body.pop()
        self._at = at
        return body


def _name(text: str) -> str:
    """Return the path of a header line, without a timestamp or quotes."""
    text = text.split("\t")[0].rstrip("\r")
    if len(text) < 2 or not (text.startswith('"') and text.endswith('"')):
        return text.strip()
    data = bytearray()
    for plain, escape in re.findall(r"([^\\]+)|\\([0-7]{3}|.)", text[1:-1]):
        if len(escape) == 3:
            data.append(int(escape, 8) & 255)
        else:
            data += str(plain or _ESCAPED.get(escape, escape)).encode(errors="surrogateescape")
    return data.decode(errors="surrogateescape")
