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
from holdfast.testing import watched
from holdfast.testing.watched import Journals

_TAIL_EVENTS = 25  # shown of a journal


class Life(msgspec.Struct):
    """The record of one process. `ended` is None if the process was killed."""

    began: Journals
    ended: Journals | None
    killed: bool
    acknowledged: list[watched.Acknowledged]
    repeatable: dict[str, dict[str, bool]]
    reconciled: dict[tuple[str, str], list[str]]
    reached: dict[str, int]

    @classmethod
    def of(cls, record: Path) -> Life:
        """Return the life that a record describes."""
        life = cls({}, None, False, [], {}, {}, {})
        began = False
        for note in watched.Record.read(record):
            match note:
                case watched.Journaled() if not began:
                    life.began, began = note.events(), True
                case watched.Journaled():
                    life.ended = note.events()
                case watched.Acknowledged():
                    life.acknowledged.append(note)
                case watched.Repeatable(conversation, tools):
                    life.repeatable.setdefault(conversation, {}).update(tools)
                case watched.Reconciled(conversation, call_id, answer):
                    life.reconciled.setdefault((conversation, call_id), []).append(answer)
                case watched.Reached(places):
                    life.reached = places
                case watched.Killed():
                    life.killed = True
        return life


def first(journals: Journals) -> list[AnyEvent]:
    """Return the events of the first conversation; empty if there is none."""
    return next(iter(journals.values())) if journals else []


def broken(lives: Sequence[Life], reference: Journals | None) -> list[str]:
    """Return the violated guarantees in a sequence of lives.

    The last life must have ended by itself, with the same outcome as the uninterrupted run
    `reference`.
    """
    problems: list[str] = []
    for life, after in zip(
        lives, [*[life.began for life in lives[1:]], lives[-1].ended or {}], strict=True
    ):
        problems += _lost(life, after)
        for id, events in after.items():
            problems += [f"{text} ({id!r})" for text in _wrongly_resumed(life, id, events)]
    end = lives[-1].ended or {}
    for id, events in end.items():
        problems += [f"{text} ({id!r})" for text in _malformed(events)]
    if reference is not None:
        problems += _unsettled(end, reference)
    return list(dict.fromkeys(problems))


def _lost(life: Life, after: Journals) -> Iterator[str]:
    """Yield events that were stored or acknowledged and are lost or changed."""
    for id, events in life.began.items():
        now = after.get(id, [])
        if now[: len(events)] != events:
            changed = next(n for n, event in enumerate(events) if n >= len(now) or now[n] != event)
            yield (
                f"event {events[changed].seq} was in the store, and is"
                f" {'changed' if changed < len(now) else 'gone'} ({id!r})"
            )
    for note in life.acknowledged:
        events = after.get(note.conversation, [])
        if note.seq > len(events):
            yield f"event {note.seq} was appended, and is lost ({note.conversation!r})"
        elif zlib.crc32(ev.encode(events[note.seq - 1])) != note.crc:
            yield f"event {note.seq} was appended, and is another now ({note.conversation!r})"


def _wrongly_resumed(life: Life, id: str, after: list[AnyEvent]) -> Iterator[str]:
    """Yield calls that were started by a dead process and repeated without permission, or not
    repeated despite it."""
    tools = life.repeatable.get(id)
    before = life.began.get(id, [])
    if tools is None:  # no process resumed the conversation
        return
    for item in fold(before).open.values():
        if not item.attempt or item.runner:  # runs in a client, which may still deliver its result
            continue
        call, new = item.call, after[len(before) :]
        what = f"call {call.id} of {call.name!r}"
        started = [
            event
            for event in new
            if isinstance(event, ev.ToolCallStarted) and event.call_id == call.id
        ]
        result = next(
            (
                event.result
                for event in new
                if isinstance(event, ev.ToolResult) and event.call_id == call.id
            ),
            None,
        )
        answers = life.reconciled.get((id, call.id), [])
        repeatable = tools.get(call.name, False) or (bool(answers) and answers[-1] == "again")
        if started and not repeatable:
            why = (
                f"its reconcile said otherwise ({', '.join(answers)})"
                if answers
                else "it may not be repeated"
            )
            yield (
                f"{what} had been started, {why}, and it was started again (attempt"
                f" {started[0].attempt})"
            )
        elif result is not None and not started:
            forked = result.text in (FORKED, FORKED_RUNNING)
            if repeatable and not forked:
                yield (
                    f"{what} had been started and may be run again, but was answered without a run:"
                    f" {result.text[:100]!r}"
                )
            elif (
                (not answers or answers[-1] == "raised")
                and not forked
                and result.meta.get("outcome") != "unknown"
            ):
                yield (
                    f"{what} had been started, and the model is not told that its outcome is"
                    f" unknown: {result.text[:100]!r}"
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
        if isinstance(event, ev.Assistant):
            if unfinished := sorted(set(attempts) - finished):
                yield (
                    f"event {event.seq} is an answer, while these calls had no result:"
                    f" {', '.join(unfinished)}"
                )
            attempts |= {call.id: 0 for call in event.calls}
        elif isinstance(event, ev.ToolCallStarted):
            id = event.call_id
            if id not in attempts or id in finished:
                yield (
                    f"event {event.seq} starts call {id}, which is"
                    f" {'over' if id in finished else 'not there'}"
                )
            elif event.attempt != attempts[id] + 1:
                yield (
                    f"event {event.seq} is attempt {event.attempt} of call {id}, after attempt"
                    f" {attempts[id]}"
                )
            attempts[id] = event.attempt
            if keys.setdefault(id, event.idempotency_key) != event.idempotency_key:
                yield (
                    f"call {id} was started under two idempotency keys, {keys[id]!r} and"
                    f" {event.idempotency_key!r}"
                )
        elif isinstance(event, ev.ToolResult):
            id = event.call_id
            if id not in attempts or id in finished:
                yield (
                    f"event {event.seq} is a result of call {id}, which"
                    f" {'has one' if id in finished else 'is not there'}"
                )
            elif not attempts[id] and not (
                event.result.error is not None and event.result.error.type == "cancelled"
            ):
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
    """Return the last events of a journal, one per line. `kills` are the numbers of events at
    the times of the kills."""
    lines: list[str] = []
    skipped = max(0, len(events) - _TAIL_EVENTS)
    if skipped:
        lines.append(f"      ... {skipped} events")
    for number, event in enumerate(events):
        lines += [
            "      --- killed here ---" for kill in kills if kill == number and number >= skipped
        ]
        if number >= skipped:
            lines.append(f"{event.seq:5} {shown(event)}")
    lines += ["      --- killed here ---" for kill in kills if kill >= len(events)]
    return "\n".join(lines)


def shown(event: AnyEvent) -> str:
    """Return an event as one short line."""
    match event:
        case ev.Message():
            text = f"{event.sender}: {event.text!r}"
        case ev.Assistant():
            calls = ", ".join(
                f"{call.id} {call.name}({call.raw_arguments})" for call in event.calls
            )
            text = " ".join(
                part for part in (repr(event.text) if event.text else "", calls) if part
            )
        case ev.ToolCallStarted():
            text = f"{event.call_id}, attempt {event.attempt}"
        case ev.ToolResult():
            text = (
                f"{event.call_id}: {'error ' if event.result.is_error else ''}{event.result.text!r}"
            )
        case ev.Decision():
            text = f"{event.call_id}: {event.decision} by {event.by}"
        case ev.Status():
            text = f"{event.status} {event.reason}"
        case ev.Error():
            text = f"{event.error}: {event.message}"
        case _:
            text = ""
    return f"{event.type:15} {text}"[:160].rstrip()
