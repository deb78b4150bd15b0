"""An agent that repeats itself gets a message, then the run stops. An agent that makes progress
is not disturbed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    Agent,
    Conversation,
    ConversationState,
    Limits,
    MemoryStore,
    ScriptedLLM,
    SQLiteStore,
    Tool,
    load_agent,
)
from holdfast import ConversationStatus as S
from holdfast import events as ev
from holdfast.agent import StuckDetector
from holdfast.agent.condenser import Condensed
from holdfast.content import ErrorInfo, TextContent, ToolCall, ToolResult
from holdfast.conversation.actions import CallModel, Nudge, Stop, next_action
from holdfast.conversation.replay import replay
from holdfast.conversation.state import Fold, fold
from holdfast.errors import ConfigurationError, ToolError
from holdfast.testing import crash_at_every_append

STUCK = StuckDetector()


def tool(name: str, work: Callable[[str], Any] = lambda text: "the same") -> Tool:
    def callback(text: str = "") -> Any:
        return work(text)

    return Tool(name, "", callback)


def run(script: Sequence[Any], tools: Sequence[Tool], **options: Any) -> ConversationState:
    with Conversation(Agent(ScriptedLLM(list(script)), tools, **options)) as conversation:
        conversation.send_message("go")
        state = conversation.run()
        assert conversation.replay(Agent(ScriptedLLM([]), tools, **options)).same
        assert conversation.replay().same
        return state


def loop_messages(state: ConversationState) -> list[str]:
    """Return the topics of the loop's messages, each with the number of answers before it."""
    topics, steps = [], 0
    for event in state.events:
        steps += isinstance(event, ev.AssistantReplied)
        if isinstance(event, ev.MessageAdded) and event.about:
            assert event.sender == "holdfast"
            topics.append(f"{event.about} after {steps}")
    return topics


def reason(state: ConversationState) -> str:
    last = state.events[-1]
    assert isinstance(last, ev.StatusChanged)
    return last.reason


# --- patterns ---


def test_the_same_call_with_the_same_result_is_told_of_and_then_stuck() -> None:
    state = run([("look", {"text": "a"})] * 20, [tool("look")])
    assert (state.status, state.steps, loop_messages(state)) == (
        S.STUCK,
        7,
        ["stuck:repeat after 4"],
    )
    assert (
        reason(state)
        == "the same call 7 times in a row with the same result (look), 3 of them after the model"
        " was told"
    )


def test_an_agent_that_follows_the_nudge_goes_on() -> None:
    state = run([("look", {"text": "a"})] * 5 + [("look", {"text": "b"}), "Done."], [tool("look")])
    assert (state.status, loop_messages(state)) == (S.FINISHED, ["stuck:repeat after 4"])


def test_a_pattern_that_comes_again_is_told_of_again() -> None:
    script = [
        *[("look", {"text": "a"})] * 4,
        ("look", {"text": "b"}),
        *[("look", {"text": "a"})] * 4,
        "Done.",
    ]
    assert loop_messages(run(script, [tool("look")])) == [
        "stuck:repeat after 4",
        "stuck:repeat after 9",
    ]


def test_polling_whose_result_changes_is_no_repeat() -> None:
    numbers = iter(range(100))
    state = run([("poll", {})] * 30 + ["Done."], [tool("poll", lambda text: f"{next(numbers)} %")])
    assert (state.status, loop_messages(state)) == (S.FINISHED, [])


def test_a_result_that_says_that_something_is_at_work_is_left_out() -> None:
    waits = tool("wait", lambda text: ToolResult("nothing new", meta={"running": True}))
    state = run([("wait", {})] * 30 + ["Done."], [waits])
    assert (state.status, loop_messages(state)) == (S.FINISHED, [])
    state = run([("look", {}), ("wait", {})] * 4 + ["Done."], [waits, tool("look")])
    assert loop_messages(state) == ["stuck:repeat after 7"]


def test_a_changed_result_begins_the_count_anew() -> None:
    answers = iter(["x", "x", "x", "y", "y", "y", "x", "x", "x"])
    state = run([("look", {})] * 9 + ["Done."], [tool("look", lambda text: next(answers))])
    assert (state.status, loop_messages(state)) == (S.FINISHED, [])


