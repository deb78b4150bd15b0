"""`ServerClient`: requests to an agent server over HTTP, each of which takes effect once."""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from holdfast.conversation.observer import headers_of
from holdfast.errors import BadResponse, Cancelled, ConfigurationError, LLMError, StoreError
from holdfast.llm.address import split_url
from holdfast.llm.http import HTTPPool, Response, header_text
from holdfast.llm.retry import retry_after
from holdfast.llm.secrets import redact_url
from holdfast.processes import OwnerProcess
from holdfast.remote.failures import failure
from holdfast.tools.trace_headers import trace_headers

if TYPE_CHECKING:
    import ssl

    from holdfast.conversation.observer import Observer
    from holdfast.tools import Cancellation

# The longest first wait before a retry; doubled for each further one.
RETRY_BASE_SECONDS = 0.1
RETRY_CAP_SECONDS = 5.0  # seconds, the longest wait: a restarted server is found soon
# seconds without a byte after which a request is sent again: a lost packet must not use up all of
# the timeout
SILENCE_SECONDS = 20.0
WORKING_SECONDS = 5.0  # seconds after which a failed request counts as having been at work
TEMPORARY_STATUSES = frozenset((408, 425, 429, 502, 503, 504))  # statuses of temporary failures
# bytes of one response; more than the largest file or command output in JSON
MAX_RESPONSE_BYTES = 256 * 1024 * 1024

_log = logging.getLogger("holdfast.remote")

Found = TypeVar("Found")
UNEXPECTED_ANSWER = (
    "sent an answer unlike an agent server's ({}). Is another service at that address?"
)


class TooLong(BadResponse):
    """A response that is longer than any of an agent server."""

    retryable = False


class ResponseLimits(NamedTuple):
    """Limits: seconds between two bytes, the `time.monotonic()` of the end, the cancellation."""

    read_timeout: float
    deadline: float
    cancelled: Cancellation | None = None


class BoundedResponse(Response):
    """A response whose `read` raises `TooLong` after `MAX_RESPONSE_BYTES` bytes."""

    __slots__ = ()

    def read(self) -> bytes:
        if self._body is None:
            body = bytearray()
            try:
                for chunk in self:
                    body += chunk
                    if len(body) > MAX_RESPONSE_BYTES:
                        raise TooLong(
                            f"The server sent an answer of more than {MAX_RESPONSE_BYTES:,} bytes."
                            " The rest was not read."
                        )
            finally:
                self.close()
            self._body = bytes(body)
        return self._body


class ServerPool(HTTPPool):
    """An `HTTPPool` for every method, with read timeouts and bounded responses."""

    _answer = BoundedResponse

    def request(
        self,
        method: str,
        path: str,
        body: bytes,
        headers: str,
        limits: ResponseLimits,
        stream: bool = False,
    ) -> Response:
        """Send a request and return when the response's head has arrived; without `stream` the body
        too.

        A reused connection that proves closed before any byte of a response is replaced once,
        silently. Every request here may be repeated (see `ServerClient`). Raises
        `LLMConnectionError`, `LLMTimeout`, `Cancelled`, `BadResponse`.
        """
        counted = body or method not in ("GET", "DELETE")
        length = f"Content-Length: {len(body)}\r\n" if counted else ""
        head = f"{method} {self._target}{path} HTTP/1.1\r\n{self._always}{headers}{length}\r\n"
        return self._exchange(head.encode("latin-1"), body, limits, stream)


