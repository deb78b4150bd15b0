"""Delegation in the background at its edges: messages at a child's end, interrupts, output that
is read again, bounds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Agent, Conversation, ConversationStatus, MemoryStore, ScriptedLLM, SQLiteStore
from holdfast import events as ev
from holdfast.agent.delegation import Delegates
from holdfast.commands import Send
from holdfast.content import TextContent, ToolResult
from holdfast.conversation import delegated_children, delegation
from holdfast.conversation.delegated_children import DelegatedChildren
from holdfast.conversation.delegation_state import RESUMED, STOPPED
from holdfast.tools.hooks import Hook
from tests.leftovers import Owned
from tests.waiting import until

S = ConversationStatus
CHILD = "top.4.0"


def give(task: str, agent: str = "researcher", **more: Any) -> tuple[str, dict[str, Any]]:
    return "delegate", {"agent": agent, "task": task, "background": True, **more}


def lead(script: Any, researcher: Any, **options: Any) -> Agent:
    """Return an agent whose researcher answers from the script `researcher`."""
    return Agent(
        ScriptedLLM(script), delegates={"researcher": Agent(ScriptedLLM(researcher))}, **options
    )


def steps(*answers: Any) -> Callable[[Any], Any]:
    """Return a script that picks its answer by the number of answers in the request. After the
    last one it says "noted"."""

    def script(request: Any) -> Any:
        answered = sum(message["role"] == "assistant" for message in request.messages)
        return answers[answered] if answered < len(answers) else "noted"

    return script


def results(conversation: Conversation) -> list[str]:
    return [
        event.result.text
        for event in conversation.get_history()
        if isinstance(event, ev.ToolCallFinished)
    ]


def reports(conversation: Conversation) -> list[str]:
    """Return the texts of the messages about the child."""
    return [
        event.text
        for event in conversation.get_history()
        if isinstance(event, ev.MessageAdded) and event.sender == CHILD
    ]


def notes(conversation: Conversation) -> list[tuple[str, Any]]:
    events = [event for event in conversation.get_history() if isinstance(event, ev.NoteRecorded)]
    return [
        (note.about, note.details["children"])
        for note in events
        if note.about in (STOPPED, RESUMED)
    ]


def say(store: Any, text: str) -> None:
    store.post(CHILD, Send((TextContent(text),), sender="top"))


# --- messages to a child at its end ---


def _interject(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, say: Callable[[], None], before: bool
) -> None:
    """Call `say` once, before or after the first call of a function, on the caller's thread."""
    whole, calls = getattr(owner, name), list[int]()

    def around(*arguments: Any) -> Any:
        first = not calls
        if first and before:
            calls.append(1)
            say()
        result = whole(*arguments)
        if first and not before:
            calls.append(1)
            say()
        return result

    monkeypatch.setattr(owner, name, around)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name", "before"),
    [
        (DelegatedChildren, "_announce", False),
        (delegated_children, "close_inbox", True),
        (delegated_children, "close_inbox", False),
    ],
)
def test_a_message_between_a_child_s_end_and_its_closing_is_heard(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, before: bool
) -> None:
    store = MemoryStore()
    _interject(monkeypatch, owner, name, lambda: say(store, "two"), before)
    owned = Owned()
    with Conversation(
        lead(steps(give("one"), "meanwhile"), lambda request: f"heard {request.text}"), store, "top"
    ) as conversation:
        conversation.start_thread()
        conversation.send_message("go")
        until(lambda: any("heard two" in text for text in reports(conversation)))
    owned.wait_until_released()


def test_a_message_at_the_end_of_a_child_that_is_waited_for_is_part_of_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryStore()
    _interject(monkeypatch, delegation, "close_inbox", lambda: say(store, "two"), True)
    agent = lead(
        steps(give("one", background=False), "done"), lambda request: f"heard {request.text}"
    )
    with Conversation(agent, store, "top") as conversation:
        conversation.send_message("go")
        conversation.run()
        assert results(conversation) == [f"heard two\n[researcher: conversation {CHILD}]"]


def test_a_message_left_in_the_inbox_of_a_child_is_heard_when_its_parent_goes_on() -> None:
    store = MemoryStore()
    with Conversation(
        lead(
            steps(give("one"), ("delegate_collect", {}), "done"),
            lambda request: f"heard {request.text}",
        ),
        store,
        "top",
    ) as conversation:
        conversation.send_message("go")
        conversation.run()
    say(store, "two")
    with Conversation(
        lead(lambda request: "noted", lambda request: f"heard {request.text}"), store, "top"
    ) as conversation:
        conversation.start_thread()
        until(lambda: any("heard two" in text for text in reports(conversation)))


