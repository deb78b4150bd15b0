"""The contract of stores, tested with each of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import events as ev
from holdfast.commands import Approve, Interrupt, Pause, Reject, Resume, Send
from holdfast.content import TextContent
from holdfast.error_forms import ErrorForm
from holdfast.errors import (
    ConfigurationError,
    Conflict,
    ConversationNotFound,
    Fenced,
    LeaseHeld,
    StoreError,
)
from holdfast.store import (
    Batch,
    Blob,
    MemoryStore,
    PostgresStore,
    SQLiteStore,
    Store,
    Summary,
    blob_id,
)
from tests.paths import DATA
from tests.postgres import PostgresServer

NOW = datetime(2026, 11, 2, 9, 30, tzinfo=UTC)


def message(seq: int, text: str = "") -> ev.MessageAdded:
    return ev.MessageAdded(
        seq=seq,
        id=f"e{seq}",
        timestamp=NOW + timedelta(seconds=seq),
        content=(TextContent(text or f"message {seq}"),),
    )


def summary(id: str, seq: int, **fields: Any) -> Summary:
    fields = {
        "status": "running",
        "title": "title",
        "created": NOW,
        "updated": NOW + timedelta(seconds=seq),
        **fields,
    }
    return Summary(id, last_seq=seq, **fields)


def append(store: Store, lease: Any, *seqs: int) -> None:
    store.append(
        lease, Batch([message(seq) for seq in seqs], summary(lease.conversation_id, seqs[-1]))
    )


def seqs(store: Store, id: str, after: int = 0) -> list[int]:
    return [event.seq for event in store.read(id, after)]


@pytest.fixture(params=["memory", "durable", "process", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    backend = open_backend(request, tmp_path)
    yield backend
    backend.close()


def open_backend(request: pytest.FixtureRequest, folder: Path) -> Store:
    match request.param:
        case "memory":
            return MemoryStore()
        case "postgres":
            server: PostgresServer = request.getfixturevalue("postgres_server")
            schema: str = request.getfixturevalue("postgres_schema")
            return PostgresStore(server.dsn(), schema=schema)
        case durability:
            return SQLiteStore(folder / "store.db", durability)


# --- reading and writing ---


def test_what_was_appended_is_read_in_order(store: Store) -> None:
    lease = store.acquire("c")
    append(store, lease, 1)
    append(store, lease, 2, 3)
    assert store.read("c") == [message(1), message(2), message(3)]


def test_events_of_every_kind_come_back(store: Store) -> None:
    lines = (DATA / "journal_v1.jsonl").read_bytes().split(b"\n")[:-1]
    journal = [ev.decode(line) for line in lines]
    store.append(store.acquire("c"), Batch(journal, summary("c", len(journal))))
    assert store.read("c") == journal
    assert [ev.encode(event) for event in store.read("c")] == lines


def test_reading_begins_after_a_seq(store: Store) -> None:
    append(store, store.acquire("c"), 1, 2, 3)
    assert [seqs(store, "c", after) for after in (-5, -1, 0, 1, 2, 3, 99)] == [[1, 2, 3]] * 3 + [
        [2, 3],
        [3],
        [],
        [],
    ]


def test_a_conversation_that_is_not_there_has_no_events(store: Store) -> None:
    assert store.read("c") == []
    assert store.list() == []


def test_conversations_do_not_see_each_others_events(store: Store) -> None:
    for id in ("a", "b"):
        append(store, store.acquire(id), *range(1, 4))
    assert seqs(store, "a") == seqs(store, "b") == [1, 2, 3]


def test_a_result_of_a_read_is_the_callers_own(store: Store) -> None:
    append(store, store.acquire("c"), 1)
    store.read("c").clear()
    assert seqs(store, "c") == [1]


@pytest.mark.parametrize(
    "id",
    ["", "with space", "ünïcode 👋", "a/b\\c", "'; DROP TABLE events; --", "x" * 5000, "a\x00b"],
)
def test_an_id_may_be_any_text(store: Store, id: str) -> None:
    append(store, store.acquire(id), 1)
    assert seqs(store, id) == [1]
    assert [entry.id for entry in store.list()] == [id]


@pytest.mark.slow
def test_an_event_of_ten_megabytes_is_kept(store: Store) -> None:
    big = message(1, "ü" * 5_000_000)
    store.append(store.acquire("c"), Batch([big], summary("c", 1)))
    assert store.read("c") == [big]


def test_an_append_of_nothing_writes_nothing(store: Store) -> None:
    lease = store.acquire("c")
    store.append(lease, Batch([], summary("c", 0)))
    append(store, lease, 1)
    store.append(lease, Batch([], summary("c", 1)))
    assert seqs(store, "c") == [1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "wrong"),
    [
        ([], [2]),
        ([], [0]),
        ([1], [1]),
        ([1, 2], [2]),
        ([1], [3]),
        ([1], [2, 4]),
        ([1], [2, 2]),
        ([1], [3, 2]),
    ],
)
def test_events_must_be_dense(store: Store, before: list[int], wrong: list[int]) -> None:
    lease = store.acquire("c")
    if before:
        append(store, lease, *before)
    with pytest.raises(
        StoreError, match=r"does not follow event \d+\. Nothing was written\."
    ) as caught:
        append(store, lease, *wrong)
    assert not isinstance(caught.value, Fenced)
    assert seqs(store, "c") == before
    append(store, lease, len(before) + 1)


# --- listing ---


def test_the_listing_shows_the_last_written_first(store: Store) -> None:
    for n, id in enumerate("abc"):
        store.append(
            store.acquire(id),
            Batch([message(1)], summary(id, 1, updated=NOW + timedelta(minutes=5 - n))),
        )
    assert [entry.id for entry in store.list()] == ["a", "b", "c"]


def test_of_two_written_at_one_time_the_newer_conversation_comes_first(store: Store) -> None:
    for id in "abc":
        store.append(store.acquire(id), Batch([message(1)], summary(id, 1)))
    assert [entry.id for entry in store.list()] == ["c", "b", "a"]


def test_the_listing_shows_the_last_summary(store: Store) -> None:
    lease = store.acquire("c")
    store.append(lease, Batch([message(1)], summary("c", 1)))
    last = summary(
        "c",
        3,
        status="finished",
        title="Grüße 👋",
        created=NOW,
        updated=NOW + timedelta(hours=1, microseconds=5),
    )
    store.append(lease, Batch([message(2), message(3)], last))
    assert store.list() == [replace(last, driven=True)]


def test_a_conversation_is_created_when_its_first_event_was(store: Store) -> None:
    store.append(
        store.acquire("c"), Batch([message(1)], summary("c", 1, created=NOW - timedelta(days=400)))
    )
    assert store.list()[0].created == NOW - timedelta(days=400)


def test_a_conversation_without_events_is_not_listed(store: Store) -> None:
    store.acquire("c")
    assert store.list() == []


def label(seq: int, **fields: Any) -> ev.ConversationLabelled:
    return ev.ConversationLabelled(seq=seq, id=f"e{seq}", timestamp=NOW, **fields)


def ids_with_tags(store: Store, *tags: str, **filters: Any) -> list[str]:
    return sorted(one.id for one in store.list(tags=tags, **filters))


def test_conversations_are_found_by_all_of_their_tags(store: Store) -> None:
    odd = """it's 50% of "a", [b] \\ ü"""
    for id, *tags in (("a", "bug", "customer=acme"), ("b", "bug", odd), ("c",), ("d", "bu")):
        lease = store.acquire(id)
        entry = summary(id, 2, tags=tuple(tags))
        store.append(lease, Batch([message(1), label(2, add=tuple(tags))], entry))
        store.append(lease, Batch([message(3)], summary(id, 3, tags=tuple(tags))))
    assert {one.id: one.tags for one in store.list()} == {
        "a": ("bug", "customer=acme"),
        "b": ("bug", odd),
        "c": (),
        "d": ("bu",),
    }
    assert ids_with_tags(store, "bug") == ["a", "b"]
    assert ids_with_tags(store, "bug", odd) == ["b"]
    assert ids_with_tags(store, "bug", ids=["b", "c"]) == ["b"]
    assert ids_with_tags(store, "bug", status="finished") == ids_with_tags(store, "BUG") == []
    assert ids_with_tags(store) == ["a", "b", "c", "d"]


