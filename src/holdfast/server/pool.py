"""A pool of threads for conversations that have something to do: each is queued once, and driven by one thread at a time."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

_log = logging.getLogger("holdfast")

LINGER = 5.0  # seconds that a thread waits for more


class Pool:
    """At most `most` threads, made on demand; one that has nothing to do for `LINGER` seconds ends.

    `work(id)` does what there is to do and returns whether to come back for more. It must not raise.
    """

    def __init__(self, most: int, work: Callable[[str], bool]) -> None:
        self._most = most
        self._work = work
        self._changed = threading.Condition()
        self._queue: dict[str, None] = {}  # in order, each once
        self._running: dict[str, bool] = {}  # whether it was asked for again meanwhile
        self._threads: set[threading.Thread] = set()
        self._waiting = 0
        self._number = 0
        self._closed = False

    def submit(self, id: str) -> None:
        """Have `work(id)` called, after now. If it is queued already that will do; if it runs, it is called once more after that."""
        with self._changed:
            if self._closed or id in self._queue:
                return
            if id in self._running:
                self._running[id] = True
                return
            self._queue[id] = None
            self._changed.notify()
            if len(self._queue) > self._waiting and len(self._threads) < self._most:
                self._number += 1
                thread = threading.Thread(target=self._main, name=f"holdfast-host-{self._number}", daemon=True)
                self._threads.add(thread)
                thread.start()

    def busy(self, id: str) -> bool:
        """Whether it is queued or runs."""
        with self._changed:
            return id in self._queue or id in self._running

    def counts(self) -> tuple[int, int, int]:
        """How many are queued, how many run, how many threads there are."""
        with self._changed:
            return len(self._queue), len(self._running), len(self._threads)

    def _main(self) -> None:
        try:
            while (id := self._next()) is not None:
                more = False
                try:
                    more = self._work(id)
                except Exception:
                    _log.exception("conversation %s: driving it failed", id)
                with self._changed:
                    more = self._running.pop(id) or more
                    if more and not self._closed:
                        self._queue[id] = None  # behind the others; this thread takes one now, so that none has to be woken
        finally:
            with self._changed:
                self._threads.discard(threading.current_thread())
                self._changed.notify_all()

    def _next(self) -> str | None:
        with self._changed:
            until = time.monotonic() + LINGER
            while not self._queue:
                left = until - time.monotonic()
                if self._closed or left <= 0:
                    self._threads.discard(threading.current_thread())  # now, or the next one counts on it
                    return None
                self._waiting += 1
                try:
                    self._changed.wait(left)
                finally:
                    self._waiting -= 1
            if self._closed:
                return None
            id = next(iter(self._queue))
            del self._queue[id]
            self._running[id] = False
            return id

    def close(self, timeout: float) -> bool:
        """Take nothing more, and wait for what runs; whether all of it ended."""
        until = time.monotonic() + timeout
        with self._changed:
            self._closed = True
            self._queue.clear()
            self._changed.notify_all()
            threads = list(self._threads)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)
