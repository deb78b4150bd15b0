"""The fleet's records: its workers, for the eyes of operators, and the deaths of conversations'
owners."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.content import Data
from holdfast.fleet.database import FleetDatabase, FleetStatements

# A worker whose row was not renewed for this time is shown as lost, and its claims of wakes are
# free. Its leases end by the store's own rules.
LOST_SECONDS = 3.5
_FORGET_SECONDS = 3600.0  # after which the row of a lost worker is removed

_TABLES = (
    """
CREATE TABLE IF NOT EXISTS {p}fleet_workers (token TEXT PRIMARY KEY, queue TEXT NOT NULL,
label TEXT NOT NULL, started DOUBLE PRECISION NOT NULL, beat DOUBLE PRECISION NOT NULL,
concurrency BIGINT NOT NULL, running BIGINT NOT NULL, held BIGINT NOT NULL,
runs BIGINT NOT NULL, rate DOUBLE PRECISION NOT NULL, takeovers BIGINT NOT NULL,
poisoned BIGINT NOT NULL, faults BIGINT NOT NULL, draining BIGINT NOT NULL)
""",
    """
CREATE TABLE IF NOT EXISTS {p}fleet_deaths (conversation TEXT PRIMARY KEY, place TEXT NOT NULL,
times BIGINT NOT NULL, total BIGINT NOT NULL)
""",
)
_BEAT = """
INSERT INTO {p}fleet_workers AS w (token, queue, label, started, beat, concurrency, running, held,
runs, rate, takeovers, poisoned, faults, draining)
VALUES (?, ?, ?, {now}, {now}, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (token) DO UPDATE SET beat = excluded.beat, running = excluded.running,
held = excluded.held, runs = excluded.runs, rate = excluded.rate, takeovers = excluded.takeovers,
poisoned = excluded.poisoned, faults = excluded.faults, draining = excluded.draining
"""
_WORKERS = """
SELECT token, queue, label, {now} - started, {now} - beat, concurrency, running, held, runs, rate,
takeovers, poisoned, faults, draining FROM {p}fleet_workers ORDER BY started
"""
# The number of deaths at the same place, and since the conversation was at rest.
_DIED = """
INSERT INTO {p}fleet_deaths AS d (conversation, place, times, total) VALUES (?, ?, 1, 1)
ON CONFLICT (conversation) DO UPDATE SET total = d.total + 1, place = excluded.place,
times = CASE WHEN d.place = excluded.place THEN d.times + 1 ELSE 1 END
RETURNING times, total
"""


class WorkerCounts(NamedTuple):
    """The figures of one worker.

    `running` conversations have a slot, `held` ones are open. `runs`, `takeovers` (of dead owners'
    conversations), `poisoned` and `faults` count since its start. `rate` is runs per second over
    the last ten seconds.
    """

    concurrency: int
    running: int
    held: int
    runs: int
    rate: float
    takeovers: int
    poisoned: int
    faults: int
    draining: int


class WorkerEntry(Data, frozen=True):
    """A worker as `holdfast fleet status` shows it. Ages are in seconds, by the database's
    clock."""

    token: str
    queue: str
    label: str
    age: float
    silent: float
    counts: WorkerCounts

    @property
    def state(self) -> str:
        """Return "lost", "draining" or "serving"."""
        if self.silent > LOST_SECONDS:
            return "lost"
        return "draining" if self.counts.draining else "serving"


class DeathCounts(NamedTuple):
    """The deaths of a conversation's owners: `times` at the same place, `total` since its rest."""

    times: int
    total: int


class Registry:
    """The tables `fleet_workers` and `fleet_deaths`. Thread-safe; methods raise `StoreError`."""

    def __init__(self, database: FleetDatabase) -> None:
        self._database = database
        database.prepare(_TABLES)

    def beat(self, token: str, queue: str, label: str, counts: WorkerCounts) -> None:
        """Renew a worker's row."""
        values = (token, queue, label, *counts)
        self._database.transact(lambda db: db.run(_BEAT, values))

    def leave(self, token: str) -> None:
        """Remove a worker that has ended properly."""
        query = "DELETE FROM {p}fleet_workers WHERE token = ?"
        self._database.transact(lambda db: db.run(query, (token,)))

    def lost_tokens(self) -> list[str]:
        """Return the tokens of workers that are silent, and forget those of long ago."""

        def work(db: FleetStatements) -> Sequence[tuple[str, ...]]:
            query = "DELETE FROM {p}fleet_workers WHERE beat < {now} - ?"
            db.run(query, (_FORGET_SECONDS,))
            query = "SELECT token FROM {p}fleet_workers WHERE beat < {now} - ?"
            return db.run(query, (LOST_SECONDS,))

        return [token for (token,) in self._database.transact(work)]

    def workers(self) -> list[WorkerEntry]:
        """Return all workers, the oldest first."""
        return [
            WorkerEntry(token, queue, label, age, silent, WorkerCounts(*counts))
            for token, queue, label, age, silent, *counts in self._database.read(_WORKERS)
        ]

    def count_death(self, conversation: str, place: str) -> DeathCounts:
        """Count the death of a conversation's owner at this place of its journal."""
        [row] = self._database.transact(lambda db: db.run(_DIED, (conversation, place)))
        return DeathCounts(*row)

    def suspects(self) -> list[str]:
        """Return conversations whose owners died since they were at rest, though perhaps not
        all."""
        query = "SELECT conversation FROM {p}fleet_deaths LIMIT 1000"
        return [id for (id,) in self._database.read(query)]

    def forget_deaths(self, conversation: str) -> None:
        """Forget a conversation's deaths, because it came to rest."""
        query = "DELETE FROM {p}fleet_deaths WHERE conversation = ?"
        self._database.transact(lambda db: db.run(query, (conversation,)))
