"""`Run`: one command of a shell, from its start to its end."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Mapping

from holdfast.runtime import processes
from holdfast.runtime.bash import Change
from holdfast.runtime.output import Output


class Run:
    """One command of a shell.

    `done` is set when the command's bash has ended, even if background processes continue.
    """

    def __init__(
        self, number: int, command: str, output: Output, timeout: float, marks: Mapping[str, str]
    ) -> None:
        self.number = number
        self.command = command
        self.timeout = timeout
        self.output = output
        self.marks = marks
        """Variables in the environment of all that it starts, by which its processes are found.
        They are no part of the state."""
        self.mark = marks[processes.MARK]
        self.name = f"_{os.urandom(8).hex()}"
        """The identifier with which the names of its script begin."""
        self.done = threading.Event()
        self.changed = threading.Condition()
        self.started = time.monotonic()
        self.seconds = 0.0
        self.exit_code: int | None = None
        self.cwd = ""
        self.shown = 0
        """Bytes of the output that were already told."""
        self.ended_by = ""
        """`timeout`, `cancel`, `kill` or `close` if it was ended by force."""
        self.change: Change | None = None
        """The change of directory and variables that the next command sees; None if the command
        ended before it could be read."""
        self.background = False
        """True if something that it started still held its output when it ended."""
        self.left: tuple[int, ...] = ()
        """Processes that it left running in its process group."""
        self.process: subprocess.Popen[bytes] | None = None
        self.pidfd = -1
        self.out_fd = -1
        self.in_fd = -1

    def elapsed(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self.started

    def wait_quiet(self, wait: float, quiet: float, since: int) -> None:
        """Block until the command has ended, or has answered an input; at most `wait` seconds.

        The command has answered if it has written more than `since` bytes and then nothing for
        `quiet` seconds.
        """
        deadline = time.monotonic() + wait
        with self.changed:
            while not self.done.is_set() and (left := deadline - time.monotonic()) > 0:
                answered = self.output.total > since
                if not self.changed.wait(min(left, quiet) if answered else left) and answered:
                    return

    def notify(self) -> None:
        """Wake the threads that wait for output."""
        with self.changed:
            self.changed.notify_all()
