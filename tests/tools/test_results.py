"""Tests of results: every value that a callback returns becomes a result that can be stored and
read again, or a clear error."""

from __future__ import annotations

import dataclasses
import enum
import math
from array import array
from collections import OrderedDict, namedtuple
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any
from uuid import UUID

import mcp_types
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from holdfast.content import (
    EmbeddedResource,
    ErrorInfo,
    ImageContent,
    ResourceLink,
    TextContent,
    ToolResult,
)
from holdfast.errors import ToolError
from holdfast.tools.results import as_result, clean
from tests.test_content import JSON

LONE = "file-\udcff.txt"


class Struct(msgspec.Struct):
    a: int
    b: str | None = None


class Model(BaseModel):
    a: int
    when: date = date(2026, 1, 2)


@dataclasses.dataclass
class Data:
    a: int


class Word(str):
    pass


class Level(str, enum.Enum):  # noqa: UP042
    LOW = "low"


class Number(enum.Enum):
    ONE = 1


Pair = namedtuple("Pair", "a b")


def test_text_is_the_result() -> None:
    assert as_result("t", "hello") == ToolResult((TextContent("hello"),))
    assert as_result("t", "") == ToolResult((TextContent(""),))


@pytest.mark.parametrize(("value", "text"), [(Word("w"), "w"), (Level.LOW, "low")])
def test_what_is_also_text_is_plain_text(value: Any, text: str) -> None:
    result = as_result("t", value)
    assert result.text == text
    assert type(result.content[0].text) is str  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType]


def test_nothing_is_a_success_that_says_nothing() -> None:
    assert as_result("t", None) == ToolResult()


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (5, 5),
        (1.5, 1.5),
        (True, True),
        (False, False),
        (0, 0),
        ([], []),
        ({}, {}),
        ({"a": [1, None]}, {"a": [1, None]}),
        ([None], [None]),
        (10**30, 10**30),
        (Struct(1), {"a": 1, "b": None}),
        ([Struct(1)], [{"a": 1, "b": None}]),
        (Model(a=1), {"a": 1, "when": "2026-01-02"}),
        ([Model(a=1)], [{"a": 1, "when": "2026-01-02"}]),
        ({"m": Model(a=1)}, {"m": {"a": 1, "when": "2026-01-02"}}),
        (Data(1), {"a": 1}),
        (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00Z"),
        (date(2026, 1, 2), "2026-01-02"),
        (Number.ONE, 1),
        (b"\x00\xff", "AP8="),
        (Decimal("1.10"), "1.10"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        ((1, 2), [1, 2]),
        ({1}, [1]),
        (Pair(1, 2), [1, 2]),
        ({1: "a"}, {"1": "a"}),
        (OrderedDict(a=1), {"a": 1}),
        ("ü" * 3, "üüü"),
        ({"null": "null"}, {"null": "null"}),
        ([Path("/a/b")], ["/a/b"]),
        ({"found": PurePosixPath("c")}, {"found": "c"}),
        (array("i", [1, 2]), [1, 2]),  # has `tolist`, as the arrays and numbers of NumPy have
    ],
)
def test_a_json_like_value_becomes_text_and_data(value: Any, data: Any) -> None:
    result = as_result("t", value)
    assert result.data == data
    assert type(result.data) is type(data)
    if not isinstance(value, str):
        assert msgspec.json.decode(result.text) == data
    assert ToolResult.from_json(result.to_json()) == result


@pytest.mark.slow
@given(JSON)
def test_any_json_value_is_what_will_be_read_again(value: Any) -> None:
    result = as_result("t", value)
    assert ToolResult.from_json(result.to_json()) == result
    if value is not None:
        assert result.data == value


def test_blocks_alone_or_in_lists_are_content() -> None:
    image = ImageContent(b"png")
    assert as_result("t", image).content == (image,)
    assert as_result("t", [TextContent("a"), image]).content == (TextContent("a"), image)
    assert as_result("t", (image, "caption")).content == (image, TextContent("caption"))


def test_a_list_that_mixes_blocks_with_other_things_names_them() -> None:
    with pytest.raises(
        ToolError, match=r"'t' returned a list, but content takes .* not a list with 5"
    ):
        as_result("t", [ImageContent(b""), 5])


def numbers() -> Any:
    yield 1


async def later() -> None: ...


def circle() -> Any:
    items: list[Any] = []
    items.append(items)
    return items


def deep() -> Any:
    value: Any = []
    for _ in range(100_000):
        value = [value]
    return value


class Lying(BaseModel):
    a: int

    def model_dump(self, **_: Any) -> Any:
        raise RuntimeError("no")


NONSENSE = [
    (numbers(), "a generator"),
    (object(), "an object"),
    (math.nan, "a float"),
    (math.inf, "a float"),
    ([1, -math.inf], "a list"),
    ({"a": {"b": math.nan}}, "a dict"),
    (circle(), "a list"),
    (deep(), "a list"),
    (lambda: 1, "a function"),
    (Struct, "a type|a StructMeta"),
    (Model, "a ModelMetaclass"),
    ({"a": object()}, "a dict"),
    ({(1, 2): 3}, "a dict"),
    (Lying(a=1), "a Lying"),
    (open, "a builtin"),
    (Struct(math.nan), "a Struct"),
    ([None, math.nan], "a list"),  # pyright: ignore[reportArgumentType]
]


