"""Exit codes, their meanings, and the error that carries one."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """The exit codes. Codes above 128 are the shell's: 128 + the signal number."""

    FINISHED = 0
    FAILED = 1
    USAGE = 2
    STOPPED = 3
    INTERNAL = 70  # EX_SOFTWARE of sysexits.h
    HUNG_UP = 129
    INTERRUPTED = 130
    BROKEN_PIPE = 141
    TERMINATED = 143


MEANINGS = {
    Exit.FINISHED: "the agent finished (chat: you left it)",
    Exit.FAILED: "a failure (model, store, demo): the last line on stderr says why",
    Exit.USAGE: "a wrong option, a missing model or key, a file that does not exist",
    Exit.STOPPED: "the agent stopped early: at a limit (--max-steps), stuck, or a call waits",
    Exit.INTERNAL: "a bug in holdfast; HOLDFAST_DEBUG=1 shows the traceback",
    Exit.HUNG_UP: "the terminal went away (SIGHUP)",
    Exit.INTERRUPTED: "interrupted with Ctrl-C",
    Exit.BROKEN_PIPE: "the reader of the output closed it, as `| head` does",
    Exit.TERMINATED: "terminated (SIGTERM)",
}

# By the signal that ended a server; 0: its client did.
SERVER_CODES = {0: Exit.FINISHED, 2: Exit.INTERRUPTED, 15: Exit.TERMINATED}

# The table of exit codes in the help.
EXIT_CODES = "\n".join(
    ["exit codes:", *(f"  {code.value:<4} {meaning}" for code, meaning in MEANINGS.items())]
)


class UsageError(Exception):
    """A mistake in the command line that the user must correct: one line on stderr, exit code 2."""


def flag(name: str) -> str:
    """Return an option in the form that is typed."""
    return f"--{name.replace('_', '-')}"
