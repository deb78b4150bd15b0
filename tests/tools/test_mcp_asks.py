"""Tests of requests and news of MCP servers: input of the user, completions, folders, progress,
changed tools; over every transport and both eras."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import ScriptedLLM
from holdfast.errors import ConfigurationError, ToolError, ToolTimeout
from holdfast.tools.context import ToolContext
from holdfast.tools.mcp import Elicitation, MCPClient
from holdfast.tools.tool import Tool
from tests import forks
from tests.paths import DATA
from tests.waiting import until

SERVER = str(DATA / "mcp_asking_server.py")
WAYS = ["stdio 2025-11-25", "stdio 2026-07-28", "http 2025-11-25", "http 2026-07-28", "sse auto"]
STDIO: dict[str, Any] = {"command": sys.executable, "args": [SERVER]}


@pytest.fixture(scope="module")
def ports() -> Iterator[dict[str, str]]:
    port_of: dict[str, str] = {}
    processes = [
        (kind, forks.Popen([sys.executable, SERVER, kind], stdout=subprocess.PIPE, text=True))
        for kind in ("http", "sse")
    ]
    for kind, process in processes:
        assert process.stdout is not None
        port_of[kind] = process.stdout.readline().strip()
    yield port_of
    for _, process in processes:
        with process:
            process.terminate()


@pytest.fixture(params=WAYS)
def server(request: pytest.FixtureRequest, ports: dict[str, str]) -> dict[str, Any]:
    kind, mode = request.param.split()
    if kind == "stdio":
        return {**STDIO, "mode": mode}
    return {
        "url": f"http://127.0.0.1:{ports[kind]}/{'mcp' if kind == 'http' else 'sse'}",
        "type": kind,
        "mode": mode,
    }


def by_name(client: MCPClient) -> dict[str, Tool]:
    tools = {tool.name.partition(".")[2]: tool for tool in client}
    assert client.errors == {}
    return tools


# --- the user's input ---


@pytest.mark.slow
def test_the_user_is_asked_on_a_thread_of_its_own_and_defaults_are_filled_in(
    server: dict[str, Any],
) -> None:
    questions: list[tuple[Elicitation, str]] = []

    def elicit(question: Elicitation) -> dict[str, Any]:
        questions.append((question, threading.current_thread().name))
        return {"name": "Ada"}

    with MCPClient({"a": server}, elicit=elicit) as client:
        assert by_name(client)["greet"].run({}).text == "accept: name='Ada' colour='green'"
    [(question, thread)] = questions
    assert (question.server, question.message, question.url) == ("a", "What is your name?", None)
    assert question.schema is not None
    assert question.schema["required"] == ["name"]
    assert thread == "holdfast-mcp-hook"
    assert question.cancelled  # nobody waits any more


@pytest.mark.slow
def test_without_somebody_to_ask_every_question_is_declined(server: dict[str, Any]) -> None:
    with MCPClient({"a": server}) as client:
        assert by_name(client)["greet"].run({}).text.startswith("decline")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "action"),
    [
        (None, "decline"),
        (False, "decline"),
        (True, "accept"),
        (ValueError("gone"), "cancel"),
        ({"name": object()}, "cancel"),
    ],
)
def test_what_the_hook_returns_is_what_the_server_hears(
    answer: Any, action: str, ports: dict[str, str]
) -> None:
    def elicit(question: Elicitation) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer if answer is not True else {"name": "x"}

    server = {"url": f"http://127.0.0.1:{ports['http']}/mcp", "type": "http"}
    with MCPClient({"a": server}, elicit=elicit) as client:
        assert by_name(client)["greet"].run({}).text.startswith(action)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["2025-11-25", "2026-07-28"])
def test_no_deadline_runs_while_the_user_thinks(mode: str) -> None:
    def elicit(question: Elicitation) -> dict[str, Any]:
        time.sleep(0.8)
        return {"name": "slow"}

    with MCPClient({"a": {**STDIO, "mode": mode, "call_timeout": 0.5}}, elicit=elicit) as client:
        tools = by_name(client)
        assert "slow" in tools["greet"].run({}).text
        with pytest.raises(ToolTimeout, match=r"within 0.5 s"):
            tools["steps"].run({"count": 500})


@pytest.mark.slow
def test_a_question_that_is_still_open_at_the_close_is_taken_back() -> None:
    cancelled, arrived = threading.Event(), threading.Event()

    def elicit(question: Elicitation) -> None:
        question.cancelled.add_callback(cancelled.set)
        arrived.set()
        cancelled.wait(30)

    client = MCPClient({"a": STDIO}, elicit=elicit)
    greet = by_name(client)["greet"]
    failed: list[ToolError] = []

    def call() -> None:
        try:
            greet.run({})
        except ToolError as error:
            failed.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    assert arrived.wait(30)
    client.close()
    thread.join(30)
    assert [error.error_type for error in failed] == ["network"]
    assert cancelled.wait(30)


# --- completions ---


@pytest.mark.slow
def test_a_completion_is_answered_by_the_owners_model(server: dict[str, Any]) -> None:
    model = ScriptedLLM(["It."])
    with MCPClient({"a": server}, sample=model) as client:
        assert by_name(client)["think"].run({}).text == "scripted: It."
    assert "Say it." in str(model.requests[0].messages)


@pytest.mark.slow
def test_a_completion_is_refused_where_it_was_not_allowed(server: dict[str, Any]) -> None:
    with MCPClient({"a": server}) as client:
        think = by_name(client)["think"]
        try:
            refused = think.run({}).is_error
        except ToolError:  # since 2026-07-28 the server sees in advance that it may not ask
            refused = True
        assert refused


# --- folders ---


@pytest.mark.slow
def test_folders_are_a_list_or_a_function(server: dict[str, Any], tmp_path: Path) -> None:
    for roots in ([tmp_path], lambda: [str(tmp_path)]):
        with MCPClient({"a": server}, roots=roots) as client:
            assert by_name(client)["folders"].run({}).data == {"result": [tmp_path.as_uri()]}


@pytest.mark.parametrize(
    ("hook", "value"), [("elicit", 1), ("sample", object()), ("roots", "/tmp"), ("roots", 1)]
)
def test_a_hook_that_does_not_fit_is_refused_by_name(hook: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"MCPClient: {hook} takes"):
        MCPClient({}, **{hook: value})


# --- progress and changes ---


@pytest.mark.slow
def test_progress_reaches_the_callers_context_in_order_on_its_own_thread(
    server: dict[str, Any],
) -> None:
    received: list[tuple[str, str]] = []
    context = ToolContext(
        progress=lambda text: received.append((text, threading.current_thread().name))
    )
    with MCPClient({"a": server}) as client:
        by_name(client)["steps"].run({"count": 4}, context)
    assert received == [(f"{n}/4: step {n}", threading.current_thread().name) for n in range(1, 5)]


@pytest.mark.slow
def test_changed_tools_are_told_to_who_watches(server: dict[str, Any]) -> None:
    notified = threading.Event()
    with MCPClient({"a": server}) as client:
        [source] = client.sources()
        source.watch(notified.set)
        grow = {tool.name: tool for tool in source.discover()}["a.grow"]
        # the subscription may come a moment after the list
        until(lambda: grow.run({"name": "fresh"}).success and notified.wait(0.5))
        assert "a.fresh" in [tool.name for tool in source.discover()]


@pytest.mark.slow
def test_a_list_whose_time_is_over_is_told_as_changed() -> None:
    notified = threading.Event()
    with MCPClient({"a": {**STDIO, "mode": "2026-07-28", "env": {"TTL_MS": "1200"}}}) as client:
        [source] = client.sources()
        source.watch(notified.set)
        source.discover()
        assert not notified.wait(0.8)
        assert notified.wait(30)


@pytest.mark.slow
def test_a_watcher_that_raises_or_asks_at_once_harms_nobody() -> None:
    counts: list[int] = []
    finished = threading.Event()
    with MCPClient({"a": {**STDIO, "mode": "2025-11-25"}}) as client:
        [source] = client.sources()

        def ask() -> None:
            counts.append(len(source.discover()))
            finished.set()

        def fail() -> None:
            raise RuntimeError("mine")

        source.watch(fail)
        source.watch(ask)
        tools = {tool.name: tool for tool in source.discover()}
        tools["a.grow"].run({"name": "more"})
        assert finished.wait(30)
        assert counts == [len(tools) + 1]
