"""The events of a Postgres store: one statement appends a batch, another one reads."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, LiteralString, NamedTuple

import msgspec

from holdfast import events as ev
from holdfast.events import AnyEvent
from holdfast.store.base import Batch, changes_tags
from holdfast.store.nul_text import escaped
from holdfast.store.postgres.pool import integers

# The parts of an append. `moved` is the fence. It is empty unless the lease is the newest and the
# events follow the last one. Every other part writes only rows of `moved`.
_MOVED: LiteralString = """
WITH moved AS (
    UPDATE conversations SET last_seq = %(last)s, status = %(status)s, title = %(title)s,
    updated = %(updated)s, condensed = %(condensed)s, needs = greatest(needs, %(needs)s)
"""
# Of the first event. An imported fork brings its origin; a fork made in this store has it already.
_BEGUN: LiteralString = """,
    created = %(created)s, spawned_by = %(spawned_by)s, spawner = %(spawner)s,
    parent = CASE parent WHEN '' THEN %(parent)s ELSE parent END,
    parent_seq = CASE parent WHEN '' THEN %(parent_seq)s ELSE parent_seq END
"""
_TAGGED: LiteralString = ", tags = %(tags)s"
_FENCED: LiteralString = """
    WHERE number = %(number)s AND epoch = %(epoch)s AND owner <> '' AND last_seq = %(before)s
    RETURNING number
), written AS (
    INSERT INTO events (conversation, seq, crc, data)
"""
_EVENT: LiteralString = "SELECT number, %(last)s, %(crc)s, %(event)b FROM moved)"  # costs less
_EVENTS: LiteralString = """
    SELECT m.number, e.seq, e.crc, e.data
    FROM moved m, unnest(%(seqs)b::bigint[], %(crcs)b::bigint[], %(events)b::bytea[])
    AS e(seq, crc, data)
)
"""
# A batch without events.
_STILL: LiteralString = """
WITH moved AS (
    SELECT number FROM conversations
    WHERE number = %(number)s AND epoch = %(epoch)s AND owner <> '' FOR UPDATE
)
"""
_DONE: LiteralString = """, done AS (
    UPDATE inbox i SET data = NULL, refusal = d.refusal
    FROM moved m, unnest(%(done)b::bigint[], %(refusals)b::bytea[]) AS d(number, refusal)
    WHERE i.number = d.number AND i.conversation = m.number
)
"""
# The update of an existing blob locks it against removal.
_BLOBS: LiteralString = """, kept AS (
    INSERT INTO blobs (id, data)
    SELECT b.id, b.data FROM moved, unnest(%(blob_ids)s::text[], %(blobs)b::bytea[]) AS b(id, data)
    ON CONFLICT (id) DO UPDATE SET id = excluded.id
), named AS (
    INSERT INTO blob_refs (conversation, seq, id)
    SELECT m.number, r.seq, r.id
    FROM moved m, unnest(%(ref_seqs)b::bigint[], %(ref_ids)s::text[]) AS r(seq, id)
    ON CONFLICT DO NOTHING
)
"""
_TIMERS: LiteralString = """, dropped AS (
    DELETE FROM timers t USING moved m
    WHERE t.conversation = m.number AND t.timer = ANY(%(timers)s)
), timed AS (
    INSERT INTO timers (conversation, timer, due) SELECT m.number, t.timer, t.due
    FROM moved m, unnest(%(timers)s::text[], %(dues)s::timestamptz[]) AS t(timer, due)
    WHERE t.due IS NOT NULL
)
"""
_RESULT: LiteralString = """
SELECT ARRAY(
    SELECT w.channel FROM watchers w WHERE w.conversation = m.number AND w.channel <> %(channel)s
) FROM moved m
"""

# Batches of many conversations, each fenced by its own row. It returns a conversation's number and
# the channels of its followers for each batch that was written.
GROUP: LiteralString = """
WITH moved AS (
    UPDATE conversations c SET last_seq = g.last, status = g.status, title = g.title,
    updated = g.updated, condensed = g.condensed, needs = greatest(c.needs, g.needs),
    created = CASE WHEN g.before = 0 THEN g.created ELSE c.created END,
    spawned_by = CASE WHEN g.before = 0 THEN g.spawned_by ELSE c.spawned_by END,
    spawner = CASE WHEN g.before = 0 THEN g.spawner ELSE c.spawner END,
    parent = CASE WHEN g.before = 0 AND c.parent = '' THEN g.parent ELSE c.parent END,
    parent_seq = CASE WHEN g.before = 0 AND c.parent = '' THEN g.parent_seq ELSE c.parent_seq END
    FROM unnest(%(number)s::bigint[], %(epoch)s::bigint[], %(before)s::bigint[],
    %(last)s::bigint[], %(condensed)s::bigint[], %(needs)s::bigint[], %(parent_seq)s::bigint[],
    %(status)b::text[], %(title)b::text[], %(spawned_by)b::text[], %(spawner)b::text[],
    %(parent)b::text[], %(updated)b::timestamptz[], %(created)b::timestamptz[])
    AS g(number, epoch, before, last, condensed, needs, parent_seq, status, title, spawned_by,
    spawner, parent, updated, created)
    WHERE c.number = g.number AND c.epoch = g.epoch AND c.owner <> '' AND c.last_seq = g.before
    RETURNING c.number
), written AS (
    INSERT INTO events (conversation, seq, crc, data)
    SELECT m.number, e.seq, e.crc, e.data FROM moved m JOIN unnest(%(of)s::bigint[],
    %(seqs)s::bigint[], %(crcs)s::bigint[], %(events)b::bytea[]) AS e(number, seq, crc, data)
    ON e.number = m.number
), done AS (
    UPDATE inbox i SET data = NULL, refusal = nullif(d.refusal, '')
    FROM moved m, unnest(%(done_of)s::bigint[], %(done)s::bigint[], %(refusals)b::bytea[])
    AS d(conversation, number, refusal)
    WHERE d.conversation = m.number AND i.number = d.number AND i.conversation = m.number
)
SELECT m.number, ARRAY(
    SELECT w.channel FROM watchers w
    WHERE w.conversation = m.number AND w.channel <> %(channel)s
) FROM moved m
"""
_NUMBERS = ("number", "epoch", "before", "last", "condensed", "needs")
_TEXTS = ("status", "title", "updated")
_TEXTS_OF_FIRST = ("spawned_by", "spawner", "parent")


class Append(NamedTuple):
    """The statement of a batch and its values. The statement returns one row, the channels of its
    followers; none if the fence refused it. `grouped` is True if it may be part of a `GROUP`."""

    query: LiteralString
    values: dict[str, Any]
    grouped: bool = False


def rows_of(events: Sequence[AnyEvent]) -> tuple[list[int], list[int], list[bytes]]:
    """Return the columns of new events: their seqs, checksums and JSON. Raises
    `UnreadableEvent`."""
    lines = list(ev.records(events))
    return [event.seq for event in events], [zlib.crc32(line) for line in lines], lines


def append(number: int, epoch: int, batch: Batch, channel: str) -> Append:
    """Return the statement that appends `batch`. Raises `UnreadableEvent`."""
    values: dict[str, Any] = {"number": number, "epoch": epoch, "channel": channel}
    events, summary = batch.events, batch.summary
    parts: list[LiteralString] = []
    if events:
        first, last = events[0], events[-1]
        seqs, crcs, lines = rows_of(events)
        values.update(
            before=first.seq - 1,
            last=last.seq,
            status=summary.status,
            title=escaped(summary.title),
            updated=summary.updated or last.timestamp,
            condensed=summary.condensed,
            needs=ev.needed_version(events),
            seqs=seqs,
            crcs=crcs,
            events=lines,
        )
        parts.append(_MOVED)
        if changes_tags(events):
            parts.append(_TAGGED)
            values["tags"] = [escaped(tag) for tag in summary.tags]
        if first.seq == 1:
            parts.append(_BEGUN)
            values.update(
                created=summary.created or first.timestamp,
                spawned_by=escaped(summary.spawned_by),
                spawner=escaped(summary.spawner),
                parent=escaped(summary.parent),
                parent_seq=summary.parent_seq,
            )
        parts.append(_FENCED)
        if len(lines) == 1:
            parts.append(_EVENT)
            values.update(crc=crcs[0], event=lines[0])
        else:
            parts.append(_EVENTS)
    else:
        parts.append(_STILL)
    if batch.done_commands:
        parts.append(_DONE)
        refusals = {key: msgspec.json.encode(one) for key, one in batch.refusals.items()}
        values["done"] = list(batch.done_commands)
        values["refusals"] = [refusals.get(command) for command in batch.done_commands]
    if batch.blobs:
        parts.append(_BLOBS)
        contents = {blob.id: blob.data for blob in batch.blobs}
        ids = sorted(contents)  # always in one order, so that two appends do not deadlock
        values["blob_ids"] = ids
        values["blobs"] = [contents[id] for id in ids]
        values["ref_seqs"] = [blob.seq for blob in batch.blobs]
        values["ref_ids"] = [blob.id for blob in batch.blobs]
    if batch.timers:
        parts.append(_TIMERS)
        dues = {escaped(row.timer): row.due for row in batch.timers}
        values["timers"], values["dues"] = list(dues), list(dues.values())
    parts.append(_RESULT)
    grouped = bool(events) and not batch.blobs and not batch.timers
    return Append(_join(tuple(parts)), values, grouped)


@cache
def _join(parts: tuple[LiteralString, ...]) -> LiteralString:
    """Return a statement of these parts, always the same object: its hash is then known."""
    return "".join(parts)


def group(appends: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the values of `GROUP` for appends with these values."""
    with_commands = [one for one in appends if "done" in one]
    lines = {name: [item for one in appends for item in one[name]] for name in ("seqs", "crcs")}
    return {
        **{name: integers([one[name] for one in appends]) for name in _NUMBERS},
        "parent_seq": integers([one.get("parent_seq", 0) for one in appends]),
        **{name: [one[name] for one in appends] for name in _TEXTS},
        **{name: [one.get(name, "") for one in appends] for name in _TEXTS_OF_FIRST},
        "created": [one.get("created", one["updated"]) for one in appends],
        "of": integers([one["number"] for one in appends for _ in one["seqs"]]),
        **{name: integers(column) for name, column in lines.items()},
        "events": [line for one in appends for line in one["events"]],
        "done_of": integers([one["number"] for one in with_commands for _ in one["done"]]),
        "done": integers([number for one in with_commands for number in one["done"]]),
        # No refusal is empty JSON, and an array of NULLs alone would have no type.
        "refusals": [refusal or b"" for one in with_commands for refusal in one["refusals"]],
        "channel": appends[0]["channel"],
    }


