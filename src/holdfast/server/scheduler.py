"""Drives conversations: the work of the pool's threads, the periodic work of the timer, and
recovery after a restart."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec

from holdfast import errors
from holdfast.commands import Settle
from holdfast.conversation import ConversationStatus
from holdfast.conversation.conversation import random_id
from holdfast.conversation.firing import fire_resting
from holdfast.conversation.status import AT_REST
from holdfast.conversation.timers import is_asked
from holdfast.error_text import describe_error
from holdfast.fleet.poison import MAX_DEATHS, write_end
from holdfast.fleet.run_pool import RunPool
from holdfast.object_struct import ObjectStruct
from holdfast.server.claims import Claims
from holdfast.server.open_conversations import OpenConversations
from holdfast.server.records import (
    HOSTED,
    IDLE,
    RUN,
    ConversationRecord,
    Records,
    place_of,
    store_id,
    tenant_of,
)
from holdfast.server.workers.deaths import Deaths, WorkerDied
from holdfast.server.workspaces import Workspaces
from holdfast.store import Batch, RestingConversation, Store

if TYPE_CHECKING:
    from holdfast.server.agents import Agents
    from holdfast.server.host_settings import HostSettings
    from holdfast.server.local_conversation import OpenConversation

_log = logging.getLogger("holdfast")

T = TypeVar("T")
RUNNING = ConversationStatus.RUNNING

# The errors of settling a call that is already answered or whose conversation is deleted.
_SETTLED = errors.ConfigurationError, errors.Conflict, errors.NotFound
_TICK_SECONDS = 1.0  # the period of the timer
_RING_LIMIT = 1000  # due timers of conversations in one transaction; 10,000 in a tick
_RINGS = 10
_MOST_TAKEN = 100  # conversations of other servers that are taken over at once
_PARKED_SECONDS = 5.0  # the period of the search for conversations that no server has open
_PENDING_SECONDS = 3.0  # any server may apply a change of a record that is pending for so long
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
        return describe_error(self.error)


class Scheduler:
    """Opens conversations when they are needed, drives them from a pool, and parks idle ones.
    Thread-safe."""

    def __init__(
        self,
        store: Store,
        records: Records,
        settings: HostSettings,
        agents: Agents,
        workspaces: Workspaces,
        claims: Claims,
        deaths: Deaths,
        also: Callable[[], None],
    ) -> None:
        self._store = store
        self._records = records
        self._agents = agents
        self._workspaces = workspaces
        self.claims = claims
        self._clock = settings.clock
        self._deaths = deaths
        self._now = settings.now
        self._drives = settings.drives
        self._also = also
        self._shared = records.shared
        self._rung: set[str] = set()  # the store ids of conversations whose timers were rung
        self._taken_over = 0.0  # when it last looked for conversations that no server has open
        self._pending_since: dict[str, float] = {}  # monotonic seconds, by store id
        self.conversations = OpenConversations(
            self._open, settings.bounds.open, settings.idle, settings.clock
        )
        self.pool = RunPool(settings.max_running, self._drive, self._hand_over, tenant_of)
        self._lock = threading.Lock()
        self._faults: dict[str, _Fault] = {}  # by store id
        self._tending = threading.Condition()
        self._timer: threading.Thread | None = None
        self._recovering: threading.Thread | None = None
        self._closed = False

    def use(self, record: ConversationRecord, work: Callable[[OpenConversation], T]) -> T:
        """Call `work` with the open conversation. If the conversation is parked or fails at that
        moment, open it once more. Raises `LeaseHeld` if another process drives it."""
        if not self._drives:
            raise errors.LeaseHeld(record.id, "another server, since this one drives none")
        for again in (True, False):
            opened: OpenConversation | None = None
            try:
                with self.conversations.use(record.store_id) as live:
                    opened = live
                    self.tend_soon()
                    try:
                        return work(live)
                    except errors.ConversationClosed:
                        if not again:
                            raise
                    except errors.StoreError:
                        if live.failure is None or not again:
                            raise
            except errors.LeaseHeld:
                self.conversations.park(record.store_id)  # its state here would grow old
                raise
            self.conversations.park(record.store_id, force=True, only=opened)
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
            live = self._agents.open(id)
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
                if self._shared:
                    live.finish_inbox()  # with the lease
                    if not self._apply_change(live):
                        return False
                self._begin_rung(id, live)
                more = live.drive()
                with live.run_lock:
                    if live.record.driven == RUN and not live.running:
                        live.record = self._records.end_run(live.record)
                if self._shared:
                    more = (self._apply_change(live) and live.has_work) or more
                self.update_offers(live)
                failure = live.failure
            if failure is not None:
                raise failure.with_traceback(None)
            self._faults.pop(id, None)
            return more
        except (errors.ConversationNotFound, errors.ConversationClosed):
            return False
        except (errors.LeaseHeld, errors.Fenced):  # another process drives it
            self.conversations.park(id, force=True)
            return False
        except WorkerDied as died:
            return not self._closed and self._handle_death(id, died)
        except Exception as error:
            if not self._closed:
                self._fail(id, error)
                self.conversations.park(id, force=True)
            return False

    # --- timers of conversations ---

    def _ring(self) -> None:
        """Ring the timers that are due. A conversation that no server runs is run for them, as by a
        client's request."""
        now = self._now()
        for _ in range(_RINGS):
            due = self._store.due(now, _RING_LIMIT)
            if not due:
                break
            # The records know it before the timers are rung, and so does a server that starts after
            # this one has died.
            records = self._run_for_timers([one.conversation_id for one in due])
            mine = {record.store_id for record in records} if self._drives else set[str]()
            fire = partial(self._fire, mine)
            rung = [one.conversation_id for one in self._store.ring(now, _RING_LIMIT, fire)]
            self._rung.update(rung)
            for record in self._run_for_timers(rung):
                self.wake(record.store_id)
            if len(due) < _RING_LIMIT and len(rung) >= len(due):
                break

    def _fire(self, mine: set[str], resting: RestingConversation) -> Batch | None:
        """Fire the timers of a conversation that no server has open, if this server may drive
        it."""
        try:
            return fire_resting(resting, random_id) if resting.id in mine else None
        except Exception as error:  # the next opener of the conversation reports it
            _log.debug("timers of conversation %s are left to its owner: %s", resting.id, error)
            return None

    def _run_for_timers(self, ids: Sequence[str]) -> list[ConversationRecord]:
        """Have these conversations run until they rest, and return those of this server."""
        records: list[ConversationRecord] = []
        for id in dict.fromkeys(ids):
            with suppress(errors.ConversationNotFound):
                records.append(self._records.find(*place_of(id)))
        idle = [record for record in records if record.driven == IDLE]
        self._records.run_until_rest(idle)
        for record in idle:
            if (live := self.conversations.find(record.store_id)) is not None:
                with live.run_lock:
                    if live.record.driven == IDLE:
                        live.record = msgspec.structs.replace(live.record, driven=RUN)
        return records

    def _begin_rung(self, id: str, live: OpenConversation) -> None:
        """Begin the run of a conversation that a timer wakes, unless it is paused."""
        rung = id in self._rung
        self._rung.discard(id)
        begins = not (live.hosted or live.running) and (rung or live.record.driven == RUN)
        if rung or begins:
            live.finish_inbox()  # with the lease, so that events that were fired are read
        if not begins:
            return
        with live.run_lock:
            status = live.status
            failed = status in (ConversationStatus.ERROR, ConversationStatus.STUCK)
            # a failed run is continued for a message alone
            is_needed = status in AT_REST and (not failed or is_asked(self._store, id))
            if status is RUNNING or is_needed:
                live.begin(False)
                if live.record.driven == IDLE:
                    live.record = self._records.set_driven(live.record, RUN)

    def _handle_death(self, id: str, died: WorkerDied) -> bool:
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

    # --- other servers ---

    def _apply_change(self, live: OpenConversation) -> bool:
        """Apply another server's change to the record of a conversation that is open here. Return
        False if that has closed it. Raises `LeaseHeld`, `ConversationNotFound`."""
        with live.run_lock:  # a start that was first is recorded
            record = self._read_record(live)
        if not record.is_wanted:
            return True
        if record.driven == IDLE:
            self.cut_off(record.store_id)
            lease = self._store.acquire(record.store_id)  # no other server drives it
            self._records.confirm_change(record)
            self._store.release(lease)
            return False
        live.finish_inbox()  # with the lease
        with live.run_lock:
            record = self._read_record(live)
            if record.is_wanted and record.driven != IDLE:
                hosted = record.driven == HOSTED
                live.begin(hosted)
                self._records.confirm_change(record)
                live.begin(hosted)  # another server may have asked again before that
        # Also if another thread has done all the work already: a further pass records the end.
        self.wake(record.store_id)
        return True

    def _read_record(self, live: OpenConversation) -> ConversationRecord:
        """Read the record of an open conversation, and use it from now on. The caller holds the
        conversation's `run_lock`."""
        record = self._records.find(live.record.tenant, live.record.id)
        if not record.is_wanted or record.driven != IDLE:
            self._agents.refit(live, record)
        live.record = msgspec.structs.replace(record, is_wanted=False)
        return record

    def _tend_shared(self) -> None:
        """Apply the record changes of other servers, and take over conversations that no
        server attends to."""
        now, pending_since = self._clock(), dict[str, float]()
        for tenant, id in self._records.pending_changes():
            place = store_id(tenant, id)
            pending_since[place] = self._pending_since.get(place, now)
            if self.conversations.find(place) is not None:
                self._apply_open_change(place)
            elif now - pending_since[place] >= _PENDING_SECONDS and self._drives:
                self.wake(place)  # the server that asked for it may have died
        self._pending_since = pending_since
        self._also()
        if self._drives:
            self._take_over()

    def _apply_open_change(self, id: str) -> None:
        try:
            with self.conversations.use(id) as live:
                if self._apply_change(live) and live.has_work:
                    self.wake(id)
        except errors.ConversationNotFound:  # it is being removed
            self.cut_off(id)
        except errors.LeaseHeld:
            self.conversations.park(id)
        except errors.HoldfastError as error:
            _log.warning("conversation %s: a change could not be applied yet: %s", id, error)

    def _take_over(self) -> None:
        ids = list(self._store.unattended(_MOST_TAKEN))
        if (now := time.monotonic()) - self._taken_over >= _PARKED_SECONDS:
            self._taken_over = now
            if parked := self._store.unattended(_MOST_TAKEN, parked=True):
                driven = self._driven_ids()
                ids += [id for id in parked if id in driven]
        for id in ids:
            if id not in self._faults and self.conversations.find(id) is None:
                self.wake(id)

    def update_offers(self, live: OpenConversation) -> None:
        self.claims.update(live.record.tenant, live.record.id, live.offers())

    def _fail(self, id: str, error: Exception) -> None:
        with self._lock:
            earlier = self._faults.get(id)
            if earlier is not None and earlier.error is error:
                return  # `_open` has reported this error already
            times = 1 if earlier is None else earlier.times + 1
            delay = min(_MAX_RETRY_SECONDS, _RETRY_SECONDS * 2 ** min(times - 1, 10))
            again = self._clock() + delay
            fault = self._faults[id] = _Fault(error.with_traceback(None), times, again)
        if earlier is None or earlier.message != fault.message:
            _log.error("conversation %s cannot be driven: %s", id, fault.message)

    def fault(self, record: ConversationRecord) -> str:
        """Return the error that prevents a conversation from being driven, or ""."""
        with self._lock:
            present = self._faults.get(record.store_id)
        return "" if present is None else present.message

    def forget(self, record: ConversationRecord) -> None:
        """Drop all data about a removed conversation."""
        with self._lock:
            self._faults.pop(record.store_id, None)
        self._deaths.reset(record.store_id)
        self.claims.update(record.tenant, record.id, ())

    def recover(self) -> None:
        """Continue, in the background, the last process's conversations and those with new
        commands."""
        if self._shared:
            self.tend_soon()  # the timer takes over conversations without a driver
            return
        with self._lock:
            if self._recovering is None and not self._closed:
                self._recovering = _start_thread(self._recover, "holdfast-host-recover")

    def _recover(self) -> None:
        try:
            began = time.monotonic()
            driven, active = self._driven_ids(), set[str]()
            if driven:
                running = self._store.list(list(driven), status=RUNNING.value)
                posted = self._store.list(list(driven), waiting=True)
                active = {one.id for one in (*running, *posted)}
            ids = [id for id in driven if id in active]
            for id in ids:
                self.wake(id)
            if ids:
                message = "resuming %d conversations of the last server process (found in %.2f s)"
                _log.info(message, len(ids), time.monotonic() - began)
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
                    self._timer = _start_thread(self._tend_for_ever, "holdfast-host-timer")

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
        """Do the timer's work of each second: settle claims, park idle conversations, retry failed
        ones, ring timers, and pick up commands of other processes."""
        self._ring()
        for tenant, id, settle in self.claims.due():
            if self.claims.is_alive_elsewhere(tenant, settle):
                continue
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
        driven = self._driven_ids() if again else {}
        for id in again:
            if id in driven:
                self.wake(id)
            elif (fault := self._faults.get(id)) is not None:
                fault.again = now + _MAX_RETRY_SECONDS
        if self._shared:
            self._tend_shared()
        # Commands for parked conversations that another process (`holdfast tell`) has posted.
        posted = [] if self._shared else [one.id for one in self._store.list(waiting=True)]
        driven = driven or (self._driven_ids() if posted else {})
        for id in posted:
            if id in driven and id not in self._faults:
                self.wake(id)
        self.pool.tend()
        self.conversations.tend(self._is_needed)
        self._workspaces.tend()

    def _is_needed(self, id: str) -> bool:
        """Return True if a conversation must stay open although it is unused. A conversation stays
        open while clients may run its calls, so that other servers notice the death of this one."""
        return self.pool.busy(id) or (self._shared and self.claims.offers(*place_of(id)))

    def _relook(self, tenant: str, id: str) -> None:
        try:
            record = self._records.find(tenant, id)
        except errors.ConversationNotFound:
            self.claims.update(tenant, id, ())
            raise
        with self.conversations.use(record.store_id) as live:
            self.update_offers(live)

    def _driven_ids(self) -> dict[str, None]:
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


def _start_thread(target: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    return thread
