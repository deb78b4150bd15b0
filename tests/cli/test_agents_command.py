"""`--agents DIR`: the agent delegates work to other agents. The lines of each agent name it, and
its calls need confirmation like the agent's own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli import main
from tests.cli.test_commands import holdfast, options, sse, terminal
from tests.model_server import ModelServer, Request, calls, text

PROMPT = r"\[y,n,e,a,q\] "


def agents(folder: Path, tool: str = "terminal") -> list[str]:
    """Define an agent with one tool in the folder, and return the options that load it."""
    path = folder / "team" / "worker.md"
    path.parent.mkdir()
    path.write_text(
        f"---\ndescription: Does what it is told.\ntools: [{tool}]\n---\nYou are the worker.\n"
    )
    return ["--agents", str(path.parent)]


def answer(request: Request) -> Any:
    """Answer for both models: the worker runs a command, and the other model delegates to it."""
    worker = "You are the worker." in str(request.messages[0]["content"])
    first = request.messages[-1]["role"] == "user"
    if worker:
        reply = (
            calls(("terminal", {"command": "echo made > made"})) if first else text("It is made.")
        )
    else:
        reply = (
            calls(("delegate", {"agent": "worker", "task": "Make it."}))
            if first
            else text("The worker made it.")
        )
    return sse(reply) if request.json.get("stream") else reply


@pytest.mark.slow
def test_the_other_agent_works_in_the_same_folder_and_is_shown_in_its_line(tmp_path: Path) -> None:
    with ModelServer(answer) as server:
        ended = holdfast(
            "run",
            "x",
            *options(server, tmp_path),
            *agents(tmp_path),
            "--store",
            str(tmp_path / "s.db"),
            "--new",
            "--id",
            "one",
        )
        assert ended.returncode == 0, ended.stderr
        assert (tmp_path / "made").exists()
        assert "worker: 2 steps" in ended.stdout
        assert re.search(r"^    worker \(one\.\d+\.0\): running", ended.stdout, re.MULTILINE)
        assert "The worker made it." in ended.stdout
        assert f"--agents {tmp_path / 'team'}" in ended.stderr


@pytest.mark.slow
def test_without_a_terminal_a_call_of_its_that_waits_ends_the_command_and_says_how_to_approve_it(
    tmp_path: Path,
) -> None:
    more = [
        "--confirm",
        "terminal",
        "--store",
        str(tmp_path / "s.db"),
        "--new",
        "--id",
        "one",
        *agents(tmp_path),
    ]
    with ModelServer(answer) as server:
        ended = holdfast("run", "x", *options(server, tmp_path), *more)
        assert ended.returncode == 3
        assert "calls of the sub-agent " in ended.stderr
        assert " are left waiting for confirmation." in ended.stderr
        match = re.search(r"approve with: holdfast tell (\S+) (one\.\d+\.0) approve", ended.stderr)
        assert match
        assert holdfast("tell", match[1], match[2], "approve").returncode == 0
        more.remove("--new")
        last = holdfast("chat", *options(server, tmp_path), *more)
        assert (last.returncode, (tmp_path / "made").exists()) == (0, True)
        assert "The worker made it." in last.stdout


@pytest.mark.slow
def test_at_a_terminal_its_calls_are_asked_about_like_one_s_own(tmp_path: Path) -> None:
    team = agents(tmp_path)
    with (
        ModelServer(answer) as server,
        terminal("run", "x", *options(server, tmp_path), "--confirm", "terminal", *team) as typist,
    ):
        output = typist.sees(PROMPT)
        assert "The sub-agent " in output
        assert " waits for you:" in output
        assert "$ echo made > made" in output
        typist.types("y\n")
        typist.sees("The worker made it.")
    assert (tmp_path / "made").exists()


def test_a_folder_without_agents_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ["--model", "m", "--base-url", "http://127.0.0.1:9/v1", "--workdir", str(tmp_path)]
    assert main(["run", "x", *model, "--agents", str(tmp_path)]) == 2
    assert "no readable agent was found" in capsys.readouterr().err
    assert main(["run", "x", *model, "--agents", str(tmp_path / "no")]) == 2
    assert "--agents takes a folder" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("command", [("run", "x"), ("chat",)])
def test_at_a_terminal_its_questions_are_asked_like_ones_own(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    def asking(request: Request) -> Any:
        worker = "You are the worker." in str(request.messages[0]["content"])
        last = request.messages[-1]
        if not worker:
            return answer(request)
        if last["role"] == "user":
            reply = calls(("ask_user", {"question": "Which colour?"}))
        else:
            reply = text(f"Told: {last['content']}")
        return sse(reply) if request.json.get("stream") else reply

    team = agents(tmp_path, "ask_user")
    with (
        ModelServer(asking) as server,
        terminal(*command, *options(server, tmp_path), "--ask", *team) as typist,
    ):
        if command == ("chat",):
            typist.sees("> ")
            typist.types("x\r")
        output = typist.sees(r"Answer[^\n]*\(text\): ")
        assert re.search(r"The sub-agent \S+ asks you:", output)
        assert "ask_user asks: Which colour?" in output
        typist.types("red\r")
        typist.sees(r"Send this to ask_user\? \[y,n,e\] ")
        typist.types("y\r")
        typist.sees("The worker made it.")
    (tool_result,) = [
        one.messages[-1]["content"]
        for one in server.requests
        if "You are the worker." in str(one.messages[0]["content"])
        and one.messages[-1]["role"] == "tool"
    ]
    assert "red" in tool_result
