"""The write path to an SQLite file: one waiting thread commits for all the others (group
commit)."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar, cast

from holdfast.errors import HoldfastError, StoreError
from holdfast.processes import OwnerProcess
from holdfast.store.sqlite.files import connect, trouble
from holdfast.store.sqlite.schema import LARGE_WAL_PAGES, format_of_locked

T = TypeVar("T")

# Seconds between two checks that the file is still the one that was opened. A stat takes 5 % of the
# time of a small append.
_CHECK_SECONDS = 0.05
# The number of jobs in one commit that makes a crowd. The committer waits for a crowd and lets its
# WAL grow larger.
_CROWD_JOBS = 8
_CROWD_WAIT_SECONDS = 0.002  # wait for a crowd; less than one fsync on most disks
# The part of a crowd that is enough to commit. With a larger part, threads that write rarely wait
# 1 ms longer.
_CROWD_SHARE = 0.75


class Job(Generic[T]):
    """One write, which any thread may run inside its transaction.

    `work` runs a second time if the first transaction was rolled back. A `HoldfastError` from it
    means that nothing was written. `mark` is, for an append: the conversation's number, its epoch,
    the last seq. Before a `final` job, such as the end of a run, the file is always checked.
    Without a later write, its loss would go unnoticed.
    """

    __slots__ = ("done", "error", "final", "gate", "mark", "result", "work")

    def __init__(
        self,
        work: Callable[[sqlite3.Cursor], T],
        mark: tuple[int, int, int] | None = None,
        final: bool = False,
    ) -> None:
        self.work = work
        self.mark = mark
        self.final = final
        self.done = False
        self.error: Exception | None = None
        self.result: T | None = None
        # The thread of the job waits at this lock, which `wake` releases.
        self.gate: threading.Lock | None = None

    def wake(self) -> None:
        """Wake the thread that waits for this job. Harmless if the thread is awake."""
        if self.gate is not None:
            with contextlib.suppress(RuntimeError):
                self.gate.release()


class Committer:
    """The writing connection of a store, and the queue of its jobs."""

    def __init__(self, path: Path, timeout: float) -> None:
        self._path = path
        self._timeout = timeout
        self.queue: deque[Job[object]] = deque()
        self.lock = threading.RLock()
        self.closed = False
        # Records the last append of each commit.
        self.mark: Callable[[int, int, int], None] | None = None
        self._process = OwnerProcess()
        self.db = connect(path, timeout)
        # One cursor for all statements: creating one per statement is a tenth of an append's time.
        self._cursor = self.db.cursor()
        self._file = self._log = (0, 0)
        self._checked_at = 0.0
        self._crowd = 0  # jobs per commit, recently
        self._large_wal = False

    def remember_file(self) -> None:
        """Remember the identity of the file and its -wal; both must stay the same from now on."""
        self._file = _inode(str(self._path))
        self._log = _inode(f"{self._path}-wal")

    def run(self, job: Job[T]) -> T:
        """Run a job in a transaction with all other queued jobs, and return its result."""
        if not self._process.here:
            self._process.check(f"Store {str(self._path)!r}")
        lock = self.lock
        try:
            self.queue.append(job)  # pyright: ignore[reportArgumentType]
            while not job.done:
                finished_jobs: Sequence[Job[object]] | None = None
                try:
                    # Never block here: a hundred threads that queue for the lock, only to see that
                    # their job is done, cost a hundred thread switches.
                    if lock.acquire(False):
                        finished_jobs = () if job.done else self._commit()
                finally:
                    # Ask the lock itself: Ctrl-C may come between acquiring it and a note of that.
                    if lock._is_owned():  # pyright: ignore
                        lock.release()
                if finished_jobs is None:
                    self._wait(job)
                    continue
                for other in finished_jobs:
                    if other is not job:
                        other.wake()
                if self.queue:
                    self._wake_next()
        except BaseException:
            # Ctrl-C: no later commit may write a job that the caller saw as interrupted.
            with self.lock:
                if job in self.queue:
                    self.queue.remove(job)  # pyright: ignore[reportArgumentType]
            if self.queue:
                self._wake_next()
            raise
        if job.error is not None:
            raise job.error
        return cast(T, job.result)

    def script(self, statements: str) -> None:
        """Run statements outside the queue, each in its own transaction. Raises `StoreError`."""
        self._process.check(f"Store {str(self._path)!r}")
        try:
            with self.lock:
                self._check()
                self.db.executescript(statements)
        except sqlite3.Error as error:
            raise trouble(self._path, error, self._timeout) from error
        finally:
            if self.queue:
                self._wake_next()

    def _wait(self, job: Job[T]) -> None:
        """Wait until this job is written or at the head of the queue."""
        if job.gate is None:
            gate = threading.Lock()
            gate.acquire()
            # Check again before waiting: a thread that finished before it saw the gate woke no
            # other.
            job.gate = gate
        else:
            # The timeout covers a committing thread that Ctrl-C kept from waking the others.
            job.gate.acquire(timeout=0.05)

    def _wake_next(self) -> None:
        with contextlib.suppress(IndexError):  # another thread took it
            self.queue[0].wake()

    def _commit(self) -> list[Job[object]]:
        """Write all queued jobs and return them. The caller holds the lock."""
        jobs: list[Job[object]] = []
        tried = False
        if self._crowd > _CROWD_JOBS:
            self._gather()
        try:
            while self.queue:
                jobs.append(self.queue.popleft())
            tried = True
            self._transact(jobs)
        finally:
            # Jobs that arrived meanwhile do not count: a few more would share a commit, but all
            # threads would wait longer where each writes rarely.
            self._crowd = max(len(jobs), self._crowd // 2)
            for job in jobs:
                if not tried:
                    job.error = self._interruption_error()
                job.done = True
        return jobs

    def _gather(self) -> None:
        """Wait briefly for the threads of the last commit, so that they share the next one."""
        if not self._large_wal and not self.closed:
            self._large_wal = True
            with contextlib.suppress(sqlite3.Error):  # the commit of a crowd writes a hundred pages
                self.db.execute(f"PRAGMA wal_autocheckpoint = {LARGE_WAL_PAGES}")
        until = time.monotonic() + _CROWD_WAIT_SECONDS
        while len(self.queue) < self._crowd * _CROWD_SHARE and time.monotonic() < until:
            time.sleep(0.00005)

    def _transact(self, jobs: Sequence[Job[object]]) -> None:
        """Run jobs in one transaction; if one of them fails to write, each in its own."""
        has_begun, has_written, rolled_back = False, False, True
        try:
            checked = time.monotonic() - self._checked_at < _CHECK_SECONDS
            if self.closed or not checked or any(job.final for job in jobs):
                self._check()
            db = self._cursor
            db.execute("BEGIN IMMEDIATE")
            has_begun = True
            try:
                for job in jobs:
                    try:
                        job.result = job.work(db)
                    except HoldfastError as error:
                        job.error = error
                has_written = True
                db.execute("COMMIT")
            finally:
                rolled_back = self.db.in_transaction
                if rolled_back:
                    db.execute("ROLLBACK")
            self._mark(jobs)
        except Exception as error:
            sure = not has_written or self._unwrite(error)
            if has_begun and len(jobs) > 1 and sure:
                for job in jobs:
                    job.error = None
                    self._transact([job])
                return
            for job in jobs:
                if isinstance(error, StoreError):
                    job.error = StoreError(*error.args)
                else:
                    job.error = trouble(self._path, error, self._timeout, sure=sure)
                job.error.__cause__ = error
        except BaseException:  # Ctrl-C on a thread that also commits for others
            if rolled_back:
                for job in jobs:
                    job.error = self._interruption_error()
            raise

    def _mark(self, jobs: Sequence[Job[object]]) -> None:
        """Record the last committed append in the owner file, even if the disk refuses that."""
        if self.mark is None:
            return
        for job in reversed(jobs):
            if job.mark is not None and job.error is None:
                with contextlib.suppress(OSError):
                    self.mark(*job.mark)
                return

    def _unwrite(self, error: Exception) -> bool:
        """Make the frames of a failed COMMIT unreadable. Return False if that failed too and the
        outcome is unknown.

        After a failed fsync the whole transaction stands in the WAL. SQLite does not see it
        until it reads the WAL anew after a crash. Writing a transaction of one page overwrites
        its first frame; the checksums of the remaining frames then no longer match.
        """
        code = getattr(error, "sqlite_errorcode", 0)
        if code == sqlite3.SQLITE_IOERR_WRITE or code & 0xFF in (
            sqlite3.SQLITE_FULL,
            sqlite3.SQLITE_BUSY,
        ):
            return True  # the transaction was not written completely
        try:
            # The value stays, but its page is written; an UPDATE without a change writes nothing.
            # It is read first: a newer Holdfast may have migrated the file since it was opened.
            self.db.execute("BEGIN IMMEDIATE")
            try:
                format = format_of_locked(self.db)
                self.db.execute(f"PRAGMA user_version = {format}")
                self.db.execute("COMMIT")
            finally:
                if self.db.in_transaction:
                    self.db.execute("ROLLBACK")
        except sqlite3.Error:
            return False
        return True

    def _interruption_error(self) -> StoreError:
        return StoreError(f"Store {str(self._path)!r}: the append was interrupted.")

    @property
    def is_file_gone(self) -> bool:
        """True if the store's file was removed or replaced since it was opened."""
        return _inode(str(self._path)) != self._file

    def _check(self) -> None:
        if self.closed:
            raise StoreError(f"Store {str(self._path)!r} is closed.")
        self._checked_at = time.monotonic()
        if self.is_file_gone:
            raise StoreError(
                f"Store {str(self._path)!r} was removed or replaced by another file while it was"
                " open. Nothing was written. Close this store and open it again."
            )
        log = _inode(f"{self._path}-wal")
        if log != self._log:
            # If no other process created a new -wal, ours can still be moved into the file.
            if log == (0, 0):
                with contextlib.suppress(sqlite3.Error):
                    self.db.execute("PRAGMA wal_checkpoint(FULL)")
            raise StoreError(
                f"The -wal of store {str(self._path)!r} was removed or replaced while it was open."
                " Nothing was written. Close this store in every process, run `holdfast check`,"
                " and open it again."
            )


def _inode(path: str) -> tuple[int, int]:
    """Return the device and inode of the file, (0, 0) if it does not exist."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return 0, 0
    return status.st_dev, status.st_ino
