"""The inbox of an open conversation: commands that arrive while user code judges earlier ones,
and the threads that execute them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    Agent,
    Conversation,
    Hook,
    MemoryStore,
    ScriptedLLM,
    SQLiteStore,
    Tool,
    ToolContext,
)
from holdfast import commands as cmd
from holdfast import events as ev
from holdfast.conversation import ConversationStatus
from holdfast.conversation.hosting import Hosting
from holdfast.errors import ConversationClosed
from holdfast.store import Store
from tests.waiting import until

S = ConversationStatus


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with MemoryStore() if request.param == "memory" else SQLiteStore(tmp_path / "s.db") as backend:
        yield backend


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shared.db"


class Gate:
    """A hook that blocks messages with the text "wait" until it is opened, and ignores its
    cancellation."""

    def __init__(self) -> None:
        self.entered, self._open = threading.Event(), threading.Event()
        self.threads: list[threading.Thread] = []

    def __call__(self, message: Any, context: ToolContext) -> None:
        self.threads.append(threading.current_thread())
        if message.text == "wait":
            self.entered.set()
            assert self._open.wait(60)

    def open(self) -> None:
        self._open.set()

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *_: object) -> None:
        self.open()


def agent_with_hook(hook: Callable[..., Any], *script: Any, **options: Any) -> Agent:
    return Agent(ScriptedLLM([*script, *["done"] * 9]), hooks=[Hook(hook, on="message")], **options)


def messages(conversation: Conversation) -> list[str]:
    history = conversation.get_history()
    return [event.text for event in history if isinstance(event, ev.MessageAdded)]


def drainers(conversation: Conversation) -> list[threading.Thread]:
    name = f"holdfast-inbox-{conversation.id}"
    return [thread for thread in threading.enumerate() if thread.name == name]


def test_a_hook_of_one_conversation_delays_no_other_one_of_the_store(path: Path) -> None:
    with (
        SQLiteStore(path) as store,
        SQLiteStore(path) as other,
        Gate() as gate,
        Conversation(agent_with_hook(gate), store, "slow") as slow,
        Conversation(Agent(ScriptedLLM(["done"])), store, "quick") as quick,
    ):
        slow.start_thread()
        quick.start_thread()
        other.post("slow", cmd.Send("wait"))
        assert gate.entered.wait(30)
        other.post("quick", cmd.Send("hello"))
        until(lambda: quick.status is S.FINISHED)
        assert messages(slow) == []
        gate.open()
        until(lambda: slow.status is S.FINISHED)
        until(lambda: not drainers(slow) and not drainers(quick))


def test_a_post_does_not_wait_for_the_hooks_of_its_message(store: Store) -> None:
    with Gate() as gate, Conversation(agent_with_hook(gate), store, "c") as conversation:
        conversation.start_thread()
        store.post("c", cmd.Send("wait"))
        assert gate.entered.wait(30)
        assert gate.threads != [threading.current_thread()]
        gate.open()
        until(lambda: conversation.status is S.FINISHED)


def test_the_store_shows_that_it_lives_while_a_hook_is_asked(path: Path) -> None:
    with (
        SQLiteStore(path, lease_seconds=0.3) as store,
        SQLiteStore(path) as other,
        Gate() as gate,
        Conversation(agent_with_hook(gate), store, "c") as conversation,
    ):
        conversation.start_thread()
        (owner,) = [file for file in path.parent.glob("*-owners/*") if file.is_file()]
        other.post("c", cmd.Send("wait"))
        assert gate.entered.wait(30)
        for _ in range(2):
            before = os.stat(owner).st_mtime_ns
            until(lambda before=before: os.stat(owner).st_mtime_ns > before, "a heartbeat")
        gate.open()


@pytest.mark.parametrize("command", [cmd.Interrupt(), cmd.Pause()])
def test_a_posted_stop_passes_a_posted_message_whose_hook_is_slow(
    path: Path, command: cmd.Command
) -> None:
    started = threading.Event()

    def work(context: ToolContext) -> str:
        """Work until cancelled."""
        started.set()
        context.sleep(60)
        return "done"

    with (
        SQLiteStore(path) as store,
        SQLiteStore(path) as other,
        Gate() as gate,
        Conversation(agent_with_hook(gate, ("work", {}), tools=[work]), store, "c") as conversation,
    ):
        conversation.start_thread()
        conversation.send_message("go")
        assert started.wait(30)
        other.post("c", cmd.Send("wait"))
        assert gate.entered.wait(30)
        other.post("c", command)
        until(lambda: conversation.status is S.PAUSED)
        assert messages(conversation) == ["go"]
        gate.open()
        until(lambda: messages(conversation) == ["go", "wait"])
        conversation.interrupt()


def agent_with_slow_validator() -> tuple[Agent, threading.Event, threading.Event]:
    """Return an agent whose call waits for an approval; an event that is set when edited
    arguments are being validated; and an event that ends the validation."""
    entered, go_on = threading.Event(), threading.Event()

    class Slow(Tool):
        def validate(self, arguments: dict[str, Any]) -> dict[str, Any]:
            if "slow" in arguments:
                entered.set()
                assert go_on.wait(60)
            return arguments

    schema = {"type": "object", "properties": {}, "additionalProperties": True}
    slow = Slow("slow", "", lambda **arguments: "ok", schema)
    agent = Agent(ScriptedLLM([("slow", {}), "Done."]), [slow], confirm="always")
    return agent, entered, go_on


def test_a_posted_interrupt_passes_an_approval_whose_arguments_are_validated(store: Store) -> None:
    agent, entered, go_on = agent_with_slow_validator()
    with Conversation(agent, store, "c") as conversation:
        conversation.send_message("go")
        [waiting] = conversation.run().pending_confirmations
        edited = cmd.Approve(waiting.call.id, waiting.arguments_hash, {"slow": True})
        store.post("c", edited)
        assert entered.wait(30)
        store.post("c", cmd.Interrupt())
        until(lambda: conversation.status is S.PAUSED)
        assert store.list(["c"], waiting=True)  # the approval is still being judged
        go_on.set()
        until(lambda: not store.list(["c"], waiting=True))


def test_run_waits_for_a_posted_approval_whose_arguments_are_validated(store: Store) -> None:
    agent, entered, go_on = agent_with_slow_validator()
    with Conversation(agent, store, "c") as conversation:
        conversation.send_message("go")
        [waiting] = conversation.run().pending_confirmations
        store.post("c", cmd.Approve(waiting.call.id, waiting.arguments_hash, {"slow": True}))
        assert entered.wait(30)
        opener = threading.Timer(0.2, go_on.set)
        opener.start()
        assert conversation.run().status is S.FINISHED
        opener.join()


def test_run_goes_on_after_an_approval_that_came_as_its_loop_ended(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, _, _ = agent_with_slow_validator()
    with Conversation(agent, store, "c") as conversation:
        conversation.send_message("go")
        drive = Hosting.drive

        def drive_then_approve(self: Hosting, *arguments: Any, **options: Any) -> None:
            drive(self, *arguments, **options)
            if pending := conversation.state.pending_confirmations:
                conversation.approve(pending[0].call.id)

        monkeypatch.setattr(Hosting, "drive", drive_then_approve)
        assert conversation.run().status is S.FINISHED


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), ValueError("x")])
def test_a_hook_that_raises_anything_denies_its_message_and_ends_no_thread_of_the_store(
    path: Path, error: BaseException
) -> None:
    def hook(message: Any, context: Any) -> None:
        if message.text == "bad":
            raise error

    with (
        SQLiteStore(path) as store,
        SQLiteStore(path) as other,
        Conversation(agent_with_hook(hook), store, "c") as conversation,
    ):
        conversation.start_thread()
        other.post("c", cmd.Send("bad"), "k")
        until(lambda: other.refusal("c", "k"))
        refusal = other.refusal("c", "k")
        assert refusal is not None
        assert refusal.type == "HookDenied"
        assert type(error).__name__ in refusal.message
        other.post("c", cmd.Send("good"))
        until(lambda: conversation.status is S.FINISHED)
        assert messages(conversation) == ["good"]


def test_a_close_frees_all_that_wait_for_a_hook_that_ignores_it(store: Store) -> None:
    errors: list[BaseException] = []
    with Gate() as gate:
        conversation = Conversation(agent_with_hook(gate), store, "c")

        def execute(text: str, key: str | None) -> None:
            try:
                conversation.execute(cmd.Send(text), key)
            except ConversationClosed as error:
                errors.append(error)

        asking = threading.Thread(target=execute, args=("wait", "k1"))
        asking.start()
        assert gate.entered.wait(30)
        waiting = [
            threading.Thread(target=execute, args=("second", key)) for key in ("k1", "k2", None)
        ]
        for thread in waiting:
            thread.start()
        until(lambda: len(store.list(["c"], waiting=True)) == 1)
        time.sleep(0.05)
        conversation.close(1.0)
        for thread in waiting:
            thread.join(30)
            assert not thread.is_alive()
        assert len(errors) == 3
        gate.open()
        asking.join(30)
        assert len(errors) == 4
    with Conversation(Agent(ScriptedLLM(["done"])), store, "c") as conversation:
        conversation.run()
        assert messages(conversation) == ["wait", "second"]


def test_a_close_waits_for_the_thread_of_the_inbox_and_names_one_that_does_not_end(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    with Gate() as gate:
        conversation = Conversation(agent_with_hook(gate), store, "c")
        conversation.start_thread()
        store.post("c", cmd.Send("wait"))
        assert gate.entered.wait(30)
        (thread,) = drainers(conversation)
        conversation.close(0.2)
        assert "still run: holdfast-inbox-c" in caplog.text
        gate.open()
        thread.join(30)
    ended = threading.Event()

    def obedient(message: Any, context: ToolContext) -> None:
        ended.set()
        context.cancelled.wait(60)

    conversation = Conversation(agent_with_hook(obedient), store, "d")
    conversation.start_thread()
    store.post("d", cmd.Send("wait"))
    assert ended.wait(30)
    conversation.close()
    assert drainers(conversation) == []
    store.post("d", cmd.Send("later"))
    assert drainers(conversation) == []


def test_a_hook_of_a_posted_message_may_close_the_conversation(store: Store) -> None:
    closed = threading.Event()

    def hook(message: Any, context: Any) -> None:
        conversation.close()
        closed.set()

    conversation = Conversation(agent_with_hook(hook), store, "c")
    conversation.start_thread()
    store.post("c", cmd.Send("hello"))
    assert closed.wait(30)
    until(lambda: not drainers(conversation))
    assert len(store.list(["c"], waiting=True)) == 1


def test_what_is_posted_while_a_caller_waits_for_its_hook_is_carried_out_after_it(
    path: Path,
) -> None:
    with (
        SQLiteStore(path) as store,
        SQLiteStore(path) as other,
        Gate() as gate,
        Conversation(agent_with_hook(gate), store, "c") as conversation,
    ):
        caller = threading.Thread(target=conversation.execute, args=(cmd.Send("wait"), "k1"))
        caller.start()
        assert gate.entered.wait(30)
        other.post("c", cmd.Send("behind"))
        until(lambda: conversation.hosting.inbox._deferred)  # the notification has arrived
        gate.open()
        caller.join(30)
        until(lambda: messages(conversation) == ["wait", "behind"])


def test_many_posts_share_a_thread(store: Store) -> None:
    threads: set[threading.Thread] = set()

    def hook(message: Any, context: Any) -> None:
        threads.add(threading.current_thread())
        time.sleep(0.002)

    with Conversation(agent_with_hook(hook), store, "c") as conversation:
        conversation.send_message("0")
        for number in range(1, 100):
            store.post("c", cmd.Send(str(number)))
        until(lambda: len(messages(conversation)) == 100)
        assert messages(conversation) == [str(number) for number in range(100)]
        assert len(threads) < 90
        until(lambda: not drainers(conversation))
