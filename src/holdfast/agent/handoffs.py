"""The tool `handoff`, which passes a conversation to another agent, and the agents that a
conversation can reach."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.agent.directory import AgentDirectory, parameter, parameters
from holdfast.agent.limits import check_tree
from holdfast.content import TextContent, ToolCall, ToolResult
from holdfast.errors import ConfigurationError
from holdfast.tools import Tool
from holdfast.tools.policy import LOCAL_READ

if TYPE_CHECKING:
    from holdfast.agent.agent import Agent

TOOL = "handoff"
MAIN = "main"
"""The name under which models know a conversation's first agent, whose
`events.AgentConfigured.name` is ""."""
META = "holdfast/handoff"

ONCE = "Not done: an answer can hand over only once, and its first handoff counts."
ITSELF = "Not done: you are {name!r}, so nothing is handed over. Go on yourself."
UNPLANNED = (
    "Not done: make a plan first. Once the user has approved it, hand over; {name!r} would not ask"
    " for that."
)


def handed_to(result: ToolResult) -> str | None:
    """Return the `events.AgentConfigured.name` of a handoff result's target; None if the handoff
    failed."""
    if result.is_error:
        return None
    to = result.meta.get(META)
    return None if not isinstance(to, str) else "" if to == MAIN else to


def make_handoff(others: AgentDirectory) -> Tool:
    """Return the tool `handoff` for these agents. The conversation performs the handoff after all
    calls of the answer have results."""

    def handoff(agent: str, reason: str = "") -> ToolResult:
        why = f" Reason: {reason.strip()}" if reason.strip() else ""
        text = f"The conversation is handed over to {agent}, who answers from here on.{why}"
        return ToolResult((TextContent(text),), meta={META: agent})

    schema = parameters(
        ("agent",),
        agent=parameter("string", "Who takes over.", enum=list(others)),
        reason=parameter("string", "The reason and the work to do, in one sentence."),
    )
    about = (
        "Hand this conversation over to another agent: it has read all of it, and answers the user"
        " from here on. Say nothing more after that; hand over"
        f" once.\n\nAgents:\n{others.listing()}"
    )
    return Tool(
        TOOL, about, handoff, schema, annotations=LOCAL_READ, category="delegation", parallel=False
    )


def not_done(calls: tuple[ToolCall, ...], refusal: Callable[[str], str]) -> dict[int, ToolResult]:
    """Return the results of the answer's handoffs that are refused, by the position of the call.
    `refusal` maps an `events.AgentConfigured.name` to the reason of a refusal, or "". Only the
    first other handoff is done; all behind it are refused."""
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
    """Apply `check_tree` to an agent and all agents that may take over from it. Raises
    `ConfigurationError`."""
    if tokens or cost:
        for one in (agent, *family(agent).values()):
            check_tree(who, one.llm, tokens, cost)


def find(agent: Agent, name: str) -> Agent | None:
    """Return the agent with that name among those that `agent` reaches through handoffs; None if
    unknown. "" is `agent` itself."""
    return family(agent).get(name) if name else agent


def family(agent: Agent) -> dict[str, Agent]:
    """Return all agents that a conversation of `agent` can reach through handoffs, by name. Raises
    `ConfigurationError` if two agents have one name."""
    found: dict[str, Agent] = {}
    left, seen = [agent], {id(agent)}
    while left:
        others = left.pop(0).handoffs
        if others is None:
            continue
        for name in others:
            one = others.agent(name)
            if one is None:
                continue
            if found.setdefault(name, one) is not one:
                raise ConfigurationError(
                    f"Agent: handoffs lead to two agents named {name!r}. Names are unique within a"
                    " conversation."
                )
            if id(one) not in seen:
                seen.add(id(one))
                left.append(one)
    return found
