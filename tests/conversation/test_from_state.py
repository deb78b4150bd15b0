"""Calls and runs in progress, in a copy (`from_state`), in a fork and in a resumed run."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    Agent,
    Conversation,
    ConversationState,
    ConversationStatus,
    Limits,
    MemoryStore,
    ScriptedLLM,
    SQLiteStore,
    tool,
)
from holdfast import events as ev
from holdfast.agent.condensers import WindowCondenser
from holdfast.commands import Resume
from holdfast.errors import ConfigurationError
from holdfast.store import Store

S = ConversationStatus


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with (
        MemoryStore() if request.param == "memory" else SQLiteStore(tmp_path / "s.db", "process")
    ) as backend:
        yield backend


class Effects:
    """A tool that counts its effects, and one that stays in its call until it is released."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.entered = threading.Event()
        self.go_on = threading.Event()

        @tool
        def write(text: str) -> str:
            """Writes."""
            self.texts.append(text)
            return f"wrote {text}"

        @tool
        def hold() -> str:
            """Waits."""
            self.entered.set()
            assert self.go_on.wait(20)
            return "held"

        self.tools = [write, hold]


def results(conversation: Conversation) -> list[ev.ToolCallFinished]:
    return [event for event in conversation.get_history() if isinstance(event, ev.ToolCallFinished)]


def last(state: ConversationState, kind: type[ev.Event]) -> int:
    return max(event.seq for event in state.events if isinstance(event, kind))


# --- from_state ---


def test_a_call_that_waits_for_a_decision_still_waits_in_a_copy(store: Store) -> None:
    effects = Effects()
    agent = Agent(
        ScriptedLLM([("write", {"text": "a"}), "done", "done"]), effects.tools, confirm="always"
    )
    with Conversation(agent, store) as original:
        original.send_message("write a")
        original.run()
        state = ConversationState.from_json(original.state.to_json())
    with Conversation.from_state(state, agent, store, "copy") as copy:
        assert copy.status is S.WAITING_FOR_CONFIRMATION
        (waiting,) = copy.state.pending_confirmations
        assert (waiting.call.name, waiting.call.arguments) == ("write", {"text": "a"})
        assert results(copy) == []
        copy.run()
        assert (copy.status, effects.texts) == (S.WAITING_FOR_CONFIRMATION, [])
        copy.approve(arguments_hash=waiting.arguments_hash, call_id=waiting.call.id)
        assert copy.run().status is S.FINISHED
        assert effects.texts == ["a"]
    with Conversation.from_state(state, agent, store, "other") as other:
        other.reject()
        assert other.run().status is S.FINISHED
    assert effects.texts == ["a"]


def test_a_call_that_was_approved_and_had_not_begun_waits_again_in_a_copy(store: Store) -> None:
    effects = Effects()
    agent = Agent(ScriptedLLM([("write", {"text": "a"}), "done"]), effects.tools, confirm="always")
    with Conversation(agent, store) as original:
        original.send_message("write a")
        original.run()
        original.approve(original.state.pending_confirmations[0].call.id, arguments={"text": "b"})
        state = original.state
    with Conversation.from_state(state, agent, store, "copy") as copy:
        (waiting,) = copy.state.pending_confirmations
        assert "needs an approval of its own" in waiting.reason
        assert waiting.call.arguments == {"text": "a"}
        copy.run()
        assert (copy.status, effects.texts) == (S.WAITING_FOR_CONFIRMATION, [])
        copy.approve()
        assert copy.run().status is S.FINISHED
    assert effects.texts == ["a"]  # the approval given here, not the one given in the original