# --- interrupts ---


class Slow:
    """A script whose answer waits for an event."""

    def __init__(self, text: str, seconds: float = 30.0) -> None:
        self.text = text
        self.seconds = seconds
        self.entered = threading.Event()
        self.go = threading.Event()

    def __call__(self, request: Any) -> str:
        self.entered.set()
        self.go.wait(self.seconds)
        return self.text


@pytest.mark.parametrize("reopened", [False, True])
def test_what_an_interrupt_stops_goes_on_with_the_parent(tmp_path: Path, reopened: bool) -> None:
    child, busy = Slow("found"), Slow("meanwhile")

    def script(request: Any) -> Any:
        return (
            give("x")
            if request.messages[-1]["role"] == "user" and request.text == "go"
            else busy(request)
        )

    with SQLiteStore(tmp_path / "a.db") as store:
        with Conversation(lead(script, child), store, "top") as conversation:
            conversation.start_thread()
            conversation.send_message("go")
            assert child.entered.wait(30)
            assert busy.entered.wait(30)
            conversation.interrupt()
            until(lambda: [one.status for one in conversation.children] == ["paused"])
            assert notes(conversation) == [(STOPPED, [CHILD])]
            child.go.set()
            busy.go.set()
            if not reopened:
                conversation.resume()
                until(lambda: len(reports(conversation)) == 1)
                until(lambda: notes(conversation) == [(STOPPED, [CHILD]), (RESUMED, [CHILD])])
        if reopened:
            with Conversation(lead(script, child), store, "top") as conversation:
                conversation.start_thread()
                assert conversation.wait(30) is S.PAUSED
                assert [one.status for one in conversation.children] == ["paused"]
                conversation.resume()
                until(lambda: len(reports(conversation)) == 1)
                assert notes(conversation) == [(STOPPED, [CHILD]), (RESUMED, [CHILD])]


def test_an_interrupt_at_rest_leaves_what_works_in_the_background_alone() -> None:
    child = Slow("found")
    with Conversation(lead(steps(give("x"), "meanwhile"), child), id="top") as conversation:
        conversation.start_thread()
        conversation.send_message("go")
        assert child.entered.wait(30)
        assert conversation.wait(30) is S.FINISHED
        before = conversation.state.last_seq
        conversation.interrupt()
        assert conversation.state.last_seq == before
        child.go.set()
        until(lambda: len(reports(conversation)) == 1)


def test_a_child_that_somebody_paused_for_itself_does_not_go_on_with_its_parent() -> None:
    child, busy = Slow("found"), Slow("meanwhile")

    def script(request: Any) -> Any:
        return (
            give("x")
            if request.messages[-1]["role"] == "user" and request.text == "go"
            else busy(request)
        )

    with Conversation(lead(script, child), id="top") as conversation:
        conversation.start_thread()
        conversation.send_message("go")
        assert child.entered.wait(30)
        assert busy.entered.wait(30)
        conversation.open_children()[0].pause()
        conversation.interrupt()
        child.go.set()
        busy.go.set()
        conversation.resume()
        assert conversation.wait(30) is S.FINISHED
        assert [one.status for one in conversation.children] == ["paused"]
        assert notes(conversation) == []


# --- outputs that are read again ---


def _redact(*_: Any) -> ToolResult:
    return ToolResult((TextContent("[redacted]"),))


@pytest.mark.parametrize(
    ("background", "hooks"), [("true", []), (True, [Hook(after=_redact, tools="delegate")])]
)
def test_a_parent_that_was_opened_again_knows_what_the_call_began(
    tmp_path: Path, background: Any, hooks: list[Hook]
) -> None:
    child = Slow("found")
    with SQLiteStore(tmp_path / "a.db") as store:
        with Conversation(
            lead(steps(give("x", background=background), "meanwhile"), child, hooks=hooks),
            store,
            "top",
        ) as conversation:
            conversation.send_message("go")
            conversation.run()
            child.go.set()
        with Conversation(
            lead(lambda request: "noted", child, hooks=hooks), store, "top"
        ) as conversation:
            conversation.start_thread()
            until(lambda: len(reports(conversation)) == 1)


