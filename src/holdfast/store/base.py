"""What a conversation asks of the place where its journal lives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

import msgspec

from holdfast.content import Data
from holdfast.errors import StoreError
from holdfast.events import AnyEvent
from holdfast.store.budgets import Budget, Reservation, Settlement, Shortage

if TYPE_CHECKING:
    from holdfast.commands import Command, Unreadable


class Lease(msgspec.Struct, frozen=True):
    """The right to append to one conversation until a lease with a higher `epoch` is given out.

    `left` is what `note` said last under a lease whose owner died without giving it back; `spawned_by` is the conversation's
    (`Summary.spawned_by`), `budgets` what it spends from: its own tree's, then those of what it came of.
    """

    conversation_id: str
    epoch: int
    left: tuple[str, ...] = ()
    spawned_by: str = ""
    budgets: tuple[Budget, ...] = ()


class Summary(Data, frozen=True):
    """What a listing shows of a conversation without reading its journal. `parent` is what it was forked from, at event `parent_seq`;
    `condensed` the `so_far.seq` of its last condensation, from where `Store.tail` reads. `spawned_by` is the idempotency key of the call that
    spawned it (`{conversation_id}:{call_id}`)."""

    id: str
    status: str = "idle"
    title: str = ""
    last_seq: int = 0
    created: datetime | None = None
    updated: datetime | None = None
    parent: str = ""
    parent_seq: int = 0
    condensed: int = 0
    spawned_by: str = ""

    @property
    def standing(self) -> str:
        """The status, as a listing shows it."""
        return self.status

    @property
    def spawner(self) -> str:
        """The conversation whose call spawned it, "" for none."""
        return self.spawned_by.rpartition(":")[0]


class Posted(msgspec.Struct, frozen=True):
    """A command in a conversation's inbox. `number` says where it stands, `key` what it was deduplicated by."""

    number: int
    key: str
    command: Command | Unreadable


class Blob(msgspec.Struct, frozen=True):
    """Bytes that event `seq` refers to by their `id`, kept beside the journal, once however often they come."""

    seq: int
    data: bytes

    @property
    def id(self) -> str:
        """`blob_id(data)`."""
        return blob_id(self.data)


BLOBS = "holdfast/blobs"  # the key of a tool result's meta under which its blobs are named: a list of {"id": ..., ...}


def blob_id(data: bytes) -> str:
    """The name of bytes: `sha256:` and their SHA-256 in hex."""
    from hashlib import sha256  # 3 ms of import that few need

    return f"sha256:{sha256(data).hexdigest()}"


