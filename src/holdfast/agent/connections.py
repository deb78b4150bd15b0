"""Connections that stay open while an agent has conversations: to its models and to its tools'
services."""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from holdfast.llm.model import Model
from holdfast.tools import ToolManager


class Connections:
    """A counter of an agent's open conversations; connections live from the first to the last of
    them. Thread-safe."""

    __slots__ = ("_llms", "_lock", "_tools", "open")

    def __init__(
        self, llms: Sequence[Model], tools: ToolManager, mcp_servers: Mapping[str, Any]
    ) -> None:
        self.open = 0
        self._llms = llms
        self._tools = tools
        self._lock = threading.Lock()
        if mcp_servers:
            from holdfast.tools.mcp import MCPClient  # few agents have servers of their own

            tools.add_source(*MCPClient(mcp_servers).sources())  # all or none

    def connect(self, names: Sequence[str] = ()) -> None:
        """Load the tools of all services that are not lazy, all at the same time. Of lazy services,
        load the tools in `names`, which a conversation used before. A service that fails does not
        affect the others; the log has the reason."""
        self._tools.want(names)

    def opened(self, runtime: object | None = None) -> None:
        """Count one more conversation of the agent. Services may get the working directory of its
        `runtime` as their own."""
        with self._lock:
            self.open += 1
        self._tools.opened(runtime)

    @contextmanager
    def keep_open(self) -> Generator[None]:
        """Keep the connections open within a `with` block."""
        self.opened()
        try:
            self.connect()
            yield
        finally:
            self.closed()

    def closed(self, runtime: object | None = None) -> None:
        """Count one conversation less, and close all connections after the last one. The
        connections can be opened again."""
        with self._lock:
            self.open -= 1
            last = not self.open
        self._tools.closed(runtime)
        if last:
            for llm in self._llms:
                llm.close()
