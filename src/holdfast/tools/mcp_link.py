"""Connections to MCP servers: their configuration, and one owner task for each on the loop thread."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import logging
import os
import re
import tempfile
from collections.abc import AsyncGenerator, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal, TextIO, cast

import msgspec

from holdfast.errors import ConfigurationError, ToolError, ToolTimeout
from holdfast.tools.loop import LoopThread

if TYPE_CHECKING:
    import asyncio

    import mcp_types
    from mcp import Client
    from mcp.client._transport import TransportStreams

_log = logging.getLogger(__name__)
_SERVER_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")  # no dot: it separates server and tool in a tool's name
# The HTTP statuses that answered the requests of one call. The transport folds them all into one JSON-RPC error, but it sends each
# request in its caller's context, and so does its hook run.
statuses_of_call: ContextVar[list[int]] = ContextVar("holdfast_mcp_statuses")


# --- configuration -------------------------------------------------------------------------------


class Stdio(msgspec.Struct, frozen=True):
    command: str
    args: list[str] = []
    env: dict[str, str] = {}
    cwd: str | None = None
    type: Literal["stdio"] = "stdio"
    trusted: bool = False


class Http(msgspec.Struct, frozen=True):
    url: str
    headers: dict[str, str] = {}
    type: Literal["http", "streamable-http", "streamable_http", "streamableHttp"] = "http"
    trusted: bool = False


def read_servers(config: Any) -> dict[str, Stdio | Http]:
    config = {} if config is None else config
    if isinstance(config, Mapping) and "mcpServers" in config:
        others = [str(key) for key in cast("Mapping[Any, Any]", config) if key != "mcpServers"]
        if others:
            raise ConfigurationError(f"MCPClient: config has {', '.join(others)} beside mcpServers; it takes mcpServers alone.")
        config = cast("Mapping[Any, Any]", config)["mcpServers"]
    if not isinstance(config, Mapping):
        raise ConfigurationError(f"MCPClient: config takes a mapping of server ids to servers, not {type(config).__name__}.")
    return {_id(name): _server(name, given) for name, given in cast("Mapping[Any, Any]", config).items()}


def _id(name: Any) -> str:
    if not isinstance(name, str) or not _SERVER_ID.fullmatch(name):
        raise ConfigurationError(f"MCP server {name!r}: an id takes 1 to 64 letters, digits, '_' or '-'.")
    return name


def _server(name: str, given: Any) -> Stdio | Http:
    if not isinstance(given, Mapping) or ("command" in given) == ("url" in given):
        keys = ", ".join(map(repr, cast("Mapping[Any, Any]", given))) if isinstance(given, Mapping) else repr(type(given).__name__)
        raise ConfigurationError(
            f"MCP server {name!r} takes a mapping with either command (stdio) or url (HTTP); it has {keys or 'nothing'}."
        )
    kind = Stdio if "command" in given else Http
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    values: dict[str, Any] = {}
    for key, value in cast("Mapping[Any, Any]", given).items():
        if key not in fields:
            near = difflib.get_close_matches(str(key), fields, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ConfigurationError(f"MCP server {name!r} has an unknown key {key!r}.{hint} It takes: {', '.join(fields)}.")
        plain = os.fspath(cast("os.PathLike[str]", value)) if isinstance(value, os.PathLike) else value
        try:
            values[key] = msgspec.convert(plain, fields[key].type)
        except msgspec.ValidationError as error:  # it names types and never shows the value, which may be secret
            raise ConfigurationError(f"MCP server {name!r}: {key}: {error}.") from None
    if kind is Http and not values["url"].startswith(("http://", "https://")):
        raise ConfigurationError(f"MCP server {name!r}: url takes an http:// or https:// address.")
    return kind(**values)


def seconds(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ConfigurationError(f"MCPClient: {name} takes a number of seconds above 0, not {value!r}.")
    return value


# --- one connection (all of it on the loop thread) -----------------------------------------------


class Link:
    """One connection's life, in one task: opened, listed, kept until `end` or until the server is gone. Never reopened."""

    def __init__(self, name: str, server: Stdio | Http, timeout: float) -> None:
        import asyncio

        import anyio

        self.name = name
        self.server = server
        self.timeout = timeout
        self.ended = False
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.tools: list[mcp_types.Tool] = []
        self._client: Client | None = None
        self._stop = asyncio.Event()
        self._scope = anyio.CancelScope()
        self._babble = False
        self._errors: TextIO | None = None
        self.task = asyncio.get_running_loop().create_task(self._live())

    async def _live(self) -> None:
        import asyncio

        statuses: list[int] = []
        statuses_of_call.set(statuses)
        # A timer of its own, and not a timeout around the work: leaving a server that does not listen takes seconds more.
        deadline = asyncio.get_running_loop().call_later(self.timeout, self._overdue)
        try:
            with self._scope:
                await self._open(deadline)
        except Exception as error:
            text, kind = ("it ended before it answered.", "network") if self.ended else reason_of(error, statuses)
            self._fail(ToolError(f"MCP server {self.name!r} could not be connected to: {text}{self._last_words()}", kind))
        finally:
            self.ended = True
            deadline.cancel()
            self._fail(ToolError(f"MCP server {self.name!r} gave up its connection.", "network"))
            if self._errors is not None:
                self._errors.close()
                self._errors = None

    async def _open(self, deadline: asyncio.TimerHandle) -> None:
        import mcp_types
        from mcp import Client

        from holdfast import __version__

        async with contextlib.AsyncExitStack() as stack:
            transport: Any = await self._http(stack, self.server) if isinstance(self.server, Http) else self._stdio(self.server)
            info = mcp_types.Implementation(name="holdfast", version=__version__)
            client = await stack.enter_async_context(Client(transport, client_info=info, message_handler=self._heard, cache=None))
            page = await client.list_tools()
            self.tools.extend(page.tools)
            while page.next_cursor:  # a server that never ends its list meets the deadline
                page = await client.list_tools(cursor=page.next_cursor)
                self.tools.extend(page.tools)
            self._client = client
            if not self.ready.done():
                self.ready.set_result(None)
                deadline.cancel()
            try:
                await self._stop.wait()
            finally:  # also when a transport that fails throws this task out
                self.ended = True

    @contextlib.asynccontextmanager
    async def _stdio(self, server: Stdio) -> AsyncGenerator[TransportStreams]:
        import anyio
        from mcp import StdioServerParameters, stdio_client
        from mcp.shared.message import SessionMessage

        # "replace": with mcp's "strict", one byte that is not UTF-8 would end the connection.
        parameters = StdioServerParameters(
            command=server.command, args=server.args, env=server.env, cwd=server.cwd, encoding_error_handler="replace"
        )
        # Unnamed, so that not even a kill -9 leaves it behind; a real file, because the child writes to it by itself.
        self._errors = tempfile.TemporaryFile("w+", prefix="holdfast-mcp-")  # noqa: SIM115 - read after the connection failed
        async with stdio_client(parameters, errlog=self._errors) as (read, write), anyio.create_task_group() as group:
            send, receive = anyio.create_memory_object_stream[SessionMessage | Exception](0)

            async def relay() -> None:
                # For its end: mcp leaves a connection to a dead process open and says so to nobody.
                async with send:
                    with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                        async for message in read:
                            await send.send(message)
                    self._lost()  # before `send` closes, so that who then wakes knows why

            group.start_soon(relay)
            yield receive, write
            group.cancel_scope.cancel()

    async def _http(self, stack: contextlib.AsyncExitStack, server: Http) -> Any:
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        http = httpx2.AsyncClient(
            headers=server.headers,
            timeout=httpx2.Timeout(self.timeout, read=None),  # a tool may think as long as `call_timeout` lets it
            limits=httpx2.Limits(),  # unlimited: a call that waits too long for one of 100 connections would end all the others
            trust_env=False,
            event_hooks={"response": [_note_status]},
        )
        return streamable_http_client(server.url, http_client=await stack.enter_async_context(http))

    async def _heard(self, message: object) -> None:
        self._babble = self._babble or isinstance(message, Exception)

    def _overdue(self) -> None:
        babble = " It writes what is not JSON-RPC to its stdout." if self._babble else ""
        self._fail(ToolTimeout(f"MCP server {self.name!r} did not answer within {self.timeout:g} s.{babble}{self._last_words()}"))
        self._scope.cancel()

    def _fail(self, error: ToolError) -> None:
        if not self.ready.done():
            self.ready.set_exception(error)
            self.ready.exception()  # whoever waits gets it; nobody waiting is no reason for asyncio to complain

    def _last_words(self) -> str:
        if self._errors is None:
            return ""
        # pread: the child shares the file's position. 4000 bytes hold the end of a traceback.
        descriptor = self._errors.fileno()
        text = os.pread(descriptor, 4000, max(0, os.fstat(descriptor).st_size - 4000)).decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return f" Its stderr ended with: {clip(' / '.join(lines[-3:]))}" if lines else ""

    def _lost(self) -> None:
        """The server closed its side: leave, so that the next call connects again. Whoever waits is told by mcp's own error."""
        self.ended = True
        self._stop.set()

    def end(self) -> None:
        """Begin to close. The task is over when the process or the connection is."""
        import asyncio

        if self._client is None:
            self._fail(ToolError(f"MCP server {self.name!r}: the client was closed before it was connected.", "network"))
            self._scope.cancel()
        self._lost()
        # Room for HTTP's farewell (DELETE). Stopping a process has mcp's own limits, 6.5 s in all, which a deadline does not cut short.
        self._scope.deadline = asyncio.get_running_loop().time() + 3.0

    async def call(self, tool: str, arguments: dict[str, Any]) -> mcp_types.CallToolResult:
        statuses: list[int] = []
        statuses_of_call.set(statuses)
        assert self._client is not None
        try:
            return await self._client.call_tool(tool, arguments)
        except Exception as error:
            if self.ended:
                lost = f"MCP server {self.name!r} went away during the call, whose effect may have happened; the next call connects again."
                raise ToolError(f"{lost}{self._last_words()}", "network") from None
            text, kind = reason_of(error, statuses)
            if isinstance(self.server, Http) and statuses[-1:] == [404]:
                self.end()  # the server has forgotten the session; the specification asks for a new one
                kind = "network"
            raise ToolError(f"MCP server {self.name!r} failed the call: {text}", kind) from None


