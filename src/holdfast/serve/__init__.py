"""Protocol doors: agents for clients of other protocols, and the tools of a `ToolManager` as an MCP
server. `mcp` blocks while it serves, `MCPEndpoint` serves over HTTP in the background. `a2a` makes
a server of an agent for A2A."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast.serve.serving import MCPEndpoint, mcp

if TYPE_CHECKING:
    from holdfast.serve.a2a_door import A2ADoor, CardKey, a2a

__all__ = ["A2ADoor", "CardKey", "MCPEndpoint", "a2a", "mcp"]

_DOORS = {"A2ADoor": "a2a_door", "CardKey": "a2a_door", "a2a": "a2a_door"}


def __getattr__(name: str) -> Any:
    if name not in _DOORS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"holdfast.serve.{_DOORS[name]}"), name)
