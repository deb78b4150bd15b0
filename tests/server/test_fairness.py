"""Tests of the run slots of an agent server: shared between tenants, given up between steps, and
free as soon as a run is cut off."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the server extra is not installed")

from holdfast import LLM, Agent, Limits, ScriptedLLM
from holdfast import events as ev
from holdfast.agent.serial_form import form_of
from holdfast.server import open_conversations
from holdfast.server.policy import Policy
from tests.agent_servers import Serving
from tests.gate_tools import hold, step
from tests.model_server import ModelServer, Request, calls, text
from tests.waiting import until

POLICY = Policy(["tests.gate_tools"])
MODULES = {"hold": "tests.gate_tools", "step": "tests.gate_tools"}
TOOLS = [
    {"name": one.name, "inputSchema": one.input_schema, "module": "tests.gate_tools"}
    for one in (hold, step)
]


class Gate:
    """The folder of files that the tools wait for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def open(self) -> None:
        (self.folder / "open").touch()

    def entered(self, name: str) -> bool:
        return (self.folder / f"entered-{name}").exists()


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    opened_at_end = Gate(tmp_path / "gate")
    yield opened_at_end
    opened_at_end.open()  # ends the tools that a failed test left waiting


def begin(server: Serving, id: str, model: Any, key: str = "") -> str:
    """Make and run a conversation, and return its path."""
    form = form_of(Agent(model, stuck=None, limits=Limits(steps=None)))
    body = {
        "id": id,
        "agent": {**form.mapping, "tools": {"builtin": ["hold", "step"]}},
        "tools": TOOLS,
        "toolModuleQualnames": MODULES,
        "secrets": form.secrets,
    }
    created = server.ask("POST", "/api/conversations", body, key)
    assert created.status == 201, created
    assert [one["executor"] for one in created.json["tools"]] == ["server", "server"], created
    path = f"/api/conversations/{id}"
    assert server.ask("POST", f"{path}/messages", {"text": "go"}, key).status == 202
    assert server.ask("POST", f"{path}/run", key=key).status == 200
    return path


def holding(gate: Gate, name: str) -> ScriptedLLM:
    return ScriptedLLM([[("hold", {"folder": str(gate.folder), "name": name})], "Done."])


def status(server: Serving, path: str, key: str = "") -> str:
    return server.ask("GET", path, key=key).json["status"]


def count(server: Serving, id: str, kind: type[ev.AnyEvent]) -> int:
    return sum(isinstance(event, kind) for event in server.store.read(id))


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_tenant_runs_while_anothers_calls_hold_every_slot(
    tmp_path: Path, gate: Gate, isolation: str
) -> None:
    with Serving(tmp_path, policy=POLICY, max_running=2, isolation=isolation) as server:
        first = [begin(server, f"a{n}", holding(gate, f"a{n}")) for n in range(4)]
        until(lambda: gate.entered("a0") and gate.entered("a1"))
        other = begin(server, "b", ScriptedLLM(["hello"]), server.other)
        until(lambda: status(server, other, server.other) == "finished", seconds=10.0)
        assert not gate.entered("a2")  # the first tenant has its two slots, and no more
        gate.open()
        for path in first:
            until(lambda path=path: status(server, path) == "finished")


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_long_runs_give_up_slots_between_steps_until_tenants_have_equal_shares(
    tmp_path: Path, gate: Gate, isolation: str
) -> None:
    """Check the shares while the first tenant's runs take step after step, until the gate opens."""

    def answer(request: Request) -> Any:
        if request.messages[-1].get("content") == "open":
            return text("Done.")
        return calls(("step", {"folder": str(gate.folder)}))

    with (
        ModelServer(answer) as model,
        Serving(tmp_path, policy=POLICY, max_running=4, isolation=isolation) as server,
    ):
        first = [begin(server, f"a{n}", LLM("m", base_url=model.url)) for n in range(4)]
        until(lambda: server.host.stats()["running"] == 4)
        others = [begin(server, f"b{n}", holding(gate, f"b{n}"), server.other) for n in range(2)]
        until(lambda: gate.entered("b0") and gate.entered("b1"), seconds=10.0)
        # the slots lent beyond the bound are given back
        until(lambda: server.host.stats()["running"] == 4)
        gate.open()
        for path in first:
            until(lambda path=path: status(server, path) == "finished")
            id = path.rpartition("/")[2]
            # no step was repeated or lost where a run was put off
            assert count(server, id, ev.ToolCallFinished) + 1 == count(
                server, id, ev.AssistantReplied
            )
        for path in others:
            until(lambda path=path: status(server, path, server.other) == "finished")


