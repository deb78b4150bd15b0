"""The OpenAI Responses wire: fragments, heads, plain answers, streams at any cut, errors."""

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
    BadRequest,
    BadResponse,
    ConfigurationError,
    ContentFiltered,
    LLMError,
    ModelNotFound,
    RateLimited,
    ServerError,
    StreamInterrupted,
)
from holdfast.events import ToolDefinition
from holdfast.llm import Transcript
from holdfast.llm.completion import NO_NATIVE, Completion, Delta
from holdfast.llm.wires import openai_responses, wire
from holdfast.llm.wires.calls import read_call
from holdfast.llm.wires.openai_responses import ResponseStream
from tests.samples import examples

PNG = b"\x89PNG fake"


def items(fragment: bytes) -> list[dict[str, Any]]:
    return json.loads(b"[" + fragment + b"]")


def parse_plain(answer: Any) -> Completion:
    return openai_responses.parse(json.dumps(answer).encode())


def message_item(*parts: str, **more: Any) -> dict[str, Any]:
    content = [
        {"type": "output_text", "annotations": [], "logprobs": [], "text": part} for part in parts
    ]
    return {
        "id": "msg_1",
        "type": "message",
        "status": "completed",
        "role": "assistant",
        "content": content,
        **more,
    }


def call_item(name: str, arguments: str = "{}", id: str = "call_1", **more: Any) -> dict[str, Any]:
    return {
        "id": "fc_1",
        "type": "function_call",
        "status": "completed",
        "arguments": arguments,
        "call_id": id,
        "name": name,
        **more,
    }


def reasoning_item(encrypted: str | None = "gAAA=", *summaries: str, **more: Any) -> dict[str, Any]:
    summary = [{"type": "summary_text", "text": text} for text in summaries]
    return {
        "id": "rs_1",
        "type": "reasoning",
        "encrypted_content": encrypted,
        "summary": summary,
        **more,
    }


USAGE = {
    "input_tokens": 100,
    "input_tokens_details": {"cached_tokens": 80, "cache_write_tokens": 5},
    "output_tokens": 50,
    "output_tokens_details": {"reasoning_tokens": 20},
    "total_tokens": 150,
}


def response(*output: Any, **more: Any) -> dict[str, Any]:
    base = {
        "id": "resp_1",
        "object": "response",
        "model": "gpt-5-1",
        "status": "completed",
        "error": None,
        "incomplete_details": None,
    }
    return {**base, "output": list(output), "usage": USAGE, **more}


def events(*items: Any) -> str:
    return "".join(
        f"event: {one.get('type')}\ndata: {json.dumps(one, ensure_ascii=False)}\n\n"
        for one in items
    )


