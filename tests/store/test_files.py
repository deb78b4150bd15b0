"""`SQLiteStore` and its file: older formats, reads without writes, released space, files that
change or disappear."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from holdfast.commands import Pause, Send
from holdfast.errors import ConfigurationError, LeaseHeld, StoreError
from holdfast.store import Batch, Blob, SQLiteStore, Summary, blob_id
from holdfast.store.sqlite import removal, schema
from holdfast.store.sqlite.owner import Owner
from tests.paths import DATA
from tests.store.test_store import append, message, seqs, summary
from tests.store_parts import Start, files, next_line, starting, tell

OLD = DATA / "store_v1.db"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def old(path: Path) -> Path:
    """Return a file that a Holdfast of the first format wrote."""
    shutil.copy(OLD, path)
    return path


@pytest.fixture
def start(path: Path) -> Iterator[Start]:
    yield from starting(path)


def look(path: Path, query: str) -> list[tuple[Any, ...]]:
    db = sqlite3.connect(path)
    try:
        return db.execute(query).fetchall()
    finally:
        db.close()


def schema_of(path: Path) -> dict[str, Any]:
    """Return the tables of a file with their columns, however they were declared."""
    tables = [
        name
        for (name,) in look(
            path, "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
        )
    ]
    columns: dict[str, Any] = {name: look(path, f"PRAGMA table_info({name})") for name in tables}
    columns["indexes"] = look(
        path, "SELECT name, tbl_name, sql FROM sqlite_master WHERE type = 'index' ORDER BY name"
    )
    return columns


# --- formats ---


def test_an_old_file_becomes_a_new_one_and_keeps_what_is_in_it(old: Path, tmp_path: Path) -> None:
    with SQLiteStore(old) as store:
        assert [(entry.id, entry.last_seq, entry.parent) for entry in store.list()] == [
            ("second", 8, ""),
            ("first", 8, ""),
        ]
        assert [seqs(store, id) for id in ("first", "second")] == [list(range(1, 9))] * 2
        lease = store.acquire("first")
        assert lease.epoch == 3
        store.post("first", Send("hello"))
        store.append(
            lease,
            Batch(
                [message(9)],
                summary("first", 9),
                done_commands=[store.commands(lease)[0].number],
                blobs=[Blob(9, b"x")],
            ),
        )
        store.fork("first", summary("fork", 9))
        store.release(lease)
        store.delete("first")
        assert seqs(store, "fork") == list(range(1, 10))
    with SQLiteStore(tmp_path / "new.db"):
        pass
    assert schema_of(old) == schema_of(tmp_path / "new.db")
    assert (
        look(old, "PRAGMA user_version")
        == look(tmp_path / "new.db", "PRAGMA user_version")
        == [(6,)]
    )


@pytest.mark.slow
def test_two_processes_may_migrate_at_once(old: Path, start: Start) -> None:
    others = [
        start("""
    say("ready")
    sys.stdin.readline()
    with SQLiteStore(path) as store:
        say(len(store.list()))
    """)
        for _ in range(4)
    ]
    assert [next_line(other) for other in others] == ["ready"] * 4
    for other in others:
        tell(other, "go")
    assert [next_line(other) for other in others] == ["2"] * 4


def test_a_migration_that_is_broken_off_left_the_old_file(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(schema, "_SECOND", (*schema._SECOND[:5], "CREATE nonsense"))
        with pytest.raises(StoreError, match="syntax error"):
            SQLiteStore(old)
    assert look(old, "PRAGMA user_version") == [(1,)]
    with SQLiteStore(old) as store:
        assert len(store.read("first")) == 8


def test_a_lease_of_an_old_process_is_respected_while_it_lives(old: Path) -> None:
    owner = Owner(Path(f"{old}-owners"))
    token = owner.token.partition("/")[0]
    with sqlite3.connect(old) as db:
        db.execute("UPDATE conversations SET holder = ? WHERE id = 'first'", (token,))
    db.close()
    with SQLiteStore(old) as store:
        with pytest.raises(LeaseHeld):
            store.acquire("first")
        owner.close()
        store.acquire("first")


def test_a_disk_without_a_write_ahead_log_is_refused(path: Path) -> None:
    """SQLite answers with the mode that it stays in and raises nothing. A database in memory
    stands for such a disk."""
    db = sqlite3.connect(":memory:", isolation_level=None)
    with pytest.raises(StoreError, match=r"store\.db.*journal_mode stays 'memory'"):
        schema.prepare(db, path, "durable", 1.0)
    db.close()


# --- reads without writes ---


def reading(path: Path) -> list[list[int]]:
    with SQLiteStore(path, read_only=True) as store:
        return [seqs(store, entry.id) for entry in store.list()]


def test_a_store_opened_for_reading_reads_and_does_not_write(path: Path) -> None:
    with SQLiteStore(path) as store:
        lease = store.acquire("c")
        store.append(lease, Batch([message(1)], summary("c", 1), blobs=[Blob(1, b"x")]))
        store.fork("c", summary("f", 1))
    before = path.read_bytes(), path.stat().st_mtime_ns
    with SQLiteStore(path, read_only=True) as store:
        assert seqs(store, "c") == seqs(store, "f") == [1]
        assert store.blob(blob_id(b"x")) == b"x"
        assert [event.seq for event in store.follow("c", timeout=0)] == [1]
        uses: list[Any] = [
            lambda: store.acquire("d"),
            lambda: store.renew(lease),
            lambda: store.release(lease),
            lambda: store.note(lease, ["x"]),
            lambda: append(store, lease, 2),
            lambda: store.post("c", Pause()),
            lambda: store.commands(lease),
            lambda: store.fork("c", summary("g", 1)),
            lambda: store.delete("c"),
        ]
        for use in uses:
            with pytest.raises(StoreError, match="was opened read-only"):
                use()
        assert files(path.parent) == {"store.db"}
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    with pytest.raises(StoreError, match="is closed"):
        store.list()


def test_an_old_file_is_read_as_it_is(old: Path) -> None:
    before = old.read_bytes()
    with SQLiteStore(old, read_only=True) as store:
        assert [entry.id for entry in store.list()] == ["second", "first"]
        assert seqs(store, "first", 5) == [6, 7, 8]
        with pytest.raises(StoreError, match="No blob"):
            store.blob("x")
        with SQLiteStore(old) as writer:
            writer.fork("first", summary("fork", 3))
            assert seqs(store, "fork") == [1, 2, 3], "also when it is migrated meanwhile"
    assert before == OLD.read_bytes()


def test_what_is_not_there_is_not_made_by_reading(path: Path) -> None:
    with pytest.raises(StoreError, match=r"does not exist"):
        SQLiteStore(path, read_only=True)
    path.touch()
    with pytest.raises(StoreError, match="not a Holdfast store"):
        SQLiteStore(path, read_only=True)
    path.write_text("dear diary" * 100)
    with pytest.raises(StoreError, match="cannot be read"):
        SQLiteStore(path, read_only=True)
    assert files(path.parent) == {"store.db"}


def test_a_reader_sees_writers_come_and_go(path: Path) -> None:
    SQLiteStore(path).close()
    with SQLiteStore(path, read_only=True) as reader:
        for n in range(1, 4):
            with SQLiteStore(path) as writer:
                append(writer, writer.acquire("c"), 2 * n - 1)
                assert len(reader.read("c")) == 2 * n - 1
                append(writer, writer.acquire("d") if n == 1 else writer.acquire(f"d{n}"), 1)
                append(writer, writer.acquire(f"e{n}"), 1)
                assert len(reader.list()) == 2 * n + 1
            with SQLiteStore(path) as writer:
                append(writer, writer.acquire("c"), 2 * n)
            assert len(reader.read("c")) == 2 * n
    assert reading(path)[0]


def test_a_file_that_is_written_while_it_is_read_as_unchanging_is_read_again(path: Path) -> None:
    """Whatever is written during a read, the result belongs to one moment."""
    with SQLiteStore(path) as writer:
        append(writer, writer.acquire("c"), *range(1, 200))
    reader = SQLiteStore(path, read_only=True)
    counts: list[int] = []

    def work(db: sqlite3.Connection) -> int:
        total = db.execute("SELECT count(*) FROM events").fetchone()[0]
        counts.append(total)
        if len(counts) == 1:
            with SQLiteStore(path) as writer:
                writer.delete("c")
        return total

    assert reader._reader.read(work) == 0
    assert counts == [199, 0]
    reader.close()


@pytest.fixture
def locked_folder() -> Iterator[Path]:
    """Return a folder that others may read and not write, also if root runs the tests."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-test-"))
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


