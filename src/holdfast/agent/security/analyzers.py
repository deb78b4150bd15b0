"""Analyzers that use no command: `Annotations` of tools, and `Highest`, which asks several."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec

from holdfast.agent.risk import Risk, Surroundings, assess_call
from holdfast.content import ToolCall, Usage
from holdfast.tools.arguments import wrong


def checked_field(owner: Any, key: str, kind: Any, what: str = "a list of texts") -> Any:
    """Return a struct's field as a value of the type `kind`. Raises `ConfigurationError`."""
    value = getattr(owner, key)
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise wrong(f"{type(owner).__name__}: {key}", what, value) from error


class Annotations(msgspec.Struct, frozen=True):
    """Rates a call by its tool's annotations.

    | the tool | risk |
    |---|---|
    | is read-only | low |
    | neither overwrites nor reaches beyond the machine | low |
    | does one of these | medium |
    | does both, has no annotations, or is of a server that is not `trusted` | high |

    Tools in `leave` are not rated, because a command's own text tells its effects (`RiskRules`).
    """

    name: ClassVar[str] = "annotations"  # in journals

    leave: tuple[str, ...] = ("terminal", "terminal_input")

    def __post_init__(self) -> None:
        leave = checked_field(self, "leave", tuple[str, ...], "a list of tools")
        msgspec.structs.force_setattr(self, "leave", leave)

    def assess(self, call: ToolCall, about: Surroundings) -> Risk | None:
        """See `SecurityAnalyzer.assess`."""
        tool, hints = call.name, about.annotations
        if tool in self.leave:
            return None
        if hints is None:
            return Risk("unknown", f"there is no tool {tool}")
        if hints.read_only:
            return Risk("low", f"{tool} only reads")
        if hints.destructive and hints.open_world:
            reaches = "reaches beyond this machine (or says nothing of that)"
            return Risk("high", f"{tool} may overwrite or delete, and {reaches}")
        if hints.destructive:
            return Risk("medium", f"{tool} may overwrite or delete")
        if hints.open_world:
            return Risk("medium", f"{tool} reaches beyond this machine")
        return Risk("low", f"{tool} adds, and overwrites nothing")


class Highest(msgspec.Struct, frozen=True):
    """Asks its analyzers in their order and gives the highest risk, with its reason and its
    analyzer; of equal ones the first.

    An analyzer that does not rate a call does not count; if none does, the risk is unknown. Once
    one says high the others are not asked: put what costs most last.
    """

    name: ClassVar[str] = "highest"  # in journals, if none of its analyzers gives a risk

    analyzers: tuple[Any, ...]

    def __post_init__(self) -> None:
        some = Annotated[tuple[Any, ...], msgspec.Meta(min_length=1)]
        analyzers = checked_field(self, "analyzers", some, "a list of analyzers")
        for one in analyzers:
            if isinstance(one, type) or not callable(getattr(one, "assess", None)):
                raise wrong("Highest: analyzers", "objects with a method assess", one)
        msgspec.structs.force_setattr(self, "analyzers", analyzers)

    def assess(self, call: ToolCall, about: Surroundings) -> Risk | None:
        """See `SecurityAnalyzer.assess`."""
        highest: Risk | None = None
        usage, cost, model = Usage(), 0.0, ""
        for analyzer in self.analyzers:
            risk = assess_call(analyzer, call, about, may_pass=True)
            if risk is None:
                continue
            if risk.model:
                usage, model = usage + risk.usage, risk.model
                cost += risk.cost or 0.0
            if highest is None or risk.rank > highest.rank:
                highest = risk
            if risk.level == "high":
                break
        if highest is None or not model:
            return highest
        return msgspec.structs.replace(highest, usage=usage, cost=cost, model=model)
