"""Recorded traffic of Anthropic's Messages API, replayed over a real socket: every answer is
read correctly and goes back correctly."""

from __future__ import annotations

import itertools
import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.content import (
    Content,
    ImageContent,
    Message,
    TextContent,
    ToolCall,
    ToolResult,
    Usage,
)
from holdfast.errors import BadRequest, LLMError, ModelNotFound
from holdfast.events import ToolDefinition
from holdfast.llm import LLM, Completion, Delta, Transcript
from holdfast.llm.completion import NO_NATIVE
from holdfast.llm.wires import anthropic_messages
from holdfast.testing.wires import RecordedResponse
from tests.llm.traffic import RECORDED, exchanges, files, serve
from tests.model_server import ModelServer

RECORDINGS = RECORDED / "anthropic_messages"
FILES = files("anthropic_messages")
# Recordings of one exchange, or of exchanges that do not continue the answer before; all others
# are followed turn by turn.
SINGLE = {
    "anthropic__anthropic_advisor_tool_stream",
    "anthropic__anthropic_explicit_effort_xhigh_unsupported_model_errors",
    "anthropic__anthropic_mcp_servers_stream",
    "anthropic__anthropic_model_thinking_part_redacted_stream",
    "anthropic_mid_conversation_system__inline_system_prompt_cache_prefix_is_reused",
    "model_name_suggestions__model_name_suggestion_anthropic",
    "thinking_native_tools__thinking_with_native_tool_wire_contract_anthropic",
}

pytestmark = pytest.mark.skipif(not FILES, reason=f"no recorded traffic in {RECORDINGS}")


def model_of(request: dict[str, Any], url: str) -> LLM:
    """Return an LLM that sends all fields of the recorded request except model, system, messages
    and stream."""
    ours = ("model", "system", "messages", "stream")
    extra = {key: value for key, value in request.items() if key not in ours}
    return LLM(
        request["model"],
        "key",
        url,
        wire="anthropic_messages",
        max_retries=0,
        stream=bool(request.get("stream")),
        extra_body=extra,
    )


def system_of(request: dict[str, Any]) -> str | None:
    system = request.get("system")
    return (
        system
        if isinstance(system, str) or system is None
        else "\n".join(block["text"] for block in system)
    )


def items_of(request: dict[str, Any]) -> list[Any]:
    """Return a recorded request's messages as items. An answer with calls ends a batch: two in a
    row are one."""
    items: list[Any] = []
    calls: dict[str, ToolCall] = {}
    for message in request["messages"]:
        if message["role"] == "assistant":
            tool_calls = tuple(
                ToolCall("", one["name"], one["input"], one["id"])
                for one in message["content"]
                if one["type"] == "tool_use"
            )
            calls.update((call.provider_id, call) for call in tool_calls)
            text = "".join(one["text"] for one in message["content"] if one["type"] == "text")
            plain = all(one["type"] in ("text", "tool_use") for one in message["content"])
            native = NO_NATIVE if plain else msgspec.Raw(json.dumps(message["content"]).encode())
            items.append(
                Completion(text, calls=tool_calls, wire="anthropic_messages", native=native)
            )
            continue
        answers = [
            (calls[one["tool_use_id"]], recorded_result(one))
            for one in message["content"]
            if one["type"] == "tool_result"
        ]
        rest = tuple(
            block(one)
            for one in message["content"]
            if one["type"] not in ("tool_result", "container_upload")
        )
        items += answers
        if rest:
            items.append(Message(rest, role=message["role"]))
    return items


def recorded_result(one: dict[str, Any]) -> ToolResult:
    content = one["content"]
    return ToolResult(
        content if isinstance(content, str) else tuple(map(block, content)),
        is_error=one["is_error"],
    )


def block(one: dict[str, Any]) -> Content:
    if one["type"] == "text":
        return TextContent(one["text"])
    if one["type"] == "image" and one["source"]["type"] == "base64":
        return ImageContent(b64decode(one["source"]["data"]), one["source"]["media_type"])
    if one["type"] == "image":  # by URL or file id, which our tool results do not have
        return ImageContent(b"picture")
    assert one["type"] == "tool_reference"
    return TextContent(one["tool_name"])


def content_of(body: Any) -> tuple[list[dict[str, Any]], str, dict[str, Any]]:
    """Return the content, stop reason and usage of a recorded answer, parsed in the simplest
    way."""
    if isinstance(body, dict):
        return body["content"], body["stop_reason"], body["usage"]
    blocks: dict[int, dict[str, Any]] = {}
    inputs: dict[int, str] = {}
    stop, usage = "", {}
    for line in body.splitlines():
        if not line.startswith("data: "):
            continue
        event = json.loads(line[6:])
        if event["type"] == "message_start":
            usage.update(event["message"]["usage"])
        elif event["type"] == "content_block_start":
            blocks[event["index"]] = event["content_block"]
        elif event["type"] == "content_block_delta":
            at, delta = event["index"], event["delta"]
            if delta["type"] == "input_json_delta":
                inputs[at] = inputs.get(at, "") + delta["partial_json"]
            else:
                key = delta["type"].removesuffix("_delta")
                assert key in ("text", "thinking", "signature")
                blocks[at][key] += delta[key]
        elif event["type"] == "message_delta":
            stop = event["delta"]["stop_reason"]
            usage.update(event["usage"])
    for at, text in inputs.items():
        blocks[at]["input"] = json.loads(text or "{}")
    return list(blocks.values()), stop, usage


