"""Tests of evals: their runs, scores, stored results and comparisons, and the work that an eval
leaves alone when it is used again."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    LLM,
    Agent,
    Limits,
    LocalRuntime,
    ScriptedLLM,
    SQLiteStore,
    Tool,
)
from holdfast.agent.goal import AgentJudge, AllJudges, CommandJudge, GoalVerdict, RubricJudge
from holdfast.content import Usage
from holdfast.errors import ConfigurationError
from holdfast.evals import Candidate, Case, Eval, EvalReport, Suite, contains, exact, matches
from tests.model_server import ModelServer, text

CASES = [
    Case("door", "Which colour has the door?", expected="green"),
    Case("wall", "Which colour has the wall?", expected="green"),
]


def look(what: str) -> str:
    """Looks."""
    return f"{what}: green"


def good(request: Any) -> Any:
    last = request.messages[-1]
    return "It is green." if last["role"] == "tool" else ("look", {"what": last["content"][-5:-1]})


def bad(request: Any) -> Any:
    return "It is red." if "wall" in request.messages[-1]["content"] else good(request)


class Models:
    """The models of a test's agents, which record their requests."""

    def __init__(self) -> None:
        self.requests: list[str] = []

    def candidate(
        self, name: str, script: Callable[[Any], Any], prompt: str = "", **more: Any
    ) -> Candidate:
        def answer(request: Any) -> Any:
            self.requests.append(name)
            return script(request)

        def make() -> Agent:
            tools = [Tool.from_function(look)]
            return Agent(ScriptedLLM(answer), tools, system_prompt=prompt or name, **more)

        return Candidate(name, make)


@pytest.fixture
def models() -> Models:
    return Models()


def outcomes(report: EvalReport) -> dict[str, str]:
    return {f"{one.agent} {one.case} {one.repeat}": one.outcome for one in report.runs}


@pytest.mark.slow
def test_agents_are_compared_on_every_case(models: Models, tmp_path: Path) -> None:
    agents = [models.candidate("a", good), models.candidate("b", bad)]
    report = Eval(Suite(CASES), agents, tmp_path, repeat=2).run()
    assert outcomes(report) == {
        "a door 1": "passed",
        "b door 1": "passed",
        "a door 2": "passed",
        "b door 2": "passed",
        "a wall 1": "passed",
        "b wall 1": "failed",
        "a wall 2": "passed",
        "b wall 2": "failed",
    }
    a, b = report.agents
    assert (a.rate, a.passed, a.median_steps) == (1.0, 4, 2.0)
    assert (b.rate, b.failed, b.runs) == (0.5, 2, 4)
    [compared] = report.comparisons
    assert (compared.difference, compared.worse, compared.better) == (-0.5, ("wall",), ())
    [part] = compared.partings
    assert (part.case, part.step, part.base, part.other) == (
        "wall",
        1,
        'look {"what":"wall"}',
        "It is red.",
    )
    lines = [json.loads(line) for line in report.lines().splitlines()]
    assert [line["type"] for line in lines] == [*["run"] * 8, "agent", "agent", "comparison"]
    assert lines[5]["reason"] == "contains: 'It is red.' is not a text with 'green'"
    assert lines[0]["scores"]["contains"]["passed"] is True


@pytest.mark.slow
def test_what_is_over_asks_no_model_again_and_what_changed_is_run(
    models: Models, tmp_path: Path
) -> None:
    agents = [models.candidate("a", good)]
    Eval(Suite(CASES), agents, tmp_path).run()
    assert len(models.requests) == 4
    assert Eval(Suite(CASES), agents, tmp_path).run().agents[0].passed == 2
    assert len(models.requests) == 4
    cases = [CASES[0], Case("wall", "And the wall?", expected="green")]
    Eval(Suite(cases), agents, tmp_path, repeat=2).run()
    assert len(models.requests) == 4 + 2 + 4  # the changed case, and the second runs
    asks = len(models.requests)
    Eval(Suite(CASES), [models.candidate("a", good, "Another prompt.")], tmp_path).run()
    assert len(models.requests) == asks + 4


