"""Journals that last as long as their process."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

from holdfast.errors import ConversationNotFound, Fenced, LeaseHeld, StoreError
from holdfast.events import AnyEvent
from holdfast.store.base import Lease, Summary, check_dense


class _Record:
    __slots__ = ("epoch", "events", "held", "summary")

    def __init__(self, summary: Summary) -> None:
        self.events: list[AnyEvent] = []
        self.epoch = 0
        self.held = False
        self.summary = summary


class MemoryStore:
    """A `Store` in this process's memory. Events are frozen, so they are kept as they are."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records: dict[str, _Record] = {}
        self._epoch = 0  # one count for all, so that no lease fits a conversation that was deleted and made again
        self._closed = False

    def acquire(self, conversation_id: str) -> Lease:
        """See `Store.acquire`."""
        with self._lock:
            self._check_open()
            record = self._records.get(conversation_id)
            if record is None:
                record = self._records[conversation_id] = _Record(Summary(conversation_id))
            elif record.held:
                raise LeaseHeld(conversation_id, f"another Conversation in this process ({os.getpid()})")
            self._epoch += 1
            record.held = True
            record.epoch = self._epoch
            return Lease(conversation_id, record.epoch)

    def release(self, lease: Lease) -> None:
        """See `Store.release`."""
        with self._lock:
            record = self._records.get(lease.conversation_id)
            if record is not None and record.epoch == lease.epoch:
                record.held = False

    def append(self, lease: Lease, events: Sequence[AnyEvent], summary: Summary) -> None:
        """See `Store.append`."""
        check_dense(events)
        with self._lock:
            self._check_open()
            record = self._records.get(lease.conversation_id)
            if record is None or record.epoch != lease.epoch or not record.held:
                raise Fenced(f"Conversation {lease.conversation_id!r} was taken over; epoch {lease.epoch} may not write any more.")
            if not events:
                return
            if events[0].seq != len(record.events) + 1:
                raise StoreError(
                    f"Conversation {lease.conversation_id!r}: event {events[0].seq} does not follow event {len(record.events)}. "
                    "Nothing was written."
                )
            record.events.extend(events)
            record.summary = summary

    def read(self, conversation_id: str, after_seq: int = 0) -> list[AnyEvent]:
        """See `Store.read`."""
        with self._lock:
            self._check_open()
            record = self._records.get(conversation_id)
            return [] if record is None else record.events[max(after_seq, 0) :]

    def list(self) -> list[Summary]:
        """See `Store.list`."""
        with self._lock:
            self._check_open()
            found = [record.summary for record in self._records.values() if record.events]
        found.reverse()  # of two written at the same time, the newer one first
        return sorted(found, key=lambda summary: str(summary.updated), reverse=True)

    def delete(self, conversation_id: str) -> None:
        """See `Store.delete`."""
        with self._lock:
            self._check_open()
            record = self._records.get(conversation_id)
            if record is None:
                raise ConversationNotFound(f"No conversation {conversation_id!r} in this store.")
            if record.held:
                raise LeaseHeld(conversation_id, f"another Conversation in this process ({os.getpid()})")
            del self._records[conversation_id]

    def close(self) -> None:
        """See `Store.close`. What was stored is forgotten. Idempotent."""
        with self._lock:
            self._closed = True
            self._records.clear()

    def __enter__(self) -> MemoryStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("This MemoryStore is closed, and what was in it is gone.")
