"""Statistics of conversations from their journals: time, tokens and cost per model and tool,
errors, and the longest calls. Only reads a store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime
from heapq import heappop, heappush
from typing import Any

import msgspec

from holdfast import events as ev
from holdfast.content import Usage, cost_sum
from holdfast.errors import ConversationNotFound
from holdfast.store import Store, Summary

_PAGE_EVENTS = 500  # events read and held at once
_LONGEST_CALLS = 10

# The events that record a model call's tokens and cost.
_ModelEvent = (
    ev.AssistantReplied
    | ev.HistoryCondensed
    | ev.MessageAdded
    | ev.DecisionMade
    | ev.NoteRecorded
    | ev.AsideAnswered
)


# The fields of `Stats` that count the events of a journal, with their first values.
MAX_FORKS = 100
"""The forks of a conversation that a tree shows."""
_SUMS = {"events": 0, "steps": 0, "seconds": 0.0, "waited": 0.0, "condensations": 0}


def _added(one: object, other: object, *fields: str) -> dict[str, Any]:
    return {name: getattr(one, name) + getattr(other, name) for name in fields}


class CallTotals(msgspec.Struct, frozen=True, rename="camel"):
    """The calls, failures, seconds, tokens and US dollars of one model or tool. `unpriced` calls
    have no known price.

    `provider_cost` is the part of `cost` that providers stated for answers, None if none did.
    `list_cost` is the price of the same answers by the table of list prices, None if it is unknown
    for any of them.
    """

    name: str
    calls: int = 0
    errors: int = 0
    seconds: float = 0.0
    longest: float = 0.0
    usage: Usage = Usage()
    cost: float | None = 0.0
    unpriced: int = 0
    provider_cost: float | None = None
    list_cost: float | None = None

    def __add__(self, other: CallTotals) -> CallTotals:
        added = _added(self, other, "calls", "errors", "seconds", "usage", "unpriced")
        added["cost"] = cost_sum(self.cost, other.cost, added["unpriced"])
        added["longest"] = max(self.longest, other.longest)
        stated = [one for one in (self, other) if one.provider_cost is not None]
        if stated:
            added["provider_cost"] = sum(one.provider_cost or 0.0 for one in stated)
            listed = [one.list_cost for one in stated if one.list_cost is not None]
            added["list_cost"] = sum(listed) if len(listed) == len(stated) else None
        return CallTotals(self.name, **added)


class LongCall(msgspec.Struct, frozen=True, order=True, rename="camel"):
    """One of the longest calls, of a model (`chat`) or a tool (`execute_tool`), ended by event
    `seq`."""

    seconds: float
    conversation: str
    seq: int
    operation: str
    name: str
    error: str = ""


class Stats(msgspec.Struct, frozen=True, rename="camel"):
    """The statistics of one conversation (`id`), without those it spawned, or the sum of several
    (`id` is "").

    `seconds` is the time spent running, and `waited` the time spent waiting for a confirmation.
    `errors` counts failed runs by class name, `server_tools` the calls that providers ran by name.
    `models`, `tools` and `longest` are sorted in descending order.
    """

    id: str = ""
    title: str = ""
    status: str = ""
    spawned_by: str = ""
    conversations: int = 1
    events: int = 0
    steps: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    condensations: int = 0
    errors: dict[str, int] = {}
    server_tools: dict[str, int] = {}
    models: tuple[CallTotals, ...] = ()
    tools: tuple[CallTotals, ...] = ()
    longest: tuple[LongCall, ...] = ()

    @property
    def _sum(self) -> CallTotals:
        return sum(self.models, CallTotals(""))

    @property
    def usage(self) -> Usage:
        """The tokens of all models."""
        return self._sum.usage

    @property
    def cost(self) -> float | None:
        """The cost in US dollars of calls with known prices, as providers state them or else by
        list prices; None if no price is known."""
        return self._sum.cost

    @property
    def provider_cost(self) -> float | None:
        """The part of `cost` that providers stated; None if none did."""
        return self._sum.provider_cost

    @property
    def list_cost(self) -> float | None:
        """The price of the answers in `provider_cost` by list prices; None if it is unknown for
        any of them."""
        return self._sum.list_cost

    @property
    def unpriced(self) -> int:
        """The number of model calls whose price is unknown."""
        return self._sum.unpriced

    @property
    def cached(self) -> float:
        """The fraction of input tokens that providers read from a cache, 0 to 1."""
        usage = self.usage
        return usage.cached_input_tokens / usage.input_tokens if usage.input_tokens else 0.0

    def __add__(self, other: Stats) -> Stats:
        longest = sorted((*self.longest, *other.longest), reverse=True)[:_LONGEST_CALLS]
        return Stats(
            errors=dict(Counter(self.errors) + Counter(other.errors)),
            server_tools=dict(Counter(self.server_tools) + Counter(other.server_tools)),
            models=_sums((*self.models, *other.models)),
            tools=_sums((*self.tools, *other.tools)),
            longest=tuple(longest),
            **_added(self, other, "conversations", *_SUMS),
        )


NOTHING = Stats(conversations=0)


def _add(sums: dict[str, CallTotals], share: CallTotals) -> None:
    sums[share.name] = sums[share.name] + share if share.name in sums else share


def _sums(shares: Iterable[CallTotals]) -> tuple[CallTotals, ...]:
    """Return the sums by name, longest first."""
    sums: dict[str, CallTotals] = {}
    for share in shares:
        _add(sums, share)
    return tuple(sorted(sums.values(), key=lambda one: (-one.seconds, -one.calls, one.name)))


def tree(store: Store, conversation_id: str) -> list[Summary]:
    """Return a conversation and all its descendants (those spawned by its calls), parents first.
    Raises `ConversationNotFound`."""
    summaries = store.list([conversation_id])
    if not summaries:
        raise ConversationNotFound(f"No conversation {conversation_id!r} is in the store.")
    seen_ids = {conversation_id}  # a file that was written by others may have circles
    for summary in summaries:  # the loop appends to this list
        children = [one for one in store.list(spawned_by=summary.id) if one.id not in seen_ids]
        seen_ids |= {child.id for child in children}
        summaries += sorted(children, key=lambda child: child.id)
    return summaries


def forks(store: Store, conversation_id: str, limit: int) -> list[Summary]:
    """Return the forks of a conversation and the forks of those, at most `limit`: each follows the
    one that it was forked from, oldest first."""
    below: dict[str, list[Summary]] = {}
    level, seen_ids = [conversation_id], {conversation_id}
    while level:
        forks = [one for one in store.list(forked_from=level) if one.id not in seen_ids]
        for one in sorted(forks, key=lambda one: (str(one.created), one.id)):
            below.setdefault(one.parent, []).append(one)
        level = [one.id for one in forks]
        seen_ids |= {*level}
    ordered: list[Summary] = []
    remaining = [*reversed(below.get(conversation_id, []))]
    while remaining and len(ordered) < limit:
        ordered.append(remaining.pop())
        remaining += reversed(below.get(ordered[-1].id, []))
    return ordered


def stats(store: Store, summary: Summary) -> Stats:
    """Return the statistics of one conversation, without the events that it shares with the one
    it was forked from. Holds one page of events at a time."""
    count = JournalCount(summary)
    for event in own_events(store, summary):
        count.take(event)
    return count.result()


def own_events(store: Store, summary: Summary) -> Iterator[ev.AnyEvent]:
    """Yield the events of a conversation, without events that it shares with the origin of a fork.
    Holds one page of events at a time."""
    seq = summary.parent_seq
    while page := store.read(summary.id, seq, _PAGE_EVENTS):
        yield from page
        seq = page[-1].seq


class JournalCount:
    """A running count of the events of one journal. `take` takes each event, `result` returns the
    statistics of those so far."""

    def __init__(self, summary: Summary) -> None:
        self._summary = summary
        self._models: dict[str, CallTotals] = {}
        self._tools: dict[str, CallTotals] = {}
        self._errors = Counter[str]()
        self._server_tools = Counter[str]()
        # Calls without a result: id -> name and start time.
        self._open: dict[str, tuple[str, datetime | None]] = {}
        self._longest: list[LongCall] = []
        self._sums: dict[str, Any] = {**_SUMS}
        self._status = ""
        self._interval_start: datetime | None = None
        self._last_timestamp: datetime | None = None

    def take(self, event: ev.AnyEvent) -> None:
        self._sums["events"] += 1
        match event:
            case ev.AssistantReplied():
                self._sums["steps"] += 1
                self._add_model(event, 1, event.duration)
                self._add_long_call(event, event.duration, "chat", event.model or "unknown")
                for call in event.calls:
                    self._open[call.id] = (call.name, None)
                self._server_tools.update([call.name for call in event.server_calls])
            case ev.CodeCallsMade():
                self._open.update({call.id: (call.name, None) for call in event.calls})
            case ev.ToolCallStarted():
                name, began = self._open.get(event.call_id, ("unknown", None))
                self._open[event.call_id] = (name, began or event.timestamp)
            case ev.ToolCallFinished():
                name, began = self._open.pop(event.call_id, ("unknown", None))
                if began is not None:  # otherwise the call was not run
                    # The result of a client's tool has no duration.
                    seconds = event.duration or max(0.0, (event.timestamp - began).total_seconds())
                    result = event.result
                    error = result.error.type if result.error is not None else "tool_error"
                    error = error if result.is_error else ""
                    _add(self._tools, CallTotals(name, 1, int(bool(error)), seconds, seconds))
                    self._add_long_call(event, seconds, "execute_tool", name, error)
            case ev.StatusChanged():
                self._close_interval(event.timestamp)
                self._status, self._interval_start = event.status, event.timestamp
            case ev.ErrorRecorded():
                self._errors[event.error] += 1
            case (
                ev.HistoryCondensed()
                | ev.MessageAdded()
                | ev.DecisionMade()
                | ev.NoteRecorded()
                | ev.AsideAnswered()
            ):
                if isinstance(event, ev.HistoryCondensed) and event.request is None:
                    self._sums["condensations"] += 1
                # Of a summary, a picture's description, a judge; some prices are per call.
                if event.usage != Usage() or event.cost:
                    self._add_model(event, 0, 0.0)
            case _:
                pass
        self._last_timestamp = event.timestamp

    def _close_interval(self, end: datetime | None) -> None:
        if self._interval_start is not None and end is not None:
            kind = {"running": "seconds", "waiting_for_confirmation": "waited"}.get(self._status)
            if kind is not None:
                self._sums[kind] += max(0.0, (end - self._interval_start).total_seconds())
        self._interval_start = None

    def _add_model(self, event: _ModelEvent, calls: int, seconds: float) -> None:
        name, unpriced = event.model or "unknown", int(event.cost is None)
        totals = CallTotals(name, calls, 0, seconds, seconds, event.usage, event.cost, unpriced)
        if isinstance(event, ev.AssistantReplied) and event.provider_cost is not None:
            both = {"provider_cost": event.provider_cost, "list_cost": event.list_cost}
            totals = msgspec.structs.replace(totals, **both)
        _add(self._models, totals)

    def _add_long_call(
        self, event: ev.AnyEvent, seconds: float, operation: str, name: str, error: str = ""
    ) -> None:
        long_call = LongCall(seconds, self._summary.id, event.seq, operation, name, error)
        heappush(self._longest, long_call)
        if len(self._longest) > _LONGEST_CALLS:
            heappop(self._longest)

    def result(self) -> Stats:
        if self._status == "running":  # counted up to the last event
            self._close_interval(self._last_timestamp)
        summary = self._summary
        return Stats(
            summary.id,
            summary.title,
            summary.status,
            summary.spawned_by,
            errors=dict(self._errors),
            server_tools=dict(self._server_tools),
            models=_sums(self._models.values()),
            tools=_sums(self._tools.values()),
            longest=tuple(sorted(self._longest, reverse=True)),
            **self._sums,
        )
