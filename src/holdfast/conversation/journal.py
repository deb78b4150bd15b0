"""The journal of one open conversation: its events in memory, their fold, and the only way to
append."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from holdfast import events as ev
from holdfast.agent.planning import note as plan_note
from holdfast.agent.planning import summary_with_plan
from holdfast.agent.view import hidden_until
from holdfast.content import Content, TextContent, ToolResult
from holdfast.conversation.fold import Fold
from holdfast.conversation.journal_lock import JournalLock
from holdfast.conversation.outputs import whole
from holdfast.conversation.status import STATUSES
from holdfast.error_forms import ErrorForm
from holdfast.errors import ConversationBusy, ConversationClosed, UnreadableEvent
from holdfast.labels import labels_after
from holdfast.object_struct import ObjectStruct
from holdfast.processes import OwnerProcess
from holdfast.store import Batch, Blob, Lease, Posted, Store, Summary, TimerRow

if TYPE_CHECKING:
    from holdfast.conversation.budget import Spending
    from holdfast.conversation.observer import Observed
    from holdfast.tools.secrets import Secrets

_log = logging.getLogger("holdfast")

E = TypeVar("E", bound=ev.Event)
Clock = Callable[[], datetime]
# events that change the listing entry of a conversation; most do not
_LISTED = frozenset(
    (ev.StatusChanged, ev.MessageAdded, ev.HistoryCondensed, ev.ConversationLabelled)
)


def utc_now() -> datetime:
    """Return the system's time."""
    return datetime.now(UTC)


