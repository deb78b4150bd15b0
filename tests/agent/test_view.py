"""The view is a pure function of the journal: what the model receives, and in which order."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import ToolResult
from holdfast import events as ev
from holdfast.agent.view import View
from holdfast.content import TextContent, ToolCall

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Script:
    """A journal that a test writes event by event."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def add(self, kind: type[Any], **fields: Any) -> Any:
        seq = len(self.events) + 1
        event = kind(seq=seq, id=str(seq), timestamp=NOW, **fields)
        self.events.append(event)
        return event

    def say(self, text: str) -> None:
        self.add(ev.MessageAdded, content=(TextContent(text),))

    def answer(self, text: str, calls: int = 0, based_on: int | None = None) -> ev.AssistantReplied:
        seq = len(self.events) + 1
        tool_calls = tuple(ToolCall(f"{seq}.{n}", "t") for n in range(calls))
        return self.add(
            ev.AssistantReplied,
            text=text,
            calls=tool_calls,
            based_on=len(self.events) if based_on is None else based_on,
        )

    def result(self, call: ToolCall, text: str) -> None:
        self.add(ev.ToolCallFinished, call_id=call.id, result=ToolResult(text))


def view_texts(events: list[Any]) -> list[str]:
    transcript = View.of(events).ready()
    return [item[1].text if isinstance(item, tuple) else item.text for item in transcript.items]  # type: ignore[union-attr]


def test_results_stand_in_call_order_whatever_order_they_came_in() -> None:
    script = Script()
    script.say("go")
    answer = script.answer("a", calls=3)
    for index in (2, 0, 1):
        script.result(answer.calls[index], f"r{index}")
    assert view_texts(script.events) == ["go", "a", "r0", "r1", "r2"]


def test_a_message_that_came_while_the_model_was_answering_follows_that_answer() -> None:
    script = Script()
    script.say("one")
    script.say("two")
    script.answer("a", based_on=1)
    assert view_texts(script.events) == ["one", "a", "two"]


def test_a_message_that_came_during_a_batch_follows_its_results() -> None:
    script = Script()
    script.say("go")
    script.say("early")
    answer = script.answer("a", calls=2, based_on=1)
    script.result(answer.calls[1], "r1")
    script.say("late")
    script.result(answer.calls[0], "r0")
    assert view_texts(script.events) == ["go", "a", "r0", "r1", "early", "late"]


def test_a_second_result_of_one_call_is_not_shown() -> None:
    script = Script()
    script.say("go")
    answer = script.answer("a", calls=1)
    script.result(answer.calls[0], "first")
    script.result(answer.calls[0], "second")
    assert view_texts(script.events) == ["go", "a", "first"]


def test_a_condensation_hides_what_it_names_and_its_summary_stands_there() -> None:
    script = Script()
    script.say("go")
    answer = script.answer("a", calls=1)
    script.result(answer.calls[0], "long")
    script.answer("b")
    script.say("next")
    script.add(ev.HistoryCondensed, hidden=(2, 3), summary="did a")
    assert view_texts(script.events) == ["go", "did a", "b", "next"]


@pytest.mark.slow
@given(st.data())
def test_what_a_request_contained_stays_the_beginning_of_every_later_one(
    data: st.DataObject,
) -> None:
    """A provider's cached prefix stays valid. A view that is fed event by event equals the view
    of the whole journal."""
    script = Script()
    growing = View()
    fed = 0
    requests: list[list[str]] = []
    script.say("start")
    for step in range(data.draw(st.integers(1, 6))):
        for event in script.events[fed:]:
            growing.feed(event)
        fed = len(script.events)
        requests.append(
            [
                item[1].text if isinstance(item, tuple) else item.text
                for item in growing.ready().items
            ]
        )  # type: ignore[union-attr]
        assert requests[-1] == view_texts(script.events)
        based_on = len(script.events)
        for n in range(data.draw(st.integers(0, 2))):
            script.say(f"in flight {step}.{n}")
        answer = script.answer(f"a{step}", data.draw(st.integers(0, 3)), based_on)
        for call in data.draw(st.permutations(answer.calls)):
            if data.draw(st.booleans()):
                script.say(f"during {call.id}")
            script.result(call, f"r{call.id}")
    for earlier, later in itertools.pairwise(requests):
        assert later[: len(earlier)] == earlier
