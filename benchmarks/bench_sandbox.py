"""Time of a new box and of a command in a box that stays, and the memory of a box.

A new box is that of a search or clone: `true` runs in it, from its start until its end is reported.
A command in a live box is `run_command(":")`, the next to `LocalRuntime`'s. The memory of a box is
the proportional share (PSS) of its processes, and of bubblewrap's outside of it, while its shell
waits for a command; other shells share the pages of bash.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from harness import Goal, Row, in_child, in_turns

_TIMES = 40


def new_box() -> list[float]:
    """Milliseconds of each of some new boxes."""
    from holdfast import SandboxedRuntime
    from holdfast.tools.launch import start

    found: list[float] = []
    with SandboxedRuntime() as runtime:
        for _ in range(_TIMES):
            began = time.perf_counter()
            process = start(runtime.launcher, ["true"], cwd=None, env={"PATH": "/usr/bin:/bin"})
            process.communicate()
            assert process.returncode == 0
            found.append((time.perf_counter() - began) * 1000)
    return found


def plain_process() -> list[float]:
    """Milliseconds of each of some plain processes."""
    found: list[float] = []
    for _ in range(_TIMES):
        began = time.perf_counter()
        subprocess.run(["true"], check=True)
        found.append((time.perf_counter() - began) * 1000)
    return found


def commands(boxed: bool) -> list[float]:
    """Milliseconds of each of some commands in one shell, after the first."""
    from holdfast import LocalRuntime, SandboxedRuntime

    found: list[float] = []
    with SandboxedRuntime() if boxed else LocalRuntime() as runtime:
        runtime.run_command(":")
        for _ in range(_TIMES):
            began = time.perf_counter()
            runtime.run_command(":")
            found.append((time.perf_counter() - began) * 1000)
    return found


def memory() -> list[float]:
    """Megabytes of one live box, over ten of them."""
    from holdfast import SandboxedRuntime

    with tempfile.TemporaryDirectory() as folder, SandboxedRuntime(folder) as runtime:
        for number in range(10):
            runtime.run_command(":", conversation_id=f"c{number}")
        total = 0
        for status in Path("/proc").glob("[0-9]*/smaps_rollup"):
            try:
                line = (status.parent / "cmdline").read_bytes()
                if b"bwrap" in line.split(b"\0")[0] or b"while IFS= read -r n" in line:
                    total += int(re.findall(rb"^Pss:\s+(\d+)", status.read_bytes(), re.M)[0])
            except (OSError, IndexError):
                continue
    return [total / 10 / 1024]


def rows(quick: bool) -> list[Row]:
    from holdfast.runtime.sandbox.mechanisms import MECHANISMS

    problems = [mechanism.missing() for mechanism in MECHANISMS]
    if all(problems):
        return [Row("a sandbox", "ms", skipped=problems[0])]
    ways: dict[str, Any] = {
        "box": lambda: in_child(new_box),
        "process": lambda: in_child(plain_process),
        "boxed": lambda: in_child(commands, True),
        "plain": lambda: in_child(commands, False),
        "memory": lambda: in_child(memory),
    }
    measured = in_turns(2 if quick else 5, ways)
    medians = {name: [sorted(one)[len(one) // 2] for one in measured[name]] for name in measured}
    extra = [boxed - plain for boxed, plain in zip(medians["boxed"], medians["plain"], strict=True)]
    return [
        Row("a new box", "ms", medians["box"], medians["process"], Goal(15)),
        Row("a command in a live box", "ms", medians["boxed"], medians["plain"]),
        Row("  beyond LocalRuntime", "ms", extra, goal=Goal(1)),
        Row("memory of a live box", "MB", medians["memory"], goal=Goal(4)),
    ]
