"""Access control for requests: the key, the Host and the Origin, the request's size, and the
rate and number of requests of each key."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote_to_bytes

from holdfast.object_struct import ObjectStruct
from holdfast.server.answers import refusal
from holdfast.server.sockets import is_loopback

if TYPE_CHECKING:
    from collections.abc import Awaitable, Generator, Mapping

    App = Callable[[Any, Any, Any], Awaitable[None]]

OPEN = frozenset(("/health", "/ready"))  # paths without a key, for monitoring
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


class Caller(NamedTuple):
    """The owner of a request's key: the tenant, and the id under which the key's requests are
    counted."""

    tenant: str
    key_id: str


class Quota(NamedTuple):
    """The limits of one key.

    `rate` is in requests per second (0: unlimited), with bursts of twice as many. `requests` and
    `streams` are the numbers that may run at once. `body` is the largest body of a request in
    bytes.
    """

    rate: float = 500.0
    requests: int = 128
    streams: int = 512
    body: int = 32 * 1024 * 1024


class RequestRefused(Exception):
    """A refused request: the answer's status, the error's type and message, and extra headers."""

    def __init__(self, status: int, type: str, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.type = type
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class _KeyUse(ObjectStruct):
    """The present use of one key."""

    tokens: float  # requests that may arrive at once
    since: float
    requests: int = 0
    streams: int = 0


class QuotaUsage:
    """Counts the requests and streams of each key and refuses those beyond the quota. Belongs to
    the event loop's thread."""

    def __init__(self, quota: Quota, clock: Callable[[], float] = time.monotonic) -> None:
        self._quota = quota
        self._clock = clock
        self._uses: dict[str, _KeyUse] = {}
        self.refused = 0

    @property
    def streams(self) -> int:
        return sum(use.streams for use in self._uses.values())

    @property
    def requests(self) -> int:
        return sum(use.requests for use in self._uses.values())

    @contextmanager
    def request(self, key_id: str) -> Generator[None]:
        """Count one request for the duration of the block. Raises `RequestRefused`."""
        use = self._take(key_id)
        if use.requests >= self._quota.requests:
            message = f"This key has {use.requests} running requests, which is its limit."
            raise self._too_many(message, 1)
        use.requests += 1
        try:
            yield
        finally:
            use.requests -= 1

    @contextmanager
    def stream(self, key_id: str) -> Generator[None]:
        """Count a request as a stream instead for the duration of the block. Raises
        `RequestRefused`."""
        use = self._use(key_id)
        if use.streams >= self._quota.streams:
            message = f"This key has {use.streams} open event streams, which is its limit."
            raise self._too_many(message, 5)
        use.streams += 1
        use.requests -= 1
        try:
            yield
        finally:
            use.streams -= 1
            use.requests += 1

    def _use(self, key_id: str) -> _KeyUse:
        use = self._uses.get(key_id)
        if use is None:
            use = self._uses[key_id] = _KeyUse(2 * self._quota.rate, self._clock())
        return use

    def _take(self, key_id: str) -> _KeyUse:
        use, rate = self._use(key_id), self._quota.rate
        if rate:  # a token bucket: `rate` tokens are added per second, and a request takes one
            now = self._clock()
            use.tokens = min(max(2 * rate, 1.0), use.tokens + (now - use.since) * rate)
            use.since = now
            if use.tokens < 1:
                message = f"This key sends more than {rate:g} requests per second."
                raise self._too_many(message, (1 - use.tokens) / rate)
            use.tokens -= 1
        return use

    def _too_many(self, message: str, seconds: float) -> RequestRefused:
        self.refused += 1
        wait = max(1, int(seconds + 0.999))
        message = f"{message} Try again in {wait} s."
        return RequestRefused(429, "StoreError", message, retry_after=str(wait))


