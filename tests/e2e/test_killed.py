"""A real process, a real SQLite file, and a real SIGKILL in the middle of a tool; then the
conversation continues in this process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import (
    Agent,
    Conversation,
    ConversationStatus,
    ScriptedLLM,
    SQLiteStore,
    Tool,
    ToolAnnotations,
)
from holdfast import events as ev
from tests import forks

PROGRAM = """
import os, time
from holdfast import Agent, Conversation, ScriptedLLM, SQLiteStore, Tool

def effect(name: str) -> str:
    with open(name, "a") as file:
        file.write("x")
    if name != "first":
        os.write(1, name.encode() + b"\\n")  # one write: two threads print
        time.sleep(60)
    return name

model = ScriptedLLM([[("effect", {"name": name}) for name in ("first", "second", "third")]])
conversation = Conversation(Agent(model, [Tool("effect", "Has an effect.", effect, parallel=True)], parallel_calls=2), SQLiteStore("s.db"), "c")
conversation.send_message("go")
conversation.run()
"""


def kill_in_the_second_call(folder: Path) -> None:
    """Kill a process that makes two parallel calls and a third one. The first call has ended;
    the second and the third are running."""
    child = forks.Popen(
        [sys.executable, "-c", PROGRAM], cwd=folder, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert {child.stdout.readline().strip(), child.stdout.readline().strip()} == {"second", "third"}
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()


def go_on(
    folder: Path, annotations: ToolAnnotations
) -> tuple[dict[str, ev.ToolCallFinished], list[str], str]:
    again: list[str] = []

    def effect(name: str) -> str:
        again.append(name)
        return f"{name} again"

    model = ScriptedLLM(["I will check."])
    with SQLiteStore(folder / "s.db") as store:
        agent = Agent(
            model,
            [Tool("effect", "Has an effect.", effect, annotations=annotations, parallel=True)],
        )
        with Conversation(agent, store, "c") as conversation:
            conversation.start_thread()
            assert conversation.wait(10) is ConversationStatus.FINISHED
            results = {
                event.call_id.split(".")[1]: event
                for event in conversation.get_history()
                if isinstance(event, ev.ToolCallFinished)
            }
    return results, again, model.requests[0].text


def test_no_effect_is_repeated_and_the_model_is_told_that_the_outcome_is_unknown(
    tmp_path: Path,
) -> None:
    kill_in_the_second_call(tmp_path)
    results, again, last_request = go_on(tmp_path, ToolAnnotations())
    assert again == []
    assert [(tmp_path / name).read_text() for name in ("first", "second", "third")] == [
        "x",
        "x",
        "x",
    ]
    assert results["0"].result.text == "first"  # the result of a finished call is kept
    assert results["1"].result.meta == results["2"].result.meta == {"outcome": "unknown"}
    assert "unknown" in last_request


@pytest.mark.slow
def test_what_may_be_repeated_is_repeated_once(tmp_path: Path) -> None:
    kill_in_the_second_call(tmp_path)
    results, again, _ = go_on(tmp_path, ToolAnnotations(idempotent=True))
    assert sorted(again) == ["second", "third"]
    assert results["2"].result.text == "third again"
