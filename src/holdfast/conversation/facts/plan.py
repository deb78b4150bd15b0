"""The plan of a conversation, its approval, and the place where a model is shown it."""

from __future__ import annotations

from typing import Any

from holdfast import events as ev
from holdfast.agent import damage, planning
from holdfast.conversation.facts.reducer import FoldBefore, ReadEvent, Reducer
from holdfast.tools.plans import PLAN


class PlanFacts(Reducer, frozen=True):
    """The current plan, None if there is none, and the seq of the last message that is not
    Holdfast's own."""

    events = (ev.MessageAdded, ev.HistoryCondensed, ev.DamagedEvent)
    tools = (PLAN,)
    plan: ev.Plan | None = None
    heard_seq: int = 0

    def feed(self, event: Any, fold: FoldBefore) -> PlanFacts:
        if type(event) is ev.ToolCallFinished:
            item, unheard = fold.open[event.call_id], self.heard_seq > fold.based_on
            plan = planning.after_result(
                self.plan, item.effective, event.result, item.approved, unheard
            )
            return PlanFacts(plan, self.heard_seq)
        if type(event) is ev.HistoryCondensed:
            plan = planning.after_condensation(self.plan, event)
            return self if plan is self.plan else PlanFacts(plan, self.heard_seq)
        heard = (
            event.sender != "holdfast"
            if type(event) is ev.MessageAdded
            else isinstance(damage.stand_in(event), ev.MessageAdded)
        )
        return PlanFacts(planning.after_message(self.plan), event.seq) if heard else self

    def checkpoint(self) -> dict[str, Any]:
        return {"plan": self.plan}

    @classmethod
    def restore(cls, checkpoint: ev.Checkpoint, read: ReadEvent) -> PlanFacts:
        return cls(checkpoint.plan)
