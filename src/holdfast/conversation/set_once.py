"""Attributes that are set once. Assigning them again would have no effect on the conversation,
so it raises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class SetOnce:
    """A base whose `set_once` attributes cannot be assigned again. `set_once` maps each name to
    the advice for a caller that tries."""

    __slots__ = ()

    set_once: ClassVar[Mapping[str, str]] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.set_once and hasattr(self, name):
            raise AttributeError(
                f"{type(self).__name__}: {name!r} cannot be assigned. {self.set_once[name]}",
                name=name,
                obj=self,
            )
        object.__setattr__(self, name, value)
