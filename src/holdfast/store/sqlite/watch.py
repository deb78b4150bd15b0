"""Change notifications of an SQLite file, from any writer. Lease holders learn of commands and of
the loss of their lease, followers of new events.

One daemon thread per store polls a counter of SQLite 10 to 20 times a second while anyone listens.
The tables are read only if the counter moved. The same thread is the owner's heartbeat.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from holdfast.errors import StoreError
from holdfast.processes import OwnerProcess
from holdfast.store.following import AppendWaiter
from holdfast.store.sqlite.files import ReadConnection

_log = logging.getLogger(__name__)

POLL_SECONDS = 0.05  # seconds between two polls
# The same when nothing happened for `_AWAKE_SECONDS`. Waking the thread takes 150 us, that is
# 0.15 % of a core.
IDLE_POLL_SECONDS = 0.1
_AWAKE_SECONDS = 1.0

_UNDONE_AND_HELD = """
SELECT 0, conversation, max(number) FROM inbox WHERE data IS NOT NULL GROUP BY conversation
UNION ALL SELECT 1, number, epoch FROM conversations WHERE holder = ? AND holder <> ''
"""
_LAST_SEQ = "SELECT last_seq FROM conversations WHERE id = ?"


class _WatchedLease:
    __slots__ = ("epoch", "last_command", "notify")

    def __init__(self, epoch: int, notify: Callable[[], None]) -> None:
        self.epoch = epoch
        self.notify = notify
        self.last_command = 0  # the number of the last command that was notified


class Watcher:
    """The polling thread and its listeners.

    Args:
        reads: Creates the thread's connection when it is first needed.
        beat: The heartbeat, called every `every` seconds.
    """

    def __init__(
        self, reads: Callable[[], ReadConnection], beat: Callable[[], None], every: float
    ) -> None:
        self._reads = reads
        self._beat = beat
        self._every = every
        self._lock = threading.Lock()
        self._process = OwnerProcess()
        # Held by the polling thread: an ending thread may still be in the loop when the next one
        # starts.
        self._poll_lock = threading.Lock()
        self._leases: dict[int, _WatchedLease] = {}
        self.followers: dict[str, list[AppendWaiter]] = {}
        self._token = ""
        self._reader: ReadConnection | None = None
        self._thread: threading.Thread | None = None
        self._running = threading.Lock()
        self._dirty = False
        self._closed = False

    # --- listeners ---

    def hold(self, number: int, epoch: int, token: str, notify: Callable[[], None]) -> None:
        """Call `notify` for the events of a lease from now on."""
        with self._lock:
            self._token = token
            self._leases[number] = _WatchedLease(epoch, notify)
            self._dirty = True
            self._begin()

    def drop(self, number: int, epoch: int) -> None:
        """Stop the notifications of a lease."""
        with self._lock:
            lease = self._leases.get(number)
            if lease is not None and lease.epoch == epoch:
                del self._leases[number]
                self._end_if_idle()

    def follow(self, conversation_id: str, seq: int) -> AppendWaiter:
        """Return a follower whose `grown` is set when there is an event after `seq`."""
        follower = AppendWaiter(conversation_id, seq)
        with self._lock:
            # A new list, because another thread may be iterating over the old one.
            self.followers[conversation_id] = [*self.followers.get(conversation_id, ()), follower]
            self._begin()
            follower.ended = self._closed
        return follower

    def unfollow(self, follower: AppendWaiter) -> None:
        """Undo `follow`."""
        with self._lock:
            id = follower.conversation_id
            others = [one for one in self.followers.pop(id, ()) if one is not follower]
            if others:
                self.followers[id] = others
            self._end_if_idle()

    # --- changes made by this process ---

    def notify_append(self, conversation_id: str, seq: int) -> None:
        """Wake the followers of a conversation whose events now reach `seq`."""
        for follower in self.followers.get(conversation_id, ()):
            follower.note_growth(seq)

    def notify_post(self, number: int, command: int) -> None:
        """Notify the lease holder of the conversation `number` of a command."""
        lease = self._leases.get(number)
        if lease is not None:
            lease.last_command = max(lease.last_command, command)
            _call_notify(lease.notify)

    # --- the thread ---

    def _begin(self) -> None:
        if self._thread is None and not self._closed:
            # The thread polls until it gets this lock. A `threading.Event` costs twice as much.
            self._running = threading.Lock()
            self._running.acquire()
            self._thread = threading.Thread(
                target=self._run, args=(self._running,), name="holdfast-store-watch", daemon=True
            )
            self._thread.start()

    def _end(self) -> threading.Thread | None:
        thread, self._thread = self._thread, None
        if thread is not None:
            self._running.release()
        return thread

    def _end_if_idle(self) -> None:
        if not self._leases and not self.followers:
            self._end()

    def _run(self, running: threading.Lock) -> None:
        with self._poll_lock:
            version: object = None
            failed = False
            last_beat = last_change = pause = 0.0
            while not running.acquire(timeout=pause):
                try:
                    if self._reader is None:
                        self._reader = self._reads()
                    now = time.monotonic()
                    if now - last_beat >= self._every:
                        last_beat = now
                        self._beat()
                    latest = self._reader.version()
                    if latest != version or self._dirty:
                        self._dirty = False
                        version, last_change = latest, now
                        self._notify_changes(self._reader)
                    failed = False
                except (StoreError, OSError) as error:
                    if not failed and running.locked():
                        _log.warning("a store cannot be watched at present: %s", error)
                    failed, version = True, None
                awake = time.monotonic() - last_change < _AWAKE_SECONDS
                pause = POLL_SECONDS if awake else IDLE_POLL_SECONDS

    def _notify_changes(self, reader: ReadConnection) -> None:
        leases = dict(
            self._leases
        )  # before reading, so that a lease acquired meanwhile is not lost
        if leases:
            undone: dict[int, int] = {}
            ours: dict[int, int] = {}
            for kind, number, value in reader.read(
                lambda db: db.execute(_UNDONE_AND_HELD, (self._token,)).fetchall()
            ):
                (ours if kind else undone)[number] = value
            for number, lease in leases.items():
                command = undone.get(number, 0)
                if ours.get(number) != lease.epoch:
                    self.drop(number, lease.epoch)
                elif command > lease.last_command:
                    lease.last_command = command
                else:
                    continue
                _call_notify(lease.notify)
        for conversation_id in list(self.followers):
            key = (conversation_id,)
            row = reader.read(lambda db, key=key: db.execute(_LAST_SEQ, key).fetchone())
            if row is not None:
                self.notify_append(conversation_id, row[0])

    def close(self) -> None:
        """End the thread and release all followers. Idempotent; does nothing in a forked child."""
        if not self._process.here:
            return
        with self._lock:
            self._closed = True
            self._leases.clear()
            thread = self._end()
            for followers in self.followers.values():
                for follower in followers:
                    follower.ended = True
                    follower.grown.set()
        # `ident` is None if Ctrl-C kept the thread from starting.
        if thread not in (None, threading.current_thread()) and thread.ident is not None:
            thread.join(5)  # bounded: a notify may wait for a lock that the closing thread holds
        if self._reader is not None:
            self._reader.close()


def _call_notify(notify: Callable[[], None]) -> None:
    try:
        notify()
    except BaseException:  # none of them may end the one thread that watches for all leases
        _log.exception("the notify function of a lease raised")
