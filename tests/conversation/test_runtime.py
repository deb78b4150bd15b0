"""The runtime of a conversation: its own, else the one of its agent's tools."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import Agent, Conversation, LocalRuntime, ScriptedLLM, Tool, ToolContext
from holdfast.agent.security import RiskRules


def runtime_in_call(*tools: Tool, runtime: object | None = None) -> object | None:
    """Return `context.runtime` in a call of a conversation whose agent has these tools."""
    runtimes: list[object | None] = []

    def look(context: ToolContext) -> str:
        """Look."""
        runtimes.append(context.runtime)
        return "ok"

    agent = Agent(ScriptedLLM([("look", {}), "Done."]), [*tools, Tool.from_function(look)])
    with Conversation(agent, runtime=runtime) as conversation:
        conversation.send_message("Go")
        conversation.run()
    return runtimes[0]


def test_a_conversation_takes_the_runtime_of_its_agents_tools(tmp_path: Path) -> None:
    with LocalRuntime(tmp_path) as runtime, LocalRuntime() as other:
        assert runtime_in_call(*runtime.tools) is runtime
        assert runtime_in_call(runtime.tools[0]) is runtime
        assert runtime_in_call() is None
        assert runtime_in_call(*runtime.tools, runtime=other) is other
        assert (
            runtime_in_call(runtime.tools[0], other.tools[1]) is None
        )  # ambiguous, so there is none


@pytest.mark.parametrize("store_given", [True, False])
def test_a_redirection_into_the_working_directory_is_judged_as_such(
    tmp_path: Path, store_given: bool
) -> None:
    with LocalRuntime(tmp_path) as runtime:
        script = ScriptedLLM(
            [
                ("terminal", {"command": "echo hi > out.txt"}),
                ("terminal", {"command": "echo hi > /etc/out.txt"}),
                "Done.",
            ]
        )
        agent = Agent(script, runtime.tools, security=RiskRules(), confirm="risky")
        with Conversation(agent, runtime=runtime if store_given else None) as conversation:
            conversation.send_message("Go")
            state = conversation.run()
            assert state.status.value == "waiting_for_confirmation"
            assert (tmp_path / "out.txt").read_text() == "hi\n"
            risks = [event.risk for event in state.events if event.type == "decision"]
    assert risks[0] != "high"
    assert risks[-1] == "high"


def test_a_child_takes_the_runtime_of_its_own_tools_else_its_parents(tmp_path: Path) -> None:
    runtimes: list[object | None] = []

    def look(context: ToolContext) -> str:
        """Look."""
        runtimes.append(context.runtime)
        return "ok"

    with LocalRuntime(tmp_path) as runtime, LocalRuntime() as other:

        def spawns(context: ToolContext) -> str:
            """Spawn."""
            for tools in ([], other.tools):
                agent = Agent(
                    ScriptedLLM([("look", {}), "Done."]), [*tools, Tool.from_function(look)]
                )
                with context.spawn(agent, "Go") as child:
                    child.run()
            return "ok"

        agent = Agent(
            ScriptedLLM([("spawns", {}), "Done."]), [*runtime.tools, Tool.from_function(spawns)]
        )
        with Conversation(agent) as conversation:
            conversation.send_message("Go")
            conversation.run()
        assert runtimes == [runtime, other]
        with Conversation(agent) as conversation:
            conversation.send_message("Go")
            with conversation.fork(
                agent=Agent(
                    ScriptedLLM([("look", {}), "Done."]), [*other.tools, Tool.from_function(look)]
                )
            ) as fork:
                fork.run()
        assert runtimes[-1] is other
