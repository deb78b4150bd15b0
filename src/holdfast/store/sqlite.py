"""Journals in one SQLite file: the embedded default."""

from __future__ import annotations

import sqlite3
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeVar

from holdfast import events as ev
from holdfast.errors import ConfigurationError, ConversationNotFound, Fenced, LeaseHeld, StoreError
from holdfast.events import AnyEvent
from holdfast.store.base import Lease, Summary, check_dense
from holdfast.store.owner import Owner

T = TypeVar("T")

FORMAT = 1  # PRAGMA user_version; a file of a higher one was written by a newer Holdfast
_APPLICATION = 0x486F6C64  # "Hold"

# One clustered tree for all events: the key is (conversation number << 32) + seq, so that a journal is a range.
# AUTOINCREMENT: a deleted conversation's number is never given to another, whose epoch an old lease might fit.
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS conversations (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, epoch INTEGER NOT NULL, holder TEXT NOT NULL,
    last_seq INTEGER NOT NULL, status TEXT NOT NULL, title TEXT NOT NULL, created TEXT NOT NULL, updated TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS events (key INTEGER PRIMARY KEY, crc INTEGER NOT NULL, data BLOB NOT NULL);
PRAGMA application_id = {_APPLICATION};
PRAGMA user_version = {FORMAT};
"""

_MOVE = "UPDATE conversations SET last_seq = ?, status = ?, title = ?, updated = ? WHERE number = ? AND epoch = ? AND last_seq = ?"

# One statement, so that `last_seq` and the rows are of one moment.
_READ = """
SELECT last_seq, key & 0xFFFFFFFF, crc, data FROM conversations LEFT JOIN events
    ON key > (number << 32) + ? AND key < (number + 1) << 32 WHERE id = ? ORDER BY key
"""


class _Job:
    __slots__ = ("done", "error", "events", "lease", "number", "rows", "summary")

    def __init__(self, lease: Lease, number: int, events: Sequence[AnyEvent], summary: Summary) -> None:
        self.lease = lease
        self.number = number
        self.events = events
        self.summary = summary
        base = number << 32
        self.rows = [(base + event.seq, zlib.crc32(data := ev.encode(event)), data) for event in events]
        self.done = False
        self.error: Exception | None = None


class SQLiteStore:
    """A `Store` in the SQLite file `path` (WAL), shared by any threads and processes of one host.

    With `durability="durable"` (default) an event is on the disk when `append` returns; appends that wait at the same time share one
    fsync. `"process"` does without: it survives the death of the process, not of the machine. `timeout` is how many seconds to wait
    for another process that writes. A process that forks opens its own store in the child. Raises `StoreError` if the file cannot be
    opened, is no store, or was written by a newer Holdfast.
    """

    def __init__(self, path: str | Path, durability: Literal["durable", "process"] = "durable", *, timeout: float = 30.0) -> None:
        if durability not in ("durable", "process"):
            raise ConfigurationError(f"durability takes 'durable' or 'process', not {durability!r}.")
        if not isinstance(path, str | Path) or not str(path):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
            raise ConfigurationError(f"path takes a file's path, not {path!r}.")
        if str(path) == ":memory:":
            raise ConfigurationError("path takes a file's path. MemoryStore() keeps journals in memory.")
        self.path = Path(path).absolute()  # as of now: the process may change its folder
        self._timeout = timeout
        self._queue: deque[_Job] = deque()
        self._write_lock = threading.Lock()
        self._read_lock = threading.Lock()
        self._numbers: dict[str, int] = {}
        self._owner: Owner | None = None
        self._closed = False
        if self.path.is_dir() or not self.path.parent.is_dir():
            what = "is a folder" if self.path.is_dir() else "is in a folder that does not exist"
            raise StoreError(f"Store {str(self.path)!r} {what}. path takes a file; it is made if it is not there.")
        if self.path.exists() and self.path.stat().st_size == 1:
            # SQLite takes a file of one byte for a new one and writes over it.
            raise StoreError(f"{str(self.path)!r} is not a Holdfast store.")
        self._writer = self._open()
        try:
            self._prepare(durability)
            self._reader = self._open()
        except BaseException:
            self._writer.close()
            raise

    def _open(self) -> sqlite3.Connection:
        try:
            # cached_statements: every statement here is prepared once and stays.
            return sqlite3.connect(self.path, timeout=self._timeout, isolation_level=None, check_same_thread=False, cached_statements=64)
        except sqlite3.Error as error:
            raise StoreError(f"Store {str(self.path)!r} cannot be opened: {error}.") from error

    def _prepare(self, durability: str) -> None:
        db = self._writer
        try:
            db.execute("BEGIN")  # one look: another process may be making the file right now
            version = db.execute("PRAGMA user_version").fetchone()[0]
            application = db.execute("PRAGMA application_id").fetchone()[0]
            empty = db.execute("SELECT 1 FROM sqlite_master").fetchone() is None
            db.execute("COMMIT")
            if version > FORMAT and application == _APPLICATION:
                raise StoreError(f"Store {str(self.path)!r} was written by a newer Holdfast (format {version}, this one reads {FORMAT}).")
            if application != _APPLICATION and not (application == 0 and empty):
                raise StoreError(f"{str(self.path)!r} is an SQLite file, but not a Holdfast store.")
            self._use_wal()
            db.execute(f"PRAGMA synchronous = {'FULL' if durability == 'durable' else 'NORMAL'}")
            # A WAL that grows makes every fsync write metadata too; one that is used again and again from 400 KB on costs a quarter less.
            db.execute("PRAGMA wal_autocheckpoint = 100")
            if application == 0:
                db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
        except sqlite3.Error as error:
            raise StoreError(f"Store {str(self.path)!r} cannot be used: {error}.") from error

    def _use_wal(self) -> None:
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                self._writer.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                # Of several processes that open a new file at once, some are told so at once, whatever the timeout.
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.005)

    # --- leases ---

    def acquire(self, conversation_id: str) -> Lease:
        """See `Store.acquire`."""

        def take(db: sqlite3.Connection) -> Lease:
            owner = self._own()
            now = datetime.now(UTC).isoformat()
            row = db.execute("SELECT number, epoch, holder FROM conversations WHERE id = ?", (conversation_id,)).fetchone()
            if row is None:
                inserted = db.execute(
                    "INSERT INTO conversations (id, epoch, holder, last_seq, status, title, created, updated)"
                    " VALUES (?, 1, ?, 0, 'idle', '', ?, ?)",
                    (conversation_id, owner.token, now, now),
                )
                self._numbers[conversation_id] = int(inserted.lastrowid or 0)
                return Lease(conversation_id, 1)
            number, epoch, holder = row
            if holder and (living := owner.living(holder)):
                raise LeaseHeld(conversation_id, living)
            db.execute("UPDATE conversations SET epoch = ?, holder = ? WHERE number = ?", (epoch + 1, owner.token, number))
            self._numbers[conversation_id] = number
            return Lease(conversation_id, epoch + 1)

        return self._write(take)

    def release(self, lease: Lease) -> None:
        """See `Store.release`."""

        def give_back(db: sqlite3.Connection) -> None:
            # The epoch rises, so that nothing can be written under what was given back.
            query = "UPDATE conversations SET holder = '', epoch = epoch + 1 WHERE id = ? AND epoch = ?"
            if db.execute(query, (lease.conversation_id, lease.epoch)).rowcount:
                self._numbers.pop(lease.conversation_id, None)

        if not self._closed:
            self._write(give_back)

    def _own(self) -> Owner:
        if self._owner is None:
            # Beside the file itself: a link to it must lead to the same owners.
            self._owner = Owner(Path(f"{self.path.resolve()}-owners"))
        return self._owner

    # --- events ---

    def append(self, lease: Lease, events: Sequence[AnyEvent], summary: Summary) -> None:
        """See `Store.append`. One of the threads that wait commits for all of them."""
        check_dense(events)
        try:
            job = _Job(lease, self._numbers.get(lease.conversation_id, 0), events, summary)
        except Exception as error:
            raise StoreError(f"Conversation {lease.conversation_id!r}: an event is not JSON: {error}. Nothing was written.") from error
        try:
            self._queue.append(job)
            with self._write_lock:
                if not job.done:
                    self._commit()
        except BaseException:  # Ctrl-C: no later commit may write what the caller was told is broken off
            with self._write_lock:
                if job in self._queue:
                    self._queue.remove(job)
            raise
        if job.error is not None:
            raise job.error
        if not job.done:
            raise self._broken_off()

    def _commit(self) -> None:
        """Write whatever is queued. Holds the write lock."""
        jobs: list[_Job] = []
        try:
            while self._queue:
                jobs.append(self._queue.popleft())
            self._transact(jobs)
        finally:
            for job in jobs:
                job.done = True

    def _transact(self, jobs: Sequence[_Job]) -> None:
        """Write jobs in one transaction; if one of them cannot be written, each in its own, so that it fails alone."""
        begun, lost = False, True
        try:
            db = self._open_writer()
            db.execute("BEGIN IMMEDIATE")
            begun = True
            try:
                for job in jobs:
                    job.error = self._apply(db, job)
                db.execute("COMMIT")
            finally:
                lost = db.in_transaction
                if lost:
                    db.execute("ROLLBACK")
        except Exception as error:
            if begun and len(jobs) > 1:
                for job in jobs:
                    self._transact([job])
                return
            for job in jobs:
                job.error = StoreError(*error.args) if isinstance(error, StoreError) else self._trouble(error)
                job.error.__cause__ = error
        except BaseException:  # Ctrl-C, on a thread that commits for others too
            if lost:
                for job in jobs:
                    job.error = self._broken_off()
            raise

    def _apply(self, db: sqlite3.Connection, job: _Job) -> Exception | None:
        number, epoch, summary, events = job.number, job.lease.epoch, job.summary, job.events
        if events:
            first, last = events[0], events[-1]
            updated = (summary.updated or last.timestamp).isoformat()
            if db.execute(_MOVE, (last.seq, summary.status, summary.title, updated, number, epoch, first.seq - 1)).rowcount:
                if first.seq == 1:
                    created = (summary.created or first.timestamp).isoformat()
                    db.execute("UPDATE conversations SET created = ? WHERE number = ?", (created, number))
                db.executemany("INSERT INTO events (key, crc, data) VALUES (?, ?, ?)", job.rows)
                return None
        row = db.execute("SELECT last_seq FROM conversations WHERE number = ? AND epoch = ?", (number, epoch)).fetchone()
        what = f"Conversation {job.lease.conversation_id!r}"
        if row is None:
            return Fenced(f"{what} was taken over; epoch {epoch} may not write any more.")
        if not events:
            return None
        return StoreError(f"{what}: event {events[0].seq} does not follow event {row[0]}. Nothing was written.")

    def read(self, conversation_id: str, after_seq: int = 0) -> list[AnyEvent]:
        """See `Store.read`. Raises `StoreError` naming the first event that is damaged or missing."""
        after_seq = max(after_seq, 0)
        rows = self._read(lambda db: db.execute(_READ, (after_seq, conversation_id)).fetchall())
        found: list[AnyEvent] = []
        expected = after_seq + 1
        for _, seq, crc, data in rows:
            if seq is None:  # a conversation without events after `after_seq`
                break
            if seq != expected or type(data) is not bytes or zlib.crc32(data) != crc:
                raise self._damaged(conversation_id, expected)
            try:
                found.append(ev.decode(data))
            except ValueError as error:
                raise self._damaged(conversation_id, expected) from error
            expected += 1
        if rows and expected <= rows[0][0]:
            raise self._damaged(conversation_id, expected)
        return found

    def list(self) -> list[Summary]:
        """See `Store.list`."""
        query = (
            "SELECT id, status, title, last_seq, created, updated FROM conversations WHERE last_seq > 0 ORDER BY updated DESC, number DESC"
        )
        rows = self._read(lambda db: db.execute(query).fetchall())
        return [
            Summary(id, status, title, seq, datetime.fromisoformat(created), datetime.fromisoformat(updated))
            for id, status, title, seq, created, updated in rows
        ]

    def delete(self, conversation_id: str) -> None:
        """See `Store.delete`."""

        def remove(db: sqlite3.Connection) -> None:
            row = db.execute("SELECT number, holder FROM conversations WHERE id = ?", (conversation_id,)).fetchone()
            if row is None:
                raise ConversationNotFound(f"No conversation {conversation_id!r} in {str(self.path)!r}.")
            number, holder = row
            if holder and (living := self._own().living(holder)):
                raise LeaseHeld(conversation_id, living)
            db.execute("DELETE FROM events WHERE key > ? AND key < ?", (number << 32, (number + 1) << 32))
            db.execute("DELETE FROM conversations WHERE number = ?", (number,))

        self._write(remove)

    def close(self) -> None:
        """See `Store.close`. Idempotent."""
        with self._write_lock, self._read_lock:
            if self._closed:
                return
            self._closed = True
            self._reader.close()
            if self._owner is not None:
                try:
                    self._writer.execute("UPDATE conversations SET holder = '' WHERE holder = ?", (self._owner.token,))
                except sqlite3.Error:
                    pass  # the unlocked owner file says it as well
                self._owner.close()
            self._writer.close()

    def __enter__(self) -> SQLiteStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"SQLiteStore({str(self.path)!r})"

    # --- plumbing ---

    def _open_writer(self) -> sqlite3.Connection:
        if self._closed:
            raise StoreError(f"Store {str(self.path)!r} is closed.")
        return self._writer

    def _write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with self._write_lock:
            db = self._open_writer()
            try:
                db.execute("BEGIN IMMEDIATE")
                try:
                    found = work(db)
                    db.execute("COMMIT")
                except BaseException:
                    if db.in_transaction:
                        db.execute("ROLLBACK")
                    raise
            except StoreError:
                raise
            except (sqlite3.Error, OSError, UnicodeError) as error:  # also the owner's file, or an id that UTF-8 cannot hold
                raise self._trouble(error) from error
        return found

    def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with self._read_lock:
            if self._closed:
                raise StoreError(f"Store {str(self.path)!r} is closed.")
            try:
                return work(self._reader)
            except (sqlite3.Error, UnicodeError) as error:
                raise StoreError(f"Store {str(self.path)!r} cannot be read: {error}.") from error

    def _trouble(self, error: Exception) -> StoreError:
        return StoreError(f"Store {str(self.path)!r}: {error}. Nothing was written.")

    def _broken_off(self) -> StoreError:
        return StoreError(f"Store {str(self.path)!r}: the append was broken off.")

    def _damaged(self, conversation_id: str, seq: int) -> StoreError:
        return StoreError(f"Store {str(self.path)!r}: event {seq} of conversation {conversation_id!r} is missing or damaged.")
