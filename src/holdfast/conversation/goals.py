"""The goal of an agent at the end of a run: its judge is asked, and the verdict is journaled.

A verdict is a `NoteRecorded` about "goal", written before anything follows from it. After a crash
or a pause the last verdict counts until there is a new message or answer; the judge is not asked
again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast import events as ev
from holdfast.agent.hooks import Stopping
from holdfast.content import Usage
from holdfast.conversation.budget import fair
from holdfast.conversation.facts import GOAL
from holdfast.conversation.run_context import RunContext
from holdfast.error_text import describe_error
from holdfast.errors import GoalMissed, HoldfastError, HookDenied
from holdfast.tools import ToolContext
from holdfast.tools.results import clean

if TYPE_CHECKING:
    from holdfast.agent.goal import Goal, GoalVerdict

NOT_SAID = "the judge did not say what is missing."


class StopObjection(msgspec.Struct, frozen=True):
    """The reason why a run may not finish, or the `error` with which it ends instead.

    `hook` is the hook that objects. `about` is the `MessageAdded.about` of the message with the
    reason for the model, "" for the hook's message.
    """

    hook: str
    reason: str
    error: HoldfastError | None = None
    about: str = ""


def goal_objection(
    context: RunContext, goal: Goal, stopping: Stopping, tools: ToolContext
) -> StopObjection | None:
    """Return the reason why the run may not finish by the agent's goal; None if it may. Runs user
    code, so the caller must not hold the lock."""
    journal = context.journal
    with journal.lock:
        outcome = _last_verdict(context)
        rounds = journal.fold.goal.rounds
    if outcome is None:
        review = goal.review(stopping.text, rounds, lambda: stopping.events)
        try:
            verdict = goal.verdict(review, tools)
        except (Exception, SystemExit) as error:  # a judge may raise anything
            why = describe_error(error)
            text = clean(f"The run is not finished: its goal was not judged: {why}")
            return StopObjection(GOAL, "", HookDenied(text, GOAL, "stop", True))
        _write(context, verdict, rounds)
        outcome = verdict.done, verdict.missing
    is_done, missing = outcome
    if is_done:
        return None
    missing = missing.strip() or NOT_SAID
    if rounds < goal.rounds:
        return StopObjection(GOAL, goal.reminder(missing), None, GOAL)
    return StopObjection(GOAL, "", GoalMissed(missing, rounds)) if goal.required else None


def _last_verdict(context: RunContext) -> tuple[bool, str] | None:
    """Return the journaled verdict on the last answer: True if the goal is reached, and the unmet
    part; None without a verdict. Needs the lock."""
    fold = context.journal.fold
    seq, last = fold.goal.seq, fold.assistant
    if not seq or (last is not None and seq < last.seq):
        return None
    note = context.journal.after(seq - 1)[0]
    if not isinstance(note, ev.NoteRecorded):  # damaged by now
        return None
    return note.details.get("done") is True, str(note.details.get("missing", ""))


def _write(context: RunContext, verdict: GoalVerdict, rounds: int) -> None:
    details: dict[str, Any] = {"done": verdict.done, "round": rounds + 1}
    if verdict.missing:
        details["missing"] = verdict.missing
    if verdict.score is not None:
        details["score"] = verdict.score
    missing = verdict.missing.strip().partition("\n")[0] or NOT_SAID
    score = "" if verdict.score is None else f" (score {verdict.score:.2f})"
    text = ("reached" if verdict.done else f"not reached: {missing}") + score
    usage, cost = fair(verdict.usage, verdict.cost)
    has_usage = bool(verdict.model or cost) or usage != Usage()
    with context.journal as journal:
        journal.add(
            ev.NoteRecorded,
            about=GOAL,
            text=clean(text),
            details=details,
            usage=usage,
            cost=cost,
            model=(verdict.model or "unknown") if has_usage else "",
        )
