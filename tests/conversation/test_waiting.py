"""`ToolContext.wake_at` and the tool `wait_until`: a sleeping conversation is only a row in the
store."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    Agent,
    Conversation,
    ConversationStatus,
    MemoryStore,
    ScriptedLLM,
    SQLiteStore,
    ToolAnnotations,
    ToolContext,
    tool,
)
from holdfast import events as ev
from holdfast.errors import ConfigurationError
from holdfast.testing import crash_at_every_append
from holdfast.tools.preset.waiting import register_waiting_tools

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
WOKEN = "[This is the time at which you asked to be woken.]"


class Clock:
    """A clock that stands still until a test sets it."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def wait(**arguments: Any) -> tuple[str, dict[str, Any]]:
    return "wait_until", {"note": "Look at the build.", **arguments}


def conversation(store: Any, clock: Clock, *answers: Any, **fields: Any) -> Conversation:
    tools = [*register_waiting_tools(), *fields.pop("tools", ())]
    agent = Agent(ScriptedLLM([*answers]), tools=tools, **fields)
    return Conversation(agent, store, "c", clock=clock)


def result(c: Conversation) -> str:
    events = [one for one in c.get_history() if isinstance(one, ev.ToolCallFinished)]
    return events[-1].result.text


def test_waiting_ends_the_run_until_the_time(store: MemoryStore, clock: Clock) -> None:
    before = threading.active_count()
    with conversation(store, clock, wait(minutes=90), "It is green.") as c:
        c.send_message("Watch the build.")
        state = c.run()
        assert state.status is ConversationStatus.IDLE
        assert state.steps == 1
        assert result(c) == "You are woken at 2026-11-23 13:30:00+00:00. This run ends now."
    assert threading.active_count() == before
    assert [one.due for one in store.due(NOON + 9 * HOUR)] == [NOON + 1.5 * HOUR]
    clock.now += 2 * HOUR
    with conversation(store, clock, "It is green.") as c:
        assert c.run().answer == "It is green."
        message = [one for one in c.get_history() if isinstance(one, ev.MessageAdded)][-1]
        assert message.sender == "holdfast"
        assert message.text.startswith(f"{WOKEN}\nLook at the build.")


def test_a_message_wakes_it_earlier_and_the_time_stays(store: MemoryStore, clock: Clock) -> None:
    with conversation(store, clock, wait(minutes=60), "Hello.", "It is green.") as c:
        c.send_message("Watch the build.")
        c.run()
        c.send_message("Still there?")
        assert c.run().answer == "Hello."
        assert [one.id for one in c.timers] == ["wait_until"]
        clock.now += HOUR
        assert c.run().answer == "It is green."


def test_a_second_wait_replaces_the_first(store: MemoryStore, clock: Clock) -> None:
    later = wait(when="2026-11-24T09:00", timezone="Europe/Berlin")
    with conversation(store, clock, wait(minutes=60), later, "done") as c:
        c.send_message("Watch the build.")
        c.run()
        clock.now += HOUR
        assert c.run().status is ConversationStatus.IDLE
        assert [one.due for one in c.timers] == [datetime(2026, 11, 24, 8, tzinfo=UTC)]


def test_calls_beside_a_wait_are_run_first(store: MemoryStore, clock: Clock) -> None:
    @tool
    def look() -> str:
        """Looks."""
        return "red"

    both = [wait(minutes=60), ("look", {})]
    with conversation(store, clock, both, "done", tools=[look]) as c:
        c.send_message("Watch the build.")
        assert c.run().status is ConversationStatus.IDLE
        assert c.state.pending_calls == ()
        assert result(c) == "red"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, "either when or minutes"),
        ({"when": "2026-11-24T09:00Z", "minutes": 5}, "either when or minutes"),
        ({"when": "2026-11-23T11:00Z"}, "is past"),
        ({"minutes": 0}, "is past"),
        ({"minutes": -5}, "is past"),
        ({"minutes": 1e300}, "out of range|too large"),
        ({"minutes": 1e9}, "over a hundred years"),
        ({"when": "soon"}, "such as '2026-11-23T09:00'"),
        ({"when": "2026-11-24T09:00"}, "no time zone"),
        ({"when": "2026-11-24T09:00", "timezone": "Berlin"}, "unknown time zone"),
        ({"minutes": 5, "note": "x" * 20_000}, "at most 10,000"),
    ],
)
def test_a_wrong_time_is_an_error_of_the_call_and_the_run_goes_on(
    store: MemoryStore, clock: Clock, arguments: dict[str, Any], problem: str
) -> None:
    with conversation(store, clock, wait(**arguments), "I go on.") as c:
        c.send_message("Watch the build.")
        assert c.run().answer == "I go on."
        assert c.timers == ()
        [error] = [one for one in c.get_history() if isinstance(one, ev.ToolCallFinished)]
        assert error.result.is_error
        import re

        assert re.search(problem, error.result.text)
    assert store.next_due() is None


