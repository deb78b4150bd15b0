"""Tests of memory in two folders: the project's notes come before the user's, and neither leaves
its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast import LocalRuntime, ToolCall, ToolContext, ToolManager
from holdfast.tools.preset.memory_tiers import make_two_tier_memory, two_tier_index


@pytest.fixture
def memory(tmp_path: Path) -> ToolManager:
    return ToolManager(make_two_tier_memory(tmp_path / "user", tmp_path / "project"))


def call(memory: ToolManager, name: str, **arguments: Any) -> str:
    return memory.run(ToolCall("1.0", name, arguments)).text


def test_notes_go_where_their_path_says(memory: ToolManager, tmp_path: Path) -> None:
    call(memory, "memory_write", path="user/style.md", text="# Style\nshort")
    call(memory, "memory_write", path="build.md", text="# Build\nmake")
    assert (tmp_path / "user" / "style.md").read_text() == "# Style\nshort"
    assert (tmp_path / "project" / "build.md").read_text() == "# Build\nmake"
    listed = call(memory, "memory_read")
    assert listed.index("build.md") < listed.index("About the user") < listed.index("style.md")
    assert listed in two_tier_index(tmp_path / "user", tmp_path / "project")
    matches = call(memory, "memory_read", search="m")
    assert matches.index("build.md:2: make") < matches.index("About the user")


def test_the_projects_note_comes_first(memory: ToolManager) -> None:
    call(memory, "memory_write", path="user/a.md", text="the user's")
    assert call(memory, "memory_read", path="a.md") == "the user's"
    call(memory, "memory_write", path="a.md", text="the project's")
    assert call(memory, "memory_read", path="a.md") == "the project's"
    assert call(memory, "memory_read", path="user/a.md") == "the user's"
    call(memory, "memory_write", path="a.md", action="delete")
    assert call(memory, "memory_read", path="a.md") == "the user's"


@pytest.mark.parametrize("path", ["../x", "user/../../x", "user/../project/x", "/etc/x"])
def test_no_path_leads_out_of_its_folder(memory: ToolManager, path: str, tmp_path: Path) -> None:
    assert memory.run(ToolCall("1.0", "memory_write", {"path": path, "text": "x"})).is_error
    assert not (tmp_path / "x").exists()


def test_without_a_folder_the_projects_notes_are_in_the_work_folder(tmp_path: Path) -> None:
    tools = ToolManager(make_two_tier_memory(tmp_path / "user"))
    arguments = {"path": "a.md", "text": "x"}
    with LocalRuntime(tmp_path) as runtime:
        context = ToolContext("c", "1.0", runtime=runtime)
        assert not tools.run(ToolCall("1.0", "memory_write", arguments), context).is_error
    assert (tmp_path / ".holdfast" / "memory" / "a.md").exists()
    assert tools.run(ToolCall("1.0", "memory_write", arguments)).is_error


def test_an_empty_memory_says_so(memory: ToolManager, tmp_path: Path) -> None:
    assert call(memory, "memory_read") == "There are no notes yet."
    assert two_tier_index(tmp_path / "user", tmp_path / "project") == ""
