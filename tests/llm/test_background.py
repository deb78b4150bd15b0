"""Answers in the background: polled or streamed until they are complete, cancelled at the
provider, and fetched again after a broken connection or a killed process."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast import Agent, Conversation, SQLiteStore, load_agent
from holdfast.agent.config import dump_agent
from holdfast.errors import (
    BadRequest,
    Cancelled,
    ConfigurationError,
    LLMTimeout,
    RateLimited,
    ServerError,
    StreamInterrupted,
)
from holdfast.llm import LLM, Delta, FallbackLLM, RecordedLLM, RouterLLM, background
from holdfast.tools.context import Cancellation
from tests import forks
from tests.llm.test_openai_responses import message_item, response, sse
from tests.model_server import ModelServer, Request, Stall, Stream
from tests.waiting import until

QUEUED = response(status="queued", id="resp_1")
RUNNING = response(status="in_progress", id="resp_1")
COMPLETED = response(message_item("Here."), id="resp_1", background=True)
FAILED = response(
    status="failed", id="resp_1", error={"code": "rate_limit_exceeded", "message": "slow"}
)


MODELS: list[LLM] = []


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(background, "FIRST_PAUSE_SECONDS", 0.001)
    yield
    while MODELS:
        MODELS.pop().close()


def llm(server: ModelServer, **more: Any) -> LLM:
    options = {"wire": "openai_responses", "max_retries": 0, "background": True, **more}
    MODELS.append(LLM("gpt-5", "key", server.url, **options))
    return MODELS[-1]


def request_lines(server: ModelServer) -> list[str]:
    return [f"{request.method} {request.path.removeprefix('/v1')}" for request in server.requests]


def test_an_answer_is_polled_until_it_is_there() -> None:
    with ModelServer([QUEUED, RUNNING, COMPLETED]) as server:
        answer = llm(server).completion("x")
        assert request_lines(server) == [
            "POST /responses",
            "GET /responses/resp_1",
            "GET /responses/resp_1",
        ]
        body = server.requests[0].json
        assert (body["background"], body["store"]) == (True, True)
        assert server.requests[1].body == b""
        assert server.requests[1].headers["authorization"] == "Bearer key"
    assert (answer.text, answer.response_id) == ("Here.", "resp_1")
    assert answer.provider_details == {"background": True}


def test_an_answer_that_is_there_at_once_is_not_polled() -> None:
    with ModelServer([COMPLETED]) as server:
        assert llm(server).completion("x").text == "Here."
        assert request_lines(server) == ["POST /responses"]


def test_the_pauses_grow_up_to_a_limit() -> None:
    pauses: list[float] = []
    with ModelServer([QUEUED, *[RUNNING] * 30, COMPLETED]) as server:
        model = llm(server)
        waited = background.BackgroundAnswer(
            model._open(), lambda _: ServerError("x"), "", None, None, pauses.append
        )
        assert waited.ask(model._open().wire, b"{}", lambda _: None, False).text == "Here."
    assert pauses[:3] == pytest.approx([0.001, 0.0015, 0.00225])
    assert pauses == sorted(pauses)
    assert max(pauses) <= background.MAX_PAUSE_SECONDS


def test_the_query_of_the_address_stays() -> None:
    with ModelServer([QUEUED, COMPLETED]) as server:
        model = LLM(
            "gpt-5",
            "key",
            f"{server.url}?api-version=3",
            wire="openai_responses",
            background=True,
        )
        model.completion("x")
        assert request_lines(server)[1] == "GET /responses/resp_1?api-version=3"


@pytest.mark.parametrize("final", [FAILED, {**QUEUED, "status": "cancelled"}])
def test_an_answer_that_failed_is_asked_for_anew_by_a_retry(final: Any) -> None:
    with ModelServer([QUEUED, final]) as server, pytest.raises((RateLimited, ServerError)):
        llm(server).completion("x")
    with ModelServer([QUEUED, final, COMPLETED]) as server:
        assert llm(server, max_retries=1).completion("x").text == "Here."
        assert request_lines(server)[2] == "POST /responses"


def test_a_poll_that_failed_is_repeated_without_asking_anew() -> None:
    busy = (503, {}, {"error": {"message": "busy"}})
    with ModelServer([QUEUED, busy, COMPLETED]) as server:
        assert llm(server, max_retries=1).completion("x").text == "Here."
        assert [one.split()[0] for one in request_lines(server)] == ["POST", "GET", "GET"]


GATEWAY = (200, {"content-type": "text/html"}, "<html>gateway busy</html>")
EMPTY = (200, {"content-type": "application/json"}, "")


@pytest.mark.parametrize("unreadable", [GATEWAY, EMPTY, {}, {"error": {"message": "busy"}}])
def test_a_poll_that_cannot_be_read_is_repeated_without_asking_anew(unreadable: Any) -> None:
    with ModelServer([QUEUED, unreadable, COMPLETED]) as server:
        assert llm(server, max_retries=1).completion("x").text == "Here."
        assert [one.split()[0] for one in request_lines(server)] == ["POST", "GET", "GET"]


def test_a_complete_answer_that_cannot_be_read_is_asked_for_anew() -> None:
    broken = {**COMPLETED, "output": "nothing"}
    with ModelServer([QUEUED, broken, COMPLETED]) as server:
        assert llm(server, max_retries=1).completion("x").text == "Here."
        assert [one.split()[0] for one in request_lines(server)] == ["POST", "GET", "POST"]


def test_a_cancellation_is_passed_on_to_the_provider() -> None:
    cancelled = Cancellation()

    def answer(request: Request) -> Any:
        if request.method == "GET":
            cancelled.cancel()
            return RUNNING
        return QUEUED

    with ModelServer(answer) as server:
        with pytest.raises(Cancelled):
            llm(server).completion("x", cancelled=cancelled)
        assert request_lines(server)[-1] == "POST /responses/resp_1/cancel"


def test_the_deadline_ends_the_wait_but_not_the_answer() -> None:
    with ModelServer([QUEUED] + [RUNNING] * 1000) as server:
        with pytest.raises(LLMTimeout, match="resp_1"):
            llm(server, deadline=0.2).completion("x")
        assert not any("cancel" in one for one in request_lines(server))


def test_a_poll_that_the_deadline_cuts_short_names_the_answer_too() -> None:
    slow = Stream([b"{", b"}"], delay=1.0)
    with (
        ModelServer([QUEUED, slow]) as server,
        pytest.raises(LLMTimeout, match="resp_1 was not complete"),
    ):
        llm(server, deadline=0.3).completion("x")


def parts_of(stream: str, at: int) -> tuple[list[bytes], str]:
    """Return a stream that is cut within its event number `at`, and the events from there on."""
    parts = stream.split("\n\n")
    first = "\n\n".join(parts[:at]) + "\n\n" + parts[at][: len(parts[at]) // 2]
    return [first.encode()], "\n\n".join(parts[at:])


@pytest.mark.parametrize("at", [1, 3, 5])
@pytest.mark.parametrize("end", [True, False], ids=["ended", "broken"])
def test_a_broken_stream_is_resumed_after_its_last_event(at: int, end: bool) -> None:
    answer = response(message_item("Here is a long answer."), id="resp_1")
    first, rest = parts_of(sse(answer), at)
    deltas: list[Delta] = []
    with ModelServer([Stream(first, end=end), Stream([]), rest]) as server:
        completion = llm(server, stream=True).completion("x", on_delta=deltas.append)
        after = f"GET /responses/resp_1?stream=true&starting_after={at - 1}"
        assert request_lines(server) == ["POST /responses", after, after]
    assert completion.text == "Here is a long answer."
    assert "".join(delta.text for delta in deltas) == completion.text
    assert {delta.kind for delta in deltas} == {"text"}


@pytest.mark.parametrize("event", ['data: {"type": "resp', "data: [1]", 'data: {"delta": 1}'])
@pytest.mark.parametrize("at", [1, 3, 5])
def test_a_stream_with_an_unreadable_event_is_resumed_before_it(event: str, at: int) -> None:
    events = sse(response(message_item("Here is a long answer."), id="resp_1")).split("\n\n")
    if "delta" in event:
        event = f'data: {{"type": "response.output_text.delta", "sequence_number": {at}}}'
    garbled = "\n\n".join([*events[:at], event, "", ""])
    rest = "\n\n".join(events[at:])
    deltas: list[Delta] = []
    with ModelServer([Stream([garbled.encode()]), rest]) as server:
        answer = llm(server, stream=True).completion("x", on_delta=deltas.append)
        [first, second] = request_lines(server)
    assert first == "POST /responses"
    assert second.startswith("GET /responses/resp_1?stream=true&starting_after=")
    assert answer.text == "Here is a long answer."
    assert "".join(delta.text for delta in deltas) == answer.text


def test_a_stream_that_never_can_be_read_is_no_answer() -> None:
    garbled = sse(COMPLETED).split("\n\n")[0] + '\n\ndata: {"type": "resp\n\n'
    with ModelServer([garbled] * 10) as server:
        with pytest.raises(StreamInterrupted):
            llm(server, stream=True).completion("x")
        assert request_lines(server).count("POST /responses") == 1
        assert len(request_lines(server)) == 1 + background.MAX_RESUMPTIONS


def test_a_stream_that_reports_a_failure_is_asked_for_anew() -> None:
    failed = sse(response(id="resp_1")).split("\n\n")[0] + (
        '\n\ndata: {"type": "error", "code": "server_error", "message": "oops"}\n\n'
    )
    with ModelServer([failed, sse(COMPLETED)]) as server:
        assert llm(server, stream=True, max_retries=1).completion("x").text == "Here."
        assert request_lines(server) == ["POST /responses", "POST /responses"]


def test_an_incomplete_stream_that_is_not_resumable_is_no_answer() -> None:
    first, _ = parts_of(sse(COMPLETED), 3)
    with ModelServer([Stream(first)] + [Stream([])] * 10) as server:
        with pytest.raises(Exception, match="before the answer was complete"):
            llm(server, stream=True).completion("x")
        assert len(request_lines(server)) == 1 + background.MAX_RESUMPTIONS


def test_only_the_responses_api_has_it() -> None:
    with pytest.raises(ConfigurationError, match="wire='openai_responses'"):
        LLM("gpt-5", "key", "http://localhost/v1", wire="openai_chat", background=True)
    with pytest.raises(ConfigurationError, match="background takes"):
        LLM("gpt-5", "key", wire="openai_responses", background=1)  # type: ignore[arg-type]


def test_a_background_answer_can_be_recorded_and_replayed(tmp_path: Any) -> None:
    path = tmp_path / "tape.jsonl"
    with ModelServer([QUEUED, RUNNING, COMPLETED]) as server:
        model = llm(server)
        assert RecordedLLM(model, path, mode="record").completion("x").text == "Here."
        assert len(server.requests) == 3
        assert RecordedLLM(model, path, mode="replay").completion("x").text == "Here."
        assert len(server.requests) == 3


# --- in a conversation ---


PROGRAM = """
import sys
from holdfast import LLM, Agent, Conversation, SQLiteStore
url, path, stream = sys.argv[1:]
model = LLM("gpt-5", "key", url, wire="openai_responses", background=True, stream=bool(stream))
with SQLiteStore(path) as store, Conversation(Agent(model), store, id="c") as conversation:
    if not conversation.state.events:
        conversation.send_message("go")
    print(conversation.run().answer, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True], ids=["polled", "streamed"])
