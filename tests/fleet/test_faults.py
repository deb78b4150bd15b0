"""Tests of workers that are killed, stopped and poisoned: no call that may not be repeated begins
twice, and every conversation ends."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from holdfast import Conversation
from holdfast import events as ev
from holdfast.fleet import FleetBackend, Registry
from holdfast.store import Store
from tests.fleet_program import Effects, Settings, WorkerProcess, outcome, post, results
from tests.postgres import NoPostgres, private_server
from tests.waiting import until

pytestmark = pytest.mark.slow


class Fleet:
    """A store, and worker processes that serve it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.store: Store
        self.backend: FleetBackend
        self.store, self.backend = settings.opened()
        self.effects = Effects(Path(settings.folder))
        self.workers: list[WorkerProcess] = []

    def start(self, count: int = 1) -> list[WorkerProcess]:
        """Start workers, and wait until they serve."""
        started = [WorkerProcess(self.settings) for _ in range(count)]
        self.workers += started
        return [one.ready() for one in started]

    def statuses(self, *ids: str) -> set[str]:
        return {one.status for one in self.store.list(ids)}

    def rest(self, *ids: str, seconds: float = 60.0) -> None:
        expected = sorted((id, "finished") for id in ids)
        until(
            lambda: sorted((one.id, one.status) for one in self.store.list(ids)) == expected,
            "all finished",
            seconds,
        )

    def check_effects(self, *ids: str) -> None:
        """Assert that each call of `strike` began at most once, that a call without a known result
        is reported as unknown, and that each mail was received."""
        strikes, mails = self.effects.strikes(), self.effects.mails()
        assert set(strikes.values()) <= {1}
        for id in ids:
            events = self.store.read(id)
            outcomes = {one.call_id: one for one in events if isinstance(one, ev.ToolCallFinished)}
            for answer in events:
                for call in answer.calls if isinstance(answer, ev.AssistantReplied) else ():
                    result, key = outcomes[call.id].result, f"{id}:{call.id}"
                    if call.name == "strike" and not result.is_error:
                        assert strikes[key] == 1
                    elif call.name == "strike":
                        assert outcome(result) == "unknown"
                    if call.name == "mail":
                        assert not result.is_error
                        assert key in mails

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
        self.store.close()
        self.backend.close()


@pytest.fixture(params=["sqlite", "table", "procrastinate"])
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fleet]:
    folder = str(tmp_path / "effects")
    if request.param == "sqlite":
        opened = Fleet(Settings(str(tmp_path / "store.db"), folder))
    else:
        dsn = request.getfixturevalue("postgres_server").dsn()
        schema = request.getfixturevalue("postgres_schema")
        opened = Fleet(Settings(dsn, folder, request.param, schema))
    yield opened
    opened.close()


STRIKE, MAIL = ("strike", {}), ("mail", {})


def test_a_killed_workers_conversation_goes_on_elsewhere_within_ten_seconds(fleet: Fleet) -> None:
    first, second = fleet.start(2)
    post(fleet.store, "a", [("strike", {"seconds": 60}), MAIL, STRIKE], "1")
    owner = int(until(lambda: fleet.effects.lines("strikes"))[0].split()[1])
    victim = first if first.pid == owner else second
    began = time.monotonic()
    victim.kill()
    fleet.rest("a")
    assert time.monotonic() - began < 10
    assert results(fleet.store, "a") == ["unknown", "sent", "struck"]
    fleet.check_effects("a")


def test_many_conversations_survive_workers_that_are_killed_at_random(fleet: Fleet) -> None:
    chance = random.Random(7)
    ids = [f"t{number % 4}/c{number}" for number in range(60)]
    plan = [("strike", {"seconds": 0.02}), ("mail", {"seconds": 0.02}), STRIKE, MAIL]
    fleet.start(3)
    for id in ids:
        post(fleet.store, id, plan, "1")
    for _ in range(4):
        time.sleep(0.3)
        living = [one for one in fleet.workers if not one.dead]
        chance.choice(living).kill()
        fleet.start()
    fleet.rest(*ids)
    fleet.check_effects(*ids)
    assert sum(len(fleet.store.read(id)) for id in ids) > 60 * 8


def test_timers_fire_once_while_the_workers_that_fire_them_are_killed(fleet: Fleet) -> None:
    chance = random.Random(11)
    ids = [f"t{number % 4}/c{number}" for number in range(400)]
    agent = fleet.effects.agent()
    due = datetime.now(UTC) - timedelta(seconds=1)

    def prepare(id: str) -> None:
        earlier = due - timedelta(hours=1)
        with Conversation(agent, fleet.store, id, clock=lambda: earlier) as conversation:
            for name in ("a", "b", "c"):
                conversation.schedule("Time is up.", at=due, id=name)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(prepare, ids))
    registry = Registry(fleet.backend.database)
    for _ in range(5):
        victims = [WorkerProcess(fleet.settings) for _ in range(2)]
        fleet.workers += victims
        # A worker is listed just before it fires timers for the first time.
        until(lambda: len(registry.workers()) == len(fleet.workers), "listed", 60)
        time.sleep(chance.uniform(0, 0.15))
        for victim in victims:
            victim.kill()
    fleet.start(2)
    fleet.rest(*ids, seconds=120)
    assert fleet.store.next_due() is None
    for id in ids:
        kinds = [one.type for one in fleet.store.read(id)]
        assert kinds.count("timerFired") == kinds.count("message") == 3, id


