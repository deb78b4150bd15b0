"""The facts that features keep of a conversation: one small reducer for each feature.

A decision on the facts is a method with a name of its own, such as `RunCounters.reached`;
`next_action` puts the decisions in order. To add a feature, write a `Reducer` and a field of
`Fold`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
from msgspec.structs import replace

from holdfast import events as ev
from holdfast import timers
from holdfast.agent import damage, planning
from holdfast.agent.handoffs import SWITCH, TOOL, handoff_target, resolve_target
from holdfast.agent.limits import Limits
from holdfast.agent.output import FINISH, REPAIR, TEXT_INSTEAD, is_output
from holdfast.agent.tokens import Sizes
from holdfast.answer import REFUSAL
from holdfast.content import ToolResult, Usage, answer_seq, is_nested
from holdfast.conversation.status import AT_REST, STATUSES, ConversationStatus
from holdfast.errors import OutputInvalid
from holdfast.labels import Labels, labels_after
from holdfast.llm.vision import has_picture
from holdfast.tools.plans import PLAN

if TYPE_CHECKING:
    from typing import Self

    from holdfast.conversation.fold import Fold

# Empty or cut-off answers in a row before a conversation counts as stuck. Two nudges may help; a
# third has never been seen to.
MAX_BLANK_ANSWERS = 3

# A condensation may leave a request larger than the trigger: nothing more can be left out. The next
# one waits until the request has grown by the trigger divided by this.
REGROWTH_DIVISOR = 10

# The `NoteRecorded.about` of a title that could not be written.
TITLE = "title"

GOAL = "goal"
"""The `about` of verdicts on an agent's goal, and of messages about them."""

ReadEvent = Callable[[int], ev.AnyEvent]


class Reducer(msgspec.Struct, frozen=True):
    """The facts of one feature. The defaults are those of an empty journal.

    `events` are the types of the events that it is fed. `tools` are the names of tools: it is fed
    the results of their open calls. `stored` maps its fields to those of `events.Checkpoint`.
    """

    events: ClassVar[tuple[type[ev.Event], ...]] = ()
    tools: ClassVar[tuple[str, ...]] = ()
    stored: ClassVar[Mapping[str, str]] = {}

    def feed(self, event: Any, fold: Fold) -> Self:
        """Return the facts after an event; `fold` is the fold before it."""
        raise NotImplementedError

    def checkpoint(self) -> dict[str, Any]:
        """Return the fields of `events.Checkpoint` that hold the facts. No call may be open."""
        return {theirs: getattr(self, ours) for ours, theirs in self.stored.items()}

    @classmethod
    def restore(cls, checkpoint: ev.Checkpoint, read_event: ReadEvent) -> Self:
        """Return the facts at a checkpoint. `read_event` returns the event of a seq, which may be
        damaged."""
        return cls(**{ours: getattr(checkpoint, theirs) for ours, theirs in cls.stored.items()})


