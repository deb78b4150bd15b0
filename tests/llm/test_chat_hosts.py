"""OpenAI-compatible hosts: answers in the form of each, over a real socket, and requests as each
takes them. Every answer is read plain and as a stream that is cut at every byte."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from holdfast.answer import AnswerDetails, Citation, ServerToolCall, TokenLogprob
from holdfast.content import (
    AudioContent,
    Content,
    ContentLike,
    FileContent,
    ImageContent,
    Message,
    ResourceLink,
    TextContent,
    ToolResult,
    Usage,
)
from holdfast.errors import (
    AuthenticationError,
    BadRequest,
    BadResponse,
    ConfigurationError,
    LLMError,
    RateLimited,
    ServerError,
)
from holdfast.events import ToolDefinition
from holdfast.llm import LLM, Completion, Delta, Transcript
from holdfast.llm.http import HTTPPool
from holdfast.llm.wires import chat_hosts
from tests.model_server import ModelServer, Stream

PLAIN = {"role": "assistant", "content": "a"}
PNG = b"\x89PNG fake"
PNG_URL = "data:image/png;base64," + base64.b64encode(PNG).decode()


def at_host(model: str, server: ModelServer, **settings: Any) -> LLM:
    """Return a model at its provider's own address, whose requests go to `server`."""
    llm = LLM(model, "a-key-of-tests", max_retries=0, **settings)
    return llm.with_transport(lambda pool, secrets: HTTPPool(server.url))


def plain(message: dict[str, Any], finish: str | None = "stop", **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": message, "finish_reason": finish, **more.pop("choice", {})}
    return {"id": "i", "model": "m", "choices": [choice], **more}


def stream(*events: Any, with_end: bool = True) -> str:
    lines = [event if isinstance(event, str) else json.dumps(event) for event in events]
    return "".join(f"data: {line}\n\n" for line in [*lines, *(["[DONE]"] if with_end else [])])


def delta(fields: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": fields, "finish_reason": finish, **more.pop("choice", {})}
    return {"id": "i", "model": "m", "choices": [choice], **more}


def ask(body: Any, model: str = "m", **settings: Any) -> Completion:
    """Return the answer of a loopback server that answers with `body`; a str is a stream, which is
    sent byte by byte, and whose deltas must add up to the answer."""
    is_stream = isinstance(body, str)
    if isinstance(body, str):
        data = body.encode()
        body = Stream([data[at : at + 1] for at in range(len(data))])
    with ModelServer([body]) as server:
        llm = LLM(model, base_url=server.url, max_retries=0, stream=is_stream, **settings)
        deltas: list[Delta] = []
        answer = llm.completion("hello", on_delta=deltas.append)
        llm.close()
    if is_stream:
        assert "".join(one.text for one in deltas if one.kind == "text") == answer.text
        assert "".join(one.text for one in deltas if one.kind == "reasoning") == answer.reasoning
    return answer


def ask_both_ways(message: dict[str, Any], *deltas: dict[str, Any], **settings: Any) -> Completion:
    """Return the answer that a message and the pieces of it give."""
    answer = ask(plain(message), **settings)
    streamed = ask(stream(*map(delta, deltas), delta({}, "stop")), **settings)
    assert _same(streamed, answer)
    return answer


def _same(one: Completion, other: Completion) -> bool:
    names = ("text", "reasoning", "calls", "usage", "stop_reason", "details")
    return all(getattr(one, name) == getattr(other, name) for name in names)


# --- token counts ---


@pytest.mark.parametrize(
    ("model", "counts", "expected"),
    [
        pytest.param(
            "mistral-large-latest",
            {"prompt_tokens": 801, "completion_tokens": 2, "num_cached_tokens": 768},
            Usage(801, 2, 768),
            id="Mistral, beside the details",
        ),
        pytest.param(
            "mistral-large-latest",
            {
                "prompt_tokens": 801,
                "completion_tokens": 2,
                "prompt_token_details": {"cached_tokens": 64},
            },
            Usage(801, 2, 64),
            id="Mistral, token in the singular",
        ),
        pytest.param(
            "kimi-k2",
            {"prompt_tokens": 9, "completion_tokens": 2, "cached_tokens": 8},
            Usage(9, 2, 8),
            id="Moonshot",
        ),
        pytest.param(
            "gemini-2.5-flash",
            {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 115},
            Usage(10, 105, reasoning_tokens=100),
            id="Google leaves out the thinking",
        ),
        pytest.param(
            "gemini-2.5-flash",
            {"prompt_tokens": 10, "total_tokens": 60},
            Usage(10, 50, reasoning_tokens=50),
            id="Google, cut off while thinking",
        ),
        pytest.param(
            "voxtral",
            {
                "prompt_tokens": 4,
                "completion_tokens": 635,
                "total_tokens": 3264,
                "prompt_audio_seconds": 203,
            },
            Usage(4, 635),
            id="a total with sound is no thinking",
        ),
        pytest.param(
            "gpt-4o-audio-preview",
            {
                "prompt_tokens": 20,
                "completion_tokens": 30,
                "prompt_tokens_details": {"audio_tokens": 7, "image_tokens": 3},
                "completion_tokens_details": {"audio_tokens": 11, "image_tokens": 2},
            },
            Usage(
                20,
                30,
                input_audio_tokens=7,
                input_image_tokens=3,
                output_audio_tokens=11,
                output_image_tokens=2,
            ),
            id="sound and pictures",
        ),
        pytest.param(
            "sonar-deep-research",
            {"prompt_tokens": 5, "completion_tokens": 10, "reasoning_tokens": 90},
            Usage(5, 100, reasoning_tokens=90),
            id="Perplexity",
        ),
    ],
)
def test_token_counts_are_read_in_each_hosts_spelling(
    model: str, counts: dict[str, Any], expected: Usage
) -> None:
    about = {"model": model}
    assert ask({**plain({"content": "a"}, usage=counts), **about}).usage == expected
    chunks = [delta({"content": "a"}, "stop"), {"choices": [], "usage": counts}]
    assert ask(stream(*({**chunk, **about} for chunk in chunks))).usage == expected


def test_groq_streams_its_counts_in_a_place_of_its_own() -> None:
    counts = {"prompt_tokens": 3, "completion_tokens": 4}
    answer = ask(
        stream(
            {**delta({"content": "a"}), "x_groq": {"id": "req_1"}},
            {**delta({}, "stop"), "x_groq": {"id": "req_1", "usage": counts}},
        )
    )
    assert answer.usage == Usage(3, 4)
    assert answer.provider_details == {}


def test_moonshot_streams_its_counts_within_the_choice() -> None:
    counts = {"prompt_tokens": 3, "completion_tokens": 4}
    last = delta({}, "stop", choice={"usage": counts})
    assert ask(stream(delta({"content": "a"}), last)).usage == Usage(3, 4)


# --- errors within an answer ---

UPSTREAM = {"code": 429, "message": "upstream is busy", "metadata": {"provider_name": "X"}}


@pytest.mark.parametrize("finish", [None, "error"])
@pytest.mark.parametrize("content", ["", "half an ans"])
def test_an_error_in_a_choice_is_an_error(finish: str | None, content: str) -> None:
    message = {"role": "assistant", "content": content}
    for body in (
        plain(message, finish, choice={"error": UPSTREAM}),
        stream(delta({"content": content}), delta({}, finish, choice={"error": UPSTREAM})),
    ):
        with pytest.raises(RateLimited, match="upstream is busy") as caught:
            ask(body)
        assert caught.value.status == 429


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        ({"base_resp": {"status_code": 1004, "status_msg": "login fail"}}, "auth", "login fail"),
        (
            {"base_resp": {"status_code": 1002, "status_msg": "slow"}, "choices": None},
            "limit",
            "slow",
        ),
        ({"object": "error", "message": "boom", "code": 50000}, "server", "boom"),
        ({"detail": "boom"}, "server", "boom"),
        ({"success": False, "errors": [{"code": 5, "message": "boom"}]}, "server", "boom"),
        (
            {"code": "InvalidApiKey", "message": "Invalid API-key provided."},
            "auth",
            "Invalid API-key",
        ),
        ({"error": "boom"}, "server", "boom"),
        ({"error": {"message": ["boom"]}}, "server", "boom"),
    ],
)
def test_an_error_with_status_200_is_known_in_every_form(
    body: dict[str, Any], kind: str, text: str
) -> None:
    kinds = {"auth": AuthenticationError, "limit": RateLimited, "server": ServerError}
    for response_body in (body, stream(body)):
        with pytest.raises(LLMError, match=text) as caught:
            ask(response_body)
        assert isinstance(caught.value, kinds[kind])
        assert "base_url" not in str(caught.value)


