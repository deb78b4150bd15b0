"""`Shell`: one living bash, and how what it runs ends: by itself, by a deadline, or by force."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from holdfast.errors import RuntimeFault
from holdfast.runtime import bash, processes
from holdfast.runtime.output import Output
from holdfast.runtime.pump import Pump
from holdfast.runtime.run import Run

_REDIRECTED = 0.03  # seconds until a process in the background has surely closed our pipe, if it is going to
# What ends a run by force: seconds after the start of the end, and what is done then.
_SECOND_ROUND, _ROUNDS = 0.15, 3


def _heed_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Shell:
    """A bash that runs one command after the other and keeps its directory, variables, functions and options in between.

    Commands get pipes, no terminal; the exit code and the directory come back on a channel that commands cannot reach. Methods
    are called from one thread at a time, but `end` and `close` from any.
    """

    def __init__(self, pump: Pump, program: str, cwd: Path, env: Mapping[str, str], folder: Path, mark: str) -> None:
        self._pump = pump
        self._folder = folder
        self._number = 0
        self._status = 0
        self._buffer = b""
        self._lock = threading.Lock()
        self._run: Run | None = None
        self._jobs: set[int] = set()
        self._drains: dict[int, Run] = {}
        self.cwd = str(cwd)
        self.alive = True
        self.mark = mark
        report, child_end = os.pipe()
        try:
            self._process = subprocess.Popen(
                [program, *bash.ARGUMENTS],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=cwd,
                env={**env, processes.MARK: self.mark},
                pass_fds=(child_end,),
                start_new_session=True,
                bufsize=0,
                # bash cannot give its commands back a signal that was ignored when it began, as it is in a script's background.
                preexec_fn=_heed_interrupts if signal.getsignal(signal.SIGINT) is signal.SIG_IGN else None,
            )
        except OSError as error:
            os.close(report)
            os.close(child_end)
            raise RuntimeFault(f"The shell {program} could not be started in {cwd}: {error}") from error
        self.pid = self._process.pid
        os.set_blocking(report, False)
        self._report = report
        self._control = self._process.stdin
        self._tell(bash.setup(child_end))
        os.close(child_end)
        self._pidfd = -1
        self._pump.call(self._watch)

    def _watch(self) -> None:
        self._pump.watch(self._report, self._on_report)
        if hasattr(os, "pidfd_open"):
            try:
                self._pidfd = os.pidfd_open(self.pid)
                self._pump.watch(self._pidfd, self._on_death)
                return
            except OSError:  # an older kernel, or a sandbox that forbids it
                pass
        threading.Thread(target=self._wait_for_death, name="holdfast-shell", daemon=True).start()

    def _wait_for_death(self) -> None:
        self._process.wait()
        self._pump.call(self._on_death)

    def _tell(self, line: str) -> None:
        try:
            assert self._control is not None
            self._control.write(line.encode(errors="surrogateescape"))
        except (OSError, ValueError):  # it has just died; _on_death tells
            pass

    # --- running ---

    def start(self, command: str, output: Output, timeout: float, interactive: bool) -> Run:
        """Start `command`; it is ended `timeout` seconds from now. Raises `RuntimeFault` if there is no place for its pipes."""
        self._number += 1
        run = Run(self._number, command, output, timeout)
        stem = self._folder / f"{run.number}"
        names = {"command": f"{stem}.sh", "stdout": f"{stem}.out", "stdin": f"{stem}.in" if interactive else "/dev/null"}
        try:
            # Anew each time: a command may have emptied the temporary folder.
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            Path(names["command"]).write_bytes(command.encode(errors="surrogateescape") + b"\0")
            os.mkfifo(names["stdout"], 0o600)
            run.out_fd = os.open(names["stdout"], os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            if interactive:
                os.mkfifo(names["stdin"], 0o600)
                # Read and write, so that the shell's open for reading finds a writer at once.
                run.in_fd = os.open(names["stdin"], os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            self._close_pipes(run)
            raise RuntimeFault(f"The command was not run: its pipes could not be made in {self._folder}: {error}") from error
        with self._lock:
            self._run = run

        def begin() -> None:
            self._drains[run.out_fd] = run
            self._pump.watch(run.out_fd, lambda: self._drain(run))
            self._pump.after(timeout, lambda number=run.number: self._time_out(number))
            if not self.alive and self._run is run:
                self._finish(run, self._process.returncode, died=True)

        self._pump.call(begin)
        self._tell(bash.run(run.number, self._status, names["command"], names["stdin"], names["stdout"]))
        return run

    def send_input(self, run: Run, data: bytes) -> int:
        """Write to the command's stdin; the number of bytes that it had room for. Raises `RuntimeFault` if it has no stdin (any more)."""
        with self._lock:
            if run.in_fd < 0:
                raise RuntimeFault("The command has no open standard input. Start it with interactive=true to send it input.")
            sent = 0
            try:
                while sent < len(data):
                    sent += os.write(run.in_fd, data[sent:])
            except BlockingIOError:
                pass
            return sent

    def send_eof(self, run: Run) -> None:
        """Close the command's stdin: it reads what was sent, then the end."""
        with self._lock:
            if run.in_fd >= 0:
                os.close(run.in_fd)
                run.in_fd = -1

    def interrupt(self, run: Run) -> None:
        """What Ctrl-C does: SIGINT to all that the command started, and to the shell, which then leaves the rest of it out."""

        def work() -> None:
            if self._run is run:
                self._signal(run, signal.SIGINT)
                self._pump.after(_SECOND_ROUND, lambda: self._ask(run))

        self._pump.call(work)

    def end(self, run: Run, reason: str) -> None:
        """End the command and all that it started, by force if need be. Returns at once; `run.done` follows in well under a second."""
        self._pump.call(lambda: self._force(run, reason))

    # --- on the pump's thread ---

    def _drain(self, run: Run) -> None:
        """Read what has come. At most 4 MB at a time: a command that writes without end must not keep the others waiting."""
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

    def _on_report(self) -> None:
        try:
            data = os.read(self._report, 65536)
        except BlockingIOError:
            return
        if not data:
            self._pump.unwatch(self._report)
            return
        self._buffer += data
        reports, self._buffer = bash.reports(self._buffer)
        for report in reports:
            self.cwd = report.cwd or self.cwd
            if self._run is not None and report.number == self._run.number:
                self._finish(self._run, report.status)
            self._jobs = report.jobs

    def _on_death(self) -> None:
        if not self.alive:
            return
        self.alive = False
        if self._pidfd >= 0:
            self._pump.unwatch(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        self._on_report()
        # What it left in the background has no shell any more that could tell of it or end it. Before the shell's pid is free
        # for another process to take.
        processes.kill(self._family, spare_group=self.pid)
        code = self._process.wait()
        if self._run is not None:
            self._finish(self._run, code, died=True)

    def _finish(self, run: Run, code: int, died: bool = False) -> None:
        self._status = max(0, code)
        if run.ended_by and not died:
            processes.kill(lambda: self._started_by(run), spare_group=self.pid)
        self._drain(run)
        if run.out_fd >= 0:
            # What has just gone to the background may not have come to its redirection yet.
            poll = select.poll()
            poll.register(run.out_fd, select.POLLIN)
            if poll.poll(_REDIRECTED * 1000):
                self._drain(run)
        if run.out_fd >= 0:
            # Something in the background still writes. Whoever wants to know what will find it in the file.
            run.background = True
            run.output.spool()
        run.seconds = time.monotonic() - run.started
        run.exit_code = code if code >= 0 else 128 - code
        run.cwd = self.cwd
        run.shell_died = died
        with self._lock:
            self._run = None
            if run.in_fd >= 0:
                os.close(run.in_fd)
                run.in_fd = -1
        for kind in ("sh", "out", "in"):
            try:
                os.unlink(self._folder / f"{run.number}.{kind}")
            except OSError:
                pass
        run.done.set()
        run.notify()

    def _family(self) -> list[processes.Process]:
        """All that this shell has started and that lives, without the shell."""
        return [p for p in processes.of_shell(self.pid, self.mark) if p.pid != self.pid]

    def _started_by(self, run: Run) -> list[processes.Process]:
        """What `run` has started: younger than it, and not of a job that an earlier command left in the background."""
        return [p for p in self._family() if p.started >= run.first_tick and p.group not in self._jobs]

    def _signal(self, run: Run, number: int) -> None:
        """Send `number` to all that `run` has started, and SIGINT to the shell."""
        processes.send(self._started_by(run), number, spare_group=self.pid)
        if self.alive:
            os.kill(self.pid, signal.SIGINT)

    def _ask(self, run: Run) -> None:
        # A SIGINT that comes between a command's end and its report takes the report away.
        if self._run is run:
            self._tell(bash.ask(run.number))

    def _time_out(self, number: int) -> None:
        # By number: a timer that is not due yet must not hold on to the output of a run that has long ended.
        if self._run is not None and self._run.number == number:
            self._force(self._run, "timeout")

    def _force(self, run: Run, reason: str, round: int = 0) -> None:
        if self._run is not run:
            return
        if not run.ended_by:
            run.ended_by = reason
        elif round == 0:
            return  # it is being ended already
        if round > _ROUNDS:
            # It ignores SIGINT, or starts new programs faster than they are killed. Then the shell goes with it.
            os.kill(self.pid, signal.SIGKILL)
            return
        # SIGINT first: programs clean up, and the shell drops the rest of a script only if its child died of SIGINT. A shell that is
        # stopped, and one that waits for a child that ignores it, need the second round.
        self._signal(run, signal.SIGINT if round == 0 else signal.SIGKILL)
        if round:
            os.kill(self.pid, signal.SIGCONT)
        self._ask(run)
        self._pump.after(_SECOND_ROUND, lambda: self._force(run, reason, round + 1))

    # --- the end ---

    def groups(self) -> list[int]:
        """The process groups that are alive, the shell's own first."""
        if not self.alive:
            return []
        return [self.pid, *sorted({p.group for p in self._family()} - {self.pid})]

    def close(self) -> None:
        """End the shell and all that it has started; runs that wait are told. Idempotent."""
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
        if self.alive:
            processes.kill(self._family, spare_group=self.pid)
            assert self._control is not None
            self._control.close()
            # The end of its input ends a shell that is idle, and runs its EXIT trap.
            try:
                self._process.wait(0.1 if run is None else 0)
            except subprocess.TimeoutExpired:
                os.kill(self.pid, signal.SIGKILL)
            self._on_death()
        elif self._control is not None:
            self._control.close()
        for left in list(self._drains.values()):
            self._drain(left)
            self._drop_output(left)
        if self._report >= 0:
            self._pump.unwatch(self._report)
            os.close(self._report)
            self._report = -1
        shutil.rmtree(self._folder, ignore_errors=True)

    def _close_pipes(self, run: Run) -> None:
        for fd in (run.in_fd, run.out_fd):
            if fd >= 0:
                os.close(fd)
        run.in_fd = run.out_fd = -1
