"""The output of a run: the arguments of the tool `finish`."""

from __future__ import annotations

from typing import Any

from holdfast import events as ev
from holdfast.agent import damage
from holdfast.agent.output import FINISH, REPAIR, TEXT_INSTEAD, is_output
from holdfast.content import ToolResult
from holdfast.conversation.facts.reducer import FoldBefore, ReadEvent, Reducer
from holdfast.conversation.status import AT_REST
from holdfast.errors import OutputInvalid


class OutputFacts(Reducer, frozen=True):
    """The output, unless something followed it, and the rounds without a valid one.

    `seq` is that of the output's result, 0 for none. `failed` is the problem with the last answer's
    call of `finish`. `failures` counts the failed rounds of this run that the model was told of.
    """

    events = (ev.AssistantReplied, ev.MessageAdded, ev.StatusChanged, ev.DamagedEvent)
    tools = (FINISH,)
    value: Any = None
    seq: int = 0
    failed: str = ""
    failures: int = 0

    def feed(self, event: Any, fold: FoldBefore) -> OutputFacts:
        if type(event) is ev.AssistantReplied:  # the run goes on
            return OutputFacts(failures=self.failures) if self.seq or self.failed else self
        if type(event) is ev.ToolCallFinished:
            return self._after_call(event.seq, event.result)
        if type(event) is ev.MessageAdded and event.sender != "holdfast":
            return OutputFacts(failed=self.failed) if self.seq or self.failures else self
        if type(event) is ev.MessageAdded and event.about == REPAIR:
            return OutputFacts(self.value, self.seq, self.failed, self.failures + 1)
        if type(event) is ev.StatusChanged and event.status in AT_REST:
            # If invalid output ended the run, a resumed run first tells the model of the last
            # failure; that must not count as a new round.
            invalid = fold.error is not None and fold.error.error == OutputInvalid.__name__
            return OutputFacts(self.value, self.seq, self.failed, -1 if invalid else 0)
        if type(event) is ev.DamagedEvent and isinstance(damage.stand_in(event), ev.MessageAdded):
            return OutputFacts(failures=self.failures)
        return self

    def _after_call(self, seq: int, result: ToolResult) -> OutputFacts:
        """Return the facts after the result of a call of `finish`."""
        if is_output(FINISH, result):
            return OutputFacts(result.structured_content, seq, self.failed, self.failures)
        if result.is_error and not (
            result.error is not None and result.error.type in ("cancelled", "unknown")
        ):
            failed = result.text or "the call failed"
            return OutputFacts(self.value, self.seq, failed, self.failures)
        return self

    def problem(self, last: ev.AssistantReplied | None) -> str:
        """Return the problem that left the last answer without an output; "" if the answer is not
        complete or the model was already told that it was empty or cut off."""
        if last is None or last.calls or last.stop_reason == "pause":
            return self.failed
        return TEXT_INSTEAD

    def checkpoint(self) -> dict[str, Any]:
        return {
            "output_seq": self.seq,
            "output_failures": self.failures,
            "output_failed": self.failed,
        }

    @classmethod
    def restore(cls, checkpoint: ev.Checkpoint, read: ReadEvent) -> OutputFacts:
        seq, value = checkpoint.output_seq, None
        if seq and isinstance(event := read(seq), ev.ToolCallFinished):
            value = event.result.structured_content
        return cls(value, seq, checkpoint.output_failed, checkpoint.output_failures)
