"""Tests of answers of `on_question` that do not fit: a remote conversation declines them like a
local one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the server extra is not installed")

from holdfast import Agent, Conversation, RemoteConversation, ScriptedLLM, ToolContext
from holdfast import events as ev
from holdfast.conversation.state import ConversationStatus
from tests.serve_process import ServeProcess

ASKING = """
from holdfast import ToolContext, tool

FORM = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}

@tool
def ask_city(context: ToolContext) -> str:
    "Ask for a city."
    return repr(context.ask("Which city?", FORM))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    library = tmp_path_factory.mktemp("library")
    (library / "hf_ask_tool.py").write_text(ASKING)
    folder = tmp_path_factory.mktemp("server")
    process = ServeProcess(folder, "--allow-tools", "hf_ask_tool", library=library)
    with process as running, pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(library))
        yield running


def leave(_: object) -> Any:
    raise SystemExit(1)


def fail(_: object) -> Any:
    raise ValueError("no")


MISFITS: list[Callable[[ev.Question], Any]] = [
    lambda question: {"city": 3},
    lambda question: {"city": "a\ud800"},
    lambda question: {"city": {1, 2}},
    lambda question: {"city": float("nan")},
    lambda question: {"city": "Ghent", "more": 1},
    lambda question: "Ghent",
    lambda question: 0,
    lambda question: None,
    fail,
]


def outcome(conversation: Conversation | RemoteConversation) -> list[Any]:
    """Return the answers in the journal, and the tool's results."""
    conversation.send_message("go")
    conversation.start_thread()
    assert conversation.wait(20) is ConversationStatus.FINISHED
    items: list[Any] = []
    for event in conversation.get_history():
        if isinstance(event, ev.DecisionMade) and event.decision != "ask":
            items.append((event.decision, event.arguments, event.reason))
        if isinstance(event, ev.ToolCallFinished):
            items.append(event.result.text)
    return items


def agent() -> Agent:
    from hf_ask_tool import ask_city  # pyright: ignore[reportMissingImports]

    return Agent(ScriptedLLM([("ask_city", {}), "Done."]), [ask_city])


@pytest.mark.parametrize("function", [*MISFITS, lambda question: {"city": "Ghent"}])
def test_a_remote_question_has_the_outcome_of_a_local_one(
    server: ServeProcess, function: Callable[[ev.Question], Any]
) -> None:
    with Conversation(agent(), on_question=function) as local:
        expected = outcome(local)
    with (
        server.workspace() as space,
        RemoteConversation(agent(), space, on_question=function) as remote,
    ):
        assert outcome(remote) == expected


def test_a_function_that_ends_its_thread_declines(server: ServeProcess) -> None:
    with (
        server.workspace() as space,
        RemoteConversation(agent(), space, on_question=leave) as remote,
    ):
        assert outcome(remote)[0] == ("reject", None, "on_question raised SystemExit")


def test_an_answer_that_the_server_refuses_is_declined(server: ServeProcess) -> None:
    with (
        server.workspace() as space,
        RemoteConversation(
            agent(), space, on_question=lambda question: {"city": "a" * 40_000_000}
        ) as remote,
    ):
        reason = "the agent server refused on_question's answer"
        assert outcome(remote)[0] == ("reject", None, reason)


@pytest.mark.parametrize("function", MISFITS)
def test_a_call_that_runs_in_the_client_gets_none_as_a_local_one_does(
    server: ServeProcess, function: Callable[[ev.Question], Any]
) -> None:
    form = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}

    def ask_here(context: ToolContext) -> str:
        """Ask for a city."""
        return repr(context.ask("Which city?", form))

    asking = Agent(ScriptedLLM([("ask_here", {}), "Done."]), [ask_here])
    with (
        server.workspace() as space,
        RemoteConversation(asking, space, on_question=function) as remote,
    ):
        assert outcome(remote) == ["None"]
