"""Conversations with a real `LLM` over real sockets: streams, faults, interrupts, and a check
for leftovers and leaks."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast import LLM, Agent, Conversation, ConversationStatus, LocalRuntime, SQLiteStore, tool
from holdfast import events as ev
from tests.model_server import Drop, ModelServer, Request, Stall, calls, sse, text

SECRET = "sk-planted-4f1d9c"


@tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def sockets() -> list[str]:
    targets: list[str] = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
        if target.startswith("socket:"):
            targets.append(target)
    return targets


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
def test_a_conversation_is_the_same_plain_and_streamed(stream: bool) -> None:
    answers = [calls(("add", {"a": 1, "b": 2})), text("3")]
    deltas: list[str] = []
    with ModelServer([sse(answer) for answer in answers] if stream else answers) as server:
        agent = Agent(LLM("m", SECRET, server.url, stream=stream), [add])
        with Conversation(agent, on_delta=lambda delta: deltas.append(delta.text)) as conversation:
            conversation.send_message("1 + 2?")
            state = conversation.run()
            assert (state.status, state.answer) == (ConversationStatus.FINISHED, "3")
            assert state.usage.input_tokens > 0
        assert [m["role"] for m in server.requests[1].messages] == [
            "system",
            "user",
            "assistant",
            "tool",
        ]
        assert bool(deltas) is stream


def test_passing_faults_are_retried_and_leave_no_trace_in_the_journal() -> None:
    with ModelServer(
        [(429, {"retry-after": "0"}, "slow down"), (503, {}, "busy"), Drop(), text("at last")]
    ) as server:
        with Conversation(Agent(LLM("m", SECRET, server.url))) as conversation:
            conversation.send_message("hello?")
            state = conversation.run()
        assert state.answer == "at last"
        assert [event.type for event in state.events] == [
            "message",
            "status",
            "agent",
            "assistant",
            "status",
        ]
        assert len({request.body for request in server.requests}) == 1


@pytest.mark.parametrize(
    ("response", "error"),
    [
        (
            (
                401,
                {},
                {"error": {"message": f"Incorrect API key: {SECRET}", "code": "invalid_api_key"}},
            ),
            "AuthenticationError",
        ),
        (
            (404, {}, {"error": {"message": "no such model", "code": "model_not_found"}}),
            "ModelNotFound",
        ),
        (
            (400, {}, {"error": {"message": "too long", "code": "context_length_exceeded"}}),
            "ContextTooLong",
        ),
        ((403, {}, "<html>forbidden</html>"), "PermissionDenied"),
    ],
)
def test_a_lasting_error_stops_the_run_and_says_which(
    response: Any, error: str, caplog: pytest.LogCaptureFixture
) -> None:
    with ModelServer([response]) as server, caplog.at_level(logging.DEBUG):
        with Conversation(Agent(LLM("m", SECRET, server.url))) as conversation:
            conversation.send_message("hello?")
            state = conversation.run()
        assert state.status is ConversationStatus.ERROR
        assert state.error is not None
        assert state.error.error == error
        assert SECRET.encode() not in state.to_json()
        assert SECRET not in caplog.text


def test_a_model_that_cannot_be_reached_is_an_error_that_names_the_address() -> None:
    with Conversation(
        Agent(LLM("m", SECRET, "http://127.0.0.1:9/v1", max_retries=0))
    ) as conversation:
        conversation.send_message("hello?")
        state = conversation.run()
    assert state.error is not None
    assert state.error.error == "LLMConnectionError"
    assert "127.0.0.1:9" in state.error.message


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
def test_interrupt_ends_a_model_call_that_says_nothing(stream: bool) -> None:
    server = ModelServer([Stall(30), text("after all")])
    with server, Conversation(Agent(LLM("m", SECRET, server.url, stream=stream))) as conversation:
        conversation.start_thread()
        conversation.send_message("hello?")
        while not server.requests:
            time.sleep(0.005)
        began = time.monotonic()
        conversation.interrupt()
        assert conversation.wait(30) is ConversationStatus.PAUSED
        assert time.monotonic() - began < 20
        conversation.resume()
        assert conversation.wait(30) is ConversationStatus.FINISHED


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
def test_arguments_that_are_no_json_are_told_and_the_next_request_is_legal(stream: bool) -> None:
    answers = [calls(("add", '{"a": 1, "b"')), calls(("add", {"a": "1", "b": 2})), text("3")]
    with ModelServer([sse(answer) for answer in answers] if stream else answers) as server:
        with Conversation(
            Agent(LLM("m", SECRET, server.url, stream=stream), [add])
        ) as conversation:
            conversation.send_message("1 + 2?")
            state = conversation.run()
        first, second = [
            event.result for event in state.events if isinstance(event, ev.ToolCallFinished)
        ]
        assert first.is_error
        assert "JSON" in first.text
        assert second.text == "3"  # a number in quotes is read as one
        assert state.answer == "3"
        echoed = server.requests[1].messages[2]["tool_calls"][0]["function"]["arguments"]
        assert isinstance(
            json.loads(echoed), dict
        )  # some servers parse their input, and would refuse it in each later request
    assert (
        next(event for event in state.events if isinstance(event, ev.AssistantReplied)).calls[0].raw
        == '{"a": 1, "b"'
    )


def test_close_leaves_no_socket_and_no_thread() -> None:
    with ModelServer(lambda request: text("hi")) as server:
        before, threads = len(sockets()), threading.active_count()
        agent = Agent(LLM("m", SECRET, server.url))
        first, second = Conversation(agent), Conversation(agent)
        for conversation in (first, second):
            conversation.send_message("hello?")
            conversation.run()
        first.close()
        assert (
            len(list(sockets())) > before
        )  # the agent's connection lives as long as one of its conversations is open
        second.close()
        deadline = time.monotonic() + 20
        while (
            len(sockets()) > before or threading.active_count() > threads
        ) and time.monotonic() < deadline:
            time.sleep(0.01)  # the server's own side of the connection ends a moment later
        assert len(sockets()) == before
        assert threading.active_count() == threads


def children() -> set[int]:
    """Return the ids of all processes that descend from this one."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        try:
            if name.isdigit():
                parents[int(name)] = int(
                    Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1]
                )
        except OSError:
            continue
    mine = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in mine} - mine:
        mine |= more
    return mine - {os.getpid()}


