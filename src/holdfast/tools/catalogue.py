"""The catalogue of tools by name, in order, with the service of each; and one agent's view of it,
with the agent's own tools."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from holdfast.errors import ConfigurationError, ToolNotFound
from holdfast.events import ToolDefinition
from holdfast.tools.json_values import freeze_json
from holdfast.tools.names import wire_name
from holdfast.tools.pins import Pins
from holdfast.tools.sources import Source
from holdfast.tools.tool import Tool

T = TypeVar("T")

_log = logging.getLogger("holdfast.tools")

_REMOTE_TYPES = ("mcp_tool", "a2a_tool")  # types of tools whose definitions a service makes
_MAX_LISTED_NAMES = 40  # in the error for an unknown name; some agents have hundreds of tools


class Catalogue:
    """The tools of one agent. Thread-safe.

    `tools` is replaced as a whole at every change, so readers need no lock.

    The order is that of the configuration, whichever service answers first: local tools in the
    order of their registration, then the tools of each service.
    """

    def __init__(self, pins: Pins | None) -> None:
        self.tools: dict[str, Tool] = {}
        # The service id of each tool that a service offers.
        self.origins: dict[str, str] = {}
        # Lazy services all of whose tools are wanted.
        self.wanted_services: frozenset[str] = frozenset()
        # Single wanted tools of lazy services, such as search results.
        self.wanted_tools: frozenset[str] = frozenset()
        # The tools of lazy services that are here because a search found them.
        self.deferred: frozenset[str] = frozenset()
        # Removed tools of services, which stay out: service id by tool name.
        self.removed: dict[str, str] = {}
        # Tools held back by the pins.
        self.held_tools: dict[str, HeldTool] = {}
        self._pins = pins
        self._approvals = 0
        # The latest offer of each service, in the order of the configuration.
        self._offers: dict[str, _Offer] = {}
        # Offered tools that another tool's name keeps out: service id by tool name.
        self._refused: dict[str, str] = {}
        self._lock = threading.Lock()
        # Canonical names by wire name.
        self._canonical: dict[str, str] = {}
        self._definitions: tuple[ToolDefinition, ...] | None = None

    def swap(self, old: Iterable[str], new: Sequence[Tool]) -> None:
        """Replace the registered tools `old` by `new` in one step. A tool whose name is in both
        keeps its place. With pins, a remote tool is held back unless its definition is approved.
        Raises `ConfigurationError` if a name is taken; then nothing has changed."""
        remote = [tool for tool in new if tool.tool_type in _REMOTE_TYPES]
        changes = self._pins.check_all(remote) if self._pins is not None and remote else {}
        names = {tool.name for tool in new}
        with self._lock:
            out = {name for name in old if name not in self.origins}
            held_tools = {
                name: entry
                for name, entry in self.held_tools.items()
                if name not in out or entry.origin is not None
            }
            canonical = {wire: name for wire, name in self._canonical.items() if name not in out}
            added: dict[str, Tool] = {}
            for tool in new:
                name, wire = tool.name, wire_name(tool.name)
                if canonical.get(wire) == name or (
                    name in held_tools and held_tools[name].origin is None
                ):
                    raise ConfigurationError(
                        f"tools has two tools named {name!r}. Names are unique within an agent."
                    )
                if wire in canonical:
                    raise ConfigurationError(
                        f"tools has {canonical[wire]!r} and {name!r}, which model APIs would see"
                        f" under one name, {wire!r}."
                    )
                if name in changes:
                    held_tools[name] = HeldTool(tool, changes[name], None)
                else:
                    canonical[wire], added[name] = name, tool
            self.held_tools = held_tools
            self.removed = _without(self.removed, names)
            tools = {
                name: added.get(name, tool)
                for name, tool in self.tools.items()
                if name not in out or name in added
            } | added
            local = {name: tool for name, tool in tools.items() if name not in self.origins}
            self._replace(local | tools)
        for name, change in changes.items():
            _warn_held_back(name, change)

    def remove(self, name: str) -> Tool:
        """Remove and return a tool, whether active or held back. A tool that a service offers stays
        out until `restore`. Raises `ToolNotFound`."""
        with self._lock:
            entry = self.held_tools.get(name)
            removed = self.tools.get(name) or (None if entry is None else entry.tool)
            if removed is None:
                raise unknown_tool_error(self.tools, name)
            origin = self.origins.pop(name, None) or (None if entry is None else entry.origin)
            if origin is not None:
                self.removed[name] = origin
            self.held_tools = _without(self.held_tools, [name])
            self._replace(_without(self.tools, [name]))
        return removed

    def restore(self, id: str) -> None:
        """Forget which tools of a service were removed."""
        with self._lock:
            self.removed = {name: origin for name, origin in self.removed.items() if origin != id}

    def _replace(self, tools: dict[str, Tool]) -> None:
        self.tools = tools
        self._canonical = {wire_name(name): name for name in tools}
        self._definitions = None

    def find(self, name: str) -> Tool | None:
        """Return the tool with this canonical or wire name, None if there is none."""
        return self.tools.get(name) or self.tools.get(self._canonical.get(name, ""))

    def definitions(self) -> tuple[ToolDefinition, ...]:
        """Return the definitions for models: the same object until the set changes."""
        while (definitions := self._definitions) is None:
            tools = self.tools
            # Outside the lock: making a schema runs code of the user's own types.
            definitions = tuple(
                [definition(tool, name in self.deferred) for name, tool in tools.items()]
            )
            with self._lock:
                if self._definitions is None and self.tools is tools:
                    self._definitions = definitions
        return definitions

    # --- what services offer ---

    def left_out(self, id: str) -> int:
        """Return how many tools of a service are left out because another tool has their name."""
        return sum(service == id for service in self._refused.values())

    def place(self, ids: Iterable[str]) -> None:
        """Append services to the order of services. A service that has a place keeps its place."""
        with self._lock:
            for id in ids:
                self._offers.setdefault(id, _Offer())

    def want(self, services: Iterable[str] = (), tools: Iterable[str] = ()) -> None:
        """Request these tools, and all tools of these lazy services, once they are offered."""
        names, ids = set(tools), set(services)
        with self._lock:
            self.wanted_services = self.wanted_services | ids
            self.wanted_tools = self.wanted_tools | names
            offers = dict(self._offers)
        self._offer_again(
            id for id, offer in offers.items() if id in ids or names & offer.tools.keys()
        )

    def searchable(self, ids: Iterable[str]) -> list[Tool]:
        """Return the tools that these services offer, except removed ones and those held back."""
        offers = [self._offers[id] for id in ids]
        out = {**self.removed, **self.held_tools}
        return [tool for offer in offers for name, tool in offer.tools.items() if name not in out]

    def _offer_again(self, ids: Iterable[str]) -> None:
        """Repeat the latest offers of services after more of their tools became wanted."""
        for id in ids:
            offer = self._offers[id]
            if offer.source is not None:
                self.offer(offer.source, list(offer.tools.values()), offer.version)

    def offer(self, source: Source, offered: Sequence[Tool], version: int) -> None:
        """Add the wanted tools that a service offers, in place of its earlier offer. An offer with
        a lower `version` than the earlier one is ignored. A tool that is still offered keeps its
        place. Raises what the pins raise."""
        while True:
            approvals = self._approvals
            # Outside the lock, because the pins may read a file. An approval in the meantime makes
            # the loop check again.
            changes = {} if self._pins is None else self._pins.check_all(offered)
            with self._lock:
                if approvals != self._approvals:
                    continue
                earlier = self._offers.get(source.id, _Offer())
                if version < earlier.version:
                    return
                before = self.held_tools
                held_tools = {
                    name: entry for name, entry in before.items() if entry.origin != source.id
                }
                for tool in offered:
                    if tool.name in changes and tool.name not in self.removed:
                        entry = HeldTool(tool, changes[tool.name], source.id)
                        held_tools.setdefault(tool.name, entry)
                self.held_tools = held_tools
                tools = {tool.name: tool for tool in offered}
                stay = {name: tools[name] for name in earlier.tools if name in tools}
                self._offers[source.id] = _Offer(source, version, stay | tools)
                self._arrange()
            break
        for name, entry in held_tools.items():
            if name not in before or before[name].change != entry.change:
                _warn_held_back(name, entry.change)

    def _arrange(self) -> None:
        """Put the local tools and those of each offer in order."""
        tools = {name: tool for name, tool in self.tools.items() if name not in self.origins}
        wire_names = {wire_name(name) for name in tools}
        origins: dict[str, str] = {}
        refused: dict[str, str] = {}
        deferred: set[str] = set()
        for id, offer in self._offers.items():
            everything = id in self.wanted_services or not (offer.source and offer.source.lazy)
            for name, tool in offer.tools.items():
                selected = everything or name in self.wanted_tools
                if not selected or name in self.held_tools or name in self.removed:
                    continue
                if wire_name(name) not in wire_names:
                    tools[name], origins[name] = tool, id
                    if not everything:
                        deferred.add(name)
                    wire_names.add(wire_name(name))
                    continue
                refused[name] = id
                if name not in self._refused:
                    reason = (
                        "another tool has that name"
                        if name in tools
                        else "model APIs would see it under another tool's name"
                    )
                    _log.warning("%r of the service %r is left out: %s.", name, id, reason)
        self._refused, self.origins = refused, origins
        if frozenset(deferred) != self.deferred or list(tools.items()) != list(self.tools.items()):
            self.deferred = frozenset(deferred)
            self._replace(tools)

    def approve(self, name: str, change: str | None) -> HeldTool:
        """Pin the current definition of a tool that is held back. `change` is the change that the
        approver saw; None skips the comparison. Raises `ConfigurationError` if the tool has changed
        since, `ToolNotFound` if it is not held back, and what the pins raise."""
        entry = self.held_tools.get(name)
        if entry is None or self._pins is None:
            raise ToolNotFound(
                f"{name!r} is not held back. Held back are: {', '.join(self.held_tools) or 'none'}."
            )
        if change is not None and change != entry.change:
            raise ConfigurationError(
                f"{name!r} was not approved: it has changed since it was shown as {change!r}. What"
                f" is held back now: {entry.change}."
            )
        self._pins.approve(entry.tool)
        with self._lock:
            self._approvals += 1
            if self.held_tools.get(name) is entry:
                self.held_tools = _without(self.held_tools, [name])
        if entry.origin is None:
            self.swap((), (entry.tool,))
        else:
            self._offer_again([entry.origin])
        return entry

    def find_held(self, name: str) -> HeldTool | None:
        """Return the tool that is held back under this canonical or wire name."""
        return self.held_tools.get(name) or next(
            (entry for key, entry in self.held_tools.items() if wire_name(key) == name), None
        )


def unknown_tool_error(tools: Iterable[str], name: str, why: str = "") -> ToolNotFound:
    """Return the error for a name that is not among `tools`."""
    from difflib import get_close_matches  # for mistakes alone

    names = list(tools)
    near = get_close_matches(name.lower(), [candidate.lower() for candidate in names], 1)
    hint = ""
    if near:
        nearest = next(candidate for candidate in names if candidate.lower() == near[0])
        hint = f" Did you mean {nearest!r}?"
    more = f" and {len(names) - _MAX_LISTED_NAMES} more" if len(names) > _MAX_LISTED_NAMES else ""
    reason = f" {why}" if why else ""
    return ToolNotFound(
        f"Unknown tool {name!r}.{reason}{hint} This agent has:"
        f" {', '.join(names[:_MAX_LISTED_NAMES]) or 'no tools'}{more}."
    )


class HeldTool(NamedTuple):
    """A tool that is held back. `change` says what differs from the approved definition. `origin`
    is the id of the service that offers the tool, None for a registered one."""

    tool: Tool
    change: str
    origin: str | None


class _Offer(NamedTuple):
    """The latest offer of a service, wanted or not. A tool keeps its position while offered."""

    source: Source | None = None
    version: int = 0
    tools: dict[str, Tool] = {}


def _without(members: Mapping[str, T], names: Collection[str]) -> dict[str, T]:
    return {name: member for name, member in members.items() if name not in names}


def _warn_held_back(name: str, change: str) -> None:
    _log.warning("%r is held back until it is approved again: %s", name, change)


def definition(tool: Tool, deferred: bool = False) -> ToolDefinition:
    """Return a tool's definition for models. The definition is shared, so its schema is
    immutable."""
    return ToolDefinition(
        tool.name,
        tool.description,
        freeze_json(tool.input_schema),
        wire_name(tool.name),
        tool.executor,
        tool.parallel,
        deferred,
    )


class ToolSet:
    """The shared tools of a catalogue plus the tools of one agent's parts. The order is: shared
    local tools, own tools, tools of services (whenever they answer) and tools that are registered
    later. Views are rebuilt when the catalogue changes. Thread-safe. Raises `ConfigurationError` if
    an own tool has the name of another tool."""

    def __init__(self, shared: Catalogue, own: Iterable[Tool] = ()) -> None:
        self._shared = shared
        self._own: dict[str, Tool] = {}
        for tool in own:
            self._take(tool)
        self._canonical = {wire_name(name): name for name in self._own}
        self._local_names = frozenset(shared.tools.keys() - shared.origins.keys())
        # Each cached view follows the views that it was made from.
        self._tools: tuple[Mapping[str, Tool], Mapping[str, Tool], dict[str, Tool]] | None = None
        self._definitions: tuple[Mapping[str, Tool], tuple[ToolDefinition, ...]] | None = None

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
    def own(self) -> list[Tool]:
        """The tools that the catalogue does not have."""
        return list(self._own.values())

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
        tools, cached = self.tools, self._definitions
        # After `tools`, which name the cached ones: a change in between must not be cached.
        shared = self._shared.definitions()
        if not self._own:
            return shared
        if cached is not None and cached[0] is tools:
            return cached[1]
        shared_by_name = {one.name: one for one in shared if one.name not in self._own}
        merged = tuple(
            [shared_by_name.get(name) or definition(tool) for name, tool in tools.items()]
        )
        self._definitions = (tools, merged)
        return merged

    def find(self, name: str) -> Tool | None:
        """Return the tool with this canonical or wire name, None if there is none."""
        own = self._own
        return own.get(name) or own.get(self._canonical.get(name, "")) or self._shared.find(name)

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
        tool = self._own.get(name)
        if tool is None:
            return self._shared.remove(name)
        self._own = {key: one for key, one in self._own.items() if key != name}
        return tool
