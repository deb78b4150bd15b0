"""Notifies observers about conversations that are open in worker processes, from the events that
the server appends. Conversations open in this process notify their observers themselves."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from holdfast.conversation.observer import Observed, Observer
from holdfast.object_struct import ObjectStruct

if TYPE_CHECKING:
    from holdfast.events import AnyEvent
    from holdfast.store import Store

_MAX_UNOBSERVED = 10_000  # ids remembered as unobserved


class WorkerObservations(ObjectStruct):
    """The observations of conversations in other processes. Thread-safe."""

    _observers: Sequence[Observer]
    _store: Store
    _lock: threading.Lock = msgspec.field(default_factory=threading.Lock)
    _open: dict[str, Observed] = {}
    # The conversation in whose worker a spawned conversation is, by the spawned one's id.
    _roots: dict[str, str] = {}
    _unobserved: set[str] = set()

    def open(self, id: str) -> None:
        """Begin to observe a conversation that a worker has opened."""
        observed = Observed.of(self._observers, id, None, elsewhere=True)
        with self._lock:
            self._unobserved.discard(id)
            if observed is not None:
                self._open[id] = observed

    def appended(self, id: str, events: Sequence[AnyEvent]) -> None:
        observed = self._open.get(id) or self._child(id)
        if observed is not None:
            observed.add(events)
            observed.tell()

    def _child(self, id: str) -> Observed | None:
        if id in self._unobserved:
            return None
        rows = self._store.list([id])
        above = self._open.get(rows[0].spawner) if rows and rows[0].spawned_by else None
        observed = (
            None
            if above is None
            else above.spawned(id, None, rows[0].spawned_by.rpartition(":")[2])
        )
        with self._lock:
            if observed is None:
                if len(self._unobserved) > _MAX_UNOBSERVED:
                    self._unobserved.clear()
                self._unobserved.add(id)
            else:
                self._open[id] = observed
                self._roots[id] = self._roots.get(rows[0].spawner, rows[0].spawner)
        return observed

    def close(self, id: str) -> None:
        """End the observation of a conversation that was closed or whose worker died, and of its
        spawned descendants."""
        with self._lock:
            children = [child for child, root in self._roots.items() if root == id]
            observations = [self._open.pop(one, None) for one in (*children, id)]
            for child in children:
                del self._roots[child]
        for observed in observations:
            if observed is not None:
                observed.close()