def text_of(content: list[dict[str, Any]]) -> str:
    """Join the texts, with an empty line where another block is between them."""
    text = ""
    for kind, group in itertools.groupby(
        (one for one in content), key=lambda one: one["type"] == "text"
    ):
        if kind:
            text += ("\n\n" if text else "") + "".join(one["text"] for one in group)
    return text


def sent_back(content: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the content as it must be in the next request: without the caller of a call, if
    that is the model."""
    return [
        {key: value for key, value in one.items() if key != "caller" or value != {"type": "direct"}}
        for one in content
    ]


def without_cache_marks(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages without cache marks."""
    return [
        {
            **message,
            "content": [
                {key: value for key, value in one.items() if key != "cache_control"}
                for one in message["content"]
            ],
        }
        for message in messages
    ]


def test_no_recording_is_left_out() -> None:
    assert len(FILES) == 18
    assert {path.stem for path in FILES} >= SINGLE


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_recorded_answer_is_read_as_it_was_and_goes_back(path: Path) -> None:
    recorded = exchanges(path)
    with ModelServer([serve(response) for _, response in recorded]) as server:
        for request, response in recorded:
            llm = model_of(request, server.url)
            deltas: list[Delta] = []
            if response.status != 200:
                with pytest.raises(
                    ModelNotFound if response.status == 404 else BadRequest
                ) as caught:
                    llm.completion(Transcript(items_of(request)), system=system_of(request))
                assert caught.value.code == response.body["error"]["type"]
                assert response.body["error"]["message"] in str(caught.value)
                continue
            answer = llm.completion(
                Transcript(items_of(request)), system=system_of(request), on_delta=deltas.append
            )
            content, stop, usage = content_of(response.body)
            calls = [one for one in content if one["type"] == "tool_use"]
            assert answer.text == text_of(content)
            assert answer.reasoning == "\n\n".join(
                one["thinking"] for one in content if one.get("thinking")
            )
            assert [(call.provider_id, call.name, call.arguments) for call in answer.calls] == [
                (one["id"], one["name"], one["input"]) for one in calls
            ]
            assert not any(call.invalid for call in answer.calls)
            assert answer.stop_reason == {"end_turn": "stop", "tool_use": "tool_calls"}[stop]
            cache_reads, cache_writes = (
                usage["cache_read_input_tokens"],
                usage["cache_creation_input_tokens"],
            )
            thought = usage.get("output_tokens_details", {}).get("thinking_tokens", 0)
            # The top-level counts exclude the tokens of an advisor.
            others = [one for one in usage.get("iterations", ()) if one["type"] != "message"]
            assert answer.usage == Usage(
                usage["input_tokens"]
                + cache_reads
                + cache_writes
                + sum(one["input_tokens"] for one in others),
                usage["output_tokens"] + sum(one["output_tokens"] for one in others),
                cache_reads,
                cache_writes,
                thought,
            )
            assert answer.model.startswith(request["model"].removesuffix("-0"))
            assert answer.response_id.startswith("msg_")
            if llm.stream:
                for kind, whole in (("text", answer.text), ("reasoning", answer.reasoning)):
                    assert "".join(delta.text for delta in deltas if delta.kind == kind) == whole
                for index, call in enumerate(answer.calls):
                    mine = [
                        delta for delta in deltas if delta.kind == "tool" and delta.index == index
                    ]
                    assert [delta.name for delta in mine] == [call.name] + [""] * (len(mine) - 1)
                    assert json.loads("".join(delta.text for delta in mine)) == call.arguments
            plain = all(
                one["type"] in ("text", "tool_use") and not one.get("citations") for one in content
            )
            assert bool(answer.native) is not plain
            again = Completion.from_json(answer.to_json())  # through the journal
            echo = json.loads(
                anthropic_messages.assistant(again.text, again.calls, again.native, {})
            )
            assert echo == {"role": "assistant", "content": sent_back(content)}
            http_request = server.requests[-1]
            assert http_request.path == "/v1/messages"
            assert (
                http_request.headers["x-api-key"],
                http_request.headers["anthropic-version"],
            ) == (
                "key",
                "2023-06-01",
            )
            assert http_request.json["max_tokens"] == request["max_tokens"]


@pytest.mark.parametrize(
    "path", [path for path in FILES if path.stem not in SINGLE], ids=lambda path: path.stem
)
def test_every_recorded_turn_goes_back_as_the_provider_took_it(path: Path) -> None:
    """One transcript follows each recorded conversation. Our requests have the answers and
    results of the recorded ones."""
    followed = 0
    for (request, response), (following, _) in itertools.pairwise(exchanges(path)):
        before, after = (
            without_cache_marks(request["messages"]),
            without_cache_marks(following["messages"]),
        )
        content = content_of(response.body)[0]
        if (
            after[: len(before)] != before
            or len(after) < len(before) + 2
            or after[len(before)]["content"][0]["type"] != content[0]["type"]
        ):
            continue  # the recording continues with something else
        followed += 1
        theirs = after[len(before)]["content"]
        with ModelServer([serve(response), {}]) as server:
            llm = model_of(request, server.url)
            transcript = Transcript(items_of(request))
            answer = llm.completion(transcript, system=system_of(request))
            transcript.append(answer)
            results = {
                one["tool_use_id"]: one
                for message in after
                for one in message["content"]
                if one["type"] == "tool_result"
            }
            for call in answer.calls:
                transcript.append((call, recorded_result(results[call.provider_id])))
            if not answer.calls:
                transcript.append(items_of({"messages": [after[len(before) + 1]]})[0])
            with pytest.raises(LLMError):
                llm.completion(transcript, system=system_of(request))
            first, second = (
                without_cache_marks(server.requests[0].messages),
                without_cache_marks(server.requests[1].messages),
            )
            marks = server.requests[1].body.count(b'"cache_control":{"type":"ephemeral"}')
        assert second[: len(first)] == first
        assert second[len(first)] == {"role": "assistant", "content": sent_back(theirs)}
        assert len(second) == len(first) + 2  # one user message for all results
        mine = second[len(first) + 1]["content"]
        assert marks in (2, 3)
        if not answer.calls:
            assert mine == after[len(before) + 1]["content"]
            continue
        assert [one["tool_use_id"] for one in mine] == [call.provider_id for call in answer.calls]
        for one in mine:
            expected = results[one["tool_use_id"]]["content"]
            if isinstance(expected, list) and any(part["type"] == "image" for part in expected):
                assert [part["type"] for part in one["content"]] == ["image"] * len(expected)
                for part, picture in zip(one["content"], expected, strict=True):
                    assert part == picture or picture["source"]["type"] != "base64"
            else:
                assert one["content"] == (
                    expected
                    if isinstance(expected, str)
                    else "".join(part["text"] for part in expected)
                )
    assert followed


def recording(name: str) -> list[tuple[dict[str, Any], RecordedResponse]]:
    return exchanges(RECORDINGS / f"{name}.json")


def our_request(request: dict[str, Any], **parameters: Any) -> dict[str, Any]:
    """Return our request for a recorded one, with our parameters instead of the provider's."""
    tools = [
        ToolDefinition(one["name"], one["description"], one["input_schema"])
        for one in request.get("tools", [])
    ]
    settings = {"max_output_tokens": request["max_tokens"], "prompt_caching": False, **parameters}
    head = anthropic_messages.head(request["model"], system_of(request) or "", tools, settings, {})
    transcript = Transcript(items_of(request))
    return json.loads(
        anthropic_messages.body(
            head, transcript.fragments(anthropic_messages, {}, request["model"]), False
        )
    )


def same(request: dict[str, Any]) -> dict[str, Any]:
    """Return a recorded request without defaults of the API and in our spelling."""
    copied = {
        key: value
        for key, value in request.items()
        if key != "stream" and (key != "tool_choice" or value != {"type": "auto"})
    }
    for message in copied["messages"]:
        for one in message["content"]:
            if one["type"] == "tool_result":
                if isinstance(one["content"], list):
                    one["content"] = one["content"][0]["text"]
                if not one["is_error"]:
                    del one["is_error"]
    return copied


def test_structured_output_is_asked_for_as_it_was_recorded() -> None:
    for request, _ in recording("anthropic__output__strict_none_tool_native_output"):
        schema = request["output_config"]["format"]["schema"]
        response_format = {
            "type": "json_schema",
            "json_schema": {"name": "city", "schema": schema, "strict": True},
        }
        assert our_request(request, response_format=response_format) == same(request)


def test_thinking_is_asked_for_as_it_was_recorded() -> None:
    for request, _ in recording("anthropic__anthropic_tool_with_thinking"):
        assert our_request(request, reasoning_budget=request["thinking"]["budget_tokens"]) == same(
            request
        )


def test_an_effort_is_asked_for_as_it_was_recorded() -> None:
    for request, _ in recording(
        "anthropic__anthropic_explicit_effort_xhigh_unsupported_model_errors"
    ):
        assert our_request(request, reasoning_effort="xhigh") == {
            **same(request),
            "thinking": {"type": "adaptive"},
        }
