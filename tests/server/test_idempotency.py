"""Repeated requests under one `Idempotency-Key`: the same outcome each time, also after `kill -9`."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the server extra is not installed")

from holdfast import Agent, Hook, RemoteConversation, RemoteWorkspace, ScriptedLLM
from holdfast.agent.serial_form import form_of
from holdfast.errors import HookDenied
from holdfast.remote.failures import failure
from holdfast.server.policy import Policy
from holdfast.server.records import Records
from tests.agent_servers import Reply, Serving
from tests.serve_process import ServeProcess

HOOKS = """
def deny(*_):
    from holdfast.tools.hooks import Deny
    return Deny("no messages today")
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
        found = [server.ask("POST", MESSAGES, text, Idempotency_Key="K1") for _ in range(3)]
        assert found[0].error == "HookDenied"
        assert found[0].json == found[1].json == found[2].json
        assert json.loads(found[0].body)["error"]["details"]["on"] == "message"


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
        sent = server.ask("POST", MESSAGES, {"text": "important"}, Idempotency_Key=key)
        assert sent.status == 202, sent
        conversation.drain_inbox()
        assert any("important" in str(event) for event in conversation.get_history())
