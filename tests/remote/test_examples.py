"""Tests of the four programs of `examples/`, on an agent server with only their constructors
changed: the journals are those of a local run."""

from __future__ import annotations

import http.server
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests import forks
from tests.model_server import ModelServer, Request, calls, text
from tests.paths import REPO
from tests.remote_parts import KEY, AgentServerProcess

EXAMPLES = REPO / "examples"

# The end of every program: wait for all its conversations, and write their journals down.
TAIL = """
import json as _json
_found = []
for _value in list(globals().values()):
    for _one in _value if isinstance(_value, list) else [_value]:
        if type(_one).__name__ in ("Conversation", "RemoteConversation") and _one not in _found:
            _found.append(_one)
for _one in _found:
    _one.wait(30)
with open("journals.json", "w") as _file:
    _json.dump([[_json.loads(_event.to_json()) for _event in _one.get_history()] for _one in _found], _file)
for _one in _found:
    _one.close()
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentServerProcess]:
    with AgentServerProcess(tmp_path_factory.mktemp("server")) as running:
        yield running


def remote(source: str, url: str) -> str:
    """Return an example with its constructors changed, and nothing else."""
    names = "import LLM, Agent,"
    assert names in source
    source = source.replace(names, "import LLM, Agent, RemoteConversation, RemoteWorkspace,", 1)
    source = re.sub(
        r"(?<![A-Za-z])Conversation\((\w+)\)",
        r"RemoteConversation(\1, workspace=_WORKSPACE)",
        source,
    )
    source = source.replace("LocalRuntime()", "_WORKSPACE")
    first = source.index("llm = LLM(")
    return f"{source[:first]}_WORKSPACE = RemoteWorkspace({url!r}, {KEY!r})\n{source[first:]}"


def run(
    name: str, answer: Callable[[Request], Any], folder: Path, url: str, *changes: tuple[str, str]
) -> tuple[Any, Any]:
    """Run an example here and on the server, and return the output and the journals of each."""
    with ModelServer(answer) as model:
        source = (EXAMPLES / f"{name}.py").read_text()
        for old, new in (("http://127.0.0.1:8000/v1", model.url), *changes):
            assert old in source
            source = source.replace(old, new)
        source = source.replace("sleep(1)", "sleep(0.05)")
        outputs: list[Any] = []
        for where, text_ in (("local", source), ("remote", remote(source, url))):
            place = folder / where
            place.mkdir()
            (place / "program.py").write_text(text_ + TAIL)
            process = forks.run(
                [sys.executable, "program.py"],
                cwd=place,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            assert process.returncode == 0, process.stderr
            outputs.append(
                (
                    process.stdout,
                    [
                        alike(journal)
                        for journal in json.loads((place / "journals.json").read_text())
                    ],
                )
            )
        return outputs[0], outputs[1]


def alike(journal: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a journal without ids, times, and the runner of a call. Calls that ran at once are in
    the order of their ids."""
    events = [
        {
            key: value
            for key, value in event.items()
            if key not in ("seq", "id", "timestamp", "duration", "idempotencyKey", "runner")
        }
        for event in journal
    ]
    for event in events:
        for tool in event.get("tools", ()):
            tool.pop("executor", None)
    normal: list[dict[str, Any]] = []
    at_once: list[dict[str, Any]] = []
    for event in [*events, None]:
        if event is not None and event["type"] in ("toolCallStarted", "toolResult"):
            at_once.append(event)
            continue
        normal += sorted(at_once, key=lambda one: (one["callId"], one["type"]))
        at_once = []
        if event is not None:
            normal.append(event)
    return normal


@pytest.mark.slow
def test_hello_is_the_same(server: AgentServerProcess, tmp_path: Path) -> None:
    def answer(request: Request) -> Any:
        return (
            calls(("hello", {"name": "world"}))
            if request.messages[-1]["role"] == "user"
            else text("Said it.")
        )

    local, there = run("hello", answer, tmp_path, server.url)
    assert there[0].splitlines() == ["Hello, world", "Agent finished"]
    assert there == local
    assert len(there[1][0]) == 8


