"""One call in a process of its own, from that process's start to its end, on the calling thread."""

from __future__ import annotations

import logging
import os
import pwd
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import ExitStack
from typing import IO, Any, cast

import msgspec

from holdfast import errors
from holdfast.content import ToolResult
from holdfast.errors import ToolCancelled, ToolError, ToolTimeout
from holdfast.tools.context import ToolContext
from holdfast.tools.isolation import child
from holdfast.tools.isolation.worker import Answer, Progress, Refusal, Said

_log = logging.getLogger("holdfast.tools.isolation")

_ENDING = 4.0  # seconds for the child's end: its supervisor gives up after 2
_KEPT = 4000  # bytes of what the callback prints that are kept
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/homebrew/bin"


class _Wake:
    """What a cancel, on whichever thread, does to a select: it becomes readable."""

    def __init__(self) -> None:
        # A lock, so that a cancel never writes to a descriptor that was closed and is another's by
        # now; reentrant, since a signal handler may cancel.
        self._lock = threading.RLock()
        self._open = True
        self.reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)

    def __call__(self) -> None:
        with self._lock:
            if self._open:
                self._writer.send(b"\0")

    def close(self) -> None:
        with self._lock:
            self._open = False
        self.reader.close()
        self._writer.close()


class ProcessCall:
    """Bounded by `timeout` seconds and the context's cancel; then the callback has `grace` seconds
    more before it is killed."""

    def __init__(
        self, tool: str, context: ToolContext, timeout: float | None, grace: float
    ) -> None:
        self._tool = tool
        self._context = context
        self._timeout = timeout
        self._grace = grace
        self._said: Answer | Refusal | None = None
        self._ended = ""  # why it was ended by force: `timeout` or `cancel`
        self._gone = False  # it ended by itself, without an answer
        self._printed = bytearray()
        self._received = bytearray()
        self._reported: deque[str] = deque()

    def run(self, request: bytes, marks: dict[str, str]) -> ToolResult:
        """Start the process, talk with it until it has answered, is to be ended, or is gone; end
        it; say how it went."""
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        with ExitStack() as stack:
            try:
                channel, theirs = socket.socketpair()
                stack.enter_context(channel)
                with theirs:
                    process = self._spawn(theirs.fileno(), marks)
                stack.callback(self._end, process)
                wake = _Wake()
                stack.callback(wake.close)
            except OSError as error:
                raise ToolError(
                    f"{self._tool!r} was not run: no process could be started for it: {error}"
                ) from error
            channel.setblocking(False)
            stack.callback(self._context.cancelled.add_callback(wake))
            self._talk(
                channel,
                cast("IO[bytes]", process.stdout),
                wake.reader,
                bytearray(request),
                deadline,
            )
            self._gone = self._said is None and not self._ended
        if self._printed:
            _log.debug("%s printed: %s", self._tool, self._text())
        return self._outcome(process.returncode)

    def _spawn(self, channel: int, marks: dict[str, str]) -> subprocess.Popen[bytes]:
        # -P: the folder of the child's file would come first on its path. -u, faulthandler: what it
        # said before it crashed is the clue.
        flags = ["-P", "-u", "-X", "faulthandler"]
        path = [entry for entry in cast("list[Any]", sys.path) if isinstance(entry, str)]
        return subprocess.Popen(
            [sys.executable, *flags, child.__file__, str(os.getpid()), str(channel), *path],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(channel,),
            env={**_environment(), **marks},
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
                ready = {
                    key.fileobj: events
                    for key, events in selector.select(
                        max(0.0, min(times) - time.monotonic()) if times else None
                    )
                }
                if output in ready and not self._hear(output):
                    selector.unregister(output)
                events = ready.get(channel, 0)
                try:
                    if events & selectors.EVENT_WRITE:
                        del outbox[: channel.send(outbox)]
                        if not outbox:
                            selector.modify(channel, selectors.EVENT_READ)
                    if events & selectors.EVENT_READ and not self._receive(channel):
                        return
                except ConnectionError:  # it ended before it had read all
                    return
                while self._reported:
                    self._context.report_progress(self._reported.popleft())
                if self._said is not None:
                    return
                if wake in ready:
                    selector.unregister(wake)
                if not self._ended:
                    overdue = deadline is not None and time.monotonic() >= deadline
                    self._ended = (
                        "timeout" if overdue else "cancel" if self._context.cancelled else ""
                    )
                    if self._ended:
                        deadline, kill_at = None, time.monotonic() + self._grace
                        outbox += (0).to_bytes(4, "big")  # whatever comes second is the cancel
                        selector.modify(channel, selectors.EVENT_READ | selectors.EVENT_WRITE)
                if kill_at is not None and time.monotonic() >= kill_at:
                    return

    def _hear(self, output: IO[bytes]) -> bool:
        more = output.read(1 << 16)
        self._printed += more
        del self._printed[:-_KEPT]
        return bool(more)

    def _receive(self, channel: socket.socket) -> bool:
        more = channel.recv(1 << 20)
        received = self._received
        received += more
        while len(received) >= 4 and len(received) - 4 >= (
            size := int.from_bytes(received[:4], "big")
        ):
            said = msgspec.json.decode(received[4 : 4 + size], type=Said)
            del received[: 4 + size]
            if isinstance(said, Progress):
                self._reported.append(said.message)
            else:
                self._said = said
        return bool(more)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """See to it that the process and what it has started are gone, and reap it."""
        output = cast("IO[bytes]", process.stdout)
        if self._gone:
            self._drain(output, 1.0)  # its supervisor will say how
        if process.poll() is None:
            process.terminate()
        if not self._drain(output, _ENDING):
            for kill in (lambda: os.killpg(process.pid, signal.SIGKILL), process.kill):
                try:
                    kill()
                except OSError:  # gone meanwhile, or not ours to kill: what is left is logged
                    pass
            _log.error(
                "the process of %s left something behind that could not be killed", self._tool
            )
        process.wait()
        output.close()
        cast("IO[bytes]", process.stdin).close()

    def _drain(self, output: IO[bytes], seconds: float) -> bool:
        """Read what is printed until nobody is left who could print: when the supervisor has ended,
        all that it watched over has."""
        until = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            while (left := until - time.monotonic()) > 0:
                if selector.select(left) and not self._hear(output):
                    return True
        return False

    def _outcome(self, status: int) -> ToolResult:
        if self._ended == "timeout":
            raise ToolTimeout(
                f"{self._tool!r} did not answer within {self._timeout:g} s, so its process was"
                " ended, with all that it had started. Its effect may have happened in part."
            )
        if isinstance(self._said, Answer):
            return self._said.result
        if self._said is not None:
            raise _error(self._said)
        if self._ended:
            raise ToolCancelled(
                f"{self._tool!r} was cancelled: its process was ended, with all that it had"
                " started. Its effect may have happened in part."
            )
        number = status - 128 if status > 128 else -status
        by = f" ({signal.Signals(number).name})" if number in set(signal.Signals) else ""
        printed = f" It printed last: {self._text()}" if self._printed else ""
        raise ToolError(
            f"{self._tool!r} failed: its process ended before it answered, with exit code"
            f" {status}{by}. Its effect may have happened.{printed}"
        )

    def _text(self) -> str:
        return self._printed.decode(errors="replace").strip()


def _error(said: Refusal) -> ToolError:
    kind: type[ToolError] = getattr(errors, said.kind)
    found = kind(
        said.text,
        said.error_type,
        retryable=said.retryable,
        max_retries=said.max_retries,
        backoff=said.backoff,
    )
    found.retry_after = said.retry_after
    found.add_note(f"In the process of the call:\n{said.traceback}")
    return found


def _environment() -> dict[str, str]:
    """The least that programs need: no variable of this process, and so no secret, reaches a
    callback unasked."""
    found = {"PATH": _PATH, "HOME": "/", "LANG": "C.UTF-8", "TERM": "dumb"}
    try:
        user = pwd.getpwuid(os.getuid())
        found.update(HOME=user.pw_dir, USER=user.pw_name, LOGNAME=user.pw_name)
    except KeyError:  # a container may run under a user id that has no entry
        pass
    return found
