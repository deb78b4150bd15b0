"""Tools of MCP servers. `MCPClient` connects to servers and makes each of their tools a `Tool`.

The mcp package implements the protocol. The package is async, runs on one private thread, and is
imported at the first connection.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

from holdfast.errors import ConfigurationError
from holdfast.tools.arguments import wrong
from holdfast.tools.mcp.auth import ClientCredentials, OAuth, check_auth
from holdfast.tools.mcp.config import (
    CALL_TIMEOUT,
    ConnectionSpec,
    FilledServers,
    Server,
    Stdio,
    open_placeholders,
    read_servers,
)
from holdfast.tools.mcp.pool import MCPPool
from holdfast.tools.mcp.server_requests import Elicit, Elicitation, RequestHandlers, Roots
from holdfast.tools.mcp.source import MCPSource, MCPTool
from holdfast.tools.service_client import ServiceClient, seconds

_log = logging.getLogger("holdfast")

__all__ = [
    "ClientCredentials",
    "Elicitation",
    "MCPClient",
    "MCPPool",
    "MCPSource",
    "MCPTool",
    "OAuth",
]


class MCPClient(ServiceClient[MCPSource]):
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
        sampling: True to let the server ask the calling agent's model for completions, at most 32
            per call. Their usage is in the result's meta under `holdfast/sampling`. By default the
            client does not announce sampling.
        roots: False to hide the working folders (each runtime's `workdir`) of the agent's
            conversations from the server. True by default.
        timeout: Seconds to connect and list tools, instead of the client's `timeout`.
        call_timeout: Seconds for one call, instead of the client's `call_timeout`; null for no
            limit.
        mode: `auto` asks the server. `2026-07-28` or `2025-11-25` (also called `legacy`) fixes
            the era of the protocol.
        tools: Names or patterns (`read_*`) of the server's tools that are offered; without it all
            are. The agent has no other tool of the server, whatever the server lists later.
        lazy: True if a `ToolManager` lists this server's tools only when one of them is named.

    A server may send requests to the client. The conversation that made the current call answers
    them, unless `elicit`, `sample` or `roots` is given here. Each answer is computed on its own
    thread.

    Args:
        config: `{"mcpServers": {id: server}}` or the inner mapping; None or an empty mapping
            gives no tools.
        timeout: Seconds to connect to one server and list its tools.
        call_timeout: Seconds for one call, not counting the time in which a person is asked;
            None for no limit.
        elicit: A function that asks the user: takes an `Elicitation`, returns the form's values
            (for a URL: True), or None to decline. If it raises, the client reports to the server
            that there was no answer. Without `elicit` the conversation's `on_question` is asked;
            without a conversation every question is declined.
        sample: An `LLM`, or any object with `completion(messages, system=, cancelled=)`, that
            answers completion requests of every server. Without it, requests of servers with
            `sampling` go to the agent's model.
        roots: Folders, or a function that returns them, that the client names to servers, in place
            of the conversations' own folders.
        auth: For servers over HTTP, by id: an `OAuth`, a `ClientCredentials` or an `httpx2.Auth`.
        stderr_dir: A folder in which the stderr of each stdio server is appended to `{id}.log`,
            at most 10 MB. Without it, the end of stderr is kept in a temporary file for error
            messages.
        pool: A pool that shares connections with its other clients.

    Raises `ConfigurationError`, which names the server and the wrong key.
    """

    label = MCPSource.label

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
        for name, server in servers.items():
            if placeholders := open_placeholders(server, isinstance(config, FilledServers)):
                what = "nothing fills %s here; give the configuration with its value"
                _log.warning(f"MCP server %r: {what}.", name, ", ".join(placeholders))
        handlers = RequestHandlers(elicit, sample, roots)
        handlers.check()
        auth_by_id = dict(auth or {})
        for name, server_auth in auth_by_id.items():
            if name not in servers or isinstance(servers[name], Stdio):
                raise ConfigurationError(
                    f"MCPClient: auth has {name!r}, which is not a server with a url."
                )
            check_auth(name, server_auth)
        if stderr_dir is not None and not os.path.isdir(stderr_dir):
            raise wrong("MCPClient: stderr_dir", "a folder that exists", os.fspath(stderr_dir))
        directory = None if stderr_dir is None else os.fspath(stderr_dir)
        if pool is not None and not isinstance(pool, MCPPool):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
            raise wrong("MCPClient: pool", "an MCPPool", pool)
        self._pool = pool if pool is not None else MCPPool()

        def source(name: str, server: Server) -> MCPSource:
            connect_timeout = timeout if server.timeout is None else server.timeout
            auth = auth_by_id.get(name)
            spec = ConnectionSpec(name, server, connect_timeout, handlers, auth, directory)
            return MCPSource(spec, self._pool)

        super().__init__({name: source(name, server) for name, server in servers.items()})

    def _disconnect(self) -> None:
        leases = [source.detach_lease() for source in self.sources()]
        self._pool.release([lease for lease in leases if lease is not None])
