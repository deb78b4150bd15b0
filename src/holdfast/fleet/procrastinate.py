"""`ProcrastinateBackend`: the wakes of a fleet as jobs of Procrastinate, beside the journals.

A wake is a job that Procrastinate's own function defers in the transaction of the post. Workers
fetch and finish jobs by Procrastinate's functions, many in one round trip. Its Python worker takes
one job at a time, and is not used.

- Its `queueing_lock` makes the waiting wakes of one conversation one job. Deferring a second one is
  an error there; the function `fleet_ring` turns it into nothing.
- No job has a `lock`: a lock that a job for later holds would block the jobs of now.
- A queue of Procrastinate is a queue of the fleet and a tenant.
- A job is deleted when it is finished. Its retries, heartbeats and sweeps of stalled jobs are not
  used: `Store.unattended` shows lost wakes, and `restore` defers them again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from hashlib import sha256

from procrastinate.schema import SchemaManager

from holdfast.fleet.backend import Placement, QueueStats, Wake
from holdfast.fleet.claiming import MAX_TENANTS, ClaimingBackend, ReturnedClaim, WakeClaims
from holdfast.fleet.database import FleetDatabase, FleetStatements
from holdfast.fleet.postgres import PostgresFleetDatabase
from holdfast.store.nul_text import escaped

POLL_SECONDS = 0.05  # between two looks for wakes that other processes wrote
TASK = "holdfast.advance"
_MAX_NAME_CHARS = 128  # of a queue of Procrastinate
_HEARTBEAT_SECONDS = 10.0

_WORKERS = """
CREATE TABLE IF NOT EXISTS fleet_engine_workers (id bigint PRIMARY KEY, token text NOT NULL)
"""
# A wake whose job waits already keeps that job from being fetched until the wake is committed. The
# fetching worker then sees the command that came with the wake.
_RING = f"""
CREATE OR REPLACE FUNCTION fleet_ring(queue text, tenant text, conversation text, priority integer,
later float8) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    job procrastinate_job_to_defer_v1 := ROW(queue, '{TASK}', priority, NULL, conversation,
        jsonb_build_object('conversation', conversation, 'tenant', tenant),
        CASE WHEN later > 0 THEN clock_timestamp() + make_interval(secs => later) END);
    waiting procrastinate_jobs;
BEGIN
    FOR attempt IN 1..3 LOOP
        BEGIN
            PERFORM procrastinate_defer_jobs_v1(ARRAY[job]);
            RETURN;
        EXCEPTION WHEN unique_violation THEN
            SELECT * INTO waiting FROM procrastinate_jobs j
            WHERE j.queueing_lock = conversation AND j.status = 'todo' FOR UPDATE;
            IF FOUND THEN
                IF waiting.scheduled_at > clock_timestamp() AND later <= 0 THEN
                    UPDATE procrastinate_jobs j SET scheduled_at = NULL WHERE j.id = waiting.id;
                END IF;
                RETURN;
            END IF;
        END;
    END LOOP;
