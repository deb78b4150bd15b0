"""Connections to an SQLite store's file, and the errors for a file that cannot be used."""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from holdfast.errors import StoreError
from holdfast.processes import OwnerProcess
from holdfast.store.sqlite import schema
from holdfast.temporary import TemporaryFolder

T = TypeVar("T")

# The errors that sqlite3 raises for a damaged file. A message that quotes garbage, or an absurd
# size, raises something other than sqlite3.Error.
DAMAGE = (sqlite3.Error, UnicodeError, OverflowError, MemoryError)


def connect(path: Path, timeout: float, options: str = "") -> sqlite3.Connection:
    """Open a connection in autocommit mode, with SQLite's URI `options`."""
    try:
        # cached_statements: enough to prepare every statement of a store only once.
        return sqlite3.connect(
            f"file:{quote(str(path))}?{options}" if options else path,
            timeout=timeout,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=64,
            uri=bool(options),
        )
    except (sqlite3.Error, UnicodeError) as error:
        raise StoreError(f"Store {str(path)!r} cannot be opened: {error}.") from error


def trouble(path: Path, error: Exception, timeout: float, *, sure: bool = True) -> StoreError:
    """Return the error for a failed write: the file, the cause, and the remedy. `sure` is False if
    the write may have reached the disk."""
    outcome = "Nothing was written"
    if not sure:
        outcome = "It is not known whether the data was written; open the store again and read it"
    return StoreError(f"Store {str(path)!r}: {error}. {outcome}.{_advice(error, timeout)}")


_NOT_WRITABLE = (
    " The file, its folder and its -wal must be writable; read_only=True opens it for reading."
)
_BUSY = (
    " Another process has been writing for longer than timeout={timeout:g} seconds; try again, or"
    " give a longer timeout."
)
_ADVICE = {
    sqlite3.SQLITE_FULL: " Free some space on the disk and try again.",
    sqlite3.SQLITE_BUSY: _BUSY,
    sqlite3.SQLITE_LOCKED: _BUSY,
    sqlite3.SQLITE_READONLY: _NOT_WRITABLE,
    sqlite3.SQLITE_CANTOPEN: _NOT_WRITABLE,
    sqlite3.SQLITE_PERM: _NOT_WRITABLE,
    sqlite3.SQLITE_CORRUPT: " The file is damaged; copy it with its -wal before anything else.",
    sqlite3.SQLITE_NOTADB: " The file is damaged; copy it with its -wal before anything else.",
    sqlite3.SQLITE_IOERR: (
        " The disk refused the operation; check free space, quotas and the system's log, and try"
        " again."
    ),
}


def _advice(error: Exception, timeout: float) -> str:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return _ADVICE.get(code, "").format(timeout=timeout)


def connect_unchanged(
    path: Path, timeout: float
) -> tuple[sqlite3.Connection, TemporaryFolder | None, bool]:
    """Open a connection that changes neither the file nor its folder.

    SQLite cannot open a WAL database without creating a -shm beside it, so there are three cases:

    | the file has | connection |
    |---|---|
    | a -shm | live: SQLite uses that -shm |
    | a -wal but no -shm | to a private copy of file and -wal; nobody writes |
    | neither | immutable: SQLite takes the file for one that never changes |

    Returns the connection, the folder of the copy, and True for a live connection.
    """
    if os.path.exists(f"{path}-shm"):
        db = connect(path, timeout, "mode=ro&readonly_shm=1")
        try:
            db.execute("SELECT 1 FROM sqlite_master").fetchone()
            return db, None, True
        except BaseException as error:
            db.close()
            if not isinstance(error, sqlite3.OperationalError):
                raise
    wal = Path(f"{path}-wal")
    if not wal.exists() or not wal.stat().st_size:
        return connect(path, timeout, "mode=ro&immutable=1"), None, False
    copy = TemporaryFolder("holdfast-store-")
    try:
        for end in ("", "-wal"):
            shutil.copyfile(f"{path}{end}", copy.path / f"store.db{end}")
        return connect(copy.path / "store.db", timeout), copy, False
    except BaseException:
        copy.close()
        raise