# --- reading ---

# One row per event, or a row without one: the seq before the first event that was asked for, and
# the last such seq.
READ = """
WITH found AS (
    SELECT number, last_seq, shared, coalesce(%(after)s::integer, condensed) AS first
    FROM conversations WHERE id = %(id)s
), wanted AS (
    SELECT number, shared, last_seq, first,
    least(last_seq, first + coalesce(%(limit)s::integer, last_seq)) AS until FROM found
), stretches AS (
    SELECT number AS source, shared AS after, last_seq AS last FROM wanted
    UNION ALL
    SELECT s.source, s.after, s.last FROM shares s JOIN wanted w ON s.fork = w.number
)
SELECT w.first, w.until, e.seq, e.crc, e.data FROM wanted w LEFT JOIN LATERAL (
    SELECT x.seq, x.crc, x.data FROM stretches s JOIN events x
    ON x.conversation = s.source AND x.seq > s.after AND x.seq <= s.last
    WHERE x.seq > w.first AND x.seq <= w.until
) e ON true ORDER BY e.seq
"""

# The last events of a conversation's own, for an append whose outcome is unknown.
LAST = """
SELECT e.seq, e.data FROM conversations c JOIN events e ON e.conversation = c.number
WHERE c.number = %s AND c.epoch = %s AND c.last_seq = %s AND e.seq >= %s ORDER BY e.seq
"""


def decode_rows(rows: Sequence[Sequence[Any]]) -> tuple[list[AnyEvent], int]:
    """Return the events of the rows of `READ`, and the seq of the first one that is missing or
    damaged, 0 if none is."""
    events: list[AnyEvent] = []
    if not rows:
        return events, 0
    expected, until = rows[0][0], rows[0][1]
    for _, _, seq, crc, data in rows:
        if seq is None:
            break
        expected += 1
        if seq != expected or zlib.crc32(data) != crc:
            return events, expected
        events.append(ev.decode(data, expected))
    return events, expected + 1 if expected < until else 0
