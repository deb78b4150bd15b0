"""Calls that clients run: a call is offered, one client claims it, and that client answers it. No
interrupt, crash or race loses it."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import (
    Agent,
    Conversation,
    ConversationState,
    ConversationStatus,
    MemoryStore,
    ScriptedLLM,
    SQLiteStore,
    Tool,
    ToolManager,
    ToolResult,
)
from holdfast import commands as cmd
from holdfast import events as ev
from holdfast.content import TextContent, ToolCall
from holdfast.conversation.actions import (
    AwaitEvents,
    CallModel,
    RecoverCalls,
    RunCalls,
    Stop,
    next_action,
)
from holdfast.conversation.state import fold
from holdfast.errors import (
    ConfigurationError,
    Conflict,
    ConversationClosed,
    NotPending,
    ToolValidationError,
)
from holdfast.store import Store
from holdfast.testing.guarantees import _malformed as malformed
from holdfast.tools.hooks import Hook
from tests import forks
from tests.paths import REPO
from tests.samples import examples
from tests.waiting import until

S = ConversationStatus
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with (
        MemoryStore() if request.param == "memory" else SQLiteStore(tmp_path / "s.db", "process")
    ) as backend:
        yield backend


class ClientTool(Tool):
    """A tool of which this process knows only the schema."""

    executor = "client"

    def call(self, arguments: dict[str, Any], context: Any) -> Any:
        raise AssertionError("the loop ran a client's call")


class World:
    """A model that asks for calls and then says "Done.". Clients run `far`, the loop runs `near`,
    side by side."""

    def __init__(self, store: Store, calls: list[str], **options: Any) -> None:
        self.ran: list[str] = []
        self.began, self.gate = threading.Event(), threading.Event()
        self.gate.set()
        self.llm = ScriptedLLM([[(name, {"text": name}) for name in calls], "Done.", "Again."])

        def near(text: str) -> str:
            """Near."""
            self.began.set()
            assert self.gate.wait(20)
            self.ran.append(text)
            return "near"

        tools = [
            ClientTool("far", "Far.", input_schema=SCHEMA, parallel=True),
            Tool.from_function(near, parallel=True),
        ]
        self.agent = Agent(self.llm, tools, **options)
        self.store = store

    def open(self, message: str | None = None) -> Conversation:
        conversation = Conversation(self.agent, self.store, "c")
        if message is not None:
            conversation.send_message(message)
        return conversation


def results(conversation: Conversation) -> dict[str, ToolResult]:
    return {
        event.call_id: event.result
        for event in conversation.get_history()
        if isinstance(event, ev.ToolCallFinished)
    }


def starts(conversation: Conversation) -> list[tuple[str, int, str]]:
    events = [
        event for event in conversation.get_history() if isinstance(event, ev.ToolCallStarted)
    ]
    return [(event.call_id, event.attempt, event.runner) for event in events]


def test_a_client_runs_the_call_and_the_model_goes_on(store: Store) -> None:
    world = World(store, ["far"])
    with world.open("go") as conversation:
        assert conversation.run().status is S.RUNNING
        (offer,) = conversation.state.offers
        assert (offer.call.name, offer.call.arguments, offer.runner) == ("far", {"text": "far"}, "")
        conversation.execute(cmd.Claim(offer.call.id, "one"))
        assert conversation.state.offers[0].runner == "one"
        conversation.execute(cmd.Claim(offer.call.id, "one"))
        conversation.execute(cmd.Return(offer.call.id, "one", ToolResult("from afar"), 1.5))
        assert conversation.state.offers == ()
        state = conversation.run()
        assert (state.status, state.answer) == (S.FINISHED, "Done.")
        assert starts(conversation) == [(offer.call.id, 1, "one")]
        (result,) = [event for event in state.events if isinstance(event, ev.ToolCallFinished)]
        assert (result.result.text, result.duration) == ("from afar", 1.5)
        assert ConversationState.from_json(state.to_json()) == state
        assert conversation.replay().same
        assert conversation.replay(world.agent).same


def test_calls_run_here_while_a_client_has_its_own_and_the_model_is_asked_when_all_have_results(
    store: Store,
) -> None:
    world = World(store, ["far", "near", "far"])
    world.gate.clear()
    with world.open("go") as conversation:
        conversation.start_thread()
        until(lambda: len(conversation.state.offers) == 2 and starts(conversation))
        first, second = [offer.call.id for offer in conversation.state.offers]
        conversation.execute(cmd.Claim(second, "one"))
        conversation.execute(cmd.Return(second, "one", ToolResult("second")))
        conversation.send_message("and this")
        world.gate.set()
        until(lambda: len(results(conversation)) == 2)
        assert conversation.wait(0.05) is S.RUNNING
        assert len(world.llm.requests) == 1
        conversation.execute(cmd.Claim(first, "two"))
        conversation.execute(cmd.Return(first, "two", ToolResult("first")))
        assert conversation.wait(20) is S.FINISHED
        assert world.ran == ["near"]
        assert [result.text for result in results(conversation).values()] == [
            "second",
            "near",
            "first",
        ]
        assert len(world.llm.requests) == 2
        assert conversation.replay(world.agent).same


def test_waiting_ends_when_the_clients_result_came(store: Store) -> None:
    world = World(store, ["far"])
    with world.open("go") as conversation:
        conversation.start_thread()
        until(lambda: conversation.state.offers)
        statuses: list[ConversationStatus] = []
        waiter = threading.Thread(target=lambda: statuses.append(conversation.wait(20)))
        waiter.start()
        (offer,) = conversation.state.offers
        conversation.execute(cmd.Claim(offer.call.id, "one"))
        assert waiter.is_alive()
        conversation.execute(cmd.Return(offer.call.id, "one", ToolResult("x")))
        waiter.join(20)
        assert statuses == [S.FINISHED]


def test_a_call_is_offered_once_it_was_approved_and_with_what_the_approver_put_in(
    store: Store,
) -> None:
    world = World(store, ["far"], confirm="always")
    with world.open("go") as conversation:
        assert conversation.run().status is S.WAITING_FOR_CONFIRMATION
        (pending,) = conversation.state.pending_confirmations
        assert conversation.state.offers == ()
        for command in (cmd.Claim(pending.call.id, "one"), cmd.Settle(pending.call.id, "late.")):
            with pytest.raises(NotPending, match="waits for a decision"):
                conversation.execute(command)
        conversation.approve(pending.call.id, arguments={"text": "other"})
        assert conversation.run().status is S.RUNNING
        (offer,) = conversation.state.offers
        assert offer.call.arguments == {"text": "other"}
        conversation.execute(cmd.Claim(offer.call.id, "one"))
        conversation.execute(cmd.Return(offer.call.id, "one", ToolResult("done so")))
        assert conversation.run().status is S.FINISHED
        assert "changed its arguments to" in results(conversation)[offer.call.id].text
        assert "done so" in results(conversation)[offer.call.id].text


def test_a_call_that_waits_for_a_decision_is_asked_for_beside_an_offer(store: Store) -> None:
    world = World(store, ["far", "near"], confirm=["near"])
    with world.open("go") as conversation:
        assert conversation.run().status is S.RUNNING
        (offer,), (pending,) = conversation.state.offers, conversation.state.pending_confirmations
        conversation.execute(cmd.Claim(offer.call.id, "one"))
        conversation.execute(cmd.Return(offer.call.id, "one", ToolResult("x")))
        assert conversation.run().status is S.WAITING_FOR_CONFIRMATION
        conversation.approve(pending.call.id)
        assert conversation.run().status is S.FINISHED


def test_what_was_rejected_or_denied_is_not_offered(store: Store) -> None:
    world = World(store, ["far", "near"], confirm={"far": "ask"})
    with world.open("go") as conversation:
        assert conversation.run().status is S.WAITING_FOR_CONFIRMATION
        conversation.reject(reason="no")
        assert conversation.run().status is S.FINISHED
    other = World(MemoryStore(), ["far"], confirm={"far": "deny"})
    with other.open("go") as conversation:
        assert conversation.run().status is S.FINISHED
        assert starts(conversation) == []


def test_an_interrupt_answers_offers_and_leaves_claimed_calls_to_their_client(store: Store) -> None:
    world = World(store, ["far", "far", "near"], confirm=["near"])
    with world.open("go") as conversation:
        conversation.run()
        mine, other = [offer.call.id for offer in conversation.state.offers]
        conversation.execute(cmd.Claim(mine, "one"))
        conversation.interrupt()
        assert conversation.status is S.PAUSED
        assert [call.id for call in conversation.state.pending_calls] == [mine]
        assert "interrupted" in results(conversation)[other].text
        with pytest.raises(NotPending, match="not open"):
            conversation.execute(cmd.Claim(other, "one"))
        conversation.interrupt()
        conversation.execute(cmd.Return(mine, "one", ToolResult("late")))
        assert conversation.status is S.PAUSED
        assert conversation.run().status is S.FINISHED
        assert results(conversation)[mine].text == "late"


def test_an_interrupt_while_a_claimed_call_is_open_can_be_resumed_before_its_result(
    store: Store,
) -> None:
    world = World(store, ["far"])
    with world.open("go") as conversation:
        conversation.run()
        call_id = conversation.state.offers[0].call.id
        conversation.execute(cmd.Claim(call_id, "one"))
        conversation.interrupt()
        assert conversation.run().status is S.RUNNING
        conversation.execute(cmd.Return(call_id, "one", ToolResult("late")))
        assert conversation.run().status is S.FINISHED


def test_a_pause_lets_no_call_begin_and_takes_results(store: Store) -> None:
    world = World(store, ["far", "far"])
    with world.open("go") as conversation:
        conversation.run()
        mine, other = [offer.call.id for offer in conversation.state.offers]
        conversation.execute(cmd.Claim(mine, "one"))
        conversation.pause()
        with pytest.raises(Conflict, match="paused"):
            conversation.execute(cmd.Claim(other, "one"))
        conversation.execute(cmd.Claim(mine, "one"))
        conversation.execute(cmd.Return(mine, "one", ToolResult("x")))
        conversation.resume()
        conversation.execute(cmd.Claim(other, "one"))
        conversation.execute(cmd.Return(other, "one", ToolResult("y")))
        assert conversation.run().status is S.FINISHED


def test_a_claim_is_one_clients_alone(store: Store) -> None:
    world = World(store, ["far", "near"], confirm=["near"])
    with world.open("go") as conversation:
        conversation.run()
        mine = conversation.state.offers[0].call.id
        near = conversation.state.pending_confirmations[0].call.id
        with pytest.raises(Conflict, match="was not claimed"):
            conversation.execute(cmd.Return(mine, "one", ToolResult("x")))
        with pytest.raises(Conflict, match="was not claimed"):
            conversation.execute(cmd.Return(mine, "", ToolResult("x")))
        conversation.execute(cmd.Claim(mine, "one"))
        with pytest.raises(Conflict, match="claimed by 'one'"):
            conversation.execute(cmd.Claim(mine, "two"))
        with pytest.raises(Conflict, match="claimed by 'one'"):
            conversation.execute(cmd.Return(mine, "two", ToolResult("x")))
        for call_id, message in (
            (near, "the conversation's own process runs it"),
            ("9.9", "no such call"),
        ):
            with pytest.raises(Conflict, match=message):
                conversation.execute(cmd.Claim(call_id, "one"))
        conversation.execute(cmd.Return(mine, "one", ToolResult("x")))
        with pytest.raises(NotPending, match="has a result"):
            conversation.execute(cmd.Return(mine, "one", ToolResult("again")))
        assert results(conversation)[mine].text == "x"
        assert starts(conversation) == [(mine, 1, "one")]


def test_a_call_without_fitting_arguments_is_answered_at_once(store: Store) -> None:
    world = World(store, [], confirm="always")
    world.llm = ScriptedLLM([[("far", {"txt": "typo"}), ("far", {"text": "good"})], "Done."])
    agent = Agent(world.llm, [ClientTool("far", "Far.", input_schema=SCHEMA)], confirm="always")
    with Conversation(agent, store) as conversation:
        conversation.send_message("go")
        assert conversation.run().status is S.WAITING_FOR_CONFIRMATION
        (pending,) = conversation.state.pending_confirmations
        assert pending.call.arguments == {"text": "good"}
        (failed,) = results(conversation).values()
        assert failed.error is not None
        assert failed.error.type == "validation"
        with pytest.raises(ToolValidationError, match="text"):
            conversation.execute(cmd.Approve(pending.call.id, pending.arguments_hash, {"txt": 1}))
        conversation.reject()
        assert conversation.run().status is S.FINISHED


def test_hooks_and_limits_hold_for_a_clients_result(store: Store) -> None:
    refused: list[str] = []

    def before(call: Any, context: Any) -> Any:
        if call.arguments["text"] == "no":
            refused.append(call.name)
            return ToolResult("not here")
        return None

    def after(call: Any, result: ToolResult, context: Any) -> Any:
        if call.arguments["text"] == "odd":
            raise RuntimeError("a hook that fails")
        return ToolResult(result.text.replace("secret", "***"))

    llm = ScriptedLLM(
        [[("far", {"text": "no"}), ("far", {"text": "yes"}), ("far", {"text": "odd"})], "Done."]
    )
    tools = ToolManager(
        [ClientTool("far", "Far.", input_schema=SCHEMA, parallel=True)],
        hooks=[Hook(before=before, after=after)],
    )
    with Conversation(Agent(llm, tools, output_limit=1000), store) as conversation:
        conversation.send_message("go")
        conversation.run()
        assert refused == ["far"]
        first, odd = [offer.call.id for offer in conversation.state.offers]
        for call_id in (first, odd):
            conversation.execute(cmd.Claim(call_id, "one"))
            conversation.execute(cmd.Return(call_id, "one", ToolResult("secret " + "x" * 5000)))
        text = results(conversation)[first].text
        assert text.startswith("***")
        assert len(text) < 1200
        assert conversation.get_output(first).text == "*** " + "x" * 5000
        assert "held back" in results(conversation)[odd].text
        assert conversation.run().status is S.FINISHED


def test_what_no_client_will_answer_is_settled(store: Store) -> None:
    world = World(store, ["far", "far", "far"])
    with world.open("go") as conversation:
        conversation.run()
        unclaimed, claimed, late = [offer.call.id for offer in conversation.state.offers]
        conversation.execute(cmd.Claim(claimed, "one"))
        conversation.execute(cmd.Claim(late, "one"))
        with pytest.raises(Conflict, match="claimed by 'one'"):
            conversation.execute(cmd.Settle(claimed, "Nobody took it.", runner=""))
        conversation.execute(cmd.Settle(unclaimed, "No client took it in 60 s.", runner=""))
        conversation.execute(cmd.Settle(claimed, "The client that ran it is gone."))
        conversation.execute(
            cmd.Settle(late, "The client did not answer in 600 s.", "timeout", "one")
        )
        with pytest.raises(NotPending, match="not open"):
            conversation.execute(cmd.Return(claimed, "one", ToolResult("x")))
        outcomes = results(conversation)
        assert outcomes[unclaimed].text == "Not run: No client took it in 60 s."
        errors = [outcomes[id].error for id in (unclaimed, claimed, late)]
        assert [error and error.type for error in errors] == ["cancelled", "unknown", "timeout"]
        assert [outcomes[id].meta.get("outcome") for id in (unclaimed, claimed, late)] == [
            None,
            "unknown",
            "unknown",
        ]
        assert conversation.run().status is S.FINISHED
        assert not list(malformed(conversation.get_history()))


def test_a_claimed_call_outlives_the_conversation_object_and_what_this_process_lost_is_settled_beside_it(
    store: Store,
) -> None:
    world = World(store, ["far", "near"])
    world.gate.clear()
    conversation = world.open("go")
    conversation.start_thread()
    assert world.began.wait(20)
    call_id = conversation.state.offers[0].call.id
    conversation.execute(cmd.Claim(call_id, "one"))
    conversation.close(0.1)  # `near` ignores its cancellation and is left behind
    with pytest.raises(ConversationClosed):
        conversation.execute(cmd.Return(call_id, "one", ToolResult("x")))
    with world.open() as again:
        assert again.run().status is S.RUNNING
        assert [(offer.call.id, offer.runner) for offer in again.state.offers] == [(call_id, "one")]
        assert [result.meta.get("outcome") for result in results(again).values()] == ["unknown"]
        again.execute(cmd.Return(call_id, "one", ToolResult("late")))
        assert again.run().status is S.FINISHED
        assert [event[0] for event in starts(again)].count(call_id) == 1
    world.gate.set()


def test_a_fork_or_a_copy_answers_what_clients_run(store: Store) -> None:
    world = World(store, ["far", "far"])
    with world.open("go") as conversation:
        conversation.run()
        call_id = conversation.state.offers[0].call.id
        conversation.execute(cmd.Claim(call_id, "one"))
        with (
            conversation.fork() as forked,
            Conversation.from_state(conversation.state, world.agent) as copied,
        ):
            for other, word, offers in (
                (forked, "forked", 0),
                (copied, "continued", 1),
            ):  # nobody had claimed the second
                assert [offer.runner for offer in other.state.offers] == [""] * offers
                assert all(word in result.text for result in results(other).values())
                assert results(other)[call_id].meta == {"outcome": "unknown"}
                with pytest.raises(NotPending, match="not open"):
                    other.execute(cmd.Return(call_id, "one", ToolResult("x")))
            assert forked.run().status is S.FINISHED
        assert len(conversation.state.offers) == 2


@pytest.mark.slow
def test_two_clients_that_race_for_a_call_have_one_winner(store: Store) -> None:
    world = World(store, [])
    calls, rounds = 20, 10
    world.llm = ScriptedLLM([*[[("far", {"text": "x"})] * calls for _ in range(rounds)], "Done."])
    agent = Agent(
        world.llm, [ClientTool("far", "Far.", input_schema=SCHEMA, parallel=True)], stuck=None
    )
    with Conversation(agent, store) as conversation:
        conversation.send_message("go")
        for _ in range(rounds):
            assert conversation.run().status is S.RUNNING
            won: dict[str, list[str]] = {offer.call.id: [] for offer in conversation.state.offers}
            line = threading.Barrier(2)

            def race(
                runner: str, won: dict[str, list[str]] = won, line: threading.Barrier = line
            ) -> None:
                for call_id in won:
                    line.wait(20)
                    with suppress(ConfigurationError, Conflict):
                        conversation.execute(cmd.Claim(call_id, runner), f"{call_id} {runner}")
                        won[call_id].append(runner)

            threads = [threading.Thread(target=race, args=(runner,)) for runner in ("one", "two")]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            assert len(won) == calls
            for call_id, winners in won.items():
                assert len(winners) == 1, "each call has one winner"
                conversation.execute(cmd.Return(call_id, winners[0], ToolResult("x")))
        assert conversation.run().status is S.FINISHED
        assert len(starts(conversation)) == calls * rounds


KILLED = """
import sys, time
from holdfast import SQLiteStore, commands as cmd
sys.path.insert(0, {repo!r})
from tests.conversation.test_client_calls import World
conversation = World(SQLiteStore({path!r}, "process"), ["far", "near"]).open("go")
conversation.run()
(offer,) = conversation.state.offers
conversation.execute(cmd.Claim(offer.call.id, "one"))
print(offer.call.id, flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_a_claimed_call_outlives_a_kill_of_the_server(tmp_path: Path) -> None:
    path = str(tmp_path / "k.db")
    program = KILLED.format(repo=str(REPO), path=path)
    with forks.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        call_id = process.stdout.readline().strip()
        process.kill()
        process.wait(20)
    assert call_id
    with SQLiteStore(path, "process") as store:
        tools = World(store, []).agent.tools
        with Conversation(Agent(ScriptedLLM(["Done."]), tools), store, "c") as conversation:
            assert conversation.run().status is S.RUNNING
            assert [(offer.call.id, offer.runner) for offer in conversation.state.offers] == [
                (call_id, "one")
            ]
            conversation.execute(cmd.Claim(call_id, "one"))
            conversation.execute(cmd.Return(call_id, "one", ToolResult("survived")))
            assert conversation.run().answer == "Done."
            assert results(conversation)[call_id].text == "survived"
            assert not list(malformed(conversation.get_history()))


# All operations on a conversation with an offer that needs approval, an offer that needs none, and
# a local call that needs approval.
STEPS = (
    "claim",
    "claim other",
    "return",
    "return other",
    "interrupt",
    "approve",
    "reject",
    "settle",
    "pause",
    "resume",
    "advance",
    "say",
    "reopen",
)


@pytest.mark.slow
@given(steps=st.lists(st.sampled_from(STEPS), max_size=14))
@settings(max_examples=examples(250), deadline=None, suppress_health_check=list(HealthCheck))
def test_no_order_of_events_loses_a_call_or_leaves_the_conversation_stuck(steps: list[str]) -> None:
    store = MemoryStore()
    llm = ScriptedLLM(
        [
            [("asked", {"text": "a"}), ("far", {"text": "f"}), ("near", {"text": "n"})],
            *["Done."] * 40,
        ]
    )

    def near(text: str) -> str:
        return text

    agent = Agent(
        llm,
        [
            ClientTool("asked", "", input_schema=SCHEMA),
            ClientTool("far", "", input_schema=SCHEMA),
            near,
        ],
        confirm=["asked", "near"],
    )
    conversation = Conversation(agent, store, "c")
    conversation.hosting.hosted = True
    conversation.send_message("go")
    conversation.hosting.advance()
    for step in [*steps, "reopen"]:
        state = conversation.state
        calls = [call.id for call in state.pending_calls]
        runner = "two" if step.endswith("other") else "one"
        with suppress(
            ConfigurationError, Conflict
        ):  # an operation that does not fit the state changes nothing
            match step.split(" ")[0]:
                case "claim":
                    for call_id in calls:
                        with suppress(ConfigurationError, Conflict):
                            conversation.execute(cmd.Claim(call_id, runner))
                            assert (call_id, runner) in [
                                (offer.call.id, offer.runner) for offer in conversation.state.offers
                            ]
                case "return":
                    for offer in state.offers:
                        conversation.execute(cmd.Return(offer.call.id, runner, ToolResult("x")))
                case "settle":
                    for offer in state.offers:
                        conversation.execute(cmd.Settle(offer.call.id, "gone."))
                case "approve":
                    conversation.approve()
                case "reject":
                    conversation.reject()
                case "say":
                    conversation.send_message("more")
                case "reopen":
                    conversation.close()
                    conversation = Conversation(agent, store, "c")
                    conversation.hosting.hosted = True
                case "advance":
                    conversation.hosting.advance()
                case name:
                    getattr(conversation, name)()
        before = {offer.call.id: offer.runner for offer in state.offers if offer.runner}
        after = {call.id for call in conversation.state.pending_calls}
        if step not in ("settle", "return", "return other"):
            assert before.keys() <= after, (
                "a claimed call ends by its result or is settled, by nothing else"
            )
    # After any sequence of operations, a user can end the conversation.
    for _ in range(6):
        conversation.resume()
        conversation.hosting.advance()
        if (
            conversation.status is S.WAITING_FOR_CONFIRMATION
            or conversation.state.pending_confirmations
        ):
            conversation.approve()
        for offer in conversation.state.offers:
            mine = offer.runner or "three"
            conversation.execute(cmd.Claim(offer.call.id, mine))
            conversation.execute(cmd.Return(offer.call.id, mine, ToolResult("x")))
    assert conversation.status in (
        S.FINISHED,
        S.IDLE,
    ), conversation.state  # idle if it was paused after its last call
    assert not conversation.hosting.has_work
    assert conversation.state.pending_calls == ()
    assert not list(malformed(conversation.get_history()))
    assert conversation.replay(agent).same
    conversation.close()


@pytest.mark.slow
def test_clients_approvers_and_interrupts_at_once_leave_no_call_without_a_result(
    store: Store,
) -> None:
    rounds = 30
    batch = [
        ("far", {"text": "a"}),
        ("asked", {"text": "b"}),
        ("near", {"text": "c"}),
        ("near", {"text": "d"}),
    ]

    def near(text: str) -> str:
        return text

    agent = Agent(
        # By the journal: an interrupt costs a script the answer that it cuts off.
        ScriptedLLM(lambda _: batch if conversation.state.steps < rounds else "Done."),
        [
            ClientTool("far", "", input_schema=SCHEMA),
            ClientTool("asked", "", input_schema=SCHEMA),
            near,
        ],
        confirm=["asked"],
    )
    over = threading.Event()
    with Conversation(agent, store, "c") as conversation:

        def again(what: Callable[[int], object]) -> None:
            turn = 0
            while not over.is_set():
                with suppress(ConfigurationError, Conflict):
                    what(turn)
                turn += 1

        def client(turn: int) -> None:
            for offer in conversation.state.offers:
                me = threading.current_thread().name
                with suppress(ConfigurationError, Conflict):
                    conversation.execute(cmd.Claim(offer.call.id, me), f"claim {me} {turn}")
                    conversation.execute(
                        cmd.Return(offer.call.id, me, ToolResult("x")), f"return {me} {turn}"
                    )

        def disturb(turn: int) -> None:
            conversation.interrupt() if turn % 2 else conversation.pause()
            conversation.resume()
            over.wait(0.005)

        works = (client, client, lambda _: conversation.approve(), disturb)
        threads = [
            threading.Thread(target=again, args=(work,), name=f"r{number}")
            for number, work in enumerate(works)
        ]
        conversation.send_message("go")
        conversation.start_thread()
        for thread in threads:
            thread.start()
        until(
            lambda: (
                conversation.status in (S.FINISHED, S.IDLE) and not conversation.state.pending_calls
            )
        )
        over.set()
        for thread in threads:
            thread.join(20)
        events = conversation.get_history()
        assert not list(malformed(events))
        assert len(results(conversation)) == rounds * len(batch)
        assert conversation.state.answer == "Done."
        assert conversation.replay(agent).same


ONE, TWO = ToolCall("4.0", "far"), ToolCall("4.1", "near")
FIRST_EVENTS = (
    (
        ev.AgentConfigured,
        {
            "system_prompt": "",
            "tools": (
                ev.ToolDefinition("far", "", {}, "", "client", True),
                ev.ToolDefinition("near", "", {}, parallel=True),
            ),
        },
    ),
    (ev.MessageAdded, {"content": (TextContent("go"),)}),
    (ev.StatusChanged, {"status": "running"}),
)
CLAIMED = (ev.ToolCallStarted, {"call_id": "4.0", "runner": "one"})
NEXT = {
    "an offer is waited for": ([ONE], (), AwaitEvents()),
    "its parallel neighbours are run": ([ONE, TWO], (), RunCalls((TWO,))),
    "a claimed call is not lost": ([ONE], (CLAIMED,), AwaitEvents()),
    "what was started here is": (
        [ONE, TWO],
        (CLAIMED, (ev.ToolCallStarted, {"call_id": "4.1"})),
        RecoverCalls((TWO,)),
    ),
    "an offer is waited for before a decision": (
        [ONE, TWO],
        ((ev.DecisionMade, {"call_id": "4.1", "decision": "ask"}),),
        AwaitEvents(),
    ),
    "a decision comes before the offer": (
        [ONE],
        ((ev.DecisionMade, {"call_id": "4.0", "decision": "ask"}),),
        Stop(S.WAITING_FOR_CONFIRMATION),
    ),
    "a result is answered": (
        [ONE],
        (CLAIMED, (ev.ToolCallFinished, {"call_id": "4.0", "result": ToolResult("x")})),
        CallModel(),
    ),
}


@pytest.mark.parametrize("name", NEXT)
def test_next_action_of_offers(name: str) -> None:
    calls, more, expected = NEXT[name]
    parts = (*FIRST_EVENTS, (ev.AssistantReplied, {"based_on": 3, "calls": tuple(calls)}), *more)
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert (
        next_action(
            fold(
                [
                    kind(seq=n, id=str(n), timestamp=now, **fields)
                    for n, (kind, fields) in enumerate(parts, 1)
                ]
            )
        )
        == expected
    )


def test_what_is_not_said_is_not_written() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert (
        b"runner" not in ev.ToolCallStarted(seq=1, id="a", timestamp=now, call_id="1.0").to_json()
    )
    head = ev.AgentConfigured(
        seq=1, id="a", timestamp=now, system_prompt="", tools=(ev.ToolDefinition("far", "", {}),)
    )
    assert b"executor" not in head.to_json()
    assert (
        cmd.encode(cmd.Send("hi")) == b'{"command":"send","content":[{"type":"text","text":"hi"}]}'
    )
    for command in (
        cmd.Claim("3.0", "one"),
        cmd.Return("3.0", "one", ToolResult("x"), 2.0),
        cmd.Settle("3.0", "gone.", "timeout", "one"),
    ):
        assert cmd.decode(cmd.encode(command)) == command
    with pytest.raises(ConfigurationError, match="runner"):
        cmd.Claim("3.0", "")
