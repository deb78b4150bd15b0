"""`PostgresStore` where Postgres matters: leases of frozen and dead owners, a database that goes
away, lost answers, several stores at once, and errors that keep the password."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from holdfast.commands import Pause, Send
from holdfast.errors import ConfigurationError, Fenced, LeaseHeld, StoreError
from holdfast.store import Batch, Blob, Budget, PostgresStore, Reservation, Settlement, blob_id
from holdfast.store.budgets import Amount
from holdfast.store.postgres import schema
from holdfast.store.postgres.pool import Cursor
from tests.postgres import PostgresServer, private_server
from tests.store.test_store import append, message, seqs, summary
from tests.store_parts import Process, Start, next_line, starting, tell
from tests.waiting import until

psycopg = pytest.importorskip("psycopg")

LEASE_SECONDS = 1.0
Open = Callable[..., PostgresStore]

# The first lines of a program in another process.
PRELUDE = """
from holdfast.store import PostgresStore
store = PostgresStore(sys.argv[2], schema=sys.argv[3], lease_seconds=1.0)
"""


@pytest.fixture
def open_store(postgres_server: PostgresServer, postgres_schema: str) -> Iterator[Open]:
    """Yield a function that opens stores on one schema; they are closed at the end."""
    opened: list[PostgresStore] = []

    def make(dsn: str = "", **options: Any) -> PostgresStore:
        options = {"schema": postgres_schema, "lease_seconds": LEASE_SECONDS, **options}
        opened.append(PostgresStore(dsn or postgres_server.dsn(), **options))
        return opened[-1]

    yield make
    for store in opened:
        store.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    yield from starting(tmp_path)


@pytest.fixture
def program(
    start: Start, postgres_server: PostgresServer, postgres_schema: str
) -> Callable[[str], Process]:
    """Return a function that runs a program with a store on the schema in another process."""
    return lambda text: start(PRELUDE + dedent(text), postgres_server.dsn(), postgres_schema)


def rows(server: PostgresServer, schema: str, query: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query to the database itself."""
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute(f"SET search_path = {schema}")
        return connection.execute(query).fetchall()


# --- owners ---


@pytest.mark.slow
def test_the_leases_of_a_killed_owner_are_taken_with_its_notes(
    open_store: Open, program: Callable[[str], Process]
) -> None:
    owner = program("""
        lease = store.acquire("c")
        append(store, lease, 1)
        store.note(lease, ["a mark"])
        say(lease.epoch)
        time.sleep(60)
    """)
    epoch = int(next_line(owner))
    store = open_store()
    with pytest.raises(LeaseHeld, match=f"process {owner.pid} on "):
        store.acquire("c")
    owner.kill()
    killed = time.monotonic()

    def take() -> Any:
        try:
            return store.acquire("c")
        except LeaseHeld:
            return None

    lease = until(take, "the takeover")
    assert time.monotonic() - killed < 4 * LEASE_SECONDS
    assert (lease.orphan_notes, lease.orphaned) == (("a mark",), True)
    assert lease.epoch > epoch
    append(store, lease, 2)


@pytest.mark.slow
def test_a_frozen_owner_finds_all_its_leases_lost_when_it_goes_on(
    open_store: Open, program: Callable[[str], Process]
) -> None:
    owner = program("""
        lost = []
        leases = [store.acquire(id, lambda id=id: lost.append(id)) for id in "ab"]
        for lease in leases:
            append(store, lease, 1)
            store.confirm(lease)
        say("ready")
        sys.stdin.readline()
        for lease in leases:
            try:
                store.confirm(lease)
                say("confirmed")
            except Fenced:
                say("fenced")
        for lease in leases:
            try:
                append(store, lease, 2)
                say("wrote")
            except Fenced:
                say("fenced")
        while len(lost) < 2:
            time.sleep(0.01)
        again = store.acquire("b")
        store.confirm(again)
        append(store, again, *([2] if len(store.read("b")) == 1 else [3]))
        say("new lease")
        time.sleep(60)
    """)
    assert next_line(owner) == "ready"
    os.kill(owner.pid, signal.SIGSTOP)
    store = open_store()

    def take() -> Any:
        try:
            return store.acquire("a")
        except LeaseHeld:
            return None

    lease = until(take, "the takeover")
    tell(owner, "go on")
    os.kill(owner.pid, signal.SIGCONT)
    # Both leases: a process that takes one lease of an owner declares that owner dead.
    assert [next_line(owner), next_line(owner)] == ["fenced", "fenced"]
    assert next_line(owner) == "fenced"
    assert next_line(owner) in (
        "fenced",
        "wrote",
    )  # its epoch is the newest
    assert next_line(owner) == "new lease"
    append(store, lease, 2)
    assert seqs(store, "a") == [1, 2]


