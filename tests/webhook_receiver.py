"""A receiver of webhooks on a real socket, which gives the answers of a test and remembers its
requests."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple

WAIT = 60.0  # seconds: CI is slow


class Delivery(NamedTuple):
    """One webhook request, and the status of its answer."""

    path: str
    headers: dict[str, str]
    body: bytes
    at: float
    status: int

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def conversation(self) -> str:
        return self.json["data"]["conversationId"]

    @property
    def seq(self) -> int:
        return self.json["data"]["seq"]


Answer = Callable[[Delivery], "int | tuple[int, dict[str, str]]"]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    allow_reuse_address = True


class Receiver:
    """A receiver of webhooks: `with Receiver() as receiver: ... receiver.url`.

    `answer` returns the status, and optionally headers; it may take its time.
    """

    def __init__(self, answer: Answer | None = None, *, port: int = 0, tls: Any = None) -> None:
        self.answer: Answer = answer or (lambda _: 204)
        self.deliveries: list[Delivery] = []
        self.changed = threading.Condition()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                if tls is not None:
                    self.request = tls.wrap_socket(self.request, server_side=True)
                super().setup()

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                delivery = Delivery(
                    self.path,
                    {name.lower(): value for name, value in self.headers.items()},
                    body,
                    time.time(),
                    0,
                )
                reply = outer.answer(delivery)
                status, headers = (reply, {}) if isinstance(reply, int) else reply
                # before the answer: a client that is killed now has been counted
                with outer.changed:
                    outer.deliveries.append(delivery._replace(status=status))
                    outer.changed.notify_all()
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                if status != 204:
                    self.send_header("content-length", "2")
                self.end_headers()
                if status != 204:
                    self.wfile.write(b"ok")

            def log_message(self, format: str, *args: object) -> None:
                pass

        class Quiet(_Server):
            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # the client was killed

        self._server = Quiet(("127.0.0.1", port), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    def accepted(self, conversation: str | None = None) -> list[Delivery]:
        """Return the deliveries that were answered with 2xx."""
        with self.changed:
            return [
                one
                for one in self.deliveries
                if one.status < 300 and conversation in (None, one.conversation)
            ]

    def first(self, conversation: str | None = None) -> list[Delivery]:
        """Return the accepted deliveries, without repetitions."""
        return list({one.id: one for one in reversed(self.accepted(conversation))}.values())[::-1]

    def until(self, true: Callable[[], bool], seconds: float = WAIT) -> None:
        """Wait until a condition holds."""
        with self.changed:
            assert self.changed.wait_for(true, seconds), [
                (one.status, one.body[:120]) for one in self.deliveries[-5:]
            ]

    def __enter__(self) -> Receiver:
        self._thread.start()
        return self

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
