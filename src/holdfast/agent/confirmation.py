"""Confirmation policies: decide which tool calls need approval before they run."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol, cast

import msgspec

from holdfast.agent.risk import LEVELS, Risk, isolated_call
from holdfast.content import ToolCall
from holdfast.error_text import describe_error
from holdfast.errors import ConfigurationError
from holdfast.tools.arguments import wrong
from holdfast.tools.patterns import name_fits
from holdfast.tools.results import clean

_VERDICTS = ("allow", "ask", "deny")

_log = logging.getLogger("holdfast")


class Verdict(msgspec.Struct, frozen=True):
    """The decision of a policy about one call.

    Attributes:
        decision: "allow" runs the call, "ask" waits for an approval, "deny" refuses the call.
        reason: The reason; the model sees the reason of a deny.
        by: The source of the decision; "" for the policy itself, `analyzer:rules` if a finding
            of that analyzer decided.
    """

    decision: Literal["allow", "ask", "deny"]
    reason: str = ""
    by: str = ""


class ConfirmationPolicy(Protocol):
    """A policy that decides, before a call runs, if the call may run. The loop consults the policy
    once for each call of an answer, on the conversation's thread."""

    def decide(self, call: ToolCall, risk: Risk) -> Verdict:
        """Return the verdict for a call. The call has no `id` yet. `risk` is the assessment of the
        agent's analyzer; its level is unknown if the agent has no analyzer. If this method raises,
        the call waits for an approval."""
        ...


class ByTool:
    """A policy by tool name: `{"terminal": "ask", "git.*": "deny", "*": "allow"}`. An exact name
    takes precedence over patterns. Among patterns the first match decides. `*` decides for all
    other tools; without `*` they are allowed."""

    def __init__(self, verdicts: Mapping[str, str]) -> None:
        self._verdicts: dict[str, Verdict] = {}
        for name, verdict in verdicts.items():
            if verdict not in _VERDICTS:
                raise ConfigurationError(
                    f"Agent: confirm takes allow, ask or deny for each tool, not {verdict!r} for"
                    f" {name!r}."
                )
            what = "every call" if name == "*" else f"every call of {name}"
            how = {"ask": " is to be confirmed", "deny": " is forbidden here"}.get(verdict)
            self._verdicts[name] = Verdict(cast(Any, verdict), what + how if how else "")
        self._patterns = [
            (name, verdict)
            for name, verdict in self._verdicts.items()
            if name != "*" and any(c in name for c in "*?[")
        ]
        self._default = self._verdicts.get("*", Verdict("allow"))

    @property
    def verdicts(self) -> dict[str, str]:
        """The decisions by name or pattern: `ByTool(policy.verdicts)` makes an equal policy."""
        return {name: verdict.decision for name, verdict in self._verdicts.items()}

    def decide(self, call: ToolCall, risk: Risk) -> Verdict:
        """Return the verdict of the tool's name. See `ConfirmationPolicy.decide`."""
        verdict = self._verdicts.get(call.name)
        if verdict is not None:
            return verdict
        fitting = (one for pattern, one in self._patterns if name_fits(call.name, pattern))
        return next(fitting, self._default)

    def look_for_typos(self, names: Sequence[str]) -> None:
        """Log a warning for each name that no tool has but that resembles the name of a tool. A
        misspelled name guards nothing. Other unknown names may belong to tools that are added
        later."""
        from difflib import get_close_matches

        for name in self._verdicts:
            may_exist = name in names or any(c in name for c in "*?[")
            if not may_exist and (near := get_close_matches(name, names, 1, 0.75)):
                text = "Agent: confirm names %r, which is no tool of this agent. Did you mean %r?"
                _log.warning(text, name, near[0])

    def __repr__(self) -> str:
        return f"ByTool({self.verdicts})"


