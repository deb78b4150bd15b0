"""Tests of repeated requests under one `Idempotency-Key`: the same outcome each time, also after
`kill -9`."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("fastapi", reason="the server extra is not installed")

from holdfast import Agent, Hook, RemoteConversation, RemoteWorkspace, ScriptedLLM
from holdfast.agent.serial_form import form_of, tools_of
from holdfast.errors import HookDenied
from holdfast.remote.failures import failure
from holdfast.server.policy import Policy
from holdfast.server.records import Records
from tests.agent_servers import Reply, Serving
from tests.serve_process import ServeProcess
from tests.waiting import until

HOOKS = """
import time
from holdfast import Agent, ScriptedLLM, ToolContext, tool

def deny(*_):
    from holdfast.tools.hooks import Deny
    return Deny("no messages today")

def fine(*_):
    return None

@tool
def danger() -> str:
    "Do it."
    return "done"

@tool
def spawn(context: ToolContext) -> str:
    "Give the task away."
    llm = ScriptedLLM([[("danger", {}), ("danger", {})], "child done"])
    with context.spawn(Agent(llm, [danger], confirm="always"), "go", id="one.kid") as child:
        child.start_thread()
        while child.status.value not in ("finished", "closed"):
            time.sleep(0.01)
        return child.status.value
"""
# Python imports this module when it starts: the server dies where the outcome would be recorded.
DYING = """
import os
if os.environ.get("HF_DIES"):
    from holdfast.server.records import Records
    Records.replace_answer = lambda *_: os.kill(os.getpid(), 9)
