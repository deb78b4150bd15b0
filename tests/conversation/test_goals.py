"""Goals: a judge decides at the end of a run whether the goal is reached. Until it is, the agent
continues."""

from __future__ import annotations

import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    Agent,
    Conversation,
    ConversationStatus,
    Goal,
    Hook,
    LocalRuntime,
    MemoryStore,
    ScriptedLLM,
    SQLiteStore,
    ToolContext,
)
from holdfast import events as ev
from holdfast.agent.goal import (
    AgentJudge,
    AllJudges,
    CommandJudge,
    GoalReview,
    GoalVerdict,
    RubricJudge,
)
from holdfast.agent.hooks import Stopping
from holdfast.content import Usage
from holdfast.conversation.fold import fold
from holdfast.conversation.totals import totals
from holdfast.errors import ConfigurationError, ToolError
from holdfast.llm.completion import Completion
from holdfast.tools.hooks import Deny
from tests import forks
from tests.waiting import until

S = ConversationStatus
GOAL = "the tests pass"


def verdicts(events: Any) -> list[ev.NoteRecorded]:
    return [e for e in events if isinstance(e, ev.NoteRecorded) and e.about == "goal"]


def goal_messages(events: Any) -> list[str]:
    return [e.text for e in events if isinstance(e, ev.MessageAdded) and e.about == "goal"]


def run(agent: Agent, **options: Any) -> Conversation:
    conversation = Conversation(agent, **options)
    conversation.send_message("go")
    conversation.run()
    return conversation


class Expects:
    """A judge that expects a word in the last answer, and counts its calls."""

    def __init__(self, word: str) -> None:
        self.word = word
        self.reviews: list[GoalReview] = []

    def __call__(self, review: GoalReview, context: ToolContext) -> str | None:
        self.reviews.append(review)
        return None if self.word in review.text else f"say {self.word}"


def test_the_agent_is_told_what_is_missing_until_the_judge_says_done() -> None:
    judge, llm = Expects("green"), ScriptedLLM(["done", "really", "all green"])
    with run(Agent(llm, goal=Goal(GOAL, judge))) as conversation:
        assert (conversation.status, conversation.state.answer) == (S.FINISHED, "all green")
        events = conversation.get_history()
        assert [note.details["done"] for note in verdicts(events)] == [False, False, True]
        assert goal_messages(events) == ["The goal is not reached yet: say green"] * 2
        assert [review.rounds for review in judge.reviews] == [0, 1, 2]
        # the judge sees all events, the last answer included
        assert judge.reviews[2].events[-1].type == "assistant"
        assert [e.seq for e in judge.reviews[2].events] == list(range(1, 11))
        assert GOAL in llm.requests[0].body.decode()  # the goal is in the system prompt
        assert conversation.replay(conversation.agent).same


def test_a_run_that_misses_its_goal_ends_with_an_error_and_a_resumed_one_goes_on() -> None:
    judge = Expects("green")
    agent = Agent(ScriptedLLM(["1", "2", "3", "green"]), goal=Goal(GOAL, judge, rounds=2))
    with run(agent) as conversation:
        state = conversation.state
        assert (state.status, state.answer) == (S.ERROR, "3")
        assert state.error is not None
        assert (state.error.error, state.error.details) == (
            "GoalMissed",
            {"missing": "say green", "rounds": 2},
        )
        reviews = len(judge.reviews)
        assert conversation.run().answer == "green"
        # the verdict on "3" is in the journal, so only "green" is judged now
        assert len(judge.reviews) == reviews + 1
        assert conversation.status is S.FINISHED
        assert conversation.replay(agent).same


def test_a_goal_that_is_not_required_ends_as_finished() -> None:
    goal = Goal(GOAL, Expects("green"), rounds=1, required=False)
    with run(Agent(ScriptedLLM(["1", "2"]), goal=goal)) as conversation:
        assert conversation.status is S.FINISHED
        assert [note.details["done"] for note in verdicts(conversation.get_history())] == [
            False
        ] * 2


def test_the_rounds_count_from_the_last_message_of_the_user() -> None:
    goal = Goal(GOAL, Expects("green"), rounds=1)
    with run(Agent(ScriptedLLM(["1", "green", "3", "green"]), goal=goal)) as conversation:
        conversation.send_message("again")
        assert conversation.run().status is S.FINISHED


