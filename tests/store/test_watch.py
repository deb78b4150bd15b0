"""`SQLiteStore` between processes: inboxes, followers, leases whose owners die, and the thread
that watches."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from holdfast.commands import Pause, Send
from holdfast.errors import Fenced, LeaseHeld, StoreError
from holdfast.store import Batch, SQLiteStore
from holdfast.store.sqlite import owner as owners
from holdfast.store.sqlite.owner import HostIdentity, Owner
from tests.store.test_store import append, message, seqs, summary
from tests.store_parts import Start, files, next_line, starting, tell
from tests.waiting import until


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def start(path: Path) -> Iterator[Start]:
    yield from starting(path)


def watchers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "holdfast-store-watch"]


# --- inboxes ---


def test_a_post_of_another_process_tells_the_holder(path: Path, start: Start) -> None:
    notices = {id: threading.Event() for id in "ab"}
    with SQLiteStore(path) as store:
        leases = {id: store.acquire(id, notices[id].set) for id in "ab"}
        poster = start("""
        store = SQLiteStore(path)
        for line in sys.stdin:
            say(store.post(line.strip(), Send("from afar"), "key"))
        """)
        for expected in ("True", "False"):
            tell(poster, "a")
            assert next_line(poster) == expected
        assert notices["a"].wait(30)
        assert [posted.command for posted in store.commands(leases["a"])] == [Send("from afar")]
        assert not notices["b"].is_set()
        tell(poster, "b")
        assert notices["b"].wait(30)


def test_what_was_posted_before_the_lease_was_taken_is_told(path: Path) -> None:
    with SQLiteStore(path) as one, SQLiteStore(path) as two:
        one.release(one.acquire("c"))
        one.post("c", Pause())
        notice = threading.Event()
        two.acquire("c", notice.set)
        assert notice.wait(30)


def test_an_undone_command_is_told_of_once_not_with_every_look(path: Path) -> None:
    with SQLiteStore(path) as store, SQLiteStore(path) as other:
        calls: list[int] = []
        store.acquire("c", lambda: calls.append(1))
        other.post("c", Pause())
        until(lambda: calls)
        lease = other.acquire("d")
        for seq in range(1, 4):
            append(other, lease, seq)
            time.sleep(0.06)
        assert len(calls) == 1


@pytest.mark.slow
def test_a_holder_is_told_that_its_lease_was_lost(path: Path, start: Start) -> None:
    holder = start("""
    import threading
    store, lost = SQLiteStore(path), threading.Event()
    lease = store.acquire("c", lost.set)
    append(store, lease, 1)
    say("held")
    say("told", lost.wait(10))
    try:
        store.renew(lease)
    except Fenced:
        say("fenced")
    """)
    assert next_line(holder) == "held"
    for lock in Path(f"{path}-owners").iterdir():
        lock.unlink()
    with SQLiteStore(path) as store:
        append(store, store.acquire("c"), 2)
        assert next_line(holder) == "told True"
        assert next_line(holder) == "fenced"


def test_a_notify_that_raises_is_logged_and_others_are_told(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def wrong() -> None:
        raise RuntimeError("not now")

    notice = threading.Event()
    with (
        SQLiteStore(path) as store,
        SQLiteStore(path) as other,
        caplog.at_level(logging.ERROR, "holdfast.store"),
    ):
        store.acquire("a", wrong)
        store.acquire("b", notice.set)
        assert store.post("a", Pause()) is True
        other.post("a", Pause())
        other.post("b", Pause())
        assert notice.wait(30)
        until(lambda: len(caplog.records) >= 2)
    assert {str(record.exc_info and record.exc_info[1]) for record in caplog.records} == {"not now"}


def test_a_command_of_a_newer_version_is_left_where_it_is(path: Path) -> None:
    with SQLiteStore(path) as store:
        lease = store.acquire("c")
        assert store._writer is not None
        store._writer.db.execute(
            "INSERT INTO inbox (conversation, key, data) VALUES (1, 'new', ?)",
            (b'{"command":"dance"}',),
        )
        store.post("c", Pause())
        assert [posted.command for posted in store.commands(lease)] == [Pause()]
        assert store._writer.db.execute(
            "SELECT count(*) FROM inbox WHERE data IS NOT NULL"
        ).fetchone() == (2,)


# --- following ---


@pytest.mark.slow
@pytest.mark.parametrize("read_only", [False, True])
def test_a_follower_sees_what_another_process_appends(
    path: Path, start: Start, read_only: bool
) -> None:
    writer = start("""
    store = SQLiteStore(path)
    lease = store.acquire("c")
    append(store, lease, 1)
    say("began")
    for line in sys.stdin:
        append(store, lease, int(line))
    """)
    assert next_line(writer) == "began"
    with SQLiteStore(path, read_only=read_only) as store, ThreadPoolExecutor(5) as pool:
        coming = [
            pool.submit(
                lambda: [event.seq for _, event in zip(range(5), store.follow("c"), strict=False)]
            )
            for _ in range(5)
        ]
        for seq in range(2, 6):
            tell(writer, str(seq))
            time.sleep(0.02)
        assert [one.result(30) for one in coming] == [[1, 2, 3, 4, 5]] * 5
        assert list(store.follow("c", 5, timeout=0.1)) == []


def test_a_follower_of_one_conversation_is_not_woken_by_another(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SQLiteStore(path) as store, SQLiteStore(path) as other:
        append(store, store.acquire("c"), 1)
        following = store.follow("c", timeout=0.3)
        assert next(following) == message(1)
        reads: list[str] = []
        genuine_read = store.read

        def counted(conversation_id: str, after_seq: int = 0) -> Any:
            reads.append(conversation_id)
            return genuine_read(conversation_id, after_seq)

        monkeypatch.setattr(store, "read", counted)
        lease = other.acquire("d")
        with ThreadPoolExecutor(1) as pool:
            rest = pool.submit(lambda: list(following))
            for seq in range(1, 6):
                append(other, lease, seq)
                time.sleep(0.02)
            assert rest.result(30) == []
        assert len(reads) == 1


# --- the thread ---


def test_there_is_a_thread_only_while_someone_wants_to_know(path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    with SQLiteStore(path) as store:
        plain = store.acquire("plain")
        append(store, plain, 1)
        assert watchers() == []
        leases = [store.acquire(id, lambda: None) for id in "abc"]
        assert len(watchers()) == 1
        for lease in leases:
            store.release(lease)
        until(lambda: watchers() == [])
        assert next(store.follow("plain")) == message(1)
        until(lambda: watchers() == [])
        store.acquire("d", lambda: None)
        assert len(watchers()) == 1
    assert watchers() == []
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_store_may_be_closed_by_a_notify(path: Path) -> None:
    with SQLiteStore(path) as store, SQLiteStore(path) as other:
        store.acquire("c", store.close)
        other.post("c", Pause())
        until(lambda: watchers() == [])
        with pytest.raises(StoreError, match="closed"):
            store.list()


def test_the_thread_survives_a_file_that_cannot_be_read_for_a_while(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    notice = threading.Event()
    with SQLiteStore(path) as store, SQLiteStore(path) as other:
        store.acquire("c", notice.set)
        until(lambda: store._watcher._reader)
        reader = store._watcher._reader
        assert reader is not None
        version, store._watcher._reader.version = (
            reader.version,
            lambda: (_ for _ in ()).throw(StoreError("gone")),
        )  # type: ignore[union-attr,method-assign]
        until(
            lambda: [record for record in caplog.records if "cannot be watched" in record.message]
        )
        other.post("c", Pause())
        reader.version = version  # type: ignore[method-assign]
        assert notice.wait(30)
    assert len([record for record in caplog.records if "cannot be watched" in record.message]) == 1


# --- notes of dead owners ---

NOTER = """
store = SQLiteStore(path)
lease = store.acquire("c")
say(list(lease.orphan_notes))
for line in sys.stdin:
    store.note(lease, line.split())
    say("noted")
