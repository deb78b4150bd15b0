"""`Rules`: the risk of a call by what its arguments say: the command, the paths, the addresses."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from holdfast.agent.risk import Level, Risk, Surroundings
from holdfast.agent.security.network import fetch, is_url
from holdfast.agent.security.paths import HIGH, LOW, MEDIUM, UNKNOWN, Finding, Places
from holdfast.agent.security.shell import Reader, grammar
from holdfast.content import ToolCall
from holdfast.errors import ConfigurationError
from holdfast.runtime.paths import home_folder

_LEVELS: tuple[Level, ...] = ("low", "medium", "unknown", "high")
_PATHS = (
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
)
_URLS = ("url", "uri", "urls", "endpoint", "address", "link", "href", "base_url")
_ANSWERS = re.compile(r"\s*(?:[yYnN]|yes|no|\d{1,3})?\s*")
_LOOKED = 1000  # values of a call's arguments that are looked at


@functools.cache
def _home() -> str:
    return home_folder() or ""


def _commands() -> dict[str, str]:
    return {"terminal": "command"}


class Rules(msgspec.Struct, frozen=True):
    """Reads what a call would do: commands with a shell's grammar (the extra `holdfast[security]`), paths as the working directory has them, and
    addresses. It says nothing of calls that have none of these. What cannot be read or known beforehand is never low.

    `hosts` are the names that may be fetched from without more ado (`*.example.com`); `writable` are folders beside the working directory that
    may be written to. `commands` says which argument of which tool is a shell command: {"terminal": "command"}.

    Raises `ConfigurationError` if tree-sitter is not installed.
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
        grammar()

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
            return _risk(self._reader(about).read(command))
        if call.name == "terminal_input":
            return _risk(_input(call.arguments))
        found = self._arguments(call, about)
        return None if found is None else _risk(found)

    def command(self, command: str, workdir: str | os.PathLike[str] = ".") -> Risk:
        """The risk of one shell command in a folder: for trying the rules."""
        found = self._reader(Surroundings(workdir=os.path.realpath(workdir))).read(command)
        return msgspec.structs.replace(_risk(found), by=self.name)

    def _reader(self, about: Surroundings) -> Reader:
        from holdfast.agent.security.programs import judge

        return Reader(self._places(about), self.hosts, judge)

    def _places(self, about: Surroundings) -> Places:
        return Places(about.workdir, _home(), self.writable)

    def _arguments(self, call: ToolCall, about: Surroundings) -> Finding | None:
        """The highest of what the paths and addresses among a call's arguments are; None if there are none."""
        highest: Finding | None = None
        places: Places | None = None
        changes = about.annotations is None or not about.annotations.read_only
        texts, whole = _texts(call.arguments)
        if not whole:
            highest = Finding(UNKNOWN, f"{call.name} is given more than is looked at")
        for key, value in texts:
            if is_url(value) or key in _URLS:
                found = fetch(value, self.hosts)
            elif key in _PATHS and about.workdir:
                places = places or self._places(about)
                path = places.home + value[1:] if value == "~" or value.startswith("~/") else value
                if "\0" in path:
                    found = Finding(HIGH, "a path with a zero byte")
                else:
                    found = places.write(path, about.workdir, f"{call.name} changes") if changes else places.read(path, about.workdir)
                if not found.reason:
                    found = Finding(found.rank, f"{call.name} reads {value[:80]}")
            else:
                continue
            if highest is None or found.rank > highest.rank:
                highest = found
        return highest


def _risk(found: Finding) -> Risk:
    return Risk(_LEVELS[found.rank], found.reason)


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
