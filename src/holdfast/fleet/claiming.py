"""The base of backends whose wakes are rows of a database, and the loop that makes claims and gives
them back."""

from __future__ import annotations

import logging
import random
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from holdfast.errors import StoreError
from holdfast.fleet.backend import (
    DEFAULT_QUEUE,
    FleetBackend,
    Handler,
    Placement,
    Room,
    Wake,
)
from holdfast.fleet.database import FleetDatabase, FleetStatements

_log = logging.getLogger("holdfast")

MAX_TENANTS = 100  # tenants that one claim looks at; the next claim continues after them
_ERROR_SECONDS = 1.0  # between two attempts while the database does not answer


class ReturnedClaim(NamedTuple):
    """A claim that is given back; see `Serving.finish`."""

    wake: Wake
    again_after: float | None


class WakeClaims(ABC):
    """The claims of one worker on the wakes of its queue, as statements in a transaction.

    Args:
        worker: The worker's token.
        queue: The queue.
        tenant_limit: The largest number of one tenant's claims by all workers of the queue.
    """

    def __init__(self, worker: str, queue: str, tenant_limit: int | None) -> None:
        self.worker = worker
        self.queue = queue
        self._limit = tenant_limit
        self._after = ""  # the last tenant that the last claim looked at

    def begin(self, db: FleetStatements) -> None:  # noqa: B027 - few engines know their workers
        """Register the worker with the engine."""

    def end(self, db: FleetStatements) -> None:  # noqa: B027
        """Undo `begin`."""

    @abstractmethod
    def is_waiting(self, database: FleetDatabase) -> bool:
        """Return True if a wake waits. Writes nothing."""

    def name_of(self, tenant: str) -> str:
        """Return the name by which the other methods know a tenant."""
        return tenant

    @abstractmethod
    def waiting_tenants(self, db: FleetStatements, after: str) -> list[str]:
        """Return at most `MAX_TENANTS` tenants with a waiting wake, in order, after this one; ""
        is before all others, and included."""

    @abstractmethod
    def running(self, db: FleetStatements) -> Counter[str]:
        """Return the number of claims of all workers, by tenant."""

    @abstractmethod
    def pick(self, db: FleetStatements, tenant: str, most: int) -> list[Wake]:
        """Claim waiting wakes of a tenant, those of the highest priority first."""

    @abstractmethod
    def give_back(self, db: FleetStatements, finished: Sequence[ReturnedClaim]) -> None:
        """Remove claims, or let them wait again."""

    @abstractmethod
    def restore(
        self, db: FleetStatements, wakes: Sequence[Wake], lost_workers: Sequence[str]
    ) -> None:
        """Let wakes wait that are missing or claimed by a lost worker."""

    def claim(self, db: FleetStatements, room: Room) -> list[Wake]:
        """Claim waiting conversations: again and again one of the tenant that has the fewest
        running in the whole queue."""
        if self._limit is not None:  # two workers that count at once would both take the rest
            db.serialize(f"fleet claims {self.queue}")
        running = self.running(db)
        full = {self.name_of(one) for one in room.full}
        tenants = [one for one in self._tenants(db) if one not in full]
        random.shuffle(tenants)  # which of two equal tenants is first must not depend on its name
        wakes: list[Wake] = []
        while tenants and len(wakes) < room.free:
            shares = self._shares(tenants, running, room.free - len(wakes))
            if not shares:
                break
            for tenant, share in shares.items():
                picked = self.pick(db, tenant, share)
                wakes += picked
                running[tenant] += len(picked)
                if len(picked) < share:
                    tenants.remove(tenant)
        return wakes

    def _tenants(self, db: FleetStatements) -> list[str]:
        tenants = self.waiting_tenants(db, self._after)
        if self._after and len(tenants) < MAX_TENANTS:
            tenants = list(dict.fromkeys([*tenants, *self.waiting_tenants(db, "")]))[:MAX_TENANTS]
        self._after = tenants[-1] if len(tenants) >= MAX_TENANTS else ""
        return tenants

    def _shares(self, tenants: Sequence[str], running: Counter[str], free: int) -> dict[str, int]:
        """Divide free places among tenants, so that all have equally many running."""
        shares: Counter[str] = Counter()
        for _ in range(free):
            open_ones = [
                one
                for one in tenants
                if self._limit is None or running[one] + shares[one] < self._limit
            ]
            if not open_ones:
                break
            shares[min(open_ones, key=lambda one: running[one] + shares[one])] += 1
        return dict(shares)


