"""`RecordedLLM`: recorded over a real socket, replayed without one; nothing of a key in the file."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast import Agent, Conversation, ConversationStatus, FallbackLLM
from holdfast.conversation.replay import replay
from holdfast.errors import Cancelled, ConfigurationError, LLMTimeout, RateLimited, StreamInterrupted
from holdfast.llm import LLM, Delta, RecordedLLM
from holdfast.tools.context import Cancellation
from tests.model_server import ModelServer, Stall, Stream, calls, sse, text

KEY = "sk-planted-secret"


def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


def talk(llm: Any) -> list[Any]:
    with Conversation(Agent(llm, [add])) as conversation:
        conversation.send_message("1 + 2?")
        assert conversation.run().status is ConversationStatus.FINISHED
        return conversation.get_history()


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_is_recorded_and_replayed_without_a_server(stream: bool, tmp_path: Path) -> None:
    answers = [calls(("add", {"a": 1, "b": 2})), text("It is 3, drei.")]
    with ModelServer([sse(one) if stream else one for one in answers]) as server:
        llm = LLM("m", KEY, server.url, stream=stream)
        recorded = talk(RecordedLLM(llm, tmp_path / "tape.jsonl"))
        assert len(server.requests) == 2
        assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
    for mode in ("auto", "replay"):
        again = RecordedLLM(LLM("m", base_url=server.url, stream=stream, max_retries=0), tmp_path / "tape.jsonl", mode)
        journal = talk(again)
        assert [event.text for event in journal if event.type == "assistant"] == ["", "It is 3, drei."]
        assert replay(recorded, Agent(again, [add])).same
    lines = [json.loads(line) for line in (tmp_path / "tape.jsonl").read_text().splitlines()]
    assert [line["status"] for line in lines] == [200, 200]
    assert lines[0]["request"]["messages"][1] == {"role": "user", "content": "1 + 2?"}
    assert set(lines[0]["headers"]) == {"content-type"}
    assert KEY not in (tmp_path / "tape.jsonl").read_text()
    assert (tmp_path / "tape.jsonl").stat().st_mode & 0o077 == 0


def test_a_request_that_is_not_in_the_file_is_an_error_that_shows_it(tmp_path: Path) -> None:
    with ModelServer([text("hi")]) as server:
        llm = LLM("m", KEY, server.url)
        RecordedLLM(llm, tmp_path / "t").completion("hello")
        replaying = RecordedLLM(llm, tmp_path / "t", "replay")
        with pytest.raises(ConfigurationError, match=r"is not in '.*/t' \(1 other.*hullo"):
            replaying.completion("hullo")
        assert replaying.completion("hello").text == "hi"
        with pytest.raises(ConfigurationError, match="its answers have all been given"):
            replaying.completion("hello")
        assert len(server.requests) == 1


def test_same_requests_get_their_answers_in_order_and_new_ones_are_added(tmp_path: Path) -> None:
    with ModelServer([text("one"), text("two"), text("three")]) as server:
        llm = LLM("m", KEY, server.url)
        first = RecordedLLM(llm, tmp_path / "t")
        assert [first.completion("hello").text for _ in range(2)] == ["one", "two"]
        second = RecordedLLM(llm, tmp_path / "t")
        assert [second.completion("hello").text for _ in range(3)] == ["one", "two", "three"]
        assert len(server.requests) == 3
        assert len((tmp_path / "t").read_text().splitlines()) == 3
        server.add(text("new"))
        assert RecordedLLM(llm, tmp_path / "t", "record").completion("hello").text == "new"
        assert len((tmp_path / "t").read_text().splitlines()) == 1


def test_failures_are_replayed_as_they_were(tmp_path: Path) -> None:
    slow = (
        429,
        {"retry-after-ms": "1", "set-cookie": "session=secret"},
        {"error": {"message": f"slow down, {KEY}", "code": "rate_limit_exceeded"}},
    )
    cut = Stream([sse(text("a long answer")).encode()[:700]], end=False)
    with ModelServer([slow, text("hi"), slow, cut, Stall(0.01)]) as server:
        llm = LLM("m", KEY, server.url, timeout=5)
        assert RecordedLLM(llm, tmp_path / "retried").completion("hello").text == "hi"
        alone = llm.replace(max_retries=0, timeout=0.2)
        with pytest.raises(RateLimited):
            RecordedLLM(alone, tmp_path / "limited").completion("hello")
        with pytest.raises(StreamInterrupted):
            RecordedLLM(alone.replace(stream=True), tmp_path / "cut").completion("hello")
    with ModelServer([Stall(30)]) as server, pytest.raises(LLMTimeout):
        RecordedLLM(alone.replace(base_url=server.url), tmp_path / "silent").completion("hello")
    assert RecordedLLM(llm, tmp_path / "retried", "replay").completion("hello").text == "hi"
    with pytest.raises(RateLimited) as caught:
        RecordedLLM(alone, tmp_path / "limited", "replay").completion("hello")
    assert (caught.value.status, caught.value.retry_after, caught.value.code) == (429, 0.001, "rate_limit_exceeded")
    seen: list[Delta] = []
    with pytest.raises(StreamInterrupted):
        RecordedLLM(alone.replace(stream=True), tmp_path / "cut", "replay").completion("hello", on_delta=seen.append)
    assert seen
    with pytest.raises(LLMTimeout, match="sent nothing"):
        RecordedLLM(alone, tmp_path / "silent", "replay").completion("hello")
    for name in ("retried", "limited", "cut", "silent"):
        found = (tmp_path / name).read_text()
        assert KEY not in found
        assert "session" not in found


def test_a_cancelled_call_is_not_recorded(tmp_path: Path) -> None:
    token = Cancellation()
    with ModelServer([Stream([b"data: {}\n\n"] * 100, delay=0.05)]) as server:
        llm = RecordedLLM(LLM("m", KEY, server.url, stream=True), tmp_path / "t")
        threading.Timer(0.2, token.cancel).start()
        with pytest.raises(Cancelled):
            llm.completion("hello", cancelled=token)
    assert not (tmp_path / "t").exists()


def test_a_composite_of_recorded_models(tmp_path: Path) -> None:
    with ModelServer([text("hi")]) as server:
        llm = FallbackLLM([RecordedLLM(LLM("m", KEY, server.url), tmp_path / "t")])
        assert llm.completion("hello").route == "m"
    assert FallbackLLM([RecordedLLM(LLM("m", base_url=server.url), tmp_path / "t", "replay")]).completion("hello").text == "hi"


def test_many_threads_record_into_one_file(tmp_path: Path) -> None:
    with ModelServer(lambda request: text(request.messages[0]["content"])) as server:
        llm = RecordedLLM(LLM("m", KEY, server.url), tmp_path / "t")
        threads = [threading.Thread(target=llm.completion, args=(f"question {n}",)) for n in range(30)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    again = RecordedLLM(LLM("m", base_url=server.url), tmp_path / "t", "replay")
    assert [again.completion(f"question {n}").text for n in range(30)] == [f"question {n}" for n in range(30)]


def test_what_it_is_made_of_is_checked(tmp_path: Path) -> None:
    llm = LLM("m", KEY, "http://localhost:1")
    with pytest.raises(ConfigurationError, match="llm takes an LLM"):
        RecordedLLM("m", tmp_path / "t")  # pyright: ignore
    with pytest.raises(ConfigurationError, match="mode takes one of auto, replay, record, not 'play'"):
        RecordedLLM(llm, tmp_path / "t", "play")
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        RecordedLLM(llm, tmp_path / "t", "replay")
    with pytest.raises(ConfigurationError, match="cannot be written: Is a directory"):
        RecordedLLM(llm, tmp_path, "record")
    (tmp_path / "bad").write_text('{"path": "/"}\n')
    with pytest.raises(ConfigurationError, match=r"line 1 of .*bad' is no recorded exchange"):
        RecordedLLM(llm, tmp_path / "bad")
    assert KEY not in repr(RecordedLLM(llm, tmp_path / "t"))
