"""Async functions as callbacks are refused in every form, wherever a caller passes them."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Agent, Conversation, RemoteConversation, RemoteWorkspace, ScriptedLLM
from holdfast.errors import ConfigurationError
from holdfast.llm.completion import DeltaListener
from holdfast.tools.hooks import Hook
from holdfast.tools.mcp.server_requests import RequestHandlers


async def plain(*_: Any) -> None: ...


class Called:
    async def __call__(self, *_: Any) -> None: ...

    async def method(self, *_: Any) -> None: ...


async def generator(*_: Any) -> Any:
    yield


SHAPES = [
    plain,
    functools.partial(plain, 1),
    functools.partial(functools.partial(plain, 1), 2),
    Called(),
    Called().method,
    generator,
]
WORKSPACE = RemoteWorkspace("http://127.0.0.1:9", "key")
AGENT = Agent(ScriptedLLM(["one"]))

PLACES: dict[str, Callable[[Any], Any]] = {
    "on_delta": lambda callback: Conversation(AGENT, on_delta=callback),
    "on_progress": lambda callback: Conversation(AGENT, on_progress=callback),
    "on_question": lambda callback: Conversation(AGENT, on_question=callback),
    "register_event_callback": lambda callback: Conversation(AGENT).register_event_callback(
        callback
    ),
    "register_callback": lambda callback: Conversation(AGENT).register_callback(callback),
    "remote on_delta": lambda callback: RemoteConversation(AGENT, WORKSPACE, on_delta=callback),
    "remote on_progress": lambda callback: RemoteConversation(
        AGENT, WORKSPACE, on_progress=callback
    ),
    "remote on_question": lambda callback: RemoteConversation(
        AGENT, WORKSPACE, on_question=callback
    ),
    "remote register": lambda callback: RemoteConversation.register_event_callback(
        object(), callback
    ),  # type: ignore[arg-type]
    "deltas of a model": DeltaListener,
    "a scripted model": (
        lambda callback: ScriptedLLM(["one"], stream=True).completion("hi", on_delta=callback)
    ),
    "Hook": lambda callback: Agent(ScriptedLLM([]), hooks=[Hook(callback, on="model")]),
    "elicit": lambda callback: RequestHandlers(elicit=callback).check(),
    "roots": lambda callback: RequestHandlers(roots=callback).check(),
}


@pytest.mark.parametrize(
    "shape", SHAPES, ids=["def", "partial", "partials", "object", "method", "generator"]
)
@pytest.mark.parametrize("place", PLACES)
def test_an_async_callback_is_refused_where_it_is_given(place: str, shape: Any) -> None:
    with pytest.raises(ConfigurationError, match="not async"):
        PLACES[place](shape)


def test_a_coroutine_that_a_callback_returns_is_told_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with (
        caplog.at_level(logging.ERROR, "holdfast"),
        Conversation(AGENT, on_delta=lambda _: plain()) as conversation,
    ):
        conversation.register_event_callback(lambda _: plain(), 0)
        conversation.send_message("hi")
        conversation.run()
    assert "returned a coroutine" in caplog.text


def test_a_plain_callback_is_taken() -> None:
    calls: list[Any] = []
    with Conversation(
        AGENT, on_delta=calls.append, on_progress=functools.partial(print, end="")
    ) as conversation:
        conversation.register_event_callback(calls.append, 0)
        conversation.send_message("hi")
        conversation.run()
    assert calls
