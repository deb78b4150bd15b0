"""Tests of JSON Schemas from outside: the bounds of their cost, and their unchanged meaning."""

from __future__ import annotations

import logging
import tracemalloc
from typing import Any

import pytest

from holdfast.errors import ConfigurationError
from holdfast.tools.patterns import Pattern, UnsupportedPattern
from holdfast.tools.question_forms import check_form, complete_answer
from holdfast.tools.untrusted import Checker, TooMuchWork, UnusableSchema, inspect_schema

# --- patterns ---


@pytest.mark.parametrize(
    ("pattern", "fits", "fails"),
    [
        ("^(a+)+$", "aaa", "a" * 50_000 + "!"),
        (r"^\d{4}-\d{2}$", "2026-11", "２０２６-11"),  # noqa: RUF001
        (r"^\w+$", "a_1", "é"),
        (r"^[\w.-]+$", "a.b-c", "a b"),
        (r"^[[a&&b~-]+$", "[&~-", "c"),
        (r"^\p{Lu}\p{Ll}+$", "Émile", "émile"),
        (r"^(?<year>\d+)\/x$", "1/x", "1x"),
        (r"^{a}$", "{a}", "a"),
        (r"^a{2,3}$", "aaa", "a"),
        (r"\bword\b", "a word", "swords"),
        (r"^[^]$", "\n", ""),
        ("end$", "the end", "end\n"),
        (r"^\u0041\x42\0?$", "AB", "ab"),
        (r"\Aa\Z", "a", "ab"),
    ],
)
def test_a_pattern_means_what_ecma_262_says(pattern: str, fits: str, fails: str) -> None:
    compiled = Pattern(pattern)
    assert compiled.matches(fits)
    assert not compiled.matches(fails)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(?=a)", "look-around"),
        ("(?<!a)b", "look-around"),
        (r"(a)\1", "backreferences"),
        (r"(?<x>a)\k<x>", "backreferences"),
        ("((a{1,100}){1,100}){1,100}", "too large"),
        ("a" * 6000, "longer than 5,000"),
        ("[a", "does not end"),
        ("(", "not a regular expression"),
        ("a\\", "ends with a backslash"),
        ("*", "not a regular expression"),
    ],
)
def test_a_pattern_that_cannot_be_matched_in_linear_time_says_why(
    pattern: str, reason: str
) -> None:
    with pytest.raises(UnsupportedPattern, match=reason):
        Pattern(pattern)


# --- the schema itself ---


def chain(levels: int, keyword: str) -> dict[str, Any]:
    defs: dict[str, Any] = {
        f"d{n}": {keyword: [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**defs, f"d{levels}": {}}}


@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf"])
def test_an_expansion_is_counted_and_not_made(keyword: str) -> None:
    assert inspect_schema(chain(8, keyword)).expansion == 1022
    with pytest.raises(
        UnusableSchema,
        match="takes too much work: one value is held against more than 5,000 subschemas",
    ):
        inspect_schema(chain(400, keyword))


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"if": {"$ref": "#"}}}},
        {"properties": {"a": {"$ref": "#/properties/a"}}},
        {"$ref": "#/default/x", "default": {"x": {"not": {"$ref": "#/default/x"}}}},
        {"$id": "https://e.org/s", "$ref": "https://e.org/s"},
        {"$defs": {"a": {"$anchor": "here", "$ref": "#here"}}},
    ],
)
def test_a_schema_that_refers_to_itself_for_one_value_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(UnusableSchema, match="refers to itself without end"):
        inspect_schema(schema)


def test_a_schema_may_refer_to_itself_for_a_part_of_the_value() -> None:
    tree = {"type": "object", "properties": {"left": {"$ref": "#"}, "n": {"type": "integer"}}}
    assert [one.message for one in Checker("t", tree).problems({"left": {"left": {"n": "x"}}})] == [
        "'x' is not of type 'integer'"
    ]


def test_what_is_not_in_the_schema_is_not_fetched_and_harms_only_who_needs_it() -> None:
    checker = Checker(
        "t",
        {
            "properties": {
                "a": {"$ref": "https://json-schema.org/draft/2020-12/schema"},
                "b": {"type": "integer"},
            }
        },
    )
    assert checker.problems({"b": 1}) == []
    with pytest.raises(
        UnusableSchema, match=r"refers to 'https://json-schema.org/.*', which is not in it"
    ):
        checker.problems({"a": {}})


