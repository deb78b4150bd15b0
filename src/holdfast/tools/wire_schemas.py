"""Schemas of tools in the form that every model API accepts.

OpenAI and Anthropic refuse a whole request for one tool whose schema is not a plain object at its
root, such as that of a discriminated union. OpenAI also refuses arrays without `items`, and
Anthropic keywords of drafts before 2020-12. Calls are always checked against the schema as it was
given.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, cast

from holdfast.tools.json_values import as_list, as_object
from holdfast.tools.names import word_set
from holdfast.tools.schema import map_schemas

_NOT_AT_ROOT = word_set(
    "$ref allOf anyOf oneOf not enum const if then else dependentSchemas dependencies"
)
_BRANCHES = ("allOf", "anyOf", "oneOf", "then", "else")
_MAX_BRANCHES = 200
_MAX_NOTE_CHARS = 2_000
_BOUNDS = (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum"))


def for_models(schema: dict[str, Any]) -> dict[str, Any]:
    """Return an equivalent schema that model APIs accept, the same object if they accept it as it
    is. What an object at the root cannot say is in its description."""
    if not _NOT_AT_ROOT.isdisjoint(schema):
        schema = _with_plain_root(schema)
    return map_schemas(schema, _modern) if _is_old(schema) else schema


def _with_plain_root(schema: dict[str, Any]) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for branch in _branches(schema, schema):
        for name, one in as_object(branch.get("properties")).items():
            earlier = properties.setdefault(name, one)
            if earlier != one:
                is_choice = as_object(earlier).keys() == {"anyOf"}
                choices = as_list(earlier["anyOf"]) if is_choice else [earlier]
                merged = choices if one in choices else [*choices, one]
                properties[name] = {"anyOf": merged}
    plain = {key: value for key, value in schema.items() if key not in _NOT_AT_ROOT}
    plain |= {"type": "object", "properties": properties}
    if required := list(_required(schema, schema, {})):
        plain["required"] = required
    rules = json.dumps({key: value for key, value in schema.items() if key in _NOT_AT_ROOT})
    if len(rules) <= _MAX_NOTE_CHARS:
        note = f"The arguments also have to match this JSON Schema: {rules}"
        plain["description"] = f"{plain.get('description', '')}\n{note}".strip()
    return plain


def _branches(schema: dict[str, Any], root: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a schema and those that it applies to the same value, each once."""
    pending, ids = [schema], list[int]()
    while pending and len(ids) < _MAX_BRANCHES:
        one = pending.pop(0)
        if id(one) in ids:
            continue
        ids.append(id(one))
        yield one
        inner = [_target(one.get("$ref"), root)]
        inner += [branch for key in _BRANCHES for branch in as_list(one.get(key))]
        inner += as_object(one.get("dependentSchemas")).values()
        pending += [branch for branch in inner if isinstance(branch, dict)]


def _required(
    schema: Any, root: dict[str, Any], names_by_id: dict[int, dict[str, None]]
) -> dict[str, None]:
    """Return the names that a schema requires in every case, in order. `names_by_id` has those of
    earlier schemas: references may repeat, and may form a circle."""
    if not isinstance(schema, dict):
        return {}
    one = cast("dict[str, Any]", schema)
    if id(one) in names_by_id or len(names_by_id) >= _MAX_BRANCHES:
        return names_by_id.get(id(one), {})
    names = names_by_id[id(one)] = dict.fromkeys(map(str, as_list(one.get("required", []))))
    for inner in (_target(one.get("$ref"), root), *as_list(one.get("allOf"))):
        names.update(_required(inner, root, names_by_id))
    for key in ("anyOf", "oneOf"):
        choices = [_required(inner, root, names_by_id) for inner in as_list(one.get(key))]
        if choices:
            in_all = [name for name in choices[0] if all(name in other for other in choices)]
            names.update(dict.fromkeys(in_all))
    return names


def _target(reference: Any, root: dict[str, Any]) -> Any:
    """Return the definition that a reference names, None if there is none in the schema."""
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    place: Any = root
    for part in reference[2:].split("/"):
        place = cast("dict[str, Any]", place).get(part) if isinstance(place, dict) else None
    return place


def _is_old(schema: Any) -> bool:
    if isinstance(schema, list):
        return any(map(_is_old, cast("list[Any]", schema)))
    if not isinstance(schema, dict):
        return False
    one = cast("dict[str, Any]", schema)
    return _lacks_items(one) or any(map(_is_old, one.values()))


def _lacks_items(one: dict[str, Any]) -> bool:
    is_array = "array" in as_list(one.get("type"))
    return (
        (is_array and not isinstance(one.get("items"), dict | bool))
        or isinstance(one.get("items"), list)
        or any(isinstance(one.get(bound), bool) for bound, _ in _BOUNDS)
    )


def _modern(one: dict[str, Any]) -> dict[str, Any]:
    if isinstance(one.get("items"), list):
        one["prefixItems"] = one.pop("items")
        one["items"] = one.pop("additionalItems", {})
    elif "array" in as_list(one.get("type")) and "items" not in one:
        one["items"] = {}
    for bound, limit in _BOUNDS:
        if isinstance(one.get(bound), bool) and one.pop(bound) and limit in one:
            one[bound] = one.pop(limit)
    return one
