"""Judging a parsed command: its programs in the order of a shell, with the folders that it may be in and what earlier parts did."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from holdfast.agent.security import grammar
from holdfast.agent.security.grammar import (  # fmt: skip
    FILE,
    OUTPUT,
    QUOTED_OUTPUT,
    QUOTED_VARIABLE,
    TEXT,
    VARIABLE,
    Chain,
    Command,
    Raw,
    Redirect,
    Script,
    Unjudged,
    parse,
)
from holdfast.agent.security.paths import HIGH, LOW, MEDIUM, UNKNOWN, Finding, Places
from holdfast.agent.security.words import Names, Word, listed

_MOST_COMMANDS, _MOST_ROUNDS, _MOST_FOLDERS = 2000, 64, 8  # programs in one command (a loop counts once per round), rounds, folders
_GLOB = re.compile(r"[*?]|\[.*\]")
_PLAIN = re.compile(r"[A-Za-z0-9_.,:=@%+/-]+")
# Variables whose value nothing depends on where it is only shown.
_SHOWN = listed(
    "? PWD USER LOGNAME SHELL PATH LANG LC_ALL TERM OLDPWD HOSTNAME UID EUID PPID RANDOM SECONDS LINENO SHLVL TMPDIR VIRTUAL_ENV CONDA_PREFIX PYTHONPATH GOPATH JAVA_HOME NODE_ENV EDITOR BASH_VERSION OSTYPE"
)
_SECRET_VARIABLE = re.compile(r".*(?:KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH|COOKIE).*")
# Builtins that change what later commands mean, or run their words as builtins. `changes` and `Reader` look closer at some.
_CHANGERS = listed(
    ". source eval exec export declare typeset local readonly unset alias unalias set shopt trap enable hash read mapfile readarray getopts let bind complete compgen compopt "
    "history fc logout pushd popd disown suspend bg fg caller return shift builtin command coproc umask ulimit times"
)


class Stdin(NamedTuple):
    """The input of a program: its text if that is known; `names` if each line is a path below one of these."""

    text: str | None = None
    names: tuple[Word, ...] | None = None


class Scope:
    """The folders that a command may be in (none: not known), and the variables that it has set."""

    __slots__ = ("cwds", "variables")

    def __init__(self, cwds: tuple[str, ...], variables: dict[str, Word]) -> None:
        self.cwds, self.variables = cwds, variables

    def copy(self) -> Scope:
        """Another one, for a subshell."""
        return Scope(self.cwds, dict(self.variables))

    def forget(self, before: dict[str, Word]) -> None:
        """Take it that a part was run or not: variables that it has changed are not known."""
        self.variables = {name: word if before.get(name) == word else Word("", False, split=True) for name, word in self.variables.items()}


Judge = Callable[["Reader", Sequence[Word], Scope, Stdin | None], tuple[str, ...] | None]


class Reader:
    """Judges one command and keeps the highest risk. `judge` is asked about each program, and gives the folders that it goes to.

    `rearranged` is set by programs that may put symlinks anywhere: what a path means after them is not known. `wrote` says that files may
    have been made since the directories were looked at. A program sets `yields` if its output is names of files below these.
    """

    __slots__ = ("_judge", "_left", "found", "hosts", "places", "rearranged", "wrote", "yields")

    def __init__(self, places: Places, hosts: Sequence[str], judge: Judge) -> None:
        self.places, self.hosts, self._judge = places, hosts, judge
        self.found, self.rearranged, self.wrote, self._left = Finding(LOW), False, False, _MOST_COMMANDS
        self.yields: tuple[Word, ...] | None = None

    def read(self, command: str, cwds: tuple[str, ...], before: Sequence[str] = ()) -> Finding:
        """The risk of a command that begins in one of `cwds`; the commands `before` run first."""
        scope = Scope(cwds, {})
        for one in before:
            self.script(parse(one), scope)
            self.wrote, self.found = self.wrote or self.found.rank > LOW, Finding(LOW)
        if reason := grammar.hidden(command):
            return Finding(HIGH, reason)
        self.nested(command, scope)
        if self.places.workdir and not all(map(self.places.inside, scope.cwds)):
            self.note(MEDIUM, "leaves the shell outside of the working directory")
        return self.found if self.found.rank != UNKNOWN else max(self.found, _rough(command, self.places, scope.cwds))

    def nested(self, text: str, scope: Scope) -> None:
        """Judge the text of a script."""
        try:
            self.script(parse(text), scope)
        except Unjudged as reason:
            self.note(UNKNOWN, f"what it does was not judged: {reason}")

    def note(self, rank: int, reason: str) -> None:
        """Keep this finding if it is higher than the present one."""
        if rank > self.found.rank or not self.found.reason:
            self.found = Finding(rank, reason)

    @property
    def disturbed(self) -> bool:
        """Whether files may have been made since the directories were looked at."""
        return self.wrote or self.rearranged or self.found.rank > LOW

    def path(self, word: Word, scope: Scope, what: str, rule: Callable[[str, str], Finding]) -> None:
        """Judge what is done with a path, by a rule that takes it and the folder that it is relative to."""
        path = word.text
        if not word.known:
            self.note(UNKNOWN, f"{what} a path that is not known beforehand")
        elif self.rearranged and not path.startswith(("/usr/", "/dev/null")):
            self.note(UNKNOWN, f"{what} {path[:80]!r} after a command that may have made a link of it")
        elif not scope.cwds and not path.startswith("/"):
            self.note(UNKNOWN, f"{what} {path[:80]!r} in a folder that is not known beforehand")
        for cwd in scope.cwds or ("/",) if word.known else ():
            matches = self.places.matches(path, cwd) if word.glob else [path]
            if matches is None or (word.glob and not self.places.is_inside(_GLOB.split(path)[0], cwd)):
                self.note(UNKNOWN, f"{what} more paths than are looked at: {path[:80]}")
            for one in matches or ():
                self.note(*rule(one, cwd))

    def no_options(self, word: Word, scope: Scope) -> bool:
        """Whether no file that a glob becomes can be taken for an option."""
        if word.text[:1] not in ("*", "?", "["):
            return not word.text.startswith("-")
        names = [self.places.matches(word.text, cwd) for cwd in scope.cwds if not self.disturbed]
        return bool(names) and all(one is not None and not any(name.startswith("-") for name in one) for one in names)

    def odd(self, word: Word, scope: Scope) -> bool:
        """Whether a name below a folder may be taken for several words, or for an option."""
        if word.tree is None and (word.glob or word.text != "."):
            return any(
                names is None or any(re.search(r"[\s'\"\\]|^-", name) for name in names)
                for names in [self.places.matches(word.text, cwd) for cwd in scope.cwds]
            )
        walks = [self.places.walk(self.places.real(word.text, cwd), (word.tree or Names()).keep, foreign=True) for cwd in scope.cwds]
        return self.disturbed or not walks or any(walk.odd or not walk.whole for walk in walks)

    # --- scripts ---

    def script(self, script: Script, scope: Scope) -> None:
        """Judge the commands of a script one after the other."""
        for chain in script:
            self._chain(chain, scope.copy() if chain.background else scope)

    def _chain(self, chain: Chain, scope: Scope) -> None:
        """`a && b || c`: `done` are the folders to be in if the last one succeeded, `failed` if it did not."""
        done = failed = scope.cwds
        first = scope.variables
        for index, (operator, pipeline) in enumerate(chain.pipelines):
            if operator == "||":
                scope.forget(first)
            scope.cwds = before = failed if operator == "||" else done
            after = self._command(pipeline[0], scope, None) if len(pipeline) == 1 else self._pipeline(pipeline, scope)
            done, failed = (_union(done, after), before) if operator == "||" else (after, _union(failed, before) if operator else before)
            first = first if index else dict(scope.variables)
        scope.forget(first)
        scope.cwds = _union(done, failed)
        if len(scope.cwds) > _MOST_FOLDERS:
            scope.cwds = ()

    def _pipeline(self, pipeline: Sequence[Command], scope: Scope) -> tuple[str, ...]:
        stdin = None
        for command in pipeline:
            self.yields = None
            self._command(command, scope.copy(), stdin)
            stdin = Stdin(None, self.yields if command.kind == "program" else None)
        return scope.cwds

    def _command(self, command: Command, scope: Scope, stdin: Stdin | None) -> tuple[str, ...]:
        """Judge a command; the folders to be in if it succeeds."""
        for redirect in command.redirects:
            stdin = self._redirect(redirect, scope) or stdin
        if command.kind == "program":
            return self._program(command, scope, stdin)
        before, inner = scope.cwds, scope.copy() if command.kind == "subshell" else scope
        for _ in range(2 if command.kind == "loop" else 1):  # the second time with what the first round leaves
            for script in command.scripts if command.kind != "for" else ():
                variables = dict(inner.variables)
                self.script(script, inner)
                if command.kind in ("if", "loop"):
                    inner.forget(variables)
                    inner.cwds = _union(before, inner.cwds)
        if command.kind == "for":
            self._for(command, inner)
        if command.kind in ("for", "loop") and scope.cwds != before:
            self.note(UNKNOWN, "changes the folder in each round of a loop")
        return scope.cwds

    def _for(self, loop: Command, scope: Scope) -> None:
        values = list[Word]()
        for word in [word for raw in loop.words for word in self.expand(raw, scope)]:
            names = self.places.matches(word.text, scope.cwds[0]) if word.glob and len(scope.cwds) == 1 and not self.disturbed else None
            values += [Word(name) for name in names] if names is not None else [Word("", False) if word.glob else word]
        variables = dict(scope.variables)
        for value in values if len(values) <= _MOST_ROUNDS else [Word("", False)] * 2:
            scope.variables[loop.variables[0][0]] = value
            self.script(loop.scripts[0], scope)
            if len(values) > _MOST_ROUNDS:
                scope.forget(variables)
        scope.forget(variables)

    def _program(self, command: Command, scope: Scope, stdin: Stdin | None) -> tuple[str, ...]:
        self._left -= 1
        if self._left < 0:
            self.note(UNKNOWN, "has more parts than are judged")
            return scope.cwds
        for name, raw in command.variables:
            value = self.one(raw, scope)
            if not command.words:
                scope.variables[name] = value
            elif name == "PYTHONPATH":
                for one in value.text.split(":"):
                    inside = all(self.places.is_inside(one or ".", cwd) for cwd in scope.cwds or ("/",))
                    self.note(MEDIUM if inside else UNKNOWN, f"takes modules from {one[:80] or '.'}")
            elif name.startswith(("DJANGO", "FLASK")):
                self.note(MEDIUM, "runs the project's own code")
        words = [word for raw in command.words for word in self.expand(raw, scope)]
        return self.run(words, scope, stdin) if words else scope.cwds

    def run(self, words: Sequence[Word], scope: Scope, stdin: Stdin | None = None) -> tuple[str, ...]:
        """Judge a program with its words; the folders to be in if it succeeds."""
        if not words[0].known or words[0].glob or words[0].tree is not None:
            self.note(UNKNOWN, "what it runs is made up while it runs")
            return scope.cwds
        self.yields = None
        after = self._judge(self, words, scope, stdin)
        return scope.cwds if after is None else after

    def _redirect(self, redirect: Redirect, scope: Scope) -> Stdin | None:
        if redirect.operator in ("<<", "<<<"):
            self.expand(redirect.target, scope)
            return Stdin(redirect.text)
        words = self.expand(redirect.target, scope)
        if len(words) != 1 or words[0].glob:
            self.note(UNKNOWN, "redirects to a path that is not known beforehand")
        for word in words:
            if word.text.startswith(("/dev/tcp/", "/dev/udp/")):
                self.note(HIGH, "opens a connection")
            self.path(word, scope, "uses", self.places.read if redirect.operator == "<" else self.places.write)
        return Stdin() if redirect.operator == "<" else None

    # --- words ---

    def one(self, raw: Raw, scope: Scope) -> Word:
        """The value that a variable is given: nothing in it is split, and no glob or brace in it is replaced."""
        pieces = [
            Word(part.value) if part.kind < VARIABLE else self.expand((part, grammar.Part(grammar.QUOTED, "")), scope)[0] for part in raw
        ]
        return Word("".join([piece.text for piece in pieces]), all(piece.known and piece.tree is None for piece in pieces))

    def expand(self, raw: Raw, scope: Scope) -> list[Word]:
        """The arguments that a word becomes."""
        if len(raw) == 1 and raw[0].kind == TEXT:
            texts = grammar.braces(raw[0].value) if "{" in raw[0].value else [raw[0].value]
            return [Word(text, True, _GLOB.search(text) is not None) for text in texts]
        pieces, known, split = list[tuple[str, bool]](), True, False
        for kind, value in raw:
            found: str | None = value
            if kind in (OUTPUT, QUOTED_OUTPUT, FILE):
                self.yields, found = None, "/dev/stdin" if kind == FILE else None
                self.script(value, scope.copy())
                if kind == OUTPUT and len(raw) == 1 and (names := self._names(value, scope)):
                    return names
            elif kind in (VARIABLE, QUOTED_VARIABLE):
                found = self._variable(value, scope)
                found = None if found is not None and kind == VARIABLE and not _PLAIN.fullmatch(found) else found
            if found is None:
                known, split = False, split or kind in (OUTPUT, VARIABLE)
            elif known:
                pieces.append((found, kind == TEXT))
        if not known or _GLOB.search("".join([text for text, bare in pieces if bare])) is None:
            return [Word("".join([text for text, _ in pieces]), known, split=split)]
        return [Word("".join([text if bare else re.sub(r"([*?\[])", r"[\1]", text) for text, bare in pieces]), True, True)]

    def _names(self, script: Script, scope: Scope) -> list[Word]:
        """The names of files that a script of one pipeline, which was judged just now, has as its output; none if that is not known."""
        single = len(script) == 1 and len(script[0].pipelines) == 1 and script[0].pipelines[0][1][-1].kind == "program"
        names = list(self.yields or ()) if single else []
        return [] if any(self.odd(word, scope) for word in names) else names

    def _variable(self, name: str, scope: Scope) -> str | None:
        """A variable's value; None if it is not known."""
        if name in scope.variables:
            return scope.variables[name].text if scope.variables[name].known else None
        if name == "HOME" or (name == "PWD" and len(scope.cwds) == 1):
            return (self.places.home or None) if name == "HOME" else scope.cwds[0]
        if _SECRET_VARIABLE.fullmatch(name.upper()):
            self.note(HIGH, f"shows or gives away ${name}, which may be a secret")
        elif name not in _SHOWN:
            self.note(UNKNOWN, f"depends on ${name}, which is not known beforehand")
        return None