@pytest.mark.slow
def test_changed_scorers_are_asked_again_and_the_model_is_not(
    models: Models, tmp_path: Path
) -> None:
    agents = [models.candidate("a", good)]
    assert Eval(Suite(CASES), agents, tmp_path).run().agents[0].passed == 2
    reviewed: list[str] = []

    def long(review: Any, context: Any) -> Any:
        reviewed.append(review.case.id)
        return len(review.text) > 20

    report = Eval(Suite(CASES, {"long": long}), agents, tmp_path).run()
    assert report.agents[0].failed == 2
    assert sorted(reviewed) == ["door", "wall"]
    Eval(Suite(CASES, {"long": long}), agents, tmp_path).run()
    assert len(reviewed) == 2
    shorter = {"long": lambda review, context: len(review.text) > 2}
    assert Eval(Suite(CASES, shorter), agents, tmp_path).run().agents[0].passed == 2
    assert len(models.requests) == 4


@pytest.mark.slow
def test_a_scorer_that_raises_or_hangs_is_one_runs_error_and_is_asked_again(
    models: Models, tmp_path: Path
) -> None:
    broken = threading.Event()
    broken.set()
    forever = threading.Event()

    def raises(review: Any, context: Any) -> bool:
        if broken.is_set() and review.case.id == "door":
            raise ValueError("no\nluck")
        return True

    def hangs(review: Any, context: Any) -> bool:
        if broken.is_set() and review.case.id == "wall":
            forever.wait(30)
        return True

    suite = Suite(CASES, {"raises": raises, "hangs": hangs})
    agents = [models.candidate("a", good)]
    began = time.monotonic()
    report = Eval(suite, agents, tmp_path, score_seconds=0.5).run()
    assert time.monotonic() - began < 20
    assert outcomes(report) == {"a door 1": "error", "a wall 1": "error"}
    door, wall = report.errors
    assert door.reason.startswith("the scorer raises failed: ")
    assert "no" in door.reason
    assert "the scorer hangs failed: " in wall.reason
    broken.clear()
    forever.set()
    report = Eval(suite, agents, tmp_path, score_seconds=0.5).run()
    assert report.agents[0].passed == 2
    assert len(models.requests) == 4


@pytest.mark.slow
def test_a_run_that_failed_is_an_error_and_is_tried_again(models: Models, tmp_path: Path) -> None:
    down = [True]

    def sometimes(request: Any) -> Any:
        if down[0] and "wall" in request.messages[-1]["content"]:
            raise ConnectionError("the model is down")
        return good(request)

    agents = [models.candidate("a", sometimes)]
    report = Eval(Suite(CASES), agents, tmp_path).run()
    assert outcomes(report) == {"a door 1": "passed", "a wall 1": "error"}
    assert "the model is down" in report.errors[0].reason
    assert report.agents[0].rate == 0.5  # an error passes nothing
    down[0] = False
    assert Eval(Suite(CASES), agents, tmp_path).run().agents[0].passed == 2


@pytest.mark.slow
def test_a_run_at_its_own_limit_is_scored_and_stays_as_it_is(
    models: Models, tmp_path: Path
) -> None:
    agents = [models.candidate("a", good, limits=Limits(steps=1))]
    broken = [True]

    def scorer(review: Any, context: Any) -> str:
        return str(1 / 0) if broken[0] else f"the answer is {review.text!r}"

    for expected in ("error", "failed", "failed"):
        report = Eval(Suite(CASES[:1], {"own": scorer}), agents, tmp_path).run()
        assert outcomes(report) == {"a door 1": expected}
        assert models.requests == ["a"]
        broken[0] = False


@pytest.mark.slow
def test_a_call_that_waits_for_approval_is_an_error_in_words(
    models: Models, tmp_path: Path
) -> None:
    report = Eval(Suite(CASES[:1]), [models.candidate("a", good, confirm="always")], tmp_path).run()
    assert report.errors[0].reason == "it waits for an approval of look, which an eval cannot give"


@pytest.mark.slow
def test_several_messages_are_sent_in_turn(models: Models, tmp_path: Path) -> None:
    numbers: list[int] = []

    def counts(request: Any) -> Any:
        numbers.append(sum(one["role"] == "user" for one in request.messages))
        return f"answer {numbers[-1]}"

    case = Case("talk", ("One.", "Two.", "Three."), expected="answer 3")
    report = Eval(
        Suite([case], {"exact": exact()}), [models.candidate("a", counts)], tmp_path
    ).run()
    assert numbers == [1, 2, 3]
    assert report.agents[0].passed == 1


