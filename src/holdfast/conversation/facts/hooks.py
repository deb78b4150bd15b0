"""Denials of hooks in a row."""

from __future__ import annotations

from typing import Any

from holdfast import events as ev
from holdfast.conversation.facts.reducer import FoldBefore, ReadEvent, Reducer
from holdfast.conversation.status import AT_REST


class HookCounts(Reducer, frozen=True):
    """Answers in a row that hooks denied, and the times that hooks kept the run from finishing,
    since its begin or the last message."""

    events = (ev.AssistantReplied, ev.MessageAdded, ev.StatusChanged)
    denials: int = 0
    stops: int = 0

    def feed(self, event: Any, fold: FoldBefore) -> HookCounts:
        denials, stops = self.denials, self.stops
        if type(event) is ev.AssistantReplied:
            denials = denials + 1 if event.stop_reason == "denied" else 0
        elif type(event) is ev.MessageAdded:
            stops = (0 if event.sender != "holdfast" else stops) + event.about.endswith("@stop")
        elif event.status in AT_REST:
            denials = stops = 0
        same = denials == self.denials and stops == self.stops
        return self if same else HookCounts(denials, stops)

    def checkpoint(self) -> dict[str, Any]:
        return {"stops": self.stops, "denials": self.denials}

    @classmethod
    def restore(cls, checkpoint: ev.Checkpoint, read: ReadEvent) -> HookCounts:
        return cls(checkpoint.denials, checkpoint.stops)
