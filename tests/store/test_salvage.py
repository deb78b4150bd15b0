"""Damaged files: what `salvage` reads from them, and what `check` reports."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import zlib
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import Agent, Conversation, ConversationState, ScriptedLLM, SQLiteStore, commands
from holdfast import events as ev
from holdfast.content import TextContent, ToolCall, ToolResult
from holdfast.errors import ConversationNotFound, StoreError
from holdfast.store import Batch, Blob, Summary, blob_id
from holdfast.store.check import Report, check
from holdfast.store.salvage import Gap, Salvaged, SalvageReader, salvage
from holdfast.store.sqlite import schema
from holdfast.store.sqlite.pages import PageFile
from holdfast.store.sqlite.scan import PageRows
from holdfast.store.sqlite.wal import checksum
from tests import forks
from tests.paths import DATA, REPO
from tests.store.test_store import NOW

PAGE = 4096
BLOB = bytes(range(256)) * 60


def event(seq: int, size: int = 0, text: str = "") -> ev.AnyEvent:
    """Return a message of about `size` bytes; two are seldom equal."""
    content = text or f"event {seq} " + random.Random(seq).randbytes(size // 2).hex()
    return ev.MessageAdded(
        seq=seq,
        id=f"e{seq}",
        timestamp=NOW + timedelta(seconds=seq),
        content=(TextContent(content),),
    )


def alpha(seq: int) -> ev.AnyEvent:
    """Return event `seq` of the conversation alpha: most are small, some are larger than a page,
    one has a call and one its result."""
    at = NOW + timedelta(seconds=seq)
    if seq == 5:
        return ev.AssistantReplied(
            seq=seq, id="e5", timestamp=at, calls=(ToolCall("5.0", "shell"),)
        )
    if seq == 6:
        meta = {"holdfast/blobs": [{"id": blob_id(BLOB)}]}
        return ev.ToolCallFinished(
            seq=seq, id="e6", timestamp=at, call_id="5.0", result=ToolResult("ok", meta=meta)
        )
    return event(seq, 15_000 if seq % 20 == 0 else 300)


class Maker:
    """A store's file, written row by row as SQLiteStore does."""

    def __init__(self, path: Path) -> None:
        self.db = sqlite3.connect(path, isolation_level=None)
        schema.prepare(self.db, path, "process", 5)
        self.db.execute("PRAGMA wal_autocheckpoint = 0")
        self.db.execute(
            "PRAGMA secure_delete = OFF"
        )  # some builds of SQLite clear deleted content; most leave it in place

    def conversation(self, id: str, number: int, last: int, **fields: Any) -> None:
        at = NOW.isoformat()
        row = {
            "number": number,
            "id": id,
            "epoch": 1,
            "holder": "",
            "last_seq": last,
            "status": "paused",
            "title": f"title of {id}",
            "created": at,
            "updated": at,
        }
        row |= fields
        self.db.execute(
            f"INSERT INTO conversations ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})",
            tuple(row.values()),
        )

    def event(self, number: int, item: ev.AnyEvent, data: bytes | None = None) -> None:
        data = ev.encode(item) if data is None else data
        self.db.execute(
            "INSERT INTO events VALUES (?, ?, ?)",
            ((number << 32) + item.seq, zlib.crc32(data), data),
        )

    def blob(self, number: int, seq: int, data: bytes) -> None:
        self.db.execute("INSERT OR IGNORE INTO blobs VALUES (?, ?)", (blob_id(data), data))
        self.db.execute(
            "INSERT INTO blob_refs VALUES (?, ?)", ((number << 32) + seq, blob_id(data))
        )


ALPHA, BETA, GAMMA = 120, 3, 110  # numbers of events


def make(path: Path) -> None:
    """Write alpha; beta, which is small; a deleted conversation; gamma, a fork of alpha at 100;
    an inbox; and a blob."""
    maker = Maker(path)
    maker.db.execute("BEGIN")
    maker.conversation("alpha", 1, ALPHA)
    maker.conversation("beta", 2, BETA)
    maker.conversation("deleted", 3, 200)
    maker.conversation("gamma", 4, GAMMA, parent="alpha", parent_seq=100, base="[[1,100]]")
    for seq in range(1, ALPHA + 1):
        maker.event(1, alpha(seq))
    for seq in range(1, BETA + 1):
        maker.event(2, event(seq))
    for seq in range(1, 201):
        maker.event(3, event(seq, 400))
    for seq in range(101, GAMMA + 1):
        maker.event(4, event(seq, 100))
    maker.blob(1, 6, BLOB)
    maker.db.execute(
        "INSERT INTO inbox (conversation, key, data) VALUES (1, 'k', ?)", (b'{"command":"pause"}',)
    )
    maker.db.execute("INSERT INTO inbox (conversation, key, data) VALUES (1, 'done', NULL)")
    maker.db.execute("COMMIT")
    maker.db.execute("BEGIN")
    maker.db.execute("DELETE FROM conversations WHERE number = 3")
    maker.db.execute("DELETE FROM events WHERE key >> 32 = 3")
    maker.db.execute("COMMIT")
    maker.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    maker.db.close()


