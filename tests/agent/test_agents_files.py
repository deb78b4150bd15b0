"""Sub-agents in files: what a file may contain, what is refused, and what a sub-agent gets from
its parent agent."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest

from holdfast import LLM, Agent, Limits, ScriptedLLM, Tool, load_agent
from holdfast.agent.agents_files import SubAgent, load_sub_agents, read_sub_agent
from holdfast.agent.delegation import Delegates
from holdfast.agent.serial_form import tools_of
from holdfast.errors import ConfigurationError
from holdfast.server.policy import Policy, check_agent
from holdfast.tools.hooks import Hook

TOOLS = [
    Tool(name, "", lambda: None)
    for name in ("read_file", "write_file", "grep", "git.log", "git.push")
]


def write(folder: Path, name: str, head: str, body: str = "You work.") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.md"
    path.write_text(f"---\n{head}\n---\n{body}\n")
    return path


def test_a_file_says_what_the_agent_may_use(tmp_path: Path) -> None:
    head = (
        "name: finder\ndescription: Finds: all of it\ntools: [read_file, 'git.*']\nmodel:"
        " inherit\nlimits: {steps: 3, cost: 0.5}\ndelegates: true"
    )
    path = write(tmp_path, "x", head.replace("Finds: all", "Finds all"), "You find.\n\nAll of it.")
    agent = read_sub_agent(path)
    assert agent == SubAgent(
        "finder",
        "Finds all of it",
        "You find.\n\nAll of it.",
        ("read_file", "git.*"),
        limits=Limits(steps=3, cost=0.5),
        delegates=True,
        path=str(path),
    )


def test_a_repository_s_agents_are_found_and_the_first_of_a_name_counts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / ".agents/agents", "one", "description: ours")
    write(tmp_path / ".claude/agents", "one", "description: theirs")
    write(tmp_path / ".claude/agents", "two", "name: second")
    write(tmp_path / ".claude/agents", "bad", "tols: []")
    (tmp_path / ".claude/agents/link.md").symlink_to("/etc/hostname")
    with caplog.at_level(logging.WARNING, "holdfast"):
        agents = load_sub_agents(tmp_path)
    assert {name: agent.description for name, agent in agents.items()} == {
        "one": "ours",
        "second": "",
    }
    assert "has the same name, 'one'" in caplog.text
    assert "Did you mean 'tools'?" in caplog.text
    assert "outside of" in caplog.text


def test_claude_code_s_files_are_read_as_they_are(tmp_path: Path) -> None:
    head = (
        "name: code-reviewer\ndescription: Reviews\ntools: Read, Grep, Bash,"
        " mcp__git__log\ndisallowedTools: Write\nmodel: sonnet\nmaxTurns: 7\ncolor: red"
    )
    agent = read_sub_agent(write(tmp_path, "r", head))
    assert agent.tools == ("read_file", "grep", "terminal", "terminal_input", "git.log")
    assert agent.without[0] == "write_file"
    assert (agent.model, agent.limits) == ("", Limits(steps=7))


def test_keys_of_other_catalogues_are_ignored_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    head = "name: net-4.8 expert\ndescription: x\ncapabilities: [a, b]\ndifficulty: hard"
    with caplog.at_level(logging.WARNING, "holdfast"):
        agent = read_sub_agent(write(tmp_path, "x", head))
    assert (agent.name, agent.tools) == ("net-4-8-expert", ("*",))
    [text] = caplog.messages
    assert "capabilities, difficulty: ignored" in text


@pytest.mark.parametrize("key", ["allowed-tools", "allowedTools", "allowed_tools"])
def test_another_spelling_of_tools_restricts_too(tmp_path: Path, key: str) -> None:
    assert read_sub_agent(write(tmp_path, "x", f"{key}: Read, Grep")).tools == ("read_file", "grep")
    with pytest.raises(ConfigurationError, match="tools in another spelling"):
        read_sub_agent(write(tmp_path, "y", f"{key}: Read\ntools: Grep"))


@pytest.mark.parametrize(
    ("disallowed", "left"),
    [
        ("Bash", ["apply_patch", "str_replace_based_edit_tool"]),
        ("Write, Edit", ["terminal", "terminal_background"]),
    ],
)
def test_a_disallowed_tool_is_disallowed_in_all_its_forms(
    tmp_path: Path, disallowed: str, left: list[str]
) -> None:
    names = ("terminal", "terminal_background", "apply_patch", "str_replace_based_edit_tool")
    tools = [Tool(name, "", lambda: None) for name in names]
    sub = read_sub_agent(write(tmp_path, "x", f"disallowedTools: {disallowed}"))
    agent = Agent(ScriptedLLM([]), tools, delegates={"x": sub}).delegates.agent("x")  # type: ignore[union-attr]
    assert agent is not None
    assert [tool.name for tool in agent.tools.list_tools()] == left


@pytest.mark.parametrize("editor", ["edit_file", "apply_patch", "str_replace_based_edit_tool"])
def test_edit_is_the_editor_that_the_owner_has(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, editor: str
) -> None:
    tools = [Tool(name, "", lambda: None) for name in ("read_file", editor)]
    sub = read_sub_agent(write(tmp_path, "x", "tools: Read, Edit, MultiEdit"))
    with caplog.at_level(logging.WARNING, "holdfast"):
        agent = Agent(ScriptedLLM([]), tools, delegates={"x": sub}).delegates.agent("x")  # type: ignore[union-attr]
    assert agent is not None
    assert [tool.name for tool in agent.tools.list_tools()] == ["read_file", editor]
    assert not caplog.messages


def test_a_tool_that_is_named_for_some_calls_alone_is_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    head = "tools: Read, Bash(git diff:*, git log:*), Grep(*)\ndisallowedTools: Edit(src/**)"
    with caplog.at_level(logging.WARNING, "holdfast"):
        agent = read_sub_agent(write(tmp_path, "r", head))
    assert (agent.tools, agent.without[0]) == (("read_file", "grep"), "edit_file")
    assert (
        "Bash(git diff:*, git log:*) names some calls of Bash, which cannot be allowed"
        " separately. It"
        " is left out" in caplog.text
    )
    assert (
        "Edit(src/**) names some calls of Edit, which cannot be allowed separately. The"
        " sub-agent goes"
        " without it" in caplog.text
    )


@pytest.mark.slow
def test_what_is_no_file_blocks_nobody_and_names_are_those_that_agents_take(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.mkfifo(tmp_path / "x.md")
    write(tmp_path, "deep", "limits: " + "[" * 5000)
    write(tmp_path, "long", f"name: {'n' * 65}")
    write(tmp_path, "first", "name: -x")
    write(tmp_path, "letters", "name: späher")
    write(tmp_path, "fine", "name: fine")
    with caplog.at_level(logging.WARNING, "holdfast"):
        assert list(load_sub_agents(tmp_path)) == ["fine"]
    assert "it is not a regular file" in caplog.text
    assert caplog.text.count("a name has letters") == 3


@pytest.mark.parametrize(
    ("head", "body", "problem"),
    [
        ("tols: []", "x", "tols: unknown key. Did you mean 'tools'?"),
        ("name: a/b", "x", "a name has letters"),
        ("tools: {a: b}", "x", "tools: it takes a list of names of tools"),
        ("limits: {steps: 0}", "x", "limits: Limits: steps takes a number above 0"),
        ("limits: {turns: 1}", "x", "limits.turns: unknown key"),
        ("delegates: maybe", "x", "delegates: it takes true or false"),
        ("name: a", "", "it has no text below its front matter"),
        ("[", "x", "front matter"),
    ],
)
def test_what_does_not_fit_is_said_with_the_file(
    tmp_path: Path, head: str, body: str, problem: str
) -> None:
    path = write(tmp_path, "x", head, body)
    with pytest.raises(ConfigurationError) as raised:
        read_sub_agent(path)
    assert problem in str(raised.value)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize(
    ("sub", "names"),
    [
        (SubAgent("a", prompt="x"), ["read_file", "write_file", "grep", "git.log", "git.push"]),
        (SubAgent("a", prompt="x", tools=()), []),
        (SubAgent("a", prompt="x", tools=("git.*",), without=("git.push",)), ["git.log"]),
        (SubAgent("a", prompt="x", tools=("grep", "missing")), ["grep"]),
    ],
)
def test_it_has_of_the_tools_what_the_file_says_and_never_those_that_delegate(
    sub: SubAgent, names: list[str]
) -> None:
    agent = Agent(ScriptedLLM([]), TOOLS, delegates={"a": sub}).delegates.agent("a")  # type: ignore[union-attr]
    assert agent is not None
    assert [tool.name for tool in agent.tools.list_tools()] == names
    assert agent.system_prompt == "x"


def test_what_guards_the_one_guards_the_other() -> None:
    def never(call: Any) -> Any:
        return None

    from holdfast import ToolManager

    manager = ToolManager(TOOLS, hooks=[Hook(before=never)])
    agent = Agent(
        ScriptedLLM([]),
        manager,
        confirm=["write_file"],
        output_limit=2000,
        delegates={"a": SubAgent("a", prompt="x")},
    )
    child = agent.delegates.agent("a")  # type: ignore[union-attr]
    assert child is not None
    assert (child.confirm, child.output_limit) == (agent.confirm, 2000)
    assert child.tools.rules.hooks == manager.rules.hooks
    assert child is agent.delegates.agent("a")  # type: ignore[union-attr]


def test_its_model_is_the_other_s_or_one_that_its_key_is_good_for() -> None:
    llm = LLM("gpt-5", api_key="k")
    agent = Agent(
        llm,
        delegates={
            "a": SubAgent("a", prompt="x", model="gpt-5-mini"),
            "b": SubAgent("b", prompt="x"),
        },
    )
    assert agent.delegates is not None
    assert agent.delegates.agent("a").llm.model == "gpt-5-mini"  # type: ignore[union-attr]
    assert agent.delegates.agent("b").llm is llm  # type: ignore[union-attr]
    wrong = Agent(ScriptedLLM([]), delegates={"a": SubAgent("a", prompt="x", model="gpt-5-mini")})
    with pytest.raises(ConfigurationError, match="give inherit"):
        wrong.delegates.agent("a")  # type: ignore[union-attr]


def test_a_config_has_files_prompts_and_whole_agents(tmp_path: Path) -> None:
    write(tmp_path / "agents", "r", "description: reviews\ntools: [grep]")
    (tmp_path / "agent.yaml").write_text("""