class Guard:
    """An ASGI application in front of another. An admitted request has a `Caller` in
    `scope["caller"]`, unless its path needs no key.

    Args:
        app: The guarded application.
        verify: Returns the caller of a key, or None.
        usage: Counts requests.
        largest: The largest body in bytes.
        hosts: The allowed Host headers (empty: any). The list prevents DNS rebinding: a web page
            cannot reach a server of this machine under a name of its own.
        origins: Origins of allowed web pages besides the server's own.
        open: Paths that need no key.
    """

    def __init__(
        self,
        app: App,
        verify: Callable[[str], Awaitable[Caller | None]],
        usage: QuotaUsage,
        largest: int,
        hosts: Sequence[str],
        origins: Sequence[str],
        open: Collection[str] = OPEN,
    ) -> None:
        self._app = app
        self._open = frozenset(open)
        self._verify = verify
        self._usage = usage
        self._largest = largest
        self._hosts = frozenset(name.lower() for name in hosts)
        self._origins = frozenset(origins)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        try:
            headers = _headers(scope["headers"])
            self._check(scope, headers)
            if scope["path"] in self._open:
                await self._app(scope, receive, send)
                return
            caller = await self._caller(headers)
            scope["caller"] = caller
            # Streams call this repeatedly; it raises once the key was revoked.
            scope["check"] = lambda: self._caller(headers)
            with self._usage.request(caller.key_id):
                await self._app(scope, receive, send)
        except RequestRefused as error:
            await refusal(error.status, error.type, str(error), error.headers)(scope, receive, send)

    def _check(self, scope: Any, headers: Mapping[bytes, bytes]) -> None:
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if self._hosts.isdisjoint((host, re.sub(r":\d+$", "", host))) and self._hosts:
            raise refused(
                403,
                f"The Host {host[:200]!r} is not allowed. Start the server with --allow-host to"
                " allow it.",
            )
        origin = headers.get(b"origin", b"").decode("latin-1")
        # The origin of the server's own page equals the requested host. A proxy may have turned
        # https into http. Pages of other origins have no key.
        own = bool(host) and origin.lower() in (f"http://{host}", f"https://{host}")
        if origin and not own and origin not in self._origins and "*" not in self._origins:
            raise refused(
                403,
                f"Pages of the origin {origin[:200]!r} may not use this server. Start the server"
                " with --cors-origin to allow them.",
            )
        length = headers.get(b"content-length", b"0")
        # The web server has checked that the length consists of digits.
        if len(length) > 18 or int(length) > self._largest:
            raise too_large(self._largest)
        try:
            path = unquote_to_bytes(scope.get("raw_path") or b"").decode()
        except UnicodeDecodeError:
            raise refused(400, "The path is not UTF-8.") from None
        if "\0" in path:
            raise refused(400, "The path contains a null byte.")

    async def _caller(self, headers: Mapping[bytes, bytes]) -> Caller:
        scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
        caller = None
        if scheme.lower() == b"bearer" and 0 < len(key) <= 1000:
            caller = await self._verify(key.strip().decode("latin-1"))
        if caller is None:
            raise refused(
                401,
                "The key is missing or unknown. Send one as: Authorization: Bearer KEY.",
                www_authenticate="Bearer",
            )
        return caller


def refused(status: int, message: str, **headers: str) -> RequestRefused:
    """Return the refusal of an invalid request."""
    return RequestRefused(status, "ConfigurationError", message, **headers)


def too_large(largest: int) -> RequestRefused:
    return refused(413, f"The request is too large: at most {largest} bytes are allowed.")


def shutting_down() -> RequestRefused:
    message = "The server is shutting down. Try again when it is back."
    return RequestRefused(503, "StoreError", message, retry_after="1")


def client_left() -> RequestRefused:
    """Return the refusal that ends a request whose client has disconnected. Nobody receives it."""
    return refused(400, "The client disconnected before the answer.")


def _headers(pairs: Sequence[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Return the headers by name. Raises `RequestRefused` if a header that decides about access is
    repeated, since the meaning would be a guess."""
    headers: dict[bytes, bytes] = {}
    for name, value in pairs:
        if name in headers and name in (b"authorization", b"host", b"origin"):
            raise refused(400, f"The header {name.decode('latin-1')} is repeated.")
        headers[name] = value
    return headers


def host_names(host: str, allowed: Sequence[str]) -> list[str]:
    """Return the allowed Host headers of a server that listens on `host`. An empty list allows
    any."""
    if not is_loopback(host):
        return list(allowed)
    return [*_LOOPBACK, f"[{host}]" if ":" in host else host, *allowed]
