"""Shapes: the types of a config's values.

A shape reads a value, or reports its mistake with the place. A shape also writes its own JSON
Schema, and dumps an object to the value that it reads. One table of shapes is thus the parser, the
schema and the writer.

Reading has two steps. `read` checks the whole document and returns plain data in which `Unbuilt`
stands for each object that an `ObjectShape` describes. `build` then makes the objects.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import msgspec

from holdfast.errors import ConfigurationError
from holdfast.tools.config.dumper import Dumper
from holdfast.tools.config.variables import HAS_VARIABLE, WELL_FORMED, Filled
from holdfast.tools.document import Map, Seq, SourceLocation, did_you_mean, plain

Defs = dict[str, Any]

# The end of a text. `$` differs between languages: Python's matches before a last line break too.
_END = r"(?![\s\S])"


class Shape(msgspec.Struct, frozen=True):
    """The type of a config value."""

    def read(self, value: Any, place: SourceLocation) -> Any:
        """Return the value as plain data. Raises `ConfigurationError` with its place."""
        raise NotImplementedError

    def schema(self, defs: Defs) -> dict[str, Any]:
        """Return the JSON Schema of this shape. Shared definitions go into `defs`."""
        raise NotImplementedError

    def dump(self, value: Any, where: str, dumper: Dumper) -> Any:
        """Return the config value of an object. Raises `ConfigurationError` that says `where`."""
        return dumper.data(where, value)


def shared_schema(name: str, defs: Defs, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return a reference to a definition, which is made if it is not in `defs`."""
    if name not in defs:
        defs[name] = {}  # reserves the position in the order of first use
        defs[name] = make()
    return {"$ref": f"#/$defs/{name}"}


def _or_variable(schema: dict[str, Any], defs: Defs) -> dict[str, Any]:
    def variable() -> dict[str, Any]:
        text = [_text_schema(defs), {"pattern": HAS_VARIABLE}]
        return {"description": "A text with ${NAME} in it.", "allOf": text}

    return {"anyOf": [schema, shared_schema("variable", defs, variable)]}


def _text_schema(defs: Defs) -> dict[str, Any]:
    return shared_schema("text", defs, lambda: {"type": "string", "pattern": WELL_FORMED})


def describe_value(value: Any) -> str:
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


# --- single values ---


class Text(Shape, frozen=True):
    """A text, which must match the whole `pattern` if there is one.

    A `secret` text is never shown, and dumped as a variable. Of a `url` only the parts that may
    be secret are dumped as variables. A `function` is dumped as its `module:qualname`.
    """

    what: str = "a text"
    pattern: str = ""
    secret: bool = False
    empty: bool = False
    url: bool = False
    function: bool = False

    def read(self, value: Any, place: SourceLocation) -> str:
        if not isinstance(value, str):
            scalar = isinstance(value, bool | int | float) or value is None
            hint = " In YAML, put it in quotes." if scalar else ""
            description = "another kind of value" if self.secret else describe_value(value)
            raise place.error(f"it takes {self.what}, not {description}.{hint}")
        if not value and not self.empty:
            raise place.error(f"it takes {self.what}; it is empty.")
        if self.pattern and not re.fullmatch(self.pattern, value):
            description = "this value" if self.secret else describe_value(value)
            raise place.error(f"it takes {self.what}, not {description}.")
        return str(value)

    def schema(self, defs: Defs) -> dict[str, Any]:
        if self.pattern:
            pattern = {"pattern": f"^(?:{self.pattern}){_END}"}
            return _or_variable({**_text_schema(defs), **pattern}, defs)
        return _text_schema(defs) if self.empty else {**_text_schema(defs), "minLength": 1}

    def dump(self, value: Any, where: str, dumper: Dumper) -> str:
        if self.function:
            return value if isinstance(value, str) else dumper.function(where, value)
        write = dumper.url if self.url else dumper.secret if self.secret else dumper.text
        return write(where, value)


class Choice(Shape, frozen=True):
    """One of several words."""

    words: tuple[str, ...]

    def read(self, value: Any, place: SourceLocation) -> str:
        if isinstance(value, str) and value in self.words:
            return str(value)
        own = isinstance(value, str) and not isinstance(value, Filled)
        hint = did_you_mean(value, self.words) if own else ""
        words = " or ".join(map(repr, self.words))
        raise place.error(f"it takes {words}, not {describe_value(value)}.{hint}")

    def schema(self, defs: Defs) -> dict[str, Any]:
        return _or_variable({"enum": list(self.words)}, defs)


class Number(Shape, frozen=True):
    """A number from `low` to `high`; with `above`, `low` itself is excluded."""

    what: str
    low: float = 0
    high: float = 1e9
    whole: bool = False
    above: bool = False

    def read(self, value: Any, place: SourceLocation) -> Any:
        number = plain(value) if isinstance(value, Filled) else value
        if self.whole and isinstance(number, float) and number.is_integer():
            number = int(number)  # 3.0 is an integer in JSON Schema
        good = isinstance(number, int if self.whole else int | float) and not isinstance(
            number, bool
        )
        if not good or not self.low <= number <= self.high or (self.above and number == self.low):
            raise place.error(f"it takes {self.what}, not {describe_value(value)}.")
        return number

    def schema(self, defs: Defs) -> dict[str, Any]:
        bound = "exclusiveMinimum" if self.above else "minimum"
        kind = "integer" if self.whole else "number"
        return _or_variable({"type": kind, bound: self.low, "maximum": self.high}, defs)


class Flag(Shape, frozen=True):
    """A boolean."""

    def read(self, value: Any, place: SourceLocation) -> bool:
        flag = plain(value) if isinstance(value, Filled) else value
        if not isinstance(flag, bool):
            raise place.error(f"it takes true or false, not {describe_value(value)}.")
        return flag

    def schema(self, defs: Defs) -> dict[str, Any]:
        return _or_variable({"type": "boolean"}, defs)


class Anything(Shape, frozen=True):
    """Any JSON value."""

    def read(self, value: Any, place: SourceLocation) -> Any:
        if isinstance(value, Map):
            return {key: self.read(member, value.places[key]) for key, member in value.items()}
        if isinstance(value, Seq):
            return [self.read(member, at) for member, at in value.members()]
        return value.value if isinstance(value, Filled) else value

    def schema(self, defs: Defs) -> dict[str, Any]:
        itself = {"$ref": "#/$defs/anything"}
        types = ["null", "boolean", "number", "string", "array", "object"]
        anything = {"type": types, "pattern": WELL_FORMED}
        members = {"items": itself, "additionalProperties": itself}
        return shared_schema("anything", defs, lambda: {**anything, **members})


# --- collections ---


class ListOf(Shape, frozen=True):
    """A list whose items have one shape."""

    item: Shape
    what: str = "a list"

    def read(self, value: Any, place: SourceLocation) -> list[Any]:
        if not isinstance(value, Seq):
            raise place.error(f"it takes {self.what}, not {describe_value(value)}.")
        return [self.item.read(member, at) for member, at in value.members()]

    def schema(self, defs: Defs) -> dict[str, Any]:
        return {"type": "array", "items": self.item.schema(defs)}

    def dump(self, value: Any, where: str, dumper: Dumper) -> list[Any]:
        return [self.item.dump(one, f"{where}[{i}]", dumper) for i, one in enumerate(value)]


class MapOf(Shape, frozen=True):
    """A mapping of names to values of one shape. The names must match `key` if there is one;
    `key_rule` describes that pattern."""

    member: Shape
    what: str = "a mapping"
    key: str = ""
    key_rule: str = ""

    def read(self, value: Any, place: SourceLocation) -> dict[str, Any]:
        if not isinstance(value, Map):
            raise place.error(f"it takes {self.what}, not {describe_value(value)}.")
        for name in value:
            if self.key and not re.fullmatch(self.key, name):
                raise value.places[name].error(f"invalid name {name!r}: {self.key_rule}.")
        return {name: self.member.read(one, value.places[name]) for name, one in value.items()}

    def schema(self, defs: Defs) -> dict[str, Any]:
        schema = {"type": "object", "additionalProperties": self.member.schema(defs)}
        if self.key:
            schema["propertyNames"] = {"pattern": f"^(?:{self.key}){_END}"}
        return schema

    def dump(self, value: Any, where: str, dumper: Dumper) -> dict[str, Any]:
        return {
            name: self.member.dump(one, f"{where}.{name}", dumper) for name, one in value.items()
        }


class Key(msgspec.Struct, frozen=True):
    """One key of a section.

    An optional key may be null, which is the same as its absence, unless `null` is True: then
    null is a value of its own. `attribute` is the object's attribute and the constructor's
    argument, if its name is not that of the key.
    """

    shape: Shape
    description: str
    required: bool = False
    null: bool = False
    attribute: str = ""


