"""`Database`: the place of a server's records, which are tables of rows. `SQLiteDatabase` is a file
beside the store. `PostgresDatabase` has the same tables for any number of servers."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol, cast

from holdfast.errors import StoreError

APPLICATION = 0x486F6C53  # PRAGMA application_id: "HolS"

# A killed server may hold the lock for this long through a child process that it was starting.
_LOCK_GRACE_SECONDS = 1.0

Values = Sequence[object] | Mapping[str, object]


class QueryResult(Protocol):
    """The rows of a query, or the number of rows that a statement has changed."""

    @property
    def rowcount(self) -> int: ...
    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...
    def __iter__(self) -> Iterator[Any]: ...


class Statements(Protocol):
    """Executes statements, in SQLite's dialect, with `?` or `:name` for values."""

    def execute(self, statement: str, values: Values = (), /) -> QueryResult: ...
    def executemany(self, statement: str, rows: Sequence[Sequence[object]], /) -> object: ...


class Database(Protocol):
    """Tables of records. Thread-safe. All methods raise `StoreError` if it cannot be used.

    `shared` is True if several servers use it at the same time.
    """

    @property
    def shared(self) -> bool: ...

    def reading(self) -> AbstractContextManager[Statements]:
        """Yield the database for queries."""
        ...

    def writing(self, forced: bool = True, lock: str = "") -> AbstractContextManager[Statements]:
        """Yield the database within one transaction.

        Args:
            forced: False if a power loss may undo the transaction until a later forced one is
                written. A transaction survives the end of the process in any case.
            lock: Transactions with the same name come one after the other. On a database that is
                not shared, all do.
        """
        ...

    def prepare(self, db: Statements, tables: str, format: int) -> bool:
        """Create the tables in an empty database, and return True if it was empty. Raises
        `StoreError` if it belongs to another program or to a newer format."""
        ...

    def check(self) -> None:
        """Raise `StoreError` if the database cannot be used."""
        ...

    def own(self) -> None:
        """Lock a database that is not shared for this server, until `close`. Raises `StoreError`
        if another process, or another host in this process, holds the lock."""
        ...

    def close(self) -> None:
        """Release files and connections. Idempotent."""
        ...


class SameFile:
    """The file that was first seen at `path`. Writes are lost once it was removed or replaced."""

    def __init__(self, path: Path, what: str) -> None:
        self._path = path
        self._what = what
        self._file = self._look()

    def check(self) -> None:
        """Raise `StoreError` if the file was removed or replaced."""
        place = self._look()
        self._file = self._file or place
        if place != self._file:
            raise StoreError(
                f"{self._what} {str(self._path)!r} was removed or replaced by another file while"
                " the server ran. Stop it, put the file back, and start it again."
            )

    def _look(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            return None
        except OSError as error:
            message = f"{self._what} {str(self._path)!r} cannot be found: {error.strerror}."
            raise StoreError(message) from error
        return status.st_dev, status.st_ino


class SQLiteDatabase:
    """A file of records, which one server has for itself. See `Database`."""

    shared = False

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._closed = False
        self._file: SameFile | None = None
        self._owned: int | None = None
        with self._translate_errors():
            self._db = sqlite3.connect(
                self.path, timeout=30.0, isolation_level=None, check_same_thread=False
            )
        try:
            with self._translate_errors():
                self._db.execute("PRAGMA journal_mode = WAL")
                self._file = SameFile(self.path, "The records file")  # the pragma has created it
                # A conversation whose record is lost is lost to its client, even if its journal
                # exists.
                self._db.execute("PRAGMA synchronous = FULL")
                self._db.execute("PRAGMA secure_delete = ON")  # as in a store
        except BaseException:
            self._db.close()
            raise

    def prepare(self, db: Statements, tables: str, format: int) -> bool:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        (application,) = db.execute("PRAGMA application_id").fetchone()
        empty = db.execute("SELECT 1 FROM sqlite_master").fetchone() is None
        if application != APPLICATION and not (application == 0 and empty):
            raise StoreError(
                f"{str(self.path)!r} is an SQLite file, but not the records of a Holdfast server."
            )
        if version > format:
            raise StoreError(
                f"Records {str(self.path)!r} were written by a newer Holdfast (format {version},"
                f" this one reads {format})."
            )
        if empty:
            for statement in tables.split(";"):
                db.execute(statement)
            db.execute(f"PRAGMA application_id = {APPLICATION}")
            db.execute(f"PRAGMA user_version = {format}")
        return empty

    @contextmanager
    def reading(self) -> Generator[Statements]:
        with self._lock:
            if self._closed:
                raise StoreError(f"Records {str(self.path)!r} are closed.")
            if self._file is not None:
                self._file.check()
            with self._translate_errors():
                yield cast(Statements, self._db)

    @contextmanager
    def writing(self, forced: bool = True, lock: str = "") -> Generator[Statements]:
        with self.reading() as db:
            if not forced:
                db.execute("PRAGMA synchronous = NORMAL")
            try:
                db.execute("BEGIN IMMEDIATE")
                yield db
                db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    db.execute("ROLLBACK")
                raise
            finally:
                if not forced:
                    db.execute("PRAGMA synchronous = FULL")

    @contextmanager
    def _translate_errors(self) -> Generator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StoreError(f"Records {str(self.path)!r} cannot be used: {error}.") from error

    def check(self) -> None:
        with self.reading():
            pass

    def own(self) -> None:
        import fcntl

        path = Path(f"{self.path}-host")
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        until = time.monotonic() + _LOCK_GRACE_SECONDS
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if time.monotonic() >= until:
                    os.close(fd)
                    raise StoreError(
                        f"Another server uses the records {str(self.path)!r}. Stop that server, or"
                        " start this one with another store."
                    ) from error
                time.sleep(0.02)
        self._owned = fd

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                self._db.close()
                if self._owned is not None:
                    os.close(self._owned)

    def __repr__(self) -> str:
        return f"SQLiteDatabase({str(self.path)!r})"
