"""The kinds of the calls that the agent in force may make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast import events as ev
from holdfast.agent import damage
from holdfast.conversation.facts.reducer import FoldBefore, Reducer


class CallKinds(Reducer, frozen=True):
    """The tools whose calls clients run, and those whose calls may run side by side, each by its
    name and its wire name. The last `AgentConfigured` event restores them."""

    events = (ev.AgentConfigured, ev.DamagedEvent)
    clients: tuple[str, ...] = ()
    parallel: frozenset[str] = frozenset()

    def feed(self, event: Any, fold: FoldBefore) -> CallKinds:
        if type(event) is ev.AgentConfigured:
            clients = _names(event, lambda tool: tool.executor == "client")
            return CallKinds(clients, frozenset(_names(event, lambda tool: tool.parallel)))
        if event.original_type == "agent":
            return CallKinds((*self.clients, *damage.client_tools(event)), self.parallel)
        return self


def _names(
    agent: ev.AgentConfigured, wanted: Callable[[ev.ToolDefinition], bool]
) -> tuple[str, ...]:
    names = [name for tool in agent.tools if wanted(tool) for name in (tool.name, tool.wire_name)]
    return tuple([name for name in names if name])
