"""Observation of a child process: a store that counts its appends, and a record of events that
survives a kill."""

from __future__ import annotations

import os
import signal
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from holdfast import events as ev
from holdfast.content import ToolCall
from holdfast.conversation.loop import Loop
from holdfast.events import AnyEvent
from holdfast.runtime import processes
from holdfast.store import Batch, Lease
from holdfast.store.sqlite import SQLiteStore
from holdfast.tools import Tool, ToolContext

APPEND = "append"
Journals = dict[str, list[AnyEvent]]


class Point(msgspec.Struct, frozen=True):
    """A moment at which a process is killed: the `number`-th time (from 1) that it reaches `place`.

    `place` is "append" or the label of a `kill_point`. For an append, `when` is "before" (the
    events have not reached the store) or "after" (the store has them, but `append` has not
    returned).
    """

    number: int
    place: str = APPEND
    when: str = ""

    def __str__(self) -> str:
        if self.place == APPEND:
            return f"{self.when} append {self.number}"
        return f"at {self.place!r}, time {self.number}"


# --- the record ---


class Journaled(msgspec.Struct, frozen=True, tag="journals"):
    """The content of the store, the first conversation first."""

    journals: list[tuple[str, list[msgspec.Raw]]]

    @classmethod
    def of(cls, store: SQLiteStore) -> Journaled:
        # A fork comes after its parent. Of two that began at the same time, the one written
        # earlier comes first.
        summaries = sorted(
            store.list(), key=lambda summary: (bool(summary.parent), str(summary.created))
        )
        ids = [summary.id for summary in summaries]
        return cls(
            [(id, [msgspec.Raw(ev.encode(event)) for event in store.read(id)]) for id in ids]
        )

    def events(self) -> Journals:
        return {id: [ev.decode(bytes(raw)) for raw in raws] for id, raws in self.journals}


class Acknowledged(msgspec.Struct, frozen=True, tag="acknowledged"):
    """An event that the store has confirmed."""

    conversation: str
    seq: int
    crc: int


class Repeatable(msgspec.Struct, frozen=True, tag="repeatable"):
    """The tools of a conversation, and for each whether it may run again."""

    conversation: str
    tools: dict[str, bool]


class Reconciled(msgspec.Struct, frozen=True, tag="reconciled"):
    """The answer of a tool's `reconcile` about a call: "result", "again" (it returned None) or
    "raised"."""

    conversation: str
    call_id: str
    answer: str


class Reached(msgspec.Struct, frozen=True, tag="reached"):
    """The number of visits to each place, in a process that ended by itself."""

    places: dict[str, int]


class Killed(msgspec.Struct, frozen=True, tag="killed"):
    """A note that the process is about to kill itself."""


Note = Journaled | Acknowledged | Repeatable | Reconciled | Reached | Killed
_decoder = msgspec.json.Decoder(Note)


