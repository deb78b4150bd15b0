"""What can still be read of a store whose file is damaged: every readable event, and by name what is not.

`salvage(path)` never writes to the file and needs none of SQLite's locks; the file may be torn, cut off, half overwritten, or on a disk
that is failing. Each event proves itself by its checksum, so that nothing has to be taken on trust. `holdfast export --salvage` writes what
it finds as lines that `holdfast import` makes a sound store of.
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
    """Events `first` to `last` cannot be read, and why."""

    first: int
    last: int
    reason: str

    def __str__(self) -> str:
        one = self.first == self.last
        return f"event{'' if one else 's'} {self.first}{'' if one else f'-{self.last}'} {'is' if one else 'are'} unreadable: {self.reason}"


class Salvaged(msgspec.Struct, frozen=True):
    """One conversation as it could be read.

    `events` is dense from 1 to the last that is known of. In place of one that cannot be read stands a `Damaged`, so that
    `Conversation.from_state(ConversationState(summary.id, events), agent)` goes on with the rest; `gaps` names them all. `notes` says what
    else is not as it should be.
    """

    summary: Summary
    events: tuple[AnyEvent, ...]
    gaps: tuple[Gap, ...] = ()
    notes: tuple[str, ...] = ()


class Salvage(msgspec.Struct, frozen=True):
    """All that could be read. `troubles` says what is wrong with the file as a whole; empty with no gaps: it is sound."""

    conversations: tuple[Salvaged, ...]
    troubles: tuple[str, ...] = ()


def salvage(path: str | Path, conversation_id: str | None = None) -> Salvage:
    """Read the conversations (None: all) of the store at `path`, whatever state it is in. The file is not changed.

    Raises `StoreError` if there is no such file or nothing of a store is in it, `ConversationNotFound` for an id that is not.
    """
    with Remains(path) as remains:
        ids = [entry.id for entry in remains.list()] if conversation_id is None else [conversation_id]
        return Salvage(tuple([remains.read(id) for id in ids]), remains.troubles)


class Remains:
    """A store's file, opened for reading only, conversation by conversation; a context manager. Not thread-safe.

    A file in which SQLite finds nothing wrong is read through it, any other page by page, which takes a scan of the whole file.
    `progress` is told now and then how much of it is done. Raises as `salvage` does.
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
            self._troubles.append(f"SQLite cannot read it: {error}")
        # What SQLite has begun to read stays open, so that nobody moves pages about meanwhile.
        pages = self._scan()
        if not pages.is_store:
            raise StoreError(f"{str(self.path)!r} is not a Holdfast store, or nothing of it can be read.")

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
        """Let go of the file. Idempotent."""
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
        """What is wrong with the file as a whole."""
        return (*self._troubles, *(self._pages.troubles if self._pages is not None else ()))

    def list(self) -> list[Summary]:
        """What is known of each conversation that has events, without reading them: in the order in which they were begun."""
        return [_summary(row) for row in self._named().values() if row.last_seq or row.lost]

    def read(self, conversation_id: str) -> Salvaged:
        """One conversation. Raises `ConversationNotFound`."""
        row = self._named().get(conversation_id)
        if row is None:
            raise ConversationNotFound(f"No conversation {conversation_id!r} in {str(self.path)!r}.")
        if self._pages is None and self._sql is not None:
            try:
                found = assemble(self._sql, row)
                undecoded = sum(isinstance(event, ev.Damaged) and bool(event.raw) for event in found.events)
                if sum(gap.last - gap.first + 1 for gap in found.gaps) == undecoded:
                    return found  # the pages have no more of them
            except DAMAGE as error:
                self._troubles.append(f"SQLite cannot read it: {error}")
        return assemble(self._scan(), row)

    def blob(self, id: str) -> bytes | None:
        """The bytes of that name, None if they are not there or not what they were."""
        if self._pages is None and self._sql is not None:
            try:
                return self._sql.blob(id)
            except DAMAGE as error:
                self._troubles.append(f"SQLite cannot read it: {error}")
        return self._scan().blob(id)

    def _named(self) -> dict[str, Row]:
        if self._rows is None:
            raise StoreError(f"{str(self.path)!r} is closed.")
        return self._rows


