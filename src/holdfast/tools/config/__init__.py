"""The tools of an agent from a YAML file, a JSON file or a mapping: `read` says what is in it, `build` makes it.

    local_functions:
      - function: my_tools:search          # or module: my_tools and function: search
        name: search_docs
        timeout: 10
    mcp_servers:
      git: {command: mcp-server-git, env: {TOKEN: "${GIT_TOKEN}"}}
    builtin: [terminal, read_file]
    skills: [.agents/skills, ~/.agents/skills]

`tools.schema.json`, beside this file, is the same table for editors and other programs.
"""

from __future__ import annotations

import copy
import difflib
import os
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import msgspec

from holdfast.errors import ConfigurationError
from holdfast.tools.config import legacy
from holdfast.tools.config.keys import TOOLS
from holdfast.tools.config.shapes import fill
from holdfast.tools.document import Map, Place, load
from holdfast.tools.hooks import Hook
from holdfast.tools.pins import Pins
from holdfast.tools.skills import Skills, discover
from holdfast.tools.skills_files import with_home
from holdfast.tools.sources import Source as Service
from holdfast.tools.tool import RetryPolicy, Tool, ToolAnnotations

Source = Mapping[str, Any] | str | os.PathLike[str]
Builtins = Mapping[str, Any] | Iterable[Tool]

SCHEMA = Path(__file__).with_name("tools.schema.json")  # the published JSON Schema (draft 2020-12)


class Entry(msgspec.Struct, frozen=True):
    """One tool of a config: its `target` (`module:qualname`, or a builtin's name), and the other keys beside it, as they were read."""

    target: str
    options: dict[str, Any]
    place: Place


class Parsed(msgspec.Struct, frozen=True):
    """What a config says, as plain data: nothing is imported, connected to or looked for yet. `repr` shows no values, of which some are
    secret. Services have the keys that `MCPClient` takes; `concurrency`, `result_limit` and `hooks` are by canonical name or pattern, those
    of `functions` and `builtin` are still beside these. Folders are absolute."""

    place: Place
    functions: tuple[Entry, ...] = ()
    builtin: tuple[Entry, ...] = ()
    mcp_servers: dict[str, dict[str, Any]] = {}
    a2a_agents: dict[str, dict[str, Any]] = {}
    skills: tuple[str, ...] = ()
    hooks: tuple[Hook, ...] = ()
    concurrency: dict[str, int] = {}
    result_limit: dict[str, int] = {}
    result_dir: str | None = None
    pins: dict[str, str] | None = None

    def __repr__(self) -> str:
        names = [entry.target for entry in (*self.functions, *self.builtin)]
        return f"Parsed({self.place}: {', '.join([*names, *self.mcp_servers, *self.a2a_agents, *self.skills]) or 'empty'})"


