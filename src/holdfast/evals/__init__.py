"""Evals: cases that agents work on, scored, compared, and resumed after a kill.

from holdfast.evals import Case, Candidate, Eval, Suite, contains
"""

from __future__ import annotations

from holdfast.evals.engine import Candidate, Eval, Progress
from holdfast.evals.results import AgentSummary, Comparison, EvalReport, Parting, RunResult
from holdfast.evals.scorers import EvalReview, contains, exact, matches
from holdfast.evals.suite import Case, Suite, load_suite

__all__ = [
    "AgentSummary",
    "Candidate",
    "Case",
    "Comparison",
    "Eval",
    "EvalReport",
    "EvalReview",
    "Parting",
    "Progress",
    "RunResult",
    "Suite",
    "contains",
    "exact",
    "load_suite",
    "matches",
]
