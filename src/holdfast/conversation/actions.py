"""`next_action`: the one place that decides the next action of a conversation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast import events as ev
from holdfast.agent.limits import Limits
from holdfast.agent.output import REPAIR, repair_message
from holdfast.agent.prompt import CUT_ANSWER, EMPTY_ANSWER
from holdfast.agent.stuck import StuckDetector, stuck_signal
from holdfast.answer import REFUSAL
from holdfast.content import ToolCall
from holdfast.conversation.facts import excess_tokens
from holdfast.conversation.fold import Fold
from holdfast.conversation.status import ConversationStatus
from holdfast.errors import LimitExceeded, OutputInvalid

if TYPE_CHECKING:
    from holdfast.llm.completion import Completion


class RecoverCalls(msgspec.Struct, frozen=True):
    """Settle calls that an earlier owner of the conversation started and left without a result."""

    calls: tuple[ToolCall, ...]


class RunCalls(msgspec.Struct, frozen=True):
    """Run calls whose turn it is, side by side."""

    calls: tuple[ToolCall, ...]


class CondenseHistory(msgspec.Struct, frozen=True):
    """Shorten the history that the model is shown.

    `request` holds the instructions of a requested condensation. None means that the request's
    `tokens` exceed the trigger of the agent's condenser.
    """

    request: str | None = None
    tokens: int = 0


class CallModel(msgspec.Struct, frozen=True):
    """Ask the model."""


class HandOver(msgspec.Struct, frozen=True):
    """Hand the conversation over to a target, see `agent.handoffs.resolve_target`; "" is the agent
    that it began with."""

    target: str


class AwaitEvents(msgspec.Struct, frozen=True):
    """Do nothing until a message, a decision or a client's result arrives."""


class Nudge(msgspec.Struct, frozen=True):
    """Send the model a message from Holdfast before its next answer."""

    about: str
    text: str


class Stop(msgspec.Struct, frozen=True):
    """End the run with `status`.

    `limit` is the limit that was reached, if any. `output` is the problem with the last round's
    output, if that ended the run.
    """

    status: ConversationStatus
    reason: str = ""
    limit: tuple[str, float, float] | None = None
    output: str = ""


Action = (
    RecoverCalls | CondenseHistory | RunCalls | HandOver | Nudge | CallModel | AwaitEvents | Stop
)
_STEP, _WAIT = CallModel(), AwaitEvents()
_FINISHED = Stop(ConversationStatus.FINISHED)
_WAITS = Stop(ConversationStatus.IDLE, "it waits until a time")
_CONFIRM = Stop(ConversationStatus.WAITING_FOR_CONFIRMATION)


def next_action(
    state: Fold,
    limits: Limits = Limits(),
    trigger: int | None = None,
    stuck: StuckDetector | None = None,
    rounds: int = 0,
) -> Action:
    """Return the next action: a pure function of the journal's fold and the run's settings.

    The loop asks when no call of this owner runs. A started call without a result therefore belongs
    to a dead owner, or to the client that claimed it. While a client holds the turn the loop waits,
    and the status stays RUNNING.

    Calls run in the order of the answer. Neighbours that are all parallel run side by side; any
    other call is a barrier (`turn`). A call behind an undecided one waits as well: if nothing can
    proceed, the action is a `Stop` with WAITING_FOR_CONFIRMATION.

    Args:
        state: The fold of the journal.
        limits: The limits of a run.
        trigger: Tokens of a request from which it is condensed; None never condenses.
        stuck: The patterns of a stuck run to look for; None looks for none.
        rounds: Failed output rounds after which the run ends with an error; 0 if the agent needs no
            output.
    """
    if state.condensing:
        return CondenseHistory(state.condensation.request)
    if state.status is not ConversationStatus.RUNNING:
        return _WAIT
    if state.open:
        now = state.turn
        if orphans := tuple([item.call for item in now if item.attempt and not item.runner]):
            return RecoverCalls(orphans)
        if ready := tuple([item.call for item in now if item.ready]):
            return RunCalls(ready)
        return _CONFIRM if state.waits else _WAIT
    if state.handoff.target is not None:
        return HandOver(state.handoff.target)
    if reason := state.blanks.stuck:
        return Stop(ConversationStatus.STUCK, reason)
    unseen = state.message_seq > state.based_on
    if state.output.seq and not unseen:
        return _FINISHED
    if state.timers.waiting and not unseen and state.timers.waits(state.assistant):
        return _WAITS
    if rounds and not unseen and (problem := state.output.problem(state.assistant)):
        refused = state.assistant is not None and state.assistant.stop_reason == REFUSAL
        if state.output.failures + 1 >= rounds or refused:
            return Stop(ConversationStatus.ERROR, output=problem)
        return Nudge(REPAIR, repair_message(problem))
    if not state.owed:
        return _FINISHED
    if (reached := state.run.reached(limits, state.last_time)) is not None:
        return Stop(ConversationStatus.ERROR, limit=reached)
    if stuck is not None and (signal := stuck_signal(state.recent, stuck)) is not None:
        return (
            Stop(ConversationStatus.STUCK, signal.reason)
            if signal.reason
            else Nudge(signal.about, signal.text)
        )
    if trigger is not None and (tokens := excess_tokens(state.sizes, trigger)):
        return CondenseHistory(None, tokens)
    return _STEP


def nudge_for(answer: Completion | ev.AssistantReplied) -> str | None:
    """Return the message to the model after an empty or cut-off answer without calls; None if
    none is needed. A refusal ends the run: its text is not in `text`."""
    if answer.calls or answer.stop_reason in ("pause", REFUSAL):
        return None
    return (
        EMPTY_ANSWER if answer.is_blank else CUT_ANSWER if answer.stop_reason == "length" else None
    )


def limit_error(limit: tuple[str, float, float], conversation_id: str) -> LimitExceeded:
    """Return the error for a reached limit."""
    kind, value, bound = limit
    return LimitExceeded(kind, value, bound, f"Conversation {conversation_id!r}")


def output_error(action: Stop, state: Fold) -> OutputInvalid:
    """Return the error for a run that ended without a valid output."""
    return OutputInvalid(action.output, state.output.failures + 1)
