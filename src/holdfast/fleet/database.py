"""The small part of SQLite and Postgres that the fleet's own tables need.

SQL is written once, with these placeholders:

| placeholder | meaning |
|---|---|
| `?` | a parameter |
| `{p}` | the prefix of a table's name |
| `{now}` | the database's clock in seconds |
| `{skip}` | the clause that passes over locked rows |
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

from holdfast.errors import StoreError

T = TypeVar("T")
_CHUNK_ROWS = 100  # of one statement; SQLite takes few parameters in some builds
_TIMEOUT_SECONDS = 30.0  # for another process that writes the SQLite file


class FleetStatements(Protocol):
    """A transaction, or the cursor of a store's transaction."""

    def run(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Execute a statement and return its rows."""
        ...

    def run_rows(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Execute a statement with `{rows}`, a query that returns these rows: of texts, whole
        numbers and floats. Each column has one type."""
        ...

    def serialize(self, name: str) -> None:
        """Let one transaction of this name go on at a time, until it ends."""
        ...


class FleetDatabase(Protocol):
    """A connection to the database of the fleet's tables. Thread-safe."""

    def prepare(self, statements: Sequence[str]) -> None:
        """Execute statements that create tables, one process at a time."""
        ...

    def transact(self, work: Callable[[FleetStatements], T]) -> T:
        """Call `work` in one transaction, which writes. Raises `StoreError`."""
        ...

    def read(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of one query. Raises `StoreError`."""
        ...

    def within(self, transaction: object) -> FleetStatements:
        """Return the statements of a store's transaction."""
        ...

    def close(self) -> None:
        """Close the connection. Idempotent."""
        ...


class _SQLiteStatements:
    _words = {"p": "", "skip": "", "now": "((julianday('now') - 2440587.5) * 86400.0)"}

    def __init__(self, db: sqlite3.Connection | sqlite3.Cursor) -> None:
        self._db = db

    def run(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self._db.execute(sql.format_map(self._words), values).fetchall()

    def run_rows(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        for start in range(0, len(rows), _CHUNK_ROWS):
            chunk = rows[start : start + _CHUNK_ROWS]
            row = f"({', '.join('?' * len(chunk[0]))})"
            query = sql.replace("{rows}", f"VALUES {', '.join([row] * len(chunk))}")
            self.run(query, [value for one in chunk for value in one])

    def serialize(self, name: str) -> None:
        """Do nothing: `BEGIN IMMEDIATE` lets one transaction write at a time."""


class SQLiteFleetDatabase(FleetDatabase):
    """The fleet's tables in an SQLite file, or in memory (`path` None)."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lock = threading.Lock()
        try:
            self._db = sqlite3.connect(
                ":memory:" if path is None else path,
                timeout=_TIMEOUT_SECONDS,
                isolation_level=None,
                check_same_thread=False,
            )
            if path is not None:
                self._db.execute("PRAGMA journal_mode = WAL")
                # The tables hold hints. A power failure may lose the last of them.
                self._db.execute("PRAGMA synchronous = NORMAL")
        except sqlite3.Error as error:
            raise self._trouble(error) from error

    def prepare(self, statements: Sequence[str]) -> None:
        self.transact(lambda db: [db.run(one) for one in statements])

    def transact(self, work: Callable[[FleetStatements], T]) -> T:
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                try:
                    result = work(_SQLiteStatements(self._db))
                    self._db.execute("COMMIT")
                    return result
                except BaseException:
                    with suppress(sqlite3.Error):
                        self._db.execute("ROLLBACK")
                    raise
            except sqlite3.Error as error:
                raise self._trouble(error) from error

    def read(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._lock:
            try:
                return _SQLiteStatements(self._db).run(sql, values)
            except sqlite3.Error as error:
                raise self._trouble(error) from error

    def within(self, transaction: object) -> FleetStatements:
        assert isinstance(transaction, sqlite3.Cursor)
        return _SQLiteStatements(transaction)

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def _trouble(self, error: sqlite3.Error) -> StoreError:
        place = "memory" if self._path is None else repr(str(self._path))
        return StoreError(f"The fleet's tables in {place} cannot be used: {error}.")
