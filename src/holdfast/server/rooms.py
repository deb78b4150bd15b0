"""Which conversations are open: each is opened once however many ask for it at the same time, and
parked when nobody needs it."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast.errors import HoldfastError, StoreError, TooMany

if TYPE_CHECKING:
    from concurrent.futures import Future

    from holdfast.server.live import Live

_log = logging.getLogger("holdfast")

_CLOSING = 5.0  # seconds that an open conversation is given to stop


class _Room:
    """`opened` is done when the conversation is open, or could not be opened; `parked` is set when
    it is closed again."""

    __slots__ = ("closing", "opened", "parked", "used", "users")

    def __init__(self, opened: Future[Live]) -> None:
        self.opened = opened
        self.parked: threading.Event | None = None
        self.closing = False
        self.users = 1
        self.used = 0.0


class Rooms:
    """At most `most` are open; to open another one, the one that rests longest is parked.
    Thread-safe."""

    def __init__(
        self, open: Callable[[str], Live], most: int, idle: float, clock: Callable[[], float]
    ) -> None:
        self._open = open
        self._most = most
        self._idle = idle
        self._clock = clock
        self._lock = threading.Lock()
        self._rooms: OrderedDict[str, _Room] = OrderedDict()  # the one that was used last is last
        self._closed = False

    @contextmanager
    def use(self, id: str) -> Generator[Live]:
        """The open conversation, which is not parked within the block. Raises what opening it
        raises; `TooMany` if all that are open are in use."""
        room = self._enter(id)
        try:
            yield room.opened.result()
        finally:
            with self._lock:
                room.users -= 1
                room.used = self._clock()

    def _enter(self, id: str) -> _Room:
        while True:
            found = self._enter_once(id)
            if isinstance(found, _Room):
                return found
            found.wait()

    def _enter_once(self, id: str) -> _Room | threading.Event:
        """The room, with one user more; or what is to be waited for first."""
        oldest: str | None = None
        ours: _Room | None = None  # to be opened by this thread
        with self._lock:
            if self._closed:
                raise StoreError("This server is closing.")
            room = self._rooms.get(id)
            if room is not None:
                if room.closing:
                    return _parked(room)
                room.users += 1
                self._rooms.move_to_end(id)
            elif len(self._rooms) < self._most:
                from concurrent.futures import Future

                room = ours = self._rooms[id] = _Room(Future())
            else:
                oldest = next(
                    (
                        other
                        for other, one in self._rooms.items()
                        if not one.users and not one.closing
                    ),
                    None,
                )
                closing = next((one for one in self._rooms.values() if one.closing), None)
                if oldest is None and closing is not None:
                    return _parked(closing)
        if room is None:
            if oldest is None:
                raise TooMany(
                    f"All {self._most:,} conversations that this server keeps open are in use. Try"
                    " again.",
                    "open",
                )
            self.park(oldest)
            return _done()
        if ours is not None:
            self._begin(id, ours)
        elif (error := room.opened.exception()) is not None:  # waits for whoever opens it
            raise error.with_traceback(None)
        return room

    def _begin(self, id: str, room: _Room) -> None:
        try:
            room.opened.set_result(self._open(id))
        except BaseException as error:
            with self._lock:
                if self._rooms.get(id) is room:
                    del self._rooms[id]
            room.opened.set_exception(error)
            raise

    def find(self, id: str) -> Live | None:
        """The conversation if it is open now; it may be parked at any moment."""
        with self._lock:
            room = self._rooms.get(id)
        if (
            room is None
            or room.closing
            or not room.opened.done()
            or room.opened.exception() is not None
        ):
            return None
        return room.opened.result()

    def park(self, id: str, force: bool = False) -> bool:
        """Close a conversation if it is open and nobody uses it, or, with `force`, cut off whoever
        does; whether it is closed now."""
        with self._lock:
            room = self._rooms.get(id)
            if room is None:
                return True
            if not room.closing and room.users and not force:
                return False
            ours = not room.closing
            room.closing = True
            parked = _parked(room)
        if not ours:
            parked.wait()
            return True
        try:
            if room.opened.exception() is None:
                room.opened.result().close(_CLOSING)
        except Exception:
            _log.exception("conversation %s: closing it failed", id)
        finally:
            with self._lock:
                if self._rooms.get(id) is room:
                    del self._rooms[id]
            parked.set()
        return True

    def tend(self, busy: Callable[[str], bool]) -> None:
        """Park what nobody has used for long and is not `busy`."""
        now = self._clock()
        with self._lock:
            idle = [
                (id, room.opened)
                for id, room in self._rooms.items()
                if not room.users and not room.closing and now - room.used >= self._idle
            ]
        for id, opened in idle:
            if not busy(id) and not _children_busy(opened):
                self.park(id)

    def count(self) -> int:
        """How many are open, or being opened or closed."""
        with self._lock:
            return len(self._rooms)

    def close(self) -> None:
        """Close all of them, cutting off what runs, many at a time. Idempotent."""
        with self._lock:
            self._closed = True
            ids = list(self._rooms)
        if ids:
            from concurrent.futures import ThreadPoolExecutor

            with ThreadPoolExecutor(min(32, len(ids)), "holdfast-closing") as threads:
                for id in ids:
                    threads.submit(self.park, id, True)


def _children_busy(opened: Future[Live]) -> bool:
    if not opened.done() or opened.exception() is not None:
        return False
    try:
        return opened.result().children_busy
    except HoldfastError:  # its worker died: nothing is
        return False


def _parked(room: _Room) -> threading.Event:
    """What is set when the room is closed. Under the lock."""
    room.parked = room.parked or threading.Event()
    return room.parked


def _done() -> threading.Event:
    found = threading.Event()
    found.set()
    return found
