"""Checks of arguments, and of callbacks, which must not be async: nothing would run them."""

from __future__ import annotations

import functools
import inspect
from types import FunctionType, MethodType
from typing import Any

from holdfast.errors import ConfigurationError

_ASYNC_FLAGS = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def require(what: str, given: Any, *checks: tuple[str, bool, str]) -> None:
    """Raise `ConfigurationError` for the first attribute of `given` that does not fit. A check is
    the attribute's name, True if its value fits, and a description of the values that do."""
    for name, fits, takes in checks:
        if not fits:
            value = getattr(given, name)
            raise ConfigurationError(f"{what}: {name} takes {takes}, not {value!r}.")


def is_async(function: Any) -> bool:
    """Return True for an `async def`, a partial of one, and an object whose `__call__` is async."""
    if type(function) is MethodType:
        function = function.__func__
    if type(function) is FunctionType and not function.__dict__:  # nearly always; saves 8 us
        return bool(function.__code__.co_flags & _ASYNC_FLAGS)
    while isinstance(function, functools.partial):
        function = function.func  # pyright: ignore[reportUnknownMemberType]
    called = None if isinstance(function, type) else getattr(function, "__call__", None)  # noqa: B004
    return any(
        inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one)
        for one in (function, called)
    )


def refuse_async(what: str, function: Any) -> None:
    """Raise `ConfigurationError` if a callback is async. `what` names the parameter, such as
    "Conversation: on_delta"."""
    if is_async(function):
        raise ConfigurationError(
            f"{what} takes a function that is not async, not {function!r}. To run a coroutine from"
            " it use asyncio.run_coroutine_threadsafe(coroutine, loop) with a loop of yours."
        )
