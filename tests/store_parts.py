"""Shared parts of the store tests: programs in other processes."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests import forks

PRELUDE = """
import os, resource, signal, sys, time
from pathlib import Path
from holdfast.commands import *
from holdfast.errors import *
from holdfast.store import Batch, Blob, SQLiteStore, blob_id
from tests.store.test_store import append, message, seqs, summary
path = sys.argv[1]
def say(*words):
    print(*words, flush=True)
"""

Process = subprocess.Popen[str]
Start = Callable[..., Process]


def starting(path: Path) -> Iterator[Start]:
    """Yield a function that runs a program in another process, with the store's path as its
    argument. A fixture uses it; the programs are killed at its end."""
    started: list[Process] = []

    def begin(program: str, *arguments: str, **options: Any) -> Process:
        command = [sys.executable, "-c", PRELUDE + textwrap.dedent(program), str(path), *arguments]
        options = {"cwd": Path(__file__).parents[1], **options}
        process = forks.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def next_line(process: Process) -> str:
    """Return the next line of a program's output."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: Process, line: str) -> None:
    """Give a program its next line."""
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def files(folder: Path) -> set[str]:
    """Return the names in a folder."""
    return {path.name for path in folder.iterdir()}
