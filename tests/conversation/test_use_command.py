"""`commands.Use`: another process changes the agent of a conversation, or a name selects it."""

from __future__ import annotations

import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast import Agent, Conversation, ScriptedLLM, SQLiteStore, Tool
from holdfast import events as ev
from holdfast.commands import Send, Use, decode, encode
from holdfast.content import blocks
from holdfast.conversation import ConversationStatus
from holdfast.errors import ConfigurationError, NotFound
from holdfast.testing import crash_at_every_append
from tests import forks
from tests.waiting import until

S = ConversationStatus


def switching(*answers: Any, fast: Any = ("fast answer",), **options: Any) -> Agent:
    models = {"fast": ScriptedLLM(list(fast), "fast"), "deep": ScriptedLLM(["deep"], "deep")}
    return Agent(ScriptedLLM(list(answers), "own"), models=models, **options)


def models(conversation: Conversation) -> list[tuple[str, str]]:
    heads = [e for e in conversation.get_history() if isinstance(e, ev.AgentConfigured)]
    return [(head.name, head.model) for head in heads]


def test_a_named_model_answers_from_the_next_step_on_and_the_own_one_again() -> None:
    with Conversation(switching("one", "three")) as conversation:
        conversation.send_message("first")
        conversation.run()
        conversation.use("#fast")
        assert conversation.status is S.FINISHED  # the change needs no model call
        assert models(conversation) == [("", "own")]
        conversation.send_message("second")
        assert conversation.run().answer == "fast answer"
        conversation.use("#")
        conversation.send_message("third")
        assert conversation.run().answer == "three"
        assert models(conversation) == [("", "own"), ("#fast", "fast"), ("", "own")]
        compared = conversation.replay()
        assert (compared.same, compared.hashed) == (True, 3)


def test_before_the_first_message_and_by_the_last_of_several_names() -> None:
    with Conversation(switching("own")) as conversation:
        conversation.use("#fast")
        conversation.use("#deep")
        conversation.send_message("hi")
        assert conversation.run().answer == "deep"
    with Conversation(switching("own")) as conversation:
        conversation.use("#fast")
        conversation.use("main")  # this reverts the choice
        conversation.send_message("hi")
        assert conversation.run().answer == "own"
        assert models(conversation) == [("", "own")]


def test_a_name_is_that_of_a_handoff_and_of_its_models() -> None:
    billing = switching("billing", fast=["fast", "fast again"])
    with Conversation(switching("main", handoffs={"billing": billing})) as one:
        for name in ("billing", "#fast", "main#fast", "billing#fast", "main"):
            one.use(name)
            one.send_message("?")
            one.run()
        assert models(one) == [
            ("billing", "own"),
            ("billing#fast", "fast"),
            ("#fast", "fast"),
            ("billing#fast", "fast"),
            ("", "own"),
        ]


@pytest.mark.parametrize("name", ["fast", "#slow", "billing", "#fast#deep"])
def test_an_unknown_name_is_refused_with_the_known_ones(name: str) -> None:
    with Conversation(switching("one")) as conversation:
        with pytest.raises(NotFound, match=r"It has: main, #fast, #deep\.") as refused:
            conversation.use(name)
        assert (refused.value.kind, refused.value.id) == ("agent", name)
        assert conversation.get_history() == []


def test_a_command_names_something_and_is_stored_as_json() -> None:
    with pytest.raises(ConfigurationError, match="it is empty"):
        Use(" ")
    assert decode(encode(Use("#fast", by="ops"))) == Use("#fast", by="ops")


def test_calls_end_under_the_agent_that_made_them_when_the_command_comes_in_mid_call() -> None:
    running, goes_on = threading.Event(), threading.Event()

    def work() -> str:
        """Work."""
        running.set()
        assert goes_on.wait(30)
        return "worked"

    agent = switching(("work", {}), "not asked", fast=["done"], tools=[Tool.from_function(work)])
    with Conversation(agent) as conversation:
        conversation.send_message("go")
        conversation.start_thread()
        assert running.wait(30)
        conversation.use("#fast")
        goes_on.set()
        conversation.wait(30)
        assert conversation.state.answer == "done"
        kinds = [type(event).__name__ for event in conversation.get_history()]
        assert kinds.index("NoteRecorded") < kinds.index("ToolCallFinished")
        assert models(conversation) == [("", "own"), ("#fast", "fast")]


