"""One program with its words, as the rules about programs are asked about it, and its row of the
table."""

from __future__ import annotations

import functools
import itertools
import os
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from holdfast.agent.security import table
from holdfast.agent.security.grammar import ShellWord
from holdfast.agent.security.paths import (
    ALL_FILES,
    HIGH,
    MEDIUM,
    UNKNOWN,
    FileNames,
    RiskFinding,
    word_set,
)
from holdfast.agent.security.script import SHOWN, ScriptReader

Words = Sequence[ShellWord]

_OPTION = re.compile(r"(--?|:|)([^=?+^*$]+)([=?]?)([A-Za-z]?)([+^*$]?)")
_PUBLISHES = word_set(
    "publish deploy upload login logout release yank push owner adduser unpublish register"
    " gh-deploy site-deploy deploy-file"
)
# Patterns are compiled when they are used: most programs need none.
_TEXTS = {
    one[0]: (one[2], RiskFinding(HIGH if one[1] == "!" else UNKNOWN, one[3]))
    for one in re.findall(r"(.)([!?]) (.*)  # (.*)", table.TEXTS.replace("\n ", ""))
}
# Files that no program of a project runs, by their whole path; pytest runs `test*.txt`.
_DATA = re.compile(
    r".*/(?!test.*t\Z|CMakeLists)[^/]*\.(?:txt|log|md|rst|csv|tsv|out|err|html|svg|sql)"
)
_TAKES_CODE = re.compile(r"-[cer]|--(?:command|eval|exec|execute|code)\b|(?:shell|runner|eval)$")
_ACTS = {"R": "read", "r": "read", "l": "look", "w": "write", "D": "delete"}


class ProgramRow(NamedTuple):
    """A row of the table: letters, signs, and the options, or the reason why it is high."""

    kind: str = ""
    signs: str = ""
    options: str = ""


@functools.cache
def rows() -> Mapping[str, ProgramRow]:
    """Return the table by the names of programs, and of their commands: `git.log`."""
    found: dict[str, ProgramRow] = {}
    text = re.sub(r"(,?)\n +", lambda match: match[1] or " ", table.PROGRAMS)
    for line in filter(None, re.split(r"\n| \| ", text)):
        names, kind, *rest = line.split(" ", 2)
        # `npm,yarn.run`: a command of both
        parts = itertools.product(*[part.split(",") for part in names.split(".")])
        letters = kind.rstrip("+@!~^%")
        row = ProgramRow(letters, kind[len(letters) :], rest[0] if rest else "")
        found.update(dict.fromkeys(map(".".join, parts), row))
    return found


@functools.cache
def commanded() -> frozenset[str]:
    """Return the programs with commands, such as git."""
    return frozenset([name.partition(".")[0] for name in rows() if "." in name]) - {"python"}


def row(name: str) -> ProgramRow:
    """Return the row of a program; an empty one if it has none."""
    return rows().get(name) or ProgramRow()


class ProgramOptions(NamedTuple):
    """The options of a program with their values (or ""), its operands, and its options' flags."""

    given: list[tuple[str, str]]
    operands: list[ShellWord]
    flags: set[str]

    def has(self, *names: str) -> bool:
        """Return whether one of these options is there."""
        return any(name in names for name, _ in self.given)

    def values(self, *names: str) -> list[str]:
        """Return the values of these options."""
        return [value for name, value in self.given if name in names]


