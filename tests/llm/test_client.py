"""`LLM` end to end against a model server on loopback: arguments, answers, errors, retries,
cancelling, threads, secrets."""

from __future__ import annotations

import copy
import json
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

import msgspec
import pytest

from holdfast import events
from holdfast.content import ImageContent, Message, TextContent, ToolCall, Usage
from holdfast.errors import (
    AuthenticationError,
    BadResponse,
    Cancelled,
    ConfigurationError,
    LLMConnectionError,
    LLMError,
    LLMTimeout,
    ModelNotFound,
    RateLimited,
    ServerError,
    StreamInterrupted,
)
from holdfast.llm import LLM, Completion, Delta, Transcript, endpoint
from holdfast.llm.model import Model
from holdfast.llm.retry import delay, retry_after, retrying
from holdfast.tools.context import Cancellation
from tests.model_server import (
    Drop,
    ModelServer,
    Request,
    Stall,
    Stream,
    Truncated,
    calls,
    sse,
    text,
)
from tests.waiting import until

KEY = "sk-planted-secret"
SLOW = (
    429,
    {"retry-after-ms": "1"},
    {"error": {"message": "slow down", "code": "rate_limit_exceeded"}},
)


def llm(server: ModelServer, **more: Any) -> LLM:
    return LLM("m", api_key=KEY, base_url=server.url, **more)


class Weather:
    name = "srv.weather"
    description = "Tells the weather."
    input_schema: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}}


def agent_event(
    model: Model, tools: Sequence[events.ToolDefinition] = (), prompt: str = "Be good."
) -> events.AgentConfigured:
    return events.AgentConfigured(
        seq=1,
        id="a",
        timestamp=datetime.now(UTC),
        system_prompt=prompt,
        tools=tuple(tools),
        model=model.model,
        parameters=model.parameters(),
    )


# --- requests and answers ---


def test_a_str_is_answered() -> None:
    with ModelServer([text("hi")]) as server:
        answer = llm(server).completion("hello")
        assert (answer.text, answer.stop_reason, answer.model, answer.wire) == (
            "hi",
            "stop",
            "mock",
            "openai_chat",
        )
        assert answer.usage == Usage(10, 5)
        assert answer.duration > 0
        assert server.requests[0].json == {
            "model": "m",
            "messages": [{"role": "user", "content": "hello"}],
        }
        assert server.requests[0].path == "/v1/chat/completions"
        assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
        assert server.requests[0].headers["content-type"] == "application/json"


def test_a_stream_that_was_not_asked_for_is_read() -> None:
    with ModelServer([Stream([sse(text("hello there")).encode()])]) as server:
        answer = llm(server).completion("hi")
        assert "stream" not in server.requests[0].json
    assert (answer.text, answer.usage) == ("hello there", Usage(10, 5))


def test_messages_of_all_roles_are_sent() -> None:
    messages = [
        Message("be brief", role="system"),
        Message("hi"),
        Message(
            "", role="assistant", tool_calls=(ToolCall("c1", "srv.weather", {"city": "Paris"}),)
        ),
        Message("sunny", role="tool", tool_call_id="c1"),
    ]
    with ModelServer([text("ok")]) as server:
        llm(server).completion(messages, system="rules")
        assert [message["role"] for message in server.requests[0].messages] == [
            "system",
            "system",
            "user",
            "assistant",
            "tool",
        ]
        assert server.requests[0].messages[4] == {
            "role": "tool",
            "tool_call_id": "c1",
            "content": "sunny",
        }


@pytest.mark.parametrize("stream", [False, True])
def test_calls_come_back_under_canonical_names(stream: bool) -> None:
    answer = calls(("srv__weather", {"city": "Paris"}), ("unknown", {}))
    with ModelServer([sse(answer) if stream else answer]) as server:
        completion = llm(server, stream=stream).completion("x", [Weather()])
        assert server.requests[0].json["tools"][0]["function"]["name"] == "srv__weather"
    assert [(call.name, call.arguments, call.id) for call in completion.calls] == [
        ("srv.weather", {"city": "Paris"}, ""),
        ("unknown", {}, ""),
    ]
    assert completion.stop_reason == "tool_calls"


def test_an_answer_and_the_results_of_its_calls_can_be_sent_back_by_hand() -> None:
    with ModelServer([calls(("srv__weather", '{"city":  "Paris"}')), text("sunny")]) as server:
        model = llm(server)
        history: list[Message | Completion] = [Message("weather?")]
        answer = model.completion(history, [Weather()])
        history += [answer, Message("20 C", role="tool", tool_call_id=answer.calls[0].provider_id)]
        assert model.completion(history, [Weather()]).text == "sunny"
        assistant, tool = server.requests[1].messages[1:]
        assert assistant["tool_calls"][0]["function"] == {
            "name": "srv__weather",
            "arguments": '{"city":  "Paris"}',
        }
        assert tool == {"role": "tool", "tool_call_id": "call_0", "content": "20 C"}


