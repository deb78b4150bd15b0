"""The index of timers, written anew from the journals."""

from __future__ import annotations

from holdfast.errors import LeaseHeld
from holdfast.store.base import Batch, Store, Summary, TimerRow
from holdfast.timers import timers_of


def rebuild(store: Store) -> int:
    """Write the rows of all timers anew from the journals, and return their number.

    A conversation that is open elsewhere is left to its owner, whose timers fire without the index
    until then. Raises `StoreError`.
    """
    count = 0
    for summary in store.list():
        timers = timers_of(store.read(summary.id))
        if not timers:
            continue
        try:
            count += _write(store, summary)
        except LeaseHeld:
            continue
    return count


def _write(store: Store, summary: Summary) -> int:
    lease = store.acquire(summary.id)
    try:
        timers = timers_of(store.read(summary.id))  # again: it may have been open
        rows = [TimerRow(one.id, one.due) for one in timers.values()]
        store.append(lease, Batch((), summary, timers=rows))
        return len(rows)
    finally:
        store.release(lease)