def test_calls_that_had_not_begun_run_in_a_copy_and_those_that_had_are_unknown(
    store: Store,
) -> None:
    effects = Effects()
    calls = [("hold", {}), ("write", {"text": "a"})]
    model = ScriptedLLM([calls, "done", "done"])
    with Conversation(Agent(model, effects.tools), store) as original:
        original.send_message("go")
        original.start_thread()
        assert effects.entered.wait(20)
        whole = original.state
        effects.go_on.set()
        assert original.wait(20)
    started_ids = {event.call_id for event in whole.events if isinstance(event, ev.ToolCallStarted)}
    state = whole.at(
        next(event.seq for event in whole.events if isinstance(event, ev.ToolCallStarted))
    )
    open_then = [call.id for call in state.pending_calls]
    assert len(open_then) == 2
    effects.texts.clear()
    first = next(event.call_id for event in state.events if isinstance(event, ev.ToolCallStarted))
    assert first in started_ids
    with Conversation.from_state(
        state, Agent(ScriptedLLM(["done"]), effects.tools), store, "copy"
    ) as copy:
        (unknown,) = results(copy)
        assert unknown.call_id == first
        assert unknown.result.meta == {"outcome": "unknown"}
        assert unknown.result.error is not None
        assert unknown.result.error.type == "unknown"
        assert copy.run().status is S.FINISHED
        assert effects.texts == ["a"]
        assert [event.result.text for event in results(copy)][1:] == ["wrote a"]


@pytest.mark.parametrize("way", ["export", "from_state"])
def test_a_copy_and_an_import_leave_the_same_calls_open(
    store: Store, tmp_path: Path, way: str
) -> None:
    from holdfast.store.transfer import export_conversation, import_conversations

    effects = Effects()
    agent = Agent(
        ScriptedLLM([[("write", {"text": "a"}), ("write", {"text": "b"})], "done"]),
        effects.tools,
        confirm="always",
    )
    with Conversation(agent, store, "c") as original:
        original.send_message("go")
        original.run()
        original.reject(original.state.pending_confirmations[0].call.id)
        state = original.state
    if way == "export":
        import_conversations(store, list(export_conversation(store, "c")), "copy")
        copy = Conversation(agent, store, "copy")
    else:
        copy = Conversation.from_state(state, agent, store, "copy")
    with copy:
        assert [call.id for call in copy.state.pending_calls] == [
            call.id for call in state.pending_calls
        ]
        assert copy.state.pending_confirmations == state.pending_confirmations
        assert copy.status is state.status


# --- fork ---


def test_a_fork_says_of_a_call_that_ran_in_the_parent_that_its_outcome_is_unknown(
    store: Store,
) -> None:
    effects = Effects()
    model = ScriptedLLM([[("hold", {}), ("write", {"text": "a"})], "done", "forked"])
    with Conversation(Agent(model, effects.tools, parallel_calls=1), store) as original:
        original.send_message("go")
        original.start_thread()
        assert effects.entered.wait(20)
        with original.fork() as fork:
            outcomes = {event.call_id: event.result for event in results(fork)}
            started = {
                event.call_id
                for event in fork.get_history()
                if isinstance(event, ev.ToolCallStarted)
            }
            assert len(started) == 1
            for call_id, result in outcomes.items():
                assert result.error is not None
                if call_id in started:
                    assert (result.error.type, result.meta) == ("unknown", {"outcome": "unknown"})
                    assert "Not run" not in result.text
                else:
                    assert result.error.type == "cancelled"
                    assert result.text.startswith("Not run here")
            assert set(outcomes) == {call.id for call in original.state.pending_calls}
        effects.go_on.set()
        assert original.wait(20)


# --- a pause during the last model call ---


class Slow(ScriptedLLM):
    """A model whose answer waits for an event."""

    def __init__(self, script: list[Any]) -> None:
        super().__init__(script)
        self.in_model_call = threading.Event()
        self.answer = threading.Event()

    def completion(self, *args: Any, **options: Any) -> Any:
        self.in_model_call.set()
        assert self.answer.wait(20)
        return super().completion(*args, **options)


