"""Tests of the four programs of `examples/`, each run the way a user would, against a model server
on loopback."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import forks
from tests.model_server import ModelServer, Request, calls, text

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(
    name: str, answer: Callable[[Request], Any], folder: Path, *changes: tuple[str, str]
) -> tuple[str, list[Request]]:
    """Run an example unchanged but for the address (and `changes`), in `folder`. Returns its output
    and the requests of its models."""
    source = (EXAMPLES / f"{name}.py").read_text()
    with ModelServer(answer) as server:
        for old, new in (("http://127.0.0.1:8000/v1", server.url), *changes):
            assert old in source
            source = source.replace(old, new)
        program = folder / f"{name}.py"
        program.write_text(source)
        process = forks.run(
            [sys.executable, str(program)],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert process.returncode == 0, process.stderr
        return process.stdout, list(server.requests)


def last(request: Request) -> str:
    return str(request.messages[-1]["content"])


@pytest.mark.slow
def test_hello_calls_its_tool_and_finishes(tmp_path: Path) -> None:
    def answer(request: Request) -> Any:
        return (
            calls(("hello", {"name": "world"}))
            if request.messages[-1]["role"] == "user"
            else text("Said it.")
        )

    printed, requests = run("hello", answer, tmp_path)
    assert printed.splitlines() == ["Hello, world", "Agent finished"]
    assert requests[0].json["model"] == "claude-sonnet-4"
    schema = requests[0].json["tools"][0]["function"]["parameters"]
    assert schema["properties"] == {"name": {"type": "string", "description": "name to greet"}}
    assert schema["required"] == ["name"]


@pytest.mark.slow
def test_local_runtime_clones_lints_and_shows_every_event(tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    origin.mkdir()
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

    def answer(request: Request) -> Any:
        if request.messages[-1]["role"] == "user":
            terminal = next(
                t["function"]["name"]
                for t in request.json["tools"]
                if "command" in t["function"]["parameters"]["properties"]
            )
            return calls((terminal, {"command": "cat /tmp/Plan.md"}))
        if "do a flip" in last(request):
            return calls(("lint", {}))
        return text("Flipped.")

    printed, requests = run(
        "local_runtime", answer, tmp_path, ('"All-Hands-AI/OpenHands"', repr(str(origin)))
    )
    assert "do a flip" in printed
    assert "Flipped." in printed
    assert printed.splitlines()[-1] == "Agent finished"
    assert [t["function"]["name"] for t in requests[0].json["tools"]][-1] == "lint"
    assert len(requests) == 3


@pytest.mark.slow
def test_delegation_starts_three_conversations(tmp_path: Path) -> None:
    def answer(request: Request) -> Any:
        if last(request) == "Say hello to 'world'":
            return text("Hello, world")
        if request.messages[-1]["role"] == "tool":
            return text("Three are on their way.")
        return calls(*[("create_conversation", {"msg": f"flip coin {n}"}) for n in range(3)])

    printed, requests = run("delegation", answer, tmp_path)
    assert printed.splitlines()[-1] == "Agent finished"
    base = [request for request in requests if "3 OpenHands" in str(request.messages)]
    assert len(base) == 2
    assert [m["role"] for m in base[1].messages[-3:]] == ["tool"] * 3


@pytest.mark.slow
def test_message_passing_starts_both_and_shows_a_message_that_arrives(tmp_path: Path) -> None:
    def answer(request: Request) -> Any:
        question = last(request)
        if question.startswith("Test the react app"):
            return calls(("pass_message", {"msg": "The button is missing."}))
        return text("Added the button." if question == "The button is missing." else "Done.")

    printed, requests = run("message_passing", answer, tmp_path)
    lines = printed.splitlines()
    assert lines[0] == "Message to the implementer: The button is missing."
    assert lines[-2:] == ["Agents finished", "The implementer's last answer: Added the button."]
    questions = [
        [m["content"] for m in request.messages if m["role"] == "user"] for request in requests
    ]
    assert ["Test the react app and tell the implementer about any issues."] in questions, (
        "the tester is another conversation"
    )
    assert ["Build a hello world react app", "The button is missing."] in questions


@pytest.mark.parametrize("name", ["hello", "local_runtime", "delegation", "message_passing"])
def test_every_example_says_what_it_shows(name: str) -> None:
    assert (EXAMPLES / f"{name}.py").read_text().startswith('"""')
