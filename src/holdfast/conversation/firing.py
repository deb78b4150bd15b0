"""Fires the timers of conversations without an owner, for `Store.ring`."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.conversation.journal import Journal
from holdfast.conversation.timers import RungOccurrence, ring
from holdfast.errors import StoreError
from holdfast.events import AnyEvent
from holdfast.store import Batch, Lease, MemoryStore, RestingConversation


class _Resting(MemoryStore):
    """A store of one resting conversation, to read."""

    def __init__(self, resting: RestingConversation) -> None:
        super().__init__()
        self._resting = resting

    def acquire(self, conversation_id: str, notify: Callable[[], None] | None = None) -> Lease:
        return Lease(conversation_id, self._resting.epoch, last_seq=self._resting.last_seq)

    def tail(self, conversation_id: str) -> list[AnyEvent]:
        return list(self._resting.events)

    def read(
        self, conversation_id: str, after_seq: int = 0, limit: int | None = None
    ) -> list[AnyEvent]:
        raise StoreError("Only the tail of a resting conversation is at hand.")


def fire_resting(resting: RestingConversation, new_id: Callable[[], str]) -> Batch | None:
    """Return the batch by which a host's conversation fires its due timers, None if it has nothing
    to fire. The batch begins a run, like a message to a hosted conversation.

    Raises `StoreError` if the tail is not enough to tell.
    """
    store = _Resting(resting)
    with Journal(store, resting.id, lambda: resting.now, new_id, _nothing) as journal:
        rung = [RungOccurrence(one.timer, one.due) for one in resting.due]
        ring(journal, rung, drives=True)
        return journal.withdraw()


def _nothing() -> None:
    """Ignore news: the conversation is not open."""
