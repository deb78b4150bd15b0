"""Connections to one MCP server, on the loop thread. `McpConnection` is one connection's task;
`SharedConnection` replaces it after a crash.

Importing this module loads asyncio and the mcp package, so it is imported at the first connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
import threading
import time
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any

import anyio
import mcp_types
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import SubscriptionLost
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from holdfast import __version__
from holdfast.errors import ToolError, ToolTimeout
from holdfast.tools.mcp.auth import provider_of
from holdfast.tools.mcp.config import ConnectionSpec, Http, secret_values
from holdfast.tools.mcp.http import Trace, http_client, sse, trace_of_call
from holdfast.tools.mcp.message_filter import ListedTool, MessageFilter, listed_tools
from holdfast.tools.mcp.results import reason_of
from holdfast.tools.mcp.secrets import redaction
from holdfast.tools.mcp.server_requests import answer_elicitation, answer_roots, answer_sampling
from holdfast.tools.mcp.stdio import StderrFile, stdio
from holdfast.tools.mcp.streams import MAX_MESSAGE_BYTES

if TYPE_CHECKING:
    from holdfast.tools.mcp.pool import ConnectionLease
    from holdfast.tools.mcp.source import PendingCall

_log = logging.getLogger(__name__)

# A tool list with a shorter lifetime is still read again only once in this time.
_MIN_TTL_SECONDS = 1.0
# Tools of one server: each takes 0.2 ms at a discovery, and a place in every request.
_MAX_TOOLS = 10_000
# Pause before a lost subscription is renewed; it doubles each time, up to the maximum.
_RESUBSCRIBE_SECONDS = 1.0
_MAX_RESUBSCRIBE_SECONDS = 60.0
_HTTP_DELETE_SECONDS = 3.0
# Completions that one call may request from the agent's model; they cost the owner money.
_MAX_COMPLETIONS_PER_CALL = 32
# A server that changes twenty tools sends twenty notifications; this pause collects them.
_COLLECT_CHANGES_SECONDS = 0.02


# The call in whose context the code runs. Since 2026-07-28 a server asks only within a call.
_calling: contextvars.ContextVar[PendingCall | None] = contextvars.ContextVar(
    "holdfast_mcp_calling", default=None
)

Folders = Callable[[], Sequence[str] | None]
"""A function that returns the folders of a user's conversations; None if it has none."""


