"""The trace of a run, made of its journals, which are only read. The trace has the spans of model
calls, tool calls and waits, tokens and costs by step, the tree of conversations, and the changed
files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, cast

import msgspec

from holdfast import events as ev
from holdfast.agent.delegation import CHILD
from holdfast.content import Data, Usage
from holdfast.errors import ConversationNotFound
from holdfast.llm.info import model_info
from holdfast.observe.changes import ChangedFile, DiffCollector
from holdfast.observe.stats import MAX_FORKS, JournalCount, forks, own_events
from holdfast.store import Store, Summary

MAX_SPANS = 2_000
"""The maximum number of spans of a trace. The longest and the failed ones are kept."""
_MAX_POINTS = 400  # of the charts
_MAX_CONVERSATIONS, _MAX_DEPTH = 500, 100
_TITLE_CHARACTERS = 200
_DIFF_CHARACTERS = 4_000_000
_TITLE_KEYS = ("command", "pattern", "query", "url", "path", "file_path", "text", "task", "agent")

SpanKind = Literal["message", "model", "tool", "child", "wait", "mark"]


class TraceSpan(Data, frozen=True):
    """A part of a run. `start` is in seconds after the trace's `begin`; `seq` is its event.

    | kind | span |
    |---|---|
    | `model`, `tool` | a call of the model, of a tool |
    | `child` | a call that spawned the conversation `child` |
    | `wait` | a call that waits for a decision or an answer |
    | `message`, `mark` | an instant: a message; a condensation, a retry or an error |

    `conversation` is the index of its conversation in the trace, and `depth` the number of calls
    that it is nested in. `running`: it has not ended.
    """

    kind: SpanKind
    name: str
    start: float
    seconds: float = 0.0
    seq: int = 0
    conversation: int = 0
    depth: int = 0
    title: str = ""
    error: str = ""
    child: str = ""
    running: bool = False
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float | None = None


class TracePoint(Data, frozen=True):
    """One step of the traced conversation, or `steps` neighbouring ones. `seq` is the last event.
    The tokens and US dollars are those of all these steps, and `total_cost` is the cost up to
    there.

    `context` is the largest share of the context window that request and answer took, 0 to 1; None
    if the window is not known.
    """

    seq: int
    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    total_cost: float = 0.0
    context: float | None = None
    steps: int = 1


class TracedConversation(Data, frozen=True):
    """One conversation of a trace, with its sums; see `Stats` for those.

    `relation` is "" for the traced conversation, "child" for a child of `parent`, and "fork" for a
    fork of `parent` at event `parent_seq`. The sums of a fork count from there, and its spans are
    not in the trace. `start` is that of its first event.
    """

    id: str
    title: str = ""
    status: str = ""
    relation: Literal["", "child", "fork"] = ""
    parent: str = ""
    parent_seq: int = 0
    depth: int = 0
    start: float = 0.0
    events: int = 0
    steps: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    usage: Usage = Usage()
    cost: float | None = None


class RunTrace(Data, frozen=True):
    """The trace of a conversation and of all conversations that its calls spawned.

    `spans` are in the order of their starts; those of a child follow the call that spawned it.
    `left_out` spans are not among them, because others are longer. `damaged` events could not be
    read. `window` is the context window of the last model in tokens, None if it is not known.
    """

    begin: datetime
    conversations: tuple[TracedConversation, ...]
    spans: tuple[TraceSpan, ...] = ()
    points: tuple[TracePoint, ...] = ()
    files: tuple[ChangedFile, ...] = ()
    window: int | None = None
    left_out: int = 0
    damaged: int = 0


def trace(store: Store, conversation_id: str, limit: int = MAX_SPANS) -> RunTrace:
    """Return the trace of a conversation of a store, with at most `limit` spans. Raises
    `ConversationNotFound`."""
    summaries = store.list([conversation_id])
    if not summaries:
        raise ConversationNotFound(f"No conversation {conversation_id!r} is in the store.")
    return stored_trace(store, summaries[0], limit)


def stored_trace(store: Store, root: Summary, limit: int = MAX_SPANS) -> RunTrace:
    """Return the trace of a conversation of a store, which may have no events yet."""
    return make_trace(
        root,
        lambda summary: own_events(store, summary),
        lambda parent: store.list(spawned_by=parent),
        forks(store, root.id, MAX_FORKS),
        limit=limit,
    )


def make_trace(
    root: Summary,
    events: Callable[[Summary], Iterable[ev.AnyEvent]],
    children: Callable[[str], Sequence[Summary]],
    forks: Sequence[Summary] = (),
    *,
    limit: int = MAX_SPANS,
) -> RunTrace:
    """Return the trace of `root`, for journals that are elsewhere.

    Args:
        events: Returns the own events of a conversation, in order.
        children: Returns the conversations that calls of one spawned.
        forks: The forks of `root`, and of those, each after the one that it was forked from.
        limit: The largest number of spans.
    """
    return _Tracer(events, children, limit).trace(root, forks)


class _Journal:
    """The spans of one journal, as its events come."""

    def __init__(self, summary: Summary, index: int, depth: int) -> None:
        self.summary = summary
        self.spans: list[TraceSpan] = []
        self.diffs: list[tuple[float, int, str]] = []
        self.answers: list[ev.AssistantReplied] = []
        self.damaged = 0
        self.first = self.last = 0.0
        self.count = JournalCount(summary)
        self._index = index
        self._depth = depth
        self._calls: dict[str, tuple[str, str, int]] = {}  # name, title, nesting
        self._started: dict[str, tuple[float, int]] = {}
        self._waits: dict[str, tuple[float, int, str]] = {}

    def take(self, event: ev.AnyEvent) -> None:
        self.count.take(event)
        at = event.timestamp.timestamp() if event.timestamp != ev.EPOCH else self.last
        at = max(at, self.last)  # a clock that was set back
        self.first, self.last = self.first or at, at
        match event:
            case ev.AssistantReplied():
                self._answer(event, at)
            case ev.CodeCallsMade():
                for call in event.calls:
                    nested = event.call_id.count(".")
                    self._calls[call.id] = (call.name, _title(call.arguments), nested)
            case ev.ToolCallStarted():
                first = self._started.setdefault(event.call_id, (at, event.seq))
                if event.attempt > 1 and first[1] != event.seq:
                    name = self._calls.get(event.call_id, ("unknown", "", 0))[0]
                    self._mark(event.seq, at, f"attempt {event.attempt} of {name}")
            case ev.ToolCallFinished():
                self._result(event, at)
            case ev.DecisionMade():
                self._decision(event, at)
            case ev.MessageAdded():
                sender = "you" if event.sender == "user" else event.sender
                self._add("message", sender, at, seq=event.seq, title=_cut(event.text))
            case ev.ErrorRecorded():
                self._mark(event.seq, at, event.error, event.message, event.error)
            case ev.HistoryCondensed() if event.request is None:
                self._mark(event.seq, at, "condensed", event.failed or event.summary)
            case ev.StatusChanged(status="stuck" | "paused"):
                self._mark(event.seq, at, event.status, event.reason)
            case ev.DamagedEvent():
                self.damaged += 1
                self._mark(event.seq, at, "damaged event", event.reason, "damaged")
            case _:
                pass

    def _add(self, kind: SpanKind, name: str, start: float, **fields: Any) -> None:
        span_fields: dict[str, Any] = {"conversation": self._index, "depth": self._depth} | fields
        self.spans.append(TraceSpan(kind, name, start, **span_fields))

    def _mark(self, seq: int, at: float, name: str, title: str = "", error: str = "") -> None:
        self._add("mark", name, at, seq=seq, title=_cut(title), error=error)

    def _answer(self, event: ev.AssistantReplied, at: float) -> None:
        seconds, usage = max(0.0, event.duration), event.usage
        self._add(
            "model",
            event.model or "model",
            at - seconds,
            seconds=seconds,
            seq=event.seq,
            title=_cut(event.text) or ", ".join([call.name for call in event.calls[:8]]),
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cost=event.cost,
        )
        self.answers.append(event)
        for call in event.calls:
            self._calls[call.id] = (call.name, _title(call.arguments), 0)

    def _result(self, event: ev.ToolCallFinished, at: float) -> None:
        started = self._started.pop(event.call_id, None)
        self._end_wait(event.call_id, at)
        result, meta = event.result, event.result.meta
        diff = meta.get("diff")
        if isinstance(diff, str) and diff and not result.is_error:
            self.diffs.append((at, event.seq, diff))
        if started is None:  # it was not run: denied, rejected or cancelled
            return
        child = meta.get(CHILD)
        child_id = cast("dict[str, Any]", child).get("id") if isinstance(child, dict) else None
        error = result.error.type if result.error is not None else "tool_error"
        error = error if result.is_error else ""
        code = meta.get("exitCode")
        if not error and isinstance(code, int) and code:
            error = f"exit code {code}"
        child_id = child_id if isinstance(child_id, str) else ""
        seconds = event.duration or at - started[0]  # the result of a client's tool has none
        self._call(event.call_id, started, seconds, error=error, child=child_id)

    def _call(self, id: str, started: tuple[float, int], seconds: float, **fields: Any) -> None:
        name, title, nested = self._calls.get(id, ("unknown", "", 0))
        span_fields: dict[str, Any] = {"depth": self._depth + nested, "title": title} | fields
        self._add(
            "child" if fields.get("child") else "tool",
            name,
            started[0],
            seconds=max(0.0, seconds),
            seq=started[1],
            **span_fields,
        )

    def _decision(self, event: ev.DecisionMade, at: float) -> None:
        wait = event.question.id if event.question else event.question_id or event.call_id
        if event.decision == "ask" or event.question is not None:
            name = self._calls.get(event.call_id, ("unknown", "", 0))[0]
            self._waits.setdefault(wait, (at, event.seq, name))
        else:
            self._end_wait(wait, at)

    def _end_wait(self, id: str, at: float, running: bool = False) -> None:
        if (wait := self._waits.pop(id, None)) is not None:
            began, seq, name = wait
            self._add("wait", name, began, seconds=at - began, seq=seq, running=running)

    def end(self, spawned: Mapping[str, str]) -> None:
        """Add the spans that have not ended. `spawned` are the children by their calls' ids."""
        for id, started in self._started.items():
            child = spawned.get(id, "")
            self._call(id, started, self.last - started[0], child=child, running=True)
        for id in list(self._waits):
            self._end_wait(id, self.last, running=True)
        self.spans.sort(key=lambda span: (span.start, span.seq))


