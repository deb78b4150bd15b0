"""The view: the events of a journal that a model is shown, in order. A pure function of the
journal."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

from holdfast import events as ev
from holdfast.agent.damage import LOST_RESULT, stand_in
from holdfast.answer import COMPACTION
from holdfast.content import TextContent, ToolCall, ToolResult, answer_seq
from holdfast.llm.transcript import Transcript


class View:
    """The view of a growing journal. Feed each event once, in order; `transcript` is the next
    request.

    Results follow call order, not order of arrival. A message follows a batch's results if it
    arrived during the batch. The same holds if the answer's request did not contain the message
    (its seq is above the answer's `based_on`). Existing entries never move, so a provider's cached
    prefix stays valid. Only a `HistoryCondensed` changes existing entries; `View.of` then makes a
    new view.
    """

    __slots__ = (
        "_batch",
        "_ended",
        "_hidden",
        "_summaries",
        "_time",
        "_trimmed",
        "_waiting",
        "transcript",
    )

    def __init__(self, condensations: Iterable[ev.HistoryCondensed] = (), first: int = 1) -> None:
        self.transcript = Transcript()
        self.transcript.clock = lambda: self._time.timestamp()
        self._time = ev.EPOCH  # of the last event
        self._waiting: list[ev.MessageAdded] = []
        self._batch: dict[str, tuple[ToolCall, ToolResult | None]] = {}
        events = list(condensations)
        self._ended = ended_compactions(events)
        self._hidden = frozenset(seq for condensation in events for seq in condensation.hidden)
        self._summaries = _shown_summaries(events)
        self._trimmed: dict[str, int] = {}
        for condensation in events:
            self._trimmed |= condensation.trimmed
        # Summaries of events that were not read and are not fed.
        for seq in sorted(seq for seq in self._summaries if seq < first):
            self._summarise(seq)

    @classmethod
    def of(cls, journal: Iterable[ev.AnyEvent]) -> View:
        """Return the view of a whole journal, or of the part after its last condensation's
        `so_far`."""
        events = list(journal)
        condensations = (event for event in events if isinstance(event, ev.HistoryCondensed))
        view = cls(condensations, events[0].seq if events else 1)
        for event in events:
            view.feed(event)
        return view

    def feed(self, event: ev.AnyEvent) -> None:
        """Add the journal's next event."""
        self._time = event.timestamp
        if type(event) is ev.DamagedEvent:
            if event.original_type == "assistant" and self._batch:
                self._end_batch()  # its results were complete before that answer was requested
            if (substitute := stand_in(event)) is not None:
                self.feed(substitute)
        elif type(event) is ev.ToolCallFinished:
            self._result(event)
        elif type(event) is ev.AssistantReplied:
            if self._batch:  # a damaged store has lost a result
                self._end_batch()
            self._flush(event.based_on)
            self._place(event.seq, event)
            if event.calls:
                self._batch = {call.id: (call, None) for call in event.calls}
        elif type(event) is ev.MessageAdded:
            self._waiting.append(event)
        elif type(event) is ev.HistoryCondensed and event.seq not in self._ended:
            self._compacted(event)

    @property
    def open_calls(self) -> tuple[str, ...]:
        """The ids of the last answer's calls that have no result yet."""
        return tuple([id for id, (_, result) in self._batch.items() if result is None])

    def ready(self) -> Transcript:
        """Return the next request, with all messages. The batch must be complete."""
        assert not self._batch, "a request while calls are open"
        self._flush(None)
        return self.transcript

    def _result(self, event: ev.ToolCallFinished) -> None:
        call = self._batch.get(event.call_id)
        if call is None:
            return  # a second result of one call: the first one counts
        self._batch[event.call_id] = (call[0], event.result)
        if all(result is not None for _, result in self._batch.values()):
            self._end_batch()

    def _end_batch(self) -> None:
        for call_id, (call, result) in self._batch.items():
            if result is None:
                result = LOST_RESULT  # providers reject a call without a result
            if call_id in self._trimmed:
                result = trim_result(call_id, result, self._trimmed[call_id])
            self._place(answer_seq(call_id), (call, result))
        self._batch = {}

    def _compacted(self, event: ev.HistoryCondensed) -> None:
        answer = compaction_answer(event)
        if answer is None or event.compaction is None:
            return
        if self._batch:  # a damaged store has lost a result
            self._end_batch()
        self._flush(answer.based_on)
        self.transcript.append(answer)
        if event.compaction.note:
            self.transcript.append(_own_message(event, event.seq, event.compaction.note))

    def _flush(self, based_on: int | None) -> None:
        while self._waiting and (based_on is None or self._waiting[0].seq <= based_on):
            message = self._waiting.pop(0)
            self._place(message.seq, message)

    def _place(
        self,
        seq: int,
        item: ev.MessageAdded | ev.AssistantReplied | tuple[ToolCall, ToolResult | None],
    ) -> None:
        if seq in self._hidden:
            self._summarise(seq)
        else:
            self.transcript.append(item)  # pyright: ignore[reportArgumentType]: complete batches alone are placed

    def _summarise(self, seq: int) -> None:
        event = self._summaries.pop(seq, None)
        if event is not None and event.summary:
            self.transcript.append(_own_message(event, seq, event.summary))


def _own_message(event: ev.HistoryCondensed, seq: int, text: str) -> ev.MessageAdded:
    content, at = (TextContent(text),), event.timestamp
    return ev.MessageAdded(seq=seq, id=event.id, timestamp=at, content=content, sender="holdfast")


def compaction_answer(event: ev.HistoryCondensed) -> ev.AssistantReplied | None:
    """Return a provider's compaction as an item of a transcript, or None if the event has none."""
    answer = event.compaction
    if answer is None or not bytes(answer.native):
        return None
    return ev.AssistantReplied(
        seq=event.seq,
        id=event.id,
        timestamp=event.timestamp,
        stop_reason=COMPACTION,
        based_on=answer.based_on,
        model=event.model,
        wire=answer.wire,
        host=answer.host,
        native=answer.native,
    )


def ended_compactions(
    condensations: Iterable[ev.HistoryCondensed], hidden: Collection[int] = ()
) -> frozenset[int]:
    """Return the seqs of the compactions that are no longer used. A later condensation has hidden
    an event that they cover, and its summary precedes them. `hidden` are the events that one more
    condensation would hide."""
    used: dict[int, int] = {}
    ended: set[int] = set()
    for event in (*condensations, None):
        if hidden_seqs := hidden if event is None else event.hidden:
            first = min(hidden_seqs)
            ended.update([seq for seq, based_on in used.items() if first <= based_on])
        if event is not None and event.compaction is not None:
            used[event.seq] = event.compaction.based_on
    return frozenset(ended)


def text_of_result(result: ToolResult) -> str:
    """Return the text that `trim_result` cuts and `read_output` reads: the result's text, or its
    structured content as JSON if it has no content."""
    if not result.content and result.structured_content is not None:
        return msgspec.json.encode(result.structured_content).decode()
    return result.text


def trim_result(call_id: str, result: ToolResult, characters: int) -> ToolResult:
    """Return a result with its first `characters` characters and a note on how to read the rest."""
    text = text_of_result(result)
    others = sum(not isinstance(block, TextContent) for block in result.content)
    if len(text) <= characters and not others:
        return result
    more = (
        f", and {others} other part{'s' if others > 1 else ''} (pictures and the like)"
        if others
        else ""
    )
    note = (
        f"[{max(0, len(text) - characters):,} of {len(text):,} characters{more} left out here"
        " to save room; "
        f'read_output(call_id="{call_id}", offset={min(characters, len(text))}) shows them.]'
    )
    body = f"{text[:characters]}\n{note}" if characters and text else note
    return ToolResult((TextContent(body),), None, {}, result.is_error, result.error)


def _shown_summaries(events: Iterable[ev.HistoryCondensed]) -> dict[int, ev.HistoryCondensed]:
    """Return the condensation whose summary is shown at each place. The last one at a place counts,
    unless a later one replaced it."""
    by_place: dict[int, ev.HistoryCondensed] = {}
    for event in events:
        for place in event.replaced:
            by_place.pop(place, None)
        if event.hidden:
            by_place[min(event.hidden)] = event
    return by_place


def hidden_until(
    journal: Sequence[ev.AnyEvent], hidden: Iterable[int], replaced: Iterable[int] = ()
) -> int:
    """Return the seq up to which a model would be shown nothing if `hidden` were hidden too; 0 if
    none. The summaries at the places `replaced` would be gone too. No call is open at that seq."""
    hidden = set(hidden)
    condensations = [event for event in journal if isinstance(event, ev.HistoryCondensed)]
    hidden_seqs = hidden.union(*[event.hidden for event in condensations])
    summaries = _shown_summaries(condensations)
    for place in (*replaced, *([min(hidden)] if hidden else ())):
        summaries.pop(place, None)
    summary_seqs = {event.seq for event in summaries.values() if event.summary}
    ended = ended_compactions(condensations, hidden)
    last = 0
    open: set[str] = set()
    for event in journal:
        if type(event) is ev.DamagedEvent:
            event = stand_in(event) or event
        if isinstance(event, ev.AssistantReplied):
            open = {call.id for call in event.calls}
        elif isinstance(event, ev.ToolCallFinished):
            open.discard(event.call_id)
        visible = isinstance(event, ev.AssistantReplied | ev.MessageAdded)
        compacts = isinstance(event, ev.HistoryCondensed) and event.compaction is not None
        if (
            event.seq in summary_seqs
            or (visible and event.seq not in hidden_seqs)
            or (compacts and event.seq not in ended)
        ):
            break
        if not open:
            last = event.seq
    return last
