"""`TableBackend`: the wakes of a fleet in a table beside the journals.

One row per woken conversation. A ring for a waiting conversation changes nothing. A ring for a
claimed one is counted, so that the claim's end leaves the row for the next claim.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from holdfast.fleet.backend import Placement, QueueStats, Wake
from holdfast.fleet.claiming import MAX_TENANTS, ClaimingBackend, ReturnedClaim, WakeClaims
from holdfast.fleet.database import FleetDatabase, FleetStatements
from holdfast.fleet.opening import fleet_database

POLL_SECONDS = 0.05  # between two looks for wakes that other processes wrote

# The tables hold hints. One with other columns gets another name, and the old one is left behind.
_TABLES = (
    """
CREATE TABLE IF NOT EXISTS {p}fleet_wakes (conversation TEXT PRIMARY KEY, queue TEXT NOT NULL,
tenant TEXT NOT NULL, priority INTEGER NOT NULL, since DOUBLE PRECISION NOT NULL,
rings BIGINT NOT NULL DEFAULT 1, worker TEXT NOT NULL DEFAULT '')
""",
    """
CREATE INDEX IF NOT EXISTS fleet_wakes_waiting ON {p}fleet_wakes
(queue, tenant, priority DESC, since) WHERE worker = ''
""",
    """
