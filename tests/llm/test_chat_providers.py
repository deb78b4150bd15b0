"""One whole exchange with a tool in the form of each provider of the table, plain and streamed
over a real socket at the provider's own address. The client reads the call, its usage and its
reasoning, and sends the answer back in a form that the provider takes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest

from holdfast.content import Message, ToolResult, Usage
from holdfast.errors import StreamInterrupted
from holdfast.llm import LLM, Delta, Transcript
from holdfast.llm.http import HTTPPool
from holdfast.llm.wires import wire_of
from tests.model_server import ModelServer, Stream


@dataclass
class Provider:
    """The forms of a provider.

    `chunks` are its stream; without them it sends the whole message in one chunk.
    `sent_message` goes back for the plain answer.
    """

    model: str
    message: dict[str, Any]
    sent_message: dict[str, Any]
    usage: dict[str, Any]
    tokens: Usage
    chunks: list[dict[str, Any]] = field(default_factory=list)
    around: dict[str, Any] = field(default_factory=dict)
    finish: str = "tool_calls"
    reasoning: str = ""
    address: str | None = None
    ends_with_done: bool = True
    id: str = "c1"


def entry(id: str | None = "c1", **more: Any) -> dict[str, Any]:
    function = {"name": "look", "arguments": '{"at": "x"}'}
    return {"id": id, "type": "function", "function": function, **more}


def message(**fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, **fields}


def pieces(**first: Any) -> list[dict[str, Any]]:
    """Return the call of `entry`, streamed as OpenAI does it."""
    return [
        {"tool_calls": [{"index": 0, **entry(), **first, "function": _part("look", "")}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"at": '}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '"x"}'}}]},
    ]


def _part(name: str, arguments: str) -> dict[str, str]:
    return {"name": name, "arguments": arguments}


COUNTS = {"prompt_tokens": 9, "completion_tokens": 7, "total_tokens": 16}
CALL = message(tool_calls=[entry()])

PROVIDERS = {
    "azure": Provider(
        "gpt-4o",
        message(tool_calls=[entry()], refusal=None, annotations=[]),
        CALL,
        {**COUNTS, "prompt_tokens_details": {"cached_tokens": 4, "audio_tokens": 0}},
        Usage(9, 7, 4),
        [{"role": "assistant", "content": None, "refusal": None}, *pieces()],
        around={"prompt_filter_results": [{"prompt_index": 0, "content_filter_results": {}}]},
        address="https://mine.openai.azure.com/openai/v1",
    ),
    "google": Provider(
        "gemini-2.5-flash",
        message(tool_calls=[entry(extra_content={"google": {"thought_signature": "c2ln"}})]),
        message(tool_calls=[entry(extra_content={"google": {"thought_signature": "c2ln"}})]),
        {"prompt_tokens": 9, "completion_tokens": 7, "total_tokens": 56},
        Usage(9, 47, reasoning_tokens=40),
        address="https://generativelanguage.googleapis.com/v1beta/openai",
        finish="stop",
    ),
    "mistral": Provider(
        "mistral/mistral-large-latest",
        {"role": "assistant", "content": "", "tool_calls": [entry("aB3dE6gH9", index=0)]},
        message(tool_calls=[entry("aB3dE6gH9")]),
        {**COUNTS, "num_cached_tokens": 4, "prompt_token_details": {"cached_tokens": 4}},
        Usage(9, 7, 4),
        id="aB3dE6gH9",
    ),
    "groq": Provider(
        "groq/openai/gpt-oss-120b",
        message(reasoning="hm", tool_calls=[entry()]),
        message(reasoning="hm", tool_calls=[entry()]),
        {
            "queue_time": 0.1,
            **COUNTS,
            "total_time": 0.2,
            "completion_tokens_details": {"reasoning_tokens": 3},
        },
        Usage(9, 7, reasoning_tokens=3),
        [
            {"role": "assistant", "content": None},
            {"channel": "analysis", "reasoning": "h"},
            {"channel": "analysis", "reasoning": "m"},
            {"tool_calls": [entry(index=0)]},
        ],
        around={"x_groq": {"id": "req_1"}},
        reasoning="hm",
    ),
    "cerebras": Provider(
        "cerebras/zai-glm-4.7",
        message(reasoning="hm", tool_calls=[entry()]),
        {**CALL, "content": "<think>hm</think>"},
        {**COUNTS, "prompt_tokens_details": {"cached_tokens": 2}},
        Usage(9, 7, 2),
        around={"time_info": {"queue_time": 0.1}},
        reasoning="hm",
    ),
    "deepseek": Provider(
        "deepseek/deepseek-reasoner",
        {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [entry()]},
        {**CALL, "reasoning_content": "hm"},
        {**COUNTS, "prompt_cache_hit_tokens": 4, "prompt_cache_miss_tokens": 5},
        Usage(9, 7, 4),
        [
            {"role": "assistant", "content": None, "reasoning_content": ""},
            {"content": None, "reasoning_content": "h"},
            {"content": None, "reasoning_content": "m"},
            *pieces(),
            {"content": "", "reasoning_content": None},
        ],
        reasoning="hm",
    ),
    "moonshot": Provider(
        "moonshotai/kimi-k2-thinking",
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "hm",
            "tool_calls": [entry("functions.look:0", index=0)],
        },
        message(reasoning_content="hm", tool_calls=[entry("functions.look:0")]),
        {**COUNTS, "cached_tokens": 4},
        Usage(9, 7, 4),
        reasoning="hm",
        id="functions.look:0",
    ),
    "zai": Provider(
        "zai/glm-4.7",
        {"role": "assistant", "content": "\n", "reasoning_content": "hm", "tool_calls": [entry()]},
        {**CALL, "content": "\n", "reasoning_content": "hm"},
        {**COUNTS, "prompt_tokens_details": {"cached_tokens": 4}},
        Usage(9, 7, 4),
        around={"request_id": "r", "created": 1},
        reasoning="hm",
    ),
    "minimax": Provider(
        "MiniMax-M2",
        {
            "role": "assistant",
            "content": "<think>hm</think>\n\n",
            "name": "MiniMax AI",
            "audio_content": "",
            "tool_calls": [entry()],
        },
        {**CALL, "content": "<think>hm</think>\n\n"},
        {**COUNTS, "total_characters": 0},
        Usage(9, 7),
        [
            {"role": "assistant", "content": "<thi", "name": "MiniMax AI", "audio_content": ""},
            {"role": "assistant", "content": "nk>hm</think>\n\n", "name": "MiniMax AI"},
            {"tool_calls": [entry(index=0)]},
        ],
        around={"input_sensitive": False, "base_resp": {"status_code": 0, "status_msg": ""}},
        reasoning="hm",
        address="https://api.minimax.io/v1",
    ),
    "qwen": Provider(
        "alibaba/qwen3-max",
        {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [entry()]},
        {**CALL, "reasoning_content": "hm"},
        {**COUNTS, "prompt_tokens_details": {"cached_tokens": 4, "cache_creation_input_tokens": 2}},
        Usage(9, 7, 4, 2),
        [
            {"role": "assistant", "content": None, "reasoning_content": "hm"},
            {"tool_calls": [{"index": 0, **entry(), "function": _part("look", "")}]},
            {
                "tool_calls": [
                    {
                        "index": 0,
                        "id": "",
                        "type": "function",
                        "function": {"name": "", "arguments": '{"at": "x"}'},
                    }
                ]
            },
        ],
        reasoning="hm",
    ),
    "openrouter": Provider(
        "openrouter/anthropic/claude-sonnet-4.5",
        message(
            refusal=None,
            reasoning="hm",
            reasoning_details=[
                {"type": "reasoning.text", "text": "hm", "signature": "sig", "index": 0}
            ],
            tool_calls=[entry(index=0)],
        ),
        message(
            reasoning="hm",
            reasoning_details=[
                {"type": "reasoning.text", "text": "hm", "signature": "sig", "index": 0}
            ],
            tool_calls=[entry(index=0)],
        ),
        {**COUNTS, "cost": 0.5, "prompt_tokens_details": {"cached_tokens": 4}},
        Usage(9, 7, 4),
        around={"provider": "Anthropic"},
        reasoning="hm",
    ),
    "together": Provider(
        "togetherai/openai/gpt-oss-20b",
        message(reasoning="hm", tool_calls=[entry(index=0)]),
        message(reasoning="hm", tool_calls=[entry()]),
        {**COUNTS, "cached_tokens": 0},
        Usage(9, 7),
        [
            {"role": "assistant", "content": "", "token_id": 5, "reasoning": "hm"},
            {"token_id": 6, "tool_calls": [entry(index=0)]},
        ],
        around={"prompt": []},
        reasoning="hm",
    ),
    "xai": Provider(
        "xai/grok-4",
        {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [entry()]},
        {**CALL, "reasoning_content": "hm"},
        {
            "prompt_tokens": 9,
            "completion_tokens": 7,
            "total_tokens": 36,
            "completion_tokens_details": {"reasoning_tokens": 20},
            "prompt_tokens_details": {"cached_tokens": 4, "text_tokens": 9, "image_tokens": 0},
        },
        Usage(9, 27, 4, reasoning_tokens=20),
        [{"reasoning_content": "hm"}, {"tool_calls": [entry(index=0)]}],
        reasoning="hm",
    ),
    "ollama": Provider(
        "qwen3",
        {"role": "assistant", "content": "", "reasoning": "hm", "tool_calls": [entry(index=0)]},
        message(reasoning="hm", tool_calls=[entry()]),
        COUNTS,
        Usage(9, 7),
        around={"system_fingerprint": "fp_ollama"},
        address="http://localhost:11434/v1",
        reasoning="hm",
    ),
    "vllm": Provider(
        "qwen3",
        message(reasoning_content="hm", function_call=None, audio=None, tool_calls=[entry()]),
        message(reasoning_content="hm", tool_calls=[entry()]),
        {**COUNTS, "prompt_tokens_details": None},
        Usage(9, 7),
        address="http://gpu.local:8000/v1",
        reasoning="hm",
    ),
    "llama.cpp": Provider(
        "qwen3",
        message(reasoning_content="hm", tool_calls=[entry()]),
        message(reasoning_content="hm", tool_calls=[entry()]),
        COUNTS,
        Usage(9, 7),
        around={"timings": {"prompt_n": 9}},
        address="http://localhost:8080/v1",
        reasoning="hm",
    ),
    "an old server": Provider(
        "m",
        message(function_call={"name": "look", "arguments": '{"at": "x"}'}),
        message(tool_calls=[entry()]),
        COUNTS,
        Usage(9, 7),
        [
            {"role": "assistant", "content": None, "function_call": _part("look", "")},
            {"function_call": {"arguments": '{"at": "x"}'}},
        ],
        finish="function_call",
        address="https://old.example.com/v1",
        ends_with_done=False,
        id="",
    ),
}


def answers(one: Provider) -> tuple[dict[str, Any], str]:
    """Return a provider's plain answer and its stream."""
    about = {"id": "i", "model": one.model.rpartition("/")[2], **one.around}
    choice = {"index": 0, "message": one.message, "finish_reason": one.finish}
    deltas = one.chunks or [{key: value for key, value in one.message.items() if value}]
    chunks: list[Any] = [
        {**about, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        for delta in deltas
    ]
    chunks.append({**about, "choices": [{"index": 0, "delta": {}, "finish_reason": one.finish}]})
    chunks += [{**about, "choices": [], "usage": one.usage}]
    lines = [json.dumps(chunk) for chunk in chunks] + ["[DONE]"] * one.ends_with_done
    plain = {**about, "choices": [choice], "usage": one.usage}
    return plain, "".join(f"data: {line}\n\n" for line in lines)


@pytest.mark.parametrize("is_stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("name", PROVIDERS)
def test_a_turn_with_a_tool_in_the_providers_form(name: str, is_stream: bool) -> None:
    one = PROVIDERS[name]
    plain, streamed = answers(one)
    data = streamed.encode()
    first = Stream([data[at : at + 3] for at in range(0, len(data), 3)]) if is_stream else plain
    last = {"choices": [{"message": {"content": "seen"}, "finish_reason": "stop"}]}
    with ModelServer([first, last]) as server:
        llm = LLM(one.model, "a-key-of-tests", one.address, max_retries=0, stream=is_stream)
        llm = llm.with_transport(lambda pool, secrets: HTTPPool(server.url))
        transcript = Transcript([Message("look at x")])
        deltas: list[Delta] = []
        answer = llm.completion(transcript, on_delta=deltas.append)
        (call,) = answer.calls
        assert (call.name, call.arguments, call.provider_id) == ("look", {"at": "x"}, one.id)
        assert (answer.usage, answer.reasoning) == (one.tokens, one.reasoning)
        assert (answer.text.strip(), answer.stop_reason) == ("", "tool_calls")
        if is_stream:
            thoughts = [delta.text for delta in deltas if delta.kind == "reasoning"]
            assert "".join(thoughts) == one.reasoning
        transcript.append(answer)
        transcript.append((call, ToolResult("it is x")))
        assert llm.completion(transcript).text == "seen"
        llm.close()
        _, messages, result = server.requests[1].messages
    id = messages["tool_calls"][0]["id"]
    assert result == {"role": "tool", "tool_call_id": id, "content": "it is x"}
    expected = json.loads(json.dumps(one.sent_message))
    for expected_call, sent_call in zip(
        expected["tool_calls"], messages["tool_calls"], strict=True
    ):
        expected_call["id"] = one.id or id
        expected_call.pop("index", None)
        sent_call.pop("index", None)
    assert messages == expected


@pytest.mark.parametrize("name", PROVIDERS)
def test_a_stream_that_breaks_off_is_never_a_shorter_answer(name: str) -> None:
    one = PROVIDERS[name]
    data = answers(one)[1].encode()
    finish = data.rindex(f'"finish_reason": "{one.finish}"'.encode())
    host = urlsplit(one.address or LLM(one.model).base_url).hostname
    wire = wire_of({"wire": "openai_chat", "host": host})
    whole = wire.parse(json.dumps(answers(one)[0]).encode())
    for at in range(1, len(data), 3):
        parser = wire.stream()
        parser.feed(data[:at])
        try:
            answer = parser.finish()
        except StreamInterrupted:
            continue
        assert at > finish
        assert (answer.text, answer.reasoning) == (whole.text, whole.reasoning)
        assert [(call.name, call.arguments) for call in answer.calls] == [("look", {"at": "x"})]
