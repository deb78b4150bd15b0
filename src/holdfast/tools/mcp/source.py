"""An MCP server as a `Source` of tools, each of its tools as a `Tool`, and their calls."""

from __future__ import annotations

import contextvars
import logging
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError, Future
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.content import ToolResult
from holdfast.errors import ConfigurationError, ToolCancelled, ToolError, ToolTimeout
from holdfast.tools.context import Cancellation, ToolContext
from holdfast.tools.mcp.pool import ConnectionLease, MCPPool
from holdfast.tools.mcp.results import (
    SAMPLING_META_KEY,
    annotations_of,
    progress_text,
    result_of,
)
from holdfast.tools.mcp.server_requests import Elicitation, ElicitationAnswer
from holdfast.tools.patterns import name_fits
from holdfast.tools.schema import result_checker
from holdfast.tools.service_client import Discovered, ServiceSource
from holdfast.tools.tool import Tool, ToolAnnotations

if TYPE_CHECKING:
    import mcp_types

    from holdfast.tools.mcp.config import ConnectionSpec
    from holdfast.tools.mcp.message_filter import ListedTool

_log = logging.getLogger(__name__)
# Progress notifications that may wait; a server may send them faster than the caller reports them.
_MAX_QUEUED_PROGRESS = 1000


class MCPTool(Tool):
    """A tool of an MCP server, named `server.tool`; `remote_name` is the server's name."""

    tool_type = "mcp_tool"

    untrusted = True

    def __init__(self, source: MCPSource, listed: ListedTool, trusted: bool) -> None:
        super().__init__(
            f"{source.id}.{listed.name}",
            listed.description,
            None,
            listed.input_schema,
            listed.output_schema,
            annotations_of(listed.hints) if trusted else ToolAnnotations(),
            "mcp",
        )
        self._source = source
        self.remote_name = listed.name
        schema = self.output_schema
        self._schema_problem = None if schema is None else result_checker(self.name, schema)

    def call(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        """Call the tool on its server.

        A result that reports an error of the tool is returned with `is_error`. Raises
        `ToolError`, also for a result that does not fit the tool's output schema.
        """
        result = self._source.call(self.remote_name, arguments, context)
        if self._schema_problem is None or result.is_error:
            return result
        if result.structured_content is None:
            problem = "it has an output schema, but its result has no structured content"
        else:
            problem = self._schema_problem(result.structured_content)
        if problem:
            text = (
                f"{self.name!r} answered with structured content that does not fit its output"
                f" schema: {problem.rstrip('.')}."
            )
            raise ToolError(f"{text} Its effect may have happened.", retryable=False)
        return result


class MCPSource(ServiceSource):
    """One server of an `MCPClient`, as a `Source` for `ToolManager`."""

    label = "MCP server"
    kind = "mcp"

    def __init__(self, spec: ConnectionSpec, pool: MCPPool) -> None:
        self.id = spec.name
        self.lazy = spec.server.lazy
        self.call_timeout = spec.server.call_timeout  # not counting time in which a person is asked
        self._pool = pool
        self._spec = spec
        self._lock = threading.Lock()  # guards `_lease` and `_watchers`
        self._lease: ConnectionLease | None = None
        self._watchers: list[Callable[[], None]] = []
        self._folders: Callable[[], Sequence[str]] | None = None
        self._abandon_lease: weakref.finalize[Any, Any] | None = None

    # --- the connection ---

    def lease(self) -> ConnectionLease:
        """Hold the connection, which opens at its first use. For `MCPClient`."""
        with self._lock:
            if self._lease is not None and self._lease.live:
                return self._lease
        # Weak: the loop thread must not keep a source alive that its owner has dropped.
        weak = weakref.ref(self)

        def notify() -> None:
            if (source := weak()) is not None:
                source._notify_watchers()

        def folders() -> Sequence[str] | None:
            source = weak()
            return None if source is None or source._folders is None else source._folders()

        new = self._pool.lease(self._spec, notify, folders)
        with self._lock:
            if self._lease is None or not self._lease.live:
                self._lease = new
                if self._abandon_lease is not None:
                    self._abandon_lease.detach()
                # Releases the lease of a source that is dropped without `close`. It does not wait,
                # because it runs in the garbage collector.
                self._abandon_lease = weakref.finalize(self, new.abandon)
                # At interpreter exit the loop thread closes itself, and waits.
                self._abandon_lease.atexit = False
            lease = self._lease
            watched = bool(self._watchers)
        if lease is not new:
            new.release()  # another thread connected first
        elif watched:
            new.soon(new.connection.watch)
        return lease

    def close(self) -> None:
        """Release the connection. Idempotent. The last user's release ends the connection and the
        server's process, within some seconds."""
        lease = self.detach_lease()
        if lease is not None:
            lease.release()

    def detach_lease(self) -> ConnectionLease | None:
        """Forget the connection and return its lease, which the caller must release."""
        with self._lock:
            lease, self._lease = self._lease, None
            if self._abandon_lease is not None:
                self._abandon_lease.detach()
                self._abandon_lease = None
            return lease

    # --- working folders: see `holdfast.tools.sources.Rooted` ---

    def use_folders(self, folders: Callable[[], Sequence[str]]) -> None:
        """Let the server work in these folders, unless the client was given `roots`."""
        self._folders = folders
        self.folders_changed()

    def folders_changed(self) -> None:
        """Tell the server that `folders()` now returns other folders."""
        lease = self._lease
        if lease is not None:
            lease.soon(lease.connection.folders_changed)

    # --- the tools ---

    def begin_discovery(self) -> Future[tuple[list[ListedTool], dict[str, str]]]:
        """Start a discovery without waiting for it."""
        lease = self.lease()
        return lease.submit(lease.connection.tools())

    def discovered(self, future: Future[tuple[list[ListedTool], dict[str, str]]]) -> Discovered:
        """Return the tools of a discovery, and faults by name. Raises `ToolError`."""
        try:
            listed, left_out = future.result()
        except CancelledError:
            raise ToolError(
                f"MCP server {self.id!r}: the client was closed before it answered.", "network"
            ) from None
        tools: list[Tool] = []
        unusable = f"MCP server {self.id!r} has a tool that cannot be used."
        errors = {
            f"{self.id}.{name}": f"{unusable} Tool {f'{self.id}.{name}'!r}: {fault}."
            for name, fault in left_out.items()
        }
        allowed = self._spec.server.tools
        for one in listed:
            if allowed is not None and not any(name_fits(one.name, name) for name in allowed):
                continue
            try:
                tools.append(MCPTool(self, one, self._spec.server.trusted))
            except ConfigurationError as error:
                errors[f"{self.id}.{one.name}"] = f"{unusable} {error}"
        return tools, errors

    def watch(self, on_change: Callable[[], None]) -> None:
        """Call `on_change()` on a thread of its own when the server's tools may have changed.

        The triggers are a notification of the server, the expiry of its tool list, and a restart
        after a crash with other tools.
        """
        with self._lock:
            self._watchers = [*self._watchers, on_change]
            lease = self._lease
        if lease is not None:
            lease.soon(lease.connection.watch)

    def _notify_watchers(self) -> None:
        for watcher in self._watchers:
            try:
                watcher()
            except Exception:
                problem = "MCP server %r: a callback for changed tools raised an exception"
                _log.exception(problem, self.id)

    def begin_check(self) -> Future[str]:
        """Start to check that the server answers; connect if necessary."""
        lease = self.lease()
        return lease.submit(lease.connection.greet())

    # --- the calls ---

    def call(self, tool: str, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        """Call a tool of the server. Raises `ToolError`."""
        context.cancelled.raise_if_set()
        name = f"{self.id}.{tool}"
        lease = self.lease()
        call = PendingCall(self.call_timeout, context)
        future = lease.submit(call.serve(lease.connection.call(tool, arguments, call)))
        future.add_done_callback(call.wake)
        remove_callback = context.cancelled.add_callback(call.wake)
        try:
            call.until_done(context.report_progress)
            if call.error is not None:
                raise call.error
            if call.result is None:
                if context.cancelled:
                    raise ToolCancelled(f"{name!r} was cancelled; its effect may have happened.")
                raise ToolError(
                    f"{name!r}: the client was closed during the call, whose effect may have"
                    " happened.",
                    "network",
                )
            result = result_of(name, call.result)
            if not call.completions:
                return result
            return msgspec.structs.replace(
                result, meta={**result.meta, SAMPLING_META_KEY: call.completions}
            )
        except ToolError:
            raise
        except TimeoutError:
            raise ToolTimeout(
                f"{name!r} did not answer within {self.call_timeout:g} s and was cancelled; its"
                " effect may have happened."
            ) from None
        finally:
            remove_callback()
            # Needed when the wait was interrupted; a finished future ignores it.
            future.cancel()


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
        """Queue a progress notification of the server, or drop it when too many wait already."""
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
            elif news is ticking:  # else the clock is in the new state already
                now = time.monotonic()
                if ticking and self._seconds_left is not None:
                    self._seconds_left -= now - since
                ticking, since = not ticking, now
