"""Titles and tags of conversations."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import LLM, Agent, Conversation, ScriptedLLM
from holdfast import events as ev
from holdfast.agent.condensers import LLMCondenser
from holdfast.agent.serial_form import form_of
from holdfast.commands import Label
from holdfast.content import ToolCall
from holdfast.errors import ConfigurationError, Conflict
from holdfast.labels import MAX_TAGS, MAX_TITLE_CHARS, fork_title
from holdfast.store import MemoryStore, SQLiteStore, Store
from tests.waiting import until


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with SQLiteStore(tmp_path / "s.db") as backend:
        yield backend


def talk(store: Store, id: str = "c", answers: tuple[Any, ...] = ("Done.",)) -> Conversation:
    conversation = Conversation(Agent(ScriptedLLM([*answers])), store, id)
    conversation.send_message("Fix the dates\nin the report.")
    conversation.run()
    return conversation


def test_the_first_line_is_the_title_until_another_one_is_set(store: Store) -> None:
    with talk(store) as conversation:
        assert conversation.title == store.list()[0].title == "Fix the dates"
        conversation.rename("  Dates of the\n report ")
        assert conversation.title == store.list()[0].title == "Dates of the report"
        conversation.send_message("And the totals?")
        assert conversation.title == store.list()[0].title == "Dates of the report"
    with Conversation(Agent(ScriptedLLM([])), store, "c") as conversation:
        assert conversation.title == "Dates of the report"


def test_a_title_that_is_set_first_is_kept(store: Store) -> None:
    with Conversation(Agent(ScriptedLLM(["Done."])), store, "c") as conversation:
        conversation.rename("Ticket 12")
        conversation.send_message("Fix the dates")
        assert conversation.run().title == "Ticket 12"


def test_tags_are_found_in_the_store_and_in_the_state(store: Store) -> None:
    with talk(store) as conversation, talk(store, "d"):
        conversation.tag("bug", "customer=acme", "bug")
        conversation.tag("bug", "late")
        conversation.untag("late", "never there")
        assert conversation.tags == conversation.state.tags == ("bug", "customer=acme")
        assert [one.id for one in store.list(tags=["customer=acme", "bug"])] == ["c"]
    with Conversation(Agent(ScriptedLLM([])), store, "c") as conversation:
        assert conversation.tags == ("bug", "customer=acme")


def test_labels_are_posted_to_whoever_drives_the_conversation(store: Store) -> None:
    with talk(store) as conversation:
        store.post("c", Label("Renamed", add=("bug",), by="desk"))
        conversation.hosting.finish_inbox()
        assert (conversation.title, conversation.tags) == ("Renamed", ("bug",))
        last = conversation.get_history()[-1]
        assert isinstance(last, ev.ConversationLabelled)
        assert last.by == "desk"


@pytest.mark.parametrize("tag", ["", " a", "a\n", "x" * 101, "\0"])
def test_a_tag_that_is_no_short_text_is_refused(tag: str) -> None:
    with Conversation(Agent(ScriptedLLM([]))) as conversation, pytest.raises(ConfigurationError):
        conversation.tag(tag)


def test_a_conversation_has_so_many_tags_and_no_more(store: Store) -> None:
    with talk(store) as conversation:
        conversation.tag(*[f"tag {number}" for number in range(MAX_TAGS)])
        with pytest.raises(Conflict, match="at most 50 tags; it would have 51"):
            conversation.tag("one more")
        conversation.untag("tag 3")
        conversation.tag("one more")


@pytest.mark.parametrize("title", ["", " \n", "x" * (MAX_TITLE_CHARS + 1)])
def test_a_title_is_one_line_of_so_many_characters(title: str) -> None:
    with Conversation(Agent(ScriptedLLM([]))) as conversation, pytest.raises(ConfigurationError):
        conversation.rename(title)


def test_labels_survive_a_condensation() -> None:
    llm = ScriptedLLM(["One.", "Two.", "Three.", "What was said so far."])
    store = MemoryStore()
    with Conversation(Agent(llm, condenser=LLMCondenser(keep=1)), store, "c") as conversation:
        conversation.rename("Dates")
        conversation.tag("bug")
        for text in ("a", "b", "c"):
            conversation.send_message(text)
            conversation.run()
        conversation.condense()
        assert store.list()[0].condensed
    with Conversation(Agent(llm), store, "c") as conversation:
        assert (conversation.title, conversation.tags) == ("Dates", ("bug",))


# --- forks ---


def test_a_fork_is_named_after_its_origin(store: Store) -> None:
    with talk(store) as conversation:
        conversation.tag("bug")
        with conversation.fork(id="f") as fork, fork.fork(id="g") as second:
            assert (fork.title, second.title) == ("Fix the dates (fork)", "Fix the dates (fork 2)")
            assert second.tags == ("bug",)
        assert {one.id: one.title for one in store.list(tags=["bug"])} == {
            "c": "Fix the dates",
            "f": "Fix the dates (fork)",
            "g": "Fix the dates (fork 2)",
        }


def test_a_fork_has_the_title_that_it_is_given(store: Store) -> None:
    with talk(store) as conversation:
        with conversation.fork(title="Another try") as fork:
            assert fork.title == "Another try"
        with conversation.fork(title="") as fork:
            assert fork.title == "Fix the dates"
            assert fork.get_history() == conversation.get_history()
        with pytest.raises(ConfigurationError, match="fork: title"):
            conversation.fork(title="x" * 201)


def test_a_fork_of_an_empty_conversation_has_no_title(store: Store) -> None:
    with talk(store) as conversation, conversation.fork(0) as fork:
        assert fork.title == ""
        assert fork.get_history() == []


@pytest.mark.parametrize(
    ("title", "fork"),
    [
        ("a", "a (fork)"),
        ("a (fork)", "a (fork 2)"),
        ("a (fork 9)", "a (fork 10)"),
        ("a (fork) b", "a (fork) b (fork)"),
        ("x" * MAX_TITLE_CHARS, "x" * (MAX_TITLE_CHARS - 7) + " (fork)"),
    ],
)
def test_the_title_of_a_fork_counts_its_generation(title: str, fork: str) -> None:
    assert fork_title(title) == fork


def test_a_conversation_with_labels_is_replayed_byte_for_byte(store: Store) -> None:
    with talk(store) as conversation, conversation.fork(id="f") as fork:
        fork.tag("bug")
        fork.send_message("More.")
        assert fork.hosting.journal.fold.title == "Fix the dates (fork)"
        assert fork.replay().same


# --- titles by a model or a rule ---


def title_event(titler: Any, store: Store, *answers: str) -> ev.AnyEvent:
    agent = Agent(ScriptedLLM([*(answers or ("Done.",))]), title=titler)
    with Conversation(agent, store, "c") as conversation:
        conversation.send_message("Fix the dates\nin the report.")
        conversation.run()
    [event] = [
        event for event in store.read("c") if type(event) in (ev.ConversationLabelled, TRIED)
    ]
    return event


TRIED = ev.NoteRecorded


def test_a_rule_writes_the_title_once(store: Store) -> None:
    texts: list[str] = []

    def rule(text: str) -> str:
        texts.append(text)
        return f"  {len(texts)}:\n{text[:7]}"

    label = title_event(rule, store)
    assert isinstance(label, ev.ConversationLabelled)
    assert (label.title, label.by) == ("1: Fix the", "rule")
    with Conversation(Agent(ScriptedLLM(["Ok."]), title=rule), store, "c") as conversation:
        conversation.send_message("And now?")
        assert conversation.run().title == store.list()[0].title == "1: Fix the"
    assert texts == ["Fix the dates\nin the report."]


def test_a_model_writes_the_title_and_its_usage_is_counted(store: Store) -> None:
    llm = ScriptedLLM(['"Dates of a report"\nor so'], model="namer")
    with Conversation(Agent(ScriptedLLM(["Done."]), title=llm), store, "c") as conversation:
        conversation.send_message("Fix the dates")
        conversation.run()
    [request] = llm.requests
    assert request.messages[-1]["content"] == "Fix the dates"
    state = Conversation(Agent(llm), store, "c").state
    assert (state.title, state.steps) == ("Dates of a report", 1)
    notes = [event for event in state.events if isinstance(event, ev.NoteRecorded)]
    assert [(one.about, one.model) for one in notes] == [("llm:other", "namer")]
    alone = Conversation(Agent(llm), MemoryStore())
    assert state.usage.output_tokens > alone.state.usage.output_tokens
    assert Conversation(Agent(ScriptedLLM([])), store, "c").replay().same


def test_the_title_does_not_hold_up_the_steps(store: Store) -> None:
    running, go_on = threading.Event(), threading.Event()

    def slow(text: str) -> str:
        running.set()
        assert go_on.wait(20)
        return "Late"

    with Conversation(Agent(ScriptedLLM(["Done."]), title=slow), store, "c") as conversation:
        conversation.send_message("Fix the dates")
        assert conversation.run().answer == "Done."
        assert running.wait(20)
        assert conversation.title == "Fix the dates"
        go_on.set()
        until(lambda: conversation.title == "Late")


def test_a_title_that_the_user_sets_meanwhile_is_kept(store: Store) -> None:
    running, go_on = threading.Event(), threading.Event()

    def slow(text: str) -> str:
        running.set()
        assert go_on.wait(20)
        return "Late"

    with Conversation(Agent(ScriptedLLM(["Done."]), title=slow), store, "c") as conversation:
        conversation.send_message("Fix the dates")
        conversation.run()
        assert running.wait(20)
        conversation.rename("Mine")
        go_on.set()
    assert store.list()[0].title == "Mine"


@pytest.mark.parametrize("titler", [lambda _: 1 / 0, lambda _: " ", ScriptedLLM([])])
def test_a_title_that_fails_is_noted_and_not_tried_again(store: Store, titler: Any) -> None:
    assert isinstance(title_event(titler, store), ev.NoteRecorded)
    agent = Agent(ScriptedLLM(["Ok."]), title=titler)
    with Conversation(agent, store, "c") as conversation:
        conversation.send_message("And now?")
        assert conversation.run().title == "Fix the dates"
    notes = [one for one in store.read("c") if isinstance(one, ev.NoteRecorded)]
    assert [one.about for one in notes] == ["title"]


def test_a_close_cancels_a_title_that_takes_too_long(store: Store) -> None:
    class Endless(ScriptedLLM):
        def completion(self, *arguments: Any, cancelled: Any = None, **more: Any) -> Any:
            while not cancelled:
                time.sleep(0.005)
            raise RuntimeError("cancelled")

    agent = Agent(ScriptedLLM(["Done."]), title=Endless([]))
    conversation = Conversation(agent, store, "c")
    conversation.send_message("Fix the dates")
    conversation.run()
    conversation.close(0.05)
    assert not [one for one in store.read("c") if one.type in ("label", "note")]
    again = Agent(ScriptedLLM(["Ok."]), title=lambda text: "Next time")
    with Conversation(again, store, "c") as conversation:
        conversation.send_message("And now?")
        conversation.run()
    assert store.list()[0].title == "Next time"


def test_a_title_is_written_on_request(store: Store) -> None:
    llm = ScriptedLLM(["Done.", "Named"])
    with Conversation(Agent(llm), store, "c") as conversation:
        with pytest.raises(ConfigurationError, match="the conversation has none"):
            conversation.write_title()
        conversation.send_message("Fix the dates")
        conversation.run()
        assert conversation.write_title() == conversation.title == "Named"
        assert conversation.write_title(lambda text: text.upper()) == "FIX THE DATES"


def test_children_keep_the_title_of_their_message(store: Store) -> None:
    worker = Agent(ScriptedLLM(["Looked."]), title=lambda text: "never")
    call = ToolCall("", "delegate", {"agent": "worker", "task": "Look there"})
    agent = Agent(
        ScriptedLLM([[call], "Done."]), delegates={"worker": worker}, title=lambda text: "Parent"
    )
    with Conversation(agent, store, "c") as conversation:
        conversation.send_message("Go")
        conversation.run()
    titles = {one.spawner: one.title for one in store.list()}
    assert titles[""] == "Parent"
    assert titles["c"] != "never"


@pytest.mark.parametrize("titler", ["gpt-5", 3, ScriptedLLM])
def test_a_title_takes_a_model_or_a_function(titler: Any) -> None:
    with pytest.raises(ConfigurationError, match="Agent: title takes a model"):
        Agent(ScriptedLLM([]), title=titler)


def test_the_model_of_titles_is_in_the_serial_form() -> None:
    agent = Agent(LLM("gpt-5", "own-key"), title=LLM("gpt-5-nano", "other-key"))
    form = form_of(agent)
    assert "other-key" not in form.to_json().decode()
    again = Agent.from_json(form.to_json(), variables=form.secrets)
    assert isinstance(again.title, LLM)
    assert again.title.model == "gpt-5-nano"


def test_a_title_has_no_characters_that_steer_a_terminal_or_cannot_be_stored() -> None:
    with Conversation(Agent(ScriptedLLM(["done"]))) as conversation:
        conversation.rename("a\0b \x1b[2J\u202etxt \U0001f468\u200d\U0001f469")
        assert conversation.title == "ab [2Jtxt \U0001f468\u200d\U0001f469"
        for title in ("\0\x1b", "\u200d"):
            with pytest.raises(ConfigurationError, match="title takes"):
                conversation.rename(title)
            with pytest.raises(ConfigurationError, match="title takes"):
                conversation.fork(title=title)
        with pytest.raises(ConfigurationError, match="title takes"):
            conversation.fork(title="\ud800")
