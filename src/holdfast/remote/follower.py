"""The thread that follows a conversation's event stream and reconnects after network failures."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from holdfast import events as ev
from holdfast.conversation.driver import inside
from holdfast.errors import Cancelled, HoldfastError, StoreError
from holdfast.llm.wires.sse import EventReader
from holdfast.remote.copy import Copy
from holdfast.remote.link import Link, pause
from holdfast.tools import Cancellation

SILENCE_SECONDS = 30.0  # seconds without a byte; the server pings every 10
MAX_EVENT_BYTES = 64 * 1024 * 1024  # bytes of one event; twice the limit of a request

_log = logging.getLogger("holdfast.remote")


class Follower:
    """A thread that keeps a `Copy` up to date from the server's stream until `stop`.

    Calls `on_events` after each batch of new events, and `on_note(kind, data)` with data that is
    not journaled; neither may block. `lost` is the error that ended following: the server does
    not know the conversation or the key.
    """

    __slots__ = (
        "_client",
        "_copy",
        "_link",
        "_mark",
        "_on_events",
        "_on_note",
        "_stopping",
        "_thread",
        "lost",
        "silence",
    )

    def __init__(
        self,
        copy: Copy,
        link: Link,
        client: str,
        on_events: Callable[[], None],
        on_note: Callable[[str, bytes], None],
        mark: int,
        silence: float = SILENCE_SECONDS,
    ) -> None:
        self.lost: HoldfastError | None = None
        self.silence = silence
        self._copy = copy
        self._link = link
        self._client = client
        self._on_events = on_events
        self._on_note = on_note
        self._mark = mark
        self._stopping = Cancellation()
        self._thread: threading.Thread | None = None

    @property
    def started(self) -> bool:
        """True once `start` was called."""
        return self._thread is not None

    def start(self) -> None:
        """Begin to follow. Idempotent."""
        with self._copy.changed:
            if self._thread is not None or self._stopping:
                return
            self._thread = threading.Thread(
                target=self._run, name=f"holdfast-follower-{self._copy.id}", daemon=True
            )
            self._thread.start()

    def stop(self, timeout: float) -> None:
        """Stop following, and wait for the thread for `timeout` seconds. Idempotent."""
        self._stopping.cancel()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(max(0.0, timeout))
            if thread.is_alive():
                _log.warning(
                    "conversation %s: a listener blocks the thread that follows it, which was left"
                    " behind",
                    self._copy.id,
                )

    def _run(self) -> None:
        inside.set((*inside.get(), self._mark))  # a listener that waits would wait for this thread
        failures = 0
        while not self._stopping:
            before = self._copy.fold.last_seq
            try:
                self._follow()
                why = "it ended"  # as when the server is stopped
            except Cancelled:
                return
            except (
                StoreError,
                ValueError,
            ) as error:  # ValueError: the data is no event, so a proxy must have changed it
                if isinstance(error, HoldfastError) and type(error) is not StoreError:
                    self._give_up(error)
                    return
                why = str(error)
            except HoldfastError as error:
                self._give_up(error)
                return
            except Exception as error:
                _log.exception("conversation %s: following its events failed", self._copy.id)
                why = type(error).__name__
            failures = 0 if self._copy.fold.last_seq > before else failures + 1
            wait = pause(failures)
            _log.info(
                "conversation %s: the event stream ended (%s); reconnecting in %.1f s",
                self._copy.id,
                why,
                wait,
            )
            if self._stopping.wait(wait):
                return

    def _give_up(self, error: HoldfastError) -> None:
        if not self._stopping:
            _log.error("conversation %s can no longer be followed: %s", self._copy.id, error)
        with self._copy.changed:
            self.lost = error
            self._copy.changed.notify_all()
        self._on_events()

    def _follow(self) -> None:
        copy, reader = self._copy, EventReader()
        last = copy.fold.last_seq
        query, headers = {"after_seq": last}, {"Last-Event-ID": str(last)}
        with self._link.stream(
            f"{copy.path}/stream", query, headers, self._client, self.silence, self._stopping
        ) as chunks:
            self._on_events()  # work that waited for the server
            size = 0  # bytes since the last whole event
            at = last
            for chunk in chunks:
                found: list[ev.AnyEvent] = []
                whole = reader.feed(chunk)
                size = 0 if whole else size + len(chunk)
                if size > MAX_EVENT_BYTES:
                    raise StoreError(
                        f"{self._link.address} sent {size:,} bytes of a stream without an event"
                    )
                for name, data in whole:
                    kind = name.decode("ascii", "replace")
                    if kind in ("delta", "progress"):
                        self._take(found)
                        answer = copy.fold.assistant
                        # otherwise the answer was read already
                        if kind == "progress" or answer is None or answer.seq <= at:
                            self._on_note(kind, data)
                    else:
                        found.append(self._event(data, found))
                        at = found[-1].seq
                self._take(found)

    def _event(self, data: bytes, before: list[Any]) -> ev.AnyEvent:
        try:
            return ev.decode(data)
        except ValueError:
            # A proxy changes bytes. Events that cannot be read from the stream are requested.
            self._take(before)
            self._copy.catch_up()
            self._on_events()
            raise

    def _take(self, events: list[Any]) -> None:
        if not events:
            return
        given, events[:] = list(events), []
        if not self._copy.take(given):
            self._copy.catch_up()  # events between are missing
        self._on_events()
