"""Entries of MCP configurations as other programs write them, in the present spelling.

Claude Desktop and Claude Code, Cursor, VS Code, Cline, Roo, Windsurf, Gemini CLI, Zed, OpenCode,
Codex and Goose share most keys of a server. `normalize_servers` renames the others. Keys without a
meaning here are ignored with one warning. A key that restricts a server, or that it cannot work
without, is refused.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from holdfast.errors import ConfigurationError
from holdfast.tools.document import did_you_mean

_log = logging.getLogger("holdfast")

# The keys around the servers: of most programs, VS Code, Zed, OpenCode, Goose and Codex.
SECTIONS = ("mcpServers", "servers", "context_servers", "mcp", "extensions", "mcp_servers")
_KEYS: Mapping[str, str] = {
    **dict.fromkeys(("transport", "transportType"), "type"),
    **dict.fromkeys(("httpUrl", "serverUrl", "uri"), "url"),
    **dict.fromkeys(("environment", "envs"), "env"),
    **dict.fromkeys(("includeTools", "enabled_tools", "available_tools"), "tools"),
    "http_headers": "headers",
    "cmd": "command",
    "startup_timeout_sec": "timeout",
    "startup_timeout_ms": "timeout",
    "tool_timeout_sec": "call_timeout",
}
_PARTS = {
    "command": {"path": "command", "args": "args", "env": "env"},
    "requestInit": {"headers": "headers"},
}
# Servers that are parts of their program.
_BUILT_IN = ("builtin", "platform", "frontend", "inline_python")
_TYPES: Mapping[str, str] = {
    "local": "stdio",
    **dict.fromkeys(("remote", "streamable", "streamable_http"), "http"),
}
_DESCRIBING = (
    *("description", "name", "title", "display_name", "category", "tags", "icon", "gallery"),
    *("version", "source", "bundled"),
)
_IGNORED = (*_DESCRIBING, "autoApprove", "alwaysAllow", "trust")
_REFUSED: Mapping[str, str] = {
    **dict.fromkeys(
        ("excludeTools", "disabledTools", "disabled_tools"),
        "name the tools that are offered in tools",
    ),
    **dict.fromkeys(
        ("bearer_token_env_var", "env_http_headers"),
        "write headers, such as {Authorization: 'Bearer ${NAME}'}",
    ),
    **dict.fromkeys(("env_vars", "env_keys"), "write env, such as {NAME: '${NAME}'}"),
    "settings": "its extension starts the server; write command and args",
    **dict.fromkeys(("envFile", "env_file"), "no file is read here; write its variables in env"),
    **dict.fromkeys(
        ("oauth", "oauthScopes", "OAuthScopes"),
        "a login is an object of the program: MCPClient(auth={id: OAuth(...)})",
    ),
}
# Seconds. Nobody waits longer for a connection, but programs that count in milliseconds write more.
_LONGEST_TIMEOUT = 3600
_ID_CHARS = re.compile(r"[^A-Za-z0-9_-]+")
_FOREIGN = r"\$?\{(?:(?:env|input):[^}]*|workspaceFolder)\}|(?<![^ ])\$[A-Z][A-Z0-9_]+\Z"
_PLACEHOLDER = re.compile(rf"{_FOREIGN}|\$\{{[A-Za-z_]\w*\}}")


class NormalizedEntry(NamedTuple):
    """An entry in the present spelling: each key with its value and the key that it had."""

    members: list[tuple[str, Any, str]]
    notes: list[str]
    """Messages about keys that are ignored or reinterpreted."""
    disabled: bool = False


def normalize_id(name: str) -> str:
    """Return a server's id with `_` in the place of characters that an id cannot have."""
    return _ID_CHARS.sub("_", name)


