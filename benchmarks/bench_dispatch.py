"""CPU of one local function-tool call through `ToolManager.run`, validated, beside pydantic's
`validate_call` on the same function.

One process calls in a loop, in slices of some thousand calls that take turns with the floor's.
`run` does its usual work: it looks the tool up, validates, calls, and turns the outcome into a
`ToolResult`. Nothing is journaled.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from harness import Goal, Row, in_child, in_turns

ARGUMENTS = {"key": "item-1", "limit": 3}


def look_up(key: str, limit: int = 10) -> str:
    """Look up what is known of an item."""
    return key


def measure(repeats: int, calls: int) -> dict[str, list[float]]:
    """Return the microseconds per call, by the callable that is measured."""
    import pydantic

    from holdfast import Tool, ToolCall, ToolContext, ToolManager

    schema = {
        "type": "object",
        "properties": {"key": {"type": "string"}, "limit": {"type": "integer"}},
        "required": ["key"],
        "additionalProperties": False,
    }
    manager = ToolManager(
        [look_up, Tool("by_schema", "Look up.", lambda key, limit=10: key, input_schema=schema)]
    )
    signature, by_schema = (
        ToolCall("1.0", "look_up", ARGUMENTS),
        ToolCall("1.1", "by_schema", ARGUMENTS),
    )
    wrong = ToolCall("1.2", "look_up", {"key": 1, "limit": "many"})
    context = ToolContext("conversation", "1.0")
    checked = pydantic.validate_call(look_up)
    assert (
        manager.run(signature).text
        == manager.run(by_schema).text
        == checked(**ARGUMENTS)
        == "item-1"
    )
    assert manager.run(wrong).is_error

    def timed(function: Callable[[], Any], calls: int) -> Callable[[], float]:
        def slice() -> float:
            began = time.process_time()
            for _ in range(calls):
                function()
            return (time.process_time() - began) / calls * 1e6

        slice()
        return slice

    return in_turns(
        repeats,
        {
            "bare": timed(lambda: look_up(**ARGUMENTS), calls),
            "pydantic": timed(lambda: checked(**ARGUMENTS), calls),
            "run": timed(lambda: manager.run(signature), calls),
            "in context": timed(lambda: manager.run(signature, context), calls),
            "by schema": timed(lambda: manager.run(by_schema), calls // 5),
            "wrong": timed(lambda: manager.run(wrong), calls // 5),
        },
    )


def rows(quick: bool) -> list[Row]:
    times = in_child(measure, 3 if quick else 11, 2000 if quick else 20000)
    floor = times["pydantic"]
    return [
        Row("a function, by its signature", "us", times["run"], floor, Goal(5)),
        Row(
            "the same, with the context that a conversation gives", "us", times["in context"], floor
        ),
        Row("a JSON Schema, by jsonschema", "us", times["by schema"], floor),
        Row("arguments that do not fit, to an error for the model", "us", times["wrong"], floor),
        Row("the bare function", "us", times["bare"], floor),
    ]
