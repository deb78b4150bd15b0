"""A full integrity check of a store's file. `holdfast check` prints its report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from holdfast import commands
from holdfast import events as ev
from holdfast.content import Data
from holdfast.errors import StoreError
from holdfast.store.base import blob_id
from holdfast.store.files import DAMAGE
from holdfast.store.marks import lost, marks
from holdfast.store.rows import Progress, Row, Rows, SQLRows, silent
from holdfast.store.salvage import (
    Gap,
    check_file,
    check_store,
    join,
    journal,
    misread,
    remarks,
    unreadable,
)
from holdfast.store.scan import PageRows
from holdfast.store.schema import APPLICATION, FORMAT
from holdfast.store.wal import wal_troubles

_PROGRESS_EVENTS = 500  # events between two calls of `progress`


class Finding(Data, frozen=True):
    """The defects of one conversation: unreadable events, and other problems."""

    id: str
    gaps: tuple[Gap, ...] = ()
    problems: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.id}: {'; '.join([*map(str, self.gaps), *self.problems])}"


class Report(Data, frozen=True):
    """The result of `check`. `conversations` and `events` count the readable ones. `problems`
    concern the file as a whole."""

    file: str
    format: int
    sound: bool
    conversations: int
    events: int
    blobs: int
    findings: tuple[Finding, ...] = ()
    problems: tuple[str, ...] = ()


def check(path: str | Path, progress: Progress = silent) -> Report:
    """Read all of the store at `path` and report every inconsistency.

    The file is not changed and may be in use. The check covers:

    - SQLite's own integrity check;
    - the checksum and JSON of every event;
    - that the events of each conversation, shared ones included, have no gap up to the last one
      of its entry;
    - that starts and results belong to calls;
    - that blobs match their names;
    - the inbox.

    `progress` is called now and then. Raises `StoreError` if the file does not exist, is no
    store, or was written by a newer Holdfast.
    """
    path = Path(path).absolute()
    check_file(path)
    marked = marks(path)  # read before the file, so that no mark is newer
    problems = wal_troubles(path)
    sql: SQLRows | None = None
    try:
        try:
            sql = SQLRows(path)
            older = lost(marked, sql.tables, sql.query)
            if older and not sql.tables:
                raise StoreError(f"{str(path)!r}: {older[0]}")
            check_store(path, sql)
            if sql.application == APPLICATION and sql.format > FORMAT:
                raise StoreError(
                    f"{str(path)!r} was written by a newer Holdfast (format {sql.format}, this one"
                    f" reads {FORMAT}). `holdfast export --salvage` reads what it can of it."
                )
            problems += [f"SQLite finds: {line}" for line in sql.integrity(progress)]
            if sql.application != APPLICATION:
                problems.append("the file is not marked as a Holdfast store (application id)")
            if not problems:
                checking = _Check(path, sql, sql.format, progress)
                checking.problems += older
                return checking.everything(sql)
            problems += older
        except (*DAMAGE, OSError) as error:
            if isinstance(error, StoreError):
                raise
            problems.append(f"SQLite cannot read the file: {error}")
        try:
            pages = PageRows(path, progress)
        except OSError as error:
            raise unreadable(path, error) from error
        try:
            if not pages.is_store and not (sql is not None and sql.application == APPLICATION):
                raise StoreError(
                    f"{str(path)!r} is not a Holdfast store, or nothing of it can be read."
                )
            checking = _Check(path, pages, 0 if sql is None else sql.format, progress)
            checking.problems = [*problems, *pages.troubles]
            return checking.conversations(pages.conversations()).report()
        finally:
            pages.close()
    finally:
        if sql is not None:
            sql.close()


class _Check:
    def __init__(self, path: Path, rows: Rows, format: int, progress: Progress) -> None:
        self.problems: list[str] = []
        self._path = path
        self._rows = rows
        self._format = format
        self._progress = progress
        self._findings: list[Finding] = []
        self._conversations = self._events = self._blobs = 0
        self._total = 0

    def report(self) -> Report:
        sound = not self._findings and not self.problems
        return Report(
            str(self._path),
            self._format,
            sound,
            self._conversations,
            self._events,
            self._blobs,
            tuple(self._findings),
            tuple(self.problems),
        )

    def everything(self, sql: SQLRows) -> Report:
        """Run all checks on a file that SQLite can read. Raises one of `DAMAGE` if SQLite fails
        later."""
        missing = {
            "conversations",
            "events",
            *(("inbox", "blobs", "blob_refs") if sql.format >= 2 else ()),
        } - sql.tables
        if missing:
            self.problems.append(f"missing tables: {', '.join(sorted(missing))}")
        if {"conversations", "events"} & missing:
            return self.report()
        rows = sql.conversations()
        self._total = sum(row.last_seq for row in rows)
        self.conversations(rows)
        self._strays(sql, rows)
        if {"blobs", "blob_refs"} <= sql.tables:
            self._kept_blobs(sql)
        if "inbox" in sql.tables:
            self._inbox(sql, {row.number: row.id for row in rows})
        return self.report()

    # --- conversations ---

    def conversations(self, rows: Sequence[Row]) -> _Check:
        """Check each conversation by itself."""
        for row in rows:
            gaps: list[Gap] = []
            calls = _Calls()
            count = 0
            for _, seq, found in journal(self._rows, row):
                count += 1
                if problem := misread(found):
                    join(gaps, seq, problem)
                    calls.unknown.add(seq)
                elif not isinstance(found, str):
                    if isinstance(found, ev.Damaged):
                        calls.unknown.add(seq)
                    calls.take(found)
                    self._events += 1
                if not self._events % _PROGRESS_EVENTS:
                    self._progress(self._events, max(self._total, self._events))
            problems = remarks(row, count) + calls.problems
            if gaps or problems:
                self._findings.append(Finding(row.id, tuple(gaps), tuple(problems)))
            self._conversations += bool(count)
        return self

    def _strays(self, sql: SQLRows, rows: Sequence[Row]) -> None:
        """Find events that belong to no conversation and that no fork shares."""
        ends = {row.number: 1 << 32 for row in rows}
        # A deleted conversation is freed in steps. Until then a mark in the inbox stands for it.
        if "inbox" in sql.tables:
            ends |= {
                int(number): 1 << 32
                for (number,) in sql.query("SELECT conversation FROM inbox WHERE key = ''")
            }
        for row in rows:
            for number, last in row.base or ():
                ends[number] = max(ends.get(number, 0), last)
        for number, last, count in sql.query(
            "SELECT key >> 32, max(key & 0xFFFFFFFF), count(*) FROM events GROUP BY key >> 32"
        ):
            if last > ends.get(number, 0):
                self.problems.append(
                    f"events up to {last} ({count:,} in all) of a conversation number {number} that"
                    " does not exist"
                )

    # --- tables since format 2 ---

    def _kept_blobs(self, sql: SQLRows) -> None:
        for id, data in sql.query("SELECT id, data FROM blobs"):
            self._blobs += 1
            self._progress(self._events, max(self._total, self._events))
            if type(data) is not bytes or blob_id(data) != id:
                self.problems.append(f"the content of the blob {id} does not match its id")
        query = "SELECT count(*) FROM blob_refs WHERE id NOT IN (SELECT id FROM blobs)"
        if count := sql.query(query).fetchone()[0]:
            self.problems.append(f"{count:,} blobs that events refer to are missing")
        query = "SELECT count(*) FROM blob_refs WHERE key NOT IN (SELECT key FROM events)"
        if count := sql.query(query).fetchone()[0]:
            self.problems.append(f"{count:,} blobs are kept for events that do not exist")

    def _inbox(self, sql: SQLRows, ids: dict[int, str]) -> None:
        freed = {number for (number,) in sql.query("SELECT conversation FROM inbox WHERE key = ''")}
        for number, conversation, data in sql.query("SELECT number, conversation, data FROM inbox"):
            what = (
                f"the command {number} in the inbox of"
                f" {ids.get(conversation, f'conversation number {conversation}')!r}"
            )
            if conversation not in ids and conversation not in freed:
                self.problems.append(f"{what}: there is no such conversation")
            elif data is not None and isinstance(
                command := commands.posted(data), commands.Unreadable
            ):
                self.problems.append(f"{what} cannot be read: {command.reason}")


class _Calls:
    """The calls of a journal, and the starts and results that belong to none of them."""

    def __init__(self) -> None:
        # Seqs of events that are unreadable, or were written by a newer version.
        self.unknown: set[int] = set()
        self.problems: list[str] = []
        self._known: set[str] = set()

    def take(self, event: ev.AnyEvent) -> None:
        """Process the next event."""
        if isinstance(event, ev.Assistant):
            self._known.update(call.id for call in event.calls)
        elif isinstance(event, ev.Unknown):
            self.unknown.add(event.seq)
        elif (
            isinstance(event, ev.ToolCallStarted | ev.ToolResult)
            and event.call_id not in self._known
        ):
            asked = event.call_id.partition(".")[0]
            if not asked.isdecimal() or int(asked) not in self.unknown:
                what = "result" if isinstance(event, ev.ToolResult) else "start"
                self.problems.append(
                    f"event {event.seq} is the {what} of an unknown call {event.call_id!r}"
                )
