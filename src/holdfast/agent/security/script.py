"""Judging a parsed command: its programs in the order of a shell, with the folders that it may
be in and what earlier parts did."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence

from holdfast.agent.security import grammar
from holdfast.agent.security.grammar import Command, Script, ShellWord, UnjudgedCommand
from holdfast.agent.security.paths import (
    HIGH,
    LOW,
    MEDIUM,
    UNKNOWN,
    FileNames,
    RiskFinding,
    ShellPaths,
    made_again,
    split_glob,
    word_set,
)
from holdfast.runtime.confinement import Confinement

_MAX_CALLS = 2000  # of programs in one command; one counts once for each folder and turn of a loop
_MAX_FOLDERS = 8
SHOWN = {"read": "reads", "look": "looks at", "write": "writes to", "delete": "deletes"}
# Builtins that change what later commands mean, or run their words as builtins, and the forms in
# which some do not.
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
ProgramJudge = Callable[["ScriptReader", Sequence[ShellWord], str, str], str]


class ScriptReader:
    """Judges one command and keeps the highest risk in `found`.

    Attributes:
        rearranged: Whether symlinks may be anywhere now, so that no path is known.
        wrote: Whether files may have been made since the directories were looked at.
        written: Files whose content the commands before this one gave, and `writing` this one.
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
        self.written, self.writing = list[str](), list[str]()
        self._left = _MAX_CALLS

    def read(self, command: str, cwds: Sequence[str], before: Sequence[str] = ()) -> RiskFinding:
        """Judge a command that begins in one of `cwds` ("": not known), after those `before` it."""
        if reason := grammar.hidden(command):
            return RiskFinding(HIGH, reason)
        try:
            for one in before:
                cwds = self._script(grammar.parse(one, self.paths.home), cwds)
                self.wrote, self.found = self.wrote or self.found.rank > LOW, RiskFinding(LOW)
                self.written.clear()
            cwds = self._script(grammar.parse(command, self.paths.home), cwds)
        except (UnjudgedCommand, OSError, ValueError) as reason:
            self.note(UNKNOWN, f"what it does was not judged: {reason}")
        if self.paths.workdir and not all(map(self.paths.inside, filter(None, cwds))):
            self.note(MEDIUM, "leaves the shell outside of the working directory")
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
        path, paths, shown = word.text, self.paths, repr(word.text[:80])
        if path and min(path) <= grammar.JOB:
            self.note(UNKNOWN, f"{act} what is not known beforehand")
        if self.rearranged and kind != "use" and not path.startswith(("/usr/", "/dev/null")):
            self.note(UNKNOWN, f"{act} {shown} after a command that may have made a link of it")
        elif not cwd and not path.startswith("/"):
            self.note(UNKNOWN, f"{act} {shown} in a folder that is not known beforehand")
        self.note(*paths.judge("write" if kind == "delete" else kind, path, cwd, act))
        if word.glob:
            self.note(*paths.judge_glob(kind, path, cwd, act))
        if names is not None:
            self.note(*paths.read_all(split_glob(path)[0] if word.glob else path, cwd, names, act))
        folder, _, name = path.rstrip("/").rpartition("/")
        whole = kind == "write" and word.glob and re.fullmatch(r"[.*?]+", name)
        if whole and not made_again(folder.rpartition("/")[2]):
            self.note(HIGH, f"{act} all that is in a folder: {path[:80]}")
        if kind == "delete" and not (made_again(name) and paths.real(path, cwd) != paths.workdir):
            self.note(HIGH, f"deletes a folder and all that is in it: {path[:80]}")

    def odd_names(self, word: ShellWord, cwd: str) -> int:
        """Return whether a pattern may become several words (1), or an option (2)."""
        folder, names, deep = split_glob(word.text)
        unknown = self.wrote or self.rearranged or self.found.rank > LOW or not cwd
        return (
            2 if unknown else self.paths.scan(self.paths.real(folder, cwd), names, deep, True).odd
        )

    # --- scripts ---

    def _script(self, script: Script, cwds: Sequence[str]) -> Sequence[str]:
        """Judge pipelines in each folder that the shell may be in. Return those afterwards."""
        now = cwds  # where the pipeline before has succeeded
        for pipeline in [*script, *[one for one in script if one.background]]:
            # What runs in the background may run what later commands write.
            now = now if pipeline.operator == "&&" else cwds
            now = list(dict.fromkeys([to for cwd in now for to in self._pipeline(pipeline, cwd)]))
            cwds = list(dict.fromkeys([*cwds, *now]))
            if len(cwds) > _MAX_FOLDERS:
                now = cwds = [""]
        return cwds

    def _pipeline(self, pipeline: grammar.ShellPipeline, cwd: str) -> Sequence[str]:
        """Judge the commands of a pipeline. Return the folders that it may leave the shell in."""
        outer, after, written = self.feeds, list[str](), len(self.written)
        for _ in range(2):
            self.feeds = []
            for index, call in enumerate(pipeline.calls):
                after = self._call(call, cwd, "pipe" if index else "")
            if len(pipeline.calls) == 1 or len(self.written) == written:
                break  # otherwise its first command may run what its last one writes
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
        self._left -= 1
        if self._left < 0:
            raise UnjudgedCommand("it has more parts than are judged")
        for name, value in call.variables:
            for folder in value.split(":") if name == "PYTHONPATH" else ():
                inside = self.paths.is_inside(folder or ".", cwd or "/")
                self.note(MEDIUM if inside else UNKNOWN, f"takes modules from {folder[:80]}")
        after = self.judge(self, call.words, cwd, stdin) if call.words else cwd
        self.written, self.writing = [*self.written, *self.writing], []
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
        kind = "read" if reads else "write"
        self.use_path(target, cwd, kind, SHOWN[kind])
        if not reads and target.text not in ("/dev/null", "/dev/stdout", "/dev/stderr"):
            self.writing.append(self.paths.real(target.text, cwd))
        return "pipe" if reads else ""


# --- commands that ran before ---


@functools.lru_cache(maxsize=1024)
def shell_effect(command: str) -> str:
    """Return whether a command "changes" what later ones mean, "moves" its shell, or ""."""
    try:
        programs = [*_programs(grammar.parse(command, "/"))]
    except UnjudgedCommand:
        return "changes"
    if any(map(changes, programs)):
        return "changes"
    return "moves" if any(words[0].text == "cd" for words in programs) else ""


def _programs(script: Script) -> Iterator[Sequence[ShellWord]]:
    for call in [call for pipeline in script for call in pipeline.calls]:
        if call.loop is not None:
            yield from _programs(call.loop)
        elif call.words:
            yield call.words


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