class ReadConnection:
    """The reading connection of a store, beside the one that writes."""

    def __init__(self, path: Path, timeout: float) -> None:
        self._path = path
        self._timeout = timeout
        self._lock = threading.Lock()
        self._process = OwnerProcess()
        self._db: sqlite3.Connection | None = None
        self._connections = 0  # number of connections made
        self._closed = False

    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Return the result of `work`. Raises `StoreError`."""
        self._process.check(f"Store {str(self._path)!r}")
        with self._lock:
            if self._closed:
                raise StoreError(f"Store {str(self._path)!r} is closed.")
            try:
                return self._run(work)
            except StoreError:
                raise
            except FileNotFoundError as error:
                raise StoreError(
                    f"Store {str(self._path)!r} does not exist; read_only=True opens only an"
                    " existing store."
                ) from error
            except (*DAMAGE, OSError) as error:
                advice = _advice(error, self._timeout)
                raise StoreError(
                    f"Store {str(self._path)!r} cannot be read: {error}.{advice}"
                ) from error

    def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._db is None:
            # rw: a store that was moved away is not created anew, as an empty file
            self._db = connect(self._path, self._timeout, "mode=rw")
        return work(self._db)

    def version(self) -> object:
        """Return a value that changes whenever another connection writes."""
        return self.read(
            lambda db: (self._connections, db.execute("PRAGMA data_version").fetchone()[0])
        )

    def _disconnect(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def close(self) -> None:
        """Close the connection. Idempotent; does nothing in a forked child."""
        if not self._process.here:
            return
        with self._lock:
            self._closed = True
            self._disconnect()


class ReadOnlyConnection(ReadConnection):
    """A connection that reads a store's file and changes neither it nor its folder.

    The folder may be writable or read-only, with or without a process that writes. After each read,
    the class checks whether the file changed. If so, it reconnects (`connect_unchanged`) and reads
    again, so that the function to read with may be called more than once.
    """

    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__(path, timeout)
        self._copy: TemporaryFolder | None = None
        self._live = False
        self._stamp: list[tuple[int, int, int]] = []
        try:
            if self.read(lambda db: schema.format_of(db, path)) == 0:
                raise StoreError(f"{str(self._path)!r} is not a Holdfast store.")
        except BaseException:
            self.close()
            raise

    def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        for _ in range(100):
            if self._db is None or not self._unchanged():
                self._disconnect()
                self._stamp = self._file_stamp()
                self._connections += 1
                self._db, self._copy, self._live = connect_unchanged(self._path, self._timeout)
            try:
                result = work(self._db)
            except (*DAMAGE, StoreError):
                if self._unchanged():
                    raise
            else:
                if self._unchanged():
                    return result
        raise StoreError(
            f"Store {str(self._path)!r} cannot be read: the file keeps changing. Try again."
        )

    def _unchanged(self) -> bool:
        if self._live:  # SQLite sees every change of the same file
            return self._stamp[0][0] == os.stat(self._path).st_ino
        return self._stamp == self._file_stamp()

    def _file_stamp(self) -> list[tuple[int, int, int]]:
        """Return inode, size and time of the file, its -wal and its -shm, if they exist.
        Raises `FileNotFoundError` if the file itself is missing."""
        stats = [os.stat(self._path)]
        for end in ("-wal", "-shm"):
            with suppress(FileNotFoundError):
                stats.append(os.stat(f"{self._path}{end}"))
        return [(one.st_ino, one.st_size, one.st_mtime_ns) for one in stats]

    def _disconnect(self) -> None:
        super()._disconnect()
        self._live = False
        if self._copy is not None:
            self._copy.close()
            self._copy = None
