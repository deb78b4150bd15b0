"""`Policy`: the modules that an agent server imports at a client's request, and the parts of an
agent that it refuses to load."""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from hashlib import sha256
from types import ModuleType
from typing import Any, cast

import msgspec

from holdfast.agent.config import KEYS
from holdfast.agent.config_parts import ANALYZER, CONDENSER, JUDGE
from holdfast.errors import ConfigurationError
from holdfast.tools.document import Map, Seq, SourceLocation, load
from holdfast.tools.patterns import name_fits

# The entry point group with which an installed package announces that its modules declare tools.
GROUP = "holdfast.tools"

# Holdfast's own tools are allowed without a lookup, because a checkout may have no metadata.
_PRESET = ("holdfast.tools.preset", "holdfast.tools.preset.*")

# ASCII only: a name in other letters may look like an allowed one, and Python normalises some of
# them to the same name.
_MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*")
_PATTERN = re.compile(r"[A-Za-z0-9_.*?\[\]!-]+")
# No part begins with _, which excludes private names and Python's special ones.
_TARGET = re.compile(r"[A-Za-z][A-Za-z0-9_]*(?:\.[A-Za-z][A-Za-z0-9_]*)*")
_MAX_NAME_CHARACTERS = 200
_MOST_APPROVED = 1000  # hashes


IMPORT_TIMEOUT = 10.0
"""Seconds for the imports of one request. A client repeats a request after 20 seconds of silence
and gives up after 60."""


