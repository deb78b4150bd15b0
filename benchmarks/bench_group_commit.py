"""Durable events per second from 100 threads, each with a conversation of its own, over a competent
group commit by hand.

The floor ("naive") is a thread that takes whatever a queue holds and inserts it in one transaction,
with the same `synchronous=FULL`, over bare sqlite3: one table, no fencing, no checksums, no
summary. Both encode the event in the thread that appends it. Figures are microseconds per event, so
that the goal of 1.3 times the floor's events per second is a ratio of at most 0.77.

A table with a key beside it, as one would declare it, writes the events of all conversations one
after the other; the store's keeps each conversation's together, so that opening one reads a range,
and a commit of 100 conversations writes 100 pages. The rows "clustered" have a floor that does the
same.
"""

from __future__ import annotations

import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import harness
from harness import Goal, Row, in_child, in_turns

THREADS = 100
SIZES = {"300 B": 300, "1.4 KB (the median event)": 1400, "9.5 KB (the mean tool output)": 9500}


class Naive:
    """A thread that commits for others, written the plain way."""

    def __init__(self, path: str, clustered: bool) -> None:
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        table = (
            "CREATE TABLE events (conversation TEXT, seq INTEGER, data BLOB, PRIMARY KEY"
            " (conversation, seq))"
        )
        self._db.execute(table + (" WITHOUT ROWID" if clustered else ""))
        self._queue: queue.SimpleQueue[tuple[tuple[str, int, bytes], threading.Event] | None] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._commit)
        self._thread.start()

    def append(self, conversation: str, event: Any) -> None:
        committed = threading.Event()
        self._queue.put(((conversation, event.seq, event.to_json()), committed))
        committed.wait()

    def _commit(self) -> None:
        while (first := self._queue.get()) is not None:
            batch = [first]
            try:
                while (more := self._queue.get_nowait()) is not None:
                    batch.append(more)
            except queue.Empty:
                pass
            self._db.execute("BEGIN")
            self._db.executemany("INSERT INTO events VALUES (?, ?, ?)", [row for row, _ in batch])
            self._db.execute("COMMIT")
            for _, committed in batch:
                committed.set()

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()
        self._db.close()


def message(seq: int, size: int) -> Any:
    """Return an event of about `size` bytes."""
    from holdfast import TextContent
    from holdfast.events import MessageAdded

    return MessageAdded(
        seq=seq,
        id=f"{seq:032x}",
        timestamp=datetime.now(UTC),
        content=(TextContent("All work and no play. " * (size // 22)),),
    )


def per_event(appends: list[Callable[[Any], None]], each: int, size: int) -> float:
    """Return the microseconds of wall time per event. Each of `appends` is called `each` times on a
    thread of its own."""
    events = [message(seq, size) for seq in range(1, each + 1)]
    ready = threading.Barrier(len(appends) + 1)

    def work(append: Callable[[Any], None]) -> None:
        ready.wait()
        for event in events:
            append(event)

    threads = [threading.Thread(target=work, args=(append,)) for append in appends]
    for thread in threads:
        thread.start()
    ready.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    return (time.perf_counter() - began) / (each * len(appends)) * 1e6


def by_hand(each: int, size: int, clustered: bool, folder: str) -> float:
    """Measure the floor."""
    from functools import partial

    naive = Naive(f"{folder}/naive-{time.monotonic_ns()}.db", clustered)
    microseconds = per_event(
        [partial(naive.append, f"c{number}") for number in range(THREADS)], each, size
    )
    naive.close()
    return microseconds


def by_store(each: int, size: int, folder: str) -> float:
    """Measure `SQLiteStore.append`."""
    from holdfast import SQLiteStore
    from holdfast.store import Batch, Summary

    store = SQLiteStore(f"{folder}/store-{time.monotonic_ns()}.db")
    summaries = [Summary("c", last_seq=seq) for seq in range(each + 1)]

    def appender(number: int) -> Callable[[Any], None]:
        lease = store.acquire(f"c{number}")
        return lambda event: store.append(lease, Batch([event], summaries[event.seq]))

    microseconds = per_event([appender(number) for number in range(THREADS)], each, size)
    assert all(len(store.read(f"c{number}")) == each for number in range(THREADS))
    store.close()
    return microseconds


def rows(quick: bool) -> list[Row]:
    """Return the rows of the table."""
    each = 20 if quick else 100
    table: list[Row] = []
    with harness.scratch() as folder:
        for name, size in SIZES.items():
            measured = in_turns(
                3 if quick else 7,
                {
                    "naive": lambda size=size: in_child(by_hand, each, size, False, folder),
                    "clustered": lambda size=size: in_child(by_hand, each, size, True, folder),
                    "store": lambda size=size: in_child(by_store, each, size, folder),
                },
            )
            table.append(
                Row(
                    f"{THREADS} threads, events of {name}",
                    "us",
                    measured["store"],
                    measured["naive"],
                    Goal(0.77, "ratio"),
                )
            )
            table.append(Row("  clustered", "us", measured["store"], measured["clustered"]))
    return table
