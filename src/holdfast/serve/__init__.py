"""An action space offered to others: `mcp` serves a `ToolManager` as an MCP server, `MCPEndpoint`
does it over HTTP beside other work."""

from __future__ import annotations

from holdfast.serve.serving import MCPEndpoint, mcp

__all__ = ["MCPEndpoint", "mcp"]
