"""The OpenAI Chat Completions wire: fragments, heads, plain answers, streams at any cut, errors."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.content import (
    AudioContent,
    EmbeddedResource,
    ErrorInfo,
    ImageContent,
    ResourceLink,
    TextContent,
    ToolCall,
    ToolResult,
    Usage,
)
from holdfast.errors import (
    AuthenticationError,
    BadRequest,
    BadResponse,
    ConfigurationError,
    ContentFiltered,
    ContextTooLong,
    LLMError,
    LLMTimeout,
    ModelNotFound,
    Overloaded,
    PermissionDenied,
    RateLimited,
    ServerError,
    StreamInterrupted,
)
from holdfast.events import ToolDefinition
from holdfast.llm.completion import NO_NATIVE, Completion, Delta
from holdfast.llm.wires import WIRES, openai_chat, wire
from holdfast.llm.wires.calls import read_call
from holdfast.llm.wires.chat_answers import ChatStream
from holdfast.llm.wires.chat_pieces import merge
from tests.model_server import calls, chat, sse, text
from tests.samples import examples

PNG = b"\x89PNG fake"


def decode(fragment: bytes) -> dict[str, Any]:
    return json.loads(fragment)


def parse_plain(answer: Any) -> Completion:
    return openai_chat.parse(json.dumps(answer).encode())


def parse_stream(
    stream: str | bytes, on_delta: Callable[[Delta], object] | None = None, size: int = 0
) -> Completion:
    data = stream.encode() if isinstance(stream, str) else stream
    parser = ChatStream()
    for at in range(0, len(data), size or len(data)):
        parser.feed(data[at : at + (size or len(data))], on_delta)
    return parser.finish()


def events(*chunks: Any) -> str:
    return "".join(
        f"data: {json.dumps(chunk) if not isinstance(chunk, str) else chunk}\n\n"
        for chunk in chunks
    )


def delta(delta: Mapping[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {
        "id": "c",
        "model": "m",
        "choices": [{"index": 0, "delta": dict(delta), "finish_reason": finish}],
        **more,
    }


# --- fragments ---


def test_a_text_is_sent_as_a_str() -> None:
    assert (
        openai_chat.user((TextContent("hé"), TextContent("b")))
        == '{"role":"user","content":"hé\\nb"}'.encode()
    )
    assert decode(openai_chat.user(())) == {"role": "user", "content": ""}


def test_pictures_and_sound_are_sent_as_parts() -> None:
    content = (
        TextContent("look"),
        ImageContent(PNG, "image/png"),
        AudioContent(b"s", "audio/mpeg"),
        ResourceLink("file:///a", "a"),
        EmbeddedResource({"uri": "x:y", "text": "inside"}),
    )
    parts = decode(openai_chat.user(content))["content"]
    assert [part["type"] for part in parts] == ["text", "image_url", "input_audio", "text", "text"]
    assert parts[1]["image_url"]["url"] == "data:image/png;base64,iVBORyBmYWtl"
    assert parts[2]["input_audio"] == {"data": "cw==", "format": "mp3"}
    assert [part["text"] for part in parts[3:]] == ["[a: file:///a]", "inside"]


def test_a_call_is_echoed_with_its_wire_name_its_id_and_its_own_argument_text() -> None:
    call = ToolCall("3.0", "srv.find", {"q": 1}, "call_x", '{"q":  1}')
    message = decode(openai_chat.assistant("", (call,), NO_NATIVE, {"srv.find": "srv__find"}))
    assert message == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call_x",
                "type": "function",
                "function": {"name": "srv__find", "arguments": '{"q":  1}'},
            }
        ],
    }


def test_a_call_of_a_tool_that_is_gone_keeps_a_name_that_the_api_takes() -> None:
    message = decode(openai_chat.assistant("", (ToolCall("3.0", "gone.tool"),), NO_NATIVE, {}))
    assert message["tool_calls"][0]["function"] == {"name": "gone__tool", "arguments": "{}"}
    assert message["tool_calls"][0]["id"] == "3.0"


def test_an_invalid_call_is_echoed_as_json_that_every_server_takes() -> None:
    call = read_call("t", '{"a": ', "c")
    message = decode(openai_chat.assistant("", (call,), NO_NATIVE, {}))
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {
        "invalid_json": '{"a": '
    }


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (ToolResult("out"), "out"),
        (ToolResult(), "(no output)"),
        (ToolResult(structured_content={"n": 1}), '{"n":1}'),
        (ToolResult((TextContent("a"), TextContent("b"))), "a\nb"),
        (ToolResult((TextContent("broke"),), is_error=True), "broke"),
        (ToolResult(is_error=True), "Error: the tool failed without a message."),
        (ToolResult(is_error=True, error=ErrorInfo("timeout", "took 5 s")), "Error: took 5 s"),
        (ToolResult((ImageContent(PNG), ImageContent(PNG))), "(2 images, shown below)"),
        (
            ToolResult((AudioContent(b"abc"),)),
            "[audio/wav, 3 bytes: this model's API takes no such file]",
        ),
    ],
)
def test_a_result_is_said_in_text(result: ToolResult, expected: str) -> None:
    message = decode(
        openai_chat.results([(ToolCall("1.0", "t", provider_id="c1"), result)], {}).split(
            b',{"role":"user"'
        )[0]
    )
    assert message == {"role": "tool", "tool_call_id": "c1", "content": expected}


def test_pictures_of_a_batch_follow_it_in_one_user_message() -> None:
    first = (
        ToolCall("1.0", "shot", provider_id="c1"),
        ToolResult((TextContent("x"), ImageContent(PNG))),
    )
    second = (ToolCall("1.1", "none", provider_id="c2"), ToolResult("y"))
    *_, message = json.loads(b"[" + openai_chat.results([first, second], {}) + b"]")
    assert message["role"] == "user"
    assert [part["type"] for part in message["content"]] == ["text", "image_url"]
    assert message["content"][0]["text"] == "Returned by shot (call c1):"
    assert json.loads(openai_chat.results([second], {}))["role"] == "tool"


# --- native ---


def test_an_ordinary_answer_has_no_native_form() -> None:
    answer = chat(
        {"role": "assistant", "content": "a", "refusal": None, "annotations": [], "audio": None},
        "stop",
    )
    assert not parse_plain(answer).native
    assert not parse_plain(calls(("t", {}))).native
    assert Completion.from_json(parse_plain(answer).to_json()) == parse_plain(answer)


def test_signatures_on_calls_go_back_verbatim() -> None:
    answer = calls(("t", '{"a": 1}'))
    entry = answer["choices"][0]["message"]["tool_calls"][0]
    entry["extra_content"] = {"google": {"thought_signature": "c2ln"}}
    completion = parse_plain(answer)
    message = decode(
        openai_chat.assistant(completion.text, completion.calls, completion.native, {})
    )
    assert message["tool_calls"] == [entry]


def test_a_signature_on_an_invalid_call_does_not_bring_its_broken_arguments_back() -> None:
    answer = calls(("t", '{"a": '))
    answer["choices"][0]["message"]["tool_calls"][0]["extra_content"] = {"s": 1}
    completion = parse_plain(answer)
    message = decode(
        openai_chat.assistant(completion.text, completion.calls, completion.native, {})
    )
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {
        "invalid_json": '{"a": '
    }


def test_reasoning_text_goes_back_only_with_calls() -> None:
    thinking = {"role": "assistant", "content": "a", "reasoning_content": "hm"}
    plain = parse_plain(chat(thinking, "stop"))
    assert plain.reasoning == "hm"
    assert "reasoning_content" not in decode(
        openai_chat.assistant(plain.text, plain.calls, plain.native, {})
    )
    answer = calls(("t", {}))
    answer["choices"][0]["message"]["reasoning_content"] = "hm"
    completion = parse_plain(answer)
    assert (
        decode(openai_chat.assistant(completion.text, completion.calls, completion.native, {}))[
            "reasoning_content"
        ]
        == "hm"
    )


def test_reasoning_details_always_go_back() -> None:
    details = [{"type": "reasoning.encrypted", "data": "xyz", "index": 0}]
    answer = parse_plain(
        chat(
            {"role": "assistant", "content": "a", "reasoning": "hm", "reasoning_details": details},
            "stop",
        )
    )
    assert answer.reasoning == "hm"
    assert (
        decode(openai_chat.assistant(answer.text, answer.calls, answer.native, {}))[
            "reasoning_details"
        ]
        == details
    )


def test_sound_goes_back_by_its_id() -> None:
    answer = parse_plain(
        chat(
            {
                "role": "assistant",
                "content": None,
                "audio": {"id": "audio_1", "data": "AAAA", "transcript": "hi"},
            },
            "stop",
        )
    )
    assert decode(openai_chat.assistant(answer.text, answer.calls, answer.native, {}))["audio"] == {
        "id": "audio_1"
    }


def test_a_streamed_answer_has_the_same_native_form_as_a_plain_one() -> None:
    stream = events(
        delta(
            {
                "role": "assistant",
                "reasoning_details": [{"type": "reasoning.text", "text": "I ", "index": 0}],
            }
        ),
        delta({"reasoning_details": [{"type": "reasoning.text", "text": "see", "index": 0}]}),
        delta({"reasoning_details": [{"type": "reasoning.text", "signature": "sig", "index": 0}]}),
        delta({"reasoning_details": [{"type": "reasoning.encrypted", "data": "zz", "index": 1}]}),
        delta(
            {
                "tool_calls": [
                    {
                        "index": 0,
                        "id": "c",
                        "function": {"name": "t", "arguments": "{}"},
                        "extra_content": {"g": {"s": "x"}},
                    }
                ]
            }
        ),
        delta({}, "tool_calls"),
    )
    answer = parse_stream(stream)
    message = decode(openai_chat.assistant(answer.text, answer.calls, answer.native, {}))
    assert message["reasoning_details"] == [
        {"type": "reasoning.text", "text": "I see", "index": 0, "signature": "sig"},
        {"type": "reasoning.encrypted", "data": "zz", "index": 1},
    ]
    assert message["tool_calls"][0]["extra_content"] == {"g": {"s": "x"}}


# --- heads and bodies ---


def body(
    model: str = "m",
    system: str = "",
    tools: Any = (),
    parameters: Mapping[str, Any] = {},
    **more: Any,
) -> dict[str, Any]:
    head = openai_chat.head(model, system, tools, parameters, more.get("names", {}))
    return json.loads(
        openai_chat.body(
            head,
            more.get("fragments", [b'{"role":"user","content":"x"}']),
            more.get("stream", False),
        )
    )


def test_a_body_is_its_head_and_its_fragments() -> None:
    tool = ToolDefinition("a.b", "does", {"type": "object"})
    request_body = body(
        "m",
        "be good",
        [tool],
        {"temperature": 0.0, "stop": ["x"], "seed": 1},
        names={"a.b": "a__b"},
    )
    assert request_body == {
        "model": "m",
        "temperature": 0.0,
        "stop": ["x"],
        "seed": 1,
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "a__b",
                    "description": "does",
                    "parameters": {"type": "object"},
                },
            }
        ],
        "messages": [{"role": "system", "content": "be good"}, {"role": "user", "content": "x"}],
    }


@pytest.mark.parametrize("system", ["", "s"])
@pytest.mark.parametrize("count", [0, 1, 2, 50])
def test_any_number_of_fragments_makes_a_body(system: str, count: int) -> None:
    request_body = body(system=system, fragments=[b'{"role":"user","content":"x"}'] * count)
    assert len(request_body["messages"]) == count + bool(system)


def test_making_a_body_leaves_the_fragments_alone() -> None:
    fragments = [b"1", b"2"]
    head = openai_chat.head("m", "", (), {}, {})
    openai_chat.body(head, fragments, True)
    assert fragments == [b"1", b"2"]


def test_a_stream_asks_for_its_usage() -> None:
    request_body = body(stream=True, parameters={"extra_body": {"stream_options": {"x": 1}}})
    assert request_body["stream"] is True
    assert request_body["stream_options"] == {"include_usage": True, "x": 1}
    assert "stream" not in body()


@pytest.mark.parametrize(
    ("model", "host", "key"),
    [
        ("gpt-4o", "api.openai.com", "max_completion_tokens"),
        ("mine", "x.openai.azure.com", "max_completion_tokens"),
        ("o3-mini", "proxy", "max_completion_tokens"),
        ("openai/gpt-5", "openrouter.ai", "max_completion_tokens"),
        ("gpt-4o", "proxy", "max_tokens"),
        ("meta-llama/Llama-3", "localhost", "max_tokens"),
        ("olmo-2", "localhost", "max_tokens"),
    ],
)
def test_the_output_limit_goes_by_the_name_that_the_server_knows(
    model: str, host: str, key: str
) -> None:
    request_body = body(model, parameters={"max_output_tokens": 7, "host": host})
    assert {name: value for name, value in request_body.items() if name.startswith("max_")} == {
        key: 7
    }


def test_extra_body_comes_last() -> None:
    assert (
        body(parameters={"temperature": 1, "extra_body": {"temperature": 0, "top_k": 3}})[
            "temperature"
        ]
        == 0
    )


def test_parallel_tool_calls_is_sent_only_with_tools() -> None:
    assert "parallel_tool_calls" not in body(parameters={"parallel_tool_calls": False})
    tool = ToolDefinition("t", "", {"type": "object"})
    assert (
        body(tools=[tool], parameters={"parallel_tool_calls": False})["parallel_tool_calls"]
        is False
    )


def test_a_wire_is_found_by_its_name() -> None:
    assert all(wire(name).name == name for name in WIRES)
    with pytest.raises(ConfigurationError, match="openai_chat"):
        wire("telex")


# --- arguments ---


@pytest.mark.parametrize(
    ("given", "arguments", "raw"),
    [
        ('{"a":1}', {"a": 1}, ""),
        ('{"a": 1}', {"a": 1}, '{"a": 1}'),
        ("", {}, ""),
        ("  ", {}, ""),
        (None, {}, ""),
        ({"a": 1}, {"a": 1}, ""),
        ('"{\\"a\\":1}"', {"a": 1}, ""),
        ('{"a":"two\nlines"}', {"a": "two\nlines"}, ""),
        ('{"a":"\\ud83d"}', {"a": "\ufffd"}, ""),
        ('{"n":123456789012345678901234567890}', {"n": 123456789012345678901234567890}, ""),
        ('{"é":"\\u00e9"}', {"é": "é"}, '{"é":"\\u00e9"}'),
    ],
)
def test_arguments_are_read_as_models_write_them(
    given: Any, arguments: dict[str, Any], raw: str
) -> None:
    call = read_call("t", given, "c")
    assert (call.arguments, call.raw, call.invalid) == (arguments, raw, "")


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        ('{"a": 1', "The arguments are not valid JSON: they end, unfinished, at byte 7."),
        (
            '{"a": tru}',
            "The arguments are not valid JSON: invalid character at byte 10, near '{\"a\": tru}'.",
        ),
        ("[1]", "The arguments are an array, not a JSON object."),
        ("null", "The arguments are null, not a JSON object."),
        ("12", "The arguments are a number, not a JSON object."),
        ('{"a":1} and more', "trailing characters"),
        ('"text"', "The arguments are not valid JSON"),
    ],
)
def test_arguments_that_are_no_object_say_why(raw: str, why: str) -> None:
    call = read_call("t", raw, "c")
    assert why in call.invalid
    assert call.invalid.endswith(".")
    assert (call.arguments, call.raw) == ({}, raw)


# --- plain answers ---


def test_usage_is_read_with_cached_and_reasoning_tokens() -> None:
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 50,
        "total_tokens": 150,
        "prompt_tokens_details": {"cached_tokens": 80, "cache_write_tokens": 5},
        "completion_tokens_details": {"reasoning_tokens": 20},
    }
    assert parse_plain(text("a", usage=usage)).usage == Usage(100, 50, 80, 5, 20)
    assert parse_plain(text("a", usage=None)).usage == Usage()
    assert parse_plain(
        text("a", usage={"prompt_tokens": 9, "prompt_cache_hit_tokens": 4})
    ).usage == Usage(9, 0, 4)


def test_reasoning_that_is_counted_beside_the_output_is_added_to_it() -> None:
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "total_tokens": 35,
        "completion_tokens_details": {"reasoning_tokens": 20},
    }
    assert parse_plain(text("a", usage=usage)).usage == Usage(10, 25, 0, 0, 20)


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        ("stop", "stop"),
        ("eos", "stop"),
        ("length", "length"),
        ("content_filter", "content_filter"),
        ("odd", "odd"),
        (None, "stop"),
    ],
)
def test_stop_reasons_are_normalised(finish: str, reason: str) -> None:
    assert parse_plain(chat({"content": "a"}, finish)).stop_reason == reason


def test_an_answer_with_calls_stopped_for_them_whatever_the_server_says() -> None:
    answer = calls(("t", {}))
    answer["choices"][0]["finish_reason"] = "stop"
    assert parse_plain(answer).stop_reason == "tool_calls"
    answer["choices"][0]["finish_reason"] = "length"
    assert parse_plain(answer).stop_reason == "length"


def test_an_answer_that_the_server_broke_off_is_an_error() -> None:
    with pytest.raises(ServerError, match="insufficient_system_resource"):
        parse_plain(chat({"content": "half"}, "insufficient_system_resource"))


def test_a_refusal_is_not_the_text() -> None:
    answer = parse_plain(chat({"content": None, "refusal": "I will not."}, "stop"))
    assert (answer.text, answer.refusal, answer.stop_reason) == ("", "I will not.", "refusal")
    answer = parse_plain(chat({"content": "a", "refusal": "I will not."}, "length"))
    assert (answer.text, answer.refusal, answer.stop_reason) == ("a", "I will not.", "length")


def test_two_calls_of_one_id_get_ids_of_ours() -> None:
    answer = calls(("a", {}), ("b", {}))
    for entry in answer["choices"][0]["message"]["tool_calls"]:
        entry["id"] = "same"
    assert [call.provider_id for call in parse_plain(answer).calls] == ["same", ""]


def test_text_in_parts_is_joined_and_goes_back_as_it_came() -> None:
    content = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
        {"type": "text", "text": "yes"},
    ]
    answer = parse_plain(chat({"role": "assistant", "content": content}, "stop"))
    assert (answer.text, answer.reasoning) == ("yes", "hm")
    assert decode(openai_chat.assistant(answer.text, (), answer.native, {}))["content"] == content


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"<html>",
        b"[]",
        b"{}",
        b'{"choices":[]}',
        b'{"choices":[{}]}',
        b'{"choices":[{"message":"x"}]}',
        b"\xff",
    ],
)
def test_what_is_no_answer_is_a_bad_response(answer: bytes) -> None:
    with pytest.raises(BadResponse):
        openai_chat.parse(answer)


@pytest.mark.parametrize("entry", [None, "x", {}, {"function": "f"}, {"function": None}])
def test_a_tool_call_that_is_none_is_a_bad_response(entry: Any) -> None:
    with pytest.raises(BadResponse, match="tool call"):
        parse_plain(chat({"tool_calls": [entry]}, "tool_calls"))


def test_an_error_with_status_200_is_an_error() -> None:
    with pytest.raises(RateLimited, match="slow"):
        parse_plain({"error": {"message": "slow", "code": 429}})


# --- streams ---

ANSWER = calls(
    ("find", {"q": "naïve ☃ 𝄞", "n": 1}), ("list", {}), content="Žluťoučký kůň — 🐎 says\nhi"
)
STREAM = sse(ANSWER)


def test_a_stream_gives_what_the_plain_answer_gives() -> None:
    assert parse_stream(STREAM) == parse_plain(ANSWER)


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
def test_a_stream_is_read_at_any_cut_and_line_end(newline: str, size: int) -> None:
    assert parse_stream(STREAM.replace("\n", newline), size=size) == parse_plain(ANSWER)


@given(
    st.lists(st.integers(0, len(STREAM.encode())), max_size=40),
    st.sampled_from(["\n", "\r\n", "\r"]),
)
@settings(max_examples=examples(150), deadline=None)
def test_a_stream_cut_at_random_gives_the_same(cuts: list[int], newline: str) -> None:
    data = STREAM.replace("\n", newline).encode()
    parser = ChatStream()
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(data)], strict=True):
        parser.feed(data[start:end])
    assert parser.finish() == parse_plain(ANSWER)


FINISHED = STREAM.encode().index(b'"finish_reason": "tool_calls"') + len(
    b'"finish_reason": "tool_calls"}]}'
)


@pytest.mark.slow
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_a_stream_that_ends_at_any_byte_before_the_finish_is_an_error(newline: bytes) -> None:
    data = STREAM.encode()
    for at in range(FINISHED):
        with pytest.raises(StreamInterrupted):
            parse_stream(data[:at].replace(b"\n", newline) or b"\n")


def test_a_stream_that_ends_after_the_finish_is_whole() -> None:
    data = STREAM.encode()
    for at in range(FINISHED, len(data)):
        answer = parse_stream(data[:at])
        assert (answer.text, answer.calls) == (parse_plain(ANSWER).text, parse_plain(ANSWER).calls)


@pytest.mark.slow
@given(
    st.text(),
    st.lists(st.tuples(st.text(min_size=1, max_size=8), st.dictionaries(st.text(), st.text()))),
    st.integers(1, 9),
)
@settings(max_examples=examples(60), deadline=None)
def test_whatever_a_model_says_survives_its_stream(
    content: str, tool_calls: list[tuple[str, dict[str, str]]], size: int
) -> None:
    answer = calls(*tool_calls, content=content) if tool_calls else text(content)
    assert parse_stream(sse(answer, size=size), size=size) == parse_plain(answer)


@given(st.binary(max_size=300))
@settings(max_examples=examples(200), deadline=None)
def test_no_bytes_make_the_parser_fail_otherwise_than_by_its_errors(data: bytes) -> None:
    with pytest.raises(LLMError):
        parse_stream(data or b"\n")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "choices",
                    "delta",
                    "tool_calls",
                    "function",
                    "index",
                    "finish_reason",
                    "content",
                    "usage",
                    "error",
                    "x",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(json_values)
@settings(max_examples=examples(300), deadline=None)
def test_no_json_makes_the_parsers_fail_otherwise_than_by_their_errors(value: Any) -> None:
    for parse in (
        lambda: parse_stream(events(value, delta({}, "stop"))),
        lambda: parse_plain(value),
        lambda: parse_plain({"choices": [value]}),
    ):
        try:
            parse()
        except LLMError:
            pass


def test_comments_other_fields_and_a_byte_order_mark_are_skipped() -> None:
    stream = (
        "\ufeff: ping\n\n:\nevent: message\nid: 1\nretry: 5\n"
        + events(delta({"content": "a"}), delta({}, "stop"))
        + ": bye\n\n"
    )
    assert parse_stream(stream).text == "a"


def test_data_needs_no_space_and_may_have_many_lines() -> None:
    chunk = json.dumps(delta({"content": "a"}, "stop"), indent=1)
    stream = "".join(f"data:{line}\n" for line in chunk.splitlines()) + "\n"
    assert parse_stream(stream).text == "a"


def test_done_alone_does_not_finish_an_answer() -> None:
    with pytest.raises(StreamInterrupted):
        parse_stream(events(delta({"content": "half"}), "[DONE]"))


def test_a_finish_needs_no_done_and_no_last_blank_line() -> None:
    assert parse_stream(events(delta({"content": "a"}, "stop")).rstrip("\n")).text == "a"


def test_an_empty_finish_reason_is_none() -> None:
    with pytest.raises(StreamInterrupted):
        parse_stream(events(delta({"content": "a"}, "")))


def test_what_follows_done_is_not_read() -> None:
    assert parse_stream(events(delta({"content": "a"}, "stop"), "[DONE]", "garbage")).text == "a"


def test_usage_may_come_in_any_chunk_and_the_last_counts() -> None:
    first = delta({"content": "a"}, usage={"prompt_tokens": 1, "completion_tokens": 1})
    last = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 9}}
    assert parse_stream(events(first, delta({}, "stop", usage=None), last)).usage == Usage(1, 9)


def test_an_error_in_a_stream_is_raised_as_its_type() -> None:
    def fails(error: Any) -> LLMError:
        with pytest.raises(LLMError) as caught:
            parse_stream(events(delta({"content": "half"}), error))
        return caught.value

    assert isinstance(fails({"error": {"message": "x", "type": "server_error"}}), ServerError)
    assert isinstance(fails({"error": {"message": "x", "code": 429}}), RateLimited)
    assert isinstance(
        fails({"error": {"message": "x", "code": "context_length_exceeded"}}), ContextTooLong
    )
    assert isinstance(fails({"error": {"message": "x", "type": "overloaded_error"}}), ServerError)
    assert isinstance(fails({"error": {"message": "who knows"}}), ServerError)
    assert isinstance(fails({"error": "boom"}), ServerError)
    assert fails({"object": "error", "message": "vLLM says no", "code": 400}).status == 400
    with pytest.raises(ServerError, match="gone"):
        parse_stream('event: error\ndata: {"message": "gone"}\n\n')


def test_reasoning_comes_under_either_name_once() -> None:
    deltas: list[Delta] = []
    stream = events(
        delta({"reasoning_content": "a", "reasoning": "a"}),
        delta({"reasoning_content": "b", "reasoning": "b"}),
        delta({}, "stop"),
    )
    assert parse_stream(stream, deltas.append).reasoning == "ab"
    assert [one.text for one in deltas if one.kind == "reasoning"] == ["a", "b"]


def piece(arguments: str = "", **more: Any) -> dict[str, Any]:
    function = {"arguments": arguments, **({"name": more.pop("name")} if "name" in more else {})}
    return delta({"tool_calls": [{**more, "function": function}]})


@pytest.mark.parametrize(
    "pieces",
    [
        [
            piece('{"a"', index=0, id="x", name="t"),
            piece(":1}", index=0),
            piece('{"b":2}', index=1, id="y", name="u"),
        ],
        [
            piece('{"a"', id="x", name="t"),
            piece(":1}"),
            piece('{"b":2}', id="y", name="u"),
        ],  # no index
        [piece('{"a"', id="x", name="t"), piece(":1}", id="x"), piece('{"b":2}', id="y", name="u")],
        [
            piece('{"a":1}', index=0, id="x", name="t"),
            piece('{"b":2}', index=0, id="y", name="u"),
        ],  # always index 0
        [
            piece('{"a"', index=0, id="x", name="t"),
            piece(":1}", index=0, id="x", name="t"),
            piece('{"b":2}', index=1, id="y", name="u"),
        ],
        [
            piece('{"a"', index=0, id="x", name="t"),
            piece(":1}", index=0, id="made-up"),
            piece('{"b":2}', index=1, id="y", name="u"),
        ],
    ],
    ids=[
        "by index",
        "no index",
        "id repeated",
        "index always 0",
        "name repeated",
        "new id for each piece",
    ],
)
def test_calls_are_put_together_from_all_servers_pieces(pieces: list[Any]) -> None:
    answer = parse_stream(events(*pieces, delta({}, "tool_calls")))
    assert [(call.name, call.arguments, call.provider_id) for call in answer.calls] == [
        ("t", {"a": 1}, "x"),
        ("u", {"b": 2}, "y"),
    ]


def test_interleaved_calls_are_told_apart_by_index() -> None:
    stream = events(
        piece('{"a"', index=0, id="x", name="t"),
        piece('{"b"', index=1, id="y", name="u"),
        piece(":1}", index=0),
        piece(":2}", index=1),
        delta({}, "tool_calls"),
    )
    assert [call.arguments for call in parse_stream(stream).calls] == [{"a": 1}, {"b": 2}]


def test_a_call_without_an_id_leaves_it_to_us() -> None:
    assert parse_stream(events(piece("{}", index=0, name="t"), delta({}, "tool_calls"))).calls == (
        ToolCall("", "t"),
    )


def test_a_name_in_pieces_is_joined() -> None:
    stream = events(
        piece(index=0, id="x", name="get_"),
        piece(index=0, name="it"),
        piece("{}", index=0),
        delta({}, "stop"),
    )
    assert parse_stream(stream).calls[0].name == "get_it"


def test_deltas_tell_text_and_calls_in_order() -> None:
    deltas: list[Delta] = []
    answer = parse_stream(STREAM, deltas.append)
    assert "".join(one.text for one in deltas if one.kind == "text") == answer.text
    for index, call in enumerate(answer.calls):
        mine = [one for one in deltas if one.kind == "tool" and one.index == index]
        assert mine[0].name == call.name
        assert not any(one.name for one in mine[1:])
        assert json.loads("".join(one.text for one in mine)) == call.arguments


def test_a_surrogate_pair_cut_in_two_is_put_together() -> None:
    stream = (
        'data: {"choices":[{"delta":{"content":"\\ud83d"}}]}\n\ndata:'
        ' {"choices":[{"delta":{"content":"\\ude00!"},"finish_reason":"stop"}]}\n\n'
    )
    assert parse_stream(stream).text == "😀!"
    assert parse_stream(stream.replace("ude00", "ud83d")).text == "\ufffd\ufffd!"


def test_an_answer_that_is_not_quite_json_is_read() -> None:
    answer = b'{"id":"x","choices":[{"message":{"content":"a\tb\\ud83d"},"logprobs":NaN,"finish_reason":"stop"}]}'
    assert openai_chat.parse(answer).text == "a\tb\ufffd"


def test_an_alternative_answer_is_not_mixed_in() -> None:
    other = delta({"content": "B"}, "stop")
    other["choices"][0]["index"] = 1
    assert parse_stream(events(delta({"content": "A"}), other, delta({}, "stop"))).text == "A"


# --- errors ---


def failure(status: int, body: Any = None, headers: Mapping[str, str] = {}) -> LLMError:
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return openai_chat.error(
        status, headers, data, "https://api.example.com/v1/chat/completions", "m-1"
    )


def message(text: str, **more: Any) -> dict[str, Any]:
    return {"error": {"message": text, **more}}


@pytest.mark.parametrize(
    ("status", "body", "kind", "retryable"),
    [
        (401, message("bad key", code="invalid_api_key"), AuthenticationError, False),
        (403, message("not you"), PermissionDenied, False),
        (404, message("no model m-1", code="model_not_found"), ModelNotFound, False),
        (400, message("too long", code="context_length_exceeded"), ContextTooLong, False),
        (
            400,
            message("This model's maximum context length is 4096 tokens."),
            ContextTooLong,
            False,
        ),
        (
            400,
            {"object": "error", "message": "prompt is too long: 9 tokens > 8 maximum"},
            ContextTooLong,
            False,
        ),
        (
            400,
            message(
                "the request exceeds the available context size", type="exceed_context_size_error"
            ),
            ContextTooLong,
            False,
        ),
        (413, b"Payload Too Large", ContextTooLong, False),
        (400, message("no", code="content_filter"), ContentFiltered, False),
        (400, message("bad value"), BadRequest, False),
        (422, {"detail": [{"loc": ["body"], "msg": "field required"}]}, BadRequest, False),
        (402, message("pay"), RateLimited, False),
        (408, message("slow"), LLMTimeout, True),
        (409, message("locked"), BadRequest, True),
        (429, message("slow down", code="rate_limit_exceeded"), RateLimited, True),
        (429, message("no money", code="insufficient_quota"), RateLimited, False),
        (
            429,
            message("Request too large for gpt-4o", code="rate_limit_exceeded"),
            ContextTooLong,
            False,
        ),
        (500, message("oops"), ServerError, True),
        (503, b"", ServerError, True),
        (529, message("busy", type="overloaded_error"), Overloaded, True),
        (302, b"", BadRequest, False),
        (400, [message("Gemini says no")], BadRequest, False),
        (400, {"error": "ollama says no"}, BadRequest, False),
    ],
)
def test_an_error_has_the_type_that_its_status_and_code_mean(
    status: int, body: Any, kind: type, retryable: bool
) -> None:
    raised = failure(status, body)
    assert type(raised) is kind
    assert raised.retryable is retryable
    assert raised.status == status


def test_an_error_carries_what_the_provider_said() -> None:
    raised = failure(
        429,
        message("slow", code="rate_limit_exceeded"),
        {"x-request-id": "req_1", "retry-after": "7"},
    )
    assert (raised.code, raised.request_id, raised.retry_after) == (
        "rate_limit_exceeded",
        "req_1",
        7.0,
    )
    assert "slow" in str(raised)


def test_a_404_without_a_model_speaks_of_the_path() -> None:
    for body in (
        b"<html><head><title>404</title></head><body>Not Found</body></html>",
        {"detail": "Not Found"},
    ):
        assert "A base_url usually ends in /v1" in str(failure(404, body))
    assert "has no model 'm-1'" in str(
        failure(404, message("The model `m-1` does not exist", code="model_not_found"))
    )


def test_a_page_of_html_is_shown_short() -> None:
    page = (
        b"<!DOCTYPE html><html><head><style>p {color: red}</style></head><body><h1>502 Bad"
        b" Gateway</h1>" + b"<p>nginx</p>" * 500
    )
    text = str(failure(502, page))
    assert "502 Bad Gateway nginx" in text
    assert "<" not in text
    assert "color" not in text
    assert len(text) < 500


@pytest.mark.parametrize("name", WIRES)
def test_tools_of_the_provider_stand_beside_ours(name: str) -> None:
    own = {"type": "web_search", "name": "web_search"}
    spoken = wire(name)
    tool = ToolDefinition("add", "Adds.", {"type": "object", "properties": {}})
    head = spoken.head(
        "m", "", [tool], {"extra_body": {"tools": [own]}, "host": ""}, {"add": "add"}
    )
    data = json.loads(spoken.body(head, [], False))["tools"]
    assert len(data) == 2
    assert data[1] == own
    assert "add" in json.dumps(data[0])


def test_an_event_that_is_cut_between_cr_and_lf_is_read() -> None:
    body = events(delta({"content": "hi"}, "stop")).replace("\n", "\r\n").encode()
    assert (
        parse_stream(body[:-3]).text
        == parse_stream(body[:-2]).text
        == parse_stream(body).text
        == "hi"
    )


# --- ids, arguments, documents, cache keys ---


def echo_call(entry: dict[str, Any], **changes: Any) -> dict[str, Any]:
    answer = openai_chat.parse(
        json.dumps(
            chat({"role": "assistant", "content": None, "tool_calls": [entry]}, "tool_calls")
        ).encode()
    )
    call = msgspec.structs.replace(answer.calls[0], id="3.0", **changes)
    return decode(openai_chat.assistant("", (call,), answer.native, {}))["tool_calls"][0]


SIGNED = {
    "type": "function",
    "function": {"name": "t", "arguments": "{}"},
    "extra_content": {"google": {"thought_signature": "c2ln"}},
}


@pytest.mark.parametrize("id", [{}, {"id": ""}, {"id": None}])
def test_a_signed_call_without_an_id_gets_one_and_keeps_its_signature(id: dict[str, Any]) -> None:
    assert echo_call({**id, **SIGNED}) == {**SIGNED, "id": "3.0"}


def test_a_signed_call_goes_back_with_the_id_that_its_result_has() -> None:
    assert echo_call({"id": "call_0", **SIGNED}, provider_id="call_0_2") == {
        **SIGNED,
        "id": "call_0_2",
    }


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ('{"b": 2,  "a": 1}', '{"b": 2,  "a": 1}'),
        ('{"a":"line\nbreak"}', '{"a":"line\\nbreak"}'),
        ('"{\\"a\\": 1}"', '{"a":1}'),
        ("", "{}"),
        (None, "{}"),
        ({"a": 1}, '{"a":1}'),
        ("[1]", '{"invalid_json":"[1]"}'),
    ],
)
def test_arguments_of_a_signed_call_go_back_as_they_came_if_that_is_json(
    given: Any, expected: str
) -> None:
    assert (
        echo_call({**SIGNED, "id": "c", "function": {"name": "t", "arguments": given}})["function"][
            "arguments"
        ]
        == expected
    )


@pytest.mark.parametrize(
    ("model", "host", "id", "expected"),
    [
        ("m", "h", "chatcmpl-tool-" + "a" * 32, "chatcmpl-tool-" + "a" * 32),
        ("gpt-4o", "h", "call_abc", "call_abc"),
        ("gpt-4o", "h", "chatcmpl-tool-" + "a" * 32, "call_" + "d77663167b77550089a47785846c15fa"),
        ("m", "api.openai.com", "x" * 41, None),
        ("mistral-large-latest", "h", "aB3dE6gH9", "aB3dE6gH9"),
        ("mistral-large-latest", "h", "call_abc", None),
        ("m", "api.mistral.ai", "3.0", None),
    ],
)
def test_ids_of_calls_are_such_as_the_server_takes(
    model: str, host: str, id: str, expected: str | None
) -> None:
    family = openai_chat.family(model, host)
    sent_id = openai_chat.call_id(ToolCall("", "t", {}, id), family)
    assert sent_id == expected if expected else sent_id != id
    assert openai_chat.call_id(ToolCall("", "t", {}, sent_id), family) == sent_id
    if family.startswith("mistral"):
        assert len(sent_id) == 9
        assert sent_id.isalnum()
    elif family.startswith("openai"):
        assert len(sent_id) <= 40


def test_pictures_and_files_in_resources_are_sent_as_parts() -> None:
    picture = EmbeddedResource({"uri": "file:///a.png", "mimeType": "image/png", "blob": "UE5H"})
    pdf = EmbeddedResource(
        {"uri": "file:///d/a.pdf", "mimeType": "application/pdf", "blob": "JVBE"}
    )
    other = EmbeddedResource(
        {"uri": "file:///a.zip", "mimeType": "application/zip", "blob": "AAAA"}
    )
    assert decode(openai_chat.user((picture, pdf, other)))["content"] == [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,UE5H"}},
        {
            "type": "file",
            "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBE"},
        },
        {
            "type": "text",
            "text": "[application/zip file:///a.zip, 3 bytes: this model's API takes no such file]",
        },
    ]
    tool, picture_message = json.loads(
        b"["
        + openai_chat.results(
            [(ToolCall("1.0", "t", provider_id="c"), ToolResult((picture, pdf)))], {}
        )
        + b"]"
    )
    assert (
        tool["content"]
        == "(image/png, shown below)\n[application/pdf file:///d/a.pdf, 3 bytes: this model's API takes no such file]"
    )
    assert [part["type"] for part in picture_message["content"]] == ["text", "image_url"]


def in_head(**parameters: Any) -> dict[str, Any]:
    return decode(openai_chat.body(openai_chat.head("m", "s", (), parameters, {}), [], False))


def test_a_cache_key_goes_to_openai_and_mistral_alone() -> None:
    assert in_head(cache_key="k", host="api.mistral.ai")["prompt_cache_key"] == "k"
    assert in_head(cache_key="k", host="api.openai.com")["prompt_cache_key"] == "k"
    assert len(in_head(cache_key="k" * 65, host="api.openai.com")["prompt_cache_key"]) == 64
    assert (
        in_head(cache_key="k", host="api.openai.com", extra_body={"prompt_cache_key": "own"})[
            "prompt_cache_key"
        ]
        == "own"
    )
    assert "prompt_cache_key" not in in_head(
        cache_key="k", host="api.openai.com", prompt_caching=False
    )
    assert "prompt_cache_key" not in in_head(cache_key="k", host="api.groq.com")
    assert "prompt_cache_key" not in in_head(host="api.openai.com")


def test_a_schema_gets_the_name_that_the_api_wants() -> None:
    response_format = {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}
    assert in_head(response_format=response_format)["response_format"]["json_schema"] == {
        "schema": {"type": "object"},
        "name": "answer",
    }
    assert "name" not in response_format["json_schema"]


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        (None, None),
        ({"x": 1}, {"include_usage": True, "x": 1}),
        ({"include_usage": False}, {"include_usage": False}),
    ],
)
def test_stream_options_can_be_added_to_and_left_out(options: Any, sent: Any) -> None:
    head = openai_chat.head("m", "", (), {"extra_body": {"stream_options": options}}, {})
    assert decode(openai_chat.body(head, [], True)).get("stream_options") == sent


def test_an_answer_that_broke_off_with_a_pause_is_gone_on_from_where_the_server_wants_a_user() -> (
    None
):
    fragments = [
        openai_chat.user((TextContent("hi"),)),
        openai_chat.assistant("so", (), NO_NATIVE, {}),
    ]
    roles = [
        [
            message["role"]
            for message in decode(
                openai_chat.body(openai_chat.head(model, "", (), {}, {}), fragments, False)
            )["messages"]
        ]
        for model in ("mistral-large-latest", "gpt-4o")
    ]
    assert roles == [["user", "assistant", "user"], ["user", "assistant"]]


def test_pieces_are_added_in_place() -> None:
    """Otherwise each piece of a long reasoning costs as much as all before it."""
    into: dict[str, Any] = {}
    merge(into, "reasoning_details", [{"type": "reasoning.text", "text": "a"}])
    items = into["reasoning_details"]
    merge(into, "reasoning_details", [{"type": "reasoning.text", "text": "b"}])
    merge(into, "reasoning_details", [{"type": "reasoning.text", "index": 0, "text": "c"}])
    item = items[2]
    merge(
        into,
        "reasoning_details",
        [{"type": "reasoning.text", "index": 0, "text": "d", "signature": "s"}],
    )
    assert into["reasoning_details"] is items
    assert items[2] is item
    assert [part["text"] for part in items] == ["a", "b", "cd"]
