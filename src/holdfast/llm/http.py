"""A keep-alive connection pool for requests to one server: connecting, TLS, proxies, idle
connections and the response.

The pool is synchronous and thread-safe, creates no thread, reads nothing from the environment, and
holds its lock only to move a connection.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol
from urllib.parse import unquote

from holdfast.errors import Cancelled, ConfigurationError, LLMConnectionError, LLMError, LLMTimeout
from holdfast.llm import http1
from holdfast.llm.address import split_url
from holdfast.llm.http1 import NO_DEADLINE, ConnectionLost, HttpConnection
from holdfast.llm.secrets import basic, redact_url

if TYPE_CHECKING:
    import ssl

    from holdfast.tools.context import Cancellation

# Common load balancers and NATs silently drop connections after 240 s (Azure) or 350 s (AWS).
IDLE_SECONDS = 180.0


class HttpExchange:
    """An HTTP response: `status`, `headers` (names in lower case) and the body, read whole or
    iterated in raw chunks."""

    __slots__ = ("_body", "_chunks", "headers", "status")

    def __init__(self, status: int, headers: dict[str, str], chunks: Iterator[bytes]) -> None:
        self.status = status
        self.headers = headers
        self._chunks = chunks
        self._body: bytes | None = None

    def __iter__(self) -> Iterator[bytes]:
        return self._chunks

    def read(self) -> bytes:
        """Return the whole body, or the rest of it if some was iterated. Repeated calls return
        the same bytes."""
        if self._body is None:
            self._body = b"".join(self)
        return self._body

    def finish_within(self, seconds: float | None) -> None:
        """Require the rest of the body within `seconds`, because the essential part has arrived.
        None restores the original deadline."""

    def record_outcome(self, error: LLMError | None) -> None:
        """Accept the outcome of the exchange: None for an answer, or an error. Not called if
        anything else ended the reading."""

    def close(self) -> None:
        """Drop the connection unless the body has been read to its end. May be called
        repeatedly."""


class Transport(Protocol):
    """The channel for a model's requests: `HTTPPool` or a replacement for one."""

    @property
    def post(self) -> Callable[..., HttpExchange]:
        """Send a request. Takes the arguments of `HTTPPool.post`."""
        ...

    @property
    def get(self) -> Callable[..., HttpExchange]:
        """Fetch a resource. Takes the arguments of `HTTPPool.get`."""
        ...

    def close(self) -> None: ...


