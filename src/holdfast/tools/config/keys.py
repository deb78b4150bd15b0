"""The key table of a tool config. The parser reads by it, and `tools.schema.json` is written
from it (`python -m holdfast.tools.config.keys` prints it).

The keys of services are derived from the structs of their clients, so that each is defined once.
"""

from __future__ import annotations

import json
import sys
import typing
from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.tools.a2a.config import RemoteAgent
from holdfast.tools.config.shapes import (
    Anything,
    Choice,
    Either,
    Flag,
    Key,
    ListOf,
    MapOf,
    Number,
    Section,
    Shape,
    Text,
)
from holdfast.tools.config.structs import COUNT, SECONDS, SECRET, keys_of
from holdfast.tools.document import SourceLocation
from holdfast.tools.hook_answers import FORMATS, HOOK_POINTS
from holdfast.tools.mcp.config import Http, Stdio

TEXT = Text()
_FILE, _FOLDER = Text("the path of a file"), Text("the path of a folder")
_NAME = r"[A-Za-z_][A-Za-z0-9_.]*"
_FUNCTION_NAME = Text("a function as 'module:qualname'", rf"{_NAME}:{_NAME}", function=True)
_PARAMETERS = MapOf(Anything(), "a mapping")
_RESULT_LIMIT = Number("a number of characters from 200", 200, whole=True)

# --- hooks ---


_HOOK_KINDS = {"before": "string", "after": "string", "command": "array", "prompt": "string"}


def _check_hook(entry: dict[str, Any], place: SourceLocation) -> None:
    kinds = (("before", "after"), ("command",), ("prompt", "agent"))
    count = sum(any(name in entry for name in names) for names in kinds)
    if count > 1:
        raise place.error(
            "a hook has a command, or before and after, or a prompt; use one hook for each."
        )
    if not count:
        raise place.error(
            "a hook has before, after or both, each as 'module:qualname', or a command, a list of"
            " arguments, or a prompt."
        )


def hook_section(name: str, what: str, **more: Key) -> Section:
    """Return the section of a hook with `more` keys."""
    keys = {
        "before": Key(_FUNCTION_NAME, "before(call, context) may change the arguments or deny."),
        "after": Key(_FUNCTION_NAME, "after(call, result, context) may change the result."),
        "command": Key(
            ListOf(TEXT, "a list of arguments"),
            "Instead of functions: a command that gets JSON and prints JSON. No shell runs it.",
        ),
        "when": Key(Choice(("before", "after", "both")), "When it runs. Default: before."),
        "format": Key(Choice(FORMATS), "The command's JSON and exit codes. Default: holdfast."),
        "matcher": Key(TEXT, "The tools, by the names and rules of another format. Default: all."),
        "prompt": Key(TEXT, "Instead of functions: the rule by which a model judges."),
        "timeout": Key(SECONDS, "Seconds for a command (30), a prompt (60) or an agent (300)."),
        "env": Key(MapOf(SECRET), "Environment variables for the command."),
        "name": Key(TEXT, "The hook's name. Default: that of the function or the command."),
        **more,
    }
    kinds = {**_HOOK_KINDS, **({"agent": "object"} if "agent" in keys else {})}
    one_of = [
        {"properties": {key: {"type": kind}}, "required": [key]} for key, kind in kinds.items()
    ]
    return Section(name, what, keys, _check_hook, {"anyOf": one_of})


_HOOKED_TOOLS = Key(
    TEXT, "The hook's tools, by canonical name or pattern such as 'server.*'. Default: all."
)
AGENT_HOOK_KEYS = {
    "on": Key(Choice(HOOK_POINTS), "The event at which the hook runs. Default: tool."),
    "tools": _HOOKED_TOOLS,
}

# --- tools ---

