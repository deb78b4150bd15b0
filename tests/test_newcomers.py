"""Tests of newcomers' mistakes: each error names the right way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast import Agent, Conversation, LocalRuntime, MCPClient, ScriptedLLM
from holdfast.errors import ConfigurationError


class LikeLangChain:
    name = "search"
    description = "Searches."

    def invoke(self, value: object) -> object:
        return value

    def __call__(self, text: str) -> str:
        return text


@pytest.mark.parametrize(
    ("given", "pattern"),
    [
        ({"role": "user", "content": "hi"}, "not a chat message as a dict: send its content"),
        (
            [{"role": "system", "content": "x"}, {"role": "user", "content": "hi"}],
            "not a list of chat messages",
        ),
        (b"hi", "not bytes: decode them first"),
    ],
)
def test_a_message_of_another_shape_is_refused_with_what_to_send(given: Any, pattern: str) -> None:
    with Conversation(Agent(ScriptedLLM(["ok"]))) as conversation:
        with pytest.raises(ConfigurationError, match=pattern):
            conversation.send_message(given)
        assert conversation.state.events == ()


@pytest.mark.parametrize(
    ("make", "pattern"),
    [
        (
            lambda: Agent(ScriptedLLM([]), mcp_servers="f.json"),
            r"mcp_servers takes a mapping .* not a str\. A file is read by the caller",
        ),  # type: ignore[arg-type]
        (
            lambda: Agent(ScriptedLLM([]), mcp_servers=Path("f.json")),
            "A file is read by the caller",
        ),  # type: ignore[arg-type]
        (
            lambda: MCPClient("f.json"),
            r"MCPClient: config takes a mapping .* A file is read by the caller",
        ),  # type: ignore[arg-type]
        (
            lambda: Agent(ScriptedLLM([]), tools=[LikeLangChain()]),
            r"a LangChain tool: give Tool\.from_langchain",
        ),
        (lambda: Agent(ScriptedLLM([]), tools=[LocalRuntime()]), r"tools=\[\*runtime\.tools\]"),  # type: ignore[list-item]
        (lambda: Agent(ScriptedLLM([]), tools=LocalRuntime()), r"tools=runtime\.tools"),  # type: ignore[arg-type]
        (lambda: Agent("gpt-5"), r"Give LLM\('gpt-5'\)"),  # type: ignore[arg-type]
    ],
)
def test_a_constructor_says_how_to_give_what_was_meant(make: Any, pattern: str) -> None:
    with pytest.raises(ConfigurationError, match=pattern):
        make()
