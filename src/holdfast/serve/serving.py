"""Serving a manager over MCP: `mcp` blocks until the end, `MCPEndpoint` serves over HTTP on a
thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import TYPE_CHECKING, Any, Self

from holdfast.errors import HoldfastError
from holdfast.serve import http, stdio
from holdfast.serve.tool_server import ToolServer
from holdfast.server import sockets
from holdfast.tools.loop import LoopThread
from holdfast.tools.manager import ToolManager

if TYPE_CHECKING:
    from holdfast.serve.agent_tasks import AgentTasks

_START_SECONDS = 30.0  # until the web server must be ready; it takes 0.1 s
_CLOSE_SECONDS = 5.0  # for connections to end


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
    tasks: AgentTasks | None = None,
    on_ready: Callable[[str], None] | None = None,
) -> int:
    """Serve all tools of a manager as one MCP server, under their canonical names, until the end of
    the session.

    Over stdio the session ends when the client closes its end. In the main thread SIGINT or SIGTERM
    ends it too. Returns the number of that signal, else 0. While stdio is served, standard output
    is redirected to stderr and standard input is empty, so tools may print.

    Services are asked for their tools at the start. The manager's connections are closed at the
    end, as by a conversation.

    Args:
        http: `HOST:PORT` to serve streamable HTTP at `/mcp` instead of stdio.
        on_ready: Called with the URL once HTTP is served.

    The other arguments are those of `MCPEndpoint`. Raises `ConfigurationError` naming the
    argument that is invalid. Must not be called from a coroutine.
    """
    if http is not None:
        host, port = sockets.address(http)
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
            tasks=tasks,
        )
        with _signals() as wait, endpoint:
            if on_ready is not None:
                on_ready(endpoint.url)
            return wait(endpoint.ended)
    offer = ToolServer(manager, name, instructions, max_calls, runtime, tasks)
    with stdio.claimed() as wire:
        return over_stdio(offer, wire)


def over_stdio(offer: ToolServer, wire: stdio.StdioStreams) -> int:
    """Serve one client on a wire that the caller has claimed. Returns the number of the signal
    that ended it, or 0."""
    with (
        _signals() as wait,
        _ServedOffer(offer, lambda: stdio.serve(offer.server, wire)) as running,
    ):
        return wait(running.ended)


class _ServedOffer:
    """An offer that is served on a loop thread, from `start` until `work` ends or `close` ends
    it through `stop`."""

    def __init__(
        self,
        offer: ToolServer,
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
        """Set when nothing is served any more."""

    def start(self) -> None:
        with self._lock:
            if self._closed or self._thread is not None:
                raise HoldfastError("This server was started before; make another one.")
            self._thread = LoopThread("holdfast-serve")
        self._offer.begin()
        self._future = self._thread.submit(self._work())
        self._future.add_done_callback(lambda _: self.ended.set())

    def close(self) -> None:
        """End all calls and connections, and wait a few seconds for their end. Idempotent; the
        server cannot be started again."""
        with self._lock:
            thread, closed, self._closed = self._thread, self._closed, True
        if thread is None or closed:
            self.ended.set()
            return

        async def end() -> None:
            self._offer.cancel()
            work = asyncio.wrap_future(self._future)
            if self._stop is None:
                work.cancel()
            else:
                self._stop()
            with contextlib.suppress(TimeoutError, asyncio.CancelledError, Exception):
                await asyncio.wait_for(work, _CLOSE_SECONDS)

        # The interpreter's exit may have closed the thread already.
        with contextlib.suppress(HoldfastError):
            thread.submit(end()).result(_CLOSE_SECONDS + 1)
        self._offer.end()
        thread.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class MCPEndpoint(_ServedOffer):
    """A manager's tools as an MCP server over streamable HTTP: `with MCPEndpoint(manager) as
    endpoint: ... endpoint.url`. Thread-safe.

    The endpoint listens from its construction on, and serves from `start` to `close` on a thread of
    its own. A request is refused if its Host is neither a loopback name nor in `allowed_hosts`. So
    is a request from a page of any other origin, unless `allowed_origins` has it. The endpoint has
    no TLS: on a network, use a proxy that provides it.

    To the tools all clients together are one conversation.

    Args:
        port: 0 selects a free port.
        token: The bearer token that each request must have (`Authorization: Bearer ...`).
            Without a token only loopback is served.
        max_calls: The number of concurrent calls, each on a thread. Further calls wait.
        runtime: The `context.runtime` of the tools.
        tasks: Gives clients that know tasks one for each call of its tool.

    Raises `ConfigurationError`, which names the invalid argument, or if it cannot listen.
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
        tasks: AgentTasks | None = None,
    ) -> None:
        http.check(host, token)
        offer = ToolServer(manager, name, instructions, max_calls, runtime, tasks)
        self._web = http.web(offer.server, host, token, allowed_hosts, allowed_origins)
        self._socket = sockets.listen(host, port)
        self.url = f"{sockets.url_of(self._socket, host=host)}/mcp"
        super().__init__(
            offer,
            lambda: self._web.serve([self._socket]),
            lambda: setattr(self._web, "should_exit", True),
        )

    def start(self) -> None:
        """Start to serve, and return when requests are answered. Raises `HoldfastError` if that
        fails, or after `close`."""
        super().start()
        waited = threading.Event()
        for _ in range(int(_START_SECONDS * 100)):
            if self._web.started:
                return
            if self.ended.is_set():
                break
            waited.wait(0.01)
        self.close()
        raise HoldfastError(f"The MCP server at {self.url} did not start; the log says why.")

    def close(self) -> None:
        super().close()
        self._socket.close()

    def __repr__(self) -> str:
        return f"MCPEndpoint({self.url!r})"


# --- signals ---


@contextlib.contextmanager
def _signals() -> Generator[Callable[[threading.Event], int]]:
    """Record SIGINT and SIGTERM within the block, also during the shutdown; outside of the main
    thread none. Yields a function that waits for an event or a signal, and returns the number of
    the signal, else 0."""
    first = 0

    def record(number: int, _: object) -> None:
        nonlocal first
        first = first or number

    def wait(ended: threading.Event) -> int:
        # In small steps: handlers run between them. A handler cannot set an event whose lock the
        # interrupted wait holds.
        while not first and not ended.wait(0.1):
            pass
        return first

    is_main = threading.current_thread() is threading.main_thread()
    recorded = (signal.SIGINT, signal.SIGTERM) if is_main else ()
    before = {number: signal.signal(number, record) for number in recorded}
    try:
        yield wait
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
