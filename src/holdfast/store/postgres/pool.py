"""Connections to Postgres: a pool that survives a restart of the database, and statements that run
again if that is safe.

A single statement that is repeatable, or whose caller can tell whether it ran, goes to
`Pool.execute`. Anything else goes to `Pool.run`, which finds out whether a transaction happened if
its COMMIT got no answer. Each transaction writes its number into the row of its connection in
`attempts`. Its transaction id would not tell, because a server that crashed uses the ids of lost
transactions again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, LiteralString, NamedTuple, TypeAlias, TypeVar

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus
from psycopg.rows import TupleRow

from holdfast.errors import ConfigurationError, StoreError
from holdfast.processes import OwnerProcess
from holdfast.store.postgres.connection import AttemptNumber, Connection, Values

T = TypeVar("T")
Cursor: TypeAlias = psycopg.Cursor[TupleRow]

_log = logging.getLogger("holdfast")

OLDEST_SERVER = 14  # its protocol reports a standby at once, and ours is tested with 15 and 18

# Parameters of libpq that the DSN may set otherwise. A dead network is noticed within about 12
# seconds. read-write: after a failover the new primary is wanted, not the old one.
_DEFAULTS = {
    "application_name": "holdfast",
    "connect_timeout": "5",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "12000",
    "target_session_attrs": "read-write",
}
# A frozen process must not hold the lock of a row for longer than its lease lives.
_SESSION = (
    "SET search_path = {schema}; SET timezone = 'UTC'; SET bytea_output = 'hex';"
    " SET client_encoding = 'UTF8'; SET idle_in_transaction_session_timeout = {idle}"
)
_IDLE_IN_TRANSACTION_MILLISECONDS = 5000

# The first and longest pauses between two attempts to reach the database, in seconds.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5
# The number of a connection's last transaction; the second waits for one that is not over yet.
_ATTEMPT = """
BEGIN; INSERT INTO attempts VALUES ('{name}', {number}, clock_timestamp()) ON CONFLICT (name)
DO UPDATE SET number = excluded.number, at = excluded.at
"""
_ATTEMPTED = """
INSERT INTO attempts VALUES (%s, 0, clock_timestamp()) ON CONFLICT (name)
DO UPDATE SET at = excluded.at RETURNING number
"""
# SQLSTATEs after which the connection is useless: shutdowns (57P), lost connections (08), an ended
# frozen transaction (25P03), and a primary that became a standby (25006).
_BROKEN = ("57P01", "57P02", "57P03", "57P05", "25P03", "25006")
# Errors of a transaction that has not happened and may be tried again: a deadlock, and a conflict
# of serializable transactions.
_AGAIN = ("40P01", "40001")


class _Turns:
    """A number of places that waiting threads get in turn. With a `threading.Semaphore`, a thread
    that gives its place back and wants another one at once could pass the waiting ones for ever."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._lock = threading.Lock()
        self._waiting: deque[threading.Event] = deque()

    def acquire(self, timeout: float) -> bool:
        """Take a place. Return False if there was none for `timeout` seconds."""
        with self._lock:
            if self._places and not self._waiting:
                self._places -= 1
                return True
            turn = threading.Event()
            self._waiting.append(turn)
        try:
            turn.wait(timeout)
        except BaseException:  # Ctrl-C
            if self._has_ended(turn):
                self.release()
            raise
        return self._has_ended(turn)

    def _has_ended(self, turn: threading.Event) -> bool:
        """End a wait. Return True if it got a place."""
        with self._lock:
            if not turn.is_set():
                self._waiting.remove(turn)
            return turn.is_set()

    def release(self) -> None:
        """Give a place to the first thread that waits, or back."""
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._places += 1


class StatementRows(NamedTuple):
    """The rows of a statement. `again` is True if the connection broke at an earlier attempt, which
    then may have run too."""

    rows: list[TupleRow]
    again: bool


