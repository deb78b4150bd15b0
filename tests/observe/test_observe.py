"""Tests of observers: spans and metrics of OpenTelemetry, and a log of JSON lines."""

from __future__ import annotations

import http.server
import io
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    LLM,
    Agent,
    Conversation,
    MCPClient,
    MemoryStore,
    RemoteConversation,
    RemoteWorkspace,
    ScriptedLLM,
    SQLiteStore,
    Tool,
    ToolContext,
    ToolResult,
    tool,
)
from holdfast.agent.condenser import Condensed
from holdfast.agent.condensers import WindowCondenser
from holdfast.answer import AnswerDetails, Citation, ServerToolCall
from holdfast.content import AudioContent, FileContent, ImageContent, TextContent, Usage
from holdfast.errors import ConfigurationError, RateLimited
from holdfast.llm.completion import Completion
from holdfast.observe import JsonLog, Telemetry, names
from holdfast.server.local import LocalServer
from holdfast.tools.tool import RetryPolicy
from tests import forks
from tests.leftovers import Owned
from tests.model_server import ModelServer, text

sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="opentelemetry-sdk is not installed")
from opentelemetry import trace  # noqa: E402
from opentelemetry.sdk.metrics import MeterProvider  # noqa: E402
from opentelemetry.sdk.metrics.export import InMemoryMetricReader  # noqa: E402
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider  # noqa: E402
from opentelemetry.trace import SpanKind, StatusCode  # noqa: E402

from tests.waiting import until  # noqa: E402

DEADLINE = 30.0


class SpanLog(SpanProcessor):
    """An exporter's view: the spans that began, and those that ended."""

    def __init__(self) -> None:
        self.started: list[Span] = []
        self.ended: list[ReadableSpan] = []
        self.provider = TracerProvider()
        self.provider.add_span_processor(self)

    def on_start(self, span: Span, parent_context: Any = None) -> None:
        self.started.append(span)

    def on_end(self, span: ReadableSpan) -> None:
        self.ended.append(span)

    @property
    def open(self) -> list[str]:
        return [span.name for span in self.started if span.is_recording()]

    def of(self, name: str) -> list[ReadableSpan]:
        """Return the ended spans whose names begin with `name`, in the order in which they ended."""
        return [span for span in self.ended if span.name.startswith(name)]

    def one(self, name: str) -> ReadableSpan:
        matching = self.of(name)
        assert len(matching) == 1, [span.name for span in self.ended]
        return matching[0]

    def telemetry(self, **options: Any) -> Telemetry:
        return Telemetry(self.provider, **options)


def below(span: ReadableSpan, above: ReadableSpan) -> bool:
    return (
        span.parent is not None
        and span.parent.span_id == above.context.span_id
        and span.context.trace_id == above.context.trace_id
    )


@tool
def weather(city: str) -> str:
    """Weather of a city."""
    return f"{city}: sunny"


def agent(*answers: Any, tools: Sequence[Any] = (weather,), **more: Any) -> Agent:
    return Agent(ScriptedLLM(list(answers)), list(tools), **more)


def run(agent: Agent, observer: Any, message: str = "go", **options: Any) -> Conversation:
    with Conversation(agent, observer=observer, **options) as conversation:
        conversation.send_message(message)
        conversation.run()
    return conversation


# --- spans ---


def test_a_run_is_a_span_with_its_model_and_tool_calls_below_it() -> None:
    spans = SpanLog()
    conversation = run(agent([("weather", {"city": "Bern"})], "Sunny."), spans.telemetry())
    invoked, called = spans.one("invoke_agent"), spans.one("execute_tool")
    assert [span.name for span in spans.ended] == [
        "chat scripted",
        "execute_tool weather",
        "chat scripted",
        "invoke_agent",
    ]
    assert all(below(span, invoked) for span in spans.ended[:-1])
    assert invoked.parent is None
    assert invoked.attributes["gen_ai.operation.name"] == "invoke_agent"
    assert invoked.attributes["gen_ai.conversation.id"] == conversation.id
    assert (invoked.attributes["holdfast.status"], invoked.attributes["holdfast.steps"]) == (
        "finished",
        2,
    )
    assert invoked.attributes["gen_ai.usage.input_tokens"] == sum(
        span.attributes["gen_ai.usage.input_tokens"] for span in spans.of("chat")
    )
    assert called.attributes["gen_ai.tool.name"] == "weather"
    assert called.attributes["gen_ai.tool.call.id"] == "4.0"
    assert [span.kind for span in spans.ended] == [
        SpanKind.CLIENT,
        SpanKind.INTERNAL,
        SpanKind.CLIENT,
        SpanKind.INTERNAL,
    ]
    assert invoked.start_time <= called.start_time <= called.end_time <= invoked.end_time
    assert invoked.instrumentation_scope.schema_url == names.SCHEMA
    assert not any(
        name in span.attributes
        for span in spans.ended
        for name in (names.INPUT_MESSAGES, names.TOOL_ARGUMENTS, names.SYSTEM_INSTRUCTIONS)
    )


