"""Sections of a config that are derived from structs: the fields' types give the shapes, and the
docstring's `Args` or `Attributes` the descriptions."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Collection, Mapping
from typing import Any, Literal

import msgspec

from holdfast.tools.config import shapes
from holdfast.tools.config.shapes import Key, Section, Shape

COUNT = shapes.Number("a whole number from 1", 1, whole=True)
SECONDS = shapes.Number("a number of seconds above 0", above=True)
SECRET = shapes.Text("a text", secret=True, empty=True)
_SHAPES: Mapping[Any, Shape] = {str: shapes.Text(), bool: shapes.Flag(), float: SECONDS, int: COUNT}
_DOCUMENTED = re.compile(r"    (\w+): (.*(?:\n      +.*)*)")


def keys_of(kind: type[Any], own: Mapping[str, Shape | Key] = {}) -> dict[str, Key]:
    """Return the keys of a struct's fields.

    `own` has the shapes or whole keys that do not follow from the types, by field. An own key with
    an `attribute` replaces the field of that name. Fields whose type a config cannot express are
    left out.
    """
    descriptions = describe(kind)
    renamed = {key.attribute: name for name, key in own.items() if isinstance(key, Key)}
    keys: dict[str, Key] = {}
    for field in msgspec.structs.fields(kind):
        name = renamed.get(field.name, field.name)
        shape = own.get(name) or _shape(field.type)
        if isinstance(shape, Key):
            keys[name] = shape
        elif shape is not None:
            nullable = types.NoneType in typing.get_args(field.type)
            default = f"{name.replace('_', ' ').capitalize()}."
            keys[name] = Key(shape, descriptions.get(name, default), field.required, nullable)
    return keys


def section_of(
    kind: type[Any],
    name: str,
    what: str,
    own: Mapping[str, Shape | Key] = {},
    *,
    whole: bool = False,
    without: Collection[str] = (),
) -> Section:
    """Return the section of a struct, `without` some keys. See `keys_of` and `Section`."""
    keys = {key: one for key, one in keys_of(kind, own).items() if key not in without}
    return Section(name, what, keys, whole=whole)


def describe(kind: type[Any]) -> dict[str, str]:
    """Return the descriptions of a class's arguments or attributes by name."""
    text = inspect.getdoc(kind) or ""
    documented = re.split(r"^(?:Args|Attributes):$", text, maxsplit=1, flags=re.MULTILINE)[1:]
    return {
        name: " ".join(description.split())
        for name, description in _DOCUMENTED.findall("".join(documented))
    }


def _shape(kind: Any) -> Shape | None:
    """Return the shape of a type; None for a type that a config cannot express."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        choices = [shape for one in inner if (shape := _shape(one)) is not None]
        if {*map(type, choices)} <= {shapes.Number}:
            return next((one for one in choices if one != COUNT), choices[0] if choices else None)
        if len(choices) < 2:
            return choices[0]

        def of(kinds: Any) -> Shape | None:
            return next((one for one in choices if isinstance(one, kinds)), None)

        return shapes.Either(
            text=of(shapes.Text | shapes.Choice),
            list=of(shapes.ListOf),
            map=of(shapes.MapOf | Section),
            other=of(shapes.Number | shapes.Flag),
            what="another kind of value",
        )
    if origin is Literal:
        return shapes.Choice(inner)
    if kind in _SHAPES:
        return _SHAPES[kind]
    if (origin, inner[:1]) in ((list, (str,)), (tuple, (str,))):
        return shapes.ListOf(
            shapes.Text(empty=origin is list, url=origin is list), "a list of texts"
        )
    if origin is not None and inner == (str, str):
        return shapes.MapOf(SECRET, "a mapping of texts to texts")
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        name = kind.__name__[0].lower() + kind.__name__[1:]
        return section_of(kind, name, f"the keys of {kind.__name__}")
    return None
