"""The index of timers: its contract, tested with every store."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from holdfast import events as ev
from holdfast.commands import RingTimer, Send
from holdfast.content import TextContent
from holdfast.errors import Fenced, StoreError
from holdfast.store import (
    Batch,
    DueTimer,
    Lease,
    MemoryStore,
    RestingConversation,
    SQLiteStore,
    Store,
    TimerRow,
)
from holdfast.store.base import MAX_TAIL_TO_FIRE
from holdfast.store.timers import rebuild
from holdfast.store.transfer import export_conversation, import_conversations
from tests.store import test_store
from tests.store.test_store import NOW, append, message, seqs, summary

store = test_store.store  # the fixture: each store in turn

SECOND = timedelta(seconds=1)


@pytest.fixture(autouse=True)
def skip_without_index(store: Store) -> None:
    """Skip a store that has no index of timers."""
    if type(store).ring is Store.ring:
        pytest.skip(f"{type(store).__name__} has no index of timers")


def set_rows(store: Store, lease: Lease, **due: datetime | None) -> None:
    rows = [TimerRow(timer, at) for timer, at in due.items()]
    last = len(store.read(lease.conversation_id))
    store.append(lease, Batch((), summary(lease.conversation_id, last), timers=rows))


def open_conversation(store: Store, id: str = "c") -> Lease:
    lease = store.acquire(id)
    append(store, lease, 1)
    return lease


def names(due: list[DueTimer]) -> list[str]:
    return [f"{one.conversation_id}.{one.timer}" for one in due]


def test_an_index_without_timers_is_empty(store: Store) -> None:
    open_conversation(store)
    assert store.due(NOW) == store.ring(NOW) == []
    assert store.next_due() is None


def test_rows_are_due_in_the_order_of_their_times(store: Store) -> None:
    set_rows(store, open_conversation(store, "b"), late=NOW + SECOND, early=NOW - SECOND)
    set_rows(store, open_conversation(store, "a"), now=NOW)
    assert names(store.due(NOW - 2 * SECOND)) == []
    assert names(store.due(NOW - SECOND)) == ["b.early"]
    assert names(store.due(NOW)) == ["b.early", "a.now"]
    assert names(store.due(NOW + SECOND)) == ["b.early", "a.now", "b.late"]
    assert names(store.due(NOW + SECOND, 2)) == ["b.early", "a.now"]
    assert store.due(NOW, 0) == []
    assert store.next_due() == NOW - SECOND


@pytest.mark.parametrize(
    "due",
    [
        datetime(1, 1, 2, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        datetime(2026, 11, 2, 9, 30, 0, 123457, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    ],
)
def test_a_due_time_is_exact_to_the_microsecond(store: Store, due: datetime) -> None:
    set_rows(store, open_conversation(store), t=due)
    assert store.next_due() == due
    assert store.due(due) == [DueTimer("c", "t", due)]
    assert store.due(due - timedelta(microseconds=1)) == []


def test_a_time_of_another_zone_is_compared_as_a_moment(store: Store) -> None:
    from zoneinfo import ZoneInfo

    berlin = NOW.astimezone(ZoneInfo("Europe/Berlin"))
    set_rows(store, open_conversation(store), t=berlin)
    assert store.due(NOW) == [DueTimer("c", "t", NOW)]
    assert store.ring(berlin)[0].key == DueTimer("c", "t", NOW).key


def test_a_timer_has_one_row_which_a_later_one_replaces(store: Store) -> None:
    lease = open_conversation(store)
    set_rows(store, lease, t=NOW)
    set_rows(store, lease, t=NOW + SECOND)
    assert store.due(NOW + SECOND) == [DueTimer("c", "t", NOW + SECOND)]
    rows = [TimerRow("t"), TimerRow("t", NOW), TimerRow("u", NOW), TimerRow("u")]
    store.append(lease, Batch((), summary("c", 1), timers=rows))
    assert store.due(NOW + SECOND) == [DueTimer("c", "t", NOW)]
    set_rows(store, lease, t=None, unknown=None)
    assert store.next_due() is None


def test_rows_are_written_with_the_events_or_not_at_all(store: Store) -> None:
    lease = open_conversation(store)
    rows = [TimerRow("t", NOW)]
    with pytest.raises(StoreError, match="does not follow"):
        store.append(lease, Batch([message(3)], summary("c", 3), timers=rows))
    assert store.next_due() is None
    store.append(lease, Batch([message(2)], summary("c", 2), timers=rows))
    assert store.next_due() == NOW


def test_only_the_newest_lease_writes_rows(store: Store) -> None:
    lease = open_conversation(store)
    store.release(lease)
    newer = store.acquire("c")
    with pytest.raises(Fenced):
        set_rows(store, lease, t=NOW)
    assert store.next_due() is None
    set_rows(store, newer, t=NOW)


def test_a_ring_posts_one_command_and_removes_the_row(store: Store) -> None:
    lease = open_conversation(store)
    set_rows(store, lease, t=NOW, later=NOW + SECOND)
    assert store.ring(NOW) == [DueTimer("c", "t", NOW)]
    assert store.ring(NOW) == []
    assert store.next_due() == NOW + SECOND
    [posted] = store.commands(lease)
    assert posted.command == RingTimer("t", NOW)
    assert posted.key == DueTimer("c", "t", NOW).key
    assert [one.id for one in store.list(waiting=True)] == ["c"]


def test_an_occurrence_that_was_rung_is_posted_no_second_time(store: Store) -> None:
    lease = open_conversation(store)
    set_rows(store, lease, t=NOW)
    store.ring(NOW)
    [posted] = store.commands(lease)
    set_rows(store, lease, t=NOW)  # a rebuilt index
    assert names(store.ring(NOW)) == ["c.t"]
    assert store.commands(lease) == [posted]
    store.append(lease, Batch((), summary("c", 1), [posted.number]))
    set_rows(store, lease, t=NOW)
    assert names(store.ring(NOW)) == ["c.t"]
    assert store.commands(lease) == []
    assert store.next_due() is None


def test_a_ring_takes_at_most_its_limit_the_earliest_first(store: Store) -> None:
    lease = open_conversation(store)
    set_rows(store, lease, **{f"t{n}": NOW - n * SECOND for n in range(5)})
    assert names(store.ring(NOW, 2)) == ["c.t4", "c.t3"]
    assert names(store.ring(NOW, 0)) == []
    assert names(store.ring(NOW, 9)) == ["c.t2", "c.t1", "c.t0"]
    assert len(store.commands(lease)) == 5


def test_a_timer_is_rung_for_one_of_several_callers(store: Store) -> None:
    leases = [open_conversation(store, f"c{n}") for n in range(8)]
    for lease in leases:
        set_rows(store, lease, **{f"t{n}": NOW for n in range(10)})
    with ThreadPoolExecutor(8) as pool:
        rings = list(pool.map(lambda _: [store.ring(NOW, 7) for _ in range(8)], range(8)))
    rung_names = [name for rung in rings for ring in rung for name in names(ring)]
    assert len(rung_names) == len(set(rung_names)) == 80
    assert [len(store.commands(lease)) for lease in leases] == [10] * 8


def test_the_holder_of_the_lease_is_notified_of_a_ring(store: Store) -> None:
    rung = threading.Event()
    lease = store.acquire("c", rung.set)
    append(store, lease, 1)
    set_rows(store, lease, t=NOW)
    store.ring(NOW)
    assert rung.wait(30)


def test_a_fork_has_no_rows(store: Store) -> None:
    set_rows(store, open_conversation(store), t=NOW)
    store.fork("c", summary("f", 1))
    assert names(store.ring(NOW)) == ["c.t"]


def test_a_deleted_conversation_has_no_rows(store: Store) -> None:
    for id in ("parent", "parent/child", "other"):
        lease = store.acquire(id)
        spawned_by = "parent:2.0" if "/" in id else ""
        rows = [TimerRow("t", NOW)]
        entry = summary(id, 1, spawned_by=spawned_by)
        store.append(lease, Batch([message(1)], entry, timers=rows))
        store.release(lease)
    store.delete("parent")
    assert names(store.due(NOW)) == ["other.t"]
    append(store, store.acquire("parent"), 1)
    assert names(store.ring(NOW)) == ["other.t"]


# --- timers that the store fires itself ---


def fire_all(resting: RestingConversation) -> Batch:
    """Append a message for each timer that is due."""
    last = resting.last_seq + len(resting.due)
    events = [message(seq) for seq in range(resting.last_seq + 1, last + 1)]
    return Batch(events, summary(resting.id, last))


def at_rest(store: Store, id: str = "c", **due: datetime) -> Lease:
    lease = open_conversation(store, id)
    set_rows(store, lease, **due)
    store.release(lease)
    return lease


def test_timers_of_a_conversation_at_rest_are_fired_in_its_journal(store: Store) -> None:
    lease = at_rest(store, t=NOW - SECOND, u=NOW, later=NOW + SECOND)
    conversations: list[RestingConversation] = []

    def fire(resting: RestingConversation) -> Batch:
        conversations.append(resting)
        rows = [TimerRow("t", NOW + 2 * SECOND)]
        return msgspec.structs.replace(fire_all(resting), timers=rows)

    assert names(store.ring(NOW, 1000, fire)) == ["c.t", "c.u"]
    [resting] = conversations
    assert (resting.id, resting.events, resting.now) == ("c", [message(1)], NOW)
    assert names(list(resting.due)) == ["c.t", "c.u"]
    assert store.read("c") == [message(1), message(2), message(3)]
    assert store.list(["c"]) == [summary("c", 3)]
    assert store.list(waiting=True) == []
    assert names(store.due(NOW + 9 * SECOND)) == ["c.later", "c.t"]
    with pytest.raises(Fenced):
        append(store, lease, 4)
    append(store, store.acquire("c"), 4)


def test_a_conversation_that_is_held_or_has_commands_is_left_to_its_holder(store: Store) -> None:
    set_rows(store, open_conversation(store, "held"), t=NOW)
    at_rest(store, "asked", t=NOW)
    store.post("asked", Send((TextContent("hello"),)))
    at_rest(store, "declined", t=NOW)
    at_rest(store, "free", t=NOW)
    due = store.ring(NOW, 1000, lambda one: None if one.id == "declined" else fire_all(one))
    assert sorted(names(due)) == ["asked.t", "declined.t", "free.t", "held.t"]
    posted = {one.id for one in store.list(waiting=True)}
    assert posted == {"held", "asked", "declined"}
    assert seqs(store, "free") == [1, 2]
    assert all(seqs(store, id) == [1] for id in posted)
    assert store.next_due() is None


def test_a_fork_that_shares_its_tail_is_left_to_its_holder(store: Store) -> None:
    if isinstance(store, MemoryStore):
        pytest.skip("its forks share nothing")
    store.release(open_conversation(store))
    store.fork("c", summary("f", 1))
    lease = store.acquire("f")
    store.append(lease, Batch((), summary("f", 1), timers=[TimerRow("t", NOW)]))
    store.release(lease)
    assert names(store.ring(NOW, 1000, fire_all)) == ["f.t"]
    assert [one.id for one in store.list(waiting=True)] == ["f"]


def test_a_lease_that_is_taken_meanwhile_is_not_written_past(store: Store) -> None:
    if isinstance(store, SQLiteStore):
        pytest.skip("SQLite has one writer at a time")
    at_rest(store, t=NOW)
    at_rest(store, "d", t=NOW)
    leases: list[Lease] = []

    def fire(resting: RestingConversation) -> Batch:
        if resting.id == "c":
            leases.append(store.acquire("c"))
        return fire_all(resting)

    assert names(store.ring(NOW, 1000, fire)) == ["c.t", "d.t"]
    [posted] = store.commands(leases[0])
    assert posted.command == RingTimer("t", NOW)
    assert (seqs(store, "c"), seqs(store, "d")) == ([1], [1, 2])
    append(store, leases[0], 2)


def test_one_transaction_reads_a_limited_number_of_events(store: Store) -> None:
    if isinstance(store, MemoryStore):
        pytest.skip("it reads none")
    for number, size in enumerate((MAX_TAIL_TO_FIRE, MAX_TAIL_TO_FIRE + 1, *[999] * 5)):
        lease = store.acquire(f"c{number}")
        append(store, lease, *range(1, size + 1))
        store.append(lease, Batch((), summary(f"c{number}", size), timers=[TimerRow("t", NOW)]))
        store.release(lease)
    assert names(store.ring(NOW, 1000, fire_all)) == [f"c{number}.t" for number in range(6)]
    assert names(store.ring(NOW, 1000, fire_all)) == ["c6.t"]
    assert store.ring(NOW, 1000, fire_all) == []
    assert [one.id for one in store.list(waiting=True)] == ["c1"]


def test_a_follower_sees_what_the_store_fires(store: Store) -> None:
    at_rest(store, t=NOW)
    follower = store.follow("c", 1, timeout=30)
    threading.Timer(0.2, store.ring, (NOW, 1000, fire_all)).start()
    assert next(follower) == message(2)


def test_a_timer_is_fired_for_one_of_several_callers(store: Store) -> None:
    for number in range(40):
        at_rest(store, f"c{number}", t=NOW, u=NOW)
    with ThreadPoolExecutor(4) as pool:
        rings = pool.map(lambda _: [store.ring(NOW, 9, fire_all) for _ in range(10)], range(4))
        rung_names = [name for rung in rings for ring in rung for name in names(ring)]
    assert len(rung_names) == len(set(rung_names)) == 80
    for number in range(40):
        undone = len(store.commands(store.acquire(f"c{number}")))
        assert len(seqs(store, f"c{number}")) - 1 + undone == 2


def test_a_closed_store_rings_nothing(store: Store) -> None:
    store.close()
    for use in (store.due, store.ring):
        with pytest.raises(StoreError):
            use(NOW)
    with pytest.raises(StoreError):
        store.next_due()


# --- events and rows ---


def timer_set(seq: int, timer: str, due: datetime) -> ev.TimerSet:
    content = (TextContent("wake"),)
    return ev.TimerSet(seq=seq, id=f"e{seq}", timestamp=NOW, timer=timer, content=content, due=due)


def fired_event(seq: int, timer: str, due: datetime, next: datetime | None) -> ev.TimerFired:
    return ev.TimerFired(
        seq=seq, id=f"e{seq}", timestamp=NOW, timer=timer, due=due, next=next, message_seq=0
    )


JOURNAL = [
    message(1),
    timer_set(2, "once", NOW),
    timer_set(3, "again", NOW + SECOND),
    timer_set(4, "gone", NOW),
    fired_event(5, "again", NOW + SECOND, NOW + 2 * SECOND),
    fired_event(6, "gone", NOW, None),
]
ROWS = ["c.once", "c.again"]


def test_a_lost_index_is_written_anew_from_the_journals(store: Store) -> None:
    lease = store.acquire("c")
    store.append(lease, Batch(JOURNAL, summary("c", 6)))
    open_conversation(store, "without timers")
    assert store.next_due() is None
    assert rebuild(store) == 0  # the owner has its timers in its journal
    store.release(lease)
    assert rebuild(store) == rebuild(store) == 2
    assert names(store.due(NOW + 2 * SECOND)) == ROWS
    assert store.next_due() == NOW
    store.acquire("c")  # the lease was released


def test_an_export_carries_the_timers(store: Store, tmp_path: Path) -> None:
    store.append(store.acquire("c"), Batch(JOURNAL, summary("c", 6)))
    lines = list(export_conversation(store, "c"))
    for other in (MemoryStore(), SQLiteStore(tmp_path / "other.db")):
        with other:
            import_conversations(other, lines)
            assert names(other.due(NOW + 2 * SECOND)) == ROWS
