"""Handoffs: the agent in force, and the change from one agent to another.

The transcript stays. From the next request on the prompt, tools, model and limits are the new
agent's. The run keeps the steps, tokens and cost that it has used.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from holdfast import events as ev
from holdfast.agent.agent import Agent
from holdfast.agent.handoffs import ITSELF, MAIN, UNPLANNED, family, find
from holdfast.agent.limits import check_tree
from holdfast.content import TextContent
from holdfast.conversation.state import Fold
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from holdfast.conversation.driver import Driver

_log = logging.getLogger("holdfast")

UNKNOWN = "This conversation has no agent {name!r}, so nothing was handed over. Go on yourself."
UNBOUNDED = "Nothing was handed over. Go on yourself: {error}"


def in_force(agent: Agent, state: Fold) -> tuple[str, Agent]:
    """Return the name and the agent that answers in a conversation opened with `agent`.

    It is `agent` itself, named "", if the agent does not know the name in the journal.
    """
    name = "" if state.agent is None else state.agent.name
    found = find(agent, name) if name else agent
    return ("", agent) if found is None else (name, found)


def givers(agent: Agent, own: Agent) -> list[Agent]:
    """Return the agents that may have delegated work in a conversation that was opened with `own`.

    The first one is `agent`, which answers now.
    """
    if own.handoffs is None:
        return [agent] if agent is own else [agent, own]
    return [agent, *(one for one in (own, *family(own).values()) if one is not agent)]


def settle(driver: Driver) -> None:
    """Make the driver serve the agent in force, also if another process handed over meanwhile."""
    name, agent = in_force(driver.own_agent, driver.journal.fold)
    if agent is not driver.agent:
        driver.serve(agent, name)


def refusal(driver: Driver, name: str) -> str:
    """Return the reason to refuse a handoff to the agent of that name before it runs; "" if
    none."""
    shown = name or MAIN
    if name == driver.agent_name:
        return ITSELF.format(name=shown)
    if driver.agent.planning == "first":
        plan, agent = driver.journal.fold.planned, find(driver.own_agent, name)
        if (plan is None or not plan.approved) and agent is not None and agent.planning != "first":
            return UNPLANNED.format(name=shown)
    return ""


def _trouble(driver: Driver, name: str, agent: Agent | None) -> str:
    """Return the message to the model about a handoff that cannot be done; "" if it can."""
    if agent is None:
        return UNKNOWN.format(name=name)
    if name == driver.agent_name:
        return ITSELF.format(name=name or MAIN)
    spending = driver.journal.spending
    try:
        if spending is not None:
            check_tree(
                "the budget of this conversation has",
                agent.llm,
                spending.counts_tokens,
                spending.counts_cost,
            )
    except ConfigurationError as error:
        _log.warning(
            "conversation %s: nothing was handed over to %s: %s",
            driver.journal.id,
            name or MAIN,
            error,
        )
        return UNBOUNDED.format(error=error)
    return ""


def hand_over(driver: Driver, name: str) -> None:
    """Carry out the last handoff: append one `Agent` event, from which on the other agent
    answers."""
    journal, before = driver.journal, (driver.agent, driver.agent_name)
    agent = find(driver.own_agent, name)
    trouble = _trouble(driver, name, agent)
    if agent is None or trouble:
        with journal:
            head = journal.fold.agent
            if head is None or journal.fold.handoff is None or driver.calls.closing:
                return
            fields = {
                field: getattr(head, field)
                for field in head.__struct_fields__
                if field not in ("seq", "id", "timestamp")
            }
            journal.add(ev.Agent, **fields)
            journal.add(
                ev.Message,
                content=(TextContent(trouble),),
                sender="holdfast",
                about=f"handoff:{name}",
            )
        return
    driver.serve(agent, name)
    fields = driver.head()
    with journal:
        if journal.fold.handoff == name and not driver.calls.closing:
            journal.add(ev.Agent, **fields)
            return
    driver.serve(*before)
