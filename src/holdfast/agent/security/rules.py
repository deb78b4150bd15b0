"""`RiskRules`: the risk of a call by what its arguments say: the command, the paths, the
addresses."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, cast

import msgspec

from holdfast import patches
from holdfast.agent.risk import Level, Risk, Surroundings
from holdfast.agent.security.analyzers import checked_field
from holdfast.agent.security.grammar import is_harmless_variable
from holdfast.agent.security.paths import (
    LOW,
    MEDIUM,
    UNKNOWN,
    FileNames,
    RiskFinding,
    ShellPaths,
    is_url,
)
from holdfast.agent.security.programs import judge
from holdfast.agent.security.script import ScriptReader, shell_effect
from holdfast.content import ToolCall
from holdfast.errors import RuntimeFault
from holdfast.runtime.paths import home_folder
from holdfast.tools.names import word_set

_LEVELS: tuple[Level, ...] = ("low", "medium", "unknown", "high")
_PATH_KEYS = word_set(
    "path file file_path filepath filename directory dir folder source destination target cwd root"
    " repo_path paths files"
)
_URL_KEYS = word_set("url uri urls endpoint address link href base_url")
_ANSWERS = re.compile(r"\s*(?:[yYnN]|yes|no|\d{1,3})?\s*")
_ENVIRONMENT = re.compile(
    r"VIRTUAL_ENV|VIRTUAL_ENV_PROMPT|PS1|OLDPWD|CONDA_(?:DEFAULT_ENV|PROMPT_MODIFIER|SHLVL)"
    r"|_OLD_VIRTUAL_\w+"
)
_PROGRAM_FOLDERS = word_set(
    "/usr/local/sbin /usr/local/bin /usr/sbin /usr/bin /sbin /bin /opt/homebrew/bin"
)
_MAX_VALUES = 1000  # values of a call's arguments that are looked at


@functools.cache
def _home() -> str:
    return home_folder() or ""


class RiskRules(msgspec.Struct, frozen=True):
    """Judges the effects of a call by its arguments: a shell command, paths, and addresses. Calls
    without any of these are not rated.

    A command is low or medium only if a strict grammar and a table of programs with their permitted
    options prove that. A recognised danger is high, and everything else unknown.

    Args:
        hosts: Names of hosts that may be fetched from (`*.example.com`).
        writable: Folders beside the working directory that may be written to.
        commands: The tools whose argument is a shell command, with the name of that argument.

    Raises `ConfigurationError` for other values.
    """

    name: ClassVar[str] = "rules"  # in journals

    hosts: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    commands: Mapping[str, str] = msgspec.field(default_factory=lambda: {"terminal": "command"})

    def __post_init__(self) -> None:
        for key in ("hosts", "writable"):
            texts = checked_field(self, key, tuple[Annotated[str, msgspec.Meta(min_length=1)], ...])
            msgspec.structs.force_setattr(self, key, texts)
        what = "a mapping of tools to the argument that is a command"
        checked_field(self, "commands", dict[str, str], what)

    def assess(self, call: ToolCall, about: Surroundings) -> Risk | None:
        """See `SecurityAnalyzer.assess`."""
        if call.name in self.commands:
            command = call.arguments.get(self.commands[call.name])
            if not isinstance(command, str):
                return Risk("unknown", f"{call.name} has no command that is a text")
            return _risk(self._command(command, about))
        if call.name == "terminal_input":
            return _risk(_input(call.arguments))
        finding = self._arguments(call, about)
        return None if finding is None else _risk(finding)

    def command(self, command: str, workdir: str | os.PathLike[str] = ".") -> Risk:
        """Judge one shell command in a folder, as a fresh shell would run it."""
        finding = self._command(command, Surroundings(workdir=os.path.realpath(workdir)))
        return msgspec.structs.replace(_risk(finding), by=self.name)

    def _command(self, command: str, about: Surroundings) -> RiskFinding:
        reader = ScriptReader(self._paths(about), judge)
        workdir, state = reader.paths.workdir, about.shell
        # A shell that is started again begins in the working directory.
        cwds = [workdir]
        if workdir and state.cwd:
            real = os.path.realpath(state.cwd)
            cwds.append(real if real == os.path.normpath(state.cwd) else "")  # by a link
        ran, before = self._commands(about.history()), self._commands(about.before)
        if any(shell_effect(one) == "moves" for one in ran):
            cwds = [""]
        reader.wrote = len(before) < len(about.before)
        plain = [one for one in before if shell_effect(one) != "changes"]
        finding = reader.read(command, list(dict.fromkeys(cwds)), plain)
        for one in [*ran, *before]:
            if shell_effect(one) == "changes":
                excerpt = one.strip()[:80]
                reason = f"an earlier command may have changed what this one does: {excerpt}"
                return max(finding, RiskFinding(UNKNOWN, reason))
        return max(finding, _environment(reader.paths, state.exported))

    def _paths(self, about: Surroundings) -> ShellPaths:
        return ShellPaths(about.workdir, _home(), self.writable, about.confinement, self.hosts)

    def _commands(self, calls: Sequence[ToolCall]) -> list[str]:
        names = self.commands
        commands = [call.arguments.get(names[call.name]) for call in calls if call.name in names]
        return [one for one in commands if isinstance(one, str)]

    def _arguments(self, call: ToolCall, about: Surroundings) -> RiskFinding | None:
        """Return the highest risk of the paths and addresses among arguments; None without any."""
        findings = list[RiskFinding]()
        paths = self._paths(about)
        changes = about.annotations is None or not about.annotations.read_only
        kind, act = ("write", "changes") if changes else ("read", "reads")
        arguments = {"path": ".", **call.arguments} if call.name == "grep" else call.arguments
        texts, whole = _texts(arguments)
        if call.name == "apply_patch":
            texts = [*texts, *_patched_paths(arguments.get("patch"))]
        if not whole:
            findings.append(RiskFinding(UNKNOWN, f"{call.name} is given more than is looked at"))
        for key, value in texts:
            if is_url(value) or key in _URL_KEYS:
                findings.append(paths.fetch(value))
            elif key in _PATH_KEYS and about.workdir:
                path = paths.home + value[1:] if value == "~" or value.startswith("~/") else value
                if call.name == "grep" and not changes:  # it leaves out ignored files of git
                    names = _names(call.arguments.get("glob"))
                    finding = paths.read_all(path, about.workdir, names, "searches", True)
                else:
                    finding = paths.judge(kind, path, about.workdir, f"{call.name} {act}")
                reason = finding.reason or f"{call.name} reads {value[:80]}"
                findings.append(finding._replace(reason=reason))
        return max(findings, key=lambda finding: finding.rank, default=None)


def _names(glob: Any) -> FileNames:
    """Return the names that a glob allows, ignoring the exclusions of braces and sets."""
    last = glob.rpartition("/")[2] if isinstance(glob, str) else ""
    return FileNames((last,) if last and not re.search(r"[{}\[\\]", last) else ())


def _patched_paths(patch: Any) -> list[tuple[str, str]]:
    """Return the paths that a patch changes; none if it is no patch, since its call then fails."""
    try:
        files = patches.parse(patch) if isinstance(patch, str) else []
    except RuntimeFault:
        return []
    return [("path", path) for file in files for path in (file.path, file.move_to) if path]


def _environment(paths: ShellPaths, exported: Mapping[str, str]) -> RiskFinding:
    """Return the least risk of a command with variables that earlier commands exported."""
    least = RiskFinding(LOW)
    for name, value in exported.items():
        if name == "PATH" and all(
            part in _PROGRAM_FOLDERS or (part and paths.is_inside(part, "/"))
            for part in value.split(":")
        ):
            least = RiskFinding(MEDIUM, "PATH has folders of the working directory")
        elif not _ENVIRONMENT.fullmatch(name) and not is_harmless_variable(name, value):
            reason = f"an earlier command has set {name[:40]}, which this one may act on"
            return RiskFinding(UNKNOWN, reason)
    return least


def _risk(finding: RiskFinding) -> Risk:
    return Risk(_LEVELS[finding.rank], finding.reason)


def _input(arguments: Mapping[str, Any]) -> RiskFinding:
    """Judge text that a call types into a running program."""
    text, control = arguments.get("text", ""), arguments.get("control", "none")
    if not isinstance(text, str) or len(text) > 200 or not _ANSWERS.fullmatch(text):
        return RiskFinding(UNKNOWN, "types into a program, which may do anything with the text")
    if text or control in ("kill", "eof"):
        return RiskFinding(MEDIUM, "answers or ends the command that runs")
    return RiskFinding(LOW, "looks at the command that runs, or interrupts it")


def _texts(arguments: Mapping[str, Any]) -> tuple[list[tuple[str, str]], bool]:
    """Return the texts among arguments with their keys, and whether those are all."""
    texts = list[tuple[str, str]]()
    stack: list[tuple[str, Any]] = list(arguments.items())
    for _ in range(_MAX_VALUES):
        if not stack:
            break
        key, value = stack.pop()
        if isinstance(value, str):
            texts.append((key.lower(), value))
        elif isinstance(value, Mapping):
            stack += list(cast("Mapping[str, Any]", value).items())
        elif isinstance(value, list):
            stack += [(key, one) for one in cast("list[Any]", value)]
    return texts, not stack
