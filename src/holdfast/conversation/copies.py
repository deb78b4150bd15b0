"""The events that follow a fork's shared events or a copied state: they settle the calls that
were open there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast import events as ev
from holdfast.content import ToolResult
from holdfast.conversation.fold import Fold, OpenCall
from holdfast.conversation.journal import Clock
from holdfast.conversation.status import ConversationStatus
from holdfast.errors import ConversationClosed
from holdfast.labels import check_title, fork_title

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

NOT_COPIED = "a fork or a copy has no timers of its own until it sets some"
NOT_ANSWERED_HERE = "It was asked in the conversation that this one was continued from."


def fork_events(
    state: Fold, clock: Clock, new_id: Callable[[], str], title: str | None = None
) -> list[ev.AnyEvent]:
    """Return the events that follow a state in its fork: they close every open call, and name the
    fork, by default after its origin. With the title "" it keeps the name."""

    def settle(item: OpenCall) -> dict[str, Any]:
        result = ToolResult.failure(FORKED, "cancelled")
        return {"result": _unknown(FORKED_RUNNING) if item.attempt else result}

    events = _closing_events(state, clock, new_id, settle)
    title = fork_title(state.title) if title is None and state.title else title
    if title:
        title, seq = check_title("fork", title), state.last_seq + len(events) + 1
        time = clock()
        label = ev.ConversationLabelled(
            seq=seq, id=new_id(), timestamp=time, title=title, by="fork"
        )
        events.append(label)
    return events


def copy_events(state: Fold, clock: Clock, new_id: Callable[[], str]) -> list[ev.AnyEvent]:
    """Return the events that follow a state in a copy of it: they close the calls that had begun,
    and ask again about approved ones."""

    def settle(item: OpenCall) -> dict[str, Any]:
        if item.script:
            return {}  # it runs again, with the results that its calls have
        if item.attempt:
            return {"result": _unknown(CONTINUED)}
        if not item.approved:
            return {}
        hash, risk = item.call.arguments_hash, item.risk
        decision = {"decision": "ask", "by": "holdfast", "reason": COPIED}
        return {**decision, "arguments_hash": hash, "risk": risk}

    return _closing_events(state, clock, new_id, settle)


def _cancelled(state: Fold, add: Callable[..., None]) -> None:
    """Cancel the timers that the shared events have set, and settle the questions aside without an
    answer: each belongs to one conversation."""
    for timer in state.timers.by_id:
        add(ev.TimerCancelled, timer=timer, by="holdfast", reason=NOT_COPIED)
    for aside in state.asides.pending:
        error = ConversationClosed.__name__
        add(ev.AsideAnswered, aside=aside, error=error, failed=NOT_ANSWERED_HERE)


def _closing_events(
    state: Fold,
    clock: Clock,
    new_id: Callable[[], str],
    settle: Callable[[OpenCall], dict[str, Any]],
) -> list[ev.AnyEvent]:
    """Return the events that end the open parts of a copy. For each open call that is a result or a
    decision with the fields of `settle(call)`. The timers are cancelled, and the questions aside
    get an outcome.

    If no call is left open, no call waits any more.
    """
    events: list[ev.AnyEvent] = []
    open_count = len(state.open)

    def add(kind: Any, **fields: Any) -> None:
        seq = state.last_seq + len(events) + 1
        events.append(kind(seq=seq, id=new_id(), timestamp=clock(), **fields))

    # the calls of a script end before the call whose script it is
    for item in sorted(state.open.values(), key=lambda item: not item.parent):
        if fields := settle(item):
            open_count -= "result" in fields
            kind = ev.ToolCallFinished if "result" in fields else ev.DecisionMade
            add(kind, call_id=item.call.id, **fields)
    _cancelled(state, add)
    if not open_count and state.status is ConversationStatus.WAITING_FOR_CONFIRMATION:
        add(ev.StatusChanged, status=ConversationStatus.RUNNING.value)
    return events


def _unknown(why: str) -> ToolResult:
    return ToolResult.failure(why, "unknown", meta={"outcome": "unknown"})
