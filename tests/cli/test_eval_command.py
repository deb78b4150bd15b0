"""`holdfast eval`: its exit codes and files, and an eval that is killed or stopped before its
end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli import main
from tests import forks
from tests.cli.test_commands import HOLDFAST, environment
from tests.model_server import ModelServer, Request, Stall, calls, text
from tests.waiting import until

AGENTS = """
from holdfast import LLM, Agent, ScriptedLLM, Tool

def look(what: str) -> str:
    "Looks."
    return what + " is green"

def answer(request):
    return "It is green."

def make(prompt):
    llm = LLM("m", api_key="k", base_url="{url}", prices={"input": 1.0, "output": 1.0})
    return Agent(llm, [Tool.from_function(look)], system_prompt=prompt)

def one():
    return make("one")

def two():
    return make("two")

green = Agent(ScriptedLLM(answer), system_prompt="green")
red = Agent(ScriptedLLM(lambda request: "It is red."), system_prompt="red")

def folder(runtime):
    def works(request):
        last = request.messages[-1]
        return "Done." if last["role"] == "tool" else ("terminal", {"command": "echo hi > out.txt"})
    return Agent(ScriptedLLM(works), runtime.tools)

def broken():
    raise RuntimeError("not\\ntoday")

def wants(a, b):
    return green

text = "no agent"
"""


def suite(folder: Path, count: int = 6, url: str = "http://127.0.0.1:9/v1") -> Path:
    """Write a suite of `count` cases and its agents to the folder."""
    folder.mkdir(exist_ok=True)
    lines = [
        {"id": f"c{number}", "input": f"Is thing {number} green?", "expected": "green"}
        for number in range(count)
    ]
    (folder / "cases.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (folder / "eval_agents.py").write_text(AGENTS.replace("{url}", url))
    return folder


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a suite in the current directory and return its folder."""
    folder = suite(tmp_path / "colours")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(__import__("sys").modules, "eval_agents", raising=False)
    return folder


def three_steps(request: Request) -> dict[str, Any]:
    """Answer with two tool calls and then with a text."""
    results = sum(one["role"] == "tool" for one in request.messages)
    return text("It is green.") if results == 2 else calls(("look", {"what": f"{results}"}))


def start(*arguments: str, cwd: Path, errors: Any = subprocess.PIPE) -> subprocess.Popen[str]:
    """Start `holdfast eval` as a process."""
    return forks.Popen(
        [*HOLDFAST, "eval", *arguments],
        cwd=cwd,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
    )


@pytest.mark.slow
def test_a_killed_eval_goes_on_and_asks_no_model_twice(tmp_path: Path) -> None:
    stalled: list[bytes] = []
    after = [7]

    def answer(request: Request) -> Any:
        if request.number >= after[0]:
            stalled.append(request.body)
            return Stall(60)
        return three_steps(request)

    with ModelServer(answer) as server:
        folder = suite(tmp_path / "s", 4, server.url)
        command = (".", "--agent", "eval_agents:one", "--agent", "eval_agents:two")
        options = ("--out", "out", "--parallel", "2")
        for more in (7, 5, 8):  # three kills, each while two requests wait for an answer
            process = start(*command, *options, cwd=folder)
            stalled_before = len(stalled)
            until(
                lambda stalled_before=stalled_before: len(stalled) == stalled_before + 2,
                "two requests wait",
                60,
            )
            process.kill()  # SIGKILL
            process.communicate(timeout=60)
            after[0] = len(server.requests) + more
        after[0] = 10_000
        process = start(*command, *options, cwd=folder)
        out, err = process.communicate(timeout=90)
        assert process.returncode == 0, err
        request_counts = Counter(request.body for request in server.requests)
    # 2 agents, 4 cases, 3 requests each. Requests that a kill left without an answer are repeated.
    assert len(request_counts) == 24
    assert request_counts == Counter(request_counts.keys()) + Counter(stalled)
    assert len(stalled) == 6
    assert "one (m): 100% passed" in out
    lines = [json.loads(line) for line in (folder / "out/results.jsonl").read_text().splitlines()]
    runs = [line for line in lines if line["type"] == "run"]
    assert {(run["outcome"], run["steps"]) for run in runs} == {("passed", 3)}
    assert (folder / "out/report.html").read_text().startswith("<!doctype html>")


