"""A server as a process of ours: its pipes, its stderr, and its end.

Not the mcp package's own transport: that one copies a long line once for each 64 KB of it, holds a close for seconds while a server that
never answered is being waited for, and does not see the death of a process whose child holds its stdout.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import subprocess
import tempfile
from collections.abc import AsyncGenerator, Callable
from typing import IO, TYPE_CHECKING, Any, cast

import anyio

from holdfast.tools.mcp.config import Stdio
from holdfast.tools.mcp.results import clip
from holdfast.tools.mcp.streams import LONGEST_MESSAGE, Inbox, Outbox

if TYPE_CHECKING:
    from mcp.shared.message import SessionMessage

    from holdfast.tools.mcp.secrets import Redact

# Seconds. The order is the specification's (2025-11-25, Lifecycle, Shutdown): close stdin, wait, SIGTERM, wait, SIGKILL. How long is
# ours to say: two seconds each for a server that has served, next to none for one that never answered.
_GRACE, _TERM, _KILL = 2.0, 2.0, 2.0
_TERM_UNUSED = 0.25
_FLUSH = 0.5
_WAITING = 256  # messages that nobody has taken, after which a server's stdout is left to fill

# Bytes of stderr at which the file is cut back to its end; a temporary one, and one that the owner asked for.
_TEMPORARY, _KEPT = 1024 * 1024, 10 * 1024 * 1024
_TRIM_EVERY = 5.0


class Errors:
    """Where a server's stderr goes: a file, for the child writes to it by itself; bounded, for nobody knows how much."""

    def __init__(self, path: str | None) -> None:
        self._bound = _TEMPORARY if path is None else _KEPT
        if path is None:  # unnamed, so that not even a kill -9 leaves it behind
            self.file: IO[bytes] = tempfile.TemporaryFile("a+b", prefix="holdfast-mcp-")  # noqa: SIM115 - `close` closes it
        else:
            self.file = open(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600), "a+b")  # noqa: SIM115 - as above
        self._start = os.fstat(self.file.fileno()).st_size  # what an earlier process wrote is not this one's

    def trim(self) -> None:
        """Cut a file that has grown too long back to its last part. The child appends, so it goes on at the new end."""
        descriptor = self.file.fileno()
        size = os.fstat(descriptor).st_size
        if size > self._bound:
            tail = os.pread(descriptor, self._bound // 8, size - self._bound // 8)
            os.ftruncate(descriptor, 0)
            os.write(descriptor, tail)
            self._start = 0

    def last_words(self, redact: Redact) -> str:
        """The last lines, on one and without secrets."""
        descriptor = self.file.fileno()
        end = os.fstat(descriptor).st_size
        start = max(self._start, end - 4000)  # 4000 bytes hold the end of a traceback
        lines = [line.strip() for line in os.pread(descriptor, max(0, end - start), start).decode(errors="replace").splitlines()]
        return clip(redact(" / ".join([line for line in lines if line][-3:])))

    def close(self) -> None:
        """Let go of the file."""
        self.file.close()


class _Pipes(asyncio.Protocol):
    """Both pipes of a process: lines in, messages out."""

    def __init__(self) -> None:
        from mcp.shared.message import SessionMessage
        from mcp_types import jsonrpc_message_adapter

        from holdfast.tools.mcp.screen import unreadable

        self._parse = jsonrpc_message_adapter.validate_json
        self._unreadable = unreadable
        self._message = SessionMessage
        self._line = bytearray()
        self._searched = 0
        self._reading: asyncio.ReadTransport | None = None
        self._held = False
        self.inbox = Inbox(self._resume)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._reading = cast("asyncio.ReadTransport", transport)

    def data_received(self, data: bytes) -> None:
        self._line += data
        while (end := self._line.find(b"\n", self._searched)) >= 0:
            line = bytes(self._line[:end])
            del self._line[: end + 1]
            self._searched = 0
            if line.strip():
                self._take(line)
        self._searched = len(self._line)
        if self._searched > LONGEST_MESSAGE:
            self.inbox.put(ValueError(f"a message of more than {LONGEST_MESSAGE} bytes"))
            self.inbox.end()
        if len(self.inbox) > _WAITING and self._reading is not None and not self._held:
            self._held = True
            self._reading.pause_reading()

    def _take(self, line: bytes) -> None:
        try:
            message = self._parse(line, by_name=False)
        except ValueError:
            try:  # one byte that is not UTF-8, in some file that a tool read, is no reason to lose the answer
                message = self._parse(line.decode(errors="replace"), by_name=False)
            except ValueError as error:
                self.inbox.put(self._unreadable(error, line))
                return
        self.inbox.put(self._message(message))

    def _resume(self) -> None:
        if self._held and self._reading is not None and not self._reading.is_closing():
            self._held = False
            self._reading.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.inbox.end()


class _Writing(asyncio.Protocol):
    """The pipe to a process's stdin, and whether it is full."""

    def __init__(self) -> None:
        self.ready = asyncio.Event()
        self.ready.set()
        self.lost = False

    def pause_writing(self) -> None:
        self.ready.clear()

    def resume_writing(self) -> None:
        self.ready.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self.ready.set()


@contextlib.asynccontextmanager
async def stdio(
    server: Stdio, errors: Errors, served: Callable[[], bool], lost: Callable[[], None]
) -> AsyncGenerator[tuple[Inbox, Outbox]]:
    """Start `server` and connect to it. `served()`: whether it ever answered; `lost()` is called when its process or its stdout ends.

    However the block is left, the process and all of its group are gone afterwards, within seconds. Raises `OSError` or `ValueError` if
    it cannot be started.
    """
    from mcp.client.stdio import get_default_environment

    loop = asyncio.get_running_loop()
    process = subprocess.Popen(
        [server.command, *server.args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors.file,
        env=get_default_environment() | server.env,
        cwd=server.cwd,
        start_new_session=True,  # a group of its own: Ctrl-C is ours to handle, and its children end with it
        bufsize=0,
    )
    pipes, writing = _Pipes(), _Writing()
    outgoing: asyncio.WriteTransport | None = None
    incoming: asyncio.ReadTransport | None = None
    watch = _watch(process, loop, pipes.inbox.end)
    try:
        incoming, _ = await loop.connect_read_pipe(lambda: pipes, cast("IO[bytes]", process.stdout))
        outgoing, _ = await loop.connect_write_pipe(lambda: writing, cast("IO[bytes]", process.stdin))
        trim = loop.create_task(_trim(errors))
        end = loop.create_task(_until_end(pipes.inbox, lost))
        try:
            yield pipes.inbox, Outbox(_sender(outgoing, writing))
        finally:
            trim.cancel()
            end.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            if outgoing is not None and not outgoing.is_closing():
                with anyio.move_on_after(_FLUSH):
                    while outgoing.get_write_buffer_size() and not outgoing.is_closing():
                        await asyncio.sleep(0.005)
                if not outgoing.is_closing():  # asyncio's own fails on one that is closed
                    outgoing.abort()  # close would wait for a server that does not read
            elif outgoing is None:
                cast("IO[bytes]", process.stdin).close()
            await asyncio.sleep(0)  # for the transport to close the pipe, which tells the server to end
            await _stop(process, served())
            if incoming is not None:
                incoming.close()
            else:
                cast("IO[bytes]", process.stdout).close()
            if watch is not None:
                loop.remove_reader(watch)
                os.close(watch)
            await asyncio.sleep(0)


def _sender(outgoing: asyncio.WriteTransport, writing: _Writing) -> Callable[[SessionMessage], Any]:
    async def send(message: SessionMessage) -> None:
        if writing.lost:
            raise anyio.BrokenResourceError
        outgoing.write(message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
        if not writing.ready.is_set():
            await writing.ready.wait()

    return send


async def _trim(errors: Errors) -> None:
    while True:
        await asyncio.sleep(_TRIM_EVERY)
        with contextlib.suppress(OSError):
            errors.trim()


async def _until_end(inbox: Inbox, lost: Callable[[], None]) -> None:
    await inbox.ended()
    lost()


# --- the end of a process ------------------------------------------------------------------------


def _watch(process: subprocess.Popen[bytes], loop: asyncio.AbstractEventLoop, ended: Callable[[], None]) -> int | None:
    """Call `ended` when the process dies, also if a child of it holds its stdout open. Only where the system can say so."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except (AttributeError, OSError):  # not Linux, or an old one: then the end of stdout has to do
        return None

    def died() -> None:
        loop.remove_reader(descriptor)
        loop.call_later(0.1, ended)  # what it said before is still in the pipe

    loop.add_reader(descriptor, died)
    return descriptor


def _dead(process: subprocess.Popen[bytes]) -> bool:
    """Whether it has ended, without reaping it: as long as it is a zombie, its number and its group's are nobody else's."""
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
    except ChildProcessError:  # the host ignores SIGCHLD, or reaps for us
        return True


async def _dead_within(process: subprocess.Popen[bytes], seconds: float) -> bool:
    deadline = asyncio.get_running_loop().time() + seconds
    pause = 0.001
    while not _dead(process):
        if asyncio.get_running_loop().time() >= deadline:
            return False
        await asyncio.sleep(pause)
        pause = min(pause * 2, 0.02)
    return True


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    try:
        os.killpg(process.pid, number)
    except OSError as error:
        if error.errno not in (errno.ESRCH, errno.EPERM):
            raise


async def _stop(process: subprocess.Popen[bytes], served: bool) -> None:
    """End a process whose stdin was closed, and whatever it has started in its group."""
    if not await _dead_within(process, _GRACE if served else 0.0):
        _signal(process, signal.SIGTERM)
        if not await _dead_within(process, _TERM if served else _TERM_UNUSED):
            _signal(process, signal.SIGKILL)
            await _dead_within(process, _KILL)
    if _dead(process):
        _signal(process, signal.SIGKILL)  # children that outlived it
        process.wait()
