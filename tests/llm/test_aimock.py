"""The client against aimock, a server of four makers' APIs that answers from fixtures, checks
keys and thinking, and breaks off (`tests/mock_servers.py`). The live checks of
`test_live` run against it, too."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
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
    Cancelled,
    ContentFiltered,
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
from holdfast.tools.context import Cancellation
from tests.llm import test_live as live
from tests.llm.test_llmock import MODELS, PNG, ask, every_wire, plain_and_streamed, tool_results
from tests.mock_servers import Aimock
from tests.model_server import ModelServer, Request, text
from tests.paths import REPO

pytestmark = pytest.mark.skipif(bool(Aimock.missing()), reason=Aimock.missing())

KEY = "sk-planted-secret-for-aimock"
STORY = "Ünïcödé 🦀🦀 and a long story of a crab that went to the sea. " * 4
USAGE = {
    "prompt_tokens": 11,
    "completion_tokens": 7,
    "promptTokenCount": 11,
    "candidatesTokenCount": 7,
}
LOOKS = [
    {"name": "look_up", "arguments": {"city": city}, "id": f"call_{number}"}
    for number, city in enumerate(("Paris", "Rome"))
]
SIGNED = {"reasoning": "I should look both up.", "reasoningSignature": "c2lnbmVk"}
HIDDEN = {
    **SIGNED,
    "redactedThinking": ["aGlkZGVu"],
}  # aimock reads no further in an answer that begins like this

# status -> type, code and message in a provider's words; and our error for it.
ERRORS: dict[str, tuple[int, str, str, str, type[LLMError]]] = {
    "bad-request": (
        400,
        "invalid_request_error",
        "unsupported_value",
        "No such value.",
        BadRequest,
    ),
    "too-long": (
        400,
        "invalid_request_error",
        "context_length_exceeded",
        "Your prompt is too long: 9 tokens > 8 maximum.",
        ContextTooLong,
    ),
    "filtered": (
        400,
        "invalid_request_error",
        "content_filter",
        "Refused: content management policy.",
        ContentFiltered,
    ),
    "bad-key": (
        401,
        "authentication_error",
        "invalid_api_key",
        "Incorrect API key provided.",
        AuthenticationError,
    ),
    "forbidden": (403, "permission_error", "forbidden", "Not for this key.", PermissionDenied),
    "no-model": (
        404,
        "not_found_error",
        "model_not_found",
        "The model does not exist.",
        ModelNotFound,
    ),
    "too-large": (
        413,
        "request_too_large",
        "request_too_large",
        "Request too large.",
        ContextTooLong,
    ),
    "slow-down": (429, "rate_limit_error", "rate_limit_exceeded", "Slow down.", RateLimited),
    "broken": (500, "api_error", "server_error", "Oh no.", ServerError),
    "gateway": (502, "api_error", "bad_gateway", "Bad gateway.", ServerError),
    "overloaded": (529, "overloaded_error", "overloaded", "Overloaded.", Overloaded),
}


def fixture(prompt: str, response: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"match": {"userMessage": prompt, **more.pop("match", {})}, "response": response, **more}


FIXTURES: list[dict[str, Any]] = [
    *(
        fixture(name, {"status": s, "error": {"type": t, "code": c, "message": m}})
        for name, (s, t, c, m, _) in ERRORS.items()
    ),
    fixture(
        "wait-long",
        {
            "status": 429,
            "error": {"type": "rate_limit_error", "message": "Slow down."},
            "retryAfter": 37,
        },
    ),
    fixture("story", {"content": STORY, "usage": USAGE}, chunkSize=1),
    fixture("cut-at-limit", {"content": "so far", "finishReason": "length", "usage": USAGE}),
    fixture("two-cities", {"content": "both seen", "usage": USAGE}, match={"hasToolResult": True}),
    fixture(
        "two-cities",
        {"content": "I look.", "toolCalls": LOOKS, "usage": USAGE},
        match={"hasToolResult": False},
        chunkSize=3,
    ),
    fixture(
        "think",
        {"content": "thought it over", **SIGNED, "usage": USAGE},
        match={"hasToolResult": True},
    ),
    fixture("think signed", {"toolCalls": LOOKS, **SIGNED, "usage": USAGE}, chunkSize=3),
    fixture("think hidden", {"toolCalls": LOOKS, **HIDDEN, "usage": USAGE}, chunkSize=3),
    fixture(
        "tool-before-text",
        {
            "blocks": [{"type": "toolCall", **LOOKS[0]}, {"type": "text", "text": "behind"}],
            "usage": USAGE,
        },
    ),
    *(
        fixture(
            f"cut-after-{n}.",
            {"content": STORY, "usage": USAGE},
            chunkSize=40,
            latency=2,
            truncateAfterChunks=n,
        )
        for n in range(1, 20)
    ),
    *(
        fixture(
            f"cut-calls-after-{n}.",
            {"toolCalls": LOOKS},
            chunkSize=6,
            latency=2,
            truncateAfterChunks=n,
        )
        for n in range(1, 20)
    ),
    fixture(
        "cut-in-time",
        {"content": STORY},
        chunkSize=4,
        disconnectAfterMs=1000,  # the first chunk must be out by then, on a busy machine, too
        streamingProfile={"ttft": 10, "tps": 20},
    ),
    fixture("slow-start", {"content": STORY}, streamingProfile={"ttft": 20_000, "tps": 1000}),
    fixture("slow-middle", {"content": STORY}, streamingProfile={"ttft": 1, "tps": 0.05}),
    fixture(
        "slow-but-steady",
        {"content": "one two three four five"},
        chunkSize=5,
        streamingProfile={"ttft": 100, "tps": 10},
    ),
    fixture("picture", {"content": "a crab", "usage": USAGE}),
    fixture("hello", {"content": "Hi there", "usage": USAGE}),
]


@pytest.fixture(scope="module")
def running() -> Iterator[Aimock]:
    with Aimock(FIXTURES, keys=[KEY, "another-key"]) as server:
        yield server


@pytest.fixture
def server(running: Aimock) -> Aimock:
    running.reset()
    return running


def llm(server: Aimock, wire: str, **more: Any) -> LLM:
    return LLM(
        **{
            "model": MODELS[wire],
            "api_key": KEY,
            "base_url": server.url(wire),
            "wire": wire,
            **more,
        }
    )


def looking() -> tuple[Tool, list[str]]:
    cities: list[str] = []
    lock = threading.Lock()

    @tool
    def look_up(city: str) -> str:
        """Look up a city."""
        with lock:
            cities.append(city)
        return f"{city} is a city"

    return look_up, cities


def statuses(server: Aimock) -> list[int]:
    return [request["response"]["status"] for request in server.requests()]


# --- answers ---


@pytest.mark.slow
@every_wire
@plain_and_streamed
def test_a_question_is_answered(server: Aimock, wire: str, stream: bool) -> None:
    """Streamed, each UTF-16 unit comes in a piece of its own, including the halves of a
    surrogate pair."""
    deltas: list[Delta] = []
    answer = llm(server, wire, stream=stream).completion("story", on_delta=deltas.append)
    assert answer.text == STORY
    assert (answer.usage.input_tokens, answer.usage.output_tokens, answer.stop_reason) == (
        11,
        7,
        "stop",
    )
    if stream:
        assert len(deltas) > 200
        assert "�" not in answer.text


@every_wire
@plain_and_streamed
def test_an_answer_cut_at_its_limit_says_so(server: Aimock, wire: str, stream: bool) -> None:
    answer = llm(server, wire, stream=stream).completion("cut-at-limit")
    assert (answer.text, answer.stop_reason) == ("so far", "length")


@every_wire
@plain_and_streamed
def test_a_conversation_runs_parallel_calls(server: Aimock, wire: str, stream: bool) -> None:
    look_up, cities = looking()
    with Conversation(Agent(llm(server, wire, stream=stream), tools=[look_up])) as conversation:
        conversation.send_message("two-cities")
        state = conversation.run()
        assert (state.status, state.answer) == (
            ConversationStatus.FINISHED,
            "both seen",
        ), state.error
        assert sorted(cities) == ["Paris", "Rome"]
        assert sorted(tool_results(conversation)) == ["Paris is a city", "Rome is a city"]
        first = next(
            event for event in conversation.get_history() if isinstance(event, ev.AssistantReplied)
        )
        assert (first.text, [call.provider_id for call in first.calls]) == (
            "I look.",
            ["call_0", "call_1"],
        )
    assert (state.usage.input_tokens, state.usage.output_tokens) == (22, 14)
    assert statuses(server) == [200, 200]
    results = [
        message for message in server.requests()[1]["body"]["messages"] if message["role"] == "tool"
    ]
    assert ["Paris" in str(result["content"]) for result in results] == [True, False]


@every_wire
@plain_and_streamed
def test_thinking_goes_back_as_it_came(server: Aimock, wire: str, stream: bool) -> None:
    """Three turns with tools. aimock refuses Anthropic's thinking without its signature."""
    effort = (
        {"reasoning_budget": 2000}
        if wire in ("anthropic_messages", "gemini")
        else {"reasoning_effort": "low"}
    )
    model = llm(
        server,
        wire,
        stream=stream,
        **({**effort, "model": "gpt-5"} if wire == "openai_chat" else effort),
    )
    look_up, cities = looking()
    with Conversation(Agent(model, tools=[look_up])) as conversation:
        for prompt in ("think signed", "think hidden", "think signed again"):
            conversation.send_message(prompt)
            state = conversation.run()
            assert (state.status, state.answer) == (
                ConversationStatus.FINISHED,
                "thought it over",
            ), state.error
        answers = [
            event for event in conversation.get_history() if isinstance(event, ev.AssistantReplied)
        ]
    assert [answer.reasoning for answer in answers] == ["I should look both up."] * 6
    assert len(cities) == 6
    assert statuses(server) == [200] * 6