@pytest.mark.parametrize(
    "ending", ["\n\n", "\n", ""], ids=["blank line", "no blank line", "no line end"]
)
@pytest.mark.parametrize("end", [True, False], ids=["ended", "broken off"])
def test_the_last_error_of_a_stream_needs_no_blank_line(ending: str, end: bool) -> None:
    error = {"message": "Failed to call a function.", "code": "tool_use_failed"}
    text = stream(delta({"content": "a"}), with_end=False)
    text += f"event: error\ndata: {json.dumps({'error': {**error, 'status_code': 400}})}{ending}"
    with ModelServer([Stream([text.encode()], end=end)]) as server:
        llm = LLM("m", base_url=server.url, max_retries=0, stream=True)
        with pytest.raises(BadResponse, match="Failed to call a function") as caught:
            llm.completion("hello")
        assert type(caught.value) is BadResponse
        assert caught.value.code == "tool_use_failed"
        assert "base_url" not in str(caught.value)


def test_a_foreign_answer_hints_at_the_address() -> None:
    with pytest.raises(BadResponse, match="base_url"):
        ask({"hello": "world"})


def test_an_error_beside_a_proper_finish_is_a_detail() -> None:
    answer = ask(plain({"content": "a"}, "stop", choice={"error": UPSTREAM}))
    assert (answer.text, answer.provider_details["error"]) == ("a", UPSTREAM)


@pytest.mark.parametrize(
    ("status", "body", "text"),
    [
        (422, {"detail": [{"loc": ["body", "x"], "msg": "field required"}]}, "field required"),
        (422, {"message": {"detail": [{"msg": "Extra inputs"}]}, "code": None}, "Extra inputs"),
        (400, {"errors": [{"code": 7003, "message": "No route"}], "success": False}, "No route"),
        (400, {"error": ["Input validation error"]}, "Input validation error"),
        (400, [{"error": {"code": 400, "message": "Bad part"}}], "Bad part"),
        (400, {"error": "bad", "message": "worse"}, "bad"),
        (400, {"error": {"error": {"message": "wrapped twice"}}}, "wrapped twice"),
        (400, b"plain words", "plain words"),
        (400, b"<html><body>a page</body></html>", "a page"),
        (400, b"", "no reason given"),
    ],
)
def test_a_refused_request_says_why_in_every_form(status: int, body: Any, text: str) -> None:
    with pytest.raises(BadRequest, match=text) as caught:
        ask((status, {}, body))
    assert caught.value.status == status


