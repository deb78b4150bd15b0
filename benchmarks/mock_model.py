"""A model server on loopback that answers at once: Chat Completions over keep-alive connections, in
a process of its own.

    POST /{calls}/{width}/{delay}/chat/completions

answers with tool calls, `width` at once, until `calls` of them have been made, and with a text from
then on. An answer takes `delay` milliseconds. The server parses nothing: the calls are numbered,
and the number of the last one is in the last bytes of the request, so that a request costs the same
however long the history is. A request for a stream gets one.

Prints its port; ends when its stdin does, so that it never outlives the benchmark.

    POST /{answer}/{delay}/anything, to `mock_model.py canned [CERTIFICATE]`

answers with prepared bytes. The first line of stdin describes them as JSON: {answer: {"head",
"pieces", "pace"}}. The pieces of a stream go out at once, or each in a packet of its own with
`pace` seconds before it. The answer `silence` sends nothing, and `stats` reports the connections
made, the connections open, and the requests. Prints its ports: for HTTP, for TLS, and of a proxy to
both, which only forwards bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import heapq
import json
import os
import select
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

TOOL = "look_up"
TAIL = 16384  # bytes at the end of a request in which its last tool result begins
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\n%s\r\n"
USAGE = b'"usage":{"prompt_tokens":1200,"completion_tokens":24,"total_tokens":1224}'


def arguments(number: int) -> bytes:
    """Return the arguments of call `number`."""
    return b'{"key":"item-%d","limit":3}' % number


def call(number: int) -> bytes:
    """Return call `number` in the form that an answer has."""
    quoted = arguments(number).replace(b'"', b'\\"')
    return b'{"id":"call_%d","type":"function","function":{"name":"%s","arguments":"%s"}}' % (
        number,
        TOOL.encode(),
        quoted,
    )


def plain(first: int, calls: int, width: int) -> bytes:
    """Return an answer in one piece."""
    message, reason = b'"content":"That is all there is to say about these items."', b"stop"
    if first < calls:
        message, reason = (
            b'"content":null,"tool_calls":['
            + b",".join(call(first + n) for n in range(width))
            + b"]",
            b"tool_calls",
        )
    body = (
        b'{"id":"chatcmpl-%d","object":"chat.completion","created":1760000000,"model":"mock","choices":[{"index":0,"message":'
        b'{"role":"assistant",%s},"finish_reason":"%s"}],%s}' % (first, message, reason, USAGE)
    )
    return HEAD % (b"application/json", b"Content-Length: %d\r\n" % len(body)) + body


def streamed(first: int, calls: int, width: int) -> bytes:
    """Return an answer in ten or more server-sent events, each in an HTTP chunk of its own, sent at
    once."""
    deltas = [b'{"role":"assistant","content":""}']
    if first < calls:
        for index in range(width):
            start = b'{"index":%d,"id":"call_%d","type":"function","function":{"name":"%s","arguments":""}}'
            deltas.append(
                b'{"tool_calls":[' + start % (index, first + index, TOOL.encode()) + b"]}"
            )
            text = arguments(first + index)
            for at in range(0, len(text), 5):
                piece = text[at : at + 5].replace(b'"', b'\\"')
                deltas.append(
                    b'{"tool_calls":[{"index":%d,"function":{"arguments":"%s"}}]}' % (index, piece)
                )
    else:
        deltas += [
            b'{"content":"%s"}' % word for word in (b"That ", b"is ", b"all ", b"there ", b"is.")
        ]
    reason = b"tool_calls" if first < calls else b"stop"
    shell = (
        b"data:"
        b' {"id":"chatcmpl-%d","object":"chat.completion.chunk","created":1760000000,"model":"mock",'
        % first
    )
    events = [
        shell + b'"choices":[{"index":0,"delta":%s,"finish_reason":null}]}\n\n' % delta
        for delta in deltas
    ]
    events.append(shell + b'"choices":[{"index":0,"delta":{},"finish_reason":"%s"}]}\n\n' % reason)
    events.append(shell + b'"choices":[],%s}\n\n' % USAGE)
    events.append(b"data: [DONE]\n\n")
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(event), event) for event in events) + b"0\r\n\r\n"
    return HEAD % (b"text/event-stream", b"Transfer-Encoding: chunked\r\n") + chunks


class Exchange(asyncio.Protocol):
    """One connection: answers each request after its last byte has arrived."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.head = b""  # the head of a request whose body has not begun
        self.remaining = 0  # bytes of the body that are still to come
        self.tail = b""
        self.path = b""

    def data_received(self, data: bytes) -> None:
        if self.remaining:
            self.remaining -= len(data)
            self.tail = (self.tail + data)[-TAIL:]
        else:
            self.head += data
            end = self.head.find(b"\r\n\r\n")
            if end < 0:
                return
            head, self.tail = self.head[:end].lower(), self.head[end + 4 :]
            at = head.index(b"content-length:") + 15
            self.remaining = int(head[at:].split(b"\r\n", 1)[0]) - len(self.tail)
            self.path = head.split(b" ", 2)[1]
            self.head, self.tail = b"", self.tail[-TAIL:]
        if not self.remaining:
            self.answer()

    def answer(self) -> None:
        calls, width, delay = map(int, self.path.split(b"/")[1:4])
        at = self.tail.rfind(b'"tool_call_id":"call_')
        # A user message after the last result begins a new count.
        fresh = at < 0 or self.tail.rfind(b'"role":"user"') > at
        first = 0 if fresh else int(self.tail[at + 21 :].split(b'"', 1)[0]) + 1
        make = streamed if b'"stream":true' in self.tail else plain
        if delay:
            asyncio.get_running_loop().call_later(
                delay / 1000, self.send, make(first, calls, width)
            )
        else:
            self.send(make(first, calls, width))

    def send(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(data)  # asyncio sets TCP_NODELAY


async def serve() -> None:
    server = await asyncio.get_running_loop().create_server(Exchange, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def end_with_stdin() -> None:
    sys.stdin.read()
    os._exit(0)


# --- prepared answers ---


class Canned:
    """A server of prepared answers on one thread with epoll: a third of the cost of asyncio per
    request, so that 200 clients do not wait for it."""

    def __init__(self, answers: dict[str, Any], certificate: str) -> None:
        self.answers: dict[bytes, tuple[list[bytes], float]] = {}
        for name, answer in answers.items():
            pieces = [piece.encode() for piece in answer["pieces"]]
            if answer["pace"]:
                packets = [answer["head"].encode(), *pieces]
            else:
                packets = [answer["head"].encode() + b"".join(pieces)]
            self.answers[name.encode()] = (packets, answer["pace"])
        self.poll = select.epoll()
        self.ready: dict[int, Callable[[], None]] = {}  # by file descriptor
        self.timers: list[tuple[float, int, Callable[[], None]]] = []
        self.accepted = self.open = self.requests = 0
        self.tls: ssl.SSLContext | None = None
        if certificate:
            self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.tls.load_cert_chain(certificate)

    def listen(self, accept: Callable[[socket.socket], None]) -> int:
        listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        listener.setblocking(False)

        def accept_one() -> None:
            sock, _ = listener.accept()
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setblocking(False)
            accept(sock)

        self.watch(listener, accept_one)
        return listener.getsockname()[1]

    def watch(self, sock: socket.socket, ready: Callable[[], None]) -> None:
        self.ready[sock.fileno()] = ready
        self.poll.register(sock, select.EPOLLIN)

    def drop(self, sock: socket.socket) -> None:
        if sock.fileno() >= 0:
            del self.ready[sock.fileno()]
            self.poll.unregister(sock)
            sock.close()

    def run(self) -> None:
        while True:
            wait = -1 if not self.timers else max(0.0, self.timers[0][0] - time.monotonic())
            for number, _ in self.poll.poll(wait):
                ready = self.ready.get(number)
                if ready is not None:
                    ready()
            while self.timers and self.timers[0][0] <= time.monotonic():
                heapq.heappop(self.timers)[2]()

    def accept(self, sock: socket.socket) -> None:
        self.accepted += 1
        self.open += 1
        self.watch(sock, CannedExchange(self, sock).read)

    def accept_tls(self, sock: socket.socket) -> None:
        assert self.tls is not None
        self.accept(self.tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False))

    def accept_proxied(self, sock: socket.socket) -> None:
        """Accept a connection to the proxy. Its first line has the target; from then on bytes are
        forwarded both ways. The servers here read a whole URL as a plain path."""

        def begin() -> None:
            head = sock.recv(262144)
            if not head:
                self.drop(sock)
                return
            target = head.split(b" ", 2)[1]
            port = target.split(b"/")[2] if b"/" in target else target
            other = socket.create_connection(("127.0.0.1", int(port.rpartition(b":")[2])))
            other.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            other.setblocking(False)
            if head.startswith(b"CONNECT"):
                send(sock, b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                send(other, head)
            self.ready[sock.fileno()] = lambda: forward(sock, other)
            self.watch(other, lambda: forward(other, sock))

        def forward(one: socket.socket, other: socket.socket) -> None:
            try:
                data = one.recv(262144)
                if data:
                    send(other, data)
                    return
            except BlockingIOError:
                return
            except OSError:
                pass
            self.drop(one)
            self.drop(other)

        self.watch(sock, begin)


class CannedExchange:
    """One connection, and the request that is arriving."""

    __slots__ = ("head", "path", "remaining", "server", "sock")

    def __init__(self, server: Canned, sock: socket.socket) -> None:
        self.server = server
        self.sock = sock
        self.head = b""
        self.remaining = 0  # bytes of the body that are still to come
        self.path: list[bytes] = []

    def read(self) -> None:
        """Read all available data. With TLS, poll does not report data that is decrypted already."""
        while True:
            try:
                data = self.sock.recv(262144)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            except OSError:
                data = b""
            if not data:
                self.close()
                return
            if self.remaining:
                self.remaining -= len(data)
            else:
                self.head += data
                end = self.head.find(b"\r\n\r\n")
                if end < 0:
                    continue
                head = self.head[:end].lower()
                at = head.index(b"content-length:") + 15
                self.remaining = int(head[at:].split(b"\r\n", 1)[0]) - (len(self.head) - end - 4)
                self.path = head.split(b" ", 2)[1].split(b"/")
                if self.path[0] == b"http:":
                    self.path = self.path[2:]
                self.head = b""
            if not self.remaining:
                self.answer()
            if not isinstance(self.sock, ssl.SSLSocket):
                return

    def answer(self) -> None:
        server = self.server
        server.requests += 1
        name, delay = self.path[1:3]
        if name == b"silence":
            return
        if name == b"stats":
            body = json.dumps(
                {"accepted": server.accepted, "open": server.open, "requests": server.requests}
            ).encode()
            send(
                self.sock,
                HEAD % (b"application/json", b"Content-Length: %d\r\n" % len(body)) + body,
            )
        elif delay == b"0":
            self.send(*server.answers[name])
        else:
            prepared = server.answers[name]
            heapq.heappush(
                server.timers,
                (
                    time.monotonic() + int(delay) / 1000,
                    server.requests,
                    lambda: self.send(*prepared),
                ),
            )

    def send(self, pieces: list[bytes], pace: float) -> None:
        try:
            for piece in pieces:
                if pace:
                    time.sleep(pace)
                send(self.sock, piece)
        except OSError:
            self.close()

    def close(self) -> None:
        if self.sock.fileno() >= 0:
            self.server.drop(self.sock)
            self.server.open -= 1


def send(sock: socket.socket, data: bytes) -> None:
    """Send all data, waiting for a slow peer."""
    view = memoryview(data)
    while view:
        try:
            view = view[sock.send(view) :]
        except (BlockingIOError, ssl.SSLWantWriteError):
            select.select([], [sock], [], 1)


def serve_canned(certificate: str) -> None:
    server = Canned(json.loads(sys.stdin.readline()), certificate)
    threading.Thread(target=end_with_stdin, daemon=True).start()
    ports = [
        server.listen(server.accept),
        server.listen(server.accept_tls) if certificate else 0,
        server.listen(server.accept_proxied),
    ]
    print(*ports, flush=True)
    gc.disable()
    server.run()


if __name__ == "__main__":
    if sys.argv[1:2] == ["canned"]:
        with contextlib.suppress(KeyboardInterrupt):
            serve_canned((sys.argv[2:] or [""])[0])
    else:
        threading.Thread(target=end_with_stdin, daemon=True).start()
        asyncio.run(serve())
