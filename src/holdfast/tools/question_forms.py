"""Forms that a user fills in: their schemas, their validation and their secret values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from holdfast.errors import ConfigurationError, ToolError
from holdfast.tools.schema import from_json_schema

HIDDEN = "***"

_MAX_SCHEMA_BYTES = 100_000  # as JSON; a form for a person has a few hundred


def check_form(schema: Any) -> dict[str, Any]:
    """Return a copy of a form's schema. Raises `ConfigurationError` if it is not a form."""
    source = cast("Mapping[str, Any]", schema) if isinstance(schema, Mapping) else {"type": ""}
    if source.get("type", "object") != "object":
        raise ConfigurationError(
            "ask: schema takes the JSON Schema of an object, such as {'type': 'object',"
            " 'properties': {...}}."
        )
    form = _copy("ask: schema", source)
    if len(json.dumps(form)) > _MAX_SCHEMA_BYTES:
        raise ConfigurationError(f"ask: schema takes at most {_MAX_SCHEMA_BYTES:,} bytes of JSON.")
    listed = form.get("properties", {})
    if not isinstance(listed, dict) or not all(
        isinstance(field, dict) for field in cast("dict[str, Any]", listed).values()
    ):
        raise ConfigurationError(
            "ask: schema has properties that are not a mapping of names to schemas."
        )
    try:
        from_json_schema("form", form, untrusted=True)({})
    except ToolError:  # fields are required; the schema was applied, which is all this checks
        pass
    except ConfigurationError as error:
        raise ConfigurationError(f"ask: schema cannot be used. {error}") from error
    return form


def form_fields(schema: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
    """Return the form's fields by name, in its order."""
    return {} if schema is None else schema.get("properties") or {}


def is_secret(field: Mapping[str, Any]) -> bool:
    """Return True if a value must not be shown: `writeOnly`, or of the format `password`."""
    return field.get("writeOnly") is True or field.get("format") == "password"


def mask_secrets(schema: Mapping[str, Any] | None, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of `values` in which secret values are `***`."""
    fields = form_fields(schema)
    return {
        name: HIDDEN if is_secret(fields.get(name, {})) else value for name, value in values.items()
    }


def default_values(schema: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the default values of the fields."""
    return {
        name: field["default"]
        for name, field in form_fields(schema).items()
        if field.get("default") is not None
    }


def complete_answer(
    what: str, schema: Mapping[str, Any] | None, values: Any
) -> dict[str, Any] | None:
    """Return an answer completed by the form's defaults; None for a declined one (None, False).
    True is an answer of defaults alone. A string that holds a number or a boolean is converted
    where the form requires one. Raises `ConfigurationError` beginning with `what` for an answer
    that does not fit. The error never shows a secret value."""
    if values is None or values is False:
        return None
    answer: Any = {} if values is True else values
    if not isinstance(answer, Mapping):
        raise ConfigurationError(
            f"{what} takes a dict of the form's values, True, or None to decline, not"
            f" {type(values).__name__}."
        )
    if schema is None:
        if answer:
            raise ConfigurationError(f"{what} takes True, or None to decline: it has no form.")
        return {}
    fields = form_fields(schema)
    form_values = default_values(schema) | _copy(what, cast("Mapping[str, Any]", answer))
    in_order = {name: form_values[name] for name in fields if name in form_values}
    form_values = in_order | form_values

    def explain(_: str, __: Mapping[str, Any], problems: list[str]) -> ConfigurationError:
        messages: list[str] = []
        for problem in dict.fromkeys(problems):
            name, colon, _ = problem.partition(": ")
            hidden = colon and is_secret(fields.get(name.partition(".")[0], {}))
            text = problem.replace("arguments: ", "", 1)
            text = text.replace("one of its parameters", "one of its fields")
            messages.append(f"{name}: the value does not fit" if hidden else text)
        return ConfigurationError(
            f"{what} does not fit: {'; '.join(messages[:5]).rstrip('.')}. It takes:"
            f" {', '.join(fields) or 'no values'}."
        )

    closed = None if schema.get("additionalProperties") or not fields else frozenset(fields)
    try:
        return from_json_schema("form", dict(schema), closed, explain, untrusted=True)(form_values)
    except ToolError as error:
        raise ConfigurationError(f"{what}: {error}") from error


def _copy(what: str, value: Mapping[str, Any]) -> dict[str, Any]:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()  # raises for a lone surrogate
        return json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{what} takes JSON values: {type(error).__name__}.") from error
