"""What a conversation asks of the place where its journal lives."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

import msgspec

from holdfast.content import Data
from holdfast.errors import StoreError
from holdfast.events import AnyEvent


class Lease(msgspec.Struct, frozen=True):
    """The right to append to one conversation until a lease with a higher `epoch` is given out."""

    conversation_id: str
    epoch: int


class Summary(Data, frozen=True):
    """What a listing shows of a conversation without reading its journal."""

    id: str
    status: str = "idle"
    title: str = ""
    last_seq: int = 0
    created: datetime | None = None
    updated: datetime | None = None


class Store(Protocol):
    """Journals by conversation id. Thread-safe; every method may be called from any thread.

    `append` is fenced: it writes all of its events or none, and only under the newest lease.
    """

    def acquire(self, conversation_id: str) -> Lease:
        """Take the lease, with a new epoch; a conversation that is not there begins to exist. Raises `LeaseHeld` naming the holder."""
        ...

    def release(self, lease: Lease) -> None:
        """Give the lease back; nothing can be written under it any more. Does nothing if it was taken over or the store is closed."""
        ...

    def append(self, lease: Lease, events: Sequence[AnyEvent], summary: Summary) -> None:
        """Write events, dense after the last, and the summary, in one transaction; nothing if there are none.

        Raises `Fenced` (the lease is not the newest) or `StoreError`, and then wrote nothing.
        """
        ...

    def read(self, conversation_id: str, after_seq: int = 0) -> list[AnyEvent]:
        """The events after `after_seq`, in order; none for a conversation that is not there."""
        ...

    def list(self) -> list[Summary]:
        """All conversations, the last written first."""
        ...

    def delete(self, conversation_id: str) -> None:
        """Remove a conversation. Raises `ConversationNotFound`, or `LeaseHeld` while someone drives it."""
        ...

    def close(self) -> None:
        """Let go of files and locks. Leases that are still held end with it; every other method raises `StoreError` from then on."""
        ...


def check_dense(events: Sequence[AnyEvent]) -> None:
    """Raises `StoreError` if one of the events does not follow the one before it."""
    for expected, event in enumerate(events, events[0].seq if events else 0):
        if event.seq != expected:
            raise StoreError(f"Event {event.seq} does not follow event {expected - 1}. Nothing was written.")
