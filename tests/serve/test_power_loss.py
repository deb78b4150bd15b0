"""Turns of the doors through a loss of power that undoes the last records of the server, which are
not synced to the disk: the journal says that a turn runs, and no record says that it is driven."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from tests.door_tools import write_agent
from tests.model_server import ModelServer, Stall, calls, text
from tests.paths import REPO
from tests.serve_process import ServeProcess
from tests.waiting import until

Json = dict[str, Any]
Door = Callable[[ServeProcess, Json], Json]

SECOND = {"role": "user", "content": "Second."}


def lose_power(server: ServeProcess) -> None:
    """Kill a server, and undo what a power loss may undo of its records."""
    server.kill()
    with sqlite3.connect(server.folder / "s.db.server.db") as records:
        records.execute("UPDATE conversations SET driven = 0")
        records.execute("DELETE FROM chat_turns")
        records.execute("DELETE FROM chat_answers")
    records.close()
    server.start()


def chat(server: ServeProcess, thread: Json) -> Json:
    body = {"model": "painter", "messages": thread["messages"]}
    message = server.ask("POST", "/v1/chat/completions", body).json["choices"][0]["message"]
    return {"messages": [*thread["messages"], message], "text": message["content"]}


def response(server: ServeProcess, thread: Json) -> Json:
    last = thread["messages"][-1]["content"]
    body = {"model": "painter", "input": last, "previous_response_id": thread.get("id")}
    reply = server.ask("POST", "/v1/responses", body).json
    (item,) = [one for one in reply["output"] if one["type"] == "message"]
    return {**thread, "id": reply["id"], "text": item["content"][0]["text"]}


def agui(server: ServeProcess, thread: Json) -> Json:
    messages = [{"id": str(at), **one} for at, one in enumerate(thread["messages"])]
    body = {"threadId": "t", "runId": "r", "messages": messages}
    reply = server.ask("POST", "/agui/painter", body).body.decode()
    assert '"outcome":{"type":"success"}' in reply
    said = "".join(part.partition('"')[0] for part in reply.split('"delta":"')[1:])
    messages.append({"role": "assistant", "content": said})
    return {"messages": messages, "text": said or reply}


def begin(door: Door, server: ServeProcess, thread: Json) -> None:
    """Send a request whose answer never comes."""

    def ask() -> None:
        with pytest.raises((HTTPException, OSError)):
            door(server, thread)

    threading.Thread(target=ask).start()


@pytest.mark.slow
@pytest.mark.parametrize("door", [chat, response, agui])
def test_a_turn_that_nobody_drives_after_a_power_loss_rests(tmp_path: Path, door: Door) -> None:
    script = [text("One."), Stall(60), text("Two."), text("Three.")]
    with (
        ModelServer(script) as model,
        ServeProcess(tmp_path, *write_agent(tmp_path, model.url), library=REPO) as server,
    ):
        thread = door(server, {"messages": [{"role": "user", "content": "First."}]})
        assert thread["text"] == "One."
        thread["messages"].append(SECOND)
        begin(door, server, thread)
        until(lambda: len(model.requests) == 2)
        lose_power(server)
        (item,) = server.ask("GET", "/api/conversations").json["items"]
        assert (item["status"], item["driven"]) == ("paused", False)
        assert "Two." in door(server, thread)["text"]
        statuses = [one["status"] for one in server.ask("GET", "/api/conversations").json["items"]]
        assert "running" not in statuses


@pytest.mark.slow
def test_a_question_is_asked_again_after_a_power_loss(tmp_path: Path) -> None:
    question = calls(("ask_user", {"question": "Which colour?"}))
    with (
        ModelServer([text("One."), question, text("Red it is.")]) as model,
        ServeProcess(tmp_path, *write_agent(tmp_path, model.url), library=REPO) as server,
    ):
        thread = response(server, {"messages": [{"role": "user", "content": "First."}]})
        body = {"model": "painter", "input": "Second.", "previous_response_id": thread["id"]}
        asked = server.ask("POST", "/v1/responses", body).json
        lose_power(server)
        path = f"/v1/responses/{asked['id']}"
        until(lambda: server.ask("GET", path).json["status"] == "completed")
        (call,) = [
            one for one in server.ask("GET", path).json["output"] if one["type"] == "function_call"
        ]
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "red"}
        body = {"model": "painter", "input": [output], "previous_response_id": asked["id"]}
        (item,) = server.ask("POST", "/v1/responses", body).json["output"][-1]["content"]
        assert item["text"] == "Red it is."


@pytest.mark.slow
def test_a_response_that_a_power_loss_cut_off_is_over_for_who_retrieves_it(tmp_path: Path) -> None:
    with (
        ModelServer([text("One."), Stall(60), text("Two.")]) as model,
        ServeProcess(tmp_path, *write_agent(tmp_path, model.url), library=REPO) as server,
    ):
        thread = response(server, {"messages": [{"role": "user", "content": "First."}]})
        thread["messages"] = [SECOND]
        begin(response, server, thread)
        until(lambda: len(model.requests) == 2)
        lose_power(server)
        with sqlite3.connect(f"file:{tmp_path / 's.db.server.db'}?mode=ro", uri=True) as records:
            query = "SELECT response FROM responses ORDER BY seq DESC LIMIT 1"
            ((id,),) = records.execute(query).fetchall()
        records.close()
        assert server.ask("GET", f"/v1/responses/{id}").json["status"] == "cancelled"
        stream = server.ask("GET", f"/v1/responses/{id}?stream=true").body.decode()
        assert "response.incomplete" in stream
        thread["id"] = id
        assert response(server, thread)["text"] == "Two."
