"""`Transcript`: when it encodes an item, which provider gets which native form, and that a step
costs only what it adds."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from holdfast import events
from holdfast.content import ImageContent, Message, TextContent, ToolCall, ToolResult
from holdfast.errors import ConfigurationError
from holdfast.llm.completion import Completion
from holdfast.llm.providers import maker
from holdfast.llm.transcript import Item, Transcript
from holdfast.llm.wires import anthropic_messages, gemini, openai_chat, openai_responses, wire
from holdfast.llm.wires.protocol import Wire

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def message_event(text: str, seq: int = 1) -> events.MessageAdded:
    return events.MessageAdded(seq=seq, id=f"e{seq}", timestamp=NOW, content=(TextContent(text),))


def answer_event(
    text: str = "", calls: tuple[ToolCall, ...] = (), seq: int = 2, **more: Any
) -> events.AssistantReplied:
    return events.AssistantReplied(
        seq=seq, id=f"e{seq}", timestamp=NOW, text=text, calls=calls, **more
    )


def messages_of(transcript: Transcript, model: str = "") -> list[dict[str, Any]]:
    return [
        message
        for fragment in transcript.fragments(openai_chat, {}, model)
        for message in json.loads(b"[" + fragment + b"]")
    ]


class CountingWire:
    """The chat wire, with a count of the encoded items."""

    name = "counting"

    def __init__(self) -> None:
        self.count = 0

    def __getattr__(self, name: str) -> Any:
        if name in ("user", "assistant", "tool"):
            self.count += 1
        return getattr(openai_chat, name)


def test_events_become_messages_in_order() -> None:
    call = ToolCall("2.0", "t", {"a": 1}, "c1")
    transcript = Transcript(
        [
            message_event("hi"),
            answer_event("look", (call,)),
            (call, ToolResult("out")),
            message_event("more", 5),
        ]
    )
    assert [message["role"] for message in messages_of(transcript)] == [
        "user",
        "assistant",
        "tool",
        "user",
    ]
    assert messages_of(transcript)[2]["tool_call_id"] == "c1"


def test_a_fragment_is_made_once_and_only_for_what_is_new() -> None:
    wire: Any = CountingWire()
    transcript = Transcript([message_event("a")])
    first = transcript.fragments(wire, {})[0]
    for number in range(1000):
        transcript.append(message_event(str(number)))
        assert len(transcript.fragments(wire, {})) == number + 2
    assert wire.count == 1001
    assert transcript.fragments(wire, {})[0] is first
    assert wire.count == 1001


def test_fragments_of_a_growing_transcript_are_those_of_the_whole() -> None:
    calls = (ToolCall("2.0", "a", {}, "x"), ToolCall("2.1", "b", {}, "y"))
    picture = ToolResult((ImageContent(b"png"),))
    items: list[Any] = [
        message_event("a"),
        answer_event("", calls),
        (calls[0], picture),
        (calls[1], ToolResult("b")),
        message_event("c"),
        answer_event("d"),
        message_event("e"),
    ]
    growing = Transcript()
    for item in items:
        growing.append(item)
        growing.fragments(openai_chat, {})
    assert list(growing.fragments(openai_chat, {})) == list(
        Transcript(items).fragments(openai_chat, {})
    )


def test_pictures_stand_behind_the_whole_batch() -> None:
    calls = (ToolCall("2.0", "a", {}, "x"), ToolCall("2.1", "b", {}, "y"))
    transcript = Transcript(
        [
            message_event("a"),
            answer_event("", calls),
            (calls[0], ToolResult((ImageContent(b"p"),))),
            (calls[1], ToolResult("b")),
        ]
    )
    assert [message["role"] for message in messages_of(transcript)] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "user",
    ]
    assert messages_of(transcript)[4]["content"][1]["type"] == "image_url"


def test_names_that_change_later_leave_what_was_sent_alone() -> None:
    call = ToolCall("2.0", "s.t", {}, "x")
    transcript = Transcript([message_event("a"), answer_event("", (call,))])
    before = list(transcript.fragments(openai_chat, {"s.t": "s__t"}))
    transcript.append((call, ToolResult("x")))
    assert list(transcript.fragments(openai_chat, {}))[:2] == before


@pytest.mark.parametrize(
    ("then", "now", "goes_back"),
    [
        ("deepseek-reasoner", "deepseek/deepseek-chat", True),
        ("deepseek-reasoner", "gpt-4o", False),
        ("deepseek-reasoner", "my-own", True),  # an unknown host
        ("my-own", "gpt-4o", True),
        ("", "gpt-4o", True),
    ],
)
def test_the_native_form_goes_back_unless_it_is_known_to_be_anothers(
    then: str, now: str, goes_back: bool
) -> None:
    native = msgspec.Raw(b'{"reasoning_details":[{"type":"x"}]}')
    transcript = Transcript(
        [message_event("a"), answer_event("b", native=native, wire="openai_chat", model=then)]
    )
    assert ("reasoning_details" in messages_of(transcript, now)[1]) is goes_back


def test_the_native_form_of_another_wire_is_not_sent() -> None:
    native = msgspec.Raw(b'{"reasoning_details":[{"type":"x"}]}')
    transcript = Transcript([answer_event("b", native=native, wire="gemini", model="m")])
    assert messages_of(transcript, "m") == [{"role": "assistant", "content": "b"}]


def test_two_makers_of_models_have_fragments_of_their_own() -> None:
    native = msgspec.Raw(b'{"reasoning_details":[1]}')
    transcript = Transcript(
        [answer_event("b", native=native, wire="openai_chat", model="deepseek-chat")]
    )
    assert "reasoning_details" in messages_of(transcript, "deepseek-chat")[0]
    assert "reasoning_details" not in messages_of(transcript, "gpt-5")[0]
    assert "reasoning_details" in messages_of(transcript, "deepseek-chat")[0]


def test_makers_are_known_by_their_models_names() -> None:
    assert [
        maker(name)
        for name in ("openai/gpt-5", "o3", "Qwen/Qwen3-32B", "accounts/f/models/deepseek-r1", "x")
    ] == [
        "openai",
        "openai",
        "qwen",
        "deepseek",
        "",
    ]


def test_messages_and_completions_make_a_transcript_too() -> None:
    answer = Completion("", calls=(ToolCall("", "t", {}, "c9"),))
    transcript = Transcript.from_messages(
        [
            Message("s", role="system"),
            Message("hi"),
            answer,
            Message("out", role="tool", tool_call_id="c9"),
        ]
    )
    assert [message["role"] for message in messages_of(transcript)] == [
        "system",
        "user",
        "assistant",
        "tool",
    ]
    assert messages_of(Transcript.from_messages("hi")) == [{"role": "user", "content": "hi"}]
    transcript.say("more")
    assert messages_of(transcript)[-1] == {"role": "user", "content": "more"}
    assert len(transcript) == 5


@pytest.mark.parametrize(
    "item",
    [
        None,
        "x",
        5,
        {"role": "user"},
        ("a", "b"),
        (ToolCall("1", "t"),),
        [ToolCall("1", "t"), ToolResult()],
    ],
)
def test_what_is_no_item_is_refused(item: Any) -> None:
    with pytest.raises(ConfigurationError, match="A transcript takes"):
        Transcript().append(item)


def test_a_tool_message_that_answers_no_call_names_the_calls_there_are() -> None:
    with pytest.raises(ConfigurationError, match="'c9'"):
        Transcript.from_messages(
            [
                Completion(calls=(ToolCall("", "t", {}, "c9"),)),
                Message("x", role="tool", tool_call_id="c8"),
            ]
        )


def test_what_is_made_for_an_event_is_kept_while_it_is_asked_for() -> None:
    encodings: list[int] = []
    transcript = Transcript()

    def make() -> list[int]:
        encodings.append(1)
        return list(encodings)

    first, second = message_event("a"), message_event("a")
    assert transcript.cached("k", first, make) is transcript.cached("k", first, make)
    transcript.cached("other", first, make)
    transcript.cached("k", second, make)
    assert len(encodings) == 3


def test_threads_that_read_one_transcript_get_the_same_fragments() -> None:
    transcript = Transcript([message_event(str(number)) for number in range(2000)])
    results: list[Any] = []

    def collect() -> None:
        results.append(list(transcript.fragments(openai_chat, {})))

    threads = [threading.Thread(target=collect) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(one == results[0] and len(one) == 2000 for one in results)


# --- ids of calls ---


def ids(
    transcript: Transcript, wire: Wire, model: str = "", host: str = ""
) -> tuple[list[str], list[str]]:
    """Return the ids of the calls, and those of the results, in order."""
    called: list[str] = []
    answered: list[str] = []

    def walk(value: Any) -> None:
        if isinstance(value, list):
            for item in value:  # pyright: ignore[reportUnknownVariableType]
                walk(item)
        elif isinstance(value, dict):
            entry: dict[str, Any] = value  # pyright: ignore[reportUnknownVariableType]
            answered.extend(entry[key] for key in ("tool_call_id", "tool_use_id") if key in entry)
            if entry.get("type") in ("function", "tool_use", "function_call"):
                called.append(entry.get("call_id") or entry["id"])
            elif entry.get("type") == "function_call_output":
                answered.append(entry["call_id"])
            for item in entry.values():
                walk(item)

    for fragment in transcript.fragments(wire, {}, model, host):
        walk(json.loads(b"[" + fragment + b"]"))
    return called, answered


def conversation(provider_ids_by_step: list[list[str]], **more: Any) -> list[Item]:
    """Return items as a conversation has them: calls have its own ids, and the provider's in
    `provider_id`."""
    items: list[Item] = [message_event("hi")]
    for step, provider_ids in enumerate(provider_ids_by_step):
        seq = 2 + 2 * step
        calls = tuple(
            ToolCall(f"{seq}.{number}", "t", {}, id) for number, id in enumerate(provider_ids)
        )
        items.append(answer_event("", calls, seq, **more))
        items += [(call, ToolResult("out")) for call in calls]
    return items


@pytest.mark.parametrize(
    ("name", "model", "given", "sent"),
    [
        ("openai_chat", "m", [["call_a"], ["call_b", "call_c"]], ["call_a", "call_b", "call_c"]),
        (
            "openai_chat",
            "m",
            [["call_0"], ["call_0"], ["call_0"]],
            ["call_0", "call_0_2", "call_0_3"],
        ),
        (
            "openai_chat",
            "m",
            [["call_0"], ["call_0_2"], ["call_0"]],
            ["call_0", "call_0_2", "call_0_3"],
        ),
        ("openai_chat", "m", [["", ""]], ["2.0", "2.1"]),
        (
            "anthropic_messages",
            "claude-sonnet-4-5",
            [["call_0"], ["call_0"]],
            ["call_0", "call_0_2"],
        ),
        (
            "anthropic_messages",
            "claude-sonnet-4-5",
            [["toolu_1"], ["functions.t:0"]],
            ["toolu_1", "functions_t_0_a605a08c"],
        ),
        (
            "openai_responses",
            "gpt-5",
            [["call_0"], ["call_0", "x" * 65]],
            ["call_0", "call_0_2", None],
        ),
        (
            "openai_chat",
            "mistral-large-latest",
            [["abcdefghi"], ["abcdefghi", "call_0"], ["call_0"]],
            ["abcdefghi", None, None, None],
        ),
        ("openai_chat", "gpt-4o", [["x" * 40], ["x" * 41], ["x" * 41]], ["x" * 40, None, None]),
    ],
)
def test_ids_of_calls_are_unique_and_such_as_the_wire_takes(
    name: str, model: str, given: list[list[str]], sent: list[str | None]
) -> None:
    there = wire(name)
    called, results = ids(Transcript(conversation(given)), there, model)
    assert called == results
    assert len(set(called)) == len(called) == len(sent)
    assert all(
        actual == expected
        for actual, expected in zip(called, sent, strict=True)
        if expected is not None
    )
    assert all(
        there.call_id(ToolCall("", "t", {}, id), there.family(model, "")) == id for id in called
    )
    growing = Transcript()
    for item in conversation(given):
        growing.append(item)
        growing.fragments(there, {}, model)
    assert ids(growing, there, model) == (called, results)


def test_calls_without_any_id_are_told_apart_within_an_answer_and_across() -> None:
    """Without a conversation, a Completion's calls have only the provider's ids, and Gemini
    gives none."""
    items: list[Item] = [Message("hi")]
    for _ in range(2):
        calls = (
            ToolCall("", "t", {"n": 1}),
            ToolCall("", "t", {"n": 1}),
            ToolCall("", "t", {"n": 2}),
        )
        items.append(Completion(calls=calls))
        items += [
            (calls[2], ToolResult("2")),
            (calls[0], ToolResult("1")),
            (calls[1], ToolResult("1")),
        ]
    transcript = Transcript(items)
    called, results = ids(transcript, openai_chat)
    assert called == ["call_0", "call_0_2", "call_0_3", "call_0_4", "call_0_5", "call_0_6"]
    assert results == ["call_0_3", "call_0", "call_0_2", "call_0_6", "call_0_4", "call_0_5"]
    assert b'"id"' not in b"".join(transcript.fragments(gemini, {}))


def test_a_late_result_has_the_id_of_its_call() -> None:
    items = conversation([["call_0"], ["call_0"]])
    items[4:] = [message_event("wait", 9), items[4]]
    assert ids(Transcript(items), anthropic_messages)[1] == ["call_0", "call_0_2"]


def test_ids_that_go_back_to_the_host_that_gave_them_stay_in_its_own_form() -> None:
    native = msgspec.Raw(
        b'[{"type":"mystery"},{"type":"function_call","call_id":"call_1","name":"t","arguments":"{}"}]'
    )
    items = conversation(
        [["call_1"], ["call_1"]], native=native, wire="openai_responses", model="gpt-5", host="a"
    )
    assert ids(Transcript(items), openai_responses, "gpt-5", "a")[0] == ["call_1", "call_1"]
    assert ids(Transcript(items), openai_responses, "gpt-5", "b")[0] == ["call_1", "call_1_2"]
    assert ids(Transcript(items), anthropic_messages, "claude-sonnet-4-5")[0] == [
        "call_1",
        "call_1_2",
    ]


def test_what_is_left_after_a_condensation_needs_nothing_of_what_is_hidden() -> None:
    items = conversation([["call_0"], ["call_0"], ["call_0"]])
    remaining = [items[0], *items[3:]]
    called, results = ids(Transcript(remaining), anthropic_messages)
    assert called == results == ["call_0", "call_0_2"]
