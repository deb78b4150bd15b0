"""Tests of the questions of MCP servers within a conversation: for its user, its agent's model and
its folders; over both transports and eras."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    Agent,
    Conversation,
    ConversationStatus,
    LocalRuntime,
    MCPClient,
    ScriptedLLM,
    SQLiteStore,
    ToolManager,
)
from holdfast import events as ev
from holdfast.content import ToolResult
from holdfast.errors import ConfigurationError
from holdfast.tools.config import read
from holdfast.tools.mcp import MCPPool
from tests import forks
from tests.paths import DATA, REPO
from tests.waiting import until

SERVER = str(DATA / "mcp_asking_server.py")
OLD, NEW = "2025-11-25", "2026-07-28"
WAYS = [f"{kind} {mode}" for kind in ("stdio", "http") for mode in (OLD, NEW)]
S = ConversationStatus
ASK = ("srv.ask", {"message": "Who are you?"})


@pytest.fixture(scope="module")
def port() -> Iterator[str]:
    with forks.Popen(
        [sys.executable, SERVER, "http"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.terminate()


@pytest.fixture(params=WAYS)
def server(request: pytest.FixtureRequest, port: str) -> dict[str, Any]:
    kind, mode = request.param.split()
    return stdio(mode) if kind == "stdio" else http(mode, port)


@pytest.fixture(params=[OLD, NEW])
def web(request: pytest.FixtureRequest, port: str) -> dict[str, Any]:
    """Return a server that runs already, for tests that do not depend on the transport."""
    return http(request.param, port)


def stdio(mode: str, **more: Any) -> dict[str, Any]:
    return {"command": sys.executable, "args": [SERVER], "mode": mode, **more}


def http(mode: str, port: str, **more: Any) -> dict[str, Any]:
    return {"url": f"http://127.0.0.1:{port}/mcp", "mode": mode, **more}


def agent_of(
    server: dict[str, Any], script: list[Any], pool: MCPPool | None = None, **client: Any
) -> Agent:
    return Agent(
        ScriptedLLM(script),
        ToolManager(
            sources=MCPClient({"srv": server}, pool=pool, **client).sources(), discover=False
        ),
    )


def results(conversation: Conversation) -> list[ToolResult]:
    return [
        event.result
        for event in conversation.get_history()
        if isinstance(event, ev.ToolCallFinished)
    ]


def ran(agent: Agent, **options: Any) -> tuple[list[ToolResult], list[ev.DecisionMade]]:
    with Conversation(agent, **options) as conversation:
        conversation.send_message("go")
        assert conversation.run().status is S.FINISHED
        return results(conversation), [
            event for event in conversation.get_history() if isinstance(event, ev.DecisionMade)
        ]


# --- the user ---


@pytest.mark.slow
def test_a_server_asks_the_user_of_the_conversation_that_calls_it(server: dict[str, Any]) -> None:
    questions: list[ev.Question] = []

    def on_question(question: ev.Question) -> dict[str, Any]:
        questions.append(question)
        return {"name": "Ada"}

    [result], [question, answer] = ran(agent_of(server, [ASK, "Done."]), on_question=on_question)
    assert result.text == "accept: name='Ada' colour='green'"
    assert question.question == questions[0]
    assert (questions[0].message, questions[0].asker, question.by, question.decision) == (
        "Who are you?",
        "srv",
        "srv",
        "ask",
    )
    assert answer.arguments == {"name": "Ada", "colour": "green"}


@pytest.mark.slow
def test_the_user_declines_and_the_server_hears_it(web: dict[str, Any]) -> None:
    for on_question, count in ((None, 0), (lambda question: None, 2)):
        [result], decisions = ran(agent_of(web, [ASK, "Done."]), on_question=on_question)
        assert (result.text.split(":")[0], len(decisions)) == ("decline", count)


@pytest.mark.slow
def test_an_answer_from_elsewhere_reaches_the_server_and_no_deadline_runs_meanwhile(
    server: dict[str, Any],
) -> None:
    agent = agent_of({**server, "call_timeout": 0.5}, [ASK, "Done."])
    with Conversation(agent, on_question="wait") as conversation:
        conversation.start_thread()
        conversation.send_message("go")
        until(lambda: conversation.state.pending_questions)
        assert not threading.Event().wait(0.8)  # longer than the call may take
        conversation.answer(values={"name": "Bob", "colour": "red"})
        assert conversation.wait(30) is S.FINISHED
        assert results(conversation)[0].text == "accept: name='Bob' colour='red'"


def test_an_interrupt_takes_the_question_back(web: dict[str, Any]) -> None:
    with Conversation(agent_of(web, [ASK, "Done."]), on_question="wait") as conversation:
        conversation.start_thread()
        conversation.send_message("go")
        until(lambda: conversation.state.pending_questions)
        conversation.interrupt()
        assert conversation.wait(30) is S.PAUSED
        assert conversation.state.pending_questions == ()
        assert results(conversation)[0].is_error


def test_a_hook_that_the_client_was_given_comes_before_the_conversation(
    web: dict[str, Any],
) -> None:
    agent = agent_of(web, [ASK, "Done."], elicit=lambda question: {"name": "explicit"})
    [result], decisions = ran(agent, on_question=lambda question: {"name": "user"})
    assert "explicit" in result.text
    assert decisions == []


def test_a_function_that_raises_is_no_answer_and_the_call_goes_on(web: dict[str, Any]) -> None:
    def on_question(question: ev.Question) -> None:
        raise RuntimeError("mine")

    [result], [_, answer] = ran(agent_of(web, [ASK, "Done."]), on_question=on_question)
    assert result.text.startswith("decline")
    assert answer.reason == "on_question raised RuntimeError"


@pytest.mark.slow
def test_an_address_is_told_with_who_asks_and_only_that_of_a_page() -> None:
    script = [
        [("srv.visit", {"url": "https://login.example/x?y=1"})],
        [("srv.visit", {"url": "file:///etc/passwd"})],
        "Done.",
    ]
    questions: list[ev.Question] = []
    results, _ = ran(
        agent_of(stdio(OLD), script),
        on_question=lambda question: questions.append(question) or True,
    )
    assert [result.text for result in results] == ["accept", "decline"]
    assert [(one.url, one.asker, one.schema) for one in questions] == [
        ("https://login.example/x?y=1", "srv", None)
    ]


# --- connections that conversations share ---


@pytest.mark.slow
def test_nobody_is_asked_anothers_question_on_a_shared_connection(port: str) -> None:
    for server in (
        stdio(NEW),
        http(NEW, port),
        http(OLD, port),
    ):  # over HTTP the older era, too, names the call
        with MCPPool() as pool, ExitStack() as stack:
            conversations = [
                stack.enter_context(
                    Conversation(
                        agent_of(server, [("srv.ask", {"message": name}), "Done."], pool),
                        id=name,
                        on_question="wait",
                    )
                )
                for name in ("a", "b", "c")
            ]
            for conversation in conversations:
                conversation.start_thread()
                conversation.send_message("go")
            for conversation in conversations:
                until(
                    lambda conversation=conversation: len(conversation.state.pending_questions) == 1
                )
            assert len(pool) == 1
            for conversation in conversations:
                for _, question in conversation.state.pending_questions:
                    assert question.message == conversation.id
                    conversation.answer(question.id, {"name": f"user of {conversation.id}"})
            for conversation in conversations:
                assert conversation.wait(30) is S.FINISHED
                assert {result.text for result in results(conversation)} == {
                    f"accept: name='user of {conversation.id}' colour='green'"
                }


@pytest.mark.slow
def test_what_the_older_era_leaves_open_is_declined_and_the_log_says_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    working = threading.Event()
    with MCPPool() as pool:
        busy = Conversation(
            agent_of(stdio(OLD), [("srv.steps", {"count": 100_000}), "Done."], pool),
            on_progress=lambda call_id, message: working.set(),
        )
        asking = Conversation(
            agent_of(stdio(OLD), [ASK, "Done.", ASK, "Done."], pool),
            on_question=lambda question: {"name": "mine"},
        )
        with busy, asking:
            busy.start_thread()
            busy.send_message("go")
            assert working.wait(30)
            with caplog.at_level(logging.WARNING, "holdfast"):
                asking.send_message("go")
                asking.run()
            assert results(asking)[0].text.startswith("decline")
            assert "'srv': its question to the user was declined" in caplog.text
            assert "2 conversations have calls in flight on this connection" in caplog.text
            busy.interrupt()
            busy.wait(30)
            asking.send_message("again")
            asking.run()
            assert "mine" in results(asking)[1].text


@pytest.mark.slow
def test_the_oldest_call_is_asked_for_where_all_in_flight_are_one_conversations() -> None:
    questions: list[ev.Question] = []

    def on_question(question: ev.Question) -> dict[str, Any]:
        questions.append(question)
        return {"name": "x"}

    with Conversation(
        agent_of(stdio(OLD), [[ASK, ASK], "Done."]), on_question=on_question
    ) as conversation:
        conversation.send_message("go")
        assert conversation.run().status is S.FINISHED
        assert [result.text for result in results(conversation)] == [
            "accept: name='x' colour='green'"
        ] * 2
    assert len(questions) == 2


# --- the agent's model ---


@pytest.mark.slow
def test_the_agents_model_answers_where_the_configuration_allows_it(server: dict[str, Any]) -> None:
    agent = agent_of({**server, "sampling": True}, [("srv.think", {}), "It.", "Done."])
    [result], _ = ran(agent)
    assert result.text == "scripted: It."
    [used] = result.meta["holdfast/sampling"]
    assert used["model"] == "scripted"
    assert set(used["usage"]) <= {
        "inputTokens",
        "outputTokens",
        "cachedTokens",
        "cacheWriteTokens",
        "reasoningTokens",
    }


@pytest.mark.slow
def test_without_the_key_the_capability_is_not_even_declared(web: dict[str, Any]) -> None:
    [without], _ = ran(agent_of(web, [("srv.declared", {}), "Done."]))
    [allowed], _ = ran(agent_of({**web, "sampling": True}, [("srv.declared", {}), "Done."]))
    assert "sampling" not in without.data["result"]
    assert "sampling" in allowed.data["result"]
    [refused], _ = ran(agent_of(web, [("srv.think", {}), "Done."]))
    assert refused.is_error
    assert "holdfast/sampling" not in refused.meta


@pytest.mark.slow
def test_outside_of_an_agent_nobody_answers_and_a_given_model_comes_first() -> None:
    server = stdio(NEW, sampling=True)
    model = ScriptedLLM(["given."])
    [result], _ = ran(agent_of(server, [("srv.think", {}), "Done."], sample=model))
    assert result.text == "scripted: given."
    assert "holdfast/sampling" not in result.meta
    with ToolManager(sources=MCPClient({"srv": server}).sources(), discover=False) as manager:
        manager.discover()
        with pytest.raises(Exception, match="no model that could answer"):
            manager.call("srv.think")


@pytest.mark.slow
def test_one_call_gets_at_most_32_completions() -> None:
    llm = ScriptedLLM(
        lambda request: ("srv.think_often", {"count": 40}) if request.number == 0 else "It."
    )
    agent = Agent(
        llm,
        ToolManager(
            sources=MCPClient({"srv": stdio(OLD, sampling=True)}).sources(), discover=False
        ),
    )
    [result], _ = ran(agent)
    assert result.text.startswith("32: A call may ask for 32 completions")
    assert len(result.meta["holdfast/sampling"]) == 32


# --- folders ---


@pytest.mark.slow
def test_a_server_is_told_the_folder_of_the_runtime(server: dict[str, Any], tmp_path: Path) -> None:
    with LocalRuntime(tmp_path) as runtime:
        [result], _ = ran(agent_of(server, [("srv.folders", {}), "Done."]), runtime=runtime)
    assert result.data == {"result": [tmp_path.resolve().as_uri()]}


@pytest.mark.slow
def test_explicit_folders_come_first_and_roots_false_tells_none(tmp_path: Path) -> None:
    with LocalRuntime(tmp_path) as runtime:
        [result], _ = ran(
            agent_of(stdio(NEW), [("srv.folders", {}), "Done."], roots=["/elsewhere"]),
            runtime=runtime,
        )
        assert result.data == {"result": ["file:///elsewhere"]}
        [result], _ = ran(
            agent_of(stdio(NEW, roots=False), [("srv.declared", {}), "Done."]), runtime=runtime
        )
        assert "roots" not in result.data["result"]


@pytest.mark.slow
def test_folders_follow_the_open_conversations_and_a_pool_still_shares(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    uris = [folder.resolve().as_uri() for folder in folders]
    look = [("srv.folders", {}), ("srv.roots_changed", {})]
    with MCPPool() as pool, LocalRuntime(folders[0]) as first, LocalRuntime(folders[1]) as second:
        one = Conversation(agent_of(stdio(OLD), [*([look, "Done."] * 200)], pool), runtime=first)
        two = Conversation(agent_of(stdio(OLD), [look, "Done."], pool), runtime=second)

        def looked() -> tuple[list[str], int]:
            one.send_message("look")
            one.run()
            roots_before, roots_after = sorted(
                [event for event in one.get_history() if isinstance(event, ev.ToolCallFinished)][
                    -2:
                ],
                key=lambda event: event.call_id,
            )
            return roots_before.result.data["result"], roots_after.result.data["result"]

        with one:
            assert looked() == (uris[:1], 0)
            with two:
                two.send_message("look")
                two.run()
                assert {"result": uris} in [
                    result.data for result in results(two)
                ]  # the older era has one list for the connection
                assert len(pool) == 1
                until(lambda: looked() == (uris, 1))
            until(lambda: looked() == (uris[:1], 2))


@pytest.mark.slow
def test_in_the_new_era_a_conversation_tells_only_its_own_folder(tmp_path: Path) -> None:
    with MCPPool() as pool, ExitStack() as stack:
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            runtime = stack.enter_context(LocalRuntime(tmp_path / name))
            agent = agent_of(stdio(NEW), [("srv.folders", {}), "Done."], pool)
            conversation = stack.enter_context(Conversation(agent, runtime=runtime))
            conversation.send_message("go")
            conversation.run()
            assert results(conversation)[0].data == {
                "result": [(tmp_path / name).resolve().as_uri()]
            }
        assert len(pool) == 1


# --- a kill, the configuration ---

KILLED = """
import sys, threading
sys.path.insert(0, sys.argv[2])
from tests.tools.test_mcp_questions import ASK, agent_of, stdio
from holdfast import Conversation, SQLiteStore
conversation = Conversation(agent_of(stdio("2026-07-28"), [ASK, "Done."]), SQLiteStore(sys.argv[1]), "c", on_question="wait")
conversation.start_thread()
conversation.send_message("go")
threading.Event().wait()
"""


@pytest.mark.slow
def test_after_a_kill_the_call_is_told_as_unknown_and_no_question_is_left(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    process = forks.Popen([sys.executable, "-c", KILLED, str(path), str(REPO)])
    try:
        with SQLiteStore(path) as store:
            until(lambda: any(isinstance(event, ev.DecisionMade) for event in store.read("c")))
            process.kill()
            process.wait()
            with Conversation(
                agent_of(stdio(NEW), ["Done."]), store, "c", on_question="wait"
            ) as conversation:
                assert len(conversation.state.pending_questions) == 1
                conversation.run()
                assert conversation.state.pending_questions == ()
                # the server is not trusted, so nothing is repeated
                assert "outcome is unknown" in results(conversation)[0].text
    finally:
        process.kill()
        process.wait()


def test_sampling_is_a_key_of_the_configuration() -> None:
    with pytest.raises(ConfigurationError, match=r"'srv': sampling: Expected `bool`"):
        MCPClient({"srv": {"command": "x", "sampling": "yes"}})
    read({"mcp_servers": {"srv": {"command": "x", "sampling": True, "roots": False}}})
    with pytest.raises(ConfigurationError, match="sampling"):
        read({"mcp_servers": {"srv": {"command": "x", "sampling": "yes"}}})
