"""Calls of one answer run in its order. Neighbours that are all parallel run side by side, and any
other call is a barrier."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import (
    Agent,
    Conversation,
    ConversationStatus,
    LocalRuntime,
    MemoryStore,
    ScriptedLLM,
    SQLiteStore,
    Tool,
    ToolAnnotations,
    ToolResult,
    tool,
)
from holdfast import commands as cmd
from holdfast import events as ev
from holdfast.content import TextContent, ToolCall
from holdfast.conversation.actions import AwaitEvents, RecoverCalls, RunCalls, Stop, next_action
from holdfast.conversation.state import fold
from holdfast.errors import ConfigurationError, NotPending
from holdfast.store import Batch, Store
from tests.samples import examples
from tests.waiting import until

S = ConversationStatus
NOW = datetime(2026, 1, 1, tzinfo=UTC)
READS = ToolAnnotations(read_only=True)


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with (
        MemoryStore() if request.param == "memory" else SQLiteStore(tmp_path / "s.db", "process")
    ) as backend:
        yield backend


class ClientTool(Tool):
    """A tool whose calls a client runs."""

    executor = "client"

    def call(self, arguments: dict[str, Any], context: Any) -> Any:
        raise AssertionError("the loop ran a client's call")


class World:
    """Tools that record when their calls begin and end; `read` is parallel, `write` is not. A call
    of `gated` waits for its gate."""

    def __init__(
        self, calls: list[tuple[str, str]], store: Store | None = None, **options: Any
    ) -> None:
        self.log: list[str] = []
        self.gates: dict[str, threading.Event] = {text: threading.Event() for _, text in calls}
        self.llm = ScriptedLLM(
            [[(name, {"text": text}) for name, text in calls], "Done.", "Again."]
        )
        self.store = MemoryStore() if store is None else store

        def work(text: str) -> str:
            self.log.append(f"+{text}")
            if text.startswith("gated"):
                assert self.gates[text].wait(20)
            self.log.append(f"-{text}")
            return text

        tools = [
            Tool.from_function(work, "write"),
            Tool.from_function(work, "read", annotations=READS),
            Tool.from_function(work, "declared", parallel=True),
            Tool.from_function(work, "exclusive_read", annotations=READS, parallel=False),
            ClientTool(
                "far", input_schema={"type": "object", "properties": {"text": {"type": "string"}}}
            ),
            ClientTool(
                "far_read",
                input_schema={"type": "object", "properties": {"text": {"type": "string"}}},
                annotations=READS,
            ),
        ]
        self.agent = Agent(self.llm, tools, **options)

    def open(self, started: bool = True) -> Conversation:
        conversation = Conversation(self.agent, self.store, "c")
        if started:
            conversation.send_message("go")
            conversation.start_thread()
        return conversation


def results(conversation: Conversation) -> list[str]:
    return [
        event.result.text
        for event in conversation.get_history()
        if isinstance(event, ev.ToolCallFinished)
    ]


# --- the loop ---


def test_commands_of_one_answer_leave_their_output_in_its_order(tmp_path: Path) -> None:
    lines = "".join(f"{n}\n" for n in range(8))
    for attempt in range(5):
        calls = [("terminal", {"command": f"echo {n} >> order-{attempt}"}) for n in range(8)]
        with LocalRuntime(workdir=tmp_path) as runtime:
            agent = Agent(ScriptedLLM([calls, "Done."]), runtime.tools)
            with Conversation(agent, runtime=runtime) as conversation:
                conversation.send_message("go")
                assert conversation.run().status is S.FINISHED
        assert (tmp_path / f"order-{attempt}").read_text() == lines


def test_a_read_behind_a_write_sees_the_new_text(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("old")
    for attempt in range(10):
        calls = [
            ("write_file", {"path": "f", "content": f"new {attempt}"}),
            ("read_file", {"path": "f"}),
        ]
        with (
            LocalRuntime(workdir=tmp_path) as runtime,
            Conversation(Agent(ScriptedLLM([calls, "Done."]), runtime.tools)) as conversation,
        ):
            conversation.send_message("go")
            conversation.run()
            assert f"new {attempt}" in results(conversation)[1]


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(
        st.sampled_from(["read", "declared", "write", "exclusive_read"]), min_size=1, max_size=9
    ),
    st.integers(1, 4),
)
def test_a_call_that_is_not_parallel_begins_after_all_before_it_and_ends_before_all_behind_it(
    kinds: list[str], bound: int
) -> None:
    world = World([(kind, str(n)) for n, kind in enumerate(kinds)], parallel_calls=bound)
    with world.open(started=False) as conversation:
        conversation.send_message("go")
        assert conversation.run().status is S.FINISHED
    assert len(world.log) == 2 * len(kinds)
    for n, kind in enumerate(kinds):
        if kind in ("write", "exclusive_read"):
            assert set(world.log[: 2 * n]) == {
                f"{sign}{before}" for before in range(n) for sign in "+-"
            }
            assert world.log[2 * n : 2 * n + 2] == [f"+{n}", f"-{n}"]
    running = most = 0
    for entry in world.log:
        running += 1 if entry[0] == "+" else -1
        most = max(most, running)
    assert most <= bound


def test_parallel_neighbours_run_side_by_side_and_a_barrier_waits_for_all_of_them() -> None:
    world = World([("read", "gated a"), ("declared", "gated b"), ("write", "c"), ("read", "d")])
    with world.open() as conversation:
        until(lambda: {"+gated a", "+gated b"} <= set(world.log))
        world.gates["gated a"].set()
        until(lambda: "-gated a" in world.log)
        time.sleep(0.05)
        assert "+c" not in world.log
        world.gates["gated b"].set()
        assert conversation.wait(20) is S.FINISHED
    assert world.log[-4:] == ["+c", "-c", "+d", "-d"]


def test_starts_are_journaled_turn_by_turn(store: Store) -> None:
    world = World([("read", "a"), ("read", "b"), ("write", "c"), ("write", "d")], store)
    with world.open() as conversation:
        assert conversation.wait(20) is S.FINISHED
        kinds = [
            (type(event).__name__, event.call_id.partition(".")[2])
            for event in conversation.get_history()
            if isinstance(event, ev.ToolCallStarted | ev.ToolCallFinished)
        ]
    assert kinds[:2] == [
        ("ToolCallStarted", "0"),
        ("ToolCallStarted", "1"),
    ]  # in one append with the answer
    assert sorted(kinds[2:4]) == [("ToolCallFinished", "0"), ("ToolCallFinished", "1")]
    assert kinds[4:] == [
        ("ToolCallStarted", "2"),
        ("ToolCallFinished", "2"),
        ("ToolCallStarted", "3"),
        ("ToolCallFinished", "3"),
    ]


def test_an_interrupt_answers_the_calls_that_wait_for_their_turn() -> None:
    world = World([("write", "gated a"), ("write", "b"), ("read", "c")])
    with world.open() as conversation:
        until(lambda: "+gated a" in world.log)
        conversation.interrupt()
        world.gates["gated a"].set()
        conversation.wait(20)
        assert world.log == ["+gated a", "-gated a"]
        assert sum("interrupted" in text for text in results(conversation)) >= 2


# --- decisions ---


def test_calls_behind_an_undecided_one_wait_with_it(store: Store) -> None:
    world = World(
        [("write", "a"), ("read", "b"), ("write", "c")],
        store,
        confirm={"write": "ask", "*": "allow"},
    )
    with world.open() as conversation:
        assert conversation.wait(20) is S.WAITING_FOR_CONFIRMATION
        assert world.log == []
        first, last = conversation.state.pending_confirmations
        conversation.approve(last.call.id)  # an approval does not pass the barrier
        assert conversation.wait(0.1) is S.WAITING_FOR_CONFIRMATION
        assert world.log == []
        conversation.approve(first.call.id)
        assert conversation.wait(20) is S.FINISHED
    assert world.log == ["+a", "-a", "+b", "-b", "+c", "-c"]


def test_a_rejection_settles_the_call_and_those_behind_it_run(store: Store) -> None:
    world = World([("write", "a"), ("read", "b")], store, confirm={"write": "ask", "*": "allow"})
    with world.open() as conversation:
        assert conversation.wait(20) is S.WAITING_FOR_CONFIRMATION
        conversation.reject()
        assert conversation.wait(20) is S.FINISHED
        assert "rejected" in results(conversation)[0]
    assert world.log == ["+b", "-b"]


def test_calls_before_an_undecided_one_run_and_those_beside_it_too() -> None:
    world = World(
        [("write", "a"), ("read", "b"), ("declared", "c"), ("write", "d")],
        confirm={"declared": "ask", "*": "allow"},
    )
    with world.open() as conversation:
        assert conversation.wait(20) is S.WAITING_FOR_CONFIRMATION
        assert world.log == ["+a", "-a", "+b", "-b"]
        conversation.approve()
        assert conversation.wait(20) is S.FINISHED
    assert world.log[4:] == ["+c", "-c", "+d", "-d"]


def test_a_rejected_barrier_between_two_parallel_calls_lets_the_second_begin_at_once() -> None:
    world = World(
        [("read", "gated a"), ("declared", "gated x"), ("write", "b"), ("read", "gated c")],
        confirm={"write": "ask", "*": "allow"},
    )
    with world.open() as conversation:
        until(lambda: {"+gated a", "+gated x"} <= set(world.log))
        conversation.reject()
        until(lambda: "+gated c" in world.log)
        for gate in world.gates.values():
            gate.set()
        assert conversation.wait(20) is S.FINISHED


def test_approvals_in_any_order_through_the_inbox_run_the_calls_in_the_answers_order(
    store: Store,
) -> None:
    world = World([("write", str(n)) for n in range(4)], store, confirm="always")
    with world.open() as conversation:
        assert conversation.wait(20) is S.WAITING_FOR_CONFIRMATION
        for pending in reversed(conversation.state.pending_confirmations):
            store.post("c", cmd.Approve(pending.call.id, pending.arguments_hash))
        until(lambda: len(world.log) == 8)
        assert conversation.wait(20) is S.FINISHED
    assert world.log == [f"{sign}{n}" for n in range(4) for sign in "+-"]


def test_who_goes_on_after_a_pause_finds_the_same_turn(store: Store) -> None:
    world = World([("write", "a"), ("write", "b")], store, confirm="always")
    with world.open() as conversation:
        assert conversation.wait(20) is S.WAITING_FOR_CONFIRMATION
        conversation.pause()
        conversation.approve(conversation.state.pending_confirmations[1].call.id)
        conversation.resume()
        assert conversation.wait(20) is S.WAITING_FOR_CONFIRMATION
    with world.open(started=False) as conversation:  # as another process would open it
        conversation.start_thread()
        assert conversation.wait(20) is S.WAITING_FOR_CONFIRMATION
        conversation.approve()
        assert conversation.wait(20) is S.FINISHED
    assert world.log == ["+a", "-a", "+b", "-b"]


# --- calls that clients run ---


def test_a_clients_call_is_offered_on_its_turn_and_holds_it(store: Store) -> None:
    world = World([("write", "gated a"), ("far", "b"), ("write", "c")], store)
    with world.open() as conversation:
        until(lambda: "+gated a" in world.log)
        assert conversation.state.offers == ()
        far = next(call.id for call in conversation.state.pending_calls if call.name == "far")
        with pytest.raises(NotPending, match="a call before it"):
            conversation.execute(cmd.Claim(far, "client"))
        world.gates["gated a"].set()
        until(lambda: [offer.call.id for offer in conversation.state.offers] == [far])
        conversation.execute(cmd.Claim(far, "client"))
        time.sleep(0.05)
        assert "+c" not in world.log
        conversation.execute(cmd.Return(far, "client", ToolResult("from afar")))
        assert conversation.wait(20) is S.FINISHED
        assert results(conversation) == ["gated a", "from afar", "c"]


def test_a_settled_client_call_gives_its_turn_up(store: Store) -> None:
    world = World([("far", "a"), ("write", "b")], store)
    with world.open() as conversation:
        until(lambda: conversation.state.offers)
        conversation.execute(
            cmd.Settle(conversation.state.offers[0].call.id, "no client came", "timeout")
        )
        assert conversation.wait(20) is S.FINISHED
    assert world.log == ["+b", "-b"]


def test_parallel_calls_of_clients_are_offered_together_and_beside_the_loops_own() -> None:
    world = World([("far_read", "a"), ("read", "b"), ("far_read", "c"), ("far", "d")])
    with world.open() as conversation:
        until(lambda: world.log == ["+b", "-b"])
        assert [offer.call.arguments["text"] for offer in conversation.state.offers] == ["a", "c"]


# --- next_action ---

TOOLS = (
    ev.ToolDefinition("read", "", {}, parallel=True),
    ev.ToolDefinition("write", "", {}),
    ev.ToolDefinition("far", "", {}, executor="client"),
    ev.ToolDefinition("far_read", "", {}, executor="client", parallel=True),
)


def journal(names: str, *more: tuple[type[Any], dict[str, Any]]) -> list[Any]:
    calls = tuple([ToolCall(f"4.{n}", name) for n, name in enumerate(names.split())])
    start: list[tuple[type[Any], dict[str, Any]]] = [
        (ev.MessageAdded, {"content": (TextContent("go"),)}),
        (ev.StatusChanged, {"status": "running"}),
        (ev.AgentConfigured, {"system_prompt": "", "tools": TOOLS}),
        (ev.AssistantReplied, {"based_on": 3, "calls": calls}),
    ]
    return [
        kind(seq=n, id=str(n), timestamp=NOW + timedelta(seconds=n), **fields)
        for n, (kind, fields) in enumerate([*start, *more], 1)
    ]


def start(index: int, runner: str = "") -> tuple[type[Any], dict[str, Any]]:
    return ev.ToolCallStarted, {"call_id": f"4.{index}", "runner": runner}


def finish(index: int) -> tuple[type[Any], dict[str, Any]]:
    return ev.ToolCallFinished, {"call_id": f"4.{index}", "result": ToolResult("ok")}


def approval_request(index: int) -> tuple[type[Any], dict[str, Any]]:
    return ev.DecisionMade, {"call_id": f"4.{index}", "decision": "ask"}


WAITS = Stop(S.WAITING_FOR_CONFIRMATION)
ROWS: dict[str, tuple[str, list[Any], Any]] = {
    "a barrier runs alone": ("write write", [], (RunCalls, "0")),
    "neighbours that are parallel run together": ("read read write read", [], (RunCalls, "0 1")),
    "the next turn begins when the last is settled": (
        "read read write read",
        [start(0), start(1), finish(1), finish(0)],
        (RunCalls, "2"),
    ),
    "what is left of a turn": ("read read write", [start(0), finish(0)], (RunCalls, "1")),
    "a lost call comes before those behind it": ("write write", [start(0)], (RecoverCalls, "0")),
    "lost calls of another order are settled one after the other": (
        "write write",
        [start(0), start(1)],
        (RecoverCalls, "0"),
    ),
    "a call that ended out of order is no barrier": (
        "read write read",
        [start(1), finish(1)],
        (RunCalls, "0 2"),
    ),
    "a call behind an undecided one waits": ("write write", [approval_request(0)], WAITS),
    "an approved call behind an undecided one waits": ("write read", [approval_request(0)], WAITS),
    "a neighbour of an undecided call runs": (
        "read read write",
        [approval_request(0)],
        (RunCalls, "1"),
    ),
    "an undecided call behind one that can run": (
        "write write",
        [approval_request(1)],
        (RunCalls, "0"),
    ),
    "a client holds the turn": ("far write", [], AwaitEvents()),
    "a client that claimed holds the turn": ("far write", [start(0, "one")], AwaitEvents()),
    "an undecided call behind a client's": ("far write", [approval_request(1)], AwaitEvents()),
    "a client's call waits for its turn": ("write far", [], (RunCalls, "0")),
    "a parallel call beside a client's": ("far_read read", [], (RunCalls, "1")),
    "an unknown tool is a barrier": ("read nobody read", [], (RunCalls, "0")),
}


@pytest.mark.parametrize("name", ROWS)
def test_next_action_of_open_calls(name: str) -> None:
    calls, more, expected = ROWS[name]
    action = next_action(fold(journal(calls, *more)))
    if isinstance(expected, tuple):
        kind, numbers = expected
        assert type(action) is kind
        assert [call.id for call in action.calls] == [f"4.{number}" for number in numbers.split()]
    else:
        assert action == expected


def test_a_journal_of_the_old_order_opens_and_goes_on(store: Store) -> None:
    """Old definitions had no `parallel`, and all calls of an answer started at once."""
    world = World([("write", "unused")], store)
    with world.open(started=False) as conversation:
        definitions = world.agent.tools.definitions()
    old = tuple(
        [
            ev.ToolDefinition(
                one.name, one.description, one.input_schema, one.wire_name, one.executor
            )
            for one in definitions
        ]
    )
    calls = tuple(
        [
            ToolCall(f"4.{n}", name, {"text": str(n)})
            for n, name in enumerate(["write", "read", "write"])
        ]
    )
    parts: list[tuple[type[Any], dict[str, Any]]] = [
        (ev.MessageAdded, {"content": (TextContent("go"),)}),
        (ev.StatusChanged, {"status": "running"}),
        (ev.AgentConfigured, {"system_prompt": "", "tools": old, "model": "old"}),
        (ev.AssistantReplied, {"based_on": 3, "calls": calls}),
        start(0),
        start(1),
        start(2),
        finish(2),
    ]
    events = [
        kind(seq=n, id=str(n), timestamp=NOW, **fields) for n, (kind, fields) in enumerate(parts, 1)
    ]
    from holdfast import ConversationState

    world.llm = ScriptedLLM(["Done."])
    agent = Agent(world.llm, world.agent.tools.list_tools())
    state = ConversationState("old", events)
    assert state.status is S.RUNNING
    assert isinstance(next_action(fold(events)), RecoverCalls)
    lease = store.acquire("old")
    from holdfast.store import Summary

    store.append(lease, Batch(events, Summary("old", "running", "go", 8, NOW, NOW)))
    store.release(lease)
    with Conversation(agent, store, "old") as conversation:
        conversation.start_thread()
        assert conversation.wait(20) is S.FINISHED
        results = {
            event.call_id: event.result
            for event in conversation.get_history()
            if isinstance(event, ev.ToolCallFinished)
        }
        assert results["4.0"].meta.get("outcome") == "unknown"  # a write is not repeated
        assert results["4.1"].text == "1"  # a read is
        assert conversation.replay().same


# --- declarations of parallel tools ---


def test_a_read_only_tool_is_parallel_unless_it_says_otherwise() -> None:
    @tool(parallel=True)
    def add(a: int) -> int:
        """Adds."""
        return a

    assert add.parallel
    assert Tool.from_function(lambda: 1, "one", annotations=READS).parallel
    assert not Tool.from_function(lambda: 1, "one", annotations=READS, parallel=False).parallel
    assert not Tool.from_function(lambda: 1, "one").parallel
    with pytest.raises(ConfigurationError, match="parallel takes True, False or None, not 'yes'"):
        Tool.from_function(lambda: 1, "one", parallel="yes")  # pyright: ignore[reportArgumentType]
