"""The serial form of an agent: the mapping of `load_agent`, the separate secrets, and
descriptions of its tools."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.content import Data
from holdfast.errors import ConfigurationError
from holdfast.tools.tool import Tool, ToolAnnotations

if TYPE_CHECKING:
    from holdfast.agent.agent import Agent

RUNTIME = "holdfast.runtime"  # the module of the preset tools, which every runtime has


class Origin(msgspec.Struct, frozen=True):
    """A record of a part that `load_agent` had imported code make.

    Attributes:
        made: The object.
        use: The import name, as read.
        parameters: The parameters, as read.
        hidden: Texts that came from variables.
    """

    made: Any
    use: str
    parameters: dict[str, Any] | None = None
    hidden: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        return f"Origin({self.use!r})"  # the parameters may hold secrets


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

    `agent_of(form.to_json(), form.secrets, tools)` makes the same requests. Raises
    `ConfigurationError` that names the argument without a serial form, and its replacement.
    """
    from holdfast.agent.writer import Writer

    writer = Writer(agent.origins)
    mapping = writer.agent(agent, own_tools(agent), servers_of(agent))
    return Form(mapping, writer.secrets)


def agent_of(
    data: bytes | str, variables: Mapping[str, Any] | None = None, builtins: Any = None
) -> Agent:
    """Make the agent of a serial form: decode the JSON and call `load_agent`. Raises
    `ConfigurationError`."""
    from holdfast.agent.load import load_agent
    from holdfast.tools.document import Map, Place, read_json

    place = Place("agent")
    try:
        text = data if isinstance(data, str) else bytes(data).decode()
    except UnicodeDecodeError:
        raise place.error("it is not UTF-8 text.") from None
    document = read_json(text, place)
    if not isinstance(document, Map):
        raise place.error(f"it takes a JSON object, not {type(document).__name__}.")
    return load_agent(document, variables=variables, builtins=builtins)


def tools_of(agent: Agent) -> list[ToolForm]:
    """Return the forms of the agent's own tools and of those of the agents that it knows.

    Tools of `mcp_servers` are excluded, because the serial form contains these servers.
    """
    return [_tool(tool) for tool in all_tools(agent)]


def all_tools(agent: Agent) -> list[Tool]:
    """Return the agent's own tools, then those of its delegates and handoffs.

    Raises `ConfigurationError` if two tools have one name.
    """
    found: dict[str, Tool] = {}
    left, seen = [agent], {id(agent)}
    while left:
        one = left.pop(0)
        for tool in own_tools(one):
            if found.setdefault(tool.name, tool) is not tool:
                raise ConfigurationError(
                    "Agent: it and one of its delegates or handoffs have two tools named"
                    f" {tool.name!r};"
                    " tool names must be unique in a serial form."
                )
        for others in (one.delegates, one.handoffs):
            for other in () if others is None else others.full_agents():
                if id(other) not in seen:
                    seen.add(id(other))
                    left.append(other)
    return list(found.values())


def own_tools(agent: Agent) -> list[Tool]:
    """Return the agent's tools without those of its `mcp_servers` and those that come with other
    arguments."""
    servers = servers_of(agent)
    lazy = any(server.get("lazy") for server in servers.values())

    def theirs(tool: Tool) -> bool:
        found = tool.tool_type == "mcp_tool" and tool.name.partition(".")[0] in servers
        return found or (lazy and tool.name == "find_tools" and tool.category == "builtin")

    return [
        tool
        for tool in agent.tools.list_tools()
        if not theirs(tool) and not any(tool is one for one in agent.brought)
    ]


def _tool(tool: Tool) -> ToolForm:
    return ToolForm(
        name=tool.name,
        description=tool.description,
        input_schema=tool.input_schema,
        output_schema=tool.output_schema,
        annotations=tool.annotations,
        category=tool.category,
        timeout=tool.timeout,
        module=module_of(tool),
        isolation=tool.isolation,
        parallel=tool.parallel,
    )


def module_of(tool: Tool) -> str:
    """Return the module that declares the tool, so that another process can import it; "" if there
    is none.

    There is none for definitions in `__main__`, functions that no module declares as a tool,
    closures and methods of objects in this process, tools of services, and tools that a client
    runs.
    """
    name = tool.module_qualname
    if name.startswith(f"{RUNTIME}.") and tool.executor != "client":
        return RUNTIME
    module = sys.modules.get(name)
    if (
        name == "__main__"
        or not isinstance(module, ModuleType)
        or getattr(module, "__spec__", None) is None
        or tool.executor == "client"
    ):
        return ""
    from holdfast.tools.registry import declared_in

    declared = declared_in(module).get(tool.name)
    if declared is None or tool.tool_type in ("mcp_tool", "a2a_tool"):
        return ""
    if declared is tool or declared is type(tool) or tool.from_factory:
        return name
    callback = tool.callback
    if isinstance(declared, Tool):
        return name if callback is not None and declared.callback is callback else ""
    # A tool that a factory of the program made. Another process makes the same one, unless the tool
    # depends on the factory's arguments.
    return name if inspect.isfunction(callback) and callback.__closure__ is None else ""


def servers_of(agent: Agent) -> dict[str, dict[str, Any]]:
    """Return the agent's MCP servers by id, each with the keys that differ from the defaults."""
    if not agent.mcp_servers:
        return {}

    from holdfast.tools.mcp.config import read_servers

    found: dict[str, dict[str, Any]] = {}
    for id, server in read_servers(agent.mcp_servers).items():
        defaults = {field.name: _default(field) for field in msgspec.structs.fields(server)}
        found[id] = {
            name: value
            for name, value in msgspec.structs.asdict(server).items()
            if value != defaults[name]
        }
    return found


def _default(field: Any) -> Any:
    return (
        field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default
    )


def set_origins(agent: Agent, origins: Iterable[Origin], mcp_servers: Mapping[str, Any]) -> Agent:
    """Set the agent's origins and MCP servers as `load_agent` read them."""
    object.__setattr__(agent, "origins", tuple(origins))
    object.__setattr__(agent, "mcp_servers", dict(mcp_servers))
    return agent
