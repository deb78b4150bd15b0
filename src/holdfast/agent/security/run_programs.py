"""Programs and builtins that run others: shells, interpreters, wrappers, and what changes the shell itself."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from holdfast.agent.security.declared import declared
from holdfast.agent.security.options import options
from holdfast.agent.security.paths import MEDIUM, UNKNOWN
from holdfast.agent.security.read_programs import evaluated, sets
from holdfast.agent.security.use import Check, Use
from holdfast.agent.security.words import Word

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=", re.ASCII)
SHELLS = ("sh", "bash", "dash", "zsh", "ksh", "ash", "fish", "rbash", "mksh", "csh", "tcsh")


def _script(use: Use, text: str) -> None:
    """Another shell, or this one, runs a text."""
    use.reader.script(text, use.scope.copy())


def _shell(use: Use) -> None:
    if any(not word.known and (not word.text or word.text[0] in "-+") for word in use.args[:1]):
        use.high("runs what is not known beforehand")
    command, index = False, 0
    while index < len(use.args):
        word = use.args[index]
        text = word.text
        if word.known and text in ("--version", "--help"):
            use.low()
            return
        if not (word.known and len(text) > 1 and text[0] in "-+"):
            break
        index += 1
        if text == "--":
            break
        if text in ("--rcfile", "--init-file"):
            use.high("reads a file of commands")
        if text in ("-o", "+o", "-O", "+O"):
            index += 1
        elif not text.startswith("--") and "c" in text[1:]:
            command = True
        elif not text.startswith("--") and "s" in text[1:]:
            _fed(use)
            return
    rest = use.args[index:]
    if command:
        if not rest or not rest[0].known:
            use.high("runs what is not known beforehand")
        _script(use, rest[0].text)
        return
    if rest:
        _file(use, rest[0])
        return
    _fed(use)


def _fed(use: Use) -> None:
    """A shell reads its commands from what it is fed."""
    if use.stdin is None:
        use.medium("reads commands from its input, which is empty")
        return
    text: str | None = use.stdin.text
    if text is None:
        use.high("runs what comes through a pipe or from a file")
    _script(use, text or "")


def _file(use: Use, word: Word) -> None:
    """A program runs the code of a file."""
    if not word.known:
        use.high("runs a file that is not known beforehand")
    if word.text.startswith("/dev/") or word.text.startswith("/proc/"):
        use.high("runs what it is fed")
    if "://" in word.text:
        use.high("runs what it fetches")
    places = use.reader.places
    for cwd in use.scope.cwds or ("",):
        try:
            inside = bool(cwd or os.path.isabs(word.text)) and places.inside(places.real(word.text, cwd or "/"))
        except (OSError, ValueError):
            inside = False
        if not inside:
            use.unknown(f"runs the code of {word.text[:80]}, outside of the working directory")
    use.medium(f"runs the code of {word.text[:80]}")


# Options of interpreters: `^` take code, `!` bring in more than the project's, `=` have a value.
_CODE = {
    "python": "-bBdEhiIOPqRsSuvV -x -W= -X= -c^ -m= --check-hash-based-pycs= --help-all --help-env",
    "node": "-hvic -e^ -p^ -r! --eval^ --print^ --import! --require! --loader! --experimental-loader! --input-type= --check --test --watch --inspect? --inspect-brk? --trace-warnings --no-warnings --enable-source-maps --env-file< --max-old-space-size= --experimental-strip-types --test-reporter= --harmony",
    "ruby": "-acdhlnpsSUvwy -W? -e^ -r! -I! -E= -x? -C! -i? --disable? --enable? --yjit --jit --verbose", "perl": "-acfnpsStTuUvVwWX -e^ -E^ -M! -m! -I! -d! -i? -l? -0? -F= -x? -C? -D?",
    "php": "-ahilmnqsvwe -r^ -B^ -R^ -E^ -F! -f= -d! -c! -t! -S! -z! --run^ --process-begin^ --process-code^ --process-end^ --process-file! --file= --define! --php-ini! --info --ini --modules --syntax-check --no-php-ini --interactive",
    "lua": "-ivWE -e^ -l!", "Rscript": "-e^ --vanilla --no-save --no-restore --verbose --slave --no-echo --quiet --no-environ --no-init-file --default-packages=", "deno": "-qAe^ -e^ --eval^ --quiet",
    "bun": "-e^ -p^ --eval^ --print^ --watch --hot --silent -r! --preload! --bun", "osascript": "-e^ -l= -i", "tclsh": "", "julia": "-qi -e^ -E^ -L! -J! -p= -t= -O? -g? --eval^ --print^ --load! --sysimage! --project? --threads= --startup-file= --color= --quiet --banner= --procs= --optimize? --compiled-modules= --check-bounds=",
    "ghc": "-e^ -o> -O? -W? -X= -c --make -v? -i!", "swipl": "-g^ -t^ -q -l! -s! --quiet", "gdb": "", "sqlite3": "",
}  # fmt: skip
_INTERPRETERS = {
    "python3": "python", "python2": "python", "pypy": "python", "pypy3": "python", "ipython": "python", "nodejs": "node", "R": "Rscript", "luajit": "lua", "lua5.3": "lua", "lua5.4": "lua",
}  # fmt: skip
_MODULES_THAT_ARE_TOOLS = (
    "pip",
    "pytest",
    "ruff",
    "black",
    "mypy",
    "coverage",
    "tox",
    "nox",
    "build",
    "twine",
    "uv",
    "pre_commit",
    "poetry",
    "pipx",
    "pyright",
    "isort",
    "flake8",
)


def _interpreter(use: Use) -> None:
    kind = _INTERPRETERS.get(use.name, "python" if re.fullmatch(r"python\d?(?:\.\d+)?", use.name) else use.name)
    if len(use.args) == 1 and use.args[0].known and use.args[0].text in ("--version", "-V", "--help", "-h", "-VV"):
        use.low()
        return
    if kind == "gdb":
        _gdb(use)
        return
    args = use.args
    if kind == "python":
        at, module = _python_module(args)
        if at >= 0:
            declared(use, _CODE[kind], args=args[:at])
            _module(use, module, args[at + 1 :])
            return
    found = declared(use, _CODE.get(kind, "-e^ -c^ -E^ -r^ --eval^ --print^ --run^"), stop=True)
    rest = found.operands
    if rest and not rest[0].known and not rest[0].text:
        use.high("runs what is not known beforehand")
    for word in found.values("-f", "--file"):
        _file(use, word)
    if kind == "php" and found.has("-f", "--file"):
        return
    if rest and rest[0].text != "-":
        if kind == "deno":
            _deno(use, rest)
            return
        if kind == "bun" and rest[0].text in ("run", "test", "install", "x", "add", "create"):
            use.run([Word("npx" if rest[0].text == "x" else "npm"), *rest])
            return
        _file(use, rest[0])
        return
    if use.stdin is None:
        use.medium("reads code from its input, which is empty")
        return
    use.high("runs code that it is fed")


def _python_module(args: Sequence[Word]) -> tuple[int, str]:
    """Where python's `-m` stands, and what is glued to it; -1 if there is none."""
    index = 0
    while index < len(args) and args[index].known and re.match(r"-[^-]|--.", args[index].text):
        text = args[index].text
        letters = _cluster(text, "WXQmc") if not text.startswith("--") else ""
        if letters.endswith("m"):
            return index, text[len(letters) + 1 :]
        if letters.endswith("c"):
            return -1, ""
        index += 2 if (letters[-1:] in ("W", "X", "Q") and len(letters) + 1 == len(text)) or text == "--check-hash-based-pycs" else 1
    return -1, ""


def _gdb(use: Use) -> None:
    """gdb's commands run programs, and its long options may begin with one dash and be cut short."""
    if (
        any(not word.known or re.match(r"--?(?:e[vx]|ie|ev|x|ix|eval|init|com|p(?:ython)?$)", word.text) for word in use.args)
        or use.stdin is not None
    ):
        use.high("is given commands, which may run programs")
    for word in use.args:
        if word.text.startswith("-") and word.text.lstrip("-") not in (
            "batch",
            "q",
            "quiet",
            "nx",
            "n",
            "nh",
            "args",
            "tui",
            "silent",
            "help",
            "version",
        ):
            use.unknown(f"has an option {word.text[:40]} that is not known here")
    for word in [word for word in use.args if not word.text.startswith("-")][:1]:
        _file(use, word)
    use.medium("runs a program")


def _cluster(text: str, valued: str) -> str:
    """The letters of `-abc` up to the first that takes a value, that included."""
    found = ""
    for letter in text[1:]:
        found += letter
        if letter in valued:
            break
    return found


def _module(use: Use, glued: str, rest: Sequence[Word]) -> None:
    words = [Word(glued), *rest] if glued else list(rest)
    if not words or not words[0].known:
        use.high("runs a module that is not known beforehand")
    name = words[0].text.partition(".")[0]
    if name in _MODULES_THAT_ARE_TOOLS:
        use.run([Word(name.replace("_", "-")), *words[1:]])
        use.medium(f"runs the module {name}")
        return
    if words[0].text == "http.server" or name == "SimpleHTTPServer":
        use.high("offers the folder's files to the network")
    if words[0].text == "json.tool":
        use.reads(words[1:2])
        use.writes(words[2:3])
        use.low()
        return
    if name in ("timeit", "trace", "pdb", "cProfile", "profile", "code", "site", "ensurepip", "webbrowser", "smtpd", "telnetlib", "ftplib"):
        use.unknown(f"runs the module {words[0].text}")
    use.medium(f"runs the module {words[0].text[:80]}")


def _deno(use: Use, rest: Sequence[Word]) -> None:
    if rest[0].text in ("eval", "install", "upgrade", "deploy", "publish", "repl"):
        use.high(f"{rest[0].text} runs or installs what is not known beforehand")
    words = [word for word in rest[1:] if not word.text.startswith("-")]
    if rest[0].text == "run":
        if words:
            _file(use, words[0])
        use.unknown("runs what is not known beforehand")
        return
    use.medium(f"{rest[0].text} runs the project's code")


_SQLITE_ALONE = frozenset((
    "-header", "-noheader", "-csv", "-json", "-line", "-list", "-column", "-box", "-table", "-markdown", "-html", "-quote", "-tabs", "-ascii", "-readonly", "-batch", "-bail", "-echo", "-stats", "-version", "-help", "-safe", "-interactive",
))  # fmt: skip
_SQLITE_VALUED = ("-separator", "-nullvalue", "-newline", "-cmd")
_SQLITE_SAYS = re.compile(
    r"^[ \t]*\.(?!(?:tables?|schema|headers?|mode|dump|index(?:es)?|databases|width|quit|exit|timeout|nullvalue|separator|show|stats|bail|echo|print|fullschema|help)\b)",
    re.MULTILINE,
)


def _sqlite(use: Use) -> None:
    words, index = list[Word](), 0
    while index < len(use.args):
        word = use.args[index]
        index += 1
        name = word.text[1:] if word.text.startswith("--") else word.text
        if not word.text.startswith("-"):
            words.append(word)
        elif name in _SQLITE_VALUED:
            words += use.args[index : index + 1] if name == "-cmd" else []
            index += 1
        elif name not in _SQLITE_ALONE:
            use.unknown(f"has an option {name[:40]} that is not known here")
    if any(
        _SQLITE_SAYS.search(word.text)
        or re.search(r"load_extension|writefile|readfile|edit\(|\b(?:attach|into)\s*['\"(]", word.text, re.IGNORECASE)
        for word in words
    ):
        use.high("runs another program, or reads or writes files")
    use.medium("may change a database")
    use.not_known(use.args)
    use.writes(words[:1], "may change")
    if use.stdin is not None:
        use.unknown("does what it is fed")


# --- wrappers ---


def _after(text: str, skip: int = 0, rank: int = 0) -> Check:
    """A wrapper: its options, `skip` operands of its own, then the program."""

    def check(use: Use) -> None:
        found = declared(use, text, stop=True)
        rest = found.operands[skip:]
        if found.unsure and not rest:
            use.high("runs what is not known beforehand")
        if not rest:
            use.low()
        use.run(rest, use.stdin)
        if rank:
            use.note(rank, f"runs it under {use.name}")

    return check


_STRACE = """-cCdDfFhinNqrtTvVwxyYzZk -aebIpPsSuUXO= -o= -E! --output= --follow-forks --summary --summary-only --trace= --string-limit= --attach= --no-abbrev --relative-timestamps? --absolute-timestamps? --syscall-times?
    --decode-fds? --quiet? --columns= --env!"""


def _strace(use: Use) -> None:
    found = declared(use, _STRACE, stop=True)
    for word in found.values("-o", "--output"):
        if word.text.startswith(("|", "!")) or not word.known:
            use.high("gives what it sees to another program")
        use.writes([word])
    if found.has("-u", "--user"):
        use.high("runs it as somebody else")
    for word in found.values("-e", "--trace"):
        if re.search(r"inject|fault", word.text):
            use.unknown("changes what the program is answered")
    use.run(found.operands, use.stdin)
    use.medium("shows what a program does")


def _privileged(use: Use) -> None:
    use.high("runs it with more rights")


_ENV = """-i0v -u= -C= -S= -a= --ignore-environment --null --debug --unset= --chdir= --split-string= --argv0= --block-signal? --default-signal? --ignore-signal? --list-signal-handling"""


def _env(use: Use) -> None:
    found = declared(use, _ENV, stop=True)
    if found.unsure:
        use.high("runs what is not known beforehand")
    scope = use.scope
    if found.has("-C", "--chdir"):
        use.unknown("runs it in another folder")
        scope = scope.copy()
        scope.cwds = ()
    rest = [word for word in found.operands if word.text != "-" or not word.known]
    split = found.values("-S", "--split-string")
    if split or found.has("-S", "--split-string"):
        if not split or not all(one.known for one in (*split, *rest)) or "\\" in split[0].text or "$" in split[0].text:
            use.high("runs what is not known beforehand")
        use.reader.script(" ".join(["env", split[0].text, *["'" + one.text.replace("'", "'\\''") + "'" for one in rest]]), scope.copy())
        return
    index = 0
    while index < len(rest) and _ASSIGNMENT.match(rest[index].text):
        name, _, value = rest[index].text.partition("=")
        use.reader.assign(name, Word(value, rest[index].known), scope.copy())
        index += 1
    if index < len(rest) and use.name == "env":
        use.reader.run(rest[index:], scope, use.stdin)
        return
    use.medium("shows the environment, which may hold secrets")


def _xargs(use: Use) -> None:
    found = declared(
        use,
        """-0oprtx -a< -dEILnPs= -i? -l? -e? --arg-file< --delimiter= --max-args= --max-procs= --replace? --max-lines? --max-chars= --null --no-run-if-empty --interactive --verbose --exit
        --open-tty --show-limits --eof? --process-slot-var=""",
        stop=True,
    )
    if found.unsure and not found.operands:
        use.high("runs what is not known beforehand")
    marks = [word.text for word in found.values("-I", "--replace")] + (["{}"] if found.has("-i", "--replace", "-I") else [])
    command = [Word("", False) if any(mark and mark in word.text for mark in marks) else word for word in found.operands]
    use.run([*(command or [Word("echo")]), Word("", False)])
    use.medium("gives a program what it is fed")


def _timeout(use: Use) -> None:
    _after("-fvp -k= -s= --foreground --preserve-status --verbose --kill-after= --signal=", 1)(use)


def _command(use: Use) -> None:
    found = options(use.args, "", stop=True)
    if found.has("-v", "-V"):
        use.low()
        use.not_known(use.args)
        return
    _after("-p")(use)


def _watch(use: Use) -> None:
    found = declared(
        use,
        """-bcdegtpCwxrf -n= -q= -s= --beep --color --no-color --differences? --errexit --chgexit --interval= --equexit= --precise --no-title --no-wrap --no-rerun --exec
        --shotsdir>""",
        stop=True,
    )
    if found.unsure or not all(word.known for word in found.operands):
        use.high("runs what is not known beforehand")
    if found.has("-x", "--exec"):
        use.run(found.operands)
    else:
        _script(use, " ".join([word.text for word in found.operands]))


def _su(use: Use) -> None:
    use.high("runs it as somebody else")


def _flock(use: Use) -> None:
    found = declared(
        use,
        """-nsxeuoFv -w= -E= --shared --exclusive --unlock --nonblock --nb --timeout= --wait= --conflict-exit-code= --close --no-fork --verbose""",
        stop=True,
    )
    use.writes(found.operands[:1], "locks")
    rest = found.operands[1:]
    if rest and rest[0].text.startswith(("-c", "--c")):
        if not all(word.known for word in rest):
            use.high("runs what is not known beforehand")
        _script(use, rest[-1].text)
        return
    use.run(rest)


def _applet(use: Use) -> None:
    if use.args and use.args[0].text in ("--list", "--help", "--install"):
        use.high("installs itself") if use.args[0].text == "--install" else use.low()
        return
    if not use.args:
        use.low()
    use.run(use.args, use.stdin)


# --- what changes this shell ---


def _eval(use: Use) -> None:
    if not all(word.known for word in use.args):
        use.high("runs what is made up while it runs")
    use.reader.script(" ".join([word.text for word in use.args]), use.scope)
    use.scope.variables = dict.fromkeys(use.scope.variables)
    use.low()


def _source(use: Use) -> None:
    if use.stdin is not None and not use.args:
        use.high("runs what it is fed")
    if not use.args:
        use.unknown("runs nothing that is named")
    use.scope.variables = dict.fromkeys(use.scope.variables)
    for word in use.args[:1]:
        _file(use, word)


def _cd(use: Use) -> None:
    found = options(use.args)
    scope = use.scope
    use.low()
    if use.name == "popd" or (use.name == "pushd" and not found.operands):
        scope.cwds = ()
        return
    target = found.operands[0] if found.operands else Word(use.reader.places.home, bool(use.reader.places.home))
    if (
        not target.known
        or target.glob
        or target.text == "-"
        or re.fullmatch(r"[+-]\d+", target.text)
        or (not os.path.isabs(target.text) and not scope.cwds)
    ):
        scope.cwds = ()
        use.note(UNKNOWN, f"{use.name} goes to a folder that is not known beforehand")
        return
    places = use.reader.places
    try:
        scope.cwds = tuple(dict.fromkeys([places.real(target.text, cwd) for cwd in scope.cwds or ("/",)]))
    except (OSError, ValueError):
        scope.cwds = ()
    use.reads([Word(cwd) for cwd in scope.cwds])


def _alias(use: Use) -> None:
    use.low()
    for word in use.args:
        name, equals, value = word.text.partition("=")
        if not word.known:
            use.unknown("gives a name to what is not known beforehand")
        if equals:
            use.reader.defines(name, use.scope)
            use.scope.defined |= {f"alias {name}"}
            inner = use.scope.copy()
            inner.cwds = ()
            use.reader.script(value, inner)


def _set(use: Use) -> None:
    if any(not word.known or re.fullmatch(r"[-+].*[abkpPBt].*", word.text) for word in use.args[:1]):
        use.unknown("changes how the shell works")
    use.medium("shows or changes what the shell knows") if not use.args else use.low()


def _shopt(use: Use) -> None:
    if any(
        not word.known or word.text in ("expand_aliases", "extglob", "autocd", "cdable_vars", "sourcepath", "globasciiranges", "cdspell")
        for word in use.args
    ):
        use.unknown("changes how the shell reads what comes after")
    use.low()


def _trap(use: Use) -> None:
    found = [word for word in use.args if word.text not in ("-l", "-p", "--")]
    use.low()
    if len(found) > 1 or (found and found[0].text not in ("-", "")):
        if not found[0].known:
            use.high("will run what is not known beforehand")
        inner = use.scope.copy()
        inner.cwds = ()
        use.reader.script(found[0].text, inner)


def _read(use: Use) -> None:
    use.low()
    found = options(use.args, "adinNptu" if use.name == "read" else "dnOsuCc" if use.name != "getopts" else "")
    for word in (*(found.operands if use.name != "getopts" else found.operands[1:2]), *found.values("-a")):
        sets(use, word)
    if use.name in ("mapfile", "readarray") and found.has("-C", "-c"):
        use.unknown("runs another command")


def _let(use: Use) -> None:
    use.low()
    for word in use.args:
        evaluated(use, word)
        if not word.known or "[" in word.text:
            use.unknown("sets what is not known beforehand")
        for name in re.findall(r"[A-Za-z_]\w*", word.text):
            use.reader.assign(name, Word("", False), use.scope)


def _unset(use: Use) -> None:
    use.low()
    for word in use.args:
        evaluated(use, word)
        if not word.known:
            use.unknown("unsets what is not known beforehand")
        use.scope.variables[word.text.partition("[")[0]] = None
        use.scope.defined |= {f"maybe {word.text}"} if word.text in use.scope.defined else frozenset()


def _exec(use: Use) -> None:
    found = declared(use, "-cl -a=", stop=True)
    use.low()
    use.run(found.operands, use.stdin)


def _changes_shell(use: Use) -> None:
    use.unknown("changes what names mean to the shell")


def _quiet(use: Use) -> None:
    use.low()
    use.not_known(use.args)


def table() -> Mapping[str, Check]:
    """What is known of these programs, by name."""
    found: dict[str, Check] = dict.fromkeys(SHELLS, _shell)
    found.update(dict.fromkeys((*_CODE, *_INTERPRETERS), _interpreter))
    found.update(dict.fromkeys(("sudo", "doas", "pkexec", "run0", "gosu"), _privileged))
    found.update(
        dict.fromkeys(
            ("su", "runuser", "chroot", "nsenter", "unshare", "setpriv", "capsh", "machinectl", "systemd-run", "start-stop-daemon"), _su
        )
    )
    found.update(dict.fromkeys(("cd", "pushd", "popd"), _cd))
    found.update(dict.fromkeys(("read", "mapfile", "readarray", "getopts"), _read))
    found.update(
        dict.fromkeys(
            ("enable", "bind", "complete", "compgen", "hash", "disown", "fc", "history", "unalias", "compopt", "caller", "logout"),
            _changes_shell,
        )
    )
    found.update(dict.fromkeys(("wait", "fg", "bg"), _quiet))
    found.update({"nohup": _after(""), "builtin": _after(""), "setsid": _after("-cfw --ctty --fork --wait"), "unset": _unset})
    found.update({
        "env": _env, "printenv": _env, "xargs": _xargs, "timeout": _timeout, "gtimeout": _timeout, "nice": _after("# -n= --adjustment="), "ionice": _after("-t -c= -n= -p= -P= -u= --class= --classdata= --ignore --pid= --pgid= --uid="), "time": _after("-apvqV -f= -o> --output> --append --format= --portability --verbose --quiet"),
        "stdbuf": _after("-ioe= --input= --output= --error="), "command": _command, "watch": _watch, "flock": _flock, "busybox": _applet, "toybox": _applet, "eval": _eval, "source": _source, ".": _source,
        "alias": _alias, "set": _set, "shopt": _shopt, "trap": _trap, "let": _let, "exec": _exec, "strace": _strace, "ltrace": _after("-cCfhiLrStTV -eospuAabIlnwxFXDg!", rank=MEDIUM),
        "chronic": _after("-ev"), "unbuffer": _after("-p"), "caffeinate": _after("-disu -tw="), "catchsegv": _after(""), "sqlite3": _sqlite, "taskset": _after("-ac -p! --all-tasks --cpu-list --pid!", skip=1), "numactl": _after("-alHs -mNCpi= --membind= --cpunodebind= --physcpubind= --interleave= --localalloc --all"),
        "coproc": _changes_shell, "script": _changes_shell, "parallel": _changes_shell, "entr": _changes_shell, "expect": _changes_shell,
    })  # fmt: skip
    return found
