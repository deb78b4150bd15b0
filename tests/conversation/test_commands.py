"""`Conversation.obey`, `advance` and `hosted`: a conversation that a host drives, command by
command, on the host's own threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Agent, Conversation, ConversationStatus, MemoryStore, ScriptedLLM, SQLiteStore
from holdfast import commands as cmd
from holdfast import events as ev
from holdfast.errors import (
    ConfigurationError,
    ConversationBusy,
    ConversationClosed,
    LeaseHeld,
    NotPending,
    StoreError,
    ToolValidationError,
)
from holdfast.store import Store
from holdfast.tools import ToolContext

S = ConversationStatus


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with (
        MemoryStore() if request.param == "memory" else SQLiteStore(tmp_path / "s.db", "process")
    ) as backend:
        yield backend


def note(text: str) -> str:
    """Notes."""
    return text


def agent(*answers: Any, **options: Any) -> Agent:
    return Agent(ScriptedLLM(list(answers) or ["Done."] * 20), [note], **options)


def messages(conversation: Conversation) -> list[ev.MessageAdded]:
    return [event for event in conversation.get_history() if isinstance(event, ev.MessageAdded)]


def test_a_command_is_done_when_obey_returns_and_its_key_is_known_then(store: Store) -> None:
    with Conversation(agent(), store, "c") as conversation:
        for _ in range(3):
            conversation.execute(cmd.Send("hi", "my-message"), "key")
        conversation.execute(cmd.Send("again"))
        assert [
            (message.text, message.id == "my-message") for message in messages(conversation)
        ] == [("hi", True), ("again", False)]
        assert conversation.status is S.IDLE
    with Conversation(agent(), store, "c") as conversation:
        conversation.execute(cmd.Send("hi"), "key")
        assert len(messages(conversation)) == 2


@pytest.mark.parametrize("key", [None, "key"])
def test_what_does_not_fit_is_raised_and_changes_nothing(
    store: Store, key: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    with Conversation(agent(), store, "c") as conversation:
        conversation.execute(cmd.Send("hi"))
        before = conversation.state.last_seq
        with pytest.raises(NotPending, match="does not wait for a decision"):
            conversation.execute(cmd.Approve("3.0", "x"), key)
        with pytest.raises(ConfigurationError, match="takes a text"):
            conversation.execute(cmd.Send(" "), key and f"{key}2")
        with pytest.raises(ConfigurationError, match="post takes a command"):
            conversation.execute("pause", key)  # type: ignore[arg-type]
        assert conversation.state.last_seq == before
        conversation.execute(cmd.Pause(), key and f"{key}3")
        assert conversation.status is S.PAUSED
    assert "dropped" not in caplog.text


def test_an_approval_of_arguments_that_do_not_fit_says_how(store: Store) -> None:
    with Conversation(
        agent([("note", {"text": "a"})], "Done.", confirm="always"), store, "c"
    ) as conversation:
        conversation.send_message("go")
        conversation.run()
        (pending,) = conversation.state.pending_confirmations
        for key in (None, "key"):
            with pytest.raises(ToolValidationError, match="text"):
                conversation.execute(
                    cmd.Approve(pending.call.id, pending.arguments_hash, {"text": 1}), key
                )
        conversation.execute(
            cmd.Approve(pending.call.id, pending.arguments_hash, {"text": "b"}), "other"
        )
        assert conversation.run().status is S.FINISHED


def test_everybody_hears_of_his_own_error_whoever_drains_the_inbox(store: Store) -> None:
    wrong: list[object] = []
    over = threading.Event()
    with Conversation(agent(), store, "c") as conversation:
        conversation.send_message("hi")

        def drain() -> None:
            while not over.is_set():
                conversation.hosting.drain_inbox()

        def obey(me: int) -> None:
            for turn in range(25):
                try:
                    conversation.execute(cmd.Reject(f"{me}.{turn}"), f"no {me} {turn}")
                    wrong.append(f"no error for {me}.{turn}")
                except NotPending as error:
                    if f"{me}.{turn}" not in str(error):
                        wrong.append(error)
                conversation.execute(cmd.Send(f"{me} {turn}"), f"yes {me} {turn}")

        drains = [threading.Thread(target=drain) for _ in range(2)]
        obeys = [threading.Thread(target=obey, args=(me,)) for me in range(4)]
        for thread in (*drains, *obeys):
            thread.start()
        for thread in obeys:
            thread.join(60)
        over.set()
        for thread in drains:
            thread.join(60)
        assert wrong == []
        assert len(messages(conversation)) == 101
        assert not conversation.hosting.inbox.awaited  # the waiters are gone


def test_one_key_from_many_threads_is_done_once(store: Store) -> None:
    with Conversation(agent(), store, "c") as conversation:
        line = threading.Barrier(8)

        def send() -> None:
            for turn in range(10):
                line.wait(30)
                conversation.execute(cmd.Send(f"{turn}"), f"{turn}")

        threads = [threading.Thread(target=send) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(message.text for message in messages(conversation)) == [
            str(turn) for turn in range(10)
        ]


@pytest.mark.parametrize("key", [5, b"x", ["x"], "\ud800"])
def test_a_key_that_is_no_text_is_refused_before_anything_is_done(store: Store, key: Any) -> None:
    with Conversation(agent(), store, "c") as conversation:
        conversation.execute(cmd.Send("hi"))
        with pytest.raises(ConfigurationError, match="key takes None or text"):
            conversation.execute(cmd.Send("again"), key)
        assert len(messages(conversation)) == 1
        assert not conversation.hosting.inbox.awaited


def test_what_was_posted_before_is_done_before(store: Store) -> None:
    with Conversation(agent(), store, "c") as conversation:
        conversation.send_message("first")
    store.post("c", cmd.Send("second"))
    with Conversation(agent(), store, "c") as conversation:
        conversation.execute(cmd.Send("third"))
        assert [message.text for message in messages(conversation)] == ["first", "second", "third"]


def test_a_closed_conversation_and_one_that_another_holds_obey_nothing(store: Store) -> None:
    with Conversation(agent(), store, "c") as conversation:
        conversation.send_message("hi")
        with pytest.raises(LeaseHeld):
            Conversation(agent(), store, "c").execute(cmd.Send("not here"), "key")
    for key in (None, "key"):
        with pytest.raises(ConversationClosed):
            conversation.execute(cmd.Pause(), key)
    assert [event.type for event in store.read("c")] == ["message"]


def test_a_failing_store_is_told_to_whoever_asked(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "s.db", "process") as store:
        conversation = Conversation(agent(), store, "c")
        conversation.send_message("hi")
    for key in (None, "key"):
        with pytest.raises(StoreError):
            conversation.execute(cmd.Pause(), key)


# --- conversations that a host drives ---


def test_a_hosted_conversation_counts_on_its_host(store: Store) -> None:
    with Conversation(agent("One.", "Two."), store, "c") as conversation:
        assert (
            conversation.hosting.hosted,
            conversation.hosting.busy,
            conversation.hosting.has_work,
        ) == (
            False,
            False,
            False,
        )
        conversation.send_message("first")
        assert (conversation.status, conversation.hosting.has_work) == (S.IDLE, True)
        assert conversation.hosting.advance() is S.FINISHED
        conversation.hosting.hosted = True
        conversation.execute(cmd.Send("second"))
        assert (conversation.status, conversation.hosting.has_work) == (S.RUNNING, True)
        assert conversation.wait(0) is S.RUNNING
        statuses: list[ConversationStatus] = []
        waiter = threading.Thread(target=lambda: statuses.append(conversation.wait(20)))
        waiter.start()
        assert conversation.hosting.advance() is S.FINISHED
        waiter.join(20)
        assert statuses == [S.FINISHED]
        assert (conversation.hosting.busy, conversation.hosting.has_work) == (False, False)
        assert conversation.hosting.advance() is S.FINISHED
    assert not conversation.hosting.has_work


def test_advance_resumes_nothing(store: Store) -> None:
    with Conversation(
        agent([("note", {"text": "a"})], "Done.", confirm="always"), store, "c"
    ) as conversation:
        conversation.hosting.hosted = True
        conversation.send_message("go")
        assert conversation.hosting.advance() is S.WAITING_FOR_CONFIRMATION
        conversation.pause()
        conversation.approve()
        assert conversation.hosting.advance() is S.PAUSED
        conversation.execute(cmd.Resume())
        assert conversation.hosting.has_work
        assert conversation.hosting.advance() is S.FINISHED


def test_one_thread_at_a_time_advances_and_busy_says_so(store: Store) -> None:
    began, gate = threading.Event(), threading.Event()

    def slow(text: str) -> str:
        began.set()
        assert gate.wait(20)
        return text

    with Conversation(
        Agent(ScriptedLLM([[("slow", {"text": "a"})], "Done."]), [slow]), store, "c"
    ) as conversation:
        conversation.hosting.hosted = True
        conversation.send_message("go")
        statuses: list[ConversationStatus] = []
        thread = threading.Thread(target=lambda: statuses.append(conversation.hosting.advance()))
        thread.start()
        assert began.wait(20)
        assert conversation.hosting.busy
        with pytest.raises(ConversationBusy):
            conversation.run()
        conversation.execute(cmd.Send("meanwhile"), "key")
        gate.set()
        thread.join(20)
        assert statuses == [S.FINISHED]
        assert not conversation.hosting.busy


def test_a_model_that_ends_the_process_ends_a_hosted_run_alone(store: Store) -> None:
    class Ending(ScriptedLLM):
        def completion(self, *arguments: Any, **options: Any) -> Any:
            raise SystemExit(3)

    with Conversation(Agent(Ending(["x"])), store, "c") as conversation:
        conversation.hosting.hosted = True
        conversation.send_message("go")
        assert conversation.hosting.advance() is S.ERROR
        assert not conversation.hosting.has_work


def test_a_conversation_closed_while_a_thread_advances_it_stops(store: Store) -> None:
    began = threading.Event()

    def slow(context: ToolContext) -> str:
        began.set()
        context.cancelled.wait(20)
        return "stopped"

    conversation = Conversation(Agent(ScriptedLLM([[("slow", {})], "Done."]), [slow]), store, "c")
    conversation.hosting.hosted = True
    conversation.send_message("go")
    statuses: list[ConversationStatus] = []
    thread = threading.Thread(target=lambda: statuses.append(conversation.hosting.advance()))
    thread.start()
    assert began.wait(20)
    conversation.close(20)
    thread.join(20)
    assert statuses == [S.CLOSED]
    with pytest.raises(ConversationClosed):
        conversation.hosting.advance()
