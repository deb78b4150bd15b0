"""`Shell`: the commands of one conversation, each in a bash of its own, and the state between
them."""

from __future__ import annotations

import os
import select
import shutil
import signal
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

from holdfast.errors import RuntimeFault, ToolCancelled
from holdfast.runtime import bash, processes
from holdfast.runtime.command_host import CommandHost, CommandProcess, NetworkLog
from holdfast.runtime.output import MAX_OUTPUT_BYTES, CommandOutput
from holdfast.runtime.pump import Pump
from holdfast.tools.context import Cancellation
from holdfast.tools.secrets import Secrets, StreamMask

# Seconds after which a new background process has certainly closed our pipe, if it redirects its
# output.
_REDIRECT_SECONDS = 0.03
# Seconds from the SIGINT to the SIGKILL when a command is ended by force.
_KILL_AFTER_SECONDS = 0.15
_ATTEMPTS_TO_KILL = 10  # before the command's host is asked to end it
_MAX_LISTED_PIDS = 10  # background processes that are named


@dataclass(eq=False)
class Run:
    """One command of a shell. `done` is set when the command's bash has ended, even if background
    processes continue."""

    number: int
    command: str
    timeout: float
    name: str
    """The prefix of the names in its script."""
    marks: Mapping[str, str]
    """Variables in the environment of all its processes, by which they are found. The marks do not
    belong to the state."""
    output: CommandOutput
    process: CommandProcess
    stdout: IO[bytes]
    stdin: IO[bytes] | None
    mask: StreamMask | None = None
    """Hides the conversation's secrets in the output."""
    end_fd: int = -1
    """A descriptor that is readable once the process has ended."""
    done: threading.Event = field(default_factory=threading.Event)
    progress: threading.Condition = field(default_factory=threading.Condition)
    started: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    exit_code: int | None = None
    cwd: str = ""
    reported_bytes: int = 0
    """Bytes of the output that earlier answers have reported."""
    ended_by: str = ""
    """`timeout`, `cancel`, `kill` or `close` if the command was ended by force; else ""."""
    change: bash.StateChange | None = None
    """The change of directory and variables; None if the command ended before it was read."""
    output_held: bool = False
    """True if a process of the command still held its output open at the end."""
    background_pids: tuple[int, ...] = ()
    """Pids of processes that it left running in its process group."""

    def elapsed(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self.started

    def wait_quiet(self, wait: float, quiet: float, since: int) -> None:
        """Block until the command has ended, or has answered an input; at most `wait` seconds. The
        command has answered if it has written more than `since` bytes and then nothing for `quiet`
        seconds."""
        deadline = time.monotonic() + wait
        with self.progress:
            while not self.done.is_set() and (remaining := deadline - time.monotonic()) > 0:
                answered = self.output.total > since
                if (
                    not self.progress.wait(min(remaining, quiet) if answered else remaining)
                    and answered
                ):
                    return

    def wait_output(self, since: int, wait: float | None) -> bool:
        """Block until the command has written more than `since` bytes or has ended, at most `wait`
        seconds; None waits forever. Return True if it has written and still runs."""
        with self.progress:
            self.progress.wait_for(lambda: self.done.is_set() or self.output.total > since, wait)
        return not self.done.is_set() and self.output.total > since

    def notify(self) -> None:
        """Wake the threads that wait for output."""
        with self.progress:
            self.progress.notify_all()


def shell_folder(folder: Path, number: int) -> Path:
    """Return the folder of a shell's scripts, below the runtime's own."""
    return folder / f"shell-{number}"


def state_file(folder: Path) -> Path:
    """Return the file into which a shell's commands write their state, by the shell's folder."""
    return folder / "state"


class Shell:
    """A sequence of commands, each in a new bash with the directory and the variables of the last
    one. Commands get pipes, no terminal. A command ends when its bash ends. `start` is called
    within `turn`, the other methods from any thread. No process runs before the first command."""

    def __init__(
        self,
        pump: Pump,
        host: CommandHost,
        program: str,
        cwd: Path,
        env: Mapping[str, str],
        folder: Path,
        number: int,
    ) -> None:
        self.running: Run | None = None
        """The run that the last call left running."""
        self.reported_cwd = str(cwd)
        """The directory that the last answer reported."""
        self.state = bash.TerminalState(
            str(cwd), {name: value for name, value in env.items() if not bash.acts_on(name)}
        )
        self._pump = pump
        self._host = host
        self._program = program
        self._folder = shell_folder(folder, number)
        self._state_file = state_file(self._folder)
        self._outputs = folder / "output" / f"{number}-"
        self._mark = f"{folder.name}-{number}"
        self._number = 0
        self._turn = threading.Condition()
        self._busy = False
        self._closed = False
        self._lock = threading.Lock()
        self._run: Run | None = None
        # Ended commands that left processes in their session: its id -> pid and start time of the
        # living ones. While one of them lives, the kernel does not reuse the session's id.
        self._background: dict[int, set[tuple[int, int]]] = {}
        self._drains: set[Run] = set()

    @contextmanager
    def turn(self, cancelled: Cancellation | None) -> Generator[None]:
        """Wait for the calls that came before, and keep others out within a `with` block."""

        def wake() -> None:
            with self._turn:
                self._turn.notify_all()

        forget = cancelled.add_callback(wake) if cancelled is not None else None
        try:
            with self._turn:
                self._turn.wait_for(lambda: not self._busy or self._closed or bool(cancelled))
                if cancelled:
                    raise ToolCancelled("The call was cancelled before its command was started.")
                self._check_open()
                self._busy = True
        finally:
            if forget is not None:
                forget()
        try:
            yield
        finally:
            with self._turn:
                self._busy = False
                self._turn.notify_all()

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeFault("The shell of this conversation was closed.")

    # --- running ---

    def start(
        self,
        command: str,
        timeout: float,
        interactive: bool,
        marked: Callable[[], Mapping[str, str]] | None,
        secrets: Secrets | None = None,
    ) -> Run:
        """Start `command`, which is ended `timeout` seconds from now. The variables of `marked`,
        and the `secrets` that the command names, are added to its environment, and are not carried
        to the next command. Raises `RuntimeFault` if the command cannot be started, `ToolError` if
        the value of a secret cannot be had."""
        secret_variables = {} if secrets is None else secrets.named_in(command)
        with self._turn:
            self._check_open()
            self._number += 1
        number, name = self._number, f"_{os.urandom(8).hex()}"
        marks = {**secret_variables, **(marked() if marked is not None else {})}
        marks[processes.MARK] = f"{self._mark}.{number}."
        script = self._script(number)
        try:
            # Each time anew: a command may have emptied the temporary folder.
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            script.write_bytes(bash.script(command.encode(errors="surrogateescape"), self.state))
            self._clear_state()
            arguments = bash.arguments(name, str(script), str(self._state_file), self.state.status)
            process = self._host.start(
                [self._program, *arguments],
                number=number,
                cwd=self.state.cwd,
                env={**self.state.exported, **marks},
                interactive=interactive,
            )
        except RuntimeFault:  # it says what to do
            self._remove_files(number)
            raise
        except OSError as error:
            self._remove_files(number)
            what = f"{self._program} could not be started in {self.state.cwd}"
            raise RuntimeFault(f"The command was not run: {what}: {error}") from error
        for pipe in filter(None, (process.stdin, process.stdout)):
            os.set_blocking(pipe.fileno(), False)
        output = CommandOutput(Path(f"{self._outputs}{number}.txt"), MAX_OUTPUT_BYTES)
        pipes = (process.stdout, process.stdin)
        mask = None if secrets is None else StreamMask(secrets)
        run = Run(number, command, timeout, name, marks, output, process, *pipes, mask)
        with self._lock:
            self._run = run

        def begin() -> None:
            if run.done.is_set():  # the shell was closed meanwhile
                self._drop_output(run)
                return
            self._drains.add(run)
            self._pump.watch(run.stdout.fileno(), lambda: self._drain(run))
            # By number: a pending timer must not keep the output of a finished run in memory.
            self._pump.after(timeout, lambda: self._time_out(number))
            self._watch(run)
            if self._closed:  # meanwhile
                self._close()

        if not self._pump.call(begin):  # the pump was closed meanwhile
            processes.kill(lambda: self._started_by(run))
            process.wait()
            run.stdout.close()
            self.send_eof(run)
            raise RuntimeFault("The runtime is closed. Make a new LocalRuntime.")
        return run

    def _script(self, number: int) -> Path:
        return self._folder / f"{number}.sh"

    def _clear_state(self) -> None:
        """Make the state's file, or empty it in place, because a box has a mount of it."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        os.close(os.open(self._state_file, flags, 0o600))

    def _watch(self, run: Run) -> None:
        run.end_fd = self._host.watch_end(run.process)
        if run.end_fd >= 0:
            self._pump.watch(run.end_fd, lambda: self._on_end(run))
            return

        def wait() -> None:
            run.process.wait()
            self._pump.call(lambda: self._on_end(run))

        threading.Thread(target=wait, name="holdfast-shell", daemon=True).start()

    def send_input(self, run: Run, data: bytes) -> int:
        """Write to the command's stdin; return the number of bytes that fitted."""
        with self._lock:
            if run.stdin is None or run.stdin.closed:
                raise RuntimeFault(
                    "The command has no open standard input. Start it with interactive=true to send"
                    " it input."
                )
            count = 0
            try:
                while count < len(data):
                    count += os.write(run.stdin.fileno(), data[count:])
            except BlockingIOError:
                pass
            except BrokenPipeError as error:
                raise RuntimeFault(
                    "The command has closed its standard input and takes no more."
                ) from error
            return count

    def send_eof(self, run: Run) -> None:
        """Close the command's stdin: the command reads the sent data, then the end of file."""
        with self._lock:
            if run.stdin is not None:
                run.stdin.close()

    def interrupt(self, run: Run) -> None:
        """Send SIGINT to all processes of the command, as Ctrl-C does. bash ends together with the
        program that SIGINT ended."""

        def work() -> None:
            if self._run is run:
                processes.send(self._started_by(run), signal.SIGINT)

        self._pump.call(work)

    def end(self, run: Run, reason: str) -> None:
        """End the command and all its processes, by force if necessary. Return at once; `run.done`
        follows in well under a second."""
        self._pump.call(lambda: self._force(run, reason))

    def stop_background(self, run: Run, patience: float) -> None:
        """End the processes that a command has left in the background: by SIGTERM, and after
        `patience` seconds by force. Blocks until they are gone."""

        def living() -> list[processes.Process]:
            # While one of them lives, the kernel does not reuse the session's id.
            session = (run.process.pid,) if run.process.pid in self._background else ()
            return processes.of_commands(session, run.marks[processes.MARK])

        processes.send(living(), signal.SIGTERM)
        deadline = time.monotonic() + patience
        with run.progress:
            while not run.stdout.closed and (seconds := deadline - time.monotonic()) > 0:
                run.progress.wait(seconds)
        processes.kill(living)

    def take_connections(self) -> NetworkLog:
        """Return the connections to the network since the last call, where they are watched."""
        return self._host.take_connections()

    # --- on the pump's thread ---

    def _drain(self, run: Run) -> None:
        """Read available output, at most 4 MB, so that no command delays the others."""
        if run.stdout.closed:
            return
        for _ in range(64):
            try:
                data = os.read(run.stdout.fileno(), 65536)
            except BlockingIOError:
                break
            if not data:
                self._drop_output(run)
                break
            run.output.append(data if run.mask is None else run.mask.feed(data))
        run.notify()

    def _drop_output(self, run: Run) -> None:
        if not run.stdout.closed:
            self._pump.unwatch(run.stdout.fileno())
            self._drains.discard(run)
            run.stdout.close()
            if run.mask is not None:
                run.output.append(run.mask.flush())
        run.output.close()

    def _on_end(self, run: Run) -> None:
        if run.done.is_set():
            return
        try:
            self._complete(run)
        finally:  # a caller waits for it
            with self._lock:
                self._run = None
            run.done.set()
            run.notify()

    def _complete(self, run: Run) -> None:
        if run.end_fd >= 0:
            self._pump.unwatch(run.end_fd)
            os.close(run.end_fd)
            run.end_fd = -1
        if run.ended_by:  # before bash is reaped, while its pid cannot be reused
            processes.kill(lambda: self._started_by(run))
        code = run.process.wait()
        self._drain(run)
        if not run.stdout.closed:
            # A new background process may not have redirected its output yet.
            poll = select.poll()
            poll.register(run.stdout, select.POLLIN)
            if poll.poll(_REDIRECT_SECONDS * 1000):
                self._drain(run)
        if not run.stdout.closed:
            # A background process still writes. Its output can be read in the file.
            run.output_held = True
            run.output.spool()
        self._note_background(run)
        run.seconds = time.monotonic() - run.started
        run.exit_code = code if code >= 0 else 128 - code
        self._take_state(run, run.exit_code)
        run.cwd = self.state.cwd
        self.send_eof(run)
        self._remove_files(run.number)

    def _take_state(self, run: Run, status: int) -> None:
        """Carry directory and variables to the next command, if bash could write them."""
        data = b""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with (
            suppress(OSError),
            open(os.open(self._state_file, flags), "rb") as file,
        ):
            data = file.read(bash.MAX_STATE_BYTES + 1) or b""
        too_large = len(data) > bash.MAX_STATE_BYTES
        update = bash.after(self.state, b"" if too_large else data, run.name, run.marks, status)
        if update is not None:
            self.state, run.change = update
        else:
            self.state = replace(self.state, status=status)

    def _note_background(self, run: Run) -> None:
        session = run.process.pid
        try:
            os.killpg(session, 0)
        except ProcessLookupError:  # the usual case: nothing is left in its group
            return
        except OSError:
            pass
        members = processes.of_commands((session,), run.marks[processes.MARK])
        if members:
            self._background[session] = {(p.pid, p.started) for p in members}
            first = members[:_MAX_LISTED_PIDS]
            run.background_pids = tuple(self._host.shown_pid(p.pid) for p in first)

    def _family(self) -> list[processes.Process]:
        """Return all living processes that the shell's commands have started."""
        run = self._run
        background = self._background.copy()
        running = () if run is None else (run.process.pid,)
        family = processes.of_commands({*background, *running}, f"{self._mark}.")
        ended_sessions: set[int] = set()
        for session, before in background.items():
            members = {(p.pid, p.started) for p in family if session in (p.session, p.group)}
            if members & before:
                self._background[session] = members
            else:  # the session's id may be reused by now
                ended_sessions.add(session)
                self._background.pop(session, None)
        return [p for p in family if ended_sessions.isdisjoint((p.session, p.group))]

    def _started_by(self, run: Run) -> list[processes.Process]:
        """Return all living processes that `run` has started, its bash first."""
        pid = run.process.pid
        family = processes.of_commands((pid,), run.marks[processes.MARK])
        return sorted(family, key=lambda p: p.pid != pid)

    def _time_out(self, number: int) -> None:
        if self._run is not None and self._run.number == number:
            self._force(self._run, "timeout")

    def _force(self, run: Run, reason: str, attempt: int = 0) -> None:
        if self._run is not run:
            return
        if not run.ended_by:
            run.ended_by = reason
        elif not attempt:
            return  # the command is being ended already
        # Send SIGINT first, so that programs clean up and bash writes its state.
        processes.send(self._started_by(run), signal.SIGKILL if attempt else signal.SIGINT)
        if attempt >= _ATTEMPTS_TO_KILL:  # its end should have been reported
            run.process.kill()
        self._pump.after(_KILL_AFTER_SECONDS, lambda: self._force(run, reason, attempt + 1))

    # --- closing ---

    def groups(self) -> list[int]:
        """Return the living process groups, that of the running command first."""
        if not self._number:
            return []
        run = self._run
        first = [] if run is None else [run.process.pid]
        return [*first, *sorted({p.group for p in self._family()} - set(first))]

    def close(self) -> None:
        """End all processes of the commands, and complete runs that callers wait for. Later calls
        are refused."""
        with self._turn:
            self._closed = True
            self._turn.notify_all()
            if not self._number:
                return
        closed = threading.Event()

        def work() -> None:
            try:
                self._close()
            finally:
                closed.set()

        if self._pump.call(work):
            closed.wait()

    def _close(self) -> None:
        run = self._run
        if run is not None and not run.ended_by:
            run.ended_by = "close"
        try:
            processes.kill(self._family)
            if run is not None:
                run.process.kill()
                self._on_end(run)
            for drained in list(self._drains):
                self._drain(drained)
                self._drop_output(drained)
        finally:
            self._host.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _remove_files(self, number: int) -> None:
        with suppress(OSError):
            os.unlink(self._script(number))
        with suppress(OSError):
            self._clear_state()