def pieces(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def sse(answer: dict[str, Any], size: int = 5, final: bool = True) -> str:
    """Return an answer as the stream that OpenAI would send for it."""
    stream_events: list[dict[str, Any]] = [
        {
            "type": "response.created",
            "response": {**answer, "status": "in_progress", "output": [], "usage": None},
        }
    ]

    def tell(kind: str, place: int, text: str, **more: Any) -> None:
        stream_events.extend(
            {"type": f"response.{kind}.delta", "output_index": place, **more, "delta": piece}
            for piece in pieces(text, size)
        )

    for place, item in enumerate(answer["output"]):
        empty = {
            key: value if key in ("id", "type", "role", "name", "call_id", "phase") else ""
            for key, value in item.items()
        }
        stream_events.append(
            {"type": "response.output_item.added", "output_index": place, "item": empty}
        )
        for number, part in enumerate(item.get("summary") or []):
            tell("reasoning_summary_text", place, part["text"], summary_index=number)
        for number, part in enumerate(item.get("content") or []):
            kind = {"refusal": "refusal", "reasoning_text": "reasoning_text"}.get(
                part["type"], "output_text"
            )
            tell(kind, place, part.get("text") or part.get("refusal") or "", content_index=number)
        if item["type"] == "function_call":
            tell("function_call_arguments", place, item["arguments"])
        stream_events.append(
            {"type": "response.output_item.done", "output_index": place, "item": item}
        )
    kind = "incomplete" if answer["status"] == "incomplete" else "completed"
    stream_events.append(
        {"type": f"response.{kind}", "response": answer if final else {**answer, "output": []}}
    )
    return events(*[{**one, "sequence_number": number} for number, one in enumerate(stream_events)])


def parse_stream(
    stream: str | bytes, on_delta: Callable[[Delta], object] | None = None, size: int = 0
) -> Completion:
    data = stream.encode() if isinstance(stream, str) else stream
    parser = ResponseStream()
    for at in range(0, len(data), size or len(data)):
        parser.feed(data[at : at + (size or len(data))], on_delta)
    return parser.finish()


def meaning(completion: Completion) -> Any:
    native = json.loads(bytes(completion.native)) if completion.native else None
    return msgspec.structs.replace(completion, native=NO_NATIVE), native


def echo(answer: Any) -> list[dict[str, Any]]:
    completion = parse_plain(answer)
    return items(
        openai_responses.assistant(completion.text, completion.calls, completion.native, {})
    )


# --- fragments ---


def test_a_text_is_sent_as_a_str() -> None:
    assert (
        openai_responses.user((TextContent("hé"), TextContent("b")))
        == '{"role":"user","content":"hé\\nb"}'.encode()
    )
    assert items(openai_responses.user(())) == [{"role": "user", "content": ""}]
    assert items(openai_responses.system("be")) == [{"role": "system", "content": "be"}]


def test_pictures_and_pdf_files_are_sent_as_parts_and_the_rest_as_text() -> None:
    content = (
        TextContent("look"),
        ImageContent(PNG, "image/png"),
        AudioContent(b"s", "audio/mpeg"),
        ResourceLink("file:///a", "a"),
        EmbeddedResource({"uri": "x:y", "text": "inside"}),
        EmbeddedResource({"uri": "file:///b/c.pdf", "mimeType": "application/pdf", "blob": "UERG"}),
        EmbeddedResource({"uri": "x:z", "mimeType": "image/gif", "blob": "R0lG"}),
        EmbeddedResource({"uri": "x:w", "mimeType": "application/zip", "blob": "UEs="}),
    )
    [message] = items(openai_responses.user(content))
    assert message["content"] == [
        {"type": "input_text", "text": "look"},
        {
            "type": "input_image",
            "image_url": "data:image/png;base64,iVBORyBmYWtl",
            "detail": "auto",
        },
        {
            "type": "input_text",
            "text": "[audio/mpeg, 1 bytes: this model's API takes no such file]",
        },
        {"type": "input_text", "text": "[a: file:///a]"},
        {"type": "input_text", "text": "inside"},
        {
            "type": "input_file",
            "filename": "c.pdf",
            "file_data": "data:application/pdf;base64,UERG",
        },
        {"type": "input_image", "image_url": "data:image/gif;base64,R0lG", "detail": "auto"},
        {
            "type": "input_text",
            "text": "[application/zip x:w, 3 bytes: this model's API takes no such file]",
        },
    ]


def test_an_answer_of_elsewhere_is_a_message_and_its_calls() -> None:
    call = ToolCall("3.0", "srv.find", {"q": 1}, "call_x", '{"q":  1}')
    assert items(
        openai_responses.assistant("so", (call,), NO_NATIVE, {"srv.find": "srv__find"})
    ) == [
        {"role": "assistant", "content": "so"},
        {
            "type": "function_call",
            "call_id": "call_x",
            "name": "srv__find",
            "arguments": '{"q":  1}',
        },
    ]
    assert (
        items(openai_responses.assistant("", (call,), NO_NATIVE, {}))[0]["type"] == "function_call"
    )
    assert items(openai_responses.assistant("", (), NO_NATIVE, {})) == [
        {"role": "assistant", "content": ""}
    ]


def test_an_invalid_call_is_echoed_as_json() -> None:
    call = read_call("t", '{"a": ', "c")
    [item] = items(openai_responses.assistant("", (call,), NO_NATIVE, {}))
    assert json.loads(item["arguments"]) == {"invalid_json": '{"a": '}


@pytest.mark.parametrize("id", ["3.0", "functions.find:0", "x" * 65, "toolu_é", "a b"])
def test_an_id_that_the_api_refuses_is_another_one_for_the_call_and_its_result_alike(
    id: str,
) -> None:
    call = ToolCall("9.9", "t", provider_id=id)
    [item] = items(openai_responses.assistant("", (call,), NO_NATIVE, {}))
    [result] = items(openai_responses.results([(call, ToolResult("x"))], {}))
    assert item["call_id"] == result["call_id"] != id
    assert len(item["call_id"]) <= 64
    assert item["call_id"].replace("_", "").isalnum()
    assert openai_responses.call_id(ToolCall("1.0", "t", provider_id=id + "x")) != item["call_id"]


@pytest.mark.parametrize("id", ["call_zmt5boQ6Wf6lFz7WtrG9uCH2", "toolu_01-A", "x" * 64])
def test_an_id_that_the_api_takes_stays(id: str) -> None:
    assert openai_responses.call_id(ToolCall("9.9", "t", provider_id=id)) == id


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (ToolResult("out"), "out"),
        (ToolResult(), "(no output)"),
        (ToolResult(structured_content={"n": 1}), '{"n":1}'),
        (ToolResult((TextContent("a"), TextContent("b"))), "a\nb"),
        (ToolResult((TextContent("broke"),), is_error=True), "broke"),
        (ToolResult(is_error=True, error=ErrorInfo("timeout", "took 5 s")), "Error: took 5 s"),
        (
            ToolResult((AudioContent(b"abc"),)),
            "[audio/wav, 3 bytes: this model's API takes no such file]",
        ),
        (ToolResult((TextContent("a"), EmbeddedResource({"text": "b"}))), "a\nb"),
        (
            ToolResult((TextContent("a"), ImageContent(PNG))),
            [
                {"type": "input_text", "text": "a"},
                {
                    "type": "input_image",
                    "image_url": "data:image/png;base64,iVBORyBmYWtl",
                    "detail": "auto",
                },
            ],
        ),
        (
            ToolResult((ImageContent(PNG),), is_error=True, error=ErrorInfo("x", "bad")),
            [
                {"type": "input_text", "text": "Error: bad"},
                {
                    "type": "input_image",
                    "image_url": "data:image/png;base64,iVBORyBmYWtl",
                    "detail": "auto",
                },
            ],
        ),
    ],
)
def test_a_result_is_text_or_parts(result: ToolResult, expected: Any) -> None:
    [item] = items(openai_responses.results([(ToolCall("1.0", "t", provider_id="c1"), result)], {}))
    assert item == {"type": "function_call_output", "call_id": "c1", "output": expected}


def test_a_batch_is_one_fragment() -> None:
    batch = [
        (ToolCall("1.0", "a", provider_id="c1"), ToolResult("x")),
        (ToolCall("1.1", "b", provider_id="c2"), ToolResult("y")),
    ]
    assert [item["call_id"] for item in items(openai_responses.results(batch, {}))] == ["c1", "c2"]


# --- native ---


@pytest.mark.parametrize(
    "output",
    [
        [message_item("a")],
        [call_item("t")],
        [message_item("a"), call_item("t"), call_item("u", id="call_2")],
        [reasoning_item(None), message_item("a")],
    ],
)
def test_an_ordinary_answer_has_no_native_form(output: list[Any]) -> None:
    answer = parse_plain(response(*output))
    assert not answer.native
    assert Completion.from_json(answer.to_json()) == answer


