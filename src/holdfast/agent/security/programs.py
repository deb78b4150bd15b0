"""Judging a program by its entry in the table; programs whose words need more than an entry;
programs that run another one."""

from __future__ import annotations

import functools
import itertools
import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from holdfast.agent.security import languages, repository, table
from holdfast.agent.security.grammar import ShellWord
from holdfast.agent.security.network import fetch
from holdfast.agent.security.paths import HIGH, LOW, MEDIUM, UNKNOWN, made_again, word_set
from holdfast.agent.security.script import ScriptReader, changes
from holdfast.agent.security.use import PUBLISHES, Options, ProgramUse, parse_options

# Folders where a name with its folder is the same program as without.
_SYSTEM = word_set("/bin /usr/bin /usr/local/bin /sbin /usr/sbin /usr/local/sbin")
_NUMBERED = re.compile(r"(python|pip|gcc|g\+\+|clang|clang\+\+)-?\d+(?:\.\d+)*")
# Programs for which no option does more than their entry allows.
_GLOB_SAFE = word_set("echo ls cat head grep egrep fgrep stat touch basename dirname")
_BUILTINS = word_set("set source . printf jobs wait command export read")
_VERSION_WORDS = word_set("--version -V -v --help -h")
_OUTSIDE = re.compile(r"(?:^|[:=,'\" ])(?:/(?!dev/null)|~|\.\./)")


class ProgramSpec(NamedTuple):
    """An entry of the table: the letters for the operands with their signs, and the options, or
    the reason why the program is high."""

    kind: str = ""
    options: str = ""

    @property
    def runs_project(self) -> bool:
        """Whether the program runs the project's own code, and takes names and paths of it."""
        return self.kind.startswith("p*!")


@functools.cache
def _specs() -> Mapping[str, ProgramSpec]:
    found: dict[str, ProgramSpec] = {}
    for line in re.sub(r"(,?)\n +", lambda match: match[1] or " ", table.PROGRAMS).split("\n"):
        if line:
            names, kind, *rest = line.split(" ", 2)
            # `npm,yarn.run`: a command of both
            parts = itertools.product(*[part.split(",") for part in names.split(".")])
            spec = ProgramSpec(kind, rest[0] if rest else "")
            found.update(dict.fromkeys(map(".".join, parts), spec))
    return found


def _spec(name: str) -> ProgramSpec:
    return _specs().get(name) or ProgramSpec()


@functools.cache
def _groups() -> frozenset[str]:
    """Return the programs with commands, such as git."""
    return frozenset([name.partition(".")[0] for name in _specs() if "." in name]) - {"python"}


def judge(reader: ScriptReader, words: Sequence[ShellWord], cwd: str, stdin: str) -> str:
    """Note the risk of a program with its words, see `script.ProgramJudge`."""
    path, args = words[0].text, words[1:]
    folder, slash, name = path.rpartition("/")
    match = _NUMBERED.fullmatch(name)
    name = match[1] if match is not None and name not in _specs() else name
    local = slash and folder not in _SYSTEM
    use = ProgramUse(reader, name, args, cwd, stdin)
    if name not in _GLOB_SAFE and any(reader.may_be_option(word, cwd) for word in args):
        use.note(UNKNOWN, "is given names of files that may be options")
    if path == "cd":
        return _cd(use)
    if local:
        # The folder's place counts: the Python of a virtual environment is a link to the system's.
        inside = reader.paths.is_inside(folder, cwd) and ":" not in folder
        where = "a program" if inside else "outside"
        use.note(MEDIUM if inside else UNKNOWN, f"is {where} of the working directory")
    only_asks = len(args) == 1 and not stdin and use.text(0) in _VERSION_WORDS
    if path in _BUILTINS:
        _builtin(use, words)
    elif only_asks and name in table.VERSIONED:
        use.note(LOW, "only says something")
    elif only_asks and name in table.VERSIONED_BY_PROJECT:
        use.note(MEDIUM, "runs what the settings of the project name")
    elif name in _WHOLE:
        _WHOLE[name](use)
    elif name in _groups():
        _command(use, args)
    elif name in _specs():
        _by_spec(use, args)
    elif local:
        for word in args:
            use.argument(word)
    else:
        use.note(UNKNOWN, "is no program that is in a table")
    return cwd


