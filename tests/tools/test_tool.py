"""Tests of `Tool`: every way to declare one, their refusals, and the arguments that reach the
callback."""

from __future__ import annotations

import functools
import math
import textwrap
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from pydantic import BaseModel, Field

from holdfast.content import ToolResult
from holdfast.errors import ConfigurationError, HoldfastError, ToolValidationError
from holdfast.tools import RetryPolicy, Tool, ToolAnnotations, ToolContext, tool

if TYPE_CHECKING:
    from decimal import Decimal as OnlyForTheChecker


def add(a: int, b: int = 2) -> int:
    """Add two numbers.

    Args:
        a: the first
        b: the second
    """
    return a + b


class Adder:
    """Adds."""

    def __call__(self, a: int, b: int = 2) -> int:
        return a + b

    def method(self, a: int, b: int = 2) -> int:
        return a + b

    @staticmethod
    def static(a: int, b: int = 2) -> int:
        return a + b

    @classmethod
    def of_class(cls, a: int, b: int = 2) -> int:
        return a + b


class Sum:
    def __init__(self, a: int, b: int = 2) -> None:
        self.total = a + b

    def model_dump(self, mode: str) -> int:
        return self.total


@functools.lru_cache
def cached(a: int, b: int = 2) -> int:
    return a + b


def loud(function: Any) -> Any:
    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapped


def three(a: int, b: int = 2, *, secret: str) -> int:
    """Add with a secret."""
    assert secret == "s3cret"
    return a + b


@tool
def plain(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


@tool(
    name="given.name",
    description="Given.",
    category="maths",
    annotations=ToolAnnotations(read_only=True),
    timeout=5,
)
def decorated(a: int, b: int = 2) -> int:
    return a + b


class Doubler(Tool):
    def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        return arguments["a"] + arguments.get("b", 2)


SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a"],
}


def in_maths(name: str) -> Tool:
    return Tool(name, "Root.", lambda x: math.sqrt(x), {"type": "number"})


# --- ways of declaring ---

WAYS = [
    Tool("t", "Adds.", add),
    Tool("t", "Adds.", add, SCHEMA),
    Tool("t", "Adds.", add, inputSchema=SCHEMA),
    Tool(name="t", description="Adds.", callback=add, input_schema=SCHEMA),
    Tool("t", "Adds.", lambda a, b=2: a + b, SCHEMA),
    Tool("t", "Adds.", lambda **kwargs: kwargs["a"] + kwargs.get("b", 2), SCHEMA),
    Tool.from_function(add),
    Tool.from_function(Adder(), "t"),
    Tool.from_function(Adder().method),
    Tool.from_function(Adder.static),
    Tool.from_function(Adder.of_class),
    Tool.from_function(Sum),
    Tool.from_function(cached),
    Tool.from_function(loud(add)),
    Tool.from_function(functools.partial(add, b=2)),
    Tool.from_function(functools.partial(three, secret="s3cret")),
    Tool.from_function(functools.partial(functools.partial(three, secret="s3cret"), b=2)),
    Tool.from_function(lambda a, b=2: a + b, "t"),
    plain,
    decorated,
    Doubler("t", "Adds.", input_schema=SCHEMA),
]


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_declaring_a_tool_makes_one_that_runs(way: Tool) -> None:
    assert way.run({"a": 3}).data == 5
    assert way.input_schema["properties"]["a"].get("type", "integer") == "integer"
    assert "a" in way.input_schema["required"]
    with pytest.raises(ToolValidationError, match="a is required"):
        way.run({})


def test_a_functions_name_and_docstring_become_the_tools() -> None:
    tool = Tool.from_function(add)
    assert (tool.name, tool.description) == ("add", "Add two numbers.")
    assert [item["description"] for item in tool.input_schema["properties"].values()] == [
        "the first",
        "the second",
    ]
    assert tool.input_schema["properties"]["b"]["default"] == 2
    assert tool.input_schema["additionalProperties"] is False


def test_a_partial_has_the_name_and_docstring_of_its_function() -> None:
    tool = Tool.from_function(functools.partial(three, secret="s3cret"))
    assert (tool.name, tool.description) == ("three", "Add with a secret.")


def test_what_a_partial_binds_is_hidden_from_the_model_and_cannot_be_overridden() -> None:
    tool = Tool.from_function(functools.partial(three, secret="s3cret"))
    assert "s3cret" not in str(tool.input_schema)
    assert set(tool.input_schema["properties"]) == {"a", "b"}
    with pytest.raises(ToolValidationError, match="secret is not one of its parameters"):
        tool.run({"a": 1, "secret": "mine"})


