"""The open conversations. Each is opened once, however many threads need it at the same time,
and parked when it is idle."""

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

    from holdfast.server.local_conversation import OpenConversation

_log = logging.getLogger("holdfast")

_CLOSE_SECONDS = 5.0  # time for an open conversation to stop


class _Entry:
    """One open conversation. `opened` completes when opening succeeds or fails. `parked` is set
    when the conversation is closed again."""

    __slots__ = ("closing", "opened", "parked", "used", "users")

    def __init__(self, opened: Future[OpenConversation]) -> None:
        self.opened = opened
        self.parked: threading.Event | None = None
        self.closing = False
        self.users = 1
        self.used = 0.0


class OpenConversations:
    """At most `most` open conversations. Opening another one parks the one that is idle longest.
    Thread-safe."""

    def __init__(
        self,
        open: Callable[[str], OpenConversation],
        most: int,
        idle: float,
        clock: Callable[[], float],
    ) -> None:
        self._open = open
        self._most = most
        self._idle = idle
        self._clock = clock
        self._lock = threading.Lock()
        self._conversations: OrderedDict[str, _Entry] = OrderedDict()  # least recently used first
        self._closed = False

    @contextmanager
    def use(self, id: str) -> Generator[OpenConversation]:
        """Yield the open conversation, which is not parked within the block. Raises the errors
        of opening it, and `TooMany` if all open conversations are in use."""
        entry = self._enter(id)
        try:
            yield entry.opened.result()
        finally:
            with self._lock:
                entry.users -= 1
                entry.used = self._clock()

    def _enter(self, id: str) -> _Entry:
        while True:
            found = self._enter_once(id)
            if isinstance(found, _Entry):
                return found
            found.wait()

    def _enter_once(self, id: str) -> _Entry | threading.Event:
        """Return the entry with one more user, or an event to wait for before trying again."""
        oldest: str | None = None
        ours: _Entry | None = None  # the entry that this thread must open
        with self._lock:
            if self._closed:
                raise StoreError("This server is closing.")
            entry = self._conversations.get(id)
            if entry is not None:
                if entry.closing:
                    return _parked(entry)
                entry.users += 1
                self._conversations.move_to_end(id)
            elif len(self._conversations) < self._most:
                from concurrent.futures import Future

                entry = ours = self._conversations[id] = _Entry(Future())
            else:
                oldest = next(
                    (
                        other
                        for other, one in self._conversations.items()
                        if not one.users and not one.closing
                    ),
                    None,
                )
                closing = next((one for one in self._conversations.values() if one.closing), None)
                if oldest is None and closing is not None:
                    return _parked(closing)
        if entry is None:
            if oldest is None:
                raise TooMany(
                    f"All {self._most:,} conversations that this server may keep open are in use."
                    " Try again.",
                    "open",
                )
            self.park(oldest)
            return _set_event()
        if ours is not None:
            self._begin(id, ours)
        elif (error := entry.opened.exception()) is not None:  # waits for the opening thread
            raise error.with_traceback(None)
        return entry

    def _begin(self, id: str, entry: _Entry) -> None:
        try:
            entry.opened.set_result(self._open(id))
        except BaseException as error:
            with self._lock:
                if self._conversations.get(id) is entry:
                    del self._conversations[id]
            entry.opened.set_exception(error)
            raise

    def find(self, id: str) -> OpenConversation | None:
        """Return the conversation if it is open now. It may be parked at any moment."""
        with self._lock:
            entry = self._conversations.get(id)
        if (
            entry is None
            or entry.closing
            or not entry.opened.done()
            or entry.opened.exception() is not None
        ):
            return None
        return entry.opened.result()

    def park(self, id: str, force: bool = False) -> bool:
        """Close a conversation that is open and unused. With `force`, close it even if it is in
        use. Return True if it is closed now."""
        with self._lock:
            entry = self._conversations.get(id)
            if entry is None:
                return True
            if not entry.closing and entry.users and not force:
                return False
            ours = not entry.closing
            entry.closing = True
            parked = _parked(entry)
        if not ours:
            parked.wait()
            return True
        try:
            if entry.opened.exception() is None:
                entry.opened.result().close(_CLOSE_SECONDS)
        except Exception:
            _log.exception("conversation %s: closing it failed", id)
        finally:
            with self._lock:
                if self._conversations.get(id) is entry:
                    del self._conversations[id]
            parked.set()
        return True

    def tend(self, busy: Callable[[str], bool]) -> None:
        """Park conversations that have been unused for long and are not `busy`."""
        now = self._clock()
        with self._lock:
            idle = [
                (id, entry.opened)
                for id, entry in self._conversations.items()
                if not entry.users and not entry.closing and now - entry.used >= self._idle
            ]
        for id, opened in idle:
            if not busy(id) and not _children_busy(opened):
                self.park(id)

    def count(self) -> int:
        """Return the number of conversations that are open, opening or closing."""
        with self._lock:
            return len(self._conversations)

    def close(self) -> None:
        """Close all conversations in parallel, cutting off running work. Idempotent."""
        with self._lock:
            self._closed = True
            ids = list(self._conversations)
        if ids:
            from concurrent.futures import ThreadPoolExecutor

            with ThreadPoolExecutor(min(32, len(ids)), "holdfast-closing") as threads:
                for id in ids:
                    threads.submit(self.park, id, True)


def _children_busy(opened: Future[OpenConversation]) -> bool:
    if not opened.done() or opened.exception() is not None:
        return False
    try:
        return opened.result().children_busy
    except HoldfastError:  # the worker died, so no child is running
        return False


def _parked(entry: _Entry) -> threading.Event:
    """Return the event that is set when the entry is closed. Call it under the lock."""
    entry.parked = entry.parked or threading.Event()
    return entry.parked


def _set_event() -> threading.Event:
    event = threading.Event()
    event.set()
    return event