@pytest.mark.slow
def test_delegation_is_the_same(server: AgentServerProcess, tmp_path: Path) -> None:
    def answer(request: Request) -> Any:
        if str(request.messages[-1]["content"]) == "Say hello to 'world'":
            return text("Hello, world")
        if request.messages[-1]["role"] == "tool":
            return text("Three are on their way.")
        return calls(*[("create_conversation", {"msg": f"flip coin {n}"}) for n in range(3)])

    local, there = run("delegation", answer, tmp_path, server.url)
    assert there == local
    assert len(there[1]) == 4


@pytest.mark.slow
def test_local_runtime_is_the_same(server: AgentServerProcess, tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    skill = origin / ".openhands" / "microagents" / "flips.md"
    skill.parent.mkdir(parents=True)
    skill.write_text("---\nname: flips\n---\nAlways flip forwards.\n")
    git = [
        "git",
        "-c",
        "user.name=t",
        "-c",
        "user.email=t@example.com",
        "-c",
        "init.defaultBranch=main",
    ]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *arguments], cwd=origin, check=True)
    subprocess.run(
        [*git, "clone", "-q", "--bare", str(origin), str(tmp_path / "web" / "origin.git")],
        check=True,
    )
    subprocess.run([*git, "update-server-info"], cwd=tmp_path / "web" / "origin.git", check=True)

    def answer(request: Request) -> Any:
        if request.messages[-1]["role"] == "user":
            return calls(("terminal", {"command": "cat /tmp/Plan.md"}))
        if "do a flip" in str(request.messages[-1]["content"]):
            return calls(("lint", {}))
        return text("Flipped.")

    handler = partial(_Quiet, directory=str(tmp_path / "web"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as web:
        thread = threading.Thread(target=web.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        address = f"http://127.0.0.1:{web.server_address[1]}/origin.git"
        local, there = run(
            "local_runtime",
            answer,
            tmp_path,
            server.url,
            ('"All-Hands-AI/OpenHands"', repr(address)),
        )
        web.shutdown()
    assert placeless(there[1]) == placeless(local[1])
    (head,) = [event for event in there[1][0] if event["type"] == "agent"]
    assert [tool["name"] for tool in head["tools"]][-1] == "lint"
    assert there[0].splitlines()[-1] == "Agent finished"
    assert there[0].count("ToolCallStarted(") == local[0].count("ToolCallStarted(") == 2


@pytest.mark.slow
def test_message_passing_is_the_same(server: AgentServerProcess, tmp_path: Path) -> None:
    def answer(request: Request) -> Any:
        time.sleep(0.5)  # so that the second message always comes while the first is answered
        return text("Nothing to do.")

    local, there = run("message_passing", answer, tmp_path, server.url)
    # Whether the second message still comes before the first request is a race, here and there:
    # then there is one answer, else two.
    assert [summary_of(journal) for journal in there[1]] == [
        summary_of(journal) for journal in local[1]
    ]
    assert there[0] == local[0]


def summary_of(journal: list[dict[str, Any]]) -> list[Any]:
    """Return the messages, the answers, the agent, and the status at the end."""
    messages = [event["content"] for event in journal if event["type"] == "message"]
    answers = {event["text"] for event in journal if event["type"] == "assistant"}
    agents = [event for event in journal if event["type"] == "agent"]
    return [
        messages,
        answers,
        agents,
        [event["status"] for event in journal if event["type"] == "status"][-1:],
    ]


def placeless(journals: Any) -> Any:
    """Return journals without the folder that commands ran in, the seconds they took, and values
    that depend on these."""
    text_ = re.sub(
        r"/[^\s\"']*(?:/holdfast-\w+/workdir|/rooms/default/w-\w+)", "WORKDIR", json.dumps(journals)
    )
    text_ = re.sub(r"_logs/\S+?-debug", "_logs/debug", text_)
    text_ = re.sub(r'"(durationSeconds|requestHash)": [^,}]+', r'"\1": 0', text_)
    return json.loads(text_)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass
