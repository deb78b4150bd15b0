"""Handing a conversation over: which of its agents is in force, and the change from one to another.

The transcript stays; prompt, tools, model and limits are the other agent's from the next request
on. What the run has used up stays used.
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
    """The agent that answers in a conversation that is opened with `agent`, and its name; `agent`
    itself where it knows none of the name that the journal has."""
    name = "" if state.agent is None else state.agent.name
    found = find(agent, name) if name else agent
    return ("", agent) if found is None else (name, found)


def givers(agent: Agent, own: Agent) -> list[Agent]:
    """The agents that may have given work in a conversation that is opened with `own` and in which
    `agent` answers, that one first."""
    if own.handoffs is None:
        return [agent] if agent is own else [agent, own]
    return [agent, *(one for one in (own, *family(own).values()) if one is not agent)]


def settle(driver: Driver) -> None:
    """Have the driver serve the agent that the journal has in force, also if another process handed
    over since it was read."""
    name, agent = in_force(driver.own_agent, driver.journal.fold)
    if agent is not driver.agent:
        driver.serve(agent, name)


def refusal(driver: Driver, name: str) -> str:
    """Why a handoff to the agent of that name is not done, which is known before it is run; "" if
    nothing is."""
    shown = name or MAIN
    if name == driver.agent_name:
        return ITSELF.format(name=shown)
    if driver.agent.planning == "first":
        plan, agent = driver.journal.fold.planned, find(driver.own_agent, name)
        if (plan is None or not plan.approved) and agent is not None and agent.planning != "first":
            return UNPLANNED.format(name=shown)
    return ""


def _trouble(driver: Driver, name: str, agent: Agent | None) -> str:
    """What the model is told of a handoff that cannot be done."""
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
    """Do what the last handoff says: one `Agent` event, from which on the other agent answers."""
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
