"""Subscriptions: each is a cursor into the journal with a thread of its own."""

from __future__ import annotations

import inspect
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from holdfast import events as ev
from holdfast.conversation.journal import Journal

Callback = Callable[[ev.AnyEvent], object]
_log = logging.getLogger("holdfast")


def guarded(callback: Callable[..., object]) -> Callable[..., None]:
    """Return `callback` with its exceptions logged, so that a failing listener does not stop the
    run."""

    def call(*arguments: Any) -> None:
        try:
            _not_a_coroutine(callback(*arguments))
        except Exception:
            _log.exception("a callback raised; the run continues")

    return call


def _not_a_coroutine(result: object) -> None:
    """Log a coroutine that a plain callback returned, and which is never run."""
    if inspect.iscoroutine(result):
        result.close()
        _log.error("a callback returned a coroutine, which is not run: callbacks are not async")


class Subscription:
    """A subscription that calls `callback` with every event after `after_seq`, in order, each once.

    An exception of the callback is logged; the subscription continues with the next event.
    """

    __slots__ = ("_callback", "_cursor", "_deadline", "_journal", "_stopping", "_thread")

    def __init__(self, journal: Journal, callback: Callback, after_seq: int) -> None:
        self._journal = journal
        self._callback = callback
        self._cursor = after_seq
        self._stopping = False
        self._deadline = float("inf")
        self._thread = threading.Thread(
            target=self._run, name=f"holdfast-callback-{journal.id}", daemon=True
        )
        self._thread.start()

    @property
    def seq(self) -> int:
        """The seq of the last delivered event: the `after_seq` with which to continue from here."""
        return self._cursor

    def _run(self) -> None:
        journal = self._journal
        while True:
            with journal.lock:
                while journal.fold.last_seq <= self._cursor and not self._stopping:
                    journal.lock.wait()
                batch = journal.after(self._cursor)
            if not batch:
                return
            for event in batch:
                if time.monotonic() > self._deadline:
                    return
                try:
                    _not_a_coroutine(self._callback(event))
                except Exception:
                    _log.exception(
                        "callback of conversation %s raised on event %d; the next event follows",
                        journal.id,
                        event.seq,
                    )
                self._cursor = event.seq

    def close(self, timeout: float = 5.0) -> None:
        """Deliver the events up to now and end; give up after `timeout` seconds. Idempotent; the
        callback itself may call it."""
        with self._journal.lock:
            self._deadline = min(self._deadline, time.monotonic() + timeout)
            self._stopping = True
            self._journal.lock.notify_all()
        if self._thread is threading.current_thread():
            return
        self._thread.join(timeout)
        if self._thread.is_alive():
            _log.warning(
                "callback of conversation %s did not return within %g s and was left behind",
                self._journal.id,
                timeout,
            )
