"""Judging a program by its entry in the table; programs whose words need more than an entry; programs that run another one."""

from __future__ import annotations

import functools
import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from holdfast.agent.security import languages, repository, table
from holdfast.agent.security.network import fetch
from holdfast.agent.security.paths import MEDIUM, UNKNOWN, made_again
from holdfast.agent.security.script import Reader, Scope, Stdin, changes
from holdfast.agent.security.use import PUBLISHES, Options, Use, take
from holdfast.agent.security.words import Names, Word, listed

# Folders where a name with its folder is the same program as without.
_SYSTEM = listed("/bin /usr/bin /usr/local/bin /sbin /usr/sbin /usr/local/sbin")
_NUMBERED = re.compile(r"(python|pip|gcc|g\+\+|clang|clang\+\+)-?\d+(?:\.\d+)*")
# Programs that words which are not known cannot lead to harm; and programs for which no option does more than their entry allows.
_OPEN = listed("echo printf true false : basename dirname expr seq sleep exit test [ [[")
_GLOB_SAFE = listed("echo ls cat head grep egrep fgrep stat touch basename dirname")
_BUILTINS = listed("set read export ulimit umask alias history source .")
# With one of these words alone programs only print their version or their help. Some read the project's files even then.
_VERSIONS, _ONE_DASH = listed("--version -V -v --help -h"), listed("java javac ffmpeg convert sqlite3 ant scala mvn")
_VERSIONED = listed(
    "python python2 python3 pypy3 pip pip3 node nodejs ruby perl php lua gcc g++ cc c++ clang clang++ git make cmake ninja java javac npm bash sh tar curl wget docker kubectl aws gh jq rg sqlite3 redis-cli ssh ffmpeg "
    "convert pandoc julia ghc tsc gem conda uv pipx ruff mysql psql gdb protoc cython elixir scala kotlin nim ocaml terraform helm vim emacs nano tmux ansible bat htop ninja lldb valgrind strace dart nvcc R rsync zip unzip ffprobe"
)
_VERSIONED_BY_PROJECT = listed(
    "cargo rustc go mvn gradle yarn pnpm bundle composer poetry pipenv pdm deno bun dotnet swift npx ant flutter stack cabal dune zig crystal sbt lein mix rustup hatch pytest mypy black tox nox ipython jupyter Rscript flake8 isort pylint poetry hatch eslint prettier jest vite next ng"
)
_STOPS = listed(
    "awk gawk mawk nawk xargs timeout nice time nohup stdbuf strace valgrind python python2 python3 pypy3 node nodejs ruby perl bash sh dash zsh php lua java go.run xxd"
)
_FOREIGN_LINE = re.compile(
    r"^\s*(?:-(?!r|c|e\s*\.)|--(?!require|constraint|no-|only-)|(?:git|hg|svn|bzr)\+|\w+://|[^#\n]*\s@\s)", re.MULTILINE
)
_OUTSIDE = re.compile(r"(?:^|[:=,'\" ])(?:/(?!dev/null)|~|\.\./)")


class Entry(NamedTuple):
    """An entry of the table: the letters for the operands with their signs, and the options, or the reason why the program is high."""

    kind: str
    options: str


@functools.cache
def _entries() -> Mapping[str, Entry]:
    found: dict[str, Entry] = {}
    for line in re.split(r" ; |\n", table.PROGRAMS.strip()):
        names, kind, *rest = line.split(" ", 2)
        found.update(dict.fromkeys(names.split(","), Entry(kind, rest[0] if rest else "")))
    return found


@functools.cache
def _groups() -> frozenset[str]:
    return frozenset([name.partition(".")[0] for name in _entries() if "." in name and not name.startswith(("python.", "py."))])


