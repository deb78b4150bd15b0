"""Tests of the agent server's event streams: from any event on, each once and in order, however
slow the reader."""

import json
import socket
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the server extra is not installed")

from holdfast import events as ev
from holdfast.server.claims import Claims
from holdfast.server.shapes import EventFrame, TransientNote
from holdfast.server.sse import encode
from tests.agent_servers import Lines, Serving
from tests.leftovers import Owned
from tests.waiting import until


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Serving]:
    with Serving(tmp_path) as serving:
        yield serving


def send(server: Serving, path: str, *texts: str) -> None:
    for text in texts:
        assert server.ask("POST", f"{path}/messages", {"text": text}).status == 202


def seqs(lines: Lines, count: int) -> list[int]:
    return [id for id, _, _ in islice((one for one in lines if one[0] is not None), count)]


def test_a_stream_has_what_was_and_what_comes(server: Serving) -> None:
    path = server.make("c")
    send(server, path, "one", "two")
    stream = server.stream(path)
    assert stream.response.getheader("content-type") == "text/event-stream"
    items = iter(stream)
    first = next(items)
    assert first[0] == 1
    assert json.loads(first[2])["seq"] == 1
    assert json.loads(first[2])["type"] == first[1]
    last = server.ask("GET", path).json["lastSeq"]
    rest = list(islice(items, last - 1))
    assert [id for id, _, _ in rest] == list(range(2, last + 1))
    send(server, path, "three")
    assert next(items)[0] == last + 1


@pytest.mark.slow
def test_a_stream_begins_after_any_event_and_last_event_id_wins(server: Serving) -> None:
    path = server.make("c")
    send(server, path, *"abcde")
    last = server.ask("GET", path).json["lastSeq"]
    assert seqs(server.stream(path, last - 2), 2) == [last - 1, last]
    assert seqs(server.stream(path, 0, **{"Last-Event-ID": str(last - 1)}), 1) == [last]
    waits = server.stream(path, last)
    send(server, path, "f")
    assert seqs(waits, 1) == [last + 1]
    refused = server.stream(path, 0, **{"Last-Event-ID": "x"})
    assert refused.response.status == 422


@pytest.mark.slow
def test_a_reader_that_comes_back_again_and_again_has_each_event_once_in_order(
    server: Serving,
) -> None:
    path = server.make("c")
    total = 60
    writer = threading.Thread(target=send, args=(server, path, *map(str, range(total))))
    writer.start()
    ids: list[int] = []
    texts: list[str] = []
    while len(texts) < total:
        stream = server.stream(path, ids[-1] if ids else 0)
        for id, kind, data in islice((one for one in stream if one[0] is not None), 7):
            assert id is not None
            ids.append(id)
            if kind == "message":
                texts.append(json.loads(data)["content"][0]["text"])
            if len(texts) == total:
                break
        stream.close()
    writer.join()
    assert ids == list(range(1, len(ids) + 1))
    assert texts == [str(number) for number in range(total)]


def test_the_events_of_a_run_come_as_they_happen(server: Serving) -> None:
    path = server.make("c", ["first", "second"])
    server.ask("POST", f"{path}/start")
    stream = iter(server.stream(path))
    send(server, path, "hello")
    kinds: list[str] = []
    for _, kind, data in stream:
        kinds.append(kind)
        if kind == "status" and json.loads(data)["status"] == "finished":
            break
    assert "assistant" in kinds
    assert kinds.index("message") < kinds.index("assistant")


@pytest.mark.slow
def test_a_stream_that_has_nothing_to_tell_says_that_it_lives(tmp_path: Path) -> None:
    with Serving(tmp_path, ping=0.1) as server:
        stream = server.stream(server.make("c"))
        assert list(islice(iter(stream), 3)) == [(None, "", "ping")] * 3


@pytest.mark.slow
def test_a_reader_that_left_is_noticed_and_nothing_of_it_is_kept(server: Serving) -> None:
    path = server.make("c")
    send(server, path, "x")
    before = Owned()
    streams = [server.stream(path) for _ in range(20)]
    for stream in streams:
        assert seqs(stream, 1) == [1]
    assert server.app.service.usage.streams == 20
    for stream in streams:
        stream.close()
    until(lambda: server.app.service.usage.streams == 0, seconds=10)
    assert not server.app.service.streams
    assert server.host.feed("default", "c").readers == 0
    until(lambda: not [one for one in before.new() if "socket" in one])


