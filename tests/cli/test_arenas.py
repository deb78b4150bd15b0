"""Tests of the number of heaps that the C library uses in a process with many threads."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, sys, threading
from holdfast.cli.arenas import limit_arenas
limit_arenas({"MALLOC_ARENA_MAX": "9"} if sys.argv[1] == "set" else {})
together = threading.Barrier(8)
def work():
    block = bytearray(100_000)
    together.wait(30)
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
libc = ctypes.CDLL(None)
libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stdout"))
libc.fflush(None)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has arenas")
@pytest.mark.parametrize("set_by_user", [False, True])
def test_threads_share_two_heaps_unless_the_user_says_otherwise(set_by_user: bool) -> None:
    how = "set" if set_by_user else "unset"
    command = [sys.executable, "-c", PROGRAM, how]
    report = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert (report.count("<heap nr=") > 2) is set_by_user
