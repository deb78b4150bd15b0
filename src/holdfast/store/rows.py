"""The rows of a store's file that may be damaged, and a reader that gets them through SQLite.
Nothing here writes to the file."""

from __future__ import annotations

import shutil
import sqlite3
import zlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from holdfast.store.base import blob_id
from holdfast.store.files import DAMAGE
from holdfast.store.pages import MAGIC
from holdfast.temporary import TemporaryFolder

SMALLEST = 50  # bytes; every event is larger, by its type, seq, id and time alone
NUMBERS = 1 << 31  # a key is number << 32 | seq, and a rowid has 63 bits

Progress = Callable[[int, int], None]
"""A callback `(done, total)` that is called now and then."""


def silent(done: int, total: int) -> None:
    """Ignore the progress."""


class Row(NamedTuple):
    """The row of a conversation.

    `base` lists the numbers of the conversations whose events it shares, each with the last
    shared seq; None if that cannot be read. `lost` is True if the row is gone and only events of
    that number remain.
    """

    number: int
    id: str
    last_seq: int = 0
    status: str = "idle"
    title: str = ""
    created: datetime | None = None
    updated: datetime | None = None
    parent: str = ""
    parent_seq: int = 0
    base: tuple[tuple[int, int], ...] | None = ()
    epoch: int = 0
    lost: bool = False
    spawned_by: str = ""


class Rows(Protocol):
    """A source of a store's rows."""

    size: int
    """The number of bytes that the file should have."""

    def conversations(self) -> list[Row]:
        """Return all conversations."""
        ...

    def events(self, number: int, first: int, last: int) -> Iterator[tuple[int, bytes | None]]:
        """Yield seq and JSON of a conversation's events from `first` to `last`, in order. The
        JSON is None if its checksum does not match."""
        ...

    def last(self, number: int) -> int:
        """Return the highest seq of a conversation's own events, 0 if it has none."""
        ...

    def blob(self, id: str) -> bytes | None:
        """Return the bytes of the blob `id`, None if they are missing or do not match the id."""
        ...

    def close(self) -> None:
        """Release the file."""
        ...


def make_row(number: int, named: dict[str, Any]) -> Row | None:
    """Return a row made of its columns by name, None if it has no id. A column that is missing
    (format 1) or of another type counts as empty."""

    def text(name: str) -> str:
        found = named.get(name)
        return found if isinstance(found, str) else ""

    def count(name: str) -> int:
        found = named.get(name)
        return found if isinstance(found, int) and 0 <= found < 1 << 32 else 0

    id = text("id")
    if not id or not 0 < number < NUMBERS:
        return None
    return Row(
        number,
        id,
        count("last_seq"),
        text("status") or "idle",
        text("title"),
        _time(text("created")),
        _time(text("updated")),
        text("parent"),
        count("parent_seq"),
        read_base(text("base")),
        count("epoch"),
        spawned_by=text("spawned_by"),
    )


