"""`Files`: reading, writing and editing of files for the tools, with one writer per path at a
time."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO, Protocol

from holdfast import patches
from holdfast.content import ImageContent, TextContent, ToolResult, blocks
from holdfast.errors import RuntimeFault
from holdfast.runtime import edit, output, patching, pictures, textfile
from holdfast.runtime.paths import Paths
from holdfast.runtime.transaction import FileChange, change_files, take_back

_DEFAULT_LINES = 2000  # lines of one answer by default
_MAX_LINE_CHARS = 2000  # characters of one line that are shown
_MAX_WHOLE_BYTES = 5 * 1024 * 1024  # larger files are read line by line
_MAX_IMAGE_BYTES = 5 * 1024 * 1024  # the limit of the model APIs
_MAX_ENTRIES = 500  # of a directory listing
_MAX_DIFF_CHARS = 200_000  # of all files of a patch


def _shortened(line: str, more: str = "") -> str:
    """Return the shown part of a line; `more` is the size of a part that was not read."""
    if len(line) > _MAX_LINE_CHARS:
        more = more or f"{len(line) - _MAX_LINE_CHARS:,} characters"
    return f"{line[:_MAX_LINE_CHARS]} [... {more} more in this line]" if more else line


def _lines(file: BinaryIO, terminal: bool) -> Iterator[str]:
    """Yield a file's lines as shown, without ever reading a huge line as a whole."""
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
        text = _shortened(text.rstrip("\r\n"), f"more than {rest:,} bytes" if rest else "")
        yield text


class TextFiles(Protocol):
    """Reads and writes the text files of a runtime, such as through the buffers of an editor.
    Paths are resolved and allowed. Methods raise `RuntimeFault`; `label` is the path for its
    message."""

    def load(self, path: Path, label: str) -> textfile.DecodedText:
        """Return the whole text of a file."""
        ...

    def store(self, path: Path, file: textfile.DecodedText, text: str, label: str) -> None:
        """Make or overwrite a file with `text`, in the encoding of `file`."""
        ...


class DiskFiles:
    """Text files on the disk."""

    def load(self, path: Path, label: str) -> textfile.DecodedText:
        return textfile.load(path, label)

    def store(self, path: Path, file: textfile.DecodedText, text: str, label: str) -> None:
        textfile.store(path, file.encode(text), label)


