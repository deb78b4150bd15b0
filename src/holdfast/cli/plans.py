"""Display of plans, in full or only the changes, and their editing by the user."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from holdfast.cli.text import TextLine, one_line, plain_line
from holdfast.content import ToolCall
from holdfast.events import PlanStep
from holdfast.tools.plans import MARKS, PLAN, plan_problem, progress, read_steps, step_texts

EDITING = (
    "2 TEXT changes step 2, +TEXT adds a step at the end, +2 TEXT adds one before step 2, -2"
    " removes step 2; Enter: done."
)

_STYLES = {"pending": "plain", "in_progress": "call", "done": "dim", "dropped": "dim"}
_MIN_TEXT_COLUMNS = 12  # for a step's text
_EDIT = re.compile(r"(?P<what>[+-]?)\s*(?P<number>\d*)[.:)]?(?:\s+(?P<text>.*))?", re.DOTALL)


def steps_of(call: ToolCall) -> tuple[PlanStep, ...]:
    """Return the plan that a call sets, () if the call is not a valid call of `plan`."""
    steps = read_steps(call.arguments) if call.name == PLAN and not call.invalid else ()
    return () if plan_problem(steps) else steps


def drawn(steps: Sequence[PlanStep], width: int | None) -> list[TextLine]:
    """Return the lines of a whole plan: its progress, then every step with its mark."""
    return [_head(steps), *_steps(steps, range(len(steps)), width)]


def change_lines(
    steps: Sequence[PlanStep], before: Sequence[PlanStep], width: int | None
) -> list[TextLine]:
    """Return the lines for a plan that replaces `before`: all steps if a text differs, else those
    with another state. Equal plans have no lines."""
    if steps == before:
        return []
    if step_texts(steps) != step_texts(before):
        return drawn(steps, width)
    other = [n for n, step in enumerate(steps) if step.state != before[n].state]
    return [_head(steps), *_steps(steps, other, width)]


def current(steps: Sequence[PlanStep]) -> str:
    """Return the step in progress, such as `step 2 of 5, Fix the offset`, or ""."""
    for number, step in enumerate(steps, 1):
        if step.state == "in_progress":
            return f"step {number} of {len(steps)}, {one_line(step.step)}"
    return ""


def compared(steps: Sequence[PlanStep], before: Sequence[str], width: int | None) -> list[TextLine]:
    """Return the lines of a plan to approve: steps approved before are dim, removed ones listed."""
    if not before:
        return drawn(steps, width)
    lines = [_head(steps)]
    for index, text in enumerate(step_texts(steps)):
        style = "dim" if text in before else "add"
        lines += [TextLine(style, line.text) for line in _steps(steps, [index], width)]
    for text in before:
        if text not in step_texts(steps):
            wrapped = _wrapped("    without: ", plain_line(text), width)
            lines += [TextLine("remove", line) for line in wrapped]
    return lines


def edited(steps: Sequence[PlanStep], line: str) -> tuple[PlanStep, ...]:
    """Return the plan after one line of editing. Raises `ValueError` with the reason."""
    line = line.strip()
    what, number, text = "", "", ""
    if match := _EDIT.fullmatch(line):
        what, number, text = match["what"], match["number"], (match["text"] or "").strip()
    elif line.startswith("+"):
        what, text = "+", line[1:].strip()
    if (what != "+" and not number) or (what != "-" and not text) or (what == "-" and text):
        raise ValueError(f"That is not a change. {EDITING}")
    at = int(number) - 1 if number else len(steps)
    if not 0 <= at < len(steps) + (not number):
        raise ValueError(f"There is no step {number}; the plan has {len(steps)}.")
    plan = list(steps)
    if what == "-":
        del plan[at]
    elif what == "+":
        plan.insert(at, PlanStep(text))
    else:
        plan[at] = PlanStep(text, plan[at].state)
    if wrong := plan_problem(plan):
        raise ValueError(wrong)
    return tuple(plan)


def _head(steps: Sequence[PlanStep]) -> TextLine:
    return TextLine("call", f"{PLAN}: {progress(steps)}")


def _steps(steps: Sequence[PlanStep], which: Sequence[int], width: int | None) -> list[TextLine]:
    digits, lines = len(str(len(steps))), list[TextLine]()
    for index in which:
        step = steps[index]
        begin = f"  {MARKS[step.state]} {index + 1:>{digits}}. "
        wrapped = _wrapped(begin, plain_line(step.step), width)
        lines += [TextLine(_STYLES[step.state], line) for line in wrapped]
    return lines


def _wrapped(begin: str, text: str, width: int | None) -> list[str]:
    if width is None:
        return [begin + text]
    room = max(_MIN_TEXT_COLUMNS, width - len(begin))
    lines = textwrap.wrap(text, room, break_on_hyphens=False) or [""]
    return [begin + lines[0], *[" " * len(begin) + line for line in lines[1:]]]