def test_the_decorator_keeps_the_function_callable() -> None:
    assert plain(3) == decorated(3, b=2) == 5
    assert (decorated.name, decorated.description, decorated.category, decorated.timeout) == (
        "given.name",
        "Given.",
        "maths",
        5,
    )
    assert decorated.annotations.read_only


def test_a_tool_without_a_callback_says_how_to_run_it() -> None:
    with pytest.raises(HoldfastError, match=r"use run\(arguments\)"):
        Doubler("t")(1)


def test_a_subclass_without_a_schema_takes_anything() -> None:
    assert Doubler("t").run({"a": 1, "b": 1, "c": 0}).data == 2
    assert Doubler("t").input_schema == {"type": "object", "properties": {}}


def test_a_tools_types_are_those_of_the_design() -> None:
    assert (plain.tool_type, Doubler("t").tool_type) == ("local_function", "custom")


def test_a_schema_is_copied_so_that_later_changes_do_not_reach_the_tool() -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}
    tool = Tool("t", "", lambda **kwargs: "", schema)
    schema["properties"]["a"]["type"] = "string"
    assert tool.input_schema["properties"]["a"]["type"] == "integer"


# --- wrong arguments ---


async def waits() -> None:
    pass


class Waits:
    async def __call__(self) -> None:
        pass


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        ({"name": ""}, "name takes"),
        ({"name": "two words"}, "name takes .* not 'two words'"),
        ({"name": "x" * 129}, "name takes"),
        ({"name": "line\n"}, "name takes"),
        ({"name": "grüß"}, "name takes"),
        ({"name": None}, "name takes"),
        ({"description": None}, "description takes a str, not None"),
        ({"callback": None}, "callback takes a function; it is missing"),
        ({"callback": 5}, "callback takes a function, not 5"),
        ({"callback": lambda *items: items}, r"callback parameter \*items takes positional"),
        ({"callback": math.sqrt}, "callback parameter 'x' is positional-only"),
        ({"callback": type("X", (dict,), {})}, "callback"),
        ({"input_schema": "object"}, "input_schema takes a JSON Schema as a dict, not 'object'"),
        ({"input_schema": True}, "input_schema takes a JSON Schema as a dict, not True"),
        (
            {"input_schema": {"type": "strnig"}},
            "input_schema has type 'strnig', which is not one of array, boolean",
        ),
        ({"input_schema": {"type": ["object", 5]}}, "input_schema has type 5"),
        ({"input_schema": {"type": "object", "default": {1, 2}}}, "input_schema is not JSON"),
        ({"input_schema": {"type": "object", "default": math.nan}}, "input_schema is not JSON"),
        (
            {"input_schema": {"type": "object", "properties": ["a"]}},
            r"input_schema has properties \['a'\]",
        ),
        (
            {"input_schema": {"type": "object", "properties": {"a": {}}, "required": "a"}},
            "input_schema has required 'a'",
        ),
        ({"input_schema": {"type": "object", "required": True}}, "input_schema has required True"),
        ({"input_schema": SCHEMA, "inputSchema": SCHEMA}, "input_schema or inputSchema, not both"),
        (
            {"input_schema": {"type": "string"}},
            r"input_schema is not an object, so .* the callback has 2 \(a, b\)",
        ),
        (
            {"input_schema": {"properties": {"a": {}, "c": {}, "d": {}}}},
            "input_schema has c, d, which the callback does not take",
        ),
        (
            {"input_schema": {"properties": {"b": {}}}},
            "the callback needs a, which input_schema does not have",
        ),
        ({"output_schema": "x"}, "output_schema takes a JSON Schema as a dict, not 'x'"),
        ({"output_schema": {"type": 7}}, "output_schema has type 7"),
        ({"annotations": {"readOnly": True}}, r"annotations takes ToolAnnotations\(...\)"),
        ({"category": None}, "category takes a str, not None"),
        ({"timeout": 0}, "timeout takes a number of seconds above 0"),
        ({"timeout": -1}, "timeout"),
        ({"timeout": "5"}, "timeout .* not '5'"),
        ({"timeout": math.nan}, "timeout"),
        ({"timeout": math.inf}, "timeout .* not inf"),
        ({"retry": 3}, r"retry takes RetryPolicy\(...\) or None, not 3"),
    ],
)
def test_a_wrong_argument_is_refused_and_named(arguments: dict[str, Any], pattern: str) -> None:
    with pytest.raises(ConfigurationError, match=pattern) as caught:
        Tool(**{"name": "t", "description": "d", "callback": add, **arguments})
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"max_retries": -1}, "max_retries"),
        ({"max_retries": "3"}, "max_retries"),
        ({"backoff": "linear"}, "backoff"),
        ({"delay": -1}, "delay"),
        ({"delay": "1"}, "delay"),
        ({"delay": math.nan}, "delay"),
    ],
)
def test_a_wrong_retry_policy_is_refused_and_named(
    arguments: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"RetryPolicy: {expected} takes"):
        RetryPolicy(**arguments)


