"""Requests to conversations that another server before the same store drives. Such a request goes
through the conversation's inbox or record, and this server waits for the outcome."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, TypeVar, cast

from holdfast.commands import Command, Resume
from holdfast.conversation import ConversationStatus
from holdfast.error_forms import error_of_form
from holdfast.errors import ConfigurationError, ConversationNotFound, LeaseHeld, StoreError
from holdfast.object_struct import ObjectStruct
from holdfast.server.idempotent_commands import refusing
from holdfast.server.records import HOSTED, IDLE, RUN, ConversationRecord, Records
from holdfast.store import Store

T = TypeVar("T")

# A request waits this long: an owner that died is taken over within 10 s.
PATIENCE_SECONDS = 20.0
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.003, 0.05
_RACE_SECONDS = 0.1  # until the first attempt: the other server may just have given it back
_TAKE_OVER_SECONDS = 0.5  # the pause between two attempts to open the conversation here

_STOPPED = (ConversationStatus.PAUSED, ConversationStatus.ERROR, ConversationStatus.STUCK)


class SharedStore(Store, Protocol):
    """A store that servers on any machines have at the same time, such as `PostgresStore`."""

    def watch(self, conversation_id: str, notify: Callable[[], None]) -> Callable[[], None]:
        """Call `notify` when any server may have appended events. Return the function that ends
        this."""
        ...


def shared_store(store: Store) -> SharedStore:
    """Return the store as one that servers share. Raises `ConfigurationError` for any other
    store."""
    if not hasattr(store, "watch"):
        raise ConfigurationError(
            f"{store!r} is for one server. Records that several servers share need a store that"
            " they share too, such as PostgresStore."
        )
    return cast("SharedStore", store)


class OtherServers(ObjectStruct):
    """The servers that may drive a conversation in place of this one. Thread-safe; blocking.

    Each method takes `take_over`, which does the same work in this server. `take_over` is called
    when the other server may have given the conversation back, and raises `LeaseHeld` if not.
    """

    store: Store
    records: Records

    def execute(
        self,
        record: ConversationRecord,
        command: Command,
        key: str,
        take_over: Callable[[], object],
    ) -> None:
        """Execute a command once per key, like `Conversation.execute`."""
        id = record.store_id
        self._post(id, command, key)
        if self._wait(id, lambda: not self.store.undone(id, key), take_over):
            refused = self.store.refusal(id, key)
            if refused is not None:
                with refusing():
                    raise error_of_form(refused, ConfigurationError)

    def begin(
        self, record: ConversationRecord, hosted: bool, take_over: Callable[[], object]
    ) -> None:
        """Drive the conversation, `hosted` or until it rests."""
        self.records.want(record, HOSTED if hosted or record.driven == HOSTED else RUN)
        id = record.store_id
        # The command wakes the server that drives it. A start does not end a pause.
        [summary] = self.store.list([id]) or [None]
        if not hosted or summary is None or summary.status not in _STOPPED:
            self._post(id, Resume(), os.urandom(16).hex())
        self._wait(id, lambda: not self.records.find(record.tenant, record.id).is_wanted, take_over)

    def _post(self, id: str, command: Command, key: str) -> None:
        try:
            self.store.post(id, command, key)
        except ConversationNotFound:  # it was never opened
            with suppress(LeaseHeld):
                self.store.release(self.store.acquire(id))
            self.store.post(id, command, key)

    def close(self, record: ConversationRecord) -> None:
        """Cut off the conversation's work, and park it."""
        self.records.want(record, IDLE)
        self._wait(
            record.store_id,
            lambda: not self.records.find(record.tenant, record.id).is_wanted,
            lambda: self.close_here(record),
        )

    def close_here(self, record: ConversationRecord) -> None:
        """Record that no server drives the conversation. Raises `LeaseHeld` if one does."""
        lease = self.store.acquire(record.store_id)
        try:
            self.records.confirm_change(record)
        finally:
            self.store.release(lease)

    def notify_change(self, record: ConversationRecord) -> None:
        """Let the server that has the conversation open notice the change of its agent."""
        with suppress(LeaseHeld):
            self.store.release(self.store.acquire(record.store_id))
            return  # no other server has it open
        self.records.want(record, record.driven)

    def _wait(self, id: str, done: Callable[[], bool], take_over: Callable[[], object]) -> bool:
        """Return True once another server has done it, False once `take_over` has. Raises
        `StoreError` if that takes too long."""
        now = time.monotonic()
        until, again, pause = now + PATIENCE_SECONDS, now + _RACE_SECONDS, _FIRST_PAUSE_SECONDS
        while not done():
            if now >= until:
                raise StoreError(
                    f"The server that drives conversation {id.rpartition('/')[2]!r} has not done"
                    f" this within {PATIENCE_SECONDS:g} s. It still will. Repeat the request under"
                    " the same Idempotency-Key for its outcome."
                )
            if now >= again:
                with suppress(LeaseHeld):
                    take_over()
                    return False
                again = now + _TAKE_OVER_SECONDS
            time.sleep(pause)
            pause, now = min(2 * pause, _MAX_PAUSE_SECONDS), time.monotonic()
        return True


def until_free(work: Callable[[], T]) -> T:
    """Return the result of `work`, once no other server has the conversation open. Raises
    `LeaseHeld` if that takes too long."""
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return work()
        except LeaseHeld:
            if time.monotonic() >= until:
                raise
        time.sleep(_MAX_PAUSE_SECONDS)
