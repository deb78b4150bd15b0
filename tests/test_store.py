"""What every store keeps to: one contract, held against each of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import events as ev
from holdfast.content import TextContent
from holdfast.errors import ConversationNotFound, Fenced, LeaseHeld, StoreError
from holdfast.store import MemoryStore, SQLiteStore, Store, Summary

NOW = datetime(2026, 11, 2, 9, 30, tzinfo=UTC)


def message(seq: int, text: str = "") -> ev.Message:
    return ev.Message(seq=seq, id=f"e{seq}", timestamp=NOW + timedelta(seconds=seq), content=(TextContent(text or f"message {seq}"),))


def summary(id: str, seq: int, **fields: Any) -> Summary:
    fields = {"status": "running", "title": "title", "created": NOW, "updated": NOW + timedelta(seconds=seq), **fields}
    return Summary(id, last_seq=seq, **fields)


def append(store: Store, lease: Any, *seqs: int) -> None:
    store.append(lease, [message(seq) for seq in seqs], summary(lease.conversation_id, seqs[-1]))


def seqs(store: Store, id: str, after: int = 0) -> list[int]:
    return [event.seq for event in store.read(id, after)]


@pytest.fixture(params=["memory", "durable", "process"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made: Store = MemoryStore() if request.param == "memory" else SQLiteStore(tmp_path / "store.db", request.param)
    yield made
    made.close()


# --- reading and writing -------------------------------------------------------------------------


def test_what_was_appended_is_read_in_order(store: Store) -> None:
    lease = store.acquire("c")
    append(store, lease, 1)
    append(store, lease, 2, 3)
    assert store.read("c") == [message(1), message(2), message(3)]


def test_events_of_every_kind_come_back(store: Store) -> None:
    lines = (Path(__file__).parent / "data" / "journal_v1.jsonl").read_bytes().split(b"\n")[:-1]
    journal = [ev.decode(line) for line in lines]
    store.append(store.acquire("c"), journal, summary("c", len(journal)))
    assert store.read("c") == journal
    assert [ev.encode(event) for event in store.read("c")] == lines


def test_reading_begins_after_a_seq(store: Store) -> None:
    append(store, store.acquire("c"), 1, 2, 3)
    assert [seqs(store, "c", after) for after in (-5, -1, 0, 1, 2, 3, 99)] == [[1, 2, 3]] * 3 + [[2, 3], [3], [], []]


def test_a_conversation_that_is_not_there_has_no_events(store: Store) -> None:
    assert store.read("c") == []
    assert store.list() == []


def test_conversations_do_not_see_each_others_events(store: Store) -> None:
    for id in ("a", "b"):
        append(store, store.acquire(id), *range(1, 4))
    assert seqs(store, "a") == seqs(store, "b") == [1, 2, 3]


def test_a_result_of_a_read_is_the_callers_own(store: Store) -> None:
    append(store, store.acquire("c"), 1)
    store.read("c").clear()
    assert seqs(store, "c") == [1]


@pytest.mark.parametrize("id", ["", "with space", "ünïcode 👋", "a/b\\c", "'; DROP TABLE events; --", "x" * 5000, "a\x00b"])
def test_an_id_may_be_any_text(store: Store, id: str) -> None:
    append(store, store.acquire(id), 1)
    assert seqs(store, id) == [1]
    assert [found.id for found in store.list()] == [id]


def test_an_event_of_ten_megabytes_is_kept(store: Store) -> None:
    big = message(1, "ü" * 5_000_000)
    store.append(store.acquire("c"), [big], summary("c", 1))
    assert store.read("c") == [big]


def test_an_append_of_nothing_writes_nothing(store: Store) -> None:
    lease = store.acquire("c")
    store.append(lease, [], summary("c", 0))
    append(store, lease, 1)
    store.append(lease, [], summary("c", 1))
    assert seqs(store, "c") == [1]


@pytest.mark.parametrize(
    ("before", "wrong"), [([], [2]), ([], [0]), ([1], [1]), ([1, 2], [2]), ([1], [3]), ([1], [2, 4]), ([1], [2, 2]), ([1], [3, 2])]
)
def test_events_must_be_dense(store: Store, before: list[int], wrong: list[int]) -> None:
    lease = store.acquire("c")
    if before:
        append(store, lease, *before)
    with pytest.raises(StoreError, match=r"does not follow event \d+\. Nothing was written\.") as caught:
        append(store, lease, *wrong)
    assert not isinstance(caught.value, Fenced)
    assert seqs(store, "c") == before
    append(store, lease, len(before) + 1)


# --- listing -------------------------------------------------------------------------------------


def test_the_listing_shows_the_last_written_first(store: Store) -> None:
    for n, id in enumerate("abc"):
        store.append(store.acquire(id), [message(1)], summary(id, 1, updated=NOW + timedelta(minutes=5 - n)))
    assert [found.id for found in store.list()] == ["a", "b", "c"]


def test_of_two_written_at_one_time_the_newer_conversation_comes_first(store: Store) -> None:
    for id in "abc":
        store.append(store.acquire(id), [message(1)], summary(id, 1))
    assert [found.id for found in store.list()] == ["c", "b", "a"]


def test_the_listing_shows_the_last_summary(store: Store) -> None:
    lease = store.acquire("c")
    store.append(lease, [message(1)], summary("c", 1))
    last = summary("c", 3, status="finished", title="Grüße 👋", created=NOW, updated=NOW + timedelta(hours=1, microseconds=5))
    store.append(lease, [message(2), message(3)], last)
    assert store.list() == [last]


def test_a_conversation_is_created_when_its_first_event_was(store: Store) -> None:
    store.append(store.acquire("c"), [message(1)], summary("c", 1, created=NOW - timedelta(days=400)))
    assert store.list()[0].created == NOW - timedelta(days=400)


def test_a_conversation_without_events_is_not_listed(store: Store) -> None:
    store.acquire("c")
    assert store.list() == []


# --- leases --------------------------------------------------------------------------------------


def test_a_lease_is_held_by_one(store: Store) -> None:
    store.acquire("c")
    with pytest.raises(LeaseHeld, match="Conversation 'c' is held by another Conversation in this process") as caught:
        store.acquire("c")
    assert (caught.value.conversation_id, isinstance(caught.value, BlockingIOError)) == ("c", True)


def test_a_lease_that_was_given_back_can_be_taken_with_a_higher_epoch(store: Store) -> None:
    epochs: list[int] = []
    for _ in range(4):
        lease = store.acquire("c")
        epochs.append(lease.epoch)
        store.release(lease)
        store.release(lease)
    assert epochs == sorted(set(epochs))


def test_a_fenced_owner_writes_nothing(store: Store) -> None:
    old = store.acquire("c")
    append(store, old, 1)
    store.release(old)
    new = store.acquire("c")
    with pytest.raises(Fenced, match=f"Conversation 'c' was taken over; epoch {old.epoch} may not write") as caught:
        append(store, old, 2)
    assert isinstance(caught.value, PermissionError)
    assert seqs(store, "c") == [1]
    append(store, new, 2)
    with pytest.raises(Fenced):
        append(store, old, 3)
    with pytest.raises(Fenced):
        store.append(old, [], summary("c", 2))
    assert seqs(store, "c") == [1, 2]
    assert store.list()[0].last_seq == 2


def test_an_owner_writes_nothing_after_it_gave_the_lease_back(store: Store) -> None:
    lease = store.acquire("c")
    append(store, lease, 1)
    store.release(lease)
    with pytest.raises(Fenced):
        append(store, lease, 2)
    assert seqs(store, "c") == [1]


def test_an_old_lease_cannot_be_released_over_a_new_one(store: Store) -> None:
    old = store.acquire("c")
    store.release(old)
    new = store.acquire("c")
    store.release(old)
    with pytest.raises(LeaseHeld):
        store.acquire("c")
    append(store, new, 1)


def test_a_lease_of_one_conversation_does_not_fit_another(store: Store) -> None:
    old = store.acquire("a")
    append(store, old, 1)
    store.release(old)
    store.delete("a")
    other = store.acquire("b")
    with pytest.raises(Fenced):
        append(store, old, 1)
    assert store.read("b") == []
    append(store, other, 1)


# --- deleting ------------------------------------------------------------------------------------


def test_a_deleted_conversation_is_gone_and_may_begin_again(store: Store) -> None:
    for id in "ab":
        lease = store.acquire(id)
        append(store, lease, 1, 2)
        store.release(lease)
    store.delete("a")
    assert store.read("a") == []
    assert [found.id for found in store.list()] == ["b"]
    assert seqs(store, "b") == [1, 2]
    append(store, store.acquire("a"), 1)
    assert seqs(store, "a") == [1]


def test_what_is_not_there_or_is_held_cannot_be_deleted(store: Store) -> None:
    with pytest.raises(ConversationNotFound, match="No conversation 'c'") as caught:
        store.delete("c")
    assert isinstance(caught.value, LookupError)
    append(store, store.acquire("c"), 1)
    with pytest.raises(LeaseHeld):
        store.delete("c")
    assert seqs(store, "c") == [1]


# --- closing -------------------------------------------------------------------------------------


def test_a_closed_store_says_so_and_is_closed_once(store: Store) -> None:
    lease = store.acquire("c")
    append(store, lease, 1)
    store.close()
    store.close()
    store.release(lease)
    uses: list[Any] = [
        lambda: store.acquire("d"),
        lambda: append(store, lease, 2),
        lambda: store.read("c"),
        store.list,
        lambda: store.delete("c"),
    ]
    for use in uses:
        with pytest.raises(StoreError, match="is closed"):
            use()


def test_a_store_closes_at_the_end_of_its_block(store: Any) -> None:
    with store as inside:
        assert inside is store
    with pytest.raises(StoreError):
        store.list()


# --- threads -------------------------------------------------------------------------------------


def test_thirty_two_threads_append_to_thirty_two_conversations_while_others_read(store: Store) -> None:
    stop = threading.Event()

    def write(id: str) -> None:
        lease = store.acquire(id)
        for n in range(1, 21):
            append(store, lease, 2 * n - 1, 2 * n)

    def look() -> int:
        looks = 0
        while not stop.is_set():
            for found in store.list():
                events = seqs(store, found.id)
                assert events == list(range(1, len(events) + 1))
                assert len(events) % 2 == 0, "half of an append was seen"
                assert len(events) >= found.last_seq
                looks += 1
        return looks

    ids = [f"c{n}" for n in range(32)]
    with ThreadPoolExecutor(34) as pool:
        readers = [pool.submit(look) for _ in range(2)]
        try:
            for done in [pool.submit(write, id) for id in ids]:
                done.result()
        finally:
            stop.set()
        assert all(reader.result() > 0 for reader in readers)
    assert all(seqs(store, id) == list(range(1, 41)) for id in ids)


def test_of_many_threads_that_want_a_lease_one_has_it(store: Store) -> None:
    barrier = threading.Barrier(16)

    def take() -> bool:
        barrier.wait()
        try:
            store.acquire("c")
        except LeaseHeld:
            return False
        return True

    with ThreadPoolExecutor(16) as pool:
        assert sum([future.result() for future in [pool.submit(take) for _ in range(16)]]) == 1


def test_appends_that_may_not_write_fail_alone_among_others(store: Store) -> None:
    """Valid, fenced and gapped appends at once, so that they meet in one commit."""
    leases = {f"c{n}": store.acquire(f"c{n}") for n in range(24)}
    for n in range(0, 24, 3):
        store.release(leases[f"c{n}"])  # fenced
    barrier = threading.Barrier(24)

    def write(n: int) -> str:
        barrier.wait()
        for seq in range(1, 11):
            try:
                append(store, leases[f"c{n}"], seq + (n % 3 == 1))
            except StoreError as error:
                return type(error).__name__
        return "wrote"

    with ThreadPoolExecutor(24) as pool:
        outcomes = list(pool.map(write, range(24)))
    assert outcomes == ["Fenced", "StoreError", "wrote"] * 8
    assert [len(store.read(f"c{n}")) for n in range(24)] == [0, 0, 10] * 8
