"""The outcome of a child conversation, for its parent's model and its watchers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from holdfast import events as ev
from holdfast.content import ToolCall, Usage
from holdfast.conversation.state import ConversationStatus, Fold

if TYPE_CHECKING:
    from holdfast.conversation.conversation import Conversation

_S = ConversationStatus

ENDED = frozenset((_S.FINISHED, _S.ERROR, _S.STUCK))
"""The statuses in which a child's run is over."""


class Outcome(NamedTuple):
    """The present status and result of a child."""

    id: str
    agent: str
    status: ConversationStatus
    seq: int  # the last event of the outcome
    answer: str
    error: ev.Error | None
    steps: int
    usage: Usage
    cost: float | None
    doing: str
    waits: tuple[ToolCall, ...]
    output: Any

    @classmethod
    def of(cls, child: Conversation, agent: str) -> Outcome:
        """Return the outcome of a child that is open here, or was just read."""
        state = child.state
        with child._journal.changed:  # pyright: ignore[reportPrivateUsage]
            fold = child._journal.fold  # pyright: ignore[reportPrivateUsage]
            status, seq = effective_status(fold), fold.status_seq
        calls = state.pending_calls
        doing = ", ".join(_title(call) for call in calls[:3])
        waits = tuple([pending.call for pending in state.pending_confirmations])
        output = getattr(state, "output", None)
        return cls(
            child.id,
            agent,
            status,
            seq,
            state.answer,
            state.error,
            state.steps,
            state.usage,
            state.cost,
            doing,
            waits,
            output,
        )

    def meta(self, background: bool = False) -> dict[str, Any]:
        """Return the `meta` entry for a result about the child."""
        found: dict[str, Any] = {
            "id": self.id,
            "agent": self.agent,
            "status": self.status.value,
            "steps": self.steps,
            "cost": self.cost,
            "inputTokens": self.usage.input_tokens,
            "outputTokens": self.usage.output_tokens,
            "seq": self.seq,
        }
        return {**found, "background": True} if background else found

    @property
    def progress(self) -> str:
        """The child's progress in one line."""
        steps = f"{self.steps} step{'' if self.steps == 1 else 's'}"
        if self.waits:
            return (
                f"{self.agent} ({self.id}): {steps}, waits for the user's approval of"
                f" {', '.join(map(_title, self.waits))}"
            )
        what = f", now {self.doing}" if self.doing and self.status is _S.RUNNING else ""
        return f"{self.agent} ({self.id}): {self.status.value.replace('_', ' ')}, {steps}{what}"

    @property
    def report(self) -> str:
        """The child's result in the words for the parent's model."""
        said = f" Its last words were:\n{self.answer}" if self.answer.strip() else ""
        steps = f"{self.steps} step{'' if self.steps == 1 else 's'}"
        match self.status:
            case _S.FINISHED:
                return (
                    self.answer
                    if self.output is None
                    else msgspec.json.encode(self.output).decode()
                )
            case _S.ERROR:
                why = (
                    "an error"
                    if self.error is None
                    else f"{self.error.error}: {self.error.message}"
                )
                limit = self.error is not None and self.error.error == "LimitExceeded"
                what = "came to a limit and did not finish" if limit else "failed"
                return f"{self.agent} {what} after {steps}: {why}{said}"
            case _S.STUCK:
                return (
                    f"{self.agent} got stuck after {steps} and did not finish. Give it a smaller"
                    f" task, or do it yourself.{said}"
                )
            case _S.PAUSED:
                return f"{self.agent} was stopped after {steps} and did not finish.{said}"
            case _:
                return f"{self.progress}."


def effective_status(fold: Fold) -> ConversationStatus:
    """Return a child's effective status.

    A child whose last answer came before its interrupt took effect is idle when it resumes; it
    counts as finished.
    """
    answered = (
        fold.status is _S.IDLE and fold.assistant is not None and not fold.owed and not fold.open
    )
    return _S.FINISHED if answered else fold.status


def has_ended(child: Conversation) -> bool:
    """Return True if a child has ended and none of its own children works."""
    if child.status is _S.CLOSED:
        return True
    driver = child._driver  # pyright: ignore[reportPrivateUsage]
    with child._journal.changed:  # pyright: ignore[reportPrivateUsage]
        fold = child._journal.fold  # pyright: ignore[reportPrivateUsage]
        rests = driver.failure is not None or (
            driver.resting and effective_status(fold) in ENDED and not fold.asked
        )
    return rests and not team_busy(child)


def close_inbox(child: Conversation) -> bool:
    """Refuse further messages to a child that has ended, so that it can be closed; return False
    if one arrived meanwhile."""
    child.drain_inbox()
    with child._journal.changed:  # pyright: ignore[reportPrivateUsage]
        if not has_ended(child):
            return False
        child._driver.calls.closing = True  # pyright: ignore[reportPrivateUsage]
        child._journal.changed.notify_all()  # pyright: ignore[reportPrivateUsage]
        return True


def team_busy(child: Conversation) -> bool:
    """Return True if one of the child's own children works in the background."""
    team = child._driver.team_made  # pyright: ignore[reportPrivateUsage]
    return team is not None and team.busy


def interruptible(child: Conversation) -> bool:
    """Return True if an interrupt stops the child, or has just done so. Takes no lock."""
    journal = child._journal  # pyright: ignore[reportPrivateUsage]
    if child.status is not _S.PAUSED:
        return child.status not in (*ENDED, _S.CLOSED, _S.IDLE) or team_busy(child)
    event = next((event for event in reversed(journal.tail) if isinstance(event, ev.Status)), None)
    return event is not None and event.reason == "interrupted"


def _title(call: ToolCall) -> str:
    text = " ".join(f"{call.name} {call.raw_arguments}".split())
    return text if len(text) <= 100 else text[:99] + "…"