class _Tracer:
    def __init__(
        self,
        events: Callable[[Summary], Iterable[ev.AnyEvent]],
        children: Callable[[str], Sequence[Summary]],
        limit: int,
    ) -> None:
        self._events = events
        self._children = children
        self._limit = limit
        self._journals: list[tuple[_Journal, TracedConversation]] = []
        self._seen_ids = set[str]()  # a file that was written by others may have circles

    def trace(self, root: Summary, forks: Sequence[Summary]) -> RunTrace:
        self._seen_ids.add(root.id)
        spans = list(self._read(root, "", 0))
        first = self._journals[0][0]
        begin = min([journal.first for journal, _ in self._journals if journal.first] or [0.0])
        begin = min([begin, *[span.start for span in spans]])
        conversations = [one for _, one in self._journals]
        depths = {root.id: 0}
        for fork in forks[: _MAX_CONVERSATIONS - len(conversations)]:
            depths[fork.id] = depths.get(fork.parent, 0) + 1
            journal = _Journal(fork, 0, 0)
            for event in self._events(fork):
                journal.count.take(event)
                journal.first = journal.first or event.timestamp.timestamp()
            conversations.append(_conversation(journal, "fork", fork.parent, depths[fork.id]))
        files = DiffCollector(_DIFF_CHARACTERS)
        diffs = [diff for journal, _ in self._journals for diff in journal.diffs]
        for _, seq, diff in sorted(diffs, key=lambda one: one[0]):
            files.add(seq, diff)
        longest = _longest(spans, self._limit)
        window = _window(first.answers[-1].model) if first.answers else None
        return RunTrace(
            datetime.fromtimestamp(begin, UTC),
            tuple([_shifted(one, begin) for one in conversations]),
            tuple([_shifted(span, begin) for span in longest]),
            _points(first.answers),
            files.changes(),
            window,
            len(spans) - len(longest),
            sum(journal.damaged for journal, _ in self._journals),
        )

    def _read(self, summary: Summary, parent: str, depth: int) -> Iterator[TraceSpan]:
        """Read a conversation and its descendants; yield their spans."""
        journal = _Journal(summary, len(self._journals), depth)
        for event in self._events(summary):
            journal.take(event)
        children = sorted(self._children(summary.id), key=lambda one: one.id)
        journal.end({one.spawned_by.rpartition(":")[2]: one.id for one in children})
        relation = "child" if parent else ""
        self._journals.append((journal, _conversation(journal, relation, parent, depth)))
        by_id = {one.id: one for one in children}
        for span in journal.spans:
            yield span
            if span.child and (child := by_id.pop(span.child, None)) is not None:
                yield from self._descend(child, summary.id, depth)
        for child in by_id.values():  # of calls whose results do not name them
            yield from self._descend(child, summary.id, depth)

    def _descend(self, child: Summary, parent: str, depth: int) -> Iterator[TraceSpan]:
        if (
            child.id not in self._seen_ids
            and len(self._seen_ids) < _MAX_CONVERSATIONS
            and depth < _MAX_DEPTH
        ):
            self._seen_ids.add(child.id)
            yield from self._read(child, parent, depth + 1)


