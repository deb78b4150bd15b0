"""`Pump`: the single thread of a runtime, which reads the output of its shells and keeps their
deadlines."""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from holdfast.processes import OwnerProcess

_log = logging.getLogger(__name__)

Callback = Callable[[], None]


class Pump:
    """A thread that waits for file descriptors and timers, started with the first callback. All
    callbacks run on this thread, one at a time, so their data need no lock. A callback must not
    block."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = OwnerProcess()
        self._todo: deque[Callback] = deque()
        self._timers: list[tuple[float, int, Callback]] = []
        self._order = itertools.count()
        self._thread: threading.Thread | None = None
        self._selector: selectors.BaseSelector | None = None
        self._wake = -1
        self._closing = False

    def call(self, work: Callback) -> bool:
        """Run `work` on the thread soon, and return True; return False after `close`. Callable from
        any thread; never blocks. Raises `WrongProcess` in a forked child, which does not have the
        thread."""
        self._process.check("The runtime")
        with self._lock:
            if self._closing:
                return False
            if self._thread is None:
                self._start()
            self._todo.append(work)
            # One byte wakes the thread; with a full pipe it is awake already.
            if len(self._todo) == 1:
                os.write(self._wake, b"\0")
            return True

    def _start(self) -> None:
        waker, self._wake = os.pipe()
        self._selector = selectors.DefaultSelector()
        self._selector.register(waker, selectors.EVENT_READ, lambda: None)
        self._thread = threading.Thread(
            target=self._run, args=(self._selector, waker), name="holdfast-runtime", daemon=True
        )
        self._thread.start()

    def watch(self, fd: int, work: Callback) -> None:
        """Run `work` whenever `fd` is readable. On the pump's thread only."""
        assert self._selector is not None
        self._selector.register(fd, selectors.EVENT_READ, work)

    def unwatch(self, fd: int) -> None:
        """Stop watching `fd`. On the pump's thread only."""
        assert self._selector is not None
        with suppress(KeyError, ValueError):
            self._selector.unregister(fd)

    def after(self, seconds: float, work: Callback) -> None:
        """Run `work` once, `seconds` from now. On the pump's thread only. A timer cannot be
        cancelled: `work` must check that it is still due."""
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._order), work))

    def _run(self, selector: selectors.BaseSelector, waker: int) -> None:
        while not self._closing:
            timeout = max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None
            ready = selector.select(timeout)
            for key, _ in ready:
                if key.fd == waker:
                    with self._lock:
                        os.read(waker, 4096)
                        todo = list(self._todo)
                        self._todo.clear()
                    for work in todo:
                        self._do(work)
            for key, _ in ready:
                # An earlier callback of this round may have closed this fd: skip an fd that is no
                # longer watched.
                if key.fd != waker and selector.get_map().get(key.fd) is key:
                    self._do(key.data)
            while self._timers and self._timers[0][0] <= time.monotonic():
                self._do(heapq.heappop(self._timers)[2])
        with self._lock:  # `call` has accepted these, and accepts no further ones
            todo = list(self._todo)
            self._todo.clear()
        for work in todo:
            self._do(work)
        os.close(waker)
        selector.close()

    def _do(self, work: Callback) -> None:
        try:
            work()
        except Exception:  # an error in one shell must not stop the others
            _log.exception("A runtime's background work failed")

    def close(self) -> None:
        """End the thread and wait for it. Idempotent; does nothing in a forked child."""
        if not self._process.here:
            return
        with self._lock:
            thread, self._thread = self._thread, None
            if self._closing:
                return
            self._closing = True
            if thread is not None:
                os.write(self._wake, b"\0")
        if thread is not None:
            thread.join()
            os.close(self._wake)
