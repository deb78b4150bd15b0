"""The proxy through which a sandbox reaches the hosts of its allow-list, and no others.

The proxy speaks CONNECT and plain HTTP/1.1 on given sockets, and does not open TLS. A name is
resolved once, here, and the connection goes to the checked address.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from ipaddress import IPv4Address, ip_address
from typing import Any

from holdfast.processes import OwnerProcess
from holdfast.runtime.command_host import NetworkLog
from holdfast.runtime.sandbox.client_hello import (
    MAX_HELLO_BYTES,
    Incomplete,
    server_name,
    starts_handshake,
)
from holdfast.runtime.sandbox.network import Address, AllowList, host_and_port, parse_host
from holdfast.runtime.sandbox.proxy_request import (
    MAX_HEAD_BYTES,
    MalformedRequest,
    ProxyRequest,
    parse_chunk_size,
    parse_request,
)

_MAX_CONNECTIONS = 64  # of one listener at a time
_MAX_ACCEPTED = 96  # including refused ones; further ones wait, and cost this process nothing
_MAX_LOGGED = 100  # connections between two results; further ones are counted
_MAX_LOOKUPS = 8  # names that are resolved at a time
_MAX_ATTEMPTS = 4  # addresses of a name that are tried
_HEAD_SECONDS = 10.0
_CONNECT_SECONDS = 15.0
_LOOKUP_SECONDS = 20.0
# Seconds that a tunnel may last after one of its sides has ended.
_HALF_OPEN_SECONDS = 60.0
# Seconds in which the sandbox must take an error, or the rest of an answer.
_ANSWER_SECONDS = 5.0
_CHUNK_BYTES = 64 * 1024
_UNRECOGNIZED_NAME = bytes((21, 3, 3, 0, 2, 2, 112))
"""A fatal alert of TLS (RFC 6066)."""

Resolver = Callable[[str], Sequence[str]]


def resolve(name: str) -> list[str]:
    """Return the addresses of a name. Raises `OSError` if the system knows none."""
    entries = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries))


def _accept(sock: socket.socket) -> socket.socket:
    return sock.accept()[0]


class _Refused(Exception):
    """A request that is answered with an error. Its status is None within a tunnel."""

    def __init__(self, status: HTTPStatus | None, reason: str) -> None:
        super().__init__(reason)
        self.status = status

    def answer(self) -> bytes:
        """Return the whole answer."""
        if self.status is None:
            return _UNRECOGNIZED_NAME
        body = f"holdfast: {self}\n".encode()
        return (
            f"HTTP/1.1 {self.status.value} {self.status.phrase}\r\n"
            f"Content-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n"
        ).encode() + body


@dataclass(slots=True)
class _Connection:
    """One request of a sandbox, for the log."""

    target: str = ""
    address: str = ""
    refused: str = ""
    sent_bytes: int = 0
    received_bytes: int = 0

    def facts(self) -> dict[str, Any]:
        facts = {"target": self.target, "allowed": not self.refused}
        if self.refused:
            return {**facts, "reason": self.refused}
        return {
            **facts,
            "address": self.address,
            "sent": self.sent_bytes,
            "received": self.received_bytes,
        }


class ProxyListener:
    """One sandbox's entrance to a proxy, and the log of its connections. Thread-safe."""

    def __init__(
        self,
        sock: socket.socket,
        accept: Callable[[socket.socket], socket.socket],
        stop: Callable[[ProxyListener], None],
    ) -> None:
        self.sock = sock
        self.accept = accept
        self._stop = stop
        self._lock = threading.Lock()
        self._log: list[_Connection] = []
        self._left_out = 0
        self.connections: set[asyncio.Task[None]] = set()
        """Tasks of the open connections, on the proxy's thread."""

    def note(self, connection: _Connection) -> None:
        """Add a connection to the log."""
        with self._lock:
            if len(self._log) < _MAX_LOGGED:
                self._log.append(connection)
            else:
                self._left_out += 1

    def take_connections(self) -> NetworkLog:
        """Return the connections since the last call."""
        with self._lock:
            log, self._log = self._log, []
            left_out, self._left_out = self._left_out, 0
        return NetworkLog([connection.facts() for connection in log], left_out)

    def close(self) -> None:
        """Stop listening, and end this sandbox's connections. Idempotent."""
        self._stop(self)


