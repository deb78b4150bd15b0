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
from holdfast.agent.security.network import fetch
from holdfast.agent.security.paths import MEDIUM, UNKNOWN, listed, made_again
from holdfast.agent.security.script import Reader, Scope, Stdin, Word, changes
from holdfast.agent.security.use import PUBLISHES, Options, Use, take

# Folders where a name with its folder is the same program as without.
# Programs whose output is names of files, with the options that leave it so.
_PASSING = {
    "cat": listed(""),
    "pwd": listed("-P -L"),
    "ls": listed("-1 -a -A -r -t -S"),
    "head": listed("-n --lines"),
    "tail": listed("-n --lines"),
    "sort": listed("-r -n -u -V -f --reverse --unique"),
}
_SYSTEM = listed("/bin /usr/bin /usr/local/bin /sbin /usr/sbin /usr/local/sbin")
_NUMBERED = re.compile(r"(python|pip|gcc|g\+\+|clang|clang\+\+)-?\d+(?:\.\d+)*")
# Programs that words which are not known cannot lead to harm; and programs for which no option does
# more than their entry allows.
_OPEN = listed("echo printf true false : basename dirname expr seq sleep exit test [ [[")
_GLOB_SAFE = listed("echo ls cat head grep egrep fgrep stat touch basename dirname")
_BUILTINS = listed("set read export ulimit umask alias history source . printf jobs wait command")
_VERSIONS, _VERSIONED, _BY_PROJECT = (
    listed("--version -V -v --help -h"),
    listed(table.VERSIONED),
    listed(table.VERSIONED_BY_PROJECT),
)
_OUTSIDE = re.compile(r"(?:^|[:=,'\" ])(?:/(?!dev/null)|~|\.\./)")


class Entry(NamedTuple):
    """An entry of the table: the letters for the operands with their signs, and the options, or
    the reason why the program is high."""

    kind: str = ""
    options: str = ""


_NO_ENTRY = Entry()
_LED = listed("npm yarn pnpm kubectl")  # programs with options before a command


@functools.cache
def _entries() -> Mapping[str, Entry]:
    found: dict[str, Entry] = {}
    for line in re.sub(r"(,?)\n +", lambda match: match[1] or " ", table.PROGRAMS).splitlines():
        if line:
            names, kind, *rest = line.split(" ", 2)
            parts = itertools.product(
                *[part.split(",") for part in names.split(".")]
            )  # `npm,yarn.run`: a command of both
            found.update(dict.fromkeys(map(".".join, parts), Entry(kind, rest[0] if rest else "")))
    return found


@functools.cache
def _groups() -> frozenset[str]:
    return frozenset(
        [
            name.partition(".")[0]
            for name in _entries()
            if "." in name and not name.startswith(("python.", "py."))
        ]
    )


def judge(
    reader: Reader, words: Sequence[Word], scope: Scope, stdin: Stdin | None
) -> tuple[str, ...] | None:
    """Note the risk of a program with its words, of which the first is its name; the folders
    that it goes to, None if it goes nowhere."""
    name, args = words[0].text, words[1:]
    folder, slash, last = name.rpartition("/")
    match = _NUMBERED.fullmatch(last)
    local, plain = (
        slash and folder not in _SYSTEM,
        match[1] if match is not None and last not in _entries() else last,
    )
    use = Use(reader, plain, args, scope, stdin)
    if not all(word.known for word in args) and plain not in _OPEN:
        use.unknown("is given what is not known beforehand")
    if plain not in _GLOB_SAFE and any(
        word.glob and word.text[:1] in "*?[" and reader.odd(word, scope, "^-") for word in args
    ):
        use.unknown("is given names of files that may be options")
    asks = (
        len(args) == 1
        and stdin is None
        and (
            use.text(0) in _VERSIONS
            or (use.text(0) == "-version" and plain in table.ONE_DASH.split())
        )
    )
    if name == "cd":
        return _cd(use)
    if name in _BUILTINS:
        _builtin(use)
    elif asks and plain in _VERSIONED | _BY_PROJECT:
        (
            use.low("only says something")
            if plain in _VERSIONED
            else use.medium("runs what the settings of the project name")
        )
    elif plain in _WHOLE:
        _WHOLE[plain](use)
    elif plain in _groups():
        _command(use, args)
    elif plain in _entries():
        _by_entry(use, args)
    elif local:
        for word in args:
            use.argument(word)
    else:
        (
            use.high("changes disks")
            if name.startswith("mkfs.")
            else use.unknown("is no program that is in a table")
        )
    if (
        local
    ):  # the folder's place counts: the Python of a virtual environment is a link to the system's
        inside = use.inside(Word(folder)) and ":" not in folder
        reader.note(
            MEDIUM if inside else UNKNOWN,
            f"runs {name[:80]}, {'a program' if inside else 'outside'} of the working directory",
        )
    return None


