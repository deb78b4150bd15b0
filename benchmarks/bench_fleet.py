"""Seconds for 100 conversations of 20 tool calls each against a model that takes 50 ms, beside bare
threads doing the same requests.

Each conversation runs on its own thread (`start_thread`) and all are waited for; making them is
part of the time, closing them is not. 21 answers of 50 ms make 1.05 s, which nothing can beat. The
floor is 100 threads with an `http.client` connection each.
"""

from __future__ import annotations

import http.client
import threading
import time
from typing import Any

import harness
from bench_step import NOTE, look_up
from harness import Goal, Row, in_child, in_turns
from mock_model import call

CALLS = 20
END = b"]}"
DELAY = 50  # milliseconds per answer of the model


def holdfast(
    port: int, conversations: int, store: str, folder: str, calls: int = CALLS
) -> tuple[float, float]:
    """Return the seconds of wall time and of CPU."""
    from holdfast import LLM, Agent, Conversation, SQLiteStore

    where = (
        None
        if store == "memory"
        else SQLiteStore(f"{folder}/{time.monotonic_ns()}.db", durability=store)
    )  # pyright: ignore
    with Conversation(
        Agent(LLM("mock", base_url=f"http://127.0.0.1:{port}/1/1/0"), [look_up]), where
    ) as warm:
        warm.send_message("hello")
        warm.run()
    agent = Agent(LLM("mock", base_url=f"http://127.0.0.1:{port}/{calls}/1/{DELAY}"), [look_up])
    began, cpu = time.perf_counter(), time.process_time()
    fleet: list[Any] = []
    for _ in range(conversations):
        conversation = Conversation(agent, where)
        conversation.start_thread()
        conversation.send_message("What is known of these items?")
        fleet.append(conversation)
    statuses = [conversation.wait(60) for conversation in fleet]
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu
    assert set(statuses) == {"finished"}, statuses
    assert all(conversation.state.steps == calls + 1 for conversation in fleet)
    for conversation in fleet:
        conversation.close()
    if where is not None:
        where.close()
    return seconds, cpu_seconds


def bare(port: int, conversations: int, calls: int = CALLS) -> tuple[float, float]:
    """Return the seconds of wall time and of CPU of the floor."""
    headers = {"Content-Type": "application/json", "Authorization": "Bearer none"}

    def work() -> None:
        history = bytearray(
            b'{"model":"mock","messages":[{"role":"user","content":"What is known of these items?"}'
        )
        connection = http.client.HTTPConnection("127.0.0.1", port)
        for number in range(calls + 1):
            history += END  # cork and uncork: only the kernel copies
            connection.request("POST", f"/{calls}/1/{DELAY}/chat/completions", history, headers)
            connection.getresponse().read()
            del history[-len(END) :]
            history += b',{"role":"assistant","content":null,"tool_calls":[%s]}' % call(number)
            history += b',{"role":"tool","tool_call_id":"call_%d","content":"item-%d: %s"}' % (
                number,
                number,
                NOTE.encode(),
            )
        connection.close()

    began, cpu = time.perf_counter(), time.process_time()
    threads = [threading.Thread(target=work) for _ in range(conversations)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began, time.process_time() - cpu


def rows(quick: bool) -> list[Row]:
    size = 30 if quick else 100
    with harness.mock_model() as port, harness.scratch() as folder:
        pairs = in_turns(
            2 if quick else 5,
            {
                "bare": lambda: in_child(bare, port, size),
                "memory": lambda: in_child(holdfast, port, size, "memory", folder),
                "durable": lambda: in_child(holdfast, port, size, "durable", folder),
            },
        )
    wall = {name: [one[0] for one in repeats] for name, repeats in pairs.items()}
    cpu = {name: [one[1] for one in repeats] for name, repeats in pairs.items()}
    return [
        Row(
            f"{size} conversations in memory",
            "s",
            wall["memory"],
            wall["bare"],
            Goal(1.25, "ratio"),
        ),
        Row("  CPU of this", "s", cpu["memory"], cpu["bare"]),
        Row(
            f"{size} conversations in one SQLite file, durable", "s", wall["durable"], wall["bare"]
        ),
        Row("  CPU of this", "s", cpu["durable"], cpu["bare"]),
    ]
