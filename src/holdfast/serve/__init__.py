"""MCP servers for a `ToolManager`: `mcp` blocks while it serves, `MCPEndpoint` serves over HTTP
in the background."""

from __future__ import annotations

from holdfast.serve.serving import MCPEndpoint, mcp

__all__ = ["MCPEndpoint", "mcp"]
