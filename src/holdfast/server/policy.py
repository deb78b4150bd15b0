"""`Policy`: which modules an agent server imports because a client names them, and what of an agent it refuses to load."""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from types import ModuleType
from typing import Any, cast

from holdfast.agent.load_keys import ANALYZERS, CONDENSERS
from holdfast.errors import ConfigurationError
from holdfast.tools.document import Map, Place, Seq, load

GROUP = "holdfast.tools"  # the group of entry points by which an installed package says that its modules declare tools

# What ships with Holdfast is allowed without a look at what is installed: in a checkout there may be no metadata.
_PRESET = ("holdfast.tools.preset", "holdfast.tools.preset.*")

# ASCII alone: a module's name in other letters may look like one that is allowed, and Python reads some of them as the same name.
_MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*")
_PATTERN = re.compile(r"[A-Za-z0-9_.*?\[\]!-]+")
_TARGET = re.compile(r"[A-Za-z][A-Za-z0-9_]*(?:\.[A-Za-z][A-Za-z0-9_]*)*")  # no part that begins with _: Python's own and what is private
_LONGEST = 200  # characters of a module's name


IMPORT_TIMEOUT = 10.0
"""Seconds for the imports of one request. A client asks again after 20 seconds of silence, and gives up after 60."""


class Policy:
    """Which modules may be imported by name: those that fit one of `patterns`, each for a whole dotted name (`acme_tools`, `acme.tools.*`, `*`
    for all), and what ships as `holdfast.tools.preset`.

    With `entry_points`, also those of installed packages that declare an entry point of the group `holdfast.tools`: the package that has
    its module, with all below it. What is installed is looked up once. A package above an allowed module is imported with it.

    `import_timeout` is how many seconds the modules of one request may take; those that take longer are not used.

    Thread-safe. Raises `ConfigurationError` for what is no pattern.
    """

    def __init__(self, patterns: Sequence[str] = (), entry_points: bool = True, import_timeout: float = IMPORT_TIMEOUT) -> None:
        if isinstance(patterns, str):
            raise ConfigurationError(f"Policy: patterns takes a list of patterns of module names, not {patterns!r}.")
        for pattern in cast("Sequence[Any]", patterns):
            if not isinstance(pattern, str) or not _PATTERN.fullmatch(pattern):
                raise ConfigurationError(f"Policy: patterns takes patterns of module names, such as 'acme.tools.*', not {pattern!r}.")
        if not import_timeout > 0:
            raise ConfigurationError(f"Policy: import_timeout takes seconds above 0, not {import_timeout!r}.")
        self.patterns = tuple(patterns)
        self.import_timeout = import_timeout
        self._entry_points = entry_points
        self._lock = threading.Lock()
        self._packages: tuple[str, ...] | None = None

    def allows(self, module: str) -> bool:
        """Whether a client may have that module imported. Imports nothing."""
        return not self.refusal(module)

    def refusal(self, module: str) -> str:
        """Why it may not be imported; "" if it may."""
        given: Any = module
        if not isinstance(given, str) or len(given) > _LONGEST or not _MODULE.fullmatch(given):
            return f"{_shown(given)} is no module's name: it takes letters, digits and _ (ASCII), with dots between, at most {_LONGEST}"
        if any(fnmatchcase(given, pattern) for pattern in (*self.patterns, *_PRESET)):
            return ""
        if any(given == package or given.startswith(f"{package}.") for package in self.packages):
            return ""
        return f"the server's policy does not allow the module {given!r} (holdfast serve --allow-tools names modules that it does)"

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages that entry points allow."""
        if not self._entry_points:
            return ()
        with self._lock:
            if self._packages is None:
                from importlib.metadata import entry_points

                modules = {entry.module for entry in entry_points(group=GROUP)}
                self._packages = tuple(sorted({module.rpartition(".")[0] or module for module in modules if _MODULE.fullmatch(module)}))
            return self._packages

    def __repr__(self) -> str:
        return f"Policy({list(self.patterns)!r}, entry_points={self._entry_points})"


def _shown(given: Any) -> str:
    text = ascii(given)
    return text if len(text) <= 80 else f"{text[:77]}..."


# --- agents --------------------------------------------------------------------------------------


_MOST_CHILDREN = (("max_depth", 8), ("max_running", 32), ("max_messages", 200))


def check_agent(mapping: Mapping[str, Any], policy: Policy) -> list[str]:
    """Look through an agent's serial form as a client sent it, before it is loaded. Returns the modules that loading it will import.

    Refused is what reads this machine's files (`{file: ...}`, `tools` as a path, skills, pins, a result_dir), local functions, and what
    names code beyond the policy: `use`, `pick`, `on`, hooks, and litellm (which reads this process's environment) unless the policy
    allows `litellm`. Raises `ConfigurationError` with the place.
    """
    document, _ = load(mapping, "agent")
    modules: dict[str, None] = {}
    for place, target in _named(document):
        module, _, qualname = target.partition(":")
        if reason := policy.refusal(module):
            raise place.error(f"{reason}.")
        if qualname and not _TARGET.fullmatch(qualname):
            raise place.error(f"{_shown(qualname)} names nothing that a module offers.")
        modules[module] = None
    return list(modules)


def check_parts(mapping: Mapping[str, Any], policy: Policy) -> None:
    """The second look, once the modules are imported: that each name stands for something that an allowed module itself defines, and not
    for what it merely imported, such as `subprocess`. Raises `ConfigurationError` with the place."""
    import sys

    document, _ = load(mapping, "agent")
    for place, target in _named(document):
        module, _, qualname = target.partition(":")
        found: Any = sys.modules.get(module)
        for part in qualname.split(".") if qualname else ():
            found = getattr(found, part, None)
            home: Any = getattr(found, "__module__", None) if inspect.isclass(found) or inspect.isroutine(found) else module
            if isinstance(found, ModuleType) or not isinstance(home, str) or not policy.allows(home):
                raise place.error(f"{target!r} is not {module}'s own; give what it defines itself.")


def _named(document: Any) -> Iterator[tuple[Place, str]]:
    """What of an agent's form names code, and where. Raises `ConfigurationError` for what a client may not ask for."""
    if not isinstance(document, Map):
        return
    places = {key.lower(): (value, document.places[key]) for key, value in document.items()}  # section names may be in capitals
    for key in ("system_prompt", "system_prompt_extensions", "microagents"):
        given, at = places.get(key, (None, document.place))
        for value, place in zip(given, given.places, strict=True) if isinstance(given, Seq) else [(given, at)]:
            if value is not None and not isinstance(value, str):
                raise place.error("it takes a text here: the agent server reads no file of its own for a client.")
    skills, at = places.get("skills", (None, document.place))
    if isinstance(skills, Map):  # sections, but not their keys, may be in capitals
        if "folders" in skills:
            raise skills.places["folders"].error("the agent server reads no skills of its own for a client; put their text into list.")
    elif skills:
        raise at.error("the agent server reads no skills of its own for a client; put their text into skills.list.")
    known, at = places.get("instructions", (None, document.place))
    if known is not None and not (isinstance(known, Map) and "folder" not in known):
        raise at.error("the agent server reads no instructions of its own for a client; put their text into instructions.texts.")
    yield from _of_model(*places.get("model", (None, document.place)))
    yield from _of_model(*places.get("describe_images", (None, document.place)))
    yield from _of_confirm(places.get("confirm", (None, document.place))[0])
    yield from _of_security(*places.get("security", (None, document.place)))
    yield from _of_condenser(*places.get("condenser", (None, document.place)))
    if isinstance(output := places.get("output_type", (None, document.place))[0], str):
        yield from _target(output, places["output_type"][1])
    elif isinstance(output, Map) and list(output) == ["file"]:
        place = places["output_type"][1]
        raise place.error("it takes the JSON Schema itself here: the agent server reads no file of its own for a client.")
    yield from _of_tools(*places.get("tools", (None, document.place)))
    for key in ("delegates", "handoffs"):
        for other, at in _each(*places.get(key, (None, document.place))):
            if isinstance(other, str):
                raise at.error("it takes an agent's mapping here: the agent server reads no file of its own for a client.")
            yield from _named(other)
    _bounded(places.get("delegation", (None, document.place))[0])
    hooks, at = places.get("hooks", (None, document.place))
    _no_commands(hooks, at, True)
    yield from _hooks(hooks)


def _bounded(delegation: Any) -> None:
    if isinstance(delegation, Map):
        for key, most in _MOST_CHILDREN:
            if isinstance(delegation.get(key), int | float) and delegation[key] > most:
                raise delegation.places[key].error(f"the agent server takes at most {most}.")
        if delegation.get("detached"):
            raise delegation.places["detached"].error("the agent server ends children with their conversation.")


def _of_model(value: Any, place: Place) -> Iterator[tuple[Place, str]]:
    if isinstance(value, Seq):
        for member, at in _each(value, place):
            yield from _of_model(member, at)
    elif isinstance(value, Map):
        if value.get("use") == "litellm":
            yield value.places["use"], "litellm"
        elif value.get("use") != "scripted":
            yield from _use(value)
        for key in ("fallback", "router"):
            if key in value:
                for member, at in _each(value[key], value.places[key]):
                    yield from _of_model(member, at)
        if "pick" in value:
            yield from _target(value["pick"], value.places["pick"])
        for name, at in _each(value.get("on"), value.places.get("on", place)):
            if isinstance(name, str) and not name.isidentifier():
                yield from _target(name, at)


def _of_condenser(value: Any, place: Place) -> Iterator[tuple[Place, str]]:
    if isinstance(value, str) and value not in CONDENSERS:
        yield from _target(value, place)
    elif isinstance(value, Map):
        yield from _use(value)
        yield from _of_model(value.get("model"), value.places.get("model", place))
        yield from _of_condenser(value.get("condensers"), value.places.get("condensers", place))
    elif isinstance(value, Seq):
        for member, at in _each(value, place):
            yield from _of_condenser(member, at)


def _of_confirm(value: Any) -> Iterator[tuple[Place, str]]:
    if isinstance(value, Map):
        yield from _use(value)
        for member, _ in _each(value.get("strictest"), Place("")) if isinstance(value.get("strictest"), Seq) else ():
            yield from _of_confirm(member)


def _of_security(value: Any, place: Place) -> Iterator[tuple[Place, str]]:
    if isinstance(value, str) and value not in ANALYZERS:
        yield from _target(value, place)
    elif isinstance(value, Map):
        yield from _use(value)
        yield from _of_model(value.get("model"), value.places.get("model", place))
    elif isinstance(value, Seq):
        for member, at in _each(value, place):
            yield from _of_security(member, at)


def _of_tools(value: Any, place: Place) -> Iterator[tuple[Place, str]]:
    if isinstance(value, str):
        raise place.error("it takes a mapping here: the agent server reads no file of its own for a client.")
    if not isinstance(value, Map):
        return
    known = ("$schema", "builtin", "mcp_servers", "mcpServers", "a2a_agents", "concurrency", "result_limit", "hooks")
    for key in value:
        if key not in known and value[key]:
            raise value.places[key].error(f"the agent server takes no {key} from a client; it takes: {', '.join(known[1:])}.")
    _no_commands(value, place, False)
    yield from _hooks(value)


def _no_commands(entry: Any, place: Place, hooks: bool) -> None:
    """A hook's command would run on this machine, with nothing around it."""
    if isinstance(entry, Map):
        if hooks and "command" in entry:
            raise entry.places["command"].error("the agent server runs no commands of a client's hooks; give functions that it may import.")
        for key, value in entry.items():
            _no_commands(value, entry.places[key], hooks or key.lower() == "hooks")
    elif isinstance(entry, Seq):
        for value, at in zip(entry, entry.places, strict=True):
            _no_commands(value, at, hooks)


def _hooks(entry: Any) -> Iterator[tuple[Place, str]]:
    """Of hooks at any depth, since some spellings wrap one section in another."""
    for value, place in _each(entry, Place("")) if isinstance(entry, Map | Seq) else ():
        yield from _hooks(value)
        if isinstance(value, Map):
            for key in ("before", "after"):
                if isinstance(value.get(key), str):
                    yield from _target(value[key], place.at(key))


def _use(value: Map) -> Iterator[tuple[Place, str]]:
    if isinstance(value.get("use"), str) and value["use"] not in ("allow", "ask", "deny"):
        yield from _target(value["use"], value.places["use"])


def _target(value: Any, place: Place) -> Iterator[tuple[Place, str]]:
    """`module:qualname`, also where a variable gives it: what it will be is not known here, so that is refused."""
    if not isinstance(value, str) or ":" not in value or "${" in value:
        raise place.error(f"it takes 'module:qualname', not {_shown(value)}.")
    yield place, value


def _each(value: Any, place: Place) -> Iterator[tuple[Any, Place]]:
    """A value's members if it is a list or a mapping, else the value itself."""
    if isinstance(value, Seq):
        yield from zip(value, value.places, strict=True)
    elif isinstance(value, Map):
        for key, member in value.items():
            yield member, value.places[key]
    else:
        yield value, place
