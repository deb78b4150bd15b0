"""Tests of the functions and calls of a public leaderboard: real schemas, good and odd, each as a
tool and each called."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from holdfast.content import ToolCall
from holdfast.tools import Tool, ToolManager
from holdfast.tools.names import wire_name
from tests.paths import SHARED

DATA = SHARED / "function_calls" / "bfcl_single_turn.jsonl"
pytestmark = pytest.mark.skipif(not DATA.exists(), reason=f"{DATA} is not here")

LEGAL = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def canonical(name: str) -> str:
    """Return a function's name in the letters that a tool's name may have."""
    return re.sub(r"[^A-Za-z0-9_.\-]", "_", name)


class Case:
    """A case: a manager of its functions, and the calls that reached them."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.id: str = case["id"]
        self.calls = [(canonical(call["name"]), call["arguments"]) for call in case["calls"]]
        self.schemas = {
            canonical(function["name"]): function["parameters"] for function in case["functions"]
        }
        self.received: list[tuple[str, dict[str, Any]]] = []
        self.tools = ToolManager(self._tool(function) for function in case["functions"])

    def _tool(self, function: dict[str, Any]) -> Tool:
        name = canonical(function["name"])
        return Tool(
            name,
            function["description"],
            lambda **kwargs: self.received.append((name, kwargs)),
            function["parameters"],
        )


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    loaded = [Case(json.loads(line)) for line in DATA.open(encoding="utf-8")]
    assert len(loaded) == 2323
    return loaded


@pytest.mark.slow
def test_every_function_becomes_a_tool_under_a_legal_name_that_leads_back_to_it(
    cases: list[Case],
) -> None:
    count = 0
    for case in cases:
        for definition in case.tools.definitions():
            count += 1
            assert LEGAL.fullmatch(definition.wire_name), definition.name
            assert case.tools.get(definition.wire_name).name == definition.name
            assert definition.input_schema["type"] == "object"
    assert count == 6145


@pytest.mark.slow
def test_no_two_functions_of_the_whole_set_share_a_wire_name(cases: list[Case]) -> None:
    names = {name for case in cases for name in case.schemas}
    assert len(names) == 1284
    assert len({wire_name(name) for name in names}) == len(names)


# The place of a tool's name and its schema in each style, and the names that its API takes.
STYLES: dict[str, Any] = {
    "openai_chat": (lambda entry: entry["function"], "parameters", LEGAL),
    "openai_responses": (lambda entry: entry, "parameters", LEGAL),
    "anthropic": (lambda entry: entry, "input_schema", re.compile(r"[a-zA-Z0-9_-]{1,128}")),
    "gemini": (
        lambda entry: entry,
        "parametersJsonSchema",
        re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,127}"),
    ),
    "mcp": (lambda entry: entry, "inputSchema", re.compile(r"[A-Za-z0-9_.\-]{1,128}")),
}


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES)
def test_every_function_is_a_legal_definition_in_every_style(cases: list[Case], style: str) -> None:
    inner, schema_key, legal = STYLES[style]
    count = strict = 0
    for case in cases:
        definitions = case.tools.get_llm_definitions(style=style)
        names = {inner(entry)["name"] for entry in definitions}
        assert len(names) == len(definitions)
        for tool, entry in zip(case.tools.definitions(), definitions, strict=True):
            count += 1
            function = inner(entry)
            assert legal.fullmatch(function["name"]), function["name"]
            assert function["description"] == tool.description
            assert function[schema_key] == tool.input_schema  # whole, never flattened
            json.dumps(entry)
            if function.get("strict"):
                strict += 1
                assert function[schema_key]["additionalProperties"] is False
                assert set(function[schema_key]["required"]) == set(
                    function[schema_key]["properties"]
                )
            name = (
                function["name"].removeprefix("_")
                if style == "gemini" and function["name"] != tool.wire_name
                else function["name"]
            )
            assert case.tools.get(name).name == tool.name
    assert count == 6145
    assert style == "openai_responses" or not strict


@pytest.mark.slow
def test_every_call_is_valid_and_reaches_its_function_unchanged(cases: list[Case]) -> None:
    wrong: list[str] = []
    count = 0
    for case in cases:
        for name, arguments in case.calls:
            count += 1
            case.received.clear()
            before = json.dumps(arguments)
            result = case.tools.run(ToolCall("1.0", name, arguments))
            if (
                result.is_error
                or case.received != [(name, arguments)]
                or json.dumps(case.received[0][1]) != before
            ):
                wrong.append(f"{case.id}: {result.text or case.received}")
    assert count == 3118
    assert wrong == []


def altered(case: Case, change: str) -> Any:
    """Yield each call of a case with each of its arguments removed or renamed (if required) or
    given as another type."""
    for name, arguments in case.calls:
        schema = case.schemas[name]
        for argument in arguments:
            rest = {key: value for key, value in arguments.items() if key != argument}
            required = argument in schema.get("required", [])
            if change == "removed" and required:
                yield name, argument, rest
            elif change == "renamed" and required:
                yield name, argument, {**rest, f"{argument}_x": arguments[argument]}
            elif change == "retyped" and "type" in schema["properties"].get(argument, {}):
                yield name, argument, {**rest, argument: [[{"no": "such thing"}]]}


@pytest.mark.slow
@pytest.mark.parametrize("change", ["removed", "renamed", "retyped"])
def test_a_call_with_one_argument_wrong_is_refused_by_name(cases: list[Case], change: str) -> None:
    wrong: list[str] = []
    count = 0
    for case in cases:
        case.received.clear()
        for name, argument, arguments in altered(case, change):
            count += 1
            result = case.tools.run(ToolCall("1.0", name, arguments))
            if (
                result.error is None
                or result.error.type != "validation"
                or argument not in result.text
                or case.received
            ):
                wrong.append(f"{case.id}: {name}({argument}): {result.text}")
    assert count > 4000
    assert wrong == []
