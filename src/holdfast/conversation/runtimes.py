"""The runtime of a conversation that was given none."""

from __future__ import annotations

from holdfast.agent.agent import Agent


def runtime_of(agent: Agent) -> object | None:
    """The runtime that the agent's tools work in; None if they work in none, or in several. Asks no service."""
    found = None
    for tool in agent.tools.list_tools():
        if tool.runtime is not None and tool.runtime is not found:
            if found is not None:
                return None
            found = tool.runtime
    return found