class Response(HttpExchange):
    """A response that holds a pool's connection until the body has been read to its end; `close`
    drops the connection. Reading raises `LLMConnectionError`, `LLMTimeout` or `Cancelled`."""

    __slots__ = ("_connection", "_deadline", "_pool")

    def __init__(
        self, pool: HTTPPool, connection: HttpConnection, head: tuple[int, dict[str, str], bytes]
    ) -> None:
        super().__init__(head[0], head[1], http1.body_chunks(connection, *head))
        self._pool = pool
        self._connection: HttpConnection | None = connection
        self._deadline = connection.deadline

    def __iter__(self) -> Iterator[bytes]:
        connection = self._connection
        if connection is None:
            return
        try:
            yield from self._chunks
        except ConnectionLost as error:
            raise connection.lost_error(error) from error
        else:
            self._connection = None
            self._pool.give_back(connection, self.headers)
        finally:
            self.close()

    def finish_within(self, seconds: float | None) -> None:
        connection = self._connection
        if connection is not None:
            limit = NO_DEADLINE if seconds is None else time.monotonic() + seconds
            earliest = self._deadline if seconds is None else connection.deadline
            connection.deadline = min(earliest, limit)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class HTTPPool:
    """Keep-alive connections to the server of `base_url`.

    Args:
        timeout: (connect, read) in seconds. The first covers connecting including TLS, the
            second each wait for a byte.
        proxy: An `http://` URL, with credentials if needed. An https server is reached through
            CONNECT.
        ssl_context: None means the system's default, created at the first use.
        max_idle: The largest number of idle connections. Each is kept for 180 s.

    Raises `ConfigurationError` for a URL that is not http or https.
    """

    _answer: type[Response] = Response

    def __init__(
        self,
        base_url: str,
        *,
        timeout: tuple[float, float] = (10.0, 600.0),
        proxy: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
        max_idle: int = 128,
    ) -> None:
        self._server = _split("base_url", base_url, ("http", "https"))
        self.tls, self.host, port, _ = self._server
        self.connect_timeout, self.read_timeout = timeout
        self.max_idle = max_idle
        self._ssl_context = ssl_context
        bare = f"[{self.host}]" if ":" in self.host else self.host
        self.address = self._destination = f"{bare}:{port}"
        authority = bare if port == (443 if self.tls else 80) else self.address
        self._target = ""
        self._always = f"Host: {authority}\r\nAccept-Encoding: identity\r\n"
        self._proxy = _split("proxy", proxy, ("http",)) if proxy else None
        if self._proxy is not None:
            self._destination += f" through the proxy {self._proxy.host}:{self._proxy.port}"
            if not self.tls:  # a plain request through a proxy names the whole URL
                self._target = f"http://{authority}"
                self._always += self._proxy.authorization
        self._idle: list[HttpConnection] = []
        self._closes = 0
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def post(
        self,
        path: str,
        body: bytes,
        headers: Mapping[str, str] | str,
        *,
        cancelled: Cancellation | None = None,
        stream: bool = False,
        deadline: float | None = None,
    ) -> Response:
        """POST `body` to `path` (from the root, with its query). Return when the response's head
        has arrived; without `stream`, when the body has arrived too.

        `headers` may be the result of `header_text`. `deadline` is a `time.monotonic()` value for
        the whole exchange. A reused connection that proves closed before any byte of a response is
        replaced once, silently. Raises `LLMConnectionError`, `LLMTimeout`, `Cancelled`, or
        `BadResponse` for a response that is not HTTP.
        """
        length = f"Content-Length: {len(body)}\r\n"
        request = self._head("POST", path, headers, length)
        limits = self.read_timeout, NO_DEADLINE if deadline is None else deadline, cancelled
        return self._exchange(request, body, limits, stream)

    def get(
        self,
        path: str,
        headers: Mapping[str, str] | str,
        *,
        cancelled: Cancellation | None = None,
        stream: bool = False,
        deadline: float | None = None,
    ) -> Response:
        """GET `path`. `post` describes the arguments and the errors."""
        request = self._head("GET", path, headers, "")
        limits = self.read_timeout, NO_DEADLINE if deadline is None else deadline, cancelled
        return self._exchange(request, b"", limits, stream)

    def _head(self, method: str, path: str, headers: Mapping[str, str] | str, length: str) -> bytes:
        extra_headers = header_text(headers) if not isinstance(headers, str) else headers
        lines = (
            f"{method} {self._target}{path} HTTP/1.1\r\n{self._always}{extra_headers}{length}\r\n"
        )
        return lines.encode("latin-1")

    def _exchange(self, head: bytes, body: bytes, limits: http1.Limits, stream: bool) -> Response:
        """Send a request that may safely be sent twice. `post` describes the rest."""
        force_new, closes = False, self._closes
        while True:
            connection = None if force_new else self._take()
            if connection is None:
                connection = self._connect(limits)
            connection.pool_closes = closes
            try:
                connection.begin(*limits)
                connection.check()
                connection.send(head, body)
                response_head = http1.read_head(connection)
            except ConnectionLost as error:
                connection.close()
                if connection.reused and not error.response_begun:
                    force_new = True
                    continue
                raise connection.lost_error(error) from error
            except BaseException:
                connection.close()
                raise
            response = self._answer(self, connection, response_head)
            if not stream:
                response.read()
            return response

    def close(self) -> None:
        """Close all idle connections. Running exchanges continue, their connections are closed
        after them, and the pool stays usable."""
        with self._lock:
            idle, self._idle = self._idle, []
            self._closes += 1
        for connection in idle:
            connection.close()

    def give_back(self, connection: HttpConnection, headers: Mapping[str, str]) -> None:
        """Take back a connection whose response was read to its end."""
        if not connection.end() or "close" in headers.get("connection", "").lower():
            connection.close()
            return
        connection.reused = True
        connection.idle_since = now = time.monotonic()
        closing: list[HttpConnection] = []
        with self._lock:
            is_closed = connection.pool_closes != self._closes
            (closing if is_closed else self._idle).append(connection)
            while self._idle and (
                len(self._idle) > self.max_idle or now - self._idle[0].idle_since > IDLE_SECONDS
            ):
                closing.append(self._idle.pop(0))
        for idle_connection in closing:
            idle_connection.close()

    def _take(self) -> HttpConnection | None:
        """Return the most recently used idle connection that is still open."""
        if self._pid != os.getpid():
            # After a fork the parent owns these sockets too, so do not close them.
            self._lock, self._idle, self._pid = threading.Lock(), [], os.getpid()
        while self._idle:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            idle_seconds = time.monotonic() - connection.idle_since
            if idle_seconds <= IDLE_SECONDS and not http1.is_ready(connection.sock, 0):
                return connection
            connection.close()  # readable while idle: closed by the peer, or out of sync
        return None

    def _connect(self, limits: http1.Limits) -> HttpConnection:
        _, deadline, cancelled = limits
        deadline = min(time.monotonic() + self.connect_timeout, deadline)
        first_hop = self._proxy or self._server
        sock = http1.connect(first_hop.host, first_hop.port, deadline, cancelled, self._destination)
        connection = HttpConnection(sock, self.address)
        try:
            connection.begin(max(deadline - time.monotonic(), 0.001), deadline, cancelled)
            connection.check()
            if self.tls:
                if self._proxy is not None:
                    self._tunnel(connection, self._proxy)
                self._secure(connection)
            if not connection.end():
                raise Cancelled("The model call was cancelled.")
        except BaseException as error:
            connection.close()
            if isinstance(error, ConnectionLost):
                text = f"Cannot connect to {self._destination}: {error}."
                raise LLMConnectionError(text) from error
            if isinstance(error, LLMTimeout):
                limit = f"within {self.connect_timeout:g} s"
                text = f"{self._destination} did not accept a connection {limit}."
                raise LLMTimeout(text) from None
            raise
        return connection

    def _tunnel(self, connection: HttpConnection, proxy: _Server) -> None:
        """Ask the proxy for a tunnel to the server (RFC 9110 9.3.6)."""
        lines = f"CONNECT {self.address} HTTP/1.1\r\nHost: {self.address}\r\n"
        connection.send(f"{lines}{proxy.authorization}\r\n".encode("latin-1"), b"")
        status, _, rest = http1.read_head(connection)
        if not 200 <= status < 300 or rest:
            hint = " Check the credentials in proxy." if status == 407 else ""
            error = LLMConnectionError(
                f"The proxy {proxy.host}:{proxy.port} refused a tunnel to {self.address}"
                f" ({status}).{hint}"
            )
            error.retryable = status >= 500
            raise error

    def _secure(self, connection: HttpConnection) -> None:
        import ssl

        if self._ssl_context is None:
            with self._lock:
                if self._ssl_context is None:
                    # Loading the certificates takes at least 10 ms, so it is done once per pool.
                    self._ssl_context = ssl.create_default_context()
        connection.apply_timeout()
        try:
            tls_socket = self._ssl_context.wrap_socket(
                connection.sock, server_hostname=self.host, do_handshake_on_connect=False
            )
            connection.replace(tls_socket)
            tls_socket.do_handshake()
        except TimeoutError:
            connection.check()
            raise connection.timeout_error() from None
        except (OSError, ValueError) as error:
            connection.check()
            words = [getattr(error, name, "") for name in ("verify_message", "reason")]
            reason = next(filter(None, words), "") or str(error)
            failure = LLMConnectionError(
                f"The TLS handshake with {self._destination} failed: {reason}."
            )
            failure.retryable = not isinstance(error, ssl.SSLCertVerificationError)
            raise failure from error


