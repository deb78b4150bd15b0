"""Salvage of a damaged store: every readable event, and a list of those that are not.

`salvage(path)` never writes to the file and needs none of SQLite's locks. The file may be torn,
cut off, half overwritten, or on a failing disk. Each event proves itself by its checksum, so
that nothing is taken on trust. `holdfast export --salvage` writes the result as lines, from
which `holdfast import` makes a sound store.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import msgspec

from holdfast import events as ev
from holdfast.content import Data
from holdfast.errors import ConversationNotFound, StoreError
from holdfast.events import AnyEvent
from holdfast.store.base import Summary
from holdfast.store.files import DAMAGE
from holdfast.store.rows import SMALLEST, Progress, Row, Rows, SQLRows, begins_like_sqlite, silent
from holdfast.store.scan import PageRows
from holdfast.store.schema import APPLICATION
from holdfast.store.wal import wal_troubles

MISSING = "not in the file"
CHECKSUM = "the checksum does not match"


class Gap(Data, frozen=True):
    """A range of events, `first` to `last`, that cannot be read, and the reason."""

    first: int
    last: int
    reason: str

    def __str__(self) -> str:
        one = self.first == self.last
        return (
            f"event{'' if one else 's'} {self.first}{'' if one else f'-{self.last}'}"
            f" {'is' if one else 'are'} unreadable: {self.reason}"
        )


class Salvaged(msgspec.Struct, frozen=True):
    """One conversation as far as it could be read.

    `events` has no gap from 1 to the last known event: a `Damaged` stands for each event that
    cannot be read. `Conversation.from_state(ConversationState(summary.id, events), agent)`
    therefore continues with the rest. `gaps` lists the unreadable events, `notes` any other
    defects.
    """

    summary: Summary
    events: tuple[AnyEvent, ...]
    gaps: tuple[Gap, ...] = ()
    notes: tuple[str, ...] = ()


class Salvage(msgspec.Struct, frozen=True):
    """The result of `salvage`. `troubles` lists defects of the file as a whole. The store is
    sound if there are neither troubles nor gaps."""

    conversations: tuple[Salvaged, ...]
    troubles: tuple[str, ...] = ()


def salvage(path: str | Path, conversation_id: str | None = None) -> Salvage:
    """Read conversations (None: all) of the store at `path`, in any state it may be in. The file is
    not changed.

    Raises `StoreError` if the file does not exist or holds nothing of a store,
    `ConversationNotFound` for an unknown id.
    """
    with Remains(path) as remains:
        ids = (
            [entry.id for entry in remains.list()] if conversation_id is None else [conversation_id]
        )
        return Salvage(tuple([remains.read(id) for id in ids]), remains.troubles)


class Remains:
    """A store's file, open for reading one conversation at a time. A context manager. Not
    thread-safe.

    A file in which SQLite finds no defect is read through SQLite. Any other file is read page by
    page, after a scan of the whole file that calls `progress` now and then. Raises the errors of
    `salvage`.
    """

    def __init__(self, path: str | Path, progress: Progress = silent) -> None:
        self.path = Path(path).absolute()
        self._progress = progress
        self._sql: SQLRows | None = None
        self._pages: PageRows | None = None
        self._troubles: list[str] = []
        self._rows: dict[str, Row] | None = None
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        check_file(self.path)
        self._troubles += wal_troubles(self.path)
        try:
            self._sql = SQLRows(self.path)
            check_store(self.path, self._sql)
            if not self._troubles:
                self._troubles += self._sql.integrity(self._progress)
            if not self._troubles:
                self._rows = {row.id: row for row in self._sql.conversations()}
                return
        except (*DAMAGE, OSError) as error:
            if isinstance(error, StoreError):
                raise
            self._troubles.append(f"SQLite cannot read the file: {error}")
        # The SQLite connection stays open, so that no other process moves pages meanwhile.
        pages = self._scan()
        if not pages.is_store:
            raise StoreError(
                f"{str(self.path)!r} is not a Holdfast store, or nothing of it can be read."
            )

    def _scan(self) -> PageRows:
        if self._pages is None:
            try:
                self._pages = PageRows(self.path, self._progress)
            except OSError as error:
                raise unreadable(self.path, error) from error
            if self._rows is None:
                self._rows = {row.id: row for row in self._pages.conversations()}
        return self._pages

    def close(self) -> None:
        """Release the file. Idempotent."""
        for rows in (self._sql, self._pages):
            if rows is not None:
                rows.close()
        self._sql = self._pages = None

    def __enter__(self) -> Remains:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def troubles(self) -> tuple[str, ...]:
        """The defects of the file as a whole."""
        return (*self._troubles, *(self._pages.troubles if self._pages is not None else ()))

    def list(self) -> list[Summary]:
        """Return a summary of each conversation that has events, without reading them, in the
        order of creation."""
        return [_summary(row) for row in self._named().values() if row.last_seq or row.lost]

    def read(self, conversation_id: str) -> Salvaged:
        """Return one conversation. Raises `ConversationNotFound`."""
        row = self._named().get(conversation_id)
        if row is None:
            raise ConversationNotFound(
                f"No conversation {conversation_id!r} in {str(self.path)!r}."
            )
        if self._pages is None and self._sql is not None:
            try:
                found = assemble(self._sql, row)
                undecoded = sum(
                    isinstance(event, ev.Damaged) and bool(event.raw) for event in found.events
                )
                if sum(gap.last - gap.first + 1 for gap in found.gaps) == undecoded:
                    return found  # the pages hold no more events
            except DAMAGE as error:
                self._troubles.append(f"SQLite cannot read the file: {error}")
        return assemble(self._scan(), row)

    def blob(self, id: str) -> bytes | None:
        """Return the bytes of the blob `id`, None if they are missing or do not match the id."""
        if self._pages is None and self._sql is not None:
            try:
                return self._sql.blob(id)
            except DAMAGE as error:
                self._troubles.append(f"SQLite cannot read the file: {error}")
        return self._scan().blob(id)

    def _named(self) -> dict[str, Row]:
        if self._rows is None:
            raise StoreError(f"{str(self.path)!r} is closed.")
        return self._rows


# --- checks before reading ---


def check_file(path: Path) -> None:
    """Raise `StoreError` if no file at `path` could be a store."""
    try:
        if not path.exists():
            raise StoreError(f"The store {str(path)!r} does not exist.")
        if not path.is_file():
            raise StoreError(
                f"{str(path)!r} is {'a folder' if path.is_dir() else 'no regular file'}, not a"
                " Holdfast store."
            )
        begins_like_sqlite(path)
    except StoreError:
        raise
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error


def check_store(path: Path, rows: SQLRows) -> None:
    """Raise `StoreError` if SQLite can read the file and it belongs to another program."""
    if rows.application != APPLICATION and not {"conversations", "events"} <= rows.tables:
        what = "an SQLite file, but not a Holdfast store" if rows.tables else "not a Holdfast store"
        raise StoreError(f"{str(path)!r} is {what}.")


def unreadable(path: Path, error: Exception) -> StoreError:
    """Return the error for a file that cannot be opened."""
    return StoreError(
        f"The store {str(path)!r} cannot be read:"
        f" {error.strerror if isinstance(error, OSError) else error}."
    )


# --- from rows to a journal ---


def journal(rows: Rows, row: Row) -> Iterator[tuple[int, int, AnyEvent | str]]:
    """Yield a conversation's events in order: the number of the rows that hold it, its seq, and the
    event or the reason it cannot be read.

    Ends with the last known event, even if that one is missing.
    """
    base = row.base or ()
    # No checksum covers `last_seq` and keys. More events than the whole file could hold were never
    # written.
    most = rows.size // SMALLEST
    last = max([seq for seq in (row.last_seq, rows.last(row.number)) if seq <= most], default=0)
    upto = 0
    for number, end in (*base, (row.number, last)):
        end = min(end, last, most)
        expected = upto + 1
        for seq, data in rows.events(number, expected, end):
            yield from ((number, missing, MISSING) for missing in range(expected, seq))
            yield number, seq, CHECKSUM if data is None else ev.decode(data, seq)
            expected = seq + 1
        yield from ((number, missing, MISSING) for missing in range(expected, end + 1))
        upto = max(upto, end)


def misread(event: AnyEvent | str) -> str:
    """Return the reason why an item of `journal` is not the original event, "" if it is. An
    imported placeholder counts as original."""
    if isinstance(event, str):
        return event
    return event.reason if isinstance(event, ev.Damaged) and event.raw else ""


def join(gaps: list[Gap], seq: int, reason: str) -> None:
    """Add an unreadable event to the gaps. It extends the last gap if it follows it for the same
    reason."""
    if gaps and gaps[-1].last == seq - 1 and gaps[-1].reason == reason:
        gaps[-1] = Gap(gaps[-1].first, seq, reason)
    else:
        gaps.append(Gap(seq, seq, reason))


def assemble(rows: Rows, row: Row) -> Salvaged:
    """Build a conversation from its rows, with placeholders for events that cannot be read."""
    events: list[AnyEvent] = []
    gaps: list[Gap] = []
    before = row.created or ev.EPOCH
    for _, seq, found in journal(rows, row):
        if problem := misread(found):
            join(gaps, seq, problem)
        if isinstance(found, str):
            found = placeholder(seq, before, found)
        before = found.timestamp
        events.append(found)
    summary = (
        _summary_of_events(_summary(row), events)
        if row.lost
        else msgspec.structs.replace(_summary(row), last_seq=len(events))
    )
    return Salvaged(summary, tuple(events), tuple(gaps), tuple(remarks(row, len(events))))


def remarks(row: Row, count: int) -> list[str]:
    """Return the defects of a conversation's own row. `count` is the number of events that were
    found."""
    found: list[str] = []
    if row.lost:
        found.append(
            "its entry in the table of conversations is lost; status, title and times are taken"
            " from its events"
        )
        if row.id == f"number-{row.number}":
            found.append(f"its id is lost too, so it is named by its number: {row.id}")
    elif row.last_seq != count:
        found.append(f"its entry says that it has {row.last_seq:,} events, not {count:,}")
    if row.base is None:
        found.append("it is a fork, and the record of the events that it shares is lost")
    return found


def placeholder(seq: int, timestamp: datetime, reason: str) -> ev.Damaged:
    """Return the event that stands in a salvaged journal for event `seq`, whose bytes are lost."""
    return ev.Damaged(seq=seq, id=f"damaged-{seq}", timestamp=timestamp, reason=reason)


def _summary(row: Row) -> Summary:
    return Summary(
        row.id,
        row.status,
        row.title,
        row.last_seq,
        row.created,
        row.updated,
        row.parent,
        row.parent_seq,
        spawned_by=row.spawned_by,
    )


def _summary_of_events(summary: Summary, events: list[AnyEvent]) -> Summary:
    """Return a summary derived from the events."""
    status, title, spawned_by = summary.status, "", summary.spawned_by
    times: list[datetime] = []
    for event in events:
        if isinstance(event, ev.Status):
            status = event.status
        elif isinstance(event, ev.Message) and not title:
            title = event.text.strip().split("\n", 1)[0][:80]
        elif isinstance(event, ev.Agent):
            spawned_by = spawned_by or event.spawned_by
        if event.type != "damaged":
            times.append(event.timestamp)
    begun, updated = (times[0], times[-1]) if times else (None, None)
    return Summary(summary.id, status, title, len(events), begun, updated, spawned_by=spawned_by)
