"""Replacement of an exact piece of a text, with explanations for a model if it is missing or
ambiguous."""

from __future__ import annotations

import difflib
import re
from bisect import bisect_left
from collections import Counter
from typing import NamedTuple

from holdfast.errors import RuntimeFault

_WORD = re.compile(r"\w+")


class Edited(NamedTuple):
    """A text after an edit. `line` is the first changed line (from 1), `lines` the number of lines
    of the new text, `places` the number of replacements."""

    text: str
    line: int
    lines: int
    places: int


def replace(text: str, old: str, new: str, replace_all: bool, label: str) -> Edited:
    """Return `text` with `old` replaced by `new`, once, or everywhere if `replace_all`. All line
    ends match each other. The inserted text gets the line ends of its place; the rest stays
    unchanged. Raises `RuntimeFault`, whose message says what to do instead."""
    if not old:
        raise RuntimeFault(
            "old is empty. Give the exact text to replace; to make or overwrite a whole file use"
            " write_file."
        )
    if old == new:
        raise RuntimeFault(
            "old and new are the same, so nothing would change. Give the text as it should be in"
            " new."
        )
    old, new = old.replace("\r\n", "\n"), new.replace("\r\n", "\n")
    if old == new:
        raise RuntimeFault(
            "old and new differ in line ends only, which an edit keeps as they are in the file. Use"
            " a command to convert them."
        )
    plain = text.replace("\r\n", "\n")
    starts = _find_all(plain, old)
    if not starts:
        raise RuntimeFault(f"old was not found in {label}. {_explain(plain, old)}")
    if len(starts) > 1 and not replace_all:
        lines = [plain.count("\n", 0, start) + 1 for start in starts[:20]]
        more = f" and {len(starts) - 20} more" if len(starts) > 20 else ""
        raise RuntimeFault(
            f"old is {len(starts)} times in {label}, at lines {', '.join(map(str, lines))}{more}."
            " Give more of the lines around the one that you mean, so that it is unique, or set"
            " replace_all=true to change all."
        )
    # Positions in the original file: each \r\n before a place shifts it by one. At the end of a
    # match, a \r belongs to the text after it.
    returns = [at - n for n, at in enumerate(m.start() for m in re.finditer("\r\n", text))]
    most = "\r\n" if len(returns) * 2 > plain.count("\n") else "\n"
    pieces: list[str] = []
    position = 0
    for start in starts:
        first = start + bisect_left(returns, start)
        last = start + len(old) + bisect_left(returns, start + len(old))
        region = text[first:last]
        ends = region if "\n" in region else most
        pieces += [text[position:first], new.replace("\n", "\r\n") if "\r\n" in ends else new]
        position = last
    result = "".join(pieces) + text[position:]
    return Edited(result, plain.count("\n", 0, starts[0]) + 1, new.count("\n") + 1, len(starts))


def _find_all(text: str, old: str) -> list[int]:
    starts: list[int] = []
    at = text.find(old)
    while at >= 0:
        starts.append(at)
        at = text.find(old, at + len(old))
    return starts


def _explain(text: str, old: str) -> str:
    lines, old_lines = text.split("\n"), old.split("\n")
    while old_lines and not old_lines[0].strip():
        old_lines.pop(0)
    while old_lines and not old_lines[-1].strip():
        old_lines.pop()
    stripped = [line.strip() for line in old_lines]
    if not stripped:
        return "It is only white space. Give some of the text around it."
    at = same_but_white_space(lines, stripped)
    if at is not None:
        region = lines[at : at + len(stripped)]
        tabs = any("\t" in line for line in region) != any("\t" in line for line in old_lines)
        what = "tabs against spaces" if tabs else "indentation or white space at line ends"
        return (
            f"Lines {_span(at, len(region))} differ from it only in white space ({what}). They"
            f" are:\n{numbered(region, at)}"
        )
    at = nearest(lines, stripped)
    if at is None:
        return "Nothing in the file is similar. Read the file first, and copy the text exactly."
    region = lines[at : at + len(stripped)]
    return (
        f"The nearest is at lines {_span(at, len(region))}:\n{numbered(region, at)}\nCopy the text"
        " exactly as it is in the file."
    )


def _span(at: int, count: int) -> str:
    return f"{at + 1}-{at + count}" if count > 1 else str(at + 1)