def _conversation(
    journal: _Journal, relation: Literal["", "child", "fork"], parent: str, depth: int
) -> TracedConversation:
    summary, stats = journal.summary, journal.count.result()
    return TracedConversation(
        summary.id,
        summary.title,
        summary.status,
        relation,
        parent or summary.parent,
        summary.parent_seq,
        depth,
        journal.first,
        stats.events,
        stats.steps,
        stats.seconds,
        stats.waited,
        stats.usage,
        stats.cost,
    )


def _shifted(one: Any, begin: float) -> Any:
    return msgspec.structs.replace(one, start=round(max(0.0, one.start - begin), 6))


def _longest(spans: Sequence[TraceSpan], limit: int) -> list[TraceSpan]:
    """Return at most `limit` spans, in their order: the failed and the longest ones."""
    if len(spans) <= limit:
        return list(spans)
    order = sorted(range(len(spans)), key=lambda at: (not spans[at].error, -spans[at].seconds))
    return [spans[at] for at in sorted(order[:limit])]


def _window(model: str) -> int | None:
    info = model_info(model) if model else None
    return None if info is None else info.context_window


def _points(answers: Sequence[ev.AssistantReplied]) -> tuple[TracePoint, ...]:
    windows = {model: _window(model) for model in {answer.model for answer in answers}}
    size = -(-len(answers) // _MAX_POINTS) or 1  # steps per point, rounded up
    points: list[TracePoint] = []
    total = 0.0
    for at in range(0, len(answers), size):
        some = answers[at : at + size]
        largest = max(some, key=lambda one: one.usage.input_tokens).usage
        cost = sum(one.cost or 0.0 for one in some)
        total += cost
        shares = [
            (one.usage.input_tokens + one.usage.output_tokens) / window
            for one in some
            if (window := windows[one.model])
        ]
        points.append(
            TracePoint(
                some[-1].seq,
                largest.input_tokens,
                largest.cached_input_tokens,
                sum(one.usage.output_tokens for one in some),
                cost,
                total,
                max(shares, default=None),
                len(some),
            )
        )
    return tuple(points)


def _title(arguments: Mapping[str, Any]) -> str:
    """Return the most informative argument of a call, on one line."""
    titles = [arguments[key] for key in _TITLE_KEYS if isinstance(arguments.get(key), str)]
    texts = titles or [value for value in arguments.values() if isinstance(value, str)]
    return _cut(texts[0]) if texts else ""


def _cut(text: str) -> str:
    text = " ".join(text[: 4 * _TITLE_CHARACTERS].split())
    return text if len(text) <= _TITLE_CHARACTERS else text[: _TITLE_CHARACTERS - 1] + "…"
