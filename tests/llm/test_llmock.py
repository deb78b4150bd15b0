"""The client against llmock, a server that injects all faults of a provider and reports how the
client handled them (`tests/mock_servers.py`)."""

from __future__ import annotations

import base64
import itertools
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast import (
    LLM,
    Agent,
    Conversation,
    ConversationStatus,
    ImageContent,
    Message,
    TextContent,
    Tool,
    tool,
)
from holdfast import events as ev
from holdfast.errors import (
    AuthenticationError,
    BadRequest,
    BadResponse,
    ContextTooLong,
    LLMConnectionError,
    LLMError,
    LLMTimeout,
    ModelNotFound,
    Overloaded,
    PermissionDenied,
    RateLimited,
    ServerError,
    StreamInterrupted,
)
from holdfast.llm import Completion, Delta, retry
from tests.mock_servers import LLMock

pytestmark = pytest.mark.skipif(bool(LLMock.missing()), reason=LLMock.missing())

KEY = "sk-planted-secret-for-llmock"
WIRES = ["openai_chat", "openai_responses", "anthropic_messages", "gemini"]
MODELS = {
    "openai_chat": "gpt-4o",
    "openai_responses": "gpt-5",
    "anthropic_messages": "claude-sonnet-4-5",
    "gemini": "gemini-2.5-flash",
}
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
LONG = "Ünïcödé 🦀 one two three four five six seven eight nine ten"
EVERY_STATUS = range(400, 600)

every_wire = pytest.mark.parametrize("wire", WIRES)
plain_and_streamed = pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])


@pytest.fixture(scope="module")
def running() -> Iterator[LLMock]:
    with LLMock("--tool-mode", "auto", "--response-style", "echo") as server:
        yield server


@pytest.fixture(scope="module")
def narrow() -> Iterator[LLMock]:
    with LLMock("--context-window", "50", "--rpm", "3") as server:
        yield server


@pytest.fixture
def server(running: LLMock) -> LLMock:
    running.reset()
    return running


def llm(server: LLMock, wire: str, **more: Any) -> LLM:
    return LLM(MODELS[wire], api_key=KEY, base_url=server.url(wire), wire=wire, **more)


def counting() -> tuple[Tool, list[tuple[int, str]]]:
    """Return a tool and the list of its arguments, one entry per run."""
    ran: list[tuple[int, str]] = []
    lock = threading.Lock()

    @tool
    def count_boxes(shelf: int, colour: str) -> str:
        """Count the boxes on a shelf."""
        with lock:
            ran.append((shelf, colour))
        return f"{shelf} {colour} boxes"

    return count_boxes, ran


def tool_results(conversation: Conversation) -> list[str]:
    return [
        event.result.text
        for event in conversation.get_history()
        if isinstance(event, ev.ToolCallFinished)
    ]


def expected(wire: str, status: int) -> tuple[type[LLMError], bool]:
    """Return the error class of a status, by llmock's words for it on that wire, and whether a
    retry makes sense."""
    match status:
        case 401:
            return AuthenticationError, False
        case 402:
            return RateLimited, False  # no credit left: waiting does not help
        case 403:
            return PermissionDenied, False
        case 404 | 405:
            return ModelNotFound, False
        case 408 | 504:
            return LLMTimeout, True
        case 409:
            return BadRequest, True
        case 413:
            return ContextTooLong, False
        case 429:
            return RateLimited, True
        case 498 | 529:
            return Overloaded, True
        case 503:
            return (Overloaded if wire in ("anthropic_messages", "gemini") else ServerError), True
        case 502 if wire == "gemini":  # UNAVAILABLE
            return Overloaded, True
        case _ if status >= 500:
            return ServerError, True
        case _:
            return BadRequest, False


# --- answers ---


@pytest.mark.slow
@every_wire
@plain_and_streamed
def test_a_question_is_answered(server: LLMock, wire: str, stream: bool) -> None:
    deltas: list[Delta] = []
    answer = llm(server, wire, stream=stream).completion(LONG, on_delta=deltas.append)
    assert answer.text == f"Hello! You said: {LONG}"
    assert (answer.stop_reason, answer.wire, answer.calls) == ("stop", wire, ())
    assert answer.usage.input_tokens > 0
    assert answer.usage.output_tokens > 0
    assert "".join(delta.text for delta in deltas) == (answer.text if stream else "")
    assert (len(deltas) > 5) is stream


