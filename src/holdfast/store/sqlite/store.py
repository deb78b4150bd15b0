"""A store that keeps its journals in one SQLite file: the embedded default."""

from __future__ import annotations

import logging
import os
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from holdfast import commands
from holdfast import events as ev
from holdfast.commands import Command
from holdfast.error_forms import ErrorForm
from holdfast.errors import ConfigurationError, StoreError
from holdfast.events import AnyEvent
from holdfast.processes import OwnerProcess
from holdfast.store import base
from holdfast.store.base import Batch, DueTimer, FireTimers, Lease, Posted, Store, Summary, WorkBell
from holdfast.store.budgets import Budget, Reservation, Settlement, Shortage
from holdfast.store.following import follow_events
from holdfast.store.sqlite import (
    conversations,
    inbox,
    journal,
    leases,
    lineage,
    removal,
    schema,
    timers,
)
from holdfast.store.sqlite.commit import Committer, Job
from holdfast.store.sqlite.conversations import ListingFilters
from holdfast.store.sqlite.files import ReadConnection, ReadOnlyConnection, trouble
from holdfast.store.sqlite.ledger import SQLLedger
from holdfast.store.sqlite.marks import Mark, losses, marks, owners_folder
from holdfast.store.sqlite.owner import Owner, may_live
from holdfast.store.sqlite.watch import Watcher

T = TypeVar("T")

_log = logging.getLogger("holdfast")


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
        number, lease = self._write(lambda db: leases.take(db, conversation_id, self._own()))
        self._leases[conversation_id] = (number, lease.epoch)
        if notify is not None:
            self._watcher.hold(number, lease.epoch, self._own().token, notify)
        return lease

    def renew(self, lease: Lease) -> None:
        self._committer()
        self._beat()
        self._reader.read(lambda db: leases.number_of(db, lease))

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
        try:
            self._write(lambda db: db.execute(leases.RELEASE, key))
        except StoreError:
            if not self._closed:
                raise

    def note(self, lease: Lease, notes: Sequence[str]) -> None:
        self._write(lambda db: leases.leave_notes(db, lease, notes))

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

    def _may_live(self, holder: str) -> bool:
        if self._owner is not None and holder == self._owner.token:
            return True
        return may_live(owners_folder(self.path), holder)

    # --- the journal ---

    def append(self, lease: Lease, batch: Batch) -> bool:
        """One of the waiting threads commits for all of them."""
        events = batch.events
        if len(events) > 1:
            base.check_dense(events)
        number, epoch = self._leases.get(lease.conversation_id, (0, 0))
        if epoch != lease.epoch:
            number = 0  # numbers begin at 1, so no row has this one
        rows = journal.rows_of(number, batch)
        work = partial(journal.append, lease, batch, rows, self._living)
        mark = (number, epoch, events[-1].seq) if events else None
        final = batch.summary.status != "running"
        reserved = (self._writer or self._committer()).run(Job(work, mark, final))
        if events and self._watcher.followers:
            self._watcher.notify_append(lease.conversation_id, events[-1].seq)
        return reserved

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
            leases.number_of(db, lease)
            SQLLedger(db).bound(lease.conversation_id, budget)

        self._write(work)

    def reserve(self, lease: Lease, reservation: Reservation) -> Shortage | None:
        def work(db: sqlite3.Cursor) -> Shortage | None:
            number = leases.number_of(db, lease)
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
            (number,) = conversations.find(db, "number", conversation_id, self.path)
            return number, inbox.post(db, conversation_id, number, name, data, self._bell)

        number, command_number = self._write(leave)
        if command_number:
            self._watcher.notify_post(number, command_number)
        return command_number > 0

    def refusal(self, conversation_id: str, key: str) -> ErrorForm | None:
        data = self._inbox_column("refusal", conversation_id, key)
        return None if data is None else msgspec.json.decode(data, type=ErrorForm)

    def undone(self, conversation_id: str, key: str) -> bool:
        return self._inbox_column("data", conversation_id, key) is not None

    def _inbox_column(self, name: str, conversation_id: str, key: str) -> bytes | None:
        return self._reader.read(lambda db: inbox.column(db, name, conversation_id, key, self.path))

    def commands(self, lease: Lease) -> list[Posted]:
        """A command of a newer version stays in the inbox."""
        self._committer()
        return self._reader.read(lambda db: inbox.undone(db, lease))

    def unattended(self, limit: int, *, parked: bool = False) -> Sequence[str]:
        self._committer()
        ids, self._looked_at = leases.unattended(
            self._reader, self._living, limit, self._looked_at, parked
        )
        return ids

    # --- timers ---

    def due(self, before: datetime, limit: int = 1000) -> list[DueTimer]:
        return self._reader.read(lambda db: timers.due(db, before, limit))

    def next_due(self) -> datetime | None:
        return self._reader.read(timers.next_due)

    def ring(
        self, before: datetime, limit: int = 1000, fire: FireTimers | None = None
    ) -> list[DueTimer]:
        self._committer()
        if not self.due(before, min(limit, 1)):
            return []  # the usual case needs no write lock
        bell, living = self._bell, self._living
        rings = self._write(lambda db: timers.ring(db, before, limit, bell, fire, living))
        for number, command_number in rings.posted.items():
            self._watcher.notify_post(number, command_number)
        for id, seq in rings.appended.values():
            self._watcher.notify_append(id, seq)
        return rings.timers

    # --- conversations ---

    def fork(self, conversation_id: str, summary: Summary, events: Sequence[AnyEvent] = ()) -> None:
        base.check_dense(events)
        base.check_id(summary.id)
        rows = lineage.rows_of(0, events)
        self._write(lambda db: conversations.fork(db, conversation_id, summary, rows, self.path))

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
        filters = ListingFilters(ids, status, waiting, spawned_by, forked_from, tags)
        living = self._may_live
        return self._reader.read(lambda db: conversations.listing(db, filters, living, self.path))

    def delete(self, conversation_id: str) -> None:
        """The conversation disappears at once; its space is freed in short steps. Its content is
        overwritten, in the log too unless another process reads at that moment."""
        self._write(lambda db: removal.remove(db, conversation_id, self._living, self.path))
        try:
            while self._write(removal.free_slice):
                pass
            pages = self._reader.read(removal.free_pages)
            while pages:
                self._committer().script(removal.GIVE_BACK)
                before, pages = pages, self._reader.read(removal.free_pages)
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
                    writer.db.execute(leases.RELEASE_ALL, (self._owner.token,))
                self._owner.close()
            if writer.is_file_gone:  # found before the next append, if there is one
                _log.error(
                    "Store %r was removed or replaced by another file while it was open. Its"
                    " last events are lost with that file.",
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

    def _damage_error(self, conversation_id: str, seq: int) -> StoreError:
        return StoreError(
            f"Store {str(self.path)!r}: event {seq} of conversation {conversation_id!r} is missing"
            " or damaged."
        )
