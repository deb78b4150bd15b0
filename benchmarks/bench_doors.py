"""Wall time of a turn of one answer through a protocol door over HTTP, with a scripted model.

The floor is the same turn of a `Conversation` in this process, in SQLite. For A2A, whose tasks are
conversations, it is a turn of a new one. The goal is at most 5 ms more. Client and server share the
process. Clients of chats and of AG-UI send the whole thread, as real ones do.
"""

from __future__ import annotations

import http.client
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import harness
from harness import Goal, Row, in_child, in_turns

DOORS = {
    "chat": "OpenAI Chat Completions",
    "responses": "OpenAI Responses",
    "agui": "AG-UI",
    "a2a": "A2A, JSON-RPC, a new task",
}


def median_ms(turn: Callable[[int], None], count: int) -> float:
    milliseconds: list[float] = []
    for number in range(count + 5):
        began = time.perf_counter()
        turn(number)
        milliseconds.append((time.perf_counter() - began) * 1000)
    return statistics.median(milliseconds[5:])  # the first turns load modules


def model(name: str, count: int) -> Any:
    """Return a model for `count` turns of one conversation. For A2A it serves one turn of each
    conversation."""
    from holdfast import ScriptedLLM

    turns = 1 if name == "a2a" else count + 5
    return ScriptedLLM(["red as a rose"] * turns, stream=True)


def local_new(count: int) -> float:
    """Measure the floor of a new conversation, in milliseconds."""
    from holdfast import Agent, Conversation, SQLiteStore

    with harness.scratch() as folder, SQLiteStore(f"{folder}/s.db") as store:

        def turn(_: int) -> None:
            with Conversation(Agent(model("a2a", count)), store) as conversation:
                conversation.send_message("hi")
                conversation.run()

        return median_ms(turn, count)


def local(count: int) -> float:
    """Measure the floor, in milliseconds."""
    from holdfast import Agent, Conversation, SQLiteStore

    with harness.scratch() as folder, SQLiteStore(f"{folder}/s.db") as store:
        agent = Agent(model("", count))
        with Conversation(agent, store) as conversation:

            def turn(_: int) -> None:
                conversation.send_message("hi")
                conversation.run()

            return median_ms(turn, count)


def door(name: str, count: int) -> float:
    """Return the milliseconds of a turn through one door."""
    from holdfast import Agent
    from holdfast.serve import agui, responses_routes
    from holdfast.server.local import LocalServer

    agent = Agent(model(name, count))
    doors: list[Any] = [agui.add, responses_routes.add]
    if name == "a2a":
        from holdfast.serve import A2ADoor

        doors.append(A2ADoor(["p"]))
    with (
        harness.scratch() as folder,
        LocalServer(folder, agents={"p": agent}, doors=doors) as server,
    ):
        address = server.url.removeprefix("http://")
        connection = http.client.HTTPConnection(address)
        headers = {
            "Authorization": f"Bearer {server.key}",
            "Content-Type": "application/json",
            "A2A-Version": "1.0",
        }

        def post(path: str, body: Any) -> bytes:
            connection.request("POST", path, json.dumps(body), headers)
            response = connection.getresponse()
            answer = response.read()
            assert response.status == 200, answer
            return answer

        previous: list[Any] = [None]
        messages: list[dict[str, str]] = []

        def turn(number: int) -> None:
            if name == "responses":
                body = {"model": "p", "input": "hi", "previous_response_id": previous[0]}
                previous[0] = json.loads(post("/v1/responses", body))["id"]
            elif name == "chat":
                messages.append({"role": "user", "content": "hi"})
                answer = post("/v1/chat/completions", {"model": "p", "messages": messages})
                messages.append(json.loads(answer)["choices"][0]["message"])
            elif name == "agui":
                messages.append({"id": f"u{number}", "role": "user", "content": "hi"})
                body = {"threadId": "t", "runId": f"r{number}", "messages": messages}
                assert b"RUN_FINISHED" in post("/agui/p", body)
                answer_message = {"role": "assistant", "content": "red as a rose"}
                messages.append({"id": f"r{number}-1", **answer_message})
            else:
                message = {
                    "messageId": f"m{number}",
                    "role": "ROLE_USER",
                    "parts": [{"text": "hi"}],
                }
                body = {"jsonrpc": "2.0", "id": number, "method": "SendMessage"}
                answer = post("/a2a/p", {**body, "params": {"message": message}})
                assert b"TASK_STATE_COMPLETED" in answer, answer

        return median_ms(turn, count)


def rows(quick: bool) -> list[Row]:
    count = 40 if quick else 200
    figures: dict[str, Any] = {
        "floor": lambda: in_child(local, count),
        "new": lambda: in_child(local_new, count),
    }
    for name in DOORS:
        figures[name] = lambda name=name: in_child(door, name, count)
    milliseconds = in_turns(2 if quick else 5, figures)
    floors = {name: milliseconds.pop(name) for name in ("floor", "new")}
    rows: list[Row] = []
    for name, values in milliseconds.items():
        floor = floors["new" if name == "a2a" else "floor"]
        goal = Goal(round(statistics.median(floor) + 5, 1))
        rows.append(Row(DOORS[name], "ms", values, floor, goal))
    return rows
