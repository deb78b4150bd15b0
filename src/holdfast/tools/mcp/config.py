"""What a configuration says of MCP servers: the usual `mcpServers` JSON, checked key by key."""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Mapping
from typing import Any, Literal, cast

import msgspec

from holdfast.errors import ConfigurationError
from holdfast.tools.mcp.secrets import bare_url

CALL_TIMEOUT = 600.0  # seconds; builds and searches take minutes, and a server that never answers must not hold a run for ever

_SERVER_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")  # no dot: it separates server and tool in a tool's name

Mode = Literal["auto", "legacy", "2025-11-25", "2026-07-28"]


class Stdio(msgspec.Struct, frozen=True):
    """A server that is a process of ours, spoken to over its stdin and stdout. Its repr shows no secret."""

    command: str
    args: list[str] = []
    env: dict[str, str] = {}
    cwd: str | None = None
    type: Literal["stdio"] = "stdio"
    trusted: bool = False
    sampling: bool = False
    roots: bool = True
    lazy: bool = False
    timeout: float | None = None
    call_timeout: float | None = CALL_TIMEOUT
    mode: Mode = "auto"

    def __repr__(self) -> str:
        return f"Stdio({self.command!r})"


class Http(msgspec.Struct, frozen=True):
    """A server at an address: streamable HTTP, or the older SSE. Its repr shows no secret."""

    url: str
    headers: dict[str, str] = {}
    type: Literal["http", "streamable-http", "streamable_http", "streamableHttp", "sse"] = "http"
    trusted: bool = False
    sampling: bool = False
    roots: bool = True
    lazy: bool = False
    timeout: float | None = None
    call_timeout: float | None = CALL_TIMEOUT
    mode: Mode = "auto"

    def __repr__(self) -> str:
        return f"Http({bare_url(self.url)!r})"


Server = Stdio | Http


def read_servers(config: Any, call_timeout: float | None = CALL_TIMEOUT) -> dict[str, Server]:
    """Return the servers of a configuration, or of its inner mapping, by id. Raises `ConfigurationError` naming the server and the key.

    `call_timeout` is for servers that do not say their own.
    """
    config = {} if config is None else config
    if isinstance(config, Mapping) and "mcpServers" in config:
        others = [str(key) for key in cast("Mapping[Any, Any]", config) if key != "mcpServers"]
        if others:
            raise ConfigurationError(f"MCPClient: config has {', '.join(others)} beside mcpServers; it takes mcpServers alone.")
        config = cast("Mapping[Any, Any]", config)["mcpServers"]
    if not isinstance(config, Mapping):
        file = isinstance(config, str | os.PathLike)
        hint = " A file is read by the caller: MCPClient(json.loads(Path(...).read_text()))." if file else ""
        raise ConfigurationError(f"MCPClient: config takes a mapping of server ids to servers, not a {type(config).__name__}.{hint}")
    return {_id(name): _server(name, given, call_timeout) for name, given in cast("Mapping[Any, Any]", config).items()}


def _id(name: Any) -> str:
    if not isinstance(name, str) or not _SERVER_ID.fullmatch(name):
        raise ConfigurationError(f"MCP server {name!r}: an id takes 1 to 64 letters, digits, '_' or '-'.")
    return name


def _server(name: str, given: Any, call_timeout: float | None) -> Server:
    if not isinstance(given, Mapping) or ("command" in given) == ("url" in given):
        keys = ", ".join(map(repr, cast("Mapping[Any, Any]", given))) if isinstance(given, Mapping) else repr(type(given).__name__)
        raise ConfigurationError(
            f"MCP server {name!r} takes a mapping with either command (stdio) or url (HTTP); it has {keys or 'nothing'}."
        )
    kind = Stdio if "command" in given else Http
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    values: dict[str, Any] = {"call_timeout": call_timeout}
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
        if key in ("timeout", "call_timeout") and values[key] is not None:
            seconds(f"MCP server {name!r}: {key}", values[key])
    server = kind(**values)
    if isinstance(server, Http):
        if not server.url.startswith(("http://", "https://")):
            raise ConfigurationError(f"MCP server {name!r}: url takes an http:// or https:// address.")
        if server.type == "sse" and server.mode == "2026-07-28":
            raise ConfigurationError(f"MCP server {name!r}: mode 2026-07-28 has no SSE transport; it takes type 'http'.")
    return server


def seconds(name: str, value: Any) -> float:
    """`value`, if it is a number of seconds above 0. Raises `ConfigurationError` beginning with `name`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ConfigurationError(f"{name} takes a number of seconds above 0, not {value!r}.")
    return value
