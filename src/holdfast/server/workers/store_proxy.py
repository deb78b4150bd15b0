"""The server's side of a worker's store: the leases, the worker's requests for its own
conversations, and the end of a dead worker's processes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from holdfast import commands as cmd
from holdfast import events as ev
from holdfast import store
from holdfast.error_forms import ErrorForm
from holdfast.errors import Conflict, ConversationNotFound, Fenced, StoreError
from holdfast.runtime import processes
from holdfast.server.workers.channel import callable_methods

if TYPE_CHECKING:
    from holdfast.server.notifying_store import NotifyingStore

_log = logging.getLogger("holdfast")


class WorkerStoreProxy:
    """The access of one worker to the conversation `id` of `store` and to the conversations that
    its calls spawn. The worker calls the methods of `METHODS`, which are those of `Store` with
    events and commands as JSON. An empty id means the worker's own conversation.

    The store calls `notify` on new commands; it must not block. `moved` is called when the
    journal has grown by more than starts of calls.
    """

    def __init__(
        self, store: NotifyingStore, id: str, notify: Callable[[], None], moved: Callable[[], None]
    ) -> None:
        self.id = id
        self.status = ""
        self._store = store
        self._notify = notify
        self._moved = moved
        self._leases: dict[str, store.Lease] = {}
        self._family = {id}
        self._marks: set[str] = set()

    def append(
        self,
        events: list[bytes],
        summary: store.Summary,
        done_commands: list[int],
        blobs: list[store.Blob],
        settlements: list[store.Settlement],
        reservation: store.Reservation | None,
        refusals: dict[int, ErrorForm],
        timers: list[store.TimerRow],
    ) -> bool:
        id, decoded = summary.id, [ev.decode(data) for data in events]
        if id not in self._leases or (id != self.id and summary.spawner not in self._family):
            raise StoreError(
                f"The worker of conversation {self.id!r} may not write to other conversations."
            )
        self._check_settled(settlements)
        if reservation is not None:
            self._check_spending([reservation.key], reservation.roots)
        rest = done_commands, blobs, settlements, reservation, refusals, timers
        batch = store.Batch(decoded, summary, *rest)
        is_held = self._store.append(self._lease_of(id), batch)
        if decoded and id == self.id:
            self.status = summary.status
            if any(not isinstance(event, ev.ToolCallStarted) for event in decoded):
                self._moved()
        return is_held

    def read(self, id: str, after: int, limit: int | None) -> list[bytes]:
        return [ev.encode(event) for event in self._store.read(self._ours(id), after, limit)]

    def tail(self, id: str) -> list[bytes]:
        return [ev.encode(event) for event in self._store.tail(self._ours(id))]

    def blob(self, name: str) -> bytes:
        return self._store.blob(name)

    def commands(self, id: str) -> list[tuple[int, str, bytes]]:
        rows: list[tuple[int, str, bytes]] = []
        for one in self._store.commands(self._lease_of(id)):
            command = one.command
            data = b"" if isinstance(command, cmd.UnreadableCommand) else cmd.encode(command)
            rows.append((one.number, one.key, data))
        return rows

    def post(self, id: str, command: bytes, key: str | None) -> bool:
        return self._store.post(self._ours(id), cmd.decode(command), key)

    def refusal(self, id: str, key: str) -> ErrorForm | None:
        return self._store.refusal(self._ours(id), key)

    def undone(self, id: str, key: str) -> bool:
        return self._store.undone(self._ours(id), key)

    def note(self, id: str, notes: list[str]) -> None:
        self._marks.update(notes)
        self._store.note(self._lease_of(id), notes)

    def acquire(self, id: str) -> store.Lease:
        id = self._ours(id)
        if id not in self._leases:
            self._leases[id] = self._store.acquire(id, self._notify)
        return self._leases[id]

    def renew(self, id: str) -> None:
        self._store.renew(self._lease_of(id))

    def confirm(self, id: str) -> None:
        self._store.confirm(self._lease_of(id))

    def release(self, id: str) -> None:
        if (lease := self._leases.pop(id or self.id, None)) is not None:
            self._store.release(lease)

    def list(self, id: str, spawned: bool) -> list[store.Summary]:
        id = self._ours(id)
        return self._store.list(spawned_by=id) if spawned else self._store.list([id])

    def bound(self, id: str, budget: store.Budget | None) -> None:
        lease = self._lease_of(id)
        if budget is not None:
            budget = msgspec.structs.replace(budget, root=lease.conversation_id)
        self._store.bound(lease, budget)

    def reserve(self, id: str, reservation: store.Reservation) -> store.Shortage | None:
        lease = self._lease_of(id)
        self._check_spending([reservation.key], reservation.roots)
        return self._store.reserve(lease, reservation)

    def settle(self, settled: Sequence[store.Settlement]) -> None:
        self._check_settled(settled)
        self._store.settle(settled)

    # --- checks ---

    def _ours(self, id: str) -> str:
        """Return the full id for an id from the worker. Raises `ConversationNotFound` for a
        conversation that is no descendant of the worker's own."""
        id = id or self.id
        if id not in self._family:
            there = self._store.list([id])
            if there:
                spawner = there[0].spawner
            else:
                spawner = next((one for one in self._family if id.startswith(f"{one}.")), "")
            if not spawner or self._ours(spawner) not in self._family:
                raise ConversationNotFound(f"No conversation {id!r} in the store of this worker.")
            if not there and self._store.recorded(id):
                raise Conflict(f"Conversation {id!r} already exists and was not spawned by a call.")
            self._family.add(id)
        return id

    def _lease_of(self, id: str) -> store.Lease:
        lease = self._leases.get(id or self.id)
        if lease is None:
            raise Fenced(
                f"The worker of conversation {self.id!r} holds no lease of {id or self.id!r}."
            )
        return lease

    def _check_settled(self, settled: Sequence[store.Settlement]) -> None:
        keys = [one.key for one in settled if one.key]
        self._check_spending(keys, [root for one in settled for root in one.roots])

    def _check_spending(self, keys: Sequence[str], roots: Sequence[str]) -> None:
        """Raise `StoreError` for reservations or budgets of other conversations."""
        ours = self._family.union(
            *([budget.root for budget in lease.budgets] for lease in self._leases.values())
        )
        own_keys = all(key.rpartition("#")[0] in self._family for key in keys)
        if not own_keys or not ours.issuperset(roots):
            raise StoreError(
                f"The worker of conversation {self.id!r} may not use another conversation's budget."
            )

    def end(self) -> None:
        """End the processes that a dead worker's calls have started, then release the leases. In
        this order, because otherwise the next worker could start the same processes beside them."""
        if self._marks and not processes.end_owned(self._marks, ours=True):
            _log.error(
                "conversation %s: processes that a dead worker left could not be ended", self.id
            )
        for id in [*self._leases]:
            with suppress(StoreError):
                self.release(id)


METHODS = callable_methods(
    WorkerStoreProxy,
    "append read tail blob commands post refusal undone note acquire renew confirm release list"
    " bound reserve settle",
)
"""The methods that a worker may call."""