def test_a_head_gives_prompt_tools_and_parameters() -> None:
    with ModelServer(lambda _: text("ok")) as server:
        model = llm(server, temperature=0.5)
        head = agent_event(model, [events.ToolDefinition("a.b", "d", {"type": "object"}, "a__b")])
        transcript = Transcript.from_messages("hi")
        model.completion(transcript, head=head)
        body = server.requests[0].json
        assert body["messages"][0] == {"role": "system", "content": "Be good."}
        assert body["tools"][0]["function"]["name"] == "a__b"
        assert body["temperature"] == 0.5
        hotter = model.replace(temperature=0.9)
        hotter.completion(transcript, head=head)
        assert server.requests[1].body == server.requests[0].body  # the journal has the parameters
        other = model.replace(model="other", temperature=0.9)
        other.completion(transcript, head=head)
        assert (server.requests[2].json["model"], server.requests[2].json["temperature"]) == (
            "other",
            0.9,
        )


def test_a_head_and_tools_are_not_both_taken() -> None:
    model = LLM("gpt-5")
    with pytest.raises(ConfigurationError, match="head"):
        model.completion("x", [Weather()], head=agent_event(model))


@pytest.mark.parametrize("stream", [False, True])
def test_deltas_are_told_as_they_come(stream: bool) -> None:
    deltas: list[Delta] = []
    with ModelServer([sse(text("one two three"), size=4) if stream else text("one")]) as server:
        answer = llm(server, stream=stream).completion("x", on_delta=deltas.append)
    assert "".join(delta.text for delta in deltas) == (answer.text if stream else "")
    assert len(deltas) == (4 if stream else 0)


def test_a_server_that_does_not_stream_is_read_all_the_same() -> None:
    deltas: list[Delta] = []
    with ModelServer([text("plain")]) as server:
        assert llm(server, stream=True).completion("x", on_delta=deltas.append).text == "plain"
    assert deltas == [Delta("text", "plain")]


def test_a_stream_gives_its_connection_back() -> None:
    with ModelServer(lambda _: sse(text("hi"))) as server:
        model = llm(server, stream=True)
        for _ in range(3):
            model.completion("x")
        assert server.connections == 1
        model.close()
        assert model.completion("x").text == "hi"
        assert server.connections == 2
        model.close()


def test_a_stream_that_is_done_but_not_ended_is_not_waited_for() -> None:
    pieces = [sse(text("hi")).encode()] + [b": ping\n\n"] * 100
    with ModelServer([Stream(pieces, delay=0.1)]) as server:
        began = time.monotonic()
        assert llm(server, stream=True).completion("x").text == "hi"
        assert time.monotonic() - began < 8


def test_a_stream_that_breaks_off_after_its_finish_is_whole() -> None:
    data = sse(text("hi")).partition("data: [DONE]")[0].encode()
    with ModelServer([Stream([data], end=False)]) as server:
        assert llm(server, stream=True).completion("x").text == "hi"


def every_piece_says_stop(wire: str, *words: str) -> list[bytes]:
    """Return a stream as Gemini and some proxies send it, with a finish in every piece."""
    if wire == "gemini":
        pieces: list[Any] = [
            {"candidates": [{"content": {"parts": [{"text": word}]}, "finishReason": "STOP"}]}
            for word in words
        ]
    else:
        pieces = [
            {"choices": [{"index": 0, "delta": {"content": word}, "finish_reason": "stop"}]}
            for word in words
        ]
    return [f"data: {json.dumps(piece)}\n\n".encode() for piece in pieces]


