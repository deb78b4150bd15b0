"""The operations on a host that only chats need: one turn at a time, changed instructions, forks
with answered calls, removal of old chats, and a pause when the client disconnects."""

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
from holdfast.server.agents import Agents, encode, tool_record
from holdfast.server.chat_records import ChatRecords
from holdfast.server.open_conversations import OpenConversations
from holdfast.server.records import HOSTED, IDLE, RUN, Records
from holdfast.store import Batch, Blob, Store
from holdfast.store.transfer import blobs_of

if TYPE_CHECKING:
    from holdfast.server.shapes import ToolForm

_log = logging.getLogger("holdfast")

T = TypeVar("T")

_MAX_REMOVED = 100  # the most chats that are removed for a new one
_OLDEST = 200  # the number of oldest chats that are considered for removal


class _TurnLock:
    __slots__ = ("lock", "users")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0


class Chats:
    """The chats of one host. Thread-safe; blocking."""

    def __init__(
        self,
        store: Store,
        records: Records,
        agents: Agents,
        conversations: OpenConversations,
        delete: Callable[[str, str], None],
    ) -> None:
        self.rows = ChatRecords(records)
        self._store = store
        self._records = records
        self._agents = agents
        self._conversations = conversations
        self._delete = delete
        self._lock = threading.Lock()
        self._held: dict[tuple[str, str], _TurnLock] = {}
        self._waiting: dict[tuple[str, str], int] = {}

    # --- exclusion and waiting clients ---

    @contextmanager
    def turn(self, tenant: str, id: str) -> Generator[None]:
        """Hold a conversation exclusively: within the block no other thread decides about its
        continuation or continues it. A thread may nest a second block only for a conversation
        that no other thread knows."""
        held = self._hold(tenant, id)
        try:
            with held.lock:
                yield
        finally:
            self._let_go(tenant, id, held)

    def _hold(self, tenant: str, id: str) -> _TurnLock:
        with self._lock:
            held = self._held.setdefault((tenant, id), _TurnLock())
            held.users += 1
            return held

    def _let_go(self, tenant: str, id: str, held: _TurnLock) -> None:
        with self._lock:
            held.users -= 1
            if not held.users:
                del self._held[tenant, id]

    def enter(self, tenant: str, id: str) -> None:
        """Add a client that waits for an answer."""
        with self._lock:
            self._waiting[tenant, id] = self._waiting.get((tenant, id), 0) + 1

    def leave(self, tenant: str, id: str) -> int:
        """Remove a waiting client. Return the number of those that still wait."""
        with self._lock:
            remaining = self._waiting.pop((tenant, id), 1) - 1
            if remaining > 0:
                self._waiting[tenant, id] = remaining
            return remaining

    def waiting(self, tenant: str, id: str) -> int:
        """Return the number of clients that wait for an answer."""
        with self._lock:
            return self._waiting.get((tenant, id), 0)

    # --- contents ---

    def refit(
        self,
        tenant: str,
        id: str,
        form: dict[str, Any],
        tools: Sequence[ToolForm],
        modules: Mapping[str, str],
        setting: bytes,
    ) -> None:
        """Change the instructions and tools of a conversation at rest. Its secrets stay."""
        record = self._records.find(tenant, id)
        kept = self._agents.stored_parts(record)
        options = msgspec.structs.replace(record.options, modules=dict(modules))
        wanted = self._agents.requested_parts(tenant, form, kept.secrets, tools, options)
        built = self._agents.build(wanted, record.workspace)
        self._records.set_tools(
            record, encode(wanted.form), encode(tool_record(wanted, built)), options
        )
        self._conversations.park(record.store_id, force=True)
        self.rows.add(tenant, id, setting)

    def append(self, tenant: str, id: str, events: Sequence[ev.AnyEvent]) -> None:
        """Append events of another conversation to a journal that is not open. The last event is
        a `Status`."""
        record = self._records.find(tenant, id)
        blobs = [
            Blob(event.seq, self._store.blob(name)) for event in events for name in blobs_of(event)
        ]
        status = events[-1]
        assert isinstance(status, ev.StatusChanged)
        lease = self._store.acquire(record.store_id)
        try:
            (summary,) = self._store.list([record.store_id])
            found = msgspec.structs.replace(
                summary, status=status.status, last_seq=status.seq, updated=status.timestamp
            )
            self._store.append(lease, Batch(events, found, blobs=blobs))
        finally:
            self._store.release(lease)

    # --- limits ---

    def with_room(self, tenant: str, make: Callable[[], T]) -> T:
        """Return the result of `make`. If the tenant has reached its limit of conversations or
        workspaces, remove its oldest chats at rest first."""
        for _ in range(_MAX_REMOVED):
            try:
                return make()
            except TooMany as error:
                if error.bound not in ("conversations", "workspaces") or not self._remove_oldest(
                    tenant
                ):
                    raise
        return make()

    def _remove_oldest(self, tenant: str) -> bool:
        for id in self.rows.oldest(tenant, _OLDEST):
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
        """Pause the runs of the last process, whose clients' connections ended with it. Call it
        before anything is opened."""
        for tenant, id in self.rows.unanswered():
            try:
                record = self._records.find(tenant, id)
                if record.driven != RUN:
                    continue
                self._records.set_driven(record, IDLE)
                with _journal(self._store, record.store_id) as journal:
                    if journal.fold.status is ConversationStatus.RUNNING:
                        journal.add(
                            ev.StatusChanged,
                            status=ConversationStatus.PAUSED.value,
                            reason="the client is gone",
                        )
            except ConversationNotFound:
                self.rows.forget(tenant, id)
            except HoldfastError as error:
                _log.warning(
                    "conversation %s of tenant %s: its client disconnected, but the conversation"
                    " could not be paused: %s",
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
