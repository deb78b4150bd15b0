"""Forms that a user fills in: JSON Schemas of flat properties, what an answer must be, and which of its values are secrets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from holdfast.errors import ConfigurationError, ToolError
from holdfast.tools.schema import from_json_schema

HIDDEN = "***"

_LARGEST = 100_000  # bytes of a schema as JSON; a form that a person fills in has some hundred


def check_form(schema: Any) -> dict[str, Any]:
    """A form's schema, as a copy of its own. Raises `ConfigurationError` for what is none."""
    if not isinstance(schema, Mapping) or cast("Mapping[str, Any]", schema).get("type", "object") != "object":
        raise ConfigurationError("ask: schema takes the JSON Schema of an object, such as {'type': 'object', 'properties': {...}}.")
    found = _copy("ask: schema", cast("Mapping[str, Any]", schema))
    if len(json.dumps(found)) > _LARGEST:
        raise ConfigurationError(f"ask: schema takes at most {_LARGEST:,} bytes of JSON.")
    listed = found.get("properties", {})
    if not isinstance(listed, dict) or not all(isinstance(field, dict) for field in cast("dict[str, Any]", listed).values()):
        raise ConfigurationError("ask: schema has properties that are no mapping of names to schemas.")
    try:
        from_json_schema("form", found, untrusted=True)({})
    except ToolError:  # there are required fields: it was applied
        pass
    except ConfigurationError as error:
        raise ConfigurationError(f"ask: schema cannot be used. {error}") from error
    return found


def fields(schema: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
    """The form's fields by name, in its order."""
    return {} if schema is None else cast("dict[str, dict[str, Any]]", schema.get("properties") or {})


def is_secret(field: Mapping[str, Any]) -> bool:
    """Whether a field's value is not to be shown or kept: `writeOnly`, or of the format `password`."""
    return field.get("writeOnly") is True or field.get("format") == "password"


def masked(schema: Mapping[str, Any] | None, values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` as they may be written down: secret ones as `***`."""
    known = fields(schema)
    return {name: HIDDEN if is_secret(known.get(name, {})) else value for name, value in values.items()}


def defaults(schema: Mapping[str, Any] | None) -> dict[str, Any]:
    """The values of fields that nobody fills in."""
    return {name: field["default"] for name, field in fields(schema).items() if field.get("default") is not None}


def filled(what: str, schema: Mapping[str, Any] | None, values: Any) -> dict[str, Any] | None:
    """An answer, with the form's defaults for what it leaves out; None for one that declines (None, False). True is the defaults alone.

    Text that holds a number or a boolean is read as such where the form wants that. Raises `ConfigurationError` beginning with `what`
    for an answer that does not fit; it never shows a secret value.
    """
    if values is None or values is False:
        return None
    given: Any = {} if values is True else values
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"{what} takes a dict of the form's values, True, or None to decline, not {type(values).__name__}.")
    if schema is None:
        if given:
            raise ConfigurationError(f"{what} takes True, or None to decline: it has no form.")
        return {}
    known = fields(schema)
    found = {**defaults(schema), **_copy(what, cast("Mapping[str, Any]", given))}
    found = {**{name: found[name] for name in known if name in found}, **found}  # in the form's order

    def explain(_: str, __: Mapping[str, Any], problems: list[str]) -> ConfigurationError:
        said: list[str] = []
        for problem in dict.fromkeys(problems):
            name, colon, _ = problem.partition(": ")
            hidden = colon and is_secret(known.get(name.partition(".")[0], {}))
            said.append(
                f"{name}: what was given does not fit"
                if hidden
                else problem.replace("arguments: ", "", 1).replace("one of its parameters", "one of its fields")
            )
        return ConfigurationError(f"{what} does not fit: {'; '.join(said[:5]).rstrip('.')}. It takes: {', '.join(known) or 'no values'}.")

    closed = None if schema.get("additionalProperties") or not known else frozenset(known)
    try:
        return from_json_schema("form", dict(schema), closed, explain, untrusted=True)(found)
    except ToolError as error:
        raise ConfigurationError(f"{what}: {error}") from error


def _copy(what: str, value: Mapping[str, Any]) -> dict[str, Any]:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()  # half of a surrogate pair has no bytes
        return json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{what} takes what JSON can say: {type(error).__name__}.") from error
