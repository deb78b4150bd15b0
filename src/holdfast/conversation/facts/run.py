"""The counters of the run in progress, which its limits bound."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from holdfast import events as ev
from holdfast.agent.limits import Limits
from holdfast.content import Usage
from holdfast.conversation.facts.reducer import FoldBefore, ReadEvent, Reducer
from holdfast.conversation.status import AT_REST, STATUSES, ConversationStatus


class RunCounters(Reducer, frozen=True):
    """The counters of a run; the next one counts from zero, even after a pause.

    `since` is the start of its current work. `spent` are the seconds of work before a pause or a
    wait for a decision. `cost` is in US dollars, of the calls with a known price.
    """

    events = (ev.StatusChanged,)
    since: datetime | None = None
    spent: float = 0.0
    steps: int = 0
    tokens: int = 0
    cost: float = 0.0

    def feed(self, event: Any, fold: FoldBefore) -> RunCounters:
        if event.status in AT_REST:
            return RunCounters()
        if event.status == ConversationStatus.RUNNING:
            since = self.since or event.timestamp
            return self if since is self.since else msgspec.structs.replace(self, since=since)
        if self.since is None or event.status not in STATUSES:
            return self
        spent = self.spent + (event.timestamp - self.since).total_seconds()
        return msgspec.structs.replace(self, since=None, spent=spent)

    def add(self, usage: Usage, cost: float | None, steps: int = 0) -> RunCounters:
        """Return the counters after a model call, which may be a step."""
        tokens = self.tokens + usage.input_tokens + usage.output_tokens
        return RunCounters(
            self.since, self.spent, self.steps + steps, tokens, self.cost + (cost or 0.0)
        )

    def reached(self, limits: Limits, now: datetime | None) -> tuple[str, float, float] | None:
        """Return the kind, the value and the bound of a limit that is reached, None for none."""
        if limits.steps is not None and self.steps >= limits.steps:
            return "steps", self.steps, limits.steps
        if limits.tokens is not None and self.tokens >= limits.tokens:
            return "tokens", self.tokens, limits.tokens
        if limits.cost is not None and self.cost >= limits.cost:
            return "cost", self.cost, limits.cost
        if limits.seconds is not None and self.since is not None and now is not None:
            spent = self.spent + (now - self.since).total_seconds()
            if spent >= limits.seconds:
                return "seconds", spent, limits.seconds
        return None

    def checkpoint(self) -> dict[str, Any]:
        return {
            "run_since": self.since,
            "run_steps": self.steps,
            "run_tokens": self.tokens,
            "run_cost": self.cost,
            "run_spent": self.spent,
        }

    @classmethod
    def restore(cls, checkpoint: ev.Checkpoint, read: ReadEvent) -> RunCounters:
        return cls(
            checkpoint.run_since,
            checkpoint.run_spent,
            checkpoint.run_steps,
            checkpoint.run_tokens,
            checkpoint.run_cost,
        )
