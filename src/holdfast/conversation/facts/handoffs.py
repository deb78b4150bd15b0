"""A handoff that is still to be carried out."""

from __future__ import annotations

from typing import Any

from holdfast import events as ev
from holdfast.agent.handoffs import TOOL, handed_to
from holdfast.conversation.facts.reducer import FoldBefore, ReadEvent, Reducer


class HandoffFacts(Reducer, frozen=True):
    """The name of the agent that is to take over: "" for the first one, None for nobody."""

    events = (ev.AgentConfigured,)
    tools = (TOOL,)
    target: str | None = None

    def feed(self, event: Any, fold: FoldBefore) -> HandoffFacts:
        if type(event) is ev.AgentConfigured:
            return self if self.target is None else HandoffFacts()
        return HandoffFacts(handed_to(event.result)) if self.target is None else self

    def checkpoint(self) -> dict[str, Any]:
        return {"handoff": self.target}

    @classmethod
    def restore(cls, checkpoint: ev.Checkpoint, read: ReadEvent) -> HandoffFacts:
        return cls(checkpoint.handoff)
