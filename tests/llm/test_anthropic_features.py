"""Features of Anthropic's API over a real socket, plain and streamed: details of answers, files,
containers, tools found by a search, and lifetimes of the cache."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from holdfast import Agent, Conversation, SQLiteStore, Tool
from holdfast.agent.condensers import ToolOutputCondenser
from holdfast.answer import Citation, ServerToolCall
from holdfast.content import FileContent, Message, TextContent, ToolCall, ToolResult, Usage
from holdfast.conversation.replay import replay
from holdfast.errors import BadRequest, ConfigurationError, ServerError
from holdfast.events import AssistantReplied, ToolDefinition
from holdfast.llm import LLM, Completion, Transcript
from holdfast.llm.prices import cost
from holdfast.llm.transcript import THINKING_REFUSED
from holdfast.tools.names import FOUND_TOOLS
from tests.model_server import ModelServer, Request, Stream

COUNTS = {"input_tokens": 10, "output_tokens": 5}


def text(content: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": content, **more}


def message(*content: Any, stop: str = "end_turn", **more: Any) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-5",
        "content": [*content],
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": COUNTS,
        **more,
    }


def sse(answer: dict[str, Any]) -> bytes:
    """Return the event stream of a plain answer."""
    start = {**answer, "content": [], "stop_reason": None, "usage": {"input_tokens": 1}}
    late = ("container", "stop_details", "stop_sequence", "context_management")
    for key in late:
        start.pop(key, None)
    events: list[dict[str, Any]] = [{"type": "message_start", "message": start}]
    for index, block in enumerate(answer["content"]):
        first = dict(block)
        deltas: list[dict[str, Any]] = []
        if block["type"] == "text":
            first = {"type": "text", "text": ""}
            deltas = [{"type": "text_delta", "text": block["text"]}]
            cited = block.get("citations") or ()
            deltas += [{"type": "citations_delta", "citation": one} for one in cited]
        elif "input" in block:
            first["input"] = {}
            arguments_json = json.dumps(block["input"])
            deltas = [{"type": "input_json_delta", "partial_json": arguments_json}]
        elif block["type"] == "compaction":
            first["content"] = None
            deltas = [{"type": "compaction_delta", "content": block["content"]}]
        events.append({"type": "content_block_start", "index": index, "content_block": first})
        events += [{"type": "content_block_delta", "index": index, "delta": one} for one in deltas]
        events.append({"type": "content_block_stop", "index": index})
    last = {"stop_reason": answer["stop_reason"]}
    last |= {key: answer[key] for key in late[:3] if key in answer}
    end: dict[str, Any] = {"type": "message_delta", "delta": last, "usage": answer["usage"]}
    if "context_management" in answer:
        end["context_management"] = answer["context_management"]
    events += [end, {"type": "message_stop"}]
    return b"".join(
        b"event: %b\ndata: %b\n\n" % (one["type"].encode(), json.dumps(one).encode())
        for one in events
    )


def model(server: ModelServer, **more: Any) -> LLM:
    options = {"wire": "anthropic_messages", "max_retries": 0, **more}
    return LLM("claude-sonnet-5", "key", server.url, **options)


def read_both_ways(answer: dict[str, Any], size: int = 9) -> Completion:
    """Return an answer after it was read plain and streamed. Both give the same, and go back
    unchanged."""
    data = sse(answer)
    stream = Stream([data[at : at + size] for at in range(0, len(data), size)])
    with ModelServer([answer, stream, message(), message()]) as server:
        plain = model(server).completion("hi")
        streamed = model(server, stream=True).completion("hi")
        for one in (plain, streamed):
            model(server).completion(Transcript([Message("hi"), one]))
        plain_body, streamed_body = (request.json for request in server.requests[2:])
    assert plain_body == streamed_body
    if answer["content"]:
        assert plain_body["messages"][1]["content"] == answer["content"]
    for name in ("text", "calls", "usage", "stop_reason", "details", "reasoning"):
        assert getattr(streamed, name) == getattr(plain, name), name
    assert Completion.from_json(plain.to_json()).details == plain.details
    return plain


def server_call(id: str, name: str, **input: Any) -> dict[str, Any]:
    return {"type": "server_tool_use", "id": id, "name": name, "input": input}


SEARCH = [
    text("Let me look."),
    server_call("s1", "web_search", query="q"),
    {
        "type": "web_search_tool_result",
        "tool_use_id": "s1",
        "content": [
            {
                "type": "web_search_result",
                "url": "https://a.example",
                "title": "A",
                "encrypted_content": "xyz",
                "page_age": None,
            }
        ],
    },
    text("It is "),
    text(
        "sunny",
        citations=[
            {
                "type": "web_search_result_location",
                "url": "https://a.example",
                "title": "A",
                "encrypted_index": "abc",
                "cited_text": "Sun all day",
            }
        ],
    ),
    text("."),
]


def test_citations_say_which_part_of_the_text_they_support_and_searches_show_their_results() -> (
    None
):
    answer = read_both_ways(message(*SEARCH), size=1)
    assert answer.text == "Let me look.\n\nIt is sunny."
    assert [part.text for part in answer.parts] == ["Let me look.", "It is sunny."]
    (cited,) = answer.citations
    assert cited == Citation(
        "https://a.example",
        "A",
        "Sun all day",
        "",
        20,
        25,
        {"type": "web_search_result_location"},
    )
    assert answer.text[cited.start : cited.end] == "sunny"
    result = {"type": "web_search_result", "url": "https://a.example", "title": "A"}
    assert answer.server_calls == (
        ServerToolCall("web_search", "s1", {"query": "q"}, [{**result, "page_age": None}]),
    )


@pytest.mark.parametrize(
    ("citation", "expected"),
    [
        (
            {"type": "char_location", "document_title": "T", "start_char_index": 0}
            | {"end_char_index": 4, "document_index": 2, "file_id": None},
            ("", "T", "2", {"start_char_index": 0, "end_char_index": 4, "document_index": 2}),
        ),
        (
            {"type": "page_location", "document_title": None, "start_page_number": 1}
            | {"end_page_number": 2, "document_index": 0},
            ("", "", "0", {"start_page_number": 1, "end_page_number": 2, "document_index": 0}),
        ),
        (
            {"type": "content_block_location", "document_title": "T", "start_block_index": 0}
            | {"end_block_index": 1, "document_index": 0},
            ("", "T", "0", {"start_block_index": 0, "end_block_index": 1, "document_index": 0}),
        ),
        (
            {"type": "search_result_location", "source": "https://b.example", "title": "B"}
            | {"search_result_index": 0, "start_block_index": 0, "end_block_index": 1},
            (
                "https://b.example",
                "B",
                "https://b.example",
                {"search_result_index": 0, "start_block_index": 0, "end_block_index": 1},
            ),
        ),
    ],
)
def test_every_kind_of_citation_is_read(citation: dict[str, Any], expected: Any) -> None:
    fields = {key: value for key, value in citation.items() if key != "file_id"}
    (cited,) = read_both_ways(
        message(text("yes", citations=[{**fields, "cited_text": "q"}]))
    ).citations
    url, title, source, details = expected
    assert cited == Citation(url, title, "q", source, 0, 3, {"type": citation["type"], **details})


def test_tools_that_the_provider_ran_have_their_outputs_and_files() -> None:
    ran = {"type": "bash_code_execution_result", "stdout": "2\n", "stderr": "", "return_code": 0}
    ran["content"] = [{"type": "bash_code_execution_output", "file_id": "file_1"}]
    failed = {"type": "text_editor_code_execution_tool_result_error", "error_code": "unavailable"}
    references = [{"type": "tool_reference", "tool_name": "t"}]
    search = {"type": "tool_search_tool_search_result", "tool_references": references}
    content = [
        server_call("s1", "bash_code_execution", command="ls"),
        {"type": "bash_code_execution_tool_result", "tool_use_id": "s1", "content": ran},
        server_call("s2", "text_editor_code_execution", path="a"),
        {
            "type": "text_editor_code_execution_tool_result",
            "tool_use_id": "s2",
            "content": failed,
        },
        server_call("s3", "tool_search_tool_bm25", query="x"),
        {"type": "tool_search_tool_result", "tool_use_id": "s3", "content": search},
        {"type": "mcp_tool_use", "id": "m1", "name": "ask", "server_name": "wiki", "input": {}},
        {
            "type": "mcp_tool_result",
            "tool_use_id": "m1",
            "is_error": True,
            "content": [text("no")],
        },
        server_call("s4", "web_fetch", url="u"),
        text("done"),
    ]
    container = {"id": "container_1", "expires_at": "2026-06-30T23:59:30Z"}
    answer = read_both_ways(message(*content, container=container))
    assert answer.server_calls == (
        ServerToolCall("bash_code_execution", "s1", {"command": "ls"}, ran),
        ServerToolCall("text_editor_code_execution", "s2", {"path": "a"}, failed, True),
        ServerToolCall("tool_search_tool_bm25", "s3", {"query": "x"}, search),
        ServerToolCall("ask", "m1", {}, [text("no")], True),
        ServerToolCall("web_fetch", "s4", {"url": "u"}),
    )
    assert answer.media == (FileContent(file_id="file_1", provider="anthropic"),)
    assert answer.container == "container_1"
    assert answer.provider_details == {"container": container, "mcp_servers": {"m1": "wiki"}}


def test_a_result_whose_call_was_in_a_paused_answer_is_kept() -> None:
    late = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []}
    answer = model_read(message(late, text("ok"), stop="pause_turn"))
    assert answer.server_calls == (ServerToolCall("web_search", "s1", None, []),)
    assert answer.stop_reason == "pause"


def test_a_refusal_with_text_says_why_and_an_answer_its_stop_sequence_and_tier() -> None:
    details = {"type": "refusal", "category": "cyber", "explanation": "Not that."}
    refused = read_both_ways(message(text("Well"), stop="refusal", stop_details=details))
    assert (refused.stop_reason, refused.refusal) == ("content_filter", "cyber: Not that.")
    assert refused.provider_details["stop_details"] == details
    plain = read_both_ways(message(text("Well"), stop="refusal"))
    assert plain.refusal == "The model refused to answer."
    usage = {**COUNTS, "service_tier": "priority"}
    ended = read_both_ways(
        message(text("a"), stop="stop_sequence", stop_sequence="END", usage=usage)
    )
    assert (ended.stop_sequence, ended.service_tier) == ("END", "priority")


def run(
    kind: str, input_tokens: int, output_tokens: int, hour: int = 0, **more: Any
) -> dict[str, Any]:
    counts = {"input_tokens": input_tokens, "output_tokens": output_tokens}
    cache = {"ephemeral_1h_input_tokens": hour, "ephemeral_5m_input_tokens": 0}
    return {
        "type": kind,
        **counts,
        "cache_creation_input_tokens": hour,
        "cache_creation": cache,
    } | {
        "cache_read_input_tokens": 0,
        **more,
    }


def test_all_tokens_that_are_billed_are_counted() -> None:
    runs = [run("compaction", 180_000, 3_500), run("message", 23_000, 1_000)]
    block = {"type": "compaction", "content": "Summary"}
    top = {"input_tokens": 23_000, "output_tokens": 1_000, "iterations": runs}
    answer = read_both_ways(message(block, text("a"), usage=top))
    assert answer.usage == Usage(203_000, 4_500)
    assert answer.provider_details["iterations"] == runs
    assert (answer.text, answer.context_tokens) == ("a", 23_000)
    # A pause after the compaction: the counts of the message itself are zero.
    paused = {**top, "input_tokens": 0, "output_tokens": 0, "iterations": runs[:1]}
    answer = read_both_ways(message(block, stop="compaction", usage=paused))
    assert (answer.usage, answer.stop_reason) == (Usage(180_000, 3_500), "pause")
    advised = [run("message", 5, 2, hour=7), run("advisor_message", 20, 3, model="claude-opus-5")]
    top = {**run("message", 5, 2, hour=7), "iterations": advised}
    usage = read_both_ways(message(text("a"), usage=top)).usage
    assert usage == Usage(32, 5, 0, 7, cache_write_1h_tokens=7)


def test_each_model_run_behind_an_answer_has_its_own_price() -> None:
    """Two runs together exceed the limit of the higher price; an advisor runs, too."""
    runs = [run("compaction", 150_000, 1_000), run("message", 60_000, 1_000)]
    top = {"input_tokens": 60_000, "output_tokens": 1_000, "iterations": runs}
    separately = [cost(Usage(tokens, 1_000), *SONNET) or 0.0 for tokens in (150_000, 60_000)]
    response = message(text("a"), usage=top, model="claude-sonnet-4-5")
    with ModelServer([response, response]) as server:
        for stream in (False, True):
            priced = Sonnet("m", "key", server.url, wire="anthropic_messages", stream=stream)
            answer = priced.completion("hi")
            assert [one.usage.input_tokens for one in answer.runs] == [150_000, 60_000]
            assert answer.usage == Usage(210_000, 2_000)
            assert answer.cost == sum(separately)
            assert answer.cost < (priced.cost(answer.usage) or 0.0)
    advised = [run("message", 5, 2), run("advisor_message", 20, 3, model="claude-opus-4-5")]
    answer = read_both_ways(
        message(text("a"), usage={**run("message", 5, 2), "iterations": advised})
    )
    assert [one.model for one in answer.runs] == ["", "claude-opus-4-5"]
    assert not read_both_ways(message(text("a"), usage={**top, "input_tokens": 10**6})).runs


SONNET = ("claude-sonnet-4-5", "https://api.anthropic.com")


class Sonnet(LLM):
    """A model on this machine with the prices of Sonnet."""

    def cost(self, usage: Usage) -> float | None:
        return cost(usage, *SONNET)


def test_applied_edits_fallbacks_and_future_blocks_are_kept() -> None:
    edits = {"applied_edits": [{"type": "clear_tool_uses_20250919", "cleared_tool_uses": 3}]}
    hop = {"from": {"model": "claude-fable-5"}, "to": {"model": "claude-opus-5"}}
    content = [
        {"type": "fallback", **hop, "trigger": {"type": "refusal"}},
        text("a"),
        {"type": "of_the_future", "data": {"x": [1]}},
        text("b"),
    ]
    answer = read_both_ways(
        message(*content, context_management=edits, stop="model_context_window_exceeded")
    )
    assert (answer.text, answer.stop_reason) == ("a\n\nb", "length")
    assert answer.provider_details == {"context_management": edits}


def test_files_go_in_by_bytes_address_and_id() -> None:
    files = (
        FileContent(b"%PDF", "application/pdf", name="a.pdf"),
        FileContent(url="https://x.example/a.png"),
        FileContent(url="https://x.example/a.pdf"),
        FileContent(file_id="f1", mime_type="image/png"),
        FileContent(file_id="f2"),
        FileContent(file_id="f3", mime_type="text/csv", name="d.csv"),
        FileContent(b"a,b\n", "text/csv", name="d.csv"),
        FileContent(b"\xff\xfe", "text/plain", name="bad.txt"),
        FileContent(b"x", "video/mp4", name="v.mp4"),
    )
    with ModelServer([message(text("ok"))] * 2) as server:
        llm = model(server, prompt_caching=False, headers={"anthropic-beta": "other-2026"})
        llm.completion([Message((TextContent("see"), *files))])
        llm.completion("no file")
        request, other = server.requests
    pdf = {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="}
    assert request.messages[0]["content"] == [
        text("see"),
        {"type": "document", "source": pdf, "title": "a.pdf"},
        {"type": "image", "source": {"type": "url", "url": "https://x.example/a.png"}},
        {"type": "document", "source": {"type": "url", "url": "https://x.example/a.pdf"}},
        {"type": "image", "source": {"type": "file", "file_id": "f1"}},
        {"type": "document", "source": {"type": "file", "file_id": "f2"}},
        {"type": "container_upload", "file_id": "f3"},
        {
            "type": "document",
            "source": {"type": "text", "media_type": "text/plain", "data": "a,b\n"},
            "title": "d.csv",
        },
        text("[text/plain bad.txt, 2 bytes: this model's API takes no such file]"),
        text("[video/mp4 v.mp4, 1 bytes: this model's API takes no such file]"),
    ]
    assert request.headers["anthropic-beta"] == "other-2026,files-api-2025-04-14"
    assert other.headers["anthropic-beta"] == "other-2026"


@pytest.mark.parametrize("failed", [False, True])
def test_files_of_results_stand_where_the_api_takes_them(failed: bool) -> None:
    call = ToolCall("1.0", "t", {}, "c1")
    csv, pdf = FileContent(file_id="f1", mime_type="text/csv"), FileContent(file_id="f2")
    result = ToolResult((TextContent("see"), csv, pdf), is_error=failed)
    with ModelServer([message(text("ok"))]) as server:
        items = [Message("hi"), Completion(calls=(call,)), (call, result)]
        model(server, prompt_caching=False).completion(Transcript(items))
        (request,) = server.requests
    upload = {"type": "container_upload", "file_id": "f1"}
    document = {"type": "document", "source": {"type": "file", "file_id": "f2"}}
    caption = text("Returned by t (call c1):")
    answered = {"type": "tool_result", "tool_use_id": "c1"}
    mentioned = "see\n(text/csv, shown below)\n(file, shown below)"
    assert request.messages[-1]["content"] == (
        [{**answered, "content": mentioned, "is_error": True}, caption, upload, document]
        if failed
        else [{**answered, "content": [text("see"), document]}, caption, upload]
    )
    assert request.headers["anthropic-beta"] == "files-api-2025-04-14"


def test_documents_are_cited_on_request() -> None:
    with ModelServer([message(text("ok"))]) as server:
        llm = model(server, extra_body={"citations": {"enabled": True}}, prompt_caching=False)
        llm.completion([Message((FileContent(b"text", "text/plain"),))])
        body = server.requests[0].json
    assert "citations" not in body
    assert body["messages"][0]["content"][0]["citations"] == {"enabled": True}


CONTAINER = {"id": "container_1", "expires_at": "2026-06-30T23:59:30Z"}


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({}, "container_1"),
        ({"container": {"skills": [1]}}, {"id": "container_1", "skills": [1]}),
        ({"container": {"id": "c2", "skills": [1]}}, {"id": "c2", "skills": [1]}),
        ({"container": "c2"}, "c2"),
        ({"container": None}, None),
    ],
)
@pytest.mark.parametrize("streams", [False, True])
def test_code_goes_on_in_the_container_of_the_last_answer(
    chosen: dict[str, Any], expected: Any, streams: bool
) -> None:
    answers = [message(text("a"), container=CONTAINER), message(text("b")), message(text("c"))]
    with ModelServer([sse(one).decode() if streams else one for one in answers]) as server:
        llm = model(server, stream=streams, extra_body=chosen)
        transcript = Transcript([Message("hi")])
        for _ in answers:
            transcript.append(Completion.from_json(llm.completion(transcript).to_json()))
            transcript.say("go on")
        first, *later = [request.json for request in server.requests]
    assert first.get("container", "none") == chosen.get("container", "none")
    assert [one.get("container", "none") for one in later] == [expected, expected]
    assert all(one.get("stream", False) is streams for one in later)


def test_a_container_belongs_to_its_host_and_wire() -> None:
    for change in ({"host": "elsewhere"}, {"wire": "openai_responses"}):
        with ModelServer([message(text("a"), container=CONTAINER), message(text("b"))]) as server:
            llm = model(server)
            answer = llm.completion("hi")
            moved = Completion(
                **{name: getattr(answer, name) for name in ("text", "wire", "host", "details")}
                | change
            )
            llm.completion(Transcript([Message("hi"), moved, Message("go on")]))
            assert "container" not in server.requests[1].json


@pytest.mark.parametrize(
    "refusal",
    [
        (400, {}, {"type": "error", "error": {"type": "x", "message": "Container not found"}}),
        (500, {}, {"type": "error", "error": {"type": "api_error", "message": "Internal"}}),
    ],
)
def test_a_container_that_is_gone_is_left_out(refusal: Any) -> None:
    with ModelServer([message(text("a"), container=CONTAINER), refusal, message(text("b"))]) as it:
        llm = model(it)
        first = llm.completion("hi")
        second = llm.completion(Transcript([Message("hi"), first, Message("go on")]))
        containers = [request.json.get("container") for request in it.requests]
    assert (second.text, containers) == ("b", [None, "container_1", None])
    assert "container_1" in second.notes[0]


def test_another_error_is_raised_at_once() -> None:
    other = {"type": "error", "error": {"type": "invalid_request_error", "message": "Too long"}}
    with ModelServer([message(text("a"), container=CONTAINER), (400, {}, other)]) as server:
        llm = model(server)
        first = llm.completion("hi")
        with pytest.raises(BadRequest, match="Too long"):
            llm.completion(Transcript([Message("hi"), first, Message("go on")]))
    with ModelServer([(500, {}, other)]) as server, pytest.raises(ServerError):
        model(server).completion("hi")


SCHEMA = {"type": "object", "properties": {}}
FIND = ToolDefinition("find_tools", "Find more tools.", SCHEMA)
DEFERRED_TOOL = ToolDefinition("git.push", "Push.", SCHEMA, "git__push", deferred=True)
CALL = ToolCall("1.0", "find_tools", {"query": "push"}, "c1")
NOTE = "(not searched: x is down)"
SEARCHED = ToolResult(
    (TextContent("- git.push: Push."), TextContent(NOTE)), meta={FOUND_TOOLS: ["git.push"]}
)


def searching(name: str, *tools: ToolDefinition, items: Any = None) -> dict[str, Any]:
    if items is None:
        items = [Message("hi"), Completion(calls=(CALL,)), (CALL, SEARCHED)]
    with ModelServer([message(text("ok"))]) as server:
        llm = LLM(name, "key", server.url, wire="anthropic_messages", max_retries=0)
        llm.completion(Transcript(items), tools)
        return server.requests[0].json


def test_tools_that_a_search_found_are_shown_where_they_were_found() -> None:
    before = searching("claude-sonnet-5", FIND, items=[Message("hi")])
    body = searching("claude-sonnet-5", FIND, DEFERRED_TOOL)
    # The prefix that the API caches is unchanged: it leaves out deferred definitions.
    assert body["tools"][0] == before["tools"][0]
    assert body["tools"][0]["cache_control"] == {"type": "ephemeral"}
    assert body["tools"][1] == {
        "name": "git__push",
        "defer_loading": True,
        "description": "Push.",
        "input_schema": SCHEMA,
    }
    result, *rest = body["messages"][-1]["content"]
    assert result["content"] == [{"type": "tool_reference", "tool_name": "git__push"}]
    assert [one["text"] for one in rest] == ["Returned by find_tools (call c1):", NOTE]


def test_a_found_tool_that_is_not_referred_to_is_sent_as_usual_and_a_lost_one_is_text() -> None:
    (_, tool) = searching("claude-sonnet-5", FIND, DEFERRED_TOOL, items=[Message("hi")])["tools"]
    assert "defer_loading" not in tool
    body = searching("claude-sonnet-5", FIND)
    assert body["messages"][-1]["content"][0]["content"] == f"- git.push: Push.\n{NOTE}"
    # The transcript keeps the bytes of a request that had the tool.
    transcript = Transcript([Message("hi"), Completion(calls=(CALL,)), (CALL, SEARCHED)])
    with ModelServer([message(text("ok"))] * 2) as server:
        llm = model(server)
        llm.completion(transcript, [FIND, DEFERRED_TOOL])
        llm.completion(transcript, [FIND])
        messages = server.requests[1].messages
    assert messages[-1]["content"][0]["content"] == [text("git__push (no longer available)")]


@pytest.mark.parametrize("name", ["claude-3-7-sonnet-latest", "claude-opus-4-1", "glm-5"])
def test_models_that_do_not_know_references_get_text_and_definitions(name: str) -> None:
    body = searching(name, FIND, DEFERRED_TOOL)
    assert not any("defer_loading" in tool for tool in body["tools"])
    assert body["messages"][-1]["content"][0]["content"] == f"- git.push: Push.\n{NOTE}"


def test_the_cache_has_the_lifetime_that_was_asked_for() -> None:
    with ModelServer([message(text("ok"))]) as server:
        model(server, prompt_caching="1h").completion("hi", system="s")
        body = server.requests[0].json
    mark = {"type": "ephemeral", "ttl": "1h"}
    assert body["system"][0]["cache_control"] == mark
    assert body["messages"][0]["content"][-1]["cache_control"] == mark
    for wrong in ("2h", 1, None):
        with pytest.raises(ConfigurationError, match="prompt_caching takes True, False, '5m'"):
            LLM("claude-sonnet-5", prompt_caching=wrong)  # pyright: ignore[reportArgumentType]
    assert LLM("claude-sonnet-5", prompt_caching="1h").parameters()["prompt_caching"] == "1h"


def test_kinds_of_tokens_have_their_prices() -> None:
    name = "claude-sonnet-4-5"
    short = cost(Usage(1000, cache_write_tokens=1000), name)
    hour = cost(Usage(1000, cache_write_tokens=1000, cache_write_1h_tokens=1000), name)
    half = cost(Usage(1000, cache_write_tokens=1000, cache_write_1h_tokens=500), name)
    assert None not in (short, hour, half)
    assert (round(short * 1e6), round(hour * 1e6)) == (3750, 6000)
    assert half == pytest.approx((short + hour) / 2)
    sound = cost(Usage(1000, 100, input_audio_tokens=400, output_audio_tokens=50), "gpt-realtime")
    assert sound == pytest.approx((600 * 4 + 400 * 32 + 50 * 16 + 50 * 64) / 1e6)
    picture = cost(Usage(100, input_image_tokens=100), "gpt-image-1")
    assert picture == pytest.approx(100 * 10 / 1e6)


def test_a_reopened_conversation_goes_on_in_its_container(tmp_path: Path) -> None:
    answers = [message(text("a"), container=CONTAINER), message(text("b"))]
    with ModelServer(answers) as server:
        for word in ("hi", "go on"):
            store = SQLiteStore(tmp_path / "journal.db")
            with Conversation(Agent(model(server)), store, id="one") as conversation:
                conversation.send_message(word)
                conversation.run()
            store.close()
        values = [request.json.get("container") for request in server.requests]
    assert values == [None, "container_1"]


def test_a_conversation_asks_again_after_a_pause_for_a_compaction() -> None:
    block = {"type": "compaction", "content": "Summary", "encrypted_content": "xyz"}
    with ModelServer([message(block, stop="compaction"), message(text("Done."))]) as server:
        with Conversation(Agent(model(server))) as conversation:
            conversation.send_message("hi")
            assert conversation.run().answer == "Done."
        assert server.requests[1].messages[1] == {"role": "assistant", "content": [block]}


# --- calls of the provider's own tools without a result ---


def search_result(id: str = "s1") -> dict[str, Any]:
    return {"type": "web_search_tool_result", "tool_use_id": id, "content": []}


def sent_after(server: ModelServer) -> list[Any]:
    return [
        [block.get("tool_use_id") or block.get("id") or block["type"] for block in one["content"]]
        for one in server.requests[-1].messages
    ]


def talk(answers: list[Any], texts: list[str], **more: Any) -> tuple[list[Any], Conversation]:
    """Have a conversation with these answers, and return the types of the last request's blocks
    by message, and the conversation."""
    with ModelServer(answers) as server:
        conversation = Conversation(Agent(model(server, **more)))
        with conversation:
            for one in texts:
                conversation.send_message(one)
                conversation.run().raise_for_status()
            assert replay(conversation.get_history()).same
        return sent_after(server), conversation


@pytest.mark.parametrize("stream", [False, True])
def test_a_cut_off_call_of_the_providers_tool_is_not_sent_back(stream: bool) -> None:
    """The API's error: "`web_search` tool use with id `s1` was found without a corresponding
    `web_search_tool_result` block"."""
    cut = message(text("Let me look. "), server_call("s1", "web_search", query="q"))
    cut["stop_reason"] = "max_tokens"
    last = message(text("Done."))
    answers = [Stream([sse(one)]) if stream else one for one in (cut, last)]
    blocks, _ = talk(answers, ["hi"], stream=stream)
    assert blocks == [["text"], ["text"], ["text"]]
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "x"}
    alone = message(thought, server_call("s1", "web_search"), stop="max_tokens")
    answers = [Stream([sse(one)]) if stream else one for one in (alone, last)]
    blocks, _ = talk(answers, ["hi"], stream=stream)
    assert blocks == [["text"], ["text"]], "an answer of nothing else is not sent at all"


