"""Facts that a journal holds about delegated children and sent messages."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, cast

import msgspec

from holdfast import events as ev
from holdfast.agent.delegation import CHILD, CHILDREN

STOPPED = "delegates:stopped"
"""The `about` of a `Note` that lists, in `details["children"]`, the children that an interrupt
stopped with their parent."""
RESUMED = "delegates:resumed"
"""The `about` of a `Note` that lists the stopped children that resumed with their parent."""


class DelegatedChild(msgspec.Struct):
    """A child that was given work.

    `background` is True if the call did not wait for it. `known` is the seq of the child's last
    event whose outcome the model knows. `detached` is True if the child outlives its parent.
    """

    agent: str
    background: bool
    known: int = 0
    detached: bool = False
    stopped: bool = False  # stopped by an interrupt of its parent, with which it resumes


def children_of(parent: str, events: Sequence[ev.AnyEvent]) -> dict[str, DelegatedChild]:
    """Return the delegated children in a journal by id.

    The results of calls say which children were begun, whatever the calls' arguments were.
    """
    found: dict[str, DelegatedChild] = {}
    for event in events:
        match event:
            case ev.ToolResult():
                child, id = _child_of(event), f"{parent}.{event.call_id}"
                # otherwise it belongs to the conversation that this one was forked from
                if child.get("id") == id:
                    found[id] = DelegatedChild(
                        str(child.get("agent", "")), child.get("background") is True
                    )
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
    """Return an event's number; 0 for text that is not one, since ids and metas may hold
    anything."""
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0


def _listed(value: Any) -> list[dict[str, Any]]:
    return (
        [one for one in cast("list[Any]", value) if isinstance(one, dict)]
        if isinstance(value, list | tuple)
        else []
    )


def ids_of(arguments: dict[str, Any]) -> tuple[str, ...]:
    """Return the children that a call of `delegate_collect` waits for; an empty tuple means all."""
    ids = arguments.get("ids")
    return (
        (ids,)
        if isinstance(ids, str)
        else tuple(map(str, cast("list[Any]", ids)))
        if isinstance(ids, list)
        else ()
    )


def sends(events: Sequence[ev.AnyEvent]) -> list[datetime]:
    """Return the times at which a conversation sent messages to others."""
    calls: set[str] = set()  # ids of the last answer's `send_to` calls
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
    """Return the time of the user's last message."""
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
