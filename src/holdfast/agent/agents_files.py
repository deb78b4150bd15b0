"""Sub-agents in files: Markdown with settings in the front matter and the system prompt as body.

    ---
    name: researcher
    description: Finds things out in the code and says where they stand.
    tools: [read_file, grep, glob]
    model: inherit
    limits: {steps: 30}
    ---
    You find things out. Answer with paths and line numbers.

Files of Claude Code (`.claude/agents`) are read unchanged: `tools` may be a text with commas,
and its tool names are mapped. A tool that a file allows for some calls only, as in `Bash(git
diff:*)`, is left out: a tool is available as a whole or not at all. A key without a meaning here is
ignored with a warning, unless it looks like a misspelt one.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Any, Literal, cast

from holdfast.agent.limits import Limits
from holdfast.content import Data
from holdfast.errors import ConfigurationError
from holdfast.tools.document import Map, Seq, SourceLocation, did_you_mean, plain
from holdfast.tools.skills_files import lenient_front_matter, text_below, with_home

_log = logging.getLogger("holdfast")

NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
"""The pattern of a valid name for a delegate or a handoff target."""

PLACES = (".agents/agents", ".holdfast/agents", ".claude/agents")
"""The folders of a repository that hold sub-agents, in the order in which they are read."""

_KEYS = ("name", "description", "tools", "model", "limits", "delegates", "isolation")
_CLAUDE_KEYS = ("disallowedTools", "maxTurns")
# Other spellings of keys that restrict an agent: without them it would have too many rights.
_SPELLINGS = {
    **dict.fromkeys(("allowed-tools", "allowedTools", "allowed_tools"), "tools"),
    **dict.fromkeys(("disallowed-tools", "disallowed_tools"), "disallowedTools"),
    **dict.fromkeys(("max-turns", "max_turns"), "maxTurns"),
}
_IGNORED_KEY = re.compile(
    "color|mode|permissionMode|skills|hooks|mcpServers|memory|background|effort"
)
_LIMITS = ("steps", "tokens", "cost", "seconds")
# The last four are aliases of Claude Code, not names of models.
_INHERIT = ("", "inherit", "default", "sonnet", "opus", "haiku", "fable")

_COMMA = re.compile(r",(?![^(]*\))")  # a comma that is not within brackets

_NOT_IN_NAMES = re.compile(r"[.\s]+")  # of names elsewhere; a '-' stands in their place

# Tool names of Claude Code and the names of the tools here. An owner has one kind of editor.
EDITORS = ("edit_file", "apply_patch", "str_replace_based_edit_tool")
_CLAUDE_TOOLS = {
    "Bash": ("terminal", "terminal_input"),
    "BashOutput": ("terminal_input",),
    "Edit": EDITORS,
    "Glob": ("glob",),
    "Grep": ("grep",),
    "LS": ("glob",),
    "MultiEdit": EDITORS,
    "Read": ("read_file",),
    "TodoWrite": ("plan",),
    "Write": ("write_file",),
}
# Further tools that do what a tool of Claude Code does, and go with it if it is disallowed.
_ALSO_WITHOUT = {
    "Bash": ("terminal_background", "terminal_collect"),
    "Write": ("apply_patch", "str_replace_based_edit_tool"),
}


class SubAgent(Data, frozen=True):
    """An agent that another agent, its owner, makes with its own tools and model.

    Attributes:
        name: The name.
        description: The purpose, which the owner's model is shown.
        prompt: The system prompt.
        tools: Names or patterns (`git.*`) of the owner's tools; ("*",) for all of them, () for
            none.
        without: Names or patterns of tools to leave out.
        model: A model that the owner's API key can use; "" for the owner's model.
        limits: Limits of one run; None for the defaults.
        delegates: True if the agent may delegate to the owner's delegates.
        isolation: The folder in which it works: a git worktree or a copy of its own; None for what
            its owner decides.
        path: The path of the file; "" for none.
    """

    name: str
    description: str = ""
    prompt: str = ""
    tools: tuple[str, ...] = ("*",)
    without: tuple[str, ...] = ()
    model: str = ""
    limits: Limits | None = None
    delegates: bool = False
    path: str = ""
    isolation: Literal["worktree", "copy"] | None = None


def load_sub_agents(folder: str | os.PathLike[str]) -> dict[str, SubAgent]:
    """Return the sub-agents of a repository, or of a folder that directly contains `.md` files, by
    name.

    The Markdown files of `.agents/agents/`, `.holdfast/agents/` and `.claude/agents/` are read;
    the first of a name counts. A file that cannot be read, or that is a link out of `folder`, is
    left out with a warning in the log. Raises `ConfigurationError` if the folder does not exist.
    """
    root = Path(with_home(folder)).resolve()
    if not root.is_dir():
        raise ConfigurationError(f"load_sub_agents takes a folder; there is none at {root}.")
    agents: dict[str, SubAgent] = {}
    places = [root / place for place in PLACES if (root / place).is_dir()] or [root]
    files = [path for place in places for path in sorted(place.glob("*.md"))]
    for path in [path for path in files if path.stem.lower() != "readme"]:
        try:
            if root not in path.resolve().parents:
                raise ValueError(f"it is a link to {path.resolve()}, outside of {root}")
            agent = read_sub_agent(path)
            if same := agents.get(agent.name):
                raise ValueError(f"{same.path} has the same name, {agent.name!r}.")
            agents[agent.name] = agent
        except (OSError, ValueError) as error:
            _log.warning("The sub-agent %s was left out: %s", path, error)
    return agents


def read_sub_agent(path: str | os.PathLike[str]) -> SubAgent:
    """Read one file.

    Raises `ConfigurationError` (a `ValueError`) that names the invalid part, and `OSError`.
    """
    path = Path(with_home(path))
    place = SourceLocation(str(path))
    try:
        problems: list[str] = []
        text = text_below(path.parent, path.name, follow=True)
        head, body = lenient_front_matter(text, problems)
    except ConfigurationError:
        raise
    except ValueError as error:
        raise place.error(f"{error}.") from None
    except RecursionError:
        raise place.error("its front matter is nested too deep.") from None
    for problem in problems:
        _log.warning("%s: %s", path, problem)
    guarded = "calls of a sub-agent are guarded like those of the agent that it works for."
    ignored: list[str] = []
    for key, value, at in head.members():
        if (canonical := _SPELLINGS.get(key)) is not None:
            if canonical in head:
                raise at.error(f"it is {canonical} in another spelling; write {canonical} alone.")
            head.put(canonical, value, at)
        if _IGNORED_KEY.fullmatch(key):
            _log.warning("%s: %s is ignored: %s", path, key, guarded)
        elif key not in (*_KEYS, *_CLAUDE_KEYS, *_SPELLINGS):
            if hint := did_you_mean(key, (*_KEYS, *_CLAUDE_KEYS)):
                raise place.at(key).error(
                    f"unknown key.{hint} A sub-agent's front matter has: {', '.join(_KEYS)}."
                )
            ignored.append(key)
    if ignored:
        what = "ignored, because a sub-agent has no such setting here"
        _log.warning("%s: %s: %s.", path, ", ".join(ignored), what)
    if not body.strip():
        raise place.error("it has no text below its front matter; that is the system prompt.")
    name = _NOT_IN_NAMES.sub("-", _text(head, "name", place) or path.stem)
    if not NAME_PATTERN.fullmatch(name):
        raise place.at("name").error(
            "a name has letters (a to z), digits, - and _, at most 64, and begins with a letter"
            f" or digit, not {name!r}."
        )
    model = _text(head, "model", place)
    delegates = plain(head.get("delegates", "false"))
    if not isinstance(delegates, bool):
        raise place.at("delegates").error(
            "it takes true or false: whether this agent may delegate too."
        )
    isolation = _text(head, "isolation", place)
    if isolation not in ("", "worktree", "copy"):
        raise place.at("isolation").error(f"it takes worktree or copy, not {isolation!r}.")
    return SubAgent(
        name,
        _text(head, "description", place),
        body.strip(),
        _tools(head, "tools", place, ("*",)),
        _tools(head, "disallowedTools", place, ()),
        "" if model in _INHERIT else model,
        _limits(head, place),
        delegates,
        str(path),
        cast("Any", isolation or None),
    )


def _text(head: Map, key: str, place: SourceLocation) -> str:
    value = head.get(key, "")
    if not isinstance(value, str):
        raise place.at(key).error("it takes a text.")
    return " ".join(value.split())


def _tools(head: Map, key: str, place: SourceLocation, default: tuple[str, ...]) -> tuple[str, ...]:
    """Return the tool names of a key.

    A tool that is named for some of its calls only cannot be restricted to these calls here. Such a
    tool is left out of `tools`; in `disallowedTools` it is excluded for all calls.
    """
    value = head.get(key)
    if value is None:
        return default
    if isinstance(value, str):
        value = [] if value.strip() in ("", "none") else _COMMA.split(value)
    elif not isinstance(value, Seq):
        raise place.at(key).error(
            "it takes a list of names of tools, '*' for all of them, or none."
        )
    tools: list[str] = []
    for one in cast("list[Any]", value):
        if not isinstance(one, str) or not one.strip():
            raise place.at(key).error(f"it takes names of tools, not {one!r}.")
        name, bracket, calls = one.strip().partition("(")
        name = name.strip()
        if bracket and calls.rstrip(") ") not in ("", "*"):
            what = f"It is left out; give {name} to have it whole"
            what = what if key == "tools" else "The sub-agent goes without it"
            some = f"names some calls of {name}, which cannot be allowed separately"
            _log.warning("%s: %s %s. %s.", place.source, one.strip(), some, what)
            if key == "tools":
                continue
        server = name.removeprefix("mcp__").replace("__", ".", 1)
        tools += _CLAUDE_TOOLS.get(name, (server if name.startswith("mcp__") else name,))
        if key == "disallowedTools":
            tools += _ALSO_WITHOUT.get(name, ())
    return tuple(dict.fromkeys(tools))


def _limits(head: Map, place: SourceLocation) -> Limits | None:
    value, at = head.get("limits"), place.at("limits")
    if value is None or value == "":
        turns = head.get("maxTurns")
        if turns is None:
            return None
        value = Map(place, [("steps", turns, place.at("maxTurns"))])
    if not isinstance(value, Map):
        raise at.error(f"it takes a mapping of {', '.join(_LIMITS)} to numbers.")
    for key in value:
        if key not in _LIMITS:
            raise at.at(key).error(f"unknown key. Limits are: {', '.join(_LIMITS)}.")
    try:
        return Limits(
            **{key: plain(one) if isinstance(one, str) else one for key, one in value.items()}
        )
    except (ConfigurationError, TypeError) as error:
        raise at.error(str(error)) from None
