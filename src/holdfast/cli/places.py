"""The places of conversations that a command line can name: a store's file, or an agent server."""

from __future__ import annotations

import re
import shlex
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, TypeAlias

from holdfast import store as stores
from holdfast.cli.conversation_ids import find_in_file
from holdfast.cli.exit_codes import UsageError
from holdfast.cli.files import path_of, unreadable
from holdfast.errors import ConfigurationError, StoreError
from holdfast.store import SQLiteStore, Summary
from holdfast.store.place import is_postgres

if TYPE_CHECKING:
    from holdfast.cli.server import ServerConversations

Place: TypeAlias = "StoredConversations | ServerConversations"

# The password of an address, before the @ or among the parameters.
_PASSWORD = re.compile(r"((?<=://)[^:/@]*):[^@/]*(?=@)|([?&]password=)[^&]*")
_MAGIC = b"SQLite format 3\0"  # sqlite.org/fileformat2.html, 1.3


class StoredConversations:
    """The conversations of a store's file, which other processes drive. Has the same methods as
    `ServerConversations`."""

    tells_duplicates = True  # `post` tells whether it dropped the command

    def __init__(self, file: str, *, read_only: bool = False) -> None:
        self._file = file
        self.store = open_store(file, read_only=read_only)
        self.read = self.store.read
        self.follow = self.store.follow
        self.post = self.store.post
        self.close = self.store.close

    def list(
        self, *, status: str | None = None, limit: int | None = None, tags: Sequence[str] = ()
    ) -> Sequence[Summary]:
        """Return the conversations, the newest first."""
        return self.store.list(status=status, tags=tags)[:limit]

    def find(self, id: str) -> Summary:
        """Return the conversation with this id or prefix of an id. Raises `UsageError`."""
        return find_in_file(self.store.list(), id, self._file)

    def refusal(self, id: str, key: str) -> str:
        """Return the reason why the command that was posted under this key was refused, or ""."""
        refused = self.store.refusal(id, key)
        return "" if refused is None else refused.message

    def run(self, id: str) -> str:
        """Return "": a store drives no conversations."""
        return ""

    def watched(
        self, notice: Callable[[str], object]
    ) -> AbstractContextManager[Callable[[], bool]]:
        """Return a context whose value is never True: a file does not disappear."""
        return nullcontext(bool)


def open_place(options: Namespace, env: Mapping[str, str], *, read_only: bool = False) -> Place:
    """Open the store or the server that `options.file` names. Raises `UsageError`, `StoreError`."""
    if options.file.startswith(("http://", "https://")):
        from holdfast.cli.server import connect  # an HTTP client takes 100 ms to load

        return connect(options, env, options.file)
    if options.server_key_file is not None:
        raise UsageError(f"--server-key-file is for an agent server, which {options.file!r} is not")
    return StoredConversations(options.file, read_only=read_only)


def place_words(options: Namespace) -> str:
    """Return the words that name the place in a command line, each quoted for a shell."""
    key = options.server_key_file
    return shlex.join([options.file, *(["--server-key-file", key] if key is not None else [])])


def place_text(options: Namespace) -> str:
    """Return the place with its preposition."""
    return f"{'on' if '://' in options.file else 'in'} {options.file!r}"


def open_store(
    file: str, *, read_only: bool = False, create: bool = False, hint: str = ""
) -> SQLiteStore:
    """Open a store. SQLite itself would create a missing one, and turn an empty file into one.
    Raises `UsageError`, which ends with `hint`."""
    path = path_of(file)
    if not create and not is_sqlite(file):
        raise UsageError(f"{str(path)!r} is not a Holdfast store{hint and f'. {hint}'}")
    try:
        return SQLiteStore(path, read_only=read_only)
    except StoreError as error:
        raise UsageError(f"{error}{hint and f' {hint}'}") from error


def open_postgres(dsn: str) -> stores.PostgresStore:
    """Open the store in a Postgres database. Raises `UsageError`."""
    try:
        return stores.PostgresStore(dsn)  # loaded here: few need psycopg
    except (StoreError, ConfigurationError) as error:
        raise UsageError(str(error).removesuffix(".")) from error


def without_password(place: str) -> str:
    """Return a place for people to read: an address without its password."""
    return (
        _PASSWORD.sub(lambda match: match[1] or match[2] or "", place)
        if is_postgres(place)
        else place
    )


def is_sqlite(file: str) -> bool:
    """Return True if the file is an SQLite file. Raises `UsageError` if it cannot be read."""
    with unreadable(f"the store {file!r}"), path_of(file).open("rb") as opened:
        return opened.read(len(_MAGIC)) == _MAGIC
