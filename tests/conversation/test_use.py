"""`Conversation.use`: another agent answers from the next step on; everything else stays."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import (
    Agent,
    Conversation,
    ConversationStatus,
    Limits,
    LocalRuntime,
    ScriptedLLM,
    SQLiteStore,
    Tool,
    ToolContext,
)
from holdfast import events as ev
from holdfast.content import Usage
from holdfast.errors import ConfigurationError, ConversationClosed

S = ConversationStatus


def models(conversation: Conversation) -> list[str]:
    return [e.model for e in conversation.get_history() if isinstance(e, ev.AgentConfigured)]


def small(*answers: Any, **options: Any) -> Agent:
    return Agent(ScriptedLLM(list(answers), "small"), system_prompt="You are small.", **options)


def large(*answers: Any, **options: Any) -> Agent:
    return Agent(ScriptedLLM(list(answers), "large"), system_prompt="You are large.", **options)


def model_of(agent: Agent) -> ScriptedLLM:
    assert isinstance(agent.llm, ScriptedLLM)
    return agent.llm


def test_the_other_agent_answers_the_next_message_with_all_that_was_said() -> None:
    with Conversation(small("one")) as conversation:
        conversation.send_message("first")
        conversation.run()
        other = large("two")
        conversation.use(other)
        assert conversation.agent is other
        assert conversation.state.status is S.FINISHED
        assert models(conversation) == ["small", "large"]  # also at rest
        conversation.send_message("second")
        assert conversation.run().answer == "two"
        [request] = model_of(other).requests
        body = msgspec.json.decode(request.body)
        assert [one["role"] for one in body["messages"]] == [
            *("system", "user", "assistant", "user"),
        ]
        compared = conversation.replay()
        assert (compared.same, compared.hashed) == (True, 2)


def test_before_the_first_message_the_journal_begins_with_the_other_agent() -> None:
    with Conversation(small()) as conversation:
        conversation.use(large("hello"))
        conversation.send_message("hi")
        assert conversation.run().answer == "hello"
        assert models(conversation) == ["large"]


def test_during_a_run_the_calls_of_the_answer_end_under_the_agent_that_made_them() -> None:
    running, goes_on = threading.Event(), threading.Event()

    def work() -> str:
        running.set()
        assert goes_on.wait(30)
        return "worked"

    agent = small(("work", {}), tools=[Tool.from_function(work)])
    with Conversation(agent) as conversation:
        conversation.start_thread()
        conversation.send_message("go")
        assert running.wait(30)
        conversation.use(large("done"))  # the new agent has no such tool
        assert models(conversation) == ["small"]
        goes_on.set()
        conversation.wait(30)
        history = conversation.get_history()
        [result] = [e.result.text for e in history if isinstance(e, ev.ToolCallFinished)]
        assert result == "worked"
        assert conversation.state.answer == "done"
        assert models(conversation) == ["small", "large"]


def test_a_call_that_waits_for_approval_is_decided_under_the_agent_that_made_it() -> None:
    ran: list[str] = []

    def work() -> str:
        ran.append("work")
        return "worked"

    agent = small(("work", {}), tools=[Tool.from_function(work)], confirm="always")
    with Conversation(agent) as conversation:
        conversation.send_message("go")
        assert conversation.run().status is S.WAITING_FOR_CONFIRMATION
        conversation.use(large("done"))
        assert models(conversation) == ["small"]
        conversation.approve()
        assert conversation.run().answer == "done"
        assert ran == ["work"]


def test_a_tool_may_change_the_agent_of_its_own_conversation() -> None:
    other = large("from the large one")
    opened: list[Conversation] = []

    def upgrade() -> str:
        opened[0].use(other)
        return "done"

    with Conversation(small(("upgrade", {}), tools=[Tool.from_function(upgrade)])) as conversation:
        opened.append(conversation)
        conversation.send_message("go")
        assert conversation.run().answer == "from the large one"


def test_the_shell_and_the_counts_of_the_run_stay(tmp_path: Path) -> None:
    with LocalRuntime(tmp_path) as runtime:
        agent = Agent(
            ScriptedLLM([("terminal", {"command": "cd /; export A=1"}), "one"], "small"),
            runtime.tools,
        )
        with Conversation(agent) as conversation:
            conversation.send_message("go")
            conversation.run()
            again = ScriptedLLM([("terminal", {"command": "echo $A $PWD"}), "two"], "large")
            conversation.use(agent.replace(llm=again))
            conversation.send_message("go on")
            conversation.run()
            texts = [
                e.result.text
                for e in conversation.get_history()
                if isinstance(e, ev.ToolCallFinished)
            ]
            assert texts[-1].splitlines()[0] == "1 /"
            assert conversation.state.steps == 4


def test_of_several_agents_the_last_one_answers_and_each_is_used_at_most_once() -> None:
    agents = [large(f"agent {number}") for number in range(20)]
    with Conversation(small("one")) as conversation:
        conversation.start_thread()
        threads = [threading.Thread(target=conversation.use, args=(one,)) for one in agents]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        conversation.use(agents[7])
        conversation.send_message("hi")
        conversation.wait(30)
        assert conversation.state.answer == "agent 7"
        assert all(one.connections.open == 0 for one in agents if one is not agents[7])
    assert all(one.connections.open == 0 for one in agents)


def test_the_agent_before_it_releases_its_connections() -> None:
    first = small("one")
    with Conversation(first) as conversation:
        conversation.send_message("hi")
        conversation.run()
        assert first.connections.open == 1
        conversation.use(large("two"))
        assert first.connections.open == 0


def test_an_agent_that_was_handed_the_conversation_gives_way(tmp_path: Path) -> None:
    billing = large("billed")
    front = small(("handoff", {"agent": "billing"}), handoffs={"billing": billing})
    with Conversation(front) as conversation:
        conversation.send_message("pay")
        assert conversation.run().answer == "billed"
        conversation.use(Agent(ScriptedLLM(["taken back"], "third")))
        conversation.send_message("and now?")
        assert conversation.run().answer == "taken back"
        names = [e.name for e in conversation.get_history() if isinstance(e, ev.AgentConfigured)]
        assert names == ["", "billing", ""]


def test_a_run_that_was_paused_goes_on_with_the_other_agent(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "store.db")
    with Conversation(small("never said"), store, "a") as conversation:
        conversation.send_message("hi")
        conversation.pause()
        conversation.use(large("resumed"))
        assert conversation.status is S.PAUSED
        assert conversation.run().answer == "resumed"
    store.close()


def test_another_process_that_opens_the_conversation_has_its_own_agent(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "store.db")
    with Conversation(small("one"), store, "a") as conversation:
        conversation.send_message("hi")
        conversation.run()
        conversation.use(large("two"))
    with Conversation(small("three"), store, "a") as conversation:
        conversation.send_message("again")
        assert conversation.run().answer == "three"
        assert models(conversation) == ["small", "large", "small"]
    store.close()


def test_tree_limits_are_those_of_the_agent_in_use() -> None:
    with Conversation(small("one", tree_limits=Limits(steps=1))) as conversation:
        conversation.send_message("hi")
        conversation.run()
        conversation.use(large("two", tree_limits=Limits(steps=5)))
        conversation.send_message("again")
        assert conversation.run().answer == "two"
        conversation.use(small("three", tree_limits=Limits(steps=1)))
        conversation.send_message("again")
        assert conversation.run().status is S.ERROR


class Priced(ScriptedLLM):
    """A model at a tenth of a cent for a token."""

    def parameters(self) -> dict[str, Any]:
        return {"max_output_tokens": 50}

    def cost(self, usage: Usage) -> float | None:
        return (usage.input_tokens + usage.output_tokens) / 1000


def test_a_spawned_conversation_keeps_to_models_with_prices_under_a_budget_of_cost() -> None:
    """Its parent's budget could not count the calls of a model without a price."""
    refused: list[str] = []

    def spawn(context: ToolContext) -> str:
        context.spawn(Agent(Priced(["fine"], "priced")))
        [child] = conversation.open_children()
        child.send_message("hi")
        child.run()
        try:
            child.use(large("two"))
        except ConfigurationError as error:
            refused.append(str(error))
        child.use(Agent(Priced(["also fine"], "other")))
        child.send_message("again")
        return child.run().answer or ""

    parent = Agent(Priced([("spawn", {}), "done"], "priced"), [spawn], tree_limits=Limits(cost=9.0))
    with Conversation(parent) as conversation:
        conversation.send_message("go")
        assert conversation.run().answer == "done"
        [result] = [
            e.result.text for e in conversation.get_history() if isinstance(e, ev.ToolCallFinished)
        ]
    assert result == "also fine"
    [refusal] = refused
    assert "use: the budget" in refusal
    assert "'large'" in refusal


def test_what_is_no_agent_is_refused_and_a_closed_conversation_too() -> None:
    conversation = Conversation(small("one"))
    with pytest.raises(ConfigurationError, match="use: agent takes an Agent"):
        conversation.use(3)  # pyright: ignore[reportArgumentType]
    conversation.close()
    with pytest.raises(ConversationClosed):
        conversation.use(large())