class RunCounters(Reducer, frozen=True):
    """The counters of a run, which its limits bound; the next one counts from zero, even after a
    pause.

    `since` is the start of its current work. `seconds` are those of work before a pause or a
    wait for a decision. `cost` is in US dollars, of the calls with a known price.
    """

    events = (ev.StatusChanged,)
    stored = {
        "since": "run_since",
        "seconds": "run_spent",
        "steps": "run_steps",
        "tokens": "run_tokens",
        "cost": "run_cost",
    }
    since: datetime | None = None
    seconds: float = 0.0
    steps: int = 0
    tokens: int = 0
    cost: float = 0.0

    def feed(self, event: Any, fold: Fold) -> RunCounters:
        if event.status in AT_REST:
            return NO_RUN
        if event.status == ConversationStatus.RUNNING:
            since = self.since or event.timestamp
            return self if since is self.since else replace(self, since=since)
        if self.since is None or event.status not in STATUSES:
            return self
        seconds = self.seconds + (event.timestamp - self.since).total_seconds()
        return replace(self, since=None, seconds=seconds)

    def add(self, usage: Usage, cost: float | None, steps: int = 0) -> RunCounters:
        """Return the counters after a model call, which may be a step."""
        tokens = self.tokens + usage.input_tokens + usage.output_tokens
        return RunCounters(
            self.since, self.seconds, self.steps + steps, tokens, self.cost + (cost or 0.0)
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
            seconds = self.seconds + (now - self.since).total_seconds()
            if seconds >= limits.seconds:
                return "seconds", seconds, limits.seconds
        return None


NO_RUN = RunCounters()
"""The counters of a conversation at rest. One object for all: a process may hold many thousands."""


class OutputFacts(Reducer, frozen=True):
    """The output (the arguments of the tool `finish`), unless something followed it, and the rounds
    without a valid one.

    `seq` is that of the output's result, 0 for none. `failed` is the problem with the last answer's
    call of `finish`. `failures` counts the rounds of this run whose failure the model was shown.
    """

    events = (ev.AssistantReplied, ev.MessageAdded, ev.StatusChanged, ev.DamagedEvent)
    tools = (FINISH,)
    stored = {"seq": "output_seq", "failed": "output_failed", "failures": "output_failures"}
    value: Any = None
    seq: int = 0
    failed: str = ""
    failures: int = 0

    def feed(self, event: Any, fold: Fold) -> OutputFacts:
        if type(event) is ev.AssistantReplied:  # the run continues
            return OutputFacts(failures=self.failures) if self.seq or self.failed else self
        if type(event) is ev.ToolCallFinished:
            return self._after_call(event.seq, event.result)
        if type(event) is ev.MessageAdded and event.sender != "holdfast":
            return OutputFacts(failed=self.failed) if self.seq or self.failures else self
        if type(event) is ev.MessageAdded and event.about == REPAIR:
            return replace(self, failures=self.failures + 1)
        if type(event) is ev.StatusChanged and event.status in AT_REST:
            # If invalid output ended the run, a resumed run first tells the model of the last
            # failure; that must not count as a new round.
            invalid = fold.error is not None and fold.error.error == OutputInvalid.__name__
            failures = -1 if invalid else 0
            return self if failures == self.failures else replace(self, failures=failures)
        if type(event) is ev.DamagedEvent and isinstance(damage.stand_in(event), ev.MessageAdded):
            return OutputFacts(failures=self.failures)
        return self

    def _after_call(self, seq: int, result: ToolResult) -> OutputFacts:
        if is_output(FINISH, result):
            return replace(self, value=result.structured_content, seq=seq)
        unrun = result.error is not None and result.error.type in ("cancelled", "unknown")
        if result.is_error and not unrun:
            return replace(self, failed=result.text or "the call failed")
        return self

    def problem(self, last: ev.AssistantReplied | None) -> str:
        """Return the problem that left the last answer without an output. Return "" if the answer
        is not complete, or the model was already told that the answer was empty or cut off."""
        if last is None or last.calls or last.stop_reason == "pause":
            return self.failed
        if last.stop_reason == REFUSAL:
            return f"the model refused: {last.refusal}" if last.refusal else "the model refused"
        return TEXT_INSTEAD

    @classmethod
    def restore(cls, checkpoint: ev.Checkpoint, read_event: ReadEvent) -> OutputFacts:
        facts = super().restore(checkpoint, read_event)
        if facts.seq and isinstance(event := read_event(facts.seq), ev.ToolCallFinished):
            return replace(facts, value=event.result.structured_content)
        return facts


class PlanFacts(Reducer, frozen=True):
    """The current plan, if any, and the seq of the last message that is not Holdfast's own."""

    events = (ev.MessageAdded, ev.HistoryCondensed, ev.DamagedEvent)
    tools = (PLAN,)
    stored = {"plan": "plan"}
    plan: ev.Plan | None = None
    heard_seq: int = 0

    def feed(self, event: Any, fold: Fold) -> PlanFacts:
        if type(event) is ev.ToolCallFinished:
            item, unheard = fold.open[event.call_id], self.heard_seq > fold.based_on
            plan = planning.after_result(
                self.plan, item.effective, event.result, item.approved, unheard
            )
            return PlanFacts(plan, self.heard_seq)
        if type(event) is ev.HistoryCondensed:
            plan = planning.after_condensation(self.plan, event)
            return self if plan is self.plan else PlanFacts(plan, self.heard_seq)
        from_outside = (
            event.sender != "holdfast"
            if type(event) is ev.MessageAdded
            else isinstance(damage.stand_in(event), ev.MessageAdded)
        )
        return PlanFacts(planning.after_message(self.plan), event.seq) if from_outside else self


class HandoffFacts(Reducer, frozen=True):
    """The target of the last handoff or switch of model (`handoffs.resolve_target`), by a call or
    by `commands.Use`. The value "" is the first agent, None no pending switch."""

    events = (ev.AgentConfigured, ev.NoteRecorded)
    tools = (TOOL, SWITCH)
    stored = {"target": "handoff"}
    target: str | None = None

    def feed(self, event: Any, fold: Fold) -> HandoffFacts:
        if type(event) is ev.AgentConfigured:
            return self if self.target is None else HandoffFacts()
        if type(event) is ev.NoteRecorded:
            return self._chosen(event, fold) if event.about == ev.AGENT_CHOICE else self
        return HandoffFacts(handoff_target(event.result)) if self.target is None else self

    def _chosen(self, event: ev.NoteRecorded, fold: Fold) -> HandoffFacts:
        chosen = event.details.get("agent")
        if not isinstance(chosen, str):  # a journal that was made elsewhere
            return self
        present = "" if fold.agent is None else fold.agent.name
        return HandoffFacts(None if resolve_target(chosen, present) == present else chosen)


class HookCounts(Reducer, frozen=True):
    """Counts of denials by hooks since the run's begin or the last message. `denials` counts denied
    answers in a row, `stops` the denied ends of the run."""

    events = (ev.AssistantReplied, ev.MessageAdded, ev.StatusChanged)
    stored = {"denials": "denials", "stops": "stops"}
    denials: int = 0
    stops: int = 0

    def feed(self, event: Any, fold: Fold) -> HookCounts:
        denials, stops = self.denials, self.stops
        if type(event) is ev.AssistantReplied:
            denials = denials + 1 if event.stop_reason == "denied" else 0
        elif type(event) is ev.MessageAdded:
            stops = (0 if event.sender != "holdfast" else stops) + event.about.endswith("@stop")
        elif event.status in AT_REST:
            denials = stops = 0
        same = denials == self.denials and stops == self.stops
        return self if same else HookCounts(denials, stops)


class GoalFacts(Reducer, frozen=True):
    """The last verdict on the agent's goal. `seq` is its seq, 0 for none. `rounds` counts the
    reports of a missed goal to the model since the run's begin or the last message."""

    events = (ev.NoteRecorded, ev.MessageAdded, ev.StatusChanged)
    stored = {"seq": "goal_seq", "rounds": "goal_rounds"}
    seq: int = 0
    rounds: int = 0

    def feed(self, event: Any, fold: Fold) -> GoalFacts:
        if type(event) is ev.NoteRecorded:
            return GoalFacts(event.seq, self.rounds) if event.about == GOAL else self
        rounds = self.rounds
        if type(event) is ev.MessageAdded:
            rounds = rounds + 1 if event.about == GOAL else rounds if _is_own(event) else 0
        elif event.status in AT_REST:
            rounds = 0
        return self if rounds == self.rounds else GoalFacts(self.seq, rounds)


def _is_own(message: ev.MessageAdded) -> bool:
    return message.sender == "holdfast"


class BlankAnswers(Reducer, frozen=True):
    """The number of empty or cut-off answers without a call in a row."""

    events = (ev.AssistantReplied, ev.StatusChanged)
    stored = {"count": "blanks"}
    count: int = 0

    def feed(self, event: Any, fold: Fold) -> BlankAnswers:
        if type(event) is ev.AssistantReplied:
            whole = not event.is_blank and event.stop_reason != "length"
            # an answer with these stop reasons is still to come, or was denied by hooks
            if not (event.calls or whole or event.stop_reason in ("pause", "denied", REFUSAL)):
                return BlankAnswers(self.count + 1)
        elif event.status not in AT_REST:
            return self
        return BlankAnswers() if self.count else self

    @property
    def stuck(self) -> str:
        """The reason why the run is stuck, "" if it is not."""
        many = self.count >= MAX_BLANK_ANSWERS
        return f"{MAX_BLANK_ANSWERS} answers in a row were empty or cut off" if many else ""


class CondensationFacts(Reducer, frozen=True):
    """The events that are left out, and the condensation that is still to come.

    `condensed` is the seq up to which a model is shown a summary alone. `request` holds the
    instructions of a requested condensation, None without a request.
    """

    events = (ev.HistoryCondensed,)
    condensed: int = 0
    request: str | None = None

    def feed(self, event: Any, fold: Fold) -> CondensationFacts:
        until = 0 if event.so_far is None else event.so_far.seq
        return CondensationFacts(max(self.condensed, until), event.request)

    @classmethod
    def restore(cls, checkpoint: ev.Checkpoint, read_event: ReadEvent) -> CondensationFacts:
        return cls(checkpoint.seq)


def excess_tokens(sizes: Sizes | None, trigger: int) -> int:
    """Return the next request's tokens if it must be condensed, else 0.

    A request must be condensed from `trigger` tokens on. After a condensation that left it
    larger than that, it must first grow by a tenth of `trigger`.
    """
    if sizes is None or (tokens := sizes.tokens) < trigger:
        return 0
    return tokens if tokens - sizes.at_condensation >= max(1, trigger // REGROWTH_DIVISOR) else 0


class CallKinds(Reducer, frozen=True):
    """The tools with calls that clients run, and the tools with parallel calls, each by its name
    and its wire name. The last `AgentConfigured` event restores them."""

    events = (ev.AgentConfigured, ev.DamagedEvent)
    clients: tuple[str, ...] = ()
    parallel: frozenset[str] = frozenset()

    def feed(self, event: Any, fold: Fold) -> CallKinds:
        if type(event) is ev.AgentConfigured:
            clients = _names([tool for tool in event.tools if tool.executor == "client"])
            return _call_kinds(clients, _names([one for one in event.tools if one.parallel]))
        if event.original_type == "agent":
            return CallKinds((*self.clients, *damage.client_tools(event)), self.parallel)
        return self


def _names(tools: list[ev.ToolDefinition]) -> tuple[str, ...]:
    return tuple([name for tool in tools for name in (tool.name, tool.wire_name) if name])


@lru_cache(maxsize=64)
def _call_kinds(clients: tuple[str, ...], parallel: tuple[str, ...]) -> CallKinds:
    """Return the kinds of these tools' calls: one object for all conversations of an agent."""
    return CallKinds(clients, frozenset(parallel))


class OwnMessages(Reducer, frozen=True):
    """The seqs of Holdfast's own messages that a model is still shown, by `MessageAdded.about`."""

    events = (ev.MessageAdded, ev.HistoryCondensed)
    seqs: dict[str, int] = {}

    def feed(self, event: Any, fold: Fold) -> OwnMessages:
        if type(event) is ev.MessageAdded:
            return OwnMessages({**self.seqs, event.about: event.seq}) if event.about else self
        if not self.seqs or not event.hidden:
            return self
        hidden = frozenset(event.hidden)
        return OwnMessages({about: seq for about, seq in self.seqs.items() if seq not in hidden})


class TimerFacts(Reducer, frozen=True):
    """The timers that are set, by id. `waiting` is the seq of the answer whose call of `wait_until`
    succeeded last, 0 for none."""

    events = (ev.TimerSet, ev.TimerFired, ev.TimerCancelled, ev.DamagedEvent)
    tools = (timers.WAIT,)
    by_id: Mapping[str, timers.Timer] = {}
    waiting: int = 0

    def feed(self, event: Any, fold: Fold) -> TimerFacts:
        if type(event) is ev.ToolCallFinished:
            ends = not event.result.is_error and timers.WAIT in self.by_id
            return replace(self, waiting=answer_seq(event.call_id)) if ends else self
        if type(event) is ev.DamagedEvent and not self.by_id:
            return self
        after = timers.after_event(self.by_id, event)
        return self if after is self.by_id else replace(self, by_id=after)

    def waits(self, last: ev.AssistantReplied | None) -> bool:
        """True if the last answer asked to wait until a time."""
        return last is not None and self.waiting == last.seq

    @property
    def listed(self) -> tuple[timers.Timer, ...]:
        """The timers, the earliest first."""
        return tuple(sorted(self.by_id.values(), key=lambda one: one.due))

    @property
    def next_due(self) -> datetime | None:
        """The earliest due time, None without timers."""
        return min([one.due for one in self.by_id.values()], default=None)

    def checkpoint(self) -> dict[str, Any]:
        marks = [ev.TimerMark(one.set_seq, one.due, one.message_seq) for one in self.by_id.values()]
        return {"timers": tuple(marks), "waiting": self.waiting}

    @classmethod
    def restore(cls, checkpoint: ev.Checkpoint, read_event: ReadEvent) -> TimerFacts:
        by_id: dict[str, timers.Timer] = {}
        for mark in checkpoint.timers:
            # a timer whose event is damaged by now is lost
            if isinstance(event := read_event(mark.seq), ev.TimerSet):
                timer = timers.timer_of(event)
                by_id[timer.id] = replace(timer, due=mark.due, message_seq=mark.message_seq)
        return cls(by_id, checkpoint.waiting) if by_id or checkpoint.waiting else cls()


class LabelFacts(Reducer, frozen=True):
    """The title and the tags. `tried` is True once a title of its own was written, set, or could
    not be written."""

    events = (ev.MessageAdded, ev.ConversationLabelled, ev.NoteRecorded)
    labels: Labels = Labels()
    tried: bool = False

    def feed(self, event: Any, fold: Fold) -> LabelFacts:
        if type(event) is ev.NoteRecorded:
            failed = event.about == TITLE and not self.tried
            return replace(self, tried=True) if failed else self
        after = labels_after(self.labels, event)
        return self if after is self.labels else LabelFacts(after, self.tried or after.named)

    def checkpoint(self) -> dict[str, Any]:
        title, tags, is_named = msgspec.structs.astuple(self.labels)
        return {"title": title, "tags": tags, "named": is_named or self.tried}

    @classmethod
    def restore(cls, checkpoint: ev.Checkpoint, read_event: ReadEvent) -> LabelFacts:
        is_named = checkpoint.named
        return cls(Labels(checkpoint.title, checkpoint.tags, is_named), is_named)


class AsideFacts(Reducer, frozen=True):
    """The ids of the questions aside that have no outcome yet."""

    events = (ev.AsideAsked, ev.AsideAnswered)
    stored = {"pending": "asides"}
    pending: tuple[str, ...] = ()

    def feed(self, event: Any, fold: Fold) -> AsideFacts:
        if type(event) is ev.AsideAsked:
            return AsideFacts((*self.pending, event.aside))
        return AsideFacts(tuple([id for id in self.pending if id != event.aside]))


class PictureFacts(Reducer, frozen=True):
    """`any` is True if a message or result read so far contains a picture, for which a model's
    sight matters."""

    events = (ev.MessageAdded, ev.ToolCallFinished)
    any: bool = False

    def feed(self, event: Any, fold: Fold) -> PictureFacts:
        if self.any:
            return self
        if type(event) is ev.MessageAdded:
            return PictureFacts(True) if has_picture(event.content) else self
        nested = is_nested(event.call_id)  # a model is not shown its result
        return PictureFacts(True) if not nested and has_picture(event.result.content) else self
