"""The sandbox of `run` and `chat`: its mounts, the notice about it, advice on its denials."""

from __future__ import annotations

import os
import re
import subprocess
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from holdfast import events as ev
from holdfast.agent.security.paths import ShellPaths, word_set
from holdfast.cli.environment import shell_environment
from holdfast.cli.exit_codes import UsageError
from holdfast.cli.files import naming, path_of
from holdfast.errors import ConfigurationError
from holdfast.runtime import LocalRuntime, Mount, SandboxedRuntime, SandboxUnavailable
from holdfast.runtime.files import TextFiles
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
# Parts of an installation with its programs in `bin`, and the parts of which one must exist.
_PREFIX_FOLDERS = word_set("""
bin sbin lib lib32 lib64 libexec include share etc man doc docs conda-meta condabin compiler_compat
envs pkgs ssl var shims versions completions plugins pyenv.d rbenv.d src test legal jmods conf
""")
_PREFIX_MARKS = word_set("lib lib64 libexec pyvenv.cfg conda-meta shims")
_PREFIX_FILE = re.compile(
    r"pyvenv\.cfg|release|[A-Z_.-]+(\.\w+)?|(Make|Docker)file|\w+\.(md|txt|png)|\.\w*|lib64"
)
_PROGRAM_FOLDERS = ("bin", "sbin", "shims", "condabin")
# Every sandbox has them, or parts of them.
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc", "/dev", "/proc")
_SYSTEM_FOLDERS = tuple(f"{one}/" for one in _SYSTEM)


