"""`PipeStore`: the store of a worker, which forwards requests for the worker's conversation and its
descendants to the server's store (`store_proxy.WorkerStoreProxy`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from holdfast import commands as cmd
from holdfast import events as ev
from holdfast import store
from holdfast.error_forms import ErrorForm
from holdfast.errors import StoreError
from holdfast.events import AnyEvent
from holdfast.server.workers.channel import WorkerChannel


def _refuse_with(message: str) -> Any:
    """Return a method that raises `StoreError`."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise StoreError(message)

    return refuse


class PipeStore(store.Store):
    """A `Store` for the conversation `id` and its descendants. The server holds the leases and
    releases them if this process ends. Methods that are for the server alone raise `StoreError`."""

    def __init__(self, channel: WorkerChannel, id: str) -> None:
        self._call = channel.call
        self._id = id
        self._notifies: dict[str, Callable[[], None]] = {}

    def notify(self) -> None:
        """Notify all lease holders of new commands."""
        for notify in list(self._notifies.values()):
            notify()

    def _which(self, id: str) -> str:
        """Return the id as the server expects it: "" for the worker's own conversation."""
        return "" if id == self._id else id

    def acquire(
        self, conversation_id: str, notify: Callable[[], None] | None = None
    ) -> store.Lease:
        if notify is not None:
            self._notifies[conversation_id] = notify
        try:
            return self._call("acquire", self._which(conversation_id), type=store.Lease)
        except BaseException:
            self._notifies.pop(conversation_id, None)
            raise

    def renew(self, lease: store.Lease) -> None:
        self._call("renew", self._which(lease.conversation_id))

    def confirm(self, lease: store.Lease) -> None:
        """See `Store.confirm`. The lease is the server's, so the server is asked."""
        self._call("confirm", self._which(lease.conversation_id))

    def release(self, lease: store.Lease) -> None:
        self._notifies.pop(lease.conversation_id, None)
        self._call("release", self._which(lease.conversation_id))

    def note(self, lease: store.Lease, notes: Sequence[str]) -> None:
        self._call("note", self._which(lease.conversation_id), list(notes))

    def append(self, lease: store.Lease, batch: store.Batch) -> bool:
        encoded = [
            ev.encode(event) if type(event) is ev.DamagedEvent else data
            for event, data in zip(batch.events, ev.records(batch.events), strict=True)
        ]
        rest = batch.done_commands, batch.blobs, batch.settlements, batch.reservation
        last = dict(batch.refusals), list(batch.timers)
        return self._call("append", encoded, batch.summary, *rest, *last, type=bool)

    def read(
        self, conversation_id: str, after_seq: int = 0, limit: int | None = None
    ) -> list[AnyEvent]:
        id = self._which(conversation_id)
        records = self._call("read", id, after_seq, limit, type=list[bytes])
        return [ev.decode(data) for data in records]

    def tail(self, conversation_id: str) -> list[AnyEvent]:
        records = self._call("tail", self._which(conversation_id), type=list[bytes])
        return [ev.decode(data) for data in records]

    def bound(self, lease: store.Lease, budget: store.Budget | None) -> None:
        self._call("bound", self._which(lease.conversation_id), budget)

    def reserve(self, lease: store.Lease, reservation: store.Reservation) -> store.Shortage | None:
        id = self._which(lease.conversation_id)
        return self._call("reserve", id, reservation, type=store.Shortage | None)

    def settle(self, settled: Sequence[store.Settlement]) -> None:
        self._call("settle", list(settled))

    def blob(self, id: str) -> bytes:
        return self._call("blob", id, type=bytes)

    def post(self, conversation_id: str, command: cmd.Command, key: str | None = None) -> bool:
        return self._call("post", self._which(conversation_id), cmd.encode(command), key, type=bool)

    def refusal(self, conversation_id: str, key: str) -> ErrorForm | None:
        return self._call("refusal", self._which(conversation_id), key, type=ErrorForm | None)

    def undone(self, conversation_id: str, key: str) -> bool:
        return self._call("undone", self._which(conversation_id), key, type=bool)

    def commands(self, lease: store.Lease) -> list[store.Posted]:
        id = self._which(lease.conversation_id)
        rows = self._call("commands", id, type=list[tuple[int, str, bytes]])
        return [
            store.Posted(number, key, command)
            for number, key, data in rows
            if (command := cmd.posted(data)) is not None
        ]

    def list(
        self,
        ids: Sequence[str] | None = None,
        *,
        status: str | None = None,
        waiting: bool = False,
        spawned_by: str | None = None,
        forked_from: Sequence[str] | None = None,
        tags: Sequence[str] = (),
    ) -> list[store.Summary]:
        """Return the summaries of the conversations that this worker may see."""
        summaries: list[store.Summary] = []
        if waiting:
            return summaries
        if spawned_by is not None:
            summaries = self._call("list", self._which(spawned_by), True, type=list[store.Summary])
        else:
            for id in dict.fromkeys([self._id] if ids is None else ids):
                summaries += self._call("list", self._which(id), False, type=list[store.Summary])
        return [
            one
            for one in summaries
            if (ids is None or one.id in ids)
            and status in (None, one.status)
            and (forked_from is None or (one.parent and one.parent in forked_from))
            and {*tags} <= {*one.tags}
        ]

    def close(self) -> None:
        """Do nothing: the store belongs to the server."""

    due = next_due = _refuse_with("A worker does not see the timers of its server's store.")
    ring = _refuse_with("A worker cannot ring timers; only the server can.")
    follow = _refuse_with("A worker's store cannot be followed. Use the server's feed.")
    unattended = _refuse_with("A worker does not look for conversations; only the server does.")
    fork = _refuse_with("A worker cannot fork its conversation; only the server can.")
    delete = _refuse_with("A worker cannot remove conversations; only the server can.")
