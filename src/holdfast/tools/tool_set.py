"""The tools that one agent sees: those of a catalogue that agents share, and its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from holdfast.errors import ConfigurationError, ToolNotFound
from holdfast.events import ToolDefinition
from holdfast.tools.catalogue import Catalogue, definition, unknown_tool_error
from holdfast.tools.names import wire_name
from holdfast.tools.tool import Tool


class ToolSet:
    """The shared tools of a catalogue plus the tools that come with one agent's parts. The order
    is: shared local tools, own tools, tools of services (whenever they answer) and what is
    registered later. Views are rebuilt when the catalogue changes. Thread-safe. Raises
    `ConfigurationError` if an own tool has the name of another tool."""

    def __init__(self, shared: Catalogue, own: Iterable[Tool] = ()) -> None:
        self._shared = shared
        self._own: dict[str, Tool] = {}
        for tool in own:
            self._take(tool)
        self._canonical = {wire_name(name): name for name in self._own}
        self._local_names = frozenset(shared.tools.keys() - shared.origins.keys())
        # Each cached view stands behind the views that it was made of.
        self._tools: tuple[Mapping[str, Tool], Mapping[str, Tool], dict[str, Tool]] | None = None
        self._definitions: tuple[object, Mapping[str, Tool], tuple[ToolDefinition, ...]] | None = (
            None
        )

    def _take(self, tool: Tool) -> None:
        present = self._own.get(tool.name) or self._shared.tools.get(tool.name)
        if present is tool:
            return
        if present is not None:
            raise ConfigurationError(
                f"Agent: its parts come with a tool {tool.name!r}, and tools has another one of"
                " that name. Rename it."
            )
        wire = wire_name(tool.name)
        names = (*self._own, *self._shared.tools)
        if other := next((name for name in names if wire_name(name) == wire), ""):
            raise ConfigurationError(
                f"Agent: its parts come with a tool {tool.name!r}, which model APIs would see"
                f" under one name with {other!r}."
            )
        _ = tool.input_schema  # made now: a signature without a schema fails here, not in a run
        self._own[tool.name] = tool

    def __bool__(self) -> bool:
        """Return True if the set differs from the catalogue."""
        return bool(self._own)

    @property
    def tools(self) -> dict[str, Tool]:
        """All tools by canonical name, in order."""
        shared, own, cached = self._shared.tools, self._own, self._tools
        if not own:
            return shared
        if cached is not None and cached[0] is shared and cached[1] is own:
            return cached[2]
        first = {name: tool for name, tool in shared.items() if name in self._local_names}
        merged = first | own | shared | own  # the position of the first, the value of the last
        self._tools = (shared, own, merged)
        return merged

    def definitions(self) -> tuple[ToolDefinition, ...]:
        """Return the definitions for models: the same object until the set changes."""
        shared = self._shared.definitions()
        if not self._own:
            return shared
        tools, cached = self.tools, self._definitions
        if cached is not None and cached[0] is shared and cached[1] is tools:
            return cached[2]
        known = {one.name: one for one in shared}
        merged = tuple(
            [
                known[name] if name in known and name not in self._own else definition(tool)
                for name, tool in tools.items()
            ]
        )
        self._definitions = (shared, tools, merged)
        return merged

    def find(self, name: str) -> Tool | None:
        """Return the tool with this canonical or wire name, None if there is none."""
        own = self._own
        return own.get(name) or own.get(self._canonical.get(name, "")) or self._shared.find(name)

    def not_found(self, name: str, why: str = "") -> ToolNotFound:
        """Return the error for an unknown name, with the nearest tool and the reason `why`."""
        return unknown_tool_error(self.tools, name, why)

    def swap(self, old: Iterable[str], new: Iterable[Tool]) -> None:
        """Replace shared tools; see `Catalogue.swap`."""
        tools = list(new)
        for tool in tools:
            if tool.name in self._own:
                raise ConfigurationError(
                    f"tools has two tools named {tool.name!r}. Names are unique within an agent."
                )
        self._shared.swap(old, tools)

    def remove(self, name: str) -> Tool:
        """Remove and return a tool. An own one is removed for this agent alone."""
        found = self._own.get(name)
        if found is None:
            return self._shared.remove(name)
        self._own = {key: tool for key, tool in self._own.items() if key != name}
        return found
