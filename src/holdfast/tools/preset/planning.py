"""`plan`: a tool with which a model keeps the plan of its work.

Each call carries the whole plan, so no state exists outside of the conversation. A resumed,
forked or moved conversation has its plan in its journal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from holdfast.content import TextContent, ToolResult
from holdfast.errors import ToolValidationError
from holdfast.events import PlanStep
from holdfast.tools.plans import META, plan_problem, render_plan
from holdfast.tools.policy import LOCAL_READ
from holdfast.tools.registry import ToolRegistry, register_preset, register_tool
from holdfast.tools.tool import Tool

State = Literal["pending", "in_progress", "done", "dropped"]


@dataclass
class PlannedStep:
    """One step of a plan and its state."""

    step: str
    state: State = "pending"


def plan(steps: list[PlannedStep]) -> ToolResult:
    """Write down the plan of your work, or change it. Every call gives the whole plan, in order,
    with the state of each step. It replaces the previous plan, and the result shows it.

    Use it for work of three steps or more. Make the plan first and keep one step in progress while
    you work on it. Call again when a step is done, or when your findings change the plan. Mark a
    step that is no longer needed as dropped instead of leaving it out.

    Args:
        steps: Each has step (the work to do, in a few words) and state: pending, in_progress (at
            most one), done or dropped.
    """
    plan_steps = tuple([PlanStep(step.step, step.state) for step in steps])
    if problem := plan_problem(plan_steps):
        raise ToolValidationError(problem)
    data = {"steps": [{"step": step.step, "state": step.state} for step in plan_steps]}
    text = TextContent(render_plan(plan_steps))
    return ToolResult((text,), structured_content=data, meta={META: True})


def make_plan() -> Tool:
    """Return the tool `plan`."""
    return Tool.from_function(plan, annotations=LOCAL_READ, category="planning", parallel=False)


def register_planning_tools(registry: ToolRegistry | None = None) -> list[Tool]:
    """Return the planning tools, for `Agent(tools=...)`. With a `registry`, register them there
    too.

    Importing this module declares the same tools, so an agent server that knows their names
    makes them itself.
    """
    return register_preset(__name__, registry)


register_tool("plan", make_plan)
