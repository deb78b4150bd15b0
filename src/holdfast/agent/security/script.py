"""Judging a parsed command: its programs in the order of a shell, with the folders that it may be in and what earlier parts did."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from holdfast.agent.security.grammar import (
    OUTPUT,
    QUOTED_OUTPUT,
    QUOTED_VARIABLE,
    TEXT,
    VARIABLE,
    Chain,
    Compound,
    Raw,
    Redirect,
    Script,
    Simple,
    Unjudged,
    expand_braces,
    hidden,
    literal,
    parse,
)  # fmt: skip
from holdfast.agent.security.paths import HIGH, LOW, MEDIUM, UNKNOWN, Finding, Places
from holdfast.agent.security.words import Word

_MOST_COMMANDS = 2000  # programs that are judged in one command; a loop counts once per round
_MOST_ROUNDS = 64
_MOST_FOLDERS = 8
_GLOB = re.compile(r"[*?]|\[.*\]")
_PLAIN = re.compile(r"[A-Za-z0-9_.,:=@%+/-]+")
# Variables whose value nothing depends on where it is only shown.
_SHOWN = frozenset(
    [
        "?",
        "USER",
        "LOGNAME",
        "SHELL",
        "PATH",
        "LANG",
        "LC_ALL",
        "TERM",
        "OLDPWD",
        "HOSTNAME",
        "UID",
        "EUID",
        "PPID",
        "RANDOM",
        "SECONDS",
        "LINENO",
        "LINES",
        "COLUMNS",
        "SHLVL",
        "TMPDIR",
        "VIRTUAL_ENV",
        "CONDA_PREFIX",
        "CONDA_DEFAULT_ENV",
        "PYTHONPATH",
        "GOPATH",
        "GOROOT",
        "JAVA_HOME",
        "NODE_ENV",
        "CARGO_HOME",
        "RUSTUP_HOME",
        "EDITOR",
        "PAGER",
        "DISPLAY",
        "BASH_VERSION",
        "OSTYPE",
        "HOSTTYPE",
        "MACHTYPE",
        "PYTHONHOME",
        "NVM_DIR",
        "LD_LIBRARY_PATH",
    ]
)
_SECRET_VARIABLE = re.compile(r".*(?:KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH|COOKIE|SESSION).*")
# Builtins that change what later commands mean, or run their words as such builtins. Those with a condition are looked at below.
_CHANGERS = frozenset(
    [
        ".",
        "source",
        "eval",
        "exec",
        "export",
        "declare",
        "typeset",
        "local",
        "readonly",
        "unset",
        "alias",
        "unalias",
        "set",
        "shopt",
        "trap",
        "enable",
        "hash",
        "read",
        "mapfile",
        "readarray",
        "getopts",
        "let",
        "bind",
        "complete",
        "compgen",
        "compopt",
        "history",
        "fc",
        "logout",
        "pushd",
        "popd",
        "disown",
        "suspend",
        "bg",
        "fg",
        "caller",
        "return",
        "shift",
        "builtin",
        "command",
        "coproc",
        "umask",
        "ulimit",
        "times",
    ]
)


class Stdin(NamedTuple):
    """The input of a program: its text if that is known; `names` if each line is a path below one of these."""

    text: str | None = None
    names: tuple[Word, ...] | None = None


class Scope:
    """The folders that a command may be in (none: not known), and the loop variables around it."""

    __slots__ = ("cwds", "variables")

    def __init__(self, cwds: tuple[str, ...], variables: dict[str, Word]) -> None:
        self.cwds, self.variables = cwds, variables

    def copy(self) -> Scope:
        """Another one, for a subshell."""
        return Scope(self.cwds, dict(self.variables))


Judge = Callable[["Reader", Sequence[Word], Scope, Stdin | None], tuple[str, ...] | None]


class Reader:
    """Judges one command and keeps the highest risk. `judge` is asked about each program, and gives the folders that it goes to.

    `rearranged` is set by programs that may put symlinks anywhere: what a path means after them is not known. `wrote` says that files may
    have been made since the directories were looked at.
    """

    __slots__ = ("_judge", "_left", "found", "hosts", "places", "rearranged", "wrote", "yields")

    def __init__(self, places: Places, hosts: Sequence[str], judge: Judge) -> None:
        self.places, self.hosts, self._judge = places, hosts, judge
        self._left = _MOST_COMMANDS
        self.found = Finding(LOW)
        self.rearranged = False
        self.wrote = False
        self.yields: tuple[Word, ...] | None = None

    def read(self, command: str, cwds: tuple[str, ...], before: Sequence[str] = ()) -> Finding:
        """The risk of a command that begins in one of `cwds`; the commands `before` run first."""
        scope = Scope(cwds, {})
        for one in before:
            self.script(parse(one), scope)
            self.wrote, self.found = self.wrote or self.found.rank > LOW, Finding(LOW)
        if reason := hidden(command):
            return Finding(HIGH, reason)
        try:
            self.script(parse(command), scope)
        except Unjudged as reason:
            self.note(UNKNOWN, f"what it does was not judged: {reason}")
        if self.places.workdir and not all(map(self.places.inside, scope.cwds)):
            self.note(MEDIUM, "leaves the shell outside of the working directory")
        return max(self.found, rough(command, self.places, scope.cwds)) if self.found.rank == UNKNOWN else self.found

    # --- findings ---

    def note(self, rank: int, reason: str) -> None:
        """Keep this finding if it is higher than the present one."""
        if rank > self.found.rank or not self.found.reason:
            self.found = Finding(rank, reason)

    def path(self, word: Word, scope: Scope, what: str, rule: Callable[[str, str], Finding]) -> None:
        """Judge what is done with a path, by a rule that takes it and the folder that it is relative to."""
        path = word.text
        if not word.known:
            self.note(UNKNOWN, f"{what} a path that is not known beforehand")
            return
        if self.rearranged and not path.startswith(("/usr/", "/dev/null")):
            self.note(UNKNOWN, f"{what} {path[:80]!r} after a command that may have made a link of it")
        if not scope.cwds and not path.startswith("/"):
            self.note(UNKNOWN, f"{what} {path[:80]!r} in a folder that is not known beforehand")
        for cwd in scope.cwds or ("/",):
            matches = self.places.matches(path, cwd) if word.glob else [path]
            if matches is None or (word.glob and not self.places.is_inside(_GLOB.split(path)[0], cwd)):
                self.note(UNKNOWN, f"{what} more paths than are looked at: {path[:80]}")
            for one in matches or ():
                self.note(*rule(one, cwd))

    # --- scripts ---

    def script(self, script: Script, scope: Scope) -> None:
        """Judge the commands of a script one after the other."""
        for chain in script:
            self._chain(chain, scope.copy() if chain.background else scope)

    def _chain(self, chain: Chain, scope: Scope) -> None:
        """`a && b || c`: `done` are the folders to be in if the last one succeeded, `failed` if it did not."""
        done = failed = scope.cwds
        for operator, pipeline in chain.pipelines:
            scope.cwds = failed if operator == "||" else done
            before, after = scope.cwds, self._pipeline(pipeline, scope)
            done, failed = (_union(done, after), before) if operator == "||" else (after, _union(failed, before) if operator else before)
        scope.cwds = _union(done, failed)
        if len(scope.cwds) > _MOST_FOLDERS:
            scope.cwds = ()
            self.note(UNKNOWN, "may be in more folders than are looked at")

    def _pipeline(self, pipeline: Sequence[Simple | Compound], scope: Scope) -> tuple[str, ...]:
        """Judge a pipeline; the folders to be in if it succeeds."""
        if len(pipeline) == 1:
            return self._command(pipeline[0], scope, None)
        stdin = None
        for command in pipeline:
            self.yields = None
            self._command(command, scope.copy(), stdin)
            stdin = Stdin(None, self.yields)
        return scope.cwds

    def _command(self, command: Simple | Compound, scope: Scope, stdin: Stdin | None) -> tuple[str, ...]:
        for redirect in command.redirects:
            stdin = self._redirect(redirect, scope) or stdin
        if isinstance(command, Simple):
            return self._simple(command, scope, stdin)
        if stdin is not None:
            stdin = Stdin()
        inner = scope.copy() if command.kind == "subshell" else scope
        before = scope.cwds
        if command.kind == "for":
            self._for(command, inner)
        else:
            for script in command.scripts:
                self.script(script, inner)
                inner.cwds = _union(before, inner.cwds) if command.kind == "if" else inner.cwds
        if command.kind in ("for", "loop") and scope.cwds != before:
            self.note(UNKNOWN, "changes the folder in each round of a loop")
        return scope.cwds

    def _for(self, loop: Compound, scope: Scope) -> None:
        words = [word for raw in loop.words for word in self.expand(raw, scope)]
        values = list[Word]()
        for word in words:
            if not word.glob:
                values.append(word)
                continue
            names = self.places.matches(word.text, scope.cwds[0]) if len(scope.cwds) == 1 and not self.disturbed else None
            values += [Word("", False)] if names is None else [Word(name) for name in names]
        if len(values) > _MOST_ROUNDS:
            values = [Word("", False)]
        for value in values or [Word("")]:
            scope.variables[loop.name] = value
            self.script(loop.scripts[0], scope)
        scope.variables.pop(loop.name, None)

    @property
    def disturbed(self) -> bool:
        """Whether files may have been made since the directories were looked at."""
        return self.wrote or self.rearranged or self.found.rank > LOW

    def no_options(self, word: Word, scope: Scope) -> bool:
        """Whether no file that a glob becomes can be taken for an option."""
        if word.text[:1] not in ("*", "?", "["):
            return not word.text.startswith("-")
        if self.disturbed or not scope.cwds:
            return False
        names = [self.places.matches(word.text, cwd) for cwd in scope.cwds]
        return all(one is not None and not any(name.startswith("-") for name in one) for one in names)

    def _simple(self, command: Simple, scope: Scope, stdin: Stdin | None) -> tuple[str, ...]:
        self._left -= 1
        if self._left < 0:
            self.note(UNKNOWN, "has more parts than are judged")
            return scope.cwds
        for name, value in command.variables:
            if name == "PYTHONPATH":
                for one in value.split(":"):
                    self.path(Word(one or "."), scope, "takes modules from", self._code)
            elif name == "DJANGO_SETTINGS_MODULE":
                self.note(MEDIUM, "runs the project's own code")
        words = [word for raw in command.words for word in self.expand(raw, scope)]
        if not words:
            return scope.cwds
        return self.run(words, scope, stdin)

    def run(self, words: Sequence[Word], scope: Scope, stdin: Stdin | None = None) -> tuple[str, ...]:
        """Judge a program with its words; the folders to be in if it succeeds."""
        if not words[0].known or words[0].glob or words[0].tree is not None:
            self.note(UNKNOWN, "what it runs is made up while it runs")
            return scope.cwds
        after = self._judge(self, words, scope, stdin)
        return scope.cwds if after is None else after

    def nested(self, text: str, scope: Scope) -> None:
        """Judge a script that another shell is given."""
        try:
            self.script(parse(text), scope.copy())
        except Unjudged as reason:
            self.note(UNKNOWN, f"what it does was not judged: {reason}")

    def _code(self, path: str, cwd: str) -> Finding:
        if self.places.is_inside(path, cwd):
            return Finding(MEDIUM, f"runs code of {path[:80]}")
        return Finding(UNKNOWN, f"runs code from outside of the working directory: {path[:80]}")

    def _redirect(self, redirect: Redirect, scope: Scope) -> Stdin | None:
        if redirect.operator == "<<":
            return Stdin(redirect.text)
        words = self.expand(redirect.target, scope)
        if redirect.operator == "<<<":
            return Stdin(redirect.text)
        if len(words) != 1 or words[0].glob:
            self.note(UNKNOWN, "redirects to a path that is not known beforehand")
        for word in words:
            if word.text.startswith(("/dev/tcp/", "/dev/udp/")):
                self.note(HIGH, "opens a connection")
            elif redirect.operator == "<":
                self.path(word, scope, "reads", self.places.read)
            else:
                self.path(word, scope, "writes to", self.places.write)
        return Stdin() if redirect.operator == "<" else None

    # --- words ---

    def expand(self, raw: Raw, scope: Scope) -> list[Word]:
        """The arguments that a word becomes."""
        if len(raw) == 1 and raw[0].kind == TEXT:
            text: str = raw[0].value
            if "{" not in text:
                return [Word(text, True, _GLOB.search(text) is not None)]
            return [Word(one, True, _GLOB.search(one) is not None) for one in expand_braces(text)]
        pieces, known, split = list[tuple[str, bool]](), True, False
        for kind, value in raw:
            found: str | None = value
            if kind in (OUTPUT, QUOTED_OUTPUT):
                self.script(value, scope.copy())
                found = None
            elif kind in (VARIABLE, QUOTED_VARIABLE):
                found = self._variable(value, scope)
                if found is not None and kind == VARIABLE and not _PLAIN.fullmatch(found):
                    found = None
            if found is None:
                known, split = False, split or kind in (OUTPUT, VARIABLE)
            elif known:
                pieces.append((found, kind == TEXT))
        if not known or _GLOB.search("".join([text for text, bare in pieces if bare])) is None:
            return [Word("".join([text for text, _ in pieces]), known, split=split)]
        return [Word("".join([text if bare else re.sub(r"([*?\[])", r"[\1]", text) for text, bare in pieces]), True, True)]

    def _variable(self, name: str, scope: Scope) -> str | None:
        """A variable's value; None if it is not known."""
        if name in scope.variables:
            value = scope.variables[name]
            return value.text if value.known else None
        if name in ("HOME", "~"):
            return self.places.home or None
        if name == "PWD" and len(scope.cwds) == 1:
            return scope.cwds[0]
        if _SECRET_VARIABLE.fullmatch(name.upper()):
            self.note(HIGH, f"shows or gives away ${name}, which may be a secret")
        elif name not in _SHOWN and name != "PWD":
            self.note(UNKNOWN, f"depends on ${name}, which is not known beforehand")
        return None


