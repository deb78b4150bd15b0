"""CPU that all behaviours together add to a step, that each adds alone, and the journal's part in
it.

A behaviour is switched on by its argument of `Agent`. Behaviours that the installed Holdfast does
not have are left out and named. The unit is CPU milliseconds (all threads) per step of a run of N
steps against the model server of `bench_step`; each step is one validated tool call.

A figure and its floor, the same agent with no behaviour, are measured in turns in one fresh
process. The least of several runs counts for each. The added CPU is the difference of the two, so
that a busy machine distorts it little. No behaviour intervenes in these runs: the figure is the
cost of having it.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
from bench_step import NOTE
from harness import Goal, Row, in_child

GOAL = 0.15  # ms per step that all together may add
SKILLS = 20


@dataclass
class ItemFacts:
    """The output of the agent."""

    items: int
    summary: str


def look_up(key: str, limit: int = 10) -> str:
    """Look up what is known of an item.

    Args:
        key: the item
        limit: how many lines at most
    """
    return f"{key}: {NOTE}"


# --- the behaviours: what each gives to `Agent`, and the tools that come with it ---


def _planning(folder: str) -> dict[str, Any]:
    return {"planning": "tool"}


def _security(folder: str) -> dict[str, Any]:
    from holdfast.agent.confirmation import AboveRisk
    from holdfast.agent.security import standard

    return {"security": standard(), "confirm": AboveRisk("medium")}


def _stuck(folder: str) -> dict[str, Any]:
    from holdfast.agent.stuck import StuckDetector

    return {"stuck": StuckDetector()}


def _tree_limits(folder: str) -> dict[str, Any]:
    from holdfast import Limits

    return {"tree_limits": Limits(steps=10**6, tokens=10**12)}


def _skills(folder: str) -> dict[str, Any]:
    from holdfast.tools.skills import discover

    root = Path(folder) / "skills"
    for number in range(SKILLS):
        (root / f"skill-{number}").mkdir(parents=True, exist_ok=True)
        (root / f"skill-{number}" / "SKILL.md").write_text(
            f"---\nname: skill-{number}\ndescription: How to do thing {number} well.\n"
            f'metadata: {{triggers: "gadget {number}, widget{number}", paths: "*.g{number},'
            f' things/{number}/**"}}\n---\n{NOTE}\n'
        )
    return {"skills": discover([str(root)])}


def _instructions(folder: str) -> dict[str, Any]:
    root = Path(folder) / "project"
    root.mkdir(exist_ok=True)
    (root / "AGENTS.md").write_text(NOTE)
    return {"instructions": str(root)}


def _hooks(folder: str) -> dict[str, Any]:
    from holdfast.tools.hook_answers import PLACES
    from holdfast.tools.hooks import Hook

    def nothing(*_: Any) -> None:
        return None

    return {"hooks": [Hook(**{when: nothing}, on=place) for place, when in PLACES]}  # type: ignore[arg-type]


def _output_type(folder: str) -> dict[str, Any]:
    return {"output_type": ItemFacts, "output_rounds": 1}


def _memory(folder: str) -> dict[str, Any]:
    from holdfast.tools.preset.memory import make_memory

    return {"tools": make_memory(f"{folder}/notes")}


def _describe_images(folder: str) -> dict[str, Any]:
    from holdfast import ScriptedLLM

    return {"describe_images": ScriptedLLM([], "eyes")}


def _delegates(folder: str) -> dict[str, Any]:
    from holdfast import Agent, ScriptedLLM

    return {"delegates": {"helper": Agent(ScriptedLLM([]))}}


def _ask_user(folder: str) -> dict[str, Any]:
    from holdfast.tools.preset.asking import register_asking_tools

    return {"tools": register_asking_tools()}


BEHAVIOURS: dict[str, Callable[[str], dict[str, Any]]] = {
    "planning": _planning,
    "security": _security,
    "stuck": _stuck,
    "tree_limits": _tree_limits,
    "skills": _skills,
    "instructions": _instructions,
    "hooks": _hooks,
    "output_type": _output_type,
    "memory": _memory,
    "describe_images": _describe_images,
    "delegates": _delegates,
    "ask_user": _ask_user,
}


def there(folder: str) -> list[str]:
    """Return the names of the behaviours that this Holdfast has."""
    from holdfast import Agent

    parameters = set(inspect.signature(Agent.__init__).parameters)
    names: list[str] = []
    for name, make in BEHAVIOURS.items():
        try:
            if set(make(folder)) <= parameters:
                names.append(name)
        except ImportError:
            continue
    return names


def agent(port: int, calls: int, names: list[str], folder: str) -> Any:
    """Return an agent with these behaviours. Without any, it also lacks the behaviours that are on
    by default."""
    from holdfast import LLM, Agent, Limits, Tool
    from holdfast.tools.tool import ToolAnnotations

    reads = ToolAnnotations(read_only=True, destructive=False, idempotent=True, open_world=False)
    tools: list[Any] = [Tool.from_function(look_up, annotations=reads)]
    options: dict[str, Any] = {"limits": Limits(steps=None)}
    if "stuck" in inspect.signature(Agent.__init__).parameters:
        options["stuck"] = None
    for name in names:
        arguments = BEHAVIOURS[name](folder)
        tools += arguments.pop("tools", [])
        options |= arguments
    return Agent(
        LLM("mock", base_url=f"http://127.0.0.1:{port}/{calls}/1/0", max_output_tokens=1000),
        tools,
        **options,
    )


def run(port: int, steps: int, store: str, names: list[str], folder: str) -> float:
    """Return the milliseconds of CPU per step of one run."""
    from holdfast import Conversation, SQLiteStore

    # the text that is refused at the end is logged
    logging.getLogger("holdfast").setLevel(logging.CRITICAL)
    where = (
        None
        if store == "memory"
        else SQLiteStore(f"{folder}/{time.monotonic_ns()}.db", durability=store)
    )  # pyright: ignore
    with Conversation(agent(port, steps, names, folder), where) as conversation:
        conversation.send_message("What is known of these items?")
        began = time.process_time()
        state = conversation.run()
        seconds = time.process_time() - began
    assert state.steps > steps, (state, state.error)
    ended = state.status if state.error is None else state.error.error
    assert ended in ("finished", "OutputInvalid"), (
        state,
        state.error,
    )  # the server does not know `finish`, so its text is refused
    if where is not None:
        where.close()
    return seconds / state.steps * 1000


def pair(
    port: int, steps: int, store: str, names: list[str], folder: str, times: int
) -> list[float]:
    """Return the least of several runs without any behaviour and with these, measured in turns."""
    milliseconds: list[list[float]] = [[], []]
    for number in range(times + 1):
        for kind, on in enumerate(([], names)):
            per_step = run(port, 20 if not number else steps, store, on, folder)
            if number:
                milliseconds[kind].append(per_step)
    return [min(milliseconds[0]), min(milliseconds[1])]


def added(what: str, pairs: list[list[float]], goal: Goal | None) -> list[Row]:
    """Return a row for the figure beside its floor, and one for their difference."""
    difference = [on - off for off, on in pairs]
    return [
        Row(what, "ms", [on for _, on in pairs], [off for off, _ in pairs]),
        Row("  of this, added", "ms", difference, goal=goal),
    ]


def rows(quick: bool) -> list[Row]:
    table: list[Row] = []
    with harness.mock_model() as port, harness.scratch() as folder:
        names = in_child(there, folder)
        for steps in (200,) if quick else (200, 1000):
            for store, called in (("memory", "memory"), ("process", "SQLite")):
                repeats, times = (2, 2) if quick else (3, 3 if steps > 200 else 5)
                pairs = [
                    in_child(pair, port, steps, store, names, folder, times) for _ in range(repeats)
                ]
                table += added(f"all on, {steps} steps, {called}", pairs, Goal(GOAL))
        for name in BEHAVIOURS:
            if name not in names:
                table.append(Row(f"{name} alone", "ms", skipped="this Holdfast does not have it"))
                continue
            for store, called in (
                (("memory", "memory"),) if quick else (("memory", "memory"), ("process", "SQLite"))
            ):
                pairs = [
                    in_child(pair, port, 200, store, [name], folder, 2 if quick else 4)
                    for _ in range(1 if quick else 3)
                ]
                table.append(
                    Row(
                        f"{name} alone adds, 200 steps, {called}",
                        "ms",
                        [on - off for off, on in pairs],
                    )
                )
    return table
