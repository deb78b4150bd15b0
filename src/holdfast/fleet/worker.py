"""`Worker`: drives conversations that have work, beside other workers of the same store."""

from __future__ import annotations

import logging
import os
import random
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime

from holdfast import errors
from holdfast.conversation import Conversation, ConversationStatus
from holdfast.conversation.conversation import random_id
from holdfast.conversation.firing import fire_resting
from holdfast.error_text import describe_error
from holdfast.fleet.backend import DEFAULT_QUEUE, FleetBackend, Place, Room, Wake, place_by_id
from holdfast.fleet.poison import (
    MAX_DEATHS,
    MAX_DEATHS_UNTIL_REST,
    end_run,
    place_of_death,
    refuse_command,
)
from holdfast.fleet.registry import Registry, WorkerCounts
from holdfast.fleet.run_pool import RunPool
from holdfast.object_struct import ObjectStruct
from holdfast.store import Batch, Lease, RestingConversation, Store

_log = logging.getLogger("holdfast")

TICK_SECONDS = 1.0  # between two looks into the store
_LINGER_TICK_SECONDS = 0.05  # the same while conversations are open without being driven
# The bell rings again for a conversation that the store shows to be unattended for this time: at
# the second of two looks.
PATIENCE_SECONDS = 0.9 * TICK_SECONDS
# Between two looks for conversations that were given back although they run. Only a lost wake of a
# worker that was stopped leaves one.
_PARKED_SECONDS = 30.0
_SWEEP_IDS = 300  # the largest number of ids of one look
_RING_TIMERS = 1000  # the largest number of timers that one transaction rings
_RINGING_SECONDS = 2.0  # of one look at due timers; the worker's row is renewed between two
_TIMERS_FIRST_SECONDS = 5.0  # for which many due timers go before further conversations
_CLOSE_SECONDS = 5.0  # for one conversation to close
# The delay before a conversation that cannot be driven is tried again doubles up to the second.
_RETRY_SECONDS, _MAX_RETRY_SECONDS = 1.0, 600.0
_RATE_SECONDS = 10.0
_CUT_OFF_SECONDS = 5.0  # of the grace, for what does not end at a step's boundary
DIED = "died"

RUNNING = ConversationStatus.RUNNING


class _Fault(ObjectStruct):
    """The error that prevents a conversation from being driven, and the time of the next try."""

    times: int
    until: float
    message: str


class _Task(ObjectStruct):
    """A conversation that this worker has taken, from its wake until it is parked."""

    wakes: list[Wake]
    hand_over: threading.Event
    conversation: Conversation | None = None
    lingering: bool = False  # True if it is open and at rest, for the sake of its children
    place_of_death: str = ""  # of its last owner, until it has got further


