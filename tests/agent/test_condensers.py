"""The shipped condensers: what they leave out, and that every provider takes the remaining
request."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import Agent, Conversation, ScriptedLLM, Tool, load_agent
from holdfast import events as ev
from holdfast.agent.condenser import Condensed, trigger_of, window_of
from holdfast.agent.condensers import (
    CondenserInput,
    LLMCondenser,
    Pipeline,
    ToolOutputCondenser,
    WindowCondenser,
    read_output,
)
from holdfast.agent.condensers.condenser_input import pieces_of
from holdfast.agent.condensers.summary import HEADING, SYSTEM, prompt
from holdfast.agent.condensers.window import NOTE
from holdfast.agent.tokens import Sizes
from holdfast.agent.view import View
from holdfast.errors import BadResponse, ConfigurationError, ContextTooLong, RateLimited
from holdfast.llm import LLM, FallbackLLM
from holdfast.llm.request import Prompt, RequestTarget, make_request
from holdfast.llm.wires import wire
from tests.agent.test_view import NOW, Script
from tests.samples import examples

WIRES = ("openai_chat", "openai_responses", "anthropic_messages", "gemini")
HEAD = ev.AgentConfigured(seq=1, id="h", timestamp=NOW, system_prompt="Be good.", model="m")


def work_on(
    events: list[Any], limit: int = 10**9, target: int = 0, llm: Any = None, instructions: str = ""
) -> CondenserInput:
    sizes = Sizes.of(events)
    summaries = {event.id for event in events if isinstance(event, ev.HistoryCondensed)}
    return CondenserInput(
        pieces_of(View.of(events).ready().items, sizes, summaries),
        sizes.tokens,
        limit,
        target,
        llm,
        instructions,
    )


def apply(script: Script, change: Condensed | None) -> None:
    if change is not None:
        script.add(
            ev.HistoryCondensed,
            hidden=change.hidden,
            summary=change.summary,
            trimmed=change.trimmed,
            replaced=change.replaced,
        )


def view_texts(events: list[Any]) -> list[str]:
    return [
        item[1].text if isinstance(item, tuple) else item.text
        for item in View.of(events).ready().items
    ]  # type: ignore[union-attr]


def long_one(turns: int = 20, size: int = 4000) -> Script:
    script = Script()
    script.say("the task")
    for n in range(turns):
        answer = script.answer(f"a{n}", calls=2)
        for call in answer.calls:
            script.result(call, f"r{call.id} " + "x" * size)
    return script


# --- legal requests ---


def judge(name: str, body: dict[str, Any]) -> None:
    """Check that each call has its one result where the protocol wants it, and that the user
    speaks first."""
    if name == "openai_chat":
        messages = [message for message in body["messages"] if message["role"] != "system"]
        assert messages[0]["role"] == "user"
        open: list[str] = []
        for message in messages:
            if message["role"] == "tool":
                open.remove(message["tool_call_id"])
            else:
                assert not open, "something stands between calls and their results"
                open = [call["id"] for call in message.get("tool_calls") or []]
        assert not open
    elif name == "openai_responses":
        items = body["input"]
        assert items[0].get("role") == "user"
        calls = [item["call_id"] for item in items if item.get("type") == "function_call"]
        results = [item["call_id"] for item in items if item.get("type") == "function_call_output"]
        assert calls == results
        assert len(set(calls)) == len(calls)
    elif name == "anthropic_messages":
        messages = body["messages"]
        assert messages[0]["role"] == "user"
        for before, message in zip([None, *messages], messages, strict=False):
            blocks = message["content"] if isinstance(message["content"], list) else []
            results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
            expected = (
                [block["id"] for block in before["content"] if block["type"] == "tool_use"]
                if before and before["role"] == "assistant"
                else []
            )
            assert results == expected
        assert messages[-1]["role"] == "user"
    else:
        contents = body["contents"]
        assert contents[0]["role"] == "user"
        open_ = 0
        for content in contents:
            results = sum("functionResponse" in part for part in content["parts"])
            assert results == open_
            open_ = sum("functionCall" in part for part in content["parts"])
        assert not open_


def is_legal(events: list[Any]) -> None:
    for name in WIRES:
        target = RequestTarget(wire(name), "m", {})
        request = make_request(target, Prompt(View.of(events).ready(), head=HEAD))
        judge(name, json.loads(request.body))


def summarising() -> ScriptedLLM:
    return ScriptedLLM(lambda request: "## Goal\nthe task")


CONDENSERS: dict[str, Any] = {
    "window": lambda: WindowCondenser(),
    "window of 3": lambda: WindowCondenser(3),
    "outputs": lambda: ToolOutputCondenser(keep=0, over=300),
    "model": lambda: LLMCondenser(summarising()),
    "pipeline": lambda: Pipeline(
        [ToolOutputCondenser(keep=10, over=310), LLMCondenser(summarising()), WindowCondenser()]
    ),
}


@settings(max_examples=examples(150), deadline=None)
@given(st.data())
def test_a_condensed_view_is_a_legal_request_on_every_wire(data: st.DataObject) -> None:
    script = Script()
    script.say("start")
    last_user = "start"
    for step in range(data.draw(st.integers(1, 10))):
        based_on = len(script.events)
        for n in range(data.draw(st.integers(0, 1))):
            last_user = f"in flight {step}.{n}"
            script.say(last_user)
        answer = script.answer(f"a{step}", data.draw(st.integers(0, 3)), based_on)
        for call in data.draw(st.permutations(answer.calls)):
            if data.draw(st.integers(0, 4)) == 0:
                last_user = f"during {call.id} " + "u" * data.draw(st.integers(0, 300))
                script.say(last_user)
            script.result(
                call, f"r{call.id} " + "x" * data.draw(st.sampled_from((0, 100, 2000, 9000)))
            )
        if not answer.calls:
            last_user = f"next {step}"
            script.say(last_user)
        if data.draw(st.booleans()):
            condenser = CONDENSERS[data.draw(st.sampled_from(sorted(CONDENSERS)))]()
            total = Sizes.of(script.events).tokens
            work = work_on(
                script.events, data.draw(st.integers(0, total)), data.draw(st.integers(0, total))
            )
            try:
                change = condenser.shorten(work)
            except BadResponse:  # a summary longer than the text that it summarises
                change = None
            before = view_texts(script.events)
            apply(script, change)
            after = view_texts(script.events)
            assert change is None or after != before, "it changed nothing"
            assert last_user in after
            assert answer.text in after
            assert all(
                any(text.startswith(f"r{call.id} ") or call.id in text for text in after)
                for call in answer.calls
            )
            assert not [text for text in after if text.startswith(HEADING)][1:], (
                "two summaries stand"
            )
            is_legal(script.events)


# --- each condenser ---


def test_a_window_keeps_the_first_message_the_last_ones_and_what_is_not_answered_yet() -> None:
    script = long_one(10, 10)
    apply(script, WindowCondenser(3).shorten(work_on(script.events, target=10**9)))
    texts = view_texts(script.events)
    assert texts[:2] == ["the task", NOTE]
    assert [text for text in texts if text.startswith("a")] == ["a7", "a8", "a9"]
    assert WindowCondenser(3).shorten(work_on(script.events, target=10**9)) is None
    apply(script, WindowCondenser(1).shorten(work_on(script.events, target=0)))
    assert view_texts(script.events)[:3] == ["the task", NOTE, "a9"]
    assert WindowCondenser(1).shorten(work_on(script.events, target=0)) is None, (
        "the last answer is still to be answered"
    )


def test_a_window_comes_down_to_its_target_and_no_further() -> None:
    script = long_one()
    target = Sizes.of(script.events).tokens // 2
    apply(script, WindowCondenser().shorten(work_on(script.events, target=target)))
    assert target * 0.85 < Sizes.of(script.events).tokens <= target * 1.01


def test_a_window_leaves_the_summary_of_another_condenser_standing() -> None:
    script = long_one()
    apply(
        script,
        LLMCondenser(ScriptedLLM(["The code is 4711."])).shorten(
            work_on(script.events, target=20_000)
        ),
    )
    for target in (10_000, 5_000):
        apply(script, WindowCondenser().shorten(work_on(script.events, target=target)))
    texts = view_texts(script.events)
    assert texts[1] == f"{HEADING}\n\nThe code is 4711.\n\n{NOTE}"


def test_outputs_that_are_old_and_large_are_cut_first_and_what_is_not_answered_last() -> None:
    script = Script()
    script.say("the task")
    sizes = [2000, 40_000, 8000, 8000, 1000, 8000]
    calls = []
    for n, size in enumerate(sizes):
        answer = script.answer(f"a{n}", calls=1)
        script.result(answer.calls[0], "x" * size)
        calls.append(answer.calls[0].id)
    total = Sizes.of(script.events).tokens

    def trim(saved: int, limit: int = 10**9) -> list[str]:
        change = ToolOutputCondenser().shorten(work_on(script.events, limit, total - saved))
        return [] if change is None else list(change.trimmed)

    assert trim(0) == []
    assert trim(5_000) == [calls[1]]
    assert trim(12_000) == [calls[1], calls[2]]
    assert trim(total) == [
        calls[1],
        calls[2],
        calls[3],
        calls[0],
    ], "small ones stay, and what the model has not answered"
    assert trim(total, limit=10) == [calls[1], calls[2], calls[3], calls[0], calls[5]]
    change = ToolOutputCondenser().shorten(work_on(script.events, 10**9, total - 5_000))
    apply(script, change)
    note = (
        "[39,600 of 40,000 characters left out here to save room;"
        f' read_output(call_id="{calls[1]}", offset=400) shows them.]'
    )
    assert f"{'x' * 400}\n{note}" in view_texts(script.events)


def test_a_model_is_asked_for_notes_about_what_goes_and_works_over_its_earlier_ones() -> None:
    script = long_one(12, 3000)
    llm = ScriptedLLM(["## Goal\nfirst notes", "## Goal\nsecond notes"])
    condenser = LLMCondenser(llm)
    total = Sizes.of(script.events).tokens
    change = condenser.shorten(
        work_on(script.events, target=total * 2 // 3, instructions="Keep the ticket.")
    )
    assert change is not None
    assert change.usage.input_tokens > 100
    assert change.model == "scripted"
    request = llm.requests[0]
    assert request.system == SYSTEM
    assert [
        heading
        for heading in ("## Goal", "## Decisions and facts", "## Files", "## Open ends")
        if heading not in SYSTEM
    ] == []
    assert "Keep the ticket." in request.text
    assert "<agent>\na0\ncalled t {}\nreturned: r2.0 xxx" in request.text
    assert "Notes from earlier" not in request.text
    assert not request.tools
    apply(script, change)
    assert view_texts(script.events)[:2] == ["the task", f"{HEADING}\n\n## Goal\nfirst notes"]
    apply(script, condenser.shorten(work_on(script.events, target=total // 3)))
    assert "# Notes from earlier\n\n## Goal\nfirst notes" in llm.requests[1].text
    assert HEADING not in llm.requests[1].text
    assert view_texts(script.events)[:2] == ["the task", f"{HEADING}\n\n## Goal\nsecond notes"]


def test_what_a_model_is_asked_with_fits_its_window() -> None:
    script = long_one(100, 9000)
    work = work_on(script.events, target=0)
    for budget in (100_000, 10_000, 1_000):
        text = prompt(work, list(work.hideable), budget)
        assert len(text) // 4 <= budget * 1.05 + 20
        assert "a98" in text, "the latest matter most"

    def small(request: Any) -> Any:
        if len(request.body) > 40_000:
            raise ContextTooLong("too long")
        return "notes"

    change = LLMCondenser(ScriptedLLM(small)).shorten(work)
    assert change is not None
    assert change.summary.endswith("notes")


@pytest.mark.parametrize(
    ("answer", "problem"),
    [("", "wrote none"), ("x" * 100_000, "longer than the text that it summarises")],
)
def test_notes_that_are_none_are_an_error(answer: str, problem: str) -> None:
    with pytest.raises(BadResponse, match=problem):
        LLMCondenser(ScriptedLLM([answer])).shorten(work_on(long_one(4, 100).events))


def test_a_pipeline_stops_when_there_is_room_and_passes_over_a_model_that_fails() -> None:
    script = long_one()
    total = Sizes.of(script.events).tokens
    llm = ScriptedLLM([RateLimited("later")])
    pipeline = Pipeline([ToolOutputCondenser(), LLMCondenser(llm), WindowCondenser()])
    change = pipeline.shorten(work_on(script.events, target=total // 2))
    assert change is not None
    assert (change.hidden, llm.requests) == ((), [])
    assert change.trimmed
    change = pipeline.shorten(work_on(script.events, target=1500))
    assert change is not None
    assert len(llm.requests) == 1
    assert change.hidden
    assert not [
        call_id for call_id in change.trimmed if int(call_id.split(".")[0]) in change.hidden
    ], "what is hidden need not be cut"
    apply(script, change)
    assert (
        Sizes.of(script.events).tokens <= 1500 + 2000
    )  # and the results of the last answer, which stay
    with pytest.raises(RateLimited):
        Pipeline([LLMCondenser(ScriptedLLM([RateLimited("later")]))]).shorten(
            work_on(long_one().events)
        )


def test_a_pipeline_takes_a_condenser_of_your_own() -> None:
    class Own:
        def condense(self, journal: Any, reason: ContextTooLong, cancelled: Any) -> Condensed:
            return Condensed((2,), "own")

    script = long_one(4, 100)
    change = Pipeline([ToolOutputCondenser(), Own()]).shorten(work_on(script.events))
    assert change == Condensed((2,), "own")


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: WindowCondenser(0), "keep takes a whole number from 1"),
        (lambda: WindowCondenser(at=0), "at takes"),
        (lambda: WindowCondenser(at=1.5), "at takes"),
        (lambda: WindowCondenser(to=1), "to takes"),
        (lambda: ToolOutputCondenser(keep=-1), "keep takes"),
        (lambda: ToolOutputCondenser(over=400), "over takes"),
        (lambda: LLMCondenser(LLM), "llm takes an LLM"),
        (lambda: Pipeline([]), "takes a list of condensers"),
        (lambda: Pipeline([object()]), "takes a list of condensers"),
        (lambda: Agent(ScriptedLLM([]), condenser=WindowCondenser), "condenser takes an object"),
        (
            lambda: Agent(
                ScriptedLLM([]),
                [Tool("read_output", "", lambda: 1)],
                condenser=ToolOutputCondenser(),
            ),
            "another one of that name",
        ),
    ],
)
def test_what_does_not_fit_is_named(make: Any, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        make()


# --- the size at which condensation begins ---


def test_it_begins_at_a_share_of_the_window_or_at_a_number_of_tokens() -> None:
    claude, gpt = (
        LLM("anthropic/claude-sonnet-4-5", "k", max_output_tokens=10_000),
        LLM("gpt-4o", "k"),
    )
    assert claude.info is not None
    assert claude.info.context_window is not None
    assert window_of(claude) == claude.info.context_window - 10_000
    assert gpt.info is not None
    assert window_of(FallbackLLM([claude, gpt])) == gpt.info.context_window
    assert window_of(ScriptedLLM([])) is None
    assert trigger_of(Agent(gpt, condenser=WindowCondenser(at=0.5))) == gpt.info.context_window // 2  # type: ignore[operator]
    assert trigger_of(Agent(gpt, condenser=WindowCondenser(at=5000))) == 5000
    assert trigger_of(Agent(gpt, condenser=WindowCondenser(at=None))) is None
    assert trigger_of(Agent(ScriptedLLM([]), condenser=WindowCondenser())) is None


# --- serial form ---


def test_an_agent_with_a_shipped_condenser_travels() -> None:
    script = {"model": {"use": "scripted", "parameters": {"script": ["a"]}}}
    agent = Agent(
        ScriptedLLM(["a"]),
        condenser=Pipeline(
            [
                ToolOutputCondenser(100),
                LLMCondenser(LLM("gpt-5-mini", "sk-secret-number-1"), at=None),
                WindowCondenser(5, at=9000),
            ],
            to=0.3,
        ),
    )
    form = json.loads(agent.to_json())
    assert form["condenser"] == {
        "name": "pipeline",
        "to": 0.3,
        "condensers": [
            {"name": "tool_output", "keep": 100},
            {"name": "llm", "at": None, "model": {"name": "gpt-5-mini", "api_key": "${secret_1}"}},
            {"name": "window", "keep": 5, "at": 9000},
        ],
    }
    assert "read_output" not in json.dumps(form.get("tools", {}))
    other = Agent.from_json(agent.to_json(), variables={"secret_1": "sk-secret-number-1"})
    assert [tool.name for tool in other.tools.list_tools()] == ["read_output"]
    assert other.definitions(None) == agent.definitions(None)
    assert json.loads(other.to_json()) == form
    assert load_agent({**script, "condenser": "window"}).condenser == WindowCondenser()
    assert load_agent(
        {**script, "condenser": {"name": "window", "keep": 7, "at": 0.6}}
    ).condenser == WindowCondenser(7, 0.6)
    from_config = load_agent(
        {**script, "condenser": ["tool_output", {"name": "window", "at": 5000}]}
    )
    assert from_config.condenser == Pipeline([ToolOutputCondenser(), WindowCondenser(at=5000)])
    assert from_config.tools.list_tools() == [read_output]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"name": "windw"}, "window"),
        ({"name": "window", "over": 5}, "the condenser window takes keep, at, to, not over"),
        ({"name": "pipeline"}, "a pipeline has condensers"),
        ({"keep": 3}, "name"),
        ({"name": "window", "keep": 0}, "keep takes a whole number from 1"),
        ([5], "it takes window, tool_output, llm"),
        ("summary", "no builtin is named 'summary'"),
    ],
)
def test_a_condenser_that_is_none_is_named_where_it_stands(given: Any, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        load_agent({"model": {"use": "scripted", "parameters": {"script": []}}, "condenser": given})


def test_a_frozen_agent_stays_so_and_its_conversations_share_one_condenser() -> None:
    agent = Agent(ScriptedLLM(lambda request: "yes"), condenser=WindowCondenser(at=100))
    with pytest.raises(AttributeError):
        agent.condenser = None
    for _ in range(2):
        with Conversation(agent) as conversation:
            for n in range(12):
                conversation.send_message(f"{n} " + "word " * 20)
                conversation.run()
            assert any(
                isinstance(event, ev.HistoryCondensed) for event in conversation.get_history()
            )


def test_a_server_takes_shipped_condensers_from_clients_and_checks_the_models_in_them() -> None:
    from holdfast.server.policy import Policy, check_agent

    policy, model = Policy(), {"use": "scripted", "parameters": {"script": []}}
    for good in (
        "window",
        {"name": "llm", "at": 0.7, "model": {"name": "gpt-5-mini"}},
        ["tool_output", {"name": "llm", "model": "gpt-5-mini"}],
    ):
        assert check_agent({"model": model, "condenser": good}, policy) == []
    for bad in (
        "os:getcwd",
        "${secret_1}",
        ["window", "os:getcwd"],
        {"name": "llm", "model": {"use": "os:getcwd"}},
        {"name": "pipeline", "condensers": [{"use": "os:getcwd"}]},
        [{"name": "pipeline", "condensers": [{"name": "llm", "model": {"use": "os:getcwd"}}]}],
    ):
        with pytest.raises(ConfigurationError):
            check_agent({"model": model, "condenser": bad}, policy)
