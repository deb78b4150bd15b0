"""The key table of a tool config. The parser reads by it, and `tools.schema.json` is written
from it (`python -m holdfast.tools.config.keys` prints it)."""

from __future__ import annotations

import json
import sys
from typing import Any

from holdfast.tools.config.services import a2a_agent, mcp_server
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
    Target,
    Text,
)
from holdfast.tools.config.structs import COUNT, SECONDS, SECRET
from holdfast.tools.document import SourceLocation
from holdfast.tools.hook_answers import HOOK_POINTS

_SERVICE_ID = r"(?!mcpServers$)[A-Za-z0-9_-]{1,64}"
_SERVICE_ID_RULE = "use 1 to 64 letters, digits, '_' or '-'"

TEXT = Text()
VALUE = Text(empty=True)
FOLDERS = ListOf(Text("the path of a folder"), "a list of folders")


def _check_hook(entry: dict[str, Any], place: SourceLocation) -> None:
    if "command" in entry and ("before" in entry or "after" in entry):
        raise place.error("a hook has a command, or before and after; use one hook for each.")
    if not any(name in entry for name in ("before", "after", "command")):
        raise place.error(
            "a hook has before, after or both, each as 'module:qualname', or a command, a list of"
            " arguments."
        )


def _check_target(entry: dict[str, Any], place: SourceLocation) -> None:
    if ("module" in entry) == (":" in entry["function"]):
        raise place.error(
            "it takes function: 'module:qualname', or module and function: a module's name and a"
            " name in it."
        )


_HOOK_KEYS = {
    "before": Key(
        Target("a function as 'module:qualname'"),
        "Runs before each call: before(call, context) may change the arguments or deny the call.",
    ),
    "after": Key(
        Target("a function as 'module:qualname'"),
        "Runs after each call: after(call, result, context) may change the result.",
    ),
    "command": Key(
        ListOf(TEXT, "a list of arguments"),
        "Instead of functions: a command that gets JSON and prints JSON. No shell runs it.",
    ),
    "when": Key(
        Choice(("before", "after", "both")), "The time at which the command runs. Default: before."
    ),
    "timeout": Key(SECONDS, "Seconds for the command. Default: 30."),
    "env": Key(MapOf(SECRET), "Environment variables for the command."),
    "name": Key(
        TEXT,
        "The hook's name in messages and the journal. Default: the name of the function or the"
        " command.",
    ),
}
_EITHER_HOOK: dict[str, Any] = {
    "anyOf": [
        {"properties": {name: {"type": kind}}, "required": [name]}
        for name, kind in (("before", "string"), ("after", "string"), ("command", "array"))
    ]
}
_HOOK = Section("hook", "a hook of this entry's calls", _HOOK_KEYS, _check_hook, _EITHER_HOOK)
_PATTERN_HOOK = Section(
    "patternHook",
    "a hook of calls",
    {
        **_HOOK_KEYS,
        "tools": Key(
            TEXT,
            "The tools of the hook, by canonical name or pattern such as 'server.*'. Default: all.",
        ),
    },
    _check_hook,
    _EITHER_HOOK,
)
AGENT_HOOK = Section(
    "agentHook",
    "a hook of an agent",
    {
        **_HOOK_KEYS,
        "on": Key(Choice(HOOK_POINTS), "The event at which the hook runs. Default: tool."),
        "tools": Key(
            TEXT,
            "With on: tool, the tools of the hook, by canonical name or pattern such as 'server.*'."
            " Default: all.",
        ),
    },
    _check_hook,
    _EITHER_HOOK,
)
_RESULT_LIMIT = Number("a number of characters from 200", 200, whole=True)


def _rules(what: str) -> dict[str, Key]:
    return {
        "concurrency": Key(COUNT, f"The maximum number of concurrent calls of {what}."),
        "result_limit": Key(
            _RESULT_LIMIT,
            f"The maximum number of characters of a text that a call of {what} returns. A longer"
            " text goes to a file in result_dir.",
        ),
        "hooks": Key(
            ListOf(_HOOK, "a list of hooks"),
            f"Hooks that run before and after each call of {what}, in this order.",
        ),
    }