def same_but_white_space(lines: list[str], needle: list[str]) -> int | None:
    """Return the start of the region that differs from `needle` only in white space, or None."""
    bare = ["".join(line.split()) for line in needle]
    anchor = max(range(len(bare)), key=lambda n: len(bare[n]))
    for at, line in enumerate(lines):
        start = at - anchor
        inside = 0 <= start <= len(lines) - len(bare) and "".join(line.split()) == bare[anchor]
        if inside and all("".join(lines[start + n].split()) == bare[n] for n in range(len(bare))):
            return start
    return None


def nearest(lines: list[str], needle: list[str]) -> int | None:
    """Return the start of the most similar region; None if nothing is similar. The cost grows with
    the file's size only for counting. A bounded number of regions is compared."""
    places: dict[str, list[int]] = {line: [] for line in needle[:200] if len(line) > 3}
    for at, line in enumerate(lines):
        positions = places.get(line.strip())
        if positions is not None and len(positions) < 50:
            positions.append(at)
    votes = Counter(at - n for n, line in enumerate(needle[:200]) for at in places.get(line, ()))
    candidates = [start for start, _ in votes.most_common(8)]
    if not candidates:
        # None of the lines occurs exactly: take the lines that share most words with the longest
        # one.
        anchor = max(range(len(needle)), key=lambda n: len(needle[n]))
        words = set(_WORD.findall(needle[anchor][:400]))
        if not words:
            return None
        shared: Counter[int] = Counter()
        for at, line in enumerate(lines):
            if count := len(words.intersection(_WORD.findall(line[:400]))):
                shared[at] = count
        candidates = [at - anchor for at, _ in shared.most_common(30)]
    best, best_score = None, 0.5
    for start in candidates:
        start = max(0, min(start, len(lines) - 1))
        score = _likeness([line.strip() for line in lines[start : start + len(needle)]], needle)
        if score > best_score:
            best, best_score = start, score
    return best


def _likeness(region: list[str], needle: list[str]) -> float:
    """Return the similarity of two pieces of text, line by line, from 0 to 1. At most 40 lines and
    400 characters of each line count."""
    total = 0.0
    lines = needle[:40]
    for n, line in enumerate(lines):
        other = region[n] if n < len(region) else ""
        if line == other:
            total += 1
        elif line and other:
            matcher = difflib.SequenceMatcher(None, other[:400], line[:400], autojunk=False)
            # With several lines, comparing character counts is enough; a full comparison takes
            # quadratic time.
            total += matcher.ratio() if len(lines) == 1 else matcher.quick_ratio()
    return total / len(lines)


def numbered(lines: list[str], at: int, most: int = 20) -> str:
    """Return at most `most` lines with their numbers, which start at `at + 1`."""
    rows = [f"{at + n + 1:>6}\t{line[:500]}" for n, line in enumerate(lines[:most])]
    if len(lines) > most:
        rows.append(f"       ... {len(lines) - most} more")
    return "\n".join(rows)


def snippet(edited: Edited, around: int = 4) -> str:
    """Return the numbered lines around the first change."""
    lines = edited.text.replace("\r\n", "\n").split("\n")
    first = max(0, edited.line - 1 - around)
    return numbered(lines[first : edited.line - 1 + edited.lines + around], first, 40)


def _same_at_start(one: list[str], other: list[str]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (line, with_) in pairs if line != with_), min(len(one), len(other)))


def unified_diff(before: str, after: str, name: str, most: int = 100_000) -> str:
    """Return a unified diff of at most about `most` characters. Only the text between the first and
    the last change is compared."""
    # `str.splitlines` would also split at form feeds and other characters that are not line ends.
    old, new = (re.findall(r"[^\n]*\n|[^\n]+", text) for text in (before, after))
    head = _same_at_start(old, new)
    tail = _same_at_start(old[head:][::-1], new[head:][::-1])
    first, keep = max(0, head - 3), max(0, tail - 3)
    old, new = old[first : len(old) - keep], new[first : len(new) - keep]
    if len(old) + len(new) > 20_000:  # difflib would take seconds
        return (
            f"--- {name}\n+++ {name}\n(lines {first + 1} to {first + len(new)} changed; too many to"
            " show)\n"
        )
    parts: list[str] = []
    size = 0
    for line in difflib.unified_diff(old, new, name, name):
        if line.startswith("@@"):
            line = re.sub(r"([-+])(\d+)", lambda m: f"{m[1]}{int(m[2]) + first}", line, count=2)
        if not line.endswith("\n"):
            line += "\n\\ No newline at end of file\n"
        size += len(line)
        if size > most:
            parts.append("(the rest of the diff is left out)\n")
            break
        parts.append(line)
    return "".join(parts)
