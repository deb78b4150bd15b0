"""Forks, time travel, large outputs, and the settlement of calls whose process died; on both
stores."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    Agent,
    Conversation,
    ConversationStatus,
    MemoryStore,
    ScriptedLLM,
    SQLiteStore,
    Tool,
    ToolContext,
    ToolResult,
    tool,
)
from holdfast import events as ev
from holdfast.content import TextContent, ToolCall
from holdfast.conversation.journal import utc_now
from holdfast.errors import ConfigurationError, Conflict, NotFound, StoreError
from holdfast.store import BLOBS, Batch, Store, Summary
from tests import forks
from tests.waiting import until

S = ConversationStatus


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with (
        MemoryStore() if request.param == "memory" else SQLiteStore(tmp_path / "s.db", "process")
    ) as backend:
        yield backend


@tool
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


def finished_conversation(store: Store, id: str = "c") -> Conversation:
    agent = Agent(ScriptedLLM([("add", {"a": 1, "b": 2}), "3."]), [add])
    conversation = Conversation(agent, store, id)
    conversation.send_message("1 + 2?")
    conversation.run()
    return conversation


# --- fork and time travel ---


def test_a_fork_shares_what_was_and_goes_its_own_way(store: Store) -> None:
    original = finished_conversation(store)
    answer = next(
        event.seq for event in original.get_history() if isinstance(event, ev.ToolCallFinished)
    )
    other = Agent(
        ScriptedLLM(["Three, I think.", "Yes."], model="another"), [], system_prompt="Be brief."
    )
    with original.fork(answer, other, "f", clock=utc_now) as fork:
        assert fork.get_history()[:answer] == original.get_history()[:answer]
        assert [event.type for event in fork.get_history()[answer:]] == ["label"]
        assert fork.run().answer == "Three, I think."
        fork.send_message("sure?")
        assert fork.run().answer == "Yes."
        assert other.llm.requests[0].messages[0]["content"] == "Be brief."  # pyright: ignore
        history = fork.get_history()
    assert original.state.answer == "3."
    original.close()
    listed = {entry.id: entry for entry in store.list()}
    assert (listed["f"].parent, listed["f"].parent_seq, listed["f"].title) == (
        "c",
        answer,
        "1 + 2? (fork)",
    )
    assert listed["c"].parent == ""
    with Conversation(other, store, "f") as again:
        assert again.get_history() == history
        with again.fork() as grandchild:
            assert grandchild.get_history()[:-1] == history
            assert grandchild.id not in ("c", "f")
    store.delete("c")
    assert store.read("f") == history  # the events that both share are still there


@pytest.mark.slow
@pytest.mark.parametrize("seq", range(9))
def test_a_fork_at_every_event_comes_to_an_end(store: Store, seq: int) -> None:
    original = finished_conversation(store)
    agent = Agent(ScriptedLLM([("add", {"a": 1, "b": 2}), "3, forked."]), [add])
    with original.fork(seq, agent) as fork:
        if not seq:
            fork.send_message("1 + 2?")
        state = fork.run()
        assert state.events[:seq] == tuple(original.get_history()[:seq])
        assert state.status in (S.FINISHED, S.IDLE)
        assert not state.pending_calls
        open_then = original.state.at(seq).pending_calls
        messages = [
            event.result.text
            for event in state.events
            if isinstance(event, ev.ToolCallFinished) and "forked" in event.result.text
        ]
        assert len(messages) == len(open_then)
    original.close()


def test_a_fork_where_there_is_nothing_is_refused(store: Store) -> None:
    original = finished_conversation(store)
    for wrong in (-1, 99, "3"):
        with pytest.raises(ConfigurationError, match="fork takes a seq"):
            original.fork(wrong)  # pyright: ignore
    with pytest.raises(Conflict, match="exists already"):
        original.fork(id="c")
    original.close()


def test_a_state_can_be_looked_at_as_it_was(store: Store) -> None:
    with finished_conversation(store) as conversation:
        state = conversation.state
    assert [state.at(seq).status.value for seq in range(len(state.events) + 1)] == [
        "idle",
        "idle",
        "running",
        "running",
        "running",
        "running",
        "running",
        "running",
        "finished",
    ]
    assert [call.name for call in state.at(4).pending_calls] == ["add"]
    assert state.at(6).pending_calls == ()
    assert state.at(state.last_seq) == state
    for wrong in (-1, 9, None):
        with pytest.raises(ConfigurationError, match="at takes a seq"):
            state.at(wrong)  # pyright: ignore


# --- large outputs ---


def test_a_large_output_is_kept_once_and_shown_trimmed(store: Store) -> None:
    text = "".join(f"line {number}\n" for number in range(2000)) + "the end ÄÖ"

    @tool
    def big() -> ToolResult:
        """Says much."""
        return ToolResult(
            [TextContent(text), TextContent("small")],
            {"rows": ["x" * 100] * 50},
            meta={BLOBS: [{"id": "sha256:0"}], "k": 1},
        )

    llm = ScriptedLLM([("big", {}), ("big", {}), "Read."])
    with Conversation(Agent(llm, [big], output_limit=2000), store, "c") as conversation:
        conversation.send_message("go")
        conversation.run()
        first, second = (
            event for event in conversation.get_history() if isinstance(event, ev.ToolCallFinished)
        )
        assert 2000 < len(first.result.text) < 2200
        assert first.result.text.startswith("line 0\n")
        assert "the end ÄÖ" in first.result.text
        assert f"of {len(text):,} characters left out" in first.result.text
        assert [(entry["of"], entry["bytes"]) for entry in first.result.meta[BLOBS]] == [
            ("content.0", len(text.encode())),
            ("structuredContent", 9 + 50 * 102 + 49 + 2),
        ]
        assert first.result.meta[BLOBS] == second.result.meta[BLOBS]
        assert first.result.structured_content is None
        for request in llm.requests:
            assert len(request.body) < 12_000
        whole = conversation.get_output(second.call_id)
        assert whole == ToolResult(
            [TextContent(text), TextContent("small")], {"rows": ["x" * 100] * 50}, meta={"k": 1}
        )
        with pytest.raises(NotFound, match=r"'9\.9' has no result"):
            conversation.get_output("9.9")
        id = first.result.meta[BLOBS][0]["id"]
        fork = conversation.fork()
        assert fork.get_output(first.call_id) == whole
    store.delete("c")
    assert store.blob(id) == text.encode()  # the fork still has it
    fork.close()
    store.delete(fork.id)
    with pytest.raises(StoreError, match=id):
        store.blob(id)


def test_a_small_output_stays_as_it_is(store: Store) -> None:
    with finished_conversation(store) as conversation:
        [result] = [
            event for event in conversation.get_history() if isinstance(event, ev.ToolCallFinished)
        ]
        assert conversation.get_output(result.call_id) is result.result


# --- calls whose process died ---


def write_interrupted_journal(store: Store, name: str, arguments: dict[str, Any]) -> None:
    """Write the journal of a conversation whose process died while it ran one call. A second
    call had not begun."""
    at = utc_now()
    calls = (ToolCall("3.0", name, arguments, "p0"), ToolCall("3.1", "add", {"a": 1, "b": 1}, "p1"))
    events = [
        ev.MessageAdded(seq=1, id="1", timestamp=at, content=(TextContent("go"),)),
        ev.StatusChanged(seq=2, id="2", timestamp=at, status="running"),
        ev.AssistantReplied(seq=3, id="3", timestamp=at, calls=calls, based_on=2),
        ev.ToolCallStarted(
            seq=4, id="4", timestamp=at, call_id="3.0", attempt=1, idempotency_key="c:3.0"
        ),
    ]
    lease = store.acquire("c")
    store.append(lease, Batch(events, Summary("c", "running", "go", 4, at, at)))
    store.release(lease)


def settle_by(store: Store, reconcile: Any) -> tuple[list[str], dict[str, ToolResult], list[int]]:
    ran: list[str] = []

    def pay(amount: int, context: ToolContext) -> str:
        ran.append(f"{amount} {context.idempotency_key} {context.attempt}")
        return "paid now"

    write_interrupted_journal(store, "pay", {"amount": 5})
    agent = Agent(ScriptedLLM(["Done."]), [Tool("pay", "Pays.", pay, reconcile=reconcile), add])
    with Conversation(agent, store, "c") as conversation:
        assert conversation.run().status is S.FINISHED
        history = conversation.get_history()
    results = {
        event.call_id: event.result for event in history if isinstance(event, ev.ToolCallFinished)
    }
    return (
        ran,
        results,
        [
            event.attempt
            for event in history
            if isinstance(event, ev.ToolCallStarted) and event.call_id == "3.0"
        ],
    )


def test_a_tool_that_knows_what_happened_settles_the_call(store: Store) -> None:
    questions: list[Any] = []

    def reconcile(call: ToolCall, context: ToolContext) -> dict[str, Any]:
        questions.append((call.arguments, context.idempotency_key, context.attempt))
        return {"paid": 5}

    ran, results, attempts = settle_by(store, reconcile)
    assert questions == [({"amount": 5}, "c:3.0", 1)]
    assert ran == []
    assert attempts == [1]
    assert results["3.0"].data == {"paid": 5}
    assert results["3.1"].text == "2"  # it had not begun, so it runs now


def test_a_tool_that_knows_that_nothing_happened_is_run_under_the_same_key(store: Store) -> None:
    ran, results, attempts = settle_by(store, lambda call, context: None)
    assert ran == ["5 c:3.0 2"]
    assert attempts == [1, 2]
    assert results["3.0"].text == "paid now"


def test_a_tool_that_cannot_tell_leaves_it_unknown_and_the_model_is_told_why(store: Store) -> None:
    def reconcile(call: ToolCall, context: ToolContext) -> None:
        raise ConnectionError("the bank is closed")

    ran, results, attempts = settle_by(store, reconcile)
    assert ran == []
    assert attempts == [1]
    assert results["3.0"].meta == {"outcome": "unknown"}
    assert "ConnectionError: the bank is closed" in results["3.0"].text
    assert "Check what is there before you repeat it" in results["3.0"].text


def test_a_subclass_reconciles_by_a_method_and_reconcile_must_be_a_function() -> None:
    class Pay(Tool):
        def call(self, arguments: dict[str, Any], context: ToolContext) -> str:
            return "paid"

        def reconcile(self, call: ToolCall, context: ToolContext) -> str:  # pyright: ignore
            return f"was paid: {call.arguments['amount']}"

    with MemoryStore() as store:
        write_interrupted_journal(store, "pay", {"amount": 7})
        with Conversation(
            Agent(ScriptedLLM(["Done."]), [Pay("pay", "Pays."), add]), store, "c"
        ) as conversation:
            conversation.run()
            assert "was paid: 7" in [
                event.result.text
                for event in conversation.get_history()
                if isinstance(event, ev.ToolCallFinished)
            ]
    with pytest.raises(ConfigurationError, match="reconcile takes"):
        Tool("pay", "", lambda: None, reconcile="x")  # pyright: ignore


PROGRAM = """
import sys, time
from holdfast import Agent, Conversation, LocalRuntime, ScriptedLLM, SQLiteStore
runtime = LocalRuntime(sys.argv[1])
model = ScriptedLLM([("terminal", {"command": "sleep 4711 & setsid sleep 4712 & echo $$ > pid; sleep 4713"}), "never"])
conversation = Conversation(Agent(model, runtime.tools), SQLiteStore(sys.argv[2]), "c", runtime=runtime)
conversation.send_message("go")
conversation.run()
"""


def sleepers() -> list[str]:
    commands: list[str] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            continue
        if command.startswith("sleep 471"):
            commands.append(command)
    return sorted(commands)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")
def test_what_a_killed_process_left_running_is_ended_before_anything_else(tmp_path: Path) -> None:
    child = forks.Popen([sys.executable, "-c", PROGRAM, str(tmp_path), str(tmp_path / "s.db")])
    until(lambda: (tmp_path / "pid").exists() and len(sleepers()) == 3)
    child.kill()
    child.wait()
    assert len(sleepers()) == 3
    processes: list[list[str]] = []

    @tool
    def terminal(command: str) -> str:
        """Not the one that was killed."""
        return "unused"

    def answer(request: Any) -> str:
        processes.append(sleepers())
        return "I see."

    with (
        SQLiteStore(tmp_path / "s.db") as store,
        Conversation(Agent(ScriptedLLM(answer), [terminal]), store, "c") as conversation,
    ):
        conversation.run()
        [result] = [
            event.result
            for event in conversation.get_history()
            if isinstance(event, ev.ToolCallFinished)
        ]
    assert processes == [[]]
    assert result.meta == {"outcome": "unknown"}


def test_a_fork_of_nothing_does_not_become_somebody_else(store: Store) -> None:
    finished_conversation(store, "x").close()
    with Conversation(Agent(ScriptedLLM([])), store, "y") as other:
        with pytest.raises(StoreError):
            other.fork(0, id="x")
        assert other.fork(0, id="z").get_history() == []


def test_a_state_takes_its_large_outputs_along(store: Store) -> None:
    @tool
    def big() -> str:
        """Says much."""
        return "x" * 5000

    agent = Agent(ScriptedLLM([("big", {}), "Read."]), [big], output_limit=1000)
    with Conversation(agent, store, "c") as conversation:
        conversation.send_message("go")
        state = conversation.run()
        call = next(
            event.call_id for event in state.events if isinstance(event, ev.ToolCallFinished)
        )
    with Conversation.from_state(state, agent, store, "d") as copy:
        store.delete("c")
        assert copy.get_output(call).text == "x" * 5000


@pytest.mark.parametrize("answer", [True, False])
def test_a_reconcile_that_says_yes_or_no_is_not_taken_for_the_result(
    store: Store, answer: bool
) -> None:
    ran, results, _ = settle_by(store, lambda call, context: answer)
    assert ran == []
    assert results["3.0"].meta == {"outcome": "unknown"}


def test_a_takeover_that_is_broken_off_still_ends_what_was_left_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.runtime import processes

    ended: list[list[str]] = []

    def broken_off(marks: Any) -> bool:
        ended.append(list(marks))
        if len(ended) < 3:
            raise KeyboardInterrupt
        return True

    program = (
        "import sys, os; from holdfast import SQLiteStore; s = SQLiteStore(sys.argv[1]);"
        " s.note(s.acquire('c'), ['mark']); os.kill(os.getpid(), 9)"
    )
    forks.run([sys.executable, "-c", program, str(tmp_path / "s.db")], check=False)
    monkeypatch.setattr(processes, "end_owned", broken_off)
    with SQLiteStore(tmp_path / "s.db") as store:
        conversation = Conversation(Agent(ScriptedLLM(["Done."])), store, "c")
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                conversation.send_message("go")
        conversation.send_message("go")
        assert ended == [["mark"]] * 3
        conversation.close()
        assert store.acquire("c").orphan_notes == ()
