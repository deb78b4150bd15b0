"""A store that tells of every append, whoever made it in this process: by it the feeds hear of events."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from holdfast.events import AnyEvent
from holdfast.store import Blob, Lease, Store, Summary

if TYPE_CHECKING:
    from holdfast.commands import Command

Listener = Callable[[str, Sequence[AnyEvent]], None]


class WatchedStore:
    """`store`, of which `listener(conversation_id, events)` is told after each append: on the thread that appended, in the journal's order.
    It must neither block nor raise."""

    def __init__(self, store: Store, listener: Listener) -> None:
        self._store = store
        self._listener = listener
        # What is passed on unchanged costs nothing.
        self.renew, self.release, self.note = store.renew, store.release, store.note
        self.read, self.tail, self.blob, self.commands = store.read, store.tail, store.blob, store.commands

    def append(
        self, lease: Lease, events: Sequence[AnyEvent], summary: Summary, *, taken: Sequence[int] = (), blobs: Sequence[Blob] = ()
    ) -> None:
        """See `Store.append`."""
        self._store.append(lease, events, summary, taken=taken, blobs=blobs)
        if events:
            self._listener(lease.conversation_id, events)

    def acquire(self, conversation_id: str, notify: Callable[[], None] | None = None) -> Lease:
        """See `Store.acquire`."""
        return self._store.acquire(conversation_id, notify)

    def follow(self, conversation_id: str, after_seq: int = 0, timeout: float | None = None) -> Iterator[AnyEvent]:
        """See `Store.follow`."""
        return self._store.follow(conversation_id, after_seq, timeout)

    def post(self, conversation_id: str, command: Command, key: str | None = None) -> bool:
        """See `Store.post`."""
        return self._store.post(conversation_id, command, key)

    def fork(self, conversation_id: str, summary: Summary, events: Sequence[AnyEvent] = ()) -> None:
        """See `Store.fork`."""
        self._store.fork(conversation_id, summary, events)

    def list(self, ids: Sequence[str] | None = None, *, status: str | None = None, waiting: bool = False) -> list[Summary]:
        """See `Store.list`."""
        return self._store.list(ids, status=status, waiting=waiting)

    def delete(self, conversation_id: str) -> None:
        """See `Store.delete`."""
        self._store.delete(conversation_id)

    def close(self) -> None:
        """See `Store.close`."""
        self._store.close()
