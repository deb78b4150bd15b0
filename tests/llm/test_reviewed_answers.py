"""Answers in forms that servers rarely send, each of which once lost a part."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from holdfast import events as ev
from holdfast.content import Message, ToolCall, ToolResult
from holdfast.errors import ContentFiltered, ServerError
from holdfast.llm.completion import Completion
from holdfast.llm.transcript import Transcript
from holdfast.llm.wires import wire


def chat(message: dict[str, Any], **more: Any) -> Completion:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}
    return wire("openai_chat").parse(json.dumps({"choices": [choice], **more}).encode())


def check_record(answer: Completion) -> None:
    fields = {name: getattr(answer, name) for name in ("text", "calls", "details", "native")}
    event = ev.AssistantReplied(seq=1, id="a", timestamp=ev.EPOCH, **fields)
    assert ev.decode(ev.record(event), 1) == event


def test_a_call_whose_name_stands_beside_its_id_goes_back() -> None:
    call = {"id": "c", "name": "f", "arguments": "{}"}
    answer = chat({"content": None, "tool_calls": [call], "reasoning_details": [{"text": "t"}]})
    transcript = Transcript()
    transcript.append(Message("go"))
    transcript.append(answer)
    transcript.append((answer.calls[0], ToolResult("ok")))
    messages = transcript.fragments(wire("openai_chat"), {})
    tool_calls = json.loads(messages[1])["tool_calls"]
    assert tool_calls == [
        {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    ]


def test_a_compaction_that_is_not_sent_replaces_nothing() -> None:
    responses = wire("openai_responses")
    items = [
        {"type": "compaction", "id": "k", "encrypted_content": "E"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    ]
    native = msgspec.Raw(msgspec.json.encode(items))
    transcript = Transcript()
    transcript.append(Message("the history"))
    transcript.append(Completion("", wire="openai_responses", native=native))  # without its call
    transcript.append(Message("go"))
    body = b"".join(transcript.fragments(responses, {}))
    assert b"the history" in body
    whole = Transcript()
    whole.append(Message("the history"))
    call = ToolCall("1", "f", provider_id="c")
    whole.append(Completion("", calls=(call,), wire="openai_responses", native=native))
    whole.append((call, ToolResult("ok")))
    body = b"".join(whole.fragments(responses, {}))
    assert b"the history" not in body
    assert b"compaction" in body


def test_half_a_surrogate_pair_in_a_tool_that_the_provider_ran_can_be_stored() -> None:
    tool = {"name": "search", "arguments": '{"q":"\\ud83d"}'}
    answer = chat({"content": "x", "executed_tools": [tool]})
    assert answer.server_calls[0].arguments == {"q": "\ufffd"}
    check_record(answer)


def test_a_number_beyond_all_numbers_can_be_stored() -> None:
    data = json.dumps({"choices": [{"delta": {"content": "x"}, "finish_reason": "stop"}]})
    data = data.replace('"finish_reason"', '"logprobs": {"odd": -1e999}, "finish_reason"')
    parser = wire("openai_chat").stream()
    parser.feed(f"data: {data}\n\ndata: [DONE]\n\n".encode(), lambda delta: None)
    check_record(parser.finish())


def test_a_refusal_in_the_parts_of_a_content() -> None:
    answer = chat({"content": [{"type": "refusal", "refusal": "no"}]})
    assert (answer.text, answer.refusal, answer.stop_reason) == ("", "no", "refusal")


def test_a_filter_that_came_after_a_refusal_loses_nothing() -> None:
    content = [{"type": "refusal", "refusal": "no"}]
    body: dict[str, Any] = {"status": "incomplete", "output": []}
    body["incomplete_details"] = {"reason": "content_filter"}
    with pytest.raises(ContentFiltered):
        wire("openai_responses").parse(json.dumps(body).encode())
    body["output"] = [{"type": "message", "role": "assistant", "content": content}]
    answer = wire("openai_responses").parse(json.dumps(body).encode())
    assert (answer.refusal, answer.stop_reason) == ("no", "content_filter")


def test_true_is_no_count() -> None:
    assert chat({"content": "x"}, usage={"prompt_tokens": True}).usage.input_tokens == 0


def test_an_answer_that_azure_filtered_has_no_message() -> None:
    hate = {"hate": {"filtered": True, "severity": "high"}}
    choice = {"index": 0, "finish_reason": "content_filter", "content_filter_results": hate}
    usage = {"prompt_tokens": 15, "completion_tokens": 19}
    body = json.dumps({"choices": [choice], "usage": usage}).encode()
    answer = wire("openai_chat").parse(body)
    assert (answer.text, answer.stop_reason) == ("", "content_filter")
    results = {"content_filter_results": hate}
    assert (answer.usage.output_tokens, answer.filters) == (19, (results,))


def test_an_error_line_of_llama_cpp_is_the_error_of_the_stream() -> None:
    stream = wire("openai_chat").stream()
    piece = {"choices": [{"index": 0, "delta": {"content": "As"}, "finish_reason": None}]}
    failure = {"error": {"message": "failed to decode, try again"}}
    data = f"data: {json.dumps(piece)}\n\nerror: {json.dumps(failure)}\n\n"
    with pytest.raises(ServerError, match="failed to decode, try again"):
        stream.feed(data.encode())
