"""Checks of arguments from untyped callers, and the error for an argument of a wrong form."""

from __future__ import annotations

import functools
import inspect
from types import FunctionType, MethodType
from typing import Any, TypeGuard

from holdfast.errors import ConfigurationError

_ASYNC_FLAGS = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def is_number(value: Any) -> TypeGuard[int | float]:
    """Return True for an int or a float, but not for a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_whole(value: Any, low: int) -> TypeGuard[int]:
    """Return True for an int of at least `low`, but not for a bool."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= low


def is_model(value: Any) -> bool:
    """Return True for an object with a method `completion`."""
    return not isinstance(value, type) and callable(getattr(value, "completion", None))


def check_model(argument: str, llm: Any) -> None:
    """Raise `ConfigurationError` unless the value is a model, or None for the agent's own."""
    if llm is not None and not is_model(llm):
        raise wrong(argument, "an LLM, or None for the agent's own", llm)


def wrong(argument: str, form: str, value: object, hint: str = "") -> ConfigurationError:
    """Return the error for a value that does not have the form that an argument takes."""
    return ConfigurationError(f"{argument} takes {form}, not {value!r}.{hint}")


def require(what: str, value: Any, *checks: tuple[str, bool, str]) -> None:
    """Raise `ConfigurationError` for the first attribute of `value` that does not fit. A check is
    the attribute's name, True if its value fits, and a description of the values that do."""
    for name, fits, takes in checks:
        if not fits:
            raise wrong(f"{what}: {name}", takes, getattr(value, name))


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