EXPECTED = {
    "alpha": [alpha(seq) for seq in range(1, ALPHA + 1)],
    "beta": [event(seq) for seq in range(1, BETA + 1)],
    "gamma": (
        [alpha(seq) for seq in range(1, 101)] + [event(seq, 100) for seq in range(101, GAMMA + 1)]
    ),
}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "store.db"
    make(path)
    return path


@pytest.fixture
def path(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(original, tmp_path / "store.db"))


def by_id(path: Path) -> dict[str, Salvaged]:
    return {one.summary.id: one for one in salvage(path).conversations}


def readable_events(conversation: Salvaged) -> dict[int, ev.AnyEvent]:
    """Check a salvaged conversation and return its readable events by number."""
    assert [event.seq for event in conversation.events] == list(
        range(1, len(conversation.events) + 1)
    )
    missing = {seq for gap in conversation.gaps for seq in range(gap.first, gap.last + 1)}
    assert {event.seq for event in conversation.events if event.type == "damaged"} == missing
    assert [gap.first for gap in conversation.gaps] == sorted(
        gap.first for gap in conversation.gaps
    )
    for event in conversation.events:
        assert ev.decode(ev.encode(event)) == event
    return {event.seq: event for event in conversation.events if event.seq not in missing}


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def garbage(how: str, seed: int) -> bytes:
    return {
        "zeroed": bytes(PAGE),
        "torn": bytes(512),
        "garbage": random.Random(seed).randbytes(PAGE),
    }[how]


def flip(path: Path, offset: int, bit: int = 0) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1 << bit]))


def find(path: Path, data: bytes) -> int:
    """Return the offset of these bytes in the file."""
    at = path.read_bytes().find(data)
    assert at >= 0
    return at


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# --- a sound file ---


def test_a_sound_file_is_read_whole_and_nothing_beside_it_is_made(path: Path) -> None:
    before = contents(path.parent)
    result = salvage(path)
    assert result.troubles == ()
    assert {one.summary.id: list(one.events) for one in result.conversations} == EXPECTED
    assert all(one.gaps == () and one.notes == () for one in result.conversations)
    assert check(path) == Report(str(path), 6, True, 3, ALPHA + BETA + GAMMA, 1)
    assert contents(path.parent) == before


def test_the_pages_alone_tell_the_same(path: Path) -> None:
    rows = PageRows(path)
    assert (rows.whole, rows.troubles) == (True, [])
    assert [(row.id, row.summary.last_seq, row.base) for row in rows.conversations()] == [
        ("alpha", ALPHA, ()),
        ("beta", BETA, ()),
        ("gamma", GAMMA, ((1, 100),)),
    ]
    assert [data for _, data in rows.events(1, 1, ALPHA)] == [
        ev.encode(event) for event in EXPECTED["alpha"]
    ]
    assert rows.blob(blob_id(BLOB)) == BLOB
    rows.close()


@pytest.mark.parametrize("size", [512, 1024, 65536])
def test_pages_of_any_size_are_read(original: Path, tmp_path: Path, size: int) -> None:
    path = tmp_path / "store.db"
    with sqlite3.connect(original) as db:
        copy = sqlite3.connect(path)
        copy.execute(f"PRAGMA page_size = {size}")
        copy.execute("VACUUM")
        for line in db.iterdump():
            if not line.startswith(
                ("BEGIN", "COMMIT", "DELETE FROM", 'INSERT INTO "sqlite_sequence"')
            ):
                copy.execute(line)
        copy.execute(f"PRAGMA application_id = {schema.APPLICATION}")
        copy.commit()
        copy.close()
    db.close()
    overwrite(path, 0, bytes(100))  # the page size must be guessed
    assert {id: list(one.events) for id, one in by_id(path).items()} == EXPECTED


def test_a_file_of_format_1_is_read_and_sound(tmp_path: Path) -> None:
    path = Path(shutil.copy(DATA / "store_v1.db", tmp_path))
    assert check(path).sound
    assert check(path).format == 1
    sound = salvage(path)
    with sqlite3.connect(path) as db:
        assert {one.summary.id for one in sound.conversations} == {
            id for (id,) in db.execute("SELECT id FROM conversations WHERE last_seq > 0")
        }
    db.close()
    overwrite(path, 0, bytes(100))
    assert salvage(path).conversations == sound.conversations


def test_one_conversation_is_read_by_its_id(path: Path) -> None:
    assert [one.summary.id for one in salvage(path, "beta").conversations] == ["beta"]
    with pytest.raises(ConversationNotFound, match="nobody"):
        salvage(path, "nobody")


def test_what_a_newer_version_wrote_is_no_gap(path: Path) -> None:
    db = sqlite3.connect(path)
    data = (
        b'{"type":"hologram","seq":4,"id":"e4","timestamp":"2026-11-02T09:30:00Z","shape":"cube"}'
    )
    db.execute("INSERT INTO events VALUES (?, ?, ?)", ((2 << 32) + 4, zlib.crc32(data), data))
    db.execute("UPDATE conversations SET last_seq = 4 WHERE id = 'beta'")
    db.commit()
    db.close()
    for wrecked in (False, True):
        if wrecked:
            overwrite(path, 0, bytes(PAGE))
        conversation = by_id(path)["beta"]
        assert (
            conversation.gaps,
            conversation.events[3].type,
            ev.encode(conversation.events[3]),
        ) == (
            (),
            "hologram",
            data,
        )