def test_tags_are_taken_away_again_and_survive_a_new_holder(store: Store) -> None:
    lease = store.acquire("a")
    entry = summary("a", 1, tags=("bug", "new"))
    store.append(lease, Batch([label(1, add=("bug", "new"))], entry))
    store.release(lease)
    lease = store.acquire("a")
    store.append(lease, Batch([message(2)], summary("a", 2, tags=("bug", "new"))))
    store.append(lease, Batch([label(3, remove=("new",))], summary("a", 3, tags=("bug",))))
    assert ids_with_tags(store, "new") == []
    assert ids_with_tags(store, "bug") == ["a"]
    store.append(lease, Batch([label(4, remove=("bug",))], summary("a", 4)))
    assert ids_with_tags(store, "bug") == []


def test_a_fork_has_the_tags_of_its_summary(store: Store) -> None:
    lease = store.acquire("a")
    store.append(lease, Batch([label(1, add=("bug",))], summary("a", 1, tags=("bug",))))
    title_event = label(2, title="title (fork)", by="fork")
    store.fork("a", summary("f", 2, title="title (fork)", tags=("bug",)), [title_event])
    store.fork("a", summary("g", 1))
    assert {one.id: (one.title, one.tags) for one in store.list()} == {
        "a": ("title", ("bug",)),
        "f": ("title (fork)", ("bug",)),
        "g": ("title", ()),
    }
    store.release(lease)
    store.delete("a")
    assert ids_with_tags(store, "bug") == ["f"]


def forked_from(store: Store, *ids: str, **filters: Any) -> list[str]:
    return sorted(one.id for one in store.list(forked_from=ids, **filters))


