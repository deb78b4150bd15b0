"""Judging a parsed command: its programs in the order of a shell, with the folders that it may
be in and what earlier parts did."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from holdfast.agent.security import grammar
from holdfast.agent.security.grammar import (
    CommandNode,
    PipelineChain,
    RawWord,
    Redirect,
    Script,
    UnjudgedCommand,
)
from holdfast.agent.security.paths import (
    HIGH,
    LOW,
    MEDIUM,
    UNKNOWN,
    FileNames,
    RiskFinding,
    ShellPaths,
    made_again,
    word_set,
)

_MAX_COMMANDS = 2000  # programs in one command; a loop counts once per round
_MAX_ROUNDS, _MAX_FOLDERS = 64, 8
_GLOB = re.compile(r"[*?]|\[.*\]")
_PLAIN = re.compile(r"[A-Za-z0-9_.,:=@%+/-]+")
# Variables whose value nothing depends on where it is only shown.
_SHOWN = word_set(
    "? PWD USER LOGNAME SHELL PATH LANG LC_ALL TERM OLDPWD HOSTNAME UID EUID PPID RANDOM SECONDS"
    " LINENO SHLVL TMPDIR VIRTUAL_ENV CONDA_PREFIX PYTHONPATH GOPATH JAVA_HOME NODE_ENV EDITOR"
)
_SECRET_VARIABLE = re.compile(r".*(?:KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH|COOKIE).*")
# Builtins that change what later commands mean, or run their words as builtins, and the forms in
# which some do not.
_CHANGERS = word_set(
    ". source eval exec export declare typeset local readonly unset alias unalias set shopt trap"
    " enable hash read mapfile readarray getopts let bind complete compgen compopt history fc"
    " logout pushd popd disown suspend bg fg caller return shift builtin command coproc umask"
    " ulimit times printf wait jobs"
)
_HARMLESS_FORMS = {
    "command": re.compile(r"-[vV] .*"),
    "printf": re.compile(r"(?!-)(?!.*?%[-#0 +'*.\dhlLjzt]*n).+", re.DOTALL),
    "wait": re.compile(r""),
    "jobs": re.compile(r""),
    "set": re.compile(r"(?:(?:[-+][eux]*o?|pipefail|errexit|nounset|xtrace)(?: |$))+"),
}
_HARMLESS_TEST = re.compile(r"(?!(?:.* )?(?:-[vR]|-eq|-ne|-lt|-le|-gt|-ge|=~)(?: |$)).*", re.DOTALL)


class ShellWord(NamedTuple):
    """An argument as a program gets it, as far as it is known.

    Args:
        text: The argument; a pattern if `glob`; its beginning if it is not `known`.
        known: Whether `text` is all of it.
        glob: Whether the shell may replace it by the names of files.
        tree: Set if the argument is some path below the folder `text`: the names that it may have.
        split: Whether what is not known of it may become several arguments, or none.
    """

    text: str
    known: bool = True
    glob: bool = False
    tree: FileNames | None = None
    split: bool = False


UNKNOWN_WORD = ShellWord("", known=False, split=True)


class ShellInput(NamedTuple):
    """The input of a program. `names`: each line is a path below one of these. `document`: the
    input stands in the command."""

    names: tuple[ShellWord, ...] | None = None
    document: bool = False


class ShellScope:
    """The folders that a command may be in (none: not known), and the variables that it has set."""

    __slots__ = ("cwds", "variables")

    def __init__(self, cwds: tuple[str, ...], variables: dict[str, ShellWord]) -> None:
        self.cwds, self.variables = cwds, variables

    def copy(self) -> ShellScope:
        """Return another one, for a subshell."""
        return ShellScope(self.cwds, dict(self.variables))


ProgramJudge = Callable[
    ["ScriptReader", Sequence[ShellWord], ShellScope, ShellInput | None], tuple[str, ...] | None
]


class ScriptReader:
    """Judges one command and keeps the highest risk.

    Attributes:
        found: The highest risk up to now.
        rearranged: Set by programs that may put symlinks anywhere: what a path means after them is
            not known.
        wrote: Whether files may have been made since the directories were looked at.
        yields: Set by a program whose output is names of files below these.
    """

    __slots__ = ("_judge", "_left", "found", "hosts", "paths", "rearranged", "wrote", "yields")

    def __init__(self, paths: ShellPaths, hosts: Sequence[str], judge: ProgramJudge) -> None:
        self.paths, self.hosts, self._judge = paths, hosts, judge
        self.found, self.rearranged, self.wrote = RiskFinding(LOW), False, False
        self.yields: tuple[ShellWord, ...] | None = None
        self._left = _MAX_COMMANDS

    def read(self, command: str, cwds: tuple[str, ...], before: Sequence[str] = ()) -> RiskFinding:
        """Judge a command that begins in one of `cwds`; the commands `before` run first."""
        scope = ShellScope(cwds, {})
        for one in before:
            self.script(grammar.parse(one), scope)
            self.wrote, self.found = self.wrote or self.found.rank > LOW, RiskFinding(LOW)
        if reason := grammar.hidden(command):
            return RiskFinding(HIGH, reason)
        self.nested(command, scope)
        if self.paths.workdir and not all(map(self.paths.inside, scope.cwds)):
            self.note(MEDIUM, "leaves the shell outside of the working directory")
        if self.found.rank == UNKNOWN:
            return max(self.found, _apparent_danger(command, self.paths, scope.cwds))
        return self.found

    def nested(self, text: str, scope: ShellScope) -> None:
        """Judge the text of a script."""
        try:
            self.script(grammar.parse(text), scope)
        except UnjudgedCommand as reason:
            self.note(UNKNOWN, f"what it does was not judged: {reason}")

    def note(self, rank: int, reason: str) -> None:
        """Keep this risk if it is higher than the present one."""
        if rank > self.found.rank or not self.found.reason:
            self.found = RiskFinding(rank, reason)

    @property
    def disturbed(self) -> bool:
        """Whether files may have been made since the directories were looked at."""
        return self.wrote or self.rearranged or self.found.rank > LOW

    def use_path(self, word: ShellWord, scope: ShellScope, kind: str, act: str) -> None:
        """Judge the use of a path: of a `kind` of `ShellPaths.judge`, or to "search" a folder or
        "delete" it with all that is in it."""
        path, paths = word.text, self.paths
        if not word.known:
            self.note(UNKNOWN, f"{act} a path that is not known beforehand")
            return
        shown = repr(path[:80])
        if self.rearranged and kind != "use" and not path.startswith(("/usr/", "/dev/null")):
            self.note(UNKNOWN, f"{act} {shown} after a command that may have made a link of it")
        elif not scope.cwds and not path.startswith("/"):
            self.note(UNKNOWN, f"{act} {shown} in a folder that is not known beforehand")
        for cwd in scope.cwds or ("/",):
            matches = paths.matches(path, cwd) if word.glob else [path]
            if matches is None or (word.glob and not paths.is_inside(_GLOB.split(path)[0], cwd)):
                self.note(UNKNOWN, f"{act} more paths than are looked at: {path[:80]}")
            for one in matches or ():
                if kind == "search" or (word.tree is not None and kind == "read"):
                    self.note(*paths.read_all(one, cwd, word.tree or FileNames(), act))
                else:
                    self.note(*paths.judge("write" if kind == "delete" else kind, one, cwd, act))
                name = one.rstrip("/").rpartition("/")[2]
                if kind == "delete" and (
                    not made_again(name) or paths.real(one, cwd) == paths.workdir
                ):
                    self.note(HIGH, f"deletes a folder and all that is in it: {one[:80]}")

    def is_odd(self, word: ShellWord, scope: ShellScope, odd: str = r"[\s'\"\\]|^-") -> bool:
        """Return whether a name that a word stands for may be taken for several words, or for an
        option."""
        if self.disturbed or not scope.cwds:
            return True
        for cwd in scope.cwds:
            if word.tree is None and word.text != ".":
                names = self.paths.matches(word.text, cwd)
                if names is None or any(re.search(odd, name) for name in names):
                    return True
            else:
                scan = self.paths.scan(
                    self.paths.real(word.text, cwd), word.tree or FileNames(), True
                )
                if scan.odd or not scan.whole:
                    return True
        return False

    def run(
        self, words: Sequence[ShellWord], scope: ShellScope, stdin: ShellInput | None = None
    ) -> None:
        """Judge a program with its words."""
        if not words[0].known or words[0].glob or words[0].tree is not None:
            self.note(UNKNOWN, "what it runs is made up while it runs")
            return
        self.yields = None
        after = self._judge(self, words, scope, stdin)
        scope.cwds = scope.cwds if after is None else after

    def modules(self, folders: ShellWord, scope: ShellScope) -> None:
        """Judge folders, with `:` between them, that Python takes modules from."""
        for folder in folders.text.split(":"):
            inside = folders.known and all(
                self.paths.is_inside(folder or ".", cwd) for cwd in scope.cwds or ("/",)
            )
            self.note(MEDIUM if inside else UNKNOWN, f"takes modules from {folder[:80] or '.'}")

    # --- scripts ---

    def script(self, script: Script, scope: ShellScope, certain: bool = True) -> None:
        """Judge the commands of a script one after the other. Unless its run is `certain`, nothing
        is known of the variables that it sets."""
        for chain in script:
            self._chain(chain, scope.copy() if chain.background else scope, certain)

    def _chain(self, chain: PipelineChain, scope: ShellScope, certain: bool) -> None:
        seen = scope.cwds
        for index, (operator, pipeline) in enumerate(chain.pipelines):
            scope.cwds = seen if operator == "||" else scope.cwds
            if len(pipeline) == 1:
                self._command(pipeline[0], scope, None, certain and index == 0)
            else:
                stdin = None
                for command in pipeline:
                    self.yields = None
                    self._command(command, scope.copy(), stdin, certain)
                    stdin = ShellInput(None if command.body else self.yields)
            both = tuple(dict.fromkeys(seen + scope.cwds))
            seen = both if seen and scope.cwds and len(both) <= _MAX_FOLDERS else ()
        scope.cwds = seen

    def _command(
        self, command: CommandNode, scope: ShellScope, stdin: ShellInput | None, certain: bool
    ) -> None:
        for redirect in command.redirects:
            stdin = self._redirect(redirect, scope) or stdin
        if command.body is not None and command.variables:
            self._loop(command, command.body, scope)
        elif command.body is not None:
            self.script(command.body, scope.copy())
        if command.body is not None:
            return
        self._left -= 1
        if self._left < 0:
            self.note(UNKNOWN, "has more parts than are judged")
            return
        for name, raw in command.variables:
            value = self.value(raw, scope)
            if not command.words:
                scope.variables[name] = value if certain else UNKNOWN_WORD
            if name == "PYTHONPATH":
                self.modules(value, scope)
            elif name.startswith(("DJANGO", "FLASK")):
                self.note(MEDIUM, "runs the project's own code")
        words = [word for raw in command.words for word in self.expand(raw, scope)]
        if words:
            self.run(words, scope, stdin)

    def _loop(self, loop: CommandNode, body: Script, scope: ShellScope) -> None:
        values = list[ShellWord]()
        for word in [word for raw in loop.words for word in self.expand(raw, scope)]:
            known = len(scope.cwds) == 1 and not self.disturbed
            names = self.paths.matches(word.text, scope.cwds[0]) if word.glob and known else None
            values += [ShellWord(name) for name in names or ()]
            values += [UNKNOWN_WORD if word.glob else word] if names is None else []
        cwds, (name, _) = scope.cwds, loop.variables[0]
        for value in values if len(values) <= _MAX_ROUNDS else [UNKNOWN_WORD]:
            scope.variables[name] = value
            self.script(body, scope, certain=False)
        if scope.cwds != cwds:
            self.note(UNKNOWN, "changes the folder in each round of a loop")
        scope.variables[name] = UNKNOWN_WORD

    def _redirect(self, redirect: Redirect, scope: ShellScope) -> ShellInput | None:
        if redirect.operator == "<<":
            return ShellInput(document=True)
        if redirect.operator == ">&":
            return None
        words, reads = self.expand(redirect.target, scope), redirect.operator == "<"
        if len(words) != 1 or words[0].glob:
            self.note(UNKNOWN, "redirects to a path that is not known beforehand")
        for word in words:
            if word.text.startswith(("/dev/tcp/", "/dev/udp/")):
                self.note(HIGH, "opens a connection")
            kind, act = ("read", "reads") if reads else ("write", "writes to")
            self.use_path(word, scope, kind, act)
        return ShellInput() if reads else None

    # --- words ---

    def value(self, raw: RawWord, scope: ShellScope) -> ShellWord:
        """Return the value that a variable is given: nothing in it is split or replaced."""
        return self.expand(
            (grammar.WordPart("text", "", True), *[part._replace(quoted=True) for part in raw]),
            scope,
        )[0]

    def expand(self, raw: RawWord, scope: ShellScope) -> list[ShellWord]:
        """Return the arguments that a word becomes."""
        if len(raw) == 1 and raw[0].kind == "text" and not raw[0].quoted:
            texts = grammar.expand_braces(raw[0].value) if "{" in raw[0].value else [raw[0].value]
            return [ShellWord(text, True, _GLOB.search(text) is not None) for text in texts]
        pieces, known, split = list[tuple[str, bool]](), True, False
        for kind, text, quoted in raw:
            value: str | None = text if kind == "text" else None
            if kind == "variable":
                value = self._variable(text, scope)
                if value is not None and not quoted and not _PLAIN.fullmatch(value):
                    value = None
            if value is None:
                known, split = False, split or not quoted
            elif known:
                pieces.append((value, kind == "text" and not quoted))
        whole = "".join([text for text, _ in pieces])
        if not known or not _GLOB.search("".join([text for text, bare in pieces if bare])):
            return [ShellWord(whole, known, split=split)]
        escaped = [text if bare else re.sub(r"([*?\[])", r"[\1]", text) for text, bare in pieces]
        return [ShellWord("".join(escaped), glob=True)]

    def _variable(self, name: str, scope: ShellScope) -> str | None:
        """Return a variable's value; None if it is not known."""
        if name in scope.variables:
            return scope.variables[name].text if scope.variables[name].known else None
        if name == "HOME" or (name == "PWD" and len(scope.cwds) == 1):
            return (self.paths.home or None) if name == "HOME" else scope.cwds[0]
        if _SECRET_VARIABLE.fullmatch(name.upper()):
            self.note(HIGH, f"shows or gives away ${name}, which may be a secret")
        elif name not in _SHOWN:
            self.note(UNKNOWN, f"depends on ${name}, which is not known beforehand")
        return None


