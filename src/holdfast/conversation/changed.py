"""`Changed`: the lock of a journal, and how one waits for it to grow."""

from __future__ import annotations

import threading


class Changed:
    """`threading.Condition` over an `RLock`, with `wait` and `notify_all` alone: 0.2 KB in place of 1.4 in every open conversation."""

    __slots__ = ("_lock", "_waiting")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._waiting: list[threading.Lock] | None = None

    def acquire(self) -> None:
        """Take the lock; as often as one likes on one thread."""
        self._lock.acquire()

    def release(self) -> None:
        """Undo one `acquire`."""
        self._lock.release()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> None:
        """Let go of the lock, which must be held once, until `notify_all` or `timeout` seconds later; then take it again."""
        mine = threading.Lock()
        mine.acquire()
        if self._waiting is None:
            self._waiting = []
        self._waiting.append(mine)
        self._lock.release()
        try:
            mine.acquire(timeout=-1 if timeout is None else max(0.0, timeout))
        finally:
            self._lock.acquire()
            self._forget(mine)

    def _forget(self, waiter: threading.Lock) -> None:
        if self._waiting is not None and waiter in self._waiting:  # nobody notified it: the time was up, or Ctrl-C
            self._waiting.remove(waiter)

    def notify_all(self) -> None:
        """Wake all that wait. The lock must be held."""
        waiting, self._waiting = self._waiting, None
        for one in waiting or ():
            one.release()
