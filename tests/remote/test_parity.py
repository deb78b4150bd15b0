"""Tests that errors and refusals of a remote conversation are those of a local one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the server extra is not installed")

from holdfast import Agent, Conversation, RemoteConversation, ScriptedLLM, ToolContext
from holdfast.content import EmbeddedResource, TextContent, ToolResult
from holdfast.errors import (
    ConfigurationError,
    Conflict,
    HoldfastError,
    NotFound,
    UnreadableEvent,
)
from tests.serve_process import ServeProcess

Either = Conversation | RemoteConversation


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    with ServeProcess(tmp_path_factory.mktemp("server")) as running:
        yield running


def danger(x: str) -> str:
    """Do it."""
    return x


def waiting_agent() -> Agent:
    script = [("danger", {"x": "1"}), "Done.", "Done again."]
    return Agent(ScriptedLLM(script), [danger], confirm="always")


def outcome(conversation: Either, act: Callable[[Any], Any]) -> Any:
    """Return the error of an action on a conversation that waits for a decision, or its result."""
    conversation.send_message("go")
    conversation.run()
    try:
        return act(conversation)
    except Exception as error:
        return type(error), str(error)


def sends(resource: Any) -> Callable[[Any], Any]:
    return lambda one: one.send_message([EmbeddedResource(resource)])


def decided(one: Any) -> tuple[str, str, str]:
    one.run()
    event = next(e for e in one.get_history() if e.type == "decision" and e.decision != "ask")
    return event.decision, event.by, event.reason


ACTS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "nan": (sends({"a": float("nan")}), UnreadableEvent),
    "tuple": (sends({"a": (1, 2)}), UnreadableEvent),
    "int key": (sends({1: 2}), UnreadableEvent),
    "deep": (sends([[[]] * 2] * 2), None),
    "output": (lambda one: one.get_output("9.9"), NotFound),
    "no output": (lambda one: one.get_output(""), NotFound),
    "fork agent": (lambda one: one.fork(agent="x"), ConfigurationError),
    "sender": (lambda one: one.send_message("x", sender="holdfast"), ConfigurationError),
    "by": (lambda one: one.approve(by=3), ConfigurationError),
    "reason": (lambda one: one.reject(reason=None), ConfigurationError),
    "call id": (lambda one: one.approve(3), ConfigurationError),
    "hash": (lambda one: one.approve("4.0", arguments_hash=3), ConfigurationError),
    "question id": (lambda one: one.answer({}), ConfigurationError),
    "surrogate by": (lambda one: (one.approve(by="a\ud800"), decided(one))[1], tuple),
    "surrogate reason": (lambda one: (one.reject(reason="a\ud800"), decided(one))[1], tuple),
    "surrogate condense": (lambda one: one.condense("\ud800"), ConfigurationError),
}


@pytest.mark.parametrize("name", ACTS)
def test_a_remote_conversation_refuses_as_a_local_one_does(server: ServeProcess, name: str) -> None:
    act, kind = ACTS[name]
    with Conversation(waiting_agent()) as local:
        expected = outcome(local, act)
    with (
        server.workspace() as space,
        RemoteConversation(waiting_agent(), space) as remote,
    ):
        actual = outcome(remote, act)
    if kind is None:
        assert type(actual) is type(expected)
        return
    if kind is not tuple:
        assert expected[0] is kind
    assert actual == expected


def test_an_answer_that_is_not_json_is_refused_before_it_is_sent(server: ServeProcess) -> None:
    with (
        server.workspace() as space,
        RemoteConversation(waiting_agent(), space) as remote,
    ):
        for value in (float("nan"), {1}, "\ud800"):
            with pytest.raises(ConfigurationError, match="valid JSON"):
                remote.answer("4.0?1", {"a": value})


def test_a_state_continues_in_no_conversation_with_events(server: ServeProcess) -> None:
    agent = waiting_agent()
    with Conversation(agent) as local:
        local.send_message("go")
        state, store, id = local.state, local.store, local.id
    with pytest.raises(Conflict, match="has events already"):
        Conversation.from_state(state, agent, store, id)
    with server.workspace() as space:
        with RemoteConversation(agent, space, "taken") as remote:
            remote.send_message("go")
        with pytest.raises(Conflict, match="has events already"):
            RemoteConversation.from_state(state, agent, space, "taken")


def test_a_tool_that_a_client_runs_is_told_what_it_lacks_and_has_earlier_outputs(
    server: ServeProcess,
) -> None:
    def first() -> str:
        """Begin."""
        return "the first result"

    def second(context: ToolContext) -> str:
        """Look."""
        texts = [context.output("4.0").text]
        acts: list[Callable[[], Any]] = [
            lambda: context.output("9.0"),
            lambda: context.secret("TOKEN"),
            lambda: context.spawn(agent, "hi"),
        ]
        for act in acts:
            try:
                act()
            except HoldfastError as error:
                texts.append(f"{type(error).__name__}: {error}")
        return "\n".join(texts)

    agent = Agent(ScriptedLLM([("first", {}), ("second", {}), "Done."]), [first, second])
    with server.workspace() as space, RemoteConversation(agent, space) as remote:
        remote.send_message("go")
        state = remote.run()
        lines = [e.result.text for e in state.events if e.type == "toolResult"][-1].split("\n")
    assert lines[0] == "the first result"
    assert lines[1].startswith("ToolError: No call '9.0'")
    assert lines[2].startswith("NotFound: There is no secret 'TOKEN' here: a tool that a client")
    assert lines[3].startswith("ConfigurationError: spawn: not available in a tool that a client")


@pytest.mark.parametrize("value", [float("nan"), (1, 2), {1: 2}])
def test_a_result_that_json_would_change_fails_as_a_local_one_does(
    server: ServeProcess, value: Any
) -> None:
    def look() -> ToolResult:
        """Look."""
        return ToolResult((TextContent("seen"),), {"a": value})

    def results(one: Either) -> list[Any]:
        one.send_message("go")
        return [e.result for e in one.run().events if e.type == "toolResult"]

    script = [("look", {}), "Done."]
    with Conversation(Agent(ScriptedLLM(script), [look])) as local:
        expected = results(local)
    with (
        server.workspace() as space,
        RemoteConversation(Agent(ScriptedLLM(script), [look]), space) as remote,
    ):
        assert results(remote) == expected
