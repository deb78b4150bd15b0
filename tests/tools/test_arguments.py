"""Tests of the checks of arguments and callbacks."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast.errors import ConfigurationError
from holdfast.tools.arguments import is_async, refuse_async


class Listener:
    async def awaited(self) -> None: ...

    async def generated(self) -> AsyncIterator[int]:
        yield 1

    def plain(self) -> None: ...

    @functools.wraps(awaited)
    def wrapper(self) -> None: ...


class Awaited:
    async def __call__(self) -> None: ...


class Plain:
    def __call__(self) -> None: ...


ASYNC: list[Any] = [
    *(Listener().awaited, Listener().generated, Listener.awaited, Awaited()),
    *(functools.partial(Listener().awaited), functools.partial(Awaited())),
]
NOT_ASYNC: list[Any] = [
    *(None, len, Listener, Plain(), Listener().plain, Listener.plain, Listener().wrapper),
    functools.partial(Listener().plain),
]


@pytest.mark.parametrize("function", ASYNC)
def test_an_async_function_is_recognized_in_any_form(function: Any) -> None:
    assert is_async(function)
    with pytest.raises(ConfigurationError, match="listener takes a function that is not async"):
        refuse_async("listener", function)


@pytest.mark.parametrize("function", NOT_ASYNC)
def test_any_other_function_is_not_async(function: Any) -> None:
    assert not is_async(function)
    refuse_async("listener", function)
