"""Python programs in separate processes that start quickly: they fork from a process that has
already imported Holdfast.

`Popen` and `run` have the interface of `subprocess`. A command `[sys.executable, "-m", ...]`, or
with `-c` or a file, becomes a fork. The fork has the arguments, streams, variables, folder and
signals of the command, and exits as an interpreter does. Any other command starts as in
`subprocess`. In `make prove` every program is a fresh interpreter. This finds a module that works
only because another one has imported something.

A test of the start of the interpreter uses `subprocess`: a test of imports, of an interrupt during
the start, or of the command line in `/proc`.
"""

from __future__ import annotations

import inspect
import json
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests import samples
from tests.forking import NUMBER, number, variables_read_at_start

REPO = Path(__file__).parents[1]
# A program with its own environment can be a fork only if it has these variables.
AT_START = variables_read_at_start(os.environ)
ADOPT = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1],"
    " sys.argv[1:])"
)


class Popen(subprocess.Popen[Any]):
    """A `subprocess.Popen` whose process may be a fork of the forking process."""

    _status: socket.socket | None = None  # brings the process id and the exit status

    def __init__(
        self, command: Any, *arguments: Any, terminal: bool = False, **options: Any
    ) -> None:
        """Start the process. With `terminal`, standard input is a terminal, which becomes the
        controlling terminal of a new session. Ctrl-C on that terminal is then a SIGINT."""
        self._terminal = terminal
        if terminal:
            options["start_new_session"] = True
        super().__init__(command, *arguments, **options)

    def _execute_child(self, *arguments: Any) -> None:
        start = super()._execute_child
        names = dict(zip(inspect.signature(start).parameters, arguments, strict=True))
        command = names["args"]
        if not _can_fork(command, names, self._terminal):
            if self._terminal:
                names["args"] = [sys.executable, "-c", ADOPT, *command]
            start(*names.values())
            return
        os.stat(names["cwd"] or ".")
        env = os.environ if names["env"] is None else names["env"]
        request = {
            "command": [os.fsdecode(word) for word in command],
            "env": {os.fsdecode(name): os.fsdecode(value) for name, value in env.items()},
            "folder": os.path.abspath(os.fsdecode(names["cwd"] or ".")),
            "terminal": self._terminal,
        }
        data = json.dumps(request).encode()
        streams = (names["p2cread"], names["c2pwrite"], names["errwrite"])
        self._status, theirs = socket.socketpair()
        try:
            with theirs:
                descriptors = [own if one == -1 else one for own, one in enumerate(streams)]
                _forking_process().ask([*descriptors, theirs.fileno()])
            self._status.sendall(NUMBER.pack(len(data)) + data)
            self.pid = number(self._status)
        finally:
            ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
            self._close_pipe_fds(*[names[end] for end in ends])
        self._child_created = True

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._status is None:
            return super()._try_wait(wait_flags)
        if wait_flags & os.WNOHANG and not select.select([self._status], [], [], 0)[0]:
            return 0, 0
        ended = number(self._status)
        self._status.close()
        return self.pid, ended

    def _internal_poll(self, *arguments: Any, **options: Any) -> int | None:
        if self._status is None:
            return super()._internal_poll(*arguments, **options)
        if self.returncode is None and self._waitpid_lock.acquire(False):
            try:
                pid, ended = (0, 0) if self.returncode is not None else self._try_wait(os.WNOHANG)
                if pid:
                    self._handle_exitstatus(ended)
            finally:
                self._waitpid_lock.release()
        return self.returncode


def run(
    command: Sequence[Any],
    *,
    input: Any = None,
    capture_output: bool = False,
    timeout: float | None = None,
    check: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """Run a command to its end, as `subprocess.run` does."""
    if input is not None:
        options["stdin"] = subprocess.PIPE
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen(command, **options) as process:
        try:
            out, err = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    ended = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    if check:
        ended.check_returncode()
    return ended


def _can_fork(command: Any, names: dict[str, Any], terminal: bool) -> bool:
    """Return whether a fork can run the command with these arguments of `_execute_child`."""
    if samples.full() or not hasattr(os, "pidfd_open"):
        return False
    if isinstance(command, str | bytes | os.PathLike) or len(command) < 2:
        return False
    others = ("executable", "preexec_fn", "pass_fds", "shell", "gids", "uid", "process_group")
    if any(names.get(name) and names[name] != -1 for name in others):
        return False
    program, kind = map(os.fsdecode, command[:2])
    supported = kind in ("-m", "-c") or not kind.startswith("-")
    return program == sys.executable and supported and terminal == bool(names["start_new_session"])


class _ForkingProcess:
    """The forking process as this process sees it. It ends when its socket is closed."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "tests.forking", str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(command, cwd=REPO, pass_fds=[theirs.fileno()])
        self.pid = self._process.pid
        self._control = ours
        self._lock = threading.Lock()

    def ask(self, descriptors: Sequence[int]) -> None:
        with self._lock:
            socket.send_fds(self._control, [b"\0"], descriptors)

    def close(self) -> None:
        self._control.close()
        self._process.kill()
        self._process.wait()


_forking: _ForkingProcess | None = None
_starting = threading.Lock()


def _forking_process() -> _ForkingProcess:
    global _forking
    with _starting:
        if _forking is None:
            _forking = _ForkingProcess()
        return _forking


def prepare() -> None:
    """Start the forking process before any test, because tests check for unknown child
    processes."""
    if not samples.full() and hasattr(os, "pidfd_open"):
        _forking_process()


def close() -> None:
    """End the forking process, if there is one."""
    global _forking
    if _forking is not None:
        _forking.close()
        _forking = None
