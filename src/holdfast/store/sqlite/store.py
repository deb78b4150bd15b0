"""A store that keeps its journals in one SQLite file: the embedded default."""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from holdfast import commands
from holdfast import events as ev
from holdfast.commands import Command
from holdfast.error_forms import ErrorForm
from holdfast.errors import ConfigurationError, HoldfastError, LeaseHeld, StoreError
from holdfast.events import AnyEvent
from holdfast.processes import OwnerProcess
from holdfast.store import base
from holdfast.store.base import (
    Batch,
    DueTimer,
    FireTimers,
    Lease,
    Posted,
    Store,
    Summary,
    WorkBell,
)
from holdfast.store.budgets import Budget, Reservation, Settlement, Shortage, SQLLedger
from holdfast.store.firing import DueRow, firing_batches, within_limits
from holdfast.store.following import follow_events
from holdfast.store.sqlite import lineage, schema
from holdfast.store.sqlite.commit import Committer, Job
from holdfast.store.sqlite.files import ReadConnection, ReadOnlyConnection, trouble
from holdfast.store.sqlite.marks import Mark, losses, marks, owners_folder
from holdfast.store.sqlite.owner import Owner
from holdfast.store.sqlite.rows import read_tags
from holdfast.store.sqlite.watch import Watcher

T = TypeVar("T")

_log = logging.getLogger("holdfast")

_MOVE = """
UPDATE conversations SET last_seq = ?, status = ?, title = ?, updated = ?, condensed = ?
WHERE number = ? AND epoch = ? AND last_seq = ?
"""

# An imported fork brings its origin; a fork made in this store keeps the origin in its row.
_FIRST = """
UPDATE conversations SET created = ?, parent_seq = iif(parent = '', ?, parent_seq),
parent = iif(parent = '', ?, parent), spawned_by = ? WHERE number = ?
"""

# A new conversation's epoch is its number, and deleting one raises the next number above its epoch.
# So no old lease fits a conversation that is created again.
_BEGIN = """
INSERT INTO conversations
(id, epoch, holder, last_seq, status, title, created, updated, parent, parent_seq, base, condensed)
VALUES (?, 0, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""

_LIST = (
    "SELECT id, status, title, last_seq, created, updated, parent, parent_seq, condensed,"
    " spawned_by, tags FROM conversations WHERE "
)
_UNDONE = "number IN (SELECT conversation FROM inbox WHERE data IS NOT NULL)"
# That is: spawned_by begins with the id and a colon.
_SPAWNED = "spawned_by >= :spawner || ':' AND spawned_by < :spawner || ';'"
_TAGGED = (
    "tags <> '' AND NOT EXISTS (SELECT 1 FROM json_each(:tags) wanted WHERE wanted.value NOT IN"
    " (SELECT value FROM json_each(conversations.tags)))"
)
_FORKED = "parent <> '' AND "
_SET_TAGS = "UPDATE conversations SET tags = ? WHERE number = ?"

# A dead owner may hold conversations at rest. The taker of such a lease gives it back.
_DEAD = "holder IN (SELECT value FROM json_each(:dead))"
_ORPHANED = f"""
SELECT id, number FROM conversations WHERE holder <> '' AND {_DEAD} AND spawned_by = ''
LIMIT :limit
"""
_GIVEN_BACK = """
SELECT id, number FROM conversations WHERE status = 'running' AND holder = '' AND spawned_by = ''
LIMIT :limit
"""
_WAITING = f"""
SELECT id, conversations.number FROM inbox JOIN conversations
ON conversations.number = inbox.conversation WHERE data IS NOT NULL AND conversation > :after
AND (holder = '' OR {_DEAD}) GROUP BY conversation ORDER BY conversation LIMIT :limit
"""

_RELEASE = "UPDATE conversations SET holder = '', notes = '', epoch = epoch + 1 WHERE"


_DUE = (
    "SELECT t.due, c.id, t.timer, t.conversation FROM timers t JOIN conversations c ON c.number ="
    " t.conversation WHERE t.due <= ? ORDER BY t.due, t.conversation, t.timer LIMIT ?"
)
_DUE_TO_RING = """
SELECT t.due, c.id, t.timer, t.conversation, c.holder = '' AND c.spawned_by = '' AND c.base = ''
AND NOT EXISTS (SELECT 1 FROM inbox i WHERE i.conversation = c.number AND i.data IS NOT NULL),
c.epoch, c.last_seq, c.condensed FROM timers t JOIN conversations c ON c.number = t.conversation
WHERE t.due <= ? ORDER BY t.due, t.conversation, t.timer LIMIT ?
"""
_SET_TIMER = "INSERT OR REPLACE INTO timers (due, conversation, timer) VALUES (?, ?, ?)"
_DROP_TIMER = "DELETE FROM timers WHERE conversation = ? AND timer = ?"
_NEXT_EPOCH = "UPDATE conversations SET epoch = epoch + 1 WHERE number = ?"
_POST = "INSERT OR IGNORE INTO inbox (conversation, key, data) VALUES (?, ?, ?)"
_MICROSECOND = timedelta(microseconds=1)

_INSERT = "INSERT INTO events (key, crc, data) VALUES (?, ?, ?)"


def _tags_text(summary: Summary) -> str:
    return json.dumps(summary.tags) if summary.tags else ""


def _one_of(column: str, ids: Sequence[str], values: dict[str, Any]) -> str:
    """Return the condition that a column has one of these ids, which are added to `values`."""
    valid_ids = [id for id in ids if base.is_utf8(id)]
    # SQLite's JSON ends a text at its first NUL, so those ids are bound one by one.
    odd = {f"{column}{number}": id for number, id in enumerate(valid_ids) if "\0" in id}
    values[column] = json.dumps([id for id in valid_ids if "\0" not in id])
    values |= odd
    in_list = f"{column} IN (SELECT value FROM json_each(:{column}))"
    return f"({in_list} OR {column} IN ({', '.join(f':{name}' for name in odd)}))"


def _rows(number: int, events: Sequence[AnyEvent]) -> list[tuple[int, int, bytes]]:
    """Return the rows of new events under a conversation's `number`, for `_INSERT`."""
    first = number << 32
    return [
        (first + event.seq, zlib.crc32(data), data)
        for event, data in zip(events, ev.records(events), strict=True)
    ]


