"""The run slots of a server: a pool of threads that drives conversations, fair between tenants."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable

import msgspec

from holdfast.object_struct import ObjectStruct

_log = logging.getLogger("holdfast")

LINGER_SECONDS = 5.0  # an idle thread waits this long for more work
# After this time a run gives its slot to a tenant that has at most as many slots as its own.
QUANTUM_SECONDS = 1.0


class _Run(ObjectStruct):
    """One conversation that is driven by a thread."""

    id: str
    tenant: str
    since: float
    again: bool = False  # True if the conversation was submitted again during the run
    slot: bool = True  # False once the slot was given back although the thread still works
    # True if the conversation was closed or deleted; a later run of the same id does not wait
    # for this one.
    detached: bool = False
    # True if the run was asked to give up its slot at its next step boundary.
    should_yield: bool = False


class RunPool(ObjectStruct):
    """Runs `work(id)` for conversations that have work, each on one thread at a time. Thread-safe.

    There are `most` slots. A free slot goes to the waiting tenant with the fewest slots. When all
    slots are taken:

    - a tenant without any slot borrows one beyond `most` at once; at most `most` slots are lent;
    - runs of the tenant with the most slots are asked to give theirs up, until slots are repaid and
      shares are equal;
    - between tenants with equal shares a run is asked after `QUANTUM_SECONDS`.

    `ask(id)` passes that request on; the run obeys between two steps, when `work` returns True.
    Conversations of one tenant run in the order in which they were submitted.

    Args:
        most: The number of slots.
        work: Does the pending work and returns True to be called again. Must not raise.
        ask: Asks a run to return from `work` at its next step boundary. Must not block.
        tenant_of: Returns the tenant of an id.
    """

    _most: int
    _work: Callable[[str], bool]
    _ask: Callable[[str], None]
    _tenant_of: Callable[[str], str]
    _changed: threading.Condition = msgspec.field(default_factory=threading.Condition)
    # Ids in order of submission, by tenant. The tenant served last is last.
    _waiting: dict[str, dict[str, None]] = {}
    # Runs with a slot that no thread has taken yet.
    _ready: deque[_Run] = msgspec.field(default_factory=deque[_Run])
    _running: dict[str, _Run] = {}  # including the ready ones
    # By tenant: taken slots, and running threads without a slot.
    _slots: Counter[str] = msgspec.field(default_factory=Counter[str])
    _stuck: Counter[str] = msgspec.field(default_factory=Counter[str])
    _threads: set[threading.Thread] = set()
    _idle: int = 0  # threads that wait for work
    _number: int = 0
    _closed: bool = False

    def submit(self, id: str) -> None:
        """Schedule a call of `work(id)`. A conversation that already waits is called once. One
        that runs is called again afterwards."""
        with self._changed:
            self._put(id)
            ids = self._relieve()
        self._tell(ids)

    def release(self, id: str) -> None:
        """Take the slot of a run that was cut off, even if its thread works on. Of a tenant at most
        `most` threads work without a slot, so that their number is bounded."""
        with self._changed:
            run = self._running.get(id)
            if run is None or not run.slot or self._stuck[run.tenant] >= self._most:
                return
            self._give_back(run)
            self._stuck[run.tenant] += 1
            run.should_yield = True
            self._dispatch()
            ids = [id, *self._relieve()]  # if it is resumed meanwhile, it queues for a slot again
        self._tell(ids)

    def detach(self, id: str) -> None:
        """Forget the run of a conversation that was closed. A new run does not wait for its
        thread."""
        with self._changed:
            run = self._running.pop(id, None)
            if run is not None:
                run.detached = True
                if run.again:
                    self._put(id)

    def tend(self) -> None:
        """Ask runs that have had their slots long enough, and ask earlier ones again. Called every
        `QUANTUM_SECONDS`."""
        with self._changed:
            self._relieve()
            ids = [run.id for run in self._running.values() if run.should_yield]
        self._tell(ids)

    def busy(self, id: str) -> bool:
        with self._changed:
            return id in self._waiting.get(self._tenant_of(id), ()) or id in self._running

    def counts(self) -> tuple[int, int, int]:
        """Return the numbers of waiting conversations, taken slots, and threads."""
        with self._changed:
            return sum(map(len, self._waiting.values())), self._slots.total(), len(self._threads)

    # --- slots, under the lock ---

    def _put(self, id: str) -> None:
        if self._closed:
            return
        run = self._running.get(id)
        if run is not None:
            run.again = True
            return
        waiting = self._waiting.setdefault(self._tenant_of(id), {})
        if id not in waiting:
            waiting[id] = None
            self._dispatch()

    def _dispatch(self, taking: int = 0) -> None:
        """Give free slots to waiting conversations. `taking` threads take ready runs as soon as
        they have the lock."""
        while (tenant := self._next_tenant()) is not None:
            waiting = self._waiting.pop(tenant)
            id = next(iter(waiting))
            del waiting[id]
            if waiting:
                self._waiting[tenant] = waiting
            run = self._running[id] = _Run(id, tenant, time.monotonic())
            self._slots[tenant] += 1
            self._ready.append(run)
            if len(self._ready) > self._idle + taking:
                self._start_thread()
            elif len(self._ready) > taking:
                self._changed.notify()

    def _next_tenant(self) -> str | None:
        if not self._waiting or self._closed:
            return None
        # Of tenants with equally many slots, the first was served longest ago.
        tenant = min(self._waiting, key=self._slots.__getitem__)
        busy = self._slots.total()
        lent = not self._slots[tenant] and busy < 2 * self._most
        return tenant if busy < self._most or lent else None

    def _give_back(self, run: _Run) -> None:
        run.slot = False
        _decrease(self._slots, run.tenant)

    def _relieve(self) -> list[str]:
        """Return the runs to ask for their slots, assuming that runs asked before give theirs
        up."""
        if not self._waiting and self._slots.total() <= self._most:
            return []
        slots = Counter(self._slots)
        runs = [run for run in self._running.values() if run.slot]
        for run in runs:
            if run.should_yield:
                slots[run.tenant] -= 1
        free = sum(run.should_yield for run in runs) - max(0, self._slots.total() - self._most)
        runs = sorted((run for run in runs if not run.should_yield), key=lambda run: run.since)
        wanting = {tenant: len(ids) for tenant, ids in self._waiting.items()}
        now, ids = time.monotonic(), list[str]()
        while True:
            wanting = {tenant: count for tenant, count in wanting.items() if count}
            waiting = min(wanting, key=slots.__getitem__, default=None)
            if free > 0:  # a slot will be free soon
                if waiting is None:
                    return ids
                free -= 1
                run = None
            else:
                run = self._victim(runs, slots, waiting, free < 0, now)
                if run is None:
                    return ids
                runs.remove(run)
                run.should_yield = True
                ids.append(run.id)
                slots[run.tenant] -= 1
                if free < 0:  # this slot repays a lent one
                    free += 1
                    continue
            if waiting is not None:
                slots[waiting] += 1
                wanting[waiting] -= 1

    def _victim(
        self, runs: list[_Run], slots: Counter[str], waiting: str | None, lent: bool, now: float
    ) -> _Run | None:
        """Return the run that gives up its slot for the tenant `waiting`, or to repay a lent
        slot."""
        for run in sorted(runs, key=lambda run: -slots[run.tenant]):
            own = slots[run.tenant]
            if lent and own > 1:
                return run
            if waiting is not None and run.tenant != waiting:
                late = now - run.since >= QUANTUM_SECONDS
                if own > slots[waiting] + 1 or (late and own >= slots[waiting]):
                    return run
        return None

    def _tell(self, ids: list[str]) -> None:
        for id in ids:
            self._ask(id)

    # --- threads ---

    def _start_thread(self) -> None:
        self._number += 1
        thread = threading.Thread(
            target=self._main, name=f"holdfast-host-{self._number}", daemon=True
        )
        self._threads.add(thread)
        thread.start()

    def _main(self) -> None:
        done: _Run | None = None
        more = False
        try:
            while (run := self._take(done, more)) is not None:
                done, more = run, False
                try:
                    more = self._work(run.id)
                except Exception:
                    _log.exception("conversation %s: driving it failed", run.id)
        finally:
            with self._changed:
                self._threads.discard(threading.current_thread())
                self._changed.notify_all()

    def _take(self, done: _Run | None, more: bool) -> _Run | None:
        """Settle the run that this thread has finished and wait for the next one. Return None if
        the thread should end."""
        with self._changed:
            if done is not None:
                self._settle(done, more)
            ids = self._relieve()
        self._tell(ids)
        with self._changed:
            until = time.monotonic() + LINGER_SECONDS
            while not self._ready:
                seconds_left = until - time.monotonic()
                if self._closed or seconds_left <= 0:
                    # Under the lock, so that `submit` does not rely on this thread.
                    self._threads.discard(threading.current_thread())
                    return None
                self._idle += 1
                try:
                    self._changed.wait(seconds_left)
                finally:
                    self._idle -= 1
            if self._closed:
                return None
            run = self._ready.popleft()
            run.since = time.monotonic()
            return run

    def _settle(self, done: _Run, more: bool) -> None:
        if done.slot:
            self._give_back(done)
        else:
            _decrease(self._stuck, done.tenant)
        if not done.detached:
            del self._running[done.id]
            if (more or done.again) and not self._closed:
                self._waiting.setdefault(done.tenant, {})[done.id] = None
        self._dispatch(taking=1)

    def close(self, timeout: float) -> bool:
        """Accept nothing more and wait for the running work. Return True if all of it ended."""
        until = time.monotonic() + timeout
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._ready.clear()
            self._changed.notify_all()
            threads = list(self._threads)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)


def _decrease(counts: Counter[str], tenant: str) -> None:
    counts[tenant] -= 1
    if not counts[tenant]:
        del counts[tenant]
