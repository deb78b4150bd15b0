"""Conversion of glob patterns and `.gitignore` lines to regular expressions of bounded size and
match time.

Both come from outside: a model writes globs, and a repository contains `.gitignore`. Every
pattern has a maximum length, braces expand to a bounded number of patterns, and no resulting
regular expression backtracks over more than one star.
"""

from __future__ import annotations

import itertools
import re
from functools import lru_cache

from holdfast.errors import RuntimeFault

MAX_PATTERN = 4096
"""The maximum number of characters of one pattern; no path on Linux is longer."""
_MAX_ALTERNATIVES = 100  # the number of patterns that braces may expand to
_MAX_DEPTH = 20  # of nested braces

_CHARACTER_CLASSES = {
    "alnum": "a-zA-Z0-9",
    "alpha": "a-zA-Z",
    "blank": " \\t",
    "cntrl": "\\x00-\\x1f\\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": "!-/:-@\\[-`{-~",
    "space": " \\t\\n\\r\\f\\v",
    "upper": "A-Z",
    "xdigit": "0-9A-Fa-f",
}


class _NoMatch(Exception):
    """A pattern that matches nothing."""


def too_long(pattern: str) -> RuntimeFault:
    """Return the error for a pattern that is too long."""
    return RuntimeFault(
        f"The pattern has {len(pattern):,} characters; at most {MAX_PATTERN:,} are taken. Use a"
        " shorter one."
    )


# --- braces ---


def braces(pattern: str) -> list[str]:
    """Expand braces, nested ones too: `*.{js,ts}` becomes `*.js` and `*.ts`. A brace without its
    partner or without a comma stands for itself. Raises `RuntimeFault` for a pattern that is too
    long or expands to too many."""
    if len(pattern) > MAX_PATTERN:
        raise too_long(pattern)
    # The position of an opening brace -> the positions of its commas and its closing brace.
    pairs: dict[int, tuple[int, ...]] = {}
    open: list[list[int]] = []
    at = 0
    while at < len(pattern):
        match pattern[at]:
            case "\\":
                at += 1
            case "{":
                open.append([at])
            case "," if open:
                open[-1].append(at)
            case "}" if open:
                first, *commas = open.pop()
                if commas:
                    pairs[first] = (*commas, at)
            case _:
                pass
        at += 1
    return _expanded(pattern, 0, len(pattern), pairs, 0)


def _expanded(
    pattern: str, at: int, end: int, pairs: dict[int, tuple[int, ...]], depth: int
) -> list[str]:
    if depth > _MAX_DEPTH:
        raise RuntimeFault(
            f"The pattern has braces within braces, more than {_MAX_DEPTH} deep. Use fewer"
            " {braces}."
        )
    pieces: list[list[str]] = []
    start = at
    count = 1
    while at < end:
        if (ends := pairs.get(at)) is not None and ends[-1] < end:
            choices: list[str] = []
            for first, last in itertools.pairwise((at, *ends)):
                choices += _expanded(pattern, first + 1, last, pairs, depth + 1)
                count_now = count * len(choices)
                if count_now > _MAX_ALTERNATIVES:
                    raise RuntimeFault(
                        f"The pattern stands for more than {_MAX_ALTERNATIVES} patterns. Use fewer"
                        " {braces}."
                    )
            count *= len(choices)
            pieces += [[pattern[start:at]], choices]
            start = at = ends[-1] + 1
        else:
            at += 1
    pieces.append([pattern[start:end]])
    return ["".join(choice) for choice in itertools.product(*pieces)]


# --- one part of a path ---


def _class(part: str, at: int, git: bool) -> tuple[str, int] | None:
    """Return the bracket at `at` as a regular expression with its end; None if unclosed."""
    at += 1
    negated = part[at : at + 1] in ("!", "^") and at < len(part)
    at += negated
    out = ""
    first = True
    low = ""  # the last single character, which may begin a range
    while at < len(part) and (first or part[at] != "]"):
        first = False
        if (
            part.startswith("[:", at)
            and (end := part.find(":]", at + 2)) > 0
            and part[at + 2 : end].isalpha()
        ):
            if (characters := _CHARACTER_CLASSES.get(part[at + 2 : end])) is None:
                raise _NoMatch(f"there is no character class {part[at + 2 : end]!r}")
            out, at, low = out + characters, end + 2, ""
            continue
        if part[at] == "-" and low and at + 1 < len(part) and part[at + 1] != "]":
            at += 1
            if part[at] == "\\":
                at += 1
            high = part[at : at + 1]
            at += 1
            if high < low and not git:
                raise _NoMatch(f"the range {low}-{high} goes backwards")
            # In git such a range contains only its first character.
            out += f"-{re.escape(high)}" if high >= low else ""
            low = ""
            continue
        if part[at] == "\\":
            at += 1
            if at >= len(part):
                return None
        low = part[at]
        out += re.escape(low) if low != "/" else ""
        if low == "/":
            low = ""
        at += 1
    if at >= len(part):
        return None
    if not out:
        return ("[^/]" if negated else "(?!)"), at + 1
    return f"(?!/)[{'^' if negated else ''}{out}]", at + 1


