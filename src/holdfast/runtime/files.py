"""`Files`: reading, writing and editing of files for the tools, with one writer per path at a
time."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from holdfast.content import ImageContent, TextContent, ToolResult, blocks
from holdfast.errors import RuntimeFault
from holdfast.runtime import edit, output, textfile
from holdfast.runtime.paths import Paths

_DEFAULT_LINES = 2000  # lines of one answer by default
_MAX_LINE_CHARS = 2000  # characters of one line that are shown
_MAX_WHOLE_BYTES = 5 * 1024 * 1024  # larger files are read line by line
_MAX_IMAGE_BYTES = 5 * 1024 * 1024  # the limit of the model APIs
_MAX_ENTRIES = 500  # of a directory listing


def _image_type(data: bytes) -> str | None:
    """Return the MIME type of an image that models accept, from its first bytes; None otherwise.

    A file name's extension may be wrong.
    """
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "image/webp"
    return None


def _shortened(line: str) -> str:
    return (
        line
        if len(line) <= _MAX_LINE_CHARS
        else f"{line[:_MAX_LINE_CHARS]}"
        f" [... {len(line) - _MAX_LINE_CHARS:,} characters more in this line]"
    )


def _lines(file: BinaryIO, terminal: bool) -> Iterator[str]:
    """Yield the lines of a file as they are shown.

    A line that is too long for memory is never read as a whole.
    """
    most = 4 * _MAX_LINE_CHARS  # a character has at most four bytes
    while data := file.readline(64 * most):
        rest = 0
        while not data.endswith(b"\n") and (part := file.readline(64 * most)):
            rest += len(part)
            if part.endswith(b"\n"):
                break
        try:
            text = data.decode()
        except UnicodeDecodeError:
            text = data.decode(errors="replace") if terminal or rest else data.decode("latin-1")
        text = output.clean(text) if terminal else text.removeprefix("\ufeff")
        text = text.rstrip("\r\n")
        yield (
            _shortened(text)
            if not rest
            else f"{text[:_MAX_LINE_CHARS]} [... more than {rest:,} bytes more in this line]"
        )


class Files:
    """The files below a runtime's paths.

    Thread-safe. Methods raise `RuntimeFault`, whose message says what to do instead.
    """

    def __init__(self, paths: Paths, limit: int, outputs: Path) -> None:
        self._paths = paths
        self._limit = limit
        self._outputs = outputs
        # A fixed number of locks, selected by the path's hash: two paths may share a lock, but one
        # path never has two.
        self._locks = tuple(threading.Lock() for _ in range(64))

    def _lock(self, path: Path) -> threading.Lock:
        return self._locks[hash(path) % len(self._locks)]

    # --- reading ---

    def read_text(self, path: str | os.PathLike[str]) -> str:
        """Return the whole text of a file, without the byte order mark and with its original
        line ends."""
        found = self._paths.resolve(path)
        return textfile.load(found, self._paths.shown(found)).text

    def view(self, path: str, offset: int = 1, limit: int = _DEFAULT_LINES) -> ToolResult:
        """Return a file's numbered lines from `offset` (the first is 1), an image, or a
        directory's entries."""
        found = self._paths.resolve(path)
        shown = self._paths.shown(found)
        if os.path.isdir(found):
            return ToolResult(blocks(self._listing(found, shown)))
        fd, stat = textfile.open_file(found, shown)
        with open(fd, "rb") as file:
            start = file.read(8192)
            kind = _image_type(start)
            if kind is not None:
                if stat.st_size > _MAX_IMAGE_BYTES:
                    raise RuntimeFault(
                        f"{shown} is an image of {stat.st_size:,} bytes; at most"
                        f" {_MAX_IMAGE_BYTES:,} can be"
                        " shown. Make it smaller first."
                    )
                file.seek(0)
                return ToolResult(
                    (
                        TextContent(f"{shown}: {kind}"),
                        ImageContent(file.read(_MAX_IMAGE_BYTES), kind),
                    ),
                    meta={"path": str(found)},
                )
            terminal = self._outputs in found.parents
            if textfile.is_binary(start) and not terminal:
                raise RuntimeFault(
                    f"{shown} is a binary file ({stat.st_size:,} bytes), not text. Look at it with"
                    " a command, such as `file` or `xxd`."
                )
            file.seek(0)
            first = max(1, offset)
            small = stat.st_size <= (
                _MAX_WHOLE_BYTES
                if not start.startswith((b"\xff\xfe", b"\xfe\xff"))
                else textfile.MAX_FILE_BYTES
            )
            if small and not terminal:
                # Read as a whole, so that it is decoded as `edit` decodes it.
                text = textfile.decode(file.read(textfile.MAX_FILE_BYTES)).text.replace(
                    "\r\n", "\n"
                )
                lines = map(_shortened, text.removesuffix("\n").split("\n")) if text else iter(())
            else:
                lines = _lines(file, terminal)
            body, last, more = self._page(lines, first, limit)
        meta = {"path": str(found)}
        if not body:
            if stat.st_size == 0:
                return ToolResult(blocks(f"({shown} is empty)"), meta=meta)
            raise RuntimeFault(
                f"{shown} has {last} lines; there is no line {first}. Use an offset from 1 to"
                f" {last}."
            )
        if more:
            body.append(f"[... more follows: read on with offset={last + 1}]")
        return ToolResult(blocks("\n".join(body)), meta=meta)

    def _page(self, lines: Iterable[str], first: int, limit: int) -> tuple[list[str], int, bool]:
        body: list[str] = []
        size = number = 0
        for number, line in enumerate(lines, 1):
            if number < first:
                continue
            text = f"{number:>6}\t{line}"
            size += len(text) + 1
            if body and (len(body) >= limit or size > self._limit):
                return body, number - 1, True
            body.append(text)
        return body, number, False

    def _listing(self, folder: Path, shown: str) -> str:
        try:
            with os.scandir(folder) as entries:
                names = sorted(entry.name + _suffix(entry) for entry in entries)
        except OSError as error:
            raise RuntimeFault(
                f"The directory {shown} cannot be listed: {error.strerror}."
            ) from error
        if not names:
            return f"(the directory {shown} is empty)"
        more = (
            [f"[... {len(names) - _MAX_ENTRIES} more; use glob to narrow them down]"]
            if len(names) > _MAX_ENTRIES
            else []
        )
        return "\n".join([f"{shown} is a directory:", *names[:_MAX_ENTRIES], *more])

    # --- writing ---

    def write_text(self, path: str | os.PathLike[str], text: str) -> ToolResult:
        """Create or overwrite a file with exactly `text` in UTF-8, atomically.

        Missing parent folders are created.
        """
        found = self._paths.resolve(path, write=True)
        shown = self._paths.shown(found)
        data = textfile.DecodedText(text).encode(text)
        with self._lock(found):
            existed = os.path.lexists(found)
            before = ""
            if existed:
                try:
                    before = textfile.load(found, shown).text
                except RuntimeFault:  # binary or huge: replaced too, but without a diff
                    pass
            textfile.store(found, data, shown)
        lines = text.count("\n") + (not text.endswith("\n") and bool(text))
        message = (
            f"{'Overwrote' if existed else 'Created'} {shown}: {lines}"
            f" line{'' if lines == 1 else 's'}, {len(data):,} bytes."
        )
        return ToolResult(
            blocks(message),
            meta={
                "path": str(found),
                "diff": edit.unified_diff(before, text, shown),
                "created": not existed,
            },
        )

    def edit(self, path: str, old: str, new: str, replace_all: bool = False) -> ToolResult:
        """Replace the exact text `old`, which must be unique unless `replace_all`.

        Encoding, line ends and mode are kept.
        """
        found = self._paths.resolve(path, write=True)
        shown = self._paths.shown(found)
        with self._lock(found):
            file = textfile.load(found, shown)
            edited = edit.replace(file.text, old, new, replace_all, shown)
            textfile.store(found, file.encode(edited.text), shown)
        places = f" in {edited.places} places; the first" if edited.places > 1 else ""
        message = f"Edited {shown}{places}:\n{edit.snippet(edited)}"
        return ToolResult(
            blocks(message),
            meta={
                "path": str(found),
                "diff": edit.unified_diff(file.text, edited.text, shown),
                "replaced": edited.places,
            },
        )


def _suffix(entry: os.DirEntry[str]) -> str:
    """Return the suffix of a name in a listing: / for a directory, @ for a link to anything else.

    Broken and circular links get @ too.
    """
    try:
        if entry.is_dir():
            return "/"
    except OSError:
        pass
    return "@" if entry.is_symlink() else ""