def test_forks_are_found_by_the_conversations_that_they_came_from(store: Store) -> None:
    odd = """it's "a"\0,[b] ü"""
    for id in ("a", "a:1", odd):
        store.append(store.acquire(id), Batch([message(1), message(2)], summary(id, 2)))
    store.fork("a", summary("f", 1))
    store.fork("a", summary("zero", 1), [message(1)])  # it shares no event
    store.fork("f", summary("g", 1))
    store.fork(odd, summary("h", 2, tags=("bug",)))
    assert forked_from(store, "a") == ["f", "zero"]
    assert forked_from(store, "a", odd) == ["f", "h", "zero"]
    assert forked_from(store, "f", "a:1", "unknown", "\ud800") == ["g"]
    assert forked_from(store) == forked_from(store, "") == forked_from(store, "g") == []
    assert forked_from(store, "a", odd, tags=["bug"]) == ["h"]
    assert forked_from(store, "a", ids=["f", "g"]) == ["f"]
    store.delete("f")
    assert (forked_from(store, "a"), forked_from(store, "f")) == (["zero"], ["g"])


# --- leases ---


def test_a_lease_is_held_by_one(store: Store) -> None:
    store.acquire("c")
    with pytest.raises(
        LeaseHeld, match="Conversation 'c' is held by another Conversation in this process"
    ) as caught:
        store.acquire("c")
    assert (caught.value.conversation_id, isinstance(caught.value, BlockingIOError)) == ("c", True)


def test_a_lease_that_was_given_back_can_be_taken_with_a_higher_epoch(store: Store) -> None:
    epochs: list[int] = []
    for _ in range(4):
        lease = store.acquire("c")
        epochs.append(lease.epoch)
        store.release(lease)
        store.release(lease)
    assert epochs == sorted(set(epochs))


def test_a_fenced_owner_writes_nothing(store: Store) -> None:
    old = store.acquire("c")
    append(store, old, 1)
    store.release(old)
    new = store.acquire("c")
    with pytest.raises(
        Fenced, match=f"Conversation 'c' was taken over; epoch {old.epoch} may not write"
    ) as caught:
        append(store, old, 2)
    assert isinstance(caught.value, PermissionError)
    assert seqs(store, "c") == [1]
    append(store, new, 2)
    with pytest.raises(Fenced):
        append(store, old, 3)
    with pytest.raises(Fenced):
        store.append(old, Batch([], summary("c", 2)))
    assert seqs(store, "c") == [1, 2]
    assert store.list()[0].last_seq == 2


def test_an_owner_writes_nothing_after_it_gave_the_lease_back(store: Store) -> None:
    lease = store.acquire("c")
    append(store, lease, 1)
    store.release(lease)
    with pytest.raises(Fenced):
        append(store, lease, 2)
    assert seqs(store, "c") == [1]


def test_an_old_lease_cannot_be_released_over_a_new_one(store: Store) -> None:
    old = store.acquire("c")
    store.release(old)
    new = store.acquire("c")
    store.release(old)
    with pytest.raises(LeaseHeld):
        store.acquire("c")
    append(store, new, 1)


def test_a_lease_of_one_conversation_does_not_fit_another(store: Store) -> None:
    old = store.acquire("a")
    append(store, old, 1)
    store.release(old)
    store.delete("a")
    other = store.acquire("b")
    with pytest.raises(Fenced):
        append(store, old, 1)
    assert store.read("b") == []
    append(store, other, 1)


def test_no_lease_fits_a_conversation_that_was_deleted_and_made_again(store: Store) -> None:
    leases: list[Any] = []
    for _ in range(4):
        for seq in (1, 2):
            lease = store.acquire("c")
            append(store, lease, seq)
            leases.append(lease)
            store.release(lease)
        store.delete("c")
    store.acquire("c")
    for lease in leases:
        for use in (
            lambda lease=lease: append(store, lease, 1),
            lambda lease=lease: store.commands(lease),
        ):
            with pytest.raises(Fenced):
                use()
    assert len({lease.epoch for lease in leases}) == 8


def test_only_the_newest_lease_can_be_renewed_and_noted_under(store: Store) -> None:
    old = store.acquire("c")
    store.renew(old)
    store.note(old, ["a", "b"])
    store.release(old)
    new = store.acquire("c")
    assert (old.orphan_notes, new.orphan_notes) == ((), ()), "what was given back left nothing"
    for use in (store.renew, store.commands, lambda lease: store.note(lease, ["c"])):
        with pytest.raises(Fenced, match="Conversation 'c' was taken over"):
            use(old)
    store.renew(new)


# --- the inbox ---


def test_commands_come_in_the_order_of_posting_until_they_are_done(store: Store) -> None:
    lease = store.acquire("c")
    posted = [
        Send("hello"),
        Approve("3.0", "hash", {"a": [1, None]}, reason="ü"),
        Reject("3.1"),
        Pause(),
        Resume(),
        Interrupt(),
    ]
    assert all(store.post("c", command) for command in posted)
    commands = store.commands(lease)
    assert [one.command for one in commands] == posted
    assert [one.number for one in commands] == sorted({one.number for one in commands})
    assert len({one.key for one in commands}) == len(posted)
    store.append(
        lease,
        Batch(
            [message(1)], summary("c", 1), done_commands=[commands[0].number, commands[2].number]
        ),
    )
    assert [one.command for one in store.commands(lease)] == [posted[1], *posted[3:]]
    store.append(lease, Batch([], summary("c", 1), done_commands=[commands[1].number]))
    assert [one.command for one in store.commands(lease)] == posted[3:]
    assert seqs(store, "c") == [1]