def test_a_killed_process_fetches_the_same_answer(tmp_path: Any, stream: bool) -> None:
    """The provider makes one answer: its id is journaled before the wait."""
    waits, completed = threading.Event(), threading.Event()

    def answer(request: Request) -> Any:
        if request.method == "POST":
            first = sse(COMPLETED).split("\n\n")[0] + "\n\n"
            return Stream([first.encode()], end=False) if stream else QUEUED
        waits.set()
        if not completed.is_set():
            return Stream([]) if stream else RUNNING
        return sse(COMPLETED) if stream else COMPLETED

    path = str(tmp_path / "store.db")
    with ModelServer(answer) as server:
        command = [sys.executable, "-c", PROGRAM, server.url, path, "1" if stream else ""]
        process = forks.Popen(command, env={**os.environ})
        try:
            assert waits.wait(30)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        completed.set()
        again = forks.run(command, capture_output=True, text=True, timeout=60, check=True)
        assert again.stdout == "Here.\n"
        posts = [request for request in server.requests if request.method == "POST"]
    assert len(posts) == 1
    with (
        SQLiteStore(path) as store,
        Conversation(Agent(llm(server)), store, id="c") as conversation,
    ):
        [note] = [event for event in conversation.state.events if event.type == "note"]
        assert note.details["responseId"] == "resp_1"


def paused_conversation(server: ModelServer, store: SQLiteStore, **more: Any) -> Conversation:
    return Conversation(Agent(llm(server, **more)), store, id="c")


def stopped_at_the_deadline(store: SQLiteStore) -> None:
    with (
        ModelServer([QUEUED] + [RUNNING] * 500) as server,
        paused_conversation(server, store, deadline=0.1) as conversation,
    ):
        conversation.send_message("go")
        assert conversation.run().status.value == "error"


def test_another_request_is_asked_for_anew(tmp_path: Any) -> None:
    with SQLiteStore(str(tmp_path / "store.db")) as store:
        stopped_at_the_deadline(store)
        with ModelServer([COMPLETED]) as server:
            with paused_conversation(server, store) as conversation:
                conversation.send_message("and more")
                assert conversation.run().answer == "Here."
            assert request_lines(server) == ["POST /responses"]


def test_a_timed_out_answer_is_fetched_when_the_conversation_is_resumed(tmp_path: Any) -> None:
    with SQLiteStore(str(tmp_path / "store.db")) as store:
        stopped_at_the_deadline(store)
        with ModelServer([COMPLETED]) as server:
            with paused_conversation(server, store) as conversation:
                conversation.resume()
                assert conversation.run().answer == "Here."
            assert request_lines(server) == ["GET /responses/resp_1"]


@pytest.mark.parametrize(
    "missing",
    [(404, {}, {"error": {"message": "no such response"}}), FAILED],
    ids=["gone", "failed"],
)
def test_an_answer_that_is_gone_after_a_restart_is_asked_for_anew(
    tmp_path: Any, missing: Any
) -> None:
    with SQLiteStore(str(tmp_path / "store.db")) as store:
        stopped_at_the_deadline(store)
        with ModelServer([missing, COMPLETED]) as server:
            with paused_conversation(server, store) as conversation:
                conversation.resume()
                assert conversation.run().answer == "Here."
            assert request_lines(server) == ["GET /responses/resp_1", "POST /responses"]


class Provider:
    """A provider of one answer, polled or streamed, that is complete after `completed` is set."""

    def __init__(self, stream: bool) -> None:
        self.stream = stream
        self.polled, self.completed = threading.Event(), threading.Event()
        self.cancelled = False

    def __call__(self, request: Request) -> Any:
        if request.path.endswith("/cancel"):
            self.cancelled = True
            return {**RUNNING, "status": "cancelled"}
        if request.method == "POST" and not self.cancelled:
            first = sse(COMPLETED).split("\n\n")[0] + "\n\n"
            return Stream([first.encode()], end=False) if self.stream else QUEUED
        self.polled.set()
        if request.method == "GET" and self.cancelled:
            return {**RUNNING, "status": "cancelled"}
        if not (self.completed.is_set() or self.cancelled):
            return Stall() if self.stream else RUNNING
        return sse(COMPLETED) if self.stream else COMPLETED


@pytest.fixture(params=[False, True], ids=["polled", "streamed"])
def provider(request: pytest.FixtureRequest) -> Provider:
    return Provider(request.param)


def test_closing_leaves_the_answer_running_and_opening_again_fetches_it(
    tmp_path: Any, provider: Provider
) -> None:
    with SQLiteStore(str(tmp_path / "store.db")) as store, ModelServer(provider) as server:
        with paused_conversation(server, store, stream=provider.stream) as conversation:
            conversation.send_message("go")
            conversation.start_thread()
            assert provider.polled.wait(30)
        before = len(server.requests)
        assert not any(one.endswith("/cancel") for one in request_lines(server))
        provider.completed.set()
        with paused_conversation(server, store, stream=provider.stream) as conversation:
            assert conversation.run().answer == "Here."
            answers = [one for one in conversation.get_history() if one.type == "assistant"]
        query = "?stream=true" if provider.stream else ""
        assert request_lines(server)[before:] == [f"GET /responses/resp_1{query}"]
        assert request_lines(server).count("POST /responses") == 1
    assert len(answers) == 1


def test_an_interrupt_cancels_the_answer_and_resuming_asks_anew(
    tmp_path: Any, provider: Provider
) -> None:
    with (
        SQLiteStore(str(tmp_path / "store.db")) as store,
        ModelServer(provider) as server,
        paused_conversation(server, store, stream=provider.stream) as conversation,
    ):
        conversation.send_message("go")
        conversation.start_thread()
        assert provider.polled.wait(30)
        conversation.interrupt()
        until(lambda: provider.cancelled)
        assert request_lines(server).count("POST /responses/resp_1/cancel") == 1
        conversation.resume()
        conversation.wait(30)
        assert conversation.state.answer == "Here."
        assert request_lines(server)[-1] == "POST /responses"
        assert request_lines(server).count("POST /responses") == 2


def test_a_request_that_is_refused_is_an_error() -> None:
    refused = (400, {}, {"error": {"message": "no", "code": "unsupported_parameter"}})
    with ModelServer([refused]) as server, pytest.raises(BadRequest):
        llm(server).completion("x")


