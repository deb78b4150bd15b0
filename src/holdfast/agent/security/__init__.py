"""Security analyzers, which say how risky a call is before a policy decides. See `agent.risk`
for their protocol and `docs/how-to/security.md`."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.agent.risk import Level, Risk, SecurityAnalyzer, Surroundings
from holdfast.agent.security.analyzers import Annotations, Highest
from holdfast.agent.security.judge import LLMJudge
from holdfast.agent.security.rules import RiskRules

SHIPPED: dict[str, type[RiskRules | Annotations | LLMJudge]] = {
    "rules": RiskRules,
    "annotations": Annotations,
    "judge": LLMJudge,
}
"""By their names in an agent's config."""


def standard(hosts: Iterable[str] = ()) -> Highest:
    """Return the analyzer of an agent with `confirm="risky"`."""
    return Highest((RiskRules(hosts=tuple(hosts)), Annotations()))


__all__ = [
    "SHIPPED",
    "Annotations",
    "Highest",
    "LLMJudge",
    "Level",
    "Risk",
    "RiskRules",
    "SecurityAnalyzer",
    "Surroundings",
    "standard",
]