@pytest.mark.parametrize(
    "change", ["arguments", "name", "a second call", "the order", "structured content"]
)
def test_steps_that_differ_are_no_repeat(change: str) -> None:
    one: Any = ("look", {"text": "a"})
    other: Any = {
        "arguments": ("look", {"text": "b"}),
        "name": ("see", {"text": "a"}),
        "a second call": [one, one],
        "the order": [("see", {}), ("look", {})],
        "structured content": one,
    }[change]
    first = [("look", {}), ("see", {})] if change == "the order" else one
    values = iter(range(100))
    look = tool(
        "look",
        (
            (lambda text: ToolResult("n", {"n": next(values)}))
            if change == "structured content"
            else lambda text: "x"
        ),
    )
    script = [*[first] * 3, other, *[first] * 3, "Done."]
    assert loop_messages(run(script, [look, tool("see")])) == []


def test_calls_side_by_side_are_one_step_whatever_order_their_results_come_in() -> None:
    state = run(
        [[("look", {"text": "a"}), ("look", {"text": "b"})]] * 20, [tool("look", lambda text: text)]
    )
    assert (state.status, state.steps, loop_messages(state)) == (
        S.STUCK,
        7,
        ["stuck:repeat after 4"],
    )


def test_two_steps_that_take_turns_are_ping_pong() -> None:
    state = run([("a", {}), ("b", {})] * 10, [tool("a"), tool("b")])
    assert (state.status, state.steps, loop_messages(state)) == (
        S.STUCK,
        9,
        ["stuck:ping-pong after 6"],
    )
    assert reason(state).startswith(
        "two alternating steps, 9 in a row with the same results (the last: a)"
    )
    values = iter(range(100))
    assert (
        loop_messages(
            run(
                [*[("a", {}), ("b", {})] * 10, "Done."],
                [tool("a", lambda text: str(next(values))), tool("b")],
            )
        )
        == []
    )


def fails(text: str) -> Any:
    raise ToolError(text, "not_found")


def test_calls_that_fail_in_the_same_way_are_an_error_loop_whatever_their_arguments() -> None:
    def late(text: str) -> Any:
        raise ToolError(
            f"no answer after {len(text) * 1.5} s at 12:{len(text):02}:00 from 0x7f{len(text)}",
            "timeout",
        )

    state = run([("fetch", {"text": "x" * n}) for n in range(20)], [tool("fetch", late)])
    assert (state.status, state.steps, loop_messages(state)) == (
        S.STUCK,
        8,
        ["stuck:errors after 5"],
    )
    assert (
        reason(state)
        == "8 steps in a row failed in the same way (fetch), 3 of them after the model was told"
    )


def test_errors_that_differ_are_no_loop() -> None:
    assert (
        loop_messages(
            run(
                [*[("read", {"text": f"{word}.txt"}) for word in "abcdefghij"], "Done."],
                [tool("read", fails)],
            )
        )
        == []
    )
    script = [
        *[("read", {"text": "same"})] * 3,
        ("look", {}),
        *[("read", {"text": "same"})] * 3,
        "Done.",
    ]
    assert loop_messages(run(script, [tool("read", fails), tool("look")])) == []


def test_numbers_count_in_results_and_not_in_errors() -> None:
    numbers = iter(range(100))

    def work(text: str) -> Any:
        if text:
            raise ToolError(f"process {next(numbers)} died", retryable=False)
        return f"process {next(numbers)} is up"

    assert loop_messages(run([("run", {"text": "x"})] * 4 + ["Done."], [tool("run", work)])) == [
        "stuck:repeat after 4"
    ]
    assert loop_messages(run([("run", {})] * 10 + ["Done."], [tool("run", work)])) == []


def test_calls_that_cannot_be_read_or_have_no_tool_are_compared_too() -> None:
    state = run([("nothing", {"a": 1})] * 20, [])
    assert (state.status, loop_messages(state)) == (S.STUCK, ["stuck:repeat after 4"])
    broken = [
        ToolCall("", "look", raw=f'{{"text": {"[" * n}', invalid="it is no JSON")
        for n in (1, 2, 3, 4)
    ]
    assert loop_messages(run([*broken, "Done."], [tool("look")])) == []
    assert loop_messages(run([*[broken[0]] * 4, "Done."], [tool("look")])) == [
        "stuck:repeat after 4"
    ]


