"""A conversation's state: the fold of its journal, and the snapshot of it that users hold."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

from holdfast import events as ev
from holdfast.content import ToolCall, Usage
from holdfast.errors import ConfigurationError


class ConversationStatus(StrEnum):
    """Where a conversation stands. The transition table is in `docs/architecture.md`."""

    IDLE = "idle"
    RUNNING = "running"
    WAITING_FOR_CONFIRMATION = "waiting_for_confirmation"
    PAUSED = "paused"
    FINISHED = "finished"
    STUCK = "stuck"
    ERROR = "error"
    CLOSED = "closed"


# A message to a conversation at rest begins a new run.
AT_REST = frozenset((ConversationStatus.IDLE, ConversationStatus.FINISHED, ConversationStatus.STUCK, ConversationStatus.ERROR))


class OpenCall:
    """A call without a result: `attempt` is 0 until it was started."""

    __slots__ = ("attempt", "call")

    def __init__(self, call: ToolCall) -> None:
        self.call = call
        self.attempt = 0


class Fold:
    """What the loop needs to know of a journal, kept up to date event by event. One owner: the journal, under its lock."""

    __slots__ = (
        "agent", "assistant", "based_on", "blanks", "cost", "error", "last_seq", "last_time", "message_seq",
        "open", "run_cost", "run_since", "run_steps", "run_usage", "status", "status_seq", "steps", "title", "usage",
    )  # fmt: skip

    def __init__(self) -> None:
        self.status = ConversationStatus.IDLE
        self.status_seq = 0
        self.last_seq = 0
        self.last_time: datetime | None = None
        self.message_seq = 0
        self.based_on = 0
        self.agent: ev.Agent | None = None
        self.assistant: ev.Assistant | None = None
        self.open: dict[str, OpenCall] = {}
        self.blanks = 0  # answers in a row without text or call
        self.error: ev.Error | None = None
        self.title = ""
        self.steps = 0
        self.usage = Usage()
        self.cost = 0.0
        self.run_since: datetime | None = None
        self.run_steps = 0
        self.run_usage = Usage()
        self.run_cost = 0.0

    def apply(self, event: ev.AnyEvent) -> None:
        """Take in the journal's next event."""
        self.last_seq = event.seq
        self.last_time = event.timestamp
        match event:
            case ev.ToolCallStarted():
                if (call := self.open.get(event.call_id)) is not None:
                    call.attempt = event.attempt
            case ev.ToolResult():
                self.open.pop(event.call_id, None)
            case ev.Assistant():
                self._answered(event)
            case ev.Message():
                self.message_seq = event.seq
                if not self.title:
                    self.title = event.text.strip().split("\n", 1)[0][:80]
            case ev.Status():
                self._became(event)
            case ev.Agent():
                self.agent = event
            case ev.Error():
                self.error = event
            case _:
                pass

    def _answered(self, event: ev.Assistant) -> None:
        self.assistant = event
        self.based_on = event.based_on
        self.open = {call.id: OpenCall(call) for call in event.calls}
        self.blanks = 0 if event.calls or (event.text.strip() and event.stop_reason != "length") else self.blanks + 1
        self.steps += 1
        self.usage += event.usage
        self.cost += event.cost or 0.0
        self.run_steps += 1
        self.run_usage += event.usage
        self.run_cost += event.cost or 0.0

    def _became(self, event: ev.Status) -> None:
        try:
            status = ConversationStatus(event.status)
        except ValueError:
            return  # a newer version's status; what it means to us is unknown
        if status in AT_REST:  # the run is over, and the next one counts anew, also if a pause comes first
            self.run_since = None
            self.run_steps = 0
            self.run_usage = Usage()
            self.run_cost = 0.0
            self.blanks = 0
        elif status is ConversationStatus.RUNNING:
            self.run_since = self.run_since or event.timestamp
            self.error = None
        self.status = status
        self.status_seq = event.seq

    @property
    def owed(self) -> bool:
        """Whether the model has something to answer: a message it has not seen, or the results of its last calls."""
        return self.message_seq > self.based_on or (self.assistant is not None and bool(self.assistant.calls) and not self.open)

    @property
    def asked(self) -> bool:
        """Whether a message came since the conversation came to rest."""
        return self.status in AT_REST and self.message_seq > max(self.status_seq, self.based_on)


def fold(journal: Sequence[ev.AnyEvent]) -> Fold:
    """The fold of a whole journal."""
    found = Fold()
    for event in journal:
        found.apply(event)
    return found


class ConversationState:
    """A snapshot of a conversation, serializable whole: `id`, `status` and `events`; everything else is a fold over the events.

    `Conversation.from_state(state, agent)` makes a conversation of it again, with the same or another agent, model or toolset.
    """

    __slots__ = ("_fold", "events", "id", "status")

    def __init__(self, id: str, events: Sequence[ev.AnyEvent] = (), status: ConversationStatus | None = None) -> None:
        self.id = id
        self.events: tuple[ev.AnyEvent, ...] = tuple(events)
        self._fold: Fold | None = None
        self.status: ConversationStatus = self._folded.status if status is None else status

    @property
    def _folded(self) -> Fold:
        if self._fold is None:
            self._fold = fold(self.events)
        return self._fold

    @property
    def last_seq(self) -> int:
        """The seq of the last event, 0 for none."""
        return self.events[-1].seq if self.events else 0

    @property
    def answer(self) -> str:
        """The text of the model's last answer, "" for none."""
        last = self._folded.assistant
        return "" if last is None else last.text

    @property
    def error(self) -> ev.Error | None:
        """What the last run stopped on, None if it did not."""
        return self._folded.error

    @property
    def usage(self) -> Usage:
        """Tokens of all model calls."""
        return self._folded.usage

    @property
    def steps(self) -> int:
        """The number of model calls that were answered."""
        return self._folded.steps

    @property
    def pending_calls(self) -> tuple[ToolCall, ...]:
        """Calls of the last answer that have no result yet."""
        return tuple(item.call for item in self._folded.open.values())

    def to_json(self) -> bytes:
        """`{"version": 1, "id": ..., "status": ..., "events": [...]}` as UTF-8 bytes."""
        raws = [msgspec.Raw(ev.encode(event)) for event in self.events]
        return msgspec.json.encode({"version": 1, "id": self.id, "status": self.status.value, "events": raws})

    @classmethod
    def from_json(cls, data: bytes | str) -> ConversationState:
        """The inverse of `to_json`. Raises `ConfigurationError` (a `ValueError`) on anything else."""
        try:
            form = msgspec.json.decode(data, type=_Form)
            events = [ev.decode(bytes(raw)) for raw in form.events]
            status = ConversationStatus(form.status)
        except ValueError as error:
            raise ConfigurationError(f"This is not a conversation's state: {error}") from error
        if form.version != 1:
            raise ConfigurationError(f"This state has version {form.version}; this Holdfast reads version 1.")
        for expected, event in enumerate(events, 1):
            if event.seq != expected:
                raise ConfigurationError(f"This state's events are not dense: event {expected} has seq {event.seq}.")
        return cls(form.id, events, status)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConversationState) and (self.id, self.status, self.events) == (other.id, other.status, other.events)

    __hash__: Any = None

    def __repr__(self) -> str:
        return f"ConversationState(id={self.id!r}, status={self.status.value!r}, events={len(self.events)})"


class _Form(msgspec.Struct):
    version: int
    id: str
    status: str
    events: list[msgspec.Raw]