# --- calls ---


def calls_of(answer: Completion) -> list[tuple[str, dict[str, Any], str]]:
    return [(call.name, call.arguments, call.provider_id) for call in answer.calls]


def test_a_call_of_the_first_form_is_read() -> None:
    whole = {"content": None, "function_call": {"name": "f", "arguments": '{"a":1}'}}
    answer = ask(plain(whole, "function_call"))
    assert (calls_of(answer), answer.stop_reason) == ([("f", {"a": 1}, "")], "tool_calls")
    pieces = [{"name": "f", "arguments": ""}, {"arguments": '{"a"'}, {"arguments": ":1}"}]
    deltas = [delta({"function_call": piece}) for piece in pieces]
    streamed = ask(stream(*deltas, delta({}, "function_call")))
    assert _same(streamed, answer)


CALLS = [("f", {"a": 1}, ""), ("g", {}, "")]


@pytest.mark.parametrize(
    "entries",
    [
        [{"function": {"name": "f", "arguments": '{"a":1}'}}, {"function": {"name": "g"}}],
        [
            {"id": None, "function": {"name": "f", "arguments": {"a": 1}}},
            {"id": "", "function": {"name": "g", "arguments": "{}"}},
        ],
        [{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}],
    ],
    ids=["no ids", "objects", "flat"],
)
def test_calls_without_ids_and_indices_are_told_apart(entries: list[dict[str, Any]]) -> None:
    whole = ask(plain({"content": None, "tool_calls": entries}, "tool_calls"))
    together = ask(stream(delta({"tool_calls": entries}), delta({}, "tool_calls")))
    assert calls_of(whole) == calls_of(together) == CALLS
    if "name" not in entries[1] and "arguments" in entries[1]["function"]:
        chunks = [delta({"tool_calls": [entry]}) for entry in entries]
        assert calls_of(ask(stream(*chunks, delta({}, "stop")))) == CALLS


def test_whole_calls_that_are_all_numbered_0_are_told_apart() -> None:
    entries = [
        {"index": 0, "id": "", "function": {"name": "f", "arguments": '{"a":1}'}},
        {"index": 0, "id": "", "function": {"name": "f", "arguments": '{"a":2}'}},
    ]
    expected = [("f", {"a": 1}, ""), ("f", {"a": 2}, "")]
    chunks = [delta({"tool_calls": [entry]}) for entry in entries]
    assert calls_of(ask(stream(*chunks, delta({}, "stop")))) == expected
    assert calls_of(ask(stream(delta({"tool_calls": entries}, "stop")))) == expected


def test_a_call_whose_name_is_repeated_is_one_call() -> None:
    pieces = [
        {"function": {"name": "f", "arguments": ""}},
        {"function": {"name": "f", "arguments": '{"a":'}},
        {"function": {"name": "f", "arguments": "1}"}},
        {"function": {"name": "f", "arguments": ""}},
    ]
    chunks = [delta({"tool_calls": [piece]}) for piece in pieces]
    assert calls_of(ask(stream(*chunks, delta({}, "stop")))) == [("f", {"a": 1}, "")]


def test_an_empty_name_in_later_pieces_changes_nothing() -> None:
    pieces = [
        {"index": 0, "id": "x", "function": {"name": "f", "arguments": ""}},
        {"index": 0, "id": "", "function": {"name": "", "arguments": '{"a":'}},
        {"index": 0, "id": None, "function": {"name": None, "arguments": "1}"}},
    ]
    chunks = [delta({"tool_calls": [piece]}) for piece in pieces]
    assert calls_of(ask(stream(*chunks, delta({}, "tool_calls")))) == [("f", {"a": 1}, "x")]


# --- ends ---


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("COMPLETE", "stop"),
        ("MAX_TOKENS", "length"),
        ("model_context_window_exceeded", "length"),
        ("SAFETY", "content_filter"),
        ("tool_call", "stop"),
        ("Odd", "Odd"),
    ],
)
def test_own_words_for_the_end_are_known(word: str, reason: str) -> None:
    expected = "tool_calls" if word == "tool_call" else reason
    assert ask(plain({"content": "a"}, word)).stop_reason == expected
    assert ask(stream(delta({"content": "a"}, word))).stop_reason == expected


def test_streams_end_in_many_ways() -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 2}
    for last in ({"choices": [], "usage": usage}, {"choices": None, "usage": usage}):
        answer = ask(stream(delta({"content": "a"}), delta({}, "stop"), last, with_end=False))
        assert (answer.text, answer.usage) == ("a", Usage(1, 2))


def test_a_message_that_is_repeated_at_the_end_of_a_stream_is_read_once() -> None:
    last = {**plain({"role": "assistant", "content": "ab"}), "object": "chat.completion"}
    assert ask(stream(delta({"content": "a"}), delta({"content": "b"}), last)).text == "ab"
    assert ask(stream(last)).text == "ab"


# --- refusals and reasoning ---


def test_a_refusal_is_no_answer() -> None:
    answer = ask_both_ways(
        {"content": None, "refusal": "I will not."}, {"refusal": "I will "}, {"refusal": "not."}
    )
    assert (answer.text, answer.refusal, answer.stop_reason) == ("", "I will not.", "refusal")


