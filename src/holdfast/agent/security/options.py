"""The words behind a program's name: which are options, which are their values, and which are operands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from holdfast.agent.security.words import Word


class Options(NamedTuple):
    """What stood behind a program's name: the options by name (`-x`, `--long`) with their values, in order; the operands; whether a word that is not
    known could be an option."""

    given: list[tuple[str, Word | None]]
    operands: list[Word]
    unsure: bool

    def has(self, *names: str) -> bool:
        """Whether one of these is there; a long one also where it is cut short, as GNU's programs take it."""
        for option, _ in self.given:
            if option in names:
                return True
            if len(option) > 2 and option.startswith("--") and any(name.startswith(option) for name in names):
                return True
        return False

    def values(self, *names: str) -> list[Word]:
        """The values of these."""
        return [value for option, value in self.given for name in names if value is not None and _is(option, name)]


def _is(option: str, name: str) -> bool:
    return option == name or (len(option) > 2 and option.startswith("--") and name.startswith(option))


def options(words: Sequence[Word], valued: str = "", long: Iterable[str] = (), single_dash: bool = False, stop: bool = False) -> Options:
    """Take words apart as getopt does. `valued` are the letters with a value, `long` the long options whose value is the next word;
    `single_dash`: `-name` is one option; `stop`: the first operand ends the options."""
    given: list[tuple[str, Word | None]] = []
    operands: list[Word] = []
    unsure = False
    long = tuple(long)
    index, count = 0, len(words)
    while index < count:
        word = words[index]
        text = word.text
        index += 1
        if not word.known and (not text or text.startswith("-")):
            unsure = True
            operands.append(word)
            continue
        if word.glob and text[:1] in "*?[":
            unsure = True  # a file may be called -rf
        if text == "--":
            operands += words[index:]
            break
        if text.startswith("--") or (single_dash and text.startswith("-") and len(text) > 1):
            name, equals, value = text.partition("=")
            if equals:
                given.append((name, Word(value, word.known, word.glob)))
            elif any(_is(name, one) for one in long) and index < count:
                given.append((name, words[index]))
                index += 1
            else:
                given.append((name, None))
            continue
        if text.startswith("-") and len(text) > 1:
            for place, letter in enumerate(text[1:], 2):
                if letter in valued:
                    if place < len(text):
                        given.append((f"-{letter}", Word(text[place:], word.known, word.glob)))
                    elif index < count:
                        given.append((f"-{letter}", words[index]))
                        index += 1
                    else:
                        given.append((f"-{letter}", None))
                    break
                given.append((f"-{letter}", None))
            continue
        operands.append(word)
        if stop:
            operands += words[index:]
            break
    return Options(given, operands, unsure)
