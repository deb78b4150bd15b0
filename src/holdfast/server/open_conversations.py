"""The open conversations. Each is opened once, however many threads need it at the same time,
and parked when it is idle."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from holdfast.errors import HoldfastError, StoreError, TooMany
from holdfast.object_struct import ObjectStruct

if TYPE_CHECKING:
    from concurrent.futures import Future

    from holdfast.server.local_conversation import OpenConversation

_log = logging.getLogger("holdfast")

_CLOSE_SECONDS = 5.0  # time for an open conversation to stop


class _Entry(ObjectStruct):
    """One open conversation. `opened` completes when opening succeeds or fails. `parked` is set
    when the conversation is closed again."""

    opened: Future[OpenConversation]
    parked: threading.Event | None = None
    closing: bool = False
    users: int = 1
    used: float = 0.0

    def live(self) -> OpenConversation | None:
        """Return the conversation once it is open."""
        done = self.opened.done() and self.opened.exception() is None
        return self.opened.result() if done else None

    def closed(self) -> threading.Event:
        """Return the event that is set when the entry is closed. Call it under the lock."""
        self.parked = self.parked or threading.Event()
        return self.parked


class OpenConversations(ObjectStruct):
    """At most `most` open conversations. Opening another one parks the one that is idle longest.
    Thread-safe."""

    _open: Callable[[str], OpenConversation]
    _most: int
    _idle: float
    _clock: Callable[[], float]
    _lock: threading.Lock = msgspec.field(default_factory=threading.Lock)
    _conversations: OrderedDict[str, _Entry] = msgspec.field(
        default_factory=OrderedDict[str, _Entry]
    )  # least recently used first
    _closed: bool = False

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
            result = self._enter_once(id)
            if isinstance(result, _Entry):
                return result
            if result is not None:
                result.wait()

    def _enter_once(self, id: str) -> _Entry | threading.Event | None:
        """Return the entry with one more user. Otherwise try again, after the returned event."""
        with self._lock:
            if self._closed:
                raise StoreError("This server is closing.")
            entry, new, oldest = self._conversations.get(id), False, None
            if entry is not None:
                if entry.closing:
                    return entry.closed()
                entry.users += 1
                self._conversations.move_to_end(id)
            elif len(self._conversations) < self._most:
                from concurrent.futures import Future

                entry, new = _Entry(Future()), True
                self._conversations[id] = entry
            else:
                unused = (other for other, one in self._conversations.items() if not one.users)
                oldest = next((one for one in unused if not self._conversations[one].closing), None)
                closing = next((one for one in self._conversations.values() if one.closing), None)
                if oldest is None and closing is not None:
                    return closing.closed()
        if entry is None:
            if oldest is None:
                raise TooMany(
                    f"All {self._most:,} conversations that this server may keep open are in use."
                    " Try again.",
                    "open",
                )
            self.park(oldest)
            return None
        if new:
            self._begin(id, entry)
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
        """Return the conversation if it is open now. An open conversation may be parked at any
        moment."""
        with self._lock:
            entry = self._conversations.get(id)
        return None if entry is None or entry.closing else entry.live()

    def park(self, id: str, force: bool = False, only: OpenConversation | None = None) -> bool:
        """Close a conversation if it is unused, or with `force`. With `only`, close only that
        object, not a conversation that was opened anew. Return True if it is closed now."""
        with self._lock:
            entry = self._conversations.get(id)
            if entry is None or (only is not None and entry.live() is not only):
                return True
            if not entry.closing and entry.users and not force:
                return False
            ours = not entry.closing
            entry.closing = True
            parked = entry.closed()
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
                (id, entry)
                for id, entry in self._conversations.items()
                if not entry.users and not entry.closing and now - entry.used >= self._idle
            ]
        for id, entry in idle:
            if not busy(id) and not _children_busy(entry.live()):
                self.park(id)

    def count(self) -> int:
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


def _children_busy(live: OpenConversation | None) -> bool:
    try:
        return live is not None and live.children_busy
    except HoldfastError:  # the worker died, so no child is running
        return False