def test_a_refusal_goes_back_as_the_answers_text() -> None:
    transcript = Transcript([Message("hi"), Completion(details=AnswerDetails(refusal="No."))])
    with ModelServer([plain({"content": "a"})]) as server:
        LLM("m", base_url=server.url).completion(transcript)
        assert server.requests[0].messages[1] == {"role": "assistant", "content": "No."}


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "reasoning_text", "thinking"])
def test_reasoning_is_read_under_every_name(key: str) -> None:
    answer = ask_both_ways(
        {"content": "a", key: "hm so"}, {key: "hm "}, {key: "so"}, {"content": "a"}
    )
    assert answer.reasoning == "hm so"


def test_the_text_of_reasoning_details_is_the_reasoning_if_there_is_no_other() -> None:
    def item(text: str) -> dict[str, Any]:
        return {"reasoning_details": [{"type": "reasoning.text", "index": 0, "text": text}]}

    answer = ask_both_ways(
        {"content": "a", **item("hm so")}, item("hm "), item("so"), {"content": "a"}
    )
    assert answer.reasoning == "hm so"


def test_thinking_in_parts_is_the_same_plain_and_streamed() -> None:
    def thought(text: str) -> dict[str, Any]:
        return {"type": "thinking", "thinking": [{"type": "text", "text": text}]}

    with ModelServer(
        [
            plain({"content": [thought("hm so"), {"type": "text", "text": "yes"}]}),
            stream(
                delta({"content": [thought("hm ")]}),
                delta({"content": [thought("so")]}),
                delta({"content": [{"type": "text", "text": "y"}]}),
                delta({"content": "es"}, "stop"),
            ),
            *[plain({"content": "a"})] * 2,
        ]
    ) as server:
        llm = LLM("magistral", base_url=server.url, max_retries=0)
        answers = [llm.completion("hi"), llm.replace(stream=True).completion("hi")]
        assert [(one.text, one.reasoning) for one in answers] == [("yes", "hm so")] * 2
        for one in answers:
            llm.completion(Transcript([Message("hi"), one, Message("more")]))
        values = [request.messages[1] for request in server.requests[2:]]
        assert values[0] == values[1]
        assert values[0]["content"] == [thought("hm so"), {"type": "text", "text": "yes"}]


THINK = "<think>\nhm < so</think>\n\nThe <think> tag."


@pytest.mark.parametrize(
    ("content", "reasoning", "text"),
    [
        (THINK, "\nhm < so", "The <think> tag."),
        ("  <think>a</think> <think>b</think>c", "ab", "c"),
        ("<think>cut", "cut", ""),
        ("<thin", "", "<thin"),
        (" <b>x", "", " <b>x"),
        ("say <think>x</think>", "", "say <think>x</think>"),
        ("<think></think>\n", "", ""),
    ],
)
def test_think_tags_at_the_beginning_are_reasoning(content: str, reasoning: str, text: str) -> None:
    pieces = [{"content": letter} for letter in content]
    answer = ask_both_ways({"content": content}, *pieces, think_tags=True)
    assert (answer.reasoning, answer.text) == (reasoning, text)
    ask_both_ways({"content": content}, {"content": content}, think_tags=True)
    untouched = ask_both_ways({"content": content}, *pieces)
    assert (untouched.reasoning, untouched.text) == ("", content)


def test_calls_as_text_may_follow_thoughts() -> None:
    called = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    content = f"<think>hm</think>\nI will.\n{called}"
    tool = ToolDefinition("f", "", {"type": "object", "properties": {"a": {"type": "integer"}}})
    chunks = [delta({"content": letter}) for letter in content]
    for body in (plain({"content": content}), stream(*chunks, delta({}, "stop"))):
        with ModelServer([body]) as server:
            is_stream = isinstance(body, str)
            llm = LLM(
                "m", base_url=server.url, tool_calls="text", think_tags=True, stream=is_stream
            )
            answer = llm.completion("hi", [tool])
        assert (answer.reasoning, answer.text, calls_of(answer)) == (
            "hm",
            "I will.",
            [("f", {"a": 1}, "")],
        )


def test_a_summary_of_reasoning_in_parts_is_reasoning() -> None:
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
    parts = [thought, {"type": "text", "text": "a"}]
    answer = ask_both_ways({"content": parts}, {"content": [thought]}, {"content": parts[1:]})
    assert (answer.reasoning, answer.text) == ("hm", "a")


def test_opaque_reasoning_goes_back() -> None:
    answer = ask_both_ways(
        {**PLAIN, "reasoning_opaque": "xyz"}, {**PLAIN, "reasoning_opaque": "xyz"}
    )
    with ModelServer([plain(PLAIN)]) as server:
        LLM("m", base_url=server.url).completion(Transcript([Message("hi"), answer]))
        assert server.requests[0].messages[1] == {**PLAIN, "reasoning_opaque": "xyz"}


# --- reasoning in the history ---


def history(
    model: str, message: dict[str, Any], finish: str = "stop", **settings: Any
) -> dict[str, Any]:
    """Return the form in which an answer at the provider's own address goes back."""
    with ModelServer([plain(message, finish), plain({"content": "b"})]) as server:
        llm = at_host(model, server, **settings)
        transcript = Transcript([Message("hi")])
        answer = llm.completion(transcript)
        transcript.append(answer)
        for call in answer.calls:
            transcript.append((call, ToolResult("ok")))
        transcript.say("more")
        llm.completion(transcript)
        llm.close()
        return server.requests[1].messages[1]


