"""The events that follow a fork's shared events or a copied state: they settle the calls that
were open there."""

from __future__ import annotations

from collections.abc import Callable

from holdfast import events as ev
from holdfast.content import ToolResult
from holdfast.conversation.fold import Fold
from holdfast.conversation.journal import Clock
from holdfast.conversation.status import ConversationStatus

CONTINUED = (
    "This conversation was continued from a saved state in which this call had begun and had no"
    " result. Its outcome is unknown: the original may have run it, in part or whole. Check what is"
    " there before you repeat it."
)
COPIED = (
    "It was approved in the conversation that this one was continued from; a copy needs an approval"
    " of its own."
)

FORKED = (
    "Not run here: this conversation was forked from another before this call began. The other may"
    " have run it since; check before repeating it."
)
FORKED_RUNNING = (
    "This conversation was forked from another in which this call had begun and had no result. Its"
    " outcome is unknown: it may have happened there, in part or whole. Check what is there before"
    " you repeat it."
)


def fork_events(state: Fold, clock: Clock, new_id: Callable[[], str]) -> list[ev.AnyEvent]:
    """Return the events that follow a state in its fork: they close every open call."""
    found: list[ev.AnyEvent] = []
    for item in state.open.values():
        result = (
            _unknown(FORKED_RUNNING) if item.attempt else ToolResult.failure(FORKED, "cancelled")
        )
        seq = state.last_seq + len(found) + 1
        found.append(
            ev.ToolCallFinished(
                seq=seq, id=new_id(), timestamp=clock(), call_id=item.call.id, result=result
            )
        )
    if state.status is ConversationStatus.WAITING_FOR_CONFIRMATION:  # no call waits any more
        found.append(
            ev.StatusChanged(
                seq=state.last_seq + len(found) + 1,
                id=new_id(),
                timestamp=clock(),
                status=ConversationStatus.RUNNING.value,
            )
        )
    return found


def copy_events(state: Fold, clock: Clock, new_id: Callable[[], str]) -> list[ev.AnyEvent]:
    """Return the events that follow a state in a copy of it: they close the calls that had begun,
    and ask again about approved ones."""
    found: list[ev.AnyEvent] = []
    left = len(state.open)
    for item in state.open.values():
        seq, call = state.last_seq + len(found) + 1, item.call
        if item.attempt:
            left -= 1
            result = _unknown(CONTINUED)
            found.append(
                ev.ToolCallFinished(
                    seq=seq, id=new_id(), timestamp=clock(), call_id=call.id, result=result
                )
            )
        elif item.approved:
            found.append(
                ev.DecisionMade(
                    seq=seq,
                    id=new_id(),
                    timestamp=clock(),
                    call_id=call.id,
                    decision="ask",
                    by="holdfast",
                    reason=COPIED,
                    arguments_hash=call.arguments_hash,
                    risk=item.risk,
                )
            )
    # no call waits any more
    if not left and state.status is ConversationStatus.WAITING_FOR_CONFIRMATION:
        found.append(
            ev.StatusChanged(
                seq=state.last_seq + len(found) + 1,
                id=new_id(),
                timestamp=clock(),
                status=ConversationStatus.RUNNING.value,
            )
        )
    return found


def _unknown(why: str) -> ToolResult:
    return ToolResult.failure(why, "unknown", meta={"outcome": "unknown"})
