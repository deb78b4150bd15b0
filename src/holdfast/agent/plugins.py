"""Plugins: folders of skills, commands, sub-agents, MCP servers and hooks, in the layout that
Claude Code and OpenHands share.

    my-plugin/
        .claude-plugin/plugin.json   or .plugin/plugin.json: name, description, version (optional)
        skills/NAME/SKILL.md         or SKILL.md alone
        commands/NAME.md             a skill that the words /my-plugin:NAME show
        agents/NAME.md               a sub-agent, which the agent delegates to
        hooks/hooks.json             commands at calls, messages and ends
        .mcp.json                    MCP servers

The manifest may name further places under `skills`, `commands`, `agents`, `hooks` and `mcpServers`.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

from holdfast.agent.agents_files import SubAgent, read_sub_agent
from holdfast.agent.delegation import Delegates
from holdfast.agent.skills import skills_of
from holdfast.content import Data
from holdfast.errors import ConfigurationError
from holdfast.nesting import too_deep
from holdfast.tools.arguments import wrong
from holdfast.tools.hook_formats import EVENTS
from holdfast.tools.hooks import Hook, check
from holdfast.tools.json_values import as_list, as_object
from holdfast.tools.mcp.config import read_servers
from holdfast.tools.mcp_spellings import normalize_servers
from holdfast.tools.skills import Skills
from holdfast.tools.skills_files import (
    Skill,
    lenient_front_matter,
    one_line,
    read_skill,
    shown_when,
    text_below,
    with_home,
)

T = TypeVar("T")

_log = logging.getLogger("holdfast")

MANIFESTS = (".claude-plugin/plugin.json", ".plugin/plugin.json")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
# Claude Code runs `!` commands before the model reads a command's text. Here the model runs them,
# with its own tools, so that the agent's policy and runtime apply.
_INLINE_COMMAND = re.compile(r"!`[^`\n]+`")
_RUN_THEM = (
    "(Where the text above has !`command`, run that command first, and read its output in its"
    " place. Where it has @path, read that file.)"
)
_IGNORED_IN_COMMANDS = {"allowed-tools", "model"}
_ROOTS = ("CLAUDE_PLUGIN_ROOT", "OPENHANDS_PLUGIN_ROOT")
_MAX_SHOWN_COMMAND_CHARS = 200
_HOOK_SECONDS = 60.0  # Claude Code's limit for a hook's command without a timeout
# The place and the side of a hook by the event of Claude Code and OpenHands.
_PLACES: Mapping[str, tuple[str, str]] = {event: place for place, event in EVENTS.items()}


class Plugin(Data, frozen=True):
    """The parts of a plugin for an agent: `Agent(plugins=[...])`.

    Attributes:
        name: Its name: the manifest's, or the folder's.
        description: Its purpose.
        version: Its version.
        path: The folder.
        skills: Its skills, and its commands as skills.
        agents: Its sub-agents by name.
        mcp_servers: Its MCP servers by id.
        hooks: Its hooks.
        problems: The parts that were left out: the reason by path.
    """

    name: str
    description: str = ""
    version: str = ""
    path: str = ""
    skills: tuple[Skill, ...] = ()
    agents: dict[str, SubAgent] = {}
    mcp_servers: dict[str, Any] = {}
    hooks: tuple[Hook, ...] = ()
    problems: dict[str, str] = {}


def load_plugin(
    path: str | os.PathLike[str], *, variables: Mapping[str, str] | None = None
) -> Plugin:
    """Read the plugin in a folder. Nothing of it runs, and nothing is connected.

    Unreadable parts, links out of the folder, and parts that need a feature that Holdfast lacks are
    left out. The log and `Plugin.problems` name them. Raises `ConfigurationError` if the folder
    does not exist or its manifest cannot be read.

    Args:
        path: The folder; `~` is the user's home.
        variables: Values for `${NAME}` in `.mcp.json`; the environment is not read.
            `${CLAUDE_PLUGIN_ROOT}` is the folder. A `PATH` is that of hook commands, too.
    """
    root = Path(os.path.realpath(with_home(path)))
    if not root.is_dir():
        raise ConfigurationError(f"load_plugin takes a folder; there is none at {str(root)!r}.")
    reader = _Reader(root, dict(variables or {}))
    plugin = reader.plugin()
    for place, problem in plugin.problems.items():
        _log.warning("The plugin %s: %s was left out: %s", plugin.name, place, problem)
    return plugin


def with_plugins(plugins: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `Agent` that differ with these plugins, each a `Plugin` or a folder.

    What an argument has by a name is kept; a plugin's part of the same name is left out. Raises
    `ConfigurationError`.
    """
    if isinstance(plugins, str | os.PathLike | Plugin) or not isinstance(plugins, Iterable):
        raise wrong(
            "Agent: plugins", "a list of Plugin objects and folders", cast("object", plugins)
        )
    loaded: list[Plugin] = []
    for one in cast("Iterable[Any]", plugins):
        if isinstance(one, str | os.PathLike):
            one = load_plugin(cast("str | os.PathLike[str]", one))
        if not isinstance(one, Plugin):
            raise wrong("Agent: plugins", "a list of Plugin objects and folders", one)
        loaded.append(one)
    changes: dict[str, Any] = {"plugins": ()}
    if any(one.skills for one in loaded):
        own = skills_of(arguments["skills"], ())
        all_skills = [*own.list(), *[skill for one in loaded for skill in one.skills]]
        names: dict[str, Skill] = {}
        for skill in all_skills:
            names.setdefault(skill.name, skill)
        changes["skills"] = Skills(names.values(), own.unreadable, own.each, own.total)
    if any(one.mcp_servers for one in loaded):
        servers: Mapping[str, Any] = normalize_servers(arguments["mcp_servers"] or {})
        changes["mcp_servers"] = _merge(servers, [one.mcp_servers for one in loaded])
    if any(one.hooks for one in loaded):
        hooks = [hook for one in loaded for hook in one.hooks]
        changes["hooks"] = (*arguments["hooks"], *hooks)
    if any(one.agents for one in loaded):
        team = arguments["delegates"]
        team = team if isinstance(team, Delegates) else Delegates(team or {})
        changes["delegates"] = team.with_agents(
            _merge(team.entries, [one.agents for one in loaded])
        )
    return changes


