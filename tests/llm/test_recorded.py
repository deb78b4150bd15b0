"""`RecordedLLM`: recorded over a real socket, replayed without one. The file has no part of a
key."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast import Agent, Conversation, ConversationStatus, FallbackLLM
from holdfast.conversation.replay import replay
from holdfast.errors import (
    Cancelled,
    ConfigurationError,
    LLMConnectionError,
    LLMError,
    LLMTimeout,
    RateLimited,
    StreamInterrupted,
)
from holdfast.llm import LLM, Delta, RecordedLLM, endpoint
from holdfast.tools.context import Cancellation
from tests.model_server import Drop, ModelServer, Stall, Stream, calls, sse, text

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
def test_a_conversation_is_recorded_and_replayed_without_a_server(
    stream: bool, tmp_path: Path
) -> None:
    answers = [calls(("add", {"a": 1, "b": 2})), text("It is 3, drei.")]
    with ModelServer([sse(one) if stream else one for one in answers]) as server:
        llm = LLM("m", KEY, server.url, stream=stream)
        recorded = talk(RecordedLLM(llm, tmp_path / "tape.jsonl"))
        assert len(server.requests) == 2
        assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
    for mode in ("auto", "replay"):
        again = RecordedLLM(
            LLM("m", base_url=server.url, stream=stream, max_retries=0),
            tmp_path / "tape.jsonl",
            mode,
        )
        journal = talk(again)
        assert [event.text for event in journal if event.type == "assistant"] == [
            "",
            "It is 3, drei.",
        ]
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
        with pytest.raises(ConfigurationError, match="all its recorded answers have been replayed"):
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


@pytest.mark.slow
def test_failures_are_replayed_as_they_were(tmp_path: Path) -> None:
    slow = (
        429,
        {"retry-after-ms": "1", "set-cookie": "session=secret"},
        {"error": {"message": f"slow down, {KEY}", "code": "rate_limit_exceeded"}},
    )
    cut = Stream([sse(text("a long answer")).encode()[:700]], end=False)
    with ModelServer([slow, text("hi"), slow, cut, Stall(0.01)]) as server:
        llm = LLM("m", KEY, server.url, timeout=5)
        assert RecordedLLM(llm, tmp_path / "retried", "record").completion("hello").text == "hi"
        alone = llm.replace(max_retries=0, timeout=0.2)
        with pytest.raises(RateLimited):
            RecordedLLM(alone, tmp_path / "limited", "record").completion("hello")
        with pytest.raises(StreamInterrupted):
            RecordedLLM(alone.replace(stream=True), tmp_path / "cut", "record").completion("hello")
    with ModelServer([Stall(30)]) as server, pytest.raises(LLMTimeout):
        RecordedLLM(alone.replace(base_url=server.url), tmp_path / "silent", "record").completion(
            "hello"
        )
    assert RecordedLLM(llm, tmp_path / "retried", "replay").completion("hello").text == "hi"
    with pytest.raises(RateLimited) as caught:
        RecordedLLM(alone, tmp_path / "limited", "replay").completion("hello")
    assert (caught.value.status, caught.value.retry_after, caught.value.code) == (
        429,
        0.001,
        "rate_limit_exceeded",
    )
    deltas: list[Delta] = []
    with pytest.raises(StreamInterrupted):
        RecordedLLM(alone.replace(stream=True), tmp_path / "cut", "replay").completion(
            "hello", on_delta=deltas.append
        )
    assert deltas
    with pytest.raises(LLMTimeout, match="sent nothing"):
        RecordedLLM(alone, tmp_path / "silent", "replay").completion("hello")
    for name in ("retried", "limited", "cut", "silent"):
        recording = (tmp_path / name).read_text()
        assert KEY not in recording
        assert "session" not in recording


def test_auto_keeps_no_failure_and_repeats_none(tmp_path: Path) -> None:
    """Each attempt has another fault; only the first answer is recorded."""
    whole = sse(text("a long answer"))
    faults: list[Any] = [
        Drop(),
        (401, {}, {"error": {"message": "wrong key"}}),
        Stream([whole.encode()[:700]], end=False),
        Stream([b"data: {\n\n"]),
        'data: {"error": {"message": "failed", "code": 500}}\n\n',
        (200, {"content-type": "application/json"}, {"error": {"message": "failed", "code": 500}}),
    ]
    for mode in ("auto", "record"):
        with ModelServer([*faults, whole]) as server:
            llm = LLM("m", KEY, server.url, stream=True, max_retries=0)
            recorded = RecordedLLM(llm, tmp_path / mode, mode)
            for _ in faults:
                with pytest.raises(LLMError):
                    recorded.completion("hello")
            assert recorded.completion("hello").text == "a long answer"
        assert RecordedLLM(llm, tmp_path / mode).completion("hello").text == "a long answer"
        assert len((tmp_path / mode).read_text().splitlines()) == (1 if mode == "auto" else 7)


def test_what_is_not_to_be_tried_again_is_not_when_it_is_replayed(tmp_path: Path) -> None:
    llm = LLM("m", KEY, "http://no.such.host.invalid/v1", max_retries=2)
    for mode in ("record", "replay"):
        recorded = RecordedLLM(llm, tmp_path / "t", mode)
        with pytest.raises(LLMConnectionError, match=r"no\.such\.host") as caught:
            recorded.completion("hello")
        assert not caught.value.retryable


@pytest.mark.parametrize("end", [KeyboardInterrupt, KeyError, Cancelled])
def test_what_was_broken_off_from_this_side_is_not_recorded(
    end: type[BaseException], tmp_path: Path
) -> None:
    def stop(_: Delta) -> None:
        raise end("now")

    with ModelServer(lambda _: sse(text("a long answer"))) as server:
        recorded = RecordedLLM(LLM("m", KEY, server.url, stream=True), tmp_path / "t")
        with pytest.raises(end):
            recorded.completion("hello", on_delta=stop)
        assert not (tmp_path / "t").exists()
        assert recorded.completion("hello").text == "a long answer"
    assert (
        RecordedLLM(LLM("m", base_url=server.url, stream=True), tmp_path / "t")
        .completion("hello")
        .text
        == "a long answer"
    )


@pytest.mark.parametrize("end", ["lost", "garbage", "late"])
def test_what_goes_wrong_behind_a_whole_answer_is_not_in_its_recording(
    end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "AFTER_FINISH_SECONDS", 0.2)
    data = sse(text("whole")).partition("data: [DONE]")[0].encode()
    answer = {
        "lost": Stream([data], end=False),
        "garbage": Stream([data, b"data: {\n\n", b": wait\n\n"]),
        "late": Stream([data, *[b": wait\n\n"] * 10], delay=0.1),
    }[end]
    with ModelServer([answer]) as server:
        llm = LLM("m", KEY, server.url, stream=True, max_retries=0)
        assert RecordedLLM(llm, tmp_path / "t").completion("hello").text == "whole"
    for mode in ("auto", "replay"):
        assert RecordedLLM(llm, tmp_path / "t", mode).completion("hello").text == "whole"


@pytest.mark.parametrize("key", ["test", "role", "run this test"])
def test_a_key_that_is_a_word_of_the_messages_spoils_nothing(key: str, tmp_path: Path) -> None:
    """A key that is too short to be one stays in the text. A masked request still matches its
    recording."""
    prompt = f"Please {'run this test' if key == 'test' else key} now."
    with ModelServer([text("This test passed.")]) as server:
        RecordedLLM(LLM("m", key, server.url), tmp_path / "t", "record").completion(prompt)
    for other in (key, ""):
        assert (
            RecordedLLM(LLM("m", other, server.url), tmp_path / "t", "replay")
            .completion(prompt)
            .text
            == "This test passed."
        )
    assert ("run this test" in (tmp_path / "t").read_text()) is (key == "test")


@pytest.mark.slow
def test_a_line_that_a_crash_cut_off_costs_only_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with ModelServer([text("ä"), text("ö"), text("ü")]) as server:
        llm = LLM("m", KEY, server.url)
        recorded = RecordedLLM(llm, tmp_path / "t")
        assert [recorded.completion(word).text for word in "xy"] == ["ä", "ö"]
        whole = (tmp_path / "t").read_bytes()
        first = whole.index(b"\n") + 1
        for at in range(first + 1, len(whole)):
            (tmp_path / "t").write_bytes(whole[:at])
            again = RecordedLLM(llm, tmp_path / "t", "replay")
            assert again.completion("x").text == "ä"
            if at < len(whole) - 1:
                with pytest.raises(ConfigurationError, match="is not in"):
                    again.completion("y")
        assert "line 2 of" in caplog.text
        (tmp_path / "t").write_bytes(whole[: first + 40])
        assert [RecordedLLM(llm, tmp_path / "t").completion("y").text for _ in range(2)] == [
            "ü",
            "ü",
        ]
        assert len(server.requests) == 3


def test_a_key_in_the_address_is_not_in_the_file_nor_needed_to_replay(tmp_path: Path) -> None:
    with ModelServer([text("hi")]) as server:
        RecordedLLM(
            LLM("m", base_url=f"{server.url}?key={KEY}&api-version=1"), tmp_path / "t"
        ).completion("hello")
        assert server.requests[0].path.endswith(f"?key={KEY}&api-version=1")
    recorded = json.loads((tmp_path / "t").read_text())
    assert recorded["path"] == "/v1/chat/completions?key=***&api-version=1"
    for url in (f"{server.url}?key=another-key", server.url):
        assert (
            RecordedLLM(LLM("m", base_url=url), tmp_path / "t", "replay").completion("hello").text
            == "hi"
        )


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
    assert (
        FallbackLLM([RecordedLLM(LLM("m", base_url=server.url), tmp_path / "t", "replay")])
        .completion("hello")
        .text
        == "hi"
    )


def test_many_threads_record_into_one_file(tmp_path: Path) -> None:
    with ModelServer(lambda request: text(request.messages[0]["content"])) as server:
        llm = RecordedLLM(LLM("m", KEY, server.url), tmp_path / "t")
        threads = [
            threading.Thread(target=llm.completion, args=(f"question {n}",)) for n in range(30)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    again = RecordedLLM(LLM("m", base_url=server.url), tmp_path / "t", "replay")
    assert [again.completion(f"question {n}").text for n in range(30)] == [
        f"question {n}" for n in range(30)
    ]


def test_what_it_is_made_of_is_checked(tmp_path: Path) -> None:
    llm = LLM("m", KEY, "http://localhost:1")
    with pytest.raises(ConfigurationError, match="llm takes an LLM"):
        RecordedLLM("m", tmp_path / "t")  # pyright: ignore
    with pytest.raises(
        ConfigurationError, match="mode takes one of auto, replay, record, not 'play'"
    ):
        RecordedLLM(llm, tmp_path / "t", "play")
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        RecordedLLM(llm, tmp_path / "t", "replay")
    with pytest.raises(ConfigurationError, match="cannot be written: Is a directory"):
        RecordedLLM(llm, tmp_path, "record")
    (tmp_path / "bad").write_text('{"path": "/"}\n')
    with pytest.raises(ConfigurationError, match=r"line 1 of .*bad' is not a recorded exchange"):
        RecordedLLM(llm, tmp_path / "bad")
    assert KEY not in repr(RecordedLLM(llm, tmp_path / "t"))
