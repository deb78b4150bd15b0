"""The state of a conversation: the fold of its journal, and the snapshot that users hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from datetime import datetime
from enum import StrEnum
from typing import Any, cast

import msgspec

from holdfast import events as ev
from holdfast.agent import damage, planning
from holdfast.agent.handoffs import TOOL as HANDOFF
from holdfast.agent.handoffs import handed_to
from holdfast.agent.output import FINISH, REPAIR, is_output
from holdfast.agent.stuck import Recent, recent_of
from holdfast.agent.tokens import Sizes
from holdfast.content import Data, ToolCall, Usage, known_cost
from holdfast.errors import ConfigurationError, OutputInvalid, RunFailed
from holdfast.llm.pictures import has_picture
from holdfast.nesting import MAX_DOCUMENT_DEPTH, too_deep
from holdfast.tools.plans import PLAN, texts


class ConversationStatus(StrEnum):
    """The status of a conversation. The transition table is in `docs/architecture.md`."""

    IDLE = "idle"
    RUNNING = "running"
    WAITING_FOR_CONFIRMATION = "waiting_for_confirmation"
    PAUSED = "paused"
    FINISHED = "finished"
    STUCK = "stuck"
    ERROR = "error"
    CLOSED = "closed"


# A message to a conversation at rest begins a new run.
AT_REST = frozenset(
    (
        ConversationStatus.IDLE,
        ConversationStatus.FINISHED,
        ConversationStatus.STUCK,
        ConversationStatus.ERROR,
    )
)


_NO_USAGE = Usage()


class OpenCall:
    """A call without a result.

    `attempt` is 0 until the call starts. `asked` is the reason why it waits for a decision, None if
    it does not wait. `arguments` replace the model's if an approver edited them. A client runs an
    `offered` call, and `runner` names the client that claimed it. A `parallel` call may run beside
    its parallel neighbours; any other call runs alone (`turn`). A `doubtful` call has a damaged
    record: once it has begun it is never repeated.
    """

    __slots__ = (
        "approved",
        "arguments",
        "asked",
        "attempt",
        "call",
        "doubtful",
        "offered",
        "parallel",
        "questioned",
        "questions",
        "risk",
        "runner",
    )

    def __init__(self, call: ToolCall, offered: bool = False, parallel: bool = False) -> None:
        self.call = call
        self.offered = offered
        self.parallel = parallel
        self.runner = ""
        self.attempt = 0
        self.asked: str | None = None
        self.doubtful = False
        self.approved = False
        self.risk = ""  # the analyzer's risk level, "" for none
        self.arguments: dict[str, Any] | None = None
        # its unanswered questions to the user
        self.questions: tuple[ev.Question, ...] = ()
        self.questioned = 0  # the number of its questions, over all of its attempts

    @property
    def ready(self) -> bool:
        """True if the loop may start the call on its turn."""
        return not self.attempt and self.asked is None and not self.offered

    @property
    def held_by_client(self) -> bool:
        """True if a client runs the call, or may claim it on its turn."""
        return self.offered and self.asked is None

    @property
    def effective(self) -> ToolCall:
        """The call with the arguments that it runs with."""
        return (
            self.call
            if self.arguments is None
            else msgspec.structs.replace(self.call, arguments=self.arguments, raw="", invalid="")
        )

    def decide(self, decision: ev.Decision) -> None:
        """Apply a decision about this call. An approval for other arguments than the call has is
        ignored."""
        if decision.question is not None:
            self.questions = (*self.questions, decision.question)
            self.questioned += 1
        elif decision.question_id:
            self.questions = tuple(
                [one for one in self.questions if one.id != decision.question_id]
            )
        elif decision.decision == "ask":
            self.asked, self.approved, self.arguments = decision.reason or "", False, None
            self.risk = decision.risk
        elif (
            decision.decision == "approve"
            and self.asked is not None
            and decision.arguments_hash == self.call.arguments_hash
        ):
            self.asked, self.approved, self.doubtful = None, True, False
            self.arguments = decision.arguments


def turn(calls: Iterable[OpenCall]) -> list[OpenCall]:
    """Return the calls whose turn it is: the first one, and its neighbours as long as all of them
    are parallel.

    `calls` are the open calls of one answer, in its order. Every other call waits until those
    before it are settled.
    """
    found: list[OpenCall] = []
    for item in calls:
        if found and not (item.parallel and found[-1].parallel):
            break
        found.append(item)
    return found


def undecided(calls: Iterable[OpenCall]) -> bool:
    """Return True if there are open calls and all whose turn it is wait for a decision."""
    now = turn(calls)
    return bool(now) and all(item.asked is not None for item in now)


class Fold:
    """The facts of a journal that the loop needs, updated event by event.

    The journal owns it and guards it by its lock.
    """

    __slots__ = (
        "_uncounted",
        "_usage",
        "abouts",
        "agent",
        "assistant",
        "based_on",
        "blanks",
        "clients",
        "condensed",
        "cost",
        "created",
        "denials",
        "error",
        "handoff",
        "heard_seq",
        "last_seq",
        "last_time",
        "message_seq",
        "open",
        "output",
        "output_failed",
        "output_failures",
        "output_seq",
        "parallel",
        "pictures",
        "planned",
        "recent",
        "run_cost",
        "run_since",
        "run_spent",
        "run_steps",
        "run_tokens",
        "sizes",
        "status",
        "status_seq",
        "steps",
        "stops",
        "title",
        "unpriced",
        "wanted",
    )

    def __init__(self) -> None:
        self.status = ConversationStatus.IDLE
        self.status_seq = 0
        self.last_seq = 0
        self.created: datetime | None = None
        self.last_time: datetime | None = None
        self.condensed = 0
        # the instructions of a requested condensation that is still to come
        self.wanted: str | None = None
        # the tokens of the next request, once measured (`measure`)
        self.sizes: Sizes | None = None
        self.message_seq = 0
        # seqs of Holdfast's own messages that are still shown, by `Message.about`
        self.abouts: dict[str, int] = {}
        # True if a message or result read so far contains a picture
        self.pictures = False
        # the plan, its approval, and the place where a model is shown it
        self.planned: ev.Plan | None = None
        self.heard_seq = 0  # the seq of the last message that is not Holdfast's own
        self.based_on = 0
        self.agent: ev.Agent | None = None
        # the agent of a pending handoff, which has not taken over yet
        self.handoff: str | None = None
        self.clients: tuple[str, ...] = ()  # tools of `agent` whose calls clients run
        # tools of `agent` whose calls may run side by side
        self.parallel: frozenset[str] = frozenset()
        self.assistant: ev.Assistant | None = None
        self.open: dict[str, OpenCall] = {}
        self.blanks = 0  # answers in a row without text or call
        self.denials = 0  # answers in a row that hooks denied
        # times that hooks kept the run from finishing, since its begin or the last message
        self.stops = 0
        self.error: ev.Error | None = None
        self.title = ""
        self.steps = 0
        self._usage = Usage()
        self._uncounted: list[Usage] = []  # usage not yet added to `_usage`, since few read it
        self.cost = 0.0  # US dollars, of the calls with a known price
        self.unpriced = 0  # calls with an unknown price
        self.recent = Recent()  # the last steps, to detect repetition
        self.output: Any = None  # the arguments of the tool `finish`, unless something followed it
        self.output_seq = 0  # the seq of that result; 0 for none
        self.output_failed = ""  # the problem with the last answer's call of `finish`
        self.output_failures = 0  # failed rounds of this run that the model was told of
        self.run_since: datetime | None = None  # the start of its current work
        self.run_spent = 0.0  # seconds of work before a pause or a wait for a decision
        self.run_steps = 0
        self.run_tokens = 0
        self.run_cost = 0.0

    def copy(self) -> Fold:
        """Return an independent copy."""
        found = copy(self)
        found._uncounted = list(self._uncounted)
        found.sizes = None
        found.abouts = dict(self.abouts)
        found.recent = self.recent.copy()
        found.open = {call_id: copy(item) for call_id, item in self.open.items()}
        return found

    def apply(self, event: ev.AnyEvent) -> None:
        """Apply the journal's next event."""
        self.last_seq = event.seq
        self.last_time = event.timestamp
        if self.created is None:
            self.created = event.timestamp
        match event:
            case ev.ToolCallStarted():
                if (call := self.open.get(event.call_id)) is not None:
                    call.asked = None  # the call may run even if its approval cannot be read
                    call.attempt = event.attempt
                    call.runner = event.runner
                    # nobody waits for the answers to an earlier attempt's questions
                    call.questions = ()
            case ev.ToolResult():
                self._apply_result(event)
                self.pictures = self.pictures or has_picture(event.result.content)
            case ev.Assistant():
                self._apply_answer(event)
                self.assistant = event
                self.open = self.opened(event.calls)
            case ev.Message():
                self.message_seq = event.seq
                if event.about == REPAIR:
                    self.output_failures += 1
                if event.sender != "holdfast":
                    self.stops = 0
                    self.output, self.output_seq, self.output_failures = None, 0, 0
                    self.heard_seq = event.seq
                    self.planned = planning.after_message(self.planned)
                self.pictures = self.pictures or has_picture(event.content)
                if event.model:
                    self._count_usage(event.usage, event.cost)
                if event.about:
                    self.abouts[event.about] = event.seq
                    if event.about.endswith("@stop"):
                        self.stops += 1
                if not self.title:
                    self.title = event.text.strip().split("\n", 1)[0][:80]
            case ev.Status():
                self._apply_status(event)
            case ev.Agent():
                self._apply_agent(event)
            case ev.Error():
                self.error = event
            case ev.Condensation():
                self._apply_condensation(event)
            case ev.Note():
                if event.model:
                    self._count_usage(event.usage, event.cost)
            case ev.Decision():
                if event.usage != _NO_USAGE or event.cost:
                    self._count_usage(event.usage, event.cost)
                if (call := self.open.get(event.call_id)) is not None:
                    call.decide(event)
            case ev.Damaged():
                self._apply_damaged(event)
            case _:
                pass
        self.recent.feed(event)
        if self.sizes is not None:
            self.sizes.feed(event)

    def opened(self, calls: Iterable[ToolCall]) -> dict[str, OpenCall]:
        """Return the open calls of an answer by id, in its order."""
        return {
            call.id: OpenCall(call, call.name in self.clients, call.name in self.parallel)
            for call in calls
        }

    @property
    def turn(self) -> list[OpenCall]:
        """The open calls whose turn it is."""
        return turn(self.open.values())

    def _apply_damaged(self, event: ev.Damaged) -> None:
        """Apply an event that cannot be read.

        Its effect on a call is in doubt, so that no call begins or is repeated because of it.
        """
        kind, found = event.original_type, damage.stand_in(event)
        usage, cost, _ = damage.spent(event)
        self._count_usage(usage, cost)
        if kind == "assistant":
            self.steps += 1
            self.run_steps += 1
            self.open = {}
        elif kind == "agent":
            self.clients = (*self.clients, *damage.client_tools(event))
        if isinstance(found, ev.Status):
            self._apply_status(found)
        elif isinstance(found, ev.ToolResult):
            self._apply_result(found)
        elif found is not None:
            self.message_seq = self.heard_seq = event.seq
            self.output, self.output_seq, self.output_failed = None, 0, ""
            self.planned = planning.after_message(self.planned)
        if kind in ("", "decision", "toolCallStarted", "toolResult"):
            about = damage.call_of(event)
            for call in (
                [self.open[about]] if about in self.open else [] if about else self.open.values()
            ):
                call.doubtful = True
                if kind != "decision":
                    call.attempt, call.asked, call.runner = max(call.attempt, 1), None, ""
                elif not call.attempt:
                    call.asked = "A decision on this call was damaged and cannot be read."

    def measure(self, journal: Sequence[ev.AnyEvent]) -> Sizes:
        """Measure the tokens of the next request from now on, and return the sizes.

        `journal` must hold at least all events that the model is still shown.
        """
        if self.sizes is None:
            self.sizes = Sizes.of(journal, self.agent)
        return self.sizes

    @property
    def condensing(self) -> bool:
        """True if a requested condensation is due now."""
        return (
            self.wanted is not None
            and not self.open
            and (self.status is ConversationStatus.RUNNING or self.status in AT_REST)
        )

    def _apply_condensation(self, event: ev.Condensation) -> None:
        self.wanted = event.request
        if self.abouts and event.hidden:
            hidden = frozenset(event.hidden)
            self.abouts = {about: seq for about, seq in self.abouts.items() if seq not in hidden}
        self.planned = planning.after_condensation(self.planned, event)
        if event.so_far is not None:
            self.condensed = max(self.condensed, event.so_far.seq)
        self._count_usage(event.usage, event.cost)

    def _count_usage(self, usage: Usage, cost: float | None) -> None:
        """Count model calls that are not steps, such as a condenser's or an analyzer's."""
        if usage != _NO_USAGE:
            self._uncounted.append(usage)
            self.run_tokens += usage.input_tokens + usage.output_tokens
            self.unpriced += cost is None
        if cost:
            self.cost += cost
            self.run_cost += cost

    def _apply_result(self, event: ev.ToolResult) -> None:
        item = self.open.pop(event.call_id, None)
        if item is not None and item.call.name == PLAN:
            unheard = self.heard_seq > self.based_on
            self.planned = planning.after_result(
                self.planned, item.effective, event.result, item.approved, unheard
            )
        elif item is not None and item.call.name == HANDOFF and self.handoff is None:
            self.handoff = handed_to(event.result)
        elif item is not None and item.call.name == FINISH:
            self._apply_output(event)

    def _apply_agent(self, event: ev.Agent) -> None:
        self.agent = event
        self.handoff = None
        self.clients = tuple(
            [
                name
                for tool in event.tools
                if tool.executor == "client"
                for name in (tool.name, tool.wire_name)
                if name
            ]
        )
        self.parallel = frozenset(
            [
                name
                for tool in event.tools
                if tool.parallel
                for name in (tool.name, tool.wire_name)
                if name
            ]
        )

    def _apply_output(self, event: ev.ToolResult) -> None:
        """Apply the result of a call of `finish`."""
        if is_output(FINISH, event.result):
            self.output, self.output_seq = event.result.structured_content, event.seq
        elif event.result.is_error and not (
            event.result.error is not None and event.result.error.type in ("cancelled", "unknown")
        ):
            self.output_failed = event.result.text or "the call failed"

    def _apply_answer(self, event: ev.Assistant) -> None:
        self.output, self.output_seq, self.output_failed = None, 0, ""  # the run goes on
        self.based_on = event.based_on
        paused = event.stop_reason in ("pause", "denied")
        self.denials = self.denials + 1 if event.stop_reason == "denied" else 0
        self.blanks = (
            0
            if event.calls or paused or (event.text.strip() and event.stop_reason != "length")
            else self.blanks + 1
        )
        usage, cost = event.usage, event.cost
        self.steps += 1
        self.run_steps += 1
        self._uncounted.append(usage)
        self.run_tokens += usage.input_tokens + usage.output_tokens
        if cost is None:
            self.unpriced += 1
        elif cost:
            self.cost += cost
            self.run_cost += cost

    def _apply_status(self, event: ev.Status) -> None:
        try:
            status = ConversationStatus(event.status)
        except ValueError:
            return  # a newer version's status, unknown here
        # The run is over. The next one counts from zero, even after a pause.
        if status in AT_REST:
            self.run_since = None
            self.run_spent = 0.0
            self.run_steps = 0
            self.run_tokens = 0
            self.run_cost = 0.0
            self.blanks = 0
            # If invalid output ended the run, a resumed run first tells the model of the last
            # failure; that must not count as a new round.
            self.output_failures = (
                -1 if self.error is not None and self.error.error == OutputInvalid.__name__ else 0
            )
            self.stops = self.denials = 0
        elif status is ConversationStatus.RUNNING:
            self.run_since = self.run_since or event.timestamp
            self.error = None
        elif self.run_since is not None:
            self.run_spent += (event.timestamp - self.run_since).total_seconds()
            self.run_since = None
        self.status = status
        self.status_seq = event.seq

    def so_far(self) -> ev.SoFar:
        """Return the fold as a checkpoint from which `after` continues. No call may be open."""
        return ev.SoFar(
            self.last_seq,
            self.created or ev.EPOCH,
            self.title,
            self.status.value,
            self.status_seq,
            self.message_seq,
            0 if self.agent is None else self.agent.seq,
            0 if self.assistant is None else self.assistant.seq,
            self.based_on,
            self.blanks,
            self.steps,
            self.usage,
            self.cost,
            self.run_since,
            self.run_steps,
            self.run_tokens,
            self.run_cost,
            0 if self.error is None else self.error.seq,
            self.run_spent,
            plan=self.planned,
            handoff=self.handoff,
            output_seq=self.output_seq,
            output_failures=self.output_failures,
            output_failed=self.output_failed,
            stops=self.stops,
            denials=self.denials,
            unpriced=self.unpriced,
        )

    @classmethod
    def after(cls, so_far: ev.SoFar, event: Callable[[int], ev.AnyEvent]) -> Fold:
        """Return the fold at a checkpoint: the inverse of `so_far`. `event(seq)` reads one
        event."""
        found = cls()
        found.last_seq, found.created, found.condensed = so_far.seq, so_far.created, so_far.seq
        found.status, found.status_seq = ConversationStatus(so_far.status), so_far.status_seq
        found.title = so_far.title
        found.message_seq = so_far.message_seq
        found.based_on = so_far.based_on
        found.blanks = so_far.blanks
        found.steps = so_far.steps
        found._usage = so_far.usage
        found.cost = so_far.cost
        found.unpriced = so_far.unpriced
        found.run_since = so_far.run_since
        found.run_steps = so_far.run_steps
        found.run_tokens = so_far.run_tokens
        found.run_cost = so_far.run_cost
        found.run_spent, found.handoff = so_far.run_spent, so_far.handoff
        found.planned = so_far.plan
        found.stops, found.denials = so_far.stops, so_far.denials
        found.output_failures = so_far.output_failures
        found.output_failed = so_far.output_failed
        found.output_seq = so_far.output_seq
        # These events may be damaged by now; such an event is treated as missing.
        if so_far.output_seq:
            output = event(so_far.output_seq)
            found.output = (
                output.result.structured_content if isinstance(output, ev.ToolResult) else None
            )
        if so_far.agent_seq and isinstance(head := event(so_far.agent_seq), ev.Agent):
            found._apply_agent(head)
        if so_far.assistant_seq and isinstance(answer := event(so_far.assistant_seq), ev.Assistant):
            found.assistant = answer
        if so_far.error_seq and isinstance(error := event(so_far.error_seq), ev.Error):
            found.error = error
        return found

    def take(self, events: Sequence[ev.AnyEvent]) -> None:
        """Apply many events at once. Calls of any answer but the last need not be folded in
        detail."""
        last = next(
            (
                index
                for index in range(len(events) - 1, -1, -1)
                if type(events[index]) is ev.Assistant
            ),
            0,
        )
        if last and self.created is None:
            self.created = events[0].timestamp
        recent = recent_of(events[:last], self.recent) if last else self.recent
        for event in events[:last]:
            kind = type(event)
            if kind is ev.Assistant:
                self._apply_answer(cast(ev.Assistant, event))
                plans = [call for call in cast(ev.Assistant, event).calls if call.name == PLAN]
                self.open = (
                    {call.id: OpenCall(call) for call in plans} if plans or self.open else self.open
                )
            elif kind is ev.ToolResult:
                if self.open:
                    self._apply_result(cast(ev.ToolResult, event))
                self.pictures = self.pictures or has_picture(
                    cast(ev.ToolResult, event).result.content
                )
            elif kind is ev.Decision:
                if (item := self.open.get(cast(ev.Decision, event).call_id)) is not None:
                    item.decide(cast(ev.Decision, event))
                self._count_usage(cast(ev.Decision, event).usage, cast(ev.Decision, event).cost)
            elif kind is not ev.ToolCallStarted:
                self.apply(event)
        self.recent = recent
        for event in events[last:]:
            self.apply(event)

    @property
    def plan(self) -> tuple[ev.PlanStep, ...]:
        """The steps of the current plan."""
        return () if self.planned is None else self.planned.steps

    @property
    def usage(self) -> Usage:
        """Tokens of all model calls."""
        if self._uncounted:
            uncounted, self._uncounted = self._uncounted, []
            self._usage = sum(uncounted, self._usage)
        return self._usage

    @property
    def owed(self) -> bool:
        """True if the model owes an answer: to a message it has not seen, to the results of its
        last calls, or to continue an answer that its provider paused."""
        last = self.assistant
        if self.message_seq > self.based_on or last is None:
            return self.message_seq > self.based_on
        return (bool(last.calls) and not self.open) or last.stop_reason == "pause"

    @property
    def waits(self) -> bool:
        """True if no open call can proceed before somebody decides."""
        return undecided(self.open.values())

    @property
    def offers(self) -> list[OpenCall]:
        """The calls that a client has claimed, or may claim now."""
        now = self.turn
        return [
            item
            for item in self.open.values()
            if item.held_by_client and (item.runner or item in now)
        ]

    @property
    def asked(self) -> bool:
        """True if a message arrived since the conversation came to rest."""
        return self.status in AT_REST and self.message_seq > max(self.status_seq, self.based_on)


