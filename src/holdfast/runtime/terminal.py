"""`Terminal`: one shell per conversation, and the results of commands for the model."""

from __future__ import annotations

import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from secrets import token_hex
from typing import Any

from holdfast.content import ErrorInfo, TextContent, ToolResult
from holdfast.errors import RuntimeFault, ToolError
from holdfast.processes import OwnerProcess
from holdfast.runtime.background import BackgroundCommands
from holdfast.runtime.command_host import CommandHost, NetworkLog
from holdfast.runtime.output import MAX_OUTPUT_BYTES, CommandOutput
from holdfast.runtime.pump import Pump
from holdfast.runtime.shell import Run, Shell
from holdfast.tools.context import Cancellation
from holdfast.tools.secrets import Secrets

# Bytes of all outputs of a runtime that are kept; the oldest are removed first.
_MAX_ALL_OUTPUTS_BYTES = 10 * MAX_OUTPUT_BYTES
# Seconds of silence after which the answer to an input counts as complete.
_QUIET_SECONDS = 0.4

# A command that ends sooner reports no output before its result.
_FIRST_REPORT_SECONDS = 0.5
# A reader sees output at once, and a command that prints much costs three messages a second.
_REPORT_SECONDS = 0.3
_REPORTED_BYTES = 4000

_MAX_NETWORK_NOTES = 5  # different reasons for which connections were refused

_END_NOTES = {
    "timeout": "timed out after {seconds:.3g} s: the command and all that it started were ended",
    "cancel": "interrupted: the call was cancelled; the command and all that it started were ended",
    "kill": "killed: the command and all that it started were ended",
    "close": "ended: the shell was closed",
}
_ERROR_TYPES = {"timeout": "timeout", "cancel": "cancelled", "close": "cancelled"}


