"""What chats need of a host beyond what all clients do: one turn at a time, other instructions,
forks whose calls are answered, room, and an end with their client's."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from holdfast import events as ev
from holdfast.conversation import ConversationStatus
from holdfast.conversation.conversation import random_id
from holdfast.conversation.journal import Journal, utc_now
from holdfast.errors import ConversationNotFound, HoldfastError, LeaseHeld, TooMany
from holdfast.server.agents import Agents, declared, encode
from holdfast.server.chat_records import ChatRecords
from holdfast.server.records import HOSTED, IDLE, RUN, Records
from holdfast.server.rooms import Rooms
from holdfast.store import Blob, Store
from holdfast.store.transfer import blobs_of

if TYPE_CHECKING:
    from holdfast.server.shapes import ToolForm

_log = logging.getLogger("holdfast")

T = TypeVar("T")

_REMOVED = 100  # chats that are removed for one new one, at most
_LOOKED = 200  # of the oldest, among which they are


class _Held:
    __slots__ = ("lock", "users")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0


class ChatDesk:
    """Over the parts of one host. Thread-safe; blocking."""

    def __init__(
        self,
        store: Store,
        records: Records,
        agents: Agents,
        rooms: Rooms,
        delete: Callable[[str, str], None],
    ) -> None:
        self.rows = ChatRecords(records)
        self._store = store
        self._records = records
        self._agents = agents
        self._rooms = rooms
        self._delete = delete
        self._lock = threading.Lock()
        self._held: dict[tuple[str, str], _Held] = {}
        self._waiting: dict[tuple[str, str], int] = {}

    # --- who is at it ---

    @contextmanager
    def turn(self, tenant: str, id: str) -> Generator[None]:
        """Nobody else looks whether a conversation goes on from here, nor has it go on, within the
        block. Nested only for one that nobody knows yet."""
        held = self._hold(tenant, id)
        try:
            with held.lock:
                yield
        finally:
            self._let_go(tenant, id, held)

    def _hold(self, tenant: str, id: str) -> _Held:
        with self._lock:
            held = self._held.setdefault((tenant, id), _Held())
            held.users += 1
            return held

    def _let_go(self, tenant: str, id: str, held: _Held) -> None:
        with self._lock:
            held.users -= 1
            if not held.users:
                del self._held[tenant, id]

    def enter(self, tenant: str, id: str) -> None:
        """One client more waits for an answer."""
        with self._lock:
            self._waiting[tenant, id] = self._waiting.get((tenant, id), 0) + 1

    def leave(self, tenant: str, id: str) -> int:
        """One less; how many still wait."""
        with self._lock:
            left = self._waiting.pop((tenant, id), 1) - 1
            if left > 0:
                self._waiting[tenant, id] = left
            return left

    def waiting(self, tenant: str, id: str) -> int:
        """How many wait for an answer."""
        with self._lock:
            return self._waiting.get((tenant, id), 0)

    # --- what they are ---

    def refit(
        self,
        tenant: str,
        id: str,
        form: dict[str, Any],
        tools: Sequence[ToolForm],
        modules: Mapping[str, str],
        setting: bytes,
    ) -> None:
        """Have a conversation that rests go on with other instructions and tools. Its secrets
        stay."""
        record = self._records.find(tenant, id)
        kept = self._agents.kept(record)
        options = msgspec.structs.replace(record.options, modules=dict(modules))
        wanted = self._agents.wanted(tenant, form, kept.secrets, tools, options)
        built = self._agents.build(wanted, record.workspace)
        self._records.retool(record, encode(wanted.form), encode(declared(wanted, built)), options)
        self._rooms.park(record.store_id, force=True)  # it is opened anew with them
        self.rows.made(tenant, id, setting)

    def append(self, tenant: str, id: str, events: Sequence[ev.AnyEvent]) -> None:
        """Go on with a journal that nobody has open, by events of another one. The last one is a
        `Status`."""
        record = self._records.find(tenant, id)
        blobs = [
            Blob(event.seq, self._store.blob(name)) for event in events for name in blobs_of(event)
        ]
        status = events[-1]
        assert isinstance(status, ev.Status)
        lease = self._store.acquire(record.store_id)
        try:
            (summary,) = self._store.list([record.store_id])
            found = msgspec.structs.replace(
                summary, status=status.status, last_seq=status.seq, updated=status.timestamp
            )
            self._store.append(lease, events, found, blobs=blobs)
        finally:
            self._store.release(lease)

    # --- how many there are ---

    def with_room(self, tenant: str, make: Callable[[], T]) -> T:
        """`make`, for which the oldest chats at rest are removed if the tenant has as many
        conversations, or workspaces, as this server allows."""
        for _ in range(_REMOVED):
            try:
                return make()
            except TooMany as error:
                if error.bound not in ("conversations", "workspaces") or not self._remove_oldest(
                    tenant
                ):
                    raise
        return make()

    def _remove_oldest(self, tenant: str) -> bool:
        for id in self.rows.oldest(tenant, _LOOKED):
            held = self._hold(tenant, id)
            try:
                if not held.lock.acquire(blocking=False):
                    continue
                try:
                    if self._rests(tenant, id):
                        self._delete(tenant, id)
                        return True
                except ConversationNotFound:
                    self.rows.forget(tenant, id)
                except LeaseHeld:
                    continue
                finally:
                    held.lock.release()
            finally:
                self._let_go(tenant, id, held)
        return False

    def _rests(self, tenant: str, id: str) -> bool:
        record = self._records.find(tenant, id)
        if record.driven == HOSTED or self.waiting(tenant, id):
            return False
        found = self._store.list([record.store_id])
        return not found or found[0].status not in (
            ConversationStatus.RUNNING,
            ConversationStatus.WAITING_FOR_CONFIRMATION,
        )

    # --- after a crash ---

    def pause(self) -> None:
        """Pause what the last process was running for clients whose connections ended with it.
        Before anything is opened."""
        for tenant, id in self.rows.unanswered():
            try:
                record = self._records.find(tenant, id)
                if record.driven != RUN:
                    continue
                self._records.drive(record, IDLE)
                with _journal(self._store, record.store_id) as journal:
                    if journal.fold.status is ConversationStatus.RUNNING:
                        journal.add(
                            ev.Status,
                            status=ConversationStatus.PAUSED.value,
                            reason="the client is gone",
                        )
            except ConversationNotFound:
                self.rows.forget(tenant, id)
            except HoldfastError as error:
                _log.warning(
                    "conversation %s of tenant %s: its client is gone, and it could not be"
                    " paused: %s",
                    id,
                    tenant,
                    error,
                )


@contextmanager
def _journal(store: Store, id: str) -> Generator[Journal]:
    journal = Journal(store, id, utc_now, random_id, lambda: None)
    try:
        with journal:
            yield journal
    finally:
        journal.close()