def test_aimock_would_refuse_thinking_without_its_signature(server: Aimock) -> None:
    """This shows that the test before it proves something."""
    look_up, _ = looking()
    model = llm(server, "anthropic_messages", reasoning_budget=2000)
    history: list[Message | Completion] = [Message("think signed")]
    answer = model.completion(history, [look_up])
    unsigned = Message("", role="assistant", tool_calls=answer.calls)
    results = [
        Message("a city", role="tool", tool_call_id=call.provider_id) for call in answer.calls
    ]
    assert model.completion([*history, answer, *results], [look_up]).text == "thought it over"
    # Without thinking, as the wire must request it when it continues an answer without thoughts;
    # aimock refuses it with thinking.
    forced = model.replace(extra_body={"thinking": {"type": "enabled", "budget_tokens": 2000}})
    with pytest.raises(BadRequest, match="thinking"):
        forced.completion([*history, unsigned, *results], [look_up])


@every_wire
@plain_and_streamed
def test_text_behind_a_call_is_kept(server: Aimock, wire: str, stream: bool) -> None:
    look_up, _ = looking()
    answer = llm(server, wire, stream=stream).completion("tool-before-text", [look_up])
    assert (answer.text, [call.arguments for call in answer.calls]) == (
        "behind",
        [{"city": "Paris"}],
    )


