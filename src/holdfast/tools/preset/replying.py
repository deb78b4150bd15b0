"""`reply_only`: a tool with which a model says that a message asks for no work.

Behind A2A the answer to such a message is a message, and no task.
"""

from __future__ import annotations

from holdfast.tools.policy import LOCAL_READ
from holdfast.tools.tool import tool


@tool(annotations=LOCAL_READ, category="offering")
def reply_only() -> str:
    """Say that the last message asks for no work: it is a greeting, or a question about what you
    can do. Call this before you answer, and only if you call nothing else. Then answer."""
    return "Answer now."


REPLY_ONLY = reply_only.name
