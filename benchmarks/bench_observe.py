"""Cost of observing: a tool call's span with OpenTelemetry's SDK, with its API alone, and without
an observer; a line of the log; `stats` of a store.

CPU microseconds per span, from the events that begin and end it to the exporter, which drops it.
The span is current while the call runs. Each figure is the least of several rounds in a fresh
process. The floor is the same span made by hand: seven attributes, attach, detach, end. Without an
observer the figure is the cost of the checks for one. The line of the log is that of a tool's
result of 300 characters. `stats` is seconds for a journal of 100,000 events.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import harness
from harness import Goal, Row, in_child, in_turns

ROUNDS = 5
NOTE = (
    "A line of what was found, as long as a short answer of a tool is: a path, a number, some"
    " words. " * 3
)


def _events() -> tuple[list[Any], list[Any]]:
    from holdfast import ToolResult
    from holdfast import events as ev

    head: dict[str, Any] = {
        "id": "0123456789abcdef0123456789abcdef",
        "timestamp": datetime.now(UTC),
    }
    return [ev.ToolCallStarted(seq=5, call_id="4.0", **head)], [
        ev.ToolCallFinished(seq=6, call_id="4.0", result=ToolResult(NOTE), **head)
    ]


def _spans(observer: Any, count: int) -> float:
    """Return the microseconds of CPU per span."""
    from holdfast import ToolCall
    from holdfast import events as ev
    from holdfast.conversation.observer import Observed
    from holdfast.conversation.state import Fold, OpenCall

    before, after = _events()
    state = Fold()
    state.open["4.0"] = OpenCall(ToolCall("4.0", "look_up", {"key": "a"}))
    observed = Observed.of([observer], "0123456789abcdef", lambda: state)
    assert observed is not None
    observed.add([ev.StatusChanged(seq=2, id="a", timestamp=datetime.now(UTC), status="running")])
    observed.tell()
    least = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(count):
            observed.add(before)
            observed.run_call("4.0", _nothing)
            observed.add(after)
            observed.tell()
        least = min(least, (time.process_time() - began) / count * 1e6)
    observed.close()
    return least


def _nothing() -> None:
    pass


def _dropping() -> Any:
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    class Dropping(SpanExporter):
        def export(self, spans: Any) -> Any:
            return SpanExportResult.SUCCESS

    return Dropping()


def with_sdk(count: int) -> float:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    from holdfast.observe import Telemetry

    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(_dropping()))
    return _spans(Telemetry(provider), count)


def sdk_by_hand(count: int) -> float:
    from opentelemetry import context, trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(_dropping()))
    return _by_hand(provider.get_tracer("bench"), trace, context, count)


def with_api(count: int) -> float:
    from holdfast.observe import Telemetry

    return _spans(Telemetry(), count)


def api_by_hand(count: int) -> float:
    from opentelemetry import context, trace

    return _by_hand(trace.get_tracer("bench"), trace, context, count)


def _by_hand(tracer: Any, trace: Any, context: Any, count: int) -> float:
    above = trace.set_span_in_context(tracer.start_span("invoke_agent"))
    attributes = {f"gen_ai.attribute.{number}": "a value" for number in range(7)}
    least = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(count):
            span = tracer.start_span("execute_tool look_up", above, attributes=dict(attributes))
            token = context.attach(trace.set_span_in_context(span))
            context.detach(token)
            span.end()
        least = min(least, (time.process_time() - began) / count * 1e6)
    return least


def without(count: int) -> float:
    """Measure the checks that a call passes: at its start, its run and its result."""
    from holdfast import Agent, Conversation, ScriptedLLM

    journal: Any = Conversation(Agent(ScriptedLLM(["done"]))).hosting.journal  # pyright: ignore
    least = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(count):
            pass
        empty = time.process_time() - began
        began = time.process_time()
        for _ in range(count):
            if journal.observed is not None:
                raise AssertionError
            if journal.observed is not None:
                raise AssertionError
            observed = journal.observed
            if observed is not None:
                raise AssertionError
            if journal.observed is not None:
                raise AssertionError
            if journal.observed is not None:
                raise AssertionError
        least = min(least, (time.process_time() - began - empty) / count * 1e6)
    return least


def line(count: int, path: str) -> float:
    """Return the microseconds of CPU for one line."""
    from holdfast.observe import JsonLog

    (event,) = _events()[1]
    least = float("inf")
    with JsonLog(path) as log:
        for _ in range(ROUNDS):
            began = time.process_time()
            for _ in range(count):
                log.event("0123456789abcdef", event)
            least = min(least, (time.process_time() - began) / count * 1e6)
    return least


def statistics(count: int, path: str) -> list[float]:
    """Return the seconds for a journal of `count` events, and the most MB of memory in use."""
    import tracemalloc

    from holdfast import SQLiteStore, ToolCall, ToolResult
    from holdfast import events as ev
    from holdfast.content import Usage
    from holdfast.observe.stats import stats, tree
    from holdfast.store import Batch, Summary

    now = datetime.now(UTC)
    with SQLiteStore(path, "process") as store:
        lease = store.acquire("long")
        for begin in range(1, count + 1, 3000):
            events: list[Any] = []
            for seq in range(begin, min(begin + 3000, count + 1), 3):
                head: dict[str, Any] = {"id": f"{seq:032x}", "timestamp": now}
                call = ToolCall(f"{seq}.0", "look_up", {"key": "a"})
                events.append(
                    ev.AssistantReplied(
                        seq=seq,
                        calls=(call,),
                        model="m",
                        usage=Usage(1000, 50, 800),
                        duration=1.0,
                        cost=0.01,
                        **head,
                    )
                )
                events.append(ev.ToolCallStarted(seq=seq + 1, call_id=call.id, **head))
                events.append(
                    ev.ToolCallFinished(
                        seq=seq + 2, call_id=call.id, result=ToolResult(NOTE), duration=0.1, **head
                    )
                )
            store.append(
                lease,
                Batch(events, Summary("long", last_seq=events[-1].seq, created=now, updated=now)),
            )
        store.release(lease)
        began = time.perf_counter()
        (summary,) = tree(store, "long")
        summary_stats = stats(store, summary)
        seconds = time.perf_counter() - began
        assert summary_stats.steps == len(range(1, count + 1, 3)), summary_stats
        tracemalloc.start()
        stats(store, summary)
        return [seconds, tracemalloc.get_traced_memory()[1] / 1e6]


def rows(quick: bool) -> list[Row]:
    count, repeats = (500, 1) if quick else (4000, 5)
    figures = {
        function.__name__: lambda function=function: in_child(
            function, count * (10 if function is without else 1)
        )
        for function in (with_sdk, sdk_by_hand, with_api, api_by_hand, without)
    }
    times = in_turns(repeats, figures)
    with harness.scratch() as folder:
        lines = [in_child(line, count, f"{folder}/log") for _ in range(repeats)]
        long = [
            in_child(statistics, 9_000 if quick else 99_999, f"{folder}/{number}.db")
            for number in range(1 if quick else 3)
        ]
    return [
        Row("a span, with the SDK", "us", times["with_sdk"], times["sdk_by_hand"], Goal(30)),
        Row("a span, with the API alone", "us", times["with_api"], times["api_by_hand"], Goal(8)),
        Row("a span, with no observer", "us", times["without"], goal=Goal(0.5)),
        Row("a line of the log", "us", lines),
        Row("stats of 100,000 events", "s", [seconds for seconds, _ in long]),
        Row("stats of 100,000 events, memory", "MB", [memory for _, memory in long]),
    ]
