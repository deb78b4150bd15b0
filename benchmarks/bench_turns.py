"""Turns per second of a worker whose model takes no time, over Postgres with fsync.

A turn is a posted message, answered by one model call. The messages are posted before the worker
starts. The floor of a turn is a bare `INSERT` with commit by as many threads; a turn has at least
four. "Takeover" is the time from the SIGKILL of a worker to the first event of its successor.
The figures hold for an idle machine: worker and Postgres share its cores.
"""

from __future__ import annotations

import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from harness import Goal, Row, in_child

sys.path.insert(0, str(Path(__file__).parents[1]))

THREADS = 32
POOL_SIZE = 8
GOALS = {"table": 400, "procrastinate": 250}


def opened(kind: str, dsn: str) -> tuple[Any, Any]:
    from holdfast import SQLiteStore
    from holdfast.fleet import Bell, TableBackend
    from holdfast.fleet.procrastinate import ProcrastinateBackend
    from holdfast.store import PostgresStore

    if not dsn.startswith("postgresql:"):
        backend: Any = TableBackend(dsn)
        return SQLiteStore(dsn, bell=Bell(backend)), backend
    backend = (TableBackend if kind == "table" else ProcrastinateBackend)(dsn, schema=kind)
    return PostgresStore(dsn, schema=kind, bell=Bell(backend), pool_size=POOL_SIZE), backend


def turns(kind: str, dsn: str, count: int) -> tuple[float, float]:
    """Return turns per second, and milliseconds of the worker's CPU per turn."""
    from holdfast import Agent, Conversation, ScriptedLLM
    from holdfast.fleet import Worker

    store, backend = opened(kind, dsn)
    agent = Agent(ScriptedLLM(lambda request: "ok"))
    post(store, [f"t{number % 5}/c{number}" for number in range(count)])
    began, cpu_began = time.perf_counter(), time.process_time()
    worker = Worker(
        store, lambda name: Conversation(agent, store, name), backend, concurrency=THREADS
    )
    worker.start()
    while any(backend.stats()[:3]):
        time.sleep(0.05)
    seconds = time.perf_counter() - began
    cpu = time.process_time() - cpu_began
    worker.close()
    assert {one.status for one in store.list()} == {"finished"}
    store.close()
    backend.close()
    return count / seconds, cpu / count * 1000


def post(store: Any, ids: list[str]) -> None:
    """Create conversations, each with a message."""
    from holdfast.commands import Send
    from holdfast.content import TextContent

    def begin(id: str) -> None:
        store.release(store.acquire(id))
        store.post(id, Send((TextContent("hello"),)), "1")

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(begin, ids))


def bare_commits(dsn: str, count: int) -> float:
    """Return milliseconds per bare `INSERT` with commit, by as many threads as a worker has."""
    import psycopg

    def insert(thread: int) -> None:
        with psycopg.connect(dsn, autocommit=True) as db:
            for number in range(count // THREADS):
                row = (thread, number, b"x" * 400)
                db.execute("INSERT INTO bare VALUES (%s, %s, %s)", row)

    with psycopg.connect(dsn, autocommit=True) as db:
        db.execute("CREATE TABLE bare (c bigint, n bigint, d bytea, PRIMARY KEY (c, n))")
    with ThreadPoolExecutor(THREADS) as threads:
        began = time.perf_counter()
        list(threads.map(insert, range(THREADS)))
        return (time.perf_counter() - began) / count * 1000


def takeover(kind: str, dsn: str, folder: str) -> float:
    """Return the seconds from the SIGKILL of a worker to the next event of its conversation."""
    from tests.fleet_program import Effects, Settings, WorkerProcess, post

    settings = Settings(dsn, folder, kind, kind)
    store, backend = settings.opened()
    effects = Effects(Path(folder))
    first = WorkerProcess(settings).ready()
    post(store, "a", [("strike", {"seconds": 60})], "1")
    while not effects.lines("strikes"):
        time.sleep(0.01)
    second = WorkerProcess(settings).ready()
    before = len(store.read("a"))
    began = time.perf_counter()
    first.kill()
    while len(store.read("a")) == before:
        time.sleep(0.02)
    seconds = time.perf_counter() - began
    second.close()
    first.close()
    store.close()
    backend.close()
    return seconds


def rows(quick: bool) -> list[Row]:
    from tests.postgres import NoPostgres, private_server

    count, repeats = (300, 1) if quick else (2000, 3)
    table: list[Row] = []
    try:
        for kind in ("table", "procrastinate"):
            rates: list[float] = []
            bare: list[float] = []
            cpu_times: list[float] = []
            seconds: list[float] = []
            for _ in range(repeats):
                with private_server(fsync=True) as server, tempfile.TemporaryDirectory() as folder:
                    bare.append(in_child(bare_commits, server.dsn(), 1600))
                    rate, cpu = in_child(turns, kind, server.dsn(), count)
                    rates.append(1000 / rate)
                    cpu_times.append(cpu)
                    seconds.append(in_child(takeover, kind, server.dsn(), folder))
            table += [
                Row(f"a turn, {kind}", "ms", rates, bare, Goal(1000 / GOALS[kind])),
                Row("  CPU of the worker", "ms", cpu_times),
                Row("  takeover after a SIGKILL", "s", seconds, goal=Goal(10)),
            ]
    except NoPostgres as reason:
        table.append(Row("a turn", "ms", skipped=str(reason)))
    return table
