"""Options as a program's entry declares them: what is not declared is unknown, and what names a file is looked at as a file.

An entry is a text of options. `-ab` are letters without a value, `--long` is a name, `#` allows `-20`. What stands behind them says what they do:

    =  have a value           ?  have one only where it is glued on (`-i.bak`, `--color=auto`)
    <  read the value         >  write to it
    @  read it, and what it names      !  may run something (unknown)      ^  is as risky as it gets
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.agent.security.options import Options
from holdfast.agent.security.use import Use
from holdfast.agent.security.words import Word

_TOKEN = re.compile(r"(--?[^=?<>@!^]+)([=?<>@!^]*)")
_VALUED = frozenset("=<>@!^")


class Entry(NamedTuple):
    """An entry, taken apart: what the letters and the long names do; whether digits are an option; whether any of them does more than read."""

    letters: dict[str, str]
    long: dict[str, str]
    digits: bool
    dangerous: bool


@functools.lru_cache(maxsize=512)
def entry(text: str) -> Entry:
    """Take an entry apart."""
    letters: dict[str, str] = {}
    long: dict[str, str] = {"--help": "", "--version": ""}
    digits = False
    for token in text.split():
        if token == "#":
            digits = True
            continue
        match = _TOKEN.fullmatch(token)
        if match is None:
            raise ValueError(f"{token!r} is no option")
        name, does = match[1], match[2]
        if name.startswith("--"):
            long[name] = does
        else:
            letters.update(dict.fromkeys(name[1:], does))
    found = "".join([*letters.values(), *long.values()])
    return Entry(letters, long, digits, any(one in found for one in ">@!^"))


def declared(use: Use, text: str, stop: bool = False, args: Sequence[Word] | None = None) -> Options:
    """Take a program's words apart by its entry, as GNU's getopt does: long names may be cut short, letters stand together. Notes what the options do;
    `stop`: the first operand ends them. Names in `given` are whole."""
    letters, long, digits, dangerous = entry(text)
    given: list[tuple[str, Word | None]] = []
    operands: list[Word] = []
    unsure = False
    words = use.args if args is None else args
    index, count = 0, len(words)
    while index < count:
        word = words[index]
        text = word.text
        index += 1
        if text[:1] != "-" or text == "-":
            if (not word.known and not text) or (word.glob and text[:1] in "*?["):
                unsure = True  # a file may be called -rf
            operands.append(word)
            if stop:
                operands += words[index:]
                break
            continue
        if not word.known and text in ("-", "--"):
            unsure = True
            operands.append(word)
            continue
        if text == "--":
            operands += words[index:]
            break
        if text.startswith("--"):
            name, equals, value = text.partition("=")
            names = [name] if name in long else [one for one in long if one.startswith(name)]
            if not names or (not word.known and not equals):
                use.unknown(f"has an option {name[:40]} that is not known here")
                given.append((name, Word(value, word.known, word.glob) if equals else None))
                continue
            does = "".join([long[one] for one in names])
            found = Word(value, word.known, word.glob) if equals else None
            if found is None and "?" not in does and not _VALUED.isdisjoint(does) and index < count:
                found = words[index]
                index += 1
            _does(use, names[0], does, found)
            if found is not None and "!" in does:
                operands.append(found)
            given += [(one, found) for one in names]
            continue
        if digits and text[1:].isdecimal() and word.known:
            continue
        for place, letter in enumerate(text[1:], 2):
            does = letters.get(letter)
            if does is None:
                use.unknown(f"has an option -{letter} that is not known here")
                given.append((f"-{letter}", None))
                continue
            found = None
            if does:
                glued = place < len(text)
                if glued or not word.known:
                    found = Word(text[place:], word.known, word.glob)
                elif "?" not in does and index < count:
                    found = words[index]
                    index += 1
                _does(use, f"-{letter}", does, found)
                given.append((f"-{letter}", found))
                break
            given.append((f"-{letter}", None))
        else:
            if not word.known:
                use.unknown("has options that are not known beforehand")
    if unsure and dangerous:
        use.unknown("is given what is not known beforehand, which may be an option")
    return Options(given, operands, unsure)


def _does(use: Use, name: str, does: str, value: Word | None) -> None:
    """Note what an option does."""
    if "^" in does:
        use.high(f"{name} runs another program, changes rights or deletes")
    if "!" in does:
        use.unknown(f"{name} may run another program, or do what is not known beforehand")
    if value is not None and does:
        if ">" in does:
            use.writes([value])
        if "<" in does or "@" in does:
            use.reads([value])
    if "@" in does:
        use.unknown(f"{name} goes by what a file names")
    if ">" in does and value is None:
        use.medium(f"{name} writes a file")
