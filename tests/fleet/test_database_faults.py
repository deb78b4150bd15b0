"""Tests of a fleet whose connections to Postgres fail: a network that is cut, connections that are
ended, a restart, and machines that disagree about the time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from holdfast import Conversation
from holdfast import events as ev
from holdfast.fleet import Registry, Wake, Worker
from holdfast.fleet.backend import Room
from tests.fleet.test_faults import MAIL, STRIKE, Fleet
from tests.fleet_program import Settings, WorkerProcess, post
from tests.network import Network
from tests.postgres import PostgresServer, private_server
from tests.waiting import until

psycopg = pytest.importorskip("psycopg")

pytestmark = pytest.mark.slow


@pytest.fixture(params=["table", "procrastinate"])
def fleet(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    postgres_server: PostgresServer,
    postgres_schema: str,
) -> Iterator[Fleet]:
    folder = str(tmp_path / "effects")
    opened = Fleet(Settings(postgres_server.dsn(), folder, request.param, postgres_schema))
    yield opened
    opened.close()


@pytest.fixture
def network(postgres_server: PostgresServer) -> Iterator[Network]:
    proxy = Network(postgres_server.port)
    yield proxy
    proxy.close()


def takeovers(fleet: Fleet) -> int:
    workers = Registry(fleet.backend.database).workers()
    return sum(one.counts.takeovers for one in workers)


def test_a_worker_whose_network_is_cut_is_taken_over_and_begins_nothing_more(
    fleet: Fleet, network: Network
) -> None:
    proxy_dsn = f"postgresql://postgres@127.0.0.1:{network.port}/postgres"
    cut_off = WorkerProcess(msgspec.structs.replace(fleet.settings, place=proxy_dsn))
    fleet.workers.append(cut_off.ready())
    ids = [f"c{number}" for number in range(6)]
    for id in ids:
        post(fleet.store, id, [("strike", {"seconds": 0.5}), STRIKE, MAIL], "1")
    until(lambda: len(fleet.effects.lines("strikes")) >= 6)
    network.cut()
    began = time.monotonic()
    fleet.start()
    fleet.rest(*ids)
    assert time.monotonic() - began < 20
    assert network.held_bytes > 0, "it tried to write its results"
    before = len(fleet.effects.lines("strikes")), [fleet.store.read(id) for id in ids]
    network.heal()  # writes from the time of the cut arrive, and are fenced
    post(fleet.store, "later", [STRIKE], "1")
    fleet.rest("later")
    until(lambda: len(Registry(fleet.backend.database).workers()) == 2)
    time.sleep(2)  # time for a worker that is back to do something forbidden
    assert not cut_off.dead
    assert len(fleet.effects.lines("strikes")) == before[0] + 1
    assert [fleet.store.read(id) for id in ids] == before[1]
    fleet.check_effects(*ids, "later")


def test_no_worker_is_ever_in_the_middle_of_a_pipeline(
    monkeypatch: pytest.MonkeyPatch, fleet: Fleet
) -> None:
    """Check the pipelines. Postgres does not end the transaction of a process that was frozen
    before it sent the end of a pipeline. Its locks would hold up every post to the same
    conversations."""

    def refused(*_: object) -> None:
        raise AssertionError("a pipeline")

    monkeypatch.setattr(psycopg.Connection, "pipeline", refused)
    monkeypatch.setattr(psycopg.Cursor, "executemany", refused)
    agent = fleet.effects.agent()

    def opened(id: str) -> Conversation:
        return Conversation(agent, fleet.store, id)

    ids = [f"c{number}" for number in range(30)]
    for id in ids:
        post(fleet.store, id, [STRIKE], "1")
    with Worker(fleet.store, opened, fleet.backend, concurrency=10):
        fleet.rest(*ids)
        for id in ids:
            post(fleet.store, id, [STRIKE], "2")
        fleet.rest(*ids)
    fleet.check_effects(*ids)


def test_a_worker_goes_on_when_its_network_is_back(fleet: Fleet, network: Network) -> None:
    proxy_dsn = f"postgresql://postgres@127.0.0.1:{network.port}/postgres"
    worker = WorkerProcess(msgspec.structs.replace(fleet.settings, place=proxy_dsn))
    fleet.workers.append(worker.ready())
    post(fleet.store, "a", [("strike", {"seconds": 0.2})] * 4, "1")
    until(lambda: fleet.effects.lines("strikes"))
    network.cut()
    time.sleep(8)  # longer than a lease, and nobody else takes it
    network.heal()
    fleet.rest("a")
    fleet.check_effects("a")
    assert not worker.dead


def test_workers_whose_clocks_are_minutes_apart_keep_their_leases_and_ring_timers_in_time(
    fleet: Fleet,
) -> None:
    for seconds in ("600", "-600"):
        fleet.workers.append(WorkerProcess(fleet.settings, "tests.skewed_program", seconds))
    for worker in fleet.workers:
        worker.ready()
    ids = [f"c{number}" for number in range(12)]  # more than one worker drives at once
    for id in ids:  # runs that take longer than a lease without renewal
        post(fleet.store, id, [("strike", {"seconds": 4}), STRIKE, ("strike", {"seconds": 4})], "1")
    due = datetime.now(UTC) + timedelta(minutes=5)
    with Conversation(fleet.effects.agent(), fleet.store, "sleeper") as sleeper:
        sleeper.schedule("[]", at=due)
    until(lambda: len({line.split()[1] for line in fleet.effects.lines("strikes")}) == 2)
    times = {one.timestamp for one in fleet.store.read("c0")}
    now = datetime.now(UTC)
    assert all(abs(one - now) > timedelta(minutes=9) for one in times), "its clock is right"
    fleet.rest(*ids)
    assert takeovers(fleet) == 0
    assert [one.conversation_id for one in fleet.store.due(due)] == ["sleeper"]
    assert not any(isinstance(one, ev.MessageAdded) for one in fleet.store.read("sleeper"))
    fleet.check_effects(*ids)


def end_connections(fleet: Fleet, server: PostgresServer) -> None:
    """End all connections, as a failover does."""
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        admin.execute(f"{query} WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'")


@pytest.mark.parametrize("kind", ["table", "procrastinate"])
def test_workers_go_on_when_all_connections_end_again_and_again_and_after_a_failover(
    kind: str, tmp_path: Path
) -> None:
    with private_server(fsync=True) as server:
        fleet = Fleet(Settings(server.dsn(), str(tmp_path / "effects"), kind))
        try:
            ids = [f"c{number}" for number in range(20)]
            for id in ids:
                post(fleet.store, id, [("strike", {"seconds": 0.1}), MAIL] * 3, "1")
            fleet.start(2)
            for count in (10, 20, 30):
                until(lambda least=count: len(fleet.effects.lines("strikes")) >= least)
                end_connections(fleet, server)
            server.restart("fast")
            fleet.rest(*ids, seconds=120)
            fleet.check_effects(*ids)
            strikes = fleet.effects.strikes()
            assert len(strikes) == 60, "connections that end cut off no call"
            assert takeovers(fleet) == 0
            assert not any(one.dead for one in fleet.workers)
        finally:
            fleet.close()


class NoWorker:
    """A handler with room for one conversation, which does nothing with it."""

    def __init__(self) -> None:
        self.received: list[Wake] = []

    def room(self) -> Room:
        return Room(1 - len(self.received))

    def take(self, wake: Wake) -> None:
        self.received.append(wake)


def test_two_workers_that_free_the_claim_of_a_lost_one_do_not_fail(
    fleet: Fleet, postgres_server: PostgresServer
) -> None:
    backend = fleet.backend
    lost_worker = NoWorker()
    first = backend.serve(lost_worker, "lost", "default", None)
    backend.wake("a")
    until(lambda: lost_worker.received)
    full = NoWorker()
    full.received.append(Wake("busy"))
    others = [backend.serve(full, name, "default", None) for name in ("one", "two")]
    table = "fleet_wakes" if fleet.settings.backend == "table" else "procrastinate_jobs"
    with (
        psycopg.connect(postgres_server.dsn()) as holder,
        psycopg.connect(postgres_server.dsn(), autocommit=True) as admin,
        ThreadPoolExecutor(2) as threads,
    ):
        holder.execute(f"SELECT FROM {fleet.settings.schema}.{table} FOR UPDATE")
        freed = [threads.submit(one.restore, [Wake("a")], ["lost"]) for one in others]
        query = """
        SELECT count(*) FROM pg_stat_activity WHERE cardinality(pg_blocking_pids(pid)) > 0
        AND datname = current_database() AND query ILIKE %s
        """
        if table == "procrastinate_jobs":
            until(lambda: admin.execute(query, ("%procrastinate%",)).fetchall() == [(2,)])
        holder.rollback()
        for one in freed:
            assert one.result(20) == {"a"}
    assert backend.stats().waiting == 1
    for one in (first, *others):
        one.close(5)