# --- whether there is anything to read -----------------------------------------------------------


def check_file(path: Path) -> None:
    """Raises `StoreError` if there is no file at `path` that could be a store."""
    try:
        if not path.exists():
            raise StoreError(f"The store {str(path)!r} does not exist.")
        if not path.is_file():
            raise StoreError(f"{str(path)!r} is {'a folder' if path.is_dir() else 'no regular file'}, not a Holdfast store.")
        begins_like_sqlite(path)
    except StoreError:
        raise
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error


def check_store(path: Path, rows: SQLRows) -> None:
    """Raises `StoreError` if SQLite can read the file, and it is somebody else's."""
    if rows.application != APPLICATION and not {"conversations", "events"} <= rows.tables:
        what = "an SQLite file, but not a Holdfast store" if rows.tables else "not a Holdfast store"
        raise StoreError(f"{str(path)!r} is {what}.")


def unreadable(path: Path, error: Exception) -> StoreError:
    """The file cannot be opened."""
    return StoreError(f"The store {str(path)!r} cannot be read: {error.strerror if isinstance(error, OSError) else error}.")


# --- from rows to a journal ----------------------------------------------------------------------


def journal(rows: Rows, row: Row) -> Iterator[tuple[int, int, AnyEvent | str]]:
    """A conversation's events in order, each with the number under which it is kept and its seq: the event, or why it cannot be read.

    Ends with the last one that is known of, also if that is missing.
    """
    base = row.base or ()
    # No checksum covers `last_seq` and keys; a number of events that the whole file could not hold was never written.
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
    """Return why what `journal` gave for an event is not that event, "" if it is. A placeholder that was imported is what it says."""
    if isinstance(event, str):
        return event
    return event.reason if isinstance(event, ev.Damaged) and event.raw else ""


def join(gaps: list[Gap], seq: int, reason: str) -> None:
    """Add an event to the gaps: to the last one, if it follows it for the same reason."""
    if gaps and gaps[-1].last == seq - 1 and gaps[-1].reason == reason:
        gaps[-1] = Gap(gaps[-1].first, seq, reason)
    else:
        gaps.append(Gap(seq, seq, reason))


def assemble(rows: Rows, row: Row) -> Salvaged:
    """A conversation of its rows, with placeholders for what cannot be read."""
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
    summary = _told(_summary(row), events) if row.lost else msgspec.structs.replace(_summary(row), last_seq=len(events))
    return Salvaged(summary, tuple(events), tuple(gaps), tuple(remarks(row, len(events))))


def remarks(row: Row, count: int) -> list[str]:
    """What of a conversation's own row is not as it should be; `count` is how many events it was found to have."""
    found: list[str] = []
    if row.lost:
        found.append("its entry in the table of conversations is lost; status, title and times are told by its events")
        if row.id == f"number-{row.number}":
            found.append(f"its id is lost too, so it is named by its number: {row.id}")
    elif row.last_seq != count:
        found.append(f"its entry says that it has {row.last_seq:,} events, not {count:,}")
    if row.base is None:
        found.append("it is a fork, and what it shares with the conversation it was forked from is lost")
    return found


def placeholder(seq: int, timestamp: datetime, reason: str) -> ev.Damaged:
    """Return what stands in a salvaged journal for event `seq`, whose bytes are lost."""
    return ev.Damaged(seq=seq, id=f"damaged-{seq}", timestamp=timestamp, reason=reason)


def _summary(row: Row) -> Summary:
    return Summary(
        row.id, row.status, row.title, row.last_seq, row.created, row.updated, row.parent, row.parent_seq, spawned_by=row.spawned_by
    )


def _told(summary: Summary, events: list[AnyEvent]) -> Summary:
    """A summary as the events tell it."""
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
