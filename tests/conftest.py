"""What all tests share: nothing of ours may be left behind."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator

import pytest

# A suite that is started in the background of a script finds Ctrl-C ignored, and its children with it.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Every thread of ours that a test starts has ended when it ends; a test that leaves one on purpose says so in its name."""
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + 3.0
    while True:
        left = [t.name for t in threading.enumerate() if t not in before and t.name.startswith("holdfast")]
        if not left or time.monotonic() > deadline:
            break
        time.sleep(0.01)
    assert not left, f"threads left behind: {left}"
