"""The timers of an open conversation: the only functions that set, fire and cancel them.

Each writes the event and the row of the store's index in one transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from msgspec.structs import replace

from holdfast import events as ev
from holdfast.content import TextContent
from holdfast.conversation.journal import Journal, utc_now
from holdfast.conversation.status import AT_REST, ConversationStatus
from holdfast.errors import ConfigurationError, Conflict, NotFound
from holdfast.store import Store
from holdfast.timers import (
    ABOUT,
    MAX_TIMERS,
    Occurrence,
    Timer,
    check_ahead,
    content_of,
    first_due,
    make_rule,
    occurrence_key,
    occurrences,
    time_of,
)
from holdfast.tools.results import clean

WOKEN = "[This is the time at which you asked to be woken.]"

MAX_WAIT_SECONDS = 30.0
"""The longest time between two looks at the clock, which may be set, or stand still in a sleeping
machine."""


class RungOccurrence(NamedTuple):
    """The occurrence `due` of a timer."""

    timer: str
    due: datetime


def set_timer(journal: Journal, rule: Timer, call_id: str = "") -> ev.TimerSet:
    """Set a timer, or replace the one of this id. Within a transaction.

    Raises `ConfigurationError` if the rule has no due time, `Conflict` if there are too many.
    """
    if journal.spawned_by:
        raise ConfigurationError(
            "A conversation that another one spawned has no timers: its parent waits for it. Set"
            " the timer in the parent."
        )
    by_id = journal.fold.timers.by_id
    if rule.id not in by_id and len(by_id) >= MAX_TIMERS:
        raise Conflict(
            f"Conversation {journal.id!r} has {MAX_TIMERS} timers, the most that it may have."
            " Cancel one first."
        )
    due = first_due(rule, journal.clock())
    journal.index_timer(rule.id, due)
    return journal.add(
        ev.TimerSet,
        timer=rule.id,
        content=rule.content,
        due=due,
        every=rule.every,
        cron=rule.cron,
        timezone=rule.timezone,
        misfire=rule.misfire,
        sender=rule.sender,
        call_id=call_id,
    )


def wake(
    journal: Journal,
    call_id: str,
    when: datetime | timedelta | str,
    note: str,
    timezone: str,
    id: str,
) -> datetime:
    """Set a timer for a call, and return its due time; see `ToolContext.wake_at`."""
    with journal:
        now = journal.clock()
        at = now + when if isinstance(when, timedelta) else time_of(when)
        text = clean(f"{WOKEN}\n{note}" if note else WOKEN)
        rule = make_rule((TextContent(text),), id=id, at=at, timezone=timezone, sender="holdfast")
        timer = journal.fold.timers.by_id.get(id)
        if timer is None or (timer.due, timer.content) != (rule.due, rule.content):
            check_ahead(rule.due, now)
            set_timer(journal, rule, call_id)
        return rule.due


def cancel_timer(journal: Journal, timer: str, by: str, reason: str) -> None:
    """Cancel a timer. Within a transaction. Raises `NotFound`."""
    if timer not in journal.fold.timers.by_id:
        others = ", ".join(repr(id) for id in journal.fold.timers.by_id)
        hint = f"It has {others}." if others else "It has none."
        raise NotFound(
            f"Conversation {journal.id!r} has no timer {timer!r}. {hint}", "timer", timer
        )
    journal.index_timer(timer, None)
    journal.add(ev.TimerCancelled, timer=timer, by=by, reason=reason)


def ring(journal: Journal, rung: Sequence[RungOccurrence], drives: bool) -> None:
    """Fire timers whose occurrences were rung, unless that was done. Within a transaction.

    `drives` is True if a loop takes the messages up.
    """
    due_timers: list[Timer] = []
    for timer, due in rung:
        one = journal.fold.timers.by_id.get(timer)
        if one is not None and one.due <= due:
            due_timers.append(one)
        elif one is not None:
            # The ring has removed the row of a stale index.
            journal.index_timer(timer, one.due)
    if due_timers:
        now = max(journal.clock(), *(due for _, due in rung))
        _fire(journal, due_timers, now, drives)


def fire_due(journal: Journal, drives: bool) -> bool:
    """Fire the timers that are due by the journal's clock, in one transaction of its own. Return
    True if there were any."""
    if not journal.fold.timers.by_id:
        return False
    with journal:
        now = journal.clock()
        due_timers = [one for one in journal.fold.timers.by_id.values() if one.due <= now]
        _fire(journal, sorted(due_timers, key=lambda one: one.due), now, drives)
        return bool(due_timers)


def seconds_to_timer(journal: Journal) -> float | None:
    """Return the seconds for which a loop may wait; None, for ever, without timers."""
    due = journal.fold.timers.next_due
    if due is None:
        return None
    delay = due - journal.clock()
    return min(MAX_WAIT_SECONDS, max(0.0, delay / timedelta(seconds=1)))


def _fire(journal: Journal, due: list[Timer], now: datetime, drives: bool) -> None:
    has_message = False
    for timer in due:
        try:
            due_occurrences = occurrences(timer, now, journal.fold.based_on)
        except (ConfigurationError, OverflowError) as error:
            # Its time zone is unknown on this machine, for example. What is due is sent.
            due_occurrences = [Occurrence(timer.due, None)]
            text = f"the timer {timer.id!r} ends: {error}"
            journal.add(ev.NoteRecorded, about=ABOUT, text=text, details={"timer": timer.id})
            journal.log(text)
        for one in due_occurrences:
            _record(journal, timer, one, now)
            has_message = has_message or not one.silent
        journal.index_timer(timer.id, due_occurrences[-1].next)
    if has_message and drives and journal.fold.status in AT_REST:
        journal.add(ev.StatusChanged, status=ConversationStatus.RUNNING.value)


def _record(journal: Journal, timer: Timer, one: Occurrence, now: datetime) -> None:
    journal.add(
        ev.TimerFired,
        timer=timer.id,
        due=one.due,
        next=one.next,
        message_seq=0 if one.silent else journal.next_seq + 1,
        missed=one.missed,
    )
    if not one.silent:
        journal.add(
            ev.MessageAdded,
            occurrence_key(timer.id, one.due),
            content=content_of(timer, one, now),
            sender=timer.sender,
            about=ABOUT,
        )


def timers_in(store: Store, conversation_id: str) -> tuple[Timer, ...]:
    """Return the timers of a conversation in a store, the earliest first, without opening it."""
    return _read(store, conversation_id).fold.timers.listed


def is_asked(store: Store, conversation_id: str) -> bool:
    """Return True if a conversation at rest in a store has a message to answer."""
    return _read(store, conversation_id).fold.has_new_message


def _read(store: Store, conversation_id: str) -> Journal:
    return Journal(store, conversation_id, utc_now, str, lambda: None)


def with_id(rule: Timer, id: str) -> Timer:
    """Return a rule with an id, which it gets when it is set."""
    return replace(rule, id=rule.id or id)