def test_a_key_is_posted_once_also_when_it_is_done(store: Store) -> None:
    lease = store.acquire("c")
    assert [
        store.post("c", Send("a"), "k"),
        store.post("c", Send("b"), "k"),
        store.post("c", Send("b"), ""),
        store.post("c", Pause(), ""),
    ] == [
        True,
        False,
        True,
        False,
    ]
    commands = store.commands(lease)
    assert [(one.key, one.command) for one in commands] == [("k", Send("a")), ("", Send("b"))]
    store.append(lease, Batch([], summary("c", 0), done_commands=[one.number for one in commands]))
    assert store.post("c", Send("c"), "k") is False
    assert store.commands(lease) == []
    store.acquire("d")
    assert store.post("d", Send("d"), "k") is True, "a key is of one conversation"


def test_why_a_command_was_refused_is_kept_with_its_mark(store: Store) -> None:
    lease = store.acquire("c")
    for key in ("done", "refused", "waiting"):
        store.post("c", Send(key), key)
    executed, refused, _ = [one.number for one in store.commands(lease)]
    why = ErrorForm("HookDenied", "No ü today.", {"hook": "h", "failed": False})
    batch = Batch([], summary("c", 0), done_commands=[executed, refused], refusals={refused: why})
    store.append(lease, batch)
    store.release(lease)
    keys = ("done", "refused", "waiting", "unknown")
    reasons = {key: store.refusal("c", key) for key in keys}
    assert reasons == {"done": None, "refused": why, "waiting": None, "unknown": None}
    assert [key for key in keys if store.undone("c", key)] == ["waiting"]
    for about in (store.refusal, store.undone):
        with pytest.raises(ConversationNotFound):
            about("d", "refused")


def test_the_inbox_waits_for_the_next_lease(store: Store) -> None:
    store.release(store.acquire("c"))
    store.post("c", Send("while nobody drove"))
    assert [one.command for one in store.commands(store.acquire("c"))] == [
        Send("while nobody drove")
    ]


@pytest.mark.parametrize("key", [5, b"x", "\ud800"])
def test_a_key_that_is_no_text_is_refused_and_nothing_is_posted(store: Store, key: Any) -> None:
    lease = store.acquire("c")
    with pytest.raises(ConfigurationError, match="key takes None or text that UTF-8 can hold"):
        store.post("c", Send("hello"), key)
    assert store.commands(lease) == []


@pytest.mark.parametrize("id", ["\ud800", 5])
def test_an_id_that_is_no_text_is_refused(store: Store, id: Any) -> None:
    with pytest.raises(ConfigurationError, match="id takes text that UTF-8 can hold"):
        store.acquire(id)
    append(store, store.acquire("c"), 1)
    with pytest.raises(ConfigurationError, match="id takes text that UTF-8 can hold"):
        store.fork("c", summary(id, 1))
    assert [one.id for one in store.list(["c", "\ud800"])] == ["c"]


def test_an_id_with_a_nul_is_an_id_like_any_other(store: Store) -> None:
    ids = ["a", "a\0b", "a\0c", "\0"]
    for id in ids:
        append(store, store.acquire(id), 1)
        assert store.post(id, Send("hello"), "k\0")
        assert not store.post(id, Send("hello"), "k\0")
    for id in ids:
        assert [one.id for one in store.list([id])] == [id]
        assert [one.id for one in store.list([id, "b"], waiting=True)] == [id]
    assert {one.id for one in store.list(["a", "a\0c", "c"])} == {"a", "a\0c"}


def test_a_post_needs_a_conversation_and_a_command(store: Store) -> None:
    with pytest.raises(ConversationNotFound, match="No conversation 'c'"):
        store.post("c", Send("hello"))
    store.acquire("c")
    with pytest.raises(ConfigurationError, match="post takes a command"):
        store.post("c", "hello")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="must be valid JSON"):
        store.post("c", Send("\udcff"))


def test_a_fenced_append_takes_no_command_and_keeps_no_blob(store: Store) -> None:
    old = store.acquire("c")
    store.post("c", Send("hello"))
    number = store.commands(old)[0].number
    store.release(old)
    new = store.acquire("c")
    for events in ([message(1)], []):
        with pytest.raises(Fenced):
            store.append(
                old, Batch(events, summary("c", 1), done_commands=[number], blobs=[Blob(1, b"x")])
            )
    with pytest.raises(StoreError, match="does not follow"):
        store.append(
            new, Batch([message(2)], summary("c", 2), done_commands=[number], blobs=[Blob(2, b"x")])
        )
    assert [one.number for one in store.commands(new)] == [number]
    with pytest.raises(StoreError, match="No blob"):
        store.blob(blob_id(b"x"))


