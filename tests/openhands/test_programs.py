"""Tests of the page about OpenHands' example programs: it names each of them once, and its links
lead somewhere."""

from __future__ import annotations

import re

from tests.paths import REPO

PAGE = REPO / "docs" / "how-to" / "openhands-programs.md"
# The programs by folder of its examples; number 43 of the first one does not exist.
PROGRAMS = [
    *(f"1/{number:02}" for number in range(1, 58) if number != 43),
    *(f"2/{number:02}" for number in range(1, 17)),
    *(f"3/{number:02}" for number in range(1, 6)),
    *(f"4/{number:02}" for number in range(1, 3)),
    *(f"5/{number:02}" for number in range(1, 5)),
]


def test_each_program_stands_in_one_row() -> None:
    rows = [line.split("|")[1] for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    assert sorted(name for row in rows for name in re.findall(r"\b\d/\d\d\b", row)) == PROGRAMS
    assert len(PROGRAMS) == 83


def slug(heading: str) -> str:
    """Return the anchor of a heading, as the site makes it."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading.lower())).strip("-")


def test_each_anchor_is_that_of_a_heading() -> None:
    for page in (PAGE, PAGE.with_name("embedding.md")):
        for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text()):
            text = ((page.parent / target) if target else page).read_text()
            headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
            assert anchor in [slug(heading) for heading in headings], (page.name, target, anchor)