def header_text(headers: Mapping[str, str]) -> str:
    """Return header lines, built once for many requests. Raises `ConfigurationError` for a name
    or value that does not fit on one line."""
    lines = [f"{name}: {value}" for name, value in headers.items()]
    for name, line in zip(headers, lines, strict=True):
        if not name or not line.isascii() or set(line) & {"\r", "\n"} or set(name) & {" ", ":"}:
            raise ConfigurationError(
                f"headers: {name!r} takes a name and a value in ASCII, each on one line."
            )
    return "".join([f"{line}\r\n" for line in lines])


class _Server(NamedTuple):
    """A server or a proxy by its URL."""

    tls: bool
    host: str
    port: int
    authorization: str  # the header line for a proxy's credentials

    def __repr__(self) -> str:
        return f"_Server({self.host!r}, {self.port})"


def _split(argument: str, url: str, schemes: tuple[str, ...]) -> _Server:
    takes = " or ".join(f"{scheme}://host[:port]" for scheme in schemes)
    parts = split_url(url)
    if parts is not None and argument == "proxy" and "@" in parts.path + parts.query:
        parts = None  # a / in the password makes urlsplit take the user name for the host
    if parts is None or parts.scheme not in schemes or not parts.hostname:
        hint = " Percent-encode the credentials before the @ (urllib.parse.quote)."
        hint = hint if "@" in url else ""
        raise ConfigurationError(f"{argument} takes {takes}, not {redact_url(url)!r}.{hint}")
    authorization = ""
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = f"Proxy-Authorization: Basic {basic(pair)}\r\n"
    tls = parts.scheme == "https"
    return _Server(tls, parts.hostname, parts.port or (443 if tls else 80), authorization)
