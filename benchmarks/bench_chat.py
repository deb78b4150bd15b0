"""Seconds from the start of `holdfast chat` to its first prompt on a terminal, beside `python -c
pass`.

The whole of what a user waits for before typing: the interpreter, the imports, the sandbox, the
agent and its conversation, the input box. The clock runs in this process, from just before the
start until the prompt is on the pseudo-terminal, which answers where the cursor is, as terminals
do. The model is one on loopback, which nothing asks anything. "plain" is `chat --plain`, without an
input box. The floor is an interpreter that runs nothing in the same pseudo-terminal, to its end.
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

SECONDS = 20.0  # until a start has failed
PROMPT = re.compile(rb"(?:^|[\n\rmGJKh])>(?:\x1b\[0?m)?[ \r]")  # at the beginning of a line
CURSOR_ASKED, CURSOR = b"\x1b[6n", b"\x1b[1;1R"
HOLDFAST = [sys.executable, "-m", "holdfast.cli", "chat", "--model", "m"]
HOLDFAST += ["--base-url", "http://127.0.0.1:9"]


def measure(arguments: list[str], folder: str) -> float:
    """Seconds to the prompt, or to the end of a process that has none."""
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    kept = ("PATH", "PYTHONPYCACHEPREFIX", "HOLDFAST_SANDBOX")
    env = {name: os.environ[name] for name in kept if name in os.environ}
    env |= {"TERM": "xterm-256color", "HOME": folder, "LANG": "C.UTF-8"}
    began = time.perf_counter()
    try:
        with harness.process(
            arguments, stdin=slave, stdout=slave, stderr=slave, cwd=folder, env=env
        ):
            os.close(slave)
            return _until_prompt(master) - began
    finally:
        os.close(master)


def _until_prompt(master: int) -> float:
    seen = b""
    while select.select([master], [], [], SECONDS)[0]:
        try:
            data = os.read(master, 65536)
        except OSError:  # EIO: the process has ended
            return time.perf_counter()
        seen += data
        if PROMPT.search(seen):
            return time.perf_counter()
        if CURSOR_ASKED in data:
            os.write(master, CURSOR)
    raise harness.Failed(f"no prompt within {SECONDS:g} s: {seen[-300:]!r}")


def rows(quick: bool) -> list[Row]:
    with harness.compiled(), harness.scratch() as folder:
        work = Path(folder, "work")
        work.mkdir()
        starts = {
            "holdfast": [*HOLDFAST, "--no-undo"],
            "undo": HOLDFAST,
            "plain": [*HOLDFAST, "--no-undo", "--plain"],
            "floor": [sys.executable, "-c", "pass"],
        }
        for arguments in starts.values():
            measure(arguments, str(work))  # once for the disk and the compiled files
        found = in_turns(
            3 if quick else 10,
            {name: lambda one=one: measure(one, str(work)) for name, one in starts.items()},
        )
    floor = found["floor"]
    return [
        Row("chat to its first prompt", "s", found["holdfast"], floor, Goal(0.25)),
        Row("chat with /undo to its first prompt", "s", found["undo"], floor, Goal(0.25)),
        Row("chat --plain to its first prompt", "s", found["plain"], floor),
    ]
