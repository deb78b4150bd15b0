"""The fold of a journal: the facts that the loop needs, updated event by event."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from datetime import datetime
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from holdfast import events as ev
from holdfast.agent import damage
from holdfast.agent.stuck import Recent, recent_of
from holdfast.agent.tokens import Sizes
from holdfast.content import ToolCall, Usage
from holdfast.conversation import facts
from holdfast.conversation.status import AT_REST, STATUSES, ConversationStatus
from holdfast.object_struct import ObjectStruct
from holdfast.tools.plans import PLAN

_NO_USAGE = Usage()


class OpenCall(ObjectStruct):
    """A call without a result."""

    call: ToolCall
    offered: bool = False  # a client runs it, not the loop
    parallel: bool = False  # may run beside its parallel neighbours; others run alone (`turn`)
    runner: str = ""  # the client that claimed it
    attempt: int = 0  # 0 until it starts
    # the reason why it waits for a decision, None if it does not wait
    ask_reason: str | None = None
    doubtful: bool = False  # has a damaged record: once it has begun it is never repeated
    approved: bool = False
    risk: str = ""  # the analyzer's risk level, "" for none
    arguments: dict[str, Any] | None = None  # an approver's, in place of the model's
    questions: tuple[ev.Question, ...] = ()  # to the user, without an answer
    questioned: int = 0  # the number of its questions, over all of its attempts
    parent: str = ""  # the call whose script made it, "" for a call of the answer
    script: bool = False  # True if its script has made calls

    @property
    def is_waiting(self) -> bool:
        """True if it waits for a decision or a client, so that the loop cannot proceed with it."""
        return self.ask_reason is not None or self.offered

    @property
    def ready(self) -> bool:
        """True if the loop may start the call on its turn."""
        return not self.attempt and self.ask_reason is None and not self.offered

    @property
    def held_by_client(self) -> bool:
        """True if a client runs the call, or may claim it on its turn."""
        return self.offered and self.ask_reason is None

    @property
    def effective(self) -> ToolCall:
        """The call with the arguments that it runs with."""
        if self.arguments is None:
            return self.call
        return replace(self.call, arguments=self.arguments, raw="", invalid="")

    def decide(self, decision: ev.DecisionMade) -> None:
        """Apply a decision. An approval for other arguments than the call has is ignored."""
        if decision.question is not None:
            self.questions = (*self.questions, decision.question)
            self.questioned += 1
        elif decision.question_id:
            self.questions = tuple(
                [one for one in self.questions if one.id != decision.question_id]
            )
        elif decision.decision == "ask":
            self.ask_reason, self.approved, self.arguments = decision.reason or "", False, None
            self.risk = decision.risk
        elif (
            decision.decision == "approve"
            and self.ask_reason is not None
            and decision.arguments_hash == self.call.arguments_hash
        ):
            self.ask_reason, self.approved, self.doubtful = None, True, False
            self.arguments = decision.arguments


def turn(calls: Iterable[OpenCall]) -> list[OpenCall]:
    """Return the calls whose turn it is: the first one, and its neighbours as long as all of them
    are parallel.

    `calls` are the open calls of one answer, in its order. Every other call waits until those
    before it are settled.
    """
    neighbours: list[OpenCall] = []
    for item in calls:
        if neighbours and not (item.parallel and neighbours[-1].parallel):
            break
        neighbours.append(item)
    return neighbours


def made_by_script(event: ev.CodeCallsMade) -> dict[str, OpenCall]:
    """Return the open calls of a script's calls by id, in their order."""
    clients, parallel = frozenset(event.clients), frozenset(event.parallel)
    return {
        call.id: OpenCall(call, call.id in clients, call.id in parallel, parent=event.call_id)
        for call in event.calls
    }