@pytest.mark.parametrize(("value", "problem"), NONSENSE)
def test_what_is_not_json_is_refused_and_not_tried_again(value: Any, problem: str) -> None:
    with pytest.raises(ToolError, match=f"'t' returned ({problem})") as caught:
        as_result("t", value)
    assert "A tool returns a ToolResult, a str, content blocks, a JSON value" in str(caught.value)
    assert "Its effect may have happened." in str(caught.value)
    assert (caught.value.error_type, caught.value.retryable) == ("internal", False)


def test_a_coroutine_is_refused_too() -> None:
    coroutine = later()
    with pytest.raises(ToolError, match="'t' returned a coroutine"):
        as_result("t", coroutine)
    coroutine.close()


# --- results that a callback built ---


@pytest.mark.parametrize(
    "result",
    [
        ToolResult(),
        ToolResult("a"),
        ToolResult("a", is_error=True),
        ToolResult("a", meta={"exitCode": 0}),
        ToolResult.failure("b", "network"),
        ToolResult(
            [ImageContent(b"a"), ResourceLink("x"), EmbeddedResource({"uri": "x"})],
            structured_content=[1],
        ),
    ],
)
def test_a_sound_result_passes_as_it_is(result: ToolResult) -> None:
    assert as_result("t", result) == result


def test_a_result_is_a_snapshot_of_what_it_was_made_from() -> None:
    rows, meta = [{"a": 1}], {"n": (1, 2)}
    result = as_result("t", ToolResult("a", structured_content=rows, meta=meta))
    rows.append({"a": 2})
    meta.clear()
    assert (result.structured_content, result.meta) == ([{"a": 1}], {"n": [1, 2]})


wrong: Any = ToolResult


@pytest.mark.parametrize(
    "result",
    [
        wrong("a", meta=None),
        wrong("a", meta=[1]),
        wrong("a", is_error="no"),
        wrong([TextContent(5)]),
        wrong([TextContent(None)]),  # type: ignore[arg-type]
        wrong("a", error="broken"),
        wrong("a", meta={"f": object()}),
        wrong("a", {"f": math.nan}),  # type: ignore[arg-type]
        wrong([EmbeddedResource({"x": object()})]),
        wrong("a", structured_content=circle()),  # type: ignore[arg-type]
    ],
)
def test_a_result_that_could_not_be_read_again_is_refused_before_it_is_stored(
    result: ToolResult,
) -> None:
    with pytest.raises(ToolError, match="'t' returned a ToolResult, which") as caught:
        as_result("t", result)
    assert not caught.value.retryable


# --- text that UTF-8 cannot hold ---


@pytest.mark.parametrize(
    "value",
    [
        LONE,
        Word(LONE),
        [LONE],
        {LONE: [LONE, {"a": LONE}]},
        TextContent(LONE),
        ToolResult(LONE),
        Struct(1, LONE),
        ResourceLink(LONE),
        ToolResult("a", meta={"file": LONE}),
        ToolResult("a", structured_content=[LONE]),
        ToolResult("a", error=ErrorInfo("internal", LONE)),
    ],
)
def test_lone_surrogates_are_cleaned_wherever_they_stand(value: Any) -> None:
    data = as_result("t", value).to_json()
    assert b"file-?.txt" in data
    assert ToolResult.from_json(data).to_json() == data


@given(st.text())
def test_clean_text_can_be_encoded_and_sound_text_is_kept(text: str) -> None:
    cleaned = clean(text)
    cleaned.encode()
    if not any("\ud800" <= letter <= "\udfff" for letter in text):
        assert cleaned is text
    else:
        assert len(cleaned) == len(text)


# --- results of MCP that a callback hands on ---


def test_a_callback_that_returns_the_json_of_an_mcp_result_returns_that_result() -> None:
    text = {"type": "text", "text": "no"}
    data = {"content": [text], "isError": True, "structuredContent": {"a": 1}, "_meta": {"b": 2}}
    expected = ToolResult("no", structured_content={"a": 1}, meta={"b": 2}, is_error=True)
    assert as_result("t", data) == expected
    assert as_result("t", mcp_types.CallToolResult.model_validate(data)) == expected
    assert as_result("t", {"content": [text]}) == ToolResult("no")
    assert as_result("t", {"content": [], "isError": True}) == ToolResult(is_error=True)
    with pytest.raises(ToolError, match="the form of an MCP result with a wrong part"):
        as_result("t", {"content": [{"type": "text"}], "isError": True})


@pytest.mark.parametrize(
    "data",
    [
        {"content": []},
        {"content": "text", "isError": True},
        {"content": [{"type": "paragraph"}]},
        {"content": [{"type": "text", "text": "a"}], "title": "A page"},
    ],
)
def test_other_json_is_data(data: Any) -> None:
    assert as_result("t", data).structured_content == data
