"""A run that ends with data: the types of results, the model's errors about results that do not
fit, and the result as a fact of the journal."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pydantic
import pytest
from typing_extensions import TypedDict

from holdfast import (
    Agent,
    Conversation,
    ConversationState,
    Limits,
    RemoteConversation,
    RemoteWorkspace,
    ScriptedLLM,
    SQLiteStore,
    Tool,
    ToolManager,
    ToolResult,
    load_agent,
)
from holdfast import ConversationStatus as S
from holdfast import events as ev
from holdfast.agent.condenser import Condensed
from holdfast.agent.output import FINISH, PROMPT, Output
from holdfast.conversation.replay import replay
from holdfast.conversation.state import Fold, fold
from holdfast.errors import ConfigurationError, OutputInvalid
from holdfast.testing import crash_at_every_append
from holdfast.tools.hooks import Deny, Hook
from holdfast.tools.styles import STYLES, definition, is_strict
from holdfast.tools.wire_schemas import for_models
from tests import forks
from tests.model_server import ModelServer, calls, text
from tests.remote_parts import KEY, AgentServerProcess


class Review(pydantic.BaseModel):
    """What you think of it."""

    verdict: str
    score: int = pydantic.Field(ge=0, le=10)


class Node(pydantic.BaseModel):
    name: str
    inner: list[Node] = []


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(msgspec.Struct):
    x: int
    colour: Colour = Colour.RED


@dataclasses.dataclass
class Visit:
    day: datetime.date
    place: tuple[float, float]


class Found(TypedDict):
    files: list[str]


class Shut(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, populate_by_name=False)

    day: datetime.date = pydantic.Field(alias="theDay")


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
GOOD, BAD = (FINISH, {"verdict": "good", "score": 9}), (FINISH, {"verdict": "good", "score": 11})

# type, arguments of `finish`, the JSON value, the object
TYPES: list[tuple[Any, dict[str, Any], Any, Any]] = [
    (
        Review,
        {"verdict": "good", "score": 9},
        {"verdict": "good", "score": 9},
        Review(verdict="good", score=9),
    ),
    (
        Node,
        {"name": "a", "inner": [{"name": "b"}]},
        {"name": "a", "inner": [{"name": "b", "inner": []}]},
        Node(name="a", inner=[Node(name="b")]),
    ),
    (Point, {"x": "3"}, {"x": 3, "colour": "red"}, Point(3)),
    (
        Visit,
        {"day": "2026-01-02", "place": [1, 2.5]},
        {"day": "2026-01-02", "place": [1.0, 2.5]},
        Visit(datetime.date(2026, 1, 2), (1.0, 2.5)),
    ),
    (Found, {"files": ["a"]}, {"files": ["a"]}, {"files": ["a"]}),
    (
        Shut,
        {"theDay": "2026-01-02"},
        {"theDay": "2026-01-02"},
        Shut(theDay=datetime.date(2026, 1, 2)),
    ),
    (
        list[Review],
        {"output": [{"verdict": "x", "score": 1}]},
        [{"verdict": "x", "score": 1}],
        [Review(verdict="x", score=1)],
    ),
    (list[Point], {"output": [{"x": 1}]}, [{"x": 1, "colour": "red"}], [Point(1)]),
    (Review | None, {"output": None}, None, None),
    (int, {"output": 7}, 7, 7),
    (str, {"output": "yes"}, "yes", "yes"),
    (bool, {"output": False}, False, False),
    (Colour, {"output": "blue"}, "blue", Colour.BLUE),
    (dict[str, int], {"a": 1}, {"a": 1}, {"a": 1}),
    (SCHEMA, {"n": 1}, {"n": 1}, {"n": 1}),
    ({"type": "array", "items": {"type": "string"}}, {"output": ["a"]}, ["a"], ["a"]),
    ({"anyOf": [SCHEMA, {"type": "null"}]}, {"output": {"n": 2}}, {"n": 2}, {"n": 2}),
    ({**SCHEMA, "oneOf": [{}]}, {"output": {"n": 2}}, {"n": 2}, {"n": 2}),
]
NAMES = [str(getattr(case[0], "__name__", case[0]))[:30] for case in TYPES]


def run(
    script: Sequence[Any], output_type: Any = Review, tools: Sequence[Tool] = (), **options: Any
) -> ConversationState:
    agent = Agent(ScriptedLLM(list(script)), tools, output_type=output_type, **options)
    with Conversation(agent) as conversation:
        conversation.send_message("go")
        state = conversation.run()
        assert conversation.replay(
            Agent(ScriptedLLM([]), tools, output_type=output_type, **options)
        ).same
        assert conversation.replay().same
        return state


def repairs(state: ConversationState) -> list[str]:
    return [
        event.text
        for event in state.events
        if isinstance(event, ev.MessageAdded) and event.about == "output:repair"
    ]


# --- types ---


@pytest.mark.parametrize(("output_type", "arguments", "value", "expected"), TYPES, ids=NAMES)
def test_a_valid_call_of_finish_ends_the_run_with_its_arguments(
    output_type: Any, arguments: Any, value: Any, expected: Any
) -> None:
    with Conversation(
        Agent(ScriptedLLM([(FINISH, arguments)]), output_type=output_type)
    ) as conversation:
        conversation.send_message("go")
        state = conversation.run()
        assert (state.status, state.steps, state.output) == (S.FINISHED, 1, value)
        assert conversation.output == expected
        assert type(conversation.output) is type(expected)
        again = ConversationState.from_json(state.to_json())
        assert again.output == value


@pytest.mark.parametrize("output_type", [one[0] for one in TYPES], ids=NAMES)
def test_the_schema_is_one_that_every_provider_takes(output_type: Any) -> None:
    output = Output(output_type)
    schema = output.schema
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["type"] == "object"
    assert not schema.keys() & {
        "anyOf",
        "oneOf",
        "allOf",
        "not",
        "if",
        "enum",
        "const",
        "$ref",
    }  # refused at the root of a schema
    text = json.dumps(schema)
    for reference in re.findall(r'"\$ref": "#/\$defs/([^"]+)"', text):
        assert reference in schema["$defs"]
    tools = Agent(ScriptedLLM([]), output_type=output_type).tools.definitions()
    assert [tool.name for tool in tools] == ["finish"]
    for style in STYLES:
        tool_json = json.dumps(definition(tools[0], style))
        sent_schema = schema if style == "mcp" else for_models(schema)
        assert json.dumps(sent_schema)[1:-1] in tool_json or style == "anthropic"
    # A restored agent sends the same tools, to the byte.
    assert json.dumps(Output(output.form).schema) == text


def test_closed_objects_whose_properties_are_all_required_are_strict() -> None:
    assert is_strict(Output(Found).schema)
    assert is_strict(Output(list[Found]).schema)
    assert not is_strict(Output(Review).schema)  # strict mode has no bounds of numbers
    assert not is_strict(Output(Node).schema)


def test_objects_that_take_more_stay_open() -> None:
    class Open(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(extra="allow")
        a: int

    assert Output(Open).schema["additionalProperties"] is True
    assert run([(FINISH, {"a": 1, "b": 2})], Open).output == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (3, "takes a type such as a pydantic model"),
        ("Review", "takes a type"),
        (lambda: 1, "takes a type"),
        (Any, "takes a type"),
        ([Review], "takes a type"),
        (type(os.environ), "cannot be described"),
        ({"type": "nope"}, "is not a valid JSON Schema"),
        ({"properties": {"a": {"type": "nope"}}}, "is not a valid JSON Schema"),
        ({1: 2, "a": object()}, "is not a valid JSON Schema"),
    ],
)
def test_what_is_no_type_is_refused(given: Any, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=f"Agent: output_type.*{problem}"):
        Agent(ScriptedLLM([]), output_type=given)


@pytest.mark.parametrize("rounds", [0, -1, True, 2.5, "3"])
def test_output_rounds_takes_a_whole_number(rounds: Any) -> None:
    with pytest.raises(
        ConfigurationError, match="Agent: output_rounds takes a whole number from 1"
    ):
        Agent(ScriptedLLM([]), output_type=Review, output_rounds=rounds)


def test_a_type_whose_json_it_does_not_read_keeps_what_the_model_gave() -> None:
    class Odd(pydantic.BaseModel):
        a: int

        @pydantic.field_serializer("a")
        def _in_brackets(self, value: int) -> str:
            return f"<{value}>"

    with Conversation(Agent(ScriptedLLM([(FINISH, {"a": 1})]), output_type=Odd)) as conversation:
        conversation.send_message("go")
        assert conversation.run().output == {"a": 1}
        assert conversation.output == Odd(a=1)


# --- rounds ---


def test_a_text_and_a_call_that_does_not_fit_are_told_of() -> None:
    state = run(["Fine.", BAD, GOOD])
    assert (state.status, state.output, state.steps) == (
        S.FINISHED,
        {"verdict": "good", "score": 9},
        3,
    )
    first, second = repairs(state)
    assert "you answered with a text" in first
    assert (
        second
        == "That result was not accepted: score: input should be less than or equal to 10, not 11."
        " Call finish again, with all of it right."
    )


@pytest.mark.parametrize(
    ("given", "arguments", "problem"),
    [
        (Review, {"score": 1}, "verdict is required"),
        (Point, {"x": "a"}, "Expected `int`"),
        (SCHEMA, {"n": "a"}, "n: 'a' is not of type 'integer'"),
        (SCHEMA, {}, "n is required"),
        (int, {}, "output is required, and nothing else"),
        (int, {"output": 1, "more": 2}, "output is required, and nothing else"),
        ({"type": "array"}, {"output": 1}, "1 is not of type 'array'"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(
    given: Any, arguments: dict[str, Any], problem: str
) -> None:
    state = run([(FINISH, arguments)] * 3, given)
    assert problem in repairs(state)[0]
    error = state.error
    assert error is not None
    assert (state.status, error.error, error.details["rounds"], state.output) == (
        S.ERROR,
        "OutputInvalid",
        3,
        None,
    )
    assert problem in error.details["problem"]
    assert problem in error.message


@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_the_run_ends_after_output_rounds_failures(rounds: int) -> None:
    state = run(["No."] * 9, output_rounds=rounds, stuck=None)
    assert (state.status, state.steps, len(repairs(state))) == (S.ERROR, rounds, rounds - 1)
    assert state.error is not None
    assert state.error.details == {
        "problem": "it was a text, not a call of finish",
        "rounds": rounds,
    }


def test_steps_between_failures_do_not_forgive_them() -> None:
    state = run([BAD, ("look", {}), BAD, ("look", {}), BAD], tools=[Tool("look", "", lambda: "x")])
    assert (state.status, state.steps) == (S.ERROR, 5)


def test_resume_and_a_message_begin_new_rounds() -> None:
    script = ["No.", "No.", "No.", "No.", BAD, BAD, "No.", "No.", GOOD]
    with Conversation(Agent(ScriptedLLM(script), output_type=Review)) as conversation:
        conversation.send_message("go")
        assert conversation.run().status is S.ERROR
        conversation.resume()
        assert conversation.run().status is S.ERROR
        conversation.send_message("please")
        state = conversation.run()
        assert (state.status, state.output, state.error) == (
            S.FINISHED,
            {"verdict": "good", "score": 9},
            None,
        )
        assert conversation.replay().same


def test_empty_answers_are_told_apart() -> None:
    state = run(["", GOOD])
    assert (state.status, repairs(state)) == (S.FINISHED, [])
    assert run(["", "", ""]).status is S.STUCK


def test_the_error_carries_its_fields() -> None:
    error = OutputInvalid("n is required", 3)
    assert (error.problem, error.rounds, isinstance(error, ValueError)) == (
        "n is required",
        3,
        True,
    )
    assert str(error) == "No valid output in 3 rounds. Of the last one: n is required."


# --- together with other features ---


def test_other_calls_of_the_same_answer_are_run_and_count() -> None:
    texts: list[str] = []

    def note(text: str) -> str:
        texts.append(text)
        return "noted"

    state = run(
        [[GOOD, ("note", {"text": "a"}), ("note", {"text": "b"})]], tools=[Tool("note", "", note)]
    )
    assert (state.status, sorted(texts), state.output) == (
        S.FINISHED,
        ["a", "b"],
        {"verdict": "good", "score": 9},
    )
    assert len([event for event in state.events if isinstance(event, ev.ToolCallFinished)]) == 3


def test_the_run_waits_for_calls_that_are_to_be_approved() -> None:
    ran_it: list[str] = []
    agent = Agent(
        ScriptedLLM([[GOOD, ("send", {})]]),
        [Tool("send", "", lambda: ran_it.append("x"))],
        output_type=Review,
        confirm=["send"],
    )
    with Conversation(agent) as conversation:
        conversation.send_message("go")
        state = conversation.run()
        assert (state.status, ran_it) == (S.WAITING_FOR_CONFIRMATION, [])
        conversation.approve()
        state = conversation.run()
        assert (state.status, state.output, ran_it) == (
            S.FINISHED,
            {"verdict": "good", "score": 9},
            ["x"],
        )
        assert conversation.replay().same


def test_a_message_that_comes_meanwhile_is_answered_first() -> None:
    def note() -> str:
        conversation.send_message("wait, once more")
        return "noted"

    script = [[GOOD, ("note", {})], (FINISH, {"verdict": "better", "score": 10})]
    with Conversation(
        Agent(ScriptedLLM(script), [Tool("note", "", note)], output_type=Review)
    ) as conversation:
        conversation.send_message("go")
        state = conversation.run()
        assert (state.status, state.steps, state.output) == (
            S.FINISHED,
            2,
            {"verdict": "better", "score": 10},
        )
        assert conversation.replay().same


def test_the_output_of_an_earlier_run_is_not_that_of_a_new_one() -> None:
    with Conversation(
        Agent(
            ScriptedLLM([GOOD, "No.", (FINISH, {"verdict": "x", "score": 0})]), output_type=Review
        )
    ) as conversation:
        conversation.send_message("go")
        first = conversation.run()
        assert first.output is not None
        conversation.send_message("and again")
        assert (conversation.state.output, conversation.output) == (None, None)
        state = conversation.run()
        assert (state.output, state.at(first.last_seq).output) == (
            {"verdict": "x", "score": 0},
            first.output,
        )


@pytest.mark.parametrize("confirm", ["always", {"*": "ask"}, {"fin*": "ask"}, {"*": "deny"}])
def test_finish_asks_nobody_unless_a_policy_names_it(confirm: Any) -> None:
    state = run([GOOD], confirm=confirm)
    assert (
        state.status,
        [event for event in state.events if isinstance(event, ev.DecisionMade)],
    ) == (
        S.FINISHED,
        [],
    )


def test_finish_that_is_named_can_be_rejected_and_edited() -> None:
    with Conversation(
        Agent(
            ScriptedLLM([GOOD, BAD, GOOD, GOOD]),
            output_type=Review,
            confirm=["finish"],
            output_rounds=2,
        )
    ) as conversation:
        conversation.send_message("go")
        assert conversation.run().status is S.WAITING_FOR_CONFIRMATION
        conversation.reject(reason="too kind")
        conversation.run()
        conversation.approve(
            conversation.state.pending_confirmations[0].call.id,
            arguments={"verdict": "fine", "score": 5},
        )
        state = conversation.run()
        assert (state.status, state.steps, state.output) == (
            S.FINISHED,
            2,
            {"verdict": "fine", "score": 5},
        )
        assert repairs(state) == []
        assert conversation.replay().same


def test_a_policy_of_ones_own_is_asked() -> None:
    class Mine:
        def decide(self, call: Any, risk: Any = None) -> str:
            return "ask"

    with Conversation(
        Agent(ScriptedLLM([GOOD]), output_type=Review, confirm=Mine())
    ) as conversation:
        conversation.send_message("go")
        assert conversation.run().status is S.WAITING_FOR_CONFIRMATION


def test_a_plan_first_agent_may_finish() -> None:
    assert run([GOOD], planning="first").status is S.FINISHED


def test_a_limit_is_a_limit() -> None:
    state = run(["No."] * 5, limits=Limits(steps=2), output_rounds=9)
    assert state.error is not None
    assert (state.steps, state.error.error) == (2, "LimitExceeded")


def test_a_long_output_is_kept_whole() -> None:
    state = run([(FINISH, {"files": ["x" * 3000]})], Found, output_limit=1000)
    assert state.output == {"files": ["x" * 3000]}


def test_a_limit_of_results_leaves_it_whole(tmp_path: Path) -> None:
    manager = ToolManager(result_limit=200, result_dir=tmp_path / "results")
    with Conversation(
        Agent(ScriptedLLM([(FINISH, {"files": ["x" * 3000]})]), manager, output_type=Found)
    ) as conversation:
        conversation.send_message("go")
        assert conversation.run().output == {"files": ["x" * 3000]}


def test_a_hook_that_denies_finish_is_a_failed_round() -> None:
    def before(call: Any, context: Any) -> Any:
        return ToolResult.failure("not on a Sunday", "authentication")

    manager = ToolManager(hooks=[Hook(before=before, tools="finish")])
    with Conversation(Agent(ScriptedLLM([GOOD] * 9), manager, output_type=Review)) as conversation:
        conversation.send_message("go")
        state = conversation.run()
        assert (state.status, state.steps) == (S.ERROR, 3)
        assert "not on a Sunday" in repairs(state)[0]


def test_a_stop_hook_may_want_another_one() -> None:
    def deny_once(stopping: Any, context: Any) -> Any:
        return Deny("think again") if not stopping.denied else None

    agent = Agent(
        ScriptedLLM([GOOD, (FINISH, {"verdict": "bad", "score": 1})]),
        output_type=Review,
        hooks=[Hook(before=deny_once, on="stop")],
    )
    with Conversation(agent) as conversation:
        conversation.send_message("go")
        state = conversation.run()
        assert (state.status, state.steps, state.output) == (
            S.FINISHED,
            2,
            {"verdict": "bad", "score": 1},
        )
        assert conversation.replay().same


def test_a_tool_of_ones_own_named_finish_is_refused_and_one_without_output_type_is_a_tool() -> None:
    mine = Tool("finish", "", lambda: ToolResult("x", {"a": 1}, {"holdfast/output": 1}))
    with pytest.raises(ConfigurationError, match="a tool 'finish'"):
        Agent(ScriptedLLM([]), [mine], output_type=Review)
    with Conversation(Agent(ScriptedLLM([("finish", {}), "Done."]), [mine])) as conversation:
        conversation.send_message("go")
        assert (conversation.run().output, conversation.state.steps) == (None, 2)


def test_agents_that_share_their_tools_finish_each_with_their_own_type() -> None:
    manager = ToolManager()
    first, second = (Agent(ScriptedLLM([]), manager, output_type=type) for type in (Review, Found))
    assert first.tools.get_schema("finish") != second.tools.get_schema("finish")
    assert not manager.exists("finish")


def test_the_prompt_says_it_once_however_often_the_agent_travels() -> None:
    agent = Agent(ScriptedLLM([]), output_type=Review)
    for _ in range(3):
        assert agent.system_prompt.count(PROMPT) == 1
        agent = Agent.from_json(agent.to_json())


def test_a_pause_after_a_text_goes_on_to_the_repair() -> None:
    def answer(transcript: Any) -> Any:
        conversation.pause()
        return "No."

    agent = Agent(ScriptedLLM(answer), output_type=Review)
    with Conversation(agent) as conversation:
        conversation.send_message("go")
        assert conversation.run().status is S.PAUSED
        conversation.resume()
        assert conversation.status is S.RUNNING


# --- a fact of the journal ---


def test_forks_saved_states_and_stores_have_it(tmp_path: Path) -> None:
    agent = Agent(ScriptedLLM([GOOD]), output_type=Review)
    with SQLiteStore(tmp_path / "store.db") as store:
        with Conversation(agent, store, "c") as conversation:
            conversation.send_message("go")
            state = conversation.run()
            with conversation.fork() as forked:
                assert (forked.state.output, forked.output) == (
                    state.output,
                    Review(verdict="good", score=9),
                )
            with conversation.fork(state.last_seq - 1) as before_its_end:
                assert before_its_end.run().status is S.FINISHED
        with Conversation(agent, store, "c") as conversation:
            assert conversation.state.output == state.output
        with Conversation.from_state(ConversationState.from_json(state.to_json()), agent) as again:
            assert again.output == Review(verdict="good", score=9)


class All:
    """A condenser that leaves out the whole view."""

    def condense(self, journal: Sequence[ev.AnyEvent], reason: Any, cancelled: Any) -> Condensed:
        return Condensed(
            tuple(
                [
                    event.seq
                    for event in journal
                    if isinstance(event, ev.MessageAdded | ev.AssistantReplied)
                ]
            ),
            "It was reviewed.",
        )


def test_a_conversation_opened_from_its_condensed_tail_has_it(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "store.db")
    agent = Agent(
        ScriptedLLM([("look", {})] * 3 + [BAD, GOOD]),
        [Tool("look", "", lambda: "x")],
        output_type=Review,
        condenser=All(),
    )
    with Conversation(agent, store, "c") as conversation:
        conversation.send_message("go")
        state = conversation.run()
        conversation.condense()
        assert store.tail("c")[0].seq > 1
        assert conversation.state.output == state.output
    with Conversation(agent, store, "c") as conversation:
        assert conversation.state.output == state.output
        assert conversation.output == Review(verdict="good", score=9)
    store.close()


def test_a_condensation_keeps_the_output_and_the_failures() -> None:
    state = run([BAD, GOOD])
    for length in range(len(state.events) + 1):
        state_fold = fold(state.events[:length])
        if state_fold.open or not length:
            continue
        again = Fold.after(
            msgspec.json.decode(msgspec.json.encode(state_fold.checkpoint()), type=ev.Checkpoint),
            lambda seq: state.events[seq - 1],
        )
        assert again.output == state_fold.output, length


def reviewing(store: Any, folder: Path) -> None:
    def answer(request: Any) -> Any:
        answers = sum(isinstance(item, ev.AssistantReplied) for item in request.transcript.items)
        return (["Fine.", BAD, [("note", {"text": "a"}), GOOD]])[min(answers, 2)]

    note = Tool("note", "", lambda text: "noted")
    with Conversation(
        Agent(ScriptedLLM(answer), [note], output_type=Review), store, "c"
    ) as conversation:
        if not conversation.state.events:
            conversation.send_message("go")
        conversation.run()


@pytest.mark.slow
def test_after_sigkill_at_every_append_it_has_its_output(tmp_path: Path) -> None:
    kills = 0
    for crash in crash_at_every_append(reviewing, folder=tmp_path):
        kills = crash.number
        state = ConversationState("c", crash.after)
        assert (state.status, state.output) == (S.FINISHED, {"verdict": "good", "score": 9}), str(
            crash
        )
        assert len(repairs(state)) == 2, str(crash)
        agent = Agent(ScriptedLLM([]), [Tool("note", "", lambda text: "noted")], output_type=Review)
        assert replay(crash.after, agent).same, f"{crash}: {replay(crash.after, agent)}"
    assert kills > 20


# --- agent files, serial forms, servers, the command line ---


def _config(**more: Any) -> Mapping[str, Any]:
    return {"model": {"use": "scripted", "parameters": {"script": []}}, **more}


def test_an_agents_file_names_a_type_or_has_a_schema(tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    by_name = load_agent(_config(output_type=f"{__name__}:Review", output_rounds=7))
    assert by_name.output is not None
    assert (by_name.output.type, by_name.output_rounds) == (Review, 7)
    for setting in (SCHEMA, {"file": "schema.json"}):
        agent = load_agent(_config(output_type=setting), base=tmp_path)
        assert agent.output is not None
        assert agent.output.type == SCHEMA
    with pytest.raises(ConfigurationError, match=r"nothing\.json.*cannot be read"):
        load_agent(_config(output_type={"file": "nothing.json"}), base=tmp_path)
    with pytest.raises(ConfigurationError, match="no builtin is named 'Review'"):
        load_agent(_config(output_type="Review"))
    with pytest.raises(ConfigurationError, match="is not a valid JSON Schema"):
        load_agent(_config(output_type={"type": "nope"}))


def test_the_serial_form_has_the_schema_and_no_name() -> None:
    pattern = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^${x}\\d$"}}}
    for output_type in (Review, pattern):
        form = json.loads(
            Agent(ScriptedLLM([]), output_type=output_type, output_rounds=5).to_json()
        )
        assert (form["output_type"]["type"], form["output_rounds"]) == ("object", 5)
        assert "Review" not in json.dumps(form)
        again = Agent.from_json(json.dumps(form))
        assert again.output is not None
        assert json.dumps(again.output.schema) == json.dumps(Output(output_type).schema)


@pytest.mark.slow
def test_on_an_agent_server_the_run_ends_with_it(tmp_path: Path) -> None:
    agent = Agent(ScriptedLLM(["No.", BAD, GOOD]), output_type=Review)
    with AgentServerProcess(tmp_path) as server, RemoteWorkspace(server.url, KEY) as space:
        with RemoteConversation(agent, space) as conversation:
            conversation.send_message("go")
            state = conversation.run()
            assert (state.status, state.output) == (S.FINISHED, {"verdict": "good", "score": 9})
            assert conversation.output == Review(verdict="good", score=9)
            assert len(repairs(state)) == 2
            id = conversation.id
        with RemoteConversation(None, space, id) as conversation:
            assert conversation.output == {"verdict": "good", "score": 9}
        with RemoteConversation(agent, space, id) as conversation:
            assert conversation.output == Review(verdict="good", score=9)
        # A pattern on which Python's own matcher would not end is checked by the server.
        evil = {"type": "string", "pattern": "^(a+)+$"}
        script = [(FINISH, {"output": "a" * 40 + "!"}), (FINISH, {"output": "aa"})]
        with RemoteConversation(
            Agent(ScriptedLLM(script), output_type=evil), space
        ) as conversation:
            conversation.send_message("go")
            state = conversation.run()
            assert (state.status, state.output) == (S.FINISHED, "aa")
            assert len(repairs(state)) == 1


def test_a_tenants_agent_imports_no_type_and_reads_no_file() -> None:
    from holdfast.server.policy import Policy, check_agent

    with pytest.raises(ConfigurationError, match="does not allow the module 'subprocess'"):
        check_agent(_config(output_type="subprocess:Popen"), Policy([], entry_points=False))
    assert check_agent(
        _config(output_type="acme.types:Review"), Policy(["acme.*"], entry_points=False)
    ) == ["acme.types"]
    with pytest.raises(ConfigurationError, match="reads no file of its own"):
        check_agent(_config(output_type={"file": "/etc/passwd"}), Policy([], entry_points=False))
    assert check_agent(_config(output_type=SCHEMA), Policy([], entry_points=False)) == []


def _run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], "HOME": str(cwd.parent), "HOLDFAST_API_KEY": "k"}
    env |= forks.AT_START
    return forks.run(
        [sys.executable, "-m", "holdfast.cli", *arguments],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.slow
def test_the_command_prints_the_json_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    answers = iter([calls((FINISH, {"n": "many"})), calls((FINISH, {"n": 3})), *[text("No.")] * 9])
    with ModelServer(lambda request: next(answers)) as server:
        common = [
            "run",
            "Count them",
            "--model",
            "m",
            "--base-url",
            server.url,
            "--no-stream",
            "--output-schema",
        ]
        process = _run(*common, "schema.json", cwd=tmp_path)
        assert (process.returncode, json.loads(process.stdout)) == (0, {"n": 3}), process.stderr
        assert "finish" in process.stderr
        process = _run(*common, "schema.json", cwd=tmp_path)
        assert (process.returncode, process.stdout) == (1, "")
        assert "No valid output in 3 rounds" in process.stderr
        for name, content, problem in (
            ("a.json", "{", "cannot be read"),
            ("b.json", "[]", "contains no JSON object"),
            ("c.json", '{"type": "x"}', "is not a valid JSON Schema"),
        ):
            (tmp_path / name).write_text(content)
            process = _run(*common, name, cwd=tmp_path)
            assert (process.returncode, process.stdout) == (2, "")
            assert problem in process.stderr
