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
from holdfast.agent.security.options import Options, take
from holdfast.agent.security.paths import MEDIUM, UNKNOWN, made_again
from holdfast.agent.security.script import Reader, Scope, Stdin
from holdfast.agent.security.use import Use
from holdfast.agent.security.words import Word

Special = Callable[[Use, Options], Sequence[Word]]
"""Judges the words of one program, and gives the operands that are left to be judged by its kind."""

# Folders where a name with its folder is the same program as without.
_SYSTEM = frozenset(("/bin", "/usr/bin", "/usr/local/bin", "/sbin", "/usr/sbin", "/usr/local/sbin"))
_NUMBERED = re.compile(r"(python|pypy|pip|gcc|g\+\+|clang|clang\+\+)-?\d+(?:\.\d+)*")
# Programs that words which are not known cannot lead to harm; and programs for which no option does more than their entry allows.
_OPEN = frozenset(("echo", "printf", "true", "false", ":", "basename", "dirname", "expr", "seq", "sleep", "exit", "test", "["))
_GLOB_SAFE = frozenset(("echo", "ls", "cat", "head", "grep", "egrep", "fgrep", "stat", "touch", "basename", "dirname"))
# With one of these words alone they only print their version or their help. Others read the project's files even then.
_VERSIONS = frozenset(("--version", "-V", "-v", "--help", "-h"))
_VERSIONED = frozenset(
    """python python2 python3 pypy3 pip pip3 node nodejs ruby perl php lua gcc g++ cc c++ clang clang++ git make cmake ninja java javac npm bash sh tar curl wget docker kubectl aws gh jq rg
    sqlite3 redis-cli ssh ffmpeg convert pandoc julia ghc tsc gem conda uv pipx ruff""".split()  # noqa: SIM905
)
_POSIX = frozenset(
    ("awk", "gawk", "mawk", "nawk", "xargs", "timeout", "nice", "time", "stdbuf", "python", "node", "ruby", "perl", "bash", "sh")
)
_FOREIGN_LINE = re.compile(
    r"^\s*(?:-(?!r|c|e\s*\.)|--(?!require|constraint|no-|only-)|(?:git|hg|svn|bzr)\+|\w+://|[^#\n]*\s@\s)", re.MULTILINE
)


class Entry(NamedTuple):
    """An entry of the table: the letters for the operands with their signs, and the options, or the reason why the program is high."""

    kind: str
    options: str


@functools.cache
def _entries() -> Mapping[str, Entry]:
    found: dict[str, Entry] = {}
    for text in (table.READING, table.SEARCHING, table.WRITING, table.GIT, table.BUILDS, table.WORLD):
        for line in re.split(r" ; |\n", text.strip()):
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
    local = slash and folder not in _SYSTEM
    use = Use(reader, last if slash else name, args, scope, stdin)
    if not all(word.known for word in args) and use.name not in _OPEN:
        use.unknown("is given what is not known beforehand")
    for word in args:
        if word.glob and word.text[:1] in "*?[" and use.name not in _GLOB_SAFE and not reader.no_options(word, scope):
            use.unknown("is given names of files that may be options")
    if name == "cd":
        return _cd(use)
    match = _NUMBERED.fullmatch(use.name)
    entry = use.name if use.name in _entries() or use.name in _groups() or match is None else match[1].replace("pypy", "python")
    if entry in _entries() or entry in _groups() or use.name in _WHOLE:
        _known(use._replace(name=entry))
    elif use.name.startswith("mkfs."):
        use.high("changes disks")
    elif not local:
        use.unknown("is no program that is in a table")
    else:
        for word in args:
            use.argument(word)
    if local:
        inside = use.inside(Word(folder))  # the folder's place: the Python of a virtual environment is a link to the system's
        where = "a program of the working directory" if inside else "outside of the working directory"
        reader.note(MEDIUM if inside else UNKNOWN, f"runs {name[:80]}, {where}")
    return None