class Fold(ObjectStruct):
    """The facts of a journal that the loop needs, updated event by event.

    The journal owns it and guards it by its lock. Each feature has a field with its facts, a
    frozen reducer. The facts without a feature precede them.
    """

    status: ConversationStatus = ConversationStatus.IDLE
    status_seq: int = 0
    last_seq: int = 0
    created: datetime | None = None
    last_time: datetime | None = None
    sizes: Sizes | None = None  # the tokens of the next request, once measured (`measure`)
    message_seq: int = 0
    based_on: int = 0
    agent: ev.AgentConfigured | None = None
    assistant: ev.AssistantReplied | None = None
    open: dict[str, OpenCall] = {}
    error: ev.ErrorRecorded | None = None
    steps: int = 0
    _usage: Usage = Usage()
    _uncounted: list[Usage] = []  # usage not yet added to `_usage`, since few read it
    cost: float = 0.0  # US dollars, of the calls with a known price
    unpriced: int = 0  # calls with an unknown price
    recent: Recent = msgspec.field(default_factory=Recent)  # the last steps, to detect repetition

    output: facts.OutputFacts = facts.OutputFacts()
    planning: facts.PlanFacts = facts.PlanFacts()
    handoff: facts.HandoffFacts = facts.HandoffFacts()
    hooks: facts.HookCounts = facts.HookCounts()
    blanks: facts.BlankAnswers = facts.BlankAnswers()
    run: facts.RunCounters = facts.NO_RUN
    condensation: facts.CondensationFacts = facts.CondensationFacts()
    call_kinds: facts.CallKinds = facts.CallKinds()
    own_messages: facts.OwnMessages = facts.OwnMessages()
    pictures: facts.PictureFacts = facts.PictureFacts()
    timers: facts.TimerFacts = facts.TimerFacts()
    labelled: facts.LabelFacts = facts.LabelFacts()
    asides: facts.AsideFacts = facts.AsideFacts()
    goal: facts.GoalFacts = facts.GoalFacts()

    def copy(self) -> Fold:
        """Return a copy that later events do not change; without the sizes."""
        clone = copy(self)
        clone._uncounted = list(self._uncounted)
        clone.sizes = None
        clone.recent = self.recent.copy()
        clone.open = {call_id: copy(item) for call_id, item in self.open.items()}
        return clone

    def keep_questions(self, awaited: Callable[[str], bool]) -> None:
        """Drop the questions whose ids are not `awaited`."""
        for item in self.open.values():
            if item.questions:
                item.questions = tuple([one for one in item.questions if awaited(one.id)])

    # --- events ---

    def apply(self, event: ev.AnyEvent) -> None:
        """Apply the journal's next event."""
        if type(event) is not ev.ToolCallStarted:  # no feature is fed it, and it is frequent
            self._feed_features(event)
        self.last_seq = event.seq
        self.last_time = event.timestamp
        if self.created is None:
            self.created = event.timestamp
        match event:
            case ev.ToolCallStarted():
                if (call := self.open.get(event.call_id)) is not None:
                    call.ask_reason = None  # the call may run even if its approval cannot be read
                    call.attempt = event.attempt
                    call.runner = event.runner
                    # the answers to an earlier attempt's questions are not awaited
                    call.questions = ()
            case ev.ToolCallFinished():
                self._close(event.call_id)
            case ev.CodeCallsMade():
                if (call := self.open.get(event.call_id)) is not None:
                    call.script = True
                self.open |= made_by_script(event)
            case ev.AssistantReplied():
                self._apply_answer(event)
                self.assistant = event
                self.open = self.opened(event.calls)
            case ev.MessageAdded():
                self.message_seq = event.seq
                if event.model:
                    self._count_usage(event.usage, event.cost)
            case ev.StatusChanged():
                self._apply_status(event)
            case ev.AgentConfigured():
                self.agent = event
            case ev.ErrorRecorded():
                self.error = event
            case ev.HistoryCondensed():
                self._count_usage(event.usage, event.cost)
            case ev.NoteRecorded():
                if event.model:
                    self._count_usage(event.usage, event.cost)
            case ev.AsideAnswered():
                self._count_usage(event.usage, event.cost)
            case ev.DecisionMade():
                self._count_usage(event.usage, event.cost)
                if (call := self.open.get(event.call_id)) is not None:
                    call.decide(event)
            case ev.DamagedEvent():
                self._apply_damaged(event)
            case _:
                pass
        self.recent.feed(event)
        if self.sizes is not None:
            self.sizes.feed(event)

    def _feed_features(self, event: ev.AnyEvent) -> None:
        fed = _FED[type(event)]
        if type(event) is ev.ToolCallFinished and event.call_id in self.open:
            fed += _FED.get(self.open[event.call_id].call.name, ())
        for name in fed:
            before = getattr(self, name)
            after = before.feed(event, self)
            if after is not before:
                setattr(self, name, after)

    def opened(self, calls: Iterable[ToolCall]) -> dict[str, OpenCall]:
        """Return the open calls of an answer by id, in its order."""
        kinds = self.call_kinds
        return {
            call.id: OpenCall(call, call.name in kinds.clients, call.name in kinds.parallel)
            for call in calls
        }

    def _close(self, call_id: str) -> None:
        """Remove a call that has a result, and the calls that its script made."""
        item = self.open.pop(call_id, None)
        if item is not None and item.script:
            self.open = {id: one for id, one in self.open.items() if one.parent != call_id}

    def _apply_damaged(self, event: ev.DamagedEvent) -> None:
        """Apply an event that cannot be read.

        Its effect on a call is in doubt, so that no call begins or is repeated because of it.
        """
        kind, replacement = event.original_type, damage.stand_in(event)
        usage, cost, _ = damage.usage_of(event)
        self._count_usage(usage, cost)
        if kind == "assistant":
            self.steps += 1
            self.run = self.run.add(_NO_USAGE, None, steps=1)
            self.open = {}
        if isinstance(replacement, ev.StatusChanged):
            self._feed_features(replacement)
            self._apply_status(replacement)
        elif isinstance(replacement, ev.ToolCallFinished):
            self._feed_features(replacement)
            self._close(replacement.call_id)
        elif replacement is not None:
            self.message_seq = event.seq
        if kind in ("", "decision", "toolCallStarted", "toolResult", "codeCalls"):
            about = damage.call_of(event)
            targets = [self.open[about]] if about in self.open else []
            for call in targets if about else self.open.values():
                call.doubtful = True
                if kind != "decision":
                    call.attempt, call.ask_reason, call.runner = max(call.attempt, 1), None, ""
                elif not call.attempt:
                    call.ask_reason = "A decision on this call was damaged and cannot be read."

    def _apply_answer(self, event: ev.AssistantReplied) -> None:
        self.based_on = event.based_on
        self.steps += 1
        self.run = self.run.add(event.usage, event.cost, steps=1)
        self._uncounted.append(event.usage)
        self.unpriced += event.cost is None
        self.cost += event.cost or 0.0

    def _apply_status(self, event: ev.StatusChanged) -> None:
        if event.status not in STATUSES:
            return  # a newer version's status, unknown here
        self.status = ConversationStatus(event.status)
        self.status_seq = event.seq
        if self.status is ConversationStatus.RUNNING:
            self.error = None

    def _count_usage(self, usage: Usage, cost: float | None) -> None:
        """Count model calls that are not steps, such as a condenser's or an analyzer's."""
        if usage != _NO_USAGE:
            self._uncounted.append(usage)
            self.unpriced += cost is None
        elif not cost:
            return
        self.cost += cost or 0.0
        self.run = self.run.add(usage, cost)

    def take(self, events: Sequence[ev.AnyEvent]) -> None:
        """Apply many events at once, in detail from the last answer on."""
        answers = (
            i for i in range(len(events) - 1, -1, -1) if type(events[i]) is ev.AssistantReplied
        )
        last = next(answers, 0)
        if last and self.created is None:
            self.created = events[0].timestamp
        recent = recent_of(events[:last], self.recent) if last else self.recent
        for event in events[:last]:
            kind = type(event)
            if kind is ev.AssistantReplied:
                event = cast(ev.AssistantReplied, event)
                self._feed_features(event)
                self._apply_answer(event)
                plans = [call for call in event.calls if call.name == PLAN]
                self.open = (
                    {call.id: OpenCall(call) for call in plans} if plans or self.open else self.open
                )
            elif kind is ev.ToolCallFinished:
                event = cast(ev.ToolCallFinished, event)
                if event.call_id in self.open:
                    self._feed_features(event)
                    del self.open[event.call_id]
                else:
                    self.pictures = self.pictures.feed(event, self)
            elif kind is ev.DecisionMade:
                event = cast(ev.DecisionMade, event)
                if (item := self.open.get(event.call_id)) is not None:
                    item.decide(event)
                self._count_usage(event.usage, event.cost)
            elif kind is not ev.ToolCallStarted and kind is not ev.CodeCallsMade:
                self.apply(event)
        self.recent = recent
        for event in events[last:]:
            self.apply(event)

    # --- checkpoints ---

    def checkpoint(self) -> ev.Checkpoint:
        """Return the fold as a checkpoint from which `after` continues. No call may be open."""
        fields: dict[str, Any] = {name: getattr(self, name) for name in _STORED}
        fields["created"] = self.created or ev.EPOCH
        for name in _LAST_EVENTS:
            event: ev.Event | None = getattr(self, name)
            fields[f"{name}_seq"] = 0 if event is None else event.seq
        for name in _FEATURES:
            fields |= getattr(self, name).checkpoint()
        status = self.status.value
        return ev.Checkpoint(seq=self.last_seq, status=status, usage=self.usage, **fields)

    @classmethod
    def after(cls, at: ev.Checkpoint, read_event: Callable[[int], ev.AnyEvent]) -> Fold:
        """Return the fold at a checkpoint. `read_event(seq)` reads one event."""
        fields: dict[str, Any] = {name: getattr(at, name) for name in _STORED}
        status = ConversationStatus(at.status)
        state = cls(last_seq=at.seq, status=status, _usage=at.usage, **fields)
        for name, feature in _FEATURES.items():
            setattr(state, name, feature.restore(at, read_event))
        for name, kind in _LAST_EVENTS.items():
            seq: int = getattr(at, f"{name}_seq")
            # an event that is damaged by now is treated as missing
            if seq and isinstance(event := read_event(seq), kind):
                setattr(state, name, event)
        if state.agent is not None:
            state.call_kinds = state.call_kinds.feed(state.agent, state)
        return state

    # --- what follows of the facts ---

    @property
    def title(self) -> str:
        return self.labelled.labels.title

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
            self.condensation.request is not None
            and not self.open
            and (self.status is ConversationStatus.RUNNING or self.status in AT_REST)
        )

    @property
    def turn(self) -> list[OpenCall]:
        """The calls whose turn it is. The calls of a script stand in its place if it can only wait
        for decisions and clients."""
        calls = turn([item for item in self.open.values() if not item.parent])
        if len(calls) == len(self.open):
            return calls
        return [one for item in calls for one in self._held_within(item) or [item]]

    def nested(self, call_id: str) -> list[OpenCall]:
        """Return the calls of a script whose turn it is."""
        return turn([item for item in self.open.values() if item.parent == call_id])

    def _held_within(self, item: OpenCall) -> list[OpenCall]:
        inner = self.nested(item.call.id) if item.script else []
        return inner if all(one.is_waiting for one in inner) else []

    @property
    def plan(self) -> tuple[ev.PlanStep, ...]:
        return () if self.planning.plan is None else self.planning.plan.steps

    @property
    def usage(self) -> Usage:
        if self._uncounted:
            uncounted, self._uncounted = self._uncounted, []
            self._usage = sum(uncounted, self._usage)
        return self._usage

    @property
    def owed(self) -> bool:
        """True if the model owes an answer to a new message or to the results of its last calls, or
        the rest of an answer."""
        last = self.assistant
        if self.message_seq > self.based_on or last is None:
            return self.message_seq > self.based_on
        return (bool(last.calls) and not self.open) or last.stop_reason == "pause"

    @property
    def waits(self) -> bool:
        """True if no open call can proceed before a decision."""
        now = self.turn
        return bool(now) and all(item.ask_reason is not None for item in now)

    @property
    def offers(self) -> list[OpenCall]:
        """The calls that a client has claimed, or may claim now."""
        now = self.turn
        return [
            item
            for item in self.open.values()
            if item.held_by_client
            and (item.runner or item in (self.nested(item.parent) if item.parent else now))
        ]

    @property
    def has_new_message(self) -> bool:
        """True if a message arrived since the conversation came to rest."""
        return self.status in AT_REST and self.message_seq > max(self.status_seq, self.based_on)


def fold(journal: Sequence[ev.AnyEvent]) -> Fold:
    """Return the fold of a journal, or of the tail that the loop needs."""
    state = Fold()
    state.take(journal)
    return state


# Fields that a checkpoint has under the same name, and those whose event's seq it has.
_STORED = ("created", "status_seq", "message_seq", "based_on", "steps", "cost", "unpriced")
_LAST_EVENTS: dict[str, type[ev.Event]] = {
    "agent": ev.AgentConfigured,
    "assistant": ev.AssistantReplied,
    "error": ev.ErrorRecorded,
}

_FEATURES: dict[str, type[facts.Reducer]] = {
    name: type(feature)
    for name in Fold.__struct_fields__
    if isinstance(feature := getattr(Fold(), name), facts.Reducer)
}

# The fields of the features that an event of each type, or the result of a tool, is fed to.
_FED: dict[Any, tuple[str, ...]] = {
    fed: tuple(
        name for name, feature in _FEATURES.items() if fed in feature.events or fed in feature.tools
    )
    for fed in (
        *ev.AnyEvent.__args__,
        *(tool for feature in _FEATURES.values() for tool in feature.tools),
    )
}
