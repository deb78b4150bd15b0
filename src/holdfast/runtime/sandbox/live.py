"""`LiveBox`: a box that stays, in which a waiting bash starts the commands of one shell."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from holdfast.errors import RuntimeFault
from holdfast.runtime.command_host import CommandProcess, NetworkLog, before_start
from holdfast.runtime.pump import Pump
from holdfast.runtime.sandbox.mechanisms import BoxLauncher
from holdfast.tools.launch import start

# Seconds for a box to start, and for its bash to start a command. A box whose processes use up its
# limits may not answer at all.
_ANSWER_SECONDS = 10.0
_END_SECONDS = 2.0  # for the end of a box whose first process was killed
_CREDENTIALS = struct.Struct("iII")  # pid, uid, gid
_KILLED_STATUS = 128 + signal.SIGKILL

# The program of the bash that waits in the box. Its standard input is a socket: each line is the
# number of a command to start, whose file says how. A command gets a process group (`set -m`), and
# is waited for. No command has the socket: only this bash and the lines below write to it.
_WAITER = """\
exec 2>/dev/null; set -m; unset OLDPWD SHLVL; printf 'ready 0\\n' >&0
while IFS= read -r n; do ( . "$1/$n.start" ) & wait -f "$!"; printf 'ended %s\\n' "$?" >&0; done"""
# The file of one command. The line `started` comes from the process that becomes the command.
_START = """\
cd -- {cwd} || cd -- {workdir} || exit 126
{exports}exec 3>&0 <{stdin} >{stdout} 2>&1
printf 'started 0\\n' >&3
exec {program} 3>&-
"""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
# Variables that bash does not let anyone set, or that change by themselves.
_BASH_OWN = re.compile(
    r"BASH\w*|UID|EUID|PPID|GROUPS|FUNCNAME|DIRSTACK|LINENO|S?RANDOM|SECONDS|EPOCH\w*|SHELLOPTS|_"
    r"|IFS|POSIXLY_CORRECT|PIPESTATUS|HISTCMD|COMP_\w*"
)


class BoxedProcess:
    """A command in a live box."""

    def __init__(self, box: LiveBox, pid: int, stdin: IO[bytes] | None, stdout: IO[bytes]) -> None:
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self._box = box
        self._status: int | None = None

    def wait(self) -> int:
        """Wait for the end, and return the exit code."""
        if self._status is None:
            self._status = self._box.wait_for_command()
        return self._status

    def kill(self) -> None:
        """Send SIGKILL to the command."""
        if self._status is None:
            with suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)


class LiveBox:
    """The command host of one shell. Its box is started with the first command, and again after
    the box was ended, for example by its limits.

    Args:
        launcher: Makes the boxes.
        folder: The shell's folder, visible at the same path in the box and read-only there.
        workdir: The work folder in the box.
        pump: Its thread starts the boxes: a box ends with the thread that started it.
    """

    def __init__(self, launcher: BoxLauncher, folder: Path, workdir: str, pump: Pump) -> None:
        self._launcher = launcher
        self._folder = folder
        self._workdir = workdir
        self._pump = pump
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._first = -1
        """A pidfd of the first process in the box."""
        self._unread = b""

    def start(
        self,
        argv: Sequence[str],
        *,
        number: int,
        cwd: str,
        env: Mapping[str, str],
        interactive: bool,
    ) -> CommandProcess:
        """Start a command in the box; see `CommandHost.start`."""
        if self._socket is None:
            self._open()
        out, into = self._folder / f"{number}.out", self._folder / f"{number}.in"
        program = self._folder / f"{number}.start"
        fds: list[int] = []
        try:
            fds.append(_make_fifo(out, os.O_RDONLY))
            if interactive:
                # Open for both: the box waits for a writer, this process waits for nothing.
                fds.append(_make_fifo(into, os.O_RDWR))
            text = _start_file(argv, cwd, self._workdir, env, str(into) if interactive else "", out)
            with open(os.open(program, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(text)
            self._launcher.share(self._folder)
            pid = self._begin(number)
            stdin = None
            if interactive:
                # For writing alone, so that it breaks once no process of the command reads.
                stdin = open(os.open(into, os.O_WRONLY | os.O_NONBLOCK), "wb", buffering=0)  # noqa: SIM115
            return BoxedProcess(self, pid, stdin, open(fds.pop(0), "rb", buffering=0))
        finally:
            for fd in fds:
                os.close(fd)
            for path in (out, into, program):
                path.unlink(missing_ok=True)

    def watch_end(self, process: CommandProcess) -> int:
        """Return a copy of the box's socket: its next line is the end of the command."""
        return -1 if self._socket is None else os.dup(self._socket.fileno())

    def shown_pid(self, pid: int) -> int:
        """Return the pid in the box."""
        with suppress(OSError, IndexError, ValueError), open(f"/proc/{pid}/status") as file:
            found = [line for line in file if line.startswith("NSpid:")]
            return int(found[0].split()[-1])
        return pid

    def wait_for_command(self) -> int:
        """Wait for the end of the running command, and return its exit code; that of a killed one
        if the box has ended."""
        with suppress(OSError):
            while (line := self._read_line(_ANSWER_SECONDS)[0]) is not None:
                kind, _, status = line.partition(b" ")
                if kind == b"ended":
                    return int(status)
        self._end()
        return _KILLED_STATUS

    # --- the box ---

    def _open(self) -> None:
        """Start the box on the pump's thread, and wait until its bash is ready."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        # The kernel then names the sender of each line, by its pid on this machine.
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        ready = threading.Event()
        started: list[subprocess.Popen[bytes]] = []
        problems: list[OSError] = []
        argv = ["bash", "--noprofile", "--norc", "-p", "-c", _WAITER, "box", str(self._folder)]

        def work() -> None:
            try:
                started.append(
                    start(
                        self._launcher,
                        argv,
                        cwd=None,
                        env={"PATH": "/usr/local/bin:/usr/bin:/bin"},
                        stdin=theirs.fileno(),
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.PIPE,
                        preexec_fn=before_start(),
                    )
                )
            except OSError as error:
                problems.append(error)
            finally:
                ready.set()

        if self._pump.call(work):
            ready.wait()
        theirs.close()
        if not started:
            ours.close()
            reason = f": {problems[0]}" if problems else ": the runtime is closed"
            raise RuntimeFault(f"The box could not be started{reason}.")
        self._process, self._socket, self._unread = started[0], ours, b""
        line, pid = self._read_line(_ANSWER_SECONDS)
        assert self._process.stderr is not None
        if line is None:
            with suppress(OSError):
                os.kill(self._process.pid, signal.SIGKILL)
            message = self._process.stderr.read().decode(errors="replace").strip()
            self._end()
            raise RuntimeFault(f"The box could not be started: {message or 'it did not answer'}.")
        self._process.stderr.close()
        try:
            self._first = os.pidfd_open(pid)
            self._launcher.limit(pid)
        except OSError as error:
            self._end()
            raise RuntimeFault(f"The box could not be started: {error}.") from error

    def _begin(self, number: int) -> int:
        """Let the bash in the box start a command, and return the command's pid."""
        assert self._socket is not None
        line: bytes | None = None
        pid = 0
        with suppress(OSError):
            self._socket.sendall(b"%d\n" % number)
            line, pid = self._read_line(_ANSWER_SECONDS)
        if line != b"started 0":
            self._end()
            raise RuntimeFault(
                "The command was not run: its box did not start it, and was ended with all of its"
                " processes. The next command gets a new box. The earlier ones may have used up the"
                " limits of processes or memory."
            )
        return pid

    def _read_line(self, seconds: float) -> tuple[bytes | None, int]:
        """Return the next line from the box and its sender's pid; None if the box has ended or did
        not answer within `seconds`."""
        assert self._socket is not None
        deadline = time.monotonic() + seconds
        pid = 0
        while b"\n" not in self._unread:
            if not _readable(self._socket, max(0.0, deadline - time.monotonic())):
                return None, 0
            # The kernel returns the lines of one sender at a time.
            data, controls, _, _ = self._socket.recvmsg(4096, socket.CMSG_SPACE(_CREDENTIALS.size))
            if not data:
                return None, 0
            for _, kind, content in controls:
                if kind == socket.SCM_CREDENTIALS:
                    pid = _CREDENTIALS.unpack(content)[0]
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return line, pid

    def take_connections(self) -> NetworkLog:
        """Return the connections to the network since the last call."""
        return self._launcher.take_connections()

    def close(self) -> None:
        """End the box and all of its processes. Idempotent."""
        self._end()
        self._launcher.close()

    def _end(self) -> None:
        with self._lock:
            process, self._process = self._process, None
            connection, self._socket = self._socket, None
            if process is None:
                return
            first, self._first = self._first, -1
        if first >= 0:
            # With the first process, the kernel ends all others of the box before it reports the
            # end.
            with suppress(OSError):
                signal.pidfd_send_signal(first, signal.SIGKILL)
            os.close(first)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()
        if connection is not None:
            connection.close()