@pytest.mark.parametrize(
    "output",
    [
        [reasoning_item(), message_item("a")],
        [reasoning_item(content=[]), call_item("t")],
        [
            reasoning_item("gAAA=", "sum"),
            call_item("t", '{"a": 1.50}'),
            call_item("u", id="call_2"),
        ],
        [
            reasoning_item(None, content=[{"type": "reasoning_text", "text": "hm"}]),
            message_item("a"),
        ],
        [message_item("a", phase="commentary"), call_item("t")],
        [call_item("t"), message_item("a")],
        [message_item("a"), message_item("b", id="msg_2")],
        [message_item("a", "b")],
        [call_item("t", namespace="srv")],
        [
            {
                "id": "ws_1",
                "type": "web_search_call",
                "status": "completed",
                "action": {"type": "search", "query": "q"},
            },
            message_item("a"),
        ],
        [
            {
                "id": "ci_1",
                "type": "code_interpreter_call",
                "status": "completed",
                "code": "1",
                "container_id": "c",
                "outputs": None,
            },
            message_item("a"),
        ],
        [
            {
                "id": "mcp_1",
                "type": "mcp_call",
                "server_label": "s",
                "name": "n",
                "arguments": "{}",
                "output": "o",
                "error": None,
            },
            message_item("a"),
        ],
        [
            {
                "id": "tsc_1",
                "type": "tool_search_call",
                "call_id": None,
                "execution": "server",
                "arguments": {"paths": ["x"]},
            },
            call_item("t"),
        ],
        [{"id": "cmp_1", "type": "compaction", "encrypted_content": "zz"}],
        [
            {
                "id": "n_1",
                "type": "of_tomorrow",
                "status": "completed",
                "payload": {"a": [1, None]},
            },
            message_item("a"),
        ],
    ],
)
def test_what_text_and_calls_cannot_say_goes_back_verbatim(output: list[Any]) -> None:
    assert echo(response(*output)) == output
    assert meaning(parse_stream(sse(response(*output))))[1] == output


def test_citations_and_refusals_go_back_verbatim() -> None:
    cited = message_item("a")
    cited["content"][0]["annotations"] = [
        {"type": "url_citation", "url": "https://x", "title": "t", "start_index": 0, "end_index": 1}
    ]
    refused = message_item()
    refused["content"] = [{"type": "refusal", "refusal": "I will not."}]
    assert echo(response(cited)) == [cited]
    assert echo(response(refused)) == [refused]
    for completion in (parse_plain(response(refused)), parse_stream(sse(response(refused)))):
        assert (completion.text, completion.refusal, completion.stop_reason) == (
            "",
            "I will not.",
            "refusal",
        )


def test_an_item_goes_back_byte_for_byte() -> None:
    item = b'{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"g\\u00e9==","n":1.50e2,"big":123456789012345678901}'
    answer = openai_responses.parse(
        b'{"id":"r","output":[' + item + b', {"type":"message", "content":[]}]}'
    )
    fragment = openai_responses.assistant(answer.text, answer.calls, answer.native, {})
    assert fragment.startswith(item + b",")


def test_the_blanks_of_an_indented_answer_are_not_kept() -> None:
    data = json.dumps(
        response(reasoning_item("g \n AAA"), message_item("a\n\n  b")), indent=2
    ).encode()
    native = bytes(openai_responses.parse(data).native)
    assert b"\n" not in native
    assert json.loads(native) == [reasoning_item("g \n AAA"), message_item("a\n\n  b")]


def test_what_the_api_refuses_of_its_own_items_does_not_go_back() -> None:
    long = "x" * 65
    search = {
        "type": "web_search_call",
        "id": "ws_1",
        "status": "completed",
        "action": {
            "type": "search",
            "query": None,
            "sources": [{"type": "api", "name": "w"}, {"type": "url", "url": "u"}],
        },
    }
    weather = {
        "type": "web_search_call",
        "id": "ws_2",
        "action": {"type": "search", "sources": [{"type": "api", "name": "w"}]},
    }
    output = [
        reasoning_item(status="completed"),
        reasoning_item(content=None, id=long, status=None),
        search,
        weather,
        message_item("a", id="", status=None),
    ]
    stripped = message_item("a")
    del stripped["id"], stripped["status"]
    bare = reasoning_item()
    del bare["id"]
    assert echo(response(*output)) == [
        reasoning_item(),
        bare,
        {**search, "action": {"type": "search", "sources": [{"type": "url", "url": "u"}]}},
        {**weather, "action": {"type": "search"}},
        stripped,
    ]


def test_reasoning_that_nothing_follows_does_not_go_back() -> None:
    assert echo(response(reasoning_item(), status="incomplete")) == [
        {"role": "assistant", "content": ""}
    ]
    assert echo(
        response(
            reasoning_item(), message_item("a"), reasoning_item(id="rs_2"), status="incomplete"
        )
    ) == [
        reasoning_item(),
        message_item("a"),
    ]


def test_reasoning_that_only_a_store_would_know_does_not_go_back_nor_do_the_ids_behind_it() -> None:
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
    history = echo(response(reasoning_item(None), search, call_item("t"), message_item("a")))
    assert [item["type"] for item in history] == ["web_search_call", "function_call", "message"]
    assert [item.get("id") for item in history] == ["ws_1", None, None]


def test_a_call_whose_id_is_ours_is_patched_into_its_item() -> None:
    answer = parse_plain(
        response(reasoning_item(), call_item("a", id="same"), call_item("b", id="same"))
    )
    assert [call.provider_id for call in answer.calls] == ["same", ""]
    calls = [
        msgspec.structs.replace(call, id=f"3.{number}") for number, call in enumerate(answer.calls)
    ]
    history = items(openai_responses.assistant("", calls, answer.native, {}))
    results = items(openai_responses.results([(call, ToolResult("x")) for call in calls], {}))
    assert [item["call_id"] for item in history[1:]] == [item["call_id"] for item in results]
    assert history[1]["call_id"] == "same" != history[2]["call_id"]


def test_a_long_id_of_the_provider_itself_is_cut_alike_in_call_and_result() -> None:
    answer = parse_plain(response(reasoning_item(), call_item("a", id="x" * 80)))
    [_, item] = items(openai_responses.assistant("", answer.calls, answer.native, {}))
    [result] = items(openai_responses.results([(answer.calls[0], ToolResult("x"))], {}))
    assert item["call_id"] == result["call_id"]
    assert len(item["call_id"]) <= 64


