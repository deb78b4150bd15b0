"""The tool manager of one agent: a shared `ToolManager` plus the tools of the agent's own parts."""

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
    """Return the manager extended by `brought`, tools that come with the parts of one agent.

    The added tools follow the manager's present tools. Returns the manager itself if nothing is
    added. Raises `ConfigurationError` if another tool has the same name.
    """
    own: dict[str, Tool] = {}
    wires = {wire_name(tool.name): tool.name for tool in manager.list_tools()}
    for tool in brought:
        present = own.get(tool.name) or (
            manager.get(tool.name) if manager.exists(tool.name) else None
        )
        if present is not None and present is not tool:
            raise ConfigurationError(
                f"Agent: its parts come with a tool {tool.name!r}, and tools has another one of"
                " that name. Rename it."
            )
        if present is None:
            if (other := wires.setdefault(wire_name(tool.name), tool.name)) != tool.name:
                raise ConfigurationError(
                    f"Agent: its parts come with a tool {tool.name!r}, which model APIs would see"
                    f" under one name with {other!r}."
                )
            # Made now: a signature that has no schema fails here, not in a run.
            _ = tool.input_schema
            own[tool.name] = tool
    return AgentTools(manager, own) if own else manager


def without_brought(manager: ToolManager) -> ToolManager:
    """Return the manager that the caller gave to the agent, without the tools of the agent's
    parts."""
    return manager.given if isinstance(manager, AgentTools) else manager


class AgentTools(ToolManager):
    """The manager `given`, plus the tools of one agent's own parts.

    Everything else belongs to `given`: registrations, services, connections, hooks and limits.
    Thread-safe.
    """

    given: ToolManager

    def __init__(self, given: ToolManager, own: Mapping[str, Tool]) -> None:
        catalogue = _Layered(given._catalogue, own)  # pyright: ignore[reportPrivateUsage]: the class wraps its peer
        self.__dict__.update(given=given, _catalogue=catalogue, _styled={})

    def __getattr__(self, name: str) -> Any:
        if name == "given":  # `copy` looks the attribute up before it is set
            raise AttributeError(name)
        return getattr(self.given, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.given, name, value)


class _Layered:
    """A catalogue that adds tools to another catalogue. Its views are rebuilt when the other
    catalogue changes."""

    def __init__(self, under: Catalogue, own: Mapping[str, Tool]) -> None:
        self._under = under
        self._own = dict(own)
        self._canonical = {wire_name(name): name for name in own}
        # The order: shared local tools, own tools, tools of services (whenever they answer).
        self._local_names = frozenset(name for name in under.tools if name not in under.origins)
        self._tools: tuple[dict[str, Tool], dict[str, Tool], dict[str, Tool]] | None = None
        self._definitions: (
            tuple[dict[str, Tool], tuple[ToolDefinition, ...], tuple[ToolDefinition, ...]] | None
        ) = None

    @property
    def tools(self) -> dict[str, Tool]:
        """All tools by name, in catalogue order."""
        under, own, cached = self._under.tools, self._own, self._tools
        if cached is not None and cached[0] is under and cached[1] is own:
            return cached[2]
        local = {
            name: tool
            for name, tool in under.items()
            if name in self._local_names and name not in own
        }
        merged = {
            **local,
            **own,
            **{name: tool for name, tool in under.items() if name not in local and name not in own},
        }
        self._tools = (under, own, merged)
        return merged

    def definitions(self) -> tuple[ToolDefinition, ...]:
        """See `Catalogue.definitions`."""
        under, tools, cached = self._under.definitions(), self.tools, self._definitions
        if cached is not None and cached[0] is tools and cached[1] is under:
            return cached[2]
        shared = {definition.name: definition for definition in under}
        merged = tuple(
            [
                shared[name] if name in shared and name not in self._own else definition(tool)
                for name, tool in tools.items()
            ]
        )
        self._definitions = (tools, under, merged)
        return merged

    def find(self, name: str) -> Tool | None:
        """Return the tool with this canonical or wire name, None if there is none."""
        return (
            self._own.get(name)
            or self._own.get(self._canonical.get(name, ""))
            or self._under.find(name)
        )

    def not_found(self, name: str, why: str = "") -> Exception:
        """See `Catalogue.not_found`."""
        return unknown(self.tools, name, why)

    def add(self, tool: Tool) -> None:
        """See `Catalogue.add`."""
        self.swap((), (tool,))

    def swap(self, old: Iterable[str], new: Iterable[Tool]) -> None:
        """See `Catalogue.swap`."""
        tools = list(new)
        for tool in tools:
            if tool.name in self._own:
                raise ConfigurationError(
                    f"tools has two tools named {tool.name!r}. Names are unique within an agent."
                )
        self._under.swap(old, tools)

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
