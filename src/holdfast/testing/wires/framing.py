"""Splitting of a recorded stream into events: server-sent events, or one JSON value per line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec


class StreamEvent(msgspec.Struct, frozen=True):
    """One event of a stream. `value` is the JSON value of `data`, or None if `data` is not
    JSON."""

    data: str
    fields: tuple[str, ...] = ()  # the other lines of a server-sent event, such as `event: ping`
    value: Any = None


class Framing(msgspec.Struct, frozen=True):
    """The events of one stream. `is_sse` tells server-sent events from JSON lines."""

    events: tuple[StreamEvent, ...]
    is_sse: bool

    @classmethod
    def of(cls, text: str) -> Framing:
        """Return the events of a stream's text."""
        lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        if not any(line.startswith("data:") for line in lines):
            return cls(tuple([_event(line, ()) for line in lines if line.strip()]), False)
        events: list[StreamEvent] = []
        data: list[str] = []
        fields: list[str] = []
        for line in [*lines, ""]:
            if line.startswith("data:"):
                data.append(line[5:].removeprefix(" "))
            elif line:
                fields.append(line)
            elif data:
                events.append(_event("\n".join(data), tuple(fields)))
                data, fields = [], []
        return cls(tuple(events), True)

    def render(self, events: Sequence[StreamEvent] | None = None, end: str = "\n") -> bytes:
        """Return the text of `events` (None: all events), with `end` as the line end."""
        lines: list[str] = []
        for event in self.events if events is None else events:
            if self.is_sse:
                data = [f"data: {line}" for line in event.data.split("\n")]
                lines += [*event.fields, *data, ""]
            else:
                lines.append(event.data)
        return "".join(line + end for line in lines).encode("utf-8", "surrogatepass")

    def replaced(self, position: int, *events: StreamEvent) -> list[StreamEvent]:
        """Return the events with `events` in place of the one at `position`."""
        return [*self.events[:position], *events, *self.events[position + 1 :]]


def _event(data: str, fields: tuple[str, ...]) -> StreamEvent:
    try:
        return StreamEvent(data, fields, msgspec.json.decode(data))
    except msgspec.DecodeError:
        return StreamEvent(data, fields)
