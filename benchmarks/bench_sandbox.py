"""Time of a new box and of a command in a box that stays, and the memory of a box.

A new box is that of a search or clone: `true` runs in it, from its start until its end is reported.
A command in a live box is `run_command(":")`, beside that of `LocalRuntime`. The memory of a box is
the proportional share (PSS) of its processes, and of the processes outside that maintain it, while
its shell waits for a command. Other shells share the pages of bash. Each mechanism has rows of its
own.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from functools import partial
from pathlib import Path
from typing import Any

from harness import Goal, Row, in_child, in_turns

_TIMES = 40


def new_box(mechanism: str) -> list[float]:
    """Return the milliseconds of each of some new boxes."""
    from holdfast import SandboxedRuntime
    from holdfast.tools.launch import start

    milliseconds: list[float] = []
    with SandboxedRuntime(mechanism=mechanism) as runtime:
        for _ in range(_TIMES):
            began = time.perf_counter()
            process = start(runtime.launcher, ["true"], cwd=None, env={"PATH": "/usr/bin:/bin"})
            process.communicate()
            assert process.returncode == 0
            milliseconds.append((time.perf_counter() - began) * 1000)
    return milliseconds


def plain_process() -> list[float]:
    """Return the milliseconds of each of some plain processes."""
    milliseconds: list[float] = []
    for _ in range(_TIMES):
        began = time.perf_counter()
        subprocess.run(["true"], check=True)
        milliseconds.append((time.perf_counter() - began) * 1000)
    return milliseconds


def commands(mechanism: str) -> list[float]:
    """Return the milliseconds of each of some commands in one shell, after the first. The mechanism
    "" is no box."""
    from holdfast import LocalRuntime, SandboxedRuntime

    milliseconds: list[float] = []
    with SandboxedRuntime(mechanism=mechanism) if mechanism else LocalRuntime() as runtime:
        runtime.run_command(":")
        for _ in range(_TIMES):
            began = time.perf_counter()
            runtime.run_command(":")
            milliseconds.append((time.perf_counter() - began) * 1000)
    return milliseconds


def memory(mechanism: str) -> list[float]:
    """Return the megabytes of one live box, over ten of them."""
    from holdfast import SandboxedRuntime

    with SandboxedRuntime(mechanism=mechanism) as runtime:
        for number in range(10):
            runtime.run_command(":", conversation_id=f"c{number}")
        total = 0
        for pid in descendants():
            try:
                status = Path(f"/proc/{pid}/smaps_rollup").read_bytes()
                total += int(re.findall(rb"^Pss:\s+(\d+)", status, re.M)[0])
            except (OSError, IndexError):
                continue
    return [total / 10 / 1024]


def descendants() -> list[int]:
    """Return the ids of all processes under this one."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    ids = children.get(os.getpid(), [])
    for pid in ids:
        ids += children.get(pid, [])
    return ids


def rows(quick: bool) -> list[Row]:
    from holdfast.runtime.sandbox.mechanisms import MECHANISMS

    ways: dict[str, Any] = {
        "process": lambda: in_child(plain_process),
        "plain": lambda: in_child(commands, ""),
    }
    names = [one.name for one in MECHANISMS if not one.missing()]
    for name in names:
        ways[f"box {name}"] = partial(in_child, new_box, name)
        ways[f"boxed {name}"] = partial(in_child, commands, name)
        ways[f"memory {name}"] = partial(in_child, memory, name)
    measured = in_turns(2 if quick else 5, ways)
    medians = {name: [sorted(one)[len(one) // 2] for one in measured[name]] for name in measured}
    table: list[Row] = []
    for one in MECHANISMS:
        if one.name not in names:
            table.append(Row(f"a box of {one.name}", "ms", skipped=one.missing()))
            continue
        boxed, plain = medians[f"boxed {one.name}"], medians["plain"]
        extra = [first - second for first, second in zip(boxed, plain, strict=True)]
        table += [
            Row(
                f"a new box of {one.name}",
                "ms",
                medians[f"box {one.name}"],
                medians["process"],
                Goal(15),
            ),
            Row("  a command in a live box", "ms", boxed, plain),
            Row("  beyond LocalRuntime", "ms", extra, goal=Goal(1)),
            Row("  memory of a live box", "MB", medians[f"memory {one.name}"], goal=Goal(4)),
        ]
    return table
