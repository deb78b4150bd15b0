"""The keys of MCP servers and A2A agents in a config, derived from the structs of their clients,
so that each key is defined once."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.tools.a2a.config import RemoteAgent
from holdfast.tools.config.shapes import Choice, Key, ListOf, MapOf, Section, Shape, Text
from holdfast.tools.config.structs import keys_of
from holdfast.tools.document import SourceLocation
from holdfast.tools.mcp.config import Http, Stdio

_PORT = r"(?::(?:[0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]))?"
_ORIGIN = rf"https?://(?:\[[0-9A-Fa-f:]+\]|[^\s/?#@:\[\]\\]+){_PORT}"
_ASCII = Text("printable ASCII on one line", r"[ -~]*", secret=True, empty=True)

_DESCRIPTIONS: Mapping[str, str] = {
    "command": "The program of a stdio server.",
    "args": "Its arguments.",
    "env": "Environment variables of the process.",
    "cwd": "Its working directory, relative to the config's folder.",
    "url": "The address of a server over HTTP, or of an agent or its card.",
    "headers": "Headers of every request.",
    "token": "A bearer token, sent only to the agent's own host.",
    "origins": "Other hosts that get the token and the headers.",
    "type": "The transport. By default it follows from command or url.",
    "trusted": "True to believe the server's annotations (read-only, idempotent, ...).",
    "sampling": (
        "True to let the server ask the calling agent's model for completions. Default: false."
    ),
    "roots": "False to hide the folders of the agent's runtimes from the server. Default: true.",
    "lazy": "True to list the tools only when one of them is named or searched for.",
    "timeout": "Seconds for connecting and listing the tools.",
    "call_timeout": "Seconds for one call; null for no limit.",
    "mode": "The protocol's version; auto asks the server.",
    "auth": "An object that authenticates, as 'module:qualname'.",
}


def _keys(kind: type[Any], own: Mapping[str, Shape] = {}) -> dict[str, Key]:
    return {
        name: msgspec.structs.replace(key, description=_DESCRIPTIONS.get(name, key.description))
        for name, key in keys_of(kind, own).items()
    }


def _types(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    return next(
        typing.get_args(field.type)
        for field in msgspec.structs.fields(kind)
        if field.name == "type"
    )


# --- MCP ---

_URL = Text("an http:// or https:// address", r"https?://\S*", secret=True, url=True)
_STDIO = _keys(Stdio)
_HTTP = _keys(Http, {"url": _URL})
_TYPES = {"command": _types(Stdio), "url": _types(Http)}
_ONLY_STDIO = tuple(key for key in _STDIO if key not in _HTTP)
_ONLY_HTTP = tuple(key for key in _HTTP if key not in _STDIO)


def _one_transport(entry: dict[str, Any], place: SourceLocation) -> None:
    if ("command" in entry) == ("url" in entry):
        raise place.error("a server takes either command (stdio) or url (HTTP).")
    own = "command" if "command" in entry else "url"
    for key in _ONLY_HTTP if own == "command" else _ONLY_STDIO:
        if entry.get(key) is not None:
            raise place.at(key).error(f"a server with {own} takes no {key}.")
    if "type" in entry and entry["type"] not in _TYPES[own]:
        raise place.at("type").error(
            f"a server with {own} is of type {' or '.join(map(repr, _TYPES[own]))}, not"
            f" {entry['type']!r}."
        )
    if entry.get("type") == "sse" and entry.get("mode") == "2026-07-28":
        raise place.at("mode").error("protocol 2026-07-28 has no SSE transport; write type: http.")


def _variant(own: str, others: tuple[str, ...]) -> dict[str, Any]:
    properties: dict[str, Any] = {key: {"type": "null"} for key in others}
    types = {"anyOf": [{"enum": [*_TYPES[own], None]}, {"$ref": "#/$defs/variable"}]}
    return {"properties": {**properties, own: {"type": "string"}, "type": types}, "required": [own]}


def mcp_server(rules: Mapping[str, Key]) -> Section:
    """Return the shape of an MCP server's entry: the client's keys, and `rules`, the manager's
    keys."""
    keys = {
        **_STDIO,
        **_HTTP,
        "type": Key(Choice((*_TYPES["command"], *_TYPES["url"])), _DESCRIPTIONS["type"]),
    }
    optional = {name: msgspec.structs.replace(key, required=False) for name, key in keys.items()}
    sse_in_modern_mode = {
        "properties": {"type": {"const": "sse"}, "mode": {"const": "2026-07-28"}},
        "required": ["type", "mode"],
    }
    together = {
        "anyOf": [_variant("command", _ONLY_HTTP), _variant("url", _ONLY_STDIO)],
        "not": sse_in_modern_mode,
    }
    return Section(
        "mcpServer",
        "an MCP server, as in the usual mcpServers JSON",
        {**optional, **rules},
        _one_transport,
        together,
    )


# --- A2A ---


def _one_credential(entry: dict[str, Any], place: SourceLocation) -> None:
    if entry.get("token") and any(
        name.lower() == "authorization" for name in entry.get("headers", {})
    ):
        raise place.at("headers").error("give token or an Authorization header, not both.")


def a2a_agent(rules: Mapping[str, Key]) -> Section:
    """Return the shape of an A2A agent's entry: the client's keys, and `rules`, the manager's
    keys."""
    keys = _keys(
        RemoteAgent,
        {
            "url": Text(
                "an http:// or https:// address without user, password, query and fragment",
                rf"{_ORIGIN}(?:/[^\s?#]*)?",
                secret=True,
            ),
            "token": _ASCII,
            "headers": MapOf(
                _ASCII,
                "a mapping of texts to texts",
                r"[ -~]*",
                "the name of a header is printable ASCII",
            ),
            "origins": ListOf(
                Text("an address such as 'https://host:8443'", rf"{_ORIGIN}(?:/\S*)?", secret=True),
                "a list of addresses",
            ),
        },
    )
    with_authorization_header = {
        "type": "object",
        "minProperties": 1,
        "not": {
            "propertyNames": {
                "not": {"pattern": "^[Aa][Uu][Tt][Hh][Oo][Rr][Ii][Zz][Aa][Tt][Ii][Oo][Nn]$"}
            }
        },
    }
    both = {
        "properties": {
            "token": {"type": "string", "minLength": 1},
            "headers": with_authorization_header,
        },
        "required": ["token", "headers"],
    }
    return Section("a2aAgent", "an A2A agent", {**keys, **rules}, _one_credential, {"not": both})