@pytest.mark.parametrize("how", ["thread", "run", "inbox"])
def test_a_run_that_was_paused_during_its_last_model_call_is_finished_after_resume(
    store: Store, how: str
) -> None:
    model = Slow(["the answer"])
    with Conversation(Agent(model), store, "c") as conversation:
        conversation.send_message("hello")
        conversation.start_thread()
        assert model.in_model_call.wait(20)
        conversation.pause()
        model.answer.set()
        assert conversation.wait(20)
        assert (conversation.status, conversation.state.answer) == (S.PAUSED, "the answer")
        if how == "thread":
            conversation.resume()
        elif how == "inbox":
            store.post("c", Resume())
        if how != "run":
            finished = next(
                event
                for event in store.follow("c", 0, 20)
                if isinstance(event, ev.StatusChanged) and event.status == "finished"
            )
            assert finished.seq == conversation.state.last_seq
    if how == "run":
        with Conversation(Agent(model), store, "c") as again:
            assert again.run().status is S.FINISHED
    assert len(model.requests) == 1


def test_a_conversation_that_was_paused_at_rest_rests_after_resume(store: Store) -> None:
    with Conversation(Agent(ScriptedLLM(["a"])), store) as conversation:
        conversation.pause()
        conversation.resume()
        assert conversation.status is S.IDLE
        conversation.send_message("hello")
        assert conversation.run().status is S.FINISHED
        conversation.pause()
        conversation.resume()
        assert conversation.status is S.IDLE


def state_of(*events: dict[str, Any]) -> ConversationState:
    for seq, event in enumerate(events, 1):
        event.update(seq=seq, id=f"e{seq}", timestamp="2026-01-01T00:00:00")
    form = {"version": 1, "id": "x", "status": "idle", "events": list(events)}
    return ConversationState.from_json(json.dumps(form))


MESSAGE = {"type": "message", "content": [{"type": "text", "text": "hi"}]}


def test_a_state_whose_times_have_no_zone_and_that_says_closed_goes_on(store: Store) -> None:
    state = state_of(
        {**MESSAGE}, {"type": "status", "status": "running"}, {"type": "status", "status": "closed"}
    )
    agent = Agent(ScriptedLLM(["Hello."]), limits=Limits(seconds=10**9))
    with Conversation.from_state(state, agent, store) as conversation:
        assert conversation.run().answer == "Hello."


def test_a_call_with_a_foreign_id_is_refused(store: Store) -> None:
    answer = {"type": "assistant", "calls": [{"id": "call_abc", "name": "t", "arguments": {}}]}
    state = state_of({**MESSAGE}, {"type": "status", "status": "running"}, answer)
    with pytest.raises(ConfigurationError, match=r"event 3 has the id 'call_abc'.* such as '3\.0'"):
        Conversation.from_state(state, Agent(ScriptedLLM(["x"])), store, "copy")
    assert not store.read("copy")


@pytest.mark.parametrize(
    "ids",
    [
        ("3.0", "3.0"),
        ("3.1", "3.x"),
        ("3", "3.0"),
        ("03.0", "3.1"),
        ("3.0", "3.01"),
        ("3.0.1", "3.0"),
        ("3.0\n", "3.1"),
        ("3.\u0661", "3.0"),
        ("", "3.0"),
        ("2.0", "3.0"),
    ],
)
def test_calls_with_odd_or_equal_ids_are_refused(store: Store, ids: tuple[str, ...]) -> None:
    answer = {
        "type": "assistant",
        "calls": [{"id": id, "name": "t", "arguments": {}} for id in ids],
    }
    state = state_of({**MESSAGE}, {"type": "status", "status": "running"}, answer)
    with pytest.raises(ConfigurationError, match=r"different ids such as '3\.0'"):
        Conversation.from_state(state, Agent(ScriptedLLM(["x"])), store, "copy")
    assert not store.read("copy")


def test_a_result_of_a_foreign_call_is_left_out(store: Store) -> None:
    result = {"type": "toolResult", "callId": "call_abc", "result": {"content": []}}
    agent = Agent(ScriptedLLM(["One.", "Two."]), condenser=WindowCondenser())
    with Conversation.from_state(state_of({**MESSAGE}, result), agent, store) as conversation:
        conversation.send_message("Go on.")
        assert conversation.run().answer == "One."
        conversation.condense()
        conversation.send_message("Go on.")
        assert conversation.run().answer == "Two."
