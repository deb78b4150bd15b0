"""Appends to an SQLite file. See `Store.append`."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec

from holdfast import events as ev
from holdfast.errors import StoreError
from holdfast.store import base
from holdfast.store.base import Batch, Lease, changes_tags
from holdfast.store.sqlite import conversations, lineage
from holdfast.store.sqlite.ledger import SQLLedger

_MOVE = """
UPDATE conversations SET last_seq = ?, status = ?, title = ?, updated = ?, condensed = ?
WHERE number = ? AND epoch = ? AND last_seq = ?
"""
# An imported fork brings its origin; a fork made in this store keeps the origin in its row.
_FIRST = """
UPDATE conversations SET created = ?, parent_seq = iif(parent = '', ?, parent_seq),
parent = iif(parent = '', ?, parent), spawned_by = ? WHERE number = ?
"""
_FENCE = "SELECT last_seq FROM conversations WHERE number = ? AND epoch = ?"
_DONE = "UPDATE inbox SET data = NULL, refusal = ? WHERE number = ? AND conversation = ?"
_SET_TIMER = "INSERT OR REPLACE INTO timers (due, conversation, timer) VALUES (?, ?, ?)"
DROP_TIMER = "DELETE FROM timers WHERE conversation = ? AND timer = ?"
_BLOB = "INSERT OR IGNORE INTO blobs (id, data) VALUES (?, ?)"
_BLOB_REF = "INSERT OR IGNORE INTO blob_refs (key, id) VALUES (?, ?)"

MICROSECOND = timedelta(microseconds=1)  # the unit of the index of timers


class BatchRows(NamedTuple):
    """The rows of a batch's events and blobs under the `number` of its conversation. Each row is
    made before the transaction, in which other writers wait."""

    number: int
    events: list[tuple[int, int, bytes]]
    blobs: list[tuple[int, str, bytes]]


def rows_of(number: int, batch: Batch) -> BatchRows:
    """Return the rows of a batch. Raises `UnreadableEvent`."""
    blobs = [((number << 32) + blob.seq, blob.id, blob.data) for blob in batch.blobs]
    return BatchRows(number, lineage.rows_of(number, batch.events), blobs)


def append(
    lease: Lease,
    batch: Batch,
    rows: BatchRows,
    living: Callable[[str], object],
    db: sqlite3.Cursor,
) -> bool:
    """Write a batch. Return True if its reservation is held; `living` tells whether a holder
    lives. Raises `Fenced` and `StoreError`."""
    number, events, summary = rows.number, batch.events, batch.summary
    if events:
        first, last = events[0], events[-1]
        updated = (summary.updated or last.timestamp).isoformat()
        columns = (summary.status, summary.title, updated, summary.condensed)
        key = (number, lease.epoch, first.seq - 1)
        if not db.execute(_MOVE, (last.seq, *columns, *key)).rowcount:
            raise StoreError(
                f"Conversation {lease.conversation_id!r}: event {first.seq} does not follow"
                f" event {_fence(db, number, lease)}. Nothing was written."
            )
        if first.seq == 1:
            created = (summary.created or first.timestamp).isoformat()
            origin = (summary.parent_seq, summary.parent, summary.spawned_by)
            db.execute(_FIRST, (created, *origin, number))
        db.executemany(lineage.INSERT, rows.events)
        if changes_tags(events):
            conversations.set_tags(db, number, summary)
    else:
        _fence(db, number, lease)
    if batch.done_commands:
        refusals = {key: msgspec.json.encode(one) for key, one in batch.refusals.items()}
        updates = [(refusals.get(command), command, number) for command in batch.done_commands]
        db.executemany(_DONE, updates)
    for row in batch.timers:
        if row.due is None:
            db.execute(DROP_TIMER, (number, row.timer))
        else:
            db.execute(_SET_TIMER, (microseconds(row.due), number, row.timer))
    for key, id, data in rows.blobs:
        db.execute(_BLOB, (id, data))
        db.execute(_BLOB_REF, (key, id))
    if not batch.settlements and batch.reservation is None:
        return False
    ledger = SQLLedger(db, number, living)
    ledger.settle(batch.settlements)
    reservation = batch.reservation
    return reservation is not None and ledger.reserve(lease, reservation) is None


def _fence(db: sqlite3.Cursor, number: int, lease: Lease) -> int:
    """Return the conversation's last seq. Raises `Fenced`."""
    row = db.execute(_FENCE, (number, lease.epoch)).fetchone()
    if row is None:
        raise base.fenced_error(lease)
    return row[0]


def microseconds(time: datetime) -> int:
    """Return a time as the index of timers has it."""
    return (time - ev.EPOCH) // MICROSECOND
