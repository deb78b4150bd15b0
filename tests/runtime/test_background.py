"""Background commands outlast calls, are collected later, and end with the conversation."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import LocalRuntime, SandboxedRuntime, ToolCall, ToolContext, ToolManager, ToolResult
from holdfast.runtime import background
from holdfast.runtime.folder import FolderRuntime
from holdfast.runtime.sandbox.mechanisms import MECHANISMS
from tests.waiting import until


@pytest.fixture(params=[LocalRuntime, SandboxedRuntime] if MECHANISMS else [LocalRuntime])
def runtime(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FolderRuntime]:
    work = tmp_path / "work"
    work.mkdir()
    with request.param(work) as backend:
        yield backend


def call(runtime: FolderRuntime, name: str, by: str = "c", **arguments: Any) -> ToolResult:
    context = ToolContext(by, "1.0", runtime=runtime)
    return ToolManager(runtime.all_tools).run(ToolCall("1.0", name, arguments), context)


def start(runtime: FolderRuntime, command: str, by: str = "c") -> str:
    result = call(runtime, "terminal_background", by, command=command)
    assert not result.is_error, result.text
    return result.meta["id"]


def test_a_command_goes_on_beside_others_and_is_collected(runtime: FolderRuntime) -> None:
    call(runtime, "terminal", command="mkdir d; cd d; X=shell")
    id = start(runtime, "echo $X in $(basename $PWD); until [ -e go ]; do sleep 0.01; done; exit 3")
    assert "running for" in call(runtime, "terminal_collect").text
    early = call(runtime, "terminal_collect", id=id, wait=0)
    assert early.meta["running"] is True
    assert call(runtime, "terminal", command="touch go").meta["exitCode"] == 0
    late = call(runtime, "terminal_collect", id=id)
    assert (late.meta["exitCode"], late.meta["running"]) == (3, False)
    assert "shell in d\n" in early.text + late.text
    assert late.text.endswith(f"[{id}: exit code 3]")
    assert call(runtime, "terminal_collect", id=id).text.startswith("(no output)")


@pytest.mark.parametrize(
    ("command", "code"),
    [("if", 2), ("exec false", 1), ("echo 'it'\"'\"'s'", 0), ("kill -9 $BASHPID", 137)],
)
def test_any_end_of_a_command_is_told(runtime: FolderRuntime, command: str, code: int) -> None:
    result = call(runtime, "terminal_collect", id=start(runtime, command))
    assert result.meta["running"] is False
    assert result.meta["exitCode"] == code


def test_stop_ends_a_command_with_all_that_it_started(
    runtime: FolderRuntime, tmp_path: Path
) -> None:
    id = start(runtime, "trap '' TERM; setsid sleep 1000 & echo begun; while :; do sleep 1; done")
    other = start(runtime, "sleep 1000")
    until(lambda: runtime.terminal.process_groups(), "the processes")
    result = call(runtime, "terminal_collect", id=id, stop=True)
    assert "stopped" in result.text
    assert result.meta["endedBy"] == "stop"
    assert call(runtime, "terminal_collect", id=other, wait=0).meta["running"] is True


def test_they_end_with_the_conversation(runtime: FolderRuntime) -> None:
    id = start(runtime, "sleep 1000")
    start(runtime, "sleep 1000", "other")
    runtime.close_conversation("c")
    assert call(runtime, "terminal_collect", id=id).is_error
    assert runtime.terminal.process_groups()
    runtime.close_conversation("other")
    until(lambda: not runtime.terminal.process_groups(), "the end")


def test_output_is_bounded(runtime: FolderRuntime) -> None:
    id = start(runtime, "seq 1 200000; echo end")
    result = call(runtime, "terminal_collect", id=id)
    assert len(result.text) < 40_000
    assert "end\n" in result.text
    assert (result.meta["truncated"], result.meta["exitCode"]) == (True, 0)


def test_the_outcome_of_a_command_of_a_dead_process_is_unknown(runtime: FolderRuntime) -> None:
    result = call(runtime, "terminal_collect", id="bg1-ffffff")
    assert result.meta["outcome"] == "unknown"
    assert "its outcome is unknown" in result.text
    start(runtime, "true")
    own = start(runtime, "true").replace("bg2", "bg9")
    assert "There is no background command" in call(runtime, "terminal_collect", id=own).text


def test_too_many_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "MAX_RUNNING", 1)
    with LocalRuntime(tmp_path) as runtime:
        start(runtime, "sleep 1000")
        assert (
            "1 background commands are running"
            in call(runtime, "terminal_background", command="true").text
        )


def test_a_cancelled_wait_leaves_the_command_alone(tmp_path: Path) -> None:
    with LocalRuntime(tmp_path) as runtime:
        id = start(runtime, "sleep 1000")
        context = ToolContext("c", "1.0", runtime=runtime)
        context.cancelled.cancel()
        began = time.monotonic()
        result = runtime.terminal.collect("c", id, wait=60, cancelled=context.cancelled)
        assert time.monotonic() - began < 30
        assert result.meta["running"] is True
    assert os.listdir(tmp_path) == []
