"""What a plan is to the rest of the house: how it is read from a call or its result, and how it is
written for a model or a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.content import ToolResult
from holdfast.events import PlanStep

PLAN = "plan"  # the tool's name
META = "holdfast/plan"  # in the meta of a result that is a plan

MOST = 100  # steps; more are no plan that anybody reads
LONGEST = 1000  # characters of a step

MARKS = {"pending": "[ ]", "in_progress": "[>]", "done": "[x]", "dropped": "[-]"}


class _Steps(msgspec.Struct):
    steps: list[PlanStep]


def read_steps(data: Any) -> tuple[PlanStep, ...]:
    """The steps of a call's arguments, or of a result's structured content; none if these are no
    plan."""
    try:
        return tuple(msgspec.convert(data, _Steps, from_attributes=True).steps)
    except ValueError:
        return ()


def misfit(steps: Sequence[PlanStep]) -> str:
    """Why these are no plan, and what to do about it; "" if they are one."""
    if not 1 <= len(steps) <= MOST:
        return f"A plan has 1 to {MOST} steps; this one has {len(steps)}. Give the whole plan."
    for number, step in enumerate(steps, 1):
        if not step.step.strip():
            return f"Step {number} is empty; say in a few words what is to be done."
        if len(step.step) > LONGEST:
            return (
                f"Step {number} has {len(step.step)} characters; say it in at most {LONGEST}, or in"
                " several steps."
            )
    at_work = [str(number) for number, step in enumerate(steps, 1) if step.state == "in_progress"]
    if len(at_work) > 1:
        return (
            f"Steps {', '.join(at_work[:-1])} and {at_work[-1]} are in progress; at most one is."
            " Give the others the state pending, or make one step of them."
        )
    return ""


def plan_of(result: ToolResult, arguments: Mapping[str, Any]) -> tuple[PlanStep, ...]:
    """The plan that a call of the tool has made; none if it failed, or another tool of that name
    answered. Of a large result the journal has only its beginning and end: then the `arguments` say
    it."""
    if result.is_error or result.meta.get(META) is not True:
        return ()
    return read_steps(result.structured_content) or read_steps(arguments)


def texts(steps: Sequence[PlanStep]) -> tuple[str, ...]:
    """What is to be done, whatever the states: what a user approves."""
    return tuple([" ".join(step.step.split()) for step in steps])


def unfinished(steps: Sequence[PlanStep]) -> bool:
    """Whether anything is left to do."""
    return any(step.state in ("pending", "in_progress") for step in steps)


def progress(steps: Sequence[PlanStep]) -> str:
    """How far a plan is: `1 of 3 steps done, 1 dropped`."""
    done, dropped = (sum(step.state == state for step in steps) for state in ("done", "dropped"))
    return f"{done} of {len(steps) - dropped} steps done" + (
        f", {dropped} dropped" if dropped else ""
    )


def rendered(steps: Sequence[PlanStep]) -> str:
    """A plan as a model is shown it: a line for each step, and what is next."""
    lines = [
        f"{number}. {MARKS[step.state]} {text}"
        for number, (step, text) in enumerate(zip(steps, texts(steps), strict=True), 1)
    ]
    left = [
        number for number, step in enumerate(steps, 1) if step.state in ("pending", "in_progress")
    ]
    if not left:
        lines.append("Nothing is left of it.")
    elif all(step.state != "in_progress" for step in steps):
        lines.append(f"No step is in progress; the next is {left[0]}.")
    return "\n".join([f"Plan ({progress(steps)}):", *lines])
