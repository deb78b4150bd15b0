"""`FleetBackend`: the engine that tells workers which conversations have work.

A backend is only a hint, a bell that may ring twice, late or never. The guarantees rest on the
store's lease, epoch and inbox, and each worker looks into the store by itself (`Store.unattended`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from holdfast.fleet.database import FleetDatabase

DEFAULT_QUEUE = "default"


class Placement(NamedTuple):
    """The place of a conversation in the fleet.

    `queue` names the workers that may drive it. Tenants of a queue share its workers evenly.
    Among a tenant's conversations, a higher `priority` goes first.
    """

    tenant: str = ""
    priority: int = 0
    queue: str = DEFAULT_QUEUE


Place = Callable[[str], Placement]


def place_by_id(conversation_id: str) -> Placement:
    """Return the default placement: the tenant is the part of the id before its last slash."""
    return Placement(conversation_id.rpartition("/")[0])


class Wake(NamedTuple):
    """A wake that a worker has claimed. `token` identifies the claim for its backend; a worker
    that takes a conversation without a claim makes one with the token 0."""

    conversation: str
    tenant: str = ""
    token: int = 0


class Room(NamedTuple):
    """The room of a worker: `free` is the number of conversations that it takes now, `full` are the
    tenants with enough of them."""

    free: int
    full: frozenset[str] = frozenset()


class Handler(Protocol):
    """The worker, from its backend's point of view. Both methods return at once."""

    def room(self) -> Room:
        """Return the room for further conversations."""
        ...

    def take(self, wake: Wake) -> None:
        """Drive a conversation, also if it is driven here already. `Serving.finish` follows."""
        ...


class Serving(Protocol):
    """The service of one worker by a backend, from `FleetBackend.serve` to `close`."""

    def ring(self) -> None:
        """Look for wakes now. Does not block."""
        ...

    def finish(self, wake: Wake, again_after: float | None = None) -> None:
        """Give a claim back: the conversation is at rest, or must be woken again after that many
        seconds. Does not block."""
        ...

    def restore(self, wakes: Sequence[Wake], lost_workers: Sequence[str]) -> set[str]:
        """Ring again for unattended conversations of the store whose ring was lost or claimed by
        one of the `lost_workers`.

        Returns the conversations that are certain to be claimed. The worker takes the others
        without a claim.
        """
        ...

    def stop(self) -> None:
        """Stop claiming. Idempotent."""
        ...

    def close(self, timeout: float) -> None:
        """Write the claims that were given back and end, within about `timeout` seconds."""
        ...


class QueueStats(NamedTuple):
    """The state of a queue: waiting wakes, claimed ones, wakes set for later, and the age in
    seconds of the oldest wake that waits."""

    waiting: int
    claimed: int
    later: int
    oldest_seconds: float


class FleetBackend(Protocol):
    """The interface of a backend. Thread-safe."""

    @property
    def database(self) -> FleetDatabase:
        """The database of the fleet's own tables, in which `Registry` keeps its records."""
        ...

    def wake(
        self,
        conversation: str,
        tenant: str = "",
        priority: int = 0,
        transaction: object = None,
        *,
        queue: str = DEFAULT_QUEUE,
    ) -> None:
        """Ring for a conversation that has work.

        Args:
            conversation: The id. Unclaimed wakes of one conversation are one wake.
            tenant: Tenants share a queue's workers evenly.
            priority: Higher goes first among a tenant's conversations.
            transaction: The store's cursor that wrote the work: the wake is part of its
                transaction. None: a transaction of the backend's own.
            queue: The workers that may drive it.
        """
        ...

    def wake_all(self, conversations: Sequence[tuple[str, Placement]], transaction: object) -> None:
        """Do `wake` for many conversations, each in its place."""
        for conversation, (tenant, priority, queue) in conversations:
            self.wake(conversation, tenant, priority, transaction, queue=queue)

    def wake_at(
        self,
        conversation: str,
        seconds: float,
        tenant: str = "",
        priority: int = 0,
        *,
        queue: str = DEFAULT_QUEUE,
    ) -> None:
        """Ring after that many seconds, by the database's clock, unless it rings before."""
        ...

    def cancel(self, conversation: str) -> None:
        """Drop the unclaimed wakes of a conversation."""
        ...

    def serve(self, handler: Handler, worker: str, queue: str, tenant_limit: int | None) -> Serving:
        """Begin to hand wakes to a worker.

        Args:
            handler: The worker.
            worker: Its token.
            queue: The queue that it serves.
            tenant_limit: The largest number of one tenant's conversations that all workers of the
                queue drive at once; None sets no limit.
        """
        ...

    def stats(self, queue: str | None = None) -> QueueStats:
        """Return the state of a queue, or of all queues together."""
        ...

    def close(self) -> None:
        """Release connections. Idempotent."""
        ...


class Bell:
    """The `WorkBell` of a store: passes its wakes on to a backend, each in its place."""

    def __init__(self, backend: FleetBackend, place: Place = place_by_id) -> None:
        self._backend = backend
        self._place = place

    def wake(self, conversation_id: str, transaction: object) -> None:
        """Wake the conversation. See `WorkBell.wake`."""
        tenant, priority, queue = self._place(conversation_id)
        self._backend.wake(conversation_id, tenant, priority, transaction, queue=queue)

    def wake_all(self, conversation_ids: Sequence[str], transaction: object) -> None:
        """Wake many conversations. See `WorkBell.wake_all`."""
        placed = [(id, self._place(id)) for id in sorted(conversation_ids)]  # avoids deadlocks
        self._backend.wake_all(placed, transaction)