@pytest.mark.parametrize("tool_calls", ["native", "text"])
@pytest.mark.parametrize("wire", ["openai_chat", "gemini"])
class TestAServerThatSaysAFinishWithEveryPiece:
    def ask(self, wire: str, tool_calls: str, *answers: Any) -> str:
        with ModelServer(answers) as server:
            model = LLM(
                "m",
                KEY,
                server.url,
                wire=wire,
                tool_calls=tool_calls,
                stream=True,
                max_retries=0,
                timeout=5,
            )
            return model.completion("x").text

    @pytest.mark.slow
    def test_is_given_its_time(
        self, wire: str, tool_calls: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(endpoint, "AFTER_FINISH_SECONDS", 0.1)
        pieces = every_piece_says_stop(wire, "one ", "two ", "three")
        assert self.ask(wire, tool_calls, Stream(pieces, delay=0.3)) == "one two three"

    @pytest.mark.slow
    @pytest.mark.parametrize("pieces", [1, 2])
    def test_has_said_nothing_of_the_end(self, wire: str, tool_calls: str, pieces: int) -> None:
        stream_pieces = every_piece_says_stop(wire, "one ", "two ")[:pieces]
        assert self.ask(wire, tool_calls, Stream(stream_pieces)) == "one two "[: 4 * pieces]
        with pytest.raises(StreamInterrupted):
            self.ask(wire, tool_calls, Stream(stream_pieces, end=False))
        with pytest.raises(StreamInterrupted):
            self.ask(wire, tool_calls, Stream([*stream_pieces, b'data: {"cand']))
        with pytest.raises(BadResponse):
            self.ask(wire, tool_calls, Stream([*stream_pieces, b"data: {\n\n"]))


@pytest.mark.slow
def test_content_behind_a_finish_takes_the_hurry_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "AFTER_FINISH_SECONDS", 0.3)
    one, two = every_piece_says_stop("openai_chat", "one ", "two")
    finish = b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\n'
    with ModelServer(
        [Stream([finish, one, b": wait\n\n", b": wait\n\n", two], delay=0.2)]
    ) as server:
        assert llm(server, stream=True, max_retries=0).completion("x").text == "one two"
    with ModelServer(
        [Stream([one.replace(b'"stop"', b"null"), finish, *[b": wait\n\n"] * 200], delay=0.2)]
    ) as server:
        began = time.monotonic()
        assert llm(server, stream=True, max_retries=0).completion("x").text == "one "
        assert time.monotonic() - began < 30


def test_many_threads_share_one_llm() -> None:
    def echo(request: Request) -> Any:
        return text(request.messages[-1]["content"])

    with ModelServer(echo) as server:
        model = llm(server)
        wrong: list[str] = []

        def work(number: int) -> None:
            for turn in range(10):
                text = f"{number}-{turn}"
                if model.completion(text).text != text:
                    wrong.append(text)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        assert len(server.requests) == 320
        model.close()


# --- failures and retries ---


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [
        SLOW,
        (500, {"retry-after-ms": "1"}, b"oops"),
        (529, {"retry-after-ms": "1"}, {"error": {"type": "overloaded_error"}}),
        (409, {"retry-after-ms": "1"}, {"error": {"message": "locked"}}),
    ],
    ids=["429", "500", "529", "409"],
)
def test_a_failure_that_passes_is_retried(fault: Any) -> None:
    with ModelServer([fault, fault, text("hi")]) as server:
        assert llm(server).completion("x").text == "hi"
        assert server.requests[0].body == server.requests[2].body


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [
        Drop(),
        Truncated(text("hello"), 20),
        b"nonsense\r\n\r\n",
        (200, {}, b"{}"),
        (200, {"content-type": "text/html"}, b"<html>"),
    ],
    ids=["dropped", "truncated", "not http", "empty object", "html"],
)
def test_a_broken_answer_is_asked_for_again(fault: Any) -> None:
    with ModelServer([fault, text("hi")]) as server:
        assert llm(server).completion("x").text == "hi"


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [
        Stream([sse(text("hello there")).partition('"finish_reason": "stop"')[0].encode()]),
        Stream([sse(text("hello there")).encode()[:400]], end=False),
        'data: {"error": {"message": "overloaded", "code": 529}}\n\n',
        "data: [DONE]\n\n",
    ],
    ids=["ended early", "broken off", "error in it", "done without an answer"],
)
def test_a_stream_without_a_finish_is_asked_for_again_and_the_watcher_is_told(fault: Any) -> None:
    deltas: list[Delta] = []
    with ModelServer([fault, sse(text("hi"))]) as server:
        assert llm(server, stream=True).completion("x", on_delta=deltas.append).text == "hi"
    kinds = [delta.kind for delta in deltas]
    if "text" in kinds[:-1]:
        last = kinds.index("restart")
        assert "".join(delta.text for delta in deltas[last:]) == "hi"
    assert "".join(delta.text for delta in deltas).endswith("hi")


@pytest.mark.parametrize("stream", [False, True])
def test_a_retry_is_reported_to_the_watcher_before_the_wait(stream: bool) -> None:
    deltas: list[Delta] = []
    limited = (429, {"retry-after-ms": "1"}, {"error": {"message": "Slow down."}})
    with ModelServer([limited, sse(text("hi")) if stream else text("hi")]) as server:
        model = llm(server, stream=stream, max_retries=3)
        assert model.completion("x", on_delta=deltas.append).text == "hi"
    [retry] = [delta for delta in deltas if delta.kind == "retry"]
    assert (retry.text, retry.index, retry.most) == ("", 1, 3)
    assert retry.reason.startswith("RateLimited: ")
    assert "Slow down." in retry.reason
    assert 0 <= retry.seconds < 1
    assert "restart" not in [delta.kind for delta in deltas]  # the watcher got nothing of it


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_cut_at_any_byte_never_passes_for_a_short_one(stream: bool) -> None:
    whole = sse(text("hello")) if stream else text("hello")
    kinds: tuple[type[LLMError], ...] = (StreamInterrupted,) if stream else (LLMConnectionError,)
    size = whole.index('"finish_reason": "stop"') if isinstance(whole, str) else 200
    cuts = range(0, size, 37)
    with ModelServer([Truncated(whole, at) for at in cuts]) as server:
        model = llm(server, stream=stream, max_retries=0)
        for _ in cuts:
            with pytest.raises(kinds):
                model.completion("x")


