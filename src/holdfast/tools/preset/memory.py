"""`memory_read` and `memory_write`: tools over a folder of notes that a model keeps for later work.

Notes are text files. Nothing outside of the folder is read or written, not even through links or
while another process swaps folders.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
import unicodedata
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Literal

from holdfast.errors import ConfigurationError, ToolError, ToolNotFound, ToolValidationError
from holdfast.tools.context import ToolContext
from holdfast.tools.policy import LOCAL_READ, ToolAnnotations
from holdfast.tools.registry import ToolRegistry, register_preset, register_tool
from holdfast.tools.skills_files import with_home
from holdfast.tools.tool import Tool

_PLACE = (".holdfast", "memory")  # in the runtime's working directory, if no folder is given

_MAX_NOTE_BYTES = 256 * 1024
_MAX_NOTES = 1000
_MAX_PATH_PARTS = 8
_MAX_NAME_BYTES = 100
_MAX_SEARCH_LINES = 100
_MAX_LINE_CHARS = 200  # of a line in a search result or a list
_MAX_LIST_CHARS = 20_000
_LOCK_SECONDS = 10.0  # longest wait for another writer, which needs only milliseconds
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LOCK_NAME, _UNFINISHED_SUFFIX = ".lock", ".tmp"

Action = Literal["write", "append", "replace", "delete"]


class Notes:
    """A folder of notes. Thread-safe, and safe among processes: a write is atomic, and only one
    writer works at a time. `inner` are path segments below the folder that must not be links."""

    def __init__(self, folder: str, inner: tuple[str, ...] = ()) -> None:
        self._folder = folder
        self._inner = inner

    # --- reading ---

    def names(self) -> list[tuple[str, int]]:
        """Return path and size in bytes of each note, sorted by name."""
        with self._opened() as root:
            return [] if root is None else [*_notes(root)]

    def index(self, budget: int) -> str:
        """Return a list of the notes: one line each with the note's first line, at most `budget`
        characters in total."""
        lines: list[str] = []
        notes = self.names()
        for number, (path, size) in enumerate(notes):
            line = f"- {path} ({size:,} bytes): {self._first_line(path)}"
            budget -= len(line) + 1
            if budget < 0:
                rest = len(notes) - number
                lines.append(f"- and {rest} more: memory_read(search=...) finds them")
                break
            lines.append(line)
        return "\n".join(lines)

    def _first_line(self, path: str) -> str:
        try:
            lines = self.read(path).splitlines()
        except ToolError:
            return "(cannot be read)"
        line = next((line.strip("# ").strip() for line in lines if line.strip("#- ")), "(empty)")
        return line[:_MAX_LINE_CHARS]

    def read(self, path: str) -> str:
        """Return a note's text. Raises `ToolNotFound`, `ToolError`."""
        parts = _parts(path)
        with self._opened() as root:
            if root is None:
                raise _not_found(path)
            with _within(root, parts, path) as folder:
                return _text(folder, parts[-1], path)

    def search(self, words: str) -> str:
        """Return the lines that contain these words, ignoring case, as `path:line: text`, and
        the notes whose names contain them."""
        folded, lines = words.casefold(), list[str]()
        for path, _ in self.names():
            if folded in path.casefold():
                lines.append(f"{path}: its name")
            try:
                text = self.read(path)
            except ToolError:
                continue  # gone by now, or not text
            lines += [
                f"{path}:{number}: {line.strip()[:_MAX_LINE_CHARS]}"
                for number, line in enumerate(text.splitlines(), 1)
                if folded in line.casefold()
            ]
            if len(lines) > _MAX_SEARCH_LINES:
                lines[_MAX_SEARCH_LINES:] = ["... and more; search for rarer words."]
                break
        return "\n".join(lines) or f"No note has {words!r}."

    # --- writing ---

    def write(self, path: str, text: str, action: Action = "write", old: str = "") -> str:
        """Change a note and describe the change. Raises `ToolNotFound`, `ToolError`."""
        parts = _parts(path)
        name = parts[-1]
        if action == "replace" and not old:
            raise ToolValidationError("`old` is empty; give the text to replace.")
        if action == "append" and not text:
            raise ToolValidationError("`text` is empty; give the text to append.")
        make = action in ("write", "append")
        with self._opened(make=True) as root:
            assert root is not None
            with _locked(root), _within(root, parts, path, make) as folder:
                exists = _exists(folder, name, path)
                if not exists and not make:
                    raise _not_found(path)
                if action == "delete":
                    _delete(root, folder, parts, path)
                    return f"Deleted {path}."
                before = _text(folder, name, path) if exists and action != "write" else ""
                data = _encode(path, _changed_text(path, before, text, action, old))
                if not exists and sum(1 for _ in _notes(root)) >= _MAX_NOTES:
                    raise ToolValidationError(
                        f"There are {_MAX_NOTES} notes, which is the maximum. Delete one, or append"
                        " to another."
                    )
                _replace(folder, name, data)
        verb = {"write": "Wrote", "append": "Appended to", "replace": "Changed"}[action]
        return f"{verb} {path} ({len(data):,} bytes)."

    # --- the folder ---

    @contextmanager
    def _opened(self, make: bool = False) -> Generator[int | None]:
        """Yield the folder's descriptor; None if the folder does not exist."""
        if make and not self._inner:
            os.makedirs(self._folder, exist_ok=True)
        try:
            root = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            problem = "The folder of notes {part!r} is a link or not a folder."
            root = _descend(root, self._inner, make, problem.format)
        except FileNotFoundError:
            yield None
            return
        except OSError as error:
            raise ToolValidationError(
                f"The folder of notes cannot be opened: {error.strerror}."
            ) from error
        try:
            yield root
        finally:
            os.close(root)


