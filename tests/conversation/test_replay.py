"""Replay: the present code makes from a journal the original requests, byte for byte, or
describes the first difference."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import (
    LLM,
    Agent,
    Conversation,
    ConversationState,
    ConversationStatus,
    Limits,
    MemoryStore,
    ScriptedLLM,
    SQLiteStore,
    Tool,
    tool,
)
from holdfast import events as ev
from holdfast.agent import view as view_module
from holdfast.conversation import replay as replay_module
from holdfast.conversation.replay import replay, requests
from holdfast.llm.wires import openai_chat
from tests.model_server import ModelServer, text
from tests.waiting import until


@tool
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


def fetch(url: str) -> str:
    """Fetches."""
    time.sleep(0.01 * (3 - len(url) % 3))  # so that results arrive in another order than the calls
    return f"page {url}"


def busy_conversation(store: Any = None) -> tuple[Conversation, ScriptedLLM, Agent]:
    """Return a conversation with messages during model and tool calls, parallel calls, tools
    that change in the middle, a pause and an empty answer; its model; and its agent."""
    conversation: Conversation

    def thinking(request: Any) -> Any:
        conversation.send_message("By the way, hurry.")
        return [
            ("fetch", {"url": "a"}),
            ("fetch", {"url": "bb"}),
            ("fetch", {"url": "ccc"}),
            ("add", {"a": 1, "b": 2}),
        ]

    def asks(context: Any = None) -> str:
        """Says something while it runs."""
        conversation.send_message("And be polite.")
        return "said"

    def changes(request: Any) -> Any:
        agent.tools.register(Tool("later", "Came later.", lambda: "later"))
        agent.tools.unregister("asks")
        return [("fetch", {"url": "d"})]

    llm = ScriptedLLM(
        [thinking, ("asks", {}), changes, ("later", {}), "", "Done, please.", "You are welcome."]
    )
    agent = Agent(
        llm,
        [add, Tool.from_function(fetch, parallel=True), Tool("asks", "Asks.", asks)],
        parallel_calls=3,
    )
    conversation = Conversation(agent, store, "c")
    conversation.send_message("Go.")
    conversation.start_thread()
    assert conversation.wait(20) is ConversationStatus.FINISHED
    conversation.send_message("Thanks!")
    conversation.pause()
    conversation.resume()
    assert conversation.wait(20) is ConversationStatus.FINISHED
    return conversation, llm, agent


def bodies(events: Sequence[ev.AnyEvent]) -> list[bytes]:
    return [request.body for request in requests(events)]


def test_a_lively_conversation_is_replayed_byte_for_byte(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "s.db", "process") as store:
        conversation, llm, agent = busy_conversation(store)
        conversation.close()
        recorded = [request.body for request in llm.requests]
        assert len(recorded) == 7
        events = store.read("c")
    assert bodies(events) == recorded
    heads = [event for event in events if isinstance(event, ev.AgentConfigured)]
    assert [[tool.name for tool in head.tools] for head in heads] == [
        ["add", "fetch", "asks"],
        ["add", "fetch", "later"],
    ]
    # Compared with the present agent: the journal decides which tools existed at each request, but
    # one of them no longer exists.
    assert replay(events).same
    assert (
        str(replay(events))
        == "7 model requests replayed, 7 of them compared to the last byte: all the same"
    )
    result = replay(events, agent)
    assert result.difference is not None
    assert "tool 'asks':\n- it is there\n+ the agent has no such tool" in result.difference.text
    agent.tools.register(
        Tool(
            "asks", "Asks.", next(iter([lambda: "never run"])), {"type": "object", "properties": {}}
        )
    )
    assert result.difference.request == 1


def test_nothing_is_run_and_nothing_is_asked_in_a_replay() -> None:
    ran: list[int] = []

    @tool
    def effect() -> str:
        """Has an effect."""
        ran.append(1)
        return "done"

    llm = ScriptedLLM([("effect", {}), "Done."])
    with Conversation(agent := Agent(llm, [effect])) as conversation:
        conversation.send_message("go")
        conversation.run()
        assert conversation.replay(agent).same
        assert conversation.replay().same
    assert ran == [1]
    assert len(llm.requests) == 2


def record(**changes: Any) -> tuple[list[ev.AnyEvent], dict[str, Any]]:
    parts: dict[str, Any] = {
        "llm": ScriptedLLM([("add", {"a": 1, "b": 2}), "3."]),
        "tools": [add],
        "system_prompt": "Add.\nBe exact.",
    }
    with Conversation(Agent(**parts)) as conversation:
        conversation.send_message("1 + 2?")
        conversation.run()
        return conversation.get_history(), {**parts, **changes}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        (
            {"system_prompt": "Add.\nBe very exact."},
            "system prompt:\n@@ -1,2 +1,2 @@\n Add.\n-Be exact.\n+Be very exact.",
        ),
        ({"llm": ScriptedLLM([], model="newer")}, "model:\n- scripted\n+ newer"),
        ({"tools": []}, "tool 'add':\n- it is there\n+ the agent has no such tool"),
        (
            {"tools": [add, Tool("more", "", lambda: 1)]},
            "tool 'more':\n- there is no such tool\n+ the agent has it",
        ),
        (
            {"tools": [Tool.from_function(add.callback, "add", "Adds up.")]},
            '-  "description": "Adds.",\n+  "description": "Adds up.",',
        ),  # pyright: ignore
        (
            {"limits": Limits(steps=1)},
            "- the model is asked\n+ the run is over: error: the limit of 1 steps is reached",
        ),
    ],
)
def test_the_first_request_that_differs_is_told_readably(
    changes: dict[str, Any], expected: str | None
) -> None:
    events, parts = record(**changes)
    result = replay(events, Agent(**parts))
    if expected is None:
        assert result.same
        assert result.hashed == result.requests == 2
    else:
        assert result.difference is not None
        assert expected in result.difference.text
        assert str(result).startswith(
            f"request {result.difference.request}, event {result.difference.seq}:\n"
        )


def test_a_wire_that_writes_messages_in_another_way_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events, _ = record()
    plain = openai_chat.results
    monkeypatch.setattr(
        openai_chat,
        "results",
        lambda *arguments: plain(*arguments).replace(b'"tool"', b'"function"'),
    )
    result = replay(events)
    assert result.difference is not None
    assert result.difference.request == 2
    assert '"role": "function"' in result.difference.text
    assert result.requests == result.hashed == 2


def test_a_view_that_orders_in_another_way_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(url: str) -> str:
        """Read; the first call ends after the result of the second one is in the journal."""
        if url == "a":
            until(lambda: any(type(e) is ev.ToolCallFinished for e in conversation.get_history()))
        return f"page {url}"

    llm = ScriptedLLM([[("read", {"url": "a"}), ("read", {"url": "bb"})], "Done."])
    agent = Agent(llm, [Tool.from_function(read, parallel=True)], parallel_calls=2)
    with Conversation(agent, id="c") as conversation:
        conversation.send_message("Go.")
        conversation.run()
        events = conversation.get_history()
    arrived = [event.call_id for event in events if isinstance(event, ev.ToolCallFinished)]
    assert arrived == sorted(arrived, reverse=True)
    assert replay(events).same

    def by_arrival(self: Any, event: ev.ToolCallFinished) -> None:
        call = self._batch.pop(event.call_id)[0]
        self._place(int(event.call_id.split(".")[0]), (call, event.result))

    monkeypatch.setattr(view_module.View, "_result", by_arrival)
    assert not replay(events).same


def test_a_loop_that_decides_otherwise_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    conversation, _, _ = busy_conversation()
    conversation.close()
    events = conversation.get_history()
    monkeypatch.setattr(replay_module, "nudge_for", lambda answer: None)  # pyright: ignore
    result = replay(events)
    assert result.difference is not None
    assert "After the answer the model is told" in result.difference.text
    monkeypatch.undo()
    end = next(
        event
        for event in events
        if isinstance(event, ev.StatusChanged) and event.status == "finished"
    )
    unanswered = ev.MessageAdded(seq=end.seq, id="x", timestamp=end.timestamp, content=())
    moved = [*events[: end.seq - 1], unanswered, msgspec.structs.replace(end, seq=end.seq + 1)]
    result = replay(moved)
    assert result.difference is not None
    assert (result.difference.seq, result.difference.text) == (
        end.seq + 1,
        "- the run is over: finished\n+ the model is asked",
    )


def test_a_real_models_requests_are_known_again_by_their_hash() -> None:
    with ModelServer([text("Hello."), text("Bye.")]) as server:
        llm = LLM("openai/gpt-5", "key", server.url, temperature=0.5)
        with Conversation(agent := Agent(llm, [add])) as conversation:
            for word in ("Hi.", "Bye."):
                conversation.send_message(word)
                conversation.run()
            assert str(conversation.replay(agent)).startswith(
                "2 model requests replayed, 2 of them"
            )
            assert not conversation.replay(Agent(llm.replace(temperature=0.6), [add])).same
            state = ConversationState.from_json(conversation.state.to_json())
        assert replay(state.events, agent).same


def test_a_journal_without_requests_replays_to_nothing() -> None:
    assert replay([]).same
    with Conversation(Agent(ScriptedLLM([])), MemoryStore()) as conversation:
        conversation.send_message("unanswered")
        assert (
            str(conversation.replay())
            == "0 model requests replayed, 0 of them compared to the last byte: all the same"
        )


def test_replay_does_not_disturb_a_running_conversation() -> None:
    gate = threading.Event()

    @tool
    def wait() -> str:
        """Waits."""
        gate.wait(10)
        return "waited"

    with Conversation(Agent(ScriptedLLM([("wait", {}), "Done."]), [wait])) as conversation:
        conversation.send_message("go")
        conversation.start_thread()
        while not any(
            isinstance(event, ev.ToolCallStarted) for event in conversation.get_history()
        ):
            time.sleep(0.005)
        assert conversation.replay().requests == 1
        gate.set()
        assert conversation.wait(10) is ConversationStatus.FINISHED
        assert conversation.replay().requests == 2


def test_an_end_at_a_limit_and_the_order_of_tools_are_compared_with_the_agents() -> None:
    llm = ScriptedLLM([("add", {"a": 1, "b": 2}), ("add", {"a": 1, "b": 2}), "3."])
    other = Tool("other", "Another.", lambda: 1)
    with Conversation(Agent(llm, [add, other], limits=Limits(steps=2))) as conversation:
        conversation.send_message("1 + 2?")
        assert conversation.run().status is ConversationStatus.ERROR
        assert conversation.replay(Agent(llm, [add, other], limits=Limits(steps=2))).same
        assert conversation.replay().same
        result = conversation.replay(Agent(llm, [add, other]))
        assert result.difference is not None
        assert result.difference.text.endswith("+ the model is asked")
        result = conversation.replay(Agent(llm, [other, add], limits=Limits(steps=2)))
        assert result.difference is not None
        assert "order of the tools:\n- add, other\n+ other, add" in result.difference.text


def test_a_fork_at_an_empty_answer_replays_the_same() -> None:
    with Conversation(Agent(ScriptedLLM(["", "Hello."]))) as conversation:
        conversation.send_message("hi")
        conversation.run()
        empty = next(
            event.seq
            for event in conversation.get_history()
            if isinstance(event, ev.AssistantReplied)
        )
        with conversation.fork(empty, Agent(ScriptedLLM(["Yes?"]))) as fork:
            fork.send_message("well?")
            assert fork.run().answer == "Yes?"
            assert fork.replay().same