class Pool:
    """At most `size` connections to the database `dsn`, each in autocommit mode with `schema` as
    its search path.

    Args:
        timeout: Seconds to wait for a free connection, and for a database that is away.
    """

    def __init__(self, dsn: str, schema: str, size: int, timeout: float) -> None:
        self._parameters = _parse(dsn)
        # The address without its secrets: `postgresql://user@host:port/database`.
        self.place = _place(self._parameters)
        self.schema = schema
        self.size = size
        self.timeout = timeout
        self._idle: list[Connection] = []
        self._turns = _Turns(size)
        self._lock = threading.Lock()
        self._process = OwnerProcess()
        self.closed = False

    def __repr__(self) -> str:
        return f"Pool({self.place!r})"

    # --- connections ---

    def connect(self) -> Connection:
        """Return a new connection outside the pool, which the caller closes. Raises
        `psycopg.OperationalError` if the database cannot be reached, `StoreError` if it is too
        old."""
        connection = Connection.connect(make_conninfo("", **self._parameters), autocommit=True)
        try:
            if (version := connection.info.server_version) < OLDEST_SERVER * 10_000:
                raise StoreError(
                    f"Store {self.place!r} runs PostgreSQL {version // 10_000}; Holdfast needs"
                    f" {OLDEST_SERVER} or newer."
                )
            session = sql.SQL(_SESSION).format(
                schema=sql.Identifier(self.schema),
                idle=sql.Literal(_IDLE_IN_TRANSACTION_MILLISECONDS),
            )
            connection.execute(session)
        except BaseException:
            connection.close()
            raise
        return connection

    @contextmanager
    def connection(self, deadline: float | None = None) -> Generator[Connection]:
        """Lend a connection in autocommit mode. Raises `StoreError` if none is free in time, and
        the errors of `connect`."""
        connection = self._lend(deadline)
        try:
            yield connection
        finally:
            self._give_back(connection)

    def _lend(self, deadline: float | None) -> Connection:
        self.check()
        wait = self.timeout if deadline is None else max(deadline - time.monotonic(), 0.0)
        if not self._turns.acquire(wait):
            raise StoreError(
                f"Store {self.place!r}: all {self.size} connections were busy for"
                f" {self.timeout:g} s. Raise pool_size, or lower the number of threads."
            )
        try:
            with self._lock:
                if self._idle:
                    return self._idle.pop()
            return self.connect()
        except BaseException:
            self._turns.release()
            raise

    def _give_back(self, connection: Connection) -> None:
        try:
            # In a transaction: the borrower was interrupted, such as by Ctrl-C. A closed one is in
            # none of the known states.
            sound = connection.pgconn.transaction_status == TransactionStatus.IDLE
            with self._lock:
                if sound and not self.closed:
                    self._idle.append(connection)
                    return
            connection.close()
        finally:
            self._turns.release()

    def check(self) -> None:
        """Raise `StoreError` if the pool is closed, `WrongProcess` in a forked child."""
        self._process.check(f"Store {self.place!r}")
        if self.closed:
            raise StoreError(f"Store {self.place!r} is closed.")

    def drop(self) -> None:
        """Close the idle connections: one of their kind was found broken."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def close(self) -> None:
        """Close all connections; lent ones when they come back. Idempotent."""
        self.closed = True
        self.drop()

    # --- statements ---

    def execute(
        self, query: LiteralString, values: Values = (), timeout: float | None = None
    ) -> StatementRows:
        """Run one statement in its own transaction; again if its connection breaks, for `timeout`
        seconds (None: those of the pool). Raises `StoreError`."""
        again = False
        for deadline in self._attempts(timeout):
            connection = None
            try:
                connection = self._lend(deadline)
                try:
                    return StatementRows(connection.statements.rows(query, values), again)
                finally:
                    self._give_back(connection)
            except (psycopg.Error, UnicodeError) as error:
                again = self._handle_error(error, connection) or again
        raise self._away()

    def run(self, work: Callable[[Cursor], T], repeatable: bool = False) -> T:
        """Run `work`, which has no other effects, in a transaction, and again if that has not
        happened. A `repeatable` `work` may run again although it has. Raises `StoreError`, and the
        `HoldfastError`s of `work`."""
        for deadline in self._attempts():
            connection: Connection | None = None
            number: AttemptNumber | None = None
            result: list[T] = []
            try:
                with self.connection(deadline) as connection:
                    number = None if repeatable else connection.next_attempt()
                    result = [self._work(connection, work, number)]
                    connection.execute("COMMIT")
                    return result[0]
            except (psycopg.Error, UnicodeError) as error:
                is_lost = self._handle_error(error, connection)
            if number and result and is_lost and self._was_committed(number, deadline):
                return result[0]
        raise self._away()

    @staticmethod
    def _work(
        connection: Connection, work: Callable[[Cursor], T], number: AttemptNumber | None
    ) -> T:
        """Begin a transaction, with a number if one is given, and return what `work` returns
        in it."""
        begin = "BEGIN" if number is None else _ATTEMPT.format(**number._asdict())
        with connection.cursor(binary=True) as cursor:
            connection.execute(begin.encode())
            try:
                return work(cursor)
            except BaseException:
                with suppress(psycopg.Error):
                    connection.execute("ROLLBACK")
                raise

    def _was_committed(self, number: AttemptNumber, deadline: float) -> bool:
        """Return True if a transaction happened whose COMMIT got no answer."""
        while True:
            connection: Connection | None = None
            try:
                with self.connection(deadline) as connection:
                    row = connection.execute(_ATTEMPTED, (number.name,)).fetchone()
                    return row is not None and row[0] == number.number
            except (psycopg.Error, UnicodeError) as error:
                self._handle_error(error, connection)
            if time.monotonic() > deadline:
                raise StoreError(
                    f"Store {self.place!r}: the connection broke, and the outcome of a write is"
                    " unknown. Read it back before writing it again."
                )
            time.sleep(_FIRST_PAUSE)

    def _attempts(self, timeout: float | None = None) -> Iterator[float]:
        """Yield the deadline once per attempt, with growing pauses, until it has passed."""
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        pause = _FIRST_PAUSE
        yield deadline
        while time.monotonic() + pause < deadline:
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
            yield deadline

    def _handle_error(
        self, error: psycopg.Error | UnicodeError, connection: Connection | None
    ) -> bool:
        """Return True if a statement was lost with its connection, False if it has not happened
        and may be tried again. Raises `StoreError` for other errors."""
        if isinstance(error, UnicodeError):
            raise StoreError(f"Store {self.place!r}: the text is no UTF-8 ({error}).") from error
        if broken(error):
            self._reason = reason(error)
            self.drop()
            if connection is None and _is_refusal(error):
                raise self.unreachable(error) from None
            return connection is not None
        if error.sqlstate not in _AGAIN:
            raise StoreError(f"Store {self.place!r}: {reason(error)}.") from error
        return False

    _reason = ""

    def _away(self) -> StoreError:
        return StoreError(
            f"Store {self.place!r} did not answer for {self.timeout:g} s ({self._reason})."
        )

    def unreachable(self, error: psycopg.Error) -> StoreError:
        """Return the error for a database that takes no connection: one line that says what to
        do."""
        text = reason(error)
        advice = "Start it, or correct the host and port of the DSN."
        if "password" in text or "authentication" in text or "no pg_hba.conf" in text:
            advice = "Correct the user and password of the DSN, or the server's pg_hba.conf."
        elif "does not exist" in text:
            advice = "Create it, or correct the DSN."
        elif "too many" in text or "slots" in text:
            advice = "Lower pool_size, or raise the server's max_connections."
        return StoreError(f"Store {self.place!r} cannot be reached: {text}. {advice}")


def integers(values: Sequence[int]) -> str:
    """Return an array of whole numbers as a parameter, which costs less than a list does."""
    return f"{{{','.join(map(str, values))}}}"


def broken(error: psycopg.Error) -> bool:
    """Return True if the error means that the connection is lost."""
    if error.sqlstate is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return error.sqlstate in _BROKEN or error.sqlstate.startswith("08")


def _is_refusal(error: psycopg.Error) -> bool:
    """Return True if the server refuses this user or database, which no waiting changes."""
    text = str(error)
    return "authentication failed" in text or "no pg_hba.conf" in text or "does not exist" in text


def reason(error: psycopg.Error) -> str:
    """Return the first line of the server's message, without a full stop."""
    text = error.diag.message_primary or str(error).strip().splitlines()[0]
    # Before it are the host and port, which the error names already.
    _, separator, fatal = text.partition("FATAL:")
    return (fatal if separator else text).strip().rstrip(".")


def _place(parameters: Mapping[str, Any]) -> str:
    part = {key: str(value) for key, value in parameters.items() if value is not None}
    user = f"{part['user']}@" if "user" in part else ""
    port = f":{part['port']}" if "port" in part else ""
    return f"postgresql://{user}{part.get('host', '')}{port}/{part.get('dbname', '')}"


def _parse(dsn: str) -> dict[str, Any]:
    try:
        parameters = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        # The cause is left out: its message quotes the DSN, and with it the password.
        raise ConfigurationError(
            "dsn takes a URL such as 'postgresql://user:password@host:5432/database', or libpq's"
            " keywords and values."
        ) from None
    return {**_DEFAULTS, **parameters}
