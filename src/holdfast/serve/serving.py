"""A manager served: `mcp` blocks until it is over, `MCPEndpoint` serves over HTTP on a thread
beside other work."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Coroutine, Generator, Sequence
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any

from holdfast.errors import HoldfastError
from holdfast.serve import http, stdio
from holdfast.serve.offer import Offer
from holdfast.server import sockets
from holdfast.tools.loop import LoopThread

if TYPE_CHECKING:
    from holdfast.tools.manager import ToolManager

_START = 30.0  # seconds for the web server to begin; it takes 0.1
_CLOSE = 5.0  # seconds for connections to end


def mcp(
    manager: ToolManager,
    *,
    http: str | None = None,
    token: str | None = None,
    allowed_hosts: Sequence[str] = (),
    allowed_origins: Sequence[str] = (),
    name: str = "holdfast",
    instructions: str | None = None,
    max_calls: int = 32,
    runtime: object | None = None,
    on_ready: Callable[[str], None] | None = None,
) -> int:
    """Offer all tools of a manager as one MCP server, under their canonical names, and return when
    that is over: over stdio, when the client closes its end; in the main thread also at SIGINT or
    SIGTERM, whose number is returned, else 0.

    `http` is `HOST:PORT` to serve streamable HTTP at `/mcp` instead, and `on_ready` is told the
    URL; for that and the other arguments see `MCPEndpoint`. While stdio is served, standard output
    leads to stderr and standard input is empty: tools may print.

    Services are asked for their tools at once, and the manager's connections closed at the end as
    by a conversation. Raises `ConfigurationError` naming the argument that does not fit. Not to be
    called from a coroutine.
    """
    if http is not None:
        from holdfast.server.sockets import address

        host, port = address(http)
        endpoint = MCPEndpoint(
            manager,
            host,
            port,
            token=token,
            allowed_hosts=allowed_hosts,
            allowed_origins=allowed_origins,
            name=name,
            instructions=instructions,
            max_calls=max_calls,
            runtime=runtime,
        )
        with _signals() as signals, endpoint:
            if on_ready is not None:
                on_ready(endpoint.url)
            return signals.wait(endpoint.ended)
    offer = Offer(manager, name, instructions, max_calls, runtime)
    with stdio.claimed() as wire:
        return over_stdio(offer, wire)


def over_stdio(offer: Offer, wire: stdio.Wire) -> int:
    """Serve one client on a wire that the caller has claimed. Returns the number of the signal that
    ended it, or 0."""
    with _signals() as signals, _Running(offer, lambda: stdio.serve(offer.server, wire)) as running:
        return signals.wait(running.ended)


class MCPEndpoint:
    """A manager's tools as an MCP server over streamable HTTP: `with MCPEndpoint(manager) as
    endpoint: ... endpoint.url`. Thread-safe.

    It listens on `host` and `port` (0: any that is free) from its construction on, and serves from
    `start` to `close` on a thread of its own. Requests with another Host than this machine's
    loopback names and `allowed_hosts`, or from pages of other origins than these and
    `allowed_origins`, are refused. With a `token` each must bring it (`Authorization: Bearer ...`);
    without one nothing but loopback is served. There is no TLS: on a network, put a proxy before it
    that has.

    At most `max_calls` calls run at once, each on a thread; more wait. All clients together are to
    the tools what one conversation is. `runtime` is what tools find as `context.runtime`. Raises
    `ConfigurationError` naming the argument that does not fit, or why it cannot listen.
    """

    def __init__(
        self,
        manager: ToolManager,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        token: str | None = None,
        allowed_hosts: Sequence[str] = (),
        allowed_origins: Sequence[str] = (),
        name: str = "holdfast",
        instructions: str | None = None,
        max_calls: int = 32,
        runtime: object | None = None,
    ) -> None:
        http.check(host, token)
        offer = Offer(manager, name, instructions, max_calls, runtime)
        self._web = http.web(offer.server, host, token, allowed_hosts, allowed_origins)
        self._socket = sockets.listen(host, port)
        self.url = http.url(host, self._socket)
        self._running = _Running(
            offer,
            lambda: self._web.serve([self._socket]),
            lambda: setattr(self._web, "should_exit", True),
        )

    @property
    def ended(self) -> threading.Event:
        """Set when it serves no longer."""
        return self._running.ended

    def start(self) -> None:
        """Begin to serve, and return when requests are answered. Raises `HoldfastError` if that
        fails, or after `close`."""
        self._running.start()
        waited = threading.Event()
        for _ in range(int(_START * 100)):
            if self._web.started:
                return
            if self.ended.is_set():
                break
            waited.wait(0.01)
        self.close()
        raise HoldfastError(f"The MCP server at {self.url} did not start; the log says why.")

    def close(self) -> None:
        """End all calls and connections, and wait for that, some seconds at most. Idempotent; it
        does not serve again."""
        self._running.close()
        self._socket.close()

    def __enter__(self) -> MCPEndpoint:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"MCPEndpoint({self.url!r})"


class _Running:
    """An offer being served, on a loop thread: from `start` until `work` is over or `close`, which
    `stop` asks it to be."""

    def __init__(
        self,
        offer: Offer,
        work: Callable[[], Coroutine[Any, Any, None]],
        stop: Callable[[], None] | None = None,
    ) -> None:
        self._offer = offer
        self._work = work
        self._stop = stop
        self._lock = threading.Lock()
        self._thread: LoopThread | None = None
        self._closed = False
        self.ended = threading.Event()

    def start(self) -> None:
        with self._lock:
            if self._closed or self._thread is not None:
                raise HoldfastError("It was started before; make another one.")
            self._thread = LoopThread("holdfast-serve")
        self._offer.begin()
        self._future = self._thread.submit(self._work())
        self._future.add_done_callback(lambda _: self.ended.set())

    def close(self) -> None:
        with self._lock:
            thread, closed, self._closed = self._thread, self._closed, True
        if thread is None or closed:
            self.ended.set()
            return
        with contextlib.suppress(HoldfastError):  # the interpreter's exit came first
            thread.submit(self._end()).result(_CLOSE + 1)
        self._offer.end()
        thread.close()

    async def _end(self) -> None:
        self._offer.cancel()
        work = asyncio.wrap_future(self._future)
        if self._stop is None:
            work.cancel()
        else:
            self._stop()
        with contextlib.suppress(TimeoutError, asyncio.CancelledError, CancelledError, Exception):
            await asyncio.wait_for(work, _CLOSE)

    def __enter__(self) -> _Running:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# --- signals ---


class _Signals:
    def __init__(self) -> None:
        self.number = 0

    def note(self, number: int, _: object) -> None:
        self.number = self.number or number

    def wait(self, ended: threading.Event) -> int:
        """Wait until it is over, or a signal came: its number, else 0."""
        # In small steps: a handler runs between them, and may not wake an event whose lock the
        # interrupted wait holds.
        while not self.number and not ended.wait(0.1):
            pass
        return self.number


@contextlib.contextmanager
def _signals() -> Generator[_Signals]:
    """Within, SIGINT and SIGTERM are noted, also while everything is being closed. In another
    thread than the main one they are left alone."""
    found = _Signals()
    if threading.current_thread() is not threading.main_thread():
        yield found
        return
    before = {
        number: signal.signal(number, found.note) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield found
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
