"""`Shell`: the commands of one conversation, each in a bash of its own, and the state between
them."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.errors import RuntimeFault
from holdfast.runtime import bash, processes
from holdfast.runtime.output import CommandOutput
from holdfast.runtime.pump import Pump
from holdfast.runtime.run import Run

# Seconds after which a new background process has certainly closed our pipe, if it redirects its
# output.
_REDIRECT_SECONDS = 0.03
# Seconds from the SIGINT to the SIGKILL when a command is ended by force.
_KILL_AFTER_SECONDS = 0.15
_MAX_LISTED_PIDS = 10  # background processes that are named


def _restore_sigint() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@dataclass
class _BackgroundSession:
    """A command that has ended and left processes in its session."""

    session: int
    members: set[tuple[int, int]]
    """Pid and start time of its living processes.

    While one of them lives, the kernel does not reuse the session's id.
    """


class Shell:
    """A sequence of commands, each in a new bash with the directory and the variables of the last
    one.

    Commands get pipes, no terminal. A command ends when its bash ends. `start` is called from
    one thread at a time, the other methods from any.
    """

    def __init__(
        self, pump: Pump, program: str, cwd: Path, env: Mapping[str, str], folder: Path, mark: str
    ) -> None:
        self._pump = pump
        self._program = program
        self._workdir = str(cwd)
        self._folder = folder
        self._mark = mark
        self._number = 0
        self._lock = threading.Lock()
        self._run: Run | None = None
        self._background: list[_BackgroundSession] = []
        self._drains: dict[int, Run] = {}
        self._closed = False
        self.state = bash.TerminalState(
            str(cwd), {name: value for name, value in env.items() if not bash.acts_on(name)}
        )

    # --- running ---

    def start(
        self,
        command: str,
        output: CommandOutput,
        timeout: float,
        interactive: bool,
        marks: Mapping[str, str],
    ) -> Run:
        """Start `command`, which is ended `timeout` seconds from now. `marks` are added to the
        command's environment. Raises `RuntimeFault` if the command cannot be started."""
        self._number += 1
        marks = {**marks, processes.MARK: f"{self._mark}.{self._number}."}
        run = Run(self._number, command, output, timeout, marks)
        if not os.path.isdir(self.state.cwd):
            self.state = replace(self.state, cwd=self._workdir)
        script, state = str(self._file(run, "sh")), str(self._file(run, "state"))
        env = {**self.state.exported, "PWD": self.state.cwd, **run.marks}
        theirs: list[int] = []
        try:
            # Each time anew: a command may have emptied the temporary folder.
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file(run, "sh").write_bytes(
                bash.script(command.encode(errors="surrogateescape"), self.state)
            )
            run.out_fd, child_out = os.pipe()
            theirs.append(child_out)
            child_in: int = subprocess.DEVNULL
            if interactive:
                child_in, run.in_fd = os.pipe()
                theirs.append(child_in)
                os.set_blocking(run.in_fd, False)
            os.set_blocking(run.out_fd, False)
            # bash cannot restore a signal that was ignored at its start, as in a script's
            # background.
            ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            run.process = subprocess.Popen(
                [self._program, *bash.arguments(run.name, script, state, self.state.status)],
                stdin=child_in,
                stdout=child_out,
                stderr=child_out,
                cwd=self.state.cwd,
                env=env,
                start_new_session=True,
                preexec_fn=_restore_sigint if ignored else None,
            )
        except OSError as error:
            self._close_pipes(run)
            self._remove_files(run)
            what = f"{self._program} could not be started in {self.state.cwd}"
            raise RuntimeFault(f"The command was not run: {what}: {error}") from error
        finally:
            for fd in theirs:
                os.close(fd)
        with self._lock:
            self._run = run

        def begin() -> None:
            self._drains[run.out_fd] = run
            self._pump.watch(run.out_fd, lambda: self._drain(run))
            self._pump.after(timeout, lambda number=run.number: self._time_out(number))
            self._watch(run)

        if not self._pump.call(begin):  # the pump was closed meanwhile
            processes.kill(lambda: self._started_by(run))
            run.process.wait()
            self._close_pipes(run)
            raise RuntimeFault("The runtime is closed. Make a new LocalRuntime.")
        return run

    def _file(self, run: Run, kind: str) -> Path:
        return self._folder / f"{run.number}.{kind}"

    def _watch(self, run: Run) -> None:
        assert run.process is not None
        if hasattr(os, "pidfd_open"):
            try:
                run.pidfd = os.pidfd_open(run.process.pid)
                self._pump.watch(run.pidfd, lambda: self._on_end(run))
                return
            except OSError:  # an older kernel, or a sandbox that forbids it
                pass

        def wait() -> None:
            assert run.process is not None
            run.process.wait()
            self._pump.call(lambda: self._on_end(run))

        threading.Thread(target=wait, name="holdfast-shell", daemon=True).start()

    def send_input(self, run: Run, data: bytes) -> int:
        """Write to the command's stdin; return the number of bytes that fitted."""
        with self._lock:
            if run.in_fd < 0:
                raise RuntimeFault(
                    "The command has no open standard input. Start it with interactive=true to send"
                    " it input."
                )
            sent = 0
            try:
                while sent < len(data):
                    sent += os.write(run.in_fd, data[sent:])
            except BlockingIOError:
                pass
            except BrokenPipeError as error:
                raise RuntimeFault(
                    "The command has closed its standard input and takes no more."
                ) from error
            return sent

    def send_eof(self, run: Run) -> None:
        """Close the command's stdin: the command reads the sent data, then the end of file."""
        with self._lock:
            if run.in_fd >= 0:
                os.close(run.in_fd)
                run.in_fd = -1

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

    # --- on the pump's thread ---

    def _drain(self, run: Run) -> None:
        """Read available output, at most 4 MB, so that no command delays the others."""
        if run.out_fd < 0:
            return
        for _ in range(64):
            try:
                data = os.read(run.out_fd, 65536)
            except BlockingIOError:
                break
            if not data:
                self._drop_output(run)
                break
            run.output.append(data)
        run.notify()

    def _drop_output(self, run: Run) -> None:
        if run.out_fd >= 0:
            self._pump.unwatch(run.out_fd)
            self._drains.pop(run.out_fd, None)
            os.close(run.out_fd)
            run.out_fd = -1
        run.output.close()

    def _on_end(self, run: Run) -> None:
        if run.done.is_set():
            return
        if run.pidfd >= 0:
            self._pump.unwatch(run.pidfd)
            os.close(run.pidfd)
            run.pidfd = -1
        assert run.process is not None
        if run.ended_by:  # before bash is reaped, while its pid cannot be reused
            processes.kill(lambda: self._started_by(run))
        code = run.process.wait()
        self._drain(run)
        if run.out_fd >= 0:
            # A new background process may not have redirected its output yet.
            poll = select.poll()
            poll.register(run.out_fd, select.POLLIN)
            if poll.poll(_REDIRECT_SECONDS * 1000):
                self._drain(run)
        if run.out_fd >= 0:
            # A background process still writes. Its output can be read in the file.
            run.output_held = True
            run.output.spool()
        self._note_background(run, run.process.pid)
        run.seconds = time.monotonic() - run.started
        run.exit_code = code if code >= 0 else 128 - code
        self._take_state(run, run.exit_code)
        run.cwd = self.state.cwd
        with self._lock:
            self._run = None
            if run.in_fd >= 0:
                os.close(run.in_fd)
                run.in_fd = -1
        self._remove_files(run)
        run.done.set()
        run.notify()

    def _take_state(self, run: Run, status: int) -> None:
        """Carry directory and variables to the next command, if bash could write them."""
        data = b""
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with open(os.open(self._file(run, "state"), flags), "rb") as file:
                data = file.read(bash.MAX_STATE_BYTES + 1)
        except OSError:
            pass
        too_large = len(data) > bash.MAX_STATE_BYTES
        found = bash.after(self.state, b"" if too_large else data, run.name, run.marks, status)
        if found is not None:
            self.state, run.change = found
        else:
            self.state = replace(self.state, status=status)

    def _note_background(self, run: Run, session: int) -> None:
        try:
            os.killpg(session, 0)
        except ProcessLookupError:  # the usual case: nothing is left in its group
            return
        except OSError:
            pass
        members = processes.of_commands((session,), run.mark)
        if members:
            known = {(p.pid, p.started) for p in members}
            self._background.append(_BackgroundSession(session, known))
            run.background_pids = tuple(p.pid for p in members[:_MAX_LISTED_PIDS])

    def _family(self) -> list[processes.Process]:
        """Return all living processes that the shell's commands have started."""
        run = self._run
        sessions = {one.session for one in self._background}
        if run is not None and run.process is not None:
            sessions.add(run.process.pid)
        found = processes.of_commands(sessions, f"{self._mark}.")
        gone: set[int] = set()
        for one in self._background:
            members = {(p.pid, p.started) for p in found if p.session == one.session}
            if members & one.members:
                one.members = members
            else:  # the session's id may be reused by now
                gone.add(one.session)
        self._background = [one for one in self._background if one.session not in gone]
        return [p for p in found if p.session not in gone] if gone else found

    def _started_by(self, run: Run) -> list[processes.Process]:
        """Return all living processes that `run` has started, its bash first."""
        assert run.process is not None
        found = processes.of_commands((run.process.pid,), run.mark)
        return sorted(found, key=lambda p: p.pid != run.process.pid if run.process else True)

    def _time_out(self, number: int) -> None:
        # By number: a pending timer must not keep the output of a finished run in memory.
        if self._run is not None and self._run.number == number:
            self._force(self._run, "timeout")

    def _force(self, run: Run, reason: str, again: bool = False) -> None:
        if self._run is not run:
            return
        if not run.ended_by:
            run.ended_by = reason
        elif not again:
            return  # the command is being ended already
        # Send SIGINT first, so that programs clean up and bash writes its state.
        processes.send(self._started_by(run), signal.SIGKILL if again else signal.SIGINT)
        self._pump.after(_KILL_AFTER_SECONDS, lambda: self._force(run, reason, again=True))

    # --- closing ---

    def groups(self) -> list[int]:
        """Return the living process groups, that of the running command first."""
        run = self._run
        first = [run.process.pid] if run is not None and run.process is not None else []
        return [*first, *sorted({p.group for p in self._family()} - set(first))]

    def close(self) -> None:
        """End all processes of the commands, and complete runs that callers wait for."""
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
        if run is not None or self._number:
            processes.kill(self._family)
        if run is not None:
            assert run.process is not None
            run.process.kill()
            self._on_end(run)
        for drained in list(self._drains.values()):
            self._drain(drained)
            self._drop_output(drained)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _remove_files(self, run: Run) -> None:
        for kind in ("sh", "state"):
            try:
                os.unlink(self._file(run, kind))
            except OSError:
                pass

    def _close_pipes(self, run: Run) -> None:
        for fd in (run.in_fd, run.out_fd):
            if fd >= 0:
                os.close(fd)
        run.in_fd = run.out_fd = -1
