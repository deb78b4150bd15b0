"""Judging a parsed command: its programs in the order of a shell, with its possible folders and the
effects of earlier parts. The words of a program are judged by its row of the table."""

from __future__ import annotations

import functools
import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from holdfast.agent.security import grammar, table
from holdfast.agent.security.grammar import Command, Script, ShellWord, UnjudgedCommand
from holdfast.agent.security.paths import (
    ALL_FILES,
    HIGH,
    LOW,
    MEDIUM,
    UNKNOWN,
    FileNames,
    RiskFinding,
    ShellPaths,
    is_regenerated,
    split_glob,
)
from holdfast.tools.names import word_set

_MAX_CALLS = 2000  # of programs in one command; one counts once for each folder and turn of a loop
_MAX_FOLDERS = 8
Words = Sequence[ShellWord]
# The use of a path by a letter of the table: for `ScriptReader.use_path`, and for readers.
_ACTS = {
    "R": ("read", "reads"),
    "r": ("read", "reads"),
    "l": ("look", "looks at"),
    "w": ("write", "writes to"),
    "D": ("delete", "deletes"),
}
# Builtins that change the meaning of later commands, or run their words as builtins, and the forms
# in which some do not.
_CHANGERS = word_set(
    ". source eval exec export declare typeset local readonly unset alias unalias set shopt trap"
    " enable hash read mapfile readarray getopts let bind complete compgen compopt history fc"
    " logout pushd popd disown suspend bg fg caller return shift builtin command coproc umask"
    " ulimit times printf wait jobs break continue test ["
)
_OPERAND = r"(?!-)[^\n\[]*"
_TESTS = (
    rf"(?:!\n)?(?:(?:-[bcdefghknprswxzLNOS]\n)?{_OPERAND}|{_OPERAND}\n(?:=|==|!=|-nt|-ot)\n{_OPERAND}"
    r"|[\d\x01]+\n-(?:eq|ne|lt|le|gt|ge)\n[\d\x01]+)"
)
_HARMLESS_FORMS = {
    "command": r"-[vV](?:\n[\w.+-]+)+",
    "printf": r"(?!-)(?!(?s:.*?)%[-#0 +'*.\dhlLjzt]*n)(?s:.+)",
    "wait": r"\x02?",
    "set": r"(?:(?:[-+][eux]*o?|pipefail|errexit|nounset|xtrace)(?:\n|$))+",
    "test": _TESTS,
    "[": rf"{_TESTS}\n\]",
}
# Judges a program with its words in a folder ("": not known) and its input ("", or "pipe" or
# "document" for one that is redirected). Returns the folder that the shell is in afterwards.
ProgramJudge = Callable[["ScriptReader", Words, str, str], str]


