"""Timers that are due at once: until all have fired, and until all their messages are answered.

Each conversation has one timer, and none is open. "Fired" is the commit that appends the last of
their messages to its journal, counted from the due time, by one worker that drives conversations
as well: they become due while it runs. The turns that the messages begin are another matter: "answered" is the end of the
last one, with a model that takes no time. Its floor is the same worker's time for as many posted
messages.
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
SETTING_SECONDS = 8.0  # in which a thousand timers are set, also on a busy machine


def seconds_since(moment: datetime) -> float:
    return (datetime.now(UTC) - moment).total_seconds()


def fired(kind: str, place: str, count: int) -> tuple[float, float, float]:
    """Seconds until `count` timers have fired, until their messages are answered, and until as
    many posted messages are."""
    from holdfast import Agent, Conversation, ScriptedLLM
    from holdfast import events as ev
    from holdfast.commands import Send
    from holdfast.content import TextContent
    from holdfast.fleet import Worker

    store, backend = opened(kind, place)
    agent = Agent(ScriptedLLM(lambda request: "ok"))
    ids = [f"t{number % 5}/c{number}" for number in range(count)]
    due = datetime.now(UTC) + timedelta(seconds=SETTING_SECONDS * count / 1000)

    def prepare(id: str) -> None:
        with Conversation(agent, store, id) as conversation:
            conversation.schedule("Time is up.", at=due)

    def opened_here(id: str) -> Conversation:
        return Conversation(agent, store, id)

    def answered() -> None:
        while any(backend.stats()[:3]):
            time.sleep(0.05)

    def post(id: str) -> None:
        store.post(id, Send((TextContent("Time is up."),)), "1")

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(prepare, ids))
    assert datetime.now(UTC) < due, "setting the timers took too long"
    worker = Worker(store, opened_here, backend, concurrency=THREADS)
    worker.start()
    while store.next_due() is not None:
        time.sleep(0.02)
    firing = seconds_since(due)
    unfired = len(store.list(waiting=True))  # rung, but left to whoever opens the conversation
    assert not unfired, unfired
    answered()
    answering = seconds_since(due)
    worker.close()
    for id in ids:
        kinds = [type(one) for one in store.read(id)]
        assert kinds.count(ev.TimerFired) == kinds.count(ev.MessageAdded) == 1, id
    assert len(store.list(status="finished")) == count
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(post, ids))
    worker = Worker(store, opened_here, backend, concurrency=THREADS)
    began = time.perf_counter()
    worker.start()
    answered()
    posted = time.perf_counter() - began
    worker.close()
    store.close()
    backend.close()
    return firing, answering, posted


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
        firing, answering, posted = ([one[part] for one in times] for part in range(3))
        what = f"{count:,} timers due at once, {name}"
        made += [
            Row(f"{what}: fired", "s", firing, goal=Goal(2), skipped=skipped),
            Row("  until the last is answered", "s", answering, posted, skipped=skipped),
        ]
    return made
