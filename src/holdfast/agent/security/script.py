"""Judging a parsed command: its programs in the order of a shell, with the folders that it may
be in and what earlier parts did."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence

from holdfast.agent.security import grammar
from holdfast.agent.security.grammar import ANYTHING, Command, Script, ShellWord, UnjudgedCommand
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
from holdfast.runtime.confinement import Confinement

_MAX_CALLS = 2000  # of programs in one command; one counts once for each folder and turn of a loop
_MAX_FOLDERS = 8
# Builtins that change what later commands mean, or run their words as builtins, and the forms in
# which some do not.
_CHANGERS = word_set(
    ". source eval exec export declare typeset local readonly unset alias unalias set shopt trap"
    " enable hash read mapfile readarray getopts let bind complete compgen compopt history fc"
    " logout pushd popd disown suspend bg fg caller return shift builtin command coproc umask"
    " ulimit times printf wait jobs break continue test [ [["
)
_OPERAND = r"(?!-)[^\n\[]*"
# Within `[[` a number is arithmetic, which runs the subscripts of names.
_TESTS = (
    rf"(?:!\n)?(?:(?:-[bcdefghknprswxzLNOS]\n)?{_OPERAND}|{_OPERAND}\n(?:=|==|!=|-nt|-ot)\n{_OPERAND}"
    r"|[\d\x01]+\n-(?:eq|ne|lt|le|gt|ge)\n[\d\x01]+)"
)
_HARMLESS_FORMS = {
    "command": r"-[vV]\n.*",
    "printf": r"(?!-)(?!(?s:.*?)%[-#0 +'*.\dhlLjzt]*n)(?s:.+)",
    "wait": r"\x02?",
    "jobs": r"",
    "set": r"(?:(?:[-+][eux]*o?|pipefail|errexit|nounset|xtrace)(?:\n|$))+",
    "test": _TESTS,
    "[": rf"{_TESTS}\n\]",
    "[[": rf"{_TESTS}\n\]\]",
}
# Judges a program with its words in a folder ("": not known) and its input ("", or "pipe" or
# "document" for one that is redirected). Returns the folder that the shell is in afterwards.
ProgramJudge = Callable[["ScriptReader", Sequence[ShellWord], str, str], str]


class ScriptReader:
    """Judges one command and keeps the highest risk.

    Attributes:
        found: The highest risk up to now.
        confinement: The bounds of the sandbox that the command runs in; None without one.
        rearranged: Set by programs that may put symlinks anywhere: what a path means after them is
            not known.
        wrote: Whether files may have been made since the directories were looked at.
        feeds: The words of the programs before this one in its pipeline.
    """

    def __init__(
        self,
        paths: ShellPaths,
        hosts: Sequence[str],
        judge: ProgramJudge,
        confinement: Confinement | None = None,
    ) -> None:
        self.paths, self.hosts, self.judge = paths, hosts, judge
        self.confinement = confinement
        self.found, self.rearranged, self.wrote = RiskFinding(LOW), False, False
        self.feeds = list[Sequence[ShellWord]]()
        self._left, self._variables, self._set = _MAX_CALLS, dict[str, ShellWord](), list[str]()

    def read(self, command: str, cwds: Sequence[str], before: Sequence[str] = ()) -> RiskFinding:
        """Judge a command that begins in one of `cwds` ("": not known); the commands `before` run
        first."""
        if reason := grammar.hidden(command):
            return RiskFinding(HIGH, reason)
        try:
            for one in before:
                cwds, self._variables = self._script(grammar.parse(one, self.paths.home), cwds), {}
                self.wrote, self.found = self.wrote or self.found.rank > LOW, RiskFinding(LOW)
            cwds = self._script(grammar.parse(command, self.paths.home), cwds)
        except UnjudgedCommand as reason:
            self.note(UNKNOWN, f"what it does was not judged: {reason}")
        if self.paths.workdir and not all(map(self.paths.inside, filter(None, cwds))):
            self.note(MEDIUM, "leaves the shell outside of the working directory")
        if self.found.rank == UNKNOWN:
            return max(self.found, _apparent_danger(command, self.paths, cwds[0]))
        return self.found

    def note(self, rank: int, reason: str) -> None:
        """Keep this risk if it is higher than the present one."""
        if rank > self.found.rank or not self.found.reason:
            self.found = RiskFinding(rank, reason)

    def use_path(
        self, word: ShellWord, cwd: str, kind: str, act: str, names: FileNames | None = None
    ) -> None:
        """Judge the use of a path: of a `kind` of `ShellPaths.judge`, or to "delete" it with all
        that is in it. With `names` all files are read that have these names in a folder."""
        for path in self._named(word, cwd, kind, act):
            if names is not None:
                self.note(*self.paths.read_all(path, cwd, names, act))
                continue
            self.note(*self.paths.judge("write" if kind == "delete" else kind, path, cwd, act))
            name = path.rstrip("/").rpartition("/")[2]
            if kind == "delete" and (
                not made_again(name) or self.paths.real(path, cwd) == self.paths.workdir
            ):
                self.note(HIGH, f"deletes a folder and all that is in it: {path[:80]}")

    def _named(self, word: ShellWord, cwd: str, kind: str, act: str) -> Sequence[str]:
        """Return the paths that a word may name."""
        path, shown = word.text, repr(word.text[:80])
        if path and min(path) <= grammar.JOB:
            self.note(UNKNOWN, f"{act} what is not known beforehand")
            return ()
        if self.rearranged and kind != "use" and not path.startswith(("/usr/", "/dev/null")):
            self.note(UNKNOWN, f"{act} {shown} after a command that may have made a link of it")
        elif not cwd and not path.startswith("/"):
            self.note(UNKNOWN, f"{act} {shown} in a folder that is not known beforehand")
        if not word.glob:
            return [path]
        matches = self.paths.matches(path, cwd)
        if matches is None or not self.paths.is_inside(re.split(r"[*?\[]", path)[0], cwd):
            self.note(UNKNOWN, f"{act} more paths than are looked at: {path[:80]}")
        return matches or ()

    def may_be_option(self, word: ShellWord, cwd: str) -> bool:
        """Return whether a glob may become a word that is taken for an option."""
        if not word.glob or word.text[0] not in "*?[":
            return False
        matches = self.paths.matches(word.text, cwd)
        changed = self.wrote or self.rearranged or self.found.rank > LOW
        return changed or not cwd or matches is None or any(one[0] == "-" for one in matches)

    # --- scripts ---

    def _script(self, script: Script, cwds: Sequence[str]) -> Sequence[str]:
        """Judge pipelines one after the other, in each of the folders that the shell may be in.
        Return those that it may be in afterwards."""
        now, unsure = cwds, len(self._set)  # where the pipeline before has succeeded
        for pipeline in script:
            if pipeline.operator != "&&":
                now, unsure = cwds, self._forget(unsure)
            begin = len(self._set)
            now = list(dict.fromkeys([to for cwd in now for to in self._pipeline(pipeline, cwd)]))
            if pipeline.operator == "||":
                self._forget(begin)
            elif pipeline.operator == ";":  # what it has set is set whatever happens
                unsure = len(self._set)
            cwds = list(dict.fromkeys([*cwds, *now]))
            if len(cwds) > _MAX_FOLDERS:
                now = cwds = [""]
        self._forget(unsure)
        return cwds

    def _forget(self, begin: int) -> int:
        """Forget the variables that were set since a moment: they may have been, or not."""
        for name in self._set[begin:]:
            self._variables.pop(name, None)
        return len(self._set)

    def _pipeline(self, pipeline: grammar.ShellPipeline, cwd: str) -> Sequence[str]:
        """Judge the commands of a pipeline. Return the folders that it may leave the shell in."""
        alone, outer = len(pipeline.calls) == 1 and not pipeline.background, self.feeds
        before, after, self.feeds = dict(self._variables), list[str](), list[Sequence[ShellWord]]()
        for index, call in enumerate(pipeline.calls):
            after = self._call(call, cwd, "pipe" if index else "")
            if not alone:
                self._variables = dict(before)
        self.feeds = outer
        return after if alone else [cwd]

    def _block(self, call: Command, cwd: str) -> Sequence[str]:
        """Judge a block. Return the folders that it may leave the shell in."""
        if call.kind == "(":
            return self._subshell(call.scripts[0], cwd)
        begin, after = len(self._set), [cwd]
        if call.kind == "{":
            return self._script(call.scripts[0], after)
        turns: list[ShellWord | None] = [None] * (1 if call.kind == "if" else 2)
        if call.kind == "for":
            turns = [one for word in call.words for one in self._expand(word, cwd)]
        for value in turns:
            for script in call.scripts:  # conditions, and what they decide about
                self._forget(begin)
                if value is not None:
                    self._known_names(value, cwd)
                    self._set.append(call.variables[0][0])
                    self._variables[self._set[-1]] = value
                after = list(dict.fromkeys([*after, *self._script(script, after)]))
        self._forget(begin)
        if call.kind in ("while", "until") and after != [cwd]:
            self.note(UNKNOWN, "goes to another folder at each turn of a loop")
        return after

    def _subshell(self, script: Script, cwd: str) -> Sequence[str]:
        before = dict(self._variables)
        self._script(script, [cwd])
        self._variables = before
        return [cwd]

    def _known_names(self, word: ShellWord, cwd: str) -> None:
        """Raise `UnjudgedCommand` if names that a pattern stands for may be several words."""
        if not word.glob or ANYTHING in word.text:
            return
        changed = self.wrote or self.rearranged or self.found.rank > LOW or not cwd
        for name in ["-"] if changed else self.paths.matches(word.text, cwd) or ["-"]:
            if not re.fullmatch(r"(?!-)[\w./@%+,:=*?\[\]-]+", name):
                raise UnjudgedCommand("it goes through files whose names are not known")

    def _expand(self, word: grammar.Word, cwd: str, value: bool = False) -> list[ShellWord]:
        """Return the words that a shell makes of one; as `value` of a variable it makes one."""
        pieces = list[tuple[str, bool]]()
        for kind, what, quoted in word:
            text, bare = ANYTHING, True
            if not isinstance(what, str):
                self._subshell(what, cwd)
            elif kind not in ("name", "braced"):
                text, bare = what, kind == "bare"
            elif what in self._variables:
                text, bare = self._variables[what].text, self._variables[what].glob or not quoted
                split = " " in text or "\n" in text
                odd = not re.fullmatch(r"[\w./:=@%+,^*?\0-\2 \n-]*", text)
                if not quoted and not value and (odd or split):
                    if odd or len(word) > 1:
                        raise UnjudgedCommand(f"it splits the value of {what}")
                    return [grammar.joined([(one, True)]) for one in text.split()]
            else:
                raise UnjudgedCommand(f"it uses the variable {what[:40]}")
            pieces.append((text, bare))
        text = "".join([text for text, _ in pieces])
        if value:
            return [ShellWord(text, ANYTHING in text)]
        if not text and all(kind in ("name", "braced") for kind, _, _ in word):
            return []
        whole = grammar.joined(pieces)
        return [ShellWord(whole.text, True) if ANYTHING in text else whole]

    def _call(self, call: Command, cwd: str, stdin: str) -> Sequence[str]:
        """Judge a program or a block. Return the folders that it may leave the shell in."""
        for redirect in call.redirects:
            stdin = self._redirect(redirect, cwd) or stdin
        if call.kind:
            self.feeds.append(())
            return self._block(call, cwd)
        self._left -= 1
        if self._left < 0:
            raise UnjudgedCommand("it has more parts than are judged")
        for name, template in call.variables:
            value = self._expand(template, cwd, value=True)[0]
            if not call.words:
                self._set.append(name)
                self._variables[name] = value._replace(glob=False)
            elif name == "PYTHONPATH":  # Python takes modules from these folders
                for folder in value.text.split(":"):
                    inside = self.paths.is_inside(folder or ".", cwd or "/")
                    self.note(MEDIUM if inside else UNKNOWN, f"takes modules from {folder[:80]}")
        words = [one for word in call.words for one in self._expand(word, cwd)]
        fed = any(redirect.operator[0] == "<" for redirect in call.redirects)
        after = self.judge(self, words, cwd, stdin) if words else cwd
        self.feeds.append(() if fed else words)
        return [after]

    def _redirect(self, redirect: grammar.Redirect, cwd: str) -> str:
        """Judge a redirection. Return the kind of input that it gives to the program."""
        words = self._expand(redirect.target, cwd) if redirect.target else []
        if redirect.operator in ("<<", "<<<", ">&"):
            return "document" if redirect.operator[0] == "<" else ""
        target = words[0] if len(words) == 1 else ShellWord(ANYTHING, True)
        if target.glob:
            self.note(UNKNOWN, "redirects to a path that is not known beforehand")
        if target.text.startswith(("/dev/tcp/", "/dev/udp/")):
            self.note(HIGH, "opens a connection")
        reads = redirect.operator == "<"
        kind, act = ("read", "reads") if reads else ("write", "writes to")
        self.use_path(target, cwd, kind, act)
        return "pipe" if reads else ""


# --- commands that ran before, and commands about which nothing is proven ---


@functools.lru_cache(maxsize=1024)
def shell_effect(command: str) -> str:
    """Return a command's effect on its shell: "changes" if later commands may mean something
    else, "moves" if the shell may be in another folder, else ""."""
    try:
        script, effect = grammar.parse(command, "/"), ""
    except UnjudgedCommand:
        return "changes"
    for call in _programs(script):
        words = [grammar.fixed(one) for one in call]
        # In a test a word that is not known is no subscript if the command has none.
        if words[0].text in ("test", "[", "[[") and not re.search(
            r"[*?]|\$\(|\[(?![\[ ])", command
        ):
            words = [one if not one.glob else ShellWord("x") for one in words]
        if changes(words):
            return "changes"
        effect = "moves" if words[0].text == "cd" else effect
    return effect


def _programs(script: Script) -> Iterator[Sequence[grammar.Word]]:
    for call in [call for pipeline in script for call in pipeline.calls]:
        yield from [call.words] if call.words and not call.kind else []
        yield from [words for part in call.scripts for words in _programs(part)]


def changes(words: Sequence[ShellWord]) -> bool:
    """Return whether a program with its words may change the shell that runs it."""
    name, *rest = words
    texts = [word.text for word in rest]
    if name.text == "export":
        set_to = [text.partition("=") for text in texts]
        return not rest or not all(dash and grammar.harmless(one, to) for one, dash, to in set_to)
    if (form := _HARMLESS_FORMS.get(name.text)) is None:
        return name.text in _CHANGERS
    known = not any(word.glob for word in (rest[:1] if name.text == "printf" else rest))
    return not known or not re.fullmatch(form, "\n".join(texts))


_DANGER = (
    r"(?:^|[;|&(){`!\n]|(?:\b(?:then|do|else|env|exec|command|nohup|eval|xargs)| -c) )[ \t]*"
    r"(?:[^\s;|&()]*/)?(?:(sudo|su|doas|mkfs[.\w]*|shred|nc|ncat|socat|ssh|scp|reboot|shutdown"
    r"|rm[ \t]+(?:-[^\s;]+[ \t]+)*-\w*[rR]\w*|rm[ \t]+--rec\w*)(?=\s|$)"
    r"|((?:ba|z|da)?sh)[ \t]+<(?:\(|<<))"
)
_SECRET_VARIABLE = r"(?i)\$\{?(\w*?(?:KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH|COOKIE)\w{0,40})"


def _apparent_danger(command: str, paths: ShellPaths, cwd: str) -> RiskFinding:
    """Return dangers that show in the words of a command about which nothing is proven."""
    text = re.sub(r"['\"\\]", "", command[:20_000])
    if match := re.search(_DANGER, text):
        name = (match[1] or match[2])[:20]
        return RiskFinding(HIGH, f"{name} may do harm, in a command of which little is known")
    if match := re.search(_SECRET_VARIABLE, text):
        return RiskFinding(HIGH, f"shows or gives away ${match[1][:40]}, which may be a secret")
    words = re.findall(r"(>\|?[ \t]*|)(?<![^\s;|&()<>`=])([/~.][^\s;|&()<>`$]*)", text)
    for into, word in words[:200]:
        path = paths.home + word[1:] if word.startswith("~") else word
        kind, act = ("write", "may write to") if into else ("read", "may read")
        found = paths.judge(kind, path, cwd or "/", act)
        if found.rank == HIGH:
            return found
    return RiskFinding(LOW)