def _command(use: ProgramUse, words: Sequence[ShellWord]) -> None:
    """Judge a command of a program, such as `git log` or `gh pr list`."""
    if before := _specs().get(f"{use.name}."):
        words = parse_options(use, before.options, words, stop=True).operands
    what = words[0].text if words else "install" if use.name in ("yarn", "pnpm") else ""
    name, rest = f"{use.name}.{what}", words[1:]
    if len(words) > 1 and f"{name}.{words[1].text}" in _specs():
        name, rest = f"{name}.{words[1].text}", words[2:]
    if name in _WHOLE:
        _WHOLE[name](use._replace(name=name, args=rest))
    elif name in _specs():
        _by_spec(use._replace(name=name, args=rest), rest)
    elif use.name in ("yarn", "pnpm") and _spec(what).runs_project:
        use.run(words)
    elif use.name in _specs():
        _by_spec(use, words)
    elif PUBLISHES & {word.text for word in words}:
        use.note(HIGH, "sends something out")
    else:
        use.note(UNKNOWN, f"has no command {what[:40]!r} in its table")


def _by_spec(use: ProgramUse, words: Sequence[ShellWord]) -> None:
    spec = _spec(use.name)
    special = _SPECIAL.get("git" if use.name.startswith("git.") else use.name)
    letters, project = spec.kind.rstrip("+!~"), "!" in spec.kind
    if "^" in spec.kind or letters == "x*":
        use.note(*((HIGH, spec.options) if "^" in spec.kind else (LOW, "only says something")))
        return
    split = len(words)
    if project:
        split = next((at for at, word in enumerate(words) if word.text == "--"), split)
        for word in words[split + 1 :]:  # for a program of the project
            plain = use.name.startswith(("npm.", "yarn.", "pnpm.", "cargo."))
            use.operand("a" if plain else "p", word)
    found = parse_options(use, spec.options, words[:split], use.name in table.STOPS)
    if project and any(_OUTSIDE.search(value) for _, value in found.given):
        use.note(UNKNOWN, "has an option with a path outside of the working directory")
    operands = special(use, found) if special is not None else found.operands
    if letters.endswith("X"):
        before = len(letters) - 1
        for kind, word in zip(letters[:before], operands, strict=False):
            use.operand(kind, word)
        use.run(operands[before:])
        return
    if "*" in found.flags:
        letters = letters.replace("r", "R")
    # Of the letters before a star the last is repeated; those behind it are for the last operands.
    head, star, last = letters.partition("*")
    for index, word in enumerate(operands):
        behind = len(operands) - index
        if behind <= len(last):
            use.operand(last[len(last) - behind], word)
        else:
            use.operand(head[index] if index < len(head) else head[-1:] if star else "", word)
    use.note(LOW, "only says something" if letters in ("t*", "0") else "only reads")
    if project:
        use.note(MEDIUM, "runs the project's own code")
    elif "+" in spec.kind:
        use.note(MEDIUM, "changes or fetches something")
    use.reader.rearranged = use.reader.rearranged or "~" in spec.kind


def _cd(use: ProgramUse) -> str:
    """Judge `cd`. Return the folder that it goes to."""
    operands, paths = parse_options(use, "-LPe", use.args).operands, use.reader.paths
    target = operands[0] if operands else ShellWord(paths.home)
    reached = target.text.startswith("/") or use.cwd
    unsure = target.glob or target.text in ("-", "") or use.reader.rearranged or len(operands) > 1
    if unsure or not reached or len(target.text) > 1000:
        use.note(UNKNOWN, "goes to a folder that is not known beforehand")
        return ""
    use.note(LOW, "goes to another folder")
    found = paths.real(target.text, use.cwd)
    use.paths("l", [ShellWord(found)])
    # After a link, a shell takes `..` off the link's name, and a program off the real folder.
    if found != os.path.normpath(os.path.join(use.cwd, target.text)):
        use.note(UNKNOWN, "goes to a folder by a link")
        return ""
    return found


