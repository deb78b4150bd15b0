"""Readable stand-ins for damaged events.

The model learns that something is missing and that its content is unknown. A damaged message or
answer becomes a message of the loop, and a damaged result becomes a lost result. All readers of
a journal (the fold, the view, token counts, stuck detection) use the same stand-ins, so that
they agree.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast import events as ev
from holdfast.content import TextContent, ToolResult, Usage
from holdfast.tools.arguments import is_number
from holdfast.tools.json_values import as_list, as_object

ABOUT = "damaged"  # `MessageAdded.about` of a stand-in

_LOST_TEXT = "The result of this call is lost: its record was damaged."
LOST_RESULT = ToolResult.failure(_LOST_TEXT, "unknown", meta={"outcome": "unknown"})
_TEXTS = {
    "message": (
        "[A message stood here. Its record is damaged and cannot be read. If you need it, ask for"
        " it again.]"
    ),
    "assistant": (
        "[An answer of yours stood here. Its record is damaged and cannot be read. Calls that it"
        " made may have run, and their outcome is unknown: check what is there before you repeat"
        " any.]"
    ),
    "": (
        "[Something stood here whose record is damaged and cannot be read: a message, or an answer"
        " of yours. Calls that it made may have run, and their outcome is unknown: check what is"
        " there before you repeat any.]"
    ),
}


def stand_in(
    event: ev.DamagedEvent,
) -> ev.MessageAdded | ev.ToolCallFinished | ev.StatusChanged | None:
    """Return the stand-in of a damaged event, or None. An unreadable status becomes PAUSED, so that
    nothing runs without a caller's action."""
    kind = event.original_type
    place: dict[str, Any] = {"seq": event.seq, "id": event.id, "timestamp": event.timestamp}
    if kind in _TEXTS:
        content = (TextContent(_TEXTS[kind]),)
        usage, cost, model = usage_of(event)
        place |= {"usage": usage, "cost": cost, "model": model}
        return ev.MessageAdded(content=content, sender="holdfast", about=ABOUT, **place)
    if kind == "toolResult" and (call_id := call_of(event)):
        return ev.ToolCallFinished(call_id=call_id, result=LOST_RESULT, **place)
    if kind == "status":
        status = event.fields.get("status")
        status = status if isinstance(status, str) else "paused"
        return ev.StatusChanged(status=status, reason=ABOUT, **place)
    return None


def call_of(event: ev.DamagedEvent) -> str:
    """Return the call id of a damaged start, decision or result; "" if unreadable."""
    call_id = event.fields.get("callId")
    return call_id if isinstance(call_id, str) else ""


def usage_of(event: ev.DamagedEvent) -> tuple[Usage, float | None, str]:
    """Return the usage, the cost and the model of a damaged event, as far as they are readable."""
    fields = event.fields
    try:
        usage = msgspec.convert(fields.get("usage", {}), Usage)
    except (ValueError, TypeError):
        usage = Usage()
    raw_cost, model = fields.get("cost"), fields.get("model")
    cost = None if usage != Usage() else 0.0
    if is_number(raw_cost):
        cost = float(raw_cost)
    return usage, cost, model if isinstance(model, str) else ""


def client_tools(event: ev.DamagedEvent) -> tuple[str, ...]:
    """Return the names of the client-run tools of a damaged `AgentConfigured` event, as far as
    they are readable."""
    names: list[Any] = []
    for tool in map(as_object, as_list(event.fields.get("tools"))):
        if tool.get("executor") == "client":
            names += [tool.get("name"), tool.get("wireName")]
    return tuple([name for name in names if isinstance(name, str) and name])
