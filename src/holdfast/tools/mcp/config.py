"""The configuration of MCP servers: the usual `mcpServers` JSON, checked key by key."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any, Literal, cast
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from holdfast.errors import ConfigurationError
from holdfast.tools.mcp.secrets import MIN_PARTIAL_CHARS, url_without_secrets
from holdfast.tools.mcp.server_requests import RequestHandlers
from holdfast.tools.mcp_spellings import normalize_servers, placeholders
from holdfast.tools.service_client import check_service_id, read_entry

# Seconds. Builds and searches take minutes, but a server that never answers must not block a run
# for ever.
CALL_TIMEOUT = 600.0

Mode = Literal["auto", "legacy", "2025-11-25", "2026-07-28"]


class Stdio(msgspec.Struct, frozen=True):
    """A server that runs as a child process, over stdin and stdout. Its repr shows no secret."""

    command: str
    args: list[str] = []
    env: dict[str, str] = {}
    cwd: str | None = None
    type: Literal["stdio"] = "stdio"
    trusted: bool = False
    sampling: bool = False
    roots: bool = True
    lazy: bool = False
    tools: tuple[str, ...] | None = None
    timeout: float | None = None
    call_timeout: float | None = CALL_TIMEOUT
    mode: Mode = "auto"

    def __repr__(self) -> str:
        return f"Stdio({self.command!r})"


class Http(msgspec.Struct, frozen=True):
    """A server over streamable HTTP or the older SSE. Its repr shows no secret."""

    url: str
    headers: dict[str, str] = {}
    type: Literal["http", "streamable-http", "streamable_http", "streamableHttp", "sse"] = "http"
    trusted: bool = False
    sampling: bool = False
    roots: bool = True
    lazy: bool = False
    tools: tuple[str, ...] | None = None
    timeout: float | None = None
    call_timeout: float | None = CALL_TIMEOUT
    mode: Mode = "auto"

    def __repr__(self) -> str:
        return f"Http({url_without_secrets(self.url)!r})"


Server = Stdio | Http


class ConnectionSpec(msgspec.Struct, frozen=True):
    """The settings that distinguish one connection from another. Equal specs may share one."""

    name: str
    server: Server
    timeout: float
    handlers: RequestHandlers = RequestHandlers()
    auth: Any = None
    stderr_dir: str | None = None


def secret_values(server: Server) -> Iterator[str]:
    """Yield the values of a server's `env` and `headers` and of its URL that may be secret."""
    if isinstance(server, Http):
        with contextlib.suppress(ValueError):  # an invalid URL; connecting reports it
            parts = urlsplit(server.url)
            yield from (unquote(parts.username or ""), unquote(parts.password or ""))
            # A query may be a key without a value; then the key is the secret.
            for name, value in parse_qsl(parts.query, keep_blank_values=True):
                yield value or name
        for value in server.headers.values():
            yield value
            yield value.partition(" ")[2].strip()  # the token without its scheme
        return
    for value in server.env.values():
        yield value
        # Error messages show a text of several lines on one line, so each line counts by itself.
        lines = map(str.strip, value.splitlines())
        yield from (line for line in lines if len(line) >= MIN_PARTIAL_CHARS)


class FilledServers(dict[str, Any]):
    """Servers from a file in which `${NAME}` was filled: a remaining one was escaped."""


def open_placeholders(server: Server, filled: bool) -> list[str]:
    """Return the placeholders in the values for a server, which only other programs fill."""
    if isinstance(server, Http):
        return placeholders([server.url, *server.headers.values()], filled)
    return placeholders(server.env.values(), filled)


def read_servers(config: Any, call_timeout: float | None = CALL_TIMEOUT) -> dict[str, Server]:
    """Return the servers of a configuration, or of its inner mapping, by id. The spellings of other
    programs are converted (`normalize_servers`).

    `call_timeout` applies to servers that do not set their own. Raises `ConfigurationError`,
    which names the server and the key.
    """
    config = normalize_servers({} if config is None else config)
    if not isinstance(config, Mapping):
        hint = ""
        if isinstance(config, str | os.PathLike):
            hint = " A file is read by the caller: MCPClient(json.loads(Path(...).read_text()))."
        raise ConfigurationError(
            "MCPClient: config takes a mapping of server ids to servers, not a"
            f" {type(cast('object', config)).__name__}.{hint}"
        )
    return {
        check_service_id("MCP server", name): _read_server(name, entry, call_timeout)
        for name, entry in cast("Mapping[Any, Any]", config).items()
    }


def _read_server(name: str, entry: Any, call_timeout: float | None) -> Server:
    what = f"MCP server {name!r}"
    fields = cast("Mapping[Any, Any]", entry) if isinstance(entry, Mapping) else None
    if fields is None or ("command" in fields) == ("url" in fields):
        keys = ", ".join(map(repr, fields or ()))
        keys = repr(type(cast("object", entry)).__name__) if fields is None else keys
        raise ConfigurationError(
            f"{what} takes a mapping with either command (stdio) or url (HTTP); it has"
            f" {keys or 'nothing'}."
        )
    kind = Stdio if "command" in fields else Http
    server = kind(**read_entry(what, fields, kind, {"call_timeout": call_timeout}))
    if isinstance(server, Http):
        if not server.url.startswith(("http://", "https://")):
            raise ConfigurationError(f"{what}: url takes an http:// or https:// address.")
        if server.type == "sse" and server.mode == "2026-07-28":
            raise ConfigurationError(
                f"{what}: mode 2026-07-28 has no SSE transport; it takes type 'http'."
            )
    return server
