"""Cloning of git repositories, without prompts, and without passwords of URLs in messages."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from holdfast.errors import ConfigurationError, RuntimeFault
from holdfast.runtime.environment import find_program
from holdfast.runtime.paths import with_home
from holdfast.tools.launch import Launcher, start

_ON_GITHUB = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+\Z")
# git tests for `user@host:path` in the same way: a colon before any slash.
_REMOTE = re.compile(r"(https?|ssh|git)://[^/\s]|[\w.-]+@[\w.-]+:(?!:)")
_PASSWORD = re.compile(r"(\w+://)[^/@\s]+@")


def repository_url(repo: str, workdir: Path) -> str:
    """Return the repository argument for git. `owner/name` is on GitHub. URLs, `user@host:path` and
    local paths (`/...`, `./...`, `../...`, `~...`) are kept. Raises `ConfigurationError`."""
    if not repo.strip() or repo.startswith("-") or "\0" in repo:
        raise ConfigurationError(f"repo takes 'owner/name', a URL or a path, not {repo!r}.")
    if repo.startswith(("/", "./", "../", "~")) or repo in (".", ".."):
        return str(workdir / with_home(repo))
    if _ON_GITHUB.match(repo):
        return f"https://github.com/{repo.removesuffix('.git')}.git"
    if "::" in repo.partition("/")[0]:
        # git's remote helpers, such as `ext::command`, run programs.
        raise ConfigurationError(
            f"repo takes 'owner/name', a URL or a path; {repo!r} names a remote helper of git."
        )
    return repo


def is_remote(repo: str) -> bool:
    """Return True if a repo is certainly on the network, not a local path."""
    return ".." not in repo.split("/") and bool(_ON_GITHUB.match(repo) or _REMOTE.match(repo))


def clone(
    repo: str,
    branch: str | None,
    target: Path,
    workdir: Path,
    env: Mapping[str, str],
    timeout: float,
    launcher: Launcher,
    visible: Callable[[Path], str],
) -> None:
    """Run `git clone` into `target`. `visible` returns the path under which the launcher's
    processes see a path. Raises `RuntimeFault` with git's own message."""
    url = repository_url(repo, Path(visible(workdir)))
    if branch is not None and (not branch or branch.startswith("-") or "\0" in branch):
        raise ConfigurationError(f"branch takes the name of a branch or tag, not {branch!r}.")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise RuntimeFault(
            f"{_without_password(repo)!r} was not cloned: {os.path.relpath(target, workdir)} exists"
            " and is not empty. Give another target."
        )
    options = ["--branch", branch] if branch else []
    command = [find_program("git", env), "clone", "--quiet", *options, "--", url, visible(target)]
    # git tries a repo as a path first: a folder `https:` in the workdir must not replace the
    # network.
    remote = is_remote(repo)
    networks = {"GIT_ALLOW_PROTOCOL": "http:https:ssh:git"} if remote else {}
    # ssh prompts on a terminal of its own accord unless it is in batch mode.
    batch = {"GIT_SSH_COMMAND": "ssh -o BatchMode=yes"}
    process = start(
        launcher,
        command,
        cwd="/" if remote else visible(workdir),
        env={**batch, **networks, **env, "GIT_TERMINAL_PROMPT": "0"},
        stdout=subprocess.DEVNULL,
    )
    failed = f"{_without_password(repo)!r} was not cloned:"
    try:
        message = process.communicate(timeout=timeout)[1].decode(errors="replace").strip()
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise RuntimeFault(f"{failed} git was not done after {timeout:g} s.") from None
        raise
    if process.returncode:
        why = _without_password(message) or f"git ended with exit code {process.returncode}"
        raise RuntimeFault(f"{failed} {why}")


def _without_password(text: str) -> str:
    return _PASSWORD.sub(r"\1***@", text)


def folder_name(repo: str) -> str:
    """Return the folder name that git would choose for the clone of `repo`."""
    name = re.split(r"[/:]", repo.rstrip("/"))[-1].removesuffix(".git")
    if not name or name.startswith((".", "-")):
        raise ConfigurationError(
            f"No folder name follows from the repo {_without_password(repo)!r}; give a target."
        )
    return name
