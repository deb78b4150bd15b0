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
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from holdfast.errors import RuntimeFault
from holdfast.runtime.command_host import CommandProcess, NetworkLog, before_start
from holdfast.runtime.pump import Pump
from holdfast.runtime.sandbox.bridge import BoxLauncher
from holdfast.tools.launch import start

# Seconds for a box to start, and for its bash to start a command. A box whose processes use up its
# limits may not answer at all.
_ANSWER_SECONDS = 10.0
# Seconds for the end of a box whose first process was killed, and for the line about a command that
# has ended.
_END_SECONDS = 2.0
_HANG_SECONDS = 1.0  # after which a box that does not report a killed command's end is ended
_MAX_LINE_BYTES = 64
_ATTEMPTS = 3  # to start a command
_CREDENTIALS = struct.Struct("iII")  # pid, uid, gid
_KILLED_STATUS = 128 + signal.SIGKILL

# The program of the bash that waits in the box. Its standard input is a socket; each line of it is
# the number of a command to start. A child is made before it is needed, in its own process group
# (`set -m`). The child reads that number from a pipe, and runs the command's file.
#
# The child announces itself on the socket and closes it before it waits. So a command that takes
# another one over, as commands can, has no way to the owner. Without `set +m`, `wait` would end
# when the command is stopped; `wait -f` can loop without end.
_WAITER = """\
exec 2>/dev/null 5>&0; unset OLDPWD SHLVL; trap '' PIPE; printf 'ready 0\\n' >&5
while :; do
    set -m
    coproc { trap - PIPE; printf 'waiting 0\\n' >&5; exec 5>&-; IFS= read -r n && . "$1/start"; }
    set +m; p=$COPROC_PID i=${COPROC[1]} o=${COPROC[0]}
    IFS= read -r n || exit
    printf '%s\\n' "$n" >&"$i" && IFS= read -r n <&"$o" && printf 'started 0\\n' >&5
    wait "$p"; printf 'ended %s\\n' "$?" >&5 || exit
done"""
# The file `start`, for one command.
_START = """\
cd -- {cwd} || cd -- {workdir} || exit 126
{exports}exec 3>&1 <{stdin} >{stdout} 2>&1
printf '\\n' >&3
exec {program} 3>&-
"""
_ENDED = re.compile(rb"ended (\d{1,3})")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
# Variables that bash does not let anyone set, or that change by themselves.
_BASH_OWN = re.compile(
    r"BASH\w*|UID|EUID|PPID|GROUPS|FUNCNAME|DIRSTACK|LINENO|S?RANDOM|SECONDS|EPOCH\w*|SHELLOPTS|_"
    r"|IFS|POSIXLY_CORRECT|PIPESTATUS|HISTCMD|COMP_\w*"
)
# bash loads 13 files when one of these is set, so that the bash that waits has them.
_LOCALE = re.compile(r"LANG|LANGUAGE|LC_\w+")


