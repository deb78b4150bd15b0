"""Tests of the feed of a conversation: events in order, and notes after the events that were
appended before them."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import events as ev
from holdfast.content import TextContent, ToolCall
from holdfast.events import AnyEvent
from holdfast.server import feed as feeds
from holdfast.server.feed import MAX_NOTES, Feed
from holdfast.server.shapes import TransientNote
from holdfast.server.sse import encode


def message(seq: int) -> ev.MessageAdded:
    return ev.MessageAdded(content=[TextContent(f"m{seq}")], seq=seq, id=f"e{seq}", timestamp=0.0)


async def read_all(feed: Feed, count: int) -> list[int | str]:
    """Return the seqs of events and the kinds of notes, in the order in which one reader gets them."""
    items: list[int | str] = []
    with feed.subscribe(asyncio.get_running_loop()) as reader:
        seq = 0
        feed.note(TransientNote("delta", b"{}"))
        while len(items) < count:
            batch = await reader.next(seq, timeout=5.0)
            assert batch.frames or batch.notes, "nothing came"
            items += [frame.seq for frame in batch.frames]
            items += [note.kind for note in batch.notes]
            seq = batch.frames[-1].seq if batch.frames else seq
    return items


@pytest.mark.parametrize("stored", [1, 3, 40])
def test_a_note_comes_after_the_events_that_are_in_the_store(stored: int) -> None:
    journal: list[AnyEvent] = [message(seq) for seq in range(1, stored + 1)]
    feed = Feed(lambda after, limit: journal[after : after + limit])
    assert asyncio.run(read_all(feed, stored + 1)) == [*range(1, stored + 1), "delta"]


def test_a_note_comes_after_the_events_that_the_ring_holds_beyond_one_page() -> None:
    journal: list[AnyEvent] = [message(seq) for seq in range(1, 9)]
    feed = Feed(lambda after, limit: journal[after : after + limit])

    async def read() -> tuple[list[int], list[int]]:
        with feed.subscribe(asyncio.get_running_loop()) as reader:
            feed.appended(journal)
            feed.note(TransientNote("delta", b"{}"))
            first = await reader.next(0, timeout=5.0, limit=5)
            second = await reader.next(first.frames[-1].seq, timeout=5.0, limit=5)
            return [len(first.frames), len(first.notes)], [len(second.frames), len(second.notes)]

    assert asyncio.run(read()) == ([5, 0], [3, 1])


def answer(seq: int) -> ev.AssistantReplied:
    return ev.AssistantReplied(text="whole", seq=seq, id=f"e{seq}", timestamp=0.0)


def test_deltas_come_before_the_answer_that_they_belong_to() -> None:
    """Check the order, also for a reader that takes the deltas together with the answer, or after
    it."""
    journal: list[AnyEvent] = [message(1)]
    feed = Feed(lambda after, limit: journal[after : after + limit])
    piece = TransientNote("delta", b"{}")

    def append(event: AnyEvent) -> None:
        journal.append(event)
        feed.appended([event])

    async def read() -> tuple[list[bytes], int]:
        with feed.subscribe(asyncio.get_running_loop()) as reader:
            assert [one.seq for one in (await reader.next(0, 5.0)).frames] == [1]
            feed.note(piece)
            append(answer(2))
            append(message(3))
            feed.note(piece)
            append(answer(4))
            batch = await reader.next(1, 5.0)
            kinds = [
                line.removeprefix(b"event: ")
                for line in encode(batch.frames, batch.notes).split(b"\n")
                if line.startswith(b"event: ")
            ]
            # A reader that hears nothing from the ring reads the answer from the store first.
            feed.note(piece)
            append(answer(5))
            feed._ring.clear()
            assert [one.seq for one in (await reader.next(4, 5.0)).frames] == [5]
            feed.note(piece)
            return kinds, len((await reader.next(5, 5.0)).notes)

    kinds, notes = asyncio.run(read())
    assert kinds == [b"delta", b"assistant", b"message", b"delta", b"assistant"]
    assert notes == 1  # the one after the last answer; the other belongs to what was read


@pytest.mark.parametrize("ending", ["event", "time", "many"])
def test_after_a_delta_the_next_ones_are_read_together(
    ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that deltas are collected up to an event, or for a moment, or until they are many."""
    monkeypatch.setattr(feeds, "_JOINED_SECONDS", 0.02 if ending == "time" else 60.0)
    feed, piece = Feed(lambda after, limit: []), TransientNote("delta", b"{}")

    async def read() -> tuple[int, int, int]:
        with feed.subscribe(asyncio.get_running_loop()) as reader:
            feed.appended([message(1)])
            await reader.next(0, 60.0)
            feed.note(piece)
            first = await reader.next(1, 60.0)
            feed.note(piece)
            following = asyncio.ensure_future(reader.next(1, 60.0))
            for _ in range(5):
                await asyncio.sleep(0)
            assert ending == "time" or not following.done()
            more = MAX_NOTES // 2 - 1 if ending == "many" else 1
            for _ in range(more):
                feed.note(piece)
            if ending == "event":
                feed.appended([message(2)])
            batch = await asyncio.wait_for(following, 60)
            assert reader.missed == 0
            return len(first.notes), len(batch.frames), len(batch.notes) - more

    assert asyncio.run(read()) == (1, int(ending == "event"), 1)


def test_deltas_neither_reach_nor_wake_a_reader_that_takes_none() -> None:
    feed = Feed(lambda after, limit: [])
    delta, progress = TransientNote("delta", b"{}"), TransientNote("progress", b"{}")

    async def read() -> None:
        loop = asyncio.get_running_loop()
        with feed.subscribe(loop, deltas=False) as plain:
            feed.note(delta)
            assert not feed.note_count  # no reader takes it
            with feed.subscribe(loop) as reader:
                waiting = asyncio.ensure_future(plain.next(0, 5.0))
                while plain not in feed.waiting:
                    await asyncio.sleep(0.001)
                feed.note(delta)
                assert plain in feed.waiting
                feed.note(progress)
                assert [one.kind for one in (await waiting).notes] == ["progress"]
                batch = await reader.next(0, 5.0)
                assert [one.kind for one in batch.notes] == ["delta", "progress"]

    asyncio.run(asyncio.wait_for(read(), 20))


def test_a_reader_of_whole_answers_wakes_for_events_at_which_a_turn_may_end() -> None:
    """Check that the other events come with the next one that wakes the reader."""
    call = ToolCall("3.1", "look", {})
    quiet = [
        ev.AgentConfigured("", seq=1, id="a1", timestamp=0.0),
        ev.AssistantReplied(seq=2, id="a2", timestamp=0.0),
    ]

    async def read(last: AnyEvent) -> None:
        feed, loop = Feed(lambda after, limit: []), asyncio.get_running_loop()
        with feed.subscribe(loop, deltas=False) as whole, feed.subscribe(loop) as reader:
            waiting = asyncio.ensure_future(whole.next(0, 60.0))
            first = asyncio.ensure_future(reader.next(0, 60.0))
            while len(feed.waiting) < 2:
                await asyncio.sleep(0.001)
            feed.appended(quiet)
            assert feed.waiting == {whole}
            assert [one.seq for one in (await first).frames] == [1, 2]
            feed.appended([last])
            assert [one.seq for one in (await waiting).frames] == [1, 2, 3]

    answer = ev.AssistantReplied(calls=[call], seq=3, id="a3", timestamp=0.0)
    end = ev.StatusChanged("finished", seq=3, id="s3", timestamp=0.0)
    for last in (answer, end, message(3)):
        asyncio.run(asyncio.wait_for(read(last), 20))
