"""`OwnerProcess`: the process that an object belongs to. A fork copies objects, but not the
threads, locks and leases behind them."""

from __future__ import annotations

import os

from holdfast.errors import WrongProcess


class _Current:
    """The pid of this process, read once: a system call would cost too much per append."""

    __slots__ = ("pid",)

    def __init__(self) -> None:
        self.pid = os.getpid()


_current = _Current()
os.register_at_fork(after_in_child=_current.__init__)


class OwnerProcess:
    """The process in which this object was created. An object that owns a file, a lock, a lease or
    a thread has one.

    In a forked child the object's `close` does nothing, and its other methods raise
    `WrongProcess`.
    """

    __slots__ = ("_pid",)

    def __init__(self) -> None:
        self._pid = _current.pid

    @property
    def here(self) -> bool:
        """True in the process that owns the object."""
        return self._pid == _current.pid

    def check(self, what: str) -> None:
        """Raise `WrongProcess` unless this process owns the object, which `what` names."""
        if self._pid != _current.pid:
            raise WrongProcess(
                f"{what} belongs to process {self._pid}, of which this process ({_current.pid}) is"
                " a fork. It was not touched. Use it there, or make a new one here."
            )