def _builtin(use: ProgramUse, words: Sequence[ShellWord]) -> None:
    """Judge builtins that may change the shell, and activating a virtual environment."""
    if use.name in ("source", ".") and len(words) == 2 and use.text(0).endswith("bin/activate"):
        use.runs_code(words[1])
    elif changes(words):
        use.note(UNKNOWN, "changes the shell, or may run what does")
    use.note(LOW, "only says something")


# --- programs that run another one ---


def _run(use: ProgramUse) -> None:
    """Judge `uv run`, `poetry run` and their like; `npx` runs what it may have to fetch."""
    words = list(itertools.dropwhile(lambda one: one.text in table.RUN_OPTIONS, use.args))
    name = words[0].text if words else "-"
    if use.name in ("npx", "npm.exec") and name not in ("ts-node", "tsx"):
        if not _spec(name).runs_project:
            use.note(HIGH, "fetches a program and runs it")
    elif name.startswith("-"):
        use.note(UNKNOWN, "has options that are not in its table")
    use.note(MEDIUM, "runs a program of the project")
    use.run(words)


def _interpreter(use: ProgramUse, found: Options) -> Sequence[ShellWord]:
    """Judge an interpreter: its first operand is code."""
    if not found.operands and not found.has("--test"):
        if use.stdin == "pipe" and use.name in ("bash", "sh", "dash", "zsh"):
            use.note(HIGH, "runs what comes through a pipe or from a file")
        use.note(UNKNOWN, "runs code that stands in the command, or that it is fed")
    return found.operands


def _python(use: ProgramUse) -> None:
    """Judge Python: a file of the project, or a module of it or in the table."""
    use, at = use._replace(name="python"), 0
    while use.text(at).startswith("-") and use.text(at) != "-m":
        at += 2 if use.text(at) in ("-W", "-X") else 1
    if use.text(at) != "-m":
        _by_spec(use, use.args)
        return
    module, rest = use.text(at + 1), use.args[at + 2 :]
    if parse_options(use, _spec("python").options, use.args[:at]).operands:
        use.note(UNKNOWN, "runs code that it is fed")
    use.note(MEDIUM, f"runs the module {module[:60]}")
    program = module.replace("_", "-")
    files = [use.at(os.path.join(source, *module.split("."))) for source in ("", "src")]
    if f"python.{module}" in _specs():
        _by_spec(use._replace(name=f"python.{module}"), rest)
    elif _spec(program).runs_project or module == "pip":
        use.run([ShellWord(program), *rest])
    elif re.fullmatch(r"[A-Za-z_][\w.]*", module) and any(
        os.path.isfile(f"{one}.py") or os.path.isfile(f"{one}/__init__.py") for one in files
    ):
        for word in rest:
            use.argument(word)
    else:
        use.note(UNKNOWN, f"runs the module {module[:60]}, which is not of the project")


# --- files ---


def _rm(use: ProgramUse, found: Options) -> Sequence[ShellWord]:
    """Judge rm: deleting many files is high, but for those that tools make again."""
    if "*" in found.flags:
        for word in found.operands:
            use.reader.use_path(word, use.cwd, "delete", "rm deletes")
        return ()
    for word in found.operands:
        folder, _, name = word.text.rpartition("/")
        everything = word.glob and re.fullmatch(r"[.*?]+", name)
        if everything and not made_again(os.path.basename(folder)):
            use.note(HIGH, f"deletes all that is in a folder: {word.text[:80]}")
    return found.operands