def test_names_are_those_of_the_conventions() -> None:
    semconv = pytest.importorskip("opentelemetry.semconv._incubating.attributes.gen_ai_attributes")
    conventional = {value for value in vars(semconv).values() if isinstance(value, str)}
    ours = {
        value
        for name, value in vars(names).items()
        if name.isupper() and isinstance(value, str) and value.startswith("gen_ai.")
    }
    assert ours - conventional == {
        *(names.TOKEN_USAGE, names.DURATION),  # metrics
        # of the repository that continues the conventions
        *(names.INPUT_AUDIO_TOKENS, names.INPUT_IMAGE_TOKENS),
        *(names.OUTPUT_AUDIO_TOKENS, names.OUTPUT_IMAGE_TOKENS),
    }
    assert {field for field, _, _ in names.USAGE_ATTRIBUTES} == set(Usage.__struct_fields__)


DETAILED = Completion(
    "It is **red**.",
    usage=Usage(100, 50, 10, 20, 30, 5, 6, 7, 8, 9),
    stop_reason="stop",
    cost=0.25,
    host="api.openai.com",
    details=AnswerDetails(
        citations=(Citation("https://example.org/a", "A", "red " * 5000, start=0, end=5),),
        server_calls=(
            ServerToolCall("web_search", "ws_1", {"query": "red"}, {"results": ["a"]}),
            ServerToolCall("code", output="x" * 20_000, is_error=True),
            ServerToolCall("pending"),
        ),
        media=(ImageContent(b"png"), FileContent(file_id="f1", mime_type="text/csv")),
        service_tier="flex",
        provider_cost=0.25,
        list_cost=0.5,
    ),
)


def test_every_count_of_usage_is_an_attribute() -> None:
    spans = SpanLog()
    run(agent(DETAILED), spans.telemetry())
    for name in ("chat", "invoke_agent"):
        attributes = spans.one(name).attributes
        counts = {key: value for key, value in attributes.items() if ".usage." in key}
        assert counts == {
            "gen_ai.usage.input_tokens": 100,
            "gen_ai.usage.output_tokens": 50,
            "gen_ai.usage.cache_read.input_tokens": 10,
            "gen_ai.usage.cache_creation.input_tokens": 20,
            "gen_ai.usage.reasoning.output_tokens": 30,
            "holdfast.usage.cache_creation_1h.input_tokens": 5,
            "gen_ai.usage.audio.input_tokens": 6,
            "gen_ai.usage.audio.output_tokens": 7,
            "gen_ai.usage.image.input_tokens": 8,
            "gen_ai.usage.image.output_tokens": 9,
        }


def test_a_model_calls_span_has_prices_sources_and_the_providers_own_calls() -> None:
    spans = SpanLog()
    run(agent(DETAILED), spans.telemetry())
    attributes = spans.one("chat").attributes
    assert attributes["gen_ai.response.finish_reasons"] == ("stop",)
    assert attributes["holdfast.server_tools"] == ("web_search", "code", "pending")
    assert attributes["holdfast.citations"] == 1
    assert attributes["openai.response.service_tier"] == "flex"
    assert [attributes[f"holdfast.{name}cost"] for name in ("", "provider_", "list_")] == [
        *(0.25, 0.25, 0.5)
    ]
    assert names.OUTPUT_MESSAGES not in attributes


def test_a_refusal_is_the_finish_reason() -> None:
    spans = SpanLog()
    refused = Completion(stop_reason="refusal", details=AnswerDetails(refusal="I will not."))
    run(agent(refused), spans.telemetry(content=True))
    attributes = spans.one("chat").attributes
    assert attributes["gen_ai.response.finish_reasons"] == ("refusal",)
    (message,) = json.loads(attributes[names.OUTPUT_MESSAGES])
    assert message == {
        "role": "assistant",
        "parts": [{"type": "refusal", "content": "I will not."}],
        "finish_reason": "refusal",
    }