def test_answers_without_a_call_where_the_run_goes_on_are_a_monologue() -> None:
    state = run(["I think."] * 20, [], output_type={"type": "object"}, output_rounds=50)
    assert (state.status, state.steps) == (S.STUCK, 7)
    assert [one for one in loop_messages(state) if not one.startswith("output")] == [
        "stuck:monologue after 4"
    ]
    assert reason(state) == "7 answers in a row without a call, 3 of them after the model was told"


def test_a_talk_with_a_user_is_no_monologue() -> None:
    with Conversation(Agent(ScriptedLLM(["Yes."] * 12))) as conversation:
        for _ in range(12):
            conversation.send_message("And?")
            assert conversation.run().status is S.FINISHED
        assert loop_messages(conversation.state) == []


# --- resets of the count ---


@pytest.mark.parametrize("sender", ["user", "another-conversation"])
def test_a_message_ends_a_pattern(sender: str) -> None:
    calls = 0

    def look(text: str) -> str:
        nonlocal calls
        calls += 1
        if calls == 3:
            conversation.send_message("still there?", sender=sender)
        return "the same"

    with Conversation(
        Agent(ScriptedLLM([("look", {})] * 6 + ["Done."]), [tool("look", look)])
    ) as conversation:
        conversation.send_message("go")
        state = conversation.run()
    # The count begins again with the step in which the message arrived.
    assert (state.steps, loop_messages(state)) == (7, ["stuck:repeat after 6"])


def test_resume_after_stuck_starts_anew() -> None:
    with Conversation(Agent(ScriptedLLM([("look", {})] * 40), [tool("look")])) as conversation:
        conversation.send_message("go")
        assert conversation.run().steps == 7
        conversation.resume()
        state = conversation.run()
        assert (state.status, state.steps) == (S.STUCK, 14)
        assert loop_messages(state) == ["stuck:repeat after 4", "stuck:repeat after 11"]
        conversation.send_message("try again")
        assert conversation.run().steps == 21
        assert conversation.replay().same


def test_a_pause_does_not_begin_anew() -> None:
    calls = 0

    def look(text: str) -> str:
        nonlocal calls
        calls += 1
        if calls == 2:
            conversation.pause()
        return "the same"

    with Conversation(
        Agent(ScriptedLLM([("look", {})] * 40), [tool("look", look)])
    ) as conversation:
        conversation.send_message("go")
        assert conversation.run().status is S.PAUSED
        state = conversation.run()
    assert (state.status, state.steps, loop_messages(state)) == (
        S.STUCK,
        7,
        ["stuck:repeat after 4"],
    )


class All:
    """A condenser that leaves out the whole view."""

    def condense(self, journal: Sequence[ev.AnyEvent], reason: Any, cancelled: Any) -> Condensed:
        return Condensed(
            tuple(
                [
                    event.seq
                    for event in journal
                    if isinstance(event, ev.MessageAdded | ev.AssistantReplied)
                ]
            ),
            "It looked.",
        )


def test_a_condensation_begins_anew_for_those_who_saw_it_and_those_who_open_its_tail(
    tmp_path: Path,
) -> None:
    store = SQLiteStore(tmp_path / "store.db")
    calls = 0

    def look(text: str) -> str:
        nonlocal calls
        calls += 1
        if calls == 3:
            conversation.condense()
        if calls == 5:
            conversation.pause()
        return "the same"

    agent = Agent(ScriptedLLM(_again), [tool("look", look)], condenser=All())
    with Conversation(agent, store, "c") as conversation:
        conversation.send_message("go")
        assert conversation.run().status is S.PAUSED
        assert store.tail("c")[0].seq > 1
    with Conversation(agent, store, "c") as conversation:
        state = conversation.run()
        assert (state.status, state.steps, loop_messages(state)) == (
            S.STUCK,
            10,
            ["stuck:repeat after 7"],
        )
        assert conversation.replay(Agent(ScriptedLLM(_again), [tool("look")], condenser=All())).same
        assert conversation.replay().same
    store.close()


