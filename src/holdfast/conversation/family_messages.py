"""Messages between the conversations of a family: the conversations above one, and the number of
messages that it may still send."""

from __future__ import annotations

import threading
from datetime import datetime

import msgspec

from holdfast.conversation.delegated_children import tool_refusal
from holdfast.conversation.delegation_state import last_word, sends
from holdfast.conversation.journal import Journal
from holdfast.object_struct import ObjectStruct

_MAX_ANCESTORS = 1000  # depth of ancestors; a deeper chain can only be a cycle
_PAGE_EVENTS = 200  # events of another conversation per read


def ancestors(journal: Journal, id: str) -> list[str]:
    """Return a conversation and its ancestors, the root last."""
    chain = [id]
    while len(chain) < _MAX_ANCESTORS:
        key = journal.spawned_by if chain[-1] == journal.id else ""
        summaries = [] if key else journal.store.list([chain[-1]])
        above = key.rpartition(":")[0] or (summaries[0].spawner if summaries else "")
        if not above or above in chain:
            break
        chain.append(above)
    return chain


class MessageLimit(ObjectStruct):
    """The messages of one conversation to others, of which so many may be sent between two messages
    of the user. Thread-safe."""

    _journal: Journal
    _lock: threading.Lock = msgspec.field(default_factory=threading.Lock)
    _sent_times: list[datetime] | None = None  # read from the journal at the first message

    def count(self) -> None:
        """Count a message that was sent now."""
        with self._lock:
            if self._sent_times is not None:
                self._sent_times.append(self._journal.clock())

    def check(self, most: int) -> None:
        """Raise `ToolError` if no message may be sent until the user's next one."""
        journal = self._journal
        with self._lock:
            times = self._sent_times
        if times is None:
            with journal.lock:
                events = list(journal.events) if journal.fold.assistant is not None else []
            times = sends(events)
            with self._lock:
                self._sent_times = times = times if self._sent_times is None else self._sent_times
        if len(times) < most:
            return
        words = [self._last_word(id) for id in ancestors(journal, journal.id)]
        since = max([word for word in words if word is not None], default=None)
        with self._lock:
            self._sent_times = times = [at for at in times if since is None or at >= since]
        if len(times) >= most:
            raise tool_refusal(
                f"This conversation has sent {len(times)} messages to others since the user's last"
                " message, and may send no more until the next one. Do not try again: finish with"
                " what you have, and say what is still open.",
                "rate_limit",
            )

    def _last_word(self, id: str) -> datetime | None:
        journal = self._journal
        if id == journal.id:
            with journal.lock:
                return last_word(journal.events)
        summaries = journal.store.list([id])
        at = summaries[0].last_seq if summaries else 0
        while at > 0:
            at -= _PAGE_EVENTS
            page = journal.store.read(id, max(0, at), _PAGE_EVENTS + min(0, at))
            if (word := last_word(page)) is not None:
                return word
        return None
