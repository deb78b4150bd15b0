"""Hooks of an agent at each place: what they change, deny and add, and the effect of their
failures."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from holdfast import (
    Agent,
    Conversation,
    ConversationStatus,
    MemoryStore,
    ScriptedLLM,
    SQLiteStore,
    TextContent,
    ToolCall,
    ToolContext,
    ToolManager,
    ToolResult,
    tool,
)
from holdfast import events as ev
from holdfast.agent.additions import Situation
from holdfast.agent.condenser import Condensed
from holdfast.agent.hooks import Condensing, Ending, Incoming, Starting, Stopping
from holdfast.commands import Interrupt, Send
from holdfast.content import Usage
from holdfast.errors import ConfigurationError, HookDenied, ToolError
from holdfast.llm.completion import Completion
from holdfast.tools.hooks import ARGUMENTS, Add, Deny, Hook

Subject = Any


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


CALL = ToolCall("", "add", {"a": 1, "b": 2})


def returns(*answers: Any) -> Callable[..., Any]:
    """Return a hook that returns (or raises) these values one after the other, then None."""
    queue = list(answers)

    def hook(*_: Any) -> Any:
        value = queue.pop(0) if queue else None
        if isinstance(value, Exception):
            raise value
        return value

    return hook


def run(script: list[Any], hooks: list[Hook], *, message: str = "go", **more: Any) -> Conversation:
    conversation = Conversation(Agent(ScriptedLLM(script), [add], hooks=hooks, **more))
    conversation.send_message(message)
    conversation.run()
    return conversation


def events_of(conversation: Conversation, kind: type[Any]) -> list[Any]:
    return [event for event in conversation.get_history() if isinstance(event, kind)]


def texts(conversation: Conversation) -> list[str]:
    return [event.text for event in events_of(conversation, ev.MessageAdded)]


def close_after_replay(conversation: Conversation) -> None:
    """Check that the journal replays identically without any hook, then close the conversation."""
    replay = conversation.replay(Agent(ScriptedLLM([]), [add]))
    assert replay.same, str(replay)
    assert replay.hashed == replay.requests
    conversation.close()


# --- calls ---


def test_before_a_call_arguments_are_changed_and_what_ran_is_shown() -> None:
    conversation = run([CALL, "done"], [Hook(lambda call, context: {"a": 5, "b": 5})])
    [result] = events_of(conversation, ev.ToolCallFinished)
    assert result.result.text == "10"
    assert result.result.meta[ARGUMENTS] == {"a": 5, "b": 5}
    close_after_replay(conversation)


def test_before_a_call_it_is_denied_answered_or_added_to() -> None:
    def deny(call: ToolCall, context: ToolContext) -> Any:
        return Deny("not today")

    conversation = run([CALL, "done"], [Hook(deny)])
    [result] = events_of(conversation, ev.ToolCallFinished)
    assert result.result.is_error
    assert "'add' was not run: its hook deny denied it: not today" in result.result.text
    assert not events_of(conversation, ev.NoteRecorded)
    close_after_replay(conversation)

    conversation = run(
        [CALL, "done"], [Hook(returns((ToolResult("cached"), Add("It is an hour old."))))]
    )
    [result] = events_of(conversation, ev.ToolCallFinished)
    assert result.result.text == "cached\nIt is an hour old."
    close_after_replay(conversation)

    conversation = run(
        [CALL, "done"], [Hook(returns(Add("Mind the units.")), returns(Add("It is a sum.")))]
    )
    [result] = events_of(conversation, ev.ToolCallFinished)
    assert result.result.text == "3\nIt is a sum.\nMind the units."
    close_after_replay(conversation)


def test_after_a_call_its_result_is_changed_or_held_back() -> None:
    conversation = run(
        [CALL, "done"], [Hook(after=lambda call, result, context: ToolResult(f"{result.text}!"))]
    )
    assert events_of(conversation, ev.ToolCallFinished)[0].result.text == "3!"
    close_after_replay(conversation)
    conversation = run(
        [CALL, "done"], [Hook(after=lambda call, result, context: Deny("a secret"), name="dlp")]
    )
    assert (
        events_of(conversation, ev.ToolCallFinished)[0].result.text
        == "'add' was run, but its result is held back: its hook dlp denied it: a secret"
    )
    close_after_replay(conversation)


@pytest.mark.parametrize("side", ["before", "after"])
def test_a_hook_of_a_call_that_fails_denies_and_is_noted(side: str) -> None:
    conversation = run(
        [CALL, "done"], [Hook(**{side: returns(ValueError("broken"))}, name="guard")]
    )
    [result] = events_of(conversation, ev.ToolCallFinished)
    assert result.result.is_error
    assert "its hook guard failed: ValueError: broken" in result.result.text
    [note] = events_of(conversation, ev.NoteRecorded)
    assert note.about == "hook:guard"
    assert note.details == {"on": "tool", "failed": True}
    assert conversation.status is ConversationStatus.FINISHED
    close_after_replay(conversation)


def test_the_agents_hooks_stand_around_the_managers() -> None:
    order: list[str] = []

    def hook(name: str) -> Hook:
        def before(call: ToolCall, context: ToolContext) -> None:
            order.append(f"before {name}")

        def after(call: ToolCall, result: ToolResult, context: ToolContext) -> None:
            order.append(f"after {name}")

        return Hook(before, after, name=name)

    manager = ToolManager([add], hooks=[hook("manager")])
    agent = Agent(ScriptedLLM([CALL, "done"]), manager, hooks=[hook("one"), hook("two")])
    with Conversation(agent) as conversation:
        conversation.send_message("go")
        conversation.run()
    assert order == [
        "before one",
        "before two",
        "before manager",
        "after manager",
        "after two",
        "after one",
    ]
    order.clear()
    with Conversation(
        Agent(ScriptedLLM([CALL, "done"]), manager)
    ) as conversation:  # another agent of the same manager
        conversation.send_message("go")
        conversation.run()
    assert order == ["before manager", "after manager"]


# --- the model ---


def test_before_the_model_is_asked_context_is_added_once_while_it_is_shown() -> None:
    situations: list[Situation] = []

    def hook(situation: Situation, context: ToolContext) -> Any:
        situations.append(situation)
        assert context.conversation_id == conversation.id
        assert context.llm.wrapped is agent.llm  # a model whose calls are counted
        return Add("The branch is main.")

    agent = Agent(
        ScriptedLLM([CALL, CALL, "done"]), [add], hooks=[Hook(hook, on="model", name="git")]
    )
    conversation = Conversation(agent)
    conversation.send_message("go")
    conversation.run()
    assert texts(conversation) == ["go", "The branch is main."]
    assert events_of(conversation, ev.MessageAdded)[1].about.startswith("hook:git#")
    assert len(situations) == 3
    assert [
        type(event).__name__
        for event in situations[1].news
        if type(event) in (ev.AssistantReplied, ev.ToolCallFinished)
    ] == ["AssistantReplied", "ToolCallFinished"]
    close_after_replay(conversation)


def test_other_context_of_the_same_hook_is_added_to_a_later_request() -> None:
    conversation = run([CALL, "done"], [Hook(returns(Add("one"), Add("two")), on="model")])
    assert texts(conversation) == ["go", "one", "two"]
    close_after_replay(conversation)


def test_two_hooks_of_one_name_both_add() -> None:
    conversation = run(
        ["done"], [Hook(returns(Add("one")), on="model"), Hook(returns(Add("two")), on="model")]
    )
    assert texts(conversation) == ["go", "one", "two"]
    assert (
        len(
            {
                event.about.partition("#")[0]
                for event in events_of(conversation, ev.MessageAdded)[1:]
            }
        )
        == 2
    )
    close_after_replay(conversation)


@pytest.mark.parametrize(
    ("answer", "failed"), [(Deny("no budget"), False), (ValueError("broken"), True), ("text", True)]
)
def test_before_the_model_is_asked_a_hook_may_end_the_run(answer: Any, failed: bool) -> None:
    llm = ScriptedLLM(["done"])
    conversation = Conversation(
        Agent(llm, [add], hooks=[Hook(returns(answer), on="model", name="guard")])
    )
    conversation.send_message("go")
    state = conversation.run()
    assert state.status is ConversationStatus.ERROR
    [error] = events_of(conversation, ev.ErrorRecorded)
    assert error.error == "HookDenied"
    assert error.message.startswith("The model was not asked: its hook guard")
    assert error.details == {"hook": "guard", "on": "model"} | ({"failed": True} if failed else {})
    assert not llm.requests
    assert conversation.run().status is ConversationStatus.FINISHED  # the hook no longer objects
    close_after_replay(conversation)


def test_a_changed_answer_loses_the_providers_form_and_is_noted() -> None:
    native = msgspec.Raw(b'{"secret":"xyzzy"}')
    script = ScriptedLLM([])

    class Native:
        model, requests = "m", script.requests

        def completion(self, messages: Any, tools: Any = (), **more: Any) -> Completion:
            return Completion(
                "the word is xyzzy",
                native=native,
                usage=Usage(3, 4),
                response_id="r1",
                wire="openai_chat",
            )

        def parameters(self) -> dict[str, Any]:
            return {}

        def cost(self, usage: Usage) -> float | None:
            return None

        def close(self) -> None: ...

    agent = Agent(
        Native(),
        hooks=[
            Hook(
                after=lambda answer, context: answer.text.replace("xyzzy", "***"),
                on="model",
                name="dlp",
            )
        ],
    )
    conversation = Conversation(agent)
    conversation.send_message("go")
    conversation.run()
    [answer] = events_of(conversation, ev.AssistantReplied)
    assert (answer.text, bytes(answer.native), answer.response_id, answer.usage) == (
        "the word is ***",
        b"",
        "",
        Usage(3, 4),
    )
    [note] = events_of(conversation, ev.NoteRecorded)
    assert (note.about, note.text) == ("hook:dlp", "changed the model's answer: text")
    assert not any(b"xyzzy" in event.to_json() for event in conversation.get_history())
    conversation.close()


def test_calls_of_an_answer_are_changed_before_anything_is_decided() -> None:
    def other(answer: Completion, context: ToolContext) -> Any:
        if answer.calls:
            return msgspec.structs.replace(answer, calls=(ToolCall("", "add", {"a": 20, "b": 1}),))
        return None

    conversation = run([CALL, "done"], [Hook(after=other, on="model")])
    assert events_of(conversation, ev.AssistantReplied)[0].calls[0].arguments == {"a": 20, "b": 1}
    assert events_of(conversation, ev.ToolCallFinished)[0].result.text == "21"
    close_after_replay(conversation)


def test_a_denied_answer_is_told_why_and_asked_for_again() -> None:
    conversation = run(
        ["rude", CALL, "fine"], [Hook(after=returns(Deny("be polite")), on="model", name="tone")]
    )
    denied, *others = events_of(conversation, ev.AssistantReplied)
    assert (denied.text, denied.calls, denied.stop_reason) == ("", (), "denied")
    assert [one.text for one in others] == ["", "fine"]
    assert conversation.state.steps == 3
    [message] = events_of(conversation, ev.MessageAdded)[1:]
    assert message.about == "hook:tone@model"
    assert "be polite" in message.text
    assert conversation.status is ConversationStatus.FINISHED
    close_after_replay(conversation)


def test_answers_that_are_denied_again_and_again_end_the_run() -> None:
    conversation = run(
        ["a", "b", "c", "d"],
        [Hook(after=lambda answer, context: Deny("no"), on="model", name="tone")],
    )
    assert conversation.status is ConversationStatus.ERROR
    [error] = events_of(conversation, ev.ErrorRecorded)
    assert (error.error, error.details["hook"]) == ("HookDenied", "tone")
    assert "3 times in a row" in error.message
    assert len(events_of(conversation, ev.AssistantReplied)) == 3
    assert not any(b'"text":"a"' in event.to_json() for event in conversation.get_history())
    conversation.run()  # a new attempt counts from zero
    assert (
        len(events_of(conversation, ev.AssistantReplied)) == 4
        or conversation.status is ConversationStatus.ERROR
    )
    conversation.close()


@pytest.mark.parametrize(
    "answer",
    [
        ValueError("broken"),
        5,
        Add("more"),
        {"text": 5},
        {"text": None},
        {"calls": 5},
        {"content": "x"},
        Completion(text=cast("Any", 5)),
        Completion(reasoning=cast("Any", None)),
    ],
)
def test_a_check_of_an_answer_that_fails_holds_it_back(answer: Any) -> None:
    conversation = run(["secret", "later"], [Hook(after=returns(answer), on="model", name="dlp")])
    assert conversation.status is ConversationStatus.ERROR
    assert events_of(conversation, ev.ErrorRecorded)[0].details == {
        "hook": "dlp",
        "on": "model",
        "failed": True,
    }
    assert events_of(conversation, ev.NoteRecorded)[0].about == "hook:dlp"
    assert not any(b"secret" in event.to_json() for event in conversation.get_history())
    assert conversation.run().status is ConversationStatus.FINISHED
    assert events_of(conversation, ev.AssistantReplied)[-1].text == "later"
    close_after_replay(conversation)


# --- messages ---


def test_a_message_is_changed_denied_and_added_to() -> None:
    def hook(message: Incoming, context: ToolContext) -> Any:
        if "password" in message.text:
            return Deny("no passwords")
        return (message.text.upper(), Add("It is Sunday."))

    conversation = Conversation(
        Agent(ScriptedLLM(["done"]), [add], hooks=[Hook(hook, on="message", name="filter")])
    )
    assert conversation.send_message("hello").text == "HELLO"
    with pytest.raises(
        HookDenied, match="The message was not sent: its hook filter denied it: no passwords"
    ) as caught:
        conversation.send_message("the password is x")
    assert (caught.value.hook, caught.value.on, caught.value.failed) == ("filter", "message", False)
    assert texts(conversation) == ["HELLO", "It is Sunday."]
    edit, denial = events_of(conversation, ev.NoteRecorded)
    assert (edit.text, denial.details) == (
        "changed the message",
        {"on": "message", "failed": False},
    )
    conversation.run()
    close_after_replay(conversation)


def test_a_message_hook_runs_on_the_senders_thread_with_no_lock_held() -> None:
    threads: list[threading.Thread] = []

    def hook(message: Incoming, context: ToolContext) -> Any:
        threads.append(threading.current_thread())
        reader = threading.Thread(target=lambda: conversation.state)  # would wait for the lock
        reader.start()
        reader.join(20)
        assert not reader.is_alive()
        return None

    conversation = Conversation(Agent(ScriptedLLM(["done"]), hooks=[Hook(hook, on="message")]))
    conversation.start_thread()
    conversation.send_message("hello")
    assert threads == [threading.current_thread()]
    conversation.close()


def test_messages_through_the_inbox_are_heard_by_hooks_too() -> None:
    def hook(message: Incoming, context: ToolContext) -> Any:
        return Deny("no") if "bad" in message.text else f"{message.text} ({message.sender})"

    store = MemoryStore()
    conversation = Conversation(
        Agent(ScriptedLLM(["done"]), hooks=[Hook(hook, on="message", name="filter")]), store, "c"
    )
    conversation.send_message("first")
    store.post("c", Send("good"), "1")
    store.post("c", Send("bad"), "2")
    conversation.hosting.drain_inbox()
    with pytest.raises(HookDenied):
        conversation.execute(Send("bad"))
    with pytest.raises(HookDenied):
        conversation.execute(Send("bad"), "3")
    with pytest.raises(HookDenied) as again:  # its outcome is kept; no hook runs again
        conversation.execute(Send("bad"), "3")
    assert (again.value.hook, again.value.on) == ("filter", "message")
    assert texts(conversation) == ["first (user)", "good (user)"]
    assert (
        sum(
            note.text.endswith("denied it: no") for note in events_of(conversation, ev.NoteRecorded)
        )
        == 3
    )
    conversation.close()


@pytest.mark.parametrize(
    "answer",
    [
        ValueError("broken"),
        5,
        "   ",
        ToolError("no"),
        {},
        {"a": 1},
        {"content": 5},
        {"type": "image"},
    ],
)
def test_a_message_hook_that_fails_lets_nothing_through(answer: Any) -> None:
    conversation = Conversation(
        Agent(ScriptedLLM(["done"]), hooks=[Hook(returns(answer), on="message", name="filter")])
    )
    with pytest.raises(HookDenied) as caught:
        conversation.send_message("hello")
    assert caught.value.failed
    assert not events_of(conversation, ev.MessageAdded)
    assert events_of(conversation, ev.NoteRecorded)[0].details["failed"]
    conversation.close()


# --- the end of a run ---


def test_a_stop_hook_has_the_run_go_on() -> None:
    stops: list[Stopping] = []

    def hook(stopping: Stopping, context: ToolContext) -> Any:
        stops.append(stopping)
        return None if "tests" in stopping.text else Deny("Run the tests.")

    conversation = run(["done", CALL, "tests pass"], [Hook(hook, on="stop", name="tested")])
    assert conversation.status is ConversationStatus.FINISHED
    assert [(one.text, one.denied) for one in stops] == [("done", 0), ("tests pass", 1)]
    assert events_of(conversation, ev.MessageAdded)[1].about == "hook:tested@stop"
    assert texts(conversation)[1] == "Run the tests."
    close_after_replay(conversation)


def test_a_stop_hook_that_is_never_content_is_not_heard_for_ever() -> None:
    conversation = run(
        ["1", "2", "3", "4", "5"],
        [Hook(lambda stopping, context: Deny("more"), on="stop", name="never")],
    )
    assert conversation.status is ConversationStatus.FINISHED
    assert len(events_of(conversation, ev.AssistantReplied)) == 4
    [note] = events_of(conversation, ev.NoteRecorded)
    assert note.about == "hook:never"
    assert note.details == {"reason": "more"}
    close_after_replay(conversation)


def test_other_ends_are_not_asked_about() -> None:
    stops: list[Stopping] = []
    hook = Hook(lambda stopping, context: stops.append(stopping), on="stop")
    conversation = run(["", "", ""], [hook])
    assert conversation.status is ConversationStatus.STUCK
    assert not stops
    close_after_replay(conversation)


def test_a_stop_hook_that_fails_does_not_let_the_run_be_finished() -> None:
    conversation = run(["done"], [Hook(returns(ValueError("broken")), on="stop", name="tested")])
    assert conversation.status is ConversationStatus.ERROR
    assert events_of(conversation, ev.ErrorRecorded)[0].details == {
        "hook": "tested",
        "on": "stop",
        "failed": True,
    }
    assert (
        conversation.run().status is ConversationStatus.FINISHED
    )  # the hook is asked again, without a model call
    assert len(events_of(conversation, ev.AssistantReplied)) == 1
    close_after_replay(conversation)


# --- condensation ---


class Keeper:
    """A condenser that hides the first message and records the instructions of its work."""

    def __init__(self) -> None:
        self.instructions: list[str] = []

    def shorten(self, work: Any) -> Condensed:
        self.instructions.append(work.instructions)
        return Condensed(hidden=(work.pieces[0].seq,), summary="What was said.")


@pytest.mark.parametrize(
    ("answer", "failed", "instructions"),
    [
        (None, "", ["briefly"]),
        (Add("Keep the names."), "", ["briefly\n\nKeep the names."]),
        (Deny("not now"), "Nothing was left out: its hook keep denied it: not now", []),
        (
            ValueError("broken"),
            "Nothing was left out: its hook keep failed: ValueError: broken",
            [],
        ),
    ],
)
def test_a_condensation_is_denied_or_told_more(
    answer: Any, failed: str, instructions: list[str]
) -> None:
    keeper = Keeper()
    condensations: list[Condensing] = []

    def hook(condensing: Condensing, context: ToolContext) -> Any:
        condensations.append(condensing)
        if isinstance(answer, Exception):
            raise answer
        return answer

    conversation = run(["done"], [Hook(hook, on="condensation", name="keep")], condenser=keeper)
    conversation.condense("briefly")
    assert [one.instructions for one in condensations] == ["briefly"]
    assert condensations[0].tokens > 0
    assert keeper.instructions == instructions
    assert events_of(conversation, ev.HistoryCondensed)[-1].failed == failed
    assert bool(events_of(conversation, ev.HistoryCondensed)[-1].hidden) is not bool(failed)
    conversation.close()


# --- beginning and end ---


def test_hooks_are_told_of_the_beginning_and_the_end() -> None:
    calls: list[Any] = []
    store = MemoryStore()

    def started(starting: Starting, context: ToolContext) -> Any:
        calls.append(starting)
        return Add("The house is quiet.")

    def ended(ending: Ending, context: ToolContext) -> Any:
        calls.append(ending)
        with pytest.raises(Exception, match="held"):  # the lease is still held
            Conversation(Agent(ScriptedLLM([])), store, "c").send_message("mine")

    def agent() -> Agent:
        return Agent(
            ScriptedLLM(["done", "more"]),
            [add],
            hooks=[Hook(started, on="start"), Hook(ended, on="end")],
        )

    with Conversation(agent(), store, "c") as conversation:
        conversation.send_message("hello")
        conversation.run()
        conversation.send_message("again")
        conversation.run()
    assert calls == [Starting(False), Ending("finished")]
    with Conversation(agent(), store, "c") as conversation:
        conversation.send_message("hello")
        conversation.run()
        assert texts(conversation) == ["hello", "The house is quiet.", "again", "hello"]
        close_after_replay(conversation)
    assert calls[2:] == [Starting(True), Ending("finished")]
    Conversation(agent(), store, "c").close()  # not driven: no hook runs
    assert len(calls) == 4


def test_hooks_that_fail_at_the_beginning_or_the_end_harm_nothing_and_are_noted() -> None:
    store = MemoryStore()
    hooks = [
        Hook(returns(ValueError("broken")), on="start", name="s"),
        Hook(returns(Deny("no")), on="end", name="e"),
    ]
    with Conversation(Agent(ScriptedLLM(["done"]), hooks=hooks), store, "c") as conversation:
        conversation.send_message("hello")
        assert conversation.run().status is ConversationStatus.FINISHED
    notes = [event for event in store.read("c") if isinstance(event, ev.NoteRecorded)]
    assert [(note.about, note.details) for note in notes] == [
        ("hook:s", {"on": "start", "failed": True}),
        ("hook:e", {"on": "end", "failed": True}),
    ]


def test_an_end_hook_that_takes_too_long_is_left_behind() -> None:
    store = MemoryStore()
    over = threading.Event()

    def slow(ending: Ending, context: ToolContext) -> None:
        context.cancelled.wait(60)
        over.set()

    conversation = Conversation(
        Agent(ScriptedLLM(["done"]), hooks=[Hook(slow, on="end", name="slow")]), store, "c"
    )
    conversation.send_message("hello")
    conversation.run()
    conversation.close(timeout=0.3)
    assert over.wait(20)  # the hook was cancelled
    notes = [event for event in store.read("c") if isinstance(event, ev.NoteRecorded)]
    assert [note.about for note in notes] == ["hook:slow"]


# --- cancelling ---


@pytest.mark.parametrize("place", ["tool", "model", "model after", "stop"])
@pytest.mark.parametrize("how", ["interrupt", "close"])
def test_an_interrupt_and_a_close_cancel_a_hook_that_waits(place: str, how: str) -> None:
    inside = threading.Event()

    def wait(*arguments: Any) -> Any:
        inside.set()
        assert arguments[-1].cancelled.wait(60)
        return Deny("late")

    on, _, after = place.partition(" ")
    hook = Hook(**{"after" if after else "before": wait}, on=on)
    store = MemoryStore()
    conversation = Conversation(
        Agent(ScriptedLLM([CALL, "done"] if on == "tool" else ["done"]), [add], hooks=[hook]),
        store,
        "c",
    )
    conversation.start_thread()
    conversation.send_message("go")
    assert inside.wait(30)
    if how == "interrupt":
        conversation.interrupt()
        assert conversation.wait(30) is ConversationStatus.PAUSED
        assert not events_of(conversation, ev.ErrorRecorded)
        inside.clear()
    conversation.close()
    assert not [
        event for event in store.read("c") if isinstance(event, ev.ErrorRecorded | ev.NoteRecorded)
    ]
    # The guard is asked again, and nothing was lost.
    llm = ScriptedLLM(
        [CALL, "done"]
        if on == "tool" and not any(isinstance(one, ev.AssistantReplied) for one in store.read("c"))
        else ["done"]
    )
    calls: list[Any] = []
    again = Hook(
        **{"after" if after else "before": lambda *arguments: calls.append(arguments)}, on=on
    )
    with Conversation(Agent(llm, [add], hooks=[again]), store, "c") as conversation:
        conversation.run()
        assert conversation.status is ConversationStatus.FINISHED
        assert calls or on == "tool"
        assert conversation.replay().same


def test_a_close_cancels_a_hook_of_a_message_that_waits_in_the_inbox_and_leaves_it_there() -> None:
    inside = threading.Event()

    def wait(message: Incoming, context: ToolContext) -> Any:
        if message.text == "first":
            return None
        inside.set()
        assert context.cancelled.wait(60)
        return Deny("late")

    store = MemoryStore()
    conversation = Conversation(
        Agent(ScriptedLLM(["done"]), hooks=[Hook(wait, on="message")]), store, "c"
    )
    conversation.send_message("first")
    poster = threading.Thread(target=lambda: store.post("c", Send("second"), "k"))
    poster.start()
    drainer = threading.Thread(target=conversation.hosting.drain_inbox)
    drainer.start()
    assert inside.wait(30)
    conversation.close()
    poster.join(30)
    drainer.join(30)
    with Conversation(Agent(ScriptedLLM(["done"])), store, "c") as conversation:
        conversation.run()
        assert texts(conversation) == ["first", "second"]


# --- arguments of hooks ---


async def later(*_: Any) -> None: ...


@pytest.mark.parametrize(
    ("hook", "problem"),
    [
        (Hook(print, on="nowhere"), "on takes one of tool, model, message"),
        (Hook(after=print, on="stop"), "there is no after"),
        (Hook(later, on="model"), "not async"),
        (Hook(print, on="model", tools="x"), "tools is for a hook on tool"),
        (Hook(on="model"), "at least one of the two, or a command"),
        (Hook(command="rm -rf /"), "command takes a list"),
        (Hook(print, command=["x"]), "use a Hook for each"),
        (Hook(command=["x"], when="never"), "when takes"),
        (Hook(command=["x"], when="after", on="message"), "there is no after"),
        (Hook(command=["x"], timeout=0), "timeout takes"),
        (Hook(command=["x"], env={"A": 5}), "env takes"),  # pyright: ignore
    ],
)
def test_what_an_agents_hooks_take_is_checked(hook: Hook, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        Agent(ScriptedLLM([]), hooks=[hook])


def test_a_hook_is_given_in_a_list_and_a_managers_are_on_tools() -> None:
    with pytest.raises(ConfigurationError, match="hooks takes a list"):
        Agent(ScriptedLLM([]), hooks=Hook(print))  # pyright: ignore
    with pytest.raises(ConfigurationError, match="belongs to the agent"):
        ToolManager([], hooks=[Hook(print, on="model")])


def test_content_that_a_message_hook_returns_is_the_messages() -> None:
    conversation = Conversation(
        Agent(
            ScriptedLLM(["done"]),
            hooks=[Hook(returns([TextContent("a"), TextContent("b")]), on="message")],
        )
    )
    assert conversation.send_message("x").content == (TextContent("a"), TextContent("b"))
    conversation.close()


def test_an_interrupt_passes_a_message_whose_hook_is_slow(tmp_path: Path) -> None:
    started, judging = threading.Event(), threading.Event()
    release, ended = threading.Event(), threading.Event()

    def slow(message: Any, context: Any) -> None:
        if message.text == "posted":
            judging.set()
            assert release.wait(30)

    @tool
    def work(context: ToolContext) -> str:
        """Works until it is cancelled."""
        started.set()
        try:
            context.sleep(60)
        finally:
            ended.set()
        return "done"

    agent = Agent(ScriptedLLM([("work", {}), "Done."]), [work], hooks=[Hook(slow, on="message")])
    with (
        SQLiteStore(tmp_path / "s.db") as store,
        Conversation(agent, store) as conversation,
    ):
        conversation.send_message("go")
        conversation.start_thread()
        assert started.wait(30)
        sender = threading.Thread(target=lambda: conversation.execute(Send("posted"), "one"))
        sender.start()
        assert judging.wait(30)
        conversation.execute(Interrupt(), "two")
        assert conversation.status is ConversationStatus.PAUSED
        assert ended.wait(30)
        assert not release.is_set()
        release.set()
        sender.join(30)
        conversation.execute(Interrupt(), "two")  # the same key is executed once
        texts = [e.text for e in conversation.get_history() if isinstance(e, ev.MessageAdded)]
        assert texts == ["go", "posted"]


def test_a_hook_may_post_a_command_which_follows_its_message(tmp_path: Path) -> None:
    messages: list[str] = []

    def posts(message: Any, context: Any) -> None:
        messages.append(message.text)
        if message.text == "first":
            conversation.execute(Send("second"), "two")

    agent = Agent(ScriptedLLM(["Done.", "Done."]), hooks=[Hook(posts, on="message")])
    with (
        SQLiteStore(tmp_path / "s.db") as store,
        Conversation(agent, store) as conversation,
    ):
        conversation.execute(Send("first"), "one")
        texts = [e.text for e in conversation.get_history() if isinstance(e, ev.MessageAdded)]
        assert texts == messages == ["first", "second"]
