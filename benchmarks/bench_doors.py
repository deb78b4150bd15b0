"""Wall time of a turn of one answer through a protocol door over HTTP, with a scripted model.

The floor is the same turn of a `Conversation` in this process, in SQLite. The goal is at most 5 ms
more. Client and server share the process.
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
    found: list[float] = []
    for number in range(count + 5):
        began = time.perf_counter()
        turn(number)
        found.append((time.perf_counter() - began) * 1000)
    return statistics.median(found[5:])  # the first ones load modules


def local(count: int) -> float:
    """The floor, in milliseconds."""
    from holdfast import Agent, Conversation, ScriptedLLM, SQLiteStore

    with harness.scratch() as folder, SQLiteStore(f"{folder}/s.db") as store:
        agent = Agent(ScriptedLLM(["red as a rose"] * (count + 5), stream=True))
        with Conversation(agent, store) as conversation:

            def turn(_: int) -> None:
                conversation.send_message("hi")
                conversation.run()

            return median_ms(turn, count)


def door(name: str, count: int) -> float:
    """Milliseconds of a turn through one door."""
    from holdfast import Agent, ScriptedLLM
    from holdfast.serve import agui, responses_routes
    from holdfast.server.local import LocalServer

    agent = Agent(ScriptedLLM(["red as a rose"] * (count + 5), stream=True))
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
                said = {"id": f"u{number}", "role": "user", "content": "hi"}
                body = {"threadId": "t", "runId": f"r{number}", "messages": [said]}
                assert b"RUN_FINISHED" in post("/agui/p", body)
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
    figures: dict[str, Any] = {"floor": lambda: in_child(local, count)}
    for name in DOORS:
        figures[name] = lambda name=name: in_child(door, name, count)
    found = in_turns(2 if quick else 5, figures)
    floor = found.pop("floor")
    limit = round(statistics.median(floor) + 5, 1)
    return [Row(DOORS[name], "ms", values, floor, Goal(limit)) for name, values in found.items()]
