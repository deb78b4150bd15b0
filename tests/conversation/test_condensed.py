"""A condensed journal opens without reading the condensed events. The conversation is the same as
if they had been read."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from holdfast import Agent, Conversation, ConversationStatus, ScriptedLLM, SQLiteStore, tool
from holdfast import events as ev
from holdfast.agent.view import View, hidden_until
from holdfast.conversation.replay import replay, requests
from holdfast.conversation.state import Fold, fold
from holdfast.llm.wires import openai_chat

S = ConversationStatus


@tool
def look(n: int) -> str:
    """Looks."""
    return f"seen {n}"


def answers(request: Any) -> Any:
    number = sum(message["role"] == "assistant" for message in request.messages)
    if request.messages[-1]["role"] == "tool":
        return "Seen." if number % 3 else [("look", {"n": number}), ("look", {"n": -number})]
    return ("look", {"n": number})


def talk(conversation: Conversation, turns: int) -> None:
    for turn in range(turns):
        conversation.send_message(f"turn {turn}")
        assert conversation.run().status is S.FINISHED


def condense(conversation: Conversation, before: int, summary: str) -> ev.HistoryCondensed:
    hidden = [
        event.seq
        for event in conversation.get_history()
        if isinstance(event, ev.MessageAdded | ev.AssistantReplied) and event.seq < before
    ]
    with conversation.hosting.journal as journal:
        return journal.condense(hidden, summary)


def condensed_twice(store: SQLiteStore) -> tuple[Conversation, ScriptedLLM]:
    """Return a conversation of twelve turns, condensed after the fifth turn and after the tenth,
    and its model."""
    llm = ScriptedLLM(answers)
    conversation = Conversation(Agent(llm, [look]), store, "c")
    talk(conversation, 5)
    first = condense(conversation, conversation.state.last_seq - 8, "Of the first turns.")
    assert first.so_far is not None
    talk(conversation, 5)
    second = condense(conversation, conversation.state.last_seq - 8, "Of the first nine turns.")
    assert second.so_far is not None
    assert second.so_far.seq > first.so_far.seq > 0
    talk(conversation, 2)
    return conversation, llm


def fragments(view: View) -> list[bytes]:
    return list(view.ready().fragments(openai_chat, {"look": "look"}))


def fold_fields(state: Fold) -> dict[str, Any]:
    names = [
        name
        for name in Fold.__slots__
        if name not in ("_usage", "_uncounted", "open", "agent", "assistant", "error")
    ]
    seqs = {
        name: getattr(getattr(state, name), "seq", 0) for name in ("agent", "assistant", "error")
    }
    return {
        "usage": state.usage,
        "open": list(state.open),
        **seqs,
        **{name: getattr(state, name) for name in names},
    }


def test_it_is_opened_without_what_was_condensed_and_goes_on_the_same(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "s.db", "process") as store:
        conversation, _ = condensed_twice(store)
        conversation.close()
        whole = store.read("c")
        tail = store.tail("c")
        assert 0 < len(tail) < len(whole) / 2
        assert tail == whole[-len(tail) :]
        llm = ScriptedLLM(answers)
        again = Conversation(Agent(llm, [look]), store, "c")
        assert len(again.hosting.journal.tail) == len(tail)
        assert fold_fields(again.hosting.journal.fold) == fold_fields(fold(whole))
        assert fragments(View.of(tail)) == fragments(View.of(whole))
        again.send_message("and now?")
        again.start_thread()
        assert again.wait(10) is S.FINISHED
        assert len(again.hosting.journal.tail) < len(whole) / 2, "somebody read what nobody needs"
        assert llm.requests[0].messages[1] == {
            "role": "user",
            "content": "Of the first nine turns.",
        }
        assert again.get_history()[: len(whole)] == whole
        assert again.state.steps == fold(again.get_history()).steps
        again.close()
        events = store.read("c")
        assert replay(events).same
        assert [request.body for request in requests(events)][-len(llm.requests) :] == [
            request.body for request in llm.requests
        ]


def test_callbacks_forks_and_time_travel_reach_what_was_condensed(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "s.db", "process") as store:
        condensed_twice(store)[0].close()
        whole = store.read("c")
        with Conversation(Agent(ScriptedLLM(answers), [look]), store, "c") as again:
            seqs: list[int] = []
            subscription = again.register_event_callback(
                lambda event: seqs.append(event.seq), after_seq=3
            )
            with again.fork(9) as early, again.fork() as late:
                assert early.get_history()[:9] == whole[:9]
                assert late.get_history()[:-1] == whole
                late.send_message("in the fork")
                assert late.run().status is S.FINISHED
            assert again.state.at(4).events == tuple(whole[:4])
            subscription.close()
            assert seqs == [event.seq for event in whole[3:]]
        with Conversation(again.agent, store, late.id) as reopened:
            assert len(reopened.hosting.journal.tail) < len(whole) / 2


def test_a_condensation_without_its_so_far_is_read_whole(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "s.db", "process") as store:
        condensed_twice(store)[0].close()
        whole = store.read("c")
        db = sqlite3.connect(tmp_path / "s.db")
        db.execute("UPDATE conversations SET condensed = condensed - 1")
        db.commit()
        db.close()
        again = Conversation(Agent(ScriptedLLM([])), store, "c")
        assert again.get_history() == again.hosting.journal.tail == whole


def test_nothing_is_so_far_while_something_is_still_shown_or_open() -> None:
    with Conversation(Agent(ScriptedLLM(answers), [look])) as conversation:
        talk(conversation, 2)
        events = conversation.get_history()
    visible = [
        event.seq for event in events if isinstance(event, ev.MessageAdded | ev.AssistantReplied)
    ]
    for hidden in range(len(visible) + 1):
        limit = hidden_until(events, visible[:hidden])
        assert not fold(events[:limit]).open
        assert not any(seq <= limit for seq in visible[hidden:])
        assert limit >= (visible[hidden - 2] if hidden > 2 else 0)
    assert hidden_until(events, visible) == len(events)
    assert hidden_until(events, visible[1:]) == 0


@pytest.mark.parametrize(
    "so_far", [None, ev.Checkpoint(3, ev.EPOCH, "t", "running", 2, 1, agent_seq=3)]
)
def test_a_condensation_keeps_its_json_form(so_far: ev.Checkpoint | None) -> None:
    event = ev.HistoryCondensed(
        seq=4, id="x", timestamp=ev.EPOCH, hidden=(1,), summary="s", so_far=so_far
    )
    assert ev.decode(ev.encode(event)) == event


def test_a_summary_that_is_still_shown_is_read_again(tmp_path: Path) -> None:
    """A second condensation that hides only new events leaves the first summary in the view."""
    with SQLiteStore(tmp_path / "s.db", "process") as store:
        conversation = Conversation(Agent(ScriptedLLM(answers), [look]), store, "c")
        hidden: set[int] = set()
        for summary in ("ONE", "TWO", "THREE"):
            talk(conversation, 4)
            visible = [
                event.seq
                for event in conversation.get_history()
                if isinstance(event, ev.MessageAdded | ev.AssistantReplied)
            ]
            new = [
                seq
                for seq in visible
                if seq not in hidden and seq < conversation.state.last_seq - 8
            ]
            hidden |= set(new)
            with conversation.hosting.journal as journal:
                journal.condense(new, summary)
        conversation.close()
        assert fragments(View.of(store.tail("c"))) == fragments(View.of(store.read("c")))
        llm = ScriptedLLM(answers)
        with Conversation(Agent(llm, [look]), store, "c") as again:
            talk(again, 1)
        texts = [message.get("content") for message in llm.requests[0].messages]
        assert [text for text in texts if text in ("ONE", "TWO", "THREE")] == [
            "ONE",
            "TWO",
            "THREE",
        ]
        assert replay(store.read("c")).same
