"""The rows of a store's file that may be damaged, and a reader that gets them through SQLite.
Nothing here writes to the file."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from holdfast.store.base import Summary, blob_id
from holdfast.store.sqlite.files import DAMAGE, connect_unchanged

MIN_EVENT_BYTES = 50  # bytes; every event is larger, by its type, seq, id and time alone
MAX_NUMBER = 1 << 31  # a key is number << 32 | seq, and a rowid has 63 bits

Progress = Callable[[int, int], None]
"""A callback `(done, total)` that is called now and then."""


def silent(position: int, total: int) -> None:
    """Ignore the progress."""


class ConversationRow(NamedTuple):
    """The row of a conversation.

    `base` lists the numbers of the conversations whose events it shares, each with the last
    shared seq; None if that cannot be read. `is_lost` is True if the row is gone and only events of
    that number remain.
    """

    number: int
    summary: Summary
    base: tuple[tuple[int, int], ...] | None = ()
    epoch: int = 0
    is_lost: bool = False

    @property
    def id(self) -> str:
        """The conversation's id."""
        return self.summary.id


def make_row(number: int, columns: dict[str, Any]) -> ConversationRow | None:
    """Return a row made of its columns by name, None if it has no id. A column that is missing
    (format 1) or of another type counts as empty."""

    def text(name: str) -> str:
        value = columns.get(name)
        return value if isinstance(value, str) else ""

    def count(name: str) -> int:
        value = columns.get(name)
        return value if isinstance(value, int) and 0 <= value < 1 << 32 else 0

    if not text("id") or not 0 < number < MAX_NUMBER:
        return None
    summary = Summary(
        text("id"),
        text("status") or "idle",
        text("title"),
        count("last_seq"),
        _time(text("created")),
        _time(text("updated")),
        text("parent"),
        count("parent_seq"),
        spawned_by=text("spawned_by"),
        tags=read_tags(text("tags")),
    )
    return ConversationRow(number, summary, read_base(text("base")), count("epoch"))


def _time(text: str) -> datetime | None:
    try:
        time = datetime.fromisoformat(text)
        return (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def read_tags(text: str) -> tuple[str, ...]:
    """Decode the tags of a row, none if they make no sense."""
    try:
        return msgspec.json.decode(text, type=tuple[str, ...]) if text else ()
    except (ValueError, TypeError, RecursionError):
        return ()


def read_base(text: str) -> tuple[tuple[int, int], ...] | None:
    """Decode a fork's `base` to (number, last seq) in order, None if it makes no sense."""
    if not text:
        return ()
    try:
        base = msgspec.json.decode(text, type=tuple[tuple[int, int], ...])
    except (ValueError, RecursionError):
        return None
    upto = 0
    for number, last in base:
        if not 0 < number < MAX_NUMBER or not upto <= last < 1 << 32:
            return None
        upto = last
    return base


class SQLRows:
    """The rows of a store, read through SQLite in one snapshot. Every method may raise one of
    `DAMAGE` for a damaged file. Nothing is changed, see `connect_unchanged`. `size` is the number
    of bytes that the file should have."""

    def __init__(self, path: Path) -> None:
        self._db, self._copy, _ = connect_unchanged(path, 10.0)
        self._db.text_factory = _text
        try:
            self._db.execute("BEGIN")
            tables = self.query("SELECT name FROM sqlite_master WHERE type = 'table'")
            self.tables = {str(name) for (name,) in tables}
            self.application, self.format, pages, page_size = (
                int(self.query(f"PRAGMA {name}").fetchone()[0])
                for name in ("application_id", "user_version", "page_count", "page_size")
            )
            self.size = pages * page_size
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the file."""
        self._db.close()
        if self._copy is not None:
            self._copy.close()

    def integrity(self, progress: Progress = silent) -> list[str]:
        """Return the findings of SQLite's own check, at most ten lines."""
        interrupted: list[BaseException] = []

        def tick() -> int:
            try:
                progress(0, 0)
            except BaseException as error:  # Ctrl-C; sqlite3 would only print it
                interrupted.append(error)
            return len(interrupted)

        self._db.set_progress_handler(tick, 10_000)
        try:
            lines = [str(line) for (line,) in self.query("PRAGMA integrity_check(10)")]
        except DAMAGE as error:
            if interrupted:
                raise interrupted[0] from None
            # Ctrl-C arrived just outside `progress`.
            if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_INTERRUPT:
                raise KeyboardInterrupt from None
            raise
        finally:
            self._db.set_progress_handler(None, 0)
        return [] if lines == ["ok"] else lines

    def query(self, sql: str, *values: int | str) -> sqlite3.Cursor:
        """Run any other query."""
        return self._db.execute(sql, values)

    def conversations(self) -> list[ConversationRow]:
        """Return all conversations."""
        cursor = self.query("SELECT * FROM conversations ORDER BY number")
        names = [str(column[0]) for column in cursor.description]
        rows: list[ConversationRow] = []
        for values in cursor:
            columns = dict(zip(names, values, strict=True))
            row = make_row(int(columns.get("number") or 0), columns)
            if row is None:
                raise sqlite3.DatabaseError("a row of the table of conversations makes no sense")
            rows.append(row)
        return rows

    def events(self, number: int, first: int, last: int) -> Iterator[tuple[int, bytes | None]]:
        """Yield seq and JSON of a conversation's events from `first` to `last`, in order. The
        JSON is None if its checksum does not match."""
        base = number << 32
        query = (
            "SELECT key & 0xFFFFFFFF, crc, data FROM events WHERE key BETWEEN ? AND ? ORDER BY key"
        )
        for seq, crc, data in self.query(query, base + first, base + last):
            yield seq, data if type(data) is bytes and zlib.crc32(data) == crc else None

    def last(self, number: int) -> int:
        """Return the highest seq of a conversation's own events, 0 if it has none."""
        base = number << 32
        query = "SELECT coalesce(max(key), ?) FROM events WHERE key > ? AND key < ?"
        return int(self.query(query, base, base, base + (1 << 32)).fetchone()[0]) - base

    def blob(self, id: str) -> bytes | None:
        """Return the bytes of the blob `id`, None if they are missing or do not match the id."""
        if "blobs" not in self.tables:
            return None
        row = self.query("SELECT data FROM blobs WHERE id = ?", id).fetchone()
        return row[0] if row and type(row[0]) is bytes and blob_id(row[0]) == id else None


def _text(data: bytes) -> str:
    return data.decode(errors="replace")
