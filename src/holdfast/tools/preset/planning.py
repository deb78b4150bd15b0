"""`plan`: a tool with which a model keeps the plan of its work. Each call carries the whole plan, so that nothing is remembered outside of
the conversation: a resumed, forked or moved one has its plan in its journal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from holdfast.content import TextContent, ToolResult
from holdfast.errors import ToolValidationError
from holdfast.events import PlanStep
from holdfast.tools.plans import META, misfit, rendered
from holdfast.tools.registry import ToolRegistry, register_tool
from holdfast.tools.tool import Tool, ToolAnnotations

State = Literal["pending", "in_progress", "done", "dropped"]


@dataclass
class Step:
    """One step of a plan: what is to be done, and how far it is."""

    step: str
    state: State = "pending"


def plan(steps: list[Step]) -> ToolResult:
    """Write down the plan of your work, or change it. Every call gives the whole plan, in order, with the state of each step; it takes
    the place of the last one, and the answer shows it.

    Use it for work of three steps or more: make the plan first, have one step in progress while you work on it, and call again
    when a step is done or when what you find changes the plan. Drop a step that is not needed any more instead of leaving it out.

    Args:
        steps: Each has step (what is to be done, in a few words) and state: pending, in_progress (at most one), done or dropped.
    """
    found = tuple([PlanStep(step.step, step.state) for step in steps])
    if wrong := misfit(found):
        raise ToolValidationError(wrong)
    data = {"steps": [{"step": step.step, "state": step.state} for step in found]}
    return ToolResult((TextContent(rendered(found)),), structured_content=data, meta={META: True})


def make_plan() -> Tool:
    """The tool `plan`."""
    reads = ToolAnnotations(read_only=True, destructive=False, idempotent=True, open_world=False)
    return Tool.from_function(plan, annotations=reads, category="planning", parallel=False)


def register_planning_tools(registry: ToolRegistry | None = None) -> list[Tool]:
    """The planning tools, for `Agent(tools=...)`; with a `registry`, they are registered there too.

    Equivalent to what importing this module declares: an agent server that is told its name makes them itself.
    """
    register_tool("plan", make_plan)
    found = ToolRegistry() if registry is None else registry
    return found.import_module(__name__)


register_tool("plan", make_plan)
