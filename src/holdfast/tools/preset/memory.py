"""`memory_read` and `memory_write`: a folder of notes that a model keeps for later work. Notes are
text files; nothing outside of the folder is read or written, also where links, or another process
that swaps folders, would lead there.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
import unicodedata
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Literal

from holdfast.errors import ConfigurationError, ToolError, ToolNotFound
from holdfast.tools.context import ToolContext
from holdfast.tools.registry import ToolRegistry, register_tool
from holdfast.tools.skills_files import with_home
from holdfast.tools.tool import Tool, ToolAnnotations

PLACE = (".holdfast", "memory")  # of the runtime's working directory, if no folder is given

_LARGEST = 256 * 1024  # bytes of a note
_MOST_NOTES, _DEEPEST, _LONGEST_NAME = 1000, 8, 100
_MOST_FOUND, _LONGEST_LINE = 100, 200  # of a search
_LISTED = 20_000  # characters of a list
_PATIENCE = 10.0  # seconds to wait for another writer, who needs milliseconds
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LOCK, _UNFINISHED = ".lock", ".tmp"

Action = Literal["write", "append", "replace", "delete"]


class Notes:
    """A folder of notes. Thread-safe, and safe among processes: a note is whole or as it was, and
    one writer waits for the other.

    `inner` are folders below it that no link may stand for.
    """

    def __init__(self, folder: str, inner: tuple[str, ...] = ()) -> None:
        self._folder = folder
        self._inner = inner

    # --- reading ---

    def names(self) -> list[tuple[str, int]]:
        """The notes, by name: path and size in bytes."""
        with self._opened() as root:
            return [] if root is None else [*_notes(root)]

    def index(self, budget: int) -> str:
        """A line for each note, its first words; at most `budget` characters."""
        lines: list[str] = []
        notes = self.names()
        for number, (path, size) in enumerate(notes):
            line = f"- {path} ({size:,} bytes): {self._first_line(path)}"
            budget -= len(line) + 1
            if budget < 0:
                lines.append(
                    f"- and {len(notes) - number} more: memory_read(search=...) finds them"
                )
                break
            lines.append(line)
        return "\n".join(lines)

    def _first_line(self, path: str) -> str:
        try:
            text = self.read(path)
        except ToolError:
            return "(cannot be read)"
        line = next(
            (line.strip("# ").strip() for line in text.splitlines() if line.strip("#- ")), "(empty)"
        )
        return line[:_LONGEST_LINE]

    def read(self, path: str) -> str:
        """A note's text. Raises `ToolNotFound`, `ToolError`."""
        parts = _parts(path)
        with self._opened() as root:
            if root is None:
                raise _none(path)
            with _within(root, parts, path) as folder:
                return _text(folder, parts[-1], path)

    def search(self, words: str) -> str:
        """Lines that have these words, in any case, as `path:line: text`; and notes whose name has
        them."""
        wanted, found = words.casefold(), list[str]()
        for path, _ in self.names():
            if wanted in path.casefold():
                found.append(f"{path}: its name")
            try:
                text = self.read(path)
            except ToolError:
                continue  # gone by now, or no text
            found += [
                f"{path}:{number}: {line.strip()[:_LONGEST_LINE]}"
                for number, line in enumerate(text.splitlines(), 1)
                if wanted in line.casefold()
            ]
            if len(found) > _MOST_FOUND:
                return "\n".join(
                    [*found[:_MOST_FOUND], "... and more; search for something rarer."]
                )
        return "\n".join(found) or f"No note has {words!r}."

    # --- writing ---

    def write(self, path: str, text: str, action: Action = "write", old: str = "") -> str:
        """Change a note; says what was done. Raises `ToolNotFound`, `ToolError`."""
        parts = _parts(path)
        if action == "replace" and not old:
            raise ToolError("Give in `old` the text that is to be replaced.", "validation")
        if action == "append" and not text:
            raise ToolError("There is nothing to append: `text` is empty.", "validation")
        with self._opened(make=True) as root:
            assert root is not None
            with (
                _locked(root),
                _within(root, parts, path, make=action in ("write", "append")) as folder,
            ):
                if action == "delete":
                    _delete(root, folder, parts, path)
                    return f"Deleted {path}."
                there = _exists(folder, parts[-1], path)
                before = _text(folder, parts[-1], path) if there and action != "write" else ""
                if action == "replace":
                    if not there:
                        raise _none(path)
                    if (count := before.count(old)) != 1:
                        what = "not there" if not count else f"there {count} times"
                        raise ToolError(
                            f"`old` is {what} in {path!r}. Give a text that is there exactly once.",
                            "validation",
                        )
                    text = before.replace(old, text)
                elif action == "append":
                    text = before + ("" if not before or before.endswith("\n") else "\n") + text
                data = _encoded(text)
                if len(data) > _LARGEST:
                    raise ToolError(
                        f"{path!r} would have {len(data):,} bytes; a note has at most {_LARGEST:,}."
                        " Make several of it.",
                        "validation",
                    )
                if not there and sum(1 for _ in _notes(root)) >= _MOST_NOTES:
                    raise ToolError(
                        f"There are {_MOST_NOTES} notes, which is the most. Delete one, or append"
                        " to another.",
                        "validation",
                    )
                _replace(folder, parts[-1], data)
        done = {"write": "Wrote", "append": "Appended to", "replace": "Changed"}[action]
        return f"{done} {path} ({len(data):,} bytes)."

    # --- the folder ---

    @contextmanager
    def _opened(self, make: bool = False) -> Generator[int | None]:
        """The folder's descriptor; None if it is not there."""
        if make and not self._inner:
            os.makedirs(self._folder, exist_ok=True)
        try:
            at = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            yield None
            return
        except OSError as error:
            raise ToolError(
                f"The folder of notes cannot be opened: {error.strerror}.", "validation"
            ) from error
        try:
            for part in self._inner:
                try:
                    at = _into(at, part, make)
                except FileNotFoundError:
                    yield None
                    return
                except OSError as error:
                    raise ToolError(
                        f"The folder of notes {part!r} is a link or no folder.", "validation"
                    ) from error
            yield at
        finally:
            os.close(at)


