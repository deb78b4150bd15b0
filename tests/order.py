"""The order of a run's tests, and their distribution among its workers.

The longest files come first, so that no worker starts one when the other workers have finished.
Tests of a file that share nothing may go to different workers.
"""

from __future__ import annotations

import pytest
from xdist.scheduler import LoadFileScheduling

# The first files wait most of their time and leave the processors to the next files.
LONGEST = (
    "tests/fleet/test_faults.py",
    "tests/runtime/sandbox/test_judges.py",
    "tests/runtime/sandbox/test_unprivileged.py",
    "tests/store/test_power_loss.py",
    "tests/e2e/test_crashes.py",
    "tests/e2e/test_random_crashes.py",
    "tests/e2e/test_server_killed.py",
    "tests/e2e/test_benchmarks_of_others.py",
    "tests/fleet/test_database_faults.py",
    "tests/tools/test_a2a_faults.py",
    "tests/fleet/test_worker.py",
    "tests/runtime/sandbox/test_attacks.py",
)
SPLIT = frozenset(LONGEST[1:8])


def sort_items(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the items of the longest files first, then the items of files with proofs, then all
    others."""
    proofs = {item.path for item in items if item.get_closest_marker("proof")}
    ranks = {file: rank for rank, file in enumerate(LONGEST)}

    def rank(item: pytest.Item) -> int:
        later = len(ranks) + (item.path not in proofs)
        return ranks.get(item.nodeid.partition("::")[0], later)

    return sorted(items, key=rank)


class Distribution(LoadFileScheduling):
    """Sends all tests of a file to one worker, and the tests of `SPLIT` one by one."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return nodeid if file in SPLIT else file
