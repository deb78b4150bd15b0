"""Group commit in Postgres: which writes share a transaction, and which faults harm only one of
them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from holdfast.commands import Send
from holdfast.content import TextContent
from holdfast.error_forms import ErrorForm
from holdfast.errors import Fenced
from holdfast.store import Batch, PostgresStore, Summary
from tests.postgres import PostgresServer
from tests.store.test_store import append, message, seqs
from tests.waiting import until

psycopg = pytest.importorskip("psycopg")

pytestmark = pytest.mark.slow

OTHERS = ("b", "c", "d", "e")


class Grouping:
    """A store whose next appends wait for one another.

    The row of the conversation "a" is locked. The thread that appends to it executes a
    statement that does not end, and all later appends form the next group.
    """

    def __init__(self, store: PostgresStore, dsn: str) -> None:
        self.store = store
        self.leases = {id: store.acquire(id) for id in ("a", *OTHERS)}
        self.admin = psycopg.connect(dsn, autocommit=True)
        self.admin.execute(f"SET search_path = {store.schema}")
        self._threads = ThreadPoolExecutor(10)
        self._holders: list[int] = []  # the processes of the server that hold `locked` rows

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        return self.admin.execute(query).fetchall()

    def blocked(self) -> int:
        """Return the number of statements that wait for `locked` rows."""
        query = "SELECT count(*) FROM pg_stat_activity WHERE pg_blocking_pids(pid) && %s::int[]"
        return self.admin.execute(query, (self._holders,)).fetchall()[0][0]

    def break_blocked(self) -> None:
        """Break the connections of the statements that wait for `locked` rows."""
        query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        self.admin.execute(f"{query} WHERE pg_blocking_pids(pid) && %s::int[]", (self._holders,))

    @contextmanager
    def locked(self, id: str = "a") -> Iterator[None]:
        """Keep the row of a conversation locked."""
        with psycopg.connect(self.admin.info.dsn) as holder:
            holder.execute(f"SET search_path = {self.store.schema}")
            holder.execute("SELECT FROM conversations WHERE id = %s FOR UPDATE", (id,))
            self._holders.append(holder.info.backend_pid)
            yield

    def start(self, work: Callable[..., Any], *values: Any) -> Future[Any]:
        return self._threads.submit(work, *values)

    def append(self, id: str, seq: int = 1) -> Future[Any]:
        return self.start(append, self.store, self.leases[id], seq)

    def waiting(self, count: int) -> None:
        """Wait until that many appends wait for their group."""
        until(lambda: len(self.store._appends._waiting) == count)  # pyright: ignore[reportPrivateUsage]

    def transactions(self) -> dict[str, int]:
        """Return the number of the transaction that wrote each conversation last."""
        return dict(self.ask("SELECT id, xmin::text::bigint FROM conversations"))

    def close(self) -> None:
        self._threads.shutdown()
        self.admin.close()


@pytest.fixture
def grouping(postgres_server: PostgresServer, postgres_schema: str) -> Iterator[Grouping]:
    with PostgresStore(postgres_server.dsn(), schema=postgres_schema) as store:
        instance = Grouping(store, postgres_server.dsn())
        yield instance
        instance.close()


def test_appends_of_threads_that_wait_for_one_another_are_one_transaction(
    grouping: Grouping,
) -> None:
    with grouping.locked():
        first = grouping.append("a")
        until(lambda: grouping.blocked() == 1)
        others = [grouping.append(id) for id in OTHERS]
        grouping.waiting(len(OTHERS))
        assert seqs(grouping.store, "b") == []
    for one in (first, *others):
        one.result(20)
    transactions = grouping.transactions()
    assert len({transactions[id] for id in OTHERS}) == 1
    assert transactions["a"] != transactions["b"]
    assert [seqs(grouping.store, id) for id in OTHERS] == [[1]] * len(OTHERS)


def test_a_group_writes_what_its_batches_would_write_alone(
    grouping: Grouping, postgres_server: PostgresServer
) -> None:
    store = grouping.store

    def batches(id: str) -> list[Batch]:
        for key in ("k1", "k2"):
            store.post(id, Send((TextContent("hello"),)), key)
        numbers = [one.number for one in store.commands(grouping.leases[id])]
        entry = Summary(id, "running", f"title\0 of {id}", 2, spawned_by="p:1", condensed=1)
        end = Summary(id, "finished", "a later title", 3, spawned_by="p:1")
        refusals = {numbers[1]: ErrorForm("Conflict", "no", {})}
        return [
            Batch([message(1), message(2)], entry, [numbers[0]]),
            Batch([message(3)], end, [numbers[1]], refusals=refusals),
        ]

    alone = batches("b")
    for batch in alone:
        store.append(grouping.leases["b"], batch)
    batches_by_id = {id: batches(id) for id in ("c", "d")}
    for number in range(2):
        with grouping.locked():
            first = grouping.append("a", number + 1)
            until(lambda: grouping.blocked() == 1)
            lent = [
                grouping.start(store.append, grouping.leases[id], batches_by_id[id][number])
                for id in ("c", "d")
            ]
            grouping.waiting(2)
        for one in (first, *lent):
            one.result(20)
        transactions = grouping.transactions()
        assert transactions["c"] == transactions["d"]
    columns = "last_seq, condensed, needs, status, spawned_by, spawner, parent, parent_seq, owner"
    rows = grouping.ask(f"SELECT id, {columns}, title FROM conversations ORDER BY id")
    rows_by_id = {id: row for id, *row in rows}
    assert rows_by_id["c"] == rows_by_id["b"]
    entries = {one.id: one for one in store.list(["b", "c", "d"])}
    assert entries["d"].title == entries["b"].title == "a later title"
    assert entries["d"].created == message(1).timestamp
    assert entries["d"].updated == message(3).timestamp
    assert store.read("c") == store.read("b")
    for id in ("b", "c", "d"):
        assert store.refusal(id, "k1") is None
        refused = store.refusal(id, "k2")
        assert refused is not None
        assert refused.message == "no"
        assert store.commands(grouping.leases[id]) == []


def test_a_fenced_append_fails_alone(grouping: Grouping) -> None:
    with grouping.locked():
        first = grouping.append("a")
        until(lambda: grouping.blocked() == 1)
        others = {id: grouping.append(id) for id in OTHERS}
        grouping.waiting(len(OTHERS))
        grouping.ask("UPDATE conversations SET epoch = epoch + 1 WHERE id = 'c' RETURNING 1")
    first.result(20)
    with pytest.raises(Fenced):
        others.pop("c").result(20)
    for one in others.values():
        one.result(20)
    assert seqs(grouping.store, "c") == []
    assert seqs(grouping.store, "d") == [1]


def test_a_row_that_another_process_locks_holds_up_no_other_conversation(
    grouping: Grouping,
) -> None:
    with grouping.locked("c"):
        with grouping.locked():
            first = grouping.append("a")
            until(lambda: grouping.blocked() == 1)
            others = {id: grouping.append(id) for id in OTHERS}
            grouping.waiting(len(OTHERS))
        late = others.pop("c")
        for one in (first, *others.values()):
            one.result(20)
        assert not late.done()
    late.result(20)
    assert [seqs(grouping.store, id) for id in OTHERS] == [[1]] * len(OTHERS)


def test_a_group_whose_connection_breaks_is_written_once(grouping: Grouping) -> None:
    with grouping.locked(), grouping.locked("b"):
        first = grouping.append("a")
        until(lambda: grouping.blocked() == 1)
        others = [grouping.append(id) for id in OTHERS]
        grouping.waiting(len(OTHERS))
        grouping.break_blocked()  # the append to "a" continues on a new connection
        until(lambda: grouping.blocked() == 1)
    for one in (first, *others):
        one.result(20)
    assert [seqs(grouping.store, id) for id in ("a", *OTHERS)] == [[1]] * 5


def test_an_append_that_ran_before_its_connection_broke_is_not_written_again(
    grouping: Grouping,
) -> None:
    class Cut(psycopg.Cursor[Any]):
        def fetchall(self) -> list[Any]:
            rows = super().fetchall()
            self.connection.close()  # committed, but the answer is lost
            raise psycopg.OperationalError(f"cut after {len(rows)} rows")

    with grouping.locked():
        first = grouping.append("a")
        until(lambda: grouping.blocked() == 1)
        group = grouping.store._appends  # pyright: ignore[reportPrivateUsage]
        group._connect().cursor_factory = Cut  # pyright: ignore[reportPrivateUsage]
        others = [grouping.append(id) for id in OTHERS]
        grouping.waiting(len(OTHERS))
    for one in (first, *others):
        one.result(20)
    transactions = grouping.transactions()
    assert len({transactions[id] for id in OTHERS}) == 1
    assert [seqs(grouping.store, id) for id in OTHERS] == [[1]] * len(OTHERS)


def test_a_thread_that_is_interrupted_while_it_waits_leaves_the_others_alone(
    grouping: Grouping,
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with grouping.locked():
            first = grouping.append("a")
            until(lambda: grouping.blocked() == 1)
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(KeyboardInterrupt):
                append(grouping.store, grouping.leases["b"], 1)
            grouping.waiting(0)
            other = grouping.append("c")
            grouping.waiting(1)
        first.result(20)
        other.result(20)
    finally:
        signal.signal(signal.SIGALRM, before)
    append(grouping.store, grouping.leases["b"], 1)
    assert seqs(grouping.store, "b") == seqs(grouping.store, "c") == [1]


def test_leases_are_taken_and_given_back_in_groups(grouping: Grouping) -> None:
    store = grouping.store
    for lease in grouping.leases.values():
        store.release(lease)

    def take(id: str) -> None:
        grouping.leases[id] = store.acquire(id)

    with grouping.locked():
        first = grouping.start(take, "a")
        until(lambda: grouping.blocked() == 1)
        others = [grouping.start(take, id) for id in OTHERS]
        until(lambda: len(store._takes._waiting) == 4)  # pyright: ignore[reportPrivateUsage]
    for one in (first, *others):
        one.result(20)
    transactions = grouping.transactions()
    assert len({transactions[id] for id in OTHERS}) == 1
    epochs = {lease.epoch for lease in grouping.leases.values()}
    assert len(epochs) == 5, "each lease has an epoch of its own"
    for id in OTHERS:
        append(store, grouping.leases[id], 1)
    with grouping.locked():
        first = grouping.start(store.release, grouping.leases["a"])
        until(lambda: grouping.blocked() == 1)
        others = [grouping.start(store.release, grouping.leases[id]) for id in OTHERS]
        until(lambda: len(store._releases._waiting) == 4)  # pyright: ignore[reportPrivateUsage]
    for one in (first, *others):
        one.result(20)
    transactions = grouping.transactions()
    assert len({transactions[id] for id in OTHERS}) == 1
    assert {owner for (owner,) in grouping.ask("SELECT owner FROM conversations")} == {""}


def test_many_threads_write_dense_journals(grouping: Grouping) -> None:
    barrier = threading.Barrier(10)

    def work(number: int) -> None:
        id = f"w{number}"
        barrier.wait(20)
        for turn in range(5):
            lease = grouping.store.acquire(id)
            assert lease.last_seq == turn * 4
            for seq in range(turn * 4 + 1, turn * 4 + 5):
                append(grouping.store, lease, seq)
            grouping.store.release(lease)

    for one in [grouping.start(work, number) for number in range(10)]:
        one.result(60)
    ids = [f"w{number}" for number in range(10)]
    assert [seqs(grouping.store, id) for id in ids] == [list(range(1, 21))] * 10
    [(transactions,)] = grouping.ask("SELECT count(DISTINCT xmin::text) FROM events")
    assert transactions < 200, "no two appends shared a transaction"