"""


@pytest.mark.slow
def test_what_a_killed_owner_noted_is_left_to_the_next_until_it_says_otherwise(
    path: Path, start: Start
) -> None:
    for notes, note in (([], "1 2ü"), (["1", "2ü"], None), (["1", "2ü"], "3"), (["3"], "")):
        other = start(NOTER)
        assert next_line(other) == str(notes), "a second crash loses nothing"
        if note is not None:
            tell(other, note)
            assert next_line(other) == "noted"
        other.kill()
        other.wait()
    with SQLiteStore(path) as store:
        assert store.acquire("c").orphan_notes == ()


@pytest.mark.parametrize("how", ["release", "close"])
def test_who_gives_back_leaves_no_notes(path: Path, how: str) -> None:
    with SQLiteStore(path) as one, SQLiteStore(path) as two:
        lease = one.acquire("c")
        one.note(lease, ["x"])
        if how == "release":
            one.release(lease)
        else:
            one.close()
        assert two.acquire("c").orphan_notes == ()


def test_a_lease_of_a_closed_store_is_worth_nothing_in_another(path: Path) -> None:
    with SQLiteStore(path) as one, SQLiteStore(path) as two:
        lease = one.acquire("c")
        one.close()
        for use in (
            two.renew,
            two.commands,
            lambda lease: two.note(lease, ["x"]),
            lambda lease: append(two, lease, 1),
        ):
            with pytest.raises(Fenced):
                use(lease)


# --- owners of other machines, and disks without locks ---

HERE, THERE = HostIdentity("boot-1", "here"), HostIdentity("boot-2", "there")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "owners"


def age(folder: Path, owner: Owner, seconds: float) -> None:
    """Set the last touch of an owner's file to that many seconds ago, by the clock of the disk."""
    name = owner.token.partition("/")[0]
    now = os.stat(folder / name).st_mtime
    os.utime(folder / name, (now - seconds, now - seconds))