class Store(Protocol):
    """Journals by conversation id. Thread-safe; every method may be called from any thread.

    `append` is fenced: it writes all of its events or none, and only under the newest lease.
    """

    # --- who may write ---

    def acquire(self, conversation_id: str, notify: Callable[[], None] | None = None) -> Lease:
        """Take the lease, with a new epoch; a conversation that is not there begins to exist. Raises `LeaseHeld` naming the holder.

        Until it is given back, `notify` is called (on any thread, holding no lock of the store's) when something came into the
        inbox, and when the lease was lost. It may be called without a cause, and must not raise.
        """
        ...

    def renew(self, lease: Lease) -> None:
        """Say that the owner lives, where that is not plain to see. Raises `Fenced` if the lease was taken over."""
        ...

    def release(self, lease: Lease) -> None:
        """Give the lease back; nothing can be written under it any more. Does nothing if it was taken over or the store is closed."""
        ...

    def note(self, lease: Lease, notes: Sequence[str]) -> None:
        """Leave word for whoever takes over if this owner dies: it is the next lease's `left`. In place of what was noted before, also
        by a dead owner; `release` takes it back. Raises `Fenced`."""
        ...

    # --- the journal ---

    def append(
        self,
        lease: Lease,
        events: Sequence[AnyEvent],
        summary: Summary,
        *,
        taken: Sequence[int] = (),
        blobs: Sequence[Blob] = (),
        settled: Sequence[Settlement] = (),
        reserved: Reservation | None = None,
    ) -> bool:
        """Write events, dense after the last, and the summary, in one transaction; with it, mark the commands numbered `taken` as done,
        keep `blobs`, each of one of these events, settle as `settle` does, and then hold what is to be `reserved`, as `reserve` does: True if that
        is held, False where there is no room for it. Without events the summary is ignored.

        What is kept of each event is `events.records(events)`, which refuses what could not be read back.

        Raises `UnreadableEvent`, `Fenced` (the lease is not the newest) or `StoreError`, and then wrote nothing. Where a disk refused so that it is not known
        whether the events were written, the `StoreError` says so in these words.
        """
        ...

    def read(self, conversation_id: str, after_seq: int = 0, limit: int | None = None) -> list[AnyEvent]:
        """The events after `after_seq`, in order, at most `limit` of them; none for a conversation that is not there."""
        ...

    def tail(self, conversation_id: str) -> list[AnyEvent]:
        """The events after the summary's `condensed`: those that are needed to go on. May return more of them, also all."""
        ...

    def follow(self, conversation_id: str, after_seq: int = 0, timeout: float | None = None) -> Iterator[AnyEvent]:
        """The events after `after_seq` and those that follow, whoever appends them, as they come. Ends when none has come for `timeout`
        seconds (None: waits for ever), or when the store is closed."""
        ...

    def blob(self, id: str) -> bytes:
        """The bytes of that name. Raises `StoreError` if they are not there."""
        ...

    # --- what trees of conversations may spend ---

    def bound(self, lease: Lease, budget: Budget | None) -> None:
        """Bound what the leased conversation and all that came of it may spend, from now on; None: no more. What is spent stays. Raises `Fenced`."""
        ...

    def reserve(self, lease: Lease, wanted: Reservation) -> Shortage | None:
        """Hold an amount in all of the budgets of `wanted.roots` that there are, atomically, or in none and say why. What owners hold that died,
        or have lost their lease, is spent by then. Raises `Fenced`."""
        ...

    def settle(self, settled: Sequence[Settlement]) -> None:
        """Put what was spent in place of what was reserved. Needs no lease: what is counted as spent by now stays so."""
        ...

    # --- the inbox ---

    def post(self, conversation_id: str, command: Command, key: str | None = None) -> bool:
        """Leave a command for whoever holds the lease, now or next; needs no lease. Posted again under the same `key` it is dropped, also
        when it was done meanwhile; False says so. Raises `ConversationNotFound`."""
        ...

    def commands(self, lease: Lease) -> list[Posted]:
        """Return what was posted and is not done yet, in order. A command that cannot be decoded is an `Unreadable`, one of a newer version
        is left out. Raise `Fenced`."""
        ...

    # --- conversations ---

    def fork(self, conversation_id: str, summary: Summary, events: Sequence[AnyEvent] = ()) -> None:
        """Begin the conversation `summary.id`, in one transaction, with the first events of another, sharing them: no event is copied; and
        with `events` behind these, up to `summary.last_seq`.

        Needs no lease of either. Raises `ConversationNotFound`, and `StoreError` if the new id exists or the other has fewer events.
        """
        ...

    def list(
        self, ids: Sequence[str] | None = None, *, status: str | None = None, waiting: bool = False, spawned_by: str | None = None
    ) -> list[Summary]:
        """All conversations that have events, the last written first; of one status alone; of `ids` alone, in any order; that calls of the
        conversation `spawned_by` spawned. `waiting`: those alone, with or without events, in whose inbox is something that is not done yet."""
        ...

    def delete(self, conversation_id: str) -> None:
        """Remove a conversation and those that its calls spawned, and theirs, and free what no fork of them shares: whoever gets its id has none of
        them. One of these that someone holds just then stays, as nobody's child. Raises `ConversationNotFound`, or `LeaseHeld` while someone
        drives it."""
        ...

    def close(self) -> None:
        """Let go of files and locks. Leases that are still held end with it; every other method raises `StoreError` from then on."""
        ...


def check_dense(events: Sequence[AnyEvent]) -> None:
    """Raises `StoreError` if one of the events does not follow the one before it."""
    for expected, event in enumerate(events, events[0].seq if events else 0):
        if event.seq != expected:
            raise StoreError(f"Event {event.seq} does not follow event {expected - 1}. Nothing was written.")
