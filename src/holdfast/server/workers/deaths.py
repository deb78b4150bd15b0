"""Handling of dead workers: a conversation continues in another worker, until too many workers
have died without progress."""

from __future__ import annotations

import signal
import threading

from holdfast import events as ev
from holdfast.content import ToolResult
from holdfast.conversation import ConversationStatus
from holdfast.conversation.calls import UNKNOWN
from holdfast.conversation.conversation import random_id
from holdfast.conversation.journal import Journal, utc_now
from holdfast.errors import StoreError
from holdfast.store import Store

# The number of deaths, without a new event between them, after which a run is given up, because the
# cause recurs.
MAX_DEATHS = 3


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
    known = -status in set(signal.Signals)
    return f"was ended by {signal.Signals(-status).name if known else f'signal {-status}'}"


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


def write_end(store: Store, id: str, how: str, times: int) -> bool:
    """End a run that kills its workers: answer started calls with an unknown outcome, then
    append ERROR and the reason. Return False if no run is in progress. Raises `StoreError`."""
    journal = Journal(store, id, utc_now, random_id, lambda: None)
    try:
        with journal:
            fold = journal.fold
            if fold.status is not ConversationStatus.RUNNING and not fold.asked:
                return False
            for item in list(fold.open.values()):
                if item.attempt and not item.runner:
                    text = f"The process that ran this call {how}. {UNKNOWN}"
                    result = ToolResult.failure(text, "unknown", meta={"outcome": "unknown"})
                    journal.add(ev.ToolCallFinished, call_id=item.call.id, result=result)
            message = (
                f"The worker process of this conversation {how}, as did {times - 1} before it,"
                " without getting any further."
            )
            name, details = WorkerDied.__name__, {"how": how, "times": times}
            journal.add(ev.ErrorRecorded, error=name, message=message, details=details)
            journal.add(ev.StatusChanged, status=ConversationStatus.ERROR.value, reason=name)
            return True
    finally:
        journal.close()