def test_a_message_in_the_run_begins_the_rounds_anew() -> None:
    def judge(review: GoalReview, context: ToolContext) -> str | None:
        if review.text == "2":
            conversation.send_message("and this")
        return None if review.text == "4" else "more"

    agent = Agent(ScriptedLLM(["1", "2", "3", "4"]), goal=Goal(GOAL, judge, rounds=1))
    with Conversation(agent) as conversation:
        conversation.send_message("go")
        assert conversation.run().answer == "4"
        rounds = [note.details["round"] for note in verdicts(conversation.get_history())]
        assert rounds == [1, 2, 1, 2]


def test_a_critic_scores_answers_and_asks_for_another_try() -> None:
    scores = iter([0.3, 0.9])
    goal = Goal("a good answer", lambda review, context: next(scores), at_least=0.8)
    with run(Agent(ScriptedLLM(["meh", "great"]), goal=goal)) as conversation:
        events = conversation.get_history()
        assert conversation.state.answer == "great"
        assert [note.details["score"] for note in verdicts(events)] == [0.3, 0.9]
        assert goal_messages(events) == [
            "The goal is not reached yet: the judge did not say what is missing."
        ]


RETURNED: dict[str, tuple[Any, bool]] = {
    "none": (None, True),
    "true": (True, True),
    "empty text": (" ", True),
    "verdict": (GoalVerdict(True), True),
    "false": (False, False),
    "text": ("tests", False),
    "half": (GoalVerdict(False, "x", 0.5), False),
}


@pytest.mark.parametrize("name", RETURNED)
def test_what_judges_may_return(name: str) -> None:
    verdict, reached = RETURNED[name]
    goal = Goal(GOAL, lambda review, context: verdict)
    review = GoalReview(GOAL, "", 0, tuple)
    assert goal.verdict(review, ToolContext()).done is reached


@pytest.mark.parametrize("said", [7, [], GoalVerdict(True, score=2.0), 0.5])
def test_a_judge_that_returns_something_else_does_not_let_the_run_finish(said: Any) -> None:
    with run(Agent(ScriptedLLM(["1"]), goal=Goal(GOAL, lambda r, c: said))) as conversation:
        assert conversation.status is S.ERROR
        error = conversation.state.error
        assert error is not None
        assert (error.error, error.details["hook"]) == ("HookDenied", "goal")
        assert not verdicts(conversation.get_history())


def test_a_judge_that_fails_is_asked_again_by_resume() -> None:
    answers = iter([ToolError("no network"), None])

    def judge(review: GoalReview, context: ToolContext) -> None:
        if (error := next(answers)) is not None:
            raise error

    with run(Agent(ScriptedLLM(["1"]), goal=Goal(GOAL, judge))) as conversation:
        error = conversation.state.error
        assert error is not None
        assert "no network" in error.message
        assert conversation.run().status is S.FINISHED


def test_the_exit_code_of_a_command_judges(tmp_path: Path) -> None:
    runtime = LocalRuntime(tmp_path)
    judge = CommandJudge("sleep 60 >/dev/null & echo two failed >&2; test -f ok")

    def mend() -> str:
        """Mends."""
        (tmp_path / "ok").touch()
        return "mended"

    llm = ScriptedLLM(["done", ("mend", {}), "done now"])
    agent = Agent(llm, [mend], goal=Goal(GOAL, judge))
    with runtime, run(agent, runtime=runtime) as conversation:
        assert conversation.state.answer == "done now"
        [message] = goal_messages(conversation.get_history())
        assert "exit code 1" in message
        assert "two failed" in message
        assert not runtime.process_groups()


def test_a_command_judge_needs_a_runtime_and_a_command_that_ends(tmp_path: Path) -> None:
    with run(Agent(ScriptedLLM(["1"]), goal=Goal(GOAL, CommandJudge("true")))) as conversation:
        error = conversation.state.error
        assert error is not None
        assert "needs a runtime" in error.message
    slow = Goal(GOAL, CommandJudge("sleep 60", timeout=0.1))
    with (
        LocalRuntime(tmp_path) as runtime,
        run(Agent(ScriptedLLM(["1"]), goal=slow), runtime=runtime) as conversation,
    ):
        error = conversation.state.error
        assert error is not None
        assert "could not be run" in error.message


def verdict_at_cost(text: str) -> Any:
    return lambda _: Completion(text, usage=Usage(100, 5), cost=0.25, model="judge-1")


