"""The thread that follows a conversation's event stream and reconnects after network failures."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import msgspec

from holdfast import events as ev
from holdfast.conversation.callbacks import guarded
from holdfast.conversation.run_context import inside
from holdfast.errors import Cancelled, HoldfastError, StoreError
from holdfast.llm.completion import Delta
from holdfast.llm.wires.sse import EventReader
from holdfast.nesting import decode_json
from holdfast.remote.journal_copy import JournalCopy
from holdfast.remote.server_client import pause
from holdfast.tools import Cancellation

SILENCE_SECONDS = 30.0  # seconds without a byte; the server pings every 10
MAX_EVENT_BYTES = 64 * 1024 * 1024  # bytes of one event; twice the limit of a request

_log = logging.getLogger("holdfast.remote")


class _Progress(msgspec.Struct, rename="camel"):
    call_id: str
    message: str


class StreamFollower:
    """A thread that keeps a `JournalCopy` up to date from the server's stream until `stop`.

    Calls `on_events` after each batch of new events, and listeners with deltas of answers and
    tools' progress, which are not journaled; none may block. `lost` is the error that ended
    following: the server does not know the conversation or the key.
    """

    def __init__(
        self,
        copy: JournalCopy,
        on_events: Callable[[], None],
        on_delta: Callable[[Delta], object] | None = None,
        on_progress: Callable[[str, str], object] | None = None,
    ) -> None:
        self.error: HoldfastError | None = None
        self.silence = SILENCE_SECONDS
        self._copy = copy
        self._on_events = on_events
        self._delta_listeners = () if on_delta is None else (guarded(on_delta),)
        self._on_progress = None if on_progress is None else guarded(on_progress)
        self._stopping = Cancellation()
        self.thread: threading.Thread | None = None

    @property
    def has_listeners(self) -> bool:
        """True if anyone wants deltas or progress."""
        return bool(self._delta_listeners) or self._on_progress is not None

    def listen(self, listener: Callable[[Delta], None]) -> None:
        """Pass deltas that arrive from now on to `listener` as well."""
        with self._copy.lock:
            self._delta_listeners += (listener,)

    def forget(self, listener: Callable[[Delta], None]) -> None:
        """Stop passing deltas to `listener`. Idempotent."""
        with self._copy.lock:
            self._delta_listeners = tuple(one for one in self._delta_listeners if one != listener)

    def start(self) -> None:
        """Begin to follow. Idempotent."""
        with self._copy.lock:
            if self.thread is not None or self._stopping:
                return
            name = f"holdfast-follower-{self._copy.id}"
            self.thread = threading.Thread(target=self._run, name=name, daemon=True)
            self.thread.start()

    def stop(self, timeout: float) -> None:
        """Stop following, and wait for the thread for `timeout` seconds. Idempotent."""
        self._stopping.cancel()
        thread = self.thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(max(0.0, timeout))
            if thread.is_alive():
                blocked = "conversation %s: a listener blocks the thread that follows it, which was"
                _log.warning(f"{blocked} left behind", self._copy.id)

    def _run(self) -> None:
        # a listener that waits would wait for this thread
        inside.set((*inside.get(), self._copy.mark))
        failures = 0
        while not self._stopping:
            before = self._copy.fold.last_seq
            try:
                self._follow()
                why = "it ended"  # as when the server is stopped
            except Cancelled:
                return
            except HoldfastError as error:
                if type(error) is not StoreError:  # the server refuses
                    self._give_up(error)
                    return
                why = str(error)
            except ValueError as error:  # the data is no event: a proxy must have changed it
                why = str(error)
            except Exception as error:
                _log.exception("conversation %s: following its events failed", self._copy.id)
                why = type(error).__name__
            failures = 0 if self._copy.fold.last_seq > before else failures + 1
            wait = pause(failures)
            what = "conversation %s: the event stream ended (%s); reconnecting in %.1f s"
            _log.info(what, self._copy.id, why, wait)
            if self._stopping.wait(wait):
                return

    def _give_up(self, error: HoldfastError) -> None:
        if not self._stopping:
            _log.error("conversation %s can no longer be followed: %s", self._copy.id, error)
        with self._copy.lock:
            self.error = error
            self._copy.lock.notify_all()
        self._on_events()

    def _follow(self) -> None:
        copy, reader = self._copy, EventReader()
        last = copy.fold.last_seq
        path = f"{copy.path}/stream"
        with copy.server.stream(path, last, copy.client, self.silence, self._stopping) as chunks:
            self._on_events()  # work that waited for the server
            size = 0  # bytes since the last whole event
            for chunk in chunks:
                batch: list[ev.AnyEvent] = []
                whole = reader.feed(chunk)
                size = 0 if whole else size + len(chunk)
                if size > MAX_EVENT_BYTES:
                    what = f"{size:,} bytes of a stream without an event"
                    raise StoreError(f"{copy.server.address} sent {what}")
                for name, data in whole:
                    if name in (b"delta", b"progress"):
                        self._take(batch)
                        answer = copy.fold.assistant
                        # otherwise the answer was read already
                        if name == b"progress" or answer is None or answer.seq <= last:
                            self._notify(name, data)
                    else:
                        batch.append(self._event(data, batch))
                        last = batch[-1].seq
                self._take(batch)

    def _notify(self, name: bytes, data: bytes) -> None:
        """Deliver data that is not journaled: a piece of an answer, a tool's progress."""
        try:
            if name == b"delta" and self._delta_listeners:
                delta = decode_json(data, Delta)
                for listener in self._delta_listeners:
                    listener(delta)
            elif name == b"progress" and self._on_progress is not None:
                progress = decode_json(data, _Progress)
                self._on_progress(progress.call_id, progress.message)
        except ValueError:
            _log.debug("conversation %s: a %s could not be decoded", self._copy.id, name.decode())

    def _event(self, data: bytes, before: list[ev.AnyEvent]) -> ev.AnyEvent:
        try:
            return ev.decode(data)
        except ValueError:
            # A proxy changes bytes. Events that cannot be read from the stream are requested.
            self._take(before)
            self._copy.catch_up()
            self._on_events()
            raise

    def _take(self, events: list[ev.AnyEvent]) -> None:
        if not events:
            return
        batch, events[:] = list(events), []
        if not self._copy.take(batch):
            self._copy.catch_up()  # events between are missing
        self._on_events()
