"""One command in a new bash: its script, and the state that is carried to the next command.

Every command gets a non-interactive bash of its own. The working directory and the values of
variables are carried from one command to the next, as data that the driver reads, checks and
sets. Functions, aliases, options, traps and arrays end with their command: one command cannot
change the bash of a later one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Container, Mapping
from dataclasses import dataclass, field

# Privileged mode (-p): bash takes no startup file, functions or options from any environment.
ARGUMENTS = ("--noprofile", "--norc", "-p")

MAX_STATE_BYTES = 4 * 1024 * 1024
"""The maximum size of a carried state; a larger one is dropped as a whole."""
_MAX_VALUE_BYTES = 100_000  # of one exported variable; Linux accepts at most 128 KB per string
# Of all exported variables; Linux accepts at most 2 MB for arguments and environment.
_MAX_EXPORTED_BYTES = 1_000_000

# The script is one line, so that bash counts the command's lines from 1. `{name}` is random: no
# command can know it beforehand, and the function is readonly. The script's file has two parts that
# end with NUL: assignments, and the command.
#
# The state is written after the command, and on `exit`, a failing `set -e` or a SIGINT. The state
# ends with NUL, and the trap is set only after all variables, since a SIGINT can come at any time.
# Output of the script itself is hidden, and bash has read the script when the command begins.
# Otherwise `set -x`, `set -v` or a trap on DEBUG would show lines that are not the command's.
_SCRIPT = (
    "{name}() {{ [[ ${{{name}d:-}} ]] || {{ {name}c=; builtin declare -p; builtin declare -F;"
    " builtin printf '\\0'; }} 2>/dev/null >|{state}; {name}d=1; builtin set +v; return \"$1\"; }};"
    " {{ IFS= read -rd '' {name}v; IFS= read -rd '' {name}c; }} <{script}; eval \"${name}v\";"
    " {name}v=; readonly -f {name}; trap '{{ {name} \"$?\"; }} >/dev/null 2>&1' EXIT; {name}s() {{"
    ' unset -f {name}s; return {status}; }}; {name}s; {{ eval "${name}c"; {{ {name} "$?"; }}'
    " >/dev/null 2>&1; }}"
)

# Names that change how bash starts or runs. They are never set for a command. So no environment of
# a caller and no earlier command can load a file, turn an option on or change the splitting of
# words.
_ACTED_ON = re.compile(
    r"BASH|BASH_.*|BASHOPTS|SHELLOPTS|ENV|IFS|PS\d|PROMPT_.*|POSIXLY_CORRECT|GLOBIGNORE|EXECIGNORE|FIGNORE|CDPATH|TMOUT|TIMEFORMAT"
    r"|FUNCNEST|HIST.*|histchars|INPUTRC|MAIL|MAILCHECK|MAILPATH|OPTIND|OPTARG|OPTERR|COMP_.*|READLINE_.*|IGNOREEOF|auto_resume"
    r"|CHILD_MAX|_"
)
# Names that bash sets itself; most of them are readonly or change.
_SET_BY_BASH = re.compile(
    r"COLUMNS|COMPREPLY|COPROC|DIRSTACK|EPOCHREALTIME|EPOCHSECONDS|EUID|FUNCNAME|GROUPS"
    r"|HOSTNAME|HOSTTYPE|LINENO|LINES|MACHTYPE|MAPFILE|OLDPWD|OSTYPE|PIPESTATUS|PPID|PWD"
    r"|RANDOM|REPLY|SECONDS|SHELL|SHLVL|SRANDOM|TERM|UID"
)
_DECLARED = re.compile(
    rb"""^declare -([-\w]+) ([A-Za-z_]\w*)="""
    rb"""(?:"([^"\\]*(?:\\.[^"\\]*)*)"|\$'([^'\\]*(?:\\.[^'\\]*)*)')$""",
    re.DOTALL | re.MULTILINE,
)
_FUNCTION = re.compile(rb"^declare -f\w* (\S+)$", re.MULTILINE)
_ESCAPED = re.compile(
    rb"\\(?:([0-7]{1,3})|x([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{1,4})|U([0-9A-Fa-f]{1,8})|c(.)|(.))",
    re.DOTALL,
)
_LETTERS = bytes.maketrans(b"abeEfnrtv", b"\a\b\x1b\x1b\f\n\r\t\v")


@dataclass(frozen=True)
class TerminalState:
    """The state of a conversation's terminal between two commands."""

    cwd: str
    exported: Mapping[str, str]
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    """Variables that are not exported."""
    status: int = 0
    """The exit code of the last command."""


@dataclass(frozen=True)
class StateChange:
    """The changes that a command made to the state, by name."""

    exported: tuple[str, ...] = ()
    """Exported variables that the command set, changed or unset."""
    functions: tuple[str, ...] = ()
    """Functions that the command defined, which ended with it."""
    too_large: tuple[str, ...] = ()
    """Variables that are too large to be carried."""


def acts_on(name: str) -> bool:
    """Return True for a variable that changes how bash itself works."""
    return _ACTED_ON.fullmatch(name) is not None


def arguments(name: str, script: str, state: str, status: int) -> list[str]:
    """Return the arguments of a bash that runs the file `script` and writes its state to the file
    `state`. `name` is a random identifier; `status` is the initial value of `$?`."""
    line = _SCRIPT.format(name=name, script=_quoted(script), state=_quoted(state), status=status)
    return [*ARGUMENTS, "-c", line, "bash"]


def script(command: bytes, state: TerminalState) -> bytes:
    """Return the content of the script's file: the variables, then the command."""
    lines = "".join(f"{name}={_quoted(value)}\n" for name, value in state.variables.items())
    return lines.encode(errors="surrogateescape") + b"\0" + command + b"\0"


def after(
    before: TerminalState, data: bytes, name: str, marks: Container[str], status: int
) -> tuple[TerminalState, StateChange] | None:
    """Return the state that a command wrote to `data`, and the change; None if `data` holds no
    state.

    Args:
        before: The state in which the command began.
        data: Content of the state's file.
        name: The random identifier of its script.
        marks: Names of variables that do not belong to the state.
        status: The command's exit code.
    """
    if not data.endswith(b"\0"):
        return None
    exported: dict[str, str] = {}
    variables: dict[str, str] = {}
    too_large: list[str] = []
    cwd = ""
    room = _MAX_EXPORTED_BYTES
    for match in _DECLARED.finditer(data):
        flags, key, plain, escaped = match.groups()
        variable_name = os.fsdecode(key)
        value = (
            re.sub(rb"\\(.)", rb"\1", plain, flags=re.DOTALL)
            if plain is not None
            else _ESCAPED.sub(_unescaped, escaped)
        )
        text = os.fsdecode(value.replace(b"\0", b""))
        own = variable_name.startswith(name) or variable_name == "SHLVL" or variable_name in marks
        if variable_name == "PWD":
            cwd = text
        elif own or acts_on(variable_name) or b"n" in flags:
            continue
        elif b"x" in flags:
            room -= len(key) + len(value)
            if len(value) > _MAX_VALUE_BYTES or room < 0:
                too_large.append(variable_name)
            else:
                exported[variable_name] = text
        elif not _SET_BY_BASH.fullmatch(variable_name):
            variables[variable_name] = text
    if not cwd.startswith("/"):
        cwd = before.cwd
    defined = map(os.fsdecode, _FUNCTION.findall(data))
    functions = tuple(function for function in defined if not function.startswith(name))
    names = sorted({*before.exported, *exported} - {"OLDPWD", "SHLVL", "PWD", *too_large})
    changed_names = tuple(one for one in names if before.exported.get(one) != exported.get(one))
    state = TerminalState(cwd, exported, variables, status)
    return state, StateChange(changed_names, functions, tuple(too_large))


def _unescaped(match: re.Match[bytes]) -> bytes:
    octal, byte, short, long, control, char = match.groups()
    if octal is not None:
        return bytes([int(octal, 8) & 0xFF])
    if byte is not None:
        return bytes([int(byte, 16)])
    if short is not None or long is not None:
        number = int(short or long, 16)
        return chr(number).encode(errors="replace") if number < 0x110000 else b"?"
    if control is not None:
        return bytes([control[0] & 0x1F])
    return char.translate(_LETTERS)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
