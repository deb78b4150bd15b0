"""`Conversation.stream`: the events and deltas of a run in one order, on the caller's thread."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast import Agent, Conversation, ConversationStatus, ScriptedLLM, SQLiteStore, Tool
from holdfast import events as ev
from holdfast.errors import ConversationClosed, RunFailed, StoreError
from holdfast.llm.completion import Delta


def names(items: list[ev.AnyEvent | Delta]) -> list[str]:
    return [f"~{item.text}" if isinstance(item, Delta) else item.type for item in items]


def echo() -> Tool:
    return Tool("echo", "Echo a text.", lambda text: text)


def test_events_and_deltas_come_in_the_order_of_the_journal() -> None:
    model = ScriptedLLM([["Let me see.", ("echo", {"text": "x"})], "It says x."], stream=True)
    with Conversation(Agent(model, [echo()])) as conversation:
        items = list(conversation.stream("What does it say?"))
        history = conversation.get_history()
    assert [item for item in items if not isinstance(item, Delta)] == history
    order = names(items)
    first, second = (i for i, name in enumerate(order) if name == "assistant")
    result = order.index("toolResult")
    assert [name for name in order[:first] if name.startswith("~")]
    assert [name for name in order[first:result] if name.startswith("~")] == []
    streamed = "".join(item.text for item in items[result:second] if isinstance(item, Delta))
    assert streamed == "It says x."


def test_items_come_while_the_run_goes_on_and_on_the_callers_thread() -> None:
    go_on = threading.Event()

    def hold() -> str:
        assert go_on.wait(10)
        return "done"

    with Conversation(Agent(ScriptedLLM([[("hold", {})], "Ok."]), [Tool("hold", "", hold)])) as one:
        for item in one.stream("go"):
            if isinstance(item, ev.ToolCallStarted):
                assert one.status is ConversationStatus.RUNNING
                go_on.set()
        assert one.status is ConversationStatus.FINISHED
    assert go_on.is_set()


def test_a_second_stream_begins_where_the_first_ended() -> None:
    with Conversation(Agent(ScriptedLLM(["One.", "Two."]))) as conversation:
        first = list(conversation.stream("a"))
        second = list(conversation.stream("b"))
        seqs = [item.seq for item in first + second if not isinstance(item, Delta)]
        assert seqs == [event.seq for event in conversation.get_history()]
        assert list(conversation.stream()) == []


def test_an_answer_that_comes_while_the_message_is_sent_has_its_deltas() -> None:
    class Slow(Conversation):
        def send_message(self, *arguments: Any, **options: Any) -> Any:
            event = super().send_message(*arguments, **options)
            assert self.wait(20) is ConversationStatus.FINISHED
            return event

    with Slow(Agent(ScriptedLLM(["One."], stream=True))) as conversation:
        conversation.start_thread()
        items = list(conversation.stream("a"))
        assert [item.text for item in items if isinstance(item, Delta)] == ["One."]
        assert names(items)[-1] == "status"


def test_it_follows_a_conversation_that_a_thread_drives() -> None:
    with Conversation(Agent(ScriptedLLM(["One.", "Two."], stream=True))) as conversation:
        conversation.start_thread()
        for text in ("a", "b"):
            items = list(conversation.stream(text))
            assert names(items)[0] == "message"
            assert names(items)[-1] == "status"
            assert any(isinstance(item, Delta) for item in items)
        assert conversation.state.answer == "Two."


def test_leaving_the_block_interrupts_and_leaving_the_loop_does_not(tmp_path: Path) -> None:
    disconnected = threading.Event()

    def hold() -> str:
        disconnected.wait(0.2)
        return "done"

    script = [[("hold", {})], "Ok.", [("hold", {})], "Ok."]
    with Conversation(Agent(ScriptedLLM(script), [Tool("hold", "", hold)])) as conversation:
        for item in conversation.stream("go"):
            if isinstance(item, ev.ToolCallStarted):
                break
        assert conversation.wait(10) is ConversationStatus.FINISHED
        with conversation.stream("again") as items:
            for item in items:
                if isinstance(item, ev.ToolCallStarted):
                    break
        assert conversation.wait(10) is ConversationStatus.PAUSED


def test_an_error_of_the_store_is_raised_where_the_items_are_read(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "s.db")
    with Conversation(Agent(ScriptedLLM(["One."])), store) as conversation:
        append, count = store.append, [0]

        def failing(*args: object, **kwargs: object) -> object:
            count[0] += 1
            if count[0] > 2:
                raise StoreError("The disk is full.")
            return append(*args, **kwargs)  # pyright: ignore[reportArgumentType, reportCallIssue]

        store.append = failing  # pyright: ignore[reportAttributeAccessIssue]
        with pytest.raises(StoreError, match="disk is full"):
            list(conversation.stream("go"))
        store.append = append
    store.close()


def test_a_closed_conversation_is_refused_at_the_call() -> None:
    conversation = Conversation(Agent(ScriptedLLM(["One."])))
    conversation.close()
    with pytest.raises(ConversationClosed):
        conversation.stream("go")


def test_close_from_elsewhere_ends_the_stream() -> None:
    conversation = Conversation(
        Agent(ScriptedLLM([[("hold", {})]]), [Tool("hold", "", lambda: time.sleep(0.3))])
    )
    items: list[object] = []
    for item in conversation.stream("go"):
        items.append(item)
        if isinstance(item, ev.ToolCallStarted):
            threading.Thread(target=conversation.close, name="closer").start()
    assert items


def test_raise_for_status() -> None:
    with Conversation(Agent(ScriptedLLM(["One."]))) as conversation:
        assert conversation.state.raise_for_status().status is ConversationStatus.IDLE
        conversation.send_message("go")
        assert conversation.run().raise_for_status().answer == "One."
        conversation.send_message("more")
        with pytest.raises(RunFailed, match=r"stopped on \w+: .*resume") as failed:
            conversation.run().raise_for_status()
        assert (failed.value.status, bool(failed.value.error)) == ("error", True)
    agent = Agent(ScriptedLLM([[("echo", {"text": "x"})]]), [echo()], confirm="always")
    with Conversation(agent) as conversation:
        conversation.send_message("go")
        with pytest.raises(RunFailed, match=r"waiting_for_confirmation.*approve"):
            conversation.run().raise_for_status()


def test_no_event_of_a_run_has_a_repr_of_more_than_two_lines() -> None:
    model = ScriptedLLM([["y" * 500, ("echo", {"text": "x" * 1000})], "z" * 3000])
    with Conversation(Agent(model, [echo()], system_prompt="p" * 4000)) as conversation:
        for item in conversation.stream("w" * 2000):
            assert len(repr(item)) <= 160, repr(item)
            assert "\n" not in repr(item)
            assert repr(item).startswith(type(item).__name__ + "(")


def test_two_streams_that_begin_at_once_both_follow_one_run() -> None:
    for _ in range(20):
        model = ScriptedLLM(lambda request: "Heard.", stream=True)
        with Conversation(Agent(model)) as conversation:
            barrier = threading.Barrier(2)
            seqs: dict[str, list[int]] = {}

            def follow(text: str) -> None:
                barrier.wait()  # noqa: B023 - the thread ends within its round
                stream = conversation.stream(text)
                seqs[text] = [item.seq for item in stream if not isinstance(item, Delta)]  # noqa: B023

            threads = [threading.Thread(target=follow, args=(text,)) for text in ("a", "b")]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(20)
            assert conversation.wait(10) is ConversationStatus.FINISHED
            assert sorted(seqs) == ["a", "b"], "a stream raised"
            last = conversation.state.last_seq
            assert max(numbers[-1] for numbers in seqs.values()) == last
            for numbers in seqs.values():
                assert numbers == list(range(numbers[0], numbers[-1] + 1))


def test_streams_that_are_left_leave_no_listener_and_no_thread() -> None:
    with Conversation(Agent(ScriptedLLM(lambda request: "Heard.", stream=True))) as conversation:
        for text in "abc":
            for _ in conversation.stream(text):
                break
            assert conversation.wait(10) is ConversationStatus.FINISHED
        list(conversation.stream("d"))
        assert conversation.hosting.deltas._listeners == ()


def test_an_ended_stream_stays_ended() -> None:
    with Conversation(Agent(ScriptedLLM(["One.", "Two."]))) as conversation:
        first = conversation.stream("a")
        assert list(first)
        assert list(conversation.stream("b"))
        assert list(first) == []
