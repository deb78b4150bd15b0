"""Options as a program's entry in the table allows them: one that the entry does not have makes the risk unknown."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from holdfast.agent.security.words import Word

if TYPE_CHECKING:
    from holdfast.agent.security.use import Use

_TOKEN = re.compile(r"(--?[^=?<>@%]+)([=?<>@%]*)")


class Options(NamedTuple):
    """The options of a program with their values ("" for those without one), in their order, and its operands."""

    given: list[tuple[str, str]]
    operands: list[Word]

    def has(self, *names: str) -> bool:
        """Whether one of these options is there."""
        return any(name in names for name, _ in self.given)

    def values(self, *names: str) -> list[str]:
        """The values of these options."""
        return [value for name, value in self.given if name in names]


@functools.lru_cache(maxsize=1024)
def _entry(text: str) -> tuple[dict[str, str], bool]:
    """The options of an entry with their signs, and whether digits are an option."""
    found = {"--help": "", "--version": ""}
    for token in text.split():
        match = _TOKEN.fullmatch(token)
        if match is not None and match[1].startswith("--"):
            found[match[1]] = match[2]
        elif match is not None:
            found.update({f"-{letter}": match[2] for letter in match[1][1:]})
    return found, "#" in text.split()


def take(use: Use, entry: str, words: Sequence[Word], stop: bool = False, single_dash: bool = False) -> Options:
    """Take words apart as getopt does, and note what the options do.

    Args:
        use: The program.
        entry: The options that it may have, as the table writes them.
        words: The words behind its name.
        stop: The first operand ends the options.
        single_dash: Long options begin with one dash (`-name`), and letters do not stand together.
    """
    allowed, digits = _entry(entry)
    given, operands = list[tuple[str, str]](), list[Word]()
    todo = list(reversed(words))
    while todo:
        word = todo.pop()
        text = word.text
        if text == "--" or (stop and operands):
            operands += reversed(todo if text == "--" else [*todo, word])
            break
        if text[:1] != "-" or text == "-" or word.tree is not None:
            operands.append(word)
        elif digits and text[1:].isdecimal() and word.known:
            continue
        elif text.startswith("--") or single_dash:
            name, equals, value = text.partition("=")
            signs = allowed.get(name if name.startswith("--") else f"-{name}")
            if signs is None or (equals and not signs) or not word.known or (word.glob and (signs != "=" or not equals)):
                use.unknown(f"has an option {name[:40]} that is not in its table")
                continue
            value = value if equals or not signs or "?" in signs else _value(use, todo)
            use.option(signs, value)
            given.append((name, value))
        else:
            for place, letter in enumerate(text[1:], 2):
                signs = allowed.get(f"-{letter}")
                if signs is None or word.glob or not word.known:
                    use.unknown(f"has an option -{letter} that is not in its table")
                    break
                value = text[place:] if signs else ""
                value = value or ("" if not signs or "?" in signs else _value(use, todo))
                use.option(signs, value)
                given.append((f"-{letter}", value))
                if signs:
                    break
    return Options(given, operands)


def _value(use: Use, todo: list[Word]) -> str:
    word = todo.pop() if todo else Word("", False)
    if not word.known or word.glob or word.tree is not None:
        use.unknown("has an option whose value is not known beforehand")
    return word.text
