"""Timers that are due at once: until all are rung, and until all their messages are in journals.

Each conversation has one timer. "Rung" is the transaction that replaces the timers by commands in
the inboxes, and wakes their conversations; `Store.ring` does it for any number of workers, 1000 at
a time. "Message" is the last message in its journal, by one worker whose model takes no time: it
opens every conversation, and drives its turn. The floor of a message is the same worker's time for
as many posted messages.
"""

from __future__ import annotations

import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

from bench_turns import opened
from harness import REPOSITORY, Goal, Row, in_child

sys.path.insert(0, str(REPOSITORY))

THREADS = 16


def fired(kind: str, place: str, count: int) -> tuple[float, float, float]:
    """Seconds until `count` timers are rung, until their messages are journaled, and for as many
    posted messages."""
    from holdfast import Agent, Conversation, ScriptedLLM
    from holdfast.commands import Send
    from holdfast.content import TextContent
    from holdfast.fleet import Worker

    store, backend = opened(kind, place)
    agent = Agent(ScriptedLLM(lambda request: "ok"))
    ids = [f"t{number % 5}/c{number}" for number in range(count)]
    due = datetime.now(UTC) - timedelta(seconds=1)
    earlier = due - timedelta(hours=1)

    def prepare(id: str) -> None:
        with Conversation(agent, store, id, clock=lambda: earlier) as conversation:
            conversation.schedule("Time is up.", at=due)

    def opened_here(id: str) -> Conversation:
        return Conversation(agent, store, id)

    def drive() -> float:
        worker = Worker(store, opened_here, backend, concurrency=THREADS)
        began = time.perf_counter()
        worker.start()
        while any(backend.stats()[:3]):
            time.sleep(0.05)
        seconds = time.perf_counter() - began
        worker.close()
        return seconds

    def post(id: str) -> None:
        store.post(id, Send((TextContent("Time is up."),)), "1")

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(prepare, ids))
    began, rung = time.perf_counter(), 0
    while found := store.ring(datetime.now(UTC), 1000):
        rung += len(found)
    ringing = time.perf_counter() - began
    assert rung == count, rung
    messages = drive()
    assert len(store.list(status="finished")) == count
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(post, ids))
    posted = drive()
    store.close()
    backend.close()
    return ringing, ringing + messages, posted


def rows(quick: bool) -> list[Row]:
    from tests.postgres import NoPostgres, private_server

    count, repeats = (1000, 1) if quick else (10_000, 3)
    found: dict[str, list[tuple[float, float, float]]] = {}
    skipped = ""
    for name in ("SQLite", "Postgres"):
        for _ in range(repeats):
            with tempfile.TemporaryDirectory() as folder:
                if name == "SQLite":
                    one = in_child(fired, "table", f"{folder}/store.db", count, timeout=900)
                else:
                    try:
                        with private_server(fsync=True) as server:
                            one = in_child(fired, "table", server.dsn(), count, timeout=900)
                    except NoPostgres as reason:
                        skipped = str(reason)
                        break
                found.setdefault(name, []).append(one)
    made: list[Row] = []
    for name in ("SQLite", "Postgres"):
        times = found.get(name, [])
        rung, messages, posted = ([one[part] for one in times] for part in range(3))
        what = f"{count:,} timers due at once, {name}"
        made += [
            Row(f"{what}: rung", "s", rung, goal=Goal(2), skipped=skipped),
            Row("  until the last message", "s", messages, posted, skipped=skipped),
        ]
    return made
