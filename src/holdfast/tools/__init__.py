"""Tools: what an agent can do, and the one manager behind which all of them stand."""

from holdfast.tools.context import Cancellation, ToolContext
from holdfast.tools.manager import ToolManager
from holdfast.tools.registry import ToolRegistry, register_tool
from holdfast.tools.tool import RetryPolicy, Tool, ToolAnnotations, tool

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