class Terminal:
    """A set of shells, one per conversation. Calls of one conversation wait for each other."""

    def __init__(
        self,
        workdir: Path,
        folder: Path,
        env: Mapping[str, str],
        shell: str,
        output_limit: int,
        command_timeout: float,
        make_host: Callable[[int, Pump], CommandHost],
    ) -> None:
        self._workdir = workdir
        self._folder = folder
        self._env = env
        self._program = shell
        self._limit = output_limit
        self.command_timeout = command_timeout
        self._make_host = make_host
        self._pump = Pump()
        self._process = OwnerProcess()
        self._lock = threading.Lock()
        self._shells: dict[str, Shell] = {}
        self._shell_count = 0
        self._closed = False
        self._files: deque[CommandOutput] = deque()
        self._backgrounds: dict[str, BackgroundCommands] = {}
        self._mark = token_hex(3)
        self.outputs = folder / "output"

    def run(
        self,
        command: str,
        conversation_id: str = "",
        *,
        timeout: float | None = None,
        wait: float | None = None,
        interactive: bool = False,
        cancelled: Cancellation | None = None,
        mark: Callable[[], Mapping[str, str]] | None = None,
        secrets: Secrets | None = None,
        report: Callable[[str], object] | None = None,
    ) -> ToolResult:
        """Run a command, and return its result when it has ended or after `wait` seconds.

        Args:
            command: The command, or a script of several lines.
            conversation_id: The conversation in whose shell the command runs.
            timeout: Seconds after which the command is ended, even if no call waits for it; None
                for `command_timeout`.
            wait: Seconds to wait; None waits for the end.
            interactive: True opens the command's stdin for `send`.
            cancelled: Ends the command when it is set.
            mark: Returns variables to add to the command's environment.
            secrets: Those that the command names are in its environment; all are masked in its
                output.
            report: Receives the unchanged end of the output while the command runs.
        """
        try:
            command.encode(errors="surrogateescape")
            problem = "a NUL character, which bash cannot take" if "\0" in command else ""
        except UnicodeEncodeError:
            problem = "half of a surrogate pair, which is not a character"
        if problem:
            return ToolResult.failure(f"The command was not run: it has {problem}.", "validation")
        limit = self.command_timeout if timeout is None else max(0.0, timeout)
        shell = self._shell_of(conversation_id)
        with shell.turn(cancelled):
            earlier = ""
            previous = shell.running
            if previous is not None:
                name = _quoted(previous.command)
                if not previous.done.is_set():
                    return ToolResult.failure(
                        f"Not run: {name} is still running in this shell. Wait for it, send it"
                        " input or stop it with terminal_input, or start programs that go on, such"
                        " as servers, in the background with &.",
                        "validation",
                        meta={"running": True},
                    )
                text = self._report(shell, previous, {})
                earlier = (
                    f"[The command that was still running, {name}, has ended:]\n{text}\n\n"
                    "[This command:]\n"
                )
                shell.running = None
            try:
                run = shell.start(command, limit, interactive, mark, secrets)
            except (RuntimeFault, ToolError) as error:  # also a secret that cannot be had
                return ToolResult.failure(f"{earlier}{error}", "internal")
            self._wait(shell, run, wait, cancelled, report=report)
            return self._result(shell, run, earlier)

    def send(
        self,
        conversation_id: str = "",
        text: str = "",
        *,
        enter: bool = True,
        control: str = "none",
        wait: float = 10.0,
        cancelled: Cancellation | None = None,
        report: Callable[[str], object] | None = None,
    ) -> ToolResult:
        """Send text to the stdin of the running command, or `interrupt`, `eof` or `kill` it. Return
        the output since the last call. The call returns when the command ends, has been quiet for a
        moment after an input, or after `wait` seconds."""
        shell = self._shell_of(conversation_id)
        with shell.turn(cancelled):
            run = shell.running
            if run is None:
                return ToolResult.failure(
                    "No command is running in this shell. Start one with terminal.", "not_found"
                )
            note = ""
            since: int | None = None
            if not run.done.is_set():
                try:
                    if text:
                        since = run.output.total
                        line = text if text.endswith("\n") or not enter else text + "\n"
                        data = line.encode(errors="surrogateescape")
                        count = shell.send_input(run, data)
                        if count < len(data):
                            note = (
                                f"[only the first {count:,} of {len(data):,} bytes were taken: the"
                                " command does not read them]\n"
                            )
                    if control == "eof":
                        shell.send_eof(run)
                except RuntimeFault as error:
                    if not run.done.is_set():
                        return ToolResult.failure(str(error), "validation", meta={"running": True})
                if control == "interrupt":
                    shell.interrupt(run)
                elif control == "kill":
                    shell.end(run, "kill")
            self._wait(shell, run, wait, cancelled, since, report)
            return self._result(shell, run, note)

    def start_background(
        self,
        command: str,
        conversation_id: str = "",
        *,
        cancelled: Cancellation | None = None,
        mark: Callable[[], Mapping[str, str]] | None = None,
        secrets: Secrets | None = None,
    ) -> ToolResult:
        """Start a command that runs beside later calls, and return its id. Arguments as those of
        `run`."""
        shell = self._shell_of(conversation_id)
        background = self._background_of(conversation_id, shell)
        with shell.turn(cancelled):
            if shell.running is not None and not shell.running.done.is_set():
                name = _quoted(shell.running.command)
                text = f"Not run: {name} is still running in this shell. Wait for it or stop it."
                return ToolResult.failure(text, "validation")
            try:
                if "\0" in command:
                    raise RuntimeFault("The command was not run: it has a NUL character.")
                script, token = background.script(command)
                run = shell.start(script, self.command_timeout, False, mark, secrets)
            except (RuntimeFault, ToolError, UnicodeEncodeError) as error:
                return ToolResult.failure(str(error), "internal")
            self._wait(shell, run, None, cancelled)
            if run.exit_code:
                return self._result(shell, run, "")
            name = background.add(run, token, command)
            self._keep(run.output)
        text = f"Started in the background as {name}. terminal_collect gets its output and outcome."
        return ToolResult((TextContent(text),), meta={"id": name})

    def collect(
        self,
        conversation_id: str,
        name: str = "",
        *,
        wait: float = 0.0,
        stop: bool = False,
        cancelled: Cancellation | None = None,
    ) -> ToolResult:
        """Return the output and state of a background command; without a `name`, a list of all."""
        background = self._background_of(conversation_id, self._shell_of(conversation_id))
        if name:
            return background.collect(name, wait, stop, self._limit, cancelled)
        lines = background.names() or ["No command was started in the background."]
        return ToolResult((TextContent("\n".join(lines)),))

    def _background_of(self, conversation_id: str, shell: Shell) -> BackgroundCommands:
        with self._lock:
            background = self._backgrounds.get(conversation_id)
            if background is None:
                background = BackgroundCommands(shell, self._mark)
                self._backgrounds[conversation_id] = background
            return background

    def _shell_of(self, conversation_id: str) -> Shell:
        self._process.check("The runtime")
        with self._lock:
            if self._closed:
                raise RuntimeFault("The runtime is closed. Make a new LocalRuntime.")
            shell = self._shells.get(conversation_id)
            if shell is None:
                number = self._shell_count = self._shell_count + 1
                shell = self._shells[conversation_id] = Shell(
                    self._pump,
                    self._make_host(number, self._pump),
                    self._program,
                    self._workdir,
                    self._env,
                    self._folder,
                    number,
                )
            return shell

    def _wait(
        self,
        shell: Shell,
        run: Run,
        wait: float | None,
        cancelled: Cancellation | None,
        since: int | None = None,
        report: Callable[[str], object] | None = None,
    ) -> None:
        def cancel() -> None:
            shell.end(run, "cancel")

        forget = None if cancelled is None else cancelled.add_callback(cancel)
        try:
            if since is None or wait is None:
                if report is not None:
                    _report_while_running(run, wait, report)
                else:
                    run.done.wait(wait)
            else:
                run.wait_quiet(wait, _QUIET_SECONDS, since)
            if cancelled:
                run.done.wait()
        # Such as a KeyboardInterrupt in a script: no command must keep running unnoticed.
        except BaseException:
            cancel()
            raise
        finally:
            if forget is not None:
                forget()

    def _result(self, shell: Shell, run: Run, before: str) -> ToolResult:
        meta: dict[str, Any] = {}
        shell.running = None if run.done.is_set() else run
        text = before + self._report(shell, run, meta)
        kind = _ERROR_TYPES.get(run.ended_by, "") if run.done.is_set() else ""
        error = ErrorInfo(kind, text.rpartition("\n")[2].strip("[]")) if kind else None
        return ToolResult((TextContent(text),), None, meta, error is not None, error)

    def _report(self, shell: Shell, run: Run, meta: dict[str, Any]) -> str:
        """Return the output since the last call and the run's state; fill `meta`."""
        has_ended = run.done.is_set()

        def left_out(count: int) -> str:
            run.output.spool()
            self._keep(run.output)
            cut = run.output.total > MAX_OUTPUT_BYTES
            part = f"its first {MAX_OUTPUT_BYTES // 1024**2} MB" if cut else "all of it"
            where = f"; {part} is in {run.output.path}" if run.output.on_disk else ""
            return f"... {count:,} characters left out{where} ..."

        text, cut, run.reported_bytes = run.output.text(run.reported_bytes, self._limit, left_out)
        meta["durationSeconds"] = round(run.seconds if has_ended else run.elapsed(), 3)
        meta["running"] = not has_ended
        if cut:
            meta["truncated"] = True
        notes = _network_notes(shell.take_connections(), meta)
        if not has_ended:
            notes.append(
                f"still running after {run.elapsed():.3g} s. terminal_input waits for more output,"
                f" sends input or stops it; at {run.timeout:.6g} s it is ended"
            )
        else:
            meta["exitCode"] = run.exit_code
            meta["cwd"] = run.cwd
            meta["timedOut"] = run.ended_by == "timeout"
            if run.ended_by:
                meta["endedBy"] = run.ended_by
                notes.append(_END_NOTES[run.ended_by].format(seconds=run.timeout))
            place = "" if run.cwd == shell.reported_cwd else f", now in {run.cwd}"
            shell.reported_cwd = run.cwd
            if not run.ended_by or place:
                notes.append(f"exit code {run.exit_code}{place}")
            notes += _state_notes(run)
            if run.background_pids:
                numbers = ", ".join(map(str, run.background_pids))
                notes.append(f"still running in the background: process {numbers}")
            if run.output_held:
                path = run.output.path
                notes.append(f"something in the background still writes; its output goes to {path}")
                self._keep(run.output)
        if run.output.on_disk:
            meta["outputFile"] = str(run.output.path)
        if not text:
            running = "no new output" if run.reported_bytes else "no output yet"
            text = "(no output)" if has_ended else f"({running})"
        end = "" if text.endswith("\n") else "\n"
        return text + end + "\n".join(f"[{line}]" for line in notes)

    def _keep(self, output: CommandOutput) -> None:
        with self._lock:
            if output.on_disk and output not in self._files:
                self._files.append(output)
            sizes = [min(other.total, MAX_OUTPUT_BYTES) for other in self._files]
            while len(sizes) > 1 and sum(sizes) > _MAX_ALL_OUTPUTS_BYTES:
                sizes.pop(0)
                self._files.popleft().path.unlink(missing_ok=True)

    def process_groups(self) -> list[int]:
        """Return the process groups of all shells and of their commands, each shell's own first."""
        with self._lock:
            shells = list(self._shells.values())
        return [group for shell in shells for group in shell.groups()]

    def close_conversation(self, conversation_id: str) -> None:
        """End everything that runs for one conversation; its next command gets a new shell.
        Idempotent; does nothing in a forked child."""
        if not self._process.here:
            return
        with self._lock:
            shell = self._shells.pop(conversation_id, None)
            self._backgrounds.pop(conversation_id, None)
        if shell is not None:
            shell.close()

    def close(self) -> None:
        """End all shells and the pump's thread, and remove the outputs. Idempotent."""
        if not self._process.here:
            return
        with self._lock:
            self._closed = True
            shells = list(self._shells.values())
            self._shells.clear()
        for shell in shells:
            shell.close()
        self._pump.close()
        shutil.rmtree(self.outputs, ignore_errors=True)