class Workplace(NamedTuple):
    """The runtime of a session.

    Attributes:
        runtime: A sandbox, or the plain folder.
        asks: True if the sandbox that the user wanted is missing. Commands that may do more than
            read then wait for approval.
        note: One line about it for the user, or "".
        prompt: A sentence about it for the model.
        advice: Advice on denials of a sandbox; None without one.
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
    texts: TextFiles | None = None,
) -> Workplace:
    """Open the runtime that `--sandbox` asks for. `passed` are the variables of commands, `texts`
    the text files of the file tools, if they are not those of the disk. Raises `UsageError`."""
    mode = options.sandbox or env.get("HOLDFAST_SANDBOX") or "auto"
    if mode not in _MODES:
        raise UsageError(f"HOLDFAST_SANDBOX takes {', '.join(_MODES)}, not {mode!r}")
    if mode == "off":
        for name in ("network", "mount"):
            if getattr(options, name):
                raise UsageError(f"--{name} is for the sandbox, which --sandbox off turns off")
        outside = options.allow_outside
        return Workplace(LocalRuntime(workdir, allow_outside=outside, env=passed, text_files=texts))
    if options.allow_outside:
        raise UsageError(
            "--allow-outside needs --sandbox off. In the sandbox, --mount DIR shows one more folder"
            " to the agent, and --mount DIR:rw lets it change that folder"
        )
    inside = {name: value for name, value in passed.items() if name not in _HOST_VARIABLES}
    inside = {**_git_identity(env), **inside, **{name: passed[name] for name in options.env}}
    home, real = _home(env), workdir.resolve()
    if real != Path("/") and (real == home or real in home.parents):
        raise UsageError(
            f"the sandbox would give commands all of your home folder, {str(home)!r}. Work in a"
            f" folder below it. {_OFF}"
        )
    visible_mounts = mounts(options.mount, env, workdir)
    try:
        runtime = SandboxedRuntime(
            workdir,
            network=options.network or "none",
            mounts=visible_mounts,
            env=inside,
            text_files=texts,
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
        runtime = LocalRuntime(workdir, env=passed, text_files=texts)
        return Workplace(runtime, asks=True, note=note)
    except ConfigurationError as error:
        raise UsageError(_in_options(str(error))) from None
    advice = Advice(workdir, visible_mounts)
    return Workplace(
        runtime,
        note=_note(options, visible_mounts, workdir),
        prompt=_prompt(options),
        advice=advice,
    )


def open_required(options: Namespace, env: Mapping[str, str], workdir: Path) -> FolderRuntime:
    """Open the sandbox that `--sandbox require` asks for, or else the plain folder. Raises
    `UsageError`."""
    passed = shell_environment(env, ())
    if options.sandbox != "require":
        for name in ("network", "mount"):
            if getattr(options, name):
                raise UsageError(f"--{name} is for the sandbox; add --sandbox require")
        return LocalRuntime(workdir, env=passed)
    return open_workplace(options, env, workdir, passed, interactive=False).runtime


def _in_options(message: str) -> str:
    """Return a message of the runtime in the words of the command line."""
    if "network" in message:
        return f"--network: {message.rstrip('.')}"
    return f"{message.rstrip('.')}. {_OFF}"


def _note(options: Namespace, visible_mounts: Sequence[Mount], workdir: Path) -> str:
    network = f"reach {', '.join(options.network)} alone" if options.network else "have no network"
    where = ", ".join(["this folder", *_writable_folders(options)])
    readable = [mount.source for mount in visible_mounts if not mount.writable]
    note = (
        f"sandbox: commands can change {where} alone and {network}. --mount DIR[:rw] and --network"
        " HOST allow more; --sandbox off turns it off."
    )
    if readable:
        note += f" They can read {', '.join(readable)}."
    store = options.store
    if store is not None and path_of(store).resolve().is_relative_to(workdir.resolve()):
        note += f" They can change this conversation's store, {store}: it is in this folder."
    return note


def _writable_folders(options: Namespace) -> list[str]:
    """Return the writable folders of `--mount`."""
    return [one.removesuffix(":rw") for one in options.mount if one.endswith(":rw")]


def _prompt(options: Namespace) -> str:
    hosts = ", ".join(options.network)
    network = f"can reach {hosts} alone" if hosts else "have no network"
    where = ", ".join(["your working directory", *_writable_folders(options), "/tmp"])
    return (
        f"Commands run in a sandbox: they see the system's programs, can change {where} alone, and"
        f" {network}."
    )


def _git_identity(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that name the author of commits, as the user's own configuration has
    them: the sandbox does not show that file."""
    command = ["git", "config", "--global", "--get-regexp", r"^user\.(name|email)$"]
    try:
        result = subprocess.run(
            command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
    except (OSError, ValueError):  # no git, or another encoding
        return {}
    variables: dict[str, str] = {}
    for line in result.stdout.splitlines():
        key, _, value = line.partition(" ")
        kind = key.removeprefix("user.").upper()
        variables |= {f"GIT_AUTHOR_{kind}": value, f"GIT_COMMITTER_{kind}": value}
    return variables


# --- mounts ---


def mounts(mount_options: Iterable[str], env: Mapping[str, str], workdir: Path) -> list[Mount]:
    """Return the mounts of `--mount`, then those of the repository and of toolchains."""
    by_path: dict[str, Mount] = {}
    for text in mount_options:
        path = os.path.realpath(path_of(text.removesuffix(":rw")))
        with naming(f"--mount {text!r}"):
            by_path[path] = Mount(path, writable=text.endswith(":rw"))
    writable = [workdir.resolve(), *(Path(one.source) for one in by_path.values() if one.writable)]
    for path in [*_repository(workdir, _home(env)), *_toolchains(env, workdir, writable)]:
        by_path.setdefault(str(path), Mount(str(path)))
    # Mounts within another one are left out, and a folder precedes the mounts in it.
    return [
        mount
        for mount in sorted(by_path.values(), key=lambda mount: mount.source)
        if mount.writable or not any(str(one) in by_path for one in Path(mount.source).parents)
    ]


def _repository(workdir: Path, home: Path) -> Iterator[Path]:
    """Yield the root of the git repository that has the folder. For a further working tree, also
    yield the folder outside of it in which git keeps its data."""
    real = workdir.resolve()
    root = next((one for one in (real, *real.parents) if (one / ".git").exists()), None)
    if root is None or any(root == one or root in one.parents for one in (home, Path.home())):
        return
    if root != real:
        yield root
    link = root / ".git"
    # A command of an earlier session may have written it.
    with suppress(OSError, ValueError):
        match = re.match(r"gitdir: (.+)", link.read_text()) if link.is_file() else None
        if match is not None:
            data = (root / match[1].strip()).resolve()
            common = data.parent.parent
            # The data of a working tree name it, and only those who can write there can write them.
            back = (data / "gitdir").read_text().strip()
            if data.parent.name == "worktrees" and Path(back).resolve() == link:
                is_git = (common / "HEAD").is_file() and (common / "objects").is_dir()
                if is_git and not _broad(common, home, workdir):
                    yield common


def _toolchains(env: Mapping[str, str], workdir: Path, writable: Sequence[Path]) -> Iterator[Path]:
    """Yield the folders of the programs in PATH, and of the compilers and interpreters that
    variables name, with their libraries. `writable` are the folders that commands can change."""
    home = _home(env)
    toolchains = [Path(env[name]) for name in sorted(_TOOLCHAINS) if env.get(name)]
    folders = [Path(one) for one in env.get("PATH", "").split(":")]
    for folder in [*toolchains, *folders, home / ".rustup"]:
        try:
            if not folder.is_absolute() or not folder.is_dir():
                continue
            real = folder.resolve()
        except (OSError, ValueError):
            continue
        changeable = _leads_through(folder, writable)
        if real.name in _PROGRAM_FOLDERS and not _broad(real.parent, home, workdir):
            real = real.parent if _is_prefix(real.parent) else real
        # A command may have put a link there, which leads anywhere.
        if not changeable and not _broad(real, home, workdir):
            yield real
        with suppress(OSError, ValueError):  # of a virtual environment: its Python is elsewhere
            settings = (real / "pyvenv.cfg").read_text()
            base = re.search(r"(?m)^home *= *(.+)$", settings)
            prefix = Path(base[1].strip()).resolve().parent if base is not None else Path("/")
            if _is_prefix(prefix) and not _broad(prefix, home, workdir):
                yield prefix


def _home(env: Mapping[str, str]) -> Path:
    return Path(env.get("HOME") or "/").resolve()


def _leads_through(folder: Path, writable: Sequence[Path]) -> bool:
    """Return True if the folder, or a link on the way to it, is in one of the others."""
    parts, at = list(reversed(folder.parts[1:])), Path("/")
    for _ in range(1000):
        if any(at.is_relative_to(one) for one in writable):
            return True
        if not parts:
            return False
        name = parts.pop()
        step = at.parent if name == ".." else at / name
        if step.is_symlink():
            target = os.readlink(step)
            parts += list(reversed([one for one in target.split("/") if one not in ("", ".")]))
            at = Path("/") if target.startswith("/") else at
        else:
            at = step
    return True


def _is_prefix(folder: Path) -> bool:
    """Return True for the folder of an installation: programs and their libraries only."""
    names = {entry.name: entry.is_dir() for entry in os.scandir(folder)}
    if not names.keys() & _PREFIX_MARKS:
        return False
    return all(
        name in _PREFIX_FOLDERS or name.startswith(".") if is_folder else _PREFIX_FILE.match(name)
        for name, is_folder in names.items()
    )


def _broad(folder: Path, home: Path, workdir: Path) -> bool:
    """Return True for a folder that is not mounted. Such folders are part of the system or of the
    sandbox, contain the home folder or the working directory, or have secrets."""
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


# --- denials ---

_QUOTES = "['\"\u2018\u2019]"  # in the forms that programs put around a path
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

    def __init__(self, workdir: Path, visible_mounts: Sequence[Mount]) -> None:
        self._paths = ShellPaths(
            str(workdir), str(Path.home()), [*_SYSTEM, *(mount.source for mount in visible_mounts)]
        )
        self._past_advice = {""}

    def about(self, event: ev.AnyEvent) -> str:
        """Return one line about the result of a call, "" if nothing new was denied."""
        if not isinstance(event, ev.ToolCallFinished) or "exitCode" not in event.result.meta:
            return ""
        # A note of the result says which connections the proxy refused, and what allows them.
        proxied = "connections" in event.result.meta
        text = self._diagnosis(event.result.text[-20_000:], proxied)
        if text in self._past_advice:
            return ""
        self._past_advice.add(text)
        return text

    def _diagnosis(self, output: str, proxied: bool) -> str:
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
