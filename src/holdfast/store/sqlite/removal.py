"""Deletion of conversations from an SQLite file, and the freeing of events that no fork shares."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from holdfast.store.sqlite import conversations, leases
from holdfast.store.sqlite.leases import Living
from holdfast.store.sqlite.ledger import SQLLedger
from holdfast.store.sqlite.lineage import read_ranges

# The amount that one transaction frees, about 10 ms. No other process can write meanwhile.
SLICE_ROWS = 200  # events, or pages
SLICE_BYTES = 4_000_000

_COLUMNS = "id, number, epoch, holder, base"
_CHILDREN = f"SELECT {_COLUMNS}, spawned_by FROM conversations WHERE {conversations.SPAWNED}"
_ADOPT = "UPDATE conversations SET spawned_by = '' WHERE number = ?"
_SKIP_EPOCHS = "UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = 'conversations'"


def remove(db: sqlite3.Cursor, conversation_id: str, living: Living, path: Path) -> None:
    """Remove a conversation and its descendants; their events are marked for freeing. Raises
    `ConversationNotFound` and `LeaseHeld`."""
    todo = [conversations.find(db, _COLUMNS, conversation_id, path)]
    leases.refuse_if_held(conversation_id, todo[0][3], living)
    while todo:
        id, number, epoch, _, shared = todo.pop()
        db.execute("DELETE FROM conversations WHERE number = ?", (number,))
        db.execute("DELETE FROM inbox WHERE conversation = ?", (number,))
        db.execute("DELETE FROM timers WHERE conversation = ?", (number,))
        db.execute(_SKIP_EPOCHS, (epoch,))
        _mark_to_free(db, number, shared)
        SQLLedger(db).forget(id)
        for *child, by in db.execute(_CHILDREN, {"spawner": id}).fetchall():
            if by.rpartition(":")[0] != id:  # an id may have colons of its own
                continue
            if child[3] and living(child[3]):
                db.execute(_ADOPT, (child[1],))
            else:
                todo.append(tuple(child))


def _mark_to_free(db: sqlite3.Cursor, number: int, base: str) -> None:
    """Mark the events of a removed conversation and of its removed origins for freeing."""
    mark = "INSERT OR IGNORE INTO inbox (conversation, key, data) VALUES (?, '', NULL)"
    for one in {number, *(source for source, _ in read_ranges(base))}:
        if db.execute("SELECT 1 FROM conversations WHERE number = ?", (one,)).fetchone() is None:
            db.execute(mark, (one,))


_SIZES = """
SELECT key, length(data) + (SELECT coalesce(sum(length(b.data)), 0)
FROM blob_refs r JOIN blobs b ON b.id = r.id WHERE r.key = events.key)
FROM events WHERE key > ? AND key < ? ORDER BY key LIMIT ?
"""


def free_slice(db: sqlite3.Cursor) -> bool:
    """Free some unneeded events with their blobs. Return False if none are left."""
    query = (
        "SELECT conversation FROM inbox WHERE key = ''"
        " AND NOT EXISTS (SELECT 1 FROM conversations WHERE number = inbox.conversation) LIMIT 1"
    )
    row = db.execute(query).fetchone()
    if row is None:
        return False
    number = row[0]
    start, end = (number << 32) + _last_shared_seq(db, number), (number + 1) << 32
    until, size = None, 0
    for key, length in db.execute(_SIZES, (start, end, SLICE_ROWS)).fetchall():
        until, size = key, size + length
        if size > SLICE_BYTES:
            break
    if until is None:
        db.execute("DELETE FROM inbox WHERE conversation = ?", (number,))
        until = end
    keys = (start, until)
    query = "SELECT DISTINCT id FROM blob_refs WHERE key > ? AND key <= ?"
    ids = db.execute(query, keys).fetchall()
    db.execute("DELETE FROM blob_refs WHERE key > ? AND key <= ?", keys)
    query = "DELETE FROM blobs WHERE id = ? AND id NOT IN (SELECT id FROM blob_refs)"
    db.executemany(query, ids)
    db.execute("DELETE FROM events WHERE key > ? AND key <= ?", keys)
    return True


def _last_shared_seq(db: sqlite3.Cursor, number: int) -> int:
    """Return the last event under this number that a fork shares."""
    query = "SELECT base FROM conversations WHERE base <> '' AND instr(base, ?)"
    bases = db.execute(query, (f"[{number},",))
    seqs = [last for (base,) in bases for source, last in read_ranges(base) if source == number]
    return max(seqs, default=0)


def free_pages(db: sqlite3.Connection) -> int:
    """Return the number of pages that `auto_vacuum` can return to the file system."""
    if not db.execute("PRAGMA auto_vacuum").fetchone()[0]:
        return 0
    return db.execute("PRAGMA freelist_count").fetchone()[0]


# Run as a script: Python takes one step of a statement, which would free a single page.
GIVE_BACK = f"PRAGMA incremental_vacuum({SLICE_ROWS})"
