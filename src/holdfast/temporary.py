"""`TemporaryFolder`: a folder that is removed with its owner, or by the next start if the owner
was killed."""

from __future__ import annotations

import atexit
import fcntl
import logging
import os
import shutil
import stat
import tempfile
from functools import lru_cache
from pathlib import Path

from holdfast.processes import OwnerProcess

_log = logging.getLogger("holdfast")

MARKER = ".holdfast-owner"
"""A file in each folder. Its owner holds a lock on it (`flock`) for as long as it lives."""
_MAGIC = b"holdfast temporary folder\n"
_LOGGED = b"its work was named in the log\n"


class TemporaryFolder:
    """A new folder below the system's temporary one, removed by `close`, or when the process that
    made it exits.

    `work` names a folder below it that will hold user data, or is "." for all of it. A killed
    owner's folder with user data in it is never removed: the log names it once.
    """

    def __init__(self, prefix: str = "holdfast-", work: str = "") -> None:
        self._process = OwnerProcess()
        root = tempfile.gettempdir()
        _sweep_once(root, os.getpid())
        self.path = Path(os.path.realpath(tempfile.mkdtemp(prefix=prefix, dir=root)))
        self._closed = False
        # Locked before its text is written: a marker without text is never taken for a dead
        # owner's.
        self._lock = os.open(
            self.path / MARKER, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
        )
        try:
            # waits for a sweeping process that looks at the empty marker now
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            os.write(self._lock, _MAGIC + os.fsencode(work) + b"\n")
        except OSError:
            # A file system without locks: no process can tell whether the owner lives, so none
            # removes the folder.
            pass
        atexit.register(self.close)

    def close(self) -> None:
        """Remove the folder. Idempotent; does nothing in a forked child."""
        if self._closed or not self._process.here:
            return
        self._closed = True
        atexit.unregister(self.close)
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def sweep(root: str) -> list[Path]:
    """Remove the folders below `root` whose owners are dead, and return their paths.

    Only a folder with a marker that can be locked is touched. A folder with user data in it
    stays; the log names it the first time.
    """
    removed_paths: list[Path] = []
    try:
        with os.scandir(root) as entries:
            folders = [entry.path for entry in entries if entry.name.startswith("holdfast-")]
    except OSError:
        return removed_paths
    for path in folders:
        try:
            if _remove_if_dead(path):
                removed_paths.append(Path(path))
        except OSError:  # another user's folder, or gone meanwhile
            continue
    return removed_paths


@lru_cache(maxsize=4)
def _sweep_once(root: str, pid: int) -> None:
    """Sweep once per process: a program may make thousands of folders."""
    sweep(root)


def _remove_if_dead(path: str) -> bool:
    folder = os.lstat(path)
    if not stat.S_ISDIR(folder.st_mode) or folder.st_uid != os.geteuid():
        return False
    marker = os.path.join(path, MARKER)
    fd = os.open(marker, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        # raises BlockingIOError, an OSError, while the owner lives
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        mine = os.fstat(fd)
        # another process swept it just now
        if not stat.S_ISREG(mine.st_mode) or not os.path.samestat(mine, os.lstat(marker)):
            return False
        text = os.pread(fd, 10_000, 0)
        if not text.startswith(_MAGIC) or text.count(b"\n") < 2:
            return False
        work = os.fsdecode(text[len(_MAGIC) :].split(b"\n")[0])
        with_work = os.path.join(path, work)
        names = os.listdir(with_work) if work and os.path.lexists(with_work) else []
        if any(name != MARKER for name in names):
            if _LOGGED not in text:
                os.pwrite(fd, _LOGGED, len(text))
                _log.warning(
                    "A process that was killed left work in %s. It is kept; remove the folder when"
                    " you do not need it.",
                    path,
                )
            return False
        shutil.rmtree(path, ignore_errors=True)
        return True
    finally:
        os.close(fd)
