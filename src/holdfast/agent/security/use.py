"""One program with its words, as the rules about programs are asked about it, and its options, as
the table allows them."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from holdfast.agent.security import table
from holdfast.agent.security.grammar import ShellWord
from holdfast.agent.security.paths import HIGH, MEDIUM, UNKNOWN, FileNames, RiskFinding, word_set
from holdfast.agent.security.script import ScriptReader

_TOKEN = re.compile(r"(--|-|:)([^=?+^*$]+)([=?]?)([A-Za-z]?)([+^*$]?)")
PUBLISHES = word_set(
    "publish deploy upload login logout release yank push owner adduser unpublish register"
    " gh-deploy site-deploy deploy-file"
)
# Letters of a kind whose words are looked at for what they are alone: the text that is allowed, and
# the risk of another one.
_TEXTS = {
    letter: (re.compile(text, re.IGNORECASE), RiskFinding(rank, reason))
    for letter, text, rank, reason in (
        ("e", r"[\w.+-]+", UNKNOWN, "is given what may change something, or is read"),
        ("d", r"\+.*", UNKNOWN, "may set the clock"),
        ("z", r"%\d*|[1-9]\d+|[2-9]", HIGH, "ends processes that are not known beforehand"),
        ("y", table.NODE_PACKAGE, UNKNOWN, "installs what is no name"),
        ("i", table.PACKAGE, UNKNOWN, "installs what is no name"),
        ("m", table.BUILD_TARGET, UNKNOWN, "is given a variable that may run something"),
        ("o", r"(?![lpa],)[\w,=+-]*", UNKNOWN, "gives options to another program"),
        ("v", table.MODE, HIGH, "lets everybody write, or lends rights"),
        ("n", r"(?!.*(?:KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH))\w+", HIGH, "may show a secret"),
        ("P", r"importtime|dev|utf8|faulthandler|tracemalloc", UNKNOWN, "may import something"),
        ("j", table.JQ, UNKNOWN, "has a program that may read the environment or other files"),
        ("B", r"[^e]*", HIGH, "may show the environment of other processes"),
        ("h", r"(?!@)(?!.*%output).*", UNKNOWN, "shows a file, or writes to one"),
    )
}
_PATHS = {"r": ("read", "reads"), "l": ("look", "looks at"), "w": ("write", "writes to")}


class OptionSpec(NamedTuple):
    """An option: whether it takes a value (`=`, or `?`: only a glued one), the kind of the value,
    and a flag, see `table`."""

    value: str = ""
    kind: str = ""
    flag: str = ""


class Options(NamedTuple):
    """The options of a program with their values ("" for those without one), in their order, its
    operands, and the flags of its options."""

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
    """A program's name, the words behind it, the folder that it runs in ("": not known), and its
    input: "", "pipe" or "document"."""

    reader: ScriptReader
    name: str
    args: Sequence[ShellWord]
    cwd: str
    stdin: str

    def note(self, rank: int, what: str) -> None:
        """Note that the program is at least so risky."""
        self.reader.note(rank, f"{self.name.replace('.', ' ')} {what}")

    def text(self, index: int) -> str:
        """Return the word of that place, "" if there is none."""
        return self.args[index].text if 0 <= index < len(self.args) else ""

    def at(self, path: str) -> str:
        """Return a path from the folder that the program runs in."""
        return os.path.join(self.cwd or "/", path)

    def run(self, words: Sequence[ShellWord]) -> None:
        """Judge these words as a program that this one runs."""
        if not words or words[0].glob:
            self.note(UNKNOWN, "runs nothing that is named")
        else:
            self.reader.judge(self.reader, words, self.cwd, self.stdin)

    def paths(self, kind: str, words: Sequence[ShellWord], what: str = "") -> None:
        """Judge the use of these paths, by the letter of a kind: `r`, `R`, `l` or `w`."""
        for word in words:
            if kind == "R":
                self.reader.search(word, self.cwd, FileNames(), f"{self.name} reads")
            else:
                act, shown = _PATHS[kind]
                self.reader.use_path(word, self.cwd, act, f"{self.name} {what or shown}")

    def operand(self, kind: str, word: ShellWord) -> None:
        """Judge a word by the letter that stands for it in the table."""
        text = word.text
        if kind in "iy" and re.search(r"://|^[\w-]+:|^git@", text):
            self.note(HIGH, "installs from elsewhere")
        elif kind == "i" and re.match(r"\.|[^\[]*/", text):
            self.runs_code(ShellWord(text.partition("[")[0]))
        elif kind == "m" and "=" not in text:
            self.operand("p", word)
        elif kind in _TEXTS:
            allowed, other = _TEXTS[kind]
            if not allowed.fullmatch(text):
                self.note(*other)
        elif (
            kind in "0"
            or (kind == "p" and text.startswith("-"))
            or (kind == "r" and text[:1] in ("+", "@"))
        ):
            self.note(UNKNOWN, f"has a word {text[:40]!r} that is not in its table")
        elif kind in "rRlw":
            self.paths(kind, [word])
        elif kind == "c":
            self.runs_code(word)
        elif kind in "kK":
            if ":" in text:
                self.note(HIGH, "has a file on another machine")
            if word.glob or ".." in text.split("/"):
                self.note(UNKNOWN, "makes a link or an archive that was not looked at")
            self.paths("r" if kind == "K" else "w", [word])
        elif kind == "s" and (file := re.match(r"[\w.-]*=?[@<]([^;]*)", text)):
            self.paths("r", [ShellWord(file[1])])
        elif kind == "q":
            self._requirements(word)
        elif kind in "ap":
            self.argument(word, kind == "p")

    def _requirements(self, word: ShellWord) -> None:
        if "://" in word.text:
            self.note(HIGH, "installs from elsewhere")
        self.runs_code(word)
        lines = text_of(self.at(word.text))
        if re.search(table.FOREIGN_LINE, lines, re.MULTILINE):
            self.note(UNKNOWN, f"installs from elsewhere, as {word.text[:60]} says")

    def runs_code(self, word: ShellWord) -> None:
        """Judge running the code of a file or folder."""
        if word.text in ("-", "/dev/stdin"):
            self.note(HIGH, "runs code that it is fed")
        if word.glob or word.text[:1] in ("@", "-"):
            self.note(UNKNOWN, "runs a file that is not known beforehand")
        self.reader.use_path(word, self.cwd, "use", f"{self.name} runs")
        self.note(MEDIUM, f"runs the code of {word.text[:80]}")

    def argument(self, word: ShellWord, strict: bool = False) -> None:
        """Judge a word for the project's own code: a plain one, or a path of the project. Of an
        option the value counts."""
        is_option = word.text.startswith("-")
        text = word.text if is_option else word.text.partition("::")[0]
        path = text.partition("=")[2] or ("" if is_option else text)
        if PUBLISHES & {word.text, *re.split(r"[:/.]", word.text)} or re.match(
            r"publish|deploy|upload", word.text
        ):
            self.note(HIGH, f"sends something out: {word.text[:40]}")
        if strict and not re.fullmatch(r"[\w@%+=:,./*?\[\]{}^~#-]*", text):
            self.note(UNKNOWN, f"is given what may be code: {text[:60]}")
        if {"install", "exec"} & set(re.split(r"[:.]", text)) or re.search(r"://|@", path):
            self.note(UNKNOWN, f"is given what is not looked at: {word.text[:60]}")
        self.reader.use_path(ShellWord(path, word.glob), self.cwd, "use", f"{self.name} is given")


@functools.lru_cache(maxsize=1024)
def _option_specs(text: str) -> Mapping[str, OptionSpec]:
    """Return the options of an entry of the table; `#` stands for numbers."""
    found = {"--help": OptionSpec(), "--version": OptionSpec()}
    for token in text.split():
        if token[0] == "&":
            found |= _option_specs(table.GROUPS[token[1:]])
        elif token == "#":
            found["#"] = OptionSpec()
        elif match := _TOKEN.fullmatch(token):
            names = [match[2]] if match[1] != "-" else list(match[2])
            dashes = "--" if match[1] == "--" else "-"
            spec = OptionSpec(*match.groups()[2:])
            found |= dict.fromkeys([dashes + name for name in names], spec)
    return found


def parse_options(
    use: ProgramUse, entry: str, words: Sequence[ShellWord], stop: bool = False
) -> Options:
    """Take words apart as getopt does, and note what the options do.

    Args:
        use: The program.
        entry: The options that it may have, as the table writes them.
        words: The words behind its name.
        stop: The first operand ends the options.
    """
    allowed, found, rest = _option_specs(entry), Options([], [], set()), list(reversed(words))
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
            while (spec := allowed.get(f"-{text[place]}")) and not spec.value and text[place + 1 :]:
                _add_option(use, found, f"-{text[place]}", spec, "")
                place += 1
            name, value = f"-{text[place]}", text[place + 1 :]
            equals = value
        spec = allowed.get(name)
        is_text = spec is not None and spec.value and not spec.kind and text.startswith("--")
        if spec is None or (equals and not spec.value) or (word.glob and not (is_text and equals)):
            use.note(UNKNOWN, f"has an option {name[:40]} that is not in its table")
            continue
        if spec.value == "=" and not equals:
            following = rest.pop() if rest else ShellWord("", True)
            if following.glob:
                use.note(UNKNOWN, "has an option whose value is not known beforehand")
            value = following.text
        _add_option(use, found, name, spec, value)
    return found


def _add_option(use: ProgramUse, found: Options, name: str, spec: OptionSpec, value: str) -> None:
    """Add an option, and note what it does, also with its value."""
    if spec.flag == "^":
        use.note(HIGH, "throws work away, or changes what is elsewhere")
    elif spec.flag == "+":
        use.note(MEDIUM, "changes something")
    found.flags.add(spec.flag)
    found.given.append((name, value))
    if spec.kind and value:
        use.operand(spec.kind, ShellWord(value))


def text_of(path: str) -> str:
    """Return the beginning of a file; "" if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(100_000)
    except OSError:
        return ""