def test_content_has_the_parts_of_the_conventions() -> None:
    spans = SpanLog()
    content = [
        FileContent(b"%PDF", "application/pdf", name="a.pdf"),
        FileContent(url="https://example.org/b.png"),
        AudioContent(b"wav"),
        TextContent("What is it?"),
    ]
    with Conversation(agent(DETAILED), observer=spans.telemetry(content=True)) as conversation:
        conversation.send_message(content)
        conversation.run()
    attributes = spans.one("chat").attributes
    assert json.loads(attributes[names.INPUT_MESSAGES])[0]["parts"] == [
        {"type": "blob", "modality": "document", "name": "a.pdf", "mime_type": "application/pdf"},
        {
            "type": "uri",
            "modality": "image",
            "uri": "https://example.org/b.png",
            "mime_type": "image/png",
        },
        {"type": "blob", "modality": "audio", "mime_type": "audio/wav"},
        {"type": "text", "content": "What is it?"},
    ]
    (message,) = json.loads(attributes[names.OUTPUT_MESSAGES])
    parts = message["parts"]
    assert parts[:2] == [
        {
            "type": "server_tool_call",
            "id": "ws_1",
            "name": "web_search",
            "server_tool_call": {"type": "web_search", "arguments": {"query": "red"}},
        },
        {
            "type": "server_tool_call_response",
            "id": "ws_1",
            "server_tool_call_response": {"type": "web_search", "response": {"results": ["a"]}},
        },
    ]
    assert [part["type"] for part in parts[2:]] == [
        *("server_tool_call", "server_tool_call_response", "server_tool_call"),
        *("text", "blob", "file", "citation"),
    ]
    failed = parts[3]["server_tool_call_response"]
    assert failed["is_error"] is True
    assert failed["response"].endswith("(20,002 characters)")
    assert parts[-1]["url"] == "https://example.org/a"
    assert parts[-1]["quote"].endswith("(20,000 characters)")


def test_content_is_told_only_where_it_was_asked_for() -> None:
    spans = SpanLog()
    run(
        agent([("weather", {"city": "Bern"})], "Sunny."), spans.telemetry(content=True), "And Bern?"
    )
    first, second = spans.of("chat")
    assert json.loads(first.attributes[names.INPUT_MESSAGES]) == [
        {"role": "user", "parts": [{"type": "text", "content": "And Bern?"}]}
    ]
    assert json.loads(first.attributes[names.OUTPUT_MESSAGES])[0]["parts"][0]["name"] == "weather"
    assert (
        json.loads(second.attributes[names.INPUT_MESSAGES])[0]["parts"][0]["response"]
        == "Bern: sunny"
    )
    assert json.loads(spans.one("execute_tool").attributes[names.TOOL_ARGUMENTS]) == {
        "city": "Bern"
    }
    assert spans.one("execute_tool").attributes[names.TOOL_RESULT] == "Bern: sunny"


def test_a_run_stands_below_the_span_in_which_it_was_asked_for() -> None:
    spans = SpanLog()
    tracer = spans.provider.get_tracer("mine")
    with Conversation(agent("one", "two"), observer=spans.telemetry()) as conversation:
        with tracer.start_as_current_span("request"):
            conversation.send_message("go")
            conversation.run()
        conversation.start_thread()
        with tracer.start_as_current_span("another"):
            conversation.send_message("go on")
        conversation.wait(DEADLINE)
    first, second = spans.of("invoke_agent")
    assert below(first, spans.one("request"))
    assert below(second, spans.one("another"))


def test_a_tools_span_is_current_in_its_thread_and_that_of_its_timeout() -> None:
    spans = SpanLog()

    def look() -> str:
        """Looks."""
        with spans.provider.get_tracer("mine").start_as_current_span("inner"):
            return f"{trace.get_current_span().get_span_context().is_valid}"

    tools = [Tool.from_function(look), Tool.from_function(look, name="look_timed", timeout=20.0)]
    run(agent([("look", {}), ("look_timed", {})], "done", tools=tools), spans.telemetry())
    assert {span.parent.span_id for span in spans.of("inner")} == {
        span.context.span_id for span in spans.of("execute_tool")
    }


def test_an_error_of_a_tool_and_of_the_model_has_its_type() -> None:
    spans = SpanLog()

    def fails() -> str:
        """Fails."""
        raise TimeoutError("too slow")

    error = RateLimited("slow down", status=429)
    run(agent([("fails", {})], error, tools=[Tool.from_function(fails)]), spans.telemetry())
    called, invoked = spans.one("execute_tool"), spans.one("invoke_agent")
    assert (called.attributes["error.type"], called.status.status_code) == (
        "timeout",
        StatusCode.ERROR,
    )
    assert called.status.description is None  # the text of an error is content
    failed = spans.of("chat")[-1]
    assert (failed.attributes["error.type"], failed.attributes["http.response.status_code"]) == (
        "RateLimited",
        429,
    )
    assert (invoked.attributes["error.type"], invoked.attributes["holdfast.status"]) == (
        "RateLimited",
        "error",
    )


