"""One connection to an MCP server, on the loop thread: a task that owns it (`Link`), and what is kept when it is made anew (`Connection`).

Imported at the first connection, for it brings in asyncio and the mcp package.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import anyio
import mcp_types
import msgspec
from mcp import Client, MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from holdfast import __version__
from holdfast.errors import ToolError, ToolTimeout
from holdfast.tools.mcp.auth import provider_of
from holdfast.tools.mcp.config import Http, Server
from holdfast.tools.mcp.hooks import Answer, Elicitation, Hooks, answer_elicitation, answer_roots, answer_sampling
from holdfast.tools.mcp.results import reason_of
from holdfast.tools.mcp.screen import Listed, Screen, listed
from holdfast.tools.mcp.secrets import redaction
from holdfast.tools.mcp.stdio import Errors, stdio

if TYPE_CHECKING:
    from holdfast.tools.context import ToolContext

_log = logging.getLogger(__name__)

_SHORTEST_TTL = 1.0  # seconds; a server that wants to be asked more often than that is asked that often
_LISTEN_AGAIN, _LISTEN_AT_MOST = 1.0, 60.0  # seconds before a lost subscription is made again, doubled each time
_FAREWELL = 3.0  # seconds for HTTP's DELETE
_COMPLETIONS = 32  # that one call may ask of the agent's model; a server must not spend without end


class Spec(msgspec.Struct, frozen=True):
    """All that makes one connection differ from another."""

    name: str
    server: Server
    timeout: float
    hooks: Hooks = Hooks()
    auth: Any = None
    stderr_dir: str | None = None


class Waiting(Protocol):
    """Whoever waits for a call."""

    @property
    def context(self) -> ToolContext:
        """The call's."""
        ...

    def elicit(self, question: Elicitation) -> Answer:
        """Ask the user through the call's conversation. Blocks, on a thread of the caller's."""
        ...

    def sampled(self, model: str, usage: Any) -> None:
        """A completion was made for the call."""
        ...

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """The server says how far it is."""
        ...

    def paused(self) -> None:
        """A person is being asked: no clock runs."""
        ...

    def resumed(self) -> None:
        """The person has answered."""
        ...


# The call within which something runs: since 2026-07-28 what a server asks, it asks within a call.
_calling: contextvars.ContextVar[Waiting | None] = contextvars.ContextVar("holdfast_mcp_calling", default=None)

Folders = Callable[[], Sequence[str] | None]


