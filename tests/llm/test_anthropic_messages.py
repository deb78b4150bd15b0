"""The Anthropic Messages wire: fragments, heads, plain answers, streams at any cut, errors."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.content import (
    AudioContent,
    Content,
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
    BadResponse,
    ConfigurationError,
    ContentFiltered,
    ContextTooLong,
    LLMError,
    RateLimited,
    ServerError,
    StreamInterrupted,
)
from holdfast.events import ToolDefinition
from holdfast.llm import LLM
from holdfast.llm.completion import NO_NATIVE, Completion, Delta
from holdfast.llm.wires import anthropic_messages as wire
from holdfast.llm.wires.anthropic_answers import MessagesStream
from holdfast.llm.wires.calls import read_call
from tests.samples import examples

PNG = b"\x89PNG fake"
PNG_BLOCK = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": "iVBORyBmYWtl"},
}
EPHEMERAL = {"type": "ephemeral"}


def text(content: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": content, **more}


def tool_use(
    id: str = "toolu_1", name: str = "t", input: Any = None, **more: Any
) -> dict[str, Any]:
    return {
        "type": "tool_use",
        "id": id,
        "name": name,
        "input": {} if input is None else input,
        **more,
    }


def thinking(thought: str = "hm", signature: str = "c2ln") -> dict[str, Any]:
    return {"type": "thinking", "thinking": thought, "signature": signature}


def message(*content: Any, stop: str | None = "end_turn", **more: Any) -> dict[str, Any]:
    usage = {"input_tokens": 10, "output_tokens": 5}
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [*content],
        "stop_reason": stop,
        "usage": usage,
        **more,
    }


def parse_plain(answer: Any) -> Completion:
    return wire.parse(json.dumps(answer).encode())


def echo(answer: Any, **changes: Any) -> Any:
    """Return the content of an answer in the next request, or None if it has none."""
    completion = msgspec.structs.replace(
        parse_plain(answer) if isinstance(answer, dict) else answer, **changes
    )
    fragment = wire.assistant(completion.text, completion.calls, completion.native, {})
    return json.loads(fragment)["content"] if fragment else None


# --- fragments ---


def test_a_user_message_has_blocks() -> None:
    assert (
        wire.user((TextContent("hé"), TextContent("b")))
        == '{"role":"user","content":[{"type":"text","text":"hé"},{"type":"text","text":"b"}]}'.encode()
    )


def test_pictures_and_documents_are_sent_as_blocks_and_the_rest_as_text() -> None:
    content: tuple[Content, ...] = (
        ImageContent(PNG, "image/png"),
        ImageContent(PNG, "image/jpg"),
        ImageContent(PNG, "image/svg+xml"),
        AudioContent(b"s", "audio/mpeg"),
        ResourceLink("file:///a", "a"),
        EmbeddedResource({"uri": "x:y", "text": "inside"}),
        EmbeddedResource({"uri": "x:y", "mimeType": "application/pdf", "blob": "JVBERg=="}),
        EmbeddedResource({"uri": "x:y", "mimeType": "image/PNG", "blob": "iVBORyBmYWtl"}),
        EmbeddedResource({"uri": "x:y", "mimeType": "application/zip", "blob": "AAAA"}),
    )
    assert json.loads(wire.user(content))["content"] == [
        PNG_BLOCK,
        {"type": "image", "source": {**PNG_BLOCK["source"], "media_type": "image/jpeg"}},
        text("[image/svg+xml, 9 bytes: this model's API takes no such file]"),
        text("[audio/mpeg, 1 bytes: this model's API takes no such file]"),
        text("[a: file:///a]"),
        text("inside"),
        {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="},
        },
        PNG_BLOCK,
        text("[application/zip x:y, 3 bytes: this model's API takes no such file]"),
    ]


@pytest.mark.parametrize("content", [(), (TextContent(""),), (TextContent(" \n"),)])
def test_a_blank_user_message_says_that_it_is(content: tuple[Content, ...]) -> None:
    assert json.loads(wire.user(content)) == {"role": "user", "content": [text("(empty message)")]}
    assert json.loads(wire.user((*content, TextContent("x"))))["content"] == [text("x")]


def test_a_system_message_in_the_midst_is_a_user_message_that_says_so() -> None:
    assert json.loads(wire.system("be brief")) == {
        "role": "user",
        "content": [text("<system>\nbe brief\n</system>")],
    }


def test_an_answer_is_said_in_text_and_calls() -> None:
    call = ToolCall("3.0", "srv.find", {"q": 1}, "toolu_x", '{"q":  1}')
    assert (
        wire.assistant("on it ", (call,), NO_NATIVE, {"srv.find": "srv__find"})
        == b'{"role":"assistant","content":[{"type":"text","text":"on it "},'
        b'{"type":"tool_use","id":"toolu_x","name":"srv__find","input":{"q":1}}]}'
    )


def test_white_space_at_the_end_of_an_answer_is_left_out() -> None:
    assert (
        wire.assistant("yes \n", (), NO_NATIVE, {})
        == b'{"role":"assistant","content":[{"type":"text","text":"yes"}]}'
    )


@pytest.mark.parametrize("blank", ["", " \n"])
def test_an_answer_that_says_nothing_is_no_message(blank: str) -> None:
    assert wire.assistant(blank, (), NO_NATIVE, {}) == b""
    assert json.loads(
        wire.assistant(blank, (ToolCall("1.0", "t", provider_id="a"),), NO_NATIVE, {})
    )["content"] == [tool_use("a")]


def test_an_invalid_call_goes_back_as_an_object() -> None:
    call = read_call("t", '{"a": ', "toolu_1")
    assert json.loads(wire.assistant("", (call,), NO_NATIVE, {}))["content"] == [
        tool_use(input={"invalid_json": '{"a": '})
    ]


@pytest.mark.parametrize("provider_id", ["call|1", "call.1", "höme", "a b", "3.0"])
def test_ids_of_other_providers_are_put_in_letters_that_the_api_takes_on_both_sides(
    provider_id: str,
) -> None:
    call = ToolCall("9.9", "t", provider_id=provider_id)
    used = json.loads(wire.assistant("", (call,), NO_NATIVE, {}))["content"][0]["id"]
    assert (
        json.loads(wire.results([(call, ToolResult("x"))], {}))["content"][0]["tool_use_id"] == used
    )
    assert used.isascii()
    assert used.replace("_", "").replace("-", "").isalnum()
    assert used != provider_id


def test_two_ids_stay_two() -> None:
    calls = [ToolCall("", "t", provider_id=id) for id in ("a.b", "a|b", "a_b", "a-b")]
    data = json.loads(wire.assistant("", calls, NO_NATIVE, {}))["content"]
    assert len({block["id"] for block in data}) == 4


def test_a_call_without_a_providers_id_has_ours() -> None:
    fragment = wire.assistant("", (ToolCall("3.0", "t"),), NO_NATIVE, {})
    assert json.loads(fragment)["content"][0]["id"].startswith("3_0_")


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (ToolResult("out"), {"content": "out"}),
        (ToolResult(), {"content": "(no output)"}),
        (ToolResult(" \n"), {"content": "(no output)"}),
        (ToolResult(structured_content={"n": 1}), {"content": '{"n":1}'}),
        (ToolResult((TextContent("a"), TextContent("b"))), {"content": "a\nb"}),
        (
            ToolResult((TextContent("broke"),), is_error=True),
            {"content": "broke", "is_error": True},
        ),
        (
            ToolResult(is_error=True, error=ErrorInfo("timeout", "took 5 s")),
            {"content": "Error: took 5 s", "is_error": True},
        ),
        (ToolResult((ImageContent(PNG),)), {"content": [PNG_BLOCK]}),
        (
            ToolResult((TextContent("a"), TextContent(" "), ImageContent(PNG), TextContent("b"))),
            {"content": [text("a"), PNG_BLOCK, text("b")]},
        ),
        (
            ToolResult((AudioContent(b"abc"),)),
            {"content": "[audio/wav, 3 bytes: this model's API takes no such file]"},
        ),
    ],
)
def test_a_result_is_said_in_text_and_pictures(
    result: ToolResult, expected: dict[str, Any]
) -> None:
    data = json.loads(wire.results([(ToolCall("1.0", "t", provider_id="c1"), result)], {}))
    assert data == {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "c1", **expected}],
    }


def test_all_results_of_a_batch_stand_in_one_message_and_pictures_of_errors_behind_them() -> None:
    first = (
        ToolCall("1.0", "shot", provider_id="c1"),
        ToolResult((ImageContent(PNG),), is_error=True),
    )
    second = (ToolCall("1.1", "none", provider_id="c2"), ToolResult("y"))
    assert json.loads(wire.results([first, second], {})) == {
        "role": "user",
        "content": [
            {
                "type": "tool_result",
                "tool_use_id": "c1",
                "content": "Error: the tool failed without a message.",
                "is_error": True,
            },
            {"type": "tool_result", "tool_use_id": "c2", "content": "y"},
            text("Returned by shot (call c1):"),
            PNG_BLOCK,
        ],
    }


# --- native ---


def test_an_ordinary_answer_has_no_native_form() -> None:
    for answer in (
        message(text("a", citations=None)),
        message(text("a"), tool_use(caller={"type": "direct"}), stop="tool_use"),
        message(),
    ):
        assert not parse_plain(answer).native
        assert Completion.from_json(parse_plain(answer).to_json()) == parse_plain(answer)


@pytest.mark.parametrize(
    "content",
    [
        [thinking(), text("a")],
        [thinking(""), text("a")],
        [{"type": "redacted_thinking", "data": "eA=="}, text("a")],
        [text("a", citations=[{"type": "web_search_result_location", "encrypted_index": "x"}])],
        [
            {
                "type": "server_tool_use",
                "id": "srvtoolu_1",
                "name": "web_search",
                "input": {"query": "q"},
            },
            text("a"),
        ],
        [text("a"), tool_use(), text("b")],
        [tool_use(caller={"type": "code_execution_20250825", "tool_id": "srvtoolu_1"})],
        [tool_use(something="new")],
        [text("a", something="new")],
        [{"type": "from_the_future", "content": [1.0, None, {"x": "é"}]}, text("a")],
        [{"type": "compaction", "content": "so far"}, text("a")],
    ],
)
def test_what_is_more_than_text_and_calls_goes_back_byte_for_byte(content: list[Any]) -> None:
    data = (
        b'{"stop_reason":"end_turn","content":'
        + json.dumps(content, indent=1).encode()
        + b',"id":"x"}'
    )
    answer = wire.parse(data)
    assert bytes(answer.native) == json.dumps(content, indent=1).encode()
    fragment = wire.assistant(answer.text, answer.calls, answer.native, {})
    assert json.loads(fragment) == {"role": "assistant", "content": content}
    for block in msgspec.json.decode(answer.native, type=list[msgspec.Raw]):
        assert bytes(block) in fragment


def test_what_the_api_gives_and_does_not_take_is_left_out() -> None:
    cited = {"type": "char_location", "cited_text": "x", "document_index": 0}
    answer = message(
        thinking(),
        text(""),
        text(" \n"),
        text("a", citations=[{**cited, "file_id": None}, {**cited, "file_id": "file_1"}]),
        {
            "type": "server_tool_use",
            "id": "srvtoolu_1",
            "name": "web_search",
            "input": {},
            "caller": {"type": "direct"},
        },
        {
            "type": "web_search_tool_result",
            "tool_use_id": "srvtoolu_1",
            "content": [],
            "caller": {"type": "direct"},
        },
        tool_use("a", caller=None),
        tool_use("b", caller={"type": "direct"}),
        stop="tool_use",
    )
    assert echo(answer) == [
        thinking(),
        text("a", citations=[cited, cited]),
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
        tool_use("a"),
        tool_use("b"),
    ]


def test_an_answer_does_not_end_in_thinking_or_white_space() -> None:
    assert echo(
        message(thinking(), text("a \n"), thinking("cut", ""), text(" "), stop="max_tokens")
    ) == [thinking(), text("a")]
    assert echo(message(thinking(), stop="max_tokens")) is None


def test_a_call_in_a_native_form_follows_the_calls_of_the_journal() -> None:
    answer = message(
        thinking(), tool_use("a", input={"n": 1}), tool_use("b"), tool_use("gone"), stop="tool_use"
    )
    first, second, _ = parse_plain(answer).calls
    edited = msgspec.structs.replace(first, arguments={"n": 2})
    broken = msgspec.structs.replace(second, raw="{", invalid="It is not JSON.")
    added = ToolCall("7.3", "more", {"x": 1}, "c.d")
    blocks = echo(answer, calls=(edited, broken, added))
    assert blocks[:3] == [
        thinking(),
        tool_use("a", input={"n": 2}),
        tool_use("b", input={"invalid_json": "{"}),
    ]
    assert (len(blocks), blocks[3]["name"]) == (4, "more")


def test_two_calls_of_one_id_get_ids_of_ours_in_the_native_form_too() -> None:
    answer = message(
        thinking(), tool_use("same"), tool_use("same", input={"n": 2}), stop="tool_use"
    )
    calls = parse_plain(answer).calls
    assert [call.provider_id for call in calls] == ["same", ""]
    calls_with_ids = tuple(
        msgspec.structs.replace(call, id=f"3.{number}") for number, call in enumerate(calls)
    )
    ids = [block["id"] for block in echo(answer, calls=calls_with_ids)[1:]]
    results = json.loads(wire.results([(call, ToolResult("x")) for call in calls_with_ids], {}))[
        "content"
    ]
    assert ids == [block["tool_use_id"] for block in results]
    assert len(set(ids)) == 2


# --- heads and bodies ---

HELLO = wire.user((TextContent("x"),))


def body(
    model: str = "m",
    system: str = "",
    tools: Sequence[ToolDefinition] = (),
    parameters: Mapping[str, Any] = {},
    **more: Any,
) -> Any:
    settings = {"prompt_caching": False, **parameters}
    head = wire.head(model, system, tools, settings, more.get("names", {}))
    return json.loads(wire.body(head, more.get("fragments", [HELLO]), more.get("stream", False)))


TOOL = ToolDefinition("a.b", "does", {"type": "object", "properties": {}})


def test_a_body_is_its_head_and_its_fragments() -> None:
    parameters = {
        "temperature": 0.0,
        "top_p": 0.5,
        "stop": ["x"],
        "max_output_tokens": 7,
        "parallel_tool_calls": True,
    }
    assert body("m", "be good", [TOOL], parameters, names={"a.b": "a__b"}) == {
        "model": "m",
        "max_tokens": 7,
        "temperature": 0.0,
        "top_p": 0.5,
        "stop_sequences": ["x"],
        "system": [text("be good")],
        "tools": [
            {
                "name": "a__b",
                "description": "does",
                "input_schema": {"type": "object", "properties": {}},
            }
        ],
        "messages": [{"role": "user", "content": [text("x")]}],
    }
    assert body(tools=[ToolDefinition("t", "", {})])["tools"][0]["input_schema"] == {
        "type": "object"
    }


def test_a_stream_is_asked_for() -> None:
    assert body(stream=True)["stream"] is True
    assert "stream" not in body()


@pytest.mark.parametrize("system", ["", " ", "s"])
@pytest.mark.parametrize("count", [0, 1, 2, 50])
@pytest.mark.parametrize("caching", [True, False])
def test_any_number_of_fragments_makes_a_body(system: str, count: int, caching: bool) -> None:
    request_body = body(
        system=system, fragments=[HELLO] * count, parameters={"prompt_caching": caching}
    )
    assert len(request_body["messages"]) == count
    assert ("system" in request_body) is (system == "s")


def test_making_a_body_leaves_the_fragments_alone() -> None:
    fragments = [HELLO, HELLO, HELLO]
    wire.body(wire.head("m", "", (), {}, {}), fragments, True)
    assert fragments == [HELLO] * 3


def test_the_first_message_is_a_users() -> None:
    fragment = wire.assistant("a", (), NO_NATIVE, {})
    request_body = body(fragments=[fragment, HELLO], parameters={"prompt_caching": True})[
        "messages"
    ]
    assert [one["role"] for one in request_body] == ["user", "assistant", "user"]


@pytest.mark.parametrize(
    ("model", "budget", "expected"),
    [
        ("claude-3-haiku-20240307", None, 4096),
        ("claude-3-opus-20240229", None, 4096),
        ("claude-3-5-sonnet-20241022", None, 8192),
        ("anthropic/claude-3.5-haiku", None, 8192),
        ("claude-3-7-sonnet-latest", None, 32000),
        ("claude-sonnet-4-20250514", None, 32000),
        ("claude-opus-4-8", None, 32000),
        ("claude-mythos-preview", None, 32000),
        ("kimi-k2", None, 8192),
        ("", None, 8192),
        ("claude-sonnet-4-5", 5000, 37000),
        ("claude-opus-4-1-20250805", 5000, 32000),
        ("claude-opus-4-0", 5000, 32000),
        ("us.anthropic.claude-opus-4-20250514-v1:0", 5000, 32000),
        ("kimi-k2", 5000, 13192),
    ],
)
def test_the_output_limit_goes_by_the_model_unless_it_is_given(
    model: str, budget: int | None, expected: int
) -> None:
    assert body(model, parameters={"reasoning_budget": budget})["max_tokens"] == expected
    assert (
        body(model, parameters={"reasoning_budget": budget, "max_output_tokens": 9000})[
            "max_tokens"
        ]
        == 9000
    )


def reasoning(model: str, **parameters: Any) -> dict[str, Any]:
    return {
        key: value
        for key, value in body(model, parameters=parameters).items()
        if key in ("thinking", "output_config")
    }


def test_a_budget_is_sent_as_it_is() -> None:
    assert reasoning("claude-sonnet-4-5", reasoning_budget=2000) == {
        "thinking": {"type": "enabled", "budget_tokens": 2000}
    }
    assert reasoning("claude-sonnet-4-5", reasoning_budget=0) == {"thinking": {"type": "disabled"}}
    assert reasoning("claude-opus-4-6", reasoning_budget=2000, reasoning_effort="low") == {
        "thinking": {"type": "enabled", "budget_tokens": 2000},
        "output_config": {"effort": "low"},
    }
    assert reasoning("claude-sonnet-4-5") == {}


@pytest.mark.parametrize(
    "model",
    [
        "claude-opus-4-6",
        "claude-sonnet-4.6",
        "claude-opus-4-8-20260528",
        "claude-sonnet-5",
        "claude-haiku-5-1",
        "claude-mythos-preview",
    ],
)
def test_an_effort_is_the_apis_own_for_models_that_know_it(model: str) -> None:
    for effort, sent_effort in {
        "minimal": "low",
        "low": "low",
        "xhigh": "xhigh",
        "whatever": "whatever",
    }.items():
        assert reasoning(model, reasoning_effort=effort) == {
            "thinking": {"type": "adaptive"},
            "output_config": {"effort": sent_effort},
        }
    assert reasoning(model, reasoning_effort="none") == {"thinking": {"type": "disabled"}}


@pytest.mark.parametrize(
    "model",
    [
        "claude-3-7-sonnet-20250219",
        "claude-sonnet-4-20250514",
        "claude-opus-4-1",
        "claude-haiku-4-5",
        "claude-opus-4-5@20251101",
    ],
)
def test_an_effort_is_a_budget_for_older_models(model: str) -> None:
    for effort, tokens in {
        "minimal": 1024,
        "low": 2048,
        "medium": 8192,
        "high": 16384,
        "xhigh": 24000,
        "max": 24000,
    }.items():
        assert reasoning(model, reasoning_effort=effort) == {
            "thinking": {"type": "enabled", "budget_tokens": tokens}
        }
    assert (
        reasoning(model, reasoning_effort="max", max_output_tokens=64000)["thinking"][
            "budget_tokens"
        ]
        == 32000
    )
    assert (
        reasoning(model, reasoning_effort="high", max_output_tokens=4096)["thinking"][
            "budget_tokens"
        ]
        == 3072
    )
    assert (
        reasoning(model, reasoning_effort="high", max_output_tokens=1100)["thinking"][
            "budget_tokens"
        ]
        == 1024
    )
    assert (
        reasoning(model, reasoning_effort="high", reasoning_budget=3000)["thinking"][
            "budget_tokens"
        ]
        == 3000
    )
    assert reasoning(model, reasoning_effort="none") == {"thinking": {"type": "disabled"}}
    with pytest.raises(ConfigurationError, match="medium"):
        reasoning(model, reasoning_effort="whatever")


@pytest.mark.parametrize(
    ("model", "parameters", "problem"),
    [
        ("claude-opus-4-1", {"reasoning_budget": 32000}, "32000 tokens, not 32000"),
        ("claude-sonnet-4-5", {"reasoning_budget": 64000}, "64000 tokens, not 64000"),
        (
            "claude-sonnet-4-5",
            {"reasoning_budget": 8192, "max_output_tokens": 4096},
            "4096 tokens, not 8192",
        ),
        (
            "claude-sonnet-4-5",
            {"reasoning_budget": 8192, "extra_body": {"max_tokens": 4096}},
            "4096 tokens, not 8192",
        ),
        (
            "claude-opus-4-6",
            {"reasoning_budget": 4096, "max_output_tokens": 4096},
            "4096 tokens, not 4096",
        ),
        ("claude-sonnet-4-5", {"reasoning_budget": 100}, "at least 1024 tokens"),
        (
            "claude-sonnet-4-5",
            {"reasoning_effort": "low", "max_output_tokens": 1000},
            "max_output_tokens must be above 1024",
        ),
        ("claude-3-5-haiku-latest", {"reasoning_effort": "low"}, "cannot think"),
        ("claude-3-5-haiku-latest", {"reasoning_budget": 2000}, "cannot think"),
    ],
)
def test_thinking_that_the_api_refuses_is_no_request(
    model: str, parameters: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        LLM(model, "key", "http://127.0.0.1:1/v1", wire="anthropic_messages", **parameters)


@pytest.mark.parametrize(
    ("model", "parameters", "limit"),
    [
        ("claude-opus-4-1", {"reasoning_budget": 31000}, 32000),
        ("claude-sonnet-4-20250514", {"reasoning_budget": 32000}, 64000),
        ("claude-sonnet-4-5", {"reasoning_budget": 63000}, 64000),
        ("claude-opus-4-6", {"reasoning_budget": 63000}, 95000),
        (
            "claude-opus-4-6",
            {"reasoning_effort": "low", "max_output_tokens": 500},
            500,
        ),  # its thinking has no minimum budget
        ("claude-3-5-haiku-latest", {"reasoning_effort": "none"}, 8192),
        (
            "kimi-k2",
            {"reasoning_budget": 100, "max_output_tokens": 50},
            50,
        ),  # an unknown model
    ],
)
def test_the_output_limit_makes_room_for_thinking(
    model: str, parameters: dict[str, Any], limit: int
) -> None:
    assert body(model, parameters=parameters)["max_tokens"] == limit


@pytest.mark.parametrize(
    "citations", [5, [1], [None], ["file_id"], {"file_id": 1}, [{"file_id": "x", "a": 1}, 7]]
)
def test_citations_of_any_shape_go_back(citations: Any) -> None:
    (block,) = echo(message(text("hi", citations=citations)))
    assert block["citations"] == (
        [{"a": 1}, 7] if citations == [{"file_id": "x", "a": 1}, 7] else citations
    )


def test_a_native_call_goes_back_with_the_id_that_its_result_has() -> None:
    answer = parse_plain(message(thinking(), tool_use("call_0"), stop="tool_use"))
    call = msgspec.structs.replace(answer.calls[0], provider_id="call_0_2")
    assert json.loads(wire.assistant("", (call,), answer.native, {}))["content"] == [
        thinking(),
        tool_use("call_0_2"),
    ]


def test_an_effort_of_the_newest_models_alone_is_no_error_where_no_model_is_named() -> None:
    """This happens when a request is hashed."""
    assert reasoning("", reasoning_effort="whatever") == {}


def test_what_the_user_set_beside_thinking_is_left_to_the_api() -> None:
    request_body = body(
        "claude-sonnet-4-5", parameters={"reasoning_budget": 2000, "temperature": 0.2, "top_p": 0.1}
    )
    assert (request_body["temperature"], request_body["top_p"]) == (0.2, 0.1)


def test_a_schema_is_asked_for() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    response_format = {
        "type": "json_schema",
        "json_schema": {"name": "x", "schema": schema, "strict": True},
    }
    assert body(parameters={"response_format": response_format})["output_config"] == {
        "format": {"type": "json_schema", "schema": schema}
    }
    both = body(
        "claude-opus-4-6",
        parameters={"response_format": response_format, "reasoning_effort": "low"},
    )
    assert both["output_config"] == {
        "effort": "low",
        "format": {"type": "json_schema", "schema": schema},
    }
    assert "output_config" not in body(parameters={"response_format": {"type": "text"}})


@pytest.mark.parametrize(
    "wanted",
    [
        {"type": "json_object"},
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {"name": "x"}},
    ],
)
def test_json_without_a_schema_is_refused(wanted: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="schema"):
        body(parameters={"response_format": wanted})


def test_a_seed_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="seed"):
        body(parameters={"seed": 1})


def test_parallel_calls_are_turned_off_only_with_tools() -> None:
    assert "tool_choice" not in body(parameters={"parallel_tool_calls": False})
    off = {"type": "auto", "disable_parallel_tool_use": True}
    assert body(tools=[TOOL], parameters={"parallel_tool_calls": False})["tool_choice"] == off
    assert "tool_choice" not in body(tools=[TOOL], parameters={"parallel_tool_calls": True})
    forced = {"parallel_tool_calls": False, "extra_body": {"tool_choice": {"type": "any"}}}
    assert body(tools=[TOOL], parameters=forced)["tool_choice"] == {
        "type": "any",
        "disable_parallel_tool_use": True,
    }


def test_extra_body_comes_last_and_is_merged_into_what_is_ours() -> None:
    assert (
        body(parameters={"temperature": 1, "extra_body": {"temperature": 0, "top_k": 3}})[
            "temperature"
        ]
        == 0
    )
    parameters = {
        "reasoning_effort": "low",
        "extra_body": {"thinking": {"display": "summarized"}, "output_config": {"task_budget": 1}},
    }
    assert reasoning("claude-opus-4-8", **parameters) == {
        "thinking": {"type": "adaptive", "display": "summarized"},
        "output_config": {"effort": "low", "task_budget": 1},
    }
    parameters = {"reasoning_budget": 2000, "extra_body": {"thinking": {"type": "disabled"}}}
    assert reasoning("claude-opus-4-8", **parameters) == {"thinking": {"type": "disabled"}}
    assert reasoning("m", extra_body={"thinking": {"type": "adaptive"}}) == {
        "thinking": {"type": "adaptive"}
    }


# --- the prompt cache ---


def marks(value: Any) -> list[str]:
    """Return the paths of the cache marks in a request."""
    if isinstance(value, dict):
        here = ["cache_control"] if value.get("cache_control") == EPHEMERAL else []
        return here + [
            f"{key}.{path}"
            for key, value in value.items()
            if key != "cache_control"
            for path in marks(value)
        ]
    if isinstance(value, list):
        return [f"{number}.{path}" for number, value in enumerate(value) for path in marks(value)]
    return []


ASSISTANT = wire.assistant("a", (), NO_NATIVE, {})
RESULTS = wire.results(
    [(ToolCall("", "t", provider_id=id), ToolResult((ImageContent(PNG),))) for id in "ab"], {}
)


def test_the_system_prompt_and_the_last_two_user_messages_are_marked() -> None:
    fragments = [HELLO, ASSISTANT, HELLO, ASSISTANT, RESULTS, ASSISTANT]
    request_body = body(
        system="s",
        tools=[TOOL, ToolDefinition("u", "", {})],
        fragments=fragments,
        parameters={"prompt_caching": True},
    )
    assert marks(request_body) == [
        "system.0.cache_control",
        "messages.2.content.0.cache_control",
        "messages.4.content.1.cache_control",
    ]
    del (
        request_body["messages"][2]["content"][0]["cache_control"],
        request_body["messages"][4]["content"][1]["cache_control"],
    )
    assert request_body["messages"] == [json.loads(fragment) for fragment in fragments]


def test_without_a_system_prompt_the_last_tool_is_marked() -> None:
    tools = [TOOL, ToolDefinition("u", "", {})]
    assert marks(body(tools=tools, parameters={"prompt_caching": None})) == [
        "tools.1.cache_control",
        "messages.0.content.0.cache_control",
    ]


def test_no_cache_is_marked_where_none_is_wanted() -> None:
    assert marks(body(system="s", tools=[TOOL], fragments=[HELLO, ASSISTANT, RESULTS])) == []


def test_marks_are_looked_for_only_near_the_end() -> None:
    assert (
        marks(body(fragments=[HELLO, *[ASSISTANT] * 100], parameters={"prompt_caching": True}))
        == []
    )


@given(
    st.lists(
        st.sampled_from(
            [HELLO, ASSISTANT, RESULTS, wire.system("s"), wire.user((ImageContent(PNG),))]
        ),
        max_size=30,
    )
)
@settings(max_examples=examples(80), deadline=None)
def test_a_request_goes_on_with_the_one_before_and_finds_its_mark(fragments: list[bytes]) -> None:
    """A marked message of a request is also marked in the next one, so that the cache entry is
    found."""
    head = wire.head("m", "s", [TOOL], {}, {})
    before = json.loads(wire.body(head, [HELLO, *fragments, HELLO], False))
    after = json.loads(wire.body(head, [HELLO, *fragments, HELLO, ASSISTANT, RESULTS], False))
    assert marks(before)[-1] in marks(after)
    assert len(marks(after)) == 3


# --- plain answers ---


def test_an_answer_is_read() -> None:
    answer = message(
        thinking("a"),
        thinking("b"),
        text("one "),
        text("two"),
        tool_use("x", "t", {"n": 1}),
        text("three"),
        stop="tool_use",
    )
    completion = parse_plain(answer)
    assert (completion.text, completion.reasoning) == ("one two\n\nthree", "a\n\nb")
    assert completion.calls == (ToolCall("", "t", {"n": 1}, "x"),)
    assert (completion.stop_reason, completion.model, completion.response_id, completion.wire) == (
        "tool_calls",
        "m",
        "msg_1",
        "anthropic_messages",
    )
    assert json.loads(bytes(completion.native)) == answer["content"]


def test_usage_is_read_with_cached_and_reasoning_tokens() -> None:
    usage = {
        "input_tokens": 3,
        "cache_read_input_tokens": 80,
        "cache_creation_input_tokens": 17,
        "output_tokens": 50,
        "output_tokens_details": {"thinking_tokens": 20},
    }
    assert parse_plain(message(text("a"), usage=usage)).usage == Usage(100, 50, 80, 17, 20)
    assert parse_plain(
        message(text("a"), usage={**usage, "cache_read_input_tokens": None})
    ).usage == Usage(20, 50, 0, 17, 20)
    assert parse_plain(message(text("a"), usage=None)).usage == Usage()
    assert (
        parse_plain(
            message(
                text("a"),
                usage={"input_tokens": "9", "output_tokens": -1, "output_tokens_details": 3},
            )
        ).usage
        == Usage()
    )


@pytest.mark.parametrize(
    ("stop", "reason"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "content_filter"),
        ("pause_turn", "pause"),
        ("compaction", "pause"),
        ("of_the_future", "of_the_future"),
        (None, "stop"),
    ],
)
def test_stop_reasons_are_normalised(stop: str | None, reason: str) -> None:
    assert parse_plain(message(text("a"), stop=stop)).stop_reason == reason


def test_an_answer_with_calls_stopped_for_them() -> None:
    assert parse_plain(message(tool_use(), stop="end_turn")).stop_reason == "tool_calls"
    assert parse_plain(message(tool_use(), stop="max_tokens")).stop_reason == "length"


def test_a_refusal_without_a_word_is_an_error() -> None:
    details = {"type": "refusal", "category": "cyber", "explanation": "not this"}
    for parse in (lambda answer: parse_plain(answer), lambda answer: parse_stream(sse(answer))):
        with pytest.raises(ContentFiltered, match=r"refused to answer \(cyber: not this\)"):
            parse(message(stop="refusal", stop_details=details))
    with pytest.raises(ContentFiltered, match="refused to answer"):
        parse_plain(message(thinking(), stop="refusal"))


def test_provider_run_tools_are_no_calls() -> None:
    server = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"q": 1}}
    mcp = {"type": "mcp_tool_use", "id": "m", "name": "ask", "server_name": "x", "input": {}}
    assert parse_plain(message(server, mcp, text("a"))).calls == ()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"<html>",
        b"[]",
        b"{}",
        b"\xff",
        b"null",
        b'{"content":null}',
        b'{"content":"x"}',
        b'{"content":[1]}',
        b'{"content":[{}]}',
        b'{"content":[{"type":"text"}]}',
        b'{"content":[{"type":"text","text":1}]}',
        b'{"content":[{"type":"thinking"}]}',
        b'{"content":[],"stop_reason":{}}',
        b"[" * 100000,
    ],
)
def test_what_is_no_answer_is_a_bad_response(answer: bytes) -> None:
    with pytest.raises(BadResponse):
        wire.parse(answer)


def test_an_answer_that_is_not_quite_json_is_read() -> None:
    answer = wire.parse(
        b'{"id":"x","content":[{"type":"text","text":"a\tb\\ud83d"},{"type":"new","x":NaN}],"stop_reason":"end_turn"}'
    )
    assert answer.text == "a\tb\ufffd"
    assert json.loads(bytes(answer.native))[1] == {"type": "new", "x": None}


def test_an_error_with_status_200_is_an_error() -> None:
    with pytest.raises(ServerError, match="Overloaded"):
        parse_plain(
            {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
        )


# --- streams ---


def parse_stream(
    stream: str | bytes, on_delta: Callable[[Delta], object] | None = None, size: int = 0
) -> Completion:
    data = stream.encode() if isinstance(stream, str) else stream
    parser = MessagesStream()
    for at in range(0, len(data), size or len(data)):
        parser.feed(data[at : at + (size or len(data))], on_delta)
    return parser.finish()


def events(*items: dict[str, Any] | str) -> str:
    lines = [
        (one, one) if isinstance(one, str) else (one["type"], json.dumps(one, ensure_ascii=False))
        for one in items
    ]
    return "".join(f"event: {name}\ndata: {data}\n\n" for name, data in lines)


def delta(index: int, type: str, **more: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": type, **more}}


def begin(index: int, block: dict[str, Any]) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def end(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


START: dict[str, Any] = {"type": "message_start", "message": message(stop=None)}
STOP: dict[str, Any] = {
    "type": "message_delta",
    "delta": {"stop_reason": "end_turn"},
    "usage": {"output_tokens": 5},
}
MESSAGE_STOP: dict[str, Any] = {"type": "message_stop"}


def sse(answer: dict[str, Any], size: int = 5) -> str:
    """Return a plain answer as the stream that the API would send for it, with long texts in
    pieces of `size` characters."""
    stream_events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**answer, "content": [], "stop_reason": None}},
        {"type": "ping"},
    ]
    for index, block in enumerate(answer["content"]):
        cut = {
            "text": "text",
            "thinking": "thinking",
            "tool_use": "input",
            "server_tool_use": "input",
            "mcp_tool_use": "input",
        }
        key = cut.get(block["type"], "")
        empty = {key: {} if key == "input" else ""} if key else {}
        stream_events.append(
            begin(
                index,
                {
                    **{k: v for k, v in block.items() if k != "citations"},
                    **empty,
                    **({"signature": ""} if "signature" in block else {}),
                },
            )
        )
        whole = (
            json.dumps(block["input"], ensure_ascii=False) if key == "input" else block.get(key, "")
        )
        kind, name = {
            "text": ("text_delta", "text"),
            "thinking": ("thinking_delta", "thinking"),
        }.get(key, ("input_json_delta", "partial_json"))
        if key == "input":
            stream_events.append(delta(index, kind, **{name: ""}))
        if whole != "{}":
            stream_events += [
                delta(index, kind, **{name: whole[at : at + size]})
                for at in range(0, len(whole), size)
            ]
        stream_events += [
            delta(index, "citations_delta", citation=one) for one in block.get("citations") or ()
        ]
        if "signature" in block:
            stream_events.append(delta(index, "signature_delta", signature=block["signature"]))
        stream_events.append(end(index))
    ended = {"stop_reason": answer["stop_reason"], "stop_details": answer.get("stop_details")}
    stream_events += [
        {"type": "message_delta", "delta": ended, "usage": answer["usage"]},
        MESSAGE_STOP,
    ]
    return events(*stream_events)


ANSWER = message(
    thinking("Žluť — 🐎"),
    {"type": "redacted_thinking", "data": "eA=="},
    text("one "),
    text("two ☃", citations=[{"type": "x", "cited_text": "é"}, {"type": "y"}]),
    {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "𝄞"}},
    {
        "type": "web_search_tool_result",
        "tool_use_id": "s",
        "content": [{"encrypted_content": "abc"}],
    },
    thinking("", "b25seQ=="),
    text("three\n"),
    tool_use("a", "find", {"q": "naïve ☃ 𝄞", "n": 1.5}),
    tool_use("b", "list"),
    stop="tool_use",
    usage={
        "input_tokens": 3,
        "cache_read_input_tokens": 7,
        "output_tokens": 9,
        "output_tokens_details": {"thinking_tokens": 4},
    },
)
STREAM = sse(ANSWER)


def same(actual: Completion, expected: Completion) -> bool:
    """Return True if two completions are equal and their `native` JSON has the same value."""
    return msgspec.structs.replace(actual, native=NO_NATIVE) == msgspec.structs.replace(
        expected, native=NO_NATIVE
    ) and (
        json.loads(bytes(actual.native) or b"null") == json.loads(bytes(expected.native) or b"null")
    )


def test_a_stream_gives_what_the_plain_answer_gives() -> None:
    answer = parse_stream(STREAM)
    assert same(answer, parse_plain(ANSWER))
    assert json.loads(bytes(answer.native)) == ANSWER["content"]
    assert answer.usage == Usage(10, 9, 7, 0, 4)


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
def test_a_stream_is_read_at_any_cut_and_line_end(newline: str, size: int) -> None:
    assert parse_stream(STREAM.replace("\n", newline), size=size) == parse_stream(STREAM)


@given(
    st.lists(st.integers(0, len(STREAM.encode())), max_size=40),
    st.sampled_from(["\n", "\r\n", "\r"]),
)
@settings(max_examples=examples(150), deadline=None)
def test_a_stream_cut_at_random_gives_the_same(cuts: list[int], newline: str) -> None:
    data = STREAM.replace("\n", newline).encode()
    parser = MessagesStream()
    ends = [min(cut, len(data)) for cut in sorted(cuts)]
    for first, last in zip([0, *ends], [*ends, len(data)], strict=True):
        parser.feed(data[first:last])
    assert parser.finish() == parse_stream(STREAM)


FINISHED = STREAM.encode().index(b'"type": "message_delta"') + len(
    STREAM[STREAM.index('"type": "message_delta"') :].partition("\n")[0]
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
        assert parse_stream(data[:at]) == parse_stream(STREAM)


@given(st.integers(0, len(STREAM.encode()) - 1), st.binary(min_size=1, max_size=3))
@settings(max_examples=examples(400), deadline=None)
def test_damaged_bytes_give_an_answer_or_an_error_of_ours(at: int, garbage: bytes) -> None:
    data = STREAM.encode()
    try:
        answer = parse_stream(data[:at] + garbage + data[at + len(garbage) :])
    except LLMError:
        return
    assert Completion.from_json(answer.to_json()) == answer
    wire.assistant(answer.text, answer.calls, answer.native, {})


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["text", "tool_use", "thinking", "\ud83d"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "text",
                    "thinking",
                    "id",
                    "name",
                    "input",
                    "caller",
                    "citations",
                    "index",
                    "delta",
                    "usage",
                    "x",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)
KINDS = [
    "message_start",
    "content_block_start",
    "content_block_delta",
    "content_block_stop",
    "message_delta",
    "message_stop",
    "ping",
    "new",
]
DELTAS = [
    "text_delta",
    "input_json_delta",
    "thinking_delta",
    "signature_delta",
    "citations_delta",
    "new_delta",
]


@given(
    st.sampled_from(KINDS),
    st.sampled_from(DELTAS),
    json_values,
    st.sampled_from(
        [
            "index",
            "delta",
            "content_block",
            "message",
            "usage",
            "text",
            "partial_json",
            "thinking",
            "signature",
            "citation",
            "x",
        ]
    ),
)
@settings(max_examples=examples(500), deadline=None)
def test_no_json_makes_the_parsers_fail_otherwise_than_by_their_errors(
    kind: str, inner: str, value: Any, key: str
) -> None:
    block = value if isinstance(value, dict) else {"type": "text", "text": value}
    odd: list[Any] = [
        {"type": kind, key: value},
        {
            "type": kind,
            "index": 0,
            "delta": {"type": inner, key: value},
            "content_block": block,
            "message": block,
        },
    ]
    reads: list[Callable[[], Completion]] = [
        lambda: parse_plain(value),
        lambda: parse_plain(message(block)),
        lambda: parse_plain({**message(), key: value}),
    ]
    for one in odd:
        reads.append(
            lambda one=one: parse_stream(
                events(START, begin(0, text("")), one, STOP, MESSAGE_STOP).encode(
                    "utf-8", "replace"
                )
            )
        )
        reads.append(
            lambda one=one: parse_stream(
                f"data: {json.dumps(START)}\n\ndata: {json.dumps(one)}\n\ndata:"
                f" {json.dumps(STOP)}\n\n"
            )
        )
    for parse in reads:
        try:
            answer = parse()
        except LLMError:
            continue
        assert Completion.from_json(answer.to_json()) == answer


def test_a_message_stop_alone_does_not_finish_an_answer() -> None:
    with pytest.raises(StreamInterrupted):
        parse_stream(
            events(START, begin(0, text("")), delta(0, "text_delta", text="half"), MESSAGE_STOP)
        )


def test_a_finish_needs_no_message_stop_and_no_last_blank_line() -> None:
    stream = events(START, begin(0, text("a")), STOP)
    assert parse_stream(stream.rstrip("\n")).text == "a"
    parser = MessagesStream()
    parser.feed(stream.encode())
    assert (parser.finished, parser.done) == (True, False)
    parser.feed(events(MESSAGE_STOP).encode())
    assert (parser.finished, parser.done) == (True, True)


def test_what_follows_the_message_stop_is_not_read() -> None:
    assert (
        parse_stream(events(START, begin(0, text("a")), STOP, MESSAGE_STOP, "garbage")).text == "a"
    )


def usage(*counts: Any) -> Usage:
    start = {"type": "message_start", "message": {**message(stop=None), "usage": counts[0]}}
    return parse_stream(
        events(start, *[{**STOP, "usage": one} for one in counts[1:]], MESSAGE_STOP)
    ).usage


def test_counts_that_come_later_replace_those_before_zeros_too_and_absent_ones_stay() -> None:
    first = {
        "input_tokens": 3,
        "cache_read_input_tokens": 80,
        "cache_creation_input_tokens": 17,
        "output_tokens": 1,
    }
    assert usage(first, {"output_tokens": 9}) == Usage(100, 9, 80, 17)
    assert usage(
        first,
        {
            "input_tokens": 0,
            "cache_read_input_tokens": None,
            "cache_creation_input_tokens": 0,
            "output_tokens": 9,
        },
    ) == Usage(80, 9, 80, 0)
    assert usage(first, {"input_tokens": 5, "output_tokens": 4}, {"output_tokens": 9}) == Usage(
        102, 9, 80, 17
    )
    assert usage(None, {"input_tokens": 5, "output_tokens": 9}) == Usage(5, 9)
    thought = {"output_tokens_details": {"thinking_tokens": 4}}
    assert usage(
        first, thought, {"output_tokens": 9, "output_tokens_details": {"thinking_tokens": 0}}
    ) == Usage(100, 9, 80, 17, 0)
    assert usage(first, thought, {"output_tokens": 9}) == Usage(100, 9, 80, 17, 4)
    assert usage(first, None, {"output_tokens": 9}) == Usage(100, 9, 80, 17)


def test_deltas_tell_text_thoughts_and_calls_in_order() -> None:
    deltas: list[Delta] = []
    answer = parse_stream(STREAM, deltas.append)
    assert (
        "".join(one.text for one in deltas if one.kind == "text")
        == answer.text
        == "one two ☃\n\nthree\n"
    )
    assert "".join(one.text for one in deltas if one.kind == "reasoning") == answer.reasoning
    assert [one for one in deltas if one.name] == [
        Delta("tool", "", 0, "find"),
        Delta("tool", "", 1, "list"),
    ]
    assert (
        json.loads("".join(one.text for one in deltas if one.kind == "tool" and one.index == 0))
        == answer.calls[0].arguments
    )


def test_thoughts_are_told_apart() -> None:
    deltas: list[Delta] = []
    answer = parse_stream(sse(message(thinking("one"), thinking("two"))), deltas.append)
    assert "".join(one.text for one in deltas) == answer.reasoning == "one\n\ntwo"


def test_blocks_that_begin_with_their_content_are_read() -> None:
    deltas: list[Delta] = []
    stream = events(
        START,
        begin(0, thinking("hm")),
        begin(1, text("a")),
        delta(1, "text_delta", text="b"),
        begin(2, tool_use(input={"n": 1})),
        STOP,
    )
    answer = parse_stream(stream, deltas.append)
    assert (answer.reasoning, answer.text, answer.calls[0].arguments) == ("hm", "ab", {"n": 1})
    assert deltas == [
        Delta("reasoning", "hm"),
        Delta("text", "a"),
        Delta("text", "b"),
        Delta("tool", '{"n":1}', 0, "t"),
    ]


def test_blocks_of_a_server_that_numbers_them_all_alike_are_told_apart() -> None:
    stream = events(
        START,
        begin(0, text("")),
        delta(0, "text_delta", text="a"),
        end(0),
        begin(0, tool_use()),
        delta(0, "input_json_delta", partial_json='{"n":1}'),
        STOP,
    )
    answer = parse_stream(stream)
    assert (answer.text, answer.calls[0].arguments) == ("a", {"n": 1})


def test_unknown_events_and_deltas_are_kept_or_passed_over() -> None:
    stream = events(
        START,
        {"type": "from_the_future"},
        begin(0, {"type": "compaction", "content": None}),
        delta(0, "compaction_delta", content="so "),
        delta(0, "compaction_delta", content="far"),
        delta(0, "other_delta", items=[1]),
        delta(0, "other_delta", items=[2], count=1, content=None),
        delta(0, "other_delta", count=2),
        STOP,
    )
    assert json.loads(bytes(parse_stream(stream).native)) == [
        {"type": "compaction", "content": "so far", "items": [1, 2], "count": 2}
    ]


@pytest.mark.parametrize(
    ("raw", "why"), [('{"a": ', "not valid JSON"), ("[1]", "an array"), ("nul", "not valid JSON")]
)
def test_a_call_whose_arguments_are_no_object_is_invalid_and_goes_back_as_one(
    raw: str, why: str
) -> None:
    pieces = [delta(1, "input_json_delta", partial_json=letter) for letter in raw]
    answer = parse_stream(events(START, begin(0, thinking()), begin(1, tool_use()), *pieces, STOP))
    assert why in answer.calls[0].invalid
    assert (answer.calls[0].raw, answer.calls[0].arguments) == (raw, {})
    assert echo(answer) == [thinking(), tool_use(input={"invalid_json": raw})]


def test_arguments_with_bare_line_breaks_are_read_and_go_back_as_json() -> None:
    answer = parse_stream(
        events(
            START,
            begin(0, thinking()),
            begin(1, tool_use()),
            delta(1, "input_json_delta", partial_json='{"a":"x\ny"}'),
            STOP,
        )
    )
    assert answer.calls[0].arguments == {"a": "x\ny"}
    assert echo(answer) == [thinking(), tool_use(input={"a": "x\ny"})]


def test_the_arguments_of_a_providers_own_tool_that_were_cut_off_are_an_object_all_the_same() -> (
    None
):
    block = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    answer = parse_stream(
        events(START, begin(0, block), delta(0, "input_json_delta", partial_json='{"q": "'), STOP)
    )
    assert json.loads(bytes(answer.native)) == [{**block, "input": {"invalid_json": '{"q": "'}}]
    assert answer.calls == ()


def test_a_surrogate_pair_cut_in_two_is_put_together() -> None:
    halves = (
        "data:"
        ' {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"\\ud83d"}}\n\n'
    )
    stream = (
        events(START, begin(0, text(""))) + halves + halves.replace("ud83d", "ude00") + events(STOP)
    )
    assert parse_stream(stream).text == "😀"
    assert parse_stream(stream.replace("ude00", "ud83d")).text == "\ufffd\ufffd"


def test_a_second_answer_within_the_first_is_a_bad_response() -> None:
    with pytest.raises(BadResponse, match="second"):
        parse_stream(events(START, begin(0, text("a")), START, begin(0, text("a")), STOP))


@pytest.mark.parametrize(
    "event",
    [
        delta(7, "text_delta", text="a"),
        delta(0, "text_delta"),
        delta(0, "text_delta", text=None),
        delta(0, "input_json_delta", partial_json={}),
        begin(1, {}),
        {"type": "content_block_delta"},
        {"type": "message_start"},
        "{",
    ],
)
def test_an_event_of_another_shape_is_a_bad_response(event: Any) -> None:
    with pytest.raises(BadResponse):
        parse_stream(events(START, begin(0, text("")), event, STOP))


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("overloaded_error", ServerError),
        ("api_error", ServerError),
        ("rate_limit_error", RateLimited),
        ("authentication_error", AuthenticationError),
        ("who_knows", ServerError),
    ],
)
def test_an_error_in_a_stream_is_raised_as_its_type(kind: str, error: type) -> None:
    stream = events(
        START,
        begin(0, text("half")),
        {"type": "error", "error": {"type": kind, "message": "sorry"}},
    )
    with pytest.raises(error, match="sorry"):
        parse_stream(stream)


@given(
    st.lists(
        st.one_of(
            st.builds(text, st.text(max_size=20)),
            st.builds(thinking, st.text(max_size=20), st.text("abc=", max_size=8)),
            st.builds(
                tool_use,
                st.text("ab|1", min_size=1, max_size=4),
                st.text(max_size=8),
                st.dictionaries(st.text(), st.text(), max_size=3),
            ),
            st.builds(
                lambda data: {"type": "redacted_thinking", "data": data}, st.text(max_size=9)
            ),
        ),
        max_size=6,
    ),
    st.integers(1, 9),
)
@settings(max_examples=examples(150), deadline=None)
def test_whatever_a_model_says_survives_its_stream_and_the_journal(
    content: list[Any], size: int
) -> None:
    expected = parse_plain(message(*content))
    answer = parse_stream(sse(message(*content), size=size), size=size)
    assert same(answer, expected)
    again = Completion.from_json(answer.to_json())
    fragment = wire.assistant(again.text, again.calls, again.native, {})
    assert fragment == wire.assistant(expected.text, expected.calls, answer.native, {})
    blocks = json.loads(fragment)["content"] if fragment else []
    assert not any(block["type"] == "text" and not block["text"].strip() for block in blocks)
    assert not blocks or blocks[-1]["type"] not in ("thinking", "redacted_thinking")
    results = (
        wire.results([(call, ToolResult("x")) for call in again.calls], {})
        if again.calls
        else b'{"content":[]}'
    )
    assert [block["id"] for block in blocks if block["type"] == "tool_use"] == [
        block["tool_use_id"] for block in json.loads(results)["content"]
    ]


# --- errors ---


def failure(status: int, kind: str, message_text: str = "sorry") -> LLMError:
    body = json.dumps(
        {"type": "error", "error": {"type": kind, "message": message_text}, "request_id": "req_1"}
    ).encode()
    return wire.error(
        status, {"request-id": "req_1"}, body, "https://api.example.com/v1/messages", "m"
    )


@pytest.mark.parametrize(
    ("status", "kind", "words", "error"),
    [
        (401, "authentication_error", "invalid x-api-key", AuthenticationError),
        (429, "rate_limit_error", "slow down", RateLimited),
        (529, "overloaded_error", "Overloaded", ServerError),
        (500, "api_error", "Internal server error", ServerError),
        (
            400,
            "invalid_request_error",
            "prompt is too long: 210000 tokens > 200000 maximum",
            ContextTooLong,
        ),
        (413, "request_too_large", "Request exceeds the maximum size", ContextTooLong),
    ],
)
def test_an_error_has_the_type_that_its_status_and_code_mean(
    status: int, kind: str, words: str, error: type
) -> None:
    raised = failure(status, kind, words)
    assert isinstance(raised, error)
    assert (raised.status, raised.code, raised.request_id) == (status, kind, "req_1")
    assert words in str(raised)


def test_the_key_and_the_version_are_headers() -> None:
    assert wire.headers("k")["x-api-key"] == "k"
    assert wire.headers("")["anthropic-version"] == "2023-06-01"
    assert "x-api-key" not in wire.headers("")
    assert (wire.path("m", True), wire.name) == ("/messages", "anthropic_messages")