def test_a_function_without_a_usable_name_must_be_given_one() -> None:
    with pytest.raises(ConfigurationError, match=r"lambda has no name: .* name='"):
        Tool.from_function(lambda: None)
    with pytest.raises(ConfigurationError, match="from_function takes a function, not 'add'"):
        Tool.from_function("add")  # pyright: ignore[reportArgumentType]


def test_the_decorator_takes_its_arguments_by_name_with_or_without_a_function() -> None:
    decorate: Any = tool
    assert decorate(add, name="plus").name == decorate(name="plus")(add).name == "plus"
    with pytest.raises(ConfigurationError, match=r"by name such as name='add', not 'plus'"):
        decorate("plus")


def each(n: int) -> Any:
    yield from range(n)


async def each_in_turn(n: int) -> Any:
    yield n


@pytest.mark.parametrize("function", [each, each_in_turn])
def test_a_generator_is_refused_when_the_tool_is_made(function: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"is a generator\. .* such as a list"):
        Tool.from_function(function)


def test_a_class_without_a_docstring_has_no_description() -> None:
    class Point(BaseModel):
        x: int

    assert Tool.from_function(Point).description == ""


# --- the context ---


def asks(n: int, context: ToolContext) -> str:
    return f"{n} {context.call_id} {context.idempotency_key}"


def asks_in_a_string(n: int, context: "ToolContext") -> str:  # noqa: UP037
    return asks(n, context)


def may_ask(n: int, context: ToolContext | None = None) -> str:
    return asks(n, context or ToolContext())


def asks_with_a_note(n: int, context: Annotated[ToolContext, "mine"]) -> str:
    return asks(n, context)


def asks_by_keyword(n: int, *, context: ToolContext) -> str:
    return asks(n, context)


def asks_beside_an_unknown_name(
    n: int, context: ToolContext, other: OnlyForTheChecker | None = None
) -> str:
    return asks(n, context)


def asks_and_takes_anything(n: int, context: ToolContext, **more: int) -> str:
    return asks(n, context)


ASKING = [
    asks,
    asks_in_a_string,
    may_ask,
    asks_with_a_note,
    asks_by_keyword,
    asks_and_takes_anything,
]
CONTEXT = ToolContext("conv", "4.0")
N = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.mark.parametrize("function", ASKING)
def test_a_context_is_filled_in_and_hidden(function: Any) -> None:
    tool = Tool.from_function(function)
    assert set(tool.input_schema["properties"]) == {"n"}
    assert tool.run({"n": 1}, CONTEXT).text == "1 4.0 conv:4.0"
    assert tool.run({"n": 1}).text == "1  :"


@pytest.mark.parametrize("function", [*ASKING, asks_beside_an_unknown_name])
def test_a_context_is_filled_in_and_hidden_under_a_given_schema(function: Any) -> None:
    tool = Tool("t", "", function, N)
    assert tool.run({"n": 1}, CONTEXT).text == "1 4.0 conv:4.0"


@pytest.mark.parametrize("schema", [None, N])
def test_a_model_cannot_forge_the_context(schema: Any) -> None:
    tool = Tool("t", "", asks_and_takes_anything, schema)
    assert tool.run({"n": 1, "context": "forged"}, CONTEXT).text == "1 4.0 conv:4.0"


def test_a_name_that_only_the_type_checker_knows_is_explained() -> None:
    def strange(good: Annotated[int, Field(ge=1)], odd: OnlyForTheChecker) -> None: ...

    with pytest.raises(
        ConfigurationError,
        match="parameter 'odd' is annotated 'OnlyForTheChecker', which its module does not know",
    ):
        Tool.from_function(strange).input_schema  # noqa: B018


