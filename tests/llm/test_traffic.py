"""Recorded provider traffic, replayed over a real socket: every answer is read correctly and
goes back correctly."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.content import ImageContent, Message, TextContent, ToolCall, ToolResult, Usage
from holdfast.errors import BadRequest, LLMError, ModelNotFound
from holdfast.llm import LLM, Completion, Delta, Transcript
from tests.llm.traffic import RECORDED, exchanges, features, files, serve
from tests.model_server import ModelServer

FILES = files("openai_chat")

pytestmark = pytest.mark.skipif(not FILES, reason=f"no recorded traffic in {RECORDED}")


def items_and_tools(request: dict[str, Any]) -> tuple[list[Any], list[dict[str, Any]]]:
    """Return a recorded request's messages as items, and its tools."""
    items: list[Any] = []
    calls: dict[str, ToolCall] = {}
    for message in request["messages"]:
        content = message.get("content")
        if message["role"] == "tool":
            items.append((calls[message["tool_call_id"]], ToolResult(content)))
        elif message["role"] == "assistant":
            tool_calls = tuple(recorded_call(entry) for entry in message.get("tool_calls") or [])
            calls.update((call.provider_id, call) for call in tool_calls)
            items.append(Completion(content or "", calls=tool_calls))
        elif isinstance(content, list):
            parts = [
                TextContent(part["text"]) if part["type"] == "text" else ImageContent(b"picture")
                for part in content
            ]
            items.append(Message(tuple(parts)))
        else:
            items.append(Message(content, role=message["role"]))
    return items, request.get("tools") or []


def recorded_call(entry: dict[str, Any]) -> ToolCall:
    function = entry["function"]
    return ToolCall(
        "", function["name"], json.loads(function["arguments"]), entry["id"], function["arguments"]
    )


class Definition:
    def __init__(self, tool: dict[str, Any]) -> None:
        self.name: str = tool["function"]["name"]
        self.description: str = tool["function"].get("description", "")
        self.input_schema: dict[str, Any] = tool["function"]["parameters"]


def expected(body: Any) -> tuple[str, list[tuple[str, str, str]], Usage]:
    """Return the text, calls (id, name, arguments) and usage of a recorded answer, parsed in the
    simplest way."""
    if isinstance(body, dict):
        message, usage = body["choices"][0]["message"], body["usage"]
        text, entries = message["content"] or "", message.get("tool_calls") or []
    else:
        text, usage, by_index = "", {}, {}
        for line in body.splitlines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line[6:])
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                text += choice["delta"].get("content") or ""
                for piece in choice["delta"].get("tool_calls") or []:
                    entry = by_index.setdefault(
                        piece["index"],
                        {"id": piece.get("id"), "function": {"name": "", "arguments": ""}},
                    )
                    entry["function"]["name"] += piece["function"].get("name") or ""
                    entry["function"]["arguments"] += piece["function"].get("arguments") or ""
        entries = list(by_index.values())
    tokens = Usage(
        usage["prompt_tokens"],
        usage["completion_tokens"],
        usage["prompt_tokens_details"]["cached_tokens"],
        usage["prompt_tokens_details"].get("cache_write_tokens", 0),
        usage["completion_tokens_details"]["reasoning_tokens"],
    )
    return (
        text,
        [
            (entry["id"], entry["function"]["name"], entry["function"]["arguments"])
            for entry in entries
        ],
        tokens,
    )


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_recorded_answer_is_read_as_it_was(path: Path) -> None:
    recorded = exchanges(path)
    with ModelServer([serve(response) for _, response in recorded]) as server:
        plain = LLM(recorded[0][0]["model"], base_url=server.url, max_retries=0)
        streaming = plain.replace(stream=True)
        for request, response in recorded:
            llm = streaming if response.is_stream else plain
            items, tools = items_and_tools(request)
            deltas: list[Delta] = []
            if response.status != 200:
                with pytest.raises(
                    ModelNotFound if response.status == 404 else BadRequest
                ) as caught:
                    llm.completion(Transcript(items), [Definition(tool) for tool in tools])
                assert caught.value.code == response.body["error"]["code"]
                assert response.body["error"]["message"][:200] in str(caught.value)
                continue
            answer_ = llm.completion(
                Transcript(items), [Definition(tool) for tool in tools], on_delta=deltas.append
            )
            text, calls, usage = expected(response.body)
            assert (answer_.text, answer_.usage) == (text, usage)
            assert [
                (call.provider_id, call.name, call.raw_arguments) for call in answer_.calls
            ] == calls
            assert not any(call.invalid for call in answer_.calls)
            assert answer_.stop_reason == ("tool_calls" if calls else "stop")
            if llm.stream:
                assert "".join(delta.text for delta in deltas if delta.kind == "text") == text
        assert server.connections <= 2
        plain.close()
        streaming.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [path for path in FILES if "multi_turn_tools" in features(path)],
    ids=lambda path: path.stem,
)
def test_every_recorded_turn_goes_back_as_the_provider_took_it(path: Path) -> None:
    """One transcript follows each recorded conversation. Our requests have the calls and results
    of the recorded ones."""
    recorded = exchanges(path)
    followed = 0
    for (request, response), (following, _) in itertools.pairwise(recorded):
        before, after = request["messages"], following["messages"]
        if response.status != 200 or after[: len(before)] != before or len(after) < len(before) + 2:
            continue  # the recording continues with something else
        followed += 1
        items, tools = items_and_tools(request)
        with ModelServer([serve(response), {"choices": []}]) as server:
            llm = LLM(
                request["model"], base_url=server.url, max_retries=0, stream=response.is_stream
            )
            transcript = Transcript(items)
            answer = llm.completion(transcript, [Definition(tool) for tool in tools])
            transcript.append(answer)
            results = {
                message["tool_call_id"]: message["content"]
                for message in after
                if message["role"] == "tool"
            }
            for call in answer.calls:
                transcript.append((call, ToolResult(results[call.provider_id])))
            with pytest.raises(LLMError):
                llm.completion(transcript, [Definition(tool) for tool in tools])
            messages = server.requests[1].messages
        assert messages[: len(before)] == server.requests[0].messages
        mine, theirs = messages[len(before)], after[len(before)]
        assert (mine["content"] or None) == (theirs.get("content") or None)
        assert mine.get("tool_calls") == theirs.get("tool_calls")
        answers = messages[len(before) + 1 :]
        assert [message["role"] for message in answers] == ["tool"] * len(answer.calls)
        assert [message["tool_call_id"] for message in answers] == [
            call.provider_id for call in answer.calls
        ]
        assert [message["content"] for message in answers] == [
            results[call.provider_id] or "(no output)" for call in answer.calls
        ]
    assert followed
