"""Timers: their rules, their due times, and the fold of the events that set, fire and cancel them.

Everything here is a function of its arguments: the present time is always given. The rule by which
a timer fires once is described in `docs/internals/timers.md`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice
from typing import TYPE_CHECKING, Literal, cast

import msgspec

from holdfast import events as ev
from holdfast.content import Content, Data, TextContent, text_of
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

Misfire = Literal["once", "skip", "all"]

MAX_TIMERS = 100  # of one conversation
MAX_TIMER_CHARACTERS = 10_000  # of a timer's message
MAX_ID_CHARACTERS = 200
MIN_EVERY_SECONDS = 60.0
MAX_AHEAD = timedelta(days=36525)
"""The latest due time, from now; a hundred years."""
GRACE = timedelta(minutes=1)
"""The lateness from which an occurrence counts as missed."""
MAX_CATCH_UP = 10  # messages for missed occurrences with misfire="all"
MAX_COUNTED = 200  # missed occurrences of a cron expression that are counted

ABOUT = "timer"
"""The `MessageAdded.about` of a timer's message."""
WAIT = "wait_until"
"""The tool that ends the run until a time, and the id of its timer."""

# Periods before now in which the last occurrences of a cron expression are looked for.
_WINDOWS = tuple(timedelta(hours=hours) for hours in (1, 24, 24 * 32, 24 * 400))


class Timer(Data, frozen=True):
    """A timer of a conversation, which appends a message with `content` from `sender` at `due`.

    With `every` (seconds) or `cron`, in the zone `timezone`, it is set again after each occurrence.
    `set_seq` is the event that set it, `message_seq` its last message, 0 for none yet.
    """

    id: str
    due: datetime
    content: tuple[Content, ...]
    every: float = ev.NO_PERIOD
    cron: str = ""
    timezone: str = ""
    misfire: Misfire = "once"
    sender: str = "user"
    set_seq: int = 0
    message_seq: int = 0

    @property
    def text(self) -> str:
        """The text of the message."""
        return text_of(self.content)

    @property
    def repeats(self) -> bool:
        """True if the timer has more than one occurrence."""
        return bool(self.every or self.cron)


class Occurrence(msgspec.Struct, frozen=True):
    """One occurrence to record: its time, the `next` one, and the number of `missed` ones before
    it. A `silent` one gives no message."""

    due: datetime
    next: datetime | None
    missed: int = 0
    silent: bool = False


def occurrence_key(timer: str, due: datetime) -> str:
    """Return the key of an occurrence: the id of its message, and the key of its command."""
    return f"timer:{timer}:{due.astimezone(UTC).isoformat()}"


# --- the fold ---


def timer_of(event: ev.TimerSet) -> Timer:
    """Return the timer that an event sets."""
    return Timer(
        event.timer,
        event.due,
        event.content,
        event.every,
        event.cron,
        event.timezone,
        event.misfire,
        event.sender,
        event.seq,
    )


def after_event(timers: Mapping[str, Timer], event: ev.AnyEvent) -> Mapping[str, Timer]:
    """Return the timers after an event, in the order in which they were set."""
    match event:
        case ev.TimerSet():
            rest = {id: one for id, one in timers.items() if id != event.timer}
            return {**rest, event.timer: timer_of(event)}
        case ev.TimerFired():
            if (timer := timers.get(event.timer)) is None:
                return timers
            return _with_due(timers, timer, event.next, event.message_seq)
        case ev.TimerCancelled():
            return {id: one for id, one in timers.items() if id != event.timer}
        case ev.DamagedEvent(original_type="timerFired"):
            return _after_damage(timers, event)
        case _:
            return timers


def _with_due(
    timers: Mapping[str, Timer], timer: Timer, due: datetime | None, message_seq: int
) -> Mapping[str, Timer]:
    if due is None:
        return {id: one for id, one in timers.items() if id != timer.id}
    message_seq = message_seq or timer.message_seq
    moved = msgspec.structs.replace(timer, due=due, message_seq=message_seq)
    return {**timers, timer.id: moved}


def _after_damage(timers: Mapping[str, Timer], event: ev.DamagedEvent) -> Mapping[str, Timer]:
    """Return the timers after a damaged firing. Timers that it may be about move on, so that none
    fires twice for one occurrence."""
    timer_id = event.fields.get("timer")
    candidates = list(timers.values())
    if isinstance(timer_id, str):
        candidates = [one for one in candidates if one.id == timer_id]
    for timer in candidates:
        if timer.due <= event.timestamp:
            timers = _with_due(timers, timer, _next_or_none(timer, event.timestamp), 0)
    return timers


def timers_of(events: Iterable[ev.AnyEvent]) -> Mapping[str, Timer]:
    """Return the timers that are set after all events of a journal."""
    timers: Mapping[str, Timer] = {}
    for event in events:
        timers = after_event(timers, event)
    return timers


# --- rules ---


def zone(name: str) -> tzinfo:
    """Return the time zone of a name in the IANA database; "" is UTC. Raises
    `ConfigurationError`."""
    if name in ("", "UTC"):
        return UTC
    return _zone(name)


