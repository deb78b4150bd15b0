"""The server's side of a worker's store: it has the lease, does what the worker asks for its own conversation, and ends what it leaves."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from holdfast import commands as cmd
from holdfast import events as ev
from holdfast.errors import Fenced, StoreError
from holdfast.server.workers import messages as ms
from holdfast.store import Blob, Lease, Store

_log = logging.getLogger("holdfast")


class Desk:
    """The conversation `id` of `store`, for one worker. `notify` is the store's word that something came, and must not block; `moved` is told
    when the journal has grown by more than beginnings of calls. `do` is the listening thread's."""

    def __init__(self, store: Store, id: str, notify: Callable[[], None], moved: Callable[[], None]) -> None:
        self.id = id
        self.status = ""
        self._store = store
        self._notify = notify
        self._moved = moved
        self._lease: Lease | None = None
        self._marks: set[str] = set()

    def do(self, request: ms.StoreRequest) -> Any:
        """What the store says to a request. Raises what the store raises."""
        store, id = self._store, self.id
        match request:
            case ms.Append():
                return self._append(request)
            case ms.Read(_, after, limit):
                return [ev.encode(event) for event in store.read(id, after, limit)]
            case ms.Tail():
                return [ev.encode(event) for event in store.tail(id)]
            case ms.GetBlob(_, name):
                return store.blob(name)
            case ms.Inbox():
                return [(one.number, one.key, cmd.encode(one.command)) for one in store.commands(self._held())]
            case ms.Post(_, command, key):
                return store.post(id, cmd.decode(command), key)
            case ms.Leave(_, notes):
                self._marks.update(notes)
                store.note(self._held(), notes)
            case ms.Acquire():
                if self._lease is None:
                    self._lease = store.acquire(id, self._notify)
                return self._lease.epoch, self._lease.left
            case ms.Renew():
                store.renew(self._held())
            case ms.Release():
                self.release()
            case ms.Listed():
                return store.list([id])
        return None

    def _held(self) -> Lease:
        if self._lease is None:
            raise Fenced(f"The worker of conversation {self.id!r} has no lease.")
        return self._lease

    def _append(self, request: ms.Append) -> None:
        if request.summary.id != self.id:
            raise StoreError(f"The worker of conversation {self.id!r} writes to no other one.")
        events = [ev.decode(data) for data in request.events]
        blobs = [Blob(seq, data) for seq, data in request.blobs]
        self._store.append(self._held(), events, request.summary, taken=request.taken, blobs=blobs)
        if events:
            self.status = request.summary.status
            if any(not isinstance(event, ev.ToolCallStarted) for event in events):
                self._moved()

    def release(self) -> None:
        """Give the lease back, if it is held."""
        lease, self._lease = self._lease, None
        if lease is not None:
            self._store.release(lease)

    def end(self) -> None:
        """The worker is dead: end what its calls have started and left, then give the lease back. In this order, or the next one would begin
        the same beside it."""
        if self._marks:
            from holdfast.runtime import processes

            if not processes.end_owned(self._marks, ours=True):
                _log.error("conversation %s: processes that a dead worker left could not be ended", self.id)
        with suppress(StoreError):
            self.release()
