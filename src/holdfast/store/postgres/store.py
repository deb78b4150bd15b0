"""A store that keeps its journals in Postgres, shared by any number of machines."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, LiteralString, NamedTuple

import msgspec
import psycopg

from holdfast import commands
from holdfast import events as ev
from holdfast.commands import Command
from holdfast.error_forms import ErrorForm
from holdfast.errors import ConfigurationError, LeaseHeld, StoreError
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
from holdfast.store.budgets import Budget, Reservation, Settlement, Shortage
from holdfast.store.following import AppendCallback, AppendWaiter, follow_events
from holdfast.store.nul_text import escaped, unescaped
from holdfast.store.postgres import journal, leases, removal, schema, timers
from holdfast.store.postgres.group_commit import GroupCommit, Write
from holdfast.store.postgres.leases import LeaseOwner, running_clock
from holdfast.store.postgres.ledger import PostgresLedger
from holdfast.store.postgres.pool import Cursor, Pool
from holdfast.store.postgres.watch import Listener

_MAX_SEQ = (1 << 31) - 1

_HELD = "SELECT number FROM conversations WHERE id = %s AND epoch = %s AND owner <> ''"
_NOTE = "UPDATE conversations SET notes = %s WHERE id = %s AND epoch = %s AND owner <> ''"
_STANDING = "SELECT last_seq FROM conversations WHERE number = %s AND epoch = %s AND owner <> ''"

_POST = """
WITH known AS (
    SELECT number, owner FROM conversations WHERE id = %(id)s FOR KEY SHARE
), left_there AS (
    INSERT INTO inbox (conversation, key, data) SELECT number, %(key)s, %(data)s FROM known
    ON CONFLICT DO NOTHING RETURNING number
)
SELECT k.number, coalesce(l.number, 0), coalesce(o.channel, '')
FROM known k LEFT JOIN left_there l ON true LEFT JOIN owners o ON o.token = k.owner
"""
_POSTED = """
SELECT i.data IS NOT NULL, i.refusal FROM conversations c LEFT JOIN inbox i
ON i.conversation::text || ':' || i.key = c.number::text || ':' || %(key)s
WHERE c.id = %(id)s
"""
_COMMANDS = """
SELECT i.number, i.key, i.data FROM conversations c
LEFT JOIN inbox i ON i.conversation = c.number AND i.data IS NOT NULL
WHERE c.id = %s AND c.epoch = %s AND c.owner <> '' ORDER BY i.number
"""

_SOURCE = "SELECT number, last_seq, shared, needs FROM conversations WHERE id = %s FOR SHARE"
_FORK = """
INSERT INTO conversations (id, epoch, last_seq, condensed, shared, parent, parent_seq,
created, updated, status, title, needs, tags)
VALUES (%s, nextval('epochs'), %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s) RETURNING number
"""
# The stretches of the source up to the event that the fork begins after.
_SHARES = """
INSERT INTO shares (fork, source, after, last)
SELECT %(fork)s, s.source, s.after, least(s.last, %(seq)s) FROM (
    SELECT source, after, last FROM shares WHERE fork = %(number)s
    UNION ALL SELECT %(number)s, %(shared)s, %(last)s
) s WHERE s.after < least(s.last, %(seq)s)
"""
_EVENTS = """
INSERT INTO events (conversation, seq, crc, data)
SELECT %s, * FROM unnest(%b::bigint[], %b::bigint[], %b::bytea[])
"""

_LIST: LiteralString = f"""
SELECT id, status, title, last_seq, created, updated, parent, parent_seq, condensed, spawned_by,
tags, {leases.OWNED} FROM conversations c WHERE
"""
_UNDONE = "number IN (SELECT conversation FROM inbox WHERE data IS NOT NULL)"


class _OwnLease(NamedTuple):
    """A lease of this store: the conversation's number, the epoch, and the owner's token."""

    number: int
    epoch: int
    owner: str


def _summary(
    id: str, status: str, title: str, seq: int, created: datetime, updated: datetime, *more: Any
) -> Summary:
    """Return the summary of a row of `_LIST`."""
    parent, parent_seq, condensed, by, tags, driven = more
    return Summary(
        unescaped(id),
        status,
        unescaped(title),
        seq,
        created.astimezone(UTC),
        updated.astimezone(UTC),
        unescaped(parent),
        parent_seq,
        condensed,
        unescaped(by),
        tuple(map(unescaped, tags)),
        driven,
    )


class PostgresStore(Store):
    """A `Store` in the Postgres database `dsn`, shared by any threads, processes and machines.

    A store's leases live while it renews its row in the table of owners, three times in
    `lease_seconds`. Another store may take the leases of one that has not done so. The clock of the
    database decides, so machines may disagree about the time.

    While the database is away, methods wait for it. An append whose answer was lost is read back.

    Args:
        dsn: `postgresql://user:password@host:port/database`, or libpq's keywords and values. A
            connection pooler in front must keep a session to one connection (PgBouncer's
            `pool_mode = session`).
        schema: The schema of the tables, created if it does not exist.
        pool_size: The most connections for statements. Up to five more renew leases, listen, and
            write what several threads ask for at once.
        lease_seconds: Seconds after which the leases of a store without a sign of life may be
            taken.
        timeout: Seconds to wait for a free connection, and for a database that is away.
        clock: A clock in seconds that only runs forward, for `confirm`.
        bell: Rung for each posted command, in the transaction of the post (a psycopg cursor).

    Raises `StoreError` in one line if the database cannot be reached, is older than PostgreSQL 14
    or was written by a newer Holdfast. Raises `ConfigurationError` for wrong arguments.
    """

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = "holdfast",
        pool_size: int = 8,
        lease_seconds: float = 6.0,
        timeout: float = 30.0,
        clock: Callable[[], float] = running_clock,
        bell: WorkBell | None = None,
    ) -> None:
        for name, value in (("lease_seconds", lease_seconds), ("timeout", timeout)):
            if not value > 0:
                raise ConfigurationError(f"{name} takes seconds above 0, not {value!r}.")
        if pool_size < 1:
            raise ConfigurationError(f"pool_size takes a number from 1, not {pool_size!r}.")
        if not schema or "\0" in schema:
            raise ConfigurationError(f"schema takes the name of a schema, not {schema!r}.")
        self.schema = schema
        self.pool = Pool(dsn, schema, pool_size, timeout)
        self._lock = threading.Lock()
        self._leases: dict[str, _OwnLease] = {}
        self._taking: set[str] = set()  # a thread of this store is asking for their leases
        self._bell = bell
        self._looked_at = 0  # the number of the last conversation that `unattended` returned
        self._closed = False
        self._process = OwnerProcess()
        self._channel = f"holdfast_{os.urandom(12).hex()}"
        self._appends = GroupCommit(self.pool, journal.GROUP, journal.group)
        self._takes = GroupCommit(self.pool, leases.TAKE_GROUP, leases.take_group)
        self._releases = GroupCommit(self.pool, leases.RELEASE_GROUP, leases.release_group)
        self._owner = LeaseOwner(self.pool, self._channel, lease_seconds, clock, self._notify_lost)
        self._listener = Listener(self.pool, self._channel, lambda: self._owner.present)
        self._prepare()

    def _prepare(self) -> None:
        try:
            with self.pool.connection() as connection:
                schema.prepare(connection, self.schema, self.pool.place)
        except psycopg.OperationalError as error:
            raise self.pool.unreachable(error) from None
        except psycopg.Error as error:
            advice = ""
            if isinstance(error, psycopg.errors.InsufficientPrivilege):
                advice = " Let this user create schemas, or create it for them: CREATE SCHEMA ..."
                advice += " AUTHORIZATION user."
            raise StoreError(
                f"Store {self.pool.place!r}: schema {self.schema!r} cannot be prepared"
                f" ({str(error).strip().splitlines()[0]}).{advice}"
            ) from error

    # --- leases ---

    def acquire(self, conversation_id: str, notify: Callable[[], None] | None = None) -> Lease:
        """The first lease starts the thread that renews all of them, which ends with `close`."""
        base.check_id(conversation_id)
        self.pool.check()
        with self._lock:
            if conversation_id in self._taking:
                raise self._held_here(conversation_id)
            self._taking.add(conversation_id)
            previous = self._leases.get(conversation_id)
        try:
            lease, own = self._take(conversation_id, 0 if previous is None else previous.epoch)
            with self._lock:
                self._leases[conversation_id] = own
        finally:
            with self._lock:
                self._taking.discard(conversation_id)
        if notify is not None:
            self._listener.hold(own.number, notify)
        return lease

    def _take(self, conversation_id: str, held_epoch: int) -> tuple[Lease, _OwnLease]:
        id = escaped(conversation_id)
        while True:
            owner = self._owner.confirmed_token()
            values = {"id": id, "owner": owner, "held": held_epoch, "version": ev.JOURNAL_VERSION}
            rows, _ = self._takes.execute(Write(id, leases.TAKE, values))
            if not rows:
                for number, epoch in self.pool.execute(leases.BEGIN, (id, owner)).rows:
                    lease = Lease(conversation_id, epoch, last_seq=0)
                    return lease, _OwnLease(number, epoch, owner)
                continue  # another store was faster, or the answer was lost
            number, epoch, last, holder, label, notes, spawned_by, needs, free, budgets = rows[0]
            if epoch is not None:
                orphan_notes = tuple(json.loads(unescaped(notes))) if notes else ()
                by = unescaped(spawned_by)
                above = self._above(conversation_id, by) if budgets else ()
                lease = Lease(conversation_id, epoch, orphan_notes, by, above, holder != "", last)
                return lease, _OwnLease(number, epoch, owner)
            if needs > ev.JOURNAL_VERSION:
                raise StoreError(
                    f"Conversation {conversation_id!r} needs version {needs} of the journal; this"
                    f" Holdfast drives version {ev.JOURNAL_VERSION}. Upgrade it."
                )
            if not free:
                raise (
                    self._held_here(conversation_id)
                    if holder == owner
                    else LeaseHeld(conversation_id, label or "another process")
                )

    def _above(self, conversation_id: str, spawned_by: str) -> tuple[Budget, ...]:
        return self.pool.run(
            lambda db: PostgresLedger(db).above(conversation_id, spawned_by), repeatable=True
        )

    @staticmethod
    def _held_here(conversation_id: str) -> LeaseHeld:
        return LeaseHeld(conversation_id, f"another Conversation in this process ({os.getpid()})")

    def _notify_lost(self) -> None:
        """Notify the holders of all leases: the owner was declared dead."""
        with self._lock:
            numbers = [own.number for own in self._leases.values()]
        self._listener.notify_lost(numbers)

    def confirm(self, lease: Lease) -> None:
        own = self._leases.get(lease.conversation_id)
        if own is None or own.epoch != lease.epoch or not self._owner.confirms(own.owner):
            raise base.fenced_error(lease)

    def renew(self, lease: Lease) -> None:
        self._row(self.pool.execute(_HELD, self._key(lease)).rows, lease)

    def release(self, lease: Lease) -> None:
        self._process.check(f"Store {self.pool.place!r}")
        with self._lock:
            own = self._leases.get(lease.conversation_id)
            if own is None or own.epoch != lease.epoch:
                return
            del self._leases[lease.conversation_id]
        self._listener.drop(own.number)
        try:
            values = {"number": own.number, "epoch": own.epoch}
            self._releases.execute(Write(own.number, leases.RELEASE, values))
        except StoreError:
            if not self._closed:
                raise

    def note(self, lease: Lease, notes: Sequence[str]) -> None:
        text = escaped(json.dumps(list(notes), ensure_ascii=False)) if notes else ""

        def leave(db: Cursor) -> None:
            if not db.execute(_NOTE, (text, *self._key(lease))).rowcount:
                raise base.fenced_error(lease)

        self.pool.run(leave, repeatable=True)

    @staticmethod
    def _key(lease: Lease) -> tuple[str, int]:
        return escaped(lease.conversation_id), lease.epoch

    @staticmethod
    def _row(rows: Sequence[Sequence[int]], lease: Lease) -> int:
        """Return the only value of the first row. Raises `Fenced` without a row."""
        if not rows:
            raise base.fenced_error(lease)
        return rows[0][0]

    # --- the journal ---

    def append(self, lease: Lease, batch: Batch) -> bool:
        """One round trip, or four for a batch with settlements or a reservation."""
        events = batch.events
        if len(events) > 1:
            base.check_dense(events)
        own = self._leases.get(lease.conversation_id)
        # Numbers begin at 1, so no row has 0.
        number = own.number if own is not None and own.epoch == lease.epoch else 0
        query, values, grouped = journal.append(number, lease.epoch, batch, self._channel)
        again = reserved = False
        if batch.settlements or batch.reservation is not None:

            def work(db: Cursor) -> tuple[list[tuple[list[str]]], bool]:
                rows = db.execute(query, values).fetchall()
                return rows, bool(rows) and self._spend(db, number, lease, batch)  # pyright: ignore

            rows, reserved = self.pool.run(work)
        elif grouped:
            size = sum(map(len, values["events"]))
            rows, again = self._appends.execute(Write(number, query, values, size))
        else:
            rows, again = self.pool.execute(query, values)
        if not rows and not (again and self._was_written(number, lease, batch)):
            raise self._append_error(number, lease, batch)
        if events:
            channels = rows[0][0] if rows else ()
            self._listener.notify_append(lease.conversation_id, number, events[-1].seq, channels)
        return reserved

    @staticmethod
    def _spend(db: Cursor, number: int, lease: Lease, batch: Batch) -> bool:
        ledger = PostgresLedger(db, number)
        ledger.settle(batch.settlements)
        reservation = batch.reservation
        return reservation is not None and ledger.reserve(lease, reservation) is None

    def _was_written(self, number: int, lease: Lease, batch: Batch) -> bool:
        """Return True if the events of an append whose answer was lost are the journal's last."""
        if not batch.events:
            return False
        first, last = batch.events[0].seq, batch.events[-1].seq
        rows, _ = self.pool.execute(journal.LAST, (number, lease.epoch, last, first))
        return [data for _, data in rows] == list(ev.records(batch.events))

    def _append_error(self, number: int, lease: Lease, batch: Batch) -> StoreError:
        rows, _ = self.pool.execute(_STANDING, (number, lease.epoch))
        if not rows or not batch.events:
            return base.fenced_error(lease)
        return StoreError(
            f"Conversation {lease.conversation_id!r}: event {batch.events[0].seq} does not follow"
            f" event {rows[0][0]}. Nothing was written."
        )

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
        values = {
            "id": escaped(conversation_id),
            "after": None if after_seq is None else min(after_seq, _MAX_SEQ),
            "limit": None if limit is None else min(max(limit, 0), _MAX_SEQ),
        }
        events, damaged = journal.decode_rows(self.pool.execute(journal.READ, values).rows)
        if damaged:
            raise StoreError(
                f"Store {self.pool.place!r}: event {damaged} of conversation {conversation_id!r}"
                " is missing or damaged."
            )
        return events

    def follow(
        self, conversation_id: str, after_seq: int = 0, timeout: float | None = None
    ) -> Iterator[AnyEvent]:
        if not self._closed:
            self._owner.token()  # the store's channel is known while it has an owner
        follower = AppendWaiter(conversation_id, max(after_seq, 0))
        self._listener.follow(follower)
        try:
            yield from follow_events(self, follower, timeout, lambda: self._closed)
        finally:
            self._listener.unfollow(follower)

    def watch(self, conversation_id: str, notify: Callable[[], None]) -> Callable[[], None]:
        """Call `notify`, from any thread, when any process may have appended events. Return the
        function that ends this. All watches share one thread."""
        self.pool.check()
        self._owner.token()
        follower = AppendCallback(conversation_id, notify)
        self._listener.follow(follower)
        return lambda: self._listener.unfollow(follower)

    def blob(self, id: str) -> bytes:
        """Raises `StoreError` also if the bytes do not match the id."""
        rows, _ = self.pool.execute("SELECT data FROM blobs WHERE id = %s", (escaped(id),))
        if not rows:
            raise StoreError(f"No blob {id!r} in {self.pool.place!r}.")
        if base.blob_id(rows[0][0]) != id:
            raise StoreError(f"Store {self.pool.place!r}: blob {id!r} is damaged.")
        return rows[0][0]

    # --- budgets ---

    def bound(self, lease: Lease, budget: Budget | None) -> None:
        def work(db: Cursor) -> None:
            self._row(db.execute(_HELD, self._key(lease)).fetchall(), lease)
            PostgresLedger(db).bound(lease.conversation_id, budget)

        self.pool.run(work)

    def reserve(self, lease: Lease, reservation: Reservation) -> Shortage | None:
        def work(db: Cursor) -> Shortage | None:
            number = self._row(db.execute(_HELD, self._key(lease)).fetchall(), lease)
            return PostgresLedger(db, number).reserve(lease, reservation)

        return self.pool.run(work)

    def settle(self, settled: Sequence[Settlement]) -> None:
        self.pool.run(lambda db: PostgresLedger(db).settle(settled))

    # --- the inbox ---

    def post(self, conversation_id: str, command: Command, key: str | None = None) -> bool:
        base.check_key(key)
        values = {
            "id": escaped(conversation_id),
            "key": f"#{os.urandom(16).hex()}" if key is None else escaped(key),
            "data": commands.encode(command),
        }

        def leave(db: Cursor) -> tuple[int, int, str]:
            row = db.execute(_POST, values).fetchone()
            if row is None:
                raise base.not_found(conversation_id, repr(self.pool.place))
            if row[1] and self._bell is not None:
                self._bell.wake(conversation_id, db)
            return row[0], row[1], row[2]

        number, command_number, channel = self.pool.run(leave)
        if command_number:
            self._listener.notify_post(number, command_number)
            self._listener.send([channel])
        return command_number > 0

    def refusal(self, conversation_id: str, key: str) -> ErrorForm | None:
        _, refusal = self._command_state(conversation_id, key)
        return None if refusal is None else msgspec.json.decode(refusal, type=ErrorForm)

    def undone(self, conversation_id: str, key: str) -> bool:
        return self._command_state(conversation_id, key)[0]

    def _command_state(self, conversation_id: str, key: str) -> tuple[bool, bytes | None]:
        values = {"id": escaped(conversation_id), "key": escaped(key)}
        rows, _ = self.pool.execute(_POSTED, values)
        if not rows:
            raise base.not_found(conversation_id, repr(self.pool.place))
        return rows[0][0], rows[0][1]

    def commands(self, lease: Lease) -> list[Posted]:
        """A command of a newer version stays in the inbox."""
        rows, _ = self.pool.execute(_COMMANDS, self._key(lease))
        if not rows:
            raise base.fenced_error(lease)
        return [
            Posted(number, unescaped(key), command)
            for number, key, data in rows
            if number is not None and (command := commands.posted(data)) is not None
        ]

    def unattended(self, limit: int, *, parked: bool = False) -> list[str]:
        """A conversation that needs a newer version of the journal is left out."""
        values: dict[str, Any] = {"version": ev.JOURNAL_VERSION, "limit": limit}
        rows = self.pool.execute(leases.ORPHANED, values).rows
        if len(rows) < limit:
            values["after"], values["limit"] = self._looked_at, limit - len(rows)
            query = leases.WAITING_OR_PARKED if parked else leases.WAITING
            waiting = self.pool.execute(query, values).rows
            self._looked_at = waiting[-1][0] if len(waiting) == values["limit"] else 0
            rows += waiting
        return list(dict.fromkeys(unescaped(id) for _, id in rows))

    # --- timers ---

    def due(self, before: datetime, limit: int = 1000) -> list[DueTimer]:
        rows = self.pool.execute(timers.DUE, (before, max(limit, 0))).rows
        return [timers.due_timer(*row) for row in rows]

    def next_due(self) -> datetime | None:
        due = self.pool.execute(timers.NEXT_DUE).rows[0][0]
        return None if due is None else due.astimezone(UTC)

    def ring(
        self, before: datetime, limit: int = 1000, fire: FireTimers | None = None
    ) -> list[DueTimer]:
        """No timer is rung before its time by the clock of the database."""
        bell, channel = self._bell, self._channel
        rung = self.pool.run(lambda db: timers.ring(db, before, max(limit, 0), bell, fire, channel))
        for appended in rung.appended:
            self._listener.notify_append(*appended)
        for command_number, number in rung.posted.items():
            self._listener.notify_post(number, command_number)
        self._listener.send([rung.channels[number] for number in rung.posted.values()])
        return rung.timers

    # --- conversations ---

    def fork(self, conversation_id: str, summary: Summary, events: Sequence[AnyEvent] = ()) -> None:
        base.check_dense(events)
        base.check_id(summary.id)
        seq = summary.last_seq - len(events)
        rows = journal.rows_of(events)
        now = datetime.now(UTC)

        def begin(db: Cursor) -> None:
            source = db.execute(_SOURCE, (escaped(conversation_id),)).fetchone()
            if source is None:
                raise base.not_found(conversation_id, repr(self.pool.place))
            number, last, shared, needs = source
            query = "SELECT 1 FROM conversations WHERE id = %s"
            exists = db.execute(query, (escaped(summary.id),)).fetchone() is not None
            base.check_fork(conversation_id, last, seq, summary.id, exists)
            origin = (seq, escaped(conversation_id), seq)
            times = (summary.created or now, summary.updated or now)
            state = (summary.status, escaped(summary.title), max(needs, ev.needed_version(events)))
            row = (escaped(summary.id), summary.last_seq, summary.condensed)
            tags = [escaped(tag) for tag in summary.tags]
            fork_row = db.execute(_FORK, (*row, *origin, *times, *state, tags)).fetchone()
            fork = fork_row[0] if fork_row else 0
            db.execute(
                _SHARES,
                {"fork": fork, "number": number, "shared": shared, "last": last, "seq": seq},
            )
            if events:
                db.execute(_EVENTS, (fork, *rows))

        self.pool.run(begin)

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
        query = _LIST + (_UNDONE if waiting else "last_seq > 0")
        if ids is not None:
            query += " AND id = ANY(%(ids)s)"
        if status is not None:
            query += " AND status = %(status)s"
        if spawned_by is not None:
            query += " AND spawner <> '' AND spawner = %(spawner)s"
        if forked_from is not None:
            query += " AND parent <> '' AND parent = ANY(%(origins)s)"
        if tags:
            query += " AND tags <> '{}' AND tags @> %(tags)s"
        values = {
            "tags": [escaped(tag) for tag in tags],
            "ids": [escaped(id) for id in ids or () if base.is_utf8(id)],
            "origins": [escaped(id) for id in forked_from or () if base.is_utf8(id)],
            "status": status or "",
            "spawner": escaped(spawned_by or ""),
        }
        rows, _ = self.pool.execute(query + " ORDER BY updated DESC, number DESC", values)
        return [_summary(*row) for row in rows]

    def delete(self, conversation_id: str) -> None:
        """The conversation disappears at once; its space is freed in short steps."""
        self.pool.run(lambda db: removal.remove(db, conversation_id, repr(self.pool.place)))
        try:
            while self.pool.run(removal.free_slice):
                pass
        except StoreError:
            if not self._closed:  # the next delete continues
                raise

    def close(self) -> None:
        """Idempotent; does nothing in a forked child."""
        if not self._process.here or self._closed:
            return
        self._closed = True
        self._leases.clear()
        self._listener.close()
        self._owner.close()
        self.pool.close()
        for writes in (self._appends, self._takes, self._releases):
            writes.close()

    def __enter__(self) -> PostgresStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"PostgresStore({self.pool.place!r}, schema={self.schema!r})"
