"""Who is let in, and how much of it: the key, the Host and the Origin of a request, its size, and
each key's rate and number of requests."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote_to_bytes

from holdfast.server.answers import refusal
from holdfast.server.sockets import is_loopback

if TYPE_CHECKING:
    from collections.abc import Awaitable, Generator, Mapping

    App = Callable[[Any, Any, Any], Awaitable[None]]

OPEN = frozenset(("/health", "/ready"))  # what needs no key: whoever watches the server has none
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


class Caller(NamedTuple):
    """Whose key a request brought: its tenant, and the id by which the key's requests are
    counted."""

    tenant: str
    key_id: str


class Quota(NamedTuple):
    """What one key may do: `rate` requests per second (0: any number) with bursts of twice as many,
    so many `requests` at once and beside them `streams`; and the largest `body` of a request in
    bytes."""

    rate: float = 500.0
    requests: int = 128
    streams: int = 512
    body: int = 32 * 1024 * 1024


class Refused(Exception):
    """A request that is not let in: the answer's status, the error's type and message, and the
    headers that belong to it."""

    def __init__(self, status: int, type: str, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.type = type
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class _Use:
    """What a key uses at the moment."""

    __slots__ = ("left", "requests", "since", "streams")

    def __init__(self, left: float, since: float) -> None:
        self.left = left  # requests that may come at once
        self.since = since
        self.requests = 0
        self.streams = 0


class Usage:
    """Counts what each key uses, and refuses what is too much. One thread's: the event loop's."""

    def __init__(self, quota: Quota, clock: Callable[[], float] = time.monotonic) -> None:
        self._quota = quota
        self._clock = clock
        self._uses: dict[str, _Use] = {}
        self.refused = 0

    @property
    def streams(self) -> int:
        """How many streams are open."""
        return sum(use.streams for use in self._uses.values())

    @property
    def requests(self) -> int:
        """How many requests are being answered."""
        return sum(use.requests for use in self._uses.values())

    @contextmanager
    def request(self, key_id: str) -> Generator[None]:
        """One request from its begin to its end. Raises `Refused`."""
        use = self._take(key_id)
        if use.requests >= self._quota.requests:
            raise self._too_many(
                f"This key has {use.requests} requests running, which is all it may have at once.",
                1,
            )
        use.requests += 1
        try:
            yield
        finally:
            use.requests -= 1

    @contextmanager
    def stream(self, key_id: str) -> Generator[None]:
        """A request that goes on as a stream: it counts as one of these instead. Raises
        `Refused`."""
        use = self._use(key_id)
        if use.streams >= self._quota.streams:
            raise self._too_many(
                f"This key has {use.streams} event streams open, which is all it may have.", 5
            )
        use.streams += 1
        use.requests -= 1
        try:
            yield
        finally:
            use.streams -= 1
            use.requests += 1

    def _use(self, key_id: str) -> _Use:
        use = self._uses.get(key_id)
        if use is None:
            use = self._uses[key_id] = _Use(2 * self._quota.rate, self._clock())
        return use

    def _take(self, key_id: str) -> _Use:
        use, rate = self._use(key_id), self._quota.rate
        if rate:  # a token bucket: it fills with `rate` tokens per second, and a request takes one
            now = self._clock()
            use.left = min(max(2 * rate, 1.0), use.left + (now - use.since) * rate)
            use.since = now
            if use.left < 1:
                raise self._too_many(
                    f"This key sends more than {rate:g} requests per second.", (1 - use.left) / rate
                )
            use.left -= 1
        return use

    def _too_many(self, message: str, seconds: float) -> Refused:
        self.refused += 1
        wait = max(1, int(seconds + 0.999))
        return Refused(
            429, "StoreError", f"{message} Try again in {wait} s.", retry_after=str(wait)
        )


class Guard:
    """An ASGI app before another: what it lets through has `scope["caller"]`, a `Caller`, unless
    its path needs no key.

    `verify` says whose a key is, or None. `hosts` are the names that a request's Host may have
    (empty: any), so that no page can reach a server of this machine by a name of its own; `origins`
    are those that pages may come from, beside the server's own. `open` are paths that need no key.
    """

    def __init__(
        self,
        app: App,
        verify: Callable[[str], Awaitable[Caller | None]],
        usage: Usage,
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
            scope["check"] = lambda: self._caller(
                headers
            )  # for what goes on for long: raises once the key was taken back
            with self._usage.request(caller.key_id):
                await self._app(scope, receive, send)
        except Refused as error:
            await refusal(error.status, error.type, str(error), error.headers)(scope, receive, send)

    def _check(self, scope: Any, headers: Mapping[bytes, bytes]) -> None:
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if (
            self._hosts
            and host not in self._hosts
            and re.sub(r":\d+$", "", host) not in self._hosts
        ):
            raise Refused(
                403,
                "ConfigurationError",
                f"The Host {host[:200]!r} is none of this server's. Start it with --allow-host to"
                " take it as one.",
            )
        origin = headers.get(b"origin", b"").decode("latin-1")
        # The server's own page is of the origin that it was asked for; a proxy before it may have
        # made http of https. A page elsewhere has no key.
        own = bool(host) and origin.lower() in (f"http://{host}", f"https://{host}")
        if origin and not own and origin not in self._origins and "*" not in self._origins:
            raise Refused(
                403,
                "ConfigurationError",
                f"Pages of the origin {origin[:200]!r} may not use this server. Start it with"
                " --cors-origin to let them.",
            )
        length = headers.get(b"content-length", b"0")
        if (
            len(length) > 18 or int(length) > self._largest
        ):  # its digits were checked by the web server
            raise too_large(self._largest)
        try:
            path = unquote_to_bytes(scope.get("raw_path") or b"").decode()
        except UnicodeDecodeError:
            raise Refused(400, "ConfigurationError", "The path is not UTF-8.") from None
        if "\0" in path:
            raise Refused(400, "ConfigurationError", "The path has a null byte in it.")

    async def _caller(self, headers: Mapping[bytes, bytes]) -> Caller:
        scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
        caller = None
        if scheme.lower() == b"bearer" and 0 < len(key) <= 1000:
            caller = await self._verify(key.strip().decode("latin-1"))
        if caller is None:
            raise Refused(
                401,
                "ConfigurationError",
                "This server wants a key that it knows: Authorization: Bearer KEY.",
                www_authenticate="Bearer",
            )
        return caller


def too_large(largest: int) -> Refused:
    """The answer to a body that is larger than this many bytes."""
    return Refused(
        413, "ConfigurationError", f"A request may have {largest} bytes; this one has more."
    )


def _headers(pairs: Sequence[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """By name. One that came twice is as if it had not come where it decides who is let in: which
    one counts would be a guess."""
    found: dict[bytes, bytes] = {}
    for name, value in pairs:
        if name in found and name in (b"authorization", b"host", b"origin"):
            raise Refused(
                400, "ConfigurationError", f"The header {name.decode('latin-1')} came twice."
            )
        found[name] = value
    return found


def host_names(host: str, allowed: Sequence[str]) -> list[str]:
    """The names that a request's Host may have, for a server that listens on `host`; none where
    anyone may be."""
    if not is_loopback(host):
        return list(allowed)
    return [*_LOOPBACK, f"[{host}]" if ":" in host else host, *allowed]