def test_close_in_the_middle_of_a_command_leaves_no_process() -> None:
    before, threads = children(), threading.active_count()
    with (
        ModelServer([calls(("terminal", {"command": "sleep 321 & sleep 322"}))]) as server,
        LocalRuntime() as runtime,
    ):
        conversation = Conversation(Agent(LLM("m", SECRET, server.url), runtime.tools))
        conversation.start_thread()
        conversation.send_message("go")
        deadline = time.monotonic() + 20
        while not any(
            b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes()
            for pid in children() - before
            if Path(f"/proc/{pid}").exists()
        ):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        began = time.monotonic()
        conversation.close()
        assert time.monotonic() - began < 4, "a command may take 5 seconds to end"
        assert children() - before == set()
    deadline = time.monotonic() + 20
    while threading.active_count() > threads and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == threads


def test_a_planted_key_is_nowhere_but_on_the_wire(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    events_seen: list[str] = []

    def answer(request: Request) -> Any:
        assert request.headers["authorization"] == f"Bearer {SECRET}"
        return (
            calls(("add", {"a": 1, "b": 2}))
            if request.messages[-1]["role"] == "user"
            else (500, {}, f"{SECRET} is what I was sent")
        )

    with (
        ModelServer(answer) as server,
        SQLiteStore(tmp_path / "s.db") as store,
        caplog.at_level(logging.DEBUG),
    ):
        llm = LLM("m", SECRET, server.url, max_retries=0)
        agent = Agent(llm, [add])
        with Conversation(agent, store) as conversation:
            conversation.register_event_callback(lambda event: events_seen.append(repr(event)))
            conversation.send_message("go")
            state = conversation.run()
            assert state.status is ConversationStatus.ERROR
        for text in (
            repr(llm),
            repr(agent),
            repr(conversation),
            repr(state),
            caplog.text,
            *events_seen,
            str(llm.parameters()),
        ):
            assert SECRET not in text
        assert SECRET.encode() not in state.to_json()
    for path in tmp_path.iterdir():
        assert SECRET.encode() not in path.read_bytes()


@pytest.mark.slow
def test_a_hundred_conversations_share_one_agent() -> None:
    def answer(request: Request) -> Any:
        turns = sum(m["role"] == "tool" for m in request.messages)
        return (
            calls(("add", {"a": turns, "b": 1}))
            if turns < 3
            else text(request.messages[1]["content"])
        )

    with ModelServer(answer) as server:
        agent = Agent(LLM("m", SECRET, server.url), [add])
        conversations = [Conversation(agent) for _ in range(100)]
        for number, conversation in enumerate(conversations):
            conversation.start_thread()
            conversation.send_message(f"number {number}")
        for number, conversation in enumerate(conversations):
            assert conversation.wait(30) is ConversationStatus.FINISHED
            assert conversation.state.answer == f"number {number}"
            sums = [
                event.result.text
                for event in conversation.get_history()
                if isinstance(event, ev.ToolCallFinished)
            ]
            assert sums == ["1", "2", "3"]
        for conversation in conversations:
            conversation.close()