READER = """
path = sys.argv[2]
if os.geteuid() == 0:  # root may write anywhere; after all imports, as others may not even read this Python
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    SQLiteStore(path)
    say("opened for writing")
except StoreError as error:
    say(str(error))
with SQLiteStore(path, read_only=True) as store:
    say([(found.id, len(store.read(found.id))) for found in store.list()])
    for line in sys.stdin:
        say(len(store.read("c")))
"""


@pytest.mark.slow
@pytest.mark.parametrize("state", ["closed", "alive", "killed", "copied"])
def test_a_file_in_a_folder_that_cannot_be_written_is_read(
    locked_folder: Path, start: Start, state: str
) -> None:
    file = locked_folder / "store.db"
    writer = start(
        """
    store = SQLiteStore(sys.argv[2])
    lease = store.acquire("c")
    append(store, lease, 1, 2)
    say("wrote")
    for seq in sys.stdin:
        append(store, lease, int(seq)) if seq.strip() else store.close()
        say("done")
    """,
        str(file),
    )
    assert next_line(writer) == "wrote"
    if state == "closed":
        tell(writer, "")
        assert next_line(writer) == "done"
    elif state != "alive":
        writer.kill()
        writer.wait()
    if state == "copied":  # with its -wal; the -shm is useless elsewhere
        Path(f"{file}-shm").unlink()
    for each in locked_folder.iterdir():
        each.chmod(0o555 if each.is_dir() else 0o444)
    locked_folder.chmod(0o555)
    before = files(locked_folder)
    reader = start(READER, str(file))
    message = next_line(reader)
    assert str(file) in message, message
    assert "cannot be written" in message
    assert "read_only=True" in message
    assert next_line(reader) == "[('c', 2)]"
    if state == "alive":
        tell(writer, "3")
        assert next_line(writer) == "done"
        tell(reader, "")
        assert next_line(reader) == "3"
    assert files(locked_folder) == before


