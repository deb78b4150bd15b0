"""The modes of an editor's session, and the confirmation policy that follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from acp.schema import SessionMode, SessionModeState

from holdfast import events as ev
from holdfast.agent.agent import Agent
from holdfast.agent.confirmation import AboveRisk, ConfirmationPolicy, Verdict
from holdfast.agent.risk import Risk
from holdfast.content import ToolCall

Mode = Literal["ask", "act", "plan"]

MODES = {
    "ask": ("Ask", "Calls that do more than read wait for your permission."),
    "act": ("Act", "Calls run without asking, unless the agent itself asks about them."),
    "plan": ("Plan first", "You approve a plan before anything is changed; then as with Ask."),
}
_ALWAYS = "the user allowed all calls of "  # the reason of such an approval; journals contain it


class ModePolicy:
    """The confirmation policy of a session: that of its agent, and of its mode. Denials hold in all
    modes and override permissions of the user."""

    needs_risk = True

    def __init__(self, agents: ConfirmationPolicy | None, mode: Mode) -> None:
        self._agents = agents
        self.mode: Mode = mode
        self.allowed: frozenset[str] = (
            frozenset()
        )  # replaced, as the conversation's thread reads it

    def decide(self, call: ToolCall, risk: Risk) -> Verdict:
        verdict = Verdict("allow") if self._agents is None else self._agents.decide(call, risk)
        if verdict.decision == "allow" and self.mode != "act":
            verdict = AboveRisk("low").decide(call, risk)
        if verdict.decision == "ask" and call.name in self.allowed:
            return Verdict("allow", all_calls_of(call.name))
        return verdict


def agents_by_mode(agent: Agent) -> dict[Mode, Agent]:
    """Return the agents of a session in its modes."""
    return {"ask": agent, "act": agent, "plan": agent.with_planning_first()}


def modes_state(current: str) -> SessionModeState:
    """Return the modes as the protocol describes them."""
    modes = [SessionMode(id=id, name=name, description=text) for id, (name, text) in MODES.items()]
    return SessionModeState(current_mode_id=current, available_modes=modes)


def all_calls_of(name: str) -> str:
    """Return the reason of an approval by which the user allowed all calls of a tool."""
    return f"{_ALWAYS}{name}"


def allowed_tools(history: Sequence[ev.AnyEvent]) -> frozenset[str]:
    """Return the tools of which the user allowed all calls."""
    decisions = [event for event in history if isinstance(event, ev.DecisionMade)]
    reasons = [event.reason for event in decisions if event.decision == "approve"]
    return frozenset(text.removeprefix(_ALWAYS) for text in reasons if text.startswith(_ALWAYS))