def test_the_lock_of_a_living_owner_is_believed_whatever_its_age_and_place(folder: Path) -> None:
    for host in (HERE, THERE):
        owner, other = Owner(folder, 10, host), Owner(folder, 10, HERE)
        age(folder, owner, 1000)
        assert other.living(owner.token) == f"process {os.getpid()} on {host.node}"
        owner.close()
        assert other.living(owner.token) is None
        other.close()
    assert not folder.exists()


@pytest.mark.parametrize(
    ("host", "dead_at_once"),
    [
        (HERE, True),
        (HostIdentity("boot-1", "renamed"), True),
        (HostIdentity("boot-9", "here"), True),  # the machine was restarted
        (HostIdentity("", "here"), True),
        (HostIdentity("", "there"), False),
        (THERE, False),
    ],
)
def test_an_unlocked_file_is_dead_here_and_of_another_machine_only_when_old(
    folder: Path, host: HostIdentity, dead_at_once: bool
) -> None:
    owner, other = Owner(folder, 10, host), Owner(folder, 10, HERE)
    os.close(owner._fd)  # the lock is gone, as another machine sees it
    owner._fd = -1
    if not dead_at_once:
        assert other.living(owner.token) == f"process {os.getpid()} on {host.node}"
        age(folder, owner, 9)
        assert other.living(owner.token)
        owner.touch()
        assert other.living(owner.token), "a heartbeat keeps it alive"
        age(folder, owner, 12)
    assert other.living(owner.token) is None
    assert len(files(folder)) == 1, "what a dead one left is removed"
    other.close()


def test_two_machines_without_boot_ids_are_not_one(folder: Path) -> None:
    owner, other = (
        Owner(folder, 10, HostIdentity("", "there")),
        Owner(folder, 10, HostIdentity("", "here")),
    )
    os.close(owner._fd)
    owner._fd = -1
    assert other.living(owner.token)
    other.close()