def test_input_that_was_cut_off_is_not_sent_back_even_in_a_pause() -> None:
    answer = message(text("I look."), server_call("s1", "web_search"), stop="pause_turn")
    broken = sse(answer).replace(b'"partial_json": "{}"', b'"partial_json": "{\\"query\\": \\"w"')
    assert broken != sse(answer)
    blocks, _ = talk([Stream([broken]), message(text("Done."))], ["hi"], stream=True)
    assert blocks == [["text"], ["text"]]


def test_a_pause_goes_on_with_the_call_and_its_result_stays_in_the_next_answer() -> None:
    paused = message(text("I look."), server_call("s1", "web_search", q=1), stop="pause_turn")
    resumed_answer = message(search_result(), text("Done."))
    blocks, _ = talk([paused, resumed_answer], ["hi"])
    assert blocks == [["text"], ["text", "s1"]]
    blocks, _ = talk([paused, resumed_answer, message(text("Bye."))], ["hi", "more"])
    assert blocks == [["text"], ["text", "s1"], ["s1", "text"], ["text"]]


def test_a_message_within_a_pause_ends_the_call() -> None:
    paused = message(text("I look."), server_call("s1", "web_search", q=1), stop="pause_turn")
    history = Transcript([Message("hi")])
    with ModelServer(
        [paused, message(search_result(), text("Done.")), message(), message()]
    ) as server:
        llm = model(server)
        first = llm.completion(history)
        second = llm.completion(Transcript([Message("hi"), first]))
        llm.completion(Transcript([Message("hi"), first, Message("Wait!")]))
        assert sent_after(server) == [["text"], ["text"], ["text"]]
        # A condensation has hidden the first half.
        llm.completion(Transcript([Message("hi"), second, Message("more")]))
        assert sent_after(server) == [["text"], ["text"], ["text"]]