def test_retries_are_events_of_their_span() -> None:
    spans, tries = SpanLog(), iter(range(9))

    def flaky() -> str:
        """Fails once."""
        if next(tries) == 0:
            raise ConnectionError("once")
        return "well"

    answers = iter([(503, {}, "busy"), text("done")])
    tools = [Tool.from_function(flaky, retry=RetryPolicy(2, "none"))]
    run(agent([("flaky", {})], "done", tools=tools), spans.telemetry())
    called = spans.one("execute_tool")
    assert [(event.name, event.attributes["holdfast.tool.attempt"]) for event in called.events] == [
        ("holdfast.retry", 2)
    ]
    assert "error.type" not in called.attributes

    with ModelServer(lambda request: next(answers)) as server:
        run(Agent(LLM("m", base_url=server.url, max_retries=2)), spans.telemetry())
    model_spans = spans.of("chat m")
    assert len(model_spans) == 1
    assert [event.attributes["error.type"] for event in model_spans[0].events] == ["ServerError"]
    assert model_spans[0].attributes["server.address"] == "127.0.0.1"


def test_decisions_are_told_and_a_run_that_went_on_links_to_the_one_that_waited() -> None:
    spans = SpanLog()
    with Conversation(
        agent(
            [("weather", {"city": "Bern"}), ("weather", {"city": "Uri"})], "done", confirm="always"
        ),
        observer=spans.telemetry(),
    ) as conversation:
        conversation.send_message("go")
        conversation.run()
        first, second = conversation.state.pending_confirmations
        assert spans.open == []
        conversation.approve(first.call.id, by="ann")
        conversation.reject(second.call.id, by="ann")
        conversation.run()
    waiting, continued = spans.of("invoke_agent")
    assert waiting.attributes["holdfast.status"] == "waiting_for_confirmation"
    assert [event.attributes["holdfast.decision"] for event in waiting.events] == ["ask", "ask"]
    assert [link.context.span_id for link in continued.links] == [waiting.context.span_id]
    called = spans.one("execute_tool")
    assert (called.attributes["holdfast.decision"], called.attributes["holdfast.decision.by"]) == (
        "approve",
        "ann",
    )


def test_a_question_of_a_call_is_an_event_of_its_span() -> None:
    spans = SpanLog()

    def asks(context: ToolContext) -> str:
        """Asks."""
        return str(context.ask("Really?"))

    run(
        agent([("asks", {})], "done", tools=[Tool.from_function(asks)]),
        spans.telemetry(),
        on_question=lambda question: True,
    )
    assert [event.name for event in spans.one("execute_tool").events] == [
        "holdfast.question",
        "holdfast.answer",
    ]


def test_a_condensation_is_a_span() -> None:
    spans = SpanLog()
    with Conversation(
        agent(*["word " * 50] * 8, condenser=WindowCondenser(2)), observer=spans.telemetry()
    ) as conversation:
        for number in range(6):
            conversation.send_message(f"go {number}")
            conversation.run()
        conversation.condense()
    assert spans.one("holdfast.condense").attributes["holdfast.condense.hidden"] > 0
    assert spans.open == []


def test_a_condensation_with_a_price_and_no_tokens_costs_a_run() -> None:
    class PerCall:
        at = 10

        def shorten(self, work: Any) -> Condensed:
            return Condensed((work.pieces[0].seq,), "s", cost=0.25, model="per call")

    spans = SpanLog()
    with Conversation(agent("a", "b", condenser=PerCall()), observer=spans.telemetry()) as one:
        for number in range(2):
            one.send_message(f"go {number}")
            one.run()
        assert one.state.cost > 0
    costs = [span.attributes.get("holdfast.cost", 0.0) for span in spans.of("invoke_agent")]
    assert sum(costs) == one.state.cost


def test_a_spawned_conversation_stands_below_the_call_that_spawned_it() -> None:
    spans = SpanLog()
    child = agent([("weather", {"city": "Bern"})], "child done")

    def ask_child(context: ToolContext) -> str:
        """Asks a child."""
        return context.spawn(child, "go").run().answer or ""

    run(
        agent([("ask_child", {})], "done", tools=[Tool.from_function(ask_child)]),
        spans.telemetry(),
        id="root",
    )
    inner, outer = spans.of("invoke_agent")
    assert (
        inner.attributes["gen_ai.conversation.id"],
        outer.attributes["gen_ai.conversation.id"],
    ) == ("root.4.0", "root")
    assert below(inner, spans.one("execute_tool ask_child"))
    assert below(spans.one("execute_tool weather"), inner)
    assert {span.context.trace_id for span in spans.ended} == {outer.context.trace_id}