def test_each_run_has_a_folder_with_its_files(tmp_path: Path) -> None:
    def script(request: Any) -> Any:
        if request.messages[-1]["role"] == "tool":
            return "Done."
        return ("write_file", {"path": "out.txt", "content": "hello"})

    def make(runtime: LocalRuntime) -> Agent:
        return Agent(ScriptedLLM(script), runtime.tools)

    (tmp_path / "given.txt").write_text("from a file")
    case = Case(
        "files",
        "Go.",
        files={"sub/a.txt": "inline", "b.txt": {"file": "given.txt"}},
        score={"command": "grep -q inline sub/a.txt && grep -q from b.txt && test -s out.txt"},
    )
    report = Eval(
        Suite([case], folder=tmp_path),
        [Candidate("a", make, takes_runtime=True)],
        tmp_path / "out",
        open_runtime=LocalRuntime,
    ).run()
    assert report.agents[0].passed == 1, report.runs


@pytest.mark.slow
def test_judges_of_goals_score_and_their_use_counts(tmp_path: Path) -> None:
    judging = ScriptedLLM(lambda request: '{"done": true, "score": 0.9, "missing": ""}')
    finds = ScriptedLLM(lambda request: ("finish", {"done": False, "missing": "more work"}))

    def costly(review: Any, context: Any) -> GoalVerdict:
        return GoalVerdict(True, cost=0.25)

    scorers = {
        "rubric": AllJudges((RubricJudge("Be green.", judging), CommandJudge("true"))),
        "own": RubricJudge(),
        "agent": AgentJudge(Agent(finds, system_prompt="Judge.")),
        "costly": costly,
        "half": lambda review, context: 0.4,
    }

    def answer(request: Any) -> Any:
        is_judge = "You judge" in request.messages[0]["content"]
        return '{"done": true}' if is_judge else "It is green."

    agent = Agent(ScriptedLLM(answer), system_prompt="a")
    report = Eval(
        Suite(CASES[:1], scorers),
        [Candidate("a", agent)],
        tmp_path,
        open_runtime=LocalRuntime,
    ).run()
    [run] = report.runs
    assert {name: one.passed for name, one in run.scores.items()} == {
        "rubric": True,
        "own": True,
        "agent": False,
        "costly": True,
        "half": False,
    }
    assert run.scores["agent"].reason == "more work"
    assert run.scores["costly"].cost == 0.25
    assert len(judging.requests) == 1
    # Of the run, and of both judging models.
    answers = [*judging.requests, *finds.requests]
    assert run.input_tokens > sum(len(one.body) for one in answers) / 8


@pytest.mark.slow
def test_a_budget_bounds_all_runs_together_and_names_those_that_are_missing(
    tmp_path: Path,
) -> None:
    usage = {"prompt_tokens": 20, "completion_tokens": 50, "total_tokens": 70}
    cases = [Case(f"c{number}", f"Question {number}?", expected="green") for number in range(8)]
    with ModelServer(lambda request: text("green", usage=usage)) as server:
        price = {"input": 1.0, "output": 10.0}
        llm = LLM("m", api_key="k", base_url=server.url, max_output_tokens=50, prices=price)
        agents = [Candidate("a", Agent(llm, system_prompt="a"))]
        each = llm.cost(Usage(20, 50))
        assert each is not None
        budget = 3.5 * each
        report = Eval(Suite(cases), agents, tmp_path, max_cost=budget).run()
        assert report.stopped == "the budget of the eval is spent"
        assert report.agents[0].cost is not None
        assert report.agents[0].cost <= budget
        assert len(server.requests) == report.agents[0].runs == 3
        assert {one.case for one in report.not_run} == {
            one.case for one in report.runs if one.outcome != "passed"
        }
        report = Eval(Suite(cases), agents, tmp_path, max_cost=20 * each).run()
        assert report.agents[0].passed == 8
        assert report.stopped == ""
        assert len(server.requests) == 8
        unpriced = [Candidate("a", Agent(llm.replace(prices=None), system_prompt="a"))]
        with pytest.raises(ConfigurationError, match="price of 'm' is not known"):
            Eval(Suite(cases), unpriced, tmp_path / "other", max_cost=1.0).run()


