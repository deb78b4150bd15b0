"""Salvage of a damaged store: every readable event, and a list of the unreadable ones.

`salvage(path)` never writes to the file and needs none of SQLite's locks. The file may be torn,
cut off, half overwritten, or on a failing disk. Each event proves itself by its checksum, so
that nothing is taken on trust. `holdfast export --salvage` writes the result as lines, from
which `holdfast import` makes a sound store.

A file that SQLite gives up on is read page by page (`scan`). SQLite's own means were measured
against that. Each of the 87 pages of a store with 233 events was lost in turn, and then the file
was cut off at 29 places.

| way to read | events lost, page zeroed | sectors torn | events kept, file cut off |
|---|---|---|---|
| pages | 257 of 20,271 | 55 | 3,979 of 6,757 |
| SELECT of every key | 965 | 965 | 0 |
| SELECT of every key, page 1 replaced | 732 | 732 | 0 |

SQLite reaches rows through a few inner pages and does not open a file that is cut off. After a
damaged frame it drops the rest of a -wal. Its `.recover` is not part of Python's `sqlite3`, and a
`sqlite3` program may be absent.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import msgspec

from holdfast import events as ev
from holdfast.content import Data
from holdfast.errors import StoreError
from holdfast.events import AnyEvent
from holdfast.labels import Labels, labels_after
from holdfast.store.base import Summary, not_found
from holdfast.store.sqlite.files import DAMAGE
from holdfast.store.sqlite.rows import MIN_EVENT_BYTES, ConversationRow, Progress, SQLRows, silent
from holdfast.store.sqlite.scan import PageRows
from holdfast.store.sqlite.schema import APPLICATION
from holdfast.store.sqlite.wal import wal_troubles

MISSING = "not in the file"
CHECKSUM = "the checksum does not match"


class Gap(Data, frozen=True):
    """A range of events, `first` to `last`, that cannot be read, and the reason."""

    first: int
    last: int
    reason: str

    def __str__(self) -> str:
        if self.first == self.last:
            return f"event {self.first} is unreadable: {self.reason}"
        return f"events {self.first}-{self.last} are unreadable: {self.reason}"


class Salvaged(msgspec.Struct, frozen=True):
    """One conversation as far as it could be read.

    `events` has no gap from 1 to the last known event: a `DamagedEvent` stands for each event that
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
    with SalvageReader(path) as reader:
        ids = (
            [entry.id for entry in reader.list()] if conversation_id is None else [conversation_id]
        )
        return Salvage(tuple([reader.read(id) for id in ids]), tuple(reader.troubles))


RowSource = SQLRows | PageRows