async def _note_status(response: Any) -> None:
    statuses_of_call.get([]).append(response.status_code)


_KIND_OF_STATUS = {
    401: "authentication",
    403: "authentication",
    408: "timeout",
    429: "rate_limit",
    502: "network",
    503: "network",
    504: "timeout",
}


def reason_of(error: BaseException, statuses: list[int]) -> tuple[str, str]:
    """What went wrong, in a few words, and its error_type: by HTTP status, JSON-RPC code or exception type."""
    import httpx2
    from mcp import MCPError
    from mcp_types import CONNECTION_CLOSED, INVALID_PARAMS, METHOD_NOT_FOUND, REQUEST_TIMEOUT

    found = _leaves(error)
    # The cause rather than its echo: "connection closed" is what the session says of a transport that failed.
    leaf = next((one for one in found if not isinstance(one, MCPError)), found[0])
    status = statuses[-1] if statuses else 0
    kind = "internal"
    if isinstance(leaf, MCPError):
        text = clip(leaf.message)
        codes = {INVALID_PARAMS: "validation", METHOD_NOT_FOUND: "not_found", REQUEST_TIMEOUT: "timeout", CONNECTION_CLOSED: "network"}
        kind = codes.get(leaf.code, kind)
    else:
        text = clip(f"{type(leaf).__name__}: {leaf}")
        if isinstance(leaf, FileNotFoundError):
            kind = "not_found"
        elif isinstance(leaf, TimeoutError | httpx2.TimeoutException):
            kind = "timeout"
        elif isinstance(leaf, OSError | httpx2.TransportError):
            kind = "network"
    if status >= 400:
        text = f"HTTP {status}: {text}"
    return text + ("" if text.endswith(".") else "."), _KIND_OF_STATUS.get(status, kind)


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for one in cast("BaseExceptionGroup[Any]", error).exceptions for leaf in _leaves(one)]
    return [error]