class Link:
    """One connection's life, in one task: opened, listed, kept until `end` or until the server is gone. Never reopened."""

    def __init__(self, spec: Spec, changed: Callable[[], None], watched: asyncio.Event, folders: Folders) -> None:
        self.spec = spec
        self._folders = folders
        self._told_folders: Sequence[str] | None = None  # None: it was not told that it may ask for them
        self._telling: set[asyncio.Task[None]] = set()
        self.name = spec.name
        self._redact = redaction(spec.server)
        self.ended = False
        self.retired = False  # for what still runs on it; nothing new begins
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.tools: list[Listed] = []
        self.left_out: dict[str, str] = {}  # tools that cannot be used, by name, and the reason
        self._changed = changed
        self._watched = watched
        self._client: Client | None = None
        self._stop = asyncio.Event()
        self._scope = anyio.CancelScope()
        self._babble = False
        self._errors: Errors | None = None
        self._stale: asyncio.TimerHandle | None = None
        self._persons = 0
        self._waiting: dict[Waiting, int] = {}  # the calls in flight, the oldest first, and how many completions each has asked for
        self._asked = 0
        self._left = spec.timeout
        # A timer of its own, and not a timeout around the work: leaving a server that does not listen takes seconds more.
        self._deadline = asyncio.get_running_loop().call_later(spec.timeout, self._overdue)
        self.task = asyncio.get_running_loop().create_task(self._live())

    # --- its life ---

    async def _live(self) -> None:
        from holdfast.tools.mcp.http import Trace, trace_of_call

        trace = Trace()
        trace_of_call.set(trace)
        try:
            with self._scope:
                await self._open()
        except Exception as error:
            text, kind = ("it ended before it answered.", "network") if self.ended else self._reason(trace.failure or error, trace.status)
            self._fail(ToolError(f"MCP server {self.name!r} could not be connected to: {text}{self._last_words()}", kind))
        finally:
            self.ended = True
            self._deadline.cancel()
            if self._stale is not None:
                self._stale.cancel()
            self._fail(ToolError(f"MCP server {self.name!r} gave up its connection.", "network"))
            if self._errors is not None:
                self._errors.close()
                self._errors = None

    async def _open(self) -> None:
        hooks = self.spec.hooks
        mode = self.spec.server.mode
        # Also for 2026-07-28 it asks: without, nobody knows what the server can do, and a version that it refuses is not tried again lower.
        asks = mode in ("auto", "2026-07-28") and self.spec.server.type != "sse"
        if self.spec.server.roots and hooks.roots is None:
            self._told_folders = self._folders()
        async with contextlib.AsyncExitStack() as stack:
            client = Client(
                await self._transport(stack),
                mode="auto" if asks else "legacy",
                client_info=mcp_types.Implementation(name="holdfast", version=__version__),
                message_handler=self._heard,
                elicitation_callback=self._elicit,
                sampling_callback=self._sample if hooks.sample is not None or self.spec.server.sampling else None,
                list_roots_callback=self._roots if hooks.roots is not None or self._told_folders is not None else None,
                cache=None,
            )
            await stack.enter_async_context(client)
            if mode == "2026-07-28" and client.protocol_version not in MODERN_PROTOCOL_VERSIONS:
                wrong = f"it speaks MCP {client.protocol_version}, and its configuration says mode 2026-07-28."
                self._fail(ToolError(f"MCP server {self.name!r} could not be connected to: {wrong}", "not_found"))
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
                finally:  # also when a transport that fails throws this task out
                    self.ended = True
                    group.cancel_scope.cancel()

    async def _transport(self, stack: contextlib.AsyncExitStack) -> Any:
        server = self.spec.server
        if not isinstance(server, Http):
            directory = self.spec.stderr_dir
            self._errors = Errors(None if directory is None else os.path.join(directory, f"{self.name}.log"))
            return self._screened(stdio(server, self._errors, lambda: self._client is not None, self._lost))
        from holdfast.tools.mcp.http import http_client, sse

        auth = None if self.spec.auth is None else provider_of(server.url, self.spec.auth, self._asking)
        http = await stack.enter_async_context(http_client(server, self.spec.timeout, auth, lambda: self.ready.done()))
        if server.type == "sse":
            return self._screened(sse(http, server.url, self._lost))
        from mcp.client.streamable_http import streamable_http_client

        from holdfast.tools.mcp.streams import LONGEST_MESSAGE

        return self._screened(streamable_http_client(server.url, http_client=http, max_sse_event_size=LONGEST_MESSAGE))

    def _screened(self, transport: contextlib.AbstractAsyncContextManager[Any]) -> Screen:
        return Screen(transport, lambda: self._modern)

    def _overdue(self) -> None:
        babble = " It writes what is not JSON-RPC to its stdout." if self._babble else ""
        self._fail(ToolTimeout(f"MCP server {self.name!r} did not answer within {self.spec.timeout:g} s.{babble}{self._last_words()}"))
        self._scope.cancel()

    def _fail(self, error: ToolError) -> None:
        if not self.ready.done():
            self.ready.set_exception(error)
            self.ready.exception()  # whoever waits gets it; nobody waiting is no reason for asyncio to complain

    def _last_words(self) -> str:
        words = "" if self._errors is None else self._errors.last_words(self._redact)
        return f" Its stderr ended with: {words}" if words else ""

    def _reason(self, error: BaseException, status: int) -> tuple[str, str]:
        return reason_of(error, status, self._redact)

    def _lost(self) -> None:
        """The server closed its side: leave, so that the next call connects again. Whoever waits is told by mcp's own error."""
        self.ended = True
        self._stop.set()

    def end(self) -> None:
        """Begin to close. The task is over when the process or the connection is; a server that never answered gets no time to do so."""
        if not self.ready.done():
            self._fail(ToolError(f"MCP server {self.name!r}: the client was closed before it was connected.", "network"))
            self._scope.cancel()
        self._lost()
        self._scope.deadline = asyncio.get_running_loop().time() + _FAREWELL  # stopping a process has limits of its own

    # --- what the server says unasked ---

    async def _heard(self, message: object) -> None:
        if isinstance(message, Exception):
            self._babble = True
        elif isinstance(message, mcp_types.ToolListChangedNotification):
            self._changed()

    async def _listen(self, client: Client) -> None:
        """Since 2026-07-28 a server tells of changes only to who subscribes; we do once somebody wants to know."""
        tools = client.server_capabilities.tools
        if not self._modern or tools is None or not tools.list_changed:
            return
        await self._watched.wait()
        from mcp.client.subscriptions import SubscriptionLost

        pause, missed = _LISTEN_AGAIN, False
        while True:
            try:
                async with client.listen(tools_list_changed=True) as events:
                    if missed:
                        self._changed()  # nothing tells what happened meanwhile
                    async for _ in events:  # `_heard` is told too, and has said so
                        pause = _LISTEN_AGAIN
            except SubscriptionLost:  # listened for anew below, after a pause
                pass
            except MCPError as error:
                if error.code == mcp_types.METHOD_NOT_FOUND:
                    return
            missed = True
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LISTEN_AT_MOST)

    # --- what the server asks ---

    @contextlib.contextmanager
    def _asking(self) -> Generator[None]:
        """A person is asked: no deadline of this connection runs meanwhile."""
        loop = asyncio.get_running_loop()
        self._persons += 1
        if self._persons == 1:
            if not self.ready.done():
                self._left = self._deadline.when() - loop.time()
                self._deadline.cancel()
            for one in self._waiting:
                one.paused()
        try:
            yield
        finally:
            self._persons -= 1
            if self._persons == 0:
                if not self.ready.done():
                    self._deadline = loop.call_later(max(self._left, 0.0), self._overdue)
                for one in self._waiting:
                    one.resumed()

    def _caller(self, what: str) -> Waiting | None:
        """Whose call the server asks for. In the older era it does not say, so that all calls in flight must be one conversation's."""
        call = _calling.get()
        if call in self._waiting:  # else it began this connection, or is over
            return call
        owners = {(id(one.context.asks), id(one.context.llm)) for one in self._waiting}
        if len(owners) == 1:
            return next(iter(self._waiting))
        told = f"{len(owners)} conversations have calls in flight on this connection" if owners else "no call is in flight"
        _log.warning("MCP server %r: its %s was declined: the protocol does not say whose it is, and %s.", self.name, what, told)
        return None

    async def _elicit(self, context: Any, params: mcp_types.ElicitRequestParams) -> mcp_types.ElicitResult:
        elicit = self.spec.hooks.elicit
        if elicit is None and (caller := self._caller("question to the user")) is not None:
            elicit = caller.elicit
        with self._asking():
            return await answer_elicitation(self.name, elicit, params)

    async def _sample(
        self, context: Any, params: mcp_types.CreateMessageRequestParams
    ) -> mcp_types.CreateMessageResult | mcp_types.ErrorData:
        if self.spec.hooks.sample is not None:
            return await answer_sampling(self.name, self.spec.hooks.sample, params, lambda model, usage: None)
        caller = self._caller("request for a completion")
        if caller is None or caller.context.llm is None:
            return mcp_types.ErrorData(code=mcp_types.INVALID_REQUEST, message="There is no model here that could answer.")
        self._waiting[caller] += 1
        if self._waiting[caller] > _COMPLETIONS:
            return mcp_types.ErrorData(
                code=mcp_types.INVALID_REQUEST, message=f"A call may ask for {_COMPLETIONS} completions, not for more."
            )
        return await answer_sampling(self.name, caller.context.llm, params, caller.sampled)

    async def _roots(self, context: Any) -> mcp_types.ListRootsResult:
        roots = self.spec.hooks.roots
        if roots is None:
            call = _calling.get()
            if self._modern and call in self._waiting:  # asked for this call alone
                workdir: Any = getattr(call.context.runtime, "workdir", None)
                roots = [] if workdir is None else [workdir]
            else:
                roots = self._told_folders = self._folders() or ()
        return await answer_roots(roots)

    def folders_changed(self) -> None:
        """Tell the server to ask for its folders anew, if they are others: in the older era, for since then it asks within each call."""
        client, folders = self._client, self._folders() or ()
        if client is None or self.ended or self._modern or self._told_folders is None or [*folders] == [*self._told_folders]:
            return
        self._told_folders = folders

        async def tell() -> None:
            with contextlib.suppress(Exception):  # it went away, which the next call finds out
                await client.session.send_notification(mcp_types.RootsListChangedNotification())

        task = asyncio.get_running_loop().create_task(tell())
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    # --- what we ask ---

    @property
    def _modern(self) -> bool:
        return self._client is not None and self._client.protocol_version in MODERN_PROTOCOL_VERSIONS

    async def _list(self, client: Client) -> list[Listed]:
        found: list[Listed] = []
        left_out: dict[str, str] = {}
        cursor: str | None = None
        lasts: list[int] = []
        while True:  # a server that never ends its list meets the deadline
            page = await client.list_tools(cursor=cursor)
            tools, faults = listed(page)
            found.extend(tools)
            left_out.update(faults)
            if page.ttl_ms > 0:
                lasts.append(page.ttl_ms)
            cursor = page.next_cursor
            if not cursor:
                break
        if self._stale is not None:
            self._stale.cancel()
            self._stale = None
        if lasts and not self.ended:
            self._stale = asyncio.get_running_loop().call_later(max(min(lasts) / 1000, _SHORTEST_TTL), self._changed)
        self.left_out = left_out
        return found

    async def list(self) -> list[Listed]:
        """Ask for the tools anew. Raises `ToolError`."""
        client = self._client
        assert client is not None
        self.tools = await self._ask(lambda: self._list(client), "was not able to list its tools")
        return self.tools

    async def call(self, tool: str, arguments: dict[str, Any], waiting: Waiting) -> mcp_types.CallToolResult:
        """Call a tool. Raises `ToolError`."""
        client = self._client
        assert client is not None
        self._waiting[waiting] = 0
        if self._persons:
            waiting.paused()
        within = _calling.set(waiting)
        try:
            return await self._ask(lambda: client.call_tool(tool, arguments, progress_callback=waiting.progress), "failed the call")
        finally:
            _calling.reset(within)
            self._waiting.pop(waiting, None)

    async def greet(self) -> str:
        """Ask whether it is there; what it says it is. Raises `ToolError`."""
        client = self._client
        assert client is not None
        if self._modern:
            await self._ask(lambda: client.session.send_discover(client.protocol_version), "did not answer")
        else:
            try:
                await self._ask(client.session.send_ping, "did not answer")
            except ToolError as error:
                if error.error_type != "not_found":  # it was told that there is no such thing: it is there
                    raise
        info = client.server_info
        name = f"{info.name} {info.version}".strip() + ", " if info is not None else ""
        return f"{name}MCP {client.protocol_version}"

    async def _ask(self, ask: Callable[[], Any], what: str) -> Any:
        trace = None
        if isinstance(self.spec.server, Http):
            from holdfast.tools.mcp.http import Trace, trace_of_call

            trace = Trace()
            trace_of_call.set(trace)
        self._asked += 1
        try:
            return await ask()
        except Exception as error:
            broken = trace is not None and trace.failure is not None
            self.retired = self.retired or broken
            if self.ended or broken:
                lost = f"MCP server {self.name!r} went away during the call, whose effect may have happened; the next call connects again."
                raise ToolError(f"{lost}{self._last_words()}", "network") from None
            text, kind = self._reason(error, trace.status if trace is not None else 0)
            if trace is not None and trace.status == 404 and not self._modern:
                self.retired = True  # the server has forgotten the session; the specification asks for a new one
                kind = "network"
            raise ToolError(f"MCP server {self.name!r} {what}: {text}", kind) from None
        finally:
            self._asked -= 1
            if self.retired and not self._asked:
                self.end()


