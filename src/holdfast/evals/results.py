"""Results of an eval, read from its journals: runs, rates, comparisons, and where runs part."""

from __future__ import annotations

import statistics as averages
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from holdfast import events as ev
from holdfast.content import Usage, cost_sum
from holdfast.evals.statistics import bootstrap, sign_test, wilson

Outcome = Literal["passed", "failed", "error", "not_run"]
_SIGNIFICANT = 0.05
_SHOWN = 400  # characters of a step in a parting


class _Row(msgspec.Struct, frozen=True, rename="camel"):
    """The base of results; their JSON has every field."""


class ScoreResult(_Row, frozen=True):
    """The verdict of one scorer on a run, or the `error` in its place. `cost` is that of the
    scorer's own model calls."""

    passed: bool
    score: float | None = None
    reason: str = ""
    error: str = ""
    cost: float = 0.0


class Step(_Row, frozen=True):
    """One step of a run for comparison: an answer's calls or text, or a call's result."""

    seq: int
    kind: Literal["calls", "answer", "result", "end"]
    text: str


class RunResult(_Row, frozen=True):
    """One run of one agent on one case: a line of `results.jsonl`.

    Attributes:
        conversation: The id of its conversation in the store of the eval.
        repeat: The number of the run, from 1.
        outcome: `passed` by all scorers, or `failed`. After `error` the run or a scorer failed, and
            the next call tries it again. With `not_run` a limit, a signal or an error of the eval
            came first. Only `passed` counts for the pass rate; runs that were `not_run` are left
            out.
        reason: The first line of the unmet part, or of the error.
        scores: The verdicts by scorer.
        steps: Model calls, and `calls`, `tool_errors` of tools.
        seconds: The durations of model and tool calls, of children and scorers too.
        cost: US dollars with those of children and scorers; None if no price is known.
        unknown_outcomes: Calls that a kill cut off and that could not be repeated; the run may
            have gone otherwise without the kill.
    """

    agent: str
    case: str
    repeat: int
    conversation: str
    outcome: Outcome
    reason: str = ""
    answer: str = ""
    scores: dict[str, ScoreResult] = {}
    steps: int = 0
    calls: int = 0
    tool_errors: int = 0
    seconds: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float | None = 0.0
    unpriced: int = 0
    unknown_outcomes: int = 0

    @property
    def usage(self) -> Usage:
        """The tokens of all model calls."""
        return Usage(self.input_tokens, self.output_tokens)


class AgentSummary(_Row, frozen=True):
    """The runs of one agent: its pass rate with a 95 % interval, and its usage."""

    agent: str
    model: str
    runs: int
    passed: int
    failed: int
    errors: int
    not_run: int
    rate: float
    low: float
    high: float
    cost: float | None
    unpriced: int
    input_tokens: int
    output_tokens: int
    seconds: float
    median_steps: float


class Parting(_Row, frozen=True):
    """The first step at which the first runs of two agents on a case differ. Steps are counted from
    1; each answer with its calls is one step, and each result."""

    case: str
    step: int
    kind: str
    base_seq: int
    other_seq: int
    base: str
    other: str


class Comparison(_Row, frozen=True):
    """An agent beside the first one, over the cases that both have runs of.

    `difference` is that of the mean pass shares, with a 95 % interval. `p` is the exact sign test's
    (McNemar's for one run of each case). `better` and `worse` name the cases whose share changed.
    """

    base: str
    other: str
    cases: int
    difference: float
    low: float
    high: float
    p: float
    better: tuple[str, ...]
    worse: tuple[str, ...]
    partings: tuple[Parting, ...]

    @property
    def is_worse(self) -> bool:
        """True if the other agent passes less, beyond chance (`p` below 0.05)."""
        return self.difference < 0 and self.p < _SIGNIFICANT

    @property
    def is_better(self) -> bool:
        """True if the other agent passes more, beyond chance."""
        return self.difference > 0 and self.p < _SIGNIFICANT


class EvalReport(_Row, frozen=True):
    """All results of an eval. `stopped` says why runs are missing, "" if none is."""

    suite: str
    cases: tuple[str, ...]
    runs: tuple[RunResult, ...]
    agents: tuple[AgentSummary, ...]
    comparisons: tuple[Comparison, ...]
    stopped: str = ""

    @property
    def not_run(self) -> tuple[RunResult, ...]:
        """The runs that are missing."""
        return tuple(one for one in self.runs if one.outcome == "not_run")

    @property
    def errors(self) -> tuple[RunResult, ...]:
        """The runs without a verdict because of an error."""
        return tuple(one for one in self.runs if one.outcome == "error")

    def lines(self) -> bytes:
        """Return the JSON lines of `results.jsonl`: runs, then agents, then comparisons, each with
        its `type`."""
        parts: Sequence[tuple[str, Sequence[_Row]]] = [
            ("run", self.runs),
            ("agent", self.agents),
            ("comparison", self.comparisons),
        ]
        rows = [
            msgspec.json.encode({"type": kind, **msgspec.to_builtins(one)})
            for kind, ones in parts
            for one in ones
        ]
        return b"".join(row + b"\n" for row in rows)


