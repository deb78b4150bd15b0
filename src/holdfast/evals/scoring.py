"""The conversations in which scorers are asked, with one call for each scorer. A verdict is thus
journaled, repeated after a kill, bounded in time, and paid from the same budget as the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast import events as ev
from holdfast.agent.agent import Agent
from holdfast.agent.goal import verdict_of
from holdfast.agent.limits import Limits
from holdfast.content import TextContent, ToolResult, Usage
from holdfast.conversation.state import ConversationState
from holdfast.evals.cases import Case
from holdfast.evals.results import ScoreResult
from holdfast.evals.scorers import EvalReview, Scorer
from holdfast.llm.scripted import ScriptedLLM, ScriptedRequest
from holdfast.tools import Tool, ToolAnnotations, ToolContext
from holdfast.tools.arguments import is_number

DRIVER = "holdfast-eval"
"""The name of the model of the conversations that an eval drives."""
REPEATABLE = ToolAnnotations(idempotent=True, destructive=False, open_world=True)
_PASSING_SCORE = 0.5  # of a scorer that returns a score alone


class DriverModel(ScriptedLLM):
    """The model of the conversations that an eval drives: it makes the given calls, then ends,
    without cost."""

    def __init__(self, calls: Callable[[], Sequence[tuple[str, dict[str, Any]]]]) -> None:
        def answer(request: ScriptedRequest) -> Any:
            return "Over." if request.messages[-1]["role"] == "tool" else list(calls()) or "Over."

        super().__init__(answer, DRIVER)

    def parameters(self) -> dict[str, Any]:
        """Return a bound of the answers' length, which a budget needs."""
        return {"max_output_tokens": 1}

    def cost(self, usage: Usage) -> float:
        """Return nothing."""
        return 0.0


class ScoredWork(msgspec.Struct, frozen=True):
    """A case, and the final state of the conversation that worked on it."""

    case: Case
    state: ConversationState


class _Scorer(msgspec.Struct, frozen=True):
    """One scorer as the callback of a tool."""

    scorer: Scorer
    work: ScoredWork

    def judge(self, context: ToolContext) -> ToolResult:
        case, state = self.work.case, self.work.state
        goal = "\n\n".join(case.messages)
        review = EvalReview(goal, state.answer, 0, lambda: state.events, case=case, state=state)
        judgement = self.scorer(review, context)
        verdict = verdict_of(judgement)
        score, passed = verdict.score, verdict.done
        if is_number(judgement) and score is not None:
            passed = score >= _PASSING_SCORE
        result = ScoreResult(passed, score, verdict.missing, cost=verdict.cost or 0.0)
        text = "passed" if passed else f"failed: {result.reason or 'no reason was given'}"
        return ToolResult((TextContent(text),), structured_content=msgspec.to_builtins(result))


def scoring_agent(
    scorers: Mapping[str, Scorer], work: ScoredWork, names: Sequence[str], seconds: float
) -> Agent:
    """Return an agent that asks the scorers named in `asked` after each message, `seconds` each at
    most. `scores_of` reads their verdicts."""
    tools = [
        Tool(
            name,
            "Scores a run.",
            _Scorer(scorer, work).judge,
            annotations=REPEATABLE,
            timeout=seconds,
        )
        for name, scorer in scorers.items()
    ]
    return Agent(
        DriverModel(lambda: [(name, {}) for name in names]),
        tools,
        system_prompt="Scores a run of an eval.",
        limits=Limits(steps=None),
        stuck=None,
    )


def scores_of(events: Sequence[ev.AnyEvent]) -> dict[str, ScoreResult]:
    """Return the last verdict of each scorer in a conversation that asked them."""
    names: dict[str, str] = {}
    scores: dict[str, ScoreResult] = {}
    for event in events:
        if isinstance(event, ev.AssistantReplied):
            names.update({call.id: call.name for call in event.calls})
        elif isinstance(event, ev.ToolCallFinished) and event.call_id in names:
            result = event.result
            try:
                verdict = msgspec.convert(result.structured_content, ScoreResult)
            except msgspec.ValidationError:
                text = result.text.strip() or "it returned no verdict"
                verdict = ScoreResult(False, error=text)
            scores[names[event.call_id]] = verdict
    return scores
