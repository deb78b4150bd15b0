"""Recorded traffic of the Responses API, replayed over a real socket: every answer is read
correctly and goes back correctly."""

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
from tests.llm.traffic import RECORDED, exchanges, files, serve
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


def input_items(request: dict[str, Any]) -> list[dict[str, Any]]:
    items = request["input"]
    return [{"role": "user", "content": items}] if isinstance(items, str) else items


def result(output: Any) -> ToolResult:
    """Return a recorded output as a tool's result. Pictures by their address become text, a form
    that Holdfast never sends otherwise."""
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


def result_in(item: dict[str, Any]) -> ToolResult:
    """Return the result in a recorded item."""
    if item["type"] == "tool_search_output":
        return ToolResult(structured_content=item["tools"])
    return result(item["output"])


def items_of(request: dict[str, Any]) -> list[Any]:
    """Return a recorded request's input as items of a transcript."""
    transcript_items: list[Any] = []
    own: list[dict[str, Any]] = []
    calls: dict[str, ToolCall] = {}

    def answered() -> None:
        if own:
            tool_calls = tuple(
                recorded_call(item) for item in own if item["type"] == "function_call"
            )
            calls.update((call.provider_id, call) for call in tool_calls)
            transcript_items.append(
                Completion(
                    "", calls=tool_calls, wire=WIRE, native=msgspec.Raw(json.dumps(own).encode())
                )
            )
            own.clear()

    for item in input_items(request):
        kind = item.get("type", "message")
        if kind == "function_call_output":
            answered()
            transcript_items.append((calls[item["call_id"]], result(item["output"])))
        elif kind == "message" and item["role"] == "user":
            answered()
            transcript_items.append(Message(item["content"]))
        elif (
            kind not in ("additional_tools", "tool_search_output")
            or item.get("execution") == "server"
        ):
            own.append({"type": kind, **item})
    answered()
    return transcript_items


def recorded_call(item: dict[str, Any]) -> ToolCall:
    return ToolCall(
        "", item["name"], json.loads(item["arguments"]), item["call_id"], item["arguments"]
    )


def model_of(request: dict[str, Any], url: str, **more: Any) -> LLM:
    """Return an LLM that sends the fields of the recorded request besides its input."""
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


def stream_events(body: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in body.splitlines() if line.startswith("data: {")]


def text_of(item: dict[str, Any]) -> str:
    return "".join(part["text"] for part in item["content"]) if item["type"] == "message" else ""


