"""Wall time of forking a conversation of 1,000 or 10,000 events in SQLite: at its end, and at the
event before it.

From `conversation.fork(seq)` to a conversation that can be spoken to; no event is copied. At the
end the state is there already, at any other event it is folded anew. The floor is one row inserted
with bare sqlite3, in a transaction of its own, with the same `synchronous`.
"""

from __future__ import annotations

import sqlite3
import time
from typing import Any

import harness
from bench_open import REAL, write
from harness import Goal, Row, in_child, in_turns


def forked(path: str, length: int, at_end: bool, count: int) -> float:
    """Return the milliseconds per fork."""
    from holdfast import Agent, Conversation, ScriptedLLM, SQLiteStore

    with (
        SQLiteStore(path) as store,
        Conversation(Agent(ScriptedLLM([])), store, "c") as conversation,
    ):
        last = len(conversation.get_history())
        assert abs(last - length) < 5
        seconds: list[float] = []
        for _ in range(count):
            began = time.perf_counter()
            fork = conversation.fork(last if at_end else last - 1)
            seconds.append(time.perf_counter() - began)
            store.delete(fork.id)
        return sorted(seconds)[count // 2] * 1000


def bare(path: str, count: int) -> float:
    """Measure the floor, in milliseconds."""
    db: Any = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("CREATE TABLE IF NOT EXISTS forks (number INTEGER PRIMARY KEY, id TEXT, base TEXT)")
    seconds: list[float] = []
    for number in range(count):
        began = time.perf_counter()
        db.execute("INSERT INTO forks (id, base) VALUES (?, ?)", (f"{number:032x}", "[[1,10000]]"))
        seconds.append(time.perf_counter() - began)
    db.close()
    return sorted(seconds)[count // 2] * 1000


def rows(quick: bool) -> list[Row]:
    table: list[Row] = []
    count = 5 if quick else 20
    with harness.scratch() as folder:
        for length in (1000, 10000):
            path = f"{folder}/{length}.db"
            in_child(write, path, length, REAL, False)
            ways = {
                "bare": lambda: in_child(bare, f"{folder}/bare.db", count),
                "end": lambda p=path, n=length: in_child(forked, p, n, True, count),
                "before": lambda p=path, n=length: in_child(forked, p, n, False, count),
            }
            measured = in_turns(2 if quick else 5, ways)
            goal = Goal(5) if length == 10000 else None
            table.append(
                Row(
                    f"{length:,} events, at the last", "ms", measured["end"], measured["bare"], goal
                )
            )
            table.append(
                Row(
                    f"{length:,} events, at the one before it",
                    "ms",
                    measured["before"],
                    measured["bare"],
                    goal,
                )
            )
    return table