THOUGHT = {"role": "assistant", "content": "a", "reasoning_content": "hm"}


@pytest.mark.parametrize(
    ("model", "settings", "sent"),
    [
        ("zai/glm-4.7", {}, THOUGHT),
        ("moonshotai/kimi-k2-thinking", {}, THOUGHT),
        ("deepseek/deepseek-reasoner", {}, THOUGHT),
        ("groq/qwen/qwen3-32b", {}, PLAIN),
        ("mistral/mistral-large-latest", {}, PLAIN),
        ("cerebras/zai-glm-4.7", {}, {**PLAIN, "content": "<think>hm</think>a"}),
        ("cerebras/gpt-oss-120b", {}, PLAIN),
        ("groq/qwen/qwen3-32b", {"send_reasoning": True}, THOUGHT),
        ("zai/glm-4.7", {"send_reasoning": False}, PLAIN),
        (
            "groq/qwen/qwen3-32b",
            {"send_reasoning": "tags"},
            {**PLAIN, "content": "<think>hm</think>a"},
        ),
    ],
)
def test_reasoning_without_calls_goes_back_as_the_host_wants_it(
    model: str, settings: dict[str, Any], sent: dict[str, Any]
) -> None:
    assert history(model, THOUGHT, **settings) == sent


def test_reasoning_of_a_local_server_goes_back_in_its_own_field() -> None:
    with ModelServer([plain({"content": "a", "reasoning": "hm"}), plain(PLAIN)]) as server:
        llm = LLM("qwen3", base_url=server.url)
        transcript = Transcript([Message("hi")])
        transcript.append(llm.completion(transcript))
        transcript.say("more")
        llm.completion(transcript)
        assert server.requests[1].messages[1] == {**PLAIN, "reasoning": "hm"}


CALL = {"id": "aB3dE6gH9", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}


@pytest.mark.parametrize(
    ("model", "reasoning", "settings", "expected"),
    [
        ("groq/openai/gpt-oss-120b", "hm", {}, "hm"),
        ("groq/openai/gpt-oss-120b", "hm", {"send_reasoning": False}, None),
        ("mistral/mistral-large-latest", "hm", {}, None),
        ("deepseek/deepseek-reasoner", "", {}, ""),
        ("groq/openai/gpt-oss-120b", "", {}, None),
    ],
)
def test_reasoning_beside_calls_goes_back_unless_the_host_refuses_it(
    model: str, reasoning: str, settings: dict[str, Any], expected: str | None
) -> None:
    message = {**CALLING, "reasoning_content": reasoning}
    sent_message = history(model, message, "tool_calls", **settings)
    assert sent_message["tool_calls"] == [CALL]
    assert sent_message.get("reasoning_content") == expected


def test_think_tags_are_split_at_the_hosts_that_send_them_and_kept_where_they_must() -> None:
    tagged = {"role": "assistant", "content": "<think>hm</think>\n\na"}
    assert history("groq/qwen/qwen3-32b", tagged) == PLAIN
    with ModelServer([plain(tagged), plain(PLAIN)]) as server:
        llm = at_host("MiniMax-M2", server, base_url="https://api.minimax.io/v1")
        transcript = Transcript([Message("hi")])
        answer = llm.completion(transcript)
        assert (answer.reasoning, answer.text) == ("hm", "a")
        transcript.append(answer)
        transcript.say("more")
        llm.completion(transcript)
        assert server.requests[1].messages[1] == tagged


def test_signatures_of_a_message_go_back() -> None:
    signed = {"extra_content": {"google": {"thought_signature": "c2ln"}}}
    for body in (
        plain({**PLAIN, **signed}),
        stream(delta({"content": "a"}), delta(signed), delta({}, "stop")),
    ):
        with ModelServer([body, plain(PLAIN)]) as server:
            llm = LLM("gemini-3", base_url=server.url, stream=isinstance(body, str))
            transcript = Transcript([Message("hi")])
            transcript.append(llm.completion(transcript))
            transcript.say("more")
            llm.replace(stream=False).completion(transcript)
            assert server.requests[1].messages[1] == {**PLAIN, **signed}


def test_settings_of_this_wire_are_refused_by_others() -> None:
    for name, value in (("send_reasoning", True), ("think_tags", True)):
        with pytest.raises(
            ConfigurationError, match=f"{name} is a setting of the wire openai_chat"
        ):
            LLM("claude-sonnet-4-5", "k", **{name: value})
    with pytest.raises(ConfigurationError, match="send_reasoning takes"):
        LLM("m", base_url="http://localhost", send_reasoning="sometimes")  # type: ignore[arg-type]
    llm = LLM("m", base_url="http://localhost", send_reasoning="tags", think_tags=False)
    assert llm.parameters()["send_reasoning"] == "tags"
    assert llm.parameters()["think_tags"] is False
    assert "send_reasoning" not in LLM("m", base_url="http://localhost").parameters()


def test_every_ending_in_the_table_names_a_row() -> None:
    for ending, provider in chat_hosts._ENDINGS.items():
        assert provider in chat_hosts.HOSTS
        assert chat_hosts.provider_of(ending.lstrip(".") if ending[0] != "." else "x" + ending) == (
            provider
        )


def test_a_server_on_this_machine_or_network_is_local() -> None:
    for host in ("127.0.0.1", "localhost", "vllm", "192.168.1.9", "box.local"):
        assert chat_hosts.provider_of(host) == "local"
    for host in ("", "litellm", "proxy.example.com", "1.1.1.1"):
        assert chat_hosts.provider_of(host) == ""