@every_wire
@plain_and_streamed
def test_a_conversation_calls_a_tool_and_tells_what_it_said(
    server: LLMock, wire: str, stream: bool
) -> None:
    count_boxes, ran = counting()
    with Conversation(Agent(llm(server, wire, stream=stream), tools=[count_boxes])) as conversation:
        conversation.send_message("Count the boxes on the shelf.")
        state = conversation.run()
        assert state.status is ConversationStatus.FINISHED, state.error
        assert len(ran) == 1
        assert tool_results(conversation) == [f"{ran[0][0]} {ran[0][1]} boxes"]
    assert state.answer.startswith("Hello! You said: ")
    assert state.usage.input_tokens > 0
    first, second = server.requests()
    assert (first["status"], second["status"]) == (200, 200)
    assert tool_results(conversation)[0] in str(second["body"])
    assert server.verdict()["findings"] == []


@every_wire
@plain_and_streamed
def test_parallel_calls_are_answered_together(server: LLMock, wire: str, stream: bool) -> None:
    count_boxes, ran = counting()
    calls = [
        {"name": "count_boxes", "arguments": {"shelf": shelf, "colour": "ré🦀d"}}
        for shelf in (1, 2, 3)
    ]
    server.plan(
        {"type": "reply", "text": "I shall look.", "tool_calls": calls},
        {"type": "reply", "text": "six in all"},
    )
    with Conversation(Agent(llm(server, wire, stream=stream), tools=[count_boxes])) as conversation:
        conversation.send_message("How many?")
        state = conversation.run()
        assert (state.status, state.answer) == (ConversationStatus.FINISHED, "six in all")
        assert sorted(ran) == [(1, "ré🦀d"), (2, "ré🦀d"), (3, "ré🦀d")]
    _, second = server.requests()
    places = [str(second["body"]).index(f"{shelf} ré🦀d boxes") for shelf in (1, 2, 3)]
    assert places == sorted(places)  # in the order of the calls, whichever ended first


@every_wire
@plain_and_streamed
def test_an_image_reaches_the_provider(server: LLMock, wire: str, stream: bool) -> None:
    message = Message((TextContent("What is this?"), ImageContent(PNG)))
    assert "What is this?" in llm(server, wire, stream=stream).completion([message]).text
    assert base64.b64encode(PNG).decode() in str(server.requests()[0]["body"])


@every_wire
@plain_and_streamed
def test_an_answer_cut_at_its_limit_or_filtered_says_so(
    server: LLMock, wire: str, stream: bool
) -> None:
    for reason in ("length", "content_filter"):
        if (wire, reason) == (
            "openai_responses",
            "content_filter",
        ):  # llmock calls it completed there
            continue
        server.plan({"type": "reply", "text": "so far", "finish_reason": reason})
        answer = llm(server, wire, stream=stream).completion("go on")
        assert (answer.text, answer.stop_reason) == ("so far", reason)


@every_wire
@plain_and_streamed
def test_an_answer_comes_in_the_form_that_was_asked_for(
    server: LLMock, wire: str, stream: bool
) -> None:
    if wire == "anthropic_messages":
        pytest.skip("llmock knows only the field of Anthropic's beta")
    schema = {
        "type": "object",
        "properties": {"shelf": {"type": "integer"}, "colour": {"type": "string"}},
        "required": ["shelf", "colour"],
        "additionalProperties": False,
    }
    answer = llm(server, wire, stream=stream, response_format=schema).completion("Which one?")
    data = json.loads(answer.text)
    assert {name: type(value) for name, value in data.items()} == {"shelf": int, "colour": str}


# --- statuses ---


@pytest.mark.slow
@every_wire
@plain_and_streamed
def test_every_status_is_its_own_error(server: LLMock, wire: str, stream: bool) -> None:
    model = llm(server, wire, stream=stream, max_retries=0)
    server.plan(*({"type": "fail", "status": status} for status in EVERY_STATUS))
    for status in EVERY_STATUS:
        with pytest.raises(LLMError) as caught:
            model.completion("hello")
        error = caught.value
        kind, retryable = expected(wire, status)
        assert (type(error), error.status, error.retryable) == (kind, status, retryable), error
        assert error.retry_after == (1.0 if status in (429, 503, 504, 529) else None)
        assert error.code
        assert KEY not in str(error)
        assert "127.0.0.1" in str(error) or MODELS[wire] in str(error)
    assert len(server.requests()) == len(EVERY_STATUS)


