"""The tool `switch_model`: an agent switches among the models that it lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    Agent,
    Conversation,
    ConversationStatus,
    Limits,
    MemoryStore,
    ScriptedLLM,
    SQLiteStore,
)
from holdfast import events as ev
from holdfast.errors import ConfigurationError
from holdfast.testing import crash_at_every_append

S = ConversationStatus


def to(model: str) -> tuple[str, dict[str, Any]]:
    return "switch_model", {"model": model}


def heads(conversation: Conversation) -> list[tuple[str, str]]:
    return [
        (event.name, event.model)
        for event in conversation.get_history()
        if isinstance(event, ev.AgentConfigured)
    ]


def results(conversation: Conversation) -> list[str]:
    return [
        event.result.text
        for event in conversation.get_history()
        if isinstance(event, ev.ToolCallFinished)
    ]


def agent(own: Any, strong: Any, **options: Any) -> Agent:
    return Agent(
        ScriptedLLM(own, "small"), models={"strong": ScriptedLLM(strong, "large")}, **options
    )


def test_the_listed_model_answers_from_the_next_step_on_and_the_own_one_again() -> None:
    with Conversation(agent([to("strong"), "back"], [to("default")])) as conversation:
        conversation.send_message("hard")
        assert conversation.run().answer == "back"
        assert heads(conversation) == [("", "small"), ("#strong", "large"), ("", "small")]
        compared = conversation.replay()
        assert (compared.same, compared.requests) == (True, 3)


def test_a_name_of_the_own_model_takes_the_place_of_default() -> None:
    small, large = ScriptedLLM([to("big"), "back"], "small"), ScriptedLLM([to("tiny")], "large")
    with Conversation(Agent(small, models={"tiny": small, "big": large})) as conversation:
        tool = conversation.agent.tools.get("switch_model")
        assert tool.input_schema["properties"]["model"]["enum"] == ["tiny", "big"]
        conversation.send_message("hard")
        assert conversation.run().answer == "back"
        assert [name for name, _ in heads(conversation)] == ["", "#big", ""]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (to("default"), "'default' is your model already"),
        (to("unknown"), "unknown"),
    ],
)
def test_a_switch_that_is_none_is_answered_and_the_same_model_goes_on(call: Any, text: str) -> None:
    with Conversation(agent([call, "went on"], [])) as conversation:
        conversation.send_message("go")
        assert conversation.run().answer == "went on"
        assert text in results(conversation)[0]
        assert len(heads(conversation)) == 1


def test_of_two_switches_in_one_answer_the_first_counts() -> None:
    own = ScriptedLLM([[to("a"), to("b")]], "small")
    models = {"a": ScriptedLLM(["a answers"], "a"), "b": ScriptedLLM([], "b")}
    with Conversation(Agent(own, models=models)) as conversation:
        conversation.send_message("go")
        assert conversation.run().answer == "a answers"
        assert ["only once" in text for text in sorted(results(conversation))] == [False, True]


def test_a_conversation_that_is_opened_again_has_the_model_that_was_chosen(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "store.db")
    with Conversation(agent([to("strong")], ["hard work"]), store, "a") as conversation:
        conversation.send_message("go")
        conversation.run()
    with Conversation(agent([], ["again hard"]), store, "a") as conversation:
        conversation.send_message("more")
        assert conversation.run().answer == "again hard"
    with Conversation(Agent(ScriptedLLM(["own"], "small")), store, "a") as conversation:
        conversation.send_message("more")  # this agent lists no models
        assert conversation.run().answer == "own"
    store.close()


def run_with_switch(store: Any, folder: Path) -> None:
    """Run with both models. The scripts choose by the request, since a resumed process starts
    them anew."""

    def small(request: Any) -> Any:
        return [("write", {"name": "one"}), to("strong")]

    def large(request: Any) -> Any:
        results = sum(message["role"] == "tool" for message in request.messages)
        return ("write", {"name": "two"}) if results < 3 else "done"

    def write(name: str) -> str:
        """Write a file."""
        with (folder / name).open("a") as file:
            file.write(name)
        return name

    strong = {"strong": ScriptedLLM(large, "large")}
    with Conversation(Agent(ScriptedLLM(small, "small"), [write], models=strong), store, "a") as (
        conversation
    ):
        if not conversation.get_history():
            conversation.send_message("go")
        conversation.run()


@pytest.mark.slow
def test_killed_at_every_append_it_comes_to_the_same_model() -> None:
    for crash in crash_at_every_append(run_with_switch):
        names = [event.name for event in crash.after if isinstance(event, ev.AgentConfigured)]
        assert names == ["", "#strong"], str(crash)


def test_after_a_handoff_each_agent_has_its_own_models() -> None:
    billing = Agent(
        ScriptedLLM([to("strong")], "b-small"),
        models={"strong": ScriptedLLM(["billed"], "b-large")},
    )
    front = Agent(
        ScriptedLLM([("handoff", {"agent": "billing"})], "f-small"),
        models={"strong": ScriptedLLM([], "f-large")},
        handoffs={"billing": billing},
    )
    with Conversation(front, MemoryStore()) as conversation:
        conversation.send_message("pay")
        assert conversation.run().answer == "billed"
        assert heads(conversation) == [
            ("", "f-small"),
            ("billing", "b-small"),
            ("billing#strong", "b-large"),
        ]


def test_an_agent_that_plans_first_may_switch_among_its_own_models() -> None:
    """The first agent's variant of that name would not ask for a plan; its own variant does."""
    billing = Agent(
        ScriptedLLM([to("strong")], "b-small"),
        models={"strong": ScriptedLLM(["billed"], "b-large")},
        planning="first",
    )
    front = Agent(
        ScriptedLLM([("handoff", {"agent": "billing"})], "f-small"),
        models={"strong": ScriptedLLM([], "f-large")},
        handoffs={"billing": billing},
    )
    with Conversation(front) as conversation:
        conversation.send_message("pay")
        assert conversation.run().answer == "billed"


def test_work_that_was_delegated_comes_back_to_the_other_model() -> None:
    helper = Agent(ScriptedLLM(["helped"], "helper"))
    call = ("delegate", {"agent": "helper", "task": "help"})
    parent = agent([call, to("strong")], [call, "done"], delegates={"helper": helper})
    with Conversation(
        parent.replace(delegates={"helper": Agent(ScriptedLLM(lambda _: "helped"))})
    ) as (conversation):
        conversation.send_message("go")
        assert conversation.run().answer == "done"
        texts = results(conversation)
        assert ["helped" in text for text in texts] == [True, False, True]


def test_the_serial_form_has_the_models() -> None:
    copy = Agent.from_json(agent([], []).to_json().replace(b'"large"', b'"larger"'))
    assert copy.models is not None
    assert list(copy.models.models()) == ["default", "strong"]


@pytest.mark.parametrize(
    ("models", "text"),
    [
        ("strong", "models takes a mapping"),
        ({"a b": ScriptedLLM([])}, "'a b'"),
        ({"a": "gpt-5"}, "models\\['a'\\] takes a model"),
        ({"default": ScriptedLLM([])}, "'default'"),
    ],
)
def test_what_is_no_mapping_of_names_to_models_is_refused(models: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        Agent(ScriptedLLM([]), models=models)


def test_under_a_limit_of_cost_every_model_needs_a_price() -> None:
    with pytest.raises(ConfigurationError, match="'large'"):
        Agent(
            type("Priced", (ScriptedLLM,), {"cost": lambda *_: 0.1})([], "small"),
            models={"strong": ScriptedLLM([], "large")},
            limits=Limits(cost=1),
        )