class Built(msgspec.Struct, frozen=True):
    """What a config gives a `ToolManager`: `ToolManager(**built.arguments())`. The services have not been connected to. The tool that reads
    the skills is among the tools, and lists them."""

    tools: tuple[Tool, ...]
    sources: tuple[Service, ...] = ()
    skills: Skills = Skills(())
    hooks: tuple[Hook, ...] = ()
    concurrency: dict[str, int] = {}
    result_limit: dict[str, int] = {}
    result_dir: str | None = None
    pins: Pins | None = None

    def arguments(self) -> dict[str, Any]:
        """All but the skills, as the arguments of a `ToolManager`."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if name != "skills"}


# --- reading -------------------------------------------------------------------------------------


def read(source: Source, *, variables: Mapping[str, Any] | None = None, base: str | os.PathLike[str] | None = None) -> Parsed:
    """What a config says. `source` is the path of a YAML file (JSON, if it ends in .json), or a mapping. `variables` is what `${NAME}` in it
    stands for; the environment is never looked at. Relative folders start at `base`: the file's own folder, or the current one
    for a mapping.

    Raises `ConfigurationError` for the first thing that does not fit: in which file, on which line, under which keys, and what to write
    instead. Spellings of earlier systems load with a `DeprecationWarning`.
    """
    document, folder = load(source)
    return parse(fill(document, variables or {}), Path(base) if base is not None else folder)


def parse(document: Any, base: Path | None) -> Parsed:
    """`read` for a document that was loaded and whose variables are filled in, such as a section of another one."""
    if not isinstance(document, Map):
        raise ConfigurationError(f"A tool config takes a mapping of {', '.join(TOOLS.keys)}; it is {type(document).__name__}.")
    place, base = document.place, Path.cwd() if base is None else base.absolute()
    found = TOOLS.read(legacy.modern(document), place)
    if "mcp_servers" in found and "mcpServers" in found:
        raise place.error("it has mcp_servers and mcpServers; write mcp_servers alone.")
    rules = _Rules()
    rules.add("*", found)
    servers: dict[str, dict[str, Any]] = found.get("mcp_servers") or found.get("mcpServers") or {}
    agents: dict[str, dict[str, Any]] = found.get("a2a_agents", {})
    for id, service in (*servers.items(), *agents.items()):
        rules.add(f"{id}.*", service)
        if service.get("cwd") is not None:
            service["cwd"] = _inside(base, service["cwd"])
    return Parsed(
        place,
        _entries(found.get("local_functions", []), "function", place.at("local_functions")),
        _entries(found.get("builtin", []), "name", place.at("builtin")),
        {id: _without_rules(service) for id, service in servers.items()},
        {id: _without_rules(service) for id, service in agents.items()},
        tuple(_inside(base, folder) for folder in found.get("skills", [])),
        tuple(rules.hooks),
        rules.concurrency,
        rules.result_limit,
        _inside(base, found.get("result_dir", ".holdfast/results")),
        _pins(found.get("pins"), base),
    )


def _pins(given: Any, base: Path) -> dict[str, str] | None:
    if given is None:
        return None
    found: dict[str, str] = {"file": given} if isinstance(given, str) else dict(given)
    return {**found, "file": _inside(base, found["file"])}


def _inside(base: Path, path: str) -> str:
    return str(base / with_home(path))


def _entries(found: list[Any], key: str, place: Place) -> tuple[Entry, ...]:
    entries: list[Entry] = []
    for index, given in enumerate(found):
        options: dict[str, Any] = {key: given} if isinstance(given, str) else dict(given)
        target = options.pop(key)
        if "module" in options:
            target = f"{options.pop('module')}:{target}"
        entries.append(Entry(target, options, place.at(index)))
    return tuple(entries)


_RULES = ("hooks", "concurrency", "result_limit")


def _without_rules(given: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in given.items() if key not in _RULES}


class _Rules:
    """Gathers hooks and limits by pattern."""

    def __init__(self) -> None:
        self.hooks: list[Hook] = []
        self.concurrency: dict[str, int] = {}
        self.result_limit: dict[str, int] = {}

    def add(self, pattern: str, given: Mapping[str, Any]) -> None:
        """What `given` says of the tools that fit `pattern`."""
        hooks: list[dict[str, Any]] = given.get("hooks", [])
        self.hooks += [Hook(**cast("dict[str, Any]", {"tools": pattern, **one})) for one in hooks]
        for name, rules in (("concurrency", self.concurrency), ("result_limit", self.result_limit)):
            if name in given:
                rules[pattern] = given[name]


# --- building ------------------------------------------------------------------------------------


def build(parsed: Parsed, builtins: Builtins | None = None, *, list_skills: bool = True) -> Built:
    """Import the functions, take the builtins, look for skills and make clients for the services, which connect to nothing yet.

    `builtins` are the preset tools that the host offers: a list of tools (`runtime.tools`), or a mapping of names to tools or to
    functions that make one (their arguments: the entry's `parameters`). Raises `ConfigurationError` with the place in the config of what
    cannot be made. A hook that cannot be imported is no error here: it lets nothing through. `list_skills=False` is for a caller whose system
    prompt lists the skills (`built.skills.prompt()`), which the tool that reads them then does not do.
    """
    rules = _Rules()
    rules.hooks, rules.concurrency, rules.result_limit = list(parsed.hooks), dict(parsed.concurrency), dict(parsed.result_limit)
    tools: dict[str, Tool] = {}
    known = known_builtins(builtins)

    def add(tool: Tool, entry: Entry) -> None:
        if tool.name in tools:
            raise entry.place.error(f"there are two tools named {tool.name!r}. Give one of them another name.")
        tools[tool.name] = tool
        rules.add(tool.name, entry.options)

    for entry in parsed.functions:
        add(_local(entry), entry)
    for entry in parsed.builtin:
        add(_builtin(entry, known), entry)
    skills = discover(parsed.skills)
    if skills.list():
        reader = skills.tool(list_skills)
        add(reader, Entry(reader.name, {}, parsed.place.at("skills")))
    for id in parsed.mcp_servers.keys() & parsed.a2a_agents.keys():
        raise parsed.place.at("a2a_agents").error(f"{id!r} is an MCP server too. Servers and agents have ids of their own.")
    sources: list[Service] = []
    if parsed.mcp_servers:
        from holdfast.tools.mcp import MCPClient

        sources += _sources(MCPClient, parsed.mcp_servers, parsed.place.at("mcp_servers"))
    if parsed.a2a_agents:
        from holdfast.tools.a2a import A2AClient

        sources += _sources(A2AClient, parsed.a2a_agents, parsed.place.at("a2a_agents"))
    pins = None
    if parsed.pins is not None:
        pins = Pins(parsed.pins["file"], first=parsed.pins.get("first", "approve"))
    return Built(
        tuple(tools.values()),
        tuple(sources),
        skills,
        tuple(rules.hooks),
        rules.concurrency,
        rules.result_limit,
        parsed.result_dir,
        pins,
    )


def load_object(target: str, place: Place) -> Any:
    """What `module:qualname` names. Raises `ConfigurationError` with the place if it cannot be imported."""
    module, _, qualname = target.partition(":")
    try:
        found: Any = import_module(module)
    except (Exception, SystemExit) as error:  # a module may do anything when it is imported
        raise place.error(f"module {module!r} cannot be imported: {type(error).__name__}: {error}") from error
    for part in qualname.split("."):
        if not hasattr(found, part):
            near = difflib.get_close_matches(part, [name for name in dir(found) if not name.startswith("__")], 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise place.error(f"{module!r} has no {qualname!r}.{hint}")
        found = getattr(found, part)
    return found


def _local(entry: Entry) -> Tool:
    try:
        return _made(load_object(entry.target, entry.place), entry)
    except ConfigurationError as error:
        if str(error).startswith(str(entry.place)):
            raise
        raise entry.place.error(str(error)) from error


def _made(found: Any, entry: Entry) -> Tool:
    options, parameters = _tool_options(entry.options), entry.options.get("parameters")
    if isinstance(found, type) and issubclass(found, Tool):
        return _changed(call_with(cast("Any", found), parameters, entry.target, entry.place), options, entry)
    if parameters is not None:
        raise entry.place.error(f"parameters are for a Tool subclass; {entry.target!r} is none.")
    if isinstance(found, Tool):
        return _changed(found, options, entry)
    function: Any = cast("object", found)
    if not callable(function):
        raise entry.place.error(f"{entry.target!r} is neither a function nor a Tool, but {type(function).__name__}.")
    return Tool.from_function(function, **options)


def call_with(function: Any, parameters: Mapping[str, Any] | None, name: str, place: Place) -> Any:
    """What `function(**parameters)` returns. Raises `ConfigurationError` with the place for whatever it raises."""
    try:
        return function(**(parameters or {}))
    except Exception as error:
        said = str(error) if isinstance(error, ConfigurationError) else f"{type(error).__name__}: {error}"
        raise place.error(f"{name!r} cannot be made with these parameters: {said}") from error


def _tool_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of an entry as arguments of a `Tool`."""
    options = {key: given[key] for key in ("name", "description", "category", "timeout", "isolation", "parallel") if key in given}
    if "retry" in given:
        options["retry"] = RetryPolicy(**given["retry"])
    if "annotations" in given:
        options["annotations"] = ToolAnnotations(**given["annotations"])
    return options


def _changed(tool: Tool, options: Mapping[str, Any], entry: Entry) -> Tool:
    """A tool that stands in a module, under the config's name and so on; the module's own stays as it is."""
    if "isolation" in options:
        raise entry.place.error(f"{entry.target!r} is a Tool; its isolation is given where it is made.")
    if not options:
        return tool
    changed = copy.copy(tool)
    for key, value in options.items():
        setattr(changed, "_parallel" if key == "parallel" else key, value)
    if tool.name != changed.name:  # what was made under the old name is made again, at the first use
        vars(changed).update(_schema=None, _validate=None)
        if tool.isolation is not None:
            vars(changed).update(_isolated=changed._isolate(tool.isolation))  # pyright: ignore[reportPrivateUsage]: a copy of it
    return changed


def known_builtins(builtins: Builtins | None) -> Mapping[str, Any]:
    given: Any = builtins
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return cast("Mapping[str, Any]", given)
    found: list[Any] = list(cast("Iterable[Any]", given)) if isinstance(given, Iterable) else [given]
    for tool in found:
        if not isinstance(tool, Tool):
            raise ConfigurationError(f"builtins takes a mapping of names to tools, or a list of tools, not {tool!r}.")
    return {tool.name: tool for tool in found}


def _builtin(entry: Entry, known: Mapping[str, Any]) -> Tool:
    if entry.target not in known:
        near = difflib.get_close_matches(entry.target, known, 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        there = f"There are: {', '.join(known)}." if known else "None were handed over: pass builtins=, such as LocalRuntime(...).tools."
        raise entry.place.error(f"no builtin is named {entry.target!r}.{hint} {there}")
    found, parameters = known[entry.target], entry.options.get("parameters")
    if isinstance(found, Tool):
        if parameters is not None:
            raise entry.place.error(f"the builtin {entry.target!r} is a tool that was made already; it takes no parameters.")
        return found
    if not callable(found):
        raise ConfigurationError(f"builtins: {entry.target!r} takes a Tool or a function that makes one, not {found!r}.")
    made: Any = call_with(found, parameters, entry.target, entry.place)
    if not isinstance(made, Tool):
        raise ConfigurationError(f"builtins: what makes {entry.target!r} returned {made!r}, not a Tool.")
    return made


def _sources(kind: Any, services: dict[str, dict[str, Any]], place: Place) -> list[Service]:
    try:
        return list(kind(services).sources())
    except ConfigurationError as error:
        raise place.error(str(error)) from error
