"""Recorded Gemini traffic, replayed over a real socket: every answer is read correctly and goes
back correctly."""

from __future__ import annotations

import base64
import itertools
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.content import (
    Content,
    FileContent,
    ImageContent,
    Message,
    TextContent,
    ToolCall,
    ToolResult,
    Usage,
)
from holdfast.errors import BadRequest, LLMError, ModelNotFound
from holdfast.llm import LLM, Completion, Delta, Transcript
from holdfast.testing import wires
from tests.llm.traffic import RECORDED, features, files, serve
from tests.model_server import ModelServer

FILES = files("gemini")
OURS = {"contents", "systemInstruction"}

pytestmark = pytest.mark.skipif(not FILES, reason=f"no recorded traffic in {RECORDED}")


# --- recordings, parsed in the simplest way ---


def exchanges(path: Path) -> list[tuple[dict[str, Any], wires.RecordedResponse]]:
    """Return the requests of a recording, with their paths, and their responses."""
    return [(one.request, one.response) for one in wires.load(path)]


def camel(value: Any) -> Any:
    """Return the value with the keys of parts in camel case; the API takes both spellings."""
    if isinstance(value, dict):
        converted = {
            re.sub(r"_([a-z])", lambda m: m[1].upper(), key): camel(item)
            for key, item in value.items()
        }
        return {**converted, **{key: value[key] for key in ("args", "response") if key in value}}
    return [camel(item) for item in value] if isinstance(value, list) else value


def chunks(body: Any) -> list[dict[str, Any]]:
    return (
        [body]
        if isinstance(body, dict)
        else [json.loads(line[6:]) for line in body.splitlines() if line.startswith("data: ")]
    )


def recorded_parts(body: Any) -> list[dict[str, Any]]:
    """Return the parts of an answer: pieces of text without a signature are joined, empty ones
    left out."""
    parts: list[dict[str, Any]] = []
    for chunk in chunks(body):
        for part in chunk["candidates"][0].get("content", {}).get("parts", []):
            if part == {"text": ""}:
                continue
            if part.keys() == {"text"} and parts and parts[-1].keys() == {"text"}:
                parts[-1] = {"text": parts[-1]["text"] + part["text"]}
            else:
                parts.append(part)
    return parts


def recorded_usage(body: Any) -> Usage:
    usage: dict[str, Any] = {}
    for chunk in chunks(body):
        usage = {**usage, **chunk["usageMetadata"]}
    count = lambda key: usage.get(key + "TokenCount", 0)  # noqa: E731
    pictures = [
        sum(
            one["tokenCount"]
            for key in keys
            for one in usage.get(key + "TokensDetails", [])
            if one["modality"] == "IMAGE"
        )
        for keys in (("prompt", "toolUsePrompt"), ("candidates",))
    ]
    return Usage(
        count("prompt") + count("toolUsePrompt"),
        count("candidates") + count("thoughts"),
        count("cachedContent"),
        0,
        count("thoughts"),
        input_image_tokens=pictures[0],
        output_image_tokens=pictures[1],
    )


def with_signature_bytes(part: dict[str, Any]) -> dict[str, Any]:
    """Return a part with its signature as bytes, decoded from either kind of base64."""
    signature = part.get("thoughtSignature")
    if signature is None:
        return part
    return {
        **part,
        "thoughtSignature": base64.b64decode(signature.replace("-", "+").replace("_", "/")),
    }


def recorded_calls(parts: list[dict[str, Any]]) -> tuple[ToolCall, ...]:
    called = [part["functionCall"] for part in parts if "functionCall" in part]
    return tuple(ToolCall("", call["name"], call["args"], call.get("id", "")) for call in called)


def recorded_results(content: dict[str, Any]) -> list[dict[str, Any]]:
    return [part["functionResponse"] for part in content["parts"] if "functionResponse" in part]


def result_of(response: dict[str, Any]) -> ToolResult:
    error = response["response"].get("error")
    if error is not None:
        return ToolResult.failure(error)
    value = response["response"].get("return_value", response["response"])
    return ToolResult(value if isinstance(value, str) else json.dumps(value))


def user_message(content: dict[str, Any]) -> Message:
    blocks: list[Content] = []
    for part in content["parts"]:
        if "inlineData" in part:
            data = base64.urlsafe_b64decode(part["inlineData"]["data"])
            blocks.append(ImageContent(data, part["inlineData"]["mimeType"]))
        elif "fileData" in part:
            file = part["fileData"]
            blocks.append(FileContent(url=file["fileUri"], mime_type=file["mimeType"]))
        else:
            blocks.append(TextContent(part["text"]))
    return Message(tuple(blocks))


