"""Annotations of a callback's parameters, in a form that pydantic can describe and validate."""

from __future__ import annotations

import collections.abc
import enum
import types
import typing
from typing import Any, cast

import msgspec

_LAZY = (
    collections.abc.Iterable,
    collections.abc.Iterator,
    collections.abc.Generator,
)


def adapted(annotation: Any) -> Any:
    """Return an equivalent annotation that pydantic reads as its author meant it.

    | annotation | becomes |
    |---|---|
    | `Annotated[int, "how many"]`, `Annotated[int, Doc("how many")]` | an int with a description |
    | a msgspec `Struct`, an attrs class | an object that msgspec validates |
    | `Iterable[int]`, `Iterator[int]` | a list: pydantic would validate it inside the callback |
    | `Literal[Color.RED]` | also accepts the member's value, which is what the schema names |
    | `LiteralString` | a str |
    """
    origin: Any = typing.get_origin(annotation)
    args: tuple[Any, ...] = typing.get_args(annotation)
    if annotation is typing.LiteralString:
        return str
    if annotation in _LAZY or origin in _LAZY:
        return list[adapted(args[0])] if args else list[Any]
    if origin is typing.Annotated:
        return typing.Annotated[(adapted(args[0]), *map(_described, args[1:]))]
    if origin is typing.Literal:
        return _by_value(annotation, args)
    if _is_msgspec(origin or annotation):
        return typing.Annotated[annotation, _ByMsgspec(annotation)]
    inner = tuple(adapted(arg) for arg in args)
    if inner == args or origin is cast("Any", collections.abc).Callable:
        return annotation
    if origin in (typing.Union, types.UnionType):
        return typing.Union[inner]  # noqa: UP007 - its members are known at run time alone
    return origin[inner]


def _described(extra: Any) -> Any:
    """Return what stands beside a type in `Annotated`; a text there is a description."""
    text = getattr(extra, "documentation", None) if type(extra).__name__ == "Doc" else extra
    if not isinstance(text, str):
        return extra
    from pydantic import Field

    return Field(description=text)


def _by_value(annotation: Any, members: tuple[Any, ...]) -> Any:
    by_value = {one.value: one for one in members if isinstance(one, enum.Enum)}
    if not by_value:
        return annotation
    from pydantic import BeforeValidator

    def member(value: Any) -> Any:
        return by_value.get(value, value) if isinstance(value, str | int) else value

    return typing.Annotated[annotation, BeforeValidator(member)]


def _is_msgspec(kind: Any) -> bool:
    if not isinstance(kind, type):
        return False
    attrs = hasattr(kind, "__attrs_attrs__") and not hasattr(kind, "__get_pydantic_core_schema__")
    return attrs or issubclass(kind, msgspec.Struct)


class _ByMsgspec:
    """Has pydantic leave a type to msgspec."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind

    def _validate(self, value: Any) -> Any:
        from pydantic_core import PydanticCustomError

        try:
            return msgspec.convert(value, self._kind, strict=False)
        except (msgspec.ValidationError, ValueError, TypeError) as error:
            # The suffix `_type` lets a text that holds the object's JSON be read and tried again.
            raise PydanticCustomError("struct_type", "{problem}", {"problem": str(error)}) from None

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(self._validate)

    def __get_pydantic_json_schema__(self, core: Any, handler: Any) -> dict[str, Any]:
        # As a text: pydantic would look the references up among its own definitions.
        components = msgspec.json.schema_components([self._kind], ref_template="#/$defs/{name}_")
        return {_MSGSPEC: msgspec.json.encode(components).decode()}


_MSGSPEC = "holdfast/msgspec"


def with_msgspec_schemas(schema: dict[str, Any]) -> dict[str, Any]:
    """Put the schemas of msgspec's types into a schema that pydantic made. Their definitions have a
    `_` after their names, because pydantic's may have the same names."""
    definitions: dict[str, Any] = {}

    def filled(place: Any) -> Any:
        if isinstance(place, list):
            return [filled(one) for one in cast("list[Any]", place)]
        if not isinstance(place, dict):
            return place
        members = {key: filled(one) for key, one in cast("dict[str, Any]", place).items()}
        if _MSGSPEC in members:
            (own,), components = msgspec.json.decode(members.pop(_MSGSPEC))
            definitions.update({f"{name}_": one for name, one in components.items()})
            members = {**own, **members}
        return members

    schema = filled(schema)
    if definitions:
        schema["$defs"] = {**schema.get("$defs", {}), **definitions}
    return schema
