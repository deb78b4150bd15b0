"""Gemini's streams: arguments in pieces, streams that are one JSON document, broken ends."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.content import ToolResult
from holdfast.errors import BadResponse, ServerError, StreamInterrupted
from holdfast.llm import LLM, Completion, Delta, Transcript
from holdfast.llm.wires.gemini_stream import GeminiStream
from tests.model_server import ModelServer, Stream


def chunk(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"candidates": [{"content": {"parts": list(parts), "role": "model"}, **more}]}


def piece(*partial: dict[str, Any], more: bool = True, **fields: Any) -> dict[str, Any]:
    """Return a piece of a call. The documentation of Vertex AI shows names only in the first
    one."""
    called = {**fields, **({"partialArgs": list(partial)} if partial else {})}
    return {"functionCall": {**called, **({"willContinue": True} if more else {})}}


def sse(*chunks: dict[str, Any]) -> bytes:
    return b"".join(b"data: %b\r\n\r\n" % json.dumps(one).encode() for one in chunks)


def parse(data: bytes, size: int = 0, deltas: list[Delta] | None = None) -> Completion:
    parser = GeminiStream()
    step = size or len(data) or 1
    for at in range(0, len(data), step):
        parser.feed(data[at : at + step], None if deltas is None else deltas.append)
    return parser.finish()


CALL = [
    {**piece(name="book", id="c1"), "thoughtSignature": "c2ln"},
    piece({"jsonPath": "$.city", "stringValue": "New ", "willContinue": True}),
    piece({"jsonPath": "$.city", "stringValue": "York", "willContinue": True}),
    piece(
        {"jsonPath": "$.city"},
        {"jsonPath": "$.days", "numberValue": 3},
        {"jsonPath": "$.breakfast", "boolValue": False},
        {"jsonPath": "$.note", "nullValue": "NULL_VALUE"},
        {"jsonPath": "$.guests[0].name", "stringValue": "Ä", "willContinue": True},
    ),
    piece({"jsonPath": "$.guests[0].name", "stringValue": "nne"}),
    piece({"jsonPath": '$[\'guests\'][1]["first\\"name"]', "stringValue": "Bo"}),
    piece(more=False),
]
ARGUMENTS = {
    "city": "New York",
    "days": 3,
    "breakfast": False,
    "note": None,
    "guests": [{"name": "Änne"}, {'first"name': "Bo"}],
}


@pytest.mark.parametrize("size", [0, 1, 7])
def test_arguments_in_pieces_are_put_together(size: int) -> None:
    other = {"functionCall": {"name": "plain", "args": {"a": 1}}}
    deltas: list[Delta] = []
    chunks = [*map(chunk, CALL), chunk(other), chunk({"text": ""}, finishReason="STOP")]
    answer = parse(sse(*chunks), size, deltas)
    assert [(call.name, call.arguments, call.provider_id) for call in answer.calls] == [
        ("book", ARGUMENTS, "c1"),
        ("plain", {"a": 1}, ""),
    ]
    assert answer.stop_reason == "tool_calls"
    texts = ["".join(one.text for one in deltas if one.index == index) for index in (0, 1)]
    assert [json.loads(text) for text in texts] == [ARGUMENTS, {"a": 1}]
    assert [one.name for one in deltas if one.name] == ["book", "plain"]


def test_a_call_in_pieces_goes_back_whole_with_its_signature() -> None:
    chunks = [*map(chunk, CALL), chunk({"text": ""}, finishReason="STOP")]
    last = chunk({"text": "done"}, finishReason="STOP")
    with ModelServer([Stream([sse(*chunks)]), Stream([sse(last)])]) as server:
        options = {"toolConfig": {"functionCallingConfig": {"streamFunctionCallArguments": True}}}
        llm = LLM("gemini-3-pro", "", server.url, wire="gemini", stream=True, extra_body=options)
        transcript = Transcript.from_messages("go")
        answer = llm.completion(transcript)
        transcript.append(answer)
        transcript.append((answer.calls[0], ToolResult("ok")))
        llm.completion(transcript)
        assert server.requests[0].json["toolConfig"] == options["toolConfig"]
        [part] = server.requests[1].json["contents"][1]["parts"]
    assert part == {
        "functionCall": {"name": "book", "id": "c1", "args": ARGUMENTS},
        "thoughtSignature": "c2ln",
    }


def test_a_call_whose_end_is_missing_is_no_call() -> None:
    """The arguments may be shorter than the model wrote them."""
    with pytest.raises(StreamInterrupted, match="function call"):
        parse(sse(*map(chunk, CALL[:3]), chunk({"text": ""}, finishReason="STOP")))
    with pytest.raises(StreamInterrupted):
        parse(sse(*map(chunk, CALL)))


def test_a_call_that_met_the_limit_is_invalid() -> None:
    answer = parse(sse(*map(chunk, CALL[:3]), chunk({"text": ""}, finishReason="MAX_TOKENS")))
    [call] = answer.calls
    assert (answer.stop_reason, call.name, call.arguments) == ("length", "book", {})
    assert call.raw == '{"city":"New York"'
    assert "not valid JSON" in call.invalid


@pytest.mark.parametrize(
    "partial",
    [
        {"jsonPath": "$"},
        {"jsonPath": "city", "stringValue": "x"},
        {"jsonPath": "$.a..b", "stringValue": "x"},
        {"jsonPath": "$.a[*]", "stringValue": "x"},
        {"jsonPath": "$.list[7]", "stringValue": "x"},
        {"jsonPath": "$[0]", "stringValue": "x"},
        {"stringValue": "x"},
        {"jsonPath": "$" + ".a" * 100_000, "stringValue": "x"},
        5,
    ],
)
def test_pieces_that_make_no_arguments_are_a_bad_response(partial: Any) -> None:
    if isinstance(partial, dict) and partial == {"jsonPath": "$"}:
        partial = {**partial, "stringValue": "x"}
    chunks = [chunk(piece(name="a")), chunk(piece(partial)), chunk(piece(more=False))]
    with pytest.raises(BadResponse):
        parse(sse(*chunks, chunk({"text": ""}, finishReason="STOP")))


# --- streams that are one JSON document ---

ARRAY = [
    chunk({"text": "Grüß "}),
    chunk({"text": "Gott"}, finishReason="STOP"),
    {"usageMetadata": {"promptTokenCount": 3, "candidatesTokenCount": 2}},
]


@pytest.mark.parametrize("size", [0, 1, 7])
@pytest.mark.parametrize("indent", [None, 2])
def test_an_array_in_place_of_events_is_read(size: int, indent: int | None) -> None:
    """A proxy that drops `alt=sse` sends the chunks as an array, with line breaks in any place."""
    joined = ",\r\n".join(json.dumps(one, indent=indent) for one in ARRAY)
    deltas: list[Delta] = []
    answer = parse(f"[{joined}\n]\n".encode(), size, deltas)
    assert (answer.text, answer.usage.input_tokens) == ("Grüß Gott", 3)
    assert "".join(one.text for one in deltas) == "Grüß Gott"


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream", "text/plain"])
def test_an_array_is_read_whatever_its_type(kind: str) -> None:
    with ModelServer([(200, {"content-type": kind}, json.dumps(ARRAY))]) as server:
        llm = LLM("gemini-3-pro", "", server.url, wire="gemini", stream=True, max_retries=0)
        assert llm.completion("x").text == "Grüß Gott"


def test_a_truncated_array_and_an_array_without_an_end_are_no_answer() -> None:
    whole = json.dumps(ARRAY).encode()
    for data in (
        whole[:-1],
        whole[: len(whole) // 2],
        json.dumps(ARRAY[:1]).encode(),
        b"[]",
        b"{}",
    ):
        with pytest.raises(StreamInterrupted):
            parse(data)


def test_an_error_in_an_array_is_that_error() -> None:
    error = {"error": {"code": 503, "message": "overloaded", "status": "UNAVAILABLE"}}
    with pytest.raises(ServerError, match="overloaded"):
        parse(json.dumps([ARRAY[0], error]).encode())


# --- ends ---


def test_a_last_chunk_with_only_counts_and_one_with_only_a_signature() -> None:
    answer = parse(
        sse(
            chunk({"text": "a"}),
            chunk({"text": "b"}, finishReason="STOP"),
            chunk({"text": "", "thoughtSignature": "c2ln"}),
            {"usageMetadata": {"promptTokenCount": 1, "totalTokenCount": 2}, "modelVersion": "g"},
        )
    )
    assert (answer.text, answer.usage.input_tokens, answer.model) == ("ab", 1, "g")
    assert json.loads(bytes(answer.native))["content"]["parts"] == [
        {"text": "ab"},
        {"text": "", "thoughtSignature": "c2ln"},
    ]


def test_an_error_amid_a_stream_is_that_error() -> None:
    error = {"error": {"code": 500, "message": "internal", "status": "INTERNAL"}}
    with pytest.raises(ServerError, match="internal"):
        parse(sse(chunk({"text": "a"}), error, chunk({"text": "b"}, finishReason="STOP")))


@pytest.mark.parametrize("finish", ["NO_IMAGE", "IMAGE_OTHER", "OTHER"])
def test_an_unexplained_end_without_content_is_asked_for_again(finish: str) -> None:
    with pytest.raises(BadResponse, match=finish) as caught:
        parse(sse(chunk(finishReason=finish)))
    assert caught.value.retryable
    assert parse(sse(chunk({"text": "so"}, finishReason=finish))).stop_reason == finish
