"""Plugins: what their folders add to an agent, and what is left out."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from holdfast import Agent, Conversation, LocalRuntime, ScriptedLLM
from holdfast.agent.delegation import Delegates
from holdfast.agent.load import load_agent
from holdfast.agent.plugins import load_plugin
from holdfast.agent.serial_form import form_of
from holdfast.errors import ConfigurationError
from tests.paths import DATA

GUARD = """\
import json, os, sys
told = json.load(sys.stdin)
assert os.environ["CLAUDE_PLUGIN_ROOT"] == os.path.dirname(os.path.dirname(__file__))
if "rm" in told["tool_input"]["command"]:
    print("no removal: " + told["tool_name"], file=sys.stderr)
    sys.exit(2)
"""


def write(root: Path, name: str, text: Any) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text if isinstance(text, str) else json.dumps(text))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "care"
    manifest = {"name": "care", "description": "Takes\ncare.", "version": "1.2.0"}
    write(root, ".claude-plugin/plugin.json", manifest)
    skill = "---\nname: dates\ndescription: How dates are written.\n---\nISO 8601, always.\n"
    write(root, "skills/dates/SKILL.md", skill)
    command = (
        "---\ndescription: Reviews a file.\nargument-hint: FILE\n---\nReview $ARGUMENTS well.\n"
    )
    write(root, "commands/review.md", command)
    agent = "---\nname: finder\ndescription: Finds things.\ntools: Read, Grep\nmodel: sonnet\n---\nFind it.\n"
    write(root, "agents/finder.md", agent)
    server = {
        "command": sys.executable,
        "args": ["${CLAUDE_PLUGIN_ROOT}/server.py"],
        "env": {"KEY": "${KEY:-none}"},
    }
    write(root, ".mcp.json", {"mcpServers": {"srv": {**server, "tools": ["add"]}}})
    (root / "server.py").write_bytes((DATA / "mcp_server.py").read_bytes())
    write(root, "hooks/guard.py", GUARD)
    guard = f'{sys.executable} "${{CLAUDE_PLUGIN_ROOT}}/hooks/guard.py"'
    group = {"matcher": "Bash", "hooks": [{"type": "command", "command": guard, "timeout": 20}]}
    write(root, "hooks/hooks.json", {"description": "x", "hooks": {"PreToolUse": [group]}})
    return root


def test_a_plugin_is_read_whole(root: Path) -> None:
    plugin = load_plugin(root, variables={"KEY": "k"})
    assert (plugin.name, plugin.description, plugin.version) == ("care", "Takes care.", "1.2.0")
    assert {skill.name: skill.triggers for skill in plugin.skills} == {
        "dates": (),
        "care:review": ("/care:review",),
    }
    assert plugin.agents["finder"].prompt == "Find it."
    assert plugin.mcp_servers["srv"]["args"] == [f"{root}/server.py"]
    assert plugin.mcp_servers["srv"]["env"] == {"KEY": "k"}
    [hook] = plugin.hooks
    assert (hook.on, hook.when, hook.matcher, hook.timeout) == ("tool", "before", "Bash", 20.0)
    assert plugin.problems == {}


@pytest.mark.slow
def test_an_agent_works_with_a_plugin(root: Path) -> None:
    script = [
        [("terminal", {"command": "echo hello"}), ("terminal", {"command": "rm x"})],
        ("srv.add", {"a": 1, "b": 2}),
        ("delegate", {"agent": "finder", "task": "Find x."}),
        "Once more.",
        "Done.",
    ]
    with LocalRuntime() as runtime:
        llm = ScriptedLLM(lambda request: answers(request, script))
        agent = Agent(llm, runtime.tools, plugins=[root])
        with Conversation(agent) as conversation:
            conversation.send_message("/care:review report.md please\nThanks.")
            conversation.run()
            conversation.send_message("/care:review other.md")
            state = conversation.run()
    assert state.answer == "Done."
    added = [one for one in state.events if one.type == "message" and one.sender == "holdfast"]
    assert added[0].about.startswith("command:care:review ")
    assert "Review report.md please well." in added[0].text
    assert "Review other.md well." in added[-1].text
    results = [one.result.text for one in state.events if one.type == "toolResult"]
    assert results[0].startswith("hello")
    assert "no removal: Bash" in results[1]
    assert "3" in results[2]
    assert "Found." in results[3]


def answers(request: Any, script: list[Any]) -> Any:
    if request.messages[0]["content"].startswith("Find it."):
        return "Found."
    return script[sum(message["role"] == "assistant" for message in request.messages)]


def test_what_the_agent_has_by_a_name_is_kept(root: Path) -> None:
    mine = Agent(ScriptedLLM([]), system_prompt="Mine.")
    agent = Agent(
        ScriptedLLM([]),
        delegates={"finder": mine},
        mcp_servers={"srv": {"command": "mine"}},
        plugins=[load_plugin(root)],
    )
    assert agent.delegates is not None
    assert agent.delegates.agent("finder") is mine
    assert agent.mcp_servers == {"srv": {"command": "mine"}}
    assert agent.knowledge.skills is not None
    assert [skill.name for skill in agent.knowledge.skills.list()] == ["dates", "care:review"]
    assert len(agent.replace(parallel_calls=2).hooks) == 1
    assert len(Agent(ScriptedLLM([])).replace(plugins=[root]).hooks) == 1


@pytest.mark.slow
def test_an_agents_file_names_plugins(root: Path, tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text("model: gpt-5\nplugins: [care]\n")
    agent = load_agent(tmp_path / "agent.yaml")
    assert list(agent.mcp_servers) == ["srv"]
    try:
        agent.tools.discover()
        assert "srv.add" in [tool.name for tool in agent.tools.list_tools()]
    finally:
        agent.tools.close()
    form = form_of(agent).mapping
    assert "plugins" not in form
    assert [skill["name"] for skill in form["skills"]["list"]] == ["dates", "care:review"]


def test_parts_that_make_no_sense_are_left_out_with_a_reason(root: Path, tmp_path: Path) -> None:
    write(root, "agents/broken.md", "---\nname: no/name\n---\nx\n")
    os.symlink("/etc/hostname", root / "commands" / "leak.md")
    write(
        root, ".mcp.json", {"odd": {"command": "x", "oauth": {"a": 1}}, "unset": {"url": "${URL}"}}
    )
    odd = {"matcher": "Ba(sh", "hooks": [{"type": "command", "command": "true"}]}
    some = {"matcher": "Bash", "hooks": [{"type": "command", "command": "x", "if": "Bash(git *)"}]}
    asks = {"hooks": [{"type": "prompt", "prompt": "Is it good?"}]}
    hooks = {"PreToolUse": [odd, some], "Stop": [asks], "Notification": [asks], "bad": 3}
    write(root, "hooks/hooks.json", {"hooks": hooks})
    plugin = load_plugin(root)
    assert plugin.mcp_servers == {}
    assert plugin.hooks == ()
    assert {place.split(" ")[0] + " " + place.split(" ")[-1] for place in plugin.problems} >= {
        "agents/broken.md agents/broken.md",
        "commands/leak.md commands/leak.md",
        ".mcp.json: odd",
        ".mcp.json: unset",
        "hooks: x",
        "hooks: Stop",
        "hooks: Notification",
    }
    assert "out of the plugin's folder" in plugin.problems["commands/leak.md"]


ROOTS = ("CLAUDE_PLUGIN_ROOT", "OPENHANDS_PLUGIN_ROOT")
CALLS: Mapping[str, Any] = {
    "run": ("terminal", {"command": "touch ran"}),
    "background": ("terminal_background", {"command": "touch ran"}),
    "type": ("terminal_input", {"text": "touch ran"}),
    "write": ("write_file", {"path": "ran", "content": "x"}),
    "create": (
        "str_replace_based_edit_tool",
        {"command": "create", "path": "ran", "file_text": ""},
    ),
    "view": ("str_replace_based_edit_tool", {"command": "view", "path": "ran"}),
    "patch": (
        "apply_patch",
        {"patch": "*** Begin Patch\n*** Add File: a\n+x\n*** Delete File: b\n*** End Patch"},
    ),
    "remote": ("srv.add", {"a": 1, "b": 2}),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("matcher", "expected"),
    [
        ("*", "Bash Bash Bash Write Write Read Write Edit mcp__srv__add"),
        ("Bash", "Bash Bash Bash"),
        ("Write|Edit|MultiEdit", "Write Write Write Edit"),
        ("Ba(sh|r)", "Bash Bash Bash"),
        ("^(?!Bash|mcp__)", "Write Write Read Write Edit"),
        ("mcp__srv__.*", "mcp__srv__add"),
        ("NotebookEdit|bash", ""),
    ],
)
def test_a_matcher_fits_by_the_names_of_claude_code(
    root: Path, tmp_path: Path, matcher: str, expected: str
) -> None:
    log = tmp_path / "log"
    command = f"jq -r .tool_name >> {log}"
    group = {"matcher": matcher, "hooks": [{"type": "command", "command": command}]}
    write(root, "hooks/hooks.json", {"hooks": {"PreToolUse": [group]}})
    (tmp_path / "b").write_text("x\n")
    with LocalRuntime(tmp_path) as runtime:
        agent = Agent(ScriptedLLM([[*CALLS.values()], "Done."]), runtime.all_tools, plugins=[root])
        with Conversation(agent) as conversation:
            conversation.send_message("go")
            conversation.run()
    assert (log.read_text() if log.exists() else "").split() == expected.split()


def test_hook_commands_have_the_path_that_is_given(root: Path) -> None:
    [hook] = load_plugin(root, variables={"PATH": "/opt/bin", "KEY": "k"}).hooks
    assert hook.env == {"PATH": "/opt/bin"} | dict.fromkeys(ROOTS, str(root))


@pytest.mark.slow
def test_a_guard_sees_each_file_of_a_patch(root: Path, tmp_path: Path) -> None:
    guard = "jq -e '.tool_input.file_path | endswith(\"/.env\") | not' >/dev/null || exit 2"
    group = {"matcher": "Edit|Write", "hooks": [{"type": "command", "command": guard}]}
    write(root, "hooks/hooks.json", {"hooks": {"PreToolUse": [group]}})
    for name in ("a.txt", ".env"):
        (tmp_path / name).write_text("one\n")
    patch = "*** Begin Patch\n*** Update File: a.txt\n{}@@\n-one\n+two\n{}*** End Patch"
    patches = [
        patch.format("", "*** Update File: .env\n@@\n-one\n+two\n"),
        patch.format("*** Move to: .env\n", ""),
        patch.format("", "*** Delete File: ./.env\n"),
        "*** Begin Patch\n*** Edit File: .env\n*** End Patch",
        patch.format("", ""),
    ]
    with LocalRuntime(tmp_path) as runtime:
        calls = [("apply_patch", {"patch": one}) for one in patches]
        agent = Agent(ScriptedLLM([*calls, "Done."]), runtime.all_tools, plugins=[root])
        with Conversation(agent) as conversation:
            conversation.send_message("go")
            results = [e.result for e in conversation.run().events if e.type == "toolResult"]
    assert [one.is_error for one in results] == [True] * 4 + [False]
    assert "denied" in results[2].text
    assert (tmp_path / ".env").read_text() == "one\n"
    assert (tmp_path / "a.txt").read_text() == "two\n"


@pytest.mark.parametrize("text", ["[]", "{", '{"name": "a b"}', "[" * 100_000])
def test_a_manifest_that_makes_no_sense_is_refused(root: Path, text: str) -> None:
    write(root, ".claude-plugin/plugin.json", text)
    with pytest.raises(ConfigurationError, match="load_plugin"):
        load_plugin(root)


def test_front_matter_that_is_not_quite_yaml_is_read(root: Path) -> None:
    dialogue = 'Context: The user asks: "Where?"\nuser: "Where is x?"\nassistant: "I look: here."'
    head = f"name: odd\ndescription: Use this: always. Examples: <a>: b\n{dialogue}\ntools: Read"
    write(root, "agents/odd.md", f"---\n{head}\n---\nFind it.\n")
    assert load_plugin(root).agents["odd"].tools == ("read_file",)
    write(root, "agents/typo.md", f"---\n{head}\ntool: Grep\n---\nFind it.\n")
    assert "unknown key" in load_plugin(root).problems["agents/typo.md"]
    assert load_plugin(root).agents["odd"].description.startswith("Use this: always.")


def test_a_commands_front_matter_that_is_not_quite_yaml_is_read(root: Path) -> None:
    head = "description: Use it: now\nargument-hint: [file] [line]"
    write(root, "commands/odd.md", f"---\n{head}\n---\nDo $1.\n")
    plugin = load_plugin(root)
    [odd] = [skill for skill in plugin.skills if skill.name == "care:odd"]
    assert (odd.description, odd.text, plugin.problems) == ("Use it: now", "Do $1.", {})


@pytest.mark.parametrize("linked", [False, True])
def test_a_plugin_of_openhands_has_its_format_of_hooks(root: Path, linked: bool) -> None:
    (root / ".claude-plugin").rename(root / ".plugin")
    if linked:  # for Claude Code
        (root / ".claude-plugin").symlink_to(".plugin")
    plugin = load_plugin(root)
    assert (plugin.name, [hook.format for hook in plugin.hooks]) == ("care", ["openhands"])


def test_a_manifest_outside_of_the_folder_is_refused(root: Path, tmp_path: Path) -> None:
    (root / ".claude-plugin").rename(tmp_path / "elsewhere")
    (root / ".claude-plugin").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigurationError, match="a link out of the plugin's folder"):
        load_plugin(root)


def test_a_plugin_may_be_one_skill(tmp_path: Path) -> None:
    write(tmp_path / "pdf", ".plugin/plugin.json", {"name": "pdf"})
    write(tmp_path / "pdf", "SKILL.md", "---\nname: pdf\ndescription: PDFs.\n---\nx\n")
    write(tmp_path / "pdf", "examples/SKILL.md", "---\nname: no\ndescription: no\n---\nx\n")
    assert [skill.name for skill in load_plugin(tmp_path / "pdf").skills] == ["pdf"]


def test_a_folder_without_a_manifest_is_named_by_itself(root: Path) -> None:
    (root / ".claude-plugin" / "plugin.json").unlink()
    assert load_plugin(root).name == "care"
    with pytest.raises(ConfigurationError, match="there is none"):
        load_plugin(root / "nowhere")


def test_a_manifest_names_further_places(root: Path) -> None:
    manifest = {"name": "care", "commands": ["./more/plan.md", "../out"], "skills": "./know"}
    write(root, ".claude-plugin/plugin.json", manifest)
    write(root, "more/plan.md", "Plan it.")
    write(root, "know/pdf/SKILL.md", "---\nname: pdf\ndescription: PDFs.\n---\nx\n")
    plugin = load_plugin(root)
    assert {skill.name for skill in plugin.skills} == {"dates", "pdf", "care:review", "care:plan"}
    assert list(plugin.problems) == ["../out"]


@pytest.mark.parametrize("plugins", ["care", 3, [3]])
def test_plugins_are_a_list(plugins: Any) -> None:
    with pytest.raises(ConfigurationError, match="Agent: plugins takes a list"):
        Agent(ScriptedLLM([]), plugins=plugins)


def test_a_plugins_agents_join_a_team_that_keeps_its_settings(root: Path) -> None:
    mine = Agent(ScriptedLLM([]), system_prompt="You edit.")
    team = Delegates(
        {"editor": (mine, "Edits the text only.")},
        max_depth=2,
        max_running=3,
        detached=True,
        send_to=["other"],
        max_messages=4,
        isolation="copy",
    )
    delegates = Agent(ScriptedLLM([]), delegates=team, plugins=[root]).delegates
    assert delegates is not None
    assert delegates.listing().startswith("- editor: Edits the text only.\n- finder: Finds things.")
    settings = ("max_depth", "max_running", "detached", "send_to", "max_messages", "isolation")
    for name in settings:
        assert getattr(delegates, name) == getattr(team, name)
    assert list(team) == ["editor"]


@pytest.mark.parametrize("key", ["hooks", "mcpServers"])
@pytest.mark.parametrize(
    "given", ["../x.json", "./missing.json", 3, [3], {"hooks": 5, "mcpServers": []}]
)
def test_a_manifests_odd_settings_are_problems(root: Path, key: str, given: Any) -> None:
    write(root.parent, "x.json", {})
    write(root, ".claude-plugin/plugin.json", {"name": "care", key: given})
    assert len(load_plugin(root).problems) == 1


@pytest.mark.parametrize(
    "more", [{"timeout": 0}, {"timeout": 1e9}, {"timeout": "x"}, {"command": "a\0b"}]
)
def test_a_hook_that_cannot_be_is_a_problem(root: Path, more: dict[str, Any]) -> None:
    group = {"hooks": [{"type": "command", "command": "true", **more}]}
    write(root, "hooks/hooks.json", {"hooks": {"PreToolUse": [group]}})
    plugin = load_plugin(root)
    assert (plugin.hooks, len(plugin.problems)) == ((), 1)


def test_a_hook_that_asks_to_run_in_the_background_is_named_as_one_that_is_waited_for(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    commands = [{"type": "command", "command": f"echo {n}", "async": n == 1} for n in range(3)]
    write(root, "hooks/hooks.json", {"hooks": {"PostToolUse": [{"hooks": commands}]}})
    plugin = load_plugin(root)
    assert (len(plugin.hooks), plugin.problems) == (3, {})
    [warning] = [record.getMessage() for record in caplog.records if "async" in record.getMessage()]
    assert warning == (
        "The plugin care: its hook for PostToolUse, echo 1, says async, and is waited for here like"
        " any other: at most 60 s, and its answer counts."
    )


def test_a_manifest_lists_files_of_hooks(root: Path) -> None:
    (root / "hooks" / "hooks.json").rename(root / "h.json")
    write(root, ".claude-plugin/plugin.json", {"name": "care", "hooks": ["./h.json"]})
    assert len(load_plugin(root).hooks) == 1


def test_a_commands_inline_commands_are_left_to_the_model(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    head = "---\nallowed-tools: Bash(git status:*)\nmodel: haiku\nargument-hint: FILE\n---\n"
    write(root, "commands/commit.md", f"{head}Status: !`git status`\nCommit $1.\n")
    plugin = load_plugin(root)
    (command,) = [skill for skill in plugin.skills if skill.name == "care:commit"]
    assert "run that command first" in command.text
    assert "in its commands allowed-tools, model is ignored" in caplog.text
    agent = Agent(ScriptedLLM(["Done."]), plugins=[plugin])
    with Conversation(agent) as conversation:
        conversation.send_message("/care:commit a.py")
        (shown,) = [
            event.text
            for event in conversation.run().events
            if event.type == "message" and event.about
        ]
    assert "Status: !`git status`\nCommit a.py." in shown


def test_a_command_in_a_subfolder_has_its_folder_in_its_name(root: Path) -> None:
    write(root, "commands/ci/build.md", "Build $ARGUMENTS.")
    write(root, "commands/web/build.md", "Bundle $ARGUMENTS.")
    plugin = load_plugin(root)
    assert {"care:ci:build", "care:web:build"} <= {skill.name for skill in plugin.skills}
    agent = Agent(ScriptedLLM(["Done.", "Done."]), plugins=[plugin])
    for words, texts in {
        "/care:ci:build all": ["Build all."],
        "/care:build all": ["Build all.", "Bundle all."],
    }.items():
        with Conversation(agent) as conversation:
            conversation.send_message(words)
            events = conversation.run().events
        shown = [one.text for one in events if one.type == "message" and one.about]
        assert [one.splitlines()[-1] for one in shown] == texts


def test_a_hidden_folder_is_a_plugin_without_its_dot(root: Path) -> None:
    (root / ".claude-plugin/plugin.json").unlink()
    plugin = load_plugin(root.rename(root.parent / ".claude"))
    assert (plugin.name, "claude:review" in {skill.name for skill in plugin.skills}) == (
        "claude",
        True,
    )
