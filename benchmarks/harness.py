"""Shared parts of all benchmarks: fresh processes, a mock model, CPU and memory readings, and the
table.

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
    """An upper limit: for the median itself, or for its ratio to the floor's."""

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
    skipped: str = ""  # the reason why nothing was measured

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def ratio(self) -> float | None:
        """Return the ratio of the medians, or None without a floor."""
        if not self.floor or not self.values:
            return None
        return self.median / statistics.median(self.floor)

    @property
    def met(self) -> bool | None:
        """True if the goal is met; None without a goal or without a measurement."""
        if self.goal is None or not self.values:
            return None
        figure = self.median if self.goal.of == "median" else self.ratio
        return figure is not None and figure <= self.goal.limit

    def cells(self) -> list[str]:
        """Return the cells of the row in a table, under `HEADINGS`."""
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
        """Return the row as data for `--json`."""
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
    """Return the value with three significant digits."""
    size = abs(value)
    if size >= 100 or value == int(value):
        return f"{value:.0f}"
    return f"{value:.{1 if size >= 10 else 2 if size >= 1 else 3}f}"


def table(rows: Sequence[Row], markdown: bool = False) -> str:
    """Return the rows as an aligned table, or as one in Markdown."""
    lines = [HEADINGS, *(row.cells() for row in rows)]
    if markdown:
        lines.insert(1, ["---"] * len(HEADINGS))
        return "\n".join("| " + " | ".join(cell.strip() for cell in line) + " |" for line in lines)
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    # The reason of a skipped row runs over the columns behind it.
    widths[1] = max(len(line[1]) for line in lines if not line[1].startswith("skipped"))
    return "\n".join(
        "  "
        + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def in_turns(repeats: int, figures: dict[str, Callable[[], Any]]) -> dict[str, list[Any]]:
    """Measure every figure `repeats` times, one after the other each time, so that a slow minute
    slows all of them."""
    repeats_of: dict[str, list[Any]] = {name: [] for name in figures}
    for _ in range(repeats):
        for name, measure in figures.items():
            repeats_of[name].append(measure())
    return repeats_of


# --- processes ---

_running: set[subprocess.Popen[Any]] = set()


@contextlib.contextmanager
def process(arguments: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """Run a child in a process group of its own, which is killed however the block ends."""
    child = subprocess.Popen(arguments, start_new_session=True, **options)
    _running.add(child)
    try:
        yield child
    finally:
        end(child)


def end(child: subprocess.Popen[Any]) -> None:
    """Kill a child and the rest of its group."""
    if child.returncode is None:  # not reaped yet, so the number is still the child's
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    for pipe in (child.stdin, child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()
    _running.discard(child)


def end_all() -> None:
    """Kill every child that still runs. `run.py` does this last."""
    for child in list(_running):
        end(child)


class Failed(Exception):
    """Raised when a child could not measure its figure."""


def run(arguments: Sequence[str], timeout: float = 300.0, **options: Any) -> str:
    """Return a command's output. Raises `Failed` with its stderr if it failed or took longer than
    `timeout` seconds."""
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
    """Run a module's function in a fresh process and return its result. Arguments and result are
    JSON."""
    target = f"{Path(function.__code__.co_filename).stem}:{function.__name__}"
    out = run([sys.executable, str(HERE / "child.py"), target, json.dumps(arguments)], timeout)
    return json.loads(out.splitlines()[-1])


@contextlib.contextmanager
def compiled() -> Iterator[None]:
    """Let processes that are started in this block use compiled files, whatever the environment
    says about writing them."""
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
    """Run a mock model server in a process of its own, and yield its port. `mock_model.py` lists
    the paths that it serves."""
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
    """Yield a temporary folder that belongs to the parent, so that a killed child leaves nothing."""
    with tempfile.TemporaryDirectory(
        prefix="holdfast-bench-", ignore_cleanup_errors=True
    ) as folder:
        yield folder


def filesystem(folder: str) -> str:
    """Return the type of a folder's file system: on tmpfs, durable writes are free and their
    figures mean nothing."""
    mount = ("", "unknown")
    for line in Path("/proc/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        if os.path.commonpath([place, folder]) == place and len(place) >= len(mount[0]):
            mount = (place, kind)
    return mount[1]


# --- readings, for use in a child ---


def rss() -> int:
    """Return the bytes of memory that this process uses now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@dataclass
class Machine:
    """The machine of a run, without names."""

    python: str = field(default_factory=lambda: sys.version.split()[0])
    cores: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))
    load: float = field(default_factory=lambda: round(os.getloadavg()[0], 2))
    disk: str = field(default_factory=lambda: filesystem(tempfile.gettempdir()))

    def __str__(self) -> str:
        return (
            f"Python {self.python}, {self.cores} cores, load {self.load} at the start, temporary"
            f" files on {self.disk}"
        )
