"""Connections to an agent server: any method, answers whole or as a stream, over the keep-alive pool that models are asked through."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.llm.http import HTTPPool, Response
from holdfast.llm.http1 import ConnectionLost, lost, read_head

if TYPE_CHECKING:
    from holdfast.tools import Cancellation


class Pool(HTTPPool):
    """`HTTPPool` for every method, with a read timeout for each request."""

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
        """Send a request and return once the response's head is there; without `stream` the body too.

        A reused connection that turns out to be closed before any byte of a response is replaced once, silently, as every method here may
        be repeated: see `Link`. `deadline` is a `time.monotonic()` value. Raises `LLMConnectionError`, `LLMTimeout`, `Cancelled`, `BadResponse`.
        """
        length = f"Content-Length: {len(body)}\r\n" if body or method not in ("GET", "DELETE") else ""
        head = f"{method} {self._target}{path} HTTP/1.1\r\n{self._always}{headers}{length}\r\n".encode("latin-1")
        fresh = False
        while True:
            connection = None if fresh else self._take()
            if connection is None:
                connection = self._connect(deadline, cancelled)
            try:
                connection.begin(read_timeout, deadline, cancelled)
                connection.check()
                connection.send(head, body)
                status, received, first = read_head(connection)
            except ConnectionLost as error:
                connection.close()
                if connection.reused and not error.begun:
                    fresh = True
                    continue
                raise lost(connection, error) from error
            except BaseException:
                connection.close()
                raise
            response = Response(self, connection, status, received, first)
            if not stream:
                response.read()
            return response
