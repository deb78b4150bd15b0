"""Answers of any shape, on every wire, plain and streamed: each is an answer or an `LLMError`,
and no answer breaks a later request."""

from __future__ import annotations

from itertools import chain, repeat
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import BadResponse
from holdfast.llm.completion import Completion
from holdfast.llm.wires import WIRES, wire
from holdfast.testing import wires
from holdfast.testing.wires import mutations
from holdfast.testing.wires.answer_checks import check_form
from holdfast.testing.wires.framing import Framing, StreamEvent
from holdfast.testing.wires.reading import Reader
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


def as_stream(events: list[Any]) -> str:
    return "".join(f"data: {mutations.dump(event)}\n\n" for event in events)


EXCHANGES = {
    name: wires.RecordedExchange(
        name=name,
        response=wires.RecordedResponse(PLAIN[name]),
        streamed=wires.RecordedResponse(as_stream(STREAMED[name])),
    )
    for name in WIRES
}

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


def check(reader: Reader, text: str, is_stream: bool) -> None:
    """Read an answer and send it back."""
    data = text.encode("utf-8", "surrogatepass")
    outcome = reader.stream([data], text) if is_stream else reader.plain(data, text)
    if isinstance(outcome, Completion):
        check_form(reader, outcome)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@settings(deadline=None, max_examples=examples(300))
def test_any_json_is_an_answer_or_an_error(name: str, data: st.DataObject) -> None:
    own = name.removesuffix("+text")
    exchange = data.draw(st.just(EXCHANGES[own]) | st.sampled_from(wires.shipped(own)))
    for response in exchange.responses:
        framing = Framing.of(response.body) if response.is_stream else None
        value = response.body if framing is None else [event.value for event in framing.events]
        for _ in range(data.draw(st.integers(1, 2))):
            path = data.draw(st.sampled_from(list(mutations.paths(value))))
            value = mutations.with_value(value, path, data.draw(anything))
        if framing is None:
            text = mutations.dump(value)
        else:
            values = value if isinstance(value, list) else [value]
            fields = chain((event.fields for event in framing.events), repeat(()))
            events = [
                StreamEvent(mutations.dump(one), event_name)
                for one, event_name in zip(values, fields, strict=False)
            ]
            text = framing.render(events).decode("utf-8", "surrogatepass")
        check(Reader(wire(name)), text, response.is_stream)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_whole_is_an_answer(name: str) -> None:
    for response in EXCHANGES[name.removesuffix("+text")].responses:
        reader = Reader(wire(name))
        answer = reader.read(response)
        assert isinstance(answer, Completion)
        check_form(reader, answer)
        assert answer.calls[0].name == "f"


@pytest.mark.slow
@pytest.mark.parametrize("name", WIRES)
def test_every_place_may_hold_anything(name: str) -> None:
    """Every place is changed, not only the first and the last of a shape, as in
    `check_mutations`."""
    reader, framing = Reader(wire(name)), Framing.of(EXCHANGES[name].responses[1].body)
    for path in mutations.paths(PLAIN[name]):
        for number in range(mutations.number_of_wrong(path)):
            check(reader, mutations.wrong_text(PLAIN[name], path, number)[0], False)
    for position, event in enumerate(framing.events):
        for path in mutations.paths(event.value):
            for number in range(mutations.number_of_wrong(path)):
                text, _ = mutations.wrong_text(event.value, path, number)
                variant = framing.render(framing.replaced(position, StreamEvent(text)))
                check(reader, variant.decode("utf-8", "surrogatepass"), True)
    for value in mutations.WRONG:
        check(reader, as_stream(value if isinstance(value, list) else [value]), True)


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
    choice = b'"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"'
    data = b'{"choices":[{' + choice + b'}],"usage":' + usage + b"}"
    answer = wire("openai_chat").parse(data)
    assert (answer.text, answer.usage.input_tokens) == ("hi", 0)
    parser = wire("openai_chat").stream()
    parser.feed(b"data: " + data + b"\n\n")
    answer = parser.finish()
    assert (answer.text, answer.usage.input_tokens) == ("hi", 0)