def _command(use: Use, words: Sequence[Word]) -> None:
    """A command of a program, such as `git log` or `gh pr list`."""
    words = (
        take(use, _entries().get(f"{use.name}.", _NO_ENTRY).options, words, stop=True).operands
        if use.name in _LED
        else words
    )
    what = words[0].text if words else "install" if use.name in ("yarn", "pnpm") else ""
    deeper = f"{use.name}.{what}.{words[1].text}" if len(words) > 1 else ""
    name, rest = (deeper, words[2:]) if deeper in _entries() else (f"{use.name}.{what}", words[1:])
    if name in _WHOLE:
        _WHOLE[name](use._replace(name=name, args=rest))
    elif name in _entries():
        _by_entry(use._replace(name=name, args=rest), rest)
    elif use.name in ("yarn", "pnpm") and "p*!" in _entries().get(what, _NO_ENTRY).kind:
        use.run(words, use.stdin)
    elif use.name in _entries():
        _by_entry(use, words)
    else:
        (
            use.high("sends something out")
            if what in PUBLISHES
            else use.unknown(f"has no command {what[:40]!r} in its table")
        )


def _by_entry(use: Use, words: Sequence[Word]) -> None:
    entry, special = (
        _entries()[use.name],
        _SPECIAL.get("git" if use.name.startswith("git.") else use.name),
    )
    letters, project = entry.kind.rstrip("+!~"), "!" in entry.kind
    if "^" in entry.kind or (letters == "x*" and special is None):
        use.high(entry.options) if "^" in entry.kind else use.low("only says something")
        return
    split = (
        next((at for at, word in enumerate(words) if word.text == "--"), len(words))
        if project
        else len(words)
    )
    found = take(
        use,
        entry.options,
        words[:split],
        use.name in table.STOPS.split(),
        use.name.startswith(table.SINGLE_DASH),
    )
    for word in words[split + 1 :]:  # for a program of the project
        use.operand("a" if use.name.startswith(("npm.", "yarn.", "pnpm.", "cargo.")) else "p", word)
    if project and any(_OUTSIDE.search(value) for _, value in found.given):
        use.unknown("has an option with a path outside of the working directory")
    operands = special(use, found) if special is not None else found.operands
    head, star, last = letters.partition("*")
    head, middle = (head[:-1], head[-1]) if star else (head, "")
    for index, word in enumerate(operands):
        behind = len(operands) - index
        use.operand(
            (
                last[len(last) - behind]
                if behind <= len(last)
                else head[index]
                if index < len(head)
                else middle
            ),
            word,
        )
    use.low("only says something" if letters in ("t*", "0") else "only reads")
    if project or "+" in entry.kind:
        use.medium("runs the project's own code" if project else "changes or fetches something")
    use.reader.rearranged = use.reader.rearranged or "~" in entry.kind
    if use.name in _PASSING:
        use.reader.yields = _names(use, found, operands)


