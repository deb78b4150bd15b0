"""`PipeStore`: the store of a worker. It forwards requests for the worker's conversation and its
descendants to the server's store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from holdfast import commands as cmd
from holdfast import events as ev
from holdfast.errors import StoreError
from holdfast.events import AnyEvent
from holdfast.server.workers import messages as ms
from holdfast.server.workers.link import WorkerLink
from holdfast.store import Blob, Budget, Lease, Posted, Reservation, Settlement, Shortage, Summary

if TYPE_CHECKING:
    from holdfast.commands import Command


class PipeStore:
    """A `Store` for the conversation `id` and those that its calls spawn. The server holds the
    leases and releases them if this process ends."""

    def __init__(self, link: WorkerLink, id: str) -> None:
        self._link = link
        self._id = id
        self._notifies: dict[str, Callable[[], None]] = {}

    def notify(self) -> None:
        """Notify all lease holders of new commands."""
        for notify in list(self._notifies.values()):
            notify()

    def _which(self, id: str) -> str:
        """Return the id as the server expects it: "" for the worker's own conversation."""
        return "" if id == self._id else id

    def acquire(self, conversation_id: str, notify: Callable[[], None] | None = None) -> Lease:
        """See `Store.acquire`."""
        if notify is not None:
            self._notifies[conversation_id] = notify
        try:
            return self._link.ask(ms.Acquire, self._which(conversation_id), type=Lease)
        except BaseException:
            self._notifies.pop(conversation_id, None)
            raise

    def renew(self, lease: Lease) -> None:
        """See `Store.renew`."""
        self._link.ask(ms.Renew, self._which(lease.conversation_id))

    def release(self, lease: Lease) -> None:
        """See `Store.release`."""
        self._notifies.pop(lease.conversation_id, None)
        self._link.ask(ms.Release, self._which(lease.conversation_id))

    def note(self, lease: Lease, notes: Sequence[str]) -> None:
        """See `Store.note`."""
        self._link.ask(ms.LeaveNotes, list(notes), self._which(lease.conversation_id))

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
        data = ev.records(events)
        encoded = [
            ev.encode(event) if type(event) is ev.Damaged else one
            for event, one in zip(events, data, strict=True)
        ]
        kept = [(blob.seq, blob.data) for blob in blobs]
        return self._link.ask(
            ms.Append, encoded, summary, list(taken), kept, list(settled), reserved, type=bool
        )

    def read(
        self, conversation_id: str, after_seq: int = 0, limit: int | None = None
    ) -> list[AnyEvent]:
        """See `Store.read`."""
        found = self._link.ask(
            ms.Read, after_seq, limit, self._which(conversation_id), type=list[bytes]
        )
        return [ev.decode(data) for data in found]

    def tail(self, conversation_id: str) -> list[AnyEvent]:
        """See `Store.tail`."""
        return [
            ev.decode(data)
            for data in self._link.ask(ms.Tail, self._which(conversation_id), type=list[bytes])
        ]

    def bound(self, lease: Lease, budget: Budget | None) -> None:
        """See `Store.bound`."""
        self._link.ask(ms.SetBudget, budget, self._which(lease.conversation_id))

    def reserve(self, lease: Lease, wanted: Reservation) -> Shortage | None:
        """See `Store.reserve`."""
        return self._link.ask(
            ms.Reserve, wanted, self._which(lease.conversation_id), type=Shortage | None
        )

    def settle(self, settled: Sequence[Settlement]) -> None:
        """See `Store.settle`."""
        self._link.ask(ms.SettleReservations, list(settled))

    def follow(
        self, conversation_id: str, after_seq: int = 0, timeout: float | None = None
    ) -> Iterator[AnyEvent]:
        """Raise `StoreError`: a conversation is followed on the server."""
        raise StoreError("A worker's store cannot be followed. Use the server's feed.")

    def blob(self, id: str) -> bytes:
        """See `Store.blob`."""
        return self._link.ask(ms.GetBlob, id, type=bytes)

    def post(self, conversation_id: str, command: Command, key: str | None = None) -> bool:
        """See `Store.post`."""
        return self._link.ask(
            ms.Post, cmd.encode(command), key, self._which(conversation_id), type=bool
        )

    def commands(self, lease: Lease) -> list[Posted]:
        """See `Store.commands`."""
        found = self._link.ask(
            ms.ReadCommands, self._which(lease.conversation_id), type=list[tuple[int, str, bytes]]
        )
        return [
            Posted(number, key, command)
            for number, key, data in found
            if (command := cmd.posted(data)) is not None
        ]

    def fork(self, conversation_id: str, summary: Summary, events: Sequence[AnyEvent] = ()) -> None:
        """Raise `StoreError`: the server makes forks."""
        raise StoreError("A worker cannot fork its conversation; only the server can.")

    def list(
        self,
        ids: Sequence[str] | None = None,
        *,
        status: str | None = None,
        waiting: bool = False,
        spawned_by: str | None = None,
    ) -> list[Summary]:
        """See `Store.list`, for the conversations that this worker may see."""
        found: list[Summary] = []
        if spawned_by is not None:
            found = self._link.ask(
                ms.ListSummaries, self._which(spawned_by), True, type=list[Summary]
            )
        else:
            for id in dict.fromkeys([self._id] if ids is None else ids):
                found += self._link.ask(ms.ListSummaries, self._which(id), type=list[Summary])
        return (
            [
                one
                for one in found
                if (ids is None or one.id in ids) and status in (None, one.status)
            ]
            if not waiting
            else []
        )

    def delete(self, conversation_id: str) -> None:
        """Raise `StoreError`: the server removes conversations."""
        raise StoreError("A worker cannot remove conversations; only the server can.")

    def close(self) -> None:
        """Do nothing: the store belongs to the server."""