# --- roles ---


def test_mistral_gets_an_answer_between_a_tool_and_a_user() -> None:
    picture = ToolResult((TextContent("look"), ImageContent(PNG)))
    for result, roles in (
        (ToolResult("ok"), ["user", "assistant", "tool", "assistant", "user"]),
        (picture, ["user", "assistant", "tool", "assistant", "user", "user"]),
    ):
        with ModelServer([plain(CALLING, "tool_calls"), plain(PLAIN)]) as server:
            llm = LLM("mistral-large-latest", base_url=server.url)
            transcript = Transcript([Message("hi")])
            answer = llm.completion(transcript)
            transcript.append(answer)
            transcript.append((answer.calls[0], result))
            transcript.say("more")
            llm.completion(transcript)
            messages = server.requests[1].messages
            assert [message["role"] for message in messages] == roles
            assert messages[3] == {"role": "assistant", "content": "OK."}


# --- details ---


def test_citations_of_a_message_have_places_in_its_text() -> None:
    cited = {
        "type": "url_citation",
        "url_citation": {
            "url": "https://a.example/x",
            "title": "A",
            "content": "quoted",
            "start_index": 2,
            "end_index": 5,
            "favicon": "f",
        },
    }
    answer = ask_both_ways(
        {"content": "See A.", "annotations": [cited]},
        {"content": "See A."},
        {"annotations": [cited]},
        {"annotations": [cited]},
    )
    assert answer.citations == (
        Citation("https://a.example/x", "A", "quoted", start=2, end=5, details={"favicon": "f"}),
    )
    assert not answer.native


def test_lists_of_sources_are_citations() -> None:
    around: dict[str, Any] = {
        "citations": ["https://a.example", "https://b.example"],
        "search_results": [
            {"url": "https://b.example", "title": "B", "snippet": "s", "date": "2026-01-01"}
        ],
    }
    expected = (
        Citation("https://a.example", source="1"),
        Citation("https://b.example", "B", "s", "2", details={"date": "2026-01-01"}),
    )
    assert ask(plain({"content": "a"}, **around)).citations == expected
    chunks = [delta({"content": "a"}, **around), delta({}, "stop", **around)]
    assert ask(stream(*chunks)).citations == expected
    results = {"web_search": [{"link": "https://c.example", "title": "C", "refer": "ref_1"}]}
    assert ask(plain({"content": "a"}, **results)).citations == (
        Citation("https://c.example", "C", "", "ref_1"),
    )


def test_the_sources_of_content_in_parts_are_citations() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "reference", "reference_ids": [3]}]
    assert ask_both_ways({"content": parts}, {"content": parts}).citations == (
        Citation(source="3"),
    )


def test_tools_that_groq_ran_are_server_calls() -> None:
    start = {"index": 0, "type": "search", "arguments": '{"query": "x"}'}
    ended = {**start, "output": "found", "search_results": {"results": [{"url": "u"}]}}
    answer = ask_both_ways(
        {"content": "a", "executed_tools": [ended]},
        {"executed_tools": [start]},
        {"executed_tools": [ended]},
        {"content": "a"},
    )
    output = {"search_results": {"results": [{"url": "u"}]}, "output": "found"}
    assert answer.server_calls == (ServerToolCall("search", "", {"query": "x"}, output),)


def test_pictures_of_an_answer_are_media() -> None:
    image = {"type": "image_url", "image_url": {"url": PNG_URL}}
    answer = ask_both_ways(
        {"content": "a", "images": [image]}, {"content": "a"}, {"images": [image]}
    )
    assert answer.media == (ImageContent(PNG),)
    assert not answer.native
    link = {"type": "image_url", "image_url": {"url": "https://a.example/b.png"}}
    assert ask(plain({"content": "", "images": [link]})).media == (
        FileContent(url="https://a.example/b.png"),
    )


@pytest.mark.parametrize(
    ("url", "media"),
    [
        ("/v1/files/pic.png", ResourceLink("/v1/files/pic.png")),
        ("files/abc", ResourceLink("files/abc", mime_type="image/*")),
        ("file:///tmp/x.png", ResourceLink("file:///tmp/x.png")),
        ("DATA:image/webp;BASE64,aGk=", ImageContent(b"hi", "image/webp")),
        ("data:;base64,aGk%3D", ImageContent(b"hi")),
        ("data:image/svg+xml,%3Csvg/%3E", ImageContent(b"<svg/>", "image/svg+xml")),
        ("data:image/png;base64,a", None),
    ],
)
def test_an_odd_address_of_a_picture_costs_no_answer(url: str, media: Content | None) -> None:
    image = {"type": "image_url", "image_url": {"url": url}}
    answer = ask_both_ways(
        {"content": "a", "images": [image]}, {"content": "a"}, {"images": [image]}
    )
    assert (answer.text, answer.media) == ("a", () if media is None else (media,))


def test_an_answer_of_a_linked_picture_alone_goes_back_as_text() -> None:
    image = {"type": "image_url", "image_url": {"url": "/v1/files/pic.png"}}
    drawn = Transcript([Message("hi"), ask(plain({"content": "", "images": [image]}))])
    with ModelServer([plain(PLAIN)]) as server:
        LLM("m", "k", server.url).completion(drawn)
        part = server.requests[0].json["messages"][1]["content"]
    assert part.startswith("[file /v1/files/pic.png: ")


