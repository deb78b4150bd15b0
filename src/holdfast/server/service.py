"""What all routes share: the host, the threads that its methods run on, bodies of requests, what
was asked once, and the end of it all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import anyio.to_thread
from starlette.responses import Response

from holdfast.server.answers import error_answer
from holdfast.server.guard import Caller, Quota, Refused, Usage
from holdfast.server.intake import SMALL_BODY_BYTES, Intake
from holdfast.server.once import Once
from holdfast.tools.context import Cancellation

if TYPE_CHECKING:
    from holdfast.server.host import Host
    from holdfast.server.metrics import Metrics
    from holdfast.server.sse import Stream

T = TypeVar("T")

# Threads, made on demand. What reads must not wait behind what opens a conversation, and neither
# behind a command that runs for an hour.
_READS, _CHANGES, _LONG = 16, 32, 256
_SHARE = 64  # of the last, for one tenant


class Service:
    """The server's parts. Of the event loop's thread."""

    def __init__(
        self, host: Host, usage: Usage, quota: Quota, metrics: Metrics, ping: float
    ) -> None:
        self.host = host
        self.usage = usage
        self.metrics = metrics
        self.ping = ping
        self.streams: set[Stream] = set()
        self.ready = False
        self.closing = False
        self.intake = Intake()
        bounds = host.bounds
        self.agent_bytes = (
            bounds.agent_bytes + bounds.tools_bytes + bounds.secrets_bytes + SMALL_BODY_BYTES
        )
        """The largest body that has an agent and its tools."""
        self._largest = quota.body
        self._reads = anyio.CapacityLimiter(_READS)
        self._changes = anyio.CapacityLimiter(_CHANGES)
        self._long = anyio.CapacityLimiter(_LONG)
        self._shares: dict[str, anyio.CapacityLimiter] = {}
        self._once = Once(host.begin)
        self._seen: dict[tuple[str, str], float] = {}

    # --- the host's methods, on threads ---

    async def read(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call what only reads."""
        return await anyio.to_thread.run_sync(function, *arguments, limiter=self._reads)

    async def change(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call what may have to open a conversation."""
        return await anyio.to_thread.run_sync(function, *arguments, limiter=self._changes)

    async def long(
        self,
        request: Any,
        key: str | None,
        body: bytes,
        function: Callable[[Cancellation], Response],
    ) -> Response:
        """The answer of what may run for long: once per `key` of a caller, also if he asks again
        because his connection broke. It is cancelled when nobody waits for it any more, or the
        server ends."""

        tenant = request.scope["caller"].tenant
        share = self._shares.setdefault(tenant, anyio.CapacityLimiter(_SHARE))

        async def work(cancelled: Cancellation) -> Response:
            try:
                async with share:
                    return await anyio.to_thread.run_sync(function, cancelled, limiter=self._long)
            except Exception as error:
                return error_answer(error)

        name = None if key is None else (tenant, request.scope["path"], key)
        return await self._once.do(name, body, work, lambda: gone(request.receive))

    async def seen(self, tenant: str, client: str) -> None:
        """Note that a client lives: what it claimed stays its own. Once a second is enough."""
        now = asyncio.get_running_loop().time()
        if now - self._seen.get((tenant, client), -10.0) < 1.0:
            return
        if len(self._seen) > 10_000:
            self._seen.clear()
        self._seen[tenant, client] = now
        await self.read(self.host.seen, tenant, client)

    # --- requests ---

    def caller(self, request: Any) -> Caller:
        """Whose request it is."""
        return request.scope["caller"]

    async def body(self, request: Any, largest: int | None = None) -> bytes:
        """A request's whole body of at most `largest` bytes; by default what the quota allows.
        Raises `Refused`."""
        return await self.intake.read(
            request, self._largest if largest is None else min(largest, self._largest)
        )

    async def json(self, request: Any, type: type[T], largest: int | None = SMALL_BODY_BYTES) -> T:
        """A request's body as a struct. Raises `Refused`."""
        found = await self.decode(request, await self.body(request, largest), type)
        request.scope["body"].free()
        return found

    async def decode(self, request: Any, body: bytes, type: type[T]) -> T:
        """A body that was read as a struct. Raises `Refused`."""
        return await self.intake.decode(body, type, request.headers.get("content-type", ""))

    # --- the end ---

    def end(self) -> None:
        """End all streams, and cancel what may run for long; nothing new of either begins."""
        self.closing = True
        self._once.cancel()
        for stream in list(self.streams):
            stream.end()

    def check_open(self) -> None:
        """Raises `Refused` once the server ends."""
        if self.closing:
            raise Refused(
                503, "StoreError", "The server ends. Try again when it is back.", retry_after="1"
            )


async def gone(receive: Callable[[], Awaitable[Any]]) -> None:
    """Return when whoever asked has hung up. What he sent is not looked at."""
    with suppress(OSError):
        while (await receive())["type"] != "http.disconnect":
            pass
