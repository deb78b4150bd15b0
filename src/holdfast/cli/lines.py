"""A line to show: what every drawing of the command is made of."""

from __future__ import annotations

from typing import NamedTuple


class Line(NamedTuple):
    """One line to show. `style` is plain, user, call, dim, error, add, remove, or gap: a blank line
    unless there is one already."""

    style: str
    text: str = ""


GAP = Line("gap")