class ProgramUse(NamedTuple):
    """A program's name, words, folder ("": not known), and input: "", "pipe" or "document"."""

    reader: ScriptReader
    name: str
    args: Words
    cwd: str
    stdin: str

    def note(self, rank: int, what: str) -> None:
        """Note that the program is at least so risky."""
        self.reader.note(rank, f"{self.name.replace('.', ' ')} {what}")

    def at(self, path: str) -> str:
        """Return a path from the folder that the program runs in."""
        return os.path.join(self.cwd or "/", path)

    def run(self, words: Words) -> None:
        """Judge these words as a program that this one runs."""
        if not words or words[0].glob:
            self.note(UNKNOWN, "runs nothing that is named")
        else:
            self.reader.judge(self.reader, words, self.cwd, self.stdin)

    def paths(self, kind: str, words: Words, what: str = "", names: FileNames = ALL_FILES) -> None:
        """Judge the use of these paths by a letter; `R` reads files with these names."""
        for word in words:
            reads, act = names if kind == "R" else None, f"{self.name} {what or SHOWN[_ACTS[kind]]}"
            self.reader.use_path(word, self.cwd, _ACTS[kind], act, reads)
            if kind == "w" and self.name in table.WRITERS:
                self.reader.writing.append(self.reader.paths.real(word.text, self.cwd))

    def runs_written(self, path: str = "") -> None:
        """Note code that the command itself has written, since nobody has seen it: this file, or
        any other that may be code."""
        written, real = self.reader.written, self.reader.paths.real(path, self.cwd) if path else ""
        if any(one == real or not _DATA.fullmatch(one) for one in written):
            self.note(UNKNOWN, "runs what this command has written")

    def operand(self, kind: str, word: ShellWord) -> None:
        """Judge a word by the letter that stands for it in the table."""
        text = word.text
        if kind in "iy" and re.search(r"://|^[\w-]+:|^git@", text):
            self.note(HIGH, "installs from elsewhere")
        elif kind == "i" and re.match(r"\.|[^\[]*/", text):
            self.runs_code(ShellWord(text.partition("[")[0]))
        elif kind in _TEXTS and (kind != "m" or "=" in text):
            allowed, other = _TEXTS[kind]
            if not re.fullmatch(allowed, text, re.IGNORECASE):
                self.note(*other)
        elif kind in "0" or text.startswith(tuple({"p": "-", "m": "-", "r": "+@"}.get(kind, ""))):
            self.note(UNKNOWN, f"has a word {text[:40]!r} that is not in its table")
        elif kind in "rRlwD":
            self.paths(kind, [word])
        elif kind == "c":
            self.runs_code(word)
        elif kind == "s" and (file := re.match(r"[\w.-]*=?[@<]([^;]*)", text)):
            self.paths("r", [ShellWord(file[1])])
        elif kind == "g" and self.cwd and text[:1] != "-":  # `HEAD:x`, `:(top)x`, `1,9:x`
            path, paths = re.split(r"[:)]", text)[-1] or text, self.reader.paths
            self.reader.note(*paths.judge("read", path, self.cwd, f"{self.name} reads"))
            if word.glob or "*" in path:  # git's own pattern, of any depth
                self.reader.note(*paths.judge_glob("read", path, self.cwd, f"{self.name} reads"))
        elif kind == "O" and (word.glob or os.path.isdir(self.at(text))):
            self.note(HIGH, "throws changes away")
        elif kind in "apm":
            self.argument(word, kind != "a")

    def runs_code(self, word: ShellWord) -> None:
        """Judge running the code of a file or folder."""
        if word.text in ("-", "/dev/stdin") or "://" in word.text:
            self.note(HIGH, "runs code that it is fed, or that is elsewhere")
        if word.glob or word.text[:1] in ("@", "-"):
            self.note(UNKNOWN, "runs a file that is not known beforehand")
        self.reader.use_path(word, self.cwd, "use", f"{self.name} runs")
        self.runs_written(word.text)
        self.note(MEDIUM, f"runs the code of {word.text[:80]}")

    def argument(self, word: ShellWord, strict: bool = False) -> None:
        """Judge a word, or an option's value, for the project's own code: a plain one or a path."""
        is_option = word.text.startswith("-")
        text = word.text if is_option else word.text.partition("::")[0]
        path = text.partition("=")[2] or ("" if is_option else text)
        parts = {word.text, *re.split(r"[:/.]", word.text)}
        if _PUBLISHES & parts or re.match(r"publish|deploy|upload", word.text):
            self.note(HIGH, f"sends something out: {word.text[:40]}")
        if strict and not re.fullmatch(r"[\w@%+=:,./*?\[\]{}^~#-]*", text):
            self.note(UNKNOWN, f"is given what may be code: {text[:60]}")
        if {"install", "exec"} & set(re.split(r"[:.]", text)) or re.search(r"://|@", path):
            self.note(UNKNOWN, f"is given what is not looked at: {word.text[:60]}")
        if self.name in ("mvn", "mvnw") and text.count(":") > 1:
            self.note(HIGH, f"fetches a program and runs it: {text[:60]}")
        if strict and path in self.reader.written:
            self.runs_written(path)
        self.reader.use_path(ShellWord(path, word.glob), self.cwd, "use", f"{self.name} is given")

    def arguments(self, words: Words) -> None:
        """Judge the words of a program of the project. What stands behind an option or a command
        that takes code must be a plain word."""
        for before, word in zip(("", *[one.text for one in words]), words, strict=False):
            self.argument(word, _TAKES_CODE.match(before or word.text) is not None)


