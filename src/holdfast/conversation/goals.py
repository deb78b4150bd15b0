"""The goal of an agent at the end of a run: its judge is asked, and the verdict is journaled.

A verdict is a `NoteRecorded` about "goal", written before anything follows from it. After a crash
or a pause the last verdict counts as long as nothing was said since; the judge is not asked again.
"""

from __future__ import annotations

from typing import Any

from holdfast import events as ev
from holdfast.agent.goal import NOT_SAID, TOLD, Goal, GoalReview, GoalVerdict
from holdfast.agent.hooks import Stopping
from holdfast.content import Usage
from holdfast.conversation.budget import fair
from holdfast.conversation.facts import GOAL
from holdfast.conversation.objections import StopObjection
from holdfast.conversation.run_context import RunContext
from holdfast.errors import GoalMissed, HookDenied
from holdfast.tools import ToolContext
from holdfast.tools.results import clean


def goal_objection(
    context: RunContext, goal: Goal, stopping: Stopping, tools: ToolContext
) -> StopObjection | None:
    """Return the reason why the run may not finish by the agent's goal; None if it may. Runs user
    code, so the caller must not hold the lock."""
    journal = context.journal
    with journal.changed:
        verdict = _last_verdict(context)
        rounds = journal.fold.goal.rounds
    if verdict is None:
        review = GoalReview(goal.text, stopping.text, rounds, lambda: stopping.events)
        try:
            verdict = goal.verdict(review, tools)
        except (Exception, SystemExit) as error:  # a judge may raise anything
            kind = "" if isinstance(error, HookDenied) else f"{type(error).__name__}: "
            text = clean(f"The run is not finished: its goal was not judged: {kind}{error}")
            return StopObjection(GOAL, "", HookDenied(text, GOAL, "stop", True))
        _write(context, verdict, rounds)
    if verdict.done:
        return None
    missing = verdict.missing.strip() or NOT_SAID
    if rounds < goal.rounds:
        return StopObjection(GOAL, TOLD.format(missing=missing), None, GOAL)
    return StopObjection(GOAL, "", GoalMissed(missing, rounds)) if goal.required else None


def _last_verdict(context: RunContext) -> GoalVerdict | None:
    """Return the journaled verdict on the last answer; None if there is none. Needs the lock."""
    fold = context.journal.fold
    seq, last = fold.goal.seq, fold.assistant
    if not seq or seq < fold.message_seq or (last is not None and seq < last.seq):
        return None
    note = context.journal.after(seq - 1)[0]
    if not isinstance(note, ev.NoteRecorded):  # damaged by now
        return None
    done, missing = note.details.get("done") is True, str(note.details.get("missing", ""))
    return GoalVerdict(done, missing)


def _write(context: RunContext, verdict: GoalVerdict, rounds: int) -> None:
    details: dict[str, Any] = {"done": verdict.done, "round": rounds + 1}
    if verdict.missing:
        details["missing"] = verdict.missing
    if verdict.score is not None:
        details["score"] = verdict.score
    missing = verdict.missing.strip().partition("\n")[0] or NOT_SAID
    score = "" if verdict.score is None else f" (score {verdict.score:g})"
    text = ("reached" if verdict.done else f"not reached: {missing}") + score
    usage, cost = fair(verdict.usage, verdict.cost)
    used = bool(verdict.model or cost) or usage != Usage()
    with context.journal as journal:
        journal.add(
            ev.NoteRecorded,
            about=GOAL,
            text=clean(text),
            details=details,
            usage=usage,
            cost=cost,
            model=(verdict.model or "unknown") if used else "",
        )
