"""`ScriptedLLM`: answers in order, real requests, and all forms of answers in a script."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast import events
from holdfast.content import Message, ToolCall, Usage
from holdfast.errors import Cancelled, ConfigurationError, LLMError, RateLimited
from holdfast.llm import LLM, Completion, Delta, ScriptedLLM, Transcript
from holdfast.llm.scripted import ScriptedRequest
from holdfast.tools.context import Cancellation
from tests.model_server import ModelServer, text


class Tool:
    name = "srv.find"
    description = "d"
    input_schema: dict[str, Any] = {"type": "object"}


def test_answers_come_in_order() -> None:
    llm = ScriptedLLM(["one", "two"])
    assert [llm.completion("a").text, llm.completion("b").text] == ["one", "two"]
    assert [request.text for request in llm.requests] == ["a", "b"]


@pytest.mark.parametrize(
    "answer",
    [
        ("srv.find", {"q": 1}),
        ToolCall("", "srv.find", {"q": 1}),
        {"name": "srv.find", "arguments": {"q": 1}},
        {"name": "srv__find", "arguments": {"q": 1}},
        [("srv.find", {"q": 1})],
    ],
)
def test_a_call_may_be_written_in_any_way(answer: Any) -> None:
    completion = ScriptedLLM([answer]).completion("x", [Tool()])
    assert [(call.name, call.arguments, call.id) for call in completion.calls] == [
        ("srv.find", {"q": 1}, "")
    ]
    assert completion.calls[0].provider_id == "call_1_0"
    assert completion.stop_reason == "tool_calls"


def test_a_list_is_one_answer_with_text_and_parallel_calls() -> None:
    answer = ScriptedLLM([["Looking.", ("a", {}), ("b", {})]]).completion("x")
    assert answer.text == "Looking."
    assert [call.name for call in answer.calls] == ["a", "b"]
    assert len({call.provider_id for call in answer.calls}) == 2


def test_a_completion_is_given_as_it_is() -> None:
    original = Completion("x", "because", usage=Usage(7, 8), stop_reason="length", model="other")
    answer = ScriptedLLM([original]).completion("x")
    assert (answer.reasoning, answer.usage, answer.stop_reason, answer.model) == (
        "because",
        Usage(7, 8),
        "length",
        "other",
    )


def test_an_exception_is_raised_and_the_script_goes_on() -> None:
    llm = ScriptedLLM([RateLimited("slow"), KeyError, "fine"])
    for kind in (RateLimited, KeyError):
        with pytest.raises(kind):
            llm.completion("x")
    assert llm.completion("x").text == "fine"


def test_a_function_sees_the_request() -> None:
    def answer(request: ScriptedRequest) -> Any:
        assert request.messages[0] == {"role": "system", "content": "sys"}
        assert [tool.name for tool in request.tools] == ["srv.find"]
        return f"you said {request.text}" if len(request.transcript) == 1 else ("srv.find", {})

    llm = ScriptedLLM(answer)
    assert llm.completion("hi", [Tool()], system="sys").text == "you said hi"
    assert (
        llm.completion([Message("a"), Message("b")], [Tool()], system="sys").calls[0].name
        == "srv.find"
    )
    assert ScriptedLLM([answer]).completion("hi", [Tool()], system="sys").text == "you said hi"


def test_a_generator_is_a_script() -> None:
    def script() -> Iterator[Any]:
        yield "a"
        yield ("t", {})

    llm = ScriptedLLM(script())
    assert llm.completion("x").text == "a"
    assert llm.completion("x").calls[0].name == "t"


def test_a_script_that_has_run_out_says_so() -> None:
    llm = ScriptedLLM(["only"])
    llm.completion("x")
    with pytest.raises(
        LLMError, match=r"run out: this is request 2, there are 1 answers.*'what now'"
    ) as caught:
        llm.completion("what now")
    assert not caught.value.retryable


@pytest.mark.parametrize("script", ["text", b"x", {"a": 1}])
def test_a_script_that_is_none_is_refused(script: Any) -> None:
    with pytest.raises(ConfigurationError, match="script"):
        ScriptedLLM(script)


@pytest.mark.parametrize("answer", [5, None, ("a",), ("a", 5), {"arguments": {}}, [5]])
def test_an_answer_that_is_none_is_refused(answer: Any) -> None:
    with pytest.raises(ConfigurationError, match="answer takes"):
        ScriptedLLM([answer]).completion("x")


def test_its_requests_are_the_bytes_that_an_llm_sends() -> None:
    transcript = Transcript.from_messages("hé")
    head = events.AgentConfigured(
        seq=1,
        id="a",
        timestamp=datetime.now(UTC),
        system_prompt="s",
        model="m",
        tools=(events.ToolDefinition("srv.find", "d", {"type": "object"}, "srv__find"),),
        parameters={"temperature": 0.5},
    )
    scripted = ScriptedLLM(["x", "y"], model="m")
    with ModelServer(lambda _: text("x")) as server:
        llm = LLM("m", base_url=server.url, temperature=0.5)
        llm.completion(transcript, head=head)
        scripted.completion(transcript, head=head)
        assert scripted.requests[0].body == server.requests[0].body
        llm.replace(temperature=None).completion("z", [Tool()], system="s")
        scripted.completion("z", [Tool()], system="s")
        assert scripted.requests[1].body == server.requests[1].body


def test_deltas_are_told_word_by_word() -> None:
    deltas: list[Delta] = []
    llm = ScriptedLLM([["two words ", ("t", {"a": 1})]], stream=True)
    llm.completion("x", on_delta=deltas.append)
    assert deltas == [
        Delta("text", "two"),
        Delta("text", " words"),
        Delta("text", " "),
        Delta("tool", '{"a":1}', 0, "t"),
    ]


def test_a_delay_is_kept_and_cancelled() -> None:
    llm = ScriptedLLM(["a", "b"], delay=0.05)
    assert llm.completion("x").duration >= 0.05
    cancelled = Cancellation()
    llm.delay = 30.0
    timer = threading.Timer(0.05, cancelled.cancel)
    timer.start()
    began = time.monotonic()
    with pytest.raises(Cancelled):
        llm.completion("x", cancelled=cancelled)
    assert time.monotonic() - began < 20
    timer.join()


def test_many_threads_get_each_answer_once() -> None:
    llm = ScriptedLLM([str(number) for number in range(400)])
    texts: list[str] = []

    def work() -> None:
        for _ in range(25):
            texts.append(llm.completion("x").text)

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(texts, key=int) == [str(number) for number in range(400)]
    assert [request.number for request in llm.requests] == list(range(400))


def test_the_same_script_on_the_same_words_makes_the_same_bytes() -> None:
    def run() -> list[bytes]:
        llm = ScriptedLLM([("a", {}), [("b", {}), ("c", {})], "end"])
        transcript = Transcript.from_messages("go")
        while True:
            answer = llm.completion(transcript)
            transcript.append(answer)
            if not answer.calls:
                return [request.body for request in llm.requests]
            for call in answer.calls:
                transcript.append(Message("ok", role="tool", tool_call_id=call.provider_id))

    assert run() == run()


def test_it_has_no_settings_price_or_sockets() -> None:
    llm = ScriptedLLM(["x"])
    llm.close()
    assert (llm.parameters(), llm.cost(Usage(5, 5)), llm.model) == ({}, None, "scripted")
    assert llm.completion("hello").usage.input_tokens > 0
