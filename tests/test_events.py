"""Tests of events and their stored form: an event of today is read by later versions, and an event
of a later version is kept today."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import commands
from holdfast import events as ev
from holdfast.content import ErrorInfo, TextContent, ToolResult, Usage
from tests.test_content import BLOCKS, CALLS, JSON, OBJECTS, TEXT

NOW = datetime(2026, 11, 2, 9, 30, 0, 123456, tzinfo=UTC)
V1 = (Path(__file__).parent / "data" / "journal_v1.jsonl").read_bytes().split(b"\n")[:-1]

KNOWN: list[Any] = [
    ev.AgentConfigured,
    ev.MessageAdded,
    ev.AssistantReplied,
    ev.DecisionMade,
    ev.ToolCallStarted,
    ev.ToolCallFinished,
    ev.CodeCallsMade,
    ev.HistoryCondensed,
    ev.StatusChanged,
    ev.ErrorRecorded,
    ev.NoteRecorded,
    ev.TimerSet,
    ev.TimerFired,
    ev.AsideAsked,
    ev.AsideAnswered,
    ev.TimerCancelled,
    ev.ConversationLabelled,
]


def event_of(kind: Any, **fields: Any) -> Any:
    return kind(seq=1, id="e", timestamp=NOW, **fields)


# --- stored shapes, version 1 ---


@pytest.mark.parametrize("line", V1, ids=lambda line: str(msgspec.json.decode(line)["seq"]))
def test_a_journal_of_version_1_loads_and_is_written_the_same(line: bytes) -> None:
    event = ev.decode(line)
    assert ev.encode(event) == line
    assert event.to_json() == line


def test_the_stored_journal_has_one_of_every_event() -> None:
    kinds = {type(ev.decode(line)) for line in V1}
    assert kinds == {*KNOWN, ev.UnknownEvent}
    assert set(ev.AnyEvent.__args__) == {*kinds, ev.DamagedEvent}


def test_the_stored_journal_means_what_it_meant() -> None:
    journal = [ev.decode(line) for line in V1]
    assert [event.seq for event in journal] == list(range(1, 23))
    agent, message, _, answer = journal[:4]
    assert isinstance(agent, ev.AgentConfigured)
    assert isinstance(message, ev.MessageAdded)
    assert isinstance(answer, ev.AssistantReplied)
    assert agent.tools[0].wire_name == "files__read"
    assert message.text == 'Grüße 👋 \u2028 "quoted"'
    assert message.content[1].data == b"\x89PNG"  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    assert answer.calls[0].arguments == {"path": "a.txt"}
    assert answer.calls[1].invalid == "not a JSON object"
    assert answer.usage == Usage(120, 30, 100, 10, 5)
    assert (
        bytes(answer.native)
        == b'[{"type":"thinking","signature":"c2ln", "thinking":"It is a file."}]'
    )
    assert answer.timestamp == datetime(2026, 11, 2, 9, 30, 4, tzinfo=UTC)
    failed = journal[8]
    assert isinstance(failed, ev.ToolCallFinished)
    assert failed.result.error == ErrorInfo("validation", "refused")
    assert failed.result.data == {"n": 12345678901234567890123}


# --- round trips ---


TAGS: dict[Any, str] = {
    ev.AgentConfigured: "agent",
    ev.MessageAdded: "message",
    ev.AssistantReplied: "assistant",
    ev.DecisionMade: "decision",
    ev.ToolCallStarted: "toolCallStarted",
    ev.ToolCallFinished: "toolResult",
    ev.CodeCallsMade: "codeCalls",
    ev.HistoryCondensed: "condensation",
    ev.StatusChanged: "status",
    ev.ErrorRecorded: "error",
    ev.NoteRecorded: "note",
    ev.TimerSet: "timerSet",
    ev.TimerFired: "timerFired",
    ev.AsideAsked: "asideAsked",
    ev.AsideAnswered: "asideAnswered",
    ev.TimerCancelled: "timerCancelled",
    ev.ConversationLabelled: "label",
}


@pytest.mark.parametrize("kind", KNOWN)
def test_the_type_in_the_json_is_the_events_type(kind: Any) -> None:
    needed = {field.name: "x" for field in msgspec.structs.fields(kind) if field.required}
    needed |= {
        "seq": 1,
        "timestamp": NOW,
        "due": NOW,
        "content": (),
        "result": ToolResult(),
        "hidden": (),
        "decision": "allow",
        "head": 1,
        "based_on": 1,
        "calls": (),
    }
    event = kind(
        **{name: value for name, value in needed.items() if name in kind.__struct_fields__}
    )
    assert msgspec.json.decode(event.to_json())["type"] == event.type == TAGS[kind]
    assert ev.decode(event.to_json()) == event


def test_the_tags_of_events_and_commands_are_fixed_whatever_their_classes_are_called() -> None:
    """Check the tags, which journals and inboxes contain for ever."""
    assert {kind.__struct_config__.tag for kind in ev.Event.__subclasses__()} == {
        "agent", "message", "assistant", "decision", "toolCallStarted", "toolResult",
        "condensation", "status", "error", "note", "timerSet", "timerFired",
        "timerCancelled", "label", "asideAsked", "asideAnswered", "codeCalls", "unknown", "damaged",
    }  # fmt: skip
    assert {kind.__struct_config__.tag for kind in commands.Command.__args__} == {
        "send", "approve", "reject", "answer", "claim", "return", "settle", "pause", "resume",
        "interrupt", "condense", "use", "schedule", "cancelTimer", "ringTimer",
        "label", "ask",
    }  # fmt: skip


def test_an_event_is_frozen() -> None:
    with pytest.raises(AttributeError):
        event_of(ev.StatusChanged, status="idle").status = "running"


@pytest.mark.slow
@given(
    TEXT,
    TEXT,
    st.lists(CALLS, max_size=3).map(tuple),
    JSON,
    st.floats(0, 1e9),
    st.none() | st.floats(0, 1e3),
)
def test_any_answer_survives_the_journal(
    text: str, reasoning: str, calls: Any, native: Any, duration: float, cost: Any
) -> None:
    raw = msgspec.Raw(msgspec.json.encode(native))
    event = event_of(
        ev.AssistantReplied,
        text=text,
        reasoning=reasoning,
        calls=calls,
        native=raw,
        duration=duration,
        cost=cost,
    )
    data = ev.encode(event)
    assert ev.decode(data) == event
    assert ev.encode(ev.decode(data)) == data


@pytest.mark.slow
@given(st.lists(BLOCKS, max_size=3).map(tuple), OBJECTS)
def test_any_message_and_result_survive_the_journal(content: Any, meta: Any) -> None:
    for event in (
        event_of(ev.MessageAdded, content=content),
        event_of(ev.ToolCallFinished, call_id="1.0", result=ToolResult(content, meta=meta)),
    ):
        assert ev.decode(ev.encode(event)) == event


@pytest.mark.parametrize("native", [msgspec.Raw(), msgspec.Raw(b""), msgspec.Raw("")])
def test_an_answer_without_a_native_form_is_valid_json_whoever_made_the_empty_one(
    native: msgspec.Raw,
) -> None:
    event = event_of(ev.AssistantReplied, text="hi", native=native)
    assert msgspec.json.decode(event.to_json())["text"] == "hi"
    assert bytes(ev.decode(event.to_json()).native) == b""  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType]


def test_a_timestamp_keeps_its_microseconds_and_its_zone() -> None:
    event = ev.decode(event_of(ev.StatusChanged, status="idle").to_json())
    assert event.timestamp == NOW
    assert event.timestamp.tzinfo is not None


# --- newer versions ---

NEWER = (
    b'{ "seq":7,"type":"handoff", "id":"x","timestamp":"2026-01-01T00:00:00Z","to":"b", "n":1.50 }'
)


@pytest.mark.parametrize("data", [NEWER, NEWER.decode()])
def test_an_event_of_a_type_to_come_is_kept_byte_for_byte(data: bytes | str) -> None:
    event = ev.decode(data)
    assert isinstance(event, ev.UnknownEvent)
    assert (event.seq, event.id, event.type, event.original_type) == (7, "x", "handoff", "handoff")
    assert event.to_json() == NEWER


def test_even_a_type_named_unknown_is_kept() -> None:
    data = NEWER.replace(b"handoff", b"unknown")
    assert ev.encode(ev.decode(data)) == data


def test_a_known_event_with_fields_to_come_loads_without_them() -> None:
    line = b'{"type":"status","status":"idle","mood":{"deep":[1]},"seq":1,"id":"e","timestamp":"2026-01-01T00:00:00Z"}'
    event = ev.decode(line)
    assert event == ev.StatusChanged(
        seq=1, id="e", timestamp=datetime(2026, 1, 1, tzinfo=UTC), status="idle"
    )


def test_fields_to_come_may_stand_inside_blocks_and_results() -> None:
    event = event_of(ev.ToolCallFinished, call_id="1.0", result=ToolResult("a"))
    newer = (
        event.to_json()
        .replace(b'"text":"a"', b'"text":"a","lang":"en"')
        .replace(b'"isError"', b'"x":[],"isError"')
    )
    assert newer != event.to_json()
    assert ev.decode(newer) == event


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b'{"type":"status"',
        b'{"seq":1}',
        b'{"type":"handoff"}',
        b"\xff\xfe",
        b'{"type":"status","status":5,"seq":"one"}',
    ],
)
def test_what_is_no_event_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        ev.decode(data)


def test_a_messages_text_is_that_of_its_blocks() -> None:
    assert event_of(ev.MessageAdded, content=(TextContent("a"), TextContent("b"))).text == "a\nb"


def message_at(time: object, kind: object = "message") -> bytes:
    content = [{"type": "text", "text": "hi"}]
    fields = {"type": kind, "seq": 1, "id": "a", "timestamp": time, "content": content}
    return msgspec.json.encode(fields)


def test_a_time_without_a_zone_is_utc() -> None:
    event = ev.decode(message_at("2026-01-02T03:04:05"), 1)
    assert isinstance(event, ev.MessageAdded)
    assert event.timestamp == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert event.text == "hi"
    later = ev.decode(message_at("2026-01-02T03:04:05", "later"))
    assert later.timestamp.tzinfo is not None
    damaged = ev.decode(message_at("today"), 1)
    assert isinstance(damaged, ev.DamagedEvent)


@pytest.mark.parametrize("kind", [[], {}, 5, None])
def test_a_type_that_is_no_text_is_no_event(kind: object) -> None:
    data = message_at("2026-01-02T03:04:05Z", kind)
    assert isinstance(ev.decode(data, 1), ev.DamagedEvent)
    with pytest.raises(ValueError, match="type"):
        ev.decode(data)
