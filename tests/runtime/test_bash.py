"""The bash of a command: not interactive, without the user's files, and unaffected by earlier
commands."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.runtime import LocalRuntime, bash


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[LocalRuntime]:
    with LocalRuntime(tmp_path) as runtime:
        yield runtime


def first_lines(text: str) -> list[str]:
    """Return the output without the lines that the runtime adds."""
    return [line for line in text.splitlines() if not line.startswith("[")]


# --- its initial state ---


def test_a_command_sees_no_history_startup_file_or_alias_of_the_user(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / ".bash_history").write_text("echo secret from history\n")
    for name in (".bashrc", ".bash_profile", ".profile", ".bash_login", "env.sh"):
        (home / name).write_text("echo loaded; alias ls='echo aliased'; ls() { echo function; }\n")
    file = str(home / "env.sh")
    env = {
        "HOME": str(home),
        "BASH_ENV": file,
        "ENV": file,
        "PS0": "$(echo loaded)",
        "PS4": "$(echo loaded >&2)",
        "PROMPT_COMMAND": "echo loaded",
        "HISTFILE": str(home / ".bash_history"),
        "SHELLOPTS": "xtrace",
        "BASHOPTS": "expand_aliases",
        "BASH_FUNC_ls%%": "() { echo function; }",
        "KEPT": "yes",
    }
    with LocalRuntime(tmp_path, env=env) as runtime:
        result = runtime.run_command(
            "history; fc -l; echo $-; shopt expand_aliases login_shell; alias; ls home/env.sh; echo"
            " $KEPT"
        )
        inner = runtime.run_command("env; bash -c 'ls home/env.sh'; PS1=x bash -ic true")
        history = (home / ".bash_history").read_text()
    assert "secret" not in result.text
    assert "i" not in first_lines(result.text)[0]
    assert [line.split() for line in first_lines(result.text)[1:]] == [
        ["expand_aliases", "off"],
        ["login_shell", "off"],
        ["home/env.sh"],
        ["yes"],
    ]
    assert "loaded" not in result.text.replace("env.sh", "")
    assert not [
        line
        for line in inner.text.splitlines()
        if line.startswith(("BASH_ENV", "ENV=", "PS", "HIST", "SHELLOPTS", "BASH_FUNC"))
    ]
    assert "function" not in inner.text
    assert history == "echo secret from history\n"


# --- effects of earlier commands ---

PROGRAMS = (
    "ls builtin eval printf echo read return trap readonly unset declare exit exec jobs local"
    " command type test [ : . source set cd true"
)
NAMES = "$(compgen -A function) _holdfast_report _holdfast_status"

ATTACKS = {
    "functions": f'for f in {PROGRAMS}; do eval "function $f {{ /bin/touch pwned; }}"; done',
    "function of builtin": "builtin() { touch pwned; }",
    "the old names": (
        "_holdfast_report() { :; }; _holdfast_status() { :; }; readonly _holdfast_command='touch"
        " pwned'"
    ),
    "its own functions": (
        f'for f in {NAMES}; do eval "$f() {{ touch pwned; }}"; unset -f $f; readonly -f $f; done'
        " 2>/dev/null"
    ),
    "its own variables": (
        "for v in ${!_*}; do eval \"$v='touch pwned'; readonly $v\"; done 2>/dev/null"
    ),
    "all variables readonly": "for v in $(compgen -v); do readonly $v; done 2>/dev/null",
    "aliases": (
        "shopt -s expand_aliases; alias ls='touch pwned; ls' builtin='touch pwned' eval='touch"
        " pwned'"
    ),
    "the table of aliases": (
        "shopt -s expand_aliases; BASH_ALIASES[ls]='touch pwned; ls'; BASH_ALIASES[eval]='touch"
        " pwned'"
    ),
    "the table of commands": "BASH_CMDS[ls]=/usr/bin/touch; BASH_CMDS[pwned]=/bin/true",
    "hash": "hash -p /usr/bin/touch ls",
    "disabled builtins": "enable -n builtin eval printf read return trap readonly declare exit",
    "all disabled": "enable -n $(compgen -b)",
    "trap DEBUG": "trap 'touch pwned' DEBUG",
    "traps": "trap 'touch pwned' EXIT ERR RETURN INT TERM HUP USR1 CHLD",
    "no trap": "trap - EXIT",
    "extdebug": "shopt -s extdebug; trap 'false' DEBUG",
    "set -n": "set -n",
    "set -e": "set -e; false",
    "set -r": "set -r",
    "set -o posix": "set -o posix",
    "set -eufkvx": "PS4='$(touch pwned)'; set -eufkvxCT; export SHELLOPTS BASHOPTS PS4",
    "noclobber": "set -o noclobber",
    "exit": "exit 0",
    "exit in a function": "f() { exit 7; }; f",
    "exec": "exec true",
    "exec into nothing": "exec >/dev/null 2>&1 </dev/null",
    "descriptors closed": 'for fd in /proc/$$/fd/*; do eval "exec ${fd##*/}>&-"; done 2>/dev/null',
    "killed": "kill -9 $$",
    "terminated": "kill $$",
    "syntax": "fi ) } '",
    "bad substitution": "${!@#$%^&}",
    "return": "return 3",
    "break": "break 5; continue 3",
    "startup files": (
        "echo 'touch pwned' > evil; export BASH_ENV=$PWD/evil ENV=$PWD/evil PROMPT_COMMAND='."
        " ./evil' PS0='$(. ./evil)'"
    ),
    "exported functions": "ls() { touch pwned; }; builtin() { touch pwned; }; export -f ls builtin",
    "command_not_found": "command_not_found_handle() { touch pwned; }; ls() { nosuch; }",
    "IFS": "IFS=0123456789abcdeflsprint; export IFS",
    "namerefs": "declare -n PWD=evil HOME=evil; declare -n ls=PATH",
    "unset": (
        "unset PWD OLDPWD HOME IFS PPID SHELLOPTS BASH_VERSION; unset -f $(compgen -A function)"
    ),
    "integers": "declare -i PWD HOME; a='x[$(touch pwned)]'; export b='x[$(touch pwned)]'",
    "limits": "ulimit -f 0",
    "no files": "ulimit -n 3",
    "umask": "umask 777",
    "CDPATH": (
        "mkdir -p a/b; export CDPATH=$PWD/a GLOBIGNORE='*' EXECIGNORE='*/ls' TMOUT=1"
        " POSIXLY_CORRECT=1"
    ),
}

STATE = "state=$(tr '\\0' '\\n' </proc/$$/cmdline | grep -o \"/[^']*[.]state\" | head -1); "
ATTACKS |= {
    "a forged state": (
        STATE
        + "printf '%s\\n' 'declare -x BASH_ENV=\"./evil\"' 'declare -x BASH_FUNC_ls%%=\"() { touch"
        ' pwned; }"\' \'declare -- A="$(touch pwned)"\' "declare -- B=\\"\';touch pwned;\'\\""'
        " 'declare -- C;touch pwned;D=\"1\"' 'declare -x PWD=\"relative\"' 'declare -fx ls' >"
        " $state; printf '\\0' >> $state; echo 'touch pwned' > evil; exec true"
    ),
    "half a state": STATE + "printf 'declare -x PATH=\"/nowhere\"\\n' > $state; exec true",
    "a state that is a link": STATE + "ln -sf /dev/zero $state; exec true",
    "a state that is a pipe": STATE + "rm -f $state; mkfifo $state; exec true",
    "a state that is a folder": STATE + "rm -f $state; mkdir $state; exec true",
    "an endless state": STATE + "truncate -s 10G $state; exec true",
    "random bytes": (
        STATE + "head -c 100000 /dev/urandom > $state; printf '\\0' >> $state; exec true"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACKS)
def test_what_a_command_does_to_its_bash_ends_with_it(
    runtime: LocalRuntime, tmp_path: Path, name: str
) -> None:
    runtime.run_command("KEPT=1")
    start = time.monotonic()
    attack = runtime.run_command(ATTACKS[name], 30)
    assert time.monotonic() - start < 10
    assert attack.meta["timedOut"] is False
    (tmp_path / "pwned").unlink(missing_ok=True)
    for _ in range(2):
        start = time.monotonic()
        result = runtime.run_command(
            "ls -d .; eval 'printf %s\\\\n ok'; A=1; [ $A = 1 ] && (exit 41)", 30
        )
        assert time.monotonic() - start < 10
        assert first_lines(result.text) == [".", "ok"]
        assert result.meta["exitCode"] == 41
        assert not (tmp_path / "pwned").exists()


def test_an_exported_variable_that_changes_programs_is_never_kept_in_silence(
    runtime: LocalRuntime,
) -> None:
    result = runtime.run_command(
        "export PATH=./evil:$PATH GIT_EXTERNAL_DIFF=./evil; declare -n r=LD_PRELOAD; r=x; export"
        " LD_PRELOAD 2>/dev/null"
    )
    assert (
        "exported variables changed for the next commands: GIT_EXTERNAL_DIFF, LD_PRELOAD, PATH]"
        in result.text
    )


def test_the_names_of_the_script_are_new_for_each_command(runtime: LocalRuntime) -> None:
    names = {tuple(first_lines(runtime.run_command("compgen -A function").text)) for _ in range(5)}
    assert len(names) == 5
    assert all(len(group) == 1 for group in names)
    assert (
        "readonly function"
        in runtime.run_command('f=$(compgen -A function); eval "$f() { :; }"').text
    )


def test_a_command_may_be_as_large_as_it_likes(runtime: LocalRuntime) -> None:
    text = "x" * 500_000
    result = runtime.run_command(f"A={text}; echo ${{#A}}")
    assert first_lines(result.text) == ["500000"]


@pytest.mark.slow
def test_a_state_is_read_in_a_time_that_grows_with_its_size() -> None:
    before = bash.TerminalState("/", {})
    for data in (
        b'declare -x A="' + b"\\" * 4_000_000,
        b"declare -x A=$'" + b"\\x" * 2_000_000 + b"\0",
        b'declare -- A="1"\n' * 200_000 + b"\0",
    ):
        start = time.process_time()
        bash.after(before, data, "_n", (), 0)
        assert time.process_time() - start < 3
    assert (
        os.fsencode(
            bash.after(before, b"declare -x A=$'\\377\\x41\\u00e9\\cA\\n'\n\0", "_n", (), 0)[
                0
            ].exported["A"]
        )
        == b"\xffA\xc3\xa9\x01\n"
    )  # type: ignore[index]


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("set -x; echo a", ["++ echo a", "a"]),
        ("set -x\nfalse", ["++ false"]),
        ("set -ex; false; echo no", ["++ false"]),
        ("set -x; exit 3", ["++ exit 3"]),
        ("set -v; echo b", ["b"]),
        (
            "set -x; trap 'echo bye' EXIT; true",
            ["++ trap 'echo bye' EXIT", "++ true", "+ echo bye", "bye"],
        ),
        ("trap 'echo dbg' DEBUG; echo c", ["dbg", "c"]),
        ("set -T; trap 'echo \"$BASH_COMMAND\"' DEBUG; true", ["true"]),
        ("set -E; trap 'echo err' ERR; false", ["err"]),
        ("set -T; trap 'echo ret' RETURN; echo d", ["d"]),
    ],
)
def test_a_command_that_traces_its_bash_sees_its_own_lines_alone(
    runtime: LocalRuntime, command: str, shown: list[str]
) -> None:
    assert first_lines(runtime.run_command(command).text) == shown
