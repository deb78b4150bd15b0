"""The sizes of a test run: how many samples the random tests and the long proofs take.

| size | command | random examples | parametrized tests marked `proof` |
|---|---|---|---|
| fast | `make test` | a tenth | none |
| all | `make test-all` | a half | a fixed third of those with more than five cases, and a quarter or less of the points within some |
| prove | `make prove` | all | all |
"""

from __future__ import annotations

import math
import zlib
from typing import Literal

import pytest

Size = Literal["fast", "all", "prove"]
SHARES: dict[Size, float] = {"fast": 0.1, "all": 0.5, "prove": 1.0}
MOST_CASES = 5  # points of one proof, which a run of size "all" does not sample

_size: Size = "fast"


def use(size: Size) -> None:
    """Set the size of this run. pytest calls it before it imports any test module."""
    global _size
    _size = size


def full() -> bool:
    """Return whether this run has the full size."""
    return _size == "prove"


def examples(count: int) -> int:
    """Return the number of random examples of this run, for a test with `count` examples at full
    size."""
    return max(min(count, 10), int(count * SHARES[_size]))


def one_in(full: int, times: int = 4) -> int:
    """Return N for a proof that tests one in N cases. N is `full` at full size, and `times * full`
    otherwise."""
    return full if _size == "prove" else times * full


def in_sample(*points: object) -> bool:
    """Return whether this run kills a program at these points. At full size it kills at all points,
    otherwise at one in three, which are the same in every run."""
    return _size == "prove" or zlib.crc32(str(points).encode()) % 3 == 0


def choose(items: list[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return the items of this run and the other items. The choice depends on the ids alone and is
    the same in every run."""
    if _size != "all":
        return items, []
    proofs: dict[str, list[str]] = {}
    for item in items:
        if item.get_closest_marker("proof"):
            proofs.setdefault(item.nodeid.partition("[")[0], []).append(item.nodeid)
    unchosen: set[str] = set()
    for cases in proofs.values():
        if len(cases) > MOST_CASES:
            cases.sort(key=lambda case: zlib.crc32(case.encode()))
            unchosen.update(cases[math.ceil(len(cases) / 3) :])
    chosen = [item for item in items if item.nodeid not in unchosen]
    return chosen, [item for item in items if item.nodeid in unchosen]
