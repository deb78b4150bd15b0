"""Tests of the rules of timers: due times by the clock on the wall, and the occurrences that give a
message."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import commands
from holdfast.content import TextContent
from holdfast.errors import ConfigurationError
from holdfast.timers import (
    Timer,
    content_of,
    cron_times,
    first_due,
    make_rule,
    moment,
    occurrence_key,
    occurrences,
)
from tests.samples import examples

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
TICK = (TextContent("tick"),)
BERLIN = "Europe/Berlin"


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def rule(**fields: Any) -> Timer:
    return make_rule(TICK, id="t", **fields)


def timer(now: datetime = NOON, **fields: Any) -> Timer:
    import msgspec

    new_rule = rule(**fields)
    return msgspec.structs.replace(new_rule, due=first_due(new_rule, now), set_seq=1)


# --- the clock on the wall ---


@pytest.mark.parametrize(
    ("local", "fold", "expected"),
    [
        ("2026-03-29 01:59", 0, "2026-03-29 00:59"),
        ("2026-03-29 02:30", 0, "2026-03-29 01:30"),  # skipped: 03:30 in summer time
        ("2026-03-29 03:00", 0, "2026-03-29 01:00"),
        ("2026-10-25 02:30", 0, "2026-10-25 00:30"),  # it exists twice: the first time
        ("2026-10-25 02:30", 1, "2026-10-25 01:30"),
        ("2026-11-23 12:00", 0, "2026-11-23 11:00"),
    ],
)
def test_a_time_without_a_zone_is_that_of_the_named_one(
    local: str, fold: int, expected: str
) -> None:
    assert moment(datetime.fromisoformat(local).replace(fold=fold), BERLIN) == utc(expected)


def test_a_time_with_a_zone_needs_no_name() -> None:
    assert rule(at=datetime.fromisoformat("2026-11-23T12:00+01:00")).due == NOON - HOUR


@pytest.mark.parametrize(
    ("expression", "zone", "after", "expected"),
    [
        # a skipped hour: right after the gap, once
        ("30 2 * * *", BERLIN, "2026-03-28 12:00", ["2026-03-29 01:00", "2026-03-30 00:30"]),
        # an hour that exists twice: the first time
        ("30 2 * * *", BERLIN, "2026-10-24 12:00", ["2026-10-25 00:30", "2026-10-26 01:30"]),
        # set between the two
        ("30 2 * * *", BERLIN, "2026-10-25 00:45", ["2026-10-26 01:30", "2026-10-27 01:30"]),
        ("30 2 * * *", BERLIN, "2026-10-25 01:10", ["2026-10-26 01:30", "2026-10-27 01:30"]),
        # with a star, elapsed time counts
        ("*/30 * * * *", BERLIN, "2026-10-25 00:00",
         ["2026-10-25 00:30", "2026-10-25 01:00", "2026-10-25 01:30", "2026-10-25 02:00"]),
        ("*/30 * * * *", BERLIN, "2026-03-29 00:30",
         ["2026-03-29 01:00", "2026-03-29 01:30", "2026-03-29 02:00"]),
        # half an hour of summer time, and a zone that skipped a day
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-02 15:00",
         ["2026-10-02 15:45", "2026-10-03 15:30", "2026-10-04 15:15"]),
        ("0 9 * * mon-fri", "", "2026-11-20 10:00", ["2026-11-23 09:00", "2026-11-24 09:00"]),
        ("0 0 29 2 *", "", "2026-11-23 00:00", ["2028-02-29 00:00", "2032-02-29 00:00"]),
        ("0 12 l * *", "", "2026-11-23 00:00", ["2026-11-30 12:00", "2026-12-31 12:00"]),
        ("0 0 1 1 *", "Pacific/Kiritimati", "2026-06-01 00:00", ["2026-12-31 10:00"]),
    ],
)  # fmt: skip
def test_a_cron_expression_follows_the_clock_of_its_zone(
    expression: str, zone: str, after: str, expected: list[str]
) -> None:
    times = islice(cron_times(expression, zone, utc(after)), len(expected))
    assert [f"{time:%Y-%m-%d %H:%M}" for time in times] == expected


@given(
    st.sampled_from(["30 2 * * *", "*/20 * * * *", "0 1-4 * * *", "15 */2 * * *", "59 23 * * sun"]),
    st.sampled_from([BERLIN, "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", ""]),
    st.integers(0, 525600),
)
@pytest.mark.slow
@settings(deadline=None)
def test_times_of_an_expression_go_forward_and_are_the_same_from_wherever_one_begins(
    expression: str, zone: str, minute: int
) -> None:
    after = utc("2026-01-01") + timedelta(minutes=minute)
    times = list(islice(cron_times(expression, zone, after), 6))
    assert times == sorted(set(times))
    assert times[0] > after
    # the state between two occurrences is only the last of them
    assert next(cron_times(expression, zone, times[2])) == times[3]
    assert next(cron_times(expression, zone, times[0] + timedelta(seconds=1))) == times[1]


def test_the_library_of_cron_expressions_is_loaded_with_the_first_one() -> None:
    code = (
        "import sys, json, holdfast.timers, holdfast.conversation, holdfast.store.sqlite;"
        "print(json.dumps([m for m in ('cronsim', 'zoneinfo') if m in sys.modules]))"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert json.loads(process.stdout) == []


def test_a_machine_without_time_zones_says_so(tmp_path: Any) -> None:
    """Check the error of a machine without time zones; UTC needs no database."""
    code = (
        "import sys; sys.modules['tzdata'] = None\n"
        "from holdfast.timers import zone\n"
        "print(zone(''), zone('UTC'))\n"
        "try: zone('Europe/Berlin')\n"
        "except Exception as error: print(error)\n"
    )
    environment = {**os.environ, "PYTHONTZPATH": str(tmp_path)}
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, env=environment, text=True
    )
    assert process.stdout.splitlines() == [
        "UTC UTC",
        "timezone: 'Europe/Berlin' cannot be looked up: this machine has no time zone database."
        " Install it, or the package tzdata.",
    ]


# --- occurrences ---


def rows(results: list[Any]) -> list[tuple[str, str, int, bool]]:
    return [
        (f"{one.due:%d %H:%M}", "" if one.next is None else f"{one.next:%d %H:%M}", one.missed, one.silent)
        for one in results
    ]  # fmt: skip


@pytest.mark.parametrize("how", [{"every": 3600}, {"cron": "0 * * * *"}])
@pytest.mark.parametrize(
    ("misfire", "late", "expected"),
    [
        ("once", 0, [("23 13:00", "23 14:00", 0, False)]),
        ("once", 30, [("23 13:00", "23 14:00", 0, False)]),
        ("once", 60, [("23 13:00", "23 15:00", 1, False)]),
        ("once", 60 * 48, [("23 13:00", "25 14:00", 48, False)]),
        ("skip", 0, [("23 13:00", "23 14:00", 0, False)]),
        ("skip", 1, [("23 13:00", "23 14:00", 0, False)]),
        ("skip", 2, [("23 13:00", "23 14:00", 1, True)]),
        ("skip", 60, [("23 14:00", "23 15:00", 1, False)]),
        ("skip", 62, [("23 14:00", "23 15:00", 2, True)]),
        ("all", 60, [("23 13:00", "23 14:00", 0, False), ("23 14:00", "23 15:00", 0, False)]),
        (
            "all",
            60 * 11,
            [(f"{d} {h:02}:00", f"{e} {i:02}:00", 2 * (n == 0), False)
             for n, (d, h, e, i) in enumerate(
                 [(23, h, 23 + (h == 23), (h + 1) % 24) for h in range(15, 24)] + [(24, 0, 24, 1)])],
        ),
    ],
)  # fmt: skip
def test_missed_occurrences_follow_the_policy(
    how: dict[str, Any], misfire: str, late: int, expected: list[Any]
) -> None:
    set_at_noon = timer(**how, misfire=misfire)
    now = NOON + HOUR + timedelta(minutes=late)
    assert rows(occurrences(set_at_noon, now, 0)) == expected


@pytest.mark.parametrize(
    ("misfire", "late", "silent"),
    [("once", 999999, False), ("skip", 1, False), ("skip", 2, True), ("all", 999999, False)],
)
def test_one_time_has_one_occurrence(misfire: str, late: int, silent: bool) -> None:
    single = timer(at=NOON + HOUR, misfire=misfire)
    now = NOON + HOUR + timedelta(minutes=late)
    assert rows(occurrences(single, now, 0)) == [("23 13:00", "", int(silent), silent)]


@pytest.mark.parametrize(("misfire", "silent"), [("once", True), ("skip", True), ("all", False)])
def test_a_message_that_was_not_answered_yet_stands_for_those_that_follow(
    misfire: str, silent: bool
) -> None:
    import msgspec

    again = msgspec.structs.replace(timer(every=3600, misfire=misfire), message_seq=7)
    [occurrence] = occurrences(again, NOON + HOUR, 6)
    assert occurrence.silent is silent
    [occurrence] = occurrences(again, NOON + HOUR, 7)
    assert occurrence.silent is False


def test_a_timer_that_slept_for_years_is_computed_at_once() -> None:
    now = NOON + timedelta(days=3650)
    rules: list[dict[str, Any]] = [
        {"every": 60},
        {"cron": "* * * * *"},
        {"cron": "0 3 1 1 *", "timezone": BERLIN},
    ]
    for how in rules:
        for misfire in ("once", "skip", "all"):
            results = occurrences(timer(**how, misfire=misfire), now, 0)
            assert results[-1].next is not None
            assert results[-1].next > now
            assert len(results) <= 10


@given(
    st.sampled_from([{"every": 60}, {"every": 90.5}, {"cron": "*/7 * * * *", "timezone": BERLIN}]),
    st.sampled_from(["once", "skip", "all"]),
    st.lists(st.integers(0, 100_000), min_size=1, max_size=examples(12)),
)
@pytest.mark.slow
@settings(deadline=None)
def test_occurrences_never_repeat_whenever_one_looks(
    how: dict[str, Any], misfire: str, looks: list[int]
) -> None:
    import msgspec

    one, now, past = timer(**how, misfire=misfire), NOON, set[datetime]()
    for seconds in looks:
        now += timedelta(seconds=seconds)
        if one.due > now:
            continue
        results = occurrences(one, now, 0)
        for occurrence in results:
            assert occurrence.due not in past
            assert occurrence.due <= now
            past.add(occurrence.due)
        assert results[-1].next is not None
        assert results[-1].next > now
        one = msgspec.structs.replace(one, due=results[-1].next)


def test_a_late_message_says_so() -> None:
    berlin = timer(cron="0 14 * * *", timezone=BERLIN)
    [late] = occurrences(berlin, NOON + timedelta(days=2, hours=2), 0)
    assert content_of(berlin, late, NOON + timedelta(days=2, hours=2)) == (
        TextContent("tick"),
        TextContent(
            "[This message was due at 2026-11-23 14:00+01:00; 2 others of this timer passed without"
            " one.]"
        ),
    )
    [on_time] = occurrences(berlin, NOON + HOUR, 0)
    assert content_of(berlin, on_time, NOON + HOUR) == (TextContent("tick"),)


def test_the_key_of_an_occurrence_is_the_same_in_every_zone() -> None:
    from zoneinfo import ZoneInfo

    assert occurrence_key("a:b", NOON) == "timer:a:b:2026-11-23T12:00:00+00:00"
    assert occurrence_key("a:b", NOON.astimezone(ZoneInfo(BERLIN))) == occurrence_key("a:b", NOON)


# --- commands ---


@pytest.mark.parametrize(
    "command",
    [
        commands.Schedule(TICK, "t", at=NOON),
        commands.Schedule(TICK, at=datetime(2026, 12, 1, 9), timezone=BERLIN),
        commands.Schedule(TICK, every=60.5, misfire="all"),
        commands.Schedule(TICK, cron="0 9 * * mon", timezone=BERLIN, sender="other"),
        commands.CancelTimer("t", reason="done"),
        commands.RingTimer("t", NOON),
    ],
)  # fmt: skip
def test_a_command_is_read_back(command: Any) -> None:
    assert commands.decode(commands.encode(command)) == command


def test_a_posted_command_with_a_wrong_rule_is_unreadable_and_never_stays() -> None:
    data = commands.encode(commands.Schedule(TICK, cron="0 9 * * mon"))
    command = commands.posted(data.replace(b"mon", b"xyz"))
    assert isinstance(command, commands.UnreadableCommand)
    assert "Bad day-of-week" in command.reason


def test_a_rule_is_checked_when_the_command_is_made() -> None:
    with pytest.raises(ConfigurationError, match="five fields"):
        commands.Schedule(TICK, cron="daily")
