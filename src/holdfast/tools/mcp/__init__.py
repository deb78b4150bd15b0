"""Tools of MCP servers. `MCPClient` connects to servers and makes each of their tools a `Tool`.

The mcp package implements the protocol. It is async and runs on one private thread. Nothing of
it is imported before the first connection.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from typing import Any

from holdfast.errors import ConfigurationError, ToolError
from holdfast.tools.mcp.auth import ClientCredentials, OAuth, check_auth
from holdfast.tools.mcp.config import CALL_TIMEOUT, Server, Stdio, read_servers, seconds
from holdfast.tools.mcp.hooks import Elicit, Elicitation, Hooks, Roots
from holdfast.tools.mcp.pool import MCPPool
from holdfast.tools.mcp.source import Found, MCPSource, MCPTool
from holdfast.tools.names import wire_name
from holdfast.tools.tool import Tool

__all__ = [
    "ClientCredentials",
    "Elicitation",
    "MCPClient",
    "MCPPool",
    "MCPSource",
    "MCPTool",
    "OAuth",
]

_log = logging.getLogger(__name__)


class MCPClient:
    """A client of MCP servers that offers each of their tools as a `Tool` named `server.tool`.

    Use `tools += MCPClient(config)` or `client.tools()`. The client is thread-safe and works again
    after `close`, including tools that it made before.

    The first use connects to all servers at once. If a server fails, only its own tools are
    missing: `errors` has the reason by server id, and a warning is logged. A single unusable tool
    has its reason under the tool's name. The client tries a failed server again after `close`. The
    next call restarts a server that died.

    A call honours `context.cancelled` and reports progress to `context.report_progress`.

    Keys of one server in `config`:

        command: The program of a stdio server; `args`, `env` and `cwd` go with it. The process
            inherits only HOME, LOGNAME, PATH, SHELL, TERM and USER (the mcp package's
            allow-list). Everything else that it needs, such as keys, goes into `env`.
        url: The address of a streamable HTTP server, or with `"type": "sse"` of one that speaks
            the older SSE; `headers` go with it. Proxies and credentials from the environment are
            not used. Headers and tokens go to the server's origin only; the client does not
            follow a redirect to another origin.
        trusted: True to believe the server's annotations (read_only, idempotent, ...). By
            default no call is repeated automatically.
        sampling: True to let the server ask the calling agent's model for completions, at most
            32 per call. Their usage is in the result's meta under `holdfast/sampling`. By
            default the server is not told that it may ask.
        roots: False to hide the working folders (each runtime's `workdir`) of the agent's
            conversations from the server. True by default.
        timeout: Seconds to connect and list tools, instead of the client's `timeout`.
        call_timeout: Seconds for one call, instead of the client's `call_timeout`; null for no
            limit.
        mode: `auto` asks the server. `2026-07-28` or `2025-11-25` (also called `legacy`) fixes
            the era of the protocol.
        lazy: True if a `ToolManager` lists this server's tools only when one of them is named.

    A server may send requests to the client. The conversation that made the current call answers
    them, unless `elicit`, `sample` or `roots` is given here. Each answer is computed on a thread of
    its own.

    Args:
        config: `{"mcpServers": {id: server}}` or the inner mapping; None or an empty mapping
            gives no tools.
        timeout: Seconds to connect to one server and list its tools.
        call_timeout: Seconds for one call, not counting the time in which a person is asked;
            None for no limit.
        elicit: A function that asks the user. It takes an `Elicitation` and returns the form's
            values (for a URL: True), or None to decline. If it raises, the server is told that
            there was no answer. Without `elicit` the conversation's `on_question` is asked;
            without a conversation every question is declined.
        sample: An `LLM`, or any object with `completion(messages, system=, cancelled=)`, that
            answers completion requests of every server. Without it, requests of servers with
            `sampling` go to the agent's model.
        roots: Folders, or a function that returns them, that servers are told to work in. They
            replace the conversations' own folders.
        auth: For servers over HTTP, by id: an `OAuth`, a `ClientCredentials` or an `httpx2.Auth`.
        stderr_dir: A folder in which the stderr of each stdio server is appended to `{id}.log`,
            at most 10 MB. Without it, the end of stderr is kept in a temporary file for error
            messages.
        pool: A pool that shares connections with its other clients.

    Raises `ConfigurationError`, which names the server and the wrong key.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        *,
        timeout: float = 30.0,
        call_timeout: float | None = CALL_TIMEOUT,
        elicit: Elicit | None = None,
        sample: Any = None,
        roots: Roots | None = None,
        auth: Mapping[str, Any] | None = None,
        stderr_dir: str | os.PathLike[str] | None = None,
        pool: MCPPool | None = None,
    ) -> None:
        timeout = seconds("MCPClient: timeout", timeout)
        if call_timeout is not None:
            seconds("MCPClient: call_timeout", call_timeout)
        servers = read_servers(config, call_timeout)
        hooks = Hooks(elicit, sample, roots)
        hooks.check()
        auth_by_id = dict(auth or {})
        for name, server_auth in auth_by_id.items():
            if name not in servers or isinstance(servers[name], Stdio):
                raise ConfigurationError(
                    f"MCPClient: auth has {name!r}, which is not a server with a url."
                )
            check_auth(name, server_auth)
        if stderr_dir is not None and not os.path.isdir(stderr_dir):
            raise ConfigurationError(
                f"MCPClient: stderr_dir takes a folder that exists, not {os.fspath(stderr_dir)!r}."
            )
        directory = None if stderr_dir is None else os.fspath(stderr_dir)
        if pool is not None and not isinstance(pool, MCPPool):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
            raise ConfigurationError(f"MCPClient: pool takes an MCPPool, not {pool!r}.")
        self._pool = shared = pool if pool is not None else MCPPool()

        def source(name: str, server: Server) -> MCPSource:
            def spec() -> Any:
                from holdfast.tools.mcp.link import Spec

                connect_timeout = timeout if server.timeout is None else server.timeout
                return Spec(name, server, connect_timeout, hooks, auth_by_id.get(name), directory)

            return MCPSource(name, server, shared, spec)

        self._sources = {name: source(name, server) for name, server in servers.items()}
        self.errors: dict[str, str] = {}
        self._lock = threading.Lock()  # guards the two fields below; never held during a wait
        self._tools: list[Tool] | None = None
        # One thread discovers; the others wait for this future.
        self._discovery: Future[list[Tool]] | None = None

    def sources(self) -> list[MCPSource]:
        """Return each server as a `Source` for a `ToolManager`, in the order of the config.

        The sources share this client's connections. Closing a source, or the client, closes its
        connection.
        """
        return list(self._sources.values())

    def tools(self) -> list[Tool]:
        """Return the tools of all servers that could be connected to, in the order of the
        config. The first use connects."""
        with self._lock:
            if self._tools is not None:
                return list(self._tools)
            discovery = self._discovery
            is_discoverer = discovery is None
            if discovery is None:
                discovery = self._discovery = Future()
        if is_discoverer:
            try:
                tools, errors = self._discover()
            except BaseException as error:
                with self._lock:
                    self._discovery = None
                discovery.set_exception(error)
                raise
            for error in errors.values():
                _log.warning("%s", error)
            with self._lock:
                self.errors = errors
                # After a `close` during the discovery, the next use connects again.
                if self._discovery is discovery:
                    self._tools, self._discovery = tools, None
            discovery.set_result(tools)
        return list(discovery.result())

    def __iter__(self) -> Iterator[Tool]:
        return iter(self.tools())

    def _discover(self) -> Found:
        pending: list[tuple[MCPSource, Future[Any] | ToolError]] = []
        for source in self._sources.values():
            try:
                pending.append((source, source.begin_discovery()))
            except ToolError as error:  # the connection is closing
                pending.append((source, error))
        tools: dict[str, Tool] = {}
        errors: dict[str, str] = {}
        for source, future in pending:
            try:
                if isinstance(future, ToolError):
                    raise future
                usable, unusable = source.discovered(future)
            except ToolError as error:
                errors[source.id] = str(error)
                continue
            errors.update(unusable)
            for tool in usable:
                # An agent would refuse all tools because of one duplicate name.
                if wire_name(tool.name) in tools:
                    errors[tool.name] = (
                        f"MCP server {source.id!r}: {tool.name!r} is left out: its name is taken by"
                        " another tool."
                    )
                    continue
                tools[wire_name(tool.name)] = tool
        return list(tools.values()), errors

    def close(self) -> None:
        """Close all connections and server processes at the same time, within some seconds.

        A connection of a pool stays open while another client holds it. Idempotent; the next use
        connects again.
        """
        with self._lock:
            self._tools = self._discovery = None
        self._pool.release(
            [
                lease
                for source in self._sources.values()
                if (lease := source.detach_lease()) is not None
            ]
        )

    def __enter__(self) -> MCPClient:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"MCPClient({', '.join(self._sources)})"