def fold(journal: Sequence[ev.AnyEvent]) -> Fold:
    """Return the fold of a whole journal."""
    found = Fold()
    found.take(journal)
    return found


class PendingConfirmation(Data, frozen=True):
    """A call that waits for `approve` or `reject`.

    `reason` says why. An approval is bound to `arguments_hash`. `risk` is "" if no analyzer
    judged it.
    """

    call: ToolCall
    reason: str
    arguments_hash: str
    risk: str = ""


class Offer(Data, frozen=True):
    """A call for a client to run, with its effective arguments, and the `runner` that claimed it
    ("" for none)."""

    call: ToolCall
    runner: str = ""


_HOW_TO_GO_ON = {
    ConversationStatus.RUNNING: "wait() blocks until it rests.",
    ConversationStatus.PAUSED: "resume() goes on.",
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

    __slots__ = ("_events", "_fold", "_read", "id", "status")

    def __init__(
        self, id: str, events: Sequence[ev.AnyEvent] = (), status: ConversationStatus | None = None
    ) -> None:
        self.id = id
        self._events: tuple[ev.AnyEvent, ...] | None = tuple(events)
        self._read: Callable[[int], tuple[ev.AnyEvent, ...]] | None = None
        self._fold: Fold | None = None
        self.status: ConversationStatus = self._folded.status if status is None else status

    @classmethod
    def of(
        cls,
        id: str,
        status: ConversationStatus,
        folded: Fold,
        read: Callable[[int], tuple[ev.AnyEvent, ...]],
    ) -> ConversationState:
        """Return a state whose fold is known. `read(last_seq)` loads its events when they are
        first needed."""
        found = cls(id, (), status)
        found._fold, found._events, found._read = folded, None, read
        return found

    @property
    def events(self) -> tuple[ev.AnyEvent, ...]:
        """All events so far, in order."""
        if self._events is None:
            assert self._fold is not None
            assert self._read is not None
            self._events, self._read = self._read(self._fold.last_seq), None
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
        """The text of the model's last answer, "" for none."""
        last = self._folded.assistant
        return "" if last is None else last.text

    @property
    def output(self) -> Any:
        """The last run's output as a JSON value, if the agent has an `output_type`; None if
        there is none."""
        return self._folded.output

    @property
    def error(self) -> ev.Error | None:
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
            message = f"stopped on {error.error}: {error.message} resume() tries again."
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
        """The cost of all model calls in US dollars, by list prices; None if none is known. See
        `unpriced`."""
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
        planned = self._folded.planned
        return (
            planned is not None
            and bool(planned.approved)
            and planned.approved == texts(planned.steps)
        )

    @property
    def pending_calls(self) -> tuple[ToolCall, ...]:
        """Calls of the last answer that have no result yet."""
        return tuple(item.call for item in self._folded.open.values())

    @property
    def offers(self) -> tuple[Offer, ...]:
        """Calls that a client has claimed or may claim now (`commands.Claim`): on their turn, and
        without an open decision."""
        return tuple(Offer(item.effective, item.runner) for item in self._folded.offers)

    @property
    def pending_confirmations(self) -> tuple[PendingConfirmation, ...]:
        """Calls that wait for an approval or a rejection."""
        return tuple(
            PendingConfirmation(item.call, item.asked, item.call.arguments_hash, item.risk)
            for item in self._folded.open.values()
            if item.asked is not None
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
