"""Tests of patterns of names, which mean the same as for `fnmatchcase`, without its quadratic time."""

from __future__ import annotations

import random
from fnmatch import fnmatchcase

import pytest

from holdfast.tools import patterns
from holdfast.tools.patterns import name_fits


def test_a_pattern_means_what_it_means_to_fnmatch() -> None:
    chance = random.Random(3)
    for _ in range(1_500):
        pattern = "".join(chance.choices("[]!ab*?-^", k=chance.randint(0, 9)))
        name = "".join(chance.choices("ab[]!-*", k=chance.randint(0, 5)))
        assert name_fits(name, pattern) == fnmatchcase(name, pattern), (name, pattern)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [("[!" * 9, "[[]!" * 9), ("a[b]" + "[" * 9, "a[b]" + "[[]" * 9), ("[]" * 3, "[]" * 2 + "[[]]")],
)
def test_a_bracket_without_an_end_is_not_searched_for_it(
    monkeypatch: pytest.MonkeyPatch, pattern: str, expected: str
) -> None:
    compiled: list[str] = []

    def noted(name: str, pattern: str) -> bool:
        compiled.append(pattern)
        return False

    monkeypatch.setattr(patterns, "fnmatchcase", noted)
    name_fits("a", pattern)
    assert compiled == [expected]


@pytest.mark.slow
def test_a_gitignore_of_brackets_and_a_hooks_matcher_end() -> None:
    """Check that the search for the ends does not take minutes."""
    assert not name_fits("a" * 60, "[!" * 100_000)
