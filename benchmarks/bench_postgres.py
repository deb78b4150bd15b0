"""Appends to a journal in Postgres beside a bare `INSERT` with commit, and the delay of a follower
in another process.

The server is PostgreSQL on this machine with fsync on. `append` is `PostgresStore.append` of one
event of 1.4 KB that is encoded already, as a conversation hands it over. The floor inserts the same
bytes into a table with the same key, on one connection in autocommit mode with a prepared
statement, in turns with it. `follower_latencies` measures the time from the call of `append` in one
process until `follow` yields the event in another one.
"""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
import time
import zlib

from bench_append import message
from harness import REPOSITORY, Goal, Row

REPEATS, APPENDS = 5, 300
FOLLOWED = 500

FOLLOWER = """
import sys, time
from holdfast.store import PostgresStore
with PostgresStore(sys.argv[1]) as store:
    print("ready", flush=True)
    for event in store.follow("followed", 1, timeout=60):
        print(event.seq, time.time(), flush=True)
        if event.seq == int(sys.argv[2]):
            break
"""


def one_append(dsn: str) -> tuple[float, float]:
    """Return the milliseconds per durable append and per bare insert, in turns of 20."""
    import psycopg

    from holdfast.events import RecordedEvents
    from holdfast.store import Batch, PostgresStore, Summary

    name = f"c{time.monotonic_ns()}"
    with PostgresStore(dsn) as store, psycopg.connect(dsn, autocommit=True) as bare:
        bare.execute(
            "CREATE TABLE IF NOT EXISTS bare (conversation bigint, seq int, crc bigint, data bytea,"
            " PRIMARY KEY (conversation, seq))"
        )
        lease = store.acquire(name)
        number = time.monotonic_ns()
        seconds = [0.0, 0.0]
        for start in range(1, APPENDS + 41, 20):
            events = [(seq, RecordedEvents([message(seq)])) for seq in range(start, start + 20)]
            began = time.perf_counter()
            for seq, event in events:
                store.append(lease, Batch(event, Summary(name, last_seq=seq)))
            middle = time.perf_counter()
            for seq, event in events:
                [data] = event.data
                row = (number, seq, zlib.crc32(data), data)
                bare.execute("INSERT INTO bare VALUES (%s, %s, %s, %s)", row)
            if start > 40:  # warm
                seconds[0] += middle - began
                seconds[1] += time.perf_counter() - middle
    return seconds[0] / APPENDS * 1000, seconds[1] / APPENDS * 1000


def follower_latencies(dsn: str) -> list[float]:
    """Return the milliseconds until a follower in another process receives each event."""
    from holdfast.store import Batch, PostgresStore, Summary

    with PostgresStore(dsn) as store:
        lease = store.acquire("followed")
        last = store.read("followed")[-1].seq if store.read("followed") else 0
        if not last:
            store.append(lease, Batch([message(1)], Summary("followed", last_seq=1)))
            last = 1
        end = last + FOLLOWED
        follower = subprocess.Popen(
            [sys.executable, "-c", FOLLOWER, dsn, str(end)], stdout=subprocess.PIPE, text=True
        )
        assert follower.stdout is not None
        follower.stdout.readline()
        time.sleep(1.0)
        appended: dict[int, float] = {}
        for seq in range(last + 1, end + 1):
            appended[seq] = time.time()
            store.append(lease, Batch([message(seq)], Summary("followed", last_seq=seq)))
            time.sleep(0.02)
        lines = [line.split() for line in follower.stdout.read().splitlines()]
        follower.wait()
        store.release(lease)
    return [(float(at) - appended[int(seq)]) * 1000 for seq, at in lines if int(seq) in appended]


def rows(quick: bool) -> list[Row]:
    sys.path.insert(0, str(REPOSITORY))  # the server of the tests
    from tests.postgres import NoPostgres, private_server

    append = Row("append in Postgres, durable", "ms", goal=Goal(1.5, "ratio"))
    follow = Row("event seen in another process, median", "ms", goal=Goal(50))
    late = Row("event seen in another process, 99 %", "ms", goal=Goal(50))
    try:
        with private_server(fsync=True) as server:
            pairs = [one_append(server.dsn()) for _ in range(2 if quick else REPEATS)]
            append.values, append.floor = [one[0] for one in pairs], [one[1] for one in pairs]
            times = [sorted(follower_latencies(server.dsn())) for _ in range(1 if quick else 3)]
            follow.values = [statistics.median(one) for one in times]
            late.values = [one[math.ceil(len(one) * 0.99) - 1] for one in times]
    except (NoPostgres, ModuleNotFoundError) as problem:
        for row in (append, follow, late):
            row.skipped = str(problem)
    return [append, follow, late]
