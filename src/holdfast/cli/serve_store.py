"""The store of an agent server (`--store`): an SQLite file for one server, or a Postgres database
for any number of servers."""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import os
from argparse import Namespace
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import TypeAlias

from holdfast import store
from holdfast.cli.exit_codes import UsageError
from holdfast.cli.files import path_of, reason
from holdfast.server.database import Database
from holdfast.server.records import Records
from holdfast.server.sealing import Seal
from holdfast.server.workspaces import check_shared
from holdfast.store import SQLiteStore, Store
from holdfast.store.place import is_postgres

DEFAULT_FILE = "holdfast-server.db"


class ServerFile:
    """An SQLite file. The server's other files stand beside it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __repr__(self) -> str:
        return repr(str(self._path))

    @property
    def has_keys(self) -> bool:
        """True if a server was started with this store."""
        return self._beside("db").exists()

    @property
    def files(self) -> Mapping[str, Path]:
        """The files that no sandbox may show, by name."""
        return {"--store": self._path, "the server's records": self._beside("db")}

    @contextlib.contextmanager
    def exclusive(self) -> Generator[None]:
        """Lock the store against other servers, which would compete for its conversations. A lock
        file without a store is removed at the end."""
        path = self._beside("lock")
        try:
            file = open(path, "a+")  # noqa: SIM115
        except OSError as error:
            raise UsageError(
                f"--store: {str(path)!r} cannot be written: {error.strerror}"
            ) from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not os.fstat(file.fileno()).st_nlink:  # removed before it was locked
                    raise BlockingIOError
            except OSError:
                file.seek(0)
                other = f"another server (process {file.read(20).strip() or 'unknown'})"
                raise UsageError(f"--store: {other} uses {str(self._path)!r}") from None
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            try:
                yield
            finally:
                if not self._path.exists():
                    path.unlink(missing_ok=True)

    def root(self, folder: str | None) -> Path:
        """Return the folder of the workspaces, which exists then. Raises `UsageError`."""
        root = self._path.with_name(f"{self._path.name}.workspaces")
        return _make_folder(root if folder is None else path_of(folder).absolute())

    def records(self) -> AbstractContextManager[Records]:
        """Open the server's records."""
        return closing(Records(self._beside("db"), Seal.of_file(self._beside("key"))))

    def journals(self) -> Store:
        """Open the journals."""
        for file in (self._path, self._beside("db")):
            # Readable by its owner only. SQLite gives its -wal and -shm the same permissions.
            with contextlib.suppress(FileExistsError):
                os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        return SQLiteStore(self._path)

    def check_root(self, root: Path | None, records: Records) -> None:
        """Do nothing: no other server has a folder."""

    def _beside(self, kind: str) -> Path:
        """Return the server's file of a kind (db, key, lock), which stands beside its store."""
        return self._path.with_name(f"{self._path.name}.server.{kind}")


class ServerDatabase:
    """A Postgres database. The repr has no password."""

    has_keys = True

    def __init__(
        self, dsn: str, schema: str, seal_key: str, database: Callable[[str, str], Database]
    ) -> None:
        self._dsn = dsn
        self._database = database
        self._schema = schema
        key = path_of(seal_key).absolute()
        self._seal = Seal.of_file(key)
        self.files: Mapping[str, Path] = {"--seal-key": key}

    def __repr__(self) -> str:
        return "the Postgres database"

    def exclusive(self) -> AbstractContextManager[None]:
        """Do nothing: any number of servers share the database."""
        return nullcontext()

    def root(self, folder: str | None) -> Path | None:
        """Return the folder of the workspaces, or None for servers that have none."""
        return None if folder is None else _make_folder(path_of(folder).absolute())

    def records(self) -> AbstractContextManager[Records]:
        """Open the servers' records."""
        return closing(Records(self._database(self._dsn, f"{self._schema}_server"), self._seal))

    def journals(self) -> Store:
        """Open the journals."""
        return store.PostgresStore(self._dsn, schema=self._schema)

    def check_root(self, root: Path | None, records: Records) -> None:
        """Raise `UsageError` if the other servers use another folder."""
        if root is not None:
            check_shared(root, records)


ServerStore: TypeAlias = ServerFile | ServerDatabase


def server_store(options: Namespace, env: Mapping[str, str]) -> ServerStore:
    """Return the store that `--store` or HOLDFAST_STORE names. Raises `UsageError` for a file that
    cannot be written."""
    place = options.store or env.get("HOLDFAST_STORE", "").strip() or DEFAULT_FILE
    if is_postgres(place):
        if options.seal_key is None:
            raise UsageError(
                "--store: a Postgres database needs --seal-key FILE, the same key for all its"
                " servers, which seals clients' secrets. A file that does not exist is made"
            )
        try:
            database = importlib.import_module("holdfast.server.postgres_database")
        except ImportError:
            raise UsageError(
                "--store: a Postgres database needs psycopg: pip install 'holdfast[postgres]'"
            ) from None
        return ServerDatabase(place, options.schema, options.seal_key, database.PostgresDatabase)
    if options.seal_key is not None or options.no_drive:
        option = "--no-drive" if options.no_drive else "--seal-key"
        raise UsageError(f"{option} is for a Postgres database, not for the file {place!r}")
    path = path_of(place).absolute()
    if not path.parent.is_dir():
        raise UsageError(f"--store: there is no folder {str(path.parent)!r}")
    if path.is_dir():
        raise UsageError(f"--store takes a file; {str(path)!r} is a folder")
    if not os.access(path.parent, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise UsageError(f"--store: {str(path)!r} cannot be written")
    return ServerFile(path)


def _make_folder(root: Path) -> Path:
    try:
        root.mkdir(0o700, parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise UsageError(f"--root: {str(root)!r} cannot be made: {reason(error)}") from None
    if not os.access(root, os.W_OK | os.X_OK):
        raise UsageError(f"--root: the folder {str(root)!r} cannot be written")
    return root