def _into(at: int, part: str, make: bool) -> int:
    """Go into a folder of an open one, which is closed then."""
    if make:
        try:
            os.mkdir(part, 0o700, dir_fd=at)
        except FileExistsError:
            pass
    inner = os.open(part, _FOLDER, dir_fd=at)
    os.close(at)
    return inner


@contextmanager
def _within(root: int, parts: list[str], path: str, make: bool = False) -> Generator[int]:
    """The folder of a note."""
    at = os.dup(root)
    try:
        for part in parts[:-1]:
            try:
                at = _into(at, part, make)
            except FileNotFoundError:
                raise _none(path) from None
            except OSError as error:
                raise ToolError(
                    f"In {path!r}, {part!r} is no folder of notes. Give another path.", "validation"
                ) from error
        yield at
    finally:
        os.close(at)


@contextmanager
def _locked(root: int) -> Generator[None]:
    """The only writer of the folder."""
    try:
        lock = os.open(
            _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=root
        )
    except OSError as error:
        raise ToolError(
            f"The notes cannot be changed: the file {_LOCK} in their folder cannot be opened"
            f" ({error.strerror}).",
            "internal",
        ) from error
    try:
        end = time.monotonic() + _PATIENCE
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise ToolError(
                        "Another agent is writing to these notes. Try again later.", "internal"
                    ) from None
                time.sleep(0.005)
        yield
    finally:
        os.close(lock)


