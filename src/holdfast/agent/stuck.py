"""Detection of agents that repeat themselves without progress.

`Recent` is part of a journal's fold: it counts how long each pattern has lasted and keeps the
last two steps for comparison. `StuckDetector` holds the thresholds. `stuck_signal` compares the
two. `Recent` and `stuck_signal` are pure, and cost the same at any step.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from holdfast import events as ev
from holdfast.agent.damage import stand_in
from holdfast.content import ToolCall, ToolResult, is_nested
from holdfast.tools.arguments import is_whole, wrong

ABOUT = "stuck:"
# The lowest threshold of each pattern, in steps.
_MIN_STEPS = {"repeat": 2, "ping_pong": 4, "errors": 2, "monologue": 2}
_COMPARED_CHARS = 4_000  # characters of an error's text that are compared; the rest adds nothing
# Durations, times of day, addresses and process numbers in the text of errors.
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d[\d.,:]*")


class StuckDetector(msgspec.Struct, frozen=True):
    """The number of consecutive steps after which each pattern counts as stuck; None disables a
    pattern.

    At a threshold the model gets a message. The defaults are high enough not to disturb an agent
    that looks twice or retries. Raises `ConfigurationError` for a number that is too low to be a
    pattern.

    Attributes:
        repeat: Steps with the same calls and the same results.
        ping_pong: Steps in which two different steps alternate.
        errors: Steps whose calls all fail, each tool in the same way, with any arguments.
        monologue: Answers without a call while the run continues for another reason.
        after_nudge: Further steps of the pattern after the message; then the conversation is STUCK.
    """

    repeat: int | None = 4
    ping_pong: int | None = 6
    errors: int | None = 5
    monologue: int | None = 4
    after_nudge: int = 3

    def __post_init__(self) -> None:
        for name, least in (*_MIN_STEPS.items(), ("after_nudge", 1)):
            value = getattr(self, name)
            none = "" if name == "after_nudge" else " or None"
            if not is_whole(value, least) and not (value is None and none):
                raise wrong(f"StuckDetector: {name}", f"a whole number from {least}{none}", value)


class _Step(NamedTuple):
    """The calls of one answer and their results, in the order of the calls, held by reference."""

    calls: tuple[ToolCall, ...]
    results: tuple[ToolResult, ...]


class Recent(msgspec.Struct):
    """The patterns of the last steps of a run. Feed each event of a journal, in order."""

    # The current length of each pattern, in steps.
    repeat: int = 0
    ping_pong: int = 0
    errors: int = 0
    monologue: int = 0
    # The pattern that the model was told about, and its length at that time.
    nudged: tuple[str, int] | None = None
    tools: str = ""  # names of the last step's tools, for messages
    last: _Step | None = None
    before: _Step | None = None  # the step before the last one
    calls: tuple[ToolCall, ...] = ()  # calls of the last answer, until all have results
    results: dict[str, ToolResult] | None = None  # of these calls, once there is one

    def _reset(self) -> None:
        self.repeat = self.ping_pong = self.errors = self.monologue = 0
        self.nudged = self.last = self.before = None
        self.tools = ""

    def copy(self) -> Recent:
        """Return an independent copy."""
        results = None if self.results is None else dict(self.results)
        return msgspec.structs.replace(self, results=results)

    def feed(self, event: ev.AnyEvent) -> None:
        """Add the journal's next event."""
        if type(event) is ev.DamagedEvent:
            event = stand_in(event) or event
        if type(event) is ev.ToolCallFinished:
            self._on_result(event)
        elif type(event) is ev.AssistantReplied:
            self.calls, self.results = event.calls, None
            if event.calls:
                self._count("monologue", 0)
            elif event.stop_reason not in ("pause", "denied"):  # by the provider or a hook
                self._count("monologue", self.monologue + 1)
        elif type(event) is ev.MessageAdded:
            if event.sender != "holdfast":
                self._reset()
            elif event.about.startswith(ABOUT):
                kind = event.about.removeprefix(ABOUT).replace("-", "_")
                # Otherwise the message is about steps before the events that were fed.
                if kind in _MIN_STEPS and getattr(self, kind) >= _MIN_STEPS[kind]:
                    self.nudged = (kind, getattr(self, kind))
        elif type(event) is ev.StatusChanged:
            if event.status in ("idle", "finished", "stuck", "error"):
                self._reset()
        elif type(event) is ev.HistoryCondensed and event.hidden:
            # The model's view changes. A reset also makes a condensed tail fold to the same value
            # as the whole journal.
            self._reset()

    def _on_result(self, event: ev.ToolCallFinished) -> None:
        if not self.calls or is_nested(event.call_id):
            return
        calls, results = self.calls, self.results or {}
        results.setdefault(event.call_id, event.result)
        if len(results) < len(calls):
            self.results = results
            return
        step = _Step(calls, tuple([results[call.id] for call in calls if call.id in results]))
        self.calls, self.results = (), None
        if not any(map(_still_running, step.results)):
            self._on_step(step)

    def _on_step(self, step: _Step) -> None:
        last, before = self.last, self.before
        self.tools = ", ".join(dict.fromkeys(call.name for call in step.calls))
        repeats = last is not None and _same_step(step, last)
        self._count("repeat", self.repeat + 1 if repeats else 1)
        if repeats or last is None:
            self._count("ping_pong", 1)
        else:
            alternates = before is not None and _same_step(step, before)
            self._count("ping_pong", self.ping_pong + 1 if alternates else 2)
        if not all(result.is_error for result in step.results):
            self._count("errors", 0)
        else:
            alike = last is not None and (repeats or _fails_alike(step, last))
            self._count("errors", self.errors + 1 if alike else 1)
        self.last, self.before = step, last

    def _count(self, kind: str, value: int) -> None:
        if self.nudged is not None and self.nudged[0] == kind and value < self.nudged[1]:
            self.nudged = None  # the pattern has ended
        setattr(self, kind, value)


