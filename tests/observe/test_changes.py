"""Tests of the diffs of a run's results, put together to one diff of each file."""

from __future__ import annotations

from difflib import unified_diff as difflib_diff
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.observe.changes import ChangedFile, DiffCollector
from holdfast.patches import parse
from holdfast.runtime.edit import unified_diff


def collected(*texts: str, name: str = "a.py") -> tuple[ChangedFile, ...]:
    """Return the changes that the diffs between these states of a file make."""
    collector = DiffCollector()
    for seq, (before, after) in enumerate(pairwise(texts), 1):
        if diff := unified_diff(before, after, name):
            collector.add(seq, diff)
    return collector.changes()


def patched(before: str, change: ChangedFile) -> str:
    """Return the file after the change, by the parser of `apply_patch`."""
    (file,) = parse(f"--- {change.path}\n+++ {change.path}\n{change.diff}\n")
    lines: list[Any] = [(line.removesuffix("\n"), "\n" in line) for line in _lines(before)]
    shift = 0
    for chunk in file.chunks:
        assert chunk.guess is not None
        old = [line.text for line in chunk.lines if line.kind != "+"]
        new = [(line.text, line.newline) for line in chunk.lines if line.kind != "-"]
        at = chunk.guess + shift
        assert [text for text, _ in lines[at : at + len(old)]] == old
        lines[at : at + len(old)] = new
        shift += len(new) - len(old)
    return "".join(text + "\n" * newline for text, newline in lines)


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def test_edits_of_one_line_are_one_change_from_the_first_to_the_last() -> None:
    (change,) = collected("x = 1\ny = 2\n", "x = 10\ny = 2\n", "x = 11\ny = 2\n")
    assert change.diff == "@@ -1,2 +1,2 @@\n-x = 1\n+x = 11\n y = 2"
    assert (change.added, change.removed, change.seqs, change.composed) == (1, 1, (1, 2), True)


def test_distant_edits_are_two_hunks_with_the_line_numbers_of_both_files() -> None:
    text = "".join(f"{number}\n" for number in range(1, 101))
    (change,) = collected(
        text,
        text.replace("90\n", "ninety\n"),
        text.replace("90\n", "ninety\n").replace("5\n", "", 1),
    )
    first, second = [line for line in change.diff.split("\n") if line.startswith("@@")]
    assert (first, second) == ("@@ -2,7 +2,6 @@", "@@ -87,7 +86,7 @@")


def test_a_file_that_ends_as_it_began_has_not_changed() -> None:
    assert collected("a\nb\n", "a\nc\n", "a\nb\n") == ()


def test_a_file_that_the_run_created_is_added_whole() -> None:
    (change,) = collected("", "a\n", "a\nb\n")
    assert change.diff == "@@ -0,0 +1,2 @@\n+a\n+b"


def test_a_change_by_something_else_shows_the_edits_one_after_the_other() -> None:
    collector = DiffCollector()
    collector.add(3, unified_diff("a\nb\n", "a\nc\n", "a.py"))
    collector.add(7, unified_diff("other\nx\n", "other\ny\n", "a.py"))
    (change,) = collector.changes()
    assert not change.composed
    assert change.diff.startswith("# event 3\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n# event 7\n")


@pytest.mark.parametrize(
    "diff",
    [
        "--- a.py\n+++ a.py\n(lines 1 to 9 changed; too many to show)\n",
        "--- a.py\n+++ a.py\n@@ -1,3 +1,3 @@\n a\n-b\n(the rest of the diff is left out)\n",
        "--- a.py\n+++ a.py\n@@ -1,3 +1,3 @@\n a\n",
        "--- a.py\n+++ a.py\n",
    ],
)
def test_a_diff_that_is_cut_is_shown_as_it_is(diff: str) -> None:
    collector = DiffCollector()
    collector.add(1, diff)
    (change,) = collector.changes()
    assert (change.path, change.composed) == ("a.py", False)


@pytest.mark.parametrize("diff", ["", "no diff", "+++ a.py", "@@ -1 +1 @@\n-a\n+b\n", "--- a.py\n"])
def test_what_is_no_diff_changes_nothing(diff: str) -> None:
    collector = DiffCollector()
    collector.add(1, diff)
    assert collector.changes() == () or not collector.changes()[0].composed


def test_a_patch_of_several_files_and_lines_like_headers() -> None:
    collector = DiffCollector()
    one = unified_diff("-- a\nb\n", "++ a\nb\n", "one.sql")
    two = "".join(difflib_diff(["x\n"], ["y\n"], "a/two.py", "b/two.py"))
    removal = "".join(difflib_diff(["x\n"], [], "a/gone.py", "/dev/null"))
    collector.add(1, one + two + removal)
    assert [(change.path, change.added, change.removed) for change in collector.changes()] == [
        ("gone.py", 0, 1),
        ("one.sql", 1, 1),
        ("two.py", 1, 1),
    ]


def test_what_is_kept_of_diffs_is_bounded() -> None:
    collector = DiffCollector(max_characters=1000)
    for number in range(100):
        collector.add(number, unified_diff("", "x" * 100 + "\n", f"f{number:03}.py"))
    changes = collector.changes()
    assert len(changes) == 100
    assert changes[0].composed
    assert changes[-1].diff == "(the diffs are left out, for their size)"


WORDS = st.lists(st.sampled_from("abcd"), max_size=12)
TEXTS = st.builds(
    lambda lines, end: "".join(f"{line}\n" for line in lines)[: None if end else -1],
    WORDS,
    st.booleans(),
)


@given(st.lists(TEXTS, min_size=2, max_size=6))
@settings(deadline=None)
def test_the_change_makes_the_last_state_of_the_first(texts: list[str]) -> None:
    changes = collected(*texts)
    if texts[0] == texts[-1]:
        assert changes == ()
        return
    (change,) = changes
    assert change.composed
    assert patched(texts[0], change) == texts[-1]
