"""The status of a conversation."""

from __future__ import annotations

from enum import StrEnum


class ConversationStatus(StrEnum):
    """The status of a conversation. The transition table is in `docs/architecture.md`."""

    IDLE = "idle"
    RUNNING = "running"
    WAITING_FOR_CONFIRMATION = "waiting_for_confirmation"
    PAUSED = "paused"
    FINISHED = "finished"
    STUCK = "stuck"
    ERROR = "error"
    CLOSED = "closed"


# A message to a conversation at rest begins a new run.
AT_REST = frozenset(
    (
        ConversationStatus.IDLE,
        ConversationStatus.FINISHED,
        ConversationStatus.STUCK,
        ConversationStatus.ERROR,
    )
)

# The statuses that an event may record: an object is closed, a conversation is not.
STATUSES = frozenset(status.value for status in ConversationStatus) - {ConversationStatus.CLOSED}
