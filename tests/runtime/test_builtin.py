"""The runtime's tools as a model calls them: through a manager, with arguments that a person
would not send."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import LocalRuntime, ToolCall, ToolManager, ToolResult


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[LocalRuntime]:
    with LocalRuntime(tmp_path) as backend:
        yield backend


def call(runtime: LocalRuntime, name: str, **arguments: Any) -> ToolResult:
    return ToolManager(runtime.tools).run(ToolCall("1.0", name, arguments))


@pytest.mark.parametrize(
    ("name", "arguments", "argument"),
    [
        ("terminal", {"command": "true", "wait": -1}, "wait"),
        ("terminal", {"command": "true", "timeout": 0}, "timeout"),
        ("read_file", {"path": ".", "offset": 0}, "offset"),
        ("read_file", {"path": ".", "limit": -5}, "limit"),
        ("glob", {"pattern": "*", "limit": 0}, "limit"),
        ("grep", {"pattern": "x", "limit": -1}, "limit"),
    ],
)
def test_a_number_that_makes_no_sense_is_refused_by_name(
    runtime: LocalRuntime, name: str, arguments: dict[str, Any], argument: str
) -> None:
    result = call(runtime, name, **arguments)
    assert result.is_error
    assert f"{argument}: input should be greater than" in result.text


def test_a_link_that_leads_in_a_circle_is_listed_like_any_other(runtime: LocalRuntime) -> None:
    os.symlink("loop", runtime.workdir / "loop")
    os.symlink("nowhere", runtime.workdir / "broken")
    (runtime.workdir / "folder").mkdir()
    assert call(runtime, "read_file", path=".").text.splitlines()[1:] == [
        "broken@",
        "folder/",
        "loop@",
    ]


def test_a_form_feed_is_no_line_end_in_a_diff(runtime: LocalRuntime) -> None:
    (runtime.workdir / "f").write_text("a\x0cb\u2028c\nsecond")
    diff = call(runtime, "edit_file", path="f", old="b", new="B").meta["diff"]
    assert diff.splitlines(keepends=True)[0] == "--- f\n"
    assert diff.split("\n")[2:] == [
        "@@ -1,2 +1,2 @@",
        "-a\x0cb\u2028c",
        "+a\x0cB\u2028c",
        " second",
        "\\ No newline at end of file",
        "",
    ]


def test_a_background_process_that_writes_elsewhere_is_not_said_to_write_here(
    runtime: LocalRuntime,
) -> None:
    for _ in range(10):
        assert (
            "still writes"
            not in call(runtime, "terminal", command="nohup setsid sleep 5 > /dev/null 2>&1 &").text
        )
    assert "still writes" in call(runtime, "terminal", command="sleep 5 &").text


def test_half_a_character_in_a_command_is_refused_with_a_reason(runtime: LocalRuntime) -> None:
    assert "half of a surrogate pair" in call(runtime, "terminal", command="echo \ud800").text


def test_each_parameter_of_a_tool_has_a_description_of_its_own(runtime: LocalRuntime) -> None:
    texts = {
        f"{tool.name}.{name}": parameter.get("description", "")
        for tool in runtime.tools
        for name, parameter in tool.input_schema["properties"].items()
    }
    assert [name for name, text in texts.items() if not text] == []