def test_an_append_does_not_take_anothers_command(store: Store) -> None:
    leases = [store.acquire(id) for id in "ab"]
    store.post("a", Send("hello"))
    number = store.commands(leases[0])[0].number
    store.append(leases[1], Batch([message(1)], summary("b", 1), done_commands=[number]))
    assert [one.number for one in store.commands(leases[0])] == [number]


def test_a_post_tells_the_holder_and_nobody_else(store: Store) -> None:
    notices: list[str] = []
    lease = store.acquire("a", lambda: notices.append("a"))
    store.acquire("b", lambda: notices.append("b"))
    store.acquire("c")
    store.post("a", Send("hello"))
    assert "a" in notices, "a post of this process tells at once"
    assert "b" not in notices
    store.post("c", Send("hello"))
    store.release(lease)
    notices.clear()
    store.post("a", Send("hello"))
    assert notices == []


def test_a_notify_may_use_the_store(store: Store) -> None:
    numbers: list[int] = []
    finished = threading.Event()

    def notify() -> None:
        for posted in store.commands(lease):
            store.append(lease, Batch([], summary("c", 0), done_commands=[posted.number]))
            numbers.append(posted.number)
            finished.set()

    lease = store.acquire("c", notify)
    store.post("c", Send("hello"))
    assert finished.wait(30)
    assert store.commands(lease) == []


# --- following ---


def test_a_follower_gets_what_is_there_and_what_comes(store: Store) -> None:
    lease = store.acquire("c")
    append(store, lease, 1, 2)
    following = store.follow("c", 1)
    assert next(following) == message(2)
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(lambda: [next(following).seq for _ in range(3)])
        append(store, lease, 3)
        append(store, lease, 4, 5)
        assert coming.result(30) == [3, 4, 5]
    following.close()  # type: ignore[attr-defined]


def test_following_ends_when_nothing_comes(store: Store) -> None:
    append(store, store.acquire("c"), 1, 2)
    assert [event.seq for event in store.follow("c", timeout=0.01)] == [1, 2]
    assert list(store.follow("c", 2, timeout=0)) == []
    assert list(store.follow("not there", timeout=0.01)) == []


def test_one_can_follow_what_does_not_exist_yet(store: Store) -> None:
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(lambda: next(store.follow("c", timeout=30)))
        append(store, store.acquire("c"), 1)
        assert coming.result(30) == message(1)


def test_many_follow_at_once_and_all_end_with_the_store(store: Store) -> None:
    lease = store.acquire("c")
    barrier = threading.Barrier(9)

    def follow() -> list[int]:
        numbers: list[int] = []
        for event in store.follow("c"):
            numbers.append(event.seq)
            if event.seq in (1, 20):
                barrier.wait(30)
        return numbers

    with ThreadPoolExecutor(8) as pool:
        followers = [pool.submit(follow) for _ in range(8)]
        append(store, lease, 1)
        barrier.wait(30)
        for seq in range(2, 21):
            append(store, lease, seq)
        barrier.wait(30)
        store.close()
        assert all(follower.result(30) == list(range(1, 21)) for follower in followers)
    assert list(store.follow("c")) == []


# --- blobs ---


def test_blobs_are_kept_by_what_is_in_them(store: Store) -> None:
    lease = store.acquire("c")
    blobs = [b"", b"\x00\xff" * 500_000, "ü".encode()]
    events = [message(seq) for seq in (1, 2)]
    store.append(
        lease,
        Batch(
            events,
            summary("c", 2),
            blobs=[Blob(1, blobs[0]), Blob(2, blobs[1]), Blob(2, blobs[2]), Blob(2, blobs[2])],
        ),
    )
    store.append(lease, Batch([message(3)], summary("c", 3), blobs=[Blob(3, blobs[1])]))
    assert [store.blob(blob_id(data)) for data in blobs] == blobs
    with pytest.raises(StoreError, match="No blob 'sha256:00'"):
        store.blob("sha256:00")


def test_a_blob_goes_with_the_last_conversation_that_refers_to_it(store: Store) -> None:
    for id in "ab":
        lease = store.acquire(id)
        store.append(
            lease,
            Batch([message(1)], summary(id, 1), blobs=[Blob(1, b"shared"), Blob(1, id.encode())]),
        )
        store.release(lease)
    store.delete("a")
    assert store.blob(blob_id(b"shared")) == b"shared"
    with pytest.raises(StoreError, match="No blob"):
        store.blob(blob_id(b"a"))
    store.delete("b")
    with pytest.raises(StoreError, match="No blob"):
        store.blob(blob_id(b"shared"))


# --- forking ---


