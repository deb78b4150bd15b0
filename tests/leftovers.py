"""What a piece of work leaves behind: threads, file descriptors and children of this process that
were not there before it.

What others leave meanwhile does not count against it, and what others give up meanwhile does not
count for it: things are compared one by one, and not by their number.
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
        gc.collect()  # what is garbage already must not end in the middle of what is watched
        self.threads = {thread for thread in threading.enumerate() if thread.is_alive()}
        self.descriptors = _descriptors()
        self.children = child_processes()

    def new(self) -> list[str]:
        """What is there now and was not then."""
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

    def gone(self, seconds: float = 20.0) -> None:
        """Wait until nothing new is left. Raises `AssertionError` naming what is."""
        deadline = time.monotonic() + seconds
        while left := self.new():
            assert time.monotonic() < deadline, f"still there: {', '.join(left)}"
            time.sleep(0.01)

    def new_threads(self) -> int:
        """How many threads there are that were not there then."""
        return sum(thread not in self.threads for thread in threading.enumerate())

    def new_children(self) -> int:
        """How many children there are that were not there then."""
        return len(child_processes() - self.children)


def _descriptors() -> set[tuple[int, str]]:
    found: set[tuple[int, str]] = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add((int(name), os.readlink(f"/proc/self/fd/{name}")))
        except OSError:  # the one by which the folder was listed
            continue
    return found


def child_processes() -> set[int]:
    found: set[int] = set()
    for path in Path("/proc/self/task").glob("*/children"):
        try:
            found |= {int(pid) for pid in path.read_text().split()}
        except OSError:  # a thread that has ended meanwhile
            continue
    return found
