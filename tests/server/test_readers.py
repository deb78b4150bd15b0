"""Tests of two hundred readers that hardly read, beside a fast one: their cost for the server, and
for the fast one."""

from __future__ import annotations

import json
import selectors
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the server extra is not installed")

from holdfast import Agent, ScriptedLLM
from holdfast.agent.serial_form import form_of
from tests.agent_servers import Lines
from tests.serve_process import KEY, ServeProcess

SLOW, MESSAGES, SIZE = 200, 100, 20_000


class Slow:
    """Readers that take a kilobyte now and then; most of their data waits on the server's side."""

    def __init__(self, port: int, path: str, count: int) -> None:
        self.bytes_read = 0
        self._ended = threading.Event()
        self._sockets: list[socket.socket] = []
        for _ in range(count):
            one = socket.socket()
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            one.connect(("127.0.0.1", port))
            one.sendall(
                f"GET {path}/stream HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer"
                f" {KEY}\r\n\r\n".encode()
            )
            assert one.recv(1024).startswith(b"HTTP/1.1 200")
            self._sockets.append(one)
        self._thread = threading.Thread(target=self._read, name="slow-readers")
        self._thread.start()

    def _read(self) -> None:
        with selectors.DefaultSelector() as ready:
            for one in self._sockets:
                one.setblocking(False)
                ready.register(one, selectors.EVENT_READ)
            while not self._ended.wait(0.2):
                for key, _ in ready.select(0):
                    self.bytes_read += len(key.fileobj.recv(1024))  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]

    def finish(self, index: int, last: int) -> list[int]:
        """Let one of them read on to the end, and return the ids of all its events."""
        one = self._sockets[index]
        one.settimeout(30)
        ids: list[int] = []
        with one.makefile("rb") as file:
            while not ids or ids[-1] < last:
                line = file.readline()
                assert line, f"the stream ended after {ids[-1:]}"
                if line.startswith(b"id: "):
                    ids.append(int(line[4:]))
        return ids

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def close(self) -> None:
        self.stop()
        for one in self._sockets:
            one.close()


@contextmanager
def reading(server: ServeProcess, path: str, after: int) -> Iterator[dict[str, float]]:
    """Run a reader that reads at once. Yields the arrival time of each message, by the beginning of
    its text."""
    import http.client

    came: dict[str, float] = {}
    seqs: list[int] = []
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request(
        "GET", f"{path}/stream?after_seq={after}", headers={"Authorization": f"Bearer {KEY}"}
    )
    lines = Lines(connection, connection.getresponse())

    def read() -> None:
        for id, event, data in lines:
            if id is not None:
                seqs.append(id)
            if event == "message":
                word = json.loads(data)["content"][0]["text"].split()[0]
                came[word] = time.monotonic()
                if word == "end":
                    return

    thread = threading.Thread(target=read, name="fast-reader")
    thread.start()
    try:
        yield came
        thread.join(60)
        assert not thread.is_alive(), "the fast reader did not come to the end"
        assert seqs == list(range(after + 1, after + 1 + len(seqs)))
    finally:
        lines.close()


def latencies(server: ServeProcess, path: str, round: str) -> list[float]:
    """Return the seconds from the sending of each message until the fast reader had it."""
    after = server.ask("GET", path).json["lastSeq"]
    sent_at: dict[str, float] = {}
    with reading(server, path, after) as came:
        for number in range(MESSAGES):
            word = f"{round}{number}"
            sent_at[word] = time.monotonic()
            assert (
                server.ask("POST", f"{path}/messages", {"text": f"{word} {'x' * SIZE}"}).status
                == 202
            )
        assert server.ask("POST", f"{path}/messages", {"text": "end"}).status == 202
    assert sent_at.keys() <= came.keys()
    return sorted(came[word] - at for word, at in sent_at.items())


@pytest.mark.slow
def test_two_hundred_slow_readers_cost_a_fast_one_little_and_the_server_no_memory(
    tmp_path: Path,
) -> None:
    with ServeProcess(tmp_path) as server, ExitStack() as stack:
        assert (
            server.ask(
                "POST",
                "/api/conversations",
                {"id": "c", "agent": form_of(Agent(ScriptedLLM([]))).mapping},
            ).status
            == 201
        )
        path = "/api/conversations/c"
        alone = latencies(server, path, "a")
        before = server.memory()
        slow = Slow(server.port, path, SLOW)  # 2 MB are in the journal now, and as much is to come
        stack.callback(slow.close)
        beside = latencies(server, path, "b")
        grown = server.memory() - before
        last = server.ask("GET", path).json["lastSeq"]
        middle = [statistics.median(one) * 1000 for one in (alone, beside)]
        print(
            f"median {middle[0]:.1f} ms alone, {middle[1]:.1f} ms beside {SLOW}; longest"
            f" {beside[-1] * 1000:.0f} ms; {grown / 1e6:.1f} MB more"
        )
        # If the server held the unread rest for each of 200 readers, it would be 4 MB for each.
        assert slow.bytes_read < SLOW * MESSAGES * SIZE / 4, "they read too much to be slow"
        assert grown < 100_000_000, f"{grown:,} bytes more"
        # Deadlines for a noisy machine, and not measurements: a server that waits for the slow ones would
        # wait for ever.
        assert beside[-1] < 10.0
        assert server.ask("GET", "/health", key=None).status == 200
        slow.stop()
        for index in (0, SLOW // 2, SLOW - 1):  # and no reader misses an event
            assert slow.finish(index, last)[-1] == last
