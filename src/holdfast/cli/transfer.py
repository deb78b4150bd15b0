"""`holdfast export` and `holdfast import`: conversations as JSON lines, or in OpenHands' format."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from holdfast import events as ev
from holdfast.cli import forget_output
from holdfast.cli.check import progress
from holdfast.cli.console import Console
from holdfast.cli.conversation_ids import find_in_file
from holdfast.cli.exit_codes import Exit, UsageError
from holdfast.cli.files import path_of, unreadable
from holdfast.cli.places import open_postgres, open_store, without_password
from holdfast.cli.text import counted, one_line
from holdfast.conversation import ConversationState
from holdfast.errors import ConfigurationError, Conflict, StoreError
from holdfast.openhands import read_conversation, write_conversation
from holdfast.store import SQLiteStore, Store, Summary, transfer
from holdfast.store.place import is_postgres
from holdfast.store.salvage import SalvageReader

if TYPE_CHECKING:
    from holdfast.store import PostgresStore

_MAX_NOTES = 20  # on parts that could not be converted to or from OpenHands' format

# --- export ---


def export(options: Namespace, env: Mapping[str, str]) -> Exit:
    """Write conversations of a store. Raises `UsageError`, `StoreError`."""
    console = Console(env)
    path = None if is_postgres(options.file) else path_of(options.file)
    if path is None and options.salvage:
        raise UsageError("--salvage reads the file of an SQLite store, not a database")
    if options.to is not None:
        return _to_openhands(console, options)
    output = None if options.output is None else _target(path, options.output)
    losses: list[str] = []
    lines = _export_lines(console, options)
    if options.salvage:
        lines = _salvage_lines(console, env, options, losses)
    try:
        with closing(lines), _open_output(output) as out:
            out.writelines(lines)
            out.flush()
    except (StoreError, BrokenPipeError):
        raise
    except OSError as error:
        forget_output()
        where = "the output" if output is None else f"{options.output!r}"
        console.error(f"{where} cannot be written: {error.strerror}.")
        return Exit.FAILED
    return Exit.FAILED if losses else Exit.FINISHED


def _to_openhands(console: Console, options: Namespace) -> Exit:
    if options.output is None or options.salvage or len(options.ids) != 1:
        raise UsageError(
            "--to openhands takes one ID, and the new folder with -o; it cannot be combined with"
            " --salvage"
        )
    with _open(options.file) as store:
        for entry in _select(console, store.list(), options):
            state = ConversationState(entry.id, store.read(entry.id))
            try:
                _show_notes(console, write_conversation(state, path_of(options.output)))
            except ConfigurationError as error:
                raise UsageError(str(error).removesuffix(".")) from error
            except OSError as error:
                console.error(f"{options.output!r} cannot be written: {error.strerror}.")
                return Exit.FAILED
            return Exit.FINISHED
    return Exit.USAGE


def _export_lines(console: Console, options: Namespace) -> Generator[bytes]:
    with _open(options.file) as store:
        for entry in _select(console, store.list(), options):
            try:
                events = store.read(entry.id)
            except StoreError as error:
                if is_postgres(options.file):
                    raise
                hint = f"See: holdfast check {options.file}. --salvage exports the readable part."
                raise StoreError(f"{error} {hint}") from error
            _tell_open(console, entry.id, events)
            yield from transfer.exported(entry, events, partial(_blob, store))


def _salvage_lines(
    console: Console, env: Mapping[str, str], options: Namespace, losses: list[str]
) -> Generator[bytes]:
    """Yield the lines of what can be read. The parts that cannot are printed and added to
    `losses`."""

    def lose(where: str, what: object) -> None:
        losses.append(one_line(f"{where}: {what}"))
        console.notice(losses[-1])

    try:
        with progress(env, f"reading {options.file}") as report_progress:
            remains = SalvageReader(path_of(options.file), report_progress)
    except StoreError as error:
        raise UsageError(str(error).removesuffix(".")) from error
    with remains:
        for entry in _select(console, remains.list(), options):
            conversation = remains.read(entry.id)
            blobs = dict.fromkeys(
                id for event in conversation.events for id in transfer.blobs_of(event)
            )
            missing = [f"the blob {id} is lost" for id in blobs if remains.blob(id) is None]
            for problem in [*conversation.gaps, *conversation.notes, *missing]:
                lose(entry.id, problem)
            _tell_open(console, entry.id, conversation.events)
            yield from transfer.exported(conversation.summary, conversation.events, remains.blob)
        for trouble in remains.troubles:
            lose(options.file, trouble)


def _open(file: str) -> SQLiteStore | PostgresStore:
    if is_postgres(file):
        return open_postgres(file)
    return open_store(file, read_only=True, hint=f"If it is damaged, see: holdfast check {file}")


def _select(console: Console, summaries: Sequence[Summary], options: Namespace) -> list[Summary]:
    if not summaries:
        console.error(f"there is no conversation in {without_password(options.file)!r} yet.")
    if not options.ids:
        return list(summaries)
    entries = [find_in_file(summaries, id, without_password(options.file)) for id in options.ids]
    return list({entry.id: entry for entry in entries}.values())


def _tell_open(console: Console, id: str, events: Iterable[ev.AnyEvent]) -> None:
    if calls := transfer.open_calls(events):
        names = ", ".join(dict.fromkeys(call.name for call in calls))
        are = "is" if len(calls) == 1 else "are"
        warning = f"{id}: {counted(len(calls), 'call')} {are} open ({names}). If the conversation"
        warning += " continues both here and where it is imported, they may run twice."
        console.notice(one_line(warning))


def _blob(store: Store, id: str) -> bytes | None:
    try:
        return store.blob(id)
    except StoreError:
        return None


def _target(store: Path | None, output: str) -> Path:
    path = path_of(output)
    if path.is_dir():
        raise UsageError(f"-o takes a file; {output!r} is a folder")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"-o takes a file; {output!r} is in a folder that does not exist")
    if store is None:
        return path
    if path.resolve() in [Path(f"{store.resolve()}{suffix}") for suffix in ("", "-wal", "-shm")]:
        raise UsageError(f"-o {output!r} would overwrite the store itself")
    return path


@contextmanager
def _open_output(path: Path | None) -> Generator[BinaryIO]:
    """Yield the output stream. A file gets its name only after everything is written."""
    if path is None:
        yield sys.stdout.buffer
    elif path.exists() and not path.is_file():  # a device or a pipe
        with path.open("wb") as out:
            yield out
    else:
        path = path.resolve()
        part = path.with_name(f"{path.name}.part")
        try:
            with part.open("wb") as out:
                yield out
            os.replace(part, path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


# --- import ---


def import_(options: Namespace, env: Mapping[str, str]) -> Exit:
    """Write exported conversations into a store. Raises `UsageError`, `StoreError`."""
    console = Console(env)
    if options.id is not None and not options.id.strip():
        raise UsageError("--id takes a new id; it is empty")
    code = Exit.FINISHED
    store: SQLiteStore | PostgresStore | None = None
    with ExitStack() as stack:
        for conversation in _read_file(console, options):
            # Opened only now, so that a wrong FILE leaves no new store behind.
            store = store or stack.enter_context(_create(options.store))
            id = options.id or conversation.header.id
            events = counted(len(conversation.events), "event")
            try:
                new = transfer.import_conversation(store, conversation, id)
                old = f"already in the store, with the same {events}"
                console.line(one_line(f"{id}: {f'{events} imported' if new else old}"))
            except (ConfigurationError, Conflict) as error:
                console.error(f"{error} Use --id NEW.")
                code = Exit.USAGE
    if store is None:
        raise UsageError(f"there is no conversation in {options.file!r}")
    return console.loss if console.broken and code == Exit.FINISHED else code


def _create(place: str) -> SQLiteStore | PostgresStore:
    return open_postgres(place) if is_postgres(place) else open_store(place, create=True)


def _read_file(console: Console, options: Namespace) -> Iterator[transfer.Exported]:
    """Yield the conversations of FILE; errors in its lines name the file."""
    file: str = options.file
    with ExitStack() as stack:
        if options.origin:
            conversations = [_read_folder(console, file)]
        elif file == "-":
            conversations = transfer.read_exported(sys.stdin.buffer)
        else:
            with unreadable(repr(file)):
                conversations = transfer.read_exported(
                    stack.enter_context(path_of(file).open("rb"))
                )
        try:
            yield from conversations if options.id is None else transfer.only(conversations)
        except ConfigurationError as error:
            where = "standard input" if file == "-" else file
            raise UsageError(f"{where}, {error}".removesuffix(".")) from error
        except OSError as error:
            raise UsageError(f"{file!r} cannot be read: {error.strerror}") from error


def _read_folder(console: Console, folder: str) -> transfer.Exported:
    """Return the OpenHands conversation of a folder in the form of an export."""
    if folder == "-":
        raise UsageError("--from openhands takes the folder of a conversation, not standard input")
    try:
        conversation = read_conversation(path_of(folder))
    except (ConfigurationError, OSError) as error:
        raise UsageError(str(error).removesuffix(".")) from error
    state, events = conversation.state, conversation.state.events
    if not events:
        raise UsageError(f"there is no event in {folder!r}")
    _show_notes(console, conversation.notes)
    first_message = next((event.text for event in events if isinstance(event, ev.MessageAdded)), "")
    header = transfer.Header(
        version=transfer.VERSION,
        id=state.id,
        title=first_message.strip().split("\n", 1)[0][:80],
        status=state.status.value,
        created=events[0].timestamp,
        updated=events[-1].timestamp,
        events=len(events),
    )
    return transfer.Exported(header, events)


def _show_notes(console: Console, notes: tuple[str, ...]) -> None:
    for note in notes[:_MAX_NOTES]:
        console.notice(one_line(f"{note}."))
    if len(notes) > _MAX_NOTES:
        console.notice(f"... and {counted(len(notes) - _MAX_NOTES, 'note')} more.")