def test_an_invalid_call_does_not_bring_its_broken_arguments_back() -> None:
    [_, item] = echo(response(reasoning_item(), call_item("t", '{"a": ')))
    assert json.loads(item["arguments"]) == {"invalid_json": '{"a": '}
    assert item["id"] == "fc_1"


@pytest.mark.parametrize("native", [b"{}", b'[{"type":"function_call"}]', b"[1]", b'"x"'])
def test_a_native_form_that_does_not_fit_the_calls_is_left_aside(native: bytes) -> None:
    item = items(openai_responses.assistant("a", (), msgspec.Raw(native), {}))
    assert item == [{"role": "assistant", "content": "a"}]


# --- heads and bodies ---


def body(
    model: str = "m",
    system: str = "",
    tools: Any = (),
    parameters: Mapping[str, Any] = {},
    **more: Any,
) -> dict[str, Any]:
    head = openai_responses.head(model, system, tools, parameters, more.get("names", {}))
    return json.loads(
        openai_responses.body(
            head,
            more.get("fragments", [b'{"role":"user","content":"x"}']),
            more.get("stream", False),
        )
    )


CLOSED = {
    "type": "object",
    "properties": {"a": {"type": "string"}},
    "required": ["a"],
    "additionalProperties": False,
}


def test_a_body_is_its_head_and_its_fragments() -> None:
    tool = ToolDefinition("a.b", "does", {"type": "object"})
    parameters = {
        "temperature": 0.0,
        "top_p": 0.5,
        "max_output_tokens": 9,
        "parallel_tool_calls": False,
        "wire": "openai_responses",
    }
    assert body("m", "be good", [tool], parameters, names={"a.b": "a__b"}) == {
        "model": "m",
        "store": False,
        "instructions": "be good",
        "temperature": 0.0,
        "top_p": 0.5,
        "max_output_tokens": 9,
        "tools": [
            {
                "type": "function",
                "name": "a__b",
                "description": "does",
                "parameters": {"type": "object"},
                "strict": False,
            }
        ],
        "parallel_tool_calls": False,
        "input": [{"role": "user", "content": "x"}],
    }
    assert body("m") == {"model": "m", "store": False, "input": [{"role": "user", "content": "x"}]}
    assert body("m", stream=True) == {**body("m"), "stream": True}


@pytest.mark.parametrize("count", [0, 1, 2, 50])
def test_any_number_of_fragments_makes_a_body(count: int) -> None:
    fragments = [b'{"role":"user","content":"x"}'] * count
    assert len(body(fragments=fragments)["input"]) == count
    assert fragments == [b'{"role":"user","content":"x"}'] * count


@pytest.mark.parametrize(
    ("model", "thinks"),
    [
        ("gpt-5", True),
        ("openai/gpt-5.2-mini", True),
        ("gpt-10", True),
        ("o1", True),
        ("o4-mini", True),
        ("ft:o4-mini:me", True),
        ("codex-mini-latest", True),
        ("gpt-5-chat-latest", False),
        ("gpt-4o", False),
        ("gpt-4.1", False),
        ("gpt-35-turbo", False),
        ("gpt-oss-120b", False),
        ("chatgpt-4o-latest", False),
        ("olmo-2", False),
        ("", False),
    ],
)
def test_encrypted_reasoning_is_asked_for_where_the_model_thinks(model: str, thinks: bool) -> None:
    assert body(model).get("include") == (["reasoning.encrypted_content"] if thinks else None)
    assert "reasoning" not in body(model)


def test_an_effort_says_that_the_model_thinks_and_asks_for_no_summary() -> None:
    request_body = body("my-deployment", parameters={"reasoning_effort": "low"})
    assert request_body["reasoning"] == {"effort": "low"}
    assert request_body["include"] == ["reasoning.encrypted_content"]


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({"type": "json_object"}, {"type": "json_object"}),
        ({"type": "text"}, {"type": "text"}),
        (
            {"type": "json_schema", "json_schema": {"name": "n", "schema": CLOSED, "strict": True}},
            {"type": "json_schema", "name": "n", "schema": CLOSED, "strict": True},
        ),
        (
            {"type": "json_schema", "name": "n", "schema": {}},
            {"type": "json_schema", "name": "n", "schema": {}},
        ),
    ],
)
def test_a_response_format_is_said_flat(given: Any, sent: Any) -> None:
    assert body(parameters={"response_format": given})["text"] == {"format": sent}


@pytest.mark.parametrize("key", ["stop", "seed", "reasoning_budget"])
def test_what_the_api_does_not_have_is_refused(key: str) -> None:
    value = {"stop": ["x"], "seed": 0, "reasoning_budget": 0}[key]
    with pytest.raises(
        ConfigurationError,
        match="reasoning_effort" if key == "reasoning_budget" else "wire='openai_chat'",
    ):
        body(parameters={key: value})
    body(parameters={"stop": [], "seed": None})


@pytest.mark.parametrize(
    ("host", "has_key"),
    [
        ("api.openai.com", True),
        ("eu.api.openai.com", True),
        ("mine.openai.azure.com", True),
        ("mine.services.ai.azure.com", True),
        ("openrouter.ai", False),
        ("localhost", False),
        ("", False),
    ],
)
def test_a_cache_key_goes_to_openai_and_azure_alone(host: str, has_key: bool) -> None:
    assert body(parameters={"host": host, "cache_key": "k"}).get("prompt_cache_key") == (
        "k" if has_key else None
    )


def test_a_cache_key_is_the_users_or_none_and_never_too_long() -> None:
    openai = {"host": "api.openai.com", "cache_key": "k"}
    assert (
        body(parameters={**openai, "extra_body": {"prompt_cache_key": "mine"}})["prompt_cache_key"]
        == "mine"
    )
    assert "prompt_cache_key" not in body(parameters={**openai, "prompt_caching": False})
    long, other = [
        body(parameters={**openai, "cache_key": key})["prompt_cache_key"]
        for key in ("x" * 65, "x" * 66)
    ]
    assert len(long) == 64
    assert long != other