def expected(body: Any) -> tuple[str, str, list[tuple[str, str, str]], Usage, list[dict[str, Any]]]:
    """Return the text, reasoning, calls (id, name, arguments), usage and items of a recorded
    answer, parsed in the simplest way."""
    if isinstance(body, str):
        sse_events = stream_events(body)
        items = [
            event["item"] for event in sse_events if event["type"] == "response.output_item.done"
        ]
        text = "\n\n".join(filter(None, map(text_of, items)))
        summaries = [
            event["text"]
            for event in sse_events
            if event["type"] == "response.reasoning_summary_text.done"
        ]
        usage = sse_events[-1]["response"]["usage"]
    else:
        items, usage = body["output"], body["usage"]
        text = "\n\n".join(filter(None, map(text_of, items)))
        summaries = [
            part["text"]
            for item in items
            if item["type"] == "reasoning"
            for part in item["summary"]
        ]
    calls = [
        (item["call_id"], *signature)
        for item in items
        if (
            signature := (item["name"], item["arguments"])
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
    with ModelServer([serve(response) for _, response in recorded]) as server:
        for request, response in recorded:
            deltas: list[Delta] = []
            with_model = model_of(request, server.url)
            if response.status != 200:
                with pytest.raises((BadRequest, ModelNotFound)) as caught:
                    with_model.completion(Transcript(items_of(request)))
                assert caught.value.code == response.body["error"]["code"]
                assert response.body["error"]["message"][:200] in str(caught.value)
                continue
            answer = with_model.completion(Transcript(items_of(request)), on_delta=deltas.append)
            text, reasoning, calls, usage, items = expected(response.body)
            assert (answer.text, answer.reasoning, answer.usage) == (text, reasoning, usage)
            assert [
                (call.provider_id, call.name, call.raw_arguments) for call in answer.calls
            ] == calls
            assert not any(call.invalid for call in answer.calls)
            assert answer.stop_reason == ("tool_calls" if calls else "stop")
            assert answer.model.startswith(request["model"].partition("/")[2] or request["model"])
            assert answer.response_id.startswith("resp_")
            if answer.native:
                assert json.loads(bytes(answer.native)) == items
            else:
                assert {item["type"] for item in items} <= {"message", "function_call"}
            if isinstance(response.body, str):
                assert "".join(delta.text for delta in deltas if delta.kind == "text") == text
                assert (
                    "".join(delta.text for delta in deltas if delta.kind == "reasoning")
                    == reasoning
                )
                for index, call in enumerate(calls):
                    assert (
                        "".join(
                            delta.text
                            for delta in deltas
                            if delta.kind == "tool" and delta.index == index
                        )
                        == call[2]
                    )
            with_model.close()
        assert [request.path for request in server.requests] == ["/v1/responses"] * len(recorded)
        for request_sent, (request, _) in zip(server.requests, recorded, strict=True):
            assert request_sent.json["store"] is False
            assert set(request.get("include") or ()) <= set(request_sent.json.get("include") or ())
            for key in ("instructions", "tools", "tool_choice", "text", "reasoning"):
                assert request_sent.json.get(key) == request.get(key)


@pytest.mark.parametrize(
    ("path", "number"), STREAMS, ids=[f"{path.stem}-{number}" for path, number in STREAMS]
)
def test_a_recorded_stream_says_what_its_last_event_says(path: Path, number: int) -> None:
    """Encrypted reasoning differs, since OpenAI encrypts it again."""
    body = EXCHANGES[path][number][1].body
    parser = ResponseStream()
    parser.feed(body.encode())
    streamed = parser.finish()
    plain = read_plain(stream_events(body)[-1]["response"])
    whole, last = (
        [{**item, "encrypted_content": ""} for item in json.loads(bytes(one.native) or b"[]")]
        for one in (streamed, plain)
    )
    assert whole == last
    assert msgspec.structs.replace(streamed, native=plain.native) == msgspec.structs.replace(
        plain, duration=0.0, host=""
    )


def read_plain(response: dict[str, Any]) -> Completion:
    with ModelServer([response]) as server:
        return LLM("m", "key", server.url, wire=WIRE, max_retries=0).completion("x")


CURLY = str.maketrans(
    "\u2018\u2019\u201c\u201d\u2013\u2014", "''\"\"--"
)  # replaced in the recorded requests
# Fields that a provider sends and the recording client did not send back. None of them is required,
# and none is refused.
LEFT_OUT = {"status", "logprobs", "content", "output_schema", "annotations"}


def same(mine: Any, theirs: Any, where: str = "") -> None:
    """Check that an item goes back as in the recording; more of the provider's fields may go
    back."""
    if isinstance(mine, dict) and isinstance(theirs, dict):
        for key in mine.keys() | theirs.keys():
            if key not in theirs:
                assert key in LEFT_OUT, (where, key)
                assert key in ("status",) or not mine[key], (where, key)
            elif key not in mine:
                # A call's own id is needed only behind reasoning; the recording client made up its
                # namespace where there was none.
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
    if response.status == 200 and follows(input_items(request), input_items(following))
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "number"), PAIRS, ids=[f"{path.stem}-{number}" for path, number in PAIRS]
)
def test_every_recorded_turn_goes_back_as_the_provider_took_it(path: Path, number: int) -> None:
    """One transcript follows each recorded conversation. Our next request has the items and
    outputs of the recorded one."""
    (request, response), (following, answered) = EXCHANGES[path][number : number + 2]
    before, after = input_items(request), input_items(following)
    with ModelServer([serve(response), serve(answered)]) as server:
        llm = model_of(request, server.url)
        transcript = Transcript(items_of(request))
        answer = llm.completion(transcript)
        transcript.append(answer)
        outputs = {
            item["call_id"]: result_in(item)
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
        first, second = (request.json["input"] for request in server.requests)
    assert second[: len(first)] == first
    mine = second[len(first) :]
    theirs = [
        item for item in after[len(before) :] if item.get("content") != ""
    ]  # an empty message
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
    """The recorded inputs, as items of a transcript, equal the inputs that we send: we send
    unchanged what the provider accepted."""
    for request, _ in EXCHANGES[path]:
        history = input_items(request)
        if any(
            item.get("type") == "additional_tools"
            or (item.get("type") == "tool_search_output" and item["execution"] == "client")
            or has_address(item.get("output"))
            for item in history
        ):
            continue  # Holdfast has no item for a part of it; its answers are compared above
        with ModelServer([{"output": []}]) as server:
            LLM(request["model"], "key", server.url, wire=WIRE, max_retries=0).completion(
                Transcript(items_of(request))
            )
            assert [{"type": "message", **item} for item in server.requests[0].json["input"]] == [
                {"type": "message", **item} for item in history
            ]


def test_the_recordings_hold_what_these_tests_are_about() -> None:
    assert len(FILES) == 18
    assert sum(len(recorded) for recorded in EXCHANGES.values()) == 34
    assert len(STREAMS) == 9
    assert len(PAIRS) >= 12