"""
MESSAGES = "/api/conversations/one/messages"


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "library"
    folder.mkdir()
    (folder / "hf_denying.py").write_text(HOOKS)
    (folder / "sitecustomize.py").write_text(DYING)
    monkeypatch.syspath_prepend(str(folder))
    return folder


def body() -> dict[str, Any]:
    agent = Agent(ScriptedLLM(["a"]), hooks=[Hook("hf_denying:deny", on="message")])
    return {"agent": form_of(agent).mapping, "id": "one"}


def error(reply: Reply) -> Any:
    return failure(reply.status, reply.body, "", "")


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_refused_request_is_refused_again_after_a_kill(
    tmp_path: Path, library: Path, isolation: str
) -> None:
    options = ("--allow-tools", "hf_denying", "--isolation", isolation)
    ask = {"method": "POST", "path": MESSAGES, "body": {"text": "hello"}, "Idempotency_Key": "K1"}
    with ServeProcess(tmp_path, *options, library=library, env={"HF_DIES": "1"}) as server:
        assert server.ask("POST", "/api/conversations", body()).status == 201
        with pytest.raises(OSError):
            server.ask(**ask)
    with ServeProcess(tmp_path, *options, library=library) as server:
        for _ in range(2):
            again = server.ask(**ask)
            assert again.status == 422, again
            denied = error(again)
            assert isinstance(denied, HookDenied)
            assert "no messages today" in str(denied)
            assert denied.on == "message"


def test_a_second_request_under_the_key_of_a_refused_one_is_refused_meanwhile(
    tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused, go_on = threading.Event(), threading.Event()
    replace = Records.replace_answer

    def slow(records: Records, *arguments: Any) -> None:
        refused.set()
        assert go_on.wait(30)
        replace(records, *arguments)

    monkeypatch.setattr(Records, "replace_answer", slow)
    replies: list[Reply] = []
    with Serving(tmp_path, policy=Policy(["hf_denying"])) as server:
        assert server.ask("POST", "/api/conversations", body()).status == 201

        def ask() -> None:
            text = {"text": "hello"}
            replies.append(server.ask("POST", MESSAGES, text, Idempotency_Key="K1"))

        first, second = threading.Thread(target=ask), threading.Thread(target=ask)
        first.start()
        assert refused.wait(30)
        refused.clear()
        second.start()
        refused.wait(10)
        go_on.set()
        first.join(30)
        second.join(30)
    assert [reply.status for reply in replies] == [422, 422]
    assert replies[0].json == replies[1].json


def test_a_denied_request_has_the_same_error_when_it_is_repeated(
    tmp_path: Path, library: Path
) -> None:
    with Serving(tmp_path, policy=Policy(["hf_denying"])) as server:
        assert server.ask("POST", "/api/conversations", body()).status == 201
        text = {"text": "hello"}
        replies = [server.ask("POST", MESSAGES, text, Idempotency_Key="K1") for _ in range(3)]
        assert replies[0].error == "HookDenied"
        assert replies[0].json == replies[1].json == replies[2].json
        assert json.loads(replies[0].body)["error"]["details"]["on"] == "message"


def test_keys_that_look_like_those_of_another_requests_parts_do_not_collide(
    tmp_path: Path, library: Path
) -> None:
    def danger() -> str:
        """Do it."""
        return "done"

    agent = Agent(ScriptedLLM([("danger", {}), "ok", "ok too"]), [danger], confirm="always")
    with (
        Serving(tmp_path) as server,
        RemoteWorkspace(server.server.url, server.key) as space,
        RemoteConversation(agent, space, "one") as conversation,
    ):
        conversation.send_message("go")
        (waiting,) = conversation.run().pending_confirmations
        decision = {"callId": waiting.call.id}
        path = "/api/conversations/one"
        approved = server.ask("POST", f"{path}/approve", decision, Idempotency_Key="job-7")
        assert approved.status == 200, approved
        key = f"job-7:{waiting.call.id}"
        reply = server.ask("POST", MESSAGES, {"text": "important"}, Idempotency_Key=key)
        assert reply.status == 202, reply
        conversation.drain_inbox()
        assert any("important" in str(event) for event in conversation.get_history())


ISOLATIONS = ["thread", pytest.param("process", marks=pytest.mark.slow)]


def with_tool(name: str, script: list[Any]) -> dict[str, Any]:
    import hf_denying  # pyright: ignore[reportMissingImports]

    agent = Agent(ScriptedLLM(script), [getattr(hf_denying, name)], confirm="always")
    if name == "spawn":
        agent = agent.replace(confirm="never")
    tools = [msgspec.to_builtins(form) for form in tools_of(agent)]
    modules = {name: "hf_denying"}
    return {
        "agent": form_of(agent).mapping,
        "id": "one",
        "tools": tools,
        "toolModuleQualnames": modules,
    }


def status(server: Serving, id: str) -> str:
    return server.ask("GET", f"/api/conversations/{id}").json.get("status", "")


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_refused_decision_about_all_calls_decides_none_when_it_is_repeated(
    tmp_path: Path, library: Path, isolation: Any
) -> None:
    with Serving(tmp_path, policy=Policy(["hf_denying"]), isolation=isolation) as server:
        created = server.ask("POST", "/api/conversations", with_tool("danger", [("danger", {})]))
        assert created.status == 201, created
        path = "/api/conversations/one"
        for way in ("approve", "reject"):
            refused = server.ask("POST", f"{path}/{way}", {}, Idempotency_Key=way)
            assert (refused.status, refused.error) == (409, "NotPending")
        server.ask("POST", MESSAGES, {"text": "go"})
        server.ask("POST", f"{path}/run", {})
        until(lambda: status(server, "one") == "waiting_for_confirmation")
        for way in ("approve", "reject"):
            again = server.ask("POST", f"{path}/{way}", {}, Idempotency_Key=way)
            assert (again.status, again.error) == (409, "NotPending")
        assert status(server, "one") == "waiting_for_confirmation"
        assert server.ask("POST", f"{path}/approve", {}, Idempotency_Key="new").status == 200


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_the_key_of_a_request_to_a_spawned_conversation_stands_for_one_request(
    tmp_path: Path, library: Path, isolation: Any
) -> None:
    with Serving(tmp_path, policy=Policy(["hf_denying"]), isolation=isolation) as server:
        created = server.ask(
            "POST", "/api/conversations", with_tool("spawn", [("spawn", {}), "parent done"])
        )
        assert created.status == 201, created
        server.ask("POST", MESSAGES, {"text": "go"})
        server.ask("POST", "/api/conversations/one/run", {})
        until(lambda: status(server, "one.kid") == "waiting_for_confirmation")
        path = "/api/conversations/one.kid"

        def decided() -> list[tuple[str, str]]:
            events = server.ask("GET", f"{path}/events").json["events"]
            decisions = [one for one in events if one["type"] == "decision"]
            return [(e["callId"], e["decision"]) for e in decisions if e["decision"] != "ask"]

        first = {"callId": "4.0"}
        early = server.ask("POST", f"{path}/approve", {"callId": "9.0"}, Idempotency_Key="K0")
        assert (early.status, early.error) == (409, "NotPending")
        assert server.ask("POST", f"{path}/approve", first, Idempotency_Key="K1").status == 200
        other = server.ask("POST", f"{path}/reject", first, Idempotency_Key="K1")
        assert (other.status, other.error) == (409, "Conflict")
        until(lambda: decided() == [("4.0", "approve")])
        assert server.ask("POST", f"{path}/approve", first, Idempotency_Key="K1").status == 200
        early = server.ask("POST", f"{path}/approve", {"callId": "9.0"}, Idempotency_Key="K0")
        assert (early.status, early.error) == (409, "NotPending")
        # The same key at the parent is another request.
        reply = server.ask("POST", MESSAGES, {"text": "more"}, Idempotency_Key="K1")
        assert reply.status == 202, reply
        assert server.ask("POST", f"{path}/reject", {}, Idempotency_Key="K2").status == 200
        until(lambda: len(decided()) == 2)
        assert server.ask("POST", f"{path}/reject", {}, Idempotency_Key="K2").status == 200
        until(lambda: status(server, "one") == "finished")
        assert decided() == [("4.0", "approve"), ("4.1", "reject")]


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_conversation_that_could_not_be_opened_is_no_outcome_of_a_request(
    tmp_path: Path, library: Path, isolation: Any
) -> None:
    agent = Agent(ScriptedLLM(["ok"]), hooks=[Hook("hf_denying:fine", on="message")])
    text = {"text": "hello"}
    with Serving(tmp_path, policy=Policy(["hf_denying"]), isolation=isolation) as server:
        created = {"agent": form_of(agent).mapping, "id": "one"}
        assert server.ask("POST", "/api/conversations", created).status == 201
    with Serving(tmp_path, policy=Policy([]), isolation=isolation) as server:
        for way, body in (("messages", text), ("approve", {})):
            path = f"/api/conversations/one/{way}"
            refused = server.ask("POST", path, body, Idempotency_Key=way)
            assert refused.error == "ConfigurationError"
    with Serving(tmp_path, policy=Policy(["hf_denying"]), isolation=isolation) as server:
        reply = server.ask("POST", MESSAGES, text, Idempotency_Key="messages")
        assert reply.status == 202, reply
        decided = server.ask(
            "POST", "/api/conversations/one/approve", {}, Idempotency_Key="approve"
        )
        assert (decided.status, decided.error) == (409, "NotPending")