def _report_while_running(run: Run, wait: float | None, report: Callable[[str], object]) -> None:
    """Block until the command has ended, at most `wait` seconds, and report the end of its output
    each time that there is more."""
    deadline = None if wait is None else time.monotonic() + wait
    reported = 0
    pause = _FIRST_REPORT_SECONDS
    while (
        remaining := None if deadline is None else deadline - time.monotonic()
    ) is None or remaining > 0:
        if run.done.wait(pause if remaining is None else min(pause, remaining)):
            return
        if not run.wait_output(reported, None if deadline is None else deadline - time.monotonic()):
            continue
        reported = run.output.total
        data = run.output.tail(_REPORTED_BYTES)
        if len(data) < reported:  # begin with a whole line, if there is one
            data = data[data.find(b"\n") + 1 :] or data
        report(data.decode(errors="replace"))
        pause = _REPORT_SECONDS


def _network_notes(log: NetworkLog, meta: dict[str, Any]) -> list[str]:
    """Return notes about the refused connections; put all connections into `meta`."""
    if not log.connections:
        return []
    meta["connections"] = list(log.connections)
    if log.left_out:
        meta["connectionsLeftOut"] = log.left_out
    reasons = [str(one["reason"]) for one in log.connections if not one["allowed"]]
    notes = [f"network: {reason}" for reason in dict.fromkeys(reasons)]
    more = len(notes) - _MAX_NETWORK_NOTES
    return notes[:_MAX_NETWORK_NOTES] + ([f"network: {more} more refusals"] if more > 0 else [])


def _state_notes(run: Run) -> list[str]:
    """Return notes about the state of the next command, where it is not the obvious one."""
    change = run.change
    if change is None:
        cause = "" if run.ended_by else "the command ended its own bash: "
        return [f"{cause}directory and variables are as they were before it"]
    notes: list[str] = []
    if change.exported:
        notes.append(f"exported variables changed for the next commands: {_names(change.exported)}")
    if change.functions:
        notes.append(
            f"functions last for one command only: {_names(change.functions)}. To keep them, write"
            " a file and source it"
        )
    if change.too_large:
        names = _names(change.too_large)
        notes.append(f"variables too large to keep for the next command: {names}")
    return notes


def _names(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return ", ".join(name[:100] for name in names[:10]) + more


def _quoted(command: str) -> str:
    line = command.strip().splitlines()[0] if command.strip() else ""
    return f"`{line[:100]}{'…' if len(line) > 100 or line != command.strip() else ''}`"
