"""Tests that send every example of the agent server's OpenAPI to that server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("fastapi", reason="the server extra is not installed")

from holdfast import Agent, Conversation, ScriptedLLM, tool
from holdfast.server.openai import publish
from tests.agent_servers import Serving

STANDS = 409  # it does not fit the present state: no call waits, no model can be called


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Serving]:
    agents = {"coder": publish("coder", Agent(ScriptedLLM(["hello"])))}
    with Serving(tmp_path, agents=agents) as running:
        yield running


def examples(server: Serving) -> list[tuple[str, str, Any, str]]:
    document = server.ask("GET", "/openapi.json").json
    return [
        (method.upper(), path, content["example"], kind)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        for kind, content in operation.get("requestBody", {}).get("content", {}).items()
        if "example" in content
    ]


def state_of(turns: int) -> bytes:
    """Return the state of a conversation of `turns` answers."""
    with Conversation(Agent(ScriptedLLM(lambda _: "yes"))) as conversation:
        for _ in range(turns):
            conversation.send_message("hello")
            conversation.run()
        return conversation.state.to_json()


@pytest.mark.slow
def test_the_server_takes_every_example_of_its_own_description(server: Serving) -> None:
    requests = examples(server)
    assert len(requests) > 15
    refused: list[str] = []
    key = "/api/secrets/OPENAI_API_KEY"  # the example of a named model refers to it
    assert server.ask("PUT", key, {"value": "sk-of-the-team"}).status < 300
    for number, (method, path, example, kind) in enumerate(requests):
        own, workspace = f"c{number}", f"w{number}"
        server.make(own)
        assert server.ask("POST", "/api/workspaces", {"id": workspace}).status == 201
        where = (
            path.replace("{id}", own)
            .replace("{workspace}", workspace)
            .replace("{agent}", "coder")
            .replace("{call_id}", "3.0")
        )
        where = (
            where.replace("{name}", "grep")
            .replace("{path}", "a.txt")
            .replace("{webhook}", "wh-none")
        )
        body = example.encode() if isinstance(example, str) else msgspec.json.encode(example)
        headers = {"Content-Type": kind, "X-Holdfast-Client": "c"}
        if path.endswith("/fork"):  # at an event that exists
            assert server.ask("PUT", f"/api/conversations/{own}/state", state_of(3)).status == 200
        reply = server.ask(method, where, body, timeout=60.0, **headers)
        names_another = "{webhook}" in path or path.endswith("/timers/cancel")
        nowhere = names_another and reply.status == 404
        offline = path.endswith("/clone") and "not cloned" in reply.body.decode()  # no network here
        if reply.status >= 300 and reply.status != STANDS and not nowhere and not offline:
            refused.append(f"{method} {path}: {reply}")
    assert not refused, "\n".join(refused)


@tool
def own() -> str:
    """A tool of no module that the server may import."""
    return "own"


def test_an_agent_whose_tools_may_not_run_is_refused_alike_under_one_key(tmp_path: Path) -> None:
    agents = {"coder": publish("coder", Agent(ScriptedLLM(["hello"]), [own]))}
    with Serving(tmp_path, agents=agents) as running:
        path = "/api/agents/coder/conversations"
        replies = [running.ask("POST", path, {}, Idempotency_Key="once") for _ in range(2)]
        assert [reply.status for reply in replies] == [403, 403]
        assert "--allow-tools" in replies[1].json["error"]["message"]


def test_a_conversation_with_a_servers_agent_is_made_once_under_a_key(server: Serving) -> None:
    path = "/api/agents/coder/conversations"
    created = [server.ask("POST", path, {}, Idempotency_Key="once") for _ in range(2)]
    assert [one.status for one in created] == [201, 201]
    assert created[0].json["id"] == created[1].json["id"]
    assert server.ask("POST", path, {}, Idempotency_Key="twice").json["id"] != created[0].json["id"]
    assert server.ask("POST", path, {"id": "other"}, Idempotency_Key="once").status == 409