@pytest.mark.slow
def test_more_tenants_than_slots_take_turns(tmp_path: Path, gate: Gate) -> None:
    """Check four tenants with endless runs over one slot and one that is lent: all make progress."""

    def answer(request: Request) -> Any:
        if request.messages[-1].get("content") == "open":
            return text("Done.")
        return calls(("step", {"folder": str(gate.folder)}))

    with ModelServer(answer) as model, Serving(tmp_path, policy=POLICY, max_running=1) as server:
        keys = ["", server.other, server.keys.create("third"), server.keys.create("fourth")]
        paths = [(begin(server, "c", LLM("m", base_url=model.url), key), key) for key in keys]
        for place in ("c", "other/c", "third/c", "fourth/c"):
            until(lambda place=place: count(server, place, ev.ToolCallFinished) > 2, seconds=10.0)
        gate.open()
        for path, key in paths:
            until(lambda path=path, key=key: status(server, path, key) == "finished")


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_an_interrupted_run_gives_its_slot_back_though_its_call_goes_on(
    tmp_path: Path, gate: Gate, isolation: str
) -> None:
    with Serving(tmp_path, policy=POLICY, max_running=1, isolation=isolation) as server:
        first = begin(server, "a", holding(gate, "a"))
        until(lambda: gate.entered("a"))
        second = begin(server, "b", ScriptedLLM(["hello"]))
        assert server.ask("POST", f"{first}/interrupt").status == 200
        until(lambda: status(server, second) == "finished", seconds=30.0)
        assert server.ask("POST", f"{first}/run").status == 200
        # It has no slot while the old call goes on; the other's ends after its last event.
        until(lambda: server.host.stats()["running"] == 0)
        assert status(server, first) != "finished"
        gate.open()
        until(lambda: status(server, first) == "finished")


@pytest.mark.slow
def test_a_deleted_or_closed_run_gives_its_slot_back_though_its_call_goes_on(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_conversations, "_CLOSE_SECONDS", 120.0)
    with Serving(tmp_path, policy=POLICY, max_running=1) as server:
        for n, (method, end) in enumerate((("DELETE", ""), ("POST", "/close"))):
            first = begin(server, f"a{n}", holding(gate, f"a{n}"))
            until(lambda n=n: gate.entered(f"a{n}"))
            second = begin(server, f"b{n}", ScriptedLLM(["hello"]))
            ending = threading.Thread(target=server.ask, args=(method, f"{first}{end}"))
            ending.start()
            until(lambda second=second: status(server, second) == "finished")
            assert ending.is_alive()  # it still waits for the call
            gate.open()
            ending.join(60)
            assert not ending.is_alive()
            (gate.folder / "open").unlink()


@pytest.mark.proof
def test_a_conversation_made_anew_runs_while_the_deleted_ones_call_goes_on(
    tmp_path: Path, gate: Gate
) -> None:
    with Serving(tmp_path, policy=POLICY, max_running=1) as server:
        first = begin(server, "a", holding(gate, "old"))
        until(lambda: gate.entered("old"))
        assert server.ask("DELETE", first).status == 204
        again = begin(server, "a", ScriptedLLM(["hello"]))
        until(lambda: status(server, again) == "finished", seconds=30.0)
        gate.open()