@pytest.mark.slow
def test_what_is_left_after_the_retries_is_raised() -> None:
    with ModelServer([SLOW] * 3) as server:
        with pytest.raises(RateLimited, match="slow down") as caught:
            llm(server, max_retries=2).completion("x")
        assert len(server.requests) == 3
        assert caught.value.status == 429


def test_what_will_not_pass_is_not_retried() -> None:
    no_quota = (429, {}, {"error": {"message": "pay", "code": "insufficient_quota"}})
    refused = (401, {}, {"error": {"message": "who?"}})
    missing = (
        404,
        {},
        {"error": {"message": "The model does not exist", "code": "model_not_found"}},
    )
    with ModelServer([no_quota, refused, missing]) as server:
        model = llm(server)
        for kind in (RateLimited, AuthenticationError, ModelNotFound):
            with pytest.raises(kind):
                model.completion("x")
        assert len(server.requests) == 3


def test_a_wait_longer_than_two_minutes_is_left_to_the_caller() -> None:
    with ModelServer(
        [(429, {"retry-after": "3600"}, {"error": {"message": "tomorrow"}})]
    ) as server:
        with pytest.raises(RateLimited) as caught:
            llm(server).completion("x")
        assert caught.value.retry_after == 3600


@pytest.mark.slow
def test_retry_after_is_honoured() -> None:
    with ModelServer([(429, {"retry-after-ms": "300"}, b""), text("hi")]) as server:
        llm(server).completion("x")
        assert server.requests[1].at - server.requests[0].at >= 0.3


def test_retry_after_on_a_good_answer_is_not_waited_for() -> None:
    with ModelServer([(200, {"retry-after": "60"}, text("hi"))]) as server:
        began = time.monotonic()
        llm(server).completion("x")
        assert time.monotonic() - began < 30


def test_a_deadline_holds_over_all_retries() -> None:
    with ModelServer(lambda _: (503, {"retry-after": "1"}, b"")) as server:
        began = time.monotonic()
        with pytest.raises(ServerError):
            llm(server, deadline=0.5).completion("x")
        assert (
            time.monotonic() - began < 0.9
        )  # the wait would have passed the deadline, so there was none
    with ModelServer([Stall()]) as server:
        began = time.monotonic()
        with pytest.raises(LLMTimeout, match="deadline"):
            llm(server, deadline=0.2).completion("x")
        assert time.monotonic() - began < 20


def test_a_silent_server_is_a_timeout() -> None:
    with ModelServer([Stall()]) as server, pytest.raises(LLMTimeout, match="sent nothing"):
        llm(server, timeout=0.1, max_retries=0).completion("x")


def test_a_refused_port_is_a_connection_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(LLMConnectionError, match="Check base_url"):
        LLM("m", base_url=f"http://127.0.0.1:{port}/v1", max_retries=1).completion("x")


def test_a_wrong_path_says_what_base_urls_end_in() -> None:
    with (
        ModelServer([(404, {}, b"<html><body>Not Found</body></html>")]) as server,
        pytest.raises(ModelNotFound, match="/v1"),
    ):
        LLM("m", base_url=server.url.removesuffix("/v1")).completion("x")


def test_the_waits_between_retries_are_jittered_doubled_and_never_shorter_than_asked() -> None:
    waits: list[float] = []
    errors: list[LLMError] = [
        ServerError("x"),
        ServerError("x"),
        ServerError("x"),
        RateLimited("x", retry_after=7.0),
    ]

    def attempt() -> str:
        if errors:
            raise errors.pop(0)
        return "done"

    assert retrying(attempt, random=lambda: 1.0, sleep=waits.append) == "done"
    assert waits == [0.5, 1.0, 2.0, 7.5]
    assert delay(ServerError("x"), 3, lambda: 0.0) == 0.0
    assert delay(ServerError("x"), 30, lambda: 1.0) == 30.0
    assert delay(RateLimited("x", retry_after=7.0), 0, lambda: 0.0) == 7.0
    assert delay(RateLimited("x", retry_after=121.0), 0, lambda: 0.0) is None


def test_a_wait_past_the_deadline_is_not_begun() -> None:
    waits: list[float] = []

    def attempt() -> str:
        raise RateLimited("x", retry_after=10.0)

    with pytest.raises(RateLimited):
        retrying(attempt, deadline=105.0, clock=lambda: 100.0, sleep=waits.append)
    assert waits == []