def test_a_judging_model_that_answers_in_another_form_is_asked_once_more() -> None:
    other = ScriptedLLM(
        [verdict_at_cost("Sure, it is done!"), verdict_at_cost('{"done": true}')], "judge-1"
    )
    agent = Agent(ScriptedLLM(["It rains."]), goal=Goal("cited", RubricJudge("", other)))
    with run(agent) as one:
        assert one.state.status is S.FINISHED
        assert judge_costs(one) == [(0.25, "judge-1")] * 2
        assert "Your last answer was not taken" in other.requests[1].body.decode()


def judge_costs(conversation: Conversation) -> list[tuple[float | None, str]]:
    """Return the cost and the model of each call of a model other than the agent's."""
    notes = [e for e in conversation.get_history() if isinstance(e, ev.NoteRecorded)]
    return [(note.cost, note.model) for note in notes if note.usage != Usage()]


def test_the_use_of_a_judge_that_comes_to_no_verdict_is_counted() -> None:
    other = ScriptedLLM([verdict_at_cost("Looks good!"), verdict_at_cost("It does!")], "judge-1")
    agent = Agent(ScriptedLLM(["It rains."]), goal=Goal("cited", RubricJudge("", other)))
    with run(agent) as one:
        assert one.state.status is S.ERROR
        assert judge_costs(one) == [(0.25, "judge-1")] * 2
        assert one.state.usage.input_tokens >= 200


def test_a_model_with_a_rubric_judges_and_its_cost_is_counted() -> None:
    no = '```json\n{"done": false, "score": 0.4, "missing": "cite a source"}\n```'
    other = ScriptedLLM(
        [verdict_at_cost(no), verdict_at_cost('{"done": true, "score": 1}')], "judge-1"
    )
    goal = Goal("cited", RubricJudge("Each claim has a source.", other))
    store = MemoryStore()
    with run(Agent(ScriptedLLM(["It rains.", "It rains [1]."]), goal=goal), store=store) as one:
        assert one.state.answer == "It rains [1]."
        notes = verdicts(one.get_history())
        assert judge_costs(one) == [(0.25, "judge-1")] * 2
        assert [n.details["score"] for n in notes] == [0.4, 1.0]
        assert totals(store, one.id).own.cost == 0.5
        request = other.requests[1].body.decode()
        assert "Each claim has a source." in request
        assert "agent: It rains [1]." in request
        assert "cite a source" in goal_messages(one.get_history())[0]


def test_the_agents_own_model_judges_by_default_and_is_counted_once() -> None:
    llm = ScriptedLLM(["done", '{"done": true}'])
    with run(Agent(llm, goal=Goal(GOAL))) as conversation:
        assert conversation.status is S.FINISHED
        events = conversation.get_history()
        usages = [e.usage for e in events if isinstance(e, ev.AssistantReplied | ev.NoteRecorded)]
        assert conversation.state.usage == sum(usages, Usage())
        assert [e.about for e in events if isinstance(e, ev.NoteRecorded)] == ["llm", "goal"]


def test_a_model_that_answers_with_another_form_judges_nothing() -> None:
    with run(
        Agent(ScriptedLLM(["done", "Looks good!", "It does!"]), goal=Goal(GOAL))
    ) as conversation:
        error = conversation.state.error
        assert error is not None
        assert "another form" in error.message


def test_an_agent_with_tools_judges_in_a_child_conversation() -> None:
    def look() -> str:
        """Looks."""
        return "2 failed"

    script = [
        *(("look", {}), ("finish", {"done": False, "missing": "2 tests fail"})),
        *(("look", {}), ("finish", {"done": True})),
    ]
    reviewer = Agent(ScriptedLLM(script, "reviewer"), [look])
    store = MemoryStore()
    agent = Agent(ScriptedLLM(["done", "done now"]), goal=Goal(GOAL, AgentJudge(reviewer)))
    with run(agent, store=store) as conversation:
        assert conversation.state.answer == "done now"
        assert "2 tests fail" in goal_messages(conversation.get_history())[0]
        ids = sorted(child.id for child in conversation.children)
        answers = [e.seq for e in conversation.get_history() if isinstance(e, ev.AssistantReplied)]
        assert ids == sorted(f"{conversation.id}.{seq}.goal" for seq in answers)
        assert totals(store, conversation.id).whole.steps == 6


def test_several_judges_are_asked_up_to_the_first_that_misses_something() -> None:
    first, second = Expects("green"), Expects("clean")
    goal = Goal(GOAL, AllJudges((first, second)))
    with run(Agent(ScriptedLLM(["1", "green", "green, clean"]), goal=goal)) as conversation:
        assert conversation.status is S.FINISHED
        assert (len(first.reviews), len(second.reviews)) == (3, 2)


