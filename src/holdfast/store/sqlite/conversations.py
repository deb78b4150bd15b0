"""The entries of conversations in an SQLite file: made, found, forked and listed."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.errors import StoreError
from holdfast.store import base
from holdfast.store.base import Summary
from holdfast.store.sqlite import lineage, schema
from holdfast.store.sqlite.rows import read_tags

# A new conversation's epoch is its number, and deleting one raises the next number above its epoch.
# So no old lease fits a conversation that is created again.
_BEGIN = """
INSERT INTO conversations
(id, epoch, holder, last_seq, status, title, created, updated, parent, parent_seq, base, condensed)
VALUES (?, 0, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_SET_TAGS = "UPDATE conversations SET tags = ? WHERE number = ?"

_COLUMNS = (
    "id, status, title, last_seq, created, updated, parent, parent_seq, condensed, spawned_by,"
    " tags, holder"
)
_UNDONE = "number IN (SELECT conversation FROM inbox WHERE data IS NOT NULL)"
# That is: spawned_by begins with the id and a colon.
SPAWNED = "spawned_by >= :spawner || ':' AND spawned_by < :spawner || ';'"
_TAGGED = (
    "tags <> '' AND NOT EXISTS (SELECT 1 FROM json_each(:tags) wanted WHERE wanted.value NOT IN"
    " (SELECT value FROM json_each(conversations.tags)))"
)
_FORKED = "parent <> '' AND "


def begin(db: sqlite3.Cursor, row: tuple[object, ...]) -> int:
    """Make the entry of a new conversation and return its number."""
    number = int(db.execute(_BEGIN, row).lastrowid or 0)
    db.execute("UPDATE conversations SET epoch = number WHERE number = ?", (number,))
    return number


def find(db: sqlite3.Cursor, columns: str, conversation_id: str, path: Path) -> tuple[Any, ...]:
    """Return columns of a conversation. Raises `ConversationNotFound`."""
    query = f"SELECT {columns} FROM conversations WHERE id = ?"
    row = db.execute(query, (conversation_id,)).fetchone()
    if row is None:
        raise base.not_found(conversation_id, repr(str(path)))
    return row


def set_tags(db: sqlite3.Cursor, number: int, summary: Summary) -> None:
    """Store the tags of a conversation."""
    db.execute(_SET_TAGS, (json.dumps(summary.tags) if summary.tags else "", number))


def fork(
    db: sqlite3.Cursor,
    conversation_id: str,
    summary: Summary,
    rows: Sequence[tuple[int, int, bytes]],
    path: Path,
) -> None:
    """Make a conversation of the first events of another one, and of events whose rows are those
    of number 0. See `Store.fork`."""
    seq = summary.last_seq - len(rows)
    number, last, shared = find(db, "number, last_seq, base", conversation_id, path)
    query = "SELECT 1 FROM conversations WHERE id = ?"
    exists = db.execute(query, (summary.id,)).fetchone() is not None
    base.check_fork(conversation_id, last, seq, summary.id, exists)
    now = datetime.now(UTC)
    times = ((time or now).isoformat() for time in (summary.created, summary.updated))
    origin = (conversation_id, seq, lineage.base_of_fork(number, shared, seq))
    state = (summary.last_seq, summary.status, summary.title)
    fork = begin(db, (summary.id, "", *state, *times, *origin, summary.condensed))
    if summary.tags:
        set_tags(db, fork, summary)
    db.executemany(lineage.INSERT, [((fork << 32) + key, crc, data) for key, crc, data in rows])


class ListingFilters(NamedTuple):
    """The arguments of `Store.list`."""

    ids: Sequence[str] | None
    status: str | None
    waiting: bool
    spawned_by: str | None
    forked_from: Sequence[str] | None
    tags: Sequence[str]


def listing(
    db: sqlite3.Connection, filters: ListingFilters, living: Callable[[str], bool], path: Path
) -> list[Summary]:
    """Return the summaries of a listing, from a file of any format; `living` tells whether a
    holder lives. Raises `StoreError` for a damaged entry."""
    format = schema.format_of_locked(db)
    ids, status, waiting, spawned_by, forked_from, tags = filters
    if (
        (format < 6 and tags)
        or (format < 3 and spawned_by is not None)
        or (format < 2 and (waiting or forked_from is not None))
    ):
        return []
    values = {"spawner": spawned_by, "status": status, "tags": json.dumps([*tags])}
    conditions = (
        _UNDONE if waiting else "last_seq > 0",
        "" if spawned_by is None else SPAWNED,
        "" if ids is None else _one_of("id", ids, values),
        "" if forked_from is None else _FORKED + _one_of("parent", forked_from, values),
        "" if status is None else "status = :status",
        _TAGGED if tags else "",
    )
    columns = _COLUMNS
    if format < 6:
        columns = columns.replace("tags", "''")
    if format < 3:
        columns = columns.replace("spawned_by", "''")
    if format < 2:
        columns = columns.replace("parent, parent_seq, condensed", "'', 0, 0")
    query = f"SELECT {columns} FROM conversations WHERE " + " AND ".join(filter(None, conditions))
    order = " ORDER BY updated DESC, number DESC" if ids is None else ""
    rows = db.execute(query + order, values).fetchall()
    when = datetime.fromisoformat
    try:
        driven = {holder: holder != "" and living(holder) for holder in {row[-1] for row in rows}}
        summaries = [
            Summary(
                *(id, status, title, seq),
                *(when(created), when(updated)),
                *origin,
                tags=read_tags(tagged),
                driven=driven[holder],
            )
            for id, status, title, seq, created, updated, *origin, tagged, holder in rows
        ]
    except (TypeError, ValueError) as error:  # a damaged page may hold anything
        raise StoreError(
            f"Store {str(path)!r} cannot be listed: the entry of a conversation is damaged"
            f" ({error})."
        ) from error
    # an id may have colons of its own, which the SQL does not see
    return [one for one in summaries if spawned_by in (None, one.spawner)]


def _one_of(column: str, ids: Sequence[str], values: dict[str, Any]) -> str:
    """Return the condition that a column has one of these ids, which are added to `values`."""
    valid_ids = [id for id in ids if base.is_utf8(id)]
    # SQLite's JSON ends a text at its first NUL, so those ids are bound one by one.
    odd = {f"{column}{number}": id for number, id in enumerate(valid_ids) if "\0" in id}
    values[column] = json.dumps([id for id in valid_ids if "\0" not in id])
    values |= odd
    in_list = f"{column} IN (SELECT value FROM json_each(:{column}))"
    return f"({in_list} OR {column} IN ({', '.join(f':{name}' for name in odd)}))"
