"""A chat with an agent server shows what conversations below its own ask the user, and sends each
answer to the one that asked."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the server extra is not installed")

from holdfast import LLM, Agent, RemoteConversation, RemoteWorkspace
from holdfast.tools.preset.asking import register_asking_tools
from tests.cli.test_commands import Typist, command, terminal
from tests.cli.test_remote_command import KEY, AgentServer, env, holdfast
from tests.model_server import ModelServer, Request, calls, sse, text
from tests.waiting import until

QUESTION = r"The sub-agent (\S+) asks you:[\s\S]*ask_user asks: Which (\w+)\?"
FIELD = r"Answer[^\n]*\(text\): "
PROMPT = r"\[y,n,e,a,q\] "


def answer(request: Request) -> Any:
    """Delegate each word of the user's message. A worker asks about its word, runs a command, and
    says what it was told."""
    results = [one["content"] for one in request.messages if one["role"] == "tool"]
    last = [one["content"] for one in request.messages if one["role"] == "user"][-1]
    if "You are the worker." in str(request.messages[0]["content"]):
        ask = calls(("ask_user", {"question": f"Which {last}?"}))
        steps = [ask, command(f"echo {last} >> made"), text(f"Told: {results[:1]}")]
        reply = steps[len(results)]
    elif results:
        reply = text(f"They ended. {' '.join(results)}")
    else:
        words = [("delegate", {"agent": "worker", "task": word}) for word in str(last).split()]
        reply = calls(*words)
    return sse(reply) if request.json.get("stream") else reply


def make(server: AgentServer, model: ModelServer, id: str) -> None:
    """Make a conversation whose agent has a delegate that asks."""
    llm = LLM("m", api_key="sk", base_url=model.url, max_retries=0)
    with RemoteWorkspace(server.url, KEY) as workspace:
        run = [tool for tool in workspace.tools if tool.name == "terminal"]
        worker = Agent(
            llm,
            [*run, *register_asking_tools()],
            system_prompt="You are the worker.",
            description="Works.",
            confirm=["terminal"],
        )
        lead = Agent(llm, run, delegates={"worker": worker})
        RemoteConversation(lead, workspace, id, on_question="wait_all").detach()


def attached(server: AgentServer, id: str) -> Any:
    return terminal("chat", "--server", server.url, "--id", id, **env())


def answers(typist: Typist, value: str) -> tuple[str, str]:
    """Answer the next question. Return who asked, and about what."""
    match = re.search(QUESTION, typist.sees(FIELD))
    assert match
    typist.types(f"{value}\r")
    typist.sees(r"Send this to ask_user\? \[y,n,e\] ")
    typist.types("y\r")
    return match[1], match[2]


def approves(typist: Typist) -> str:
    """Approve the next call. Return who waits for it."""
    output = typist.sees(PROMPT)
    match = re.search(r"The sub-agent (\S+) waits for you:[\s\S]*\$ echo \w+ >> made", output)
    assert match, output
    typist.types("y\r")
    return match[1]


def ends(typist: Typist) -> str:
    """Return the agent's last words, and leave the chat."""
    output = typist.sees(r"They ended\.[\s\S]*> ")
    typist.types("/exit\r")
    assert typist.leaves() == 0
    return output


@pytest.mark.slow
def test_two_sub_agents_ask_at_once_and_each_gets_its_own_answer(tmp_path: Path) -> None:
    with ModelServer(answer) as model, AgentServer(tmp_path) as server:
        make(server, model, "team")
        with attached(server, "team") as typist:
            typist.sees("> ")
            typist.types("colour size\r")
            told = dict([answers(typist, "first"), answers(typist, "second")])
            assert sorted(told.values()) == ["colour", "size"]
            assert {approves(typist), approves(typist)} == {*told}
            output = ends(typist)
        ends_of = re.findall(r"The user answers: (\w+)'\]\s+\[worker: conversation (\S+)\]", output)
        assert {child: word for word, child in ends_of} == dict(
            zip(told, ("first", "second"), strict=True)
        )
        made = next(tmp_path.glob("agents.db.workspaces/**/made")).read_text()
        assert sorted(made.split()) == ["colour", "size"]


@pytest.mark.slow
def test_a_client_that_was_killed_is_asked_again_when_it_comes_back(tmp_path: Path) -> None:
    with ModelServer(answer) as model, AgentServer(tmp_path) as server:
        make(server, model, "team")
        with attached(server, "team") as typist:
            typist.sees("> ")
            typist.types("colour\r")
            typist.sees(FIELD)
            typist.process.kill()
        with attached(server, "team") as typist:
            assert answers(typist, "red")[1] == "colour"
            typist.sees(PROMPT)
            typist.process.kill()
        with attached(server, "team") as typist:
            approves(typist)
            assert "red" in ends(typist)


@pytest.mark.slow
def test_a_server_that_was_killed_has_the_question_and_the_call_asked_again(tmp_path: Path) -> None:
    with ModelServer(answer) as model, AgentServer(tmp_path) as server:
        make(server, model, "team")
        with attached(server, "team") as typist:
            typist.sees("> ")
            typist.types("colour\r")
            typist.sees(FIELD)
            server.kill()
            typist.sees("cannot be reached now")
            server.start()
            typist.sees("no longer waits for an answer")
            assert answers(typist, "red")[1] == "colour"
            typist.sees(PROMPT)
            server.kill()
            typist.sees("cannot be reached now")
            typist.types("y\r")
            typist.sees("The server may not know of your answer")
            server.start()
            approves(typist)
            assert "red" in ends(typist)


@pytest.mark.slow
def test_without_a_terminal_a_call_below_that_waits_ends_the_command(tmp_path: Path) -> None:
    with ModelServer(answer) as model, AgentServer(tmp_path) as server:
        make(server, model, "team")
        with attached(server, "team") as typist:
            typist.sees("> ")
            typist.types("colour\r")
            child, _ = answers(typist, "red")
            typist.sees(PROMPT)
            typist.process.kill()
        ended = holdfast("run", "more", "--server", server.url, "--id", "team", **env())
        assert ended.returncode == 3
        assert f"calls of the sub-agent {child} are left waiting" in ended.stderr
        match = re.search(r"approve with: holdfast (tell .*)", ended.stderr)
        assert match
        assert holdfast(*match[1].split(), **env()).returncode == 0
        until(lambda: [*tmp_path.glob("agents.db.workspaces/**/made")])
