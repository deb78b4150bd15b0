"""What all behaviours together add to a step's CPU, what each adds alone, and the journal's part in
it.

A behaviour is switched on by its argument of `Agent`; what the installed Holdfast does not have yet
is left out and named. CPU milliseconds (all threads) per step of a run of N steps against the model
server of `bench_step`, each step one validated tool call. A figure and its floor, the same agent
with none, are measured in turns in one fresh process, and the least of several runs counts for
each: what is added is the difference of two of those, so that a busy machine harms it little. No
behaviour has anything to say in these runs: that is what is measured.
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
class Found:
    """What is known of the items."""

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
    return {"output_type": Found, "output_rounds": 1}


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
    """The names of the behaviours that this Holdfast has."""
    from holdfast import Agent

    known = set(inspect.signature(Agent.__init__).parameters)
    found: list[str] = []
    for name, make in BEHAVIOURS.items():
        try:
            if set(make(folder)) <= known:
                found.append(name)
        except ImportError:
            continue
    return found


def agent(port: int, calls: int, names: list[str], folder: str) -> Any:
    """The agent with these behaviours; with none it has not even what is on by default."""
    from holdfast import LLM, Agent, Limits, Tool
    from holdfast.tools.tool import ToolAnnotations

    reads = ToolAnnotations(read_only=True, destructive=False, idempotent=True, open_world=False)
    tools: list[Any] = [Tool.from_function(look_up, annotations=reads)]
    options: dict[str, Any] = {"limits": Limits(steps=None)}
    if "stuck" in inspect.signature(Agent.__init__).parameters:
        options["stuck"] = None
    for name in names:
        given = BEHAVIOURS[name](folder)
        tools += given.pop("tools", [])
        options |= given
    return Agent(
        LLM("mock", base_url=f"http://127.0.0.1:{port}/{calls}/1/0", max_output_tokens=1000),
        tools,
        **options,
    )


def run(port: int, steps: int, store: str, names: list[str], folder: str) -> float:
    """Milliseconds of CPU per step of one run."""
    from holdfast import Conversation, SQLiteStore

    logging.getLogger("holdfast").setLevel(
        logging.CRITICAL
    )  # of the text that is refused at the end
    where = (
        None
        if store == "memory"
        else SQLiteStore(f"{folder}/{time.monotonic_ns()}.db", durability=store)
    )  # pyright: ignore
    with Conversation(agent(port, steps, names, folder), where) as conversation:
        conversation.send_message("What is known of these items?")
        began = time.process_time()
        state = conversation.run()
        spent = time.process_time() - began
    assert state.steps > steps, (state, state.error)
    ended = state.status if state.error is None else state.error.error
    assert ended in ("finished", "OutputInvalid"), (
        state,
        state.error,
    )  # the server knows no finish, so that its text is refused
    if where is not None:
        where.close()
    return spent / state.steps * 1000


def pair(
    port: int, steps: int, store: str, names: list[str], folder: str, times: int
) -> list[float]:
    """The least of several runs with none, and with these, in turns."""
    found: list[list[float]] = [[], []]
    for number in range(times + 1):
        for kind, on in enumerate(([], names)):
            spent = run(port, 20 if not number else steps, store, on, folder)
            if number:
                found[kind].append(spent)
    return [min(found[0]), min(found[1])]


def added(what: str, pairs: list[list[float]], goal: Goal | None) -> list[Row]:
    """The figure beside its floor, and what the difference is."""
    difference = [on - off for off, on in pairs]
    return [
        Row(what, "ms", [on for _, on in pairs], [off for off, _ in pairs]),
        Row("  of this, added", "ms", difference, goal=goal),
    ]


def rows(quick: bool) -> list[Row]:
    found: list[Row] = []
    with harness.mock_model() as port, harness.scratch() as folder:
        names = in_child(there, folder)
        for steps in (200,) if quick else (200, 1000):
            for store, called in (("memory", "memory"), ("process", "SQLite")):
                repeats, times = (2, 2) if quick else (3, 3 if steps > 200 else 5)
                pairs = [
                    in_child(pair, port, steps, store, names, folder, times) for _ in range(repeats)
                ]
                found += added(f"all on, {steps} steps, {called}", pairs, Goal(GOAL))
        for name in BEHAVIOURS:
            if name not in names:
                found.append(Row(f"{name} alone", "ms", skipped="this Holdfast does not have it"))
                continue
            for store, called in (
                (("memory", "memory"),) if quick else (("memory", "memory"), ("process", "SQLite"))
            ):
                pairs = [
                    in_child(pair, port, 200, store, [name], folder, 2 if quick else 4)
                    for _ in range(1 if quick else 3)
                ]
                found.append(
                    Row(
                        f"{name} alone adds, 200 steps, {called}",
                        "ms",
                        [on - off for off, on in pairs],
                    )
                )
    return found