# --- commands that ran before, and commands about which nothing is proven ---


@functools.lru_cache(maxsize=1024)
def shell_effect(command: str) -> str:
    """Return a command's effect on its shell: "changes" if later commands may mean something
    else, "moves" if the shell may be in another folder, else ""."""
    try:
        todo, effect = list(grammar.parse(command)), ""
    except UnjudgedCommand:
        return "changes"
    while todo:
        for one in [one for _, pipeline in todo.pop().pipelines for one in pipeline]:
            todo += one.body or []
            if not one.words and any(name == "PYTHONPATH" for name, _ in one.variables):
                return "changes"
            name, *rest = [grammar.literal(raw) for raw in one.words] or [""]
            if one.body is None and changes(name, rest):
                return "changes"
            effect = "moves" if name == "cd" else effect
    return effect


def changes(name: str | None, rest: Sequence[str | None]) -> bool:
    """Return whether a program with these words (None: not known) may change the shell that runs
    it."""
    if name in ("[", "[[", "test"):
        return not _HARMLESS_TEST.fullmatch(" ".join([word or "-v" for word in rest]))
    if name in _HARMLESS_FORMS:
        unknown = None in (rest[:1] if name == "printf" else rest)
        form = _HARMLESS_FORMS[name]
        return unknown or not form.fullmatch(" ".join([word or "" for word in rest]))
    return name is None or name in _CHANGERS