_RULES = {
    "concurrency": Key(COUNT, "The maximum number of its concurrent calls."),
    "result_limit": Key(
        _RESULT_LIMIT,
        "The maximum number of characters of a text that a call returns. A longer text goes to a"
        " file in result_dir.",
    ),
    "hooks": Key(
        ListOf(hook_section("hook", "a hook of this entry's calls"), "a list of hooks"),
        "Hooks that run before and after each call, in this order.",
    ),
}
_RETRY = {
    "max_retries": Key(
        Number("a whole number from 0", 0, 1000, whole=True),
        "The maximum number of retries after the first attempt.",
        required=True,
    ),
    "backoff": Key(Choice(("none", "fixed", "exponential")), "The growth of the pause."),
    "delay": Key(Number("a number of seconds from 0"), "Before the first retry. Default: 0.5."),
}
_EFFECTS = {
    "read_only": Key(Flag(), "The tool changes nothing."),
    "destructive": Key(Flag(), "The tool may overwrite or delete."),
    "idempotent": Key(Flag(), "A repeated call changes nothing more."),
    "open_world": Key(Flag(), "The tool reaches beyond the machine."),
}
_EFFECTS_WHAT = "the effects of a tool, which decide whether a call may be repeated"
_ANNOTATIONS = Section("annotations", _EFFECTS_WHAT, _EFFECTS)


def _check_target(entry: dict[str, Any], place: SourceLocation) -> None:
    if ("module" in entry) == (":" in entry["function"]):
        raise place.error(
            "it takes function: 'module:qualname', or module and function: a module's name and a"
            " name in it."
        )


_FUNCTION_KEYS = {
    "function": Key(
        Text("'module:qualname', or with module a name in it", rf"(?:{_NAME}:)?{_NAME}"),
        "The function, as 'module:qualname', or its name within module. A Tool object is used as it"
        " is; a Tool subclass is instantiated.",
        required=True,
    ),
    "module": Key(Text("a module's name", _NAME), "The function's module."),
    "name": Key(
        Text("1 to 128 letters, digits, '_', '-' or '.'", r"[A-Za-z0-9_.\-]{1,128}"),
        "The tool's name. Recommended, so that renaming the function does not rename the tool.",
    ),
    "description": Key(Text(empty=True), "The description for the model. Default: the docstring."),
    "category": Key(TEXT, "A word that groups tools in lists. Default: general."),
    "timeout": Key(SECONDS, "Seconds for one call."),
    "retry": Key(Section("retry", "the retries of a failed call", _RETRY), "After a failed call."),
    "isolation": Key(Choice(("process",)), "process: a call runs in a process of its own."),
    "annotations": Key(_ANNOTATIONS, "The effects of the tool."),
    "parallel": Key(
        Flag(), "A call may run beside parallel neighbours. Default: true for read-only tools."
    ),
    "parameters": Key(_PARAMETERS, "The arguments of a Tool subclass's constructor."),
    "config": Key(
        _PARAMETERS,
        "Settings: arguments of the function that the model is not shown, or of the Tool subclass's"
        " constructor. A setting that it does not take is ignored.",
    ),
    **_RULES,
}
_WITH_MODULE = {
    "properties": {"module": {"type": "string"}, "function": {"pattern": r"^[^:]*$|\$\{"}},
    "required": ["module"],
}
_WITHOUT_MODULE = {"properties": {"module": {"type": "null"}, "function": {"pattern": r":|\$\{"}}}
_FUNCTION = Section(
    "localFunction",
    "a Python function, Tool object or Tool subclass",
    _FUNCTION_KEYS,
    _check_target,
    {"anyOf": [_WITHOUT_MODULE, _WITH_MODULE]},
)
_BUILTIN_KEYS = {
    "name": Key(TEXT, "Its name among the builtins that the host passes.", required=True),
    "parameters": Key(_PARAMETERS, "The arguments of the function that makes the tool."),
    **_RULES,
}

# --- services ---

