"""Drives conversations: the work of the pool's threads, the periodic work of the timer, and
recovery after a restart."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from holdfast import errors
from holdfast.commands import Settle
from holdfast.conversation import ConversationStatus
from holdfast.object_struct import ObjectStruct
from holdfast.server.claims import Claims
from holdfast.server.open_conversations import OpenConversations
from holdfast.server.pool import RunPool
from holdfast.server.records import (
    IDLE,
    RUN,
    ConversationRecord,
    Records,
    place_of,
    store_id,
    tenant_of,
)
from holdfast.server.workers.deaths import MAX_DEATHS, Deaths, WorkerDied, write_end
from holdfast.server.workspaces import Workspaces
from holdfast.store import Store

if TYPE_CHECKING:
    from holdfast.server.local_conversation import OpenConversation

_log = logging.getLogger("holdfast")

T = TypeVar("T")
RUNNING = ConversationStatus.RUNNING

# The errors of settling a call that is already answered or whose conversation is deleted.
_SETTLED = errors.ConfigurationError, errors.Conflict, errors.NotFound
_TICK_SECONDS = 1.0  # the period of the timer
# The delay before a failed conversation is retried doubles from the first value to the second.
_RETRY_SECONDS, _MAX_RETRY_SECONDS = 5.0, 600.0


class _Fault(ObjectStruct):
    """The error that prevents a conversation from being driven. `again` is the time of the next
    attempt."""

    error: Exception
    times: int
    again: float

    @property
    def message(self) -> str:
        return f"{type(self.error).__name__}: {self.error}"


class Scheduler:
    """Opens conversations when they are needed, drives them from a pool, and parks idle ones.
    Thread-safe."""

    def __init__(
        self,
        store: Store,
        records: Records,
        open: Callable[[str], OpenConversation],
        workspaces: Workspaces,
        claims: Claims,
        max_running: int,
        most: int,
        idle: float,
        clock: Callable[[], float],
        deaths: Deaths | None = None,
    ) -> None:
        self._deaths = deaths or Deaths()
        self._store = store
        self._records = records
        self._opened = open
        self._workspaces = workspaces
        self._clock = clock
        self.claims = claims
        self.conversations = OpenConversations(self._open, most, idle, clock)
        self.pool = RunPool(max_running, self._drive, self._hand_over, tenant_of)
        self._lock = threading.Lock()
        self._faults: dict[str, _Fault] = {}  # by store id
        self._tending = threading.Condition()
        self._timer: threading.Thread | None = None
        self._recovering: threading.Thread | None = None
        self._closed = False

    def use(self, record: ConversationRecord, work: Callable[[OpenConversation], T]) -> T:
        """Call `work` with the open conversation. If the conversation is parked or fails at that
        moment, open it once more."""
        for again in (True, False):
            with self.conversations.use(record.store_id) as live:
                self.tend_soon()
                try:
                    return work(live)
                except errors.ConversationClosed:
                    if not again:
                        raise
                except errors.StoreError:
                    if live.failure is None or not again:
                        raise
            self.conversations.park(record.store_id, force=True)
        raise AssertionError

    def wake(self, id: str) -> None:
        self.pool.submit(id)

    def cut_off(self, id: str) -> None:
        """Close a conversation, cutting off running work. Its slot is free at once, even if its
        calls ignore their cancellation."""
        self.pool.release(id)
        self.conversations.park(id, force=True)
        self.pool.detach(id)

    def _hand_over(self, id: str) -> None:
        live = self.conversations.find(id)
        if live is not None:
            live.hand_over()

    def _open(self, id: str) -> OpenConversation:
        try:
            live = self._opened(id)
        except (errors.ConversationNotFound, WorkerDied):
            raise
        except Exception as error:
            self._fail(id, error)
            raise
        self._faults.pop(id, None)
        self.update_offers(live)
        return live

    def _drive(self, id: str) -> bool:
        """Do a conversation's work on a thread of the pool. Return True if there is more."""
        try:
            with self.conversations.use(id) as live:
                self.tend_soon()
                more = live.drive()
                with live.run_lock:
                    if live.record.driven == RUN and not live.running:
                        live.record = self._records.set_driven(live.record, IDLE)
                self.update_offers(live)
                failure = live.failure
            if failure is not None:
                raise failure.with_traceback(None)
            self._faults.pop(id, None)
            return more
        except (errors.ConversationNotFound, errors.ConversationClosed):
            return False
        except WorkerDied as died:
            return not self._closed and self._died(id, died)
        except Exception as error:
            if not self._closed:
                self._fail(id, error)
                self.conversations.park(id, force=True)
            return False

    def _died(self, id: str, died: WorkerDied) -> bool:
        """Handle the death of a worker. Return True if another one should continue the
        conversation, until too many have died without progress."""
        try:
            live = self.conversations.find(id)
            if live is not None and live.failure is not None:
                self.conversations.park(id, force=True)
            times = self._deaths.count(id)
            if times < MAX_DEATHS:
                return bool(self._store.list([id], status=RUNNING.value))
            if not write_end(self._store, id, died.how, times):
                self._fail(id, died)  # no run was in progress: the pending command waits
                return False
            self._deaths.reset(id)
            record = self._records.find(*place_of(id))
            if record.driven == RUN:
                self._records.set_driven(record, IDLE)
                if self._store.list([id], status=RUNNING.value):  # a new run began meanwhile
                    self._records.set_driven(record, RUN)
        except errors.LeaseHeld:
            return True  # another thread has opened the conversation meanwhile
        except errors.ConversationNotFound:
            pass
        except Exception as error:
            if not self._closed:
                self._fail(id, error)
        return False

    def update_offers(self, live: OpenConversation) -> None:
        self.claims.update(live.record.tenant, live.record.id, live.offers())

    def _fail(self, id: str, error: Exception) -> None:
        with self._lock:
            known = self._faults.get(id)
            if known is not None and known.error is error:
                return  # `_open` has reported this error already
            times = 1 if known is None else known.times + 1
            delay = min(_MAX_RETRY_SECONDS, _RETRY_SECONDS * 2 ** min(times - 1, 10))
            again = self._clock() + delay
            fault = self._faults[id] = _Fault(error.with_traceback(None), times, again)
        if known is None or known.message != fault.message:
            _log.error("conversation %s cannot be driven: %s", id, fault.message)

    def fault(self, record: ConversationRecord) -> str:
        """Return the error that prevents a conversation from being driven, or ""."""
        with self._lock:
            found = self._faults.get(record.store_id)
        return "" if found is None else found.message

    def forget(self, record: ConversationRecord) -> None:
        """Drop all data about a removed conversation."""
        with self._lock:
            self._faults.pop(record.store_id, None)
        self._deaths.reset(record.store_id)
        self.claims.update(record.tenant, record.id, ())

    def recover(self) -> None:
        """Continue, in the background, the last process's conversations and those with new
        commands."""
        with self._lock:
            if self._recovering is None and not self._closed:
                self._recovering = _started(self._recover, "holdfast-host-recover")

    def _recover(self) -> None:
        try:
            began = time.monotonic()
            driven, active = self._driven(), set[str]()
            if driven:
                running = self._store.list(list(driven), status=RUNNING.value)
                posted = self._store.list(list(driven), waiting=True)
                active = {one.id for one in (*running, *posted)}
            found = [id for id in driven if id in active]
            for id in found:
                self.wake(id)
            if found:
                message = "resuming %d conversations of the last server process (found in %.2f s)"
                _log.info(message, len(found), time.monotonic() - began)
            self.tend_soon()
        except Exception:
            if not self._closed:
                _log.exception("the conversations of the last server process could not be found")

    # --- timer ---

    def tend_soon(self) -> None:
        """Start the timer, which runs while something is open."""
        if self._timer is None:
            with self._tending:
                if self._timer is None and not self._closed:
                    self._timer = _started(self._tend_for_ever, "holdfast-host-timer")

    def _tend_for_ever(self) -> None:
        while True:
            with self._tending:
                if self._tending.wait_for(lambda: self._closed, _TICK_SECONDS):
                    return
            try:
                self.tend()
            except Exception:
                if not self._closed:
                    _log.exception("the server's timer failed")

    def tend(self) -> None:
        """Do the timer's work of each second: settle claims, park idle conversations, retry
        failed ones, and pick up commands that other processes posted."""
        for tenant, id, settle in self.claims.due():
            try:
                self._settle(tenant, id, settle)
            except _SETTLED:
                with suppress(errors.HoldfastError):
                    self._relook(tenant, id)
            except errors.HoldfastError as error:
                message = "conversation %s: call %s could not be settled yet: %s"
                _log.warning(message, id, settle.call_id, error)
        now = self._clock()
        with self._lock:
            again = [id for id, fault in self._faults.items() if fault.again <= now]
        driven = self._driven() if again else {}
        for id in again:
            if id in driven:
                self.wake(id)
            elif (fault := self._faults.get(id)) is not None:
                fault.again = now + _MAX_RETRY_SECONDS
        # Commands for parked conversations that another process (`holdfast tell`) has posted.
        posted = [summary.id for summary in self._store.list(waiting=True)]
        driven = driven or (self._driven() if posted else {})
        for id in posted:
            if id in driven and id not in self._faults:
                self.wake(id)
        self.pool.tend()
        self.conversations.tend(self.pool.busy)
        self._workspaces.tend()

    def _relook(self, tenant: str, id: str) -> None:
        try:
            record = self._records.find(tenant, id)
        except errors.ConversationNotFound:
            self.claims.update(tenant, id, ())
            raise
        with self.conversations.use(record.store_id) as live:
            self.update_offers(live)

    def _driven(self) -> dict[str, None]:
        """Return the store ids of all driven conversations, oldest first."""
        return dict.fromkeys(store_id(tenant, id) for tenant, id in self._records.driven())

    def _settle(self, tenant: str, id: str, settle: Settle) -> None:
        record = self._records.find(tenant, id)

        def work(live: OpenConversation) -> None:
            live.execute(settle)
            self.update_offers(live)
            self.wake(record.store_id)

        self.use(record, work)

    # --- monitoring and shutdown ---

    def stats(self) -> dict[str, int]:
        queued, running, threads = self.pool.counts()
        recovering = self._recovering
        return {
            "open": self.conversations.count(),
            "queued": queued,
            "running": running,
            "threads": threads,
            "client_calls": self.claims.count(),
            "faults": len(self._faults),
            "recovering": int(recovering is not None and recovering.is_alive()),
        }

    def close(self, until: float) -> None:
        """Stop everything by about this time of the monotonic clock."""
        self._closed = True
        with self._tending:
            self._tending.notify_all()
        self.conversations.close()
        if not self.pool.close(max(1.0, until - time.monotonic())):
            _log.warning("the server shuts down while calls that ignore cancellation still run")
        for thread in (self._timer, self._recovering):
            if thread is not None and thread is not threading.current_thread():
                thread.join(max(1.0, until - time.monotonic()))


def _started(target: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    return thread
