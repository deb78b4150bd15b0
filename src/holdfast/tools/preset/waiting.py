"""`wait_until`: a tool with which a model ends its run until a time."""

from __future__ import annotations

from datetime import timedelta

from holdfast.content import TextContent, ToolResult
from holdfast.errors import ConfigurationError, ToolValidationError
from holdfast.timers import WAIT
from holdfast.tools.context import ToolContext
from holdfast.tools.policy import ToolAnnotations
from holdfast.tools.registry import ToolRegistry, register_preset, register_tool
from holdfast.tools.tool import Tool


def wait_until(
    context: ToolContext,
    note: str,
    when: str | None = None,
    minutes: float | None = None,
    timezone: str = "",
) -> ToolResult:
    """Stop working until a time, when nothing can be done before it: a build runs, an answer is
    expected, work is due tomorrow. You are woken by a message at that time, or earlier by any other
    message. There is one such time; a further call replaces it. Give either `when` or `minutes`.

    Args:
        note: What to do then. The message repeats it to you.
        when: The time, such as 2026-11-23T09:00+01:00, or without an offset, by `timezone`.
        minutes: Minutes from now.
        timezone: The time zone of `when`, such as Europe/Berlin.
    """
    if (when is None) == (minutes is None):
        raise ToolValidationError("give either when or minutes.")
    try:
        at = timedelta(minutes=minutes) if minutes is not None else when or ""
        due = context.wake_at(at, note, timezone=timezone, id=WAIT)
    except (ConfigurationError, OverflowError) as error:
        raise ToolValidationError(str(error)) from error
    text = f"You are woken at {due.isoformat(' ', 'seconds')}. This run ends now."
    return ToolResult((TextContent(text),), structured_content={"due": due.isoformat()})


def make_wait_until() -> Tool:
    """Return the tool `wait_until`."""
    # Setting the same time again changes nothing, so it may be repeated after a crash.
    annotations = ToolAnnotations(destructive=False, idempotent=True, open_world=False)
    return Tool.from_function(wait_until, annotations=annotations, category="waiting")


def register_waiting_tools(registry: ToolRegistry | None = None) -> list[Tool]:
    """Return the tool `wait_until` in a list, for `Agent(tools=...)`. With a `registry`, register
    it there too."""
    return register_preset(__name__, registry)


register_tool("wait_until", make_wait_until)
