"""The Gemini wire: fragments, heads, plain answers, streams at any cut, errors."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.answer import AnswerDetails
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
from holdfast.llm import LLM, Transcript
from holdfast.llm.completion import NO_NATIVE, Completion, Delta
from holdfast.llm.wires import gemini, wire
from holdfast.llm.wires.gemini_messages import name_from_wire, name_to_wire
from holdfast.llm.wires.gemini_stream import GeminiStream
from tests.model_server import ModelServer
from tests.samples import examples

PNG = b"\x89PNG fake"
PNG_PART = {"inlineData": {"mimeType": "image/png", "data": base64.b64encode(PNG).decode()}}
SKIP = "skip_thought_signature_validator"


def decode(fragment: bytes) -> Any:
    return json.loads(b"[" + fragment + b"]")


def candidate(*parts: dict[str, Any], finish: str | None = "STOP", **more: Any) -> dict[str, Any]:
    body: dict[str, Any] = {"content": {"parts": list(parts), "role": "model"}, "index": 0, **more}
    return {**body, "finishReason": finish} if finish else body


def answer(
    *parts: dict[str, Any], finish: str | None = "STOP", usage: Any = None, **more: Any
) -> dict[str, Any]:
    body = {
        "candidates": [candidate(*parts, finish=finish, **more)],
        "modelVersion": "gemini-test",
        "responseId": "r1",
    }
    return {**body, "usageMetadata": usage} if usage else body


def call(name: str, id: str = "", **args: Any) -> dict[str, Any]:
    return {"functionCall": {"name": name, "args": args, **({"id": id} if id else {})}}


def parse_plain(body: Any) -> Completion:
    return gemini.parse(json.dumps(body).encode())


def sse(*chunks: Any) -> bytes:
    return b"".join(
        b"data: %b\r\n\r\n" % json.dumps(chunk, ensure_ascii=False).encode() for chunk in chunks
    )


def parse_stream(
    data: bytes, on_delta: Callable[[Delta], object] | None = None, size: int = 0
) -> Completion:
    parser = GeminiStream()
    for at in range(0, len(data), size or len(data) or 1):
        parser.feed(data[at : at + (size or len(data))], on_delta)
    return parser.finish()


def native(completion: Completion) -> Any:
    return json.loads(bytes(completion.native)) if completion.native else None


def same(one: Completion, other: Completion) -> bool:
    """Return True if two completions are equal and their `native` JSON has the same value."""
    return native(one) == native(other) and msgspec.structs.replace(
        one, native=NO_NATIVE
    ) == msgspec.structs.replace(other, native=NO_NATIVE)


def echo(completion: Completion, **names: str) -> Any:
    return decode(gemini.assistant(completion.text, completion.calls, completion.native, names))[0]


# --- path and headers ---


def test_the_module_is_the_wire() -> None:
    assert wire("gemini") is gemini
    assert gemini.name == "gemini"


@pytest.mark.parametrize(
    ("model", "path"),
    [
        ("gemini-2.5-flash", "/models/gemini-2.5-flash"),
        ("models/gemini-2.5-flash", "/models/gemini-2.5-flash"),
        ("tunedModels/mine-1", "/tunedModels/mine-1"),
        ("publishers/google/models/gemini-3-pro", "/publishers/google/models/gemini-3-pro"),
        ("bad name\r\nx: y", "/models/bad%20name%0D%0Ax:%20y"),
    ],
)
def test_the_path_names_model_and_method(model: str, path: str) -> None:
    assert gemini.path(model, False) == path + ":generateContent"
    assert gemini.path(model, True) == path + ":streamGenerateContent?alt=sse"


def test_a_key_goes_in_a_header_of_its_own_and_no_key_in_none() -> None:
    assert gemini.headers("k") == {
        "Content-Type": "application/json",
        "Accept": "*/*",
        "x-goog-api-key": "k",
    }
    assert "x-goog-api-key" not in gemini.headers("")


# --- fragments ---


def test_a_system_message_in_the_midst_is_a_users_that_says_what_it_is() -> None:
    assert decode(gemini.system("be brief")) == [
        {"role": "user", "parts": [{"text": "<system>\nbe brief\n</system>"}]}
    ]


def test_a_user_message_is_parts() -> None:
    pdf = EmbeddedResource({"uri": "file:///a.pdf", "mimeType": "application/pdf", "blob": "cGRm"})
    zipped = EmbeddedResource(
        {"uri": "file:///a.zip", "mimeType": "application/zip", "blob": "emlw"}
    )
    content: list[Content] = [
        TextContent("look"),
        ImageContent(PNG),
        AudioContent(b"wav"),
        ResourceLink("file:///a", "a"),
        pdf,
        zipped,
        EmbeddedResource({"uri": "file:///b", "text": "in it"}),
    ]
    assert decode(gemini.user(content)) == [
        {
            "role": "user",
            "parts": [
                {"text": "look"},
                PNG_PART,
                {
                    "inlineData": {
                        "mimeType": "audio/wav",
                        "data": base64.b64encode(b"wav").decode(),
                    }
                },
                {"text": "[a: file:///a]"},
                {"inlineData": {"mimeType": "application/pdf", "data": "cGRm"}},
                {
                    "text": "[application/zip file:///a.zip, 3 bytes: this model's API takes no such file]"
                },
                {"text": "in it"},
            ],
        }
    ]
    assert decode(gemini.user([])) == [{"role": "user", "parts": [{"text": ""}]}]


def test_an_answer_of_another_model_is_text_and_calls_with_the_word_for_a_missing_signature_on_the_first() -> (
    None
):
    calls = [ToolCall("1.0", "srv.tool", {"a": 1}, "call_1"), ToolCall("1.1", "srv.tool", {"a": 2})]
    assert decode(gemini.assistant("so", calls, NO_NATIVE, {"srv.tool": "srv__tool"})) == [
        {
            "role": "model",
            "parts": [
                {"text": "so"},
                {
                    "functionCall": {"name": "srv__tool", "args": {"a": 1}, "id": "call_1"},
                    "thoughtSignature": SKIP,
                },
                {"functionCall": {"name": "srv__tool", "args": {"a": 2}}},
            ],
        }
    ]
    assert len(base64.b64decode(SKIP.replace("_", "/"))) == 24  # the field takes base64
    assert decode(gemini.assistant("only", [], NO_NATIVE, {})) == [
        {"role": "model", "parts": [{"text": "only"}]}
    ]


def test_an_answer_that_says_nothing_is_no_content() -> None:
    assert gemini.assistant("", [], NO_NATIVE, {}) == b""


def test_a_call_that_could_not_be_read_goes_back_as_an_object() -> None:
    broken = ToolCall("1.0", "t", {}, "c", '{"a": ', "The arguments are not valid JSON.")
    assert decode(gemini.assistant("", [broken], NO_NATIVE, {}))[0]["parts"][0]["functionCall"][
        "args"
    ] == {"invalid_json": '{"a": '}


def test_native_content_goes_back_to_the_byte() -> None:
    content = (
        '{"parts": [{"thoughtSignature":"c2ln",  "text": ""}, {"odd": {"z": 1.0, "a": 1e5}}],'
        ' "role":"model"}'
    )
    body = f'{{"candidates":[{{"content":{content},"finishReason":"STOP"}}]}}'.encode()
    answer = gemini.parse(body)
    assert gemini.assistant(answer.text, answer.calls, answer.native, {}) == content.encode()


def test_a_native_call_takes_the_name_and_id_that_its_result_will_have() -> None:
    """Models call unknown tools, and tools by names that differ from ours here. The response
    must be found by its call."""
    completion = parse_plain(
        answer({**call("functions.read", "i1"), "thoughtSignature": "c2ln"}, call("read", "i1"))
    )
    assert [one.provider_id for one in completion.calls] == ["i1", ""]
    parts = echo(completion)["parts"]
    assert parts == [{**call("functions__read", "i1"), "thoughtSignature": "c2ln"}, call("read")]
    results = decode(gemini.results([(one, ToolResult("ok")) for one in completion.calls], {}))[0][
        "parts"
    ]
    assert [part["functionResponse"]["name"] for part in results] == ["functions__read", "read"]
    assert [part["functionResponse"].get("id") for part in results] == ["i1", None]


def test_native_calls_without_any_signature_get_the_word_for_it() -> None:
    """Gemini 2.5 may leave the signature out. Gemini 3, which may get the next request, requires
    one."""
    completion = parse_plain(answer({"text": "hm", "thought": True}, call("a"), call("b")))
    assert echo(completion)["parts"] == [
        {"text": "hm", "thought": True},
        {**call("a"), "thoughtSignature": SKIP},
        call("b"),
    ]


def test_native_content_of_other_calls_than_the_answers_is_made_anew() -> None:
    completion = parse_plain(answer({**call("a"), "thoughtSignature": "c2ln"}))
    parts = decode(gemini.assistant("x", [], completion.native, {}))[0]["parts"]
    assert parts == [{"text": "x"}]


# --- results ---


def test_all_results_are_one_content_in_the_order_of_the_calls() -> None:
    failed = ToolResult((), is_error=True, error=ErrorInfo("timeout", "too slow"))
    batch = [
        (ToolCall("1.0", "a", {}, "x"), ToolResult("done")),
        (ToolCall("1.1", "a", {}), ToolResult.failure("no such file")),
        (ToolCall("1.2", "b", {}), ToolResult((), {"n": [1]})),
        (ToolCall("1.3", "b", {}), ToolResult("text", {"n": 1})),
        (ToolCall("1.4", "b", {}), ToolResult()),
        (ToolCall("1.5", "b", {}), failed),
    ]
    assert decode(gemini.results(batch, {"b": "b_"})) == [
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"name": "a", "response": {"output": "done"}, "id": "x"}},
                {"functionResponse": {"name": "a", "response": {"error": "no such file"}}},
                {"functionResponse": {"name": "b_", "response": {"output": {"n": [1]}}}},
                {"functionResponse": {"name": "b_", "response": {"output": "text"}}},
                {"functionResponse": {"name": "b_", "response": {"output": "(no output)"}}},
                {"functionResponse": {"name": "b_", "response": {"error": "Error: too slow"}}},
            ],
        }
    ]


def test_pictures_of_results_follow_in_a_content_of_their_own() -> None:
    sound = AudioContent(b"wav")
    batch = [
        (ToolCall("1.0", "shot", {}, "x"), ToolResult([ImageContent(PNG)])),
        (ToolCall("1.1", "rec", {}), ToolResult([TextContent("heard"), sound])),
    ]
    results, pictures = decode(gemini.results(batch, {}))
    assert [part["functionResponse"]["response"] for part in results["parts"]] == [
        {"output": "(1 image, shown below)"},
        {"output": "heard\n(audio/wav, shown below)"},
    ]
    assert pictures == {
        "role": "user",
        "parts": [
            {"text": "Returned by shot (call x):"},
            PNG_PART,
            {"text": "Returned by rec:"},
            {"inlineData": {"mimeType": "audio/wav", "data": base64.b64encode(b"wav").decode()}},
        ],
    }


# --- names ---


@pytest.mark.slow
@given(
    st.from_regex(r"[a-zA-Z0-9_-]{1,64}", fullmatch=True),
    st.from_regex(r"[a-zA-Z0-9_-]{1,64}", fullmatch=True),
)
def test_every_name_begins_as_the_api_wants_and_finds_back(one: str, other: str) -> None:
    sent_name = name_to_wire(one)
    assert sent_name[0].isalpha() or sent_name[0] == "_"
    assert name_from_wire(sent_name) == one
    assert (sent_name == name_to_wire(other)) == (one == other)


def test_a_name_with_a_digit_in_front_is_the_same_in_declaration_call_and_response() -> None:
    head = gemini.head("m", "", [ToolDefinition("1c.run", "", {})], {}, {"1c.run": "1c__run"})
    declared = json.loads(gemini.body(head, [], False))["tools"][0]["functionDeclarations"][0][
        "name"
    ]
    completion = parse_plain(answer(call(declared)))
    assert (declared, completion.calls[0].name) == ("_1c__run", "1c__run")
    ours = msgspec.structs.replace(completion.calls[0], name="1c.run")
    names = {"1c.run": "1c__run"}
    assert (
        decode(gemini.assistant("", [ours], NO_NATIVE, names))[0]["parts"][0]["functionCall"][
            "name"
        ]
        == declared
    )
    assert (
        decode(gemini.results([(ours, ToolResult())], names))[0]["parts"][0]["functionResponse"][
            "name"
        ]
        == declared
    )


def test_the_namespace_that_models_write_before_a_name_is_taken_off() -> None:
    assert (
        parse_plain(answer(call("default_api.read"), call("default_api:read"))).calls[1].name
        == "read"
    )
    assert parse_plain(answer(call("default_api.read"))).calls[0].name == "read"


# --- heads and bodies ---


def request(
    model: str = "gemini-2.5-flash",
    system: str = "",
    tools: Any = (),
    stream: bool = False,
    **parameters: Any,
) -> dict[str, Any]:
    head = gemini.head(model, system, tools, parameters, {})
    return json.loads(gemini.body(head, [gemini.user([TextContent("hi")])], stream))


HI = [{"role": "user", "parts": [{"text": "hi"}]}]


def test_a_bare_request_is_its_contents() -> None:
    assert request() == {"contents": HI}
    assert request(stream=True) == {"contents": HI}
    assert json.loads(gemini.body(gemini.head("m", "", [], {}, {}), [], False)) == {"contents": []}


def test_prompt_and_tools_stand_before_the_contents_and_schemas_go_as_they_are() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/A"}},
        "$defs": {"A": {"type": ["string", "null"]}},
    }
    assert request(system="be kind", tools=[ToolDefinition("t", "does", schema)]) == {
        "systemInstruction": {"parts": [{"text": "be kind"}]},
        "tools": [
            {
                "functionDeclarations": [
                    {"name": "t", "description": "does", "parametersJsonSchema": schema}
                ]
            }
        ],
        "contents": HI,
    }


def test_every_setting_has_its_name_in_the_generation_config() -> None:
    assert request(
        temperature=0.5,
        top_p=0.9,
        max_output_tokens=7,
        stop=["x"],
        seed=3,
        prompt_caching=False,
        cache_key="k",
        host="h",
    ) == {
        "generationConfig": {
            "temperature": 0.5,
            "topP": 0.9,
            "maxOutputTokens": 7,
            "stopSequences": ["x"],
            "seed": 3,
        },
        "contents": HI,
    }


def test_structured_output_is_a_mime_type_and_a_schema() -> None:
    schema = {"type": "object"}
    response_format = {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": schema, "strict": True},
    }
    assert request(response_format=response_format)["generationConfig"] == {
        "responseMimeType": "application/json",
        "responseJsonSchema": schema,
    }
    assert request(response_format={"type": "json_object"})["generationConfig"] == {
        "responseMimeType": "application/json"
    }
    assert request(response_format={"type": "text"}) == {"contents": HI}


@pytest.mark.parametrize(
    ("model", "effort", "thinking"),
    [
        ("gemini-2.5-flash", "none", {"thinkingBudget": 0}),
        ("gemini-2.5-pro", "none", {"thinkingBudget": 128, "includeThoughts": True}),
        ("gemini-2.5-flash", "minimal", {"thinkingBudget": 512, "includeThoughts": True}),
        ("gemini-2.5-flash", "low", {"thinkingBudget": 2048, "includeThoughts": True}),
        ("models/gemini-2.5-pro", "medium", {"thinkingBudget": 8192, "includeThoughts": True}),
        ("gemini-2.5-flash-lite", "high", {"thinkingBudget": 24576, "includeThoughts": True}),
        ("gemini-3-flash-preview", "none", {"thinkingLevel": "MINIMAL", "includeThoughts": True}),
        ("gemini-3.6-flash", "minimal", {"thinkingLevel": "MINIMAL", "includeThoughts": True}),
        ("gemini-3.7-flash", "minimal", {"thinkingLevel": "LOW", "includeThoughts": True}),
        ("gemini-3.1-pro-preview", "minimal", {"thinkingLevel": "LOW", "includeThoughts": True}),
        ("gemini-3-pro-preview", "medium", {"thinkingLevel": "HIGH", "includeThoughts": True}),
        ("gemini-3.1-pro-preview", "medium", {"thinkingLevel": "MEDIUM", "includeThoughts": True}),
        ("gemini-4-argon", "xhigh", {"thinkingLevel": "HIGH", "includeThoughts": True}),
        ("gemini-flash-latest", "minimal", {"thinkingLevel": "LOW", "includeThoughts": True}),
        (
            "publishers/google/models/gemini-3-flash-preview",
            "low",
            {"thinkingLevel": "LOW", "includeThoughts": True},
        ),
    ],
)
def test_effort_is_a_level_or_a_budget_that_the_model_has(
    model: str, effort: str, thinking: dict[str, Any]
) -> None:
    assert request(model, reasoning_effort=effort)["generationConfig"]["thinkingConfig"] == thinking


def test_a_budget_goes_before_effort_and_nothing_means_nothing() -> None:
    assert request("gemini-3-pro", reasoning_budget=99, reasoning_effort="low")["generationConfig"][
        "thinkingConfig"
    ] == {
        "thinkingBudget": 99,
        "includeThoughts": True,
    }
    assert request(reasoning_budget=0)["generationConfig"]["thinkingConfig"] == {
        "thinkingBudget": 0
    }
    assert "generationConfig" not in request()


@pytest.mark.parametrize(
    "parameters",
    [
        {"parallel_tool_calls": False},
        {"reasoning_effort": "enormous"},
        {"seed": 2**31},
        {"extra_body": {"contents": []}},
    ],
)
def test_what_the_api_cannot_be_told_is_a_wrong_setting(parameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(parameters))):
        request(**parameters)


def test_parallel_calls_are_what_the_api_does_anyway() -> None:
    assert request(parallel_tool_calls=True) == {"contents": HI}


def test_extra_body_adds_to_what_is_ours_and_replaces_the_rest() -> None:
    extra = {
        "generationConfig": {
            "topK": 4,
            "temperature": 1,
            "thinkingConfig": {"includeThoughts": False},
        },
        "tools": [{"googleSearch": {}}],
        "safetySettings": [],
        "systemInstruction": {"role": "user"},
        "toolConfig": {"functionCallingConfig": {"mode": "VALIDATED"}},
    }
    request_body = request(
        system="s",
        tools=[ToolDefinition("t", "", {})],
        temperature=0.1,
        reasoning_budget=5,
        extra_body=extra,
    )
    assert request_body["generationConfig"] == {
        "temperature": 1,
        "topK": 4,
        "thinkingConfig": {"thinkingBudget": 5, "includeThoughts": False},
    }
    assert [list(tool) for tool in request_body["tools"]] == [
        ["functionDeclarations"],
        ["googleSearch"],
    ]
    assert request_body["systemInstruction"] == {"parts": [{"text": "s"}], "role": "user"}
    assert (request_body["safetySettings"], request_body["toolConfig"]) == ([], extra["toolConfig"])


@pytest.mark.parametrize(
    ("theirs", "sent"),
    [
        ({"thinkingLevel": "LOW"}, {"thinkingLevel": "LOW", "includeThoughts": True}),
        ({"thinkingBudget": 9}, {"thinkingBudget": 9, "includeThoughts": True}),
        ({"includeThoughts": False}, {"thinkingBudget": 5, "includeThoughts": False}),
    ],
)
def test_a_level_in_extra_body_replaces_a_budget(theirs: Any, sent: Any) -> None:
    """The API refuses both together."""
    extra = {"generationConfig": {"thinkingConfig": theirs}}
    request_body = request(reasoning_budget=5, extra_body=extra)
    assert request_body["generationConfig"]["thinkingConfig"] == sent


def test_settings_of_both_hosts_pass_through_extra_body() -> None:
    extra = {
        "tools": [{"googleSearch": {}}, {"codeExecution": {}}, {"fileSearch": {"topK": 1}}],
        "toolConfig": {
            "includeServerSideToolInvocations": True,
            "functionCallingConfig": {"mode": "ANY", "streamFunctionCallArguments": True},
        },
        "safetySettings": [{"category": "c", "threshold": "OFF"}],
        "labels": {"team": "a"},
        "serviceTier": "flex",
        "generationConfig": {
            "responseModalities": ["TEXT", "IMAGE"],
            "responseLogprobs": True,
            "logprobs": 2,
            "responseJsonSchema": {"type": "object"},
            "mediaResolution": "MEDIA_RESOLUTION_LOW",
            "imageConfig": {"aspectRatio": "16:9"},
        },
    }
    request_body = request(tools=[ToolDefinition("t", "", {})], temperature=0.5, extra_body=extra)
    assert request_body["tools"][1:] == extra["tools"]
    assert request_body["generationConfig"] == {"temperature": 0.5, **extra["generationConfig"]}
    for key in ("toolConfig", "safetySettings", "labels", "serviceTier"):
        assert request_body[key] == extra[key]


def test_beside_a_cache_stand_neither_prompt_nor_tools() -> None:
    request_body = request(
        system="s",
        tools=[ToolDefinition("t", "", {})],
        temperature=0,
        extra_body={"cachedContent": "cachedContents/1"},
    )
    assert request_body == {
        "cachedContent": "cachedContents/1",
        "generationConfig": {"temperature": 0},
        "contents": HI,
    }


def test_fragments_are_joined_as_they_are() -> None:
    fragments = [
        gemini.user([TextContent("a")]),
        gemini.assistant("b", [], NO_NATIVE, {}),
        gemini.user([TextContent("c")]),
    ]
    head = gemini.head("m", "", [], {"seed": 1}, {})
    body = gemini.body(head, fragments, True)
    assert body == b'{"generationConfig":{"seed":1},"contents":[' + b",".join(fragments) + b"]}"
    assert len(fragments) == 3


# --- plain answers ---


def test_a_plain_answer_is_its_text_and_nothing_native_is_kept() -> None:
    usage = {
        "promptTokenCount": 10,
        "toolUsePromptTokenCount": 5,
        "candidatesTokenCount": 7,
        "thoughtsTokenCount": 3,
        "cachedContentTokenCount": 4,
        "totalTokenCount": 25,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 10}],
    }
    completion = parse_plain(
        answer(
            {"text": "hel"},
            {"text": "lo"},
            usage=usage,
            avgLogprobs=-0.1,
            safetyRatings=[{"category": "X"}],
        )
    )
    assert completion == Completion(
        "hello",
        usage=Usage(15, 10, 4, 0, 3),
        model="gemini-test",
        wire="gemini",
        response_id="r1",
        details=AnswerDetails(filters=({"category": "X"},), provider_details={"avgLogprobs": -0.1}),
    )


def test_plain_calls_need_no_native_and_arguments_may_be_left_out() -> None:
    completion = parse_plain(answer(call("a", "i", x=1), {"functionCall": {"name": "b"}}))
    assert completion.calls == (ToolCall("", "a", {"x": 1}, "i"), ToolCall("", "b", {}))
    assert (completion.stop_reason, completion.native) == ("tool_calls", NO_NATIVE)


def test_arguments_that_are_no_object_are_an_invalid_call() -> None:
    completion = parse_plain(answer({"functionCall": {"name": "b", "args": [1]}}))
    assert "an array" in completion.calls[0].invalid
    assert completion.calls[0].raw == "[1]"
    signed = parse_plain(
        answer({"functionCall": {"name": "b", "args": [1]}, "thoughtSignature": "c2ln"})
    )
    assert echo(signed)["parts"] == [{**call("b", invalid_json="[1]"), "thoughtSignature": "c2ln"}]
    text = parse_plain(
        answer({"functionCall": {"name": "b", "args": '{"x": 1}'}, "thoughtSignature": "c2ln"})
    )
    assert echo(text)["parts"] == [{**call("b", x=1), "thoughtSignature": "c2ln"}]


@pytest.mark.parametrize(
    "part",
    [
        {"text": "a", "thoughtSignature": "c2ln"},
        {"text": "", "thoughtSignature": "c2ln"},
        {"text": "hm", "thought": True},
        {"executableCode": {"language": "PYTHON", "code": "1", "id": "x"}},
        {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}},
        {"inlineData": {"mimeType": "image/png", "data": "AAAA"}},
        {"fileData": {"fileUri": "gs://a"}},
        {"toolCall": {"toolType": "GOOGLE_SEARCH_WEB"}},
        {"of_tomorrow": {"deep": [1, None]}},
        {"functionCall": {"name": "t", "args": {}, "novel": 1}, "thoughtSignature": "c2ln"},
    ],
)
def test_a_part_that_says_more_is_kept_and_goes_back(part: dict[str, Any]) -> None:
    completion = parse_plain(answer({"text": "x"}, part))
    assert native(completion) == {"content": {"parts": [{"text": "x"}, part], "role": "model"}}
    assert echo(completion) == native(completion)["content"]
    assert same(parse_stream(sse(answer({"text": "x"}, finish=None), answer(part))), completion)


def test_thoughts_are_reasoning_and_text_is_not() -> None:
    completion = parse_plain(
        answer(
            {"text": "let me ", "thought": True}, {"text": "see", "thought": True}, {"text": "4"}
        )
    )
    assert (completion.reasoning, completion.text) == ("let me see", "4")


def test_a_signature_alone_gets_a_text_and_an_empty_part_goes_since_the_api_refuses_both() -> None:
    completion = parse_plain(answer({}, {"text": ""}, {"text": "x"}, {"thoughtSignature": "c2ln"}))
    assert echo(completion)["parts"] == [{"text": "x"}, {"text": "", "thoughtSignature": "c2ln"}]


def test_text_behind_a_call_stays_behind_it() -> None:
    completion = parse_plain(
        answer({**call("a"), "thoughtSignature": "c2ln"}, {"text": "I called a."})
    )
    assert [next(iter(part)) for part in echo(completion)["parts"]] == ["functionCall", "text"]
    assert native(parse_plain(answer(call("a"), {"text": "I called a."})))


def test_the_role_is_set_where_a_server_leaves_it_out() -> None:
    answer = gemini.parse(
        b'{"candidates":[{"content":{"parts":[{"text":"a","thoughtSignature":"c2ln"}]},"finishReason":"STOP"}]}'
    )
    assert echo(answer) == {"parts": [{"text": "a", "thoughtSignature": "c2ln"}], "role": "model"}


def test_sources_are_details_and_do_not_go_back() -> None:
    grounding = {"webSearchQueries": ["q"], "groundingChunks": [{"web": {"uri": "u"}}]}
    citations = {"citationSources": [{"startIndex": 0, "uri": "c"}]}
    completion = parse_plain(
        answer(
            {"text": "a"},
            groundingMetadata=grounding,
            citationMetadata=citations,
            urlContextMetadata={},
        )
    )
    assert completion.native == NO_NATIVE
    assert [citation.url for citation in completion.citations] == ["u", "c"]
    assert echo(completion) == {"parts": [{"text": "a"}], "role": "model"}
    assert parse_plain(answer({"text": "a"}, groundingMetadata={})).details is None


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        ("STOP", "stop"),
        ("MAX_TOKENS", "length"),
        ("SAFETY", "content_filter"),
        ("RECITATION", "content_filter"),
        ("LANGUAGE", "content_filter"),
        ("BLOCKLIST", "content_filter"),
        ("PROHIBITED_CONTENT", "content_filter"),
        ("SPII", "content_filter"),
        ("IMAGE_SAFETY", "content_filter"),
        ("MODEL_ARMOR", "content_filter"),
        ("OTHER", "OTHER"),
        ("NO_IMAGE", "NO_IMAGE"),
        ("OF_TOMORROW", "OF_TOMORROW"),
        (None, "stop"),
    ],
)
def test_every_finish_reason_has_its_stop_reason(finish: str | None, reason: str) -> None:
    assert parse_plain(answer({"text": "a"}, finish=finish)).stop_reason == reason


@pytest.mark.parametrize(
    "finish",
    ["STOP", "UNEXPECTED_TOOL_CALL", "MALFORMED_FUNCTION_CALL", "TOO_MANY_TOOL_CALLS", None],
)
def test_calls_are_there_to_be_answered_whatever_the_server_thinks_of_them(
    finish: str | None,
) -> None:
    assert parse_plain(answer(call("nobody"), finish=finish)).stop_reason == "tool_calls"


def test_a_call_that_met_the_limit_or_the_filter_says_so() -> None:
    assert parse_plain(answer(call("a"), finish="MAX_TOKENS")).stop_reason == "length"
    assert parse_plain(answer(call("a"), finish="SAFETY")).stop_reason == "content_filter"


@pytest.mark.parametrize("parts", [[], [{"text": "I will now call"}]])
@pytest.mark.parametrize(
    "finish",
    [
        "MALFORMED_FUNCTION_CALL",
        "UNEXPECTED_TOOL_CALL",
        "TOO_MANY_TOOL_CALLS",
        "MALFORMED_RESPONSE",
    ],
)
def test_a_call_that_the_model_broke_is_no_answer_and_is_asked_for_again(
    finish: str, parts: list[Any]
) -> None:
    for parse in (lambda body: parse_plain(body), lambda body: parse_stream(sse(body))):
        with pytest.raises(BadResponse, match="print") as caught:
            parse(answer(*parts, finish=finish, finishMessage="Malformed function call: print("))
        assert (caught.value.retryable, caught.value.code) == (True, finish)


def test_an_unknown_end_without_a_word_is_asked_for_again_and_an_empty_answer_is_one() -> None:
    with pytest.raises(BadResponse, match="OTHER"):
        parse_plain(answer(finish="OTHER"))
    assert parse_plain({"candidates": [{"finishReason": "STOP"}]}) == Completion(wire="gemini")
    assert (
        parse_plain(
            {"candidates": [{"content": {"role": "model"}, "finishReason": "SAFETY"}]}
        ).stop_reason
        == "content_filter"
    )


def test_a_missing_signature_is_not_asked_about_twice() -> None:
    with pytest.raises(BadRequest, match="signature") as caught:
        parse_plain(answer(finish="MISSING_THOUGHT_SIGNATURE"))
    assert not caught.value.retryable


BLOCKED = {
    "promptFeedback": {"blockReason": "PROHIBITED_CONTENT", "blockReasonMessage": "no"},
    "usageMetadata": {"promptTokenCount": 3},
}


def test_a_prompt_that_was_blocked_raises() -> None:
    for parse in (lambda body: parse_plain(body), lambda body: parse_stream(sse(body))):
        with pytest.raises(ContentFiltered, match="PROHIBITED_CONTENT: no") as caught:
            parse(BLOCKED)
        assert (caught.value.code, caught.value.retryable) == ("PROHIBITED_CONTENT", False)


def test_a_filter_that_stops_a_stream_leaves_what_came() -> None:
    completion = parse_stream(sse(answer({"text": "so far"}, finish=None), BLOCKED))
    assert (completion.text, completion.stop_reason) == ("so far", "content_filter")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"{}",
        b"[]",
        b'"text"',
        b"null",
        b'{"candidates":[]}',
        b'{"candidates":null,"promptFeedback":{}}',
        b'{"candidates":[1]}',
        b'{"candidates":[{"content":5}]}',
        b'{"candidates":[{"content":{"parts":{}}}]}'.replace(b"{}", b'{"a":1}'),
        b'{"candidates":[{"content":{"parts":["x"]}}]}',
        b'{"candidates":[{"content":{"parts":[{"text":5}]}}]}',
        b'{"candidates":[{"content":{"parts":[{"functionCall":{}}]}}]}',
        b'{"candidates":[{"content":{"parts":[{"functionCall":"x"}]}}]}',
        b'{"candidates":[{"content":{"parts":[{"functionCall":{"name":"a","partialArgs":[{"jsonPath":"$.a"}]}}]}}]}',
        b"[" * 100_000,
        b'{"candidates":[{"content":' + b"[" * 100_000,
        b'{"candidates":[{"content":{"parts":' + b"[" * 5000 + b"]" * 5000 + b"}}]}",
    ],
)
def test_what_is_no_answer_is_a_bad_response(body: bytes) -> None:
    with pytest.raises(BadResponse) as caught:
        gemini.parse(body)
    assert caught.value.retryable
    assert len(str(caught.value)) < 600


def test_an_error_with_status_200_is_that_error() -> None:
    error_body = {
        "error": {
            "code": 429,
            "message": "Resource has been exhausted",
            "status": "RESOURCE_EXHAUSTED",
        }
    }
    for body in (error_body, [error_body]):
        with pytest.raises(RateLimited, match="exhausted"):
            parse_plain(body)


def test_a_stream_as_a_json_array_is_read_too() -> None:
    completion = parse_plain(
        [
            answer({"text": "hel"}, finish=None),
            answer({"text": "lo"}, usage={"promptTokenCount": 1}),
        ]
    )
    assert (completion.text, completion.usage.input_tokens) == ("hello", 1)
    with pytest.raises(StreamInterrupted):
        parse_plain([answer({"text": "hel"}, finish=None)])


def test_text_that_is_not_quite_json_is_read() -> None:
    answer = gemini.parse(
        b'{"candidates":[{"content":{"parts":[{"text":"a\nb'
        b' \\ud83d","thoughtSignature":"c2ln"}]},"avgLogprobs":NaN}]}'
    )
    assert answer.text == "a\nb \ufffd"
    json.loads(gemini.assistant("", (), answer.native, {}))


# --- streams ---

STREAM = sse(
    answer(
        {"text": "Hm", "thought": True},
        finish=None,
        usage={"promptTokenCount": 5, "thoughtsTokenCount": 2},
    ),
    answer({"text": ", so", "thought": True}, finish=None),
    answer({"text": "Grüß "}, finish=None),
    answer({"text": "Gott 🎉"}, {"text": "!", "thoughtSignature": "c2lnMQ=="}, finish=None),
    answer(
        {"text": " ab"},
        {"executableCode": {"code": "1"}, "thoughtSignature": "c2lnMg=="},
        {"text": "c"},
        finish=None,
    ),
    answer(
        {**call("a", "i1", x="ü"), "thoughtSignature": "c2lnMw=="}, call("a", y=[1]), finish=None
    ),
    answer(
        {"text": ""},
        finish="STOP",
        usage={"promptTokenCount": 6, "candidatesTokenCount": 4, "cachedContentTokenCount": 1},
    ),
    answer(
        {"text": "", "thoughtSignature": "c2lnNA=="},
        finish=None,
        groundingMetadata={"webSearchQueries": ["q"]},
    ),
)
PARTS = [
    {"text": "Hm, so", "thought": True},
    {"text": "Grüß Gott 🎉"},
    {"text": "!", "thoughtSignature": "c2lnMQ=="},
    {"text": " ab"},
    {"executableCode": {"code": "1"}, "thoughtSignature": "c2lnMg=="},
    {"text": "c"},
    {**call("a", "i1", x="ü"), "thoughtSignature": "c2lnMw=="},
    call("a", y=[1]),
    {"text": "", "thoughtSignature": "c2lnNA=="},
]
WHOLE = parse_stream(STREAM)


def test_pieces_of_text_are_put_together_but_never_with_a_signed_one() -> None:
    assert native(WHOLE) == {"content": {"parts": PARTS, "role": "model"}}
    assert [call.arguments for call in WHOLE.server_calls if call.name == "google_search"] == [
        {"queries": ["q"]}
    ]
    assert (WHOLE.text, WHOLE.reasoning) == ("Grüß Gott 🎉! abc", "Hm, so")
    assert [(one.name, one.arguments, one.provider_id) for one in WHOLE.calls] == [
        ("a", {"x": "ü"}, "i1"),
        ("a", {"y": [1]}, ""),
    ]
    assert (WHOLE.stop_reason, WHOLE.model, WHOLE.response_id) == (
        "tool_calls",
        "gemini-test",
        "r1",
    )


def test_the_last_count_of_each_kind_is_the_usage() -> None:
    assert WHOLE.usage == Usage(6, 6, 1, 0, 2)


def test_a_stream_says_what_a_plain_answer_says() -> None:
    usage = {
        "promptTokenCount": 6,
        "candidatesTokenCount": 4,
        "thoughtsTokenCount": 2,
        "cachedContentTokenCount": 1,
    }
    assert same(
        parse_plain(answer(*PARTS, usage=usage, groundingMetadata={"webSearchQueries": ["q"]})),
        WHOLE,
    )


def test_deltas_tell_text_reasoning_and_calls() -> None:
    deltas: list[Delta] = []
    parse_stream(STREAM, deltas.append, 3)
    assert "".join(delta.text for delta in deltas if delta.kind == "text") == WHOLE.text
    assert "".join(delta.text for delta in deltas if delta.kind == "reasoning") == WHOLE.reasoning
    assert [delta for delta in deltas if delta.kind == "tool"] == [
        Delta("tool", '{"x":"ü"}', 0, "a"),
        Delta("tool", '{"y":[1]}', 1, "a"),
    ]


def test_a_stream_is_finished_by_its_reason_and_reads_on() -> None:
    parser = GeminiStream()
    parser.feed(sse(answer({"text": "a"}, finish="STOP")))
    assert (parser.finished, parser.done) == (True, False)
    parser.feed(
        sse(answer({"text": "b"}, finish="MAX_TOKENS"), answer({"text": "c"}, finish="STOP"))
    )
    completion = parser.finish()
    assert (completion.text, completion.stop_reason) == ("abc", "length")


def test_only_the_first_candidate_is_the_answer() -> None:
    other = {
        "candidates": [{"content": {"parts": [{"text": "B"}]}, "finishReason": "STOP", "index": 1}]
    }
    with pytest.raises(StreamInterrupted):
        parse_stream(sse(other))
    assert parse_stream(sse(answer({"text": "A"}), other)).text == "A"


def test_sources_of_several_chunks_are_all_kept() -> None:
    def cited(*uris: str) -> dict[str, Any]:
        return answer(
            {"text": "a"}, citationMetadata={"citationSources": [{"uri": uri} for uri in uris]}
        )

    completion = parse_stream(sse(cited("1"), cited("1", "2")))
    assert [citation.url for citation in completion.citations] == ["1", "2"]


@pytest.mark.parametrize(
    "tail",
    [
        sse(
            {"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}}
        ),
        sse(
            [
                {
                    "error": {
                        "code": 503,
                        "message": "The model is overloaded.",
                        "status": "UNAVAILABLE",
                    }
                }
            ]
        ),
        json.dumps(
            {
                "error": {
                    "code": 503,
                    "message": "The model is overloaded.",
                    "status": "UNAVAILABLE",
                }
            },
            indent=2,
        ).encode(),
        json.dumps(
            [
                {
                    "error": {
                        "code": 503,
                        "message": "The model is overloaded.",
                        "status": "UNAVAILABLE",
                    }
                }
            ],
            indent=2,
        ).encode()
        + b"\n",
    ],
)
@pytest.mark.parametrize("size", [1, 7, 0])
def test_an_error_in_a_stream_is_that_error(tail: bytes, size: int) -> None:
    with pytest.raises(ServerError, match="overloaded"):
        parse_stream(sse(answer({"text": "a"}, finish=None)) + tail, None, size)


@pytest.mark.parametrize(
    "event",
    [
        b"{",
        b"[",
        b"[1]",
        b"5",
        b"null",
        b'{"candidates":5}',
        b'{"candidates":["x"]}',
        b'{"candidates":[{"content":"x"}]}',
        b'{"candidates":[{"content":{"parts":["x"]}}]}',
        b'{"candidates":[{"content":{"parts":[{"text":5}]}}]}',
        b'{"candidates":[{"content":{"parts":[{"functionCall":"x"}]}}]}',
        b'{"usageMetadata":5}',
        b'{"candidates":' + b"[" * 100_000,
        b'{"candidates":[' + b'{"content":' * 50_000,
    ],
)
def test_what_is_no_chunk_is_a_bad_response(event: bytes) -> None:
    parser = GeminiStream()
    with pytest.raises(BadResponse):
        parser.feed(b"data: " + event + b"\n\n")


def test_an_end_mark_does_no_harm_and_halves_of_a_character_are_joined() -> None:
    one, two = (
        b'{"candidates":[{"content":{"parts":[{"text":"\\ud83c"}]}}]}',
        b'{"candidates":[{"content":{"parts":[{"text":"\\udf89"}]},"finishReason":"STOP"}]}',
    )
    parser = GeminiStream()
    parser.feed(b"data: " + one + b"\n\ndata: " + two + b"\n\ndata: [DONE]\n\n")
    assert parser.done
    assert parser.finish().text == "🎉"


# --- streams at any cut ---


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
@settings(max_examples=examples(150), deadline=None)
def test_any_split_gives_the_same(cuts: list[int]) -> None:
    parser = GeminiStream()
    points = [0, *sorted(cuts), len(STREAM)]
    for start, end in itertools.pairwise(points):
        parser.feed(STREAM[start:end])
    assert parser.finish() == WHOLE


END = STREAM.index(b"\r\n", STREAM.index(b'"finishReason"'))  # of the chunk with the last mark


@given(st.integers(0, len(STREAM)), st.integers(0, 60))
@settings(max_examples=examples(300), deadline=None)
def test_any_truncation_is_an_interruption_unless_the_end_had_come(end: int, size: int) -> None:
    try:
        answer = parse_stream(STREAM[:end], None, size)
    except StreamInterrupted:
        assert end < END
        return
    assert end >= END
    assert (answer.text, answer.calls, answer.stop_reason) == (
        WHOLE.text,
        WHOLE.calls,
        WHOLE.stop_reason,
    )
    assert (
        native(answer)["content"]["parts"][:-1] == PARTS[:-1]
        or native(answer)["content"]["parts"] == PARTS[:-1]
    )


@given(
    st.lists(
        st.tuples(st.integers(0, len(STREAM) - 1), st.integers(0, 255)), min_size=1, max_size=6
    )
)
@settings(max_examples=examples(400), deadline=None)
def test_any_corruption_is_an_answer_or_a_typed_error(changes: list[tuple[int, int]]) -> None:
    data = bytearray(STREAM)
    for at, value in changes:
        data[at] = value
    try:
        answer = parse_stream(bytes(data))
    except LLMError:
        return
    fragment = gemini.assistant(answer.text, answer.calls, answer.native, {})
    assert json.loads(fragment)["role"] == "model"


KEYS = [
    "candidates",
    "content",
    "parts",
    "text",
    "thought",
    "thoughtSignature",
    "functionCall",
    "name",
    "args",
    "id",
    "finishReason",
    "index",
    "finishMessage",
    "usageMetadata",
    "promptTokenCount",
    "promptFeedback",
    "blockReason",
    "modelVersion",
    "responseId",
    "groundingMetadata",
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)
    ),
    max_leaves=12,
)


@pytest.mark.slow
@given(
    st.dictionaries(st.sampled_from(KEYS), JSON)
    | st.builds(lambda part: answer(part), st.dictionaries(st.sampled_from(KEYS), JSON))
)
@settings(max_examples=examples(600), deadline=None)
def test_any_json_is_an_answer_or_a_typed_error_plain_or_streamed(body: Any) -> None:
    for parse in (lambda: parse_plain(body), lambda: parse_stream(sse(body))):
        try:
            completion = parse()
        except LLMError:
            continue
        fragment = gemini.assistant(completion.text, completion.calls, completion.native, {})
        assert not fragment or json.loads(fragment)["parts"]


# --- errors, and through an LLM ---


def test_an_error_response_is_typed() -> None:
    body = {
        "error": {
            "code": 404,
            "message": "models/x is not found for API version v1beta",
            "status": "NOT_FOUND",
        }
    }
    error = gemini.error(
        404, {}, json.dumps(body).encode(), "https://h/v1beta/models/x:generateContent", "x"
    )
    assert isinstance(error, ModelNotFound)
    assert error.code == "NOT_FOUND"


def test_an_llm_asks_streams_and_answers_its_calls() -> None:
    replies: list[Any] = [
        STREAM.decode(),
        answer({"text": "done"}, usage={"promptTokenCount": 1, "candidatesTokenCount": 1}),
    ]
    with ModelServer(replies) as server:
        llm = LLM(
            "gemini-3-flash",
            "",
            f"{server.url}?trace=1",
            wire="gemini",
            stream=True,
            headers={"Authorization": "Bearer t"},
            max_retries=0,
        )
        transcript = Transcript.from_messages("go")
        first = llm.completion(
            transcript, [ToolDefinition("a", "", {"type": "object"})], system="s"
        )
        assert first.calls == WHOLE.calls
        transcript.append(first)
        for one in first.calls:
            transcript.append((one, ToolResult("ok")))
        assert (
            llm.completion(
                transcript, [ToolDefinition("a", "", {"type": "object"})], system="s"
            ).text
            == "done"
        )
        requests = server.requests
    assert requests[0].path == "/v1/models/gemini-3-flash:streamGenerateContent?alt=sse&trace=1"
    assert requests[0].headers["authorization"] == "Bearer t"
    assert "x-goog-api-key" not in requests[0].headers
    contents = requests[1].json["contents"]
    assert contents[:1] == requests[0].json["contents"]
    assert contents[1]["parts"] == PARTS
    assert [part["functionResponse"] for part in contents[2]["parts"]] == [
        {"name": "a", "response": {"output": "ok"}, "id": "i1"},
        {"name": "a", "response": {"output": "ok"}},
    ]


def roles(*fragments: bytes) -> list[str]:
    data = json.loads(gemini.body(gemini.head("m", "", (), {}, {}), fragments, False))
    return [content["role"] for content in data["contents"]]


def test_a_request_begins_and_ends_with_a_user() -> None:
    """The first messages may be condensed away, and an answer of another provider may end in a
    pause."""
    hi, model_text = gemini.user((TextContent("hi"),)), gemini.assistant("so", (), NO_NATIVE, {})
    native = parse_plain(
        answer({"functionCall": {"name": "f", "args": {}}, "thoughtSignature": "c2ln"})
    )
    called = gemini.assistant("", native.calls, native.native, {})
    result = gemini.results([(native.calls[0], ToolResult("x"))], {})
    assert roles(called, result) == ["user", "model", "user"]
    assert roles(hi, model_text) == ["user", "model", "user"]
    assert roles(model_text) == ["user", "model", "user"]
    assert roles(hi, model_text, hi) == ["user", "model", "user"]