def items_of(body: dict[str, Any]) -> list[Any]:
    """Return a recorded request's contents as items, with the model's answers in native form."""
    items: list[Any] = []
    calls: tuple[ToolCall, ...] = ()
    for content in camel(body["contents"]):
        results = recorded_results(content)
        if content["role"] == "model":
            calls = recorded_calls(content["parts"])
            text = "".join(part.get("text", "") for part in content["parts"])
            items.append(
                Completion(
                    text,
                    calls=calls,
                    wire="gemini",
                    native=msgspec.Raw(json.dumps({"content": content}).encode()),
                )
            )
        elif results:
            items += [
                (call, result_of(result)) for call, result in zip(calls, results, strict=True)
            ]
        else:
            items.append(user_message(content))
    return items


class Definition:
    def __init__(self, tool: dict[str, Any]) -> None:
        self.name: str = tool["name"]
        self.description: str = tool["description"]
        self.input_schema: dict[str, Any] = (
            tool.get("parametersJsonSchema")
            or tool.get("parameters_json_schema")
            or tool["parameters"]
        )


def request_parts(body: dict[str, Any]) -> tuple[list[Definition], dict[str, Any], str]:
    """Return the tools, the rest that goes through extra_body, and the system prompt of a
    recorded request."""
    tools: Any = body.get("tools") or []
    declared: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    for tool in [tools] if isinstance(tools, dict) else tools:
        declarations = tool.get("functionDeclarations") or tool.get("function_declarations")
        declared += declarations or []
        others += [] if declarations else [tool]
    rest = {key: value for key, value in body.items() if key not in OURS and key != "tools"}
    system = body.get("systemInstruction", {"parts": [{"text": ""}]})["parts"][0]["text"]
    return (
        [Definition(tool) for tool in declared],
        {**rest, **({"tools": others} if others else {})},
        system,
    )


def client(server: ModelServer, request: dict[str, Any], rest: dict[str, Any]) -> LLM:
    """Return an LLM that makes the recorded request."""
    path = request["path"].removeprefix("/v1beta1").removeprefix("/v1beta")
    start, _, model = path.partition("/models/")
    name, _, verb = model.partition(":")
    stream = verb == "streamGenerateContent?alt=sse"
    return LLM(
        name,
        "key",
        server.url + start,
        wire="gemini",
        stream=stream,
        extra_body=rest or None,
        max_retries=0,
    )


# --- tests ---


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_recorded_answer_is_read_as_it_was(path: Path) -> None:
    recorded = exchanges(path)
    with ModelServer([serve(response) for _, response in recorded]) as server:
        for number, (request, response) in enumerate(recorded):
            tools, rest, system = request_parts(request["body"])
            llm = client(server, request, rest)
            transcript = Transcript(items_of(request["body"]))
            deltas: list[Delta] = []
            if response.status != 200:
                with pytest.raises(
                    ModelNotFound if response.status == 404 else BadRequest
                ) as caught:
                    llm.completion(transcript, tools, system=system)
                assert caught.value.code == response.body["error"]["status"]
                assert response.body["error"]["message"][:200] in str(caught.value)
                continue
            answer = llm.completion(transcript, tools, system=system, on_delta=deltas.append)
            body = response.body
            parts = recorded_parts(body)
            last = chunks(body)[-1]
            text = "".join(part.get("text", "") for part in parts)
            assert (answer.text, answer.usage) == (text, recorded_usage(body))
            assert [(call.name, call.arguments, call.provider_id) for call in answer.calls] == [
                (call.name, call.arguments, call.provider_id) for call in recorded_calls(parts)
            ]
            assert answer.stop_reason == ("tool_calls" if answer.calls else "stop")
            assert (answer.model, answer.response_id) == (
                last["modelVersion"],
                last.get("responseId", ""),
            )
            assert bool(answer.native) == any(
                part.keys() - {"text", "functionCall"} for part in parts
            )
            if isinstance(body, str):
                assert "".join(delta.text for delta in deltas if delta.kind == "text") == text
                assert [delta.name for delta in deltas if delta.kind == "tool"] == [
                    call.name for call in answer.calls
                ]
                assert [json.loads(delta.text) for delta in deltas if delta.kind == "tool"] == [
                    call.arguments for call in answer.calls
                ]
            http_request = server.requests[number]
            assert http_request.path == re.sub(r"^/v1beta1?", "/v1", request["path"])
            assert http_request.headers["x-goog-api-key"] == "key"
            same_request(http_request.json, request["body"])


