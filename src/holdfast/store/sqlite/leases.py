"""Leases in an SQLite file, and the conversations that have work and no living owner."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from holdfast.errors import LeaseHeld
from holdfast.store import base
from holdfast.store.base import Lease
from holdfast.store.sqlite import conversations
from holdfast.store.sqlite.files import ReadConnection
from holdfast.store.sqlite.ledger import SQLLedger
from holdfast.store.sqlite.owner import Owner

_TAKE = "UPDATE conversations SET epoch = ?, holder = ? WHERE number = ?"
_SEEN = "SELECT number, epoch, holder, notes, spawned_by FROM conversations WHERE id = ?"
_HELD = "SELECT number FROM conversations WHERE id = ? AND epoch = ? AND holder <> ''"
_NOTE = "UPDATE conversations SET notes = ? WHERE id = ? AND epoch = ? AND holder <> ''"
_RELEASE = "UPDATE conversations SET holder = '', notes = '', epoch = epoch + 1 WHERE"
RELEASE = f"{_RELEASE} id = ? AND epoch = ? AND holder <> ''"
RELEASE_ALL = f"{_RELEASE} holder = ? AND holder <> ''"

# A dead owner may hold conversations at rest. The taker of such a lease gives it back.
_HOLDERS = "SELECT DISTINCT holder FROM conversations WHERE holder <> ''"
_DEAD = "holder IN (SELECT value FROM json_each(:dead))"
_ORPHANED = f"""
SELECT id, number FROM conversations WHERE holder <> '' AND {_DEAD} AND spawned_by = ''
LIMIT :limit
"""
_GIVEN_BACK = """
SELECT id, number FROM conversations WHERE status = 'running' AND holder = '' AND spawned_by = ''
LIMIT :limit
"""
_WAITING = f"""
SELECT id, conversations.number FROM inbox JOIN conversations
ON conversations.number = inbox.conversation WHERE data IS NOT NULL AND conversation > :after
AND (holder = '' OR {_DEAD}) GROUP BY conversation ORDER BY conversation LIMIT :limit
"""

Living = Callable[[str], str | None]
"""Describes the holder of this name if it lives."""


class OwnLease(NamedTuple):
    """A lease of this store, with its conversation's number."""

    number: int
    lease: Lease


def take(db: sqlite3.Cursor, conversation_id: str, owner: Owner) -> OwnLease:
    """Take a lease, and make the conversation if it does not exist. Raises `LeaseHeld`."""
    row = db.execute(_SEEN, (conversation_id,)).fetchone()
    if row is None:
        now = datetime.now(UTC).isoformat()
        entry = (conversation_id, owner.token, 0, "idle", "", now, now, "", 0, "", 0)
        number = conversations.begin(db, entry)
        return OwnLease(number, Lease(conversation_id, number))
    number, epoch, holder, notes, spawned_by = row
    refuse_if_held(conversation_id, holder, owner.living)
    db.execute(_TAKE, (epoch + 1, owner.token, number))
    orphan_notes = tuple(json.loads(notes)) if notes else ()
    above = SQLLedger(db).above(conversation_id, spawned_by)
    orphaned = bool(holder)
    return OwnLease(
        number, Lease(conversation_id, epoch + 1, orphan_notes, spawned_by, above, orphaned)
    )


def refuse_if_held(conversation_id: str, holder: str, living: Living) -> None:
    """Raise `LeaseHeld` if the holder lives."""
    if holder and (description := living(holder)):
        raise LeaseHeld(conversation_id, description)


def number_of(db: sqlite3.Connection | sqlite3.Cursor, lease: Lease) -> int:
    """Return the number of the leased conversation. Raises `Fenced`."""
    row = db.execute(_HELD, (lease.conversation_id, lease.epoch)).fetchone()
    if row is None:
        raise base.fenced_error(lease)
    return row[0]


def leave_notes(db: sqlite3.Cursor, lease: Lease, notes: Sequence[str]) -> None:
    """Replace the notes for the next owner. Raises `Fenced`."""
    text = json.dumps(list(notes), ensure_ascii=False) if notes else ""
    if not db.execute(_NOTE, (text, lease.conversation_id, lease.epoch)).rowcount:
        raise base.fenced_error(lease)


class Unattended(NamedTuple):
    """Conversations without a driver, and the number after which the next look continues."""

    ids: list[str]
    looked_at: int


def unattended(
    reader: ReadConnection, living: Living, limit: int, looked_at: int, parked: bool
) -> Unattended:
    """Return the conversations of `Store.unattended`; those with commands are looked for after
    the number `looked_at`."""
    holders = [one for (one,) in reader.read(lambda db: db.execute(_HOLDERS).fetchall())]
    dead = json.dumps([one for one in holders if not living(one)])
    values = {"dead": dead, "limit": limit, "after": looked_at}

    def look(query: str) -> list[tuple[str, int]]:
        return reader.read(lambda db: db.execute(query, values).fetchall())

    rows = look(_ORPHANED)
    if parked:
        rows += look(_GIVEN_BACK)
    waiting = look(_WAITING)
    ids = dict.fromkeys(id for id, _ in (*rows, *waiting))
    return Unattended([*ids][:limit], waiting[-1][1] if len(waiting) >= limit else 0)