def test_extra_body_comes_last_and_adds_where_we_have_something() -> None:
    tools = [
        ToolDefinition("t", "", {"type": "object"}),
        ToolDefinition("u", "", {"type": "object"}),
    ]
    theirs = [
        {"type": "web_search"},
        {"type": "function", "name": "u", "parameters": {}, "strict": True},
    ]
    extra = {
        "temperature": 0,
        "reasoning": {"summary": "auto"},
        "text": {"verbosity": "low"},
        "include": ["web_search_call.action.sources", "reasoning.encrypted_content"],
        "tools": theirs,
        "store": True,
    }
    parameters = {
        "temperature": 1,
        "reasoning_effort": "low",
        "response_format": {"type": "json_object"},
        "extra_body": extra,
    }
    request_body = body("gpt-5", tools=tools, parameters=parameters)
    assert request_body["temperature"] == 0
    assert request_body["reasoning"] == {"effort": "low", "summary": "auto"}
    assert request_body["text"] == {"format": {"type": "json_object"}, "verbosity": "low"}
    assert request_body["include"] == [
        "reasoning.encrypted_content",
        "web_search_call.action.sources",
    ]
    assert [tool.get("name") for tool in request_body["tools"]] == ["t", None, "u"]
    assert request_body["tools"][1:] == theirs
    assert request_body["store"] is True
    assert (
        body(parameters={"extra_body": {"reasoning": {"effort": "high"}, "tools": theirs}})["tools"]
        == theirs
    )
    assert body("gpt-5", parameters={"extra_body": {"include": None}})["include"] is None


def test_input_is_not_for_extra_body() -> None:
    with pytest.raises(ConfigurationError, match="'input'"):
        body(parameters={"extra_body": {"input": []}})


def test_parallel_tool_calls_is_sent_only_with_tools() -> None:
    assert "parallel_tool_calls" not in body(parameters={"parallel_tool_calls": False})


def obj(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        (CLOSED, True),
        (obj(), True),
        (obj(a=obj(b={"type": ["string", "null"], "description": "d"})), True),
        (obj(a={"type": "array", "items": obj(b={"type": "integer", "enum": [1]})}), True),
        (obj(a={"anyOf": [{"type": "string"}, obj()]}), True),
        ({**obj(a={"$ref": "#/$defs/N"}), "$defs": {"N": obj()}, "title": "T"}, True),
        ({}, False),
        ({"type": "object"}, False),
        ({"type": "object", "properties": {}}, False),
        ({**CLOSED, "required": []}, False),
        ({**CLOSED, "required": None}, False),
        ({**CLOSED, "required": ["a", "b"]}, False),
        ({**CLOSED, "additionalProperties": True}, False),
        ({"type": "object", "properties": CLOSED["properties"], "required": ["a"]}, False),
        (obj(a={"type": "string", "default": "x"}), False),
        (obj(a={"type": "string", "minLength": 1}), False),
        (obj(a={"oneOf": [{"type": "string"}]}), False),
        (obj(a={"type": "array"}), False),
        (obj(a={}), False),
        (obj(a=True), False),
        (obj(a={"type": "object"}), False),
        (obj(a={"type": ["object", "null"]}), False),
        (obj(a={"$ref": "#/$defs/N", "description": "d"}), False),
        ({**obj(a={"$ref": "#/$defs/N"}), "$defs": {"N": {"type": "object"}}}, False),
        ({"anyOf": [obj()]}, False),
        ({"type": "object", "properties": [], "required": 3, "additionalProperties": False}, False),
        ({"type": "array", "items": obj()}, False),
    ],
)
def test_strict_is_said_only_of_schemas_that_strict_mode_takes_as_they_are(
    schema: dict[str, Any], strict: bool
) -> None:
    before = json.dumps(schema)
    [tool] = body(tools=[ToolDefinition("t", "", schema)])["tools"]
    assert tool["strict"] is strict
    # Two of them are refused also without strict mode: tests/tools/test_wire_schemas.py.
    is_refused = "anyOf" in schema or schema == obj(a={"type": "array"})
    assert (tool["parameters"] == schema) is not is_refused
    assert json.dumps(schema) == before


def test_the_wire_is_found_by_its_name() -> None:
    instance = wire("openai_responses")
    assert instance.name == "openai_responses"
    assert instance.path("gpt-5", True) == "/responses"
    assert instance.headers("k") == {
        "Content-Type": "application/json",
        "Accept": "*/*",
        "Authorization": "Bearer k",
    }
    assert "Authorization" not in instance.headers("")


# --- plain answers ---


def test_an_answer_is_read_with_all_that_it_says() -> None:
    answer = parse_plain(
        response(
            reasoning_item("e", "one", "two"),
            message_item("a", "b"),
            call_item("t", '{"q": 1}'),
            call_item("u", id="call_2"),
        )
    )
    assert (answer.text, answer.reasoning, answer.stop_reason) == ("ab", "one\n\ntwo", "tool_calls")
    assert [(call.name, call.arguments, call.provider_id, call.raw) for call in answer.calls] == [
        ("t", {"q": 1}, "call_1", '{"q": 1}'),
        ("u", {}, "call_2", ""),
    ]
    assert (answer.model, answer.response_id, answer.wire) == (
        "gpt-5-1",
        "resp_1",
        "openai_responses",
    )
    assert answer.usage == Usage(100, 50, 80, 5, 20)


def test_usage_counts_reasoning_into_the_output_where_the_server_does_not() -> None:
    beside = {
        "input_tokens": 10,
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 3},
        "total_tokens": 18,
    }
    assert parse_plain(response(message_item("a"), usage=beside)).usage == Usage(10, 8, 0, 0, 3)
    assert parse_plain(response(message_item("a"), usage=None)).usage == Usage()
    assert (
        parse_plain(
            response(message_item("a"), usage={"input_tokens": "x", "output_tokens_details": 3})
        ).usage
        == Usage()
    )