class ScriptReader:
    """Judges one command and keeps the highest risk in `highest`.

    Attributes:
        rearranged: Whether symlinks may be anywhere now, so that no path is known.
        wrote: Whether files may have been made since the directories were looked at.
        written_files: The files that earlier commands wrote.
        writing: The files that the present command writes.
        feeds: The words of the programs before this one in its pipeline.
    """

    def __init__(self, paths: ShellPaths, judge: ProgramJudge) -> None:
        self.paths, self.judge = paths, judge
        self.highest, self.rearranged, self.wrote = RiskFinding(LOW), False, False
        self.feeds = list[Words]()
        self.written_files, self.writing = list[str](), list[str]()
        self._calls_left = _MAX_CALLS

    def read(self, command: str, cwds: Sequence[str], before: Sequence[str] = ()) -> RiskFinding:
        """Judge a command that begins in one of `cwds` ("": not known), after those `before` it."""
        if reason := grammar.hidden_problem(command):
            return RiskFinding(HIGH, reason)
        try:
            for one in before:
                cwds = self._script(grammar.parse(one, self.paths.home), cwds)
                self.wrote, self.highest = self.wrote or self.highest.rank > LOW, RiskFinding(LOW)
                self.written_files.clear()
            cwds = self._script(grammar.parse(command, self.paths.home), cwds)
        except (UnjudgedCommand, OSError, ValueError) as reason:
            self.note(UNKNOWN, f"its effects were not judged: {reason}")
        if self.paths.workdir and not all(map(self.paths.inside, filter(None, cwds))):
            self.note(MEDIUM, "leaves the shell outside of the working directory")
        return self.highest

    def note(self, rank: int, reason: str) -> None:
        """Keep this risk if it is higher than the present one."""
        if rank > self.highest.rank or not self.highest.reason:
            self.highest = RiskFinding(rank, reason)

    def use_path(
        self, word: ShellWord, cwd: str, kind: str, act: str, names: FileNames | None = None
    ) -> None:
        """Judge the use of a path: a `kind` of `ShellPaths.judge`, or "delete" for it and its
        content. With `names`, all files with these names in the folder are read."""
        path, paths, label = word.text, self.paths, repr(word.text[:80])
        if path and min(path) <= grammar.JOB:
            self.note(UNKNOWN, f"{act} a path that is not known beforehand")
        if self.rearranged and kind != "use" and not path.startswith(("/usr/", "/dev/null")):
            self.note(UNKNOWN, f"{act} {label} after a command that may have made a link of it")
        elif not cwd and not path.startswith("/"):
            self.note(UNKNOWN, f"{act} {label} in a folder that is not known beforehand")
        self.note(*paths.judge("write" if kind == "delete" else kind, path, cwd, act))
        if word.glob:
            self.note(*paths.judge_glob(kind, path, cwd, act))
        if names is not None:
            self.note(*paths.read_all(split_glob(path)[0] if word.glob else path, cwd, names, act))
        folder, _, name = path.rstrip("/").rpartition("/")
        whole = kind == "write" and word.glob and re.fullmatch(r"[.*?]+", name)
        if whole and not is_regenerated(folder.rpartition("/")[2]):
            self.note(HIGH, f"{act} all that is in a folder: {path[:80]}")
        if kind == "delete" and not (
            is_regenerated(name) and paths.real(path, cwd) != paths.workdir
        ):
            self.note(HIGH, f"deletes a folder and all that is in it: {path[:80]}")

    def odd_names(self, word: ShellWord, cwd: str) -> int:
        """Return whether a pattern may become several words (1), or an option (2)."""
        folder, names, deep = split_glob(word.text)
        unknown = self.wrote or self.rearranged or self.highest.rank > LOW or not cwd
        return (
            2 if unknown else self.paths.scan(self.paths.real(folder, cwd), names, deep, True).odd
        )

    # --- scripts ---

    def _script(self, script: Script, cwds: Sequence[str]) -> Sequence[str]:
        """Judge pipelines in each folder that the shell may be in. Return those afterwards."""
        now = cwds  # where the pipeline before has succeeded
        for pipeline in [*script, *[one for one in script if one.background]]:
            # A background command may run files that later commands write.
            now = now if pipeline.operator == "&&" else cwds
            now = list(dict.fromkeys([to for cwd in now for to in self._pipeline(pipeline, cwd)]))
            cwds = list(dict.fromkeys([*cwds, *now]))
            if len(cwds) > _MAX_FOLDERS:
                now = cwds = [""]
        return cwds

    def _pipeline(self, pipeline: grammar.ShellPipeline, cwd: str) -> Sequence[str]:
        """Judge the commands of a pipeline. Return the folders that it may leave the shell in."""
        outer, after, count = self.feeds, list[str](), len(self.written_files)
        for _ in range(2):
            self.feeds = []
            for index, call in enumerate(pipeline.calls):
                after = self._call(call, cwd, "pipe" if index else "")
            if len(pipeline.calls) == 1 or len(self.written_files) == count:
                break  # otherwise its first command may run a file that its last one writes
        self.feeds = outer
        return [cwd] if len(pipeline.calls) > 1 or pipeline.background else after

    def _call(self, call: Command, cwd: str, stdin: str) -> Sequence[str]:
        """Judge a program or a loop. Return the folders that it may leave the shell in."""
        for redirect in call.redirects:
            stdin = self._redirect(redirect, cwd) or stdin
        if call.loop is not None:
            if any(word.glob and self.odd_names(word, cwd) for word in call.words):
                raise UnjudgedCommand("it goes through files whose names are not known")
            self.feeds.append(())
            return self._script(call.loop, [cwd])
        self._calls_left -= 1
        if self._calls_left < 0:
            raise UnjudgedCommand("it has more parts than are judged")
        for name, value in call.variables:
            for folder in value.split(":") if name == "PYTHONPATH" else ():
                inside = self.paths.is_inside(folder or ".", cwd or "/")
                self.note(MEDIUM if inside else UNKNOWN, f"takes modules from {folder[:80]}")
        after = self.judge(self, call.words, cwd, stdin) if call.words else cwd
        self.written_files, self.writing = [*self.written_files, *self.writing], []
        fed = any(redirect.operator[0] == "<" for redirect in call.redirects)
        self.feeds.append(() if fed else call.words)
        return [after]

    def _redirect(self, redirect: grammar.Redirect, cwd: str) -> str:
        """Judge a redirection. Return the kind of input that it gives to the program."""
        target, reads = redirect.target, redirect.operator == "<"
        if redirect.operator in ("<<", "<<<", ">&"):
            return "document" if redirect.operator[0] == "<" else ""
        if target.glob:
            self.note(UNKNOWN, "redirects to a path that is not known beforehand")
        if target.text.startswith(("/dev/tcp/", "/dev/udp/")):
            self.note(HIGH, "opens a connection")
        self.use_path(target, cwd, *_ACTS["r" if reads else "w"])
        if not reads and target.text not in ("/dev/null", "/dev/stdout", "/dev/stderr"):
            self.writing.append(self.paths.real(target.text, cwd))
        return "pipe" if reads else ""


