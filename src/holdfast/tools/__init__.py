"""The tools of an agent, and the `ToolManager` through which an agent reaches all of them."""

from holdfast.tools.context import Cancellation, ToolContext
from holdfast.tools.manager import ToolManager
from holdfast.tools.policy import RetryPolicy, ToolAnnotations
from holdfast.tools.registry import ToolRegistry, register_tool
from holdfast.tools.tool import Tool, tool

__all__ = [
    "Cancellation",
    "RetryPolicy",
    "Tool",
    "ToolAnnotations",
    "ToolContext",
    "ToolManager",
    "ToolRegistry",
    "register_tool",
    "tool",
]