def test_a_spoken_answer_has_its_words_as_text_and_its_sound_as_media() -> None:
    sound = b"RIFF" + bytes(range(40))
    data = base64.b64encode(sound).decode()
    pieces = [base64.b64encode(part).decode() for part in (sound[:10], sound[10:21], sound[21:])]
    answer = ask_both_ways(
        {"content": None, "audio": {"id": "au_1", "data": data, "transcript": "hi you"}},
        {"audio": {"id": "au_1", "transcript": "hi "}},
        {"audio": {"data": pieces[0]}},
        {"audio": {"data": pieces[1]}},
        {"audio": {"transcript": "you", "data": pieces[2]}},
        {"audio": {"expires_at": 1}},
    )
    assert answer.text == "hi you"
    assert answer.media == (AudioContent(sound, "audio/wav"),)
    assert data not in bytes(answer.native).decode()
    spoken = Transcript([Message("hi"), answer, Message("more")])
    with ModelServer([plain(PLAIN)]) as server:
        LLM("m", base_url=server.url).completion(spoken)
        assert server.requests[0].messages[1]["audio"] == {"id": "au_1"}


def test_probabilities_are_joined_over_a_stream() -> None:
    def token(text: str) -> dict[str, Any]:
        top = [{"token": text, "logprob": -0.5}, {"token": "z", "logprob": -2}]
        return {"logprobs": {"content": [{"token": text, "logprob": -0.5, "top_logprobs": top}]}}

    streamed = ask(
        stream(
            delta({"content": "a"}, choice=token("a")),
            delta({"content": "b"}, choice=token("b")),
            delta({}, "stop"),
        )
    )
    expected = tuple(TokenLogprob(text, -0.5, ((text, -0.5), ("z", -2.0))) for text in ("a", "b"))
    assert streamed.logprobs == expected
    old = {"logprobs": {"tokens": ["a"], "token_logprobs": [-1.5]}}
    assert ask(plain(PLAIN, choice=old)).logprobs == (TokenLogprob("a", -1.5),)


def test_filters_and_moderation_are_kept() -> None:
    prompt = [{"prompt_index": 0, "content_filter_results": {"hate": {"filtered": False}}}]
    ours = {"content_filter_results": {"hate": {"severity": "safe"}}}
    expected = (prompt[0], ours)
    assert ask(plain(PLAIN, choice=ours, prompt_filter_results=prompt)).filters == expected
    first = {"choices": [], "prompt_filter_results": prompt}
    chunks = [first, delta({"content": "a"}, choice=ours), delta({}, "stop")]
    assert ask(stream(*chunks)).filters == expected
    moderation = {"input": {"results": [{"flagged": False}]}}
    last = {"choices": [], "moderation": moderation}
    assert ask(stream(delta({"content": "a"}, "stop"), last)).filters == (
        {"moderation": moderation},
    )


@pytest.mark.parametrize(
    ("counts", "cost", "others"),
    [
        ({"cost": 0.25, "cost_details": {"x": 1}}, 0.25, {"cost_details": {"x": 1}}),
        ({"cost": 0}, 0.0, {}),
        ({"cost": {"total_cost": 0.5}, "citation_tokens": 9}, 0.5, {"citation_tokens": 9}),
        ({"estimated_cost": 0.125}, 0.125, {}),
        ({"cost_in_usd_ticks": 5_000_000_000, "num_sources_used": 2}, 0.5, {"num_sources_used": 2}),
        ({}, None, {}),
        (
            {"cost": 0.5, "is_byok": True, "cost_details": {"upstream_inference_cost": 2}},
            2.5,
            {"is_byok": True, "cost_details": {"upstream_inference_cost": 2}},
        ),
        ({"cost": 0.5, "is_byok": True}, None, {"is_byok": True}),
        ({"cost": -1}, None, {}),
        ({"cost": True, "estimated_cost": "1"}, None, {}),
    ],
    ids=[
        *("OpenRouter", "free", "Perplexity", "DeepInfra", "xAI", "none"),
        *("own key", "own key at an unknown price", "negative", "no number"),
    ],
)
def test_the_providers_price_is_kept(
    counts: dict[str, Any], cost: float | None, others: dict[str, Any]
) -> None:
    answer = ask(plain(PLAIN, usage={"prompt_tokens": 1, "completion_tokens": 1, **counts}))
    assert answer.provider_cost == cost
    assert answer.provider_details == ({"usage": others} if others else {})


def test_everything_else_is_in_the_providers_details() -> None:
    around = {"service_tier": "flex", "system_fingerprint": "fp_1", "provider": "X"}
    choice = {"native_finish_reason": "STOP", "stop_reason": "###"}
    expected = {"system_fingerprint": "fp_1", "provider": "X", "native_finish_reason": "STOP"}
    for body in (
        plain(PLAIN, choice=choice, created=1, object="chat.completion", **around),
        stream(delta({"content": "a"}, **around), delta({}, "stop", choice=choice, **around)),
    ):
        answer = ask(body)
        assert (answer.service_tier, answer.stop_sequence) == ("flex", "###")
        assert answer.provider_details == expected


# --- files ---


def sent_parts(model: str, content: ContentLike, **settings: Any) -> list[dict[str, Any]]:
    with ModelServer([plain(PLAIN)]) as server:
        at_host(model, server, **settings).completion([Message(content)])  # type: ignore[arg-type]
        sent_content = server.requests[0].messages[0]["content"]
        return (
            sent_content
            if isinstance(sent_content, list)
            else [{"type": "text", "text": sent_content}]
        )