# --- one program with its words ---

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
_DATA = re.compile(r".*/(?!test.*t\Z|CMakeLists)[^/]*\.(?:txt|log|csv|tsv|out|err|sql)")
_TAKES_CODE = re.compile(r"-[cer]|--(?:command|eval|exec|execute|code)\b|(?:shell|runner|eval)$")


class ProgramRow(NamedTuple):
    """A row of the table: letters, signs, and the options, or the reason why it is high."""

    kind: str = ""
    signs: str = ""
    options: str = ""


@functools.cache
def rows() -> Mapping[str, ProgramRow]:
    """Return the table by the names of programs, of those with commands (`git.`), and of these
    commands (`git.log`)."""
    by_name: dict[str, ProgramRow] = {}
    text = re.sub(r"(,?)\n +", lambda match: match[1] or " ", table.PROGRAMS)
    for line in filter(None, re.split(r"\n| \| ", text)):
        names, kind, *rest = line.split(" ", 2)
        # `npm,yarn.run`: a command of both
        parts = itertools.product(*[part.split(",") for part in names.split(".")])
        letters = kind.rstrip("+@!~^%")
        row = ProgramRow(letters, kind[len(letters) :], rest[0] if rest else "")
        for program, *commands in parts:
            by_name[".".join([program, *commands])] = row
            if commands:
                by_name.setdefault(f"{program}.", ProgramRow())
    return by_name


def row(name: str) -> ProgramRow:
    """Return the row of a program; an empty one if it has none."""
    return rows().get(name) or ProgramRow()


class ProgramOptions(NamedTuple):
    """The options of a program with their values (or ""), its operands, and its options' flags."""

    pairs: list[tuple[str, str]]
    operands: list[ShellWord]
    flags: set[str]

    def has(self, *names: str) -> bool:
        """Return True if one of these options is given."""
        return any(name in names for name, _ in self.pairs)

    def values(self, *names: str) -> list[str]:
        """Return the values of these options."""
        return [value for name, value in self.pairs if name in names]


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
        act, verb = _ACTS[kind]
        for word in words:
            reads = names if kind == "R" else None
            self.reader.use_path(word, self.cwd, act, f"{self.name} {what or verb}", reads)
            if kind == "w" and self.name in table.WRITERS:
                self.reader.writing.append(self.reader.paths.real(word.text, self.cwd))

    def runs_written(self, path: str = "", alone: bool = False) -> None:
        """Note code that the command itself has written, because it was never shown: this file, and
        unless `alone` any other file that may be code."""
        real = self.reader.paths.real(path, self.cwd).lower() if path else ""
        for one in self.reader.written_files:
            if one.lower() == real or not (alone or _DATA.fullmatch(one)):
                self.note(UNKNOWN, "runs a file that this command has written")

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
            self.note(UNKNOWN, f"is given text that may be code: {text[:60]}")
        if {"install", "exec"} & set(re.split(r"[:.]", text)) or re.search(r"://|@", path):
            self.note(UNKNOWN, f"is given a value that is not judged: {word.text[:60]}")
        if self.name in ("mvn", "mvnw") and text.count(":") > 1:
            self.note(HIGH, f"fetches a program and runs it: {text[:60]}")
        if strict and path.endswith(".txt"):  # pytest runs the code in one
            self.runs_written(path, alone=True)
        self.reader.use_path(ShellWord(path, word.glob), self.cwd, "use", f"{self.name} is given")

    def arguments(self, words: Words) -> None:
        """Judge the words of a program of the project. What stands behind an option or a command
        that takes code must be a plain word."""
        for before, word in zip(("", *[one.text for one in words]), words, strict=False):
            self.argument(word, _TAKES_CODE.match(before or word.text) is not None)


