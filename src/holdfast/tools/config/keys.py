"""The keys of a tool config: the one table from which it is read and from which `tools.schema.json`
is written (`python -m holdfast.tools.config.keys` prints it).
"""

from __future__ import annotations

import json
import sys
from typing import Any

from holdfast.tools.config.services import SECONDS, TARGET, a2a_agent, mcp_server
from holdfast.tools.config.shapes import (
    Anything,
    Choice,
    Either,
    Flag,
    Key,
    ListOf,
    MapOf,
    Number,
    Record,
    Text,
)
from holdfast.tools.document import Place
from holdfast.tools.hook_answers import WHERE

_SERVICE_ID = r"(?!mcpServers$)[A-Za-z0-9_-]{1,64}"
_SERVICE_WHAT = "it takes 1 to 64 letters, digits, '_' or '-'"

COUNT = Number("a whole number from 1", 1, whole=True)
TEXT = Text()
VALUE = Text(empty=True)
FOLDERS = ListOf(Text("the path of a folder"), "a list of folders")


def _some_hook(found: dict[str, Any], place: Place) -> None:
    if "command" in found and ("before" in found or "after" in found):
        raise place.error("a hook has a command, or before and after; use one hook for each.")
    if not any(name in found for name in ("before", "after", "command")):
        raise place.error(
            "a hook has before, after or both, each as 'module:qualname', or a command, a list of"
            " arguments."
        )


def _some_target(found: dict[str, Any], place: Place) -> None:
    if ("module" in found) == (":" in found["function"]):
        raise place.error(
            "it takes function: 'module:qualname', or module and function: a module's name and a"
            " name in it."
        )


_HOOK_KEYS = {
    "before": Key(
        Text("a function as 'module:qualname'", TARGET),
        "Asked before each call: before(call, context) may change its arguments or deny it.",
    ),
    "after": Key(
        Text("a function as 'module:qualname'", TARGET),
        "Told of each result: after(call, result, context) may change it.",
    ),
    "command": Key(
        ListOf(TEXT, "a list of arguments"),
        "In place of functions: a command that gets JSON and prints JSON; no shell reads it.",
    ),
    "when": Key(
        Choice(("before", "after", "both")), "When the command is asked; before, if not given."
    ),
    "timeout": Key(SECONDS, "Seconds that the command may take; 30, if not given."),
    "env": Key(
        MapOf(Text("a text", secret=True, empty=True)), "Environment variables for the command."
    ),
    "name": Key(
        TEXT,
        "Who it is in messages and the journal; the function's or the command's name, if not"
        " given.",
    ),
}
_EITHER_HOOK: dict[str, Any] = {
    "anyOf": [
        {"properties": {name: {"type": kind}}, "required": [name]}
        for name, kind in (("before", "string"), ("after", "string"), ("command", "array"))
    ],
}
_HOOK = Record("hook", "a hook of this entry's calls", _HOOK_KEYS, _some_hook, _EITHER_HOOK)
_PATTERN_HOOK = Record(
    "patternHook",
    "a hook of calls",
    {
        **_HOOK_KEYS,
        "tools": Key(
            TEXT,
            "The tools that it is for, by canonical name or pattern such as 'server.*'; all, if not"
            " given.",
        ),
    },
    _some_hook,
    _EITHER_HOOK,
)
AGENT_HOOK = Record(
    "agentHook",
    "a hook of an agent",
    {
        **_HOOK_KEYS,
        "on": Key(Choice(WHERE), "The place where it stands; tool, if not given."),
        "tools": Key(
            TEXT,
            "On tool: the tools that it is for, by canonical name or pattern such as 'server.*';"
            " all, if not given.",
        ),
    },
    _some_hook,
    _EITHER_HOOK,
)
_RESULT_LIMIT = Number("a number of characters from 200", 200, whole=True)


def _rules(what: str) -> dict[str, Key]:
    return {
        "concurrency": Key(COUNT, f"How many calls of {what} may run at once."),
        "result_limit": Key(
            _RESULT_LIMIT,
            f"Characters of a text that a call of {what} returns; a longer one goes to a file in"
            " result_dir.",
        ),
        "hooks": Key(
            ListOf(_HOOK, "a list of hooks"),
            f"What is asked before and told after each call of {what}, in this order.",
        ),
    }


