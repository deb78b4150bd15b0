"""What is said to a bash so that it runs commands and reports on them, and how its reports are read."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

# Interactive, since only an interactive bash survives SIGINT and errors of expansion, and goes on with its next command.
ARGUMENTS = ("--noprofile", "--norc", "--noediting", "-i")

# The descriptor on which the shell reports. High, so that a script's own `exec 3>file` does not meet it, and below 256, the
# limit of descriptors on some systems. It is closed while a command runs: nothing that a command starts can hold or write it.
_REPORT = 250

# Monitor mode (-m) gives each job a process group of its own. A report ends with one write, so that a SIGINT in the middle of
# reporting cannot leave half of one.
_SETUP = """exec {report}>&{fd} {close}; PS1= PS2= PROMPT_COMMAND=; unset HISTFILE; set +o history +H -m
_holdfast_status() {{ return "$1"; }}
_holdfast_report() {{ builtin jobs -p >&{report}; builtin printf '\\0%s\\0%s\\0%s\\0\\n' "$2" "$1" "${{PWD-}}" >&{report}; }}
"""

# The second line is a command of its own: it also runs when the first is thrown away by a SIGINT. The first word of each is
# quoted against aliases.
_COMMAND = """IFS= \\builtin read -rd '' _holdfast_command <{command}; _holdfast_status {status}; \
\\builtin eval "$_holdfast_command" <{stdin} >{stdout} 2>&1 {report}>&-
"""
_ASK = """_holdfast_report "$?" {number}
"""
_REPORTED = re.compile(rb"([\d\n]*)\0(\d+)\0(\d+)\0([^\0]*)\0\n")


class Report(NamedTuple):
    """What the shell says when it is ready again: after which run, with what exit code, where, and which jobs it has."""

    number: int
    status: int
    cwd: str
    jobs: set[int]


def setup(fd: int) -> str:
    """The first words: where to report (an inherited descriptor), and no history, prompts or `!`."""
    return _SETUP.format(report=_REPORT, fd=fd, close="" if fd == _REPORT else f"{fd}>&-")


def run(number: int, status: int, command: str, stdin: str, stdout: str) -> str:
    """Run the file `command` as if it were typed, with `$?` being `status` at first, then report."""
    files = {"command": _quoted(command), "stdin": _quoted(stdin), "stdout": _quoted(stdout)}
    return _COMMAND.format(**files, status=status, report=_REPORT) + ask(number)


def ask(number: int) -> str:
    """Report, with the last command's exit code."""
    return _ASK.format(number=number)


def reports(data: bytes) -> tuple[list[Report], bytes]:
    """The reports in what the shell wrote, and what is left: the beginning of the next."""
    found: list[Report] = []
    end = 0
    for match in _REPORTED.finditer(data):
        end = match.end()
        jobs, number, status, cwd = match.groups()
        found.append(Report(int(number), int(status), os.fsdecode(cwd), {int(job) for job in jobs.split()}))
    return found, data[end:]


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
