"""Memory per open conversation of 10 events, at rest: growth of the process over 2,000 of them that
share one agent.

Each was run once against a mock model: a message, an answer with two tool calls, their results, a
last answer. RSS is what the system gave the process; "objects" is what Python allocated
(`tracemalloc`, in a process of its own, since it takes memory too). The floor is the length of the
ten events as JSON.
"""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import harness
from bench_step import look_up
from harness import Goal, Row, in_child, in_turns

WARM = 50  # conversations before the first reading, so that pools and caches are not counted


def grow(port: int, count: int, kind: str, traced: bool) -> tuple[float, float]:
    """Return the kilobytes per conversation: the growth of the process, and the events as JSON."""
    from holdfast import LLM, Agent, Conversation, MemoryStore

    agent = Agent(LLM("mock", base_url=f"http://127.0.0.1:{port}/2/2/0"), [look_up])
    shared = MemoryStore() if kind == "shared" else None
    conversations: list[Any] = []

    def one(number: int) -> None:
        conversation = Conversation(agent, shared)
        if kind == "threads":
            conversation.start_thread()
        conversation.send_message(f"What is known of item {number}, and what of the one behind it?")
        if kind == "threads":
            conversation.wait(30)
        else:
            conversation.run()
        assert len(conversation.get_history()) == 10
        conversations.append(conversation)

    if traced:
        tracemalloc.start()
    for number in range(WARM):
        one(number)
    gc.collect()
    before = tracemalloc.get_traced_memory()[0] if traced else harness.rss()
    for number in range(count):
        one(WARM + number)
    gc.collect()
    after = tracemalloc.get_traced_memory()[0] if traced else harness.rss()
    json_bytes = sum(len(event.to_json()) for event in conversations[-1].get_history())
    for conversation in conversations:
        conversation.close()
    return (after - before) / count / 1000, json_bytes / 1000


def rows(quick: bool) -> list[Row]:
    count, threads, repeats = (200, 50, 1) if quick else (2000, 300, 3)
    with harness.mock_model() as port:
        pairs = in_turns(
            repeats,
            {
                "own": lambda: in_child(grow, port, count, "own", False),
                "shared": lambda: in_child(grow, port, count, "shared", False),
                "threads": lambda: in_child(grow, port, threads, "threads", False),
            },
        )
        # An allocator's count does not depend on the machine's load: one repeat is enough.
        objects = {
            kind: [in_child(grow, port, min(count, 500), kind, True)] for kind in ("own", "shared")
        }
    grown = {
        kind: [one[0] for one in repeats]
        for kind, repeats in (pairs | {f"{k} objects": v for k, v in objects.items()}).items()
    }
    floor = [one[1] for one in pairs["own"]]
    return [
        Row("a MemoryStore each, RSS", "KB", grown["own"], floor, Goal(10)),
        Row("a MemoryStore each, objects", "KB", grown["own objects"], floor),
        Row("one shared MemoryStore, RSS", "KB", grown["shared"], floor, Goal(10)),
        Row("one shared MemoryStore, objects", "KB", grown["shared objects"], floor),
        Row("with a started thread each, RSS", "KB", grown["threads"], floor),
    ]