def judge(reader: Reader, words: Sequence[Word], scope: Scope, stdin: Stdin | None) -> tuple[str, ...] | None:
    """Note the risk of a program with its words, of which the first is its name; the folders that it goes to, None if it goes nowhere."""
    name, args = words[0].text, words[1:]
    folder, slash, last = name.rpartition("/")
    match = _NUMBERED.fullmatch(last)
    local, plain = slash and folder not in _SYSTEM, match[1] if match is not None and last not in _entries() else last
    use = Use(reader, plain, args, scope, stdin)
    if not all(word.known for word in args) and plain not in _OPEN:
        use.unknown("is given what is not known beforehand")
    if plain not in _GLOB_SAFE and not all(reader.no_options(word, scope) for word in args if word.glob and word.text[:1] in "*?["):
        use.unknown("is given names of files that may be options")
    if name == "cd":
        return _cd(use)
    if name in _BUILTINS:
        _builtin(use)
    elif (
        len(args) == 1
        and stdin is None
        and (use.text(0) in _VERSIONS or (use.text(0) == "-version" and plain in _ONE_DASH))
        and plain in _VERSIONED | _VERSIONED_BY_PROJECT
    ):
        use.low("only says something") if plain in _VERSIONED else use.medium("runs what the settings of the project name")
    elif plain in _entries() or plain in _groups() or plain in _WHOLE:
        _known(use)
    elif local:
        for word in args:
            use.argument(word)
    else:
        use.high("changes disks") if name.startswith("mkfs.") else use.unknown("is no program that is in a table")
    if local:
        inside = (
            use.inside(Word(folder)) and ":" not in folder
        )  # the folder's place: the Python of a virtual environment is a link to the system's
        reader.note(
            MEDIUM if inside else UNKNOWN,
            f"runs {name[:80]}, " + ("a program of the working directory" if inside else "outside of the working directory"),
        )
    return None


def _known(use: Use) -> None:
    """A program that is in the table, or has a function of its own."""
    if use.name in _WHOLE:
        _WHOLE[use.name](use)
    elif use.name in _groups():
        words = list(use.args)
        while words and words[0].text in ("-q", "-v", "--quiet", "--no-pager", "--silent", "-s", "--no-color", "-r"):
            words.pop(0)
        _command(use, words)
    else:
        _by_entry(use, _entries()[use.name], use.args)


def _command(use: Use, words: Sequence[Word]) -> None:
    """A command of a program, such as `git log` or `gh pr list`."""
    what = words[0].text if words else "install" if use.name in ("yarn", "pnpm") else ""
    deeper = f"{use.name}.{what}.{words[1].text}" if len(words) > 1 else ""
    name, rest = (deeper, words[2:]) if deeper in _entries() else (f"{use.name}.{what}", words[1:])
    entry, whole = _entries().get(name), _entries().get(use.name)
    if name in _WHOLE:
        _WHOLE[name](use._replace(name=name, args=rest))
    elif entry is not None:
        _by_entry(use._replace(name=name, args=rest), entry, rest)
    elif whole is not None:
        _by_entry(use, whole, words)
    elif what in PUBLISHES:
        use.high("sends something out")
    else:
        use.unknown(f"has no command {what[:40]!r} in its table")


def _by_entry(use: Use, entry: Entry, words: Sequence[Word]) -> None:
    letters, special = entry.kind.rstrip("+!~n"), _SPECIAL.get("git" if use.name.startswith("git.") else use.name)
    if "^" in entry.kind:
        use.high(entry.options)
        return
    if letters == "x*" and special is None:
        use.low("only says something")
        return
    split = next((at for at, word in enumerate(words) if word.text == "--"), len(words)) if "!" in entry.kind else len(words)
    found = take(
        use,
        entry.options,
        words[:split],
        stop=use.name in _STOPS,
        single_dash=use.name.startswith(("go.", "java", "sqlite3", "terraform.")),
    )
    for word in words[split + 1 :]:  # for a program of the project
        use.argument(word) if use.name.startswith(("npm.", "yarn.", "pnpm.", "cargo.")) else use.operand("p", word)
    if "!" in entry.kind and any(_OUTSIDE.search(value) for _, value in found.given):
        use.unknown("has an option with a path outside of the working directory")
    operands = special(use, found) if special is not None else found.operands
    head, star, last = letters.partition("*")
    head, middle = (head[:-1], head[-1]) if star else (head, "")
    for index, word in enumerate(operands):
        behind = len(operands) - index
        kind = last[len(last) - behind] if behind <= len(last) else head[index] if index < len(head) else middle
        use.operand(kind, word) if kind not in ("", "0") else use.unknown(f"has a word {word.text[:40]!r} that is not in its table")
    use.low("only says something" if letters in ("t*", "0") else "only reads")
    if "!" in entry.kind or "+" in entry.kind:
        use.medium("runs the project's own code" if "!" in entry.kind else "changes or fetches something")
    use.reader.rearranged = use.reader.rearranged or "~" in entry.kind
    if "n" in entry.kind and not operands and not found.has("-c", "--bytes", "-n" if use.name == "cat" else ""):
        use.reader.yields = (
            use.stdin.names if use.stdin is not None else (Word("."),) if use.name in ("pwd", "ls") and not found.has("-R", "-l") else None
        )
    if (
        use.name == "ls"
        and operands
        and not found.given
        and all(_is_file(use, word._replace(glob=False)) for word in _files(use, operands))
    ):
        use.reader.yields = tuple(operands)


def _cd(use: Use) -> tuple[str, ...]:
    operands, places = take(use, "-LPe", use.args).operands, use.reader.places
    target = operands[0] if operands else Word(places.home, bool(places.home))
    if (
        not target.known
        or target.glob
        or target.text in ("-", "")
        or len(operands) > 1
        or not (target.text.startswith("/") or use.scope.cwds)
        or use.reader.rearranged
    ):
        use.unknown("goes to a folder that is not known beforehand")
        return ()
    use.low("goes to another folder")
    try:
        found = tuple(dict.fromkeys([places.real(target.text, cwd) for cwd in use.scope.cwds or ("/",)]))
    except (OSError, ValueError):
        return ()
    for one in found:
        use.operand("l", Word(one))
    return found


def _builtin(use: Use) -> None:
    """Builtins that change the shell, in the forms in which nothing later means something else; and activating a virtual environment."""
    if use.name in ("source", "."):
        activates = len(use.args) == 1 and use.text(0).endswith("bin/activate")
        use.runs_code(use.args[0]) if activates else use.unknown("runs a file in this shell")
    elif changes(use.name, [word.text if word.known and not word.glob else None for word in use.args]):
        use.unknown("changes the shell")
    elif use.name == "export":
        use.scope.variables.update({word.text.partition("=")[0]: Word(word.text.partition("=")[2]) for word in use.args})
    elif use.name == "read":
        use.scope.variables.update({word.text: Word("", False, split=True) for word in use.args if word.text != "-r"})
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
    elif names and (use.name == "env" or not all(re.fullmatch(r"[A-Z_][A-Z0-9_]*", name) for name in names)):
        use.unknown("runs another program, or has an option that is not in its table")
    use.low() if names else use.medium("shows the environment, which may hold secrets")


def _run(use: Use) -> None:
    """`uv run`, `poetry run` and their like; `npx` runs what it may have to fetch."""
    words = list(use.args)
    while words and words[0].text in (
        "--quiet",
        "-q",
        "--no-sync",
        "--frozen",
        "--locked",
        "--all-extras",
        "--dev",
        "--active",
        "--no-install",
        "--no",
    ):
        words.pop(0)
    name = words[0].text if words else ""
    if name.startswith("-") or (
        use.name == "npx" and name not in ("ts-node", "tsx") and "p*!" not in _entries().get(name, Entry("", "")).kind
    ):
        use.high("fetches a program and runs it") if use.name == "npx" else use.unknown("has options that are not in its table")
    use.medium("runs a program of the project")
    use.run(words, use.stdin)


def _interpreter(use: Use, found: Options) -> Sequence[Word]:
    if not found.operands and not found.has("--test"):
        piped = use.name in ("bash", "sh", "dash", "zsh") and use.stdin is not None and use.stdin.text is None
        use.high("runs what comes through a pipe or from a file") if piped else use.unknown(
            "runs code that stands in the command, or that it is fed"
        )
    return found.operands


def _bash(use: Use) -> None:
    if use.text(0) == "-c" and len(use.args) == 2 and use.args[1].known:
        use.reader.nested(use.args[1].text, use.scope.copy())
    else:
        _by_entry(use, _entries()["bash"], use.args)


def _python(use: Use) -> None:
    at = next((at for at, word in enumerate(use.args) if word.text == "-m" or not word.text.startswith("-")), len(use.args))
    at += 1 if use.text(at - 1) == "-W" else 0
    module = use.text(at + 1) if use.text(at) == "-m" else ""
    if not module:
        _by_entry(use._replace(name="python"), _entries()["python"], use.args)
        return
    take(use, _entries()["python"].options, use.args[:at])
    rest, entry, paths = (
        use.args[at + 2 :],
        _entries().get(f"python.{module}"),
        [module.replace(".", "/") + end for end in (".py", "/__init__.py", "/__main__.py")],
    )
    use.medium(f"runs the module {module[:60]}")
    if entry is not None:
        _by_entry(use._replace(name=f"python.{module}"), entry, rest)
    elif "p*!" in _entries().get(module.replace("_", "-"), Entry("", "")).kind or module == "pip":
        use.run([Word(module.replace("_", "-")), *rest], use.stdin)
    elif re.fullmatch(r"[A-Za-z_][\w.]*", module) and any(
        os.path.isfile(os.path.join(cwd, src, path)) for cwd in use.scope.cwds for src in ("", "src") for path in paths
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
        if word.tree is not None and not (word.tree.patterns and all(map(made_again, word.tree.patterns))):
            use.high("deletes what is found")
        elif word.tree is None and found.has("-r", "-R", "--recursive"):
            use.reader.path(word, use.scope, "deletes", use.reader.places.delete_all)
        elif word.glob and re.fullmatch(r"[.*?]+", name) and not made_again(folder.rpartition("/")[2]):
            use.high(f"deletes all that is in a folder: {word.text[:80]}")
        else:
            left.append(word)
    return left


def _cp(use: Use, found: Options) -> Sequence[Word]:
    deep = found.has("-r", "-R", "-a", "-d", "-P", "-l", "-s", "--recursive", "--archive", "--no-dereference")
    into, operands = [Word(value) for value in found.values("-t", "--target-directory")], found.operands
    sources, targets = (operands, into) if into else (operands[:-1], operands[-1:])
    use.reads(sources, Names() if deep else None)
    use.writes(targets)
    for folder in targets:
        if use.name != "mv" and any(os.path.isdir(os.path.join(cwd, folder.text)) for cwd in use.scope.cwds):
            names = [word.text.rstrip("/").rpartition("/")[2] for word in sources if not word.glob and word.tree is None]
            use.writes([Word(os.path.join(folder.text, name)) for name in names if name])  # a file that is replaced may be a link
            if deep or len(names) < len(sources):
                use.overwrites(folder)
    if any("/" in value for value in found.values("-S", "--suffix")):
        use.unknown("keeps what it replaces in another folder")
    if use.name == "mv":
        use.writes(sources, "moves")
    _modes(use, found.values("-m", "--mode"))
    use.reader.rearranged = use.reader.rearranged or deep or (use.name == "mv" and not all(_is_file(use, word) for word in sources))
    return ()


def _files(use: Use, words: Sequence[Word]) -> list[Word]:
    """The paths that words become at this moment."""
    return [
        Word(path)
        for word in words
        for cwd in use.scope.cwds
        for path in (use.reader.places.matches(word.text, cwd) or [""] if word.glob else [word.text])
    ]


def _is_file(use: Use, word: Word) -> bool:
    """Whether a path is a file of its own, or not there yet."""
    try:
        return (
            not word.glob
            and word.tree is None
            and all(stat.S_ISREG(os.lstat(os.path.join(cwd, word.text)).st_mode) for cwd in use.scope.cwds)
        )
    except OSError:
        return True


def _ln(use: Use, found: Options) -> Sequence[Word]:
    """A link within one folder. What another one will lead to is not judged."""
    if len(found.operands) != 2 or any(word.glob or re.search(r"(?:^|/)\.\.(?:/|$)", word.text) for word in found.operands):
        use.unknown("makes a link that was not looked at")
    use.reads(found.operands[:1])
    if found.operands and (not use.inside(found.operands[0]) or "/" in found.operands[0].text):
        use.writes(found.operands[:1], "makes a link to")
    return found.operands


def _modes(use: Use, modes: Sequence[str]) -> None:
    """Permissions that a file is given: none for everybody to write, none that lend rights."""
    for mode in modes:
        if not re.fullmatch(
            r"0?[0-7][0-7][0145]|[ugoa]*[-+=][rxX]*|[ug]+[-+=][rwxX]*|\+[rwxX]*|[ugoa]*-[rwxX]*(?:,[ug]*[-+=][rwxX]*)*|u=[rwx]*(?:,(?:g|o|go)=[rx]*)*",
            mode,
        ):
            use.high(f"lets everybody write, or lends rights: {mode[:20]}")


def _chmod(use: Use) -> None:
    minus = [word for word in use.args if re.fullmatch(r"-[rwxX]+", word.text)]  # `chmod -x f`: a mode, and no option
    found = take(use, _entries()["chmod"].options, [word for word in use.args if word not in minus])
    modes, files = ([], found.operands) if minus else ([word.text for word in found.operands[:1]], found.operands[1:])
    if found.has("-R", "--recursive") and not all(re.fullmatch(r"[ugo]*[-+][rxX]+|u\+[rwxX]+|[ugo]+-w", mode) for mode in modes):
        use.high("changes the permissions of all that is in a folder")
    _modes(use, modes)
    use.writes(files, "changes the permissions of")


def _tar(use: Use) -> None:
    words = list(use.args)
    if words and re.fullmatch(r"[A-Za-z]+", words[0].text):  # `tar cfC a b`: each letter takes the next of the words behind them
        letters, words = words[0].text, words[1:]
        given = [[Word(f"-{letter}"), *([words.pop(0)] if letter in "fCTXbgHKLNVIF" and words else [])] for letter in letters]
        words = [word for group in given for word in group] + words
    found = take(use, _entries()["tar"].options, words)
    archive, folder = [Word(value) for value in found.values("-f", "--file")], [Word(value) for value in found.values("-C", "--directory")]
    if any(":" in word.text for word in archive):
        use.high("has its archive on another machine")
    if found.has("-x", "--extract", "--get", "-t", "--list"):
        use.reads(archive)
        use.low() if found.has("-t", "--list") else _unpack(use, folder or [Word(".")])
        return
    use.writes(archive)
    use.reads(found.operands, Names())
    if not all(map(use.inside, folder)):
        use.unknown("packs files of another folder")


def _unpack(use: Use, folders: Sequence[Word]) -> None:
    use.writes(folders, "unpacks into")
    for folder in folders:
        use.overwrites(folder, unpacks=True)


def _pack(use: Use, found: Options) -> Sequence[Word]:
    use.reads(found.operands[:1] if use.name == "unzip" else found.operands)
    if use.name == "unzip" and not found.has("-l", "-v", "-t", "-Z", "-p", "-z"):
        _unpack(use, [Word(value) for value in found.values("-d")] or [Word(".")])
    elif use.name != "unzip" and not found.has("-c", "--stdout", "--to-stdout", "-l", "--list", "-t", "--test"):
        use.writes(found.operands, "replaces")
    return ()


# --- packages, builds, the network ---


def _make(use: Use, found: Options) -> Sequence[Word]:
    for text in [word.text for word in found.operands if "=" in word.text] + [value for value in found.values("-D") if use.name == "cmake"]:
        name, _, value = text.partition("=")
        plain = re.fullmatch(
            r"\d*|yes|no|true|false|on|off|ON|OFF|[Rr]elease|[Dd]ebug|RelWithDebInfo|MinSizeRel|gcc|clang|cc|g\+\+|clang\+\+|python3?",
            value,
        )
        if not plain or not re.fullmatch(r"\w+(?::\w+)?", name) or name in ("SHELL", "MAKEFLAGS"):
            use.unknown(f"is given a variable: {text[:40]}")
    return [word for word in found.operands if "=" not in word.text]


def _compiler(use: Use) -> None:
    plain = r"-(?:std=[\w+]+|pthread|shared|static|fPIC|fsyntax-only|ansi|pedantic|rdynamic|fsanitize=[\w,]+|march=native|l\w+)"
    found = take(use, _entries()["gcc"].options, [word for word in use.args if not re.fullmatch(plain, word.text)])
    if any(re.match(r"[lpa],", value) for value in found.values("-W")) or not all(
        re.fullmatch(r"\d?|s|fast|g", value) for value in found.values("-O")
    ):
        use.unknown("gives options to another program")
    for word in found.operands:
        use.operand("r", word)
    use.writes([] if found.has("-o", "-E") else [Word("a.out")])
    use.medium("compiles")


def _pip(use: Use, found: Options) -> Sequence[Word]:
    for value in found.values("-r", "--requirement", "-c", "--constraint"):
        if "://" in value:
            use.high("installs from elsewhere")
        for path in [os.path.join(cwd, value) for cwd in use.scope.cwds]:
            if os.path.isfile(path) and _FOREIGN_LINE.search(repository.text_of(path)):
                use.unknown(f"installs from elsewhere, as {value[:60]} says")
    return found.operands


def _curl(use: Use, found: Options) -> Sequence[Word]:
    wget = use.name == "wget"
    bodies = found.values("-d", "--data", "--data-raw", "--data-binary", "--data-urlencode", "--data-ascii", "--json", "-F", "--form", "--form-string", "--post-data", "--body-data") if not wget else found.values("--post-data", "--body-data")  # fmt: skip
    files = found.values("-T", "--upload-file") if not wget else found.values("--post-file")
    sends = "sends data" if bodies or files or not set(found.values("-X", "--request", "--method")) <= {"GET", "HEAD"} else ""
    headers = found.values("--header") + (found.values("-H") if not wget else [])
    if any(re.match(r"(?:proxy-)?authorization|cookie|x-.*(?:key|token)|@", value, re.IGNORECASE) for value in headers) or found.has(
        "-u", "--user", "-b", "--cookie"
    ):
        sends = sends or "gives credentials"
    if any("@" in value or "%output" in value for value in found.values("-w", "--write-out")) or any(
        value.startswith("@") for value in headers
    ):
        use.unknown("shows a file, or writes to one")
    files += [re.split(r"[@<]", value, maxsplit=1)[1].partition(";")[0] for value in bodies if re.match(r"[\w.-]*=?[@<]", value)]
    use.reads([Word(value) for value in files])
    for url in [*[word.text for word in found.operands], *found.values("--url")]:
        if re.search(r"[{}\[\]]", re.sub(r"//\[[0-9a-fA-F:.]+\]", "", url)):
            use.unknown("asks addresses that it makes up")
        use.reader.note(*fetch(url, use.reader.hosts, sends))
        if not found.has("-O", "--output-document", "--spider") if wget else found.has("-O", "--remote-name"):
            use.writes([Word(url.partition("?")[0].rpartition("/")[2] or "index.html")])
    return ()


def _kill(use: Use) -> None:
    words = list(use.args)[1 if re.fullmatch(r"-(?:[A-Z]+\d?|\d+)", use.text(0)) else 0 :]
    use.low() if use.text(0) in ("-l", "-L") else use.medium("ends a process")
    for word in words if use.text(0) not in ("-l", "-L") else ():
        use.operand("z", word)


def _needs(use: Use, found: Options) -> Sequence[Word]:
    """Programs of which only some options show something: without one of these they change the system."""
    if use.name == "sqlite3":
        use.unknown("does what it is fed") if len(found.operands) < 2 else None
    elif use.name.endswith("diff"):
        use.reads(found.operands, Names() if found.has("-r", "--recursive") else None)
    elif not found.given:
        use.high("changes the system, or has something run later")
    return found.operands


def _command_word(use: Use) -> None:
    use.unknown("may run a builtin that changes the shell") if changes(
        use.name, [word.text if word.known else None for word in use.args]
    ) else use.low()


_WHOLE: Mapping[str, Callable[[Use], None]] = {
    **dict.fromkeys(("test", "[", "[["), languages.test), "find": languages.find, **dict.fromkeys(("printf", "jobs", "wait", "command"), _command_word), "env": _printenv, "printenv": _printenv, "bash": _bash, "kill": _kill, "npx": _run,
    "git": functools.partial(repository.git, _command), "chmod": _chmod, "tar": _tar, "uv.pip": lambda use: _command(use._replace(name="pip"), use.args), "pip3": lambda use: _known(use._replace(name="pip")),
    **dict.fromkeys(("uv.run", "poetry.run", "pdm.run", "pipenv.run", "bundle.exec", "conda.run"), _run), **dict.fromkeys(("python", "python2", "python3", "pypy3"), _python), **dict.fromkeys(("gcc", "g++", "cc", "c++", "clang", "clang++"), _compiler),
}  # fmt: skip
_SPECIAL: Mapping[str, Callable[[Use, Options], Sequence[Word]]] = {
    **dict.fromkeys(("grep", "egrep", "fgrep", "rg"), languages.grep), "sed": languages.sed, **dict.fromkeys(("awk", "gawk", "mawk", "nawk"), languages.awk), "jq": languages.jq, "xargs": languages.xargs, "ps": languages.ps, "git": repository.special,
    **dict.fromkeys(("timeout", "nice", "time", "nohup", "stdbuf", "strace", "valgrind"), _wrapper), **dict.fromkeys(("gzip", "gunzip", "bzip2", "bunzip2", "xz", "unxz", "zstd", "unzstd", "lz4", "unzip"), _pack), "rm": _rm, "cp": _cp, "mv": _cp, "install": _cp, "ln": _ln,
    "mkdir": lambda use, found: (_modes(use, found.values("-m", "--mode")), found.operands)[1], "make": _make, "gmake": _make, "cmake": _make, "pip.install": _pip, "pip.download": _pip, "curl": _curl, "wget": _curl, **dict.fromkeys(("dpkg", "rpm", "crontab", "sqlite3", "diff", "colordiff"), _needs),
    **dict.fromkeys(("bash", "sh", "dash", "zsh", "node", "nodejs", "ruby", "perl", "php", "lua", "tsx", "python", "Rscript"), _interpreter),
}  # fmt: skip