def _parts(path: str) -> list[str]:
    """A note's path in its parts. Raises `ToolError` for one that leads out of the folder, or is no
    path."""
    parts = [
        part for part in unicodedata.normalize("NFC", path).split("/") if part not in ("", ".")
    ]
    if (
        not parts
        or path.startswith("/")
        or ".." in parts
        or any(ord(char) < 32 or char == "\\" for char in path)
    ):
        raise ToolError(
            f"{path!r} is no path of a note. Give one such as 'build.md' or 'people/ada.md'.",
            "validation",
        )
    try:
        path.encode()
    except UnicodeEncodeError:
        raise ToolError(f"{path!r} is no text that a file can be named by.", "validation") from None
    if any(part.startswith(".") for part in parts):
        raise ToolError(
            f"{path!r} is hidden (a part of it begins with a dot), and notes are not.", "validation"
        )
    if len(parts) > _DEEPEST or any(len(part.encode()) > _LONGEST_NAME for part in parts):
        raise ToolError(
            f"{path[:200]!r} is too long: a path has at most {_DEEPEST} parts of {_LONGEST_NAME}"
            " bytes.",
            "validation",
        )
    return parts


def _notes(at: int, prefix: str = "", depth: int = _DEEPEST) -> Iterator[tuple[str, int]]:
    """The notes below a folder, by name; no links, nothing hidden."""
    with os.scandir(at) as entries:
        found = sorted(
            (entry.name, entry.stat(follow_symlinks=False))
            for entry in entries
            if not entry.name.startswith(".")
        )
    for name, known in found:
        if stat.S_ISREG(known.st_mode):
            yield prefix + name, known.st_size
        elif stat.S_ISDIR(known.st_mode) and depth > 1:
            try:
                inner = os.open(name, _FOLDER, dir_fd=at)
            except OSError:  # gone by now, or a link
                continue
            try:
                yield from _notes(inner, f"{prefix}{name}/", depth - 1)
            finally:
                os.close(inner)


def _text(folder: int, name: str, path: str) -> str:
    try:
        file = os.open(
            name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder
        )
    except FileNotFoundError:
        raise _none(path) from None
    except OSError as error:
        raise ToolError(f"{path!r} is no note: {error.strerror}.", "validation") from error
    try:
        known = os.fstat(file)
        if not stat.S_ISREG(known.st_mode):
            raise ToolError(
                (
                    f"{path!r} is a folder; give the path of a note in it."
                    if stat.S_ISDIR(known.st_mode)
                    else f"{path!r} is no file."
                ),
                "validation",
            )
        data = b""
        while len(data) <= _LARGEST and (more := os.read(file, _LARGEST + 1 - len(data))):
            data += more
    finally:
        os.close(file)
    if len(data) > _LARGEST:
        raise ToolError(
            f"{path!r} has more than {_LARGEST:,} bytes, which is the most that is read.",
            "validation",
        )
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ToolError(f"{path!r} is not UTF-8 text.", "validation") from None


def _exists(folder: int, name: str, path: str) -> bool:
    try:
        known = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(known.st_mode):
        raise ToolError(
            f"{path!r} is a folder or a link, not a note. Give another path.", "validation"
        )
    return True


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ToolError(
            "`text` holds half a character (a lone surrogate), which no file can say.", "validation"
        ) from None


