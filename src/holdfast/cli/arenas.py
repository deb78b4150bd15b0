"""The memory allocator of a process with many threads that runs for long."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

_M_ARENA_MAX = -8  # the parameter's number in glibc's malloc.h
_ARENAS = 2


def limit_arenas(env: Mapping[str, str]) -> None:
    """Let glibc keep two heaps for all threads, unless the user has set `MALLOC_ARENA_MAX`.

    By default there are eight for each core. Freed memory of one is of no use to the threads of
    another, so that a worker grows for as long as it runs. Called before threads are started.
    """
    if "MALLOC_ARENA_MAX" in env:
        return
    import ctypes  # few commands need it

    with suppress(OSError, AttributeError):  # another C library has no such setting
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _ARENAS)
