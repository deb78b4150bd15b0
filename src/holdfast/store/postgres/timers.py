"""The index of timers in Postgres. See `Store.ring`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from holdfast import commands
from holdfast.store.base import DueTimer, WorkBell
from holdfast.store.nul_text import escaped, unescaped
from holdfast.store.postgres.pool import Cursor

DUE = """
SELECT c.id, t.timer, t.due FROM timers t JOIN conversations c ON c.number = t.conversation
WHERE t.due <= %s ORDER BY t.due, t.conversation, t.timer LIMIT %s
"""
NEXT_DUE = "SELECT min(due) FROM timers"

# By the database's clock, which all machines share. It changes during the statement, so that only
# the other condition can use the index. Rows that another store is ringing are left to it.
_TAKE = """
SELECT c.id, t.timer, t.due, t.conversation, coalesce(o.channel, '')
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


class RungTimers(NamedTuple):
    """The timers that were rung, the conversations' numbers by new command, and the channels of
    these conversations' owners."""

    timers: list[DueTimer]
    posted: dict[int, int]
    channels: dict[int, str]


def due_timer(id: str, timer: str, due: datetime) -> DueTimer:
    """Return a row of `DUE`."""
    return DueTimer(unescaped(id), unescaped(timer), due.astimezone(UTC))


def ring(db: Cursor, before: datetime, limit: int, bell: WorkBell | None) -> RungTimers:
    """Replace due rows by commands, and ring the store's bell, within a transaction."""
    rows = db.execute(_TAKE, (before, limit)).fetchall()
    timers = [due_timer(id, timer, due) for id, timer, due, _, _ in rows]
    if not rows:
        return RungTimers([], {}, {})
    numbers = [number for _, _, _, number, _ in rows]
    data = [commands.encode(commands.RingTimer(one.timer, one.due)) for one in timers]
    posted = db.execute(_POST, (numbers, [escaped(one.key) for one in timers], data)).fetchall()
    db.execute(_DROP, (numbers, [escaped(one.timer) for one in timers]))
    if bell is not None:
        ids = dict(zip(numbers, (one.conversation_id for one in timers), strict=True))
        bell.wake_all(list({ids[number] for _, number in posted}), db)
    channels = {number: channel for _, _, _, number, channel in rows}
    return RungTimers(timers, dict(posted), channels)
