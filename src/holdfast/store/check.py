"""A full integrity check of a store's file. `holdfast check` prints its report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from holdfast import commands
from holdfast import events as ev
from holdfast.content import Data
from holdfast.errors import StoreError
from holdfast.store import salvage
from holdfast.store.base import blob_id
from holdfast.store.salvage import Gap, RowSource, StoreFile
from holdfast.store.sqlite.files import DAMAGE
from holdfast.store.sqlite.marks import Mark, losses, marks
from holdfast.store.sqlite.rows import ConversationRow, Progress, SQLRows, silent
from holdfast.store.sqlite.schema import APPLICATION, FORMAT

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
    owner_marks = marks(path)  # read before the file, so that no mark is newer
    with StoreFile(path, progress) as file:
        checking = _Check(file, progress)
        if file.sql is not None:
            try:
                if checking.through_sqlite(file.sql, owner_marks):
                    return checking.report()
            except StoreError:
                raise
            except (*DAMAGE, OSError) as error:
                file.add_trouble(error)
                checking = _Check(file, progress)
        pages = file.pages()
        checking.problems = file.troubles
        checking.conversations(pages, pages.conversations())
        return checking.report()


class _Check:
    """The findings of one check so far."""

    def __init__(self, file: StoreFile, progress: Progress) -> None:
        self.problems: list[str] = []
        self._file = file
        self._progress = progress
        self._findings: list[ConversationDefects] = []
        self._conversations = self._events = self._blobs = 0
        self._total = 0

    def report(self) -> Report:
        return Report(
            file=str(self._file.path),
            format=0 if self._file.sql is None else self._file.sql.format,
            sound=not self._findings and not self.problems,
            conversations=self._conversations,
            events=self._events,
            blobs=self._blobs,
            findings=tuple(self._findings),
            problems=tuple(self.problems),
        )

    def through_sqlite(self, sql: SQLRows, owner_marks: Sequence[Mark]) -> bool:
        """Run all checks through SQLite. Return False if it finds the file damaged. Raises one of
        `DAMAGE`."""
        file = self._file
        older = losses(owner_marks, sql.query)
        if older and not sql.tables:
            raise StoreError(f"{str(file.path)!r}: {older[0]}")
        file.check_is_store()
        if sql.application == APPLICATION and sql.format > FORMAT:
            raise StoreError(
                f"{str(file.path)!r} was written by a newer Holdfast (format {sql.format}, this one"
                f" reads {FORMAT}). `holdfast export --salvage` recovers its readable parts."
            )
        file.troubles += [f"SQLite finds: {line}" for line in sql.integrity(self._progress)]
        if sql.application != APPLICATION:
            file.troubles.append("the file is not marked as a Holdfast store (application id)")
        if file.troubles:
            file.troubles += older
            return False
        self.problems += older
        newer = ("inbox", "blobs", "blob_refs") if sql.format >= 2 else ()
        missing = {"conversations", "events", *newer} - sql.tables
        if missing:
            self.problems.append(f"missing tables: {', '.join(sorted(missing))}")
        if {"conversations", "events"} & missing:
            return True
        rows = sql.conversations()
        self._total = sum(row.summary.last_seq for row in rows)
        self.conversations(sql, rows)
        # A deleted conversation is freed in steps. Until then a mark in the inbox stands for it.
        freed_numbers: set[int] = set()
        if "inbox" in sql.tables:
            freed_numbers = {
                int(n) for (n,) in sql.query("SELECT conversation FROM inbox WHERE key = ''")
            }
        self._strays(sql, rows, freed_numbers)
        if {"blobs", "blob_refs"} <= sql.tables:
            self._kept_blobs(sql)
        if "inbox" in sql.tables:
            self._inbox(sql, {row.number: row.id for row in rows}, freed_numbers)
        return True

    def conversations(self, source: RowSource, rows: Sequence[ConversationRow]) -> None:
        """Check each conversation by itself."""
        for row in rows:
            gaps: list[Gap] = []
            calls = _Calls()
            count = 0
            for seq, event in salvage.journal(source, row):
                count += 1
                if problem := salvage.problem_of(event):
                    salvage.add_gap(gaps, seq, problem)
                    calls.unknown.add(seq)
                elif not isinstance(event, str):
                    calls.take(event)
                    self._events += 1
                if not self._events % _PROGRESS_EVENTS:
                    self._tell_progress()
            problems = salvage.row_defects(row, count) + calls.problems
            if gaps or problems:
                self._findings.append(ConversationDefects(row.id, tuple(gaps), tuple(problems)))
            self._conversations += bool(count)

    def _tell_progress(self) -> None:
        self._progress(self._events, max(self._total, self._events))

    def _strays(
        self, sql: SQLRows, rows: Sequence[ConversationRow], freed_numbers: set[int]
    ) -> None:
        """Find events that belong to no conversation and that no fork shares."""
        ends = dict.fromkeys([*(row.number for row in rows), *freed_numbers], 1 << 32)
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
            self._tell_progress()
            if type(data) is not bytes or blob_id(data) != id:
                self.problems.append(f"the content of the blob {id} does not match its id")
        for condition, problem in (
            ("id NOT IN (SELECT id FROM blobs)", "that events refer to are missing"),
            ("key NOT IN (SELECT key FROM events)", "are kept for events that do not exist"),
        ):
            query = f"SELECT count(*) FROM blob_refs WHERE {condition}"
            if count := sql.query(query).fetchone()[0]:
                self.problems.append(f"{count:,} blobs {problem}")

    def _inbox(self, sql: SQLRows, ids: dict[int, str], freed_numbers: set[int]) -> None:
        for number, conversation, data in sql.query("SELECT number, conversation, data FROM inbox"):
            owner = ids.get(conversation, f"conversation number {conversation}")
            what = f"the command {number} in the inbox of {owner!r}"
            if conversation not in ids and conversation not in freed_numbers:
                self.problems.append(f"{what}: there is no such conversation")
                continue
            command = None if data is None else commands.posted(data)
            if isinstance(command, commands.UnreadableCommand):
                self.problems.append(f"{what} cannot be read: {command.reason}")


class _Calls:
    """The calls and questions aside of a journal, and the starts, results and outcomes that belong
    to none of them."""

    def __init__(self) -> None:
        # Seqs of events that are unreadable, or were written by a newer version.
        self.unknown: set[int] = set()
        self.problems: list[str] = []
        self._call_ids: set[str] = set()
        self._asides: set[str] = set()

    def take(self, event: ev.AnyEvent) -> None:
        """Process the next event."""
        if isinstance(event, ev.AssistantReplied | ev.CodeCallsMade):
            self._call_ids.update(call.id for call in event.calls)
        elif isinstance(event, ev.UnknownEvent | ev.DamagedEvent):
            self.unknown.add(event.seq)
        elif isinstance(event, ev.AsideAsked):
            self._asides.add(event.aside)
        elif isinstance(event, ev.AsideAnswered):
            if event.aside not in self._asides and not self.unknown:
                self.problems.append(
                    f"event {event.seq} answers an unknown question aside {event.aside!r}"
                )
        elif (
            isinstance(event, ev.ToolCallStarted | ev.ToolCallFinished)
            and event.call_id not in self._call_ids
        ):
            answer_seq = event.call_id.partition(".")[0]
            if not answer_seq.isdecimal() or int(answer_seq) not in self.unknown:
                what = "result" if isinstance(event, ev.ToolCallFinished) else "start"
                self.problems.append(
                    f"event {event.seq} is the {what} of an unknown call {event.call_id!r}"
                )