def _replace(folder: int, name: str, data: bytes) -> None:
    """Put a whole file in the place of what is there. Only under the lock: what others left
    unfinished is removed."""
    with os.scandir(folder) as entries:
        left = [
            entry.name
            for entry in entries
            if entry.name.startswith(".")
            and entry.name.endswith(_UNFINISHED)
            and entry.is_file(follow_symlinks=False)
        ]
    for one in left:
        os.unlink(one, dir_fd=folder)
    draft = f".{os.urandom(8).hex()}{_UNFINISHED}"
    file = os.open(
        draft,
        os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
        0o600,
        dir_fd=folder,
    )
    try:
        with open(file, "wb") as writing:
            writing.write(data)
            writing.flush()
            os.fsync(writing.fileno())
        os.replace(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        try:
            os.unlink(draft, dir_fd=folder)
        except FileNotFoundError:
            pass
        raise
    os.fsync(folder)


def _delete(root: int, folder: int, parts: list[str], path: str) -> None:
    if not _exists(folder, parts[-1], path):
        raise _none(path)
    os.unlink(parts[-1], dir_fd=folder)
    os.fsync(folder)
    for end in range(len(parts) - 1, 0, -1):  # folders that are empty now
        try:
            with _within(root, parts[:end], path) as above:
                os.rmdir(parts[end - 1], dir_fd=above)
        except (OSError, ToolError):
            return


def _none(path: str) -> ToolNotFound:
    return ToolNotFound(f"There is no note {path!r}. memory_read() lists them.")


# --- the tools ---


def make_memory(folder: str | os.PathLike[str] | None = None) -> list[Tool]:
    """The tools `memory_read` and `memory_write` over a folder, which is made when it is first
    written to; None: `.holdfast/memory` of the working directory of the runtime that runs the call.
    """
    own = None if folder is None else Notes(os.path.abspath(with_home(folder)))

    def notes(context: ToolContext) -> Notes:
        if own is not None:
            return own
        workdir = getattr(context.runtime, "workdir", None)
        if not isinstance(workdir, str | os.PathLike):
            raise ConfigurationError(
                "The notes have no folder: use make_memory(folder), or give the conversation a"
                " runtime with a workdir."
            )
        return Notes(os.fspath(workdir), PLACE)

    def memory_read(context: ToolContext, path: str = "", search: str = "", offset: int = 0) -> str:
        """Read your notes of earlier work: without arguments a list of all, with `path` one of
        them, with `search` the lines that have these words. Look there before work that earlier
        notes may help with.

        Args:
            path: Which note to read.
            search: What to look for, in any case.
            offset: The first character to read of a note, where the beginning is known.
        """
        if path and search:
            raise ToolError("Give a path or a search, not both.", "validation")
        if path:
            return notes(context).read(path)[max(0, offset) :] or "(There is nothing more in it.)"
        if search:
            return notes(context).search(search)
        return notes(context).index(_LISTED) or "There are no notes yet."

    def memory_write(
        context: ToolContext, path: str, text: str = "", action: Action = "write", old: str = ""
    ) -> str:
        """Note down what later work should know: decisions, how things are built, what somebody
        prefers. No secrets. Begin a note with a line that says what is in it.

        Args:
            path: Which note, such as build.md or people/ada.md. text: The whole note; with append
            what to add to its end, with replace what to put in the place of `old`. action: write
            makes a note or takes the place of one; append, replace or delete change one. old: With
            replace: the text to replace, which is in the note exactly once.
        """
        return notes(context).write(path, text, action, old)

    reads = ToolAnnotations(read_only=True, destructive=False, idempotent=True, open_world=False)
    writes = ToolAnnotations(read_only=False, destructive=True, idempotent=False, open_world=False)
    return [
        Tool.from_function(memory_read, annotations=reads, category="memory"),
        Tool.from_function(memory_write, annotations=writes, category="memory"),
    ]


def memory_index(folder: str | os.PathLike[str], budget: int = 4000) -> str:
    """What a system prompt may say of the notes
    (`Agent(system_prompt_extensions=[memory_index(folder)])`): a line each, at most `budget`
    characters. "" if there are none. Read once, when it is called."""
    lines = Notes(os.path.abspath(with_home(folder))).index(budget)
    return (
        "# Notes of earlier work\n\nRead one with memory_read(path=...) when it may"
        f" help.\n\n{lines}"
        if lines
        else ""
    )


def register_memory_tools(registry: ToolRegistry | None = None) -> list[Tool]:
    """The memory tools over the runtime's working directory, for `Agent(tools=...)`; with a
    `registry`, they are registered there too.

    Equivalent to what importing this module declares: an agent server that is told their names
    makes them itself.
    """
    found = ToolRegistry() if registry is None else registry
    return found.import_module(__name__)


def _reader() -> Tool:
    return make_memory()[0]


def _writer() -> Tool:
    return make_memory()[1]


register_tool("memory_read", _reader)
register_tool("memory_write", _writer)