@pytest.mark.slow
def test_ctrl_c_pauses_and_the_same_command_goes_on(tmp_path: Path) -> None:
    def answer(request: Request) -> Any:
        if request.number == 2:
            os.kill(process.pid, signal.SIGINT)
            until(lambda: "stopping" in errors_path.read_text(), "it says that it stops")
            time.sleep(0.5)  # the run polls every 0.2 s
        return three_steps(request)

    with ModelServer(answer) as server:
        folder = suite(tmp_path / "s", 2, server.url)
        command = (".", "--agent", "eval_agents:one", "--parallel", "1")
        errors_path = tmp_path / "errors"
        with errors_path.open("w") as errors:
            process = start(*command, cwd=folder, errors=errors)
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 130
        assert "missing, since the eval was stopped: one: c0, one: c1" in out
        assert len(server.requests) == 3
        process = start(*command, "--json", cwd=folder)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert [json.loads(line)["type"] for line in out.splitlines()] == ["run", "run", "agent"]
        assert "2 of 2 runs" in err
        assert len(server.requests) == 6


@pytest.mark.slow
def test_exit_codes_say_who_is_worse(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = ["--agent", "good=eval_agents:green", "--agent", "bad=eval_agents:red"]
    assert main(["eval", ".", *both[:2]]) == 0
    assert "good (scripted): 100% passed" in capsys.readouterr().out
    assert main(["eval", ".", *both]) == 1  # 6 of 6 cases lost: p = 0.031
    captured = capsys.readouterr()
    assert "bad is worse than good" in captured.err
    assert "bad got worse in c0: parts at step 1, answer" in captured.out
    assert "- It is green." in captured.out
    assert (here / "colours.eval" / "report.html").is_file()
    assert main(["eval", ".", *both[2:], "--fail-under", "0.5"]) == 1
    assert "bad passes 0.0%, less than 50.0%" in capsys.readouterr().err
    (here / "cases.jsonl").write_text('{"id": "c", "input": "Hi", "expected": "green"}')
    assert main(["eval", ".", *both]) == 0
    assert main(["eval", ".", *both, "--strict"]) == 1
    assert "bad got worse in 1 case" in capsys.readouterr().err


@pytest.mark.slow
def test_agents_of_files_and_functions_work_in_a_folder_of_each_run(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = {"id": "a", "input": "Go.", "score": {"command": "grep -q hi out.txt"}}
    (here / "cases.jsonl").write_text(json.dumps(case))
    (here / "agent.yaml").write_text(
        "model: {use: 'eval_agents:ScriptedLLM', parameters: {script: ['No.']}}\n"
        "tools: {builtin: [terminal]}\n"
    )
    arguments = ["--agent", "eval_agents:folder", "--agent", "agent.yaml", "--sandbox", "off"]
    assert main(["eval", ".", *arguments]) == 0
    out = capsys.readouterr().out
    assert "folder (scripted): 100% passed" in out
    assert "agent (scripted): 0% passed" in out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["."], "an eval needs an agent"),
        (["nowhere", "--agent", "eval_agents:green"], "there is no such suite"),
        ([".", "--agent", "eval_agents:nobody"], "nobody"),
        ([".", "--agent", "no_such_module:a"], "no_such_module"),
        ([".", "--agent", "none.yaml"], "there is no file 'none.yaml'"),
        ([".", "--agent", "eval_agents:text"], "is a str"),
        ([".", "--agent", "eval_agents:wants"], "several parameters"),
        ([".", "--agent", "eval_agents:broken"], "RuntimeError: not"),
        ([".", "--agent", "eval_agents:green", "--agent", "eval_agents:green"], "two agents are"),
        ([".", "--agent", "a/b=eval_agents:green"], "a name has letters"),
        ([".", "--agent", "eval_agents:green", "--max-cost", "1"], "of 'scripted' is not known"),
        (["empty.jsonl", "--agent", "eval_agents:green"], "has no cases"),
        (["wrong.jsonl", "--agent", "eval_agents:green"], "wrong.jsonl, line 2: "),
        (["raises.py", "--agent", "eval_agents:green"], "raises.py: KeyError"),
        (["agents.txt", "--agent", "eval_agents:green"], "a suite is a folder, or a file"),
    ],
)
def test_what_is_wrong_is_one_line_and_exit_2(
    here: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "empty.jsonl").write_text("\n")
    (here / "wrong.jsonl").write_text('{"id": "a", "input": "b", "expected": "c"}\n{"id": 1}\n')
    (here / "raises.py").write_text("{}['a']")
    (here / "agents.txt").write_text("")
    assert main(["eval", *arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
