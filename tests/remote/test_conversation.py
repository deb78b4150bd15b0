"""Tests of `RemoteConversation` on a real agent server in a process of its own: the contract of
`Conversation`, over the wire."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    LLM,
    Agent,
    Conversation,
    ConversationState,
    ConversationStatus,
    RemoteConversation,
    RemoteWorkspace,
    ScriptedLLM,
    Tool,
    ToolContext,
    ToolError,
    ToolResult,
    tool,
)
from holdfast import events as ev
from holdfast.errors import (
    ConfigurationError,
    Conflict,
    ConversationBusy,
    ConversationClosed,
    ConversationNotFound,
    HoldfastError,
    LLMError,
    NotFound,
    NotPending,
    PathRefused,
    RuntimeFault,
    ToolNotFound,
    ToolValidationError,
)
from holdfast.llm.completion import Delta
from holdfast.server.local import LocalServer
from tests import forks
from tests.model_server import ModelServer, Request, calls, sse, text
from tests.remote_parts import KEY, AgentServerProcess, Proxy
from tests.waiting import until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentServerProcess]:
    with AgentServerProcess(tmp_path_factory.mktemp("server"), grace=1.5) as running:
        yield running


@pytest.fixture
def space(server: AgentServerProcess) -> Iterator[RemoteWorkspace]:
    with RemoteWorkspace(server.url, KEY) as workspace:
        yield workspace


def shout(text: str) -> str:
    """Say it louder."""
    return text.upper()


def texts(conversation: RemoteConversation | Conversation) -> list[str]:
    return [
        event.result.text
        for event in conversation.get_history()
        if isinstance(event, ev.ToolCallFinished)
    ]


# --- the contract ---


@pytest.mark.slow
def test_run_returns_the_state_at_rest(space: RemoteWorkspace) -> None:
    agent = Agent(ScriptedLLM([("shout", {"text": "hi"}), "Done."]), [shout])
    with RemoteConversation(agent, space) as conversation:
        message = conversation.send_message("go")
        assert isinstance(message, ev.MessageAdded)
        assert (message.seq, message.text) == (1, "go")
        assert conversation.status is ConversationStatus.IDLE
        state = conversation.run()
        assert isinstance(state, ConversationState)
        assert (state.status, state.answer, state.steps) == (
            ConversationStatus.FINISHED,
            "Done.",
            2,
        )
        assert texts(conversation) == ["HI"]
        assert conversation.get_state() == conversation.state == state
        assert conversation.get_output("4.0").text == "HI"
        with pytest.raises(NotFound, match="no result"):
            conversation.get_output("9.0")
        assert conversation.replay().same
        started = next(event for event in state.events if isinstance(event, ev.ToolCallStarted))
        assert started.runner == conversation.client
    assert conversation.status is ConversationStatus.CLOSED


def test_a_local_run_has_the_same_journal_and_the_same_replay(space: RemoteWorkspace) -> None:
    def agent() -> Agent:
        return Agent(ScriptedLLM([[("shout", {"text": "a"})], "Done."]), [shout])

    local = Conversation(agent())
    with RemoteConversation(agent(), space) as remote, local:
        for conversation in (local, remote):
            conversation.start_thread()
            conversation.send_message("go")
            assert (
                conversation.status is ConversationStatus.RUNNING
                or conversation.get_history()[-1].type == "status"
            )
            assert conversation.wait(30) is ConversationStatus.FINISHED
        kinds = [[event.type for event in one.get_history()] for one in (local, remote)]
        assert kinds[0] == kinds[1]
        with pytest.raises(ConversationBusy):
            remote.run()


def test_a_builtin_tool_runs_in_the_workspace_on_the_server(
    space: RemoteWorkspace, server: AgentServerProcess
) -> None:
    agent = Agent(
        ScriptedLLM(
            [
                ("write_file", {"path": "a.txt", "content": "from the model"}),
                ("terminal", {"command": "pwd"}),
                "Done.",
            ]
        ),
        space.tools,
    )
    with RemoteConversation(agent, space) as conversation:
        conversation.send_message("go")
        assert conversation.run().status is ConversationStatus.FINISHED
        assert space.read_file("a.txt") == "from the model"
        assert str(server.folder / "rooms") in texts(conversation)[1]
        assert not [
            event
            for event in conversation.get_history()
            if isinstance(event, ev.ToolCallStarted) and event.runner
        ]


def test_confirmations_wait_and_are_decided(space: RemoteWorkspace) -> None:
    script = [("shout", {"text": "one"}), ("shout", {"text": "two"}), "Done."]
    with RemoteConversation(
        Agent(ScriptedLLM(script), [shout], confirm="always"), space
    ) as conversation:
        with pytest.raises(NotPending, match="does not wait for a decision"):
            conversation.approve("1.0")
        with pytest.raises(ConfigurationError, match="with a call_id alone"):
            conversation.approve(arguments={})
        conversation.start_thread()
        conversation.send_message("go")
        assert conversation.wait(30) is ConversationStatus.WAITING_FOR_CONFIRMATION
        (waiting,) = conversation.state.pending_confirmations
        with pytest.raises((ToolValidationError, ConfigurationError)):
            conversation.approve(waiting.call.id, arguments={"volume": 11})
        conversation.approve(
            waiting.call.id,
            arguments={"text": "edited"},
            arguments_hash=waiting.arguments_hash,
            by="me",
            reason="ok",
        )
        assert conversation.wait(30) is ConversationStatus.WAITING_FOR_CONFIRMATION
        conversation.reject(reason="too loud")
        assert conversation.wait(30) is ConversationStatus.FINISHED
        first, second = texts(conversation)
        assert "EDITED" in first
        assert "too loud" in second


def test_pause_resume_and_interrupt(space: RemoteWorkspace) -> None:
    began = threading.Event()

    def slow(context: ToolContext) -> str:
        began.set()
        context.sleep(60)
        return "slept"

    with RemoteConversation(
        Agent(ScriptedLLM([("slow", {}), "Done."]), [slow]), space
    ) as conversation:
        conversation.pause()
        assert conversation.status is ConversationStatus.PAUSED
        conversation.start_thread()
        conversation.send_message("go")
        assert conversation.status is ConversationStatus.PAUSED
        conversation.resume()
        assert began.wait(30)
        conversation.interrupt()
        assert conversation.status is ConversationStatus.PAUSED
        assert conversation.wait(30) is ConversationStatus.PAUSED
        assert "cancelled" in texts(conversation)[0]
        conversation.resume()
        assert conversation.wait(30) is ConversationStatus.FINISHED


def test_a_failing_model_is_the_states_error(space: RemoteWorkspace) -> None:
    with RemoteConversation(Agent(ScriptedLLM([])), space) as conversation:
        conversation.send_message("go")
        state = conversation.run()
        assert state.status is ConversationStatus.ERROR
        assert state.error is not None


def test_fork_goes_its_own_way_with_another_agent(space: RemoteWorkspace) -> None:
    with RemoteConversation(Agent(ScriptedLLM(["One.", "Two."])), space) as conversation:
        conversation.send_message("first")
        conversation.run()
        with pytest.raises(ConfigurationError, match="seq from 0"):
            conversation.fork(99)
        with conversation.fork(1, Agent(ScriptedLLM(["Other."]))) as forked:
            assert isinstance(forked, RemoteConversation)
            assert forked.id != conversation.id
            assert [event.type for event in forked.get_history()] == ["message", "label"]
            assert forked.run().answer == "Other."
        assert conversation.state.answer == "One."


def test_an_id_reattaches(space: RemoteWorkspace) -> None:
    # Parked, and opened again: a script begins anew then.
    agent = Agent(ScriptedLLM(["One."]), system_prompt="Be brief.")
    with pytest.raises(ConversationNotFound):
        RemoteConversation(None, space, "nowhere")
    with RemoteConversation(agent, space, "mine") as first:
        first.send_message("first")
        first.run()
    seqs: list[int] = []
    with RemoteConversation(None, space, "mine") as second:
        second.register_callback(lambda event: seqs.append(event.seq), after_seq=3)
        second.send_message("second")
        assert second.run().steps == 2
    assert seqs == list(range(4, 10))
    with RemoteConversation(agent, space, "mine") as third:
        assert third.state.steps == 2
    with pytest.raises(ConfigurationError, match="another system prompt"):
        RemoteConversation(Agent(ScriptedLLM([]), system_prompt="Be long."), space, "mine")
    assert issubclass(Conflict, ValueError)


def test_a_conversation_that_another_client_closed_is_started_again(space: RemoteWorkspace) -> None:
    agent = Agent(ScriptedLLM(["One.", "Two."]))
    with RemoteConversation(agent, space) as first:
        first.start_thread()
        first.send_message("first")
        assert first.wait(30) is ConversationStatus.FINISHED
        RemoteConversation(None, space, first.id).close()
        second = RemoteConversation(None, space, first.id)
        second.start_thread()
        second.close()
        first.start_thread()
        first.start_thread()
        first.send_message("second")
        until(lambda: first.state.steps == 2)


def test_detach_leaves_it_running(space: RemoteWorkspace) -> None:
    with ModelServer([text("Later.")]) as model:
        conversation = RemoteConversation(
            Agent(LLM("m", base_url=model.url, api_key="sk-test-0123456789")), space
        )
        conversation.start_thread()
        conversation.send_message("go")
        conversation.detach()
        with RemoteConversation(None, space, conversation.id) as again:
            assert again.wait(30) is ConversationStatus.FINISHED
            assert again.state.answer == "Later."
        assert model.requests[0].headers["authorization"] == "Bearer sk-test-0123456789"


def test_a_call_that_its_client_left_unclaimed_is_run_by_the_next_one(
    space: RemoteWorkspace,
) -> None:
    script = [("shout", {"text": "here"}), "Done."]
    agent = Agent(ScriptedLLM(script), [shout])
    first = RemoteConversation(agent, space, client_tools=True)
    first._here.calls = None  # it has no hands
    first.start_thread()
    first.send_message("go")
    until(lambda: len(first.state.offers) == 1)
    first.detach()
    with RemoteConversation(agent, space, first.id) as second:
        assert second.wait(30) is ConversationStatus.FINISHED
        assert texts(second) == ["HERE"]
        assert second.get_history()[4].runner == second.client


@pytest.mark.slow
def test_two_clients_of_one_conversation_race_and_one_runs_each_call(
    space: RemoteWorkspace,
) -> None:
    ran: list[str] = []

    def note(context: ToolContext, number: int) -> str:
        ran.append(context.call_id)
        return str(number)

    script = [[("note", {"number": number}) for number in range(20)], "Done."]
    agent = Agent(ScriptedLLM(script), [note])
    with (
        RemoteConversation(agent, space) as first,
        RemoteConversation(agent, space, first.id) as second,
    ):
        assert second.status is ConversationStatus.IDLE
        first.start_thread()
        first.send_message("go")
        assert first.wait(30) is second.wait(30) is ConversationStatus.FINISHED
        assert texts(first) == texts(second)
        assert sorted(texts(first), key=int) == [str(number) for number in range(20)]
    assert sorted(ran) == sorted(f"4.{number}" for number in range(20))


def test_pieces_of_an_answer_are_told_while_they_come(space: RemoteWorkspace) -> None:
    pieces: list[str] = []
    with ModelServer([sse(text("A streamed answer, in many pieces."))]) as model:
        agent = Agent(LLM("m", base_url=model.url, api_key="sk-test-0123456789", stream=True))
        with RemoteConversation(
            agent, space, on_delta=lambda delta: pieces.append(delta.text)
        ) as conversation:
            conversation.send_message("go")
            assert conversation.run().answer == "A streamed answer, in many pieces."
            until(lambda: "".join(pieces) == "A streamed answer, in many pieces.")


def test_a_tool_that_is_registered_later_is_told_to_the_server(space: RemoteWorkspace) -> None:
    agent = Agent(ScriptedLLM(["Hello.", ("late", {}), "Done."]))
    with RemoteConversation(agent, space) as conversation:
        conversation.start_thread()
        conversation.send_message("hi")
        conversation.wait(30)
        agent.tools.register(Tool("late", callback=lambda: "came late"))
        conversation.send_message("use it")
        assert conversation.wait(30) is ConversationStatus.FINISHED
        assert texts(conversation) == ["came late"]


# --- calls that run here ---


def test_every_way_of_declaring_a_tool_runs_here(space: RemoteWorkspace) -> None:
    class Counter:
        def __init__(self) -> None:
            self.value = 0

        def count(self, by: int = 1) -> int:
            self.value += by
            return self.value

    class Reverse(Tool):
        def call(self, arguments: dict[str, Any], context: ToolContext) -> str:
            return str(arguments["text"])[::-1]

    @tool
    async def later(text: str) -> str:
        return f"later {text}"

    def fails() -> None:
        raise ToolError("It broke.", "validation")

    counter = Counter()
    tools = [
        shout,
        Tool.from_function(counter.count),
        Reverse(
            "reverse",
            "Backwards",
            input_schema={"type": "object", "properties": {"text": {"type": "string"}}},
        ),
        later,
        Tool(name="plain", callback=lambda name: ToolResult(name), inputSchema={"type": "string"}),
        fails,
    ]
    script = [
        [
            ("shout", {"text": "a"}),
            ("count", {"by": 2}),
            ("reverse", {"text": "abc"}),
            ("later", {"text": "b"}),
            ("plain", {"name": "n"}),
            ("fails", {}),
        ],
        ("count", {}),
        ("shout", {}),
        "Done.",
    ]
    with RemoteConversation(Agent(ScriptedLLM(script), tools), space) as conversation:
        conversation.send_message("go")
        assert conversation.run().status is ConversationStatus.FINISHED
        results = {
            event.call_id: event.result
            for event in conversation.get_history()
            if isinstance(event, ev.ToolCallFinished)
        }
    assert [results[f"4.{n}"].text for n in range(5)] == ["A", "2", "cba", "later b", "n"]
    assert results["4.5"].error is not None
    assert results["4.5"].error.type == "validation"
    assert counter.value == 3
    assert [result.is_error for result in list(results.values())[-1:]] == [
        True
    ]  # a text is missing


@pytest.mark.slow
def test_a_tool_runs_conversations_of_its_own_at_any_depth(space: RemoteWorkspace) -> None:
    ran: list[str] = []

    def dig(depth: int) -> str:
        ran.append(f"in {depth}")
        if depth == 3:
            return "bottom"
        inner = RemoteConversation(
            Agent(ScriptedLLM([("dig", {"depth": depth + 1}), f"Out of {depth}."]), [dig]), space
        )
        with inner:
            inner.send_message("deeper")
            answer = inner.run().answer
            ran.append(space.run_command(f"echo {depth}").text.split()[0])
        return answer

    with RemoteConversation(
        Agent(ScriptedLLM([("dig", {"depth": 1}), "Done."]), [dig]), space
    ) as conversation:
        conversation.send_message("go")
        assert conversation.run().answer == "Done."
    assert ran == ["in 1", "in 2", "in 3", "2", "1"]


@pytest.mark.slow
def test_a_client_that_is_killed_in_mid_call_leaves_an_unknown_outcome(
    space: RemoteWorkspace, server: AgentServerProcess, tmp_path: Path
) -> None:
    program = f"""
