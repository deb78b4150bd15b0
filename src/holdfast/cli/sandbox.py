"""The sandbox of `run` and `chat`: its mounts, the notice about it, advice on what it denied."""

from __future__ import annotations

import os
import re
import subprocess
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from holdfast import events as ev
from holdfast.agent.security.paths import ShellPaths, word_set
from holdfast.cli.exit_codes import UsageError
from holdfast.cli.files import path_of
from holdfast.errors import ConfigurationError
from holdfast.runtime import LocalRuntime, Mount, SandboxedRuntime, SandboxUnavailable
from holdfast.runtime.folder import FolderRuntime

_MODES = ("auto", "off", "require")
_OFF = "--sandbox off runs commands without one"
# Variables that name places of the host which a sandbox does not have, or has elsewhere.
_HOST_VARIABLES = word_set("""
HOME TMPDIR SHELL XDG_CONFIG_HOME XDG_CACHE_HOME XDG_DATA_HOME XDG_STATE_HOME XDG_RUNTIME_DIR
UV_CACHE_DIR PIP_CACHE_DIR
HTTP_PROXY HTTPS_PROXY NO_PROXY http_proxy https_proxy no_proxy
""")
# Variables whose folders hold compilers, interpreters and their libraries.
_TOOLCHAINS = word_set("""
VIRTUAL_ENV CONDA_PREFIX PYENV_ROOT NVM_DIR RUSTUP_HOME JAVA_HOME GOROOT RBENV_ROOT DOTNET_ROOT
MAVEN_HOME GRADLE_HOME ANDROID_HOME
""")
_PROGRAM_FOLDERS = ("bin", "sbin", "shims", "condabin")
# Every sandbox has them, or parts of them.
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc", "/dev", "/proc")
_SYSTEM_FOLDERS = tuple(f"{one}/" for one in _SYSTEM)


class Workplace(NamedTuple):
    """The runtime of a session.

    Attributes:
        runtime: A sandbox, or the plain folder.
        asks: True if there is none although the user wanted one: commands that may do more than
            read wait for approval.
        note: One line about it for the user; "" if there is nothing to say.
        prompt: A sentence about it for the model.
        advice: Advice on what a sandbox denies; None without one.
    """

    runtime: FolderRuntime
    asks: bool = False
    note: str = ""
    prompt: str = ""
    advice: Advice | None = None


def open_workplace(
    options: Namespace,
    env: Mapping[str, str],
    workdir: Path,
    passed: Mapping[str, str],
    interactive: bool,
) -> Workplace:
    """Open the runtime that `--sandbox` asks for. `passed` are the variables of commands. Raises
    `UsageError`."""
    mode = options.sandbox or env.get("HOLDFAST_SANDBOX") or "auto"
    if mode not in _MODES:
        raise UsageError(f"HOLDFAST_SANDBOX takes {', '.join(_MODES)}, not {mode!r}")
    if mode == "off":
        for name in ("network", "mount"):
            if getattr(options, name):
                raise UsageError(f"--{name} is for the sandbox, which --sandbox off turns off")
        return Workplace(LocalRuntime(workdir, allow_outside=options.allow_outside, env=passed))
    if options.allow_outside:
        raise UsageError(
            "--allow-outside needs --sandbox off. In the sandbox, --mount DIR shows one more folder"
            " to the agent, and --mount DIR:rw lets it change that folder"
        )
    inside = {name: value for name, value in passed.items() if name not in _HOST_VARIABLES}
    inside = {**_git_identity(env), **inside, **{name: passed[name] for name in options.env}}
    shown = mounts(options.mount, env, workdir)
    try:
        runtime = SandboxedRuntime(
            workdir, network=options.network or "none", mounts=shown, env=inside
        )
    except SandboxUnavailable as error:
        why = str(error).rstrip(".")
        if mode == "require":
            raise UsageError(f"--sandbox require: {why}") from None
        if not interactive:
            what = "there is no sandbox, and no terminal to ask at before commands run"
            raise UsageError(f"{what}. {_OFF}. {why}") from None
        what = "commands that may do more than read ask you first"
        note = f"Warning: there is no sandbox, so {what}. {_OFF}. {why}."
        return Workplace(LocalRuntime(workdir, env=passed), asks=True, note=note)
    except ConfigurationError as error:
        raise UsageError(_in_options(str(error))) from None
    advice = Advice(workdir, shown)
    return Workplace(runtime, note=_note(options), prompt=_prompt(options), advice=advice)


