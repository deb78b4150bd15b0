"""Handoffs from one agent to another, or to the same one with another model.

The transcript stays. From the next request on the prompt, tools, model and limits are the new
agent's. The run keeps the steps, tokens and cost that it has used.
"""

from __future__ import annotations

from holdfast.agent.agent import Agent
from holdfast.agent.handoffs import (
    ITSELF,
    MAIN,
    SAME_MODEL,
    UNPLANNED,
    find_agent,
    reachable_agents,
    resolve_target,
)
from holdfast.agent.limits import check_tree
from holdfast.conversation.run_context import RunContext
from holdfast.errors import ConfigurationError, NotFound

UNKNOWN = "This conversation has no agent {name!r}, so nothing was handed over. Go on yourself."
UNBOUNDED = "Nothing was handed over. Go on yourself: {error}"


def delegating_agents(agent: Agent, own: Agent) -> list[Agent]:
    """Return the agents with delegates; first `agent`, which answers now."""
    agents = [own, *reachable_agents(own).values()]
    ordered = [agent, *(one for one in agents if one is not agent)]
    return [one for one in ordered if one.delegates is not None]


def refusal(context: RunContext, target: str) -> str:
    """Return the reason to refuse a handoff to that target before it runs; "" if none."""
    label, name = target or MAIN, resolve_target(target, context.agent_name)
    if name == context.agent_name:
        return _already(context, target)
    if context.agent.planning == "first":
        plan, agent = context.journal.fold.planning.plan, find_agent(context.own_agent, name)
        if (plan is None or not plan.approved) and agent is not None and agent.planning != "first":
            return UNPLANNED.format(name=label)
    return ""


def _already(context: RunContext, target: str) -> str:
    if not target.startswith("#") or context.agent.models is None:
        return ITSELF.format(name=target or MAIN)
    return SAME_MODEL.format(name=target[1:] or context.agent.models.own)


def chosen_agent(context: RunContext, chosen: str) -> str:
    """Return the target for an agent that `commands.Use` names, relative to no other agent. Raises
    `NotFound` for an unknown one."""
    present, pending = context.agent_name, context.journal.fold.handoff.target
    if pending is not None:
        present = resolve_target(pending, present)
    name = resolve_target(chosen, present)
    if find_agent(context.own_agent, name) is None:
        names = ", ".join([MAIN, *reachable_agents(context.own_agent)])
        text = f"This conversation has no agent or model {chosen!r}. It has: {names}."
        raise NotFound(text, "agent", chosen)
    return name if name.partition("#")[0] else MAIN + name


def handoff_problem(context: RunContext, name: str) -> tuple[Agent | None, str]:
    """Return the agent to hand over to, and the reason why that is impossible, "" if none."""
    agent, spending = find_agent(context.own_agent, name), context.journal.spending
    if agent is None:
        return None, UNKNOWN.format(name=name)
    if name == context.agent_name:
        return agent, ITSELF.format(name=name.partition("#")[2] or name or MAIN)
    try:
        if spending is not None:
            counts = spending.counts_tokens, spending.counts_cost
            check_tree("the budget of this conversation has", agent.llm, *counts)
    except ConfigurationError as error:
        label = name or MAIN
        context.journal.log(f"nothing was handed over to {label}: {error}")
        return agent, UNBOUNDED.format(error=error)
    return agent, ""