@pytest.mark.slow
def test_a_stop_pauses_runs_after_their_step_and_the_next_call_goes_on(
    models: Models, tmp_path: Path
) -> None:
    stop, at_work, go_on = threading.Event(), threading.Event(), threading.Event()

    def slow(request: Any) -> Any:
        at_work.set()
        go_on.wait(20)
        return good(request)

    work = Eval(Suite(CASES), [models.candidate("a", slow)], tmp_path, parallel=1)
    reports: list[EvalReport] = []
    thread = threading.Thread(target=lambda: reports.append(work.run(stop)))
    thread.start()
    assert at_work.wait(20)
    stop.set()
    time.sleep(0.5)  # the watch of the run polls every 0.2 s
    go_on.set()
    thread.join(20)
    [report] = reports
    assert outcomes(report) == {"a door 1": "not_run", "a wall 1": "not_run"}
    assert report.stopped == "the eval was stopped"
    assert models.requests == ["a"]
    assert work.run().agents[0].passed == 2
    assert len(models.requests) == 4  # the paused run did not ask its first question again
    with SQLiteStore(tmp_path / "eval.db") as store:
        assert {one.status for one in store.list()} == {"finished"}


@pytest.mark.parametrize(
    ("make", "pattern"),
    [
        (lambda: Suite([]), "has no cases"),
        (
            lambda: Suite([CASES[0], CASES[0]]),
            "each case needs an id of its own; several have 'door'",
        ),
        (lambda: Suite([Case("x", "Hi")]), "case 'x' has nothing to score it by"),
        (lambda: Suite([Case("x", "Hi", score={"exakt": 1})]), "unknown scorer 'exakt'"),
        (lambda: Suite([Case("x", "Hi", score={"schema": 1})]), "schema takes a JSON Schema"),
        (lambda: Suite([Case("x", "Hi", score={"command": ""})]), "case 'x': CommandJudge"),
        (lambda: Suite(CASES, {"a-b": contains()}), "scorers takes functions by names"),
        (lambda: Case("", "Hi"), "Case: id takes"),
        (lambda: Case("x", ()), "case 'x': input takes"),
        (lambda: Suite([Case("x", "Hi", "a", files={"../a": ""})]), "paths below"),
        (lambda: Suite([Case("x", "Hi", "a", files={"a": {"file": "no"}})]), "No such file"),
    ],
)
def test_a_wrong_suite_is_told_in_words(make: Callable[[], Any], pattern: str) -> None:
    with pytest.raises(ConfigurationError, match=pattern):
        make()


@pytest.mark.parametrize(
    ("more", "pattern"),
    [
        ({"repeat": 0}, "repeat takes a whole number"),
        ({"parallel": 0}, "parallel takes a whole number"),
        ({"max_cost": -1}, "max_cost takes a number above 0"),
        ({"agents": []}, "at least one Candidate"),
        ({"agents": [Candidate("a", lambda: 1)]}, "agent takes an Agent"),  # pyright: ignore[reportArgumentType]
        ({"agents": [Candidate("a", lambda: 1 / 0)]}, "ZeroDivisionError"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_a_wrong_eval_is_told_in_words(more: Any, pattern: str, tmp_path: Path) -> None:
    agents = [Candidate("a", Agent(ScriptedLLM([]), system_prompt="a"))]
    with pytest.raises(ConfigurationError, match=pattern):
        Eval(Suite(CASES), **{"agents": agents, "folder": tmp_path, **more})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scorer", "answer", "expected", "passes"),
    [
        (exact(), " 42\n", "42", True),
        (exact(), "42", 42, True),
        (exact(), '{"a": [1]}', {"a": [1]}, True),
        (exact(), "forty-two", 42, False),
        (exact("7"), "7", "8", True),
        (contains(), "The GREEN door", "green", True),
        (contains(), "a and b", ["A", "B"], True),
        (contains(), "a alone", ["A", "B"], False),
        (matches({"type": "object", "required": ["a"]}), '{"a": 1}', None, True),
        (matches({"type": "object", "required": ["a"]}), "{}", None, False),
        (matches({"type": "object"}), "no JSON", None, False),
    ],
)
def test_scorers_that_compare(
    scorer: Any, answer: str, expected: Any, passes: bool, tmp_path: Path
) -> None:
    agent = Agent(ScriptedLLM([answer]), system_prompt="a")
    case = Case("x", "Hi", expected)
    report = Eval(Suite([case], {"s": scorer}), [Candidate("a", agent)], tmp_path).run()
    assert (report.runs[0].outcome == "passed") is passes, report.runs
