"""Client CPU per step: one model call over loopback HTTP and one validated tool call, for journals
in memory and in SQLite.

The figure is the CPU time (all threads, user and system) of a run of N steps after a warm-up,
divided by N, in a fresh process for each figure. The floor is a loop over `http.client` that
appends bytes to the history and sends it to the same server; it parses nothing and runs no tool.
The cost of a journal is the difference to the run in memory of the same turn; its floor is two bare
sqlite3 inserts per step.
"""

from __future__ import annotations

import http.client
import sqlite3
import time
from typing import Any

import harness
from harness import Goal, Row, in_child, in_turns
from mock_model import call

NOTE = (
    "A line of what was found, as long as a short answer of a tool is: a path, a number, some"
    " words. " * 3
)  # 288 characters
MUCH = 33  # 33 times this is 9.5 KB, the mean tool output of recorded runs


def look_up(key: str, limit: int = 10) -> str:
    """Look up what is known of an item.

    Args:
        key: the item
        limit: how many lines at most
    """
    return f"{key}: {NOTE}"


def look_up_much(key: str, limit: int = 10) -> str:
    """Look up what is known of an item.

    Args:
        key: the item
        limit: how many lines at most
    """
    return f"{key}: {NOTE * MUCH}"


def holdfast(
    port: int, steps: int, store: str, stream: bool, folder: str, much: bool = False
) -> float:
    """Return the milliseconds of CPU per step."""
    from holdfast import LLM, Agent, Conversation, Limits, SQLiteStore, Tool

    tool = Tool.from_function(look_up_much if much else look_up, name="look_up")

    def agent(calls: int) -> Any:
        llm = LLM("mock", base_url=f"http://127.0.0.1:{port}/{calls}/1/0", stream=stream)
        return Agent(llm, [tool], limits=Limits(steps=None))

    where = (
        None
        if store == "memory"
        else SQLiteStore(f"{folder}/{steps}-{time.monotonic_ns()}.db", durability=store)
    )  # pyright: ignore
    for measured, calls in ((False, 20), (True, steps)):
        with Conversation(agent(calls), where) as conversation:
            conversation.send_message("What is known of these items?")
            began = time.process_time()
            state = conversation.run()
            seconds = time.process_time() - began
        assert (state.status, state.steps) == ("finished", calls + 1), (state, state.error)
        if measured and where is not None:
            where.close()
    return seconds / steps * 1000


def bare(port: int, steps: int, stream: bool, much: bool = False) -> float:
    """Return the milliseconds of CPU per step of the floor."""
    end = b'],"stream":true}' if stream else b"]}"
    headers = {"Content-Type": "application/json", "Authorization": "Bearer none"}
    for calls in (20, steps):
        history = bytearray(
            b'{"model":"mock","messages":[{"role":"user","content":"What is known of these items?"}'
        )
        connection = http.client.HTTPConnection("127.0.0.1", port)
        began = time.process_time()
        for number in range(calls + 1):
            history += end  # cork and uncork: only the kernel copies
            connection.request("POST", f"/{calls}/1/0/chat/completions", history, headers)
            connection.getresponse().read()
            del history[-len(end) :]
            history += b',{"role":"assistant","content":null,"tool_calls":[%s]}' % call(number)
            note = (NOTE * (MUCH if much else 1)).encode()
            history += b',{"role":"tool","tool_call_id":"call_%d","content":"item-%d: %s"}' % (
                number,
                number,
                note,
            )
        seconds = time.process_time() - began
        connection.close()
    return seconds / steps * 1000


def bare_journal(steps: int, durability: str, folder: str, much: bool = False) -> float:
    """Return the milliseconds of CPU per step of recording a step in two transactions, as Holdfast
    does: an answer, then a result."""
    db = sqlite3.connect(f"{folder}/bare-{time.monotonic_ns()}.db", isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute(f"PRAGMA synchronous = {'FULL' if durability == 'durable' else 'NORMAL'}")
    db.execute("CREATE TABLE events (seq INTEGER PRIMARY KEY, data BLOB NOT NULL)")
    seq = 0
    for count in (20, steps):
        began = time.process_time()
        for number in range(count):
            for data in (call(number), (NOTE * (MUCH if much else 1)).encode()):
                seq += 1
                db.execute("INSERT INTO events VALUES (?, ?)", (seq, data))
        seconds = time.process_time() - began
    db.close()
    return seconds / steps * 1000


def rows(quick: bool) -> list[Row]:
    table: list[Row] = []
    with harness.mock_model() as port, harness.scratch() as folder:
        for steps, limit, much in (
            (50, 0.5, False),
            (200, 0.5, False),
            (200, None, True),
            (1000, 0.8, False),
        ):
            if quick and steps > 200:
                continue
            measured = in_turns(
                2 if quick else 3 if steps > 200 else 5,
                {
                    "floor": lambda n=steps, m=much: in_child(bare, port, n, False, m),
                    "memory": lambda n=steps, m=much: in_child(
                        holdfast, port, n, "memory", False, folder, m
                    ),
                    "process": lambda n=steps, m=much: in_child(
                        holdfast, port, n, "process", False, folder, m
                    ),
                    "durable": lambda n=steps, m=much: in_child(
                        holdfast, port, n, "durable", False, folder, m
                    ),
                    "process floor": lambda n=steps, m=much: in_child(
                        bare_journal, n, "process", folder, m
                    ),
                    "durable floor": lambda n=steps, m=much: in_child(
                        bare_journal, n, "durable", folder, m
                    ),
                },
            )
            memory = measured["memory"]
            what = f"{steps} steps{', outputs of 9.5 KB' if much else ''}"
            table.append(
                Row(
                    f"{what}, memory",
                    "ms",
                    memory,
                    measured["floor"],
                    None if limit is None else Goal(limit),
                )
            )
            for kind, more in (("process", 0.2), ("durable", 0.4)):
                table.append(
                    Row(f"{what}, SQLite, {kind}", "ms", measured[kind], measured["floor"])
                )
                added = [one - other for one, other in zip(measured[kind], memory, strict=True)]
                table.append(
                    Row(
                        "  of this, the journal", "ms", added, measured[f"{kind} floor"], Goal(more)
                    )
                )
        streamed = in_turns(
            2 if quick else 5,
            {
                "floor": lambda: in_child(bare, port, 200, True),
                "memory": lambda: in_child(holdfast, port, 200, "memory", True, folder),
            },
        )
        table.append(
            Row("200 steps, memory, streamed", "ms", streamed["memory"], streamed["floor"])
        )
    return table
