"""Condensations: what is left out so far, and what is still to be left out."""

from __future__ import annotations

from typing import Any

from holdfast import events as ev
from holdfast.agent.tokens import Sizes
from holdfast.conversation.facts.reducer import FoldBefore, ReadEvent, Reducer

# A condensation may leave a request larger than the trigger: nothing more can be left out. The next
# one waits until the request has grown by the trigger divided by this.
REGROWTH_DIVISOR = 10


class CondensationFacts(Reducer, frozen=True):
    """The events that are left out, and the condensation that is still to come.

    `condensed` is the seq up to which a model is shown a summary alone. `wanted` are the
    instructions of a requested condensation, None without a request.
    """

    events = (ev.HistoryCondensed,)
    condensed: int = 0
    wanted: str | None = None

    def feed(self, event: Any, fold: FoldBefore) -> CondensationFacts:
        until = 0 if event.so_far is None else event.so_far.seq
        return CondensationFacts(max(self.condensed, until), event.request)

    @classmethod
    def restore(cls, checkpoint: ev.Checkpoint, read: ReadEvent) -> CondensationFacts:
        return cls(checkpoint.seq)


def excess_tokens(sizes: Sizes | None, trigger: int) -> int:
    """Return the next request's tokens if it must be condensed, else 0.

    A request must be condensed from `trigger` tokens on. After a condensation that left it
    larger than that, it must first grow by a tenth of `trigger`.
    """
    if sizes is None or (tokens := sizes.tokens) < trigger:
        return 0
    return tokens if tokens - sizes.at_condensation >= max(1, trigger // REGROWTH_DIVISOR) else 0