@functools.lru_cache(maxsize=1024)
def _option_specs(text: str) -> Mapping[str, tuple[str, str, str]]:
    """Return the options of a row: how each takes a value, the value's kind, and a flag."""
    # A letter that may stand with others in one word has no dash, and is there a second time.
    found: dict[str, tuple[str, str, str]] = dict.fromkeys(("--help", "--version"), ("", "", ""))
    for token in text.split():
        if token[0] == "&":
            found |= _option_specs(table.GROUPS[token[1:]])
        elif token == "#":
            found["#"] = ("", "", "")
        elif match := _OPTION.fullmatch(token):
            dash, names, *spec = match.groups()
            keys = [f"-{one}" for one in names] + list(names) if dash == "-" else [f"--{names}"]
            keys = [f"-{names}"] if dash == ":" else keys
            found |= dict.fromkeys(keys, (spec[0], spec[1], spec[2]))
    return found


def parse_options(
    use: ProgramUse, options: str, words: Words, stop: bool = False
) -> ProgramOptions:
    """Take words apart as getopt does by the `options` of a row, and note what those do; with
    `stop` the first operand ends them."""
    allowed, found = _option_specs(options), ProgramOptions([], [], set())
    rest = list(reversed(words))
    while rest:
        word = rest.pop()
        text = word.text
        if text == "--" or (stop and found.operands):
            rest += [word] if stop and found.operands else []
            found.operands.extend(reversed(rest))
            break
        if text[:1] != "-" or text == "-":
            found.operands.append(word)
            continue
        name, equals, value = text.partition("=")
        if name not in allowed and not text.startswith("--"):
            if "#" in allowed and text[1:].isdecimal():
                continue
            # Letters: the first that takes a value takes what is left of the word.
            place = 1
            while (spec := allowed.get(text[place])) and not spec[0] and text[place + 1 :]:
                _add_option(use, found, f"-{text[place]}", spec, "")
                place += 1
            name, value = f"-{text[place]}", text[place + 1 :]
            name, equals = name if text[place] in allowed else text, value
        spec = allowed.get(name)
        is_text = spec is not None and spec[0] and not spec[1] and text.startswith("--")
        if spec is None or (equals and not spec[0]) or (word.glob and not (is_text and equals)):
            use.note(UNKNOWN, f"has an option {name[:40]} that is not in its table")
            continue
        if spec[0] == "=" and not equals:
            following = rest.pop() if rest else ShellWord("", True)
            if following.glob:
                use.note(UNKNOWN, "has an option whose value is not known beforehand")
            value = following.text
        _add_option(use, found, name, spec, value)
    return found


def _add_option(
    use: ProgramUse, found: ProgramOptions, name: str, spec: tuple[str, str, str], value: str
) -> None:
    """Add an option, and note what it does, also with its value."""
    if spec[2] in ("^", "+"):
        use.note(HIGH if spec[2] == "^" else MEDIUM, f"has {name}, which changes something")
    found.flags.add(spec[2])
    found.given.append((name, value))
    if spec[1] and value:
        use.operand(spec[1], ShellWord(value))