class Journal(ObjectStruct):
    """The journal of one open conversation. Thread-safe.

    Reads the store at once, unless its events and their fold are `_history`; takes the lease at the
    first write. `lock` guards everything here and is notified of every append. `lock` is held
    during the store's append, which it serialises, and during nothing else that can block.
    """

    store: Store
    id: str
    clock: Clock
    new_id: Callable[[], str]
    _notify: Callable[[], None]
    _history: tuple[list[ev.AnyEvent], Fold] | None = None
    spawned_by: str = ""  # the store has it once there are events
    spending: Spending | None = None  # reserves and settles with the appends
    observed: Observed | None = None
    owner: OwnerProcess = msgspec.field(default_factory=OwnerProcess)
    secrets: Secrets | None = None  # masked in all appended events
    _lock: JournalLock = msgspec.field(default_factory=JournalLock)
    closed: bool = False
    # an append was aborted (Ctrl-C, a failing disk) after it may have been written
    stale: bool = False
    lease: Lease | None = None
    # marks of a dead owner's processes that are still to be ended
    _orphan_marks: tuple[str, ...] = ()
    _needs_catch_up: bool = False  # True if the events before the lease are still to be read
    _process_mark: str = ""  # the mark of processes that calls start under this lease
    _draft: ev.RecordedEvents | None = None
    # of the draft: commands done, by number, with the errors of refused ones; blobs referred to;
    # rows of the index of timers
    _draft_extras: tuple[dict[int, ErrorForm | None], list[Blob], list[TimerRow]] | None = None
    # the events in memory: at least all that a model is still shown
    tail: list[ev.AnyEvent] = []
    _so_far: ev.Checkpoint | None = None  # the fold of the events before `tail`
    _condensed_count: int = 0  # of the events before `tail`, which are read only on demand
    fold: Fold = msgspec.field(default_factory=Fold)

    def __post_init__(self) -> None:
        if self._history is None:
            self._read()
        else:
            (self.tail, self.fold), self._history = self._history, None

    @property
    def lock(self) -> JournalLock:
        """The lock. Raises `WrongProcess` in a fork, where a missing thread may hold it."""
        if not self.owner.here:
            self.owner.check(f"Conversation {self.id!r}")
        return self._lock

    def acquire(self) -> None:
        """Take the lease if it is not held yet, and catch up. Raises `LeaseHeld`, or if closed."""
        with self.lock:
            if self.closed:
                raise self.closed_error()
            if self.lease is None:
                self.lease = self.store.acquire(self.id, self._notify)
                self._orphan_marks, self._needs_catch_up = self.lease.orphan_notes, True
                self.spawned_by = self.lease.spawned_by or self.spawned_by
            # also after an aborted attempt: the lease's marks must not be lost
            if self._needs_catch_up:
                self._end_orphans()
                if self.stale:
                    self._read()
                self.stale = True
                if self.lease.last_seq != self.fold.last_seq:
                    for event in self.store.read(self.id, self.fold.last_seq):
                        self._apply(event)
                self.stale = self._needs_catch_up = False
            elif self.stale:
                # Ctrl-C may have fallen between the store, the events and the fold: read both
                # again.
                self._read()
                self.stale = False
                self.lock.notify_all()

    def confirm(self) -> None:
        """Raise `Fenced` if another owner may have taken the lease; see `Store.confirm`."""
        lease = self.lease
        if lease is not None:
            self.store.confirm(lease)

    def closed_error(self) -> ConversationClosed:
        """Return the error for a use of the closed conversation."""
        how = "Open it again with Conversation(agent, store, id=...)."
        return ConversationClosed(f"Conversation {self.id!r} is closed. {how}")

    def _end_orphans(self) -> None:
        """End the processes that a dead owner's calls left running.

        Done first under the lease, since a repeated call might start the same process again.
        """
        if self._orphan_marks:
            assert self.lease is not None
            if not _processes().end_owned(self._orphan_marks):
                self.log("processes that a killed owner left could not be ended", logging.ERROR)
            self.store.note(self.lease, ())
            self._orphan_marks = ()

    def log(self, problem: str, level: int = logging.WARNING, traceback: bool = False) -> None:
        """Log a problem of this conversation."""
        _log.log(level, "conversation %s: %s", self.id, problem, exc_info=traceback)

    def process_environment(self) -> dict[str, str]:
        """Return the environment variables that mark processes started by calls.

        The mark is in the store before the first process begins.
        """
        with self.lock:
            self.acquire()
            assert self.lease is not None
            if not self._process_mark:
                mark = f"{self.lease.epoch}-{os.urandom(16).hex()}"
                self.store.note(self.lease, (mark,))
                self._process_mark = mark
            return {_processes().OWNER: self._process_mark}

    def commands(self) -> list[Posted]:
        """Return the inbox. Raises `Fenced` if the lease is lost."""
        with self.lock:
            return [] if self.lease is None or self.closed else self.store.commands(self.lease)

    def _read(self) -> None:
        """Read and fold the events that the loop needs to continue."""
        tail = self.store.tail(self.id)
        count = tail[0].seq - 1 if tail else 0
        checkpoints = [
            event.so_far
            for event in tail
            if isinstance(event, ev.HistoryCondensed)
            and event.so_far is not None
            and event.so_far.seq == count
            and event.so_far.status in STATUSES  # a newer version may write other statuses
        ]
        if count and not checkpoints:
            tail, count = self.store.read(self.id), 0
        self.tail, self._condensed_count = tail, count
        self._so_far = checkpoints[0] if count else None
        self.fold = self._fold_until(count + len(tail))

    @property
    def events(self) -> list[ev.AnyEvent]:
        """All events; condensed ones are read at the first access. Needs the lock."""
        if self._condensed_count:
            head = self.store.read(self.id, 0, self._condensed_count)
            self.tail, self._condensed_count, self._so_far = head + self.tail, 0, None
        return self.tail

    def events_until(self, seq: int) -> tuple[ev.AnyEvent, ...]:
        """Return the events up to `seq`. Thread-safe: existing events never change."""
        with self.lock:
            return tuple(self.events[:seq])

    def after(self, seq: int) -> list[ev.AnyEvent]:
        """Return the events after `seq`. Holds the lock."""
        events = self.tail if seq >= self._condensed_count else self.events
        return events[seq - self._condensed_count :]

    def _apply(self, event: ev.AnyEvent) -> None:
        self.tail.append(event)
        self.fold.apply(event)

    # --- transactions: `with journal as j: j.add(...)` ---

    def __enter__(self) -> Journal:
        """Begin an append: one transaction when the block ends, none at all if it raises."""
        self.lock.acquire()
        try:
            if self._draft is not None:
                raise ConversationBusy(
                    f"Conversation {self.id!r} is in an append that a signal handler broke into;"
                    " note it there, act later."
                )
            if self.lease is None or self.stale or self._needs_catch_up:
                self.acquire()
            self._draft = ev.RecordedEvents()
        except BaseException:
            self.lock.release()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None and (self._draft or self._draft_extras or self._owes_settlements):
                self._append(self._draft or ev.RecordedEvents())
        finally:
            self._draft = self._draft_extras = None
            self._lock.release()
            if self.observed is not None and not self._lock.is_held():
                self.observed.tell()

    @property
    def _owes_settlements(self) -> bool:
        return self.spending is not None and bool(self.spending.due)

    def break_off(self) -> None:
        """End this thread's transaction if Ctrl-C fell where its `with` did not see it."""
        while self._lock.is_held():
            self._draft = self._draft_extras = None
            self._lock.release()

    def add(self, kind: type[E], id: str = "", **fields: Any) -> E:
        """Add the next event, with the next `seq`, the clock's `timestamp` and a new `id` if none
        is given.

        Raise `UnreadableEvent`, with nothing added, if the event could not be read back.
        """
        draft = self._draft
        assert draft is not None, "add outside of a transaction"
        event = kind(
            seq=self.fold.last_seq + len(draft) + 1,
            id=id or self.new_id(),
            timestamp=self.clock(),
            **fields,
        )
        if event.timestamp.tzinfo is None:  # other readers would take it for local time
            raise UnreadableEvent(
                f"Event {event.seq} ({event.type})",
                "its timestamp has no time zone; give a clock like datetime.now(UTC)",
            )
        if self.secrets is not None:
            event = self.secrets.mask_value(event)
        draft.add(cast(ev.AnyEvent, event))
        return event

    def tell_model(self, content: str | tuple[Content, ...], about: str = "") -> None:
        """Add a message from Holdfast itself. Within a transaction."""
        content = (TextContent(content),) if isinstance(content, str) else content
        self.add(ev.MessageAdded, content=content, sender="holdfast", about=about)

    def keep(self, data: bytes, seq: int | None = None) -> None:
        """Store bytes with this transaction for event `seq`, by default the next one."""
        self._draft_extras = self._draft_extras or ({}, [], [])
        self._draft_extras[1].append(Blob(self.next_seq if seq is None else seq, data))

    def take(self, posted: Posted) -> None:
        """Mark a command as done with the transaction that is open."""
        self._draft_extras = self._draft_extras or ({}, [], [])
        self._draft_extras[0][posted.number] = None

    def refuse(self, posted: Posted, error: ErrorForm) -> None:
        """Mark a command as done with the transaction that is open, and keep its error."""
        self.take(posted)
        assert self._draft_extras is not None
        error = error if self.secrets is None else self.secrets.mask_value(error)
        self._draft_extras[0][posted.number] = error

    def index_timer(self, timer: str, due: datetime | None) -> None:
        """Write the time at which a timer is due next with the transaction that is open; None
        removes it from the store's index."""
        self._draft_extras = self._draft_extras or ({}, [], [])
        self._draft_extras[2].append(TimerRow(timer, due))

    @property
    def next_seq(self) -> int:
        """The seq that the next added event gets. Only within a transaction."""
        return self.fold.last_seq + len(self._draft or ()) + 1

    def withdraw(self) -> Batch | None:
        """Return what the open transaction would append, and append nothing of it. None if there is
        nothing."""
        draft, extras = self._draft, self._draft_extras
        if not draft and extras is None:
            return None
        batch = self._batch(draft or ev.RecordedEvents())
        self._draft, self._draft_extras = ev.RecordedEvents(), None
        return batch

    def _batch(self, draft: ev.RecordedEvents) -> Batch:
        summary, spending = self.summary(draft), self.spending
        outcomes, blobs, timers = self._draft_extras or ({}, (), ())
        refusals = {number: error for number, error in outcomes.items() if error is not None}
        settlements = () if spending is None else spending.settlements(draft)
        reservation = None if spending is None else spending.reservation(draft)
        return Batch(
            draft, summary, tuple(outcomes), blobs, settlements, reservation, refusals, timers
        )

    def _append(self, draft: ev.RecordedEvents) -> None:
        assert self.lease is not None
        batch, spending = self._batch(draft), self.spending
        # until the append returns: a failing disk may leave its outcome open
        self.stale = True
        try:
            accepted = self.store.append(self.lease, batch)
            if spending is not None and batch.reservation is not None:
                spending.confirm_ahead(accepted)
            for event in draft:
                self._apply(event)
            self.stale = False
            if self.observed is not None and draft:
                self.observed.add(draft)
            if spending is not None:
                spending.confirm_written(batch.settlements)
        finally:
            # Ctrl-C may fall after the store's append: waiting threads must look again
            self._lock.notify_all()

    def summary(self, draft: Sequence[Any]) -> Summary:
        """Return the listing entry of the conversation once `draft` is written."""
        fold = self.fold
        labels, status, condensed = (
            fold.labelled.labels,
            fold.status.value,
            fold.condensation.condensed,
        )
        created, last, updated = fold.created, fold.last_seq, fold.last_time
        for event in [one for one in draft if type(one) in _LISTED]:
            if type(event) is ev.StatusChanged:
                status = event.status
            elif type(event) is not ev.HistoryCondensed:
                labels = labels_after(labels, event)
            elif event.so_far is not None:
                condensed = max(condensed, event.so_far.seq)
        if draft:
            last, updated = draft[-1].seq, draft[-1].timestamp
            created = created or draft[0].timestamp
        more: dict[str, Any] = {"condensed": condensed, "spawned_by": self.spawned_by}
        if labels.tags:
            more["tags"] = labels.tags
        return Summary(self.id, status, labels.title, last, created, updated, **more)

    def condense(
        self, hidden: Sequence[int], summary: str, replaced: Sequence[int] = (), **more: Any
    ) -> ev.HistoryCondensed:
        """Add a `HistoryCondensed` with these fields. Within a transaction.

        A plan that would no longer be shown is appended to the summary, and follows a compaction.
        """
        plan = self.fold.planning.plan
        summary = summary_with_plan(plan, summary, hidden, replaced)
        # the plan that an agent follows is not trimmed
        if plan is not None and plan.call_id in more.get("trimmed", ()):
            more["trimmed"] = dict(more["trimmed"])
            del more["trimmed"][plan.call_id]
            if not hidden and not more["trimmed"]:
                more["failed"] = "nothing can be left out but the plan"
        if (compaction := more.get("compaction")) is not None and plan is not None:
            more["compaction"] = msgspec.structs.replace(compaction, note=plan_note(plan))
        until = hidden_until(self.tail, hidden, replaced) if hidden else 0
        more["replaced"] = tuple(replaced)
        so_far = self._fold_until(until).checkpoint() if until > self._condensed_count else None
        return self.add(
            ev.HistoryCondensed, hidden=tuple(hidden), summary=summary, so_far=so_far, **more
        )

    def _fold_until(self, seq: int) -> Fold:
        """Return the fold right after event `seq`, which must be in memory."""
        state = Fold() if self._so_far is None else Fold.after(self._so_far, self._event_at)
        state.take(self.tail[: seq - self._condensed_count])
        return state

    def _event_at(self, seq: int) -> ev.AnyEvent:
        return self.store.read(self.id, seq - 1, 1)[0]

    def output(self, call_id: str) -> ToolResult | None:
        """Return the whole result of a call; None if it has none. Thread-safe."""
        with self.lock:
            events = list(self.events)
        for event in reversed(events):
            if isinstance(event, ev.ToolCallFinished) and event.call_id == call_id:
                return whole(event.result, self.store.blob)
        return None

    def add_all(self, events: Sequence[ev.AnyEvent]) -> None:
        """Add events that already have their seqs to an empty journal. Raise `UnreadableEvent`."""
        draft = self._draft
        assert draft is not None, "add_all outside of a transaction"
        for event in events:
            draft.add(event if self.secrets is None else self.secrets.mask_value(event))
        if self.observed is not None:
            self.observed.skip(len(events))  # observers saw them in the original conversation

    def close(self) -> None:
        """Release the lease; every later append raises `ConversationClosed`. Idempotent."""
        with self.lock:
            self.closed = True
            if self._orphan_marks:
                self._end_orphans()
            lease, self.lease = self.lease, None
            self.lock.notify_all()
            if lease is not None:  # under the lock: a thread that finds it closed may open it again
                self.store.release(lease)


def _processes() -> ModuleType:
    from holdfast.runtime import processes  # 40 ms of import that few conversations need

    return processes
