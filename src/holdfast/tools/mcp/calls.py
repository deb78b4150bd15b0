"""One call of an MCP tool, shared by the caller's thread and the loop thread."""

from __future__ import annotations

import contextvars
import time
from collections.abc import Callable, Coroutine
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.tools.context import Cancellation, ToolContext
from holdfast.tools.mcp.results import progress_text
from holdfast.tools.mcp.server_requests import Elicitation, ElicitationAnswer

if TYPE_CHECKING:
    import mcp_types

# Progress notifications that may wait; a server may send them faster than the caller reports them.
_MAX_QUEUED_PROGRESS = 1000


class PendingCall:
    """A tool call in flight, and the wait of the caller's thread for it. The caller's thread
    reports the progress itself, so that a slow progress callback delays only its own call."""

    def __init__(self, timeout: float | None, context: ToolContext) -> None:
        self.context = context
        self.result: mcp_types.CallToolResult | None = None
        self.error: Exception | None = None
        self.completions: list[dict[str, Any]] = []
        self._caller_context = contextvars.copy_context()
        self._over = Cancellation()
        self._seconds_left = timeout
        # A text is progress; True stops the clock and False restarts it; None ends the wait.
        self._news: SimpleQueue[str | bool | None] = SimpleQueue()

    # on the loop thread

    async def serve(self, call: Coroutine[Any, Any, mcp_types.CallToolResult]) -> None:
        """Await the call and wake the caller at once: two rounds of the loop less."""
        try:
            self.result = await call
        except Exception as error:
            self.error = error
        finally:
            self._over.cancel()
        self._news.put(None)

    def sampled(self, model: str, usage: Any) -> None:
        """Record a completion that was made for the call."""
        self.completions.append({"model": model, "usage": msgspec.to_builtins(usage)})

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Queue a progress notification of the server. It is dropped when too many wait already."""
        if self._news.qsize() < _MAX_QUEUED_PROGRESS:
            self._news.put(progress_text(progress, total, message))

    def pause(self, stopped: bool) -> None:
        """Stop or restart the call's clock, which stands still while a person is asked."""
        self._news.put(stopped)

    # on any thread

    def elicit(self, question: Elicitation) -> ElicitationAnswer:
        """Ask the user through the call's conversation, in the call's context variables. Blocks."""
        remove_callback = self._over.add_callback(question.cancelled.cancel)
        try:
            return self._caller_context.copy().run(
                self.context.ask,
                question.message,
                question.schema,
                url=question.url or "",
                asker=question.server,
                cancelled=question.cancelled,
            )
        finally:
            remove_callback()

    def wake(self, _: object = None) -> None:
        """Wake the caller's thread: the call is over, or its answer is no longer wanted."""
        self._news.put(None)

    # on the caller's thread

    def until_done(self, report: Callable[[str], None]) -> None:
        """Wait for the end of the call, reporting progress. Raises `TimeoutError`."""
        ticking, since = True, time.monotonic()
        while True:
            seconds = None
            if self._seconds_left is not None and ticking:
                seconds = max(0.0, since + self._seconds_left - time.monotonic())
            try:
                news = self._news.get(timeout=seconds)
            except Empty:
                raise TimeoutError from None
            if news is None:
                return
            if isinstance(news, str):
                report(news)
            elif news is ticking:  # else the clock is in that state
                now = time.monotonic()
                if ticking and self._seconds_left is not None:
                    self._seconds_left -= now - since
                ticking, since = not ticking, now
