"""`Word`: an argument as a program gets it, as far as it is known."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import NamedTuple


def listed(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


class Names(NamedTuple):
    """Names of files: those that fit one of `patterns` (none: all) and none of `without`; with `hidden` also those that begin with a dot."""

    patterns: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    hidden: bool = True

    def keep(self, name: str) -> bool:
        """Whether a name is among them."""
        if (not self.hidden and name.startswith(".")) or any(fnmatchcase(name, one) for one in self.without):
            return False
        return not self.patterns or any(fnmatchcase(name.lower(), one.lower()) for one in self.patterns)


class Word(NamedTuple):
    """One argument.

    Args:
        text: The argument; a pattern if `glob`; its beginning if it is not `known`.
        known: Whether `text` is all of it.
        glob: Whether the shell may replace it by the names of files.
        tree: Set if the argument is some path below the folder `text`: the names that it may have.
        split: Whether what is not known of it may become several arguments, or none.
    """

    text: str
    known: bool = True
    glob: bool = False
    tree: Names | None = None
    split: bool = False