# --- released space ---


def fill(store: SQLiteStore, id: str, count: int, size: int = 5000) -> None:
    lease = store.acquire(id)
    for seq in range(1, count + 1, 50):
        events = [message(n, "x" * size) for n in range(seq, min(seq + 50, count + 1))]
        store.append(
            lease,
            Batch(
                events,
                summary(id, events[-1].seq),
                blobs=[Blob(events[0].seq, os.urandom(20_000))],
            ),
        )
    store.release(lease)


def test_a_delete_gives_space_back_to_the_file_system(path: Path) -> None:
    with SQLiteStore(path, "process") as store:
        append(store, store.acquire("small"), 1)
        for n in range(3):
            fill(store, f"c{n}", 600)
    full = path.stat().st_size
    assert full > 9_000_000
    with SQLiteStore(path, "process") as store:
        store.delete("c1")
        store.delete("c2")
    assert path.stat().st_size < full * 0.4
    with SQLiteStore(path, "process") as store:
        store.delete("c0")
        assert seqs(store, "small") == [1]
    assert path.stat().st_size < 100_000
    assert (
        look(path, "SELECT count(*) FROM blobs")
        == look(path, "SELECT count(*) FROM blob_refs")
        == [(0,)]
    )
    assert look(path, "PRAGMA integrity_check") == [("ok",)]