@pytest.mark.parametrize("number", ["zzz", "", "²", "9" * 5000, "-1"])
def test_a_message_whose_id_looks_like_an_announcement_s_stops_nobody(number: str) -> None:
    store = MemoryStore()
    with Conversation(
        lead(steps(give("x"), ("delegate_collect", {}), "done"), lambda _: "found"), store, "top"
    ) as conversation:
        conversation.send_message("go")
        conversation.run()
    store.post("top", Send((TextContent("x"),), f"{CHILD}@{number}", CHILD))
    with Conversation(
        lead(lambda request: "noted", lambda _: "found"), store, "top"
    ) as conversation:
        assert conversation.run().status is S.FINISHED
        assert conversation.failure is None


def test_a_child_that_another_owner_has_is_collected_from_the_store() -> None:
    child, store = Slow("found"), MemoryStore()
    delegates = Delegates({"researcher": Agent(ScriptedLLM(child))}, detached=True)
    with Conversation(
        Agent(ScriptedLLM(steps(give("x"), "meanwhile")), delegates=delegates), store, "top"
    ) as conversation:
        conversation.send_message("go")
        conversation.run()
        assert child.entered.wait(30)
    collects = ScriptedLLM(
        lambda request: (
            ("delegate_collect", {"ids": [CHILD]}) if request.text == "collect" else "done"
        )
    )
    progress: list[str] = []

    def tell(_: str, text: str) -> None:
        progress.append(text)
        child.go.set()

    with Conversation(
        Agent(collects, delegates=delegates), store, "top", on_progress=tell
    ) as conversation:
        conversation.send_message("collect")
        conversation.run()
        assert results(conversation)[-1] == f"found\n[researcher: conversation {CHILD}]"
        assert f"researcher ({CHILD}): running" in progress[0]
        assert conversation.open_children() == []


@pytest.mark.slow
def test_a_call_that_fails_to_collect_silences_nobody() -> None:
    child, store = Slow("found"), MemoryStore()
    both = {"researcher": Agent(ScriptedLLM(child)), "gone": Agent(ScriptedLLM(Slow("late", 0.3)))}
    order = [[give("x"), give("y", "gone")], ("delegate_cancel", {"ids": ["top.4.1"]}), "done"]
    with Conversation(
        Agent(ScriptedLLM(steps(*order)), delegates=both), store, "top"
    ) as conversation:
        conversation.send_message("go")
        assert conversation.run().status is S.FINISHED
        conversation.close(0.1)
    collects = steps(*[None] * 3, ("delegate_collect", {"ids": [CHILD, "top.4.1"]}))
    with Conversation(lead(collects, child), store, "top") as conversation:
        conversation.start_thread()
        conversation.send_message("collect")
        until(lambda: "no longer exists" in results(conversation)[-1])
        child.go.set()
        until(lambda: len(reports(conversation)) == 1)


# --- bounds ---


def test_calls_of_one_answer_have_no_more_children_at_work_than_there_may_be() -> None:
    child = Slow("found")
    delegates = Delegates({"researcher": Agent(ScriptedLLM(child))}, max_running=1)
    agent = Agent(
        ScriptedLLM([[give(str(number)) for number in range(8)], "done"]),
        delegates=delegates,
        parallel_calls=8,
    )
    with Conversation(agent) as conversation:
        conversation.send_message("go")
        conversation.run()
        assert len(conversation.children) == 1
        assert (
            sum("1 agents work for this conversation" in text for text in results(conversation))
            == 7
        )
        child.go.set()


def test_messages_between_conversations_are_bounded_until_the_user_says_something() -> None:
    store = MemoryStore()
    with Conversation(Agent(ScriptedLLM([])), store, "friend") as friend:
        friend.send_message("hello")
        friend.hosting.hosted = True

        def script(request: Any) -> Any:
            return (
                "done"
                if request.messages[-1]["role"] == "tool"
                and "no more until" in request.messages[-1]["content"]
                else send
            )

        send = ("send_to", {"conversation": "friend", "text": "ping"})
        delegates = Delegates(
            {"researcher": Agent(ScriptedLLM([]))}, send_to=["friend"], max_messages=3
        )
        for user in (True, False, True):  # each new opening continues the count
            with Conversation(
                Agent(ScriptedLLM(script), delegates=delegates), store, "top"
            ) as conversation:
                before = len(results(conversation))
                if user:
                    conversation.send_message("go")
                else:
                    store.post("top", Send((TextContent("more?"),), sender="friend"))
                assert conversation.run().status is S.FINISHED
                *replies, refused = results(conversation)[before:]
                assert replies == ["Sent to friend."] * (3 if user else 0)
                assert "has sent 3 messages to others since the user's last message" in refused