class Files:
    """The files below a runtime's paths. Thread-safe. Methods raise `RuntimeFault`, whose message
    says what to do instead."""

    def __init__(
        self, paths: Paths, limit: int, outputs: Path, texts: TextFiles | None = None
    ) -> None:
        self._paths = paths
        self._texts = texts or DiskFiles()
        self._limit = limit
        self._outputs = outputs
        # A fixed number of locks, selected by the path's hash: two paths may share a lock, but one
        # path never has two.
        self._locks = tuple(threading.Lock() for _ in range(64))
        take_back(paths)  # what a killed process left half done

    def _lock(self, path: Path) -> threading.Lock:
        return self._locks[hash(path) % len(self._locks)]

    def read_text(self, path: str | os.PathLike[str]) -> str:
        """Return the text of a file without byte order mark, with its original line ends."""
        real_path = self._paths.resolve(path)
        return self._texts.load(real_path, self._paths.label(real_path)).text

    def view(self, path: str, offset: int = 1, limit: int = _DEFAULT_LINES) -> ToolResult:
        """Return a file's numbered lines from `offset`, an image, or a directory's entries."""
        real_path = self._paths.resolve(path)
        label = self._paths.label(real_path)
        if os.path.isdir(real_path):
            return ToolResult(blocks(self._listing(real_path, label)))
        try:
            fd, stat = textfile.open_file(real_path, label)
        except textfile.NoSuchFile:  # an editor may have it, not saved yet
            return self._shown_lines(
                real_path, label, self._text_lines(real_path, label), offset, limit
            )
        with open(fd, "rb") as file:
            start = file.read(8192)
            kind = pictures.image_type(start)
            if kind is not None:
                if stat.st_size > _MAX_IMAGE_BYTES:
                    raise RuntimeFault(
                        f"{label} is an image of {stat.st_size:,} bytes; at most"
                        f" {_MAX_IMAGE_BYTES:,} can be shown. Make it smaller first."
                    )
                file.seek(0)
                image = ImageContent(file.read(_MAX_IMAGE_BYTES), kind)
                content = (TextContent(f"{label}: {kind}"), image)
                return ToolResult(content, meta={"path": self._paths.visible(real_path)})
            terminal = self._outputs in real_path.parents
            if textfile.is_binary(start) and not terminal:
                raise textfile.binary_fault(label, stat.st_size)
            file.seek(0)
            utf_16 = start.startswith((b"\xff\xfe", b"\xfe\xff"))
            most = textfile.MAX_FILE_BYTES if utf_16 else _MAX_WHOLE_BYTES
            if stat.st_size <= most and not terminal:
                lines = self._text_lines(real_path, label)
            else:
                lines = _lines(file, terminal)
            return self._shown_lines(real_path, label, lines, offset, limit)

    def _text_lines(self, path: Path, label: str) -> Iterable[str]:
        """Return the lines of a file, which is read as a whole for the same decoding as in
        `edit`."""
        text = self._texts.load(path, label).text.replace("\r\n", "\n")
        return map(_shortened, text.removesuffix("\n").split("\n")) if text else ()

    def _shown_lines(
        self, path: Path, label: str, lines: Iterable[str], offset: int, limit: int
    ) -> ToolResult:
        first = max(1, offset)
        body, last, more = self._page(lines, first, limit)
        meta = {"path": self._paths.visible(path)}
        if not body:
            if last == 0:
                return ToolResult(blocks(f"({label} is empty)"), meta=meta)
            raise RuntimeFault(
                f"{label} has {last} lines; there is no line {first}. Use an offset from 1 to"
                f" {last}."
            )
        if more:
            body.append(f"[... more follows: read on with offset={last + 1}]")
        return ToolResult(blocks("\n".join(body)), meta=meta)

    def view_image(self, path: str) -> ToolResult:
        """Return a picture, scaled down to what models take."""
        real_path = self._paths.resolve(path)
        label = self._paths.label(real_path)
        data = textfile.load_bytes(real_path, label)
        kind = pictures.image_type(data)
        if kind is None:
            raise RuntimeFault(f"{label} is no PNG, JPEG, GIF or WebP picture. Convert it first.")
        picture = pictures.fitted(data, kind, _MAX_IMAGE_BYTES, label)
        content = (
            TextContent(f"{label}: {picture.note}"),
            ImageContent(picture.data, picture.kind),
        )
        return ToolResult(content, meta={"path": self._paths.visible(real_path)})

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

    def _listing(self, folder: Path, label: str) -> str:
        try:
            names = sorted(textfile.entries(folder, lambda entry: entry.name + _suffix(entry)))
        except OSError as error:
            raise RuntimeFault(
                f"The directory {label} cannot be listed: {error.strerror}."
            ) from error
        if not names:
            return f"(the directory {label} is empty)"
        lines = [f"{label} is a directory:", *names[:_MAX_ENTRIES]]
        if len(names) > _MAX_ENTRIES:
            lines.append(f"[... {len(names) - _MAX_ENTRIES} more; use glob to narrow them down]")
        return "\n".join(lines)

    def write_text(self, path: str | os.PathLike[str], text: str) -> ToolResult:
        """Create or overwrite a file in UTF-8, atomically, with missing parent folders."""
        real_path = self._paths.resolve(path, write=True)
        label = self._paths.label(real_path)
        new = textfile.DecodedText(text)
        size = len(new.encode(text))
        with self._lock(real_path):
            existed = os.path.lexists(real_path)
            before = ""
            if existed:
                with suppress(RuntimeFault):  # binary or huge: replaced too, but without a diff
                    before = self._texts.load(real_path, label).text
            self._texts.store(real_path, new, text, label)
        lines = text.count("\n") + (not text.endswith("\n") and bool(text))
        message = (
            f"{'Overwrote' if existed else 'Created'} {label}: {lines}"
            f" line{'' if lines == 1 else 's'}, {size:,} bytes."
        )
        diff = edit.unified_diff(before, text, label)
        meta = {"path": self._paths.visible(real_path), "diff": diff, "created": not existed}
        return ToolResult(blocks(message), meta=meta)

    def edit(self, path: str, old: str, new: str, replace_all: bool = False) -> ToolResult:
        """Replace the text `old`; encoding, line ends and mode are kept."""
        real_path = self._paths.resolve(path, write=True)
        label = self._paths.label(real_path)
        with self._lock(real_path):
            file = self._texts.load(real_path, label)
            edited = edit.replace(file.text, old, new, replace_all, label)
            self._texts.store(real_path, file, edited.text, label)
        places = f" in {edited.places} places; the first" if edited.places > 1 else ""
        message = f"Edited {label}{places}:\n{edit.snippet(edited)}"
        diff = edit.unified_diff(file.text, edited.text, label)
        meta = {"path": self._paths.visible(real_path), "diff": diff, "replaced": edited.places}
        return ToolResult(blocks(message), meta=meta)

    def insert(self, path: str, line: int, text: str) -> ToolResult:
        """Insert lines behind a line (0: at the beginning); encoding, line ends and mode are
        kept."""
        real_path = self._paths.resolve(path, write=True)
        label = self._paths.label(real_path)
        with self._lock(real_path):
            file = self._texts.load(real_path, label)
            lines = re.findall(r"[^\n]*\n|[^\n]+", file.text)
            if line > len(lines):
                raise RuntimeFault(f"{label} has {len(lines)} lines; there is no line {line}.")
            newline = "\r\n" if "\r\n" in "".join(lines[:1]) else "\n"
            new = text.replace("\r\n", "\n").removesuffix("\n").replace("\n", newline)
            before = "".join(lines[:line])
            gap = newline if before and not before.endswith("\n") else ""
            new_text = "".join((before, gap, new, newline, *lines[line:]))
            self._texts.store(real_path, file, new_text, label)
        edited = edit.Edited(new_text, line + 1, new.count("\n") + 1, 1)
        message = f"Inserted into {label}:\n{edit.snippet(edited)}"
        diff = edit.unified_diff(file.text, new_text, label)
        meta = {"path": self._paths.visible(real_path), "diff": diff}
        return ToolResult(blocks(message), meta=meta)

    def apply_patch(self, patch: str) -> ToolResult:
        """Apply a patch to all of its files, or to none; `holdfast.patches` has its formats."""
        parsed = patches.parse(patch)
        where = {
            path: self._patch_target(path)
            for one in parsed
            for path in (one.path, one.move_to)
            if path
        }
        locks = {hash(path) % len(self._locks) for path in where.values()}
        with ExitStack() as stack:
            for index in sorted(
                locks
            ):  # in one order, so that two patches never wait for each other
                stack.enter_context(self._locks[index])
            take_back(self._paths)
            target_files = _PatchedFiles(self._paths)
            for one in parsed:
                target_files.take(one, where[one.path], where.get(one.move_to))
            changes = target_files.changes()
            if not changes:
                raise RuntimeFault("The patch changes nothing: all files are like this already.")
            change_files(changes, self._paths)
        text = "\n".join(
            ["The patch was applied:", *target_files.report, *dict.fromkeys(target_files.notes)]
        )
        visible = [self._paths.visible(change.path) for change in changes]
        diff = "".join(target_files.diffs())[:_MAX_DIFF_CHARS]
        return ToolResult(blocks(text), meta={"paths": visible, "diff": diff})

    def _patch_target(self, path: str) -> Path:
        """Return the resolved path of a file that a patch names, which must not be a link: a patch
        could remove or move it."""
        real_path = self._paths.resolve(path, write=True)
        folder, name = os.path.split(path.rstrip("/"))
        beside = self._paths.resolve(folder or ".", write=True) / name
        if os.path.islink(beside):
            raise RuntimeFault(
                f"{path} is a link to {self._paths.label(real_path)}; give that path."
            )
        return real_path