def test_retry_after_is_read_in_all_its_forms() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)

    def seconds(**headers: str) -> float | None:
        return retry_after(
            {name.replace("_", "-"): value for name, value in headers.items()}, now.timestamp
        )

    assert seconds(retry_after="2") == 2.0
    assert seconds(retry_after="1.5") == 1.5
    assert seconds(retry_after="9", retry_after_ms="250") == 0.25
    assert seconds(retry_after=format_datetime(now.replace(second=30), usegmt=True)) == 30.0
    assert seconds(retry_after=format_datetime(now.replace(year=2025), usegmt=True)) == 0.0
    for odd in ("", "soon", "-1", "nan", "inf", "Wed, 99 Foo 2026"):
        assert seconds(retry_after=odd) is None


# --- cancelling ---


@pytest.mark.slow
@pytest.mark.parametrize(
    ("response", "stream"),
    [
        (Stall(), False),
        (Stall(first=b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: "), True),
        ((429, {"retry-after": "60"}, b""), False),
    ],
    ids=["waiting", "streaming", "between retries"],
)
def test_a_cancel_ends_a_call_at_once(response: Any, stream: bool) -> None:
    with ModelServer([response]) as server:
        cancelled = Cancellation()
        at: list[float] = []

        def cancel() -> None:
            until(lambda: server.requests)
            time.sleep(0.1)  # by now the answer has begun
            at.append(time.monotonic())
            cancelled.cancel()

        canceller = threading.Thread(target=cancel)
        canceller.start()
        with pytest.raises(Cancelled):
            llm(server, stream=stream).completion("x", cancelled=cancelled)
        canceller.join()
        assert time.monotonic() - at[0] < 20
        assert len(server.requests) == 1


def test_a_stream_that_is_cancelled_never_ends_as_an_answer() -> None:
    data = sse(text("a b c d e f g h"), size=1).encode()
    with ModelServer(
        lambda _: Stream([data[i : i + 90] for i in range(0, len(data), 90)], delay=0.005)
    ) as server:
        model = llm(server, stream=True)
        for after in range(1, 6):
            cancelled = Cancellation()
            deltas: list[Delta] = []

            def stop(
                delta: Delta,
                after: int = after,
                deltas: list[Delta] = deltas,
                cancelled: Cancellation = cancelled,
            ) -> None:
                deltas.append(delta)
                if len(deltas) == after:
                    threading.Thread(target=cancelled.cancel).start()
                    time.sleep(0.02)

            with pytest.raises(Cancelled):
                model.completion("x", on_delta=stop, cancelled=cancelled)
        model.close()


def test_an_on_delta_that_raises_ends_the_call_with_its_error() -> None:
    def angry(_: Delta) -> None:
        raise KeyError("mine")

    with ModelServer(lambda _: sse(text("hi"))) as server:
        with pytest.raises(KeyError, match="mine"):
            llm(server, stream=True).completion("x", on_delta=angry)
        assert len(server.requests) == 1


# --- arguments ---


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("model", ""),
        ("model", None),
        ("model", 3),
        ("api_key", None),
        ("api_key", 5),
        ("api_key", "with\nnewline"),
        ("base_url", "localhost:8000"),
        ("base_url", "ftp://x"),
        ("base_url", "http://"),
        ("base_url", "http://user:pw@host/v1"),
        ("base_url", "http://host:port/v1"),
        ("base_url", "http://a b/v1"),
        ("base_url", 5),
        ("temperature", -1),
        ("temperature", "hot"),
        ("temperature", True),
        ("temperature", float("nan")),
        ("top_p", 2),
        ("max_output_tokens", 0),
        ("max_output_tokens", 1.5),
        ("stop", 5),
        ("stop", [5]),
        ("reasoning_effort", 3),
        ("seed", "x"),
        ("parallel_tool_calls", 1),
        ("response_format", "json"),
        ("stream", 1),
        ("timeout", 0),
        ("timeout", None),
        ("timeout", -5),
        ("connect_timeout", -1),
        ("deadline", 0),
        ("max_retries", -1),
        ("max_retries", 1.5),
        ("headers", {"a": 5}),
        ("headers", {"a": "b\r\nc: d"}),
        ("headers", "x"),
        ("extra_body", []),
        ("extra_body", {"messages": []}),
        ("extra_body", {"x": object()}),
        ("proxy", "localhost:3128"),
        ("proxy", "socks5://localhost"),
        ("wire", "telex"),
        ("ssl_context", 5),
    ],
)
def test_a_wrong_argument_is_named(argument: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=argument):
        LLM(**{"model": "m", "base_url": "http://localhost/v1", argument: value})


