"""The app on a socket: served until a signal or `close`, and how that ends: streams first, then
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
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigurationError, HoldfastError

if TYPE_CHECKING:
    import uvicorn

    from holdfast.server.app import App

_START = 30.0  # seconds for the web server to begin; it takes 0.1
# seconds that an idle connection is kept: longer than clients do, so that none is closed under a
# request
_KEEP_ALIVE = 75
_HEAD = (
    10.0  # seconds that a request's head may take, from its first byte or from the connection on
)
# milliseconds after which a reader who takes nothing is given up; he comes back at his last event
_STALLED = 120_000

_log = logging.getLogger("holdfast.server")


class AgentServer:
    """An `App` on a listening socket: `run` blocks, `start` and `close` (or `with`) serve on a
    thread. Once.

    A connection whose request's head does not come whole within `head` seconds is closed. Of more
    than `connections` at once (None: three quarters of the files that the process may have open)
    the oldest without a request is closed for a new one.

    At the end it accepts no more, ends streams, lets requests end for half of `grace` seconds, and
    gives the rest to `Host.shutdown`.
    """

    def __init__(
        self,
        app: App,
        listening: socket.socket,
        *,
        tls: ssl.SSLContext | None = None,
        grace: float = 10.0,
        head: float = _HEAD,
        connections: int | None = None,
    ) -> None:
        self._app = app
        self._socket = listening
        self._grace = grace
        # Accepted sockets have these from the one that listens.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (
            ("TCP_USER_TIMEOUT", _STALLED),
            ("TCP_KEEPIDLE", 30),
            ("TCP_KEEPINTVL", 10),
            ("TCP_KEEPCNT", 3),
        ):
            if hasattr(socket, name):  # not on every system
                listening.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._web = _web(app, tls, grace / 2, head, _most() if connections is None else connections)
        self._thread: threading.Thread | None = None
        place: tuple[str, int] = listening.getsockname()[:2]
        shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(place[0], place[0])
        self.url = (
            f"http{'s' if tls else ''}://{f'[{shown}]' if ':' in shown else shown}:{place[1]}"
        )

    def run(self, on_ready: Callable[[], None] | None = None) -> int:
        """Serve until SIGINT or SIGTERM, where this is the main thread, or `stop`; the signal's
        number or 0. A second signal ends the process at once."""
        with _signals(self.stop) as number:
            self._serve(on_ready)
        return number()

    def stop(self) -> None:
        """Begin to end. May be called anywhere, also in a signal handler."""
        self._web.should_exit = True

    def start(self) -> None:
        """Serve on a thread; return when requests are answered. Raises `HoldfastError` if that
        fails."""
        ready = threading.Event()
        self._thread = threading.Thread(
            target=self._serve, args=(ready.set,), name="holdfast-server"
        )
        self._thread.start()
        deadline = time.monotonic() + _START
        while not ready.wait(0.05):
            if not self._thread.is_alive() or time.monotonic() > deadline:
                self.close()
                raise HoldfastError(
                    f"The agent server at {self.url} did not start; the log says why."
                )

    def close(self) -> None:
        """End, and wait for that. Idempotent."""
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
            left = threading.Thread(target=self._end_host, name="holdfast-shutdown", daemon=True)
            left.start()
            deadline = time.monotonic() + self._grace / 2 + 1
            while left.is_alive() and time.monotonic() < deadline:
                await asyncio.sleep(0.01)

    async def _recover(self) -> None:
        service = self._app.service
        try:
            await service.change(service.host.recover)
        except Exception:
            _log.exception("What was running when the server ended could not all be taken up")
        service.ready = True

    def _end_host(self) -> None:
        try:
            self._app.service.host.shutdown(self._grace / 2)
        except Exception:
            _log.exception("The conversations did not end well")


def _most() -> int:
    import resource

    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (
        max(16, files * 3 // 4) if files > 0 else 100_000
    )  # the rest is for stores, commands and models


def _web(
    app: App, tls: ssl.SSLContext | None, grace: float, head: float, connections: int
) -> uvicorn.Server:
    import uvicorn
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    open: dict[Any, None] = {}  # the oldest first

    base: Any = AutoHTTPProtocol  # which one it is depends on what is installed

    class Protocol(base):
        cycle: Any
        transport: Any

        def __init__(self, *arguments: Any, **options: Any) -> None:
            base.__init__(self, *arguments, **options)
            self.access_log = (
                False  # its lines have the query; an embedding program's handlers would get them
            )
            self.late: asyncio.TimerHandle | None = None

        @property
        def asked(self) -> bool:
            """Whether a request is being answered."""
            return self.cycle is not None and not self.cycle.response_complete

        def connection_made(self, transport: Any) -> None:
            base.connection_made(self, transport)
            if len(open) >= connections:
                oldest = next((one for one in open if not one.asked), self)
                open.pop(oldest, None)  # now: several may come before it is gone
                oldest.transport.abort()
                if oldest is self:
                    return
            open[self] = None
            self.watch()

        def data_received(self, data: bytes) -> None:
            base.data_received(self, data)
            self.watch()

        def connection_lost(self, exc: Exception | None) -> None:
            open.pop(self, None)
            if self.late is not None:
                self.late.cancel()
            base.connection_lost(self, exc)

        def watch(self) -> None:
            """What is not asked yet must be soon. After an answer the wait begins with the next
            request's first byte."""
            if self.asked:
                if self.late is not None:
                    self.late.cancel()
                    self.late = None
            elif self.late is None:
                self.late = asyncio.get_running_loop().call_later(head, self.too_late)

        def too_late(self) -> None:
            self.late = None
            if not self.asked:
                self.transport.abort()

    class Web(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            app.service.end()  # streams would go on for ever
            await super().shutdown(sockets)

        @contextlib.contextmanager
        def capture_signals(self) -> Generator[None, None, None]:
            yield  # ours are

    config = uvicorn.Config(
        app,
        http=Protocol,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        loop="asyncio",
        interface="asgi3",
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=max(1, round(grace)),
        ssl_context_factory=None if tls is None else lambda config, default: tls,
    )
    for name in (
        "uvicorn.error",
        "uvicorn.asgi",
    ):  # what it says of its own beginning and end is not for whoever runs this
        logging.getLogger(name).setLevel(logging.WARNING)
    return Web(config)


def tls_context(certificate: str, key: str | None) -> ssl.SSLContext:
    """TLS by the files of a certificate with its chain and its key. Raises `ConfigurationError`
    naming the file."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for path in (certificate, key):
        if path is not None and not os.access(path, os.R_OK):
            raise ConfigurationError(f"The file {path!r} for TLS is not there, or cannot be read.")
    try:
        context.load_cert_chain(
            certificate, key, lambda: ""
        )  # no question for a passphrase on the terminal
    except (OSError, ValueError) as error:
        reason: Any = getattr(error, "reason", None) or error
        raise ConfigurationError(
            f"{certificate!r} and {key or certificate!r} are no certificate and its key in PEM:"
            f" {reason}."
        ) from None
    return context


@contextlib.contextmanager
def _signals(stop: Callable[[], None]) -> Generator[Callable[[], int]]:
    """Within, the first SIGINT or SIGTERM runs `stop`, a second ends the process as if nobody had
    asked for it. Yields what tells which came, 0 for none."""
    came: list[int] = []

    def handle(number: int, _: object) -> None:
        if came:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        came.append(number)
        stop()

    def first() -> int:
        return came[0] if came else 0

    if threading.current_thread() is not threading.main_thread():
        yield first
        return
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield first
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
