"""Delivers one conversation's events to many readers. Events are encoded once and kept in a short
ring; older ones are read from the store.

A reader is only a position in the journal. A slow or stuck reader costs no memory per event and
delays no other reader.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import msgspec

from holdfast import events as ev
from holdfast.errors import StoreError
from holdfast.events import AnyEvent
from holdfast.object_struct import ObjectStruct
from holdfast.server.shapes import EventFrame, FeedBatch, TransientNote

if TYPE_CHECKING:
    import asyncio

    from holdfast.server.other_servers import SharedStore

_log = logging.getLogger("holdfast.server")

RING_EVENTS = 256  # enough for the events that a reader misses while it writes one page
RING_BYTES = 1_000_000  # the limit of the ring's events, which may hold pictures
MAX_NOTES = 64  # slower readers miss notes
PAGE_EVENTS = 500  # the most events read from the store at once
FIRST_PAGE_EVENTS = 16  # the first page is small because the size of events is not known yet
# The most bytes that one reader receives at once, except a single larger event. A slow reader holds
# this memory until its socket accepts it.
PAGE_BYTES = 100_000
# The period of the search for conversations that are gone, and for events without a notice.
_CHECK_SECONDS = 0.5

# After a piece of a streaming answer, further ones wait for so long, or for an event, to be read
# together: each wake of a loop takes the interpreter's lock from the thread that reads the model.
_JOINED_SECONDS = 0.005

ReadPage = Callable[[int, int], list[AnyEvent]]


def encode_frame(event: AnyEvent) -> EventFrame:
    return EventFrame(event.seq, event.type, ev.encode(event), event)


class FeedReader:
    """The position of one reader in a feed. Belongs to its event loop's thread. Without `deltas`
    the pieces of a streamed answer neither wake the reader nor reach it. Events after which a run
    always continues are then read together with the next ones."""

    def __init__(self, feed: Feed, loop: asyncio.AbstractEventLoop, deltas: bool = True) -> None:
        self._feed = feed
        self.loop = loop
        self.deltas = deltas
        self._joins_until = 0.0  # the time of the loop until which deltas are joined
        self._joins = False  # True while it waits for an event, or for that time
        self.woken: asyncio.Future[None] | None = None
        self._note = feed.note_count
        self.missed = 0  # notes dropped before this reader took them
        self._answered = 0  # the seq of the last answer that this reader received
        self._empty = -1  # the feed's count when the store was found to have nothing more
        self._page = FIRST_PAGE_EVENTS
        self._closed = False

    async def next(
        self, after_seq: int, timeout: float | None = None, limit: int = PAGE_EVENTS
    ) -> FeedBatch:
        """Return at most `limit` events after `after_seq` and the notes since the last call. Waits
        up to `timeout` seconds (None: forever) for the first. Raises `StoreError` for a damaged
        journal."""
        feed = self._feed
        until = None if timeout is None else self.loop.time() + timeout
        while True:
            now = self.loop.time()
            with feed.lock:
                count = feed.append_count
                frames = feed.recent(after_seq, limit)
                ended = feed.ended or self._closed
                # A note waits until its reader has the events that were appended before it.
                if frames:
                    current = frames[-1] is feed.last
                else:
                    current = frames is not None or self._empty == count
                few = feed.note_count - self._note < MAX_NOTES // 2
                joins = few and not (frames or ended) and now < self._joins_until
                notes = self._new_notes() if (current or ended) and not joins else []
                if frames or notes or ended:
                    self._joins_until = now + _JOINED_SECONDS if notes else 0.0
                    return self._batch(frames or [], notes, ended)
                wait = current
                if wait:
                    self._joins = joins
                    self.woken = self.loop.create_future()
                    feed.waiting.add(self)
            if not wait:
                page = min(limit, self._page)
                frames = await self.loop.run_in_executor(None, feed.read, after_seq, page)
                if frames:
                    fitting = len(frames) * PAGE_BYTES // sum(len(one.data) for one in frames)
                    self._page = min(PAGE_EVENTS, max(1, fitting), 8 * self._page)
                    return self._batch(frames)
                self._empty = count
            elif joins:
                await self._wait(self._joins_until)
            elif not await self._wait(until):
                return FeedBatch([], [])

    def _new_notes(self) -> list[TransientNote]:
        """Return the notes since the last call; under the feed's lock."""
        feed, before = self._feed, self._note
        self._note = feed.note_count
        new = min(feed.note_count - before, len(feed.notes))
        self.missed += self._note - before - new
        notes = list(feed.notes)[-new:] if new > 0 else []
        return notes if self.deltas else [note for note in notes if note.kind != "delta"]

    def _batch(
        self, frames: list[EventFrame], notes: Sequence[TransientNote] = (), ended: bool = False
    ) -> FeedBatch:
        """Return a batch without deltas of answers that earlier batches had whole."""
        current = [
            note
            for note in notes
            if note.kind != "delta" or note.after is None or note.after >= self._answered
        ]
        answers = (frame.seq for frame in frames if frame.type == "assistant")
        self._answered = max(answers, default=self._answered)
        return FeedBatch(frames, current, ended)

    async def _wait(self, until: float | None) -> bool:
        """Wait to be woken. Return True if that happened in time."""
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

    def hears_delta(self) -> bool:
        """Return True if a delta wakes it; under the feed's lock."""
        many = self._feed.note_count - self._note >= MAX_NOTES // 2
        return self.deltas and (many or not self._joins)

    def wake(self) -> None:
        """Signal that there may be something to read. Call it on the loop's thread."""
        if self.woken is not None and not self.woken.done():
            self.woken.set_result(None)

    @staticmethod
    def wake_all(readers: list[FeedReader]) -> None:
        for reader in readers:
            reader.wake()

    def close(self) -> None:
        """Stop reading; a waiting `next` returns. Idempotent."""
        if not self._closed:
            self._closed = True
            self._feed.unsubscribe(self)
            self.wake()

    def __enter__(self) -> FeedReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Feed:
    """The appended events of one conversation, while it has readers. Thread-safe."""

    def __init__(self, read: ReadPage) -> None:
        self._read = read
        self.lock = threading.Lock()  # held only briefly
        self._ring: deque[EventFrame] = deque()
        self._bytes = 0
        self.notes: deque[TransientNote] = deque(maxlen=MAX_NOTES)
        self.note_count = 0  # the number of notes so far
        self.append_count = 0  # the number of appends so far
        self._last_seq: int | None = None  # the seq of the last event, if one was appended so far
        self.readers = 0
        self._delta_readers = 0
        self.waiting: set[FeedReader] = set()
        self.ended = False
        # Begins to watch for other servers' events, and returns the function that ends it.
        self.watch: Callable[[], Callable[[], None]] | None = None
        self._unwatch: Callable[[], None] | None = None

    def subscribe(self, loop: asyncio.AbstractEventLoop, deltas: bool = True) -> FeedReader:
        with self.lock:
            self.readers += 1
            self._delta_readers += deltas
            reader = FeedReader(self, loop, deltas)
            if self.watch is not None and self._unwatch is None:
                self._unwatch = self.watch()
            return reader

    def unsubscribe(self, reader: FeedReader) -> None:
        with self.lock:
            self.readers -= 1
            self._delta_readers -= reader.deltas
            if not self.readers:
                self._clear()
                if self._unwatch is not None:
                    self._unwatch()
                    self._unwatch = None

    def _clear(self) -> None:
        self._ring.clear()
        self._bytes = 0

    # --- for readers, under the lock ---

    @property
    def last(self) -> EventFrame | None:
        """The newest event in the ring."""
        return self._ring[-1] if self._ring else None

    def recent(self, after_seq: int, limit: int) -> list[EventFrame] | None:
        """Return the events after `after_seq`, or None if the ring does not reach back far
        enough."""
        ring = self._ring
        if not ring or after_seq < ring[0].seq - 1:
            return None
        first, size = after_seq + 1 - ring[0].seq, 0
        frames: list[EventFrame] = []
        for index in range(first, min(len(ring), first + limit)):
            size += len(ring[index].data)
            if frames and size > PAGE_BYTES:
                break
            frames.append(ring[index])
        return frames

    def read(self, after_seq: int, limit: int) -> list[EventFrame]:
        """Read a page of the journal. Blocks; call it without the lock."""
        return [encode_frame(event) for event in self._read(after_seq, limit)]

    # --- for writers ---

    def appended(self, events: Sequence[AnyEvent]) -> None:
        """Deliver one event or more that are in the store now. Call it in the journal's order."""
        # Without readers the ring is empty: one that subscribes now reads from the store.
        frames = [encode_frame(event) for event in events] if self.readers else []
        with self.lock:
            if self._last_seq is not None and events[-1].seq <= self._last_seq:
                return  # later ones were delivered, and the readers read these from the store
            ring = self._ring
            if not frames or (ring and frames[0].seq != ring[-1].seq + 1):
                self._clear()
            ring.extend(frames)
            self._bytes += sum(len(one.data) for one in frames)
            while len(ring) > RING_EVENTS or (self._bytes > RING_BYTES and len(ring) > 1):
                self._bytes -= len(ring.popleft().data)
            if self._last_seq is None:  # the seq before the first event is known now
                before = events[0].seq - 1
                self.notes = deque((one._replace(after=before) for one in self.notes), MAX_NOTES)
            self._last_seq = events[-1].seq
            self.append_count += 1
            ends_no_turn = all(_ends_no_turn(event) for event in events)
            woken = (
                self._take_woken(lambda reader: reader.deltas)
                if ends_no_turn
                else self._take_woken()
            )
        _wake(woken)

    def grown(self, seq: int) -> None:
        """Wake the readers if another process has appended events up to `seq`."""
        with self.lock:
            if self._last_seq is not None and seq <= self._last_seq:
                return
            self._clear()  # the readers read from the store
            self._last_seq = seq
            self.append_count += 1
            woken = self._take_woken()
        _wake(woken)

    def note(self, note: TransientNote) -> None:
        """Deliver a transient notification to the present readers."""
        if self.hears(note.kind):
            with self.lock:
                self.notes.append(note._replace(after=self._last_seq))
                self.note_count += 1
                woken = self._take_woken(FeedReader.hears_delta if note.kind == "delta" else None)
            _wake(woken)

    def hears(self, kind: str) -> bool:
        """Return True if a reader takes notifications of this kind."""
        return (self._delta_readers if kind == "delta" else self.readers) > 0

    def end(self) -> None:
        with self.lock:
            self.ended = True
            woken = self._take_woken()
        _wake(woken)

    def _take_woken(self, wakes: Callable[[FeedReader], bool] | None = None) -> set[FeedReader]:
        """Return the waiting readers that wake, and let only the others wait on."""
        woken = self.waiting if wakes is None else {one for one in self.waiting if wakes(one)}
        self.waiting = self.waiting - woken
        return woken


