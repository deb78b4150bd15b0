"""A conversation, end to end, with a scripted model and real tools, threads and stores."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    Agent,
    Conversation,
    ConversationState,
    ConversationStatus,
    Hook,
    Limits,
    MemoryStore,
    Message,
    ScriptedLLM,
    SQLiteStore,
    TextContent,
    Tool,
    ToolAnnotations,
    ToolCall,
    ToolContext,
    ToolResult,
    tool,
)
from holdfast import events as ev
from holdfast.conversation.hook_points import HookPoints
from holdfast.errors import (
    AuthenticationError,
    ConfigurationError,
    ConversationBusy,
    ConversationClosed,
    LeaseHeld,
    StoreError,
)
from holdfast.llm.completion import Completion
from holdfast.object_struct import ObjectStruct
from tests.leftovers import Owned
from tests.waiting import until

RUNNING, FINISHED, PAUSED = (
    ConversationStatus.RUNNING,
    ConversationStatus.FINISHED,
    ConversationStatus.PAUSED,
)


@tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def types(conversation: Conversation) -> list[str]:
    return [event.type for event in conversation.get_history()]


def results(conversation: Conversation) -> list[str]:
    return [
        event.result.text
        for event in conversation.get_history()
        if isinstance(event, ev.ToolCallFinished)
    ]


def last_messages(model: ScriptedLLM) -> list[dict[str, Any]]:
    """Return the messages of the model's last request, as its API would have received them."""
    return model.requests[-1].messages