def normalize_entry(entry: Mapping[str, Any]) -> NormalizedEntry:
    """Return an entry in the present spelling. Raises `ConfigurationError` without a place."""
    members: list[tuple[str, Any, str]] = []
    notes: list[str] = []
    disabled = False
    if entry.get("type") in _BUILT_IN:
        return NormalizedEntry([], [], True)
    for key, value in entry.items():
        name = _KEYS.get(key, key)
        timeout = value if key == "timeout" and isinstance(value, int | float) else 0
        if name != key and name in entry:
            raise ConfigurationError(f"{key} and {name} are the same; write {name} alone.")
        if key in ("disabled", "enabled", "isActive") and isinstance(value, bool):
            disabled = disabled or value is (key == "disabled")
        elif key in _IGNORED or key.startswith(("_", "//")):
            notes += [f"{key} is ignored"] if value else []
        elif key in _REFUSED:
            if value:
                raise ConfigurationError(f"{key} is not read; {_REFUSED[key]}.")
        elif key in _PARTS and isinstance(value, Mapping):
            for part, one in cast("Mapping[str, Any]", value).items():
                if part not in _PARTS[key]:
                    raise ConfigurationError(f"{key} has {part}, which is not read.")
                members.append(("command" if part == "path" else part, one, key))
        elif key == "startup_timeout_ms" and isinstance(value, int | float):
            members.append((name, value / 1000, key))
        elif name == "type" and isinstance(value, str):
            members.append((name, _TYPES.get(value, value), key))
        elif key == "command" and isinstance(value, list) and value and "args" not in entry:
            program, *arguments = cast("list[Any]", value)
            members += [("command", program, key), ("args", arguments, key)]
        elif timeout > _LONGEST_TIMEOUT:
            members.append((name, timeout / 1000, key))
            notes.append(f"timeout {value} is read as milliseconds")
        else:
            members.append((name, cast("Any", value), key))
    return NormalizedEntry(members, notes, disabled)


def normalize_servers(config: Any) -> Any:
    """Return the servers of a configuration by id, in the present spelling. A value of another form
    is returned unchanged. Raises `ConfigurationError`, which names the server."""
    config = _inner(config)
    if not isinstance(config, Mapping):
        return config
    notes: list[str] = []
    normalized: dict[Any, Any] = {}
    for name, entry in cast("Mapping[Any, Any]", config).items():
        if not isinstance(name, str) or not isinstance(entry, Mapping):
            normalized[name] = entry
            continue
        try:
            present = normalize_entry(cast("Mapping[str, Any]", entry))
        except ConfigurationError as error:
            raise ConfigurationError(f"MCP server {name!r}: {error}") from None
        if present.disabled:
            notes.append(f"{name} is disabled, so it is left out")
            continue
        id = normalize_id(name)
        if id != name:
            notes.append(f"{name!r} is named {id!r} here")
        if id in normalized:
            raise ConfigurationError(f"MCP server {name!r}: there are two servers named {id!r}.")
        normalized[id] = {key: value for key, value, _ in present.members}
        notes += [f"{id}: {note}" for note in present.notes]
    if notes:
        _log.warning("MCP servers of another program: %s.", "; ".join(notes))
    return normalized


def _inner(config: Any) -> Any:
    """Return the mapping of ids to servers within a configuration."""
    if not isinstance(config, Mapping):
        return config
    whole = cast("Mapping[Any, Any]", config)
    section = section_of(whole)
    if section is None:
        return whole
    others = [str(key) for key in whole if key != section]
    servers = [key for key in others if _is_server(whole.get(key))]
    if servers or any(did_you_mean(key, (section,)) for key in others):
        raise ConfigurationError(
            f"MCPClient: config has {', '.join(servers or others)} beside {section}; write all"
            f" servers in {section}."
        )
    if others:
        text = "MCP servers: %s beside %s is ignored."
        _log.warning(text, ", ".join(others), section)
    return within(section, whole[section])


def section_of(whole: Mapping[Any, Any], sections: Sequence[str] = SECTIONS) -> str | None:
    """Return the key of a configuration that has the servers, None if there is none."""
    return next((key for key in sections if _is_section(key, whole)), None)


def within(section: str, inner: Any) -> Any:
    """Return the servers within a section. The settings of VS Code have them in `mcp.servers`."""
    return inner["servers"] if section == "mcp" and _is_section("servers", inner) else inner


def is_bare(whole: Mapping[Any, Any]) -> bool:
    """Return True for servers by id without a section around them."""
    return bool(whole) and all(map(_is_server, whole.values()))


def _is_section(key: str, whole: Mapping[Any, Any]) -> bool:
    """True if the key has servers. A server may have such a name itself."""
    value = whole.get(key)
    if key == "mcpServers":
        return value is not None
    if not isinstance(value, Mapping):
        return False
    inner = cast("Mapping[Any, Any]", value)
    if key == "mcp" and _is_section("servers", inner):  # the settings of VS Code
        return True
    return bool(inner) and all(isinstance(one, Mapping) for one in inner.values())


def _is_server(value: Any) -> bool:
    if not isinstance(value, Mapping):
        return False
    if "command" in value or "httpUrl" in value:
        return True
    return "url" in value and "name" not in value  # an author has both


def placeholders(texts: Iterable[str], filled: bool) -> list[str]:
    """Return the placeholders in texts, which other programs fill, each once. In a `filled` text
    `${NAME}` was escaped, and is meant."""
    pattern = _FOREIGN if filled else _PLACEHOLDER
    return list(dict.fromkeys(name for text in texts for name in re.findall(pattern, text)))