def make_report(
    suite: str,
    cases: Sequence[str],
    models: Mapping[str, str],
    runs: Sequence[RunResult],
    steps: Mapping[tuple[str, str], Sequence[Step]],
    stopped: str = "",
) -> EvalReport:
    """Return the report. `models` maps agents to their models, the first one is the base; `steps`
    are those of the first run by agent and case."""
    names = list(models)
    by_agent = {name: [one for one in runs if one.agent == name] for name in names}
    return EvalReport(
        suite,
        tuple(cases),
        tuple(runs),
        tuple(_summary(name, models[name], by_agent[name]) for name in names),
        tuple(
            _comparison(names[0], name, by_agent[names[0]], by_agent[name], steps)
            for name in names[1:]
        ),
        stopped,
    )


def _shares(runs: Sequence[RunResult]) -> dict[str, float]:
    """Return the share of passed runs by case, without runs that were `not_run`."""
    passes: dict[str, list[bool]] = {}
    for one in runs:
        if one.outcome != "not_run":
            passes.setdefault(one.case, []).append(one.outcome == "passed")
    return {case: sum(passed) / len(passed) for case, passed in passes.items()}


def _summary(name: str, model: str, runs: Sequence[RunResult]) -> AgentSummary:
    shares = _shares(runs)
    rate = sum(shares.values()) / len(shares) if shares else 0.0
    low, high = wilson(rate, len(shares))
    count = {kind: sum(one.outcome == kind for one in runs) for kind in _OUTCOMES}
    cost, unpriced = 0.0, sum(one.unpriced for one in runs)
    for one in runs:
        cost = cost_sum(cost, one.cost, unpriced)
    steps = [one.steps for one in runs if one.outcome != "not_run"]
    return AgentSummary(
        name,
        model,
        len(runs) - count["not_run"],
        count["passed"],
        count["failed"],
        count["error"],
        count["not_run"],
        rate,
        low,
        high,
        cost,
        unpriced,
        sum(one.input_tokens for one in runs),
        sum(one.output_tokens for one in runs),
        sum(one.seconds for one in runs),
        averages.median(steps) if steps else 0.0,
    )


_OUTCOMES: tuple[Outcome, ...] = ("passed", "failed", "error", "not_run")


def _comparison(
    base: str,
    other: str,
    base_runs: Sequence[RunResult],
    other_runs: Sequence[RunResult],
    steps: Mapping[tuple[str, str], Sequence[Step]],
) -> Comparison:
    first, second = _shares(base_runs), _shares(other_runs)
    both = [case for case in first if case in second]
    differences = {case: second[case] - first[case] for case in both}
    better = tuple(case for case, one in differences.items() if one > 0)
    worse = tuple(case for case, one in differences.items() if one < 0)
    mean = sum(differences.values()) / len(both) if both else 0.0
    low, high = bootstrap(list(differences.values()))
    partings = [
        parting(case, steps.get((base, case), ()), steps.get((other, case), ())) for case in both
    ]
    return Comparison(
        base,
        other,
        len(both),
        mean,
        low,
        high,
        sign_test(len(better), len(worse)),
        better,
        worse,
        tuple(one for one in partings if one is not None),
    )


# --- where two runs part ---


def steps_of(events: Sequence[ev.AnyEvent]) -> list[Step]:
    """Return the steps of a run: each answer's calls, or its text if it calls nothing, and the
    results in the order of the calls."""
    steps: list[Step] = []
    results: dict[str, Step] = {}
    order: list[str] = []
    for event in events:
        if isinstance(event, ev.AssistantReplied):
            steps += [results.pop(id) for id in order if id in results]
            order = [call.id for call in event.calls]
            if event.calls:
                text = "\n".join(
                    f"{call.name} {_arguments(call.arguments)}" for call in event.calls
                )
                steps.append(Step(event.seq, "calls", text))
            else:
                steps.append(Step(event.seq, "answer", event.final_text))
        elif isinstance(event, ev.ToolCallFinished) and event.call_id in order:
            error = "error: " if event.result.is_error else ""
            results[event.call_id] = Step(event.seq, "result", f"{error}{event.result.text}")
    return [*steps, *(results.pop(id) for id in order if id in results)]


def parting(case: str, base: Sequence[Step], other: Sequence[Step]) -> Parting | None:
    """Return the first step at which two runs differ, None if they are the same to the end."""
    ended = Step(0, "end", "the run is over")
    for number in range(max(len(base), len(other))):
        one = base[number] if number < len(base) else ended
        two = other[number] if number < len(other) else ended
        if (one.kind, one.text) != (two.kind, two.text):
            kind = one.kind if one.kind == two.kind else f"{one.kind} or {two.kind}"
            texts = _around(one.text, two.text)
            return Parting(case, number + 1, kind, one.seq, two.seq, *texts)
    return None


def _arguments(arguments: Any) -> str:
    return msgspec.json.encode(arguments, order="deterministic").decode()


def _around(one: str, two: str) -> tuple[str, str]:
    """Return two texts around their first difference."""
    at = next((n for n, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), 0)
    begin = max(0, at - _SHOWN // 2) if max(len(one), len(two)) > _SHOWN else 0
    return _cut(one, begin), _cut(two, begin)


def _cut(text: str, begin: int) -> str:
    excerpt = text[begin : begin + _SHOWN]
    return f"{'...' if begin else ''}{excerpt}{'...' if begin + _SHOWN < len(text) else ''}"