def clip(text: str, limit: int = 400) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else line[:limit] + "..."


class Hub:
    """The connections of one client, from its first use to its close, and the thread on which they live. It does not know the client."""

    def __init__(self, servers: Mapping[str, Stdio | Http], timeout: float) -> None:
        importlib.import_module("mcp")  # 0.5 s, here and not on the loop, where it would eat the deadlines

        self._servers = servers
        self._timeout = timeout
        self._links: dict[str, Link] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.thread = LoopThread("holdfast-mcp", self._end)

    async def _connected(self, name: str) -> Link:
        import asyncio

        link = self._links.get(name)
        if link is None or link.ended:
            link = self._links[name] = Link(name, self._servers[name], self._timeout)
            self._tasks.add(link.task)
            link.task.add_done_callback(self._tasks.discard)
        await asyncio.shield(link.ready)  # shared: one caller's cancel is not the others'
        return link

    async def discover(self) -> list[list[mcp_types.Tool] | BaseException]:
        """Connect to all at once; for each server its tools, or why there are none."""
        import asyncio

        found = await asyncio.gather(*[self._connected(name) for name in self._servers], return_exceptions=True)
        return [one.tools if isinstance(one, Link) else one for one in found]

    async def call(self, name: str, tool: str, arguments: dict[str, Any]) -> mcp_types.CallToolResult:
        return await (await self._connected(name)).call(tool, arguments)

    async def _end(self) -> None:
        import asyncio

        for link in self._links.values():
            link.end()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=9.0)  # above mcp's own 6.5 s, below what `LoopThread.close` waits
