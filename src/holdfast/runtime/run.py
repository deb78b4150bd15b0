"""`Run`: one command of a shell, from its start to its end."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Mapping

from holdfast.runtime import processes
from holdfast.runtime.bash import StateChange
from holdfast.runtime.output import CommandOutput


class Run:
    """One command of a shell. `done` is set when the command's bash has ended, even if background
    processes continue."""

    def __init__(
        self,
        number: int,
        command: str,
        output: CommandOutput,
        timeout: float,
        marks: Mapping[str, str],
    ) -> None:
        self.number = number
        self.command = command
        self.timeout = timeout
        self.output = output
        self.marks = marks
        """Variables in the environment of all its processes, by which they are found.

        They do not belong to the state."""
        self.mark = marks[processes.MARK]
        self.name = f"_{os.urandom(8).hex()}"
        """The prefix of the names in its script."""
        self.done = threading.Event()
        self.changed = threading.Condition()
        self.started = time.monotonic()
        self.seconds = 0.0
        self.exit_code: int | None = None
        self.cwd = ""
        self.reported_bytes = 0
        """Bytes of the output that earlier answers have reported."""
        self.ended_by = ""
        """`timeout`, `cancel`, `kill` or `close` if the command was ended by force; else ""."""
        self.change: StateChange | None = None
        """The change of directory and variables; None if the command ended before it was read."""
        self.output_held = False
        """True if a process of the command still held its output open at the end."""
        self.background_pids: tuple[int, ...] = ()
        """Pids of processes that it seconds_left running in its process group."""
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
            while not self.done.is_set() and (seconds_left := deadline - time.monotonic()) > 0:
                answered = self.output.total > since
                if (
                    not self.changed.wait(min(seconds_left, quiet) if answered else seconds_left)
                    and answered
                ):
                    return

    def notify(self) -> None:
        """Wake the threads that wait for output."""
        with self.changed:
            self.changed.notify_all()