class Connection:
    """A connection that is made at the first use and again after a crash, for all who share it. On the loop thread but for `users`."""

    def __init__(self, spec: Spec, tasks: set[asyncio.Task[None]]) -> None:
        self.spec = spec
        self.users: dict[object, Callable[[], None]] = {}  # under the pool's lock: who shares it, and how to tell them of a change
        self.folders: dict[object, Folders] = {}  # likewise: where their conversations work; a user who says None has none
        self._tasks = tasks
        self._link: Link | None = None
        self._retired: list[Link] = []
        self._told: list[Listed] | None = None
        self._watched = asyncio.Event()
        self._telling = False

    def watch(self) -> None:
        """Somebody wants to know of changes."""
        self._watched.set()

    def _changed(self) -> None:
        """Tell who wants to know, on a thread of its own: what they do about it may wait for this one. One telling covers many changes."""
        if self._telling or not self._watched.is_set():
            return
        self._telling = True

        def tell() -> None:
            time.sleep(0.02)  # a server that changes twenty tools says so twenty times
            self._telling = False
            for told in list(self.users.values()):
                told()

        threading.Thread(target=tell, name="holdfast-mcp-changed", daemon=True).start()

    def _all_folders(self) -> list[str] | None:
        said = [found for folders in self.folders.values() if (found := folders()) is not None]
        return [*dict.fromkeys([folder for found in said for folder in found])] if said else None

    def folders_changed(self) -> None:
        """A user's folders are others now, or a user came or left."""
        if self._link is not None:
            self._link.folders_changed()

    async def _linked(self) -> tuple[Link, bool]:
        """The link, and whether it has been made just now."""
        link = self._link
        if link is None or link.ended or link.retired:
            self._retired = [one for one in (*self._retired, link) if one is not None and not one.task.done()]
            link = self._link = Link(self.spec, self._changed, self._watched, self._all_folders)
            self._tasks.add(link.task)
            link.task.add_done_callback(self._tasks.discard)
        if link.ready.done():
            link.ready.result()
            return link, False
        await asyncio.shield(link.ready)  # shared: one caller's cancel is not the others'
        if self._told is not None and self._told != link.tools:
            self._changed()
        self._told = link.tools
        return link, True

    async def tools(self) -> tuple[list[Listed], dict[str, str]]:
        """Ask for the tools anew. Return them, and by name the faults of those that cannot be used."""
        link, new = await self._linked()
        if not new:
            async with _within(self.spec):
                self._told = await link.list()
        return link.tools, link.left_out

    async def call(self, tool: str, arguments: dict[str, Any], waiting: Waiting) -> mcp_types.CallToolResult:
        """Call a tool, connecting first if need be."""
        link, _ = await self._linked()
        return await link.call(tool, arguments, waiting)

    async def greet(self) -> str:
        """What the server says that it is."""
        link, _ = await self._linked()
        return await link.greet()

    async def end(self) -> None:
        """Close, and wait until the process or the connection is gone."""
        links = [one for one in (*self._retired, self._link) if one is not None]
        for link in links:
            link.end()
        if links:
            await asyncio.wait([link.task for link in links])


@contextlib.asynccontextmanager
async def _within(spec: Spec) -> AsyncGenerator[None]:
    try:
        async with asyncio.timeout(spec.timeout):
            yield
    except TimeoutError:
        raise ToolTimeout(f"MCP server {spec.name!r} did not answer within {spec.timeout:g} s.") from None
