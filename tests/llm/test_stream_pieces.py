"""The fast reader of an event that continues a text or a call gives the same as the reader of
any event."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.errors import LLMError
from holdfast.llm.completion import Delta
from holdfast.llm.wires.anthropic_answers import MessagesStream
from holdfast.llm.wires.chat_answers import ChatStream
from holdfast.llm.wires.gemini_stream import GeminiStream
from holdfast.llm.wires.responses_stream import ResponseStream
from holdfast.llm.wires.streams import StreamParser
from tests.llm.test_plain_answers import variants

CHUNK = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-5"}


def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
    about = {"system_fingerprint": "fp_1", "service_tier": "default"}
    return {**CHUNK, **about, "choices": [choice], "usage": None, "obfuscation": "xy"}


def call_piece(arguments: str, **more: str) -> dict[str, Any]:
    name = {"name": more["id"]} if more else {}
    return {"tool_calls": [{"index": 0, "function": {**name, "arguments": arguments}, **more}]}


CHAT = [
    chunk({"role": "assistant", "content": ""}),
    *(chunk({"content": text}) for text in ("I ", "lo", "ok.")),
    chunk(call_piece("", id="f", type="function")),
    *(chunk(call_piece(text)) for text in ('{"a"', ": 1", "}")),
    chunk({}, "tool_calls"),
    {**CHUNK, "choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 4}},
]
MESSAGES = [
    {
        "type": "message_start",
        "message": {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "claude",
            "content": [],
            "stop_reason": None,
            "usage": {"input_tokens": 5},
        },
    },
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    *(
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": text},
        }
        for text in ("I ", "look.")
    ),
    {"type": "content_block_stop", "index": 0},
    {
        "type": "content_block_start",
        "index": 1,
        "content_block": {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}},
    },
    *(
        {
            "type": "content_block_delta",
            "index": 1,
            "delta": {"type": "input_json_delta", "partial_json": text},
        }
        for text in ('{"a"', ": 1}")
    ),
    {"type": "content_block_stop", "index": 1},
    {
        "type": "message_delta",
        "delta": {"stop_reason": "tool_use"},
        "usage": {"output_tokens": 4},
    },
    {"type": "message_stop"},
]
TEXT_ITEM = {
    "id": "msg_1",
    "type": "message",
    "status": "completed",
    "role": "assistant",
    "content": [{"type": "output_text", "annotations": [], "text": "I look."}],
}
CALL_ITEM = {
    "id": "fc_1",
    "type": "function_call",
    "status": "completed",
    "call_id": "call_1",
    "name": "f",
    "arguments": '{"a": 1}',
}
RESPONSES = [
    {"type": "response.created", "response": {"id": "resp_1", "model": "gpt-5"}},
    {
        "type": "response.output_item.added",
        "output_index": 0,
        "item": {**TEXT_ITEM, "content": []},
    },
    *(
        {
            "type": "response.output_text.delta",
            "item_id": "msg_1",
            "output_index": 0,
            "content_index": 0,
            "logprobs": [],
            "delta": text,
            "sequence_number": number,
        }
        for number, text in enumerate(("I ", "lo", "ok."), 2)
    ),
    {"type": "response.output_item.done", "output_index": 0, "item": TEXT_ITEM},
    {
        "type": "response.output_item.added",
        "output_index": 1,
        "item": {**CALL_ITEM, "arguments": ""},
    },
    *(
        {
            "type": "response.function_call_arguments.delta",
            "item_id": "fc_1",
            "output_index": 1,
            "delta": text,
        }
        for text in ('{"a"', ": 1}")
    ),
    {"type": "response.output_item.done", "output_index": 1, "item": CALL_ITEM},
    {
        "type": "response.completed",
        "response": {
            "id": "resp_1",
            "status": "completed",
            "model": "gpt-5",
            "output": [],
            "usage": {"input_tokens": 5, "output_tokens": 4, "total_tokens": 9},
        },
    },
]


def gemini_event(parts: list[dict[str, Any]], **more: str) -> dict[str, Any]:
    candidate = {"content": {"parts": parts, "role": "model"}, "index": 0, **more}
    about = {"modelVersion": "gemini-3-pro", "responseId": "r-1"}
    return {"candidates": [candidate], "usageMetadata": {"promptTokenCount": 5}, **about}


GEMINI = [
    *(gemini_event([{"text": text, "thought": True}]) for text in ("Let ", "me ", "see.")),
    *(gemini_event([{"text": text}]) for text in ("I ", "look.")),
    gemini_event([{"functionCall": {"name": "f", "args": {"a": 1}}}]),
    gemini_event([{"text": ""}], finishReason="STOP"),
]

WIRES: dict[str, tuple[type[StreamParser], list[dict[str, Any]]]] = {
    "openai_chat": (ChatStream, CHAT),
    "anthropic_messages": (MessagesStream, MESSAGES),
    "openai_responses": (ResponseStream, RESPONSES),
    "gemini": (GeminiStream, GEMINI),
}


def parse(parser: StreamParser, events: list[Any], at_once: bool = True) -> Any:
    """Return the deltas, and the answer or its error's class and text."""
    deltas: list[Delta] = []
    data = [b"data: %b\n\n" % json.dumps(event).encode() for event in events]
    try:
        for piece in [b"".join(data)] if at_once else data:
            parser.feed(piece, deltas.append)
        return deltas, parser.finish()
    except LLMError as error:
        return deltas, (type(error), str(error))


def any_event(kind: type[StreamParser]) -> StreamParser:
    """Return a parser that reads every event with the general reader."""
    return type(f"Any{kind.__name__}", (kind,), {"_piece_decoder": None})()


@pytest.mark.parametrize("name", WIRES)
@pytest.mark.parametrize("at_once", [True, False])
def test_pieces_are_read_as_any_event_is(name: str, at_once: bool) -> None:
    kind, events = WIRES[name]
    deltas, answer = parse(kind(), events, at_once)
    assert (deltas, answer) == parse(any_event(kind), events)
    assert answer.text == "I look."
    assert answer.calls[0].arguments == {"a": 1}
    assert "".join([one.text for one in deltas if one.kind == "text"]) == "I look."


@pytest.mark.parametrize("name", WIRES)
def test_a_stream_with_a_changed_event_is_read_alike(name: str) -> None:
    kind, events = WIRES[name]
    for place, event in enumerate(events):
        for variant in variants(event):
            stream = [*events[:place], variant, *events[place + 1 :]]
            # One by one, since in a batch an event of another form leaves all of them to
            # `any_event`.
            answer = parse(kind(), stream, at_once=False)
            assert answer == parse(any_event(kind), stream, at_once=False), variant


@pytest.mark.parametrize("name", WIRES)
def test_a_stream_with_a_missing_or_repeated_event_is_read_alike(name: str) -> None:
    kind, events = WIRES[name]
    for place, event in enumerate(events):
        for replacement in ([], [event, event]):
            stream = [*events[:place], *replacement, *events[place + 1 :]]
            assert parse(kind(), stream) == parse(any_event(kind), stream), (
                place,
                len(replacement),
            )


@pytest.mark.parametrize("name", WIRES)
def test_pieces_are_decoded_without_the_reading_of_any_event(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, events = WIRES[name]
    read_any: list[bytes] = []
    whole = kind._event  # pyright: ignore[reportPrivateUsage]: what must not be called

    def counted(parser: StreamParser, name: bytes, data: bytes) -> None:
        read_any.append(data)
        whole(parser, name, data)

    monkeypatch.setattr(kind, "_event", counted)
    parse(kind(), events, at_once=False)
    assert len(read_any) < len(events)
