"""What the keys of a config take: shapes. Each reads a value of a document or says what is wrong
with it, and writes its own JSON Schema, so that the published schema and the parser are one table.
"""

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
# The same as a statement about a whole text, in what JSON Schema's regular expressions have.
_WELL_FORMED = rf"^(?:\$\$\{{|\$\{{{_NAME}(?::-[^}}]*)?\}}|[^$]|\$(?!\$?\{{))*$"
# `$` is not the end for everybody: Python's stops before a last line break.
END = r"(?![\s\S])"
_HAS_VARIABLE = rf"^(?:\$\$\{{|[^$]|\$(?!\$?\{{))*\$\{{{_NAME}(?::-[^}}]*)?\}}"


class Filled(str):
    """A text that came out of variables: where a number or true or false is wanted it is read as
    one, and no message shows it. `value` is the variable's own, if the text is that variable alone.
    """

    value: Any

    @classmethod
    def of(cls, text: str, value: Any) -> Filled:
        found = cls(text)
        found.value = value
        return found


def fill(document: Any, variables: Mapping[str, Any]) -> Any:
    """Replace `${NAME}`, `${NAME:-default}` and `$${` in all texts of a tree, in place; keys stay
    as they are."""
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

    def one(match: re.Match[str]) -> Any:
        name = match["name"]
        if match["escape"]:
            return "${"
        if name is None:
            raise place.error(
                f"{value!r} has '${{' that begins no variable. Write ${{NAME}}, ${{NAME:-default}},"
                " or $${ for the text itself."
            )
        if name in variables:
            return variables[name]
        if match["default"] is None:
            near = difflib.get_close_matches(name, list(variables), 1)
            hint = f" Did you mean ${{{near[0]}}}?" if near else ""
            raise place.error(
                f"the variable {name!r} is not given.{hint} Pass variables={{{name!r}: ...}}, or"
                f" write a default: ${{{name}:-...}}. The environment is not looked at."
            )
        return match["default"]

    text = _VARIABLE.sub(lambda match: _text(one(match), place, match["name"]), value)
    if not any(match["name"] for match in _VARIABLE.finditer(value)):
        return text  # only escapes: what the file itself says
    whole = _VARIABLE.fullmatch(value)
    return Filled.of(text, text if whole is None else one(whole))


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
    """What a value must be like."""

    def read(self, value: Any, place: Place) -> Any:
        """The value as plain data. Raises `ConfigurationError` with its place."""
        ...

    def schema(self, defs: Defs) -> dict[str, Any]:
        """The same in JSON Schema; what it shares goes to `defs`."""
        ...


def shown(value: Any) -> str:
    """How a message speaks of a wrong value: no text that came from a variable, and of collections
    only what they are."""
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
    """A text; if `pattern`, one that fits it whole. `secret`: never shown."""

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
    """One of some words."""

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
    """A number from `low` (above it, if `above`) to `high`."""

    what: str
    low: float = 0
    high: float = 1e9
    whole: bool = False
    above: bool = False

    def read(self, value: Any, place: Place) -> Any:
        found = plain(value) if isinstance(value, Filled) else value
        if self.whole and isinstance(found, float) and found.is_integer():
            found = int(found)  # JSON Schema's integers have 3.0 among them
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
    """true or false."""

    def read(self, value: Any, place: Place) -> bool:
        found = plain(value) if isinstance(value, Filled) else value
        if not isinstance(found, bool):
            raise place.error(f"it takes true or false, not {shown(value)}.")
        return found

    def schema(self, defs: Defs) -> dict[str, Any]:
        return _or_variable({"type": "boolean"}, defs)


class Anything(NamedTuple):
    """Whatever JSON can say."""

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
    """A list of one shape."""

    item: Shape
    what: str = "a list"

    def read(self, value: Any, place: Place) -> list[Any]:
        if not isinstance(value, Seq):
            raise place.error(f"it takes {self.what}, not {shown(value)}.")
        return [self.item.read(member, at) for member, at in zip(value, value.places, strict=True)]

    def schema(self, defs: Defs) -> dict[str, Any]:
        return {"type": "array", "items": self.item.schema(defs)}


class MapOf(NamedTuple):
    """A mapping of names to one shape; if `key`, the names fit that pattern."""

    member: Shape
    what: str = "a mapping"
    key: str = ""
    key_what: str = ""

    def read(self, value: Any, place: Place) -> dict[str, Any]:
        if not isinstance(value, Map):
            raise place.error(f"it takes {self.what}, not {shown(value)}.")
        for name in value:
            if self.key and not re.fullmatch(self.key, name):
                raise value.places[name].error(f"the name {name!r} does not do: {self.key_what}.")
        return {
            name: self.member.read(member, value.places[name]) for name, member in value.items()
        }

    def schema(self, defs: Defs) -> dict[str, Any]:
        found: dict[str, Any] = {"type": "object", "additionalProperties": self.member.schema(defs)}
        return (
            {**found, "propertyNames": {"pattern": f"^(?:{self.key}){END}"}} if self.key else found
        )


class Key(NamedTuple):
    """One key of a record. One that is not required may also be null, which is as if it were not
    there, but where null has a meaning."""

    shape: Shape
    says: str
    required: bool = False
    null: bool = False


Check = Callable[[dict[str, Any], Place], None]


class Record(NamedTuple):
    """A mapping with known keys. `check` looks at them together; `together` is the same in JSON
    Schema."""

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
        given = {
            key: member
            for key, member in value.items()
            if member is not None or self.keys[key].required
        }
        absent = {
            key: None for key, member in value.items() if member is None and self.keys[key].null
        }
        for key, known in self.keys.items():
            if known.required and key not in given:
                raise place.error(f"{key} is missing: {known.says}")
        found = {
            **absent,
            **{
                key: self.keys[key].shape.read(member, value.places[key])
                for key, member in given.items()
            },
        }
        if self.check is not None:
            self.check(found, place)
        return found

    def schema(self, defs: Defs) -> dict[str, Any]:
        if self.name not in defs:
            defs[self.name] = {}  # holds the place in the order of first use
            defs[self.name] = self.body(defs)
        return {"$ref": f"#/$defs/{self.name}"}

    def body(self, defs: Defs) -> dict[str, Any]:
        """The schema itself, and no reference to it."""
        properties: dict[str, Any] = {}
        for key, known in self.keys.items():
            inner = known.shape.schema(defs)
            properties[key] = {
                "description": known.says,
                **(inner if known.required else _nullable(inner)),
            }
        found: dict[str, Any] = {
            "type": "object",
            "description": self.what,
            "properties": properties,
            "additionalProperties": False,
        }
        if required := [key for key, known in self.keys.items() if known.required]:
            found["required"] = required
        return {**found, **self.together}


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    if "anyOf" in schema:
        return {"anyOf": [*cast("list[Any]", schema["anyOf"]), {"type": "null"}]}
    return {"anyOf": [schema, {"type": "null"}]}


class Either(NamedTuple):
    """One of several shapes, told apart by what kind of value it is: text, list, mapping, or none
    of these."""

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
