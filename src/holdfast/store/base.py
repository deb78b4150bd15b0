"""The interface of a journal store, and the records that cross it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

import msgspec

from holdfast.content import Data
from holdfast.error_forms import ErrorForm
from holdfast.errors import (
    ConfigurationError,
    Conflict,
    ConversationNotFound,
    Fenced,
    StoreError,
)
from holdfast.events import AnyEvent, ConversationLabelled
from holdfast.store.budgets import Budget, Reservation, Settlement, Shortage
from holdfast.timers import occurrence_key

if TYPE_CHECKING:
    from holdfast.commands import Command, UnreadableCommand


class Lease(msgspec.Struct, frozen=True):
    """The right to append to one conversation, valid until a lease with a higher `epoch` is issued.

    `orphan_notes` holds the last notes of an owner that died without releasing its lease (see
    `Store.note`), and `orphaned` is True if there was one. `spawned_by` equals the conversation's
    `Summary.spawned_by`. `budgets` lists the budgets that the conversation spends from: its own
    first, then those of its ancestors. `last_seq` is the seq of the journal's last event when the
    lease was taken, None if the store has not looked.
    """

    conversation_id: str
    epoch: int
    orphan_notes: tuple[str, ...] = ()
    spawned_by: str = ""
    budgets: tuple[Budget, ...] = ()
    orphaned: bool = False
    last_seq: int | None = None


class Summary(Data, frozen=True):
    """The facts that a listing shows of a conversation, available without reading its journal.

    `parent` and `parent_seq` name the conversation and the event that it was forked from.
    `condensed` is the `so_far.seq` of the last condensation; `Store.tail` reads from there.
    `spawned_by` is the idempotency key of the call that spawned the conversation
    (`{conversation_id}:{call_id}`). `tags` are in the order in which they were added. `driven` is
    True if a living owner holds the lease; only a store's listing sets it. A conversation with the
    status "running" that is not driven, such as a fork of a running one, continues with its next
    run.
    """

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
    tags: tuple[str, ...] = ()
    driven: bool = False

    @property
    def listed_status(self) -> str:
        """The status that a listing shows. The parent of a spawned conversation drives it."""
        undriven = self.status == "running" and not self.driven and not self.spawned_by
        return "running (not driven)" if undriven else self.status

    @property
    def spawner(self) -> str:
        """The id of the conversation whose call spawned this one, "" if none did."""
        return self.spawned_by.rpartition(":")[0]


class Posted(msgspec.Struct, frozen=True):
    """A command in an inbox: its position there (`number`) and its deduplication `key`."""

    number: int
    key: str
    command: Command | UnreadableCommand


class Blob(msgspec.Struct, frozen=True):
    """Bytes that event `seq` refers to by `id`. The store keeps them beside the journal, each
    content once."""

    seq: int
    data: bytes

    @property
    def id(self) -> str:
        """The content address of the data, equal to `blob_id(data)`."""
        return blob_id(self.data)


class TimerRow(msgspec.Struct, frozen=True):
    """A row of the index of timers: the time at which `timer` is due next; None removes the row."""

    timer: str
    due: datetime | None = None


class DueTimer(msgspec.Struct, frozen=True):
    """A row of the index of timers, with its conversation."""

    conversation_id: str
    timer: str
    due: datetime

    @property
    def key(self) -> str:
        """The key of this occurrence: of its command in the inbox, and the id of its message."""
        return occurrence_key(self.timer, self.due)


class RestingConversation(msgspec.Struct, frozen=True):
    """A conversation with due timers, a free lease and an empty inbox.

    `events` are those of `Store.tail`, up to `last_seq`. `due` are its timers that are rung, the
    earliest first, and `now` is the time up to which they are due.
    """

    id: str
    epoch: int
    last_seq: int
    events: Sequence[AnyEvent]
    due: Sequence[DueTimer]
    now: datetime


class Batch(msgspec.Struct, frozen=True):
    """The contents of one transaction of `Store.append`.

    `summary` is the listing entry after `events`; without events it is ignored. `done_commands` are
    the numbers of inbox commands to mark as done. `blobs` are bytes that these events refer to.
    `settlements` are applied as `Store.settle` does; then `reservation` is held as by `reserve`.
    `refusals` are the errors of those done commands that were refused, by their numbers. `timers`
    are the rows of the index of timers to set or to remove; of two for one timer the last counts.
    """

    events: Sequence[AnyEvent]
    summary: Summary
    done_commands: Sequence[int] = ()
    blobs: Sequence[Blob] = ()
    settlements: Sequence[Settlement] = ()
    reservation: Reservation | None = None
    refusals: Mapping[int, ErrorForm] = {}
    timers: Sequence[TimerRow] = ()


FireTimers = Callable[[RestingConversation], Batch | None]
"""Returns the events that fire timers and the rows of their next occurrences, or None to leave that
to the next holder of the lease. The function has no side effect, and may be asked twice."""

# Events read by one transaction of `Store.ring` that fires; a longer journal is left to its holder.
MAX_FIRING_EVENTS = 5000
MAX_TAIL_TO_FIRE = 1000

# The key in a tool result's meta that lists its blobs: a list of {"id": ..., ...}
BLOBS = "holdfast/blobs"


def changes_tags(events: Sequence[AnyEvent]) -> bool:
    """Return True if the tags of the listing entry may be others after these events."""
    return ConversationLabelled in map(type, events)


def blob_id(data: bytes) -> str:
    """Return the content address of `data`: `sha256:` followed by its SHA-256 in hex."""
    from hashlib import sha256  # importing it takes 3 ms, and few callers need it

    return f"sha256:{sha256(data).hexdigest()}"


class WorkBell(Protocol):
    """Wakes the drivers of a store's conversations.

    The bell is a hint: it may ring twice, late or never. `Store.unattended` is the authority.
    """

    def wake(self, conversation_id: str, transaction: object) -> None:
        """Note that a conversation has new work, within the transaction that adds the work.

        `transaction` is the store's database cursor, or None for a store in memory. An error
        aborts the transaction.
        """
        ...

    def wake_all(self, conversation_ids: Sequence[str], transaction: object) -> None:
        """Do `wake` for many conversations."""
        for id in conversation_ids:
            self.wake(id, transaction)


class Store(Protocol):
    """The interface of a store: journals by conversation id.

    A store is thread-safe; any thread may call any method. `append` is fenced: it writes all of
    its events or none, and only under the newest lease.
    """

    # --- leases ---

    def acquire(self, conversation_id: str, notify: Callable[[], None] | None = None) -> Lease:
        """Take the conversation's lease with a new epoch. Create the conversation if it does not
        exist.

        The store calls `notify` when a command arrives in the inbox and when the lease is lost,
        until the lease is released. The call may come from any thread, holds no lock of the store
        and may be spurious. `notify` must not raise.

        Raises `LeaseHeld`, which names the holder.
        """
        ...

    def renew(self, lease: Lease) -> None:
        """Prove that the owner is alive, where the store cannot see that by itself. Raises
        `Fenced` if another owner took the lease."""
        ...

    def confirm(self, lease: Lease) -> None:
        """Raise `Fenced` if the lease may have ended, as far as the store knows without input or
        output. A conversation asks immediately before it begins an effect, which a later fence
        cannot undo."""
        ...

    def release(self, lease: Lease) -> None:
        """Give the lease back; no later write under it succeeds. Does nothing if another owner
        took the lease or the store is closed."""
        ...

    def note(self, lease: Lease, notes: Sequence[str]) -> None:
        """Leave notes for the next owner, in case this one dies: `Lease.orphan_notes`.

        The notes replace all earlier ones, those of a dead owner included. `release` removes
        them. Raises `Fenced`.
        """
        ...

    # --- the journal ---

    def append(self, lease: Lease, batch: Batch) -> bool:
        """Write a batch in one transaction. Its events must follow the last one without a gap.

        The store keeps `events.records(events)`, which refuses any event that could not be read
        back. A failed append has written nothing, with one exception: a disk error can leave the
        outcome unknown, and the `StoreError` then says so.

        Returns True if the batch's reservation is now held, False if a budget has no room for it or
        the batch has none. Raises `UnreadableEvent`, `Fenced` (the lease is not the newest) or
        `StoreError`.
        """
        ...

    def read(
        self, conversation_id: str, after_seq: int = 0, limit: int | None = None
    ) -> list[AnyEvent]:
        """Return the events after `after_seq` in order, at most `limit` of them. An unknown
        conversation has none."""
        ...

    def tail(self, conversation_id: str) -> list[AnyEvent]:
        """Return the events after the summary's `condensed`, which a run needs to go on. A store
        may return earlier ones too."""
        ...

    def follow(
        self, conversation_id: str, after_seq: int = 0, timeout: float | None = None
    ) -> Iterator[AnyEvent]:
        """Yield the events after `after_seq`, then new ones as any process appends them.

        Ends when no event has come for `timeout` seconds (None waits forever), or when the store
        is closed.
        """
        ...

    def blob(self, id: str) -> bytes:
        """Return the bytes of the blob `id`. Raises `StoreError` if they are missing."""
        ...

    # --- budgets ---

    def bound(self, lease: Lease, budget: Budget | None) -> None:
        """Limit the spending of the leased conversation and all its descendants from now on;
        None removes the limit. Amounts already spent stay counted. Raises `Fenced`."""
        ...

    def reserve(self, lease: Lease, reservation: Reservation) -> Shortage | None:
        """Hold an amount in every existing budget of `reservation.roots`, atomically, or in none
        and return the shortage.

        Reservations of owners that died or lost their lease count as spent from then on. Raises
        `Fenced`.
        """
        ...

    def settle(self, settled: Sequence[Settlement]) -> None:
        """Replace reservations by the amounts that were spent. Needs no lease. A reservation
        that already counts as spent stays so."""
        ...

    # --- the inbox ---

    def post(self, conversation_id: str, command: Command, key: str | None = None) -> bool:
        """Leave a command for the present or next holder of the lease. The caller needs no lease.

        A second command with the same `key` is dropped, also when the first one is done; False
        reports that. Raises `ConversationNotFound`, and `ConfigurationError` for a key that is no
        text or cannot be encoded as UTF-8.
        """
        ...

    def refusal(self, conversation_id: str, key: str) -> ErrorForm | None:
        """Return the error of the command that was posted under this key and refused; None for
        any other one. Raises `ConversationNotFound`."""
        ...

    def undone(self, conversation_id: str, key: str) -> bool:
        """Return True while the command that was posted under this key is not done. Raises
        `ConversationNotFound`."""
        ...

    def commands(self, lease: Lease) -> list[Posted]:
        """Return the commands that are not done yet, in order. A command that cannot be decoded is
        an `UnreadableCommand`. A command of a newer version is left out. Raises `Fenced`."""
        ...

    def unattended(self, limit: int, *, parked: bool = False) -> Sequence[str]:
        """Return at most `limit` conversations that have work and no living owner.

        Their owner died without releasing the lease (these come first), or they have an undone
        command in the inbox. If there are more, the next call continues after them. A spawned
        conversation counts for its inbox alone: its parent drives it.

        Args:
            limit: The largest number of ids.
            parked: Also those with the status "running" whose owner released the lease.
        """
        ...

    # --- timers ---

    def due(self, before: datetime, limit: int = 1000) -> list[DueTimer]:
        """Return the timers of the index that are due at `before` or earlier, at most `limit`, the
        earliest first. Timers of one time have any lasting order.

        Rows are those of `Batch.timers`: exact to the microsecond, one for each timer of a
        conversation. A timer that was rung has no row until its conversation sets one again. `fork`
        copies no rows; `delete` removes those of the conversation and its descendants.
        """
        ...

    def next_due(self) -> datetime | None:
        """Return the earliest due time of the index, None if the index is empty."""
        ...

    def ring(
        self, before: datetime, limit: int = 1000, fire: FireTimers | None = None
    ) -> list[DueTimer]:
        """Ring the timers of `due(before, limit)`, and return them. The caller needs no lease.

        One transaction removes their rows, and posts a `commands.RingTimer` for each under
        `DueTimer.key`, as `post` does. A known key is not posted again. Of several callers at once,
        each timer is returned to one. Holders of leases are notified, and the store's bell is rung.

        With `fire`, the same transaction takes a free lease, appends the batch that `fire` returns
        and gives the lease back, instead of a post. Such a call may ring fewer timers than are
        due: call again until it returns none. A store may never ask `fire`.

        The store may take an earlier time for `before`, where it has a clock that all of its
        processes share. Raises `StoreError`.
        """
        ...

    # --- conversations ---

    def fork(self, conversation_id: str, summary: Summary, events: Sequence[AnyEvent] = ()) -> None:
        """Create the conversation `summary.id` from the first events of another one, in one
        transaction.

        The fork shares those events; none is copied. `events` follow them, up to
        `summary.last_seq`. The caller needs no lease of either conversation.

        Raises `ConversationNotFound`, `Conflict` if the new id exists, and `StoreError` if the
        other conversation has fewer events.
        """
        ...

    def list(
        self,
        ids: Sequence[str] | None = None,
        *,
        status: str | None = None,
        waiting: bool = False,
        spawned_by: str | None = None,
        forked_from: Sequence[str] | None = None,
        tags: Sequence[str] = (),
    ) -> list[Summary]:
        """Return the conversations that have events, the last written first. The filters combine.

        Args:
            ids: Only these ids; their order does not matter.
            status: Only conversations with this status.
            waiting: Only conversations with an undone command in the inbox, with or without events.
            spawned_by: Only conversations spawned by calls of this conversation.
            forked_from: Only forks of these conversations. No index helps: give all ids at once.
            tags: Only conversations with all of these tags.
        """
        ...

    def delete(self, conversation_id: str) -> None:
        """Remove a conversation and its descendants, and free the events that no fork shares.

        A later conversation with the same id has none of these events. A descendant that is in
        use stays, without a parent. Raises `ConversationNotFound`, or `LeaseHeld` if the
        conversation is in use.
        """
        ...

    def close(self) -> None:
        """Release files and locks. Leases that are still held end; every other method raises
        `StoreError` afterwards."""
        ...


# --- ids and keys, the same in all stores ---


def check_id(conversation_id: object) -> None:
    """Raise `ConfigurationError` unless a conversation may have this id."""
    if not isinstance(conversation_id, str) or not is_utf8(conversation_id):
        raise ConfigurationError(
            f"A conversation's id takes text that UTF-8 can hold, not {conversation_id!r:.80}."
        )


def check_key(key: object) -> None:
    """Raise `ConfigurationError` unless a command may be posted under this key."""
    if key is not None and not (isinstance(key, str) and is_utf8(key)):
        raise ConfigurationError(
            f"A command's key takes None or text that UTF-8 can hold, not {key!r:.80}."
        )


def is_utf8(text: str) -> bool:
    """Return True if a text has no lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# --- the errors of both stores ---


