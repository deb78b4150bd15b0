"""Which calls somebody must approve before they run: policies, and what they decide."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal, Protocol, cast

import msgspec

from holdfast.agent.risk import LEVELS, Level, Risk, apart
from holdfast.content import ToolCall
from holdfast.errors import ConfigurationError
from holdfast.tools.results import clean

_VERDICTS = ("allow", "ask", "deny")

_log = logging.getLogger("holdfast")


class Verdict(msgspec.Struct, frozen=True):
    """What a policy says of a call: it may run, somebody is to be asked, or it may not. The model
    is told the `reason` of a deny. `by` is who says so, "" for the policy itself; `analyzer:rules`
    where what an analyzer found decided."""

    decision: Literal["allow", "ask", "deny"]
    reason: str = ""
    by: str = ""


class ConfirmationPolicy(Protocol):
    """Decides, before a call is run, whether it may. Asked once for each call of an answer, on the
    conversation's thread."""

    def decide(self, call: ToolCall, risk: Risk) -> Verdict:
        """The verdict for a call, whose `id` is not given yet. `risk` is what the agent's analyzer
        says of it, unknown without one. If this raises, somebody is asked."""
        ...


class ByTool:
    """A policy that looks at the tool's name: `{"terminal": "ask", "git.*": "deny", "*": "allow"}`.
    A name itself counts before a pattern, and of patterns the first that fits; `*` is every other
    one, allowed if it is not there."""

    def __init__(self, verdicts: Mapping[str, str]) -> None:
        for name, verdict in verdicts.items():
            if verdict not in _VERDICTS:
                raise ConfigurationError(
                    f"Agent: confirm takes allow, ask or deny for each tool, not {verdict!r} for"
                    f" {name!r}."
                )
        self._verdicts = {
            name: Verdict(cast(Any, verdict), self._reason(name, verdict))
            for name, verdict in verdicts.items()
        }
        self._patterns = [
            (name, verdict)
            for name, verdict in self._verdicts.items()
            if name != "*" and any(c in name for c in "*?[")
        ]
        self._other = self._verdicts.get("*", Verdict("allow"))

    @property
    def verdicts(self) -> dict[str, str]:
        """What it was made with: `ByTool(policy.verdicts)` is the same."""
        return {name: verdict.decision for name, verdict in self._verdicts.items()}

    @staticmethod
    def _reason(name: str, verdict: str) -> str:
        what = "every call" if name == "*" else f"every call of {name}"
        return {
            "ask": f"{what} is to be confirmed",
            "deny": f"{what} is forbidden here",
            "allow": "",
        }[verdict]

    def decide(self, call: ToolCall, risk: Risk) -> Verdict:
        """See `ConfirmationPolicy.decide`."""
        found = self._verdicts.get(call.name)
        if found is None and self._patterns:
            found = next(
                (verdict for pattern, verdict in self._patterns if fnmatchcase(call.name, pattern)),
                None,
            )
        return found or self._other

    def look_for_typos(self, names: Sequence[str]) -> None:
        """Warn of names that are no tool's now and look like one that is: a guard that guards
        nothing. Others may be of tools that come later."""
        from difflib import get_close_matches

        for name in self._verdicts:
            if (
                name not in names
                and not any(c in name for c in "*?[")
                and (near := get_close_matches(name, names, 1, 0.75))
            ):
                _log.warning(
                    "Agent: confirm names %r, which is no tool of this agent. Did you mean %r?",
                    name,
                    near[0],
                )

    def __repr__(self) -> str:
        return f"ByTool({self.verdicts})"