# --- settings ---


def test_each_pattern_can_be_switched_off() -> None:
    repeats = [*[("look", {})] * 12, "Done."]
    assert loop_messages(run(repeats, [tool("look")], stuck=StuckDetector(repeat=None))) == []
    assert (
        loop_messages(
            run(
                [*[("a", {}), ("b", {})] * 6, "Done."],
                [tool("a"), tool("b")],
                stuck=StuckDetector(ping_pong=None),
            )
        )
        == []
    )
    failing = [*[("read", {"text": str(n)}) for n in range(12)], "Done."]
    assert (
        loop_messages(run(failing, [tool("read", fails)], stuck=StuckDetector(errors=None))) == []
    )
    assert loop_messages(run(repeats, [tool("look")], stuck=None)) == []


def test_thresholds_are_the_agents() -> None:
    state = run([("look", {})] * 20, [tool("look")], stuck=StuckDetector(repeat=2, after_nudge=1))
    assert (state.status, state.steps, loop_messages(state)) == (
        S.STUCK,
        3,
        ["stuck:repeat after 2"],
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"repeat": 1},
        {"ping_pong": 3},
        {"errors": 0},
        {"monologue": True},
        {"after_nudge": None},
        {"repeat": 2.5},
        {"after_nudge": 0},
    ],
)
def test_a_number_that_is_no_pattern_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(
        ConfigurationError, match=f"StuckDetector: {next(iter(wrong))} takes a whole number from"
    ):
        StuckDetector(**wrong)
    with pytest.raises(ConfigurationError, match="Agent: stuck takes StuckDetector"):
        Agent(ScriptedLLM([]), stuck=wrong)  # type: ignore[arg-type]


def test_an_agents_file_and_its_serial_form_have_the_settings() -> None:
    model = {"use": "scripted", "parameters": {"script": []}}
    assert load_agent({"model": model}).stuck == StuckDetector()
    assert load_agent({"model": model, "stuck": None}).stuck is None
    agent = load_agent({"model": model, "stuck": {"repeat": 9, "monologue": None}})
    assert agent.stuck == StuckDetector(repeat=9, monologue=None)
    for one in (agent, Agent(ScriptedLLM([])), Agent(ScriptedLLM([]), stuck=None)):
        assert Agent.from_json(one.to_json()).stuck == one.stuck
    with pytest.raises(ConfigurationError, match=r"stuck.*Known here: repeat"):
        load_agent({"model": model, "stuck": {"repeats": 9}})
    with pytest.raises(ConfigurationError, match=r"repeat.*a whole number from 2"):
        load_agent({"model": model, "stuck": {"repeat": 1}})


def test_a_limit_comes_before_a_nudge() -> None:
    state = run([("look", {})] * 20, [tool("look")], limits=Limits(steps=4))
    assert (state.status, loop_messages(state)) == (S.ERROR, [])


# --- the fold ---