# --- schemas that are not objects ---


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string"}, "text", 5),
        ({"type": "string", "default": "d"}, "text", ["x"]),
        ({"type": "array", "items": {"type": "integer"}}, [1, 2], ["x"]),
        ({"type": "boolean"}, False, "maybe"),
        ({"type": "integer"}, 3, 3.5),
        ({"type": "null"}, None, 0),
        ({"enum": ["a", "b"]}, "b", "c"),
        ({"const": 4}, 4, 5),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, None, "x"),
        ({"type": ["string", "null"]}, None, 5),
        ({"oneOf": [{"$ref": "#/$defs/n"}], "$defs": {"n": {"type": "integer"}}}, 4, "x"),
        (
            {
                "type": "array",
                "items": {"$ref": "#/definitions/n"},
                "definitions": {"n": {"type": "integer"}},
            },
            [4],
            ["x"],
        ),
    ],
)
def test_a_schema_that_is_no_object_describes_the_only_parameter(
    schema: dict[str, Any], good: Any, bad: Any
) -> None:
    received: list[Any] = []
    tool = Tool("t", "", lambda it: received.append(it), schema)
    assert tool.input_schema["type"] == "object"
    assert tool.input_schema["required"] == ["it"]
    tool.run({"it": good})
    assert received == [good]
    for wrong in ({"it": bad}, {}, {"it": good, "more": 1}):
        with pytest.raises(ToolValidationError, match=r"it|more"):
            tool.run(wrong)
    assert len(received) == 1


def test_a_wrapped_parameter_with_a_default_may_be_left_out() -> None:
    tool = Tool("t", "", lambda it="default": it, {"type": "string"})
    assert "required" not in tool.input_schema
    assert tool.run({}).text == "default"


# --- required parameters of the callback, and parameters that it does not take ---


def test_what_a_callback_cannot_do_without_is_required_even_if_the_schema_forgot() -> None:
    tool = Tool("t", "", add, {"type": "object", "properties": {"a": {"type": "integer"}}})
    assert tool.input_schema["required"] == ["a"]
    with pytest.raises(ToolValidationError, match="a is required"):
        tool.run({})


def test_an_argument_that_the_callback_does_not_take_is_refused() -> None:
    open_schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": True,
    }
    for adder in (Tool("t", "", add, SCHEMA), Tool("t", "", add, open_schema), Tool("t", "", add)):
        with pytest.raises(
            ToolValidationError, match=r"extra is not one of its parameters. It takes: a"
        ):
            adder.run({"a": 1, "extra": 2})


@pytest.mark.parametrize("more", [{}, {"additionalProperties": True}])
def test_an_argument_beyond_the_schema_passes_where_schema_and_callback_are_open(
    more: dict[str, Any],
) -> None:
    tool = Tool(
        "t", "", lambda **kwargs: kwargs, {"type": "object", "properties": {"a": {}}, **more}
    )
    assert tool.run({"a": 1, "extra": 2}).data == {"a": 1, "extra": 2}


def test_an_argument_beyond_a_closed_schema_is_refused() -> None:
    tool = Tool("t", "", lambda **kwargs: kwargs, {**SCHEMA, "additionalProperties": False})
    with pytest.raises(ToolValidationError, match="'extra' was unexpected"):
        tool.run({"a": 1, "extra": 2})


def test_a_schema_that_is_a_reference_is_an_object_too() -> None:
    schema = {
        "$ref": "#/$defs/args",
        "$defs": {
            "args": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
        },
    }
    tool = Tool("t", "", add, schema)
    assert tool.run({"a": 1}).data == 3
    with pytest.raises(ToolValidationError, match="a: 'x' is not of type 'integer'"):
        tool.run({"a": "x"})


# --- the origin of a tool ---


def test_a_tools_module_is_the_one_whose_code_declares_it() -> None:
    here = __name__
    assert all(way.module_qualname == here for way in WAYS)
    assert (
        Tool(
            "fill",
            "",
            textwrap.fill,
            {"type": "object", "properties": {"text": {"type": "string"}}},
        ).module_qualname
        == here
    )
    assert (
        Tool(
            "fill", "", functools.partial(textwrap.fill, width=9), {"type": "string"}
        ).module_qualname
        == here
    )
    assert in_maths("root").module_qualname == here
    assert Doubler("t").module_qualname == here


def test_running_validates_once_and_gives_a_result() -> None:
    assert isinstance(plain.run({"a": 1}), ToolResult)
    assert repr(plain) == "Tool('plain')"
