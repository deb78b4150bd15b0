"""Leftovers of a piece of work: threads, file descriptors and children of this process that did not
exist before it.

They are compared one by one, and not by their number. Those that other work opens or closes in the
meantime therefore do not distort the result.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from pathlib import Path


class Owned:
    """The threads, file descriptors and children (dead ones included) of this process at one
    moment."""

    def __init__(self) -> None:
        gc.collect()  # old garbage must not end while the work is watched
        self.threads = {thread for thread in threading.enumerate() if thread.is_alive()}
        self.descriptors = _descriptors()
        self.children = child_processes()

    def new(self) -> list[str]:
        """Return the leftovers that did not exist at that moment."""
        threads = [
            thread.name
            for thread in threading.enumerate()
            if thread.is_alive() and thread not in self.threads
        ]
        descriptors = sorted(_descriptors() - self.descriptors)
        children = sorted(child_processes() - self.children)
        return [
            *threads,
            *(f"fd {number}: {link}" for number, link in descriptors),
            *(f"process {pid}" for pid in children),
        ]

    def wait_until_released(self, seconds: float = 20.0) -> None:
        """Wait until no leftovers exist. Raises `AssertionError` with their names."""
        deadline = time.monotonic() + seconds
        while leftovers := self.new():
            assert time.monotonic() < deadline, f"still there: {', '.join(leftovers)}"
            time.sleep(0.01)

    def new_threads(self) -> int:
        """Return the number of threads that did not exist at that moment."""
        return sum(thread not in self.threads for thread in threading.enumerate())

    def new_children(self) -> int:
        """Return the number of children that did not exist at that moment."""
        return len(child_processes() - self.children)


def _descriptors() -> set[tuple[int, str]]:
    descriptors: set[tuple[int, str]] = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            descriptors.add((int(name), os.readlink(f"/proc/self/fd/{name}")))
        except OSError:  # the descriptor by which the folder was listed
            continue
    return descriptors


def child_processes() -> set[int]:
    pids: set[int] = set()
    for path in Path("/proc/self/task").glob("*/children"):
        try:
            pids |= {int(pid) for pid in path.read_text().split()}
        except OSError:  # a thread that has ended in the meantime
            continue
    return pids
