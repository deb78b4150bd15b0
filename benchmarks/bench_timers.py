"""Timers that are due at once: the time until all have fired, and the time of the turns that answer
them.

Each conversation has one timer, and none is open. "Fired" is the commit that appends the last of
their messages to its journal, counted from the due time. One worker fires them and drives
conversations as well; the timers become due while it runs. The worker has a limited time for the
turns that the messages begin: "a turn that answers one" is this time divided by the turns that
ended in it, with a model that takes no time. Its floor is a turn of the same worker for a posted
message. The CPU is that of the worker's process until all have fired, which depends less on the
machine's load.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

from bench_turns import opened
from harness import REPOSITORY, Failed, Goal, Row, in_child

sys.path.insert(0, str(REPOSITORY))

THREADS = 16
SAMPLE = 200  # conversations whose timers are set first, to learn how long that takes
POSTED = 1000
FIRING_SECONDS = 60.0  # after the due time, before the measurement is given up
TURNS_SECONDS = 10.0  # for the turns


def seconds_since(moment: datetime) -> float:
    return (datetime.now(UTC) - moment).total_seconds()


def fired(kind: str, place: str, count: int) -> tuple[float, float, float, float]:
    """Return seconds until `count` timers have fired, seconds of CPU until then, milliseconds of a
    turn that answers one, and of a turn that answers a posted message."""
    from holdfast import Agent, Conversation, ScriptedLLM
    from holdfast import events as ev
    from holdfast.commands import Send
    from holdfast.content import TextContent
    from holdfast.fleet import Worker

    store, backend = opened(kind, place)
    agent = Agent(ScriptedLLM(lambda request: "ok"))

    def conversation(id: str) -> Conversation:
        return Conversation(agent, store, id)

    def started() -> Worker:
        return Worker(store, conversation, backend, concurrency=THREADS).start()

    def set_timers(ids: list[str], due: datetime) -> float:
        """Set a timer for each conversation, and return the seconds that this takes."""

        def set_timer(id: str) -> None:
            with conversation(id) as one:
                one.schedule("Time is up.", at=due)

        began = time.perf_counter()
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(set_timer, ids))
        return time.perf_counter() - began

    def milliseconds_per_turn() -> float:
        """Return the milliseconds per turn of this worker, over a limited time."""
        before, began = worker.counts().runs, time.perf_counter()
        while any(backend.stats()[:3]) and time.perf_counter() - began < TURNS_SECONDS:
            time.sleep(0.05)
        seconds = time.perf_counter() - began
        return seconds / max(1, worker.counts().runs - before) * 1000

    posted = [f"t{number % 5}/p{number}" for number in range(POSTED)]
    for id in posted:
        store.release(store.acquire(id))
        store.post(id, Send((TextContent("Time is up."),)), "1")
    worker = started()
    posted_turn = milliseconds_per_turn()
    worker.close()

    sample = [f"t{number % 5}/s{number}" for number in range(SAMPLE)]
    needed = set_timers(sample, datetime.now(UTC) + timedelta(days=1)) / SAMPLE * count
    ids = [f"t{number % 5}/c{number}" for number in range(count)]
    due = datetime.now(UTC) + timedelta(seconds=5 + 2 * needed)
    set_timers(ids, due)
    worker = started()
    if seconds_since(due) > -1:
        raise Failed("setting the timers took too long")
    time.sleep(max(0.0, -seconds_since(due)))
    began = time.process_time()
    until(lambda: not store.due(due, 1), FIRING_SECONDS - seconds_since(due))
    firing, cpu = seconds_since(due), time.process_time() - began
    # rung, but left to the process that opens the conversation
    unfired = len(store.list(waiting=True))
    answering_turn = milliseconds_per_turn()
    worker.close()
    if unfired:
        raise Failed(f"{unfired} messages are not in their journals")
    for id in ids:
        kinds = [type(one) for one in store.read(id)]
        assert kinds.count(ev.TimerFired) == kinds.count(ev.MessageAdded) == 1, id
    store.close()
    backend.close()
    return firing, cpu, answering_turn, posted_turn


def until(condition: Callable[[], bool], seconds: float) -> None:
    """Wait for a condition. Raises `Failed` if it is not met in that many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise Failed(f"not all timers fired within {FIRING_SECONDS:g} s")
        time.sleep(0.02)


def rows(quick: bool) -> list[Row]:
    from tests.postgres import NoPostgres, private_server

    count, repeats = (1000, 1) if quick else (10_000, 2)
    figures_by_store: dict[str, list[tuple[float, float, float, float]]] = {
        "SQLite": [],
        "Postgres": [],
    }
    skipped = ""
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            place = f"{folder}/store.db"
            figures_by_store["SQLite"].append(in_child(fired, "table", place, count, timeout=300))
        try:
            with private_server(fsync=True) as server:
                figures_by_store["Postgres"].append(
                    in_child(fired, "table", server.dsn(), count, timeout=300)
                )
        except NoPostgres as reason:
            skipped = str(reason)
    table: list[Row] = []
    for name, times in figures_by_store.items():
        firing, cpu, answering, posted = ([one[part] for one in times] for part in range(4))
        what = f"{count:,} timers due at once, {name}"
        table += [
            Row(f"{what}: fired", "s", firing, goal=Goal(2), skipped=skipped),
            Row("  CPU of this", "s", cpu, skipped=skipped),
            Row("  a turn that answers one", "ms", answering, posted, skipped=skipped),
        ]
    return table
