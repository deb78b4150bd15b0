"""Location of a conversation's events in an SQLite file: its own rows, and rows that a fork
shares."""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

from holdfast import events as ev
from holdfast.events import AnyEvent
from holdfast.store.sqlite import schema


class Stretch(NamedTuple):
    """The rows of events `after` + 1 to `last` under a conversation's `number`."""

    number: int
    after: int
    last: int


def stretches(number: int, last_seq: int, base: str) -> list[Stretch]:
    """Return the ranges of rows that hold a conversation's events, in order."""
    ranges: list[Stretch] = []
    after = 0
    for source, last in (*read_ranges(base), (number, last_seq)):
        ranges.append(Stretch(source, after, last))
        after = last
    return ranges


def read_ranges(base: str) -> list[tuple[int, int]]:
    """Return the number and the last shared seq of each conversation that a fork shares rows of."""
    return json.loads(base) if base else []


def base_of_fork(number: int, base: str, seq: int) -> str:
    """Return the `base` of a fork with the first `seq` events of the conversation `number`, which
    has the base `base`."""
    ranges = [(s.number, min(s.last, seq)) for s in stretches(number, seq, base) if s.after < seq]
    return json.dumps(ranges, separators=(",", ":")) if ranges else ""


_FIND = "SELECT number, last_seq, base, condensed FROM conversations WHERE id = ?"
_FIND_1 = "SELECT number, last_seq, '', 0 FROM conversations WHERE id = ?"  # in a file of format 1
INSERT = "INSERT INTO events (key, crc, data) VALUES (?, ?, ?)"
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


def rows_of(number: int, events: Sequence[AnyEvent]) -> list[tuple[int, int, bytes]]:
    """Return the rows of new events under a conversation's `number`, for `INSERT`. Raises
    `UnreadableEvent`."""
    first = number << 32
    return [
        (first + event.seq, zlib.crc32(data), data)
        for event, data in zip(events, ev.records(events), strict=True)
    ]