def part(text: str, git: bool = False) -> str:
    """Return one part of a path pattern, without slashes, as a regular expression.

    Text between two stars is matched at its first position only (an atomic group). If the text
    after the second star matches at all, it matches after that position. So the time of a
    mismatch does not grow with each star. With `git`, an unclosed bracket matches nothing, as in
    git; otherwise it stands for itself.
    """
    out, at = "", 0
    star = -1  # the start in `out` of the text after the last star
    while at < len(text):
        char = text[at]
        at += 1
        if char == "*":
            # Several stars are one; each of them would multiply the time of a mismatch.
            while text[at : at + 1] == "*":
                at += 1
            if star >= 0:
                out = f"{out[:star]}(?>[^/]*?{out[star + len('[^/]*') :]})"
            star = len(out)
            out += "[^/]*"
        elif char == "?":
            out += "[^/]"
        elif char == "[" and (bracket := _class(text, at - 1, git)) is not None:
            out += bracket[0]
            at = bracket[1]
        elif char == "\\" and at < len(text):
            out += re.escape(text[at])
            at += 1
        elif git and char in "[\\":
            raise _NoMatch
        else:
            out += re.escape(char)
    return out


def _joined(parts: list[str | None]) -> str:
    """Return a regular expression for a whole path of these parts; None stands for `**`."""
    groups: list[list[str]] = [[]]  # the parts between two `**`
    for one in parts:
        if one is None:
            groups.append([])
        else:
            groups[-1].append(one)
    if len(groups) == 1:
        return "/".join(groups[0])
    out = "".join(f"{one}/" for one in groups[0])
    for group in groups[1:-1]:  # matched at the first position only, as in `part`
        out += f"(?>(?:[^/]*/)*?{''.join(f'{one}/' for one in group)})" if group else ""
    return out + (f"(?:.*/)?{'/'.join(groups[-1])}" if groups[-1] else ".+")


# --- whole patterns ---


@lru_cache(maxsize=512)
def glob(pattern: str) -> re.Pattern[str]:
    """Compile a glob pattern for whole relative paths, with `*`, `?`, `[a-z]`, `{a,b}`, and `**`
    for any number of folders. Raises `RuntimeFault` for a pattern that is invalid, too long, or
    expands to too many."""
    choices: list[str] = []
    try:
        for one in braces(pattern):
            parts = [piece for piece in one.split("/") if piece not in ("", ".")]
            choices.append(_joined([None if piece == "**" else part(piece) for piece in parts]))
        return re.compile(f"(?:{'|'.join(choices)})\\Z", re.DOTALL)
    except (re.error, OverflowError, RecursionError, _NoMatch) as error:
        raise RuntimeFault(f"{pattern[:200]!r} is not a glob pattern: {error}.") from error


@lru_cache(maxsize=4096)
def ignored(pattern: str) -> re.Pattern[str] | None:
    """Compile a line of `.gitignore`, without its `!` and its last `/`, for paths relative to its
    folder. Return None if the line matches nothing. git compares bytes: the line and the paths must
    be bytes decoded as Latin-1."""
    if not pattern or len(pattern) > MAX_PATTERN:
        return None
    try:
        if "/" not in pattern:
            return re.compile(f"(?:.*/)?{part(pattern, git=True)}" + r"\Z", re.DOTALL)
        pieces = _split(pattern.removeprefix("/"))
        if "" in pieces:  # no path has two slashes
            return None
        any_depth = re.compile(r"\*\*+").fullmatch
        parts = [None if any_depth(piece) else part(piece, git=True) for piece in pieces]
        return re.compile(_joined(parts) + r"\Z", re.DOTALL)
    except (re.error, OverflowError, RecursionError, _NoMatch):
        return None


def _split(pattern: str) -> list[str]:
    """Return the parts between slashes. A slash in brackets is not a separator. A backslash before
    a slash has no effect."""
    parts = [""]
    at = 0
    while at < len(pattern):
        char = pattern[at]
        end = at + 1
        if char == "[" and (bracket := _class(pattern, at, git=True)) is not None:
            end = bracket[1]
        elif char == "\\":
            end = min(at + 2, len(pattern))
        if pattern[at:end] in ("/", "\\/"):
            parts.append("")
        else:
            parts[-1] += pattern[at:end]
        at = end
    return parts
