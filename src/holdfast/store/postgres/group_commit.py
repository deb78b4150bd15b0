"""Group commit: writes of several threads become one statement and one commit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, LiteralString, NamedTuple

import psycopg
from psycopg.rows import TupleRow

from holdfast.errors import StoreError
from holdfast.object_struct import ObjectStruct
from holdfast.store.postgres.connection import Connection
from holdfast.store.postgres.pool import Pool, StatementRows, broken

# The largest number of writes, and of their bytes, in one statement.
MAX_WRITES = 64
MAX_BYTES = 1 << 20
# So many writes go through the pool before a separate connection is opened for them. A command that
# writes a few events does not wait for it.
_WRITES_THROUGH_POOL = 8
_PATIENCE_SECONDS = 1.0  # for the statements of others; a write that waited longer goes alone

# The plan of a grouped statement must not depend on how full the tables are: it is made once, when
# they may be empty. A lock of another store's transaction must not delay a whole group for long.
_SESSION = """
SET plan_cache_mode = force_generic_plan; SET jit = off; SET enable_seqscan = off;
SET enable_hashjoin = off; SET enable_mergejoin = off; SET lock_timeout = 500
"""


class Write(NamedTuple):
    """A write of one conversation.

    Args:
        key: Its first column in the rows of a grouped statement.
        query: The statement that does this write alone.
        values: The values of `query`, and of its part of a grouped statement.
        size: About the number of its bytes.
    """

    key: int | str
    query: LiteralString
    values: Mapping[str, Any]
    size: int = 0


class _Waiting(ObjectStruct):
    """A write that waits for its group. `signal` is held until it is executed, or leads."""

    write: Write
    signal: threading.Lock
    leads: bool = False
    result: StatementRows | None = None
    is_cut_off: bool = False  # True if the connection broke while the group was written


class GroupCommit:
    """Executes the writes of any number of threads, one statement at a time.

    A thread that finds no statement under way executes its own write at once. Threads that come
    meanwhile wait; then the first of them executes all writes. A group that fails is split: each of
    its writes is executed alone, as if there had been no group.

    Args:
        pool: Connections for the first writes, and for those of a failed group. The other writes
            have a separate connection, because lending one costs the client more than a statement.
        query: The statement of a group.
        columns: Returns the values of `query` for these writes.
    """

    def __init__(
        self,
        pool: Pool,
        query: LiteralString,
        columns: Callable[[Sequence[Mapping[str, Any]]], Mapping[str, Any]],
    ) -> None:
        self._pool = pool
        self._query: LiteralString = query
        self._columns = columns
        self._lock = threading.Lock()
        self._busy = False
        self._waiting: list[_Waiting] = []
        self._through_pool = _WRITES_THROUGH_POOL  # writes that are left to it
        self._connection: Connection | None = None  # used by the leader

    def execute(self, write: Write) -> StatementRows:
        """Return the rows of a write; those of a group without their first column. Raises
        `StoreError`. See `Pool.execute`."""
        self._pool.check()  # before the lock, which a missing thread may hold in a forked child
        own = _Waiting(write, threading.Lock())
        with self._lock:
            own.leads, self._busy = not self._busy, True
            if not own.leads:
                own.signal.acquire()
                self._waiting.append(own)
        if not own.leads:
            self._wait(own)
        if own.leads:
            self._lead(own)
        if own.result is not None:
            return own.result
        rows, again = self._pool.execute(write.query, write.values)
        return StatementRows(rows, again or own.is_cut_off)

    def _wait(self, own: _Waiting) -> None:
        """Wait until a write is executed, or leads, or has waited for too long."""
        try:
            if own.signal.acquire(timeout=_PATIENCE_SECONDS):
                return
            with self._lock:
                if own in self._waiting:
                    self._waiting.remove(own)
                    return
            own.signal.acquire()
        except BaseException:  # Ctrl-C
            with self._lock:
                if own in self._waiting:
                    self._waiting.remove(own)
            if own.leads:
                self._pass_on()
            raise

    def _lead(self, own: _Waiting) -> None:
        group = self._gather(own)
        try:
            if len(group) > 1:
                self._write(group)
            elif self._through_pool:
                self._through_pool -= 1
                own.result = self._pool.execute(own.write.query, own.write.values)
            else:
                self._write_alone(own)
        finally:
            self._pass_on()
            for one in group[1:]:
                one.signal.release()

    def _gather(self, own: _Waiting) -> list[_Waiting]:
        """Return the group of a leader, and remove it from the waiting writes."""
        group, size = [own], own.write.size
        with self._lock:
            for one in self._waiting[: MAX_WRITES - 1]:
                size += one.write.size
                if size > MAX_BYTES:
                    break
                group.append(one)
            del self._waiting[: len(group) - 1]
        return group

    def _pass_on(self) -> None:
        with self._lock:
            self._busy = bool(self._waiting)
            if self._waiting:
                leader = self._waiting.pop(0)
                leader.leads = True
                leader.signal.release()
            elif self._pool.closed:
                self._drop()

    def _write(self, group: Sequence[_Waiting]) -> None:
        """Execute a group. Leaves the results empty if that fails."""
        rows = self._rows(group, self._query, self._columns([one.write.values for one in group]))
        if rows is None:
            return
        rows_by_key: dict[int | str, list[tuple[Any, ...]]] = {}
        for key, *row in rows:
            rows_by_key.setdefault(key, []).append(tuple(row))
        for one in group:
            one.result = StatementRows(rows_by_key.get(one.write.key, []), False)

    def _write_alone(self, own: _Waiting) -> None:
        """Execute a group of one."""
        rows = self._rows((own,), own.write.query, own.write.values)
        if rows is not None:
            own.result = StatementRows(rows, False)

    def _rows(
        self, group: Sequence[_Waiting], query: LiteralString, values: Mapping[str, Any]
    ) -> list[TupleRow] | None:
        """Return the rows of a group's statement, None if it failed."""
        is_sent = False
        try:
            connection = self._connection or self._connect()
            is_sent = True
            return connection.statements.rows(query, values)
        except (psycopg.Error, StoreError, UnicodeError) as error:
            if isinstance(error, psycopg.Error) and broken(error):
                self._drop()
                for one in group:
                    one.is_cut_off = is_sent
            return None
        except BaseException:  # Ctrl-C: the connection is in the middle of a statement
            self._drop()
            for one in group:
                one.is_cut_off = is_sent
            raise

    def _connect(self) -> Connection:
        connection = self._pool.connect()
        try:
            connection.execute(_SESSION)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()

    def close(self) -> None:
        """Close the connection of the groups. Idempotent."""
        with self._lock:
            if not self._busy:
                self._drop()
