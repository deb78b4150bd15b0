"""The inboxes in an SQLite file. See `Store.post`."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from holdfast import commands
from holdfast.errors import HoldfastError
from holdfast.store.base import Lease, Posted, WorkBell
from holdfast.store.sqlite import conversations, leases, schema

_POST = "INSERT OR IGNORE INTO inbox (conversation, key, data) VALUES (?, ?, ?)"
_UNDONE = """
SELECT number, key, data FROM inbox WHERE conversation = ? AND data IS NOT NULL ORDER BY number
"""


def post(
    db: sqlite3.Cursor, id: str, number: int, key: str, data: bytes, bell: WorkBell | None
) -> int:
    """Leave a command in the inbox of the conversation `id`, which has this `number`. Return the
    command's number, 0 if the key is known."""
    cursor = db.execute(_POST, (number, key, data))
    if not cursor.rowcount:
        return 0
    command_number = int(cursor.lastrowid or 0)
    if bell is not None:
        try:
            bell.wake(id, db)
        except HoldfastError:  # it is raised after a commit, which other writes share
            db.execute("DELETE FROM inbox WHERE number = ?", (command_number,))
            raise
    return command_number


def column(
    db: sqlite3.Connection, name: str, conversation_id: str, key: str, path: Path
) -> bytes | None:
    """Return a column of a command, None for an unknown key. Raises `ConversationNotFound`."""
    cursor = db.cursor()
    (number,) = conversations.find(cursor, "number", conversation_id, path)
    # An older file that is open for reading lacks the inbox, or its refusals.
    if schema.format_of_locked(db) < (4 if name == "refusal" else 2):
        return None
    query = f"SELECT {name} FROM inbox WHERE conversation = ? AND key = ?"
    row = cursor.execute(query, (number, key)).fetchone()
    return None if row is None else row[0]


def undone(db: sqlite3.Connection, lease: Lease) -> list[Posted]:
    """Return the commands that are not done, without those of a newer version. Raises
    `Fenced`."""
    db.execute("BEGIN")
    try:
        rows = db.execute(_UNDONE, (leases.number_of(db, lease),)).fetchall()
    finally:
        db.execute("COMMIT")
    return [
        Posted(number, key, command)
        for number, key, data in rows
        if (command := commands.posted(data)) is not None
    ]
