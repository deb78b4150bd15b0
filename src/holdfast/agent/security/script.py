"""Judging a parsed command: its programs in the order of a shell, with the folders that it may
be in and what earlier parts did."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence

from holdfast.agent.security import grammar
from holdfast.agent.security.grammar import ShellWord, UnjudgedCommand
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

_MAX_CALLS = 2000  # of programs in one command; one counts once for each folder
_MAX_FOLDERS = 8
# Builtins that change what later commands mean, or run their words as builtins, and the forms in
# which some do not.
_CHANGERS = word_set(
    ". source eval exec export declare typeset local readonly unset alias unalias set shopt trap"
    " enable hash read mapfile readarray getopts let bind complete compgen compopt history fc"
    " logout pushd popd disown suspend bg fg caller return shift builtin command coproc umask"
    " ulimit times printf wait jobs test [ [["
)
_HARMLESS_FORMS = {
    "command": re.compile(r"-[vV] .*"),
    "printf": re.compile(r"(?!-)(?!.*?%[-#0 +'*.\dhlLjzt]*n).+", re.DOTALL),
    "wait": re.compile(r""),
    "jobs": re.compile(r""),
    "set": re.compile(r"(?:(?:[-+][eux]*o?|pipefail|errexit|nounset|xtrace)(?: |$))+"),
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
    """

    __slots__ = (
        *("_left", "confinement", "found", "hosts", "judge", "paths", "rearranged", "wrote"),
    )

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
        self._left = _MAX_CALLS

    def read(self, command: str, cwds: Sequence[str], before: Sequence[str] = ()) -> RiskFinding:
        """Judge a command that begins in one of `cwds` ("": not known); the commands `before` run
        first."""
        if reason := grammar.hidden(command):
            return RiskFinding(HIGH, reason)
        try:
            for one in before:
                cwds = self._script(grammar.parse(one, self.paths.home), cwds)
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

    def use_path(self, word: ShellWord, cwd: str, kind: str, act: str) -> None:
        """Judge the use of a path: of a `kind` of `ShellPaths.judge`, or to "delete" it with all
        that is in it."""
        for path in self._named(word, cwd, kind, act):
            self.note(*self.paths.judge("write" if kind == "delete" else kind, path, cwd, act))
            name = path.rstrip("/").rpartition("/")[2]
            if kind == "delete" and (
                not made_again(name) or self.paths.real(path, cwd) == self.paths.workdir
            ):
                self.note(HIGH, f"deletes a folder and all that is in it: {path[:80]}")

    def search(self, word: ShellWord, cwd: str, names: FileNames, act: str) -> None:
        """Judge reading the files with these names in a folder, or a file."""
        for path in self._named(word, cwd, "search", act):
            self.note(*self.paths.read_all(path, cwd, names, act))

    def _named(self, word: ShellWord, cwd: str, kind: str, act: str) -> Sequence[str]:
        """Return the paths that a word may name."""
        path, shown = word.text, repr(word.text[:80])
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

    def _script(
        self, script: Sequence[grammar.ShellPipeline], cwds: Sequence[str]
    ) -> Sequence[str]:
        """Judge pipelines one after the other, in each of the folders that the shell may be in.
        Return those that it may be in afterwards."""
        now = cwds  # where the pipeline before has succeeded
        for pipeline in script:
            now = now if pipeline.operator == "&&" else cwds
            now = list(dict.fromkeys([self._pipeline(pipeline, cwd) for cwd in now]))
            cwds = list(dict.fromkeys([*cwds, *now]))
            if len(cwds) > _MAX_FOLDERS:
                now = cwds = [""]
        return cwds

    def _pipeline(self, pipeline: grammar.ShellPipeline, cwd: str) -> str:
        """Judge the programs of a pipeline. Return the folder that it leaves the shell in."""
        after, alone = cwd, len(pipeline.calls) == 1 and not pipeline.background
        for index, call in enumerate(pipeline.calls):
            after = self._call(call, cwd, "pipe" if index else "")
        return after if alone else cwd

    def _call(self, call: grammar.ProgramCall, cwd: str, stdin: str) -> str:
        for redirect in call.redirects:
            stdin = self._redirect(redirect, cwd) or stdin
        self._left -= 1
        if self._left < 0:
            self.note(UNKNOWN, "has more parts than are judged")
            return cwd
        for name, value in call.variables:
            if name == "PYTHONPATH":  # Python takes modules from these folders
                for folder in value.split(":"):
                    inside = self.paths.is_inside(folder or ".", cwd or "/")
                    self.note(MEDIUM if inside else UNKNOWN, f"takes modules from {folder[:80]}")
            elif name.startswith(("DJANGO", "FLASK")):
                self.note(MEDIUM, "runs the project's own code")
        return self.judge(self, call.words, cwd, stdin) if call.words else cwd

    def _redirect(self, redirect: grammar.Redirect, cwd: str) -> str:
        """Judge a redirection. Return the kind of input that it gives to the program."""
        if redirect.operator == "<<":
            return "document"
        if redirect.operator == ">&":
            return ""
        target, reads = redirect.target, redirect.operator == "<"
        if target.glob:
            self.note(UNKNOWN, "redirects to a path that is not known beforehand")
        if target.text.startswith(("/dev/tcp/", "/dev/udp/")):
            self.note(HIGH, "opens a connection")
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
    for call in [call for pipeline in script for call in pipeline.calls if call.words]:
        if changes(call.words):
            return "changes"
        effect = "moves" if call.words[0].text == "cd" else effect
    return effect


