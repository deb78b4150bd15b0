"""Thousands of conversations on three workers, one of which is killed or frozen every ten seconds.

Parked conversations are in the same tables and have nothing to do, except a few that get a message
meanwhile. Each live conversation calls a tool that may not be repeated and one that its receiver
deduplicates. A conversation that has finished gets its next message, until the time is over. Then
everything must come to rest, and the effects, which are lines in files, are compared with the
journals.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from harness import REPOSITORY, Goal, Row

sys.path.insert(0, str(REPOSITORY))

WORKERS = 3
PLAN = [("strike", {"seconds": 0.05}), ("mail", {})]
# Copies of a conversation that has finished, made by the database.
_PARK = """
WITH source AS (SELECT * FROM conversations WHERE id = 'parked/0'), made AS (
    INSERT INTO conversations (id, epoch, last_seq, created, updated, status, title, needs)
    SELECT 'parked/' || n, nextval('epochs'), last_seq, created, updated, status, title, needs
    FROM source, generate_series(1, %s) AS n RETURNING number
)
INSERT INTO events (conversation, seq, crc, data)
SELECT m.number, e.seq, e.crc, e.data FROM made m, events e JOIN source s ON s.number = e.conversation
"""
# `Store.list` would be as expensive as the workers are.
_IDLE = """
SELECT c.id FROM conversations c WHERE c.id = ANY(%s) AND c.status = 'finished' AND NOT EXISTS (
    SELECT FROM inbox i WHERE i.conversation = c.number AND i.data IS NOT NULL
)
"""


class Size(NamedTuple):
    """The size of a run. Every `fault_seconds` a worker is killed or frozen."""

    live: int
    parked: int
    seconds: float
    fault_seconds: float


FULL, QUICK = Size(10_000, 100_000, 300, 10), Size(1500, 5000, 20, 4)


class Outcome(NamedTuple):
    """The figures of a run."""

    kills: int
    stops: int
    runs: int
    seconds: float
    rest_seconds: float
    calls_begun: int
    begun_twice: int
    unknown: int
    untold: int
    mails_wrong: int
    unfinished: int


class Survival:
    """One run: its store, its workers and the faults they suffer."""

    def __init__(self, settings: Any, size: Size) -> None:
        import psycopg

        from tests.fleet_program import Effects

        self.settings, self.size = settings, size
        self.store, self.backend = settings.opened()
        self.db = psycopg.connect(settings.place, autocommit=True)
        self.db.execute(f'SET search_path = "{settings.schema}"')
        self.effects = Effects(Path(settings.folder))
        self.live = [f"t{number % 5}/c{number}" for number in range(size.live)]
        self.workers: list[Any] = []
        self.frozen: Any = None
        self.kills = self.stops = 0
        self.posted = Counter[str]()
        self._chance = random.Random(3)

    def prepare(self) -> None:
        """Create all conversations, and give the live ones their first message."""
        self.start()
        self._post("parked/0", create=True)
        while not self.idle():
            time.sleep(0.05)
        self.db.execute(_PARK, (self.size.parked,))
        self.db.execute("ANALYZE")
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(self._create, self.live))

    def _create(self, id: str) -> None:
        self._post(id, create=True)

    def _post(self, id: str, create: bool = False) -> None:
        import json

        from holdfast.commands import Send
        from holdfast.content import TextContent

        if create:
            self.store.release(self.store.acquire(id))
        self.posted[id] += 1
        self.store.post(id, Send((TextContent(json.dumps(PLAN)),)), f"{self.posted[id]}")

    def start(self) -> None:
        from tests.fleet_program import WorkerProcess

        self.workers.append(WorkerProcess(self.settings))

    def fault(self) -> None:
        """Kill a worker and start another one, or freeze one until the next fault."""
        if self.frozen is not None:
            self.frozen.go_on()
            self.frozen = None
        victim = self._chance.choice(self.workers)
        if (self.kills + self.stops) % 2:
            self.stops += 1
            victim.stop()
            self.frozen = victim
            return
        self.kills += 1
        self.workers.remove(victim)
        victim.close()
        self.start()

    def idle(self) -> list[str]:
        """Return the conversations that have finished all their work."""
        return [id for (id,) in self.db.execute(_IDLE, (list(self.posted),)).fetchall()]

    def run(self) -> Outcome:
        while len(self.workers) < WORKERS:
            self.start()
        began = fault_at = time.monotonic()
        woken = iter(range(1, self.size.parked, max(1, self.size.parked // 100)))
        with ThreadPoolExecutor(8) as threads:
            while (now := time.monotonic()) - began < self.size.seconds:
                if now - fault_at >= self.size.fault_seconds:
                    fault_at = now
                    self.fault()
                list(threads.map(self._post, self.idle()))
                if (number := next(woken, None)) is not None:
                    self._post(f"parked/{number}")
                time.sleep(1)
        ended = time.monotonic()
        if self.frozen is not None:
            self.frozen.go_on()
        unfinished = len(self.posted)
        until = ended + 600
        while unfinished and time.monotonic() < until:
            time.sleep(0.5)
            unfinished = len(self.posted) - len(self.idle())
        rest = time.monotonic()
        return self._checked(unfinished, rest - began, rest - ended)

    def _checked(self, unfinished: int, seconds: float, rest: float) -> Outcome:
        from holdfast import events as ev
        from tests.fleet_program import outcome

        strikes, received = self.effects.strikes(), self.effects.mails()
        unknown = untold = mails = runs = 0
        for id in self.posted:
            events = self.store.read(id)
            results = {one.call_id: one for one in events if isinstance(one, ev.ToolCallFinished)}
            runs += sum(
                isinstance(one, ev.StatusChanged) and one.status == "finished" for one in events
            )
            # its first run belongs to the original
            copied = id.startswith("parked/") and id != "parked/0"
            for number, answer in enumerate(_answers(events)):
                for call in answer.calls:
                    if copied and number < 2:
                        continue
                    key, result = f"{id}:{call.id}", results.get(call.id)
                    outcome_text = "" if result is None else outcome(result.result)
                    if call.name == "mail":
                        mails += key not in received or not outcome_text.startswith("sent")
                    elif outcome_text == "unknown":
                        unknown += 1
                    else:
                        untold += outcome_text != "struck" or strikes[key] != 1
        twice = sum(count > 1 for count in strikes.values())
        calls_begun = len(strikes)
        return Outcome(
            self.kills, self.stops, runs, seconds, rest, calls_begun, twice, unknown, untold, mails,
            unfinished,
        )  # fmt: skip

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
        self.db.close()
        self.store.close()
        self.backend.close()


def _answers(events: Sequence[Any]) -> list[Any]:
    from holdfast import events as ev

    return [one for one in events if isinstance(one, ev.AssistantReplied)]


def survive(kind: str, size: Size) -> Outcome:
    """Run once, on a Postgres server of its own."""
    from tests.fleet_program import Settings
    from tests.postgres import private_server

    with private_server(fsync=True) as server, tempfile.TemporaryDirectory() as folder:
        run = Survival(Settings(server.dsn(), folder, kind, kind, concurrency=16), size)
        try:
            run.prepare()
            return run.run()
        finally:
            run.close()


def rows(quick: bool) -> list[Row]:
    from tests.postgres import NoPostgres

    size, table = QUICK if quick else FULL, list[Row]()
    none = Goal(0)
    for kind in ("table", "procrastinate"):
        try:
            one = survive(kind, size)
        except NoPostgres as reason:
            return [Row("conversations that survive", "", skipped=str(reason))]
        print(f"  {kind}: {one}", flush=True)
        faults = f"{one.kills} kills, {one.stops} freezes"
        table += [
            Row(
                f"{size.live:,} live, {size.parked:,} parked, {kind}: {faults}", "s", [one.seconds]
            ),
            Row("  runs that ended per second", "", [one.runs / one.seconds]),
            Row("  until all was at rest, after the last message", "s", [one.rest_seconds]),
            Row(
                "  non-repeatable calls begun twice",
                f"of {one.calls_begun:,}",
                [one.begun_twice],
                goal=none,
            ),
            Row("  cut off, and told as unknown", "", [one.unknown]),
            Row("  results neither known nor told as unknown", "", [one.untold], goal=none),
            Row("  deduplicated effects not there once", "", [one.mails_wrong], goal=none),
            Row("  conversations not finished", "", [one.unfinished], goal=none),
        ]
    return table
