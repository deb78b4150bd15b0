"""Copies of JSON values, and immutable ones that protect a shared tool definition."""

from __future__ import annotations

from typing import Any, NoReturn, cast


def copy_json(value: Any) -> Any:
    """Return a copy of a JSON value, made of plain dicts and lists."""
    if isinstance(value, dict):
        return {key: copy_json(item) for key, item in cast("dict[str, Any]", value).items()}
    return (
        [copy_json(item) for item in cast("list[Any]", value)] if isinstance(value, list) else value
    )


def freeze_json(value: Any) -> Any:
    """Return an immutable copy of a JSON value; any change raises `TypeError`."""
    if isinstance(value, dict):
        return FrozenDict(
            {key: freeze_json(item) for key, item in cast("dict[str, Any]", value).items()}
        )
    return (
        FrozenList([freeze_json(item) for item in cast("list[Any]", value)])
        if isinstance(value, list)
        else value
    )


def _refuse(self: object, *args: object, **kwargs: object) -> NoReturn:
    raise TypeError(
        "This part of a tool's definition is shared and cannot be changed; change a copy.deepcopy()"
        " of it."
    )


class FrozenDict(dict[str, Any]):
    """An immutable dict. `copy` and `copy.deepcopy` return plain ones."""

    __slots__ = ()

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse  # pyright: ignore[reportAssignmentType]

    def copy(self) -> dict[str, Any]:
        """Return a plain dict with the same values."""
        return dict(self)

    def __copy__(self) -> dict[str, Any]:
        return dict(self)

    def __deepcopy__(self, memo: Any) -> dict[str, Any]:
        return copy_json(self)

    def __reduce__(self) -> Any:
        return (dict, (copy_json(self),))


class FrozenList(list[Any]):
    """An immutable list. `copy` and `copy.deepcopy` return plain ones."""

    __slots__ = ()

    __setitem__ = __delitem__ = __iadd__ = __imul__ = append = clear = extend = insert = pop = (
        remove
    ) = reverse = sort = _refuse  # pyright: ignore[reportAssignmentType]

    def copy(self) -> list[Any]:
        """Return a plain list with the same values."""
        return list(self)

    def __copy__(self) -> list[Any]:
        return list(self)

    def __deepcopy__(self, memo: Any) -> list[Any]:
        return copy_json(self)

    def __reduce__(self) -> Any:
        return (list, (copy_json(self),))
