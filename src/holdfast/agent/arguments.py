"""Checks of arguments, and the error for an argument of a wrong form. Callers are not all typed."""

from __future__ import annotations

from typing import Any, TypeGuard

from holdfast.errors import ConfigurationError


def is_number(value: Any) -> TypeGuard[int | float]:
    """Return True for an int or a float, but not for a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_whole(value: Any, low: int) -> TypeGuard[int]:
    """Return True for an int of at least `low`, but not for a bool."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= low


def is_model(value: Any) -> bool:
    """Return True for an object with a method `completion`."""
    return not isinstance(value, type) and callable(getattr(value, "completion", None))


def wrong(argument: str, form: str, value: object, hint: str = "") -> ConfigurationError:
    """Return the error for a value that does not have the form that an argument takes."""
    return ConfigurationError(f"{argument} takes {form}, not {value!r}.{hint}")
