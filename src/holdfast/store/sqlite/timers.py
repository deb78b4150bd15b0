"""The index of timers in an SQLite file. See `Store.ring`."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from holdfast import commands
from holdfast import events as ev
from holdfast.errors import HoldfastError
from holdfast.store.base import Batch, DueTimer, FireTimers, Lease, WorkBell
from holdfast.store.firing import DueRow, firing_batches, within_limits
from holdfast.store.sqlite import inbox, journal, lineage, schema

_DUE = (
    "SELECT t.due, c.id, t.timer, t.conversation FROM timers t JOIN conversations c ON c.number ="
    " t.conversation WHERE t.due <= ? ORDER BY t.due, t.conversation, t.timer LIMIT ?"
)
_TAKE = """
SELECT t.due, c.id, t.timer, t.conversation, c.holder = '' AND c.spawned_by = '' AND c.base = ''
AND NOT EXISTS (SELECT 1 FROM inbox i WHERE i.conversation = c.number AND i.data IS NOT NULL),
c.epoch, c.last_seq, c.condensed FROM timers t JOIN conversations c ON c.number = t.conversation
WHERE t.due <= ? ORDER BY t.due, t.conversation, t.timer LIMIT ?
"""
_NEXT_EPOCH = "UPDATE conversations SET epoch = epoch + 1 WHERE number = ?"


class Rings(NamedTuple):
    """The rung timers. `posted` are the numbers of new commands by conversation. `appended` are the
    id and last seq of each conversation with fired timers, by number."""

    timers: list[DueTimer]
    posted: dict[int, int]
    appended: dict[int, tuple[str, int]]


def due(db: sqlite3.Connection, before: datetime, limit: int) -> list[DueTimer]:
    """Return the timers of `Store.due`."""
    if schema.format_of_locked(db) < 5:
        return []
    rows = db.execute(_DUE, (journal.microseconds(before), max(limit, 0)))
    return [_due_timer(row) for row in rows]


def _due_timer(row: tuple[Any, ...]) -> DueTimer:
    due, conversation_id, timer, *_ = row
    return DueTimer(conversation_id, timer, ev.EPOCH + due * journal.MICROSECOND)


def next_due(db: sqlite3.Connection) -> datetime | None:
    """Return the earliest due time, None without timers."""
    if schema.format_of_locked(db) < 5:
        return None
    due = db.execute("SELECT min(due) FROM timers").fetchone()[0]
    return None if due is None else ev.EPOCH + due * journal.MICROSECOND


def ring(
    db: sqlite3.Cursor,
    before: datetime,
    limit: int,
    bell: WorkBell | None,
    fire: FireTimers | None,
    living: Callable[[str], object],
) -> Rings:
    """Replace due rows by commands, or fire their timers, and ring the store's bell."""
    rings = Rings([], {}, {})
    rows: Sequence[DueRow] = [
        DueRow(_due_timer(row), row[3], bool(row[4]), *row[5:])
        for row in db.execute(_TAKE, (journal.microseconds(before), max(limit, 0)))
    ]
    batches: dict[int, Batch] = {}
    if fire is not None:
        rows = within_limits(rows)
        batches = firing_batches(rows, _tails(db, rows), before, fire)
    try:
        for row in rows:
            one, number = row.timer, row.number
            id = one.conversation_id
            if (batch := batches.get(number)) is None:
                data = commands.encode(commands.RingTimer(one.timer, one.due))
                if command_number := inbox.post(db, id, number, one.key, data, bell):
                    rings.posted[number] = command_number
                db.execute(journal.DROP_TIMER, (number, one.timer))
            elif number not in rings.appended:  # the batch has all timers of its conversation
                rows_of_batch = journal.rows_of(number, batch)
                journal.append(Lease(id, row.epoch), batch, rows_of_batch, living, db)
                rings.appended[number] = (id, batch.events[-1].seq)
            rings.timers.append(one)
    except HoldfastError:
        if not rings.timers:
            raise
        # the next call meets it first
    # No lease of before fits a conversation any more.
    db.executemany(_NEXT_EPOCH, [(number,) for number in rings.appended])
    if bell is not None and rings.appended:
        bell.wake_all([id for id, _ in rings.appended.values()], db)
    return rings


def _tails(db: sqlite3.Cursor, rows: Sequence[DueRow]) -> dict[int, list[tuple[int, int, Any]]]:
    """Return the seqs, checksums and JSON of the tails of conversations with a free lease."""
    rows_by_number = {row.number: row for row in rows if row.fires}
    return {
        number: db.execute(
            lineage.ROWS, ((number << 32) + row.condensed, (number << 32) + row.last_seq)
        ).fetchall()
        for number, row in rows_by_number.items()
    }