class Gate:
    """A tool that reports when a call entered it and waits until it is opened."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.open = threading.Event()
        self.tool = Tool("gate", "Waits.", self.pass_through)

    def pass_through(self, context: ToolContext) -> str:
        self.entered.set()
        while not self.open.wait(0.005):
            context.cancelled.raise_if_set()
        return "through"


# --- the loop ---


def test_a_run_is_messages_answers_starts_and_results_in_that_order() -> None:
    model = ScriptedLLM([("add", {"a": 1, "b": 2}), "It is 3."])
    with Conversation(Agent(model, [add])) as conversation:
        conversation.send_message("What is 1 + 2?")
        state = conversation.run()
        assert types(conversation) == [
            "message",
            "status",
            "agent",
            "assistant",
            "toolCallStarted",
            "toolResult",
            "assistant",
            "status",
        ]
        assert [event.seq for event in state.events] == list(range(1, 9))
        assert state.status is FINISHED
        assert state.answer == "It is 3."
        assert results(conversation) == ["3"]
    assert conversation.status is ConversationStatus.CLOSED


def test_the_call_id_is_ours_and_the_idempotency_key_is_made_of_it() -> None:
    contexts: list[ToolContext] = []

    @tool
    def look(context: ToolContext) -> None:
        """Looks."""
        contexts.append(context)

    with Conversation(Agent(ScriptedLLM([("look", {}), "ok"]), [look]), id="c") as conversation:
        conversation.send_message("go")
        conversation.run()
        started = next(
            event for event in conversation.get_history() if isinstance(event, ev.ToolCallStarted)
        )
    assert (started.call_id, started.idempotency_key, started.attempt) == ("4.0", "c:4.0", 1)
    assert (contexts[0].conversation_id, contexts[0].call_id, contexts[0].idempotency_key) == (
        "c",
        "4.0",
        "c:4.0",
    )


def test_a_message_to_a_started_conversation_sets_running_before_it_returns() -> None:
    gate = Gate()
    with Conversation(Agent(ScriptedLLM([("gate", {}), "done"]), [gate.tool])) as conversation:
        conversation.start_thread()
        conversation.start_thread()
        assert conversation.state.status is ConversationStatus.IDLE
        conversation.send_message("go")
        assert conversation.state.status is RUNNING
        gate.open.set()
        assert conversation.wait(30) is FINISHED


def test_a_message_sent_while_the_model_answers_is_answered_before_the_run_is_finished() -> None:
    conversation: Conversation

    def interrupted_by_a_message(request: object) -> str:
        conversation.send_message("and this")
        return "first"

    model = ScriptedLLM([interrupted_by_a_message, "second"])
    with Conversation(Agent(model)) as conversation:
        conversation.send_message("this")
        assert conversation.run().answer == "second"
        answers = [
            event for event in conversation.get_history() if isinstance(event, ev.AssistantReplied)
        ]
        assert [answer.based_on for answer in answers] == [3, 5]
        assert [m["content"] for m in last_messages(model) if m["role"] != "system"] == [
            "this",
            "first",
            "and this",
        ]


def test_results_are_journaled_as_they_finish_and_shown_in_call_order() -> None:
    order = [threading.Event(), threading.Event(), threading.Event()]

    @tool(parallel=True)
    def turn(n: int) -> str:
        """Waits for the next one to be done."""
        if n < 2:
            assert order[n + 1].wait(30)
        order[n].set()
        return f"turn {n}"

    model = ScriptedLLM([[("turn", {"n": n}) for n in range(3)], "ok"])
    with Conversation(Agent(model, [turn])) as conversation:
        conversation.send_message("go")
        conversation.run()
        assert results(conversation)[0] == "turn 2"
        assert [m["content"] for m in last_messages(model) if m["role"] == "tool"] == [
            "turn 0",
            "turn 1",
            "turn 2",
        ]


def test_no_more_calls_run_at_once_than_the_agent_allows() -> None:
    now, most, lock = [0], [0], threading.Lock()

    @tool(parallel=True)
    def work() -> None:
        """Works."""
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.01)
        with lock:
            now[0] -= 1

    with Conversation(
        Agent(ScriptedLLM([[("work", {})] * 10, "ok"]), [work], parallel_calls=3)
    ) as conversation:
        conversation.send_message("go")
        conversation.run()
        assert most == [3]
        starts = [
            event.seq
            for event in conversation.get_history()
            if isinstance(event, ev.ToolCallStarted)
        ]
        assert starts[:3] == [
            5,
            6,
            7,
        ]  # in one append with the answer; the others start when a place is free
        assert len(starts) == len(results(conversation)) == 10


def test_an_agent_event_is_written_once_and_again_when_the_tools_change() -> None:
    agent = Agent(ScriptedLLM(["one", "two", "three"]), [add])
    with Conversation(agent) as conversation:
        for text in ("a", "b"):
            conversation.send_message(text)
            conversation.run()
        assert types(conversation).count("agent") == 1
        agent.tools.register(Tool("late", "Came late.", lambda: None))
        agent.tools.unregister("add")
        agent.tools.register(add)
        conversation.send_message("c")
        conversation.run()
        last = [
            event for event in conversation.get_history() if isinstance(event, ev.AgentConfigured)
        ]
        assert [definition.name for definition in last[-1].tools] == [
            "add",
            "late",
        ]  # the provider's cached prefix stays in front


def test_tools_work_in_conversations_of_their_own_at_any_depth() -> None:
    def nest(depth: int) -> str:
        if depth == 0:
            return "bottom"
        inner = Agent(
            ScriptedLLM([("nest", {"depth": depth - 1}), lambda request: request.text]),
            [Tool.from_function(nest)],
        )
        with Conversation(inner) as conversation:
            conversation.start_thread()
            conversation.send_message("down")
            assert conversation.wait(10) is FINISHED
            return conversation.state.answer

    assert nest(5) == "bottom"


# --- failures, and the messages that tell the model ---


def bad_call(**fields: Any) -> Completion:
    return Completion(calls=(ToolCall("", "add", **fields),), stop_reason="tool_calls")


def fails(n: int) -> int:
    """Fails."""
    raise RuntimeError(f"no {n} today")


BAD = {
    "an unknown tool": (
        ("ad", {}),
        "Unknown tool 'ad'. Did you mean 'add'? This agent has: add, fails, nonsense, leaves.",
    ),
    "arguments that are no JSON": (
        bad_call(invalid="its arguments are not JSON: expected '}' at 7.", raw='{"a": 1'),
        "not JSON",
    ),
    "arguments that do not fit": (("add", {"a": "x", "c": 1}), "b is required"),
    "a raising callback": (("fails", {"n": 1}), "'fails' failed: RuntimeError: no 1 today"),
    "a callback that returns nonsense": (("nonsense", {}), "returned an object, which is not JSON"),
    "a callback that exits the program": (("leaves", {}), "SystemExit"),
}


@pytest.mark.parametrize("name", BAD)
def test_the_model_is_told_and_the_conversation_goes_on_after(name: str) -> None:
    call, problem = BAD[name]

    def leaves() -> None:
        raise SystemExit(3)

    tools = [add, fails, Tool("nonsense", "", lambda: object()), Tool("leaves", "", leaves)]
    with Conversation(Agent(ScriptedLLM([call, "I see."]), tools)) as conversation:
        conversation.send_message("go")
        state = conversation.run()
        assert state.status is FINISHED
        assert state.answer == "I see."
        result = next(
            event.result for event in state.events if isinstance(event, ev.ToolCallFinished)
        )
        assert result.is_error
        assert problem in result.text


def test_an_empty_answer_is_told_what_to_do_and_the_run_goes_on() -> None:
    model = ScriptedLLM(["", "Here I am."])
    with Conversation(Agent(model)) as conversation:
        conversation.send_message("go")
        state = conversation.run()
        assert (state.status, state.answer) == (FINISHED, "Here I am.")
        message = [event for event in state.events if isinstance(event, ev.MessageAdded)][1]
        assert message.sender == "holdfast"
        assert "empty" in message.text


def test_an_answer_cut_off_at_the_output_limit_is_not_taken_for_the_end() -> None:
    model = ScriptedLLM([Completion(text="The answer is", stop_reason="length"), "42."])
    with Conversation(Agent(model)) as conversation:
        conversation.send_message("go")
        assert conversation.run().answer == "42."


def test_three_empty_answers_in_a_row_are_stuck_and_a_message_starts_anew() -> None:
    with Conversation(Agent(ScriptedLLM(["", "", " ", "better"]))) as conversation:
        conversation.send_message("go")
        assert conversation.run().status is ConversationStatus.STUCK
        conversation.send_message("say something")
        assert conversation.run().status is FINISHED


def test_a_model_error_is_journaled_with_its_fields_and_resume_tries_again() -> None:
    model = ScriptedLLM(
        [AuthenticationError("wrong key", status=401, code="invalid_api_key"), "better"]
    )
    with Conversation(Agent(model)) as conversation:
        conversation.start_thread()
        conversation.send_message("go")
        assert conversation.wait(30) is ConversationStatus.ERROR
        error = conversation.state.error
        assert error is not None
        assert (error.error, error.details["status"], error.details["code"]) == (
            "AuthenticationError",
            401,
            "invalid_api_key",
        )
        conversation.resume()
        assert conversation.wait(30) is FINISHED
        assert conversation.state.error is None


def test_a_run_stops_at_its_limit_and_a_new_message_has_a_new_one() -> None:
    model = ScriptedLLM(lambda request: ("add", {"a": 1, "b": 1}))
    with Conversation(Agent(model, [add], limits=Limits(steps=3))) as conversation:
        for total in (3, 6):
            conversation.send_message("go")
            state = conversation.run()
            assert state.status is ConversationStatus.ERROR
            assert state.steps == total
            assert state.error is not None
            assert state.error.error == "LimitExceeded"
            assert state.error.details == {
                "type": "steps",
                "value": 3,
                "limit": 3,
                "source": f"Conversation {conversation.id!r}",
            }


def test_a_store_that_fails_stops_the_run_and_says_so() -> None:
    class Full(MemoryStore):
        def append(self, lease: Any, batch: Any) -> bool:
            if any(isinstance(event, ev.ToolCallFinished) for event in batch.events):
                raise StoreError("disk full")
            return super().append(lease, batch)

    model = ScriptedLLM([("add", {"a": 1, "b": 1}), "never"])
    with Conversation(Agent(model, [add]), Full()) as conversation:
        conversation.send_message("go")
        with pytest.raises(StoreError, match="disk full"):
            conversation.run()
        assert conversation.status is ConversationStatus.ERROR
        with pytest.raises(StoreError, match="disk full"):
            conversation.send_message("again")
        assert types(conversation)[-1] == "toolCallStarted"


# --- pause, interrupt, close ---


def test_pause_lets_the_running_call_end_and_steps_no_further() -> None:
    gate = Gate()
    with Conversation(Agent(ScriptedLLM([("gate", {}), "done"]), [gate.tool])) as conversation:
        conversation.start_thread()
        conversation.send_message("go")
        assert gate.entered.wait(30)
        conversation.pause()
        gate.open.set()
        assert conversation.wait(30) is PAUSED
        assert results(conversation) == ["through"]
        conversation.send_message("more")
        assert conversation.status is PAUSED
        conversation.resume()
        assert conversation.wait(30) is FINISHED


def test_a_pause_survives_and_an_unfinished_run_goes_on(tmp_path: Path) -> None:
    gate = Gate()
    with SQLiteStore(tmp_path / "s.db") as store:
        with Conversation(Agent(ScriptedLLM([("gate", {})]), [gate.tool]), store, "c") as first:
            first.start_thread()
            first.send_message("go")
            assert gate.entered.wait(30)
            first.pause()
            gate.open.set()
            first.wait(30)
        with Conversation(Agent(ScriptedLLM(["done"]), [gate.tool]), store, "c") as second:
            second.start_thread()
            assert second.wait(30) is PAUSED
            second.resume()
            assert second.wait(30) is FINISHED
            assert second.state.answer == "done"


def test_close_in_the_middle_of_a_run_leaves_it_to_be_gone_on_with(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "s.db") as store:
        with Conversation(Agent(ScriptedLLM(["never"], delay=30)), store, "c") as first:
            first.start_thread()
            first.send_message("go")
        with Conversation(Agent(ScriptedLLM(["done"])), store, "c") as second:
            assert second.status is RUNNING
            second.start_thread()
            assert second.wait(30) is FINISHED


def test_interrupt_cancels_a_running_model_call_at_once() -> None:
    with Conversation(Agent(ScriptedLLM(["slow", "quick"], delay=30))) as conversation:
        conversation.start_thread()
        conversation.send_message("go")
        until(lambda: "agent" in types(conversation))
        began = time.monotonic()
        conversation.interrupt()
        assert conversation.wait(30) is PAUSED
        assert time.monotonic() - began < 20
        assert "assistant" not in types(conversation)


def test_interrupt_stops_running_calls_and_answers_those_that_wait() -> None:
    gate = Gate()
    model = ScriptedLLM([[("gate", {}), ("add", {"a": 1, "b": 1})], "stopped"])
    with Conversation(Agent(model, [gate.tool, add], parallel_calls=1)) as conversation:
        conversation.start_thread()
        conversation.send_message("go")
        assert gate.entered.wait(30)
        conversation.interrupt()
        assert conversation.wait(30) is PAUSED
        outcomes = {
            event.call_id: event.result
            for event in conversation.get_history()
            if isinstance(event, ev.ToolCallFinished)
        }
        assert [result.error.type for result in outcomes.values() if result.error] == [
            "cancelled",
            "cancelled",
        ]
        assert "Not run" in outcomes["4.1"].text
        conversation.resume()
        assert conversation.wait(30) is FINISHED


def test_interrupt_at_rest_does_nothing() -> None:
    with Conversation(Agent(ScriptedLLM(["one", "two"]))) as conversation:
        conversation.send_message("go")
        conversation.run()
        conversation.interrupt()
        conversation.send_message("again")
        assert conversation.run().answer == "two"


def test_ctrl_c_in_run_pauses_and_the_next_run_goes_on() -> None:
    def ctrl_c(request: object) -> str:
        raise KeyboardInterrupt

    with Conversation(Agent(ScriptedLLM([ctrl_c, "done"]))) as conversation:
        conversation.send_message("go")
        with pytest.raises(KeyboardInterrupt):
            conversation.run()
        assert conversation.status is PAUSED
        assert conversation.run().answer == "done"


def test_ctrl_c_in_a_tool_is_journaled_and_raised() -> None:
    def ctrl_c() -> None:
        raise KeyboardInterrupt

    with Conversation(
        Agent(ScriptedLLM([("t", {}), "done"]), [Tool("t", "", ctrl_c)])
    ) as conversation:
        conversation.send_message("go")
        with pytest.raises(KeyboardInterrupt):
            conversation.run()
        assert conversation.status is PAUSED
        assert "KeyboardInterrupt" in results(conversation)[0]
        assert conversation.run().answer == "done"


@pytest.mark.slow
def test_close_ends_threads_in_mid_call_and_everything_after_it_is_refused() -> None:
    gate = Gate()
    before = Owned()
    conversation = Conversation(Agent(ScriptedLLM([[("gate", {})] * 3]), [gate.tool]))
    conversation.register_event_callback(lambda event: None)
    conversation.start_thread()
    conversation.send_message("go")
    assert gate.entered.wait(30)
    began = time.monotonic()
    conversation.close()
    conversation.close()
    assert time.monotonic() - began < 20
    assert before.new_threads() == 0
    for action in (
        conversation.run,
        conversation.start_thread,
        conversation.pause,
        conversation.resume,
        conversation.interrupt,
    ):
        with pytest.raises(ConversationClosed):
            action()
    with pytest.raises(ConversationClosed):
        conversation.send_message("hello?")
    assert conversation.state.status is ConversationStatus.CLOSED
    assert conversation.wait(30) is ConversationStatus.CLOSED


def test_a_callback_that_ignores_its_cancellation_is_reported_and_does_not_hold_up_close(
    caplog: pytest.LogCaptureFixture,
) -> None:
    release, entered = threading.Event(), threading.Event()

    @tool
    def stubborn() -> None:
        """Does not listen."""
        entered.set()
        release.wait(20)

    conversation = Conversation(Agent(ScriptedLLM([("stubborn", {})]), [stubborn]))
    conversation.start_thread()
    conversation.send_message("go")
    assert entered.wait(30)
    with caplog.at_level(logging.WARNING, "holdfast"):
        began = time.monotonic()
        conversation.close(timeout=0.2)
        assert time.monotonic() - began < 15
    assert "still run" in caplog.text
    release.set()


def test_a_tool_may_close_its_own_conversation() -> None:
    conversation: Conversation

    @tool
    def leave() -> str:
        """Ends it."""
        conversation.close()
        return "bye"

    conversation = Conversation(Agent(ScriptedLLM([("leave", {})]), [leave]))
    conversation.start_thread()
    conversation.send_message("go")
    until(
        lambda: (
            conversation.status is ConversationStatus.CLOSED and conversation.hosting.journal.closed
        )
    )
    assert results(conversation) == ["bye"]


def test_waiting_on_oneself_raises_instead_of_waiting_forever() -> None:
    conversation: Conversation
    raised: list[type[BaseException]] = []

    @tool
    def wait() -> None:
        """Waits for its own conversation."""
        for action in (conversation.wait, conversation.run):
            try:
                action()
            except ConversationBusy as error:
                raised.append(type(error))

    with Conversation(
        Agent(ScriptedLLM([[("wait", {}), ("wait", {})], "ok"]), [wait])
    ) as conversation:
        conversation.start_thread()
        conversation.send_message("go")
        assert conversation.wait(30) is FINISHED
    assert raised == [ConversationBusy] * 4


def test_what_a_tool_asked_to_have_cleaned_up_is_cleaned_up_at_close() -> None:
    cleaned: list[str] = []

    @tool
    def open_things(context: ToolContext) -> None:
        """Opens."""
        context.on_close("a", lambda: cleaned.append("a"))
        context.on_close("b", lambda: 1 / 0)
        context.on_close("b", lambda: cleaned.append("b"))

    with Conversation(
        Agent(ScriptedLLM([("open_things", {}), "ok"]), [open_things])
    ) as conversation:
        conversation.send_message("go")
        conversation.run()
        assert cleaned == []
    assert cleaned == ["b", "a"]


# --- callbacks ---


def test_callbacks_get_every_event_once_in_order_on_another_thread() -> None:
    seqs: list[int] = []
    threads: set[threading.Thread] = set()

    def listen(event: ev.AnyEvent) -> None:
        seqs.append(event.seq)
        threads.add(threading.current_thread())
        if event.seq == 3:
            raise ValueError("a bad moment")

    with Conversation(
        Agent(ScriptedLLM([("add", {"a": 1, "b": 1})] * 20 + ["ok"]), [add])
    ) as conversation:
        conversation.register_callback(listen)
        conversation.start_thread()
        conversation.send_message("go")
        conversation.wait(30)
        last = conversation.state.last_seq
    assert seqs == list(range(1, last + 1))
    assert threading.current_thread() not in threads
    assert len(threads) == 1


def test_a_subscription_begins_after_the_seq_it_is_given() -> None:
    seqs: list[int] = []
    with Conversation(Agent(ScriptedLLM(["ok"]))) as conversation:
        conversation.send_message("go")
        conversation.run()
        last = conversation.state.last_seq
        conversation.register_event_callback(lambda event: seqs.append(event.seq), after_seq=2)
    assert seqs == list(range(3, last + 1))


def test_a_listener_that_raises_harms_only_itself(caplog: pytest.LogCaptureFixture) -> None:
    def raising(*arguments: object) -> None:
        raise ValueError("not listening")

    @tool
    def report(context: ToolContext) -> str:
        """Reports."""
        context.report_progress("half way")
        return "done"

    model = ScriptedLLM([("report", {}), "fine"], stream=True)
    with Conversation(
        Agent(model, [report]), on_delta=raising, on_progress=raising
    ) as conversation:
        conversation.send_message("go")
        state = conversation.run()
    assert (state.status, state.answer) == (FINISHED, "fine")
    assert "not listening" in caplog.text


def test_progress_is_told_as_it_happens_and_not_journaled() -> None:
    notices: list[tuple[str, str]] = []

    @tool
    def report(context: ToolContext) -> str:
        """Reports."""
        context.report_progress("half way")
        return "done"

    agent = Agent(ScriptedLLM([("report", {}), "fine"]), [report])
    with Conversation(
        agent, on_progress=lambda call_id, message: notices.append((call_id, message))
    ) as conversation:
        conversation.send_message("go")
        state = conversation.run()
    assert notices == [("4.0", "half way")]
    assert b"half way" not in state.to_json()


def test_a_callback_may_send_messages_and_close() -> None:
    conversation: Conversation

    def listen(event: ev.AnyEvent) -> None:
        if isinstance(event, ev.AssistantReplied) and event.text == "one":
            conversation.send_message("again")
        if isinstance(event, ev.AssistantReplied) and event.text == "two":
            conversation.close()

    conversation = Conversation(Agent(ScriptedLLM(["one", "two"])))
    conversation.register_event_callback(listen)
    conversation.start_thread()
    conversation.send_message("go")
    until(lambda: conversation.hosting.journal.closed)


# --- state and stores ---


def test_a_state_goes_through_json_and_on_with_another_agent() -> None:
    with Conversation(Agent(ScriptedLLM([("add", {"a": 1, "b": 2}), "three"]), [add])) as first:
        first.send_message("1 + 2?")
        first.run()
        data = first.get_state().to_json()
    state = ConversationState.from_json(data)
    assert state.to_json() == data
    model = ScriptedLLM(["still three"], model="another")
    with Conversation.from_state(state, Agent(model, system_prompt="Be brief.")) as second:
        assert second.id != first.id
        second.send_message("sure?")
        assert second.run().answer == "still three"
        assert [m["role"] for m in last_messages(model)] == [
            "system",
            "user",
            "assistant",
            "tool",
            "assistant",
            "user",
        ]
        assert last_messages(model)[0]["content"] == "Be brief."


def test_a_call_that_had_begun_in_a_state_is_not_run_a_second_time() -> None:
    gate = Gate()
    with Conversation(
        Agent(
            ScriptedLLM([[("gate", {}), ("add", {"a": 1, "b": 1})]]),
            [gate.tool, add],
            parallel_calls=1,
        )
    ) as first:
        first.start_thread()
        first.send_message("go")
        assert gate.entered.wait(30)
        state = first.state
        assert len(state.pending_calls) == 2
    with Conversation.from_state(state, Agent(ScriptedLLM(["ok"]), [gate.tool, add])) as second:
        assert second.run().status is FINISHED
        unknown, added = results(second)
        assert "Its outcome is unknown" in unknown
        assert added == "2"  # this call had no start


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{}", b'{"version": 2, "id": "x", "status": "idle", "events": []}', b"\xff"],
)
def test_what_is_no_state_is_refused(data: bytes) -> None:
    with pytest.raises(ConfigurationError, match="state"):
        ConversationState.from_json(data)


def test_the_second_to_open_a_conversation_is_told_who_holds_it(tmp_path: Path) -> None:
    agent = Agent(ScriptedLLM(["one", "two"]))
    with SQLiteStore(tmp_path / "s.db") as store, Conversation(agent, store, "c") as first:
        first.send_message("mine")
        second = Conversation(agent, store, "c")  # the constructor only reads
        assert [event.type for event in second.get_history()] == ["message"]
        for action in (
            second.start_thread,
            second.run,
            second.pause,
            lambda: second.send_message("no, mine"),
        ):
            with pytest.raises(LeaseHeld, match="process") as caught:
                action()
            assert caught.value.conversation_id == "c"
        first.run()
        first.close()
        second.send_message("now mine")
        assert second.run().answer == "two"
        second.close()


def test_a_started_call_that_lost_its_process_is_repeated_only_if_it_may_be() -> None:
    ran: list[str] = []

    def effect(context: ToolContext) -> str:
        ran.append(f"{context.call_id} attempt {context.attempt}")
        return "done"

    store = MemoryStore()
    lease = store.acquire("c")
    now = datetime.now(UTC)
    calls = (ToolCall("3.0", "plain"), ToolCall("3.1", "safe"), ToolCall("3.2", "plain"))
    parts: list[Any] = [
        (ev.MessageAdded, {"content": (TextContent("go"),)}),
        (ev.StatusChanged, {"status": "running"}),
        (ev.AssistantReplied, {"calls": calls, "based_on": 2}),
        (ev.ToolCallStarted, {"call_id": "3.0"}),
        (ev.ToolCallStarted, {"call_id": "3.1"}),
    ]
    journal = [
        kind(seq=n, id=str(n), timestamp=now, **fields) for n, (kind, fields) in enumerate(parts, 1)
    ]
    from holdfast.store import Batch, Summary

    store.append(lease, Batch(journal, Summary("c")))
    store.release(lease)
    tools = [
        Tool("plain", "", effect),
        Tool("safe", "", effect, annotations=ToolAnnotations(idempotent=True)),
    ]
    model = ScriptedLLM(["ok"])
    with Conversation(Agent(model, tools), store, "c") as conversation:
        conversation.start_thread()
        assert conversation.wait(30) is FINISHED
        outcomes = {
            event.call_id: event.result
            for event in conversation.get_history()
            if isinstance(event, ev.ToolCallFinished)
        }
    assert sorted(ran) == ["3.1 attempt 2", "3.2 attempt 1"]
    assert outcomes["3.0"].meta == {"outcome": "unknown"}
    assert "Check" in outcomes["3.0"].text


# --- wrong arguments ---

AGENT = Agent(ScriptedLLM([]))


def two_contexts(one: ToolContext, other: ToolContext) -> None:
    """Asks for its context twice."""


WRONG: dict[str, Callable[[], object]] = {
    "agent": lambda: Conversation("agent"),  # type: ignore[arg-type]
    "store": lambda: Conversation(AGENT, "file.db"),  # type: ignore[arg-type]
    "id": lambda: Conversation(AGENT, id=""),
    "on_delta": lambda: Conversation(AGENT, on_delta=3),  # type: ignore[arg-type]
    "state": lambda: Conversation.from_state({}, AGENT),  # type: ignore[arg-type]
    "llm takes": lambda: Agent(ScriptedLLM),  # type: ignore[arg-type]
    "path takes": lambda: SQLiteStore(None),  # type: ignore[arg-type]
    "two ToolContext": lambda: Tool("t", "", two_contexts),
    "llm": lambda: Agent("gpt-5"),  # type: ignore[arg-type]
    "tools": lambda: Agent(ScriptedLLM([]), [3]),  # type: ignore[list-item]
    "mcp_servers|MCPClient": lambda: Agent(ScriptedLLM([]), mcp_servers=["server"]),  # type: ignore[arg-type]
    "system_prompt": lambda: Agent(ScriptedLLM([]), system_prompt=3),  # type: ignore[arg-type]
    "system_prompt_extensions": lambda: Agent(ScriptedLLM([]), system_prompt_extensions="text"),
    "microagents": lambda: Agent(ScriptedLLM([]), microagents=[Path("/no/such/file.md")]),
    "limits": lambda: Agent(ScriptedLLM([]), limits=5),  # type: ignore[arg-type]
    "cost": lambda: Agent(ScriptedLLM([]), limits=Limits(cost=1.0)),
    "parallel_calls": lambda: Agent(ScriptedLLM([]), parallel_calls=0),
    "callback": lambda: Conversation(AGENT).register_event_callback("print"),  # type: ignore[arg-type]
    "send_message": lambda: Conversation(AGENT).send_message("  "),
    "role": lambda: Conversation(AGENT).send_message(Message("hi", role="assistant")),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("argument", WRONG)
def test_a_wrong_argument_is_an_error_that_names_it(argument: str) -> None:
    with pytest.raises(ConfigurationError, match=argument):
        WRONG[argument]()


def test_an_agent_is_frozen() -> None:
    with pytest.raises(AttributeError, match="frozen"):
        AGENT.limits = Limits()


def test_a_clock_and_ids_that_are_handed_in_make_a_journal_byte_for_byte_the_same() -> None:
    def journal() -> bytes:
        numbers = iter(range(1000))
        options: dict[str, Any] = {
            "clock": lambda: datetime(2026, 1, 1, tzinfo=UTC),
            "new_id": lambda: f"id-{next(numbers)}",
        }
        with Conversation(
            Agent(ScriptedLLM([("add", {"a": 1, "b": 2}), "ok"]), [add]), **options
        ) as conversation:
            conversation.send_message("go")
            conversation.run()
            events = [
                event
                for event in conversation.get_history()
                if not isinstance(event, ev.AssistantReplied | ev.ToolCallFinished)
            ]
            return b"\n".join(event.to_json() for event in events)

    assert journal() == journal()


def test_results_hold_what_tools_return_in_mcp_form() -> None:
    @tool
    def report() -> ToolResult:
        """Reports."""
        return ToolResult("fine", meta={"exitCode": 0})

    with Conversation(Agent(ScriptedLLM([("report", {}), "ok"]), [report])) as conversation:
        conversation.send_message("go")
        conversation.run()
        event = next(
            event for event in conversation.get_history() if isinstance(event, ev.ToolCallFinished)
        )
    assert (
        event.result.to_json()
        == b'{"content":[{"type":"text","text":"fine"}],"meta":{"exitCode":0},"isError":false}'
    )


def test_no_part_of_a_conversation_shows_what_was_said_in_its_repr() -> None:
    parts: list[Any] = []

    @tool
    def look(context: ToolContext) -> str:
        """Look."""
        parts.append(context.outputs)
        return ""

    agent = Agent(ScriptedLLM([("look", {}), "done"]), [look])
    with Conversation(agent) as conversation:
        conversation.send_message("planted")
        conversation.run()
        hosting: Any = conversation.hosting
        parts += [hosting.journal, hosting.context, hosting.executor, hosting._loop, hosting._calls]
        parts.append(hosting.delegation())
        for part in parts:
            assert "planted" not in repr(part)


def test_objects_that_are_structs_have_the_repr_of_objects() -> None:
    todo, kinds = [ObjectStruct], set[type]()
    while todo:
        kind = todo.pop()
        kinds.add(kind)
        todo += kind.__subclasses__()
        assert kind.__repr__ is object.__repr__, kind
    assert len(kinds) > 15


def test_a_message_whose_conversation_closes_first_asks_no_hook(monkeypatch: Any) -> None:
    messages: list[object] = []

    def hook(message: object, context: ToolContext) -> None:
        messages.append(message)

    conversation = Conversation(Agent(ScriptedLLM([]), hooks=[Hook(before=hook, on="message")]))
    check = HookPoints.check_message

    def late(points: HookPoints, command: Any) -> Any:
        conversation.close()
        return check(points, command)

    monkeypatch.setattr(HookPoints, "check_message", late)
    with pytest.raises(ConversationClosed):
        conversation.send_message("x")
    assert messages == []