class NoteFile:
    """A file of notes, one JSON object per line. When `write` returns, the note survives the
    process. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, note: Note) -> None:
        data = msgspec.json.encode(note)
        if b"\n" in data:  # in verbatim parts of a provider's answer
            data = msgspec.json.format(data, indent=-1)
        unwritten = memoryview(data + b"\n")
        while unwritten:
            unwritten = unwritten[os.write(self._fd, unwritten) :]

    @staticmethod
    def read(path: Path) -> list[Note]:
        lines = path.read_bytes().split(b"\n") if path.exists() else []
        return [_decoder.decode(line) for line in lines if line]


# --- kills ---


class PlaceCounter(msgspec.Struct):
    """A counter of visits to each place, which kills the process at its kill point."""

    _record: NoteFile
    _kill: Point | None
    _lock: threading.Lock = msgspec.field(default_factory=threading.Lock)
    reached: dict[str, int] = {}

    def come_to(self, place: str, when: str = "") -> int:
        """Count a visit and return the number of visits. Does not return at the kill point."""
        with self._lock:
            number = self.reached[place] = self.reached.get(place, 0) + 1
        self.be_at(place, number, when)
        return number

    def be_at(self, place: str, number: int, when: str) -> None:
        kill = self._kill
        if kill is not None and (place, number, when) == (kill.place, kill.number, kill.when):
            self._record.write(Killed())
            while True:
                os.kill(os.getpid(), signal.SIGKILL)


_places: PlaceCounter | None = None  # set in a watched child process


def kill_point(label: str) -> None:
    """Mark a place within a tool at which `crash_at_every_append` also kills the process:
    `kill_point("sent, not noted")`. A no-op elsewhere."""
    if _places is not None:
        _places.come_to(label)


class WatchedStore(SQLiteStore):
    """An `SQLiteStore` that is killed at its appends and records each event that it confirms."""

    def __init__(self, path: Path, record: NoteFile, places: PlaceCounter) -> None:
        super().__init__(path, "process")
        assert self._writer is not None
        # Only processes die here, not machines, so no fsync is needed.
        self._writer.db.execute("PRAGMA synchronous = OFF")
        self._record = record
        self._places = places

    def append(self, lease: Lease, batch: Batch) -> bool:
        number = self._places.come_to(APPEND, "before")
        lease_held = super().append(lease, batch)
        for event in batch.events:
            self._record.write(
                Acknowledged(lease.conversation_id, event.seq, zlib.crc32(ev.encode(event)))
            )
        self._places.be_at(APPEND, number, "after")
        return lease_held


def _watch_tools(record: NoteFile) -> None:
    """Record each conversation's tools and the answers of their `reconcile` from now on."""
    drive = Loop.drive

    def watched(self: Loop, until_rest: bool) -> None:
        tools = self.context.agent.tools.list_tools()
        repeatable = {tool.name: tool.annotations.repeatable for tool in tools}
        record.write(Repeatable(self.context.journal.id, repeatable))
        for tool in tools:
            if tool.reconcile is not None and not hasattr(tool.reconcile, "watched"):
                tool.reconcile = _watched_reconcile(record, tool)
        drive(self, until_rest)

    Loop.drive = watched


def _watched_reconcile(record: NoteFile, tool: Tool) -> Callable[[ToolCall, ToolContext], Any]:
    reconcile = tool.reconcile
    assert reconcile is not None

    def watched(call: ToolCall, context: ToolContext) -> Any:
        answer = "raised"
        try:
            result = reconcile(call, context)
            answer = "again" if result is None else "result"
            return result
        finally:
            record.write(Reconciled(context.conversation_id, call.id, answer))

    watched.watched = True  # pyright: ignore[reportFunctionMemberAccess]
    return watched


# --- children ---

Program = Callable[[SQLiteStore, Path], object]


class Task(msgspec.Struct, frozen=True):
    """The task of a child: run the program in `folder` with `record` as its record, until its end
    or until `kill`.

    `resumes` is True after a kill. Processes that the child starts inherit `mark`.
    """

    folder: Path
    record: Path
    mark: str
    resumes: bool = False
    kill: Point | None = None


class Watched(msgspec.Struct, frozen=True):
    """The function of a child: it runs the program with a watched store."""

    program: Program
    resume: Program

    def prepare(self) -> None:
        """Import pydantic, which takes longer than everything that a child does."""
        _ = Tool.from_function(kill_point).input_schema

    def __call__(self, task: Task) -> None:
        global _places
        os.putenv(processes.OWNER, task.mark)
        record = NoteFile(task.record)
        places = PlaceCounter(record, task.kill)
        path = task.folder / "store.db"
        store = WatchedStore(path, record, places)
        record.write(Journaled.of(store))
        _watch_tools(record)
        _places = places
        try:
            (self.resume if task.resumes else self.program)(store, task.folder)
        finally:
            _places = None
            store.close()
        with WatchedStore(path, record, places) as again:
            record.write(Journaled.of(again))
        record.write(Reached(places.reached))
