"""Where tools come from that live elsewhere: the seam between `ToolManager` and the services (MCP
servers, A2A agents) that offer them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol, runtime_checkable

import msgspec

from holdfast.tools.tool import Tool

Kind = Literal["mcp", "a2a"]


class Health(msgspec.Struct, frozen=True):
    """How a service answered when asked: `ok`, after `seconds`; `detail` is what it said, or why it
    did not."""

    id: str
    ok: bool
    seconds: float = 0.0
    detail: str = ""


class Source(Protocol):
    """One remote service. Thread-safe; it holds at most one connection, opened at the first use and
    again after `close` or a crash."""

    @property
    def id(self) -> str:
        """Its name in this agent: 1 to 64 letters, digits, `_` or `-`. Its tools are named
        `{id}.{tool}`."""
        ...

    @property
    def kind(self) -> Kind: ...

    @property
    def lazy(self) -> bool:
        """Whether it is only asked for its tools when somebody names it."""
        ...

    def discover(self) -> list[Tool]:
        """Connect if need be, and ask for its tools: each call asks anew. Bounded in time by the
        service's own settings. Raises `ToolError`, whose message names the service and says what to
        do. A tool that cannot be used is left out, with a warning in the log."""
        ...

    def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed()`, on any thread and holding no lock, when the service says that its tools
        are no longer those it told."""
        ...

    def health(self, timeout: float) -> Health:
        """Ask whether it is there, within `timeout` seconds. Does not raise."""
        ...

    def close(self) -> None:
        """Let go of the connection, and end the process behind it. Idempotent; bounded in time."""
        ...


@runtime_checkable
class Rooted(Protocol):
    """A source that tells its service in which folders to work."""

    def use_folders(self, folders: Callable[[], Sequence[str]]) -> None:
        """Tell the service of what `folders()` returns then, unless its owner said otherwise."""
        ...

    def folders_changed(self) -> None:
        """`folders()` returns others now. Must not block."""
        ...
