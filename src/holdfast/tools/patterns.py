"""Patterns from outside, matched in linear time: names with `*`, and regular expressions of JSON
Schemas.

Python's `re` backtracks: a pattern such as `^(a+)+$` can hold the interpreter lock for years. The
matcher here is Rust's regex crate, which pydantic-core contains. The crate never backtracks, but
supports neither look-around nor backreferences.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Any

MAX_PATTERN_CHARS = 5_000
MAX_PATTERN_STATES = 2_000  # by the estimate below

# JSON Schema's dialect is ECMA-262, in which these are ASCII. `\Z` is Python's; servers written in
# Python send it.
_ESCAPES = {
    "d": "[0-9]",
    "D": "[^0-9]",
    "w": "[0-9A-Za-z_]",
    "W": "[^0-9A-Za-z_]",
    "b": r"(?-u:\b)",
    "B": r"(?-u:\B)",
    "Z": r"\z",
}
_ESCAPES_IN_CLASS = {**_ESCAPES, "b": r"\x08"}
_COUNTED = re.compile(r"\{([0-9]{1,6})(?:(,)([0-9]{1,6})?)?\}")
_BRACES = re.compile(r"\{[0-9A-Za-z_=]{1,60}\}")  # of `\p{Letter}` and `\u{1F600}`
_GROUP = re.compile(r"\((?:\?(?:P?<\w{1,100}>|[a-z]{0,9}(?:-[a-z]{1,9})?[:)]))?")
_UNICODE_CLASS_STATES = 100  # `\p{L}` in UTF-8


def name_fits(name: str, pattern: str) -> bool:
    """Equivalent to `fnmatchcase`, which itself searches the whole rest of the pattern for the end
    of each `[`: minutes for 100,000 characters."""
    last = pattern.rfind("]")
    at = pattern.find("[")
    while at >= 0:
        begin = at + (2 if pattern.startswith("!", at + 1) else 1)
        begin += pattern.startswith("]", begin)
        if begin > last:  # this and all further ones have no end: they stand for themselves
            pattern = pattern[:at] + pattern[at:].replace("[", "[[]")
            break
        at = pattern.find("[", pattern.index("]", begin))
    return fnmatchcase(name, pattern)


class UnsupportedPattern(ValueError):
    """A pattern that cannot be matched in linear time, or that is not a regular expression."""


class Pattern:
    """A compiled pattern of JSON Schema. Raises `UnsupportedPattern` with the reason. `states`
    estimates the size of its automaton. A match takes at most 15 ns for each state and character of
    the text (measured with `[ab]{0,2000}a[ab]{2900}c`), and nearly always far less. The match holds
    the interpreter lock meanwhile."""

    __slots__ = ("_matches", "states")

    def __init__(self, pattern: str) -> None:
        from pydantic_core import SchemaError, SchemaValidator

        if len(pattern) > MAX_PATTERN_CHARS:
            raise UnsupportedPattern(f"it is longer than {MAX_PATTERN_CHARS:,} characters")
        translated, self.states = _translate(pattern)
        if self.states > MAX_PATTERN_STATES:
            raise UnsupportedPattern("its repetitions make it too large")
        schema: Any = {"type": "str", "pattern": translated, "regex_engine": "rust-regex"}
        try:
            self._matches = SchemaValidator(schema).isinstance_python
        except SchemaError:
            raise UnsupportedPattern("it is not a regular expression of ECMA-262") from None

    def matches(self, text: str) -> bool:
        """Return True if the pattern matches anywhere in `text`."""
        return self._matches(text)


class PythonPattern:
    """A pattern of a program's own schema that Python matches, since no linear time is possible.
    Raises `re.error`. `states` is 0: nothing bounds its work."""

    __slots__ = ("_search", "states")

    def __init__(self, pattern: str) -> None:
        self._search = re.compile(pattern).search
        self.states = 0

    def matches(self, text: str) -> bool:
        """Return True if the pattern matches anywhere in `text`."""
        return self._search(text) is not None


def _translate(pattern: str) -> tuple[str, int]:
    """Return the pattern in the dialect of Rust's regex crate, and its estimated states."""
    out: list[str] = []
    groups: list[list[int]] = [[]]  # of each open group the states of its parts
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if char in "\\[":
            text, states, at = (
                _escape(pattern, at, _ESCAPES) if char == "\\" else _character_class(pattern, at)
            )
            out.append(text)
            groups[-1].append(states)
        elif char == "(":
            if re.match(r"\(\?<?[=!]", pattern[at : at + 4]):
                raise UnsupportedPattern("it has look-around")
            opened = _GROUP.match(pattern, at)
            if opened is None:
                raise UnsupportedPattern("it is not a regular expression of ECMA-262")
            out.append(opened[0])
            at = opened.end()
            if not opened[0].endswith(")"):  # `(?i)` opens nothing
                groups.append([])
        elif char == ")":
            out.append(char)
            at += 1
            if len(groups) > 1:
                groups[-2].append(sum(groups.pop()) + 2)
        elif char == "{":
            counted = _COUNTED.match(pattern, at)
            out.append(counted[0] if counted else r"\{")
            at = counted.end() if counted else at + 1
            if counted is None:
                groups[-1].append(1)
            elif groups[-1]:
                groups[-1][-1] *= max(1, int(counted[3] or counted[1]))
        else:
            out.append(r"\}" if char == "}" else char)
            groups[-1].append(1 if char.isascii() and char != "." else 4)
            at += 1
    return "".join(out), sum(map(sum, groups))


def _escape(pattern: str, at: int, escapes: dict[str, str]) -> tuple[str, int, int]:
    """Translate the escape at `at`. Return it, its states, and the position after it."""
    char = pattern[at + 1 : at + 2]
    if not char:
        raise UnsupportedPattern("it ends with a backslash")
    if char in escapes:
        return escapes[char], 1, at + 2
    if char == "0" and not pattern[at + 2 : at + 3].isdigit():
        return r"\x00", 1, at + 2
    if char.isdigit() or char == "k":
        raise UnsupportedPattern("it has backreferences")
    braces = _BRACES.match(pattern, at + 2) if char in "pPux" else None
    states = _UNICODE_CLASS_STATES if char in "pP" else 4 if char in "sSux" else 1
    text = f"\\{char}{braces[0] if braces else ''}"
    return text, states, at + len(text)


def _character_class(pattern: str, at: int) -> tuple[str, int, int]:
    """Translate the class at `at`. ECMA-262 has neither nested classes nor set operations."""
    if pattern.startswith("[^]", at):
        return r"[\s\S]", 4, at + 3
    if pattern.startswith("[]", at):
        return r"[^\s\S]", 1, at + 2
    out, states = ["["], 2
    at += 1
    if pattern.startswith("^", at):
        out.append("^")
        states += 4
        at += 1
    while at < len(pattern) and pattern[at] != "]":
        if pattern[at] == "\\":
            text, more, at = _escape(pattern, at, _ESCAPES_IN_CLASS)
            out.append(text)
            states += more
            continue
        special = pattern[at] in "[&~" or pattern.startswith("--", at)
        out.append(f"\\{pattern[at]}" if special else pattern[at])
        states += 0 if pattern[at].isascii() else 2
        at += 1
    if at == len(pattern):
        raise UnsupportedPattern("it has a class that does not end")
    return "".join(out) + "]", states, at + 1
