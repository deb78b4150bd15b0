"""`Agent.run`: one question to an agent, without a conversation object of the caller."""

import pytest

from holdfast import Agent, Conversation, ConversationStatus, RunFailed, ScriptedLLM, SQLiteStore
from holdfast.store import MemoryStore


def test_an_agent_answers_a_question() -> None:
    state = Agent(ScriptedLLM(["4"])).run("2 + 2?")
    assert (state.status, state.answer, state.steps) == (ConversationStatus.FINISHED, "4", 1)
    assert [event.type for event in state.events][:1] == ["message"]


def test_an_id_that_the_store_knows_goes_on(tmp_path) -> None:
    with SQLiteStore(tmp_path / "work.db") as store:
        agent = Agent(ScriptedLLM(["one", "two"]))
        agent.run("first", store, "c")
        state = agent.run("second", store, "c")
        assert (state.id, state.answer, state.steps) == ("c", "two", 2)
        with Conversation(agent, store, "c") as conversation:  # the lease is free again
            conversation.send_message("third")


def test_a_run_that_does_not_finish_raises_and_closes_its_conversation() -> None:
    store = MemoryStore()

    def fail(request: object) -> str:
        raise RuntimeError("no model today")

    with pytest.raises(RunFailed, match="no model today"):
        Agent(ScriptedLLM(fail)).run("go", store, "c")
    with Conversation(Agent(ScriptedLLM(["ok"])), store, "c") as conversation:
        assert conversation.run().answer == "ok"


def test_deltas_and_progress_are_reported() -> None:
    texts: list[str] = []
    Agent(ScriptedLLM(["hello"])).run("go", on_delta=lambda delta: texts.append(delta.text))
    assert "".join(texts) in ("", "hello")