class McpConnection:
    """One connection and the task that owns it. The task opens the transport, lists the tools, and
    serves calls until `end` or until the server is gone. A connection is never reopened."""

    def __init__(
        self,
        spec: ConnectionSpec,
        on_change: Callable[[], None],
        watched: asyncio.Event,
        folders: Folders,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.spec = spec
        self.name = spec.name
        self.ended = False
        self.retired = False  # True: running calls go on, new calls use another connection
        self.ready: asyncio.Future[None] = loop.create_future()
        self.tools: list[ListedTool] = []
        self.left_out: dict[str, str] = {}  # the reasons of unusable tools, by name
        self._on_change = on_change
        self._watched = watched
        self._folders = folders
        # The folders that the server knows; None if it was not told that it may ask for them.
        self._server_folders: Sequence[str] | None = None
        self._notifications: set[asyncio.Task[None]] = set()
        self._redact = redaction(secret_values(spec.server))
        self._client: Client | None = None
        self._stop = asyncio.Event()
        self._scope = anyio.CancelScope()
        self._sent_garbage = False  # True if the server wrote something that is not JSON-RPC
        self._stderr: StderrFile | None = None
        self._stale: asyncio.TimerHandle | None = None  # expiry of the tool list
        self._open_questions = 0  # how many questions to a person are open
        # Calls in flight, the oldest first, with the number of completions that each requested.
        self._calls: dict[PendingCall, int] = {}
        self._open_requests = 0
        self._seconds_left = spec.timeout  # valid while the deadline is stopped
        # A timer, not a timeout around the work: closing a server that does not react takes
        # seconds more.
        self._deadline = loop.call_later(spec.timeout, self._overdue)
        self.task = loop.create_task(self._live())

    # --- life cycle ---

    async def _live(self) -> None:
        trace = Trace()
        trace_of_call.set(trace)
        try:
            with self._scope:
                await self._open()
        except Exception as error:
            text, kind = "the server ended before it answered.", "network"
            if not self.ended:
                text, kind = reason_of(trace.failure or error, trace.status, self._redact)
            self._fail_to_connect(text + self._stderr_tail(), kind)
        finally:
            self.ended = True
            self._deadline.cancel()
            self._cancel_expiry()
            self._fail(ToolError(f"MCP server {self.name!r} lost its connection.", "network"))
            if self._stderr is not None:
                self._stderr.close()
                self._stderr = None

    async def _open(self) -> None:
        server, handlers = self.spec.server, self.spec.handlers
        # Mode 2026-07-28 negotiates too: otherwise the server's capabilities stay unknown, and the
        # client does not fall back to a lower version that the server accepts.
        negotiates = server.mode in ("auto", "2026-07-28") and server.type != "sse"
        if server.roots and handlers.roots is None:
            self._server_folders = self._folders()
        samples = handlers.sample is not None or server.sampling
        has_roots = handlers.roots is not None or self._server_folders is not None
        async with contextlib.AsyncExitStack() as stack:
            client = Client(
                MessageFilter(await self._transport(stack), lambda: self._modern),
                mode="auto" if negotiates else "legacy",
                client_info=mcp_types.Implementation(name="holdfast", version=__version__),
                message_handler=self._on_message,
                elicitation_callback=self._elicit,
                sampling_callback=self._sample if samples else None,
                list_roots_callback=self._roots if has_roots else None,
                cache=None,
            )
            await stack.enter_async_context(client)
            version = client.protocol_version
            if server.mode == "2026-07-28" and version not in MODERN_PROTOCOL_VERSIONS:
                problem = f"it speaks MCP {version}, and its configuration says mode 2026-07-28."
                self._fail_to_connect(problem, "not_found")
                return
            self._client = client
            self.tools = await self._list(client)
            self._deadline.cancel()
            if not self.ready.done():
                self.ready.set_result(None)
            async with anyio.create_task_group() as group:
                group.start_soon(self._listen, client)
                try:
                    await self._stop.wait()
                finally:  # also when a failing transport cancels this task
                    self.ended = True
                    group.cancel_scope.cancel()

    async def _transport(self, stack: contextlib.AsyncExitStack) -> Any:
        server, auth = self.spec.server, self.spec.auth
        if not isinstance(server, Http):
            directory = self.spec.stderr_dir
            log = None if directory is None else os.path.join(directory, f"{self.name}.log")
            self._stderr = StderrFile(log)
            return stdio(server, self._stderr, lambda: self._client is not None, self._leave)
        provider = None if auth is None else provider_of(server.url, auth, self._asking)
        client = http_client(server, self.spec.timeout, provider, self.ready.done)
        http = await stack.enter_async_context(client)
        if server.type == "sse":
            return sse(http, server.url, self._leave)
        return streamable_http_client(
            server.url, http_client=http, max_sse_event_size=MAX_MESSAGE_BYTES
        )

    def _overdue(self) -> None:
        garbage = " Its stdout has text that is not JSON-RPC." if self._sent_garbage else ""
        problem = f"MCP server {self.name!r} did not answer within {self.spec.timeout:g} s."
        self._fail(ToolTimeout(f"{problem}{garbage}{self._stderr_tail()}"))
        self._scope.cancel()

    def _fail_to_connect(self, reason: str, kind: str) -> None:
        text = f"MCP server {self.name!r} could not be connected to: {reason}"
        self._fail(ToolError(text, kind))

    def _fail(self, error: ToolError) -> None:
        if not self.ready.done():
            self.ready.set_exception(error)
            # Mark as retrieved, so that asyncio does not complain when no caller waits.
            self.ready.exception()

    def _stderr_tail(self) -> str:
        tail = "" if self._stderr is None else self._stderr.tail(self._redact)
        return f" Its stderr ended with: {tail}" if tail else ""

    def _leave(self) -> None:
        """Leave after the server closed its side, so that the next call connects again. The mcp
        package raises its own error in pending requests."""
        self.ended = True
        self._stop.set()

    def end(self) -> None:
        """Begin to close. `task` ends when the process or the connection has ended. A server
        that never answered is cancelled at once."""
        if not self.ready.done():
            problem = f"MCP server {self.name!r}: the client was closed before it was connected."
            self._fail(ToolError(problem, "network"))
            self._scope.cancel()
        self._leave()
        # For HTTP's DELETE; stopping a process has limits of its own.
        self._scope.deadline = asyncio.get_running_loop().time() + _HTTP_DELETE_SECONDS

    # --- notifications of the server ---

    async def _on_message(self, message: object) -> None:
        if isinstance(message, Exception):
            self._sent_garbage = True
        elif isinstance(message, mcp_types.ToolListChangedNotification):
            self._on_change()

    async def _listen(self, client: Client) -> None:
        """Subscribe to list changes once a user watches, as servers since 2026-07-28 require."""
        tools = client.server_capabilities.tools
        if not self._modern or tools is None or not tools.list_changed:
            return
        await self._watched.wait()
        pause, was_lost = _RESUBSCRIBE_SECONDS, False
        while True:
            try:
                async with client.listen(tools_list_changed=True) as events:
                    if was_lost:
                        self._on_change()  # changes during the gap were not reported
                    async for _ in events:  # `_on_message` gets each event too and reports it
                        pause = _RESUBSCRIBE_SECONDS
            except SubscriptionLost:  # renewed below, after a pause
                pass
            except MCPError as error:
                if error.code == mcp_types.METHOD_NOT_FOUND:
                    return
            was_lost = True
            await asyncio.sleep(pause)
            pause = min(pause * 2, _MAX_RESUBSCRIBE_SECONDS)

    # --- requests of the server ---

    @contextlib.contextmanager
    def _asking(self) -> Generator[None]:
        """Stop the deadlines of this connection while a person is asked."""
        loop = asyncio.get_running_loop()
        self._open_questions += 1
        if self._open_questions == 1:
            if not self.ready.done():
                self._seconds_left = self._deadline.when() - loop.time()
                self._deadline.cancel()
            for one in self._calls:
                one.pause(True)
        try:
            yield
        finally:
            self._open_questions -= 1
            if self._open_questions == 0:
                if not self.ready.done():
                    self._deadline = loop.call_later(max(self._seconds_left, 0.0), self._overdue)
                for one in self._calls:
                    one.pause(False)

    def _caller(self, what: str) -> PendingCall | None:
        """Return the call on whose behalf the server asks, or None.

        In the older era the server does not say which call that is. All calls in flight must
        then belong to one conversation.
        """
        call = _calling.get()
        if call in self._calls:  # else the call opened this connection, or is over
            return call
        owners = {(id(one.context.asks), id(one.context.llm)) for one in self._calls}
        if len(owners) == 1:
            return next(iter(self._calls))
        reason = "no call is in flight"
        if owners:
            reason = f"{len(owners)} conversations have calls in flight on this connection"
        _log.warning(
            "MCP server %r: its %s was declined: the protocol does not say for which call it is,"
            " and %s.",
            self.name,
            what,
            reason,
        )
        return None

    async def _elicit(
        self, context: Any, params: mcp_types.ElicitRequestParams
    ) -> mcp_types.ElicitResult:
        elicit = self.spec.handlers.elicit
        if elicit is None and (caller := self._caller("question to the user")) is not None:
            elicit = caller.elicit
        with self._asking():
            return await answer_elicitation(self.name, elicit, params)

    async def _sample(
        self, context: Any, params: mcp_types.CreateMessageRequestParams
    ) -> mcp_types.CreateMessageResult | mcp_types.ErrorData:
        if self.spec.handlers.sample is not None:
            return await answer_sampling(self.name, self.spec.handlers.sample, params)
        caller = self._caller("request for a completion")
        if caller is None or caller.context.llm is None:
            problem = "This client has no model that could answer."
            return mcp_types.ErrorData(code=mcp_types.INVALID_REQUEST, message=problem)
        self._calls[caller] += 1
        if self._calls[caller] > _MAX_COMPLETIONS_PER_CALL:
            problem = f"A call may ask for {_MAX_COMPLETIONS_PER_CALL} completions at most."
            return mcp_types.ErrorData(code=mcp_types.INVALID_REQUEST, message=problem)
        return await answer_sampling(self.name, caller.context.llm, params, caller.sampled)

    async def _roots(self, context: Any) -> mcp_types.ListRootsResult:
        roots = self.spec.handlers.roots
        if roots is None:
            call = _calling.get()
            if self._modern and call in self._calls:  # the server asks for this call only
                workdir: Any = getattr(call.context.runtime, "workdir", None)
                roots = [] if workdir is None else [workdir]
            else:
                roots = self._server_folders = self._folders() or ()
        return await answer_roots(roots)

    def folders_changed(self) -> None:
        """Notify the server that its folders changed, if they did. Only the older era has this
        notification; since 2026-07-28 a server asks within each call."""
        client, folders = self._client, self._folders() or ()
        if (
            client is None
            or self.ended
            or self._modern
            or self._server_folders is None
            or [*folders] == [*self._server_folders]
        ):
            return
        self._server_folders = folders

        async def notify() -> None:
            with contextlib.suppress(Exception):  # the server is gone; the next call notices it
                await client.session.send_notification(mcp_types.RootsListChangedNotification())

        task = asyncio.get_running_loop().create_task(notify())
        self._notifications.add(task)
        task.add_done_callback(self._notifications.discard)

    # --- requests to the server ---

    @property
    def _modern(self) -> bool:
        client = self._client
        return client is not None and client.protocol_version in MODERN_PROTOCOL_VERSIONS

    async def _list(self, client: Client) -> list[ListedTool]:
        tools: list[ListedTool] = []
        left_out: dict[str, str] = {}
        cursor: str | None = None
        lifetimes_ms: list[int] = []
        full = False
        while not full:  # the deadline stops a list that never ends
            page = await client.list_tools(cursor=cursor)
            page_tools, faults = listed_tools(page)
            tools.extend(page_tools)
            left_out.update(faults)
            full = len(tools) + len(left_out) > _MAX_TOOLS
            if page.ttl_ms > 0:
                lifetimes_ms.append(page.ttl_ms)
            if not page.next_cursor or page.next_cursor == cursor:  # the latter would never end
                break
            cursor = page.next_cursor
        if full:
            del tools[_MAX_TOOLS:]
            left_out = dict(list(left_out.items())[: _MAX_TOOLS - len(tools)])
            left_out["(further tools)"] = f"its server lists more than {_MAX_TOOLS:,}"
        self._cancel_expiry()
        if lifetimes_ms and not self.ended:
            seconds = max(min(lifetimes_ms) / 1000, _MIN_TTL_SECONDS)
            self._stale = asyncio.get_running_loop().call_later(seconds, self._on_change)
        self.left_out = left_out
        return tools

    def _cancel_expiry(self) -> None:
        if self._stale is not None:
            self._stale.cancel()
            self._stale = None

    async def list(self) -> list[ListedTool]:
        """Ask the server for its tools again. Raises `ToolError`."""
        client = self._client
        assert client is not None
        self.tools = await self._ask(lambda: self._list(client), "could not list its tools")
        return self.tools

    async def call(
        self, tool: str, arguments: dict[str, Any], waiting: PendingCall
    ) -> mcp_types.CallToolResult:
        """Call a tool. Raises `ToolError`."""
        client = self._client
        assert client is not None
        self._calls[waiting] = 0
        if self._open_questions:
            waiting.pause(True)
        token = _calling.set(waiting)
        try:
            return await self._ask(
                lambda: client.call_tool(tool, arguments, progress_callback=waiting.progress),
                "failed the call",
            )
        finally:
            _calling.reset(token)
            self._calls.pop(waiting, None)

    async def greet(self) -> str:
        """Check that the server answers. Return its name and version. Raises `ToolError`."""
        client = self._client
        assert client is not None
        if self._modern:
            version = client.protocol_version
            await self._ask(lambda: client.session.send_discover(version), "did not answer")
        else:
            try:
                await self._ask(client.session.send_ping, "did not answer")
            except ToolError as error:
                # A server that does not know `ping` has answered all the same.
                if error.error_type != "not_found":
                    raise
        info = client.server_info
        name = f"{info.name} {info.version}".strip() + ", " if info is not None else ""
        return f"{name}MCP {client.protocol_version}"

    async def _ask(self, ask: Callable[[], Any], what: str) -> Any:
        trace = Trace() if isinstance(self.spec.server, Http) else None
        if trace is not None:
            trace_of_call.set(trace)
        self._open_requests += 1
        try:
            return await ask()
        except Exception as error:
            broken = trace is not None and trace.failure is not None
            self.retired = self.retired or broken
            if self.ended or broken:
                problem = (
                    f"MCP server {self.name!r} went away during the call, whose effect may have"
                    " happened; the next call connects again."
                )
                raise ToolError(f"{problem}{self._stderr_tail()}", "network") from None
            status = 0 if trace is None else trace.status
            text, kind = reason_of(error, status, self._redact)
            if status == 404 and not self._modern:
                # The server has forgotten the session; the specification requires a new one.
                self.retired = True
                kind = "network"
            raise ToolError(f"MCP server {self.name!r} {what}: {text}", kind) from None
        finally:
            self._open_requests -= 1
            if self.retired and not self._open_requests:
                self.end()


class SharedConnection:
    """A connection that all its users share, opened at the first use and again after a crash.
    Everything except `leases` is used on the loop thread only."""

    def __init__(self, spec: ConnectionSpec, tasks: set[asyncio.Task[None]]) -> None:
        self.spec = spec
        self.leases: tuple[ConnectionLease, ...] = ()  # replaced by the pool under its lock
        self._tasks = tasks
        self._connection: McpConnection | None = None
        self._retired: list[McpConnection] = []
        self._reported_tools: list[ListedTool] | None = None
        self._watched = asyncio.Event()
        self._notifying = False

    def watch(self) -> None:
        """Start to report changes of the tools."""
        self._watched.set()

    def _notify_users(self) -> None:
        """Notify the users on a separate thread, because their reaction may wait for this one.
        One notification covers many changes."""
        if self._notifying or not self._watched.is_set():
            return
        self._notifying = True

        def notify() -> None:
            time.sleep(_COLLECT_CHANGES_SECONDS)
            self._notifying = False
            for lease in self.leases:
                lease.on_change()

        threading.Thread(target=notify, name="holdfast-mcp-changed", daemon=True).start()

    def _folders(self) -> list[str] | None:
        folder_lists = [
            folders for lease in self.leases if (folders := lease.folders()) is not None
        ]
        if not folder_lists:
            return None
        return [*dict.fromkeys([folder for folders in folder_lists for folder in folders])]

    def folders_changed(self) -> None:
        """Handle a change of a user's folders, a new user, or a user that left."""
        if self._connection is not None:
            self._connection.folders_changed()

    async def _connected(self) -> tuple[McpConnection, bool]:
        """Return the connection, and True if this call has opened it."""
        connection = self._connection
        if connection is None or connection.ended or connection.retired:
            if connection is not None:
                self._retired.append(connection)
            self._retired = [one for one in self._retired if not one.task.done()]
            connection = self._connection = McpConnection(
                self.spec, self._notify_users, self._watched, self._folders
            )
            self._tasks.add(connection.task)
            connection.task.add_done_callback(self._tasks.discard)
        if connection.ready.done():
            connection.ready.result()
            return connection, False
        await asyncio.shield(connection.ready)  # one caller's cancel must not affect the others
        if self._reported_tools is not None and self._reported_tools != connection.tools:
            self._notify_users()
        self._reported_tools = connection.tools
        return connection, True

    async def tools(self) -> tuple[list[ListedTool], dict[str, str]]:
        """Ask the server for its tools again. Return them, and faults of unusable ones."""
        connection, new = await self._connected()
        if not new:
            try:
                async with asyncio.timeout(self.spec.timeout):
                    self._reported_tools = await connection.list()
            except TimeoutError:
                raise ToolTimeout(
                    f"MCP server {self.spec.name!r} did not answer within {self.spec.timeout:g} s."
                ) from None
        return connection.tools, connection.left_out

    async def call(
        self, tool: str, arguments: dict[str, Any], waiting: PendingCall
    ) -> mcp_types.CallToolResult:
        """Call a tool. Connects first if necessary."""
        connection, _ = await self._connected()
        return await connection.call(tool, arguments, waiting)

    async def greet(self) -> str:
        """Check that the server answers. Return its name and version."""
        connection, _ = await self._connected()
        return await connection.greet()

    async def end(self) -> None:
        """Close, and wait until the process or the connection has ended."""
        connections = [one for one in (*self._retired, self._connection) if one is not None]
        for connection in connections:
            connection.end()
        if connections:
            await asyncio.wait([connection.task for connection in connections])
