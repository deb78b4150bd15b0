"""Notices of a Postgres store: lease holders learn of commands, followers of new events, from any
store on the same database.

Every store has its own channel. A NOTIFY takes a lock that makes all commits with one wait for each
other. So it is sent after its commit, and only to stores that listen for that conversation. A
notice may be lost with its sender; a poll then finds the change.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import psycopg
from psycopg import sql

from holdfast.errors import StoreError
from holdfast.store.following import AppendWaiter
from holdfast.store.nul_text import escaped, unescaped
from holdfast.store.postgres.pool import Connection, Pool, reason

_log = logging.getLogger("holdfast")

POLL_SECONDS = 1.0
# A new follower's conversation is polled faster at first. It may not exist yet, and an append that
# began before the follower was known sends no notice.
_NEW_POLL_SECONDS = 0.05
_NEW_SECONDS = 0.25

_NOTIFY = "SELECT pg_notify(channel, %s::text) FROM unnest(%s::text[]) AS channel"
_UNDONE = """
SELECT i.conversation, i.number FROM inbox i JOIN conversations c ON c.number = i.conversation
WHERE i.data IS NOT NULL AND c.owner = %s
"""
_LAST_SEQS = "SELECT id, number, last_seq FROM conversations WHERE id = ANY(%s)"
_WATCH = """
INSERT INTO watchers (conversation, channel) SELECT unnest(%s::bigint[]), %s ON CONFLICT DO NOTHING
"""
_UNWATCH = "DELETE FROM watchers WHERE conversation = ANY(%s) AND channel = %s"


class _Holder:
    __slots__ = ("notified", "notify")

    def __init__(self, notify: Callable[[], None]) -> None:
        self.notify = notify
        self.notified: set[int] = set()  # the numbers of the undone commands that were notified


class Listener:
    """The listening thread of a store, which starts with the first listener and ends with `close`.

    Args:
        token: Returns the owner's present token, "" for none.
    """

    def __init__(self, pool: Pool, channel: str, token: Callable[[], str]) -> None:
        self._pool = pool
        self._channel = channel
        self._token = token
        self._lock = threading.Lock()
        self._holders: dict[int, _Holder] = {}
        self._followers: dict[str, list[AppendWaiter]] = {}
        self._watched: dict[int, str] = {}  # ids by number; only the thread uses it
        self._lost_callbacks: list[Callable[[], None]] = []
        self._new_until = 0.0
        self._thread: threading.Thread | None = None
        self._wake_read, self._wake_write = -1, -1
        self._closed = False

    # --- listeners ---

    def hold(self, number: int, notify: Callable[[], None]) -> None:
        """Call `notify` for commands to the conversation `number` from now on."""
        with self._lock:
            self._holders[number] = _Holder(notify)
            self._begin()

    def drop(self, number: int) -> None:
        """Stop the notices of a lease."""
        with self._lock:
            self._holders.pop(number, None)

    def notify_lost(self, numbers: Sequence[int]) -> None:
        """Notify the holders of lost leases, on the listening thread."""
        with self._lock:
            holders = [self._holders.pop(number, None) for number in numbers]
            self._lost_callbacks += [holder.notify for holder in holders if holder is not None]
        self._wake()

    def follow(self, waiter: AppendWaiter) -> None:
        """Call `waiter.note_growth` as its conversation grows, until `unfollow`."""
        id = waiter.conversation_id
        with self._lock:
            # A new list, because another thread may be iterating over the old one.
            self._followers[id] = [*self._followers.get(id, ()), waiter]
            self._new_until = time.monotonic() + _NEW_SECONDS
            self._begin()
            waiter.ended = self._closed
        self._wake()

    def unfollow(self, waiter: AppendWaiter) -> None:
        """Undo `follow`."""
        with self._lock:
            id = waiter.conversation_id
            others = [one for one in self._followers.pop(id, ()) if one is not waiter]
            if others:
                self._followers[id] = others

    # --- changes made by this store ---

    def notify_append(
        self, conversation_id: str, number: int, seq: int, channels: Sequence[str] = ()
    ) -> None:
        """Wake the followers of the conversation `number`, whose events now reach `seq`, here and
        at other stores."""
        self._wake_followers(conversation_id, seq)
        if channels:
            self.send(channels, f"{number} {seq}")

    def _wake_followers(self, conversation_id: str, seq: int) -> None:
        for waiter in self._followers.get(conversation_id, ()):
            waiter.note_growth(seq)

    def notify_post(self, number: int, command: int) -> None:
        """Notify the holder of the conversation `number` of a command, if this store has it."""
        holder = self._holders.get(number)
        if holder is not None:
            holder.notified.add(command)
            _call(holder.notify)

    def send(self, channels: Sequence[str], what: str = "") -> None:
        """Notify other stores, by their channels, of a change. `what` is the number of a
        conversation and its last seq, or nothing."""
        others = {channel for channel in channels if channel not in ("", self._channel)}
        if others:
            with suppress(StoreError):  # the poll finds it
                self._pool.execute(_NOTIFY, (what, sorted(others)))

    # --- the thread ---

    def _begin(self) -> None:
        if self._thread is None and not self._closed:
            self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            self._thread = threading.Thread(
                target=self._run, name="holdfast-store-watch", daemon=True
            )
            self._thread.start()

    def _wake(self) -> None:
        with self._lock:
            if self._wake_write >= 0:
                with suppress(BlockingIOError):  # it is being woken already
                    os.write(self._wake_write, b"\0")

    def _run(self) -> None:
        failed = False
        while not self._closed:
            try:
                with self._pool.connect() as connection:
                    channel = sql.Identifier(self._channel)
                    connection.execute(sql.SQL("LISTEN {}").format(channel))
                    self._watched.clear()
                    failed = False
                    self._listen(connection)
            except (psycopg.Error, StoreError) as error:
                if not failed and not self._closed:
                    text = reason(error) if isinstance(error, psycopg.Error) else str(error)
                    _log.warning("a store cannot be watched at present: %s", text)
                failed = True
                self._sleep(None, POLL_SECONDS / 2)

    def _listen(self, connection: Connection) -> None:
        while not self._closed:
            self._look(connection)
            new = time.monotonic() < self._new_until or len(self._watched) < len(self._followers)
            self._sleep(connection, _NEW_POLL_SECONDS if new else POLL_SECONDS)

    def _sleep(self, connection: Connection | None, seconds: float) -> None:
        """Wait for a notice, a wake or the time."""
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        if connection is not None:
            poll.register(connection.fileno(), select.POLLIN)
        # A notice may have come with the answer to a statement.
        if connection is None or not self._read_notices(connection):
            poll.poll(seconds * 1000)
        with suppress(BlockingIOError):
            os.read(self._wake_read, 4096)
        if connection is not None:
            self._read_notices(connection)

    def _read_notices(self, connection: Connection) -> bool:
        """Wake the followers that notices are about, before a look that takes a query. Return True
        if there were notices."""
        notices = list(connection.notifies(timeout=0))
        for notice in notices:
            number, _, seq = notice.payload.partition(" ")
            if number.isdecimal() and seq.isdecimal() and int(number) in self._watched:
                self._wake_followers(self._watched[int(number)], int(seq))
        return bool(notices)

    def _look(self, connection: Connection) -> None:
        """Read what may have changed, and notify the listeners it concerns."""
        with self._lock:
            holders, followers = dict(self._holders), list(self._followers)
            callbacks, self._lost_callbacks = self._lost_callbacks, []
        for notify in callbacks:
            _call(notify)
        if holders:
            undone: dict[int, set[int]] = {}
            for number, command in connection.execute(_UNDONE, (self._token(),)):
                undone.setdefault(number, set()).add(command)
            for number, holder in holders.items():
                commands = undone.get(number, set())
                fresh = commands - holder.notified
                holder.notified = commands
                if fresh and self._holders.get(number) is holder:
                    _call(holder.notify)
        if followers or self._watched:
            self._look_at_followed(connection, followers)

    def _look_at_followed(self, connection: Connection, followers: Sequence[str]) -> None:
        ids = [escaped(id) for id in followers]
        rows = connection.execute(_LAST_SEQS, (ids,)).fetchall()
        numbers = {number: unescaped(id) for id, number, _ in rows}
        if fresh := list(numbers.keys() - self._watched.keys()):
            connection.execute(_WATCH, (fresh, self._channel))
            rows = connection.execute(_LAST_SEQS, (ids,)).fetchall()
        if stale := list(self._watched.keys() - numbers.keys()):
            connection.execute(_UNWATCH, (stale, self._channel))
        self._watched = numbers
        for id, _, seq in rows:
            self._wake_followers(unescaped(id), seq)

    def close(self) -> None:
        """End the thread and release all followers. Idempotent."""
        with self._lock:
            self._closed = True
            self._holders.clear()
            thread, self._thread = self._thread, None
            for waiters in self._followers.values():
                for waiter in waiters:
                    waiter.ended = True
                    waiter.grown.set()
        self._wake()
        if thread is not None and thread is not threading.current_thread():
            thread.join(10)  # bounded: a notify may wait for a lock that the closing thread holds
        with self._lock:
            if thread is not None and not thread.is_alive():
                os.close(self._wake_read)
                os.close(self._wake_write)
                self._wake_read = self._wake_write = -1


def _call(notify: Callable[[], None]) -> None:
    try:
        notify()
    except BaseException:  # none of them may end the one thread that watches for all leases
        _log.exception("the notify function of a lease raised")