def _zone(name: str) -> ZoneInfo:
    from zoneinfo import ZoneInfo, available_timezones

    try:
        return ZoneInfo(name)
    except (ValueError, OSError, LookupError) as error:
        zone_names = available_timezones()
        if not zone_names:
            raise ConfigurationError(
                f"timezone: {name!r} cannot be looked up: this machine has no time zone database."
                " Install it, or the package tzdata."
            ) from error
        import difflib

        close = difflib.get_close_matches(name, zone_names, 1, 0.6)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise ConfigurationError(
            f"timezone: unknown time zone {name!r}.{hint} Give a name such as 'Europe/Berlin'."
        ) from error


def moment(at: datetime, timezone: str = "") -> datetime:
    """Return a time in UTC. A time without a zone is a wall-clock time of `timezone`. If a change
    of clocks skips the time, it is moved past the gap. If the time occurs twice, its `fold`
    chooses: 0 for the first."""
    if at.tzinfo is None:
        at = at.replace(tzinfo=zone(timezone))
    try:
        return at.astimezone(UTC)
    except OverflowError as error:
        raise ConfigurationError(f"at: {at} is out of range.") from error


def time_of(at: datetime | str | None) -> datetime | None:
    """Return a time that may be given in its ISO form. Raises `ConfigurationError`."""
    if at is None or isinstance(at, datetime):
        return at
    try:
        return datetime.fromisoformat(at)
    except (ValueError, TypeError) as error:
        raise ConfigurationError(
            f"at takes a time such as '2026-11-23T09:00' or '2026-11-23T09:00+01:00', not {at!r}."
        ) from error


def first_due(rule: Timer, now: datetime) -> datetime:
    """Return the first due time of a rule that was set now. Raises `ConfigurationError` if it has
    none."""
    now = now.astimezone(UTC)
    if rule.every:
        return now + timedelta(seconds=rule.every)
    if rule.cron:
        due = _next_cron(rule, now)
        if due is None:
            raise ConfigurationError(f"cron: {rule.cron!r} never comes.")
        return due
    return rule.due


