"""`holdfast show`: what is in a store."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from holdfast import events as ev
from holdfast.cli.exits import Exit, UsageError
from holdfast.cli.render import GAP, Line, Renderer
from holdfast.cli.screen import Screen
from holdfast.cli.text import clip, one_line, summary
from holdfast.content import Usage
from holdfast.errors import StoreError
from holdfast.store import SQLiteStore, Summary

_BEGINS = b"SQLite format 3\0"  # sqlite.org/fileformat2.html, 1.3


def show(options: argparse.Namespace, env: Mapping[str, str]) -> Exit:
    """Show a conversation, or list them. Raises `UsageError`, `StoreError`."""
    screen = Screen(env)
    with _open(Path(options.file).expanduser()) as store:
        found = store.list()
        if options.id is not None:
            found = [_chosen(found, options.id, options.file)]
        if not found:
            screen.error(f"there is no conversation in {options.file!r} yet.")
        elif len(found) > 1 and options.json:
            _print(screen, [entry.to_json() for entry in found])
        elif len(found) > 1:
            _list(screen, found, options.file)
        elif options.json:
            _print(screen, [event.to_json() for event in store.read(found[0].id)])
        else:
            _conversation(screen, found[0], store.read(found[0].id), options.full)
    return screen.loss if screen.broken else Exit.FINISHED


def _open(path: Path) -> SQLiteStore:
    """An existing store. SQLite itself would make a file that is not there, and a store of an empty one."""
    try:
        with path.open("rb") as file:
            begins = file.read(len(_BEGINS))
    except OSError as error:
        reason = "does not exist" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror}"
        raise UsageError(f"the store {str(path)!r} {reason}") from error
    if begins != _BEGINS:
        raise UsageError(f"{str(path)!r} is not a Holdfast store")
    try:
        return SQLiteStore(path)
    except StoreError as error:
        raise UsageError(str(error)) from error


def _chosen(found: Sequence[Summary], id: str, file: str) -> Summary:
    fits = [entry for entry in found if entry.id == id] or [entry for entry in found if entry.id.startswith(id)]
    if len(fits) == 1:
        return fits[0]
    if fits:
        raise UsageError(f"several conversations begin with {id!r}: {', '.join(entry.id for entry in fits[:5])}")
    raise UsageError(f"there is no conversation {id!r} in {file!r}. See: holdfast show {file}")


def _print(screen: Screen, lines: Sequence[bytes]) -> None:
    # JSON escapes control characters itself; a terminal's width is no matter of a program's.
    screen.show([Line("plain", line.decode()) for line in lines])


def _list(screen: Screen, found: Sequence[Summary], file: str) -> None:
    rows = [("ID", "STATUS", "EVENTS", "UPDATED", "TITLE")]
    for entry in found:
        updated = entry.updated.astimezone().strftime("%Y-%m-%d %H:%M") if entry.updated is not None else ""
        rows.append((one_line(entry.id), one_line(entry.status), f"{entry.last_seq:,}", updated, one_line(entry.title)))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for number, row in enumerate(rows):
        cells = [row[0].ljust(widths[0]), row[1].ljust(widths[1]), row[2].rjust(widths[2]), row[3].ljust(widths[3]), row[4]]
        screen.show([Line("plain" if number else "dim", clip("  ".join(cells), screen.width).rstrip())])
    screen.notice(f"show one with: holdfast show {file} ID", "dim")


def _conversation(screen: Screen, entry: Summary, events: Sequence[ev.AnyEvent], full: bool) -> None:
    renderer = Renderer(None if full else screen.width, full)
    screen.show([Line("dim", f"{one_line(entry.id)}, {one_line(entry.status)}: {one_line(entry.title)}")])
    steps, usage, cost, seconds = 0, Usage(), None, 0.0
    for event in events:
        screen.show(renderer.lines(event))
        if isinstance(event, ev.Assistant):
            steps += 1
            usage += event.usage
            cost = cost if event.cost is None else (cost or 0.0) + event.cost
        if isinstance(event, ev.Assistant | ev.ToolResult):
            seconds += event.duration
        if screen.broken:
            return
    screen.show([GAP, Line("dim", summary(steps, seconds, usage, cost))])