def _descend(at: int, parts: Sequence[str], make: bool, problem: Callable[..., str]) -> int:
    """Open the folder `parts` below an open folder, which is closed. Raises `FileNotFoundError`,
    and `ToolValidationError` with `problem(part=...)` for a link or a file."""
    for part in parts:
        try:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(part, 0o700, dir_fd=at)
            inner = os.open(part, _FOLDER_FLAGS, dir_fd=at)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise ToolValidationError(problem(part=part)) from error
        finally:
            os.close(at)
        at = inner
    return at


@contextmanager
def _within(root: int, parts: list[str], path: str, make: bool = False) -> Generator[int]:
    """Yield the descriptor of a note's folder."""

    def problem(part: str) -> str:
        return f"In {path!r}, {part!r} is not a folder of notes. Give another path."

    try:
        folder = _descend(os.dup(root), parts[:-1], make, problem)
    except FileNotFoundError:
        raise _not_found(path) from None
    try:
        yield folder
    finally:
        os.close(folder)


@contextmanager
def _locked(root: int) -> Generator[None]:
    """Hold the folder's lock, which makes the caller its only writer."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        lock = os.open(_LOCK_NAME, flags, 0o600, dir_fd=root)
    except OSError as error:
        raise ToolError(
            f"The notes cannot be changed: the file {_LOCK_NAME} in their folder cannot be opened"
            f" ({error.strerror}).",
            "internal",
        ) from error
    try:
        deadline = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ToolError(
                        "Another agent is writing to these notes. Try again later.", "internal"
                    ) from None
                time.sleep(0.005)
        yield
    finally:
        os.close(lock)


def _parts(path: str) -> list[str]:
    """Return the segments of a note's path. Raises `ToolError` for an invalid path."""
    segments = unicodedata.normalize("NFC", path).split("/")
    parts = [part for part in segments if part not in ("", ".")]
    control = any(ord(char) < 32 or char == "\\" for char in path)
    if not parts or path.startswith("/") or ".." in parts or control:
        raise ToolValidationError(
            f"{path!r} is not the path of a note. Give one such as 'build.md' or 'people/ada.md'."
        )
    try:
        path.encode()
    except UnicodeEncodeError:
        raise ToolValidationError(f"{path!r} cannot be the name of a file.") from None
    if any(part.startswith(".") for part in parts):
        raise ToolValidationError(
            f"{path!r} is hidden (a part of it begins with a dot), and notes must not be hidden."
        )
    if len(parts) > _MAX_PATH_PARTS or any(len(part.encode()) > _MAX_NAME_BYTES for part in parts):
        raise ToolValidationError(
            f"{path[:200]!r} is too long: a path has at most {_MAX_PATH_PARTS} parts of"
            f" {_MAX_NAME_BYTES} bytes."
        )
    return parts


