"""The set of an agent's tools: by name, in order, as a model is told of them; and which of them services brought in."""

from __future__ import annotations

import difflib
import logging
import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from holdfast.errors import ConfigurationError, ToolNotFound
from holdfast.events import ToolDefinition
from holdfast.tools.json_values import frozen
from holdfast.tools.names import wire_name
from holdfast.tools.tool import Tool

if TYPE_CHECKING:
    from holdfast.tools.pins import Pins
    from holdfast.tools.sources import Source

_log = logging.getLogger("holdfast.tools")

_REMOTE = ("mcp_tool", "a2a_tool")  # types of tools whose definitions others make
_SHOWN = 40  # names in the answer to an unknown one; some agents have hundreds


class Catalogue:
    """The tools of one agent. Thread-safe: `tools` is replaced whole at every change, so that readers need no lock.

    Their order is the configuration's, whichever service answers first: local tools as they were added, then each service's.
    """

    __slots__ = (
        "_approvals", "_canonical", "_definitions", "_lock", "_offered", "_order", "_pins", "_places", "_refused", "_versions", "held",
        "origins", "removed", "tools", "wanted_services", "wanted_tools",
    )  # fmt: skip

    def __init__(self, pins: Pins | None) -> None:
        self.tools: dict[str, Tool] = {}
        self.origins: dict[str, str] = {}  # of the tools that services brought in
        self.wanted_services: frozenset[str] = frozenset()  # lazy ones all of whose tools are in
        self.wanted_tools: frozenset[str] = frozenset()  # that are in besides, such as those that were found
        self.removed: dict[str, str] = {}  # tools of services that were taken out, and stay out; of which service
        self.held: dict[str, Held] = {}  # held back by the pins
        self._pins = pins
        self._approvals = 0
        self._versions: dict[str, int] = {}  # of the lists that services offered
        self._places: dict[str, int] = {}  # of the services in the configuration
        self._order: dict[str, tuple[str, ...]] = {}  # names of all that a service offers; what stays keeps its place
        self._offered: dict[str, dict[str, Tool]] = {}  # of it what is wanted and not held back
        self._refused: dict[str, str] = {}  # of it what another tool's name keeps out; of which service
        self._lock = threading.Lock()
        self._canonical: dict[str, str] = {}
        self._definitions: tuple[ToolDefinition, ...] | None = None

    @property
    def pinned(self) -> bool:
        """Whether definitions of remote tools are held against approved ones."""
        return self._pins is not None

    def add(self, tool: Tool) -> None:
        """Bring in a tool that no service offers; a remote one only if its definition is approved. Raises `ConfigurationError` if its name is
        taken."""
        self.swap((), (tool,))

    def swap(self, old: Iterable[str], new: Sequence[Tool]) -> None:
        """`add` these tools in place of those which are in by `add`, all at one moment or, if it raises, none. What is in both keeps its place."""
        changes: dict[str, str] = {}
        if self._pins is not None:
            changes = {tool.name: change for tool in new if tool.tool_type in _REMOTE and (change := self._pins.check(tool))}
        with self._lock:
            out = {name for name in old if name not in self.origins}
            held = {name: entry for name, entry in self.held.items() if name not in out or entry.origin is not None}
            canonical = {wire: name for wire, name in self._canonical.items() if name not in out} if out else dict(self._canonical)
            added: dict[str, Tool] = {}
            for tool in new:
                name, wire = tool.name, wire_name(tool.name)
                if canonical.get(wire) == name or (name in held and held[name].origin is None):
                    raise ConfigurationError(f"tools has two tools named {name!r}. Names are unique within an agent.")
                if wire in canonical:
                    raise ConfigurationError(
                        f"tools has {canonical[wire]!r} and {name!r}, which model APIs would see under one name, {wire!r}."
                    )
                if name in changes:
                    held[name] = Held(tool, changes[name], None)
                else:
                    canonical[wire], added[name] = name, tool
            self.removed = {name: origin for name, origin in self.removed.items() if name not in added and name not in changes}
            self.held = held
            kept = {name: added.get(name, tool) for name, tool in self.tools.items() if name not in out or name in added}
            found = {**kept, **added}
            local = {name: tool for name, tool in found.items() if name not in self.origins}
            self._replace({**local, **found})
        for name, change in changes.items():
            _held_back(name, change)

    def remove(self, name: str) -> Tool:
        """Take out a tool, or one that is held back. One that a service offers stays out until `restore`. Raises `ToolNotFound`."""
        with self._lock:
            held = self.held.get(name)
            found = self.tools.get(name) or (None if held is None else held.tool)
            if found is None:
                raise self.not_found(name)
            origin = self.origins.pop(name, None) or (None if held is None else held.origin)
            if origin is not None:
                self.removed[name] = origin
                self._offered[origin] = {key: tool for key, tool in self._offered.get(origin, {}).items() if key != name}
            self.held = {key: entry for key, entry in self.held.items() if key != name}
            self._replace({key: tool for key, tool in self.tools.items() if key != name})
        return found

    def restore(self, id: str) -> None:
        """Forget which tools of a service were taken out."""
        with self._lock:
            self.removed = {name: origin for name, origin in self.removed.items() if origin != id}

    def _replace(self, tools: dict[str, Tool]) -> None:
        self.tools = tools
        self._canonical = {wire_name(name): name for name in tools}
        self._definitions = None

    def find(self, name: str) -> Tool | None:
        """By canonical or wire name."""
        return self.tools.get(name) or self.tools.get(self._canonical.get(name, ""))

    def not_found(self, name: str, why: str = "") -> ToolNotFound:
        """The error for an unknown name, which names the nearest one, and says why it may be missing."""
        return unknown(self.tools, name, why)

    def definitions(self) -> tuple[ToolDefinition, ...]:
        """What a model is told: made once, and the same object until the set changes."""
        while (found := self._definitions) is None:
            tools = self.tools
            # Not under the lock: a schema is made from the user's own types, by their code.
            made = tuple([definition(tool) for tool in tools.values()])
            with self._lock:
                if self._definitions is None and self.tools is tools:
                    self._definitions = made
        return found

    # --- what services offer ---

    def left_out(self, id: str) -> int:
        """Return how many tools of a service another tool's name keeps out."""
        return sum(service == id for service in self._refused.values())

    def place(self, ids: Iterable[str]) -> None:
        """Give services their places, behind those that have one."""
        with self._lock:
            self._places = {**self._places, **{id: len(self._places) + n for n, id in enumerate(ids)}}

    def want(self, services: Iterable[str] = (), tools: Iterable[str] = ()) -> None:
        """Have all tools of these lazy services, and these tools, brought in when they are offered."""
        with self._lock:
            self.wanted_services = self.wanted_services | set(services)
            self.wanted_tools = self.wanted_tools | set(tools)

    def offer(self, source: Source, offered: Sequence[Tool], version: int) -> None:
        """Bring in what a service offers and is wanted, in place of what it offered before, unless that is of a higher version. What stays
        keeps its place. Raises what the pins raise."""
        while True:
            approvals = self._approvals
            # Not under the lock: the pins have a file. They are asked again if one was approved meanwhile.
            changes = {} if self._pins is None else self._pins.check_all(offered)
            with self._lock:
                if approvals != self._approvals:
                    continue
                if version < self._versions.get(source.id, 0):
                    return
                self._versions[source.id] = version
                before = self.held
                held = {name: entry for name, entry in before.items() if entry.origin != source.id}
                for tool in offered:
                    if tool.name in changes and tool.name not in held and tool.name not in self.removed:
                        held[tool.name] = Held(tool, changes[tool.name], source.id)
                self.held = held
                everything = not source.lazy or source.id in self.wanted_services
                new = {
                    tool.name: tool
                    for tool in offered
                    if (everything or tool.name in self.wanted_tools) and tool.name not in held and tool.name not in self.removed
                }
                self._arrange(source.id, offered, new)
            break
        for name, entry in held.items():
            if name not in before or before[name].change != entry.change:
                _held_back(name, entry.change)

    def _arrange(self, id: str, offered: Sequence[Tool], wanted: dict[str, Tool]) -> None:
        names = [tool.name for tool in offered]
        stay = [name for name in self._order.get(id, ()) if name in names]
        self._order[id] = tuple(dict.fromkeys([*stay, *names]))
        self._offered[id] = wanted
        tools = {name: tool for name, tool in self.tools.items() if name not in self.origins}
        taken = {wire_name(name) for name in tools}
        origins: dict[str, str] = {}
        refused: dict[str, str] = {}
        reasons: dict[str, str] = {}
        for service in sorted(self._offered, key=lambda one: self._places.get(one, len(self._places))):
            for name in self._order[service]:
                tool = self._offered[service].get(name)
                if tool is None:
                    continue
                if name in tools:
                    refused[name], reasons[name] = service, "a tool of that name is there"
                elif wire_name(name) in taken:
                    refused[name], reasons[name] = service, "model APIs would see it under another tool's name"
                else:
                    tools[name], origins[name] = tool, service
                    taken.add(wire_name(name))
        for name in refused.keys() - self._refused:
            _log.warning("%r of the service %r is left out: %s.", name, refused[name], reasons[name])
        self._refused = refused
        changed = list(tools.items()) != list(self.tools.items())
        self.origins = origins
        if changed:
            self._replace(tools)

    def approve(self, name: str, change: str | None) -> Held:
        """Pin a tool that is held back as it is now, if that is the change that was shown. Raises `ToolNotFound`, `ConfigurationError`, and
        what the pins raise."""
        held = self.held.get(name)
        if held is None or self._pins is None:
            raise ToolNotFound(f"{name!r} is not held back. Held back are: {', '.join(self.held) or 'none'}.")
        if change is not None and change != held.change:
            raise ConfigurationError(
                f"{name!r} was not approved: it has changed since it was shown as {change!r}. What is held back now: {held.change}."
            )
        self._pins.approve(held.tool)
        with self._lock:
            self._approvals += 1
            if self.held.get(name) is held:
                self.held = {key: entry for key, entry in self.held.items() if key != name}
        if held.origin is None:
            self.add(held.tool)
        return held

    def find_held(self, name: str) -> Held | None:
        """A tool that is held back, by canonical or wire name."""
        return self.held.get(name) or next((held for key, held in self.held.items() if wire_name(key) == name), None)


def unknown(tools: Iterable[str], name: str, why: str = "") -> ToolNotFound:
    """The error for a name that none of these tools has."""
    names = list(tools)
    near = difflib.get_close_matches(name.lower(), [known.lower() for known in names], 1)
    hint = f" Did you mean {next(known for known in names if known.lower() == near[0])!r}?" if near else ""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    reason = f" {why}" if why else ""
    return ToolNotFound(f"Unknown tool {name!r}.{reason}{hint} This agent has: {', '.join(names[:_SHOWN]) or 'no tools'}{more}.")


class Held(NamedTuple):
    """A tool that is held back: what changed, and which service offers it (None: it was registered)."""

    tool: Tool
    change: str
    origin: str | None


def _held_back(name: str, change: str) -> None:
    _log.warning("%r is held back until it is approved again: %s", name, change)


def definition(tool: Tool) -> ToolDefinition:
    """Return the definition of a tool that a model is given. It is shared, so its schema cannot be changed."""
    return ToolDefinition(tool.name, tool.description, frozen(tool.input_schema), wire_name(tool.name), tool.executor, tool.parallel)