def recent_of(events: Sequence[ev.AnyEvent], before: Recent) -> Recent:
    """Return `before` after it was fed these events. Only the events that the last patterns consist
    of are inspected."""
    start = _start_of(events)
    recent = Recent() if start else before.copy()
    for event in events[start:] if start else events:
        recent.feed(event)
    return recent


def _start_of(events: Sequence[ev.AnyEvent]) -> int:
    """Return the index of an answer from which the counts of all current patterns come out right.
    The answer before that index belongs to none of the patterns."""
    later: list[tuple[ToolCall, ...]] = []
    waits = reset = succeeded = False
    for index in range(len(events) - 1, -1, -1):
        event = events[index]
        if type(event) is ev.ToolCallFinished:
            waits = waits or _still_running(event.result)
            succeeded = succeeded or not event.result.is_error
        elif type(event) is ev.MessageAdded:
            reset = reset or event.sender != "holdfast"
        elif type(event) is ev.AssistantReplied:
            if reset:
                return index
            calls = event.calls
            if calls and not waits:
                differs = len(later) >= 3 and not any(_same_calls(calls, one) for one in later[-2:])
                if differs and (
                    succeeded or [call.name for call in calls] != [call.name for call in later[-1]]
                ):
                    return index + 1
                later.append(calls)
            waits = succeeded = False
    return 0


def _still_running(result: ToolResult) -> bool:
    """Return True if the result reports a process that still runs."""
    return result.meta.get("running") is True


def _same_step(one: _Step, other: _Step) -> bool:
    """Return True if both steps have the same calls with the same results. Results are compared
    only if the calls are the same."""
    return _same_calls(one.calls, other.calls) and all(
        map(_same_result, one.results, other.results)
    )


def _same_calls(one: tuple[ToolCall, ...], other: tuple[ToolCall, ...]) -> bool:
    if len(one) != len(other):
        return False
    for call, earlier in zip(one, other, strict=True):
        same = call.name == earlier.name and call.arguments == earlier.arguments
        if not same or (call.invalid and call.raw != earlier.raw):
            return False
    return True


def _same_result(one: ToolResult, other: ToolResult) -> bool:
    if one.is_error and other.is_error:
        return _same_error(one, other)
    return (
        one.is_error == other.is_error
        and one.content == other.content
        and one.structured_content == other.structured_content
    )


def _fails_alike(one: _Step, other: _Step) -> bool:
    return (
        [call.name for call in one.calls] == [call.name for call in other.calls]
        and all(result.is_error for result in other.results)
        and all(map(_same_error, one.results, other.results))
    )


def _same_error(one: ToolResult, other: ToolResult) -> bool:
    """Return True if two errors differ at most in numbers."""
    if (one.error and one.error.type) != (other.error and other.error.type):
        return False
    text, earlier = one.text[:_COMPARED_CHARS], other.text[:_COMPARED_CHARS]
    return text == earlier or _NUMBER.sub("0", text) == _NUMBER.sub("0", earlier)


class StuckSignal(NamedTuple):
    """A detected pattern: the `about` and the `text` of a message to the model. If the message has
    not helped, `reason` is the one for the end of the run."""

    about: str = ""
    text: str = ""
    reason: str = ""


def stuck_signal(recent: Recent, detector: StuckDetector) -> StuckSignal | None:
    """Return the current pattern if a message or the end of the run is due; None otherwise."""
    if recent.nudged is not None and getattr(detector, recent.nudged[0]) is not None:
        kind, at = recent.nudged
        count: int = getattr(recent, kind)
        if count - at >= detector.after_nudge:
            what = _REASONS[kind].format(count=count, tools=recent.tools)
            return StuckSignal(reason=f"{what}, {count - at} of them after the model was told")
        return None
    for kind in _MIN_STEPS:
        threshold: int | None = getattr(detector, kind)
        if threshold is not None and (count := getattr(recent, kind)) >= threshold:
            text = _NUDGES[kind].format(count=count, tools=recent.tools)
            return StuckSignal(f"{ABOUT}{kind.replace('_', '-')}", text)
    return None


_REASONS = {
    "repeat": "the same call {count} times in a row with the same result ({tools})",
    "ping_pong": (
        "two alternating steps, {count} in a row with the same results (the last: {tools})"
    ),
    "errors": "{count} steps in a row failed in the same way ({tools})",
    "monologue": "{count} answers in a row without a call",
}
_NUDGES = {
    "repeat": (
        "You have made the same call {count} times in a row with the same result: {tools}. Making"
        " it again will not change that. Do something else: look at what you have, try another way,"
        " or, if you cannot go on, say what is in the way."
    ),
    "ping_pong": (
        "You have alternated between the same two steps {count} times, with the same results"
        " each time; the last was: {tools}. Stop: look at what you have, try another way, or,"
        " if you cannot go on, say what is in the way."
    ),
    "errors": (
        "Your last {count} steps all failed in the same way: {tools}. Do not try the same again."
        " Read what the error says, try another tool or another way, or, if you cannot go on, say"
        " what is in the way."
    ),
    "monologue": (
        "You have answered {count} times in a row without calling a tool. Text alone does not"
        " advance the task: call a tool, or, if you cannot go on, say what is in the way."
    ),
}
