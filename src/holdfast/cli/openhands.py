"""Conversations in OpenHands' format, for `holdfast import --from` and `holdfast export --to`."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast import events as ev
from holdfast.cli.console import Console
from holdfast.cli.exit_codes import UsageError
from holdfast.cli.files import path_of
from holdfast.cli.text import counted, one_line
from holdfast.conversation import ConversationState
from holdfast.errors import ConfigurationError
from holdfast.openhands import read_conversation, write_conversation
from holdfast.store import Summary, transfer

_MAX_NOTES = 20  # on parts that could not be converted


def read_folder(console: Console, folder: str) -> transfer.Exported:
    """Return the conversation of a folder in the form of an export. Raises `UsageError`."""
    if folder == "-":
        raise UsageError("--from openhands takes the folder of a conversation, not standard input")
    try:
        found = read_conversation(path_of(folder))
    except (ConfigurationError, OSError) as error:
        raise UsageError(str(error).removesuffix(".")) from error
    state, events = found.state, found.state.events
    if not events:
        raise UsageError(f"there is no event in {folder!r}")
    _show_notes(console, found.notes)
    said = next((event.text for event in events if isinstance(event, ev.MessageAdded)), "")
    header = transfer.Header(
        version=transfer.VERSION,
        id=state.id,
        title=said.strip().split("\n", 1)[0][:80],
        status=state.status.value,
        created=events[0].timestamp,
        updated=events[-1].timestamp,
        events=len(events),
    )
    return transfer.Exported(header, events)


def export(console: Console, entry: Summary, events: Sequence[ev.AnyEvent], folder: str) -> None:
    """Write a conversation into a new folder. Raises `UsageError`, `OSError`."""
    try:
        notes = write_conversation(ConversationState(entry.id, events), path_of(folder))
    except ConfigurationError as error:
        raise UsageError(str(error).removesuffix(".")) from error
    _show_notes(console, notes)


def _show_notes(console: Console, notes: tuple[str, ...]) -> None:
    for note in notes[:_MAX_NOTES]:
        console.notice(one_line(f"{note}."))
    if len(notes) > _MAX_NOTES:
        console.notice(f"... and {counted(len(notes) - _MAX_NOTES, 'note')} more.")