class StoreFile:
    """A store's file that may be damaged: read through SQLite (`sql`, None if that fails), and page
    by page. `troubles` lists the defects of the file as a whole. A context manager.

    Raises `StoreError` if no store can be at `path`.
    """

    def __init__(self, path: Path, progress: Progress) -> None:
        self.path = path
        self.sql: SQLRows | None = None
        self._pages: PageRows | None = None
        self._progress = progress
        try:
            if not path.exists():
                raise StoreError(f"The store {str(path)!r} does not exist.")
            if not path.is_file():
                what = "is a folder" if path.is_dir() else "is no regular file"
                raise StoreError(f"{str(path)!r} {what}, not a Holdfast store.")
            path.open("rb").close()
        except StoreError:
            raise
        except (OSError, ValueError) as error:
            raise self._unreadable(error) from error
        self.troubles: list[str] = wal_troubles(path)
        try:
            self.sql = SQLRows(path)
        except (*DAMAGE, OSError) as error:
            self.add_trouble(error)

    def _unreadable(self, error: Exception) -> StoreError:
        reason = error.strerror if isinstance(error, OSError) else error
        return StoreError(f"The store {str(self.path)!r} cannot be read: {reason}.")

    def add_trouble(self, error: BaseException) -> None:
        """Note an error of SQLite."""
        self.troubles.append(f"SQLite cannot read the file: {error}")

    def check_is_store(self) -> None:
        """Raise `StoreError` if SQLite can read the file and it belongs to another program."""
        sql = self.sql
        if sql is not None and not (
            sql.application == APPLICATION or {"conversations", "events"} <= sql.tables
        ):
            what = "an SQLite file, but not a Holdfast store"
            what = what if sql.tables else "not a Holdfast store"
            raise StoreError(f"{str(self.path)!r} is {what}.")

    def sound_sql(self) -> SQLRows | None:
        """Return `sql` unless the pages were scanned, because of its defects."""
        return self.sql if self._pages is None else None

    def pages(self) -> PageRows:
        """Return the rows on the file's pages, after a scan of the whole file the first time.

        The SQLite connection stays open, so that no other process moves pages meanwhile. Raises
        `StoreError` if the file has nothing of a store.
        """
        if self._pages is None:
            try:
                self._pages = PageRows(self.path, self._progress)
            except OSError as error:
                raise self._unreadable(error) from error
            self.troubles += self._pages.troubles
            if not self._pages.is_store and (
                self.sql is None or self.sql.application != APPLICATION
            ):
                raise StoreError(
                    f"{str(self.path)!r} is not a Holdfast store, or nothing of it can be read."
                )
        return self._pages

    def close(self) -> None:
        """Release the file. Idempotent."""
        for rows in (self.sql, self._pages):
            if rows is not None:
                rows.close()
        self.sql = self._pages = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SalvageReader(StoreFile):
    """A store's file, open for reading one conversation at a time. A context manager. Not
    thread-safe.

    A file in which SQLite finds no defect is read through SQLite. Any other file is read page by
    page, after a scan of the whole file that calls `progress` now and then. Raises the errors of
    `salvage`.
    """

    def __init__(self, path: str | Path, progress: Progress = silent) -> None:
        self._rows: dict[str, ConversationRow] | None = None
        super().__init__(Path(path).absolute(), progress)
        try:
            self.check_is_store()
            rows = self._rows_of_sound_file()
            if rows is None:
                rows = self.pages().conversations()
            self._rows = {row.id: row for row in rows}
        except BaseException:
            self.close()
            raise

    def _rows_of_sound_file(self) -> list[ConversationRow] | None:
        """Return the conversations if SQLite finds no defect in the file, else None."""
        try:
            if self.sql is not None and not self.troubles:
                self.troubles += self.sql.integrity(self._progress)
                if not self.troubles:
                    return self.sql.conversations()
        except DAMAGE as error:
            self.add_trouble(error)
        return None

    def close(self) -> None:
        """Release the file. Idempotent."""
        super().close()
        self._rows = None

    def list(self) -> list[Summary]:
        """Return the summaries of all conversations that have events, in order of creation."""
        return [
            row.summary
            for row in self._rows_by_id().values()
            if row.summary.last_seq or row.is_lost
        ]

    def read(self, conversation_id: str) -> Salvaged:
        """Return one conversation. Raises `ConversationNotFound`."""
        row = self._rows_by_id().get(conversation_id)
        if row is None:
            raise not_found(conversation_id, repr(str(self.path)))
        if sql := self.sound_sql():
            try:
                salvaged = assemble(sql, row)
                damaged = [one for one in salvaged.events if isinstance(one, ev.DamagedEvent)]
                undecoded = sum(bool(event.raw) for event in damaged)
                if sum(gap.last - gap.first + 1 for gap in salvaged.gaps) == undecoded:
                    return salvaged  # the pages hold no further events
            except DAMAGE as error:
                self.add_trouble(error)
        return assemble(self.pages(), row)

    def blob(self, id: str) -> bytes | None:
        """Return the bytes of the blob `id`, None if they are missing or do not match the id."""
        if sql := self.sound_sql():
            try:
                return sql.blob(id)
            except DAMAGE as error:
                self.add_trouble(error)
        return self.pages().blob(id)

    def _rows_by_id(self) -> dict[str, ConversationRow]:
        if self._rows is None:
            raise StoreError(f"{str(self.path)!r} is closed.")
        return self._rows