def _merge(own: Mapping[str, Any], more: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    merged = dict(own)
    for one in more:
        for name, value in one.items():
            if merged.setdefault(name, value) is not value:
                _log.warning("%s of a plugin is left out: there is one of that name.", name)
    return merged


class _Reader:
    """Reads the parts of one plugin, and collects the problems of omitted parts."""

    def __init__(self, root: Path, variables: dict[str, str]) -> None:
        self._root = root
        self._variables = {**variables, **dict.fromkeys(_ROOTS, str(root))}
        self.problems: dict[str, str] = {}
        self._ignored_keys: set[str] = set()  # of the front matter of commands
        # The manifest's place tells for which system the hooks were written.
        # `.claude-plugin` may be a link to `.plugin`.
        own, other = (root / place for place in MANIFESTS)
        theirs = other.is_file() and (not own.is_file() or own.samefile(other))
        self._format = "openhands" if theirs else "claude-code"

    def plugin(self) -> Plugin:
        manifest = self._manifest()
        name = manifest.get("name", self._root.name.lstrip("."))  # such as `.claude`
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigurationError(
                f"load_plugin: the name of the plugin {str(self._root)!r} has other characters than"
                f" letters, digits, '.', '_' and '-', or more than 64: {name!r:.100}."
            )
        skills = [skill for _, skill in self._each(self._skill_files(manifest), read_skill)]
        commands = self._each(self._files(manifest, "commands"), partial(self._command, name))
        skills += [command for _, command in commands]
        if self._ignored_keys:
            _log.warning(
                "The plugin %s: in its commands %s is ignored: the agent's own tools, policy and"
                " model serve them.",
                name,
                ", ".join(sorted(self._ignored_keys)),
            )
        agents: dict[str, SubAgent] = {}
        for _, agent in self._each(self._files(manifest, "agents"), read_sub_agent):
            agents.setdefault(agent.name, agent)
        return Plugin(
            name,
            _line(manifest.get("description")),
            _line(manifest.get("version")),
            str(self._root),
            tuple(skills),
            agents,
            self._servers(manifest),
            tuple(self._hooks(name, manifest)),
            self.problems,
        )

    def _manifest(self) -> dict[str, Any]:
        for place in (self._root / place for place in MANIFESTS):
            if place.is_file():
                try:
                    if self._root not in (path := place.resolve()).parents:
                        raise ValueError("it is a link out of the plugin's folder")
                    return self._json(path)
                except (OSError, ValueError) as error:
                    raise ConfigurationError(f"load_plugin: {str(place)!r}: {error}.") from None
        return {}

    def _json(self, path: Path) -> dict[str, Any]:
        text = text_below(self._root, *path.relative_to(self._root).parts)
        if too_deep(text):
            raise ValueError("it is nested too deep")
        document = msgspec.json.decode(text)
        if not isinstance(document, dict):
            raise ValueError("it is no JSON object")
        return cast("dict[str, Any]", document)

    def _places(self, manifest: Mapping[str, Any], key: str) -> Iterator[Path]:
        """Yield the default place of a kind of parts, and the manifest's places."""
        yield self._root / key
        for one in as_list(manifest.get(key)):
            if not isinstance(one, str):
                continue
            path = Path(os.path.realpath(self._root / one))
            if self._root in path.parents and path.exists():
                yield path
            else:
                self.problems[one] = "it does not exist in the plugin's folder"

    def _files(self, manifest: Mapping[str, Any], key: str) -> list[Path]:
        """Return the Markdown files of a kind of parts."""
        paths: dict[Path, None] = {}
        for place in self._places(manifest, key):
            inner = sorted(place.rglob("*.md")) if place.is_dir() else [place]
            paths |= dict.fromkeys(path for path in inner if path.is_file())
        return [path for path in paths if path.stem.lower() != "readme"]

    def _each(self, paths: Iterable[Path], read: Callable[[Path], T]) -> Iterator[tuple[Path, T]]:
        """Yield the parts at these paths that can be read; the others become problems."""
        for path in paths:
            try:
                if self._root not in path.resolve().parents:
                    raise ValueError("it is a link out of the plugin's folder")
                yield path, read(path)
            except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: a loop of links
                self.problems[str(path.relative_to(self._root))] = str(error)

    def _skill_files(self, manifest: Mapping[str, Any]) -> Iterable[Path]:
        single = self._root / "SKILL.md"  # a plugin that is one skill
        files = [single] if single.is_file() else []
        for place in self._places(manifest, "skills"):
            own = place / "SKILL.md"
            files += [own] if own.is_file() else sorted(place.glob("*/SKILL.md"))
        return dict.fromkeys(files)

    def _command(self, plugin: str, path: Path) -> Skill:
        parts = path.relative_to(self._root).parts
        head, body = lenient_front_matter(text_below(self._root, *parts), [])
        self._ignored_keys |= _IGNORED_IN_COMMANDS & head.keys()
        folders = parts[1:-1] if parts[0] == "commands" else ()
        name = ":".join((plugin, *folders, path.stem))
        user_only = shown_when(head, name).user_only
        for root in _ROOTS:
            body = body.replace(f"${{{root}}}", str(self._root))
        if _INLINE_COMMAND.search(body):
            body = f"{body.rstrip()}\n\n{_RUN_THEM}"
        return Skill(
            name,
            _line(head.get("description")) or f"The command /{name}.",
            str(path),
            triggers=tuple(dict.fromkeys((f"/{name}", f"/{plugin}:{path.stem}"))),
            text=body.strip(),
            user_only=user_only,
        )

    def _servers(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        normalized: dict[str, Any] = {}
        inline = self._configs(manifest, "mcpServers", ".mcp.json")
        for place, servers in inline:
            for name, entry in servers.items():
                try:
                    server = normalize_servers({name: self._filled(entry)})
                    read_servers(server)
                except ConfigurationError as error:
                    self.problems[f"{place}: {name}"] = str(error)
                    continue
                normalized = server | normalized
        return normalized

    def _filled(self, value: Any) -> Any:
        """Return a value of `.mcp.json` with its variables. Raises `ConfigurationError`."""
        if isinstance(value, dict):
            pairs = cast("dict[str, Any]", value).items()
            return {key: self._filled(one) for key, one in pairs}
        if isinstance(value, list):
            return [self._filled(one) for one in cast("list[Any]", value)]
        if not isinstance(value, str):
            return value

        def variable(match: re.Match[str]) -> str:
            text = self._variables.get(match[1], cast("str | None", match[2]))
            if text is None:
                raise ConfigurationError(
                    f"the variable {match[1]} has no value; give load_plugin(variables=...)"
                )
            return text

        return _VARIABLE.sub(variable, value)

    def _hooks(self, plugin: str, manifest: Mapping[str, Any]) -> Iterator[Hook]:
        for place, events in self._configs(manifest, "hooks", "hooks/hooks.json", "hooks.json"):
            for event, groups in events.items():
                if event == "description":
                    continue
                if not isinstance(groups, list):
                    self.problems[f"{place}: {event}"] = "it is no list"
                    continue
                for group in cast("list[Any]", groups):
                    yield from self._group(plugin, event, group)

    def _configs(
        self, manifest: Mapping[str, Any], key: str, *defaults: str
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the objects of a kind of parts with their places: from the default files, the
        manifest, and the files that the manifest names."""
        present = [name for name in defaults if (self._root / name).is_file()]
        paths: dict[Path, None] = {}
        for one in [*present, *as_list(manifest.get(key, []))]:
            if isinstance(one, dict):
                yield from self._config(key, key, cast("dict[str, Any]", one))
            elif isinstance(one, str) and "\0" not in one:
                path = (
                    self._root / one
                    if one in defaults
                    else Path(os.path.realpath(self._root / one))
                )
                if self._root in path.parents and path.is_file():
                    paths[path] = None
                else:
                    self.problems[one] = "it does not exist in the plugin's folder"
            else:
                self.problems[key] = f"it takes objects and paths, not {one!r:.100}"
        for path, config in self._each(paths, self._json):
            yield from self._config(str(path.relative_to(self._root)), key, config)

    def _config(
        self, place: str, key: str, config: dict[str, Any]
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        inner = config.get(key, config)
        if isinstance(inner, dict):
            yield place, cast("dict[str, Any]", inner)
        else:
            self.problems[place] = f"{key} is no JSON object"

    def _group(self, plugin: str, event: str, group: Any) -> Iterator[Hook]:
        """Yield the hooks of one matcher."""
        where = f"hooks: {event}"
        on, when = _PLACES.get(event, ("", ""))
        entries: Any = as_object(group).get("hooks")
        if not on or not isinstance(entries, list):
            self.problems[where] = "there is no such place for hooks here"
            return
        matcher = as_object(group).get("matcher") or ""
        path = {"PATH"} & self._variables.keys()
        for entry in cast("list[Any]", entries):
            command = as_object(entry)
            shell, seconds = command.get("command"), command.get("timeout", _HOOK_SECONDS)
            limited = sorted({"if", "asyncRewake"} & command.keys())
            if command.get("type", "command") != "command" or not isinstance(shell, str):
                self.problems[where] = "a hook here is a command"
            elif limited:
                self.problems[f"{where} {shell}"] = f"{', '.join(limited)} has no meaning here"
            else:
                hook = Hook(
                    on=on,
                    when=when,
                    command=("/bin/sh", "-c", shell),
                    timeout=seconds,
                    env={name: self._variables[name] for name in (*_ROOTS, *path)},
                    name=f"{plugin}:{event}",
                    format=self._format,
                    matcher=matcher,
                )
                try:
                    check([hook])
                except ConfigurationError as error:
                    self.problems[f"{where} {shell}"] = str(error)
                    continue
                if command.get("async") is True:
                    _log.warning(
                        "The plugin %s: its hook for %s, %s, says async, and is waited for here"
                        " like any other: at most %g s, and its answer counts.",
                        plugin,
                        event,
                        shell[:_MAX_SHOWN_COMMAND_CHARS],
                        seconds,
                    )
                yield hook


def _line(value: Any) -> str:
    return one_line(value) if isinstance(value, str) else ""
