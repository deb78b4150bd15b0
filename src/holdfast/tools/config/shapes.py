"""Shapes: the types of a config's values. Each shape parses a value or reports its mistake, and
writes its own JSON Schema. The parser and the published schema therefore come from one table."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, cast

from holdfast.tools.document import Map, Place, Seq, plain

Defs = dict[str, Any]

# --- variables ---

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_VARIABLE = re.compile(
    rf"\$(?P<escape>\$)\{{|\$\{{(?P<name>{_NAME})(?::-(?P<default>[^}}]*))?\}}|\$\{{"
)
# The same rule for a whole text, in the syntax of JSON Schema's regular expressions.
_WELL_FORMED = rf"^(?:\$\$\{{|\$\{{{_NAME}(?::-[^}}]*)?\}}|[^$]|\$(?!\$?\{{))*$"
# The end of a text. `$` differs between languages: Python's matches before a last line break too.
END = r"(?![\s\S])"
_HAS_VARIABLE = rf"^(?:\$\$\{{|[^$]|\$(?!\$?\{{))*\$\{{{_NAME}(?::-[^}}]*)?\}}"


class Filled(str):
    """A text that variables were substituted into.

    Where a number or a boolean is expected, the text is parsed as one. No message shows the
    text, because it may be secret. `value` is the variable's own value, if the text is that
    variable alone.
    """

    value: Any

    @classmethod
    def of(cls, text: str, value: Any) -> Filled:
        filled = cls(text)
        filled.value = value
        return filled


def fill(document: Any, variables: Mapping[str, Any]) -> Any:
    """Replace `${NAME}`, `${NAME:-default}` and `$${` in all texts of a tree, in place. Keys are
    not changed."""
    if isinstance(document, Map):
        for key, value in document.items():
            document[key] = _filled(value, document.places[key], variables)
    elif isinstance(document, Seq):
        for index, value in enumerate(document):
            document[index] = _filled(value, document.places[index], variables)
    return document


def _filled(value: Any, place: Place, variables: Mapping[str, Any]) -> Any:
    if not isinstance(value, str):
        return fill(value, variables)
    if "${" not in value:
        return value

    def substitute(match: re.Match[str]) -> Any:
        name = match["name"]
        if match["escape"]:
            return "${"
        if name is None:
            raise place.error(
                f"{value!r} has '${{' that begins no variable. Write ${{NAME}}, ${{NAME:-default}},"
                " or $${ for the characters ${ themselves."
            )
        if name in variables:
            return variables[name]
        if match["default"] is None:
            near = difflib.get_close_matches(name, list(variables), 1)
            hint = f" Did you mean ${{{near[0]}}}?" if near else ""
            raise place.error(
                f"the variable {name!r} is not given.{hint} Pass variables={{{name!r}: ...}}, or"
                f" write a default: ${{{name}:-...}}. The environment is not used."
            )
        return match["default"]

    text = _VARIABLE.sub(lambda match: _text(substitute(match), place, match["name"]), value)
    if not any(match["name"] for match in _VARIABLE.finditer(value)):
        return text  # only escapes, so the text is the file's own
    whole = _VARIABLE.fullmatch(value)
    return Filled.of(text, text if whole is None else substitute(whole))


def _text(value: Any, place: Place, name: str | None) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise place.error(
        f"the variable {name!r} is given as {type(value).__name__}; it takes a text, a number, True"
        " or False."
    )


def _or_variable(schema: dict[str, Any], defs: Defs) -> dict[str, Any]:
    defs.setdefault(
        "variable",
        {
            "description": "A text with ${NAME} in it.",
            "allOf": [_text_schema(defs), {"pattern": _HAS_VARIABLE}],
        },
    )
    return {"anyOf": [schema, {"$ref": "#/$defs/variable"}]}


def _text_schema(defs: Defs) -> dict[str, Any]:
    defs.setdefault("text", {"type": "string", "pattern": _WELL_FORMED})
    return {"$ref": "#/$defs/text"}


# --- shapes ---


class Shape(Protocol):
    """The type of a config value."""

    def read(self, value: Any, place: Place) -> Any:
        """Return the value as plain data. Raises `ConfigurationError` with its place."""
        ...

    def schema(self, defs: Defs) -> dict[str, Any]:
        """Return the JSON Schema of this shape. Shared definitions go into `defs`."""
        ...


def shown(value: Any) -> str:
    """Return the description of a wrong value for a message. Texts from variables are not shown,
    and collections only by kind."""
    match value:
        case Filled():
            return "the text that a variable gives"
        case Map() | dict():
            return "a mapping"
        case Seq() | list():
            return "a list"
        case None | True | False:
            return {None: "null", True: "true", False: "false"}[value]
        case int() | float():
            return f"the number {value}"
        case _:
            return repr(value) if len(value) <= 60 else "a long text"


class Text(NamedTuple):
    """A text, which must match the whole `pattern` if there is one. A `secret` text is never
    shown."""

    what: str = "a text"
    pattern: str = ""
    secret: bool = False
    empty: bool = False

    def read(self, value: Any, place: Place) -> str:
        if not isinstance(value, str):
            hint = (
                " In YAML, put it in quotes."
                if isinstance(value, bool | int | float) or value is None
                else ""
            )
            raise place.error(
                f"it takes {self.what}, not"
                f" {'another kind of value' if self.secret else shown(value)}.{hint}"
            )
        if not value and not self.empty:
            raise place.error(f"it takes {self.what}; it is empty.")
        if self.pattern and not re.fullmatch(self.pattern, value):
            raise place.error(
                f"it takes {self.what}, not {'what was given' if self.secret else shown(value)}."
            )
        return str(value)

    def schema(self, defs: Defs) -> dict[str, Any]:
        if self.pattern:
            return _or_variable(
                {**_text_schema(defs), "pattern": f"^(?:{self.pattern}){END}"}, defs
            )
        return _text_schema(defs) if self.empty else {**_text_schema(defs), "minLength": 1}


class Choice(NamedTuple):
    """One of several words."""

    words: tuple[str, ...]

    def read(self, value: Any, place: Place) -> str:
        if not isinstance(value, str) or value not in self.words:
            near = (
                difflib.get_close_matches(value, self.words, 1)
                if isinstance(value, str) and not isinstance(value, Filled)
                else []
            )
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise place.error(
                f"it takes {' or '.join(map(repr, self.words))}, not {shown(value)}.{hint}"
            )
        return str(value)

    def schema(self, defs: Defs) -> dict[str, Any]:
        return _or_variable({"enum": list(self.words)}, defs)


class Number(NamedTuple):
    """A number from `low` to `high`; with `above`, `low` itself is excluded."""

    what: str
    low: float = 0
    high: float = 1e9
    whole: bool = False
    above: bool = False

    def read(self, value: Any, place: Place) -> Any:
        found = plain(value) if isinstance(value, Filled) else value
        if self.whole and isinstance(found, float) and found.is_integer():
            found = int(found)  # 3.0 is an integer in JSON Schema
        good = isinstance(found, int if self.whole else int | float) and not isinstance(found, bool)
        if not good or not self.low <= found <= self.high or (self.above and found == self.low):
            raise place.error(f"it takes {self.what}, not {shown(value)}.")
        return found

    def schema(self, defs: Defs) -> dict[str, Any]:
        bound = "exclusiveMinimum" if self.above else "minimum"
        return _or_variable(
            {"type": "integer" if self.whole else "number", bound: self.low, "maximum": self.high},
            defs,
        )


class Flag(NamedTuple):
    """A boolean."""

    def read(self, value: Any, place: Place) -> bool:
        found = plain(value) if isinstance(value, Filled) else value
        if not isinstance(found, bool):
            raise place.error(f"it takes true or false, not {shown(value)}.")
        return found

    def schema(self, defs: Defs) -> dict[str, Any]:
        return _or_variable({"type": "boolean"}, defs)


class Anything(NamedTuple):
    """Any JSON value."""

    def read(self, value: Any, place: Place) -> Any:
        if isinstance(value, Map):
            return {key: self.read(member, value.places[key]) for key, member in value.items()}
        if isinstance(value, Seq):
            return [self.read(member, at) for member, at in zip(value, value.places, strict=True)]
        return value.value if isinstance(value, Filled) else value

    def schema(self, defs: Defs) -> dict[str, Any]:
        defs.setdefault(
            "anything",
            {
                "type": ["null", "boolean", "number", "string", "array", "object"],
                "pattern": _WELL_FORMED,
                "items": {"$ref": "#/$defs/anything"},
                "additionalProperties": {"$ref": "#/$defs/anything"},
            },
        )
        return {"$ref": "#/$defs/anything"}


class ListOf(NamedTuple):
    """A list whose items have one shape."""

    item: Shape
    what: str = "a list"

    def read(self, value: Any, place: Place) -> list[Any]:
        if not isinstance(value, Seq):
            raise place.error(f"it takes {self.what}, not {shown(value)}.")
        return [self.item.read(member, at) for member, at in zip(value, value.places, strict=True)]

    def schema(self, defs: Defs) -> dict[str, Any]:
        return {"type": "array", "items": self.item.schema(defs)}


class MapOf(NamedTuple):
    """A mapping of names to values of one shape. The names must match `key` if there is one;
    `key_rule` describes that pattern."""

    member: Shape
    what: str = "a mapping"
    key: str = ""
    key_rule: str = ""

    def read(self, value: Any, place: Place) -> dict[str, Any]:
        if not isinstance(value, Map):
            raise place.error(f"it takes {self.what}, not {shown(value)}.")
        for name in value:
            if self.key and not re.fullmatch(self.key, name):
                raise value.places[name].error(f"invalid name {name!r}: {self.key_rule}.")
        return {
            name: self.member.read(member, value.places[name]) for name, member in value.items()
        }

    def schema(self, defs: Defs) -> dict[str, Any]:
        schema: dict[str, Any] = {
            "type": "object",
            "additionalProperties": self.member.schema(defs),
        }
        if self.key:
            schema["propertyNames"] = {"pattern": f"^(?:{self.key}){END}"}
        return schema


class Key(NamedTuple):
    """One key of a record.

    An optional key may be null, which is the same as its absence, unless `null` is True: then
    null is a value of its own.
    """

    shape: Shape
    description: str
    required: bool = False
    null: bool = False


Check = Callable[[dict[str, Any], Place], None]


class Record(NamedTuple):
    """A mapping with known keys. `check` validates combinations of keys; `together` is the same
    rule in JSON Schema."""

    name: str
    what: str
    keys: Mapping[str, Key]
    check: Check | None = None
    together: Mapping[str, Any] = {}

    def read(self, value: Any, place: Place) -> dict[str, Any]:
        if not isinstance(value, Map):
            raise place.error(f"it takes {self.what}, not {shown(value)}.")
        for key in value:
            if key not in self.keys:
                near = difflib.get_close_matches(key, self.keys, 1) or difflib.get_close_matches(
                    key.lower(), self.keys, 1
                )
                hint = f" Did you mean {near[0]!r}?" if near else ""
                raise value.places[key].error(
                    f"unknown key {key!r}.{hint} Known here: {', '.join(self.keys)}."
                )
        present = {
            key: member
            for key, member in value.items()
            if member is not None or self.keys[key].required
        }
        nulls = {
            key: None for key, member in value.items() if member is None and self.keys[key].null
        }
        for key, definition in self.keys.items():
            if definition.required and key not in present:
                raise place.error(f"{key} is missing: {definition.description}")
        record = {
            **nulls,
            **{
                key: self.keys[key].shape.read(member, value.places[key])
                for key, member in present.items()
            },
        }
        if self.check is not None:
            self.check(record, place)
        return record

    def schema(self, defs: Defs) -> dict[str, Any]:
        if self.name not in defs:
            defs[self.name] = {}  # reserves the position in the order of first use
            defs[self.name] = self.body(defs)
        return {"$ref": f"#/$defs/{self.name}"}

    def body(self, defs: Defs) -> dict[str, Any]:
        """Return the schema itself instead of a reference to it."""
        properties: dict[str, Any] = {}
        for key, definition in self.keys.items():
            inner = definition.shape.schema(defs)
            properties[key] = {
                "description": definition.description,
                **(inner if definition.required else _nullable(inner)),
            }
        schema: dict[str, Any] = {
            "type": "object",
            "description": self.what,
            "properties": properties,
            "additionalProperties": False,
        }
        if required := [key for key, definition in self.keys.items() if definition.required]:
            schema["required"] = required
        return {**schema, **self.together}


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    if "anyOf" in schema:
        return {"anyOf": [*cast("list[Any]", schema["anyOf"]), {"type": "null"}]}
    return {"anyOf": [schema, {"type": "null"}]}


class Either(NamedTuple):
    """One of several shapes, chosen by the kind of the value: text, list, mapping, or any other
    kind."""

    text: Shape | None = None
    list: Shape | None = None
    map: Shape | None = None
    other: Shape | None = None
    what: str = ""

    def read(self, value: Any, place: Place) -> Any:
        shape = (
            self.text
            if isinstance(value, str)
            else (
                self.list
                if isinstance(value, Seq)
                else self.map
                if isinstance(value, Map)
                else self.other
            )
        )
        if shape is None:
            raise place.error(f"it takes {self.what}, not {shown(value)}.")
        return shape.read(value, place)

    def schema(self, defs: Defs) -> dict[str, Any]:
        return {
            "anyOf": [
                shape.schema(defs)
                for shape in (self.text, self.list, self.map, self.other)
                if shape is not None
            ]
        }
