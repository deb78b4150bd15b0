"""The unit of terminal output: a line with a style."""

from __future__ import annotations

from typing import NamedTuple


class Line(NamedTuple):
    """One line to show.

    `style` is plain, user, call, dim, error, add, remove, or gap. A gap is a blank line unless
    the line before it is blank.
    """

    style: str
    text: str = ""


GAP = Line("gap")
