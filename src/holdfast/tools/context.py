"""What a running call is given: cancellation, and `ToolContext`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.errors import ToolCancelled

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")

_log = logging.getLogger("holdfast")


def _unheard(message: str) -> None:
    pass


class Cancellation:
    """A flag that is raised once and never lowered; true when raised. Thread-safe.

    Whoever blocks registers how to be woken (`add_callback`), so that a cancel ends a socket read or a process at once.
    """

    # No lock: `cancel` may come from a signal handler that interrupted `add_callback`. Taking a callback out of the dict is atomic,
    # so whoever takes it, the cancel or its owner, is the only one who has it.

    __slots__ = ("_callbacks", "_raised")

    def __init__(self) -> None:
        self._raised = False
        self._callbacks: dict[object, Callable[[], object]] = {}

    def __bool__(self) -> bool:
        return self._raised

    def is_set(self) -> bool:
        """Whether it was raised, as `threading.Event.is_set`."""
        return self._raised

    def cancel(self) -> None:
        """Raise the flag and run what was registered, each once. What is registered must not block; if it raises, that is logged."""
        self._raised = True
        while self._callbacks:
            try:
                _, callback = self._callbacks.popitem()
            except KeyError:  # another thread took the last one
                return
            try:
                callback()
            except Exception:
                _log.exception("a cancel could not wake %r", callback)

    def add_callback(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Run `callback` at the cancel, or now if it has come. Returns a function that takes the callback back."""
        key = object()
        self._callbacks[key] = callback
        if self._raised and self._callbacks.pop(key, None) is not None:
            callback()

        def forget() -> None:
            self._callbacks.pop(key, None)

        return forget

    def wait(self, timeout: float | None = None) -> bool:
        """Block until raised or `timeout` seconds have passed; whether it was raised."""
        if self._raised:
            return True
        woken = threading.Event()
        forget = self.add_callback(woken.set)
        woken.wait(timeout)
        forget()
        return self._raised

    def raise_if_set(self) -> None:
        """Raise `ToolCancelled` if it was raised."""
        if self._raised:
            raise ToolCancelled("The call was cancelled.")


class ToolContext:
    """What a callback may know of the call that it serves. A parameter annotated `ToolContext` receives it, hidden from the model.

    `idempotency_key` is the same for every attempt of one call, also after a crash: hand it to whatever must not happen twice.
    """

    __slots__ = ("_mark", "_on_close", "_progress", "attempt", "call_id", "cancelled", "conversation_id", "loop", "runtime")

    loop: Callable[[Coroutine[Any, Any, Any]], Future[Any]] | None
    """Where coroutines run: given by the `ToolManager` that makes the call."""

    def __init__(
        self,
        conversation_id: str = "",
        call_id: str = "",
        attempt: int = 1,
        cancelled: Cancellation | None = None,
        runtime: object | None = None,
        progress: Callable[[str], None] = _unheard,
        on_close: Callable[[object, Callable[[], None]], None] | None = None,
        mark: Callable[[], dict[str, str]] | None = None,
    ) -> None:
        self.conversation_id = conversation_id
        self.call_id = call_id
        self.attempt = attempt
        self.cancelled = cancelled if cancelled is not None else Cancellation()
        self.runtime = runtime
        self._progress = progress
        self._on_close = on_close
        self._mark = mark
        self.loop = None

    @property
    def idempotency_key(self) -> str:
        """`{conversation_id}:{call_id}`."""
        return f"{self.conversation_id}:{self.call_id}"

    def with_cancellation(self, cancelled: Cancellation) -> ToolContext:
        """The same context under another flag."""
        found = ToolContext(
            self.conversation_id, self.call_id, self.attempt, cancelled, self.runtime, self._progress, self._on_close, self._mark
        )
        found.loop = self.loop
        return found

    def report_progress(self, message: str) -> None:
        """Tell whoever watches how far the call is. Not journaled, not shown to the model."""
        self._progress(message)

    def on_close(self, key: object, cleanup: Callable[[], None]) -> None:
        """Have `cleanup` run when the conversation closes; once per `key`. Without a conversation, the tool's owner cleans up."""
        if self._on_close is not None:
            self._on_close(key, cleanup)

    def process_environment(self) -> dict[str, str]:
        """Environment variables for a process that the call starts: `Popen(..., env={**env, **context.process_environment()})`.

        Should this process be killed, whoever takes over the conversation ends every process that has them, and what these have
        started, before any call is run again. Without a conversation there are none.
        """
        return self._mark() if self._mark is not None else {}

    def complete(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end on the agent's loop thread, and return what it returns; a cancel cancels it, and raises
        `ToolCancelled`. Equivalent to `asyncio.run(work)`, but that several share one loop. Not from within a coroutine."""
        from concurrent.futures import CancelledError

        from holdfast.tools.loop import LoopThread

        self.cancelled.raise_if_set()
        alone = None if self.loop is not None else LoopThread("holdfast-async")
        future: Future[T] = alone.submit(work) if alone is not None else self.loop(work)  # pyright: ignore[reportOptionalCall]: one of the two is there
        forget = self.cancelled.add_callback(future.cancel)
        try:
            return future.result()
        except CancelledError:
            raise ToolCancelled("The call was cancelled; its effect may have happened.") from None
        finally:
            forget()
            future.cancel()  # also when the wait was interrupted
            if alone is not None:
                alone.close()

    def sleep(self, seconds: float) -> None:
        """`time.sleep`, ended by a cancel with `ToolCancelled`."""
        if self.cancelled.wait(max(seconds, 0.0)):
            self.cancelled.raise_if_set()
