"""CPU of opening a journal of 1,000 or 10,000 events from SQLite and building the next model
request, of the whole journal or of the rest that a condensation left.

The time runs from `Conversation(agent, store, id)` through `send_message` and `run` until the
scripted model receives the bytes of the request. The floor reads the same rows with sqlite3 and
decodes each as JSON of no particular shape. A run consists of answers, starts and results in turn.
The outputs are of 0.3 KB, or of 9.5 KB, the average of real runs. The condensation leaves the last
30 events to the model.
"""

from __future__ import annotations

import sqlite3
import time
from datetime import UTC, datetime
from typing import Any

import harness
from bench_step import NOTE, look_up
from harness import Goal, Row, in_child, in_turns

REAL = 9500  # characters of a tool output in recorded runs, on average


def write(path: str, length: int, output: int, condensed: bool) -> None:
    """Write a store in which the conversation "c" is a run of about `length` events, with outputs
    of `output` characters."""
    from holdfast import SQLiteStore, TextContent, ToolCall, ToolResult
    from holdfast import events as ev
    from holdfast.content import Usage
    from holdfast.store import Batch, Summary

    events: list[Any] = []

    def add(kind: Any, **fields: Any) -> None:
        seq = len(events) + 1
        events.append(kind(seq=seq, id=f"{seq:032x}", timestamp=datetime.now(UTC), **fields))

    add(ev.MessageAdded, content=(TextContent("What is known of these items?"),))
    add(ev.StatusChanged, status="running")
    add(ev.AgentConfigured, system_prompt="You look things up.", model="scripted")
    while len(events) < length - 3:
        seq = len(events) + 1
        call = ToolCall(f"{seq}.0", "look_up", {"key": f"item-{seq}", "limit": 3}, f"call_{seq}")
        add(
            ev.AssistantReplied,
            calls=(call,),
            usage=Usage(1200, 24),
            based_on=seq - 1,
            stop_reason="tool_calls",
            model="mock",
            wire="openai_chat",
        )
        add(ev.ToolCallStarted, call_id=call.id, idempotency_key=f"c:{call.id}")
        text = f"item-{seq}: {NOTE * (output // len(NOTE))}"
        add(
            ev.ToolCallFinished,
            call_id=call.id,
            result=ToolResult((TextContent(text),)),
            duration=0.001,
        )
    add(
        ev.AssistantReplied,
        text="That is all.",
        usage=Usage(1200, 24),
        based_on=len(events),
        stop_reason="stop",
        wire="openai_chat",
    )
    add(ev.StatusChanged, status="finished")
    with SQLiteStore(path) as store:
        lease = store.acquire("c")
        store.append(lease, Batch(events, Summary("c", "finished", last_seq=len(events))))
        store.release(lease)
        if condensed:
            from holdfast import Agent, Conversation, ScriptedLLM

            with Conversation(Agent(ScriptedLLM([])), store, "c") as conversation:
                hidden = [
                    event.seq
                    for event in events
                    if event.type in ("message", "assistant") and event.seq < length - 30
                ]
                with conversation.hosting.journal as journal:
                    journal.condense(hidden, "What was found so far. " * 50)


def reopen(path: str, length: int, condensed: bool) -> tuple[float, float, float]:
    """Return the milliseconds of CPU to the open conversation and to the request, and of wall time
    to the request."""
    from holdfast import Agent, Conversation, ScriptedLLM, SQLiteStore

    requests: list[tuple[float, float, int]] = []

    def answer(request: Any) -> str:
        requests.append((time.process_time(), time.perf_counter(), len(request.body)))
        return "Nothing new."

    agent = Agent(ScriptedLLM(answer), [look_up])
    with Conversation(agent) as warm:  # imports, and the tool's schema
        warm.send_message("hello")
        warm.run()
    with SQLiteStore(path) as store:
        cpu, wall = time.process_time(), time.perf_counter()
        conversation = Conversation(agent, store, "c")
        opened = time.process_time()
        conversation.send_message("And now?")
        conversation.run()
        conversation.close()
        assert len(conversation.get_history()) > length
        if condensed:
            assert requests[-1][2] < 200_000, "the request holds what was condensed"
        else:
            assert requests[-1][2] > length * 50, "the request does not hold the whole view"
    return (opened - cpu) * 1000, (requests[-1][0] - cpu) * 1000, (requests[-1][1] - wall) * 1000


def bare(path: str) -> float:
    """Return the milliseconds of CPU of the floor."""
    import msgspec

    decode = msgspec.json.Decoder().decode
    db = sqlite3.connect(path)
    began = time.process_time()
    events = [decode(data) for (data,) in db.execute("SELECT data FROM events ORDER BY key")]
    seconds = time.process_time() - began
    db.close()
    assert events
    return seconds * 1000


def rows(quick: bool) -> list[Row]:
    table: list[Row] = []
    with harness.scratch() as folder:
        for condensed, limits in ((False, (15, 130)), (True, (5, 10))):
            for output in (len(NOTE), REAL):
                for length, limit in zip((1000, 10000), limits, strict=True):
                    path = f"{folder}/{length}-{output}-{condensed}.db"
                    in_child(write, path, length, output, condensed)
                    ways = {
                        "bare": lambda p=path: in_child(bare, p),
                        "ours": lambda p=path, n=length, c=condensed: in_child(reopen, p, n, c),
                    }
                    measured = in_turns(2 if quick else 7, ways)
                    opened, to_request, wall = (
                        [one[which] for one in measured["ours"]] for which in range(3)
                    )
                    what = (
                        f"{length:,} events, outputs of {output / 1000:.1f}"
                        f" KB{', condensed' if condensed else ''}"
                    )
                    table.append(
                        Row(
                            f"{what}: opened and asked, CPU",
                            "ms",
                            to_request,
                            measured["bare"],
                            Goal(limit),
                        )
                    )
                    table.append(Row("  of this, opened", "ms", opened, measured["bare"]))
                    table.append(Row("  wall to the request", "ms", wall))
    return table