def _journal(seed: int, length: int) -> list[ev.AnyEvent]:
    """Return a random legal journal of few calls, results, texts, messages, nudges, waits, rests
    and condensations."""
    rng = random.Random(seed)
    events: list[ev.AnyEvent] = []
    now = datetime(2026, 1, 1, tzinfo=UTC)

    def add(kind: Any, **fields: Any) -> None:
        events.append(kind(seq=len(events) + 1, id=str(len(events)), timestamp=now, **fields))

    add(ev.MessageAdded, content=(TextContent("go"),))
    add(ev.StatusChanged, status="running")
    likely = rng.choice(["ab", "abc", "aaab", "turns"])
    for number in range(length):
        what = rng.random()
        if what < 0.7:
            seq = len(events) + 1
            names = (
                ["ac"[number % 2]]
                if likely == "turns"
                else [rng.choice(likely) for _ in range(rng.choice([1, 1, 1, 2]))]
            )
            numbers = [1] if likely == "turns" else [1, 1, 1, 2]
            calls = tuple(
                [
                    ToolCall(f"{seq}.{index}", name, {"n": rng.choice(numbers)})
                    for index, name in enumerate(names)
                ]
            )
            add(ev.AssistantReplied, calls=calls, based_on=seq - 1)
            for call in sorted(calls, key=lambda call: rng.random()):
                if rng.random() < 0.05:
                    add(ev.MessageAdded, content=(TextContent("and"),))
                failed = call.name == "b"
                meta = {"running": True} if rng.random() < 0.1 else {}
                add(
                    ev.ToolCallFinished,
                    call_id=call.id,
                    result=ToolResult(
                        "x", None, meta, failed, ErrorInfo("internal", "x") if failed else None
                    ),
                )
        elif what < 0.78 and likely != "turns":
            add(ev.AssistantReplied, text="hm", based_on=len(events))
            add(ev.MessageAdded, content=(TextContent("go on"),), sender="holdfast", about="hook:x")
        elif what < 0.81:
            add(
                ev.MessageAdded,
                content=(TextContent("more"),),
                sender=rng.choice(["user", "holdfast", "c2"]),
            )
        elif what < 0.83:
            add(ev.StatusChanged, status=rng.choice(["finished", "stuck", "paused"]))
            add(ev.StatusChanged, status="running")
        elif what < 0.84:
            add(ev.HistoryCondensed, hidden=(1,), summary="s")
        state = fold(events)
        action = next_action(state, Limits(None), None, STUCK) if not state.open else None
        if isinstance(action, Nudge):
            add(
                ev.MessageAdded,
                content=(TextContent(action.text),),
                sender="holdfast",
                about=action.about,
            )
        elif isinstance(action, Stop):
            add(ev.StatusChanged, status=action.status.value)
            add(ev.MessageAdded, content=(TextContent("again"),))
            add(ev.StatusChanged, status="running")
    return events


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_a_journal_read_at_once_in_parts_or_event_by_event_comes_to_the_same(seed: int) -> None:
    events = _journal(seed, 40)
    one = Fold()
    for index, event in enumerate(events):
        one.apply(event)
        if index % 3 == 0:
            assert fold(events[: index + 1]).recent == one.recent
    rng = random.Random(seed)
    parts = Fold()
    cuts = sorted(rng.sample(range(len(events)), 3))
    for start, end in zip([0, *cuts], [*cuts, len(events)], strict=True):
        parts.take(events[start:end])
        parts = parts.copy()
    assert parts.recent == one.recent


@pytest.mark.slow
def test_the_journals_of_that_test_have_what_they_are_to_have() -> None:
    abouts = {
        event.about
        for seed in range(60)
        for event in _journal(seed, 40)
        if isinstance(event, ev.MessageAdded)
    }
    assert {"stuck:repeat", "stuck:ping-pong", "stuck:errors"} <= abouts


def test_a_copy_goes_its_own_way() -> None:
    events = run([("look", {})] * 20, [tool("look")]).events
    one = fold(events[:8])
    other = one.copy()
    for event in events[8:]:
        one.apply(event)
    assert other.recent == fold(events[:8]).recent