def test_a_message_during_the_judgement_comes_first() -> None:
    def judge(review: GoalReview, context: ToolContext) -> str | None:
        if review.text == "one":
            conversation.send_message("wait, also this")
        return None

    llm = ScriptedLLM(["one", "two"])
    conversation = Conversation(Agent(llm, goal=Goal(GOAL, judge)))
    with conversation:
        conversation.send_message("go")
        assert conversation.run().answer == "two"
        assert len(verdicts(conversation.get_history())) == 2


def test_after_a_pause_during_the_judgement_the_journaled_verdict_counts() -> None:
    judge = Expects("green")

    def pauses(review: GoalReview, context: ToolContext) -> str | None:
        if not judge.reviews:
            conversation.pause()
        return judge(review, context)

    conversation = Conversation(Agent(ScriptedLLM(["1", "green"]), goal=Goal(GOAL, pauses)))
    with conversation:
        conversation.send_message("go")
        assert conversation.run().status is S.PAUSED
        assert len(verdicts(conversation.get_history())) == 1
        assert not goal_messages(conversation.get_history())
        assert conversation.run().answer == "green"
        assert [len(review.text) for review in judge.reviews] == [1, 5]


KILLED = textwrap.dedent(
    """
    import os, signal, sys
    from holdfast import Agent, Conversation, Goal, ScriptedLLM, SQLiteStore
    from holdfast import events as ev

    class Watch:
        def watch(self, *_): return self
        def spawned(self, *_): return self
        def asking(self, head): return lambda _: None
        def on_events(self, events):
            if any(isinstance(e, ev.NoteRecorded) and e.about == "goal" for e in events):
                os.kill(os.getpid(), signal.SIGKILL)
        def headers(self): return {}
        def served(self, *_): return lambda *_: None
        def close(self): pass

    agent = Agent(ScriptedLLM(["1"]), goal=Goal("green", lambda review, context: "say green"))
    with (
        SQLiteStore(sys.argv[1]) as store,
        Conversation(agent, store, id="c", observer=Watch()) as conversation,
    ):
        conversation.send_message("go")
        conversation.run()
    """
)


