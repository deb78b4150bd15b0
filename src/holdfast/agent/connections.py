"""What an agent holds open while conversations of it are: idle connections to its model, and its MCP servers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any

from holdfast.errors import ConfigurationError
from holdfast.llm.model import Model
from holdfast.tools import ToolManager

_log = logging.getLogger("holdfast")


class Connections:
    """Counts an agent's open conversations: connections live from the first to the last. Thread-safe."""

    __slots__ = ("_client", "_connected", "_connecting", "_llm", "_lock", "_tools", "open")

    def __init__(self, llm: Model, tools: ToolManager, mcp_servers: Mapping[str, Any] | None) -> None:
        self.open = 0
        self._llm = llm
        self._tools = tools
        self._lock = threading.Lock()
        self._connecting = threading.Lock()  # held while one thread connects; the others that need the tools wait for it
        self._connected = not mcp_servers
        self._client: Any = None
        if mcp_servers:
            from holdfast.tools.mcp import MCPClient

            self._client = MCPClient(mcp_servers)

    def connect(self) -> None:
        """Bring in the tools of the MCP servers, all at once; one that fails harms only itself, and the log says why."""
        if self._connected:
            return
        with self._connecting:
            if self._connected:
                return
            for tool in self._client.tools():
                if not self._tools.exists(tool.name):
                    try:
                        self._tools.register(tool)
                    except ConfigurationError as error:  # a remote tool never shadows a local one
                        _log.warning("a tool of an MCP server is left out: %s", error)
            self._connected = True

    def opened(self) -> None:
        """A conversation began to use the agent."""
        with self._lock:
            self.open += 1

    def closed(self) -> None:
        """A conversation is done with the agent; the last one closes what is open. It can be opened again."""
        with self._lock:
            self.open -= 1
            if self.open:
                return
            if self._client is not None:
                self._connected = False
        self._llm.close()
        if self._client is not None:
            self._client.close()
