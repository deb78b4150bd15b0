"""Recorded traffic of the Responses API, replayed over a real socket: every answer is read as it
was, and goes back as it must."""

from __future__ import annotations

import base64
import itertools
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.content import ImageContent, Message, TextContent, ToolCall, ToolResult, Usage
from holdfast.errors import BadRequest, ModelNotFound
from holdfast.llm import LLM, Completion, Delta, Transcript
from holdfast.llm.wires.openai_responses import ResponseStream
from tests.llm.traffic import RECORDED, exchanges, files, served
from tests.model_server import ModelServer

WIRE = "openai_responses"
FILES = files(WIRE)
EXCHANGES = {path: exchanges(path) for path in FILES}
STREAMS = [
    (path, number)
    for path in FILES
    for number, (_, response) in enumerate(EXCHANGES[path])
    if response.is_stream
]

pytestmark = pytest.mark.skipif(not FILES, reason=f"no recorded traffic in {RECORDED}")


def listed(request: dict[str, Any]) -> list[dict[str, Any]]:
    given = request["input"]
    return [{"role": "user", "content": given}] if isinstance(given, str) else given


def result(output: Any) -> ToolResult:
    """A recorded output as a tool's result; pictures by their address are said in words, which
    Holdfast never sends otherwise."""
    if isinstance(output, str):
        return ToolResult(output)
    blocks: list[Any] = []
    for part in output:
        url: str = part.get("image_url") or ""
        if url.startswith("data:"):
            kind, _, data = url.removeprefix("data:").partition(";base64,")
            blocks.append(ImageContent(base64.b64decode(data), kind))
        else:
            blocks.append(TextContent(part.get("text") or url or part["file_url"]))
    return ToolResult(tuple(blocks))


def found(item: dict[str, Any]) -> ToolResult:
    """The result that a recorded item holds."""
    if item["type"] == "tool_search_output":
        return ToolResult(structured_content=item["tools"])
    return result(item["output"])


def spoken(request: dict[str, Any]) -> list[Any]:
    """A recorded request's input as items of a transcript."""
    found: list[Any] = []
    own: list[dict[str, Any]] = []
    calls: dict[str, ToolCall] = {}

    def answered() -> None:
        if own:
            made = tuple(recorded_call(item) for item in own if item["type"] == "function_call")
            calls.update((call.provider_id, call) for call in made)
            found.append(
                Completion("", calls=made, wire=WIRE, native=msgspec.Raw(json.dumps(own).encode()))
            )
            own.clear()

    for item in listed(request):
        kind = item.get("type", "message")
        if kind == "function_call_output":
            answered()
            found.append((calls[item["call_id"]], result(item["output"])))
        elif kind == "message" and item["role"] == "user":
            answered()
            found.append(Message(item["content"]))
        elif (
            kind not in ("additional_tools", "tool_search_output")
            or item.get("execution") == "server"
        ):
            own.append({"type": kind, **item})
    answered()
    return found


def recorded_call(item: dict[str, Any]) -> ToolCall:
    return ToolCall(
        "", item["name"], json.loads(item["arguments"]), item["call_id"], item["arguments"]
    )


def model_of(request: dict[str, Any], url: str, **more: Any) -> LLM:
    """An LLM that sends what the recorded request has beside its input."""
    extra = {
        key: value
        for key, value in request.items()
        if key not in ("input", "model", "stream", "parallel_tool_calls", "include")
    }
    if "include" in request:
        extra["include"] = request["include"]
    return LLM(
        request["model"],
        "key",
        url,
        wire=WIRE,
        max_retries=0,
        stream=bool(request.get("stream")),
        extra_body=extra,
        **more,
    )


def told(body: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in body.splitlines() if line.startswith("data: {")]


def said(item: dict[str, Any]) -> str:
    return "".join(part["text"] for part in item["content"]) if item["type"] == "message" else ""