def _next(timer: Timer, now: datetime) -> datetime | None:
    """Return the first occurrence after `now`, which is not before the timer's due time."""
    if timer.every:
        every = timedelta(seconds=timer.every)
        return timer.due + every * ((now - timer.due) // every + 1)
    return _next_cron(timer, now) if timer.cron else None


def _next_or_none(timer: Timer, now: datetime) -> datetime | None:
    try:
        return _next(timer, now)
    except (ConfigurationError, OverflowError):
        return None


def _next_cron(timer: Timer, after: datetime) -> datetime | None:
    return next(cron_times(timer.cron, timer.timezone, after), None)


def cron_times(expression: str, timezone: str, after: datetime) -> Iterator[datetime]:
    """Yield the times of a cron expression after a time, in UTC.

    An expression with a fixed hour and minute has one time on every day that it names. If a change
    of clocks skips that time, it comes right after the gap. If the clock shows it twice, the first
    counts. An expression whose hour or minute begins with `*` follows the elapsed time instead.

    Raises `ConfigurationError` for an expression that does not have five fields or cannot be read.
    """
    from cronsim import CronSim, CronSimError

    if len(expression.split()) != 5:
        raise ConfigurationError(
            f"cron: {expression!r} takes five fields: minute, hour, day of month, month, day of"
            " week, such as '0 9 * * mon-fri'."
        )
    try:
        times = CronSim(expression, after.astimezone(zone(timezone)))
    except CronSimError as error:
        raise ConfigurationError(f"cron: {expression!r} cannot be read: {error}.") from error
    for time in times:
        # in the second of two equal hours, a fixed time in it has passed in the first one
        if (occurrence := time.astimezone(UTC)) > after:
            yield occurrence


# --- occurrences ---


def occurrences(timer: Timer, now: datetime, answered_seq: int) -> list[Occurrence]:
    """Return the occurrences to record of a timer that is due at `now`, by its misfire policy.

    `answered_seq` is the last seq that the model's last answer took into account. Raises
    `ConfigurationError` if the rule cannot be followed on this machine.
    """
    following = _next(timer, now)
    if not timer.repeats:
        silent = timer.misfire == "skip" and now - timer.due > GRACE
        return [Occurrence(timer.due, None, int(silent), silent)]
    limit = MAX_CATCH_UP if timer.misfire == "all" else 1
    last = _last(timer, now, limit)
    dropped = max(0, _count(timer, now) - len(last))
    unanswered = timer.message_seq > answered_seq
    if timer.misfire == "all":
        ends = [*last[1:], following]
        return [
            Occurrence(due, end, 0 if i else dropped)
            for i, (due, end) in enumerate(zip(last, ends, strict=True))
        ]
    silent = unanswered or (timer.misfire == "skip" and now - last[-1] > GRACE)
    # a late message of "once" stands for the first occurrence that gave none
    due = timer.due if timer.misfire == "once" else last[-1]
    return [Occurrence(due, following, dropped + silent, silent)]


def _count(timer: Timer, now: datetime) -> int:
    """Return the number of occurrences from the due time until now; at most `MAX_COUNTED` of a
    cron expression."""
    if timer.every:
        return (now - timer.due) // timedelta(seconds=timer.every) + 1
    return sum(1 for _ in islice(_until(timer, timer.due, now), MAX_COUNTED))


def _last(timer: Timer, now: datetime, limit: int) -> list[datetime]:
    """Return the last occurrences until now, at most `wanted`, in order."""
    if timer.every:
        every = timedelta(seconds=timer.every)
        passed = (now - timer.due) // every
        return [timer.due + every * n for n in range(max(0, passed - limit + 1), passed + 1)]
    times: deque[datetime] = deque(maxlen=limit)
    for window in (*_WINDOWS, None):
        begin = timer.due if window is None else max(timer.due, now - window)
        times.clear()
        times.extend(_until(timer, begin, now))
        if len(times) == limit or begin == timer.due:
            break
    return list(times)


def _until(timer: Timer, begin: datetime, now: datetime) -> Iterator[datetime]:
    """Yield the occurrences of a cron expression from `begin` until `now`. The due time counts even
    if the expression, on this machine, does not name it."""
    if begin == timer.due:
        yield begin
    for time in cron_times(timer.cron, timer.timezone, begin):
        if time > now:
            return
        yield time


def content_of(timer: Timer, occurrence: Occurrence, now: datetime) -> tuple[Content, ...]:
    """Return the content of an occurrence's message, with a note if it is late."""
    late = now - occurrence.due > GRACE
    if not (late or occurrence.missed):
        return timer.content
    try:
        due = occurrence.due.astimezone(zone(timer.timezone))
    except ConfigurationError:
        due = occurrence.due
    note = f"[This message was due at {due.isoformat(' ', 'minutes')}"
    if occurrence.missed:
        note += f"; {occurrence.missed} other{'s' * (occurrence.missed > 1)} of this timer passed"
        note += " without one"
    return (*timer.content, TextContent(f"{note}.]"))


# --- requests ---


def make_rule(
    content: tuple[Content, ...],
    *,
    id: str = "",
    at: datetime | None = None,
    every: float | None = None,
    cron: str | None = None,
    timezone: str = "",
    misfire: Misfire = "once",
    sender: str = "user",
) -> Timer:
    """Return the timer of a request, checked except for the present time. Its `due` is that of
    `at`, else the epoch, until `first_due` is known.

    Raises `ConfigurationError` that names the argument that does not fit.
    """
    if [at, every, cron].count(None) != 2:
        raise ConfigurationError("A timer takes one of at, every and cron.")
    if len(id) > MAX_ID_CHARACTERS:
        raise ConfigurationError(f"A timer's id takes at most {MAX_ID_CHARACTERS} characters.")
    if not content:
        raise ConfigurationError("A timer takes a text or content blocks; it was given nothing.")
    size = sum(len(msgspec.json.encode(block)) for block in content)
    if size > MAX_TIMER_CHARACTERS:
        raise ConfigurationError(
            f"A timer's message takes at most {MAX_TIMER_CHARACTERS:,} characters, not {size:,}."
            " Put a longer text into a file, and name the file."
        )
    if cast(str, misfire) not in ("once", "skip", "all"):
        raise ConfigurationError(f"misfire takes 'once', 'skip' or 'all', not {misfire!r}.")
    if every is not None and not (
        isinstance(cast(object, every), int | float)
        and MIN_EVERY_SECONDS <= every <= MAX_AHEAD.total_seconds()
    ):
        raise ConfigurationError(
            f"every takes {MIN_EVERY_SECONDS:g} seconds or more, up to a hundred years, not"
            f" {every!r}."
        )
    zone(timezone)
    if cron is not None:
        next(cron_times(cron, timezone, ev.EPOCH + timedelta(days=20000)), None)
    if at is not None and at.tzinfo is None and not timezone:
        raise ConfigurationError(
            f"at: {at} has no time zone. Give timezone, such as 'Europe/Berlin', or a time with"
            " one."
        )
    due = ev.EPOCH if at is None else moment(at, timezone)
    return Timer(
        id,
        due,
        content,
        float(every) if every else ev.NO_PERIOD,
        " ".join((cron or "").split()),
        timezone,
        misfire,
        sender,
    )


def check_ahead(due: datetime, now: datetime) -> None:
    """Raise `ConfigurationError` unless a due time lies ahead, by at most a hundred years."""
    if due <= now:
        raise ConfigurationError(
            f"at: {due.isoformat(' ', 'seconds')} is past; it is"
            f" {now.astimezone(UTC).isoformat(' ', 'seconds')} now."
        )
    if due - now > MAX_AHEAD:
        raise ConfigurationError(
            f"at: {due.isoformat(' ', 'seconds')} is over a hundred years ahead."
        )