def test_calls_of_code_go_on_with_their_results_alone() -> None:
    by_code = {"type": "code_execution_20260120", "tool_id": "s1"}
    call = {"type": "tool_use", "id": "t1", "name": "look", "input": {}, "caller": by_code}
    run = server_call("s1", "code_execution", code="look()")
    answer = message(run, call, stop="tool_use")
    ended = {"type": "code_execution_tool_result", "tool_use_id": "s1", "content": {}}
    with ModelServer([answer, message(ended, text("Done.")), message(text("Bye."))]) as server:
        agent = Agent(model(server), [Tool("look", "Looks.", lambda: "a cat")])
        with Conversation(agent) as conversation:
            conversation.send_message("hi")
            assert conversation.run().answer == "Done."
            assert sent_after(server) == [["text"], ["s1", "t1"], ["t1"]]
            conversation.send_message("more")
            conversation.run()
            assert sent_after(server) == [["text"], ["s1", "t1"], ["t1"], ["s1", "text"], ["text"]]
            assert replay(conversation.get_history()).same
    cut = model_read(message(run, call, stop="max_tokens"))
    history = Transcript([Message("hi"), cut, (cut.calls[0], ToolResult((TextContent("x"),)))])
    with ModelServer([message()]) as server:
        model(server).completion(history)
        assert sent_after(server) == [["text"], ["t1"], ["t1"]]
        assert "caller" not in server.requests[0].messages[1]["content"][0]


