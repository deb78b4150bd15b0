"""All features of an agent at once: the process is killed at every append, the journal is folded in
every way and replayed, and other processes continue it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import (
    Agent,
    Conversation,
    ConversationState,
    ConversationStatus,
    Limits,
    ScriptedLLM,
    SQLiteStore,
    Tool,
    ToolAnnotations,
    ToolCall,
)
from holdfast import events as ev
from holdfast.agent.condensers import WindowCondenser
from holdfast.agent.confirmation import AboveRisk
from holdfast.agent.security import Annotations
from holdfast.conversation.state import Fold, fold
from holdfast.llm.scripted import ScriptedRequest
from holdfast.runtime import Microagent
from holdfast.testing import assert_replays, crash_at_every_append
from holdfast.tools.hooks import Add, Hook
from holdfast.tools.preset.asking import register_asking_tools
from tests.samples import in_sample, one_in

S = ConversationStatus


class Report(msgspec.Struct):
    """The structured output of the run."""

    total: int


def next_answer(request: ScriptedRequest) -> Any:
    """Return the model's next answer, chosen by the calls in its request."""
    names = [
        call.name
        for item in request.transcript.items
        if isinstance(item, ev.AssistantReplied)
        for call in item.calls
    ]
    steps: list[Any] = [
        [
            ToolCall(
                "",
                "plan",
                {"steps": [{"step": "count", "state": "in_progress"}, {"step": "report"}]},
            )
        ],
        [ToolCall("", "add", {"number": 1}), ToolCall("", "add", {"number": 2})],
        [ToolCall("", "delegate", {"agent": "helper", "task": "Count to 3."})],
        [
            ToolCall(
                "",
                "plan",
                {
                    "steps": [
                        {"step": "count", "state": "done"},
                        {"step": "report", "state": "in_progress"},
                    ]
                },
            )
        ],
        "I think that it is 6.",  # invalid output, to be repaired
        [ToolCall("", "finish", {"total": "six"})],
        [ToolCall("", "finish", {"total": 6})],
    ]
    answers = [item for item in request.transcript.items if isinstance(item, ev.AssistantReplied)]
    return steps[min(len(answers), len(steps) - 1)] if names or not answers else steps[0]


def make(folder: Path) -> Agent:
    def add(number: int) -> str:
        """Add a number."""
        with (folder / "added.txt").open("a") as file:
            file.write(f"{number}\n")
        return f"added {number}"

    return Agent(
        ScriptedLLM(next_answer),
        [
            Tool.from_function(
                add, annotations=ToolAnnotations(destructive=False, open_world=False)
            ),
            *register_asking_tools(),
        ],
        system_prompt="You count.",
        planning="first",
        confirm=AboveRisk("medium"),
        security=Annotations(),
        microagents=[Microagent("numbers", "Numbers are added.", triggers=("count",))],
        hooks=[
            Hook(on="model", before=lambda *_: Add("Be exact."), name="exact"),
            Hook(on="tool", before=lambda *_: None, after=lambda *_: None),
            Hook(on="stop", before=lambda *_: None),
        ],
        delegates={"helper": Agent(ScriptedLLM(["1, 2, 3."]), system_prompt="You help.")},
        output_type=Report,
        tree_limits=Limits(steps=100),
        condenser=WindowCondenser(),
    )


def program(store: SQLiteStore, folder: Path) -> None:
    with Conversation(make(folder), store, "c") as conversation:
        if not conversation.state.events:
            conversation.send_message("Count, please.")
        state = conversation.run()
        while state.status is S.WAITING_FOR_CONFIRMATION:
            conversation.approve()
            state = conversation.run()


def fold_fields(state: Fold) -> dict[str, Any]:
    """Return every field of a fold, for a comparison."""
    fields: dict[str, Any] = {}
    for name in Fold.__slots__:
        if name in ("sizes", "_uncounted", "_usage"):
            continue
        value = getattr(state, name)
        if name == "open":
            value = {
                id: {slot: getattr(item, slot) for slot in type(item).__slots__}
                for id, item in value.items()
            }
        elif (
            hasattr(type(value), "__slots__")
            and not isinstance(value, msgspec.Struct)
            and type(value).__module__.startswith("holdfast")
        ):
            value = {
                slot: getattr(value, slot) for slot in type(value).__slots__ if hasattr(value, slot)
            }
        fields[name] = value
    return {**fields, "usage": state.usage}


def run(folder: Path) -> ConversationState:
    with SQLiteStore(folder / "s.db") as store:
        program(store, folder)
        return Conversation(make(folder), store, "c").state


def test_everything_at_once_comes_to_its_end(tmp_path: Path) -> None:
    state = run(tmp_path)
    assert state.status is S.FINISHED
    assert state.output == {"total": 6}
    assert sorted((tmp_path / "added.txt").read_text().split()) == ["1", "2"]
    assert [step.state for step in state.plan] == ["done", "in_progress"]
    abouts = {
        event.about.partition("#")[0]
        for event in state.events
        if isinstance(event, ev.MessageAdded) and event.about
    }
    assert {"skill:numbers", "hook:exact", "output:repair"} <= abouts
    assert_replays(list(state.events))
    assert_replays(list(state.events), make(tmp_path))


def test_its_journal_is_folded_the_same_in_every_way(tmp_path: Path) -> None:
    events = run(tmp_path).events
    step = Fold()
    for index, event in enumerate(events, 1):
        step.apply(event)
        at_once = fold(events[:index])
        assert fold_fields(at_once) == fold_fields(step), event
        assert fold_fields(step.copy()) == fold_fields(step)
        split = fold(events[: index // 2])
        split.take(events[index // 2 : index])
        assert fold_fields(split) == fold_fields(step), event


@pytest.mark.slow
def test_it_goes_on_from_any_event_of_its_journal(tmp_path: Path) -> None:
    whole = run(tmp_path)
    for seq in range(1, whole.last_seq + 1):
        with Conversation.from_state(whole.at(seq), make(tmp_path)) as conversation:
            conversation.send_message("Go on, count.")
            state = conversation.run()
            while state.status is S.WAITING_FOR_CONFIRMATION:
                conversation.approve()
                state = conversation.run()
            assert state.status is S.FINISHED, (seq, state.error)
            assert state.output == {"total": 6}
            assert_replays(list(state.events))


@pytest.mark.proof
def test_everything_at_once_survives_a_kill_at_every_append(tmp_path: Path) -> None:
    kills = 0
    for crash in crash_at_every_append(program, folder=tmp_path, points=in_sample):
        kills += 1
        state = ConversationState("c", crash.after)
        assert state.status is S.FINISHED, str(crash)
        assert state.output == {"total": 6}
        file = (
            crash.folder / "added.txt"
        )  # the effect is missing if the process died between the calls' starts and their effects
        added = file.read_text().split() if file.exists() else []
        assert len(added) == len(set(added)), str(crash)
        assert len(crash.after_journals) == len(crash.reference_journals), str(
            crash
        )  # there is no second child
        for journal in crash.after_journals.values():
            assert_replays(list(journal))
    assert kills > 40 // one_in(1)
