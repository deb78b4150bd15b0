"""CPU of a tree of 1,000 children, each a conversation of two steps: with a budget of steps, tokens
and dollars, and without one (the floor).

The root's model calls for a hundred children at a time, which its tool runs one after the other on
the call's thread. Models are scripted, so that the figure is the cost of the tree itself. The unit
is CPU and not wall time, since the threads take turns.
"""

from __future__ import annotations

import time
from typing import Any

import harness
from harness import Goal, Row, in_child, in_turns

CHILDREN = 1000


def tree(path: str, bounded: bool, children: int) -> float:
    """Return the milliseconds of CPU of a whole tree."""
    from holdfast import (
        Agent,
        Conversation,
        Limits,
        MemoryStore,
        ScriptedLLM,
        SQLiteStore,
        ToolContext,
    )

    class Priced(ScriptedLLM):
        def parameters(self) -> dict[str, Any]:
            return {"max_output_tokens": 500}

        def cost(self, usage: Any) -> float | None:
            return (usage.input_tokens + 4 * usage.output_tokens) / 1e6

    def look(place: str) -> str:
        """Look somewhere."""
        return f"There is nothing at {place}."

    helper = Agent(
        Priced(
            lambda request: (
                ("look", {"place": "home"})
                if len(request.messages) == 2
                else "I looked, and found nothing."
            )
        ),
        [look],
    )

    def delegate(task: str, context: ToolContext) -> str:
        """Have a task done."""
        with context.spawn(helper, task) as child:
            return child.run().answer

    batch = min(100, children)
    script: list[Any] = [
        [("delegate", {"task": f"task {first + number}"}) for number in range(batch)]
        for first in range(0, children, batch)
    ]
    limits = Limits(steps=10 * children, tokens=10**9, cost=10**6) if bounded else None
    agent = Agent(Priced([*script, "done"]), [delegate], parallel_calls=1, tree_limits=limits)
    store: Any = SQLiteStore(path, "process") if path else MemoryStore()
    with store, Conversation(agent, store, "root") as root:
        root.send_message("Have all of it done.")
        began = time.process_time()
        state = root.run()
        seconds = time.process_time() - began
        assert state.answer == "done", state.error
        assert len(root.children) == children
    return seconds * 1000


def rows(quick: bool) -> list[Row]:
    table: list[Row] = []
    children = 200 if quick else CHILDREN
    with harness.scratch() as folder:
        for name, file in (("in memory", ""), ("SQLite, process", f"{folder}/tree")):
            count = iter(range(1000))

            def measure(bounded: bool, file: str = file, count: Any = count) -> Any:
                return in_child(tree, file and f"{file}{next(count)}.db", bounded, children)

            measured = in_turns(
                2 if quick else 7,
                {"free": lambda m=measure: m(False), "bounded": lambda m=measure: m(True)},
            )
            table.append(
                Row(
                    f"{children:,} children, {name}",
                    "ms",
                    measured["bounded"],
                    measured["free"],
                    Goal(1.2, "ratio"),
                )
            )
    return table