def test_a_delegate_stands_below_the_call_that_gave_it_work() -> None:
    spans = SpanLog()
    helper = Agent(ScriptedLLM(["found"]))
    run(
        Agent(
            ScriptedLLM([[("delegate", {"agent": "helper", "task": "find it"})], "done"]),
            delegates={"helper": helper},
        ),
        spans.telemetry(),
    )
    assert below(spans.of("invoke_agent")[0], spans.one("execute_tool delegate"))
    assert spans.open == []


def test_twenty_conversations_at_once_have_their_own_parents() -> None:
    spans = SpanLog()
    telemetry = spans.telemetry()
    go = threading.Barrier(20)

    def step(number: int) -> str:
        """One step."""
        with spans.provider.get_tracer("mine").start_as_current_span(f"inner {number}"):
            return str(number)

    def work(number: int) -> None:
        calls = [[("step", {"number": number})] * 3] * 3
        with MemoryStore() as store:
            go.wait(DEADLINE)
            run(
                agent(*calls, "done", tools=[Tool.from_function(step)]),
                telemetry,
                store=store,
                id=f"c{number}",
            )

    threads = [threading.Thread(target=work, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    by_id = {span.context.span_id: span for span in spans.ended}
    assert spans.open == []
    assert len(by_id) == 20 * (1 + 4 + 9 + 9)
    for span in spans.ended:
        above = by_id.get(span.parent.span_id) if span.parent is not None else None
        if span.name == "invoke_agent":
            assert above is None
        elif span.name.startswith("inner"):
            assert above is not None
            assert above.name == "execute_tool step"
            assert above.attributes["gen_ai.conversation.id"] == f"c{span.name.split()[1]}"
        else:
            assert above is not None
            assert (
                above.attributes["gen_ai.conversation.id"]
                == span.attributes["gen_ai.conversation.id"]
            )


# --- how they end ---


def test_what_is_interrupted_ends_with_its_result() -> None:
    spans, began = SpanLog(), threading.Event()

    def waits(context: ToolContext) -> str:
        """Waits."""
        began.set()
        context.cancelled.wait(DEADLINE)
        context.cancelled.raise_if_set()
        return "late"

    with Conversation(
        agent([("waits", {})], "done", tools=[Tool.from_function(waits)]),
        observer=spans.telemetry(),
    ) as conversation:
        conversation.start_thread()
        conversation.send_message("go")
        assert began.wait(DEADLINE)
        assert spans.open == [
            "invoke_agent",
            "execute_tool waits",
        ]  # it began when its start was journaled
        conversation.interrupt()
        conversation.wait(DEADLINE)
        until(lambda: spans.open == [])
    assert spans.one("execute_tool").attributes["error.type"] == "cancelled"
    assert spans.one("invoke_agent").attributes["holdfast.status"] == "paused"


def test_close_leaves_no_span_open_and_says_what_it_cut_off() -> None:
    spans, began, go = SpanLog(), threading.Event(), threading.Event()

    def stubborn() -> str:
        """Ignores its cancellation."""
        began.set()
        go.wait(DEADLINE)
        return "late"

    conversation = Conversation(
        agent([("stubborn", {})], "done", tools=[Tool.from_function(stubborn)]),
        observer=spans.telemetry(),
    )
    conversation.start_thread()
    conversation.send_message("go")
    assert began.wait(DEADLINE)
    conversation.close(0.2)
    assert spans.open == []
    assert spans.one("execute_tool").attributes["holdfast.cut_off"] is True
    assert spans.one("invoke_agent").attributes["holdfast.status"] == "closed"
    go.set()


KILLED = """
import sys, os, threading
from holdfast import Agent, Conversation, ScriptedLLM, SQLiteStore, Tool, ToolAnnotations
def hangs() -> str:
    "Hangs."
    print("in", flush=True)
    threading.Event().wait()
with SQLiteStore(sys.argv[1]) as store:
    tool = Tool.from_function(hangs, annotations=ToolAnnotations(idempotent=True))
    conversation = Conversation(Agent(ScriptedLLM([[("hangs", {})], "done"]), [tool]), store, id="killed")
    conversation.send_message("go")
    conversation.run()
"""


@pytest.mark.slow
def test_a_run_that_a_kill_left_goes_on_in_a_span_that_says_so(tmp_path: Path) -> None:
    with forks.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path / "store.db")],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "in\n"
        process.send_signal(signal.SIGKILL)
    spans = SpanLog()
    from holdfast import ToolAnnotations

    hangs = Tool.from_function(
        lambda: "no more",
        name="hangs",
        description="Hangs.",
        annotations=ToolAnnotations(idempotent=True),
    )
    with (
        SQLiteStore(tmp_path / "store.db") as store,
        Conversation(
            agent("done", tools=[hangs]), store, "killed", observer=spans.telemetry()
        ) as conversation,
    ):
        assert conversation.run().status == "finished"
    invoked, called = spans.one("invoke_agent"), spans.one("execute_tool")
    assert invoked.attributes["holdfast.resumed"] is True
    assert (called.attributes["holdfast.tool.attempt"], called.attributes["gen_ai.tool.name"]) == (
        2,
        "hangs",
    )
    assert below(called, invoked)


