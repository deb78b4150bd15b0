"""`Highest`: several analyzers of which the highest risk counts."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from holdfast.agent.risk import Risk, Surroundings, assessed
from holdfast.content import ToolCall, Usage
from holdfast.errors import ConfigurationError


class Highest(msgspec.Struct, frozen=True):
    """Asks its analyzers in their order and gives the highest risk, with its reason and who said so; of equal ones the first.

    What has nothing to say of a call does not count; if none has, the risk is unknown. Once one says high the others are not asked: put what
    costs most last.
    """

    analyzers: tuple[Any, ...]

    def __post_init__(self) -> None:
        given: Any = self.analyzers
        if not isinstance(given, list | tuple) or not given:
            raise ConfigurationError(f"Highest: analyzers takes a list of analyzers, not {given!r}.")
        for one in cast("list[Any]", given):
            if isinstance(one, type) or not callable(getattr(one, "assess", None)):
                raise ConfigurationError(f"Highest: analyzers takes objects with a method assess, not {one!r}.")
        msgspec.structs.force_setattr(self, "analyzers", tuple(cast("list[Any]", given)))

    @property
    def name(self) -> str:
        """What it is called in journals, where none of its analyzers has anything to say."""
        return "highest"

    def assess(self, call: ToolCall, about: Surroundings) -> Risk | None:
        """See `SecurityAnalyzer.assess`."""
        highest: Risk | None = None
        usage, cost, model = Usage(), 0.0, ""
        for analyzer in self.analyzers:
            found = assessed(analyzer, call, about, may_pass=True)
            if found is None:
                continue
            if found.model:
                usage, model = usage + found.usage, found.model
                cost += found.cost or 0.0
            if highest is None or found.rank > highest.rank:
                highest = found
            if found.level == "high":
                break
        if highest is None or not model:
            return highest
        return msgspec.structs.replace(highest, usage=usage, cost=cost, model=model)