def test_a_tool_sets_timers_without_ending_the_run(store: MemoryStore, clock: Clock) -> None:
    @tool
    def remind(context: ToolContext) -> str:
        """Sets two reminders."""
        due = context.wake_at(NOON + HOUR, "first")
        context.wake_at(2 * HOUR, "second")
        context.wake_at(3 * HOUR, id="mine")
        return due.isoformat()

    with conversation(store, clock, ("remind", {}), "set", "1", "2", tools=[remind]) as c:
        c.send_message("Remind me.")
        assert c.run().answer == "set"
        call = next(one for one in c.get_history() if isinstance(one, ev.ToolCallStarted)).call_id
        assert [(one.id, one.due) for one in c.timers] == [
            (f"wake:{call}", NOON + HOUR),
            (f"wake:{call}-2", NOON + 2 * HOUR),
            ("mine", NOON + 3 * HOUR),
        ]
        events = [one for one in c.get_history() if isinstance(one, ev.TimerSet)]
        assert {one.call_id for one in events} == {call}
        clock.now += HOUR
        assert c.run().answer == "1"


def test_a_call_outside_of_a_conversation_cannot_be_woken() -> None:
    with pytest.raises(ConfigurationError, match="nobody to wake"):
        ToolContext().wake_at(HOUR)


def test_a_waiting_conversation_that_a_thread_drives_wakes_by_itself(
    store: MemoryStore, clock: Clock
) -> None:
    from tests.waiting import until

    with conversation(store, clock, wait(minutes=60), "It is green.") as c:
        c.start_thread()
        c.send_message("Watch the build.")
        until(lambda: c.timers and c.status is ConversationStatus.IDLE)
        clock.now += HOUR
        store.ring(clock.now)
        until(lambda: c.state.answer == "It is green.")


def test_a_replay_stops_where_the_run_did(store: MemoryStore, clock: Clock) -> None:
    with conversation(store, clock, wait(minutes=60), "It is green.") as c:
        c.send_message("Watch the build.")
        c.run()
        clock.now += HOUR
        c.run()
        assert c.replay().same


def test_a_waiting_state_outlives_a_condensation(store: MemoryStore, clock: Clock) -> None:
    from holdfast.conversation.fold import Fold

    with conversation(store, clock, wait(minutes=60)) as c:
        c.send_message("Watch the build.")
        c.run()
        journal = c.hosting.journal
        restored = Fold.after(journal.fold.checkpoint(), lambda seq: journal.events[seq - 1])
        assert restored.timers == journal.fold.timers
        assert restored.timers.waits(restored.assistant)


# --- kills ---


def program(store: SQLiteStore, folder: Path) -> None:
    """Work, wait an hour, and continue after the ring."""

    @tool(annotations=ToolAnnotations(idempotent=True))
    def remind(context: ToolContext) -> str:
        """Sets a reminder."""
        return context.wake_at(NOON + HOUR / 2, "half").isoformat()

    clock = Clock()
    answers = {1: ("remind", {}), 2: wait(when="2026-11-23T13:00Z"), 3: "The half.", 4: "The hour."}

    def answer(request: Any) -> Any:
        results = sum(isinstance(one, ev.AssistantReplied) for one in c.get_history())
        return answers[results + 1]

    agent = Agent(ScriptedLLM([answer] * 9), tools=[remind, *register_waiting_tools()])
    with Conversation(agent, store, "c", clock=clock) as c:
        if not any(isinstance(one, ev.MessageAdded) for one in c.get_history()):
            c.send_message("Go.")
        c.run()
    for minutes in (30, 60):
        clock.now = NOON + timedelta(minutes=minutes)
        store.ring(clock.now)
        with Conversation(agent, store, "c", clock=clock) as c:
            c.run()


@pytest.mark.slow
def test_a_kill_at_any_append_leaves_each_reminder_once() -> None:
    for crash in crash_at_every_append(program):
        for events in (crash.after, crash.reference):
            ids = [one.id for one in events if isinstance(one, ev.MessageAdded)]
            woken = [id.rpartition(":2026")[0] for id in ids if id.startswith("timer:")]
            assert len(woken) == 2, str(crash)
            assert woken[0].startswith("timer:wake:"), str(crash)
            assert woken[1] == "timer:wait_until", str(crash)
