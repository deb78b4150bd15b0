"""Location of a conversation's events in an SQLite file: its own rows, and rows that a fork
shares. Also frees the rows that no conversation needs."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from typing import NamedTuple

from holdfast.store.sqlite import schema

# The amount that one transaction frees, about 10 ms. No other process can write meanwhile.
SLICE_ROWS = 200  # events, or pages
SLICE_BYTES = 4_000_000


class Stretch(NamedTuple):
    """The rows of events `after` + 1 to `last` under a conversation's `number`."""

    number: int
    after: int
    last: int


def stretches(number: int, last_seq: int, base: str) -> list[Stretch]:
    """Return the ranges of rows that hold a conversation's events, in order."""
    ranges: list[Stretch] = []
    after = 0
    for source, last in (*_read_ranges(base), (number, last_seq)):
        ranges.append(Stretch(source, after, last))
        after = last
    return ranges


def _read_ranges(base: str) -> list[tuple[int, int]]:
    return json.loads(base) if base else []


def base_of_fork(number: int, base: str, seq: int) -> str:
    """Return the `base` of a fork that shares the first `seq` events of the conversation
    `number`, whose own base is `base`."""
    ranges = [(s.number, min(s.last, seq)) for s in stretches(number, seq, base) if s.after < seq]
    return json.dumps(ranges, separators=(",", ":")) if ranges else ""


_FIND = "SELECT number, last_seq, base, condensed FROM conversations WHERE id = ?"
_FIND_1 = "SELECT number, last_seq, '', 0 FROM conversations WHERE id = ?"  # in a file of format 1
ROWS = "SELECT key & 0xFFFFFFFF, crc, data FROM events WHERE key > ? AND key <= ? ORDER BY key"


def read(
    db: sqlite3.Connection,
    conversation_id: str,
    after_seq: int | None,
    limit: int | None,
    take: Callable[[int, int, int, bytes], None],
) -> tuple[int, int]:
    """Read a conversation's events after `after_seq` in one snapshot, at most `limit` of them.

    `after_seq=None` starts after the condensed events. Each row goes to
    `take(expected seq, seq, crc, data)` at once. Decoding rows at once saves a second copy in
    memory, which costs as much as the reading in long journals.

    Returns the seq before the first event and the seq of the last one that were asked for, or
    (0, 0) for an unknown conversation.
    """
    db.execute("BEGIN")
    try:
        entry = db.execute(
            _FIND if schema.format_of_locked(db) > 1 else _FIND_1, (conversation_id,)
        ).fetchone()
        if entry is None:
            return 0, 0
        number, last_seq, base, condensed = entry
        first = condensed if after_seq is None else after_seq
        try:
            end = last_seq if limit is None else min(last_seq, first + max(limit, 0))
            ranges = [
                ((source << 32) + max(after, first), (source << 32) + min(last, end))
                for source, after, last in stretches(number, last_seq, base)
                if last > first and after < end
            ]
        except (TypeError, ValueError) as error:  # a damaged page may hold anything
            raise sqlite3.DatabaseError(
                f"the entry of conversation {conversation_id!r} is damaged"
            ) from error
        expected = first
        for keys in ranges:
            for row in db.execute(ROWS, keys):
                expected += 1
                take(expected, *row)
        return first, end
    finally:
        db.execute("COMMIT")


# --- freeing ---


def mark_to_free(db: sqlite3.Cursor, number: int, base: str) -> None:
    """Mark the events of a removed conversation and of its removed origins for freeing."""
    mark = "INSERT OR IGNORE INTO inbox (conversation, key, data) VALUES (?, '', NULL)"
    for one in {number, *(source for source, _ in _read_ranges(base))}:
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
    seqs = [last for (base,) in bases for source, last in _read_ranges(base) if source == number]
    return max(seqs, default=0)


def free_pages(db: sqlite3.Connection) -> int:
    """Return the number of pages that `auto_vacuum` can return to the file system."""
    if not db.execute("PRAGMA auto_vacuum").fetchone()[0]:
        return 0
    return db.execute("PRAGMA freelist_count").fetchone()[0]


# Run as a script: Python takes one step of a statement, which would free a single page.
GIVE_BACK = f"PRAGMA incremental_vacuum({SLICE_ROWS})"
