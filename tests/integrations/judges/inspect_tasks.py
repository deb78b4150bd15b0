"""Tasks of inspect-ai with a Holdfast agent as their solver, read back from inspect's logs."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from inspect_ai import Task
from inspect_ai import eval as evaluate
from inspect_ai.dataset import Sample, example_dataset
from inspect_ai.log import EvalLog, read_eval_log
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import includes, match, model_graded_fact
from inspect_ai.solver import chain_of_thought, generate, system_message, use_tools
from inspect_ai.tool import tool

from holdfast import Agent, Limits, ScriptedLLM, SQLiteStore, Tool, ToolError
from holdfast.agent.goal import RubricJudge
from holdfast.evals import contains
from holdfast.integrations.inspect import holdfast_solver, judge_scorer


def look(what: str) -> str:
    """Looks."""
    if what == "nothing":
        raise ToolError("There is nothing to look at.")
    return f"{what}: green"


@tool
def add() -> Any:
    async def execute(x: int, y: int) -> int:
        """Add two numbers.

        Args:
            x: First number to add.
            y: Second number to add.
        """
        return x + y

    return execute


def counted(output: ModelOutput) -> ModelOutput:
    """Give an answer a usage; the mock model would fetch a tokenizer to count it."""
    output.usage = ModelUsage(input_tokens=10, output_tokens=5, total_tokens=15)
    return output


def call(name: str, **arguments: Any) -> ModelOutput:
    return counted(ModelOutput.for_tool_call("mock", name, arguments))


def says(text: str) -> ModelOutput:
    return counted(ModelOutput.from_content("mock", text))


def mock(answers: list[ModelOutput] | Callable[..., ModelOutput]) -> Any:
    return get_model("mockllm/model", custom_outputs=answers, memoize=False)


def agent(**more: Any) -> Agent:
    return Agent(ScriptedLLM([]), [Tool.from_function(look)], system_prompt="You look.", **more)


def run(task: Task, tmp_path: Path, model: Any, solver: Any = None, **more: Any) -> EvalLog:
    """Run a task and return its log as inspect reads it back."""
    solver = holdfast_solver(agent()) if solver is None else solver
    [log] = evaluate(
        task, solver=solver, model=model, log_dir=str(tmp_path), display="none", **more
    )
    return read_eval_log(log.location)


def test_messages_calls_usage_and_scores_are_in_the_log(tmp_path: Path) -> None:
    task = Task(
        dataset=[Sample(input="Which colour?", target="green")],
        setup=[use_tools(add()), system_message("Be brief.")],
        scorer=[includes(), judge_scorer(contains())],
    )
    answers = [
        call("look", what="door"),
        call("add", x=1, y=2),
        call("look", what="nothing"),
        says("It is green, 3 times."),
    ]
    log = run(task, tmp_path, mock(answers))
    assert log.status == "success", log.error
    assert log.samples is not None
    [sample] = log.samples
    assert [(one.role, one.text) for one in sample.messages] == [
        ("system", "You look.\n\nBe brief."),
        ("user", "Which colour?"),
        ("assistant", sample.messages[2].text),
        ("tool", "door: green"),
        ("assistant", sample.messages[4].text),
        ("tool", "3"),
        ("assistant", sample.messages[6].text),
        ("tool", "There is nothing to look at."),
        ("assistant", "It is green, 3 times."),
    ]
    asked = sample.messages[2].tool_calls  # pyright: ignore
    assert (asked[0].function, asked[0].arguments) == ("look", {"what": "door"})
    assert sample.messages[3].tool_call_id == asked[0].id  # pyright: ignore
    assert sample.messages[7].error.message == "There is nothing to look at."  # pyright: ignore
    kinds = [one.event for one in sample.events if one.event in ("model", "tool")]
    assert kinds == ["model", "tool"] * 3 + ["model"]
    tools = [one for one in sample.events if one.event == "tool"]
    assert [(one.function, one.result) for one in tools][:2] == [
        ("look", "door: green"),
        ("add", "3"),
    ]
    assert sample.output.completion == "It is green, 3 times."
    assert sample.output.usage is not None
    assert sample.output.usage.total_tokens == 60
    assert sample.model_usage["mockllm/model"].total_tokens == 60
    assert sample.scores is not None
    assert {name: one.value for name, one in sample.scores.items()} == {
        "includes": "C",
        "holdfast_judge": "C",
    }
    assert sample.store["holdfast"]["steps"] == 4


def test_limits_of_inspect_end_a_sample_as_limits_of_inspect(tmp_path: Path) -> None:
    def task() -> Task:
        return Task(dataset=[Sample(input="Go.", target="x")], scorer=includes())

    def looks(*arguments: Any) -> ModelOutput:
        return call("look", what=str(time.monotonic()))

    for limits, kind in (({"message_limit": 7}, "message"), ({"token_limit": 40}, "token")):
        log = run(task(), tmp_path, mock(looks), **limits)
        assert log.status == "success", log.error
        assert log.samples is not None
        [sample] = log.samples
        assert sample.limit is not None
        assert sample.limit.type == kind
        assert len(sample.messages) >= 5
        assert sample.scores is not None  # what was done until then is scored

    def sleeps(seconds: float) -> str:
        """Sleeps."""
        time.sleep(seconds)
        return "slept"

    sleeper = Agent(ScriptedLLM([]), [Tool.from_function(sleeps)], system_prompt="Sleep.")
    model = mock(lambda *arguments: call("sleeps", seconds=3.0))
    began = time.monotonic()
    log = run(task(), tmp_path, model, holdfast_solver(sleeper), time_limit=2)
    assert time.monotonic() - began < 30
    assert log.samples is not None
    assert log.samples[0].limit is not None
    assert log.samples[0].limit.type == "time"


def test_an_agent_of_its_own_model_is_made_for_each_sample_and_stored(tmp_path: Path) -> None:
    made: list[str] = []

    def make(state: Any) -> Agent:
        made.append(state.sample_id)
        return Agent(ScriptedLLM(["It is green."]), system_prompt="Own.")

    samples = [Sample(id=f"s{n}", input="Which?", target="green") for n in range(5)]
    task = Task(dataset=samples, scorer=match(location="any"))
    with SQLiteStore(tmp_path / "runs.db") as store:
        solver = holdfast_solver(make, model="own", store=store)
        log = run(task, tmp_path, mock([]), solver)
        assert log.status == "success", log.error
        assert sorted(made) == ["s0", "s1", "s2", "s3", "s4"]
        assert len(store.list()) == 5
    assert log.results is not None
    assert log.results.scores[0].metrics["accuracy"].value == 1.0


def test_an_agents_own_limit_ends_its_work_and_an_error_is_the_samples(tmp_path: Path) -> None:
    task = Task(dataset=[Sample(input="Go.", target="x")], scorer=includes())
    limited = holdfast_solver(agent(limits=Limits(steps=1)))
    log = run(task, tmp_path, mock([call("look", what="door")]), limited)
    assert log.status == "success", log.error
    assert log.samples is not None
    assert log.samples[0].store["holdfast"]["status"] == "error"
    tools = [one.function for one in log.samples[0].events if one.event == "tool"]
    assert tools == ["look"]  # no request followed it
    broken = Agent(ScriptedLLM([ValueError("no luck")]), system_prompt="Broken.")
    log = run(task, tmp_path, mock([]), holdfast_solver(broken, model="own"))
    assert log.status == "error"
    assert log.error is not None
    assert "no luck" in log.error.message
    waits = holdfast_solver(agent(confirm="always"))
    log = run(task, tmp_path, mock([call("look", what="door")]), waits)
    assert log.error is not None
    assert "waiting_for_confirmation" in log.error.message


def test_judges_score_what_other_solvers_did(tmp_path: Path) -> None:
    seen: list[Any] = []

    def judge(review: Any, context: Any) -> Any:
        seen.append((review.goal, review.text, review.case.expected, len(review.events)))
        return "It says nothing." if review.case.id == "2" else 0.9

    def answers(input: list[Any], *rest: Any) -> ModelOutput:
        if "You judge" in input[0].text:
            return says('{"done": true, "missing": ""}')
        return says("Green.")

    samples = [Sample(input="One?", target="Green."), Sample(input="Two?", target=["a", "b"])]
    task = Task(
        dataset=samples,
        solver=generate(),
        scorer=[judge_scorer(judge), judge_scorer(RubricJudge("Be green."))],
    )
    [log] = evaluate(task, model=mock(answers), log_dir=str(tmp_path), display="none")
    log = read_eval_log(log.location)
    assert log.status == "success", log.error
    assert ("One?", "Green.", "Green.", 2) in seen
    assert ("Two?", "Green.", ("a", "b"), 2) in seen
    assert log.samples is not None
    found = [list((sample.scores or {}).values()) for sample in log.samples]
    assert [[one.value for one in scores] for scores in found] == [["C", "C"], ["I", "C"]]
    assert found[1][0].explanation == "It says nothing."
    assert found[0][0].metadata == {"score": 0.9}


def test_a_data_set_of_inspects_own_with_its_graded_scorer(tmp_path: Path) -> None:
    """The task of examples/theory_of_mind.py: its data set and scorers are parts of the package."""

    def answers(input: list[Any], *rest: Any) -> ModelOutput:
        graded = "GRADE" in input[-1].text
        return says("GRADE: C" if graded else "In the pantry.")

    task = Task(
        dataset=example_dataset("theory_of_mind")[:10],
        solver=[chain_of_thought(), generate()],
        scorer=model_graded_fact(),
    )
    log = run(task, tmp_path, mock(answers))
    assert log.status == "success", log.error
    assert log.eval.dataset.samples == 10
    assert log.results is not None
    assert log.results.scores[0].metrics["accuracy"].value == 1.0
    assert log.eval.solver is not None
    assert log.eval.solver.endswith("holdfast")


EXAMPLES = Path(__file__).parents[3] / ".venv" / "inspect-examples"


@pytest.mark.parametrize(
    "name",
    [
        "hello_world.py@hello_world",
        "theory_of_mind.py@theory_of_mind",
        "security_guide.py@security_guide",
        "popularity.py@popularity",
        "tool_use.py@addition_problem",
    ],
)
def test_an_example_of_inspects_repository_runs_unchanged(name: str, tmp_path: Path) -> None:
    path = EXAMPLES / name
    if not EXAMPLES.is_dir():
        pytest.skip(f"put the folder `examples` of inspect_ai's repository at {EXAMPLES}")

    def answers(input: list[Any], *rest: Any) -> ModelOutput:
        if "GRADE" in input[-1].text:
            return says("GRADE: C")
        if input[-1].role == "user":
            return call("look", what="it")
        return says("Hello World" if "Hello" in input[1].text else "Yes, 2.")

    log = evaluate(
        str(path),
        solver=holdfast_solver(agent()),
        model=mock(answers),
        log_dir=str(tmp_path),
        display="none",
        limit=10,
    )[0]
    log = read_eval_log(log.location)
    assert log.status == "success", log.error
    assert log.results is not None
    assert log.results.completed_samples == log.results.total_samples > 0
    assert log.results.scores
    assert log.samples is not None
    for sample in log.samples:
        assert [one.role for one in sample.messages] == [
            "system",
            "user",
            "assistant",
            "tool",
            "assistant",
        ]
        assert sample.scores


def test_inspects_command_takes_the_solver_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(
        "from inspect_ai import Task, task\n"
        "from inspect_ai.dataset import Sample\n"
        "from inspect_ai.scorer import exact\n"
        "from inspect_ai.solver import generate\n"
        "@task\n"
        "def hello_world():\n"
        "    samples = [Sample(input='Just reply with Hello World', target='Hello World')]\n"
        "    return Task(dataset=samples, solver=[generate()], scorer=exact())\n"
    )
    (tmp_path / "solvers.py").write_text(
        "from inspect_ai.solver import solver\n"
        "from holdfast import Agent, ScriptedLLM\n"
        "from holdfast.integrations.inspect import holdfast_solver\n"
        "@solver\n"
        "def mine():\n"
        "    agent = Agent(ScriptedLLM(lambda request: 'Hello World'))\n"
        "    return holdfast_solver(agent, model='own')\n"
    )
    program = "import sys; from inspect_ai._cli.main import main; sys.exit(main())"
    options = ["--solver", "solvers.py@mine", "--model", "mockllm/model", "--log-dir", "logs"]
    done = subprocess.run(
        [sys.executable, "-c", program, "eval", "tasks.py", *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [path] = (tmp_path / "logs").iterdir()
    log = read_eval_log(str(path))
    assert log.status == "success", log.error
    assert log.eval.solver == "solvers.py@mine"
    assert log.samples is not None
    assert log.samples[0].scores is not None
    assert log.samples[0].scores["exact"].value in ("C", 1, 1.0)
