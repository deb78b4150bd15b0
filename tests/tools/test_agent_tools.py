"""Tests of the tools that an agent's parts bring: each agent has its own, even if several share a
manager."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Agent, Conversation, ScriptedLLM, Tool, ToolManager
from holdfast import events as ev
from holdfast.errors import ConfigurationError, ToolNotFound
from holdfast.tools.hooks import Hook


def look() -> str:
    """Look."""
    return "seen"


def names(agent: Agent) -> list[str]:
    return [tool.name for tool in agent.tools.list_tools()]


def test_agents_that_share_a_manager_have_each_their_own() -> None:
    manager = ToolManager([look])
    plain = Agent(ScriptedLLM([]), manager)
    one = Agent(
        ScriptedLLM([("handoff", {"agent": "a"})]),
        manager,
        handoffs={"a": Agent(ScriptedLLM(["from a"]))},
        planning="tool",
    )
    two = Agent(
        ScriptedLLM([("handoff", {"agent": "b"})]),
        manager,
        handoffs={"b": Agent(ScriptedLLM(["from b"]))},
        output_type=dict,
    )
    assert (names(plain), names(one), names(two)) == (
        ["look"],
        ["look", "handoff", "plan"],
        ["look", "handoff", "finish"],
    )
    assert plain.tools is manager
    for agent, answer in ((one, "from a"), (two, "from b")):
        with Conversation(agent) as conversation:
            conversation.send_message("go")
            assert conversation.run().answer == answer


def test_an_agent_of_anothers_tools_has_not_what_that_ones_parts_came_with() -> None:
    one = Agent(ScriptedLLM([]), [look], handoffs={"a": Agent(ScriptedLLM([]))}, planning="tool")
    assert names(Agent(ScriptedLLM([]), one.tools, handoffs={"b": Agent(ScriptedLLM([]))})) == [
        "look",
        "handoff",
    ]


def test_what_is_registered_later_is_everybodys_and_told_of_behind() -> None:
    manager = ToolManager([look])
    agent = Agent(ScriptedLLM([]), manager, planning="tool")
    before = agent.tools.definitions()
    assert agent.tools.definitions() is before
    agent.tools.register(Tool("more", "More.", lambda: "more"))
    manager.register(Tool("most", "Most.", lambda: "most"))
    assert [one.name for one in agent.tools.definitions()] == ["look", "plan", "more", "most"]
    assert [tool.name for tool in manager.list_tools()] == ["look", "more", "most"]
    with pytest.raises(ConfigurationError, match="two tools named 'plan'"):
        agent.tools.register(Tool("plan", "Mine.", lambda: None))
    agent.tools.unregister("plan")
    with pytest.raises(ToolNotFound, match="This agent has: look, more, most"):
        agent.tools.get("plan")


def test_a_name_that_the_manager_has_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="another one of that name"):
        Agent(
            ScriptedLLM([]), ToolManager([Tool("finish", "Mine.", lambda: None)]), output_type=dict
        )


def test_hooks_and_caps_of_the_manager_stand_around_them_too() -> None:
    names: list[str] = []

    def before(call: Any, context: Any) -> None:
        names.append(call.name)

    manager = ToolManager([look], hooks=[Hook(before=before)], concurrency=1)
    agent = Agent(
        ScriptedLLM([("plan", {"steps": [{"step": "one"}]}), ("look", {}), "done"]),
        manager,
        planning="tool",
    )
    with Conversation(agent) as conversation:
        conversation.send_message("go")
        conversation.run()
        assert not any(
            event.result.is_error
            for event in conversation.get_history()
            if isinstance(event, ev.ToolCallFinished)
        )
    assert names == ["plan", "look"]


def test_a_shared_tool_replaced_while_definitions_are_made_is_not_remembered_as_it_was() -> None:
    def shared(a: int) -> str:
        """The first."""
        return ""

    def own() -> str:
        """Its own."""
        return ""

    def newer(b: int) -> str:
        """The second."""
        return ""

    manager = ToolManager([shared])
    extended = manager.with_own_tools([Tool.from_function(own)])
    catalogue: Any = manager._catalogue
    real, races = catalogue.definitions, [True]

    def definitions() -> Any:
        before = real()
        if races:  # another thread, between two reads
            races.pop()
            manager.replace(["shared"], [Tool.from_function(newer).renamed("shared")])
        return before

    catalogue.definitions = definitions
    extended.definitions()
    assert [one.description for one in extended.definitions()] == ["The second.", "Its own."]


def test_own_tools_are_added_to_earlier_own_tools() -> None:
    def tool_named(name: str) -> Tool:
        return Tool(name, "", lambda: "")

    manager = ToolManager([tool_named("a")]).with_own_tools([tool_named("b")])
    extended = manager.with_own_tools([tool_named("c")])
    assert [tool.name for tool in extended.list_tools()] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("tool", "hint"),
    [
        (Agent(ScriptedLLM([])), r"delegates=\{'name': agent\}"),
        ("terminal", r"give runtime\.tools"),
        ({"type": "function"}, r"Give Tool\(name, description, callback, input_schema\)"),
    ],
)
def test_what_is_no_tool_is_refused_with_what_to_give(tool: Any, hint: str) -> None:
    with pytest.raises(ConfigurationError, match=f"takes Tool objects or functions.*{hint}"):
        Agent(ScriptedLLM([]), tools=[tool])


def test_approving_a_pending_confirmation_names_its_id() -> None:
    agent = Agent(ScriptedLLM([("pay", {})]), [Tool("pay", "", lambda: "paid")], confirm=["pay"])
    with Conversation(agent) as conversation:
        conversation.send_message("Pay.")
        pending: Any = conversation.run().pending_confirmations[0]
        with pytest.raises(ConfigurationError, match=r"call_id takes a str .* Give its call\.id"):
            conversation.approve(pending)
