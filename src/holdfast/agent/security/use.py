"""`Use`: one program with its words, as the rules about programs are asked about it; and its
options, as the table allows them."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.agent.security import table
from holdfast.agent.security.network import fetch
from holdfast.agent.security.paths import HIGH, LOW, MEDIUM, UNKNOWN, Names, listed
from holdfast.agent.security.script import Reader, Scope, Stdin, Word

_TOKEN = re.compile(r"(--?[^=?<>@%+^]+)([=?<>@%+^]*)")
PUBLISHES = listed(
    "publish deploy upload login logout release yank push owner adduser unpublish register"
    " gh-deploy site-deploy deploy-file"
)
# Letters of a kind whose operands are looked at for what they are alone: the text that is allowed,
# and what another one may do.
_TEXTS = {
    letter: (re.compile(text, re.IGNORECASE), rank, what)
    for letter, text, rank, what in (
        ("e", r"[\w.+-]+", UNKNOWN, "is given what may change something, or is read"),
        ("d", r"\+.*", UNKNOWN, "may set the clock"),
        ("f", r"(?!.*env)[\w.\[\]| \"-]*", UNKNOWN, "has a program that may read more"),
        ("Q", table.SQL, UNKNOWN, "may change the database, or run or read something"),
        (
            "z",
            r"%\d*|[1-9]\d+|[2-9]",
            HIGH,
            "ends processes that are not known beforehand, or all of them",
        ),
        ("y", table.NODE_PACKAGE, UNKNOWN, "installs what is no name"),
        ("i", table.PACKAGE, UNKNOWN, "installs what is no name"),
    )
}
_PATHS = {
    "r": ("read", "reads"),
    "R": ("search", "reads"),
    "l": ("look", "looks at"),
    "w": ("write", "writes to"),
}


class Options(NamedTuple):
    """The options of a program with their values ("" for those without one), in their order, and
    its operands."""

    given: list[tuple[str, str]]
    operands: list[Word]

    def has(self, *names: str) -> bool:
        """Whether one of these options is there."""
        return any(name in names for name, _ in self.given)

    def values(self, *names: str) -> list[str]:
        """The values of these options."""
        return [value for name, value in self.given if name in names]


class Use(NamedTuple):
    """A program's name, the words behind it, where it stands, and its input (None if nothing is
    redirected to it)."""

    reader: Reader
    name: str
    args: Sequence[Word]
    scope: Scope
    stdin: Stdin | None

    def note(self, rank: int, what: str) -> None:
        """The program is at least so risky."""
        self.reader.note(rank, f"{self.name.replace('.', ' ')} {what}")

    def low(self, what: str = "only reads") -> None:
        """The program does no harm."""
        self.note(LOW, what)

    def medium(self, what: str) -> None:
        """The program changes the working directory, runs what is there, or fetches."""
        self.note(MEDIUM, what)

    def unknown(self, what: str) -> None:
        """Nothing is proven about what the program does."""
        self.note(UNKNOWN, what)

    def high(self, what: str) -> None:
        """The program does what is plainly dangerous."""
        self.note(HIGH, what)

    def text(self, index: int) -> str:
        """The word of that place, "" if there is none or it is not known."""
        return (
            self.args[index].text if 0 <= index < len(self.args) and self.args[index].known else ""
        )

    def run(self, words: Sequence[Word], stdin: Stdin | None = None) -> None:
        """The program runs these words as another program."""
        if words:
            self.reader.run(words, self.scope.copy(), stdin)
        else:
            self.unknown("runs nothing that is named")

    def paths(self, kind: str, words: Sequence[Word], what: str = "") -> None:
        """The program uses these paths, by the letter of a kind: `r`, `R`, `l` or `w`."""
        for word in words:
            act, shown = _PATHS[kind]
            self.reader.path(word, self.scope, act, f"{self.name} {what or shown}")
            if kind == "w" and word.tree is not None:
                self.overwrites(word)

    def operand(self, kind: str, word: Word) -> None:
        """Note what the program does with an operand, by the letter that stands for it in a kind
        of the table."""
        text, (form, rank, what) = word.text, _TEXTS.get(kind, (None, LOW, ""))
        if kind == "i" and re.match(r"\.|[^\[]*/", text) and "://" not in text:
            self.runs_code(Word(text.partition("[")[0]))
        elif form is not None and not form.fullmatch(text):
            (
                self.high("installs from elsewhere")
                if kind in "iy" and re.search(r"://|^[\w-]+:|^git@", text)
                else self.note(rank, what)
            )
        elif (
            (kind in "ps" and text.startswith("-"))
            or (kind == "r" and text[:1] in ("+", "@"))
            or kind in ("", "0")
        ):
            self.unknown(
                f"has a word {text[:40]!r} that is not in its table, or may be a command or an"
                " option"
            )
        elif kind in _PATHS:
            self.paths(kind, [word])
        elif kind == "c":
            self.runs_code(word)
        elif kind in "ap" or (
            kind == "s" and not re.fullmatch(r"[\w-]+(?:\.\w+)+/[\w./-]+(?:@[\w.-]+)?", text)
        ):
            self.argument(word, kind == "p")
        elif kind == "u":
            self.reader.note(*fetch(text, self.reader.hosts))

        elif kind == "k" and not re.match(r"(?:bs|count|skip|seek|conv|status)=", text):
            name, _, value = text.partition("=")
            self.paths("r" if name == "if" else "w", [Word(value)])
            if name not in ("if", "of"):
                self.unknown("has a word that is not in its table")

    def overwrites(self, folder: Word, unpacks: bool = False) -> None:
        """The program may write to any file of a folder, also where that is a link; with
        `unpacks` it makes files of any name, and links."""
        for cwd in self.scope.cwds:
            walk = self.reader.places.walk(
                self.reader.places.real(folder.text, cwd), folder.tree or Names(), foreign=unpacks
            )
            if (walk.folder_out if unpacks else walk.leads_out) or not walk.whole:
                self.unknown(
                    f"writes to files of {folder.text[:80]}, which has links out, or is more than"
                    " is looked at"
                )
        self.reader.rearranged = self.reader.rearranged or unpacks

    def inside(self, word: Word) -> bool:
        """Whether a path is within the working directory, wherever the command may be."""
        return word.known and all(
            self.reader.places.is_inside(word.text, cwd) for cwd in self.scope.cwds or ("/",)
        )

    def runs_code(self, word: Word) -> None:
        """The program runs the code of a file or folder."""
        if word.text in ("-", "/dev/stdin"):
            self.high("runs code that it is fed")
        if word.glob or word.tree is not None or not word.known or word.text[:1] in ("@", "-"):
            self.unknown("runs a file that is not known beforehand")
        self.reader.path(word, self.scope, "use", f"{self.name} runs")
        self.medium(f"runs the code of {word.text[:80]}")

    def argument(self, word: Word, strict: bool = False) -> None:
        """The project's own code is given a word: a plain one, or a path of the project. Of an
        option the value counts."""
        text = word.text if word.text.startswith("-") else word.text.partition("::")[0]
        path = text.partition("=")[2] or ("" if text.startswith("-") else text)
        if PUBLISHES & {word.text, *re.split(r"[:/.]", word.text)} or re.match(
            r"publish|deploy|upload", word.text
        ):
            self.high(f"sends something out: {word.text[:40]}")
        if not word.known or (strict and not re.fullmatch(r"[\w@%+=:,./*?\[\]{}^~#-]*", text)):
            self.unknown(f"is given what may be code: {text[:60]}")
        if (
            {"install", "exec"} & set(re.split(r"[:.]", text))
            or re.search(r"://|@", path)
            or word.tree is not None
        ):
            self.unknown(f"is given what is not looked at: {word.text[:60]}")
        self.reader.path(
            Word(path, word.known, word.glob), self.scope, "use", f"{self.name} is given"
        )


@functools.lru_cache(maxsize=1024)
def _entry(text: str) -> tuple[dict[str, str], bool]:
    """The options of an entry with their signs, and whether digits are an option."""
    found = {"--help": "", "--version": ""}
    tokens = text.split()
    for token in [
        one for name in tokens if name[0] == "&" for one in table.GROUPS[name[1:]].split()
    ] + tokens:
        match = _TOKEN.fullmatch(token)
        if match is not None and match[1].startswith("--"):
            found[match[1]] = match[2]
        elif match is not None:
            found.update({f"-{letter}": match[2] for letter in match[1][1:]})
    return found, "#" in tokens or "&log" in tokens


def take(
    use: Use, entry: str, words: Sequence[Word], stop: bool = False, single_dash: bool = False
) -> Options:
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
            operands += reversed([*todo, word] if operands and stop else todo)
            break
        if text[:1] != "-" or text == "-" or word.tree is not None:
            operands.append(word)
        elif digits and text[1:].isdecimal() and word.known:
            continue
        elif text.startswith("--") or single_dash:
            name, equals, value = text.partition("=")
            signs = allowed.get(name if name.startswith("--") else f"-{name}")
            if (
                signs is None
                or (equals and not signs)
                or not word.known
                or (word.glob and (signs not in ("=", "?") or not equals))
            ):
                use.unknown(f"has an option {name[:40]} that is not in its table")
                continue
            value = value if equals or not _valued(signs) else _value(use, todo)
            _note(use, signs, value)
            given.append((name, value))
        else:
            for place, letter in enumerate(text[1:], 2):
                signs = allowed.get(f"-{letter}")
                if signs is None or word.glob or not word.known:
                    use.unknown(f"has an option -{letter} that is not in its table")
                    break
                glued = "?" in signs or _valued(signs)
                value = text[place:] if glued else ""
                value = value or (_value(use, todo) if _valued(signs) else "")
                _note(use, signs, value)
                given.append((f"-{letter}", value))
                if glued:
                    break
    return Options(given, operands)


def _valued(signs: str) -> bool:
    """Whether an option takes the next word as its value if none is glued on."""
    return "?" not in signs and bool(set(signs) & set("=<>@%"))


def _value(use: Use, todo: list[Word]) -> str:
    word = todo.pop() if todo else Word("", False)
    if not word.known or word.glob or word.tree is not None:
        use.unknown("has an option whose value is not known beforehand")
    return word.text


def _note(use: Use, signs: str, value: str) -> None:
    """Note what an option does, also with its value."""
    if "^" in signs or "+" in signs:
        (
            use.high("throws work away, or changes what is elsewhere")
            if "^" in signs
            else use.medium("changes something")
        )
    for sign, kind in (("<", "r"), (">", "w"), ("@", "c"), ("%", "i")):
        if sign in signs and value:
            use.operand(kind, Word(value))
