"""`CommandHost`: the place where a shell's commands run, this machine or a box."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from holdfast.runtime.environment import find_program


class NetworkLog(NamedTuple):
    """Connections that commands made, or tried to make, through a sandbox's proxy."""

    connections: Sequence[Mapping[str, Any]] = ()
    """For each one: `target` (`host:port`) and `allowed`; then `address` and the bytes `sent` and
    `received` so far, or the `reason` for which it was refused."""
    left_out: int = 0
    """The number of further ones, for which there was no room."""


class CommandProcess(Protocol):
    """A started command. `subprocess.Popen` is one."""

    pid: int
    """Its pid on this machine, also if it runs in a box."""
    stdin: Any
    """The pipe to its standard input (`IO[bytes]`), None if that is empty."""
    stdout: Any
    """The pipe from its standard output and error (`IO[bytes]`)."""

    def wait(self) -> int:
        """Wait for the end, and return the exit code; below 0 it is a signal's number."""
        ...

    def kill(self) -> None:
        """Send SIGKILL to the process."""
        ...


class CommandHost(Protocol):
    """Starts the commands of one shell, one at a time."""

    def start(
        self,
        argv: Sequence[str],
        *,
        number: int,
        cwd: str,
        env: Mapping[str, str],
        interactive: bool,
    ) -> CommandProcess:
        """Start a command in a process group of its own. Raises `OSError`, of which `RuntimeFault`
        is a kind.

        Args:
            argv: The program and its arguments.
            number: The number of the command within its shell.
            cwd: The directory in which it starts; if that is gone, in the work folder.
            env: All its variables. PWD is set to the directory.
            interactive: True opens its standard input.
        """
        ...

    def watch_end(self, process: CommandProcess) -> int:
        """Return a new descriptor that is readable once the process has ended, -1 if there is
        none."""
        ...

    def shown_pid(self, pid: int) -> int:
        """Return the pid of one of the commands' processes as commands see it."""
        ...

    def take_connections(self) -> NetworkLog:
        """Return the connections to the network that are known and were not returned before."""
        ...

    def close(self) -> None:
        """End all processes that a command has started and that are left. Idempotent."""
        ...


def _restore_sigint() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def before_start() -> Any:
    """Return the function that a child calls before its program starts, or None. The program bash
    cannot restore a signal that was ignored at its start, such as in a script's background."""
    return _restore_sigint if signal.getsignal(signal.SIGINT) is signal.SIG_IGN else None


class PlainHost:
    """Starts commands on this machine, with the rights of this process."""

    def __init__(self, workdir: str, env: Mapping[str, str]) -> None:
        self._workdir = workdir
        self._env = env

    def start(
        self,
        argv: Sequence[str],
        *,
        number: int,
        cwd: str,
        env: Mapping[str, str],
        interactive: bool,
    ) -> subprocess.Popen[bytes]:
        """Start a command in a session of its own; see `CommandHost.start`."""
        program = find_program(argv[0], self._env)
        directory = cwd if os.path.isdir(cwd) else self._workdir
        return subprocess.Popen(
            [program, *argv[1:]],
            bufsize=0,
            stdin=subprocess.PIPE if interactive else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=directory,
            env={**env, "PWD": directory},
            start_new_session=True,
            preexec_fn=before_start(),
        )

    def watch_end(self, process: CommandProcess) -> int:
        """Return a pidfd of the process, -1 if the system has none."""
        if hasattr(os, "pidfd_open"):
            try:
                return os.pidfd_open(process.pid)
            except OSError:  # an older kernel, or a sandbox that forbids it
                pass
        return -1

    def shown_pid(self, pid: int) -> int:
        """Return the same pid."""
        return pid

    def take_connections(self) -> NetworkLog:
        """Return none: connections of plain commands are not watched."""
        return NetworkLog()

    def close(self) -> None:
        """Do nothing: the shell finds and ends its processes."""
