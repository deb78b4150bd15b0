"""`next_action`: the one place that decides what a conversation does next."""

from __future__ import annotations

import msgspec

from holdfast.agent.limits import Limits
from holdfast.agent.output import REPAIR, TEXT_INSTEAD, repair
from holdfast.agent.stuck import StuckDetector, seen
from holdfast.content import ToolCall
from holdfast.conversation.state import ConversationStatus, Fold
from holdfast.errors import LimitExceeded, OutputInvalid

# Empty or cut-off answers in a row before a conversation counts as stuck. Twice a nudge may help; a third has not been seen to.
BLANKS = 3


# A condensation that leaves a request larger than where it is to begin has nothing more to leave out: it is tried again when the request
# has grown by this part of that.
AGAIN = 10


class Recover(msgspec.Struct, frozen=True):
    """Settle calls that an earlier owner of the conversation started and left without a result."""

    calls: tuple[ToolCall, ...]


class Call(msgspec.Struct, frozen=True):
    """Run calls whose turn it is, side by side."""

    calls: tuple[ToolCall, ...]


class Condense(msgspec.Struct, frozen=True):
    """Shorten what the model is shown: `asked` if somebody wants it, with these instructions, else because a request is larger than the
    agent's condenser lets it become: `tokens`."""

    asked: str | None = None
    tokens: int = 0


class Step(msgspec.Struct, frozen=True):
    """Ask the model."""


class HandOver(msgspec.Struct, frozen=True):
    """Have another agent take over: its name, "" for the one that the conversation began with."""

    name: str


class Wait(msgspec.Struct, frozen=True):
    """Nothing to do until somebody says something, or a client's result comes."""


class Nudge(msgspec.Struct, frozen=True):
    """Tell the model something before it is asked again."""

    about: str
    text: str


class Stop(msgspec.Struct, frozen=True):
    """The run is over: go to `status`, for `limit` if one was reached, for `output` if that is why the last round's output was not taken."""

    status: ConversationStatus
    reason: str = ""
    limit: tuple[str, float, float] | None = None
    output: str = ""


Action = Recover | Condense | Call | HandOver | Nudge | Step | Wait | Stop
_STEP, _WAIT = Step(), Wait()
_FINISHED = Stop(ConversationStatus.FINISHED)
_CONFIRM = Stop(ConversationStatus.WAITING_FOR_CONFIRMATION)


def next_action(
    state: Fold, limits: Limits = Limits(), trigger: int | None = None, stuck: StuckDetector | None = None, rounds: int = 0
) -> Action:
    """What to do next: a pure function of the journal's fold, the limits of a run, and the tokens from which on a request is to be shortened,
    the patterns that are looked for, and after how many failed `rounds` a run ends that is to have an output (0: it need have none).

    The loop asks when no call of this owner runs. A started call without a result therefore belongs to a dead owner, or to the client that
    claimed it. While a client holds the turn the loop waits, and the status stays RUNNING.

    Calls run in the order of the answer. Neighbours that are all parallel run side by side; any other call is a barrier (`turn`). A call behind
    an undecided one waits as well: if nothing can proceed, the answer is WAITING_FOR_CONFIRMATION.
    """
    if state.condensing:
        return Condense(state.wanted)
    if state.status is not ConversationStatus.RUNNING:
        return _WAIT
    if state.open:
        now = state.turn
        if lost := tuple([item.call for item in now if item.attempt and not item.runner]):
            return Recover(lost)
        if ready := tuple([item.call for item in now if item.ready]):
            return Call(ready)
        return _CONFIRM if state.waits else _WAIT
    if state.handoff is not None:
        return HandOver(state.handoff)
    if state.blanks >= BLANKS:
        return Stop(ConversationStatus.STUCK, f"{BLANKS} answers in a row were empty or cut off")
    unseen = state.message_seq > state.based_on
    if state.output_seq and not unseen:
        return _FINISHED
    if rounds and not unseen and (problem := not_taken(state)):
        if state.output_failures + 1 >= rounds:
            return Stop(ConversationStatus.ERROR, output=problem)
        return Nudge(REPAIR, repair(problem))
    if not state.owed:
        return _FINISHED
    reached = _reached(state, limits)
    if reached is not None:
        return Stop(ConversationStatus.ERROR, limit=reached)
    if stuck is not None and (found := seen(state.recent, stuck)) is not None:
        return Stop(ConversationStatus.STUCK, found.reason) if found.reason else Nudge(found.about, found.text)
    if trigger is not None and (tokens := _too_many(state, trigger)):
        return Condense(None, tokens)
    return _STEP


def not_taken(state: Fold) -> str:
    """Why the last answer has no output; "" if it is not over, or was told of being empty or cut off."""
    last = state.assistant
    if last is None or last.calls or last.stop_reason == "pause":
        return state.output_failed
    return TEXT_INSTEAD


def _too_many(state: Fold, trigger: int) -> int:
    """The tokens of the next request if they are as many as `trigger`, and more since the last condensation than that one could not help."""
    sizes = state.sizes
    if sizes is None or (tokens := sizes.tokens) < trigger:
        return 0
    return tokens if tokens - sizes.at_condensation >= max(1, trigger // AGAIN) else 0


def _reached(state: Fold, limits: Limits) -> tuple[str, float, float] | None:
    if limits.steps is not None and state.run_steps >= limits.steps:
        return ("steps", state.run_steps, limits.steps)
    if limits.tokens is not None and state.run_tokens >= limits.tokens:
        return ("tokens", state.run_tokens, limits.tokens)
    if limits.cost is not None and state.run_cost >= limits.cost:
        return ("cost", state.run_cost, limits.cost)
    if limits.seconds is not None and state.run_since is not None and state.last_time is not None:
        spent = state.run_spent + (state.last_time - state.run_since).total_seconds()
        if spent >= limits.seconds:
            return ("seconds", spent, limits.seconds)
    return None


def limit_error(limit: tuple[str, float, float], conversation_id: str) -> LimitExceeded:
    """The error that tells of a reached limit."""
    kind, value, bound = limit
    return LimitExceeded(kind, value, bound, f"Conversation {conversation_id!r}")


def output_error(action: Stop, state: Fold) -> OutputInvalid:
    """The error that tells of an output that was not taken."""
    return OutputInvalid(action.output, state.output_failures + 1)
