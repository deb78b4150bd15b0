"""Security analyzers, which say how risky a call is before a policy decides. See `agent.risk` for their protocol and `docs/how-to/security.md`."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.agent.risk import Level, Risk, SecurityAnalyzer, Surroundings
from holdfast.agent.security.annotations import Annotations
from holdfast.agent.security.highest import Highest
from holdfast.agent.security.judge import LLMJudge
from holdfast.agent.security.rules import Rules

SHIPPED: dict[str, type[Rules | Annotations | LLMJudge]] = {"rules": Rules, "annotations": Annotations, "judge": LLMJudge}
"""By their names in an agent's config."""


def standard(hosts: Iterable[str] = ()) -> Highest:
    """Return `Highest([Rules(hosts=hosts), Annotations()])`, the analyzer of an agent with `confirm="risky"`."""
    return Highest((Rules(hosts=tuple(hosts)), Annotations()))


__all__ = ["SHIPPED", "Annotations", "Highest", "LLMJudge", "Level", "Risk", "Rules", "SecurityAnalyzer", "Surroundings", "standard"]