def _notes(at: int, prefix: str = "", depth: int = _MAX_PATH_PARTS) -> Iterator[tuple[str, int]]:
    """Yield the notes below a folder, sorted by name, without links and hidden files."""
    with os.scandir(at) as entries:
        visible = sorted(
            (entry.name, entry.stat(follow_symlinks=False))
            for entry in entries
            if not entry.name.startswith(".")
        )
    for name, status in visible:
        if stat.S_ISREG(status.st_mode):
            yield prefix + name, status.st_size
        elif stat.S_ISDIR(status.st_mode) and depth > 1:
            try:
                inner = os.open(name, _FOLDER_FLAGS, dir_fd=at)
            except OSError:  # gone by now, or a link
                continue
            try:
                yield from _notes(inner, f"{prefix}{name}/", depth - 1)
            finally:
                os.close(inner)


def _text(folder: int, name: str, path: str) -> str:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(name, flags, dir_fd=folder)
    except FileNotFoundError:
        raise _not_found(path) from None
    except OSError as error:
        raise ToolValidationError(f"{path!r} is not a note: {error.strerror}.") from error
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise ToolValidationError(
            f"{path!r} is a folder; give the path of a note in it."
            if stat.S_ISDIR(mode)
            else f"{path!r} is not a file."
        )
    with open(descriptor, "rb") as file:
        data = file.read(_MAX_NOTE_BYTES + 1)
    if len(data) > _MAX_NOTE_BYTES:
        raise ToolValidationError(
            f"{path!r} is too large to read: it has more than {_MAX_NOTE_BYTES:,} bytes."
        )
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ToolValidationError(f"{path!r} is not UTF-8 text.") from None


def _exists(folder: int, name: str, path: str) -> bool:
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(status.st_mode):
        raise ToolValidationError(f"{path!r} is a folder or a link, not a note. Give another path.")
    return True


def _changed_text(path: str, before: str, text: str, action: Action, old: str) -> str:
    """Return the text of a note after an action."""
    if action == "append":
        return before + ("" if not before or before.endswith("\n") else "\n") + text
    if action == "replace":
        if (count := before.count(old)) != 1:
            raise ToolValidationError(
                f"`old` occurs {count} times in {path!r}. Give a text that occurs exactly once."
            )
        return before.replace(old, text)
    return text


def _encode(path: str, text: str) -> bytes:
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise ToolValidationError(
            "`text` holds half a character (a lone surrogate), which a UTF-8 file cannot contain."
        ) from None
    if len(data) > _MAX_NOTE_BYTES:
        raise ToolValidationError(
            f"{path!r} would have {len(data):,} bytes; a note has at most {_MAX_NOTE_BYTES:,}."
            " Split it into several notes."
        )
    return data


