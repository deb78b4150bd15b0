"""How far one run may go before it stops by itself."""

from __future__ import annotations

import msgspec

from holdfast.errors import ConfigurationError


class Limits(msgspec.Struct, frozen=True):
    """Bounds of one run (from a message until the agent rests): model calls, tokens in and out, US dollars, seconds
    at work (pauses and waits for a decision do not count). None: no bound.

    Raises `ConfigurationError` for a bound that is not a number above 0.
    """

    steps: int | None = 500
    tokens: int | None = None
    cost: float | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (number and value > 0):
                raise ConfigurationError(f"Limits: {name} takes a number above 0 or None, not {value!r}.")
