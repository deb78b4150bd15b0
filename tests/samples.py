"""The sizes of a test run: how many samples the random tests and the long proofs take.

| size | command | random examples | parametrized tests marked `proof` |
|---|---|---|---|
| fast | `make test` | a tenth | none |
| all | `make test-all` | a half | a fixed third of those with more than six cases, and a quarter of the points within some |
| prove | `make prove` | all | all |
"""

from __future__ import annotations

import zlib
from collections import Counter
from typing import Literal

import pytest

Size = Literal["fast", "all", "prove"]
SHARES: dict[Size, float] = {"fast": 0.1, "all": 0.5, "prove": 1.0}
MOST_CASES = 6  # of one proof, that a run of size "all" does not sample

_size: Size = "fast"


def use(size: Size) -> None:
    """Set the size of this run. Called before any test module is imported."""
    global _size
    _size = size


def examples(count: int) -> int:
    """Return the number of random examples of this run for a test that takes `count` in full."""
    return max(min(count, 10), int(count * SHARES[_size]))


def one_in(full: int) -> int:
    """Return how many cases there are for each that this run takes, for a proof that takes one in
    `full` at full size."""
    return full if _size == "prove" else 4 * full


def sampled(items: list[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return the items of this run and the others. A case is chosen by its id alone."""

    def proof(item: pytest.Item) -> str:
        return item.nodeid.partition("[")[0]

    if _size != "all":
        return items, []
    cases = Counter(proof(item) for item in items if item.get_closest_marker("proof"))
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        many = item.get_closest_marker("proof") and cases[proof(item)] > MOST_CASES
        chosen = not many or zlib.crc32(item.nodeid.encode()) % 3 == 0
        (kept if chosen else left_out).append(item)
    return kept, left_out