def _replace(folder: int, name: str, data: bytes) -> None:
    """Replace a file atomically, under the lock; it removes unfinished files of others."""
    with os.scandir(folder) as entries:
        unfinished = [
            entry.name
            for entry in entries
            if entry.name.startswith(".")
            and entry.name.endswith(_UNFINISHED_SUFFIX)
            and entry.is_file(follow_symlinks=False)
        ]
    for name_of_unfinished in unfinished:
        os.unlink(name_of_unfinished, dir_fd=folder)
    draft = f".{os.urandom(8).hex()}{_UNFINISHED_SUFFIX}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(draft, flags, 0o600, dir_fd=folder)
    try:
        with open(file, "wb") as writing:
            writing.write(data)
            writing.flush()
            os.fsync(writing.fileno())
        os.replace(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(draft, dir_fd=folder)
        raise
    os.fsync(folder)


def _delete(root: int, folder: int, parts: list[str], path: str) -> None:
    os.unlink(parts[-1], dir_fd=folder)
    os.fsync(folder)
    with suppress(OSError, ToolError):
        for depth in range(len(parts) - 1, 0, -1):  # remove folders that are empty now
            with _within(root, parts[:depth], path) as parent:
                os.rmdir(parts[depth - 1], dir_fd=parent)


def _not_found(path: str) -> ToolNotFound:
    return ToolNotFound(f"There is no note {path!r}. memory_read() lists them.")


# --- the tools ---


def notes_finder(
    folder: str | os.PathLike[str] | None, example: str
) -> Callable[[ToolContext], Notes]:
    """Return a function that returns the notes of a call: those in `folder`; with None those in the
    working directory of the call's runtime. `example` is the call that names a folder."""
    fixed_notes = None if folder is None else Notes(os.path.abspath(with_home(folder)))

    def notes(context: ToolContext) -> Notes:
        if fixed_notes is not None:
            return fixed_notes
        workdir = getattr(context.runtime, "workdir", None)
        if not isinstance(workdir, str | os.PathLike):
            raise ConfigurationError(
                f"The notes have no folder: use {example}, or give the conversation a runtime with"
                " a workdir."
            )
        return Notes(os.fspath(workdir), _PLACE)

    return notes


def make_memory(folder: str | os.PathLike[str] | None = None) -> list[Tool]:
    """Return the tools `memory_read` and `memory_write` over a folder.

    The first write creates the folder. With None the folder is `.holdfast/memory` in the working
    directory of the runtime that runs the call.
    """
    notes = notes_finder(folder, "make_memory(folder)")

    def memory_read(context: ToolContext, path: str = "", search: str = "", offset: int = 0) -> str:
        """Read your notes of earlier work. Without arguments it lists all notes, with `path` it
        shows one note, with `search` it shows the lines that contain these words. Look here before
        work for which earlier notes may help.

        Args:
            path: The note to read.
            search: The words to search for, ignoring case.
            offset: The first character of the note to show, if you know the beginning already.
        """
        if path and search:
            raise ToolValidationError("Give a path or a search, not both.")
        if path:
            return notes(context).read(path)[max(0, offset) :] or "(The note has no more text.)"
        if search:
            return notes(context).search(search)
        return notes(context).index(_MAX_LIST_CHARS) or "There are no notes yet."

    def memory_write(
        context: ToolContext, path: str, text: str = "", action: Action = "write", old: str = ""
    ) -> str:
        """Note down facts that help later work: decisions, how things are built, the preferences of
        people. No secrets. Begin a note with a line that says what it contains.

        Args:
            path: The note's path, such as build.md or people/ada.md.
            text: The whole note. With append, the text to add at its end. With replace, the text
                that replaces `old`.
            action: write creates or overwrites a note; append adds to a note and creates it if
                necessary; replace and delete change an existing note.
            old: With replace: the text to replace, which occurs in the note exactly once.
        """
        return notes(context).write(path, text, action, old)

    destructive = ToolAnnotations(open_world=False)
    return [
        Tool.from_function(memory_read, annotations=LOCAL_READ, category="memory"),
        Tool.from_function(memory_write, annotations=destructive, category="memory"),
    ]


def memory_index(folder: str | os.PathLike[str], budget: int = 4000) -> str:
    """Return an overview of the notes for a system prompt:
    `Agent(system_prompt_extensions=[memory_index(folder)])`.

    The overview has one line per note and at most `budget` characters; "" if there are no notes.
    The notes are read once, at the call.
    """
    lines = Notes(os.path.abspath(with_home(folder))).index(budget)
    return (
        "# Notes of earlier work\n\nRead one with memory_read(path=...) when it may"
        f" help.\n\n{lines}"
        if lines
        else ""
    )


def register_memory_tools(registry: ToolRegistry | None = None) -> list[Tool]:
    """Return the memory tools over the runtime's working directory, for `Agent(tools=...)`. With a
    `registry`, register them there too.

    Importing this module declares the same tools, so an agent server that knows their names
    makes them itself.
    """
    return register_preset(__name__, registry)


register_tool("memory_read", lambda: make_memory()[0])
register_tool("memory_write", lambda: make_memory()[1])
