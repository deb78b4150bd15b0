"""`SQLiteStore` under outside influence: other processes, kills, foreign files, damage, full
disks."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
import pytest

from holdfast import events as ev
from holdfast.commands import Pause
from holdfast.errors import (
    ConfigurationError,
    ConversationNotFound,
    Fenced,
    LeaseHeld,
    StoreError,
    UnreadableEvent,
)
from holdfast.store import Batch, DueTimer, SQLiteStore, Summary, TimerRow
from holdfast.store.sqlite import journal
from holdfast.store.sqlite.commit import Committer
from holdfast.store.sqlite.owner import Owner
from holdfast.store.sqlite.schema import FORMAT
from tests.store.test_store import NOW, append, message, seqs, summary
from tests.store_parts import Start, files, next_line, starting


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def start(path: Path) -> Iterator[Start]:
    yield from starting(path)


HOLDER = """
store = SQLiteStore(path)
lease = store.acquire("c")
append(store, lease, 1, 2)
say("held")
word = sys.stdin.readline().strip()
if word == "append":
    try:
        append(store, lease, 3)
    except Fenced:
        say("fenced")
if word == "close":
    store.close()
say("closed")
time.sleep(60)
"""


# --- other processes ---


def test_a_lease_of_a_living_process_is_refused_and_its_holder_named(
    path: Path, start: Start
) -> None:
    other = start(HOLDER)
    assert next_line(other) == "held"
    with SQLiteStore(path) as store:
        for use in (store.acquire, store.delete):
            with pytest.raises(
                LeaseHeld, match=f"Conversation 'c' is held by process {other.pid} on "
            ):
                use("c")
        assert seqs(store, "c") == [1, 2]
        append(store, store.acquire("d"), 1)


def test_a_lease_of_a_killed_process_is_free(path: Path, start: Start) -> None:
    other = start(HOLDER)
    assert next_line(other) == "held"
    other.kill()
    other.wait()
    with SQLiteStore(path) as store:
        lease = store.acquire("c")
        append(store, lease, 3)
        assert seqs(store, "c") == [1, 2, 3]
    assert files(path.parent) == {"store.db"}


def test_a_lease_is_free_after_its_store_was_closed(path: Path, start: Start) -> None:
    other = start(HOLDER)
    assert next_line(other) == "held"
    assert other.stdin is not None
    other.stdin.write("close\n")
    other.stdin.flush()
    assert next_line(other) == "closed"
    with SQLiteStore(path) as store:
        append(store, store.acquire("c"), 3)


def test_a_stopped_process_still_lives_and_keeps_its_lease(path: Path, start: Start) -> None:
    other = start(HOLDER)
    assert next_line(other) == "held"
    other.send_signal(signal.SIGSTOP)
    with SQLiteStore(path) as store, pytest.raises(LeaseHeld):
        store.acquire("c")


@pytest.mark.slow
def test_a_process_whose_lock_was_lost_is_fenced(path: Path, start: Start) -> None:
    """For example, a user deleted the owners' folder. The other process may be declared dead,
    but then it writes no more."""
    other = start(HOLDER)
    assert next_line(other) == "held"
    for lock in Path(f"{path}-owners").iterdir():
        lock.unlink()
    with SQLiteStore(path) as store:
        append(store, store.acquire("c"), 3)
        assert other.stdin is not None
        other.stdin.write("append\n")
        other.stdin.flush()
        assert next_line(other) == "fenced"
        assert seqs(store, "c") == [1, 2, 3]


def test_two_stores_of_one_process_are_two_owners(path: Path) -> None:
    with SQLiteStore(path) as one, SQLiteStore(path) as two:
        lease = one.acquire("c")
        with pytest.raises(LeaseHeld, match=f"process {os.getpid()} on "):
            two.acquire("c")
        append(one, lease, 1)
        assert seqs(two, "c") == [1]
        one.close()
        append(two, two.acquire("c"), 2)


def test_a_lease_that_another_store_gave_back_writes_nothing(path: Path) -> None:
    with SQLiteStore(path) as one, SQLiteStore(path) as two:
        lease = one.acquire("c")
        two.release(lease)
        with pytest.raises(Fenced):
            append(one, lease, 1)
        assert one.read("c") == []


def test_a_link_to_the_file_leads_to_the_same_owners(path: Path) -> None:
    with SQLiteStore(path) as one:
        one.acquire("c")
        link = path.parent / "link.db"
        link.symlink_to(path)
        with SQLiteStore(link) as two, pytest.raises(LeaseHeld):
            two.acquire("c")


def test_a_store_stays_where_it_was_when_the_process_changes_its_folder(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    with SQLiteStore("store.db") as store:
        elsewhere = path.parent / "elsewhere"
        elsewhere.mkdir()
        monkeypatch.chdir(elsewhere)
        store.acquire("c")
        assert files(elsewhere) == set()
        with SQLiteStore(path) as other, pytest.raises(LeaseHeld):
            other.acquire("c")


@pytest.mark.slow
def test_many_processes_and_threads_may_make_one_store_at_once(path: Path, start: Start) -> None:
    program = """
    say("ready")
    sys.stdin.readline()
    with SQLiteStore(path) as store:
        append(store, store.acquire(sys.argv[2]), *range(1, 11))
    say("wrote")
    """
    others = [start(program, f"p{n}") for n in range(4)]
    for other in others:
        assert next_line(other) == "ready"
    for other in others:
        assert other.stdin is not None
        other.stdin.write("go\n")
        other.stdin.flush()

    def write(n: int) -> None:
        with SQLiteStore(path) as store:
            append(store, store.acquire(f"t{n}"), *range(1, 11))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    assert [next_line(other) for other in others] == ["wrote"] * 4
    with SQLiteStore(path) as store:
        assert len(store.list()) == 12
        assert all(seqs(store, entry.id) == list(range(1, 11)) for entry in store.list())


def test_owners_come_and_go_without_losing_their_folder(tmp_path: Path) -> None:
    """The last owner removes the folder, even if another one is about to open the store."""

    def come_and_go(_: int) -> None:
        for _ in range(50):
            owner = Owner(tmp_path / "owners")
            assert owner.living(owner.token)
            owner.close()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(come_and_go, range(8)))
    assert files(tmp_path) == set()


@pytest.mark.slow
def test_everything_whose_append_returned_survives_a_kill(path: Path, start: Start) -> None:
    program = """
    store = SQLiteStore(path, sys.argv[2])
    lease = store.acquire("c")
    seq = len(store.read("c"))
    while True:
        append(store, lease, seq + 1, seq + 2)
        seq += 2
        say(seq)
    """
    returned = 0
    for durability in ("process", "durable", "process"):
        other = start(program, durability)
        for _ in range(30):
            returned = int(next_line(other))
        other.kill()
        assert other.stdout is not None
        returned = int((other.stdout.read().split() or [returned])[-1])
        other.wait()
        with SQLiteStore(path) as store:
            numbers = seqs(store, "c")
            assert numbers == list(range(1, len(numbers) + 1))
            assert returned <= len(numbers) <= returned + 2
            assert len(numbers) % 2 == 0, "half of an append was kept"
            assert store.read("c")[-1] == message(len(numbers))
    assert returned >= 180


# --- older and newer formats beside each other ---


def test_a_file_over_which_an_older_holdfast_wrote_its_format_is_opened(path: Path) -> None:
    for format in range(1, FORMAT):
        with SQLiteStore(path) as store:
            lease = store.acquire(f"c{format}")
            append(store, lease, 1)
        with sqlite3.connect(path) as db:
            db.execute(f"PRAGMA user_version = {format}")
        db.close()
        with SQLiteStore(path) as store:
            assert seqs(store, f"c{format}") == [1]
        with sqlite3.connect(path) as db:
            assert db.execute("PRAGMA user_version").fetchone() == (FORMAT,)
        db.close()


def test_an_undone_commit_keeps_the_format_that_a_newer_holdfast_wrote(path: Path) -> None:
    failed = sqlite3.OperationalError("disk I/O error")
    failed.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
    with SQLiteStore(path) as store:
        with sqlite3.connect(path) as db:
            db.execute(f"PRAGMA user_version = {FORMAT + 1}")
        db.close()
        before = path.with_name(path.name + "-wal").stat().st_size
        assert store._writer is not None
        assert store._writer._unwrite(failed)
        assert path.with_name(path.name + "-wal").stat().st_size >= before
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (FORMAT + 1,)
    db.close()


def test_a_file_of_an_older_format_has_no_refusals_when_it_is_read(path: Path) -> None:
    with SQLiteStore(path) as store:
        append(store, store.acquire("c"), 1)
        store.post("c", Pause(), "k")
    with sqlite3.connect(path) as db:
        db.execute("ALTER TABLE inbox DROP COLUMN refusal")
        db.execute("PRAGMA user_version = 3")
    db.close()
    with SQLiteStore(path, read_only=True) as store:
        assert store.refusal("c", "k") is None
        assert store.undone("c", "k")
        with pytest.raises(ConversationNotFound):
            store.refusal("other", "k")
    with sqlite3.connect(path) as db:
        db.execute("DROP TABLE inbox")
        db.execute("PRAGMA user_version = 1")
    db.close()
    with SQLiteStore(path, read_only=True) as store:
        assert store.refusal("c", "k") is None
        assert not store.undone("c", "k")


# --- files that are no store ---


def test_a_file_of_a_newer_format_is_refused_and_left_alone(path: Path) -> None:
    with SQLiteStore(path) as store:
        append(store, store.acquire("c"), 1)
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 7")
    db.close()
    before = path.read_bytes()
    with pytest.raises(
        StoreError, match=r"was written by a newer Holdfast \(format 7, this one reads 6\)"
    ):
        SQLiteStore(path)
    assert path.read_bytes() == before


def test_a_file_of_format_5_gets_tags(path: Path) -> None:
    with SQLiteStore(path) as store:
        append(store, store.acquire("c"), 1)
    with sqlite3.connect(path) as db:
        db.execute("DROP INDEX conversations_tagged")
        db.execute("ALTER TABLE conversations DROP COLUMN tags")
        db.execute("PRAGMA user_version = 5")
    db.close()
    with SQLiteStore(path, read_only=True) as store:
        assert [one.tags for one in store.list()] == [()]
        assert store.list(tags=["bug"]) == []
    with SQLiteStore(path) as store:
        lease = store.acquire("c")
        label = ev.ConversationLabelled(seq=2, id="e2", timestamp=NOW, add=("bug",))
        store.append(lease, Batch([label], summary("c", 2, tags=("bug",))))
        assert [one.id for one in store.list(tags=["bug"])] == ["c"]


def test_a_file_of_format_4_gets_an_index_of_timers(path: Path) -> None:
    with SQLiteStore(path) as store:
        append(store, store.acquire("c"), 1)
    with sqlite3.connect(path) as db:
        db.execute("DROP TABLE timers")
        db.execute("PRAGMA user_version = 4")
    db.close()
    with SQLiteStore(path, read_only=True) as reader:
        assert reader.due(NOW) == []
        assert reader.next_due() is None
        with pytest.raises(StoreError, match="read-only"):
            reader.ring(NOW)
    with SQLiteStore(path) as store:
        rows = [TimerRow("t", NOW)]
        store.append(store.acquire("c"), Batch((), Summary("c", last_seq=1), timers=rows))
        assert store.ring(NOW) == [DueTimer("c", "t", NOW)]


def test_another_programs_database_is_refused_and_left_alone(path: Path) -> None:
    for pragma in ("application_id = 5", "user_version = 7", "application_id = 0"):
        path.unlink(missing_ok=True)
        with sqlite3.connect(path) as db:
            db.execute(f"PRAGMA {pragma}")
            db.execute("CREATE TABLE theirs (x)")
        db.close()
        before = path.read_bytes()
        with pytest.raises(StoreError, match="is an SQLite file, but not a Holdfast store"):
            SQLiteStore(path)
        assert path.read_bytes() == before
        assert files(path.parent) == {"store.db"}


@pytest.mark.parametrize(
    "content",
    [
        b"x",
        b"dear diary\n",
        b"line\n" * 500,
        b"\x00" * 5000,
        b"SQLite format 3\x00" + b"junk" * 300,
    ],
)
def test_a_file_of_another_kind_is_refused_and_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"cannot be used|not a Holdfast store"):
        SQLiteStore(path)
    assert path.read_bytes() == content
    assert files(path.parent) == {"store.db"}


def test_an_empty_file_becomes_a_store(path: Path) -> None:
    path.touch()
    with SQLiteStore(path) as store:
        append(store, store.acquire("c"), 1)


def test_a_folder_and_a_place_in_no_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"is a folder. path takes a file"):
        SQLiteStore(tmp_path)
    with pytest.raises(StoreError, match="is in a folder that does not exist"):
        SQLiteStore(tmp_path / "no" / "store.db")
    assert files(tmp_path) == set()


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(
        ConfigurationError, match="durability takes 'durable' or 'process', not 'maybe'"
    ):
        SQLiteStore("x.db", "maybe")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigurationError, match=r"path takes a file's path. MemoryStore"):
        SQLiteStore(":memory:")


@pytest.mark.parametrize(
    "name",
    ["with space.db", "ünï👋.db", "what?mode=ro#x.db", "file:x.db", "100%25.db", "-x", "a'b\".db"],
)
def test_a_path_may_have_any_letters(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with SQLiteStore(path) as store:
        append(store, store.acquire("c"), 1)
        assert repr(store) == f"SQLiteStore({str(path)!r})"
    assert files(tmp_path) == {name}
    with SQLiteStore(str(path)) as store:
        assert seqs(store, "c") == [1]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_file_that_may_not_be_written_is_a_store_error(path: Path) -> None:
    SQLiteStore(path).close()
    path.chmod(0o400)
    with pytest.raises(StoreError):
        SQLiteStore(path).acquire("c")


# --- damage ---


@pytest.fixture
def damage(path: Path) -> Callable[[str], SQLiteStore]:
    """Return a function that damages a store of two conversations of five events with a
    statement."""

    def damage(statement: str) -> SQLiteStore:
        with SQLiteStore(path) as store:
            for id in "ab":
                append(store, store.acquire(id), 1, 2, 3, 4, 5)
        with sqlite3.connect(path) as db:
            db.execute(statement)
        db.close()
        return SQLiteStore(path)

    return damage


@pytest.mark.parametrize(
    ("statement", "seq"),
    [
        (
            (
                "UPDATE events SET data = CAST(substr(data, 1, 20) || 'X' || substr(data, 22) AS"
                " BLOB) WHERE key = (1 << 32) + 3"
            ),
            3,
        ),
        ("UPDATE events SET crc = crc + 1 WHERE key = (1 << 32) + 1", 1),
        ("UPDATE events SET data = 'text' WHERE key = (1 << 32) + 2", 2),
        ("DELETE FROM events WHERE key = (1 << 32) + 4", 4),
        ("DELETE FROM events WHERE key = (1 << 32) + 1", 1),
        ("DELETE FROM events WHERE key = (1 << 32) + 5", 5),
        ("DELETE FROM events WHERE key < 2 << 32", 1),
        ("UPDATE events SET key = (1 << 32) + 9 WHERE key = (1 << 32) + 3", 3),
    ],
)
def test_damage_is_named_and_harms_only_its_conversation(
    damage: Callable[[str], SQLiteStore], statement: str, seq: int
) -> None:
    with damage(statement) as store:
        with pytest.raises(
            StoreError, match=f"event {seq} of conversation 'a' is missing or damaged"
        ):
            store.read("a")
        assert seqs(store, "b") == [1, 2, 3, 4, 5]
        assert [entry.id for entry in store.list()] == ["b", "a"]
        lease = store.acquire("a")
        store.release(lease)
        store.delete("a")


def test_a_sound_record_that_is_no_event_is_damaged_and_harms_no_other(
    damage: Callable[[str], SQLiteStore],
) -> None:
    with damage(
        f"UPDATE events SET data = x'7b7d', crc = {crc32(b'{}')} WHERE key = (1 << 32) + 2"
    ) as store:
        events = store.read("a")
        assert [event.seq for event in events] == [1, 2, 3, 4, 5]
        assert [event.seq for event in events if isinstance(event, ev.DamagedEvent)] == [2]


def test_what_comes_after_the_damage_can_still_be_read(
    damage: Callable[[str], SQLiteStore],
) -> None:
    with damage("UPDATE events SET crc = 0 WHERE key = (1 << 32) + 3") as store:
        assert seqs(store, "a", 3) == [4, 5]


def test_a_leftover_row_makes_only_its_own_append_fail(path: Path) -> None:
    with SQLiteStore(path) as store:
        leases = [store.acquire(id) for id in "ab"]
        with sqlite3.connect(path) as db:
            db.execute("INSERT INTO events VALUES ((1 << 32) + 1, 0, x'00')")
        db.close()
        outcomes = together(
            store, [lambda lease=lease: append(store, lease, 1) for lease in leases]
        )
        assert [type(outcome) for outcome in outcomes] == [StoreError, type(None)]
        assert seqs(store, "b") == [1]


# --- appends that cannot be written ---


def committer(store: SQLiteStore) -> Committer:
    assert store._writer is not None
    return store._writer


def together(store: SQLiteStore, appends: list[Callable[[], None]]) -> list[BaseException | None]:
    """Run appends so that all of them meet in one commit; return the error of each."""
    outcomes: list[BaseException | None] = [None] * len(appends)

    def work(n: int) -> None:
        try:
            appends[n]()
        except BaseException as error:
            outcomes[n] = error

    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(appends))]
    with committer(store).lock:
        for n, thread in enumerate(threads):
            thread.start()
            while len(committer(store).queue) <= n:
                pass
    for thread in threads:
        thread.join()
    return outcomes


def test_appends_that_wait_at_the_same_time_share_one_transaction(path: Path) -> None:
    with SQLiteStore(path) as store:
        leases = [store.acquire(f"c{n}") for n in range(8)]
        statements: list[str] = []
        committer(store).db.set_trace_callback(statements.append)
        together(store, [lambda lease=lease: append(store, lease, 1) for lease in leases])
        assert statements.count("COMMIT") == 1
        assert all(seqs(store, f"c{n}") == [1] for n in range(8))


def test_in_one_commit_each_bad_append_fails_alone(path: Path) -> None:
    with SQLiteStore(path) as store:
        leases = [store.acquire(f"c{n}") for n in range(6)]
        store.release(leases[1])
        outcomes = together(
            store,
            [
                lambda: append(store, leases[0], 1),
                lambda: append(store, leases[1], 1),
                lambda: append(store, leases[2], 2),
                lambda: append(store, leases[3], 1, 2),
                lambda: store.append(
                    leases[4], Batch([message(1)], summary("c4", 1, title="\udcff"))
                ),
                lambda: append(store, leases[5], 1),
            ],
        )
        assert [type(outcome) for outcome in outcomes] == [
            type(None),
            Fenced,
            StoreError,
            type(None),
            StoreError,
            type(None),
        ]
        assert [len(store.read(f"c{n}")) for n in range(6)] == [1, 0, 0, 2, 0, 1]
        append(store, leases[4], 1)


@pytest.mark.parametrize("text", ["\udcff", object()])
def test_an_event_that_is_not_json_is_refused_and_changes_nothing(path: Path, text: Any) -> None:
    with SQLiteStore(path) as store:
        lease = store.acquire("c")
        with pytest.raises(
            UnreadableEvent, match=r"Event 2 \(message\) cannot be written: .* Nothing was written."
        ):
            store.append(lease, Batch([message(1), message(2, text)], summary("c", 2)))
        assert store.read("c") == []
        append(store, lease, 1)


def test_an_answer_without_a_native_form_can_be_read_again(path: Path) -> None:
    with SQLiteStore(path) as store:
        answer = ev.AssistantReplied(seq=1, id="e", timestamp=NOW, text="hi", native=msgspec.Raw())
        store.append(store.acquire("c"), Batch([answer], summary("c", 1)))
        assert store.read("c") == [answer]


def test_ctrl_c_leaves_no_append_behind_for_a_later_commit(path: Path) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with SQLiteStore(path) as store:
        lease = store.acquire("c")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(committer(store), "_commit", interrupted)
            with pytest.raises(KeyboardInterrupt):
                append(store, lease, 1)
        assert len(committer(store).queue) == 0
    with SQLiteStore(path) as store:
        assert store.read("c") == []


def test_ctrl_c_within_a_commit_writes_all_of_it_or_nothing(path: Path) -> None:
    with SQLiteStore(path) as store:
        write_batch = journal.append

        def interrupted(lease: Any, *rest: Any) -> None:
            write_batch(lease, *rest)
            if lease.conversation_id == "c1":
                raise KeyboardInterrupt

        leases = [store.acquire(f"c{n}") for n in range(3)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(journal, "append", interrupted)
            outcomes = together(
                store, [lambda lease=lease: append(store, lease, 1) for lease in leases]
            )
        assert sorted(type(outcome).__name__ for outcome in outcomes) == [
            "KeyboardInterrupt",
            "StoreError",
            "StoreError",
        ]
        assert [store.read(f"c{n}") for n in range(3)] == [[], [], []]
        append(store, leases[0], 1)


# --- full disks ---


def test_a_full_disk_is_a_store_error_and_when_there_is_room_again_it_goes_on(path: Path) -> None:
    with SQLiteStore(path) as store:
        lease, other = store.acquire("c"), store.acquire("d")
        append(store, lease, 1)
        pages = committer(store).db.execute("PRAGMA page_count").fetchone()[0]
        committer(store).db.execute(f"PRAGMA max_page_count = {pages + 4}")
        big = message(2, "x" * 100_000)
        for _ in range(2):
            with pytest.raises(StoreError, match=r"full. Nothing was written. Free some space"):
                store.append(lease, Batch([big], summary("c", 2)))
        assert seqs(store, "c") == [1]
        outcomes = together(
            store,
            [
                lambda: store.append(lease, Batch([big], summary("c", 2))),
                lambda: append(store, other, 1),
            ],
        )
        assert [type(outcome) for outcome in outcomes] == [
            StoreError,
            type(None),
        ], "a small append fits beside a big one that does not"
        committer(store).db.execute("PRAGMA max_page_count = 1000000")
        store.append(lease, Batch([big], summary("c", 2)))
        assert seqs(store, "c") == [1, 2]


@pytest.mark.slow
def test_a_write_that_the_system_refuses_loses_nothing_before_it(path: Path, start: Start) -> None:
    other = start("""
    store = SQLiteStore(path)
    lease = store.acquire("c")
    append(store, lease, 1, 2)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    try:
        store.append(lease, Batch([message(3, "x" * 1_000_000)], summary("c", 3)))
    except StoreError as error:
        say("refused", seqs(store, "c"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    store.append(lease, Batch([message(3, "x" * 1_000_000)], summary("c", 3)))
    say(seqs(store, "c"))
    store.close()
    say("closed")
    """)
    assert [next_line(other) for _ in range(3)] == ["refused [1, 2]", "[1, 2, 3]", "closed"]
    with SQLiteStore(path) as store:
        assert seqs(store, "c") == [1, 2, 3]


def test_a_file_that_another_writes_for_too_long_is_a_store_error_for_all_who_wait(
    path: Path,
) -> None:
    with SQLiteStore(path, timeout=0.05) as store:
        leases = [store.acquire(f"c{n}") for n in range(4)]
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        outcomes = together(
            store, [lambda lease=lease: append(store, lease, 1) for lease in leases]
        )
        assert all("locked. Nothing was written." in str(outcome) for outcome in outcomes)
        with pytest.raises(StoreError, match="locked"):
            store.acquire("d")
        other.close()
        append(store, leases[0], 1)


def test_what_a_killed_owner_held_is_unattended_at_once_and_its_next_lease_says_so(
    path: Path, start: Start
) -> None:
    other = start("""
    store = SQLiteStore(path)
    for id in ("a", "b"):
        append(store, store.acquire(id), 1)
    store.release(store.acquire("c"))
    say("held")
    time.sleep(60)
    """)
    assert next_line(other) == "held"
    with SQLiteStore(path) as store:
        store.post("c", Pause())
        assert store.unattended(10) == ["c"]
        store.release(store.acquire("c"))
        other.kill()
        other.wait()
        assert store.unattended(10) == ["a", "b", "c"]
        lease = store.acquire("a")
        assert lease.orphaned
        assert store.unattended(10) == ["b", "c"]
        store.release(lease)
        assert not store.acquire("a").orphaned


# --- leftovers ---


def test_nothing_is_left_after_close(path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with SQLiteStore(path) as store:
            append(
                store,
                store.acquire("c"),
                *range(len(store.read("c")) + 1, len(store.read("c")) + 3),
            )
        for wrong in (path.parent, path.parent / "no" / "x"):
            with pytest.raises(StoreError):
                SQLiteStore(wrong)
        (path.parent / "text").write_text("text" * 500)
        with pytest.raises(StoreError):
            SQLiteStore(path.parent / "text")
    assert set(os.listdir("/proc/self/fd")) == before
    assert files(path.parent) == {"store.db", "text"}


def test_the_owners_lock_is_not_inherited_by_what_the_process_runs(path: Path) -> None:
    with SQLiteStore(path) as store:
        store.acquire("c")
        child = subprocess.Popen(["sleep", "30"])
        try:
            assert store._owner is not None
            store._owner.close()
            with SQLiteStore(path) as other:
                other.acquire("c")
        finally:
            child.kill()
            child.wait()


def test_a_read_of_a_store_that_was_moved_away_creates_no_file(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    store = SQLiteStore(path)
    store.acquire("x")
    path.rename(tmp_path / "b.db")
    with pytest.raises(StoreError):
        store.read("x")
    assert not path.exists()
