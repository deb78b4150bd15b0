"""Connections to an agent server: every method, with whole or streamed responses, over the
keep-alive pool for models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import BadResponse
from holdfast.llm.http import HTTPPool, Response

if TYPE_CHECKING:
    from holdfast.tools import Cancellation


# bytes of one response; more than the largest file or command output in JSON
MAX_RESPONSE_BYTES = 256 * 1024 * 1024


class TooLong(BadResponse):
    """A response that is longer than any of an agent server."""

    retryable = False


class BoundedResponse(Response):
    """A response whose `read` raises `TooLong` after `MAX_RESPONSE_BYTES` bytes."""

    __slots__ = ()

    def read(self) -> bytes:
        """Return the whole body. Raises `TooLong`."""
        if self._body is None:
            found = bytearray()
            try:
                for chunk in self:
                    found += chunk
                    if len(found) > MAX_RESPONSE_BYTES:
                        raise TooLong(
                            f"The server sent an answer of more than {MAX_RESPONSE_BYTES:,} bytes."
                            " The rest was not read."
                        )
            finally:
                self.close()
            self._body = bytes(found)
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
        *,
        read_timeout: float,
        deadline: float,
        cancelled: Cancellation | None = None,
        stream: bool = False,
    ) -> Response:
        """Send a request and return once the response's head is there; without `stream` the body
        too.

        A reused connection may turn out to be closed before any byte of a response. It is
        replaced once, silently, since every request here may be repeated (see `ServerClient`).
        `deadline` is a `time.monotonic()` value. Raises `LLMConnectionError`, `LLMTimeout`,
        `Cancelled`, `BadResponse`.
        """
        length = (
            f"Content-Length: {len(body)}\r\n" if body or method not in ("GET", "DELETE") else ""
        )
        head = (
            f"{method} {self._target}{path} HTTP/1.1\r\n{self._always}{headers}{length}\r\n".encode(
                "latin-1"
            )
        )
        return self._exchange(head, body, (read_timeout, deadline, cancelled), stream)