def test_a_frozen_worker_is_taken_over_on_postgres_and_has_no_effect_when_it_wakes(
    fleet: Fleet,
) -> None:
    [worker] = fleet.start()
    plan = [("strike", {"seconds": 0.5}), STRIKE, MAIL]
    ids = [f"c{number}" for number in range(6)]
    for id in ids:
        post(fleet.store, id, plan, "1")
    until(lambda: len(fleet.effects.lines("strikes")) >= 6)
    worker.stop()
    fleet.start()
    if fleet.settings.place.startswith("postgresql:"):
        fleet.rest(*ids)
        worker.go_on()
        time.sleep(2)  # time for a worker that woke to do something forbidden
    else:  # its lock on the file shows that it lives
        time.sleep(3)
        assert "running" in fleet.statuses(*ids)
        worker.go_on()
        fleet.rest(*ids)
    fleet.check_effects(*ids)


@pytest.mark.parametrize("poison", [[("die", {})] * 9, "die"], ids=["in a tool", "in a model call"])
def test_a_conversation_that_kills_three_workers_ends_in_error_and_the_others_go_on(
    fleet: Fleet, poison: list[tuple[str, dict[str, object]]] | str
) -> None:
    post(fleet.store, "good", [STRIKE, MAIL, STRIKE], "1")
    post(fleet.store, "bad", poison, "1")
    deaths = 0
    [worker] = fleet.start()
    while fleet.statuses("bad") != {"error"}:
        if worker.dead:
            deaths += 1
            assert deaths <= 3
            [worker] = fleet.start()
        time.sleep(0.01)
    assert deaths == 3
    fleet.rest("good")
    fleet.check_effects("good")
    error = next(one for one in fleet.store.read("bad") if isinstance(one, ev.ErrorRecorded))
    assert error.error == "WorkerDied"
    assert error.details == {"how": "died", "times": 3}
    post(fleet.store, "bad", [STRIKE], "2")  # a later message begins a new run
    fleet.rest("bad")
    until(lambda: sum(one.counts.poisoned for one in registry_of(fleet).workers()) == 1)


def test_conversations_beside_a_deadly_one_are_not_ended_with_it(fleet: Fleet) -> None:
    """Check conversations that are in the same call each time that their worker dies."""
    others = [f"c{number}" for number in range(5)]
    for id in others:
        post(fleet.store, id, [("nap", {"seconds": 0.5}), MAIL], "1")
    post(fleet.store, "bad", "die", "1")
    [worker] = fleet.start()
    while fleet.statuses("bad") != {"error"}:
        if worker.dead:
            [worker] = fleet.start()
        time.sleep(0.01)
    fleet.rest(*others)
    until(lambda: sum(one.counts.poisoned for one in registry_of(fleet).workers()) == 1)


def registry_of(fleet: Fleet) -> Registry:
    return Registry(fleet.backend.database)


def test_sigterm_drains_a_worker_and_another_goes_on_at_once(fleet: Fleet) -> None:
    first, second = fleet.start(2)
    post(fleet.store, "a", [("hold", {}), STRIKE, MAIL], "1")
    owner = int(until(lambda: fleet.effects.lines("holds"))[0].split()[1])
    drained = first if first.pid == owner else second
    drained.process.terminate()
    until(lambda: any(one.counts.draining for one in registry_of(fleet).workers()))
    Path(fleet.settings.folder, "open").touch()
    assert drained.process.wait(20) == 0
    fleet.rest("a")
    assert results(fleet.store, "a") == ["held", "struck", "sent"]
    entries = registry_of(fleet).workers()
    assert len(entries) == 1
    assert entries[0].counts.takeovers == 0


def test_a_lost_worker_is_shown_as_lost(fleet: Fleet) -> None:
    [worker] = fleet.start()
    [entry] = registry_of(fleet).workers()
    assert (entry.state, entry.label.endswith(str(worker.pid))) == ("serving", True)
    worker.kill()
    until(lambda: registry_of(fleet).workers()[0].state == "lost")
    assert os.getpid() != worker.pid


@pytest.mark.parametrize("kind", ["table", "procrastinate"])
def test_workers_outlive_a_crash_of_the_database(kind: str, tmp_path: Path) -> None:
    try:
        with private_server(fsync=True) as server:
            fleet = Fleet(Settings(server.dsn(), str(tmp_path / "effects"), kind))
            try:
                ids = [f"c{number}" for number in range(20)]
                for id in ids:
                    post(fleet.store, id, [("strike", {"seconds": 0.1}), MAIL] * 3, "1")
                fleet.start(2)
                until(lambda: len(fleet.effects.lines("strikes")) >= 15)
                server.restart("immediate")
                fleet.rest(*ids, seconds=120)
                fleet.check_effects(*ids)
                assert not any(one.dead for one in fleet.workers)
            finally:
                fleet.close()
    except NoPostgres as reason:
        pytest.skip(str(reason))
