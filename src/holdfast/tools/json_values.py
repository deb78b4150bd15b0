"""JSON values from outside by their kind, copies, and immutable ones that several owners share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn, cast


def as_object(value: Any) -> dict[str, Any]:
    """Return a value if it is a mapping, else an empty one."""
    return cast("dict[str, Any]", value) if isinstance(value, Mapping) else {}


def as_list(value: Any) -> list[Any]:
    """Return a value if it is a list, else a list of it."""
    return cast("list[Any]", value) if isinstance(value, list) else [value]


def copy_json(value: Any) -> Any:
    """Return a copy of a JSON value, made of plain dicts and lists."""
    return _rebuilt(value, dict[str, Any], list[Any])


def freeze_json(value: Any) -> Any:
    """Return an immutable copy of a JSON value; any change raises `TypeError`."""
    return _rebuilt(value, FrozenDict, FrozenList)


def _rebuilt(value: Any, mapping: type[dict[str, Any]], sequence: type[list[Any]]) -> Any:
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value).items()
        return mapping({key: _rebuilt(item, mapping, sequence) for key, item in members})
    if isinstance(value, list):
        items = cast("list[Any]", value)
        return sequence([_rebuilt(item, mapping, sequence) for item in items])
    return value


def _refuse(self: object, *args: object, **kwargs: object) -> NoReturn:
    raise TypeError("This value is shared and cannot be changed; change a copy.deepcopy() of it.")


class _Frozen:
    """A container whose copies, and whose unpickled form, are plain."""

    __slots__ = ()

    def copy(self: Any) -> Any:
        """Return a plain container with the same values."""
        plain: Any = dict if isinstance(self, dict) else list
        return plain(self)

    __copy__ = copy

    def __deepcopy__(self, memo: Any) -> Any:
        return copy_json(self)

    def __reduce__(self) -> Any:
        return (dict if isinstance(self, dict) else list, (copy_json(self),))


class FrozenDict(_Frozen, dict[str, Any]):
    """An immutable dict."""

    __slots__ = ()

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse  # pyright: ignore[reportAssignmentType]


class FrozenList(_Frozen, list[Any]):
    """An immutable list."""

    __slots__ = ()

    __setitem__ = __delitem__ = __iadd__ = __imul__ = append = clear = extend = insert = pop = (
        remove
    ) = reverse = sort = _refuse  # pyright: ignore[reportAssignmentType]