class BoxedProcess:
    """A command in a live box."""

    def __init__(self, box: LiveBox, pid: int, stdin: IO[bytes] | None, stdout: IO[bytes]) -> None:
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self._box = box
        self._lock = threading.Lock()
        self._status: int | None = None
        self._killed = 0.0

    def wait(self) -> int:
        """Wait for the end, and return the exit code."""
        with self._lock:
            if self._status is None:
                self._status = self._box.wait_for_command()
            return self._status

    def kill(self) -> None:
        """Send SIGKILL to the command. If its end was not reported since an earlier call, end the
        misbehaving box."""
        if self._status is not None:
            return
        self._killed = self._killed or time.monotonic()
        if time.monotonic() - self._killed > _HANG_SECONDS:
            self._box.end()
            return
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
        self._locale: dict[str, str] = {}
        self._unread = b""
        self._sender = 0
        """The pid of the process that sent the unread bytes."""
        self._reading = threading.Lock()
        """Held while the socket is read: it is not closed meanwhile."""
        self._ready = threading.Event()
        """Cleared while a box starts. bubblewrap that is killed then leaves its child behind."""
        self._next_fifo = -1
        """A descriptor of the FIFO for the output of the next command."""
        self._closed = False

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
        if self._process is None:
            self._locale = {name: env[name] for name in env if _LOCALE.fullmatch(name)}
            self._open()
        out, into = self._folder / f"{number}.out", self._folder / f"{number}.in"
        fds: list[int] = []
        try:
            fds.append(self._take_fifo(out))
            if interactive:
                # Open for both: the box waits for a writer, this process waits for nothing.
                fds.append(_make_fifo(into, os.O_RDWR))
            variables = dict(env.items() - self._locale.items())
            unset_names = self._locale.keys() - env.keys()
            stdin = str(into) if interactive else "/dev/null"
            text = _start_file(argv, cwd, self._workdir, variables, unset_names, stdin, str(out))
            # The same file each time: a new one takes 0.15 ms more.
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW
            with open(os.open(self._folder / "start", flags, 0o600), "wb") as file:
                file.write(text)
                file.truncate()
            self._launcher.share(self._folder)
            pid = self._begin(number)
            pipe = None
            if interactive:
                # For writing alone, so that it breaks once no process of the command reads.
                pipe = open(os.open(into, os.O_WRONLY | os.O_NONBLOCK), "wb", buffering=0)  # noqa: SIM115
            self._make_next_fifo()
            return BoxedProcess(self, pid, pipe, open(fds.pop(0), "rb", buffering=0))
        finally:
            for fd in fds:
                os.close(fd)
            for path in (out, into):
                path.unlink(missing_ok=True)

    def _make_next_fifo(self) -> None:
        """Make the FIFO of the next command while this one starts, which takes longer. No box sees
        the folder of the runtime."""
        path = self._folder.with_suffix(".next")
        with self._lock, suppress(OSError):
            if not self._closed:
                self._next_fifo = _make_fifo(path, os.O_RDONLY)

    def _take_fifo(self, path: Path) -> int:
        """Put a FIFO for the output of a command at a path, and return a descriptor of it."""
        with self._lock:
            fd, self._next_fifo = self._next_fifo, -1
        if fd >= 0:
            with suppress(OSError):
                os.rename(self._folder.with_suffix(".next"), path)
                return fd
            os.close(fd)
        return _make_fifo(path, os.O_RDONLY)

    def watch_end(self, process: CommandProcess) -> int:
        """Return a copy of the box's socket: its next line reports the end of the command. The
        socket ends with the box."""
        with self._lock:
            if self._socket is not None:
                return os.dup(self._socket.fileno())
        ended, other = os.pipe()
        os.close(other)
        return ended

    def shown_pid(self, pid: int) -> int:
        """Return the pid in the box."""
        with suppress(OSError, IndexError, ValueError), open(f"/proc/{pid}/status") as file:
            lines = [line for line in file if line.startswith("NSpid:")]
            return int(lines[0].split()[-1])
        return pid

    def wait_for_command(self) -> int:
        """Wait for the line about the end of the running command, and return its exit code. If the
        box has ended, return the code of a killed command. A box that sends any other line is
        ended."""
        line, _ = self._read_line(_END_SECONDS)
        if line is not None and (match := _ENDED.fullmatch(line)):
            return int(match[1])
        self.end()
        return _KILLED_STATUS

    # --- the box ---

    def _open(self) -> None:
        """Start the box on the pump's thread, and wait until its bash is ready."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        # The kernel then names the sender of each line, by its pid on this machine.
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        tried = threading.Event()
        started: list[subprocess.Popen[bytes]] = []
        problems: list[OSError] = []
        argv = ["bash", "--noprofile", "--norc", "-p", "-c", _WAITER, "box", str(self._folder)]

        def work() -> None:
            try:
                if self._closed:  # meanwhile
                    return
                process = start(
                    self._launcher,
                    argv,
                    cwd=None,
                    # Without SHELL, bash asks the user database.
                    env={"PATH": "/usr/local/bin:/usr/bin:/bin", "SHELL": "bash", **self._locale},
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    preexec_fn=before_start(),
                )
                with self._lock:
                    self._process, self._socket, self._unread = process, ours, b""
                    self._ready.clear()
                started.append(process)
            except OSError as error:
                problems.append(error)
            finally:
                tried.set()

        if self._pump.call(work):
            tried.wait()
        theirs.close()
        if not started:
            ours.close()
            reason = f": {problems[0]}" if problems else ": its conversation or runtime is closed"
            raise RuntimeFault(f"The box could not be started{reason}.")
        problem = self._make_ready(started[0])
        self._ready.set()
        if problem:
            self.end()
            raise RuntimeFault(f"The box could not be started: {problem}.")

    def _make_ready(self, process: subprocess.Popen[bytes]) -> str:
        """Wait until the bash in the box is ready. Return the reason why it is not, else ""."""
        assert process.stderr is not None
        line, pid = self._read_line(_ANSWER_SECONDS)
        if line != b"ready 0":
            process.kill()
            message = process.stderr.read(2000) if _readable(process.stderr, _END_SECONDS) else b""
            return message.decode(errors="replace").strip() or "it did not answer"
        try:
            first = os.pidfd_open(pid)
            with self._lock:
                self._first = first
            self._launcher.limit(pid)
        except OSError as error:
            return str(error)
        return ""

    def _begin(self, number: int) -> int:
        """Let the bash in the box start a command, and return the command's pid."""
        was_sent = False
        for _ in range(_ATTEMPTS):
            line, pid = self._read_line(_ANSWER_SECONDS)
            with self._lock, suppress(OSError):
                if line == b"waiting 0" and self._socket is not None:
                    self._socket.sendall(b"%d\n" % number)
                    was_sent = True
            line, _ = self._read_line(_ANSWER_SECONDS)
            if line == b"started 0":
                return pid
            if line is None and was_sent and self._has_ended():
                # A command can end its box faster than bash reports the start.
                self.end()
                return pid
            if line is None or not _ENDED.fullmatch(line):
                break
            # An earlier command has killed the child that waited. There is a new one.
        self.end()
        if self._closed:
            raise RuntimeFault("The command was not run: its box was closed.")
        outcome = (
            "The command may have run: its box did not report its start"
            if was_sent
            else "The command was not run: its box did not start it"
        )
        raise RuntimeFault(
            f"{outcome}, and was ended with all of its processes. The next command gets a new box."
            " The earlier ones may have used up the limits of processes or memory."
        )

    def _has_ended(self) -> bool:
        with self._lock:
            first = self._first
        return first < 0 or _readable(first, _HANG_SECONDS)

    def _read_line(self, seconds: float) -> tuple[bytes | None, int]:
        """Return the next line from the box and its sender's pid. The line is None if the box has
        ended, did not answer within `seconds`, or sent too long a line."""
        deadline = time.monotonic() + seconds
        with self._reading:
            connection = self._socket
            if connection is None:
                return None, 0
            while b"\n" not in self._unread:
                remaining = deadline - time.monotonic()
                if remaining <= 0 or len(self._unread) >= _MAX_LINE_BYTES:
                    return None, 0
                if not _readable(connection, remaining):
                    return None, 0
                try:
                    # The kernel returns the lines of one sender at a time.
                    data, controls, _, _ = connection.recvmsg(
                        _MAX_LINE_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size)
                    )
                except OSError:
                    return None, 0
                senders = [
                    _CREDENTIALS.unpack(content)[0]
                    for _, kind, content in controls
                    if kind == socket.SCM_CREDENTIALS
                ]
                if not data or not senders or senders[0] <= 0:
                    return None, 0
                if self._unread and senders[0] != self._sender:  # half a line each
                    return None, 0
                self._sender = senders[0]
                self._unread += data
            line, _, self._unread = self._unread.partition(b"\n")
            return line, self._sender

    def take_connections(self) -> NetworkLog:
        """Return the connections to the network since the last call."""
        return self._launcher.take_connections()

    def close(self) -> None:
        """End the box and all of its processes, also one that is being started. Idempotent."""
        with self._lock:
            self._closed = True
            fd, self._next_fifo = self._next_fifo, -1
        if fd >= 0:
            os.close(fd)
            self._folder.with_suffix(".next").unlink(missing_ok=True)
        self.end()
        self._launcher.close()

    def end(self) -> None:
        """End the box that runs, if any, and all of its processes. Idempotent."""
        if self._process is not None:
            self._ready.wait(_END_SECONDS)
        with self._lock:
            process, self._process = self._process, None
            if process is None:
                return
            connection, first = self._socket, self._first
            self._first = -1
            if connection is not None:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)  # who reads it gets its end
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
        with self._reading:
            self._socket = None
            if process.stderr is not None:
                process.stderr.close()
            if connection is not None:
                connection.close()