def test_the_columns_stand_where_they_are_looked_for(path: Path) -> None:
    """Pages name no columns, so a new column must come last."""
    from holdfast.store.sqlite.scan import _COLUMNS  # pyright: ignore[reportPrivateUsage]

    db = sqlite3.connect(path)
    names = [row[1] for row in db.execute("PRAGMA table_info(conversations)")]
    db.close()
    assert names[: len(_COLUMNS)] == list(_COLUMNS)


# --- damage ---


def salvage_checked(path: Path) -> dict[str, Salvaged]:
    """Salvage a damaged copy and check the result: no event that was not written, and no silent
    loss."""
    before = contents(path.parent)
    conversations = by_id(path)
    report = check(path)
    assert contents(path.parent) == before
    for id, one in conversations.items():
        events = readable_events(one)
        assert id in EXPECTED or id.startswith("number-")
        if id in EXPECTED:
            assert all(EXPECTED[id][seq - 1] == event for seq, event in events.items())
            if len(events) < len(EXPECTED[id]):
                assert one.gaps or one.notes or salvage(path).troubles
                assert not report.sound
    if EXPECTED.keys() - conversations.keys():
        assert salvage(path).troubles
        assert not report.sound
    return conversations


@pytest.mark.slow
@pytest.mark.parametrize("how", ["zeroed", "torn", "garbage"])
def test_any_page_may_be_lost(path: Path, how: str) -> None:
    sound = path.read_bytes()
    with contextlib.closing(PageFile(path)) as image:
        leaves = [
            n
            for n in range(2, image.count + 1)
            if image.page(n)[0] == 0x0D and n not in image.free()
        ]
        count = image.count
    lost_leaves = 0
    for number in [*random.Random(how).sample(range(4, count + 1), 20), 1, 2, 3]:
        path.write_bytes(sound)
        overwrite(path, (number - 1) * PAGE, garbage(how, number))
        conversations = salvage_checked(path)
        assert set(conversations) == set(EXPECTED)
        missing = sum(
            len(EXPECTED[id]) - len(readable_events(one)) for id, one in conversations.items()
        )
        assert missing <= (2 if how == "torn" else 22), (
            "a page's own rows, at most, and those of a fork that shares them"
        )
        lost_leaves += missing and number in leaves
    assert lost_leaves


@pytest.mark.proof
@pytest.mark.parametrize("how", ["zeroed", "torn", "garbage"])
def test_every_page_may_be_lost(path: Path, how: str) -> None:
    sound = path.read_bytes()
    for number in range(len(sound) // PAGE):
        path.write_bytes(sound)
        overwrite(path, number * PAGE, garbage(how, number))
        assert set(salvage_checked(path)) == set(EXPECTED)


@pytest.mark.proof
def test_the_file_may_end_anywhere(path: Path) -> None:
    sound = path.read_bytes()
    for end in range(0, len(sound), 512):
        path.write_bytes(sound[:end])
        if end <= 16 * PAGE:  # the first events are on page 17
            with contextlib.suppress(StoreError):
                salvage_checked(path)
        else:
            salvage_checked(path)


def test_a_file_that_was_cut_off_keeps_what_is_left(path: Path) -> None:
    sound = path.read_bytes()
    path.write_bytes(sound[: 34 * PAGE + 700])
    conversations = salvage_checked(path)
    assert len(readable_events(conversations["alpha"])) > 40
    assert len(conversations["alpha"].events) == ALPHA, "what is missing is named up to the last"
    assert conversations["alpha"].gaps[-1].last == ALPHA
    assert any(
        "the file ends after 35 of 90 pages" in trouble for trouble in salvage(path).troubles
    )


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(8))
def test_any_bits_may_flip(path: Path, seed: int) -> None:
    sound = path.read_bytes()
    chance = random.Random(seed)
    for page in range(len(sound) // PAGE):
        path.write_bytes(sound)
        for _ in range(chance.choice((1, 1, 3, 30))):
            flip(path, page * PAGE + chance.randrange(PAGE), chance.randrange(8))
        for name in by_id(path):
            readable_events(by_id(path)[name])
        check(path)


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(30))
def test_random_bytes_are_no_store(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    path = tmp_path / "random.db"
    begins = (b"", b"SQLite format 3\0", b"SQLite format 3\0\x10\0\1\1\0\x40\x20\x20")[seed % 3]
    path.write_bytes(begins + chance.randbytes(chance.choice((0, 1, 99, 5000, 300_000))))
    Path(f"{path}-wal").write_bytes(chance.randbytes(chance.choice((0, 31, 5000))))
    for operation in (check, salvage):
        with pytest.raises(StoreError, match="not a Holdfast store"):
            operation(path)


def test_the_file_s_own_table_of_contents_may_be_lost(path: Path) -> None:
    overwrite(path, 0, bytes(PAGE))
    conversations = salvage_checked(path)
    assert {id: list(one.events) for id, one in conversations.items()} == EXPECTED
    assert conversations["gamma"].summary.parent == "alpha"


def root(path: Path, name: str) -> int:
    db = sqlite3.connect(path)
    page = db.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (name,)).fetchone()[0]
    db.close()
    return int(page)


