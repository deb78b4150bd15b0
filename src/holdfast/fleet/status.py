"""The state of a fleet, for operators: its workers, its queue, its rates."""

from __future__ import annotations

from holdfast.content import Data
from holdfast.fleet.backend import FleetBackend, QueueStats
from holdfast.fleet.registry import Registry, WorkerEntry


class FleetStatus(Data, frozen=True):
    """The workers and the queue of a fleet at one time."""

    workers: tuple[WorkerEntry, ...]
    queue: QueueStats

    @property
    def serving(self) -> int:
        """The number of workers that are neither lost nor draining."""
        return sum(one.state == "serving" for one in self.workers)

    @property
    def running(self) -> int:
        """The number of conversations that are driven."""
        return sum(one.counts.running for one in self.workers if one.state != "lost")

    @property
    def leases(self) -> int:
        """The number of conversations that workers hold open."""
        return sum(one.counts.held for one in self.workers if one.state != "lost")

    @property
    def rate(self) -> float:
        """Conversations that came to rest, per second over the last ten seconds."""
        return sum(one.counts.rate for one in self.workers if one.state != "lost")


def fleet_status(backend: FleetBackend, queue: str | None = None) -> FleetStatus:
    """Return the state of the fleet on a backend, or of one queue. Raises `StoreError`."""
    workers = Registry(backend.database).workers()
    chosen = tuple(one for one in workers if queue in (None, one.queue))
    return FleetStatus(chosen, backend.stats(queue))
