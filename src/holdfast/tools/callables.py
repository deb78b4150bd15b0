"""Checks of callbacks: a callback must not be async, because nothing would run its coroutine."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from holdfast.errors import ConfigurationError


def is_async(function: Any) -> bool:
    """Return True for an `async def`, a partial of one, and an object whose `__call__` is async."""
    while isinstance(function, functools.partial):
        function = function.func  # pyright: ignore[reportUnknownMemberType]
    candidates = (
        function,
        None if isinstance(function, type) else getattr(function, "__call__", None),  # noqa: B004
    )
    return any(
        inspect.iscoroutinefunction(candidate) or inspect.isasyncgenfunction(candidate)
        for candidate in candidates
    )


def refuse_async(what: str, function: Any) -> None:
    """Raise `ConfigurationError` if a callback is async.

    `what` names the parameter, such as "Conversation: on_delta".
    """
    if is_async(function):
        raise ConfigurationError(
            f"{what} takes a function that is not async, not {function!r}. To run a coroutine from"
            " it use asyncio.run_coroutine_threadsafe(coroutine, loop) with a loop of yours."
        )
