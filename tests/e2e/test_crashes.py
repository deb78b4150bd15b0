"""Real processes and real SIGKILL at every append and inside every tool: no appended event is
lost, and no unrepeatable effect is repeated. `tests/crash_programs.py` has the programs and
the judge."""

from __future__ import annotations

import shutil
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import StoreError
from holdfast.testing import Point, crash_at_every_append
from tests import crash_damages as damages
from tests.crash_programs import Do, Plan, Program, end_all_in, judge
from tests.samples import in_sample, one_in

PLANS = {
    "each kind after the other": Plan(
        (
            (
                Do("plain", "a"),
                Do("idempotent", "b"),
                Do("reads", "c"),
                Do("mail", "d"),
                Do("torn", "e"),
            ),
        ),
        parallel=1,
    ),
    "all kinds at once": Plan(
        (
            (
                Do("plain", "a"),
                Do("idempotent", "b"),
                Do("reads", "c"),
                Do("mail", "d"),
                Do("torn", "e"),
            ),
        ),
        side_by_side=True,
    ),
    "a batch larger than what runs at once": Plan(
        (
            (
                Do("mail", "a"),
                Do("plain", "b"),
                Do("idempotent", "c"),
                Do("plain", "d"),
                Do("reads", "e"),
            ),
            (Do("plain", "f"), Do("mail", "g")),
        ),
        parallel=2,
        side_by_side=True,
    ),
    "retries": Plan(
        (
            (
                Do("retries", "a", fails=2),
                Do("idempotent", "b", fails=1),
                Do("reads", "c", fails=1),
            ),
            (Do("retries", "d", fails=1),),
        ),
        parallel=2,
    ),
    "streamed answers": Plan(((Do("plain", "a"),), (Do("mail", "b"), Do("big", "c"))), stream=True),
    "approvals by method": Plan(
        (
            (
                Do("plain", "a", "approve"),
                Do("mail", "b", "reject"),
                Do("plain", "c", "edit"),
                Do("idempotent", "d"),
            ),
            (Do("mail", "e", "edit"),),
        ),
        parallel=2,
        side_by_side=True,
    ),
    "approvals through the inbox": Plan(
        (
            (
                Do("plain", "a", "approve"),
                Do("idempotent", "b", "edit"),
                Do("mail", "c", "reject"),
                Do("plain", "d"),
            ),
            (Do("mail", "e", "edit"),),
        ),
        inbox=True,
    ),
    "messages from tools": Plan(
        ((Do("says", "a"), Do("plain", "b")), (Do("says", "c"),)), messages=("go", "go on")
    ),
    "a message from another thread": Plan(
        ((Do("mail", "a"), Do("plain", "b")), (Do("idempotent", "c"),)), during="a"
    ),
    "conversations in conversations": Plan(
        ((Do("child", "a"), Do("plain", "b")), (Do("child", "c"),))
    ),
    "pauses": Plan(
        (
            (Do("pauses", "a"), Do("plain", "b")),
            (Do("mail", "c"), Do("pauses", "d"), Do("plain", "e")),
        ),
        parallel=1,
    ),
    "large outputs": Plan(((Do("big", "a"), Do("big", "b")), (Do("big", "c"),))),
    "a fork in mid-run": Plan(
        (
            (Do("mail", "a"),),
            (Do("forks", "b"), Do("plain", "c"), Do("mail", "d"), Do("plain", "e")),
        ),
        parallel=1,
    ),
    "commands": Plan(((Do("shell", "a"),), (Do("shell_once", "b"), Do("plain", "c")))),
}
SHORT = {
    "one of each": Plan(
        ((Do("plain", "a"), Do("mail", "b"), Do("idempotent", "c")),), parallel=2, side_by_side=True
    ),
    "approvals": Plan(((Do("plain", "a", "approve"), Do("mail", "b", "edit")),), inbox=True),
    "a child": Plan(((Do("child", "a"),),)),
    "torn and retried": Plan(((Do("torn", "a"), Do("retries", "b", fails=1)),), parallel=1),
}


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yield a folder, in memory if the host has such a place: fsync matters to power cuts, not
    to kills."""
    memory = Path("/dev/shm")
    path = Path(tempfile.mkdtemp(prefix="holdfast-test-", dir=memory if memory.is_dir() else None))
    yield path
    end_all_in(path)
    shutil.rmtree(path, ignore_errors=True)


def kill_and_judge(
    plan: Plan, folder: Path, damage: damages.Damage | None = None, **options: object
) -> int:
    kills = 0
    for crash in crash_at_every_append(Program(plan, damage), folder=folder, **options):  # pyright: ignore[reportArgumentType]
        judge(plan, crash)
        kills = crash.number
        shutil.rmtree(crash.folder)
    return kills


@pytest.mark.slow
def test_a_killed_program_goes_on_where_it_was(folder: Path) -> None:
    assert kill_and_judge(SHORT["one of each"], folder) > 25


@pytest.mark.proof
@pytest.mark.parametrize("name", PLANS)
def test_killed_at_every_append_and_within_every_tool(name: str, folder: Path) -> None:
    kills = kill_and_judge(PLANS[name], folder, points=in_sample)
    print(f"{name}: {kills} kills")
    assert kills > 20 // one_in(1)


@pytest.mark.proof
@pytest.mark.parametrize("name", SHORT)
def test_killed_again_while_it_goes_on(name: str, folder: Path) -> None:
    kills = kill_and_judge(SHORT[name], folder, twice=True, points=some_pairs)
    print(f"{name}: {kills} kills")
    assert kills > 600 // (FIRST * SECOND)


FIRST, SECOND = one_in(1), 4


def some_pairs(*points: Point) -> bool:
    """Return True for one in `FIRST` of all first kills, each once more alone, and after it one
    in `SECOND` of all second ones; the choice is the same each time."""
    return zlib.crc32(str(points).encode()) % (FIRST if len(points) == 1 else SECOND) == 0


# --- the test would see a broken guarantee ---

ONE, TWO = (
    Plan(((Do("plain", "a"),),)),
    Plan(((Do("plain", "a"), Do("plain", "b")),), parallel=1, side_by_side=True),
)
SAFE = Plan(((Do("idempotent", "a"),),))
EDITED = Plan(((Do("plain", "a", "edit"),),))

# damage, the plan under which it shows, and the error
DAMAGES = [
    (
        damages.starts_are_not_journaled,
        ONE,
        "was never started|not journaled|attempt was made twice",
    ),
    (damages.recovery_repeats_every_call, ONE, "may not be repeated, and it was started again"),
    (damages.every_tool_counts_as_repeatable, ONE, "2 effects|another result|effects"),
    (
        damages.results_wait_for_the_end_of_their_batch,
        TWO,
        "outcomes are unknown, and only 1 calls run at once",
    ),
    (damages.appends_are_acknowledged_before_they_are_written, ONE, "was appended, and is lost"),
    (damages.recovery_drops_started_calls, SAFE, "may be run again, but was answered without"),
    (damages.recovery_drops_queued_calls, TWO, "another result"),
    (damages.each_attempt_has_its_own_key, SAFE, "keys"),
    (damages.attempts_are_counted_anew, SAFE, "attempt 1 of call 4.0, after attempt 1"),
    (damages.an_unknown_outcome_is_told_as_success, ONE, "not told that its outcome is unknown"),
    (damages.reconcile_is_not_asked, Plan(((Do("mail", "a"),),)), "its outcome can be known"),
    (
        damages.reconcile_is_not_believed,
        Plan(((Do("mail", "a"),),)),
        "its reconcile said otherwise",
    ),
    (damages.approved_arguments_are_forgotten, EDITED, "arguments that were not approved"),
    (
        damages.an_approval_is_not_needed_after_a_kill,
        Plan(((Do("plain", "a", "reject"),),)),
        "it was rejected, and run|another result",
    ),
    (
        damages.commands_that_were_done_stay_in_the_inbox,
        Plan(((Do("says", "a"),),)),
        "other messages",
    ),
    (
        damages.commands_are_done_twice_as_their_mark_comes_later,
        Plan(((Do("says", "a"),),)),
        "other messages",
    ),
    (damages.outputs_are_not_kept_whole, Plan(((Do("big", "a"),),)), "No blob"),
    (
        damages.commands_are_left_running,
        Plan(((Do("shell", "a"),),)),
        "effects|still running|repeated",
    ),
    (damages.nobody_goes_on, ONE, "it came to rest as"),
]


@pytest.mark.proof
@pytest.mark.parametrize(
    ("damage", "plan", "problem"), DAMAGES, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_broken_guarantee_is_seen(
    damage: damages.Damage, plan: Plan, problem: str, folder: Path
) -> None:
    with pytest.raises((AssertionError, StoreError), match=problem):
        kill_and_judge(plan, folder, damage, deadline=10.0)


@pytest.mark.proof
@pytest.mark.parametrize("plan", [ONE, TWO, SAFE, EDITED], ids=["one", "two", "safe", "edited"])
def test_nothing_is_seen_where_nothing_is_broken(plan: Plan, folder: Path) -> None:
    assert kill_and_judge(plan, folder) > 10