def test_what_was_imported_was_not_done_here() -> None:
    state = run(agent([("weather", {"city": "Bern"})], "done"), None).state
    spans = SpanLog()
    with Conversation.from_state(state, agent("again"), observer=spans.telemetry()) as conversation:
        assert spans.started == []
        conversation.send_message("go on")
        conversation.run()
        with conversation.fork(agent=agent("forked")) as forked:
            forked.send_message("go on")
            forked.run()
    assert [span.name for span in spans.ended] == ["chat scripted", "invoke_agent"] * 2


def test_an_observer_that_fails_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(SpanProcessor):
        def on_start(self, span: Any, parent_context: Any = None) -> None:
            raise RuntimeError("broken")

    provider = TracerProvider()
    provider.add_span_processor(Broken())
    with caplog.at_level(logging.ERROR, "holdfast"):
        assert (
            run(agent([("weather", {"city": "Bern"})], "done"), Telemetry(provider)).state.answer
            == "done"
        )
    assert len([record for record in caplog.records if "observer" in record.message]) == 1


def test_an_exporter_may_use_the_conversation() -> None:
    conversations: list[Conversation] = []

    class Uses(SpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            if span.name.startswith("execute_tool"):
                conversations[0].send_message("and one more thing")

    provider = TracerProvider()
    provider.add_span_processor(Uses())
    with Conversation(
        agent([("weather", {"city": "Bern"})], "done", "done"), observer=Telemetry(provider)
    ) as conversation:
        conversations.append(conversation)
        conversation.send_message("go")
        assert [event.text for event in conversation.run().events if event.type == "message"] == [
            "go",
            "and one more thing",
        ]


# --- no cost without an observer ---


def test_nothing_of_opentelemetry_is_imported_where_nobody_asked() -> None:
    program = (
        "import sys; from holdfast import Agent, Conversation, ScriptedLLM; from holdfast.observe"
        " import JsonLog\nwith Conversation(Agent(ScriptedLLM(['a'])),"
        " observer=JsonLog(sys.stderr)) as c: c.send_message('x'); c.run()\nprint([m for m in"
        " sys.modules if m.startswith('opentelemetry')])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )


def test_the_api_alone_does_nothing_and_its_absence_is_said() -> None:
    with Conversation(agent("done"), observer=Telemetry()) as conversation:
        conversation.send_message("go")
        assert conversation.run().answer == "done"
    program = (
        "import sys; sys.modules['opentelemetry'] = None; from holdfast.observe import"
        " Telemetry\ntry: Telemetry()\nexcept ValueError as e: print(e)"
    )
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert "pip install 'holdfast[otel]'" in output


@pytest.mark.parametrize("given", [object(), "log", [object()]])
def test_what_is_no_observer_is_refused(given: Any) -> None:
    with pytest.raises(ConfigurationError, match="observer takes an observer"):
        Conversation(agent("done"), observer=given)
    with pytest.raises(ConfigurationError, match="tracer_provider"):
        Telemetry(given)


# --- metrics ---


def test_metrics_count_tokens_time_and_errors() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])

    def fails() -> str:
        """Fails."""
        raise ValueError

    tools = [weather, Tool.from_function(fails)]
    run(
        agent([("weather", {"city": "Bern"}), ("fails", {})], "done", tools=tools),
        Telemetry(TracerProvider(), provider),
    )
    data = reader.get_metrics_data()
    points = {
        metric.name: metric.data.data_points
        for metric in data.resource_metrics[0].scope_metrics[0].metrics
    }
    counts = {
        (
            point.attributes["gen_ai.operation.name"],
            point.attributes.get("gen_ai.tool.name"),
            point.attributes.get("error.type"),
        ): point.count
        for point in points[names.DURATION]
    }
    assert counts == {
        ("chat", None, None): 2,
        ("execute_tool", "weather", None): 1,
        ("execute_tool", "fails", "internal"): 1,
    }
    assert {point.attributes["gen_ai.token.type"] for point in points[names.TOKEN_USAGE]} == {
        "input",
        "output",
    }
    assert list(points[names.DURATION][0].explicit_bounds)[:2] == [0.01, 0.02]
    assert names.TOKEN_PARTS not in points  # a scripted model has totals alone
    run(agent(DETAILED), Telemetry(TracerProvider(), provider))
    data = reader.get_metrics_data()
    points = {
        metric.name: metric.data.data_points
        for metric in data.resource_metrics[0].scope_metrics[0].metrics
    }
    assert {
        point.attributes["holdfast.token.kind"]: point.value for point in points[names.TOKEN_PARTS]
    } == {
        "cache_read": 10,
        "cache_creation": 20,
        "cache_creation_1h": 5,
        "reasoning": 30,
        "audio_input": 6,
        "audio_output": 7,
        "image_input": 8,
        "image_output": 9,
    }
    assert {
        point.attributes["gen_ai.tool.name"]: point.value for point in points[names.SERVER_CALLS]
    } == {"web_search": 1, "code": 1, "pending": 1}
    assert [point.value for point in points[names.CLIENT_COST]] == [0.25]
    provider.shutdown()


