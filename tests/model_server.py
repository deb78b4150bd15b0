"""A model server on loopback, for tests: real sockets, HTTP/1.1 keep-alive, and every fault that a
provider has shown.

    with ModelServer([text("hi"), sse(...), (429, {"retry-after": "1"}, b"slow down"), Drop()]) as
    server:
        LLM("m", base_url=server.url).completion("hello")
        server.requests[0].json["messages"]

The n-th request gets the n-th response. A callable instead of the list is called for each request,
with the `Request`. A response is

- a dict or list: JSON, status 200
- a str: the text of an event stream, status 200
- a list of bytes within `Stream`: the pieces of an event stream, each in a chunk of its own
- bytes: sent raw instead of any HTTP response
- `(status, headers, body)`: body a str, bytes, dict or list
- `Drop()`, `Stall(seconds)`, `Truncated(response, at)`: faults
- a callable of the `Request` that returns one of these

A request without a response gets a 500 that says so. `connections` counts the accepted connections.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Request:
    """A request of a client. Header names are in lower case."""

    number: int
    path: str
    headers: dict[str, str]
    body: bytes
    at: float = field(default_factory=time.monotonic)
    method: str = "POST"

    @cached_property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def messages(self) -> list[dict[str, Any]]:
        return self.json["messages"]


@dataclass
class Drop:
    """Close the connection without a byte."""


@dataclass
class Stall:
    """Send nothing for `seconds` or until the server stops, then close. `first` is raw bytes that
    are sent before."""

    seconds: float = 30.0
    first: bytes = b""


@dataclass
class Stream:
    """An event stream in these pieces, one chunk each, `delay` seconds apart."""

    pieces: list[bytes]
    delay: float = 0.0
    end: bool = True  # False: break off without the last chunk


@dataclass
class Truncated:
    """The first `at` bytes of an answer whose headers announce all of it."""

    response: dict[str, Any] | str
    at: int


def text(content: str, **more: Any) -> dict[str, Any]:
    """Return a plain chat completion with the text `content`."""
    return chat({"role": "assistant", "content": content}, "stop", **more)


def calls(
    *pairs: tuple[str, dict[str, Any] | str], content: str | None = None, prefix: str = "call"
) -> dict[str, Any]:
    """Return a plain chat completion that calls tools. Arguments are a dict, or a str that is sent
    unchanged."""
    entries = [
        {
            "id": f"{prefix}_{number}",
            "type": "function",
            "function": {
                "name": name,
                "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments),
            },
        }
        for number, (name, arguments) in enumerate(pairs)
    ]
    return chat({"role": "assistant", "content": content, "tool_calls": entries}, "tool_calls")


def chat(message: dict[str, Any], finish: str, **more: Any) -> dict[str, Any]:
    """Return a plain chat completion around `message`."""
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    choices = [{"index": 0, "message": message, "finish_reason": finish}]
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": "mock",
        "choices": choices,
        "usage": usage,
        **more,
    }


def sse(completion: dict[str, Any], size: int = 5) -> str:
    """Return a plain chat completion as the event stream that OpenAI would send for it, its texts
    in pieces of `size` characters."""
    choice = completion["choices"][0]
    message = choice["message"]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    content = message.get("content") or ""
    deltas += [{"content": content[at : at + size]} for at in range(0, len(content), size)]
    for index, call in enumerate(message.get("tool_calls") or []):
        function = call["function"]
        deltas.append(
            {"tool_calls": [{**call, "index": index, "function": {**function, "arguments": ""}}]}
        )
        arguments = function["arguments"]
        for at in range(0, len(arguments), size):
            deltas.append(
                {
                    "tool_calls": [
                        {"index": index, "function": {"arguments": arguments[at : at + size]}}
                    ]
                }
            )
    base = {"id": completion["id"], "object": "chat.completion.chunk", "model": completion["model"]}
    chunks = [
        {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        for delta in deltas
    ]
    chunks.append(
        {**base, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]}
    )
    chunks.append({**base, "choices": [], "usage": completion["usage"]})
    return (
        "".join(f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n" for chunk in chunks)
        + "data: [DONE]\n\n"
    )


class ModelServer:
    """The server, a context manager. `url` is its base URL (`.../v1`); `requests` are the requests
    received."""

    def __init__(
        self, responses: Iterable[Any] | Callable[[Request], Any] = (), *, tls: Any = None
    ) -> None:
        self.requests: list[Request] = []
        self.connections = 0
        self.stopping = threading.Event()
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._responses = responses if callable(responses) else list(responses)
        self._tls = tls
        self._server = _Server(self, tls)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), name="model-server", daemon=True
        )

    @property
    def port(self) -> int:
        return self._server.server_address[1]

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}/v1"

    def add(self, *responses: Any) -> None:
        """Append responses to the list."""
        assert isinstance(self._responses, list)
        self._responses.extend(responses)

    def drop_connections(self) -> None:
        """Close every open connection, as a server does with idle ones."""
        with self._lock:
            connections = list(self._open)
        for connection in connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        until = time.monotonic() + 20
        while self._open and time.monotonic() < until:
            time.sleep(0.002)

    def start(self) -> ModelServer:
        self._thread.start()
        return self

    def stop(self) -> None:
        self.stopping.set()
        self._server.shutdown()
        self._server.server_close()
        self.drop_connections()
        self._thread.join()

    def __enter__(self) -> ModelServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- for the handlers ---

    def accept(
        self, path: str, headers: dict[str, str], body: bytes, method: str = "POST"
    ) -> tuple[Request, Any]:
        """Record a request and return its response."""
        with self._lock:
            request = Request(len(self.requests), path, headers, body, method=method)
            self.requests.append(request)
        responses = self._responses
        if callable(responses):
            return request, responses(request)
        if request.number < len(responses):
            return request, responses[request.number]
        return request, (
            500,
            {},
            {"error": {"message": f"ModelServer has no response number {request.number}"}},
        )


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 512

    def __init__(self, owner: ModelServer, tls: Any) -> None:
        self.owner = owner
        self.tls = tls
        super().__init__(("127.0.0.1", 0), _Handler)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        if self.tls:
            try:
                request = self.tls.wrap_socket(request, server_side=True)
            except OSError:
                request.close()
                return
        with self.owner._lock:
            self.owner._open.add(request)
            self.owner.connections += 1
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self.owner._lock:
                self.owner._open.discard(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # many tests have a client that closes early


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # with the default of 0 every header line is a packet
    disable_nagle_algorithm = True
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        request, response = self.server.owner.accept(
            self.path, {k.lower(): v for k, v in self.headers.items()}, body, self.command
        )
        while callable(response):
            response = response(request)
        self._answer(response)

    do_GET = do_POST  # noqa: N815 - a background answer is fetched

    def _answer(self, response: Any) -> None:
        match response:
            case Drop():
                self._hang_up()
            case Stall(seconds, first):
                self.wfile.write(first)
                self.wfile.flush()
                self.server.owner.stopping.wait(seconds)
                self._hang_up()
            case bytes():
                self.wfile.write(response)
                self._hang_up()
            case Truncated(whole, at):
                kind = "text/event-stream" if isinstance(whole, str) else "application/json"
                self._send(200, {"content-type": kind}, _bytes(whole), at)
                self._hang_up()
            case Stream(pieces, delay, end):
                self._stream(pieces, delay, end)
            case str():
                self._stream([response.encode()], 0.0, True)
            case (int() as status, dict() as headers, content):
                self._send(status, headers, _bytes(content))
            case _:
                self._send(200, {"content-type": "application/json"}, _bytes(response))

    def _send(
        self, status: int, headers: dict[str, str], body: bytes, at: int | None = None
    ) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if at is None else body[:at])
        self.wfile.flush()

    def _stream(self, pieces: list[bytes], delay: float, end: bool) -> None:
        self.send_response_only(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for piece in pieces:
            if piece:
                self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                self.wfile.flush()
            if delay:
                time.sleep(delay)
        if end:
            self.wfile.write(b"0\r\n\r\n")
            self.wfile.flush()
        else:
            self._hang_up()

    def _hang_up(self) -> None:
        self.wfile.flush()
        self.close_connection = True
        try:
            self.connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


def _bytes(body: Any) -> bytes:
    if isinstance(body, bytes):
        return body
    return body.encode() if isinstance(body, str) else json.dumps(body).encode()
