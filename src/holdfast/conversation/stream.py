"""A run of a conversation as an iterator: its events and deltas on the caller's thread."""

from __future__ import annotations

import contextvars
import threading
from collections import deque
from collections.abc import Callable

from holdfast.conversation.driver import Driver
from holdfast.conversation.journal import Journal
from holdfast.events import AnyEvent
from holdfast.llm.completion import Delta


class EventStream:
    """Yields the events of a run in the journal's order, and the deltas of streamed answers between
    them. Ends when the conversation rests.

    A delta comes after all events that were in the journal when it arrived. The run is on a thread
    of its own, so a slow consumer does not slow it down. As a context manager the stream interrupts
    a run that its block leaves; a loop that is left without one lets the run go on.
    """

    def __init__(
        self,
        journal: Journal,
        driver: Driver,
        after_seq: int,
        run: Callable[[], object] | None,
        at_rest: Callable[[], bool],
        interrupt: Callable[[], None],
    ) -> None:
        """`run` drives the conversation until it rests; None if another thread drives it."""
        self._journal = journal
        self._driver = driver
        self._last_seq = after_seq
        self._at_rest = at_rest
        self._interrupt = interrupt
        self._deltas: deque[tuple[int, Delta]] = deque()
        self._events: deque[AnyEvent] = deque()
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._ended = False
        driver.add_delta_listener(self._on_delta)
        if run is not None:
            context = contextvars.copy_context()
            self._thread = threading.Thread(
                target=lambda: context.run(self._drive, run),
                name=f"holdfast-stream-{journal.id}",
                daemon=True,
            )
            self._thread.start()

    def _drive(self, run: Callable[[], object]) -> None:
        try:
            run()
        except BaseException as error:  # raised on the consumer's thread
            self._error = error
        with self._journal.changed:
            self._ended = True
            self._journal.changed.notify_all()

    def _on_delta(self, delta: Delta) -> None:
        with self._journal.changed:
            self._deltas.append((self._journal.fold.last_seq, delta))
            self._journal.changed.notify_all()

    def __iter__(self) -> EventStream:
        return self

    def __next__(self) -> AnyEvent | Delta:
        changed = self._journal.changed
        try:
            with changed:
                while True:
                    item = self._take()
                    if item is not None:
                        return item
                    if self._is_over():
                        break
                    changed.wait()
        except KeyboardInterrupt:
            self._interrupt()
            raise
        self._leave()
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        raise StopIteration

    def _take(self) -> AnyEvent | Delta | None:
        """Return the next event or delta, None if there is none yet. Under the lock."""
        if not self._events:
            self._events.extend(self._journal.after(self._last_seq))
        if self._events:
            due = self._deltas and self._deltas[0][0] < self._events[0].seq
            if not due:
                event = self._events.popleft()
                self._last_seq = event.seq
                return event
        return self._deltas.popleft()[1] if self._deltas else None

    def _is_over(self) -> bool:
        if self._thread is None:
            return self._at_rest() or self._journal.closed
        return self._ended

    def _leave(self) -> None:
        self._driver.remove_delta_listener(self._on_delta)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(1.0)

    def close(self) -> None:
        """Interrupt the run if it goes on. Idempotent."""
        with self._journal.changed:
            over = self._is_over()
        if not over:
            self._interrupt()
        self._leave()

    def __enter__(self) -> EventStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