_PORT = r"(?::(?:[0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]))?"
_ORIGIN = rf"https?://(?:\[[0-9A-Fa-f:]+\]|[^\s/?#@:\[\]\\]+){_PORT}"
_ASCII = Text("printable ASCII on one line", r"[ -~]*", secret=True, empty=True)
_URL = Text("an http:// or https:// address", r"https?://\S*", secret=True, url=True)
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
    "sampling": "True to let the server ask the calling agent's model. Default: false.",
    "roots": "False to hide the folders of the agent's runtimes from the server. Default: true.",
    "tools": "Names or patterns (read_*) of the tools that are offered; null for all.",
    "lazy": "True to list the tools only when one of them is named or searched for.",
    "timeout": "Seconds for connecting and listing the tools.",
    "call_timeout": "Seconds for one call; null for no limit.",
    "mode": "The protocol's version; auto asks the server.",
}


def _keys(kind: type[Any], own: Mapping[str, Shape] = {}) -> dict[str, Key]:
    return {
        name: msgspec.structs.replace(key, description=_DESCRIPTIONS[name])
        for name, key in keys_of(kind, own).items()
    }


_STDIO, _HTTP = _keys(Stdio), _keys(Http, {"url": _URL})
_TYPES = {  # of the transport, by the key that the server has
    "command": typing.get_args(typing.get_type_hints(Stdio)["type"]),
    "url": typing.get_args(typing.get_type_hints(Http)["type"]),
}
_EXCLUDED = {
    "command": [key for key in _HTTP if key not in _STDIO],
    "url": [key for key in _STDIO if key not in _HTTP],
}


def _check_server(entry: dict[str, Any], place: SourceLocation) -> None:
    if ("command" in entry) == ("url" in entry):
        raise place.error("a server takes either command (stdio) or url (HTTP).")
    own = "command" if "command" in entry else "url"
    for key in _EXCLUDED[own]:
        if entry.get(key) is not None:
            raise place.at(key).error(f"a server with {own} takes no {key}.")
    if "type" in entry and entry["type"] not in _TYPES[own]:
        raise place.at("type").error(
            f"a server with {own} is of type {' or '.join(map(repr, _TYPES[own]))}, not"
            f" {entry['type']!r}."
        )
    if entry.get("type") == "sse" and entry.get("mode") == "2026-07-28":
        raise place.at("mode").error("protocol 2026-07-28 has no SSE transport; write type: http.")


def _server_variant(own: str) -> dict[str, Any]:
    properties: dict[str, Any] = {key: {"type": "null"} for key in _EXCLUDED[own]}
    types = {"anyOf": [{"enum": [*_TYPES[own], None]}, {"$ref": "#/$defs/variable"}]}
    return {"properties": {**properties, own: {"type": "string"}, "type": types}, "required": [own]}


_TYPE = Key(Choice((*_TYPES["command"], *_TYPES["url"])), _DESCRIPTIONS["type"])
_SERVER_KEYS = {
    name: msgspec.structs.replace(key, required=False)
    for name, key in {**_STDIO, **_HTTP, "type": _TYPE}.items()
}
_MODERN_SSE = {
    "properties": {"type": {"const": "sse"}, "mode": {"const": "2026-07-28"}},
    "required": ["type", "mode"],
}
_SERVER = Section(
    "mcpServer",
    "an MCP server, as in the usual mcpServers JSON",
    {**_SERVER_KEYS, **_RULES},
    _check_server,
    {"anyOf": [_server_variant("command"), _server_variant("url")], "not": _MODERN_SSE},
)


def _check_agent(entry: dict[str, Any], place: SourceLocation) -> None:
    if entry.get("token") and any(
        name.lower() == "authorization" for name in entry.get("headers", {})
    ):
        raise place.at("headers").error("give token or an Authorization header, not both.")


