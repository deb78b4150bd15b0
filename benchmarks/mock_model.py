"""A model server on loopback that takes no time to speak of: Chat Completions over keep-alive connections, in a process of its own.

    POST /{calls}/{width}/{delay}/chat/completions

answers with tool calls, `width` at once, until `calls` of them have been made, and with a text from then on; `delay` is how many milliseconds
an answer takes. It parses nothing: the calls are numbered, and the number of the last one stands in the last bytes of the request, so
that a request costs the same however long the history is. A request that asks for a stream gets one.

Prints its port; ends when its stdin does, so that it never outlives the benchmark.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading

TOOL = "look_up"
TAIL = 16384  # bytes at the end of a request in which its last tool result begins
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\n%s\r\n"
USAGE = b'"usage":{"prompt_tokens":1200,"completion_tokens":24,"total_tokens":1224}'


def arguments(number: int) -> bytes:
    """What call `number` is made with."""
    return b'{"key":"item-%d","limit":3}' % number


def call(number: int) -> bytes:
    """Call `number`, as it stands in an answer."""
    quoted = arguments(number).replace(b'"', b'\\"')
    return b'{"id":"call_%d","type":"function","function":{"name":"%s","arguments":"%s"}}' % (number, TOOL.encode(), quoted)


def plain(first: int, calls: int, width: int) -> bytes:
    """An answer in one piece."""
    message, reason = b'"content":"That is all there is to say about these items."', b"stop"
    if first < calls:
        message, reason = b'"content":null,"tool_calls":[' + b",".join(call(first + n) for n in range(width)) + b"]", b"tool_calls"
    body = (
        b'{"id":"chatcmpl-%d","object":"chat.completion","created":1760000000,"model":"mock","choices":[{"index":0,"message":'
        b'{"role":"assistant",%s},"finish_reason":"%s"}],%s}' % (first, message, reason, USAGE)
    )
    return HEAD % (b"application/json", b"Content-Length: %d\r\n" % len(body)) + body


def streamed(first: int, calls: int, width: int) -> bytes:
    """An answer in ten or more server-sent events, each in an HTTP chunk of its own, sent at once."""
    deltas = [b'{"role":"assistant","content":""}']
    if first < calls:
        for index in range(width):
            start = b'{"index":%d,"id":"call_%d","type":"function","function":{"name":"%s","arguments":""}}'
            deltas.append(b'{"tool_calls":[' + start % (index, first + index, TOOL.encode()) + b"]}")
            text = arguments(first + index)
            for at in range(0, len(text), 5):
                piece = text[at : at + 5].replace(b'"', b'\\"')
                deltas.append(b'{"tool_calls":[{"index":%d,"function":{"arguments":"%s"}}]}' % (index, piece))
    else:
        deltas += [b'{"content":"%s"}' % word for word in (b"That ", b"is ", b"all ", b"there ", b"is.")]
    reason = b"tool_calls" if first < calls else b"stop"
    shell = b'data: {"id":"chatcmpl-%d","object":"chat.completion.chunk","created":1760000000,"model":"mock",' % first
    events = [shell + b'"choices":[{"index":0,"delta":%s,"finish_reason":null}]}\n\n' % delta for delta in deltas]
    events.append(shell + b'"choices":[{"index":0,"delta":{},"finish_reason":"%s"}]}\n\n' % reason)
    events.append(shell + b'"choices":[],%s}\n\n' % USAGE)
    events.append(b"data: [DONE]\n\n")
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(event), event) for event in events) + b"0\r\n\r\n"
    return HEAD % (b"text/event-stream", b"Transfer-Encoding: chunked\r\n") + chunks


class Exchange(asyncio.Protocol):
    """One connection: request after request, each answered when its last byte is there."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.head = b""  # of a request whose body has not begun
        self.left = 0  # bytes of the body to come
        self.tail = b""
        self.path = b""

    def data_received(self, data: bytes) -> None:
        if self.left:
            self.left -= len(data)
            self.tail = (self.tail + data)[-TAIL:]
        else:
            self.head += data
            end = self.head.find(b"\r\n\r\n")
            if end < 0:
                return
            head, self.tail = self.head[:end].lower(), self.head[end + 4 :]
            at = head.index(b"content-length:") + 15
            self.left = int(head[at:].split(b"\r\n", 1)[0]) - len(self.tail)
            self.path = head.split(b" ", 2)[1]
            self.head, self.tail = b"", self.tail[-TAIL:]
        if not self.left:
            self.answer()

    def answer(self) -> None:
        calls, width, delay = map(int, self.path.split(b"/")[1:4])
        at = self.tail.rfind(b'"tool_call_id":"call_')
        # A message of the user's behind the last result begins a new count.
        fresh = at < 0 or self.tail.rfind(b'"role":"user"') > at
        first = 0 if fresh else int(self.tail[at + 21 :].split(b'"', 1)[0]) + 1
        make = streamed if b'"stream":true' in self.tail else plain
        if delay:
            asyncio.get_running_loop().call_later(delay / 1000, self.send, make(first, calls, width))
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


if __name__ == "__main__":
    threading.Thread(target=end_with_stdin, daemon=True).start()
    asyncio.run(serve())