def model_read(answer: dict[str, Any]) -> Completion:
    with ModelServer([answer]) as server:
        return model(server).completion("hi")


# --- thinking that is bound to what came before it ---


def bound_thinking(request: Request) -> Any:
    """Answer as a model that signs its thinking with the conversation before it, and refuses to
    read it after any other:
    https://platform.claude.com/docs/en/build-with-claude/preserved-thinking"""
    messages = request.messages
    prefix: list[Any] = []
    for number, one in enumerate(messages):
        for block in one["content"]:
            block.pop("cache_control", None)
            if block["type"] == "thinking" and block["signature"] != signed(prefix):
                refusal = (
                    f"messages.{number}.content.0: Invalid `signature` in `thinking` block. The"
                    " block is bound to a different conversation."
                )
                return (400, {}, {"type": "error", "error": {"message": refusal}})
            prefix.append(block)
    thought = {"type": "thinking", "thinking": "Hm.", "signature": signed(prefix)}
    calls = sum(block["type"] == "tool_result" for one in messages for block in one["content"])
    if calls % 3 == 2:
        return message(thought, text("Done."))
    return message(thought, {"type": "tool_use", "id": f"t{calls}", "name": "look", "input": {}})


def signed(prefix: list[Any]) -> str:
    return str(zlib.crc32(json.dumps(prefix).encode()))


