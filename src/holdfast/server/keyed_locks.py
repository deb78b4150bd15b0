"""Locks by key, each of which exists while a thread uses it."""

from __future__ import annotations

import threading
from collections.abc import Generator, Hashable
from contextlib import contextmanager

from holdfast.server.named_leases import NamedLeases


class _KeyedLock:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0


class KeyedLocks:
    """Any number of locks, each with a key such as a conversation's id. Thread-safe.

    With `leases` they exclude the threads of other servers too. `name` names these locks there.
    """

    def __init__(self, name: str = "", leases: NamedLeases | None = None) -> None:
        self._name = name
        self._leases = leases
        self._lock = threading.Lock()
        self._locks: dict[Hashable, _KeyedLock] = {}

    @contextmanager
    def hold(self, key: Hashable, wait: bool = True) -> Generator[bool]:
        """Hold the key's lock within the block. Yields False if another thread holds it and `wait`
        is False."""
        with self._lock:
            entry = self._locks.setdefault(key, _KeyedLock())
            entry.users += 1
        entered = False
        try:
            entered = entry.lock.acquire(blocking=wait)
            if entered and self._leases is not None:
                with self._leases.hold(f"{self._name} {key}", wait) as is_held:
                    yield is_held
            else:
                yield entered
        finally:
            if entered:
                entry.lock.release()
            with self._lock:
                entry.users -= 1
                if not entry.users:
                    del self._locks[key]
