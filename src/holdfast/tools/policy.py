"""The declared behaviour of a tool: its effects on the world and the retries of a failed call."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from holdfast.tools.arguments import require


class ToolAnnotations(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The effects of a tool on the world, with MCP's defaults. The loop repeats calls after a crash
    only if the annotations permit it. A `read_only` tool changes nothing. A `destructive` tool may
    overwrite or delete. Repeating an `idempotent` tool has no further effect. An `open_world` tool
    reaches beyond the machine."""

    read_only: bool = False
    destructive: bool = True
    idempotent: bool = False
    open_world: bool = True

    @property
    def repeatable(self) -> bool:
        """True if a call with an unknown outcome may run again."""
        return self.read_only or self.idempotent


# The annotations of a tool that only reads from this machine.
LOCAL_READ = ToolAnnotations(read_only=True, destructive=False, idempotent=True, open_world=False)


class RetryPolicy(msgspec.Struct, frozen=True):
    """The number of retries of a failed call, and the wait (`delay` seconds) before each."""

    max_retries: int = 0
    backoff: Literal["none", "fixed", "exponential"] = "exponential"
    delay: float = 0.5

    def __post_init__(self) -> None:
        untyped: Any = self  # callers are not all typed
        whole = isinstance(untyped.max_retries, int) and untyped.max_retries >= 0
        seconds = isinstance(untyped.delay, int | float) and untyped.delay >= 0
        backoff_fits = untyped.backoff in ("none", "fixed", "exponential")
        require(
            "RetryPolicy",
            self,
            ("max_retries", whole, "a number from 0"),
            ("backoff", backoff_fits, "'none', 'fixed' or 'exponential'"),
            ("delay", seconds, "a number of seconds from 0"),
        )
