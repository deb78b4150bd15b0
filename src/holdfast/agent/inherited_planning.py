"""Agents that inherit planning="first" from the agent that hands a conversation over to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.agent import planning as plans
from holdfast.agent import prompt
from holdfast.tools.brought import with_brought, without_brought

if TYPE_CHECKING:
    from holdfast.agent.agent import Agent


def with_planning_first(agent: Agent) -> Agent:
    """Return the agent with planning="first", which its own handoff targets inherit.

    Repeated calls return the same object. Raises `ConfigurationError` if the agent has another
    tool named `plan`.
    """
    if agent.planning == "first":
        return agent
    found = agent.forms.get("planned")
    return agent.forms.setdefault("planned", _made(agent)) if found is None else found


def _made(agent: Agent) -> Agent:
    found = object.__new__(type(agent))
    for name in agent.__slots__:
        object.__setattr__(found, name, getattr(agent, name))
    brought = (*agent.brought, *plans.tools_for("first", agent.tools))
    parts = agent.known.parts
    if not any(plans.FIRST_PROMPT in part.text for part in parts):
        parts = (*parts, prompt.Part("planning", plans.FIRST_PROMPT))
    changes: dict[str, object] = {
        "planning": "first",
        "brought": brought,
        "tools": with_brought(without_brought(agent.tools), brought),
        "known": agent.known._replace(parts=parts),
        "system_prompt": prompt.join_parts(parts),
        "handoffs": None if agent.handoffs is None else agent.handoffs.for_other_owner(),
        "forms": {},
    }
    for name, value in changes.items():
        object.__setattr__(found, name, value)
    if found.handoffs is not None:
        found.handoffs.set_owner(found)
    return found
