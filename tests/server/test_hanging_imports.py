"""Tests of a module that hangs when it is imported, named by a client of an agent server: the wait
is bounded, the module is named, and its tool is the client's to run."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the server extra is not installed")

from holdfast import Agent, ScriptedLLM
from holdfast.agent.serial_form import form_of
from holdfast.remote.server_client import SILENCE_SECONDS
from holdfast.server import tool_resolution
from holdfast.server.policy import IMPORT_TIMEOUT, Policy
from tests.agent_servers import Serving
from tests.waiting import until

HANGING = (
    "import time\nfrom pathlib import Path\nwhile not Path(__file__).with_name('go').exists():\n   "
    " time.sleep(0.01)\n"
)


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    names = [f"hf_hanging_{number}" for number in range(40)]
    for name in names:
        (tmp_path / f"{name}.py").write_text(HANGING)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield names
    (tmp_path / "go").touch()
    for thread in threading.enumerate():
        if thread.name.startswith("holdfast-import "):
            thread.join(10)
    for name in names:
        sys.modules.pop(name, None)


def create(server: Serving, modules: list[str], client_tools: bool = True) -> Any:
    """Return the answer to a new conversation with a tool of each module."""
    names = [f"tool_{number}" for number in range(len(modules))]
    form = form_of(Agent(ScriptedLLM(["Done."])))
    body = {
        "agent": {**form.mapping, "tools": {"builtin": names}},
        "client_tools": client_tools,
        "tools": [
            {"name": name, "inputSchema": {"type": "object"}, "module": module}
            for name, module in zip(names, modules, strict=True)
        ],
    }
    reply = server.ask("POST", "/api/conversations", body, timeout=10.0)
    assert reply.status == 201, reply
    return reply.json


def test_the_import_of_a_module_is_given_up_before_a_client_asks_again() -> None:
    assert IMPORT_TIMEOUT * tool_resolution.TOTAL_FACTOR < SILENCE_SECONDS


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_hanging_module_is_named_and_its_tool_is_run_by_the_client(
    tmp_path: Path, modules: list[str], isolation: str
) -> None:
    policy = Policy(["hf_hanging_*"], import_timeout=0.3)
    with Serving(tmp_path, policy=policy, isolation=isolation) as server:
        for client_tools, executor in ((True, "client"), (False, "unavailable")):
            created = create(server, modules[:1], client_tools)
            assert [tool["executor"] for tool in created["tools"]] == [executor]
            assert modules[0] in created["warnings"][0]
            path = f"/api/conversations/{created['id']}"
            assert server.ask("POST", f"{path}/messages", {"text": "go"}).status == 202
            assert server.ask("POST", f"{path}/run").status == 200
            until(lambda path=path: server.ask("GET", path).json["status"] == "finished")


@pytest.mark.slow
def test_many_hanging_modules_take_no_longer_than_a_few(tmp_path: Path, modules: list[str]) -> None:
    with Serving(tmp_path, policy=Policy(["hf_hanging_*"], import_timeout=0.5)) as server:
        created = create(server, modules)
        assert {tool["executor"] for tool in created["tools"]} == {"client"}
        assert sum("was not imported, because" in warning for warning in created["warnings"]) > 20
