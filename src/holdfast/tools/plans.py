"""The format of a plan: reading it from a call or a result, and rendering it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.content import ToolResult
from holdfast.events import PlanStep

PLAN = "plan"  # the tool's name
META = "holdfast/plan"  # the key in the meta of a result that is a plan

MAX_STEPS = 100  # longer plans go unread
MAX_STEP_CHARS = 1000

MARKS = {"pending": "[ ]", "in_progress": "[>]", "done": "[x]", "dropped": "[-]"}


class _Steps(msgspec.Struct):
    steps: list[PlanStep]


def read_steps(data: Any) -> tuple[PlanStep, ...]:
    """Return the steps in a call's arguments or a result's content; empty without a plan."""
    try:
        return tuple(msgspec.convert(data, _Steps, from_attributes=True).steps)
    except ValueError:
        return ()


def plan_problem(steps: Sequence[PlanStep]) -> str:
    """Return the reason why these steps are not a plan, and the remedy; "" for a plan."""
    if not 1 <= len(steps) <= MAX_STEPS:
        return f"A plan has 1 to {MAX_STEPS} steps; this one has {len(steps)}. Give the whole plan."
    for number, step in enumerate(steps, 1):
        if not step.step.strip():
            return f"Step {number} is empty; describe the work in a few words."
        if len(step.step) > MAX_STEP_CHARS:
            return (
                f"Step {number} has {len(step.step)} characters; use at most"
                f" {MAX_STEP_CHARS}, or several steps."
            )
    active = [str(number) for number, one in enumerate(steps, 1) if one.state == "in_progress"]
    if len(active) > 1:
        return (
            f"Steps {', '.join(active[:-1])} and {active[-1]} are in progress; at most"
            " one is. Give the others the state pending, or make one step of them."
        )
    return ""


def plan_of(result: ToolResult, arguments: Mapping[str, Any]) -> tuple[PlanStep, ...]:
    """Return the plan that a call of the tool made; empty if the call failed, or if another tool of
    that name answered. The journal keeps only the beginning and end of a large result; then the
    plan is read from the `arguments`."""
    if result.is_error or result.meta.get(META) is not True:
        return ()
    return read_steps(result.structured_content) or read_steps(arguments)


def step_texts(steps: Sequence[PlanStep]) -> tuple[str, ...]:
    """Return the texts of the steps, without their states. A user approves these texts."""
    return tuple([" ".join(step.step.split()) for step in steps])


def is_unfinished(steps: Sequence[PlanStep]) -> bool:
    """Return True if a step is pending or in progress."""
    return any(step.state in ("pending", "in_progress") for step in steps)


def progress(steps: Sequence[PlanStep]) -> str:
    """Return a plan's progress, such as `1 of 3 steps done, 1 dropped`."""
    done, dropped = (sum(step.state == state for step in steps) for state in ("done", "dropped"))
    more = f", {dropped} dropped" if dropped else ""
    return f"{done} of {len(steps) - dropped} steps done{more}"


def render_plan(steps: Sequence[PlanStep]) -> str:
    """Return a plan as text for a model: a line for each step, and the next step."""
    lines = [
        f"{number}. {MARKS[step.state]} {text}"
        for number, (step, text) in enumerate(zip(steps, step_texts(steps), strict=True), 1)
    ]
    remaining = [number for number, step in enumerate(steps, 1) if is_unfinished([step])]
    if not remaining:
        lines.append("All steps are done or dropped.")
    elif all(step.state != "in_progress" for step in steps):
        lines.append(f"No step is in progress; the next is {remaining[0]}.")
    return "\n".join([f"Plan ({progress(steps)}):", *lines])