PDF = FileContent(b"%PDF", "application/pdf", name="a.pdf")
PDF_URL = "data:application/pdf;base64,JVBERg=="
PDF_LINK = FileContent(url="https://a.example/b.pdf?x=1", mime_type="application/pdf")
SOUND = FileContent(b"s", "audio/mpeg")
SOUND_LINK = FileContent(url="https://a.example/s.mp3")
VIDEO = FileContent(b"v", "video/mp4")
VIDEO_LINK = FileContent(url="https://a.example/v.mp4")
OPENAI = "openai/gpt-4o"


@pytest.mark.parametrize(
    ("model", "file", "part"),
    [
        (OPENAI, FileContent(PNG, "image/png"), ("image_url", {"url": PNG_URL})),
        (
            OPENAI,
            FileContent(url="https://a.example/b.png"),
            ("image_url", {"url": "https://a.example/b.png"}),
        ),
        (OPENAI, PDF, ("file", {"filename": "a.pdf", "file_data": PDF_URL})),
        (OPENAI, FileContent(file_id="file-1"), ("file", {"file_id": "file-1"})),
        (OPENAI, SOUND, ("input_audio", {"data": "cw==", "format": "mp3"})),
        (OPENAI, FileContent(b"s", "audio/x-wav"), ("input_audio", {"data": "cw==", "format": "wav"})),
        (OPENAI, FileContent(b"hi", "text/plain", name="a.txt"), ("text", "a.txt:\nhi")),
        (OPENAI, PDF_LINK, ("text", None)),
        (OPENAI, SOUND_LINK, ("text", None)),
        (OPENAI, VIDEO, ("text", None)),
        ("openrouter/x", VIDEO, ("video_url", {"url": "data:video/mp4;base64,dg=="})),
        ("openrouter/x", VIDEO_LINK, ("video_url", {"url": "https://a.example/v.mp4"})),
        (
            "openrouter/x",
            PDF_LINK,
            ("file", {"filename": "b.pdf", "file_data": "https://a.example/b.pdf?x=1"}),
        ),
        ("zai/glm-4.6v", VIDEO_LINK, ("video_url", {"url": "https://a.example/v.mp4"})),
        ("zai/glm-4.6v", PDF_LINK, ("file_url", {"url": "https://a.example/b.pdf?x=1"})),
        ("alibaba/qwen3-omni-flash", SOUND, ("input_audio", {"data": "data:;base64,cw==", "format": "mp3"})),
        ("alibaba/qwen3-omni-flash", VIDEO_LINK, ("video_url", {"url": "https://a.example/v.mp4"})),
        ("mistral/mistral-large-latest", PDF, ("document_url", PDF_URL)),
        ("mistral/mistral-large-latest", PDF_LINK, ("document_url", "https://a.example/b.pdf?x=1")),
        ("mistral/mistral-large-latest", SOUND, ("input_audio", "cw==")),
        ("mistral/mistral-large-latest", VIDEO_LINK, ("text", None)),
    ],
)  # fmt: skip
def test_files_are_sent_as_each_host_takes_them(
    model: str, file: FileContent, part: tuple[str, Any]
) -> None:
    settings = {"wire": "openai_chat"} if model == OPENAI else {}
    (sent_part,) = sent_parts(model, file, **settings)
    kind, value = part
    assert sent_part["type"] == kind
    if value is None:
        assert "takes no such file" in sent_part["text"]
    else:
        assert sent_part[kind] == value


def test_files_by_id_are_chunks_at_mistral() -> None:
    file = FileContent(file_id="f-1")
    assert sent_parts("mistral/mistral-large-latest", file) == [{"type": "file", "file_id": "f-1"}]


def test_files_of_a_result_follow_in_a_user_message() -> None:
    with ModelServer([plain(CALLING, "tool_calls"), plain(PLAIN)]) as server:
        llm = at_host("groq/some-model", server)
        transcript = Transcript([Message("hi")])
        answer = llm.completion(transcript)
        transcript.append(answer)
        files = (PDF, FileContent(PNG, "image/png"), VIDEO, FileContent(b"hi", "text/plain"))
        transcript.append((answer.calls[0], ToolResult(files)))
        llm.completion(transcript)
        tool, user = server.requests[1].messages[2:]
        assert tool["content"].splitlines() == [
            "(application/pdf, shown below)",
            "(image/png, shown below)",
            "[video/mp4, 1 bytes: this model's API takes no such file]",
            "(text/plain, shown below)",
        ]
        kinds = [part["type"] for part in user["content"]]
        assert kinds == ["text", "file", "image_url", "text"]
        assert user["content"][3]["text"] == "hi"


# --- caching ---


@pytest.mark.parametrize(
    ("model", "settings", "marked"),
    [
        ("openrouter/anthropic/claude-sonnet-4.5", {}, True),
        ("openrouter/anthropic/claude-sonnet-4.5", {"prompt_caching": False}, False),
        ("openrouter/openai/gpt-4o", {}, False),
        ("groq/some-model", {}, False),
    ],
)
def test_claude_behind_openrouter_is_asked_to_cache(
    model: str, settings: dict[str, Any], marked: bool
) -> None:
    with ModelServer([plain(PLAIN)]) as server:
        at_host(model, server, **settings).completion("hi")
        assert server.requests[0].json.get("cache_control") == (
            {"type": "ephemeral"} if marked else None
        )
