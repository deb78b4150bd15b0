"""Planning: the tool and prompt of an agent that plans, the fold of a plan, and the calls that
wait for its approval."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from holdfast import events as ev
from holdfast.agent import tokens
from holdfast.agent.confirmation import Verdict
from holdfast.content import ToolCall, ToolResult, answer_seq
from holdfast.errors import ConfigurationError, ToolNotFound
from holdfast.tools.plans import (
    PLAN,
    is_unfinished,
    plan_of,
    plan_problem,
    read_steps,
    render_plan,
    step_texts,
)

if TYPE_CHECKING:
    from holdfast.tools import Tool, ToolManager

Planning = Literal["tool", "first"] | None

MODULE = "holdfast.tools.preset.planning"

TOOL_PROMPT = """\
For work of three steps or more, write down your plan with the tool `plan` before you begin, and \
keep it true: one step in progress while you work \
on it, done as soon as it is, dropped if it is not needed any more.\
"""
FIRST_PROMPT = """\
Before you change anything, make a plan with the tool `plan`, and look at what you need for it \
with the tools that read. The user is shown the plan, \
and may change it; until it is approved, every other call is denied. Then carry out its steps, \
word for word as they were approved: one step in \
progress while you work on it, done as soon as it is, dropped if it is not needed any more. A \
plan with other steps is asked about again.\
"""

HEADING = "[Your plan, as it stood when the messages before this were left out:]"

MAKE = "make a plan first. Call plan with your steps; once the user has approved them, go on"
AGAIN = (
    "your plan is finished, and the user has said more since. Call plan with the steps of what is"
    " to be done now; once they are approved, go on"
)
ASK, ASK_AGAIN = (
    "the plan is to be approved",
    "the plan has other steps than the one that was approved",
)
# Reasons of a plan that waits. Journals contain these texts, and an approval of such a call
# approves the plan.
APPROVAL = (ASK, ASK_AGAIN)


# --- the agent's tool and prompt ---


def tools_for(planning: Planning, manager: ToolManager) -> tuple[Tool, ...]:
    """Return the tools that planning adds to an agent. Raises `ConfigurationError` if the agent has
    another tool named `plan`."""
    if planning is None:
        return ()
    if manager.exists(PLAN):
        if is_ours(manager.get(PLAN)):
            return ()
        raise ConfigurationError(
            "Agent: planning comes with a tool 'plan', and tools has another one of that name."
            " Rename it."
        )
    from holdfast.tools.preset.planning import make_plan  # imported late: few agents plan

    return (make_plan(),)


def is_ours(tool: Tool) -> bool:
    """Return True if the tool is the plan tool of Holdfast."""
    return tool.name == PLAN and tool.module_qualname == MODULE


# --- the fold of a plan ---


def after_result(
    before: ev.Plan | None, call: ToolCall, result: ToolResult, approved: bool, unheard: bool
) -> ev.Plan | None:
    """Return the plan after a call of `plan` has its result. `approved` is true if the user
    approved that call. `unheard` is true if a message arrived that the call's answer did not take
    into account."""
    steps = plan_of(result, call.arguments)
    if not steps:
        return before
    agreed = step_texts(steps) if approved else () if before is None else before.approved
    if unheard and not is_unfinished(steps):
        agreed = ()
    return ev.Plan(steps, agreed, call.id, answer_seq(call.id))


def after_message(before: ev.Plan | None) -> ev.Plan | None:
    """Return the plan after a message that is not from the loop: a finished plan loses its
    approval."""
    if before is None or not before.approved or is_unfinished(before.steps):
        return before
    return msgspec.structs.replace(before, approved=())


def after_condensation(before: ev.Plan | None, event: ev.HistoryCondensed) -> ev.Plan | None:
    """Return the plan after a condensation, with the place at which a model is now shown the
    plan."""
    if before is None or not event.hidden:
        return before
    if event.summary.endswith(render_plan(before.steps)) and HEADING in event.summary:
        return msgspec.structs.replace(before, seq=min(event.hidden), condensed=True)
    if _is_hidden(before, event.hidden, event.replaced):
        return msgspec.structs.replace(before, seq=0, condensed=False)
    return before


# --- condensation ---


def _is_hidden(plan: ev.Plan, hidden: Sequence[int], replaced: Sequence[int]) -> bool:
    """Return True if a condensation hides the plan from the model."""
    if not plan.seq:
        return True
    if plan.condensed:
        return plan.seq in replaced or plan.seq == min(hidden)
    return plan.seq in hidden


def summary_with_plan(
    plan: ev.Plan | None, summary: str, hidden: Sequence[int], replaced: Sequence[int]
) -> str:
    """Return the summary of a condensation; the plan follows if it would otherwise be hidden."""
    if plan is None or not hidden or not _is_hidden(plan, hidden, replaced):
        return summary
    return f"{summary}\n\n{note(plan)}" if summary else note(plan)


def note(plan: ev.Plan) -> str:
    """Return the text that shows the model its plan after a condensation."""
    return f"{HEADING}\n{render_plan(plan.steps)}"


def without_plan(summary: str) -> str:
    """Return a summary without the appended plan, which must not be summarised again."""
    begin, heading, _ = summary.rpartition(HEADING)
    return begin.rstrip("\n") if heading else summary


def plan_tokens(plan: ev.Plan | None) -> int:
    """Return the maximum number of tokens that `summary_with_plan` adds."""
    return 0 if plan is None else tokens.text(note(plan))


# --- calls before the approval of a plan ---


def plan_verdict(
    call: ToolCall, verdict: Verdict, plan: ev.Plan | None, find: Callable[[str], Tool]
) -> Verdict:
    """Apply planning="first" to the policy's verdict on a call. Return a deny or an ask with the
    source `planning`, or the same verdict. A policy's deny stays. `find` returns a tool by name."""
    if verdict.decision == "deny":
        return verdict
    try:
        tool = find(call.name)
    except ToolNotFound:
        tool = None
    if tool is not None and is_ours(tool):
        return _verdict_on_plan(call, verdict, plan, tool)
    if (plan is not None and plan.approved) or (tool is not None and tool.annotations.read_only):
        return verdict
    reason = AGAIN if plan is not None and not is_unfinished(plan.steps) else MAKE
    return Verdict("deny", reason, "planning")


def _verdict_on_plan(call: ToolCall, verdict: Verdict, plan: ev.Plan | None, tool: Tool) -> Verdict:
    try:
        steps = read_steps(tool.validate(call.arguments)) or read_steps(call.arguments)
    except Exception:  # the call's result will contain the error
        return verdict
    agreed = () if plan is None else plan.approved
    if plan_problem(steps) or (agreed and step_texts(steps) == agreed):
        return verdict
    return Verdict("ask", ASK_AGAIN if agreed else ASK, "planning")
