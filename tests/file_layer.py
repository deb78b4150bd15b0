"""A layer under SQLite's files that records every write or lets it fail, and the disks that a loss
of power can leave of a record.

In the manner of SQLite's own crash tests (test6.c, https://www.sqlite.org/testing.html).
`FileLayer.install()` is for child processes: it puts itself under every connection that its process
opens from then on. Earlier content of a file is not in the record.
"""

from __future__ import annotations

import _sqlite3
import ctypes
import os
import random
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path
from typing import Any, Literal

SECTOR = 512

_OK, _FULL = 0, 13
_IOERR = {
    "write": 10 | 3 << 8,
    "sync": 10 | 4 << 8,
    "truncate": 10 | 6 << 8,
    "delete": 10 | 10 << 8,
}
# SQLITE_OPEN_MAIN_JOURNAL, SUPER_JOURNAL, WAL: their first sync syncs the folder
_NEW_IN_FOLDER = 0x00000800 | 0x00004000 | 0x00080000

_P, _I, _L = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong
_OPEN = ctypes.CFUNCTYPE(_I, _P, _P, _P, _I, ctypes.POINTER(_I))
_DELETE = ctypes.CFUNCTYPE(_I, _P, ctypes.c_char_p, _I)
_CLOSE = ctypes.CFUNCTYPE(_I, _P)
_WRITE = ctypes.CFUNCTYPE(_I, _P, _P, _I, _L)
_TRUNCATE = ctypes.CFUNCTYPE(_I, _P, _L)
_SYNC = ctypes.CFUNCTYPE(_I, _P, _I)


class _VFS(ctypes.Structure):
    """`struct sqlite3_vfs`, whose layout SQLite promises never to change."""

    _fields_ = [
        ("version", _I),
        ("file_size", _I),
        ("longest_path", _I),
        ("next", _P),
        ("name", ctypes.c_char_p),
        ("data", _P),
        ("open", _P),
        ("delete", _P),
        ("others", _P * 14),  # xAccess to xNextSystemCall
    ]


class _Methods(ctypes.Structure):
    """`struct sqlite3_io_methods`. Methods that are not replaced go straight to the platform's own
    functions, including shared memory and locks."""

    _fields_ = [
        ("version", _I),
        ("close", _P),
        ("read", _P),
        ("write", _P),
        ("truncate", _P),
        ("sync", _P),
        ("others", _P * 13),  # xFileSize to xUnfetch
    ]


class Unavailable(Exception):
    """Raised if the layer cannot be put under this Python's SQLite."""


# --- the record of the files ---


@dataclass(frozen=True, slots=True)
class Created:
    """`file` was created under `name`. The first sync of a `journal` makes the folder's entries
    durable, too."""

    file: int
    name: str
    journal: bool


@dataclass(frozen=True, slots=True)
class Written:
    file: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Truncated:
    file: int
    size: int


@dataclass(frozen=True, slots=True)
class Synced:
    """Everything in the record before place `since` is on the disk. If the sync `failed`, its
    effect is unknown and no later sync makes up for it."""

    file: int
    since: int
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Deleted:
    name: str
    synced: bool


@dataclass(frozen=True, slots=True)
class Mark:
    """A mark that the program itself put into the record."""

    words: tuple[Any, ...]


