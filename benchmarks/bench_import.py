"""CPU and peak memory of `from holdfast import LLM, Agent, Tool, Conversation` in a fresh process,
beside a bare interpreter.

CPU is the time that the kernel charged the child for, user and system (`os.wait4`). Memory is the
child's own high-water mark (`VmHWM`); the mark of `wait4` would begin at the size of the parent
process. Both include the interpreter, whose own figures are the floor.
"""

from __future__ import annotations

import os
import subprocess
import sys

import harness
from harness import Goal, Row, compiled, in_turns

NAMES = "from holdfast import LLM, Agent, Tool, Conversation"
PEAK = (
    "print([line for line in open('/proc/self/status') if line.startswith('VmHWM')][0].split()[1])"
)


def measure(program: str) -> tuple[float, float]:
    """Return the milliseconds of CPU and the peak MB of a Python process that runs `program`."""
    with harness.process(
        [sys.executable, "-c", f"{program}\n{PEAK}"], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        peak = int(child.stdout.read()) * 1024
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise harness.Failed(f"{program!r} ended with {child.returncode}")
    return (usage.ru_utime + usage.ru_stime) * 1000, peak / 1e6


def rows(quick: bool) -> list[Row]:
    figures = {
        "pass": "pass",
        "names": NAMES,
        "package": "import holdfast",
        "sqlite": f"{NAMES}, SQLiteStore, ScriptedLLM",
    }
    with compiled():
        for program in figures.values():
            measure(program)  # the first start fills the disk cache and compiles the files
        pairs = in_turns(
            3 if quick else 15,
            {name: lambda program=program: measure(program) for name, program in figures.items()},
        )
    cpu = {name: [one[0] for one in pairs[name]] for name in figures}
    peak = {name: [one[1] for one in pairs[name]] for name in figures}
    return [
        Row("the four names, CPU", "ms", cpu["names"], cpu["pass"], Goal(100)),
        Row("the four names, peak RSS", "MB", peak["names"], peak["pass"], Goal(30)),
        Row("`import holdfast` alone, CPU", "ms", cpu["package"], cpu["pass"]),
        Row("with SQLiteStore and ScriptedLLM, CPU", "ms", cpu["sqlite"], cpu["pass"]),
        Row("with SQLiteStore and ScriptedLLM, peak RSS", "MB", peak["sqlite"], peak["pass"]),
    ]
