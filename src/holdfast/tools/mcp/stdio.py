"""The stdio transport: the process of an MCP server, its pipes, its stderr, and its end.

The transport of the mcp package has three problems that this one avoids:

- A long line is copied once for each 64 KB of it.
- `close` waits for seconds for a server that never answered.
- The death of a process goes unnoticed while a child of it keeps the stdout open.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import AsyncGenerator, Callable
from typing import IO, cast

import anyio
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage

from holdfast.tools.environment import has_ended, open_pidfd
from holdfast.tools.mcp.config import Stdio
from holdfast.tools.mcp.message_filter import parse_message
from holdfast.tools.mcp.secrets import Redact
from holdfast.tools.mcp.streams import MAX_MESSAGE_BYTES, Inbox, Outbox, UnreadableMessage
from holdfast.tools.results import clip

# The specification (2025-11-25, Lifecycle, Shutdown) fixes the order: close stdin, wait, SIGTERM,
# wait, SIGKILL. It leaves the times open: two seconds each for a server that has answered before,
# and hardly any for one that never did.
_STDIN_CLOSED_SECONDS = 2.0
_SIGTERM_SECONDS = 2.0
_SIGTERM_UNSERVED_SECONDS = 0.25
_SIGKILL_SECONDS = 2.0
_FLUSH_SECONDS = 0.5
# With more messages waiting, the reader pauses and the pipe of the server's stdout fills up.
_MAX_WAITING_MESSAGES = 256

# Sizes of a stderr file at which it is cut back to its end: a temporary file, and one that the
# owner asked for.
_MAX_TEMPORARY_BYTES = 1024 * 1024
_MAX_KEPT_BYTES = 10 * 1024 * 1024
_TRIM_SECONDS = 5.0


class StderrFile:
    """The file to which the child writes its stderr directly. Its size is bounded."""

    def __init__(self, path: str | None) -> None:
        self._max_bytes = _MAX_TEMPORARY_BYTES if path is None else _MAX_KEPT_BYTES
        if path is None:  # unnamed, so that not even a kill -9 leaves it behind
            self.file: IO[bytes] = tempfile.TemporaryFile("a+b", prefix="holdfast-mcp-")  # noqa: SIM115
        else:
            self.file = open(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600), "a+b")  # noqa: SIM115
        # Earlier processes wrote the text before this offset.
        self._start = os.fstat(self.file.fileno()).st_size

    def trim(self) -> None:
        """Cut a file that is too long to its end; the child continues to append."""
        descriptor = self.file.fileno()
        size = os.fstat(descriptor).st_size
        if size > self._max_bytes:
            end = os.pread(descriptor, self._max_bytes // 8, size - self._max_bytes // 8)
            os.ftruncate(descriptor, 0)
            os.write(descriptor, end)
            self._start = 0

    def tail(self, redact: Redact) -> str:
        """Return the last three lines as one line, without secrets."""
        descriptor = self.file.fileno()
        end = os.fstat(descriptor).st_size
        start = max(self._start, end - 4000)  # 4000 bytes hold the end of a traceback
        text = os.pread(descriptor, max(0, end - start), start).decode(errors="replace")
        lines = [stripped for line in text.splitlines() if (stripped := line.strip())]
        return clip(redact(" / ".join(lines[-3:])))

    def close(self) -> None:
        """Close the file."""
        self.file.close()


class _Pipes(asyncio.Protocol):
    """The stdout of the process: it splits lines and puts the messages into `inbox`."""

    def __init__(self, on_end: Callable[[], None]) -> None:
        self._line = bytearray()
        self._searched = 0
        self._reading: asyncio.ReadTransport | None = None
        self._paused = False
        self.inbox = Inbox(on_end, self._resume)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._reading = cast("asyncio.ReadTransport", transport)

    def data_received(self, data: bytes) -> None:
        self._line += data
        while (end := self._line.find(b"\n", self._searched)) >= 0:
            line = bytes(self._line[:end])
            del self._line[: end + 1]
            self._searched = 0
            if line.strip():
                self.inbox.put(_message(line))
        self._searched = len(self._line)
        if self._searched > MAX_MESSAGE_BYTES:
            self.inbox.put(ValueError(f"a message of more than {MAX_MESSAGE_BYTES} bytes"))
            self.inbox.end()
        if len(self.inbox) > _MAX_WAITING_MESSAGES and self._reading and not self._paused:
            self._paused = True
            self._reading.pause_reading()

    def _resume(self) -> None:
        if self._paused and self._reading is not None and not self._reading.is_closing():
            self._paused = False
            self._reading.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.inbox.end()


def _message(line: bytes) -> SessionMessage | Exception:
    message = parse_message(line)
    if isinstance(message, SessionMessage):
        return message
    # Keep an answer with bytes that are not UTF-8, such as a part of a file that a tool read.
    text = parse_message(line.decode(errors="replace"))
    return text if isinstance(text, SessionMessage) else UnreadableMessage(str(text), line)


class _Writing(asyncio.Protocol):
    """The pipe to the stdin of the process. `transport` is set once it is connected."""

    def __init__(self) -> None:
        self.transport: asyncio.WriteTransport | None = None
        self._ready = asyncio.Event()  # set while the pipe takes more data
        self._ready.set()
        self._closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.WriteTransport", transport)

    def pause_writing(self) -> None:
        self._ready.clear()

    def resume_writing(self) -> None:
        self._ready.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True
        self._ready.set()

    async def send(self, message: SessionMessage) -> None:
        if self._closed or self.transport is None:
            raise anyio.BrokenResourceError
        text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
        self.transport.write(text.encode() + b"\n")
        await self._ready.wait()

    async def close(self) -> None:
        """Flush for a moment, and close the pipe."""
        outgoing = self.transport
        if outgoing is None or outgoing.is_closing():
            return
        with anyio.move_on_after(_FLUSH_SECONDS):
            while outgoing.get_write_buffer_size() and not outgoing.is_closing():
                await asyncio.sleep(0.005)
        if not outgoing.is_closing():  # asyncio's `abort` fails on a closed transport
            outgoing.abort()  # `close` would wait for a server that does not read


@contextlib.asynccontextmanager
async def stdio(
    server: Stdio, errors: StderrFile, served: Callable[[], bool], on_end: Callable[[], None]
) -> AsyncGenerator[tuple[Inbox, Outbox]]:
    """Start `server` and connect to it.

    When the block ends, also by an exception, the process and its whole process group end within
    seconds. Raises `OSError` or `ValueError` if the process cannot be started.

    Args:
        server: The command to run.
        errors: The file for the process's stderr.
        served: A function that returns True if the server has ever answered.
        on_end: A function that is called when the process or its stdout ends.
    """
    loop = asyncio.get_running_loop()
    process = subprocess.Popen(
        [server.command, *server.args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors.file,
        env=get_default_environment() | server.env,
        cwd=server.cwd,
        # A session of its own: Ctrl-C reaches only this process, and a signal to the group ends
        # the server's children too.
        start_new_session=True,
        bufsize=0,
    )
    stdin, stdout = cast("IO[bytes]", process.stdin), cast("IO[bytes]", process.stdout)
    pipes, writing = _Pipes(on_end), _Writing()
    incoming: asyncio.ReadTransport | None = None
    watch = _watch(process, loop, pipes.inbox.end)
    try:
        incoming, _ = await loop.connect_read_pipe(lambda: pipes, stdout)
        await loop.connect_write_pipe(lambda: writing, stdin)
        trimming = loop.create_task(_trim(errors))
        try:
            yield pipes.inbox, Outbox(writing.send)
        finally:
            trimming.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await pipes.inbox.aclose()  # the end of the process is no loss from now on
            await writing.close()
            if writing.transport is None:
                stdin.close()
            await asyncio.sleep(0)  # lets the transport close the pipe; the server sees the end
            await _stop(process, served())
            (incoming or stdout).close()
            if watch is not None:
                loop.remove_reader(watch)
                os.close(watch)
            await asyncio.sleep(0)


async def _trim(errors: StderrFile) -> None:
    while True:
        await asyncio.sleep(_TRIM_SECONDS)
        with contextlib.suppress(OSError):
            errors.trim()


# --- the end of a process ---


def _watch(
    process: subprocess.Popen[bytes], loop: asyncio.AbstractEventLoop, ended: Callable[[], None]
) -> int | None:
    """Call `ended` when the process dies, even if a child of it keeps the stdout open. Return the
    descriptor to close. Returns None on systems that cannot report this."""
    descriptor = open_pidfd(process.pid)
    if descriptor is None:  # only stdout's end is seen
        return None

    def died() -> None:
        loop.remove_reader(descriptor)
        loop.call_later(0.1, ended)  # the pipe may still hold the last messages

    loop.add_reader(descriptor, died)
    return descriptor


async def _dead_within(process: subprocess.Popen[bytes], seconds: float) -> bool:
    deadline = asyncio.get_running_loop().time() + seconds
    pause = 0.001
    while not has_ended(process.pid):
        if asyncio.get_running_loop().time() >= deadline:
            return False
        await asyncio.sleep(pause)
        pause = min(pause * 2, 0.02)
    return True


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


async def _stop(process: subprocess.Popen[bytes], served: bool) -> None:
    """End a process whose stdin was closed, and everything that it started in its group."""
    if not await _dead_within(process, _STDIN_CLOSED_SECONDS if served else 0.0):
        _signal(process, signal.SIGTERM)
        seconds = _SIGTERM_SECONDS if served else _SIGTERM_UNSERVED_SECONDS
        if not await _dead_within(process, seconds):
            _signal(process, signal.SIGKILL)
            await _dead_within(process, _SIGKILL_SECONDS)
    if has_ended(process.pid):
        _signal(process, signal.SIGKILL)  # for children that outlived the process
        process.wait()