Entry = Created | Written | Truncated | Synced | Deleted | Mark
How = Literal["ioerr", "full", "short", "torn"]


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of operation `nth` (from 1) of those in `ops`, and with `lasting` of each one after
    it.

    `ioerr` and `full` do nothing and say so; `short` writes half and fails; `torn` writes up to a
    sector border and kills the process.
    """

    nth: int
    how: How
    lasting: bool = False
    ops: tuple[str, ...] = ("write", "truncate", "sync", "delete")


class FileLayer:
    """The default VFS of this process from `install` on. `log` is the record; `counts` has the
    number of calls of each operation."""

    def __init__(self) -> None:
        self.log: list[Entry] = []
        self.counts = dict.fromkeys(_IOERR, 0)
        self.fault: Fault | None = None
        self.struck = 0
        self.opened = 0
        # errors of this layer's own code, which the run does not report
        self.broken: list[BaseException] = []
        self._lock = threading.Lock()
        self._operations = 0
        self._numbers = count(1)
        self._files: dict[int, int] = {}  # the address of an open file's struct -> its number
        self._names: dict[str, int] = {}  # the numbers of the files that are in the folder now
        self._tables: dict[
            int, tuple[_Methods, _Methods]
        ] = {}  # the platform's table -> its original copy, ours
        self._callbacks: list[Any] = []  # callbacks live as long as SQLite may call them

    @classmethod
    def install(cls) -> FileLayer:
        """Put a layer under this process's SQLite. Raises `Unavailable` if that is impossible."""
        layer = cls()
        # A handle on the module finds the library that the module itself is linked with, and no
        # other that may be loaded.
        try:
            library = ctypes.CDLL(_sqlite3.__file__)
            library.sqlite3_vfs_find.restype = ctypes.POINTER(_VFS)
            library.sqlite3_vfs_find.argtypes = [ctypes.c_char_p]
            library.sqlite3_vfs_register.argtypes = [_P, _I]
            library.sqlite3_libversion.restype = ctypes.c_char_p
        except (AttributeError, OSError) as error:
            raise Unavailable(
                f"this Python's sqlite3 shows no functions of its library: {error}"
            ) from error
        if library.sqlite3_libversion().decode() != sqlite3.sqlite_version:
            raise Unavailable("another SQLite was found than the one that this Python uses")
        platform = library.sqlite3_vfs_find(None)
        if not platform or platform.contents.name != b"unix":
            raise Unavailable("the default VFS is not SQLite's 'unix'")
        layer._platform = platform
        layer._vfs = _VFS.from_buffer_copy(platform.contents)
        layer._vfs.next = None
        layer._vfs.name = b"file_layer"
        layer._vfs.open = layer._callback(_OPEN, layer._open)
        layer._vfs.delete = layer._callback(_DELETE, layer._delete)
        if library.sqlite3_vfs_register(ctypes.byref(layer._vfs), 1) != _OK:
            raise Unavailable("SQLite refused the layer")
        probe = sqlite3.connect(f"file:{os.devnull}?mode=ro", uri=True)
        try:
            probe.execute("PRAGMA schema_version")
        except sqlite3.Error:
            pass
        finally:
            probe.close()
        if not layer.opened:
            raise Unavailable("this Python's connections do not come by")
        layer.log.clear()
        return layer

    def mark(self, *words: Any) -> None:
        """Put a mark into the record."""
        self.log.append(Mark(words))

    def _callback(self, kind: Callable[..., Any], work: Callable[..., int]) -> int:
        def guarded(*arguments: Any) -> int:
            try:
                return work(*arguments)
            except BaseException as error:
                self.broken.append(error)
                return 10

        callback = kind(guarded)
        self._callbacks.append(callback)
        return ctypes.cast(callback, _P).value or 0

    def _strikes(self, op: str) -> Fault | None:
        with self._lock:
            self.counts[op] += 1
            fault = self.fault
            if fault is None or op not in fault.ops:
                return None
            self._operations += 1
            if self._operations == fault.nth or (fault.lasting and self._operations > fault.nth):
                self.struck += 1
                return fault
            return None

    # --- methods of the VFS ---

    def _open(self, _vfs: int, name: int | None, file: int, flags: int, out: Any) -> int:
        # None: a temporary file of SQLite's own
        path = ctypes.string_at(name).decode() if name else None
        existed = path is not None and os.path.exists(path)
        code = _OPEN(self._platform.contents.open)(
            ctypes.addressof(self._platform.contents), name, file, flags, out
        )
        self.opened += 1
        methods = ctypes.cast(file, ctypes.POINTER(_P))
        if code != _OK or path is None or not methods[0]:
            return code
        if path not in self._names or not existed:
            self._names[path] = next(self._numbers)
            self.log.append(Created(self._names[path], path, bool(flags & _NEW_IN_FOLDER)))
        self._files[file] = self._names[path]
        methods[0] = self._methods(methods[0])
        return code

    def _delete(self, _vfs: int, name: bytes, sync: int) -> int:
        fault = self._strikes("delete")
        if fault is not None:
            if fault.how == "torn":
                os.kill(os.getpid(), signal.SIGKILL)
            return _IOERR["delete"]
        code = _DELETE(self._platform.contents.delete)(
            ctypes.addressof(self._platform.contents), name, sync
        )
        if code == _OK:
            self._names.pop(name.decode(), None)
            self.log.append(Deleted(name.decode(), bool(sync)))
        return code

    # --- methods of the files ---

    def _methods(self, platform: int) -> int:
        """Return the address of the method table that takes the place of the platform's."""
        if platform not in self._tables:
            theirs = _Methods.from_address(platform)
            ours = _Methods()
            # A table of an older version ends earlier.
            size = {1: 13, 2: 17}.get(theirs.version, 19) * ctypes.sizeof(_P)
            ctypes.memmove(ctypes.addressof(ours), platform, size)
            ours.close = self._callback(_CLOSE, self._closer(_CLOSE(theirs.close)))
            ours.write = self._callback(_WRITE, self._writer(_WRITE(theirs.write)))
            ours.truncate = self._callback(_TRUNCATE, self._truncater(_TRUNCATE(theirs.truncate)))
            ours.sync = self._callback(_SYNC, self._syncer(_SYNC(theirs.sync)))
            self._tables[platform] = (theirs, ours)
        return ctypes.addressof(self._tables[platform][1])

    def _closer(self, close: Callable[[int], int]) -> Callable[..., int]:
        def work(file: int) -> int:
            self._files.pop(file, None)
            return close(file)

        return work

    def _writer(self, write: Callable[[int, int, int, int], int]) -> Callable[..., int]:
        def work(file: int, data: int, size: int, offset: int) -> int:
            fault = self._strikes("write")
            if fault is not None:
                middle = offset + size // 2
                size = {"short": size // 2, "torn": max(0, middle - middle % SECTOR - offset)}.get(
                    fault.how, 0
                )
            code = write(file, data, size, offset) if size else _OK
            if code == _OK and size:
                self.log.append(Written(self._files[file], offset, ctypes.string_at(data, size)))
            if fault is not None:
                if fault.how == "torn":
                    os.kill(os.getpid(), signal.SIGKILL)
                return _IOERR["write"] if fault.how == "ioerr" else _FULL
            return code

        return work

    def _truncater(self, truncate: Callable[[int, int], int]) -> Callable[..., int]:
        def work(file: int, size: int) -> int:
            fault = self._strikes("truncate")
            if fault is not None:
                if fault.how == "torn":
                    os.kill(os.getpid(), signal.SIGKILL)
                return _IOERR["truncate"]
            code = truncate(file, size)
            if code == _OK:
                self.log.append(Truncated(self._files[file], size))
            return code

        return work

    def _syncer(self, sync: Callable[[int, int], int]) -> Callable[..., int]:
        def work(file: int, flags: int) -> int:
            since = len(self.log)  # writes of other threads in the meantime are not on the disk yet
            fault = self._strikes("sync")
            number = self._files[file]
            if fault is not None:
                if fault.how == "torn":
                    os.kill(os.getpid(), signal.SIGKILL)
                self.log.append(Synced(number, since, failed=True))
                return _IOERR["sync"]
            code = sync(file, flags)
            self.log.append(Synced(number, since, failed=code != _OK))
            return code

        return work


