"""The index of timers in Postgres. See `Store.ring`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, LiteralString, NamedTuple

from holdfast import commands
from holdfast import events as ev
from holdfast.store.base import Batch, DueTimer, FireTimers, WorkBell
from holdfast.store.firing import DueRow, firing_batches, within_limits
from holdfast.store.nul_text import escaped, unescaped
from holdfast.store.postgres import journal
from holdfast.store.postgres.pool import Cursor, integers

DUE = """
SELECT c.id, t.timer, t.due FROM timers t JOIN conversations c ON c.number = t.conversation
WHERE t.due <= %s ORDER BY t.due, t.conversation, t.timer LIMIT %s
"""
NEXT_DUE = "SELECT min(due) FROM timers"

# By the database's clock, which all machines share. It changes during the statement, so that only
# the other condition can use the index. Rows that another store is ringing are left to it.
_TAKE = """
SELECT c.id, t.timer, t.due, t.conversation, coalesce(o.channel, ''), c.epoch, c.last_seq,
c.condensed, clock_timestamp(), c.owner = '' AND c.spawned_by = '' AND c.needs <= %s
AND c.condensed >= c.shared AND NOT EXISTS (
    SELECT FROM inbox i WHERE i.conversation = c.number AND i.data IS NOT NULL
)
FROM timers t JOIN conversations c ON c.number = t.conversation
LEFT JOIN owners o ON o.token = c.owner
WHERE t.due <= %s AND t.due <= clock_timestamp() ORDER BY t.due, t.conversation, t.timer LIMIT %s
FOR UPDATE OF t SKIP LOCKED
"""
_DROP = """
DELETE FROM timers t USING unnest(%b::bigint[], %s::text[]) AS r(conversation, timer)
WHERE t.conversation = r.conversation AND t.timer = r.timer
"""
_POST = """
INSERT INTO inbox (conversation, key, data)
SELECT * FROM unnest(%b::bigint[], %s::text[], %b::bytea[]) ON CONFLICT DO NOTHING
RETURNING number, conversation
"""
_TAILS = """
SELECT e.conversation, e.seq, e.crc, e.data
FROM unnest(%s::bigint[], %s::bigint[]) AS w(number, after)
JOIN events e ON e.conversation = w.number AND e.seq > w.after ORDER BY 1, 2
"""
# A free lease is taken, used and given back by one statement. `free` is the fence, which never
# waits: a row that another transaction has locked is about to get an owner.
_FIRE: LiteralString = """
WITH given AS (
    SELECT * FROM unnest(%(number)s::bigint[], %(epoch)s::bigint[], %(before)s::bigint[],
    %(last)s::bigint[], %(needs)s::bigint[], %(status)b::text[], %(title)b::text[],
    %(updated)b::timestamptz[])
    AS g(number, epoch, before, last, needs, status, title, updated)
), free AS (
    SELECT c.number FROM conversations c JOIN given g
    ON c.number = g.number AND c.epoch = g.epoch AND c.last_seq = g.before
    WHERE c.owner = '' FOR NO KEY UPDATE OF c SKIP LOCKED
), moved AS (
    UPDATE conversations c SET epoch = nextval('epochs'), last_seq = g.last, status = g.status,
    title = g.title, updated = g.updated, needs = greatest(c.needs, g.needs)
    FROM given g JOIN free f ON f.number = g.number
    WHERE c.number = g.number AND c.epoch = g.epoch AND c.owner = '' AND c.last_seq = g.before
    RETURNING c.number
), written AS (
    INSERT INTO events (conversation, seq, crc, data)
    SELECT m.number, e.seq, e.crc, e.data FROM moved m JOIN unnest(%(of)s::bigint[],
    %(seqs)s::bigint[], %(crcs)s::bigint[], %(events)b::bytea[]) AS e(number, seq, crc, data)
    ON e.number = m.number
), dropped AS (
    DELETE FROM timers t USING moved m, unnest(%(timers_of)s::bigint[], %(timers)b::text[])
    AS r(conversation, timer)
    WHERE r.conversation = m.number AND t.conversation = m.number AND t.timer = r.timer
), timed AS (
    INSERT INTO timers (conversation, timer, due) SELECT m.number, r.timer, r.due
    FROM moved m JOIN unnest(%(timers_of)s::bigint[], %(timers)b::text[], %(dues)s::timestamptz[])
    AS r(conversation, timer, due) ON r.conversation = m.number WHERE r.due IS NOT NULL
)
SELECT m.number, ARRAY(
    SELECT w.channel FROM watchers w
    WHERE w.conversation = m.number AND w.channel <> %(channel)s
) FROM moved m
"""


class RungTimers(NamedTuple):
    """The timers that were rung, the conversations' numbers by new command, and the channels of
    these conversations' owners. `appended` has the conversations whose timers were fired, with
    their numbers, their last seqs, and their followers' channels."""

    timers: list[DueTimer]
    posted: dict[int, int]
    channels: dict[int, str]
    appended: list[tuple[str, int, int, list[str]]]