def test_a_fork_begins_with_the_others_events_and_goes_its_own_way(store: Store) -> None:
    lease = store.acquire("c")
    append(store, lease, 1, 2, 3)
    store.fork("c", summary("f", 2, title="a fork", status="idle"))
    assert seqs(store, "f") == [1, 2]
    own = store.acquire("f")
    store.append(own, Batch([message(3, "another")], summary("f", 3)))
    append(store, lease, 4)
    assert store.read("f") == [message(1), message(2), message(3, "another")]
    assert [store.read("f", after) for after in (1, 2, 3)] == [
        store.read("f")[1:],
        store.read("f")[2:],
        [],
    ]
    assert store.read("c") == [message(1), message(2), message(3), message(4)]
    with pytest.raises(StoreError, match="does not follow event 3"):
        append(store, own, 3)


def test_the_listing_tells_a_fork_that_nobody_drives_from_its_running_origin(store: Store) -> None:
    lease = store.acquire("c")
    append(store, lease, 1, 2)
    store.fork("c", summary("f", 2))

    def listed() -> dict[str, tuple[str, bool, str]]:
        return {one.id: (one.status, one.driven, one.listed_status) for one in store.list()}

    idle = ("running", False, "running (not driven)")
    assert listed() == {"c": ("running", True, "running"), "f": idle}
    store.release(lease)
    assert listed() == {"c": idle, "f": idle}
    own = store.acquire("f")
    assert listed() == {"c": idle, "f": ("running", True, "running")}
    store.append(own, Batch([message(3)], summary("f", 3, status="paused", driven=True)))
    store.release(own)
    assert listed()["f"] == ("paused", False, "paused")
    child = store.acquire("child")
    store.append(child, Batch([message(1)], summary("child", 1, spawned_by="c:2.0")))
    store.release(child)
    assert listed()["child"] == ("running", False, "running")  # its parent drives it


def test_the_listing_says_what_was_forked_from_what(store: Store) -> None:
    append(store, store.acquire("c"), 1, 2, 3)
    entry = summary(
        "f",
        2,
        title="ein Zweig",
        status="idle",
        created=NOW - timedelta(days=1),
        updated=NOW + timedelta(days=1),
    )
    store.fork("c", entry)
    listed = store.list()
    assert [(one.id, one.parent, one.parent_seq) for one in listed] == [
        ("f", "c", 2),
        ("c", "", 0),
    ]
    assert (listed[0].title, listed[0].status, listed[0].created, listed[0].updated) == (
        "ein Zweig",
        "idle",
        entry.created,
        entry.updated,
    )
    store.append(store.acquire("f"), Batch([message(3)], summary("f", 3, created=entry.created)))
    assert [
        (one.parent, one.parent_seq, one.last_seq, one.created)
        for one in store.list()
        if one.id == "f"
    ] == [("c", 2, 3, entry.created)]


def test_an_imported_fork_says_what_it_was_forked_from(store: Store) -> None:
    lease = store.acquire("f")
    store.append(lease, Batch([message(1)], summary("f", 1, parent="elsewhere", parent_seq=1)))
    store.append(lease, Batch([message(2)], summary("f", 2)))
    assert [
        (entry.id, entry.parent, entry.parent_seq, entry.last_seq) for entry in store.list()
    ] == [("f", "elsewhere", 1, 2)]


def test_no_later_append_says_what_a_conversation_was_forked_from(store: Store) -> None:
    lease = store.acquire("c")
    append(store, lease, 1)
    store.append(lease, Batch([message(2)], summary("c", 2, parent="elsewhere", parent_seq=1)))
    assert [(entry.parent, entry.parent_seq) for entry in store.list()] == [("", 0)]


@pytest.mark.parametrize("seq", [0, 1])
def test_no_append_changes_what_a_fork_was_forked_from(store: Store, seq: int) -> None:
    append(store, store.acquire("c"), 1)
    store.fork("c", summary("f", seq))
    store.append(
        store.acquire("f"),
        Batch(
            [message(seq + 1)],
            summary("f", seq + 1, parent="elsewhere", parent_seq=7),
        ),
    )
    assert [(entry.parent, entry.parent_seq) for entry in store.list() if entry.id == "f"] == [
        ("c", seq)
    ]


def test_a_fork_of_a_fork_reads_through_all_of_them(store: Store) -> None:
    append(store, store.acquire("c0"), *range(1, 11))
    expected = list(store.read("c0"))
    for n in range(1, 6):
        cut = 10 + 2 * n - 3  # the end of the shared part, before the last one's own event
        store.fork(f"c{n - 1}", summary(f"c{n}", cut))
        events = [message(seq, f"by {n}") for seq in range(cut + 1, cut + 4)]
        store.append(store.acquire(f"c{n}"), Batch(events, summary(f"c{n}", cut + 3)))
        expected = [*expected[:cut], *events]
        assert store.read(f"c{n}") == expected
        assert [store.read(f"c{n}", after) for after in range(len(expected) + 1)] == [
            expected[after:] for after in range(len(expected) + 1)
        ]
    store.fork("c5", summary("early", 3))
    assert seqs(store, "early") == [1, 2, 3]
    append(store, store.acquire("early"), 4, 5)
    assert seqs(store, "early") == [1, 2, 3, 4, 5]


def test_a_fork_of_nothing_is_empty(store: Store) -> None:
    store.acquire("c")
    store.fork("c", Summary("f"))
    assert store.read("f") == []
    append(store, store.acquire("f"), 1)
    assert seqs(store, "f") == [1]