class ClaimLoop:
    """A thread that gives claims back and makes new ones, many of both in one transaction."""

    def __init__(
        self,
        database: FleetDatabase,
        handler: Handler,
        claims: WakeClaims,
        poll: float,
    ) -> None:
        self._database = database
        self._handler = handler
        self._claims = claims
        self._poll = poll
        self._news = threading.Event()
        self._lock = threading.Lock()
        self._finished: list[ReturnedClaim] = []
        self._stopped = self.closed = False
        database.transact(claims.begin)
        self._thread = threading.Thread(target=self._main, name="holdfast-fleet", daemon=True)
        self._thread.start()

    def ring(self) -> None:
        self._news.set()

    def finish(self, wake: Wake, again_after: float | None = None) -> None:
        with self._lock:
            self._finished.append(ReturnedClaim(wake, again_after))
        self._news.set()

    def restore(self, wakes: Sequence[Wake], lost_workers: Sequence[str]) -> set[str]:
        def work(db: FleetStatements) -> None:
            # In one order, so that workers do not deadlock.
            self._claims.restore(db, sorted(wakes), lost_workers)

        self._database.transact(work)
        self.ring()
        return {wake.conversation for wake in wakes}

    def stop(self) -> None:
        self._stopped = True

    def close(self, timeout: float) -> None:
        self._stopped = self.closed = True
        self._news.set()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _main(self) -> None:
        failed = False
        while True:
            closing = self.closed  # before the last exchange, which writes what finished by then
            self._news.clear()
            try:
                claimed = self._exchange()
                failed = False
            except Exception as error:
                if not failed and not closing:
                    show = not isinstance(error, StoreError)
                    _log.warning("wakes cannot be claimed at present: %s", error, exc_info=show)
                failed, claimed = True, []
            if closing:
                with suppress(StoreError):
                    self._database.transact(self._claims.end)
                return
            for wake in claimed:
                self._handler.take(wake)
            if not claimed:
                self._news.wait(_ERROR_SECONDS if failed else self._poll)

    def _exchange(self) -> list[Wake]:
        """Give claims back and make new ones."""
        room = Room(0) if self._stopped else self._handler.room()
        with self._lock:
            finished, self._finished = self._finished, []
        # A transaction that is needed anyway also finds out whether a wake waits.
        claims_more = room.free > 0 and (bool(finished) or self._claims.is_waiting(self._database))
        if not finished and not claims_more:
            return []

        def work(db: FleetStatements) -> list[Wake]:
            if finished:
                self._claims.give_back(db, finished)
            return self._claims.claim(db, room) if claims_more else []

        try:
            return self._database.transact(work)
        except Exception:
            with self._lock:
                self._finished = [*finished, *self._finished]
            raise


class ClaimingBackend(FleetBackend):
    """A backend whose wakes are rows of a database.

    Args:
        database: The fleet's tables.
        poll: Seconds between two looks for wakes that other processes wrote.
    """

    def __init__(self, database: FleetDatabase, poll: float) -> None:
        self._database = database
        self._poll = poll
        self._serving: list[ClaimLoop] = []

    @abstractmethod
    def _claims(self, worker: str, queue: str, tenant_limit: int | None) -> WakeClaims:
        """Return the claims of a worker."""

    @abstractmethod
    def _put(self, db: FleetStatements, conversation: str, place: Placement, later: float) -> None:
        """Write a wake that rings in `later` seconds."""

    @abstractmethod
    def _put_all(self, db: FleetStatements, conversations: Sequence[tuple[str, Placement]]) -> None:
        """Write wakes that ring now."""

    @property
    def database(self) -> FleetDatabase:
        return self._database

    def wake(
        self,
        conversation: str,
        tenant: str = "",
        priority: int = 0,
        transaction: object = None,
        *,
        queue: str = DEFAULT_QUEUE,
    ) -> None:
        place = Placement(tenant, priority, queue)
        self._write(lambda db: self._put(db, conversation, place, 0.0), transaction)

    def wake_all(self, conversations: Sequence[tuple[str, Placement]], transaction: object) -> None:
        self._write(lambda db: self._put_all(db, conversations), transaction)

    def _write(self, work: Callable[[FleetStatements], None], transaction: object) -> None:
        if transaction is None:
            self._database.transact(work)
        else:
            work(self._database.within(transaction))
        for serving in self._serving:
            serving.ring()

    def wake_at(
        self,
        conversation: str,
        seconds: float,
        tenant: str = "",
        priority: int = 0,
        *,
        queue: str = DEFAULT_QUEUE,
    ) -> None:
        place = Placement(tenant, priority, queue)
        self._database.transact(lambda db: self._put(db, conversation, place, max(seconds, 0.0)))

    def serve(
        self, handler: Handler, worker: str, queue: str, tenant_limit: int | None
    ) -> ClaimLoop:
        claims = self._claims(worker, queue, tenant_limit)
        serving = ClaimLoop(self._database, handler, claims, self._poll)
        self._serving = [*(one for one in self._serving if not one.closed), serving]
        return serving

    def close(self) -> None:
        for serving in self._serving:
            serving.close(1.0)
        self._database.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._database!r})"
