"""A bounded number of threads for calls, started on demand and ended when idle."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

_IDLE_SECONDS = 10.0  # until a thread without work ends


class CallThreads:
    """A pool of at most `limit` daemon threads. Further work waits in a queue. Thread-safe."""

    def __init__(self, limit: int, name: str) -> None:
        self._limit = limit
        self._name = name
        self._work: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._closed = False

    def submit(self, work: Callable[[], None]) -> None:
        """Run `work`, which must not raise, on one of the threads. A no-op after `close`. Raises
        `RuntimeError` if no thread can be started."""
        with self._changed:
            if self._closed:
                return
            self._work.append(work)
            if self._idle >= len(self._work):
                self._changed.notify()
            elif len(self._threads) < self._limit:
                thread = threading.Thread(
                    target=self._run, name=f"{self._name}-{len(self._threads) + 1}", daemon=True
                )
                try:
                    thread.start()
                except RuntimeError:
                    if not self._threads:
                        self._work.remove(work)
                        raise
                else:
                    self._threads.add(thread)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                while not self._work:
                    if self._closed or (not self._changed.wait(_IDLE_SECONDS) and not self._work):
                        self._idle -= 1
                        self._threads.discard(threading.current_thread())
                        return
                self._idle -= 1
                work = self._work.popleft()
            work()
            del work  # releases its objects, such as a large result, before the next work

    def close(self, timeout: float) -> int:
        """Discard queued work, and wait up to `timeout` seconds for running work. Returns the
        number of threads that still run."""
        with self._changed:
            self._closed = True
            self._work.clear()
            self._changed.notify_all()
            threads = list(self._threads)
        deadline = time.monotonic() + timeout
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return sum(thread.is_alive() for thread in threads)
