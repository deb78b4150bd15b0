"""Timers that a store fires itself, in the journals of conversations with a free lease.

See `Store.ring`. The store finds the conversations and guards the append; `FireTimers` makes the
appended events from the journal.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from msgspec.structs import replace

from holdfast import events as ev
from holdfast.events import AnyEvent
from holdfast.store.base import (
    MAX_FIRING_EVENTS,
    MAX_TAIL_TO_FIRE,
    Batch,
    DueTimer,
    FireTimers,
    RestingConversation,
    TimerRow,
)


class DueRow(NamedTuple):
    """A due timer and the row of its conversation. `resting` is True if the conversation's lease is
    free, its inbox is empty, and its tail shares no events."""

    timer: DueTimer
    number: int
    resting: bool
    epoch: int
    last_seq: int
    condensed: int

    @property
    def fires(self) -> bool:
        """True if the store may fire this timer."""
        return self.resting and self.last_seq - self.condensed <= MAX_TAIL_TO_FIRE


def within_limits(rows: Sequence[DueRow]) -> Sequence[DueRow]:
    """Return the first rows, so many that one transaction may read the tails of all their
    conversations."""
    event_count = 0
    numbers: set[int] = set()
    for at, row in enumerate(rows):
        if row.fires and row.number not in numbers:
            numbers.add(row.number)
            event_count += row.last_seq - row.condensed
            if event_count > MAX_FIRING_EVENTS and at:
                return rows[:at]
    return rows


def firing_batches(
    rows: Sequence[DueRow],
    tails: Mapping[int, Sequence[tuple[int, int, Any]]],
    now: datetime,
    fire: FireTimers,
) -> dict[int, Batch]:
    """Return the batches that `fire` made, by the conversations' numbers. The batches remove the
    rows that are due and set no further ones. The seqs, checksums and JSON of events are in
    `tails`."""
    due: dict[int, list[DueRow]] = {}
    for row in rows:
        if row.fires:
            due.setdefault(row.number, []).append(row)
    batches: dict[int, Batch] = {}
    for number, (first, *more) in due.items():
        events = _decode_tail(tails.get(number, ()), first)
        if events is None:
            continue  # damaged: its next opener reports that
        timers = [first.timer, *(one.timer for one in more)]
        id = first.timer.conversation_id
        batch = fire(RestingConversation(id, first.epoch, first.last_seq, events, timers, now))
        if batch is not None and batch.events:
            rows_due = [TimerRow(one.timer) for one in timers]
            batches[number] = replace(batch, timers=[*rows_due, *batch.timers])
    return batches


def _decode_tail(rows: Sequence[tuple[int, int, Any]], row: DueRow) -> list[AnyEvent] | None:
    """Return the events of a tail, None if one is missing or damaged."""
    events: list[AnyEvent] = []
    for expected, (seq, crc, data) in enumerate(rows, row.condensed + 1):
        if seq != expected or type(data) is not bytes or zlib.crc32(data) != crc:
            return None
        events.append(ev.decode(data, expected))
    return events if row.condensed + len(events) == row.last_seq else None