class AboveRisk:
    """A policy that looks at the risk: calls above `level` wait for somebody, or are denied
    (`verdict="deny"`).

    `AboveRisk("medium")` asks about high ones and about those whose risk is unknown;
    `AboveRisk("low")` about medium ones as well. An agent with this policy and without an analyzer
    gets `holdfast.agent.security.standard()`.
    """

    needs_risk = True

    def __init__(
        self, level: Literal["low", "medium"] = "medium", verdict: Literal["ask", "deny"] = "ask"
    ) -> None:
        if level not in ("low", "medium"):
            raise ConfigurationError(
                f"AboveRisk: level takes low or medium, not {level!r}: nothing is above high, and"
                " unknown counts as that."
            )
        if verdict not in ("ask", "deny"):
            raise ConfigurationError(f"AboveRisk: verdict takes ask or deny, not {verdict!r}.")
        self.level: Level = level
        self.verdict: Literal["ask", "deny"] = verdict

    def decide(self, call: ToolCall, risk: Risk) -> Verdict:
        """See `ConfirmationPolicy.decide`."""
        by = f"analyzer:{risk.by}" if risk.by else ""
        if LEVELS[risk.level] <= LEVELS[self.level]:
            return Verdict("allow", risk.reason, by)
        return Verdict(
            self.verdict,
            f"{risk.level} risk: {risk.reason}" if risk.reason else f"its risk is {risk.level}",
            by,
        )

    def __eq__(self, other: object) -> bool:
        return type(other) is AboveRisk and (self.level, self.verdict) == (
            other.level,
            other.verdict,
        )

    def __hash__(self) -> int:
        return hash((self.level, self.verdict))

    def __repr__(self) -> str:
        return f"AboveRisk({self.level!r}, {self.verdict!r})"


class Strictest:
    """Several policies of which the strictest counts: deny before ask before allow; of equal ones
    the first. Each is what `Agent(confirm=)` takes: `Strictest(["risky", {"git.*": "deny"}])`."""

    def __init__(self, policies: Iterable[Any]) -> None:
        given: Any = policies
        if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
            raise ConfigurationError(f"Strictest takes a list of policies, not {given!r}.")
        self.policies: tuple[ConfirmationPolicy, ...] = tuple(
            [found for one in cast("Iterable[Any]", given) if (found := policy(one)) is not None]
        )

    @property
    def needs_risk(self) -> bool:
        """Whether one of them looks at the risk."""
        return any(getattr(one, "needs_risk", False) for one in self.policies)

    def decide(self, call: ToolCall, risk: Risk) -> Verdict:
        """See `ConfirmationPolicy.decide`."""
        found = [decided(one, call, risk) for one in self.policies]
        return max(
            found, key=lambda verdict: _VERDICTS.index(verdict.decision), default=Verdict("allow")
        )

    def __repr__(self) -> str:
        return f"Strictest({list(self.policies)!r})"


Confirm = (
    Literal["never", "always", "risky"] | Iterable[str] | Mapping[str, str] | ConfirmationPolicy
)


def policy(confirm: Confirm) -> ConfirmationPolicy | None:
    """`Agent(confirm=...)` as a policy; None for "never". Raises `ConfigurationError` for what is
    none."""
    given: Any = confirm
    if given == "never":
        return None
    if given == "always":
        return ByTool({"*": "ask"})
    if given == "risky":
        return AboveRisk("medium")
    if isinstance(given, Mapping):
        return ByTool(cast("Mapping[str, str]", given))
    if callable(getattr(given, "decide", None)) and not isinstance(given, type):
        return cast(ConfirmationPolicy, given)
    if isinstance(given, list | tuple | set | frozenset):
        names = list(cast("Iterable[Any]", given))
        if all(isinstance(name, str) for name in names):
            return ByTool(dict.fromkeys(names, "ask"))
    raise ConfigurationError(
        'Agent: confirm takes "never", "always", "risky", a list of tool names, a mapping of names'
        f" to allow, ask or deny, or a ConfirmationPolicy, not {given!r}."
    )


def decided(policy: ConfirmationPolicy, call: ToolCall, risk: Risk) -> Verdict:
    """What a policy says of a call. A guard that fails does not let anything through: somebody is
    asked."""
    try:
        verdict: Any = policy.decide(apart(call, policy), risk)
    except Exception as error:
        return Verdict(
            "ask", clean(f"the confirmation policy failed: {type(error).__name__}: {error}")
        )
    if isinstance(verdict, str) and verdict in _VERDICTS:
        return Verdict(verdict)
    if (
        isinstance(verdict, Verdict)
        and verdict.decision in _VERDICTS
        and isinstance(cast(Any, verdict.reason), str)
    ):
        by: Any = verdict.by
        return Verdict(
            verdict.decision, clean(verdict.reason), clean(by) if isinstance(by, str) else ""
        )
    return Verdict(
        "ask", clean(f"the confirmation policy answered {verdict!r}, which is no verdict")
    )
