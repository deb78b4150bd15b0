"""`holdfast list`: the conversations of a store or an agent server, one line each."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from holdfast.cli.exits import Exit, UsageError
from holdfast.cli.screen import Screen
from holdfast.cli.show import open_place, place_words, print_list
from holdfast.conversation import ConversationStatus
from holdfast.store import SQLiteStore

# A store never has the status CLOSED.
STATUSES = tuple(
    status.value for status in ConversationStatus if status is not ConversationStatus.CLOSED
)


def list_(options: argparse.Namespace, env: Mapping[str, str]) -> Exit:
    """List conversations. Raises `UsageError`, `StoreError`."""
    screen = Screen(env)
    status = None if options.status is None else _status(options.status)
    most = options.limit + 1  # one more, to know if the list goes on
    with open_place(options, env, read_only=True) as place:
        found = (
            place.list(status=status)[:most]
            if isinstance(place, SQLiteStore)
            else place.list(status=status, limit=most)
        )
    shown = found[: options.limit]
    if shown:
        print_list(screen, shown, " ".join(place_words(options)), options.json)
    elif not options.json:
        what = f"that is {status} " if status else ""
        screen.notice(
            f"There is no conversation {what}{'on' if '://' in options.file else 'in'}"
            f" {options.file}.",
            "dim",
        )
    if len(found) > len(shown):
        screen.notice("There are more; a higher --limit shows them.", "dim")
    return screen.loss if screen.broken else Exit.FINISHED


def _status(word: str) -> str:
    """Return the status that `word` abbreviates. Raises `UsageError`."""
    wanted = word.strip().lower().replace("-", "_")
    found = [status for status in STATUSES if wanted and status.startswith(wanted)]
    if len(found) != 1:
        raise UsageError(f"--status takes one of {', '.join(STATUSES)}, not {word!r}")
    return found[0]
