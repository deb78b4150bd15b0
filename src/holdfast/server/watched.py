"""A store that notifies listeners of every append in this process. The feeds receive events
through it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from holdfast.events import AnyEvent
from holdfast.store import Blob, Lease, Reservation, Settlement, Store, Summary

if TYPE_CHECKING:
    from holdfast.commands import Command

Listener = Callable[[str, Sequence[AnyEvent]], None]


class NotifyingStore:
    """A wrapper of `store` that calls `listener(conversation_id, events)` after each append.

    The listener is called on the appending thread, in the journal's order, and must neither
    block nor raise. `deleted(conversation_id)` is called after a removal.
    `recorded(conversation_id)` returns True if a client has created a conversation with this id,
    even if the store has no events of it yet; no call may spawn a conversation with such an id.
    """

    def __init__(
        self,
        store: Store,
        listener: Listener,
        deleted: Callable[[str], None] | None = None,
        recorded: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._store = store
        self._listener = listener
        self._deleted = deleted
        self.recorded = recorded
        # Methods that are passed on unchanged are bound directly and cost nothing.
        self.renew, self.release, self.note = store.renew, store.release, store.note
        self.read, self.tail, self.blob, self.commands = (
            store.read,
            store.tail,
            store.blob,
            store.commands,
        )
        self.bound, self.reserve, self.settle = store.bound, store.reserve, store.settle

    def append(
        self,
        lease: Lease,
        events: Sequence[AnyEvent],
        summary: Summary,
        *,
        taken: Sequence[int] = (),
        blobs: Sequence[Blob] = (),
        settled: Sequence[Settlement] = (),
        reserved: Reservation | None = None,
    ) -> bool:
        """See `Store.append`."""
        held = self._store.append(
            lease, events, summary, taken=taken, blobs=blobs, settled=settled, reserved=reserved
        )
        if events:
            self._listener(lease.conversation_id, events)
        return held

    def acquire(self, conversation_id: str, notify: Callable[[], None] | None = None) -> Lease:
        """See `Store.acquire`."""
        return self._store.acquire(conversation_id, notify)

    def follow(
        self, conversation_id: str, after_seq: int = 0, timeout: float | None = None
    ) -> Iterator[AnyEvent]:
        """See `Store.follow`."""
        return self._store.follow(conversation_id, after_seq, timeout)

    def post(self, conversation_id: str, command: Command, key: str | None = None) -> bool:
        """See `Store.post`."""
        return self._store.post(conversation_id, command, key)

    def fork(self, conversation_id: str, summary: Summary, events: Sequence[AnyEvent] = ()) -> None:
        """See `Store.fork`."""
        self._store.fork(conversation_id, summary, events)

    def list(
        self,
        ids: Sequence[str] | None = None,
        *,
        status: str | None = None,
        waiting: bool = False,
        spawned_by: str | None = None,
    ) -> list[Summary]:
        """See `Store.list`."""
        return self._store.list(ids, status=status, waiting=waiting, spawned_by=spawned_by)

    def delete(self, conversation_id: str) -> None:
        """See `Store.delete`."""
        self._store.delete(conversation_id)
        if self._deleted is not None:
            self._deleted(conversation_id)

    def close(self) -> None:
        """See `Store.close`."""
        self._store.close()