_RETRY = Section(
    "retry",
    "the retries of a failed call",
    {
        "max_retries": Key(
            Number("a whole number from 0", 0, 1000, whole=True),
            "The maximum number of retries after the first attempt.",
            required=True,
        ),
        "backoff": Key(
            Choice(("none", "fixed", "exponential")),
            "The growth of the pause between attempts. Default: exponential.",
        ),
        "delay": Key(
            Number("a number of seconds from 0"), "Seconds before the first retry. Default: 0.5."
        ),
    },
)
_ANNOTATIONS = Section(
    "annotations",
    "the effects of a tool, which decide whether a call may be repeated",
    {
        "read_only": Key(Flag(), "The tool changes nothing."),
        "destructive": Key(Flag(), "The tool may overwrite or delete."),
        "idempotent": Key(Flag(), "A repeated call changes nothing more."),
        "open_world": Key(Flag(), "The tool reaches beyond the machine."),
    },
)
_FUNCTION = Section(
    "localFunction",
    "a Python function, Tool object or Tool subclass",
    {
        "function": Key(
            Text(
                "'module:qualname', or with module a name in it",
                r"(?:[A-Za-z_][A-Za-z0-9_.]*:)?[A-Za-z_][A-Za-z0-9_.]*",
            ),
            "The function, as 'module:qualname', or its name within module. A Tool object is used"
            " as it is; a Tool subclass is instantiated.",
            required=True,
        ),
        "module": Key(
            Text("a module's name", r"[A-Za-z_][A-Za-z0-9_.]*"),
            "The module of the function. It must be importable.",
        ),
        "name": Key(
            Text("1 to 128 letters, digits, '_', '-' or '.'", r"[A-Za-z0-9_.\-]{1,128}"),
            "The tool's name. Recommended, so that renaming the function does not rename the tool.",
        ),
        "description": Key(VALUE, "The description for the model. Default: the docstring."),
        "category": Key(TEXT, "A word that groups tools in lists. Default: general."),
        "timeout": Key(SECONDS, "Seconds for one call."),
        "retry": Key(_RETRY, "The retries of a failed call."),
        "isolation": Key(
            Choice(("process",)),
            "process: a call runs in a process of its own, which can be killed.",
        ),
        "annotations": Key(_ANNOTATIONS, "The effects of the tool."),
        "parallel": Key(
            Flag(),
            "true: a call may run beside neighbouring calls that are parallel too. Default: true"
            " for read-only tools.",
        ),
        "parameters": Key(
            MapOf(Anything(), "a mapping"), "The arguments of a Tool subclass's constructor."
        ),
        "config": Key(
            MapOf(Anything(), "a mapping"),
            "Settings: arguments of the function that the model is not shown, or of the Tool"
            " subclass's constructor. A setting that it does not take is ignored.",
        ),
        **_rules("this tool"),
    },
    _check_target,
    {
        "anyOf": [
            {"properties": {"module": {"type": "null"}, "function": {"pattern": r":|\$\{"}}},
            {
                "properties": {
                    "module": {"type": "string"},
                    "function": {"pattern": r"^[^:]*$|\$\{"},
                },
                "required": ["module"],
            },
        ]
    },
)
_BUILTIN = Section(
    "builtin",
    "a preset tool of the host",
    {
        "name": Key(TEXT, "Its name among the builtins that the host passes.", required=True),
        "parameters": Key(
            MapOf(Anything(), "a mapping"), "The arguments of the function that makes the tool."
        ),
        **_rules("this tool"),
    },
)


_MCP_SERVERS = MapOf(
    mcp_server(_rules("this server")),
    "a mapping of server ids to servers",
    _SERVICE_ID,
    _SERVICE_ID_RULE,
)
_A2A_AGENTS = MapOf(
    a2a_agent(_rules("this agent")),
    "a mapping of agent ids to agents",
    _SERVICE_ID,
    _SERVICE_ID_RULE,
)
_PINS = Section(
    "pins",
    "the approved definitions of remote tools",
    {
        "file": Key(
            Text("the path of a file"),
            "The file that keeps them, relative to the config's folder.",
            required=True,
        ),
        "first": Key(
            Choice(("approve", "hold")), "The treatment of a tool that is new. Default: approve."
        ),
    },
)
TOOLS = Section(
    "tools",
    "the tools of an agent",
    {
        "$schema": Key(TEXT, "For editors; ignored."),
        "local_functions": Key(
            ListOf(
                Either(
                    text=Target("a function as 'module:qualname'"),
                    map=_FUNCTION,
                    what="'module:qualname' or a mapping",
                ),
                "a list of functions",
            ),
            "Python functions, Tool objects and Tool subclasses, by module and name.",
        ),
        "mcp_servers": Key(_MCP_SERVERS, "MCP servers by id; their tools are named id.tool."),
        "mcpServers": Key(_MCP_SERVERS, "The same as mcp_servers, in the spelling of others."),
        "a2a_agents": Key(_A2A_AGENTS, "A2A agents by id; their skills are tools named id.skill."),
        "builtin": Key(
            ListOf(Either(text=TEXT, map=_BUILTIN, what="a name or a mapping"), "a list of names"),
            "Preset tools of the host, by name.",
        ),
        "skills": Key(
            FOLDERS,
            "Folders of skills and microagents, relative to the config's folder. An earlier folder"
            " takes precedence.",
        ),
        "concurrency": Key(COUNT, "The maximum number of concurrent calls."),
        "result_limit": Key(
            _RESULT_LIMIT,
            "The maximum number of characters of a text that a call returns. A longer text goes to"
            " a file in result_dir.",
        ),
        "result_dir": Key(
            Text("the path of a folder"),
            "The folder for texts over result_limit, relative to the config's folder. Default:"
            " .holdfast/results.",
        ),
        "pins": Key(
            Either(
                text=Text("the path of a file"), map=_PINS, what="the path of a file or a mapping"
            ),
            "The file of the approved definitions of remote tools. A tool whose definition changes"
            " is unavailable until it is approved again.",
        ),
        "hooks": Key(
            ListOf(_PATTERN_HOOK, "a list of hooks"),
            "Hooks that run before and after calls, in this order.",
        ),
    },
    together={
        "not": {
            "properties": {"mcp_servers": {"type": "object"}, "mcpServers": {"type": "object"}},
            "required": ["mcp_servers", "mcpServers"],
        }
    },
)


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
