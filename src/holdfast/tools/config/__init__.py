"""The tools of an agent from a YAML file, a JSON file or a mapping. `read` parses a config; `build`
makes its tools.

    local_functions:
      - function: my_tools:search          # or module: my_tools and function: search
        name: search_docs
        timeout: 10
    mcp_servers:
      git: {command: mcp-server-git, env: {TOKEN: "${GIT_TOKEN}"}}
    builtin: [terminal, read_file]
    skills: [.agents/skills, ~/.agents/skills]

`tools.schema.json`, beside this file, is the same key table as a JSON Schema, for editors and
other programs.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import msgspec

from holdfast.error_text import describe_error
from holdfast.errors import ConfigurationError
from holdfast.tools.a2a import A2AClient
from holdfast.tools.arguments import wrong
from holdfast.tools.config import legacy
from holdfast.tools.config.keys import TOOLS
from holdfast.tools.config.variables import fill
from holdfast.tools.document import Map, SourceLocation, did_you_mean, load
from holdfast.tools.hooks import Hook
from holdfast.tools.mcp import MCPClient
from holdfast.tools.mcp.config import FilledServers
from holdfast.tools.pins import Pins
from holdfast.tools.skills import Skills, discover
from holdfast.tools.skills_files import with_home
from holdfast.tools.sources import Source as Service
from holdfast.tools.tool import RetryPolicy, Tool, ToolAnnotations

Source = Mapping[str, Any] | str | os.PathLike[str]
Builtins = Mapping[str, Any] | Iterable[Tool]

SCHEMA = Path(__file__).with_name("tools.schema.json")  # the published JSON Schema (draft 2020-12)


class ToolEntry(msgspec.Struct, frozen=True):
    """One tool of a config: its `target` (`module:qualname`, or a builtin's name) and the other
    keys of its entry, unchanged."""

    target: str
    options: dict[str, Any]
    place: SourceLocation


class Parsed(msgspec.Struct, frozen=True):
    """The content of a config as plain data. Nothing is imported, connected or searched yet.

    Services have the keys that `MCPClient` and `A2AClient` take. `concurrency`, `result_limit`
    and `hooks` are keyed by canonical name or pattern; those of `functions` and `builtin` are
    still in their entries. Folders are absolute. `modules` is the folder of a config file, whose
    modules may be imported. `repr` shows no values, because some are secret.
    """

    place: SourceLocation
    functions: tuple[ToolEntry, ...] = ()
    builtin: tuple[ToolEntry, ...] = ()
    mcp_servers: dict[str, dict[str, Any]] = {}
    a2a_agents: dict[str, dict[str, Any]] = {}
    skills: tuple[str, ...] = ()
    hooks: tuple[Hook, ...] = ()
    concurrency: dict[str, int] = {}
    result_limit: dict[str, int] = {}
    result_dir: str | None = None
    pins: dict[str, str] | None = None
    modules: str | None = None

    def __repr__(self) -> str:
        names = [entry.target for entry in (*self.functions, *self.builtin)]
        names += [*self.mcp_servers, *self.a2a_agents, *self.skills]
        return f"Parsed({self.place}: {', '.join(names) or 'empty'})"


class Built(msgspec.Struct, frozen=True):
    """The arguments that a config gives to a `ToolManager`: `ToolManager(**built.arguments())`.

    The services are not connected yet. The tool that reads skills is among `tools`.
    """

    tools: tuple[Tool, ...]
    sources: tuple[Service, ...] = ()
    skills: Skills = Skills(())
    hooks: tuple[Hook, ...] = ()
    concurrency: dict[str, int] = {}
    result_limit: dict[str, int] = {}
    result_dir: str | None = None
    pins: Pins | None = None

    def arguments(self) -> dict[str, Any]:
        """Return everything except the skills, as the arguments of a `ToolManager`."""
        arguments = msgspec.structs.asdict(self)
        del arguments["skills"]
        return arguments


# --- reading ---


def read(
    source: Source,
    *,
    variables: Mapping[str, Any] | None = None,
    base: str | os.PathLike[str] | None = None,
) -> Parsed:
    """Parse a config.

    Raises `ConfigurationError` for the first mistake. The message names the file, the line and the
    keys, and says what to write instead. Spellings of earlier systems load with a
    `DeprecationWarning`.

    Args:
        source: The path of a YAML, JSON (.json, .jsonc) or TOML (.toml) file, or a mapping.
        variables: The values for `${NAME}`. The environment is never used.
        base: The folder at which relative folders start. By default this is the file's own
            folder, or for a mapping the current folder.
    """
    document, folder = load(source)
    if folder is not None:
        document = legacy.servers_of_another_program(document)
    document = fill(document, variables or {})
    return parse(document, Path(base) if base is not None else folder, folder)


def parse(document: Any, base: Path | None, modules: Path | None = None) -> Parsed:
    """Parse a loaded document whose variables are filled in, such as a section of another
    document. See `read` and `Parsed`."""
    if not isinstance(document, Map):
        raise ConfigurationError(
            f"A tool config takes a mapping of {', '.join(TOOLS.keys)}; it is"
            f" {type(document).__name__}."
        )
    place, base = document.place, Path.cwd() if base is None else base.absolute()
    document = legacy.modernize(document)
    values = TOOLS.read(document, place)
    if "mcp_servers" in values and "mcpServers" in values:
        raise place.error("it has mcp_servers and mcpServers; write mcp_servers alone.")
    rules = _Rules()
    rules.add("*", values)
    servers: dict[str, dict[str, Any]] = values.get("mcp_servers") or values.get("mcpServers") or {}
    agents: dict[str, dict[str, Any]] = values.get("a2a_agents", {})
    for id, service in (*servers.items(), *agents.items()):
        rules.add(f"{id}.*", service)
        if service.get("cwd") is not None:
            service["cwd"] = _absolute(base, service["cwd"])
    pins = values.get("pins")
    if pins is not None:
        pins = {"file": pins} if isinstance(pins, str) else pins
        pins["file"] = _absolute(base, pins["file"])
    return Parsed(
        place,
        _entries(values, "local_functions", "function", document),
        _entries(values, "builtin", "name", document),
        {id: _without_rules(service) for id, service in servers.items()},
        {id: _without_rules(service) for id, service in agents.items()},
        tuple(_absolute(base, folder) for folder in values.get("skills", [])),
        tuple(rules.hooks),
        rules.concurrency,
        rules.result_limit,
        _absolute(base, values.get("result_dir", ".holdfast/results")),
        pins,
        None if modules is None else str(modules),
    )


def _absolute(base: Path, path: str) -> str:
    return str(base / with_home(path))


def _entries(
    values: Mapping[str, Any], section: str, key: str, document: Map
) -> tuple[ToolEntry, ...]:
    entries: list[ToolEntry] = []
    for index, value in enumerate(values.get(section, [])):
        options: dict[str, Any] = {key: value} if isinstance(value, str) else dict(value)
        target = options.pop(key)
        if "module" in options:
            target = f"{options.pop('module')}:{target}"
        entries.append(ToolEntry(target, options, document[section].places[index]))
    return tuple(entries)


_RULE_KEYS = ("hooks", "concurrency", "result_limit")


def _without_rules(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key not in _RULE_KEYS}


class _Rules(msgspec.Struct):
    """Hooks and limits, collected by pattern."""

    hooks: list[Hook] = []
    concurrency: dict[str, int] = {}
    result_limit: dict[str, int] = {}

    def add(self, pattern: str, entry: Mapping[str, Any]) -> None:
        """Add the rules of an entry for the tools that fit `pattern`."""
        hooks: list[dict[str, Any]] = entry.get("hooks", [])
        self.hooks += [Hook(**cast("dict[str, Any]", {"tools": pattern, **one})) for one in hooks]
        for name, rules in (("concurrency", self.concurrency), ("result_limit", self.result_limit)):
            if name in entry:
                rules[pattern] = entry[name]


# --- building ---


def build(parsed: Parsed, builtins: Builtins | None = None) -> Built:
    """Make the tools of a config: import the functions, take the builtins, find the skills, and
    make unconnected clients for the services.

    Raises `ConfigurationError` with the place in the config of an object that cannot be made. A
    hook that cannot be imported is not an error here; it denies every call instead.

    Args:
        parsed: The result of `read`.
        builtins: The preset tools that the host offers: a list of tools (`runtime.tools`), or a
            mapping of names to tools or factories. A factory gets the entry's `parameters`.
    """
    rules = _Rules([*parsed.hooks], {**parsed.concurrency}, {**parsed.result_limit})
    tools: dict[str, Tool] = {}
    builtins_by_name = known_builtins(builtins)
    if parsed.modules is not None and (parsed.functions or parsed.builtin or parsed.hooks):
        find_modules_in(parsed.modules)

    pairs = [(_local(entry), entry) for entry in parsed.functions]
    pairs += [(_builtin(entry, builtins_by_name), entry) for entry in parsed.builtin]
    skills = discover(parsed.skills)
    if skills.list():
        reader = skills.tool()
        pairs.append((reader, ToolEntry(reader.name, {}, parsed.place.at("skills"))))
    for tool, entry in pairs:
        if tool.name in tools:
            raise entry.place.error(
                f"there are two tools named {tool.name!r}. Give one of them another name."
            )
        tools[tool.name] = tool
        rules.add(tool.name, entry.options)
    for id in parsed.mcp_servers.keys() & parsed.a2a_agents.keys():
        raise parsed.place.at("a2a_agents").error(
            f"{id!r} is an MCP server too. Servers and agents have ids of their own."
        )
    sources = [
        *_sources(MCPClient, FilledServers(parsed.mcp_servers), parsed.place.at("mcp_servers")),
        *_sources(A2AClient, parsed.a2a_agents, parsed.place.at("a2a_agents")),
    ]
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


def find_modules_in(folder: str) -> None:
    """Make the modules of a config file's folder importable, for this process.

    The modules stay importable, because hooks and isolated tools are imported later. The folder
    comes last, so that its files replace no installed module.
    """
    if folder not in sys.path:
        sys.path.append(folder)


def load_object(target: str, place: SourceLocation) -> Any:
    """Import and return the object at `module:qualname`. Raises `ConfigurationError` with the
    place if the import fails."""
    module, _, qualname = target.partition(":")
    try:
        value: Any = import_module(module)
    except (Exception, SystemExit) as error:  # importing a module may raise anything
        raise place.error(
            f"module {module!r} cannot be imported: {describe_error(error)}"
        ) from error
    for part in qualname.split("."):
        if not hasattr(value, part):
            hint = did_you_mean(part, [name for name in dir(value) if not name.startswith("__")])
            raise place.error(f"{module!r} has no {qualname!r}.{hint}")
        value = getattr(value, part)
    return value


def _local(entry: ToolEntry) -> Tool:
    try:
        return _tool_of(load_object(entry.target, entry.place), entry)
    except ConfigurationError as error:
        if str(error).startswith(str(entry.place)):
            raise
        raise entry.place.error(str(error)) from error


def _tool_of(target: Any, entry: ToolEntry) -> Tool:
    """Return the tool that an imported object defines: a `Tool` subclass, a `Tool`, or a
    function."""
    options, parameters = _tool_options(entry.options), entry.options.get("parameters")
    config: Mapping[str, Any] = entry.options.get("config") or {}
    if isinstance(target, type) and issubclass(target, Tool):
        class_settings = _settings(target, config, entry)
        tool = call_with(
            target, {**class_settings, **(parameters or {})}, entry.target, entry.place
        )
        return _with_options(tool, options, entry)
    if parameters is not None:
        raise entry.place.error(
            f"parameters are for a Tool subclass, and {entry.target!r} is not one."
        )
    if isinstance(target, Tool):
        _settings(None, config, entry)
        return _with_options(target, options, entry)
    function: Any = cast("object", target)
    if not callable(function):
        raise entry.place.error(
            f"{entry.target!r} is neither a function nor a Tool, but {type(function).__name__}."
        )
    settings = _settings(function, config, entry)
    if settings and "isolation" in options:
        raise entry.place.error("a function with a config cannot run in a process of its own.")
    return Tool.from_function(_with_settings(function, settings), **options)


def _settings(target: Any, config: Mapping[str, Any], entry: ToolEntry) -> dict[str, Any]:
    """Return the settings that a function or class takes as arguments; warn of the others."""
    names: Collection[str] = ()
    with suppress(TypeError, ValueError):  # some functions of C have no signature
        names = inspect.signature(target).parameters if target is not None and config else ()
    if ignored := [name for name in config if name not in names]:
        what = ", ".join(f"config.{name}" for name in ignored)
        legacy.warn_ignored(entry.place, f"{what}, which {entry.target!r} does not take")
    return {name: value for name, value in config.items() if name in names}


def _with_settings(function: Any, settings: Mapping[str, Any]) -> Any:
    """Return the function with some arguments set, which a model is not shown."""
    if not settings:
        return function
    wrapper: Any = functools.update_wrapper(functools.partial(function, **settings), function)
    signature = inspect.signature(function)
    parameters = [
        one.replace(kind=one.KEYWORD_ONLY) if one.kind is one.POSITIONAL_OR_KEYWORD else one
        for name, one in signature.parameters.items()
        if name not in settings
    ]
    wrapper.__signature__ = signature.replace(parameters=parameters)
    return wrapper


def call_with(
    function: Any, parameters: Mapping[str, Any] | None, name: str, place: SourceLocation
) -> Any:
    """Return `function(**parameters)`. Turns every exception into a `ConfigurationError` with
    the place."""
    try:
        return function(**(parameters or {}))
    except Exception as error:
        why = error if isinstance(error, ConfigurationError) else describe_error(error)
        raise place.error(f"{name!r} cannot be made with these parameters: {why}") from error


def _tool_options(entry: Mapping[str, Any]) -> dict[str, Any]:
    names = ("name", "description", "category", "timeout", "isolation", "parallel")
    options = {key: entry[key] for key in names if key in entry}
    if "retry" in entry:
        options["retry"] = RetryPolicy(**entry["retry"])
    if "annotations" in entry:
        options["annotations"] = ToolAnnotations(**entry["annotations"])
    return options


def _with_options(tool: Tool, options: Mapping[str, Any], entry: ToolEntry) -> Tool:
    """Return a copy of a module's tool with the config's name and settings. The module's own
    tool is not changed."""
    if "isolation" in options:
        raise entry.place.error(
            f"{entry.target!r} is a Tool; give its isolation in the code that makes it."
        )
    if not options:
        return tool
    variant = tool.renamed(options.get("name", tool.name))
    for key, value in options.items():
        setattr(variant, "_parallel" if key == "parallel" else key, value)
    if tool.name != variant.name and tool.isolation is not None:
        vars(variant).update(_isolated=variant._isolate())  # pyright: ignore[reportPrivateUsage]: a copy of it
    return variant


def known_builtins(builtins: Builtins | None) -> Mapping[str, Any]:
    """Return the builtins by name. Raises `ConfigurationError` if a list contains anything but
    tools."""
    untyped: Any = {} if builtins is None else builtins
    if isinstance(untyped, Mapping):
        return cast("Mapping[str, Any]", untyped)
    items = cast("Iterable[Any]", untyped) if isinstance(untyped, Iterable) else [untyped]
    tools = list(items)
    for tool in tools:
        if not isinstance(tool, Tool):
            raise wrong("builtins", "a mapping of names to tools, or a list of tools", tool)
    return {tool.name: tool for tool in tools}


def _builtin(entry: ToolEntry, builtins: Mapping[str, Any]) -> Tool:
    if entry.target not in builtins:
        hint = did_you_mean(entry.target, builtins)
        available = "None were passed: pass builtins=, such as LocalRuntime(...).tools."
        available = f"There are: {', '.join(builtins)}." if builtins else available
        raise entry.place.error(f"no builtin is named {entry.target!r}.{hint} {available}")
    builtin, parameters = builtins[entry.target], entry.options.get("parameters")
    if isinstance(builtin, Tool):
        if parameters is not None:
            raise entry.place.error(
                f"the builtin {entry.target!r} is already a tool, so it takes no parameters."
            )
        return builtin
    if not callable(builtin):
        form = "a Tool or a function that makes one"
        raise wrong(f"builtins: {entry.target!r}", form, builtin)
    tool: Any = call_with(builtin, parameters, entry.target, entry.place)
    if not isinstance(tool, Tool):
        raise ConfigurationError(
            f"builtins: the function of {entry.target!r} returned {tool!r}, not a Tool."
        )
    return tool


def _sources(
    kind: Any, services: dict[str, dict[str, Any]], place: SourceLocation
) -> list[Service]:
    try:
        return list(kind(services).sources()) if services else []
    except ConfigurationError as error:
        raise place.error(str(error)) from error