def _cp(use: ProgramUse, found: Options) -> Sequence[ShellWord]:
    """Judge cp, mv and install: what they read, and the files that they may replace."""
    deep, moves, paths = "*" in found.flags, use.name == "mv", use.reader.paths
    into = [ShellWord(value) for value in found.values("-t", "--target-directory")]
    sources, targets = found.operands, into
    if not into:
        sources, targets = found.operands[:-1], found.operands[-1:]
    use.paths("R" if deep else "r", sources)
    use.paths("w", [*targets, *(sources if moves else ())])
    if moves and not all(paths.is_inside(word.text, use.cwd) for word in targets):
        # A sandbox keeps such a write from the host, but the files are gone with the sandbox.
        use.note(HIGH, "takes files out of the working directory")
    for folder in targets if not moves else ():
        if os.path.isdir(use.at(folder.text)):
            # A file of the folder that is replaced may be a link.
            names = [word.text.rstrip("/").rpartition("/")[2] for word in sources if not word.glob]
            use.paths("w", [ShellWord(os.path.join(folder.text, name)) for name in names if name])
            if deep or len(names) < len(sources):
                scan = paths.scan(paths.real(folder.text, use.cwd))
                if scan.leads_out or not scan.whole:
                    use.note(UNKNOWN, f"writes to {folder.text[:80]}, which has links out")
    if deep or (moves and not all(_is_file(use, word) for word in sources)):
        use.reader.rearranged = True
    return ()


def _is_file(use: ProgramUse, word: ShellWord) -> bool:
    """Return whether a path is a file of its own, or not there yet."""
    path = use.at(word.text)
    return not word.glob and (not os.path.lexists(path) or stat.S_ISREG(os.lstat(path).st_mode))


# --- builds, the network ---


def _compiler(use: ProgramUse, found: Options) -> Sequence[ShellWord]:
    use.paths("w", [] if found.has("-o", "-E") else [ShellWord("a.out")])
    return found.operands


def _curl(use: ProgramUse, found: Options) -> Sequence[ShellWord]:
    """Judge what curl and wget ask of which address, and what they send to it."""
    headers = found.values("-H", "--header")
    methods = {*found.values("-X", "--request", "--method")} - {"GET", "HEAD"}
    credential = re.compile(r"(?:proxy-)?authorization|cookie|x-.*(?:key|token)", re.IGNORECASE)
    sends = "$" in found.flags or methods or any(map(credential.match, headers))
    if use.name == "curl":
        into_file = found.has("-O", "--remote-name")
    else:
        into_file = not found.has("-O", "--output-document", "--spider")
    for url in [*[word.text for word in found.operands], *found.values("--url")]:
        if re.search(r"[{}\[\]]", re.sub(r"//\[[0-9a-fA-F:.]+\]", "", url)):
            use.note(UNKNOWN, "asks addresses that it makes up")
        what = "sends data" if sends else ""
        use.reader.note(*fetch(url, use.reader.hosts, what, use.reader.confinement))
        if into_file:
            file = url.partition("?")[0].rpartition("/")[2] or "index.html"
            use.paths("w", [ShellWord(file)])
    return ()


_WHOLE: Mapping[str, Callable[[ProgramUse], None]] = {
    "find": languages.find,
    "npx": _run,
    "git": functools.partial(repository.git, _command),
    **dict.fromkeys(("uv.pip", "pip3"), lambda use: _command(use._replace(name="pip"), use.args)),
    **dict.fromkeys(table.RUNNERS, _run),
    **dict.fromkeys(("python", "python2", "python3"), _python),
}
_SPECIAL: Mapping[str, Callable[[ProgramUse, Options], Sequence[ShellWord]]] = {
    **dict.fromkeys(("grep", "egrep", "fgrep", "rg"), languages.grep),
    "sed": languages.sed,
    **dict.fromkeys(("awk", "gawk", "mawk"), languages.awk),
    "git": repository.special,
    "rm": _rm,
    **dict.fromkeys(("cp", "mv", "install"), _cp),
    **dict.fromkeys(("gcc", "g++", "cc", "clang", "clang++"), _compiler),
    **dict.fromkeys(("curl", "wget"), _curl),
    **dict.fromkeys(table.INTERPRETERS, _interpreter),
}
