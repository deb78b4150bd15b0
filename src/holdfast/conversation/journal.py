"""The journal of one open conversation: its events in memory, their fold, and the one way of appending."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, TypeVar

from holdfast import events as ev
from holdfast.conversation.changed import Changed
from holdfast.conversation.state import Fold, fold
from holdfast.errors import ConversationBusy, ConversationClosed, StoreError
from holdfast.store import Lease, Store, Summary

E = TypeVar("E", bound=ev.Event)
Clock = Callable[[], datetime]


def utc_now() -> datetime:
    """The system's clock."""
    return datetime.now(UTC)


class Journal:
    """Thread-safe. Reads the store at once, takes the lease at the first write.

    `changed` guards everything here and is notified of every append. It is held over the store's append, which it serialises, and
    over nothing else that can block.
    """

    __slots__ = ("_clock", "_draft", "_lease", "_new_id", "_store", "changed", "closed", "events", "fold", "id", "stale")

    def __init__(self, store: Store, id: str, clock: Clock, new_id: Callable[[], str]) -> None:
        self.id = id
        self.events: list[ev.AnyEvent] = store.read(id)
        self.fold: Fold = fold(self.events)
        self.changed = Changed()
        self.closed = False
        self.stale = False  # an append was broken off (Ctrl-C) after it may have been written
        self._store = store
        self._clock = clock
        self._new_id = new_id
        self._lease: Lease | None = None
        self._draft: list[Any] | None = None

    def acquire(self) -> None:
        """Take the lease if it is not held yet; catch up with what was written since the events were read.

        Raises `LeaseHeld`, `ConversationClosed`.
        """
        with self.changed:
            if self.closed:
                raise ConversationClosed(f"Conversation {self.id!r} is closed. Open it again with Conversation(agent, store, id=...).")
            if self._lease is None:
                lease = self._store.acquire(self.id)
                try:
                    for event in self._store.read(self.id, self.fold.last_seq):
                        self._take(event)
                except BaseException:
                    self._store.release(lease)
                    raise
                self._lease = lease
            elif self.stale:
                # Ctrl-C may have fallen between the store, `events` and the fold, so both are made anew.
                self.events = self._store.read(self.id)
                self.fold = fold(self.events)
                self.stale = False
                self.changed.notify_all()

    def _take(self, event: ev.AnyEvent) -> None:
        self.events.append(event)
        self.fold.apply(event)

    # --- a transaction: `with journal as j: j.add(...)` ---

    def __enter__(self) -> Journal:
        """Begin an append. What is added is written in one transaction when the block ends, and not at all if it raises."""
        self.changed.acquire()
        try:
            if self._draft is not None:
                raise ConversationBusy(
                    f"Conversation {self.id!r} is in an append that a signal handler broke into; note it there, act later."
                )
            self.acquire()
            self._draft = []
        except BaseException:
            self.changed.release()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if self._draft and kind is None:
                self._append(self._draft)
        finally:
            self._draft = None
            self.changed.release()

    def break_off(self) -> None:
        """End this thread's transaction if Ctrl-C fell where its `with` did not see it."""
        while self.changed.held():
            self._draft = None
            self.changed.release()

    def add(self, kind: type[E], **fields: Any) -> E:
        """Make the next event. `id`, `seq` and `timestamp` are given here."""
        draft = self._draft
        assert draft is not None, "add outside of a transaction"
        event = kind(seq=self.fold.last_seq + len(draft) + 1, id=self._new_id(), timestamp=self._clock(), **fields)
        draft.append(event)
        return event

    @property
    def next_seq(self) -> int:
        """The seq that the next added event gets. Only within a transaction."""
        return self.fold.last_seq + len(self._draft or ()) + 1

    def _append(self, draft: list[Any]) -> None:
        assert self._lease is not None
        first, last = draft[0], draft[-1]
        created = self.events[0].timestamp if self.events else first.timestamp
        title, status = self.fold.title, self.fold.status.value
        for event in draft:
            if type(event) is ev.Status:
                status = event.status
            elif type(event) is ev.Message and not title:
                title = event.text.strip().split("\n", 1)[0][:80]
        summary = Summary(self.id, status, title, last.seq, created, last.timestamp)
        self.stale = True
        try:
            self._store.append(self._lease, draft, summary)
        except StoreError:
            self.stale = False  # a store that fails says that it wrote nothing
            raise
        for event in draft:
            self._take(event)
        self.stale = False
        self.changed.notify_all()

    def add_all(self, events: Sequence[Any]) -> None:
        """Add events that have their seqs already, to a journal that has none."""
        assert self._draft is not None, "add_all outside of a transaction"
        self._draft.extend(events)

    def close(self) -> None:
        """Give the lease back; every later append raises `ConversationClosed`. Idempotent."""
        with self.changed:
            self.closed = True
            lease, self._lease = self._lease, None
            self.changed.notify_all()
            if lease is not None:  # under the lock: whoever finds it closed may open it again
                self._store.release(lease)
