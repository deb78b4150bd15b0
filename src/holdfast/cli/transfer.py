"""`holdfast export` and `holdfast import`: conversations as JSON lines."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import BinaryIO

from holdfast import events as ev
from holdfast.cli import openhands
from holdfast.cli.check import progress
from holdfast.cli.exits import Exit, UsageError
from holdfast.cli.render import Line
from holdfast.cli.screen import Screen
from holdfast.cli.show import chosen as chosen_of
from holdfast.cli.streams import forget_output
from holdfast.cli.text import counted, one_line
from holdfast.errors import ConfigurationError, StoreError
from holdfast.store import SQLiteStore, Summary
from holdfast.store.pages import MAGIC
from holdfast.store.salvage import Remains
from holdfast.store.transfer import (
    Exported,
    blobs_of,
    exported,
    import_conversation,
    only,
    open_calls,
    read_exported,
)

# --- export ---


def export(options: argparse.Namespace, env: Mapping[str, str]) -> Exit:
    """Write conversations of a store. Raises `UsageError`, `StoreError`."""
    screen = Screen(env)
    path = Path(options.file).expanduser()
    if options.to is not None:
        return _to_openhands(screen, path, options)
    output = None if options.output is None else _target(path, options.output)
    lines = (
        _salvaged(screen, env, path, options) if options.salvage else _stored(screen, path, options)
    )
    code = Exit.FINISHED
    try:
        with closing(lines), _writing(output) as out:
            for line in lines:
                if isinstance(line, Exit):
                    code = line
                else:
                    out.write(line)
            out.flush()
    except (StoreError, BrokenPipeError):
        raise
    except OSError as error:
        forget_output()
        where = "the output" if output is None else f"{options.output!r}"
        screen.error(f"{where} cannot be written: {error.strerror}.")
        return Exit.FAILED
    return code


def _to_openhands(screen: Screen, path: Path, options: argparse.Namespace) -> Exit:
    if options.output is None or options.salvage or len(options.ids) != 1:
        raise UsageError(
            "--to openhands takes one ID, and the new folder with -o; it cannot be combined with"
            " --salvage"
        )
    with _open(path, options.file) as store:
        for entry in _chosen(screen, store.list(), options):
            try:
                openhands.export(screen, entry, store.read(entry.id), options.output)
            except OSError as error:
                screen.error(f"{options.output!r} cannot be written: {error.strerror}.")
                return Exit.FAILED
            return Exit.FINISHED
    return Exit.USAGE


def _stored(screen: Screen, path: Path, options: argparse.Namespace) -> Generator[bytes | Exit]:
    with _open(path, options.file) as store:
        for entry in _chosen(screen, store.list(), options):
            try:
                events = store.read(entry.id)
            except StoreError as error:
                raise StoreError(
                    f"{error} See: holdfast check {options.file}. --salvage exports the readable"
                    " part."
                ) from error
            _tell_open(screen, entry.id, events)
            yield from exported(entry, events, partial(_blob, store))


def _salvaged(
    screen: Screen, env: Mapping[str, str], path: Path, options: argparse.Namespace
) -> Generator[bytes | Exit]:
    try:
        with progress(env, f"reading {options.file}") as report_progress:
            remains = Remains(path, report_progress)
    except StoreError as error:
        raise UsageError(str(error).removesuffix(".")) from error
    code = Exit.FINISHED
    with remains:
        for entry in _chosen(screen, remains.list(), options):
            found = remains.read(entry.id)
            lost = [
                id
                for id in dict.fromkeys(id for event in found.events for id in blobs_of(event))
                if remains.blob(id) is None
            ]
            for problem in [
                *map(str, found.gaps),
                *found.notes,
                *(f"the blob {id} is lost" for id in lost),
            ]:
                screen.notice(one_line(f"{entry.id}: {problem}"))
                code = Exit.FAILED
            _tell_open(screen, entry.id, found.events)
            yield from exported(found.summary, found.events, remains.blob)
        for trouble in remains.troubles:
            screen.notice(one_line(f"{options.file}: {trouble}"))
            code = Exit.FAILED
    yield code


def _open(path: Path, file: str) -> SQLiteStore:
    try:
        with path.open("rb") as opened:
            begins = opened.read(len(MAGIC))
    except (OSError, ValueError) as error:
        reason = (
            "does not exist"
            if isinstance(error, FileNotFoundError)
            else f"cannot be read: {getattr(error, 'strerror', error)}"
        )
        raise UsageError(f"the store {file!r} {reason}") from error
    if begins != MAGIC:
        raise UsageError(
            f"{file!r} is not a Holdfast store. If it was one, see: holdfast check {file}"
        )
    try:
        return SQLiteStore(path, read_only=True)
    except StoreError as error:
        raise UsageError(f"{error} If it is damaged, see: holdfast check {file}") from error


def _chosen(screen: Screen, found: Sequence[Summary], options: argparse.Namespace) -> list[Summary]:
    if not found:
        screen.error(f"there is no conversation in {options.file!r} yet.")
    if not options.ids:
        return list(found)
    chosen: dict[str, Summary] = {}
    for id in options.ids:
        entry = chosen_of(found, id, options.file)
        chosen[entry.id] = entry
    return list(chosen.values())


def _tell_open(screen: Screen, id: str, events: Iterable[ev.AnyEvent]) -> None:
    calls = open_calls(events)
    if calls:
        names = ", ".join(dict.fromkeys(call.name for call in calls))
        are = "is" if len(calls) == 1 else "are"
        screen.notice(
            one_line(
                f"{id}: {counted(len(calls), 'call')} {are} open ({names}). If the conversation"
                " continues both here and where it is imported, they may run twice."
            )
        )


def _blob(store: SQLiteStore, id: str) -> bytes | None:
    try:
        return store.blob(id)
    except StoreError:
        return None


def _target(store: Path, output: str) -> Path:
    path = Path(output).expanduser()
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UsageError(
            f"-o takes a file; {output!r}"
            f" {'is a folder' if path.is_dir() else 'is in a folder that does not exist'}"
        )
    if path.resolve() in [Path(f"{store.resolve()}{suffix}") for suffix in ("", "-wal", "-shm")]:
        raise UsageError(f"-o {output!r} would overwrite the store itself")
    return path


@contextmanager
def _writing(path: Path | None) -> Generator[BinaryIO]:
    """Yield the output stream. A file gets its name only after everything is written, so that
    the named file is always complete."""
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


def import_(options: argparse.Namespace, env: Mapping[str, str]) -> Exit:
    """Write exported conversations into a store. Raises `UsageError`, `StoreError`."""
    screen = Screen(env)
    if options.id is not None and not options.id.strip():
        raise UsageError("--id takes a new id; it is empty")
    code = Exit.FINISHED
    store: SQLiteStore | None = None
    try:
        with nullcontext(()) if options.origin else _reading(options.file) as lines:
            found = (
                [openhands.imported(screen, options.file)]
                if options.origin
                else read_exported(lines)
            )
            for conversation in _named_errors(found, options):
                # Opened only now, so that a wrong FILE leaves no new store behind.
                store = store or _open_or_create(Path(options.store).expanduser())
                id = options.id or conversation.header.id
                try:
                    new = import_conversation(store, conversation, id)
                except ConfigurationError as error:
                    screen.error(f"{error} Use --id NEW.")
                    code = Exit.USAGE
                else:
                    events = counted(len(conversation.events), "event")
                    screen.show(
                        [
                            Line(
                                "plain",
                                one_line(
                                    f"{id}: {events} imported"
                                    if new
                                    else f"{id}: already in the store, with the same {events}"
                                ),
                            )
                        ]
                    )
    finally:
        if store is not None:
            store.close()
    if store is None:
        raise UsageError(f"there is no conversation in {options.file!r}")
    return screen.loss if screen.broken and code == Exit.FINISHED else code


def _named_errors(found: Iterable[Exported], options: argparse.Namespace) -> Iterator[Exported]:
    """Yield the conversations; errors in their lines name the file."""
    file: str = options.file
    try:
        yield from found if options.id is None else only(found)
    except ConfigurationError as error:
        raise UsageError(
            f"{'standard input' if file == '-' else file}, {error}".removesuffix(".")
        ) from error
    except OSError as error:
        raise UsageError(f"{file!r} cannot be read: {error.strerror}") from error


@contextmanager
def _reading(file: str) -> Generator[Iterable[bytes]]:
    if file == "-":
        yield sys.stdin.buffer
        return
    try:
        opened = Path(file).expanduser().open("rb")
    except (OSError, ValueError) as error:
        reason = (
            "does not exist"
            if isinstance(error, FileNotFoundError)
            else f"cannot be read: {getattr(error, 'strerror', error)}"
        )
        raise UsageError(f"{file!r} {reason}") from error
    with opened:
        yield opened


def _open_or_create(path: Path) -> SQLiteStore:
    try:
        return SQLiteStore(path)
    except StoreError as error:
        raise UsageError(str(error)) from error
