"""Waiting for a condition in tests, with one generous limit for shared machines."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(condition: Callable[[], T], what: str = "the condition", seconds: float = 60.0) -> T:
    """Call `condition` until it returns something true, and return that.

    Fails the test after `seconds`.
    """
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what} did not hold within {seconds:g} s"
        time.sleep(0.005)
    return value
