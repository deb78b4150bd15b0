"""What all benchmarks share: fresh processes, a mock model, CPU and memory readings, and the table.

A figure is the median of several repeats, each in a fresh process, shown with its least and
greatest. Its floor is measured in the same run, in turns with it, so that a busy machine slows
both: trust the ratios more than the figures.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent

# --- results ---


@dataclass(frozen=True)
class Goal:
    """A figure to stay at or below: the median itself, or its ratio to the floor's."""

    limit: float
    of: Literal["median", "ratio"] = "median"


@dataclass
class Row:
    """One line of a table: the repeats of a figure and of its floor, in `unit`."""

    what: str
    unit: str
    values: Sequence[float] = ()
    floor: Sequence[float] = ()
    goal: Goal | None = None
    skipped: str = ""  # why nothing was measured

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def ratio(self) -> float | None:
        """Of the medians; None without a floor."""
        if not self.floor or not self.values:
            return None
        return self.median / statistics.median(self.floor)

    @property
    def met(self) -> bool | None:
        """None where there is no goal, or nothing was measured."""
        if self.goal is None or not self.values:
            return None
        figure = self.median if self.goal.of == "median" else self.ratio
        return figure is not None and figure <= self.goal.limit

    def cells(self) -> list[str]:
        """What a table shows of it, under `HEADINGS`."""
        if not self.values:
            return [self.what, f"skipped: {self.skipped}", "", "", "", self._goal(), ""]
        spread = (
            f"{number(min(self.values))}-{number(max(self.values))}" if len(self.values) > 1 else ""
        )
        floor = f"{number(statistics.median(self.floor))} {self.unit}" if self.floor else ""
        ratio = f"{self.ratio:.2f}x" if self.ratio is not None else ""
        return [
            self.what,
            f"{number(self.median)} {self.unit}".strip(),
            spread,
            floor,
            ratio,
            self._goal(),
            self._verdict(),
        ]

    def _goal(self) -> str:
        if self.goal is None:
            return ""
        return f"<= {self.goal.limit:g}" + (
            "x" if self.goal.of == "ratio" else f" {self.unit}".rstrip()
        )

    def _verdict(self) -> str:
        if self.met is None or self.goal is None:
            return ""
        if self.met:
            return "met"
        beyond = (
            self.goal.of == "median"
            and self.floor
            and statistics.median(self.floor) > self.goal.limit
        )
        return "MISSED, by the floor too" if beyond else "MISSED"

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        goal = None if self.goal is None else {"limit": self.goal.limit, "of": self.goal.of}
        return {
            "what": self.what,
            "unit": self.unit,
            "values": list(self.values),
            "floor": list(self.floor),
            "ratio": self.ratio,
            "goal": goal,
            "met": self.met,
            "skipped": self.skipped,
        }


HEADINGS = ["what", "measured", "min-max", "floor", "ratio", "goal", ""]


def number(value: float) -> str:
    """Three digits that mean something."""
    size = abs(value)
    if size >= 100 or value == int(value):
        return f"{value:.0f}"
    return f"{value:.{1 if size >= 10 else 2 if size >= 1 else 3}f}"


def table(rows: Sequence[Row], markdown: bool = False) -> str:
    """The rows, aligned; with `markdown`, as a table of that."""
    lines = [HEADINGS, *(row.cells() for row in rows)]
    if markdown:
        lines.insert(1, ["---"] * len(HEADINGS))
        return "\n".join("| " + " | ".join(cell.strip() for cell in line) + " |" for line in lines)
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    # A skipped row's reason runs over the columns behind it.
    widths[1] = max(len(line[1]) for line in lines if not line[1].startswith("skipped"))
    return "\n".join(
        "  "
        + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def in_turns(repeats: int, figures: dict[str, Callable[[], Any]]) -> dict[str, list[Any]]:
    """Every figure measured `repeats` times, one after the other each time, so that a slow minute
    slows all of them."""
    found: dict[str, list[Any]] = {name: [] for name in figures}
    for _ in range(repeats):
        for name, measure in figures.items():
            found[name].append(measure())
    return found


# --- processes ---

_running: set[subprocess.Popen[Any]] = set()


@contextlib.contextmanager
def process(arguments: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """A child in a process group of its own, which is killed when the block ends, however it
    ends."""
    child = subprocess.Popen(arguments, start_new_session=True, **options)
    _running.add(child)
    try:
        yield child
    finally:
        end(child)


def end(child: subprocess.Popen[Any]) -> None:
    """Kill a child and its group, if there is any left of it."""
    if child.returncode is None:  # not reaped yet, so the number still is its own
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    for pipe in (child.stdin, child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()
    _running.discard(child)


def end_all() -> None:
    """Kill what still runs: the last thing that `run.py` does."""
    for child in list(_running):
        end(child)


class Failed(Exception):
    """A child that was to measure something did not."""


def run(arguments: Sequence[str], timeout: float = 300.0, **options: Any) -> str:
    """A command's output. Raises `Failed` with what it wrote to stderr if it failed or took longer
    than `timeout` seconds."""
    with process(
        arguments,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    ) as child:
        try:
            out, errors = child.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            raise Failed(f"{arguments[-1][:60]!r} took longer than {timeout:g} s") from None
        if child.returncode:
            raise Failed(errors.strip() or f"exit code {child.returncode}")
        return out


def in_child(function: Callable[..., Any], *arguments: Any, timeout: float = 120.0) -> Any:
    """What a module's function returns in a fresh process; arguments and result are JSON."""
    target = f"{Path(function.__code__.co_filename).stem}:{function.__name__}"
    out = run([sys.executable, str(HERE / "child.py"), target, json.dumps(arguments)], timeout)
    return json.loads(out.splitlines()[-1])


@contextlib.contextmanager
def compiled() -> Iterator[None]:
    """Processes that are started in this block find compiled files, whatever the environment says
    of writing them."""
    before = dict(os.environ)
    with scratch() as folder:
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = folder
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)


@contextlib.contextmanager
def mock_model() -> Iterator[int]:
    """The port of a mock model server in a process of its own (see `mock_model.py` for the paths
    that it serves)."""
    with process(
        [sys.executable, str(HERE / "mock_model.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        yield int(server.stdout.readline())


@contextlib.contextmanager
def scratch() -> Iterator[str]:
    """A temporary folder, in the parent's hands so that a killed child leaves nothing."""
    with tempfile.TemporaryDirectory(
        prefix="holdfast-bench-", ignore_cleanup_errors=True
    ) as folder:
        yield folder


def filesystem(folder: str) -> str:
    """What a folder's file system is: on tmpfs, durable writes cost nothing and their figures mean
    nothing."""
    found = ("", "unknown")
    for line in Path("/proc/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        if os.path.commonpath([place, folder]) == place and len(place) >= len(found[0]):
            found = (place, kind)
    return found[1]


# --- readings, for use in a child ---


def rss() -> int:
    """Bytes of memory in use by this process now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@dataclass
class Machine:
    """Where a run was made, without names."""

    python: str = field(default_factory=lambda: sys.version.split()[0])
    cores: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))
    load: float = field(default_factory=lambda: round(os.getloadavg()[0], 2))
    disk: str = field(default_factory=lambda: filesystem(tempfile.gettempdir()))

    def __str__(self) -> str:
        return (
            f"Python {self.python}, {self.cores} cores, load {self.load} at the start, temporary"
            f" files on {self.disk}"
        )