def _names(use: Use, found: Options, operands: Sequence[Word]) -> tuple[Word, ...] | None:
    """The names of files that the program has as its output: those of the folder, those that it
    is fed, or those that it is given."""
    if not {name for name, _ in found.given} <= _PASSING[use.name]:
        return None
    if use.name in ("ls", "pwd") and not operands:
        return (Word("."),)
    if use.name == "ls" and not found.given:
        names = [
            use.reader.places.matches(word.text, cwd) or [""] if word.glob else [word.text]
            for word in operands
            for cwd in use.scope.cwds
        ]
        return (
            tuple(operands)
            if all(_is_file(use, Word(name)) for some in names for name in some)
            else None
        )
    return use.stdin.names if use.stdin is not None and not operands else None


def _cd(use: Use) -> tuple[str, ...]:
    operands, places, cwds = take(use, "-LPe", use.args).operands, use.reader.places, use.scope.cwds
    target = operands[0] if operands else Word(places.home, bool(places.home))
    plain = (
        target.known
        and not target.glob
        and target.text not in ("-", "")
        and len(operands) < 2
        and len(target.text) < 1000
    )
    if not plain or not (target.text.startswith("/") or cwds) or use.reader.rearranged:
        use.unknown("goes to a folder that is not known beforehand")
        return ()
    use.low("goes to another folder")
    found = tuple(dict.fromkeys([places.real(target.text, cwd) for cwd in cwds or ("/",)]))
    use.paths("l", [Word(one) for one in found])
    return found


def _builtin(use: Use) -> None:
    """Builtins that change the shell, in the forms in which nothing later means something else;
    and activating a virtual environment."""
    words = [word.text if word.known and not word.glob else None for word in use.args]
    if use.name in ("source", "."):
        activates = len(use.args) == 1 and use.text(0).endswith("bin/activate")
        use.runs_code(use.args[0]) if activates else use.unknown("runs a file in this shell")
    elif (
        use.name == "export"
        and use.text(0).startswith("PYTHONPATH=")
        and len(use.args) == 1
        and not use.args[0].glob
    ):
        use.reader.modules(Word(use.text(0).partition("=")[2]), use.scope)
    elif changes(use.name, words):
        use.unknown("changes the shell, or may run what does")
    for name, _, value in [
        word.text.partition("=") for word in use.args if use.name in ("export", "read")
    ]:
        use.scope.variables[name] = Word(value, use.name == "export", split=True)
    use.low("only says something")


# --- programs that run another one ---


def _wrapper(use: Use, found: Options) -> Sequence[Word]:
    rest = found.operands
    if use.name == "timeout":
        rest = rest[1:] if rest and re.fullmatch(r"\d+(?:\.\d+)?[smhd]?", rest[0].text) else []
    use.run(rest, use.stdin)
    return ()