# --- images after a loss of power ---

Image = dict[str, bytes]  # the files by name
Choice = Literal["none", "all", "but one", "some"]


@dataclass
class Disk:
    """A record played up to some place: the content that is certainly on the disk, and the changes
    that are under way to it.

    Any of the writes and truncations since the last sync of their file may have arrived, whole, in
    some of their sectors, or with garbage in some. Bytes beside a write stay unchanged (SQLite's
    "powersafe overwrite", which its unix VFS takes for granted). Of the changes of names in the
    folder since the folder's last sync, any beginning may have arrived. Files do not wait for one
    another.
    """

    chance: random.Random
    place: int = 0
    content: dict[int, bytearray] = field(default_factory=dict)
    pending: dict[int, list[tuple[int, Written | Truncated]]] = field(default_factory=dict)
    # the certain content first; None: no such file
    names: dict[str, list[int | None]] = field(default_factory=dict)
    journals: set[int] = field(default_factory=set)  # files whose folder was not synced yet
    changes: int = 0

    def play(self, entry: Entry) -> None:
        """Apply one entry."""
        match entry:
            case Created(file, name, journal):
                self.content[file], self.pending[file] = bytearray(), []
                self.names.setdefault(name, [None]).append(file)
                if journal:
                    self.journals.add(file)
            case Written(file) | Truncated(file):
                self.pending[file].append((self.place, entry))
            case Synced(file, since, failed):
                for place, change in self.pending[file]:
                    if place < since and (not failed or self.chance.random() < 0.5):
                        _apply(self.content[file], change)
                self.pending[file] = [
                    (place, change) for place, change in self.pending[file] if place >= since
                ]
                self.changes += 1
                if not failed and file in self.journals:
                    self.journals.discard(file)
                    self._sync_folder()
            case Deleted(name, synced):
                self.names.setdefault(name, [None]).append(None)
                if synced:
                    self._sync_folder()
            case Mark():
                pass
        self.place += 1

    def _sync_folder(self) -> None:
        self.names = {name: states[-1:] for name, states in self.names.items()}
        self.changes += 1

    def image(self, choice: Choice) -> tuple[Any, Image]:
        """Return one of the possible folders, and a key that is equal only for equal folders.

        `none`: only the certain content; `all`: everything (the state after the death of the
        process alone); `but one`: all changes but one, as when one write is late; `some`: any.
        """
        chance = self.chance
        waiting = [place for changes in self.pending.values() for place, _ in changes]
        late = chance.choice(waiting) if waiting else -1
        share = chance.choice((0.1, 0.5, 0.9))
        key: list[Any] = [self.changes]
        files: Image = {}
        for name, states in self.names.items():
            step = (
                0
                if choice == "none"
                else chance.randrange(len(states))
                if choice == "some"
                else len(states) - 1
            )
            file = states[step]
            key.append(file)
            if file is None:
                continue
            content = bytearray(self.content[file])
            for place, change in self.pending[file]:
                if (
                    choice == "none"
                    or (choice == "but one" and place == late)
                    or (choice == "some" and chance.random() > share)
                ):
                    continue
                key.append(place)
                if choice == "some" and isinstance(change, Written) and chance.random() < 0.3:
                    key.append(self._tear(content, change))
                else:
                    _apply(content, change)
            files[name] = bytes(content)
        return tuple(key), files

    def _tear(self, content: bytearray, change: Written) -> tuple[int, ...]:
        """Apply only some sectors of a write: its beginning, any of them, or with garbage in one."""
        end = change.offset + len(change.data)
        borders = [
            change.offset,
            *range(change.offset - change.offset % SECTOR + SECTOR, end, SECTOR),
            end,
        ]
        sectors = list(pairwise(borders))
        way = self.chance.choice(("beginning", "any", "garbage"))
        cut = self.chance.randrange(len(sectors) + 1)
        fates = [
            int(n < cut if way == "beginning" else self.chance.random() < 0.5)
            for n in range(len(sectors))
        ]
        if way == "garbage":
            fates[min(cut, len(sectors) - 1)] = 2
        for (start, stop), fate in zip(sectors, fates, strict=True):
            if fate:
                data = change.data[start - change.offset : stop - change.offset]
                _apply(
                    content,
                    Written(
                        change.file, start, self.chance.randbytes(len(data)) if fate == 2 else data
                    ),
                )
        return tuple(fates)


def _apply(content: bytearray, change: Written | Truncated) -> None:
    if isinstance(change, Truncated):
        del content[change.size :]
        content.extend(bytes(change.size - len(content)))
    else:
        content.extend(bytes(max(0, change.offset - len(content))))
        content[change.offset : change.offset + len(change.data)] = change.data


def write_out(image: Image, folder: Path) -> None:
    """Write the files of an image to an empty folder, each under its last name."""
    for name, content in image.items():
        (folder / Path(name).name).write_bytes(content)


def play(log: list[Entry], chance: random.Random) -> Iterator[Disk]:
    """Yield the disk before the first entry, and after each."""
    disk = Disk(chance)
    yield disk
    for entry in log:
        disk.play(entry)
        yield disk