# --- from rows to a journal ---


def journal(rows: RowSource, row: ConversationRow) -> Iterator[tuple[int, AnyEvent | str]]:
    """Yield a conversation's events in order: the seq, and the event or the reason it cannot be
    read. Ends with the last known event, even if that one is missing."""
    # No checksum covers `last_seq` and keys. More events than the whole file could hold were never
    # written.
    most = rows.size // MIN_EVENT_BYTES
    seqs = (row.summary.last_seq, rows.last(row.number))
    last = max([seq for seq in seqs if seq <= most], default=0)
    upto = 0
    for number, end in (*(row.base or ()), (row.number, last)):
        end = min(end, last, most)
        expected = upto + 1
        for seq, data in rows.events(number, expected, end):
            yield from ((missing, MISSING) for missing in range(expected, seq))
            yield seq, CHECKSUM if data is None else ev.decode(data, seq)
            expected = seq + 1
        yield from ((missing, MISSING) for missing in range(expected, end + 1))
        upto = max(upto, end)


def problem_of(event: AnyEvent | str) -> str:
    """Return the reason why an item of `journal` is not the original event, "" if it is. An
    imported placeholder counts as original."""
    if isinstance(event, str):
        return event
    return event.reason if isinstance(event, ev.DamagedEvent) and event.raw else ""


def add_gap(gaps: list[Gap], seq: int, reason: str) -> None:
    """Add an unreadable event; it extends a gap that it follows for the same reason."""
    if gaps and gaps[-1].last == seq - 1 and gaps[-1].reason == reason:
        gaps[-1] = Gap(gaps[-1].first, seq, reason)
    else:
        gaps.append(Gap(seq, seq, reason))


def assemble(rows: RowSource, row: ConversationRow) -> Salvaged:
    """Build a conversation from its rows, with placeholders for events that cannot be read."""
    events: list[AnyEvent] = []
    gaps: list[Gap] = []
    before = row.summary.created or ev.EPOCH
    for seq, event in journal(rows, row):
        if problem := problem_of(event):
            add_gap(gaps, seq, problem)
        if isinstance(event, str):
            event = ev.DamagedEvent(seq=seq, id=f"damaged-{seq}", timestamp=before, reason=event)
        before = event.timestamp
        events.append(event)
    summary = msgspec.structs.replace(row.summary, last_seq=len(events))
    if row.is_lost:
        summary = _summary_of_events(row.summary, events)
    return Salvaged(summary, tuple(events), tuple(gaps), tuple(row_defects(row, len(events))))


def row_defects(row: ConversationRow, count: int) -> list[str]:
    """Return the defects of a conversation's row, of which `count` events were found."""
    defects: list[str] = []
    if row.is_lost:
        defects.append(
            "its entry in the table of conversations is lost; status, title and times are taken"
            " from its events"
        )
        if row.id == f"number-{row.number}":
            defects.append(f"its id is lost too, so it is named by its number: {row.id}")
    elif row.summary.last_seq != count:
        defects.append(f"its entry says that it has {row.summary.last_seq:,} events, not {count:,}")
    if row.base is None:
        defects.append("it is a fork, and the record of the events that it shares is lost")
    return defects


def _summary_of_events(summary: Summary, events: list[AnyEvent]) -> Summary:
    """Return a summary derived from the events."""
    status, labels, spawned_by = summary.status, Labels(), summary.spawned_by
    times: list[datetime] = []
    for event in events:
        if isinstance(event, ev.StatusChanged):
            status = event.status
        elif isinstance(event, ev.MessageAdded | ev.ConversationLabelled):
            labels = labels_after(labels, event)
        elif isinstance(event, ev.AgentConfigured):
            spawned_by = spawned_by or event.spawned_by
        if event.type != "damaged":
            times.append(event.timestamp)
    created, updated = (times[0], times[-1]) if times else (None, None)
    more: dict[str, Any] = {"spawned_by": spawned_by, "tags": labels.tags}
    return Summary(summary.id, status, labels.title, len(events), created, updated, **more)
