"""The facts about delegated children: those in their parent's journal, and the outcome of each."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from holdfast import events as ev
from holdfast.agent.delegation import CHILD, CHILDREN
from holdfast.content import ToolCall, Usage
from holdfast.conversation.fold import Fold
from holdfast.conversation.status import ConversationStatus

if TYPE_CHECKING:
    from holdfast.conversation.conversation import Conversation

_S = ConversationStatus

ENDED = frozenset((_S.FINISHED, _S.ERROR, _S.STUCK))
"""The statuses in which a child's run is over."""


STOPPED = "delegates:stopped"
"""The `about` of a `NoteRecorded` that lists, in `details["children"]`, the children that an
interrupt stopped with their parent."""
RESUMED = "delegates:resumed"
"""The `about` of a `NoteRecorded` that lists the stopped children that resumed with their
parent."""


class DelegatedChild(msgspec.Struct):
    """A child that was given work.

    `background` is True if the call did not wait for it. `known` is the seq of the child's last
    event whose outcome the model knows. `detached` is True if the child outlives its parent.
    """

    agent: str
    background: bool
    known: int = 0
    detached: bool = False
    stopped: bool = False  # stopped by an interrupt of its parent, with which it resumes


def children_of(parent: str, events: Sequence[ev.AnyEvent]) -> dict[str, DelegatedChild]:
    """Return the delegated children in a journal by id.

    The results of calls say which children were begun, whatever the calls' arguments were.
    """
    found: dict[str, DelegatedChild] = {}
    for event in events:
        match event:
            case ev.ToolCallFinished():
                child, id = _child_of(event), f"{parent}.{event.call_id}"
                # otherwise it belongs to the conversation that this one was forked from
                if child.get("id") == id:
                    found[id] = DelegatedChild(
                        str(child.get("agent", "")), child.get("background") is True
                    )
                for one in _listed(event.result.meta.get(CHILDREN)):
                    if one.get("collected") and one.get("id") in found:
                        found[one["id"]].known = _number(one.get("seq"))
            case ev.MessageAdded() if event.sender in found and event.id.startswith(
                f"{event.sender}@"
            ):
                found[event.sender].known = (
                    _number(event.id.rpartition("@")[2]) or found[event.sender].known
                )
            case ev.NoteRecorded() if event.about in (STOPPED, RESUMED):
                for id in cast("Sequence[Any]", event.details.get("children") or ()):
                    if id in found:
                        found[id].stopped = event.about == STOPPED
            case _:
                pass
    return found


def _number(value: Any) -> int:
    """Return an event's number; 0 for text that is not one, since ids and metas may hold
    anything."""
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0


def _listed(value: Any) -> list[dict[str, Any]]:
    return (
        [one for one in cast("list[Any]", value) if isinstance(one, dict)]
        if isinstance(value, list | tuple)
        else []
    )


def ids_of(arguments: dict[str, Any]) -> tuple[str, ...]:
    """Return the children that a call of `delegate_collect` waits for; an empty tuple means all."""
    ids = arguments.get("ids")
    return (
        (ids,)
        if isinstance(ids, str)
        else tuple(map(str, cast("list[Any]", ids)))
        if isinstance(ids, list)
        else ()
    )


def sends(events: Sequence[ev.AnyEvent]) -> list[datetime]:
    """Return the times at which a conversation sent messages to others."""
    calls: set[str] = set()  # ids of the last answer's `send_to` calls
    found: list[datetime] = []
    for event in events:
        if isinstance(event, ev.AssistantReplied):
            calls = {call.id for call in event.calls if call.name == "send_to"}
        elif (
            isinstance(event, ev.ToolCallFinished)
            and event.call_id in calls
            and not event.result.is_error
        ):
            found.append(event.timestamp)
    return found


def last_word(events: Sequence[ev.AnyEvent]) -> datetime | None:
    """Return the time of the user's last message."""
    return next(
        (
            event.timestamp
            for event in reversed(events)
            if isinstance(event, ev.MessageAdded) and event.sender == "user"
        ),
        None,
    )


def _child_of(event: ev.ToolCallFinished) -> dict[str, Any]:
    child = event.result.meta.get(CHILD)
    return cast("dict[str, Any]", child) if isinstance(child, dict) else {}


class ChildOutcome(NamedTuple):
    """The present status and result of a child."""

    id: str
    agent: str
    status: ConversationStatus
    seq: int  # the last event of the outcome
    answer: str
    error: ev.ErrorRecorded | None
    steps: int
    usage: Usage
    cost: float | None
    doing: str
    waits: tuple[ToolCall, ...]
    output: Any

    @classmethod
    def of(cls, child: Conversation, agent: str) -> ChildOutcome:
        """Return the outcome of a child that is open here, or was just read."""
        state, journal = child.state, child.hosting.journal
        with journal.changed:
            status, seq = effective_status(journal.fold), journal.fold.status_seq
        calls = state.pending_calls
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
            ", ".join(_title(call) for call in calls[:3]),
            tuple([pending.call for pending in state.pending_confirmations]),
            state.output,
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


def _title(call: ToolCall) -> str:
    text = " ".join(f"{call.name} {call.raw_arguments}".split())
    return text if len(text) <= 100 else text[:99] + "…"