CREATE INDEX IF NOT EXISTS fleet_wakes_claimed ON {p}fleet_wakes (queue, tenant)
WHERE worker <> ''
""",
)
# A row that waits already, and rings soon enough, is left alone.
_WAKES = """
INSERT INTO {p}fleet_wakes AS w (conversation, queue, tenant, priority, since)
{values}
ON CONFLICT (conversation) DO UPDATE SET rings = w.rings + 1, queue = excluded.queue,
tenant = excluded.tenant, priority = excluded.priority,
since = CASE WHEN w.worker = '' AND w.since < excluded.since THEN w.since ELSE excluded.since END
WHERE w.worker <> '' OR w.since > excluded.since OR w.priority < excluded.priority
"""
_WAKE = _WAKES.replace("{values}", "VALUES (?, ?, ?, ?, {now} + ?)")
_WAKE_ROWS = _WAKES.replace("{values}", "SELECT r.*, {now} FROM ({rows}) AS r WHERE true")
_WAITING = "FROM {p}fleet_wakes WHERE queue = ? AND worker = ''"
# The tenants after a given one, found by one look into the index for each.
_TENANTS_AFTER = f"""
WITH RECURSIVE tenants (tenant) AS (
SELECT min(tenant) {_WAITING} AND tenant > ?
UNION ALL SELECT (SELECT min(w.tenant) FROM {{p}}fleet_wakes AS w WHERE w.queue = ?
AND w.worker = '' AND w.tenant > tenants.tenant) FROM tenants WHERE tenant IS NOT NULL)
SELECT tenant FROM tenants WHERE tenant IS NOT NULL LIMIT {MAX_TENANTS}
"""
_TENANTS_FROM = _TENANTS_AFTER.replace("tenant > ?", "tenant >= ?")
_RUNNING = "SELECT tenant, count(*) FROM {p}fleet_wakes WHERE queue = ? AND worker <> '' GROUP BY 1"
_PICK = f"""
WITH picked AS (SELECT conversation {_WAITING} AND tenant = ? AND since <= {{now}}
ORDER BY priority DESC, since LIMIT ? {{skip}})
UPDATE {{p}}fleet_wakes SET worker = ? WHERE conversation IN (SELECT conversation FROM picked)
RETURNING conversation, rings, priority, since
"""
# Frees the claim of a lost worker, or inserts the row if it is missing.
_RESTORE = """
INSERT INTO {p}fleet_wakes AS w (conversation, queue, tenant, priority, since)
VALUES (?, ?, ?, ?, {now})
ON CONFLICT (conversation) DO UPDATE SET worker = '', rings = w.rings + 1 WHERE w.worker = ?
"""
# The claims that were not rung again. One statement for all of them, never a pipeline. A worker
# that is frozen in the middle of a pipeline would keep its rows locked, and every post would wait.
_DONE = "DELETE FROM {{p}}fleet_wakes WHERE worker = ? AND ({claims}) RETURNING conversation"
_DONE_CLAIM = "(conversation = ? AND rings = ?)"
_CHUNK_ROWS = 100  # of one statement; SQLite takes a condition of at most 1000 parts
# For the claims that were rung again, or are to be woken again.
_GIVE_BACK = """
UPDATE {p}fleet_wakes SET worker = '', since = {now} + CASE WHEN rings = ? THEN ? ELSE 0 END
WHERE conversation = ? AND worker = ?
"""
_STATS = """
SELECT count(CASE WHEN worker = '' AND since <= {now} THEN 1 END),
count(CASE WHEN worker <> '' THEN 1 END), count(CASE WHEN worker = '' AND since > {now} THEN 1 END),
{now} - min(CASE WHEN worker = '' THEN since END) FROM {p}fleet_wakes
"""


class TableBackend(ClaimingBackend):
    """A `FleetBackend` in a table: `BEGIN IMMEDIATE` on SQLite, `FOR UPDATE SKIP LOCKED` on
    Postgres.

    Args:
        place: The store's SQLite file, its `postgresql://` address, or None for a `MemoryStore`.
        schema: The schema of a Postgres database.
        poll: Seconds between two looks for wakes that other processes wrote.
    """

    def __init__(
        self,
        place: str | Path | None = None,
        *,
        schema: str = "holdfast",
        poll: float = POLL_SECONDS,
    ) -> None:
        super().__init__(fleet_database(place, schema), poll)
        self.database.prepare(_TABLES)

    def _claims(self, worker: str, queue: str, tenant_limit: int | None) -> WakeClaims:
        return _TableClaims(worker, queue, tenant_limit)

    def _put(self, db: FleetStatements, conversation: str, place: Placement, later: float) -> None:
        db.run(_WAKE, (conversation, place.queue, place.tenant, place.priority, later))

    def _put_all(self, db: FleetStatements, conversations: Sequence[tuple[str, Placement]]) -> None:
        rows = [(id, one.queue, one.tenant, one.priority) for id, one in conversations]
        db.run_rows(_WAKE_ROWS, rows)

    def cancel(self, conversation: str) -> None:
        query = "DELETE FROM {p}fleet_wakes WHERE conversation = ? AND worker = ''"
        self.database.transact(lambda db: db.run(query, (conversation,)))

    def stats(self, queue: str | None = None) -> QueueStats:
        only = "" if queue is None else " WHERE queue = ?"
        [row] = self.database.read(_STATS + only, () if queue is None else (queue,))
        return QueueStats(row[0], row[1], row[2], max(row[3] or 0.0, 0.0))


class _TableClaims(WakeClaims):
    def is_waiting(self, database: FleetDatabase) -> bool:
        query = f"SELECT 1 {_WAITING} AND since <= {{now}} LIMIT 1"
        return bool(database.read(query, (self.queue,)))

    def waiting_tenants(self, db: FleetStatements, after: str) -> list[str]:
        query = _TENANTS_AFTER if after else _TENANTS_FROM
        return [tenant for (tenant,) in db.run(query, (self.queue, after, self.queue))]

    def running(self, db: FleetStatements) -> Counter[str]:
        return Counter(dict(db.run(_RUNNING, (self.queue,))))

    def pick(self, db: FleetStatements, tenant: str, most: int) -> list[Wake]:
        rows = db.run(_PICK, (self.queue, tenant, most, self.worker))
        rows.sort(key=lambda row: (-row[2], row[3]))  # an update returns them in any order
        return [Wake(id, tenant, rings) for id, rings, _, _ in rows]

    def give_back(self, db: FleetStatements, finished: Sequence[ReturnedClaim]) -> None:
        done = [wake for wake, after in finished if after is None]
        lost_ids: set[str] = set()
        for start in range(0, len(done), _CHUNK_ROWS):
            chunk = done[start : start + _CHUNK_ROWS]
            query = _DONE.format(claims=" OR ".join([_DONE_CLAIM] * len(chunk)))
            claims = [value for wake in chunk for value in (wake.conversation, wake.token)]
            lost_ids.update(id for (id,) in db.run(query, (self.worker, *claims)))
        for wake, after in finished:
            if wake.conversation not in lost_ids:
                db.run(_GIVE_BACK, (wake.token, after or 0.0, wake.conversation, self.worker))

    def restore(
        self, db: FleetStatements, wakes: Sequence[Wake], lost_workers: Sequence[str]
    ) -> None:
        query = "SELECT worker FROM {p}fleet_wakes WHERE conversation = ?"
        for id, tenant, _ in wakes:
            rows = db.run(query, (id,))
            if not rows or rows[0][0] in lost_workers:
                holder = rows[0][0] if rows else ""
                db.run(_RESTORE, (id, self.queue, tenant, 0, holder))
