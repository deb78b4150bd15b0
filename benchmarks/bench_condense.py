"""Condensation: its CPU, its cost per step, and the share of a 500-step run's input that a provider
can read from its cache.

The CPU is that of shortening a view of 1,000 messages, from the decision to the appended event,
without the time of a model that writes a summary. The cost per step is measured with a condenser
that only watches the size, and with one that condenses. The cached share is the share of all sent
bytes that repeat the beginning of the request before. The floor is the same run in an endless
window.
"""

from __future__ import annotations

import time
from typing import Any

from bench_step import holdfast as plain
from bench_step import look_up
from harness import Goal, Row, in_child, in_turns, mock_model, scratch

NEVER = 10**9
SLIDING = "a window of 40 that slides"
# 4 KB
OUTPUT = "A line of what was found: a path, a number, some words, and how they hang together. " * 48


def condensers(at: int) -> dict[str, Any]:
    """Return the shipped condensers, set to begin at `at` tokens. The model's summary takes no
    time."""
    from holdfast import ScriptedLLM
    from holdfast.agent.condensers import (
        LLMCondenser,
        Pipeline,
        ToolOutputCondenser,
        WindowCondenser,
    )

    notes = ScriptedLLM(lambda request: "## Goal\nFind it.\n" + "- a fact that was found\n" * 100)
    return {
        "window": WindowCondenser(at=at),
        "outputs": ToolOutputCondenser(at=at),
        "summary": LLMCondenser(notes, at=at),
        "outputs, summary": Pipeline([ToolOutputCondenser(), LLMCondenser(notes)], at=at),
        SLIDING: Sliding(),
    }


class Sliding:
    """A bad example: a window over the last 40 messages and answers that moves at every step."""

    at = 2

    def shorten(self, work: Any) -> Any:
        from holdfast.agent.condensers import WindowCondenser

        work.target = NEVER
        return WindowCondenser(40).shorten(work)


def shorten(kind: str) -> float:
    """Return the milliseconds of CPU of one condensation of 1,000 messages: 500 answers with a
    result each."""
    from holdfast import Agent, Conversation, Limits, ScriptedLLM, Tool

    def answer(request: Any) -> Any:
        if request.number < 500:
            return ("look_up", {"key": f"item-{request.number}"})
        return "Done."

    schema = {"type": "object", "properties": {"key": {"type": "string"}}}
    tool = Tool("look_up", "Looks up.", lambda key: OUTPUT[:1600], schema)
    agent = Agent(
        ScriptedLLM(answer), [tool], condenser=condensers(NEVER)[kind], limits=Limits(steps=None)
    )
    with Conversation(agent) as conversation:
        conversation.send_message("What is known of these items?")
        conversation.run()
        began = time.process_time()
        conversation.condense()
        seconds = time.process_time() - began
        event = conversation.get_history()[-1]
        assert event.type == "condensation", event
        assert not event.failed, event  # pyright: ignore
    return seconds * 1000


def watched(port: int, steps: int, at: int) -> float:
    """Return the milliseconds of CPU per step, measured like `bench_step`, of an agent with a
    condenser."""
    from holdfast import LLM, Agent, Conversation, Limits, Tool
    from holdfast.agent.condensers import Pipeline, ToolOutputCondenser, WindowCondenser

    tool = Tool.from_function(look_up, name="look_up")
    seconds = 0.0
    for calls in (20, steps):
        llm = LLM("mock", base_url=f"http://127.0.0.1:{port}/{calls}/1/0")
        condenser = Pipeline([ToolOutputCondenser(), WindowCondenser()], at=at)
        with Conversation(
            Agent(llm, [tool], condenser=condenser, limits=Limits(steps=None))
        ) as conversation:
            conversation.send_message("What is known of these items?")
            began = time.process_time()
            state = conversation.run()
            seconds = time.process_time() - began
        assert state.status == "finished", (state, state.error)
    return seconds / steps * 1000


def cached(kind: str, steps: int, at: int) -> list[float]:
    """Return, for one run, the percentage of bytes that repeat the beginning of the request before,
    the number of condensations, and the size of the largest request."""
    from holdfast import Agent, Conversation, Limits, ScriptedLLM, Tool

    before = b""
    total = same = largest = 0

    def answer(request: Any) -> Any:
        nonlocal before, total, same, largest
        body: bytes = request.body
        low, high = 0, min(len(before), len(body))
        while low < high:  # length of the common beginning
            middle = (low + high + 1) // 2
            low, high = (middle, high) if before[:middle] == body[:middle] else (low, middle - 1)
        total, same, largest, before = (
            total + len(body),
            same + low,
            max(largest, len(body) // 4),
            body,
        )
        request_number[0] += 1
        return (
            ("look_up", {"key": f"item-{request_number[0]}"})
            if request_number[0] <= steps
            else "Done."
        )

    request_number = [0]
    schema = {"type": "object", "properties": {"key": {"type": "string"}}}
    tool = Tool("look_up", "Looks up.", lambda key: f"{key}: {OUTPUT}", schema)
    llm = ScriptedLLM(answer)
    agent = Agent(
        llm, [tool], condenser=condensers(at)[kind] if kind else None, limits=Limits(steps=None)
    )
    with Conversation(agent) as conversation:
        conversation.send_message("What is known of these items?")
        assert conversation.run().status == "finished"
        count = sum(event.type == "condensation" for event in conversation.get_history())
    return [100 * same / total, count, largest]


def rows(quick: bool) -> list[Row]:
    table: list[Row] = []
    repeats = 2 if quick else 5
    kinds = ("window", "outputs", "summary", "outputs, summary")
    measured = in_turns(repeats, {kind: lambda k=kind: in_child(shorten, k) for kind in kinds})
    table += [
        Row(f"1,000 messages condensed: {kind}", "ms", measured[kind], goal=Goal(10))
        for kind in kinds
    ]
    with mock_model() as port, scratch() as folder:
        for steps in (200,) if quick else (200, 1000):
            at = 20_000 if steps > 200 else 8_000
            costs = in_turns(
                repeats,
                {
                    "without": lambda n=steps: in_child(plain, port, n, "memory", False, folder),
                    "watching": lambda n=steps: in_child(watched, port, n, NEVER),
                    "at work": lambda n=steps, a=at: in_child(watched, port, n, a),
                },
            )
            for kind in ("watching", "at work"):
                added = [
                    one - other for one, other in zip(costs[kind], costs["without"], strict=True)
                ]
                table.append(
                    Row(
                        f"{steps} steps, what a condenser {kind} adds to each",
                        "ms",
                        added,
                        costs["without"],
                        Goal(0.15),
                    )
                )
    steps = 100 if quick else 500
    endless = in_child(cached, "", steps, NEVER)
    for kind in (*kinds, SLIDING):
        share, count, largest = in_child(cached, kind, steps, 80_000)
        table.append(Row(f"{steps} steps, cached share: {kind}", "%", [share], [endless[0]]))
        table.append(Row("  of this run, condensations", "", [count]))
        table.append(Row("  of this run, the largest request, tokens", "", [largest], [endless[2]]))
    return table
