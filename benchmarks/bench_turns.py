"""Turns per second of a worker whose model takes no time, over Postgres with fsync.

A turn is a posted message, answered by one model call. The messages are posted before the worker
starts. "Takeover" is the time from the SIGKILL of a worker to the first event of its successor.
The figures hold for an idle machine: worker and Postgres share its cores.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from harness import Goal, Row, in_child

sys.path.insert(0, str(Path(__file__).parents[1]))

THREADS = 16
GOALS = {"table": 400, "procrastinate": 250}


def _opened(kind: str, dsn: str) -> tuple[Any, Any]:
    from holdfast import SQLiteStore
    from holdfast.fleet import Bell, TableBackend
    from holdfast.fleet.procrastinate import ProcrastinateBackend
    from holdfast.store import PostgresStore

    if not dsn.startswith("postgresql:"):
        backend: Any = TableBackend(dsn)
        return SQLiteStore(dsn, bell=Bell(backend)), backend
    backend = (TableBackend if kind == "table" else ProcrastinateBackend)(dsn, schema=kind)
    return PostgresStore(dsn, schema=kind, bell=Bell(backend), pool_size=THREADS), backend


def turns(kind: str, dsn: str, count: int, rounds: int = 1) -> tuple[float, float, float]:
    """(turns per second, CPU of the worker per turn in ms, its peak RSS in MB)."""
    from holdfast import Agent, Conversation, ScriptedLLM
    from holdfast.commands import Send
    from holdfast.content import TextContent
    from holdfast.fleet import Worker

    store, backend = _opened(kind, dsn)
    model = ScriptedLLM(lambda request: "ok")
    agent = Agent(model)
    ids = [f"t{number % 5}/c{number}" for number in range(count)]
    seconds = cpu = 0.0
    for turn in range(rounds):

        def post(id: str, turn: int = turn) -> None:
            if not turn:
                store.release(store.acquire(id))
            store.post(id, Send((TextContent("hello"),)), f"{turn}")

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(post, ids))
        began, spent = time.perf_counter(), time.process_time()
        worker = Worker(
            store, lambda name: Conversation(agent, store, name), backend, concurrency=THREADS
        )
        worker.start()
        while any(backend.stats()[:3]):
            time.sleep(0.05)
        seconds += time.perf_counter() - began
        cpu += time.process_time() - spent
        worker.close()
        model.requests.clear()  # it keeps them all
    assert {one.status for one in store.list()} == {"finished"}
    store.close()
    backend.close()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return count * rounds / seconds, cpu / count / rounds * 1000, memory


def takeover(kind: str, dsn: str, folder: str) -> float:
    """Seconds from the SIGKILL of a worker to the next event of its conversation."""
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
    found: list[Row] = []
    try:
        for kind in ("table", "procrastinate"):
            rates: list[float] = []
            spent: list[float] = []
            seconds: list[float] = []
            for _ in range(repeats):
                with private_server(fsync=True) as server, tempfile.TemporaryDirectory() as folder:
                    rate, cpu, _ = in_child(turns, kind, server.dsn(), count)
                    rates.append(1000 / rate)
                    spent.append(cpu)
                    seconds.append(in_child(takeover, kind, server.dsn(), folder))
            found += [
                Row(f"a turn, {kind}", "ms", rates, goal=Goal(1000 / GOALS[kind])),
                Row("  CPU of the worker", "ms", spent),
                Row("  takeover after a SIGKILL", "s", seconds, goal=Goal(10)),
            ]
        sizes: list[float] = []
        few, many = (500, 4) if quick else (1000, 10)
        with private_server() as server:
            for rounds in (1, many):
                sizes.append(in_child(turns, "table", server.dsn(), few, rounds, timeout=600)[2])
                server.restart()
        what = f"RSS after {few * many:,} turns, beside {few:,}"
        found.append(Row(what, "MB", sizes[1:], sizes[:1], Goal(1.05, "ratio")))
    except NoPostgres as reason:
        found.append(Row("a turn", "ms", skipped=str(reason)))
    return found
