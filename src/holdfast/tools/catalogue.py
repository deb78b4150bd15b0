"""The set of an agent's tools: by name, in order, as a model is told of them; and which of them services brought in."""

from __future__ import annotations

import difflib
import logging
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.errors import ConfigurationError, ToolNotFound
from holdfast.events import ToolDefinition
from holdfast.tools.names import wire_name
from holdfast.tools.tool import Tool

if TYPE_CHECKING:
    from holdfast.tools.pins import Pins
    from holdfast.tools.sources import Source

_log = logging.getLogger("holdfast.tools")

_SHOWN = 40  # names in the answer to an unknown one; some agents have hundreds


class Catalogue:
    """Thread-safe. `tools` is replaced whole at every change, so that readers need no lock."""

    __slots__ = ("_canonical", "_definitions", "_lock", "_pins", "held", "origins", "tools", "wanted")

    def __init__(self, pins: Pins | None) -> None:
        self.tools: dict[str, Tool] = {}
        self.origins: dict[str, str] = {}  # of the tools that services brought in
        self.wanted: frozenset[str] = frozenset()  # lazy services all of whose tools are in, and names of tools that were found
        self.held: dict[str, tuple[Tool, str]] = {}  # held back by the pins: the tool, and what changed
        self._pins = pins
        self._lock = threading.Lock()
        self._canonical: dict[str, str] = {}
        self._definitions: tuple[ToolDefinition, ...] | None = None

    def add(self, tool: Tool) -> None:
        """Raises `ConfigurationError` if its name is taken."""
        with self._lock:
            if tool.name in self.tools:
                raise ConfigurationError(f"tools has two tools named {tool.name!r}. Names are unique within an agent.")
            wire = wire_name(tool.name)
            if wire in self._canonical:
                raise ConfigurationError(
                    f"tools has {self._canonical[wire]!r} and {tool.name!r}, which model APIs would see under one name, {wire!r}."
                )
            self._replace({**self.tools, tool.name: tool})

    def remove(self, name: str) -> Tool:
        """Raises `ToolNotFound`."""
        with self._lock:
            found = self.tools.get(name)
            if found is None:
                raise self.not_found(name)
            self.origins.pop(name, None)
            self._replace({key: tool for key, tool in self.tools.items() if key != name})
        return found

    def _replace(self, tools: dict[str, Tool]) -> None:
        self.tools = tools
        self._canonical = {wire_name(name): name for name in tools}
        self._definitions = None

    def find(self, name: str) -> Tool | None:
        """By canonical or wire name."""
        return self.tools.get(name) or self.tools.get(self._canonical.get(name, ""))

    def not_found(self, name: str) -> ToolNotFound:
        """The error for an unknown name, which names the nearest one."""
        names = list(self.tools)
        near = difflib.get_close_matches(name.lower(), [known.lower() for known in names], 1)
        hint = f" Did you mean {next(known for known in names if known.lower() == near[0])!r}?" if near else ""
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        return ToolNotFound(f"Unknown tool {name!r}.{hint} This agent has: {', '.join(names[:_SHOWN]) or 'no tools'}{more}.")

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

    def want(self, *names: str) -> None:
        """Have the tools of these lazy services, and these tools, brought in when they are offered."""
        with self._lock:
            self.wanted = self.wanted | set(names)

    def offer(self, source: Source, offered: Sequence[Tool]) -> None:
        """Bring in what a service offers and is wanted, in place of what it offered before. What stays keeps its place."""
        changes = {} if self._pins is None else {tool.name: change for tool in offered if (change := self._pins.check(tool))}
        with self._lock:
            self.held = {name: entry for name, entry in self.held.items() if name.partition(".")[0] != source.id}
            self.held.update((tool.name, (tool, changes[tool.name])) for tool in offered if tool.name in changes)
            everything = not source.lazy or source.id in self.wanted
            new = {tool.name: tool for tool in offered if (everything or tool.name in self.wanted) and tool.name not in changes}
            self._merge(source.id, new)
        for name, change in changes.items():
            _log.warning("%r is held back until it is approved again: %s", name, change)

    def _merge(self, id: str, new: dict[str, Tool]) -> None:
        theirs = {name for name, origin in self.origins.items() if origin == id}
        tools = {name: new[name] if name in theirs else tool for name, tool in self.tools.items() if name not in theirs or name in new}
        taken = {wire_name(name) for name in tools}
        for name, tool in new.items():
            if name in tools and name not in theirs:
                _log.warning("%r of the service %r is left out: a tool of that name is there.", name, id)
            elif name not in tools and wire_name(name) in taken:
                _log.warning("%r of the service %r is left out: model APIs would see it under another tool's name.", name, id)
            elif name not in tools:
                tools[name] = tool
                taken.add(wire_name(name))
                self.origins[name] = id
        for name in theirs - tools.keys():
            del self.origins[name]
        if list(tools.items()) != list(self.tools.items()):
            self._replace(tools)

    def approve(self, name: str) -> Tool:
        """Pin a tool that is held back as it is now. Raises `ToolNotFound`."""
        held = self.held.get(name)
        if held is None or self._pins is None:
            raise ToolNotFound(f"{name!r} is not held back. Held back are: {', '.join(self.held) or 'none'}.")
        self._pins.approve(held[0])
        return held[0]


def definition(tool: Tool) -> ToolDefinition:
    """A tool as a model is told of it."""
    return ToolDefinition(tool.name, tool.description, tool.input_schema, wire_name(tool.name))