def _readable(connection: socket.socket | IO[bytes] | int, seconds: float) -> bool:
    poll = select.poll()  # select() takes no descriptor above 1023
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def _make_fifo(path: Path, flags: int) -> int:
    """Make a FIFO in the shell's folder, which the box cannot change, and open it."""
    os.mkfifo(path, 0o600)
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)


def _start_file(
    argv: Sequence[str],
    cwd: str,
    workdir: str,
    env: Mapping[str, str],
    unset: Iterable[str],
    stdin: str,
    stdout: str,
) -> bytes:
    """Return the file by which the bash in the box starts a command."""
    plain = {
        name: value
        for name, value in env.items()
        if _NAME.match(name) and not _BASH_OWN.fullmatch(name) and name != "PWD"
    }
    exports = "".join(f"export {name}={_quoted(value)}\n" for name, value in plain.items())
    exports += "".join(f"unset {name}\n" for name in unset)
    # The program env sets the names that bash cannot.
    rest = [f"{name}={value}" for name, value in env.items() if name not in plain and name != "PWD"]
    words = ["env", "--", *rest, *argv] if rest else argv
    text = _START.format(
        cwd=_quoted(cwd),
        workdir=_quoted(workdir),
        exports=f"{exports}export PWD\n",
        stdin=_quoted(stdin),
        stdout=_quoted(stdout),
        program=" ".join(map(_quoted, words)),
    )
    return text.encode(errors="surrogateescape")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
