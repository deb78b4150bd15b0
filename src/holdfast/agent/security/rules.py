"""`Rules`: the risk of a call by what its arguments say: the command, the paths, the addresses."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from holdfast.agent.risk import Level, Risk, Surroundings
from holdfast.agent.security.grammar import HARMLESS
from holdfast.agent.security.network import fetch, is_url
from holdfast.agent.security.paths import HIGH, LOW, MEDIUM, UNKNOWN, Finding, Places
from holdfast.agent.security.programs import judge
from holdfast.agent.security.repository import searched
from holdfast.agent.security.script import Reader, shell_effect
from holdfast.agent.security.words import Names
from holdfast.content import ToolCall
from holdfast.errors import ConfigurationError
from holdfast.runtime.paths import home_folder

_LEVELS: tuple[Level, ...] = ("low", "medium", "unknown", "high")
_PATHS = frozenset(
    [
        "path",
        "file",
        "file_path",
        "filepath",
        "filename",
        "directory",
        "dir",
        "folder",
        "source",
        "destination",
        "target",
        "cwd",
        "root",
        "repo_path",
        "paths",
        "files",
    ]
)
_URLS = ("url", "uri", "urls", "endpoint", "address", "link", "href", "base_url")
_ANSWERS = re.compile(r"\s*(?:[yYnN]|yes|no|\d{1,3})?\s*")
_ENVIRONMENT = re.compile(r"VIRTUAL_ENV|VIRTUAL_ENV_PROMPT|PS1|OLDPWD|CONDA_(?:DEFAULT_ENV|PROMPT_MODIFIER|SHLVL)|_OLD_VIRTUAL_\w+")
_PATH = frozenset(("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", "/opt/homebrew/bin"))
_LOOKED = 1000  # values of a call's arguments that are looked at


@functools.cache
def _home() -> str:
    return home_folder() or ""


def _commands() -> dict[str, str]:
    return {"terminal": "command"}


class Rules(msgspec.Struct, frozen=True):
    """Judges what a call would do by what it is given: a shell command, paths, and addresses. It says nothing of calls that have none of these.

    A command is low or medium only if that is proven: by a strict grammar, and by tables of programs with the options that they may have.
    Whatever is recognised as dangerous is high, and all else unknown.

    Args:
        hosts: Names of hosts that may be fetched from (`*.example.com`).
        writable: Folders beside the working directory that may be written to.
        commands: The tools whose argument is a shell command, with the name of that argument.

    Raises `ConfigurationError` for other values.
    """

    hosts: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    commands: Mapping[str, str] = msgspec.field(default_factory=_commands)

    def __post_init__(self) -> None:
        given: dict[str, Any] = {"hosts": self.hosts, "writable": self.writable}
        for key, value in given.items():
            if not isinstance(value, list | tuple) or not all(isinstance(one, str) and one for one in cast("list[Any]", value)):
                raise ConfigurationError(f"Rules: {key} takes a list of texts, not {value!r}.")
            msgspec.structs.force_setattr(self, key, tuple(cast("list[str]", value)))
        commands: Any = self.commands
        if not isinstance(commands, Mapping) or not all(
            isinstance(one, str) for pair in cast("Mapping[Any, Any]", commands).items() for one in pair
        ):
            raise ConfigurationError(f"Rules: commands takes a mapping of tools to the argument that is a command, not {commands!r}.")

    @property
    def name(self) -> str:
        """What it is called in journals."""
        return "rules"

    def assess(self, call: ToolCall, about: Surroundings) -> Risk | None:
        """See `SecurityAnalyzer.assess`."""
        if call.name in self.commands:
            command = call.arguments.get(self.commands[call.name])
            if not isinstance(command, str):
                return Risk("unknown", f"{call.name} has no command that is a text")
            return _risk(self._command(command, about))
        if call.name == "terminal_input":
            return _risk(_input(call.arguments))
        found = self._arguments(call, about)
        return None if found is None else _risk(found)

    def command(self, command: str, workdir: str | os.PathLike[str] = ".") -> Risk:
        """Judge one shell command in a folder, as a fresh shell would run it."""
        found = self._command(command, Surroundings(workdir=os.path.realpath(workdir)))
        return msgspec.structs.replace(_risk(found), by=self.name)

    def _command(self, command: str, about: Surroundings) -> Finding:
        reader = Reader(self._places(about), self.hosts, judge)
        workdir = reader.places.workdir
        # A shell that is started again begins in the working directory.
        cwds = (workdir,) if workdir else ()
        if workdir and about.shell.cwd and (cwd := os.path.realpath(about.shell.cwd)) != workdir:
            cwds = (workdir, cwd)
        ran, before = self._commands(about.history()), self._commands(about.before)
        effects = {one: shell_effect(one) for one in [*ran, *before]}
        moved = any(effects[one] == "moves" for one in ran)
        reader.wrote = len(before) < len(about.before)
        found = reader.read(command, () if moved else cwds, [one for one in before if effects[one] != "changes"])
        changer = next((one for one, effect in effects.items() if effect == "changes"), None)
        if changer is not None:
            return max(found, Finding(UNKNOWN, f"an earlier command may have changed what this one does: {changer.strip()[:80]}"))
        return max(found, _environment(reader.places, about.shell.exported))

    def _commands(self, calls: Sequence[ToolCall]) -> list[str]:
        found = [call.arguments.get(self.commands[call.name]) for call in calls if call.name in self.commands]
        return [one for one in found if isinstance(one, str)]

    def _places(self, about: Surroundings) -> Places:
        return Places(about.workdir, _home(), self.writable)

    def _arguments(self, call: ToolCall, about: Surroundings) -> Finding | None:
        """The highest of what the paths and addresses among a call's arguments are; None if there are none."""
        highest: Finding | None = None
        places: Places | None = None
        changes = about.annotations is None or not about.annotations.read_only
        arguments = {"path": ".", **call.arguments} if call.name == "grep" else call.arguments
        texts, whole = _texts(arguments)
        if not whole:
            highest = Finding(UNKNOWN, f"{call.name} is given more than is looked at")
        for key, value in texts:
            if is_url(value) or key in _URLS:
                found = fetch(value, self.hosts)
            elif key in _PATHS and about.workdir:
                searches = call.name == "grep" and not changes
                places = places or self._places(about)
                path = places.home + value[1:] if value == "~" or value.startswith("~/") else value
                if "\0" in path:
                    found = Finding(HIGH, "a path with a zero byte")
                elif searches:
                    found = _searched(places, path, about.workdir, call.arguments.get("glob"))
                else:
                    found = places.write(path, about.workdir, f"{call.name} changes") if changes else places.read(path, about.workdir)
                if not found.reason:
                    found = Finding(found.rank, f"{call.name} reads {value[:80]}")
            else:
                continue
            if highest is None or found.rank > highest.rank:
                highest = found
        return highest


