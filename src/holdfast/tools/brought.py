"""A manager as one agent has it: what it was given, which others may have too, and the tools that the agent's own parts come with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.errors import ConfigurationError
from holdfast.events import ToolDefinition
from holdfast.tools.catalogue import Catalogue, Held, definition, unknown
from holdfast.tools.manager import ToolManager
from holdfast.tools.names import wire_name
from holdfast.tools.tool import Tool


def with_brought(manager: ToolManager, brought: Iterable[Tool]) -> ToolManager:
    """The manager with these tools besides, behind those that it has now; the manager itself if there are none. Raises `ConfigurationError` for a
    name that another tool has."""
    own: dict[str, Tool] = {}
    wires = {wire_name(tool.name): tool.name for tool in manager.list_tools()}
    for tool in brought:
        there = own.get(tool.name) or (manager.get(tool.name) if manager.exists(tool.name) else None)
        if there is not None and there is not tool:
            raise ConfigurationError(f"Agent: its parts come with a tool {tool.name!r}, and tools has another one of that name. Rename it.")
        if there is None:
            if (other := wires.setdefault(wire_name(tool.name), tool.name)) != tool.name:
                raise ConfigurationError(
                    f"Agent: its parts come with a tool {tool.name!r}, which model APIs would see under one name with {other!r}."
                )
            _ = tool.input_schema  # a signature that cannot be described is the caller's to hear of, not a run's
            own[tool.name] = tool
    return AgentTools(manager, own) if own else manager


def without_brought(manager: ToolManager) -> ToolManager:
    """The manager that was given to the agent whose manager this is: what its parts came with is its alone."""
    return manager.given if isinstance(manager, AgentTools) else manager


class AgentTools(ToolManager):
    """`given`, with tools of one agent's own. All else is the other one's: what is registered here is registered there, and services, connections,
    hooks and limits are those. Thread-safe."""

    given: ToolManager

    def __init__(self, given: ToolManager, own: Mapping[str, Tool]) -> None:
        catalogue = _Layered(given._catalogue, own)  # pyright: ignore[reportPrivateUsage]: the two are one thing
        self.__dict__.update(given=given, _catalogue=catalogue, _styled={})

    def __getattr__(self, name: str) -> Any:
        if name == "given":  # it is being copied
            raise AttributeError(name)
        return getattr(self.given, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.given, name, value)


class _Layered:
    """A catalogue with other tools besides. What it has of the other is made anew when that has changed."""

    def __init__(self, under: Catalogue, own: Mapping[str, Tool]) -> None:
        self._under = under
        self._own = dict(own)
        self._canonical = {wire_name(name): name for name in own}
        # Local tools stand before its own and those of services behind, whenever a service answered.
        self._before = frozenset(name for name in under.tools if name not in under.origins)
        self._tools: tuple[dict[str, Tool], dict[str, Tool], dict[str, Tool]] | None = None
        self._definitions: tuple[dict[str, Tool], tuple[ToolDefinition, ...], tuple[ToolDefinition, ...]] | None = None

    @property
    def tools(self) -> dict[str, Tool]:
        """By name, in their order."""
        under, own, known = self._under.tools, self._own, self._tools
        if known is not None and known[0] is under and known[1] is own:
            return known[2]
        first = {name: tool for name, tool in under.items() if name in self._before and name not in own}
        found = {**first, **own, **{name: tool for name, tool in under.items() if name not in first and name not in own}}
        self._tools = (under, own, found)
        return found

    def definitions(self) -> tuple[ToolDefinition, ...]:
        """See `Catalogue.definitions`."""
        under, tools, known = self._under.definitions(), self.tools, self._definitions
        if known is not None and known[0] is tools and known[1] is under:
            return known[2]
        made = {one.name: one for one in under}
        found = tuple([made[name] if name in made and name not in self._own else definition(tool) for name, tool in tools.items()])
        self._definitions = (tools, under, found)
        return found

    def find(self, name: str) -> Tool | None:
        """By canonical or wire name."""
        return self._own.get(name) or self._own.get(self._canonical.get(name, "")) or self._under.find(name)

    def not_found(self, name: str, why: str = "") -> Exception:
        """See `Catalogue.not_found`."""
        return unknown(self.tools, name, why)

    def add(self, tool: Tool) -> None:
        """See `Catalogue.add`."""
        self.swap((), (tool,))

    def swap(self, old: Iterable[str], new: Iterable[Tool]) -> None:
        """See `Catalogue.swap`."""
        found = list(new)
        for tool in found:
            if tool.name in self._own:
                raise ConfigurationError(f"tools has two tools named {tool.name!r}. Names are unique within an agent.")
        self._under.swap(old, found)

    def remove(self, name: str) -> Tool:
        """See `Catalogue.remove`."""
        found = self._own.get(name)
        if found is None:
            return self._under.remove(name)
        self._own = {key: tool for key, tool in self._own.items() if key != name}
        return found

    def approve(self, name: str, change: str | None) -> Held:
        """See `Catalogue.approve`."""
        return self._under.approve(name, change)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._under, name)
