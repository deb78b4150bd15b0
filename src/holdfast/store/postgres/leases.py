"""The owner of a store's leases: a row whose heartbeat keeps all of them alive.

A lease lives while its owner has a row. If an owner's last beat is too old, another store deletes
that row before it takes a lease. An owner that comes back, such as from a SIGSTOP, then finds that
it has lost all its leases. Beats and their age are measured by the clock of the database. An owner
decides by its own clock, which only runs forward, what it may still begin.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, LiteralString

import psycopg

from holdfast.errors import StoreError
from holdfast.store.postgres.pool import Connection, Pool, integers, reason

_log = logging.getLogger("holdfast")

# The part of a lease that `LeaseOwner.confirms` leaves out: the time between a confirmation and its
# effect, and differences in speed between two clocks.
_MARGIN = 1 / 6
_BEATS_PER_LEASE = 3
# A closing store tries this long to give its leases back. They end by themselves soon after.
_CLOSE_SECONDS = 2.0

# The condition that the owner `o` lives. While the database is down no owner can beat, so after its
# start every owner has the time of a lease.
LIVES = "greatest(o.beat, pg_postmaster_start_time()) + o.lease >= clock_timestamp()"
_DIED = "greatest(beat, pg_postmaster_start_time()) + lease < clock_timestamp()"

_REGISTER = """
INSERT INTO owners (token, beat, lease, channel, label)
VALUES (%s, clock_timestamp(), make_interval(secs => %s), %s, %s) ON CONFLICT DO NOTHING
"""
_BEAT = "UPDATE owners SET beat = clock_timestamp() WHERE token = %s RETURNING token"
_SWEEP_OWNERS = f"DELETE FROM owners WHERE {_DIED}"
_SWEEP_WATCHERS = """
DELETE FROM watchers w WHERE NOT EXISTS (SELECT FROM owners o WHERE o.channel = w.channel)
"""
# Nobody asks for the outcome of a transaction for a day.
_SWEEP_ATTEMPTS = "DELETE FROM attempts WHERE at < clock_timestamp() - interval '1 day'"
_END = "DELETE FROM owners WHERE token = %s"
_RELEASE_ALL = "UPDATE conversations SET owner = '', notes = '' WHERE owner = %s"

# Take the leases of known conversations that are free. The update repeats the facts that the first
# part saw: if another store was faster, `taken` has no row and the caller looks again.
_TAKE: LiteralString = f"""
WITH seen AS (
    SELECT c.id, c.number, c.epoch, c.owner, c.notes, c.spawned_by, c.needs,
    w.held, w.taker FROM {{wanted}} AS w(id, held, taker) JOIN conversations c ON c.id = w.id
), dead AS (
    DELETE FROM owners USING seen
    WHERE token = seen.owner AND token <> seen.taker AND needs <= %(version)s AND {_DIED}
    RETURNING token
), free AS (
    SELECT s.* FROM seen s LEFT JOIN owners o ON o.token = s.owner
    WHERE s.needs <= %(version)s AND (o.token IS NULL OR s.owner IN (SELECT token FROM dead)
    OR (s.owner = s.taker AND s.epoch <> s.held))
), taken AS (
    UPDATE conversations c SET epoch = nextval('epochs'), owner = f.taker
    FROM free f WHERE c.number = f.number AND c.epoch = f.epoch AND c.owner = f.owner
    RETURNING c.number, c.epoch, c.last_seq
)
SELECT {{key}}s.number, t.epoch, t.last_seq, s.owner, o.label, s.notes, s.spawned_by, s.needs,
EXISTS (SELECT FROM free f WHERE f.number = s.number), EXISTS (SELECT FROM budgets)
FROM seen s LEFT JOIN taken t ON t.number = s.number LEFT JOIN owners o ON o.token = s.owner
"""
TAKE: LiteralString = _TAKE.format(
    wanted="(SELECT %(id)s::text, %(held)s::bigint, %(owner)s::text)", key=""
)
TAKE_GROUP: LiteralString = _TAKE.format(
    wanted="unnest(%(id)b::text[], %(held)s::bigint[], %(owner)b::text[])", key="s.id, "
)

BEGIN = """
INSERT INTO conversations (id, epoch, owner, created, updated)
VALUES (%s, nextval('epochs'), %s, clock_timestamp(), clock_timestamp())
ON CONFLICT DO NOTHING RETURNING number, epoch
"""

RELEASE = """
UPDATE conversations SET owner = '', notes = '' WHERE number = %(number)s AND epoch = %(epoch)s
"""
RELEASE_GROUP = """
UPDATE conversations c SET owner = '', notes = ''
FROM unnest(%(number)s::bigint[], %(epoch)s::bigint[]) AS g(number, epoch)
WHERE c.number = g.number AND c.epoch = g.epoch RETURNING c.number
"""


# Conversations that have work and no living owner: of dead owners, with undone commands, and
# running ones that were given back.
OWNED = f"EXISTS (SELECT FROM owners o WHERE o.token = c.owner AND {LIVES})"
ORPHANED = f"""
SELECT c.number, c.id FROM conversations c
WHERE c.owner <> '' AND c.spawned_by = '' AND c.needs <= %(version)s AND NOT {OWNED}
ORDER BY c.number LIMIT %(limit)s
"""
_WAITING = f"""
SELECT c.number, c.id FROM conversations c JOIN (
    SELECT DISTINCT conversation FROM inbox
    WHERE data IS NOT NULL AND conversation > %(after)s
) i ON i.conversation = c.number
WHERE c.needs <= %(version)s AND (c.owner = '' OR NOT {OWNED})
"""
_PARKED = """
SELECT c.number, c.id FROM conversations c
WHERE c.status = 'running' AND c.owner = '' AND c.spawned_by = '' AND c.number > %(after)s
AND c.needs <= %(version)s
"""
WAITING = f"{_WAITING} ORDER BY number LIMIT %(limit)s"
WAITING_OR_PARKED = f"{_WAITING} UNION {_PARKED} ORDER BY number LIMIT %(limit)s"


def take_group(takes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the values of `TAKE_GROUP` for values of `TAKE`."""
    texts = {name: [one[name] for one in takes] for name in ("id", "owner")}
    epochs = integers([one["held"] for one in takes])
    return {**texts, "held": epochs, "version": takes[0]["version"]}


