"""Attributes that are set once. Assigning them again would have no effect on the conversation,
so it raises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class FixedAttributes:
    """A base whose `fixed` attributes cannot be assigned again. `fixed` maps each name to
    the advice for a caller that tries."""

    __slots__ = ()

    fixed: ClassVar[Mapping[str, str]] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.fixed and hasattr(self, name):
            raise AttributeError(
                f"{type(self).__name__}: {name!r} cannot be assigned. {self.fixed[name]}",
                name=name,
                obj=self,
            )
        object.__setattr__(self, name, value)