class Worker:
    """Claims conversations that have work, advances them to rest, and parks them. Thread-safe.

    Any number of workers serve one store, in any processes. A conversation is driven under the
    store's lease, so by one worker at a time. A worker that dies is noticed by the others through
    the store, not through the backend.

    Args:
        store: The store, made with `bell=Bell(backend)`, so that a posted command wakes a worker.
        open: Opens a conversation by its id. Raises `ConversationNotFound` for one that this
            worker must not drive.
        backend: Tells which conversations have work.
        place: Returns the tenant, the priority and the queue of a conversation.
        queue: The queue that the worker serves.
        concurrency: The largest number of conversations that are driven at once.
        tenant_limit: The same for one tenant in all workers of the queue; None sets no limit.
        label: A name for operators; by default the host's name and the process's id.
        clock: A monotonic clock in seconds.
    """

    def __init__(
        self,
        store: Store,
        open: Callable[[str], Conversation],
        backend: FleetBackend,
        *,
        place: Place = place_by_id,
        queue: str = DEFAULT_QUEUE,
        concurrency: int = 16,
        tenant_limit: int | None = None,
        label: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        for name, value in (("concurrency", concurrency), ("tenant_limit", tenant_limit)):
            if value is not None and value < 1:
                raise errors.ConfigurationError(f"{name} takes a number from 1 on, not {value}.")
        self.queue = queue
        self.token = f"{socket.gethostname()}-{os.getpid()}-{os.urandom(6).hex()}"
        self.label = label or f"{socket.gethostname()}:{os.getpid()}"
        self._store = store
        self._open = open
        self._backend = backend
        self._registry = Registry(backend.database)
        self._place = place
        self._concurrency = concurrency
        self._tenant_limit = tenant_limit
        self._clock = clock
        self._lock = threading.Lock()
        self._tasks: dict[str, _Task] = {}
        self._faults: dict[str, _Fault] = {}
        # Leases of closed conversations that the store could not take back.
        self._unreleased: list[Lease] = []
        self._unattended: dict[str, float] = {}  # since when, by id
        # Conversations whose last owners died, and the only one of them that is driven here. If
        # this process dies with it, the death must not count against the others.
        self._suspects: set[str] = set()
        self._driven_suspect = ""
        self._parked_at = clock()
        self._ends: deque[float] = deque(maxlen=10_000)  # the times of the last runs' ends
        self._runs = self._takeovers = self._poisoned = self._fault_count = 0
        self._pool = RunPool(concurrency, self._drive, self._hand_over, self._tenant)
        self._serving = None
        self._changed = threading.Condition()
        self._closed = self._draining = False
        # Until then no conversations are taken: their runs would delay the other due timers.
        self._timers_first_until = 0.0
        self._next_due: datetime | None = None  # of the timers, at the last look
        self._ticked = 0.0  # the time of the last look into the store that succeeded
        self._thread: threading.Thread | None = None

    # --- life ---

    def start(self) -> Worker:
        """Begin to claim conversations. Raises `StoreError` if the store does not answer."""
        if self._thread is not None:
            raise errors.ConfigurationError("This worker was started already.")
        self.tend()
        serve = self._backend.serve
        self._serving = serve(self, self.token, self.queue, self._tenant_limit)
        self._thread = threading.Thread(
            target=self._tend_for_ever, name="holdfast-fleet-tend", daemon=True
        )
        self._thread.start()
        return self

    def close(self, grace: float = 30.0) -> bool:
        """Claim nothing more, hand everything over, and give the leases back.

        Runs end at their next step's boundary and go on in another worker. A call that is still
        running after `grace` seconds is interrupted. Idempotent.

        Returns:
            True if nothing had to be interrupted.
        """
        with self._changed:
            if self._draining:
                return True
            self._draining = True
        until = time.monotonic() + grace
        if self._serving is not None:
            self._serving.stop()
        with suppress(errors.StoreError):
            self._beat()
        with self._lock:
            tasks = dict(self._tasks)
        for id, task in tasks.items():
            if task.lingering:
                self._pool.submit(id)
        with self._changed:
            self._changed.wait_for(lambda: not self._tasks, max(0.0, grace))
        with self._lock:
            unfinished = [one.conversation for one in self._tasks.values() if one.conversation]
        if unfinished:
            message = "%d conversations are interrupted, since they did not stop within %g s"
            _log.warning(message, len(unfinished), grace)
        for conversation in unfinished:
            conversation.hosting.stop()
        self._pool.close(max(_CUT_OFF_SECONDS, until - time.monotonic()))
        with self._lock:
            rest = list(self._tasks)
        for id in rest:
            self._park(id, again=True)
        self._closed = True
        self._notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_SECONDS)
        if self._serving is not None:
            self._serving.close(_CLOSE_SECONDS)
        self._release_again()
        with suppress(errors.StoreError):
            self._registry.leave(self.token)
        return not unfinished

    def __enter__(self) -> Worker:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def ready(self) -> bool:
        """True if the worker takes conversations and the store answered lately."""
        fresh = time.monotonic() - self._ticked < 10 * TICK_SECONDS
        return self._serving is not None and not self._draining and fresh

    def counts(self) -> WorkerCounts:
        """Return the worker's figures."""
        now = self._clock()
        recent = sum(1 for end in list(self._ends) if now - end <= _RATE_SECONDS)
        _, running, _ = self._pool.counts()
        with self._lock:
            open_count = sum(task.conversation is not None for task in self._tasks.values())
        return WorkerCounts(
            self._concurrency,
            running,
            open_count,
            self._runs,
            recent / _RATE_SECONDS,
            self._takeovers,
            self._poisoned,
            self._fault_count,
            int(self._draining),
        )

    # --- the backend's side ---

    def room(self) -> Room:
        """Return the room for further conversations. When all slots are taken, only tenants that
        have none are taken, a few: the pool lends them slots."""
        if self._draining or time.monotonic() < self._timers_first_until:
            return Room(0)
        with self._lock:
            busy = [id for id, task in self._tasks.items() if not task.lingering]
        free = self._concurrency - len(busy)
        if free > 0:
            return Room(free)
        beyond = max(1, self._concurrency // 4) + free
        return Room(max(0, beyond), frozenset(self._tenant(id) for id in busy))

    def take(self, wake: Wake) -> None:
        """Drive a conversation that has work."""
        with self._lock:
            task = self._tasks.get(wake.conversation)
            if task is None:
                task = self._tasks[wake.conversation] = _Task([], threading.Event())
            task.wakes.append(wake)
            task.lingering = False
        self._pool.submit(wake.conversation)

    def _tenant(self, id: str) -> str:
        return self._place(id).tenant

    # --- driving, on the pool's threads ---

    def _hand_over(self, id: str) -> None:
        with self._lock:
            task = self._tasks.get(id)
        if task is not None:
            task.hand_over.set()

    def _drive(self, id: str) -> bool:
        """Do the work of a conversation. Return True if it has more, for its next turn."""
        with self._lock:
            task = self._tasks.get(id)
        if task is None:
            return False
        again, retry = False, None
        try:
            opens = task.conversation is None and not self._draining
            waits = opens and id in self._suspects and not self._takes_suspect(id)
            if opens and not waits:
                self._begin(id, task)
            conversation = task.conversation
            if waits or (task.place_of_death and not self._takes_suspect(id)):
                retry = _RETRY_SECONDS
            elif conversation is not None:
                task.hand_over.clear()
                hosting = conversation.hosting
                hosting.advance(lambda: self._hands_over(id, task))
                if hosting.has_work and not self._draining:
                    return True
                if not self._draining and (hosting.children_busy or hosting.delegates_busy):
                    with self._lock:
                        task.lingering = True
                    self._got_further(id, task)
                    self._notify()
                    return False
                # A conversation that was interrupted has no work here, but elsewhere.
                again = self._draining and hosting.journal.fold.status is RUNNING
                if not again:  # it has come to rest
                    self._runs += 1
                    self._ends.append(self._clock())
                    self._faults.pop(id, None)
                    self._forget_deaths(id)
            else:
                again = self._draining
        except errors.LeaseHeld:
            pass  # its owner sees the inbox; if it dies, `unattended` shows that
        except errors.ConversationNotFound:
            self._forget_deaths(id)
        except errors.ConversationClosed:
            pass
        except errors.Fenced:
            # Taken over, or only uncertain of its lease while the database was away.
            retry = _RETRY_SECONDS
        except Exception as error:
            retry = self._fail(id, error)
        self._park(id, again, retry)
        return False

    def _begin(self, id: str, task: _Task) -> None:
        """Open a conversation under its lease. Leaves `task.conversation` None if there is nothing
        to drive."""
        conversation = self._open(id)
        task.conversation = conversation
        hosting = conversation.hosting
        journal = hosting.journal
        journal.acquire()
        if journal.spawned_by:  # its parent opens it, and only with the parent's tools
            parent = journal.spawned_by.rpartition(":")[0]
            self._close(id, task)
            tenant, priority, queue = self._place(parent)
            self._backend.wake(parent, tenant, priority, queue=queue)
            return
        if journal.lease is not None and journal.lease.orphaned:
            self._takeovers += 1
            self._count_death(id, task)
        elif id in self._suspects:
            task.place_of_death = place_of_death(journal)
        hosting.hosted = True
        hosting.begin()

    def _count_death(self, id: str, task: _Task) -> None:
        """Count the death of a conversation's last owner. End its run if too many have died."""
        assert task.conversation is not None
        journal = task.conversation.hosting.journal
        place = place_of_death(journal)
        if not place:
            return
        times, total = self._registry.count_death(id, place)
        with self._lock:
            self._suspects.add(id)
        if times < MAX_DEATHS and total < MAX_DEATHS_UNTIL_REST:
            task.place_of_death = place
            return
        times = max(times, total)
        if not end_run(journal, DIED, times):
            refuse_command(journal, DIED, times)
        self._poisoned += 1
        _log.error("conversation %s: its run is ended, since %d workers died of it", id, times)

    def _takes_suspect(self, id: str) -> bool:
        """Return True if a suspect may be driven now: no other one is."""
        with self._lock:
            if self._driven_suspect not in ("", id):
                return False
            self._driven_suspect = id
            return True

    def _got_further(self, id: str, task: _Task) -> None:
        """Let other suspects be driven beside this conversation."""
        task.place_of_death = ""
        with self._lock:
            if self._driven_suspect == id:
                self._driven_suspect = ""

    def _hands_over(self, id: str, task: _Task) -> bool:
        """Return True if a conversation is to be given back between two steps."""
        conversation, before = task.conversation, task.place_of_death
        if before and conversation and place_of_death(conversation.hosting.journal) != before:
            self._got_further(id, task)
        return self._draining or task.hand_over.is_set()

    def _forget_deaths(self, id: str) -> None:
        with self._lock:
            if id not in self._suspects:
                return
            self._suspects.discard(id)
        self._registry.forget_deaths(id)

    def _fail(self, id: str, error: Exception) -> float:
        """Record an error. Return the seconds until the next try."""
        fault = self._faults.get(id)
        times = 1 if fault is None else fault.times + 1
        delay = min(_MAX_RETRY_SECONDS, _RETRY_SECONDS * 2 ** min(times - 1, 10))
        message = describe_error(error)
        self._faults[id] = _Fault(times, self._clock() + delay, message)
        self._fault_count += 1
        if fault is None or fault.message != message:
            _log.error("conversation %s cannot be driven: %s", id, message)
        return delay

    def _park(self, id: str, again: bool = False, retry: float | None = None) -> None:
        """Close a conversation and give its wakes back; with `again` another worker continues at
        once, with `retry` after that many seconds."""
        with self._lock:
            task = self._tasks[id]
            wakes, task.wakes = task.wakes, []
        self._close(id, task)
        self._got_further(id, task)
        with self._lock:
            # One that rang meanwhile may be for a command that the conversation has not seen.
            if not task.wakes or self._draining:
                del self._tasks[id]
                wakes += task.wakes
        assert self._serving is not None
        for wake in wakes:
            self._serving.finish(wake, 0.0 if again else retry)
        self._notify()

    def _close(self, id: str, task: _Task) -> None:
        conversation, task.conversation = task.conversation, None
        if conversation is None:
            return
        lease = conversation.hosting.journal.lease
        try:
            conversation.close(_CLOSE_SECONDS)
        except errors.StoreError:
            # The lease of a living owner is never taken, so it must be given back later.
            if lease is not None:
                with self._lock:
                    self._unreleased.append(lease)
        except Exception:
            _log.exception("conversation %s: closing it failed", id)

    # --- periodic work ---

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _tend_for_ever(self) -> None:
        last, failed = time.monotonic(), False
        while not self._closed:
            with self._lock:
                lingering = any(task.lingering for task in self._tasks.values())
            with self._changed:
                if self._closed:
                    return
                tick = _LINGER_TICK_SECONDS if lingering else TICK_SECONDS
                self._changed.wait(min(tick, self._seconds_to_timer()))
            try:
                self._look_at_lingering()
                if time.monotonic() - last >= TICK_SECONDS:
                    last = time.monotonic()
                    self.tend()
                elif self._seconds_to_timer() <= 0:
                    self._next_due = None  # the clock of the store may not have come to it
                    self._ring()
                failed = False
            except Exception as error:
                if not failed and not self._draining:
                    _log.warning("a worker cannot look into its store at present: %s", error)
                failed = True

    def _look_at_lingering(self) -> None:
        """Drive or park conversations that stay open for the sake of their children."""
        with self._lock:
            tasks = [(id, task) for id, task in self._tasks.items() if task.lingering]
        for id, task in tasks:
            conversation = task.conversation
            if conversation is None:
                continue
            hosting = conversation.hosting
            if hosting.has_work or not (hosting.children_busy or hosting.delegates_busy):
                with self._lock:
                    task.lingering = False
                self._pool.submit(id)

    def tend(self) -> None:
        """Do the work of each second: renew the worker's row, give leases back, ring due timers,
        and take conversations whose wake was lost. Raises `StoreError`."""
        self._pool.tend()
        self._beat()
        self._release_again()
        suspects = set(self._registry.suspects())
        with self._lock:
            self._suspects = suspects
        if not self._draining:
            self._ring()
            self._next_due = self._store.next_due()
            self._sweep()
        self._ticked = time.monotonic()

    def _ring(self) -> None:
        """Ring or fire the due timers, for a limited time. One that is not fired by that is a
        command in an inbox."""
        until = time.monotonic() + _RINGING_SECONDS
        if not (rung := self._ring_some()):
            self._end_timers_first()
            return
        helper = threading.Thread(
            target=self._help_ring, args=(until,), name="holdfast-fleet-ring", daemon=True
        )
        many = rung >= _RING_TIMERS
        if many:
            if not self._timers_first_until:
                self._timers_first_until = time.monotonic() + _TIMERS_FIRST_SECONDS
            # Two at once: one waits for the database while the other decides.
            helper.start()
        over = self._ring_until(until)
        if many:
            helper.join()
        if over:
            self._end_timers_first()

    def _end_timers_first(self) -> None:
        if self._timers_first_until:
            self._timers_first_until = 0.0
            if self._serving is not None:
                self._serving.ring()

    def _ring_some(self) -> int:
        return len(self._store.ring(datetime.now(UTC), _RING_TIMERS, self._fire))

    def _ring_until(self, until: float) -> bool:
        """Ring due timers. Return True if none is left."""
        while time.monotonic() < until and not self._draining:
            if not self._ring_some():
                return True
        return False

    def _help_ring(self, until: float) -> None:
        with suppress(errors.StoreError):  # the other thread meets it too
            self._ring_until(until)

    def _seconds_to_timer(self) -> float:
        due = self._next_due
        return TICK_SECONDS if due is None else (due - datetime.now(UTC)).total_seconds()

    def _fire(self, resting: RestingConversation) -> Batch | None:
        """Fire the timers of a conversation with a free lease, if this worker may drive it."""
        try:
            mine = self._place(resting.id).queue == self.queue
            return fire_resting(resting, random_id) if mine else None
        except Exception as error:  # the next opener of the conversation reports it
            _log.debug("timers of conversation %s are left to its owner: %s", resting.id, error)
            return None

    def _beat(self) -> None:
        self._registry.beat(self.token, self.queue, self.label, self.counts())

    def _release_again(self) -> None:
        with self._lock:
            leases, self._unreleased = self._unreleased, []
        for number, lease in enumerate(leases):
            try:
                self._store.release(lease)
                # A store may have forgotten the lease when it failed; a new one replaces it.
                with suppress(errors.LeaseHeld):
                    self._store.release(self._store.acquire(lease.conversation_id))
            except errors.StoreError:
                with self._lock:
                    self._unreleased += leases[number:]
                raise

    def _sweep(self) -> None:
        """Ring again for conversations that have been unattended for long. Drive those for which
        the backend cannot ring."""
        now = self._clock()
        parked = now - self._parked_at >= _PARKED_SECONDS
        ids = self._store.unattended(_SWEEP_IDS, parked=parked)
        if parked:
            self._parked_at = now
        # A look for those is rare, and waits for no second one.
        patience = 0.0 if parked else PATIENCE_SECONDS
        since = self._unattended
        self._unattended = {id: since.get(id, now) for id in ids}
        late = [
            id
            for id, first in self._unattended.items()
            if now - first >= patience and self._may_take(id, now)
        ]
        if not late or self._serving is None:
            return
        wakes = [Wake(id, self._tenant(id)) for id in late]
        certain = self._serving.restore(wakes, self._registry.lost_tokens())
        others = [wake for wake in wakes if wake.conversation not in certain]
        random.shuffle(others)  # other workers look at the same ones
        room = self.room()
        for wake in others[: 0 if room.full else room.free]:
            self.take(wake)

    def _may_take(self, id: str, now: float) -> bool:
        fault = self._faults.get(id)
        with self._lock:
            busy = id in self._tasks
        late = fault is None or fault.until <= now
        return late and not busy and self._place(id).queue == self.queue
