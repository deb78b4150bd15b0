"""Answers of any shape, on every wire, plain and streamed: each is an answer or an `LLMError`, and
no answer breaks a later request."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.content import ToolResult
from holdfast.errors import BadResponse, LLMError
from holdfast.llm.completion import Completion
from holdfast.llm.transcript import Transcript
from holdfast.llm.wires import WIRES, wire
from tests.samples import examples

USAGE = {
    "prompt_tokens": 5,
    "completion_tokens": 2,
    "total_tokens": 7,
    "prompt_tokens_details": {"cached_tokens": 1},
}
ENTRY = {
    "index": 0,
    "id": "a",
    "type": "function",
    "function": {"name": "f", "arguments": "{}"},
    "extra_content": {"s": "x"},
}
MESSAGE = {
    "role": "assistant",
    "content": "h",
    "reasoning_content": "r",
    "reasoning_details": [{"index": 0, "text": "t"}],
    "tool_calls": [ENTRY],
}
ITEMS = [
    {
        "type": "reasoning",
        "id": "rs",
        "summary": [{"type": "summary_text", "text": "s"}],
        "encrypted_content": "E",
    },
    {
        "type": "message",
        "id": "m",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "h", "annotations": []}],
    },
    {
        "type": "function_call",
        "id": "fc",
        "call_id": "c",
        "name": "f",
        "arguments": "{}",
        "status": "completed",
    },
    {"type": "web_search_call", "id": "ws", "action": {"sources": [{"url": "u"}]}},
]
BLOCKS = [
    {"type": "thinking", "thinking": "t", "signature": "s"},
    {"type": "text", "text": "h", "citations": [{"file_id": "x"}]},
    {"type": "tool_use", "id": "t", "name": "f", "input": {}, "caller": {"type": "direct"}},
]
RESPONSE = {
    "id": "r",
    "model": "gpt-5",
    "status": "completed",
    "incomplete_details": None,
    "output": ITEMS,
    "usage": {"input_tokens": 3, "input_tokens_details": {"cached_tokens": 1}, "output_tokens": 2},
}
REPLY = {
    "type": "message",
    "id": "m",
    "model": "c",
    "content": BLOCKS,
    "stop_reason": "end_turn",
    "stop_details": None,
    "usage": {"input_tokens": 1},
}
PARTS = [
    {"text": "a", "thought": True},
    {"text": "b"},
    {"executableCode": {"code": "1", "id": "i"}},
    {"codeExecutionResult": {"outcome": "OUTCOME_OK", "id": "i"}},
    {"toolCall": {"toolType": "T", "id": "j", "args": {}}},
    {"toolResponse": {"toolType": "T", "id": "j", "response": {"a": 1}}},
    {"inlineData": {"mimeType": "image/png", "data": "AAAA"}},
    {"functionCall": {"name": "f", "args": {"a": 1}, "id": "i"}, "thoughtSignature": "s"},
]
PIECES = [
    {"functionCall": {"name": "f", "willContinue": True}, "thoughtSignature": "s"},
    {
        "functionCall": {
            "partialArgs": [{"jsonPath": "$.a[0].b", "stringValue": "x", "willContinue": True}],
            "willContinue": True,
        }
    },
    {"functionCall": {}},
]
CHUNK = {
    "candidates": [
        {
            "content": {"role": "model", "parts": PARTS},
            "finishReason": "STOP",
            "groundingMetadata": {
                "a": [1],
                "webSearchQueries": ["q"],
                "groundingChunks": [{"web": {"uri": "u"}}, {"retrievedContext": {"text": "t"}}],
                "groundingSupports": [
                    {
                        "segment": {"startIndex": 0, "endIndex": 1, "partIndex": 1, "text": "b"},
                        "groundingChunkIndices": [0],
                        "confidenceScores": [1],
                    }
                ],
            },
            "citationMetadata": {"citationSources": [{"startIndex": 0, "endIndex": 1, "uri": "u"}]},
            "urlContextMetadata": {"urlMetadata": [{"retrievedUrl": "u"}]},
            "logprobsResult": {
                "chosenCandidates": [{"token": "b", "logProbability": -1}],
                "topCandidates": [{"candidates": [{"token": "b", "logProbability": -1}]}],
            },
            "safetyRatings": [{"category": "c"}],
        }
    ],
    "usageMetadata": {
        "promptTokenCount": 1,
        "promptTokensDetails": [{"modality": "IMAGE", "tokenCount": 1}],
        "serviceTier": "s",
    },
    "modelVersion": "g",
    "promptFeedback": {"blockReason": ""},
}
PLAIN: dict[str, Any] = {
    "openai_chat": {
        "id": "x",
        "model": "m",
        "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop"}],
        "usage": USAGE,
    },
    "openai_responses": RESPONSE,
    "anthropic_messages": REPLY,
    "gemini": CHUNK,
}
STREAMED: dict[str, Any] = {
    "openai_chat": [
        {"id": "x", "model": "m", "choices": [{"index": 0, "delta": MESSAGE}]},
        {
            "choices": [
                {
                    "index": 0,
                    "delta": {
                        "content": "i",
                        "reasoning_details": [{"index": 0, "text": "u"}],
                        "tool_calls": [ENTRY],
                    },
                }
            ]
        },
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "usage": USAGE},
    ],
    "openai_responses": [
        {"type": "response.output_item.added", "output_index": 2, "item": ITEMS[2]},
        {"type": "response.output_text.delta", "output_index": 1, "delta": "h"},
        {"type": "response.function_call_arguments.delta", "output_index": 2, "delta": "{}"},
        *(
            {"type": "response.output_item.done", "output_index": place, "item": item}
            for place, item in enumerate(ITEMS)
        ),
        {"type": "response.completed", "response": {**RESPONSE, "output": []}},
    ],
    "anthropic_messages": [
        {"type": "message_start", "message": {**REPLY, "content": [], "stop_reason": None}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "h"}},
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "citations_delta", "citation": {"file_id": 1}},
        },
        {
            "type": "content_block_start",
            "index": 1,
            "content_block": {"type": "tool_use", "id": "t", "name": "f", "input": {}},
        },
        {
            "type": "content_block_delta",
            "index": 1,
            "delta": {"type": "input_json_delta", "partial_json": "{}"},
        },
        {
            "type": "content_block_start",
            "index": 2,
            "content_block": {"type": "thinking", "thinking": "", "signature": ""},
        },
        {
            "type": "content_block_delta",
            "index": 2,
            "delta": {"type": "thinking_delta", "thinking": "h"},
        },
        {
            "type": "content_block_delta",
            "index": 2,
            "delta": {"type": "signature_delta", "signature": "h"},
        },
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn"},
            "usage": {"output_tokens": 1},
        },
        {"type": "message_stop"},
    ],
    "gemini": [
        CHUNK,
        *({"candidates": [{"content": {"parts": [piece]}}]} for piece in PIECES),
        {"candidates": [{"content": {"parts": [{"text": "c"}]}, "finishReason": "STOP"}]},
    ],
}
NAMES = [name + more for name in WIRES for more in ("", "+text")]

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["", "x", "text", "tool_use", "{", "\ud800", 1e300, 2**64])
)
anything = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "text", "id", "index", "name", "a"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    for key, item in (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    ):  # pyright: ignore
        yield from paths(item, (*path, key))


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    found = place = copy.deepcopy(value)
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = new
    return found


def check(name: str, data: bytes, streamed: bool) -> None:
    """Reads it, and has it said in the next request."""
    there = wire(name)
    try:
        if streamed:
            parser = there.stream()
            parser.feed(data, lambda delta: None)
            answer = parser.finish()
        else:
            answer = there.parse(data)
    except LLMError:
        return
    assert all(
        isinstance(part, str)
        for part in (
            answer.text,
            answer.reasoning,
            answer.stop_reason,
            answer.model,
            answer.response_id,
        )
    )
    usage = answer.usage
    assert all(
        0 <= count < 2**65
        for count in (
            usage.input_tokens,
            usage.output_tokens,
            usage.cached_input_tokens,
            usage.reasoning_tokens,
        )
    )
    assert Completion.from_json(answer.to_json()).text == answer.text
    there.assistant(answer.text, answer.calls, answer.native, {})
    transcript = Transcript.from_messages("x")
    transcript.append(answer)
    for call in answer.calls:
        transcript.append((call, ToolResult("out")))
    json.loads(
        there.body(
            there.head("m", "", (), {}, {}), transcript.fragments(there, {}, "m", "h"), False
        )
    )


def as_stream(events: Any) -> bytes:
    return b"".join(
        b"data: " + json.dumps(event).encode() + b"\n\n"
        for event in (events if isinstance(events, list) else [events])
    )  # pyright: ignore


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@settings(deadline=None, max_examples=examples(150))
def test_any_json_is_an_answer_or_an_error(name: str, data: st.DataObject) -> None:
    for events, streamed in ((PLAIN, False), (STREAMED, True)):
        whole = events[name.removesuffix("+text")]
        found = whole
        for _ in range(data.draw(st.integers(1, 2))):
            found = changed(
                found, data.draw(st.sampled_from(list(paths(found)))), data.draw(anything)
            )
        check(name, as_stream(found) if streamed else json.dumps(found).encode(), streamed)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_whole_is_an_answer(name: str) -> None:
    for data, streamed in (
        (json.dumps(PLAIN[name.removesuffix("+text")]).encode(), False),
        (as_stream(STREAMED[name.removesuffix("+text")]), True),
    ):
        check(name, data, streamed)
        parser = wire(name).stream()
        if streamed:
            parser.feed(data)
        answer = parser.finish() if streamed else wire(name).parse(data)
        assert answer.calls[0].name == "f"


WRONG: list[Any] = [
    None,
    5,
    -1,
    1e300,
    True,
    "x",
    "\ud800",
    "",
    [],
    [1],
    [[]],
    {},
    {"a": 1},
    [None],
]


@pytest.mark.slow
@pytest.mark.parametrize("name", WIRES)
def test_every_place_may_hold_anything(name: str) -> None:
    for path in paths(PLAIN[name]):
        for value in WRONG:
            check(name, json.dumps(changed(PLAIN[name], path, value)).encode(), False)
    for path in paths(STREAMED[name]):
        for value in WRONG:
            check(name, as_stream(changed(STREAMED[name], path, value)), True)


@pytest.mark.slow
@pytest.mark.parametrize("name", WIRES)
@pytest.mark.parametrize(
    "data",
    [
        b"[" * 200_000,
        b'{"a":' * 200_000,
        b'{"choices":[{"message":' + b"[" * 200_000,
        b'{"content":' + b"[" * 200_000,
    ],
)
def test_nesting_without_end_is_no_answer(name: str, data: bytes) -> None:
    with pytest.raises(BadResponse):
        wire(name).parse(data)
    with pytest.raises(BadResponse):
        wire(name).stream().feed(b"data: " + data + b"\n\n")


@pytest.mark.parametrize(
    "usage",
    [
        b'{"prompt_tokens":1e999}',
        b'{"prompt_tokens":1e30}',
        b'{"prompt_tokens":-5000}',
        b'{"prompt_tokens":null}',
        b"[1]",
        b"5",
    ],
)
def test_counts_that_are_none_lose_no_answer(usage: bytes) -> None:
    said = b'"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"'
    data = b'{"choices":[{' + said + b'}],"usage":' + usage + b"}"
    answer = wire("openai_chat").parse(data)
    assert (answer.text, answer.usage.input_tokens) == ("hi", 0)
    parser = wire("openai_chat").stream()
    parser.feed(b"data: " + data + b"\n\n")
    answer = parser.finish()
    assert (answer.text, answer.usage.input_tokens) == ("hi", 0)
