"""`next_action` is a pure match. Each row is a journal and the action that follows from it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import Limits, ToolResult
from holdfast import events as ev
from holdfast.content import TextContent, ToolCall, Usage
from holdfast.conversation.actions import (
    AwaitEvents,
    CallModel,
    RecoverCalls,
    RunCalls,
    Stop,
    next_action,
)
from holdfast.conversation.state import ConversationStatus, Fold, fold

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ONE = ToolCall("3.0", "one")
TWO = ToolCall("3.1", "two")


def journal(*parts: tuple[type[Any], dict[str, Any]]) -> list[Any]:
    return [
        kind(seq=n, id=str(n), timestamp=NOW + timedelta(seconds=n), **fields)
        for n, (kind, fields) in enumerate(parts, 1)
    ]


def message(text: str = "go") -> tuple[type[Any], dict[str, Any]]:
    return ev.MessageAdded, {"content": (TextContent(text),)}


def status(name: str) -> tuple[type[Any], dict[str, Any]]:
    return ev.StatusChanged, {"status": name}


def answer(
    based_on: int, *calls: ToolCall, text: str = "done", **more: Any
) -> tuple[type[Any], dict[str, Any]]:
    return ev.AssistantReplied, {"based_on": based_on, "calls": calls, "text": text, **more}


def start(call: ToolCall) -> tuple[type[Any], dict[str, Any]]:
    return ev.ToolCallStarted, {"call_id": call.id}


def result(call: ToolCall) -> tuple[type[Any], dict[str, Any]]:
    return ev.ToolCallFinished, {"call_id": call.id, "result": ToolResult("ok")}


RUN = (message(), status("running"))

CASES = {
    "a new conversation waits": ((), AwaitEvents()),
    "a message to one that nobody started waits": ((message(),), AwaitEvents()),
    "a message in a run is answered": (RUN, CallModel()),
    "the first call that never started is run": ((*RUN, answer(2, ONE, TWO)), RunCalls((ONE,))),
    "a started call without a result was left by a dead owner": (
        (*RUN, answer(2, ONE, TWO), start(ONE)),
        RecoverCalls((ONE,)),
    ),
    "what is left of a batch is run": (
        (*RUN, answer(2, ONE, TWO), start(ONE), result(ONE)),
        RunCalls((TWO,)),
    ),
    "results are answered": ((*RUN, answer(2, ONE), start(ONE), result(ONE)), CallModel()),
    "an answer without a call ends the run": (
        (*RUN, answer(2)),
        Stop(ConversationStatus.FINISHED),
    ),
    "a message that the answer did not see goes on": (
        (*RUN, message("and"), answer(2)),
        CallModel(),
    ),
    "a message after the answer goes on": ((*RUN, answer(2), message("and")), CallModel()),
    "a pause waits": ((*RUN, status("paused")), AwaitEvents()),
    "a pause waits before queued calls": (
        (*RUN, answer(2, ONE), status("paused")),
        AwaitEvents(),
    ),
    "waiting for confirmation waits, also with a message": (
        (*RUN, answer(2, ONE), status("waiting_for_confirmation"), message()),
        AwaitEvents(),
    ),
    "an error waits": ((*RUN, status("error")), AwaitEvents()),
    "three blanks in a row are stuck": (
        (*RUN, answer(2, text=""), message(), answer(4, text=" "), message(), answer(6, text="")),
        Stop(ConversationStatus.STUCK, "3 answers in a row were empty or cut off"),
    ),
    "a refusal is no blank": (
        (
            *RUN,
            *(answer(2, text="", stop_reason="refusal"), message()),
            *(answer(4, text="", stop_reason="refusal"), message()),
            answer(6, text="", stop_reason="refusal"),
        ),
        Stop(ConversationStatus.FINISHED),
    ),
    "a word in between is no blank": (
        (
            *RUN,
            answer(2, text=""),
            message(),
            answer(4, text="hm"),
            message(),
            answer(6, text=""),
            message(),
        ),
        CallModel(),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_next_action(name: str) -> None:
    parts, expected = CASES[name]
    assert next_action(fold(journal(*parts))) == expected


@pytest.mark.parametrize(
    ("limits", "kind"),
    [
        (Limits(steps=1), "steps"),
        (Limits(tokens=15), "tokens"),
        (Limits(cost=0.5), "cost"),
        (Limits(seconds=3), "seconds"),
    ],
)
def test_a_run_stops_at_its_limit(limits: Limits, kind: str) -> None:
    action = next_action(
        fold(
            journal(
                *RUN, answer(2, usage=Usage(10, 5), cost=0.5), message("more"), message("and more")
            )
        ),
        limits,
    )
    assert isinstance(action, Stop)
    assert action.status is ConversationStatus.ERROR
    assert action.limit is not None
    assert action.limit[0] == kind


def test_a_limit_counts_one_run_and_a_resumed_pause_is_the_same_run() -> None:
    first = (*RUN, answer(2), status("finished"))
    assert (
        next_action(fold(journal(*first, message(), status("running"))), Limits(steps=1))
        == CallModel()
    )
    paused = (
        *RUN,
        answer(2, ONE),
        start(ONE),
        result(ONE),
        status("paused"),
        status("running"),
    )
    assert isinstance(next_action(fold(journal(*paused)), Limits(steps=1)), Stop)


@pytest.mark.parametrize("field", ["steps", "tokens", "cost", "seconds"])
@pytest.mark.parametrize("value", [0, -1, "10", True])
def test_a_limit_that_is_no_number_above_zero_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field):
        Limits(**{field: value})


def test_a_journal_folded_at_once_is_what_it_is_event_by_event() -> None:
    parts = (
        *RUN,
        answer(2, ONE, usage=Usage(3, 2), cost=0.25),
        start(ONE),
        result(ONE),
        message("more"),
        answer(7, usage=Usage(1, 1)),
        status("finished"),
        message("again"),
        status("running"),
        answer(11, ONE, TWO),
        start(ONE),
        result(ONE),
        status("paused"),
        status("running"),
        answer(17, text=""),
        message(),
        status("error"),
        message(),
        answer(20, text="", usage=Usage(5)),
    )

    def fields(state: Fold) -> dict[str, Any]:
        names = [name for name in Fold.__slots__ if name not in ("_usage", "_uncounted", "open")]
        calls = {
            call_id: (item.attempt, item.ask_reason, item.arguments)
            for call_id, item in state.open.items()
        }
        return {
            "usage": state.usage,
            "open": calls,
            **{name: getattr(state, name) for name in names},
        }

    events = journal(*parts)
    one_by_one = Fold()
    for length, event in enumerate(events, 1):
        one_by_one.apply(event)
        assert fields(fold(events[:length])) == fields(one_by_one)
        assert fields(one_by_one.copy()) == fields(one_by_one)


def test_time_that_a_run_is_paused_or_waits_for_a_decision_does_not_count() -> None:
    # One second passes from event to event; the run worked for 5 of its 8 seconds.
    parts = (
        *RUN,
        answer(2, ONE),
        status("paused"),
        message(),
        status("running"),
        start(ONE),
        result(ONE),
        status("waiting_for_confirmation"),
    )
    events = journal(*parts, status("running"))
    assert next_action(fold(events), Limits(seconds=6)) == CallModel()
    action = next_action(fold(events), Limits(seconds=5))
    assert isinstance(action, Stop)
    assert action.limit == ("seconds", 5.0, 5)
