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
from holdfast.store.marks import Mark, lost, marks
from holdfast.store.rows import ConversationRow, Progress, RowSource, SQLRows, silent
from holdfast.store.salvage import Gap, StoreFile, add_gap, journal, problem_of, row_defects
from holdfast.store.schema import APPLICATION, FORMAT

_PROGRESS_EVENTS = 500  # events between two calls of `progress`


class ConversationDefects(Data, frozen=True):
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
    findings: tuple[ConversationDefects, ...] = ()
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
    marked = marks(path)  # read before the file, so that no mark is newer
    with StoreFile(path, progress) as file:
        if file.sql is not None:
            try:
                if (report := _check_by_sql(file, file.sql, marked, progress)) is not None:
                    return report
            except (*DAMAGE, OSError) as error:
                if isinstance(error, StoreError):
                    raise
                file.add_trouble(error)
        pages = file.pages()
        checking = _Check(path, pages, 0 if file.sql is None else file.sql.format, progress)
        checking.problems = file.troubles
        return checking.conversations(pages.conversations()).report()


def _check_by_sql(
    file: StoreFile, sql: SQLRows, marked: Sequence[Mark], progress: Progress
) -> Report | None:
    """Check a file through SQLite; return None if that finds it damaged. Raises one of `DAMAGE`."""
    older = lost(marked, sql.query)
    if older and not sql.tables:
        raise StoreError(f"{str(file.path)!r}: {older[0]}")
    file.check_is_store()
    if sql.application == APPLICATION and sql.format > FORMAT:
        raise StoreError(
            f"{str(file.path)!r} was written by a newer Holdfast (format {sql.format}, this one"
            f" reads {FORMAT}). `holdfast export --salvage` reads what it can of it."
        )
    file.troubles += [f"SQLite finds: {line}" for line in sql.integrity(progress)]
    if sql.application != APPLICATION:
        file.troubles.append("the file is not marked as a Holdfast store (application id)")
    if file.troubles:
        file.troubles += older
        return None
    checking = _Check(file.path, sql, sql.format, progress)
    checking.problems += older
    return checking.everything(sql)


class _Check:
    def __init__(self, path: Path, rows: RowSource, format: int, progress: Progress) -> None:
        self.problems: list[str] = []
        self._path = path
        self._rows = rows
        self._format = format
        self._progress = progress
        self._findings: list[ConversationDefects] = []
        self._conversations = self._events = self._blobs = 0
        self._total = 0

    def report(self) -> Report:
        sound = not self._findings and not self.problems
        counts = (self._conversations, self._events, self._blobs)
        found = (tuple(self._findings), tuple(self.problems))
        return Report(str(self._path), self._format, sound, *counts, *found)

    def everything(self, sql: SQLRows) -> Report:
        """Run all checks through SQLite. Raises one of `DAMAGE` if SQLite fails later."""
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
        self._total = sum(row.summary.last_seq for row in rows)
        self.conversations(rows)
        self._strays(sql, rows)
        if {"blobs", "blob_refs"} <= sql.tables:
            self._kept_blobs(sql)
        if "inbox" in sql.tables:
            self._inbox(sql, {row.number: row.id for row in rows})
        return self.report()

    # --- conversations ---

    def conversations(self, rows: Sequence[ConversationRow]) -> _Check:
        """Check each conversation by itself."""
        for row in rows:
            gaps: list[Gap] = []
            calls = _Calls()
            count = 0
            for seq, event in journal(self._rows, row):
                count += 1
                if problem := problem_of(event):
                    add_gap(gaps, seq, problem)
                    calls.unknown.add(seq)
                elif not isinstance(event, str):
                    if isinstance(event, ev.DamagedEvent):
                        calls.unknown.add(seq)
                    calls.take(event)
                    self._events += 1
                if not self._events % _PROGRESS_EVENTS:
                    self._progress(self._events, max(self._total, self._events))
            problems = row_defects(row, count) + calls.problems
            if gaps or problems:
                self._findings.append(ConversationDefects(row.id, tuple(gaps), tuple(problems)))
            self._conversations += bool(count)
        return self

    def _strays(self, sql: SQLRows, rows: Sequence[ConversationRow]) -> None:
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
                command := commands.posted(data), commands.UnreadableCommand
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
        if isinstance(event, ev.AssistantReplied):
            self._known.update(call.id for call in event.calls)
        elif isinstance(event, ev.UnknownEvent):
            self.unknown.add(event.seq)
        elif (
            isinstance(event, ev.ToolCallStarted | ev.ToolCallFinished)
            and event.call_id not in self._known
        ):
            asked = event.call_id.partition(".")[0]
            if not asked.isdecimal() or int(asked) not in self.unknown:
                what = "result" if isinstance(event, ev.ToolCallFinished) else "start"
                self.problems.append(
                    f"event {event.seq} is the {what} of an unknown call {event.call_id!r}"
                )
