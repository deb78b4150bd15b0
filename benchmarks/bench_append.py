"""CPU and wall time of appending one event to a journal that has 1,000 or 10,000, through the store
and through `send_message`.

`append` is `Store.append` of one event that is made already; `send_message` makes it, writes it,
and folds it into the conversation's state. The floor is a bare sqlite3 insert of as many bytes into
as long a table, in WAL with the same `synchronous`, each its own transaction.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import harness
from harness import Goal, Row, in_child, in_turns

# 1,278 characters: an event of 1.4 KB, the median
TEXT = "Please look at the other items as well, and say what is known of them. " * 18


def message(seq: int) -> Any:
    """Return an event with a message of `TEXT`."""
    from holdfast import TextContent
    from holdfast.events import MessageAdded

    return MessageAdded(
        seq=seq, id=f"{seq:032x}", timestamp=datetime.now(UTC), content=(TextContent(TEXT),)
    )


# events in every store, so that only the journal's length differs and not the size of its file
TOTAL = 10000


def filled(length: int, kind: str, folder: str) -> Any:
    """Return a store in which the conversation "c" has `length` events. Another conversation has
    the rest of `TOTAL`."""
    from holdfast import MemoryStore, SQLiteStore
    from holdfast.store import Batch, Summary

    path = f"{folder}/{kind}-{time.monotonic_ns()}.db"
    store = MemoryStore() if kind == "memory" else SQLiteStore(path, durability=kind)  # pyright: ignore
    for name, count in (("other", TOTAL - length), ("c", length)):
        lease = store.acquire(name)
        for start in range(1, count + 1, 500):
            events = [message(seq) for seq in range(start, start + 500)]
            store.append(lease, Batch(events, Summary(name, last_seq=events[-1].seq)))
        store.release(lease)
    return store


def timed(action: Callable[[int], object], numbers: range, warm: int = 20) -> tuple[float, float]:
    """Return the microseconds of CPU and of wall time per action."""
    for number in numbers[:warm]:
        action(number)
    cpu, wall = time.process_time(), time.perf_counter()
    for number in numbers[warm:]:
        action(number)
    count = len(numbers) - warm
    return (time.process_time() - cpu) / count * 1e6, (time.perf_counter() - wall) / count * 1e6


def by_store(length: int, kind: str, count: int, folder: str) -> tuple[float, float]:
    """Measure `Store.append`."""
    from holdfast.store import Batch, Summary

    store = filled(length, kind, folder)
    lease = store.acquire("c")
    events = {seq: message(seq) for seq in range(length + 1, length + count + 1)}
    summaries = {
        seq: Summary("c", last_seq=seq, updated=event.timestamp) for seq, event in events.items()
    }
    times = timed(
        lambda seq: store.append(lease, Batch([events[seq]], summaries[seq])),
        range(length + 1, length + count + 1),
    )
    store.close()
    return times


def by_conversation(length: int, kind: str, count: int, folder: str) -> tuple[float, float]:
    """Measure `Conversation.send_message`."""
    from holdfast import Agent, Conversation, ScriptedLLM

    store = filled(length, kind, folder)
    with Conversation(Agent(ScriptedLLM([])), store, "c") as conversation:
        times = timed(lambda _: conversation.send_message(TEXT), range(count))
        assert len(conversation.get_history()) == length + count
    store.close()
    return times


def bare(kind: str, count: int, folder: str) -> tuple[float, float]:
    """Measure the floor."""
    data = message(1).to_json()
    db = sqlite3.connect(f"{folder}/bare-{time.monotonic_ns()}.db", isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute(f"PRAGMA synchronous = {'FULL' if kind == 'durable' else 'NORMAL'}")
    db.execute("CREATE TABLE events (seq INTEGER PRIMARY KEY, data BLOB NOT NULL)")
    insert = "INSERT INTO events VALUES (?, ?)"
    for start in range(1, TOTAL, 500):
        db.execute("BEGIN")
        db.executemany(insert, [(seq, data) for seq in range(start, start + 500)])
        db.execute("COMMIT")
    times = timed(lambda seq: db.execute(insert, (seq, data)), range(TOTAL + 1, TOTAL + count + 1))
    db.close()
    return times


def rows(quick: bool) -> list[Row]:
    count = 100 if quick else 400
    table: list[Row] = []
    with harness.scratch() as folder:
        for kind in ("memory", "process", "durable"):
            name = "memory" if kind == "memory" else f"SQLite, {kind}"
            figures: dict[str, Callable[[], Any]] = (
                {}
                if kind == "memory"
                else {"bare": lambda kind=kind: in_child(bare, kind, count, folder)}
            )
            for way, function in (("append", by_store), ("send_message", by_conversation)):
                for length in (1000, 10000):
                    figures[f"{way} {length}"] = lambda f=function, n=length, kind=kind: in_child(
                        f, n, kind, count, folder
                    )
            measured = in_turns(2 if quick else 5, figures)
            cpu = {key: [one[0] for one in repeats] for key, repeats in measured.items()}
            wall = {key: [one[1] for one in repeats] for key, repeats in measured.items()}
            for way in ("append", "send_message"):
                for length in (1000, 10000):
                    key = f"{way} {length}"
                    table.append(
                        Row(
                            f"{name}: {way} at {length:,}, CPU",
                            "us",
                            cpu[key],
                            cpu.get("bare", ()),
                            None if kind == "durable" else Goal(60),
                        )
                    )
                    if kind == "durable":
                        table.append(Row("  wall", "us", wall[key], wall["bare"]))
                growth = [
                    long / short
                    for long, short in zip(cpu[f"{way} 10000"], cpu[f"{way} 1000"], strict=True)
                ]
                table.append(Row("  at 10,000 over at 1,000 (flat: 1)", "", growth))
    return table