def test_a_lease_is_confirmed_no_longer_than_it_lives_by_the_owners_clock(
    open_store: Open,
) -> None:
    now = [1000.0]
    store = open_store(clock=lambda: now[0], lease_seconds=60.0)
    lease = store.acquire("c")
    store.confirm(lease)
    now[0] += 49
    store.confirm(lease)
    now[0] += 2  # five sixths of the lease
    with pytest.raises(Fenced):
        store.confirm(lease)
    append(store, lease, 1)  # the fence of the journal is another one


@pytest.mark.slow
def test_an_owner_that_was_declared_dead_takes_its_next_lease_under_a_living_name(
    open_store: Open, postgres_server: PostgresServer, postgres_schema: str
) -> None:
    now = [0.0]
    store, other = open_store(clock=lambda: now[0], lease_seconds=60.0), open_store()
    old = store.acquire("a")
    rows(postgres_server, postgres_schema, "DELETE FROM owners RETURNING token")
    now[0] = 60.0  # it was frozen and has not beaten since
    store.acquire("b")
    with pytest.raises(LeaseHeld):
        other.acquire("b")
    with pytest.raises(Fenced):
        store.confirm(old)
    assert other.acquire("a").orphaned


def test_a_lease_lives_while_its_store_does_though_clocks_disagree(open_store: Open) -> None:
    from holdfast.store.postgres.leases import running_clock

    store = open_store(clock=lambda: running_clock() + 300)
    lease = store.acquire("c")
    other = open_store(clock=lambda: running_clock() - 300)
    deadline = time.monotonic() + 2.5 * LEASE_SECONDS
    while time.monotonic() < deadline:
        with pytest.raises(LeaseHeld):
            other.acquire("c")
        store.confirm(lease)
        time.sleep(0.05)
    append(store, lease, 1)


def test_of_several_stores_that_want_a_lease_one_has_it(open_store: Open) -> None:
    stores = [open_store(lease_seconds=30.0, pool_size=2) for _ in range(4)]
    barrier = threading.Barrier(len(stores))

    def take(store: PostgresStore, id: str) -> Any:
        barrier.wait()
        try:
            return store, store.acquire(id)
        except LeaseHeld:
            return None

    with ThreadPoolExecutor(len(stores)) as pool:
        for number in range(20):
            # Rounds on a new conversation, and on a released one.
            id = f"c{number // 2}"
            winners = [one for one in pool.map(take, stores, [id] * len(stores)) if one]
            assert len(winners) == 1
            store, lease = winners[0]
            append(store, lease, number % 2 + 1)
            store.release(lease)


@pytest.mark.slow
def test_of_several_stores_that_want_a_dead_owners_lease_one_has_it(
    open_store: Open, program: Callable[[str], Process]
) -> None:
    owner = program("""
        for number in range(10):
            store.acquire(f"c{number}")
        say("ready")
        time.sleep(60)
    """)
    assert next_line(owner) == "ready"
    owner.kill()
    owner.wait()
    stores = [open_store(lease_seconds=30.0, pool_size=2) for _ in range(4)]
    until(lambda: len(stores[0].unattended(100)) == 10, "the end of the leases")
    barrier = threading.Barrier(len(stores))

    def take(store: PostgresStore, id: str) -> bool:
        barrier.wait()
        try:
            return store.acquire(id).orphaned
        except LeaseHeld:
            return False

    with ThreadPoolExecutor(len(stores)) as pool:
        for number in range(10):
            assert sum(pool.map(take, stores, [f"c{number}"] * len(stores))) == 1
    assert stores[0].unattended(100) == []