@pytest.mark.slow
def test_readers_that_take_nothing_hold_up_nobody(server: Serving) -> None:
    """Check readers with full sockets: another reader, and the writer, go on."""
    path = server.make("c")
    text = "x" * 50_000
    stuck: list[socket.socket] = []
    try:
        for _ in range(40):
            one = socket.socket()
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.connect(("127.0.0.1", server.port))
            one.sendall(
                f"GET {path}/stream HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer"
                f" {server.key}\r\n\r\n".encode()
            )
            stuck.append(one)
        until(lambda: server.app.service.usage.streams == 40)
        reader = server.stream(path)
        send(server, path, *([text] * 60))
        last = server.ask("GET", path).json["lastSeq"]
        assert seqs(reader, last) == list(range(1, last + 1))
        assert server.ask("GET", "/health", key=None).status == 200
        # One of them reads again, and has everything.
        stuck[0].settimeout(30)
        raw = stuck[0].makefile("rb")
        ids: list[int] = []
        while len(ids) < last:
            line = raw.readline()
            if line.startswith(b"id: "):
                ids.append(int(line[4:]))
        assert ids == list(range(1, last + 1))
        raw.close()
    finally:
        for one in stuck:
            one.close()
    until(lambda: server.app.service.usage.streams <= 1)


@pytest.mark.slow
def test_a_stream_ends_whole_when_the_server_does(tmp_path: Path) -> None:
    with Serving(tmp_path) as server:
        path = server.make("c")
        send(server, path, "x")
        stream = server.stream(path)
        assert seqs(stream, 1) == [1]
        ended = threading.Event()

        def read() -> None:
            for _ in stream:  # a broken one would raise
                pass
            ended.set()

        reader = threading.Thread(target=read)
        reader.start()
        server.server.close()
        reader.join(30)
        assert ended.is_set()


@pytest.mark.slow
def test_a_stream_ends_when_its_conversation_is_removed(server: Serving) -> None:
    path = server.make("c")
    send(server, path, "x")
    stream = server.stream(path)
    assert seqs(stream, 1) == [1]
    assert server.ask("DELETE", path).status == 204
    for _ in stream:
        pass
    assert server.stream(path).response.status == 404


@pytest.mark.slow
def test_another_tenants_stream_is_none(server: Serving) -> None:
    path = server.make("c")
    assert server.stream(path, key=server.other).response.status == 404


@pytest.mark.slow
def test_an_open_stream_keeps_its_client_alive(
    server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, str]] = []
    monkeypatch.setattr(
        Claims, "note_alive", lambda _, tenant, client: calls.append((tenant, client))
    )
    server.app.service.ping = 1.1
    stream = server.stream(server.make("c"), **{"X-Holdfast-Client": "client-1"})
    assert next(iter(stream)) == (None, "", "ping")
    until(lambda: len(calls) >= 2)
    assert set(calls) == {("default", "client-1")}


def test_events_have_ids_and_notes_have_none() -> None:
    event = ev.NoteRecorded("hook", "failed", seq=3, id="n3", timestamp=0.0)
    chunk = encode(
        [EventFrame(3, "message", b"{}", event), EventFrame(4, "from\nlater", b"[]", event)],
        [TransientNote("delta", b'{"text":"x"}')],
    )
    assert (
        chunk == b"id: 3\nevent: message\ndata: {}\n\nid: 4\nevent: unknown\ndata: []\n\nevent:"
        b' delta\ndata: {"text":"x"}\n\n'
    )


@pytest.mark.slow
def test_a_key_that_was_taken_back_reads_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.server.app._KEY_CACHE_SECONDS", 0.1)
    with Serving(tmp_path, ping=0.1) as server:
        path = server.make("revoked")
        key = server.keys.create("default", "lent")
        stream = iter(server.stream(path, key=key))
        next(stream)
        (lent,) = [one for one in server.keys.list() if one.label == "lent"]
        server.keys.revoke(lent.id)
        for _ in stream:  # ends
            pass