def test_a_big_delete_lets_others_write_between_its_steps(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SQLiteStore(path, "process") as store, SQLiteStore(path, "process", timeout=30) as other:
        fill(store, "big", 1000, 100)
        lease = other.acquire("c")
        steps: list[int] = []
        free = removal.free_slice

        def step(db: sqlite3.Cursor) -> bool:
            steps.append(len(other.read("c")))
            return free(db)

        monkeypatch.setattr(removal, "free_slice", step)
        with ThreadPoolExecutor(1) as pool:
            deleting = pool.submit(store.delete, "big")
            seq = 0
            while not deleting.done():
                seq += 1
                append(other, lease, seq)
            deleting.result()
        assert len(steps) >= 1000 / removal.SLICE_ROWS
        assert seqs(other, "c") == list(range(1, seq + 1))


@pytest.mark.slow
def test_a_delete_that_was_broken_off_is_finished_by_the_next(path: Path, start: Start) -> None:
    other = start("""
    from holdfast.store.sqlite import removal
    store = SQLiteStore(path)
    append(store, store.acquire("gone"), *range(1, 1001))
    append(store, store.acquire("c"), 1)
    store.close()
    store = SQLiteStore(path)
    free, steps = removal.free_slice, []
    def step(db):
        steps.append(1)
        if len(steps) == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return free(db)
    removal.free_slice = step
    store.delete("gone")
    """)
    other.wait()
    remaining = look(path, "SELECT count(*) FROM events WHERE key < 2 << 32")[0][0]
    assert 0 < remaining < 1000
    with SQLiteStore(path) as store:
        assert [entry.id for entry in store.list()] == ["c"]
        assert store.read("gone") == []
        append(store, store.acquire("gone"), 1)
        store.acquire("d")
        store.fork("c", summary("f", 1))
        store.delete("f")
        assert (seqs(store, "gone"), seqs(store, "c")) == ([1], [1])
    assert look(path, "SELECT count(*) FROM events") == [(2,)]
    assert look(path, "SELECT count(*) FROM inbox") == [(0,)]


def test_what_forks_need_of_a_deleted_conversation_is_kept_exactly(path: Path) -> None:
    def rows() -> list[tuple[int, int]]:
        return look(path, "SELECT key >> 32, key & 0xFFFFFFFF FROM events ORDER BY key")  # type: ignore[return-value]

    with SQLiteStore(path) as store:
        append(store, store.acquire("a"), *range(1, 7))
        store.fork("a", summary("b", 4))
        append(store, store.acquire("b"), 5, 6)
        store.fork("b", summary("c", 5))
        store.fork("b", summary("d", 2))
        leases = [store.acquire("c")]
        append(store, leases[0], 6)
        store.release(leases[0])
    with SQLiteStore(path) as store:
        store.delete("a")
        assert rows() == [(1, 1), (1, 2), (1, 3), (1, 4), (2, 5), (2, 6), (3, 6)]
        store.delete("b")
        assert rows() == [(1, 1), (1, 2), (1, 3), (1, 4), (2, 5), (3, 6)]
        assert seqs(store, "c") == [1, 2, 3, 4, 5, 6]
        store.delete("c")
        assert rows() == [(1, 1), (1, 2)]
        assert seqs(store, "d") == [1, 2]
        store.delete("d")
        assert rows() == []


def test_a_fork_stands_in_the_file_as_its_ancestry(path: Path) -> None:
    with SQLiteStore(path) as store:
        append(store, store.acquire("a"), 1, 2, 3, 4)
        store.fork("a", summary("b", 3))
        append(store, store.acquire("b"), 4, 5)
        for id, source, seq in (
            ("c", "b", 5),
            ("d", "b", 3),
            ("e", "b", 2),
            ("f", "c", 5),
            ("g", "a", 0),
        ):
            store.fork(source, Summary(id, last_seq=seq))
    bases = dict(look(path, "SELECT id, base FROM conversations"))
    assert bases == {
        "a": "",
        "b": "[[1,3]]",
        "c": "[[1,3],[2,5]]",
        "d": "[[1,3]]",
        "e": "[[1,2]]",
        "f": "[[1,3],[2,5]]",
        "g": "",
    }


def test_a_reader_in_the_midst_of_a_deleted_conversation_goes_on(path: Path) -> None:
    with SQLiteStore(path) as store:
        append(store, store.acquire("c"), *range(1, 301))
    with SQLiteStore(path) as store, SQLiteStore(path) as other:

        def work(db: sqlite3.Connection) -> int:
            db.execute("BEGIN")
            count = db.execute("SELECT count(*) FROM conversations").fetchone()[0]
            store.delete("c")
            assert count == 1
            row_count = len(db.execute("SELECT data FROM events").fetchall())
            db.execute("COMMIT")
            return row_count

        assert other._reader.read(work) == 300
        assert other.read("c") == []


# --- files that change during use ---


def test_a_file_that_was_replaced_or_removed_takes_no_more_events(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.store.sqlite.commit._CHECK_SECONDS", -1.0)
    for how in ("replaced", "removed"):
        with SQLiteStore(path) as store:
            lease = store.acquire(how)
            append(store, lease, 1)
            if how == "replaced":
                SQLiteStore(path.parent / "other.db").close()
                os.replace(path.parent / "other.db", path)
            else:
                path.unlink()
            with pytest.raises(StoreError, match=r"was removed or replaced .* Nothing was written"):
                append(store, lease, 2)
        for leftover in path.parent.glob("store.db*"):
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()


@pytest.mark.parametrize("how", ["left", "removed", "moved", "replaced"])
def test_a_clean_close_tells_that_the_file_is_gone(
    path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    with SQLiteStore(path) as store:
        append(store, store.acquire("c"), 1)
        if how == "replaced":
            shutil.copy(path, path.parent / "other.db")
            os.replace(path.parent / "other.db", path)
        elif how == "moved":
            path.rename(path.parent / "moved.db")
        elif how == "removed":
            path.unlink()
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == (how != "left"), errors
    assert all(f"Store {str(path)!r} was removed or replaced" in one for one in errors)


def test_a_file_that_was_truncated_is_a_store_error(path: Path) -> None:
    with SQLiteStore(path) as store:
        fill(store, "c", 100)
    with SQLiteStore(path) as store:
        os.truncate(path, 20_000)
        with pytest.raises(StoreError, match=r"cannot be read|damaged"):
            store.read("c")


@pytest.mark.parametrize(
    "change", ["last_seq = 'x'", "base = 'x'", "base = '[[1,null]]'", "condensed = x'00'"]
)
def test_a_damaged_entry_of_a_conversation_is_named(path: Path, change: str) -> None:
    with SQLiteStore(path) as store:
        append(store, store.acquire("c"), 1, 2)
        db = sqlite3.connect(path)
        with db:
            db.execute(f"UPDATE conversations SET {change}")
        db.close()
        with pytest.raises(
            StoreError, match="cannot be read: the entry of conversation 'c' is damaged"
        ):
            store.tail("c")


def test_a_list_with_a_damaged_entry_is_a_store_error(path: Path) -> None:
    with SQLiteStore(path) as store:
        append(store, store.acquire("c"), 1)
        db = sqlite3.connect(path)
        with db:
            db.execute("UPDATE conversations SET updated = 'x'")
        db.close()
        with pytest.raises(StoreError, match="the entry of a conversation is damaged"):
            store.list()


def test_a_damaged_blob_is_named(path: Path) -> None:
    with SQLiteStore(path) as store:
        store.append(
            store.acquire("c"), Batch([message(1)], summary("c", 1), blobs=[Blob(1, b"x" * 100)])
        )
        with sqlite3.connect(path) as db:
            db.execute("UPDATE blobs SET data = CAST('y' || substr(data, 2) AS BLOB)")
        db.close()
        with pytest.raises(StoreError, match=f"blob '{blob_id(b'x' * 100)}' is damaged"):
            store.blob(blob_id(b"x" * 100))


def test_a_lock_that_is_held_too_long_says_what_to_do(path: Path) -> None:
    with SQLiteStore(path, timeout=0.02) as store:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(
            StoreError,
            match=(
                r"locked. Nothing was written. Another process has been writing for longer than"
                r" timeout=0.02"
            ),
        ):
            store.acquire("c")
        other.close()


def test_a_lease_lasts_for_some_time() -> None:
    with pytest.raises(ConfigurationError, match="lease_seconds takes seconds above 0"):
        SQLiteStore("x.db", lease_seconds=0)
