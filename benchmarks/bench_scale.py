"""Cost of a store as it fills: the same work beside few parked conversations and beside many.

The parked conversations are copies of one that a worker has driven, made by the database: its
events, its inbox, and a timer of next year for each tenth of them. Then a worker drives new ones.
The queries that each worker sends every second are timed, and so is the deletion of old
conversations. The last lines plan for a million conversations from these figures; `docs/scale.md`
quotes them.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

from bench_turns import opened, post
from harness import REPOSITORY, Row, in_child

sys.path.insert(0, str(REPOSITORY))

TURNS, DELETES = 600, 200
# The tables that grow with the conversations, by the part of the plan that they belong to.
_TABLES = ("conversations", "events", "inbox", "timers", "fleet_wakes", "blobs", "blob_refs")
_PARK = """
WITH source AS (SELECT * FROM conversations WHERE id = 'first'), made AS (
    INSERT INTO conversations (id, epoch, last_seq, created, updated, status, title, needs)
    SELECT 'parked/' || n, epoch, last_seq, created, updated, status, title, needs
    FROM source, generate_series(%(from)s::bigint, %(to)s::bigint) AS n RETURNING number
), events_made AS (
    INSERT INTO events (conversation, seq, crc, data)
    SELECT m.number, e.seq, e.crc, e.data
    FROM made m, events e JOIN source s ON s.number = e.conversation
), inbox_made AS (
    INSERT INTO inbox (conversation, key) SELECT number, 'k' FROM made
)
INSERT INTO timers (conversation, due, timer)
SELECT number, now() + interval '1 year', 'next year' FROM made WHERE number %% 10 = 0
"""


class Figures(NamedTuple):
    """The figures beside a number of parked conversations. Times are in milliseconds."""

    bytes: dict[str, float]  # per conversation, by table, with its indexes
    turn: float
    wal_bytes: float  # per turn
    unattended: float
    parked_look: float
    ring: float
    stats: float
    delete: float


def filled(dsn: str, before: int, count: int) -> Figures:
    """Fill the tables from `before` to `count` parked conversations, and measure."""
    import psycopg

    from holdfast import Agent, Conversation, ScriptedLLM
    from holdfast.fleet import Worker

    store, backend = opened("table", dsn)
    agent = Agent(ScriptedLLM(lambda request: "ok"))

    def opened_here(id: str) -> Conversation:
        return Conversation(agent, store, id)

    def drive(ids: list[str]) -> float:
        post(store, ids)
        worker = Worker(store, opened_here, backend)
        began = time.perf_counter()
        worker.start()
        while any(backend.stats()[:3]):
            time.sleep(0.02)
        seconds = time.perf_counter() - began
        worker.close()
        return seconds

    def timed(work: Callable[[], Any], times: int = 5) -> float:
        work()
        milliseconds: list[float] = []
        for _ in range(times):
            began = time.perf_counter()
            work()
            milliseconds.append((time.perf_counter() - began) * 1000)
        return statistics.median(milliseconds)

    if not before:
        drive(["first"])
    with psycopg.connect(dsn, autocommit=True) as db:
        db.execute('SET search_path = "table"')
        step = 50_000
        for start in range(before + 1, count + 1, step):
            db.execute(_PARK, {"from": start, "to": min(start + step - 1, count)})
        db.execute("VACUUM (ANALYZE)")
        db.execute("CHECKPOINT")

        def one(query: str) -> Any:
            row = db.execute(query).fetchone()
            assert row is not None
            return row[0]

        sizes = {name: one(f"SELECT pg_total_relation_size('{name}')") / count for name in _TABLES}
        drive([f"warm{count}/c{number}" for number in range(200)])
        wal = one("SELECT pg_current_wal_lsn() - '0/0'")
        seconds = drive([f"live{count}/c{number}" for number in range(TURNS)])
        wal = one("SELECT pg_current_wal_lsn() - '0/0'") - wal
        unattended = timed(lambda: store.unattended(300))
        parked_look = timed(lambda: store.unattended(300, parked=True))
        ring = timed(lambda: store.ring(datetime.now(UTC)))
        stats = timed(backend.stats)
        began = time.perf_counter()
        for number in range(DELETES):
            store.delete(f"parked/{before + 1 + number}")
        deleted = (time.perf_counter() - began) * 1000 / DELETES
    store.close()
    backend.close()
    return Figures(
        sizes, seconds * 1000 / TURNS, float(wal) / TURNS, unattended, parked_look, ring, stats, deleted
    )  # fmt: skip


class Plan(NamedTuple):
    """A load: conversations in the store, turns of each in a day, events and bytes of a turn."""

    conversations: int = 1_000_000
    turns_per_day: float = 1
    peak: float = 4  # peak over the mean
    calls_per_turn: float = 3
    events_per_call: float = 3
    event_bytes: float = 1400
    retention_days: float = 90


def planned(plan: Plan, figures: Figures) -> dict[str, float]:
    """Return the database load of a plan, from the figures beside as many conversations."""
    turns = plan.conversations * plan.turns_per_day / 86_400
    # starts share the commit of an answer
    appends = 4 + plan.calls_per_turn * plan.events_per_call * 2 / 3
    events = 5 + plan.calls_per_turn * plan.events_per_call
    overhead = 60  # bytes of a row and its index entry, beside its data
    event_bytes = plan.event_bytes + overhead
    return {
        "turns per second, mean": turns,
        "turns per second, peak": turns * plan.peak,
        "writes per second, peak": turns * plan.peak * (appends + 2),
        "GB of events per day": turns * 86_400 * events * event_bytes / 1e9,
        "GB of events kept": turns * 86_400 * plan.retention_days * events * event_bytes / 1e9,
        "GB of other tables": plan.conversations
        * sum(size for name, size in figures.bytes.items() if name != "events")
        / 1e9,
        "cores of workers and Postgres, peak": turns * plan.peak * figures.turn * 2 / 1000
        * (1 + plan.calls_per_turn),
    }  # fmt: skip


def rows(quick: bool) -> list[Row]:
    from tests.postgres import NoPostgres, private_server

    few, many = (2_000, 50_000) if quick else (10_000, 1_000_000)
    try:
        with private_server(fsync=True) as server:
            small = Figures(*in_child(filled, server.dsn(), 0, few, timeout=900))
            large = Figures(*in_child(filled, server.dsn(), few, many, timeout=3000))
    except NoPostgres as reason:
        return [Row("a turn beside many conversations", "ms", skipped=str(reason))]
    texts = {
        "turn": ("a turn of a worker", "ms"),
        "wal_bytes": ("WAL of a turn", "B"),
        "unattended": ("look for lost work", "ms"),
        "parked_look": ("the same with those that were given back", "ms"),
        "ring": ("look for due timers", "ms"),
        "stats": ("state of the queue", "ms"),
        "delete": ("deletion of a conversation", "ms"),
    }
    table = [
        Row(f"{text}: beside {many:,}, beside {few:,}", unit, [getattr(large, name)], [getattr(small, name)])
        for name, (text, unit) in texts.items()
    ]  # fmt: skip
    table += [
        Row(f"bytes of a conversation in {name}", "B", [size], [small.bytes[name]])
        for name, size in large.bytes.items()
        if size >= 1
    ]
    table += [Row(f"plan: {what}", "", [value]) for what, value in planned(Plan(), large).items()]
    return table