class AboveRisk(msgspec.Struct, frozen=True):
    """A policy by risk: calls above `level` wait for an approval, or are denied with
    `verdict="deny"`.

    `AboveRisk("medium")` asks about high and unknown risks. `AboveRisk("low")` asks about medium
    risks as well. An agent with this policy and without an analyzer uses
    `holdfast.agent.security.standard()`.
    """

    level: Literal["low", "medium"] = "medium"
    verdict: Literal["ask", "deny"] = "ask"
    needs_risk: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.level not in ("low", "medium"):
            raise ConfigurationError(
                f"AboveRisk: level takes low or medium, not {self.level!r}: nothing is above high,"
                " and unknown counts as that."
            )
        if self.verdict not in ("ask", "deny"):
            raise wrong("AboveRisk: verdict", "ask or deny", self.verdict)

    def decide(self, call: ToolCall, risk: Risk) -> Verdict:
        """Return the verdict of the call's risk. See `ConfirmationPolicy.decide`."""
        by = f"analyzer:{risk.by}" if risk.by else ""
        if LEVELS[risk.level] <= LEVELS[self.level]:
            return Verdict("allow", risk.reason, by)
        why = f"{risk.level} risk: {risk.reason}" if risk.reason else f"its risk is {risk.level}"
        return Verdict(self.verdict, why, by)

    def __repr__(self) -> str:
        return f"AboveRisk({self.level!r}, {self.verdict!r})"


class Strictest:
    """A policy that combines several: deny overrides ask, and ask overrides allow. Of equal
    verdicts the first is returned. Each policy is a value that `Agent(confirm=)` accepts:
    `Strictest(["risky", {"git.*": "deny"}])`."""

    def __init__(self, policies: Iterable[Any]) -> None:
        value: Any = policies
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
            raise wrong("Strictest", "a list of policies", policies)
        self.policies: tuple[ConfirmationPolicy, ...] = tuple(
            [guard for one in cast("Iterable[Any]", value) if (guard := policy(one)) is not None]
        )

    @property
    def needs_risk(self) -> bool:
        """True if one of the policies depends on the risk."""
        return any(getattr(one, "needs_risk", False) for one in self.policies)

    def decide(self, call: ToolCall, risk: Risk) -> Verdict:
        """Return the strictest verdict of the policies. See `ConfirmationPolicy.decide`."""
        verdicts = [decided(one, call, risk) for one in self.policies]
        return max(
            verdicts, key=lambda one: _VERDICTS.index(one.decision), default=Verdict("allow")
        )

    def __repr__(self) -> str:
        return f"Strictest({list(self.policies)!r})"


Confirm = (
    Literal["never", "always", "risky"] | Iterable[str] | Mapping[str, str] | ConfirmationPolicy
)


def policy(confirm: Confirm) -> ConfirmationPolicy | None:
    """Return the policy of `Agent(confirm=...)`; None for "never". Raises `ConfigurationError` for
    any other value."""
    value: Any = confirm
    if value == "never":
        return None
    if value == "always":
        return ByTool({"*": "ask"})
    if value == "risky":
        return AboveRisk("medium")
    if isinstance(value, Mapping):
        return ByTool(cast("Mapping[str, str]", value))
    if callable(getattr(value, "decide", None)) and not isinstance(value, type):
        return cast(ConfirmationPolicy, value)
    if isinstance(value, list | tuple | set | frozenset):
        names = list(cast("Iterable[Any]", value))
        if all(isinstance(name, str) for name in names):
            return ByTool(dict.fromkeys(names, "ask"))
    form = (
        '"never", "always", "risky", a list of tool names, a mapping of names to allow, ask or'
        " deny, or a ConfirmationPolicy"
    )
    raise wrong("Agent: confirm", form, confirm)


def decided(policy: ConfirmationPolicy, call: ToolCall, risk: Risk) -> Verdict:
    """Return a policy's verdict on a call. A policy that raises or returns no verdict never lets a
    call through: the verdict is then "ask"."""
    try:
        verdict: Any = policy.decide(isolated_call(call, policy), risk)
    except Exception as error:
        problem = f"failed: {describe_error(error)}"
        return Verdict("ask", clean(f"the confirmation policy {problem}"))
    if isinstance(verdict, str) and verdict in _VERDICTS:
        return Verdict(verdict)
    if isinstance(verdict, Verdict) and verdict.decision in _VERDICTS:
        reason, by = cast("tuple[Any, Any]", (verdict.reason, verdict.by))
        if isinstance(reason, str):
            return Verdict(
                verdict.decision, clean(reason), clean(by) if isinstance(by, str) else ""
            )
    problem = f"answered {verdict!r}, which is not a verdict"
    return Verdict("ask", clean(f"the confirmation policy {problem}"))
