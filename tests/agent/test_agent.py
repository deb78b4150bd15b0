"""An agent with other arguments, and copies of an agent."""

from __future__ import annotations

import copy
import inspect
from pathlib import Path
from typing import Any

import pytest

from holdfast import Agent, Conversation, Limits, ScriptedLLM, Tool, ToolManager
from holdfast.agent.load import load_agent
from holdfast.errors import ConfigurationError, OutputInvalid

PING = Tool("ping", "", lambda: "pong")


def test_every_argument_is_documented_at_its_attribute() -> None:
    source = inspect.getsource(Agent)
    for name in inspect.signature(Agent).parameters:
        _, separator, rest = source.partition(f"\n    {name}: ")
        assert separator, name
        assert rest.partition("\n")[2].startswith('    """'), name


def test_replace_makes_another_agent_and_keeps_the_rest() -> None:
    llm = ScriptedLLM(["Hi."])
    agent = Agent(llm, [PING], system_prompt="Be kind.", confirm={"ping": "ask"}, planning="tool")
    other = agent.replace(limits=Limits(steps=3), planning=None)
    assert (agent.limits.steps, other.limits.steps) == (500, 3)
    assert (other.llm, other.confirm) == (llm, agent.confirm)
    assert [tool.name for tool in agent.tools.list_tools()] == ["ping", "plan"]
    assert [tool.name for tool in other.tools.list_tools()] == ["ping"]
    assert (other.system_prompt, agent.replace().system_prompt) == (
        "Be kind.",
        agent.system_prompt,
    )
    with Conversation(other) as conversation:
        conversation.send_message("Hello")
        assert conversation.run().answer == "Hi."


def test_replace_checks_as_the_class_does() -> None:
    agent = Agent(ScriptedLLM([]))
    with pytest.raises(ConfigurationError, match="parallel_calls takes a whole number from 1"):
        agent.replace(parallel_calls=0)
    with pytest.raises(TypeError, match="unexpected keyword argument 'limit'"):
        agent.replace(limit=Limits())
    with pytest.raises(AttributeError, match=r"use replace\(limits=...\)"):
        agent.limits = Limits()


def test_replace_reads_no_file_again_and_keeps_what_it_read(tmp_path: Path) -> None:
    (tmp_path / "note.md").write_text("---\ntriggers: [bow]\n---\nBow.")
    (tmp_path / "AGENTS.md").write_text("Use tabs.")
    agent = Agent(
        ScriptedLLM([]),
        microagents=["Be terse.", tmp_path / "note.md"],
        instructions=tmp_path,
    )
    (tmp_path / "note.md").unlink()
    (tmp_path / "AGENTS.md").unlink()
    other = agent.replace(parallel_calls=1)
    assert other.system_prompt == agent.system_prompt
    assert other.knowledge.skills is not None
    assert [skill.name for skill in other.knowledge.skills.list()] == ["note"]
    assert "note" not in agent.replace(microagents=["Be terse."]).system_prompt


def test_replace_shares_servers_unless_the_tools_are_others() -> None:
    servers = {"own": {"command": "no-such-program"}}
    agent = Agent(ScriptedLLM([]), [PING], mcp_servers=servers)
    assert agent.replace(parallel_calls=1).mcp_servers == servers
    assert agent.replace(tools=[PING], mcp_servers=None).mcp_servers == {}
    with pytest.raises(ConfigurationError, match="give tools too"):
        agent.replace(mcp_servers={})


def test_an_untrusted_schema_stays_one() -> None:
    """A pattern of an untrusted document must not block the process."""
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"a": {"type": "string", "pattern": "^(a|a)*$"}},
        "required": ["a"],
    }
    agent = load_agent(
        {"model": {"use": "scripted", "parameters": {"script": []}}, "output_type": schema}
    ).replace(parallel_calls=1)
    assert agent.output is not None
    with pytest.raises(OutputInvalid):
        agent.output.read({"a": "a" * 40 + "b"})


def test_a_copy_of_an_agent_is_the_agent() -> None:
    agent = Agent(ScriptedLLM([]), ToolManager([PING]))
    assert copy.deepcopy(agent) is agent
    assert copy.copy(agent) is agent
    assert copy.deepcopy({"agents": [agent]}) == {"agents": [agent]}


def test_an_agent_with_planning_first_is_one_object() -> None:
    agent = Agent(ScriptedLLM([]), [PING])
    planned = agent.with_planning_first()
    assert planned is agent.with_planning_first()
    assert planned.with_planning_first() is planned
    assert (agent.planning, planned.planning) == (None, "first")
    assert planned.tools.exists("plan")
