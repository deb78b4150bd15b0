"""`Launcher`: the way in which a runtime starts its child processes, plainly or in a sandbox."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True)
class Launch:
    """The arguments of one `subprocess.Popen`.

    A launch is used once. The descriptors of `pass_fds` belong to it; `start` closes them.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str | None = None
    pass_fds: tuple[int, ...] = ()
    started: Callable[[], None] | None = None
    """A function that is called after the start of the process and waits until it may continue.
    Raises `OSError` if it must not."""


@runtime_checkable
class Launcher(Protocol):
    """Turns a command into the process that runs it."""

    def command(self, argv: Sequence[str], *, cwd: str | None, env: Mapping[str, str]) -> Launch:
        """Return the launch of a process that runs `argv` with exactly the variables `env`.

        Args:
            argv: The program and its arguments. A name without a slash is searched in PATH.
            cwd: The directory in which the program starts, as the program sees it; None for
                any directory.
            env: All variables of the program.
        """
        ...


class PlainLauncher:
    """Starts commands unchanged, with the rights of this process."""

    def command(self, argv: Sequence[str], *, cwd: str | None, env: Mapping[str, str]) -> Launch:
        """Return the command unchanged."""
        return Launch(argv, env, cwd)


def start(
    launcher: Launcher,
    argv: Sequence[str],
    *,
    cwd: str | None,
    env: Mapping[str, str],
    stdin: int = subprocess.DEVNULL,
    stdout: int = subprocess.PIPE,
    stderr: int = subprocess.PIPE,
    bufsize: int = -1,
    preexec_fn: Callable[[], None] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a command in a new session through a launcher. The other arguments and the errors
    (`OSError`) are those of `subprocess.Popen`."""
    launch = launcher.command(argv, cwd=cwd, env=env)
    try:
        process = subprocess.Popen(
            launch.argv,
            cwd=launch.cwd,
            env=launch.env,
            pass_fds=launch.pass_fds,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            bufsize=bufsize,
            start_new_session=True,
            preexec_fn=preexec_fn,
        )
    except BaseException:
        _close(launch)
        if launch.started is not None:
            with suppress(OSError):
                launch.started()  # releases its resources
        raise
    _close(launch)
    if launch.started is not None:
        try:
            launch.started()
        except BaseException:
            process.kill()
            process.communicate()
            raise
    return process


def _close(launch: Launch) -> None:
    for fd in launch.pass_fds:
        os.close(fd)
