"""The places of conversations that a command line can name: a store's file, or an agent server."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from holdfast import events as ev
from holdfast.cli.conversation_ids import chosen
from holdfast.cli.exit_codes import UsageError
from holdfast.cli.files import path_of, unreadable
from holdfast.commands import Command
from holdfast.errors import StoreError
from holdfast.store import SQLiteStore, Summary

_MAGIC = b"SQLite format 3\0"  # sqlite.org/fileformat2.html, 1.3


class Place(Protocol):
    """The conversations of one place. A context manager."""

    @property
    def tells_duplicates(self) -> bool:
        """True if `post` tells whether it dropped the command."""
        ...

    def __enter__(self) -> Place: ...

    def __exit__(self, *_: object) -> None: ...

    def list(self, *, status: str | None = None, limit: int | None = None) -> Sequence[Summary]:
        """Return the conversations, the newest first."""
        ...

    def find(self, id: str) -> Summary:
        """Return the conversation with this id or prefix of an id. Raises `UsageError`."""
        ...

    def read(self, id: str, /, after_seq: int = 0) -> Sequence[ev.AnyEvent]:
        """Return the events after `after_seq`."""
        ...

    def follow(self, id: str, /, after_seq: int, timeout: float) -> Iterator[ev.AnyEvent]:
        """Yield the events after `after_seq` as they come, until none has come for `timeout`
        seconds."""
        ...

    def post(self, id: str, /, command: Command, key: str | None = None) -> bool:
        """Post a command. Return False if another one was posted under `key` before."""
        ...

    def run(self, id: str) -> str:
        """Have the place itself continue the conversation, unless it is paused. Return its status
        then; "" if the place drives no conversations."""
        ...

    def watched(
        self, notice: Callable[[str], object]
    ) -> AbstractContextManager[Callable[[], bool]]:
        """Call `notice` inside the context when the place disappears and comes back. The result is
        True while the place is gone."""
        ...


class StoredConversations:
    """The conversations of a store's file, which other processes drive."""

    tells_duplicates = True

    def __init__(self, file: str, *, read_only: bool = False) -> None:
        self._file = file
        self.store = open_store(file, read_only=read_only)
        self.read = self.store.read
        self.follow = self.store.follow
        self.post = self.store.post

    def __enter__(self) -> StoredConversations:
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()

    def list(self, *, status: str | None = None, limit: int | None = None) -> Sequence[Summary]:
        """See `Place.list`."""
        return self.store.list(status=status)[:limit]

    def find(self, id: str) -> Summary:
        """See `Place.find`."""
        return chosen(self.store.list(), id, self._file)

    def run(self, id: str) -> str:
        """See `Place.run`."""
        return ""

    def watched(
        self, notice: Callable[[str], object]
    ) -> AbstractContextManager[Callable[[], bool]]:
        """See `Place.watched`."""
        return nullcontext(bool)


def open_place(
    options: argparse.Namespace, env: Mapping[str, str], *, read_only: bool = False
) -> Place:
    """Open the store or the agent server that `options.file` names. Raises `UsageError`,
    `StoreError`."""
    if options.file.startswith(("http://", "https://")):
        from holdfast.cli.server import connect  # an HTTP client takes 100 ms to load

        return connect(options, env, options.file)
    if options.server_key_file is not None:
        raise UsageError(f"--server-key-file is for an agent server, which {options.file!r} is not")
    return StoredConversations(options.file, read_only=read_only)


def place_words(options: argparse.Namespace) -> str:
    """Return the words that name the place in a command line, each quoted for a shell."""
    key = options.server_key_file
    return shlex.join([options.file, *(["--server-key-file", key] if key is not None else [])])


def place_text(options: argparse.Namespace) -> str:
    """Return the place with its preposition."""
    return f"{'on' if '://' in options.file else 'in'} {options.file!r}"


# --- stores ---


def open_store(file: str, *, read_only: bool = False, hint: str = "") -> SQLiteStore:
    """Open an existing store. SQLite itself would create a missing file, and turn an empty one
    into a store. Raises `UsageError`, which ends with `hint`."""
    path = path_of(file)
    if not is_sqlite(file):
        raise UsageError(f"{str(path)!r} is not a Holdfast store{hint and f'. {hint}'}")
    try:
        return SQLiteStore(path, read_only=read_only)
    except StoreError as error:
        raise UsageError(f"{error}{hint and f' {hint}'}") from error


def is_sqlite(file: str) -> bool:
    """Return True if the file is an SQLite file. Raises `UsageError` if it cannot be read."""
    with unreadable(f"the store {file!r}"), path_of(file).open("rb") as opened:
        return opened.read(len(_MAGIC)) == _MAGIC