def changes(words: Sequence[ShellWord]) -> bool:
    """Return whether a program with its words may change the shell that runs it."""
    name, *rest = words
    if form := _HARMLESS_FORMS.get(name.text):
        known = not any(word.glob for word in (rest[:1] if name.text == "printf" else rest))
        return not known or not form.fullmatch(" ".join([word.text for word in rest]))
    return name.text in _CHANGERS


_DANGER = re.compile(
    r"(?:^|[;|&(){`!\n]|(?:\b(?:then|do|else|env|exec|command|nohup|eval|xargs)| -c) )[ \t]*"
    r"(?:[^\s;|&()]*/)?(?:(sudo|su|doas|mkfs[.\w]*|shred|nc|ncat|socat|ssh|scp|reboot|shutdown"
    r"|rm[ \t]+(?:-[^\s;]+[ \t]+)*-\w*[rR]\w*|rm[ \t]+--rec\w*)(?=\s|$)"
    r"|((?:ba|z|da)?sh)[ \t]+<(?:\(|<<))"
)
_SECRET_VARIABLE = re.compile(
    r"(?i)\$\{?(\w*?(?:KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH|COOKIE)\w{0,40})"
)


def _apparent_danger(command: str, paths: ShellPaths, cwd: str) -> RiskFinding:
    """Return dangers that show in the words of a command about which nothing is proven."""
    text = re.sub(r"['\"\\]", "", command[:20_000])
    if match := _DANGER.search(text):
        name = (match[1] or match[2])[:20]
        return RiskFinding(HIGH, f"{name} may do harm, in a command of which little is known")
    if match := _SECRET_VARIABLE.search(text):
        return RiskFinding(HIGH, f"shows or gives away ${match[1][:40]}, which may be a secret")
    words = re.findall(r"(>\|?[ \t]*|)(?<![^\s;|&()<>`=])([/~.][^\s;|&()<>`$]*)", text)
    for into, word in words[:200]:
        path = paths.home + word[1:] if word.startswith("~") else word
        kind, act = ("write", "may write to") if into else ("read", "may read")
        found = paths.judge(kind, path, cwd or "/", act)
        if found.rank == HIGH:
            return found
    return RiskFinding(LOW)