def test_what_cannot_be_forked_is_refused(store: Store) -> None:
    with pytest.raises(ConversationNotFound, match="No conversation 'c'"):
        store.fork("c", summary("f", 1))
    append(store, store.acquire("c"), 1, 2)
    with pytest.raises(StoreError, match="Conversation 'c' has 2 events, not 3"):
        store.fork("c", summary("f", 3))
    with pytest.raises(Conflict, match="Conversation 'c' exists already"):
        store.fork("c", summary("c", 1))
    assert [entry.id for entry in store.list()] == ["c"]


def test_a_fork_outlives_what_it_was_forked_from_with_its_blobs(store: Store) -> None:
    lease = store.acquire("c")
    for seq in (1, 2, 3):
        store.append(
            lease, Batch([message(seq)], summary("c", seq), blobs=[Blob(seq, b"%d" % seq)])
        )
    store.release(lease)
    store.fork("c", summary("f", 2))
    store.fork("f", summary("g", 1))
    store.delete("c")
    assert (seqs(store, "c"), seqs(store, "f"), seqs(store, "g")) == ([], [1, 2], [1])
    assert store.blob(blob_id(b"2")) == b"2"
    with pytest.raises(StoreError, match="No blob"):
        store.blob(blob_id(b"3"))
    append(store, store.acquire("c"), 1)
    assert seqs(store, "f") == [1, 2], "a new conversation of the old id is another"
    store.delete("f")
    assert seqs(store, "g") == [1]
    with pytest.raises(StoreError, match="No blob"):
        store.blob(blob_id(b"2"))
    store.delete("g")
    with pytest.raises(StoreError, match="No blob"):
        store.blob(blob_id(b"1"))


def test_a_conversation_is_forked_while_it_is_written(store: Store) -> None:
    lease = store.acquire("c")
    append(store, lease, 1)
    stop = threading.Event()

    def write() -> int:
        seq = 1
        while not stop.is_set():
            seq += 1
            append(store, lease, seq)
        return seq

    with ThreadPoolExecutor(1) as pool:
        writer = pool.submit(write)
        try:
            for n in range(20):
                last = len(store.read("c"))
                store.fork("c", summary(f"f{n}", last))
                assert seqs(store, f"f{n}") == list(range(1, last + 1))
        finally:
            stop.set()
        last = writer.result()
        assert seqs(store, "c") == list(range(1, last + 1))


# --- deleting ---


def test_a_deleted_conversation_is_gone_and_may_begin_again(store: Store) -> None:
    for id in "ab":
        lease = store.acquire(id)
        append(store, lease, 1, 2)
        store.release(lease)
    store.delete("a")
    assert store.read("a") == []
    assert [entry.id for entry in store.list()] == ["b"]
    assert seqs(store, "b") == [1, 2]
    append(store, store.acquire("a"), 1)
    assert seqs(store, "a") == [1]


def test_what_is_not_there_or_is_held_cannot_be_deleted(store: Store) -> None:
    with pytest.raises(ConversationNotFound, match="No conversation 'c'") as caught:
        store.delete("c")
    assert isinstance(caught.value, LookupError)
    append(store, store.acquire("c"), 1)
    with pytest.raises(LeaseHeld):
        store.delete("c")
    assert seqs(store, "c") == [1]


# --- closing ---


def test_a_closed_store_says_so_and_is_closed_once(store: Store) -> None:
    lease = store.acquire("c")
    append(store, lease, 1)
    store.close()
    store.close()
    store.release(lease)
    uses: list[Any] = [
        lambda: store.acquire("d"),
        lambda: append(store, lease, 2),
        lambda: store.read("c"),
        store.list,
        lambda: store.delete("c"),
        lambda: store.renew(lease),
        lambda: store.note(lease, ["x"]),
        lambda: store.post("c", Pause()),
        lambda: store.commands(lease),
        lambda: store.fork("c", summary("f", 1)),
        lambda: store.blob("x"),
    ]
    for use in uses:
        with pytest.raises(StoreError, match="is closed"):
            use()


def test_a_store_closes_at_the_end_of_its_block(store: Any) -> None:
    with store as inside:
        assert inside is store
    with pytest.raises(StoreError):
        store.list()


# --- threads ---


@pytest.mark.slow
def test_thirty_two_threads_append_to_thirty_two_conversations_while_others_read(
    store: Store,
) -> None:
    stop = threading.Event()

    def write(id: str) -> None:
        lease = store.acquire(id)
        for n in range(1, 21):
            append(store, lease, 2 * n - 1, 2 * n)

    def look() -> int:
        looks = 0
        while not stop.is_set():
            for entry in store.list():
                events = seqs(store, entry.id)
                assert events == list(range(1, len(events) + 1))
                assert len(events) % 2 == 0, "half of an append was seen"
                assert len(events) >= entry.last_seq
                looks += 1
        return looks

    ids = [f"c{n}" for n in range(32)]
    with ThreadPoolExecutor(34) as pool:
        readers = [pool.submit(look) for _ in range(2)]
        try:
            for future in [pool.submit(write, id) for id in ids]:
                future.result()
        finally:
            stop.set()
        assert all(reader.result() > 0 for reader in readers)
    assert all(seqs(store, id) == list(range(1, 41)) for id in ids)