def expected(body: Any) -> tuple[str, str, list[tuple[str, str, str]], Usage, list[dict[str, Any]]]:
    """Text, reasoning, calls (id, name, arguments), usage and items of a recorded answer, read in
    the plainest way."""
    if isinstance(body, str):
        found = told(body)
        items = [event["item"] for event in found if event["type"] == "response.output_item.done"]
        text = "\n\n".join(filter(None, map(said, items)))
        summaries = [
            event["text"]
            for event in found
            if event["type"] == "response.reasoning_summary_text.done"
        ]
        usage = found[-1]["response"]["usage"]
    else:
        items, usage = body["output"], body["usage"]
        text = "\n\n".join(filter(None, map(said, items)))
        summaries = [
            part["text"]
            for item in items
            if item["type"] == "reasoning"
            for part in item["summary"]
        ]
    calls = [
        (item["call_id"], *asked)
        for item in items
        if (
            asked := (item["name"], item["arguments"])
            if item["type"] == "function_call"
            else ("tool_search", json.dumps(item["arguments"], separators=(",", ":")))
            if item["type"] == "tool_search_call" and item["execution"] == "client"
            else None
        )
    ]
    tokens = Usage(
        usage["input_tokens"],
        usage["output_tokens"],
        usage["input_tokens_details"]["cached_tokens"],
        usage["input_tokens_details"].get("cache_write_tokens", 0),
        usage["output_tokens_details"]["reasoning_tokens"],
    )
    return text, "\n\n".join(summaries), calls, tokens, items


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_recorded_answer_is_read_as_it_was(path: Path) -> None:
    recorded = EXCHANGES[path]
    with ModelServer([served(response) for _, response in recorded]) as server:
        for request, response in recorded:
            seen: list[Delta] = []
            with_model = model_of(request, server.url)
            if response.status != 200:
                with pytest.raises((BadRequest, ModelNotFound)) as caught:
                    with_model.completion(Transcript(spoken(request)))
                assert caught.value.code == response.body["error"]["code"]
                assert response.body["error"]["message"][:200] in str(caught.value)
                continue
            found = with_model.completion(Transcript(spoken(request)), on_delta=seen.append)
            text, reasoning, calls, usage, items = expected(response.body)
            assert (found.text, found.reasoning, found.usage) == (text, reasoning, usage)
            assert [
                (call.provider_id, call.name, call.raw_arguments) for call in found.calls
            ] == calls
            assert not any(call.invalid for call in found.calls)
            assert found.stop_reason == ("tool_calls" if calls else "stop")
            assert found.model.startswith(request["model"].partition("/")[2] or request["model"])
            assert found.response_id.startswith("resp_")
            if found.native:
                assert json.loads(bytes(found.native)) == items
            else:
                assert {item["type"] for item in items} <= {"message", "function_call"}
            if isinstance(response.body, str):
                assert "".join(delta.text for delta in seen if delta.kind == "text") == text
                assert (
                    "".join(delta.text for delta in seen if delta.kind == "reasoning") == reasoning
                )
                for index, call in enumerate(calls):
                    assert (
                        "".join(
                            delta.text
                            for delta in seen
                            if delta.kind == "tool" and delta.index == index
                        )
                        == call[2]
                    )
            with_model.close()
        assert [request.path for request in server.requests] == ["/v1/responses"] * len(recorded)
        for sent, (request, _) in zip(server.requests, recorded, strict=True):
            assert sent.json["store"] is False
            assert set(request.get("include") or ()) <= set(sent.json.get("include") or ())
            for key in ("instructions", "tools", "tool_choice", "text", "reasoning"):
                assert sent.json.get(key) == request.get(key)


@pytest.mark.parametrize(
    ("path", "number"), STREAMS, ids=[f"{path.stem}-{number}" for path, number in STREAMS]
)
def test_a_recorded_stream_says_what_its_last_event_says(path: Path, number: int) -> None:
    """But for encrypted reasoning, which OpenAI encrypts anew in it."""
    body = EXCHANGES[path][number][1].body
    parser = ResponseStream()
    parser.feed(body.encode())
    streamed = parser.finish()
    plain = served_plain(told(body)[-1]["response"])
    kept, last = (
        [{**item, "encrypted_content": ""} for item in json.loads(bytes(one.native) or b"[]")]
        for one in (streamed, plain)
    )
    assert kept == last
    assert msgspec.structs.replace(streamed, native=plain.native) == msgspec.structs.replace(
        plain, duration=0.0, host=""
    )


def served_plain(response: dict[str, Any]) -> Completion:
    with ModelServer([response]) as server:
        return LLM("m", "key", server.url, wire=WIRE, max_retries=0).completion("x")


CURLY = str.maketrans(
    "\u2018\u2019\u201c\u201d\u2013\u2014", "''\"\"--"
)  # replaced in the recorded requests
# What a provider sends and the recording client left out when it sent it back: nothing that must be
# there, nothing that is refused.
LEFT_OUT = {"status", "logprobs", "content", "output_schema", "annotations"}