@dataclass(slots=True)
class _Streams:
    """Both ends of a forwarded connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    host_reader: asyncio.StreamReader
    host_writer: asyncio.StreamWriter
    connection: _Connection

    async def send(self, data: bytes) -> None:
        self.connection.sent_bytes += len(data)
        self.host_writer.write(data)
        await self.host_writer.drain()

    async def copy_request(self) -> None:
        """Copy until the sandbox's side ends."""
        while data := await self.reader.read(_CHUNK_BYTES):
            await self.send(data)
        self.host_writer.write_eof()

    async def copy_answer(self) -> None:
        """Copy until the host's side ends."""
        while data := await self.host_reader.read(_CHUNK_BYTES):
            self.connection.received_bytes += len(data)
            self.writer.write(data)
            await self.writer.drain()
        self.writer.write_eof()


class Proxy:
    """An HTTP proxy in this process that connects to the hosts of an allow-list.

    One thread serves all listeners; it starts with the first one and ends with `close`. A lookup
    of a name has a thread of its own, which the system's resolver may hold for some seconds more.

    Args:
        allowed: The hosts, ports and addresses that may be connected to.
        resolver: Returns the addresses of a name, or raises `OSError`.
    """

    def __init__(self, allowed: AllowList, resolver: Resolver = resolve) -> None:
        self.allowed = allowed
        self._resolver = resolver
        self._process = OwnerProcess()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._listeners: set[ProxyListener] = set()
        self._lookups = threading.BoundedSemaphore(_MAX_LOOKUPS)
        self._closed = False

    # --- called from other threads ---

    def listen(
        self, sock: socket.socket, accept: Callable[[socket.socket], socket.socket] = _accept
    ) -> ProxyListener:
        """Serve the connections that `accept` returns when the socket is readable. The default
        `accept` is for a listening stream socket. The proxy owns the socket from now on. Raises
        `RuntimeError` after `close`."""
        self._process.check("The proxy")
        listener = ProxyListener(sock, accept, self._stop)
        with self._lock:
            if self._closed:
                raise RuntimeError("The proxy is closed.")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._run, args=(self._loop,), name="holdfast-proxy", daemon=True
                )
                self._thread.start()
            asyncio.run_coroutine_threadsafe(self._listen(listener), self._loop).result()
        return listener

    def close(self) -> None:
        """End all connections and the thread. Idempotent; does nothing in a forked child."""
        if not self._process.here:
            return
        with self._lock:
            self._closed = True
            loop, self._loop = self._loop, None
            if loop is not None and self._thread is not None:
                for listener in list(self._listeners):
                    asyncio.run_coroutine_threadsafe(self._end(listener), loop).result()
                loop.call_soon_threadsafe(loop.stop)
                self._thread.join()

    def _stop(self, listener: ProxyListener) -> None:
        if self._process.here:
            with self._lock:
                if self._loop is not None:
                    asyncio.run_coroutine_threadsafe(self._end(listener), self._loop).result()

    # --- on the proxy's thread ---

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop.run_forever()
        finally:
            loop.close()

    async def _listen(self, listener: ProxyListener) -> None:
        loop = asyncio.get_running_loop()

        def accept() -> None:
            try:
                sock = listener.accept(listener.sock)
            except BlockingIOError:
                return
            except OSError:  # such as too many open files, which would be reported again at once
                loop.remove_reader(listener.sock)
                loop.call_later(0.1, watch)
                return
            task = asyncio.ensure_future(self._serve(listener, sock))
            listener.connections.add(task)
            task.add_done_callback(ended)
            if len(listener.connections) >= _MAX_ACCEPTED:
                loop.remove_reader(listener.sock)

        def ended(task: asyncio.Task[None]) -> None:
            listener.connections.discard(task)
            watch()

        def watch() -> None:
            if listener in self._listeners and len(listener.connections) < _MAX_ACCEPTED:
                loop.add_reader(listener.sock, accept)

        self._listeners.add(listener)
        listener.sock.setblocking(False)
        watch()

    async def _end(self, listener: ProxyListener) -> None:
        if listener not in self._listeners:
            return
        self._listeners.discard(listener)
        asyncio.get_running_loop().remove_reader(listener.sock)
        listener.sock.close()
        await asyncio.sleep(0)  # a task that is cancelled before it starts closes nothing
        tasks = list(listener.connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # lets the transports close their sockets

    async def _serve(self, listener: ProxyListener, sock: socket.socket) -> None:
        async with _streams_of(sock, MAX_HEAD_BYTES) as (reader, writer):
            await self._answer(listener, reader, writer)

    async def _answer(
        self, listener: ProxyListener, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        connection = _Connection()
        try:
            if len(listener.connections) > _MAX_CONNECTIONS:
                problem = f"more than {_MAX_CONNECTIONS} connections of this sandbox at a time"
                raise _Refused(HTTPStatus.SERVICE_UNAVAILABLE, problem)
            request = await _read_request(reader)
            connection.target = host_and_port(request.host, request.port)
            sock = await self._connect(request, connection)
            listener.note(connection)
            async with _streams_of(sock) as (host_reader, host_writer):
                streams = _Streams(reader, writer, host_reader, host_writer, connection)
                if request.is_tunnel:
                    await self._tunnel(streams, request)
                else:
                    await _forward(streams, request)
        except _Refused as refusal:
            listener.note(_Connection(connection.target, refused=str(refusal)))
            await _refuse(reader, writer, refusal)
        except (OSError, MalformedRequest, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # one side went away, or sent a malformed body

    async def _connect(self, request: ProxyRequest, connection: _Connection) -> socket.socket:
        """Return a socket that is connected to a permitted address of the requested host."""
        host, port = request.host, request.port
        if refusal := self.allowed.refusal(host, port):
            raise _Refused(HTTPStatus.FORBIDDEN, refusal)
        addresses = await self._lookup(host) if isinstance(host, str) else [host]
        permitted: list[Address] = []
        for address in addresses:
            if again := self.allowed.address_refusal(str(host), address, port):
                refusal = again
            else:
                permitted.append(address)
        if not permitted:
            raise _Refused(HTTPStatus.FORBIDDEN, refusal)
        problem = ""
        for address in permitted[:_MAX_ATTEMPTS]:
            sock = _new_socket(address)
            try:
                async with asyncio.timeout(_CONNECT_SECONDS):
                    loop = asyncio.get_running_loop()
                    await loop.sock_connect(sock, (str(address), port))
                # A service may trust this machine's own address, even a public one.
                own = sock.getsockname()[0] == sock.getpeername()[0]
                if refusal := self.allowed.address_refusal(str(host), address, port, own):
                    raise _Refused(HTTPStatus.FORBIDDEN, refusal)
                connection.address = str(address)
                return sock
            except OSError as error:  # TimeoutError too
                sock.close()
                problem = f"{connection.target} at {address}: {error or 'no answer in time'}"
            except BaseException:
                sock.close()
                raise
        raise _Refused(HTTPStatus.BAD_GATEWAY, problem)

    async def _lookup(self, name: str) -> list[Address]:
        """Resolve a name on a thread of its own: the system's resolver cannot be cancelled."""
        addresses: Future[Sequence[str]] = Future()
        addresses.set_running_or_notify_cancel()  # a cancelled wait does not cancel it

        def work() -> None:
            try:
                settle = partial(addresses.set_result, self._resolver(name))
            except Exception as error:
                settle = partial(addresses.set_exception, OSError(str(error)))
            self._lookups.release()
            settle()

        if not self._lookups.acquire(blocking=False):
            problem = f"more than {_MAX_LOOKUPS} host names are being resolved"
            raise _Refused(HTTPStatus.SERVICE_UNAVAILABLE, problem)
        threading.Thread(target=work, name="holdfast-lookup", daemon=True).start()
        try:
            async with asyncio.timeout(_LOOKUP_SECONDS):
                texts = await asyncio.wrap_future(addresses)
        except OSError as error:
            problem = f"{name} could not be resolved: {error or 'no answer in time'}"
            raise _Refused(HTTPStatus.BAD_GATEWAY, problem) from None
        # A zone means a link-local address, which is refused without it too.
        return [ip_address(text.partition("%")[0]) for text in texts]

    async def _tunnel(self, streams: _Streams, request: ProxyRequest) -> None:
        async def upload() -> None:
            if isinstance(request.host, str):
                await streams.send(await self._read_hello(streams.reader, request))
            await streams.copy_request()

        streams.writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await _both(upload(), streams.copy_answer(), _HALF_OPEN_SECONDS)

    async def _read_hello(self, reader: asyncio.StreamReader, request: ProxyRequest) -> bytes:
        """Return the first bytes of a tunnel. If TLS begins in it, the server that its ClientHello
        names must be allowed too: one address often serves many names."""
        data = await reader.read(_CHUNK_BYTES)
        while starts_handshake(data):
            try:
                name = server_name(data)
                if not name or self.allowed.refusal(parse_host(name), request.port):
                    what = f"for {name[:253]!r}" if name else "without a server name"
                    target = host_and_port(request.host, request.port)
                    problem = f"a TLS handshake {what} in a tunnel to {target}"
                    raise _Refused(None, problem)
                break
            except ValueError as error:
                raise _Refused(None, f"a TLS handshake with {error}") from None
            except Incomplete:
                more = await reader.read(_CHUNK_BYTES)
                if not more or len(data) > MAX_HELLO_BYTES:
                    raise ConnectionError("an incomplete ClientHello") from None
                data += more
        return data


def _new_socket(address: Address) -> socket.socket:
    is_ipv4 = isinstance(address, IPv4Address)
    sock = socket.socket(socket.AF_INET if is_ipv4 else socket.AF_INET6)
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if not is_ipv4:  # an IPv4-mapped address must not become an IPv4 connection
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    return sock


@asynccontextmanager
async def _streams_of(
    sock: socket.socket, limit: int = _CHUNK_BYTES
) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Yield a connected socket's streams, and close it. Its peer has a limited time to take the
    written bytes, and no time after an error or a cancellation."""
    try:
        reader, writer = await asyncio.open_connection(sock=sock, limit=limit)
    except BaseException:
        sock.close()
        raise
    try:
        yield reader, writer
        with suppress(OSError):  # TimeoutError too
            async with asyncio.timeout(_ANSWER_SECONDS):
                writer.close()
                await writer.wait_closed()
    finally:
        writer.transport.abort()


async def _read_request(reader: asyncio.StreamReader) -> ProxyRequest:
    try:
        async with asyncio.timeout(_HEAD_SECONDS):
            return parse_request(await reader.readuntil(b"\r\n\r\n"))
    except MalformedRequest as error:
        raise _Refused(HTTPStatus.BAD_REQUEST, str(error)) from None
    except asyncio.LimitOverrunError:
        status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        raise _Refused(status, f"a head of more than {MAX_HEAD_BYTES:,} bytes") from None
    except TimeoutError:
        problem = f"no whole head in {_HEAD_SECONDS:g} s"
        raise _Refused(HTTPStatus.REQUEST_TIMEOUT, problem) from None


async def _forward(streams: _Streams, request: ProxyRequest) -> None:
    """Forward one request, with a body of exactly the length that its head states."""

    async def upload() -> None:
        await streams.send(request.head)
        if request.body_bytes is None:
            await _send_chunks(streams)
        else:
            await _send_exactly(streams, request.body_bytes)
        # What follows is not forwarded: a second request needs a second connection.
        if await streams.reader.read(1):
            await asyncio.Event().wait()

    await _both(upload(), streams.copy_answer(), 0)


async def _send_exactly(streams: _Streams, count: int) -> None:
    while count:
        data = await streams.reader.read(min(count, _CHUNK_BYTES))
        if not data:
            raise ConnectionError("the body ended too early")
        count -= len(data)
        await streams.send(data)


async def _send_chunks(streams: _Streams) -> None:
    while size := parse_chunk_size(await streams.reader.readuntil(b"\r\n")):
        await streams.send(b"%x\r\n" % size)
        await _send_exactly(streams, size)
        if await streams.reader.readexactly(2) != b"\r\n":
            raise MalformedRequest("a malformed chunk")
        await streams.send(b"\r\n")
    for _ in range(100):  # trailers, which are not forwarded
        if await streams.reader.readuntil(b"\r\n") == b"\r\n":
            return await streams.send(b"0\r\n\r\n")
    raise MalformedRequest("too many trailers")


async def _both(
    upload: Coroutine[Any, Any, None], download: Coroutine[Any, Any, None], after_download: float
) -> None:
    """Run both directions until they end, or one fails. After the end of one, the other has a
    limited time: `after_download` seconds, or `_HALF_OPEN_SECONDS` after the upload."""
    tasks = (asyncio.ensure_future(upload), asyncio.ensure_future(download))
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        seconds = after_download if tasks[1] in done else _HALF_OPEN_SECONDS
        if not any(task.exception() for task in done):
            await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result


async def _refuse(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, refusal: _Refused
) -> None:
    """Answer with an error, and read what the sandbox still sends, so that it can read the answer
    before the connection is reset."""
    with suppress(OSError):
        async with asyncio.timeout(_ANSWER_SECONDS):
            writer.write(refusal.answer())
            await writer.drain()
            writer.write_eof()
            while await reader.read(_CHUNK_BYTES):
                pass
