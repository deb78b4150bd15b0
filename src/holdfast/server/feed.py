"""One conversation's events on their way to many readers: encoded once, kept in a short ring, else
read from the store.

A reader is a place in the journal and nothing more: one that is slow, or stuck, costs no memory per
event and holds up nobody.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from holdfast import events as ev
from holdfast.events import AnyEvent
from holdfast.server.shapes import Batch, Frame, Note

if TYPE_CHECKING:
    import asyncio

RING = 256  # events; what a reader misses while it writes one page
RING_BYTES = 1_000_000  # of them: an event may hold pictures
NOTES = 64  # transient ones; who is slower misses some
PAGE = 500  # events read from the store at once
FIRST_PAGE = 16  # as long as nobody knows how large they are
# what one reader is given at once, but for one event that is larger: a slow one holds it until its
# socket takes it
PAGE_BYTES = 100_000

ReadPage = Callable[[int, int], list[AnyEvent]]


def frame(event: AnyEvent) -> Frame:
    """An event as it goes to readers."""
    return Frame(event.seq, event.type, ev.encode(event))


class Reader:
    """One reader's place in a feed. Of its loop's thread alone."""

    def __init__(self, feed: Feed, loop: asyncio.AbstractEventLoop) -> None:
        self._feed = feed
        self.loop = loop
        self.woken: asyncio.Future[None] | None = None
        self._note = feed.noted
        self.missed = 0  # notes that came and went while it was not here
        self._empty = -1  # the feed's count when the store was found to have nothing more
        self._page = FIRST_PAGE
        self._closed = False

    async def next(self, after_seq: int, timeout: float | None = None, limit: int = PAGE) -> Batch:
        """The events after `after_seq` (at most `limit`), and what notes came since the last time;
        waits up to `timeout` seconds (None: for ever) if there is nothing yet. Raises `StoreError`
        if the journal is damaged."""
        feed = self._feed
        until = None if timeout is None else self.loop.time() + timeout
        while True:
            with feed.lock:
                count = feed.count
                frames = feed.ringed(after_seq, limit)
                ended = feed.ended or self._closed
                # A note waits until its reader has the events that were appended before it.
                current = (
                    feed.is_last(frames) if frames else frames is not None or self._empty == count
                )
                notes = self._new_notes() if current or ended else []
                if frames or notes or ended:
                    return Batch(frames or [], notes, ended)
                wait = current
                if wait:
                    self.woken = self.loop.create_future()
                    feed.waiting.add(self)
            if not wait:
                frames = await self.loop.run_in_executor(
                    None, feed.read, after_seq, min(limit, self._page)
                )
                if frames:
                    self._page = min(
                        PAGE,
                        max(1, len(frames) * PAGE_BYTES // sum(len(one.data) for one in frames)),
                        8 * self._page,
                    )
                    return Batch(frames, [])
                self._empty = count
            elif not await self._wait(until):
                return Batch([], [])

    def _new_notes(self) -> list[Note]:
        """Return the notes since the last call; under the feed's lock."""
        before = self._note
        notes, self._note = self._feed.notes_after(before)
        self.missed += self._note - before - len(notes)
        return notes

    async def _wait(self, until: float | None) -> bool:
        """Whether it was woken in time."""
        assert self.woken is not None
        timer = None if until is None else self.loop.call_at(until, self.wake)
        try:
            await self.woken
        finally:
            if timer is not None:
                timer.cancel()
            with self._feed.lock:
                self._feed.waiting.discard(self)
            self.woken = None
        return until is None or self.loop.time() < until

    def wake(self) -> None:
        """There may be something to read. On the loop's thread."""
        if self.woken is not None and not self.woken.done():
            self.woken.set_result(None)

    def close(self) -> None:
        """Read no further: a `next` that waits returns. Idempotent."""
        if not self._closed:
            self._closed = True
            self._feed.left()
            self.wake()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Feed:
    """The events of one conversation as they are appended. Thread-safe; lives as long as somebody
    reads."""

    def __init__(self, read: ReadPage) -> None:
        self._read = read
        self.lock = threading.Lock()  # held for no longer than it takes to look
        self._ring: deque[Frame] = deque()
        self._bytes = 0
        self._notes: deque[Note] = deque(maxlen=NOTES)
        self.noted = 0  # notes so far
        self.count = 0  # appends so far
        self.readers = 0
        self.waiting: set[Reader] = set()
        self.ended = False

    def subscribe(self, loop: asyncio.AbstractEventLoop) -> Reader:
        """A reader that awaits on `loop`."""
        with self.lock:
            self.readers += 1
            return Reader(self, loop)

    def left(self) -> None:
        """A reader is gone."""
        with self.lock:
            self.readers -= 1
            if not self.readers:
                self._ring.clear()
                self._bytes = 0

    # --- what readers ask, under the lock ---

    def ringed(self, after_seq: int, limit: int) -> list[Frame] | None:
        """The events after one, as far as the ring has them; None if it does not tell."""
        ring = self._ring
        if not ring or after_seq < ring[0].seq - 1:
            return None
        first, size = after_seq + 1 - ring[0].seq, 0
        found: list[Frame] = []
        for index in range(first, min(len(ring), first + limit)):
            size += len(ring[index].data)
            if found and size > PAGE_BYTES:
                break
            found.append(ring[index])
        return found

    def is_last(self, frames: list[Frame]) -> bool:
        """Whether no event follows these in the ring."""
        return frames[-1].seq == self._ring[-1].seq

    def notes_after(self, number: int) -> tuple[list[Note], int]:
        """The notes after that many, and how many there were by now."""
        new = min(self.noted - number, len(self._notes))
        return (list(self._notes)[-new:] if new > 0 else []), self.noted

    def read(self, after_seq: int, limit: int) -> list[Frame]:
        """A page of the journal. Blocks; without the lock."""
        return [frame(event) for event in self._read(after_seq, limit)]

    # --- what is told ---

    def appended(self, events: Sequence[AnyEvent]) -> None:
        """These are in the store now. In the order of the journal."""
        if not self.readers:  # one that comes now reads the store, which has them
            with self.lock:
                self._ring.clear()
                self._bytes = 0
                self.count += 1
                woken = self._woken()
        else:
            frames = [frame(event) for event in events]
            with self.lock:
                ring = self._ring
                if ring and frames and frames[0].seq != ring[-1].seq + 1:
                    ring.clear()
                    self._bytes = 0
                ring.extend(frames)
                self._bytes += sum(len(one.data) for one in frames)
                while len(ring) > RING or (self._bytes > RING_BYTES and len(ring) > 1):
                    self._bytes -= len(ring.popleft().data)
                self.count += 1
                woken = self._woken()
        _wake(woken)

    def note(self, note: Note) -> None:
        """Something transient, for who reads now."""
        if self.readers:
            with self.lock:
                self._notes.append(note)
                self.noted += 1
                woken = self._woken()
            _wake(woken)

    def end(self) -> None:
        """Nothing follows any more."""
        with self.lock:
            self.ended = True
            woken = self._woken()
        _wake(woken)

    def _woken(self) -> set[Reader]:
        woken, self.waiting = self.waiting, set()
        return woken