def test_a_wrong_key_or_proxy_is_not_shown() -> None:
    for arguments in (
        {"api_key": f"{KEY}\n"},
        {"proxy": f"socks5://me:{KEY}@host"},
        {"base_url": f"http://me:{KEY}@host/v1"},
    ):
        with pytest.raises(ConfigurationError) as caught:
            LLM(**{"model": "m", "base_url": "http://localhost/v1", **arguments})
        assert KEY not in str(caught.value)


def test_a_model_of_no_known_provider_needs_an_address() -> None:
    for model in ("gpt-5", "o3-mini", "chatgpt-4o-latest", "openai/gpt-4.1", "openai/whatever"):
        assert LLM(model).base_url == "https://api.openai.com/v1"
    assert (
        LLM("claude-sonnet-4").base_url
        == LLM("anthropic/claude").base_url
        == "https://api.anthropic.com/v1"
    )
    for model in ("llama3", "meta-llama/Llama-3", "olmo"):
        with pytest.raises(ConfigurationError, match="base_url is needed"):
            LLM(model)


@pytest.mark.parametrize(
    ("model", "base_url", "sent_name"),
    [
        ("openai/gpt-5", None, "gpt-5"),
        ("openai/gpt-5", "https://api.openai.com/v1", "gpt-5"),
        ("openai/gpt-5", "https://openrouter.ai/api/v1", "openai/gpt-5"),
        ("meta-llama/Llama-3", "http://localhost:8000/v1", "meta-llama/Llama-3"),
        ("gpt-5", None, "gpt-5"),
    ],
)
def test_a_providers_name_is_taken_off_only_at_its_own_address(
    model: str, base_url: str | None, sent_name: str
) -> None:
    assert LLM(model, base_url=base_url)._address.model == sent_name
    assert LLM(model, base_url=base_url).model == model


@pytest.mark.parametrize("ending", ["", "/", "/chat/completions", "/chat/completions/", "///"])
def test_a_base_url_may_end_in_a_slash_or_the_whole_path(ending: str) -> None:
    with ModelServer([text("hi")]) as server:
        LLM("m", base_url=server.url + ending).completion("x")
        assert server.requests[0].path == "/v1/chat/completions"


def test_a_query_in_the_base_url_is_kept() -> None:
    with ModelServer([text("hi")]) as server:
        LLM("m", base_url=server.url + "?api-version=1", headers={"api-key": "k"}).completion("x")
        assert server.requests[0].path == "/v1/chat/completions?api-version=1"
        assert server.requests[0].headers["api-key"] == "k"
        assert "authorization" not in server.requests[0].headers


def test_headers_and_extra_body_are_sent() -> None:
    with ModelServer([text("hi")]) as server:
        llm(
            server,
            headers={"authorization": "Basic x", "X-Title": "t"},
            extra_body={"provider": {"order": ["a"]}},
        ).completion("x")
        assert server.requests[0].headers["authorization"] == "Basic x"
        assert server.requests[0].headers["x-title"] == "t"
        assert server.requests[0].json["provider"] == {"order": ["a"]}


@pytest.mark.parametrize(
    ("host", "key", "sent"),
    [
        ("res.openai.azure.com", "0123456789abcdef", {"api-key": "0123456789abcdef"}),
        ("res.openai.azure.com", "eyJhbGciOi.J9.x", {"authorization": "Bearer eyJhbGciOi.J9.x"}),
        ("res.openai.azure.com", "", {}),
        (
            "openai.azure.com.example",
            "0123456789abcdef",
            {"authorization": "Bearer 0123456789abcdef"},
        ),
    ],
)
def test_azures_keys_go_into_its_own_header(host: str, key: str, sent: dict[str, str]) -> None:
    with ModelServer([text("hi")]) as server:
        proxy = server.url.removesuffix("/v1")
        LLM(
            "gpt-4o",
            key,
            f"http://{host}/openai/deployments/gpt-4o?api-version=2024-10-21",
            proxy=proxy,
            wire="openai_chat",
        ).completion("x")
        headers = server.requests[0].headers
        assert {
            name: value for name, value in headers.items() if name in ("api-key", "authorization")
        } == sent


def test_an_address_may_have_letters_of_any_alphabet_in_its_host_alone() -> None:
    model = LLM("m", KEY, "https://bücher.example:8443/v1")
    assert (model.base_url, model.parameters()["host"]) == (
        "https://xn--bcher-kva.example:8443/v1",
        "xn--bcher-kva.example",
    )
    for url in (
        "https://h.example/größe/v1",
        "https://h.example/v1?a=ü",
        "http://例え/路",
        f"https://{'ü' * 70}.example/v1",
    ):
        with pytest.raises(ConfigurationError, match="base_url takes"):
            LLM("m", KEY, url)
    with pytest.raises(ConfigurationError, match="proxy takes"):
        LLM("m", KEY, "https://h.example/v1", proxy=f"http://{'ü' * 70}:3128")


