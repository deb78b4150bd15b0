"""Tests of the schemas that are sent to models: every API accepts them, and they lose nothing that
a model has to know."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.content import ToolCall
from holdfast.tools import Tool, ToolManager
from holdfast.tools.wire_schemas import for_models

NOT_AT_ROOT = {"$ref", "allOf", "anyOf", "oneOf", "not", "enum", "if", "then", "else"}
TEXT, NUMBER = {"type": "string"}, {"type": "number"}


def branch(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


@pytest.mark.parametrize(
    ("schema", "properties", "required"),
    [
        (
            {"oneOf": [branch("id", "x", id=TEXT, x=TEXT), branch("slug", "x", slug=TEXT, x=TEXT)]},
            {"id": TEXT, "x": TEXT, "slug": TEXT},
            ["x"],
        ),
        (
            {"type": "object", "allOf": [branch("a", a=TEXT), branch("b", b=TEXT)]},
            {"a": TEXT, "b": TEXT},
            ["a", "b"],
        ),
        (
            {"anyOf": [branch("k", k={"const": "a"}), branch("k", k={"const": "b"})]},
            {"k": {"anyOf": [{"const": "a"}, {"const": "b"}]}},
            ["k"],
        ),
        (
            {"$ref": "#/$defs/A", "$defs": {"A": branch("a", a=TEXT)}},
            {"a": TEXT},
            ["a"],
        ),
        (
            {**branch("m", m=TEXT), "if": {"required": ["m"]}, "then": branch("n", n=NUMBER)},
            {"m": TEXT, "n": NUMBER},
            ["m"],
        ),
        (
            {
                "$ref": "#/$defs/A",
                "$defs": {"A": {"anyOf": [{"$ref": "#/$defs/A"}, branch(b=TEXT)]}},
            },
            {"b": TEXT},
            None,
        ),
        (
            {**branch("a", a=TEXT, b=TEXT), "not": {"required": ["b"]}},
            {"a": TEXT, "b": TEXT},
            ["a"],
        ),
    ],
)
def test_a_root_that_apis_refuse_becomes_an_object(
    schema: dict[str, Any], properties: Any, required: Any
) -> None:
    plain = for_models(schema)
    assert NOT_AT_ROOT.isdisjoint(plain)
    assert (plain["type"], plain["properties"]) == ("object", properties)
    assert plain.get("required") == required
    assert "have to match this JSON Schema: {" in plain["description"]


@pytest.mark.parametrize(
    ("schema", "modern"),
    [
        ({"type": "array"}, {"type": "array", "items": {}}),
        ({"type": ["array", "null"]}, {"type": ["array", "null"], "items": {}}),
        (
            {"type": "array", "items": [TEXT, NUMBER], "additionalItems": False},
            {"type": "array", "prefixItems": [TEXT, NUMBER], "items": False},
        ),
        (
            {"type": "number", "minimum": 1, "exclusiveMinimum": True},
            {"type": "number", "exclusiveMinimum": 1},
        ),
        (
            {"type": "number", "maximum": 1, "exclusiveMaximum": False},
            {"type": "number", "maximum": 1},
        ),
    ],
)
def test_keywords_of_older_drafts_become_those_of_2020(schema: Any, modern: Any) -> None:
    for wrap in ({"properties": {"a": {}}}, {"properties": {"b": {"type": "array", "items": {}}}}):
        (name,) = wrap["properties"]
        inner = {"type": "array", "items": schema} if name == "b" else schema
        sent = for_models({"type": "object", "properties": {name: inner}})["properties"][name]
        assert (sent["items"] if name == "b" else sent) == modern


def test_a_schema_that_apis_accept_is_sent_as_it_is() -> None:
    schema = branch("a", a=TEXT, b={"type": "array", "items": TEXT}, c={"anyOf": [TEXT, NUMBER]})
    schema["properties"]["d"] = {"const": {"type": "array"}}
    assert for_models(schema)["properties"] == schema["properties"]
    del schema["properties"]["d"]
    assert for_models(schema) is schema


@pytest.mark.parametrize("style", ["openai_chat", "openai_responses", "anthropic", "gemini"])
def test_each_api_gets_the_plain_schema_and_calls_are_checked_by_the_whole(style: str) -> None:
    schema = {"type": "object", "oneOf": [branch("id", id=TEXT), branch("slug", slug=TEXT)]}
    manager = ToolManager([Tool("find", "Find.", lambda **given: list(given), schema)])
    (sent,) = manager.get_llm_definitions(style=style)
    sent = sent.get("function", sent)
    (form,) = [
        sent[key] for key in ("parameters", "input_schema", "parametersJsonSchema") if key in sent
    ]
    assert sorted(form["properties"]) == ["id", "slug"]
    assert NOT_AT_ROOT.isdisjoint(form)
    assert manager.run(ToolCall("1.0", "find", {"id": "x"})).data == ["id"]
    assert manager.run(ToolCall("1.0", "find", {"id": "x", "slug": "y"})).is_error
    (mcp,) = manager.get_llm_definitions(style="mcp")
    assert mcp["inputSchema"]["oneOf"] == schema["oneOf"]


def test_references_that_repeat_and_chains_of_them_are_bounded() -> None:
    def references(place: int) -> list[dict[str, str]]:
        return [{"$ref": f"#/$defs/A{place % 40}"}] * 30

    width = {f"A{i}": {"allOf": references(i + 1), "anyOf": references(i + 2)} for i in range(40)}
    assert for_models({"$ref": "#/$defs/A0", "$defs": width})["type"] == "object"
    chain = {f"A{i}": {"allOf": [{"$ref": f"#/$defs/A{i + 1}"}]} for i in range(3_000)}
    assert for_models({"$ref": "#/$defs/A0", "$defs": chain})["type"] == "object"


@pytest.mark.parametrize("wrong", [None, True, "x", 1, [], {}, [None], {"a": True}])
def test_keywords_with_wrong_values_are_passed_over(wrong: Any) -> None:
    for key in ("$ref", "allOf", "anyOf", "oneOf", "then", "dependentSchemas"):
        schema = {key: wrong, "properties": {"a": wrong}, "required": wrong}
        assert for_models({**schema, "not": {}})["type"] == "object"
        assert for_models({"allOf": [schema, schema]})["type"] == "object"
