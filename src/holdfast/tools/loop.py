"""A private event-loop thread that runs libraries which are async only."""

from __future__ import annotations

import atexit
import contextlib
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from holdfast.errors import ToolError
from holdfast.processes import OwnerProcess

T = TypeVar("T")


class LoopThread:
    """A daemon thread named `name` that runs an asyncio loop until `close`. The thread starts at
    once. At its end `cleanup()` runs on the loop. The interpreter's exit closes the thread: a
    daemon thread would be stopped there without cleanup and would leave its processes behind."""

    def __init__(
        self, name: str, cleanup: Callable[[], Coroutine[Any, Any, None]] | None = None
    ) -> None:
        import asyncio

        self._cleanup = cleanup
        self._process = OwnerProcess()
        self._lock = threading.Lock()
        self._ending = False
        self._stop = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # out of threads; the loop's descriptors must not leak
            self._loop.close()
            raise
        atexit.register(self.close)

    def _run(self) -> None:
        import asyncio

        # The Runner cancels the remaining tasks, so each future from `submit` is resolved.
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._live())

    async def _live(self) -> None:
        await self._stop.wait()
        if self._cleanup is not None:
            await self._cleanup()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run `work` on the loop. Raises `ToolError` (network) once the thread is closing. Code on
        the loop itself must not wait for the result."""
        import asyncio

        if not self._process.here:
            work.close()
            self._process.check(self._thread.name)
        # After `stop` nothing may be scheduled: it would never run, and its caller would wait
        # forever.
        with self._lock:
            if not self._ending:
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        work.close()
        raise ToolError(
            f"{self._thread.name} was closed while it was being used; call again.", "network"
        )

    def soon(self, work: Callable[[], object]) -> None:
        """Run `work` on the loop if the loop still runs; the outcome is discarded. Takes no
        lock: safe inside the garbage collector."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._process.check(self._thread.name)  # WrongProcess is a RuntimeError
            self._loop.call_soon_threadsafe(work)

    def inside(self) -> bool:
        """Return True on this thread, which must not wait for itself."""
        return threading.current_thread() is self._thread

    def stop(self) -> None:
        """Begin to close, without waiting. Idempotent; safe in the garbage collector and forks."""
        if not self._process.here:
            return
        with self._lock:
            if self._ending:
                return
            self._ending = True
            self._loop.call_soon_threadsafe(self._stop.set)

    def close(self, timeout: float = 12.0) -> None:
        """Stop, and wait up to `timeout` seconds for `cleanup` and the thread's end. Idempotent."""
        if not self._process.here:
            return
        self.stop()
        atexit.unregister(self.close)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)
