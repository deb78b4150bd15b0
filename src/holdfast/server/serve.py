"""Serves the app on a socket until a signal or `close`. Shutdown ends streams first, then
requests, then conversations."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.object_struct import ObjectStruct
from holdfast.server.sockets import url_of

if TYPE_CHECKING:
    from holdfast.server.app import App

_START_SECONDS = 30.0  # limit for the web server's start, which usually takes 0.1 s
# Longer than clients keep idle connections, so that the server closes none under a request.
_KEEP_ALIVE_SECONDS = 75
_HEAD_SECONDS = 10.0  # limit for a request's head, from its first byte or from the connection on
_JOINED_BYTES = 64 * 1024  # the most bytes of a connection that wait for the end of a pass
# After this time a reader that accepts no data is disconnected. It resumes after its last event.
_STALLED_MILLISECONDS = 120_000

_log = logging.getLogger("holdfast.server")


class AgentServer:
    """An `App` on a listening socket. `run` blocks; `start` and `close` (or `with`) serve on a
    thread. A server can be started once.

    The server closes a connection whose request head is incomplete after `head` seconds. At most
    `connections` are open at once (None: three quarters of the process's file limit). A new
    connection beyond that closes the oldest one without a request.

    On shutdown the server stops accepting, ends streams, lets requests finish for half of
    `grace` seconds, and gives the other half to `Host.shutdown`.
    """

    def __init__(
        self,
        app: App,
        listening: socket.socket,
        *,
        tls: ssl.SSLContext | None = None,
        grace: float = 10.0,
        head: float = _HEAD_SECONDS,
        connections: int | None = None,
    ) -> None:
        self._app = app
        self._socket = listening
        self._grace = grace
        # Accepted sockets inherit these options from the listening socket.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (
            ("TCP_USER_TIMEOUT", _STALLED_MILLISECONDS),
            ("TCP_KEEPIDLE", 30),
            ("TCP_KEEPINTVL", 10),
            ("TCP_KEEPCNT", 3),
        ):
            if hasattr(socket, name):  # not every system has each option
                listening.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        limit = _default_connections() if connections is None else connections
        self._web = _web(app, tls, grace / 2, _Connections(limit, head))
        self._thread: threading.Thread | None = None
        self.url = url_of(listening, "https" if tls else "http")

    def run(self, on_ready: Callable[[], None] | None = None) -> int:
        """Serve until `stop`, or until SIGINT or SIGTERM if this is the main thread. Return the
        signal's number or 0. A second signal ends the process at once."""
        with _signals(self.stop) as number:
            self._serve(on_ready)
        return number()

    def stop(self) -> None:
        """Begin the shutdown. May be called from any thread and from a signal handler."""
        self._web.should_exit = True

    def start(self) -> None:
        """Serve on a thread and return when the server answers requests. Raises `HoldfastError`
        on failure."""
        ready = threading.Event()
        self._thread = threading.Thread(
            target=self._serve, args=(ready.set,), name="holdfast-server"
        )
        self._thread.start()
        deadline = time.monotonic() + _START_SECONDS
        while not ready.wait(0.05):
            if not self._thread.is_alive() or time.monotonic() > deadline:
                self.close()
                message = f"The agent server at {self.url} did not start. See the server's log."
                raise HoldfastError(message)

    def close(self) -> None:
        """Shut down and wait for the end. Idempotent."""
        self.stop()
        if self._thread is not None:
            self._thread.join()
        self._socket.close()

    def __enter__(self) -> AgentServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"AgentServer({self.url!r})"

    def _serve(self, on_ready: Callable[[], None] | None) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(self._main(on_ready))
        finally:
            self._socket.close()

    async def _main(self, on_ready: Callable[[], None] | None) -> None:
        service = self._app.service
        serving = asyncio.ensure_future(self._web.serve([self._socket]))
        recovering = asyncio.ensure_future(self._recover())
        while not self._web.started and not serving.done():
            await asyncio.sleep(0.005)
        if on_ready is not None and not serving.done():
            on_ready()
        try:
            await serving
        finally:
            service.end()
            recovering.cancel()
            ending = threading.Thread(target=self._end_host, name="holdfast-shutdown", daemon=True)
            ending.start()
            deadline = time.monotonic() + self._grace / 2 + 1
            while ending.is_alive() and time.monotonic() < deadline:
                await asyncio.sleep(0.01)

    async def _recover(self) -> None:
        service = self._app.service
        try:
            await service.change(service.host.recover)
        except Exception:
            _log.exception("Some conversations of the last server process could not be resumed")
        service.ready = True

    def _end_host(self) -> None:
        try:
            self._app.service.host.shutdown(self._grace / 2)
        except Exception:
            _log.exception("Closing the conversations failed")


class _JoinedWrites:
    """A connection's transport for the web server. All bytes of one pass of the event loop are sent
    together. So the client is woken once for the head and the body of an answer."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._pending: list[bytes] = []
        self._size = 0
        self.abort = transport.abort
        self.is_closing = transport.is_closing
        self.get_extra_info = transport.get_extra_info
        self.set_protocol = transport.set_protocol
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading

    def write(self, data: bytes) -> None:
        if not data:
            return
        if not self._pending:
            asyncio.get_running_loop().call_soon(self._flush)
        self._pending.append(data)
        self._size += len(data)
        if self._size >= _JOINED_BYTES:  # so that the transport can make the writer wait
            self._flush()

    def _flush(self) -> None:
        if self._pending:
            self._transport.write(b"".join(self._pending))
            self._pending, self._size = [], 0

    def close(self) -> None:
        self._flush()
        self._transport.close()


def _default_connections() -> int:
    import resource

    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    # A quarter of the files is left for stores, commands and models.
    return max(16, files * 3 // 4) if files > 0 else 100_000


class _Connections(ObjectStruct):
    """The open connections, oldest first. At most `limit` are open, and each has `head` seconds for
    a request's head."""

    limit: int
    head: float
    open: dict[_Protocol, None] = {}


class _Protocol(H11Protocol):
    """One connection. Not of httptools, which takes a request head of any size."""

    cycle: Any
    transport: Any

    def __init__(self, *arguments: Any, connections: _Connections, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # uvicorn's access log includes the query, and an embedding program's handlers would
        # receive it.
        self.access_log = False
        self._connections = connections
        self._late: asyncio.TimerHandle | None = None

    @property
    def is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: Any) -> None:
        super().connection_made(cast("asyncio.Transport", _JoinedWrites(transport)))
        open = self._connections.open
        if len(open) >= self._connections.limit:
            oldest = next((one for one in open if not one.is_answering), self)
            open.pop(oldest, None)  # now: more connections may arrive before it is lost
            oldest.transport.abort()
            if oldest is self:
                return
        open[self] = None
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.open.pop(self, None)
        if self._late is not None:
            self._late.cancel()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Start or stop the timer for the next request head. After an answer the timer starts with
        the next request's first byte."""
        if self.is_answering and self._late is not None:
            self._late.cancel()
            self._late = None
        elif not self.is_answering and self._late is None:
            loop = asyncio.get_running_loop()
            self._late = loop.call_later(self._connections.head, self._end_late)

    def _end_late(self) -> None:
        self._late = None
        if not self.is_answering:
            self.transport.abort()


class _Web(uvicorn.Server):
    """The web server. Streams end when the shutdown begins."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        cast("App", self.config.app).service.end()  # otherwise the streams would never end
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield  # `_signals` handles them


def _web(app: App, tls: ssl.SSLContext | None, grace: float, connections: _Connections) -> _Web:
    protocol: Any = partial(_Protocol, connections=connections)
    config = uvicorn.Config(
        app,
        http=protocol,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        loop="asyncio",
        interface="asgi3",
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=max(1, round(grace)),
        ssl_context_factory=None if tls is None else lambda config, default: tls,
    )
    # uvicorn's messages about its own start and end do not help an operator.
    for name in ("uvicorn.error", "uvicorn.asgi"):
        logging.getLogger(name).setLevel(logging.WARNING)
    return _Web(config)


def tls_context(certificate: str, key: str | None) -> ssl.SSLContext:
    """Return a TLS context for a certificate file with its chain, and its key. Raises
    `ConfigurationError` that names the file."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for path in (certificate, key or certificate):
        if not os.access(path, os.R_OK):
            raise ConfigurationError(f"The TLS file {path!r} does not exist or cannot be read.")
    try:
        # The empty password prevents a prompt for a passphrase on the terminal.
        context.load_cert_chain(certificate, key, lambda: "")
    except (OSError, ValueError) as error:
        reason: Any = getattr(error, "reason", None) or error
        raise ConfigurationError(
            f"{certificate!r} and {key or certificate!r} are not a PEM certificate and its key:"
            f" {reason}."
        ) from None
    return context


@contextlib.contextmanager
def _signals(stop: Callable[[], None]) -> Generator[Callable[[], int]]:
    """Run `stop` on the first SIGINT or SIGTERM within the block. A second signal ends the
    process with the default action. Yield a function that returns the first signal's number, or
    0."""
    received: list[int] = []

    def handle(number: int, _: object) -> None:
        if received:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        received.append(number)
        stop()

    def first() -> int:
        return received[0] if received else 0

    if threading.current_thread() is not threading.main_thread():
        yield first
        return
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield first
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
