"""Random programs, killed at random points: the guarantees of `test_crashes.py` hold for any
program."""

from __future__ import annotations

import shutil
import tempfile
import zlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, example, given, note, settings
from hypothesis import strategies as st

from holdfast.testing import Point, crash_at_every_append
from tests.crash_programs import Do, Plan, Program, judge
from tests.samples import one_in

DECIDABLE = ("plain", "mail", "idempotent", "reads")
KILLS = 12  # of each program; the exact number is random


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Draw any program: up to three answers of up to five calls."""
    names = iter("abcdefghijklmno")
    simple = ["plain", "mail", "idempotent", "reads", "torn", "retries"]
    kinds = st.sampled_from([*simple, *simple, "big", "says", "pauses", "child"])

    def call() -> Do:
        kind = draw(kinds)
        decide = (
            draw(st.sampled_from(["", "", "approve", "reject", "edit"]))
            if kind in DECIDABLE
            else ""
        )
        fails = draw(st.integers(0, 2)) if kind in ("retries", "idempotent", "reads") else 0
        return Do(kind, next(names), decide, fails)

    batches = tuple(
        tuple(call() for _ in range(draw(st.integers(1, 5))))
        for _ in range(draw(st.integers(1, 3)))
    )
    paused = any(do.kind == "pauses" for batch in batches for do in batch)
    return Plan(
        batches,
        parallel=draw(st.integers(1, 4)),
        side_by_side=draw(st.booleans()),
        stream=draw(st.booleans()),
        inbox=draw(st.booleans()),
        during="" if paused or draw(st.integers(0, 3)) else batches[0][0].effect,
        messages=draw(st.sampled_from([("go",), ("go", "go on")])),
    )


def as_text(plan: Plan) -> str:
    """Return a plan as readable text."""
    lines = [
        f"parallel {plan.parallel}, side by side {plan.side_by_side}, messages {plan.messages},"
        f" stream {plan.stream}, inbox {plan.inbox}, during {plan.during!r}"
    ]
    for number, batch in enumerate(plan.batches):
        calls = [
            f"{do.kind}({do.name}){do.decide and ' ' + do.decide}{f' fails {do.fails}x' if do.fails else ''}"
            for do in batch
        ]
        lines.append(f"  answer {number}: {', '.join(calls)}")
    return "\n".join(lines)


def survives(plan: Plan, seed: int, twice: bool) -> int:
    """Kill a program at points that `seed` selects. Return the number of kills."""
    appends = 12 + 4 * len(plan.dos)
    share = KILLS / appends / 3

    def chosen(*points: Point) -> bool:
        one_of = zlib.crc32(f"{seed} {points}".encode()) / 2**32
        return one_of < (share if len(points) == 1 else 0.15)

    memory = Path("/dev/shm")
    folder = Path(
        tempfile.mkdtemp(prefix="holdfast-test-", dir=memory if memory.is_dir() else None)
    )
    kills = 0
    try:
        for crash in crash_at_every_append(
            Program(plan), folder=folder, points=chosen, twice=twice
        ):
            judge(plan, crash)
            kills = crash.number
            shutil.rmtree(crash.folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return kills


@pytest.mark.proof
@pytest.mark.parametrize("twice", [False, True], ids=["once", "twice"])
def test_no_program_loses_or_repeats_anything(twice: bool) -> None:
    kills: list[int] = []

    @settings(
        max_examples=(10 if twice else 45) // one_in(1, 8) + 1,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(plans(), st.integers(0, 2**16))
    @example(
        Plan(
            (
                (Do("child", "a"), Do("says", "b"), Do("plain", "c", "edit")),
                (Do("torn", "d"), Do("mail", "e")),
            ),
            parallel=2,
        ),
        1,
    )
    def holds(plan: Plan, seed: int) -> None:
        note(f"\n{as_text(plan)}")
        kills.append(survives(plan, seed, twice))

    holds()
    print(f"{len(kills)} programs, {sum(kills)} kills")
    assert sum(kills) > (100 if twice else 200) // one_in(1, 8)