def _readable(connection: socket.socket, seconds: float) -> bool:
    poll = select.poll()  # select() takes no descriptor above 1023
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def _make_fifo(path: Path, flags: int) -> int:
    """Make a FIFO in the shell's folder, which the box cannot change, and open it."""
    os.mkfifo(path, 0o600)
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)


def _start_file(
    argv: Sequence[str], cwd: str, workdir: str, env: Mapping[str, str], stdin: str, stdout: Path
) -> bytes:
    """Return the file by which the bash in the box starts a command."""
    plain = {
        name: value
        for name, value in env.items()
        if _NAME.match(name) and not _BASH_OWN.fullmatch(name) and name != "PWD"
    }
    exports = "".join(f"export {name}={_quoted(value)}\n" for name, value in plain.items())
    # The program env sets the names that bash cannot.
    rest = [f"{name}={value}" for name, value in env.items() if name not in plain and name != "PWD"]
    words = ["env", "--", *rest, *argv] if rest else argv
    text = _START.format(
        cwd=_quoted(cwd),
        workdir=_quoted(workdir),
        exports=f"{exports}export PWD\n",
        stdin=_quoted(stdin or "/dev/null"),
        stdout=_quoted(str(stdout)),
        program=" ".join(map(_quoted, words)),
    )
    return text.encode(errors="surrogateescape")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