def _union(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    """The folders of both; none, which stands for any, if either has none."""
    return one if one == other else tuple(dict.fromkeys(one + other)) if one and other else ()


# --- commands that ran before, and commands about which nothing is proven ---


@functools.lru_cache(maxsize=1024)
def shell_effect(command: str) -> str:
    """How a command leaves its shell: "changes" if later commands may mean something else, "moves" if it may be in another folder, else ""."""
    try:
        todo, found = list[Chain | Command](parse(command)), ""
    except Unjudged:
        return "changes"
    while todo:
        one = todo.pop()
        if isinstance(one, Chain):
            todo += [command for _, pipeline in one.pipelines for command in pipeline]
        elif one.kind != "program":
            todo += [chain for script in one.scripts for chain in script]
        elif one.words:
            name, *rest = [grammar.literal(raw) for raw in one.words]
            if changes(name, rest):
                return "changes"
            found = "moves" if name == "cd" else found
    return found


def changes(name: str | None, rest: Sequence[str | None]) -> bool:
    """Whether a program with these words (None: not known) may change the shell that runs it."""
    match name:
        case "command":
            return rest[:1] not in (["-v"], ["-V"])
        case "printf":
            return not rest or rest[0] is None or rest[0].startswith("-") or re.search(r"%[-#0 +'*.\dhlLjzt]*n", rest[0]) is not None
        case "[" | "[[" | "test":
            return rest[:1] == [None] or any(word in ("-v", "-R", "-eq", "-ne", "-lt", "-le", "-gt", "-ge", "=~") for word in rest)
        case "wait" | "jobs":
            return any(word is None or word.startswith("-") for word in rest)
        case "ulimit" | "umask" | "alias" | "history":
            return rest not in ([], ["-a"], ["-S"], ["-n"], ["-s"])
        case "set":
            return (
                not all(word is not None and re.fullmatch(r"[-+][eux]*o?|pipefail|errexit|nounset|xtrace", word) for word in rest)
                or not rest
            )
        case "read":
            return not all(word is not None and (word == "-r" or grammar.LOCAL.fullmatch(word)) for word in rest)
        case "export":
            return not rest or not all(word is not None and exported(word) for word in rest)
        case _:
            return name is None or name in _CHANGERS


def exported(word: str) -> bool:
    """Whether `export` may be given this word: a plain value for a name that nothing acts on."""
    name, equals, value = word.partition("=")
    return (
        bool(equals)
        and name != "PYTHONPATH"
        and grammar.HARMLESS.fullmatch(name) is not None
        and re.fullmatch(r"[\w.@-]*", value) is not None
    )


_ROUGH_WORD = re.compile(r"[;|&()<>`\n]|[^\s;|&()<>`]+")
_ROUGH_HIGH = listed(
    "sudo su doas pkexec mkfs shred fdisk reboot shutdown nc ncat socat ssh scp crontab chown mount useradd iptables insmod killall"
)


def _rough(command: str, places: Places, cwds: Sequence[str]) -> Finding:
    """Dangers that show in the words of a command about which nothing is proven."""
    begins, name = True, ""
    for word in _ROUGH_WORD.findall(re.sub(r"['\"\\]", "", command[:20_000])):
        if word in ";|&()<>`\n":
            begins, name = begins or word not in "<>", word if word in "<>" else ""
        elif begins and word not in ("then", "do", "else", "{", "!", "time", "env", "exec", "command", "nohup", "eval", "xargs"):
            begins, name = False, word.rpartition("/")[2]
            if name in _ROUGH_HIGH:
                return Finding(HIGH, f"{name} may do harm, in a command of which little is known")
        elif name == "rm" and re.fullmatch(r"-\w*[rR]\w*|--rec\w*", word):
            return Finding(HIGH, "deletes folders, in a command of which little is known")
        elif "$" not in word and "/" in f"{word}/" and word[0] in "/~.":
            path = places.home + word[1:] if word.startswith("~") else word
            found = (places.write if name in ("rm", ">") else places.read)(path, cwds[0] if cwds else "/")
            if found.rank == HIGH:
                return found
    return Finding(LOW)