@pytest.mark.slow
def test_after_kill_9_a_journaled_verdict_is_not_asked_again(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    ended = forks.run([sys.executable, "-c", KILLED, str(path)], timeout=60)
    assert ended.returncode == -9
    judge = Expects("green")
    agent = Agent(ScriptedLLM(["green"]), goal=Goal("green", judge))
    with SQLiteStore(path) as store:
        assert len(verdicts(store.read("c"))) == 1
        assert not goal_messages(store.read("c"))
        with Conversation(agent, store, id="c") as conversation:
            assert conversation.run().answer == "green"
            assert [review.text for review in judge.reviews] == ["green"]
            assert goal_messages(conversation.get_history()) == [
                "The goal is not reached yet: say green"
            ]


def test_an_interrupt_ends_a_judge_and_a_resumed_run_asks_it_again() -> None:
    entered = threading.Event()
    texts: list[str] = []

    def judge(review: GoalReview, context: ToolContext) -> None:
        texts.append(review.text)
        if len(texts) == 1:
            entered.set()
            context.sleep(30)

    with Conversation(Agent(ScriptedLLM(["1"]), goal=Goal(GOAL, judge))) as conversation:
        conversation.send_message("go")
        conversation.start_thread()
        assert entered.wait(30)
        conversation.interrupt()
        until(lambda: conversation.hosting.at_rest())
        assert not verdicts(conversation.get_history())
        conversation.resume()
        conversation.wait(30)
        assert (conversation.status, texts) == (S.FINISHED, ["1", "1"])


def test_a_judging_agent_goes_on_after_an_interrupt_in_the_same_process() -> None:
    entered, looked = threading.Event(), list[int]()

    def look(context: ToolContext) -> str:
        """Looks."""
        looked.append(1)
        entered.set()
        context.sleep(30 if len(looked) == 1 else 0)
        return "fine"

    judge = AgentJudge(
        Agent(ScriptedLLM([("look", {}), ("look", {}), ("finish", {"done": True})]), [look])
    )
    with Conversation(Agent(ScriptedLLM(["1"]), goal=Goal(GOAL, judge))) as conversation:
        conversation.send_message("go")
        conversation.start_thread()
        assert entered.wait(30)
        conversation.interrupt()
        until(lambda: conversation.hosting.at_rest())
        conversation.resume()
        conversation.wait(30)
        assert conversation.status is S.FINISHED
        assert len(conversation.children) == 1


def test_stop_hooks_are_asked_before_the_judge_and_see_all_events() -> None:
    histories: list[list[str]] = []

    def look(stopping: Stopping, context: ToolContext) -> Deny | None:
        histories.append([event.type for event in stopping.events])
        return Deny("run it") if len(histories) == 1 else None

    judge = Expects("two")
    agent = Agent(
        ScriptedLLM(["one", "two"]), goal=Goal(GOAL, judge), hooks=[Hook(look, on="stop")]
    )
    with run(agent) as conversation:
        assert conversation.status is S.FINISHED
        assert histories[0] == ["message", "status", "agent", "assistant"]
        assert histories[1] == [*histories[0], "message", "assistant"]
        assert [review.text for review in judge.reviews] == ["two"]


def test_a_command_hook_on_stop_gets_the_events(tmp_path: Path) -> None:
    out = tmp_path / "kinds"
    code = (
        "import json, sys; asked = json.load(sys.stdin);"
        f"open({str(out)!r}, 'w').write(' '.join(e['type'] for e in asked['events']))"
    )
    hook = Hook(command=[sys.executable, "-c", code], on="stop")
    with run(Agent(ScriptedLLM(["one"]), hooks=[hook])) as conversation:
        assert conversation.status is S.FINISHED
    assert out.read_text() == "message status agent assistant"


def test_the_times_that_hooks_may_deny_the_end_are_a_parameter() -> None:
    hook = Hook(lambda stopping, context: Deny("more"), on="stop", name="more")
    for bound in (1, 4):
        llm = ScriptedLLM([str(number) for number in range(9)])
        with run(Agent(llm, hooks=[hook], stop_denials=bound)) as conversation:
            assert (conversation.status, conversation.state.answer) == (S.FINISHED, str(bound))


def test_a_checkpoint_keeps_the_verdict_and_the_rounds() -> None:
    goal = Goal(GOAL, Expects("green"), rounds=3)
    with run(Agent(ScriptedLLM(["1", "2", "3", "4"]), goal=goal)) as conversation:
        events = conversation.get_history()
        for end in range(1, len(events) + 1):
            before = fold(events[:end])
            after = type(before).after(before.checkpoint(), lambda seq: events[seq - 1])
            assert after.goal == before.goal


WRONG: dict[str, Any] = {
    "text": lambda: Goal(" "),
    "judge": lambda: Goal(GOAL, "pytest"),
    "rounds": lambda: Goal(GOAL, rounds=0),
    "at_least": lambda: Goal(GOAL, at_least=2.0),
    "command": lambda: CommandJudge(""),
    "timeout": lambda: CommandJudge("true", timeout=0),
    "rubric": lambda: RubricJudge(3),  # pyright: ignore[reportArgumentType]: a caller's mistake
    "llm": lambda: RubricJudge(llm="gpt"),
    "agent": lambda: AgentJudge("x"),
    "goal": lambda: Agent(ScriptedLLM([]), goal="green"),  # pyright: ignore[reportArgumentType]: a caller's mistake
    "stop_denials": lambda: Agent(ScriptedLLM([]), stop_denials=0),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_named(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f": {name} takes"):
        WRONG[name]()


def test_a_goal_has_a_serial_form() -> None:
    judge = AllJudges((CommandJudge("pytest -q", 60.0), RubricJudge("Be strict.")))
    agent = Agent(ScriptedLLM(["1"]), goal=Goal(GOAL, judge, 2, 0.5, False), stop_denials=7)
    again = Agent.from_json(agent.to_json())
    assert (again.goal, again.stop_denials) == (agent.goal, 7)
    assert again.system_prompt == agent.system_prompt
    plain = Agent.from_json(Agent(ScriptedLLM(["1"]), goal=Goal(GOAL)).to_json())
    assert plain.goal == Goal(GOAL)
    with pytest.raises(ConfigurationError, match="goal"):
        Agent(ScriptedLLM([]), goal=Goal(GOAL, lambda review, context: None)).to_json()


def test_an_agent_that_is_replaced_has_the_new_goal_in_its_prompt_and_not_the_old_one() -> None:
    agent = Agent(ScriptedLLM([]), goal=Goal("red")).replace(goal=Goal("green"))
    assert "green" in agent.system_prompt
    assert "red" not in agent.system_prompt.split("The goal of your work: ")[1]
