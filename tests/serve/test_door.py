"""Tests of the base of the doors: the same turns over a store in this process and over an agent
server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import Agent, ScriptedLLM, SQLiteStore
from holdfast import commands as cmd
from holdfast.agent.serial_form import ToolForm
from holdfast.content import TextContent, ToolResult
from holdfast.conversation.rests import (
    ApprovalRequest,
    ClientCallRequest,
    PendingItem,
    QuestionRequest,
    Rest,
    TurnCommand,
)
from holdfast.conversation.turns import AnswerPieces, TurnItem
from holdfast.errors import ConfigurationError, ConversationNotFound
from holdfast.events import AssistantReplied, MessageAdded, ToolCallFinished
from holdfast.llm.completion import Delta
from holdfast.serve.door import LocalDoor, LocalSession, conversation_id
from holdfast.server.hosted import HostedDoor, HostedSession
from holdfast.server.openai import publish
from holdfast.server.policy import Policy
from holdfast.tools.preset.asking import register_asking_tools
from tests.agent_servers import Serving
from tests.door_tools import pay

ASK = ("ask_user", {"question": "Which colour?"})
Begin = Callable[..., "LocalSession | Hosted"]


class Hosted:
    """A session of an agent server, with the methods of a `LocalSession`."""

    def __init__(self, session: HostedSession) -> None:
        self._session = session
        self.id, self.execute, self.stream = session.id, session.execute, session.stream

    def pending(self) -> tuple[PendingItem, ...]:
        return self._session.rest(self._session.fold()).pending

    def turn(self, after_seq: int, *commands: TurnCommand) -> Generator[TurnItem]:
        loop = asyncio.new_event_loop()
        items = self.stream(after_seq, *commands)
        try:
            while (item := loop.run_until_complete(anext(items, None))) is not None:
                yield item
        finally:
            loop.run_until_complete(items.aclose())
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()


@contextmanager
def local(folder: Path, script: Sequence[Any]) -> Generator[Begin]:
    agent = _agent(script)
    with SQLiteStore(folder / "store.db") as store:
        door = LocalDoor(agent, store)
        try:
            yield door.begin
        finally:
            door.close()


@contextmanager
def hosted(folder: Path, script: Sequence[Any]) -> Generator[Begin]:
    agent = publish("painter", _agent(script))
    policy = Policy(["tests.*", "holdfast.*"], entry_points=False)
    with Serving(folder, agents={"painter": agent}, policy=policy) as server:
        door = HostedDoor(server.host, "default")
        yield lambda *args, **options: Hosted(door.begin(agent, *args, **options))


def _agent(script: Sequence[Any]) -> Agent:
    if isinstance(script[0], Agent):
        return script[0]
    return Agent(ScriptedLLM(script, stream=True), [pay, *register_asking_tools()], confirm=["pay"])


def parents(script: Sequence[Any], child: Sequence[Any], **options: Any) -> Agent:
    """Return an agent that gives work to another one, whose payments need an approval."""
    payer = Agent(ScriptedLLM(child), [pay], confirm=["pay"])
    return Agent(ScriptedLLM(script), delegates={"payer": payer}, **options)


DELEGATED = ("delegate", {"agent": "payer", "task": "Pay 3."})
PAID = [[("pay", {"amount": 3})], "It is paid."]


@pytest.fixture(params=[local, hosted])
def begin(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return lambda *script: request.param(tmp_path, script)


def send_of(text: str) -> cmd.Send:
    return cmd.Send((TextContent(text),))


def test_a_turn_yields_events_and_deltas_and_rests(begin: Any) -> None:
    with begin("red as a rose", "again") as open:
        session = open("a")
        *items, rest = session.turn(0, send_of("Which?"))
        assert isinstance(rest, Rest)
        assert (rest.reason, rest.answer) == ("finished", "red as a rose")
        pieces = AnswerPieces()
        assert "".join(pieces.take(item)[0] for item in items) == "red as a rose"
        assert any(isinstance(item, Delta) for item in items)
        later = list(session.turn(rest.seq, send_of("And now?")))
        assert [one.text for one in later if isinstance(one, MessageAdded)] == ["And now?"]
        again = list(session.turn(rest.seq))
        assert [one for one in later if not isinstance(one, Delta)] == again


def test_an_approval_a_question_and_an_end_are_rests(begin: Any) -> None:
    with begin([("pay", {"amount": 3})], [ASK], "done") as open:
        session = open()
        *_, rest = session.turn(0, send_of("Buy it."))
        assert rest.reason == "approval"
        (item,) = rest.pending
        assert isinstance(item, ApprovalRequest)
        assert session.pending() == rest.pending
        *items, rest = session.turn(rest.seq, item.approve())
        assert any(isinstance(one, ToolCallFinished) for one in items)
        assert rest.reason == "question"
        (item,) = rest.pending
        assert isinstance(item, QuestionRequest)
        *_, rest = session.turn(rest.seq, item.answer({"answer": "red"}))
        assert (rest.reason, rest.answer, rest.pending) == ("finished", "done", ())


def test_a_turn_on_an_event_loop_is_the_same(begin: Any) -> None:
    async def collected(session: LocalSession | Hosted) -> list[Any]:
        return [item async for item in session.stream(0, send_of("Paint."))]

    with begin([ASK], "done") as open:
        session = open()
        *items, rest = asyncio.run(collected(session))
        assert rest.reason == "question"
        assert [one.seq for one in items if isinstance(one, AssistantReplied)]
        *_, rest = session.turn(rest.seq, rest.pending[0].decline("no"))
        assert rest.reason == "finished"


def test_an_interrupt_pauses_and_the_next_message_goes_on(begin: Any) -> None:
    with begin([ASK], "never mind") as open:
        session = open()
        *_, rest = session.turn(0, send_of("Paint."))
        session.execute(cmd.Interrupt())
        *_, rest = session.turn(rest.seq)
        assert rest.reason == "paused"
        *_, rest = session.turn(rest.seq, send_of("Forget it."))
        assert (rest.reason, rest.answer) == ("finished", "never mind")


def test_a_conversation_is_found_again(begin: Any) -> None:
    id = conversation_id("agui", "painter", "thread 1")
    assert id == conversation_id("agui", "painter", "thread 1")
    with begin("one", "two") as open:
        *_, first = open(id).turn(0, send_of("1"))
        *_, rest = open(id).turn(first.seq, send_of("2"))
        assert rest.answer == "two"


def test_a_tool_of_the_client_is_a_rest(tmp_path: Path) -> None:
    shape = {"type": "object", "properties": {}}
    with hosted(tmp_path, [[("look", {})], "seen"]) as open:
        session = open(tools=[ToolForm(name="look", description="", input_schema=shape)])
        *_, rest = session.turn(0, send_of("Look."))
        assert rest.reason == "call"
        (item,) = rest.pending
        assert isinstance(item, ClientCallRequest)
        result = ToolResult((TextContent("blue"),))
        *_, rest = session.turn(rest.seq, *item.finish(result, runner="test"))
        assert rest.answer == "seen"


def test_conversations_are_listed_by_tag_and_unknown_ones_refused(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "store.db") as store:
        door = LocalDoor(_agent(["hi"]), store)
        door.begin("a", tags=["door=test"])
        door.begin("b").execute(send_of("x"))
        assert [one.id for one in door.list(["door=test"])] == ["a"]
        with pytest.raises(ConversationNotFound):
            door.find("c")
        door.close()


@pytest.mark.parametrize("approves", [True, False])
def test_an_approval_of_a_delegate_is_a_rest(begin: Any, approves: bool) -> None:
    with begin(parents([[DELEGATED], "done"], PAID)) as open:
        session = open()
        *_, rest = session.turn(0, send_of("Buy it."))
        assert (rest.reason, rest.status.value) == ("approval", "running")
        (item,) = rest.pending
        assert isinstance(item, ApprovalRequest)
        assert item.conversation.startswith(session.id)
        assert item.key == f"{item.conversation}:{item.call.id}"
        assert session.pending() == rest.pending
        *_, again = session.turn(rest.seq)  # a user who comes back is asked again
        assert again.pending == rest.pending
        *items, rest = session.turn(rest.seq, item.approve() if approves else item.reject("no"))
        assert (rest.reason, rest.answer, rest.pending) == ("finished", "done", ())
        (result,) = [one.result for one in items if isinstance(one, ToolCallFinished)]
        assert "It is paid." in str(result.content)


def test_an_approval_of_a_delegates_delegate_is_a_rest(begin: Any) -> None:
    payer = parents([[DELEGATED], "asked"], PAID)
    root = Agent(ScriptedLLM([[DELEGATED], "done"]), delegates={"payer": payer})
    with begin(root) as open:
        session = open()
        *_, rest = session.turn(0, send_of("Buy it."))
        *_, rest = session.turn(rest.seq, rest.pending[0].approve())
        assert (rest.reason, rest.answer) == ("finished", "done")


@pytest.mark.parametrize("depth", [1, 2])
def test_a_question_of_a_delegate_is_a_rest_at_any_depth(begin: Any, depth: int) -> None:
    agent = Agent(ScriptedLLM([[ASK], [ASK], "thanks"]), register_asking_tools())
    for _ in range(depth):
        agent = Agent(ScriptedLLM([[DELEGATED], "done"]), delegates={"payer": agent})
    with begin(agent) as open:
        session = open()
        *_, rest = session.turn(0, send_of("Ask."))
        for colour in ("red", "blue"):
            assert (rest.reason, rest.status.value) == ("question", "running")
            (item,) = rest.pending
            assert isinstance(item, QuestionRequest)
            assert item.question.message == "Which colour?"
            assert session.pending() == rest.pending
            with pytest.raises(ConfigurationError, match="answer: question"):
                session.execute(item.answer({}))
            *_, rest = session.turn(rest.seq, item.answer_loosely(colour))
        assert (rest.reason, rest.answer, rest.pending) == ("finished", "done", ())


def test_an_approval_of_a_delegate_in_the_background_outlasts_the_turn(begin: Any) -> None:
    script = [
        [(DELEGATED[0], {**DELEGATED[1], "background": True})],
        "begun",
        "seen",
    ]
    with begin(parents(script, PAID)) as open:
        session = open()
        *_, rest = session.turn(0, send_of("Buy it."))
        deadline = time.monotonic() + 60
        while not session.pending() and time.monotonic() < deadline:
            time.sleep(0.02)
        *_, rest = session.turn(0)
        assert isinstance(rest, Rest)
        assert (rest.reason, rest.answer) == ("approval", "begun")
        (item,) = rest.pending
        *_, rest = session.turn(rest.seq, item.approve())
        assert isinstance(rest, Rest)
        assert not rest.pending