def _fence(db: sqlite3.Cursor, number: int, lease: Lease) -> int:
    """Return the conversation's last seq. Raises `Fenced`."""
    query = "SELECT last_seq FROM conversations WHERE number = ? AND epoch = ?"
    row = db.execute(query, (number, lease.epoch)).fetchone()
    if row is None:
        raise base.fenced_error(lease)
    return row[0]


class _Rung(NamedTuple):
    """The timers that were rung, command numbers by conversation, and the last seqs and the
    numbers of conversations whose timers were fired."""

    timers: list[DueTimer]
    posted: dict[int, int]
    appended: dict[str, int]
    fired: list[int]


def _tails(db: sqlite3.Cursor, rows: Sequence[DueRow]) -> dict[int, list[tuple[int, int, Any]]]:
    """Return the seqs, checksums and JSON of the tails of conversations with a free lease."""
    rows_by_number = {row.number: row for row in rows if row.fires}
    return {
        number: db.execute(
            lineage.ROWS, ((number << 32) + row.condensed, (number << 32) + row.last_seq)
        ).fetchall()
        for number, row in rows_by_number.items()
    }


def _due_values(before: datetime, limit: int) -> tuple[int, int]:
    return (before - ev.EPOCH) // _MICROSECOND, max(limit, 0)


def _due_timer(row: tuple[Any, ...]) -> DueTimer:
    due, conversation_id, timer, *_ = row
    return DueTimer(conversation_id, timer, ev.EPOCH + due * _MICROSECOND)


