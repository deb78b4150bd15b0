"""Who owns a lease: a locked file per owning store, so that the dead are known whatever their pid was reused for.

On one machine the lock (`flock`) tells: dead means lockable. Where it cannot - another machine's owner on a shared disk, a file system
without locks - the file's age does: a living owner touches it. Ages are compared on the disk's own clock, never with this machine's.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import threading
from pathlib import Path
from typing import NamedTuple

from holdfast.processes import OwnerProcess
from holdfast.store.marks import MARK_OFFSET, packed

_NAME = re.compile(r"\d+-[0-9a-f]+")
_NO_LOCKS = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.ENOSYS)


class Host(NamedTuple):
    """What a lock is known to reach: a running kernel by its boot id ("" where there is none to read), a machine by its name."""

    boot: str
    node: str

    @classmethod
    def this(cls) -> Host:
        """Where this process runs."""
        try:
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            boot = ""
        return cls(boot, os.uname().nodename)


class Owner:
    """A file in `folder`, locked (`flock`) for as long as this object's process lives and `close` was not called.

    `token` names it in the store: the file's name, the boot id and the node, with slashes between. One without slashes, as format 1
    had it, is of this machine. `lease_seconds` is the age at which an untouched file is dead where no lock tells. A child made by a
    bare `os.fork` shares the lock, as it shares every descriptor: until it ends too, the owner counts as living.
    """

    def __init__(self, folder: Path, lease_seconds: float = 30.0, host: Host | None = None) -> None:
        self._folder = folder
        self._lease_seconds = lease_seconds
        self._host = host or Host.this()
        self._guard = threading.Lock()
        self._process = OwnerProcess()
        self._name = f"{os.getpid()}-{os.urandom(8).hex()}"
        self.token = f"{self._name}/{self._host.boot}/{self._host.node}"
        # Locked before anyone can know the token: it is written to the store only after this.
        self._fd = self._create()

    def _create(self) -> int:
        path = self._folder / self._name
        while True:
            try:
                os.mkdir(path.parent)  # not Path.mkdir(exist_ok=True), which looks a second time
            except FileExistsError:
                pass
            try:
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:  # the last owner before us took the folder along just now
                if not path.parent.parent.is_dir():
                    raise
                continue
            try:
                _lock(fd)
                os.pwrite(fd, f"process {os.getpid()} on {self._host.node}".encode(), 0)
            except BaseException:
                path.unlink(missing_ok=True)
                os.close(fd)
                raise
            return fd

    def living(self, token: str) -> str | None:
        """How to name the owner of `token` if it lives, else None; what a dead one left is removed."""
        if token == self.token:
            return f"another Conversation in this process ({os.getpid()})"
        name, _, place = token.partition("/")
        if not _NAME.fullmatch(name):
            return None  # of no owner that there ever was
        path = self._folder / name
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            try:
                locked = _lock(fd)
            except BlockingIOError:
                living = True
            else:
                living = not (locked and self._within_reach(place)) and self._age(fd) <= self._lease_seconds
            if living:
                return os.pread(fd, 200, 0).rstrip(b"\0").decode(errors="replace") or "another process"
            path.unlink(missing_ok=True)
            return None
        finally:
            os.close(fd)

    def _within_reach(self, place: str) -> bool:
        """Whether a lock held there would be seen here."""
        boot, _, node = place.partition("/")
        return not place or (bool(boot) and boot == self._host.boot) or node == self._host.node

    def _age(self, fd: int) -> float:
        """Seconds since a file was touched, by the clock of the disk that it is on."""
        self.touch()
        return os.stat(self._folder / self._name).st_mtime - os.fstat(fd).st_mtime

    def touch(self) -> None:
        """Say that this owner lives. Makes its file anew if someone removed it."""
        if not self._process.here:
            return
        with self._guard:
            try:
                os.utime(self._folder / self._name)
            except FileNotFoundError:
                if self._fd >= 0:
                    fd, self._fd = self._fd, self._create()
                    os.close(fd)

    def mark(self, number: int, epoch: int, last_seq: int) -> None:
        """Note the last append that was written."""
        if self._fd >= 0:
            os.pwrite(self._fd, packed(number, epoch, last_seq), MARK_OFFSET)

    def close(self) -> None:
        """Unlock and remove the file. Idempotent; does nothing in a forked child."""
        if not self._process.here:
            return
        with self._guard:
            if self._fd >= 0:
                (self._folder / self._name).unlink(missing_ok=True)
                os.close(self._fd)
                self._fd = -1
                try:
                    self._folder.rmdir()  # the last one out takes the folder along
                except OSError:
                    pass


def _lock(fd: int) -> bool:
    """Lock a file; False where the file system knows no locks. Raises `BlockingIOError` if another holds it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return False
        raise
    return True