def same(mine: Any, theirs: Any, where: str = "") -> None:
    """Whether an item goes back as in the recording, where more of what the provider sent may go
    back."""
    if isinstance(mine, dict) and isinstance(theirs, dict):
        for key in mine.keys() | theirs.keys():
            if key not in theirs:
                assert key in LEFT_OUT, (where, key)
                assert key in ("status",) or not mine[key], (where, key)
            elif key not in mine:
                # A call's own id is needed only behind reasoning; its namespace the recording
                # client made up, where there was none.
                assert "call_id" in mine, where
                assert key in ("id", "namespace"), (where, key)
            elif key != "arguments" or isinstance(
                mine[key], str
            ):  # those of a server's tool search, which the client rewrote
                same(mine[key], theirs[key], f"{where}.{key}")
    elif isinstance(mine, list) and isinstance(theirs, list):
        assert len(mine) == len(theirs), where
        for number, (one, other) in enumerate(zip(mine, theirs, strict=True)):
            same(one, other, f"{where}[{number}]")
    elif isinstance(mine, str) and isinstance(theirs, str):
        assert mine.translate(CURLY) == theirs.translate(CURLY), where
    else:
        assert mine == theirs, where


def follows(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> bool:
    return after[: len(before)] == before and len(after) > len(before)


PAIRS = [
    (path, number)
    for path in FILES
    for number, ((request, response), (following, _)) in enumerate(
        itertools.pairwise(EXCHANGES[path])
    )
    if response.status == 200 and follows(listed(request), listed(following))
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "number"), PAIRS, ids=[f"{path.stem}-{number}" for path, number in PAIRS]
)
def test_every_recorded_turn_goes_back_as_the_provider_took_it(path: Path, number: int) -> None:
    """One transcript along each recorded conversation: our next request has the items and outputs
    that the recorded one has."""
    (request, response), (following, answered) = EXCHANGES[path][number : number + 2]
    before, after = listed(request), listed(following)
    with ModelServer([served(response), served(answered)]) as server:
        llm = model_of(request, server.url)
        transcript = Transcript(spoken(request))
        answer = llm.completion(transcript)
        transcript.append(answer)
        outputs = {
            item["call_id"]: found(item)
            for item in after
            if item.get("type") in ("function_call_output", "tool_search_output")
        }
        for call in answer.calls:
            transcript.append((call, outputs[call.provider_id]))
        if after[-1].get("role") == "user":
            transcript.say(after[-1]["content"])
        again = model_of(following, server.url)
        try:
            again.completion(transcript)
        except BadRequest:
            assert answered.status == 400
        again.close()
        llm.close()
        first, second = (sent.json["input"] for sent in server.requests)
    assert second[: len(first)] == first
    mine = second[len(first) :]
    theirs = [
        item for item in after[len(before) :] if item.get("content") != ""
    ]  # an empty message, which says nothing
    kinds = [item.get("type", "message") for item in mine]
    assert kinds == [item.get("type", "message") for item in theirs][: len(mine)]
    assert mine
    for one, other in zip(mine, theirs[: len(mine)], strict=True):
        if (
            one.get("type") == "function_call_output"
            and isinstance(one["output"], list | str)
            and has_address(other["output"])
        ):
            assert (
                one["call_id"] == other["call_id"]
            )  # pictures by their address: not sent by Holdfast
        else:
            same(one, other)
    sealed = [
        (item["id"], item["encrypted_content"]) for item in mine if item.get("type") == "reasoning"
    ]
    assert sealed == [
        (item["id"], item["encrypted_content"])
        for item in theirs
        if item.get("type") == "reasoning"
    ]
    called = [call.provider_id for call in answer.calls]
    assert called == [
        item["call_id"]
        for item in mine
        if item.get("type") == "function_call_output"
        or (item.get("type") == "tool_search_output" and item["execution"] == "client")
    ]


def has_address(output: Any) -> bool:
    return isinstance(output, list) and any(
        "http" in str(part.get("image_url") or part.get("file_url") or "")[:4] for part in output
    )


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_recorded_history_is_sent_as_it_was(path: Path) -> None:
    """The recorded inputs, as items of a transcript, are the inputs that we send: what the provider
    accepted, we send unchanged."""
    for request, _ in EXCHANGES[path]:
        history = listed(request)
        if any(
            item.get("type") == "additional_tools"
            or (item.get("type") == "tool_search_output" and item["execution"] == "client")
            or has_address(item.get("output"))
            for item in history
        ):
            continue  # holds what Holdfast has no item for: its answers are compared above
        with ModelServer([{"output": []}]) as server:
            LLM(request["model"], "key", server.url, wire=WIRE, max_retries=0).completion(
                Transcript(spoken(request))
            )
            assert [{"type": "message", **item} for item in server.requests[0].json["input"]] == [
                {"type": "message", **item} for item in history
            ]


def test_the_recordings_hold_what_these_tests_are_about() -> None:
    assert len(FILES) == 18
    assert sum(len(recorded) for recorded in EXCHANGES.values()) == 34
    assert len(STREAMS) == 9
    assert len(PAIRS) >= 12