def test_reasoning_that_an_open_model_shows_is_read() -> None:
    item = reasoning_item(None, content=[{"type": "reasoning_text", "text": "hm"}])
    assert parse_plain(response(item, message_item("a"))).reasoning == "hm"


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("max_output_tokens", "length"),
        ("content_filter", "content_filter"),
        ("tired", "tired"),
        (None, "length"),
    ],
)
def test_an_incomplete_answer_says_why(reason: str | None, expected: str) -> None:
    details = {"reason": reason} if reason else None
    answer = response(
        message_item("half", status="incomplete"), status="incomplete", incomplete_details=details
    )
    assert parse_plain(answer).stop_reason == expected
    assert parse_stream(sse(answer)).stop_reason == expected


def test_a_prompt_that_is_blocked_without_a_word_is_an_error() -> None:
    answer = response(status="incomplete", incomplete_details={"reason": "content_filter"})
    with pytest.raises(ContentFiltered):
        parse_plain(answer)
    with pytest.raises(ContentFiltered):
        parse_stream(sse(answer))


def test_a_call_that_was_cut_off_before_its_arguments_is_invalid() -> None:
    answer = response(
        call_item("t", "", status="incomplete"),
        status="incomplete",
        incomplete_details={"reason": "max_output_tokens"},
    )
    completion = parse_plain(answer)
    assert completion.calls[0].invalid
    assert completion.stop_reason == "length"
    assert not parse_plain(response(call_item("t", ""))).calls[0].invalid
    [item] = items(openai_responses.assistant("", completion.calls, completion.native, {}))
    assert json.loads(item["arguments"]) == {"invalid_json": ""}


@pytest.mark.parametrize(
    ("status", "error", "kind", "retryable"),
    [
        ("failed", {"code": "server_error", "message": "oops"}, ServerError, True),
        ("failed", {"code": "rate_limit_exceeded", "message": "slow"}, RateLimited, True),
        ("failed", {"code": "invalid_image_url", "message": "no picture"}, BadRequest, False),
        ("failed", None, ServerError, True),
        ("cancelled", None, ServerError, True),
        ("queued", None, BadResponse, False),
        ("in_progress", None, BadResponse, False),
    ],
)
def test_an_answer_that_is_none_is_an_error(
    status: str, error: Any, kind: type[LLMError], retryable: bool
) -> None:
    with pytest.raises(kind) as caught:
        parse_plain(response(status=status, error=error))
    assert caught.value.retryable is retryable
    if status in ("failed", "cancelled"):
        with pytest.raises(kind):
            parse_stream(
                events(
                    {"type": f"response.{status}", "response": response(status=status, error=error)}
                )
            )


def test_an_error_with_status_200_is_an_error() -> None:
    with pytest.raises(RateLimited, match="slow"):
        parse_plain({"error": {"message": "slow", "code": 429}})


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"<html>",
        b"[]",
        b"{}",
        b"\xff",
        b'{"output":null}',
        b'{"output":{}}',
        b'{"output":[1]}',
        b'{"output":[{"type":"message","content":3}]}',
        b'{"output":[{"type":"message","content":["x"]}]}',
        b'{"output":[{"type":"message","content":[{"type":"output_text","text":3}]}]}',
        b'{"output":[{"type":"function_call","arguments":"{}"}]}',
        b'{"output":[{"type":"reasoning","summary":[3]}]}',
        b'{"choices":[{"message":{"content":"a"}}]}',
        b'{"output":[' + b"[" * 100_000,
        b'{"output":[{"x":' + b"[" * 5_000 + b"]" * 5_000 + b"}]}",
    ],
)
def test_what_is_no_answer_is_a_bad_response(answer: bytes) -> None:
    with pytest.raises(BadResponse):
        openai_responses.parse(answer)


def test_an_answer_that_is_not_quite_json_is_read() -> None:
    answer = b'{"output":[{"type":"message","content":[{"type":"output_text","text":"a\tb\\ud83d"}],"phase":"\\ud83d"}],"x":NaN}'
    completion = openai_responses.parse(answer)
    assert completion.text == "a\tb\ufffd"
    assert json.loads(bytes(completion.native))[0]["phase"] == "\ufffd"
    stream = b'data: {"type":"response.completed","response":' + answer + b"}\n\n"
    assert meaning(parse_stream(stream)) == meaning(completion)


# --- streams ---

ANSWER = response(
    reasoning_item("gAAA==", "I see", "I know"),
    message_item("Žluťoučký kůň — 🐎 says\nhi", phase="commentary"),
    call_item("find", '{"q": "naïve ☃ 𝄞", "n": 1}', id="call_a"),
    call_item("list", "{}", id="call_b"),
)
STREAM = sse(ANSWER)


@pytest.mark.parametrize("final", [True, False])
def test_a_stream_gives_what_the_plain_answer_gives(final: bool) -> None:
    assert meaning(parse_stream(sse(ANSWER, final=final))) == meaning(parse_plain(ANSWER))


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
    parser = ResponseStream()
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(data)], strict=True):
        parser.feed(data[start:end])
    assert parser.done
    assert parser.finish() == parse_stream(STREAM)


FINISHED = len(STREAM.encode().rstrip(b"\n"))


@given(st.integers(0, len(STREAM.encode())), st.integers(1, 400))
@settings(max_examples=examples(250), deadline=None)
def test_a_stream_that_ends_at_any_byte_is_an_error_or_whole(at: int, size: int) -> None:
    data = STREAM.encode()[:at] or b"\n"
    if at < FINISHED:
        with pytest.raises(StreamInterrupted):
            parse_stream(data, size=size)
    else:
        assert parse_stream(data, size=size) == parse_stream(STREAM)


@given(
    st.lists(
        st.tuples(st.integers(0, len(STREAM.encode()) - 1), st.integers(0, 255)),
        min_size=1,
        max_size=8,
    ),
    st.integers(1, 900),
)
@settings(max_examples=examples(300), deadline=None)
def test_corrupted_bytes_give_an_error_of_ours_or_an_answer(
    changes: list[tuple[int, int]], size: int
) -> None:
    data = bytearray(STREAM.encode())
    for at, byte in changes:
        data[at] = byte
    try:
        answer = parse_stream(bytes(data), size=size)
    except LLMError:
        return
    assert isinstance(answer, Completion)
    openai_responses.assistant(answer.text, answer.calls, answer.native, {})
    assert Completion.from_json(answer.to_json()) == answer