def test_of_many_threads_that_want_a_lease_one_has_it(store: Store) -> None:
    barrier = threading.Barrier(16)

    def take() -> bool:
        barrier.wait()
        try:
            store.acquire("c")
        except LeaseHeld:
            return False
        return True

    with ThreadPoolExecutor(16) as pool:
        assert sum([future.result() for future in [pool.submit(take) for _ in range(16)]]) == 1


def test_appends_that_may_not_write_fail_alone_among_others(store: Store) -> None:
    """Valid, fenced and gapped appends run at once, so that they meet in one commit."""
    leases = {f"c{n}": store.acquire(f"c{n}") for n in range(24)}
    for n in range(0, 24, 3):
        store.release(leases[f"c{n}"])  # fenced
    barrier = threading.Barrier(24)

    def write(n: int) -> str:
        barrier.wait()
        for seq in range(1, 11):
            try:
                append(store, leases[f"c{n}"], seq + (n % 3 == 1))
            except StoreError as error:
                return type(error).__name__
        return "wrote"

    with ThreadPoolExecutor(24) as pool:
        outcomes = list(pool.map(write, range(24)))
    assert outcomes == ["Fenced", "StoreError", "wrote"] * 8
    assert [len(store.read(f"c{n}")) for n in range(24)] == [0, 0, 10] * 8


def test_threads_that_ask_for_a_held_lease_do_not_disturb_its_holder(store: Store) -> None:
    lease = store.acquire("c")
    ended = threading.Event()

    def ask() -> None:
        while not ended.is_set():
            with pytest.raises(LeaseHeld):
                store.acquire("c")

    with ThreadPoolExecutor(2) as threads:
        asking = [threads.submit(ask) for _ in range(2)]
        try:
            for seq in range(1, 60):
                append(store, lease, seq)
        finally:
            ended.set()
        for one in asking:
            one.result()
    store.release(lease)
    assert store.acquire("c").epoch > lease.epoch


# --- unattended work ---


def test_a_posted_command_makes_a_parked_conversation_unattended_until_it_is_done(
    store: Store,
) -> None:
    lease = store.acquire("c")
    append(store, lease, 1)
    assert store.unattended(10) == []
    store.post("c", Pause())
    assert store.unattended(10) == []  # its owner sees the command
    store.release(lease)
    assert store.unattended(10) == ["c"]
    lease = store.acquire("c")
    assert not lease.orphaned
    assert store.unattended(10) == []
    numbers = [one.number for one in store.commands(lease)]
    store.append(lease, Batch((), summary("c", 1), numbers))
    store.release(lease)
    assert store.unattended(10) == []


def test_a_running_conversation_that_was_given_back_counts_as_unattended_if_asked(
    store: Store,
) -> None:
    lease = store.acquire("c")
    append(store, lease, 1)
    child = store.acquire("child")
    store.append(child, Batch([message(1)], summary("child", 1, spawned_by="c:1.0")))
    store.release(lease)
    store.release(child)
    assert store.unattended(10) == []
    assert store.unattended(10, parked=True) == ["c"]


def test_successive_looks_come_by_all_unattended_conversations(store: Store) -> None:
    ids = {f"c{number}" for number in range(7)}
    for id in ids:
        store.release(store.acquire(id))
        store.post(id, Pause())
    looks = [store.unattended(3) for _ in range(4)]
    assert all(len(one) <= 3 for one in looks)
    if not isinstance(store, MemoryStore):  # where this process owns every conversation
        assert {id for one in looks for id in one} == ids


class Bells:
    """A bell that records the rings of a store."""

    def __init__(self) -> None:
        self.rung: list[str] = []
        self.broken = False

    def wake(self, conversation_id: str, transaction: object) -> None:
        if self.broken:
            raise StoreError("no bell")
        self.rung.append(conversation_id)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_new_command_rings_the_stores_bell_once(kind: str, tmp_path: Path) -> None:
    bells = Bells()
    with (
        MemoryStore(bells) if kind == "memory" else SQLiteStore(tmp_path / "s.db", bell=bells) as (
            store
        )
    ):
        store.release(store.acquire("c"))
        assert store.post("c", Pause(), "key")
        assert not store.post("c", Pause(), "key")
        with pytest.raises(ConversationNotFound):
            store.post("other", Pause())
        assert bells.rung == ["c"]


def test_a_broken_bell_undoes_the_post_in_a_file(tmp_path: Path) -> None:
    bells = Bells()
    with SQLiteStore(tmp_path / "s.db", bell=bells) as store:
        store.release(store.acquire("c"))
        bells.broken = True
        with pytest.raises(StoreError, match="no bell"):
            store.post("c", Pause(), "key")
        assert store.unattended(10) == []
        bells.broken = False
        assert store.post("c", Pause(), "key")
