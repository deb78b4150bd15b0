"""What all routes share: the host, the threads that its methods run on, bodies of requests, what was asked once, and the end of it all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import anyio.to_thread
import msgspec
from starlette.responses import Response

from holdfast.nesting import MAX_DOCUMENT_DEPTH, too_deep
from holdfast.server.answers import told
from holdfast.server.guard import Caller, Quota, Refused, Usage, too_large
from holdfast.server.once import Once
from holdfast.tools.context import Cancellation

if TYPE_CHECKING:
    from holdfast.server.host import Host
    from holdfast.server.metrics import Metrics
    from holdfast.server.sse import Stream

T = TypeVar("T")

# Threads, made on demand. What reads must not wait behind what opens a conversation, and neither behind a command that runs for an hour.
_READS, _CHANGES, _LONG = 16, 32, 256
_SHARE = 64  # of the last, for one tenant
_BODY = 60.0  # seconds without a byte after which a body is not waited for


class Service:
    """The server's parts. Of the event loop's thread."""

    def __init__(self, host: Host, usage: Usage, quota: Quota, metrics: Metrics, ping: float) -> None:
        self.host = host
        self.usage = usage
        self.metrics = metrics
        self.ping = ping
        self.streams: set[Stream] = set()
        self.ready = False
        self.closing = False
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

    async def long(self, request: Any, key: str | None, body: bytes, function: Callable[[Cancellation], Response]) -> Response:
        """The answer of what may run for long: once per `key` of a caller, also if he asks again because his connection broke. It is cancelled
        when nobody waits for it any more, or the server ends."""

        tenant = request.scope["caller"].tenant
        share = self._shares.setdefault(tenant, anyio.CapacityLimiter(_SHARE))

        async def work(cancelled: Cancellation) -> Response:
            try:
                async with share:
                    return await anyio.to_thread.run_sync(function, cancelled, limiter=self._long)
            except Exception as error:
                return told(error)

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

    async def body(self, request: Any) -> bytes:
        """A request's whole body. Raises `Refused` if it is too large, or does not come."""
        parts: list[bytes] = []
        size = 0
        while True:
            try:
                message = await asyncio.wait_for(request.receive(), _BODY)
            except TimeoutError:
                raise Refused(408, "StoreError", f"Nothing more of the request came for {_BODY:g} s.", connection="close") from None
            if message["type"] != "http.request":
                raise Refused(400, "ConfigurationError", "The connection broke before the whole request was here.")
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._largest:
                raise too_large(self._largest)
            if not message.get("more_body"):
                return b"".join(parts)

    async def json(self, request: Any, type: type[T]) -> T:
        """A request's body as a struct. Raises `Refused`."""
        return decode(await self.body(request), type, request.headers.get("content-type", ""))

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
            raise Refused(503, "StoreError", "The server ends. Try again when it is back.", retry_after="1")


async def gone(receive: Callable[[], Awaitable[Any]]) -> None:
    """Return when whoever asked has hung up. What he sent is not looked at."""
    with suppress(OSError):
        while (await receive())["type"] != "http.disconnect":
            pass


def decode(body: bytes, type: type[T], media_type: str = "") -> T:
    """JSON as a struct; nothing at all is `{}`. Raises `Refused`."""
    kind = media_type.partition(";")[0].strip().lower()
    if kind and kind != "application/json":
        raise Refused(415, "ConfigurationError", f"This takes application/json, not {kind[:100]!r}.")
    if too_deep(body, MAX_DOCUMENT_DEPTH):
        raise Refused(400, "ConfigurationError", f"The request is nested deeper than {MAX_DOCUMENT_DEPTH} levels.")
    try:
        return msgspec.json.decode(body or b"{}", type=type)
    except msgspec.ValidationError as error:
        raise Refused(422, "ConfigurationError", f"The request does not fit: {error}.") from None
    except (ValueError, OverflowError) as error:
        raise Refused(400, "ConfigurationError", f"The request is no JSON: {error}.") from None