@functools.lru_cache(maxsize=1024)
def _option_specs(text: str) -> Mapping[str, tuple[str, str, str]]:
    """Return the options of a row: how each takes a value, the value's kind, and a flag."""
    # A letter that may stand with others in one word has a second entry without a dash.
    by_option: dict[str, tuple[str, str, str]] = dict.fromkeys(
        ("--help", "--version"), ("", "", "")
    )
    for token in text.split():
        if token[0] == "&":
            by_option |= _option_specs(table.GROUPS[token[1:]])
        elif token == "#":
            by_option["#"] = ("", "", "")
        elif match := _OPTION.fullmatch(token):
            dash, names, *spec = match.groups()
            keys = [f"-{one}" for one in names] + list(names) if dash == "-" else [f"--{names}"]
            keys = [f"-{names}"] if dash == ":" else keys
            by_option |= dict.fromkeys(keys, (spec[0], spec[1], spec[2]))
    return by_option


def parse_options(
    use: ProgramUse, options: str, words: Words, stop: bool = False
) -> ProgramOptions:
    """Take words apart as getopt does by the `options` of a row, and note what those do; with
    `stop` the first operand ends them."""
    allowed, result = _option_specs(options), ProgramOptions([], [], set())
    rest = list(reversed(words))
    while rest:
        word = rest.pop()
        text = word.text
        if text == "--" or (stop and result.operands):
            rest += [word] if stop and result.operands else []
            result.operands.extend(reversed(rest))
            break
        if text[:1] != "-" or text == "-":
            result.operands.append(word)
            continue
        name, equals, value = text.partition("=")
        if name not in allowed and not text.startswith("--"):
            if "#" in allowed and text[1:].isdecimal():
                continue
            # Letters: the first that takes a value takes the rest of the word.
            place = 1
            while (spec := allowed.get(text[place])) and not spec[0] and text[place + 1 :]:
                _add_option(use, result, f"-{text[place]}", spec, "")
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
        _add_option(use, result, name, spec, value)
    return result


def _add_option(
    use: ProgramUse, options: ProgramOptions, name: str, spec: tuple[str, str, str], value: str
) -> None:
    """Add an option, and note its effect and the use of its value."""
    if spec[2] in ("^", "+"):
        use.note(HIGH if spec[2] == "^" else MEDIUM, f"has {name}, which changes something")
    options.flags.add(spec[2])
    options.pairs.append((name, value))
    if spec[1] and value:
        use.operand(spec[1], ShellWord(value))


# --- commands that ran before ---


@functools.lru_cache(maxsize=1024)
def shell_effect(command: str) -> str:
    """Return "changes" if a command changes the meaning of later ones, "moves" if it moves its
    shell, else ""."""
    try:
        programs = [*_programs(grammar.parse(command, "/"))]
    except UnjudgedCommand:
        return "changes"
    if any(map(changes_shell, programs)):
        return "changes"
    return "moves" if any(words[0].text == "cd" for words in programs) else ""


def _programs(script: Script) -> Iterator[Words]:
    for call in [call for pipeline in script for call in pipeline.calls]:
        if call.loop is not None:
            yield from _programs(call.loop)
        elif call.words:
            yield call.words


def changes_shell(words: Words) -> bool:
    """Return whether a program with its words may change the shell that runs it."""
    name, *rest = words
    texts = [word.text for word in rest]
    if name.text == "export":
        set_to = [text.partition("=") for text in texts]
        return not rest or not all(
            dash and grammar.is_harmless_variable(one, to) for one, dash, to in set_to
        )
    if (form := _HARMLESS_FORMS.get(name.text)) is None:
        return name.text in _CHANGERS
    literal = not any(word.glob for word in (rest[:1] if name.text == "printf" else rest))
    return not literal or not re.fullmatch(form, "\n".join(texts))
