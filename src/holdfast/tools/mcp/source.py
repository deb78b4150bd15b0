"""One MCP server as a `Source` of tools, and each of its tools as a `Tool`."""

from __future__ import annotations

import contextvars
import logging
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError, Future
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from holdfast.content import ToolResult
from holdfast.errors import ConfigurationError, ToolCancelled, ToolError, ToolTimeout
from holdfast.tools.context import Cancellation, ToolContext
from holdfast.tools.mcp.hooks import Answer, Elicitation
from holdfast.tools.mcp.pool import Lease, MCPPool
from holdfast.tools.mcp.results import SAMPLING, annotations_of, progress_text, result_of
from holdfast.tools.schema import of_results
from holdfast.tools.sources import Health
from holdfast.tools.tool import Tool, ToolAnnotations

if TYPE_CHECKING:
    import mcp_types

    from holdfast.tools.mcp.config import Server
    from holdfast.tools.mcp.screen import Listed

_log = logging.getLogger(__name__)
_MOST_PROGRESS = 1000  # notifications that nobody has taken yet; a server may send them faster than anyone reads

Found = tuple[list[Tool], dict[str, str]]


class MCPTool(Tool):
    """A tool of an MCP server, `server.tool`. `remote_name` is what the server calls it."""

    tool_type = "mcp_tool"

    untrusted = True

    def __init__(self, source: MCPSource, found: Listed, trusted: bool) -> None:
        super().__init__(
            f"{source.id}.{found.name}",
            found.description,
            None,
            found.input_schema,
            found.output_schema,
            annotations_of(found.hints) if trusted else ToolAnnotations(),
            "mcp",
        )
        self._source = source
        self.remote_name = found.name
        self._problem = None if self.output_schema is None else of_results(self.name, self.output_schema)

    def call(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        """Ask the server. Raises `ToolError`, also for a result that does not fit the tool's output schema.

        A result by which the tool itself reports an error is returned, with `is_error`.
        """
        result = self._source.call(self.remote_name, arguments, context)
        if self._problem is None or result.is_error:
            return result
        if result.structured_content is None:
            problem = "it has an output schema, but its result has no structured content"
        else:
            problem = self._problem(result.structured_content)
        if problem:
            text = f"{self.name!r} answered with structured content that does not fit its output schema: {problem.rstrip('.')}."
            raise ToolError(f"{text} Its effect may have happened.", retryable=False)
        return result


class MCPSource:
    """One server of an `MCPClient`, as `ToolManager` takes it: see `holdfast.tools.sources.Source`."""

    kind: Literal["mcp", "a2a"] = "mcp"

    def __init__(self, id: str, server: Server, pool: MCPPool, spec: Callable[[], Any]) -> None:
        self._id = id
        self._server = server
        self._pool = pool
        self._spec = spec  # made at the first use, since it needs what is imported then
        self._lock = threading.Lock()  # for the two below
        self._lease: Lease | None = None
        self._watchers: list[Callable[[], None]] = []
        self._folders: Callable[[], Sequence[str]] | None = None
        self._abandoned: weakref.finalize[Any, Any] | None = None

    @property
    def id(self) -> str:
        """The server's id."""
        return self._id

    @property
    def lazy(self) -> bool:
        """What its configuration says."""
        return self._server.lazy

    @property
    def call_timeout(self) -> float | None:
        """Seconds that a call may take, not counting those in which a person is asked; None for no limit."""
        return self._server.call_timeout

    def __repr__(self) -> str:
        return f"MCPSource({self._id!r})"

    # --- its connection ---

    def lease(self) -> Lease:
        """Hold the connection, which opens when it is used. For `MCPClient`."""
        with self._lock:
            if self._lease is not None and self._lease.live:
                return self._lease
        changed = weakref.WeakMethod(self._changed)  # weak: the loop thread must not keep alive who has dropped the source

        def tell() -> None:
            found = changed()
            if found is not None:
                found()

        source = weakref.ref(self)  # likewise

        def folders() -> Sequence[str] | None:
            found = source()
            return None if found is None or found._folders is None else found._folders()

        new = self._pool.lease(self._spec(), tell, folders)
        with self._lock:
            if self._lease is None or not self._lease.live:
                self._lease, lease = new, new
                if self._abandoned is not None:
                    self._abandoned.detach()
                # For a source that is dropped without being closed. It only asks: a garbage collector must not wait.
                self._abandoned = weakref.finalize(self, new.abandon)
                self._abandoned.atexit = False  # the thread closes itself there, and waits
            else:
                lease = self._lease
            watched = bool(self._watchers)
        if lease is not new:
            new.release()  # another thread was first
        elif watched:
            new.soon(new.connection.watch)
        return lease

    def close(self) -> None:
        """Let go of the connection; the last to do so ends it, and the process behind it, within some seconds. Idempotent."""
        lease = self.let_go()
        if lease is not None:
            lease.release()

    def let_go(self) -> Lease | None:
        """Forget the connection, which whoever asked is to release."""
        with self._lock:
            lease, self._lease = self._lease, None
            if self._abandoned is not None:
                self._abandoned.detach()
                self._abandoned = None
            return lease

    # --- where it is to work: see `holdfast.tools.sources.Rooted` ---

    def use_folders(self, folders: Callable[[], Sequence[str]]) -> None:
        """Tell the server of what `folders()` returns then, unless the client was given `roots`."""
        self._folders = folders
        self.folders_changed()

    def folders_changed(self) -> None:
        """`folders()` returns others now."""
        lease = self._lease
        if lease is not None:
            lease.soon(lease.connection.folders_changed)

    # --- its tools ---

    def discover(self) -> list[Tool]:
        """Connect if need be, and ask for its tools: each call asks anew. Raises `ToolError`, which names the server and the reason. A tool
        that cannot be used is left out, with a warning in the log."""
        tools, errors = self.found(self.begin())
        for error in errors.values():
            _log.warning("%s", error)
        return tools

    def begin(self) -> Future[tuple[list[Listed], dict[str, str]]]:
        """Begin to discover, without waiting."""
        lease = self.lease()
        return lease.submit(lease.connection.tools())

    def found(self, future: Future[tuple[list[Listed], dict[str, str]]]) -> Found:
        """What `begin` has found: its tools, and by name why others cannot be used. Raises `ToolError`."""
        try:
            listed, left_out = future.result()
        except CancelledError:
            raise self._closed() from None
        tools: list[Tool] = []
        unusable = f"MCP server {self._id!r} has a tool that cannot be used."
        errors = {f"{self._id}.{name}": f"{unusable} Tool {f'{self._id}.{name}'!r}: {fault}." for name, fault in left_out.items()}
        for one in listed:
            try:
                tools.append(MCPTool(self, one, self._server.trusted))
            except ConfigurationError as error:
                errors[f"{self._id}.{one.name}"] = f"{unusable} {error}"
        return tools, errors

    def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed()` on a thread of its own when the server says that its tools have changed, when the time for which its list holds is
        over, or when it came back from a crash with others."""
        with self._lock:
            self._watchers = [*self._watchers, changed]
            lease = self._lease
        if lease is not None:
            lease.soon(lease.connection.watch)

    def _changed(self) -> None:
        for changed in self._watchers:
            try:
                changed()
            except Exception:
                _log.exception("MCP server %r: what was to hear of its changed tools raised", self._id)

    def health(self, timeout: float) -> Health:
        """Ask whether it is there, connecting if need be, within `timeout` seconds. Does not raise."""
        started = time.monotonic()
        try:
            lease = self.lease()
            future = lease.submit(lease.connection.greet())
            try:
                said = future.result(timeout)
            finally:
                future.cancel()
            return Health(self._id, True, time.monotonic() - started, said)
        except TimeoutError as error:
            said = str(error) or f"MCP server {self._id!r} did not answer within {timeout:g} s."
        except CancelledError:
            said = str(self._closed())
        except ToolError as error:
            said = str(error)
        return Health(self._id, False, time.monotonic() - started, said)

    # --- its calls ---

    def call(self, tool: str, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        """Call a tool of the server. Raises `ToolError`."""
        context.cancelled.raise_if_set()
        name = f"{self._id}.{tool}"
        lease = self.lease()
        wait = Wait(self.call_timeout, context)
        future = lease.submit(wait.serve(lease.connection.call(tool, arguments, wait)))
        future.add_done_callback(wait.woken)
        forget = context.cancelled.add_callback(wait.woken)
        try:
            wait.until_done(context.report_progress)
            if wait.error is not None:
                raise wait.error
            if wait.found is not None:
                result = result_of(name, wait.found)
                return result if not wait.completions else msgspec.structs.replace(result, meta={**result.meta, SAMPLING: wait.completions})
            if context.cancelled:
                raise ToolCancelled(f"{name!r} was cancelled; its effect may have happened.")
            raise self._closed(name)
        except ToolError:
            raise
        except TimeoutError:
            raise ToolTimeout(
                f"{name!r} did not answer within {self.call_timeout:g} s and was cancelled; its effect may have happened."
            ) from None
        finally:
            forget()
            future.cancel()  # also when the wait was interrupted; nothing to do for one that is done

    def _closed(self, name: str = "") -> ToolError:
        if name:
            return ToolError(f"{name!r}: the client was closed during the call, whose effect may have happened.", "network")
        return ToolError(f"MCP server {self._id!r}: the client was closed before it answered.", "network")


class Wait:
    """A caller's thread, waiting for its call: it reports the progress itself, so that a slow watcher holds up nobody but itself."""

    def __init__(self, timeout: float | None, context: ToolContext) -> None:
        self.context = context
        self.found: mcp_types.CallToolResult | None = None
        self.error: Exception | None = None
        self.completions: list[dict[str, Any]] = []
        self._within = contextvars.copy_context()
        self._over = Cancellation()
        self._left = timeout
        self._news: SimpleQueue[str | bool | None] = SimpleQueue()  # progress; whether the clock stands; None: look what has happened

    # on the loop thread

    async def serve(self, call: Coroutine[Any, Any, mcp_types.CallToolResult]) -> None:
        """Await the call, and wake the caller at once: a future of the loop's takes two more rounds of it."""
        try:
            self.found = await call
        except Exception as error:
            self.error = error
        finally:
            self._over.cancel()
        self._news.put(None)

    def sampled(self, model: str, usage: Any) -> None:
        """A completion was made for the call."""
        self.completions.append({"model": model, "usage": msgspec.to_builtins(usage)})

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """The server says how far it is."""
        if self._news.qsize() < _MOST_PROGRESS:
            self._news.put(progress_text(progress, total, message))

    def paused(self) -> None:
        """A person is being asked: the clock stands still."""
        self._news.put(True)

    def resumed(self) -> None:
        """The clock goes on."""
        self._news.put(False)

    # anywhere

    def elicit(self, question: Elicitation) -> Answer:
        """Ask the user through the call's conversation, as if the call's thread did."""
        forget = self._over.add_callback(question.cancelled.cancel)
        try:
            return self._within.copy().run(
                self.context.ask,
                question.message,
                question.schema,
                url=question.url or "",
                asker=question.server,
                cancelled=question.cancelled,
            )
        finally:
            forget()

    def woken(self, _: object = None) -> None:
        """The call is over, or nobody wants its answer any more."""
        self._news.put(None)

    # on the caller's thread

    def until_done(self, report: Callable[[str], None]) -> None:
        """Wait for the end, and `report` progress meanwhile. Raises `TimeoutError` at the deadline."""
        ticking, since = True, time.monotonic()
        while True:
            try:
                if self._left is None or not ticking:
                    news = self._news.get()
                else:
                    news = self._news.get(timeout=max(0.0, since + self._left - time.monotonic()))
            except Empty:
                raise TimeoutError from None
            if news is None:
                return
            if isinstance(news, str):
                report(news)
            elif self._left is not None and news is ticking:  # True pauses a clock that ticks, False starts one that does not
                now = time.monotonic()
                if ticking:
                    self._left -= now - since
                ticking, since = not ticking, now
