"""The edit tools by a model's name, and the tools that an agent gets on request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from holdfast import Agent, LocalRuntime, SandboxedRuntime, ScriptedLLM, ToolCall, ToolManager
from holdfast.agent.risk import Surroundings
from holdfast.agent.security.rules import RiskRules
from holdfast.content import ToolResult
from holdfast.errors import ConfigurationError
from holdfast.runtime import editor_for
from holdfast.runtime.editors import Editor
from holdfast.runtime.sandbox.mechanisms import MECHANISMS

PATCH = "*** Begin Patch\n*** Update File: {}\n@@\n-a\n+b\n*** End Patch"


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[LocalRuntime]:
    with LocalRuntime(tmp_path) as runtime:
        yield runtime


def call(runtime: LocalRuntime | SandboxedRuntime, name: str, **arguments: Any) -> ToolResult:
    return ToolManager(runtime.all_tools).run(ToolCall("1.0", name, arguments))


@pytest.mark.parametrize(
    ("model", "editor"),
    [
        ("claude-sonnet-4-5", "str_replace"),
        ("anthropic/claude-3-5-haiku", "str_replace"),
        ("us.anthropic.claude-opus-4-1-v1:0", "str_replace"),
        ("gpt-5.2", "apply_patch"),
        ("openai/gpt-4.1-mini", "apply_patch"),
        ("azure/my-gpt5-codex", "apply_patch"),
        ("codex-mini-latest", "apply_patch"),
        ("o3", "apply_patch"),
        ("o4-mini", "apply_patch"),
        ("openai/gpt-oss-120b", "apply_patch"),
        ("gpt-4o", "edit_file"),
        ("gpt-3.5-turbo", "edit_file"),
        ("gemini-3-pro", "edit_file"),
        ("qwen3-coder", "edit_file"),
        ("foo3", "edit_file"),
        ("", "edit_file"),
    ],
)
def test_the_editor_follows_from_the_models_name(model: str, editor: str) -> None:
    assert editor_for(model) == editor


def test_the_tools_are_those_of_the_editor_and_no_others(runtime: LocalRuntime) -> None:
    names = [tool.name for tool in runtime.tools_for("claude-sonnet-4-5")]
    assert names == ["terminal", "terminal_input", "str_replace_based_edit_tool", "glob", "grep"]
    usual = {tool.name for tool in runtime.tools_for("unknown")}
    assert usual == {tool.name for tool in runtime.tools}
    chosen = runtime.tools_for("claude", editor="edit_file", also=["apply_patch"])
    assert [tool.name for tool in chosen][2:6] == ["read_file", "write_file", "edit_file", "glob"]
    assert chosen[-1].name == "apply_patch"
    assert {"apply_patch", "str_replace_based_edit_tool"}.isdisjoint(usual)


def test_an_unknown_tool_or_editor_is_refused_by_name(runtime: LocalRuntime) -> None:
    with pytest.raises(ConfigurationError, match="no tool 'patch'"):
        runtime.tools_for("", also=["patch"])
    with pytest.raises(ConfigurationError, match="not 'vi'"):
        runtime.tools_for("", editor=cast("Editor", "vi"))


def test_an_agent_with_such_tools_survives_its_serial_form(runtime: LocalRuntime) -> None:
    agent = Agent(ScriptedLLM([]), runtime.tools_for("gpt-5"))
    form = Agent(ScriptedLLM([]), []).to_json()
    assert b"apply_patch" not in form
    assert b"apply_patch" in agent.to_json()


def test_the_editor_views_creates_replaces_and_inserts(runtime: LocalRuntime) -> None:
    tool = "str_replace_based_edit_tool"
    call(runtime, tool, command="create", path="f", file_text="a\nb\nc\n")
    call(runtime, tool, command="str_replace", path="f", old_str="b", new_str="B")
    call(runtime, tool, command="insert", path="f", insert_line=0, insert_text="start")
    call(runtime, tool, command="insert", path="f", insert_line=4, insert_text="end\n")
    call(runtime, tool, command="str_replace", path="f", old_str="c\n")
    assert runtime.read_file("f") == "start\na\nB\nend\n"
    view = call(runtime, tool, command="view", path="f", view_range=[2, 3])
    assert view.text.splitlines()[:2] == ["     2\ta", "     3\tB"]
    assert call(runtime, tool, command="view", path="f", view_range=[3, -1]).text.endswith("end")
    assert call(runtime, tool, command="view", path=".").text.endswith("f")


def test_an_insertion_keeps_line_ends_and_a_missing_one(runtime: LocalRuntime) -> None:
    path = runtime.workdir / "f"
    path.write_bytes(b"a\r\nb")
    runtime.files.insert("f", 2, "c\nd")
    assert path.read_bytes() == b"a\r\nb\r\nc\r\nd\r\n"


@pytest.mark.parametrize(
    "arguments",
    [
        {"command": "create"},
        {"command": "str_replace"},
        {"command": "insert", "insert_text": "x"},
        {"command": "insert", "insert_line": 0},
        {"command": "insert", "insert_line": 9, "insert_text": "x"},
        {"command": "view", "view_range": [3]},
        {"command": "view", "view_range": [0, 2]},
        {"command": "view", "view_range": [3, 2]},
    ],
)
def test_a_command_without_its_arguments_is_refused(
    runtime: LocalRuntime, arguments: dict[str, Any]
) -> None:
    runtime.write_file("f", "a\n")
    assert call(runtime, "str_replace_based_edit_tool", path="f", **arguments).is_error
    assert runtime.read_file("f") == "a\n"


@pytest.mark.parametrize("tool", ["apply_patch", "write_file"])
def test_the_risk_of_a_patch_is_that_of_its_paths(runtime: LocalRuntime, tool: str) -> None:
    def level(path: str) -> str:
        arguments = {"patch": PATCH.format(path)}
        if tool == "write_file":
            arguments = {"path": path, "content": ""}
        patch_tool = next(one for one in runtime.all_tools if one.name == tool)
        about = Surroundings(annotations=patch_tool.annotations, workdir=str(runtime.workdir))
        risk = RiskRules().assess(ToolCall("1.0", tool, arguments), about)
        assert risk is not None
        return risk.level

    assert level("src/a.py") == "medium"
    assert level("/etc/passwd") == "high"
    assert level(".git/hooks/pre-commit") == level("~/.bashrc") == "high"


@pytest.mark.skipif(not MECHANISMS, reason="no sandbox here")
def test_a_patch_in_a_sandbox_changes_the_work_folder_alone(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / "host").write_text("a\n")
    (work / "link").symlink_to(tmp_path / "host")
    (work / ".git" / "hooks").mkdir(parents=True)
    with SandboxedRuntime(work, workdir_inside="/work") as runtime:
        runtime.run_command("echo a > /work/f; ln -s / root")
        assert not call(runtime, "apply_patch", patch=PATCH.format("/work/f")).is_error
        for path in (str(tmp_path / "host"), "link", ".git/config", f"root{tmp_path}/host"):
            assert call(runtime, "apply_patch", patch=PATCH.format(path)).is_error
        assert runtime.run_command("cat f").text.startswith("b\n")
    assert (tmp_path / "host").read_text() == "a\n"
