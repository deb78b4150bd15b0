"""The facts about delegated children: those in their parent's journal, and the outcome of each."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

import msgspec

from holdfast import events as ev
from holdfast.agent.delegation import CHILD, CHILDREN
from holdfast.content import ToolCall
from holdfast.conversation.fold import Fold
from holdfast.conversation.state import ConversationState
from holdfast.conversation.status import ConversationStatus
from holdfast.error_text import typed_text

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

    `background` is True if the call did not wait for it. `known_seq` is the seq of the child's last
    event whose outcome the model knows. `detached` is True if the child outlives its parent.
    """

    agent: str
    background: bool
    known_seq: int = 0
    detached: bool = False
    stopped: bool = False  # stopped by an interrupt of its parent, with which it resumes


def children_of(parent: str, events: Sequence[ev.AnyEvent]) -> dict[str, DelegatedChild]:
    """Return the delegated children in a journal by id.

    The results of calls name the children that were begun; the calls' arguments do not count.
    """
    children: dict[str, DelegatedChild] = {}
    for event in events:
        match event:
            case ev.ToolCallFinished():
                id, meta = f"{parent}.{event.call_id}", event.result.meta
                for child in _entries([meta.get(CHILD)]):
                    one = str(child.get("id", ""))
                    # otherwise it belongs to the conversation that this one was forked from
                    if one == id or one in children:
                        background = child.get("background") is True
                        known_seq = children[one].known_seq if one in children else 0
                        known_seq = (
                            known_seq if background else max(known_seq, _number(child.get("seq")))
                        )
                        children[one] = DelegatedChild(
                            str(child.get("agent", "")), background, known_seq
                        )
                for one in _entries(meta.get(CHILDREN)):
                    if one.get("collected") and one.get("id") in children:
                        children[one["id"]].known_seq = _number(one.get("seq"))
            case ev.MessageAdded() if (child := children.get(event.sender)) is not None:
                sender, _, seq = event.id.rpartition("@")
                if sender == event.sender:
                    child.known_seq = _number(seq) or child.known_seq
            case ev.NoteRecorded() if event.about in (STOPPED, RESUMED):
                for id in cast("Sequence[Any]", event.details.get("children") or ()):
                    if id in children:
                        children[id].stopped = event.about == STOPPED
            case _:
                pass
    return children


def _number(value: Any) -> int:
    """Return a seq; 0 for text that is not one, since ids and metas may hold anything."""
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0


def _entries(value: Any) -> list[dict[str, Any]]:
    items = cast("list[Any]", value) if isinstance(value, list | tuple) else []
    return [one for one in items if isinstance(one, dict)]


def ids_of(arguments: dict[str, Any]) -> tuple[str, ...]:
    """Return the children that a call of `delegate_collect` waits for; an empty tuple means all."""
    ids = arguments.get("ids")
    if isinstance(ids, str):
        return (ids,)
    return tuple(map(str, cast("list[Any]", ids))) if isinstance(ids, list) else ()


def sends(events: Sequence[ev.AnyEvent]) -> list[datetime]:
    """Return the times at which a conversation sent messages to others."""
    calls: set[str] = set()  # ids of the last answer's `send_to` calls
    times: list[datetime] = []
    for event in events:
        if isinstance(event, ev.AssistantReplied):
            calls = {call.id for call in event.calls if call.name == "send_to"}
        elif isinstance(event, ev.ToolCallFinished) and event.call_id in calls:
            times += [] if event.result.is_error else [event.timestamp]
    return times


def last_word(events: Sequence[ev.AnyEvent]) -> datetime | None:
    """Return the time of the user's last message."""
    for event in reversed(events):
        if isinstance(event, ev.MessageAdded) and event.sender == "user":
            return event.timestamp
    return None


class ChildOutcome(msgspec.Struct, frozen=True):
    """The present state of a child. `seq` is the last event of its outcome."""

    id: str
    agent: str
    state: ConversationState
    status: ConversationStatus
    seq: int

    @classmethod
    def of(cls, child: Conversation, agent: str) -> ChildOutcome:
        """Return the outcome of a child that is open here, or was just read."""
        journal = child.hosting.journal
        with journal.lock:  # once, so that state and status belong together
            fold, status = journal.fold.copy(), child.status
        # Without the events: an outcome is kept as long as the parent, and needs none.
        state = ConversationState.of(child.id, status, fold, lambda _: ())
        return cls(child.id, agent, state, effective_status(fold), fold.status_seq)

    def meta(self) -> dict[str, Any]:
        """Return the `meta` entry for a result about the child."""
        return {
            "id": self.id,
            "agent": self.agent,
            "status": self.status.value,
            "steps": self.state.steps,
            "cost": self.state.cost,
            "inputTokens": self.state.usage.input_tokens,
            "outputTokens": self.state.usage.output_tokens,
            "seq": self.seq,
        }

    @property
    def address(self) -> str:
        """The line that tells the model which conversation can be resumed."""
        return f"[{self.agent}: conversation {self.id}]"

    @property
    def _steps(self) -> str:
        return f"{self.state.steps} step{'' if self.state.steps == 1 else 's'}"

    @property
    def waits(self) -> bool:
        """True if the child waits for a decision or an answer of the user."""
        return bool(self.state.pending_confirmations or self.state.pending_questions)

    @property
    def progress(self) -> str:
        """The child's progress in one line."""
        begin = f"{self.agent} ({self.id}): {self._steps}, waits for the user's"
        if waits := [_title(one.call) for one in self.state.pending_confirmations]:
            return f"{begin} approval of {', '.join(waits)}"
        if questions := [_shortened(one.message) for _, one in self.state.pending_questions]:
            return f"{begin} answer to: {'; '.join(questions)}"
        calls = self.state.pending_calls if self.status is _S.RUNNING else ()
        doing = f", now {', '.join(map(_title, calls[:3]))}" if calls else ""
        status = self.status.value.replace("_", " ")
        return f"{self.agent} ({self.id}): {status}, {self._steps}{doing}"

    @property
    def reportable(self) -> tuple[str, object]:
        """A value that differs if there is progress to report. The questions are part of it,
        because a question that is asked anew after a restart has the line of the first one."""
        return self.progress, self.state.pending_questions

    @property
    def report(self) -> str:
        """The child's result in the words for the parent's model."""
        answer, error, output = self.state.answer, self.state.error, self.state.output
        last_words = f" Its last words were:\n{answer}" if answer.strip() else ""
        match self.status:
            case _S.FINISHED:
                return answer if output is None else msgspec.json.encode(output).decode()
            case _S.ERROR:
                why = "an error" if error is None else typed_text(error.error, error.message)
                limit = error is not None and error.error == "LimitExceeded"
                what = "came to a limit and did not finish" if limit else "failed"
                return f"{self.agent} {what} after {self._steps}: {why}{last_words}"
            case _S.STUCK:
                return (
                    f"{self.agent} got stuck after {self._steps} and did not finish. Give it a"
                    f" smaller task, or do it yourself.{last_words}"
                )
            case _S.PAUSED:
                return (
                    f"{self.agent} was stopped after {self._steps} and did not finish.{last_words}"
                )
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
    return _shortened(f"{call.name} {call.raw_arguments}")


def _shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 100 else text[:99] + "…"
