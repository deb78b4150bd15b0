"""Following a conversation: the wait for its next events, whichever store they come from."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from holdfast.errors import StoreError
from holdfast.events import AnyEvent
from holdfast.store.base import Store


class AppendWaiter:
    """A wait for events of one conversation after `seq`."""

    def __init__(self, conversation_id: str, seq: int) -> None:
        self.conversation_id = conversation_id
        self.seq = seq
        self.grown = threading.Event()
        self.ended = False  # no further events will come

    def note_growth(self, seq: int) -> None:
        """Note that the conversation's events now reach `seq`."""
        if self.seq < seq:
            self.grown.set()


class AppendCallback(AppendWaiter):
    """Calls `notify` when there are events after those it has seen."""

    def __init__(self, conversation_id: str, notify: Callable[[], None]) -> None:
        super().__init__(conversation_id, 0)
        self._notify = notify

    def note_growth(self, seq: int) -> None:
        """See `AppendWaiter.note_growth`."""
        if self.seq < seq:
            self.seq = seq
            self._notify()


def follow_events(
    store: Store, waiter: AppendWaiter, timeout: float | None, closed: Callable[[], bool]
) -> Iterator[AnyEvent]:
    """Yield events of a store as `waiter` learns of them, until none has come for `timeout` seconds
    or the store is `closed`."""
    events: list[AnyEvent] = []
    until = None
    while True:
        if timeout is not None and (events or until is None):
            until = time.monotonic() + timeout
        waiter.grown.clear()
        try:
            events = store.read(waiter.conversation_id, waiter.seq)
        except StoreError:
            if closed():
                return
            raise
        for event in events:
            waiter.seq = event.seq
            yield event
        seconds = None if until is None else max(until - time.monotonic(), 0)
        if not events and (waiter.ended or not waiter.grown.wait(seconds)):
            return
