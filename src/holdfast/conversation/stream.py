"""A run of a conversation as an iterator: its events and deltas on the caller's thread."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from holdfast.conversation.fold import Fold
from holdfast.conversation.journal_lock import JournalLock
from holdfast.errors import ConversationBusy
from holdfast.events import AnyEvent
from holdfast.llm.completion import Delta
from holdfast.tools.running import start_thread


class StreamedJournal(Protocol):
    """A journal, or a copy of one, that a stream reads."""

    id: str
    fold: Fold
    closed: bool

    @property
    def lock(self) -> JournalLock:
        """The lock, with a condition that is notified of every append."""
        ...

    def after(self, seq: int) -> Sequence[AnyEvent]:
        """Return the events after `seq`. Needs the lock `lock`."""
        ...


class DeltaSource(Protocol):
    """The object that passes the deltas of model calls on."""

    def listen(self, listener: Callable[[Delta], None]) -> None:
        """Pass deltas to `listener` from now on."""
        ...

    def forget(self, listener: Callable[[Delta], None]) -> None:
        """Stop passing deltas to `listener`. Idempotent."""
        ...


class EventStream:
    """Yields the events of a run in the journal's order, and the deltas of streamed answers between
    them. Ends when the conversation rests.

    A delta comes after all events that were in the journal when it arrived. The run has a thread of
    its own, so a slow consumer does not slow it down. As a context manager the stream interrupts
    a run that its block leaves; a loop that is left without one lets the run continue. One thread
    at a time may iterate.
    """

    def __init__(
        self,
        journal: StreamedJournal,
        deltas: DeltaSource,
        after_seq: int,
        begin: Callable[[], object],
        run: Callable[[], object],
        at_rest: Callable[[], bool],
        interrupt: Callable[[], None],
        ends: Callable[[], bool] = lambda: False,
    ) -> None:
        """Begin the run, or follow the run of another thread.

        Args:
            after_seq: The seq of the last event that is not yielded.
            begin: Sends the message, if there is one. Called once deltas are listened to, because
                another thread may answer at once. Its errors propagate.
            run: Drives the conversation until it rests. Raises `ConversationBusy` if another
                thread drives it; the stream then follows that thread.
            at_rest: Returns True if the loop has nothing to do. Called under the journal's lock.
            interrupt: Cancels the run.
            ends: Returns True if the stream ends although the run continues. Called under the
                journal's lock, when all events and deltas were yielded.
        """
        self._journal = journal
        self._delta_source = deltas
        self._last_seq = after_seq
        self._at_rest = at_rest
        self._interrupt = interrupt
        self._ends = ends
        self._deltas: deque[tuple[int, Delta]] = deque()  # each with the last seq when it arrived
        self._events: deque[AnyEvent] = deque()
        self._error: BaseException | None = None  # of the run, raised on the consumer's thread
        self._runs = True  # True while the stream's own thread drives the conversation
        self._ended = False
        self._listener = _weak_listener(self, deltas)
        deltas.listen(self._listener)
        try:
            begin()
        except BaseException:
            deltas.forget(self._listener)
            raise
        start_thread(partial(self._drive, run), f"holdfast-stream-{journal.id}")

    def _drive(self, run: Callable[[], object]) -> None:
        try:
            run()
        except ConversationBusy:
            pass  # another thread drives the conversation: follow that one
        except BaseException as error:
            self._error = error
        with self._journal.lock:
            self._runs = False
            self._journal.lock.notify_all()

    def take_delta(self, delta: Delta) -> None:
        """Queue a delta behind the events that are in the journal now."""
        with self._journal.lock:
            self._deltas.append((self._journal.fold.last_seq, delta))
            self._journal.lock.notify_all()

    def __iter__(self) -> EventStream:
        return self

    def __next__(self) -> AnyEvent | Delta:
        try:
            item = self._next()
        except KeyboardInterrupt:
            self._interrupt()
            raise
        if item is not None:
            return item
        self._delta_source.forget(self._listener)
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        raise StopIteration

    def _next(self) -> AnyEvent | Delta | None:
        """Wait for the next event or delta and return it; None at the end."""
        with self._journal.lock:
            while not self._ended:
                item = self._take()
                if item is not None:
                    return item
                self._ended = self._is_over() or self._ends()
                if not self._ended:
                    self._journal.lock.wait()
        return None

    def _take(self) -> AnyEvent | Delta | None:
        """Return the next event or delta, None if none has come yet. Under the lock."""
        if not self._events:
            self._events.extend(self._journal.after(self._last_seq))
        if self._events and not (self._deltas and self._deltas[0][0] < self._events[0].seq):
            event = self._events.popleft()
            self._last_seq = event.seq
            return event
        return self._deltas.popleft()[1] if self._deltas else None

    def _is_over(self) -> bool:
        """Return True if the run has ended. Under the lock."""
        return not self._runs and (
            self._error is not None or self._journal.closed or self._at_rest()
        )

    def close(self) -> None:
        """Interrupt the run if it has not ended. Idempotent."""
        with self._journal.lock:
            over = self._ended or self._is_over()
        self._delta_source.forget(self._listener)
        if not over:
            self._interrupt()

    def __enter__(self) -> EventStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _weak_listener(stream: EventStream, deltas: DeltaSource) -> Callable[[Delta], None]:
    """Return a listener that does not keep `stream` alive, and removes itself once it is gone."""
    reference = weakref.ref(stream)

    def listen(delta: Delta) -> None:
        target = reference()
        if target is None:
            deltas.forget(listen)
        else:
            target.take_delta(delta)

    return listen