END $$
"""
_WAKE = "SELECT fleet_ring(?::text, ?::text, ?::text, ?::integer, ?::float8)"
_WAKES = """
SELECT fleet_ring(w.queue, w.tenant, w.conversation, w.priority::integer, 0.0)
FROM unnest(?::text[], ?::text[], ?::text[], ?::bigint[])
AS w(queue, tenant, conversation, priority)
"""
_DUE = "status = 'todo' AND (scheduled_at IS NULL OR scheduled_at <= clock_timestamp())"
_IS_WAITING = (
    f"SELECT 1 FROM procrastinate_jobs WHERE {_DUE} AND starts_with(queue_name, ?) LIMIT 1"
)
# The queues of the tenants, found by one look into the index for each.
_QUEUES = f"""
WITH RECURSIVE queues (name) AS (
SELECT min(queue_name) FROM procrastinate_jobs WHERE queue_name > ?
UNION ALL SELECT (SELECT min(j.queue_name) FROM procrastinate_jobs j
WHERE j.queue_name > queues.name) FROM queues WHERE name IS NOT NULL AND starts_with(name, ?))
SELECT name FROM queues WHERE starts_with(name, ?) AND EXISTS (
SELECT 1 FROM procrastinate_jobs WHERE queue_name = name AND {_DUE}) LIMIT {MAX_TENANTS}
"""
_RUNNING = """
SELECT queue_name, count(*) FROM procrastinate_jobs
WHERE status = 'doing' AND starts_with(queue_name, ?) GROUP BY 1
"""
_FETCH = """
SELECT job.id, job.args ->> 'conversation', job.args ->> 'tenant'
FROM generate_series(1, ?) AS number,
LATERAL (SELECT number, (f).* FROM procrastinate_fetch_job_v2(ARRAY[?::varchar], ?) AS f) AS job
WHERE job.id IS NOT NULL
"""
_FINISH = """
SELECT procrastinate_finish_job_v1(id, 'succeeded', true) FROM (
SELECT id FROM procrastinate_jobs WHERE id = ANY(?::bigint[]) AND status = 'doing'
AND worker_id = ? FOR UPDATE) AS jobs
"""
_CLAIMED = """
SELECT j.id, coalesce(w.token, '') FROM procrastinate_jobs j
LEFT JOIN fleet_engine_workers w ON w.id = j.worker_id
WHERE j.queueing_lock = ? AND j.status = 'doing'
"""
# Locked first: the function fails for a job that another worker has abandoned meanwhile.
_ABANDON = """
SELECT procrastinate_finish_job_v1(id, 'failed', true) FROM (
SELECT id FROM procrastinate_jobs WHERE id = ? AND status = 'doing' FOR UPDATE) AS jobs
"""
_STATS = f"""
SELECT count(*) FILTER (WHERE {_DUE}), count(*) FILTER (WHERE status = 'doing'),
count(*) FILTER (WHERE status = 'todo' AND scheduled_at > clock_timestamp()),
extract(epoch FROM clock_timestamp() - min(coalesce(scheduled_at, e.at)) FILTER (WHERE {_DUE}))
::float8 FROM procrastinate_jobs j
LEFT JOIN procrastinate_events e ON e.job_id = j.id AND e.type = 'deferred'
WHERE starts_with(queue_name, ?)
"""


def _queue_name(queue: str, tenant: str) -> str:
    name = f"{queue}/{tenant}"
    if len(name) <= _MAX_NAME_CHARS:
        return name
    return f"{queue[:40]}/{sha256(name.encode()).hexdigest()}"


class ProcrastinateBackend(ClaimingBackend):
    """A `FleetBackend` on Procrastinate 3.10, in the schema of a Postgres store.

    Args:
        dsn: The address of the store's database.
        schema: The store's schema. Procrastinate's tables and functions are created in it.
        poll: Seconds between two looks for wakes that other processes wrote.
    """

    def __init__(self, dsn: str, *, schema: str = "holdfast", poll: float = POLL_SECONDS) -> None:
        database = PostgresFleetDatabase(dsn, schema)
        super().__init__(database, poll)
        script = SchemaManager.get_schema()
        database.prepare([_WORKERS, _RING], unless="procrastinate_jobs", script=script)

    def _claims(self, worker: str, queue: str, tenant_limit: int | None) -> WakeClaims:
        return _JobClaims(worker, queue, tenant_limit)

    def _put(self, db: FleetStatements, conversation: str, place: Placement, later: float) -> None:
        name = _queue_name(place.queue, place.tenant)
        db.run(_WAKE, (name, place.tenant, conversation, place.priority, later))

    def _put_all(self, db: FleetStatements, conversations: Sequence[tuple[str, Placement]]) -> None:
        values = (
            [escaped(_queue_name(one.queue, one.tenant)) for _, one in conversations],
            [escaped(one.tenant) for _, one in conversations],
            [escaped(id) for id, _ in conversations],
            [one.priority for _, one in conversations],
        )
        db.run(_WAKES, values)

    def cancel(self, conversation: str) -> None:
        query = """
        SELECT procrastinate_cancel_job_v1(id, false, true) FROM procrastinate_jobs
        WHERE queueing_lock = ? AND status = 'todo'
        """
        self._database.transact(lambda db: db.run(query, (conversation,)))

    def stats(self, queue: str | None = None) -> QueueStats:
        [row] = self._database.read(_STATS, ("" if queue is None else f"{queue}/",))
        return QueueStats(row[0], row[1], row[2], max(row[3] or 0.0, 0.0))


class _JobClaims(WakeClaims):
    """WakeClaims as jobs. A tenant is named by its queue of Procrastinate."""

    _id = 0  # the worker's number in Procrastinate
    _beat_at = 0.0

    def begin(self, db: FleetStatements) -> None:
        [(self._id,)] = db.run("SELECT worker_id FROM procrastinate_register_worker_v1()")
        db.run("INSERT INTO fleet_engine_workers VALUES (?, ?)", (self._id, self.worker))
        self._beat_at = time.monotonic()

    def end(self, db: FleetStatements) -> None:
        db.run("SELECT procrastinate_unregister_worker_v1(?)", (self._id,))
        db.run("DELETE FROM fleet_engine_workers WHERE id = ?", (self._id,))

    def is_waiting(self, database: FleetDatabase) -> bool:
        if time.monotonic() - self._beat_at > _HEARTBEAT_SECONDS:  # for its own command line
            self._beat_at = time.monotonic()
            database.read("SELECT procrastinate_update_heartbeat_v1(?)", (self._id,))
        return bool(database.read(_IS_WAITING, (f"{self.queue}/",)))

    def waiting_tenants(self, db: FleetStatements, after: str) -> list[str]:
        prefix = f"{self.queue}/"
        start = after or f"{self.queue}."  # the character before the slash
        return [name for (name,) in db.run(_QUEUES, (start, prefix, prefix))]

    def running(self, db: FleetStatements) -> Counter[str]:
        return Counter(dict(db.run(_RUNNING, (f"{self.queue}/",))))

    def pick(self, db: FleetStatements, tenant: str, most: int) -> list[Wake]:
        rows = db.run(_FETCH, (most, tenant, self._id))
        return [Wake(conversation, owner, number) for number, conversation, owner in rows]

    def name_of(self, tenant: str) -> str:
        return _queue_name(self.queue, tenant)

    def give_back(self, db: FleetStatements, finished: Sequence[ReturnedClaim]) -> None:
        db.run(_FINISH, ([one.wake.token for one in finished], self._id))
        for wake, after in finished:
            if after is not None:
                name = self.name_of(wake.tenant)
                db.run(_WAKE, (name, wake.tenant, wake.conversation, 0, after))

    def restore(
        self, db: FleetStatements, wakes: Sequence[Wake], lost_workers: Sequence[str]
    ) -> None:
        for id, tenant, _ in wakes:
            claimed = db.run(_CLAIMED, (id,))
            for number, token in claimed:
                if not token or token in lost_workers:
                    db.run(_ABANDON, (number,))
            if all(not token or token in lost_workers for _, token in claimed):
                db.run(_WAKE, (self.name_of(tenant), tenant, id, 0, 0.0))
