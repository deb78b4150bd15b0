"""`count_tokens`: the request to each provider, its errors and retries, and the models that
count without a provider."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast import Tool
from holdfast.content import FileContent, Message
from holdfast.errors import AuthenticationError, BadResponse, ConfigurationError, RateLimited
from holdfast.llm import LLM, FallbackLLM, LiteLLM, RecordedLLM, RouterLLM, ScriptedLLM
from tests.model_server import ModelServer, Request

KEY = "sk-planted-secret"
MESSAGES = [Message("How many?"), Message(FileContent(b"%PDF-", "application/pdf", name="a.pdf"))]


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def count_request_of(llm: LLM, server: ModelServer) -> Request:
    assert llm.count_tokens(MESSAGES, [Tool.from_function(add)], system="Be brief.") == 42
    return server.requests[-1]


def test_anthropic_counts_the_prompt_the_tools_and_the_messages() -> None:
    with ModelServer([{"input_tokens": 42}]) as server:
        llm = LLM(
            "claude-sonnet-4-5",
            KEY,
            server.url,
            wire="anthropic_messages",
            temperature=0.5,
            reasoning_budget=2000,
            stop=["x"],
            stream=True,
        )
        request = count_request_of(llm, server)
    assert request.path == "/v1/messages/count_tokens"
    assert request.headers["x-api-key"] == KEY
    # The endpoint refuses the parameters that shape only the answer.
    assert request.json.keys() == {"model", "messages", "system", "tools", "thinking"}
    assert request.json["tools"][0]["name"] == "add"
    assert request.json["messages"][0]["content"][0]["text"] == "How many?"


def test_responses_counts_the_prompt_the_tools_and_the_input() -> None:
    with ModelServer([{"object": "response.input_tokens", "input_tokens": 42}]) as server:
        llm = LLM(
            "gpt-5", KEY, server.url, wire="openai_responses", temperature=1, max_output_tokens=9
        )
        request = count_request_of(llm, server)
    assert request.path == "/v1/responses/input_tokens"
    assert request.json.keys() == {"model", "input", "instructions", "tools"}
    assert request.headers["authorization"] == f"Bearer {KEY}"


def test_gemini_counts_a_whole_request() -> None:
    with ModelServer([{"totalTokens": 42}]) as server:
        llm = LLM("gemini-2.5-flash", KEY, server.url + "?a=b", wire="gemini", temperature=0.5)
        request = count_request_of(llm, server)
    assert request.path == "/v1/models/gemini-2.5-flash:countTokens?a=b"
    [(key, inner)] = request.json.items()
    assert key == "generateContentRequest"
    assert inner["model"] == "models/gemini-2.5-flash"
    assert inner.keys() == {"model", "systemInstruction", "tools", "generationConfig", "contents"}


def test_vertex_takes_the_fields_without_a_request_around_them() -> None:
    from holdfast.llm.wires import gemini
    from holdfast.llm.wires.token_counts import count_request

    body = b'{"contents":[],"tools":[],"toolConfig":{},"generationConfig":{},"labels":{}}'
    path, data = count_request(gemini, "gemini-3-pro", "europe-aiplatform.googleapis.com", body)
    assert path == "/models/gemini-3-pro:countTokens"
    assert json.loads(data).keys() == {"contents", "tools", "generationConfig"}


@pytest.mark.parametrize("mode", ["native", "text"])
def test_a_model_with_calls_as_text_is_counted_too(mode: str) -> None:
    with ModelServer([{"input_tokens": 42}]) as server:
        llm = LLM("claude-3", KEY, server.url, wire="anthropic_messages", tool_calls=mode)
        request = count_request_of(llm, server)
    assert ("tools" in request.json) is (mode == "native")
    assert "add" in json.dumps(request.json)


def test_chat_completions_has_no_such_request() -> None:
    with ModelServer([]) as server:
        llm = LLM("m", KEY, server.url)
        with pytest.raises(ConfigurationError, match=r"openai_chat has no request .*agent\.tokens"):
            llm.count_tokens("hi")
        assert not server.requests


def test_a_count_is_retried_and_its_errors_are_those_of_a_completion() -> None:
    slow = (429, {"retry-after-ms": "1"}, {"error": {"message": f"slow down {KEY}"}})
    denied = (401, {}, {"error": {"message": "bad key"}})
    answers = [slow, {"input_tokens": 7}, slow, slow, denied, {"n": 1}, "no JSON"]
    with ModelServer(answers) as server:
        llm = LLM("claude-x", KEY, server.url, wire="anthropic_messages", max_retries=1)
        assert llm.count_tokens("hi") == 7
        with pytest.raises(RateLimited) as failure:
            llm.count_tokens("hi")
        assert KEY not in str(failure.value)
        with pytest.raises(AuthenticationError):
            llm.count_tokens("hi")
        llm = llm.replace(max_retries=0)
        for _ in range(2):
            with pytest.raises(BadResponse, match=r"not a token count.*/messages/count_tokens"):
                llm.count_tokens("hi")


def test_a_composite_asks_its_first_member() -> None:
    with ModelServer([{"input_tokens": 1}, {"input_tokens": 2}]) as server:
        llm = LLM("claude-x", KEY, server.url, wire="anthropic_messages")
        other = ScriptedLLM([])
        assert FallbackLLM({"a": llm, "b": other}).count_tokens("hi") == 1
        nested = RouterLLM(lambda _: "b", {"a": FallbackLLM([llm]), "b": other})
        assert nested.count_tokens("hi") == 2
        assert other.count_tokens("hi") == FallbackLLM([other]).count_tokens("hi") > 0
        assert not other.requests

    class Plain:
        model = "plain"

        def completion(self, *_: Any, **__: Any) -> Any: ...

    with pytest.raises(ConfigurationError, match="plain cannot count"):
        FallbackLLM([Plain()]).count_tokens("hi")  # pyright: ignore


def test_a_scripted_model_counts_as_its_usage_does() -> None:
    llm = ScriptedLLM(["ok"])
    before = llm.count_tokens(MESSAGES, [Tool.from_function(add)], system="Be brief.")
    answer = llm.completion(MESSAGES, [Tool.from_function(add)], system="Be brief.")
    assert before == answer.usage.input_tokens


def test_a_count_is_recorded_and_replayed(tmp_path: Any) -> None:
    with ModelServer([{"input_tokens": 5}]) as server:
        llm = LLM("claude-x", KEY, server.url, wire="anthropic_messages")
        assert RecordedLLM(llm, tmp_path / "a.jsonl").count_tokens("hi") == 5
    assert RecordedLLM(llm, tmp_path / "a.jsonl", "replay").count_tokens("hi") == 5


def test_litellm_counts_with_its_own_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []

    def token_counter(**arguments: Any) -> int:
        calls.append(arguments)
        if len(calls) == 2:
            raise ValueError(f"no such model {KEY}")
        return 11

    monkeypatch.setitem(sys.modules, "litellm", SimpleNamespace(token_counter=token_counter))
    llm = LiteLLM("bedrock/x", api_key=KEY)
    assert llm.count_tokens("hi", [Tool.from_function(add)], system="Be brief.") == 11
    [call] = calls
    assert call["model"] == "bedrock/x"
    assert [message["role"] for message in call["messages"]] == ["system", "user"]
    assert call["tools"][0]["function"]["name"] == "add"
    with pytest.raises(BadResponse) as failure:
        llm.count_tokens("hi")
    assert KEY not in str(failure.value)
