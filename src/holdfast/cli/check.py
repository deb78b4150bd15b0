"""`holdfast check`: the integrity check of a store."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from holdfast.cli.exits import Exit, UsageError
from holdfast.cli.render import Line
from holdfast.cli.screen import Screen
from holdfast.cli.text import counted, json_shown, one_line
from holdfast.errors import StoreError
from holdfast.store.check import Report
from holdfast.store.check import check as check_store


def check(options: argparse.Namespace, env: Mapping[str, str]) -> Exit:
    """Verify a store and print its defects. Raises `UsageError`."""
    screen = Screen(env)
    path = Path(options.file).expanduser()
    try:
        with progress(env, f"checking {options.file}") as report_progress:
            report = check_store(path, report_progress)
    except StoreError as error:
        raise UsageError(str(error).removesuffix(".")) from error
    if options.json:
        screen.show([Line("plain", json_shown(report.to_json().decode()))])
    else:
        _print(screen, report, options.file)
    if screen.broken:
        return screen.loss
    return Exit.FINISHED if report.sound else Exit.FAILED


def _print(screen: Screen, report: Report, file: str) -> None:
    screen.show([Line("error", one_line(f"{file}: {problem}")) for problem in report.problems])
    screen.show([Line("error", one_line(str(finding))) for finding in report.findings])
    found = f"{counted(report.conversations, 'conversation')}, {counted(report.events, 'event')}"
    if report.sound:
        screen.show([Line("plain", f"{found}, all sound.")])
    else:
        screen.show([Line("plain", f"{found} can be read; the store is damaged.")])
        screen.notice(
            f"save the readable part with: holdfast export --salvage {file} -o rest.jsonl", "dim"
        )


@contextmanager
def progress(env: Mapping[str, str], what: str) -> Generator[Callable[[int, int], None]]:
    """Show progress on the last line of stderr, if stderr is a terminal and the work takes
    longer than a moment."""
    screen = Screen(env, out=sys.stderr)
    updated_at = time.monotonic()
    screen.status(what)

    def report(done: int, total: int) -> None:
        nonlocal updated_at
        # Rarely, because each new text restarts the line's count of seconds.
        if total and time.monotonic() - updated_at > 1.0:
            updated_at = time.monotonic()
            screen.status(f"{what}: {100 * done // total} %")

    try:
        yield report
    finally:
        screen.close()
