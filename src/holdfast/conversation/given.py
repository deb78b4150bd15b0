"""What a journal tells of the children that its conversation gave work, and of what it sent to
others."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, cast

import msgspec

from holdfast import events as ev
from holdfast.agent.delegation import CHILD, CHILDREN

STOPPED = "delegates:stopped"
"""What a `Note` is about that names the children which an interrupt stopped with their parent, in
`details["children"]`."""
RESUMED = "delegates:resumed"
"""The same for those that went on with it."""


class Given(msgspec.Struct):
    """A child that was given work: its agent, whether the call went on, up to which of its events
    the model knows what it came to, and whether it outlives its parent."""

    agent: str
    background: bool
    known: int = 0
    detached: bool = False
    stopped: bool = False  # by an interrupt of its parent, with which it goes on


def children_of(parent: str, events: Sequence[ev.AnyEvent]) -> dict[str, Given]:
    """The children that a journal tells of: the results of calls say what was begun, whatever their
    arguments looked like."""
    found: dict[str, Given] = {}
    for event in events:
        match event:
            case ev.ToolResult():
                child, id = _child_of(event), f"{parent}.{event.call_id}"
                # else it is that of the conversation that this one was forked from
                if child.get("id") == id:
                    found[id] = Given(str(child.get("agent", "")), child.get("background") is True)
                for one in _listed(event.result.meta.get(CHILDREN)):
                    if one.get("collected") and one.get("id") in found:
                        found[one["id"]].known = _number(one.get("seq"))
            case ev.Message() if event.sender in found and event.id.startswith(f"{event.sender}@"):
                found[event.sender].known = (
                    _number(event.id.rpartition("@")[2]) or found[event.sender].known
                )
            case ev.Note() if event.about in (STOPPED, RESUMED):
                for id in cast("Sequence[Any]", event.details.get("children") or ()):
                    if id in found:
                        found[id].stopped = event.about == STOPPED
            case _:
                pass
    return found


def _number(value: Any) -> int:
    """An event's number, 0 for what is none: ids and metas are anybody's."""
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0


def _listed(value: Any) -> list[dict[str, Any]]:
    return (
        [one for one in cast("list[Any]", value) if isinstance(one, dict)]
        if isinstance(value, list | tuple)
        else []
    )


def ids_of(arguments: dict[str, Any]) -> tuple[str, ...]:
    """The children that a call of `delegate_collect` waits for; none for all."""
    ids = arguments.get("ids")
    return (
        (ids,)
        if isinstance(ids, str)
        else tuple(map(str, cast("list[Any]", ids)))
        if isinstance(ids, list)
        else ()
    )


def sends(events: Sequence[ev.AnyEvent]) -> list[datetime]:
    """When a conversation sent to others."""
    calls: set[str] = set()  # of the last answer
    found: list[datetime] = []
    for event in events:
        if isinstance(event, ev.Assistant):
            calls = {call.id for call in event.calls if call.name == "send_to"}
        elif (
            isinstance(event, ev.ToolResult)
            and event.call_id in calls
            and not event.result.is_error
        ):
            found.append(event.timestamp)
    return found


def last_word(events: Sequence[ev.AnyEvent]) -> datetime | None:
    """When the user last said something."""
    return next(
        (
            event.timestamp
            for event in reversed(events)
            if isinstance(event, ev.Message) and event.sender == "user"
        ),
        None,
    )


def _child_of(event: ev.ToolResult) -> dict[str, Any]:
    child = event.result.meta.get(CHILD)
    return cast("dict[str, Any]", child) if isinstance(child, dict) else {}