_AGENT_SHAPES: Mapping[str, Shape] = {
    "url": Text(
        "an http:// or https:// address without user, password, query and fragment",
        rf"{_ORIGIN}(?:/[^\s?#]*)?",
        secret=True,
    ),
    "token": _ASCII,
    "headers": MapOf(
        _ASCII, "a mapping of texts to texts", r"[ -~]*", "the name of a header is printable ASCII"
    ),
    "origins": ListOf(
        Text("an address such as 'https://host:8443'", rf"{_ORIGIN}(?:/\S*)?", secret=True),
        "a list of addresses",
    ),
}
_NOT_AUTHORIZATION = {"not": {"pattern": "^[Aa][Uu][Tt][Hh][Oo][Rr][Ii][Zz][Aa][Tt][Ii][Oo][Nn]$"}}
_AUTHORIZATION = {
    "type": "object",
    "minProperties": 1,
    "not": {"propertyNames": _NOT_AUTHORIZATION},
}
_TOKEN_AND_HEADER = {
    "properties": {"token": {"type": "string", "minLength": 1}, "headers": _AUTHORIZATION},
    "required": ["token", "headers"],
}
_AGENT = Section(
    "a2aAgent",
    "an A2A agent",
    {**_keys(RemoteAgent, _AGENT_SHAPES), **_RULES},
    _check_agent,
    {"not": _TOKEN_AND_HEADER},
)


def _services(entry: Section, what: str) -> MapOf:
    rule = "use 1 to 64 letters, digits, '_' or '-'"
    return MapOf(entry, what, r"(?!mcpServers$)[A-Za-z0-9_-]{1,64}", rule)


# --- the config ---

_FUNCTIONS = Either(text=_FUNCTION_NAME, map=_FUNCTION, what="'module:qualname' or a mapping")
_BUILTIN = Section("builtin", "a preset tool of the host", _BUILTIN_KEYS)
_MCP_SERVERS = _services(_SERVER, "a mapping of server ids to servers")
_PINS_KEYS = {
    "file": Key(_FILE, "The file that keeps them, relative to the config's folder.", required=True),
    "first": Key(Choice(("approve", "hold")), "What becomes of a new tool. Default: approve."),
}
_PINS = Section("pins", "the approved definitions of remote tools", _PINS_KEYS)
_KEYS = {
    "$schema": Key(TEXT, "For editors; ignored."),
    "local_functions": Key(
        ListOf(_FUNCTIONS, "a list of functions"),
        "Python functions, Tool objects and Tool subclasses, by module and name.",
    ),
    "mcp_servers": Key(_MCP_SERVERS, "MCP servers by id; their tools are named id.tool."),
    "mcpServers": Key(_MCP_SERVERS, "The same as mcp_servers, in the spelling of others."),
    "a2a_agents": Key(
        _services(_AGENT, "a mapping of agent ids to agents"),
        "A2A agents by id; their skills are tools named id.skill.",
    ),
    "builtin": Key(
        ListOf(Either(text=TEXT, map=_BUILTIN, what="a name or a mapping"), "a list of names"),
        "Preset tools of the host, by name.",
    ),
    "skills": Key(
        ListOf(_FOLDER, "a list of folders"),
        "Folders of skills and microagents, relative to the config's folder. An earlier folder"
        " takes precedence.",
    ),
    "concurrency": Key(COUNT, "The maximum number of concurrent calls."),
    "result_limit": _RULES["result_limit"],
    "result_dir": Key(
        _FOLDER,
        "The folder for texts over result_limit, relative to the config's folder. Default:"
        " .holdfast/results.",
    ),
    "pins": Key(
        Either(text=_FILE, map=_PINS, what="the path of a file or a mapping"),
        "The file of the approved definitions of remote tools. A tool whose definition changes is"
        " unavailable until it is approved again.",
    ),
    "hooks": Key(
        ListOf(
            hook_section("patternHook", "a hook of calls", tools=_HOOKED_TOOLS), "a list of hooks"
        ),
        "Hooks that run before and after calls, in this order.",
    ),
}
_TWO_SPELLINGS = {
    "properties": {"mcp_servers": {"type": "object"}, "mcpServers": {"type": "object"}},
    "required": ["mcp_servers", "mcpServers"],
}
TOOLS = Section("tools", "the tools of an agent", _KEYS, together={"not": _TWO_SPELLINGS})


def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the whole config."""
    defs: dict[str, Any] = {}
    body = TOOLS.body(defs)
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The tools of a Holdfast agent",
    }
    return {**head, **body, "$defs": defs}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(schema(), indent=2, ensure_ascii=False) + "\n")
