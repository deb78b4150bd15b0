"""`Annotations`: the risk of a call by what its tool says of itself."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from holdfast.agent.risk import Risk, Surroundings
from holdfast.content import ToolCall
from holdfast.errors import ConfigurationError


class Annotations(msgspec.Struct, frozen=True):
    """By the tool's annotations: read-only is low; what neither overwrites nor reaches beyond the machine is low; either of these is medium, both are
    high. Without annotations a tool has the defaults, which are both; so has each of a remote server that is not `trusted`.

    They say what a tool may do at its worst, so nothing is said of those in `leave`: what a command does its own text says (`Rules`).
    """

    leave: tuple[str, ...] = ("terminal", "terminal_input")

    def __post_init__(self) -> None:
        given: Any = self.leave
        if not isinstance(given, list | tuple) or not all(isinstance(one, str) for one in cast("list[Any]", given)):
            raise ConfigurationError(f"Annotations: leave takes a list of tools, not {given!r}.")
        msgspec.structs.force_setattr(self, "leave", tuple(cast("list[str]", given)))

    @property
    def name(self) -> str:
        """What it is called in journals."""
        return "annotations"

    def assess(self, call: ToolCall, about: Surroundings) -> Risk | None:
        """See `SecurityAnalyzer.assess`."""
        if call.name in self.leave:
            return None
        said = about.annotations
        if said is None:
            return Risk("unknown", f"there is no tool {call.name}")
        if said.read_only:
            return Risk("low", f"{call.name} only reads")
        if said.destructive and said.open_world:
            return Risk("high", f"{call.name} may overwrite or delete, and reaches beyond this machine (or says nothing of that)")
        if said.destructive:
            return Risk("medium", f"{call.name} may overwrite or delete")
        if said.open_world:
            return Risk("medium", f"{call.name} reaches beyond this machine")
        return Risk("low", f"{call.name} adds, and overwrites nothing")