def test_thinking_that_a_condensation_has_made_unreadable_is_left_out() -> None:
    with ModelServer(bound_thinking) as server:
        tool = Tool("look", "Looks.", lambda: "a cat " * 300)
        agent = Agent(model(server), [tool], condenser=ToolOutputCondenser(0, 300))
        with Conversation(agent) as conversation:
            for word in ("one", "two"):
                conversation.send_message(word)
                conversation.run().raise_for_status()
            before = len(server.requests)
            conversation.condense()
            conversation.send_message("three")
            conversation.run().raise_for_status()
            events = conversation.get_history()
            assert replay(events).same
        request = server.requests[before:]
        answers = [event for event in events if isinstance(event, AssistantReplied)]
        refused = len(request) - len(answers[before:])
        assert refused == 1, "later requests leave it out at once"
        kinds = [block["type"] for one in request[1].messages for block in one["content"]]
        assert "thinking" not in kinds
        assert "tool_use" in kinds
        last = [block["type"] for one in request[-1].messages for block in one["content"]]
        assert last.count("thinking") == len(answers) - before - 1, "new thinking is sent"
        notes = [note for one in answers for note in one.notes]
        assert notes == [
            "The thinking of earlier answers was refused, since the conversation before them has"
            " changed; it was left out."
        ]


@pytest.mark.parametrize("tool_calls", ["native", "text"])
def test_refused_thinking_is_left_out_however_tools_are_called(tool_calls: str) -> None:
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "sig"}

    def answer(request: Request) -> Any:
        if b'"sig"' in request.body:
            error = {"message": "messages.1.content.0: Invalid `signature` in `thinking` block."}
            return (400, {}, {"type": "error", "error": error})
        return message(thought, text("ok"))

    with ModelServer(answer) as server:
        llm = model(server, tool_calls=tool_calls)
        talk = Transcript([Message("a")])
        talk.append(llm.completion(talk))
        talk.say("b")
        assert llm.completion(talk).notes == (THINKING_REFUSED,)


def test_a_refused_signature_without_thinking_to_leave_out_is_an_error() -> None:
    refused = (400, {}, {"type": "error", "error": {"message": "thinking: Invalid `signature`"}})
    with ModelServer([refused]) as server, pytest.raises(BadRequest):
        model(server).completion("hi")
