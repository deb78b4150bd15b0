"""What an agent holds open while conversations of it are: idle connections to its model, and its tools' services."""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from holdfast.llm.model import Model
from holdfast.tools import ToolManager


class Connections:
    """Counts an agent's open conversations: connections live from the first to the last. Thread-safe."""

    __slots__ = ("_llms", "_lock", "_tools", "open")

    def __init__(self, llm: Model, tools: ToolManager, mcp_servers: Mapping[str, Any] | None, *more: Model) -> None:
        self.open = 0
        self._llms = (llm, *more)
        self._tools = tools
        self._lock = threading.Lock()
        if mcp_servers:
            from holdfast.tools.mcp import MCPClient

            sources = MCPClient(mcp_servers).sources()
            if sources:
                tools.add_source(*sources)  # all or none

    def connect(self, names: Sequence[str] = ()) -> None:
        """Bring in the tools of all services that are not lazy, and of lazy ones those of these names, which a conversation had before; all at
        once. One that fails harms only itself, and the log says why."""
        self._tools.want(names)

    def opened(self, runtime: object | None = None) -> None:
        """A conversation began to use the agent; the folder of its `runtime` is what services may be told to work in."""
        with self._lock:
            self.open += 1
        self._tools.opened(runtime)

    @contextmanager
    def held(self) -> Generator[None]:
        """Within, the connections are open."""
        self.opened()
        try:
            self.connect()
            yield
        finally:
            self.closed()

    def closed(self, runtime: object | None = None) -> None:
        """A conversation is done with the agent; the last one closes what is open. It can be opened again."""
        with self._lock:
            self.open -= 1
            last = not self.open
        self._tools.closed(runtime)
        if last:
            for llm in self._llms:
                llm.close()
