"""A store that keeps its journals in memory, for as long as the process lives."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING

from msgspec.structs import replace

from holdfast import commands
from holdfast.error_forms import ErrorForm
from holdfast.errors import LeaseHeld, StoreError
from holdfast.events import AnyEvent, records
from holdfast.processes import OwnerProcess
from holdfast.store import base
from holdfast.store.base import (
    Batch,
    Blob,
    DueTimer,
    FireTimers,
    Lease,
    Posted,
    RestingConversation,
    Store,
    Summary,
    WorkBell,
)
from holdfast.store.budgets import Account, Amount, Budget, Ledger, Reservation, Settlement

if TYPE_CHECKING:
    from holdfast.store.budgets import Shortage


class _Record:
    __slots__ = (
        "blobs",
        "epoch",
        "events",
        "held",
        "inbox",
        "keys",
        "notify",
        "refusals",
        "summary",
    )

    def __init__(self, summary: Summary) -> None:
        self.events: list[AnyEvent] = []
        self.epoch = 0
        self.held = False
        self.summary = summary
        self.notify: Callable[[], None] | None = None
        # None until needed, to save memory: a process may hold many thousands of conversations.
        self.inbox: list[Posted] | None = None
        self.keys: set[str] | None = None
        self.refusals: dict[str, ErrorForm] | None = None  # by key
        self.blobs: list[Blob] | None = None


def _runs(summary: Summary) -> bool:
    return summary.status == "running" and not summary.spawned_by


def _by_conversation(timers: Sequence[DueTimer]) -> dict[str, list[DueTimer]]:
    groups: dict[str, list[DueTimer]] = {}
    for one in timers:
        groups.setdefault(one.conversation_id, []).append(one)
    return groups


class _Ledger(Ledger):
    """The budgets and reservations of the conversations in `records`."""

    __slots__ = ("_accounts", "_records", "_reservations")

    def __init__(self, records: dict[str, _Record]) -> None:
        self._records = records
        self._accounts: dict[str, Account] = {}
        # By key and root: the amount, and the lease of its owner.
        self._reservations: dict[str, dict[str, tuple[Amount, Lease]]] = {}

    def spawned_by(self, conversation_id: str) -> str:
        record = self._records.get(conversation_id)
        return "" if record is None else record.summary.spawned_by

    def account(self, root: str) -> Account | None:
        return self._accounts.get(root)

    def save(self, root: str, account: Account) -> None:
        self._accounts[root] = account

    def add(self, lease: Lease, key: str, root: str, amount: Amount) -> None:
        self._reservations.setdefault(key, {})[root] = (amount, lease)

    def take(self, key: str) -> list[tuple[str, Amount]]:
        return [(root, amount) for root, (amount, _) in self._reservations.pop(key, {}).items()]

    def take_dead(self, root: str) -> list[Amount]:
        dead = [
            key
            for key, by_root in self._reservations.items()
            if root in by_root and not self._lives(by_root[root][1])
        ]
        return [self._pop(key, root) for key in dead]

    def _pop(self, key: str, root: str) -> Amount:
        by_root = self._reservations[key]
        amount, _ = by_root.pop(root)
        if not by_root:
            del self._reservations[key]
        return amount

    def _lives(self, lease: Lease) -> bool:
        record = self._records.get(lease.conversation_id)
        return record is not None and record.held and record.epoch == lease.epoch

    def forget(self, root: str) -> None:
        if self._accounts.pop(root, None) is not None:
            for key in [key for key, by_root in self._reservations.items() if root in by_root]:
                self._pop(key, root)


class MemoryStore(Store):
    """A `Store` in this process's memory. Events are frozen, so it keeps the objects themselves.

    Args:
        bell: Rung for each posted command, with no lock held.
    """

    def __init__(self, bell: WorkBell | None = None) -> None:
        self._bell = bell
        self._lock = threading.Lock()
        self._process = OwnerProcess()
        self._appended: threading.Condition | None = None  # created for the first follower
        self._records: dict[str, _Record] = {}
        # One counter for all conversations: no old lease fits a conversation created again.
        self._epoch = 0
        self._post_count = 0
        # The index of timers: due times by conversation and timer.
        self._timers: dict[tuple[str, str], datetime] = {}
        self._ledger: _Ledger | None = None  # created for the first budget
        self._closed = False

    # --- leases ---

    def acquire(self, conversation_id: str, notify: Callable[[], None] | None = None) -> Lease:
        base.check_id(conversation_id)
        with self._lock:
            self._check_open()
            record = self._records.get(conversation_id)
            if record is None:
                record = self._records[conversation_id] = _Record(Summary(conversation_id))
            self._refuse_if_held(conversation_id, record)
            self._epoch += 1
            record.held = True
            record.epoch = self._epoch
            record.notify = notify
            by = record.summary.spawned_by
            budgets = () if self._ledger is None else self._ledger.above(conversation_id, by)
            return Lease(conversation_id, record.epoch, (), by, budgets)

    def renew(self, lease: Lease) -> None:
        with self._lock:
            self._record_of(lease)

    def confirm(self, lease: Lease) -> None:
        self.renew(lease)

    def release(self, lease: Lease) -> None:
        with self._lock:
            record = self._records.get(lease.conversation_id)
            if record is not None and record.epoch == lease.epoch:
                record.held = False
                record.notify = None

    def note(self, lease: Lease, notes: Sequence[str]) -> None:
        """See `Store.note`. The notes are not kept: no owner of this store outlives another one."""
        self.renew(lease)

    # --- the journal ---

    def append(self, lease: Lease, batch: Batch) -> bool:
        events = batch.events
        base.check_dense(events)
        records(events)
        with self._lock:
            record = self._record_of(lease)
            if events and events[0].seq != len(record.events) + 1:
                raise StoreError(
                    f"Conversation {lease.conversation_id!r}: event {events[0].seq} does not follow"
                    f" event {len(record.events)}. Nothing was written."
                )
            return self._write(record, lease, batch)

    def read(
        self, conversation_id: str, after_seq: int = 0, limit: int | None = None
    ) -> list[AnyEvent]:
        first = max(after_seq, 0)
        with self._lock:
            self._check_open()
            end = None if limit is None else first + max(limit, 0)
            return self._events(conversation_id)[first:end]

    def _events(self, conversation_id: str) -> list[AnyEvent]:
        record = self._records.get(conversation_id)
        return [] if record is None else record.events

    def tail(self, conversation_id: str) -> list[AnyEvent]:
        """See `Store.tail`. Returns all events, because none needs decoding."""
        return self.read(conversation_id)

    def follow(
        self, conversation_id: str, after_seq: int = 0, timeout: float | None = None
    ) -> Iterator[AnyEvent]:
        seq = max(after_seq, 0)
        while True:
            until = None if timeout is None else time.monotonic() + timeout
            with self._lock:
                if self._appended is None:
                    self._appended = threading.Condition(self._lock)
                while not (events := self._events(conversation_id)[seq:]) and not self._closed:
                    seconds = None if until is None else until - time.monotonic()
                    if seconds is not None and seconds <= 0:
                        return
                    self._appended.wait(seconds)
                if self._closed:
                    return
            for event in events:
                seq = event.seq
                yield event

    def blob(self, id: str) -> bytes:
        with self._lock:
            self._check_open()
            for record in self._records.values():
                for blob in record.blobs or ():
                    if blob.id == id:
                        return blob.data
        raise StoreError(f"No blob {id!r} in this store.")

    # --- budgets ---

    def bound(self, lease: Lease, budget: Budget | None) -> None:
        with self._lock:
            self._record_of(lease)
            self._budgets().bound(lease.conversation_id, budget)

    def reserve(self, lease: Lease, reservation: Reservation) -> Shortage | None:
        with self._lock:
            self._record_of(lease)
            return self._budgets().reserve(lease, reservation)

    def settle(self, settled: Sequence[Settlement]) -> None:
        with self._lock:
            self._check_open()
            self._budgets().settle(settled)

    def _budgets(self) -> _Ledger:
        if self._ledger is None:
            self._ledger = _Ledger(self._records)
        return self._ledger

    # --- the inbox ---

    def post(self, conversation_id: str, command: commands.Command, key: str | None = None) -> bool:
        base.check_key(key)
        # A command that an SQLite store could not keep is refused here too.
        command = commands.decode(commands.encode(command))
        with self._lock:
            record = self._existing(conversation_id)
            new = self._leave(record, command, key)
            notify = record.notify
        if new and notify is not None:
            notify()
        if new and self._bell is not None:
            self._bell.wake(conversation_id, None)
        return new

    def _leave(self, record: _Record, command: commands.Command, key: str | None) -> bool:
        if key is not None:
            if record.keys is None:
                record.keys = set()
            if key in record.keys:
                return False
            record.keys.add(key)
        self._post_count += 1
        entry = Posted(
            self._post_count, key if key is not None else f"#{self._post_count}", command
        )
        record.inbox = [*(record.inbox or ()), entry]
        return True

    def refusal(self, conversation_id: str, key: str) -> ErrorForm | None:
        with self._lock:
            return (self._existing(conversation_id).refusals or {}).get(key)

    def undone(self, conversation_id: str, key: str) -> bool:
        with self._lock:
            return any(one.key == key for one in self._existing(conversation_id).inbox or ())

    def commands(self, lease: Lease) -> list[Posted]:
        with self._lock:
            return list(self._record_of(lease).inbox or ())

    def unattended(self, limit: int, *, parked: bool = False) -> Sequence[str]:
        """See `Store.unattended`. No owner of this store dies without the store."""
        with self._lock:
            self._check_open()
            ids = (
                id
                for id, record in self._records.items()
                if not record.held and (record.inbox or (parked and _runs(record.summary)))
            )
            return list(islice(ids, limit))

    # --- timers ---

    def due(self, before: datetime, limit: int = 1000) -> list[DueTimer]:
        with self._lock:
            return self._due(before, limit)

    def _due(self, before: datetime, limit: int) -> list[DueTimer]:
        self._check_open()
        entries = [(due, *place) for place, due in self._timers.items() if due <= before]
        entries.sort()
        return [DueTimer(id, timer, due) for due, id, timer in entries[: max(limit, 0)]]

    def next_due(self) -> datetime | None:
        with self._lock:
            self._check_open()
            return min(self._timers.values(), default=None)

    def ring(
        self, before: datetime, limit: int = 1000, fire: FireTimers | None = None
    ) -> list[DueTimer]:
        drafts = {} if fire is None else self._drafts(before, limit, fire)
        callbacks: dict[str, Callable[[], None] | None] = {}  # by conversation
        with self._lock:
            due_timers = self._due(before, limit)
            for id, due in _by_conversation(due_timers).items():
                record = self._records[id]
                for one in due:
                    del self._timers[id, one.timer]
                resting, batch = drafts.get(id, (None, None))
                if batch is not None and resting == self._at_rest(id, due, before):
                    self._epoch += 1  # no lease of before fits the conversation any more
                    record.epoch = self._epoch
                    self._write(record, Lease(id, record.epoch), batch)
                    callbacks[id] = None
                for one in due if id not in callbacks else ():
                    if self._leave(record, commands.RingTimer(one.timer, one.due), one.key):
                        callbacks[id] = record.notify
        for conversation_id, notify in callbacks.items():
            if notify is not None:
                notify()
            if self._bell is not None:
                self._bell.wake(conversation_id, None)
        return due_timers

    def _drafts(
        self, before: datetime, limit: int, fire: FireTimers
    ) -> dict[str, tuple[RestingConversation, Batch]]:
        """Return the batches that `fire` makes, each with its conversation."""
        with self._lock:
            due = _by_conversation(self._due(before, limit))
            resting = [self._at_rest(id, timers, before) for id, timers in due.items()]
        drafts = [(one, fire(one)) for one in resting if one is not None]
        return {one.id: (one, batch) for one, batch in drafts if batch is not None and batch.events}

    # --- conversations ---

    def fork(self, conversation_id: str, summary: Summary, events: Sequence[AnyEvent] = ()) -> None:
        base.check_dense(events)
        base.check_id(summary.id)
        records(events)
        seq = summary.last_seq - len(events)
        with self._lock:
            record = self._existing(conversation_id)
            exists = summary.id in self._records
            base.check_fork(conversation_id, len(record.events), seq, summary.id, exists)
            summary = replace(summary, parent=conversation_id, parent_seq=seq, spawned_by="")
            fork = self._records[summary.id] = _Record(summary)
            fork.events = [*record.events[:seq], *events]
            fork.blobs = [blob for blob in record.blobs or () if blob.seq <= seq] or None

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
        with self._lock:
            self._check_open()
            records = (
                self._records.values()
                if ids is None
                else [self._records[id] for id in dict.fromkeys(ids) if id in self._records]
            )
            summaries = [
                replace(record.summary, driven=record.held)
                if record.summary.driven is not record.held
                else record.summary
                for record in records
                if (record.inbox if waiting else record.events)
            ]
        if status is not None:
            summaries = [summary for summary in summaries if summary.status == status]
        if spawned_by is not None:
            summaries = [
                summary
                for summary in summaries
                if summary.spawned_by and summary.spawner == spawned_by
            ]
        if forked_from is not None:
            origins = {*forked_from} - {""}
            summaries = [summary for summary in summaries if summary.parent in origins]
        if tags:
            summaries = [summary for summary in summaries if {*tags} <= {*summary.tags}]
        summaries.reverse()  # of two with the same time, the newer one first
        return sorted(summaries, key=lambda summary: str(summary.updated), reverse=True)

    def delete(self, conversation_id: str) -> None:
        with self._lock:
            self._refuse_if_held(conversation_id, self._existing(conversation_id))
            todo = [conversation_id]
            while todo:
                parent_id = todo.pop()
                del self._records[parent_id]
                for place in [place for place in self._timers if place[0] == parent_id]:
                    del self._timers[place]
                self._budgets().forget(parent_id)
                for id, record in self._records.items():
                    if not record.summary.spawned_by or record.summary.spawner != parent_id:
                        continue
                    if record.held:
                        record.summary = replace(record.summary, spawned_by="")
                    else:
                        todo.append(id)

    def close(self) -> None:
        """See `Store.close`. Drops all journals. Idempotent; does nothing in a forked child."""
        if not self._process.here:
            return
        with self._lock:
            self._closed = True
            self._records.clear()
            self._timers.clear()
            if self._appended is not None:
                self._appended.notify_all()

    def __enter__(self) -> MemoryStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- helpers; the caller holds the lock ---

    def _write(self, record: _Record, lease: Lease, batch: Batch) -> bool:
        """Write a batch that fits. Return True if its reservation is held."""
        events, summary = batch.events, batch.summary
        if done_numbers := batch.done_commands:
            for posted in record.inbox or ():
                if (refusal := batch.refusals.get(posted.number)) is not None:
                    record.refusals = {**(record.refusals or {}), posted.key: refusal}
            record.inbox = [
                posted for posted in record.inbox or () if posted.number not in done_numbers
            ] or None
        if batch.blobs:
            record.blobs = [*(record.blobs or ()), *batch.blobs]
        if events:
            record.events.extend(events)
            previous = record.summary
            # Only the first append may set the origin of a fork made in another store.
            if previous.parent or (
                events[0].seq > 1 and (previous.spawned_by or summary.spawned_by or summary.parent)
            ):
                summary = replace(
                    summary,
                    parent=previous.parent,
                    parent_seq=previous.parent_seq,
                    spawned_by=previous.spawned_by,
                )
            record.summary = summary
        for row in batch.timers:
            place = (lease.conversation_id, row.timer)
            self._timers.pop(place, None)
            if row.due is not None:
                self._timers[place] = row.due
        if batch.settlements:
            self._budgets().settle(batch.settlements)
        reservation = batch.reservation
        is_held = reservation is not None and self._budgets().reserve(lease, reservation) is None
        if self._appended is not None:
            self._appended.notify_all()
        return is_held

    def _at_rest(
        self, id: str, due: Sequence[DueTimer], now: datetime
    ) -> RestingConversation | None:
        """Return what fires these timers is shown; None if their conversation is held, has
        commands or is long."""
        record = self._records[id]
        last = len(record.events)
        if record.held or record.inbox or last - record.summary.condensed > base.MAX_TAIL_TO_FIRE:
            return None
        return RestingConversation(id, record.epoch, last, list(record.events), due, now)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("This MemoryStore is closed, and its conversations are gone.")

    def _existing(self, conversation_id: str) -> _Record:
        self._check_open()
        record = self._records.get(conversation_id)
        if record is None:
            raise base.not_found(conversation_id, "this store")
        return record

    def _record_of(self, lease: Lease) -> _Record:
        self._check_open()
        record = self._records.get(lease.conversation_id)
        if record is None or record.epoch != lease.epoch or not record.held:
            raise base.fenced_error(lease)
        return record

    @staticmethod
    def _refuse_if_held(conversation_id: str, record: _Record) -> None:
        if record.held:
            holder = f"another Conversation in this process ({os.getpid()})"
            raise LeaseHeld(conversation_id, holder)
