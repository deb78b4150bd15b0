"""The reader of plain answers gives the same as the reader of any answer, or leaves the answer
to it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.errors import LLMError
from holdfast.llm import Completion
from holdfast.llm.wires import (
    anthropic_answers,
    anthropic_plain,
    chat_answers,
    chat_plain,
    gemini_answers,
    gemini_plain,
    responses_answers,
    responses_plain,
)
from holdfast.llm.wires.chat_hosts import ChatRules
from tests.paths import SHARED

ARGUMENTS = {"city": "Zürich", "days": 2}

CHAT = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1760000000,
    "model": "gpt-5",
    "service_tier": "default",
    "system_fingerprint": "fp_1",
    "choices": [
        {
            "index": 0,
            "logprobs": None,
            "finish_reason": "tool_calls",
            "message": {
                "role": "assistant",
                "content": "I look.",
                "refusal": None,
                "annotations": [],
                "tool_calls": [
                    {
                        "id": f"call_{number}",
                        "type": "function",
                        "function": {"name": "weather", "arguments": json.dumps(ARGUMENTS)},
                    }
                    for number in (1, 2)
                ],
            },
        }
    ],
    "usage": {
        "prompt_tokens": 1200,
        "completion_tokens": 150,
        "total_tokens": 1350,
        "prompt_tokens_details": {"cached_tokens": 1024, "audio_tokens": 3},
        "completion_tokens_details": {"reasoning_tokens": 20, "audio_tokens": 0},
    },
}
RESPONSES = {
    "id": "resp_1",
    "object": "response",
    "status": "completed",
    "model": "gpt-5",
    "service_tier": "default",
    "background": False,
    "error": None,
    "incomplete_details": None,
    "metadata": {},
    "previous_response_id": None,
    "tools": [{"type": "function", "name": "weather", "parameters": {"type": "object"}}],
    "output": [
        {
            "id": "msg_1",
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [
                {"type": "output_text", "annotations": [], "logprobs": [], "text": "I look."}
            ],
        },
        *(
            {
                "id": f"fc_{number}",
                "type": "function_call",
                "status": "completed",
                "arguments": json.dumps(ARGUMENTS),
                "call_id": f"call_{number}",
                "name": "weather",
            }
            for number in (1, 2)
        ),
    ],
    "usage": {
        "input_tokens": 1200,
        "input_tokens_details": {"cached_tokens": 1024},
        "output_tokens": 150,
        "output_tokens_details": {"reasoning_tokens": 20},
        "total_tokens": 1350,
    },
}
MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-4-5",
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "stop_details": None,
    "content": [
        {"type": "text", "text": "I look."},
        *(
            {
                "type": "tool_use",
                "id": f"toolu_{number}",
                "name": "weather",
                "input": ARGUMENTS,
                "caller": {"type": "direct"},
            }
            for number in (1, 2)
        ),
    ],
    "usage": {
        "input_tokens": 176,
        "cache_creation_input_tokens": 40,
        "cache_read_input_tokens": 1024,
        "cache_creation": {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 30},
        "output_tokens": 150,
        "output_tokens_details": {"thinking_tokens": 7},
        "service_tier": "standard",
        "inference_geo": "eu",
    },
}
GEMINI = {
    "candidates": [
        {
            "content": {
                "role": "model",
                "parts": [
                    {"text": "I look."},
                    {"functionCall": {"name": "weather", "args": ARGUMENTS, "id": "1"}},
                    {"functionCall": {"name": "weather", "args": ARGUMENTS}},
                ],
            },
            "finishReason": "STOP",
            "index": 0,
        }
    ],
    "usageMetadata": {
        "promptTokenCount": 1200,
        "candidatesTokenCount": 130,
        "thoughtsTokenCount": 20,
        "totalTokenCount": 1350,
        "cachedContentTokenCount": 1024,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 1200}],
        "serviceTier": "standard",
    },
    "modelVersion": "gemini-3-pro",
    "responseId": "r-1",
}

Reader = Callable[[bytes], Completion | None]


def chat_readers(rules: ChatRules) -> tuple[Reader, Reader]:
    return (
        lambda data: chat_plain.read(data, "openai_chat", rules),
        lambda data: chat_answers.parse_any(data, rules),
    )


# Wire -> (a plain answer, the reader of plain answers, the reader of any answer).
WIRES: dict[str, tuple[dict[str, Any], Reader, Reader]] = {
    "openai_chat": (CHAT, *chat_readers(ChatRules())),
    "openai_chat with think tags": (CHAT, *chat_readers(ChatRules(think_tags=True))),
    "openai_responses": (
        RESPONSES,
        lambda data: responses_plain.read(data, "openai_responses"),
        responses_answers.parse_any,
    ),
    "anthropic_messages": (
        MESSAGE,
        lambda data: anthropic_plain.read(data, "anthropic_messages"),
        anthropic_answers.parse_any,
    ),
    "gemini": (GEMINI, lambda data: gemini_plain.read(data, "gemini"), gemini_answers.read_any),
}

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, 7.0, 1.5, -3, 2**63, "", "x", "1", " <think>why</think>so", "é\x00"),
    *([], {}, [1], {"x": 1}, [{}], "stop", "length", "max_tokens", "MAX_TOKENS", "in_progress"),
    *({"invocation": {"x": [1]}}, "{}", "[1]", '{"a": 1 }', "default_api:weather", "incomplete"),
    [{"type": "text", "text": "more"}],
)


def variants(answer: Any) -> Iterator[Any]:
    """Yield answers with one value replaced, removed, doubled, moved or added."""
    for place in list(places(answer)):
        for value in VALUES:
            variant, parent = at(answer, place)
            parent[place[-1]] = copy.deepcopy(value)
            yield variant
        variant, parent = at(answer, place)
        del parent[place[-1]]
        yield variant
        variant, parent = at(answer, place)
        current = parent[place[-1]]
        if isinstance(current, dict):
            for key in ("extra", "type", "phase", "text", "error", "content", "thought"):
                again, inner = at(answer, (*place, key))
                inner[key] = "something"
                yield again
        elif isinstance(current, list):
            parent[place[-1]] = [*current, *copy.deepcopy(current)]
            yield variant
            again, inner = at(answer, place)
            inner[place[-1]].reverse()
            yield again


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    pairs: Any = ()
    if isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in pairs:
        yield from places(inner, (*path, key))


def at(answer: Any, place: tuple[Any, ...]) -> tuple[Any, Any]:
    """Return a copy of the answer, and the container of a place in it."""
    variant = parent = copy.deepcopy(answer)
    for key in place[:-1]:
        parent = parent[key]
    return variant, parent


def expected(reader: Reader, data: bytes) -> Any:
    try:
        return reader(data)
    except LLMError as error:
        return type(error)


@pytest.mark.parametrize("name", WIRES)
def test_a_plain_answer_is_read_alike(name: str) -> None:
    answer, plain, any_answer = WIRES[name]
    data = json.dumps(answer).encode()
    assert plain(data) == any_answer(data)
    assert len(any_answer(data).calls) == 2  # pyright: ignore[reportOptionalMemberAccess]


@pytest.mark.parametrize("name", WIRES)
def test_a_changed_answer_is_read_alike_or_left_to_the_reader_of_any_answer(name: str) -> None:
    answer, plain, any_answer = WIRES[name]
    count = 0
    for variant in variants(answer):
        data = json.dumps(variant).encode()
        result = plain(data)
        if result is not None:
            count += 1
            assert result == expected(any_answer, data), data
    assert count > 50


@pytest.mark.parametrize("name", WIRES)
def test_an_answer_that_is_no_json_or_too_deep_is_left_to_the_reader_of_any_answer(
    name: str,
) -> None:
    answer, plain, _ = WIRES[name]
    data = json.dumps(answer).encode()
    deep = b'{"a":' * 400 + b"1" + b"}" * 400
    for place in (b'{"city": "Z\\u00fcrich", "days": 2}', b"[]", b"1200"):
        if place in data:
            assert plain(data.replace(place, deep)) is None
    for broken in (b"", data[:-1], data + b"}", b"\xff" + data, data.replace(b"look", b"\\ud83d")):
        assert plain(broken) is None


RECORDED = {
    "openai_chat": 0.9,
    "openai_responses": 0.1,  # most have encrypted reasoning
    "anthropic_messages": 0.5,
    "gemini": 0.1,  # most have signatures
}


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_answers_are_read_alike(name: str) -> None:
    files = sorted((SHARED / "provider_traffic" / name).glob("*.json"))
    if not files:
        pytest.skip("no recorded traffic")
    _, plain, any_answer = WIRES[name]
    number = plain_count = 0
    for path in files:
        for one in json.loads(path.read_text())["interactions"]:
            body = one["response"].get("body")
            if one["response"].get("status", 200) != 200 or not isinstance(body, dict):
                continue
            data = json.dumps(body).encode()
            result = plain(data)
            number += 1
            if result is not None:
                plain_count += 1
                assert result == any_answer(data), path.name
    assert plain_count >= number * RECORDED[name]
