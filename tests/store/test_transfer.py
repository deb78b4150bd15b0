"""Conversations as JSON lines: exported from a store and imported into another."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import events as ev
from holdfast.content import TextContent, ToolCall, ToolResult
from holdfast.errors import (
    ConfigurationError,
    Conflict,
    ConversationNotFound,
    LeaseHeld,
    StoreError,
)
from holdfast.store import Batch, Blob, MemoryStore, SQLiteStore, Store, Summary, blob_id
from holdfast.store.transfer import (
    export_conversation,
    import_conversation,
    import_conversations,
    open_calls,
    read_exported,
)
from tests import forks
from tests.store.test_store import NOW

BLOB = bytes(range(256)) * 10
NATIVE = msgspec.Raw(b'{\n  "id": "rs_1",\r\n  "text": "kept\\nas it came" }')
ODD = msgspec.Raw(
    b'{"type":"hologram",\n"seq":6,"id":"e6","timestamp":"2026-11-02T09:30:06Z","huge":123456789012345678901234567890}'
)


def journal(text: str = "first") -> list[ev.AnyEvent]:
    at = [NOW + timedelta(seconds=seq) for seq in range(8)]
    meta = {"holdfast/blobs": [{"id": blob_id(BLOB), "size": len(BLOB)}], "exitCode": 0}
    return [
        ev.MessageAdded(
            seq=1,
            id="e1",
            timestamp=at[1],
            content=(TextContent(f"{text}\nline \u2028 two \x85 \x00 \U0001f980"),),
        ),
        ev.AssistantReplied(
            seq=2,
            id="e2",
            timestamp=at[2],
            text="hm",
            calls=(ToolCall("2.0", "shell", {"x": 1.5e300, "n": 1 << 62}),),
            native=NATIVE,
        ),
        ev.ToolCallStarted(seq=3, id="e3", timestamp=at[3], call_id="2.0"),
        ev.ToolCallFinished(
            seq=4, id="e4", timestamp=at[4], call_id="2.0", result=ToolResult("out", meta=meta)
        ),
        ev.ToolCallFinished(
            seq=5, id="e5", timestamp=at[5], call_id="2.0", result=ToolResult("again", meta=meta)
        ),
        ev.UnknownEvent(seq=6, id="e6", timestamp=at[6], original_type="hologram", raw=ODD),
        ev.AssistantReplied(
            seq=7,
            id="e7",
            timestamp=at[7],
            calls=(ToolCall("7.0", "shell"), ToolCall("7.1", "read_file")),
        ),
    ]


def fill(store: Store, id: str = "one", text: str = "first") -> None:
    lease = store.acquire(id)
    summary = Summary(id, "paused", f"title of {id}", 7, NOW, NOW + timedelta(hours=1))
    store.append(lease, Batch(journal(text), summary, blobs=[Blob(4, BLOB), Blob(5, BLOB)]))
    store.release(lease)


@pytest.fixture(params=["memory", "sqlite"])
def new(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Store]]:
    stores: list[Store] = []

    def make() -> Store:
        stores.append(
            MemoryStore()
            if request.param == "memory"
            else SQLiteStore(tmp_path / f"{len(stores)}.db", "process")
        )
        return stores[-1]

    yield make
    for store in stores:
        store.close()


@pytest.fixture
def store(new: Callable[[], Store]) -> Store:
    backend = new()
    fill(backend)
    return backend


@pytest.fixture
def other(store: Store, new: Callable[[], Store]) -> Store:
    return new()


def lines(store: Store, *ids: str) -> list[bytes]:
    return [line for id in ids or ("one",) for line in export_conversation(store, id)]


# --- export ---


def test_an_export_is_a_header_the_events_and_their_blobs_each_on_a_line(store: Store) -> None:
    exported = lines(store)
    assert all(
        line.count(b"\n") == 1 and b"\r" not in line and line.endswith(b"}\n") for line in exported
    )
    header, *events, blob = [json.loads(line) for line in exported]
    assert header == {
        "type": "conversation",
        "version": 1,
        "id": "one",
        "title": "title of one",
        "status": "paused",
        "created": "2026-11-02T09:30:00Z",
        "updated": "2026-11-02T10:30:00Z",
        "events": 7,
        "blobs": 1,
        "parent": "",
        "parentSeq": 0,
    }
    assert [event["seq"] for event in events] == list(range(1, 8))
    assert blob["id"] == blob_id(BLOB)
    assert msgspec.json.decode(exported[-1])["type"] == "blob"


def test_events_are_as_they_are_stored_but_for_line_ends(store: Store) -> None:
    encoded = [ev.encode(event) for event in journal()]
    exported = [line[:-1] for line in lines(store)[1:-1]]
    assert [a == b for a, b in zip(exported, encoded, strict=True)] == [
        True,
        False,
        True,
        True,
        True,
        False,
        True,
    ]
    assert [json.loads(line) for line in exported] == [json.loads(line) for line in encoded]
    assert b"123456789012345678901234567890" in exported[5]
    assert b'"native":{"id":"rs_1","text":"kept\\nas it came"}' in exported[1]


def test_what_is_not_there_is_not_exported(store: Store) -> None:
    with pytest.raises(ConversationNotFound, match="'none'"):
        lines(store, "none")


def test_a_lost_blob_is_said_to_be_lost(new: Callable[[], Store]) -> None:
    store, other = new(), new()
    lease = store.acquire("one")
    store.append(lease, Batch(journal(), Summary("one", last_seq=7)))
    assert json.loads(lines(store)[-1]) == {"type": "blob", "id": blob_id(BLOB), "data": None}
    assert import_conversations(other, lines(store)) == ["one"]
    with pytest.raises(StoreError):
        other.blob(blob_id(BLOB))


def test_the_open_calls_are_those_of_the_last_answer() -> None:
    assert [call.id for call in open_calls(journal())] == ["7.0", "7.1"]
    assert [call.id for call in open_calls(journal()[:3])] == ["2.0"]
    assert open_calls(journal()[:6]) == []
    assert open_calls([*journal()[:3], *journal()[6:]]) == open_calls(journal()), (
        "as the conversation itself counts them"
    )


# --- export and import ---


def test_there_and_back_nothing_is_changed(store: Store, other: Store) -> None:
    fill(store, "two", "second")
    exported = lines(store, "one", "two")
    assert import_conversations(other, exported) == ["one", "two"]
    assert lines(other, "one", "two") == exported
    assert other.blob(blob_id(BLOB)) == BLOB
    assert {entry.id: entry for entry in other.list()} == {
        entry.id: entry for entry in store.list()
    }


def test_the_imported_goes_on_and_takes_its_blobs_along_in_a_fork(
    store: Store, other: Store
) -> None:
    import_conversations(other, lines(store))
    lease = other.acquire("one")
    event = ev.MessageAdded(seq=8, id="e8", timestamp=NOW, content=(TextContent("more"),))
    other.append(lease, Batch([event], Summary("one", last_seq=8)))
    other.release(lease)
    other.fork("one", Summary("fork", last_seq=5))
    other.delete("one")
    assert len(other.read("fork")) == 5
    assert other.blob(blob_id(BLOB)) == BLOB


def test_importing_again_does_nothing(store: Store, other: Store) -> None:
    conversation = next(iter(read_exported(lines(store))))
    assert import_conversation(other, conversation)
    before = other.acquire("one").epoch
    assert not import_conversation(other, conversation), "also while somebody drives it"
    assert lines(other) == lines(store)
    assert import_conversations(store, lines(store)) == ["one"]
    assert before >= 1


def test_another_conversation_of_that_id_is_refused_and_kept(store: Store, other: Store) -> None:
    fill(other, "one", "something else")
    before = lines(other)
    with pytest.raises(Conflict, match="another conversation 'one'"):
        import_conversations(other, lines(store))
    assert lines(other) == before
    assert import_conversations(other, lines(store), id="two") == ["two"]
    assert lines(other, "two")[1:] == lines(store)[1:]
    assert {entry.id for entry in other.list()} == {"one", "two"}


def test_a_new_id_is_for_one_conversation(store: Store, other: Store) -> None:
    fill(store, "two")
    with pytest.raises(ConfigurationError, match="line 10: another conversation"):
        import_conversations(other, lines(store, "one", "two"), id="new")
    assert other.list() == []


def test_one_that_somebody_holds_is_not_written(store: Store, other: Store) -> None:
    other.acquire("one")
    with pytest.raises(LeaseHeld):
        import_conversations(other, lines(store))


# --- errors name the line ---


def change_line(number: int, **fields: Any) -> Callable[[list[bytes]], None]:
    """Return a function that changes fields of a line."""

    def change(data: list[bytes]) -> None:
        data[number] = json.dumps({**json.loads(data[number]), **fields}).encode()

    return change


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda data: data.insert(0, b"hello"), "line 1: this is not the header"),
        (lambda data: data.insert(0, b"\xff\xfe\x00" * 1000), "line 1: this is not the header"),
        (lambda data: data.insert(0, b"[" * 100_000), "line 1: this is not the header"),
        (lambda data: data.pop(0), "line 1: this is not the header"),
        (change_line(0, version=2), "line 1: exported in version 2"),
        (change_line(0, id=""), "line 1: a conversation needs an id"),
        (change_line(0, events=0), "line 1: a conversation needs an event"),
        (change_line(0, events="many"), "line 1: this is not the header"),
        (change_line(0, events=8), "line 9: this is not an event"),
        (change_line(0, events=6), "line 7: 0 of 1 blobs"),
        (change_line(0, events=10**15), "line 9: this is not an event"),
        (change_line(3, seq=4), "line 4: event 4 stands where event 3 should"),
        (
            change_line(2, calls=[{"id": "call_abc", "name": "shell", "arguments": {}}]),
            "line 3: a call of event 2 has the id 'call_abc'; calls have different ids such as '2.0'",
        ),
        (lambda data: data.pop(3), "line 4: event 4 stands where event 3 should"),
        (lambda data: data.__setitem__(2, b"{}"), "line 3: this is not an event"),
        (
            change_line(8, data="AAAA"),
            "line 9: the content of the blob sha256:.* does not match its id",
        ),
        (change_line(8, data="!"), "line 9: this is not a blob"),
        (
            change_line(8, id=blob_id(b"x"), data="eA=="),
            "line 9: no event of 'one' refers to the blob",
        ),
        (lambda data: data.pop(), "line 8: 0 of 1 blobs of 'one' are present"),
        (
            lambda data: data.__delitem__(slice(5, None)),
            "line 5: the lines end after 4 of 7 events of 'one'",
        ),
    ],
)
def test_what_is_wrong_is_told_by_its_line_and_nothing_is_written(
    store: Store, other: Store, change: Callable[[list[bytes]], Any], problem: str
) -> None:
    data = lines(store)
    change(data)
    with pytest.raises(ConfigurationError, match=problem):
        import_conversations(other, data)
    assert other.list() == []


def test_what_came_before_the_wrong_line_is_imported(store: Store, other: Store) -> None:
    fill(store, "two")
    with pytest.raises(ConfigurationError, match="line 12"):
        import_conversations(
            other,
            [*lines(store, "one"), lines(store, "two")[0], lines(store, "two")[1], b"garbage\n"],
        )
    assert [entry.id for entry in other.list()] == ["one"]


def test_hand_made_lines_are_read(other: Store) -> None:
    """Blank lines, blanks between tokens, a minimal header, str instead of bytes, no count of
    blobs."""
    text = '{ "type": "conversation", "version": 1, "id": "mine", "events": 1 }\r\n\r\n'
    text += (
        '{"type": "message", "seq": 1, "id": "a", "timestamp": "2026-11-02T09:30:00Z", "content":'
        " []}\n\n"
    )
    (conversation,) = read_exported(text.splitlines())
    assert (
        conversation.summary.id,
        conversation.summary.last_seq,
        len(conversation.events),
        conversation.blobs,
    ) == (
        "mine",
        1,
        1,
        {},
    )
    assert import_conversations(other, text.splitlines(keepends=True)) == ["mine"]
    assert other.list()[0].status == "idle"


def test_a_program_reads_recorded_conversations(store: Store) -> None:
    fill(store, "two", "second")
    conversations = list(read_exported(lines(store, "one", "two")))
    assert [one.header.id for one in conversations] == ["one", "two"]
    assert [event.seq for event in conversations[1].events] == list(range(1, 8))
    assert conversations[0].blobs == {blob_id(BLOB): BLOB}
    assert list(read_exported([])) == []


# --- interrupted imports ---


def test_a_store_that_cannot_write_is_left_without_the_conversation(store: Store) -> None:
    class Full(MemoryStore):
        def append(self, *arguments: Any, **options: Any) -> None:
            raise StoreError("disk full")

    other = Full()
    with pytest.raises(StoreError, match="disk full"):
        import_conversations(other, lines(store))
    assert other.list() == []
    with pytest.raises(ConversationNotFound):
        other.delete("one")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_an_import_that_is_killed_leaves_whole_conversations(
    tmp_path: Path, number: signal.Signals
) -> None:
    source = SQLiteStore(tmp_path / "source.db", "process")
    for count in range(40):
        fill(source, f"c{count}")
    path = tmp_path / "all.jsonl"
    path.write_bytes(b"".join(lines(source, *(f"c{count}" for count in range(40)))))
    program = """
import sys
from holdfast.store import SQLiteStore
from holdfast.store.transfer import import_conversation, read_exported
with SQLiteStore(sys.argv[2]) as store, open(sys.argv[1], "rb") as lines:
    for found in read_exported(lines):
        import_conversation(store, found)
        print(found.header.id, flush=True)
"""
    process = forks.Popen(
        [sys.executable, "-c", program, str(path), str(tmp_path / "to.db")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    for _ in range(3):
        process.stdout.readline()
    time.sleep(0.01)
    os.kill(process.pid, number)
    process.communicate()
    with SQLiteStore(tmp_path / "to.db") as store:
        there = [entry.id for entry in store.list()]
        assert 3 <= len(there) <= 40
        for id in there:
            assert lines(store, id) == lines(source, id)
        with path.open("rb") as again:
            assert len(import_conversations(store, again)) == 40
        assert len(store.list()) == 40
    source.close()