def same_request(actual: dict[str, Any], recorded: dict[str, Any]) -> None:
    """Check that the sent request equals the recorded one, in the spelling of the documentation."""
    theirs = camel({"tools": recorded.get("tools") or []})["tools"]
    theirs = [theirs] if isinstance(theirs, dict) else theirs
    functions = [
        entry for tool in actual.get("tools", []) for entry in tool.get("functionDeclarations", [])
    ]
    expected = [entry for tool in theirs for entry in tool.get("functionDeclarations", [])]
    assert [(entry["name"], entry["description"]) for entry in functions] == [
        (entry["name"], entry["description"]) for entry in expected
    ]
    assert [entry["parametersJsonSchema"] for entry in functions] == [
        tool.input_schema for tool in request_parts(recorded)[0]
    ]
    assert [
        tool for tool in actual.get("tools", []) if "functionDeclarations" not in tool
    ] == request_parts(recorded)[1].get("tools", [])
    assert actual.get("systemInstruction", {}).get("parts") == recorded.get(
        "systemInstruction", {}
    ).get("parts")
    for key in ("generationConfig", "toolConfig", "cachedContent"):
        assert actual.get(key) == recorded.get(key)
    before = camel(recorded["contents"])
    assert [content["role"] for content in actual["contents"]] == [
        content["role"] for content in before
    ]
    for mine, content in zip(actual["contents"], before, strict=True):
        if content["role"] == "model":
            assert comparable_parts(mine["parts"]) == comparable_parts(content["parts"])
        elif not recorded_results(content):
            assert list(map(plain, mine["parts"])) == list(map(plain, content["parts"]))
        assert [result["name"] for result in recorded_results(mine)] == [
            result["name"] for result in recorded_results(content)
        ]


def plain(part: dict[str, Any]) -> dict[str, Any]:
    """Return a part with its data in standard base64."""
    if "inlineData" not in part:
        return part
    data = part["inlineData"]["data"].replace("-", "+").replace("_", "/")
    return {"inlineData": {**part["inlineData"], "data": data}}


PLACEHOLDER = base64.b64decode("skip_thought_signature_validator".replace("_", "/"))


def comparable_parts(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return parts as they must go back, for a comparison: without the placeholder of a missing
    signature, and without ids that another client made up."""
    copies: list[dict[str, Any]] = []
    for part in map(with_signature_bytes, parts):
        if part.get("thoughtSignature") == PLACEHOLDER:
            part = {key: value for key, value in part.items() if key != "thoughtSignature"}
        call = part.get("functionCall", {})
        if call.get("id", "").startswith("pyd_ai_"):
            part = {
                **part,
                "functionCall": {key: value for key, value in call.items() if key != "id"},
            }
        copies.append(part)
    return copies


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_recorded_answer_goes_back_as_it_came(path: Path) -> None:
    """Every part goes back with its signature, in its place: thoughts, calls, server tools and
    their results, the empty text at the end."""
    for request, response in exchanges(path):
        if response.status != 200:
            continue
        tools, rest, _ = request_parts(request["body"])
        with ModelServer([serve(response), {"candidates": []}]) as server:
            llm = client(server, request, rest)
            transcript = Transcript(items_of(request["body"]))
            before = len(transcript)
            answer = llm.completion(transcript, tools)
            transcript.append(answer)
            for call in answer.calls:
                transcript.append((call, ToolResult("done")))
            transcript.say("go on")
            with pytest.raises(LLMError):
                llm.completion(transcript, tools)
            contents = server.requests[1].json["contents"]
        parts = recorded_parts(response.body)
        mine = contents[before]
        assert mine["role"] == "model"
        assert comparable_parts(mine["parts"]) == [with_signature_bytes(part) for part in parts]
        results = recorded_results(contents[before + 1])
        assert [(result["name"], result.get("id")) for result in results] == [
            (part["functionCall"]["name"], part["functionCall"].get("id"))
            for part in parts
            if "functionCall" in part
        ]
        if answer.calls:  # without a signature Gemini 3 would refuse it
            first = next(part for part in mine["parts"] if "functionCall" in part)
            assert first["thoughtSignature"]


@pytest.mark.parametrize(
    "path",
    [path for path in FILES if "multi_turn_tools" in features(path)],
    ids=lambda path: path.stem,
)
def test_every_recorded_conversation_goes_on_in_one_transcript(path: Path) -> None:
    """One transcript follows each recorded conversation. Our requests have the calls and results
    of the recorded ones."""
    recorded = exchanges(path)
    transcript = Transcript(items_of(recorded[0][0]["body"]))
    followed = 0
    with ModelServer([serve(response) for _, response in recorded]) as server:
        end = ({"body": {"contents": []}}, wires.RecordedResponse(None))
        for (request, response), (following, _) in itertools.pairwise([*recorded, end]):
            tools, rest, system = request_parts(request["body"])
            if response.status != 200:
                break
            answer = client(server, request, rest).completion(transcript, tools, system=system)
            same_request(server.requests[-1].json, request["body"])
            news = camel(following["body"]["contents"])[len(request["body"]["contents"]) :]
            if not news:
                continue  # the last one
            followed += 1
            transcript.append(answer)
            assert comparable_parts(
                json.loads(native_or_built(answer, transcript))["parts"]
            ) == comparable_parts(news[0]["parts"])
            results = recorded_results(news[1])
            for call, result in zip(answer.calls, results, strict=True):
                if call.provider_id:
                    assert result["id"] == call.provider_id
                transcript.append((call, result_of(result)))
            for content in news[2:]:
                transcript.append(user_message(content))
    assert followed


def native_or_built(completion: Completion, transcript: Transcript) -> bytes:
    from holdfast.llm.wires import gemini

    return transcript.fragments(gemini, {call.name: call.name for call in completion.calls})[-1]
