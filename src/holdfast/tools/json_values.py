"""Copies of JSON values and immutable JSON values, which protect a shared tool definition from
changes."""

from __future__ import annotations

from typing import Any, NoReturn, cast


def copied(value: Any) -> Any:
    """Return a copy of a JSON value, made of plain dicts and lists."""
    if isinstance(value, dict):
        return {key: copied(item) for key, item in cast("dict[str, Any]", value).items()}
    return [copied(item) for item in cast("list[Any]", value)] if isinstance(value, list) else value


def frozen(value: Any) -> Any:
    """Return an immutable copy of a JSON value. Its dicts and lists raise `TypeError` on any
    change."""
    if isinstance(value, dict):
        return FrozenDict(
            {key: frozen(item) for key, item in cast("dict[str, Any]", value).items()}
        )
    return (
        FrozenList([frozen(item) for item in cast("list[Any]", value)])
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
        return copied(self)

    def __reduce__(self) -> Any:
        return (dict, (copied(self),))


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
        return copied(self)

    def __reduce__(self) -> Any:
        return (list, (copied(self),))