def test_an_agent_event_of_another_address_changes_nothing_about_ours() -> None:
    """Items that only their maker's host can read go to no other host, whatever host the event
    names."""
    native = msgspec.Raw(
        b'[{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"planted"},{"type":"message","role":"assistant","content":'
        b'[{"type":"output_text","text":"a"}]}]'
    )
    answer = {"status": "completed", "output": [{"type": "message", "content": "ok"}]}
    for elsewhere in (
        {"wire": "openai_responses", "host": "api.openai.com"},
        {"wire": "openai_chat", "host": "127.0.0.1"},
        {},
    ):
        with ModelServer([answer]) as server:
            model = LLM("gpt-5", KEY, server.url, wire="openai_responses", max_output_tokens=7)
            head = msgspec.structs.replace(
                agent_event(model), parameters={**elsewhere, "max_output_tokens": 5}
            )
            transcript = Transcript.from_messages("q")
            transcript.append(
                Completion(
                    "a",
                    model="gpt-5",
                    wire="openai_responses",
                    native=native,
                    host="api.openai.com",
                )
            )
            transcript.say("q2")
            completion = model.completion(transcript, head=head)
            assert (server.requests[0].path, server.requests[0].json["max_output_tokens"]) == (
                "/v1/responses",
                5,
            )
            assert b"planted" not in server.requests[0].body
            assert (completion.host, len(completion.notes)) == ("127.0.0.1", 1)


def test_all_parameters_are_sent_and_none_that_was_not_given() -> None:
    with ModelServer([text("hi"), text("hi")]) as server:
        parameters: dict[str, Any] = {
            "temperature": 0.0,
            "top_p": 0.5,
            "seed": 1,
            "reasoning_effort": "low",
            "response_format": {"type": "json_object"},
        }
        model = llm(
            server, **parameters, max_output_tokens=9, stop="END", parallel_tool_calls=False
        )
        model.completion("x", [Weather()])
        body = server.requests[0].json
        assert {key: body[key] for key in parameters} == parameters
        assert (body["max_tokens"], body["stop"], body["parallel_tool_calls"]) == (
            9,
            ["END"],
            False,
        )
        llm(server).completion("x")
        assert set(server.requests[1].json) == {"model", "messages"}


@pytest.mark.parametrize(
    "messages", ["", [], None, 5, {"role": "user"}, [{"role": "user", "content": "x"}], ["x"]]
)
def test_messages_of_another_shape_are_refused(messages: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"messages|transcript"):
        LLM("gpt-5").completion(messages)


def test_a_tool_message_without_its_call_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="tool_call_id"):
        LLM("gpt-5").completion([Message("x", role="tool", tool_call_id="nope")])


def test_tools_of_another_shape_or_one_name_are_refused() -> None:
    class Twin(Weather):
        name = "srv__weather"

    for tools in ([5], [Weather(), Weather()], [Weather(), Twin()]):
        with pytest.raises(ConfigurationError, match="tools"):
            LLM("gpt-5").completion("x", tools)  # pyright: ignore[reportArgumentType]


# --- the object ---


def test_the_key_is_shown_nowhere() -> None:
    refusal = {"error": {"message": f"Incorrect API key provided: {KEY}", "code": 401}}
    with ModelServer(
        [
            (401, {}, refusal),
            (200, {"content-type": "application/json"}, refusal),
            f"data: {KEY}\n\n",
        ]
        * 2
    ) as server:
        for model in (
            llm(server, max_retries=0),
            llm(server, max_retries=0).replace(api_key="", headers={"Api-Key": KEY}),
        ):
            for stream, kind in (
                (False, AuthenticationError),
                (False, AuthenticationError),
                (True, BadResponse),
            ):
                with pytest.raises(kind) as caught:
                    model.replace(stream=stream).completion("x")
                for text in (
                    repr(model),
                    str(caught.value),
                    repr(caught.value),
                    repr(caught.value.__dict__),
                    str(model.parameters()),
                ):
                    assert KEY not in text
                assert "***" in str(caught.value)


@pytest.mark.parametrize("stream", [False, True])
def test_an_error_whose_text_breaks_off_is_still_that_error(stream: bool) -> None:
    refusal = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 500\r\n\r\n{"
    with (
        ModelServer([refusal]) as server,
        pytest.raises(AuthenticationError, match="check api_key for http"),
    ):
        llm(server, stream=stream).completion("x")


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ({"api_key": ""}, True),
        ({"api_key": "", "headers": {"User-Agent": "test"}}, True),
        ({"api_key": "short"}, False),
        ({"api_key": KEY}, False),
        ({"api_key": "", "headers": {"X-Api-Key": "short"}}, False),
    ],
)
def test_a_refused_key_is_called_missing_only_where_none_was_given(
    given: dict[str, Any], missing: bool
) -> None:
    with (
        ModelServer([(401, {}, {"error": {"message": "Bad key"}})]) as server,
        pytest.raises(AuthenticationError) as caught,
    ):
        LLM("m", base_url=server.url, **given).completion("x")
    assert ("No api_key was given" in str(caught.value)) is missing


