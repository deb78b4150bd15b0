"""The mock model of `benchmarks/mock_model.py`, for clients that write their requests in their own
way: Chat Completions, plain or streamed.

    POST /{run}/{calls}/{tool}/chat/completions

answers with `calls` calls of `tool`, one per request, then with a text, and then begins anew. It
counts requests by `run` and only looks whether the request asks for a stream, so that it works with
any history. With `twice` as `calls` it reads the history instead: it calls the tool until the
history has two results. A real model does the same after a crash if it sees all results. `GET
/{run}` returns the number of requests of that run, and the last one.

Prints its port; ends when its stdin does.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mock_model import HEAD, USAGE, arguments, end_with_stdin

ARGUMENTS = {
    "bash": lambda number: b'{"command":"look_up item-%d"}' % number,
    "effect": lambda number: b'{"key":"item-%d"}' % number,
}
LAST = b"That is all there is to say about these items."


def answer_parts(number: int, tool: str, end: bool) -> tuple[bytes, bytes, bytes]:
    """Return the text or nothing, the name of the called tool or nothing, and its arguments, of an
    answer."""
    if end and tool == "look_up-final_answer":  # smolagents ends with a call, too
        return b"", b"final_answer", b'{"answer":"%s"}' % LAST
    if end and tool == "bash":  # and so does mini-swe-agent
        return b"", b"bash", b'{"command":"echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}'
    if end:
        return LAST, b"", b""
    name = tool.split("-")[0]
    return b"", name.encode(), ARGUMENTS.get(name, arguments)(number)


def plain(number: int, text: bytes, name: bytes, arguments: bytes) -> bytes:
    """Return an answer in one piece."""
    message, reason = b'"content":"%s"' % text, b"stop"
    if name:
        call = b'{"id":"call_%d","type":"function","function":{"name":"%s","arguments":%s}}' % (
            number,
            name,
            json.dumps(arguments.decode()).encode(),
        )
        message, reason = b'"content":null,"tool_calls":[%s]' % call, b"tool_calls"
    body = (
        b'{"id":"chatcmpl-%d","object":"chat.completion","created":1760000000,"model":"mock","choices":[{"index":0,"message":'
        b'{"role":"assistant",%s},"finish_reason":"%s"}],%s}' % (number, message, reason, USAGE)
    )
    return HEAD % (b"application/json", b"Content-Length: %d\r\n" % len(body)) + body


def streamed(number: int, text: bytes, name: bytes, arguments: bytes) -> bytes:
    """Return the same answer as four server-sent events, sent at once."""
    delta, reason = b'{"role":"assistant","content":"%s"}' % text, b"stop"
    if name:
        call = (
            b'{"index":0,"id":"call_%d","type":"function","function":{"name":"%s","arguments":%s}}'
        )
        delta = b'{"role":"assistant","content":null,"tool_calls":[%s]}' % (
            call % (number, name, json.dumps(arguments.decode()).encode())
        )
        reason = b"tool_calls"
    shell = (
        b"data:"
        b' {"id":"chatcmpl-%d","object":"chat.completion.chunk","created":1760000000,"model":"mock",'
        % number
    )
    events = [
        shell + b'"choices":[{"index":0,"delta":%s,"finish_reason":null}]}\n\n' % delta,
        shell + b'"choices":[{"index":0,"delta":{},"finish_reason":"%s"}]}\n\n' % reason,
        shell + b'"choices":[],%s}\n\n' % USAGE,
        b"data: [DONE]\n\n",
    ]
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(event), event) for event in events) + b"0\r\n\r\n"
    return HEAD % (b"text/event-stream", b"Transfer-Encoding: chunked\r\n") + chunks


counts: dict[bytes, int] = {}
last: dict[bytes, bytes] = {}


class Exchange(asyncio.Protocol):
    """One connection: answers each request after its last byte has arrived."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.data = bytearray()

    def data_received(self, data: bytes) -> None:
        self.data += data
        end = self.data.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self.data[:end])
        length = re.search(rb"(?i)content-length: *(\d+)", head)
        whole = end + 4 + (int(length[1]) if length else 0)
        if len(self.data) < whole:
            return
        body = bytes(self.data[end + 4 : whole])
        del self.data[:whole]
        self.transport.write(self.answer(head.split(b" ", 2)[1], body))

    def answer(self, path: bytes, body: bytes) -> bytes:
        run, *rest = path.strip(b"/").split(b"/")
        if not body:
            report = json.dumps(
                {"requests": counts.get(run, 0), "last": last.get(run, b"").decode()}
            ).encode()
            return HEAD % (b"application/json", b"Content-Length: %d\r\n" % len(report)) + report
        counts[run] = number = counts.get(run, 0) + 1
        calls, tool = rest[0], rest[1].decode()
        if calls == b"twice":
            last[run] = body
            number = max(body.count(b"EFFECT made"), len(re.findall(rb'"role": ?"tool"', body)))
            end = number >= 2
        else:
            number = (number - 1) % (int(calls) + 1)
            end = number == int(calls)
        make = streamed if re.search(rb'"stream": ?true', body) else plain
        return make(number, *answer_parts(number, tool, end))


async def serve() -> None:
    server = await asyncio.get_running_loop().create_server(Exchange, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    threading.Thread(target=end_with_stdin, daemon=True).start()
    asyncio.run(serve())
