"""Requests to drive a conversation that have not taken effect yet, as while it is being opened."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

from holdfast.tools.context import Cancellation


class PendingStarts:
    """The pending requests to drive conversations, by store id. A request to close a conversation
    withdraws those that came before it. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: dict[str, list[Cancellation]] = {}

    @contextmanager
    def pending(self, id: str) -> Generator[Cancellation]:
        """Yield the flag of a new request, which is pending within the block."""
        withdrawn = Cancellation()
        with self._lock:
            self._pending.setdefault(id, []).append(withdrawn)
        try:
            yield withdrawn
        finally:
            with self._lock:
                self._pending[id].remove(withdrawn)
                if not self._pending[id]:
                    del self._pending[id]

    def withdraw(self, id: str) -> None:
        """Withdraw the conversation's pending requests."""
        with self._lock:
            for flag in self._pending.get(id, ()):
                flag.cancel()
