"""Tests of HTTP responses of an MCP server that attack the process that reads them."""

from __future__ import annotations

import contextlib
import gzip
import http.server
import json
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from holdfast.errors import ToolError, ToolTimeout
from holdfast.tools.mcp import MCPClient, connection, http_bodies

RESULT = '{"content":[{"type":"text","text":"fine"}]}'
EVENTS = "text/event-stream"

# A function of a request's id that returns the raw bytes of the HTTP response.
Answer = Callable[[int], Iterable[bytes]]


def message(id: Any, result: str = RESULT) -> bytes:
    return f'{{"jsonrpc":"2.0","id":{id},"result":{result}}}'.encode()


def response(body: bytes, *fields: str, kind: str = "application/json") -> list[bytes]:
    head = ["HTTP/1.1 200 OK", f"Content-Type: {kind}", f"Content-Length: {len(body)}", *fields]
    return ["\r\n".join([*head, "", ""]).encode(), body]


@contextlib.contextmanager
def served(answers: dict[str, Answer]) -> Iterator[tuple[str, list[str]]]:
    """Yield the URL of a server with these tools, and the encodings that its requests accept."""
    accepted: list[str] = []
    fixed: dict[str, Any] = {
        "initialize": {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "raw", "version": "1"},
        },
        "tools/list": {
            "tools": [{"name": name, "inputSchema": {"type": "object"}} for name in answers]
        },
    }

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            accepted.append(self.headers["accept-encoding"])
            id, method = request.get("id"), request.get("method")
            if method == "tools/call":
                parts = answers[request["params"]["name"]](id)
            elif method in fixed:
                parts = response(message(id, json.dumps(fixed[method])))
            else:
                error = {"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "no"}}
                parts = response(json.dumps(error).encode())
            with contextlib.suppress(OSError):  # the client hangs up
                for part in parts:
                    self.wfile.write(part)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/mcp", accepted
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60)


def good(id: int) -> Iterable[bytes]:
    return response(message(id))


def problem_of(answer: Answer) -> str:
    """Return the error of a call with this answer. The next call on the connection works."""
    with (
        served({"bad": answer, "good": good}) as (url, _),
        MCPClient({"raw": {"url": url}}, call_timeout=60.0) as client,
    ):
        bad, other = client.tools()
        with pytest.raises(ToolError) as caught:
            bad.run({})
        assert not isinstance(caught.value, ToolTimeout)
        assert other.run({}).text == "fine"
        return str(caught.value)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_bodies, "MAX_MESSAGE_BYTES", 1_000_000)
    monkeypatch.setattr(http_bodies, "_MAX_SEPARATORS", 10_000)


def test_an_answer_may_be_compressed() -> None:
    def compressed(id: int) -> Iterable[bytes]:
        return response(gzip.compress(message(id)), "Content-Encoding: gzip")

    def deflated(id: int) -> Iterable[bytes]:
        body = b"data: " + message(id) + b"\n\n"
        return response(zlib.compress(body), "Content-Encoding: deflate", kind=EVENTS)

    with (
        served({"gzip": compressed, "deflate": deflated}) as (url, accepted),
        MCPClient({"raw": {"url": url}}) as client,
    ):
        assert [one.run({}).text for one in client.tools()] == ["fine", "fine"]
        assert set(accepted) == {"gzip, deflate"}


@pytest.mark.parametrize("kind", ["application/json", EVENTS])
def test_a_compressed_answer_is_read_no_further_than_its_bound(small: None, kind: str) -> None:
    squeeze = zlib.compressobj(1, zlib.DEFLATED, 31)
    bomb = b"".join(squeeze.compress(bytes(1_000_000)) for _ in range(20)) + squeeze.flush()
    problem = problem_of(lambda _: response(bomb, "Content-Encoding: gzip", kind=kind))
    if kind != EVENTS:
        assert "it has more than 1,000,000 bytes" in problem


@pytest.mark.parametrize(
    ("body", "encoding", "problem"),
    [
        (b"no gzip", "gzip", "its compression is damaged"),
        (b"anything", "br", "it has the content coding 'br'"),
        (b"anything", "gzip, gzip", "it has the content coding 'gzip, gzip'"),
    ],
    ids=["damaged", "unknown", "twice"],
)
def test_a_compression_that_cannot_be_read_is_named(
    body: bytes, encoding: str, problem: str
) -> None:
    assert problem in problem_of(lambda _: response(body, f"Content-Encoding: {encoding}"))


def test_a_body_that_never_ends_is_given_up(small: None) -> None:
    def endless(_: int) -> Iterable[bytes]:
        yield b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"
        while True:
            yield b" " * 10_000

    assert "it has more than 1,000,000 bytes" in problem_of(endless)


def test_empty_lines_in_json_do_not_hide_its_values(small: None) -> None:
    values = ",\n\n".join(["[]"] * 6_000)
    result = f'{{"content":[],"structuredContent":{{"a":[{values}]}}}}'
    problem = problem_of(lambda number: response(message(number, result)))
    assert "it has more than 10,000 JSON values" in problem


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"], ids=["lf", "crlf", "cr"])
def test_the_bounds_are_those_of_one_event(small: None, end: bytes) -> None:
    notification = {
        "jsonrpc": "2.0",
        "method": "notifications/message",
        "params": {"level": "info", "data": [[]] * 3_000},
    }

    def events(id: int) -> Iterable[bytes]:
        texts = [json.dumps(notification).encode()] * 10 + [message(id)]
        return response(b"".join(b"data: " + text + end for text in texts), kind=EVENTS)

    with (
        served({"events": events}) as (url, _),
        MCPClient({"raw": {"url": url}}, call_timeout=60.0) as client,
    ):
        assert client.tools()[0].run({}).text == "fine"


@pytest.mark.parametrize(
    "id",
    ["99999", '"other"', "null", "[1]", "true", "9" * 5_000],
    ids=["number", "text", "null", "list", "true", "digits"],
)
def test_an_answer_with_a_wrong_id_is_its_calls_error_at_once(id: str) -> None:
    assert "its answer cannot be read" in problem_of(lambda _: response(message(id)))


def test_an_error_without_an_id_is_the_error_of_its_own_request() -> None:
    """Check the error, also while other requests have no answer yet."""
    release = threading.Event()

    def slow(id: int) -> Iterable[bytes]:
        release.wait(60)
        return response(message(id))

    def refused(_: int) -> Iterable[bytes]:
        return response(b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"what?"}}')

    with (
        served({"slow": slow, "refused": refused}) as (url, _),
        MCPClient({"raw": {"url": url}}, call_timeout=60.0) as client,
    ):
        waiting, failing = client.tools()
        texts: list[str] = []
        thread = threading.Thread(target=lambda: texts.append(waiting.run({}).text))
        thread.start()
        try:
            with pytest.raises(ToolError, match="what"):
                failing.run({})
        finally:
            release.set()
            thread.join(60)
        assert texts == ["fine"]


def test_a_list_that_is_too_long_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_MAX_TOOLS", 3)
    with (
        served({f"t{n}": good for n in range(5)}) as (url, _),
        MCPClient({"raw": {"url": url}}) as client,
    ):
        assert [one.name for one in client.tools()] == ["raw.t0", "raw.t1", "raw.t2"]
        [problem] = client.errors.values()
        assert "its server lists more than 3" in problem