_DANGER = re.compile(
    r"(?:^|[;|&(){`!\n]|\b(?:then|do|else|env|exec|command|nohup|eval|xargs) )[ \t]*"
    r"(?:[^\s;|&()]*/)?(?:(sudo|su|doas|mkfs[.\w]*|shred|nc|ncat|socat|ssh|scp|reboot|shutdown"
    r"|rm[ \t]+(?:-[^\s;]+[ \t]+)*-\w*[rR]\w*|rm[ \t]+--rec\w*)(?=\s|$)"
    r"|((?:ba|z|da)?sh)[ \t]+<(?:\(|<<))"
)


def _apparent_danger(command: str, paths: ShellPaths, cwds: Sequence[str]) -> RiskFinding:
    """Return dangers that show in the words of a command about which nothing is proven."""
    text = re.sub(r"['\"\\]", "", command[:20_000])
    if match := _DANGER.search(text):
        name = (match[1] or match[2])[:20]
        return RiskFinding(HIGH, f"{name} may do harm, in a command of which little is known")
    words = re.findall(r"(>\|?[ \t]*|)(?<![^\s;|&()<>`=])([/~.][^\s;|&()<>`$]*)", text)
    for into, word in words[:200]:
        path = paths.home + word[1:] if word.startswith("~") else word
        kind, act = ("write", "may write to") if into else ("read", "may read")
        found = paths.judge(kind, path, cwds[0] if cwds else "/", act)
        if found.rank == HIGH:
            return found
    return RiskFinding(LOW)
