"""Wall time that code mode adds to a call, per nested call of a script of 300.

The floor is the same 300 calls as plain calls of one answer. A script without calls is subtracted:
it starts the interpreter's process.
"""

from __future__ import annotations

import time
from contextlib import ExitStack

import harness
from harness import Goal, Row, in_child, in_turns

CALLS = 300


def calls(store: str, kind: str) -> float:
    """Return the milliseconds of a turn whose calls are plain ones, calls of a script, or none in
    an empty script."""
    from holdfast import Agent, Conversation, Limits, MemoryStore, ScriptedLLM, SQLiteStore, Tool

    tool = Tool("nothing", "Returns.", lambda n: n)
    script = {
        "plain": [[("nothing", {"n": number}) for number in range(CALLS)], "done"],
        "nested": [
            ("run_code", {"code": f"for n in range({CALLS}):\n    await nothing(n=n)"}),
            "done",
        ],
        "empty": [("run_code", {"code": "1"}), "done"],
    }
    milliseconds: list[float] = []
    for _ in range(4):
        with ExitStack() as stack:
            folder = stack.enter_context(harness.scratch())
            storage = (
                MemoryStore() if store == "memory" else SQLiteStore(f"{folder}/s.db", "process")
            )
            stack.enter_context(storage)
            agent = Agent(
                ScriptedLLM(script[kind]),
                [tool],
                code=kind != "plain",
                stuck=None,
                limits=Limits(steps=None),
            )
            with Conversation(agent, storage) as conversation:
                conversation.send_message("go")
                began = time.perf_counter()
                conversation.run()
                milliseconds.append((time.perf_counter() - began) * 1000)
    return min(milliseconds[1:])  # the first turn loads the modules


def rows(quick: bool) -> list[Row]:
    try:
        import pydantic_monty  # noqa: F401
    except ImportError:
        return [Row("a nested call", "ms", skipped="the extra `code` is not installed")]
    table: list[Row] = []
    for store in ("memory", "SQLite, process"):
        kinds = ("plain", "nested", "empty")
        name = store.partition(",")[0]
        times = in_turns(
            2 if quick else 5,
            {kind: (lambda kind=kind, name=name: in_child(calls, name, kind)) for kind in kinds},
        )
        added = [
            (nested - empty - plain) / CALLS
            for plain, nested, empty in zip(*(times[kind] for kind in kinds), strict=True)
        ]
        plain = [one / CALLS for one in times["plain"]]
        table.append(Row(f"{store}: added to a nested call", "ms", added, plain, Goal(0.5)))
    return table
