"""Connections to an agent server: any method, answers whole or as a stream, over the keep-alive
pool that models are asked through."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import BadResponse
from holdfast.llm.http import HTTPPool, Response

if TYPE_CHECKING:
    from holdfast.tools import Cancellation


# bytes of one answer: more than the largest file, and than the largest output of a command, in JSON
MOST = 256 * 1024 * 1024


class TooLong(BadResponse):
    """An answer that is longer than any that an agent server gives."""

    retryable = False


class Bounded(Response):
    """A response whose body is read whole only up to `MOST` bytes. Then raises `TooLong`."""

    __slots__ = ()

    def read(self) -> bytes:
        """As `Response.read`."""
        if self._body is None:
            found = bytearray()
            try:
                for chunk in self:
                    found += chunk
                    if len(found) > MOST:
                        raise TooLong(
                            f"It sent an answer of more than {MOST:,} bytes, which was not read"
                            " further."
                        )
            finally:
                self.close()
            self._body = bytes(found)
        return self._body


class Pool(HTTPPool):
    """`HTTPPool` for every method, with a read timeout for each request, and a bound on answers."""

    _answer = Bounded

    def request(
        self,
        method: str,
        path: str,
        body: bytes,
        headers: str,
        *,
        read_timeout: float,
        deadline: float,
        cancelled: Cancellation | None = None,
        stream: bool = False,
    ) -> Response:
        """Send a request and return once the response's head is there; without `stream` the body
        too.

        A reused connection that turns out to be closed before any byte of a response is replaced
        once, silently, as every method here may be repeated: see `Link`. `deadline` is a
        `time.monotonic()` value. Raises `LLMConnectionError`, `LLMTimeout`, `Cancelled`,
        `BadResponse`.
        """
        length = (
            f"Content-Length: {len(body)}\r\n" if body or method not in ("GET", "DELETE") else ""
        )
        head = (
            f"{method} {self._target}{path} HTTP/1.1\r\n{self._always}{headers}{length}\r\n".encode(
                "latin-1"
            )
        )
        return self._exchange(head, body, read_timeout, deadline, cancelled, stream)
