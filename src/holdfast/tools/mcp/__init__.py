"""Tools of MCP servers: `MCPClient` connects to them and makes each of their tools a `Tool`.

The protocol is the mcp package's, which is async; it lives on one private thread. Nothing of it is imported before the first connection.
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

__all__ = ["ClientCredentials", "Elicitation", "MCPClient", "MCPPool", "MCPSource", "MCPTool", "OAuth"]

_log = logging.getLogger(__name__)


class MCPClient:
    """The tools of MCP servers, each as `server.tool`: `tools += MCPClient(config)`, or `client.tools()`. Thread-safe.

    `config` is the usual `{"mcpServers": {id: server}}` or its inner mapping; None or an empty one gives no tools. A server is
    `{"command", "args", "env", "cwd"}` (stdio) or `{"url", "headers"}` (streamable HTTP, or with `"type": "sse"` the older SSE). Both take

    - `trusted`: whether its annotations (read_only, idempotent, ...) are believed; without, none of its calls is repeated unasked
    - `sampling`: whether the model of the agent that calls it answers its requests for completions, at most 32 for each call; what they took
      is in the result's meta under `holdfast/sampling`. Without it, it is not told that it may ask
    - `roots`: whether it is told the folders in which the agent's conversations work (their runtimes' `workdir`); true, if not given
    - `timeout`, `call_timeout`: in place of the client's; `call_timeout` null: no limit
    - `mode`: `auto` (asks), or the protocol's era: `2026-07-28`, `2025-11-25` (also called `legacy`)
    - `lazy`: for a `ToolManager`, which then asks for its tools only when somebody names it

    The first use connects to all servers at once, each within `timeout` seconds; that includes listing its tools. A server that fails
    harms only itself: `errors` then says why, by server id (or tool name, for a tool that cannot be used), and a warning is logged; it is
    tried again after `close`. A call takes at most `call_timeout` seconds (600; None: no limit), not counting the time in which a person is
    asked; it heeds `context.cancelled` and reports progress to `context.report_progress`. A server that died is started again by the next
    call. Works again after `close`, tools that were made before included.

    What servers may ask is answered by the conversation whose call it is, or by what is given here, each on a thread of its own:

    - `elicit(Elicitation)` asks the user: it returns the form's values (for an address: True), or None to decline. If it raises, the server is
      told that there was no answer. Without it, the conversation's `on_question` is asked, and without a conversation everything is declined.
    - `sample`, an `LLM` or what else has `completion(messages, system=, cancelled=)`, answers requests for completions of every server; without
      it those of servers with `sampling` go to the agent's model.
    - `roots`, folders or a function that returns them, are what servers are told to work in, in place of the conversations' own.

    `auth` gives servers over HTTP, by id, an `OAuth`, a `ClientCredentials` or an `httpx2.Auth`. Headers and tokens go to the server's origin
    alone: a redirect to another is not followed. `stderr_dir` is a folder in which each stdio server's stderr is appended to `{id}.log`, at
    most 10 MB; without, its end is kept in a temporary file for error messages. `pool` shares connections with other clients of the pool.

    A stdio server inherits HOME, LOGNAME, PATH, SHELL, TERM and USER, by the mcp package's allow-list, and nothing else of this
    process's environment: what it needs (keys, above all) stands in `env`. HTTP takes no proxy or credential from the environment either.

    Raises `ConfigurationError` naming the server and the key that does not fit.
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
        for name, given in (auth or {}).items():
            if name not in servers or isinstance(servers[name], Stdio):
                raise ConfigurationError(f"MCPClient: auth has {name!r}, which is no server with a url.")
            check_auth(name, given)
        if stderr_dir is not None and not os.path.isdir(stderr_dir):
            raise ConfigurationError(f"MCPClient: stderr_dir takes a folder that exists, not {os.fspath(stderr_dir)!r}.")
        directory = None if stderr_dir is None else os.fspath(stderr_dir)
        if pool is not None and not isinstance(pool, MCPPool):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
            raise ConfigurationError(f"MCPClient: pool takes an MCPPool, not {pool!r}.")
        self._pool = shared = pool if pool is not None else MCPPool()
        given_auth = dict(auth or {})

        def source(name: str, server: Server) -> MCPSource:
            def spec() -> Any:
                from holdfast.tools.mcp.link import Spec

                within = timeout if server.timeout is None else server.timeout
                return Spec(name, server, within, hooks, given_auth.get(name), directory)

            return MCPSource(name, server, shared, spec)

        self._sources = {name: source(name, server) for name, server in servers.items()}
        self.errors: dict[str, str] = {}
        self._lock = threading.Lock()  # for the two below; held while nothing waits
        self._tools: list[Tool] | None = None
        self._discovery: Future[list[Tool]] | None = None  # one thread discovers, the others wait for it

    def sources(self) -> list[MCPSource]:
        """The servers, each as a `Source` for a `ToolManager`, in the order of the config. They share this client's connections, and
        closing one of them, or the client, closes those."""
        return list(self._sources.values())

    def tools(self) -> list[Tool]:
        """The tools of all servers that could be connected to, in the order of the config. Connects at the first use."""
        with self._lock:
            if self._tools is not None:
                return list(self._tools)
            discovery = self._discovery
            mine = discovery is None
            if discovery is None:
                discovery = self._discovery = Future()
        if mine:
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
                if self._discovery is discovery:  # else it was closed meanwhile, and the next use connects again
                    self._tools, self._discovery = tools, None
            discovery.set_result(tools)
        return list(discovery.result())

    def __iter__(self) -> Iterator[Tool]:
        return iter(self.tools())

    def _discover(self) -> Found:
        begun: list[tuple[MCPSource, Future[Any] | ToolError]] = []
        for source in self._sources.values():
            try:
                begun.append((source, source.begin()))
            except ToolError as error:  # it is being closed
                begun.append((source, error))
        tools: dict[str, Tool] = {}
        errors: dict[str, str] = {}
        for source, future in begun:
            try:
                if isinstance(future, ToolError):
                    raise future
                found, unusable = source.found(future)
            except ToolError as error:
                errors[source.id] = str(error)
                continue
            errors.update(unusable)
            for tool in found:
                if wire_name(tool.name) in tools:  # an agent would refuse all of them for the sake of this one
                    errors[tool.name] = f"MCP server {source.id!r}: {tool.name!r} is left out: its name is taken by another tool."
                    continue
                tools[wire_name(tool.name)] = tool
        return list(tools.values()), errors

    def close(self) -> None:
        """End all connections and server processes, at once and within some seconds; of a pool, those that nobody else holds. Idempotent;
        the next use connects again."""
        with self._lock:
            self._tools = self._discovery = None
        self._pool.release([lease for source in self._sources.values() if (lease := source.let_go()) is not None])

    def __enter__(self) -> MCPClient:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"MCPClient({', '.join(self._sources)})"