def test_the_setting_is_in_an_agents_document() -> None:
    model = LLM("gpt-5", "key", "http://localhost/v1", wire="openai_responses", background=True)
    mapping, _ = dump_agent(Agent(model))
    assert mapping["model"]["background"] is True
    loaded = load_agent({"model": {"name": "gpt-5", "background": True}})
    assert loaded.llm.parameters()["background"] is True


# --- as a member of a composite ---


class Providers:
    """Two models behind one address. The answer of `gpt-5` is complete once `slow` is cleared."""

    def __init__(self) -> None:
        self.slow = True

    def __call__(self, request: Request) -> Any:
        if request.path.endswith("/cancel"):
            return {**RUNNING, "status": "cancelled"}
        if request.method == "POST" and request.json["model"] == "gpt-5-mini":
            return response(message_item("From mini."), id="resp_2", model="gpt-5-mini")
        if request.method == "POST":
            return QUEUED
        return RUNNING if self.slow else COMPLETED


def members(server: ModelServer, deadline: float | None = 0.1, **more: Any) -> dict[str, LLM]:
    first = llm(server, deadline=deadline, **more)
    return {"a": first, "b": first.replace(model="gpt-5-mini")}


def test_a_fallback_asks_the_next_model_and_cancels_the_answer_of_the_first(tmp_path: Any) -> None:
    with (
        SQLiteStore(str(tmp_path / "store.db")) as store,
        ModelServer(Providers()) as server,
        Conversation(Agent(FallbackLLM(members(server))), store, id="c") as conversation,
    ):
        conversation.send_message("go")
        assert conversation.run().answer == "From mini."
        notes = [one.details for one in conversation.get_history() if one.type == "note"]
    posts = [one for one in server.requests if one.method == "POST"]
    assert [one.path for one in posts] == [
        "/v1/responses",
        "/v1/responses/resp_1/cancel",
        "/v1/responses",
    ]
    assert [note["responseId"] for note in notes if "responseId" in note] == ["resp_1"]


def test_a_nested_fallback_cancels_what_its_last_model_left(tmp_path: Any) -> None:
    with ModelServer(Providers()) as server:
        models = members(server)
        inner = FallbackLLM({"x": models["a"]})
        assert FallbackLLM({"in": inner, "b": models["b"]}).completion("x").text == "From mini."
        assert request_lines(server)[-2:] == ["POST /responses/resp_1/cancel", "POST /responses"]


def test_members_with_the_same_model_do_not_share_an_answer(tmp_path: Any) -> None:
    """The second member has another key; the hash of its request is the same."""

    def answer(request: Request) -> Any:
        if request.headers["authorization"] == "Bearer other":
            return COMPLETED if request.method == "POST" else (404, {}, {})
        return QUEUED if request.method == "POST" else RUNNING

    with SQLiteStore(str(tmp_path / "store.db")) as store, ModelServer(answer) as server:
        first = llm(server, deadline=0.1)
        agent = Agent(FallbackLLM({"a": first, "b": first.replace(api_key="other")}))
        with Conversation(agent, store, id="c") as conversation:
            conversation.send_message("go")
            assert conversation.run().answer == "Here."
        others = [one for one in server.requests if one.headers["authorization"] == "Bearer other"]
    assert [one.method for one in others] == ["POST"]


def test_a_member_fetches_its_own_answer_when_the_conversation_is_resumed(tmp_path: Any) -> None:
    provider = Providers()
    with SQLiteStore(str(tmp_path / "store.db")) as store, ModelServer(provider) as server:
        models = members(server)
        agent = Agent(RouterLLM(lambda request: "a", models))
        with Conversation(agent, store, id="c") as conversation:
            conversation.send_message("go")
            assert conversation.run().status.value == "error"
        provider.slow = False
        before = len(server.requests)
        with Conversation(agent, store, id="c") as conversation:
            conversation.resume()
            assert conversation.run().answer == "Here."
        assert request_lines(server)[before:] == ["GET /responses/resp_1"]


def test_another_model_does_not_fetch_the_answer_of_the_first(tmp_path: Any) -> None:
    with SQLiteStore(str(tmp_path / "store.db")) as store, ModelServer(Providers()) as server:
        models = members(server)
        with Conversation(Agent(models["a"]), store, id="c") as conversation:
            conversation.send_message("go")
            assert conversation.run().status.value == "error"
        before = len(server.requests)
        with Conversation(Agent(models["b"]), store, id="c") as conversation:
            conversation.resume()
            assert conversation.run().answer == "From mini."
        assert request_lines(server)[before:] == ["POST /responses"]
