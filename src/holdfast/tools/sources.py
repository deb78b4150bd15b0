"""The interface between `ToolManager` and remote services (MCP servers, A2A agents)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from holdfast.tools.tool import Tool


class SourceHealth(msgspec.Struct, frozen=True):
    """The health of a service; `detail` is its answer or the failure."""

    id: str
    ok: bool
    seconds: float = 0.0
    detail: str = ""


class Source(Protocol):
    """One remote service with at most one connection, opened when used. Thread-safe."""

    @property
    def id(self) -> str:
        """The service's name: 1 to 64 letters, digits, `_` or `-`, and no dot."""
        ...

    @property
    def lazy(self) -> bool:
        """True if the service is asked for its tools only on demand."""
        ...

    def discover(self) -> list[Tool]:
        """Connect if needed and return the service's tools. Each call asks anew. The service's own
        settings bound the time. Raises `ToolError` with a message that names the service and the
        remedy. A tool that cannot be used is left out, with a warning in the log."""
        ...

    def watch(self, on_change: Callable[[], None]) -> None:
        """Call `on_change()` when the service's tools change, on any thread, holding no lock."""
        ...

    def health(self, timeout: float) -> SourceHealth:
        """Check the service within `timeout` seconds. Does not raise."""
        ...

    def close(self) -> None:
        """Close the connection and end the service's process. Idempotent; bounded in time."""
        ...


@runtime_checkable
class Rooted(Protocol):
    """A source that tells its service the folders to work in."""

    def use_folders(self, folders: Callable[[], Sequence[str]]) -> None:
        """Use `folders()` as the service's roots, unless its owner configured others."""
        ...

    def folders_changed(self) -> None:
        """Announce that `folders()` has changed. Must not block."""
        ...