def test_on_a_disk_without_locks_age_decides(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(fd: int, how: int) -> None:
        raise OSError(owners.errno.ENOLCK, "No locks available")

    monkeypatch.setattr(owners.fcntl, "flock", flock)
    owner, other = Owner(folder, 10, HERE), Owner(folder, 10, HERE)
    assert other.living(owner.token)
    age(folder, owner, 11)
    assert other.living(owner.token) is None
    owner.touch()
    assert other.living(owner.token), "who comes back makes its file anew"
    owner.close()
    other.close()


def test_a_token_of_the_first_format_is_of_this_machine(folder: Path) -> None:
    owner, other = Owner(folder, 10, THERE), Owner(folder, 10, HERE)
    old = owner.token.partition("/")[0]
    assert other.living(old)
    os.close(owner._fd)
    owner._fd = -1
    assert other.living(old) is None
    assert other.living("99999999-00ff") is None
    other.close()


def test_two_that_look_at_a_dead_owner_at_the_same_time_both_see_that_it_is_dead(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead, one, two = Owner(folder), Owner(folder), Owner(folder)
    os.close(dead._fd)
    dead._fd = -1
    unlink, seen = Path.unlink, list[str | None]()

    def unlink_late(path: Path, missing_ok: bool = False) -> None:
        monkeypatch.undo()
        seen.append(two.living(dead.token))
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink_late)
    assert one.living(dead.token) is None
    assert seen == [None]
    one.close()
    two.close()


def test_the_listing_of_a_read_only_store_sees_that_the_owner_was_killed(
    path: Path, start: Start
) -> None:
    holder = start("""
    store = SQLiteStore(path)
    append(store, store.acquire("c"), 1)
    say("held")
    sys.stdin.read()
    """)
    assert next_line(holder) == "held"
    with SQLiteStore(path, read_only=True) as store:
        assert store.list()[0].driven
        holder.kill()
        holder.wait()
        owner_files = os.listdir(f"{path}-owners")
        assert not store.list()[0].driven
        assert os.listdir(f"{path}-owners") == owner_files


def test_a_token_cannot_lead_out_of_its_folder(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    other = Owner(folder)
    assert other.living("../precious") is None
    assert other.living("..") is None
    other.close()
    assert (tmp_path / "precious").read_text() == "mine"


def test_a_store_with_a_watched_lease_renews_by_itself(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SQLiteStore(path, lease_seconds=0.03) as store:
        store.acquire("c", lambda: None)
        lock = next(Path(f"{path}-owners").iterdir())
        os.utime(lock, (1, 1))
        until(lambda: lock.stat().st_mtime > 1)
        lock.unlink()
        until(lock.exists)
        with SQLiteStore(path) as other, pytest.raises(LeaseHeld):
            other.acquire("c")


@pytest.mark.slow
def test_a_stalled_owner_on_another_machine_is_fenced_when_it_comes_back(
    path: Path, start: Start
) -> None:
    holder = start("""
    from holdfast.store.sqlite.owner import HostIdentity, Owner
    store = SQLiteStore(path, lease_seconds=60)
    store._owner = Owner(Path(f"{path}-owners"), 60, HostIdentity("elsewhere", "elsewhere"))
    lease = store.acquire("c")
    append(store, lease, 1)
    import fcntl
    fcntl.flock(store._owner._fd, fcntl.LOCK_UN)
    say("held")
    for use in (lambda: store.renew(lease), lambda: append(store, lease, 2)):
        sys.stdin.readline()
        try:
            use()
            say("went on")
        except Fenced:
            say("fenced")
    """)
    assert next_line(holder) == "held"
    holder.send_signal(signal.SIGSTOP)
    with SQLiteStore(path, lease_seconds=60) as store:
        with pytest.raises(LeaseHeld, match="on elsewhere"):
            store.acquire("c")
        lock = next(Path(f"{path}-owners").glob(f"{holder.pid}-*"))
        os.utime(lock, (1, 1))
        store.append(store.acquire("c"), Batch([message(2)], summary("c", 2)))
        holder.send_signal(signal.SIGCONT)
        for _ in range(2):
            tell(holder, "go")
            assert next_line(holder) == "fenced"
        assert seqs(store, "c") == [1, 2]
