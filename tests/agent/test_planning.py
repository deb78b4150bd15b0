"""Planning: the plan in the journal and in the state, its survival through condensations, and
its approval before any effect."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import (
    Agent,
    Conversation,
    ConversationState,
    ConversationStatus,
    Limits,
    MemoryStore,
    RemoteConversation,
    RemoteWorkspace,
    ScriptedLLM,
    SQLiteStore,
    Tool,
    ToolAnnotations,
    ToolResult,
    load_agent,
)
from holdfast import commands as cmd
from holdfast import events as ev
from holdfast.agent.condenser import Condensed
from holdfast.agent.condensers import LLMCondenser, Pipeline, ToolOutputCondenser, WindowCondenser
from holdfast.agent.planning import AGAIN, ASK, ASK_AGAIN, FIRST_PROMPT, HEADING, MAKE, TOOL_PROMPT
from holdfast.conversation.replay import replay, requests
from holdfast.conversation.state import Fold, fold
from holdfast.errors import ConfigurationError
from holdfast.testing import crash_at_every_append, kill_point
from holdfast.tools.preset.planning import make_plan
from tests.remote_parts import KEY, AgentServerProcess

S = ConversationStatus
READS = ToolAnnotations(read_only=True)


def steps(*texts: str) -> list[dict[str, str]]:
    """Return the steps of a plan: `"a"` is pending, `"a!"` in progress, `"a."` done, `"a-"`
    dropped."""
    states = {"!": "in_progress", ".": "done", "-": "dropped"}
    return [
        {"step": text.rstrip("!.-"), "state": states.get(text[-1], "pending")} for text in texts
    ]


def plan(*texts: str) -> tuple[str, dict[str, Any]]:
    return ("plan", {"steps": steps(*texts)})


def plan_marks(state: ConversationState | Fold) -> list[str]:
    marks = {"in_progress": "!", "done": ".", "dropped": "-", "pending": ""}
    return [step.step + marks[step.state] for step in state.plan]


def note(n: int) -> str:
    """Looks something up."""
    return f"note {n}: " + "some words of what was found " * 60


def look(what: str) -> str:
    """Looks."""
    return f"saw {what}"


def write(text: str) -> str:
    """Writes."""
    return f"wrote {text}"


def tools() -> list[Tool]:
    return [Tool.from_function(look, annotations=READS), Tool.from_function(write)]


def first(script: Any, **options: Any) -> Agent:
    return Agent(
        ScriptedLLM(script), options.pop("tools", None) or tools(), planning="first", **options
    )


def results(conversation: Conversation | RemoteConversation) -> list[str]:
    return [
        event.result.text
        for event in conversation.get_history()
        if isinstance(event, ev.ToolCallFinished)
    ]


def decisions(conversation: Conversation | RemoteConversation) -> list[tuple[str, str, str]]:
    return [
        (e.decision, e.by, e.reason)
        for e in conversation.get_history()
        if isinstance(e, ev.DecisionMade)
    ]


# --- prompt and tools of an agent that plans ---


def test_an_agent_that_plans_has_the_tool_and_its_lines_of_prompt() -> None:
    for planning, lines in (("tool", TOOL_PROMPT), ("first", FIRST_PROMPT)):
        agent = Agent(ScriptedLLM([]), tools(), system_prompt="Work.", planning=planning)  # pyright: ignore[reportArgumentType]
        assert [tool.name for tool in agent.tools.list_tools()] == ["look", "write", "plan"]
        assert agent.system_prompt == f"Work.\n\n{lines}"
    without = Agent(ScriptedLLM([]), tools(), system_prompt="Work.")
    assert (without.planning, without.system_prompt, without.tools.exists("plan")) == (
        None,
        "Work.",
        False,
    )


def test_what_planning_takes_and_a_tool_of_that_name_that_is_another() -> None:
    with pytest.raises(
        ConfigurationError, match=r'Agent: planning takes "tool", "first" or None, not True'
    ):
        Agent(ScriptedLLM([]), planning=True)  # pyright: ignore[reportArgumentType]

    def plan() -> str:
        """Mine."""
        return "mine"

    with pytest.raises(ConfigurationError, match="planning comes with a tool 'plan'"):
        Agent(ScriptedLLM([]), [plan], planning="tool")
    assert len(Agent(ScriptedLLM([]), [make_plan()], planning="tool").tools.list_tools()) == 1


@pytest.mark.parametrize("planning", ["tool", "first"])
@pytest.mark.parametrize("given", [[], [make_plan()]])
def test_an_agent_that_plans_travels_and_comes_out_the_same(
    planning: Any, given: list[Tool]
) -> None:
    agent = Agent(
        ScriptedLLM(["Done."]), given, planning=planning, system_prompt_extensions=["Be brief."]
    )
    copy = Agent.from_json(agent.to_json(), builtins=[make_plan()])
    assert (copy.planning, copy.system_prompt, copy.to_json()) == (
        planning,
        agent.system_prompt,
        agent.to_json(),
    )
    assert copy.tools.definitions() == agent.tools.definitions()
    second_copy = Agent.from_json(copy.to_json(), builtins=[make_plan()])
    assert second_copy.system_prompt.count(agent.system_prompt[-60:]) == 1


def test_a_config_says_how_an_agent_plans() -> None:
    model = {"use": "scripted", "parameters": {"script": []}}
    agent = load_agent({"model": model, "planning": "first"})
    assert (agent.planning, agent.tools.exists("plan")) == ("first", True)
    assert load_agent({"model": model, "planning": None}).planning is None
    with pytest.raises(ConfigurationError, match="planning"):
        load_agent({"model": model, "planning": "always"})


# --- the plan in the state ---


def test_the_state_has_the_plan_as_it_stands_wherever_the_conversation_goes(tmp_path: Path) -> None:
    script = [
        plan("a!", "b", "c"),
        plan("a.", "b", "b2!", "b3!"),
        plan("a.", "b!", "c-"),
        "Done.",
        "More.",
    ]
    agent = Agent(ScriptedLLM(script), planning="tool")
    with SQLiteStore(tmp_path / "s.db") as store, Conversation(agent, store, "c") as conversation:
        assert conversation.state.plan == ()
        conversation.send_message("go")
        state = conversation.run()
        assert plan_marks(state) == ["a.", "b!", "c-"]
        assert "at most one is" in results(conversation)[1], "a plan that is none changes nothing"
        assert plan_marks(state.at(8)) == ["a!", "b", "c"]
        assert plan_marks(ConversationState.from_json(state.to_json())) == ["a.", "b!", "c-"]
        with conversation.fork() as whole, conversation.fork(8) as half:
            assert (plan_marks(whole.state), plan_marks(half.state)) == (
                ["a.", "b!", "c-"],
                ["a!", "b", "c"],
            )
        with Conversation.from_state(state, Agent(ScriptedLLM([]))) as continued:
            assert plan_marks(continued.state) == ["a.", "b!", "c-"]
        assert conversation.replay().same
        assert conversation.replay(Agent(ScriptedLLM([]), planning="tool")).same
        assert not conversation.replay(Agent(ScriptedLLM([]))).same
    with SQLiteStore(tmp_path / "s.db") as store, Conversation(agent, store, "c") as again:
        assert plan_marks(again.state) == ["a.", "b!", "c-"]


def test_another_tool_of_that_name_makes_no_plan() -> None:
    def plan(steps: list[Any]) -> ToolResult:
        """Mine."""
        return ToolResult((), structured_content={"steps": steps})

    with Conversation(
        Agent(ScriptedLLM([("plan", {"steps": steps("a")}), "Done."]), [plan])
    ) as conversation:
        conversation.send_message("go")
        assert conversation.run().plan == ()


def test_a_plan_too_long_to_be_kept_whole_in_the_journal_stands_all_the_same() -> None:
    long = [f"{number} {'x' * 200}" for number in range(20)]
    with Conversation(
        Agent(ScriptedLLM([plan(*long), "Done."]), planning="tool", output_limit=1000)
    ) as conversation:
        conversation.send_message("go")
        assert plan_marks(conversation.run()) == long


# --- condensation ---


def planner(every: int, count: int, script: Sequence[Any] = ()) -> Any:
    """Return a script that makes a plan, calls `note` `count` times, and reports the plan's
    progress after every `every` answers."""
    at = [0]

    def answer(request: Any) -> Any:
        n = at[0] = at[0] + 1
        if n > count or n == count // 2:
            return "Done."
        if n % every == 1:
            finished = n // every
            return plan(
                *[
                    f"step {k}{'.' if k < finished else '!' if k == finished else ''}"
                    for k in range(count // every + 1)
                ]
            )
        return ("note", {"n": n})

    return answer


def request_texts(request: Any) -> str:
    """Return all texts and calls that the model received, one per line."""
    return "\n".join(
        [
            str(message.get("content") or "") + str(message.get("tool_calls") or "")
            for message in request.messages
            if message["role"] != "system"
        ]
    )


class Hides:
    """A condenser that hides the whole view without a summary."""

    at = 5000
    to = 0.2

    def shorten(self, work: Any) -> Condensed | None:
        return work.without(work.hideable, "") if work.hideable else None


class HidesMore(Hides):
    """A condenser like `Hides` that keeps the existing summaries."""

    def shorten(self, work: Any) -> Condensed | None:
        return Condensed(tuple(piece.seq for piece in work.hideable)) if work.hideable else None


CONDENSERS = {
    "window": WindowCondenser(at=5000, to=0.2),
    "summary": LLMCondenser(
        llm=ScriptedLLM(lambda request: "## Goal\nThe plan is on my mind."), at=5000, to=0.2
    ),
    "pipeline": Pipeline(
        [ToolOutputCondenser(keep=50, over=400), WindowCondenser()], at=5000, to=0.1
    ),
    "no words": Hides(),
    "another beside it": HidesMore(),
}


@pytest.mark.slow
@pytest.mark.parametrize("condenser", CONDENSERS.values(), ids=list(CONDENSERS))
def test_the_plan_outlives_every_kind_of_condensation(condenser: Any, tmp_path: Path) -> None:
    llm = ScriptedLLM(planner(25, 60))
    agent = Agent(llm, [note], condenser=condenser, planning="tool", limits=Limits(steps=None))
    with (
        SQLiteStore(tmp_path / "s.db", "process") as store,
        Conversation(agent, store, "c") as conversation,
    ):
        for message in ("go " * 600, "go on"):
            conversation.send_message(message)
            assert conversation.run().status is S.FINISHED
        events = conversation.get_history()
        condensations = [
            event for event in events if isinstance(event, ev.HistoryCondensed) and event.hidden
        ]
        assert len(condensations) > 3
        assert all(event.summary.count(HEADING) <= 1 for event in condensations)
        assert sum(HEADING in event.summary for event in condensations) >= 2
        expected = plan_marks(conversation.state)
        assert expected == ["step 0.", "step 1.", "step 2!"]
        # Wherever it is, the last plan of the view is the latest one, and a newest summary has
        # it once.
        states = {
            event.based_on: fold(events[: event.based_on])
            for event in events
            if isinstance(event, ev.AssistantReplied)
        }
        for request, state in zip(requests(events), states.values(), strict=True):
            text = "\n".join(
                [
                    str(msgspec.structs.astuple(item) if isinstance(item, msgspec.Struct) else item)
                    for item in request.transcript.items
                ]
            )
            if state.plan:
                at_work = next(
                    (step.step for step in state.plan if step.state == "in_progress"), ""
                )
                assert re.search(rf"\[>\] {at_work}\b", text), (request.number, state.planning)
            if not isinstance(condenser, HidesMore):
                assert text.count(HEADING) <= 1
        for index in range(
            len(events)
        ):  # folded at once or one by one, opened from its tail or whole: the same
            one = Fold()
            for event in events[:index]:
                one.apply(event)
            assert one.planning.plan == fold(events[:index]).planning.plan
        assert replay(events, agent).same
    with SQLiteStore(tmp_path / "s.db") as store, Conversation(agent, store, "c") as again:
        assert again.hosting.journal.tail[0].seq > 20  # pyright: ignore[reportPrivateUsage]
        assert plan_marks(again.state) == expected
        assert again.hosting.journal.fold.planning.plan == fold(events).planning.plan  # pyright: ignore[reportPrivateUsage]
        with again.fork() as fork:
            assert plan_marks(fork.state) == expected


def test_a_plan_is_not_part_of_what_is_summarised_again() -> None:
    writer = ScriptedLLM(lambda request: "## Goal\nNotes.")
    agent = Agent(
        ScriptedLLM(planner(100, 60)),
        [note],
        condenser=LLMCondenser(llm=writer, at=5000, to=0.2),
        planning="tool",
    )
    with Conversation(agent) as conversation:
        conversation.send_message("go")
        conversation.run()
    assert len(writer.requests) > 2
    assert all(HEADING not in str(request.messages) for request in writer.requests)
    assert "## Goal\\nNotes." in str(writer.requests[-1].messages)


@pytest.mark.slow
@pytest.mark.parametrize(
    "condenser",
    [
        WindowCondenser(at=6000),
        LLMCondenser(llm=ScriptedLLM(lambda request: "## Goal\nx"), at=6000),
    ],
)
def test_a_large_plan_is_in_every_request_of_a_long_run_and_none_outgrows_the_window(
    condenser: Any,
) -> None:
    large = [f"step {number} {'does a thing with some words ' * 3}".strip() for number in range(20)]

    def answer(request: Any) -> Any:
        n = len(llm.requests)
        if n % 97 == 1:
            return plan(
                *[f"{text}." if number < n // 97 else text for number, text in enumerate(large)]
            )
        return ("note", {"n": n}) if n <= 400 else "Done."

    llm = ScriptedLLM(answer)
    with Conversation(Agent(llm, [note], planning="tool", condenser=condenser)) as conversation:
        conversation.send_message("go")
        assert conversation.run().status is S.FINISHED
        assert all("Plan (" in str(request.messages) for request in llm.requests[1:])
        assert max(len(str(request.messages)) for request in llm.requests) < 6000 * 4
        assert replay(conversation.get_history()).same


def test_a_plans_last_result_is_not_cut_and_an_older_one_is() -> None:
    long = [f"{number} {'words and ' * 60}" for number in range(6)]
    agent = Agent(
        ScriptedLLM([plan(*long), plan(*long), *[("note", {"n": n}) for n in range(12)], "Done."]),
        [note],
        planning="tool",
        condenser=ToolOutputCondenser(keep=50, over=400, at=4000, to=0.1),
    )
    with Conversation(agent) as conversation:
        conversation.send_message("go")
        conversation.run()
        results = [
            event for event in conversation.get_history() if isinstance(event, ev.ToolCallFinished)
        ]
        cut = {
            call_id
            for event in conversation.get_history()
            if isinstance(event, ev.HistoryCondensed)
            for call_id in event.trimmed
        }
        assert (results[0].call_id in cut, results[1].call_id in cut) == (True, False)
        assert replay(conversation.get_history()).same


def test_a_condensation_that_could_cut_nothing_but_the_plan_says_so_and_is_not_wanted_at_once_again() -> (
    None
):
    class Cuts:
        at = 50

        def shorten(self, work: Any) -> Condensed | None:
            calls = [call.id for piece in work.pieces for call, _ in piece.results]
            return Condensed(trimmed=dict.fromkeys(calls, 10)) if calls else None

    with Conversation(
        Agent(ScriptedLLM([plan("a"), "Done."]), planning="tool", condenser=Cuts())
    ) as conversation:
        conversation.send_message("go " * 50)
        assert conversation.run().status is S.FINISHED
        condensations = [
            event for event in conversation.get_history() if isinstance(event, ev.HistoryCondensed)
        ]
        assert condensations[-1].failed == "nothing can be left out but the plan"


# --- the plan comes first ---


def test_nothing_but_reading_is_done_before_the_plan_is_approved() -> None:
    script = [
        [("look", {"what": "a"}), ("write", {"text": "a"}), ("nope", {})],
        plan("Write a", "Look"),
        ("write", {"text": "a"}),
        "Done.",
    ]
    with Conversation(first(script)) as conversation:
        conversation.send_message("go")
        [waiting] = conversation.run().pending_confirmations
        assert (waiting.call.name, waiting.reason) == ("plan", ASK)
        assert conversation.state.plan == ()
        conversation.approve()
        state = conversation.run()
        assert (state.status, state.plan_approved, plan_marks(state)) == (
            S.FINISHED,
            True,
            ["Write a", "Look"],
        )
        denied = ("deny", "planning", MAKE)
        assert decisions(conversation) == [
            denied,
            denied,
            ("ask", "planning", ASK),
            ("approve", "user", ""),
        ]
        assert sorted(results(conversation)[:3])[2] == "saw a"
        assert (
            sum(
                f"Not run: this call is not allowed: {MAKE}" == text
                for text in results(conversation)
            )
            == 2
        )
        assert results(conversation)[-1] == "wrote a"
        assert replay(conversation.get_history(), first([])).same


def test_a_plan_that_is_approved_with_other_steps_is_approved_as_these_say() -> None:
    script = [plan("a", "b"), plan("A", "b."), plan("a.", "b"), "Done."]
    with Conversation(first(script)) as conversation:
        conversation.send_message("go")
        [waiting] = conversation.run().pending_confirmations
        conversation.approve(waiting.call.id, arguments={"steps": steps("A", "b")})
        [waiting] = conversation.run().pending_confirmations
        assert waiting.reason == ASK_AGAIN
        assert (waiting.call.arguments["steps"][0]["step"], plan_marks(conversation.state)) == (
            "a",
            ["A", "b."],
        )
        conversation.reject(waiting.call.id, "Keep the capital.")
        state = conversation.run()
        assert (plan_marks(state), state.plan_approved) == (["A", "b."], True)
        assert (
            results(conversation)[-1] == "Not run: the user rejected this call: Keep the capital."
        )


def test_a_rejected_first_plan_approves_nothing() -> None:
    with Conversation(
        first([plan("a"), ("write", {"text": "a"}), plan("b"), ("write", {"text": "b"}), "Done."])
    ) as conversation:
        conversation.send_message("go")
        conversation.run()
        conversation.reject(reason="Not that.")
        conversation.run()
        assert results(conversation) == [
            "Not run: the user rejected this call: Not that.",
            f"Not run: this call is not allowed: {MAKE}",
        ]
        conversation.approve()
        conversation.run()
        assert results(conversation)[-1] == "wrote b"


@pytest.mark.parametrize(
    ("second", "asks"),
    [
        (("a.", "b!"), False),
        (("a-", "b"), False),
        ((" a ", "b."), False),
        (("a", "b", "c"), True),
        (("a",), True),
        (("b", "a"), True),
        (("a", "B"), True),
    ],
)
def test_other_steps_are_asked_about_again_and_other_states_are_not(
    second: tuple[str, ...], asks: bool
) -> None:
    script = [plan("a", "b"), [plan(*second), ("write", {"text": "x"})], "Done."]
    with Conversation(first(script)) as conversation:
        conversation.send_message("go")
        conversation.run()
        conversation.approve()
        state = conversation.run()
        assert [pending.reason for pending in state.pending_confirmations] == [ASK_AGAIN] * asks
        if asks:
            assert "wrote x" not in results(conversation), "it stands behind a call that waits"
            conversation.reject()
            conversation.run()
        assert "wrote x" in results(conversation), "what was approved holds meanwhile"


def test_after_a_finished_plan_a_message_asks_for_a_new_one() -> None:
    script = [
        plan("a"),
        plan("a."),
        ("write", {"text": "a last one"}),
        "Done.",
        ("write", {"text": "more"}),
        plan("a"),
        "Done.",
    ]
    with Conversation(first(script)) as conversation:
        conversation.send_message("go")
        conversation.run()
        conversation.approve()
        state = conversation.run()
        assert (results(conversation)[-1], state.plan_approved) == ("wrote a last one", True)
        conversation.send_message("and more")
        assert not conversation.state.plan_approved
        state = conversation.run()
        assert results(conversation)[-1] == f"Not run: this call is not allowed: {AGAIN}"
        assert [pending.reason for pending in state.pending_confirmations] == [ASK], (
            "the same steps are a new plan now"
        )
        assert plan_marks(state) == ["a."]


def test_an_approval_lasts_over_messages_while_steps_are_left() -> None:
    script = [plan("a", "b"), plan("a.", "b"), "One is done.", ("write", {"text": "b"}), "Done."]
    with Conversation(first(script)) as conversation:
        conversation.send_message("go")
        conversation.run()
        conversation.approve()
        conversation.run()
        conversation.send_message("go on")
        conversation.run()
        assert results(conversation)[-1] == "wrote b"


def test_a_message_that_came_while_a_plan_was_finished_is_not_covered_by_it() -> None:
    conversation: Conversation

    def answer(request: Any) -> Any:
        number = len(llm.requests)
        if number == 2:
            conversation.send_message("Do b, too.")
        return [plan("a"), plan("a."), ("write", {"text": "b"}), "Done."][number - 1]

    llm = ScriptedLLM(answer)
    with Conversation(Agent(llm, tools(), planning="first")) as conversation:
        conversation.send_message("go")
        conversation.run()
        conversation.approve()
        conversation.run()
        assert results(conversation)[-1] == f"Not run: this call is not allowed: {AGAIN}"


def test_a_plan_that_is_none_is_not_asked_about() -> None:
    script = [("plan", {"steps": []}), ("plan", {"step": "a"}), plan("a!", "b!"), "I give up."]
    with Conversation(first(script)) as conversation:
        conversation.send_message("go")
        assert conversation.run().status is S.FINISHED
        assert decisions(conversation) == []
        assert "at most one is" in results(conversation)[2]


def test_with_confirm_a_call_must_pass_both() -> None:
    script = [plan("a"), ("write", {"text": "a"}), ("look", {"what": "a"}), "Done."]
    with Conversation(first(script, confirm={"write": "ask", "look": "deny"})) as conversation:
        conversation.send_message("go")
        [waiting] = conversation.run().pending_confirmations
        assert waiting.reason == ASK
        conversation.approve()
        [waiting] = conversation.run().pending_confirmations
        assert waiting.call.name == "write"
        conversation.approve()
        conversation.run()
        assert [(decision, by) for decision, by, _ in decisions(conversation)] == [
            ("ask", "planning"),
            ("approve", "user"),
            ("ask", "policy"),
            ("approve", "user"),
            ("deny", "policy"),
        ]


def test_a_policy_may_deny_the_plan_itself() -> None:
    with Conversation(first([plan("a"), "Done."], confirm={"plan": "deny"})) as conversation:
        conversation.send_message("go")
        assert conversation.run().status is S.FINISHED
        assert [(decision, by) for decision, by, _ in decisions(conversation)] == [
            ("deny", "policy")
        ]


def test_an_approved_plan_costs_no_decision_of_its_calls() -> None:
    with Conversation(first([plan("a"), *[("write", {"text": "a"})] * 5, "Done."])) as conversation:
        conversation.send_message("go")
        conversation.run()
        conversation.approve()
        conversation.run()
        assert len(decisions(conversation)) == 2


def test_an_approval_outlives_a_condensation_that_hides_it(tmp_path: Path) -> None:
    notes = [("note", {"n": n}) for n in range(30)]
    script = [plan("a", "b"), *notes, "Half.", *notes, ("write", {"text": "b"}), "Done."]
    agent = first(
        script,
        tools=[Tool.from_function(note, annotations=READS), *tools()],
        condenser=WindowCondenser(at=5000, to=0.2),
    )
    with (
        SQLiteStore(tmp_path / "s.db", "process") as store,
        Conversation(agent, store, "c") as conversation,
    ):
        conversation.send_message("go " * 600)
        conversation.run()
        conversation.approve()
        conversation.run()
        conversation.send_message("go on")
        conversation.run()
        assert results(conversation)[-1] == "wrote b"
    with SQLiteStore(tmp_path / "s.db") as store, Conversation(agent, store, "c") as again:
        assert (again.hosting.journal.tail[0].seq > 20, again.state.plan_approved) == (
            True,
            True,
        )  # pyright: ignore[reportPrivateUsage]


def test_a_plan_is_approved_through_the_inbox_and_in_a_fork_it_is_asked_for_again() -> None:
    store = MemoryStore()
    with Conversation(
        first([plan("a"), plan("a"), ("write", {"text": "a"}), "Done."]), store, "c"
    ) as conversation:
        conversation.send_message("go")
        [waiting] = conversation.run().pending_confirmations
        with conversation.fork() as fork:
            assert (fork.state.plan, fork.state.pending_confirmations) == ((), ())
            assert [pending.reason for pending in fork.run().pending_confirmations] == [ASK]
        store.post("c", cmd.Approve(waiting.call.id, waiting.arguments_hash), key="k")
        conversation.hosting.drain_inbox()
        conversation.run()
        assert results(conversation)[-1] == "wrote a"


def test_a_plan_that_was_made_when_nobody_had_to_approve_it_is_not_approved() -> None:
    with Conversation(
        Agent(ScriptedLLM([plan("a"), "Half."]), tools(), planning="tool")
    ) as conversation:
        conversation.send_message("go")
        state = conversation.run()
        assert (plan_marks(state), state.plan_approved) == (["a"], False)
    with Conversation.from_state(
        state, first([("write", {"text": "a"}), plan("a."), ("write", {"text": "a"}), "Done."])
    ) as continued:
        continued.send_message("go on")
        assert [pending.reason for pending in continued.run().pending_confirmations] == [ASK]
        assert results(continued)[-1] == f"Not run: this call is not allowed: {MAKE}"


# --- SIGKILL ---


def answers(request: Any) -> Any:
    kill_point("model")
    texts = [message["content"] for message in request.messages if message["role"] == "tool"]
    script = [
        ("write", {"text": "early"}),
        plan("a", "b"),
        ("write", {"text": "a"}),
        plan("a.", "b!"),
        ("note", {"n": 1}),
        ("note", {"n": 2}),
        plan("a.", "b."),
        "Done.",
    ]
    return script[
        (
            int(texts.pop().split(" ")[1].rstrip(":")) + 4
            if texts and texts[-1].startswith("note ")
            else _place(texts)
        )
    ]


def _place(texts: Sequence[str]) -> int:
    last = texts[-1] if texts else ""
    signs = {"Not run": 1, "Plan (0": 2, "wrote a": 3, "Plan (1": 4, "Plan (2": 7}
    return next((place for sign, place in signs.items() if sign in last), 0)


def run_planned(store: SQLiteStore, folder: Path) -> None:
    """Run with a plan that is approved with other steps, executed, and condensed on the way."""

    def write(text: str) -> str:
        """Writes."""
        with (folder / text).open("a") as file:
            file.write("x")
        kill_point("written")
        return f"wrote {text}"

    reads = functools.partial(Tool.from_function, annotations=READS)
    agent = Agent(
        ScriptedLLM(answers),
        [Tool.from_function(write, annotations=ToolAnnotations(idempotent=True)), reads(note)],
        planning="first",
        condenser=WindowCondenser(at=900, to=0.5),
    )
    with Conversation(agent, store, "c") as conversation:
        if not conversation.state.events:
            conversation.send_message("go")
        while conversation.run().status is S.WAITING_FOR_CONFIRMATION:
            [waiting] = conversation.state.pending_confirmations
            conversation.approve(
                waiting.call.id, arguments={"steps": steps("a", "b")}, reason="fine"
            )


@pytest.mark.slow
@pytest.mark.parametrize("all_of_them", [False, pytest.param(True, marks=pytest.mark.proof)])
def test_a_plan_survives_sigkill_at_every_append(all_of_them: bool, tmp_path: Path) -> None:
    kills = 0
    which: dict[str, Any] = {} if all_of_them else {"points": range(1, 100, 2), "when": ("after",)}
    for crash in crash_at_every_append(run_planned, folder=tmp_path, **which):
        kills = crash.number
        for events in (crash.before, crash.after):
            one = Fold()
            for event in events:
                one.apply(event)
            assert one.planning.plan == fold(events).planning.plan, str(crash)
        state = ConversationState("c", crash.after)
        assert plan_marks(state) == ["a.", "b."], str(crash)
        assert not (crash.folder / "early").exists(), (
            f"{crash}: written before the plan was approved"
        )
        assert (crash.folder / "a").exists()
        assert any(
            isinstance(event, ev.HistoryCondensed) and HEADING in event.summary
            for event in crash.after
        )
        assert replay(crash.after).same, str(crash)
    assert kills > (30 if all_of_them else 10)


# --- on an agent server ---


@pytest.mark.slow
def test_on_a_server_a_plan_comes_first_also_for_tools_that_the_client_runs(tmp_path: Path) -> None:
    ran: list[str] = []

    def mine(text: str) -> str:
        """Runs here."""
        ran.append(text)
        return f"ran {text}"

    script = [
        ("mine", {"text": "early"}),
        plan("a", "b"),
        ("mine", {"text": "a"}),
        plan("A.", "b"),
        "Done.",
    ]
    agent = Agent(ScriptedLLM(script), [mine], planning="first")
    with (
        AgentServerProcess(tmp_path) as server,
        RemoteWorkspace(server.url, KEY) as space,
        RemoteConversation(agent, space) as conversation,
    ):
        conversation.send_message("go")
        state = conversation.run()
        [waiting] = state.pending_confirmations
        assert (waiting.call.name, waiting.reason, ran) == ("plan", ASK, [])
        conversation.approve(waiting.call.id, arguments={"steps": steps("A", "b")})
        state = conversation.run()
        assert (state.status, ran, plan_marks(state), state.plan_approved) == (
            S.FINISHED,
            ["a"],
            ["A.", "b"],
            True,
        )
        assert decisions(conversation)[0] == ("deny", "planning", MAKE)
        tools = {
            one.name: one.executor
            for event in state.events
            if isinstance(event, ev.AgentConfigured)
            for one in event.tools
        }
        assert tools == {"mine": "client", "plan": ""}