class SQLiteStore(Store):
    """A `Store` in the SQLite file `path` (WAL mode), shared by any threads and processes of one
    host.

    A process that forks opens its own store in the child. A lease lives as long as its store's
    process. Where that cannot be observed (an owner on another machine, a disk without locks), the
    lease ends `lease_seconds` after the last `renew`. The store itself renews a lease that has a
    `notify`.

    Args:
        durability: With "durable" (default) an event is on disk when `append` returns, and writes
            that wait at the same time share one fsync. With "process" there is no fsync: an event
            survives the death of the process, but not of the machine.
        timeout: Seconds to wait for another process that writes.
        read_only: Open an existing store for reading, listing and following. Another process may
            write it, and the disk or folder may be read-only. Nothing is changed or created; every
            writing method raises `StoreError`.
        lease_seconds: Seconds after which a lease without a sign of life ends, where no lock
            decides.
        bell: Rung for each posted command, in the transaction of the post.

    Raises `StoreError` if the file cannot be opened, is no store, or was written by a newer
    Holdfast.
    """

    def __init__(
        self,
        path: str | Path,
        durability: Literal["durable", "process"] = "durable",
        *,
        timeout: float = 30.0,
        read_only: bool = False,
        lease_seconds: float = 30.0,
        bell: WorkBell | None = None,
    ) -> None:
        if durability not in ("durable", "process"):
            raise ConfigurationError(
                f"durability takes 'durable' or 'process', not {durability!r}."
            )
        if not isinstance(path, str | Path) or not str(path):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
            raise ConfigurationError(f"path takes a file's path, not {path!r}.")
        if str(path) == ":memory:":
            raise ConfigurationError(
                "path takes a file's path. MemoryStore() keeps journals in memory."
            )
        if not lease_seconds > 0:
            raise ConfigurationError(f"lease_seconds takes seconds above 0, not {lease_seconds!r}.")
        self.path = Path(path).absolute()  # the process may change its working directory
        self.read_only = read_only
        self._timeout = timeout
        self._lease_seconds = lease_seconds
        self._bell = bell
        self._leases: dict[str, tuple[int, int]] = {}  # number and epoch by conversation
        self._owner: Owner | None = None
        self._looked_at = 0  # the number of the last conversation that `unattended` looked at
        self._closed = False
        self._process = OwnerProcess()
        if self.path.is_dir() or not self.path.parent.is_dir():
            what = "is a folder" if self.path.is_dir() else "is in a folder that does not exist"
            raise StoreError(
                f"Store {str(self.path)!r} {what}. path takes a file, which is created if it does"
                " not exist."
            )
        if self.path.exists() and self.path.stat().st_size == 1:
            # SQLite takes a file of one byte for a new one and overwrites it.
            raise StoreError(f"{str(self.path)!r} is not a Holdfast store.")
        self._writer: Committer | None = None
        owner_marks = marks(self.path)  # read before the file, so that no mark is newer
        if not read_only:
            self._writer = Committer(self.path, timeout)
            try:
                self._prepare(self._writer, durability, owner_marks)
            except BaseException:
                self._writer.db.close()
                raise
        reads = ReadOnlyConnection if read_only else ReadConnection
        self._reader = reads(self.path, timeout)
        if read_only and owner_marks:
            for problem in self._reader.read(lambda db: losses(owner_marks, db.execute)):
                _log.warning("Store %r: %s", str(self.path), problem)
        self._watcher = Watcher(lambda: reads(self.path, timeout), self._beat, lease_seconds / 3)

    def _prepare(self, writer: Committer, durability: str, owner_marks: Sequence[Mark]) -> None:
        try:
            # Check before any write: after a write, a restored -wal would no longer match.
            if owner_marks and (problems := losses(owner_marks, writer.db.execute)):
                raise StoreError(f"Store {str(self.path)!r}: {problems[0]}")
            schema.prepare(writer.db, self.path, durability, self._timeout)
            writer.remember_file()
        except (sqlite3.Error, UnicodeError) as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN) and self.path.exists():
                raise StoreError(
                    f"Store {str(self.path)!r} cannot be written ({error}): the file, its folder"
                    " and its -wal must be writable. SQLiteStore(path, read_only=True) opens it"
                    " for reading."
                ) from error
            raise StoreError(f"Store {str(self.path)!r} cannot be used: {error}.") from error

    # --- leases ---

    def acquire(self, conversation_id: str, notify: Callable[[], None] | None = None) -> Lease:
        """The first lease with a `notify` starts a thread, which ends with the last one."""
        base.check_id(conversation_id)

        def take(db: sqlite3.Cursor) -> tuple[int, int, str, str, tuple[Budget, ...], bool]:
            token = self._own().token
            columns = "number, epoch, holder, notes, spawned_by"
            query = f"SELECT {columns} FROM conversations WHERE id = ?"
            entry = db.execute(query, (conversation_id,)).fetchone()
            if entry is None:
                now = datetime.now(UTC).isoformat()
                row = (conversation_id, token, 0, "idle", "", now, now, "", 0, "", 0)
                number = self._begin(db, row)
                return number, number, "", "", (), False
            number, epoch, holder, notes, spawned_by = entry
            self._refuse_if_held(conversation_id, holder)
            query = "UPDATE conversations SET epoch = ?, holder = ? WHERE number = ?"
            db.execute(query, (epoch + 1, token, number))
            above = SQLLedger(db).above(conversation_id, spawned_by)
            return number, epoch + 1, notes, spawned_by, above, bool(holder)

        number, epoch, notes, spawned_by, above, orphaned = self._write(take)
        self._leases[conversation_id] = (number, epoch)
        if notify is not None:
            self._watcher.hold(number, epoch, self._own().token, notify)
        orphan_notes = tuple(json.loads(notes)) if notes else ()
        return Lease(conversation_id, epoch, orphan_notes, spawned_by, above, orphaned)

    def renew(self, lease: Lease) -> None:
        self._committer()
        self._beat()
        self._reader.read(lambda db: self._check_held(db, lease))

    def confirm(self, lease: Lease) -> None:
        """See `Store.confirm`. The file's lock keeps the lease for as long as this process
        lives."""
        if self._leases.get(lease.conversation_id, (0, 0))[1] != lease.epoch:
            raise base.fenced_error(lease)

    def release(self, lease: Lease) -> None:
        self._committer()
        number, epoch = self._leases.get(lease.conversation_id, (0, 0))
        if epoch == lease.epoch:
            self._leases.pop(lease.conversation_id, None)
            self._watcher.drop(number, epoch)
        key = (lease.conversation_id, lease.epoch)
        query = f"{_RELEASE} id = ? AND epoch = ? AND holder <> ''"
        try:
            self._write(lambda db: db.execute(query, key))
        except StoreError:
            if not self._closed:
                raise

    def note(self, lease: Lease, notes: Sequence[str]) -> None:
        text = json.dumps(list(notes), ensure_ascii=False) if notes else ""
        query = "UPDATE conversations SET notes = ? WHERE id = ? AND epoch = ? AND holder <> ''"

        def leave(db: sqlite3.Cursor) -> None:
            if not db.execute(query, (text, lease.conversation_id, lease.epoch)).rowcount:
                raise base.fenced_error(lease)

        self._write(leave)

    def _own(self) -> Owner:
        if self._owner is None:
            self._owner = Owner(owners_folder(self.path), self._lease_seconds)
            self._committer().mark = self._owner.mark
        return self._owner

    def _beat(self) -> None:
        if self._owner is not None:
            try:
                self._owner.touch()
            except OSError as error:
                raise trouble(self.path, error, self._timeout) from error

    def _living(self, holder: str) -> str | None:
        return self._own().living(holder)

    def _refuse_if_held(self, conversation_id: str, holder: str) -> None:
        if holder and (living := self._living(holder)):
            raise LeaseHeld(conversation_id, living)

    @staticmethod
    def _check_held(db: sqlite3.Connection | sqlite3.Cursor, lease: Lease) -> int:
        query = "SELECT number FROM conversations WHERE id = ? AND epoch = ? AND holder <> ''"
        row = db.execute(query, (lease.conversation_id, lease.epoch)).fetchone()
        if row is None:
            raise base.fenced_error(lease)
        return row[0]

    # --- the journal ---

    def append(self, lease: Lease, batch: Batch) -> bool:
        """One of the waiting threads commits for all of them."""
        events = batch.events
        if len(events) > 1:
            base.check_dense(events)
        number, epoch = self._leases.get(lease.conversation_id, (0, 0))
        if epoch != lease.epoch:
            number = 0  # numbers begin at 1, so no row has this one
        rows = _rows(number, events)
        blobs = [((number << 32) + blob.seq, blob.id, blob.data) for blob in batch.blobs]
        work = partial(self._write_batch, lease, number, batch, rows, blobs)
        mark = (number, epoch, events[-1].seq) if events else None
        final = batch.summary.status != "running"
        reserved = (self._writer or self._committer()).run(Job(work, mark, final))
        if events and self._watcher.followers:
            self._watcher.notify_append(lease.conversation_id, events[-1].seq)
        return reserved

    def _write_batch(
        self,
        lease: Lease,
        number: int,
        batch: Batch,
        rows: list[tuple[int, int, bytes]],
        blobs: list[tuple[int, str, bytes]],
        db: sqlite3.Cursor,
    ) -> bool:
        summary, events = batch.summary, batch.events
        if events:
            first, last = events[0], events[-1]
            updated = (summary.updated or last.timestamp).isoformat()
            columns = (summary.status, summary.title, updated, summary.condensed)
            key = (number, lease.epoch, first.seq - 1)
            if not db.execute(_MOVE, (last.seq, *columns, *key)).rowcount:
                raise StoreError(
                    f"Conversation {lease.conversation_id!r}: event {first.seq} does not follow"
                    f" event {_fence(db, number, lease)}. Nothing was written."
                )
            if first.seq == 1:
                created = (summary.created or first.timestamp).isoformat()
                origin = (summary.parent_seq, summary.parent, summary.spawned_by)
                db.execute(_FIRST, (created, *origin, number))
            db.executemany(_INSERT, rows)
            if base.changes_tags(events):
                db.execute(_SET_TAGS, (_tags_text(summary), number))
        else:
            _fence(db, number, lease)
        if batch.done_commands:
            query = (
                "UPDATE inbox SET data = NULL, refusal = ? WHERE number = ? AND conversation = ?"
            )
            refusals = {key: msgspec.json.encode(one) for key, one in batch.refusals.items()}
            updates = [(refusals.get(command), command, number) for command in batch.done_commands]
            db.executemany(query, updates)
        for row in batch.timers:
            if row.due is None:
                db.execute(_DROP_TIMER, (number, row.timer))
            else:
                db.execute(_SET_TIMER, ((row.due - ev.EPOCH) // _MICROSECOND, number, row.timer))
        for key, id, data in blobs:
            db.execute("INSERT OR IGNORE INTO blobs (id, data) VALUES (?, ?)", (id, data))
            db.execute("INSERT OR IGNORE INTO blob_refs (key, id) VALUES (?, ?)", (key, id))
        if not batch.settlements and batch.reservation is None:
            return False
        ledger = SQLLedger(db, number, self._living)
        ledger.settle(batch.settlements)
        reservation = batch.reservation
        return reservation is not None and ledger.reserve(lease, reservation) is None

    def read(
        self, conversation_id: str, after_seq: int = 0, limit: int | None = None
    ) -> list[AnyEvent]:
        """Raises `StoreError`, which names the first event that is damaged or missing."""
        return self._events(conversation_id, max(after_seq, 0), limit)

    def tail(self, conversation_id: str) -> list[AnyEvent]:
        return self._events(conversation_id, None, None)

    def _events(
        self, conversation_id: str, after_seq: int | None, limit: int | None
    ) -> list[AnyEvent]:
        events: list[AnyEvent] = []

        def take(expected: int, seq: int, crc: int, data: bytes) -> None:
            if seq != expected or type(data) is not bytes or zlib.crc32(data) != crc:
                raise self._damage_error(conversation_id, expected)
            events.append(ev.decode(data, expected))

        def look(db: sqlite3.Connection) -> tuple[int, int]:
            events.clear()  # the function may run more than once
            return lineage.read(db, conversation_id, after_seq, limit, take)

        before, last = self._reader.read(look)
        if before + len(events) < last:
            raise self._damage_error(conversation_id, before + len(events) + 1)
        return events

    def follow(
        self, conversation_id: str, after_seq: int = 0, timeout: float | None = None
    ) -> Iterator[AnyEvent]:
        """Events of another process arrive within about 0.1 seconds."""
        follower = self._watcher.follow(conversation_id, max(after_seq, 0))
        try:
            yield from follow_events(self, follower, timeout, lambda: self._closed)
        finally:
            self._watcher.unfollow(follower)

    def blob(self, id: str) -> bytes:
        """Raises `StoreError` also if the bytes do not match the id."""

        def look(db: sqlite3.Connection) -> tuple[object] | None:
            if schema.format_of_locked(db) < 2:
                return None
            return db.execute("SELECT data FROM blobs WHERE id = ?", (id,)).fetchone()

        row = self._reader.read(look)
        if row is None:
            raise StoreError(f"No blob {id!r} in {str(self.path)!r}.")
        data = row[0]
        if type(data) is not bytes or base.blob_id(data) != id:
            raise StoreError(f"Store {str(self.path)!r}: blob {id!r} is damaged.")
        return data

    # --- budgets ---

    def bound(self, lease: Lease, budget: Budget | None) -> None:
        def work(db: sqlite3.Cursor) -> None:
            self._check_held(db, lease)
            SQLLedger(db).bound(lease.conversation_id, budget)

        self._write(work)

    def reserve(self, lease: Lease, reservation: Reservation) -> Shortage | None:
        def work(db: sqlite3.Cursor) -> Shortage | None:
            number = self._check_held(db, lease)
            return SQLLedger(db, number, self._living).reserve(lease, reservation)

        return self._write(work)

    def settle(self, settled: Sequence[Settlement]) -> None:
        self._write(lambda db: SQLLedger(db).settle(settled))

    # --- the inbox ---

    def post(self, conversation_id: str, command: Command, key: str | None = None) -> bool:
        base.check_key(key)
        data = commands.encode(command)
        name = f"#{os.urandom(16).hex()}" if key is None else key

        def leave(db: sqlite3.Cursor) -> tuple[int, int]:
            (number,) = self._row(db, "number", conversation_id)
            return number, self._leave(db, number, conversation_id, name, data)

        number, command_number = self._write(leave)
        if command_number:
            self._watcher.notify_post(number, command_number)
        return command_number > 0

    def _leave(
        self, db: sqlite3.Cursor, number: int, conversation_id: str, key: str, data: bytes
    ) -> int:
        """Post a command and return its number, 0 if the key is known."""
        cursor = db.execute(_POST, (number, key, data))
        if not cursor.rowcount:
            return 0
        command_number = int(cursor.lastrowid or 0)
        if self._bell is not None:
            try:
                self._bell.wake(conversation_id, db)
            except HoldfastError:  # it is raised after a commit, which other writes share
                db.execute("DELETE FROM inbox WHERE number = ?", (command_number,))
                raise
        return command_number

    def refusal(self, conversation_id: str, key: str) -> ErrorForm | None:
        data = self._inbox_column("refusal", conversation_id, key)
        return None if data is None else msgspec.json.decode(data, type=ErrorForm)

    def undone(self, conversation_id: str, key: str) -> bool:
        return self._inbox_column("data", conversation_id, key) is not None

    def _inbox_column(self, column: str, conversation_id: str, key: str) -> bytes | None:
        query = f"SELECT {column} FROM inbox WHERE conversation = ? AND key = ?"

        def look(db: sqlite3.Connection) -> tuple[bytes | None] | None:
            cursor = db.cursor()
            (number,) = self._row(cursor, "number", conversation_id)
            # An older file that is open for reading lacks the inbox, or its refusals.
            if schema.format_of_locked(db) < (4 if column == "refusal" else 2):
                return None
            return cursor.execute(query, (number, key)).fetchone()

        row = self._reader.read(look)
        return None if row is None else row[0]

    def commands(self, lease: Lease) -> list[Posted]:
        """A command of a newer version stays in the inbox."""
        self._committer()

        undone = "conversation = ? AND data IS NOT NULL"
        query = f"SELECT number, key, data FROM inbox WHERE {undone} ORDER BY number"

        def look(db: sqlite3.Connection) -> list[tuple[int, str, bytes]]:
            db.execute("BEGIN")
            try:
                return db.execute(query, (self._check_held(db, lease),)).fetchall()
            finally:
                db.execute("COMMIT")

        inbox: list[Posted] = []
        for number, key, data in self._reader.read(look):
            if (command := commands.posted(data)) is not None:
                inbox.append(Posted(number, key, command))
        return inbox

    def unattended(self, limit: int, *, parked: bool = False) -> Sequence[str]:
        self._committer()
        query = "SELECT DISTINCT holder FROM conversations WHERE holder <> ''"
        holders = [one for (one,) in self._reader.read(lambda db: db.execute(query).fetchall())]
        dead = json.dumps([one for one in holders if not self._living(one)])
        values = {"dead": dead, "limit": limit}

        def look(query: str, **more: int) -> list[tuple[str, int]]:
            return self._reader.read(lambda db: db.execute(query, {**values, **more}).fetchall())

        rows = look(_ORPHANED)
        if parked:
            rows += look(_GIVEN_BACK)
        waiting = look(_WAITING, after=self._looked_at)
        self._looked_at = waiting[-1][1] if len(waiting) >= limit else 0
        return list(dict.fromkeys(id for id, _ in (*rows, *waiting)))[:limit]

    # --- timers ---

    def due(self, before: datetime, limit: int = 1000) -> list[DueTimer]:
        values = _due_values(before, limit)

        def look(db: sqlite3.Connection) -> list[tuple[Any, ...]]:
            return db.execute(_DUE, values).fetchall() if schema.format_of_locked(db) > 4 else []

        return [_due_timer(row) for row in self._reader.read(look)]

    def next_due(self) -> datetime | None:
        def look(db: sqlite3.Connection) -> int | None:
            if schema.format_of_locked(db) < 5:
                return None
            return db.execute("SELECT min(due) FROM timers").fetchone()[0]

        due = self._reader.read(look)
        return None if due is None else ev.EPOCH + due * _MICROSECOND

    def ring(
        self, before: datetime, limit: int = 1000, fire: FireTimers | None = None
    ) -> list[DueTimer]:
        values = _due_values(before, limit)
        self._committer()
        if not self._reader.read(lambda db: db.execute(_DUE, values).fetchone()):
            return []  # the usual case needs no write lock

        def work(db: sqlite3.Cursor) -> _Rung:
            rung = _Rung([], {}, {}, [])
            rows: Sequence[DueRow] = [
                DueRow(_due_timer(row), row[3], bool(row[4]), *row[5:])
                for row in db.execute(_DUE_TO_RING, values)
            ]
            batches: dict[int, Batch] = {}
            if fire is not None:
                rows = within_limits(rows)
                batches = firing_batches(rows, _tails(db, rows), before, fire)
            try:
                for row in rows:
                    self._ring(db, row, batches.get(row.number), rung)
            except HoldfastError:
                if not rung.timers:
                    raise
                # the next call meets it first
            # No lease of before fits a conversation any more.
            db.executemany(_NEXT_EPOCH, [(number,) for number in rung.fired])
            if self._bell is not None and rung.appended:
                self._bell.wake_all(list(rung.appended), db)
            return rung

        rung = self._write(work)
        for number, command_number in rung.posted.items():
            self._watcher.notify_post(number, command_number)
        if self._watcher.followers:
            for id, seq in rung.appended.items():
                self._watcher.notify_append(id, seq)
        return rung.timers

    def _ring(self, db: sqlite3.Cursor, row: DueRow, batch: Batch | None, rung: _Rung) -> None:
        """Fire one timer by a batch, or post its command."""
        one, number = row.timer, row.number
        id = one.conversation_id
        if batch is None:
            data = commands.encode(commands.RingTimer(one.timer, one.due))
            if command_number := self._leave(db, number, id, one.key, data):
                rung.posted[number] = command_number
            db.execute(_DROP_TIMER, (number, one.timer))
        elif id not in rung.appended:  # the batch has all timers of its conversation
            events = _rows(number, batch.events)
            self._write_batch(Lease(id, row.epoch), number, batch, events, [], db)
            rung.appended[id] = batch.events[-1].seq
            rung.fired.append(number)
        rung.timers.append(one)

    # --- conversations ---

    def fork(self, conversation_id: str, summary: Summary, events: Sequence[AnyEvent] = ()) -> None:
        base.check_dense(events)
        base.check_id(summary.id)
        seq = summary.last_seq - len(events)
        rows = _rows(0, events)

        def begin(db: sqlite3.Cursor) -> None:
            number, last, shared = self._row(db, "number, last_seq, base", conversation_id)
            query = "SELECT 1 FROM conversations WHERE id = ?"
            exists = db.execute(query, (summary.id,)).fetchone() is not None
            base.check_fork(conversation_id, last, seq, summary.id, exists)
            now = datetime.now(UTC)
            times = ((time or now).isoformat() for time in (summary.created, summary.updated))
            origin = (conversation_id, seq, lineage.base_of_fork(number, shared, seq))
            state = (summary.last_seq, summary.status, summary.title)
            row = (summary.id, "", *state, *times, *origin, summary.condensed)
            fork = self._begin(db, row)
            if summary.tags:
                db.execute(_SET_TAGS, (_tags_text(summary), fork))
            first = fork << 32
            db.executemany(_INSERT, [(first + key, crc, data) for key, crc, data in rows])

        self._write(begin)

    @staticmethod
    def _begin(db: sqlite3.Cursor, row: tuple[object, ...]) -> int:
        number = int(db.execute(_BEGIN, row).lastrowid or 0)
        db.execute("UPDATE conversations SET epoch = number WHERE number = ?", (number,))
        return number

    def list(
        self,
        ids: Sequence[str] | None = None,
        *,
        status: str | None = None,
        waiting: bool = False,
        spawned_by: str | None = None,
        forked_from: Sequence[str] | None = None,
        tags: Sequence[str] = (),
    ) -> list[Summary]:
        values: dict[str, Any] = {"spawner": spawned_by, "status": status}
        conditions = (
            _UNDONE if waiting else "last_seq > 0",
            "" if spawned_by is None else _SPAWNED,
            "" if ids is None else _one_of("id", ids, values),
            "" if forked_from is None else _FORKED + _one_of("parent", forked_from, values),
            "" if status is None else "status = :status",
            _TAGGED if tags else "",
        )
        order = " ORDER BY updated DESC, number DESC" if ids is None else ""
        query = _LIST + " AND ".join(filter(None, conditions)) + order
        values["tags"] = json.dumps([*tags])

        def look(db: sqlite3.Connection) -> list[Any]:
            format = schema.format_of_locked(db)
            if format > 5:
                return db.execute(query, values).fetchall()
            older_format = (format < 3 and spawned_by is not None) or (
                format < 2 and (waiting or forked_from is not None)
            )
            if tags or older_format:
                return []
            older = query.replace(", tags FROM", ", '' FROM")
            if format < 3:
                older = older.replace("spawned_by", "''")
            if format < 2:
                older = older.replace("parent, parent_seq, condensed", "'', 0, 0")
            return db.execute(older, values).fetchall()

        when = datetime.fromisoformat
        rows = self._reader.read(look)
        try:
            summaries = [
                Summary(
                    *(id, status, title, seq),
                    *(when(created), when(updated)),
                    *origin,
                    tags=read_tags(tagged),
                )
                for id, status, title, seq, created, updated, *origin, tagged in rows
            ]
        except (TypeError, ValueError) as error:  # a damaged page may hold anything
            raise StoreError(
                f"Store {str(self.path)!r} cannot be listed: the entry of a conversation is damaged"
                f" ({error})."
            ) from error
        # an id may have colons of its own, which the SQL does not see
        return [one for one in summaries if spawned_by in (None, one.spawner)]

    def delete(self, conversation_id: str) -> None:
        """The conversation disappears at once; its space is freed in short steps. Its content is
        overwritten, in the log too unless another process reads at that moment."""
        columns = "id, number, epoch, holder, base"

        def remove(db: sqlite3.Cursor) -> None:
            todo = [self._row(db, columns, conversation_id)]
            self._refuse_if_held(conversation_id, todo[0][3])
            while todo:
                id, number, epoch, _, shared = todo.pop()
                db.execute("DELETE FROM conversations WHERE number = ?", (number,))
                db.execute("DELETE FROM inbox WHERE conversation = ?", (number,))
                db.execute("DELETE FROM timers WHERE conversation = ?", (number,))
                query = "UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = 'conversations'"
                db.execute(query, (epoch,))
                lineage.mark_to_free(db, number, shared)
                SQLLedger(db).forget(id)
                query = f"SELECT {columns}, spawned_by FROM conversations WHERE {_SPAWNED}"
                for *child, by in db.execute(query, {"spawner": id}).fetchall():
                    if by.rpartition(":")[0] != id:  # an id may have colons of its own
                        continue
                    if child[3] and self._living(child[3]):
                        query = "UPDATE conversations SET spawned_by = '' WHERE number = ?"
                        db.execute(query, (child[1],))
                    else:
                        todo.append(tuple(child))

        self._write(remove)
        try:
            while self._write(lineage.free_slice):
                pass
            pages = self._reader.read(lineage.free_pages)
            while pages:
                self._committer().script(lineage.GIVE_BACK)
                before, pages = pages, self._reader.read(lineage.free_pages)
                if pages >= before:  # other processes free pages as fast as this returns them
                    break
            self._committer().script(schema.clear_log(self._timeout))
        except StoreError:
            if not self._closed:  # the next delete continues
                raise

    def close(self) -> None:
        """Idempotent; does nothing in a forked child."""
        if not self._process.here:
            return
        writer = self._writer
        self._watcher.close()
        if writer is None:
            self._closed = True
            self._reader.close()
            return
        with writer.lock:
            if self._closed:
                return
            self._closed = writer.closed = True
            self._reader.close()
            if self._owner is not None:
                with suppress(sqlite3.Error):  # the unlocked owner file shows it too
                    query = f"{_RELEASE} holder = ? AND holder <> ''"
                    writer.db.execute(query, (self._owner.token,))
                self._owner.close()
            if writer.is_file_gone:  # found before the next append, if there is one
                _log.error(
                    "Store %r was removed or replaced by another file while it was open. What was"
                    " appended to it went with the file.",
                    str(self.path),
                )
            writer.db.close()

    def __enter__(self) -> SQLiteStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"SQLiteStore({str(self.path)!r})"

    # --- helpers ---

    def _committer(self) -> Committer:
        """Return the writing side. Raises `StoreError` if the store is read-only."""
        if self._writer is None:
            what = "was opened read-only; SQLiteStore(path) opens it for writing"
            what = "is closed" if self._closed else what
            raise StoreError(f"Store {str(self.path)!r} {what}.")
        return self._writer

    def _write(self, work: Callable[[sqlite3.Cursor], T]) -> T:
        return self._committer().run(Job(work))

    def _row(self, db: sqlite3.Cursor, columns: str, conversation_id: str) -> tuple[Any, ...]:
        """Return columns of a conversation. Raises `ConversationNotFound`."""
        query = f"SELECT {columns} FROM conversations WHERE id = ?"
        row = db.execute(query, (conversation_id,)).fetchone()
        if row is None:
            raise base.not_found(conversation_id, repr(str(self.path)))
        return row

    def _damage_error(self, conversation_id: str, seq: int) -> StoreError:
        return StoreError(
            f"Store {str(self.path)!r}: event {seq} of conversation {conversation_id!r} is missing"
            " or damaged."
        )
