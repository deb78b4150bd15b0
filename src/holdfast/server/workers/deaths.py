"""Handling of dead workers: a conversation continues in another worker, until too many workers
have died without progress."""

from __future__ import annotations

import signal
import threading

from holdfast.errors import StoreError


class WorkerDied(StoreError):
    """The worker process of a conversation died or was killed; `how` is the reason. Other
    conversations are not affected."""

    def __init__(self, id: str, how: str) -> None:
        super().__init__(f"The worker process of conversation {id!r} {how}.")
        self.id = id
        self.how = how

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.id, self.how)


def how_it_ended(status: int | None) -> str:
    """Return a description of a process's exit status (see `Popen.returncode`)."""
    if status is None:
        return "could not be ended"
    if status >= 0:
        return f"ended with exit status {status}"
    is_signal = -status in set(signal.Signals)
    return f"was ended by {signal.Signals(-status).name if is_signal else f'signal {-status}'}"


class Deaths:
    """The number of workers of each conversation that have died since its last progress.
    Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._times: dict[str, int] = {}

    def count(self, id: str) -> int:
        """Count a death. Return the number of deaths."""
        with self._lock:
            self._times[id] = self._times.get(id, 0) + 1
            return self._times[id]

    def reset(self, id: str) -> None:
        """Reset the count, because the conversation made progress or was removed."""
        if self._times:
            with self._lock:
                self._times.pop(id, None)