@pytest.mark.slow
def test_a_reservation_of_a_dead_owner_counts_as_spent(
    open_store: Open, program: Callable[[str], Process]
) -> None:
    store = open_store()
    root = store.acquire("root")
    append(store, root, 1)
    store.bound(root, Budget("root", steps=2))
    owner = program("""
        from holdfast.store import Reservation, Amount
        lease = store.acquire("child")
        assert store.reserve(lease, Reservation("k", ("root",), Amount(steps=2), 1.0, 1.0)) is None
        say("reserved")
        time.sleep(60)
    """)
    assert next_line(owner) == "reserved"
    reservation = Reservation("l", ("root",), Amount(steps=1), 1.0, 1.0)
    shortage = store.reserve(root, reservation)
    assert shortage is not None
    assert shortage.wait
    owner.kill()

    def is_final() -> bool:
        shortage = store.reserve(root, reservation)
        assert shortage is not None
        return not shortage.wait

    until(is_final, "the end of the lease")


# --- a database that goes away ---


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_appends_are_written_once_though_the_database_restarts(mode: str) -> None:
    with private_server() as server, PostgresStore(server.dsn(), pool_size=4) as store:
        stop = threading.Event()

        def write(id: str) -> int:
            lease = store.acquire(id)
            seq = 0
            while not stop.is_set():
                seq += 1
                append(store, lease, seq)
                store.post(id, Send("hello"), str(seq))
            return seq

        with ThreadPoolExecutor(6) as pool:
            writers = [pool.submit(write, f"c{number}") for number in range(6)]
            try:
                for _ in range(3):
                    before = len(store.read("c0"))
                    until(lambda before=before: len(store.read("c0")) > before + 20, "some appends")
                    server.restart(mode)
            finally:
                stop.set()
            last_seqs = [writer.result(60) for writer in writers]
        for number, last in enumerate(last_seqs):
            assert seqs(store, f"c{number}") == list(range(1, last + 1))
            query = f"SELECT count(*) FROM inbox i JOIN conversations c ON c.number = conversation WHERE id = 'c{number}'"
            assert rows(server, "holdfast", query) == [(last,)]


@pytest.mark.slow
def test_a_restart_of_the_database_ends_no_living_lease() -> None:
    with (
        private_server() as server,
        PostgresStore(server.dsn(), lease_seconds=2.0) as store,
        PostgresStore(server.dsn(), lease_seconds=2.0) as other,
    ):
        notices: list[str] = []
        lease = store.acquire("c", lambda: notices.append("c"))
        append(store, lease, 1)
        server.stop()
        time.sleep(2.5)  # longer than the lease, and no owner could renew it
        with pytest.raises(Fenced):
            store.confirm(lease)
        server.start()
        with pytest.raises(LeaseHeld):
            other.acquire("c")

        def confirmed() -> bool:
            try:
                store.confirm(lease)
            except Fenced:
                return False
            return True

        until(confirmed, "a beat")
        append(store, lease, 2)
        other.post("c", Pause())
        until(lambda: notices, "a notice after the restart")


@pytest.mark.slow
def test_a_store_waits_for_the_database_and_then_gives_up_in_one_line() -> None:
    with private_server() as server, PostgresStore(server.dsn(), timeout=0.5) as store:
        lease = store.acquire("c")
        server.stop()
        with pytest.raises(StoreError, match=r"did not answer for 0\.5 s") as caught:
            append(store, lease, 1)
        assert len(str(caught.value).splitlines()) == 1
        server.start()
        append(store, lease, 1)


