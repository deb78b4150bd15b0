"""Timers of conversations: set, fired once by any process, cancelled, and kept across kills."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    Agent,
    Conversation,
    ConversationStatus,
    Hook,
    MemoryStore,
    ScriptedLLM,
    SQLiteStore,
    TextContent,
)
from holdfast import commands as cmd
from holdfast import events as ev
from holdfast.conversation.conversation import random_id
from holdfast.conversation.firing import fire_resting
from holdfast.errors import ConfigurationError, Conflict, HookDenied, NotFound
from holdfast.store import Batch, Store, Summary
from holdfast.store.transfer import export_conversation, import_conversations
from holdfast.testing import Crash, crash_at_every_append, kill_point
from holdfast.timers import MAX_TIMERS
from holdfast.tools.hooks import Deny
from tests.samples import in_sample
from tests.waiting import until

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
IDLE, FINISHED, PAUSED = (
    ConversationStatus.IDLE,
    ConversationStatus.FINISHED,
    ConversationStatus.PAUSED,
)


class Clock:
    """A clock that stands still until a test sets it."""

    def __init__(self, now: datetime = NOON) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    backend = (
        MemoryStore() if request.param == "memory" else SQLiteStore(tmp_path / "s.db", "process")
    )
    yield backend
    backend.close()


def agent(**fields: Any) -> Agent:
    return Agent(llm=ScriptedLLM(["answer"] * 50), **fields)


def conversation(store: Store, clock: Clock, id: str = "c", **fields: Any) -> Conversation:
    return Conversation(fields.pop("agent", None) or agent(), store, id, clock=clock, **fields)


def timer_messages(conversation: Conversation) -> list[ev.MessageAdded]:
    """Return the messages of timers."""
    events = conversation.get_history()
    return [one for one in events if isinstance(one, ev.MessageAdded) and one.about == "timer"]


def texts(conversation: Conversation) -> list[str]:
    return [one.text for one in timer_messages(conversation)]


# --- setting ---


def test_a_timer_is_an_event_and_a_row(store: Store, clock: Clock) -> None:
    with conversation(store, clock) as c:
        c.schedule("Look again.", at=NOON + HOUR, id="look")
        [event] = c.get_history()
        assert isinstance(event, ev.TimerSet)
        assert (event.timer, event.due, event.sender) == ("look", NOON + HOUR, "user")
        assert store.next_due() == NOON + HOUR
        [timer] = c.timers
        assert (timer.id, timer.text, timer.due, timer.repeats) == (
            "look", "Look again.", NOON + HOUR, False
        )  # fmt: skip
        assert c.status is IDLE
    reader = conversation(store, clock)  # without the lease
    assert reader.state.timers == (timer,)


def test_timers_are_listed_by_their_due_times(store: Store, clock: Clock) -> None:
    with conversation(store, clock) as c:
        c.schedule("b", every=7200, id="b")
        c.schedule("a", at="2026-11-23T12:30+00:00", id="a")
        c.schedule("d", cron="0 9 * * *", timezone="Europe/Berlin", id="d")
        c.schedule("c", at=datetime(2026, 11, 23, 16), timezone="Europe/Berlin", id="c")
        assert [(one.id, one.due) for one in c.timers] == [
            ("a", NOON + HOUR / 2),
            ("b", NOON + 2 * HOUR),
            ("c", NOON + 3 * HOUR),
            ("d", datetime(2026, 11, 24, 8, tzinfo=UTC)),
        ]


def test_a_timer_of_the_same_id_is_replaced(store: Store, clock: Clock) -> None:
    with conversation(store, clock) as c:
        c.schedule("one", at=NOON + HOUR, id="t")
        c.schedule("two", at=NOON + 2 * HOUR, id="t")
        assert [one.text for one in c.timers] == ["two"]
        assert [one.due for one in store.due(NOON + 9 * HOUR)] == [NOON + 2 * HOUR]


def test_ids_are_made_where_none_is_given(store: Store, clock: Clock) -> None:
    with conversation(store, clock) as c:
        ids = [c.schedule("one", every=60) for _ in range(3)]
        assert sorted(ids) == sorted(one.id for one in c.timers)
    store.post("c", cmd.Schedule((TextContent("two"),), every=60))
    with conversation(store, clock) as c:
        c.hosting.open()
        assert len({one.id for one in c.timers}) == 4


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, "one of at, every and cron"),
        ({"at": NOON, "every": 60}, "one of at, every and cron"),
        ({"at": NOON}, "at: 2026-11-23 12:00:00.00:00 is past; it is 2026-11-23 12:00:00.00:00"),
        ({"at": NOON - HOUR}, "is past"),
        ({"at": datetime(9999, 1, 1, tzinfo=UTC)}, "over a hundred years"),
        ({"at": datetime(2026, 12, 1)}, "no time zone"),
        ({"at": "tomorrow"}, "such as '2026-11-23T09:00'"),
        ({"at": datetime(2026, 12, 1), "timezone": "Europe/Berln"}, "Did you mean 'Europe/Berlin'"),
        ({"every": 59}, "60 seconds or more"),
        ({"every": 0}, "60 seconds or more"),
        ({"every": -60}, "60 seconds or more"),
        ({"every": float("nan")}, "60 seconds or more"),
        ({"every": float("inf")}, "60 seconds or more"),
        ({"every": "60"}, "60 seconds or more"),
        ({"every": timedelta(days=999999)}, "60 seconds or more"),
        ({"cron": ""}, "five fields"),
        ({"cron": "* * * *"}, "five fields"),
        ({"cron": "* * * * * *"}, "five fields"),
        ({"cron": "61 * * * *"}, "Bad minute"),
        ({"cron": "0 9 * * mo"}, "Bad day-of-week"),
        ({"cron": "0 0 30 2 *"}, "Bad day-of-month"),
        ({"cron": "* * * * *", "timezone": "../../etc/passwd"}, "unknown time zone"),
        ({"cron": "* * * * *", "timezone": "x" * 9999}, "unknown time zone"),
        ({"every": 60, "timezone": "Mars/Base"}, "unknown time zone"),
        ({"every": 60, "misfire": "twice"}, "misfire takes"),
        ({"every": 60, "id": "x" * 201}, "at most 200"),
        ({"every": 60, "message": ""}, "nothing|empty"),
        ({"every": 60, "message": "x" * 10_001}, "at most 10,000"),
    ],
)  # fmt: skip
def test_a_wrong_request_says_what_is_wrong_and_stores_nothing(
    store: Store, clock: Clock, arguments: dict[str, Any], problem: str
) -> None:
    wrong = {"message": "Look.", **arguments}
    with conversation(store, clock) as c:
        with pytest.raises(ConfigurationError, match=problem):
            c.schedule(**wrong)
        assert c.get_history() == []
    assert store.next_due() is None


def test_a_conversation_has_a_bounded_number_of_timers(store: Store, clock: Clock) -> None:
    with conversation(store, clock) as c:
        for n in range(MAX_TIMERS):
            c.schedule("x", every=60, id=f"t{n}")
        with pytest.raises(Conflict, match="has 100 timers"):
            c.schedule("x", every=60)
        c.schedule("other", every=60, id="t7")  # replaces the timer with this id
        c.cancel_timer("t8")
        c.schedule("x", every=60)
        assert len(c.timers) == len(store.due(NOON + HOUR)) == MAX_TIMERS


def test_hooks_are_asked_about_a_message_when_it_is_scheduled(store: Store, clock: Clock) -> None:
    def judge(content: Any, context: Any) -> Deny | None:
        return Deny("not that") if "bad" in str(content) else None

    hooked = agent(hooks=[Hook(judge, on="message")])
    with conversation(store, clock, agent=hooked) as c:
        c.schedule("good", every=60)
        with pytest.raises(HookDenied, match="not that"):
            c.schedule("bad", every=60)
        assert [one.text for one in c.timers] == ["good"]


def test_a_spawned_conversation_has_no_timers(store: Store, clock: Clock) -> None:
    lease = store.acquire("child")
    first = ev.MessageAdded(seq=1, id="e", timestamp=NOON, content=())
    store.append(lease, Batch([first], Summary("child", last_seq=1, spawned_by="parent:2.0")))
    store.release(lease)
    with (
        conversation(store, clock, "child") as c,
        pytest.raises(ConfigurationError, match="another one spawned has no timers"),
    ):
        c.schedule("x", every=60)


# --- firing ---


def test_a_due_timer_sends_one_message_when_the_conversation_is_run(
    store: Store, clock: Clock
) -> None:
    with conversation(store, clock) as c:
        c.schedule("Look again.", at=NOON + HOUR, id="look")
        assert c.run().status is IDLE
        clock.now += HOUR
        assert c.run().status is FINISHED
        fired, message = c.get_history()[1:3]
        assert isinstance(fired, ev.TimerFired)
        assert (fired.timer, fired.due, fired.next, fired.missed) == ("look", NOON + HOUR, None, 0)
        assert isinstance(message, ev.MessageAdded)
        assert message.id == "timer:look:2026-11-23T13:00:00+00:00"
        assert (message.seq, message.text, message.sender) == (
            fired.message_seq, "Look again.", "user"
        )  # fmt: skip
        assert c.timers == ()
        assert store.next_due() is None
        assert c.run().steps == 1


@pytest.mark.parametrize("way", ["open", "send", "run", "begin", "thread"])
def test_a_timer_that_came_due_while_nobody_was_there_fires_at_the_opening(
    store: Store, clock: Clock, way: str
) -> None:
    with conversation(store, clock) as c:
        c.schedule("tick", every=3600, id="t")
    clock.now += 3.5 * HOUR
    with conversation(store, clock) as c:
        match way:
            case "open":
                c.hosting.open()
            case "send":
                c.send_message("hello")
            case "run":
                c.run()
            case "begin":
                c.hosting.begin()
            case _:
                c.start_thread()
                c.wait(30)
        [message] = timer_messages(c)
        assert message.text.startswith("tick\n")
        assert "due at 2026-11-23 13:00+00:00; 2 others of this timer passed" in message.text
        assert [one.due for one in c.timers] == [NOON + 4 * HOUR]
        assert store.next_due() == NOON + 4 * HOUR


def test_a_driven_conversation_fires_by_its_own_clock(store: Store, clock: Clock) -> None:
    with conversation(store, clock) as c:
        c.start_thread()
        c.schedule("tick", every=3600)
        for hour in range(1, 4):
            c.wait(30)
            clock.now = NOON + hour * HOUR
            with c.hosting.journal.lock:  # the waiting loop looks at the clock
                c.hosting.journal.lock.notify_all()
            until(lambda hour=hour: c.state.steps == hour)
        assert texts(c) == ["tick"] * 3


def test_a_loop_waits_until_the_next_timer_and_not_for_ever(store: Store) -> None:
    """The loop uses the real clock, and a timer is due at once. No other thread wakes the loop."""
    real = Conversation(agent(), store, "c")
    with real as c:
        c.start_thread()
        until(lambda: c.hosting.resting)
        c.schedule("tick", at=datetime.now(UTC) + timedelta(seconds=0.3))
        until(lambda: c.state.steps == 1)
        assert len(timer_messages(c)) == 1


def test_a_ring_is_carried_out_by_the_holder_of_the_lease(store: Store, clock: Clock) -> None:
    with conversation(store, clock) as c:
        c.schedule("tick", every=3600, id="t")
        c.start_thread()
        # the holder's clock is an hour behind that of the process that rings
        assert len(store.ring(NOON + HOUR)) == 1
        until(lambda: c.state.steps == 1)
        assert texts(c) == ["tick"]
        assert store.next_due() == NOON + 2 * HOUR


def test_a_parked_conversation_is_rung_and_fires_at_its_next_opening(
    store: Store, clock: Clock
) -> None:
    with conversation(store, clock) as c:
        c.schedule("tick", every=3600, id="t")
    for late in range(3):
        store.ring(NOON + HOUR + late * timedelta(seconds=1))
    assert [one.id for one in store.list(waiting=True)] == ["c"]
    clock.now = NOON + HOUR
    with conversation(store, clock) as c:
        assert c.run().steps == 1
        assert texts(c) == ["tick"]
    assert store.list(waiting=True) == []


def test_a_ring_that_comes_late_or_twice_does_nothing(store: Store, clock: Clock) -> None:
    with conversation(store, clock) as c:
        c.schedule("tick", every=3600, id="t")
        clock.now += HOUR
        c.run()
        store.post("c", cmd.RingTimer("t", NOON + HOUR))
        store.post("c", cmd.RingTimer("unknown", NOON + HOUR))
        c.hosting.finish_inbox()
        assert texts(c) == ["tick"]
        c.cancel_timer("t")
        store.post("c", cmd.RingTimer("t", NOON + 9 * HOUR))
        c.hosting.finish_inbox()
        assert texts(c) == ["tick"]
        assert store.list(waiting=True) == []


def test_a_row_that_a_wrong_index_had_too_early_is_put_right(store: Store, clock: Clock) -> None:
    with conversation(store, clock) as c:
        c.schedule("tick", every=3600, id="t")
        with c.hosting.journal as journal:
            journal.index_timer("t", NOON)
        assert len(store.ring(NOON)) == 1
        c.hosting.drain_inbox()
        assert timer_messages(c) == []
        assert store.next_due() == NOON + HOUR


def test_however_many_look_at_once_each_occurrence_gives_one_message(
    store: Store, clock: Clock
) -> None:
    with conversation(store, clock) as c:
        c.schedule("tick", every=60, id="t")
        c.start_thread()
        go, stop = threading.Barrier(5), threading.Event()

        def look(use: Callable[[], object]) -> None:
            go.wait()
            while not stop.is_set():
                use()

        looks: list[Callable[[], object]] = [
            lambda: store.ring(clock.now),
            lambda: store.ring(clock.now),
            c.hosting.drain_inbox,
            c.hosting.fire_due_timers,
        ]
        threads = [threading.Thread(target=look, args=(use,)) for use in looks]
        for thread in threads:
            thread.start()
        go.wait()
        for minute in range(1, 21):
            clock.now = NOON + minute * timedelta(minutes=1)
            until(lambda minute=minute: c.state.steps == minute)
        stop.set()
        for thread in threads:
            thread.join(30)
        ids = [one.id for one in timer_messages(c)]
        assert len(ids) == len(set(ids)) == 20
        fired = [one.due for one in c.get_history() if isinstance(one, ev.TimerFired)]
        assert fired == [NOON + n * timedelta(minutes=1) for n in range(1, 21)]


@pytest.mark.parametrize("ended", [IDLE, FINISHED, PAUSED])
def test_a_store_fires_as_a_hosted_conversation_does(
    tmp_path: Path, clock: Clock, ended: ConversationStatus
) -> None:
    def journal(fires: bool) -> list[object]:
        clock.now = NOON
        with SQLiteStore(tmp_path / f"{fires}.db", "process") as store:
            with conversation(store, clock) as c:
                if ended is not IDLE:
                    c.send_message("hello")
                if ended is FINISHED:
                    c.run()
                for policy in ("once", "skip", "all"):
                    c.schedule(policy, every=3600, id=policy, misfire=policy)
                c.schedule("cron", cron="30 * * * *", timezone="Europe/Berlin", id="cron")
                c.schedule("at", at=NOON + HOUR, id="at")
                if ended is PAUSED:
                    c.pause()
            clock.now += 3.5 * HOUR
            fire = (lambda one: fire_resting(one, random_id)) if fires else None
            assert len(store.ring(clock.now, 1000, fire)) == 5
            assert bool(store.list(waiting=True)) is not fires
            with conversation(store, clock) as c:
                c.hosting.hosted = True
                c.hosting.open()
            assert store.due(clock.now) == []
            assert len(store.due(NOON + 9 * HOUR)) == 4
            rows: list[object] = []
            for one in store.read("c"):
                match one:
                    case ev.TimerFired():
                        rows.append((one.timer, one.due, one.next, one.missed))
                    case ev.MessageAdded(about="timer"):
                        rows.append((one.id, one.text, one.sender))
                    case ev.StatusChanged():
                        statuses.setdefault(fires, []).append(one.status)
                    case _:
                        pass
            return rows

    statuses: dict[bool, list[str]] = {}
    assert journal(True) == journal(False)
    assert statuses[True] == statuses[False]


def test_a_paused_conversation_gets_one_message_and_does_not_run(
    store: Store, clock: Clock
) -> None:
    with conversation(store, clock) as c:
        c.schedule("tick", every=3600, id="t")
        c.send_message("hello")
        c.pause()
        for _ in range(4):
            clock.now += HOUR
            store.ring(clock.now)
            c.hosting.drain_inbox()
        assert c.status is PAUSED
        assert texts(c) == ["tick"]
        assert c.run().steps == 1
        clock.now += HOUR
        c.run()
        assert len(texts(c)) == 2


def test_the_misfire_policies_send_one_none_or_each(store: Store, clock: Clock) -> None:
    with conversation(store, clock) as c:
        for policy in ("once", "skip", "all"):
            c.schedule(policy, every=3600, id=policy, misfire=policy)
            c.schedule(f"{policy} at", at=NOON + HOUR, id=f"{policy}-at", misfire=policy)
    clock.now += 12.5 * HOUR
    with conversation(store, clock) as c:
        c.run()
        firsts = [one.split("\n")[0] for one in texts(c)]
        assert sorted(firsts) == [*["all"] * 10, "all at", "once", "once at"]
        assert {one.id: one.due for one in c.timers} == dict.fromkeys(
            ("once", "skip", "all"), NOON + 13 * HOUR
        )
        assert len({one.id for one in timer_messages(c)}) == 13
        clock.now = NOON + 13 * HOUR
        c.run()
        assert [one for one in texts(c) if one == "skip"] == ["skip"]


def test_a_timer_whose_zone_is_unknown_here_sends_what_is_due_and_ends(
    store: Store, clock: Clock
) -> None:
    with conversation(store, clock) as c:
        with c.hosting.journal as journal:
            fields: Any = {"cron": "0 9 * * *", "timezone": "Moon/Base", "timer": "t"}
            content = (TextContent("tick"),)
            journal.add(ev.TimerSet, content=content, due=NOON + HOUR, **fields)
            journal.index_timer("t", NOON + HOUR)
        clock.now += 2 * HOUR
        c.run()
        assert texts(c)[0].startswith("tick")
        [note] = [one for one in c.get_history() if isinstance(one, ev.NoteRecorded)]
        assert "the timer 't' ends: timezone: unknown time zone 'Moon/Base'" in note.text
        assert c.timers == ()
        assert store.next_due() is None


# --- cancelling ---


def test_a_cancelled_timer_never_fires(store: Store, clock: Clock) -> None:
    with conversation(store, clock) as c:
        c.schedule("tick", at=NOON + HOUR, id="t")
        c.cancel_timer("t", reason="no need")
        event = c.get_history()[-1]
        assert isinstance(event, ev.TimerCancelled)
        assert (event.timer, event.by, event.reason) == ("t", "user", "no need")
        clock.now += 2 * HOUR
        assert store.ring(clock.now) == []
        assert c.run().steps == 0


def test_cancelling_an_unknown_timer_names_those_that_exist(store: Store, clock: Clock) -> None:
    with conversation(store, clock) as c:
        with pytest.raises(NotFound, match=r"has no timer 'x'\. It has none"):
            c.cancel_timer("x")
        c.schedule("tick", every=60, id="t")
        with pytest.raises(NotFound, match=r"has no timer 'x'\. It has 't'"):
            c.cancel_timer("x")
        store.post("c", cmd.CancelTimer("x"), "key")
        c.hosting.drain_inbox()
        refusal = store.refusal("c", "key")
        assert refusal is not None
        assert refusal.type == "NotFound"


# --- copies ---


def test_a_fork_has_no_timers(store: Store, clock: Clock) -> None:
    with conversation(store, clock) as c:
        c.send_message("hello")
        c.schedule("tick", every=3600, id="t")
        with c.fork(id="f") as fork, Conversation.from_state(c.state, agent(), store, "s") as copy:
            for other in (fork, copy):
                assert other.timers == ()
                clock.now = NOON + 5 * HOUR
                other.run()
                assert timer_messages(other) == []
        assert [one.conversation_id for one in store.due(clock.now)] == ["c"]
        with c.fork(1, id="before") as before:
            assert [event.type for event in before.get_history()] == ["message", "label"]
        assert len(c.timers) == 1


def test_an_imported_conversation_has_its_timers(store: Store, clock: Clock) -> None:
    with conversation(store, clock) as c:
        c.schedule("tick", every=3600, id="t")
        lines = list(export_conversation(store, "c"))
    with MemoryStore() as other:
        import_conversations(other, lines)
        clock.now += HOUR
        assert len(other.ring(clock.now)) == 1
        with conversation(other, clock) as c:
            assert c.run().steps == 1
            assert texts(c) == ["tick"]


def test_timers_outlive_a_condensation_and_an_opening_from_its_checkpoint(
    store: Store, clock: Clock
) -> None:
    with conversation(store, clock) as c:
        c.schedule("tick", every=3600, id="t")
        c.schedule("at", at=NOON + 9 * HOUR, id="a")
        c.send_message("hello")
        c.run()
        clock.now += HOUR
        c.run()
        journal = c.hosting.journal
        with journal:
            event = journal.condense(range(1, journal.fold.last_seq + 1), "All of it.")
        assert event.so_far is not None
        assert len(event.so_far.timers) == 2
        timers = c.timers
    with conversation(store, clock) as c:
        if isinstance(store, SQLiteStore):
            assert c.hosting.journal.tail[0].seq > 1  # it began at the checkpoint
        assert c.timers == timers
        clock.now += HOUR
        c.run()
        assert texts(c) == ["tick", "tick"]


def test_a_replay_reads_the_messages_of_timers(store: Store, clock: Clock) -> None:
    with conversation(store, clock) as c:
        c.schedule("tick", every=3600, id="t")
        c.send_message("hello")
        c.run()
        clock.now += 3 * HOUR
        c.run()
        replay = c.replay()
        assert replay.same
        assert replay.requests == 2


def test_the_state_comes_back_from_json_with_its_timers(store: Store, clock: Clock) -> None:
    with conversation(store, clock) as c:
        c.schedule("tick", cron="*/5 * * * *", timezone="Asia/Tokyo", misfire="all", id="t")
        state = c.state
    assert type(state).from_json(state.to_json()).timers == state.timers != ()


def test_a_damaged_firing_fires_no_second_time(store: Store, clock: Clock) -> None:
    with conversation(store, clock) as c:
        c.schedule("tick", every=3600, id="t")
        c.schedule("at", at=NOON + HOUR, id="a")
        clock.now += HOUR
        c.run()
        events = c.get_history()
    from holdfast.conversation.fold import fold

    for raw in (b'{"type":"timerFired","timer":"t"', b"\x00", b'{"type":"timerFired"}'):
        damaged = [
            ev.DamagedEvent(
                seq=one.seq,
                id=one.id,
                timestamp=one.timestamp,
                reason="x",
                original_type="timerFired",
                raw=raw,
            )
            if isinstance(one, ev.TimerFired)
            else one
            for one in events
        ]
        assert [(one.id, one.due) for one in fold(damaged).timers.by_id.values()] == [
            ("t", NOON + 2 * HOUR)
        ]


# --- costs ---


def test_a_conversation_without_timers_writes_no_rows_and_waits_without_a_timeout(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[Any] = []
    append = store.append
    monkeypatch.setattr(
        store, "append", lambda lease, batch: batches.append(batch) or append(lease, batch)
    )
    with conversation(store, clock) as c:
        waits: list[float | None] = []
        condition = c.hosting.journal.lock
        wait = type(condition).wait
        monkeypatch.setattr(
            type(condition),
            "wait",
            lambda self, timeout=None: waits.append(timeout) or wait(self, timeout),
        )
        c.start_thread()
        c.send_message("hello")
        until(lambda: c.state.steps == 1 and c.hosting.resting)
        monkeypatch.undo()
        assert set(waits) == {None}
        assert all(batch.timers == () for batch in batches)
        # conversations without timers share one object for these facts
        assert c.hosting.journal.fold.timers is type(c.hosting.journal.fold)().timers


# --- kills ---


def program(store: SQLiteStore, folder: Path) -> None:
    """Set timers, let them come due, ring them, and answer."""
    clock = Clock()
    with conversation(store, clock) as c:
        ids = {one.timer for one in c.get_history() if isinstance(one, ev.TimerSet)}
        if "at" not in ids:
            c.schedule("once", at=NOON + HOUR, id="at")
        if "every" not in ids:
            c.schedule("again", every=3600, id="every")
    for hour in (1, 2):
        clock.now = NOON + hour * HOUR
        kill_point("before the ring")
        store.ring(clock.now)
        kill_point("after the ring")
        with conversation(store, clock) as c:
            c.run()


def keys(events: list[ev.AnyEvent]) -> list[str]:
    return [one.id for one in events if isinstance(one, ev.MessageAdded)]


ONCE_EACH = [
    "timer:at:2026-11-23T13:00:00+00:00",
    "timer:every:2026-11-23T13:00:00+00:00",
    "timer:every:2026-11-23T14:00:00+00:00",
]


def check(crash: Crash) -> None:
    assert keys(crash.after) == keys(crash.reference) == ONCE_EACH, str(crash)
    with SQLiteStore(crash.folder / "store.db", read_only=True) as store:
        [row] = store.due(NOON + 99 * HOUR)
        assert (row.timer, row.due) == ("every", NOON + 3 * HOUR), str(crash)


@pytest.mark.slow
def test_a_kill_at_any_append_or_ring_leaves_one_message_for_each_occurrence() -> None:
    count = 0
    for crash in crash_at_every_append(program):
        check(crash)
        count += 1
    assert count > 12


@pytest.mark.slow
@pytest.mark.proof
def test_two_kills_leave_one_message_for_each_occurrence() -> None:
    for crash in crash_at_every_append(program, twice=True, when=["after"], points=in_sample):
        check(crash)


def program_without_ring(store: SQLiteStore, folder: Path) -> None:
    """Set the timers of `program` without a ring: the conversation fires them when it is opened."""
    clock = Clock()
    with conversation(store, clock) as c:
        ids = {one.timer for one in c.get_history() if isinstance(one, ev.TimerSet)}
        if "at" not in ids:
            c.schedule("once", at=NOON + HOUR, id="at")
        if "every" not in ids:
            c.schedule("again", every=3600, id="every")
        for hour in (1, 2):
            clock.now = NOON + hour * HOUR
            c.run()


@pytest.mark.slow
def test_a_kill_leaves_one_message_where_nobody_rings() -> None:
    for crash in crash_at_every_append(program_without_ring):
        check(crash)