def _environment(places: Places, exported: Mapping[str, str]) -> Finding:
    """The least risk of a command with variables that earlier commands exported: programs may act on them."""
    least = Finding(LOW)
    for name, value in exported.items():
        if name == "PATH" and all(part in _PATH or (part and places.is_inside(part, "/")) for part in value.split(":")):
            least = max(least, Finding(MEDIUM, "its programs may be those of the working directory, which PATH has"))
        elif not _ENVIRONMENT.fullmatch(name) and not (HARMLESS.fullmatch(name) and re.fullmatch(r"[\w.@-]*", value)):
            return Finding(UNKNOWN, f"an earlier command has set {name[:40]}, which this one may act on")
    return least


def _risk(found: Finding) -> Risk:
    return Risk(_LEVELS[found.rank], found.reason)


def _searched(places: Places, path: str, workdir: str, glob: Any) -> Finding:
    """A search by the runtime's `grep` tool, which leaves out what git ignores."""
    found = places.read(path, workdir)
    real = places.real(path, workdir)
    if found.rank == HIGH or not os.path.isdir(real):
        return found
    last = glob.rpartition("/")[2] if isinstance(glob, str) else ""
    names = Names((last,) if last and not re.search(r"[{}\[\\]", last) else ())
    walk = places.walk(real, names.keep)
    for secret in walk.secrets:
        if searched(real, secret):
            return Finding(HIGH, f"searches all that is in {path[:80]}, and that has secrets: {secret[:80]}")
    return (
        found if walk.whole else Finding(UNKNOWN, f"searches all that is in {path[:80]}, which is more than is looked through for secrets")
    )


def _input(arguments: Mapping[str, Any]) -> Finding:
    """What is typed into a program that runs."""
    text, control = arguments.get("text", ""), arguments.get("control", "none")
    if not isinstance(text, str) or not _ANSWERS.fullmatch(text[:200]) or len(text) > 200:
        return Finding(UNKNOWN, "types into a program that runs, which may do with it what it likes")
    if text or control in ("kill", "eof"):
        return Finding(MEDIUM, "answers or ends the command that runs")
    return Finding(LOW, "looks at the command that runs, or interrupts it")


def _texts(arguments: Mapping[str, Any]) -> tuple[list[tuple[str, str]], bool]:
    """The texts among arguments, each with the key that it stands under, and whether those are all."""
    found: list[tuple[str, str]] = []
    stack: list[tuple[str, Any]] = list(arguments.items())
    seen, whole = 0, True
    while stack and seen < _LOOKED:
        key, value = stack.pop()
        seen += 1
        if isinstance(value, str):
            found.append((key.lower(), value))
        elif isinstance(value, Mapping):
            stack += list(cast("Mapping[str, Any]", value).items())
        elif isinstance(value, list):
            whole = whole and len(cast("list[Any]", value)) <= _LOOKED
            stack += [(key, one) for one in cast("list[Any]", value)[:_LOOKED]]
    return found, whole and not stack
