"""Owners of leases: a locked file per open store tells whether its process lives, even if the pid
was reused.

On one machine the lock (`flock`) decides: a file that can be locked has a dead owner. Locks do
not reach owners on another machine, or file systems without locks. There the age of the file
decides, which a living owner touches. Ages are compared on the disk's own clock, never on this
machine's.
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
from holdfast.store.sqlite.marks import MARK_OFFSET, pack

_NAME = re.compile(r"\d+-[0-9a-f]+")
_NO_LOCKS = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.ENOSYS)


class HostIdentity(NamedTuple):
    """The reach of a lock: a running kernel's boot id ("" if unknown) and a machine's name."""

    boot: str
    node: str

    @classmethod
    def this(cls) -> HostIdentity:
        """Return the host of this process."""
        try:
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            boot = ""
        return cls(boot, os.uname().nodename)


class Owner:
    """A file in `folder` that stays locked (`flock`) until this object's process ends or calls
    `close`.

    `token` names the file in the store: file name, boot id and node, separated by slashes. A
    token without slashes (format 1) belongs to this machine. Where no lock decides, a file
    untouched for `lease_seconds` has a dead owner. A child made by a bare `os.fork` shares the
    lock, like every descriptor: the owner counts as living until that child ends too.
    """

    def __init__(
        self, folder: Path, lease_seconds: float = 30.0, host: HostIdentity | None = None
    ) -> None:
        self._folder = folder
        self._lease_seconds = lease_seconds
        self._host = host or HostIdentity.this()
        self._guard = threading.Lock()
        self._process = OwnerProcess()
        self._name = f"{os.getpid()}-{os.urandom(8).hex()}"
        self.token = f"{self._name}/{self._host.boot}/{self._host.node}"
        # Lock the file before the token is written to the store, where others can read it.
        self._fd = self._create()

    def _create(self) -> int:
        path = self._folder / self._name
        while True:
            try:
                os.mkdir(path.parent)  # Path.mkdir(exist_ok=True) would stat a second time
            except FileExistsError:
                pass
            try:
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:  # the previous owner just removed the folder
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
        """Describe the owner of `token` if it lives, else remove its file and return None."""
        if token == self.token:
            return f"another Conversation in this process ({os.getpid()})"
        name, _, place = token.partition("/")
        if not _NAME.fullmatch(name):
            return None  # not the token of any owner
        path = self._folder / name
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            living = _lives(fd, place, self._host)
            if living is None:
                self.touch()  # the age by the clock of the disk
                now = os.stat(self._folder / self._name).st_mtime
                living = now - os.fstat(fd).st_mtime <= self._lease_seconds
            if living:
                return (
                    os.pread(fd, 200, 0).rstrip(b"\0").decode(errors="replace") or "another process"
                )
            path.unlink(missing_ok=True)
            return None
        finally:
            os.close(fd)

    def touch(self) -> None:
        """Renew the file's time as a sign of life. Creates the file again if it was removed."""
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
        """Record the last append that was written."""
        if self._fd >= 0:
            os.pwrite(self._fd, pack(number, epoch, last_seq), MARK_OFFSET)

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
                    self._folder.rmdir()  # the last owner removes the folder
                except OSError:
                    pass


def may_live(folder: Path, token: str) -> bool:
    """Return False if the owner of `token` has ended, as far as its lock tells. Unlike
    `Owner.living`, this function changes nothing and needs no owner of its own."""
    name, _, place = token.partition("/")
    if not _NAME.fullmatch(name):
        return False
    try:
        fd = os.open(folder / name, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:  # such as a file of another user
        return True
    try:
        return _lives(fd, place, HostIdentity.this()) is not False
    finally:
        os.close(fd)


def _lives(fd: int, place: str, host: HostIdentity) -> bool | None:
    """Return whether the owner with this open file and place lives, None if no lock decides."""
    try:
        locked = _lock(fd, fcntl.LOCK_SH)  # shared: two processes may look at the same time
    except BlockingIOError:
        return True
    boot, _, node = place.partition("/")
    here = not place or (boot and boot == host.boot) or node == host.node
    return False if locked and here else None  # a living owner's lock would have been seen


def _lock(fd: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Lock a file. Return False if the file system has no locks. Raises `BlockingIOError` if
    another process holds it."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return False
        raise
    return True