class _PatchedFiles:
    """The files of a patch as they will be, each with its text before and after."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self._before: dict[Path, bytes | None] = {}
        self._after: dict[Path, bytes | None] = {}
        self._like: dict[Path, Path] = {}
        self.report: list[str] = []
        self.notes: list[str] = []

    def take(self, patch: patches.FilePatch, path: Path, target: Path | None) -> None:
        """Work out one change, upon those before it. Raises `RuntimeFault`."""
        label = self._paths.label(path)
        exists = self._read(path, label)
        if patch.kind == "add":
            text = "".join(map(patching.content, patch.chunks))
            self._after[path] = textfile.DecodedText(text).encode(text)
            self.report.append(f"{'A' if exists is None else 'M (overwritten)'} {label}")
            return
        if exists is None:
            raise textfile.NoSuchFile(
                f"There is no file {label}, which the patch {patch.kind}s. Nothing was changed."
            )
        if patch.kind == "delete":
            self._after[path] = None
            self.report.append(f"D {label}")
            return
        data = exists
        if patch.chunks:
            if textfile.is_binary(exists[:8192]):
                raise textfile.binary_fault(label, len(exists))
            file = textfile.decode(exists)
            result = patching.apply(file.text, patch.chunks, label)
            data = file.encode(result.text)
            self.notes += result.notes
        if target is None or target == path:
            self._after[path] = data
            self.report.append(f"M {label}")
            return
        target_label = self._paths.label(target)
        replaced = " (overwritten)" if self._read(target, target_label) is not None else ""
        self._after[path], self._after[target] = None, data
        origin = self._like.get(path, path)
        if not replaced and self._before[origin] is not None:
            self._like[target] = origin
        self.report.append(f"R {label} -> {target_label}{replaced}")

    def _read(self, path: Path, label: str) -> bytes | None:
        if path not in self._before:
            try:
                self._before[path] = textfile.load_bytes(path, label)
            except textfile.NoSuchFile:
                self._before[path] = None
        return self._after.get(path, self._before[path])

    def changes(self) -> list[FileChange]:
        """Return the files that differ."""
        return [
            FileChange(path, data, self._like.get(path))
            for path, data in self._after.items()
            if data != self._before[path]
        ]

    def diffs(self) -> Iterator[str]:
        """Yield the unified diff of each changed text file."""
        for change in self.changes():
            before, after = _text(self._before[change.path]), _text(change.data)
            yield edit.unified_diff(before, after, self._paths.label(change.path))


def _text(data: bytes | None) -> str:
    return "" if data is None or textfile.is_binary(data[:8192]) else textfile.decode(data).text


def _suffix(entry: os.DirEntry[str]) -> str:
    """Return the suffix of a name in a listing: / for a directory, @ for any other link."""
    with suppress(OSError):
        if entry.is_dir():
            return "/"
    return "@" if entry.is_symlink() else ""
