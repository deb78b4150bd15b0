"""The server's side of a worker's store. It holds the leases, executes the worker's requests for
its own conversations, and ends the processes that a dead worker leaves."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from holdfast import commands as cmd
from holdfast import events as ev
from holdfast.errors import ConfigurationError, ConversationNotFound, Fenced, StoreError
from holdfast.server.workers import messages as ms
from holdfast.store import Blob, Lease, Settlement, Store

_log = logging.getLogger("holdfast")


class WorkerStoreProxy:
    """The access of one worker to the conversation `id` of `store` and to the conversations that
    its calls spawn.

    The store calls `notify` on new commands; it must not block. `moved` is called when the
    journal has grown by more than starts of calls. `do` belongs to the listening thread.
    """

    def __init__(
        self, store: Store, id: str, notify: Callable[[], None], moved: Callable[[], None]
    ) -> None:
        self.id = id
        self.status = ""
        self._store = store
        self._notify = notify
        self._moved = moved
        self._leases: dict[str, Lease] = {}
        self._family = {id}
        self._marks: set[str] = set()

    def do(self, request: ms.StoreRequest) -> Any:
        """Execute a request and return the store's result. Raises the store's errors."""
        store = self._store
        match request:
            case ms.Append():
                return self._append(request)
            case ms.Read(_, after, limit, id):
                return [ev.encode(event) for event in store.read(self._ours(id), after, limit)]
            case ms.Tail(_, id):
                return [ev.encode(event) for event in store.tail(self._ours(id))]
            case ms.GetBlob(_, name):
                return store.blob(name)
            case ms.ReadCommands(_, id):
                waiting = store.commands(self._held(id))
                return [
                    (
                        one.number,
                        one.key,
                        b"" if isinstance(one.command, cmd.Unreadable) else cmd.encode(one.command),
                    )
                    for one in waiting
                ]
            case ms.Post(_, command, key, id):
                return store.post(self._ours(id), cmd.decode(command), key)
            case ms.LeaveNotes(_, notes, id):
                self._marks.update(notes)
                store.note(self._held(id), notes)
            case ms.Acquire(_, id):
                id = self._ours(id)
                if id not in self._leases:
                    self._leases[id] = store.acquire(id, self._notify)
                return self._leases[id]
            case ms.Renew(_, id):
                store.renew(self._held(id))
            case ms.Release(_, id):
                self.release(id)
            case ms.ListSummaries(_, id, children):
                id = self._ours(id)
                return store.list(spawned_by=id) if children else store.list([id])
            case ms.SetBudget(_, budget, id):
                lease = self._held(id)
                store.bound(
                    lease,
                    (
                        None
                        if budget is None
                        else msgspec.structs.replace(budget, root=lease.conversation_id)
                    ),
                )
            case ms.Reserve(_, wanted, id):
                lease = self._held(id)
                self._check_spending([wanted.key], wanted.roots)
                return store.reserve(lease, wanted)
            case ms.SettleReservations(_, settled):
                self._check_settled(settled)
                store.settle(settled)
        return None

    def _ours(self, id: str) -> str:
        """Return the full id for an id from the worker; "" stands for the worker's own
        conversation. Raises `ConversationNotFound` for a conversation that is no descendant of
        it."""
        id = id or self.id
        if id not in self._family:
            there = self._store.list([id])
            spawner = (
                there[0].spawner
                if there
                else next((known for known in self._family if id.startswith(f"{known}.")), "")
            )
            if not spawner or self._ours(spawner) not in self._family:
                raise ConversationNotFound(f"No conversation {id!r} in the store of this worker.")
            if (
                not there
                and (recorded := getattr(self._store, "recorded", None)) is not None
                and recorded(id)
            ):
                raise ConfigurationError(
                    f"Conversation {id!r} already exists and was not spawned by a call."
                )
            self._family.add(id)
        return id

    def _held(self, id: str) -> Lease:
        lease = self._leases.get(id or self.id)
        if lease is None:
            raise Fenced(
                f"The worker of conversation {self.id!r} holds no lease of {id or self.id!r}."
            )
        return lease

    def _append(self, request: ms.Append) -> bool:
        id, events = request.summary.id, [ev.decode(data) for data in request.events]
        if id not in self._leases or (
            id != self.id and request.summary.spawner not in self._family
        ):
            raise StoreError(
                f"The worker of conversation {self.id!r} may not write to other conversations."
            )
        self._check_settled(request.settled)
        blobs = [Blob(seq, data) for seq, data in request.blobs]
        more: dict[str, Any] = {"settled": request.settled} if request.settled else {}
        if (wanted := request.reserved) is not None:
            self._check_spending([wanted.key], wanted.roots)
            more["reserved"] = wanted
        held = self._store.append(
            self._held(id), events, request.summary, taken=request.taken, blobs=blobs, **more
        )
        if events and id == self.id:
            self.status = request.summary.status
            if any(not isinstance(event, ev.ToolCallStarted) for event in events):
                self._moved()
        return held

    def _check_settled(self, settled: Sequence[Settlement]) -> None:
        self._check_spending(
            [one.key for one in settled if one.key], [root for one in settled for root in one.roots]
        )

    def _check_spending(self, keys: Sequence[str], roots: Sequence[str]) -> None:
        """Raise `StoreError` for reservations or budgets of other conversations."""
        ours = self._family.union(
            *([budget.root for budget in lease.budgets] for lease in self._leases.values())
        )
        if not ours.issuperset(roots) or not all(
            key.rpartition("#")[0] in self._family for key in keys
        ):
            raise StoreError(
                f"The worker of conversation {self.id!r} may not use another conversation's budget."
            )

    def release(self, id: str = "") -> None:
        """Release a lease if it is held."""
        lease = self._leases.pop(id or self.id, None)
        if lease is not None:
            self._store.release(lease)

    def end(self) -> None:
        """End the processes that a dead worker's calls have started, then release the leases. In
        this order, because otherwise the next worker could start the same processes beside them."""
        if self._marks:
            from holdfast.runtime import processes

            if not processes.end_owned(self._marks, ours=True):
                _log.error(
                    "conversation %s: processes that a dead worker left could not be ended", self.id
                )
        for id in list(self._leases):
            with suppress(StoreError):
                self.release(id)
