"""Who owns a lease on this host: a locked file per owning store, so that the dead are known whatever their pid was reused for."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class Owner:
    """A file in `folder`, locked (`flock`) for as long as this object's process lives and `close` was not called.

    A child made by a bare `os.fork` shares the lock, as it shares every descriptor: until it ends too, the owner counts as living.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.token = f"{os.getpid()}-{os.urandom(8).hex()}"
        self._fd = self._create(folder / self.token)
        # Locked before anyone can know the token: it is written to the store only after this.
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(self._fd, f"process {os.getpid()} on {os.uname().nodename}".encode())
        except BaseException:
            self.close()
            raise

    @staticmethod
    def _create(path: Path) -> int:
        while True:
            try:
                os.mkdir(path.parent)  # not Path.mkdir(exist_ok=True), which looks a second time
            except FileExistsError:
                pass
            try:
                return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:  # the last owner before us took the folder along just now
                if not path.parent.parent.is_dir():
                    raise

    def living(self, token: str) -> str | None:
        """How to name the owner of `token` if it lives, else None; what a dead one left is removed."""
        if token == self.token:
            return f"another Conversation in this process ({os.getpid()})"
        path = self._folder / token
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return os.read(fd, 200).decode(errors="replace") or "another process"
        else:
            path.unlink(missing_ok=True)
            return None
        finally:
            os.close(fd)

    def close(self) -> None:
        """Unlock and remove the file. Idempotent."""
        if self._fd >= 0:
            (self._folder / self.token).unlink(missing_ok=True)
            os.close(self._fd)
            self._fd = -1
            try:
                self._folder.rmdir()  # the last one out takes the folder along
            except OSError:
                pass
