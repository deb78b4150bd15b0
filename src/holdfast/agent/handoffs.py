"""`handoff`: the tool with which an agent hands the conversation to another one; and which agents a conversation knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.agent.limits import check_tree
from holdfast.agent.others import Others
from holdfast.content import TextContent, ToolCall, ToolResult
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from holdfast.agent.agent import Agent
    from holdfast.tools import Tool

TOOL = "handoff"
MAIN = "main"
"""What models call the agent that a conversation began with, whose `events.Agent.name` is ""."""
META = "holdfast/handoff"

ONCE = "Not done: one answer hands over once, and the first handoff of this one counts."
ITSELF = "Not done: you are {name!r}, so nothing is handed over. Go on yourself."
UNPLANNED = "Not done: make a plan first. Once the user has approved it, hand over; {name!r} would not ask for that."


def handed_to(result: ToolResult) -> str | None:
    """The agent that a handoff's result hands over to, as `events.Agent.name`; None for one that failed."""
    if result.is_error:
        return None
    to = result.meta.get(META)
    return None if not isinstance(to, str) else "" if to == MAIN else to


def make_handoff(others: Others) -> Tool:
    """The tool `handoff`, to these agents. The handoff itself is the conversation's to do, once all calls of the answer have results."""
    from holdfast.tools import Tool, ToolAnnotations

    def handoff(agent: str, reason: str = "") -> ToolResult:
        why = f" Reason: {reason.strip()}" if reason.strip() else ""
        return ToolResult((TextContent(f"The conversation is handed over to {agent}, who answers from here on.{why}"),), meta={META: agent})

    schema: dict[str, Any] = {
        "type": "object",
        "properties": {
            "agent": {"type": "string", "enum": list(others), "description": "Who takes over."},
            "reason": {"type": "string", "description": "Why, and what is to be done, in a sentence."},
        },
        "required": ["agent"],
        "additionalProperties": False,
    }
    about = (
        "Hand this conversation over to another agent: it has read all of it, and answers the user from here on. Say nothing more after that; "
        f"hand over once.\n\nAgents:\n{others.listed()}"
    )
    nothing = ToolAnnotations(read_only=True, destructive=False, idempotent=True, open_world=False)
    return Tool(TOOL, about, handoff, schema, annotations=nothing, category="delegation", parallel=False)


def not_done(calls: tuple[ToolCall, ...], refusal: Callable[[str], str]) -> dict[int, ToolResult]:
    """Which calls of an answer are handoffs that are not done, by their place, and what they are answered: those of which `refusal`, given the
    `events.Agent.name`, says why, and all behind the first other one."""
    found: dict[int, ToolResult] = {}
    first = True
    for index, call in enumerate(calls):
        if call.name != TOOL:
            continue
        to = call.arguments.get("agent")
        why = refusal("" if to == MAIN else to) if isinstance(to, str) else ""
        if why or not first:
            found[index] = ToolResult.failure(why or ONCE, "cancelled")
        else:
            first = False
    return found


def check_budget(who: str, agent: Agent, tokens: bool, cost: bool) -> None:
    """`check_tree` for an agent and all that may take over from it. Raises `ConfigurationError`."""
    if tokens or cost:
        check_tree(who, agent.llm, tokens, cost)
        for one in family(agent).values() if agent.handoffs is not None else ():
            check_tree(who, one.llm, tokens, cost)


def find(agent: Agent, name: str) -> Agent | None:
    """The agent of that name among those that `agent` may hand over to, and those that these may; "" is `agent` itself. None if there is none."""
    if not name:
        return agent
    return family(agent).get(name)


def family(agent: Agent) -> dict[str, Agent]:
    """All agents that a conversation of `agent` may come to, by name; the nearest of a name. Raises `ConfigurationError` for two of one name."""
    found: dict[str, Agent] = {}
    left, seen = [agent], {id(agent)}
    while left:
        others = left.pop(0).handoffs
        for name in others or ():
            one = None if others is None else others.agent(name)
            if one is None:
                continue
            if found.setdefault(name, one) is not one:
                raise ConfigurationError(f"Agent: handoffs lead to two agents named {name!r}. Names are unique within a conversation.")
            if id(one) not in seen:
                seen.add(id(one))
                left.append(one)
    return found
