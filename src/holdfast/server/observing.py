"""What an observer is told of conversations that are open in workers: their events, as the server
appends them. What is open here tells it itself."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.conversation.observer import Observed, Observer

if TYPE_CHECKING:
    from holdfast.events import AnyEvent
    from holdfast.store import Store

_MOST = 10_000  # conversations of which it is remembered that nobody observes them


class Elsewhere:
    """The watches of conversations in other processes. Thread-safe."""

    def __init__(self, observers: Sequence[Observer], store: Store) -> None:
        self._observers = observers
        self._store = store
        self._lock = threading.Lock()
        self._open: dict[str, Observed] = {}
        self._roots: dict[
            str, str
        ] = {}  # of those that calls spawned: the conversation whose worker they are in
        self._strange: set[str] = set()

    def open(self, id: str) -> None:
        """A worker has it."""
        observed = Observed.of(self._observers, id, None, elsewhere=True)
        with self._lock:
            self._strange.discard(id)
            if observed is not None:
                self._open[id] = observed

    def appended(self, id: str, events: Sequence[AnyEvent]) -> None:
        """These are in the store now."""
        observed = self._open.get(id) or self._child(id)
        if observed is not None:
            observed.add(events)
            observed.tell()

    def _child(self, id: str) -> Observed | None:
        if id in self._strange:
            return None
        found = self._store.list([id])
        above = self._open.get(found[0].spawner) if found and found[0].spawned_by else None
        observed = (
            None
            if above is None
            else above.spawned(id, None, found[0].spawned_by.rpartition(":")[2])
        )
        with self._lock:
            if observed is None:
                if len(self._strange) > _MOST:
                    self._strange.clear()
                self._strange.add(id)
            else:
                self._open[id] = observed
                self._roots[id] = self._roots.get(found[0].spawner, found[0].spawner)
        return observed

    def close(self, id: str) -> None:
        """It is closed, or its worker is dead; and with it what its calls spawned."""
        with self._lock:
            gone = [child for child, root in self._roots.items() if root == id]
            found = [self._open.pop(one, None) for one in (*gone, id)]
            for child in gone:
                del self._roots[child]
        for observed in found:
            if observed is not None:
                observed.close()
