"""Costs of model calls: an unknown cost is None, list prices are the provider's own, and the model
calls of tools and hooks count."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    LLM,
    Agent,
    Conversation,
    Limits,
    MemoryStore,
    ScriptedLLM,
    SQLiteStore,
    ToolContext,
    tool,
)
from holdfast import events as ev
from holdfast.agent.condenser import Condensed
from holdfast.agent.condensers import LLMCondenser, Pipeline, WindowCondenser
from holdfast.content import Usage
from holdfast.conversation.totals import totals
from holdfast.errors import ContextTooLong
from holdfast.llm.completion import Completion
from holdfast.llm.info import model_info
from holdfast.llm.providers import find_provider
from holdfast.observe.stats import stats
from holdfast.tools.hooks import Hook
from tests.model_server import ModelServer, text
from tests.waiting import until


class Priced(ScriptedLLM):
    """A scripted model with a usage and a price."""

    price: float | None = 0.25

    def completion(self, *arguments: Any, **more: Any) -> Completion:
        from msgspec.structs import replace

        return replace(
            super().completion(*arguments, **more), usage=Usage(1000, 10), cost=self.price
        )

    def cost(self, usage: Usage) -> float | None:
        return self.price


class Unpriced(Priced):
    price = None


@tool
def ask(context: ToolContext) -> str:
    """Ask the model beside the loop."""
    return context.llm.completion("What is it?").text


def test_a_cost_that_is_not_known_is_none() -> None:
    store = MemoryStore()
    with (
        ModelServer([text("hello")]) as server,
        Conversation(Agent(LLM("gpt-5-mini", base_url=server.url)), store, "a") as conversation,
    ):
        assert conversation.state.cost == 0.0  # no model call was made yet
        conversation.send_message("hi")
        state = conversation.run()
        assert (state.cost, state.unpriced) == (None, 1)
        assert (totals(store, "a").whole.cost, totals(store, "a").whole.unpriced) == (None, 1)
        assert (
            stats(store, store.list(["a"])[0]).cost,
            stats(store, store.list(["a"])[0]).unpriced,
        ) == (None, 1)


def test_a_cost_that_is_known_in_part_says_of_how_many_calls_it_is_not() -> None:
    store = MemoryStore()
    agent = Agent(Priced([[("ask", {})], "for the tool", "Done."]), [ask])
    with Conversation(agent, store, "a") as conversation:
        conversation.send_message("hi")
        conversation.run()
    with Conversation(Agent(Unpriced(["More."]), [ask]), store, "a") as conversation:
        conversation.send_message("on")
        state = conversation.run()
    assert (state.cost, state.unpriced) == (pytest.approx(0.25 * 3), 1)
    whole = totals(store, "a").whole
    assert (whole.cost, whole.unpriced) == (pytest.approx(0.25 * 3), 1)


def test_what_a_tool_asks_the_model_is_counted(tmp_path: Path) -> None:
    llm = Priced([[("ask", {})], "an answer for the tool", "Done."])
    with (
        SQLiteStore(tmp_path / "s.db") as store,
        Conversation(Agent(llm, [ask]), store, "a") as conversation,
    ):
        conversation.send_message("hi")
        state = conversation.run()
        assert state.usage == Usage(3000, 30)
        assert state.cost == pytest.approx(0.75)
        notes = [
            event for event in state.events if isinstance(event, ev.NoteRecorded) and event.model
        ]
        assert [(note.about, note.usage, note.cost, note.model) for note in notes] == [
            ("llm", Usage(1000, 10), 0.25, llm.model)
        ]
        assert totals(store, "a").whole.usage == Usage(3000, 30)
        assert stats(store, store.list(["a"])[0]).usage == Usage(3000, 30)
        assert state.steps == 2
        again = type(state).from_json(state.to_json())
        assert (again.cost, again.usage) == (state.cost, state.usage)
        assert conversation.replay().same


def test_what_a_tool_asks_the_model_counts_against_the_limits() -> None:
    llm = Priced([[("ask", {})], "an answer for the tool", "Done."])
    with Conversation(Agent(llm, [ask], limits=Limits(tokens=2000))) as conversation:
        conversation.send_message("hi")
        state = conversation.run()
    assert state.status == "error"
    assert state.error is not None
    assert state.error.details["type"] == "tokens"


def test_what_a_tool_asks_the_model_counts_once_in_a_trees_budget(tmp_path: Path) -> None:
    llm = Priced([[("ask", {})], "an answer for the tool", "Done."])
    with SQLiteStore(tmp_path / "s.db") as store:
        with Conversation(
            Agent(llm, [ask], tree_limits=Limits(steps=10)), store, "a"
        ) as conversation:
            conversation.send_message("hi")
            state = conversation.run()
        assert state.usage == Usage(3000, 30)


def test_what_a_hook_asks_the_model_is_counted() -> None:
    def look(call: Any, context: Any) -> None:
        context.llm.completion("Is that well?")

    llm = Priced([[("ask", {})], "for the hook", "for the tool", "Done."])
    with Conversation(Agent(llm, [ask], hooks=[Hook(look, tools="ask")])) as conversation:
        conversation.send_message("hi")
        state = conversation.run()
    assert state.usage == Usage(4000, 40)


def test_what_a_hook_on_stop_asks_the_model_is_counted() -> None:
    def look(stopping: Any, context: Any) -> None:
        context.llm.completion("Is that well?")

    with Conversation(
        Agent(Priced(["Done.", "for the hook"]), hooks=[Hook(look, on="stop")])
    ) as conversation:
        conversation.send_message("hi")
        state = conversation.run()
    assert (state.usage, state.cost) == (Usage(2000, 20), 0.5)


def test_prices_are_those_of_the_provider_that_was_named() -> None:
    for provider in ("anthropic", "openai", "google", "groq", "deepseek"):
        entry = find_provider(provider)
        assert entry is not None
        for name in entry.models:
            info = model_info(f"{provider}/{name}")
            assert info is not None
            assert info.provider == provider
    for name in (
        "anthropic/claude-3-opus",
        "anthropic/claude-3.5-sonnet",
        "anthropic/gpt-4o",
        "openai/claude-sonnet-4-5",
    ):
        info = model_info(name)
        assert (
            info is None
            or info.provider == name.partition("/")[0]
            or info.input_price is info.output_price is None
        ), name
    dotted = model_info("anthropic/claude-haiku-4.5")
    assert dotted is not None
    assert (dotted.provider, dotted.input_price) == ("anthropic", 1.0)


def test_a_model_on_this_machine_has_no_list_price() -> None:
    llm = LLM("anthropic/claude-sonnet-4-5", base_url="http://127.0.0.1:9/v1")
    assert llm.info is not None
    assert (llm.info.input_price, llm.info.output_price, llm.cost(Usage(1, 1))) == (
        None,
        None,
        None,
    )
    assert llm.info.context_window


# --- the provider's own price ---


class Listed(LLM):
    """A model with a list price of half a dollar per call, at any address."""

    def cost(self, usage: Usage) -> float | None:
        return 0.5


def priced_answer(cost: Any, words: str = "hello") -> dict[str, Any]:
    """Return an answer in which the provider states its price, as OpenRouter does."""
    counts = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15, "cost": cost}
    return text(words, usage=counts)


def test_the_price_that_a_provider_states_counts_before_the_list_price() -> None:
    store = MemoryStore()
    with (
        ModelServer([priced_answer(0.25), text("no price"), priced_answer(0)]) as server,
        Conversation(Agent(Listed("m", base_url=server.url)), store, "a") as conversation,
    ):
        for words in ("one", "two", "three"):
            conversation.send_message(words)
            conversation.run()
        answers = [
            event for event in conversation.get_history() if isinstance(event, ev.AssistantReplied)
        ]
        assert [(one.cost, one.provider_cost, one.list_cost) for one in answers] == [
            (0.25, 0.25, 0.5),
            (0.5, None, 0.5),
            (0.0, 0.0, 0.5),
        ]
        assert (conversation.state.cost, conversation.state.unpriced) == (0.75, 0)
    assert totals(store, "a").whole.cost == 0.75
    figures = stats(store, store.list(["a"])[0])
    assert (figures.cost, figures.provider_cost, figures.list_cost) == (0.75, 0.25, 1.0)
    assert (figures + figures).provider_cost == 0.5


def test_a_stated_price_is_known_although_the_list_has_none() -> None:
    store = MemoryStore()
    with (
        ModelServer([priced_answer(0.25), text("no price")]) as server,
        Conversation(Agent(LLM("m", base_url=server.url)), store, "a") as conversation,
    ):
        conversation.send_message("one")
        assert (conversation.run().cost, conversation.state.unpriced) == (0.25, 0)
        conversation.send_message("two")
        assert (conversation.run().cost, conversation.state.unpriced) == (0.25, 1)
        assert conversation.state.events[-2].list_cost is None  # type: ignore[union-attr]
    figures = stats(store, store.list(["a"])[0])
    assert (figures.cost, figures.provider_cost, figures.list_cost) == (0.25, 0.25, None)


def test_a_limit_counts_the_stated_price() -> None:
    with (
        ModelServer([priced_answer(0.25), priced_answer(0.25), priced_answer(0.25)]) as server,
        Conversation(
            Agent(
                Listed("m", base_url=server.url, max_output_tokens=10),
                tree_limits=Limits(cost=1.0),
            )
        ) as conversation,
    ):
        # By list prices the second call would be the last.
        for words in ("one", "two", "three"):
            conversation.send_message(words)
            assert conversation.run().error is None
        conversation.send_message("four")
        error = conversation.run().error
    assert error is not None
    assert (error.details["type"], error.details["value"]) == ("cost", 0.75)


# --- condensations that leave nothing out ---


class Rambling(Priced):
    """A model whose summaries are too long to use."""

    def __init__(self) -> None:
        super().__init__(lambda request: "word " * 2000)


def three_answers(condenser: Any, llm: Any = None, **more: Any) -> Conversation:
    """Return a conversation of three answers."""
    agent = Agent(llm or Priced(["fine"] * 3), condenser=condenser)
    conversation = Conversation(agent, **more)
    for text_ in ("a", "b", "c"):
        conversation.send_message(text_ * 100)
        conversation.run()
    return conversation


def last_condensation(conversation: Conversation) -> ev.HistoryCondensed:
    return [one for one in conversation.get_history() if isinstance(one, ev.HistoryCondensed)][-1]


@pytest.mark.parametrize("llm", [Rambling(), Priced([""])], ids=["too long", "empty"])
def test_a_summary_that_is_not_used_is_counted(llm: Any) -> None:
    store = MemoryStore()
    with three_answers(LLMCondenser(llm), store=store) as conversation:
        before = conversation.state
        conversation.condense()
        event, state = last_condensation(conversation), conversation.state
        assert event.failed
        assert (event.usage, event.cost, event.model) == (Usage(1000, 10), 0.25, llm.model)
        assert state.cost == before.cost + 0.25
        assert state.usage == before.usage + Usage(1000, 10)
        figures = stats(store, store.list([conversation.id])[0])
        assert (figures.usage, figures.cost) == (state.usage, state.cost)


class Careless:
    """A condenser that asks the lent model and reports no usage."""

    at = None

    def __init__(self, outcome: Any) -> None:
        self.outcome = outcome

    def shorten(self, work: Any) -> Any:
        work.llm.completion("Shorten this.")
        work.lend(Priced(["x"])).completion("And this.")
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome(work) if callable(self.outcome) else self.outcome


@pytest.mark.parametrize(
    "outcome",
    [
        None,
        ValueError("no"),
        Condensed((999,), "s"),
        Condensed((3,), summary=5),  # type: ignore[arg-type]
        lambda work: Condensed((work.pieces[1].seq,), "s"),
    ],
    ids=["none", "raises", "unknown", "unreadable", "used"],
)
def test_what_a_condenser_asks_is_counted_whatever_it_returns(outcome: Any) -> None:
    agent = Agent(Priced(["fine"] * 9), condenser=Careless(outcome))
    with Conversation(agent) as conversation:
        for _ in range(3):
            conversation.send_message("go on")
            conversation.run()
        before = conversation.state
        conversation.condense()
        event, state = last_condensation(conversation), conversation.state
        assert bool(event.failed) == (not callable(outcome))
        assert event.cost == 0.5
        assert state.cost == before.cost + 0.5
        assert state.usage.input_tokens == before.usage.input_tokens + 2000


def test_a_condensation_that_is_dropped_by_an_interrupt_is_counted() -> None:
    summarizing, go_on = threading.Event(), threading.Event()

    class Slow(Priced):
        def completion(self, *arguments: Any, **more: Any) -> Completion:
            answer = super().completion(*arguments, **more)
            summarizing.set()
            assert go_on.wait(30)
            return answer

    with three_answers(LLMCondenser(Slow(["notes"]))) as conversation:
        before = conversation.state
        conversation.start_thread()
        conversation.condense()
        assert summarizing.wait(30)
        conversation.interrupt()
        go_on.set()
        until(lambda: conversation.state.cost == before.cost + 0.25)
        event = last_condensation(conversation)
        assert (event.failed, event.cost) == ("interrupted", 0.0)
        [note] = [one for one in conversation.get_history() if isinstance(one, ev.NoteRecorded)]
        assert (note.about, note.usage, note.cost) == ("condensation", Usage(1000, 10), 0.25)


def test_a_summary_that_does_not_save_a_run_is_counted() -> None:
    def answer(request: Any) -> Any:
        if len(request.messages) < 7:
            return "fine"
        return ContextTooLong("too long")

    with three_answers(LLMCondenser(Rambling(), at=None), Priced(answer)) as conversation:
        assert conversation.state.status.value == "finished"
        before = conversation.state
        conversation.send_message("d")
        assert conversation.run().error.error == "ContextTooLong"  # type: ignore[union-attr]
        assert conversation.state.cost == before.cost + 0.25


def test_a_pipeline_counts_the_condenser_that_failed() -> None:
    pipeline = Pipeline([LLMCondenser(Rambling()), WindowCondenser()])
    with three_answers(pipeline) as conversation:
        conversation.condense()
        event = last_condensation(conversation)
        assert (event.failed, event.cost) == ("", 0.25)