def fenced_error(lease: Lease) -> Fenced:
    """Return the error for a write under a lease that is not the newest."""
    return Fenced(
        f"Conversation {lease.conversation_id!r} was taken over; epoch {lease.epoch} may not write"
        " any more."
    )


def not_found(conversation_id: str, place: str) -> ConversationNotFound:
    """Return the error for an unknown conversation. `place` names the store."""
    return ConversationNotFound(
        f"No conversation {conversation_id!r} in {place}.", "conversation", conversation_id
    )


def check_fork(conversation_id: str, last: int, seq: int, fork: str, exists: bool) -> None:
    """Raise `Conflict` if the id `fork` exists, `StoreError` if the first `seq` events of a
    conversation that has `last` cannot be shared."""
    if exists:
        raise Conflict(f"Conversation {fork!r} exists already; give the fork another id.")
    if not 0 <= seq <= last:
        raise StoreError(f"Conversation {conversation_id!r} has {last} events, not {seq}.")


def check_dense(events: Sequence[AnyEvent]) -> None:
    """Raise `StoreError` if an event does not directly follow the one before it."""
    for expected, event in enumerate(events, events[0].seq if events else 0):
        if event.seq != expected:
            raise StoreError(
                f"Event {event.seq} does not follow event {expected - 1}. Nothing was written."
            )