@every_wire
@plain_and_streamed
def test_a_picture_is_taken(server: Aimock, wire: str, stream: bool) -> None:
    message = Message((TextContent("picture"), ImageContent(PNG)))
    assert llm(server, wire, stream=stream).completion([message]).text == "a crab"


# --- refusals ---


@every_wire
@plain_and_streamed
def test_a_wrong_key_is_refused_and_not_shown(server: Aimock, wire: str, stream: bool) -> None:
    with pytest.raises(AuthenticationError) as caught:
        llm(server, wire, stream=stream, api_key="sk-planted-but-wrong").completion("hello")
    assert (caught.value.status, caught.value.code) == (401, "invalid_api_key")
    assert "planted" not in str(caught.value)
    with pytest.raises(AuthenticationError):
        llm(server, wire, stream=stream, api_key="").completion("hello")


@pytest.mark.slow
@every_wire
@plain_and_streamed
@pytest.mark.parametrize("name", ERRORS)
def test_every_refusal_is_its_own_error(server: Aimock, wire: str, stream: bool, name: str) -> None:
    status, _, _, message, kind = ERRORS[name]
    with pytest.raises(LLMError) as caught:
        llm(server, wire, stream=stream, max_retries=0).completion(name)
    error = caught.value
    assert (type(error), error.status) == (kind, status), error
    assert message in str(error)
    assert error.code or wire == "gemini"
    assert error.retry_after == (1.0 if status == 429 else None)
    assert KEY not in str(error)


@every_wire
def test_retry_after_is_read_and_a_deadline_kept(server: Aimock, wire: str) -> None:
    with pytest.raises(RateLimited) as caught:
        llm(server, wire, deadline=10).completion("wait-long")
    assert caught.value.retry_after == 37
    assert statuses(server) == [429]


@every_wire
def test_what_no_fixture_fits_is_a_failure_of_the_server(server: Aimock, wire: str) -> None:
    with pytest.raises(ServerError, match="no fixture matched"):
        llm(server, wire, max_retries=0).completion("never heard of")


@pytest.mark.slow
@every_wire
@plain_and_streamed
def test_one_failure_is_overcome(
    server: Aimock, wire: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "BASE_DELAY_SECONDS", 0.05)
    for status in (408, 409, 500, 503, 529):
        server.ask(
            "POST",
            "/__aimock/error",
            {"status": status, "body": {"message": "once", "type": "server_error"}},
        )
        assert (
            llm(server, wire, stream=stream, max_retries=1).completion("hello").text == "Hi there"
        )
    assert statuses(server)[1::2] == [200] * 5