@given(st.binary(max_size=300))
@settings(max_examples=examples(150), deadline=None)
def test_no_bytes_make_the_parser_fail_otherwise_than_by_its_errors(data: bytes) -> None:
    with pytest.raises(LLMError):
        parse_stream(data or b"\n")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "id",
                    "content",
                    "summary",
                    "text",
                    "name",
                    "arguments",
                    "call_id",
                    "status",
                    "action",
                    "sources",
                    "output",
                    "x",
                ]
            ),
            inner
            | st.sampled_from(
                [
                    "message",
                    "function_call",
                    "reasoning",
                    "web_search_call",
                    "incomplete",
                    "refusal",
                ]
            ),
            max_size=5,
        )
    ),
    max_leaves=14,
)


@given(
    json_values,
    st.sampled_from(
        ["output_item.done", "output_item.added", "output_text.delta", "completed", "incomplete"]
    ),
)
@settings(max_examples=examples(500), deadline=None)
def test_no_json_makes_the_parsers_fail_otherwise_than_by_their_errors(
    value: Any, kind: str
) -> None:
    event = {
        "type": f"response.{kind}",
        "item": value,
        "delta": value,
        "response": value,
        "output_index": value,
    }
    end = {"type": "response.completed", "response": {"output": []}}
    reads: list[Callable[[], Completion]] = [
        lambda: parse_stream(events(event, end)),
        lambda: parse_stream(events({**event, "output_index": 0}, end)),
        lambda: parse_plain(value),
        lambda: parse_plain(
            {
                "output": value,
                "usage": value,
                "id": value,
                "incomplete_details": value,
                "status": value,
            }
        ),
        lambda: parse_plain({"output": [value]}),
    ]
    for parse in reads:
        try:
            answer = parse()
        except LLMError:
            continue
        openai_responses.assistant(answer.text, answer.calls, answer.native, {})
        assert Completion.from_json(answer.to_json()) == answer


words = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@pytest.mark.slow
@given(
    words,
    st.lists(st.tuples(words, st.dictionaries(words, words))),
    st.lists(words.filter(bool), max_size=3),
    st.integers(1, 9),
)
@settings(max_examples=examples(60), deadline=None)
def test_whatever_a_model_says_survives_its_stream(
    content: str, tool_calls: list[tuple[str, dict[str, str]]], summary: list[str], size: int
) -> None:
    calls = [
        call_item(name, json.dumps(arguments), id=f"call_{number}")
        for number, (name, arguments) in enumerate(tool_calls)
    ]
    answer = response(reasoning_item("e", *summary), message_item(content), *calls)
    deltas: list[Delta] = []
    completion = parse_stream(sse(answer, size=size), deltas.append, size=size)
    assert meaning(completion) == meaning(parse_plain(answer))
    assert "".join(one.text for one in deltas if one.kind == "text") == completion.text
    assert "".join(one.text for one in deltas if one.kind == "reasoning") == completion.reasoning


def test_deltas_tell_text_reasoning_and_calls_in_order() -> None:
    deltas: list[Delta] = []
    answer = parse_stream(STREAM, deltas.append)
    assert "".join(one.text for one in deltas if one.kind == "text") == answer.text
    assert (
        "".join(one.text for one in deltas if one.kind == "reasoning")
        == "I see\n\nI know"
        == answer.reasoning
    )
    for index, call in enumerate(answer.calls):
        mine = [one for one in deltas if one.kind == "tool" and one.index == index]
        assert mine[0].name == call.name
        assert not any(one.name for one in mine[1:])
        assert "".join(one.text for one in mine) == call.raw_arguments


def test_what_no_delta_told_is_told_with_its_item() -> None:
    items = [
        {"type": "response.output_item.done", "output_index": place, "item": item}
        for place, item in enumerate(ANSWER["output"])
    ]
    items.insert(
        2, {"type": "response.output_item.added", "output_index": 2, "item": call_item("find", "")}
    )
    deltas: list[Delta] = []
    answer = parse_stream(
        events(*items, {"type": "response.completed", "response": ANSWER}), deltas.append
    )
    assert meaning(answer) == meaning(parse_plain(ANSWER))
    assert deltas == [
        Delta("reasoning", answer.reasoning),
        Delta("text", answer.text),
        Delta("tool", "", 0, "find"),
        Delta("tool", '{"q": "naïve ☃ 𝄞", "n": 1}', 0),
        Delta("tool", "{}", 1, "list"),
    ]


def test_reasoning_that_is_encrypted_anew_at_the_end_goes_back_as_it_came_first() -> None:
    again = response(reasoning_item("gBBB=="), *ANSWER["output"][1:])
    stream = STREAM.replace(STREAM[STREAM.rindex("event:") :], "") + events(
        {"type": "response.completed", "response": again}
    )
    assert json.loads(bytes(parse_stream(stream).native))[0]["encrypted_content"] == "gAAA=="


def test_the_items_of_the_last_event_count_where_it_has_more() -> None:
    stream = events(
        {"type": "response.created", "response": {}},
        {"type": "response.completed", "response": ANSWER},
    )
    assert meaning(parse_stream(stream)) == meaning(parse_plain(ANSWER))


def test_an_item_that_was_begun_and_never_came_is_not_left_out() -> None:
    delta = {"type": "response.output_text.delta", "output_index": 0, "delta": "half"}
    with pytest.raises(BadResponse, match="without an item"):
        parse_stream(events(delta, {"type": "response.completed", "response": {"output": []}}))


def test_items_are_in_their_order_even_if_they_end_in_another() -> None:
    ends = [
        {
            "type": "response.output_item.done",
            "output_index": n,
            "item": message_item(str(n), id=f"msg_{n}"),
        }
        for n in (1, 0)
    ]
    assert (
        parse_stream(events(*ends, {"type": "response.completed", "response": {"output": []}})).text
        == "0\n\n1"
    )


