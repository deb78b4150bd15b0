"""Tests of annotations that pydantic alone would read otherwise, or refuse: the schema says what
the author wrote, and the callback gets the values that it is annotated with."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, LiteralString, NotRequired, Required

import attrs
import msgspec
import pytest
from pydantic import BaseModel
from typing_extensions import Doc, TypedDict, Unpack

from holdfast.errors import ConfigurationError, ToolValidationError
from holdfast.tools import Tool, tool


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Node(msgspec.Struct):
    value: int
    children: list[Node] = []


@attrs.define
class Size:
    width: int
    height: int = 1


class Paint(BaseModel):
    size: int


class Options(TypedDict, total=False):
    deep: Required[bool]
    limit: NotRequired[int]


def parameter(annotation: Any, value: Any) -> tuple[dict[str, Any], Any]:
    """Return the schema of a parameter with this annotation, and `value` as the callback gets it."""

    def function(one: Any) -> None: ...

    function.__annotations__ = {"one": annotation}
    made = Tool.from_function(function)
    return made.input_schema["properties"]["one"], made.validate({"one": value})["one"]


@pytest.mark.parametrize(
    "extra", ["how many", Doc("how many")], ids=["a text", "typing_extensions.Doc"]
)
def test_a_text_beside_the_type_describes_the_parameter(extra: Any) -> None:
    schema, value = parameter(Annotated[int, extra], 3)
    assert (schema, value) == ({"type": "integer", "description": "how many"}, 3)


def test_the_text_beside_the_type_wins_over_the_docstring() -> None:
    @tool
    def count(n: Annotated[int, "how many"], m: int) -> None:
        """Count.

        Args:
            n: the number
            m: the other
        """

    properties = count.input_schema["properties"]
    assert [properties[name]["description"] for name in "nm"] == ["how many", "the other"]


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        (Node, {"value": 1, "children": [{"value": 2}]}, Node(1, [Node(2)])),
        (Node, '{"value": "1"}', Node(1)),
        (list[Node], [{"value": 1}], [Node(1)]),
        (Size | None, {"width": 3}, Size(3)),
        (dict[str, Size | int], {"a": {"width": 3}, "b": 4}, {"a": Size(3), "b": 4}),
        (Iterable[int], ["1", 2], [1, 2]),
        (Iterator[str], ["a"], ["a"]),
        (Literal[Colour.RED], "red", Colour.RED),
        (Literal[Colour.RED, "none"] | None, "none", "none"),
        (LiteralString, "a", "a"),
    ],
    ids=str,
)
def test_the_callback_gets_what_it_is_annotated_with(
    annotation: Any, value: Any, expected: Any
) -> None:
    assert parameter(annotation, value)[1] == expected


def test_types_of_msgspec_and_attrs_are_described_beside_those_of_pydantic() -> None:
    @tool
    def draw(node: Node, size: Size | None, paint: Paint) -> None: ...

    schema = draw.input_schema
    assert schema["properties"]["node"] == {"$ref": "#/$defs/Node_"}
    assert sorted(schema["$defs"]) == ["Node_", "Paint", "Size_"]
    children = schema["$defs"]["Node_"]["properties"]["children"]
    assert children["items"] == {"$ref": "#/$defs/Node_"}
    with pytest.raises(ToolValidationError, match=r"node: expected `int`, got `str`.*\$\.value"):
        draw.validate({"node": {"value": "x"}, "size": None, "paint": {"size": 1}})


def test_a_default_of_none_may_be_sent() -> None:
    @tool
    def search(words: str, limit: int = None) -> Any:  # type: ignore[assignment] # noqa: RUF013
        return limit

    assert search.run({"words": "a", "limit": None}).content == ()
    assert search.run({"words": "a", "limit": "3"}).data == 3


def test_keywords_of_a_typed_dict_are_parameters() -> None:
    @tool
    def walk(path: str, **options: Unpack[Options]) -> Any:
        return options

    schema = walk.input_schema
    assert schema["properties"]["deep"] == {"type": "boolean"}
    assert schema["required"] == ["path", "deep"]
    assert walk.run({"path": "/", "deep": "true"}).data == {"deep": True}
    with pytest.raises(ToolValidationError, match="depth is not one of its parameters"):
        walk.validate({"path": "/", "deep": True, "depth": 3})


def twice(n: int) -> int:
    return 2 * n


class Desk:
    def __init__(self, owner: str) -> None:
        self.owner = owner

    @tool
    def write(self, text: str) -> str:
        """Write."""
        return f"{self.owner}: {text}"

    @tool(name="read", description="Read.")
    async def read_page(self, page: int = 1) -> str:
        return f"{self.owner} reads {page}"


def test_a_method_decorated_in_its_class_is_a_tool_of_each_instance() -> None:
    ada, bob = Desk("Ada"), Desk("Bob")
    assert ada.write.input_schema["required"] == ["text"]
    assert [one.write.run({"text": "x"}).text for one in (ada, bob)] == ["Ada: x", "Bob: x"]
    assert bob.write("y") == "Bob: y"
    assert (ada.read_page.name, ada.read_page.is_async) == ("read", True)
    assert ada.read_page.run({}).text == "Ada reads 1"


@pytest.mark.parametrize(
    "method", [Desk.write, tool(Desk.write.callback or twice)], ids=["tool", "bare"]
)
def test_a_method_without_an_instance_is_refused(method: Tool) -> None:
    with pytest.raises(
        ConfigurationError, match=r"Take the tool from an instance: Desk\(\)\.write"
    ):
        method.input_schema  # noqa: B018


def test_a_tool_that_is_an_attribute_of_a_class_is_left_alone() -> None:
    class Box:
        double = tool(twice)

    assert Box().double.run({"n": 2}).data == 4