class Policy:
    """Decides which modules may be imported by name.

    Allowed are modules that match one of `patterns`, each for a whole dotted name (`acme_tools`,
    `acme.tools.*`, `*` for all), and Holdfast's own `holdfast.tools.preset`. With `entry_points`,
    the policy also allows installed packages that declare an entry point of the group
    `holdfast.tools`. Allowed is the package of the entry point's module, with everything below it.
    Installed packages are looked up once. A package above an allowed module is imported with it.

    `import_timeout` is the time in seconds for all modules of one request. Modules that take
    longer are not used. Without `programs` an agent of a client starts no programs as MCP servers,
    which would not be in a sandbox. With `hook_commands` the hooks of a client's agent may run
    commands: in the sandbox, if there is one. Thread-safe. Raises `ConfigurationError` for an
    invalid pattern.
    """

    def __init__(
        self,
        patterns: Sequence[str] = (),
        entry_points: bool = True,
        import_timeout: float = IMPORT_TIMEOUT,
        programs: bool = True,
        hook_commands: bool = False,
    ) -> None:
        if isinstance(patterns, str):
            message = "Policy: patterns takes a list of patterns of module names, not"
            raise ConfigurationError(f"{message} {patterns!r}.")
        for pattern in cast("Sequence[Any]", patterns):
            if not isinstance(pattern, str) or not _PATTERN.fullmatch(pattern):
                raise ConfigurationError(
                    "Policy: patterns takes patterns of module names, such as 'acme.tools.*', not"
                    f" {pattern!r}."
                )
        self.approved = ApprovedForms()
        if not import_timeout > 0:
            raise ConfigurationError(
                f"Policy: import_timeout takes seconds above 0, not {import_timeout!r}."
            )
        self.patterns = tuple(patterns)
        self.import_timeout = import_timeout
        self.programs = programs
        self.hook_commands = hook_commands
        self._entry_points = entry_points
        self._lock = threading.Lock()
        self._packages: tuple[str, ...] | None = None

    def allows(self, module: str) -> bool:
        """Return True if clients may name the module. Imports nothing."""
        return not self.refusal(module)

    def refusal(self, module: str) -> str:
        """Return the reason why a module may not be imported, or "" if it may."""
        name: Any = module
        is_name = isinstance(name, str) and _MODULE.fullmatch(name)
        if not is_name or len(name) > _MAX_NAME_CHARACTERS:
            return (
                f"{_preview(name)} is not a module's name: a name has at most"
                f" {_MAX_NAME_CHARACTERS} ASCII letters, digits and _, with dots between its parts"
            )
        below = f"{name}."
        if any(name_fits(name, pattern) for pattern in (*self.patterns, *_PRESET)):
            return ""
        if any(below.startswith(f"{package}.") for package in self.packages):
            return ""
        return (
            f"the server's policy does not allow the module {name!r} (the option --allow-tools of"
            " holdfast serve allows modules)"
        )

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages that entry points allow."""
        if not self._entry_points:
            return ()
        with self._lock:
            if self._packages is None:
                from importlib.metadata import entry_points

                modules = {entry.module for entry in entry_points(group=GROUP)}
                module_names = [module for module in modules if _MODULE.fullmatch(module)]
                packages = {module.rpartition(".")[0] or module for module in module_names}
                self._packages = tuple(sorted(packages))
            return self._packages

    def __repr__(self) -> str:
        return f"Policy({list(self.patterns)!r}, entry_points={self._entry_points})"


class ApprovedForms:
    """The forms that passed the checks below last, by hash. Thread-safe.

    A policy does not change, and a module is imported once in a process, so a form that passed
    stays valid.
    """

    def __init__(self) -> None:
        self._hashes: dict[bytes, None] = {}

    def hash(self, form: object, *check: object) -> bytes:
        """Return the hash of a form and of the check that it is to pass."""
        return sha256(msgspec.json.encode([check, form])).digest()

    def __contains__(self, hash: bytes) -> bool:
        return hash in self._hashes

    def add(self, hash: bytes) -> None:
        if len(self._hashes) >= _MOST_APPROVED:
            self._hashes = {}
        self._hashes[hash] = None


def _preview(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


# --- agents ---


_NO_FILES = "the agent server reads no file of its own for a client."
_NO_PARTS = "the agent server reads no {} of its own for a client. Put their text into {}."
_SERVICES = ("mcp_servers", "mcpServers", "a2a_agents")
_TOOL_KEYS = ("builtin", *_SERVICES, "concurrency", "result_limit", "hooks")
_HOOKS = ("hooks",)
_NO_HOOK_COMMANDS = (
    "the agent server runs no commands of a client's hooks, unless its operator allows them with"
    " --allow-hook-commands. Use functions that it may import."
)
# The keys of an agent's form that name neither code nor files.
_PLAIN = (
    "$schema",
    "code",
    "description",
    "limits",
    "output_limit",
    "output_rounds",
    "parallel_calls",
    "planning",
    "stop_denials",
    "stuck",
    "tree_limits",
)
_DELEGATION_LIMITS = (("max_depth", 8), ("max_running", 32), ("max_messages", 200))


def check_agent(mapping: Mapping[str, Any], policy: Policy, *, programs: bool = True) -> list[str]:
    """Check an agent's serial form from a client before it is loaded. Return the modules that
    loading it will import.

    Raises `ConfigurationError` with the place of a refused part:

    - a part that reads this machine's files: `{file: ...}`, `tools` as a path, skills, pins, a
      result_dir;
    - local functions, and names of code beyond the policy in `use`, `pick`, `on` and hooks;
    - litellm, which reads this process's environment, unless the policy allows `litellm`;
    - without `programs` a program as MCP server, even if the policy allows programs.
    """
    document, _ = load(mapping, "agent")
    if not (programs and policy.programs):
        why = "the agent server starts no programs outside of its sandbox. Use a server with a url."
        _no_commands(document, document.place, ("mcp_servers", "mcpservers"), why)
    modules: dict[str, None] = {}
    for place, target in _code_names(document, policy.hook_commands):
        module, _, qualname = target.partition(":")
        if reason := policy.refusal(module):
            raise place.error(f"{reason}.")
        if qualname and not _TARGET.fullmatch(qualname):
            raise place.error(f"{_preview(qualname)} is not the name of a module's public member.")
        modules[module] = None
    return list(modules)


def check_parts(mapping: Mapping[str, Any], policy: Policy) -> None:
    """Check, once the modules are imported, that an allowed module itself defines each named
    object. An object that it merely imported, such as `subprocess`, is refused. Raises
    `ConfigurationError` with the place."""
    import sys

    document, _ = load(mapping, "agent")
    for place, target in _code_names(document, policy.hook_commands):
        module, _, qualname = target.partition(":")
        loaded: Any = sys.modules.get(module)
        for part in qualname.split(".") if qualname else ():
            loaded = getattr(loaded, part, None)
            home: Any = (
                getattr(loaded, "__module__", None)
                if inspect.isclass(loaded) or inspect.isroutine(loaded)
                else module
            )
            foreign = not isinstance(home, str) or not policy.allows(home)
            if foreign or isinstance(loaded, ModuleType):
                raise place.error(
                    f"{target!r} is not defined by {module}. Name an object that {module} defines"
                    " itself."
                )


def _code_names(document: Any, hook_commands: bool) -> Iterator[tuple[SourceLocation, str]]:
    """Yield each name of code in an agent's form with its place. Raises `ConfigurationError` for
    parts that a client may not use. `hook_commands`: hooks may run commands."""
    if not isinstance(document, Map):
        return
    # Section names may be in capitals.
    places = {key.lower(): (value, document.places[key]) for key, value in document.items()}

    checked = set[str](_PLAIN)

    def part(key: str) -> tuple[Any, SourceLocation]:
        checked.add(key)
        return places.get(key, (None, document.place))

    for key in ("system_prompt", "system_prompt_extensions", "microagents"):
        texts, at = part(key)
        for value, place in _each(texts, at) if isinstance(texts, Seq) else [(texts, at)]:
            if value is not None and not isinstance(value, str):
                raise place.error(f"it must be a text: {_NO_FILES}")
    skills, at = part("skills")
    if isinstance(skills, Map):  # sections, but not their keys, may be in capitals
        if "folders" in skills:
            raise skills.places["folders"].error(_NO_PARTS.format("skills", "list"))
    elif skills:
        raise at.error(_NO_PARTS.format("skills", "skills.list"))
    plugins, at = part("plugins")
    if plugins:
        raise at.error(_NO_FILES)
    instructions, at = part("instructions")
    if instructions is not None and not (
        isinstance(instructions, Map) and "folder" not in instructions
    ):
        raise at.error(_NO_PARTS.format("instructions", "instructions.texts"))
    yield from _of_model(*part("model"))
    yield from _of_model(*part("describe_images"))
    yield from _of_model(*part("title"))
    for member, at in _each(*part("models")):
        yield from _of_model(member, at)
    yield from _of_confirm(part("confirm")[0])
    yield from _of_part(*part("security"), ANALYZER.kinds)
    yield from _of_part(*part("condenser"), CONDENSER.kinds)
    goal, at = part("goal")
    if isinstance(goal, Map):
        yield from _of_part(goal.get("judge"), goal.places.get("judge", at), JUDGE.kinds)
    output, at = part("output_type")
    if isinstance(output, str):
        yield from _target(output, at)
    elif isinstance(output, Map) and list(output) == ["file"]:
        raise at.error(f"it must be the JSON Schema itself: {_NO_FILES}")
    yield from _of_tools(*part("tools"), hook_commands)
    for key in ("delegates", "handoffs"):
        for other, at in _each(*part(key)):
            if isinstance(other, str):
                raise at.error(f"it must be an agent's mapping: {_NO_FILES}")
            yield from _code_names(other, hook_commands)
    _check_delegation(part("delegation")[0])
    hooks, at = part("hooks")
    for hook, place in _each(hooks, at) if isinstance(hooks, Seq) else [(hooks, at)]:
        judge: dict[str, Any] = {}
        if isinstance(hook, Map):
            judge = {key: value for key, value in hook.items() if key in ("agent", "model")}
            hook = Map(place, [one for one in hook.members() if one[0] not in judge])
        if not hook_commands:
            _no_commands(hook, place, _HOOKS, _NO_HOOK_COMMANDS, True)
        yield from _hooks(Seq(place, [(hook, place)]))
        if isinstance(judge.get("agent"), str):
            raise place.error(f"it must be an agent's mapping: {_NO_FILES}")
        yield from _code_names(judge.get("agent"), hook_commands)
        yield from _of_model(judge.get("model"), place)
    for key in KEYS.keys.keys() - checked:  # a key that was forgotten above is refused
        if part(key)[0]:
            raise part(key)[1].error("the agent server accepts no such part from a client.")


def _check_delegation(delegation: Any) -> None:
    if isinstance(delegation, Map):
        for key, most in _DELEGATION_LIMITS:
            if isinstance(delegation.get(key), int | float) and delegation[key] > most:
                raise delegation.places[key].error(f"the agent server allows at most {most}.")
        if delegation.get("detached"):
            raise delegation.places["detached"].error(
                "the agent server ends children with their conversation."
            )


def _of_model(value: Any, place: SourceLocation) -> Iterator[tuple[SourceLocation, str]]:
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


def _of_part(
    value: Any, place: SourceLocation, kinds: Collection[str]
) -> Iterator[tuple[SourceLocation, str]]:
    """Yield the names in a security analyzer or a condenser, which may consist of others."""
    if isinstance(value, str) and value not in kinds:
        yield from _target(value, place)
    elif isinstance(value, Map):
        yield from _use(value)
        yield from _of_model(value.get("model"), value.places.get("model", place))
        for key in ("condensers", "otherwise"):
            yield from _of_part(value.get(key), value.places.get(key, place), kinds)
    elif isinstance(value, Seq):
        for member, at in _each(value, place):
            yield from _of_part(member, at, kinds)


def _of_confirm(value: Any) -> Iterator[tuple[SourceLocation, str]]:
    if isinstance(value, Map):
        yield from _use(value)
        if "judge" in value:
            yield from _of_model(value.get("model"), value.place)
        members = value.get("strictest")
        for member in members if isinstance(members, Seq) else ():
            yield from _of_confirm(member)


def _of_tools(
    value: Any, place: SourceLocation, hook_commands: bool
) -> Iterator[tuple[SourceLocation, str]]:
    if isinstance(value, str):
        raise place.error(f"it must be a mapping: {_NO_FILES}")
    if not isinstance(value, Map):
        return
    for key in value:
        if key not in ("$schema", *_TOOL_KEYS) and value[key]:
            raise value.places[key].error(
                f"the agent server accepts no {key} from a client. It accepts:"
                f" {', '.join(_TOOL_KEYS)}."
            )
    for entry, at in _each(value.get("builtin"), place):
        if isinstance(entry, Map) and any("module" in key or "func" in key for key in entry):
            raise at.error("it must name a tool: the agent server accepts no functions here.")
    if not hook_commands:
        _no_commands(value, place, _HOOKS, _NO_HOOK_COMMANDS)
    yield from _hooks(value)


def runs_commands(form: object) -> bool:
    """Return True if hooks, or the judge of a goal, run commands in an agent's form."""
    return b'"command"' in msgspec.json.encode(form) and _runs_commands(form)