class ServerClient:
    """An agent server's address and key, and a pool of connections to it. Thread-safe; starts no
    thread.

    `request` retries temporary failures within `timeout` seconds in all. Reads and repeatable
    requests are retried unchanged. Other requests carry an `Idempotency-Key`, so that the server
    acts once. Redirects are not followed. `timeouts` are those of a connection and of a request, in
    seconds.
    """

    def __init__(
        self,
        url: str,
        key: str,
        timeouts: tuple[float, float],
        ssl_context: ssl.SSLContext | None,
        observers: Sequence[Observer] = (),
    ) -> None:
        parts = split_url(url) if isinstance(url, str) else None  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
        web = parts is not None and parts.scheme in ("http", "https") and parts.hostname
        if parts is None or not web or parts.query or parts.fragment:
            raise ConfigurationError(
                "RemoteWorkspace: url takes an agent server's address such as"
                f" 'http://127.0.0.1:8765', not {redact_url(url)!r}."
            )
        if parts.username is not None:
            raise ConfigurationError(
                "RemoteWorkspace: url takes no user and password; give the server's key as key."
            )
        if not isinstance(key, str) or not key.strip():  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
            raise ConfigurationError(
                "RemoteWorkspace: key takes the agent server's key, which `holdfast serve` prints"
                " when it starts."
            )
        try:
            self._headers = header_text(
                {"Authorization": f"Bearer {key.strip()}", "Accept": "application/json"}
            )
        except ConfigurationError:  # the original error would show the key
            raise ConfigurationError("RemoteWorkspace: key takes one line of ASCII.") from None
        self._prefix = quote(parts.path.rstrip("/"), safe="/%:@!$&'()*+,;=~")
        origin = f"{parts.scheme}://{parts.netloc}"
        self._pool = ServerPool(origin, timeout=timeouts, ssl_context=ssl_context)
        self.address = f"{origin}{parts.path.rstrip('/')}"
        self.timeout = timeouts[1]
        self._lock = threading.Lock()
        self.owner = OwnerProcess()
        self._users = 0  # number of open conversations
        self._observers = observers

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, object] | None = None,
        client: str = "",
        idempotency_key: str | None = None,
        timeout: float | None = None,
        patience: float | None = None,
        cancelled: Cancellation | None = None,
        raw: bytes | None = None,
    ) -> Response:
        """Send a request and return a successful response. Raises the error that the server names,
        `StoreError` if it cannot be reached, `Cancelled`.

        Args:
            body: Sent as JSON.
            idempotency_key: The `Idempotency-Key`; by default a POST gets a random one.
            timeout: Seconds for all attempts together; None takes the client's. With `patience` it
                counts from the failure of an attempt.
            patience: Seconds for each attempt of a request that runs for long.
            raw: A text body, sent unchanged instead of `body`.
        """
        data = raw if raw is not None else b"" if body is None else _encode(body, path)
        kind = "text/plain" if raw is not None else "application/json"
        headers = self._head(client) + (f"Content-Type: {kind}\r\n" if data else "")
        if method == "POST":
            headers += f"Idempotency-Key: {idempotency_key or os.urandom(16).hex()}\r\n"
        target = self._target(path, query)
        timeout = self.timeout if timeout is None else timeout
        deadline = time.monotonic() + timeout
        number = 0
        while True:
            began = time.monotonic()
            until = deadline if patience is None else began + patience
            silence = min(SILENCE_SECONDS, until - began) if patience is None else patience
            delay: float | None = None
            cause: LLMError | None = None
            try:
                limits = ResponseLimits(max(silence, 0.001), until, cancelled)
                response = self._pool.request(method, target, data, headers, limits)
                status = response.status
                answer = b"" if 200 <= status < 300 else response.read()
            except Cancelled:
                raise
            except LLMError as broken:
                cause, error, final = broken, self._unreachable(broken), not broken.retryable
            else:
                if 200 <= status < 300:
                    return response
                error = failure(status, answer, self.address, f"{method} {path}")
                final = status not in TEMPORARY_STATUSES
                delay = retry_after(response.headers, status=status)
            if final:
                raise error from cause
            now = time.monotonic()
            if patience is not None and now >= until:  # its time is used up
                raise error from cause
            connecting = max(WORKING_SECONDS, self._pool.connect_timeout + 1.0)
            if patience is not None and now - began > connecting:  # the attempt was at work
                deadline, number = now + timeout, 0
            wait = pause(number, delay)
            if time.monotonic() + wait >= deadline:
                raise error from cause
            number += 1
            _log.info("%s %s: %s Trying again in %.1f s.", method, path, error, wait)
            if cancelled is None:
                time.sleep(wait)
            elif cancelled.wait(wait):
                raise Cancelled("The request was cancelled.")

    def read(
        self,
        decode: Callable[[bytes], Found],
        method: str,
        path: str,
        body: Any = None,
        **options: Any,
    ) -> Found:
        """Send a request and return the decoded body. Raises `StoreError` if `decode` fails."""
        answer = self.request(method, path, body, **options).read()
        try:
            return decode(answer)
        except (ValueError, RecursionError) as error:
            unexpected = f"{self.address} {UNEXPECTED_ANSWER.format(error)}"
            raise StoreError(f"{method} {path}: {unexpected}") from error

    @contextmanager
    def stream(
        self, path: str, after_seq: int, client: str, silence: float, cancelled: Cancellation
    ) -> Generator[Iterator[bytes]]:
        """Yield the bytes of the stream of events after `after_seq`; end it after `silence`
        seconds without any. One attempt; raises as `request`."""
        head = self._head(client).replace("Accept: application/json", "Accept: text/event-stream")
        head += header_text({"Last-Event-ID": str(after_seq)})
        target = self._target(path, {"after_seq": after_seq})
        with self._translate_errors():
            limits = ResponseLimits(silence, float("inf"), cancelled)
            response = self._pool.request("GET", target, b"", head, limits, stream=True)
            answer = b"" if response.status == 200 else response.read()
        if response.status != 200:
            error = failure(response.status, answer, self.address, f"GET {path}")
            passing = response.status in TEMPORARY_STATUSES or response.status >= 500
            raise StoreError(str(error)) if passing else error
        try:
            with self._translate_errors():
                yield iter(response)
        finally:
            response.close()

    @contextmanager
    def _translate_errors(self) -> Generator[None]:
        try:
            yield
        except Cancelled:
            raise
        except LLMError as broken:
            raise self._unreachable(broken) from broken

    def opened(self) -> None:
        """Count a conversation that begins to use the server."""
        with self._lock:
            self._users += 1

    def closed(self) -> None:
        """Count a conversation that closed; the last one closes the idle connections."""
        with self._lock:
            self._users -= 1
            last = not self._users
        if last:
            self.close()

    def close(self) -> None:
        """Close idle connections. The client can be used again."""
        self._pool.close()

    def _head(self, client: str) -> str:
        traced = headers_of(self._observers) if self._observers else trace_headers()
        head = f"{self._headers}{header_text(traced)}" if traced else self._headers
        return f"{head}X-Holdfast-Client: {client}\r\n" if client else head

    def _target(self, path: str, query: Mapping[str, object] | None) -> str:
        fields = {name: value for name, value in (query or {}).items() if value is not None}
        return f"{self._prefix}{path}{'?' + urlencode(fields, doseq=True) if fields else ''}"

    def _unreachable(self, error: LLMError) -> StoreError:
        words = str(error).replace("base_url", "url")
        return StoreError(f"The agent server {self.address} could not be reached: {words}")

    def __repr__(self) -> str:
        return f"ServerClient({self.address!r})"

    def __reduce__(self) -> Any:
        raise TypeError(
            "A client of an agent server holds its key and is not pickled; make another"
            " RemoteWorkspace(url, key) there."
        )


def _encode(body: Any, path: str) -> bytes:
    try:
        return msgspec.json.encode(body)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"A request to {path} must be valid JSON: {error}.") from error


def conversation_path(id: str) -> str:
    return f"/api/conversations/{quote(id, safe='')}"


def pause(number: int, delay: float | None = None) -> float:
    """Return the seconds before retry `number` (from 0), with full jitter; at least the seconds
    that the server asked for."""
    jitter = random.random() * min(RETRY_CAP_SECONDS, RETRY_BASE_SECONDS * 2 ** min(number, 20))
    return jitter if delay is None else max(delay, 0.0) + jitter


def send_until_answered(
    send: Callable[[], object], ended: Cancellation, stopped: Callable[[], bool]
) -> None:
    """Call `send` until the server answers. Raises its refusal, or the `StoreError` of an
    unreachable server once `ended` is cancelled or `stopped` returns True."""
    number = 0
    while True:
        try:
            send()
            return
        except StoreError as error:
            if type(error) is not StoreError or ended or stopped():
                raise
        ended.wait(pause(number))
        number += 1