_RETRY = Record(
    "retry",
    "how often a failed call is tried again",
    {
        "max_retries": Key(
            Number("a whole number from 0", 0, 1000, whole=True),
            "How often, after the first attempt.",
            required=True,
        ),
        "backoff": Key(
            Choice(("none", "fixed", "exponential")),
            "How the wait grows; exponential, if not given.",
        ),
        "delay": Key(
            Number("a number of seconds from 0"),
            "Seconds before the first repetition; 0.5, if not given.",
        ),
    },
)
_ANNOTATIONS = Record(
    "annotations",
    "what a tool does to the world; decides what may be repeated",
    {
        "read_only": Key(Flag(), "It changes nothing."),
        "destructive": Key(Flag(), "It may overwrite or delete."),
        "idempotent": Key(Flag(), "Doing it again changes nothing more."),
        "open_world": Key(Flag(), "It reaches beyond the machine."),
    },
)
_FUNCTION = Record(
    "localFunction",
    "a Python function, Tool object or Tool subclass",
    {
        "function": Key(
            Text(
                "'module:qualname', or with module a name in it",
                r"(?:[A-Za-z_][A-Za-z0-9_.]*:)?[A-Za-z_][A-Za-z0-9_.]*",
            ),
            "The function, as 'module:qualname', or its name within module. A Tool object is taken"
            " as it is, a Tool subclass is instantiated.",
            required=True,
        ),
        "module": Key(
            Text("a module's name", r"[A-Za-z_][A-Za-z0-9_.]*"),
            "The module that has it. It must be importable.",
        ),
        "name": Key(
            Text("1 to 128 letters, digits, '_', '-' or '.'", r"[A-Za-z0-9_.\-]{1,128}"),
            "The tool's name; recommended, so that renaming the function changes nothing.",
        ),
        "description": Key(VALUE, "What the model is told; the docstring, if not given."),
        "category": Key(TEXT, "A word to list tools by; general, if not given."),
        "timeout": Key(SECONDS, "Seconds that a call may take."),
        "retry": Key(_RETRY, "How often a failed call is tried again."),
        "isolation": Key(
            Choice(("process",)),
            "process: a call runs in a process of its own, which can be killed.",
        ),
        "annotations": Key(_ANNOTATIONS, "What it does to the world."),
        "parallel": Key(
            Flag(),
            "true: calls may run beside neighbouring calls that are parallel too; by default those"
            " of read-only tools do.",
        ),
        "parameters": Key(
            MapOf(Anything(), "a mapping"), "For a Tool subclass: what it is made with."
        ),
        **_rules("this tool"),
    },
    _some_target,
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
_BUILTIN = Record(
    "builtin",
    "a preset tool of the host's",
    {
        "name": Key(TEXT, "Its name among the builtins that the host hands over.", required=True),
        "parameters": Key(
            MapOf(Anything(), "a mapping"),
            "For one that is made by a function: what it is made with.",
        ),
        **_rules("this tool"),
    },
)


_MCP_SERVERS = MapOf(
    mcp_server(_rules("this server")),
    "a mapping of server ids to servers",
    _SERVICE_ID,
    _SERVICE_WHAT,
)
_A2A_AGENTS = MapOf(
    a2a_agent(_rules("this agent")), "a mapping of agent ids to agents", _SERVICE_ID, _SERVICE_WHAT
)
_PINS = Record(
    "pins",
    "which definitions of remote tools were approved",
    {
        "file": Key(
            Text("the path of a file"),
            "Where they are kept; relative to the config's folder.",
            required=True,
        ),
        "first": Key(
            Choice(("approve", "hold")),
            "What becomes of a tool that is seen for the first time; approve, if not given.",
        ),
    },
)
TOOLS = Record(
    "tools",
    "the tools of an agent",
    {
        "$schema": Key(TEXT, "For editors; not read."),
        "local_functions": Key(
            ListOf(
                Either(
                    text=Text("a function as 'module:qualname'", TARGET),
                    map=_FUNCTION,
                    what="'module:qualname' or a mapping",
                ),
                "a list of functions",
            ),
            "Python functions, Tool objects and Tool subclasses, by module and name.",
        ),
        "mcp_servers": Key(_MCP_SERVERS, "MCP servers by id; their tools are named id.tool."),
        "mcpServers": Key(_MCP_SERVERS, "The same, as other programs spell it."),
        "a2a_agents": Key(_A2A_AGENTS, "A2A agents by id; their skills are tools named id.skill."),
        "builtin": Key(
            ListOf(Either(text=TEXT, map=_BUILTIN, what="a name or a mapping"), "a list of names"),
            "Preset tools that the host hands over, by name.",
        ),
        "skills": Key(
            FOLDERS,
            "Folders of skills and microagents, those that come first before the others; relative"
            " to the config's folder.",
        ),
        "concurrency": Key(COUNT, "How many calls may run at once."),
        "result_limit": Key(
            _RESULT_LIMIT,
            "Characters of a text that a call returns; a longer one goes to a file in result_dir.",
        ),
        "result_dir": Key(
            Text("the path of a folder"),
            "Where texts over result_limit go; relative to the config's folder; .holdfast/results"
            " there, if not given.",
        ),
        "pins": Key(
            Either(
                text=Text("the path of a file"), map=_PINS, what="the path of a file or a mapping"
            ),
            "Where the approved definitions of remote tools are kept; one that changes is held back"
            " until it is approved again.",
        ),
        "hooks": Key(
            ListOf(_PATTERN_HOOK, "a list of hooks"),
            "What is asked before and told after calls, in this order.",
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
    """The whole config as a JSON Schema (draft 2020-12)."""
    defs: dict[str, Any] = {}
    body = TOOLS.body(defs)
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The tools of a Holdfast agent",
    }
    return {**head, **body, "$defs": defs}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(schema(), indent=2, ensure_ascii=False) + "\n")