class Proxy:
    """A TCP proxy that can swallow the answer to the next statement that contains `marker`, and
    then break the connection."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.marker = b""
        self.swallowed = 0
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            self._sockets += [client, server]
            doomed = threading.Event()
            threading.Thread(target=self._up, args=(client, server, doomed), daemon=True).start()
            threading.Thread(target=self._down, args=(client, server, doomed), daemon=True).start()

    def _up(self, client: socket.socket, server: socket.socket, doomed: threading.Event) -> None:
        try:
            while data := client.recv(1 << 20):
                if self.marker and self.marker in data:
                    self.marker = b""
                    doomed.set()
                server.sendall(data)
        except OSError:
            pass
        self._end(server)

    def _down(self, client: socket.socket, server: socket.socket, doomed: threading.Event) -> None:
        try:
            while data := server.recv(1 << 20):
                if doomed.is_set():  # the server has answered: the statement ran
                    self.swallowed += 1
                    break
                client.sendall(data)
        except OSError:
            pass
        self._end(client, server)

    @staticmethod
    def _end(*ended: socket.socket) -> None:
        for one in ended:
            with suppress(OSError):  # a close alone does not wake a thread that reads
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def close(self) -> None:
        self._end(self._listener, *self._sockets)


@pytest.fixture
def proxy(postgres_server: PostgresServer) -> Iterator[Proxy]:
    instance = Proxy(postgres_server.port)
    yield instance
    instance.close()


def dsn_of(proxy: Proxy) -> str:
    return (
        f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres?sslmode=disable&gssencmode=disable"
    )


@pytest.mark.slow
def test_an_append_whose_answer_was_lost_is_found_by_reading_it_back(
    open_store: Open, proxy: Proxy
) -> None:
    store = open_store(dsn_of(proxy))
    lease = store.acquire("c")
    append(store, lease, 1)
    for seq, text in ((2, "first of its kind"), (3, "another one")):
        proxy.marker = text.encode()
        store.append(
            lease,
            Batch([message(seq, text)], summary("c", seq), blobs=[Blob(seq, text.encode())]),
        )
        assert proxy.swallowed == seq - 1
        assert store.blob(blob_id(text.encode())) == text.encode()
    assert seqs(store, "c") == [1, 2, 3]
    proxy.marker = b"unlike what is there"
    with pytest.raises(StoreError, match="event 3 does not follow event 3"):
        store.append(lease, Batch([message(3, "unlike what is there")], summary("c", 3)))


@pytest.mark.slow
def test_an_append_is_found_though_the_connection_for_many_appends_was_lost(
    open_store: Open, proxy: Proxy
) -> None:
    store = open_store(dsn_of(proxy))
    lease = store.acquire("c")
    for seq in range(1, 21):  # the later ones use this connection
        append(store, lease, seq)
    for seq in (21, 22):  # 22 opens it again
        proxy.marker = f"the text of event {seq}".encode()
        event = message(seq, f"the text of event {seq}")
        store.append(lease, Batch([event], summary("c", seq)))
        assert proxy.swallowed == seq - 20
    append(store, lease, 23)
    assert seqs(store, "c") == list(range(1, 24))


@pytest.mark.slow
def test_a_store_closes_although_its_database_is_gone(open_store: Open, proxy: Proxy) -> None:
    store = open_store(dsn_of(proxy))
    store.acquire("c")
    proxy.close()
    began = time.monotonic()
    store.close()
    assert time.monotonic() - began < 20, "its timeout for statements is 30 seconds"


@pytest.mark.slow
def test_a_post_whose_commit_had_no_answer_is_left_once(open_store: Open, proxy: Proxy) -> None:
    store = open_store(dsn_of(proxy))
    lease = store.acquire("c")
    assert store.post("c", Pause())
    proxy.marker = b"COMMIT"
    assert store.post("c", Send("hello"), "k"), "it was new, though the answer was lost"
    assert proxy.swallowed == 1
    assert not store.post("c", Send("hello"), "k")
    assert [one.key for one in store.commands(lease)][1:] == ["k"]


@pytest.mark.slow
def test_a_settlement_without_a_key_is_counted_once(open_store: Open, proxy: Proxy) -> None:
    store = open_store(dsn_of(proxy))
    lease = store.acquire("c")
    store.bound(lease, Budget("c", steps=3))
    proxy.marker = b"COMMIT"
    store.settle([Settlement("", Amount(steps=2), ("c",))])
    assert proxy.swallowed == 1
    assert store.reserve(lease, Reservation("k", ("c",), Amount(steps=1), 1.0, 1.0)) is None


@pytest.mark.slow
def test_a_lease_whose_answer_was_lost_is_taken_again(open_store: Open, proxy: Proxy) -> None:
    store = open_store(dsn_of(proxy))
    # The insert of a new conversation, by its text, and the update of a known one, by its value: a
    # prepared statement is executed without its text.
    for round, marker in enumerate((b"INSERT INTO conversations", b"a conversation")):
        proxy.marker = marker
        lease = store.acquire("a conversation")
        assert proxy.swallowed == round + 1
        store.confirm(lease)
        append(store, lease, round + 1)
        with pytest.raises(LeaseHeld):
            store.acquire("a conversation")
        store.release(lease)


# --- the pool ---


@pytest.mark.slow
def test_a_busy_pool_gives_a_clear_error_and_ends_no_lease(open_store: Open) -> None:
    store = open_store(pool_size=1, timeout=2 * LEASE_SECONDS)
    lease = store.acquire("c")
    with store.pool.connection():
        with pytest.raises(StoreError, match=r"all 1 connections were busy.*Raise pool_size"):
            append(store, lease, 1)
        store.confirm(lease)  # the beat has a connection of its own
    append(store, lease, 1)


def test_many_threads_share_few_connections(
    open_store: Open, postgres_server: PostgresServer
) -> None:
    store = open_store(pool_size=3)

    def write(id: str) -> None:
        lease = store.acquire(id)
        for seq in range(1, 11):
            append(store, lease, seq)

    with ThreadPoolExecutor(24) as pool:
        list(pool.map(write, [f"c{number}" for number in range(24)]))
    assert all(seqs(store, f"c{number}") == list(range(1, 11)) for number in range(24))


def test_values_of_every_type_reach_a_statement_however_often_it_is_executed(
    open_store: Open,
) -> None:
    pool = open_store(pool_size=1).pool
    values = {
        "text": "ü",
        "none": None,
        "numbers": [1, 2],
        "bytes": [b"\0", None],
        "time": datetime.now(UTC),
    }
    query = """
    SELECT %(text)s::text, %(none)s::text, %(numbers)b::bigint[], %(bytes)b::bytea[],
    %(time)s::timestamptz, %(text)s::text || '%%'
    """
    for _ in range(3):  # whole, prepared, and by its name alone
        assert pool.execute(query, values).rows == [(*values.values(), "ü%")]
        assert pool.execute("SELECT %s::text, %s::bigint", ("a", 5)).rows == [("a", 5)]
        assert pool.execute("DELETE FROM blobs WHERE id = %s", ("a",)).rows == []
    with pytest.raises(TypeError, match="2 values are needed, not 1"):
        pool.execute("SELECT %s::text, %s::text", ("a",))
    assert pool.execute("SELECT 1", {"unused": 1}).rows == [(1,)]


def test_statements_outlive_a_rollback_that_deallocates_them(open_store: Open) -> None:
    pool = open_store(pool_size=1).pool

    def ask() -> list[tuple[object, ...]]:
        return pool.execute("SELECT %s::text", ("a",)).rows

    def fail(db: Cursor) -> None:
        for _ in range(10):  # psycopg prepares it, too, and deallocates all after the rollback
            db.execute("SELECT 1")
        raise ConfigurationError("no")

    for _ in range(3):
        ask()
    for _ in range(2):
        with pytest.raises(ConfigurationError):
            pool.run(fail)
        pool.run(lambda db: db.execute("SELECT 1"))
        assert ask() == ask() == ask() == [("a",)]


# --- migration ---


def test_several_stores_create_the_tables_at_once(
    postgres_server: PostgresServer, postgres_schema: str
) -> None:
    barrier = threading.Barrier(8)

    def begin(number: int) -> list[int]:
        barrier.wait()
        with PostgresStore(postgres_server.dsn(), schema=postgres_schema) as store:
            append(store, store.acquire(f"c{number}"), 1)
            return seqs(store, f"c{number}")

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(begin, range(8))) == [[1]] * 8


def test_tables_of_a_newer_holdfast_are_refused(
    open_store: Open, postgres_server: PostgresServer, postgres_schema: str
) -> None:
    open_store().close()
    newer = schema.FORMAT + 1
    rows(postgres_server, postgres_schema, f"UPDATE about SET format = {newer} RETURNING format")
    with pytest.raises(StoreError, match=f"newer Holdfast \\(format {newer}.*Upgrade"):
        open_store()


def test_a_migration_that_fails_leaves_nothing(
    postgres_server: PostgresServer, postgres_schema: str
) -> None:
    dsn = f"{postgres_server.dsn()}?options=-c%20default_transaction_read_only%3Doff"
    with psycopg.connect(postgres_server.dsn(), autocommit=True) as connection:
        # A type of this name conflicts with the last table.
        connection.execute(f"CREATE SCHEMA {postgres_schema}")
        connection.execute(f"CREATE TYPE {postgres_schema}.garbage AS ENUM ('in the way')")
    with pytest.raises(StoreError, match="cannot be prepared"):
        PostgresStore(dsn, schema=postgres_schema)
    query = f"SELECT count(*) FROM pg_tables WHERE schemaname = '{postgres_schema}'"
    assert rows(postgres_server, postgres_schema, query) == [(0,)]


def test_a_conversation_that_needs_a_newer_journal_is_left_to_others(
    open_store: Open, postgres_server: PostgresServer, postgres_schema: str
) -> None:
    store = open_store()
    for id in "ab":
        lease = store.acquire(id)
        append(store, lease, 1)
        store.release(lease)
        store.post(id, Pause())
    query = "UPDATE conversations SET needs = 99 WHERE id = 'a' RETURNING number"
    rows(postgres_server, postgres_schema, query)
    assert store.unattended(10, parked=True) == ["b"]
    with pytest.raises(StoreError, match="needs version 99 of the journal"):
        store.acquire("a")
    store.fork("a", summary("f", 1))
    with pytest.raises(StoreError, match="needs version 99 of the journal"):
        store.acquire("f")
    assert seqs(store, "a") == [1]


# --- errors and secrets ---

SECRET = "s3cret-phrase"


@pytest.fixture
def user(postgres_server: PostgresServer) -> Iterator[str]:
    """Yield a user with a password."""
    name = f"user_{os.urandom(4).hex()}"
    with psycopg.connect(postgres_server.dsn(), autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{SECRET}'")
        yield name
        connection.execute(f"DROP OWNED BY {name}")
        connection.execute(f"DROP ROLE {name}")


def test_errors_say_what_to_do_and_keep_the_password(
    postgres_server: PostgresServer, user: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    good = postgres_server.dsn(user, SECRET)
    closed = socket.create_server(("127.0.0.1", 0))
    port = closed.getsockname()[1]
    closed.close()
    cases = {
        good.replace(SECRET, f"{SECRET}-wrong"): "Correct the user and password",
        good.replace("/postgres", "/nowhere").replace("nowhere@", "postgres@"): "Create it",
        good.replace(f":{postgres_server.port}", f":{port}"): "Start it",
        good: "cannot be prepared .permission denied.* CREATE SCHEMA",
        f"postgresql//{user}:{SECRET}@host": "dsn takes a URL",
        f"postgresql://{user}:{SECRET}@host/x?sslmod=1": "dsn takes a URL",
    }
    for dsn, advice in cases.items():
        with pytest.raises((StoreError, ConfigurationError), match=advice) as caught:
            PostgresStore(dsn)
        assert len(str(caught.value).splitlines()) == 1
        text = "".join(traceback.format_exception(caught.value))
        assert SECRET not in text.replace(repr(dsn), "")
    assert SECRET not in caplog.text


def test_a_stores_repr_names_the_database_without_the_password(
    postgres_server: PostgresServer, user: str, postgres_schema: str
) -> None:
    with psycopg.connect(postgres_server.dsn(), autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {postgres_schema} AUTHORIZATION {user}")
    with PostgresStore(postgres_server.dsn(user, SECRET), schema=postgres_schema) as store:
        assert repr(store) == (
            f"PostgresStore('postgresql://{user}@127.0.0.1:{postgres_server.port}/postgres',"
            f" schema='{postgres_schema}')"
        )
        assert SECRET not in repr(store.pool)
        with pytest.raises(StoreError) as caught:
            store.blob("sha256:00")
        assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"lease_seconds": 0}, "lease_seconds takes seconds above 0"),
        ({"timeout": -1}, "timeout takes seconds above 0"),
        ({"pool_size": 0}, "pool_size takes a number from 1"),
        ({"schema": ""}, "schema takes the name of a schema"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        PostgresStore("postgresql://127.0.0.1:1/x", **options)


# --- notices ---


def test_a_store_learns_of_posts_and_events_of_another_at_once(open_store: Open) -> None:
    store, other = open_store(), open_store()
    posted, grown = threading.Event(), threading.Event()
    lease = store.acquire("c", posted.set)
    append(store, lease, 1)
    end = other.watch("c", grown.set)
    until(grown.is_set, "the event that is there")
    grown.clear()
    assert other.post("c", Pause())
    assert posted.wait(30)
    with ThreadPoolExecutor(1) as pool:
        following = other.follow("c", 1)
        coming = pool.submit(lambda: next(following))
        append(store, lease, 2)
        assert coming.result(30) == message(2)
        following.close()  # type: ignore[attr-defined]
    assert grown.wait(30)
    end()


def test_a_conversation_that_nobody_follows_has_no_watchers(
    open_store: Open, postgres_server: PostgresServer, postgres_schema: str
) -> None:
    store = open_store()
    append(store, store.acquire("c"), 1)
    end = store.watch("c", lambda: None)
    watchers = "SELECT count(*) FROM watchers"
    until(
        lambda: rows(postgres_server, postgres_schema, watchers) == [(1,)], "an entry of a watcher"
    )
    end()
    until(lambda: rows(postgres_server, postgres_schema, watchers) == [(0,)], "its end")


def test_closing_leaves_no_thread_connection_or_owner(
    postgres_server: PostgresServer, postgres_schema: str
) -> None:
    threads = set(threading.enumerate())
    store = PostgresStore(
        postgres_server.dsn() + "?application_name=leaves", schema=postgres_schema
    )
    lease = store.acquire("c", lambda: None)
    append(store, lease, 1)
    list(store.follow("c", timeout=0))
    store.close()
    assert set(threading.enumerate()) == threads
    query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'leaves'"
    until(lambda: rows(postgres_server, postgres_schema, query) == [(0,)], "the connections' end")
    query = "SELECT (SELECT count(*) FROM owners), (SELECT count(*) FROM conversations WHERE owner <> '')"
    assert rows(postgres_server, postgres_schema, query) == [(0, 0)]


def test_a_damaged_event_is_named(
    open_store: Open, postgres_server: PostgresServer, postgres_schema: str
) -> None:
    store = open_store()
    append(store, store.acquire("c"), 1, 2, 3)
    flip = "UPDATE events SET data = set_byte(data, 20, get_byte(data, 20) # 1) WHERE seq = 2 RETURNING 1"
    rows(postgres_server, postgres_schema, flip)
    assert seqs(store, "c", 2) == [3]
    with pytest.raises(StoreError, match="event 2 of conversation 'c' is missing or damaged"):
        store.read("c")
    rows(postgres_server, postgres_schema, "DELETE FROM events WHERE seq = 3 RETURNING 1")
    with pytest.raises(StoreError, match="event 3 of conversation 'c' is missing or damaged"):
        store.read("c", 2)


@pytest.mark.slow
def test_events_can_be_partitioned_as_the_page_on_scale_says(
    open_store: Open, postgres_server: PostgresServer, postgres_schema: str
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "scale.md").read_text()
    lines = [line.strip() for line in page.splitlines() if line.startswith("    ")]
    statements = [one for one in " ".join(lines).split(";") if "events" in one]
    assert len(statements) == 4
    store = open_store()
    lease = store.acquire("before")
    append(store, lease, 1)
    with psycopg.connect(postgres_server.dsn(), autocommit=True) as admin:
        admin.execute(f"SET search_path = {postgres_schema}")
        for statement in statements:
            admin.execute(statement)
        admin.execute("ALTER SEQUENCE conversations_number_seq RESTART 1000001")
    append(store, lease, 2)
    later = store.acquire("after")
    append(store, later, 1)
    store.fork("after", summary("fork", 1), [])
    assert (seqs(store, "before"), seqs(store, "after")) == ([1, 2], [1])
    assert seqs(store, "fork") == [1]
    count = "SELECT count(*) FROM events_1"
    assert rows(postgres_server, postgres_schema, count) == [(1,)]
    store.release(later)
    for id in ("after", "fork"):
        store.delete(id)
    assert rows(postgres_server, postgres_schema, count) == [(0,)]
