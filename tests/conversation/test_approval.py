"""Approval: which calls wait for a decision and who may approve them. Only an approval runs such a
call. The tests use both stores and real threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    Agent,
    Conversation,
    ConversationState,
    ConversationStatus,
    MemoryStore,
    ScriptedLLM,
    SQLiteStore,
    Tool,
    ToolCall,
    tool,
)
from holdfast import commands as cmd
from holdfast import events as ev
from holdfast.agent.confirmation import Verdict
from holdfast.errors import ConfigurationError, Conflict, NotPending, ToolValidationError
from holdfast.store import Store
from tests.waiting import until

S = ConversationStatus


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with (
        MemoryStore() if request.param == "memory" else SQLiteStore(tmp_path / "s.db", "process")
    ) as backend:
        yield backend


class World:
    """A model that asks for calls and then says "Done.", and a tool that records what it ran."""

    def __init__(
        self,
        store: Store,
        calls: list[Any],
        confirm: Any = "always",
        parallel: bool = False,
        **options: Any,
    ) -> None:
        self.ran: list[str] = []
        self.gate = threading.Event()
        self.llm = ScriptedLLM(
            [
                [part if isinstance(part, tuple) else ("note", {"text": part}) for part in calls],
                "Done.",
                "Again.",
            ]
        )

        @tool(parallel=parallel)
        def note(text: str) -> str:
            """Notes."""
            self.ran.append(text)
            return f"noted {text}"

        @tool(parallel=parallel)
        def slow(text: str) -> str:
            """Waits."""
            assert self.gate.wait(10)
            self.ran.append(text)
            return f"slowly noted {text}"

        self.agent = Agent(self.llm, [note, slow], confirm=confirm, **options)
        self.store = store

    def open(self, message: str | None = None) -> Conversation:
        conversation = Conversation(self.agent, self.store, "c")
        if message is not None:
            conversation.send_message(message)
        conversation.start_thread()
        return conversation


def results(conversation: Conversation) -> dict[str, ev.ToolCallFinished]:
    return {
        event.call_id: event
        for event in conversation.get_history()
        if isinstance(event, ev.ToolCallFinished)
    }


def decisions(conversation: Conversation) -> list[tuple[str, str]]:
    return [
        (event.call_id, event.decision)
        for event in conversation.get_history()
        if isinstance(event, ev.DecisionMade)
    ]


def test_a_call_waits_until_it_is_approved(store: Store) -> None:
    world = World(store, ["a"])
    with world.open("go") as conversation:
        assert conversation.wait(10) is S.WAITING_FOR_CONFIRMATION
        assert world.ran == []
        [pending] = conversation.state.pending_confirmations
        assert (pending.call.name, pending.call.arguments) == ("note", {"text": "a"})
        assert pending.reason == "every call is to be confirmed"
        conversation.approve(
            pending.call.id, arguments_hash=pending.arguments_hash, by="ann", reason="fine"
        )
        assert conversation.wait(10) is S.FINISHED
        assert world.ran == ["a"]
        [approval] = [
            event
            for event in conversation.get_history()
            if isinstance(event, ev.DecisionMade) and event.decision == "approve"
        ]
        assert (approval.by, approval.reason, approval.arguments_hash) == (
            "ann",
            "fine",
            pending.call.arguments_hash,
        )


def test_a_message_while_it_waits_approves_nothing(store: Store) -> None:
    world = World(store, ["a"])
    with world.open("go") as conversation:
        conversation.wait(10)
        conversation.send_message("yes, approve it, run it, y")
        time.sleep(0.05)
        assert conversation.status is S.WAITING_FOR_CONFIRMATION
        assert world.ran == []
        conversation.reject(reason="not now")
        assert conversation.wait(10) is S.FINISHED
        assert world.ran == []
        # The result comes first, then the message that arrived while the call waited.
        assert [message["role"] for message in world.llm.requests[1].messages[-2:]] == [
            "tool",
            "user",
        ]
        assert (
            "the user rejected this call: not now" in world.llm.requests[1].messages[-2]["content"]
        )


def test_other_arguments_are_run_and_the_model_is_told(store: Store) -> None:
    world = World(store, ["a"])
    with world.open("go") as conversation:
        conversation.wait(10)
        [pending] = conversation.state.pending_confirmations
        with pytest.raises(ToolValidationError):
            conversation.approve(pending.call.id, arguments={"txt": "b"})
        assert conversation.status is S.WAITING_FOR_CONFIRMATION
        conversation.approve(pending.call.id, arguments={"text": "b"})
        assert conversation.wait(10) is S.FINISHED
        assert world.ran == ["b"]
        request = world.llm.requests[1].text
        assert '{"text":"b"}' in request
        assert "noted b" in request


def test_an_approval_is_bound_to_the_arguments_that_were_seen(store: Store) -> None:
    world = World(store, ["a"])
    with world.open("go") as conversation:
        conversation.wait(10)
        [pending] = conversation.state.pending_confirmations
        other = ToolCall("", "note", {"text": "something else"}).arguments_hash
        with pytest.raises(Conflict, match="other arguments"):
            conversation.approve(pending.call.id, arguments_hash=other)
        store.post("c", cmd.Approve(pending.call.id, other))
        until(lambda: decisions(conversation)[-1][1] == "ask")
        time.sleep(0.1)
        assert world.ran == []
        assert conversation.status is S.WAITING_FOR_CONFIRMATION
        with pytest.raises(
            NotPending,
            match=f"'9.9' does not wait for a decision. These do: {pending.call.id}",
        ):
            conversation.approve("9.9")
        with pytest.raises(ConfigurationError, match="with a call_id"):
            conversation.approve(arguments={"text": "b"})
        conversation.approve()
        assert conversation.wait(10) is S.FINISHED
        with pytest.raises(NotPending, match="No call waits"):
            conversation.approve()
        with pytest.raises(NotPending, match="No call waits"):
            conversation.reject()


def test_allowed_siblings_run_at_once_and_an_approved_one_joins_them(store: Store) -> None:
    world = World(store, ["a", ("slow", {"text": "s"}), "b"], confirm=["note"], parallel=True)
    with world.open("go") as conversation:
        until(
            lambda: any(
                isinstance(event, ev.ToolCallStarted) for event in conversation.get_history()
            )
        )
        assert conversation.status is S.RUNNING
        first, second = conversation.state.pending_confirmations
        conversation.approve(first.call.id)
        until(lambda: world.ran == ["a"])  # while `slow` still runs
        world.gate.set()
        assert conversation.wait(10) is S.WAITING_FOR_CONFIRMATION
        assert world.ran == ["a", "s"]
        conversation.approve(second.call.id)
        assert conversation.wait(10) is S.FINISHED
        assert world.ran == ["a", "s", "b"]
        contents = [
            message["content"]
            for message in world.llm.requests[1].messages
            if message["role"] == "tool"
        ]
        assert contents == ["noted a", "slowly noted s", "noted b"]


def test_one_of_two_is_rejected_and_the_other_still_waits(store: Store) -> None:
    world = World(store, ["a", "b"])
    with world.open("go") as conversation:
        conversation.wait(10)
        first, second = conversation.state.pending_confirmations
        conversation.reject(first.call.id)
        assert conversation.wait(10) is S.WAITING_FOR_CONFIRMATION
        conversation.approve(second.call.id)
        assert conversation.wait(10) is S.FINISHED
        assert world.ran == ["b"]
        assert results(conversation)[first.call.id].result.meta == {"decision": "reject"}


def test_what_is_denied_is_not_run_and_nobody_is_asked(store: Store) -> None:
    world = World(store, ["a", ("slow", {"text": "s"})], confirm={"note": "deny", "*": "allow"})
    world.gate.set()
    with world.open("go") as conversation:
        assert conversation.wait(10) is S.FINISHED
        assert world.ran == ["s"]
        assert [kind for _, kind in decisions(conversation)] == ["deny", "allow"]
        assert (
            "every call of note is forbidden here"
            in next(iter(results(conversation).values())).result.text
        )


def test_a_policy_of_ones_own_is_asked_and_one_that_fails_lets_nothing_through(
    store: Store,
) -> None:
    class Policy:
        def decide(self, call: ToolCall, risk: Any) -> Verdict:
            if call.arguments["text"] == "x":
                raise RuntimeError("no idea")
            return (
                Verdict("ask", "it looks odd")
                if call.arguments["text"] == "odd"
                else Verdict("allow")
            )

    world = World(store, ["a", "odd", "x", ("nothing", {"text": "b"})], confirm=Policy())
    with world.open("go") as conversation:
        assert conversation.wait(10) is S.WAITING_FOR_CONFIRMATION
        assert [pending.reason for pending in conversation.state.pending_confirmations] == [
            "it looks odd",
            "the confirmation policy failed: RuntimeError: no idea",
        ]
        assert world.ran == ["a"]
        conversation.reject()
        assert conversation.wait(10) is S.FINISHED


def test_no_policy_writes_no_decision(store: Store) -> None:
    world = World(store, ["a"], confirm="never")
    with world.open("go") as conversation:
        assert conversation.wait(10) is S.FINISHED
        assert decisions(conversation) == []


@pytest.mark.parametrize("wrong", ["sometimes", {"note": "perhaps"}, [1], 5, None])
def test_a_wrong_policy_is_refused_by_name(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="confirm takes"):
        Agent(ScriptedLLM([]), confirm=wrong)


def test_a_waiting_call_survives_and_is_approved_by_whoever_opens_it_next(store: Store) -> None:
    world = World(store, ["a", "b"])
    with world.open("go") as conversation:
        conversation.wait(10)
        conversation.approve(conversation.state.pending_confirmations[0].call.id)
        conversation.wait(10)
    assert conversation.status is S.CLOSED
    with Conversation(world.agent, store, "c") as again:
        assert again.status is S.WAITING_FOR_CONFIRMATION
        assert [
            pending.call.arguments["text"] for pending in again.state.pending_confirmations
        ] == ["b"]
        assert again.run().status is S.WAITING_FOR_CONFIRMATION
        again.approve()
        assert again.run().status is S.FINISHED
        assert world.ran == ["a", "b"]


def test_pause_and_resume_come_back_to_waiting_and_an_interrupt_refuses(store: Store) -> None:
    world = World(store, ["a", "b"])
    with world.open("go") as conversation:
        conversation.wait(10)
        conversation.pause()
        assert conversation.status is S.PAUSED
        conversation.approve(conversation.state.pending_confirmations[0].call.id)
        time.sleep(0.05)
        assert world.ran == []  # approved, and still paused
        conversation.resume()
        assert conversation.wait(10) is S.WAITING_FOR_CONFIRMATION
        assert world.ran == ["a"]
        conversation.pause()
        conversation.resume()
        assert conversation.status is S.WAITING_FOR_CONFIRMATION
        conversation.interrupt()
        assert conversation.status is S.PAUSED
        assert conversation.state.pending_calls == ()
        conversation.resume()
        assert conversation.wait(10) is S.FINISHED
        assert world.ran == ["a"]


def test_a_state_with_waiting_calls_waits_elsewhere_too(store: Store) -> None:
    world = World(store, ["a"])
    with world.open("go") as conversation:
        conversation.wait(10)
        saved = ConversationState.from_json(conversation.state.to_json())
    with Conversation.from_state(saved, world.agent) as other:
        assert other.run().status is S.WAITING_FOR_CONFIRMATION
        assert world.ran == []
        other.approve()
        assert other.run().answer == "Done."
    assert world.ran == ["a"]


def test_commands_come_through_the_inbox_each_once(store: Store) -> None:
    world = World(store, ["a", "b"])
    with world.open("go") as conversation:
        conversation.wait(10)
        first, second = conversation.state.pending_confirmations
        assert store.post(
            "c", cmd.Approve(first.call.id, first.arguments_hash, {"text": "A"}, by="ann"), key="1"
        )
        assert not store.post("c", cmd.Approve(first.call.id, first.arguments_hash), key="1")
        until(lambda: world.ran == ["A"])
        store.post("c", cmd.Send("and tell me why"))
        store.post("c", cmd.Reject(second.call.id, "no"))
        until(lambda: conversation.status is S.FINISHED)
        store.post("c", cmd.Send("more"), key="2")
        store.post("c", cmd.Send("more"), key="2")
        until(lambda: conversation.state.answer == "Again.")
        texts = [
            event.text for event in conversation.get_history() if isinstance(event, ev.MessageAdded)
        ]
        assert texts == ["go", "and tell me why", "more"]
        assert not store.post("c", cmd.Send("more"), key="2")


def test_pause_resume_and_interrupt_come_through_the_inbox(store: Store) -> None:
    world = World(store, [("slow", {"text": "s"}), "b"], confirm="never", parallel_calls=1)
    with world.open("go") as conversation:
        until(
            lambda: any(
                isinstance(event, ev.ToolCallStarted) for event in conversation.get_history()
            )
        )
        store.post("c", cmd.Pause())
        until(lambda: conversation.status is S.PAUSED)
        store.post("c", cmd.Interrupt())
        until(lambda: len(results(conversation)) == 1)  # the one that waited for its turn
        world.gate.set()
        store.post("c", cmd.Resume())
        until(lambda: conversation.status is S.FINISHED)
        assert "b" not in world.ran


def test_what_is_posted_while_nobody_holds_it_is_done_when_it_is_opened(store: Store) -> None:
    world = World(store, ["a"])
    with world.open("go") as conversation:
        conversation.wait(10)
        [pending] = conversation.state.pending_confirmations
    store.post("c", cmd.Approve(pending.call.id, pending.arguments_hash))
    assert world.ran == []
    with Conversation(world.agent, store, "c") as again:
        assert again.status is S.WAITING_FOR_CONFIRMATION  # the constructor only reads
        assert again.run().answer == "Done."
    assert world.ran == ["a"]


def test_a_command_that_does_not_fit_is_dropped_with_a_warning(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(store, ["a"])
    with world.open("go") as conversation:
        conversation.wait(10)
        store.post("c", cmd.Reject("77.0"))
        store.post("c", cmd.Send("\n "))
        until(lambda: caplog.text.count("was dropped") == 2)
        assert conversation.status is S.WAITING_FOR_CONFIRMATION
        conversation.approve()
        assert conversation.wait(10) is S.FINISHED


@pytest.mark.parametrize("wrong", ["hello", None, b"{}", {"command": "pause"}])
def test_what_is_no_command_is_refused(store: Store, wrong: Any) -> None:
    store.release(store.acquire("c"))
    with pytest.raises(ConfigurationError, match=r"post takes a command"):
        store.post("c", wrong)
    with pytest.raises(ConfigurationError, match="given nothing"):
        cmd.Send("")  # pyright: ignore


@pytest.mark.parametrize(
    "command",
    [
        cmd.Send("hi"),
        cmd.Approve("1.0", "h", {"a": [1]}),
        cmd.Reject("1.0", "no"),
        cmd.Pause(),
        cmd.Resume(),
        cmd.Interrupt(),
    ],
)
def test_commands_keep_their_json_form(command: cmd.Command) -> None:
    assert cmd.decode(cmd.encode(command)) == command
    assert (
        cmd.encode(cmd.Send("hi")) == b'{"command":"send","content":[{"type":"text","text":"hi"}]}'
    )  # pyright: ignore


def test_an_approval_that_comes_before_its_siblings_have_begun_joins_them_too(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.conversation.calls import Calls

    world = World(store, ["a", ("slow", {"text": "s"})], confirm=["note"])
    run = Calls.run
    approved = threading.Event()

    def late(self: Calls, *arguments: Any) -> None:
        assert approved.wait(10)
        run(self, *arguments)

    monkeypatch.setattr(Calls, "run", late)
    with world.open("go") as conversation:
        until(lambda: conversation.state.pending_confirmations)
        conversation.approve()
        approved.set()
        until(lambda: world.ran == ["a"])  # while `slow` still runs
        world.gate.set()
        assert conversation.wait(10) is S.FINISHED


def test_new_arguments_that_do_not_fit_are_not_taken_from_the_inbox_either(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(store, ["a"])
    with world.open("go") as conversation:
        conversation.wait(10)
        [pending] = conversation.state.pending_confirmations
        store.post("c", cmd.Approve(pending.call.id, pending.arguments_hash, {"txt": 1}))
        until(lambda: "was dropped" in caplog.text)
        assert conversation.status is S.WAITING_FOR_CONFIRMATION
        assert world.ran == []


def test_approvals_while_helpers_are_being_started_lose_none_of_them(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.conversation.calls import Calls

    world = World(
        store,
        [*(("slow", {"text": f"s{n}"}) for n in range(3)), "a", "b"],
        confirm=["note"],
        parallel=True,
        parallel_calls=6,
    )
    start = Calls._start_thread
    began = threading.Event()

    def slowly(self: Calls, *arguments: Any) -> threading.Thread:
        began.set()
        time.sleep(0.02)
        return start(self, *arguments)

    monkeypatch.setattr(Calls, "_start_thread", slowly)
    with world.open("go") as conversation:
        assert began.wait(10)
        for pending in conversation.state.pending_confirmations:
            conversation.approve(pending.call.id)
        until(lambda: sorted(world.ran) == ["a", "b"])
        world.gate.set()
        assert conversation.wait(10) is S.FINISHED
        assert sorted(world.ran) == ["a", "b", "s0", "s1", "s2"]
        assert not any(event.result.is_error for event in results(conversation).values())


def test_a_call_that_was_approved_from_elsewhere_may_not_wait_for_its_own_conversation(
    store: Store,
) -> None:
    raised: list[str] = []
    running, gate = threading.Event(), threading.Event()

    @tool(parallel=True)
    def waits() -> str:
        """Waits for itself."""
        try:
            conversation.wait(30)
        except Exception as error:
            raised.append(type(error).__name__)
        return "waited"

    @tool(parallel=True)
    def slow() -> str:
        """Slow."""
        running.set()
        gate.wait(10)
        return "slow"

    agent = Agent(
        ScriptedLLM([[("slow", {}), ("waits", {})], "Done."]), [waits, slow], confirm=["waits"]
    )
    with Conversation(agent, store, "c") as conversation:
        conversation.send_message("go")
        conversation.start_thread()
        assert running.wait(10)
        conversation.approve()
        until(lambda: raised)
        gate.set()
        assert conversation.wait(10) is S.FINISHED
    assert raised == ["ConversationBusy"]


@pytest.mark.parametrize("reason", [None, 5, "half \ud800"])
def test_a_verdict_with_a_reason_that_is_none_lets_nothing_through(
    store: Store, reason: Any
) -> None:
    class Policy:
        def decide(self, call: ToolCall, risk: Any) -> Verdict:
            call.arguments["text"] = "changed by the policy"
            return Verdict("ask", reason)

    world = World(store, ["a"], confirm=Policy())
    with world.open("go") as conversation:
        assert conversation.wait(10) is S.WAITING_FOR_CONFIRMATION
        assert world.ran == []
        assert store.read("c") == conversation.get_history()
        conversation.approve()
        assert conversation.wait(10) is S.FINISHED
    assert world.ran == ["a"]  # a policy may not change the arguments that the model gave


def test_a_tool_that_comes_later_in_the_same_answer_is_decided_about_too(store: Store) -> None:
    ran: list[str] = []

    @tool
    def load() -> str:
        """Registers another."""
        agent.tools.register(Tool("danger", "", lambda: ran.append("danger")))
        return "loaded"

    agent = Agent(
        ScriptedLLM([[("load", {}), ("danger", {})], "Done."]),
        [load],
        confirm={"load": "allow", "*": "deny"},
        parallel_calls=1,
    )
    with Conversation(agent, store, "c") as conversation:
        conversation.send_message("go")
        assert conversation.run().status is S.FINISHED
    assert ran == []


@pytest.mark.parametrize(
    "arguments", [{"text": float("nan")}, {"text": "\ud800"}, {"text": object()}, ["text"], "text"]
)
def test_new_arguments_must_be_json_and_are_a_copy(store: Store, arguments: Any) -> None:
    world = World(store, ["a"])
    with world.open("go") as conversation:
        conversation.wait(10)
        [pending] = conversation.state.pending_confirmations
        with pytest.raises(
            ConfigurationError, match=r"arguments (must be valid JSON|takes a dict)"
        ):
            conversation.approve(pending.call.id, arguments=arguments)
        good = {"text": "b"}
        conversation.pause()
        conversation.approve(pending.call.id, arguments=good)
        good["text"] = "changed afterwards"
        conversation.resume()
        assert conversation.wait(10) is S.FINISHED
    assert world.ran == ["b"]


def test_a_validator_that_raises_anything_does_not_block_the_inbox_or_reach_the_log(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    class Odd(Tool):
        def validate(self, arguments: dict[str, Any]) -> dict[str, Any]:
            if "secret" in arguments:
                raise KeyError("hunter2")
            return arguments

    ran: list[dict[str, Any]] = []
    odd = Odd(
        "odd",
        "",
        lambda **arguments: ran.append(arguments),
        {"type": "object", "properties": {}, "additionalProperties": True},
    )
    with Conversation(
        Agent(ScriptedLLM([("odd", {}), "Done."]), [odd], confirm="always"), store, "c"
    ) as conversation:
        conversation.send_message("go")
        conversation.start_thread()
        conversation.wait(10)
        [pending] = conversation.state.pending_confirmations
        store.post("c", cmd.Approve(pending.call.id, pending.arguments_hash, {"secret": "hunter2"}))
        store.post("c", cmd.Approve(pending.call.id, pending.arguments_hash))
        until(lambda: conversation.status is S.FINISHED)
    assert ran == [{}]
    assert "was dropped" in caplog.text
    assert "hunter2" not in caplog.text


def test_a_run_that_failed_in_a_batch_can_be_resumed() -> None:
    @tool(parallel=True)
    def bad() -> str:
        """Raises what no tool should."""
        raise KeyboardInterrupt

    llm = ScriptedLLM([[("bad", {}), ("bad", {})], "Done."])
    with Conversation(Agent(llm, [bad])) as conversation:
        conversation.send_message("go")
        conversation.start_thread()
        assert conversation.wait(10) is S.ERROR
        conversation.resume()
        assert conversation.wait(10) is S.FINISHED
    assert len(llm.requests) == 2


@pytest.mark.slow
def test_thousands_of_posts_are_done_in_their_order_and_not_in_quadratic_time(
    tmp_path: Path,
) -> None:
    with SQLiteStore(tmp_path / "s.db", "process") as store:
        store.release(store.acquire("c"))
        for number in range(3000):
            store.post("c", cmd.Send(f"{number}"))  # pyright: ignore
        with Conversation(Agent(ScriptedLLM(["Done."])), store, "c") as conversation:
            began = time.process_time()
            conversation.run()
            assert time.process_time() - began < 10, (
                "it was 15 s when each command read the whole inbox"
            )
            texts = [
                event.text
                for event in conversation.get_history()
                if isinstance(event, ev.MessageAdded)
            ]
    assert texts == [str(number) for number in range(3000)]


@pytest.mark.parametrize(
    "wrong",
    [cmd.Approve(3, 4), cmd.Reject("1.0", None), cmd.Approve("1.0", "h", [1])],  # pyright: ignore
)
def test_a_command_of_the_wrong_types_is_refused(store: Store, wrong: Any) -> None:
    store.release(store.acquire("c"))
    with pytest.raises(ConfigurationError, match="post: the command must be valid JSON"):
        store.post("c", wrong)