def _known(use: Use) -> None:
    """A program that is in the table, or has a function of its own."""
    if len(use.args) == 1 and use.stdin is None and use.name in _VERSIONED and use.text(0) in _VERSIONS:
        use.low("only says something")
    elif use.name in _WHOLE:
        _WHOLE[use.name](use)
    elif use.name in _groups():
        words = list(use.args)
        while words and words[0].text in ("-q", "-v", "--quiet", "--no-pager", "--silent", "-s"):
            words.pop(0)
        _command(use, words)
    else:
        _by_entry(use, _entries()[use.name], use.args)


def _command(use: Use, words: Sequence[Word]) -> None:
    """A command of a program, such as `git log`: the first word is its name."""
    what = words[0].text if words else "install" if use.name in ("yarn", "pnpm") else ""
    name = f"{'conda' if use.name == 'mamba' else use.name}.{what}"
    entry = _entries().get(name) or _entries().get(use.name)
    if name in _WHOLE:
        _WHOLE[name](use._replace(name=name.replace(".", " "), args=words[1:]))
    elif entry is not None:
        _by_entry(use._replace(name=name, args=words[1:]), entry, words[1:])
    elif what in ("publish", "deploy", "login", "push", "owner", "adduser", "unpublish", "upload", "release"):
        use.high("sends something out")
    else:
        use.unknown(f"has no command {what[:40]!r} in its table")


def _by_entry(use: Use, entry: Entry, words: Sequence[Word]) -> None:
    if "^" in entry.kind:
        use.high(entry.options)
        return
    letters = entry.kind.rstrip("+!~n")
    if letters == "x*" and use.name not in _SPECIAL:
        use.low("only says something")
        return
    found = take(use, entry.options, words, stop=use.name in _POSIX, single_dash=use.name.startswith("go."))
    use.low()
    operands = _SPECIAL[use.name](use, found) if use.name in _SPECIAL else found.operands
    first, _, last = letters.partition("*") if "*" in letters else (letters, "", "")
    star, first = (first[-1], first[:-1]) if "*" in letters else ("", first)
    for index, word in enumerate(operands):
        behind = len(operands) - index
        kind = last[len(last) - behind] if behind <= len(last) else first[index] if index < len(first) else star
        use.operand(kind, word) if kind and kind != "0" else use.unknown(f"has a word {word.text[:40]!r} that is not in its table")
    if "!" in entry.kind:
        use.medium("runs the project's own code")
    if "+" in entry.kind:
        use.medium("changes or fetches something")
    use.reader.rearranged = use.reader.rearranged or "~" in entry.kind
    if "n" in entry.kind and not found.has("-c", "--bytes", "-n" if use.name == "cat" else "") and not operands:
        use.reader.yields = use.stdin.names if use.stdin is not None else (Word("."),) if use.name == "pwd" else None


def _cd(use: Use) -> tuple[str, ...]:
    operands = take(use, "-LPe", use.args).operands
    target, places = operands[0] if operands else Word(use.reader.places.home, bool(use.reader.places.home)), use.reader.places
    if (
        not target.known
        or target.glob
        or target.text in ("-", "")
        or len(operands) > 1
        or not (target.text.startswith("/") or use.scope.cwds)
    ):
        use.unknown("goes to a folder that is not known beforehand")
        return ()
    if use.reader.rearranged:
        use.unknown("goes to a folder that an earlier command may have made a link")
    use.low("goes to another folder")
    try:
        found = tuple(dict.fromkeys([places.real(target.text, cwd) for cwd in use.scope.cwds or ("/",)]))
    except (OSError, ValueError):
        return ()
    for one in found:
        use.operand("l", Word(one))
    return found


# --- programs that run another one ---


def _wrapper(use: Use, found: Options) -> Sequence[Word]:
    rest = found.operands
    if use.name == "timeout":
        rest = rest[1:] if rest and re.fullmatch(r"\d+(?:\.\d+)?[smhd]?", rest[0].text) else []
    use.run(rest, use.stdin)
    return ()


def _command_word(use: Use) -> None:
    if use.text(0) in ("-v", "-V") and all(word.known for word in use.args):
        use.low("only says something")
    else:
        use.unknown("may run a builtin that changes the shell")


def _environment(use: Use) -> None:
    """`printenv`, and `env` where it runs nothing."""
    for word in use.args:
        if use.name == "env" or not re.fullmatch(r"[A-Z_][A-Z0-9_]*", word.text):
            use.unknown("runs another program, or has an option that is not in its table")
        elif re.search(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH", word.text):
            use.high(f"shows {word.text}, which may be a secret")
    use.low() if use.args else use.medium("shows the environment, which may hold secrets")


def _uv_run(use: Use) -> None:
    words = list(use.args)
    while words and words[0].text in ("--quiet", "-q", "--no-sync", "--frozen", "--locked", "--all-extras", "--dev", "--active"):
        words.pop(0)
    use.medium("runs a program of the project")
    use.run(words if words and not words[0].text.startswith("-") else [], use.stdin)


def _npx(use: Use) -> None:
    words = [word for word in use.args if word.text not in ("--no-install", "--no")]
    there = words and any(os.path.exists(os.path.join(cwd, "node_modules", ".bin", words[0].text)) for cwd in use.scope.cwds)
    if words and words[0].text in _entries() and (there or len(words) < len(use.args)):
        use.run(words, use.stdin)
    else:
        use.high("fetches a program and runs it")


def _shell(use: Use, found: Options) -> Sequence[Word]:
    if not found.operands and use.stdin is not None and use.stdin.text is None:
        use.high("runs what comes through a pipe or from a file")
    if not found.operands:
        use.unknown("runs code that stands in the command, or that it is fed")
    return found.operands


def _bash(use: Use) -> None:
    if use.text(0) == "-c" and len(use.args) == 2 and use.args[1].known:
        use.reader.nested(use.args[1].text, use.scope)
    else:
        _by_entry(use, _entries()["bash"], use.args)


def _python(use: Use) -> None:
    at = next((at for at, word in enumerate(use.args) if word.text == "-m" or not word.text.startswith("-")), -1)
    if at >= 0 and use.args[at - 1].text in ("-W", "-X") and at:
        at = next((later for later in range(at + 1, len(use.args)) if use.args[later - 1].text not in ("-W", "-X")), -1)
    if at < 0 or use.args[at].text != "-m" or len(use.args) < at + 2:
        _by_entry(use, _entries()["python"], use.args)
        return
    take(use, _entries()["python"].options, use.args[:at])
    module, rest = use.args[at + 1].text, use.args[at + 2 :]
    program = module.replace("_", "-")
    use.medium(f"runs the module {module[:60]}")
    if f"python.{module}" in _entries():
        _by_entry(use._replace(name=f"python.{module}"), _entries()[f"python.{module}"], rest)
    elif program == "pip" or "p*!" in _entries().get(program, Entry("", "")).kind:
        use.run([Word(program), *rest], use.stdin)
    elif _is_module(use, module):
        for word in rest:
            use.argument(word)
    else:
        use.unknown(f"runs the module {module[:60]}, which is not of the project")


def _is_module(use: Use, name: str) -> bool:
    """Whether a module is one of the project."""
    places = [os.path.join(cwd, folder, name.replace(".", "/")) for cwd in use.scope.cwds for folder in ("", "src")]
    return re.fullmatch(r"[A-Za-z_][\w.]*", name) is not None and any(os.path.isfile(f"{one}.py") or os.path.isdir(one) for one in places)


# --- files ---


def _rm(use: Use, found: Options) -> Sequence[Word]:
    deep, left = found.has("-r", "-R", "--recursive"), list[Word]()
    for word in found.operands:
        folder, _, name = word.text.rpartition("/")
        if word.tree is not None:
            if not word.tree.patterns or not all(map(made_again, word.tree.patterns)):
                use.high("deletes what is found")
            left.append(word)
        elif deep:
            use.reader.path(word, use.scope, "deletes", use.reader.places.delete_all)
        elif word.glob and re.fullmatch(r"[.*?]+", name) and not made_again(folder.rpartition("/")[2]):
            use.high(f"deletes all that is in a folder: {word.text[:80]}")
        else:
            left.append(word)
    return left


def _cp(use: Use, found: Options) -> Sequence[Word]:
    deep = found.has("-r", "-R", "-a", "-d", "-P", "-l", "-s", "--recursive", "--archive", "--no-dereference")
    if any("/" in value for value in found.values("-S", "--suffix")):
        use.unknown("keeps what it replaces in another folder")
    targets = [Word(value) for value in found.values("-t", "--target-directory")] or found.operands[-1:]
    sources = found.operands if found.has("-t", "--target-directory") else found.operands[:-1]
    for folder in targets:
        there = [cwd for cwd in use.scope.cwds if os.path.isdir(os.path.join(cwd, folder.text))]
        if there and use.name != "mv":  # a file of the folder that is replaced may be a link
            names = [word.text.rstrip("/").rpartition("/")[2] for word in sources if not word.glob and word.tree is None]
            use.writes([Word(os.path.join(folder.text, name)) for name in names if name])
            if deep or len(names) < len(sources):
                use.overwrites(folder)
    use.reader.rearranged = use.reader.rearranged or deep or (use.name == "mv" and not all(_is_file(use, word) for word in sources))
    if deep:
        use.reads(sources, languages.ALL)
    return [*sources, *targets] if not found.has("-t", "--target-directory") else [*sources, *targets]


def _is_file(use: Use, word: Word) -> bool:
    """Whether a path is a file of its own, or not there yet."""
    for cwd in use.scope.cwds:
        try:
            if word.glob or word.tree is not None or not stat.S_ISREG(os.lstat(os.path.join(cwd, word.text)).st_mode):
                return False
        except OSError:
            continue
    return bool(use.scope.cwds)


def _ln(use: Use, found: Options) -> Sequence[Word]:
    """A link within one folder. What another one will lead to is not judged."""
    if len(found.operands) != 2 or any(word.glob or re.search(r"(?:^|/)\.\.(?:/|$)", word.text) for word in found.operands):
        use.unknown("makes a link that was not looked at")
    if found.operands and (not use.inside(found.operands[0]) or "/" in found.operands[0].text):
        use.writes(found.operands[:1], "makes a link to")
    return found.operands


def _modes(use: Use, modes: Sequence[str]) -> None:
    """Permissions that a file is given: none for everybody to write, none that lend rights."""
    for mode in modes:
        digits = mode.lstrip("=").lstrip("0")
        if re.fullmatch(r"[0-7]*", digits):
            if len(digits) > 3 or int(digits or "0", 8) & 0o002:
                use.high(f"lets everybody write, or lends rights: {mode}")
        elif not re.fullmatch(r"[ugoa]*[-+=][rwxX]*(?:,[ugoa]*[-+=][rwxX]*)*", mode) or re.search(r"[oa][ugoa]*[+=][rxX]*w", mode):
            use.high(f"lets everybody write, or lends rights: {mode[:20]}")


def _mkdir(use: Use, found: Options) -> Sequence[Word]:
    _modes(use, found.values("-m", "--mode"))
    return found.operands if use.name == "mkdir" else _cp(use, found)


def _chmod(use: Use) -> None:
    minus = [word for word in use.args if re.fullmatch(r"-[rwxX]+", word.text)]  # `chmod -x f`: a mode, and no option
    found = take(use, _entries()["chmod"].options, [word for word in use.args if word not in minus])
    mode = "" if minus or not found.operands else found.operands[0].text
    if found.has("-R", "--recursive") and not re.fullmatch(r"|[ugo]*[-+][rxX]+|u\+[rwxX]+|[ugo]+-w", mode):
        use.high("changes the permissions of all that is in a folder")
    _modes(use, [mode] if mode else [])
    use.writes(found.operands if minus else found.operands[1:], "changes the permissions of")


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
    if found.has("-t", "--list"):
        use.low()
        use.reads(archive)
    elif found.has("-x", "--extract", "--get"):
        use.reads(archive)
        _unpack(use, folder or [Word(".")])
    else:
        use.writes(archive)
        if not all(map(use.inside, folder)):
            use.unknown("packs files of another folder")
        use.reads(found.operands, languages.ALL)
        use.medium("packs files")


def _unpack(use: Use, folders: Sequence[Word]) -> None:
    use.writes(folders, "unpacks into")
    for folder in folders:
        use.overwrites(folder, unpacks=True)


def _unzip(use: Use, found: Options) -> Sequence[Word]:
    if not found.has("-l", "-v", "-t", "-Z", "-p", "-z"):
        _unpack(use, [Word(value) for value in found.values("-d")] or [Word(".")])
    return found.operands


def _pack(use: Use, found: Options) -> Sequence[Word]:
    if not found.has("-c", "--stdout", "--to-stdout", "-l", "--list", "-t", "--test"):
        use.writes(found.operands, "replaces")
    return found.operands


def _split(use: Use, found: Options) -> Sequence[Word]:
    prefix = found.operands[1].text if len(found.operands) > 1 else "x"
    return [*(found.operands[:1] or [Word("-")]), Word(f"{prefix}*", glob=True)]


def _patch(use: Use, found: Options) -> Sequence[Word]:
    _unpack(use, [Word(".")])
    return found.operands


# --- packages and builds ---


def _make(use: Use, found: Options) -> Sequence[Word]:
    for word in found.operands:
        name, equals, value = word.text.partition("=")
        plain = re.fullmatch(r"\d*|yes|no|true|false|on|off|[Rr]elease|[Dd]ebug", value) and name not in ("SHELL", "MAKEFLAGS")
        if equals and not (plain and re.fullmatch(r"\w+", name)):
            use.unknown(f"is given a variable: {word.text[:40]}")
    return found.operands


def _cmake(use: Use, found: Options) -> Sequence[Word]:
    for value in found.values("-D"):
        if not re.fullmatch(r"(?:CMAKE_BUILD_TYPE|CMAKE_EXPORT_COMPILE_COMMANDS|\w*BUILD_\w+|ENABLE_\w+|WITH_\w+)(?::\w+)?=\w+", value):
            use.unknown(f"is given a variable: {value[:40]}")
    return found.operands


def _compiler(use: Use) -> None:
    plain = r"-(?:std=[\w+]+|pthread|shared|static|fPIC|fsyntax-only|ansi|pedantic|rdynamic|fsanitize=\w+|march=native)"
    found = take(use, _entries()["gcc"].options, [word for word in use.args if not re.fullmatch(plain, word.text)])
    if any(re.match(r"[lpa],", value) for value in found.values("-W")) or any(word.text.startswith("@") for word in found.operands):
        use.unknown("gives options to another program, or takes them from a file")
    use.reads(found.operands)
    use.writes([] if found.has("-o", "-E") else [Word("a.out")])
    use.medium("compiles")


def _pip_install(use: Use, found: Options) -> Sequence[Word]:
    for value in found.values("-r", "--requirement", "-c", "--constraint"):
        if "://" in value:
            use.high("installs from elsewhere")
        for cwd in use.scope.cwds:
            try:
                with open(os.path.join(cwd, value), encoding="utf-8", errors="replace") as file:
                    if _FOREIGN_LINE.search(file.read(1_000_000)):
                        use.unknown(f"installs from elsewhere, as {value[:60]} says")
            except OSError:
                continue
    return found.operands


def _npm_run(use: Use) -> None:
    """What is behind `--` is for the project's own program."""
    split = next((at for at, word in enumerate(use.args) if word.text == "--"), len(use.args))
    entry = _entries()[use.name.replace(" ", ".")]
    _by_entry(use, entry, use.args[:split])
    for word in use.args[split + 1 :]:
        use.argument(word)


# --- the network ---


def _curl(use: Use, found: Options) -> Sequence[Word]:
    bodies = found.values("-d", "--data", "--data-raw", "--data-binary", "--data-urlencode", "--data-ascii", "--json", "-F", "--form", "--form-string", "-T", "--upload-file", "--post-data", "--post-file", "--body-data")  # fmt: skip
    if use.name == "wget":
        bodies = found.values("--post-data", "--post-file", "--body-data", "--method")
    sends = "sends data" if bodies or any(value not in ("GET", "HEAD") for value in found.values("-X", "--request")) else ""
    headers = found.values("-H", "--header") if use.name == "curl" else found.values("--header")
    if any(re.match(r"(?:proxy-)?authorization|cookie|x-.*(?:key|token)|@", value, re.IGNORECASE) for value in headers) or found.has(
        "-u", "--user", "-b", "--cookie"
    ):
        sends = sends or "gives credentials"
    if any("@" in value or "%output" in value for value in found.values("-w", "--write-out")):
        use.unknown("shows a file, or writes to one")
    for value in bodies:
        file = value[1:] if value.startswith("@") else re.split(r"=[@<]|@", value)[-1] if re.search(r"=[@<]|^\w*@", value) else value
        use.reads([Word(file.partition(";")[0])] if file != value or found.has("-T", "--upload-file", "--post-file") else [])
    for url in [*[word.text for word in found.operands], *found.values("--url")]:
        if re.search(r"[{}\[\]]", re.sub(r"//\[[0-9a-fA-F:.]+\]", "", url)):
            use.unknown("asks addresses that it makes up")
        use.reader.note(*fetch(url, use.reader.hosts, sends))
        if found.has("-O", "--remote-name") if use.name == "curl" else not found.has("-O", "--output-document", "--spider"):
            use.writes([Word(url.partition("?")[0].rpartition("/")[2] or "index.html")])
    return ()


def _kill(use: Use) -> None:
    words = list(use.args)
    if use.text(0) in ("-l", "-L"):
        words = []
    elif re.fullmatch(r"-(?:[A-Z]+\d?|\d+)", use.text(0)):
        words = words[1:]
    use.medium("ends a process") if words else use.low()
    for word in words:
        use.operand("z", word)


def _ip(use: Use) -> None:
    shows = {"a", "addr", "address", "r", "route", "link", "l", "neigh", "rule", "show", "list", "ls", "dev"}
    words = [word.text for word in use.args if not re.fullmatch(r"-(?:[46csjopd]|br|brief|json)", word.text)]
    if all(word in shows or words[at - 1 : at] == ["dev"] for at, word in enumerate(words)):
        use.low()
    else:
        use.high("changes the network, or does so by a file")


def _dpkg(use: Use, found: Options) -> Sequence[Word]:
    if not found.given or (use.name == "crontab" and not found.has("-l")):
        use.high("changes what is installed on the system, or has something run later")
    return found.operands


_WHOLE: Mapping[str, Callable[[Use], None]] = {
    "printf": languages.printf, "test": languages.test, "[": languages.test, "find": languages.find, "jobs": languages.printf, "wait": languages.printf, "command": _command_word, "env": _environment, "printenv": _environment,
    "git": functools.partial(repository.git, _command), "chmod": _chmod, "tar": _tar, "npx": _npx, "kill": _kill, "ip": _ip, "bash": _bash, "uv.run": _uv_run, "uv.pip": lambda use: _command(use._replace(name="pip"), use.args),
    **dict.fromkeys(("poetry.run", "pdm.run", "pipenv.run", "bundle.exec", "conda.run"), _uv_run), **dict.fromkeys(("python", "python2", "python3", "pypy3"), _python), **dict.fromkeys(("gcc", "g++", "cc", "c++", "clang", "clang++"), _compiler),
    **{f"{manager}.{what}": _npm_run for manager in ("npm", "yarn", "pnpm") for what in ("run", "run-script", "test", "t", "start", "build", "lint")}, **{f"cargo.{what}": _npm_run for what in ("run", "r", "test", "t", "bench", "clippy")},
    "pip3": lambda use: _known(use._replace(name="pip")), **{f"git.{name}": check for name, check in repository.WHOLE.items()},
}  # fmt: skip
_SPECIAL: Mapping[str, Special] = {
    **languages.SPECIAL, **{f"git.{name}": check for name, check in repository.SPECIAL.items()}, **dict.fromkeys(("timeout", "nice", "time", "stdbuf"), _wrapper), **dict.fromkeys(("gzip", "gunzip", "bzip2", "bunzip2", "xz", "unxz", "zstd", "unzstd", "lz4"), _pack),
    "rm": _rm, "cp": _cp, "mv": _cp, "install": _mkdir, "mkdir": _mkdir, "ln": _ln, "unzip": _unzip, "split": _split, "patch": _patch, "make": _make, "gmake": _make, "cmake": _cmake, "pip.install": _pip_install, "pip.download": _pip_install,
    "curl": _curl, "wget": _curl, "dpkg": _dpkg, "rpm": _dpkg, "crontab": _dpkg, **dict.fromkeys(("bash", "sh", "dash", "zsh", "node", "nodejs", "ruby", "perl", "php", "lua", "bun", "tsx", "python", "Rscript"), _shell),
}  # fmt: skip