# --- applying it ---


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"items": {"enum": [[n] for n in range(5_000)]}}, [[4_999]] * 2_000),
        ({"uniqueItems": True}, [{"n": n} if n % 2 else n for n in range(20_000)]),
        ({"const": [[0] * 100] * 100}, [[0] * 100] * 100),
    ],
    ids=["enum", "uniqueItems", "const"],
)
def test_comparisons_are_not_quadratic(schema: dict[str, Any], value: Any) -> None:
    assert Checker("t", schema).problems(value) == []


@pytest.mark.parametrize(("value", "same"), [(1, 1.0), ([1], [1.0]), ({"a": None}, {"a": None})])
def test_equality_is_that_of_json(value: Any, same: Any) -> None:
    assert Checker("t", {"const": value}).problems(same) == []
    assert Checker("t", {"enum": [value]}).problems(same) == []
    assert len(Checker("t", {"uniqueItems": True}).problems([value, same])) == 1
    assert len(Checker("t", {"const": 1}).problems(True)) == 1
    assert Checker("t", {"uniqueItems": True}).problems([1, True, 0, False]) == []


@pytest.mark.slow
def test_errors_about_a_huge_value_are_short_and_few() -> None:
    schema = {"anyOf": [{"type": "integer"}] * 1_000, "items": {"type": "integer"}}
    value = ["x" * 1_000] * 20_000
    tracemalloc.start()
    try:
        Checker("t", schema).problems(value)
    except TooMuchWork:
        pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 60_000_000
    assert len(Checker("t", {"type": "integer"}).problems(value)[0].message) < 3_000


def test_a_pattern_is_not_tried_on_a_text_that_would_take_it_a_second() -> None:
    checker = Checker("t", {"pattern": "[ab]{0,400}a[ab]{400}c"})
    assert len(checker.problems("ab" * 1_000)) == 1
    assert checker.problems("ab" * 1_000_000) == []


def test_a_part_of_another_draft_is_bounded_too() -> None:
    inner = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "properties": {"a": {"pattern": "^(a+)+$"}},
    }
    checker = Checker(
        "t", {"properties": {"x": inner}, "const": {"$schema": {"a": 1}, "x": {"a": "b"}}}
    )
    assert len(checker.problems({"x": {"a": "a" * 60 + "!"}})) == 2


def test_patterns_of_names_are_linear_and_decide_which_are_additional(
    caplog: pytest.LogCaptureFixture,
) -> None:
    schema = {
        "properties": {"k": {}},
        "patternProperties": {"^(a+)+$": {"type": "integer"}},
        "additionalProperties": False,
    }
    checker = Checker("t", schema)
    assert checker.problems({"k": 1, "aa": 1}) == []
    assert [one.message for one in checker.problems({"aa": "x"})] == [
        "'x' is not of type 'integer'"
    ]
    assert "were unexpected" in checker.problems({"a" * 60 + "!": 1, "b": 1})[0].message
    with caplog.at_level(logging.WARNING, "holdfast"):
        unclear = Checker(
            "t", {"patternProperties": {"(?!x)": False}, "additionalProperties": False}
        )
        assert unclear.problems({"anything": 1}) == []
    assert "the pattern '(?!x)' is not enforced" in caplog.text


# --- forms ---


def test_the_form_of_a_question_is_bounded() -> None:
    form = check_form(
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}
    )
    assert complete_answer("the answer", form, {"a": "aa"}) == {"a": "aa"}
    with pytest.raises(ConfigurationError, match="the answer does not fit: a: "):
        complete_answer("the answer", form, {"a": "a" * 60 + "!"})
    with pytest.raises(ConfigurationError, match="takes too much work"):
        check_form({"type": "object", **chain(26, "allOf")})


@pytest.mark.parametrize("anchors", [4_990, 5_000])
def test_one_dynamic_reference_to_thousands_of_places_is_refused_before_it_is_followed(
    anchors: int,
) -> None:
    schema = {
        "$defs": {f"d{n}": {"$dynamicAnchor": "n"} for n in range(anchors)},
        "properties": {f"p{n}": {"$dynamicRef": "#n"} for n in range(9_000)},
    }
    tracemalloc.start()
    try:
        with pytest.raises(UnusableSchema, match=r"too much work|links"):
            inspect_schema(schema)
        assert tracemalloc.get_traced_memory()[1] < 100_000_000  # two gigabytes, if all are held
    finally:
        tracemalloc.stop()
