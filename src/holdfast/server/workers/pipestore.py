"""`PipeStore`: the store of a worker, which is the server's, for the one conversation that the worker has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from holdfast import commands as cmd
from holdfast import events as ev
from holdfast.errors import ConversationNotFound, StoreError
from holdfast.events import AnyEvent
from holdfast.server.workers import messages as ms
from holdfast.server.workers.link import Link
from holdfast.store import Blob, Lease, Posted, Summary

if TYPE_CHECKING:
    from holdfast.commands import Command


class PipeStore:
    """See `Store`. The lease is the server's, which gives it back if this process ends."""

    def __init__(self, link: Link, id: str) -> None:
        self._link = link
        self._id = id
        self.notify: Callable[[], None] | None = None

    def _mine(self, id: str) -> None:
        if id != self._id:
            raise ConversationNotFound(f"No conversation {id!r} in the store of this worker.")

    def acquire(self, conversation_id: str, notify: Callable[[], None] | None = None) -> Lease:
        """See `Store.acquire`."""
        self._mine(conversation_id)
        self.notify = notify
        epoch, left = self._link.ask(ms.Acquire, type=tuple[int, tuple[str, ...]])
        return Lease(conversation_id, epoch, left)

    def renew(self, lease: Lease) -> None:
        """See `Store.renew`."""
        self._mine(lease.conversation_id)
        self._link.ask(ms.Renew)

    def release(self, lease: Lease) -> None:
        """See `Store.release`."""
        self._mine(lease.conversation_id)
        self.notify = None
        self._link.ask(ms.Release)

    def note(self, lease: Lease, notes: Sequence[str]) -> None:
        """See `Store.note`."""
        self._mine(lease.conversation_id)
        self._link.ask(ms.Leave, list(notes))

    def append(
        self, lease: Lease, events: Sequence[AnyEvent], summary: Summary, *, taken: Sequence[int] = (), blobs: Sequence[Blob] = ()
    ) -> None:
        """See `Store.append`."""
        self._mine(lease.conversation_id)
        encoded = [ev.encode(event) for event in events]
        self._link.ask(ms.Append, encoded, summary, list(taken), [(blob.seq, blob.data) for blob in blobs])

    def read(self, conversation_id: str, after_seq: int = 0, limit: int | None = None) -> list[AnyEvent]:
        """See `Store.read`."""
        self._mine(conversation_id)
        return [ev.decode(data) for data in self._link.ask(ms.Read, after_seq, limit, type=list[bytes])]

    def tail(self, conversation_id: str) -> list[AnyEvent]:
        """See `Store.tail`."""
        self._mine(conversation_id)
        return [ev.decode(data) for data in self._link.ask(ms.Tail, type=list[bytes])]

    def follow(self, conversation_id: str, after_seq: int = 0, timeout: float | None = None) -> Iterator[AnyEvent]:
        """Raises `StoreError`: whoever follows does so at the server."""
        raise StoreError("A worker's store cannot be followed; the server's feed can.")

    def blob(self, id: str) -> bytes:
        """See `Store.blob`."""
        return self._link.ask(ms.GetBlob, id, type=bytes)

    def post(self, conversation_id: str, command: Command, key: str | None = None) -> bool:
        """See `Store.post`."""
        self._mine(conversation_id)
        return self._link.ask(ms.Post, cmd.encode(command), key, type=bool)

    def commands(self, lease: Lease) -> list[Posted]:
        """See `Store.commands`."""
        self._mine(lease.conversation_id)
        return [Posted(number, key, cmd.decode(data)) for number, key, data in self._link.ask(ms.Inbox, type=list[tuple[int, str, bytes]])]

    def fork(self, conversation_id: str, summary: Summary, events: Sequence[AnyEvent] = ()) -> None:
        """Raises `StoreError`: forks are made at the server."""
        raise StoreError("A worker has one conversation, and makes no fork of it; the server does.")

    def list(self, ids: Sequence[str] | None = None, *, status: str | None = None, waiting: bool = False) -> list[Summary]:
        """See `Store.list`, of the one conversation that there is."""
        found = self._link.ask(ms.Listed, type=list[Summary])
        return [one for one in found if (ids is None or one.id in ids) and status in (None, one.status)] if not waiting else []

    def delete(self, conversation_id: str) -> None:
        """Raises `StoreError`: the server removes conversations."""
        raise StoreError("A worker removes no conversation; the server does.")

    def close(self) -> None:
        """The store is the server's: nothing is done."""
