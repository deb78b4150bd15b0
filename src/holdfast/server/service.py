"""The objects that all routes share: the host, the threads that call its methods, readers of
request bodies, idempotent requests, and the shutdown."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import anyio.to_thread
from starlette.responses import Response

from holdfast.server.answers import error_answer
from holdfast.server.guard import OPEN, Caller, Quota, QuotaUsage, client_left, shutting_down
from holdfast.server.idempotent_requests import IdempotentRequests
from holdfast.server.intake import SMALL_BODY_BYTES, Intake
from holdfast.server.metrics import Metrics
from holdfast.tools.context import Cancellation

if TYPE_CHECKING:
    from holdfast.server.host import Host
    from holdfast.server.sse import Stream

T = TypeVar("T")

# The numbers of threads, which are created on demand. Reads must not wait for calls that open
# conversations, and neither must wait for commands that run for an hour.
_READ_THREADS, _CHANGE_THREADS, _LONG_THREADS = 16, 32, 256
_LONG_THREADS_PER_TENANT = 64


class Service:
    """The shared objects of the routes. Belongs to the event loop's thread."""

    def __init__(self, host: Host, quota: Quota, ping: float) -> None:
        self.host = host
        self.usage = QuotaUsage(quota)
        self.metrics = Metrics()
        self.ping = ping
        self.streams: set[Stream] = set()
        self.ready = False
        self.closing = False
        self.intake = Intake()
        self.open = set[str](OPEN)  # the paths that need no key
        bounds = host.bounds
        self.agent_bytes = (
            bounds.agent_bytes + bounds.tools_bytes + bounds.secrets_bytes + SMALL_BODY_BYTES
        )
        """The largest body that holds an agent and its tools, in bytes."""
        self._largest = quota.body
        self._reads = anyio.CapacityLimiter(_READ_THREADS)
        self._changes = anyio.CapacityLimiter(_CHANGE_THREADS)
        self._long = anyio.CapacityLimiter(_LONG_THREADS)
        self._shares: dict[str, anyio.CapacityLimiter] = {}
        self._idempotent = IdempotentRequests(host.begin)
        self._alive_at: dict[tuple[str, str], float] = {}

    # --- the host's methods, on threads ---

    async def read(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function that only reads, on a thread."""
        return await anyio.to_thread.run_sync(function, *arguments, limiter=self._reads)

    async def change(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function that may have to open a conversation, on a thread."""
        return await anyio.to_thread.run_sync(function, *arguments, limiter=self._changes)

    async def long(
        self,
        request: Any,
        key: str | None,
        body: bytes,
        function: Callable[[Cancellation], Response],
    ) -> Response:
        """Return the answer of a function that may run for long, once per caller and `key`. The
        function is cancelled when no client waits for it any more or the server shuts down."""

        tenant = request.scope["caller"].tenant
        share = self._shares.setdefault(tenant, anyio.CapacityLimiter(_LONG_THREADS_PER_TENANT))

        async def work(cancelled: Cancellation) -> Response:
            try:
                async with share:
                    return await anyio.to_thread.run_sync(function, cancelled, limiter=self._long)
            except Exception as error:
                return error_answer(error)

        name = None if key is None else (tenant, request.scope["path"], key)
        return await self._idempotent.do(
            name, body, work, lambda: wait_for_disconnect(request.receive)
        )

    async def note_alive(self, tenant: str, client: str) -> None:
        """Record that a client is alive, at most once per second."""
        now = asyncio.get_running_loop().time()
        if now - self._alive_at.get((tenant, client), -10.0) < 1.0:
            return
        if len(self._alive_at) > 10_000:
            self._alive_at.clear()
        self._alive_at[tenant, client] = now
        await self.read(self.host.claims.note_alive, tenant, client)

    # --- requests ---

    def caller(self, request: Any) -> Caller:
        return request.scope["caller"]

    async def body(self, request: Any, largest: int | None = None) -> bytes:
        """Read a request's whole body of at most `largest` bytes; the default is the quota's
        limit. Raises `RequestRefused`."""
        return await self.intake.read(
            request, self._largest if largest is None else min(largest, self._largest)
        )

    async def forward(self, app: Any, scope: Any, receive: Any, send: Any, values: int) -> None:
        """Call an ASGI application by `Intake.forward`, with bodies of the quota's limit."""
        await self.intake.forward(app, scope, receive, send, self._largest, values)

    async def json(self, request: Any, type: type[T], largest: int | None = SMALL_BODY_BYTES) -> T:
        """Read a request's body as a struct. Raises `RequestRefused`."""
        body = await self.decode(request, await self.body(request, largest), type)
        request.scope["body"].free()
        return body

    async def decode(self, request: Any, body: bytes, type: type[T]) -> T:
        return await self.intake.decode(body, type, request.headers.get("content-type", ""))

    # --- shutdown ---

    def end(self) -> None:
        """End all streams, cancel long requests, and begin no new ones."""
        self.closing = self.host.chats.ended = True
        self._idempotent.cancel()
        for stream in list(self.streams):
            stream.end()

    def check_open(self) -> None:
        if self.closing:
            raise shutting_down()


async def unless_left(request: Any, work: Awaitable[T]) -> T:
    """Return the result of `work`. If the client disconnects before, `work` is cancelled. Raises
    `RequestRefused` then."""
    task = asyncio.ensure_future(work)
    disconnect = asyncio.ensure_future(wait_for_disconnect(request.receive))
    try:
        await asyncio.wait((task, disconnect), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise client_left()
        return await task
    finally:
        disconnect.cancel()
        task.cancel()


async def wait_for_disconnect(receive: Callable[[], Awaitable[Any]]) -> None:
    """Return when the client has disconnected. Received data is ignored."""
    with suppress(OSError):
        while (await receive())["type"] != "http.disconnect":
            pass
