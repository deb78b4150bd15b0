"""Eight real runs of a coding agent, replayed end to end: a server gives their answers, and a
tool gives their outputs."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    LLM,
    Agent,
    Conversation,
    ConversationStatus,
    Limits,
    SQLiteStore,
    Tool,
    ToolResult,
)
from holdfast import events as ev
from tests.model_server import ModelServer, text
from tests.paths import SHARED

FOLDER = SHARED / "trajectories"
RUNS = sorted(FOLDER.glob("*.json"))

if not RUNS:
    pytest.skip("no recorded runs beside this checkout", allow_module_level=True)


class Recorded:
    """A run's turns, as a model server's responses and a bash tool's outputs."""

    def __init__(self, path: Path) -> None:
        self.run: dict[str, Any] = json.loads(path.read_text())
        self.turns = [turn for turn in self.run["turns"] if turn["response"] is not None]
        self.outputs = iter([output for turn in self.turns for output in turn["tool_outputs"]])
        self.given: list[str] = []

    def bash(self, command: str) -> ToolResult:
        """Runs a command, as recorded."""
        output = next(self.outputs, None)
        if output is None:  # the last turn's command prints the submission
            return ToolResult(self.run.get("submission", ""), meta={"exitCode": 0})
        assert output["command"] == command
        self.given.append(output.get("exception") or output["output"])
        if output.get("exception"):
            return ToolResult.failure(
                output["exception"], "timeout", meta={"exitCode": output["returncode"]}
            )
        return ToolResult(output["output"], meta={"exitCode": output["returncode"]})


@pytest.mark.slow
@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
@pytest.mark.parametrize("backend", ["memory", "sqlite"])
def test_a_recorded_run_is_in_the_journal_turn_by_turn(
    path: Path, backend: str, tmp_path: Path
) -> None:
    recorded = Recorded(path)
    responses = [turn["response"] for turn in recorded.turns]
    store = SQLiteStore(tmp_path / "runs.db", "process") if backend == "sqlite" else None
    with ModelServer([*responses, text("Submitted.")]) as server:
        llm = LLM("deepseek-chat", api_key="k", base_url=server.url)
        bash = Tool.from_function(recorded.bash)
        agent = Agent(llm, [bash], system_prompt=recorded.run["system"], limits=Limits(steps=None))
        with Conversation(agent, store, "run") as conversation:
            conversation.send_message(recorded.run["task"])
            state = conversation.run()
        assert state.status is ConversationStatus.FINISHED
        requests = list(server.requests)
    events = state.events if store is None else store.read("run")
    if store is not None:
        assert tuple(events) == state.events  # the disk holds the events of the run
        store.close()
    answers = [event for event in events if isinstance(event, ev.AssistantReplied)]
    assert len(answers) == len(responses) + 1
    for answer, response in zip(answers, responses, strict=False):
        message = response["choices"][0]["message"]
        assert answer.text == (message["content"] or "")
        assert answer.reasoning == (message.get("reasoning_content") or "")
        assert [call.raw_arguments for call in answer.calls] == [
            c["function"]["arguments"] for c in message["tool_calls"]
        ]
        assert [call.provider_id for call in answer.calls] == [
            c["id"] for c in message["tool_calls"]
        ]
        assert answer.usage.input_tokens == response["usage"]["prompt_tokens"]
        assert answer.usage.output_tokens == response["usage"]["completion_tokens"]
        assert answer.usage.cached_input_tokens == response["usage"]["prompt_cache_hit_tokens"]
    results = [event.result for event in events if isinstance(event, ev.ToolCallFinished)]
    assert [result.text for result in results[: len(recorded.given)]] == recorded.given
    calls = sum(len(answer.calls) for answer in answers)
    assert (
        len(results)
        == calls
        == len([event for event in events if isinstance(event, ev.ToolCallStarted)])
    )
    _each_request_begins_with_the_one_before(requests)


def _each_request_begins_with_the_one_before(requests: list[Any]) -> None:
    """Check that each request begins with the one before, byte for byte, up to the bracket that
    closes the messages. A provider's prefix cache needs this."""
    for earlier, later in itertools.pairwise(requests):
        closing = json.dumps(earlier.messages[-1]["content"])[-10:].encode()
        same = earlier.body[: earlier.body.rindex(closing)]
        assert later.body.startswith(same)
        assert later.messages[: len(earlier.messages)] == earlier.messages
