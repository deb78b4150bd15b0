"""Wall time of a snapshot for undo, of a work folder of 5,000 files.

The rows are the first snapshot, one without a change, and one after a change of one file. Each call
that may write takes two. The floor is `git status` of the same folder with a repository of its own.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import harness
from harness import Goal, Row, in_child, in_turns

FILES, FOLDERS = 5000, 200
BOUNDS = 50_000, 10 * 2**20, 2**30  # the defaults of FileUndo


def fill(folder: str) -> None:
    for number in range(FILES):
        path = Path(folder, f"f{number % FOLDERS}", f"{number}.py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"value = {number}\n" * 100)


def snapshot(work: str, place: str, way: str, count: int) -> float:
    """Return the milliseconds per snapshot."""
    from holdfast.runtime.snapshots import Snapshots

    seconds: list[float] = []
    for number in range(count):
        snapshots = Snapshots(
            Path(f"{place}-{time.time_ns()}" if way == "first" else place), Path(work), *BOUNDS
        )
        if way != "first" and not number:
            snapshots.take()
        if way == "changed":
            Path(work, "f0", "0.py").write_text(f"{number}")
        began = time.perf_counter()
        snapshots.take(f"{number}/before")
        seconds.append(time.perf_counter() - began)
    return sorted(seconds)[count // 2] * 1000


def status(work: str, count: int) -> float:
    """Measure the floor, in milliseconds."""
    seconds: list[float] = []
    for _ in range(count):
        began = time.perf_counter()
        subprocess.run(["git", "status", "--porcelain"], cwd=work, capture_output=True, check=True)
        seconds.append(time.perf_counter() - began)
    return sorted(seconds)[count // 2] * 1000


def rows(quick: bool) -> list[Row]:
    count = 3 if quick else 15
    with harness.scratch() as folder:
        works = [f"{folder}/work", f"{folder}/repository"]
        for work in works:
            fill(work)
        for words in (["init", "-q"], ["add", "-A"]):
            subprocess.run(["git", *words], cwd=works[1], check=True)
        ways = {
            "floor": lambda: in_child(status, works[1], count),
            "first": lambda: in_child(snapshot, works[0], f"{folder}/first", "first", 1),
            "same": lambda: in_child(snapshot, works[0], f"{folder}/undo", "same", count),
            "changed": lambda: in_child(snapshot, works[0], f"{folder}/undo", "changed", count),
        }
        measured = in_turns(2 if quick else 5, ways)
    floor = measured["floor"]
    return [
        Row("5,000 files, nothing changed", "ms", measured["same"], floor, Goal(3, "ratio")),
        Row("5,000 files, one changed", "ms", measured["changed"], floor, Goal(6, "ratio")),
        Row("5,000 files, the first snapshot", "ms", measured["first"], floor),
    ]