def test_another_process_changes_the_model_of_a_live_conversation(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    store = SQLiteStore(path)
    with Conversation(switching("own"), store, "live") as conversation:
        conversation.start_thread()
        program = f"""
            from holdfast import SQLiteStore
            from holdfast.commands import Send, Use
            store = SQLiteStore({str(path)!r})
            store.post("live", Use("#fast", by="ops"))
            store.post("live", Use("#slow"))
            store.post("live", Send("hello"))
            store.close()
        """
        forks.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=60)
        until(lambda: conversation.status is S.FINISHED)
        assert conversation.state.answer == "fast answer"
        [note] = [e for e in conversation.get_history() if isinstance(e, ev.NoteRecorded)]
        assert (note.about, note.details) == ("use", {"agent": "main#fast", "by": "ops"})
    store.close()


def test_a_name_that_was_posted_while_nobody_was_there_counts_for_the_next_owner(
    tmp_path: Path,
) -> None:
    with SQLiteStore(tmp_path / "agent.db") as store:
        with Conversation(switching("own"), store, "later") as conversation:
            conversation.send_message("hi")
        store.post("later", Use("#deep"))
        with Conversation(switching("own"), store, "later") as conversation:
            assert conversation.run().answer == "deep"


def test_an_owner_that_no_longer_has_the_agent_goes_on_with_its_own(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "agent.db") as store:
        with Conversation(switching("own"), store, "c") as conversation:
            conversation.use("#deep")
            conversation.send_message("hi")
        with Conversation(Agent(ScriptedLLM(["plain"])), store, "c") as conversation:
            assert conversation.run().answer == "plain"


def test_a_fork_and_a_copy_have_the_choice_that_was_not_carried_out(tmp_path: Path) -> None:
    agent = switching("one", fast=["a", "b"])
    with Conversation(agent) as conversation:
        conversation.send_message("first")
        conversation.run()
        conversation.use("#fast")
        with conversation.fork() as fork:
            fork.send_message("on")
            assert fork.run().answer == "a"
        with Conversation.from_state(conversation.state, agent) as copied:
            copied.send_message("on")
            assert copied.run().answer == "b"


def run_with_posted_choice(store: Any, folder: Path) -> None:
    """Run once before and once after a posted change of the model."""

    def own(request: Any) -> Any:
        return "never asked for the second" if "second" in str(request.messages) else "one"

    agent = Agent(ScriptedLLM(own, "own"), models={"fast": ScriptedLLM(lambda _: "two", "fast")})
    with Conversation(agent, store, "a") as conversation:
        if not conversation.get_history():
            conversation.execute(Send(blocks("first"), "m1"), "first")
        conversation.run()
        conversation.execute(Use("#fast"), "change")
        conversation.execute(Send(blocks("second"), "m2"), "second")
        conversation.run()


@pytest.mark.slow
def test_killed_at_every_append_the_second_message_is_answered_by_the_chosen_model() -> None:
    for crash in crash_at_every_append(run_with_posted_choice):
        names = [event.name for event in crash.after if isinstance(event, ev.AgentConfigured)]
        assert names == ["", "#fast"], str(crash)
        answers = [event.text for event in crash.after if isinstance(event, ev.AssistantReplied)]
        assert answers == ["one", "two"], str(crash)


def test_the_older_journal_version_is_refused_for_a_conversation_with_a_choice() -> None:
    with Conversation(switching("one")) as conversation:
        conversation.send_message("first")
        assert ev.needed_version(conversation.get_history()) == 1
        conversation.use("#fast")
        assert ev.needed_version(conversation.get_history()) == 3