def _wake(readers: Iterable[Reader]) -> None:
    """Wake readers on their loops: one call for each loop, however many of its readers wait."""
    by_loop: dict[Any, list[Reader]] = {}
    for reader in readers:
        by_loop.setdefault(reader.loop, []).append(reader)
    for loop, those in by_loop.items():
        try:
            loop.call_soon_threadsafe(_wake_all, those)
        except RuntimeError:
            continue  # that loop is closed, and its readers with it


def _wake_all(readers: list[Reader]) -> None:
    for reader in readers:
        reader.wake()


class Feeds:
    """The feeds that somebody reads, by the id of the conversation in the store. Thread-safe."""

    def __init__(self, read: Callable[[str, int, int], list[AnyEvent]]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._feeds: WeakValueDictionary[str, Feed] = WeakValueDictionary()
        self._ended = False

    def get(self, id: str) -> Feed:
        """The feed of a conversation."""
        with self._lock:
            found = self._feeds.get(id)
            if found is None:
                read = self._read
                found = self._feeds[id] = Feed(lambda after, limit: read(id, after, limit))
                found.ended = self._ended
            return found

    def appended(self, id: str, events: Sequence[AnyEvent]) -> None:
        """These are in the store now."""
        if self._feeds and (feed := self._feeds.get(id)) is not None:
            feed.appended(events)

    def note(self, id: str, kind: str, make: Callable[[], bytes]) -> None:
        """Something transient, made only if somebody reads."""
        feed = self._feeds.get(id)
        if feed is not None and feed.readers:
            feed.note(Note(kind, make()))

    def end(self, id: str) -> None:
        """A conversation is gone; one that is made under its id anew has another feed."""
        with self._lock:
            feed = self._feeds.pop(id, None)
        if feed is not None:
            feed.end()

    def readers(self) -> int:
        """How many read."""
        with self._lock:
            return sum(feed.readers for feed in self._feeds.values())

    def close(self) -> None:
        """End all of them, and those to come."""
        with self._lock:
            self._ended = True
            feeds = list(self._feeds.values())
        for feed in feeds:
            feed.end()
