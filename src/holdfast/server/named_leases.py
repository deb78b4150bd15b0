"""Leases in the records: locks between servers that end with the server that holds them."""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from contextlib import contextmanager

from holdfast.errors import StoreError
from holdfast.server.database import Statements
from holdfast.server.records import Records

_TABLES = """
CREATE TABLE IF NOT EXISTS leases (name TEXT PRIMARY KEY, holder TEXT NOT NULL,
    until REAL NOT NULL)
"""
_NOW = "julianday('now') * 86400.0"  # the database's clock, in seconds
_TAKE = (
    f"INSERT INTO leases VALUES (?, ?, {_NOW} + ?) ON CONFLICT(name) DO UPDATE SET holder ="
    " excluded.holder, until = excluded.until WHERE leases.holder = excluded.holder OR"
    f" leases.until < {_NOW}"
)
_SECONDS = 60.0  # a lease of `hold`; longer than the work that it guards
_PAUSE_SECONDS = 0.02
_PRUNE_SECONDS = 3600.0  # leases that ended so long ago are deleted, once in this time


class NamedLeases:
    """The leases of one server. Thread-safe. Raises `StoreError`."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._holder = os.urandom(8).hex()
        self._prunes = 0.0
        records.create_tables(_TABLES)

    def take(self, name: str, seconds: float) -> bool:
        """Take or renew a lease for this many seconds. Return False if another server has it."""
        return self._records.run(_TAKE, name, self._holder, seconds) > 0

    def seize(self, name: str, seconds: float) -> None:
        """Take a lease, also from another server that has it."""
        values = name, self._holder, seconds
        statement = _TAKE.partition(" WHERE ")[0]
        with self._records.writing(lock=name) as db:
            db.execute(statement, values)
            if (now := time.monotonic()) >= self._prunes:
                self._prunes = now + _PRUNE_SECONDS
                db.execute(f"DELETE FROM leases WHERE until < {_NOW} - {_PRUNE_SECONDS}")

    def own(self, db: Statements, name: str) -> bool:
        """Return True if this server has the lease. Within a transaction with the lease's name as
        its lock, no other server takes it."""
        query = "SELECT 1 FROM leases WHERE name = ? AND holder = ?"
        return db.execute(query, (name, self._holder)).fetchone() is not None

    def is_held(self, name: str) -> bool:
        """Return True if a server has the lease."""
        query = f"SELECT 1 FROM leases WHERE name = ? AND until >= {_NOW}"
        return self._records.row(query, name) is not None

    def drop(self, name: str) -> None:
        """Give a lease back."""
        statement = "DELETE FROM leases WHERE name = ? AND holder = ?"
        self._records.run(statement, name, self._holder, forced=False)

    @contextmanager
    def hold(self, name: str, wait: bool = True) -> Generator[bool]:
        """Hold a lease within the block. Only one thread of this server may ask for it. Yields
        False if another server has it and `wait` is False."""
        until = time.monotonic() + 2 * _SECONDS
        while not (is_held := self.take(name, _SECONDS)) and wait:
            if time.monotonic() >= until:
                raise StoreError("Another server is at this for too long. Try again.")
            time.sleep(_PAUSE_SECONDS)
        try:
            yield is_held
        finally:
            if is_held:
                self.drop(name)
