"""The environment of the programs that tools start, and the end of these programs."""

from __future__ import annotations

import os
import pwd
import socket
import threading

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/homebrew/bin"


class CancelWakeup:
    """A callback for a cancel on any thread that makes `reader` readable, which wakes a select."""

    def __init__(self) -> None:
        # The lock keeps a cancel from writing to a closed descriptor, whose number may be in use
        # for another file. It is reentrant because a signal handler may cancel.
        self._lock = threading.RLock()
        self._open = True
        self.reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)

    def __call__(self) -> None:
        with self._lock:
            if self._open:
                self._writer.send(b"\0")

    def close(self) -> None:
        with self._lock:
            self._open = False
        self.reader.close()
        self._writer.close()


def minimal_environment() -> dict[str, str]:
    """Return an environment without any variable of this process, and so without secrets."""
    variables = {"PATH": _PATH, "HOME": "/", "LANG": "C.UTF-8", "TERM": "dumb"}
    try:
        user = pwd.getpwuid(os.getuid())
        variables.update(HOME=user.pw_dir, USER=user.pw_name, LOGNAME=user.pw_name)
    except KeyError:  # a container may run under a user id that has no entry
        pass
    return variables


def has_ended(pid: int) -> bool:
    """Return True if a child process has ended, without reaping it: while it is a zombie, its
    process and group ids cannot be reused."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
    except ChildProcessError:  # the host ignores SIGCHLD, or has reaped the process
        return True


def open_pidfd(pid: int) -> int | None:
    """Return a descriptor that is readable once the process ends; None if the system has none."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):  # not Linux, an old kernel, or too many open files
        return None