def _runs_commands(form: object, inside: bool = False) -> bool:
    """Return the same as `runs_commands`. `inside`: this is a part of hooks, or of a judge."""
    if isinstance(form, str | bytes):  # most values of a form; first, as the others take longer
        return False
    if isinstance(form, Mapping):
        members = cast("Mapping[str, object]", form)
        if inside and "command" in members:
            return True
        return any(
            _runs_commands(value, inside or key.lower() in ("hooks", "judge"))
            for key, value in members.items()
        )
    if isinstance(form, Sequence):
        return any(_runs_commands(value, inside) for value in cast("Sequence[object]", form))
    return False


def _no_commands(
    entry: Any, place: SourceLocation, sections: Collection[str], why: str, inside: bool = False
) -> None:
    """Refuse commands in sections with these names, which are in lower case, at any depth: they
    would run on this machine without a sandbox. `inside`: the entry is in one."""
    if isinstance(entry, Map):
        if inside and "command" in entry:
            raise entry.places["command"].error(why)
        for key, value in entry.items():
            below = inside or key.lower() in sections
            _no_commands(value, entry.places[key], sections, why, below)
    elif isinstance(entry, Seq):
        for value, at in zip(entry, entry.places, strict=True):
            _no_commands(value, at, sections, why, inside)


