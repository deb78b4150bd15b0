"""The subset of JSON Schema that OpenAI's strict mode accepts."""

from __future__ import annotations

from typing import Any

from holdfast.tools.names import word_set

_STRICT = word_set(
    "type properties required additionalProperties items anyOf enum const title description "
    "$ref $defs"
)


def is_strict(schema: Any, root: bool = True) -> bool:
    """Return True if strict mode of all models and hosts accepts the schema unchanged."""
    try:
        if not schema.keys() <= _STRICT:
            return False
        if "$ref" in schema:
            return len(schema) == 1 and not root
        kinds: Any = schema.get("type") or ()
        properties: dict[str, Any] = schema.get("properties") or {}
        if ("object" in kinds or properties) and (
            schema.get("additionalProperties") is not False
            or sorted(schema["required"]) != sorted(properties)
        ):
            return False
        if kinds != "object" if root else not (kinds or "anyOf" in schema):
            return False
        inner: list[Any] = [*properties.values(), *schema.get("$defs", {}).values()]
        inner += schema.get("anyOf", ())
        if "array" in kinds:
            inner.append(schema["items"])
        return all(is_strict(each, False) for each in inner)
    except (AttributeError, KeyError, TypeError):  # not a well-formed schema
        return False
