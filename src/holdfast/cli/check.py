"""`holdfast check`: the integrity check of a store."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager

from holdfast.cli.console import Console
from holdfast.cli.exit_codes import Exit, UsageError
from holdfast.cli.files import path_of
from holdfast.cli.text import counted, json_shown, one_line
from holdfast.errors import StoreError
from holdfast.store.check import Report
from holdfast.store.check import check as check_store


def check(options: Namespace, env: Mapping[str, str]) -> Exit:
    """Verify a store and print its defects. Raises `UsageError`."""
    console = Console(env)
    path = path_of(options.file)
    try:
        with progress(env, f"checking {options.file}") as report_progress:
            report = check_store(path, report_progress)
    except StoreError as error:
        raise UsageError(str(error).removesuffix(".")) from error
    if options.json:
        console.line(json_shown(report.to_json().decode()))
    else:
        _print(console, report, options.file)
    if console.broken:
        return console.loss
    return Exit.FINISHED if report.sound else Exit.FAILED


def _print(console: Console, report: Report, file: str) -> None:
    for problem in [*(f"{file}: {problem}" for problem in report.problems), *report.findings]:
        console.line(one_line(str(problem)), "error")
    counts = f"{counted(report.conversations, 'conversation')}, {counted(report.events, 'event')}"
    if report.sound:
        console.line(f"{counts}, all sound.")
    else:
        console.line(f"{counts} can be read; the store is damaged.")
        save = f"holdfast export --salvage {file} -o rest.jsonl"
        console.notice(f"save the readable part with: {save}", "dim")


@contextmanager
def progress(env: Mapping[str, str], what: str) -> Generator[Callable[[int, int], None]]:
    """Show progress on the last line of stderr, if stderr is a terminal."""
    console = Console(env, out=sys.stderr)
    updated_at = time.monotonic()
    console.status(what)

    def report(done: int, total: int) -> None:
        nonlocal updated_at
        # Rarely, because each new text restarts the line's count of seconds.
        if total and time.monotonic() - updated_at > 1.0:
            updated_at = time.monotonic()
            console.status(f"{what}: {100 * done // total} %")

    try:
        yield report
    finally:
        console.close()
