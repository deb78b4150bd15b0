"""A store that notifies listeners of every append in this process. The feeds receive events
through it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime

from holdfast.errors import StoreError
from holdfast.events import AnyEvent
from holdfast.store import Batch, DueTimer, FireTimers, Lease, RestingConversation, Store

Listener = Callable[[str, Sequence[AnyEvent]], None]


class NotifyingStore:
    """A wrapper of `store` that calls `listener(conversation_id, events)` after each append.

    The listener is called on the appending thread, in the journal's order, and must neither block
    nor raise.

    Args:
        deleted: Called with the conversation's id after a removal.
        recorded: Returns True if a client has created a conversation with this id, even if the
            store has no events of it yet. No call may spawn a conversation with such an id.
        posted: Called with the conversation's id, without blocking, when an open conversation has
            done the new commands in its inbox.
    """

    def __init__(
        self,
        store: Store,
        listener: Listener,
        deleted: Callable[[str], None] | None = None,
        recorded: Callable[[str], bool] = lambda _: False,
        posted: Callable[[str], None] | None = None,
    ) -> None:
        self._store = store
        self._posted = posted
        self._listener = listener
        self._deleted = deleted
        self.recorded = recorded
        # Methods that are passed on unchanged are bound directly and cost nothing.
        self.renew, self.release, self.confirm = store.renew, store.release, store.confirm
        self.read, self.tail, self.follow = store.read, store.tail, store.follow
        self.post, self.commands, self.note = store.post, store.commands, store.note
        self.refusal, self.undone = store.refusal, store.undone
        self.unattended = store.unattended
        self.due, self.next_due = store.due, store.next_due
        self.bound, self.reserve, self.settle = store.bound, store.reserve, store.settle
        self.blob, self.fork = store.blob, store.fork
        self.list, self.close = store.list, store.close

    def acquire(self, conversation_id: str, notify: Callable[[], None] | None = None) -> Lease:

        posted = self._posted
        if notify is None or posted is None:
            return self._store.acquire(conversation_id, notify)

        def notify_both() -> None:
            notify()
            posted(conversation_id)

        return self._store.acquire(conversation_id, notify_both)

    def append(self, lease: Lease, batch: Batch) -> bool:
        is_held = self._store.append(lease, batch)
        if batch.events:
            self._listener(lease.conversation_id, batch.events)
        return is_held

    def ring(
        self, before: datetime, limit: int = 1000, fire: FireTimers | None = None
    ) -> list[DueTimer]:
        if fire is None:
            return self._store.ring(before, limit)
        drafts: dict[str, Sequence[AnyEvent]] = {}

        def draft(resting: RestingConversation) -> Batch | None:
            batch = fire(resting)
            drafts[resting.id] = () if batch is None else batch.events
            return batch

        rung = self._store.ring(before, limit, draft)
        for id, events in drafts.items():
            with suppress(StoreError):  # the next opener of a damaged conversation reports it
                stored = self._store.read(id, events[0].seq - 1, len(events)) if events else []
                if stored and stored[-1].id == events[-1].id:  # the store may have declined it
                    self._listener(id, stored)
        return rung

    def delete(self, conversation_id: str) -> None:
        self._store.delete(conversation_id)
        if self._deleted is not None:
            self._deleted(conversation_id)
