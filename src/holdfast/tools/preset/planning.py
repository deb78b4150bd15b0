"""`plan`: a tool with which a model keeps the plan of its work. Each call carries the whole plan, so that nothing is remembered outside of
the conversation: a resumed, forked or moved one has its plan in its journal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from holdfast.content import TextContent, ToolResult
from holdfast.errors import ToolValidationError
from holdfast.tools.registry import ToolRegistry, register_tool
from holdfast.tools.tool import Tool, ToolAnnotations

State = Literal["pending", "in_progress", "done", "dropped"]

_MOST = 100  # steps; more are no plan that anybody reads
_LONGEST = 1000  # characters of a step
_MARKS = {"pending": "[ ]", "in_progress": "[>]", "done": "[x]", "dropped": "[-]"}


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
    _check(steps)
    return ToolResult((TextContent(_rendered(steps)),), structured_content=_data(steps))


def _check(steps: list[Step]) -> None:
    if not 1 <= len(steps) <= _MOST:
        raise ToolValidationError(f"A plan has 1 to {_MOST} steps; this one has {len(steps)}. Give the whole plan.")
    for number, step in enumerate(steps, 1):
        if not step.step.strip():
            raise ToolValidationError(f"Step {number} is empty; say in a few words what is to be done.")
        if len(step.step) > _LONGEST:
            raise ToolValidationError(f"Step {number} has {len(step.step)} characters; say it in at most {_LONGEST}, or in several steps.")
    at_work = [str(number) for number, step in enumerate(steps, 1) if step.state == "in_progress"]
    if len(at_work) > 1:
        raise ToolValidationError(
            f"Steps {', '.join(at_work[:-1])} and {at_work[-1]} are in progress; at most one is. Give the others the state pending, or "
            "make one step of them."
        )


def _rendered(steps: list[Step]) -> str:
    left = [number for number, step in enumerate(steps, 1) if step.state in ("pending", "in_progress")]
    dropped = sum(step.state == "dropped" for step in steps)
    lines = [f"{number}. {_MARKS[step.state]} {' '.join(step.step.split())}" for number, step in enumerate(steps, 1)]
    done = f"{len(steps) - len(left) - dropped} of {len(steps) - dropped} steps done" + (f", {dropped} dropped" if dropped else "")
    if not left:
        return "\n".join([f"Plan ({done}):", *lines, "Nothing is left of it."])
    if all(step.state != "in_progress" for step in steps):
        lines.append(f"No step is in progress; the next is {left[0]}.")
    return "\n".join([f"Plan ({done}):", *lines])


def _data(steps: list[Step]) -> dict[str, Any]:
    return {"steps": [{"step": step.step, "state": step.state} for step in steps]}


def make_plan() -> Tool:
    """The tool `plan`."""
    reads = ToolAnnotations(read_only=True, destructive=False, idempotent=True, open_world=False)
    return Tool.from_function(plan, annotations=reads, category="planning")


def register_planning_tools(registry: ToolRegistry | None = None) -> list[Tool]:
    """The planning tools, for `Agent(tools=...)`; with a `registry`, they are registered there too.

    Equivalent to what importing this module declares: an agent server that is told its name makes them itself.
    """
    register_tool("plan", make_plan)
    found = ToolRegistry() if registry is None else registry
    return found.import_module(__name__)


register_tool("plan", make_plan)
