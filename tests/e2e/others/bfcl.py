"""BFCL's multi-turn tasks: its Python back ends as tools, its ground truths as the model, its own
checker as the judge.

    PYTHONPATH=.venv/bfcl:src:. python -m tests.e2e.others.bfcl --way code
"""

from __future__ import annotations

import ast
import copy
import functools
import importlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bfcl_eval
from bfcl_eval.constants.executable_backend_config import (
    CLASS_FILE_PATH_MAPPING,
    MULTI_TURN_FUNC_DOC_FILE_MAPPING,
    STATELESS_CLASSES,
)
from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import (
    multi_turn_checker,
    state_checker,
)
from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils import execute_multi_turn_func_call

from holdfast import Tool
from holdfast.errors import ToolError
from holdfast.tools.running import checked_arguments
from tests.e2e.others.play import (
    MadeCall,
    Tally,
    Turn,
    WantedCall,
    arguments_of,
    play,
    sample,
)

CATEGORIES = ("base", "long_context", "miss_func", "miss_param")
DATA = Path(bfcl_eval.__file__).parent / "data"
_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": None}
_MORE_FUNCTIONS = "There are more functions now."  # BFCL has no message for these turns


def lines(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text().splitlines():
        yield json.loads(line)


def schema(definition: Any) -> Any:
    """Return BFCL's form of a JSON Schema as a JSON Schema."""
    if isinstance(definition, list):
        return [schema(one) for one in definition]
    if not isinstance(definition, dict):
        return definition
    converted = {key: schema(value) for key, value in definition.items()}
    kind = converted.get("type")
    if isinstance(kind, str) and kind in _TYPES:
        converted.pop("type")
        if _TYPES[kind] is not None:
            converted["type"] = _TYPES[kind]
    return converted


def back_ends(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the task's back ends by class, in their first state."""
    instances: dict[str, Any] = {}
    for name in entry["involved_classes"]:
        module = importlib.import_module(CLASS_FILE_PATH_MAPPING[name])
        instances[name] = getattr(module, name)()
        if name not in STATELESS_CLASSES:
            config = copy.deepcopy(entry["initial_config"].get(name, {}))
            instances[name]._load_scenario(config, long_context="long_context" in entry["id"])
    return instances


def tools(instances: dict[str, Any], tally: Tally) -> dict[str, Tool]:
    """Return the methods of back ends as tools by name, with BFCL's own schemas."""
    tools_by_name: dict[str, Tool] = {}
    for name, instance in instances.items():
        file = DATA / "multi_turn_func_doc" / MULTI_TURN_FUNC_DOC_FILE_MAPPING[name]
        for doc in lines(file):
            call = as_json(doc["name"], getattr(instance, doc["name"]), tally)
            tools_by_name[doc["name"]] = Tool(
                doc["name"], doc["description"], call, schema(doc["parameters"])
            )
    return tools_by_name


def as_json(name: str, method: Callable[..., Any], tally: Tally) -> Callable[..., Any]:
    """Return a method whose results are JSON. Other results become text, as BFCL's own harness
    gives them to a model."""

    @functools.wraps(method)
    def call(**arguments: Any) -> Any:
        value = method(**arguments)
        try:
            json.dumps(value)
        except TypeError:
            tally.note("results that are not JSON", name)
            return str(value)
        return value

    return call


def fitting(tool: Tool, call: WantedCall, tally: Tally) -> Tool:
    """Return a tool that takes the arguments of a call: without the types of its parameters, if the
    ground truth breaks BFCL's own schema."""
    try:
        checked_arguments(tool, call.arguments)
    except ToolError:
        tally.note("calls that break BFCL's own schema", as_python(call))
        untyped = {
            **tool.input_schema,
            "properties": {name: {} for name in tool.input_schema["properties"]},
        }
        return Tool(tool.name, tool.description, tool.callback, untyped)
    return tool


def expected_call(text: str, tools_by_name: dict[str, Tool]) -> WantedCall:
    """Return a call of the ground truth, which is a Python expression with literal arguments."""
    call = ast.parse(text, mode="eval").body
    assert isinstance(call, ast.Call)
    assert isinstance(call.func, ast.Name)
    parameters = list(tools_by_name[call.func.id].input_schema["properties"])
    pairs = [*zip(parameters, call.args, strict=False), *((k.arg, k.value) for k in call.keywords)]
    return WantedCall(call.func.id, {name: ast.literal_eval(value) for name, value in pairs})


def as_python(call: Any) -> str:
    return (
        f"{call.name}({', '.join(f'{name}={value!r}' for name, value in call.arguments.items())})"
    )


def plain(text: str) -> Any:
    """Return a result as data, whatever its notation."""
    try:
        return json.loads(text)
    except ValueError:
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError):
            return text


def run(entry: dict[str, Any], truth: list[list[str]], way: str, tally: Tally) -> None:
    """Play a task; raise `AssertionError` at the first turn whose state or results differ."""
    instances = back_ends(entry)
    tools_by_name = tools(instances, tally)
    calls = [[expected_call(text, tools_by_name) for text in texts] for texts in truth]
    for call in [call for turn in calls for call in turn]:
        tools_by_name[call.name] = fitting(tools_by_name[call.name], call, tally)
    late: dict[str, list[str]] = entry.get("missed_function", {})
    late_tools = {name: int(turn) for turn, names in late.items() for name in names}
    for number, call in [(number, call) for number, turn in enumerate(calls) for call in turn]:
        if number < late_tools.get(call.name, 0):
            tally.note("calls of a function that comes later", f"{entry['id']}: {call.name}")
            del late_tools[call.name]
    turns = [
        Turn(
            "\n".join(message["content"] for message in entry["question"][number])
            or _MORE_FUNCTIONS,
            calls[number],
            [tools_by_name[name] for name, turn in late_tools.items() if turn == number],
        )
        for number in range(len(truth))
    ]
    decoded: list[list[list[str]]] = []

    def after(number: int, turn_calls: list[MadeCall]) -> None:
        tally.counts["turns"] += 1
        tally.counts["calls"] += len(turn_calls)
        results, theirs = execute_multi_turn_func_call(
            truth[number],
            entry["initial_config"],
            entry["involved_classes"],
            f"truth_{way}",
            entry["id"],
            long_context="long_context" in entry["id"],
        )
        verdict = state_checker(instances, theirs)
        assert verdict["valid"], verdict
        for one, result in zip(turn_calls, results, strict=True):
            if one.result.is_error:
                error = one.result.error
                tally.counts["failed calls"] += 1
                kind = error.type if error else ""
                tally.note(f"calls of the ground truth that fail: {kind}", as_python(one.call))
                failed = result.startswith("Error during execution: ")
                assert failed, (as_python(one.call), one.result.text, result)
            else:
                ours = one.result.structured_content
                ours = plain(one.result.text) if ours is None else ours
                assert ours == plain(result) or (one.result.text, result) == ("", "None"), (
                    as_python(one.call),
                    ours,
                    result,
                )
        decoded.append([[as_python(one.call)] for one in turn_calls])

    first = [tool for name, tool in tools_by_name.items() if name not in late_tools]
    play(first, turns, way, after)
    category = entry["id"].rpartition("_")[0]
    verdict = multi_turn_checker(decoded, truth, entry, category, f"journal_{way}")
    assert verdict["valid"], verdict


def main() -> None:
    options, tally = arguments_of(__doc__ or ""), Tally()
    for category in CATEGORIES:
        name = f"BFCL_v4_multi_turn_{category}.json"
        truths = {one["id"]: one["ground_truth"] for one in lines(DATA / "possible_answer" / name)}
        entries = list(lines(DATA / name))
        for entry in sample(entries, lambda one: one["id"], options.one_in):
            task = entry["id"]
            tally.run(task, lambda: run(entry, truths[task], options.way, tally))  # noqa: B023
    tally.print()


if __name__ == "__main__":
    main()