model: {use: scripted, parameters: {script: []}}
tools: {builtin: [grep, read_file]}
delegates:
  reviewer: agents/r.md
  writer: {prompt: You write., tools: [read_file], limits: {steps: 2}}
  other: {model: {use: scripted, parameters: {script: [], model: big}}, system_prompt: Other., \
tools: {builtin: [grep]}, handoffs: {main: null}}
delegation: {max_depth: 1, max_running: 2}
handoffs: {other: {model: {use: scripted, parameters: {script: []}}}}
""")
    agent = load_agent(tmp_path / "agent.yaml", builtins=TOOLS)
    assert isinstance(agent.delegates, Delegates)
    assert (agent.delegates.max_depth, agent.delegates.max_running) == (1, 2)
    assert [tool.name for tool in agent.delegates.agent("reviewer").tools.list_tools()] == ["grep"]  # type: ignore[union-attr]
    assert agent.delegates.agent("writer").limits == Limits(steps=2)  # type: ignore[union-attr]
    other = agent.delegates.agent("other")
    assert other is not None
    assert (other.llm.model, [tool.name for tool in other.tools.list_tools()]) == (
        "big",
        ["grep", "handoff"],
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("delegates: {a: no/such.md}", "does not exist"),
        ("delegates: {a: 3}", "delegates.a: it takes the path of a file"),
        ("delegates: {a: null}", "delegates.a: it takes the path of a file"),
        ("delegates: {a: {prompt: x, tols: []}}", "Did you mean 'tools'"),
        ("delegates: {a: {modl: x}}", "delegates.a"),
        ("delegation: {max_depth: 2}", "there are none"),
        ("handoffs: {main: {prompt: x}}", "the name of a conversation's first agent"),
    ],
)
def test_a_config_that_does_not_fit_says_where(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "a.yaml").write_text(
        f"model: {{use: scripted, parameters: {{script: []}}}}\n{text}\n"
    )
    with pytest.raises(ConfigurationError) as raised:
        load_agent(tmp_path / "a.yaml")
    assert problem in str(raised.value)
    assert "a.yaml" in str(raised.value)


def test_the_serial_form_has_all_of_them() -> None:
    sub = SubAgent(
        "w", "writes", "You write ${x}.", ("grep",), ("read",), "", Limits(steps=3), True
    )
    other = Agent(
        ScriptedLLM(["x"]), [TOOLS[0]], system_prompt="Other.", handoffs={"main": None, "w": sub}
    )
    agent = Agent(
        ScriptedLLM(["x"]),
        [TOOLS[2]],
        delegates=Delegates({"w": sub, "o": other}, 2, 4),
        handoffs={"o": other},
    )
    data = agent.to_json()
    assert [form.name for form in tools_of(agent)] == ["grep", "read_file"]
    again = Agent.from_json(data, builtins=TOOLS)
    assert again.to_json() == data
    assert again.delegates is not None
    assert again.delegates.by_name["w"] == sub
    with pytest.raises(ConfigurationError, match="send_to"):
        Agent(ScriptedLLM([]), delegates=Delegates({"w": sub}, send_to=["x"])).to_json()


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"delegates": {"a": "/etc/passwd"}}, "reads no file of its own"),
        (
            {"handoffs": {"a": {"model": "m", "delegates": {"b": "x.md"}}}},
            "reads no file of its own",
        ),
        ({"delegates": {"a": {"model": {"use": "os:system"}}}}, "os"),
        (
            {"delegates": {"a": {"model": "m", "system_prompt": {"file": "x"}}}},
            "reads no file of its own",
        ),
        ({"delegates": {"a": {"prompt": "x"}}, "delegation": {"max_running": 1000}}, "at most 32"),
        (
            {"delegates": {"a": {"prompt": "x"}}, "delegation": {"detached": True}},
            "ends children with their conversation",
        ),
    ],
)
def test_an_agent_server_refuses_of_the_others_what_it_refuses_of_an_agent(
    more: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigurationError) as raised:
        check_agent({"model": "m", **more}, Policy())
    assert problem in str(raised.value)
    check_agent(
        {
            "model": "m",
            "delegates": {"a": {"prompt": "x"}, "b": {"model": "m"}},
            "handoffs": {"main": None},
        },
        Policy(),
    )
