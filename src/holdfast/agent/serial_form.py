"""The serial form of an agent: the mapping of `load_agent`, the separate secrets, and
descriptions of its tools."""

from __future__ import annotations

import inspect
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.content import Data
from holdfast.errors import ConfigurationError
from holdfast.tools.registry import declared_in
from holdfast.tools.tool import Tool, ToolAnnotations

if TYPE_CHECKING:
    from holdfast.agent.agent import Agent

RUNTIME = "holdfast.runtime"  # the module of the preset tools, which every runtime has


class Form(msgspec.Struct, frozen=True):
    """An agent as `load_agent` reads it, and its secrets by variable name (`secret_1`,
    `secret_2`, ...)."""

    mapping: dict[str, Any]
    secrets: dict[str, str]

    def to_json(self) -> bytes:
        """Return the mapping as JSON, without secrets."""
        return msgspec.json.encode(self.mapping)

    def __repr__(self) -> str:
        return f"Form({self.mapping!r}, secrets={list(self.secrets)})"


class ToolForm(Data, frozen=True, kw_only=True):
    """A tool's description for a server that has to find or offer the tool.

    `module` is the module that declares the tool; "" if no other process could import it.
    """

    name: str
    input_schema: dict[str, Any]
    description: str = ""
    output_schema: dict[str, Any] | None = None
    annotations: ToolAnnotations = ToolAnnotations()
    category: str = "general"
    timeout: float | None = None
    module: str = ""
    isolation: str | None = None
    parallel: bool | None = None


def form_of(agent: Agent) -> Form:
    """Return the agent's serial form, with the names of its own tools.

    `Agent.from_json` makes an agent of it that makes the same requests. Raises
    `ConfigurationError` that names the argument without a serial form, and its replacement.
    """
    from holdfast.agent.config import dump_agent  # only programs that move agents need it

    return Form(*dump_agent(agent))


def tools_of(agent: Agent) -> list[ToolForm]:
    """Return the forms of the agent's own tools and of those of the agents that it knows.

    Tools of `mcp_servers` are excluded, because the serial form contains these servers.
    """
    same = [name for name in ToolForm.__struct_fields__ if name != "module"]
    return [
        ToolForm(module=module_of(tool), **{name: getattr(tool, name) for name in same})
        for tool in all_tools(agent)
    ]


def all_tools(agent: Agent) -> list[Tool]:
    """Return the agent's own tools, then those of its delegates and handoffs.

    Raises `ConfigurationError` if two tools have one name.
    """
    tools: dict[str, Tool] = {}
    agents = {id(agent): agent}
    pending = [agent]
    while pending:
        one = pending.pop(0)
        for tool in one.own_tools():
            if tools.setdefault(tool.name, tool) is not tool:
                raise ConfigurationError(
                    "Agent: it and one of its delegates or handoffs have two tools named"
                    f" {tool.name!r}; tool names must be unique in a serial form."
                )
        others = [hook.agent for hook in one.hooks if hook.agent is not None]
        for directory in filter(None, (one.delegates, one.handoffs)):
            others += directory.full_agents()
        new = {id(other): other for other in others if id(other) not in agents}
        agents |= new
        pending += new.values()
    return list(tools.values())


def module_of(tool: Tool) -> str:
    """Return the module that declares the tool, so that another process can import it, or "".

    Definitions in `__main__`, functions that no module declares as a tool, closures and methods of
    objects have none. The same holds for tools of services and tools that a client runs.
    """
    name = tool.module_qualname
    module = sys.modules.get(name)
    if tool.executor == "client" or tool.tool_type in ("mcp_tool", "a2a_tool"):
        return ""
    if name.startswith(f"{RUNTIME}."):
        return RUNTIME
    importable = name != "__main__" and getattr(module, "__spec__", None) is not None
    if not importable or not isinstance(module, ModuleType):
        return ""
    declared = declared_in(module).get(tool.name)
    if declared is None:
        return ""
    if declared is tool or declared is type(tool) or tool.from_factory:
        return name
    callback = tool.callback
    if isinstance(declared, Tool):
        return name if callback is not None and declared.callback is callback else ""
    # A tool that a factory of the program made. Another process makes the same one, unless the tool
    # depends on the factory's arguments.
    return name if inspect.isfunction(callback) and callback.__closure__ is None else ""