def _hooks(entry: Any) -> Iterator[tuple[SourceLocation, str]]:
    """Yield the functions of hooks at any depth, because some spellings wrap one section in
    another."""
    for value, place in _each(entry, SourceLocation("")) if isinstance(entry, Map | Seq) else ():
        yield from _hooks(value)
        if isinstance(value, Map):
            for key in ("before", "after"):
                if isinstance(value.get(key), str):
                    yield from _target(value[key], place.at(key))
            for key in ("pre", "post"):  # an earlier spelling, of which the names are not checked
                if isinstance(value.get(key), Seq):
                    raise value.places[key].error("write hooks with before and after.")


def _use(value: Map) -> Iterator[tuple[SourceLocation, str]]:
    if isinstance(value.get("use"), str) and value["use"] not in ("allow", "ask", "deny"):
        yield from _target(value["use"], value.places["use"])


def _target(value: Any, place: SourceLocation) -> Iterator[tuple[SourceLocation, str]]:
    """Yield a `module:qualname`. A target that contains a variable is refused, because its value
    is not known yet."""
    if not isinstance(value, str) or ":" not in value or "${" in value:
        raise place.error(f"it must be 'module:qualname', not {_preview(value)}.")
    yield place, value


def _each(value: Any, place: SourceLocation) -> Iterator[tuple[Any, SourceLocation]]:
    """Yield the members of a list or mapping, or else the value itself."""
    if isinstance(value, Seq):
        yield from zip(value, value.places, strict=True)
    elif isinstance(value, Map):
        for key, member in value.items():
            yield member, value.places[key]
    else:
        yield value, place
