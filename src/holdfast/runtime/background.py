"""`BackgroundCommands`: commands of one conversation that go on beside its calls, until they end,
are stopped, or the conversation is closed."""

from __future__ import annotations

import re
import secrets
import shlex
import threading
import time
from typing import Any

from holdfast.content import TextContent, ToolResult
from holdfast.errors import RuntimeFault
from holdfast.runtime.shell import Run, Shell
from holdfast.tools.context import Cancellation

MAX_RUNNING = 20  # of one conversation
_MAX_KEPT = 50  # ended ones whose output can still be had
_TRAILER_BYTES = 200
_STOP_SECONDS = 1.0  # from SIGTERM to SIGKILL


class BackgroundCommands:
    """The background commands of one shell. Thread-safe.

    Each runs in the shell's place, with its directory and variables, and is ended with the shell.
    `mark` tells the ids of this process from those of an earlier one.
    """

    def __init__(self, shell: Shell, mark: str) -> None:
        self._shell = shell
        self._mark = mark
        self._lock = threading.Lock()
        self._runs: dict[str, tuple[Run, str, str]] = {}
        self._count = 0

    def script(self, command: str) -> tuple[str, str]:
        """Return a script that starts a command in the background, and the token with which its
        output ends. Raises `RuntimeFault` if too many commands run."""
        with self._lock:
            running = [
                name for name, (run, token, _) in self._runs.items() if not _ended(run, token)
            ]
        if len(running) >= MAX_RUNNING:
            raise RuntimeFault(
                f"{MAX_RUNNING} background commands are running: {', '.join(running)}. Stop one, or"
                " wait for one."
            )
        token = secrets.token_hex(8)
        # A command that ends its shell, or cannot be parsed, still has its exit code reported.
        inner = f"( eval {shlex.quote(command)} )"
        return f"( {inner}; printf '\n[%s %d]\n' {token} \"$?\" ) < /dev/null &", token

    def add(self, run: Run, token: str, command: str) -> str:
        """Keep a started command, and return its id."""
        with self._lock:
            self._count += 1
            name = f"bg{self._count}-{self._mark}"
            self._runs[name] = run, token, " ".join(command.split())[:100]
            ended = [name for name, (one, end, _) in self._runs.items() if _ended(one, end)]
            for old in ended[:-_MAX_KEPT]:
                del self._runs[old]
            return name

    def names(self) -> list[str]:
        """Return a line about each command."""
        with self._lock:
            runs = list(self._runs.items())
        return [f"{name}: {_state(run, token)}: {command}" for name, (run, token, command) in runs]

    def collect(
        self, name: str, wait: float, stop: bool, limit: int, cancelled: Cancellation | None
    ) -> ToolResult:
        """Return the output since the last time, once the command has ended, or after `wait`
        seconds; `stop` ends it first."""
        with self._lock:
            entry = self._runs.get(name)
        if entry is None:
            if name.endswith(f"-{self._mark}"):
                text = f"There is no background command {name!r} in this conversation."
                return ToolResult.failure(text, "not_found")
            return ToolResult.failure(
                f"The background command {name!r} is not known here. If it was started, the process"
                " that kept it has ended, and its outcome is unknown: it may have done its work, in"
                " part or whole, or not at all. Check what is there before you repeat it.",
                "unknown",
                meta={"outcome": "unknown"},
            )
        run, token, _ = entry
        stopped = stop and not _ended(run, token)
        if stopped:
            self._shell.stop_background(run, _STOP_SECONDS)
        forget = None if cancelled is None else cancelled.add_callback(run.notify)
        deadline = time.monotonic() + wait
        try:
            with run.progress:
                while not (stopped or cancelled or _ended(run, token)):
                    remaining = deadline - time.monotonic()
                    if remaining <= 0 or not run.progress.wait(remaining):
                        break
        finally:
            if forget is not None:
                forget()
        return self._result(name, run, token, limit, stopped)

    def _result(self, name: str, run: Run, token: str, limit: int, stopped: bool) -> ToolResult:
        code, ended = _exit_code(run, token), stopped or _ended(run, token)

        def left_out(count: int) -> str:
            return f"... {count:,} characters left out; see {run.output.path} ..."

        with self._lock:
            text, cut, run.reported_bytes = run.output.text(run.reported_bytes, limit, left_out)
        text = re.sub(rf"\n?\[{token} \d+\]\n?", "", text)
        meta: dict[str, Any] = {"id": name, "running": not ended}
        if cut:
            meta["truncated"] = True
        if code is not None:
            meta["exitCode"] = code
        if stopped:
            meta["endedBy"] = "stop"
        state = "stopped, with all that it started" if stopped else _state(run, token)
        gap = "" if not text or text.endswith("\n") else "\n"
        text = text or ("(no output)\n" if ended else "(no new output)\n")
        return ToolResult((TextContent(f"{text}{gap}[{name}: {state}]"),), meta=meta)


def _exit_code(run: Run, token: str) -> int | None:
    tail = run.output.tail(_TRAILER_BYTES).decode(errors="replace")
    match = re.search(rf"\[{token} (\d+)\]", tail)
    return None if match is None else int(match[1])


def _ended(run: Run, token: str) -> bool:
    return run.stdout.closed or _exit_code(run, token) is not None


def _state(run: Run, token: str) -> str:
    code = _exit_code(run, token)
    if code is not None:
        return f"exit code {code}"
    if run.stdout.closed:
        return "ended without an exit code: it was killed"
    return f"running for {run.elapsed():.3g} s"
