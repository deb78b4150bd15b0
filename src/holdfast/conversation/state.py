"""`ConversationState`: the snapshot of a conversation that users hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from holdfast import events as ev
from holdfast.content import Data, ToolCall, Usage, known_cost
from holdfast.conversation.fold import Fold, OpenCall, fold
from holdfast.conversation.status import AT_REST, ConversationStatus
from holdfast.errors import ConfigurationError, RunFailed
from holdfast.nesting import MAX_DOCUMENT_DEPTH, too_deep
from holdfast.timers import Timer
from holdfast.tools.plans import step_texts

__all__ = [
    "AT_REST",
    "CallOffer",
    "ConversationState",
    "ConversationStatus",
    "Fold",
    "OpenCall",
    "PendingConfirmation",
    "fold",
]


class PendingConfirmation(Data, frozen=True):
    """A call that waits for `approve` or `reject`.

    `reason` says why. An approval is bound to `arguments_hash`. `risk` is "" if no analyzer
    judged it.
    """

    call: ToolCall
    reason: str
    arguments_hash: str
    risk: str = ""


class CallOffer(Data, frozen=True):
    """A call for a client to run, with its effective arguments, and the `runner` that claimed it
    ("" for none)."""

    call: ToolCall
    runner: str = ""


_HOW_TO_GO_ON = {
    ConversationStatus.RUNNING: "wait() blocks until it rests.",
    ConversationStatus.PAUSED: "resume() continues the run.",
    ConversationStatus.STUCK: "Send a message that helps the model, or resume().",
    ConversationStatus.WAITING_FOR_CONFIRMATION: (
        "Decide its calls (state.pending_confirmations) with approve() or reject()."
    ),
    ConversationStatus.ERROR: "resume() tries again.",
    ConversationStatus.CLOSED: "Open it again with Conversation(agent, store, id=...).",
}


class ConversationState:
    """A snapshot of a conversation that serializes completely: `id`, `status` and `events`.
    Everything else is a fold over the events.

    `Conversation.from_state(state, agent)` makes a conversation of it again, with the same or
    another agent, model or toolset.
    """

    __slots__ = ("_events", "_fold", "_load", "id", "status")

    def __init__(
        self, id: str, events: Sequence[ev.AnyEvent] = (), status: ConversationStatus | None = None
    ) -> None:
        self.id = id
        self._events: tuple[ev.AnyEvent, ...] | None = tuple(events)
        self._load: Callable[[int], tuple[ev.AnyEvent, ...]] | None = None
        self._fold: Fold | None = None
        self.status: ConversationStatus = self._folded.status if status is None else status

    @classmethod
    def of(
        cls,
        id: str,
        status: ConversationStatus,
        folded: Fold,
        load: Callable[[int], tuple[ev.AnyEvent, ...]],
    ) -> ConversationState:
        """Return a state whose fold is known. `load(last_seq)` loads its events when they are
        first needed."""
        state = cls(id, (), status)
        state._fold, state._events, state._load = folded, None, load
        return state

    @property
    def events(self) -> tuple[ev.AnyEvent, ...]:
        """All events so far, in order."""
        if self._events is None:
            assert self._fold is not None
            assert self._load is not None
            self._events, self._load = self._load(self._fold.last_seq), None
        return self._events

    @property
    def _folded(self) -> Fold:
        if self._fold is None:
            self._fold = fold(self.events)
        return self._fold

    @property
    def last_seq(self) -> int:
        """The seq of the last event, 0 for none."""
        return self._folded.last_seq

    @property
    def answer(self) -> str:
        """The text of the model's last answer, without its commentary; "" for none."""
        last = self._folded.assistant
        return "" if last is None else last.final_text

    @property
    def output(self) -> Any:
        """The last run's output as a JSON value, if the agent has an `output_type`, or None."""
        return self._folded.output.value

    @property
    def error(self) -> ev.ErrorRecorded | None:
        """The error that ended the last run, None if it did not end with one."""
        return self._folded.error

    def raise_for_status(self) -> ConversationState:
        """Return this state if its conversation is finished or idle; raise `RunFailed` otherwise,
        with the reason and how to go on.

        Example:
            answer = conversation.run().raise_for_status().answer
        """
        status, error = self.status, self.error
        if status in (ConversationStatus.FINISHED, ConversationStatus.IDLE):
            return self
        if status is ConversationStatus.ERROR and error is not None:
            message = (
                f"stopped on {error.error}: {error.message.rstrip('.')}. resume() tries again."
            )
        else:
            message = f"is {status.value}. {_HOW_TO_GO_ON[status]}"
        raise RunFailed(
            f"Conversation {self.id!r} {message}",
            status.value,
            "" if error is None else error.error,
        )

    @property
    def usage(self) -> Usage:
        """Tokens of all model calls."""
        return self._folded.usage

    @property
    def cost(self) -> float | None:
        """The cost of all model calls in US dollars: the prices that providers state, else list
        prices; None if none is known. See `unpriced`."""
        return known_cost(self._folded.cost, self._folded.unpriced)

    @property
    def unpriced(self) -> int:
        """The number of model calls whose price is unknown; `cost` does not include them."""
        return self._folded.unpriced

    @property
    def steps(self) -> int:
        """The number of model calls that returned an answer."""
        return self._folded.steps

    @property
    def plan(self) -> tuple[ev.PlanStep, ...]:
        """The steps of the current plan: the arguments of the last call of the tool `plan`;
        empty if it was never called."""
        return self._folded.plan

    @property
    def plan_approved(self) -> bool:
        """True if the user approved the current plan (`Agent(planning="first")`) and has asked
        for nothing more since it was finished."""
        plan = self._folded.planning.plan
        return plan is not None and bool(plan.approved) and plan.approved == step_texts(plan.steps)

    @property
    def title(self) -> str:
        """The title: the one that was set, else the first line of the first message."""
        return self._folded.title

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags, in the order in which they were added."""
        return self._folded.labelled.labels.tags

    @property
    def timers(self) -> tuple[Timer, ...]:
        """The timers that are set, the earliest first."""
        return self._folded.timers.listed

    @property
    def pending_calls(self) -> tuple[ToolCall, ...]:
        """Calls of the last answer that have no result yet."""
        return tuple(item.call for item in self._folded.open.values())

    @property
    def offers(self) -> tuple[CallOffer, ...]:
        """Calls that a client has claimed or may claim now (`commands.Claim`): on their turn, and
        without an open decision."""
        return tuple(CallOffer(item.effective, item.runner) for item in self._folded.offers)

    @property
    def pending_confirmations(self) -> tuple[PendingConfirmation, ...]:
        """Calls that wait for an approval or a rejection."""
        return tuple(
            PendingConfirmation(item.call, item.ask_reason, item.call.arguments_hash, item.risk)
            for item in self._folded.open.values()
            if item.ask_reason is not None
        )

    @property
    def pending_questions(self) -> tuple[tuple[str, ev.Question], ...]:
        """Questions of running calls to the user (`Conversation.answer`, `decline`), each with
        the id of its call."""
        return tuple(
            (call_id, question)
            for call_id, item in self._folded.open.items()
            for question in item.questions
        )

    def at(self, seq: int) -> ConversationState:
        """Return the state right after event `seq`; 0 is before the first event. Raises
        `ConfigurationError` for a seq that does not exist."""
        if not isinstance(seq, int) or not 0 <= seq <= len(self.events):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
            raise ConfigurationError(f"at takes a seq from 0 to {len(self.events)}, not {seq!r}.")
        return ConversationState(self.id, self.events[:seq])

    def to_json(self) -> bytes:
        """Return `{"version": 1, "id": ..., "status": ..., "events": [...]}` as UTF-8 bytes."""
        raws = [msgspec.Raw(ev.encode(event)) for event in self.events]
        return msgspec.json.encode(
            {"version": 1, "id": self.id, "status": self.status.value, "events": raws}
        )

    @classmethod
    def from_json(cls, data: bytes | str) -> ConversationState:
        """Return the state that `to_json` wrote. Raises `ConfigurationError` (a `ValueError`) on
        anything else."""
        if too_deep(data, MAX_DOCUMENT_DEPTH):
            raise ConfigurationError(
                f"This is not a conversation's state: it is nested deeper than {MAX_DOCUMENT_DEPTH}"
                " levels."
            )
        try:
            form = msgspec.json.decode(data, type=_Form)
            events = [ev.decode(bytes(raw)) for raw in form.events]
            status = ConversationStatus(form.status)
        except ValueError as error:
            raise ConfigurationError(f"This is not a conversation's state: {error}") from error
        if form.version != 1:
            raise ConfigurationError(
                f"This state has version {form.version}; this Holdfast reads version 1."
            )
        for expected, event in enumerate(events, 1):
            if event.seq != expected:
                raise ConfigurationError(
                    f"This state's events are not dense: event {expected} has seq {event.seq}."
                )
        return cls(form.id, events, status)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConversationState) and (self.id, self.status, self.events) == (
            other.id,
            other.status,
            other.events,
        )

    __hash__: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return ConversationState, (self.id, self.events, self.status)

    def __repr__(self) -> str:
        return (
            f"ConversationState(id={self.id!r}, status={self.status.value!r},"
            f" events={self.last_seq})"
        )


class _Form(msgspec.Struct):
    version: int
    id: str
    status: str
    events: list[msgspec.Raw]
