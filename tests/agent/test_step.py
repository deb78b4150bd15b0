"""`Agent.step(state)`: one model call on a conversation's state, without a running conversation."""

from __future__ import annotations

import sys

import pytest

from holdfast import Agent, Conversation, ConversationState, ScriptedLLM, Tool
from holdfast.errors import ConfigurationError
from holdfast.llm.scripted import ScriptedRequest
from holdfast.llm.transcript import Transcript
from tests.paths import REPO

ROOT = REPO


def greet(name: str) -> str:
    """Greets."""
    return f"Hello, {name}"


GREET = Tool.from_function(greet)


def state_after(text: str = "Greet Ann") -> ConversationState:
    """Return the state of a conversation with one message of the user."""
    with Conversation(Agent(ScriptedLLM([]))) as conversation:
        conversation.send_message(text)
        return conversation.state


def test_a_state_becomes_a_prompt_and_the_answer_its_tool_calls() -> None:
    requests: list[ScriptedRequest] = []

    def answer(request: ScriptedRequest) -> tuple[str, dict[str, str]]:
        requests.append(request)
        return ("greet", {"name": "Ann"})

    state = state_after()
    agent = Agent(ScriptedLLM([answer]), [GREET], system_prompt="Be kind.")
    completion = agent.step(state)
    assert [(call.name, call.arguments) for call in completion.calls] == [
        ("greet", {"name": "Ann"})
    ]
    assert "Be kind." in str(requests[0].json)
    assert "Greet Ann" in str(requests[0].json)
    assert "greet" in str(requests[0].json["tools"])
    assert state.last_seq == len(state.events) == 1, "nothing is journaled and no tool is run"


def test_a_finished_conversation_and_a_serialized_state_lead_to_the_request_that_the_loop_makes() -> (
    None
):
    requests: list[object] = []

    def answer(request: ScriptedRequest) -> str:
        requests.append(request.json)
        return "done"

    agent = Agent(ScriptedLLM([[("greet", {"name": "Ann"})], answer, answer]), [GREET])
    with Conversation(agent) as conversation:
        conversation.send_message("Greet Ann")
        state = conversation.run()
    before = ConversationState.from_json(state.at(state.last_seq - 2).to_json())
    assert agent.step(before).text == "done"
    assert requests[0] == requests[1]


def test_what_a_model_cannot_answer_is_refused() -> None:
    agent = Agent(ScriptedLLM([("greet", {"name": "Ann"})]), [GREET], confirm="always")
    with pytest.raises(ConfigurationError, match="has no message"):
        agent.step(ConversationState("empty", ()))
    with Conversation(agent) as conversation:
        conversation.send_message("Greet Ann")
        state = conversation.run()
        with pytest.raises(
            ConfigurationError,
            match=rf"the calls {state.pending_confirmations[0].call.id} have no result yet",
        ):
            agent.step(state)
    with pytest.raises(ConfigurationError, match="head"):
        agent.step(Transcript())


@pytest.mark.slow
def test_the_services_of_an_agent_are_open_for_the_call_and_closed_after_it() -> None:
    requests: list[ScriptedRequest] = []

    def answer(request: ScriptedRequest) -> str:
        requests.append(request)
        return "ok"

    agent = Agent(
        ScriptedLLM([answer]),
        [GREET],
        mcp_servers={
            "srv": {"command": sys.executable, "args": ["-m", "tests.mcp_tools"], "cwd": str(ROOT)}
        },
    )
    assert agent.step(state_after()).text == "ok"
    assert any("srv" in str(tool) for tool in requests[0].json["tools"])
    assert agent.connections.open == 0
