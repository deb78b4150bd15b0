"""Tests of popular MCP servers, of several makers and in two languages, each over stdio."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import ImageContent, ScriptedLLM
from holdfast.content import ResourceLink
from holdfast.tools.context import ToolContext
from holdfast.tools.mcp import Elicitation, MCPClient
from holdfast.tools.tool import Tool
from tests.data import mcp_parts

pytestmark = pytest.mark.proof


def answer(question: Elicitation) -> dict[str, Any]:
    return {"name": "Ada"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("work")
    subprocess.run(["git", "init", "--quiet", path], check=True)
    (path / "a.txt").write_text("hello")
    return path


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[MCPClient]:
    commands = {
        "time": mcp_parts.command("mcp-server-time"),
        "git": [*mcp_parts.command("mcp-server-git"), "--repository", str(folder)],
        "everything": mcp_parts.program("mcp-server-everything"),
        "files": [*mcp_parts.program("mcp-server-filesystem"), str(folder)],
        "memory": mcp_parts.program("mcp-server-memory"),
    }
    if not mcp_parts.command("mcp-server-time") or not commands["everything"]:
        pytest.skip(f"the servers are not installed: {mcp_parts.INSTALL}")
    config: dict[str, Any] = {
        name: {"command": command[0], "args": command[1:]} for name, command in commands.items()
    }
    config["memory"]["env"] = {"MEMORY_FILE_PATH": str(folder.parent / "memory.json")}
    with MCPClient(
        config, elicit=answer, sample=ScriptedLLM(lambda request: "sampled"), roots=[folder]
    ) as connected:
        connected.tools()  # its thread is older than any test
        yield connected


@pytest.fixture
def tools(client: MCPClient) -> dict[str, Tool]:
    by_tool_name = {tool.name: tool for tool in client}
    assert client.errors == {}
    return by_tool_name


def test_each_lists_its_tools_and_is_well(client: MCPClient, tools: dict[str, Tool]) -> None:
    counts = {
        source.id: sum(name.startswith(f"{source.id}.") for name in tools)
        for source in client.sources()
    }
    assert counts["time"] == 2
    assert counts["git"] >= 12
    assert counts["files"] == 14
    assert counts["memory"] == 9
    # some of its tools come a moment later, once it knows the client's abilities
    assert counts["everything"] >= 13
    health = {source.id: source.health(10.0) for source in client.sources()}
    assert all(one.ok for one in health.values())
    assert "MCP 2026-07-28" in health["time"].detail
    assert "MCP 2025-11-25" in health["files"].detail


def test_each_does_its_work(tools: dict[str, Tool], folder: Path) -> None:
    assert "UTC" in tools["time.get_current_time"].run({"timezone": "UTC"}).text
    assert "a.txt" in tools["git.git_status"].run({"repo_path": str(folder)}).text
    assert tools["files.read_text_file"].run({"path": str(folder / "a.txt")}).data == {
        "content": "hello"
    }
    assert tools["files.read_text_file"].run({"path": "/etc/hostname"}).is_error
    entity = {"name": "Ada", "entityType": "person", "observations": ["counts"]}
    tools["memory.create_entities"].run({"entities": [entity]})
    assert tools["memory.read_graph"].run({}).data["entities"] == [entity]


def test_the_one_with_everything_gets_everything(client: MCPClient) -> None:
    [source] = [one for one in client.sources() if one.id == "everything"]
    tools = {tool.name.partition(".")[2]: tool for tool in source.discover()}
    steps: list[str] = []
    assert tools["get-sum"].run({"a": 1, "b": 2}).text == "The sum of 1 and 2 is 3."
    tools["trigger-long-running-operation"].run(
        {"duration": 1, "steps": 4}, ToolContext(progress=steps.append)
    )
    assert steps == ["1/4", "2/4", "3/4", "4/4"]
    assert any(isinstance(block, ImageContent) for block in tools["get-tiny-image"].run({}).content)
    assert any(
        isinstance(block, ResourceLink)
        for block in tools["get-resource-links"].run({"count": 2}).content
    )
    assert "temperature" in tools["get-structured-content"].run({"location": "Chicago"}).data
    assert "work" in tools["get-roots-list"].run({}).text
    assert "sampled" in tools["trigger-sampling-request"].run({"prompt": "x", "maxTokens": 10}).text
    assert "Name: Ada" in tools["trigger-elicitation-request"].run({}).text
