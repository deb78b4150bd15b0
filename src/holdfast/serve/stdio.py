"""The stdio transport: this process's standard streams, reserved for the protocol."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import select
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from mcp.server import Server

_CHUNK_BYTES = 256 * 1024
_MAX_MESSAGE_BYTES = 64 * 1024 * 1024  # a message without end would fill the memory
# PIPE_BUF: a write of this size to a pipe that polls as writable does not block.
_ATOMIC_BYTES = 4096
# The time for answers to requests right before the input's end, as in `printf ... | holdfast mcp`.
_LINGER_SECONDS = 0.5


class StdioStreams(NamedTuple):
    """The descriptors from which the protocol is read and to which it is written."""

    read: int
    write: int


@contextlib.contextmanager
def claimed() -> Generator[StdioStreams]:
    """Reserve the standard streams as a wire for the duration of the block. Within the block
    standard output is stderr and standard input is empty, also for child processes. Their bytes
    thus never mix with messages. Raises `HoldfastError` if the streams are closed."""
    _flush()
    try:
        wire = StdioStreams(
            fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3), fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 3)
        )
    except OSError:
        raise HoldfastError(
            "A protocol over stdio needs standard input and output, and one of them is closed."
        ) from None
    null = os.open(os.devnull, os.O_RDWR)
    printed: Any = sys.stdout
    buffered = hasattr(printed, "reconfigure") and not printed.line_buffering
    try:
        os.dup2(null, 0)
        try:
            os.dup2(2, 1)
        except OSError:  # stderr is closed
            os.dup2(null, 1)
        if buffered:  # stdout is a log now, so lines must appear at once
            printed.reconfigure(line_buffering=True)
        yield wire
    finally:
        _flush()  # else buffered output would get onto the wire
        if buffered:
            printed.reconfigure(line_buffering=False)
        os.dup2(wire.read, 0)
        os.dup2(wire.write, 1)
        for descriptor in (null, *wire):
            os.close(descriptor)


def _flush() -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()


async def serve(server: Server[Any], wire: StdioStreams) -> None:
    """Serve one client until its end of the wire is closed."""
    import anyio
    from mcp.shared.message import SessionMessage

    incoming, messages = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    answers, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    channel = _MCPChannel(wire)

    async def read() -> None:
        async with incoming:
            async for line in channel.lines():
                message = await channel.parse(line)
                if message is not None:
                    await incoming.send(SessionMessage(message))
            await channel.wait_for_answers(_LINGER_SECONDS)

    async def write() -> None:
        async with outgoing:
            async for item in outgoing:
                await channel.send(item.message)

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(_until_broken, read)
            group.start_soon(_until_broken, write)
            await server.run(messages, answers, server.create_initialization_options())
            group.cancel_scope.cancel()
    finally:
        channel.close()


async def _until_broken(work: Callable[[], Awaitable[None]]) -> None:
    import anyio

    # These errors mean that the client has gone.
    with contextlib.suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
        await work()


class LineChannel:
    """Messages as lines on descriptors that other processes may share. The descriptors stay in
    blocking mode, so each read and write waits until it will not block. Runs on the loop's
    thread."""

    def __init__(self, wire: StdioStreams) -> None:
        self._wire = wire
        self._loop = asyncio.get_running_loop()
        self._writable = select.poll()
        self._writable.register(wire.write, select.POLLOUT)
        self._write_lock = asyncio.Lock()

    def close(self) -> None:
        self._loop.remove_reader(self._wire.read)
        self._loop.remove_writer(self._wire.write)

    # --- reading ---

    async def lines(self) -> AsyncGenerator[bytes]:
        """Yield each line without its end; the last one may have none."""
        parts: list[bytes] = []
        size = 0
        while chunk := await self._read():
            *whole, rest = chunk.split(b"\n")
            for line in whole:
                yield b"".join([*parts, line])
                parts, size = [], 0
            parts.append(rest)
            size += len(rest)
            if size > _MAX_MESSAGE_BYTES:
                raise OSError(f"a message of more than {_MAX_MESSAGE_BYTES} bytes")
        if size:
            yield b"".join(parts)

    async def _read(self) -> bytes:
        with contextlib.suppress(PermissionError):  # a regular file, which is always ready
            await self._ready(self._loop.add_reader, self._loop.remove_reader, self._wire.read)
        return os.read(self._wire.read, _CHUNK_BYTES)

    async def _ready(self, add: Callable[..., Any], remove: Callable[..., Any], fd: int) -> None:
        """Wait for a descriptor. Raises `PermissionError` for one that epoll refuses."""
        ready: asyncio.Future[None] = self._loop.create_future()
        add(fd, lambda: ready.done() or ready.set_result(None))
        try:
            await ready
        finally:
            remove(fd)

    # --- writing ---

    async def write(self, line: bytes) -> None:
        """Write a line with its end. Lines are written in the order of the calls. Raises `OSError`
        if the client no longer reads."""
        data = memoryview(line)
        async with self._write_lock:
            while data:
                if not self._writable.poll(0):
                    loop = self._loop
                    await self._ready(loop.add_writer, loop.remove_writer, self._wire.write)
                data = data[os.write(self._wire.write, data[:_ATOMIC_BYTES]) :]


class _MCPChannel(LineChannel):
    """MCP messages on a wire."""

    def __init__(self, wire: StdioStreams) -> None:
        super().__init__(wire)
        self._unanswered: set[int | str] = set()  # requests without an answer

    async def parse(self, line: bytes) -> Any:
        """Return the message in a line. An invalid line is answered with an error."""
        import mcp_types

        if not line.strip():
            return None
        try:
            message = mcp_types.jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValueError as error:
            kinds: Any = getattr(error, "errors", lambda: [{"type": "json_invalid"}])()
            code, text = mcp_types.INVALID_REQUEST, "Invalid request"
            if kinds[0]["type"] == "json_invalid":
                code, text = mcp_types.PARSE_ERROR, "Parse error"
            failure = mcp_types.ErrorData(code=code, message=text)
            await self.send(mcp_types.JSONRPCError(jsonrpc="2.0", id=None, error=failure))
            return None
        is_request = isinstance(message, mcp_types.JSONRPCRequest)
        if is_request and message.method != "subscriptions/listen":
            self._unanswered.add(message.id)
        return message

    async def wait_for_answers(self, timeout: float) -> None:
        """Wait until every request has its answer, at most `timeout` seconds."""
        deadline = self._loop.time() + timeout
        while self._unanswered and self._loop.time() < deadline:
            await asyncio.sleep(0.01)

    async def send(self, message: Any) -> None:
        """Write a message. Raises `OSError` if the client no longer reads."""
        await self.write(
            message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
        )
        if not hasattr(message, "method"):
            self._unanswered.discard(message.id)
