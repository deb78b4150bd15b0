"""Seconds from the start of `holdfast chat` to its first prompt on a terminal, beside `python -c
pass`.

This is the whole wait of a user before typing: the interpreter and the input box. "ready" is the
status line with the state of the sandbox: the sandbox, the store, the agent and its conversation
are open, and a message is sent at once. "plain" is `chat --plain`, without an input box, which
opens all of that before its prompt.

The clock runs in this process, from just before the start until the prompt is on the
pseudo-terminal. The pseudo-terminal answers requests for the cursor's position, as terminals do.
The model is one on loopback that receives no request. The floor is an interpreter that runs nothing
in the same pseudo-terminal, to its end.
"""

from __future__ import annotations

import fcntl
import os
import re
import select
import struct
import sys
import termios
import time
from pathlib import Path

import harness
from harness import Goal, Row, in_turns

SECONDS = 20.0  # a start that takes longer has failed
PROMPT = re.compile(rb"(?:^|[\n\rmGJKh])>(?:\x1b\[0?m)?[ \r]")  # at the beginning of a line
READY = re.compile(rb"\\| (no )?sandbox")  # the end of the status line
END = re.compile(rb"(?!)")  # of the process
CURSOR_ASKED, CURSOR = b"\x1b[6n", b"\x1b[1;1R"
HOLDFAST = [sys.executable, "-m", "holdfast.cli", "chat", "--model", "m"]
HOLDFAST += ["--base-url", "http://127.0.0.1:9"]


def measure(arguments: list[str], folder: str, awaited: re.Pattern[bytes] = PROMPT) -> float:
    """Return the seconds until the output matches `awaited`. `folder` holds the working folder."""
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    inherited = ("PATH", "PYTHONPYCACHEPREFIX", "HOLDFAST_SANDBOX")
    env = {name: os.environ[name] for name in inherited if name in os.environ}
    env |= {"TERM": "xterm-256color", "HOME": folder, "LANG": "C.UTF-8"}
    work = Path(folder, "work")
    work.mkdir(exist_ok=True)
    began = time.perf_counter()
    try:
        with harness.process(arguments, stdin=slave, stdout=slave, stderr=slave, cwd=work, env=env):
            os.close(slave)
            return _until(master, awaited) - began
    finally:
        os.close(master)


def _until(master: int, awaited: re.Pattern[bytes]) -> float:
    output = b""
    while select.select([master], [], [], SECONDS)[0]:
        try:
            data = os.read(master, 65536)
        except OSError:  # EIO: the process has ended
            if awaited is END:
                return time.perf_counter()
            break
        output += data
        if awaited.search(output):
            return time.perf_counter()
        if CURSOR_ASKED in data:
            os.write(master, CURSOR)
    raise harness.Failed(f"no {awaited.pattern!r}: {output[-300:]!r}")


def rows(quick: bool) -> list[Row]:
    with harness.compiled(), harness.scratch() as folder:
        starts = {
            "holdfast": [*HOLDFAST, "--no-undo"],
            "undo": HOLDFAST,
            "ready": HOLDFAST,
            "plain": [*HOLDFAST, "--no-undo", "--plain"],
            "floor": [sys.executable, "-c", "pass"],
        }
        awaited = {"ready": READY, "floor": END}
        measured = {
            name: lambda one=one, awaited=awaited.get(name, PROMPT): measure(
                one, str(folder), awaited
            )
            for name, one in starts.items()
        }
        for one in measured.values():
            one()  # the first start fills the disk cache and compiles the files
        seconds = in_turns(3 if quick else 10, measured)
    floor = seconds["floor"]
    return [
        Row("chat to its first prompt", "s", seconds["holdfast"], floor, Goal(0.25)),
        Row("chat with /undo to its first prompt", "s", seconds["undo"], floor, Goal(0.25)),
        Row("chat with /undo until it is ready", "s", seconds["ready"], floor),
        Row("chat --plain to its first prompt", "s", seconds["plain"], floor),
    ]