# --- the trace in requests to others ---


def test_an_mcp_server_is_told_the_trace(tmp_path: Path) -> None:
    """Check the trace in the server's requests, which it writes to a file."""
    log = tmp_path / "told.jsonl"
    server = tmp_path / "server.py"
    server.write_text(STDIO)
    spans = SpanLog()
    with MCPClient(
        {"mcpServers": {"told": {"command": sys.executable, "args": [str(server), str(log)]}}}
    ) as client:
        run(Agent(ScriptedLLM([[("told.look", {})], "done"]), client.tools()), spans.telemetry())
    meta = json.loads(log.read_text().splitlines()[-1])["params"]["_meta"]
    called = spans.one("execute_tool").context
    assert meta["traceparent"].startswith(f"00-{called.trace_id:032x}-{called.span_id:016x}-")


STDIO = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    method, id = asked.get("method"), asked.get("id")
    if id is None:
        continue
    if method == "initialize":
        found = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "told", "version": "1"}}
    elif method == "tools/list":
        found = {"tools": [{"name": "look", "description": "Looks.", "inputSchema": {"type": "object", "properties": {}}}]}
    elif method == "tools/call":
        open(sys.argv[1], "a").write(line)
        found = {"content": [{"type": "text", "text": "seen"}]}
    else:
        print(json.dumps({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "no"}}), flush=True)
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": id, "result": found}), flush=True)
"""


class _Tells(http.server.BaseHTTPRequestHandler):
    """An MCP server over HTTP that notes headers."""

    noted: list[tuple[str, str | None]] = []

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        method = request.get("method")
        self.noted.append((method, self.headers.get("traceparent")))
        if "id" not in request:
            self._answer(202, b"")
            return
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": request["id"]}
        if method == "initialize":
            reply["result"] = {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "told", "version": "1"},
            }
        elif method == "tools/list":
            reply["result"] = {
                "tools": [
                    {
                        "name": "look",
                        "description": "Looks.",
                        "inputSchema": {"type": "object", "properties": {}},
                    }
                ]
            }
        elif method == "tools/call":
            reply["result"] = {"content": [{"type": "text", "text": "seen"}]}
        else:
            reply["error"] = {"code": -32601, "message": "no"}
        self._answer(200, json.dumps(reply).encode())

    def do_GET(self) -> None:
        self._answer(405, b"")

    do_DELETE = do_GET  # noqa: N815

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.mark.slow
def test_an_mcp_server_over_http_is_told_the_trace_in_a_header() -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Tells)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    spans = SpanLog()
    try:
        with MCPClient(
            {"mcpServers": {"told": {"url": f"http://127.0.0.1:{server.server_address[1]}/mcp"}}}
        ) as client:
            run(
                Agent(ScriptedLLM([[("told.look", {})], "done"]), client.tools()), spans.telemetry()
            )
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    called = spans.one("execute_tool").context
    assert (dict(_Tells.noted)["tools/call"] or "").startswith(
        f"00-{called.trace_id:032x}-{called.span_id:016x}-"
    )


@pytest.fixture
def model() -> Iterator[ModelServer]:
    with ModelServer(lambda request: text("done")) as server:
        yield server


def test_an_agent_servers_spans_stand_below_the_clients(tmp_path: Path, model: ModelServer) -> None:
    here, there = SpanLog(), SpanLog()
    with (
        LocalServer(tmp_path, observer=there.telemetry()) as server,
        RemoteWorkspace(server.url, server.key, observer=here.telemetry()) as workspace,
        RemoteConversation(
            Agent(LLM("m", base_url=model.url)), workspace=workspace
        ) as conversation,
    ):
        with here.provider.get_tracer("mine").start_as_current_span("request"):
            conversation.send_message("go")
            conversation.run()
        until(lambda: there.of("invoke_agent"))
    request, invoked = here.one("request"), there.one("invoke_agent")
    client_spans = [
        span for span in there.of("POST") if span.context.trace_id == request.context.trace_id
    ]  # others open and close
    assert client_spans
    assert all(
        span.kind is SpanKind.SERVER and span.parent.span_id == request.context.span_id
        for span in client_spans
    )
    above = next(span for span in there.ended if span.context.span_id == invoked.parent.span_id)
    assert (above.kind, above.attributes["http.response.status_code"] // 100) == (
        SpanKind.SERVER,
        2,
    )
    assert "{" in above.attributes["http.route"]
    assert below(there.one("chat m"), invoked)
    assert there.open == []


@pytest.mark.slow
def test_conversations_in_workers_are_told_by_their_events(
    tmp_path: Path, model: ModelServer
) -> None:
    from tests.agent_servers import Serving

    spans = SpanLog()
    with Serving(tmp_path, isolation="process", observer=spans.telemetry()) as server:
        with (
            RemoteWorkspace(server.server.url, server.key) as workspace,
            RemoteConversation(
                Agent(LLM("m", base_url=model.url)), workspace=workspace
            ) as conversation,
        ):
            conversation.send_message("go")
            assert conversation.run().answer == "done"
        until(lambda: spans.of("invoke_agent"))
    invoked, model_span = spans.one("invoke_agent"), spans.one("chat m")
    assert below(model_span, invoked)
    assert model_span.end_time > model_span.start_time
    assert spans.open == []


# --- the log ---


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_log_has_a_line_for_each_event_and_each_span(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with JsonLog(path) as log:
        conversation = run(agent([("weather", {"city": "Bern"})], "Sunny."), log)
    all_lines = lines(path)
    events = [line for line in all_lines if line["kind"] == "event"]
    assert [(line["seq"], line["type"]) for line in events] == [
        (event.seq, event.type) for event in conversation.get_history()
    ]
    span_lines = [line for line in all_lines if line["kind"] == "span"]
    assert [line["name"] for line in span_lines] == [
        "chat scripted",
        "execute_tool weather",
        "chat scripted",
        "invoke_agent",
    ]
    assert {line["parent"] for line in span_lines[:-1]} == {span_lines[-1]["span"]}
    assert all(line["conversation"] == conversation.id for line in all_lines)
    assert os.stat(path).st_mode & 0o777 == 0o600


def test_the_log_blots_secrets_and_cuts_what_is_long(tmp_path: Path) -> None:
    path = tmp_path / "log"

    def shows(password: str, note: str) -> ToolResult:
        """Shows."""
        return ToolResult(f"my-own-secret and ghp_{'a' * 36} and {'x' * 100_000}")

    arguments = {"password": "hunter22", "note": "Authorization: Bearer abcdefghijklmnop1234"}
    with JsonLog(path, secrets=["my-own-secret"], longest=200) as log:
        run(
            agent([("shows", arguments)], "done", tools=[Tool.from_function(shows)]),
            log,
            f"my-own-secret sk-{'b' * 30}",
        )
    content = path.read_text()
    for secret in ("my-own-secret", "hunter22", "ghp_", "abcdefghijklmnop1234", "sk-bbb"):
        assert secret not in content, secret
    assert "***" in content
    assert " characters)" in content
    assert max(len(line) for line in content.splitlines()) < 4000


def test_a_log_without_content_says_nothing_that_was_said(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with JsonLog(path, content=False) as log:
        run(agent([("weather", {"city": "Geheimnis"})], "Geheimnis"), log, "Geheimnis")
    assert "Geheimnis" not in path.read_text()
    assert "weather" in path.read_text()


def test_a_log_that_was_moved_is_made_anew_and_a_stream_is_left_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.observe.log._CHECK_SECONDS", 0.0)
    path, stream = tmp_path / "log", io.StringIO()
    with JsonLog(path) as log, JsonLog(stream) as other:
        run(agent("one"), [log, other])
        path.rename(tmp_path / "log.1")
        run(agent("two"), [log, other])
    assert lines(tmp_path / "log.1")[0]["content"] == lines(path)[0]["content"]
    assert len(stream.getvalue().splitlines()) == len(lines(path)) + len(lines(tmp_path / "log.1"))


def test_a_log_that_cannot_be_written_costs_lines_and_not_the_conversation(
    caplog: pytest.LogCaptureFixture,
) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    with caplog.at_level(logging.ERROR, "holdfast"), JsonLog("/dev/full") as log:
        assert run(agent([("weather", {"city": "Bern"})], "done"), log).state.answer == "done"
    assert (
        len([record for record in caplog.records if "JsonLog cannot write" in record.message]) == 1
    )


@pytest.mark.slow
def test_nothing_is_left_of_what_observed(tmp_path: Path) -> None:
    before = Owned()
    with JsonLog(tmp_path / "log") as log:
        run(agent("done"), [log, SpanLog().telemetry()])
    before.wait_until_released()
