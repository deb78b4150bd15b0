"""Tests of a worker, which drives conversations with work to rest and parks them, whatever its bell
does."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import Agent, Conversation, ConversationStatus, MemoryStore, ScriptedLLM, SQLiteStore
from holdfast import events as ev
from holdfast.commands import Pause, Resume, Send
from holdfast.content import TextContent
from holdfast.errors import ConfigurationError, ConversationNotFound, StoreError
from holdfast.fleet import (
    Bell,
    FleetBackend,
    Handler,
    Placement,
    Registry,
    Serving,
    TableBackend,
    Wake,
    Worker,
)
from holdfast.fleet.procrastinate import ProcrastinateBackend
from holdfast.store import Batch, PostgresStore, Store
from tests.fleet_program import Effects, post, results
from tests.store.test_store import message, summary
from tests.waiting import until


class Fleet:
    """A store, a backend, an agent with counted effects, and any number of workers."""

    def __init__(self, store: Store, backend: FleetBackend, folder: Path) -> None:
        self.store, self.backend = store, backend
        self.effects = Effects(folder)
        self.agent = self.effects.agent()
        self.workers: list[Worker] = []

    def opened(self, id: str) -> Conversation:
        return Conversation(self.agent, self.store, id)

    def worker(self, **options: Any) -> Worker:
        options = {"open": self.opened, "backend": self.backend, **options}
        worker = Worker(self.store, **options)
        self.workers.append(worker)
        return worker.start()

    def status(self, id: str) -> str:
        return next((one.status for one in self.store.list([id])), "")

    def rest(self, *ids: str, status: str = "finished") -> None:
        expected = sorted((id, status) for id in ids)
        until(
            lambda: sorted((one.id, one.status) for one in self.store.list(ids)) == expected,
            f"{ids} {status}",
        )
        until(lambda: not any(worker.counts().held for worker in self.workers), "all parked")

    def close(self) -> None:
        for worker in self.workers:
            worker.close(5.0)
        self.store.close()
        self.backend.close()


@pytest.fixture(
    params=[
        "memory",
        pytest.param("sqlite", marks=pytest.mark.slow),
        "postgres",
        pytest.param("procrastinate", marks=pytest.mark.slow),
    ]
)
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fleet]:
    if request.param in ("postgres", "procrastinate"):
        dsn = request.getfixturevalue("postgres_server").dsn()
        schema = request.getfixturevalue("postgres_schema")
        kind = TableBackend if request.param == "postgres" else ProcrastinateBackend
        backend = kind(dsn, schema=schema)
        store = PostgresStore(dsn, schema=schema, bell=Bell(backend))
        opened = Fleet(store, backend, tmp_path / "effects")
    elif request.param == "memory":
        backend = TableBackend()
        opened = Fleet(MemoryStore(Bell(backend)), backend, tmp_path / "effects")
    else:
        backend = TableBackend(tmp_path / "store.db")
        store = SQLiteStore(tmp_path / "store.db", bell=Bell(backend))
        opened = Fleet(store, backend, tmp_path / "effects")
    yield opened
    opened.close()


STRIKE, MAIL = ("strike", {}), ("mail", {})


def test_a_posted_message_is_answered_and_the_conversation_parked(fleet: Fleet) -> None:
    fleet.worker()
    post(fleet.store, "a", [STRIKE, MAIL, STRIKE], "1")
    fleet.rest("a")
    assert results(fleet.store, "a") == ["struck", "sent", "struck"]
    assert set(fleet.effects.strikes().values()) == {1}
    until(lambda: fleet.backend.stats() == (0, 0, 0, 0.0), "no wake left")
    fleet.store.release(fleet.store.acquire("a"))  # the lease was given back
    post(fleet.store, "a", [STRIKE], "2")
    until(lambda: len(results(fleet.store, "a")) == 4)
    fleet.rest("a")


def test_two_workers_share_the_work_and_each_turn_happens_once(fleet: Fleet) -> None:
    ids = [f"t{number % 3}/c{number}" for number in range(40)]
    for id in ids:
        post(fleet.store, id, [STRIKE, MAIL], "1")
    first, second = (fleet.worker(concurrency=4) for _ in range(2))
    fleet.rest(*ids)
    assert len(fleet.effects.strikes()) == 40
    assert set(fleet.effects.strikes().values()) == {1}
    assert first.counts().runs + second.counts().runs >= 40
    assert first.counts().runs
    assert second.counts().runs


def test_a_pause_stops_a_run_and_a_resume_in_the_inbox_goes_on_with_it(fleet: Fleet) -> None:
    fleet.worker()
    post(fleet.store, "a", [("hold", {}), STRIKE], "1")
    until(lambda: fleet.effects.lines("holds"))
    fleet.store.post("a", Pause())
    until(lambda: fleet.status("a") == "paused")
    Path(fleet.effects._folder, "open").touch()
    fleet.rest("a", status="paused")
    assert not fleet.effects.strikes()
    fleet.store.post("a", Resume())
    fleet.rest("a")
    assert len(fleet.effects.strikes()) == 1


def test_a_close_hands_a_run_over_at_its_next_step_and_another_worker_goes_on(
    fleet: Fleet,
) -> None:
    first = fleet.worker()
    post(fleet.store, "a", [("hold", {}), STRIKE, STRIKE], "1")
    until(lambda: fleet.effects.lines("holds"))
    closing = threading.Thread(target=first.close, args=(20.0,))
    closing.start()
    until(lambda: not first.ready)
    Path(fleet.effects._folder, "open").touch()
    closing.join(20)
    assert not closing.is_alive()
    assert fleet.status("a") == "running"
    assert fleet.store.unattended(10, parked=True) == ["a"]
    assert fleet.backend.stats().waiting == 1
    fleet.worker()
    fleet.rest("a")
    assert results(fleet.store, "a") == ["held", "struck", "struck"]


@pytest.mark.slow
def test_a_run_that_was_handed_over_is_found_even_if_its_wake_is_lost(fleet: Fleet) -> None:
    first = fleet.worker()
    post(fleet.store, "a", [("hold", {}), STRIKE], "1")
    until(lambda: fleet.effects.lines("holds"))
    first.close(0.1)
    fleet.backend.cancel("a")
    assert fleet.backend.stats().waiting == 0
    ahead = 0.0
    fleet.worker(clock=lambda: time.monotonic() + ahead)
    ahead = 31.0
    fleet.rest("a")


def test_a_call_that_outlasts_the_grace_is_interrupted_and_its_run_goes_on_elsewhere(
    fleet: Fleet,
) -> None:
    first = fleet.worker()
    post(fleet.store, "a", [("hold", {}), STRIKE], "1")
    until(lambda: fleet.effects.lines("holds"))
    assert not first.close(0.1)
    assert first.close()  # idempotent
    fleet.worker()
    fleet.rest("a")
    assert results(fleet.store, "a")[-1] == "struck"
    assert len(fleet.effects.lines("holds")) == 1


@pytest.mark.slow
def test_a_conversation_that_cannot_be_opened_is_tried_again_and_harms_no_other(
    fleet: Fleet,
) -> None:
    broken = True

    def opened(id: str) -> Conversation:
        if id == "bad" and broken:
            raise ConfigurationError("no such tool")
        return fleet.opened(id)

    worker = fleet.worker(open=opened)
    post(fleet.store, "bad", [STRIKE], "1")
    post(fleet.store, "good", [STRIKE], "1")
    fleet.rest("good")
    until(lambda: worker.counts().faults >= 2)
    broken = False
    until(lambda: fleet.status("bad") == "finished")


@pytest.mark.slow
def test_a_conversation_that_is_not_the_workers_is_left_alone(fleet: Fleet) -> None:
    def opened(id: str) -> Conversation:
        raise ConversationNotFound("not mine", "conversation", id)

    worker = fleet.worker(open=opened)
    post(fleet.store, "a", "hello", "1")
    until(lambda: fleet.backend.stats().waiting == 0)
    assert worker.counts().faults == 0
    worker.close()
    fleet.worker()
    fleet.rest("a")


@pytest.mark.slow
def test_a_conversation_that_someone_else_holds_is_not_touched_until_it_is_given_back(
    fleet: Fleet,
) -> None:
    worker = fleet.worker()
    lease = fleet.store.acquire("a")
    fleet.store.post("a", Send((TextContent("hello"),)))
    until(lambda: fleet.backend.stats() == (0, 0, 0, 0.0))
    assert fleet.store.commands(lease)
    assert not worker.counts().runs
    fleet.store.release(lease)
    fleet.rest("a")  # although the bell rang while it was held


def test_a_wake_of_a_child_goes_to_its_parent(fleet: Fleet) -> None:
    agent = Agent(ScriptedLLM(lambda request: "hello"))
    with Conversation(agent, fleet.store, "parent") as parent:
        parent.send_message("hello")
    lease = fleet.store.acquire("child")
    child = summary("child", 1, spawned_by="parent:1.0", status="finished")
    fleet.store.append(lease, Batch([message(1)], child))
    fleet.store.release(lease)
    opened: list[str] = []

    def open(id: str) -> Conversation:
        opened.append(id)
        return Conversation(agent, fleet.store, id)

    fleet.worker(open=open)
    fleet.store.post("child", Pause())
    until(lambda: "parent" in opened)
    assert fleet.store.list(["child"], waiting=True)


def test_a_tenant_with_few_conversations_is_not_kept_waiting_by_one_with_many(
    fleet: Fleet,
) -> None:
    for number in range(30):
        post(fleet.store, f"many/c{number:02}", [("strike", {"seconds": 0.02})], "1")
    post(fleet.store, "few/only", [STRIKE], "1")
    fleet.worker(concurrency=2)
    until(lambda: fleet.status("few/only") == "finished")
    assert len(fleet.effects.strikes()) < 10
    fleet.rest(*(f"many/c{number:02}" for number in range(30)))


@pytest.mark.slow
def test_a_tenants_limit_holds_over_all_workers_of_the_queue(fleet: Fleet) -> None:
    ids = [f"big/c{number}" for number in range(6)]
    for id in ids:
        post(fleet.store, id, [("hold", {})], "1")
    post(fleet.store, "small/c", [STRIKE], "1")
    for _ in range(2):
        fleet.worker(tenant_limit=2)
    until(lambda: fleet.status("small/c") == "finished")
    until(lambda: len(fleet.effects.lines("holds")) >= 2)
    until(lambda: fleet.backend.stats().waiting == 4)
    threading.Event().wait(1.5)  # two looks into the store, which must not evade the limit
    assert len(fleet.effects.lines("holds")) == 2
    Path(fleet.effects._folder, "open").touch()
    fleet.rest(*ids)


def test_a_higher_priority_goes_first_among_a_tenants_conversations(tmp_path: Path) -> None:
    def place(id: str) -> Placement:
        return Placement("t", 5 if id == "urgent" else 0)

    backend = TableBackend(tmp_path / "s.db")
    store = SQLiteStore(tmp_path / "s.db", bell=Bell(backend, place))
    fleet = Fleet(store, backend, tmp_path / "effects")
    for id in ("a", "b", "c", "urgent"):
        post(store, id, [STRIKE], "1")
    fleet.worker(concurrency=1, place=place)
    fleet.rest("a", "b", "c", "urgent")
    assert fleet.effects.lines("strikes")[0].startswith("urgent:")
    fleet.close()


@pytest.mark.slow
def test_a_worker_serves_its_own_queue_alone(tmp_path: Path) -> None:
    def place(id: str) -> Placement:
        return Placement(queue="gpu" if id.startswith("gpu") else "default")

    backend = TableBackend(tmp_path / "s.db")
    fleet = Fleet(
        SQLiteStore(tmp_path / "s.db", bell=Bell(backend, place)), backend, tmp_path / "effects"
    )
    post(fleet.store, "gpu-1", [STRIKE], "1")
    post(fleet.store, "plain", [STRIKE], "1")
    fleet.worker(place=place)
    fleet.rest("plain")
    threading.Event().wait(2.2)  # two looks into the store
    assert fleet.status("gpu-1") in ("", "idle")
    fleet.worker(place=place, queue="gpu")
    fleet.rest("gpu-1")
    fleet.close()


def test_a_worker_is_listed_while_it_lives(fleet: Fleet) -> None:
    registry = Registry(fleet.backend.database)
    worker = fleet.worker(label="first", concurrency=3)
    [entry] = registry.workers()
    assert (entry.label, entry.state, entry.counts.concurrency) == ("first", "serving", 3)
    assert worker.ready
    worker.close()
    assert registry.workers() == []
    assert not worker.ready


@pytest.mark.slow
def test_a_timer_fires_once_however_many_workers_look(fleet: Fleet) -> None:
    due = datetime.now(UTC) + timedelta(seconds=0.5)
    earlier = due - timedelta(hours=1)  # on a busy machine it is due before the last one is set
    ids = [f"c{number}" for number in range(10)]
    for id in ids:
        with Conversation(fleet.agent, fleet.store, id, clock=lambda: earlier) as conversation:
            conversation.schedule(json.dumps([STRIKE]), at=due)
    for _ in range(3):
        fleet.worker()
    fleet.rest(*ids)
    assert len(fleet.effects.lines("strikes")) == 10
    for id in ids:
        messages = [one for one in fleet.store.read(id) if isinstance(one, ev.MessageAdded)]
        assert len(messages) == 1


@pytest.mark.slow
def test_timers_that_are_due_at_once_wake_their_conversations_together(fleet: Fleet) -> None:
    due = datetime.now(UTC) - timedelta(seconds=1)
    earlier = due - timedelta(hours=1)
    ids = [f"t{number % 3}/c{number}" for number in range(120)]
    for id in ids:
        with Conversation(fleet.agent, fleet.store, id, clock=lambda: earlier) as conversation:
            conversation.schedule("[]", at=due)
    fleet.backend.wake(ids[7], "t1")  # one of them waits already
    assert len(fleet.store.ring(datetime.now(UTC))) == 120
    assert fleet.backend.stats().waiting == 120
    fleet.backend.wake_all([("c\0", Placement("a\0", 3, "night")), ("d", Placement())], None)
    assert fleet.backend.stats("night").waiting == 1
    for id in ("c\0", "d"):
        fleet.backend.cancel(id)
    fleet.worker(tenant_limit=2)  # it serves no tenant whose name was not stored
    fleet.rest(*ids)


def test_a_conversation_that_needs_a_newer_worker_is_left_to_one(fleet: Fleet) -> None:
    if not isinstance(fleet.store, PostgresStore):
        pytest.skip("only Postgres is shared by workers of different versions")

    def needs(version: int) -> None:
        query = "UPDATE conversations SET needs = ? WHERE id = 'new'"
        fleet.backend.database.transact(lambda db: db.run(query, (version,)))

    post(fleet.store, "new", [STRIKE], "1")
    post(fleet.store, "old", [STRIKE], "1")
    needs(1000)
    worker = fleet.worker()
    fleet.rest("old")
    until(lambda: worker.counts().faults >= 1)
    assert fleet.status("new") == ""
    assert list(fleet.store.unattended(10)) == []
    needs(1)  # as a newer worker sees it
    fleet.rest("new")


# --- bells that fail ---


class FaultyBell(FleetBackend):
    """A backend that loses the wakes in `loses`, and hands the others over twice, after a delay."""

    def __init__(self, inner: FleetBackend, loses: Callable[[int], bool], deaf: bool) -> None:
        self._inner = inner
        self._loses = loses
        self._deaf = deaf  # True if nothing is ever handed to a worker
        self._count = 0
        self.lost_count = 0

    @property
    def database(self) -> Any:
        return self._inner.database

    def wake(self, conversation: str, *values: Any, **options: Any) -> None:
        self._count += 1
        if self._loses(self._count):
            self.lost_count += 1
            return
        self._inner.wake(conversation, *values, **options)

    def wake_at(self, conversation: str, seconds: float, *values: Any, **options: Any) -> None:
        self._inner.wake_at(conversation, seconds, *values, **options)

    def cancel(self, conversation: str) -> None:
        self._inner.cancel(conversation)

    def serve(self, handler: Handler, *values: Any) -> Serving:
        return FaultyServing(self._inner, handler, values, self._deaf)

    def stats(self, queue: str | None = None) -> Any:
        return self._inner.stats(queue)

    def close(self) -> None:
        self._inner.close()


class FaultyServing(Serving):
    """A handler that gets each wake late, and twice."""

    def __init__(
        self, inner: FleetBackend, handler: Handler, values: tuple[Any, ...], deaf: bool
    ) -> None:
        self._handler = handler
        self._deaf = deaf
        self._timers: list[threading.Timer] = []
        self._inner = inner.serve(self, *values)

    def room(self) -> Any:
        return self._handler.room()._replace(**({"free": 0} if self._deaf else {}))

    def take(self, wake: Wake) -> None:
        for delay in (0.05, 0.08):
            timer = threading.Timer(delay, self._handler.take, [wake])
            self._timers.append(timer)
            timer.start()

    def ring(self) -> None:
        self._inner.ring()

    def finish(self, wake: Wake, again_after: float | None = None) -> None:
        self._inner.finish(wake, again_after)

    def restore(self, wakes: Sequence[Wake], lost_workers: Sequence[str]) -> set[str]:
        return set() if self._deaf else self._inner.restore(wakes, lost_workers)

    def stop(self) -> None:
        self._inner.stop()
        for timer in self._timers:
            timer.cancel()

    def close(self, timeout: float) -> None:
        self._inner.close(timeout)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loses", "deaf"),
    [
        (lambda count: count % 3 == 0, False),  # loses some, repeats and delays the others
        (lambda count: True, False),  # never rings by itself
        (lambda count: False, True),  # takes every ring, and tells no worker
    ],
    ids=["some", "all", "deaf"],
)
def test_every_turn_happens_once_with_a_bell_that_loses_repeats_and_delays(
    fleet: Fleet, loses: Callable[[int], bool], deaf: bool
) -> None:
    bell = FaultyBell(fleet.backend, loses, deaf)
    fleet.backend = bell
    store: Any = fleet.store
    store._bell = Bell(bell)
    for _ in range(3):
        fleet.worker(concurrency=4)
    ids = [f"c{number}" for number in range(30)]
    for turn in (1, 2):  # the second meets conversations that are being parked
        for id in ids:
            post(fleet.store, id, [STRIKE, MAIL], f"{turn}")
        calls = 2 * turn
        until(
            lambda calls=calls: all(len(results(fleet.store, id)) == calls for id in ids),
            "all turns",
            60,
        )
    fleet.rest(*ids)
    assert len(fleet.effects.strikes()) == 60
    assert set(fleet.effects.strikes().values()) == {1}
    assert len(fleet.effects.mails()) == 60
    for id in ids:
        starts = [one for one in fleet.store.read(id) if isinstance(one, ev.ToolCallStarted)]
        assert len(starts) == len({one.call_id for one in starts}) == 4
    assert bell.lost_count or deaf


def test_a_worker_does_not_start_without_its_store(fleet: Fleet) -> None:
    fleet.store.close()
    with pytest.raises(StoreError):
        fleet.worker()
    fleet.workers.clear()


def test_the_limits_of_a_worker_are_checked(fleet: Fleet) -> None:
    for wrong in ({"concurrency": 0}, {"tenant_limit": 0}):
        with pytest.raises(ConfigurationError, match="from 1 on"):
            Worker(fleet.store, fleet.opened, fleet.backend, **wrong)
    assert ConversationStatus.RUNNING.value == "running"
