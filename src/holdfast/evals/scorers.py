"""Scorers: judges of goals that are asked after a case's run, and comparisons of the answer.

A scorer is a judge of a `Goal`, a function of a review and a `ToolContext`. `CommandJudge`,
`RubricJudge`, `AgentJudge` and functions work in both places. Here the review is an `EvalReview`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import msgspec

from holdfast.agent.agent import Agent
from holdfast.agent.goal import AllJudges, CommandJudge, GoalReview, GoalVerdict, RubricJudge
from holdfast.agent.output import Output
from holdfast.conversation.state import ConversationState
from holdfast.errors import ConfigurationError, OutputInvalid
from holdfast.evals.cases import Case
from holdfast.tools import ToolContext
from holdfast.tools.arguments import is_model, wrong

Scorer = Callable[[Any, ToolContext], "GoalVerdict | bool | float | str | None"]
"""A judge whose review is an `EvalReview`. Every `Judge` is one."""

_SHOWN = 200  # characters of an answer in the reason of a failure


class EvalReview(GoalReview, frozen=True, kw_only=True):
    """The work on one case: a `GoalReview` whose `goal` is the case's input, with the `case` and
    the final `state` of the conversation."""

    case: Case
    state: ConversationState


def value_of(review: EvalReview) -> Any:
    """Return the run's output if the agent has an output type; else its last answer."""
    return review.text if review.state.output is None else review.state.output


class _Compares(msgspec.Struct, frozen=True):
    """The base of scorers that compare with their own `expected`, else with the case's."""

    expected: Any = None

    def expected_value(self, review: EvalReview) -> Any:
        value = review.case.expected if self.expected is None else self.expected
        if value is None:
            raise ConfigurationError(
                f"case {review.case.id!r} has nothing to compare with; give it `expected`."
            )
        return value


class exact(_Compares, frozen=True):  # noqa: N801 - reads as a word in a suite
    """Passes if the output, or the answer without white space around it, equals `expected`. An
    answer is compared with an expected value other than a text as JSON."""

    def __call__(self, review: EvalReview, context: ToolContext) -> GoalVerdict:
        """Return the verdict. Raises `ConfigurationError` without an expected value."""
        expected, actual = self.expected_value(review), value_of(review)
        if isinstance(actual, str):
            actual = actual.strip()
            expected = expected.strip() if isinstance(expected, str) else expected
            if not isinstance(expected, str):
                actual = _decoded(actual)
        return _verdict(actual == expected, actual, f"equal to {expected!r}")


class contains(_Compares, frozen=True):  # noqa: N801
    """Passes if the answer has the text `expected`, or each of a list of texts, in any case."""

    def __call__(self, review: EvalReview, context: ToolContext) -> GoalVerdict:
        """Return the verdict. Raises `ConfigurationError` without an expected value."""
        expected: Any = self.expected_value(review)
        texts = cast("list[Any]", expected) if isinstance(expected, list | tuple) else [expected]
        text = review.text.casefold()
        missing = [str(one) for one in texts if str(one).casefold() not in text]
        return _verdict(not missing, review.text, f"a text with {', '.join(map(repr, missing))}")


class matches(msgspec.Struct, frozen=True):  # noqa: N801
    """Passes if the output, or the answer read as JSON, fits a JSON Schema."""

    schema: Mapping[str, Any]

    def __call__(self, review: EvalReview, context: ToolContext) -> GoalVerdict:
        """Return the verdict."""
        actual = value_of(review)
        try:
            Output(self.schema).read(_decoded(actual) if isinstance(actual, str) else actual)
        except OutputInvalid as error:
            return _verdict(False, actual, f"a fit of the schema: {error}")
        return GoalVerdict(True)


def _decoded(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return text


def _verdict(passed: bool, actual: object, requirement: str) -> GoalVerdict:
    actual_text = repr(actual)
    actual_text = actual_text if len(actual_text) <= _SHOWN else f"{actual_text[:_SHOWN]}..."
    return (
        GoalVerdict(True) if passed else GoalVerdict(False, f"{actual_text} is not {requirement}")
    )


# The scorers that a line of a suite can name, each made of the value beside its name.
_NAMED: Mapping[str, Callable[[Any], Scorer]] = {
    "exact": lambda value: exact(None if value is True else value),
    "contains": lambda value: contains(None if value is True else value),
    "schema": lambda value: matches(value),
    "command": lambda value: CommandJudge(value),
    "rubric": lambda value: RubricJudge(value),
}


def scorers_of(case: Case, own: Mapping[str, Scorer]) -> dict[str, Scorer]:
    """Return a case's scorers by name: the ones of its line, else all of the suite's `own`, else a
    comparison with `expected`. Raises `ConfigurationError`."""
    where = f"case {case.id!r}"
    scorers: dict[str, Scorer] = {}
    for name, value in case.score.items():
        if name in own:
            scorers[name] = own[name]
        elif name not in _NAMED:
            names = ", ".join([*_NAMED, *own])
            raise ConfigurationError(f"{where}: unknown scorer {name!r}. There are: {names}.")
        elif name == "schema" and not isinstance(value, Mapping):
            raise wrong(f"{where}: schema", "a JSON Schema", value)
        else:
            try:
                scorers[name] = _NAMED[name](value)
            except ConfigurationError as error:
                raise ConfigurationError(f"{where}: {error}") from None
    if scorers or own:
        return scorers or dict(own)
    if case.expected is None:
        raise ConfigurationError(
            f"{where} has nothing to score it by; give it `expected` or `score`, or the suite"
            " scorers."
        )
    is_text = isinstance(case.expected, str)
    return {"contains": contains()} if is_text else {"exact": exact()}


def with_model(scorer: Scorer, llm: Any) -> Scorer:
    """Return a scorer whose `RubricJudge`s without a model of their own ask `llm`."""
    if isinstance(scorer, RubricJudge) and scorer.llm is None:
        return RubricJudge(scorer.rubric, llm)
    if isinstance(scorer, AllJudges):
        return AllJudges(tuple(with_model(one, llm) for one in scorer.judges))
    return scorer


def identity(scorers: Mapping[str, Scorer], case: Case) -> str:
    """Return a text that changes with the scorers and the expected value: with settings, models,
    and the source of functions."""
    parts = [[name, _identity(one)] for name, one in scorers.items()]
    return msgspec.json.encode([parts, case.expected], order="deterministic").decode()


def _identity(value: Any) -> Any:
    if isinstance(value, str | int | float | None):
        return value
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return [[str(key), _identity(one)] for key, one in items]
    if isinstance(value, list | tuple):
        return [_identity(one) for one in cast("Sequence[Any]", value)]
    if is_model(value):
        return [value.model, _identity(value.parameters())]
    if isinstance(value, msgspec.Struct):
        fields = [_identity(getattr(value, name)) for name in value.__struct_fields__]
        return [type(value).__qualname__, *fields]
    if isinstance(value, Agent):
        return [value.system_prompt, value.llm.model]
    try:
        return inspect.getsource(value)
    except (OSError, TypeError):
        return getattr(value, "__qualname__", type(value).__qualname__)