def _in_options(message: str) -> str:
    """Return a message of the runtime in the words of the command line."""
    if "network" in message:
        return f"--network: {message.rstrip('.')}"
    return f"{message.rstrip('.')}. {_OFF}"


def _note(options: Namespace) -> str:
    network = f"reach {', '.join(options.network)} alone" if options.network else "have no network"
    where = ", ".join(["this folder", *_changed(options)])
    return (
        f"sandbox: commands can change {where} alone and {network}. --mount DIR[:rw] and --network"
        " HOST allow more; --sandbox off turns it off."
    )


def _changed(options: Namespace) -> list[str]:
    """Return the writable folders of `--mount`."""
    return [one.removesuffix(":rw") for one in options.mount if one.endswith(":rw")]


def _prompt(options: Namespace) -> str:
    hosts = ", ".join(options.network)
    network = f"can reach {hosts} alone" if hosts else "have no network"
    where = ", ".join(["your working directory", *_changed(options), "/tmp"])
    return (
        f"Commands run in a sandbox: they see the system's programs, can change {where} alone, and"
        f" {network}."
    )


def _git_identity(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that name the author of commits, as the user's own configuration has
    them: the sandbox does not show that file."""
    command = ["git", "config", "--global", "--get-regexp", r"^user\.(name|email)$"]
    try:
        done = subprocess.run(
            command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
    except (OSError, ValueError):  # no git, or another encoding
        return {}
    found: dict[str, str] = {}
    for line in done.stdout.splitlines():
        key, _, value = line.partition(" ")
        kind = key.removeprefix("user.").upper()
        found |= {f"GIT_AUTHOR_{kind}": value, f"GIT_COMMITTER_{kind}": value}
    return found


# --- mounts ---


def mounts(asked: Iterable[str], env: Mapping[str, str], workdir: Path) -> list[Mount]:
    """Return the mounts of `--mount`, then those of the repository and of toolchains."""
    found: dict[str, Mount] = {}
    for text in asked:
        folder = path_of(text.removesuffix(":rw"))
        try:
            path = os.path.realpath(folder)
            found[path] = Mount(path, writable=text.endswith(":rw"))
        except ConfigurationError as error:
            raise UsageError(f"--mount {text!r}: {str(error).rstrip('.')}") from None
    for path in [*_repository(workdir), *_toolchains(env, workdir)]:
        found.setdefault(str(path), Mount(str(path)))
    # Without those that another one has in it, and a folder before those in it.
    return [
        mount
        for mount in sorted(found.values(), key=lambda mount: mount.source)
        if mount.writable or not any(str(one) in found for one in Path(mount.source).parents)
    ]


def _repository(workdir: Path) -> Iterator[Path]:
    """Yield the root of the git repository that has the folder, and the folders outside of it in
    which git keeps the data of a further working tree."""
    real = workdir.resolve()
    root = next((one for one in (real, *real.parents) if (one / ".git").exists()), None)
    if root is None or root == Path("/") or root == Path.home():
        return
    if root != real:
        yield root
    link = root / ".git"
    if link.is_file():
        named = re.match(r"gitdir: (.+)", link.read_text(errors="replace"))
        if named is not None and (data := (root / named[1].strip()).resolve()).is_dir():
            common = data / "commondir"
            yield (data / common.read_text().strip()).resolve() if common.is_file() else data


def _toolchains(env: Mapping[str, str], workdir: Path) -> Iterator[Path]:
    """Yield the folders of the programs in PATH, and of the compilers and interpreters that
    variables name, with their libraries."""
    home = Path(env.get("HOME") or "/").resolve()
    named = [Path(env[name]) for name in sorted(_TOOLCHAINS) if env.get(name)]
    folders = [Path(one) for one in env.get("PATH", "").split(":")]
    for folder in [*named, *folders, home / ".rustup"]:
        if not folder.is_absolute() or not folder.is_dir():
            continue
        real = folder.resolve()
        if real.name in _PROGRAM_FOLDERS and not _broad(real.parent, home, workdir):
            real = real.parent
        if _broad(real, home, workdir):
            continue
        yield real
        settings = real / "pyvenv.cfg"  # of a virtual environment: its Python is elsewhere
        if settings.is_file():
            base = re.search(r"(?m)^home *= *(.+)$", settings.read_text(errors="replace"))
            if base is not None and (prefix := Path(base[1].strip()).resolve().parent).is_dir():
                yield from () if _broad(prefix, home, workdir) else (prefix,)


def _broad(folder: Path, home: Path, workdir: Path) -> bool:
    """Return True for a folder that is not mounted: one of the system, one that the sandbox has
    already, one with the home folder or the working directory in it, and one with secrets."""
    real = workdir.resolve()
    if f"{folder}/".startswith(_SYSTEM_FOLDERS):
        return True
    if any(folder == one or folder in one.parents for one in (home, home / ".local", real)):
        return True
    if real in folder.parents:
        return True
    paths = ShellPaths("", str(home))
    try:
        return any(paths.secret(entry.path, entry.path) for entry in os.scandir(folder))
    except OSError:
        return True


# --- what it denied ---

_QUOTES = "['\"\u2018\u2019]"  # as programs put them around a path
_PATH = rf"{_QUOTES}?(/[^\s:'\"\u2018\u2019]*){_QUOTES}?"
_READ_ONLY = re.compile(rf"{_PATH}: Read-only file system")
_MISSING = re.compile(rf"{_PATH}: No such file or directory")
_NO_HOST = re.compile(
    r"(?:Could not resolve host:|Failed to connect to|resolve host(?: address)?|getaddrinfo"
    rf" \w+|HTTPSConnectionPool\(host=|lookup) ?{_QUOTES}?([\w-]+(?:\.[\w-]+)+)"
)
_NO_NETWORK = re.compile(
    r"Temporary failure in name resolution|Name or service not known|Network is unreachable"
)


class Advice:
    """Names the option that allows what the sandbox denied to a command; each advice once."""

    def __init__(self, workdir: Path, shown: Sequence[Mount]) -> None:
        self._paths = ShellPaths(
            str(workdir), str(Path.home()), [*_SYSTEM, *(mount.source for mount in shown)]
        )
        self._given = {""}

    def about(self, event: ev.AnyEvent) -> str:
        """Return one line about the result of a call, "" if nothing new was denied."""
        if not isinstance(event, ev.ToolCallFinished) or "exitCode" not in event.result.meta:
            return ""
        # A note of the result says which connections the proxy refused, and what allows them.
        proxied = "connections" in event.result.meta
        text = self._found(event.result.text[-20_000:], proxied)
        if text in self._given:
            return ""
        self._given.add(text)
        return text

    def _found(self, output: str, proxied: bool) -> str:
        for match in _READ_ONLY.finditer(output):
            return self._changes(match[1])
        for match in _NO_HOST.finditer(output) if not proxied else ():
            return f"The sandbox keeps commands from {match[1]}: --network {match[1]} allows it."
        if not proxied and _NO_NETWORK.search(output):
            return "The sandbox keeps commands from other hosts: --network HOST allows one."
        for match in _MISSING.finditer(output):
            path, real = match[1], os.path.realpath(match[1])
            if self._paths.inside(real) or self._paths.secret(path, real):
                continue
            if os.path.exists(real):
                return f"The sandbox does not show {path}: --mount {path} does."
            if os.path.isdir(os.path.dirname(real)):
                return self._changes(path)
        return ""

    def _changes(self, path: str) -> str:
        folder = Path(path).parent
        while not folder.is_dir():
            folder = folder.parent
        system = folder == Path("/") or f"{folder}/".startswith(_SYSTEM_FOLDERS)
        if system:
            what = "the system's folders from changes: only --sandbox off allows them"
            return f"The sandbox keeps {what}."
        return f"The sandbox keeps {folder} from changes: --mount {folder}:rw allows them."