def _ends_no_turn(event: AnyEvent) -> bool:
    """Return True for an event at which no turn can end. Waking a reader that waits for the end of
    the turn would take the interpreter's lock from the driving thread."""
    if isinstance(event, ev.AssistantReplied):
        return not event.calls
    return isinstance(event, ev.AgentConfigured)


def _wake(readers: Iterable[FeedReader]) -> None:
    """Wake readers on their loops, with one call per loop however many of its readers wait."""
    by_loop: dict[Any, list[FeedReader]] = {}
    for reader in readers:
        by_loop.setdefault(reader.loop, []).append(reader)
    for loop, waiting in by_loop.items():
        try:
            loop.call_soon_threadsafe(FeedReader.wake_all, waiting)
        except RuntimeError:
            continue  # the loop is closed, with its readers


class Feeds(ObjectStruct):
    """The feeds that have readers, by store id. Thread-safe.

    With a `shared` store the feeds also deliver the events that other servers append. A thread
    looks for them while there are feeds. `exists` is False for a conversation that another server
    has removed.
    """

    _read: Callable[[str, int, int], list[AnyEvent]]
    _shared: SharedStore | None = None
    _exists: Callable[[str], bool] = lambda _: True
    _news: threading.Condition = msgspec.field(default_factory=threading.Condition)
    _noticed: set[str] = set()  # conversations that may have new events
    _thread: threading.Thread | None = None
    _lock: threading.Lock = msgspec.field(default_factory=threading.Lock)
    _feeds: WeakValueDictionary[str, Feed] = msgspec.field(
        default_factory=lambda: WeakValueDictionary()
    )
    _ended: bool = False

    def get(self, id: str) -> Feed:
        with self._lock:
            feed = self._feeds.get(id)
            if feed is None:
                read, shared = self._read, self._shared
                feed = self._feeds[id] = Feed(lambda after, limit: read(id, after, limit))
                feed.ended = self._ended
                if shared is not None and not self._ended:
                    feed.watch = lambda: shared.watch(id, lambda: self._notice(id))
                    if self._thread is None:
                        self._thread = threading.Thread(
                            target=self._follow, args=(shared,), name="holdfast-feeds", daemon=True
                        )
                        self._thread.start()
            return feed

    def _notice(self, id: str) -> None:
        with self._news:
            self._noticed.add(id)
            self._news.notify_all()

    def _follow(self, shared: SharedStore) -> None:
        """Look for events and removals by other servers until `close`."""
        checked = time.monotonic()
        while not self._ended:
            with self._news:
                self._news.wait_for(lambda: self._noticed or self._ended, _CHECK_SECONDS)
                noticed, self._noticed = self._noticed, set[str]()
            checks = time.monotonic() - checked >= _CHECK_SECONDS
            with self._lock:
                feeds = {id: feed for id, feed in self._feeds.items() if feed.readers}
            ids = list(feeds) if checks else [id for id in feeds if id in noticed]
            try:
                last_seqs = {one.id: one.last_seq for one in shared.list(ids)} if ids else {}
                removed = [id for id in ids if id not in last_seqs and not self._exists(id)]
            except StoreError as error:
                if not self._ended:
                    _log.warning("feeds cannot see other servers' events now: %s", error)
                    time.sleep(_CHECK_SECONDS)
                continue
            if checks:
                checked = time.monotonic()
            for id, seq in last_seqs.items():
                feeds[id].grown(seq)
            for id in removed:
                self.end(id)

    def appended(self, id: str, events: Sequence[AnyEvent]) -> None:
        if self._feeds and (feed := self._feeds.get(id)) is not None:
            feed.appended(events)

    def note(self, id: str, kind: str, make: Callable[[], bytes]) -> None:
        """Deliver a transient notification, which is created only if the feed has readers."""
        feed = self._feeds.get(id)
        if feed is not None and feed.hears(kind):
            feed.note(TransientNote(kind, make()))

    def end(self, id: str) -> None:
        """End the feed of a removed conversation. The id's next conversation gets a new feed."""
        with self._lock:
            feed = self._feeds.pop(id, None)
        if feed is not None:
            feed.end()

    def readers(self) -> int:
        with self._lock:
            return sum(feed.readers for feed in self._feeds.values())

    def close(self) -> None:
        """End all feeds, including future ones."""
        with self._lock:
            self._ended = True
            feeds = list(self._feeds.values())
        with self._news:
            self._news.notify_all()
        for feed in feeds:
            feed.end()
        if self._thread is not None:
            self._thread.join()