def _time(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def read_base(text: str) -> tuple[tuple[int, int], ...] | None:
    """Decode the JSON of a fork's `base` to (number, last seq) in order, None if it makes no
    sense."""
    if not text:
        return ()
    try:
        found = msgspec.json.decode(text, type=tuple[tuple[int, int], ...])
    except (ValueError, RecursionError):
        return None
    upto = 0
    for number, last in found:
        if not 0 < number < NUMBERS or not upto <= last < 1 << 32:
            return None
        upto = last
    return found


class SQLRows:
    """A source of rows that reads through SQLite, all in one snapshot. Every method may raise one
    of `DAMAGE` for a damaged file.

    It only reads. For a file without a -wal, SQLite is told that nobody else writes, so that it
    creates none. If the file has a -wal that nobody has open, a copy of both is read.
    """

    def __init__(self, path: Path) -> None:
        self._copy: TemporaryFolder | None = None
        wal, index = Path(f"{path}-wal"), Path(f"{path}-shm")
        immutable = not wal.exists() or not wal.stat().st_size
        if not immutable and not index.exists():
            self._copy = TemporaryFolder("holdfast-store-")
        try:
            if self._copy is not None:
                copy = self._copy.path / "copy.db"
                shutil.copyfile(path, copy)
                shutil.copyfile(wal, f"{copy}-wal")
                path = copy
            # Path.as_uri escapes the characters with a meaning in a URI: ?, #, %.
            uri = f"{path.absolute().as_uri()}?mode=ro{'&immutable=1' if immutable else ''}"
            self._db = sqlite3.connect(uri, uri=True, timeout=10.0, isolation_level=None)
        except BaseException:
            if self._copy is not None:
                self._copy.close()
            raise
        self._db.text_factory = _text
        self.size = 0
        self._columns: list[str] = []
        try:
            self._db.execute("BEGIN")
            self.tables = {
                str(name)
                for (name,) in self._db.execute(
                    "SELECT name FROM sqlite_master WHERE type = 'table'"
                )
            }
            self.application, self.format, pages, page_size = (
                int(self._db.execute(f"PRAGMA {name}").fetchone()[0])
                for name in ("application_id", "user_version", "page_count", "page_size")
            )
            self.size = pages * page_size
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """See `Rows.close`."""
        self._db.close()
        if self._copy is not None:
            self._copy.close()

    def integrity(self, progress: Progress = silent) -> list[str]:
        """Return the findings of SQLite's own check, at most ten lines."""
        steps = 0
        interrupted: list[BaseException] = []

        def tick() -> int:
            nonlocal steps
            steps += 1
            try:
                progress(0, 0)
            except BaseException as error:  # Ctrl-C; sqlite3 would only print it
                interrupted.append(error)
            return len(interrupted)

        self._db.set_progress_handler(tick, 10_000)
        try:
            found = [str(line) for (line,) in self._db.execute("PRAGMA integrity_check(10)")]
        except DAMAGE as error:
            if interrupted:
                raise interrupted[0] from None
            # Ctrl-C arrived just outside `progress`.
            if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_INTERRUPT:
                raise KeyboardInterrupt from None
            raise
        finally:
            self._db.set_progress_handler(None, 0)
        return [] if found == ["ok"] else found

    def query(self, sql: str, *values: int) -> sqlite3.Cursor:
        """Run any other query."""
        return self._db.execute(sql, values)

    def conversations(self) -> list[Row]:
        """See `Rows.conversations`."""
        cursor = self._db.execute("SELECT * FROM conversations ORDER BY number")
        names = [str(column[0]) for column in cursor.description]
        found: list[Row] = []
        for values in cursor:
            named = dict(zip(names, values, strict=True))
            row = make_row(int(named.get("number") or 0), named)
            if row is None:
                raise sqlite3.DatabaseError("a row of the table of conversations makes no sense")
            found.append(row)
        return found

    def events(self, number: int, first: int, last: int) -> Iterator[tuple[int, bytes | None]]:
        """See `Rows.events`."""
        base = number << 32
        query = (
            "SELECT key & 0xFFFFFFFF, crc, data FROM events WHERE key BETWEEN ? AND ? ORDER BY key"
        )
        for seq, crc, data in self._db.execute(query, (base + first, base + last)):
            yield seq, data if type(data) is bytes and zlib.crc32(data) == crc else None

    def last(self, number: int) -> int:
        """See `Rows.last`."""
        base = number << 32
        found = self._db.execute(
            "SELECT max(key) FROM events WHERE key > ? AND key < ?", (base, base + (1 << 32))
        ).fetchone()[0]
        return 0 if found is None else int(found) - base

    def blob(self, id: str) -> bytes | None:
        """See `Rows.blob`."""
        if "blobs" not in self.tables:
            return None
        found = self._db.execute("SELECT data FROM blobs WHERE id = ?", (id,)).fetchone()
        return (
            found[0]
            if found is not None and type(found[0]) is bytes and blob_id(found[0]) == id
            else None
        )


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


def begins_like_sqlite(path: Path) -> bool:
    """Return True if the file begins with SQLite's magic bytes."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC
