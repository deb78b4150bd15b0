"""Generators of hostile shell scripts. Each puts a canary where a reader of shell scripts may take
it for data.

All take a `random.Random`, so that a seed gives the same scripts again.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from random import Random

# Commands with an effect that the box notices. A reader may not know the first two; the
# others it must judge by paths.
CANARIES = (
    "canary",
    "/outside/bin/canary",
    "canary x",
    "touch /outside/x",
    "echo x>/outside/x",
    "cat .env",
    "rm -r /outside/d",
    "cat /etc/shadow",
)

QUIET = (
    "ls",
    "ls -la",
    "echo a",
    "echo a b",
    "cat a.txt",
    "true",
    ":",
    "pwd",
    "git status",
    "git log --oneline",
    "grep -n one a.txt",
    "wc -l a.txt",
    "head -1 a.txt",
    "test -f a.txt",
    "[ a ]",
    "[ -f a.txt ]",
    "[[ a ]]",
    "[[ -f a.txt ]]",
    "X=1",
    "X=a",
    "X=",
    "Y=(1)",
    "Y=(1 2)",
    "Y[0]=1",
    "export X=1",
    "cd src",
    "echo $X",
    'echo "$X"',
    "echo $#",
    "echo $?",
    "echo ${X}",
    "echo ${#X}",
    "echo ${X:-a}",
    "printf '%s\\n' a",
    "((1))",
    "((X))",
    "let 1",
    "echo $((1))",
    "sort a.txt",
    "sed -n 1p a.txt",
    "awk 1 a.txt",
    "find . -name a.txt",
    "read x < a.txt",
    "echo a | cat",
    "true && true",
    "false || true",
    "! false",
    "(ls)",
    "{ ls; }",
    "if true; then ls; fi",
    "for i in 1 2; do echo $i; done",
    "while false; do ls; done",
    "case x in x) ls;; esac",
    "touch new.txt",
    "mkdir -p d1",
    "time ls",
    "ls 2>&1",
    "ls >/dev/null",
    "ls 2>/dev/null",
    "ls &>/dev/null",
    "cat < a.txt",
    "cat <<<a",
    "echo a > new.txt",
    "echo a >> new.txt",
    "git diff",
    "git show",
    "date",
    "echo *",
    "echo ~",
    "echo {a,b}",
    "basename x",
    "tr a b < a.txt",
    "cut -c1 a.txt",
    "uniq a.txt",
    "exit 0",
    "wait",
    "sleep 0",
    "env",
    "type ls",
    "command -v ls",
    "set -e",
    "set -x",
    "shopt -s extglob",
    "alias",
    "jobs",
    "trap",
    "unset X",
    "f() { ls; }",
    "eval ls",
    "xargs echo < a.txt",
    "jq . package.json",
    "diff a.txt b.txt",
    "tee new.txt < a.txt",
    "stat a.txt",
    "file a.txt",
)

FRAGMENTS = (
    "a",
    "a",
    "a.txt",
    "x",
    "1",
    "-",
    "--",
    "#",
    "#",
    "\\#",
    "\\ ",
    "\\",
    "\\\\",
    "\\\n",
    "\\\n#",
    "'",
    '"',
    "''",
    '""',
    "'a b'",
    '"a b"',
    "'#'",
    '"#"',
    "\\'",
    '\\"',
    "$",
    "$#",
    "$#",
    "$$",
    "$?",
    "$!",
    "$-",
    "$_",
    "$@",
    "$*",
    "$0",
    "$1",
    "${",
    "}",
    "${#}",
    "${#a}",
    "${a#b}",
    "${a##b}",
    "${a%b}",
    "${a/b/c}",
    "${a:-b}",
    "${a:-'}",
    '${a:-"}',
    "${a:-#}",
    "${a:1}",
    "${!a}",
    "${a@P}",
    "${a[0]}",
    "${a[@]}",
    "${#a[@]}",
    "$'a'",
    "$'\\''",
    "$'\\\\'",
    "$'",
    '$"a"',
    "$((1))",
    "$((",
    "))",
    "((",
    "$(",
    ")",
    "(",
    "$(echo a)",
    "$(echo '#')",
    "$(ls # )\n)",
    "`",
    "`echo a`",
    "\\`",
    "{",
    "{a,b}",
    "{1..3}",
    "*",
    "?",
    "[a]",
    "[",
    "]",
    "[[",
    "]]",
    "~",
    "~+",
    "!",
    "!!",
    "!a",
    "=",
    "a=b",
    "a=",
    "a+=b",
    "a=(",
    "@(a)",
    "!(a)",
    "+(",
    "?(a|b)",
    "<(ls)",
    ">(cat)",
    "<",
    ">",
    ">>",
    "2>",
    "2>&1",
    "&>",
    ">&",
    "<&",
    ">|",
    "<>",
    "<<<",
    "<<E",
    "<<-E",
    "<<'E'",
    "<<\\E",
    "E",
    "\nE\n",
    "{x}>",
    "3>",
    "10<",
    "&",
    "|",
    ";",
    ";;",
    ";&",
    "|&",
    "&&",
    "||",
    "\t",
    " ",
    " ",
    "\n",
    "\r",
    "\r\n",
    "\x0b",
    "\x0c",
    "\xa0",
    "\u2028",
    "\u3000",
    "\ufeff",
    "\x01",
    "\x7f",
    "\x1b",
    "do",
    "done",
    "then",
    "fi",
    "if",
    "else",
    "elif",
    "for",
    "in",
    "while",
    "until",
    "case",
    "esac",
    "function",
    "select",
    "time",
    "coproc",
    "!",
    "then ls",
    "in a",
    "do ls",
    "eval",
    "exec",
    "command",
    "builtin",
    "echo",
    "ls",
    "cat",
    "test",
    "é",
    "日",
    "%s",
    "\\x41",
    "\\n",
    "-n",
    "-e",
    "-a",
    "-o",
    "-eq",
    "==",
    "=~",
    ",",
    "..",
    "/",
    ".",
    ":",
    "^",
    "@",
    "%",
    "+",
)

_JOINTS = (
    ";",
    "; ",
    " ; ",
    "\n",
    "\n\n",
    " && ",
    " || ",
    " | ",
    " & ",
    "&",
    "\r\n",
    "\t;\t",
    ";\\\n",
    "\\\n;",
    "\n\\\n",
    " |& ",
    "|",
    "&&",
    ";;",
    " ;& ",
    "\n;",
)
_DELIMITERS = (
    "E",
    "'E'",
    '"E"',
    "\\E",
    "E'F'",
    "'E F'",
    "''",
    "$E",
    "$(E)",
    "`E`",
    "E#",
    "#E",
    "E\\\nF",
    "-E",
    "E;",
    "{E,F}",
    "~",
    "*",
    "E\\ F",
    "$'E'",
    '$"E"',
)


def canary(random: Random) -> str:
    """Return a command with an effect that its level excludes."""
    return random.choice(CANARIES)


def _fragments(random: Random, least: int, most: int) -> str:
    return "".join(random.choice(FRAGMENTS) for _ in range(random.randint(least, most)))


def _word(random: Random) -> str:
    return _fragments(random, 1, 3)


def _hidden(random: Random, depth: int = 0) -> str:
    """Return a canary where it may pass for an argument, a comment, a quoted text or a document."""
    what = canary(random)
    odd = _fragments(random, 0, 3)
    quiet = random.choice(QUIET)
    word = _word(random)
    forms = (
        lambda: f"echo {odd}{what}",
        lambda: f"echo {odd} {what}",
        lambda: f"echo {odd};{what}",
        lambda: f"echo {odd}; {what}",
        lambda: f"echo {odd}\n{what}",
        lambda: f"{quiet}{odd}; {what}",
        lambda: f"{quiet} {odd}; {what}",
        lambda: f"{quiet}{odd}\n{what}",
        lambda: f"{quiet} {odd}\n{what}",
        lambda: f"{quiet} #{odd}; {what}",
        lambda: f"{quiet}#{odd}; {what}",
        lambda: f"{quiet} \\#{odd}; {what}",
        lambda: f"{quiet} # {odd}\n{what}",
        lambda: f"{quiet} '{odd}; {what}'",
        lambda: f'{quiet} "{odd}; {what}"',
        lambda: f"{quiet} $'{odd}; {what}'",
        lambda: f"echo '{odd}' {word} '; {what}'",
        lambda: f'echo "{odd}" {word} "; {what}"',
        lambda: f'echo "{odd}$({what})"',
        lambda: f'echo "{odd}`{what}`"',
        lambda: f"echo ${{X:-{odd}$({what})}}",
        lambda: f"echo ${{X{word}$({what})}}",
        lambda: f"echo $(( {odd} $({what}) ))",
        lambda: f"(( {odd} )); {what}",
        lambda: f"[[ {odd} ]] ; {what}",
        lambda: f"[[ a == {odd} ]]\n{what}",
        lambda: f"[ {odd} ] ; {what}",
        lambda: f"Y=({odd})#; {what}",
        lambda: f"Y=({odd} $({what}))",
        lambda: f"Y[{odd}$({what})]=1",
        lambda: f"X={odd}$({what})",
        lambda: f"X={odd} {what}",
        lambda: f"case a in {odd}) {quiet};; esac; {what}",
        lambda: f"case a in a{odd}) {what};; esac",
        lambda: f"for i in {odd}; do {quiet}; done; {what}",
        lambda: f"for i in {odd}; do {what}; done",
        lambda: f"f() {{ {quiet}{odd}; {what}; }}; f",
        lambda: f"{quiet} {odd}> {word}; {what}",
        lambda: f"{quiet} <({odd}{what})",
        lambda: f"{quiet} >({what}{odd})",
        lambda: f"{odd}{what}",
        lambda: f"{odd} {what}",
        lambda: f"{odd}\n{what}",
        lambda: f"{quiet}{random.choice(_JOINTS)}{odd}{what}",
        lambda: f"{quiet} {random.choice(_JOINTS)}{odd}{random.choice(_JOINTS)}{what}",
        lambda: f"x='a[$({what})]'; {random.choice(TRIGGERS)}",
        lambda: f"{{ {quiet}{odd}; }} {word}; {what}",
        lambda: f"({quiet}{odd}) {word}; {what}",
        lambda: document(random, what),
    )
    return random.choice(forms)()


def document(random: Random, what: str) -> str:
    """Return a here-document, with a canary in it, beside it or after it."""
    count = random.choice((1, 1, 1, 2, 3))
    marks = [random.choice(_DELIMITERS) for _ in range(count)]
    dashes = [random.choice(("", "", "-")) for _ in range(count)]
    tail = random.choice(
        (
            "",
            "",
            f"; {what}",
            f" | {random.choice(QUIET)}",
            f" && {what}",
            " #",
            f" # {what}",
            " > new.txt",
            f"{_fragments(random, 0, 2)}",
        )
    )
    text = random.choice(
        (
            "cat",
            "cat",
            "cat -",
            "wc -l",
            "grep a",
            "tr a b",
            "sort",
            ":",
            "cat > new.txt",
            "tee new.txt",
            "python3 -",
            "sh",
        )
    )
    text += (
        "".join(f" <<{dash}{mark}" for dash, mark in zip(dashes, marks, strict=True)) + tail + "\n"
    )
    for mark in marks:
        for _ in range(random.randint(0, 3)):
            text += (
                random.choice(("", "", "\t", " "))
                + random.choice(
                    (
                        what,
                        f"$({what})",
                        f"`{what}`",
                        f"\\$({what})",
                        f"\\\\$({what})",
                        "${X:-$(" + what + ")}",
                        "a\\",
                        "a",
                        "$((1))",
                        _word(random),
                        mark,
                    )
                )
                + "\n"
            )
        plain = (
            mark.replace("'", "")
            .replace('"', "")
            .replace("\\\n", "")
            .replace("\\", "")
            .replace("$E", "$E")
        )
        text += (
            random.choice(("", "", "", "\t", " ", "\\"))
            + random.choice((plain, plain, plain, plain, mark, plain + " ", plain + "\r", ""))
            + "\n"
        )
    return text + random.choice(("", what, f"{what}\n", f"{random.choice(QUIET)}\n{what}"))


TRIGGERS = (
    "echo $((x))",
    "((x))",
    "[[ $x -eq 0 ]]",
    "[[ x -eq 0 ]]",
    "[ $x -eq 0 ]",
    "let x",
    "let y=x",
    "echo ${HOME:x}",
    "echo ${HOME:x:1}",
    "y[x]=1",
    "y[$x]=1",
    "declare -i y=x",
    'declare "$x=1"',
    'unset "$x"',
    'test -v "$x"',
    "[[ -v $x ]]",
    'printf -v "$x" 1',
    'read "$x" <<< 1',
    "echo ${!x}",
    "echo ${y[x]}",
    "echo ${y[$x]}",
    "for ((i=x;i<1;i++)); do :; done",
    "exit $x",
    "seq $x",
    "sleep $x",
    "shift $x",
    "return $x",
    'export "$x=1"',
    'echo "${x@P}"',
    "printf '%d' \"$x\"",
    "head -$x a.txt",
    "test $x -lt 1",
    '[ 0 -eq "$x" ]',
    "echo $[x]",
    "wait $x",
    "kill -$x 1",
    "history $x",
    "ulimit -n $x",
    "break $x",
    "umask $x",
    "getopts a x",
    'mapfile -t "$x" < a.txt',
    "local $x",
    "readonly $x",
    "typeset -i x",
)


def script(random: Random) -> str:
    """Return a script by the grammar: quiet commands, with hidden canaries among them."""
    parts = [
        random.choice(QUIET) if random.random() < 0.3 else _hidden(random)
        for _ in range(random.choice((1, 1, 1, 2, 2, 3)))
    ]
    text = parts[0]
    for part in parts[1:]:
        text += random.choice(_JOINTS) + part
    return text


def mutated(random: Random, seeds: Sequence[str]) -> str:
    """Return a seed command with some characters or tokens changed, and a canary put in."""
    text = random.choice(seeds)
    for _ in range(random.choice((1, 1, 2, 3))):
        at = random.randrange(len(text) + 1)
        match random.randrange(9):
            case 0:
                text = text[:at] + text[at + random.randint(1, 4) :]
            case 1 | 2:
                text = text[:at] + random.choice(FRAGMENTS) + text[at:]
            case 3:
                end = at + random.randint(1, 12)
                text = text[:end] + text[at:end] + text[end:]
            case 4:
                other = random.choice(seeds)
                text = text[:at] + other[random.randrange(len(other) + 1) :]
            case 5:
                text = (
                    text[:at]
                    + random.choice(_JOINTS)
                    + canary(random)
                    + random.choice((" ", "\n", ";", " #"))
                    + text[at:]
                )
            case 6:
                tokens = text.split(" ")
                place = random.randrange(len(tokens))
                tokens[place : place + 1] = random.choice(
                    (
                        [],
                        [tokens[place]] * 2,
                        [_word(random)],
                        [canary(random)],
                        [tokens[place], _word(random)],
                    )
                )
                text = " ".join(tokens)
            case 7:
                text += (
                    random.choice(("", " ", "\n", ";", "#", "\\\n"))
                    + random.choice(FRAGMENTS)
                    + random.choice(_JOINTS)
                    + canary(random)
                )
            case _:
                text = (
                    text[:at]
                    + random.choice(
                        ("$(%s)", "`%s`", "\n%s\n", "'%s'", '"%s"', ";%s;", "\\\n%s", "<(%s)")
                    )
                    % canary(random)
                    + text[at:]
                )
        if len(text) > 2000:
            break
    return text


# --- options ---

VALUES = (
    "/outside/x",
    "canary",
    "/outside/bin/canary",
    "./evil",
    ".env",
    "/etc/shadow",
    "@/etc/shadow",
    "exec=/outside/bin/canary",
    "!canary",
    "|canary",
    "src/escape/x",
    "../outside/x",
    "a.txt",
    "1",
    "x",
    "~/x",
    "/outside",
    "data",
    "names0",
    "args.txt",
    "all",
    "always",
    "core.fsmonitor=/outside/bin/canary",
)
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@#?+:~"

# Programs that are likely judged by their options, each with harmless arguments.
PROGRAMS = {
    "ls": ["", "src"],
    "cat": ["a.txt"],
    "head": ["a.txt"],
    "tail": ["a.txt"],
    "wc": ["a.txt"],
    "sort": ["a.txt"],
    "uniq": ["a.txt"],
    "cut": ["-c1 a.txt"],
    "tr": ["a b < a.txt"],
    "nl": ["a.txt"],
    "tac": ["a.txt"],
    "rev": ["a.txt"],
    "od": ["a.txt"],
    "xxd": ["a.txt"],
    "hexdump": ["a.txt"],
    "strings": ["a.txt"],
    "base64": ["a.txt"],
    "md5sum": ["a.txt"],
    "sha256sum": ["a.txt"],
    "cksum": ["a.txt"],
    "b2sum": ["a.txt"],
    "fold": ["a.txt"],
    "fmt": ["a.txt"],
    "pr": ["a.txt"],
    "column": ["a.txt"],
    "expand": ["a.txt"],
    "unexpand": ["a.txt"],
    "join": ["a.txt b.txt"],
    "comm": ["a.txt b.txt"],
    "paste": ["a.txt b.txt"],
    "diff": ["a.txt b.txt"],
    "cmp": ["a.txt b.txt"],
    "diff3": ["a.txt b.txt a.txt"],
    "sdiff": ["a.txt b.txt"],
    "iconv": ["a.txt"],
    "grep": ["one a.txt", "-r one src"],
    "egrep": ["one a.txt"],
    "rg": ["one", "one src"],
    "ag": ["one src"],
    "find": [".", "src -name a"],
    "fdfind": ["a"],
    "fd": ["a"],
    "tree": [""],
    "stat": ["a.txt"],
    "file": ["a.txt"],
    "du": ["."],
    "df": [""],
    "date": [""],
    "cal": [""],
    "uname": [""],
    "id": [""],
    "ps": [""],
    "pgrep": ["x"],
    "top": ["-b -n1"],
    "free": [""],
    "uptime": [""],
    "lsof": ["a.txt"],
    "ss": [""],
    "ip": ["addr", "route"],
    "netstat": [""],
    "jq": [". package.json"],
    "yq": [". package.json"],
    "sed": ["-n 1p a.txt", "s/a/b/ a.txt"],
    "awk": ["1 a.txt"],
    "gawk": ["1 a.txt"],
    "mawk": ["1 a.txt"],
    "xargs": ["echo < a.txt"],
    "less": ["a.txt"],
    "more": ["a.txt"],
    "man": ["ls"],
    "git status": [""],
    "git log": ["", "-1"],
    "git diff": ["", "HEAD"],
    "git show": ["HEAD"],
    "git branch": [""],
    "git grep": ["one"],
    "git blame": ["src/app.py"],
    "git ls-files": [""],
    "git ls-tree": ["HEAD"],
    "git rev-parse": ["HEAD"],
    "git describe": ["--always"],
    "git tag": [""],
    "git stash": ["list"],
    "git config": ["--list", "--get user.name"],
    "git remote": ["-v"],
    "git reflog": [""],
    "git cat-file": ["-p HEAD"],
    "git shortlog": ["HEAD"],
    "git for-each-ref": [""],
    "git ls-remote": ["."],
    "git fetch": ["."],
    "git clone": [". d2"],
    "git add": ["a.txt"],
    "git commit": ["-m x", "--allow-empty -m x"],
    "git checkout": ["main", "-b x1"],
    "git apply": ["fix.patch"],
    "git archive": ["HEAD"],
    "git format-patch": ["-1"],
    "git merge": ["main"],
    "git rebase": ["main"],
    "git submodule": ["status"],
    "git worktree": ["list"],
    "git bisect": ["log"],
    "git diff-tree": ["HEAD"],
    "git rev-list": ["HEAD"],
    "git merge-base": ["main HEAD"],
    "git clean": ["-n"],
    "git init": ["d3"],
    "git": ["status", "log", "diff"],
    "tar": ["tf x.tar", "cf x.tar src"],
    "zip": ["x.zip a.txt"],
    "unzip": ["-l x.zip"],
    "gzip": ["-c a.txt"],
    "zcat": ["x.gz"],
    "xz": ["-c a.txt"],
    "bzip2": ["-c a.txt"],
    "cp": ["a.txt c.txt"],
    "mv": ["a.txt c.txt"],
    "rm": ["a.txt"],
    "mkdir": ["d4"],
    "touch": ["c.txt"],
    "ln": ["-s a.txt c.txt"],
    "chmod": ["644 a.txt"],
    "install": ["a.txt c.txt"],
    "tee": ["c.txt < a.txt"],
    "truncate": ["-s 0 a.txt"],
    "dd": ["if=a.txt of=c.txt"],
    "split": ["a.txt"],
    "csplit": ["a.txt 2"],
    "shuf": ["a.txt"],
    "patch": ["-p1 -i fix.patch"],
    "mktemp": ["./x.XXXX"],
    "rsync": ["-a src/ d5"],
    "shred": ["a.txt"],
    "gcc": ["-c src/main.c", "src/main.c"],
    "cc": ["-c src/main.c"],
    "cpp": ["src/main.c"],
    "as": ["src/x.s"],
    "ld": ["build/out.o"],
    "nm": ["build/out.o"],
    "objdump": ["-d build/out.o"],
    "readelf": ["-h build/out.o"],
    "size": ["build/out.o"],
    "ar": ["t build/x.a"],
    "strip": ["build/out.o"],
    "make": ["", "-n", "test"],
    "cmake": ["-S . -B b6"],
    "python3": [
        "src/app.py",
        "--version",
        "-m json.tool package.json",
        "-m pip list",
        "-m unittest",
        "-m compileall src",
        "-m timeit 1",
    ],
    "pip": ["list", "show x", "install -e ."],
    "pip3": ["list"],
    "node": ["src/index.js", "--version"],
    "npm": ["ls", "test", "view x", "run build", "config list"],
    "java": ["-version"],
    "javac": ["-d build src/Main.java"],
    "curl": ["http://localhost/x"],
    "wget": ["http://localhost/x"],
    "ping": ["-c1 localhost"],
    "dig": ["localhost"],
    "nc": ["-z localhost 1"],
    "ssh": ["-V"],
    "openssl": ["version", "x509 -in a.txt"],
    "sqlite3": ["x.db .tables"],
    "bc": ["a.txt"],
    "dc": ["a.txt"],
    "xmllint": ["a.xml"],
    "strace": ["ls"],
    "ltrace": ["ls"],
    "gdb": ["-batch"],
    "timeout": ["5 ls"],
    "nice": ["ls"],
    "nohup": ["ls"],
    "stdbuf": ["-oL ls"],
    "env": ["ls", ""],
    "time": ["ls"],
    "command": ["ls"],
    "watch": ["ls"],
    "setsid": ["ls"],
    "script": [""],
    "flock": ["x ls"],
    "systemctl": ["status", "list-units"],
    "journalctl": ["-n 1"],
    "loginctl": [""],
    "apt-cache": ["policy", "search x"],
    "apt": ["list", "show x"],
    "apt-get": ["-s check"],
    "dpkg": ["-l", "-L bash"],
    "dpkg-query": ["-l"],
    "mount": [""],
    "lsblk": [""],
    "sysctl": ["-a"],
    "dmesg": [""],
    "last": [""],
    "who": [""],
    "w": [""],
    "getent": ["hosts"],
    "locale": [""],
    "ldd": ["/bin/ls"],
    "which": ["ls"],
    "whereis": ["ls"],
    "locate": ["x"],
    "vim": ["a.txt"],
    "ed": ["a.txt"],
    "ctags": ["src/app.py"],
    "hostname": [""],
    "seq": ["3"],
    "printf": ["a"],
    "echo": ["a"],
    "test": ["a"],
    "numfmt": ["1"],
    "expr": ["1"],
    "factor": ["6"],
    "readlink": ["a.txt"],
    "realpath": ["a.txt"],
    "basename": ["a"],
    "dirname": ["a"],
    "tput": ["cols"],
    "lscpu": [""],
    "ifconfig": [""],
    "route": [""],
    "crontab": ["-l"],
    "pytest": [""],
    "cargo": ["check"],
    "go": ["vet"],
    "mvn": ["test"],
    "docker": ["ps"],
    "tox": [""],
    "ruff": ["check ."],
    "black": ["."],
    "mypy": ["src"],
    "printenv": [""],
    "read": ["x < a.txt"],
    "mapfile": ["x < a.txt"],
    "type": ["ls"],
    "hash": [""],
    "pushd": ["src"],
    "cd": ["src"],
    "wait": [""],
    "jobs": [""],
    "compgen": ["-c"],
    "complete": [""],
    "history": [""],
    "fc": ["-l"],
    "trap": [""],
    "ulimit": ["-a"],
    "umask": [""],
    "getopts": ["a x"],
    "export": ["X=1"],
    "declare": ["X=1"],
    "set": ["-e"],
    "shopt": ["-s globstar"],
    "bind": [""],
    "kill": ["-l"],
}
# Programs that take long to start, or wait: tried less often.
_SLOW = frozenset(
    [
        "npm",
        "mvn",
        "java",
        "javac",
        "apt",
        "apt-get",
        "apt-cache",
        "man",
        "pip",
        "pip3",
        "python3",
        "node",
        "top",
        "watch",
        "journalctl",
        "systemctl",
        "ping",
        "nc",
        "strace",
        "ltrace",
        "locate",
        "lsof",
        "curl",
        "wget",
        "docker",
        "cargo",
        "go",
        "gdb",
        "vim",
        "less",
        "ssh",
        "ss",
        "dig",
    ]
)


def program(random: Random) -> str:
    """Return a program to try options of."""
    name = random.choice(tuple(PROGRAMS))
    return random.choice(tuple(PROGRAMS)) if name in _SLOW else name


# Long options that are worth trying with every program, beside those in its help.
LONG = (
    "output",
    "out",
    "file",
    "exec",
    "command",
    "config",
    "pager",
    "program",
    "log",
    "log-file",
    "filter",
    "pre",
    "to-command",
    "files0-from",
    "files-from",
    "from-file",
    "to-file",
    "directory",
    "target-directory",
    "suffix",
    "backup",
    "compress-program",
    "temporary-directory",
    "reference",
    "rsh",
    "editor",
    "shell",
    "plugin",
    "rcfile",
    "init-file",
    "prefix",
    "root",
    "host",
    "env",
    "path",
    "include",
    "open-files-in-pager",
    "ext-diff",
    "textconv",
    "upload-pack",
    "template",
    "git-dir",
    "work-tree",
    "exec-path",
    "python",
    "cache-dir",
    "userconfig",
    "post-file",
    "input-file",
    "eval",
    "expression",
    "require",
)


def option(random: Random, name: str, documented: Sequence[str]) -> str:
    """Return a command of a program with an option that names a canary. `documented` are the long
    options of its help."""
    arguments = random.choice(PROGRAMS[name])
    value = random.choice(VALUES)
    long = (
        random.choice(documented) if documented and random.random() < 0.75 else random.choice(LONG)
    )
    if random.random() < 0.25 and len(long) > 4:
        long = long[: random.randint(3, len(long))]
    letter = random.choice(_LETTERS)
    letters = "".join(random.choice(_LETTERS) for _ in range(random.randint(1, 3)))
    quoted = f"'{value}'" if any(one in value for one in "!|") else value
    form = random.choice(
        (
            f"--{long}={quoted}",
            f"--{long}={quoted}",
            f"--{long} {quoted}",
            f"-{letter} {quoted}",
            f"-{letter} {quoted}",
            f"-{letter}{quoted}",
            f"-{letter}{quoted}",
            f"-{letter}={quoted}",
            f"-{letters}{letter} {quoted}",
            f"-{letters}{letter}{quoted}",
            f"-{long}={quoted}",
            f"-{long} {quoted}",
            f"--no-{long} {quoted}",
            f"+{quoted}",
            f"{quoted}",
            f"@{value}",
            f"{letter}={quoted}",
            f"{letters} {quoted}",
            f"-- {quoted}",
            f"-o{letter}={quoted}",
            f"-c {letter}={quoted}",
        )
    )
    first, _, rest = arguments.partition(" ")
    return random.choice(
        (
            f"{name} {form} {arguments}",
            f"{name} {arguments} {form}",
            f"{name} {first} {form} {rest}",
        )
    ).strip()


# --- variables ---

VARIABLES = (
    "PATH",
    "IFS",
    "ENV",
    "BASH_ENV",
    "CDPATH",
    "HOME",
    "PS4",
    "PROMPT_COMMAND",
    "SHELLOPTS",
    "BASHOPTS",
    "GLOBIGNORE",
    "POSIXLY_CORRECT",
    "TMPDIR",
    "PAGER",
    "EDITOR",
    "VISUAL",
    "BROWSER",
    "SHELL",
    "LD_PRELOAD",
    "LD_LIBRARY_PATH",
    "LD_AUDIT",
    "LD_DEBUG_OUTPUT",
    "LD_PROFILE",
    "GCONV_PATH",
    "LOCPATH",
    "NLSPATH",
    "TZDIR",
    "MALLOC_TRACE",
    "HOSTALIASES",
    "RESOLV_HOST_CONF",
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_PAGER",
    "GIT_EDITOR",
    "GIT_EXTERNAL_DIFF",
    "GIT_SSH",
    "GIT_SSH_COMMAND",
    "GIT_ASKPASS",
    "GIT_TRACE",
    "GIT_TRACE2",
    "GIT_TRACE2_EVENT",
    "GIT_CONFIG_GLOBAL",
    "GIT_CONFIG_SYSTEM",
    "GIT_CONFIG_PARAMETERS",
    "GIT_EXEC_PATH",
    "GIT_TEMPLATE_DIR",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PROXY_COMMAND",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_CACHE_HOME",
    "LESS",
    "LESSOPEN",
    "LESSCLOSE",
    "LESSHISTFILE",
    "LESSKEY",
    "MANPAGER",
    "MANPATH",
    "MANOPT",
    "PYTHONPATH",
    "PYTHONSTARTUP",
    "PYTHONHOME",
    "PYTHONPYCACHEPREFIX",
    "PYTHONUSERBASE",
    "PIP_CONFIG_FILE",
    "PIP_LOG",
    "PIP_PYTHON",
    "PIP_TARGET",
    "NODE_OPTIONS",
    "NODE_PATH",
    "npm_config_script_shell",
    "npm_config_prefix",
    "NODE_REPL_HISTORY",
    "NODE_V8_COVERAGE",
    "PERL5OPT",
    "PERL5LIB",
    "RUBYOPT",
    "JAVA_TOOL_OPTIONS",
    "CLASSPATH",
    "CC",
    "CFLAGS",
    "LDFLAGS",
    "MAKEFLAGS",
    "MAKEFILES",
    "COMPILER_PATH",
    "GCC_EXEC_PREFIX",
    "DEPENDENCIES_OUTPUT",
    "SUNPRO_DEPENDENCIES",
    "CPATH",
    "C_INCLUDE_PATH",
    "TAR_OPTIONS",
    "TAPE",
    "GZIP",
    "XZ_OPT",
    "ZIPOPT",
    "ZIP",
    "UNZIP",
    "BZIP2",
    "GREP_OPTIONS",
    "GREP_COLORS",
    "RIPGREP_CONFIG_PATH",
    "AWKPATH",
    "AWKLIBPATH",
    "POSIX",
    "CURL_HOME",
    "SSLKEYLOGFILE",
    "WGETRC",
    "SYSTEM_WGETRC",
    "http_proxy",
    "ALL_PROXY",
    "OPENSSL_CONF",
    "OPENSSL_ENGINES",
    "APT_CONFIG",
    "DPKG_ROOT",
    "SYSTEMD_PAGER",
    "SYSTEMD_EDITOR",
    "RSYNC_RSH",
    "VIMINIT",
    "EXINIT",
    "INPUTRC",
    "HISTFILE",
    "BASH_XTRACEFD",
    "BASH_CMDS",
    "BASH_ALIASES",
    "BASH_LOADABLES_PATH",
    "EXECIGNORE",
    "FIGNORE",
    "HISTTIMEFORMAT",
    "MAIL",
    "MAILPATH",
    "OPTARG",
    "REPLY",
    "RANDOM",
    "SECONDS",
    "_",
    "x",
    "X",
    "DEBUG",
    "LC_ALL",
    "COLUMNS",
    "MAGIC",
    "PGREP",
    "SQLITE_HISTORY",
    "TERMINFO",
    "TERMCAP",
    "JQ_COLORS",
    "TIME_STYLE",
    "QUOTING_STYLE",
    "TIME",
    "DIFF",
    "FCEDIT",
    "BC_ENV_ARGS",
    "DC_LINE_LENGTH",
    "UNCRUSTIFY_CONFIG",
    "GDBHISTFILE",
    "STRACE_LOG",
)
_SHOWN = (
    "ls",
    "git status",
    "git diff",
    "git log",
    "git -p log",
    "git show",
    "git grep one",
    "less a.txt",
    "man ls",
    "sort a.txt",
    "grep one a.txt",
    "tar cf x.tar src",
    "gcc -c src/main.c",
    "make",
    "python3 --version",
    "python3 src/app.py",
    "node src/index.js",
    "pip list",
    "curl http://localhost/",
    "wget http://localhost/",
    "apt-cache policy",
    "systemctl status",
    "zip x.zip a.txt",
    "unzip -l x.zip",
    "gzip -c a.txt",
    "awk 1 a.txt",
    "bc a.txt",
    "sqlite3 x.db .tables",
    "echo a",
    "cat a.txt",
    "cd src",
    "rg one",
    "java -version",
    "find . -name a",
    "xargs echo < a.txt",
    "bash evil.sh",
    "sh -c ls",
    "date",
    "jq . package.json",
    "vim -es +q",
    "openssl version",
    "file a.txt",
    "diff a.txt b.txt",
)


def variable(random: Random) -> str:
    """Return a command with a variable set before it, in one of the ways of bash."""
    name, value, use = random.choice(VARIABLES), random.choice(VALUES), random.choice(_SHOWN)
    value = random.choice(
        (
            value,
            value,
            "$(canary)",
            "evil.sh",
            "/testbed/cfg",
            "cfg",
            ".",
            "-o/outside/x",
            "--checkpoint=1 --checkpoint-action=exec=/outside/bin/canary",
            "-T -TT /outside/bin/canary",
            "--eval=$(shell /outside/bin/canary)",
            "/outside/bin:/usr/bin",
            "+!canary",
            "|/outside/bin/canary %s",
            "--require /testbed/src/index.js",
            "a[$(canary)]",
            "xtrace",
        )
    )
    quoted = f"'{value}'"
    forms = (
        f"{name}={quoted} {use}",
        f"{name}={quoted}; {use}",
        f"export {name}={quoted}; {use}",
        f"{name}={quoted}; export {name}; {use}",
        f"env {name}={quoted} {use}",
        f"declare -x {name}={quoted}; {use}",
        f"export {name}={quoted} && {use}",
        f"typeset {name}={quoted}; {use}",
        f"readonly {name}={quoted}; {use}",
        f"read {name} <<< {quoted}; {use}",
        f"printf -v {name} %s {quoted}; {use}",
        f"for {name} in {quoted}; do {use}; done",
        f"{name}+={quoted} {use}",
        f"set -a; {name}={quoted}; {use}",
        f": ${{{name}:={quoted}}}; {use}",
        f"x={quoted}; {name}=$x {use}",
        f"declare -n r={name}; r={quoted}; export {name}; {use}",
        f"{name}[0]={quoted}; {use}",
        f"{name}=({quoted}); {use}",
        f"mapfile -t {name} <<< {quoted}; {use}",
        f"({name}={quoted}; {use})",
        f"timeout 5 env {name}={quoted} {use}",
        f"unset {name}; {use}",
        f"X=1 {name}={quoted} {use}",
    )
    return random.choice(forms)


# --- paths ---

_TARGETS = (
    "/outside/x",
    "/outside/notes.txt",
    "/outside/d/kept.txt",
    "/outside/d",
    "/outside",
    ".env",
    "secrets.json",
    "deploy/server.pem",
    "deploy",
    "/home/agent/.ssh/id_rsa",
    "/home/agent/.ssh",
    "/home/agent/.netrc",
    "/home/agent/notes.txt",
    "/home/agent/.bashrc",
    "/home/agent",
    "/etc/shadow",
    "/etc/hosts",
    "src/escape/x",
    "src/escape/kept.txt",
    "src/escape",
    "out_link",
    "/testbed",
    "/testbed/.env",
    "/",
    ".",
    "..",
    "../outside/x",
    ".git/config",
    ".git/hooks/pre-commit",
)
_USES = (
    "cat %s",
    "head -n 1 %s",
    "tail %s",
    "grep -n . %s",
    "grep -rn Tok %s",
    "grep -r Tok %s --include=*",
    "rg Tok %s",
    "rg -uu Tok %s",
    "ls %s",
    "ls -la %s",
    "wc -l %s",
    "nl %s",
    "sort %s",
    "sed -n p %s",
    "awk 1 %s",
    "jq . %s",
    "base64 %s",
    "xxd %s",
    "od -c %s",
    "cut -c1- %s",
    "diff a.txt %s",
    "diff -r src %s",
    "cmp a.txt %s",
    "strings %s",
    "cat < %s",
    "wc -l < %s",
    "cat a.txt %s b.txt",
    "cat -- %s",
    "tac %s | cat",
    "echo x > %s",
    "echo x >> %s",
    "ls > %s",
    "ls &> %s",
    "ls 2> %s",
    "ls | tee %s",
    "echo x >| %s",
    "cp a.txt %s",
    "cp -r src %s",
    "cp %s c.txt",
    "cp -r %s c2",
    "cp -a %s c2",
    "cp -L %s c2; cat c2",
    "mv a.txt %s",
    "mv %s c.txt",
    "touch %s",
    "rm %s",
    "rm -f %s",
    "rm -rf %s",
    "rmdir %s",
    "mkdir -p %s",
    "mkdir -p %s/new",
    "chmod 700 %s",
    "chmod -R 755 %s",
    "ln -s %s l1; cat l1",
    "ln -s %s l1 && echo x > l1",
    "ln -sf %s l1; cat l1/notes.txt",
    "ln %s l1",
    "truncate -s 0 %s",
    "sed -i s/a/b/ %s",
    "sort -o %s a.txt",
    "find %s -type f -exec cat {} +",
    "find %s -name '*' -delete",
    "find %s -type f",
    "find %s -maxdepth 1 | head",
    "find %s | xargs cat",
    "git add %s; git diff --cached",
    "git add -f %s && git diff --cached",
    "git diff --no-index a.txt %s",
    "git log -- %s",
    "git show HEAD:%s",
    "git checkout -- %s",
    "git rm -f %s",
    "git mv a.txt %s",
    "git apply %s",
    "git -C %s status",
    "git stash push -- %s",
    "git blame %s",
    "git hash-object %s",
    "git clean -n %s",
    "git restore %s",
    "cd %s && cat *",
    "cd %s && ls",
    "cd %s && touch y",
    "cd %s; cat notes.txt",
    "(cd %s && cat notes.txt)",
    "(cd %s; echo x > y)",
    "cd src && cat ../%s",
    "cd src && echo x > ../%s",
    "cd src && cat %s",
    "cd src && touch %s",
    "mkdir -p d1 && cd d1 && echo x > ../%s",
    "cd %s/.. && touch x",
    "cd src/escape/.. && cat %s",
    "cd src && cd .. && cat %s",
    "for f in %s; do cat $f; done",
    'for f in %s; do cat "$f"; done',
    "for f in %s; do echo x > $f; done",
    "for f in a.txt %s; do touch $f; done",
    "f=%s; cat $f",
    'f=%s && cat "$f"',
    "f=%s; echo x > $f",
    'f=%s; touch "$f/y"',
    "d=%s; rm -rf $d",
    "d=%s; cat $d/*",
    "cat $(echo %s)",
    "echo %s | xargs cat",
    "xargs cat <<< %s",
    "echo $(<%s)",
    "while read l; do echo $l; done < %s",
    "read x < %s; echo $x",
    "test -f %s && cat %s",
    "[ -e %s ] && cat %s",
    "if [ -f %s ]; then cat %s; fi",
    "tar cf - %s",
    "tar czf x.tgz %s",
    "tar xf %s",
    "unzip -l %s",
    "zip -r - %s | cat",
    "python3 %s",
    "node %s",
    "sh %s",
    "bash %s",
    "make -C %s",
    "make -f %s",
    "pytest %s",
    "gcc -E -x c %s",
    "gcc -o %s src/main.c",
    "file %s",
    "stat %s",
    "du -a %s",
    "md5sum %s",
    "tree %s",
    "less %s",
    "iconv %s",
    "column %s",
    "paste %s",
    "comm %s a.txt",
    "uniq %s",
    "tr a b < %s",
    "rev %s",
    "fold %s",
    "expand %s",
    "shuf %s",
    "split %s && cat xa*",
    "patch -p0 -i %s",
    "patch %s fix.patch",
    "install a.txt %s",
    "dd if=%s",
    "dd of=%s if=a.txt",
    "tee -a %s < a.txt",
    "curl file://%s",
    "sqlite3 %s .dump",
    "readlink -f %s",
    "realpath %s",
    "python3 -m json.tool %s",
    "python3 -m py_compile %s",
    "ruff check %s",
    "gunzip -c %s",
    "gzip %s",
)


def _spelled(random: Random, path: str) -> str:
    """Return a path, written in a way that bash reads as the same or that ends there."""
    for _ in range(random.choice((0, 1, 1, 2))):
        at = random.randrange(len(path) + 1)
        one = path[at : at + 1]
        match random.randrange(25):
            case 22 | 23 if one and one.isalnum():
                kind = "alpha" if one.isalpha() else "digit"
                other = chr(ord(one) + 1)
                sets = (
                    f"[[:{kind}:]]",
                    "[[:alnum:]]",
                    "[[:lower:]]",
                    "[![:upper:]]",
                    f"[!{other}]",
                    f"[^{other}]",
                    f"[{one}-{other}]",
                    f"[{other}{one}]",
                    f"[]{one}]",
                    f"[!]{other}]",
                    f"[\\{one}]",
                    f"[[={one}=]]",
                    f"[[.{one}.]]",
                    f"[{one}-]",
                    f"[!-{other}]",
                    "[!/]",
                    f"[a-z{one}]",
                    "[[:print:]]",
                    "[!.]",
                )
                path = f"{path[:at]}{random.choice(sets)}{path[at + 1 :]}"
            case 24:
                path = random.choice(
                    (
                        "{~,a.txt}",
                        "{a.txt,~}/notes.txt",
                        "{~,src}/x",
                        "{a,~/x}",
                        "{~/,src/}y",
                        "~/{x,y}",
                        "{,}" + path,
                        "a{,b}/" + path,
                        path + "{,}",
                        "{a.txt," + path + "}",
                        "{" + path + ",}",
                    )
                )
            case 0:
                path = f"/testbed/..{path}" if path.startswith("/") else f"./{path}"
            case 1:
                path = f"src/../{path}" if not path.startswith("/") else f"src/../..{path}"
            case 2:
                path = f"$PWD/..{path}" if path.startswith("/") else f"$PWD/{path}"
            case 3:
                path = path.replace("/", "//", 1)
            case 4:
                path = path.replace(
                    "/home/agent",
                    random.choice(("~", "$HOME", "${HOME}", "~agent", "~/", '"$HOME"', "$HOME/.")),
                    1,
                )
            case 5 if one and one not in "/$~{}*":
                path = f"{path[:at]}?{path[at + 1 :]}"
            case 6 if one and one not in "/$~{}*":
                path = f"{path[:at]}[{one}]{path[at + 1 :]}"
            case 7:
                path = f"{path[:at]}*{path[at:]}" if at else path
            case 8 if one and one not in "/$~{}*":
                path = f"{path[:at]}*{path[at + 1 :]}"
            case 9:
                path = f"'{path}'"
            case 10:
                path = f'"{path}"'
            case 11:
                path = f"{path[:at]}''{path[at:]}"
            case 12:
                path = f"{path[:at]}\\{path[at:]}" if one else path
            case 13 if one and one not in "'\"\\":
                path = f"{path[:at]}$'\\x{ord(one):02x}'{path[at + 1 :]}"
            case 14:
                path = "{" + path + ",a.txt}"
            case 15 if one:
                path = f"{path[:at]}{{{one},zz}}{path[at + 1 :]}"
            case 16:
                path = (
                    f"/proc/self/root{path}" if path.startswith("/") else f"/proc/self/cwd/{path}"
                )
            case 17:
                path = f"{path}/"
            case 18:
                path = f"{path}/."
            case 19:
                path = (
                    random.choice(
                        (
                            "~+/",
                            "$OLDPWD/",
                            "${PWD}/",
                            "${PWD%/*}/",
                            "$PWD/../testbed/",
                            "~-/",
                            "./././",
                            "tests/../",
                            "link.txt/../",
                            "src/escape/../",
                            "docs//..//",
                        )
                    )
                    + path
                )
            case 20:
                path = f"{path} "
            case _:
                path = random.choice(
                    (
                        f"{path[:at]}\\\n{path[at:]}",
                        f"{path[:at]}@(){path[at:]}",
                        f"{path[:at]}${{x}}{path[at:]}",
                        f"{path[:at]}$x{path[at:]}",
                        f'{path[:at]}""{path[at:]}',
                        f"-- {path}",
                        f"{path}#x",
                        f"a.txt {path}",
                        f"{path} a.txt",
                        f"{path[:at]}`true`{path[at:]}",
                        f"{path[:at]}$(true){path[at:]}",
                        f"-{path}",
                        f"={path}",
                        f"x={path}",
                        f"{path}:x",
                    )
                )
    return path


def path(random: Random) -> str:
    """Return a command on a path that leads out of the work folder, or to a secret."""
    use = random.choice(_USES)
    text = use.replace("%s", _spelled(random, random.choice(_TARGETS)))
    if random.random() < 0.3:
        text = random.choice(
            (
                f"ls && {text}",
                f"{text} | head",
                f"{text} 2>&1",
                f"{text} || true",
                f"cd src; {text}",
                f"cd src && {text}",
                f"{text} 2>/dev/null | sort",
                f"timeout 5 {text}",
                f"time {text}",
                f"mkdir -p d1 && {text}",
                f"(cd src && {text})",
                f"{text} > new.txt; cat new.txt",
                f"cd docs/../src && {text}",
                f"! {text}",
                f"git status; {text}",
            )
        )
    return text


# --- disguises ---

_WRAPPERS = (
    "time %s",
    "! %s",
    "%s | cat",
    "ls && %s",
    "ls; %s",
    "(%s)",
    "{ %s; }",
    "if true; then %s; fi",
    "if %s; then ls; fi",
    "for i in 1; do %s; done",
    "%s > /dev/null",
    "env %s",
    "nice %s",
    "nice -n 5 %s",
    "timeout 5 %s",
    "timeout -k 1 5 %s",
    "nohup %s",
    "command %s",
    "%s &",
    'echo "$(%s)"',
    "%s 2>&1",
    "while %s; do break; done",
    "true && %s || true",
    "cd src && cd .. && %s",
    "(cd src && cd .. && %s)",
    "LANG=C %s",
    "stdbuf -oL %s",
    "%s || ls",
    "echo a | %s",
    "ls | xargs -n1 %s",
    "find . -maxdepth 0 -exec %s \\;",
    "%s\nls",
    "ls\n%s",
    "%s # x",
    "exec %s",
    "builtin %s",
    "setsid %s",
    "ionice %s",
    "\\%s",
    "until %s; do break; done",
    "%s >new.txt; cat new.txt",
    "mkdir -p d1 && %s",
    "bash -c '%s'",
    "sh -c '%s'",
    "xargs %s < a.txt",
    "[ -f a.txt ] && %s",
    "%s &>/dev/null",
    "%s < /dev/null",
    "%s <<< a",
    "strace %s",
    "watch %s",
)


def _disguised_word(random: Random, word: str) -> str:
    """Return a word in another form that bash reads as the same one."""
    quoted = "'" + word.replace("'", "'\\''") + "'"
    if not word:
        return quoted
    at = random.randrange(len(word))
    match random.randrange(12):
        case 0 | 1 | 2:
            return quoted
        case 3 if not set(word) & set('"$`\\!'):
            return f'"{word}"'
        case 4 if not set(word) & set("'"):
            return (
                f"{word[:at]}'{word[at:]}'"
                if word[:at].isalnum() or word[:at].strip("-./").isalnum()
                else quoted
            )
        case 5:
            return "".join(
                "\\" + one if random.random() < 0.3 or not one.isalnum() else one for one in word
            )
        case 6:
            return f'"$(printf %s {quoted})"'
        case 7:
            return f"$(echo {quoted})" if " " not in word else quoted
        case 8:
            return (
                "$'"
                + "".join(f"\\x{ord(one):02x}" if ord(one) < 128 else one for one in word)
                + "'"
            )
        case 9 if (
            word[:at].replace("-", "").isalnum()
            and word.replace("/", "").replace("-", "").replace(".", "").isalnum()
        ):
            return f"{word[:at]}''{word[at:]}"
        case _:
            return quoted


def disguised(random: Random, command: str) -> str | None:
    """Return a harmful command, written in another way with the same effect, or None if the command
    is more than plain words."""
    if set(command) & set("$`\\;&|<>(){}*?[]~#!\n=") and not re.fullmatch(
        r"[A-Za-z0-9_./:=@%+,'\" -]+", command
    ):
        return None
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    if (
        not words
        or "=" in words[0]
        or words[0]
        in (
            "!",
            "time",
            "{",
            "if",
            "for",
            "while",
            "case",
            "until",
            "coproc",
            "function",
            "exec",
            "builtin",
        )
    ):
        return None
    odd = random.randrange(len(words) + 1)
    text = " ".join(
        (
            _disguised_word(random, word)
            if index == odd or random.random() < 0.25
            else shlex.quote(word)
        )
        for index, word in enumerate(words)
    )
    for _ in range(random.choice((0, 0, 1, 1, 2))):
        wrapper = random.choice(_WRAPPERS)
        if "'%s'" in wrapper and "'" in text:
            continue
        if (
            "\n" in text
            or text.startswith(
                ("(", "{", "if ", "for ", "while ", "until ", "! ", "time ", "\\", "cd ")
            )
        ) and not wrapper.startswith(("ls", "(", "{", "if true", "for", "true")):
            continue
        text = wrapper.replace("%s", text)
    return text


# --- variables, loops, conditions, groups ---

_VALUES = (
    "a.txt",
    "b.txt",
    "src",
    "src/*.py",
    "*.txt",
    "*",
    "odd/*",
    "odd/*.py",
    "/outside/x",
    "../outside/x",
    "/outside/d",
    "..",
    "/",
    ".env",
    ".e*",
    "~",
    "~/.ssh/id_rsa",
    "/etc/sh*",
    "$HOME",
    "$PWD",
    "$(cat data)",
    "$(cat args.txt)",
    "$(ls odd)",
    "$(canary)",
    "$(echo /outside/x)",
    "$!",
    "$?",
    "$v",
    "'a b'",
    "'a.txt /outside/x'",
    '"-rf /outside/d"',
    "-rf",
    "--exec=canary",
    "{a,b}.txt",
    "{..,src}/outside/x",
    "{1..3}",
    "src/escape",
    "out_link",
    "link.txt",
    "'a[$(canary)]'",
    "canary",
    "touch",
    "-v",
    "''",
    "'*'",
    "'/etc/shado?'",
    "1e",
    "'%n'",
    "'1e canary'",
    "'BEGIN{system(\"canary\")}'",
    "PATH",
    "x=y",
)
_USES = (
    "cat $v",
    'cat "$v"',
    "cat ${v}",
    "cat src/$v",
    "cat $v.txt",
    "cat $v$v",
    "cat < $v",
    "cat <<< $v",
    "cat *$v",
    "head -n $v a.txt",
    "rm -rf $v",
    "rm -rf $v/",
    "rm $v",
    "rm -rf /outside/d/$v",
    "touch $v",
    'touch "$v"',
    "touch /outside/$v",
    "touch z",
    "echo x > $v",
    'echo x > "$v"',
    "echo x > z$v",
    "echo $v",
    'echo "$v"',
    "cp a.txt $v",
    'cp a.txt "$v"',
    "cp $v z",
    "mv a.txt $v",
    "cd $v",
    "cd $v && touch z",
    'cd "$v"; rm -r d; touch kept.txt',
    "$v",
    "$v x",
    '"$v"',
    "grep one $v",
    "grep -r . $v",
    "find $v -delete",
    "find . -name $v -exec canary \\;",
    "find $v -type f | xargs cat",
    "find odd -name '*.py' | xargs cat",
    "find odd -type f -print0 | xargs -0 cat",
    "find . -name '*.py' | xargs grep -l one",
    "ls odd | xargs cat",
    "git ls-files | xargs wc -l",
    "echo $v | xargs touch",
    "echo $v | xargs cat",
    "[ $v -eq 0 ]",
    "[[ $v -eq 0 ]]",
    "[[ -f $v ]]",
    "[ -v $v ]",
    "[ -f $v ]",
    "test $v",
    'test "$v" = x',
    'test -v "$v"',
    "printf $v",
    'printf "$v" x',
    "printf '%s' $v",
    "sort -o $v a.txt",
    "git diff $v",
    "git log $v",
    "sed -n $v a.txt",
    "sed -i $v a.txt",
    'awk "$v" a.txt',
    "tee $v < a.txt",
    "tar cf $v a.txt",
    "ln -s $v l",
    "kill $v",
    "export $v",
    "export CI=$v",
    "eval $v",
    "source $v",
    "python3 $v",
    "wc -l $v",
    "ls $v",
    "diff <(cat $v) a.txt",
    "sleep $v",
    "exit $v",
)
_FLOWS = (
    "v=VALUE; USE",
    "v=VALUE; USE; USE",
    "v=VALUE\nUSE",
    "v=VALUE w=VALUE; USE",
    "v=VALUE; v=a.txt; USE",
    "v=a.txt; false && v=VALUE; USE",
    "v=a.txt; true || v=VALUE; USE",
    "v=VALUE; false && v=a.txt; USE",
    "v=VALUE; (v=a.txt); USE",
    "v=VALUE; v=a.txt | cat; USE",
    "v=VALUE; v=a.txt & USE",
    "v=VALUE; { v=a.txt; } > z; USE",
    "v=VALUE; w=$v; v=$w; USE",
    "v=VALUE USE",
    "for v in VALUE VALUE; do USE; done",
    "for v in VALUE; do USE; USE; done",
    "for v in VALUE; do v=VALUE; USE; done; USE",
    "for v in VALUE; do USE; done; USE",
    "v=VALUE; for w in a b; do USE; v=VALUE; done",
    "for v in VALUE; do (USE); done | cat",
    "for v in VALUE; do cd $v; done; USE",
    "for v in VALUE; do (cd src && USE); done",
    "for v in VALUE; do if USE; then USE; else USE; fi; done",
    "for v in; do USE; done; USE",
    "if USE; then v=VALUE; else v=a.txt; fi; USE",
    "if true; then cd VALUE; fi; USE",
    "if cd VALUE; then USE; elif cd src; then USE; else USE; fi; touch z",
    "if [ -d src ]; then cd src; fi; touch ../outside/x; USE",
    "v=VALUE; while USE; do USE; v=VALUE; exit; done",
    "v=VALUE; until USE; do cd ..; USE; exit; done",
    "(cd VALUE && USE); USE",
    "{ cd VALUE; USE; } ; touch z; USE",
    "cd VALUE && USE",
    "cd src && cd VALUE && USE",
    "cd src/escape; USE; cd ..; touch z",
    "CDPATH=/outside; cd d && touch z",
    "CDPATH=/outside cd d && touch z",
    "IFS=/; v=VALUE; USE",
    "v=VALUE; IFS=a USE",
    "cd odd; v=VALUE; USE",
    "cd odd && cat *; USE",
    "cd odd && for v in *; do USE; done",
    "cd odd && for v in *.py; do USE; done",
    "for v in odd/*; do USE; done",
    "for v in */; do USE; done",
    "mkdir -p 'q /outside'; touch 'q /outside/x.py'; find q* -name '*.py' | xargs USE",
    "touch -- -rf; for v in *; do USE; done",
    'echo "$(USE)"',
    "v=$(USE); USE",
    "diff <(USE) <(USE)",
    "true && { USE; } || USE",
    "! USE && USE",
    "[ -f a.txt ] && USE",
    "[[ -d src ]] && cd src && USE",
    "for PATH in VALUE; do USE; done",
    "for v in VALUE\ndo\nUSE\ndone",
    "if USE\nthen USE\nfi",
    "python3 -c 1 & v=$!; USE",
    "USE $(USE)",
    "cat a.txt {b.txt,VALUE}",
    "touch {z,VALUE}",
    "USE | while USE; do USE; done",
    "USE | (USE)",
    "USE | { USE; }",
    "find src -name '*.py' | USE | xargs cat",
)


def flow(random: Random) -> str:
    """Return variables, loops, conditions and groups, with values that lead out of the work folder."""
    text = random.choice(_FLOWS)
    for mark, choices in (("USE", _USES), ("VALUE", _VALUES)):
        while mark in text:
            text = text.replace(mark, random.choice(choices), 1)
    return text


# --- sequences ---

LEFT = (
    "cd src",
    "cd /outside",
    "cd src/escape",
    "cd ..",
    "pushd src",
    "X=canary",
    "x='a[$(canary)]'",
    "read x < data",
    "alias ls=canary",
    "alias echo='canary #'",
    "ls() { canary; }",
    "f() { canary; }",
    "function git { canary; }",
    "export GIT_EXTERNAL_DIFF=/outside/bin/canary",
    "GIT_EXTERNAL_DIFF=/outside/bin/canary",
    "set -a",
    "set -k",
    "set -f",
    "set -x",
    "set -n",
    "set -e",
    "set -o posix",
    "set -o allexport",
    "shopt -s expand_aliases",
    "shopt -s extdebug",
    "shopt -s lastpipe",
    "shopt -s autocd",
    "shopt -s cdspell",
    "shopt -s nullglob dotglob",
    "shopt -s sourcepath",
    "shopt -s execfail",
    "IFS=/",
    "IFS=:",
    "IFS=a",
    "PATH=.:$PATH",
    "PATH=/testbed",
    "export PATH=/outside/bin:$PATH",
    "hash -p /outside/bin/canary ls",
    "hash -p ./evil ls",
    "BASH_CMDS[ls]=/usr/bin/touch",
    "BASH_CMDS[ls]=/outside/bin/canary",
    "BASH_ALIASES[ls]='canary;ls'",
    "readonly _holdfast_command='canary'",
    "declare -n r=PATH",
    "declare -n x=GIT_EXTERNAL_DIFF",
    "declare -i x",
    "declare -x PAGER=canary",
    "typeset -n y=BASH_ALIASES",
    "trap canary EXIT",
    "trap canary DEBUG",
    "trap 'canary' ERR",
    "trap canary INT",
    "PROMPT_COMMAND=canary",
    "PS1='$(canary)'",
    "PS4='$(canary)'",
    "BASH_ENV=evil.sh",
    "ENV=evil.sh",
    "exec 3>/outside/x",
    "exec > /outside/x",
    "exec 2>/outside/x",
    "enable -n echo",
    "enable -n builtin",
    "enable -n read eval",
    "command_not_found_handle() { canary; }",
    "builtin() { canary; }",
    "eval() { canary; }",
    "_holdfast_report(){ canary; }",
    "_holdfast_status() { canary; }",
    "read() { canary; }",
    "complete -C canary ls",
    "bind -x '\"a\":canary'",
    "history -s canary",
    "coproc cat",
    "umask 0",
    "ulimit -f 0",
    "export HOME=/testbed/cfg",
    "HOME=/outside",
    "export XDG_CONFIG_HOME=/testbed/cfg",
    "cp evil ls",
    "cp evil git",
    "ln -s /outside o",
    "ln -s ../outside/d od",
    "mv src/escape e2",
    "cp -P src/escape e3",
    "mkdir -p a/b; cp -P src/escape a/b/c",
    "cp -r src s2",
    "cp evil.sh a.txt",
    "printf 'touch /outside/x' > run.sh",
    "echo canary > run.sh",
    "git config core.fsmonitor ./evil",
    "git init d7",
    "git mv a.txt c.txt",
    "cp .env c.txt",
    "mv .env c.txt",
    "ln .env c.txt",
    "ln -s .env c.txt",
    "cp cfg/git/config .git/config",
    "cat cfg/git/config > .git/config",
    "git config include.path ../cfg/git/config",
    "mkdir -p .git/hooks && cp evil .git/hooks/pre-commit",
    "tar xf vendor.tar",
    "unzip -q vendor.zip",
    "unzip -o vendor.zip",
    "tar xf vendor.tar -C docs",
    "cd bare",
    "git clone . g",
    "printf 'aaa%n' PATH",
    "printf %n HOME",
    "mkdir 3; cp evil 3/ls",
    "git add .",
    "git add -A",
    "git stash -u",
    "git add -f .env",
    "git commit -qam x",
    "cp -r bare b2",
    "tar cf x.tar .env",
    "sort .e* > c.txt",
    "rm link.txt && ln -s .env link.txt",
    "rm -r src && ln -s /outside src",
    "mv src s3 && ln -s / src",
    "echo '[core]' > .git/config",
    "echo x > .gitattributes",
    "set -- canary",
    "set -- -exec canary",
    "X='-exec canary ;'",
    "f='a.txt /outside/x'",
    "X='; canary'",
    "v=../outside/x",
    "v=.env",
    "export v=/outside/x",
    "readonly X=1",
    "OPTIND=x",
    "shift",
    "exit",
    "exec ls",
    "return",
    "{ sleep 0.1; canary; } &",
    "sleep 1 &",
    "disown",
    "wait",
    "unset HOME",
    "unset PATH",
    "unset -f cd",
)
THEN = (
    "cd bare && git status",
    "git -C bare status",
    "git -C bare diff",
    "cat up/kept.txt",
    "touch up/z",
    "cat plain.txt",
    "cat docs/plain.txt",
    "touch docs/up/z",
    "cd packed && git status",
    "git -C packed status",
    "git -C g status",
    "git diff --cached",
    "git show",
    "git stash show -p",
    "git show stash@{0}^3",
    "git log -p -1",
    "cat b2/config",
    "ls",
    "echo a",
    "echo $X",
    "$X",
    "echo $x",
    "$x",
    "git status",
    "git diff",
    "git log -1",
    "git -p log",
    "cat a.txt",
    "cat c.txt",
    "cat *",
    "cat $v",
    "touch $v",
    "echo a > $v",
    "head c.txt",
    "cat link.txt",
    "echo x > o/z",
    "echo x > od/z",
    "touch e2/z",
    "touch e3/z",
    "echo x > escape/z",
    "touch escape/z",
    "cp a.txt escape",
    "touch ../x",
    "echo x > ../x",
    "rm ../x",
    "cat ../.env",
    "cat .env",
    "touch x",
    "echo x > x",
    "ls /outside/x",
    "find . -name a.txt $X",
    "echo $((x))",
    "[[ $x -eq 0 ]]",
    "x=1",
    "r=.",
    "x=/outside/bin/canary; git diff",
    "f",
    "ll",
    "pwd",
    "cd ..",
    "cd -",
    "cd",
    "popd",
    "nothing_here",
    "make",
    "sh run.sh",
    "./evil",
    "ls; ls",
    "true",
    "false",
    ":",
    "wc -l a.txt",
    "tar xOf x.tar",
    "tar tf x.tar",
    "git add . && git commit -m x",
    "git commit --allow-empty -m x",
    "touch src/z",
    "echo x > src/z",
    "cat src/etc/shadow",
    "cat src/notes.txt",
    "ls src",
    "cat a/b/c/kept.txt",
    "touch a/b/c/z",
    "touch s2/escape/z",
    "cat s2/escape/kept.txt",
    "(ls)",
    "sh -c ls",
    "bash -c ls",
    '"$@"',
    "$1",
    'find . -name x "$@"',
    "less a.txt",
    "man ls",
    "jobs",
    "fg",
    "echo ~",
    "cat ~/.env",
    "cat ~/notes.txt",
    "touch ~/x",
    "echo *",
    "for f in *; do cat $f; done",
    "xargs echo < a.txt",
    "y=1",
    "touch y",
    "read y",
    "python3 src/app.py",
    "git show",
    "printf '%s' a",
    "test -f a.txt",
    "test 1 -eq 1",
    "sort a.txt",
    "touch $f",
    "cat $f",
    "rm $f",
    "cp a.txt $v",
)


def sequence(random: Random) -> list[str]:
    """Return two or three commands of one shell: the first ones leave effects for the last."""
    commands = [random.choice(LEFT)]
    if random.random() < 0.5:
        commands.append(random.choice((*LEFT, *THEN)))
    commands.append(random.choice(THEN))
    return commands


def mixture(
    random: Random, seeds: Sequence[str], documented: dict[str, list[str]]
) -> Iterator[str]:
    """Yield single commands of every kind, without end."""
    while True:
        match random.randrange(13):
            case 0 | 1 | 2:
                yield script(random)
            case 10 | 11 | 12:
                yield flow(random)
            case 6 | 7:
                yield path(random)
            case 3 | 4:
                yield mutated(random, seeds)
            case 5:
                yield variable(random)
            case _:
                name = program(random)
                yield option(random, name, documented.get(name, ()))
