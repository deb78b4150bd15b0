"""Deletion of conversations, and the freeing of events that no fork shares."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors import LeaseHeld
from holdfast.store import base
from holdfast.store.nul_text import escaped, unescaped
from holdfast.store.postgres.leases import LIVES
from holdfast.store.postgres.ledger import PostgresLedger
from holdfast.store.postgres.pool import Cursor

SLICE_EVENTS = 500  # the number of events that one transaction frees

_COLUMNS = f"""
SELECT c.id, c.number, (SELECT o.label FROM owners o WHERE o.token = c.owner AND {LIVES})
FROM conversations c
"""
_FIND = f"{_COLUMNS} WHERE c.id = %s FOR UPDATE OF c"
_CHILDREN = f"{_COLUMNS} WHERE c.spawner = %s ORDER BY c.number FOR UPDATE OF c"
_ADOPT = "UPDATE conversations SET spawned_by = '', spawner = '' WHERE number = %s"
# Only numbers without a conversation: events of another one are still needed.
_MARK = """
INSERT INTO garbage (number)
SELECT g.number
FROM (SELECT %(number)s::bigint UNION SELECT unnest(%(sources)s::bigint[])) AS g(number)
WHERE NOT EXISTS (SELECT FROM conversations c WHERE c.number = g.number)
ON CONFLICT DO NOTHING
"""

_NEXT = "SELECT number FROM garbage ORDER BY number LIMIT 1 FOR UPDATE SKIP LOCKED"
# The events after the last one that a fork shares.
_SLICE = """
SELECT max(seq) FROM (
    SELECT seq FROM events WHERE conversation = %(number)s
    AND seq > (SELECT coalesce(max(last), 0) FROM shares WHERE source = %(number)s)
    ORDER BY seq LIMIT %(limit)s
) AS slice
"""
_REFS = """
DELETE FROM blob_refs WHERE conversation = %(number)s AND seq <= %(until)s
AND seq > (SELECT coalesce(max(last), 0) FROM shares WHERE source = %(number)s) RETURNING id
"""
_EVENTS = """
DELETE FROM events WHERE conversation = %(number)s AND seq <= %(until)s
AND seq > (SELECT coalesce(max(last), 0) FROM shares WHERE source = %(number)s)
"""
# Locked first: the next statement sees an append that refers to one of them meanwhile, or the
# append waits for its end.
_LOCK_BLOBS = "SELECT id FROM blobs WHERE id = ANY(%s) ORDER BY id FOR UPDATE"
_BLOBS = """
DELETE FROM blobs b WHERE b.id = ANY(%s)
AND NOT EXISTS (SELECT FROM blob_refs r WHERE r.id = b.id)
"""


def remove(db: Cursor, conversation_id: str, place: str) -> None:
    """Remove a conversation and its descendants; their events become garbage. Raises
    `ConversationNotFound` and `LeaseHeld`."""
    row = db.execute(_FIND, (escaped(conversation_id),)).fetchone()
    if row is None:
        raise base.not_found(conversation_id, place)
    if row[2] is not None:
        raise LeaseHeld(conversation_id, row[2])
    todo: list[Sequence[object]] = [row]
    while todo:
        id, number, _ = todo.pop()
        db.execute("DELETE FROM conversations WHERE number = %s", (number,))
        db.execute("DELETE FROM inbox WHERE conversation = %s", (number,))
        db.execute("DELETE FROM timers WHERE conversation = %s", (number,))
        db.execute("DELETE FROM watchers WHERE conversation = %s", (number,))
        query = "DELETE FROM shares WHERE fork = %s RETURNING source"
        sources = [source for (source,) in db.execute(query, (number,)).fetchall()]
        db.execute(_MARK, {"number": number, "sources": sources})
        PostgresLedger(db).forget(unescaped(str(id)))
        for child in db.execute(_CHILDREN, (id,)).fetchall():
            if child[2] is not None:  # in use
                db.execute(_ADOPT, (child[1],))
            else:
                todo.append(child)


def free_slice(db: Cursor) -> bool:
    """Free some unneeded events with their blobs. Return False if none are left."""
    garbage = db.execute(_NEXT).fetchone()
    if garbage is None:
        return False
    values = {"number": garbage[0], "limit": SLICE_EVENTS}
    row = db.execute(_SLICE, values).fetchone()
    if row is None or row[0] is None:
        db.execute("DELETE FROM garbage WHERE number = %s", (garbage[0],))
        return True
    values["until"] = row[0]
    ids = sorted({id for (id,) in db.execute(_REFS, values).fetchall()})
    db.execute(_EVENTS, values)
    if ids:
        db.execute(_LOCK_BLOBS, (ids,))
        db.execute(_BLOBS, (ids,))
    return True
