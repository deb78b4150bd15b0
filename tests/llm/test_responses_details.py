"""Details of answers of the Responses API: parts by phase, citations, calls that the provider
ran, pictures, refusals and fields of the whole response. They are the same plain and
streamed."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from holdfast import Agent, Conversation
from holdfast.answer import Citation, ServerToolCall, TextPart, TokenLogprob
from holdfast.content import (
    AudioContent,
    Content,
    EmbeddedResource,
    FileContent,
    ImageContent,
    Message,
    ResourceLink,
    TextContent,
    ToolCall,
    ToolResult,
)
from holdfast.errors import BadRequest, LLMError, RateLimited, ServerError, StreamInterrupted
from holdfast.llm import LLM, Completion, Delta, Transcript
from holdfast.llm.wires import openai_responses
from tests.llm.test_openai_responses import (
    call_item,
    echo,
    events,
    items,
    message_item,
    parse_plain,
    parse_stream,
    response,
    sse,
)
from tests.model_server import ModelServer

PNG = b"\x89PNG fake"
PNG_64 = base64.b64encode(PNG).decode()


def parse(answer: dict[str, Any], deltas_out: list[Delta] | None = None) -> Completion:
    """Return the answer, which is the same plain and streamed; append its deltas to
    `deltas_out`."""
    plain, deltas = parse_plain(answer), list[Delta]()
    stream = parse_stream(sse(answer), deltas.append)
    assert stream.details == plain.details
    assert (stream.text, stream.stop_reason, stream.calls) == (
        plain.text,
        plain.stop_reason,
        plain.calls,
    )
    assert "".join(delta.text for delta in deltas if delta.kind == "text") == plain.text
    assert Completion.from_json(plain.to_json()) == plain
    if deltas_out is not None:
        deltas_out += deltas
    return plain


def commentary(text: str, id: str = "msg_0") -> dict[str, Any]:
    return message_item(text, id=id, phase="commentary")


def final(text: str, id: str = "msg_9") -> dict[str, Any]:
    return message_item(text, id=id, phase="final_answer")


# --- parts ---


def test_texts_of_several_messages_are_parts_and_do_not_run_together() -> None:
    answer = parse(response(commentary("I look."), commentary("Found it.", "msg_1"), final("42")))
    assert answer.text == "I look.\n\nFound it.\n\n42"
    assert answer.parts == (
        TextPart("I look.", "commentary"),
        TextPart("Found it.", "commentary"),
        TextPart("42", "final"),
    )
    assert answer.final_text == "42"


@pytest.mark.parametrize(
    ("output", "answer"),
    [
        ([message_item("a", "b")], "ab"),
        ([message_item("a"), message_item("b", id="msg_2")], "a\n\nb"),
        ([commentary("a"), message_item("b")], "b"),
        ([commentary("a")], "a"),
        ([final("a"), final("b", "msg_8")], "a\n\nb"),
        ([commentary("a"), final("b"), final("c", "msg_8")], "b\n\nc"),
        ([message_item(""), message_item("b", id="msg_2")], "b"),
        ([], ""),
    ],
)
def test_the_answer_is_the_final_parts_where_phases_tell_them_apart(
    output: list[Any], answer: str
) -> None:
    assert parse(response(*output)).final_text == answer


def test_a_plain_answer_has_no_details() -> None:
    assert parse(response(message_item("a"))).details is None
    assert parse(response(message_item("a"))).parts == (TextPart("a"),)


def test_a_conversation_answers_with_the_final_part_and_sends_all_back() -> None:
    output = [commentary("I look."), final("42")]
    with ModelServer([response(*output), response(message_item("bye"))]) as server:
        llm = LLM("gpt-5", "key", server.url, wire="openai_responses")
        with Conversation(Agent(llm)) as conversation:
            conversation.send_message("go")
            assert conversation.run().answer == "42"
            conversation.send_message("more")
            conversation.run()
        assert server.requests[1].json["input"][1:3] == output


# --- citations, logprobs ---


def test_annotations_are_citations_with_places_in_the_text() -> None:
    text = "See the news and file."
    message = message_item(text, id="msg_2")
    message["content"][0]["annotations"] = [
        {
            "type": "url_citation",
            "url": "https://x",
            "title": "X",
            "start_index": 8,
            "end_index": 12,
        },
        {"type": "file_citation", "file_id": "f_1", "filename": "a.pdf", "index": 3},
        {
            "type": "container_file_citation",
            "container_id": "cntr_1",
            "file_id": "cfile_1",
            "filename": "plot.png",
            "start_index": 17,
            "end_index": 21,
        },
        {"type": "file_path", "file_id": "f_2", "index": 5},
        {"type": "of_tomorrow", "page": 2},
    ]
    answer = parse(response(message_item("First."), message))
    start = len("First.\n\n")
    assert answer.citations == (
        Citation("https://x", "X", start=start + 8, end=start + 12),
        Citation(title="a.pdf", source="f_1", details={"type": "file_citation", "index": 3}),
        Citation(
            title="plot.png",
            source="cfile_1",
            start=start + 17,
            end=start + 21,
            details={"type": "container_file_citation", "container_id": "cntr_1"},
        ),
        Citation(source="f_2", details={"type": "file_path", "index": 5}),
        Citation(details={"type": "of_tomorrow", "page": 2}),
    )
    first, third = answer.citations[0], answer.citations[2]
    assert answer.text[first.start : first.end] == "news"
    assert answer.text[third.start : third.end] == "file"
    assert answer.container == "cntr_1"
    assert echo(response(message)) == [message]


def test_log_probabilities_are_those_of_the_tokens() -> None:
    message = message_item("Hi")
    message["content"][0]["logprobs"] = [
        {
            "token": "Hi",
            "bytes": [72, 105],
            "logprob": -0.25,
            "top_logprobs": [
                {"token": "Hi", "bytes": [], "logprob": -0.25},
                {"token": "Ho", "bytes": [], "logprob": -3},
            ],
        }
    ]
    assert parse(response(message)).logprobs == (
        TokenLogprob("Hi", -0.25, (("Hi", -0.25), ("Ho", -3.0))),
    )


# --- calls that the provider ran ---


SOURCES = [{"type": "url", "url": "https://x"}]
RESULTS = [{"file_id": "f_1", "filename": "a.txt", "score": 0.5, "text": "t", "attributes": {}}]
LOGS = [{"type": "logs", "logs": "4"}]
TOOLS = [{"name": "ask", "input_schema": {"type": "object"}, "description": None}]


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (
            {
                "type": "web_search_call",
                "id": "ws_1",
                "status": "completed",
                "action": {"type": "search", "query": "q", "queries": None, "sources": SOURCES},
            },
            ServerToolCall(
                "web_search", "ws_1", {"type": "search", "query": "q"}, {"sources": SOURCES}
            ),
        ),
        (
            {
                "type": "web_search_call",
                "id": "ws_1",
                "status": "failed",
                "action": {"type": "open_page", "url": "https://x"},
            },
            ServerToolCall(
                "web_search", "ws_1", {"type": "open_page", "url": "https://x"}, is_error=True
            ),
        ),
        (
            {
                "type": "file_search_call",
                "id": "fs_1",
                "status": "completed",
                "queries": ["q"],
                "results": RESULTS,
            },
            ServerToolCall("file_search", "fs_1", {"queries": ["q"]}, RESULTS),
        ),
        (
            {
                "type": "code_interpreter_call",
                "id": "ci_1",
                "status": "completed",
                "code": "2+2",
                "container_id": "cntr_1",
                "outputs": LOGS,
            },
            ServerToolCall("code_interpreter", "ci_1", {"code": "2+2"}, LOGS),
        ),
        (
            {
                "type": "image_generation_call",
                "id": "ig_1",
                "status": "completed",
                "result": PNG_64,
                "output_format": "webp",
                "revised_prompt": "a cat",
            },
            ServerToolCall(
                "image_generation", "ig_1", {"output_format": "webp", "revised_prompt": "a cat"}
            ),
        ),
        (
            {
                "type": "mcp_call",
                "id": "mcp_1",
                "server_label": "wiki",
                "name": "ask",
                "arguments": '{"q": 1}',
                "output": "yes",
                "error": None,
            },
            ServerToolCall("wiki.ask", "mcp_1", {"q": 1}, "yes"),
        ),
        (
            {
                "type": "mcp_call",
                "id": "mcp_1",
                "server_label": "wiki",
                "name": "ask",
                "arguments": "{}",
                "output": None,
                "error": {"type": "mcp_protocol_error", "code": 1, "message": "m"},
            },
            ServerToolCall(
                "wiki.ask",
                "mcp_1",
                None,
                {"type": "mcp_protocol_error", "code": 1, "message": "m"},
                True,
            ),
        ),
        (
            {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "wiki", "tools": TOOLS},
            ServerToolCall("mcp_list_tools", "mcpl_1", {"server_label": "wiki"}, TOOLS),
        ),
        (
            {"type": "tomorrow_call", "id": "t_1", "status": "completed", "action": {"a": 1}},
            ServerToolCall("tomorrow", "t_1", {"action": {"a": 1}}),
        ),
    ],
)
def test_calls_that_the_provider_ran_are_details_and_go_back_verbatim(
    item: dict[str, Any], expected: ServerToolCall
) -> None:
    answer = response(item, message_item("a"))
    completion = parse(answer)
    assert completion.server_calls == (expected,)
    assert completion.calls == ()
    assert items(openai_responses.assistant("a", (), completion.native, {}))[1] == message_item("a")


def test_a_search_for_tools_and_a_program_have_the_output_of_their_own_item() -> None:
    output = [
        {
            "type": "tool_search_call",
            "id": "tsc_1",
            "call_id": "c_1",
            "execution": "server",
            "arguments": {"paths": ["x"]},
        },
        {"type": "tool_search_output", "id": "tso_1", "call_id": "c_1", "tools": TOOLS},
        {"type": "program", "id": "p_1", "call_id": "c_2", "code": "1", "fingerprint": "f"},
        {"type": "program_output", "id": "po_1", "call_id": "c_2", "result": "1"},
    ]
    assert parse(response(*output, message_item("a"))).server_calls == (
        ServerToolCall("tool_search", "c_1", {"paths": ["x"]}, TOOLS),
        ServerToolCall("program", "c_2", {"code": "1"}, "1"),
    )


def test_generated_pictures_are_media_and_no_empty_answer() -> None:
    item = {
        "type": "image_generation_call",
        "id": "ig_1",
        "status": "completed",
        "result": PNG_64,
        "output_format": "webp",
    }
    answer = parse(response(item))
    assert answer.media == (ImageContent(PNG, "image/webp"),)
    with ModelServer([response(item)]) as server:
        llm = LLM("gpt-5", "key", server.url, wire="openai_responses")
        conversation = Conversation(Agent(llm))
        conversation.send_message("draw")
        assert conversation.run().status.value == "finished"
        assert len(server.requests) == 1  # no second request for an answer
        conversation.close()


def test_pictures_that_code_made_are_media_and_its_container_is_known() -> None:
    item = {
        "type": "code_interpreter_call",
        "id": "ci_1",
        "code": "plot()",
        "container_id": "cntr_1",
        "outputs": [
            {"type": "image", "url": f"data:image/jpeg;base64,{PNG_64}"},
            {"type": "image", "url": "https://x/plot"},
        ],
    }
    answer = parse(response(item, message_item("a")))
    assert answer.media == (
        ImageContent(PNG, "image/jpeg"),
        FileContent(url="https://x/plot", mime_type="image/png"),
    )
    assert answer.container == "cntr_1"


@pytest.mark.parametrize(
    ("url", "media"),
    [
        ("/x.png", ResourceLink("/x.png", mime_type="image/png")),
        ("data:image/gif,GIF", ImageContent(b"GIF", "image/gif")),
        ("Data:;base64,aGk=", ImageContent(b"hi", "image/png")),
    ],
)
def test_an_odd_address_of_a_picture_costs_no_answer(url: str, media: Content) -> None:
    outputs = [{"type": "image", "url": url}]
    item = {"type": "code_interpreter_call", "id": "ci_1", "code": "plot()", "outputs": outputs}
    answer = parse(response(item, message_item("Plotted.")))
    assert (answer.text, answer.media) == ("Plotted.", (media,))


# --- refusals, the response ---


def test_a_refusal_is_no_answer_and_is_not_asked_about() -> None:
    refused = message_item()
    refused["content"] = [{"type": "refusal", "refusal": "I will not."}]
    answer = parse(response(refused))
    assert (answer.text, answer.refusal, answer.stop_reason) == ("", "I will not.", "refusal")
    with ModelServer([response(refused)]) as server:
        llm = LLM("gpt-5", "key", server.url, wire="openai_responses")
        with Conversation(Agent(llm)) as conversation:
            conversation.send_message("go")
            state = conversation.run()
        assert (state.status.value, state.answer) == ("finished", "")
        assert len(server.requests) == 1


def test_fields_of_the_whole_response_are_kept() -> None:
    moderation = {"input": {"flagged": False}, "output": {"flagged": True}}
    azure = [{"blocked": False, "content_filter_results": {}}]
    answer = parse(
        response(
            message_item("a"),
            status="incomplete",
            incomplete_details={"reason": "max_output_tokens"},
            service_tier="flex",
            moderation=moderation,
            content_filters=azure,
            conversation={"id": "conv_1"},
            prompt_cache_retention="24h",
            metadata={},
            background=False,
            previous_response_id=None,
        )
    )
    assert answer.stop_reason == "length"
    assert answer.service_tier == "flex"
    assert answer.provider_cost is None
    assert answer.filters == (moderation, *azure)
    assert answer.provider_details == {
        "conversation": {"id": "conv_1"},
        "incomplete_details": {"reason": "max_output_tokens"},
        "prompt_cache_retention": "24h",
    }


@pytest.mark.parametrize(
    ("counts", "cost"),
    [({"cost": 0.25}, 0.25), ({"cost_in_usd_ticks": 5_000_000_000}, 0.5), ({"cost": "x"}, None)],
    ids=["OpenRouter", "xAI", "no number"],
)
def test_the_providers_price_is_kept(counts: dict[str, Any], cost: float | None) -> None:
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2, **counts}
    assert parse(response(message_item("a"), usage=usage)).provider_cost == cost


@pytest.mark.parametrize("value", [3, "x", [], [3], {"a": 1}, None, True])
def test_details_of_another_form_do_not_spoil_an_answer(value: Any) -> None:
    message = message_item("a")
    message["content"][0] |= {"annotations": value, "logprobs": value}
    generated = {"type": "image_generation_call", "result": value, "output_format": value}
    code = {"type": "code_interpreter_call", "outputs": value, "container_id": value}
    answer = parse(
        response(
            message,
            generated,
            code,
            {"type": "web_search_call", "action": value},
            {"type": "mcp_call", "arguments": value, "name": value, "server_label": value},
            service_tier=value,
            moderation=value,
            content_filters=value,
        )
    )
    assert answer.text == "a"


def test_half_a_pair_of_surrogates_in_a_detail_is_replaced() -> None:
    message = message_item("a")
    message["content"][0]["annotations"] = [{"type": "url_citation", "title": "\ud800x", "url": ""}]
    for completion in (parse_plain(response(message)), parse_stream(events_of(message))):
        assert completion.citations[0].title == "\N{REPLACEMENT CHARACTER}x"
        assert completion.to_json()


def events_of(item: dict[str, Any]) -> str:
    items = [
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": response(item)},
    ]
    return "".join(f"data: {json.dumps(event)}\n\n" for event in items)


# --- input ---


FILES = [
    (
        FileContent(PNG, "image/png"),
        {"type": "input_image", "image_url": f"data:image/png;base64,{PNG_64}", "detail": "auto"},
    ),
    (
        FileContent(url="https://x/a.png"),
        {"type": "input_image", "image_url": "https://x/a.png", "detail": "auto"},
    ),
    (
        FileContent(file_id="f_1", mime_type="image/png"),
        {"type": "input_image", "file_id": "f_1", "detail": "auto"},
    ),
    (
        FileContent(b"PDF", "application/pdf", name="a.pdf"),
        {
            "type": "input_file",
            "filename": "a.pdf",
            "file_data": "data:application/pdf;base64,UERG",
        },
    ),
    (
        FileContent(b"a,b", "text/csv"),
        {"type": "input_file", "filename": "file.csv", "file_data": "data:text/csv;base64,YSxi"},
    ),
    (
        FileContent(url="https://x/a.pdf"),
        {"type": "input_file", "file_url": "https://x/a.pdf"},
    ),
    (FileContent(file_id="f_2"), {"type": "input_file", "file_id": "f_2"}),
    (
        FileContent(url="gs://b/a.pdf", mime_type="application/pdf"),
        {
            "type": "input_text",
            "text": "[application/pdf gs://b/a.pdf: this model's API takes no such file]",
        },
    ),
    (
        FileContent(b"x", "video/mp4", name="a.mp4"),
        {
            "type": "input_text",
            "text": "[video/mp4 a.mp4, 1 bytes: this model's API takes no such file]",
        },
    ),
    (
        AudioContent(b"x", "audio/mpeg"),
        {
            "type": "input_text",
            "text": "[audio/mpeg, 1 bytes: this model's API takes no such file]",
        },
    ),
    (
        EmbeddedResource({"uri": "file:///c.pdf", "mimeType": "application/pdf", "blob": "UERG"}),
        {
            "type": "input_file",
            "filename": "c.pdf",
            "file_data": "data:application/pdf;base64,UERG",
        },
    ),
]


@pytest.mark.parametrize(("block", "part"), FILES)
def test_files_are_sent_by_bytes_address_or_id(block: Any, part: dict[str, Any]) -> None:
    call = ToolCall("1.0", "look", provider_id="c_1")
    transcript = Transcript([Message((TextContent("see"), block))])
    transcript.append(Completion("", calls=(call,)))
    transcript.append((call, ToolResult((TextContent("here"), block))))
    with ModelServer([response(message_item("a"))]) as server:
        LLM("gpt-5", "key", server.url, wire="openai_responses").completion(transcript)
        message, _, output = server.requests[0].json["input"]
    assert message["content"] == [{"type": "input_text", "text": "see"}, part]
    if part["type"] == "input_text":
        assert output["output"] == f"here\n{part['text']}"
    else:
        assert output["output"] == [{"type": "input_text", "text": "here"}, part]


# --- errors ---


def model(server: ModelServer, stream: bool) -> LLM:
    return LLM("m", "key", server.url, wire="openai_responses", max_retries=0, stream=stream)


FAILED = response(status="failed", error={"code": "rate_limit_exceeded", "message": "slow down"})


@pytest.mark.parametrize("end", ["\n\n", "\n", ""])
@pytest.mark.parametrize(
    ("event", "kind"),
    [
        ({"type": "error", "code": "server_error", "message": "oops", "param": None}, ServerError),
        ({"type": "error", "error": {"code": "invalid_prompt", "message": "no"}}, BadRequest),
        ({"type": "response.failed", "response": FAILED}, RateLimited),
        (
            {"type": "response.cancelled", "response": response(status="cancelled")},
            ServerError,
        ),
    ],
)
def test_an_error_ends_a_stream_with_or_without_a_last_blank_line(
    event: dict[str, Any], kind: type[LLMError], end: str
) -> None:
    stream = events({"type": "response.created", "response": response()}) + events(event).rstrip()
    with ModelServer([stream + end]) as server, pytest.raises(kind) as caught:
        model(server, True).completion("x")
    assert type(caught.value) is kind


@pytest.mark.parametrize("stream", [True, False])
def test_a_200_with_an_error_is_an_error(stream: bool) -> None:
    body = {"error": {"code": "rate_limit_exceeded", "message": "slow down"}}
    for answer in (body, FAILED):
        with ModelServer([answer]) as server, pytest.raises(RateLimited):
            model(server, stream).completion("x")


def test_a_stream_of_an_incomplete_answer_says_so() -> None:
    answer = response(
        message_item("half"), status="incomplete", incomplete_details={"reason": "content_filter"}
    )
    completion = parse(answer)
    assert (completion.text, completion.stop_reason) == ("half", "content_filter")


def test_a_queued_answer_that_never_comes_is_none() -> None:
    queued = events({"type": "response.queued", "response": response(status="queued")})
    with ModelServer([queued]) as server, pytest.raises(StreamInterrupted):
        model(server, True).completion("x")


def test_a_message_after_a_call_is_a_part_too() -> None:
    answer = parse(response(message_item("a"), call_item("t"), message_item("b", id="msg_2")))
    assert answer.text == "a\n\nb"
    assert [call.name for call in answer.calls] == ["t"]