def release_group(releases: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the values of `RELEASE_GROUP` for values of `RELEASE`."""
    return {name: integers([one[name] for one in releases]) for name in ("number", "epoch")}


def running_clock() -> float:
    """Return the seconds of a clock that is never set. On Linux it also counts the time that the
    machine sleeps."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class LeaseOwner:
    """A row of `owners` and the thread that renews it, from the first `token` to `close`.

    Args:
        lost: Called when another store has declared this owner dead; its leases are gone. The
            next `token` is a new one.
    """

    def __init__(
        self,
        pool: Pool,
        channel: str,
        lease_seconds: float,
        clock: Callable[[], float],
        notify_lost: Callable[[], None],
    ) -> None:
        self._pool = pool
        self._channel = channel
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._notify_lost = notify_lost
        self._lock = threading.Lock()
        self._token = ""
        self._until = 0.0
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()

    def confirms(self, token: str) -> bool:
        """Return True if the leases of `token` cannot have ended yet. `token` must be this owner's
        present name, and its last successful beat young enough."""
        return token == self._token and self._clock() < self._until

    @property
    def present(self) -> str:
        """The owner's name in the rows of its leases, "" for none."""
        return self._token

    def token(self) -> str:
        """Return the owner's name. Registers the owner if it has none."""
        if not self._token:
            with self._lock:
                if not self._token:
                    self._register()
        return self._token

    def confirmed_token(self) -> str:
        """Return the owner's name for a new lease, once the database has confirmed it.

        A process that was cut off or frozen may have been declared dead. A lease under its old
        name would be taken over at once. Raises `StoreError`.
        """
        while not self.confirms(token := self.token()):
            start = self._clock()
            self._note_beat(token, start, bool(self._pool.execute(_BEAT, (token,)).rows))
        return token

    def _register(self) -> None:
        start = self._clock()
        token = os.urandom(12).hex()
        label = f"process {os.getpid()} on {os.uname().nodename}"
        self._pool.execute(_SWEEP_OWNERS)
        self._pool.execute(_SWEEP_WATCHERS)
        self._pool.execute(_SWEEP_ATTEMPTS)
        self._pool.execute(_REGISTER, (token, self._lease_seconds, self._channel, label))
        self._prolong(start)
        self._token = token
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="holdfast-store-beat", daemon=True
            )
            self._thread.start()

    def _prolong(self, start: float) -> None:
        self._until = start + self._lease_seconds * (1 - _MARGIN)

    # --- the thread ---

    def _run(self) -> None:
        connection: Connection | None = None
        failed = False
        pause = self._lease_seconds / _BEATS_PER_LEASE
        while not self._ending.wait(pause / 4 if failed else pause):
            try:
                # A connection of its own: a busy pool must not end the leases.
                connection = connection or self._pool.connect()
                self._beat(connection)
                failed = False
            except (psycopg.Error, StoreError) as error:
                if connection is not None:
                    connection.close()
                    connection = None
                if not failed and not self._ending.is_set():
                    text = reason(error) if isinstance(error, psycopg.Error) else str(error)
                    _log.warning("the leases of a store cannot be renewed at present: %s", text)
                failed = True
        if connection is not None:
            connection.close()

    def _beat(self, connection: Connection) -> None:
        token = self._token
        if not token:
            return
        start = self._clock()
        self._note_beat(token, start, bool(connection.execute(_BEAT, (token,)).rowcount))

    def _note_beat(self, token: str, start: float, lives: bool) -> None:
        """Prolong the leases, or give them up if the owner has no row any more."""
        with self._lock:
            if token != self._token:
                return  # another thread has noticed it
            if lives:
                self._prolong(start)
                return
            self._token = ""
            self._until = 0.0
        _log.warning("a store did not renew its leases in time, and lost them")
        self._notify_lost()

    def close(self) -> None:
        """End the thread and release all leases, as far as the database can be reached."""
        self._ending.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(10)  # bounded: it may be waiting for a database that is away
        token, self._token, self._until = self._token, "", 0.0
        if token:
            with suppress(StoreError):
                self._pool.execute(_RELEASE_ALL, (token,), _CLOSE_SECONDS)
                self._pool.execute(_END, (token,), _CLOSE_SECONDS)