def test_a_lost_table_of_conversations_is_made_up_for(path: Path) -> None:
    pages = {
        name: root(path, name)
        for name in ("conversations", "sqlite_autoindex_conversations_1", "conversations_forked")
    }
    overwrite(path, (pages["conversations"] - 1) * PAGE, bytes(PAGE))
    conversations = salvage_checked(path)
    assert {id: list(one.events) for id, one in conversations.items()} == EXPECTED, (
        "ids and forks are in the indexes too"
    )
    assert "taken from its events" in conversations["alpha"].notes[0]
    assert conversations["alpha"].summary.updated == alpha(ALPHA).timestamp
    for name in ("sqlite_autoindex_conversations_1", "conversations_forked"):
        overwrite(path, (pages[name] - 1) * PAGE, bytes(PAGE))
    conversations = salvage_checked(path)
    assert set(conversations) == {
        "number-1",
        "number-2",
        "number-4",
    }, "not the one that was deleted, though its rows are still in the file"
    assert list(conversations["number-1"].events) == EXPECTED["alpha"]
    assert any("named by its number: number-1" in note for note in conversations["number-1"].notes)
    assert conversations["number-4"].gaps == (Gap(1, 100, "not in the file"),)


def test_a_conversation_whose_number_was_changed_is_not_taken_for_deleted(path: Path) -> None:
    at = find(path, b"beta\x03paused")
    data = path.read_bytes()
    header = data.rindex(b"\x02", at - 24, at)  # the rowid, before the record's header
    path.write_bytes(data[:header] + b"\x06" + data[header + 1 :])
    conversations = by_id(path)
    assert any(list(one.events) == EXPECTED["beta"] for one in conversations.values())
    assert not check(path).sound


