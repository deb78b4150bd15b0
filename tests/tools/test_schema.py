"""Tests of arguments against signatures and against JSON Schemas: both mean the same, refusals are
clear, and nothing is lost."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import math
import socket
from collections.abc import Callable
from datetime import date, datetime
from typing import Annotated, Any, Literal, Optional, Union

import msgspec
import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from holdfast.content import ToolCall
from holdfast.errors import ConfigurationError, ToolValidationError
from holdfast.tools import Tool, ToolManager
from holdfast.tools.schema import parse_docstring, without_titles


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(BaseModel):
    x: int
    y: int = Field(0, description="downwards")


class Shape(BaseModel):
    """A shape."""

    title: str
    corners: list[Point]
    inner: Shape | None = None


@dataclasses.dataclass
class Size:
    width: int
    height: int = 1


class Options(TypedDict, total=False):
    deep: bool


class Record(msgspec.Struct):
    a: int


def take(function: Any, **arguments: Any) -> Any:
    """Return the arguments that reach a function."""
    received: list[Any] = []
    tool = Tool("t", "", function)
    tool.callback = lambda **kwargs: received.append(kwargs)
    tool.run(arguments)
    return received[0]


def refusal(tool: Tool, **arguments: Any) -> str:
    with pytest.raises(ToolValidationError) as caught:
        tool.run(arguments)
    assert caught.value.error_type == "validation"
    assert not caught.value.retryable
    return str(caught.value)


# --- signatures ---


def everything(
    colour: Colour,
    mode: Literal["r", "w"],
    number: int | float,
    either: Union[int, str],  # noqa: UP007
    maybe: Optional[str] = None,  # noqa: UP045
    point: Point | None = None,
    size: Size | None = None,
    options: Options | None = None,
    when: date | None = None,
    limit: Annotated[int, Field(ge=1, le=9, description="how many")] = 5,
    tags: list[str] = [],  # noqa: B006
    table: dict[str, int] = {},  # noqa: B006
    pair: tuple[int, str] = (1, "a"),
    anything: Any = None,
    given: int = Field(7, description="in the default"),
    bare=3,  # type: ignore[no-untyped-def]
    *,
    keyword: bool = False,
) -> None:
    pass


def test_types_of_all_kinds_become_python_objects() -> None:
    received = take(
        everything,
        colour="red",
        mode="w",
        number=1.5,
        either="3",
        point={"x": 1},
        size={"width": 2},
        options={"deep": True},
        when="2026-01-02",
        pair=[2, "b"],
        keyword=True,
    )
    assert received == {
        "colour": Colour.RED,
        "mode": "w",
        "number": 1.5,
        "either": "3",
        "maybe": None,
        "point": Point(x=1),
        "size": Size(2),
        "options": {"deep": True},
        "when": date(2026, 1, 2),
        "limit": 5,
        "tags": [],
        "table": {},
        "pair": (2, "b"),
        "anything": None,
        "given": 7,
        "bare": 3,
        "keyword": True,
    }


def test_the_model_is_told_types_defaults_limits_and_descriptions() -> None:
    schema = Tool("t", "", everything).input_schema
    properties = schema["properties"]
    assert schema["required"] == ["colour", "mode", "number", "either"]
    assert properties["limit"] == {
        "default": 5,
        "description": "how many",
        "maximum": 9,
        "minimum": 1,
        "type": "integer",
    }
    assert properties["mode"] == {"enum": ["r", "w"], "type": "string"}
    assert properties["given"]["description"] == "in the default"
    assert schema["$defs"]["Colour"] == {"enum": ["red", "blue"], "type": "string"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"colour": "green"}, "colour: input should be 'red' or 'blue', not 'green'"),
        ({"mode": "x"}, "mode: input should be 'r' or 'w'"),
        ({"limit": 10}, "limit: input should be less than or equal to 9, not 10"),
        ({"point": {"y": 1}}, "point.x is required"),
        ({"size": {"width": "wide"}}, "size.width"),
        ({"tags": [1]}, "tags.0"),
        ({"nonsense": 1}, "nonsense is not one of its parameters"),
        ({"when": "tomorrow"}, "when"),
    ],
)
def test_a_refusal_names_the_argument_and_what_it_takes(
    arguments: dict[str, Any], expected: str
) -> None:
    good = {"colour": "red", "mode": "r", "number": 1, "either": 1}
    error_text = refusal(Tool("t", "", everything), **{**good, **arguments})
    assert expected in error_text
    assert "'t' was not run" in error_text
    assert "It takes: colour, mode" in error_text


def test_all_missing_arguments_are_named_at_once() -> None:
    error_text = refusal(Tool("t", "", everything))
    assert all(
        f"{name} is required" in error_text for name in ("colour", "mode", "number", "either")
    )


def test_a_mutable_default_is_not_shared_between_calls() -> None:
    def collect(item: str, into: list[str] = []) -> list[str]:  # noqa: B006
        into.append(item)
        return into

    tool = Tool.from_function(collect)
    assert tool.run({"item": "a"}).data == ["a"]
    assert tool.run({"item": "b"}).data == ["b"]


def test_recursive_models_and_properties_named_title_are_kept() -> None:
    def draw(shape: Shape) -> str:
        assert shape.inner is not None
        return shape.inner.title

    tool = Tool.from_function(draw)
    assert set(tool.input_schema["$defs"]["Shape"]["properties"]) == {"title", "corners", "inner"}
    assert (
        tool.run(
            {"shape": {"title": "a", "corners": [], "inner": {"title": "b", "corners": [{"x": 1}]}}}
        ).text
        == "b"
    )


def test_a_type_that_json_cannot_describe_is_a_clear_error() -> None:
    def takes(record: Record, call: Callable[[], None]) -> None: ...

    with pytest.raises(
        ConfigurationError,
        match=r"Tool 'takes': parameter 'call' is annotated .*Callable.*, which cannot be described"
        r" .* or pass input_schema",
    ):
        Tool.from_function(takes).input_schema  # noqa: B018


def test_a_default_that_json_cannot_say_is_left_out_and_still_used() -> None:
    nothing = object()

    def look(where: Any = nothing) -> bool:
        return where is nothing

    tool = Tool.from_function(look)
    assert "default" not in tool.input_schema["properties"]["where"]
    assert tool.run({}).data is True


NAMES = [
    "copy",
    "json",
    "schema",
    "dict",
    "validate",
    "construct",
    "model_config",
    "model_fields",
    "model_dump_mode",
    "model_validate_it",
    "self",
    "cls",
    "_private",
    "__mangled",
    "p0_copy",
    "field",
    "type",
    "id",
    "arguments",
    "context",
    "callback",
    "name",
    "data",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_parameter_may_have_any_name(name: str) -> None:
    space: dict[str, Any] = {}
    exec(f"def f({name}: int, other: int = 1): return {name}", space)
    tool = Tool("t", "", space["f"])
    assert list(tool.input_schema["properties"]) == [name, "other"]
    assert tool.run({name: "4"}).data == 4
    assert f"{name} is required" in refusal(tool)
    assert f"{name}: " in refusal(tool, **{name: "x"})


def test_awkward_names_do_not_meet() -> None:
    def f(copy: int, p0_copy: int, _x: int, __x: int, x: int, **more: int) -> list[int]:
        return [copy, p0_copy, _x, __x, x, more["json"], more["p2_x"]]

    arguments = {"copy": 1, "p0_copy": 2, "_x": 3, "__x": 4, "x": 5, "json": 6, "p2_x": 7}
    assert Tool.from_function(f).run(arguments).data == [1, 2, 3, 4, 5, 6, 7]


def test_extra_arguments_reach_a_function_that_takes_any() -> None:
    def f(a: int, **more: Any) -> Any:
        return more

    tool = Tool.from_function(f)
    assert tool.run({"a": 1, "b": [2], "model_config": 3}).data == {"b": [2], "model_config": 3}


def test_a_class_defined_after_the_function_is_found() -> None:
    assert Tool.from_function(uses_later).run({"item": {"n": 2}}).data == 2


def uses_later(item: Later) -> int:
    return item.n


MADE_EARLY = Tool.from_function(uses_later)


class Later(BaseModel):
    n: int


def test_a_tool_made_before_its_types_works_after_them() -> None:
    assert MADE_EARLY.run({"item": {"n": 3}}).data == 3


# --- docstrings ---


@pytest.mark.parametrize(
    "doc",
    [
        (
            "Does it.\n\nMore of it.\n\nArgs:\n    a: the first\n        and more\n    b"
            " (Callable[[int], str], optional): the second\n\nReturns:\n    x: y"
        ),
        (
            "Does it.\n\nMore of it.\n\nArguments:\n  a (int): the first\n    and more\n  b: the"
            " second\nRaises:\n  ValueError: no"
        ),
        (
            "Does it.\n\nMore of it.\n\n:param a: the first\n    and more\n:param int b: the"
            " second\n:returns: x\n:raises ValueError: no"
        ),
    ],
)
def test_google_and_sphinx_docstrings_describe_parameters(doc: str) -> None:
    assert parse_docstring(doc) == (
        "Does it.\n\nMore of it.",
        {"a": "the first and more", "b": "the second"},
    )


def test_numpy_docstrings_describe_parameters() -> None:
    doc = """Does it.

    Parameters
    ----------
    a : int, optional
        The first
        and more: it.
    b, c : {'x', 'y'}
        The others.

    Other Parameters
    ----------------
    **options
        Further ones.

    See Also
    --------
    a : not this one.
    """
    assert parse_docstring(inspect.cleandoc(doc)) == (
        "Does it.",
        {
            "a": "The first and more: it.",
            "b": "The others.",
            "c": "The others.",
            "options": "Further ones.",
        },
    )


def test_a_parameter_whose_type_is_not_known_yet_is_named() -> None:
    def takes(good: int, shapes: list[Unknown]) -> None: ...  # noqa: F821 # pyright: ignore

    with pytest.raises(ConfigurationError, match=r"parameter 'shapes' is annotated .*Unknown"):
        Tool.from_function(takes).input_schema  # noqa: B018


@pytest.mark.parametrize("doc", ["", "One line.", "Text: with a colon.\nNext: line."])
def test_a_docstring_without_sections_is_all_description(doc: str) -> None:
    assert parse_docstring(doc) == (doc, {})


def test_titles_go_and_properties_named_title_stay() -> None:
    schema = {
        "title": "T",
        "properties": {"title": {"title": "Title", "type": "string"}},
        "default": {"title": "kept"},
    }
    assert without_titles(schema) == {
        "properties": {"title": {"type": "string"}},
        "default": {"title": "kept"},
    }


# --- reading text as the intended value, in both validators ---


def typed(
    n: int = 0,
    f: float = 0,
    b: bool = False,
    items: list[int] = [],  # noqa: B006
    table: dict[str, int] = {},  # noqa: B006
    maybe: list[int] | None = None,
) -> None:
    pass


TYPED = {
    "type": "object",
    "properties": {
        "n": {"type": "integer"},
        "f": {"type": "number"},
        "b": {"type": "boolean"},
        "items": {"type": "array", "items": {"type": "integer"}},
        "table": {"type": "object", "additionalProperties": {"type": "integer"}},
        "maybe": {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}]},
    },
}
BOTH = pytest.mark.parametrize("schema", [None, TYPED], ids=["signature", "schema"])


def received_by(schema: Any, **arguments: Any) -> Any:
    received: list[Any] = []
    tool = Tool("t", "", typed, schema)
    tool.callback = lambda **kwargs: received.append(kwargs)
    tool.run(arguments)
    return {name: received[0][name] for name in arguments}


@BOTH
@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("n", "3", 3),
        ("n", " -3 ", -3),
        ("f", "1.5", 1.5),
        ("f", "2", 2),
        ("b", "true", True),
        ("b", "False", False),
        ("items", "[1, 2]", [1, 2]),
        ("items", '["1", 2]', [1, 2]),
        ("items", ["1", "2"], [1, 2]),
        ("table", '{"a": 1}', {"a": 1}),
        ("table", '{"a": "1"}', {"a": 1}),
        ("maybe", "[1]", [1]),
        ("maybe", None, None),
        ("n", str(10**25), 10**25),
    ],
)
def test_text_is_read_as_what_is_wanted(schema: Any, name: str, text: Any, value: Any) -> None:
    assert received_by(schema, **{name: text}) == {name: value}


@BOTH
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", "3.5"),
        ("n", 3.5),
        ("n", "three"),
        ("n", ""),
        ("n", None),
        ("n", [3]),
        ("f", "x"),
        ("f", []),
        ("b", "maybe"),
        ("b", 2),
        ("items", "1,2"),
        ("items", '{"a": 1}'),
        ("items", "[1.5]"),
        ("items", 3),
        ("items", "[" * 100_000),
        ("table", "[]"),
        ("maybe", "nothing"),
        ("n", "9" * 5000),
    ],
)
def test_nothing_is_read_that_would_be_lost_or_guessed(schema: Any, name: str, value: Any) -> None:
    error_text = refusal(Tool("t", "", typed, schema), **{name: value})
    assert name in error_text
    assert len(error_text) < 700


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_text_is_never_read_as_a_number_that_json_does_not_have(text: str) -> None:
    assert "f: " in refusal(Tool("t", "", typed, TYPED), f=text)


@BOTH
def test_the_callers_arguments_are_not_changed(schema: Any) -> None:
    arguments = {"items": ["1", "2"], "table": {"a": "1"}, "maybe": "[1]"}
    Tool("t", "", typed, schema).run(arguments)
    assert arguments == {"items": ["1", "2"], "table": {"a": "1"}, "maybe": "[1]"}


def test_text_stays_text_where_text_is_wanted() -> None:
    def f(text: str, either: str | list[int]) -> Any:
        return [text, either]

    schema = {
        "type": "object",
        "properties": {"text": {"type": "string"}, "either": {"type": ["string", "array"]}},
    }
    for tool in (Tool("t", "", f), Tool("t", "", f, schema)):
        assert tool.run({"text": "3", "either": "[1]"}).data == ["3", "[1]"]
        assert "text" in refusal(tool, text=3, either="a")


def test_quoted_values_deep_inside_are_read() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {
                "type": "array",
                "items": {"type": "object", "properties": {"n": {"type": "integer"}}},
            }
        },
    }
    assert Tool("t", "", lambda a: a, schema).run({"a": ['{"n": "3"}', {"n": "4"}]}).data == [
        {"n": 3},
        {"n": 4},
    ]


# --- JSON Schemas ---


def test_a_reference_within_the_schema_works() -> None:
    schema = {
        "type": "object",
        "properties": {"node": {"$ref": "#/$defs/node"}},
        "required": ["node"],
        "$defs": {
            "node": {
                "type": "object",
                "properties": {"n": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}},
                "required": ["n"],
            }
        },
    }
    tool = Tool("t", "", lambda node: node, schema)
    assert tool.run({"node": {"n": 1, "next": {"n": 2}}}).data == {"n": 1, "next": {"n": 2}}
    assert "node.next.n is required" in refusal(tool, node={"n": 1, "next": {}})


def test_a_remote_reference_never_touches_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    touched: list[Any] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.05)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/schema.json"
        monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: touched.append(a))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
        tool = Tool("t", "", lambda a: a, {"type": "object", "properties": {"a": {"$ref": url}}})
        with pytest.raises(
            ConfigurationError, match=r"input_schema cannot be applied: .*schema.json"
        ):
            tool.run({"a": 1})
        with pytest.raises(TimeoutError):
            server.accept()
    assert touched == []


BROKEN = {
    "property": {"type": "object", "properties": {"a": {"type": "strnig"}}},
    "bound": {"type": "object", "properties": {"a": {"minimum": "low"}}},
    "reference": {"type": "object", "properties": {"a": {"$ref": "#/$defs/missing"}}},
    "endless": {"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}},
}


@pytest.mark.parametrize("which", BROKEN)
def test_an_invalid_schema_is_told_to_the_model_as_the_tools_fault_and_not_tried_again(
    which: str,
) -> None:
    ran: list[Any] = []
    result = ToolManager([Tool("t", "", lambda a: ran.append(a), BROKEN[which])]).run(
        ToolCall("1.0", "t", {"a": 1})
    )
    assert result.error is not None
    assert (result.error.type, result.error.retryable) == ("internal", False)
    assert "'t' was not run: ConfigurationError: Tool 't': input_schema" in result.text
    assert ran == []


def doubling(levels: int) -> dict[str, Any]:
    """Return an object whose parameter `a` is an integer, declared twice at each level."""
    names = [f"#/$defs/L{number}" for number in range(levels)]
    defs: dict[str, Any] = {f"L{levels}": {"type": "integer"}}
    for number, name in enumerate([*names[1:], f"#/$defs/L{levels}"]):
        defs[f"L{number}"] = {"allOf": [{"$ref": name}, {"$ref": name}]}
    return {"type": "object", "properties": {"a": {"$ref": "#/$defs/L0"}}, "$defs": defs}


def test_a_schema_of_the_program_that_doubles_at_each_level_is_refused_at_once() -> None:
    assert Tool("t", "", lambda a: a, doubling(8)).run({"a": 1}).data == 1
    result = ToolManager([Tool("t", "", lambda a: a, doubling(26))]).run(
        ToolCall("1.0", "t", {"a": 1})
    )
    assert "held against more than 5,000 subschemas" in result.text
    assert "Tool 't': input_schema takes too much work" in result.text


def test_a_schema_of_the_program_that_doubles_with_the_value_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.tools.untrusted._STEPS", 2_000)
    node: dict[str, Any] = {
        "allOf": [{"properties": {"n": {"$ref": "#/$defs/node"}}} for _ in range(2)]
    }
    tool = Tool("t", "", lambda n: n, {"type": "object", "$defs": {"node": node}, **node})
    value: dict[str, Any] = {}
    for _ in range(20):
        value = {"n": value}
    with pytest.raises(ConfigurationError, match="checking this value takes too much work"):
        tool.run(value)


def test_patterns_of_the_program_are_linear_where_they_can_be() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "string", "pattern": "^(a+)+$"},
            "b": {"type": "string", "pattern": "^(?=x).y$"},
            "c": {"type": "string", "pattern": r"^(.)\1$"},
        },
    }
    tool = Tool("t", "", lambda **kwargs: kwargs, schema)
    assert "a: " in refusal(tool, a="a" * 60 + "!")
    assert "b: " in refusal(tool, b="zy")
    assert "c: " in refusal(tool, c="ab")
    assert tool.run({"a": "aa", "b": "xy", "c": "zz"}).success


def test_a_large_value_of_the_program_is_checked_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.tools.untrusted._MAX_STEPS", 100)
    schema = {"type": "object", "properties": {"a": {"items": {"type": "integer"}}}}
    tool = Tool("t", "", lambda a: len(a), schema)
    assert tool.run({"a": [1] * 200}).data == 200
    assert "a.199: " in refusal(tool, a=[*[1] * 199, None])


def test_a_pattern_that_python_does_not_know_is_left_to_the_tool() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "string", "pattern": "^\\p{L}+$"},
            "b": {"type": "string", "pattern": "^x"},
        },
    }
    tool = Tool("t", "", lambda **kwargs: kwargs, schema)
    assert tool.run({"a": "Grüße", "b": "xy"}).success
    assert "b: " in refusal(tool, b="y")


@pytest.mark.parametrize(
    "draft",
    [
        "http://json-schema.org/draft-04/schema#",
        "http://json-schema.org/draft-07/schema#",
        "https://x.invalid/none",
    ],
)
def test_a_schema_of_an_older_or_unknown_draft_works(draft: str) -> None:
    tool = Tool(
        "t",
        "",
        lambda a: a,
        {"$schema": draft, "type": "object", "properties": {"a": {"type": "integer"}}},
    )
    assert tool.run({"a": 1}).data == 1


def test_a_refusal_of_many_things_is_cut() -> None:
    schema = {"type": "object", "properties": {f"a{n}": {"type": "integer"} for n in range(9)}}
    error_text = refusal(
        Tool("t", "", lambda **kwargs: kwargs, schema), **{f"a{n}": "x" * 1000 for n in range(9)}
    )
    assert "and 4 more" in error_text
    assert len(error_text) < 2000


def test_values_that_are_not_json_reach_a_schema_without_a_crash() -> None:
    tool = Tool(
        "t", "", lambda a: str(a), {"type": "object", "properties": {"a": {"type": "string"}}}
    )
    assert "a: " in refusal(tool, a=datetime(2026, 1, 1))
    assert "a: " in refusal(tool, a=math.nan)
