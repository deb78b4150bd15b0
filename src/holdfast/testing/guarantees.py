"""The guarantees for journals of processes that were killed and resumed, and the violations in
words."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from holdfast import events as ev
from holdfast.conversation.copies import FORKED, FORKED_RUNNING
from holdfast.conversation.state import fold
from holdfast.events import AnyEvent
from holdfast.testing import watched_store
from holdfast.testing.watched_store import Journals

_TAIL_EVENTS = 25  # shown of a journal


class ProcessRecord(msgspec.Struct):
    """The record of one process. `ended` is None if the process was killed."""

    began: Journals = {}
    ended: Journals | None = None
    killed: bool = False
    acknowledged: list[watched_store.Acknowledged] = []
    repeatable: dict[str, dict[str, bool]] = {}
    reconciled: dict[tuple[str, str], list[str]] = {}
    reached: dict[str, int] = {}

    @classmethod
    def of(cls, record: Path) -> ProcessRecord:
        life = cls()
        began = False
        for note in watched_store.NoteFile.read(record):
            match note:
                case watched_store.Journaled() if not began:
                    life.began, began = note.events(), True
                case watched_store.Journaled():
                    life.ended = note.events()
                case watched_store.Acknowledged():
                    life.acknowledged.append(note)
                case watched_store.Repeatable(conversation, tools):
                    life.repeatable.setdefault(conversation, {}).update(tools)
                case watched_store.Reconciled(conversation, call_id, answer):
                    life.reconciled.setdefault((conversation, call_id), []).append(answer)
                case watched_store.Reached(places):
                    life.reached = places
                case watched_store.Killed():
                    life.killed = True
        return life


def first(journals: Journals) -> list[AnyEvent]:
    return next(iter(journals.values())) if journals else []


def broken(lives: Sequence[ProcessRecord], reference: Journals | None) -> list[str]:
    """Return the violated guarantees in a sequence of lives.

    The last life must have ended by itself, with the same outcome as the uninterrupted run
    `reference`.
    """
    problems: list[str] = []
    for life, after in zip(
        lives, [*[life.began for life in lives[1:]], lives[-1].ended or {}], strict=True
    ):
        problems += _lost_events(life, after)
        for id, events in after.items():
            problems += [f"{text} ({id!r})" for text in _wrongly_resumed(life, id, events)]
    end = lives[-1].ended or {}
    for id, events in end.items():
        problems += [f"{text} ({id!r})" for text in _malformed(events)]
    if reference is not None:
        problems += _unsettled(end, reference)
    return list(dict.fromkeys(problems))


def _lost_events(life: ProcessRecord, after: Journals) -> Iterator[str]:
    """Yield events that were stored or acknowledged and are lost or changed."""
    for id, events in life.began.items():
        now = after.get(id, [])
        if now[: len(events)] != events:
            first_change = next(
                n for n, event in enumerate(events) if n >= len(now) or now[n] != event
            )
            yield (
                f"event {events[first_change].seq} was in the store, and is"
                f" {'changed' if first_change < len(now) else 'gone'} ({id!r})"
            )
    for note in life.acknowledged:
        events = after.get(note.conversation, [])
        if note.seq > len(events):
            yield f"event {note.seq} was appended, and is lost ({note.conversation!r})"
        elif zlib.crc32(ev.encode(events[note.seq - 1])) != note.crc:
            yield f"event {note.seq} was appended, and is another now ({note.conversation!r})"


def _wrongly_resumed(life: ProcessRecord, id: str, after: list[AnyEvent]) -> Iterator[str]:
    """Yield started calls that were repeated without permission, or not despite it."""
    tools = life.repeatable.get(id)
    before = life.began.get(id, [])
    if tools is None:  # no process resumed the conversation
        return
    for item in fold(before).open.values():
        if not item.attempt or item.runner:  # runs in a client, which may still deliver its result
            continue
        call = item.call
        what = f"call {call.id} of {call.name!r}"
        new = [one for one in after[len(before) :] if getattr(one, "call_id", "") == call.id]
        started = [event for event in new if isinstance(event, ev.ToolCallStarted)]
        results = [event.result for event in new if isinstance(event, ev.ToolCallFinished)]
        answers = life.reconciled.get((id, call.id), [])
        repeatable = tools.get(call.name, False) or (bool(answers) and answers[-1] == "again")
        if started and not repeatable:
            why = "it may not be repeated"
            if answers:
                why = f"its reconcile said otherwise ({', '.join(answers)})"
            yield (
                f"{what} had been started, {why}, and it was started again (attempt"
                f" {started[0].attempt})"
            )
        if started or not results or results[0].text in (FORKED, FORKED_RUNNING):
            continue
        answer, told_unknown = (
            f"{results[0].text[:100]!r}",
            results[0].meta.get("outcome") == "unknown",
        )
        if repeatable:
            yield (
                f"{what} had been started and may be run again, but was answered without a run:"
                f" {answer}"
            )
        elif (not answers or answers[-1] == "raised") and not told_unknown:
            yield (
                f"{what} had been started, and the model is not told that its outcome is"
                f" unknown: {answer}"
            )


def _malformed(events: Sequence[AnyEvent]) -> Iterator[str]:
    """Yield violations of the journal's form.

    Sequence numbers are dense. Starts and results follow their calls. Attempts are in order and
    under one key. Each call has one result, and none without a start unless the call was not
    run. No answer comes while calls are open.
    """
    attempts: dict[str, int] = {}
    keys: dict[str, str] = {}
    finished: set[str] = set()
    for expected, event in enumerate(events, 1):
        if event.seq != expected:
            yield f"the journal is not dense: event {expected} has seq {event.seq}"
        if isinstance(event, ev.AssistantReplied):
            if unfinished := sorted(set(attempts) - finished):
                yield (
                    f"event {event.seq} is an answer, while these calls had no result:"
                    f" {', '.join(unfinished)}"
                )
            attempts |= {call.id: 0 for call in event.calls}
        elif isinstance(event, ev.CodeCallsMade):
            if again := sorted(attempts.keys() & {call.id for call in event.calls}):
                yield f"event {event.seq} makes calls that are there: {', '.join(again)}"
            attempts |= {call.id: 0 for call in event.calls}
        elif isinstance(event, ev.ToolCallStarted):
            id, attempt = event.call_id, event.attempt
            if id not in attempts or id in finished:
                state = "over" if id in finished else "not there"
                yield f"event {event.seq} starts call {id}, which is {state}"
            elif attempt != attempts[id] + 1:
                yield (
                    f"event {event.seq} is attempt {attempt} of call {id}, after attempt"
                    f" {attempts[id]}"
                )
            attempts[id] = attempt
            if keys.setdefault(id, event.idempotency_key) != event.idempotency_key:
                both = f"{keys[id]!r} and {event.idempotency_key!r}"
                yield f"call {id} was started under two idempotency keys, {both}"
        elif isinstance(event, ev.ToolCallFinished):
            id, error = event.call_id, event.result.error
            if id not in attempts or id in finished:
                state = "has one" if id in finished else "is not there"
                yield f"event {event.seq} is a result of call {id}, which {state}"
            elif not attempts[id] and (error is None or error.type != "cancelled"):
                yield f"call {id} has a result, and was never started"
            finished.add(id)


def _unsettled(end: Journals, reference: Journals) -> Iterator[str]:
    """Yield conversations whose final state differs from that of the uninterrupted run."""
    pairs = [(id, events, end[id]) for id, events in reference.items() if id in end]
    if not pairs and reference:  # its ids differ in each run
        pairs = [(next(iter(end), "?"), first(reference), first(end))]
    for id, expected, events in pairs:
        expected_state, state = fold(expected), fold(events)
        if state.status is not expected_state.status:
            yield (
                f"it came to rest as {state.status.value}, the uninterrupted run as"
                f" {expected_state.status.value} ({id!r})"
            )
        if len(state.open) > len(expected_state.open):
            yield f"these calls have no result: {', '.join(state.open)} ({id!r})"


# --- reports ---


def tail(events: Sequence[AnyEvent], kills: Sequence[int] = ()) -> str:
    """Return the last events of a journal, one per line; `kills` count the events at kills."""
    skipped = max(0, len(events) - _TAIL_EVENTS)
    lines = [f"      ... {skipped} events"] if skipped else []
    for number in range(skipped, len(events) + 1):
        last = number == len(events)
        here = [kill for kill in kills if kill == number or (last and kill > number)]
        lines += ["      --- killed here ---"] * len(here)
        if not last:
            lines.append(f"{events[number].seq:5} {line_of(events[number])}")
    return "\n".join(lines)


def line_of(event: AnyEvent) -> str:
    """Return an event as one short line."""
    match event:
        case ev.MessageAdded():
            text = f"{event.sender}: {event.text!r}"
        case ev.AssistantReplied():
            calls = [f"{call.id} {call.name}({call.raw_arguments})" for call in event.calls]
            quoted = repr(event.text) if event.text else ""
            text = " ".join(part for part in (quoted, ", ".join(calls)) if part)
        case ev.CodeCallsMade():
            calls = [f"{call.id} {call.name}({call.raw_arguments})" for call in event.calls]
            text = ", ".join(calls)
        case ev.ToolCallStarted():
            text = f"{event.call_id}, attempt {event.attempt}"
        case ev.ToolCallFinished():
            error = "error " if event.result.is_error else ""
            text = f"{event.call_id}: {error}{event.result.text!r}"
        case ev.DecisionMade():
            text = f"{event.call_id}: {event.decision} by {event.by}"
        case ev.StatusChanged():
            text = f"{event.status} {event.reason}"
        case ev.ErrorRecorded():
            text = f"{event.error}: {event.message}"
        case _:
            text = ""
    return f"{event.type:15} {text}"[:160].rstrip()