def test_items_that_all_have_one_place_are_all_kept() -> None:
    ends = [
        {
            "type": "response.output_item.done",
            "output_index": 0,
            "item": message_item(str(n), id=f"msg_{n}"),
        }
        for n in (1, 2)
    ]
    assert (
        parse_stream(events(*ends, {"type": "response.completed", "response": {"output": []}})).text
        == "1\n\n2"
    )


def test_events_that_are_named_only_beside_their_data_are_read() -> None:
    stream = STREAM
    for kind in ("response.output_text.delta", "response.output_item.done", "response.completed"):
        stream = stream.replace(f'{{"type": "{kind}", ', "{")
    assert meaning(parse_stream(stream)) == meaning(parse_plain(ANSWER))


def test_a_completed_event_with_an_incomplete_answer_is_incomplete() -> None:
    answer = response(
        message_item("half"),
        status="incomplete",
        incomplete_details={"reason": "max_output_tokens"},
    )
    assert (
        parse_stream(events({"type": "response.completed", "response": answer})).stop_reason
        == "length"
    )


def test_what_follows_the_end_is_not_read() -> None:
    assert parse_stream(STREAM + "data: [DONE]\n\ndata: garbage\n\n") == parse_stream(STREAM)


def test_done_alone_does_not_finish_an_answer() -> None:
    with pytest.raises(StreamInterrupted):
        parse_stream(STREAM[: STREAM.rindex("event:")] + "data: [DONE]\n\n")


def test_an_error_in_a_stream_is_raised_as_its_type() -> None:
    def fails(error: Any) -> LLMError:
        with pytest.raises(LLMError) as caught:
            parse_stream(STREAM[: STREAM.rindex("event:")] + events(error))
        return caught.value

    assert isinstance(
        fails({"type": "error", "code": "server_error", "message": "x", "param": None}), ServerError
    )
    assert isinstance(
        fails({"type": "error", "error": {"code": "rate_limit_exceeded", "message": "x"}}),
        RateLimited,
    )
    failed = response(status="failed", error={"code": "rate_limit_exceeded", "message": "slow"})
    assert isinstance(fails({"type": "response.failed", "response": failed}), RateLimited)
    assert isinstance(fails({"type": "response.output_text.delta", "delta": 3}), BadResponse)
    assert isinstance(fails({"type": "response.output_item.done", "item": 3}), BadResponse)
    assert isinstance(fails({"type": "response.completed"}), BadResponse)


def test_an_unknown_event_is_passed_over() -> None:
    more = events(
        {"type": "response.of_tomorrow", "delta": 1},
        {"type": "response.web_search_call.searching", "output_index": 9},
    )
    assert parse_stream(more + STREAM) == parse_stream(STREAM)


# --- errors ---


def test_an_error_has_the_type_that_its_status_and_code_mean() -> None:
    missing = {
        "error": {
            "code": "model_not_found",
            "message": "no model m",
            "param": "model",
            "type": "invalid_request_error",
        }
    }
    assert isinstance(
        openai_responses.error(
            404, {}, msgspec.json.encode(missing), "https://x/v1/responses", "m"
        ),
        ModelNotFound,
    )
    refused = {
        "error": {
            "code": "unknown_parameter",
            "message": "Unknown parameter: 'input[1].status'.",
            "type": "invalid_request_error",
        }
    }
    failure = openai_responses.error(
        400, {"x-request-id": "req_1"}, msgspec.json.encode(refused), "https://x/v1/responses", "m"
    )
    assert isinstance(failure, BadRequest)
    assert (failure.code, failure.request_id) == ("unknown_parameter", "req_1")


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("gpt-4.1", "plain"),
        ("openai/gpt-4o-mini", "plain"),
        ("gpt-5-chat-latest", "plain"),
        ("chatgpt-4o-latest", "plain"),
        ("gpt-5", ""),
        ("o3", ""),
        ("ft:gpt-5:x", ""),
        ("gpt-oss-120b", ""),
        ("my-deployment", ""),
        ("", ""),
    ],
)
def test_a_model_that_does_not_think_is_known(model: str, family: str) -> None:
    assert openai_responses.family(model, "h") == family


def test_a_model_that_does_not_think_is_sent_no_reasoning() -> None:
    items = [
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "E"},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "x", "annotations": []}],
        },
        {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "arguments": "{}"},
    ]
    answer = openai_responses.parse(
        json.dumps({"id": "r", "model": "gpt-5", "status": "completed", "output": items}).encode()
    )
    transcript = Transcript.from_messages("x")
    transcript.append(answer)
    thinks, plain = (
        transcript.fragments(openai_responses, {}, "gpt-5")[1],
        transcript.fragments(openai_responses, {}, "gpt-4.1")[1],
    )
    assert [item["type"] for item in json.loads(b"[" + thinks + b"]")] == [
        "reasoning",
        "message",
        "function_call",
    ]
    assert json.loads(b"[" + plain + b"]") == [
        {key: value for key, value in item.items() if key != "id"} for item in items[1:]
    ]
    assert transcript.fragments(openai_responses, {}, "gpt-5")[1] == thinks


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"a":"line\nbreak"}', '{"a":"line\\nbreak"}'),
        ("", "{}"),
        ('{"b": 2,  "a": 1}', '{"b": 2,  "a": 1}'),
    ],
)
def test_arguments_go_back_as_they_came_if_that_is_json(arguments: str, expected: str) -> None:
    items = [
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "E"},
        {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "c",
            "name": "f",
            "arguments": arguments,
        },
    ]
    answer = openai_responses.parse(
        json.dumps({"id": "r", "model": "gpt-5", "status": "completed", "output": items}).encode()
    )
    assert (
        json.loads(b"[" + openai_responses.assistant("", answer.calls, answer.native, {}) + b"]")[
            1
        ]["arguments"]
        == expected
    )


def test_a_schema_gets_the_name_that_the_api_wants() -> None:
    response_format = {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}
    data = json.loads(
        openai_responses.body(
            openai_responses.head("m", "", (), {"response_format": response_format}, {}), [], False
        )
    )
    assert data["text"]["format"] == {
        "type": "json_schema",
        "schema": {"type": "object"},
        "name": "answer",
    }