import time
from holdfast import Agent, RemoteConversation, RemoteWorkspace, ScriptedLLM

def slow():
    print("began", flush=True)
    time.sleep(60)

conversation = RemoteConversation(Agent(ScriptedLLM([("slow", {{}}), "Done."]), [slow]), RemoteWorkspace({server.url!r}, {KEY!r}), "killed")
conversation.send_message("go")
conversation.run()
"""
    client = forks.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert client.stdout is not None
    assert client.stdout.readline() == "began\n"
    with RemoteConversation(None, space, "killed") as watcher:
        os.kill(client.pid, signal.SIGKILL)
        client.wait(10)
        client.stdout.close()
        until(lambda: watcher.status is ConversationStatus.FINISHED)
        (result,) = [
            event.result
            for event in watcher.get_history()
            if isinstance(event, ev.ToolCallFinished)
        ]
        assert result.error is not None
        assert result.error.type == "unknown"
        assert "outcome is unknown" in result.text


@pytest.mark.slow
def test_a_run_goes_on_over_a_kill_of_the_server_and_bad_connections(tmp_path: Path) -> None:
    ran: list[int] = []

    def count(number: int) -> str:
        ran.append(number)
        if number in (2, 5):
            running.kill()
            running.start()
        return str(number)

    def answer(request: Request) -> Any:
        count_done = sum(message["role"] == "tool" for message in request.messages)
        return (
            calls(("count", {"number": count_done}), prefix=f"c{count_done}")
            if count_done < 8
            else text("Done.")
        )

    seqs: list[int] = []
    with (
        ModelServer(answer) as model,
        AgentServerProcess(tmp_path) as running,
        Proxy(running.port, 5, cut=0.05, half=0.02, delay=0.1) as proxy,
        RemoteWorkspace(proxy.url, KEY) as workspace,
    ):
        agent = Agent(LLM("m", base_url=model.url, api_key="sk-test-0123456789"), [count])
        with RemoteConversation(agent, workspace) as conversation:
            conversation.register_event_callback(lambda event: seqs.append(event.seq))
            conversation.start_thread()
            conversation.send_message("go")
            assert conversation.wait(60) is ConversationStatus.FINISHED
            assert texts(conversation) == [str(number) for number in range(8)]
            last = conversation.state.last_seq
        assert seqs == list(range(1, last + 1))
    assert ran == list(range(8))


# --- questions of tools ---


def test_a_call_that_runs_here_asks_here(space: RemoteWorkspace) -> None:
    questions: list[str] = []

    def ask(context: ToolContext) -> str:
        return f"{context.ask('Which city?', {'type': 'object', 'properties': {'city': {'type': 'string'}}})}"

    def on_question(question: ev.Question) -> dict[str, Any]:
        questions.append(question.message)
        return {"city": "Ghent"}

    with RemoteConversation(
        Agent(ScriptedLLM([("ask", {}), "Done."]), [ask]), space, on_question=on_question
    ) as conversation:
        conversation.send_message("go")
        conversation.run()
        assert texts(conversation) == ["{'city': 'Ghent'}"]
    assert questions == ["Which city?"]


# --- the workspace ---


@pytest.mark.slow
def test_a_workspace_is_a_runtime(space: RemoteWorkspace, server: AgentServerProcess) -> None:
    from holdfast.runtime import Runtime

    assert isinstance(space, Runtime)
    result = space.run_command("echo hi; exit 3")
    assert result.text.startswith("hi")
    assert result.meta["exitCode"] == 3
    timed_out = space.run_command("sleep 30", timeout=0.3)
    assert timed_out.is_error
    for path, content in (
        ("deep/er/a b?#%.txt", "text\r\nwith \u00e4 and \U0001f600"),
        ("empty.txt", ""),
    ):
        space.write_file(path, content)
        assert space.read_file(path) == content
    assert "b?#%.txt" in space.run_command("ls deep/er").text
    with pytest.raises(FileNotFoundError) as missing:
        space.read_file("nothing.txt")
    assert isinstance(missing.value, RuntimeFault)
    for path in ("/etc/passwd", "../../etc/passwd"):
        with pytest.raises((PathRefused, RuntimeFault)):
            space.read_file(path)
    space.write_file(".holdfast/microagents/flips.md", "Flip.")
    assert [one.name for one in space.load_microagents()] == ["flips"]
    with pytest.raises(RuntimeFault):
        space.clone_repo("http://127.0.0.1:1/nobody.git", timeout=10)


def test_a_workspaces_tools_work_in_a_local_conversation(space: RemoteWorkspace) -> None:
    assert [tool.name for tool in space.tools] == [tool.name for tool in space.get_tools()]
    script = [
        ("write_file", {"path": "x.txt", "content": "x"}),
        ("read_file", {"path": "gone.txt"}),
        "Done.",
    ]
    with Conversation(Agent(ScriptedLLM(script), space.tools)) as conversation:
        conversation.send_message("go")
        assert conversation.run().status is ConversationStatus.FINISHED
        results = [
            event.result
            for event in conversation.get_history()
            if isinstance(event, ev.ToolCallFinished)
        ]
    assert [result.is_error for result in results] == [False, True]
    assert space.read_file("x.txt") == "x"
    with pytest.raises(ToolNotFound):
        space.call_tool("nonsense", {})


def test_the_workspace_of_a_conversation_that_was_found_stays(
    server: AgentServerProcess, space: RemoteWorkspace
) -> None:
    space.write_file("kept.txt", "mine")
    with RemoteConversation(Agent(ScriptedLLM(["ok"]), space.tools), space) as conversation:
        with (
            RemoteWorkspace(server.url, KEY) as other,
            RemoteConversation(workspace=other, id=conversation.id),
        ):
            assert other.read_file("kept.txt") == "mine"
        assert space.read_file("kept.txt") == "mine"


def test_a_workspace_that_has_a_name_is_found_again_and_one_without_is_removed(
    server: AgentServerProcess,
) -> None:
    with RemoteWorkspace(server.url, KEY, id="named") as first:
        first.write_file("a.txt", "a")
    with RemoteWorkspace(server.url, KEY, id="named") as second:
        assert second.read_file("a.txt") == "a"
    with RemoteWorkspace(server.url, KEY) as third:
        id = third.made()
        third.write_file("a.txt", "a")
    with RemoteWorkspace(server.url, KEY, id=id) as fourth, pytest.raises(FileNotFoundError):
        fourth.read_file("a.txt")
    with pytest.raises(Conflict, match="closed"):
        fourth.run_command("true")


# --- streams ---


def test_a_stream_yields_the_events_and_deltas_of_a_run_in_order(space: RemoteWorkspace) -> None:
    model = ScriptedLLM([["Let me see.", ("shout", {"text": "x"})], "It says X."], stream=True)
    with RemoteConversation(Agent(model, [shout]), space, deltas=True) as conversation:
        items = list(conversation.stream("What does it say?"))
        assert conversation.status is ConversationStatus.FINISHED
        assert [item for item in items if not isinstance(item, Delta)] == conversation.get_history()
        assert "".join(item.text for item in items if isinstance(item, Delta)).endswith(
            "It says X."
        )
        assert list(conversation.stream()) == []


def test_a_stream_follows_a_conversation_that_the_server_drives(space: RemoteWorkspace) -> None:
    with RemoteConversation(Agent(ScriptedLLM(["One.", "Two."])), space) as conversation:
        conversation.start_thread()
        for text in ("a", "b"):
            items = list(conversation.stream(text))
            assert next(item.type for item in items if not isinstance(item, Delta)) == "message"
        assert conversation.state.answer == "Two."


@pytest.mark.slow
def test_leaving_the_block_of_a_stream_interrupts_the_run(space: RemoteWorkspace) -> None:
    cut_off = threading.Event()

    def hold(context: ToolContext) -> str:
        cut_off.wait(0.2)
        return "done"

    agent = Agent(ScriptedLLM([("hold", {}), "Ok.", ("hold", {}), "Ok."]), [hold])
    with RemoteConversation(agent, space) as conversation:
        for item in conversation.stream("go"):
            if isinstance(item, ev.ToolCallStarted):
                break
        assert conversation.wait(20) is ConversationStatus.FINISHED
        with conversation.stream("again") as items:
            for item in items:
                if isinstance(item, ev.ToolCallStarted):
                    break
        assert conversation.wait(20) is ConversationStatus.PAUSED
    with pytest.raises(ConversationClosed):
        conversation.stream("go")


@pytest.mark.slow
def test_a_stream_raises_the_error_that_ended_following(space: RemoteWorkspace) -> None:
    with RemoteConversation(
        Agent(ScriptedLLM([("shout", {"text": "x"})] * 3), [shout]), space
    ) as one:
        stream = one.stream("go")
        next(stream)
        RemoteWorkspace(space.url, KEY).link.request("DELETE", f"/api/conversations/{one.id}")
        with pytest.raises((HoldfastError,)):
            list(stream)


def test_another_agent_answers_from_the_next_step_on_and_its_tools_run_here(
    space: RemoteWorkspace,
) -> None:
    def first_tool() -> str:
        return "the first one's"

    def second_tool() -> str:
        return "the second one's"

    one = Agent(ScriptedLLM([("look", {}), "one"]), [Tool("look", "Look.", first_tool)])
    two = Agent(ScriptedLLM([("look", {}), "two"], "other"), [Tool("look", "See.", second_tool)])
    with RemoteConversation(one, space) as conversation:
        conversation.send_message("go")
        assert conversation.run().answer == "one"
        conversation.use(two)
        assert conversation.agent is two
        conversation.send_message("again")
        state = conversation.run()
        assert state.answer == "two"
        texts = [e.result.text for e in state.events if isinstance(e, ev.ToolCallFinished)]
        assert texts == ["the first one's", "the second one's"]
        with RemoteConversation(two, space, conversation.id) as again:  # the server still has it
            assert again.get_history() == conversation.get_history()
        with pytest.raises(ConfigurationError, match="use: agent takes an Agent"):
            conversation.use(2)  # pyright: ignore[reportArgumentType]


def test_an_agent_that_the_server_refuses_changes_nothing(space: RemoteWorkspace) -> None:
    with RemoteConversation(Agent(ScriptedLLM(["one"])), space) as conversation:
        with pytest.raises(ConfigurationError, match="workspace"):
            conversation.use(Agent(ScriptedLLM(["two"]), space.tools))
        conversation.send_message("go")
        assert conversation.run().answer == "one"


def test_a_question_aside_goes_to_the_server_and_its_outcome_comes_back(
    space: RemoteWorkspace,
) -> None:
    entered, goes_on = threading.Event(), threading.Event()

    def work() -> str:
        entered.set()
        assert goes_on.wait(30)
        return "done here"

    llm = ScriptedLLM([("work", {}), "I work.", "done", "I worked."])
    with RemoteConversation(Agent(llm, [Tool("work", "Work.", work)]), space) as conversation:
        with pytest.raises(Conflict, match="not asked anything yet"):
            conversation.ask("Well?")
        conversation.send_message("go")
        conversation.start_thread()
        assert entered.wait(30)
        answer = conversation.ask("What are you doing?", timeout=30)
        assert answer.text == "I work."
        goes_on.set()
        conversation.wait(30)
        assert conversation.state.answer == "done"
        assert conversation.ask("And before?", timeout=30).text == "I worked."
        kinds = [event.type for event in conversation.get_history()]
        assert (kinds.count("asideAsked"), kinds.count("asideAnswered")) == (2, 2)
        assert conversation.replay().same


def test_an_error_of_a_question_aside_is_raised_at_the_client(space: RemoteWorkspace) -> None:
    with RemoteConversation(Agent(ScriptedLLM(["hello"])), space) as conversation:
        conversation.send_message("hi")
        conversation.run()
        with pytest.raises(LLMError, match="script"):
            conversation.ask("Well?", timeout=30)
        assert conversation.state.status is ConversationStatus.FINISHED


def test_a_name_is_that_of_a_model_of_the_agent_and_an_unknown_one_is_refused(
    space: RemoteWorkspace,
) -> None:
    models = {"fast": ScriptedLLM(["fast"], "fast")}
    agent = Agent(ScriptedLLM(["own", "own again"], "own"), models=models)
    with RemoteConversation(agent, space) as conversation:
        conversation.send_message("go")
        assert conversation.run().answer == "own"
        conversation.use("#fast")
        with pytest.raises(NotFound, match=r"It has: main, #fast\. This server publishes: none"):
            conversation.use("slow")
        conversation.send_message("again")
        assert conversation.run().answer == "fast"
        assert conversation.agent is agent
        with RemoteConversation(agent, space, conversation.id) as again:  # under the other model
            again.use("#")
            again.send_message("and again")
            assert again.run().answer == "own again"


def test_an_agent_that_the_server_publishes_takes_the_place_of_the_conversations_own() -> None:
    def look() -> str:
        """Look."""
        return "seen"

    helper = Agent(ScriptedLLM(["helped"], "helper"))
    with (
        LocalServer(agents={"helper": helper}) as server,
        RemoteWorkspace(server.url, server.key) as workspace,
        RemoteConversation(Agent(ScriptedLLM(["own"]), [look]), workspace) as conversation,
    ):
        conversation.send_message("go")
        assert conversation.run().answer == "own"
        conversation.use("helper")
        assert conversation.agent is None
        conversation.send_message("help")
        assert conversation.run().answer == "helped"
        with pytest.raises(NotFound, match=r"It has: main\. This server publishes: helper"):
            conversation.use("#fast")