@every_wire
def test_what_cannot_be_helped_is_asked_once(server: LLMock, wire: str) -> None:
    for status in (400, 401, 402, 403, 404, 413, 422):
        server.plan({"type": "fail", "status": status})
        with pytest.raises(expected(wire, status)[0]):
            llm(server, wire, max_retries=5).completion(f"hello {status}")
    assert len(server.requests()) == 7
    assert server.verdict()["findings"] == []


@pytest.mark.slow
@every_wire
@plain_and_streamed
def test_what_passes_is_asked_again(
    server: LLMock, wire: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """llmock sends Retry-After; its report shows whether the client respected it."""
    monkeypatch.setattr(retry, "BASE_DELAY_SECONDS", 0.05)
    for status in (408, 409, 429, 500, 502, 503, 504, 529):
        retry_after = {"retry_after": 0.1} if status in (429, 503, 504, 529) else {}
        server.plan({"type": "fail", "status": status, **retry_after})
        assert (
            llm(server, wire, stream=stream, max_retries=1).completion(f"hello {status}").text
            == f"Hello! You said: hello {status}"
        )
    verdict = server.verdict()
    assert (verdict["calls"], verdict["attempts"], verdict["errors"]) == (8, 16, 0), verdict


def test_the_report_would_tell_of_an_ignored_retry_after(
    server: LLMock, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.plan({"type": "fail", "status": 429})
    monkeypatch.setattr(retry, "delay", lambda *_: 0.0)
    llm(server, "openai_chat").completion("hello")
    assert [finding["code"] for finding in server.verdict()["findings"]] == ["retry_after_ignored"]


def test_a_wait_longer_than_the_deadline_is_not_begun(server: LLMock) -> None:
    server.plan({"type": "fail", "status": 429, "retry_after": 60})
    with pytest.raises(RateLimited) as caught:
        llm(server, "openai_chat", deadline=5).completion("hello")
    assert caught.value.retry_after == 60


@pytest.mark.slow
@every_wire
def test_a_prompt_that_does_not_fit_is_too_long(narrow: LLMock, wire: str) -> None:
    model = llm(narrow, wire).replace(api_key=f"sk-context-{wire}")  # quotas are by key
    assert model.completion("short").text
    with pytest.raises(ContextTooLong) as caught:
        model.completion("far too long " * 100)
    assert caught.value.status == 400


@every_wire
def test_a_quota_tells_how_long_it_lasts(narrow: LLMock, wire: str) -> None:
    model = llm(narrow, wire, max_retries=0).replace(api_key=f"sk-quota-{wire}")
    for number in range(3):
        model.completion(f"question {number}")
    with pytest.raises(RateLimited) as caught:
        model.completion("one too many")
    assert caught.value.retry_after is not None
    assert 15 < caught.value.retry_after <= 20


# --- streams ---


REPLIES: dict[str, dict[str, Any]] = {
    "text": {"type": "reply", "text": LONG},
    "calls": {
        "type": "reply",
        "tool_calls": [
            {"name": "count_boxes", "arguments": {"shelf": n, "colour": "blue"}} for n in (1, 2)
        ],
    },
}


def essence(answer: Completion) -> tuple[Any, ...]:
    return (
        answer.text,
        answer.stop_reason,
        [(call.name, call.arguments, call.invalid) for call in answer.calls],
    )


def ask(model: LLM, prompt: str, tool: Tool) -> Completion | LLMError:
    try:
        return model.completion(prompt, [tool])
    except LLMError as error:
        return error


@pytest.mark.slow
@every_wire
@pytest.mark.parametrize("reply", REPLIES)
@pytest.mark.parametrize("fault", ["truncate", "disconnect", "malformed"])
def test_a_broken_stream_is_never_a_short_answer(
    server: LLMock, wire: str, reply: str, fault: str
) -> None:
    """The stream breaks at each of its chunks in turn. The result is an error, or the whole
    answer if it was complete by then."""
    count_boxes, _ = counting()
    server.plan(REPLIES[reply])
    model = llm(server, wire, stream=True, max_retries=0)
    whole = model.completion("hello", [count_boxes])
    chunks = server.requests()[0]["chunks_sent"]
    outcomes: list[str] = []
    for at in range(chunks):
        server.plan(REPLIES[reply], {"type": "stream_fault", "kind": fault, "after_chunks": at})
        answer = ask(model, "hello", count_boxes)
        if isinstance(answer, Completion):
            assert essence(answer) == essence(whole), f"{fault} at {at} of {chunks}"
            outcomes.append("whole")
            continue
        outcomes.append("error")
        early = isinstance(answer, LLMConnectionError) and (fault, at) == (
            "disconnect",
            0,
        )  # before the first byte
        assert early or isinstance(answer, BadResponse), answer
        assert early or isinstance(answer, StreamInterrupted) is (fault != "malformed")
        assert answer.retryable
        assert KEY not in str(answer)
    assert outcomes == sorted(outcomes), "an answer that was whole before is an error later"
    assert outcomes.count("whole") <= 2, outcomes  # chunks that only count tokens, and the end mark
    assert [request["fault"] for request in server.requests()[1:]] == [
        f"stream:{fault}@{at}" for at in range(chunks)
    ]


@pytest.mark.slow
@every_wire
@pytest.mark.parametrize("fault", ["truncate", "disconnect", "malformed"])
def test_a_broken_stream_is_asked_for_again(
    server: LLMock, wire: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "BASE_DELAY_SECONDS", 0.05)
    deltas: list[Delta] = []
    server.plan({"type": "stream_fault", "kind": fault, "after_chunks": 6})
    answer = llm(server, wire, stream=True).completion(LONG, on_delta=deltas.append)
    assert answer.text == f"Hello! You said: {LONG}"
    restart = next(number for number, delta in enumerate(deltas) if delta.kind == "restart")
    assert restart > 0
    assert "".join(delta.text for delta in deltas[restart + 1 :]) == answer.text
    verdict = server.verdict()
    assert (verdict["attempts"], verdict["errors"]) == (2, 0)


@pytest.mark.slow
@every_wire
@pytest.mark.parametrize("fault", ["truncate", "disconnect", "malformed"])
def test_a_conversation_survives_broken_streams(
    server: LLMock, wire: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "BASE_DELAY_SECONDS", 0.05)
    count_boxes, ran = counting()
    server.plan(
        {
            "type": "stream_fault",
            "kind": fault,
            "after_chunks": 2 if wire != "gemini" else 0,
            "times": 3,
        }
    )
    with Conversation(Agent(llm(server, wire, stream=True), tools=[count_boxes])) as conversation:
        conversation.send_message("Count the boxes on the shelf.")
        state = conversation.run()
    assert state.status is ConversationStatus.FINISHED, state.error
    assert len(ran) == 1
    verdict = server.verdict()
    assert (verdict["attempts"], verdict["errors"]) == (5, 0), verdict


@pytest.mark.proof
@every_wire
def test_a_stream_that_falls_silent_times_out(server: LLMock, wire: str) -> None:
    for at in (0, 1, 5):
        server.plan(
            {"type": "stream_fault", "kind": "stall", "after_chunks": at, "stall_seconds": 30}
        )
        with pytest.raises(LLMTimeout):
            llm(server, wire, stream=True, max_retries=0, timeout=0.1).completion(LONG)
    server.plan({"type": "stream_fault", "kind": "stall", "after_chunks": 5, "stall_seconds": 30})
    assert (
        llm(server, wire, stream=True, timeout=0.1).completion(LONG).text
        == f"Hello! You said: {LONG}"
    )


@pytest.mark.proof
@every_wire
def test_a_late_answer_times_out_and_a_slow_one_does_not(server: LLMock, wire: str) -> None:
    for stream, behaviour in ((False, "delay"), (True, "delay"), (True, "slow_first_token")):
        for limit in ("timeout", "deadline"):
            server.plan({"type": behaviour, "seconds": 30})
            with pytest.raises(LLMTimeout):
                llm(server, wire, stream=stream, max_retries=0, **{limit: 0.1}).completion("hello")
        server.plan({"type": behaviour, "seconds": 0.1})
        assert (
            llm(server, wire, stream=stream, timeout=10).completion("hello").text
            == "Hello! You said: hello"
        )


# --- tool calls ---


@every_wire
@plain_and_streamed
def test_a_tool_that_does_not_exist_is_told_to_the_model(
    server: LLMock, wire: str, stream: bool
) -> None:
    count_boxes, ran = counting()
    server.plan({"type": "tool_fault", "kind": "unknown_tool"})
    with Conversation(Agent(llm(server, wire, stream=stream), tools=[count_boxes])) as conversation:
        conversation.send_message("Count the boxes on the shelf.")
        state = conversation.run()
        assert state.status is ConversationStatus.FINISHED, state.error
        assert ran == []
        assert "llmock_unknown_tool" in tool_results(conversation)[0]


@pytest.mark.parametrize(
    ("wire", "stream"),
    # Elsewhere arguments are no text, or llmock reads half of an object as an empty one.
    [
        ("openai_chat", False),
        ("openai_chat", True),
        ("openai_responses", False),
        ("openai_responses", True),
        ("anthropic_messages", True),
    ],
)
def test_broken_arguments_are_told_to_the_model(server: LLMock, wire: str, stream: bool) -> None:
    count_boxes, ran = counting()
    server.plan({"type": "tool_fault", "kind": "malformed_arguments"})
    with Conversation(Agent(llm(server, wire, stream=stream), tools=[count_boxes])) as conversation:
        conversation.send_message("Count the boxes on the shelf.")
        state = conversation.run()
        assert state.status is ConversationStatus.FINISHED, state.error
        assert ran == []
        call = next(
            event.calls[0]
            for event in conversation.get_history()
            if isinstance(event, ev.AssistantReplied) and event.calls
        )
        assert call.invalid
        assert len(tool_results(conversation)) == 1
    assert [request["status"] for request in server.requests()] == [200, 200]


# --- under load ---


@pytest.mark.proof
def test_eight_threads_get_through_a_limit_that_refuses_a_third() -> None:
    with LLMock("--error-rate", "429=0.3", "--response-style", "echo") as server:
        # A call fails more than ten times in a row in one of 10^5 runs of this test.
        models = [
            llm(server, wire, max_retries=10, stream=stream)
            for wire in WIRES
            for stream in (False, True)
        ]
        with ThreadPoolExecutor(8) as pool:
            prompts = [f"call number {number}" for number in range(50)]
            answers = list(
                pool.map(
                    lambda pair: pair[0].completion(pair[1]).text,
                    zip(itertools.cycle(models), prompts, strict=False),
                )
            )
        assert answers == [f"Hello! You said: {prompt}" for prompt in prompts]
        verdict = server.verdict()
        assert verdict["faults_injected"] > 0
        assert (verdict["calls"], verdict["passed"]) == (50, True), verdict


@pytest.mark.proof
@every_wire
def test_agents_get_through_everything_at_once(wire: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A third of the requests fails, and half of the streams break, in four ways. Each
    conversation reaches its end and runs each tool once, and the report finds no fault."""
    monkeypatch.setattr(retry, "MAX_DELAY_SECONDS", 0.5)
    faults = ["truncate=0.2", "disconnect=0.1", "malformed=0.1", "stall=0.05"]
    rates = ["429=0.1", "500=0.1", "503=0.05", "529=0.05"]
    options = [
        *(f"--stream-fault={fault}" for fault in faults),
        *(f"--error-rate={rate}" for rate in rates),
    ]
    with LLMock("--response-style", "echo", "--stream-stall-seconds", "30", *options) as server:
        model = llm(server, wire, stream=True, max_retries=40, timeout=0.5)

        def work(number: int) -> None:
            count_boxes, ran = counting()
            with Conversation(Agent(model, tools=[count_boxes])) as conversation:
                conversation.send_message(f"Count the boxes on shelf {number}.")
                state = conversation.run()
            assert state.status is ConversationStatus.FINISHED, state.error
            assert state.answer.startswith("Hello! You said: ")
            assert len(ran) == 1

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(16)))
        verdict = server.verdict()
        assert verdict["faults_injected"] > 10
        assert {
            finding["code"] for finding in verdict["findings"] if finding["severity"] == "error"
        } <= {"retry_storm"}, verdict
