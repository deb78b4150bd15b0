"""Long real runs of a coding agent in a window that is too small for them: condensed, reopened,
forked, replayed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast import LLM, Agent, Conversation, ConversationStatus, Limits, SQLiteStore, Tool
from holdfast import events as ev
from holdfast.agent.condensers import LLMCondenser, Pipeline, ToolOutputCondenser, WindowCondenser
from holdfast.conversation.replay import replay
from tests.agent.test_condensers import judge
from tests.model_server import ModelServer, text
from tests.paths import SHARED

FOLDER = SHARED / "trajectories"
RUNS = [path for path in sorted(FOLDER.glob("*.json")) if path.stat().st_size > 100_000]

if not RUNS:
    pytest.skip("no recorded runs beside this checkout", allow_module_level=True)


@pytest.mark.slow
@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_a_recorded_run_is_condensed_and_replayed_to_the_last_byte(
    path: Path, tmp_path: Path
) -> None:
    from tests.e2e.test_recorded_runs import Recorded

    recorded = Recorded(path)
    responses = [turn["response"] for turn in recorded.turns]
    for response in responses:  # the recorded usage belongs to other requests than ours
        response.pop("usage")
    replies = iter([*responses, text("Submitted.")])
    largest = 0

    def answer(request: Any) -> Any:
        nonlocal largest
        if "You write the notes by which" in request.messages[0]["content"]:
            return text("## Goal\nRepair it.\n## Open ends\nGo on.")
        judge("openai_chat", request.json)
        largest = max(largest, len(request.body) // 4)
        response = dict(next(replies))
        return {
            **response,
            "usage": {
                "prompt_tokens": len(request.body) // 4,
                "completion_tokens": 50,
                "total_tokens": 1,
            },
        }

    with ModelServer(answer) as server, SQLiteStore(tmp_path / "runs.db", "process") as store:
        llm = LLM("deepseek-chat", api_key="k", base_url=server.url)
        condenser = Pipeline([ToolOutputCondenser(), LLMCondenser(), WindowCondenser()], at=16_000)
        agent = Agent(
            llm,
            [Tool.from_function(recorded.bash)],
            system_prompt=recorded.run["system"],
            condenser=condenser,
            limits=Limits(steps=None),
        )
        with Conversation(agent, store, "run") as conversation:
            conversation.send_message(recorded.run["task"])
            assert conversation.run().status is ConversationStatus.FINISHED
            events = conversation.get_history()
        condensations = [event for event in events if isinstance(event, ev.HistoryCondensed)]
        assert condensations
        assert not [event.failed for event in condensations if event.failed]
        assert largest <= 16_000 * 1.1, "it went over where it begins"
        assert replay(store.read("run"), agent).same
        assert replay(store.read("run")).hashed == len(responses) + 1
        replies = iter([text("In the fork.")] * 2)
        for seq in (condensations[0].seq - 1, condensations[0].seq):
            with Conversation(agent, store, "run") as again, again.fork(seq) as fork:
                fork.send_message("Where are we?")
                assert fork.run().answer in ("In the fork.", "")
                assert replay(fork.get_history(), agent).same
