"""Answers in a row without text or call."""

from __future__ import annotations

from typing import Any

from holdfast import events as ev
from holdfast.conversation.facts.reducer import FoldBefore, ReadEvent, Reducer
from holdfast.conversation.status import AT_REST

# Empty or cut-off answers in a row before a conversation counts as stuck. Two nudges may help; a
# third has never been seen to.
MAX_BLANK_ANSWERS = 3

# stop reasons of answers that are still to come, or that hooks denied
_NOT_BLANK = ("pause", "denied")


class BlankAnswers(Reducer, frozen=True):
    """The number of empty or cut-off answers in a row."""

    events = (ev.AssistantReplied, ev.StatusChanged)
    count: int = 0

    def feed(self, event: Any, fold: FoldBefore) -> BlankAnswers:
        if type(event) is ev.AssistantReplied:
            whole = event.text.strip() and event.stop_reason != "length"
            if not (event.calls or whole or event.stop_reason in _NOT_BLANK):
                return BlankAnswers(self.count + 1)
        elif event.status not in AT_REST:
            return self
        return BlankAnswers() if self.count else self

    @property
    def stuck(self) -> str:
        """The reason why the run is stuck, "" if it is not."""
        many = self.count >= MAX_BLANK_ANSWERS
        return f"{MAX_BLANK_ANSWERS} answers in a row were empty or cut off" if many else ""

    def checkpoint(self) -> dict[str, Any]:
        return {"blanks": self.count}

    @classmethod
    def restore(cls, checkpoint: ev.Checkpoint, read: ReadEvent) -> BlankAnswers:
        return cls(checkpoint.blanks)