def test_what_is_being_freed_is_no_conversation_with_a_lost_name(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("INSERT INTO inbox (conversation, key, data) VALUES (2, '', NULL)")
    db.execute("DELETE FROM conversations WHERE id = 'beta'")
    db.commit()
    db.close()
    assert check(path).sound
    overwrite(path, (root(path, "conversations") - 1) * PAGE, bytes(PAGE))
    assert set(by_id(path)) == {"alpha", "gamma"}


def test_a_deleted_conversation_stays_deleted(path: Path) -> None:
    for page in (17, 40):
        overwrite(path, page * PAGE, bytes(PAGE))
        assert set(salvage_checked(path)) == set(EXPECTED)


def test_a_flipped_bit_in_an_event_is_a_gap_that_says_so(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(
        data.replace(
            b'"id":"e7","timestamp":"2026-11-02T09:30:07Z"',
            b'"id":"e7","timestamp":"2026-11-02T09:30:17Z"',
        )
    )
    conversations = salvage_checked(path)
    assert (
        conversations["alpha"].gaps
        == conversations["gamma"].gaps
        == (Gap(7, 7, "the checksum does not match"),)
    )
    placeholder = conversations["alpha"].events[6]
    assert isinstance(placeholder, ev.DamagedEvent)
    assert json.loads(ev.encode(placeholder)) == {
        "type": "damaged",
        "seq": 7,
        "id": "damaged-7",
        "timestamp": "2026-11-02T09:30:06Z",
        "reason": "the checksum does not match",
    }
    assert (
        str(conversations["alpha"].gaps[0]) == "event 7 is unreadable: the checksum does not match"
    )


@pytest.mark.slow
def test_a_flipped_bit_in_a_key_gives_no_event_to_another_conversation(path: Path) -> None:
    data = ev.encode(event(2))
    key = (
        find(path, data) - 11
    )  # before it: a header of 5 bytes, a crc of 4, a rowid of 5, of which the first holds the number's bits
    for offset in range(key, key + 8):
        for bit in range(8):
            sound = path.read_bytes()
            flip(path, offset, bit)
            salvage_checked(path)
            path.write_bytes(sound)


def test_a_last_seq_that_the_file_could_not_hold_is_not_believed(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("UPDATE conversations SET last_seq = 4000000000")
    db.commit()
    db.close()
    conversations = by_id(path)
    assert {id: list(one.events) for id, one in conversations.items()} == EXPECTED
    assert "says that it has 4,000,000,000 events, not 120" in conversations["alpha"].notes[0]
    assert not check(path).sound


def test_what_follows_the_last_seq_is_kept_and_told(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("UPDATE conversations SET last_seq = 50 WHERE id = 'alpha'")
    db.commit()
    db.close()
    conversation = by_id(path)["alpha"]
    assert list(conversation.events) == EXPECTED["alpha"]
    assert conversation.notes == ("its entry says that it has 50 events, not 120",)
    assert check(path).findings[0].problems == conversation.notes


# --- the -wal ---


@pytest.fixture
def crashed(path: Path, tmp_path: Path) -> Path:
    """Return a store whose owner died: ten more events of beta in the -wal, each with its own
    commit; one uncommitted event; no -shm."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA wal_autocheckpoint = 0")
    for seq in range(BETA + 1, BETA + 11):
        data = ev.encode(event(seq, 3000))
        db.execute("BEGIN")
        db.execute("INSERT INTO events VALUES (?, ?, ?)", ((2 << 32) + seq, zlib.crc32(data), data))
        db.execute("UPDATE conversations SET last_seq = ? WHERE id = 'beta'", (seq,))
        db.execute("COMMIT")
    db.execute("PRAGMA cache_size = 1")
    db.execute("PRAGMA cache_spill = 1")
    db.execute("BEGIN")
    for seq in range(BETA + 11, BETA + 30):
        data = ev.encode(event(seq, 3000))
        db.execute("INSERT INTO events VALUES (?, ?, ?)", ((2 << 32) + seq, zlib.crc32(data), data))
    copy = tmp_path / "crashed"
    copy.mkdir()
    for suffix in ("", "-wal"):
        shutil.copy(f"{path}{suffix}", copy / f"store.db{suffix}")
    db.execute("ROLLBACK")
    db.close()
    return copy / "store.db"


def beta(path: Path) -> Salvaged:
    return by_id(path)["beta"]


def by_pages(path: Path) -> list[ev.AnyEvent]:
    rows = PageRows(path)
    try:
        return [ev.decode(data or b"") for _, data in rows.events(2, 1, 99)]
    finally:
        rows.close()


WHOLE = [event(seq, 0 if seq <= BETA else 3000) for seq in range(1, BETA + 11)]
FRAME = 24 + PAGE


def test_what_was_committed_to_the_wal_is_read_and_nothing_else(crashed: Path) -> None:
    before = contents(crashed.parent)
    assert list(beta(crashed).events) == WHOLE
    assert check(crashed).sound
    assert contents(crashed.parent) == before
    assert by_pages(crashed) == WHOLE


@pytest.mark.slow
def test_a_damaged_frame_costs_what_is_on_it_and_is_told(crashed: Path) -> None:
    wal = Path(f"{crashed}-wal")
    sound = wal.read_bytes()
    for frame in (0, 7, 13):
        for offset in (2, 9, 17, 24 + 50, 24 + 4000):
            wal.write_bytes(sound)
            flip(wal, 32 + frame * FRAME + offset)
            result = salvage(crashed)
            assert any("in the -wal" in trouble for trouble in result.troubles), (frame, offset)
            one = beta(crashed)
            events = readable_events(one)
            assert all(WHOLE[seq - 1] == event for seq, event in events.items())
            assert len(events) >= len(WHOLE) - 3
            assert len(one.events) == len(WHOLE)
            assert not check(crashed).sound


@pytest.mark.slow
def test_a_damaged_wal_header_does_not_cost_the_wal(crashed: Path) -> None:
    for offset in (0, 3, 9, 17, 25):
        flip(Path(f"{crashed}-wal"), offset)
        assert list(beta(crashed).events) == WHOLE
        assert any("the -wal" in problem for problem in check(crashed).problems)
        flip(Path(f"{crashed}-wal"), offset)


def test_a_wal_that_was_torn_at_its_end_is_an_ordinary_crash(crashed: Path) -> None:
    wal = Path(f"{crashed}-wal")
    with contextlib.closing(PageFile(crashed)) as image:
        end = max(image._frames.values()) + PAGE  # pyright: ignore[reportPrivateUsage]
    data = wal.read_bytes()[:end]
    wal.write_bytes(data + data[:FRAME] + bytes(100))
    assert check(crashed).sound
    assert list(beta(crashed).events) == WHOLE


def resum(data: bytearray) -> None:
    """Correct the checksums of a -wal, in the byte order that its header names."""
    order = ">" if data[3] & 1 else "<"
    sums = checksum(bytes(data[:24]), (0, 0), order)
    data[24:32] = b"".join(each.to_bytes(4) for each in sums)
    for at in range(32, len(data) - FRAME + 1, FRAME):
        sums = checksum(
            bytes(data[at + 24 : at + FRAME]),
            checksum(bytes(data[at : at + 8]), sums, order),
            order,
        )
        data[at + 16 : at + 24] = b"".join(each.to_bytes(4) for each in sums)


def test_the_checksums_of_a_wal_may_be_in_either_byte_order(crashed: Path) -> None:
    wal = Path(f"{crashed}-wal")
    data = bytearray(wal.read_bytes())
    data[3] ^= 1
    resum(data)
    wal.write_bytes(data)
    assert check(crashed).sound
    assert by_pages(crashed) == WHOLE


def test_an_event_that_is_damaged_on_the_newest_page_is_read_from_an_older_one(
    crashed: Path,
) -> None:
    """The damage came before the page was written, so the checksum of its frame is right."""
    wal = Path(f"{crashed}-wal")
    data = bytearray(wal.read_bytes())
    at = -1
    while (at := data.find(b'"id":"e3"', at + 1)) >= 0:
        data[at] ^= 1
    resum(data)
    wal.write_bytes(data)
    assert check(crashed).findings[0].gaps == (Gap(3, 3, "the checksum does not match"),)
    assert beta(crashed) == Salvaged(beta(crashed).summary, tuple(WHOLE))


@pytest.mark.parametrize(
    "left", [b"", b"garbage", bytes(40_000), random.Random(1).randbytes(40_000)]
)
def test_a_lost_wal_costs_what_was_in_it(crashed: Path, left: bytes) -> None:
    Path(f"{crashed}-wal").write_bytes(left)
    assert list(beta(crashed).events) == EXPECTED["beta"]


def test_a_disk_that_fails_costs_what_is_on_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failing disk is simulated: a read of page 20 raises the kernel's error."""
    import os

    pread = os.pread

    def failing(fd: int, length: int, offset: int) -> bytes:
        if offset == 22 * PAGE:
            raise OSError(5, "Input/output error")
        return pread(fd, length, offset)

    monkeypatch.setattr(os, "pread", failing)
    overwrite(path, 0, bytes(100))
    conversations = by_id(path)
    assert set(conversations) == set(EXPECTED)
    assert 0 < ALPHA - len(readable_events(conversations["alpha"])) < 12


# --- reports of check ---


def check_after(path: Path, *statements: str) -> Report:
    db = sqlite3.connect(path)
    for statement in statements:
        db.execute(statement)
    db.commit()
    db.close()
    return check(path)


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        (
            "DELETE FROM events WHERE key = (1 << 32) + 50",
            "alpha: event 50 is unreadable: not in the file",
        ),
        (
            "DELETE FROM events WHERE key = (1 << 32) + 50",
            "gamma: event 50 is unreadable: not in the file",
        ),
        (
            "DELETE FROM events WHERE key BETWEEN (4 << 32) + 105 AND (4 << 32) + 107",
            "gamma: events 105-107 are unreadable: not in the file",
        ),
        (
            "DELETE FROM events WHERE key = (2 << 32) + 3",
            "beta: event 3 is unreadable: not in the file",
        ),
        (
            "UPDATE events SET crc = 1 WHERE key = (2 << 32) + 2",
            "beta: event 2 is unreadable: the checksum does not match",
        ),
        (
            "UPDATE conversations SET last_seq = 2 WHERE id = 'beta'",
            "beta: its entry says that it has 2 events, not 3",
        ),
        (
            "UPDATE conversations SET base = 'nonsense' WHERE id = 'gamma'",
            "gamma: events 1-100 are unreadable: not in the file",
        ),
        (
            "UPDATE conversations SET base = '[[9,100]]' WHERE id = 'gamma'",
            "gamma: events 1-100 are unreadable: not in the file",
        ),
        (
            "DELETE FROM events WHERE key = (1 << 32) + 5",
            "alpha: event 5 is unreadable: not in the file",
        ),
        (
            "DELETE FROM conversations WHERE id = 'beta'",
            "events up to 3 (3 in all) of a conversation number 2 that does not exist",
        ),
        ("UPDATE blobs SET data = X'00'", "does not match its id"),
        ("DELETE FROM blobs", "1 blobs that events refer to are missing"),
        (
            "DELETE FROM events WHERE key = (1 << 32) + 6",
            "1 blobs are kept for events that do not exist",
        ),
        (
            "UPDATE inbox SET data = X'00' WHERE key = 'k'",
            "the command 1 in the inbox of 'alpha' cannot be read",
        ),
        ("UPDATE inbox SET conversation = 77", "there is no such conversation"),
        ("DROP TABLE blobs", "missing tables: blobs"),
        ("PRAGMA application_id = 0", "application id"),
    ],
)
def test_check_names_what_is_wrong(path: Path, statement: str, problem: str) -> None:
    report = check_after(path, statement)
    assert not report.sound
    assert any(problem in line for line in [*report.problems, *map(str, report.findings)]), report


def test_a_bad_event_is_said_to_be_none_and_its_place_is_checked(path: Path) -> None:
    db = sqlite3.connect(path)
    for seq, data in (
        (1, b'{"type":"message","seq":"one"}'),
        (2, b"not JSON"),
        (3, ev.encode(event(2))),
    ):
        db.execute(
            "UPDATE events SET crc = ?, data = ? WHERE key = ?",
            (zlib.crc32(data), data, (2 << 32) + seq),
        )
    db.commit()
    db.close()
    gaps = check(path).findings[0].gaps
    assert [gap.first for gap in gaps] == [1, 2, 3]
    assert "its message cannot be decoded" in gaps[0].reason
    assert "it is not an event" in gaps[1].reason
    assert gaps[2].reason == "another event (2) stands in its place"


def test_a_result_of_a_call_that_nobody_made_is_told(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    maker = Maker(path)
    maker.conversation("one", 1, 3)
    maker.event(1, event(1))
    maker.event(
        1, ev.ToolCallFinished(seq=2, id="e2", timestamp=NOW, call_id="1.0", result=ToolResult("x"))
    )
    maker.event(1, event(3))
    maker.db.close()
    assert check(path).findings[0].problems == ("event 2 is the result of an unknown call '1.0'",)


def test_commands_of_a_newer_version_and_what_is_being_freed_are_sound(path: Path) -> None:
    report = check_after(
        path,
        """INSERT INTO inbox (conversation, key, data) VALUES (1, 'x', '{"command":"dance","steps":3}')""",
        "INSERT INTO inbox (conversation, key, data) VALUES (2, '', NULL)",
        "DELETE FROM conversations WHERE id = 'beta'",
    )
    assert (report.sound, report.conversations) == (True, 2)


def test_a_newer_format_is_refused_by_check_and_read_by_salvage(path: Path) -> None:
    with pytest.raises(StoreError, match="newer Holdfast"):
        check_after(path, "PRAGMA user_version = 99")
    assert {id: list(one.events) for id, one in by_id(path).items()} == EXPECTED


@pytest.mark.parametrize("wrong", ["nothing", "folder", "empty", "text", "other.db"])
def test_what_is_no_store_is_told_and_not_touched(tmp_path: Path, wrong: str) -> None:
    path = tmp_path / wrong
    if wrong == "folder":
        path.mkdir()
    elif wrong == "other.db":
        db = sqlite3.connect(path)
        db.execute("CREATE TABLE conversations (x)")
        db.close()
    elif wrong != "nothing":
        path.write_text("" if wrong == "empty" else "hello\n" * 500)
    for look in (check, salvage):
        with pytest.raises(StoreError, match=r"does not exist|not a Holdfast store"):
            look(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ([] if wrong == "nothing" else [wrong])


def test_progress_is_told_and_ctrl_c_reaches_through_sqlite(path: Path) -> None:
    db = sqlite3.connect(path)
    rows = [
        ((2 << 32) + seq, zlib.crc32(data), data)
        for seq in range(BETA + 1, 3000)
        if (data := ev.encode(event(seq)))
    ]
    db.executemany("INSERT INTO events VALUES (?, ?, ?)", rows)
    db.execute("UPDATE conversations SET last_seq = 2999 WHERE id = 'beta'")
    db.commit()
    db.close()
    reports: list[tuple[int, int]] = []
    assert check(path, lambda checked, total: reports.append((checked, total))).sound
    assert len([checked for checked, _ in reports if checked]) >= 5
    assert reports[-1][0] <= reports[-1][1]

    def interrupt(checked: int, total: int) -> None:
        raise KeyboardInterrupt

    for look in (check, SalvageReader):
        with pytest.raises(KeyboardInterrupt):
            look(path, interrupt)


@pytest.mark.slow
def test_a_store_in_use_is_checked_as_it_was_at_one_moment(path: Path) -> None:
    program = """
import sys, time
from holdfast.store import Batch, SQLiteStore, Summary
from tests.store.test_store import message
with SQLiteStore(sys.argv[1], "process") as store:
    lease = store.acquire("busy")
    print("go", flush=True)
    for seq in range(1, 1_000_000):
        store.append(lease, Batch([message(seq)], Summary("busy", last_seq=seq)))
        time.sleep(0.0005)
"""
    process = forks.Popen(
        [sys.executable, "-c", program, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPO,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "go\n"
        counts: list[int] = []
        for _ in range(8):
            report = check(path)
            assert report.sound, report
            counts.append(report.events)
            assert {
                id: list(one.events) for id, one in by_id(path).items() if id != "busy"
            } == EXPECTED
        assert process.poll() is None
        assert counts[-1] > counts[0]
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_whatever_a_store_does_its_file_is_sound_and_its_pages_tell_all(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    path = tmp_path / "store.db"
    count = 0
    with SQLiteStore(path, "process") as store:
        for step in range(60):
            entries = store.list()
            entry = chance.choice(entries) if entries else None
            match chance.choice(
                ["new", "new", "append", "append", "fork", "fork", "delete", "post", "empty"]
            ):
                case "append" if entry is not None:
                    lease = store.acquire(entry.id)
                    more = [
                        event(entry.last_seq + n, chance.choice((10, 400, 9000)))
                        for n in range(1, chance.choice((2, 30)))
                    ]
                    blobs = [Blob(more[0].seq, chance.randbytes(5000))]
                    store.append(
                        lease, Batch(more, Summary(entry.id, last_seq=more[-1].seq), blobs=blobs)
                    )
                    store.release(lease)
                case "fork" if entry is not None:
                    store.fork(
                        entry.id, Summary(f"f{step}", last_seq=chance.randint(1, entry.last_seq))
                    )
                case "delete" if entry is not None:
                    store.delete(entry.id)
                case "post" if entry is not None:
                    store.post(entry.id, commands.Send("hello"))
                case "empty":
                    store.acquire(f"e{step}")
                case _:
                    count += 1
                    lease = store.acquire(f"c{count}")
                    first = [event(n, 300) for n in range(1, chance.choice((2, 300)))]
                    store.append(lease, Batch(first, Summary(f"c{count}", last_seq=len(first))))
                    store.release(lease)
            if step % 10 == 0:
                assert check(path).sound, check(path)
        expected = {entry.id: store.read(entry.id) for entry in store.list()}
        summaries = {entry.id: entry for entry in store.list()}
        report = check(path)
        assert report.sound, report
        assert report.events == sum(map(len, expected.values()))
        conversations = by_id(path)
        assert {id: list(one.events) for id, one in conversations.items()} == expected
        assert {id: one.summary for id, one in conversations.items()} == summaries
    overwrite(path, 0, bytes(100))
    conversations = by_id(path)
    assert {id: list(one.events) for id, one in conversations.items()} == expected
    assert {id: one.summary for id, one in conversations.items()} == summaries


@pytest.mark.slow
def test_a_file_that_may_only_be_read_in_a_folder_that_may_only_be_read(
    crashed: Path, path: Path
) -> None:
    """With a -wal and without one; by a user who owns neither."""
    program = """
import os, sys
sys.path[:0] = sys.argv[2:]
import holdfast.store.check as c, holdfast.store.salvage as s
if os.geteuid() == 0:
    c.check(sys.argv[1]), s.salvage(sys.argv[1])  # loads what nobody else may read of this Python
    os.setegid(65534); os.seteuid(65534)
try: open(sys.argv[1], "r+b")
except PermissionError: pass
else: sys.exit("it may be written")
print(c.check(sys.argv[1]).sound, sum(len(one.events) for one in s.salvage(sys.argv[1]).conversations))
"""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        for source in (crashed, path):
            for suffix in ("", "-wal"):
                if Path(f"{source}{suffix}").exists():
                    shutil.copy(f"{source}{suffix}", folder / f"store.db{suffix}")
                    (folder / f"store.db{suffix}").chmod(0o444)
                elif (folder / f"store.db{suffix}").exists():
                    (folder / f"store.db{suffix}").unlink()
            folder.chmod(0o555)
            try:
                arguments = [sys.executable, "-c", program, str(folder / "store.db"), *sys.path]
                ended = subprocess.run(arguments, capture_output=True, text=True, check=False)
            finally:
                folder.chmod(0o755)
            assert (ended.stdout, ended.stderr) == (f"True {ALPHA + GAMMA + BETA + 10}\n", "")


# --- salvaged conversations continue ---


def test_a_salvaged_conversation_goes_on(path: Path) -> None:
    overwrite(path, 22 * PAGE, bytes(PAGE))
    salvaged = by_id(path)["alpha"]
    assert salvaged.gaps
    state = ConversationState(salvaged.summary.id, salvaged.events)
    agent = Agent(ScriptedLLM(["Here again."]))
    conversation = Conversation.from_state(ConversationState.from_json(state.to_json()), agent)
    try:
        conversation.send_message("Go on.")
        conversation.run()
        assert conversation.state.answer == "Here again."
        assert [event.type for event in conversation.state.events[: len(salvaged.events)]] == [
            event.type for event in salvaged.events
        ]
    finally:
        conversation.close()


def test_a_salvaged_conversation_whose_result_is_lost_goes_on(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("UPDATE events SET crc = 0 WHERE key = (1 << 32) + 6")
    answer = ev.encode(ev.AssistantReplied(seq=7, id="e7", timestamp=NOW, text="done", based_on=6))
    db.execute(
        "UPDATE events SET crc = ?, data = ? WHERE key = (1 << 32) + 7",
        (zlib.crc32(answer), answer),
    )
    db.commit()
    db.close()
    salvaged = by_id(path)["alpha"]
    assert salvaged.gaps == (Gap(6, 6, "the checksum does not match"),)
    conversation = Conversation.from_state(
        ConversationState("alpha", salvaged.events), Agent(ScriptedLLM(["Here again."]))
    )
    try:
        conversation.send_message("Go on.")
        conversation.run()
        assert conversation.state.answer == "Here again."
    finally:
        conversation.close()


# --- errors of sqlite3 about garbage ---


def use(path: Path, read_only: bool) -> None:
    """Open a store and read all that it lists."""
    with SQLiteStore(path, read_only=read_only) as store:
        for entry in store.list():
            store.read(entry.id)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 150, 30))
def test_bytes_overwritten_at_random_raise_nothing_but_store_errors(
    original: Path, tmp_path: Path, first: int
) -> None:
    good = original.read_bytes()
    for seed in range(first, first + 30):
        chance = random.Random(seed)
        data = bytearray(good)
        end = len(data) if seed % 2 else 3 * PAGE  # the part that SQLite itself needs
        for _ in range(chance.randint(1, 40)):
            data[chance.randrange(end)] = chance.randrange(256)
        damaged = tmp_path / f"{seed}.db"
        for look in (check, salvage, lambda path: use(path, True), lambda path: use(path, False)):
            damaged.write_bytes(data)
            with contextlib.suppress(StoreError):
                look(damaged)


def test_a_schema_whose_message_is_no_text_is_damage(path: Path) -> None:
    """SQLite quotes the schema in its message, and sqlite3 raises a UnicodeDecodeError for it."""
    data = path.read_bytes()
    at = data.index(b"CREATE TABLE events")
    for garbage in (b"\xff\xfe\xfd", b"CREATE \xff\xff"):
        path.write_bytes(data[:at] + garbage + data[at + len(garbage) :])
        assert not check(path).sound
        assert by_id(path)["alpha"].events == tuple(EXPECTED["alpha"])
        for read_only in (True, False):
            with pytest.raises(StoreError):
                use(path, read_only)
