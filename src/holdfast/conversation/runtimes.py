"""The default runtime of a conversation."""

from __future__ import annotations

from holdfast.agent.agent import Agent


def runtime_of(agent: Agent) -> object | None:
    """Return the runtime that the agent's tools share; None if they use none, or several.
    Contacts no service."""
    found = None
    for tool in agent.tools.list_tools():
        if tool.runtime is not None and tool.runtime is not found:
            if found is not None:
                return None
            found = tool.runtime
    return found
