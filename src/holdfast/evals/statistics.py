"""Intervals and tests of pass rates. Each case counts once. Runs of one case are not independent,
so repeats make a case's share more exact but not the number of cases larger."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

Z = 1.959963984540054  # of the normal distribution, two-sided 95 %
_RESAMPLES = 4000
_SEED = 20_240_601  # so that the same results have the same interval


def wilson(rate: float, cases: int) -> tuple[float, float]:
    """Return the 95 % score interval of a pass rate over so many cases.

    E. B. Wilson, Probable inference, the law of succession, and statistical inference, Journal of
    the American Statistical Association 22 (1927), 209-212.
    """
    if cases < 1:
        return 0.0, 1.0
    square = Z * Z / cases
    middle = (rate + square / 2) / (1 + square)
    half = Z / (1 + square) * math.sqrt(rate * (1 - rate) / cases + square / (4 * cases))
    return max(0.0, middle - half), min(1.0, middle + half)


def bootstrap(differences: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % percentile interval of the mean of paired differences, one for each case.

    B. Efron, Bootstrap methods: another look at the jackknife, Annals of Statistics 7 (1979), 1-26.
    """
    count = len(differences)
    if not count:
        return 0.0, 0.0
    dice = random.Random(_SEED)
    means = sorted(sum(dice.choices(differences, k=count)) / count for _ in range(_RESAMPLES))
    return means[int(0.025 * _RESAMPLES)], means[int(0.975 * _RESAMPLES) - 1]


def sign_test(better: int, worse: int) -> float:
    """Return the exact two-sided probability of a split of the changed cases at least this uneven,
    if neither agent is better. With one run for each case it is McNemar's exact test.

    Q. McNemar, Note on the sampling error of the difference between correlated proportions,
    Psychometrika 12 (1947), 153-157.
    """
    changes = better + worse
    tail = sum(math.comb(changes, k) for k in range(min(better, worse) + 1))
    return min(1.0, 2 * tail / 2**changes)