def test_an_llm_cannot_be_pickled_and_copies_are_itself() -> None:
    model = LLM("gpt-5", api_key=KEY)
    with pytest.raises(TypeError, match="api_key"):
        pickle.dumps(model)
    assert copy.copy(model) is model
    assert copy.deepcopy([model])[0] is model


def test_an_llm_is_frozen_and_replace_makes_another() -> None:
    model = LLM("gpt-5", api_key=KEY, temperature=0.5)
    with pytest.raises(AttributeError, match="replace"):
        model.model = "x"  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(AttributeError):
        del model.model
    other = model.replace(model="gpt-4o", stream=True)
    assert (other.model, other.stream, other.parameters()["temperature"]) == ("gpt-4o", True, 0.5)
    assert model.model == "gpt-5"
    with pytest.raises(ConfigurationError, match="temprature"):
        model.replace(temprature=1)
    with pytest.raises(ConfigurationError, match="temperature"):
        model.replace(temperature=9)


def test_parameters_are_json_without_secrets() -> None:
    model = LLM(
        "m",
        api_key=KEY,
        base_url="http://localhost:8000/v1",
        stop=("a",),
        seed=3,
        extra_body={"k": [1]},
        headers={"x": KEY},
    )
    assert model.parameters() == {
        "wire": "openai_chat",
        "host": "localhost",
        "stop": ["a"],
        "seed": 3,
        "extra_body": {"k": [1]},
    }
    event = agent_event(model)
    assert events.decode(event.to_json()) == event


def test_costs_are_known_for_known_models() -> None:
    usage = Usage(1_000_000, 100_000, 500_000)
    price = LLM("gpt-4o").cost(usage)
    assert price is not None
    assert 0 < price < LLM("gpt-4o").cost(Usage(1_000_000, 100_000))  # pyright: ignore[reportOperatorIssue]: cached tokens cost less
    assert LLM("openai/gpt-4o").cost(usage) == price
    assert LLM("openai/gpt-4o", base_url="https://openrouter.ai/api/v1").cost(usage) is not None
    assert LLM("my-own-model", base_url="http://localhost/v1").cost(usage) is None


def test_importing_and_making_an_llm_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom holdfast.llm import LLM, ScriptedLLM, Transcript\nLLM('gpt-5')\nheavy ="
        " {'http.client', 'ssl', 'email', 'pydantic', 'genai_prices', 'mcp', 'asyncio'} &"
        " set(sys.modules)\nsys.exit(' '.join(sorted(heavy)))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        ).stderr.strip()
        == ""
    )


def test_a_bad_response_names_what_came() -> None:
    page = (200, {"content-type": "text/html"}, b"<html><body>Log in</body></html>")
    with ModelServer([page]) as server, pytest.raises(BadResponse, match="Log in"):
        llm(server, max_retries=0).completion("x")


def test_garbage_behind_a_whole_answer_costs_nothing() -> None:
    body = sse(text("whole"))
    with ModelServer(
        [body.replace("[DONE]", "[DO"), body.replace('"choices": [],', '"choices": [,')]
    ) as server:
        for _ in range(2):
            assert llm(server, stream=True, max_retries=0).completion("x").text == "whole"


def test_a_picture_after_a_frame_without_one_does_not_reach_a_model_that_does_not_see() -> None:
    """This also holds if the parameters in the journal belong to a model that this one replaced."""
    with ModelServer([text("a"), text("b")]) as server:
        llm = LLM("blind", base_url=server.url, images=False)
        head = events.AgentConfigured(
            seq=1,
            id="a",
            timestamp=datetime.now(UTC),
            system_prompt="",
            tools=(),
            model="another",
            parameters=LLM("another", base_url=server.url).parameters(),
        )
        transcript = Transcript([Message((TextContent("one"),))])
        llm.completion(transcript, head=head)
        transcript.append(Message((ImageContent(b"png", "image/png"),)))
        llm.completion(transcript, head=head)
        assert "[picture: " in str(server.requests[1].messages[-1]["content"])


def test_parameters_are_one_dict_that_nobody_can_change() -> None:
    model = LLM("gpt-4o", temperature=0.5, response_format={"type": "json_object"})
    assert model.parameters() is model.parameters()
    with pytest.raises(TypeError, match="cannot be changed; change a copy"):
        model.parameters()["temperature"] = 1.0
    with pytest.raises(TypeError, match="cannot be changed"):
        model.parameters()["response_format"]["type"] = "text"
