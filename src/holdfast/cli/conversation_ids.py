"""Conversation ids on the command line: a full id, or an unambiguous prefix of one."""

from __future__ import annotations

import shlex
from argparse import Namespace
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import TypeVar

from holdfast.cli.exit_codes import UsageError
from holdfast.cli.text import clip, one_line, status_text
from holdfast.store import Summary

S = TypeVar("S", bound=Summary)

_LISTED_CANDIDATES = 5  # in an error message
_TITLE_CHARS = 40  # of each candidate's title
_LONG_AGO = datetime.min.replace(tzinfo=UTC)


def find_matching(entries: Iterable[S], id: str) -> S | None:
    """Return the conversation with this id, or the only one whose id begins with it, or None.
    Raises `UsageError`, which lists the candidates.

    A conversation that a call of another match spawned does not count. Its id is `{parent}.{call}`,
    so every prefix of its parent would be ambiguous.
    """
    matches = {entry.id: entry for entry in entries if entry.id.startswith(id)}
    if id in matches:
        return matches[id]
    candidates = [entry for entry in matches.values() if entry.spawner not in matches]
    if len(candidates) <= 1:
        return candidates[0] if candidates else None
    listed: list[str] = []
    for entry in candidates[:_LISTED_CANDIDATES]:
        title = f": {clip(one_line(entry.title), _TITLE_CHARS)}" if entry.title else ""
        listed.append(f"{one_line(entry.id)} ({status_text(entry.status)}{title})")
    more = len(candidates) - len(listed)
    raise UsageError(
        f"the ids of {len(candidates):,} conversations begin with {id!r}:"
        f" {', '.join(listed)}{f' and {more:,} more' if more else ''}. Give more of the id"
    )


def find_in_file(entries: Iterable[S], id: str, file: str) -> S:
    """Return the conversation that `id` names among those of a file. Raises `UsageError`."""
    if (entry := find_matching(entries, id)) is None:
        hint = f"See: holdfast list {shlex.quote(file)}"
        raise UsageError(f"there is no conversation {id!r} in {file!r}. {hint}")
    return entry


def latest(entries: Iterable[S], place: str) -> S:
    """Return the conversation for `--continue`: the one that changed last and that no other one
    spawned. Raises `UsageError` if `place` has none."""
    roots = [entry for entry in entries if not entry.spawner]
    if not roots:
        raise UsageError(f"--continue: there is no conversation {place}")
    return max(roots, key=last_change)


def last_change(entry: Summary) -> tuple[datetime, str]:
    """Return the key that orders conversations by their last change."""
    return entry.updated or entry.created or _LONG_AGO, entry.id


def not_empty(id: str) -> str:
    """Return the value of `--id`. Raises `UsageError` if it is blank."""
    if not id.strip():
        raise UsageError(
            "--id takes an id, the beginning of one, or the name of a new conversation; it is empty"
        )
    return id


def to_continue(
    options: Namespace,
    place: str,
    entries: Callable[[], Iterable[S]],
    exact: Callable[[str], S | None],
) -> S | None:
    """Return the conversation of `place` that `--id` or `--continue` names; None for a new one.
    `entries` lists all of them, `exact` finds one by its whole id. Raises `UsageError`."""
    if options.go_on:
        return latest(entries(), place)
    if options.id is None:
        return None
    entry = exact(not_empty(options.id))
    if options.new:
        if entry is not None:
            hint = "Give another --id, or leave out --new to continue it"
            raise UsageError(f"--new: the conversation {entry.id!r} exists already. {hint}")
    elif entry is None and (entry := find_matching(entries(), options.id)) is None:
        hint = f"Begin one with this id with --new --id {shlex.quote(options.id)}"
        raise UsageError(f"there is no conversation {options.id!r} {place}. {hint}")
    return entry


def began(id: str) -> str:
    return f"New conversation {id!r}."