# --- faults ---


CHAOS: dict[str, tuple[type[LLMError], int, str]] = {
    "drop": (ServerError, 500, "chaos_drop"),
    "malformed": (BadResponse, 0, ""),
    "ratelimit": (RateLimited, 429, "chaos_ratelimit"),
    "disconnect": (LLMConnectionError, 0, ""),
}


@every_wire
@plain_and_streamed
@pytest.mark.parametrize("fault", CHAOS)
def test_every_fault_is_its_own_error(server: Aimock, wire: str, stream: bool, fault: str) -> None:
    kind, status, code = CHAOS[fault]
    with pytest.raises(LLMError) as caught:
        llm(
            server, wire, stream=stream, max_retries=0, headers={f"x-aimock-chaos-{fault}": "1"}
        ).completion("hello")
    error = caught.value
    assert (type(error), error.status, error.code, error.retryable) == (
        kind,
        status,
        code,
        True,
    ), error
    assert KEY not in str(error)


@every_wire
@plain_and_streamed
def test_faults_at_random_are_overcome(
    server: Aimock, wire: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four in ten requests fail. Twenty failures in a row happen once in 10^7 runs."""
    monkeypatch.setattr(retry, "BASE_DELAY_SECONDS", 0.001)
    headers = {
        "x-aimock-chaos-drop": "0.15",
        "x-aimock-chaos-malformed": "0.15",
        "x-aimock-chaos-disconnect": "0.15",
    }
    model = llm(server, wire, stream=stream, max_retries=20, headers=headers)
    assert [model.completion("hello").text for _ in range(20)] == ["Hi there"] * 20
    assert len(server.requests()) > 20


@pytest.mark.slow
@every_wire
@plain_and_streamed
def test_latency_beyond_the_timeout_is_one(server: Aimock, wire: str, stream: bool) -> None:
    with pytest.raises(LLMTimeout):
        llm(
            server,
            wire,
            stream=stream,
            max_retries=0,
            timeout=0.1,
            headers={"x-aimock-chaos-latency": "20000"},
        ).completion("hello")
    assert (
        llm(server, wire, stream=stream, timeout=5, headers={"x-aimock-chaos-latency": "100"})
        .completion("hello")
        .text
        == "Hi there"
    )


@pytest.mark.slow
@every_wire
@pytest.mark.parametrize("what", ["", "calls-"], ids=["text", "calls"])
def test_a_truncated_stream_is_never_a_short_answer(server: Aimock, wire: str, what: str) -> None:
    """The connection is destroyed after each chunk in turn; the answer has some ten chunks."""
    look_up, _ = looking()
    model = llm(server, wire, stream=True, max_retries=0)
    outcomes: list[str] = []
    for number in range(1, 20):
        answer = ask(model, f"cut-{what}after-{number}.", look_up)
        if isinstance(answer, LLMError):
            # Node drops unsent data: after the first chunk, that is the rest.
            assert isinstance(
                answer, StreamInterrupted if number > 1 else StreamInterrupted | LLMConnectionError
            ), answer
            outcomes.append("broken")
        else:
            assert answer.text == ("" if what else STORY)
            assert [call.arguments for call in answer.calls] == (
                [{"city": "Paris"}, {"city": "Rome"}] if what else []
            )
            outcomes.append("whole")
    assert outcomes == sorted(outcomes)
    assert outcomes[0] == "broken"
    assert outcomes[-1] == "whole"


@pytest.mark.proof
@every_wire
def test_a_stream_that_breaks_off_in_time_is_asked_for_again(
    server: Aimock, wire: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "BASE_DELAY_SECONDS", 0.001)
    deltas: list[Delta] = []
    with pytest.raises(StreamInterrupted):
        llm(server, wire, stream=True, max_retries=2).completion(
            "cut-in-time", on_delta=deltas.append
        )
    assert [delta.kind for delta in deltas].count("restart") == 2
    assert statuses(server) == [200] * 3


@pytest.mark.proof
@every_wire
def test_a_slow_stream_is_waited_for_and_a_silent_one_is_not(server: Aimock, wire: str) -> None:
    assert (
        llm(server, wire, stream=True, timeout=2).completion("slow-but-steady").text
        == "one two three four five"
    )
    for prompt in ("slow-start", "slow-middle"):
        with pytest.raises(LLMTimeout):
            llm(server, wire, stream=True, max_retries=0, timeout=0.1).completion(prompt)
        with pytest.raises(LLMTimeout):
            llm(server, wire, stream=True, deadline=0.1).completion(prompt)


@pytest.mark.slow
@every_wire
@plain_and_streamed
def test_a_call_is_cancelled_while_it_waits(server: Aimock, wire: str, stream: bool) -> None:
    cancelled = Cancellation()
    timer = threading.Timer(0.1, cancelled.cancel)
    timer.start()
    began = time.monotonic()
    with pytest.raises(Cancelled):
        llm(server, wire, stream=stream, headers={"x-aimock-chaos-latency": "20000"}).completion(
            "hello", cancelled=cancelled
        )
    assert time.monotonic() - began < 15
    timer.join()


# --- the live checks, against good and bad providers ---


def of_a_provider(prompt: str, content: Any, **more: Any) -> dict[str, Any]:
    return fixture(prompt, {"content": content, "usage": USAGE}, **more)


def looks_at(prompt: str, *cities: str, answer: str) -> list[dict[str, Any]]:
    calls = [{"name": "temperature", "arguments": {"city": city}} for city in cities]
    return [
        fixture(prompt, {"content": answer, "usage": USAGE}, match={"hasToolResult": True}),
        fixture(
            prompt,
            {
                "toolCalls": calls,
                "reasoning": "I look.",
                "reasoningSignature": "c2ln",
                "usage": USAGE,
            },
        ),
    ]


PROVIDER: list[dict[str, Any]] = [
    {
        "match": {"model": live.NO_MODEL},
        "response": FIXTURES[list(ERRORS).index("no-model")]["response"],
    },
    of_a_provider(live.CAPITAL, "Paris"),
    of_a_provider(live.COLOUR, "Red."),
    of_a_provider(live.FORM, {"name": "Tokyo", "millions": 37}),
    of_a_provider(
        live.COUNT,
        "one, two, three, four, " * 50,
        chunkSize=5,
        streamingProfile={"ttft": 1, "tps": 50},
    ),
    *looks_at(live.WEATHER, "Paris", "Rome", answer="17 and 23 degrees"),
    *looks_at(live.THINK_1, "Paris", "Rome", answer="Rome"),
    *looks_at(live.THINK_2, "Oslo", answer="Yes"),
    fixture(live.FILLER * 10, FIXTURES[list(ERRORS).index("too-long")]["response"]),
]


def run_live_checks(*specs: str) -> subprocess.CompletedProcess[str]:
    """Run the live checks in a process of their own, with the most verbose output."""
    loud = ["-vv", "-rA", "-s", "--showlocals", "--tb=long", "--log-level=DEBUG"]
    command = [
        sys.executable,
        "-m",
        "pytest",
        live.__file__,
        *loud,
        *(f"--live={spec}" for spec in specs),
    ]
    return subprocess.run(command, capture_output=True, text=True, cwd=REPO)


@pytest.mark.slow
def test_the_live_checks_pass_with_a_provider_that_behaves() -> None:
    with Aimock(PROVIDER, keys=[KEY]) as server:
        specs = [
            f"{name}@{server.url(wire)}={KEY}"
            for name, wires in live.WIRES.items()
            for wire in wires[:1]
        ]
        process = run_live_checks(*specs)
        assert process.returncode == 0, process.stdout
        # The skipped one is Gemini's window, which is too large to fill.
        assert re.search(r"\n\S* 51 passed, 1 skipped", process.stdout), process.stdout
        assert KEY not in process.stdout + process.stderr


@pytest.mark.slow
def test_the_live_checks_fail_with_a_provider_that_does_not_and_keep_the_key() -> None:
    def answer(request: Request) -> Any:
        secret = f"I know {request.headers['authorization']}"
        return text(secret) if request.number % 2 else (400, {}, {"error": {"message": secret}})

    with ModelServer(answer) as server:
        process = run_live_checks(f"groq:model-x@{server.url}={KEY}")
    assert process.returncode == 1, process.stdout
    assert re.search(r"\n\S* 1[123] failed", process.stdout), process.stdout
    assert "model-x-openai_chat" in process.stdout
    assert KEY[:8] not in process.stdout + process.stderr


@pytest.mark.slow
def test_a_spec_that_cannot_be_read_is_not_repeated() -> None:
    for spec in (KEY, f"groq={KEY}", f"={KEY}"):
        process = run_live_checks(spec)
        assert process.returncode == 2, process.stdout
        assert "--live takes PROVIDER=KEY" in process.stdout
        assert KEY[:8] not in process.stdout + process.stderr
