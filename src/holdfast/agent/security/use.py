"""`Use`: one program with its words, as the rules about programs are asked about it; and its options, as the table allows them."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.agent.security.network import fetch
from holdfast.agent.security.paths import HIGH, LOW, MEDIUM, UNKNOWN
from holdfast.agent.security.script import Reader, Scope, Stdin
from holdfast.agent.security.words import Names, Word, listed

_TOKEN = re.compile(r"(--?[^=?<>@%]+)([=?<>@%]*)")


PUBLISHES = listed(
    "publish deploy upload login logout release yank push owner adduser unpublish register gh-deploy site-deploy deploy-file"
)
_PACKAGE = re.compile(
    r"[A-Za-z0-9][\w.-]*(?:\[[\w,.-]+\])?(?:\s*(?:[=!~<>]=|===|[<>])\s*[\w.*+!-]+(?:\s*,\s*(?:[=!~<>]=|[<>])\s*[\w.*+!-]+)*)?"
)
_SQL = re.compile(
    r"\s*(?:select|explain|with|pragma\s+\w+)\b[^;]*;?\s*|\.(?:tables?|schema|indexes|databases|fullschema|dump)(?:\s+\w+)?", re.IGNORECASE
)
_SQL_DOES = re.compile(
    r"=|\b(?:fsdir|lsdir|zipfile|sqlar\w*|csv)\b|\b(?!(?:count|sum|min|max|avg|total|lower|upper|length|substr|coalesce|ifnull|group_concat|date|datetime|strftime|round|abs|typeof|distinct|in|values|over|exists|cast|as|and|or|not|select|from|where)\b)\w+\s*\(",
    re.IGNORECASE,
)
_NODE_PACKAGE = re.compile(r"(?:@[a-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*(?:@[\^~<>=]*[A-Za-z0-9][\w.+-]*)?")


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


class Use(NamedTuple):
    """A program's name, the words behind it, where it stands, and its input (None if nothing is redirected to it)."""

    reader: Reader
    name: str
    args: Sequence[Word]
    scope: Scope
    stdin: Stdin | None

    def low(self, what: str = "only reads") -> None:
        """The program does no harm."""
        self.reader.note(LOW, f"{self.name.replace('.', ' ')} {what}")

    def medium(self, what: str) -> None:
        """The program changes the working directory, runs what is there, or fetches."""
        self.reader.note(MEDIUM, f"{self.name.replace('.', ' ')} {what}")

    def unknown(self, what: str) -> None:
        """Nothing is proven about what the program does."""
        self.reader.note(UNKNOWN, f"{self.name.replace('.', ' ')} {what}")

    def high(self, what: str) -> None:
        """The program does what is plainly dangerous."""
        self.reader.note(HIGH, f"{self.name.replace('.', ' ')} {what}")

    def text(self, index: int) -> str:
        """The word of that place, "" if there is none or it is not known."""
        return self.args[index].text if 0 <= index < len(self.args) and self.args[index].known else ""

    def run(self, words: Sequence[Word], stdin: Stdin | None = None) -> None:
        """The program runs these words as another program."""
        if words:
            self.reader.run(words, self.scope.copy(), stdin)
        else:
            self.unknown("runs nothing that is named")

    def option(self, signs: str, value: str) -> None:
        """Note what an option does with its value."""
        for sign, kind in (("<", "r"), (">", "w"), ("@", "c"), ("%", "i")):
            if sign in signs and value:
                self.operand(kind, Word(value))

    def operand(self, kind: str, word: Word) -> None:
        """Note what the program does with an operand, by the letter that stands for it in a kind of the table."""
        match kind:
            case "r" if word.text[:1] in ("+", "@"):
                self.unknown(f"is given {word.text[:40]!r}, which may be a command or a file of options")
            case "r":
                self.reads([word])
            case "R":
                self.reads([word], Names())
            case "l":
                self.reader.path(word._replace(tree=None), self.scope, f"{self.name} looks at", self.reader.places.look)
            case "w":
                self.writes([word])
            case "c":
                self.runs_code(word)
            case "p" | "s" if word.text.startswith("-"):
                self.unknown("is given what may be an option")
            case "a" | "p" | "s":
                if kind != "s" or not re.fullmatch(r"[\w-]+(?:\.\w+)+/[\w./-]+(?:@[\w.-]+)?", word.text):
                    self.argument(word)
            case "u":
                self.reader.note(*fetch(word.text, self.reader.hosts))
            case "i" if re.match(r"\.|[^\[]*/", word.text) and "://" not in word.text:
                self.runs_code(Word(word.text.partition("[")[0]))
            case "i" | "y":
                if not (_PACKAGE if kind == "i" else _NODE_PACKAGE).fullmatch(word.text):
                    self.high("installs from elsewhere") if re.search(r"://|^[\w-]+:|^git@", word.text) else self.unknown(
                        "installs what is no name"
                    )
            case "Q" if not _SQL.fullmatch(word.text) or _SQL_DOES.search(word.text):
                self.unknown("is given what may change the database, or run or read something")
            case "h" if word.text not in ("hosts", "passwd", "group", "services", "protocols"):
                self.unknown("shows what is not in its table")
            case "e" if not re.fullmatch(r"[\w.+-]+", word.text):
                self.unknown("is given what may change something, or is read")
            case "d" if not word.text.startswith("+"):
                self.unknown("may set the clock")
            case "k":
                name, _, value = word.text.partition("=")
                if name in ("if", "of"):
                    self.operand("r" if name == "if" else "w", Word(value))
                elif name not in ("bs", "count", "skip", "seek", "ibs", "obs", "conv", "status", "iflag", "oflag"):
                    self.unknown(f"has a word {word.text[:40]} that is not in its table")
            case "z" if not re.fullmatch(r"%\d*|[1-9]\d+|[2-9]", word.text):
                self.high("ends processes that are not known beforehand, or all of them")
            case _:
                pass

    def reads(self, words: Sequence[Word], names: Names | None = None) -> None:
        """The program reads these files; with `names` also the files below them that have one of those names."""
        places = self.reader.places
        for word in words:
            below = word.tree or names
            plain = word._replace(tree=None)
            if below is None:
                self.reader.path(plain, self.scope, f"{self.name} reads", places.read)
            else:
                self.reader.path(
                    plain, self.scope, f"{self.name} reads", lambda path, cwd, keep=below.keep: places.read_all(path, cwd, keep)
                )

    def writes(self, words: Sequence[Word], what: str = "writes to") -> None:
        """The program makes, changes or deletes these paths."""
        places, what = self.reader.places, f"{self.name} {what}"
        for word in words:
            self.reader.path(word._replace(tree=None), self.scope, what, lambda path, cwd: places.write(path, cwd, what))
            if word.tree is not None:
                self.overwrites(word)

    def overwrites(self, folder: Word, unpacks: bool = False) -> None:
        """The program may write to any file of a folder, also where that is a link; with `unpacks` it makes files of any name, and links."""
        for cwd in self.scope.cwds:
            walk = self.reader.places.walk(self.reader.places.real(folder.text, cwd), (folder.tree or Names()).keep, foreign=unpacks)
            if (walk.folder_out if unpacks else walk.leads_out) or not walk.whole:
                self.unknown(f"writes to files of {folder.text[:80]}, which has links out, or is more than is looked at")
        self.reader.rearranged = self.reader.rearranged or unpacks

    def inside(self, word: Word) -> bool:
        """Whether a path is within the working directory, wherever the command may be."""
        return word.known and all(self.reader.places.is_inside(word.text, cwd) for cwd in self.scope.cwds or ("/",))

    def runs_code(self, word: Word) -> None:
        """The program runs the code of a file or folder."""
        if word.text in ("-", "/dev/stdin"):
            self.high("runs code that it is fed")
        if word.glob or word.tree is not None or not word.known or word.text[:1] in ("@", "-"):
            self.unknown("runs a file that is not known beforehand")
        for cwd in self.scope.cwds or ("/",):
            self.reader.note(*self.reader.places.use(word.text, cwd, self.name))
        self.medium(f"runs the code of {word.text[:80]}")

    def argument(self, word: Word) -> None:
        """The project's own code is given a word: a plain one, or a path of the project. Of an option the value counts."""
        path = (
            word.text.partition("=")[2]
            if word.text.startswith("-")
            else word.text.partition("::")[0].partition("=")[2] or word.text.partition("::")[0]
        )
        if PUBLISHES & {word.text, *re.split(r"[:/.]", word.text)} or re.match(r"publish|deploy|upload", word.text):
            self.high(f"sends something out: {word.text[:40]}")
        if (
            {"install", "exec"} & set(re.split(r"[:.]", word.text))
            or "://" in path
            or word.tree is not None
            or word.text[:1] == "@"
            or "@" in path
        ):
            self.unknown(f"is given what is not looked at: {word.text[:60]}")
        for cwd in self.scope.cwds or ("/",):
            self.reader.note(*self.reader.places.use(path, cwd, self.name))


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