def test_results_are_compared_only_where_the_calls_are_the_same() -> None:
    class Big(str):
        compared = 0

        def __eq__(self, other: object) -> bool:
            Big.compared += 1
            return str.__eq__(self, other)  # type: ignore[arg-type]

        __hash__ = str.__hash__

    now, state = datetime(2026, 1, 1, tzinfo=UTC), Fold()
    for number in range(100):
        seq = 2 * number + 1
        call = ToolCall(f"{seq}.0", "look", {"n": number // 10})
        state.apply(ev.AssistantReplied(seq=seq, id="a", timestamp=now, calls=(call,)))
        result = ToolResult((TextContent(Big("x" * 100)),))
        state.apply(
            ev.ToolCallFinished(seq=seq + 1, id="r", timestamp=now, call_id=call.id, result=result)
        )
    assert 80 <= Big.compared <= 100


# --- kill and replay ---


def circling(store: Any, folder: Path) -> None:
    with Conversation(Agent(ScriptedLLM(_again), [tool("look")]), store, "c") as conversation:
        if not conversation.state.events:
            conversation.send_message("go")
        conversation.run() if conversation.status is not S.STUCK else None


def _again(transcript: Any) -> Any:
    return ("look", {"text": "a"})


@pytest.mark.slow
def test_after_sigkill_at_every_append_it_is_told_once_and_stuck_at_the_same_step(
    tmp_path: Path,
) -> None:
    kills = 0
    for crash in crash_at_every_append(circling, folder=tmp_path):
        kills = crash.number
        state = ConversationState("c", crash.after)
        # A call with a lost result is another step, since its result says so. The model is told
        # later, but never twice.
        assert state.status is S.STUCK, str(crash)
        nudges = [one for one in loop_messages(state) if one.startswith("stuck:")]
        assert nudges == ["stuck:repeat after 4"] or any(
            "outcome" in event.result.meta
            for event in crash.after
            if isinstance(event, ev.ToolCallFinished)
        )
        assert replay(crash.after, Agent(ScriptedLLM(_again), [tool("look")])).same, str(crash)
        assert replay(crash.after).same, str(crash)
    assert kills > 20


def test_one_that_is_opened_again_between_the_nudge_and_the_next_answer_counts_on(
    tmp_path: Path,
) -> None:
    class Ended(BaseException):
        pass

    steps = 0

    def answer(transcript: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == 5:
            raise Ended
        return ("look", {"text": "a"})

    with SQLiteStore(tmp_path / "store.db") as store:
        with Conversation(Agent(ScriptedLLM(answer), [tool("look")]), store, "c") as conversation:
            conversation.send_message("go")
            with pytest.raises(Ended):
                conversation.run()
        with Conversation(Agent(ScriptedLLM(_again), [tool("look")]), store, "c") as conversation:
            state = conversation.run()
            assert (state.status, state.steps, loop_messages(state)) == (
                S.STUCK,
                7,
                ["stuck:repeat after 4"],
            )
            assert conversation.replay().same


def test_a_replay_with_other_settings_says_what_differs() -> None:
    looks = [tool("look")]
    with Conversation(Agent(ScriptedLLM([("look", {})] * 20), looks)) as conversation:
        conversation.send_message("go")
        conversation.run()
        result = conversation.replay(Agent(ScriptedLLM([]), looks, stuck=None))
        assert "- the model is told: 'You have made the same call 4 times" in str(result)
        result = conversation.replay(Agent(ScriptedLLM([]), looks, stuck=StuckDetector(repeat=3)))
        assert "+ the model is told: 'You have made the same call 3 times" in str(result)
        result = conversation.replay(
            Agent(ScriptedLLM([]), looks, stuck=StuckDetector(after_nudge=9))
        )
        assert "- the run is over: stuck\n+ the model is asked" in str(result)


def test_a_journal_without_nudges_replays_as_before() -> None:
    looks = [tool("look")]
    with Conversation(
        Agent(ScriptedLLM([*[("look", {})] * 20, "Done."]), looks, stuck=None)
    ) as conversation:
        conversation.send_message("go")
        assert conversation.run().status is S.FINISHED
        assert conversation.replay().same
        assert conversation.replay(Agent(ScriptedLLM([]), looks, stuck=None)).same
        assert not conversation.replay(Agent(ScriptedLLM([]), looks)).same


def test_a_fork_and_a_saved_state_count_on() -> None:
    store = MemoryStore()
    agent = Agent(ScriptedLLM(_again), [tool("look")])
    with Conversation(agent, store, "c") as conversation:
        conversation.send_message("go")
        state = conversation.run()
        at = next(
            event.seq
            for event in state.events
            if isinstance(event, ev.MessageAdded) and event.about
        )
        with conversation.fork(at) as forked:
            assert forked.run().steps == 7
        saved = ConversationState.from_json(state.at(at).to_json())
        with Conversation.from_state(saved, agent) as again:
            assert again.run().steps == 7


def test_next_action_without_a_detector_sees_nothing() -> None:
    events = run([*[("look", {})] * 9, "Done."], [tool("look")], stuck=None).events
    at = next(
        index
        for index, event in enumerate(events)
        if isinstance(event, ev.AssistantReplied) and index > 20
    )
    assert next_action(fold(events[:at])) == CallModel()
    assert isinstance(next_action(fold(events[:at]), stuck=STUCK), Nudge)