def _printenv(use: Use) -> None:
    names = [word.text for word in use.args]
    if any(re.search(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH", name) for name in names):
        use.high("shows what may be a secret")
    elif names and (
        use.name == "env" or not all(re.fullmatch(r"[A-Z_][A-Z0-9_]*", name) for name in names)
    ):
        use.unknown("runs another program, or has an option that is not in its table")
    use.low() if names else use.medium("shows the environment, which may hold secrets")


def _run(use: Use) -> None:
    """`uv run`, `poetry run` and their like; `npx` runs what it may have to fetch."""
    words = [
        word
        for at, word in enumerate(use.args)
        if any(one.text not in table.RUN_OPTIONS.split() for one in use.args[: at + 1])
    ]
    name = words[0].text if words else "-"
    if (
        use.name in ("npx", "npm.exec")
        and name not in ("ts-node", "tsx")
        and "p*!" not in _entries().get(name, Entry()).kind
    ):
        use.high("fetches a program and runs it")
    elif name.startswith("-"):
        use.unknown("has options that are not in its table")
    use.medium("runs a program of the project")
    use.run(words, use.stdin)


def _interpreter(use: Use, found: Options) -> Sequence[Word]:
    shell = use.name in ("bash", "sh", "dash", "zsh")
    if not found.operands and shell and use.stdin is not None and use.stdin.text is None:
        use.high("runs what comes through a pipe or from a file")
    elif not found.operands and not found.has("--test"):
        use.unknown("runs code that stands in the command, or that it is fed")
    return found.operands


def _bash(use: Use) -> None:
    if use.text(0) == "-c" and len(use.args) == 2 and use.args[1].known:
        use.reader.nested(use.args[1].text, use.scope.copy())
    else:
        _by_entry(use, use.args)


def _python_flags(use: Use, found: Options) -> Sequence[Word]:
    """The options of Python itself: some of `-X` import or write something."""
    if not all(
        re.fullmatch(r"importtime|dev|utf8|faulthandler|tracemalloc|frozen_modules=\w+", value)
        for value in found.values("-X")
    ):
        use.unknown("has an option -X that may import or write something")
    return found.operands


def _python(use: Use) -> None:
    use = use._replace(name="python")
    at = next(
        (
            at
            for at, word in enumerate(use.args)
            if word.text == "-m" or not word.text.startswith("-")
        ),
        len(use.args),
    )
    at += 1 if use.text(at - 1) in ("-W", "-X") else 0
    module, rest = use.text(at + 1) if use.text(at) == "-m" else "", use.args[at + 2 :]
    if not module:
        _by_entry(use, use.args)
        return
    _python_flags(use, take(use, _entries()["python"].options, use.args[:at]))
    use.medium(f"runs the module {module[:60]}")
    files = [
        os.path.join(cwd, src, module.replace(".", "/"))
        for cwd in use.scope.cwds
        for src in ("", "src")
    ]
    if f"python.{module}" in _entries():
        _by_entry(use._replace(name=f"python.{module}"), rest)
    elif "p*!" in _entries().get(module.replace("_", "-"), Entry()).kind or module == "pip":
        use.run([Word(module.replace("_", "-")), *rest], use.stdin)
    elif re.fullmatch(r"[A-Za-z_][\w.]*", module) and any(
        os.path.isfile(f"{one}.py") or os.path.isfile(f"{one}/__init__.py") for one in files
    ):
        for word in rest:
            use.argument(word)
    else:
        use.unknown(f"runs the module {module[:60]}, which is not of the project")


# --- files ---


def _rm(use: Use, found: Options) -> Sequence[Word]:
    left = list[Word]()
    for word in found.operands:
        folder, _, name = word.text.rpartition("/")
        if word.tree is not None and not (
            word.tree.patterns and all(map(made_again, word.tree.patterns))
        ):
            use.high("deletes what is found")
        elif word.tree is None and found.has("-r", "-R", "--recursive"):
            use.reader.path(word, use.scope, "delete", "rm deletes")
        elif (
            word.glob
            and re.fullmatch(r"[.*?]+", name)
            and not made_again(folder.rpartition("/")[2])
        ):
            use.high(f"deletes all that is in a folder: {word.text[:80]}")
        else:
            left.append(word)
    return left


def _cp(use: Use, found: Options) -> Sequence[Word]:
    deep = found.has(
        "-r", "-R", "-a", "-d", "-P", "-l", "-s", "--recursive", "--archive", "--no-dereference"
    )
    into, operands = (
        [Word(value) for value in found.values("-t", "--target-directory")],
        found.operands,
    )
    sources, targets = (operands, into) if into else (operands[:-1], operands[-1:])
    use.paths("R" if deep else "r", sources)
    use.paths("w", [*targets, *(sources if use.name == "mv" else ())])
    for folder in targets if use.name != "mv" else ():
        if any(
            os.path.isdir(os.path.join(cwd, folder.text)) for cwd in use.scope.cwds
        ):  # a file of it that is replaced may be a link
            names = [
                word.text.rstrip("/").rpartition("/")[2]
                for word in sources
                if not word.glob and word.tree is None
            ]
            use.paths("w", [Word(os.path.join(folder.text, name)) for name in names if name])
            if deep or len(names) < len(sources):
                use.overwrites(folder)
    if any("/" in value for value in found.values("-S", "--suffix")):
        use.unknown("keeps what it replaces in another folder")
    _modes(use, found)
    use.reader.rearranged = (
        use.reader.rearranged
        or deep
        or (use.name == "mv" and not all(_is_file(use, word) for word in sources))
    )
    return ()


def _is_file(use: Use, word: Word) -> bool:
    """Whether a path is a file of its own, or not there yet."""
    paths = [os.path.join(cwd, word.text) for cwd in use.scope.cwds]
    return (
        not word.glob
        and word.tree is None
        and all(not os.path.lexists(path) or stat.S_ISREG(os.lstat(path).st_mode) for path in paths)
    )


def _ln(use: Use, found: Options) -> Sequence[Word]:
    """A link within one folder. What another one will lead to is not judged."""
    source = found.operands[:1]
    if len(found.operands) != 2 or any(
        word.glob or ".." in word.text.split("/") for word in found.operands
    ):
        use.unknown("makes a link that was not looked at")
    use.paths("r", source)
    use.paths(
        "w",
        [word for word in source if not use.inside(word) or "/" in word.text],
        "makes a link to",
    )
    return found.operands


def _modes(use: Use, found: Options) -> Sequence[Word]:
    """Permissions that a file is given: none for everybody to write, none that lend rights."""
    if not all(re.fullmatch(table.MODE, mode) for mode in found.values("-m", "--mode")):
        use.high("lets everybody write, or lends rights")
    return found.operands


def _chmod(use: Use) -> None:
    minus = [
        word for word in use.args if re.fullmatch(r"-[rwxX]+", word.text)
    ]  # `chmod -x f`: a mode, and no option
    found = take(use, _entries()["chmod"].options, [word for word in use.args if word not in minus])
    modes, files = (
        ([], found.operands)
        if minus
        else ([word.text for word in found.operands[:1]], found.operands[1:])
    )
    if found.has("-R", "--recursive") and not all(
        re.fullmatch(r"[ugo]*[-+][rxX]+|u\+[rwxX]+|[ugo]+-w", mode) for mode in modes
    ):
        use.high("changes the permissions of all that is in a folder")
    _modes(use, Options([("-m", mode) for mode in modes], []))
    use.paths("w", files, "changes the permissions of")


def _tar(use: Use) -> None:
    # `tar xzf a`: without a dash, letters with a value take the words behind them one by one.
    first = use.text(0)
    words = (
        [Word(f"-{first}"), *use.args[1:]]
        if re.fullmatch(r"[A-Za-z]*[a-z]", first) and not set(first[:-1]) & set("fCTXbgHKLNVIF")
        else use.args
    )
    found = take(use, _entries()["tar"].options, words)
    archive, folder = (
        [Word(value) for value in found.values("-f", "--file")],
        [Word(value) for value in found.values("-C", "--directory")],
    )
    if any(":" in word.text for word in archive):
        use.high("has its archive on another machine")
    if found.has("-x", "--extract", "--get", "-t", "--list"):
        use.paths("r", archive)
        use.low() if found.has("-t", "--list") else _unpack(use, folder or [Word(".")])
        return
    if not found.has("-c", "--create") or not all(map(use.inside, folder)):
        use.unknown("packs files of another folder, or in another way")
    use.paths("w", archive)
    use.paths("R", found.operands)


def _unpack(use: Use, folders: Sequence[Word]) -> None:
    use.paths("w", folders, "unpacks into")
    for folder in folders:
        use.overwrites(folder, unpacks=True)


def _pack(use: Use, found: Options) -> Sequence[Word]:
    use.paths("r", found.operands[:1] if use.name == "unzip" else found.operands)
    if use.name == "unzip" and not found.has("-l", "-v", "-t", "-Z", "-p", "-z"):
        _unpack(use, [Word(value) for value in found.values("-d")] or [Word(".")])
    elif use.name != "unzip" and not found.has(
        "-c", "--stdout", "--to-stdout", "-l", "--list", "-t", "--test"
    ):
        use.paths("w", found.operands, "replaces")
    return ()


# --- packages, builds, the network ---


def _make(use: Use, found: Options) -> Sequence[Word]:
    for name, equals, value in [word.text.partition("=") for word in found.operands] + [
        value.partition("=") for value in found.values("-D")
    ]:
        if equals and (
            not re.fullmatch(table.MAKE_VALUE, value)
            or not re.fullmatch(r"\w+(?::\w+)?", name)
            or name in ("SHELL", "MAKEFLAGS")
        ):
            use.unknown(f"is given a variable: {name[:40]}")
    return [word for word in found.operands if "=" not in word.text]


def _compiler(use: Use) -> None:
    found = take(
        use,
        _entries()["gcc"].options,
        [word for word in use.args if not re.fullmatch(table.COMPILER_OPTION, word.text)],
    )
    if not all(
        re.fullmatch(r"(?![lpa],)[\w,=+-]*", value)
        for value in [*found.values("-W"), *found.values("-O")]
    ):
        use.unknown("gives options to another program")
    for word in found.operands:
        use.operand("r", word)
    use.paths("w", [] if found.has("-o", "-E") else [Word("a.out")])
    use.medium("compiles")


def _pip(use: Use, found: Options) -> Sequence[Word]:
    for value in found.values("-r", "--requirement", "-c", "--constraint"):
        if "://" in value:
            use.high("installs from elsewhere")
        if any(
            re.search(
                table.FOREIGN_LINE, repository.text_of(os.path.join(cwd, value)), re.MULTILINE
            )
            for cwd in use.scope.cwds
        ):
            use.unknown(f"installs from elsewhere, as {value[:60]} says")
    return found.operands


def _curl(use: Use, found: Options) -> Sequence[Word]:
    wget = use.name == "wget"
    bodies, files = (
        found.values(*table.SENDS.split()) if not wget else [],
        found.values("-T", "--upload-file") if not wget else [],
    )
    headers = found.values("--header") + (found.values("-H") if not wget else [])
    sends = (
        "sends data"
        if bodies
        or files
        or not set(found.values("-X", "--request", "--method")) <= {"GET", "HEAD"}
        else ""
    )
    sends = "sends data" if found.has("--post-data", "--post-file", "--body-data") else sends
    secret = any(
        re.match(r"(?:proxy-)?authorization|cookie|x-.*(?:key|token)", value, re.IGNORECASE)
        for value in headers
    )
    sends = sends or (
        "gives credentials"
        if secret or (not wget and found.has("-u", "--user", "-b", "--cookie"))
        else ""
    )
    if any(
        "@" in value or "%output" in value
        for value in [*found.values("-w", "--write-out"), *[value[:1] for value in headers]]
    ):
        use.unknown("shows a file, or writes to one")
    files += [
        re.split(r"[@<]", value, maxsplit=1)[1].partition(";")[0]
        for value in bodies
        if re.match(r"[\w.-]*=?[@<]", value)
    ]
    use.paths("r", [Word(value) for value in [*files, *found.values("--post-file")]])
    for url in [*[word.text for word in found.operands], *found.values("--url")]:
        if re.search(r"[{}\[\]]", re.sub(r"//\[[0-9a-fA-F:.]+\]", "", url)):
            use.unknown("asks addresses that it makes up")
        use.reader.note(*fetch(url, use.reader.hosts, sends))
        if (
            not found.has("-O", "--output-document", "--spider")
            if wget
            else found.has("-O", "--remote-name")
        ):
            use.paths("w", [Word(url.partition("?")[0].rpartition("/")[2] or "index.html")])
    return ()


def _kill(use: Use) -> None:
    words = (
        use.args[1 if re.fullmatch(r"-(?:[A-Z]+\d?|\d+)", use.text(0)) else 0 :]
        if use.text(0) not in ("-l", "-L")
        else ()
    )
    use.medium("ends a process") if words else use.low()
    for word in words:
        use.operand("z", word)


def _diff(use: Use, found: Options) -> Sequence[Word]:
    use.paths("R" if found.has("-r", "--recursive") else "r", found.operands)
    return ()


def _sqlite(use: Use, found: Options) -> Sequence[Word]:
    if len(found.operands) < 2:
        use.unknown("does what it is fed")
    return found.operands


def _member(use: Use) -> None:
    """`yarn workspace NAME COMMAND`."""
    if not re.fullmatch(r"(?!.*\.\.)@?[\w.][\w./-]*", use.text(0)):
        use.unknown("has no workspace with a plain name")
    _command(use._replace(name="yarn"), use.args[1:])


_WHOLE: Mapping[str, Callable[[Use], None]] = {
    **dict.fromkeys(("test", "[", "[["), languages.test),
    "find": languages.find,
    "env": _printenv,
    "printenv": _printenv,
    "bash": _bash,
    "kill": _kill,
    "npx": _run,
    "git": functools.partial(repository.git, _command),
    "chmod": _chmod,
    "tar": _tar,
    "uv.pip": lambda use: _command(use._replace(name="pip"), use.args),
    "pip3": lambda use: _command(use._replace(name="pip"), use.args),
    **dict.fromkeys(
        (
            "uv.run",
            "poetry.run",
            "pdm.run",
            "pipenv.run",
            "bundle.exec",
            "conda.run",
            "hatch.run",
            "npm.exec",
            "pnpm.exec",
            "yarn.exec",
        ),
        _run,
    ),
    "yarn.workspace": _member,
    **dict.fromkeys(("python", "python2", "python3", "pypy3"), _python),
    **dict.fromkeys(("gcc", "g++", "cc", "c++", "clang", "clang++"), _compiler),
}
_SPECIAL: Mapping[str, Callable[[Use, Options], Sequence[Word]]] = {
    **dict.fromkeys(("grep", "egrep", "fgrep", "rg"), languages.grep),
    "sed": languages.sed,
    **dict.fromkeys(("awk", "gawk", "mawk", "nawk"), languages.awk),
    "jq": languages.jq,
    "xargs": languages.xargs,
    "ps": languages.ps,
    "git": repository.special,
    **dict.fromkeys(("timeout", "nice", "time", "nohup", "stdbuf", "strace", "valgrind"), _wrapper),
    **dict.fromkeys(
        ("gzip", "gunzip", "bzip2", "bunzip2", "xz", "unxz", "zstd", "unzstd", "unzip"), _pack
    ),
    "rm": _rm,
    "cp": _cp,
    "mv": _cp,
    "install": _cp,
    "ln": _ln,
    "mkdir": _modes,
    "make": _make,
    "gmake": _make,
    "cmake": _make,
    "pip.install": _pip,
    "pip.download": _pip,
    "curl": _curl,
    "wget": _curl,
    "sqlite3": _sqlite,
    "diff": _diff,
    "colordiff": _diff,
    **dict.fromkeys(
        (
            "bash",
            "sh",
            "dash",
            "zsh",
            "node",
            "nodejs",
            "ruby",
            "perl",
            "php",
            "lua",
            "tsx",
            "ts-node",
            "julia",
            "Rscript",
        ),
        _interpreter,
    ),
    "python": lambda use, found: _interpreter(
        use, Options(found.given, list(_python_flags(use, found)))
    ),
}
