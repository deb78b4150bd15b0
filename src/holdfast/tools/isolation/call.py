"""One call in a process of its own, from its start to its end, on the calling thread."""

from __future__ import annotations

import logging
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any, cast

import msgspec

from holdfast import errors
from holdfast.content import ToolResult
from holdfast.errors import ToolCancelled, ToolError, ToolTimeout
from holdfast.tools.context import ToolContext
from holdfast.tools.environment import CancelWakeup, minimal_environment
from holdfast.tools.isolation.messages import (
    IsolatedAnswer,
    IsolatedFailure,
    IsolatedProgress,
    WorkerMessage,
)

_log = logging.getLogger("holdfast.tools.isolation")

# Started by its path. This process runs nothing of that module, so it does not import it.
_CHILD_FILE = str(Path(__file__).with_name("child.py"))
_END_SECONDS = 4.0  # time for the child's end; its supervisor gives up after 2 s
_MAX_OUTPUT_BYTES = 4000  # the end of the callback's output that is kept


class ProcessCall:
    """One isolated call, which ends after `timeout` seconds or at the context's cancel. The
    callback then gets `grace` seconds before it is killed."""

    def __init__(
        self, tool: str, context: ToolContext, timeout: float | None, grace: float
    ) -> None:
        self._tool = tool
        self._context = context
        self._timeout = timeout
        self._grace = grace
        self._answer: IsolatedAnswer | IsolatedFailure | None = None
        self._end_reason = ""  # `timeout` or `cancel` if the call was ended by force
        self._died = False  # True if the process ended by itself, without an answer
        self._output = bytearray()
        self._received = bytearray()
        self._progress: deque[str] = deque()

    def run(self, request: bytes, marks: dict[str, str]) -> ToolResult:
        """Start the process, exchange messages until it answers or must end, and end it."""
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        with ExitStack() as stack:
            try:
                channel, child_channel = socket.socketpair()
                stack.enter_context(channel)
                with child_channel:
                    process = self._spawn(child_channel.fileno(), marks)
                stack.callback(self._end, process)
                wake = CancelWakeup()
                stack.callback(wake.close)
            except OSError as error:
                raise ToolError(
                    f"{self._tool!r} was not run: no process could be started for it: {error}"
                ) from error
            channel.setblocking(False)
            stack.callback(self._context.cancelled.add_callback(wake))
            output = cast("IO[bytes]", process.stdout)
            self._talk(channel, output, wake.reader, bytearray(request), deadline)
            self._died = self._answer is None and not self._end_reason
        if self._output:
            _log.debug("%s printed: %s", self._tool, self._output_text())
        return self._outcome(process.returncode)

    def _spawn(self, channel: int, marks: dict[str, str]) -> subprocess.Popen[bytes]:
        # -P keeps the folder of child.py off the path. -u and faulthandler preserve the output
        # before a crash, which shows the cause.
        flags = ["-P", "-u", "-X", "faulthandler"]
        path = [entry for entry in cast("list[Any]", sys.path) if isinstance(entry, str)]
        return subprocess.Popen(
            [sys.executable, *flags, _CHILD_FILE, str(os.getpid()), str(channel), *path],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(channel,),
            env={**minimal_environment(), **marks},
            start_new_session=True,
        )

    def _talk(
        self,
        channel: socket.socket,
        output: IO[bytes],
        wake: socket.socket,
        outbox: bytearray,
        deadline: float | None,
    ) -> None:
        kill_at: float | None = None
        with selectors.DefaultSelector() as selector:
            selector.register(channel, selectors.EVENT_READ | selectors.EVENT_WRITE)
            selector.register(output, selectors.EVENT_READ)
            selector.register(wake, selectors.EVENT_READ)
            while True:
                times = [at for at in (deadline, kill_at) if at is not None]
                seconds = max(0.0, min(times) - time.monotonic()) if times else None
                ready = {key.fileobj: events for key, events in selector.select(seconds)}
                if output in ready and not self._read_output(output):
                    selector.unregister(output)
                events = ready.get(channel, 0)
                try:
                    if events & selectors.EVENT_WRITE:
                        del outbox[: channel.send(outbox)]
                        if not outbox:
                            selector.modify(channel, selectors.EVENT_READ)
                    if events & selectors.EVENT_READ and not self._receive(channel):
                        return
                except ConnectionError:  # the process ended before it had read everything
                    return
                while self._progress:
                    self._context.report_progress(self._progress.popleft())
                if self._answer is not None:
                    return
                if wake in ready:
                    selector.unregister(wake)
                if not self._end_reason:
                    if deadline is not None and time.monotonic() >= deadline:
                        self._end_reason = "timeout"
                    elif self._context.cancelled:
                        self._end_reason = "cancel"
                    if self._end_reason:
                        deadline, kill_at = None, time.monotonic() + self._grace
                        outbox += (0).to_bytes(4, "big")  # the second message means cancel
                        selector.modify(channel, selectors.EVENT_READ | selectors.EVENT_WRITE)
                if kill_at is not None and time.monotonic() >= kill_at:
                    return

    def _read_output(self, output: IO[bytes]) -> bool:
        more = output.read(1 << 16)
        self._output += more
        del self._output[:-_MAX_OUTPUT_BYTES]
        return bool(more)

    def _receive(self, channel: socket.socket) -> bool:
        more = channel.recv(1 << 20)
        received = self._received
        received += more
        while len(received) >= (end := 4 + int.from_bytes(received[:4], "big")) > 4:
            message = msgspec.json.decode(received[4:end], type=WorkerMessage)
            del received[:end]
            if isinstance(message, IsolatedProgress):
                self._progress.append(message.message)
            else:
                self._answer = message
        return bool(more)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """Ensure that the process and everything that it started are gone, and reap it."""
        output = cast("IO[bytes]", process.stdout)
        if self._died:
            self._drain(output, 1.0)  # the supervisor's exit status will show how it ended
        if process.poll() is None:
            process.terminate()
        if not self._drain(output, _END_SECONDS):
            for kill in (lambda: os.killpg(process.pid, signal.SIGKILL), process.kill):
                with suppress(OSError):  # gone meanwhile, or no permission: the log reports it
                    kill()
            _log.error("the process of %s left processes that could not be killed", self._tool)
        process.wait()
        output.close()
        cast("IO[bytes]", process.stdin).close()

    def _drain(self, output: IO[bytes], seconds: float) -> bool:
        """Read the output until all writers are gone. The supervisor ends last, so its
        descendants have ended then. Return False if `seconds` are over first."""
        deadline = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            while (seconds_left := deadline - time.monotonic()) > 0:
                if selector.select(seconds_left) and not self._read_output(output):
                    return True
        return False

    def _outcome(self, status: int) -> ToolResult:
        if self._end_reason == "timeout":
            raise ToolTimeout(
                f"{self._tool!r} did not answer within {self._timeout:g} s, so its process was"
                " ended, with all that it had started. Its effect may have happened in part."
            )
        if isinstance(self._answer, IsolatedAnswer):
            return self._answer.result
        if self._answer is not None:
            raise _error(self._answer)
        if self._end_reason:
            raise ToolCancelled(
                f"{self._tool!r} was cancelled: its process was ended, with all that it had"
                " started. Its effect may have happened in part."
            )
        number = status - 128 if status > 128 else -status
        by = f" ({signal.Signals(number).name})" if number in set(signal.Signals) else ""
        printed = f" It printed last: {self._output_text()}" if self._output else ""
        raise ToolError(
            f"{self._tool!r} failed: its process ended before it answered, with exit code"
            f" {status}{by}. Its effect may have happened.{printed}"
        )

    def _output_text(self) -> str:
        return self._output.decode(errors="replace").strip()


def _error(refusal: IsolatedFailure) -> ToolError:
    kind: type[ToolError] = getattr(errors, refusal.kind)
    error = kind(
        refusal.text,
        refusal.error_type,
        retryable=refusal.retryable,
        max_retries=refusal.max_retries,
        backoff=refusal.backoff,
    )
    error.retry_after = refusal.retry_after
    error.add_note(f"In the process of the call:\n{refusal.traceback}")
    return error
