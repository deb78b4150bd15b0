"""An MCP server with one tool, for tests of servers that an editor hands over."""

from holdfast.serve import mcp
from holdfast.tools import Tool, ToolManager


def shout(text: str) -> str:
    """Return the text in capitals."""
    return text.upper()


if __name__ == "__main__":
    mcp(ToolManager([Tool.from_function(shout)]))