def due_timer(id: str, timer: str, due: datetime) -> DueTimer:
    """Return a row of `DUE`."""
    return DueTimer(unescaped(id), unescaped(timer), due.astimezone(UTC))


def ring(
    db: Cursor,
    before: datetime,
    limit: int,
    bell: WorkBell | None,
    fire: FireTimers | None,
    channel: str,
) -> RungTimers:
    """Replace due rows by commands, or fire their timers, and ring the store's bell, within a
    transaction. `channel` is the store's own."""
    due_rows = db.execute(_TAKE, (ev.JOURNAL_VERSION, before, limit)).fetchall()
    channels = {row[3]: row[4] for row in due_rows}
    rows: Sequence[DueRow] = [
        DueRow(due_timer(id, timer, due), number, resting, epoch, last_seq, condensed)
        for id, timer, due, number, _, epoch, last_seq, condensed, _, resting in due_rows
    ]
    appended: dict[int, tuple[str, int, int, list[str]]] = {}
    if fire is not None and rows:
        rows = within_limits(rows)
        now = min(before, due_rows[-1][8]).astimezone(UTC)
        appended = _fire(db, rows, now, fire, channel)
    posted = _post(db, [row for row in rows if row.number not in appended])
    if bell is not None:
        ids = {row.number: row.timer.conversation_id for row in rows}
        bell.wake_all([ids[number] for number in {*posted.values(), *appended}], db)
    return RungTimers([row.timer for row in rows], posted, channels, list(appended.values()))


def _post(db: Cursor, rows: Sequence[DueRow]) -> dict[int, int]:
    """Replace rows by commands. Return the conversations' numbers by new command."""
    if not rows:
        return {}
    numbers = [row.number for row in rows]
    timers = [row.timer for row in rows]
    data = [commands.encode(commands.RingTimer(one.timer, one.due)) for one in timers]
    posted = db.execute(_POST, (numbers, [escaped(one.key) for one in timers], data)).fetchall()
    db.execute(_DROP, (numbers, [escaped(one.timer) for one in timers]))
    return dict(posted)


def _fire(
    db: Cursor, rows: Sequence[DueRow], now: datetime, fire: FireTimers, channel: str
) -> dict[int, tuple[str, int, int, list[str]]]:
    """Fire timers of conversations with a free lease. Return the written conversations, as
    `RungTimers.appended`, by their numbers."""
    rows_by_number = {row.number: row for row in rows if row.fires}
    if not rows_by_number:
        return {}
    tails: dict[int, list[tuple[int, int, bytes]]] = {number: [] for number in rows_by_number}
    after = integers([row.condensed for row in rows_by_number.values()])
    for number, *event in db.execute(_TAILS, (integers(list(rows_by_number)), after)):
        tails[number].append((event[0], event[1], event[2]))
    batches = firing_batches(rows, tails, now, fire)
    if not batches:
        return {}
    values = _values(rows_by_number, batches, channel)
    return {
        number: (
            rows_by_number[number].timer.conversation_id,
            number,
            batches[number].events[-1].seq,
            channels,
        )
        for number, channels in db.execute(_FIRE, values)
    }


def _values(
    rows_by_number: Mapping[int, DueRow], batches: Mapping[int, Batch], channel: str
) -> dict[str, Any]:
    """Return the values of `_FIRE`."""
    of: list[int] = []
    seqs: list[int] = []
    crcs: list[int] = []
    lines: list[bytes] = []
    dues: dict[tuple[int, str], datetime | None] = {}
    for number, batch in batches.items():
        columns = journal.rows_of(batch.events)
        of += [number] * len(batch.events)
        for column, more in zip((seqs, crcs, lines), columns, strict=True):
            column += more  # pyright: ignore
        dues.update({(number, one.timer): one.due for one in batch.timers})
    return {
        "number": integers(list(batches)),
        "epoch": integers([rows_by_number[number].epoch for number in batches]),
        "before": integers([rows_by_number[number].last_seq for number in batches]),
        "last": integers([batch.events[-1].seq for batch in batches.values()]),
        "needs": integers([ev.needed_version(batch.events) for batch in batches.values()]),
        "status": [batch.summary.status for batch in batches.values()],
        "title": [escaped(batch.summary.title) for batch in batches.values()],
        "updated": [batch.events[-1].timestamp for batch in batches.values()],
        "of": integers(of),
        "seqs": integers(seqs),
        "crcs": integers(crcs),
        "events": lines,
        "timers_of": integers([number for number, _ in dues]),
        "timers": [escaped(timer) for _, timer in dues],
        "dues": list(dues.values()),
        "channel": channel,
    }
