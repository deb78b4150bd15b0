"""Models in conversations: a context that is too long, a paused answer, a switch of providers,
costs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import (
    Agent,
    Conversation,
    ConversationStatus,
    FallbackLLM,
    MemoryStore,
    ScriptedLLM,
    SQLiteStore,
)
from holdfast import events as ev
from holdfast.agent.condenser import Condensed
from holdfast.agent.prompt import EMPTY_ANSWER
from holdfast.content import TextContent, Usage
from holdfast.conversation.replay import replay
from holdfast.conversation.totals import Totals, totals
from holdfast.errors import (
    BadRequest,
    ConfigurationError,
    ContextTooLong,
    ConversationNotFound,
    RateLimited,
)
from holdfast.llm import LLM, Completion
from tests.model_server import ModelServer, chat, text

S = ConversationStatus


def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


class DropOldest:
    """A condenser that leaves out all but the last message and the answers behind it."""

    def __init__(self, summary: str = "Earlier, numbers were added.") -> None:
        self.summary = summary
        self.reasons: list[str] = []

    def condense(
        self, journal: Sequence[ev.AnyEvent], reason: ContextTooLong, cancelled: object
    ) -> Condensed | None:
        self.reasons.append(str(reason))
        last = max(event.seq for event in journal if isinstance(event, ev.MessageAdded))
        hidden = tuple(
            event.seq
            for event in journal
            if isinstance(event, ev.MessageAdded | ev.AssistantReplied) and event.seq < last
        )
        return Condensed(hidden, self.summary) if hidden else None


def small_window(limit: int) -> Any:
    """Return a script that refuses more than `limit` messages."""

    def answer(request: Any) -> Any:
        if len(request.messages) > limit:
            raise ContextTooLong(f"{len(request.messages)} messages do not fit.")
        return "Done." if request.messages[-1]["role"] == "tool" else ("add", {"a": 1, "b": 2})

    return answer


def test_too_long_a_context_is_told_to_the_condenser_and_the_model_asked_again(
    tmp_path: Path,
) -> None:
    condenser = DropOldest()
    agent = Agent(ScriptedLLM(small_window(9)), [add], condenser=condenser)
    store = SQLiteStore(tmp_path / "c.db")
    with Conversation(agent, store, "c") as conversation:
        for turn in range(6):
            conversation.send_message(f"turn {turn}")
            assert conversation.run().status is S.FINISHED
        journal = conversation.get_history()
    assert len(condenser.reasons) == 2
    assert condenser.reasons[0] == "10 messages do not fit."
    assert not [event for event in journal if isinstance(event, ev.ErrorRecorded)]
    condensations = [event for event in journal if isinstance(event, ev.HistoryCondensed)]
    assert [event.summary for event in condensations] == [condenser.summary] * 2
    assert replay(journal, agent).same
    with Conversation(agent, store, "c") as conversation:
        conversation.send_message("once more")
        assert conversation.run().status is S.FINISHED
    store.close()


@pytest.mark.parametrize(
    ("condenser", "calls"),
    [
        (None, 1),
        (DropOldest(), 1),  # nothing can be left out: there is one message
    ],
)
def test_without_anything_to_leave_out_the_run_ends_with_the_error(
    condenser: Any, calls: int
) -> None:
    llm = ScriptedLLM(small_window(0))
    with Conversation(Agent(llm, condenser=condenser)) as conversation:
        conversation.send_message("hello")
        state = conversation.run()
    assert state.status is S.ERROR
    assert state.error is not None
    assert state.error.error == "ContextTooLong"
    assert len(llm.requests) == calls


def test_a_condenser_that_fails_or_names_nonsense_changes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Wrong:
        def __init__(self, value: Any) -> None:
            self.value = value

        def condense(self, *_: Any) -> Any:
            if isinstance(self.value, Exception):
                raise self.value
            return self.value

    for value, problem in (
        (ValueError("oops"), "the condenser failed"),
        (Condensed((99,)), "named no messages"),
        (Condensed(()), "named no messages"),
    ):
        with Conversation(
            Agent(ScriptedLLM(small_window(0)), condenser=Wrong(value))
        ) as conversation:
            conversation.send_message("hello")
            assert conversation.run().status is S.ERROR
            assert not [
                event
                for event in conversation.get_history()
                if isinstance(event, ev.HistoryCondensed)
            ]
        assert problem in caplog.text
        caplog.clear()
    with pytest.raises(
        ConfigurationError, match="condenser takes an object with a method condense"
    ):
        Agent(ScriptedLLM([]), condenser="window")  # pyright: ignore


def test_a_condenser_is_asked_three_times_for_one_answer() -> None:
    class OneByOne:
        count = 0

        def condense(self, journal: Sequence[ev.AnyEvent], *_: Any) -> Condensed:
            self.count += 1
            hidden = {
                seq
                for event in journal
                if isinstance(event, ev.HistoryCondensed)
                for seq in event.hidden
            }
            return Condensed(
                (
                    next(
                        event.seq
                        for event in journal
                        if isinstance(event, ev.MessageAdded) and event.seq not in hidden
                    ),
                )
            )

    condenser = OneByOne()
    with Conversation(Agent(ScriptedLLM(small_window(0)), condenser=condenser)) as conversation:
        for n in range(6):
            conversation.send_message(f"{n}")
        assert conversation.run().status is S.ERROR
    assert condenser.count == 3


def test_a_paused_answer_is_gone_on_with() -> None:
    def answer(request: Any) -> Any:
        if len(request.messages) < 4:
            return Completion("I search", stop_reason="pause", usage=Usage(1, 1))
        return "Found."

    llm = ScriptedLLM(answer)
    with Conversation(Agent(llm)) as conversation:
        conversation.send_message("Search.")
        assert conversation.run().answer == "Found."
        journal = conversation.get_history()
    assert [message["role"] for message in llm.requests[-1].messages] == [
        "system",
        "user",
        "assistant",
        "assistant",
    ]
    assert replay(journal).same
    assert not [
        event
        for event in journal
        if isinstance(event, ev.MessageAdded) and event.sender == "holdfast"
    ]


def test_a_switch_of_providers_is_noted_where_it_happens(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "c.db")
    signed = chat(
        {
            "role": "assistant",
            "content": "Hm.",
            "reasoning_details": [{"type": "reasoning.encrypted", "data": "x"}],
        },
        "stop",
    )
    signed["model"] = "deepseek-r1"
    other = {**text("Yes."), "model": "gpt-5"}
    with ModelServer([signed, signed, other, other]) as server:
        for model, turns in (("deepseek-r1", 2), ("gpt-5", 2)):
            with Conversation(Agent(LLM(model, base_url=server.url)), store, "c") as conversation:
                for _ in range(turns):
                    conversation.send_message("Well?")
                    assert conversation.run().status is S.FINISHED
                journal = conversation.get_history()
        third, fourth = server.requests[2:]
        assert all(
            "reasoning_details" not in message
            for request in (third, fourth)
            for message in request.messages
        )
        assert [
            message["content"] for message in third.messages if message["role"] == "assistant"
        ] == ["Hm.", "Hm."]
    notes = [event.notes for event in journal if isinstance(event, ev.AssistantReplied)]
    assert notes[:2] == [(), ()]
    assert notes[2] == (
        (
            "2 answers of deepseek-r1 went to gpt-5 as text and calls only, without the rest that"
            " deepseek-r1 sent (such as signed or encrypted reasoning)."
        ),
    )
    assert notes[3] == ()
    assert replay(journal).same
    store.close()


@pytest.mark.parametrize("resumed", [False, True])
def test_a_conversation_stays_with_its_model_when_a_condensation_hides_all_it_said(
    resumed: bool, tmp_path: Path
) -> None:
    """A process that resumes the conversation does not even read the condensed events."""
    store = SQLiteStore(tmp_path / "c.db")
    main = ScriptedLLM([RateLimited("busy"), *["main"] * 9], model="main")
    spare = ScriptedLLM(
        [
            "one",
            "two",
            ContextTooLong("too long"),
            BadRequest("no") if resumed else "three",
            "three",
        ],
        model="spare",
    )
    agent = Agent(FallbackLLM([main, spare]), condenser=DropOldest())
    with Conversation(agent, store, "c") as conversation:
        for text in ("a", "b", "c"):
            conversation.send_message(text)
            conversation.run()
        if not resumed:
            journal = conversation.get_history()
    if resumed:
        with Conversation(agent, store, "c") as conversation:
            conversation.send_message("d")
            assert conversation.run().status is S.FINISHED
            journal = conversation.get_history()
    hidden = next(event.hidden for event in journal if isinstance(event, ev.HistoryCondensed))
    answers = [event for event in journal if isinstance(event, ev.AssistantReplied)]
    assert {event.seq for event in answers[:2]} <= set(hidden)
    assert [(event.route, event.text) for event in answers] == [
        ("spare", "one"),
        ("spare", "two"),
        ("spare", "three"),
    ]
    assert replay(journal, agent).same
    store.close()


def test_costs_are_counted_as_they_come_and_survive_a_resume(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "c.db")
    answer = Completion("Hi.", usage=Usage(1000, 100), cost=0.25)
    for _ in range(2):
        with Conversation(
            Agent(ScriptedLLM([answer, msgspec.structs.replace(answer, cost=None)])), store, "c"
        ) as conversation:
            for _ in range(2):
                conversation.send_message("Hello.")
                conversation.run()
            state = conversation.get_state()
    assert (state.cost, state.usage, state.steps) == (0.5, Usage(4000, 400), 4)
    store.close()


@pytest.mark.parametrize("kind", [MemoryStore, SQLiteStore])
def test_a_tree_of_conversations_counts_each_answer_once(kind: Any, tmp_path: Path) -> None:
    store = kind(tmp_path / "c.db") if kind is SQLiteStore else kind()

    def priced(request: Any) -> Completion:
        return Completion("Hi.", usage=Usage(10, 1), cost=0.5)

    agent = Agent(ScriptedLLM(priced))

    def talk(conversation: Conversation, turns: int) -> None:
        for _ in range(turns):
            conversation.send_message("Hello.")
            conversation.run()

    with Conversation(agent, store, "root") as root:
        talk(root, 2)
        with root.fork(id="left") as branch:
            talk(branch, 1)
            with branch.fork(id="leaf", agent=Agent(ScriptedLLM(lambda request: "free"))) as leaf:
                talk(leaf, 3)
        talk(root, 1)
        with root.fork(id="right") as right:
            talk(right, 1)
    tree_totals = totals(store, "root")
    assert [tree_totals.own.steps, *(child.own.steps for child in tree_totals.children)] == [
        3,
        1,
        1,
    ]
    assert (tree_totals.whole.steps, tree_totals.whole.cost, tree_totals.whole.unpriced) == (
        8,
        2.5,
        3,
    )
    assert tree_totals.whole.usage.input_tokens > 50
    assert totals(store, "left").whole.steps == 4
    assert Totals.from_json(tree_totals.to_json()) == tree_totals
    with pytest.raises(ConversationNotFound, match="'nobody'"):
        totals(store, "nobody")
    store.close()


# --- refusals, and settings that shape requests ---


def refusal(words: str) -> dict[str, Any]:
    return chat({"role": "assistant", "content": None, "refusal": words}, "stop")


def test_a_refusal_ends_the_run_and_goes_back_as_what_was_said() -> None:
    with ModelServer([refusal("I cannot do that."), text("Gladly.")]) as server:
        llm = LLM("m", base_url=server.url, max_retries=0)
        with Conversation(Agent(llm)) as conversation:
            conversation.send_message("Do it.")
            state = conversation.run()
            assert (state.status, state.steps) == (S.FINISHED, 1)
            last = conversation.get_history()[-2]
            assert isinstance(last, ev.AssistantReplied)
            assert (last.text, last.refusal, last.stop_reason) == (
                *("", "I cannot do that."),
                "refusal",
            )
            conversation.send_message("Then do another thing.")
            assert conversation.run().answer == "Gladly."
            assert replay(conversation.get_history()).difference is None
        assert [message["content"] for message in server.requests[1].messages][1:] == [
            "Do it.",
            "I cannot do that.",
            "Then do another thing.",
        ]


def test_a_journal_whose_refusal_was_taken_for_an_empty_answer_replays() -> None:
    with Conversation(Agent(ScriptedLLM([Completion("", stop_reason="refusal")]))) as conversation:
        conversation.send_message("Do it.")
        conversation.run()
        events = list(conversation.get_history())
    at = next(n for n, event in enumerate(events) if isinstance(event, ev.AssistantReplied))
    nudge = ev.MessageAdded(
        seq=events[at].seq + 1,
        id="n",
        timestamp=events[at].timestamp,
        content=(TextContent(EMPTY_ANSWER),),
        sender="holdfast",
    )
    assert replay([*events[: at + 1], nudge]).difference is None


def test_a_refusal_in_place_of_an_output_ends_the_run_with_an_error() -> None:
    with ModelServer([refusal("I cannot do that.")]) as server:
        agent = Agent(LLM("m", base_url=server.url, max_retries=0), output_type=int)
        with Conversation(agent) as conversation:
            conversation.send_message("Count.")
            state = conversation.run()
            assert (state.status, state.steps) == (S.ERROR, 1)
            assert state.error is not None
            assert state.error.error == "OutputInvalid"
            assert "the model refused: I cannot do that." in state.error.message


@pytest.mark.parametrize("setting", [True, False, "tags", None])
def test_a_replay_knows_the_reasoning_that_was_sent_back(setting: Any) -> None:
    thought = {"role": "assistant", "content": "a", "reasoning": "hm"}
    with ModelServer([chat(thought, "stop"), chat(thought, "stop")]) as server:
        llm = LLM("m", base_url=server.url, send_reasoning=setting)
        with Conversation(Agent(llm)) as conversation:
            for _ in range(2):
                conversation.send_message("Hi.")
                conversation.run()
            result = replay(conversation.get_history())
        assert (result.hashed, result.difference) == (2, None)
        message = server.requests[1].messages[2]
        expected: dict[Any, dict[str, Any]] = {
            False: {"role": "assistant", "content": "a"},
            "tags": {"role": "assistant", "content": "<think>hm</think>a"},
        }
        assert message == expected.get(setting, thought)