Check = Callable[[dict[str, Any], SourceLocation], None]
_ABSENT: Any = object()


class Section(Shape, frozen=True):
    """A mapping with known keys. `check` validates combinations of keys; `together` is the same
    rule in JSON Schema. With `whole`, a dump contains default values too."""

    name: str
    what: str
    keys: Mapping[str, Key]
    check: Check | None = None
    together: Mapping[str, Any] = {}
    whole: bool = False

    def read(self, value: Any, place: SourceLocation) -> dict[str, Any]:
        if not isinstance(value, Map):
            raise place.error(f"it takes {self.what}, not {describe_value(value)}.")
        for key in value:
            if key not in self.keys:
                raise value.places[key].error(
                    f"unknown key {key!r}.{did_you_mean(key, self.keys)} Known here:"
                    f" {', '.join(self.keys)}."
                )
        for key, definition in self.keys.items():
            if definition.required and key not in value:
                raise place.error(f"{key} is missing: {definition.description}")
        data: dict[str, Any] = {}
        for key, member in value.items():
            definition = self.keys[key]
            if member is not None or definition.required:
                data[key] = definition.shape.read(member, value.places[key])
            elif definition.null:
                data[key] = None
        if self.check is not None:
            self.check(data, place)
        return data

    def schema(self, defs: Defs) -> dict[str, Any]:
        return shared_schema(self.name, defs, lambda: self.body(defs))

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

    def dump(self, value: Any, where: str, dumper: Dumper) -> dict[str, Any]:
        """Return the keys of an object or a mapping whose values are not the defaults."""
        if isinstance(value, Mapping):
            value = SimpleNamespace(**cast("Mapping[str, Any]", value))
        defaults = {} if self.whole else _defaults(cast("object", value))
        data: dict[str, Any] = {}
        for key, definition in self.keys.items():
            name = definition.attribute or key
            member = getattr(value, name, getattr(value, key, _ABSENT))
            if member is None and definition.null and defaults.get(name, _ABSENT) is not None:
                data[key] = None
            elif member not in (None, _ABSENT, defaults.get(name, _ABSENT)):
                at = f"{where}.{name}" if where else name
                data[key] = definition.shape.dump(member, at, dumper)
        return data

    def arguments(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return what `read` found as the arguments of a constructor."""
        return {self.keys[key].attribute or key: value for key, value in data.items()}


def _defaults(value: object) -> dict[str, Any]:
    if not isinstance(value, msgspec.Struct):
        return {}
    return {
        field.name: field.default
        if field.default_factory is msgspec.NODEFAULT
        else cast("Callable[[], Any]", field.default_factory)()
        for field in msgspec.structs.fields(value)
    }


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    if "anyOf" in schema:
        return {"anyOf": [*cast("list[Any]", schema["anyOf"]), {"type": "null"}]}
    return {"anyOf": [schema, {"type": "null"}]}


# --- choices between shapes ---


class Either(Shape, frozen=True):
    """One of several shapes, chosen by the kind of the value: text, list, mapping, or any other
    kind."""

    text: Shape | None = None
    list: Shape | None = None
    map: Shape | None = None
    other: Shape | None = None
    what: str = ""

    def _shape_of(self, value: Any) -> Shape | None:
        if isinstance(value, str):
            return self.text
        if isinstance(value, Seq | tuple) or type(value) is list:
            return self.list
        return self.map if isinstance(value, Mapping) else self.other

    def read(self, value: Any, place: SourceLocation) -> Any:
        shape = self._shape_of(value)
        if shape is None:
            raise place.error(f"it takes {self.what}, not {describe_value(value)}.")
        return shape.read(value, place)

    def schema(self, defs: Defs) -> dict[str, Any]:
        shapes = (self.text, self.list, self.map, self.other)
        return {"anyOf": [shape.schema(defs) for shape in shapes if shape is not None]}

    def dump(self, value: Any, where: str, dumper: Dumper) -> Any:
        return (self._shape_of(value) or Anything()).dump(value, where, dumper)


class Variants(Shape, frozen=True):
    """A mapping with one of several sections, chosen by the first key of `sections` that it has."""

    name: str
    what: str
    sections: Mapping[str, Section]

    def read(self, value: Any, place: SourceLocation) -> Any:
        if not isinstance(value, Map):
            raise place.error(f"it takes {self.what}, not {describe_value(value)}.")
        tags = [tag for tag in self.sections if value.get(tag) is not None]
        if len(tags) != 1:
            forms = [
                f"{tag} (and {', '.join(others) if len(others) < 4 else 'settings'})"
                if others
                else tag
                for tag, others in ((tag, self._companions(tag)) for tag in self.sections)
            ]
            raise place.error(f"{self.what} has either {', or '.join(forms)}.")
        section = self.sections[tags[0]]
        for key in value:
            of = [tag for tag, one in self.sections.items() if key in one.keys]
            if of and key not in section.keys:
                others = self._companions(tags[0])
                rule = f"no {key}; {key} is for one with {of[0]}"
                rule = f"{' and '.join(others)} alone" if len(others) < 4 else rule
                raise value.places[key].error(f"{self.what} with {tags[0]} takes {rule}.")
        return section.read(value, place)

    def _companions(self, tag: str) -> list[str]:
        return [key for key in self.sections[tag].keys if key != tag]

    def schema(self, defs: Defs) -> dict[str, Any]:
        sections = self.sections.values()
        return shared_schema(
            self.name, defs, lambda: {"anyOf": [one.body(defs) for one in sections]}
        )

    def dump(self, value: Any, where: str, dumper: Dumper) -> Any:
        tag = next(tag for tag in self.sections if tag in value)
        return self.sections[tag].dump(value, where, dumper)


class Later(Shape, frozen=True):
    """A shape that is defined further down, because it contains this one."""

    get: Callable[[], Shape]

    def read(self, value: Any, place: SourceLocation) -> Any:
        return self.get().read(value, place)

    def schema(self, defs: Defs) -> dict[str, Any]:
        return self.get().schema(defs)

    def dump(self, value: Any, where: str, dumper: Dumper) -> Any:
        return self.get().dump(value, where, dumper)


# --- objects ---


class WrongKey(ConfigurationError):
    """A mistake in one key of a value that an `ObjectShape.make` function gets."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(problem)
        self.key = key


class Unbuilt(NamedTuple):
    """The data of an object that is not made yet: `make(data, place, loader)` makes it."""

    make: Callable[[Any, SourceLocation, Any], Any]
    data: Any
    place: SourceLocation
    places: Mapping[str, SourceLocation]

    def __repr__(self) -> str:
        return f"Unbuilt({self.place})"  # the data may hold secrets


class ObjectShape(Shape, frozen=True):
    """A shape whose data are made into an object by `make(data, place, loader)`. `write` dumps the
    object, if the shape itself cannot."""

    shape: Shape
    make: Callable[[Any, SourceLocation, Any], Any]
    write: Callable[[Any, str, Dumper], Any] | None = None

    def read(self, value: Any, place: SourceLocation) -> Unbuilt:
        places = value.places if isinstance(value, Map) else {}
        return Unbuilt(self.make, self.shape.read(value, place), place, places)

    def schema(self, defs: Defs) -> dict[str, Any]:
        return self.shape.schema(defs)

    def dump(self, value: Any, where: str, dumper: Dumper) -> Any:
        return (self.write or self.shape.dump)(value, where, dumper)


def struct_shape(section: Section, kind: Callable[..., Any]) -> ObjectShape:
    """Return the shape of an object that a class makes of a section's keys."""

    def make(data: dict[str, Any], place: SourceLocation, loader: Any) -> Any:
        return kind(**section.arguments(data))

    return ObjectShape(section, make)


def build(data: Any, loader: Any) -> Any:
    """Make the objects in data that shapes have read, inner ones first.

    An error of a constructor gets the place of the object, or of the key that the error names.
    """
    if isinstance(data, Unbuilt):
        inner = build(data.data, loader)
        try:
            return data.make(inner, data.place, loader)
        except WrongKey as error:
            place = data.places.get(error.key, data.place.at(error.key))
            raise place.error(str(error)) from error.__cause__
        except ConfigurationError as error:
            if loader.is_placed(error):
                raise
            match = re.match(r"\w+: (\w+) ", str(error))
            place = data.places.get(match[1], data.place) if match else data.place
            raise place.error(str(error)) from error
    if type(data) is dict:
        return {key: build(one, loader) for key, one in cast("dict[str, Any]", data).items()}
    if type(data) is list:
        return [build(one, loader) for one in cast("list[Any]", data)]
    return data