def _union(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    """The folders of both; none, which stands for any, if either has none."""
    return one if one == other else tuple(dict.fromkeys(one + other)) if one and other else ()


# --- commands that ran before, and commands that are not parsed ---


@functools.lru_cache(maxsize=1024)
def shell_effect(command: str) -> str:
    """How a command leaves the shell: "changes" if later commands may mean something else, "moves" if it may be in another folder, else ""."""
    try:
        todo, found = list[Chain | Simple | Compound](parse(command)), ""
    except Unjudged:
        return "changes"
    while todo:
        one = todo.pop()
        if isinstance(one, Chain):
            todo += [command for _, pipeline in one.pipelines for command in pipeline]
        elif isinstance(one, Compound):
            todo += [chain for script in one.scripts for chain in script]
        elif one.words:
            words = [literal(raw) for raw in one.words]
            if _changes(words[0], words[1:]):
                return "changes"
            found = "moves" if words[0] == "cd" else found
    return found


def _changes(name: str | None, rest: Sequence[str | None]) -> bool:
    """Whether a program with these words (None: not known) may change the shell that runs it."""
    if name == "command":
        return rest[:1] not in (["-v"], ["-V"])
    if name == "printf":
        return not rest or rest[0] is None or rest[0].startswith("-")
    if name in ("[", "test"):
        return rest[:1] == [None] or "-v" in rest or "-R" in rest
    if name in ("wait", "jobs"):
        return any(word is None or word.startswith("-") for word in rest)
    return name is None or name in _CHANGERS


_ROUGH_WORD = re.compile(r"[;|&()<>`\n]|[^\s;|&()<>`]+")
_ROUGH_HIGH = frozenset(
    [
        "sudo",
        "su",
        "doas",
        "pkexec",
        "mkfs",
        "shred",
        "fdisk",
        "reboot",
        "shutdown",
        "halt",
        "poweroff",
        "nc",
        "ncat",
        "socat",
        "ssh",
        "scp",
        "crontab",
        "chown",
        "mount",
        "useradd",
        "iptables",
        "insmod",
        "killall",
    ]
)


def rough(command: str, places: Places, cwds: Sequence[str]) -> Finding:
    """Dangers that show in the words of a command about which nothing is proven."""
    begins, name = True, ""
    for match in _ROUGH_WORD.finditer(re.sub(r"['\"\\]|\$\{?IFS\}?", lambda found: " " if "IFS" in found[0] else "", command[:20_000])):
        word = match[0]
        if word in ";|&()<>`\n":
            begins, name = begins if word in "<>" else True, "" if word not in "<>" else name
            if word in "<>":
                name = word
            continue
        if begins and word not in ("then", "do", "else", "{", "!", "time"):
            begins, name = False, word.rpartition("/")[2]
            if name in _ROUGH_HIGH:
                return Finding(HIGH, f"{name} may do harm, in a command of which little is known")
        elif name in ("rm", ">") or (word.startswith(("/", "~", ".")) and "/" in word + "/"):
            path = places.home + word[1:] if word.startswith("~") else word
            if name == "rm" and re.fullmatch(r"-\w*[rR]\w*|--rec\w*", word):
                return Finding(HIGH, "deletes folders, in a command of which little is known")
            rule = places.write if name in ("rm", ">") and not word.startswith("-") else places.read
            found = rule(path, cwds[0] if cwds else "/")
            if found.rank == HIGH and "$" not in word:
                return found
            name = "" if name == ">" else name
    return Finding(LOW)
